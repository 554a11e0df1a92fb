"""What the billing days of a ledger must be charged as: the classes of a pool's hour computed from plain rows, in whole numbers, without
a line of the ledger's code for it.

    world = World(led)
    world.charges, world.reserves, world.loans, world.pools        # what the tables must say of the days that are folded

Pool: (cluster, owner or None, model). The first members of every key are day and price book. Loans are compared by lender and by borrower."""

import collections

HOUR = 3600 * 1_000_000_000
ALWAYS = "'2026-01-01', '2028-01-01'"


def number(text):
    return None if text is None else int(text)


def shares(total, weights):
    """By largest remainder; ties go to the first."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    parts = [total * w // whole for w in weights]
    order = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for i in order[: total - sum(parts)]:
        parts[i] += 1
    return parts


def shares_within(total, weights, rooms):
    """In proportion, and nobody beyond its room: those who would be are full, and the rest is divided among the others."""
    full = {}
    while True:
        left = total - sum(full.values())
        open_weights = [0 if i in full or not rooms[i] else w for i, w in enumerate(weights)]
        if not left or not sum(open_weights):
            return [full.get(i, 0) for i in range(len(weights))]
        parts = shares(left, open_weights)
        beyond = {i: rooms[i] for i, p in enumerate(parts) if p > rooms[i]}
        if not beyond:
            return [full.get(i, p) for i, p in enumerate(parts)]
        full |= beyond


def settle(capacity, held, rights, caps):
    """One pool's hour. held and rights by workspace. {workspace: {class or fate: amount}}, unreserved idle."""
    who = sorted({*held, *rights})
    h = [held.get(w, 0) for w in who]
    r = [rights.get(w, 0) for w in who]
    short = shares_within(max(0, sum(r) - capacity), r, [max(0, b - a) for a, b in zip(h, r)])
    delivered = [a - b for a, b in zip(r, short)]
    covered = [min(a, b) for a, b in zip(h, delivered)]
    over = [a - b for a, b in zip(h, covered)]
    spare = capacity - sum(delivered)
    on_demand = shares(min(sum(over), spare), over)
    borrowed = [a - b for a, b in zip(over, on_demand)]
    unused = [a - b for a, b in zip(delivered, covered)]
    rooms = [min(u, caps.get(w, u)) for u, w in zip(unused, who)]
    willing = min(sum(borrowed), sum(rooms))
    lent = shares_within(willing, unused, rooms)
    left = [a - b for a, b in zip(unused, lent)]
    rest = shares_within(sum(borrowed) - willing, left, left)
    lent = [a + b for a, b in zip(lent, rest)]
    assert sum(covered) + sum(on_demand) + sum(borrowed) + sum(unused) - sum(lent) + spare - sum(on_demand) == capacity
    return {
        w: {"covered": covered[i], "on-demand": on_demand[i], "borrowed": borrowed[i], "lent": lent[i], "unused": unused[i] - lent[i], "undelivered": short[i]}
        for i, w in enumerate(who)
    }, spare - sum(on_demand)


class Ranges:
    """Rows that hold over a range: what was in force at an hour."""

    def __init__(self, rows):
        self.rows = [(tuple(r[:-2]), int(r[-2]), number(r[-1])) for r in rows]

    def at(self, hour):
        return [r for r, lower, upper in self.rows if lower <= hour and (upper is None or hour < upper)]


class World:
    def __init__(self, led):
        bounds = "ns_of(lower(effective)), ns_of(upper(effective))"
        self.days = [(d, int(a), int(b)) for d, a, b in led.rows("select day, ns_of(starts_at), ns_of(ends_at) from billing_day where not dirty")]
        self.books = Ranges(led.rows(f"select id, {bounds} from price_book where not isempty(effective)"))
        self.owners = Ranges(led.rows(f"select node_id, tenant_id, {bounds} from node_owner where not isempty(effective)"))
        self.reservations = Ranges(
            led.rows(
                f"select r.cluster_id, case when not shared then w.tenant_id end, model, workspace_id, profile, instances, units, {bounds} "
                "from reservation r join workspace w on w.id = workspace_id"
            )
        )
        self.lends = Ranges(led.rows(f"select workspace_id, model, profile, instances, units, {bounds} from workspace_limit where kind = 'lend'"))
        self.hours = [int(h) for [h] in led.rows("select distinct ns_of(hour) from node_hour")]
        self.charges, self.reserves, self.loans, self.pools = (collections.Counter() for _ in range(4))
        uses, pools = self.read(led)
        for hour in self.hours:
            self.add_hour(hour, uses, pools)

    def read(self, led):
        """(pool, hour) -> what each workspace held by kind, and the pool's states."""
        uses = collections.defaultdict(collections.Counter)
        pools = collections.defaultdict(collections.Counter)
        rows = led.rows(
            "select ns_of(u.hour), k.cluster_id, u.node_id, g.short_model, u.workspace_id, d.profile, d.units, u.sharing, "
            "u.used + u.idle + u.unmeasured, u.unallocated, u.stranded, u.down, u.unknown, u.energy_mj "
            f"from usage_rows({ALWAYS}) u join node_cluster k on k.node_id = u.node_id and k.effective @> u.hour join device d on d.id = u.device_id "
            "join gpu_spec g on g.gpu_id = d.gpu_id and g.effective @> u.hour"
        )
        owners = {h: dict(self.owners.at(h)) for h in self.hours}
        for hour, cluster, node, model, workspace, profile, units, sharing, held, *rest in rows:
            hour = int(hour)
            pool = (cluster, owners[hour].get(node), model)
            if int(held):
                uses[pool, hour][int(workspace), profile, int(units), sharing] += int(held)
            for name, v in zip(("unallocated", "stranded", "down", "unknown"), rest):
                pools[pool, hour][name] += int(v)
            if workspace is None:
                pools[pool, hour]["energy_mj"] += int(rest[4])
        return uses, pools

    def rights(self, hour):
        """pool -> workspace -> {(profile, units of one): reserved}"""
        out = collections.defaultdict(lambda: collections.defaultdict(dict))
        for cluster, owner, model, workspace, profile, instances, units in self.reservations.at(hour):
            one = 5040 if instances is None else int(units) // int(instances)
            out[cluster, owner, model][int(workspace)][profile, one] = int(units) * HOUR
        return out

    def cap(self, hour, workspace, model):
        """An amount of instances weighs what the workspace's reservations of that profile do, in whatever pool of the model."""
        rows = [r for r in self.lends.at(hour) if int(r[0]) == workspace]
        rows = [r for r in rows if r[1] == model] or [r for r in rows if r[1] == ""]
        if not rows or any(r[4] is None and r[2] == "" for r in rows):
            return None
        weight = {
            profile: int(units) // int(instances)
            for _, _, of_model, of_workspace, profile, instances, units in self.reservations.at(hour)
            if int(of_workspace) == workspace and of_model == model and instances is not None
        }
        return sum(int(r[4]) if r[4] is not None else int(r[3]) * weight.get(r[2], 0) for r in rows) * HOUR

    def add_hour(self, hour, uses, pools):
        day = next((d for d, a, b in self.days if a <= hour < b), None)
        if day is None:
            return
        book = next((b for [b] in self.books.at(hour)), None)
        rights = self.rights(hour)
        for pool in {p for p, h in [*uses, *pools] if h == hour} | {*rights}:
            held = collections.Counter()
            for (workspace, *_), v in uses[pool, hour].items():
                held[workspace] += v
            state = pools[pool, hour]
            capacity = sum(held.values()) + state["unallocated"] + state["stranded"]
            reserved = {w: sum(kinds.values()) for w, kinds in rights[pool].items()}
            caps = {w: self.cap(hour, w, pool[2]) for w in rights[pool]}
            settled, idle = settle(capacity, held, reserved, {w: c for w, c in caps.items() if c is not None})
            at = (day, book, *pool)
            self.add_uses(at, uses[pool, hour], settled)
            for workspace, kinds in rights[pool].items():
                self.add_right(at, workspace, kinds, settled[workspace])
            total = {c: sum(s[c] for s in settled.values()) for c in ("covered", "on-demand", "borrowed", "unused", "lent")}
            assert total["lent"] == total["borrowed"]
            # BILLING 3.4: idle less stranded of this hour; hours are added up afterwards
            free = max(0, idle - state["stranded"])
            for name, v in {**state, **total, "capacity": capacity, "unreserved_idle": idle, "idle_less_stranded": free}.items():
                if name != "lent":
                    self.pools[(*at, name.replace("-", "_"))] += v
            for workspace, s in settled.items():
                self.loans[(*at, "lender", workspace)] += s["lent"]
                self.loans[(*at, "borrower", workspace)] += s["borrowed"]

    def add_uses(self, at, uses, settled):
        """Whole GPUs first, then larger instances, then by name, then by sharing."""
        left = {w: dict(s) for w, s in settled.items()}
        for (workspace, profile, units, sharing), held in sorted(uses.items(), key=lambda u: (u[0][0], -u[0][2], u[0][1], u[0][3])):
            for name in ("covered", "on-demand", "borrowed"):
                part = min(held, left[workspace][name])
                left[workspace][name] -= part
                held -= part
                self.charges[(*at, workspace, profile, units, sharing, name)] += part
            assert held == 0

    def add_right(self, at, workspace, kinds, s):
        order = sorted(kinds, key=lambda k: (-k[1], k[0]))
        short = shares(s["undelivered"], [kinds[k] for k in order])
        left = dict(s)
        for kind, missing in zip(order, short):
            room = kinds[kind] - missing
            self.reserves[(*at, workspace, *kind, "reserved")] += kinds[kind]
            self.reserves[(*at, workspace, *kind, "undelivered")] += missing
            for name in ("covered", "lent", "unused"):
                part = min(room, left[name])
                left[name] -= part
                room -= part
                self.reserves[(*at, workspace, *kind, name)] += part


def found(led):
    """The same from the tables, of the days that are folded."""
    clean = "join billing_day b using (day) where not b.dirty"
    pool = "day, price_book_id, cluster_id, owner_id, gpu_model"
    charges, reserves, loans, pools = (collections.Counter() for _ in range(4))
    for *key, workspace, profile, units, sharing, klass, v in led.rows(
        f"select {pool}, workspace_id, profile, units, sharing, class, used + idle + unmeasured from charge_day {clean}"
    ):
        charges[(*key, int(workspace), profile, int(units), sharing, klass)] += int(v)
    columns = ("reserved", "covered", "lent", "unused", "undelivered")
    for *key, workspace, profile, units, a, b, c, d, e in led.rows(
        f"select {pool}, workspace_id, profile, units, {', '.join(columns)} from reserve_day {clean}"
    ):
        for name, v in zip(columns, (a, b, c, d, e)):
            reserves[(*key, int(workspace), profile, int(units), name)] += int(v)
    for *key, lender, borrower, v in led.rows(f"select {pool}, lender_id, borrower_id, used + idle + unmeasured from loan_day {clean}"):
        loans[(*key, "lender", int(lender))] += int(v)
        loans[(*key, "borrower", int(borrower))] += int(v)
    names = ("capacity", "covered", "on_demand", "borrowed", "unused", "unreserved_idle", "unallocated", "stranded", "down", "unknown", "energy_mj", "idle_less_stranded")
    for row in led.rows(f"select {pool}, {', '.join(names)} from pool_day {clean}"):
        for name, v in zip(names, row[5:]):
            pools[(*row[:5], name)] += int(v)
    return [without_zeros(c) for c in (charges, reserves, loans, pools)]


def without_zeros(counter):
    return {k: v for k, v in counter.items() if v}


def expected(led):
    w = World(led)
    return [without_zeros(c) for c in (w.charges, w.reserves, w.loans, w.pools)]
