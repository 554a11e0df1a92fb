"""The closed loop of quota: what nodes say of this moment confirms leases, keeps them, ends them, and is held against them."""

import json
import time
import unittest

from tests.support.daemons.stack import Stack, wait_for
from tests.support.quota.quotanodes import SHORT, Nodes
from tests.support.store import ledger

POLICY = f"""
version: 1
cluster: c
tenants:
  - name: acme
    isolation: gpu
    workspaces:
      - {{name: prod, reserved: {{{SHORT}: 2}}, rules: [{{namespace: prod}}]}}
      - {{name: dev, reserved: {{{SHORT}: 2}}, rules: [{{namespace: dev}}]}}
      - {{name: lazy, idle_timeout: 1s, rules: [{{namespace: lazy}}]}}
      - {{name: poor, budget: {{gpu_hours: "0.0005", kind: hard}}, rules: [{{namespace: poor}}]}}
  - {{name: globex, workspaces: [{{name: research, rules: [{{namespace: research}}]}}]}}
nodes:
  - {{name: n1, tenant: acme, model: {SHORT}, gpus: 2}}
  - {{name: n2, tenant: acme, model: {SHORT}, gpus: 2}}
"""
OPTIONS = ["--quota-tick", "100ms", "--reclaim-grace", "1s", "--borrow-backoff", "0s", "--lease-confirm", "1h", "--rollup-interval", "100ms"]
SPACES = ("prod", "dev", "lazy", "poor", "research")
S = 1_000_000_000


def holder(ns):
    return {"kind": "pod", "namespace": ns, "pod": f"{ns}-0", "pod_uid": f"uid-{ns}", "container": "main", "user": "", "uid": -1, "replica": -1,
            "allocated": True, "holds": True, "active": True}  # fmt: skip


class Base(unittest.TestCase):
    # Longer than the loop may be kept from looking: what is seen stays confirmed.
    SILENCE = "1h"

    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=[*OPTIONS, "--lease-silence", cls.SILENCE]))
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")
        s.token("acme", role="viewer", tenant="acme")
        s.token("acme dev", role="developer", tenant="acme")
        cls.nodes = Nodes(s, {"n1": 2, "n2": 2})
        cls.seq, cls.until = 1, time.time_ns() // (60 * S) * 60 * S
        cls.record(cls.until + S, used=False)  # who there is
        cls.nodes.speak()
        wait_for("four GPUs in the book", lambda: cls.pool()["free_units"] == 4 * 5040, s.aggregator)
        never = json.dumps({"request_id": "never", "workspace": "acme/prod", "gpu_model": SHORT, "gpus": 50}).encode()
        assert s.call("POST", "/v1/decisions", never, "scheduler").json()["status"] == "rejected"  # from now on leases are expected

    @classmethod
    def record(cls, to_ns, used):
        """A stretch of n1's first GPU, held by each workspace's pod in its turn: all that was measured of them."""
        cls.seq += 1
        at, each = cls.until, (to_ns - cls.until) // len(SPACES)
        holders = [{"id": i + 1, "kind": 1, "ns": ns, "pod": f"{ns}-0", "pod_uid": f"uid-{ns}", "container": "main"} for i, ns in enumerate(SPACES)] if cls.seq == 2 else []
        records = [[1, i + 1, 1, 1, 1, 5040, at + i * each, each, each, each if used else 0, 0, 0, 0, 0, 1] for i in range(len(SPACES))]
        cls.until = at + each * len(SPACES)
        batch = {"node": "n1", "boot_id": "00" * 16, "epoch": 100, "seq": cls.seq, "flags": 1, "from_ns": at, "to_ns": cls.until, "devices": [], "holders": holders,
                 "records": records}  # fmt: skip
        # The second node introduces them too: whose a workload is says the node that shows it.
        for node in ("n1", "n2") if cls.seq == 2 else ("n1",):
            reply = cls.stack.call("POST", "/v1/ingest", ledger.frames([{**batch, "node": node}]), role=f"node {node}")
            assert reply.status == 200, reply.text()

    @classmethod
    def pool(cls):
        return next((p for p in cls.stack.get("/v1/quota").json()["pools"] if p["tenant"] == "acme"), {"free_units": 0})

    def post(self, path, body=None):
        reply = self.stack.call("POST", path, json.dumps(body if body is not None else {}).encode(), "scheduler")
        self.assertEqual(reply.status, 200, reply.text())
        return reply.json()

    def ask(self, request_id, workspace, gpus=1, **more):
        reply = self.post("/v1/decisions", {"request_id": request_id, "workspace": f"acme/{workspace}", "gpu_model": SHORT, "gpus": gpus, **more})
        self.assertEqual(reply["status"], "admitted", reply)

    def on(self, **places):
        """Who is where from now on: prod=("n1", 0)."""
        self.nodes.holders = {place: [holder(ns) | {"device": self.nodes.uuid(*place)}] for ns, place in places.items()}
        self.nodes.speak()

    def status(self, i):
        return self.stack.get(f"/v1/decisions/{i}").json()["status"]

    def becomes(self, i, status):
        wait_for(f"{i} {status}", lambda: self.status(i) == status, self.stack.aggregator)

    def anomalies(self, kind):
        return {a["subject"] for a in self.stack.get("/v1/quota/anomalies").json()["anomalies"] if a["kind"] == kind}

    def differs(self, kind, *subjects):
        wait_for(f"{kind} {subjects}", lambda: self.anomalies(kind) == set(subjects), self.stack.aggregator)

    def looked_again(self):
        """The loop has looked at what was said until now: something new of it has come about."""
        before = self.stack.sql("SELECT count(*) FROM quota_event")[0][0]
        self.nodes.broken = {("n2", 1)}
        self.nodes.speak()
        wait_for("a lost GPU", lambda: self.pool()["live_units"] == 3 * 5040, self.stack.aggregator)
        self.nodes.broken = set()
        self.nodes.speak()
        wait_for("the GPU is back", lambda: self.pool()["live_units"] == 4 * 5040, self.stack.aggregator)
        self.assertGreater(int(self.stack.sql("SELECT count(*) FROM quota_event")[0][0]), int(before))

    def tearDown(self):
        self.on()
        for (lease,) in self.stack.sql("SELECT request_id FROM decision WHERE status IN ('admitted', 'confirmed', 'suspect')"):
            self.post(f"/v1/leases/{lease}/release")
        self.nodes.speak()
        wait_for("everything is free", lambda: self.pool()["free_units"] == 4 * 5040, self.stack.aggregator)


class Loop(Base):
    def test_a_lease_is_confirmed_by_its_workload_and_its_gpu_is_free_only_when_it_is_seen_empty(self):
        self.ask("pod", "prod", workload={"namespace": "prod", "pod": "prod-0", "pod_uid": "uid-prod"})
        self.on(prod=("n2", 1))
        self.becomes("pod", "confirmed")
        parts = json.loads(self.stack.sql("SELECT event FROM quota_event WHERE event LIKE '{\"confirm\":%pod%' ORDER BY seq")[0][0])["confirm"]["parts"]
        self.assertEqual([(p["node"], p["count"]) for p in parts], [("n2", 1)])
        self.post("/v1/leases/pod/release")
        self.on(prod=("n2", 1))
        self.looked_again()
        self.assertEqual(self.status("pod"), "confirmed")
        self.on()
        self.becomes("pod", "ended")

    def test_what_was_lost_with_its_node_counts_no_more_and_its_gpus_are_free_when_they_are_seen_empty(self):
        self.ask("dead", "prod", gpus=2)
        both = {("n1", i): [holder("prod") | {"device": self.nodes.uuid("n1", i)}] for i in range(2)}
        self.nodes.holders = dict(both)
        self.nodes.speak()
        self.becomes("dead", "confirmed")
        self.nodes.silent = {"n1"}
        self.nodes.speak()
        wait_for("a silent node", lambda: self.pool()["live_units"] == 2 * 5040, self.stack.aggregator)
        self.assertEqual(self.stack.call("POST", "/v1/leases/dead/release", b'{"lost": true}', "acme dev").status, 403)
        self.assertEqual(self.stack.call("POST", "/v1/leases/dead/release", b'{"lost": 1}', "scheduler").status, 400)
        self.assertEqual(self.post("/v1/leases/dead/release", {"lost": True})["status"], "ended")
        self.assertEqual(self.post("/v1/leases/dead/release", {"lost": True})["status"], "ended")
        wait_for("nothing leased", lambda: self.pool()["in_use_units"] == 0, self.stack.aggregator)
        # The node is back, and the work goes on on one of its GPUs.
        self.nodes.silent = set()
        del self.nodes.holders["n1", 1]
        self.nodes.speak()
        wait_for("one GPU fenced", lambda: (self.pool()["live_units"], self.pool()["fenced_units"], self.pool()["free_units"]) == (4 * 5040, 5040, 3 * 5040),
                 self.stack.aggregator)  # fmt: skip
        self.differs("unleased", "acme/prod n1")
        self.on()
        wait_for("nothing fenced", lambda: (self.pool()["fenced_units"], self.pool()["free_units"]) == (0, 4 * 5040), self.stack.aggregator)
        self.differs("unleased")

    def test_what_is_used_without_a_lease_and_by_strangers_is_told_while_it_lasts(self):
        self.on(dev=("n1", 1), research=("n2", 0))
        self.differs("unleased", "acme/dev n1", "globex/research n2")
        self.differs("foreign", f"n2 {self.nodes.uuid('n2', 0)}")
        shown = {role: [a["detail"] for a in self.stack.get("/v1/quota/anomalies", role).json()["anomalies"] if a["kind"] == "foreign"] for role in ("admin", "acme")}
        self.assertEqual(shown["admin"][0]["holder"]["workspace"], "globex/research")
        self.assertEqual(shown["acme"], [{"node": "n2", "device": self.nodes.uuid("n2", 0), "kept_for": "acme"}])
        self.ask("late", "dev")
        self.nodes.speak()
        self.becomes("late", "confirmed")
        self.differs("unleased", "globex/research n2")
        self.on(dev=("n1", 1))
        self.differs("foreign")
        shown = self.stack.cli("audit", "--action", "quota.anomaly.end", "--tenant", "acme")
        self.assertIn("foreign n2", shown.stdout, shown.stderr)
        actions = self.stack.sql("SELECT action, tenant_id IS NOT NULL FROM audit_log WHERE subject LIKE 'foreign n2%' ORDER BY id")
        self.assertEqual(actions, [["quota.anomaly.begin", "t"], ["quota.anomaly.end", "t"]])

    def test_a_lease_that_is_released_again_and_again_ends_by_what_was_seen_after_the_first_time(self):
        self.ask("again", "prod")
        self.post("/v1/leases/again/release")
        self.nodes.speak()
        wait_for("its end", lambda: self.post("/v1/leases/again/release")["status"] == "ended", self.stack.aggregator)

    def test_what_the_ledger_says_was_consumed_counts_against_a_budget(self):
        """1.8 GPU-seconds of a month, and a request for one of them."""
        body = {"request_id": "poor", "workspace": "acme/poor", "gpu_model": SHORT, "gpus": 1, "expected_duration": "1s"}

        def refused():
            self.record(time.time_ns(), used=True)
            verdict = self.post("/v1/decisions?dry_run=1", body)["verdict"]
            [budget] = [c for c in verdict["checks"] if c["rule"] == "budget"]
            self.assertEqual((budget["have"], budget["unit"], budget["requested"]), (0.0005, "gpu_hours", round(1 / 3600, 9)))
            return not budget["ok"] and verdict["decision"]

        self.assertIn(wait_for("a spent budget", refused, self.stack.aggregator), ("queue", "reject"))
        self.assertEqual(self.stack.sql("SELECT DISTINCT actor FROM quota_event WHERE event LIKE '{\"budgets\":%'"), [["ledger"]])

    def test_an_idle_lease_is_warned_then_drained(self):
        self.ask("lazy", "lazy")
        self.on(lazy=("n1", 0))
        self.becomes("lazy", "confirmed")
        time.sleep(1.5)  # what is measured lies behind us
        self.record(time.time_ns(), used=True)
        self.looked_again()
        self.assertEqual(self.anomalies("idle"), set())
        time.sleep(1.5)
        self.record(time.time_ns(), used=False)
        self.differs("idle", "lazy")
        [order] = wait_for("the order", lambda: self.stack.get("/v1/reclaims").json()["reclaims"], self.stack.aggregator)
        self.assertEqual((order["lease"], order["cause"], order["state"]), ("lazy", "idle", "draining"))


class Silence(Base):
    """Leases that nothing is heard of."""

    SILENCE = "2s"

    def test_the_leases_of_a_silent_node_stay_counted_until_it_speaks(self):
        self.ask("quiet", "prod", gpus=2)
        self.on(prod=("n1", 0), dev=("n1", 1))
        self.nodes.holders["n1", 1] = [holder("prod") | {"device": self.nodes.uuid("n1", 1)}]
        self.nodes.speak()
        self.becomes("quiet", "confirmed")
        self.nodes.silent = {"n1"}
        self.nodes.holders = {}
        self.nodes.speak()
        self.becomes("quiet", "suspect")
        pool = self.pool()
        self.assertEqual((pool["live_units"], pool["in_use_units"]), (2 * 5040, 2 * 5040))
        self.looked_again_while_silent()
        self.assertEqual(self.status("quiet"), "suspect")
        self.nodes.silent = set()
        self.on()
        self.becomes("quiet", "ended")

    def looked_again_while_silent(self):
        self.nodes.broken = {("n2", 1)}
        self.nodes.speak()
        wait_for("a lost GPU", lambda: self.pool()["live_units"] == 5040, self.stack.aggregator)
        self.nodes.broken = set()
        self.nodes.speak()
        wait_for("the GPU is back", lambda: self.pool()["live_units"] == 2 * 5040, self.stack.aggregator)

    def test_a_lease_that_nobody_uses_is_told_while_its_scheduler_keeps_it(self):
        self.ask("kept", "dev")
        self.post("/v1/leases/kept/confirm")
        self.nodes.speak()
        wait_for("an unused lease", lambda: self.post("/v1/leases/kept/heartbeat") and self.anomalies("unused") == {"kept"}, self.stack.aggregator)
        self.becomes("kept", "suspect")
        self.nodes.speak()
        self.becomes("kept", "ended")
        self.differs("unused")


if __name__ == "__main__":
    unittest.main()
