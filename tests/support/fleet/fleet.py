"""A random fleet and what is true of it: batches as exporters would send them, and the totals they must give, computed here by
simple loops over the same description, without a line of the ledger's code.

Every number is an integer. A node has GPUs that are whole, shared or cut into MIG instances; its exporter runs a few times,
with silence between; a run is a stream of batches, one per interval; a piece of a GPU's time always adds up to 5040 units."""

import collections
import random

NS = 1_000_000_000
MINUTE = 60 * NS
HOUR = 3600 * NS
UNITS = 5040
HELD, UNALLOCATED, STRANDED, DOWN, UNKNOWN = 1, 2, 3, 4, 5
EXCLUSIVE, MIG, TIMESLICE = 1, 2, 4
NONE, MEASURED = 0, 1
STATES = {UNALLOCATED: "unallocated", STRANDED: "stranded", DOWN: "down", UNKNOWN: "unknown"}
H100 = "NVIDIA H100 80GB HBM3"
LAYOUTS = ([("3g.40gb", 2340), ("2g.20gb", 1350), ("1g.10gb", 675)], [("3g.40gb", 2340), ("3g.40gb", 2340)], [("1g.10gb", 675)] * 7)


def equal_parts(total, n):
    return [total // n + (1 if i < total % n else 0) for i in range(n)]


def efficiency(record):
    """The peak of memory, SM-active and SM-measured time of a record: any numbers that it may have, of some holders none."""
    _, holder, state, _, _, _, _, duration, held, used = record[:10]
    if state != HELD:
        return [0, 0, 0]
    measured = held if holder % 4 else held // 2
    return [(used * 7 + duration) % (10 << 30) if holder % 3 else 0, used % (measured + 1), measured]


class Gpu:
    def __init__(self, rng, node, index):
        self.uuid = f"GPU-{node}-{index}"
        self.index = index
        self.layout = rng.choice(LAYOUTS) if rng.random() < 0.4 else None


class Node:
    def __init__(self, rng, name, start, end):
        self.name = name
        self.gpus = [Gpu(rng, name, i) for i in range(rng.randint(1, 3))]
        self.boot_id = rng.randbytes(16).hex()
        self.streams = []  # lists of batches, in order
        self.covered_until = 0
        interval = rng.choice([MINUTE, 5 * MINUTE, 5 * MINUTE, 15 * MINUTE])
        at = start + rng.randrange(30 * MINUTE)
        epoch = 100
        while at < end:
            until = min(end, at + rng.randrange(2 * MINUTE, 100 * MINUTE))
            self.streams.append(Stream(rng, self, epoch, at, until, interval).batches)
            self.covered_until = max(self.covered_until, until)
            # Often the next run follows at once; sometimes the node is silent for hours.
            at = until + rng.choice([1, rng.randrange(1, 90 * NS), rng.randrange(150 * MINUTE)])
            epoch += 1


class Stream:
    """One run of a node's exporter: its dictionary grows as things appear."""

    def __init__(self, rng, node, epoch, start, end, interval):
        self.rng, self.node, self.epoch = rng, node, epoch
        self.devices, self.holders, self.batches = {}, {}, []
        at = start
        while at < end:
            until = min(end, (at // interval + 1) * interval)
            self.add_batch(at, until, full=rng.random() < 0.05)
            at = until

    def device(self, key, entry):
        if key not in self.devices:
            self.devices[key] = {**entry, "id": len(self.devices) + 1}
            self.new_devices.append(self.devices[key])
        return self.devices[key]["id"]

    def holder(self, namespace, pod):
        key = (namespace, pod)
        if key not in self.holders:
            self.holders[key] = {"id": len(self.holders) + 1, "kind": 1, "ns": namespace, "pod": pod, "pod_uid": f"uid-{pod}"}
            self.new_holders.append(self.holders[key])
        return self.holders[key]["id"]

    def some_holder(self):
        return self.holder(f"ns-{self.rng.randint(0, 5)}", f"pod-{self.rng.randint(0, 3)}")

    def add_batch(self, start, end, full):
        self.new_devices, self.new_holders, self.records = [], [], []
        cuts = sorted({start, end} | {self.rng.randrange(start, end) for _ in range(self.rng.choice([0, 0, 1, 2]))})
        for gpu in self.node.gpus:
            gpu_id = self.device(gpu.uuid, {"uuid": gpu.uuid, "model": H100, "index": gpu.index})
            for a, b in zip(cuts, cuts[1:]):
                if gpu.layout:
                    self.cut_gpu(gpu, gpu_id, a, b)
                else:
                    self.whole_gpu(gpu_id, a, b)
        self.rng.shuffle(self.records)
        self.batches.append(
            {
                "node": self.node.name,
                "boot_id": self.node.boot_id,
                "epoch": self.epoch,
                "seq": len(self.batches) + 1,
                "flags": 1,
                "from_ns": start,
                "to_ns": end,
                "devices": list(self.devices.values()) if full else self.new_devices,
                "holders": list(self.holders.values()) if full else self.new_holders,
                "records": self.records,
                "efficiency": [efficiency(r) for r in self.records],
            }
        )

    def record(self, device, holder, state, sharing, units, start, duration, held):
        rng = self.rng
        method, used, unmeasured, over, memory = NONE, 0, 0, 0, 0
        if state == HELD:
            method = rng.choice([NONE, MEASURED, MEASURED])
            used = rng.randint(0, held) if method else 0
            unmeasured = 0 if method else held
            over = rng.randint(0, duration) if method and rng.random() < 0.1 else 0
            memory = rng.randrange(10 << 30) * (duration // 1_000_000)
        self.records.append(
            [device, holder, state, sharing, method, units, start, duration, held, used, unmeasured, over, memory, rng.randrange(min(100_000, 1 + duration // 20_000)), 1]
        )

    def whole_gpu(self, device, start, end):
        duration = end - start
        what = self.rng.random()
        if what < 0.45:
            self.record(device, self.some_holder(), HELD, EXCLUSIVE, UNITS, start, duration, duration)
        elif what < 0.6:
            holders = sorted({self.some_holder() for _ in range(3)})
            parts = equal_parts(duration, 4)  # four replicas advertised, the rest is free
            for i, held in enumerate(parts):
                holder = holders[i] if i < len(holders) else 0
                self.record(device, holder, HELD if holder else UNALLOCATED, TIMESLICE, UNITS, start, duration, held)
        else:
            state = self.rng.choice([UNALLOCATED, UNALLOCATED, DOWN, UNKNOWN])
            self.record(device, 0, state, EXCLUSIVE, UNITS, start, duration, duration)

    def cut_gpu(self, gpu, gpu_id, start, end):
        left, duration = UNITS, end - start
        for gi, (profile, units) in enumerate(gpu.layout):
            entry = {"gpu": gpu_id, "uuid": f"MIG-{gpu.uuid}-{gi}", "model": H100, "profile": profile, "gi": gi, "ci": 0, "units": units,
                     "created_ns": 77, "index": gpu.index, "memory_bytes": 10 << 30}  # fmt: skip
            device = self.device((gpu.uuid, gi), entry)
            held = self.rng.random() < 0.6
            self.record(device, self.some_holder() if held else 0, HELD if held else UNALLOCATED, MIG, units, start, duration, duration)
            left -= units
        if left:
            self.record(gpu_id, 0, self.rng.choice([UNALLOCATED, STRANDED]), MIG, left, start, duration, duration)


class Fleet:
    def __init__(self, seed, start, end, nodes=3):
        self.rng = random.Random(seed)
        self.start, self.end = start, end
        self.nodes = [Node(self.rng, f"node-{i}", start, end) for i in range(nodes)]

    def batches(self):
        return [b for n in self.nodes for s in n.streams for b in s]


def hour_of(ns):
    return ns // HOUR * HOUR


def truth(batches, now, grace):
    """(GPU UUID, hour, state or namespace) -> unit-nanoseconds, from the records alone."""
    states, held = collections.Counter(), collections.Counter()
    first, covered, gpu_node = {}, collections.Counter(), {}
    names = collections.defaultdict(dict)  # stream -> {"d" or "h", id -> entry}
    for b in sorted(batches, key=lambda b: (b["node"], b["epoch"], b["seq"])):
        known = names[b["node"], b["epoch"]]
        known.update({("d", d["id"]): d for d in b["devices"]})
        known.update({("h", h["id"]): h for h in b["holders"]})
        covered[b["node"]] = max(covered[b["node"]], b["to_ns"])
        for device, holder, state, _, _, units, start, _, part, used, unmeasured, _, _, _, _ in b["records"]:
            d = known["d", device]
            gpu = known["d", d.get("gpu", d["id"])]["uuid"]
            hour = hour_of(start)
            first[gpu] = min(first.get(gpu, start), start)
            gpu_node[gpu] = b["node"]
            if state == HELD:
                states[gpu, hour, "used"] += units * used
                states[gpu, hour, "unmeasured"] += units * unmeasured
                states[gpu, hour, "idle"] += units * (part - used - unmeasured)
                held[gpu, hour, known["h", holder]["ns"]] += units * part
            else:
                states[gpu, hour, STATES[state]] += units * part
    for gpu, start in first.items():
        until = covered[gpu_node[gpu]]
        if now - until > grace:
            until = now
        for hour in range(hour_of(start), until, HOUR):
            served = UNITS * (min(until, hour + HOUR) - max(start, hour))
            states[gpu, hour, "unknown"] += served - sum(states[gpu, hour, s] for s in ALL_STATES)
    return {k: v for k, v in states.items() if v}, {k: v for k, v in held.items() if v}


ALL_STATES = ("used", "idle", "unmeasured", "unallocated", "stranded", "down", "unknown")
