"""Nodes that nobody declared or approved are held: their evidence is kept and shown, billed to nobody and counted in no capacity (REVIEW F2)."""

import json
import random
import re
import subprocess
import time
import unittest

from tests.support.daemons import pg
from tests.support.daemons.stack import Stack, program, wait_for
from tests.support.store import ledger
from tests.support.store.ledger import HOUR, NS, Ledger

MINUTE = 60 * NS
MODEL = "NVIDIA H100 80GB HBM3"
POLICY = """
version: 1
cluster: c
tenants:
  - {name: acme, workspaces: [{name: prod, rules: [{namespace: prod}]}]}
nodes: [{name: honest, shared: true}%s]
"""
OPTIONS = ["--quota-tick", "100ms", "--rollup-interval", "100ms"]
LIMIT = ["--held-node-max", "1MiB"]  # programs from before it was there are to fail by what they do


def batch(node, seq, from_ns, length=MINUTE, gpus=2, energy=1000, holder=True, uuid="GPU-{node}-{i}", **more):
    """All GPUs of a node held by one pod; the first batch introduces them."""
    first = seq == 1
    devices = [{"id": i + 1, "uuid": uuid.format(node=node, i=i), "model": MODEL, "index": i} for i in range(gpus)] if first else []
    holders = [{"id": 1, "kind": 1, "ns": "prod", "pod": f"{node}-0", "pod_uid": f"uid-{node}", "container": "main"}] if first else []
    records = [[i + 1, 1 if holder else 0, 1 if holder else 2, 1, 1 if holder else 0, 5040, from_ns, length, length, length // 2 if holder else 0, 0, 0, 0, energy, 60]
               for i in range(gpus)]  # fmt: skip
    return {"node": node, "boot_id": "00" * 16, "epoch": 100, "seq": seq, "flags": 1, "from_ns": from_ns, "to_ns": from_ns + length,
            "devices": devices, "holders": holders, "records": records, **more}  # fmt: skip


class Held(unittest.TestCase):
    """The programs: a node that enrolled with a join token made for any name."""

    @classmethod
    def setUpClass(cls):
        known = LIMIT[0] in subprocess.run([program("tollgate-aggregator"), "--help"], capture_output=True, text=True).stdout
        cls.stack = s = cls.enterClassContext(Stack(options=OPTIONS + (LIMIT if known else [])))
        s.apply(POLICY % "")
        cls.at = time.time_ns() // MINUTE * MINUTE - 30 * MINUTE

    def join(self, node, named=False):
        """A node that comes by its token by itself."""
        reply = self.stack.call("POST", "/v1/join-tokens", json.dumps({"node": node} if named else {}).encode())
        self.assertEqual(reply.status, 201, reply.text())
        self.stack.tokens["join"] = reply.json()["join_token"]
        reply = self.stack.call("POST", "/v1/join", json.dumps({"node": node}).encode(), "join")
        self.assertEqual(reply.status, 201, reply.text())
        self.stack.tokens[f"node {node}"] = reply.json()["token"]

    def push(self, node, seq, count=1, **more):
        batches = [batch(node, i, self.at + (i - 1) * MINUTE, **more) for i in range(seq, seq + count)]
        reply = self.stack.call("POST", "/v1/ingest", ledger.frames(batches), f"node {node}")
        self.assertEqual(reply.status, 200, reply.text())
        return reply.json()

    def status(self, node):
        gpus = [{"uuid": f"GPU-{node}-{i}", "model": "NVIDIA L40S", "index": i, "healthy": True, "reason": "", "xid": 79, "xid_at": self.at, "sharing": "exclusive",
                 "replicas": 1, "instances": [], "holders": []} for i in range(2)]  # fmt: skip
        said = {"node": node, "boot_id": "abcd0000-0000-0000-0000-000000000001", "boot_ns": time.monotonic_ns(), "wall_ns": time.time_ns(), "left_out": 0,
                "interval_ns": 3600 * NS, "simulated": True, "gpus": gpus}  # fmt: skip
        reply = self.stack.call("POST", "/v1/status", json.dumps(said).encode(), f"node {node}")
        self.assertEqual(reply.status, 200, reply.text())

    def used(self, node):
        """Allocated GPU-minutes of a node in the ledger."""
        groups = self.stack.get(f"/v1/usage?group_by=node&node={node}&exact=1").json()["groups"]
        return sum(int(g["allocated_unit_ns"]) for g in groups) // (5040 * MINUTE)

    def node(self, name):
        return next((n for n in self.stack.get("/v1/nodes").json() if n["name"] == name), None)

    def rows_of(self, node):
        """Everything that is made from what a node says."""
        s = self.stack
        return {
            table: int(s.sql(f"select count(*) from tollgate.{table} where {where}")[0][0])
            for table, where in (
                ("gpu", f"uuid like 'GPU-{node}-%'"),
                ("holder", f"pod = '{node}-0'"),
                ("gpu_service", f"node_id = (select id from tollgate.node where name = '{node}')"),
                ("node_hour", f"node_id = (select id from tollgate.node where name = '{node}')"),
                ("stream_device", f"stream_id in (select s.id from tollgate.stream s join tollgate.node n on n.id = s.node_id where n.name = '{node}')"),
                ("capacity", f"uuid like 'GPU-{node}-%'"),
                ("gpu_xid", f"gpu_id in (select id from tollgate.gpu where uuid like 'GPU-{node}-%')"),
            )
        }

    def verify(self, node):
        done = self.stack.cli("verify", "--node", node, "--from", "2020-01-01", "--to", "2099-01-01")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_an_undeclared_node_is_billed_to_nobody_until_it_is_approved(self):
        self.join("stray")
        self.assertEqual(self.push("stray", 1, 3)["quarantined"], 3)
        self.status("stray")
        self.assertEqual(self.used("stray"), 0)
        self.assertEqual(set(self.rows_of("stray").values()), {0}, self.rows_of("stray"))
        shown = self.node("stray")
        self.assertEqual((shown["approval"], shown["held_batches"], shown["gpus"], shown["first_seen"] is not None), ("held", 3, 0, True))
        self.assertEqual([n["node"] for n in self.stack.get("/v1/status?node=stray").json()], ["stray"])
        self.assertEqual({b["class"] for b in self.stack.get("/v1/quarantine?node=stray").json()["batches"]}, {"unapproved"})
        self.assertEqual([p for p in self.stack.get("/v1/quota").json()["pools"] if p["gpu_model"] == "L40S"], [])
        wait_for("the gauge", lambda: re.search(r"\ntollgate_held_nodes [1-9]", self.stack.get("/metrics").text()), self.stack.aggregator)
        self.assertNotIn("stray", self.stack.cli("policy", "suggest").stdout)

        done = self.stack.cli("node", "approve", "stray", "--reason", "ours")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.push("stray", 4, 2)  # in time or not, it comes behind the others
        wait_for("all of it counts", lambda: self.node("stray")["approval"] == "approved" and self.used("stray") == 10, self.stack.aggregator)
        self.push("stray", 6)
        self.assertEqual(self.used("stray"), 12)
        self.assertEqual(self.node("stray")["held_batches"], 0)
        self.verify("stray")
        entries = self.stack.get("/v1/audit?action=node.approve").json()["entries"]
        self.assertEqual([(e["subject"], e["reason"]) for e in entries if "stray" in e["subject"]], [("node stray", "ours")])
        again = self.stack.call("POST", "/v1/nodes/stray/approve", b'{"reason": "again"}').json()
        self.assertEqual(again, {"node": "stray", "approval": "approved", "changed": False})
        self.assertEqual(self.stack.call("POST", "/v1/nodes/nobody/approve", b'{"reason": "x"}').status, 404)

    def test_a_token_or_a_policy_that_names_a_node_approves_it(self):
        self.join("named", named=True)
        self.assertEqual(self.push("named", 1)["batches"], 1)
        self.assertEqual(self.used("named"), 2)
        self.join("declared")
        self.assertEqual(self.push("declared", 1)["quarantined"], 1)
        self.stack.apply(POLICY % ", {name: declared, tenant: acme}")
        wait_for("what it sent before counts", lambda: self.used("declared") == 2, self.stack.aggregator)
        self.verify("declared")

    def test_a_batch_of_a_held_node_is_released_by_approving_it_and_has_a_limit(self):
        self.join("full")
        self.push("full", 1)
        [row] = self.stack.get("/v1/quarantine?node=full").json()["batches"]
        reply = self.stack.call("POST", f"/v1/quarantine/{row['stream']}/{row['seq']}/release", b'{"reason": "x"}')
        self.assertEqual((reply.status, "tollgate node approve full" in reply.text()), (409, True), reply.text())
        noise = random.Random(1)
        for seq in range(2, 200):
            pods = [{"id": seq * 1000 + i, "kind": 1, "ns": f"{noise.getrandbits(400):x}", "pod": f"{noise.getrandbits(1000):x}"} for i in range(100)]
            data = ledger.frames([batch("full", seq, self.at + seq * MINUTE, holders=pods)])
            reply = self.stack.call("POST", "/v1/ingest", data, "node full")
            if reply.status != 200:
                break
        self.assertEqual((reply.status, "the most is 1048576" in reply.text()), (429, True), reply.text())
        self.assertTrue(reply.headers["Retry-After"])

    def test_a_node_whose_batches_cannot_be_read_keeps_no_other_one_waiting(self):
        for node in ("spoiled", "behind"):
            self.join(node)
            self.push(node, 1)
        flip = "update tollgate.ingest_batch b set payload = set_byte(payload, 20, get_byte(payload, 20) # 1) from tollgate.stream s join tollgate.node n on n.id = s.node_id where n.name = 'spoiled' and b.stream_id = s.id"
        self.stack.sql("set session_replication_role = replica; " + flip)
        for node in ("spoiled", "behind"):
            self.assertEqual(self.stack.call("POST", f"/v1/nodes/{node}/approve", b'{"reason": "ours"}').status, 200)
        wait_for("the other one counts", lambda: self.used("behind") == 2, self.stack.aggregator)
        self.assertEqual(self.node("spoiled")["held_batches"], 1)
        wait_for("the log says why", lambda: '"task":"held"' in self.stack.aggregator.words() or "task=held" in self.stack.aggregator.words(), self.stack.aggregator)
        self.stack.sql("set session_replication_role = replica; " + flip)
        wait_for("and then it counts too", lambda: self.used("spoiled") == 2, self.stack.aggregator)

    def test_a_replica_that_is_killed_while_it_takes_them_in_leaves_no_trace(self):
        self.join("long")
        for seq in range(1, 1201, 100):
            reply = self.stack.call("POST", "/v1/ingest",
                                    ledger.frames([batch("long", i, self.at + (i - 1) * NS, NS) for i in range(seq, seq + 100)]), "node long")  # fmt: skip
            self.assertEqual(reply.status, 200, reply.text())
        self.assertEqual(self.stack.call("POST", "/v1/nodes/long/approve", b'{"reason": "ours"}').status, 200)
        wait_for("some are taken in", lambda: self.node("long")["held_batches"] < 1200, self.stack.aggregator)
        self.stack.aggregator.kill9()
        self.stack.restart_aggregator()
        wait_for("all are", lambda: self.node("long")["approval"] == "approved", self.stack.aggregator)
        self.assertEqual(self.used("long"), 2 * 1200 // 60)
        self.verify("long")

    def test_energy_beyond_what_the_board_can_draw_is_refused(self):
        self.join("hot", named=True)
        # an H100 draws 700 W, and 1050 for a moment: 63 kJ a minute
        self.assertEqual(self.push("hot", 1, energy=60_000_000)["batches"], 1)
        self.assertEqual(self.push("hot", 2, energy=1_000_000_000)["quarantined"], 1)
        [row] = self.stack.get("/v1/quarantine?node=hot").json()["batches"]
        self.assertEqual(row["class"], "energy")
        self.assertRegex(row["reason"], r"GPU GPU-hot-0 .*1000000000 mJ.*the most is")


class SameLedger(unittest.TestCase):
    """A node that is approved late leaves the ledger that it had left if it had been approved from the start."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())

    def ledger(self, name, held):
        led = Ledger(self.cluster, name, now=1_780_000_000 * NS // HOUR * HOUR)
        led.held(held)
        led.apply(POLICY % "")
        return led

    def content(self, led):
        """What there is, without ids."""
        led.rollup()
        return {
            "usage": led.rows("select n.name, d.uuid, h.pod, u.start_ns, u.duration_ns, u.used_ns, u.energy_mj from tollgate.usage_interval u join tollgate.node n on n.id = "
                              "u.node_id join tollgate.device d on d.id = u.device_id left join tollgate.holder h on h.id = u.holder_id order by 1, 2, 3, 4"),
            "service": led.rows("select n.name, g.uuid, v.from_ns, v.until_ns from tollgate.gpu_service v join tollgate.gpu g on g.id = v.gpu_id "
                                "join tollgate.node n on n.id = v.node_id order by 1, 2, 3"),
            "batches": led.rows("select s.epoch, b.seq, b.status, coalesce(nullif(b.class, 'unapproved'), '') from tollgate.ingest_batch b join tollgate.stream s on s.id = b.stream_id "
                                "order by 1, 2"),
            "streams": led.rows("select epoch, next_seq, covered_until_ns from tollgate.stream order by 1"),
            "hours": led.rows("select n.name, h.hour, h.sealed_at is not null from tollgate.node_hour h join tollgate.node n on n.id = h.node_id order by 1, 2"),
            "hourly": led.rows("select hour, d.uuid, sum(used), sum(idle), sum(unknown), sum(energy_mj) from tollgate.usage_hourly u join tollgate.device d on d.id = u.device_id "
                               "group by 1, 2 order by 1, 2"),
        }  # fmt: skip

    def pushes(self, seed, start):
        """Batches of two runs of an exporter: sound ones, losses, wrong clocks, what goes back, strange numbers."""
        draw = random.Random(seed)
        out = []
        at = start
        for epoch in (100, 101):
            for seq in range(1, draw.randrange(10, 25)):
                kind = draw.choice(["sound"] * 8 + ["loss", "back", "future", "format", "unknown", "skew"])
                b = batch("n", seq, at, draw.randrange(1, 60) * NS, holder=draw.random() < 0.7) | {"epoch": epoch}
                at = b["to_ns"]
                clock = None
                if at % (900 * NS) < 60 * NS:  # a record lies in one quarter of an hour
                    b["records"] = []
                if kind == "loss" and seq > 1:
                    b |= {"kind": 2, "records": [], "devices": [], "holders": []}
                elif kind == "back" and seq > 1:
                    b |= {"from_ns": start, "to_ns": start + NS, "records": []}
                elif kind == "future":
                    b |= {"from_ns": at + 100 * HOUR, "to_ns": at + 101 * HOUR, "records": []}
                elif kind == "format" and seq > 1:
                    b["records"] = [[1, 0, 1, 1, 0, 5040, at, NS, NS, 0, 0, 0, 0, 0, 1]]
                elif kind == "unknown" and seq > 1:
                    b["records"] = [[77, 0, 2, 1, 0, 5040, b["from_ns"], NS, NS, 0, 0, 0, 0, 0, 1]]
                elif kind == "skew":
                    clock = at + HOUR
                out.append((b, at, clock))
        return out

    def test_what_comes_of_a_node_does_not_depend_on_when_it_is_approved(self):
        for seed in (int(time.time()), 7):
            with self.subTest(seed=seed):
                early, late = self.ledger(f"early_{seed}", False), self.ledger(f"late_{seed}", True)
                start = early.now
                pushes = self.pushes(seed, start)
                approve_at = random.Random(seed + 1).randrange(5, len(pushes))
                for i, (b, at, clock) in enumerate(pushes):
                    for led in (early, late):
                        led.now = at + 10 * NS
                        led.ingest([b], clock=clock if clock is None else clock)
                    if i == approve_at:
                        late.run("approve", "n")
                    if i > approve_at:  # a few steps at a time, as a replica that is killed again and again
                        late.run("held-release", "--steps", 1)
                while late.run("held-release", "--steps", 1)["more"]:
                    pass
                early.now = late.now = early.now + 3 * HOUR
                expected, found = self.content(early), self.content(late)
                for part in expected:
                    self.assertEqual(expected[part], found[part], f"{part}, seed {seed}")
                late.assert_sound()

    def test_what_was_sent_before_the_oldest_open_month_stays_in_quarantine(self):
        led = self.ledger("closed", True)
        led.now = 1_780_272_000 * NS - 5 * MINUTE  # 2026-06-01 is at 1780272000
        led.ingest([batch("n", 1, led.now - 10 * MINUTE)])
        led.now += HOUR
        led.ingest([batch("n", 2, led.now - 10 * MINUTE)])
        led.rows("select tollgate.make_periods('2026-05-01', '2026-06-02')")
        led.close_by_hand("2026-05")
        led.run("approve", "n")
        led.run("held-release")
        rows = led.rows("select seq, status, coalesce(class, ''), reason from tollgate.ingest_batch order by seq")
        self.assertEqual([r[:3] for r in rows], [["1", "quarantined", "unapproved"], ["2", "accepted", "unapproved"]])
        self.assertIn("before the oldest open month began at 2026-06-01", rows[0][3])
        self.assertEqual(led.rows("select held, held_bytes from tollgate.node where name = 'n'"), [["f", "0"]])
        led.assert_sound()


if __name__ == "__main__":
    unittest.main()
