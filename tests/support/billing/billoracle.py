"""What a random world (tests/support/billing/billworld.py) must be billed, computed in exact fractions from the rules of measuring and billing as they are written, without a line of the ledger's code.

    bill = Bill(world, 0, late=False)   # the first month, as far as was known before it was closed
    bill.lines                          # {key: Line}
    corrections(before, after)          # {key: Line}: what is to be corrected of a closed month

Numbers in the comments are the sections of the rules: 1 states, 2 classes, 3 who pays, 4 a line."""

import collections
from fractions import Fraction

from tests.support.billing.billworld import DOWN, HELD, HOUR, STATES, UNITS, UNKNOWN, WORKSPACES, units_of

BILLION = 10**9
MJ_PER_KWH = 3_600_000_000
TENANTS = ("acme", "globex", "initech", "unattributed")
ACTIVITY = ("used", "idle", "unmeasured", "over", "energy")
CATEGORY = {"storage": "storage", "egress": "network", "inference-requests": "inference", "inference-input-tokens": "inference", "inference-output-tokens": "inference", "support": "support"}
METER_UNIT = {"storage": "GB-hour", "egress": "GB", "inference-requests": "request", "inference-input-tokens": "token", "inference-output-tokens": "token", "support": "hour"}

# What a line is of; two lines with the same key would be one line.
Key = collections.namedtuple("Key", "kind cluster tenant workspace model profile sharing klass version counterparty sku meter unit", defaults=("",) * 11)


def whole(x):
    """Half to even."""
    return round(Fraction(x))


def shares(total, weights):
    """In proportion by largest remainder; of equal ones the first gets it."""
    of = sum(weights)
    if not of:
        return [0] * len(weights)
    parts = [total * w // of for w in weights]
    order = sorted(range(len(weights)), key=lambda i: -(Fraction(total * weights[i]) / of - parts[i]))
    for i in order[: total - sum(parts)]:
        parts[i] += 1
    return parts


def shares_within(total, weights, rooms):
    """The same, and nobody beyond its room: those are full, and the rest is for the others."""
    full = {}
    while True:
        left = total - sum(full.values())
        weights_left = [0 if i in full or not rooms[i] else w for i, w in enumerate(weights)]
        if not left or not sum(weights_left):
            return [full.get(i, 0) for i in range(len(weights))]
        parts = shares(left, weights_left)
        beyond = {i: rooms[i] for i, p in enumerate(parts) if p > rooms[i]}
        if not beyond:
            return [full.get(i, p) for i, p in enumerate(parts)]
        full |= beyond


def together(amounts):
    """Rounded so that they add up to their rounded sum."""
    floors = [x.numerator // x.denominator for x in amounts]
    order = sorted(range(len(amounts)), key=lambda i: -(amounts[i] - floors[i]))
    for i in order[: whole(sum(amounts, Fraction(0))) - sum(floors)]:
        floors[i] += 1
    return floors


class Line:
    def __init__(self, key):
        self.key = key
        self.unit, self.unit_price, self.sku, self.category, self.priced = "", Fraction(0), "", "gpu", True
        self.days = collections.defaultdict(lambda: collections.defaultdict(Fraction))  # day -> column -> amount
        self.reservation = None  # of a commitment and its parts: what that is priced for
        self.billed = None  # in the currency's smallest unit
        self.correction = False

    def sum(self, column):
        return sum((d[column] for d in self.days.values()), Fraction(0))

    @property
    def net(self):
        return self.sum("net")


class Hour:
    """A pool's clock-hour (2)."""

    def __init__(self):
        self.uses = collections.defaultdict(collections.Counter)  # (workspace, profile, units, sharing) -> activity
        self.states = collections.Counter()
        self.free_energy = 0


class Measured:
    """States and holders of every pool's hours (1), from what the world knows; late: with what came late."""

    def __init__(self, world, late):
        self.world = world
        self.hours = collections.defaultdict(Hour)  # (hour, cluster, owner, model) -> Hour
        self.seen = set()  # hours that the ledger has at all
        nodes = {n.name: n for n in world.nodes}
        covered, first = collections.Counter(), {}
        for r in world.records:
            if r.late and not late:
                continue
            n, hour = nodes[r.node], world.hour_of(r.start)
            cell = self.hours[hour, n.cluster, n.owner, n.model]
            covered[r.gpu, hour] += r.units * r.held
            first[r.gpu] = min(first.get(r.gpu, r.start), r.start)
            if r.state == HELD:
                use = cell.uses[r.who, r.profile, units_of(n.model, r.profile), r.sharing]
                for name, amount in (("used", r.used), ("unmeasured", r.unmeasured), ("idle", r.held - r.used - r.unmeasured), ("over", r.over)):
                    use[name] += r.units * amount
                use["energy"] += r.energy
            else:
                state = STATES[r.state] if not self.in_maintenance(r.node, hour) else "down"
                cell.states[state] += r.units * r.held
                cell.free_energy += r.energy
        for n in world.nodes:
            end = world.windows[n.window][1]  # retired from then on
            for gpu in n.gpus:
                if gpu.uuid in first:
                    hour = world.hour_of(first[gpu.uuid])
                    while hour < end:
                        served = UNITS * (min(end, hour + HOUR) - max(first[gpu.uuid], hour))
                        state = "down" if self.in_maintenance(n.name, hour) else "unknown"
                        self.hours[hour, n.cluster, n.owner, n.model].states[state] += served - covered[gpu.uuid, hour]
                        self.seen.add(hour)
                        hour += HOUR

    def in_maintenance(self, node, hour):
        t = terms_at(self.world, hour)
        return t.nodes[node][1] == "maintenance"


def terms_at(world, ns):
    return [t for t in world.terms if t.at <= ns][-1]


class Settled:
    """Of one pool and hour (2): per workspace the fate of what it had reserved and the class of what it held."""

    def __init__(self, capacity, held, rights, caps):
        self.who = sorted({*held, *rights}, key=WORKSPACES.index)
        h, r = [held.get(w, 0) for w in self.who], [rights.get(w, 0) for w in self.who]
        short = shares_within(max(0, sum(r) - capacity), r, [max(0, b - a) for a, b in zip(h, r)])
        r = [a - b for a, b in zip(r, short)]
        covered = [min(a, b) for a, b in zip(h, r)]
        over = [a - b for a, b in zip(h, covered)]
        spare = capacity - sum(r)
        on_demand = shares(min(sum(over), spare), over)
        borrowed = [a - b for a, b in zip(over, on_demand)]
        unused = [a - b for a, b in zip(r, covered)]
        rooms = [min(u, caps.get(w, u)) for u, w in zip(unused, self.who)]
        within = shares_within(min(sum(borrowed), sum(rooms)), unused, rooms)
        left = [a - b for a, b in zip(unused, within)]
        beyond = shares_within(sum(borrowed) - sum(within), left, left)
        lent = [a + b for a, b in zip(within, beyond)]
        self.idle = spare - sum(on_demand)
        unused = [a - b for a, b in zip(unused, lent)]
        assert sum(covered) + sum(on_demand) + sum(borrowed) + sum(unused) + self.idle == capacity
        assert sum(lent) == sum(borrowed)
        columns = {"covered": covered, "on-demand": on_demand, "borrowed": borrowed, "lent": lent, "beyond": beyond, "unused": unused, "undelivered": short}
        self.of = {w: {name: column[i] for name, column in columns.items()} for i, w in enumerate(self.who)}


def divide(activity, parts):
    """What was used, idle and unmeasured of one kind of device among its classes: pro rata, each class its whole."""
    names = ("used", "idle", "unmeasured")
    out, left = [], {n: activity[n] for n in names}
    for part in parts:
        piece = dict(zip(names, shares(part, [left[n] for n in names])))
        left = {n: left[n] - piece[n] for n in names}
        out.append(collections.Counter(piece))
    for n in ("over", "energy"):
        for piece, amount in zip(out, shares(activity[n], parts)):
            piece[n] = amount
    return out


class Charged:
    """The classes of all hours of a month, added up by day and price book."""

    def __init__(self, world, month, late):
        self.world = world
        self.measured = Measured(world, late)
        start, end = world.bounds[month], world.bounds[month + 1]
        self.uses = collections.defaultdict(collections.Counter)  # (day, book, cluster, model, workspace, profile, units, sharing, class, reservation) -> activity
        self.rights = collections.defaultdict(collections.Counter)  # (day, book, cluster, owner, model, workspace, profile, units) -> fate -> amount
        self.loans = collections.Counter()  # (day, book, cluster, owner, model, lender, borrower, profile, units, sharing) -> activity
        self.loans = collections.defaultdict(collections.Counter)
        self.idle = collections.Counter()  # (day, book, cluster, owner, model): unreserved; of shared ones without what is stranded
        self.free_energy = collections.Counter()
        self.held = collections.defaultdict(collections.Counter)  # (day, book, cluster, model) -> tenant -> amount, of shared nodes
        for hour in sorted(self.measured.seen):
            if start <= hour < end:
                self.add_hour(hour)

    def add_hour(self, hour):
        terms = terms_at(self.world, hour)
        at = (self.world.day_of(hour), terms.book)
        rights = collections.defaultdict(dict)
        for who, agreed in terms.rights.items():
            for cluster, shared, model, profile, count in agreed:
                one = units_of(model, profile)
                rights[cluster, None if shared else who[0], model][who] = (profile, one, int(count * one) * HOUR)
        pools = {key[1:] for key in self.measured.hours if key[0] == hour} | {*rights}
        for pool in sorted(pools, key=str):
            self.add_pool(at, terms, pool, self.measured.hours.get((hour, *pool), Hour()), rights[pool])

    def add_pool(self, at, terms, pool, cell, rights):
        cluster, owner, model = pool
        held = collections.Counter()
        for (who, *_), a in cell.uses.items():
            held[who] += a["used"] + a["idle"] + a["unmeasured"]
        capacity = sum(held.values()) + cell.states["unallocated"] + cell.states["stranded"]
        caps = {w: int(terms.lend[w][model] * UNITS) * HOUR for w in rights if model in terms.lend.get(w, {})}
        s = Settled(capacity, held, {w: r[2] for w, r in rights.items()}, caps)
        borrowed = self.add_uses(at, pool, cell, s, rights)
        self.add_loans(at, pool, s, borrowed)
        for who, (profile, one, amount) in rights.items():
            fate = self.rights[(*at, *pool, who, profile, one)]
            fate["reserved"] += amount
            for name in ("covered", "lent", "beyond", "unused", "undelivered"):
                fate[name] += s.of[who][name]
        self.idle[(*at, *pool)] += s.idle if owner else max(0, s.idle - cell.states["stranded"])
        self.free_energy[(*at, *pool)] += cell.free_energy
        if not owner:
            for who, amount in held.items():
                self.held[(*at, cluster, model)][who[0]] += amount

    def add_uses(self, at, pool, cell, s, rights):
        """Whole GPUs first, then larger profiles, then by name; what was borrowed, in that order."""
        left = {w: dict(x) for w, x in s.of.items()}
        borrowed = []
        order = sorted(cell.uses.items(), key=lambda u: (WORKSPACES.index(u[0][0]), -u[0][2], u[0][1], u[0][3]))
        for (who, profile, units, sharing), activity in order:
            amount = activity["used"] + activity["idle"] + activity["unmeasured"]
            parts = []
            for name in ("covered", "on-demand", "borrowed"):
                parts.append(min(amount, left[who][name]))
                left[who][name] -= parts[-1]
                amount -= parts[-1]
            assert amount == 0
            for name, part, piece in zip(("covered", "on-demand", "borrowed"), parts, divide(activity, parts)):
                if part:
                    reservation = pool[1] if name == "covered" else None
                    self.uses[(*at, pool[0], pool[2], who, profile, units, sharing, name, reservation)] += piece
                    if name == "borrowed":
                        borrowed.append((who, profile, units, sharing, part, piece))
        return borrowed

    def add_loans(self, at, pool, s, borrowed):
        """Borrowers in the order of their ids, each over what each lender has left."""
        left = {w: x["lent"] for w, x in s.of.items() if x["lent"]}
        for who, profile, units, sharing, amount, piece in borrowed:
            lenders = list(left)
            parts = shares(amount, [left[w] for w in lenders])
            for lender, part, activity in zip(lenders, parts, divide(piece, parts)):
                left[lender] -= part
                if part:
                    self.loans[(*at, *pool, lender, who, profile, units, sharing)] += activity + collections.Counter(lent=part)


class Prices:
    """What a unit costs (4): the most specific item; a tenant's own goes before all others."""

    def __init__(self, book):
        self.book = book

    def item(self, klass, model, profile, sharing, tenant):
        """The item for this tenant, or for all when tenant is None."""
        best = None
        for n, i in enumerate(self.book.items):
            wanted = (("gpu_model", model), ("mig_profile", profile), ("sharing_mode", sharing), ("class", klass))
            if i["tenant"] == tenant and all(i[k] is None or i[k] == v for k, v in wanted):
                rank = tuple(i[k] is not None for k, _ in wanted)
                if best is None or rank > best[0]:
                    best = (rank, n, i)
        return best and best[2]

    def both(self, klass, model, profile, sharing, tenant):
        """(public item, the tenant's); either may stand for the other."""
        public, own = self.item(klass, model, profile, sharing, None), self.item(klass, model, profile, sharing, tenant)
        return public or own, own or public

    def meter(self, meter, sku, tenant):
        def find(of):
            found = [i for i in self.book.meters if i["meter"] == meter and i["tenant"] == of and i["meter_sku"] in (None, sku)]
            return max(found, key=lambda i: i["meter_sku"] is not None, default=None)

        public, own = find(None), find(tenant)
        return public or own, own or public

    def discount(self, tenant, category, klass):
        best = None
        for d in self.book.discounts:
            if all(d[k] is None or d[k] == v for k, v in (("tenant", tenant), ("category", category), ("class", klass))):
                rank = tuple(d[k] is not None for k in ("tenant", "category", "class"))
                if best is None or rank > best[0]:
                    best = (rank, d["percent"] / 100)
        return best[1] if best else Fraction(0)


def per_instance(item):
    return item["mig_profile"] is not None


def sku_of(item, model, profile):
    return item["sku"] or model.lower() + (f"-mig-{profile}" if profile else "")


class Bill:
    """A month's lines and cents."""

    def __init__(self, world, month, late, ids=None):
        self.world, self.month = world, month
        self.ids = ids or {}  # key -> line_id, by which the smallest unit goes where remainders are equal
        self.lines = {}
        self.charged = c = Charged(world, month, late)
        self.loans = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))  # key of a lent line -> (borrower, day) -> activity
        self.commitment_of = {}
        self.add_usage(c)
        self.add_reservations(c)
        self.add_idle(c)
        self.add_energy(c)
        self.add_meters(month, late)
        self.add_one_offs(month)
        self.lines = {k: x for k, x in self.lines.items() if x.days}
        for line in self.lines.values():
            for day in line.days.values():
                day["discount"] = day["list"] - day["net"]
        self.round_invoices()
        self.credit_loans()

    def line(self, *args, **more):
        key = Key(*args, **more)
        if key not in self.lines:
            self.lines[key] = Line(key)
        return self.lines[key]

    # ---- lines ----

    def hours(self, amount, item, units):
        """A quantity in 10^-9: hours of instances, or of GPUs."""
        return Fraction(amount * BILLION, (units if per_instance(item) else UNITS) * HOUR)

    def price(self, line, public, own, off):
        line.unit_price = public["price"]
        line.unit = "instance-hour" if per_instance(public) else "gpu-hour"
        line.sku = sku_of(own, line.key.model, line.key.profile)

    def set_cost(self, line, day, public, own, quantity, own_quantity, off):
        d = line.days[day]
        d["quantity"] += Fraction(quantity, BILLION)
        d["own_quantity"] += Fraction(own_quantity, BILLION)
        d["list"] += Fraction(quantity, BILLION) * public["price"]
        d["net"] += Fraction(own_quantity, BILLION) * own["price"] * (1 - off)

    def add_activity(self, line, day, ngh, activity):
        """GPU-hours of what was held, adding up to the whole."""
        names = ("used", "idle", "unmeasured")
        parts = [Fraction(activity[n] * BILLION, UNITS * HOUR) for n in names]
        rounded = [p.numerator // p.denominator for p in parts]
        for i in sorted(range(3), key=lambda i: rounded[i] - parts[i])[: ngh - sum(rounded)]:
            rounded[i] += 1
        d = line.days[day]
        d["allocated"] += Fraction(ngh, BILLION)
        for n, v in zip(names, rounded):
            d[n] += Fraction(v, BILLION)
        d["energy"] += Fraction(activity["energy"])

    def add_usage(self, c):
        """1 and 3 of who pays: on-demand and borrowed."""
        sums = collections.defaultdict(collections.Counter)
        for (day, book, cluster, model, who, profile, units, sharing, klass, _), a in c.uses.items():
            if klass != "covered":
                sums[day, book, cluster, model, who, profile, units, sharing, klass] += a
        for (day, book, cluster, model, who, profile, units, sharing, klass), a in sums.items():
            line = self.line("usage", cluster, *who, model, profile, sharing, klass, book.version)
            public, own = Prices(book).both(klass, model, profile, sharing, who[0])
            off = Prices(book).discount(who[0], "gpu", klass)
            self.price(line, public, own, off)
            held = a["used"] + a["idle"] + a["unmeasured"]
            ngh = whole(Fraction(held * BILLION, UNITS * HOUR))

            def quantity(item):
                return whole(self.hours(a["used"] + a["unmeasured"] + a["over"] if item["basis"] == "used" else held, item, units))

            self.add_activity(line, day, ngh, a)
            line.days[day]["gpu_hours"] += Fraction(ngh, BILLION)
            self.set_cost(line, day, public, own, quantity(public), quantity(own), off)

    def add_reservations(self, c):
        """2 of who pays: the commitment, and its parts rounded together in one unit."""
        for (day, book, cluster, owner, model, who, profile, units), fate in c.rights.items():
            public, own = Prices(book).both("reserved", model, profile, "", who[0])
            off = Prices(book).discount(who[0], "gpu", "reserved")
            # Every part: its line's key, amount, and activity where it was held. Parts of reservations with different units are different lines.
            parts = []
            unit = f"instance-hour of {profile}" if per_instance(public) else "gpu-hour"
            for (d, b, cl, m, w, p, u, sharing, klass, o), a in c.uses.items():
                if (d, b, cl, m, w, klass, o) == (day, book, cluster, model, who, "covered", owner):
                    parts.append((Key("covered", cluster, *who, model, p, sharing, "reserved", book.version, unit=unit), a["used"] + a["idle"] + a["unmeasured"], a))
            loans = collections.Counter()
            for (d, b, cl, o, m, lender, borrower, p, u, sharing), a in c.loans.items():
                if (d, b, cl, o, m, lender) == (day, book, cluster, owner, model, who):
                    key = Key("lent", cluster, *who, model, p, sharing, "borrowed", book.version, borrower[0], unit=unit)
                    loans[key] += a["lent"]
                    self.loans[key][borrower, day, owner] += a
                    self.commitment_of[key] = (public, own, off, units, book)
            parts += [(k, v, None) for k, v in loans.items()]
            parts.append((Key("unused", cluster, *who, model, profile, "", "reserved", book.version), fate["unused"], None))
            parts.append((Key("undelivered", cluster, *who, model, profile, "", "reserved", book.version), fate["undelivered"], None))
            # Of equal remainders the first in this order gets the billionth.
            kinds = ("covered", "unused", "undelivered", "lent")
            parts = sorted((p for p in parts if p[1]), key=lambda p: (p[0].profile, p[0].sharing, p[0].counterparty, kinds.index(p[0].kind)))
            assert sum(p[1] for p in parts) == fate["reserved"]
            line = self.line("commitment", cluster, *who, model, profile, "", "reserved", book.version)
            self.price(line, public, own, off)
            line.reservation = unit
            self.set_cost(line, day, public, own, whole(self.hours(fate["reserved"], public, units)), whole(self.hours(fate["reserved"], own, units)), off)
            line.days[day]["gpu_hours"] += Fraction(whole(Fraction(fate["reserved"] * BILLION, UNITS * HOUR)), BILLION)
            quantities = together([self.hours(p[1], public, units) for p in parts])
            owns = together([self.hours(p[1], own, units) for p in parts])
            gpu_hours = together([Fraction(p[1] * BILLION, UNITS * HOUR) for p in parts])
            for (key, amount, activity), quantity, own_quantity, ngh in zip(parts, quantities, owns, gpu_hours):
                self.add_part(key, day, public, own, off, quantity, own_quantity, ngh, activity)
                self.lines[key].reservation = unit
                if per_instance(public) and key.profile != profile:
                    self.lines[key].unit = f"instance-hour of {profile}"  # the parts of a reservation have its unit

    def add_part(self, key, day, public, own, off, quantity, own_quantity, ngh, activity):
        line = self.lines.setdefault(key, Line(key))
        self.price(line, public, own, off)
        line.sku = sku_of(own, key.model, key.profile)
        d = line.days[day]
        if activity is not None:
            self.add_activity(line, day, ngh, activity)
        d["gpu_hours"] += Fraction(ngh, BILLION)
        # What the same hours cost as a part of the reservation, or on demand: for FOCUS.
        d["reserved_list"] += Fraction(quantity, BILLION) * public["price"]
        d["reserved_net"] += Fraction(own_quantity, BILLION) * own["price"] * (1 - off)
        if key.kind == "covered":
            self.set_on_demand(line, d, activity, quantity, ngh)
        if key.kind == "undelivered":
            self.set_cost(line, day, public, own, -quantity, -own_quantity, off)
        elif key.kind == "lent":
            d["quantity"] -= Fraction(quantity, BILLION)  # the price is the borrower's: credit_loans
        else:
            line.unit_price = Fraction(0)
            d["quantity"] += Fraction(quantity, BILLION)

    def set_on_demand(self, line, d, activity, quantity, ngh):
        """Time that was rounded with the other parts is not rounded again."""
        k = line.key
        book = next(b for b in self.world.books if b.version == k.version)
        public, _ = Prices(book).both("on-demand", k.model, k.profile, k.sharing, k.tenant)
        line.on_demand_price, line.on_demand_unit = public["price"], "instance-hour" if per_instance(public) else "gpu-hour"
        held, used = activity["used"] + activity["idle"] + activity["unmeasured"], activity["used"] + activity["unmeasured"] + activity["over"]
        units = units_of(k.model, k.profile)
        if public["basis"] == "used":
            quantity = whole(self.hours(used, public, units))
        elif not per_instance(public):
            quantity = ngh
        elif k.unit != f"instance-hour of {k.profile}":
            quantity = whole(self.hours(held, public, units))
        d["on_demand_quantity"] += Fraction(quantity, BILLION)

    def add_idle(self, c):
        """4 and 5: unreserved idle of own nodes, with what is stranded; of shared ones by the declared method, less what is stranded."""
        own, spread = collections.Counter(), collections.Counter()
        for (day, book, cluster, owner, model), amount in c.idle.items():
            if owner:
                own[day, book, cluster, owner, model] += amount
                continue
            method, weights = book.shared_idle
            held = c.held[day, book, cluster, model]
            if method == "weights":
                who = {t: weights[t] for t in TENANTS if t in weights}
            else:
                who = {t: 1 if method == "even" else held[t] for t in TENANTS if held[t]} if method != "none" else {}
            for tenant, part in zip(who, shares(amount, [*who.values()])):
                spread[day, book, cluster, tenant, model] += part
        for kind, amounts in (("own idle", own), ("shared idle", spread)):
            for (day, book, cluster, tenant, model), amount in amounts.items():
                public, mine = Prices(book).both("dedicated", model, "", "", tenant)
                off = Prices(book).discount(tenant, "gpu", "dedicated")
                if not amount and not (kind == "own idle" and c.free_energy[day, book, cluster, tenant, model]):
                    continue
                line = self.line(kind, cluster, tenant, "", model, "", "", "dedicated", book.version)
                self.price(line, public, mine, off)
                quantity = whole(self.hours(amount, public, UNITS))
                self.set_cost(line, day, public, mine, quantity, quantity, off)
                line.days[day]["gpu_hours"] = Fraction(quantity, BILLION)
                if kind == "own idle":
                    line.days[day]["energy"] = Fraction(c.free_energy[day, book, cluster, tenant, model])

    def add_energy(self, c):
        sums = collections.Counter()
        for (day, book, cluster, _, who, *_), a in c.uses.items():
            sums[day, book, cluster, who] += a["energy"]
        for (day, book, cluster, owner, _), mj in c.free_energy.items():
            if owner:
                sums[day, book, cluster, (owner, "")] += mj
        for (day, book, cluster, who), mj in sums.items():
            if cluster in book.energy and mj:
                line = self.line("energy", cluster, *who, version=book.version)
                line.unit, line.unit_price, line.sku, line.category = "kWh", book.energy[cluster], "energy", "energy"
                d = line.days[day]
                d["quantity"] = Fraction(whole(Fraction(mj * BILLION, MJ_PER_KWH)), BILLION)
                d["list"] = d["net"] = d["quantity"] * line.unit_price

    def add_meters(self, month, late):
        sums = collections.Counter()
        for e in self.world.events:
            if self.world.bounds[month] <= e.at < self.world.bounds[month + 1] and (late or not e.late):
                sku = e.sku or e.data.get("model") or "standard"
                book = terms_at(self.world, e.at).book
                for name, meter in (("gb_hours", "storage"), ("gb", "egress"), ("hours", "support"), ("requests", "inference-requests"), ("input_tokens", "inference-input-tokens"), ("output_tokens", "inference-output-tokens")):
                    if name in e.data:
                        public, own = Prices(book).meter(meter, sku, e.who[0])
                        sums[self.world.day_of(e.at), book, e.who, meter, own.get("sku") or sku, *(book.meters.index(i) for i in (public, own))] += Fraction(e.data[name])
        for (day, book, who, meter, sku, *items), amount in sums.items():
            public, own = (book.meters[i] for i in items)
            line = self.line("meter", "", *who, version=book.version, sku=sku, meter=meter)
            line.sku, line.category = sku, CATEGORY[meter]
            line.unit = METER_UNIT[meter] if public["per"] == 1 else f"{public['per']} {METER_UNIT[meter]}s"
            line.unit_price = public["price"]
            off = Prices(book).discount(who[0], line.category, "")
            d = line.days[day]
            d["quantity"] += amount / public["per"]
            d["list"] += amount * public["price"] / public["per"]
            d["net"] += amount * own["price"] / own["per"] * (1 - off)

    def add_one_offs(self, month):
        for n, o in enumerate(o for o in self.world.one_offs if o.month == month):
            line = self.line("one-off", "", o.tenant, o.workspace, sku=o.reason)
            line.unit, line.unit_price, line.category = "charge", abs(o.amount), o.category or "other"
            line.sku = None  # any name that no other has
            d = line.days[None]
            d["quantity"] = Fraction(1 if o.amount > 0 else -1)
            d["list"] = d["net"] = o.amount

    # ---- cents ----

    def round_invoices(self):
        scale = 10**self.world.exponent
        for tenant in TENANTS:
            lines = [x for x in self.lines.values() if x.key.tenant == tenant and x.key.kind != "lent"]
            lines.sort(key=lambda x: self.ids.get(x.key, ""))
            for line, units in zip(lines, together([x.net * scale for x in lines])):
                line.billed = units

    def credit_loans(self):
        """3 of who pays: lent hours x borrowed price x ratio, which is the ratio of what the borrower pays, never more than the commitment cost.
        Toward zero for every line that was borrowed, so that it is never more than its cents."""
        for key, loans in self.loans.items():
            line = self.lines[key]
            public, own, off, units, book = self.commitment_of[key]
            _, price = Prices(book).both("borrowed", key.model, key.profile, key.sharing, key.counterparty)
            discount = Prices(book).discount(key.counterparty, "gpu", "borrowed")

            def of_gpu(item, size):
                return Fraction(UNITS, size) if per_instance(item) else Fraction(1)

            # Per GPU-hour, then per hour of the commitment's unit; a price has nine decimals.
            paid = price["price"] * (1 - discount) * book.ratio * of_gpu(price, units_of(key.model, key.profile))
            cost = own["price"] * (1 - off) * of_gpu(own, units)
            line.unit_price = Fraction(min(paid, cost) / of_gpu(public, units) * BILLION // 1, BILLION)
            cents, priced, lent = collections.Counter(), collections.Counter(), collections.Counter()
            for (borrower, day, owner), a in loans.items():
                amount = a["used"] + a["unmeasured"] + a["over"] if price["basis"] == "used" else a["lent"]
                priced[day, owner] += amount
                lent[borrower, day] += amount
            for (borrower, _), amount in lent.items():
                if paid <= cost:
                    each = price["price"] * (1 - discount) * book.ratio
                    cents[borrower] += Fraction(self.hours(amount, price, units_of(key.model, key.profile)) // 1, BILLION) * each
                else:
                    cents[borrower] += Fraction(self.hours(amount, public, units) // 1, BILLION) * line.unit_price
            for day, d in line.days.items():
                d["list"] = d["quantity"] * line.unit_price
                by_use = Fraction(sum(whole(self.hours(amount, public, units)) for (on, _), amount in priced.items() if on == day), BILLION)
                d["net"] = -by_use * line.unit_price if price["basis"] == "used" else d["list"]
                d["discount"] = d["list"] - d["net"]
            line.billed = -sum(int(c * 10**self.world.exponent) for c in cents.values())


def corrections(before, after):
    """Of a closed month (4): its lines as they should be, less as they were billed; {key: (Line, whether it was billed before)}."""
    out = {}
    for key in {*before.lines, *after.lines}:
        old, new = before.lines.get(key), after.lines.get(key)
        line = Line(key)
        for name in ("unit", "unit_price", "sku", "category", "priced"):
            setattr(line, name, getattr(new or old, name))
        line.billed = (new.billed if new else 0) - (old.billed if old else 0)
        line.correction = True
        for sign, of in ((-1, old), (1, new)):
            for day, columns in of.days.items() if of else ():
                for name, amount in columns.items():
                    line.days[day][name] += sign * amount
        figures = {name for d in line.days.values() for name in d}
        if line.billed or any(line.sum(name) for name in figures):
            out[key] = line
    return out
