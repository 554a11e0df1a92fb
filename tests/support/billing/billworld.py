"""A random world to be billed: clusters, tenants, nodes, reservations, lending, price books, meters, one-off amounts, and what every unit of every GPU did, over
two billing months of one zone. What is made here is the truth of tests/support/billing/billoracle.py and, as batches, policies and events, what a ledger is fed with.

    world = World(seed, "Europe/Berlin", "EUR")
    world.policies()           # texts to apply, in order; each holds from an hour on
    world.batches(late=False)  # per node, as batch_tool reads them; late: what comes after the first month was closed

Nodes work in three windows of some hours: in the first month, over its end, and in the second; a change of summer time lies in one of them where the zone has one.
Outside of them no node is in service and nothing is reserved."""

import collections
import datetime
import random
import zoneinfo
from fractions import Fraction

NS = 1_000_000_000
MINUTE = 60 * NS
HOUR = 3600 * NS
QUARTER = 15 * MINUTE
UNITS = 5040
HELD, UNALLOCATED, STRANDED, DOWN, UNKNOWN = 1, 2, 3, 4, 5
STATES = {UNALLOCATED: "unallocated", STRANDED: "stranded", DOWN: "down", UNKNOWN: "unknown"}
SHARING = {"exclusive": 1, "mig": 2, "timeslice": 4}
NONE, MEASURED = 0, 1
MODELS = {"H100-80GB": "NVIDIA H100 80GB HBM3", "A100-40GB": "NVIDIA A100-SXM4-40GB", "L40S": "NVIDIA L40S"}
MEMORY = {"H100-80GB": 80, "A100-40GB": 40, "L40S": 48}
# (profile, compute slices, memory slices) of 7 and 8; each layout fits a GPU.
PROFILES = {"H100-80GB": {"1g.10gb": (1, 1), "1g.20gb": (1, 2), "2g.20gb": (2, 2), "3g.40gb": (3, 4), "4g.40gb": (4, 4)}, "A100-40GB": {"1g.5gb": (1, 1), "2g.10gb": (2, 2), "3g.20gb": (3, 4)}}
LAYOUTS = {
    "H100-80GB": (("3g.40gb", "2g.20gb", "1g.10gb"), ("3g.40gb", "3g.40gb"), ("1g.10gb",) * 5, ("4g.40gb", "2g.20gb", "1g.10gb"), ("2g.20gb", "1g.20gb", "3g.40gb")),
    "A100-40GB": (("3g.20gb", "2g.10gb", "1g.5gb"), ("3g.20gb", "3g.20gb")),
}
EXPONENT = {"JPY": 0, "KWD": 3, "EUR": 2, "USD": 2}
MONTHS = ("2026-03", "2026-04")
NOW = datetime.datetime(2026, 4, 13, 6, 7, 8, tzinfo=datetime.timezone.utc)

WORKSPACES = (("acme", "training"), ("acme", "batch"), ("globex", "research"), ("globex", "tests"), ("initech", "serving"))
COST_CENTRES = {"acme": "=1+1", "globex": "0815", "initech": ""}

Record = collections.namedtuple("Record", "node gpu device profile units who state sharing start duration held used unmeasured over energy method late")
Event = collections.namedtuple("Event", "id at who type sku data late")
OneOff = collections.namedtuple("OneOff", "month tenant workspace amount category reason")


def units_of(model, profile):
    """The mean of the compute and the memory share."""
    if not profile:
        return UNITS
    compute, memory = PROFILES[model][profile]
    return (compute * 8 + memory * 7) * UNITS // 112


def rfc3339(ns):
    return datetime.datetime.fromtimestamp(ns // NS, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def equal_parts(total, n):
    return [total // n + (1 if i < total % n else 0) for i in range(n)]


class Gpu:
    def __init__(self, node, index, model, layout=(), replicas=0):
        self.node, self.index, self.model, self.layout, self.replicas = node, index, model, layout, replicas
        self.uuid = f"GPU-{node}-{index}"


class Node:
    def __init__(self, name, window, cluster, owner, model):
        self.name, self.window, self.cluster, self.owner, self.model = name, window, cluster, owner, model
        self.gpus = []
        self.records = []
        self.batches = []  # of (late, epoch, from, to, records)


class Terms:
    """What holds from an hour on."""

    def __init__(self, at):
        self.at = at
        self.nodes = {}  # name -> (Node, state)
        self.rights = {}  # (tenant, workspace) -> [(cluster, shared, model, profile, count)]; without a profile a count of GPUs, else of instances
        self.lend = {}  # (tenant, workspace) -> {model: GPUs}
        self.book = None


class Book:
    def __init__(self, version, currency):
        self.version, self.currency = version, currency
        self.items, self.meters, self.discounts, self.energy = [], [], [], {}
        self.ratio, self.shared_idle = Fraction(0), ("none", {})


class World:
    def __init__(self, seed, zone, currency):
        self.seed, self.zone_name, self.currency = seed, zone, currency
        self.zone = zoneinfo.ZoneInfo(zone)
        self.rng = random.Random(seed)
        self.exponent = EXPONENT[currency]
        self.bounds = [self.instant(2026, m, 1) for m in (3, 4, 5)]
        offset = datetime.datetime(2026, 3, 10, tzinfo=self.zone).utcoffset()
        self.phase = int(offset.total_seconds()) % 3600 * NS
        self.windows = [self.window(i) for i in range(3)]
        self.books = []
        self.terms = []
        self.nodes = []
        for i, (start, end) in enumerate(self.windows):
            self.make_nodes(i, start, end)
            self.make_terms(i, start, end)
        self.records = [r for n in self.nodes for r in n.records]
        self.make_events()
        self.make_one_offs()

    # ---- time ----

    def instant(self, year, month, day, hour=0):
        return int(datetime.datetime(year, month, day, hour, tzinfo=self.zone).timestamp()) * NS

    def hour_of(self, ns):
        """When the billing hour began."""
        return (ns + self.phase) // HOUR * HOUR - self.phase

    def day_of(self, ns):
        return datetime.datetime.fromtimestamp(ns // NS, self.zone).date()

    def day_bounds(self, day):
        return tuple(self.instant(d.year, d.month, d.day) for d in (day, day + datetime.timedelta(days=1)))

    def window(self, i):
        """Some hours around a local midnight or a change of the clocks."""
        changes = [self.bounds[0] + h * HOUR for h in range(24, (self.bounds[2] - self.bounds[0]) // HOUR) if self.offset(self.bounds[0] + h * HOUR) != self.offset(self.bounds[0] + (h - 1) * HOUR)]
        if i == 1:
            middle = self.bounds[1]
        else:
            inside = [c for c in changes if self.bounds[i // 2] < c < self.bounds[i // 2 + 1] - 24 * HOUR and c < int(NOW.timestamp()) * NS - 48 * HOUR]
            day = self.rng.randint(3, 22) if i == 0 else self.rng.randint(4, 9)
            middle = inside[0] if inside else self.instant(2026, 3 + i // 2, day)
        middle = self.hour_of(middle)
        return middle - self.rng.randint(2, 4) * HOUR, middle + self.rng.randint(3, 4) * HOUR

    def offset(self, ns):
        return datetime.datetime.fromtimestamp(ns // NS, self.zone).utcoffset()

    # ---- nodes and what they did ----

    def make_nodes(self, i, start, end):
        rng, letter = self.rng, "abc"[i]
        owner = rng.choice(["acme", "globex"])
        plan = [
            (f"{letter}1", "main", None, "H100-80GB", [()] * rng.randint(1, 3)),
            (f"{letter}2", "main", None, "H100-80GB", [rng.choice(LAYOUTS["H100-80GB"])]),
            (f"{letter}3", "main", owner, "H100-80GB", [(), rng.choice([(), *LAYOUTS["H100-80GB"]])]),
            (f"{letter}4", "main", None, "L40S", ["replicas"]),
            (f"{letter}5", "east", rng.choice([None, None, "initech"]), "A100-40GB", [(), rng.choice(LAYOUTS["A100-40GB"])]),
        ]
        for name, cluster, of, model, gpus in plan:
            node = Node(name, i, cluster, of, model)
            for k, layout in enumerate(gpus):
                node.gpus.append(Gpu(name, k, model, *((), rng.choice([2, 4])) if layout == "replicas" else (layout,)))
            self.nodes.append(node)
            self.run(node, start, end)

    def run(self, node, start, end):
        """Its exporter's runs: often one, sometimes with silence between; the last may come late."""
        rng = self.rng
        at = start if node.name.endswith("1") else start + rng.randrange(40 * MINUTE)
        last = end if rng.random() < 0.7 else end - rng.randrange(90 * MINUTE)
        cuts = [at, last]
        if rng.random() < 0.4:
            cuts.insert(1, rng.randrange(at + HOUR, last - HOUR))
        latest = min(last, self.bounds[1]) - 30 * MINUTE
        late_from = last + 1
        if node.window < 2 and rng.random() < 0.5 and at + HOUR < latest:
            late_from = rng.randrange(at + HOUR, latest)
            cuts = sorted({*cuts, late_from})
        for epoch, (a, b) in enumerate(zip(cuts, cuts[1:]), 100):
            if epoch > 100 and a != late_from and rng.random() < 0.6:
                a += rng.randrange(1, 40 * MINUTE)
            self.run_once(node, epoch, a, b, a >= late_from)

    def run_once(self, node, epoch, start, end, late):
        """A batch for every hour, whose records are cut at quarters."""
        at, doing = start, {}
        while at < end:
            batch_end, first, records = min(end, (at // HOUR + 1) * HOUR), at, []
            while at < batch_end:
                until = min(batch_end, (at // QUARTER + 1) * QUARTER)
                for gpu in node.gpus:
                    cuts = sorted({at, until, *(self.rng.randrange(at + 1, until) for _ in range(self.rng.choice([0, 0, 0, 1])) if until - at > 2)})
                    for a, b in zip(cuts, cuts[1:]):
                        records += self.piece(node, gpu, doing, a, b, late)
                at = until
            node.batches.append((late, epoch, first, batch_end, records))
            node.records += records

    def piece(self, node, gpu, doing, start, end, late):
        """One piece of a GPU's time, all of its units; what a device does goes on for some pieces."""
        rng, duration, out = self.rng, end - start, []

        def add(device, profile, units, who, state, sharing, held):
            used = unmeasured = over = 0
            method = NONE
            if state == HELD:
                method = rng.choice([NONE, MEASURED, MEASURED, MEASURED])
                used = rng.randint(0, held) if method else 0
                unmeasured = 0 if method else held
                over = rng.randint(0, duration - held) if method and sharing == "timeslice" and rng.random() < 0.5 else 0
            energy = rng.randrange(1 + duration // 40_000 * units // UNITS)
            out.append(Record(node.name, gpu.uuid, device, profile, units, who, state, sharing, start, duration, held, used, unmeasured, over, energy, method, late))

        def next_holder(key, chance):
            if key not in doing or rng.random() < 0.2:
                doing[key] = rng.choice(WORKSPACES) if rng.random() < chance else None
            return doing[key]

        if gpu.uuid not in doing or rng.random() < 0.25:
            doing[gpu.uuid] = rng.choice([None] * 14 + [DOWN, UNKNOWN])
        sharing = "mig" if gpu.layout else "timeslice" if gpu.replicas else "exclusive"
        if doing[gpu.uuid]:
            add(gpu.uuid, "", UNITS, None, doing[gpu.uuid], "exclusive", duration)
        elif gpu.layout:
            left = UNITS
            for k, profile in enumerate(gpu.layout):
                units = units_of(gpu.model, profile)
                who = next_holder((gpu.uuid, k), 0.65)
                add(f"MIG-{gpu.uuid}-{k}", profile, units, who, HELD if who else UNALLOCATED, sharing, duration)
                left -= units
            if left:
                add(gpu.uuid, "", left, None, rng.choice([UNALLOCATED, STRANDED, STRANDED]), sharing, duration)
        elif gpu.replicas:
            taken = set()
            for k, part in enumerate(equal_parts(duration, gpu.replicas)):
                who = next_holder((gpu.uuid, k), 0.6)
                who = None if who in taken else who
                taken.add(who)
                add(gpu.uuid, "", UNITS, who, HELD if who else UNALLOCATED, sharing, part)
        else:
            who = next_holder((gpu.uuid, 0), 0.75)
            add(gpu.uuid, "", UNITS, who, HELD if who else UNALLOCATED, sharing, duration)
        return out

    # ---- what was agreed ----

    def make_terms(self, i, start, end):
        rng = self.rng
        mine = [n for n in self.nodes if n.window == i]
        before = {n.name: (n, "retired") for n in self.nodes if n.window < i}
        change = rng.randrange(start + HOUR, end - HOUR) // HOUR * HOUR  # any of the hours between
        change = self.hour_of(change) if self.hour_of(change) > start else start + HOUR
        for number, at in enumerate((start, change)):
            t = Terms(at)
            t.nodes = {**before, **{n.name: (n, "in-service") for n in mine}}
            if number and rng.random() < 0.4:
                node = rng.choice(mine[:3])
                t.nodes[node.name] = (node, "maintenance")
            self.reserve(t, mine)
            t.book = self.new_book(t) if not self.books or number or rng.random() < 0.5 else self.books[-1]
            self.terms.append(t)
        over = Terms(end)
        over.nodes = {**before, **{n.name: (n, "retired") for n in mine}}
        over.book = self.terms[-1].book
        self.terms.append(over)

    def reserve(self, t, mine):
        """Within what the nodes have: a workspace has a reservation of a model, sometimes one of its own nodes and one of shared ones."""
        rng = self.rng
        room = collections.Counter()  # (pool, profile) -> of whole GPUs, or of instances
        for node, state in t.nodes.values():
            if state == "in-service":
                for gpu in node.gpus:
                    for profile in gpu.layout or [""]:
                        room[(node.cluster, node.owner, node.model), profile] += 1
        for who in rng.sample(WORKSPACES, len(WORKSPACES)):
            cluster = "east" if who[0] == "initech" else "main"
            model = "A100-40GB" if cluster == "east" else rng.choice(["H100-80GB", "H100-80GB", "L40S"])
            shared = rng.random() < 0.7
            for other in (False, True) if rng.random() < 0.4 else (False,):
                pool = (cluster, None if shared != other else who[0], model)
                profile = rng.choice(sorted(k[1] for k, v in room.items() if k[0] == pool and v) or [""])
                most = int(room[pool, profile])
                if rng.random() < 0.25 or not most:
                    continue
                count = Fraction(rng.randint(1, min(most, 3)))
                if not profile and rng.random() < 0.3:
                    count = count - 1 + Fraction(rng.randint(1, 6), 7)
                room[pool, profile] -= count
                t.rights.setdefault(who, []).append((cluster, shared != other, model, profile, count))
            if rng.random() < 0.4 and len(t.rights.get(who, ())) == 1:
                *_, profile, count = t.rights[who][0]
                units = int(count * units_of(model, profile))
                t.lend[who] = {model: Fraction(rng.choice([0, units // 7, units // 2, units]), UNITS)}

    def decimal(self, low, high, places):
        """A price of so many units of the currency's, with decimals beyond its smallest coin."""
        return Fraction(self.rng.randint(low * 10**places, high * 10**places), 10**places)

    def new_book(self, t):
        rng = self.rng
        book = Book(f"v{len(self.books) + 1}", self.currency)
        scale = 100 if self.currency == "JPY" else 1
        base = {"on-demand": 3, "borrowed": 2, "reserved": 2, "dedicated": 1}

        def price(klass, share=Fraction(1)):
            return Fraction(round(self.decimal(base[klass], base[klass] + 1, 4) * share * 10**4), 10**4) * scale

        def item(price, **more):
            book.items.append({"gpu_model": None, "mig_profile": None, "sharing_mode": None, "class": None, "tenant": None, "basis": "allocated", "sku": None, "price": price, **more})

        for klass in base:
            item(price(klass), **{"class": klass})
        if rng.random() < 0.5:
            item(price("on-demand"), **{"gpu_model": "L40S", "basis": "used"})  # without a class: of reservations and idle time too, where nothing is used
        if rng.random() < 0.7:
            item(price("on-demand"), **{"class": "on-demand", "gpu_model": "L40S", "basis": rng.choice(["allocated", "used"])})
            item(price("borrowed"), **{"class": "borrowed", "gpu_model": "L40S", "basis": rng.choice(["allocated", "used"])})
        if rng.random() < 0.5:
            item(price("on-demand"), **{"class": "on-demand", "sharing_mode": "timeslice"})
        for profile in rng.sample(sorted(PROFILES["H100-80GB"]), 2):
            for klass in rng.sample(sorted(base), 3):
                if klass != "dedicated":
                    item(price(klass, Fraction(units_of("H100-80GB", profile), UNITS)), **{"class": klass, "gpu_model": "H100-80GB", "mig_profile": profile})
        # A tenant's own: cheaper, dearer, by another unit, by another basis.
        own = rng.choice(["acme", "globex", "initech"])
        item(price("on-demand") * rng.choice([Fraction(1, 2), 2]), **{"class": "on-demand", "tenant": own, "sku": rng.choice([None, "own-rate"])})
        other = rng.choice(["acme", "globex"])
        profile = rng.choice(sorted(PROFILES["H100-80GB"]))
        item(price("on-demand", Fraction(1, 4)), **{"class": "on-demand", "tenant": other, "gpu_model": "H100-80GB", "mig_profile": profile})
        item(price("borrowed"), **{"class": "borrowed", "tenant": rng.choice(["acme", "globex"]), "gpu_model": "H100-80GB", "basis": "used"})
        if rng.random() < 0.5:
            item(price("reserved") * Fraction(9, 10), **{"class": "reserved", "tenant": rng.choice(["acme", "globex"])})
        if rng.random() < 0.5:
            item(price("reserved", Fraction(1, 5)), **{"class": "reserved", "tenant": rng.choice(["acme", "globex"]), "gpu_model": "H100-80GB", "mig_profile": rng.choice(sorted(PROFILES["H100-80GB"]))})
        book.ratio = Fraction(rng.randint(0, 20), 20)
        for tenant in rng.sample(["acme", "globex", "initech"], 2):
            what = {"tenant": tenant, "category": rng.choice([None, "gpu", "storage"]), "class": None, "percent": Fraction(rng.randint(1, 80), 4)}
            if what["category"] == "gpu" and rng.random() < 0.5:
                what["class"] = rng.choice(["on-demand", "borrowed", "reserved"])
            book.discounts.append(what)
        for cluster in ("main", "east"):
            if rng.random() < 0.7:
                book.energy[cluster] = self.decimal(0, 1, 4) * scale
        method = rng.choice(["none", "even", "proportional", "weights"])
        book.shared_idle = (method, {t: rng.randint(1, 3) for t in rng.sample(["acme", "globex", "initech"], 2)} if method == "weights" else {})
        self.meter_prices(book, scale)
        self.books.append(book)
        return book

    def meter_prices(self, book, scale):
        rng = self.rng

        def meter(name, price, per=1, **more):
            book.meters.append({"meter": name, "meter_sku": None, "tenant": None, "price": price * scale, "per": per, **more})

        meter("storage", self.decimal(0, 1, 4), **({"sku": "disk"} if rng.random() < 0.5 else {}))  # whatever its events call it
        meter("storage", self.decimal(1, 2, 4), meter_sku="nvme")
        meter("egress", self.decimal(0, 1, 4), tenant=rng.choice(["acme", "globex"]))
        meter("egress", self.decimal(0, 1, 4))
        meter("inference-requests", self.decimal(0, 2, 2), per=1000)
        meter("inference-input-tokens", self.decimal(0, 2, 2), per=1_000_000)
        meter("inference-output-tokens", self.decimal(1, 3, 2), per=1_000_000)
        if rng.random() < 0.5:
            meter("support", self.decimal(50, 90, 2))
        else:  # nobody's but the tenants' own
            for tenant in COST_CENTRES:
                meter("support", self.decimal(50, 90, 2), tenant=tenant)

    def make_events(self):
        rng = self.rng
        self.events = []
        for n in range(14):
            month = rng.randrange(2)
            low, high = self.bounds[month], min(self.bounds[month + 1], int(NOW.timestamp()) * NS - HOUR)
            low = max(low, self.terms[0].at, int(NOW.timestamp()) * NS - 44 * 24 * HOUR)
            at = rng.randrange(low, high) // NS * NS
            kind = rng.choice(["storage", "egress", "inference", "inference", "support"])
            sku, data = None, {}
            if kind == "storage":
                sku = rng.choice([None, "ssd", "nvme"])
                data = {"gb_hours": f"{rng.randrange(10**4)}.{rng.randrange(10**9):09}"}
            elif kind == "egress":
                data = {"gb": f"{rng.randrange(1000)}.{rng.randrange(1000):03}"}
            elif kind == "support":
                data = {"hours": f"{rng.randrange(9)}.{rng.randrange(100):02}"}
            else:
                data = {"model": rng.choice(["llama", "qwen"])}
                for amount in rng.sample(["requests", "input_tokens", "output_tokens"], rng.randint(1, 3)):
                    data[amount] = rng.randrange(10 ** rng.choice([4, 7, 8]))
            self.events.append(Event(f"e{n}", at, rng.choice(WORKSPACES), kind, sku, data, month == 0 and rng.random() < 0.3))

    def make_one_offs(self):
        rng = self.rng
        self.one_offs = []
        for n in range(4):
            amount = Fraction(rng.choice([1, -1]) * rng.randint(1, 5000), 10**self.exponent)
            tenant, workspace = rng.choice(WORKSPACES)
            self.one_offs.append(OneOff(n % 2, tenant, rng.choice(["", workspace]), amount, rng.choice([None, "support", "gpu"]), f"one-off {n}"))

    # ---- as a ledger is told ----

    def batches(self, late):
        """Per node and run, in order."""
        out = []
        for node in self.nodes:
            runs = collections.defaultdict(list)
            for is_late, epoch, start, end, records in node.batches:
                if is_late == late:
                    runs[epoch].append((start, end, records))
            for epoch, pieces in sorted(runs.items()):
                out.append((node.name, [self.batch(node, epoch, n, *piece) for n, piece in enumerate(pieces, 1)]))
        return out

    def batch(self, node, epoch, seq, start, end, records):
        devices, holders = [], []
        for gpu in node.gpus:
            whole = len(devices) + 1
            devices.append({"id": whole, "uuid": gpu.uuid, "model": MODELS[gpu.model], "index": gpu.index, "memory_bytes": MEMORY[gpu.model] << 30})
            for k, profile in enumerate(gpu.layout):
                devices.append({"id": len(devices) + 1, "gpu": whole, "uuid": f"MIG-{gpu.uuid}-{k}", "model": MODELS[gpu.model], "profile": profile, "gi": k, "ci": 0,
                                "units": units_of(gpu.model, profile), "created_ns": 77, "index": gpu.index, "memory_bytes": 5 << 30})  # fmt: skip
        ids = {d["uuid"]: d["id"] for d in devices}
        for n, (tenant, workspace) in enumerate(WORKSPACES, 1):
            holders.append({"id": n, "kind": 1, "ns": f"{tenant}-{workspace}", "pod": f"pod-{workspace}", "pod_uid": f"{node.name}-{workspace}", "container": "c"})
        rows = [
            [ids[r.device], WORKSPACES.index(r.who) + 1 if r.who else 0, r.state, SHARING[r.sharing], r.method, r.units, r.start, r.duration, r.held, r.used, r.unmeasured, r.over, 0, r.energy, 1]
            for r in records
        ]
        return {"node": node.name, "boot_id": "ab" * 16, "epoch": epoch, "seq": seq, "flags": 1, "from_ns": start, "to_ns": end, "devices": devices, "holders": holders, "records": rows}

    def policies(self):
        return [self.policy(t) for t in self.terms]

    def policy(self, t):
        lines = ["version: 1", "cluster: main", f"effective: {rfc3339(t.at)}", "tenants:"]
        for tenant in ("acme", "globex", "initech"):
            centre = f', cost_center: "{COST_CENTRES[tenant]}"' if COST_CENTRES[tenant] else ""
            lines.append(f"  - {{name: {tenant}{centre}, workspaces: [" + ", ".join(self.workspace(t, w) for w in WORKSPACES if w[0] == tenant) + "]}")
        lines.append("nodes:")
        for node, state in t.nodes.values():
            whole = sum(1 for g in node.gpus if not g.layout)
            mig = collections.Counter(p for g in node.gpus for p in g.layout)
            has = (f", gpus: {whole}" if whole else "") + (f", mig: {{{', '.join(f'{p}: {n}' for p, n in mig.items())}}}" if mig else "")
            whose = f"tenant: {node.owner}" if node.owner else "shared: true"
            lines.append(f"  - {{name: {node.name}, {whose}, cluster: {node.cluster}, model: {node.model}{has}, state: {state}}}")
        return "\n".join(lines) + "\n" + book_text(t.book)

    def workspace(self, t, who):
        said = f"{{name: {who[1]}, rules: [{{namespace: {who[0]}-{who[1]}}}]"
        if who[0] == "initech":
            said += ", cluster: east"
        for _, shared, model, profile, count in t.rights.get(who, ()):
            amount = f"{count}x{profile}" if profile else f'"{count}"'
            said += f", reserved{'_shared' if shared else ''}: {{{model}: {amount}}}"
        if who in t.rights:
            said += ", limit: none"
        if who in t.lend:
            said += ", lend: {" + ", ".join(f'{m}: "{a}"' for m, a in t.lend[who].items()) + "}"
        return said + "}"


def plain(amount):
    """A decimal of a fraction that is one."""
    sign, amount, places = "-" if amount < 0 else "", abs(Fraction(amount)), 0
    while (amount * 10**places).denominator != 1:
        places += 1
        assert places < 30, amount
    digits = str(int(amount * 10**places)).rjust(places + 1, "0")
    return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


def book_text(book):
    lines = ["prices:", f'  version: "{book.version}"', f"  currency: {book.currency}", f'  lender_ratio: "{plain(book.ratio)}"', "  items:"]
    for item in book.items:
        keys = {k: v for k, v in item.items() if v is not None and k != "price" and not (k == "basis" and v == "allocated")}
        lines.append("    - {" + "".join(f"{k}: {v}, " for k, v in keys.items()) + f'price: "{plain(item["price"])}"}}')
    for item in book.meters:
        keys = {k: v for k, v in item.items() if v is not None and k != "price" and not (k == "per" and v == 1)}
        lines.append("    - {" + "".join(f"{k}: {v}, " for k, v in keys.items()) + f'price: "{plain(item["price"])}"}}')
    lines.append("  discounts:")
    for d in book.discounts:
        keys = {k: v for k, v in d.items() if v is not None and k != "percent"}
        lines.append("    - {" + "".join(f"{k}: {v}, " for k, v in keys.items()) + f'percent: "{plain(d["percent"])}"}}')
    if book.energy:
        lines.append("  energy: [" + ", ".join(f'{{cluster: {c}, price_per_kwh: "{plain(p)}"}}' for c, p in book.energy.items()) + "]")
    method, weights = book.shared_idle
    if method != "none":
        more = f", weights: {{{', '.join(f'{t}: {w}' for t, w in weights.items())}}}" if weights else ""
        lines.append(f"  shared_idle: {{method: {method}{more}}}")
    return "\n".join(lines) + "\n"
