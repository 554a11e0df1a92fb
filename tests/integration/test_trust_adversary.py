"""A random adversary beside an honest fleet.

Hostile nodes send whatever their tokens let them: forged batches, claims on the GPUs of others, statuses, XIDs, absurd energy, huge
dictionaries, replays, bytes that are no batch at all. Between them an honest fleet delivers what it metered, in any order, now and
then twice. The generator of the fleet (tests/support/fleet/fleet.py) knows what is true.

Each act is drawn for itself, and most are sound but for what they claim: a batch that falls to a simple rule tests no claim. How many were judged, and
how many claims were set aside, is asserted in the end.

Hostile nodes that are not in the policy speak first, about the honest nodes' own GPUs: those that nobody approved of any time, one that has a token of its own of
the time before the honest fleet began. Those that are in the policy begin when the honest nodes, which are in it too, have named their GPUs: between two declared
nodes the first one has it, and nobody can know the UUID of a GPU that was never seen. What is said of times before an honest node's first report is the
liar's own tale: in a shared pool only what the GPU's own node metered is compared.

In the end: hostile nodes that nobody approved, or that are of a cluster of their own, have changed no other bill by a cent; where they are
declared in the same pool, every honest GPU still has its unit-nanoseconds; and the ledger follows from its evidence.

A round is bounded by its steps. `make soak` runs rounds with new seeds until SOAK_SECONDS are over."""

import json
import os
import random
import time
import unittest
from collections import Counter
from decimal import Decimal

from tests.support.daemons.stack import Stack, request, wait_for
from tests.support.fleet import fleet
from tests.support.fleet.fleet import HOUR, MINUTE, NS, UNITS, Fleet
from tests.support.store import ledger

SOAK_SECONDS = int(os.environ.get("SOAK_SECONDS") or 0)
STEPS = 160  # of the adversary in a round
LEAST_JUDGED, LEAST_ASIDE = 20, 20  # batches that are accepted, GPUs in them that are set aside; a third of a round's usual numbers
FIRST = 12  # before the honest nodes have said anything
ABSURD = 0.05  # of the batches have an energy that no board can draw
PRICE = Decimal("2.713")
POLICY = """
version: 1
cluster: test
effective: {effective}
tenants:
{tenants}
nodes:
{nodes}
prices: {{version: "1", currency: EUR, items: [{{price: "{price}"}}]}}
"""
MODELS = (fleet.H100, "NVIDIA A100-SXM4-40GB", "NVIDIA B200", "Tesla T4")


def seed():
    given = os.environ.get("TOLLGATE_PROP_SEED")
    value = int(given, 0) if given else random.SystemRandom().randrange(1 << 32)
    print(f"seed {value} (TOLLGATE_PROP_SEED={value} repeats it)", flush=True)
    return value


class Hostile:
    """A node that lies. Everything it says is well-formed enough to be read, most of the time."""

    def __init__(self, rng, name, honest, start, end):
        self.rng, self.name, self.start, self.end = rng, name, start, end
        self.declared = not name.startswith(("stranger", "drifter"))
        self.devices, self.holders, self.lost = (), (), False
        self.gpus = [d["uuid"] for b in honest for d in b["devices"]]
        self.honest = honest
        self.epoch, self.seq, self.boot_id = rng.randrange(1, 1 << 40), 0, rng.randbytes(16).hex()
        self.at = start + rng.randrange(HOUR)
        self.sent = []

    def uuid(self):
        own = f"GPU-{self.name}-{self.rng.randrange(4)}"
        return self.rng.choice([own, self.rng.choice(self.gpus), self.rng.choice(self.gpus)])

    def speaks_first(self):
        """Claims on what is not its own, from a stream that begins then."""
        self.epoch, self.seq = self.epoch + 1, 0
        if self.name.startswith("drifter"):
            self.at = self.start - HOUR + self.rng.randrange(40) * MINUTE
        return ledger.frames([self.batch(gpus=self.rng.sample(self.gpus, self.rng.randint(1, len(self.gpus))), begins=True)])

    def device(self, number):
        rng = self.rng
        return {"id": number, "uuid": self.uuid(), "model": rng.choice(MODELS), "index": rng.randrange(16), "memory_bytes": rng.randrange(1 << 45)}

    def holder(self, number):
        rng = self.rng
        ns, pod = f"ns-{rng.randrange(7)}", f"pod-{rng.randrange(5)}"
        return {"id": number, "kind": 1, "ns": ns, "pod": pod, "pod_uid": f"uid-{pod}", "labels": rng.choice(["", "team=red", "team=blue"])}

    def batch(self, devices=None, holders=None, gpus=None, begins=False):
        rng, self.seq = self.rng, self.seq + 1
        length = rng.choice([MINUTE, 5 * MINUTE, 15 * MINUTE])
        # over, before and after what the honest nodes have covered
        if not begins and (self.lost or rng.random() < 0.3):
            self.epoch, self.seq, self.at = self.epoch + 1, 1, rng.randrange(self.start, self.end)
        # in one quarter-hour, as records are
        at = -(-self.at // length) * length
        self.at = at + length
        if self.at > self.end:
            self.at = self.end  # the next one is of another stream, or refused
        uuids = gpus or [self.uuid() for _ in range(devices or rng.randint(1, 4))]
        devices = [{**self.device(i + 1), "uuid": uuid} for i, uuid in enumerate(dict.fromkeys(uuids))]
        if self.seq > 1:
            # A number keeps its meaning: the stream's devices, described anew.
            devices = [{**self.device(d["id"]), "uuid": d["uuid"]} for d in self.devices]
        self.devices = devices
        holders = [self.holder(i + 1) for i in range(holders or rng.randint(1, 3))]
        if self.seq > 1:
            holders = self.holders
        self.holders = holders
        records = []
        absurd = rng.randrange(len(devices[:64])) if rng.random() < ABSURD else None
        for i, d in enumerate(devices[:64]):
            held = rng.random() < 0.7
            energy = 10**12 if i == absurd else rng.randrange(50_000)
            records.append([d["id"], rng.choice(holders)["id"] if held else 0, fleet.HELD if held else fleet.UNALLOCATED, fleet.EXCLUSIVE, fleet.NONE, UNITS,
                            at, length, length, 0, length if held else 0, 0, 0, energy, 1])  # fmt: skip
        return {"node": self.name, "boot_id": self.boot_id, "epoch": self.epoch, "seq": self.seq, "flags": 1, "from_ns": at, "to_ns": at + length,
                "devices": devices, "holders": holders, "records": records}  # fmt: skip

    def status(self):
        rng, gpus = self.rng, []
        for i, uuid in enumerate(sorted({self.uuid() for _ in range(rng.randint(1, 6))})):
            ns, pod = f"ns-{rng.randrange(7)}", f"pod-{rng.randrange(5)}"
            holder = {"kind": "pod", "namespace": ns, "pod": pod, "pod_uid": f"uid-{pod}", "container": "c", "user": "", "uid": -1, "device": uuid, "replica": -1,
                      "allocated": True, "holds": True, "active": True}  # fmt: skip
            gpus.append({"uuid": uuid, "model": rng.choice(MODELS), "index": i, "healthy": rng.random() < 0.5, "reason": rng.choice(["", "fell off the bus"]),
                         "xid": rng.choice([0, 48, 79]), "xid_at": rng.randrange(self.start, self.end), "sharing": "exclusive", "replicas": 1, "instances": [],
                         "holders": [holder] if rng.random() < 0.7 else []})  # fmt: skip
        return {"node": self.name, "boot_id": "abcd0000-0000-0000-0000-000000000001", "boot_ns": rng.randrange(1, 1 << 50), "wall_ns": time.time_ns(),
                "interval_ns": 10**10, "simulated": True, "left_out": 0, "gpus": gpus}  # fmt: skip

    def act(self, push, say):
        """One thing."""
        what = self.rng.randrange(12)
        if what < 7:
            frames = ledger.frames([self.batch()])
        elif what == 7:
            frames = ledger.frames([self.batch(devices=self.rng.randint(50, 400), holders=self.rng.randint(100, 1000))])
        elif what == 8:
            say(self.name, json.dumps(self.status()).encode())
            return
        elif what == 9:
            # an honest node's own bytes, or what it sent itself with other content
            frames = ledger.frames([self.rng.choice(self.honest)]) if self.rng.random() < 0.5 or not self.sent else ledger.frames([{**self.batch(), "seq": 1}])
        elif what == 10:
            frames = bytearray(ledger.frames([self.batch()]))
            for _ in range(self.rng.randint(1, 8)):
                frames[self.rng.randrange(len(frames))] = self.rng.randrange(256)
            frames = bytes(frames)
        else:
            frames = self.rng.randbytes(self.rng.randrange(4000))
        self.sent.append(frames)
        # What was not taken leaves a gap: only a new stream is heard then.
        self.lost = push(self.name, frames) != 200


class Adversary(unittest.TestCase):
    def stack(self):
        return self.enterContext(Stack(options=["--rollup-interval", "200ms"]))

    def policy(self, start, nodes):
        at = time.strftime("%Y-%m-%dT%H:00:00Z", time.gmtime(start // NS - 7200))
        tenants = "\n".join(f"  - {{name: t{i}, workspaces: [{{name: w, rules: [{{namespace: ns-{i}}}]}}]}}" for i in range(6)) + "\n  - {name: mallory}"
        return POLICY.format(effective=at, tenants=tenants, nodes="\n".join(f"  - {n}" for n in nodes), price=PRICE)

    def call(self, s, path, body, role, patience):
        """An honest node sends again what was not taken for a moment; a hostile one does not care."""
        while True:
            reply = s.call("POST", path, body, role=role)
            if not patience or reply.status not in (429, 503):
                return reply
            time.sleep(0.2)

    def round(self, s, rng, honest, hostile):
        """Everything that the honest fleet has, with what the hostile nodes do in between."""
        streams = [[*b] for n in honest.nodes for b in n.streams]
        for n in honest.nodes:
            s.token(f"node {n.name}", role="node", node=n.name)
        for h in hostile:
            if not h.name.startswith("stranger"):
                s.token(f"node {h.name}", role="node", node=h.name)
                continue
            # made for no node in particular: it enrols anybody, and approves nobody
            made = s.call("POST", "/v1/join-tokens", b"{}").json()["join_token"]
            s.tokens[f"node {h.name}"] = request("POST", s.url + "/v1/join", json.dumps({"node": h.name}).encode(), made).json()["token"]
        told = Counter()

        def push(node, frames):
            status = self.call(s, "/v1/ingest", frames, f"node {node}", False).status
            told.update([("push", status)])
            return status

        say = lambda node, text: told.update([("status", self.call(s, "/v1/status", text, f"node {node}", False).status)])  # noqa: E731
        for h in [h for h in hostile if not h.declared for _ in range(FIRST // 2)]:
            push(h.name, h.speaks_first())
        acts = STEPS
        for first in {n.name: n.streams[0] for n in honest.nodes}.values():
            stream = next(x for x in streams if x and x[0] is first[0])
            # of each GPU the node has said that it is there
            reply = self.call(s, "/v1/ingest", ledger.frames(stream[:1]), f"node {stream[0]['node']}", True)
            self.assertEqual((reply.status, reply.json()["quarantined"]), (200, 0), reply.text())
            del stream[:1]
        while acts or any(streams):
            if acts and (not any(streams) or rng.random() < 0.5):
                rng.choice(hostile).act(push, say)
                acts -= 1
                continue
            stream = rng.choice([x for x in streams if x])
            n = rng.randint(1, 8)
            for _ in range(rng.choice([1, 1, 1, 2])):
                reply = self.call(s, "/v1/ingest", ledger.frames(stream[:n]), f"node {stream[0]['node']}", True)
                self.assertEqual(reply.status, 200, reply.text())
                self.assertEqual(reply.json()["quarantined"], 0, "an honest node is not kept from delivering: " + str(s.sql("select reason from ingest_batch where status = 'quarantined' and class <> 'unapproved' order by quarantine_id desc limit 1")))
            del stream[:n]
        print("the adversary heard", dict(sorted(told.items())), flush=True)
        names = ", ".join(f"'{h.name}'" for h in hostile)
        hers = f"from ingest_batch b join stream x on x.id = b.stream_id join node n on n.id = x.node_id where n.name in ({names})"
        judged = {(status, why or ""): int(n) for status, why, n in s.sql(f"select b.status, b.class, count(*) {hers} group by 1, 2")}
        aside = int(s.sql(f"select count(*) from batch_set_aside a where exists (select {hers} and b.stream_id = a.stream_id and b.seq = a.seq)")[0][0])
        print(f"of its batches {judged}, GPUs set aside {aside}", flush=True)
        self.assertGreater(told["push", 200], STEPS // 4, "a hostile node that is never heard proves nothing")
        self.assertGreater(judged.get(("accepted", ""), 0), LEAST_JUDGED, "most batches are judged, not refused by a simple rule")
        self.assertGreater(aside, LEAST_ASIDE, "claims on the GPUs of others")
        self.assertEqual([k for k in told if k[1] >= 500], [], "no request of an adversary is an error of ours")
        wait_for("all hours to be rolled up", lambda: s.sql(f"select count(*) from node_hour where (sealed_at is null or dirty) and hour < to_timestamp({honest.end // NS})") == [["0"]])

    def expected(self, honest):
        return fleet.truth(honest.batches(), 0, 1 << 62)

    def lines(self, s, months):
        return [line for m in months for line in s.get(f"/v1/reports/{m}.json").json()["lines"]]

    def verify(self, s, start, end):
        reply = s.get(f"/v1/conservation/differences?from={time.strftime('%Y-%m-%dT%H:00:00Z', time.gmtime(start // NS - 3600))}"
                      f"&to={time.strftime('%Y-%m-%dT%H:00:00Z', time.gmtime(end // NS + 7200))}").json()  # fmt: skip
        self.assertEqual([(d["kind"], d["node"], d["gpu"], d["hour"], d["what"], d["expected"], d["found"]) for d in reply["differences"]], [])

    def rounds(self, one):
        """One, or as many as half of the time is for: there are two tests."""
        until = time.monotonic() + SOAK_SECONDS / 2
        one(seed())
        while time.monotonic() < until:
            self.doCleanups()
            one(random.SystemRandom().randrange(1 << 32))

    def times(self):
        """Six hours that are over, so that no class is provisional; they may lie in two months."""
        end = time.time_ns() // HOUR * HOUR - 2 * HOUR
        return end - 6 * HOUR, end

    def months(self, start, end):
        return sorted({time.strftime("%Y-%m", time.gmtime(t // NS)) for t in (start, end - 1)})

    def own_pools(self, value):
        print(f"round with seed {value}", flush=True)
        rng = random.Random(value)
        start, end = self.times()
        honest = Fleet(value, start, end)
        hostile = [Hostile(rng, name, honest.batches(), start, end) for name in ("stranger-1", "mallory-1", "mallory-2")]
        s = self.stack()
        s.apply(self.policy(start, [f"{{name: {n.name}, shared: true}}" for n in honest.nodes] + [f"{{name: mallory-{i}, cluster: evil, tenant: mallory}}" for i in (1, 2)]))
        self.round(s, rng, honest, hostile)
        _, held = self.expected(honest)
        exact = Counter()
        for (_, hour, ns), units in held.items():
            exact[ns.replace("ns-", "t"), time.strftime("%Y-%m", time.gmtime(hour // NS))] += units
        lines = self.lines(s, self.months(start, end))
        strangers = {line["cluster"] for line in lines} - {"test", "evil"}
        self.assertEqual(strangers, set())
        found, money = Counter(), Counter()
        for line in lines:
            if line["cluster"] == "test" and line["charge_type"] == "usage":
                key = line["tenant"], line["period_start"][:7]
                found[key] += Decimal(line["allocated_gpu_hours"])
                money[key] += Decimal(line["list_cost"]) - Decimal(line["discount"])
        for key, units in exact.items():
            hours = Decimal(units) / UNITS / HOUR
            self.assertLess(abs(found[key] - hours), Decimal("0.000001"), key)
            # what is billed is this, rounded once for each invoice
            self.assertEqual(round(money[key], 2), round(hours * PRICE, 2), key)
        self.assertEqual({k for k, v in found.items() if v and k[0] != "unattributed"} - set(exact), set())
        refunds = [r for m in self.months(start, end) for r in s.get(f"/v1/refunds?month={m}").json()["refunds"]]
        self.assertEqual([r for r in refunds if r["cluster"] == "test" and r["xid"]], [], "an XID of a stranger lost nobody a job")
        self.verify(s, start, end)

    def shared_pool(self, value):
        print(f"round with seed {value}", flush=True)
        rng = random.Random(value)
        start, end = self.times()
        honest = Fleet(value, start, end)
        hostile = [Hostile(rng, name, honest.batches(), start, end) for name in ("wolf-1", "wolf-2", "drifter-1", "stranger-1")]
        s = self.stack()
        s.apply(self.policy(start, [f"{{name: {n.name}, shared: true}}" for n in honest.nodes] + ["{name: wolf-1, shared: true}", "{name: wolf-2, shared: true}"]))
        self.round(s, rng, honest, hostile)
        beaten = s.sql("select count(*) from audit_log where action = 'gpu.move' and reason = 'a node of the policy has it, and node drifter-1 is not declared'")
        self.assertGreater(int(beaten[0][0]), 0, "a declared node has its GPUs, whoever spoke first")
        states, held = self.expected(honest)
        names = {g.uuid: n.name for n in honest.nodes for g in n.gpus}
        rows = s.get(f"/v1/usage?exact=1&group_by=node,gpu,tenant,state,hour&limit=100000&from={time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(start // NS))}"
                     f"&to={time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(end // NS))}").json()["groups"]  # fmt: skip
        found, by_tenant = Counter(), Counter()
        for r in rows:
            if r["gpu"] not in names:
                continue
            self.assertEqual(r["node"], names[r["gpu"]], "a GPU is metered by its own node alone")
            found[r["gpu"], r["state"]] += int(r["unit_ns"])
            if r["tenant"]:
                by_tenant[r["gpu"], r["tenant"]] += int(r["unit_ns"])
        expected = Counter()
        for (gpu, _, state), units in states.items():
            if state != "unknown":
                expected[gpu, state] += units
        self.assertEqual({k: v for k, v in found.items() if v and k[1] != "unknown"}, dict(expected))
        tenants = Counter()
        for (gpu, _, ns), units in held.items():
            tenants[gpu, ns.replace("ns-", "t")] += units
        self.assertEqual({k: v for k, v in by_tenant.items() if v}, {k: v for k, v in tenants.items() if v})
        self.verify(s, start, end)

    def test_nodes_that_nobody_approved_or_of_another_cluster_change_no_bill(self):
        self.rounds(self.own_pools)

    def test_nodes_of_the_same_pool_change_no_honest_gpu(self):
        self.rounds(self.shared_pool)


if __name__ == "__main__":
    unittest.main()
