"""What one node, one policy or one request says must not stop quota for everybody else (REVIEW B2, B3, B4, F3, G2, G3)."""

import json
import subprocess
import time
import unittest

from tests.support.daemons.stack import Stack, program, wait_for
from tests.support.quota.quotanodes import BOOT, LONG, MINUTE, MODEL, SHORT, Nodes
from tests.support.store import ledger

CLASSES = [f"class-{i:03}" for i in range(100)]
HEAD = "version: 1\ncluster: c\n"
TENANTS = f"""
tenants:
  - name: acme
    workspaces:
      - {{name: prod, reserved: {{{SHORT}: 2}}, rules: [{{namespace: prod}}]}}
  - {{name: globex, workspaces: [{{name: research, rules: [{{namespace: research}}]}}]}}
nodes:
  - {{name: n1, tenant: acme, model: {SHORT}, gpus: 2}}
  - {{name: n2, tenant: acme, model: {SHORT}, gpus: 2}}
  - {{name: evil, tenant: globex}}
"""
POLICY = HEAD + TENANTS
OPTIONS = ["--quota-tick", "100ms", "--reclaim-grace", "1s", "--lease-confirm", "1h", "--lease-silence", "1h", "--rollup-interval", "100ms"]


def classes_policy(count, **allowed):
    """A policy with so many priority classes; acme may use those given, globex those given."""
    names = "".join(f"  - {{name: {n}, value: {i}}}\n" for i, n in enumerate(CLASSES[:count]))
    text = TENANTS.replace("- name: acme\n", f"- name: acme\n    priority_classes: {json.dumps(allowed['acme'])}\n") if "acme" in allowed else TENANTS
    return HEAD + "priority_classes:\n" + names + text


def gpu(uuid, model=MODEL, index=0, **more):
    return {"uuid": uuid, "model": model, "index": index, "healthy": True, "reason": "", "xid": 0, "sharing": "exclusive", "replicas": 1,
            "instances": [], "holders": [], **more}  # fmt: skip


def instance(uuid, profile, units, gi=1):
    return {"uuid": uuid, "profile": profile, "units": units, "gi": gi, "ci": 0}


def holder(device, ns="prod", pod="job-0"):
    return {"kind": "pod", "namespace": ns, "pod": pod, "pod_uid": f"uid-{pod}", "container": "main", "user": "", "uid": -1, "replica": -1,
            "allocated": True, "holds": True, "active": True, "device": device}  # fmt: skip


class Quota(unittest.TestCase):
    """One ledger: acme's n1 and n2 are honest, `evil` is globex's and says what it likes."""

    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=OPTIONS))
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")
        cls.nodes = Nodes(s, {"n1": 2, "n2": 2})
        s.token("node evil", role="node", node="evil")
        cls.nodes.speak()
        wait_for("four GPUs in the book", lambda: cls.pool()["free_units"] == 4 * 5040, s.aggregator)

    @classmethod
    def pool(cls, tenant="acme"):
        return next((p for p in cls.stack.get("/v1/quota").json()["pools"] if p["tenant"] == tenant), {"free_units": 0, "live_units": 0})

    def say(self, node, gpus, interval=LONG):
        """A status of the node; gives the reply."""
        said = {"node": node, "boot_id": BOOT, "boot_ns": time.monotonic_ns(), "wall_ns": time.time_ns(), "left_out": 0, "interval_ns": interval,
                "simulated": True, "gpus": gpus}  # fmt: skip
        return self.stack.call("POST", "/v1/status", json.dumps(said).encode(), f"node {node}")

    def push(self, node, epoch, seq, devices, records, holders=()):
        now = time.time_ns() // MINUTE * MINUTE
        batch = {"node": node, "boot_id": "00" * 16, "epoch": epoch, "seq": seq, "flags": 1, "from_ns": now - MINUTE, "to_ns": now,
                 "devices": devices, "holders": list(holders),
                 "records": [[d, 0, 2, 1, 0, 5040, now - MINUTE, MINUTE, MINUTE, 0, 0, 0, 0, 0, 1] for d in records]}  # fmt: skip
        reply = self.stack.call("POST", "/v1/ingest", ledger.frames([batch]), f"node {node}")
        self.assertEqual(reply.status, 200, reply.text())

    def ask(self, request_id, **more):
        body = {"request_id": request_id, "workspace": "acme/prod", "gpu_model": SHORT, "gpus": 1, **more}
        reply = self.stack.call("POST", "/v1/decisions", json.dumps(body).encode(), "scheduler")
        self.assertEqual(reply.status, 200, reply.text())
        return reply.json()

    def post(self, path):
        reply = self.stack.call("POST", path, b"{}", "scheduler")
        self.assertEqual(reply.status, 200, reply.text())

    def live(self):
        return self.pool()["live_units"]

    def others_go_on(self):
        """The loss of an honest node is told, and its return: each within the time that a tick takes."""
        self.nodes.silent.add("n2")
        self.nodes.speak()
        wait_for("n2 lost", lambda: self.live() == 2 * 5040, self.stack.aggregator)
        self.nodes.silent.clear()
        self.nodes.speak()
        wait_for("n2 back", lambda: self.live() == 4 * 5040, self.stack.aggregator)

    def tearDown(self):
        self.nodes.holders, self.nodes.silent = {}, set()
        self.nodes.speak()
        self.say("evil", [])
        self.stack.apply(POLICY)

    # B2, B3

    def test_an_empty_list_of_priority_classes_allows_none(self):
        self.stack.apply(classes_policy(2, acme=[]))
        wait_for("no class is allowed", lambda: self.dry(CLASSES[0]) == "reject", self.stack.aggregator)
        self.assertNotEqual(self.dry(None), "reject")
        self.stack.apply(classes_policy(2, acme=[CLASSES[1]]))
        wait_for("one class is allowed", lambda: self.dry(CLASSES[1]) != "reject", self.stack.aggregator)
        self.assertEqual(self.dry(CLASSES[0]), "reject")

    def test_a_simulation_reads_priority_classes_as_a_policy_does(self):
        file = {"version": 1, "priority_classes": [{"name": n, "value": i} for i, n in enumerate(CLASSES)],
                "tenants": [{"name": "none", "priority_classes": [], "workspaces": [{"name": "w", "reserved": 2}]},
                            {"name": "last", "priority_classes": [CLASSES[99]], "workspaces": [{"name": "w", "reserved": 2}]}],
                "requests": [{"id": "none", "workspace": "none/w", "gpus": 1, "priority": CLASSES[0]},
                             {"id": "last", "workspace": "last/w", "gpus": 1, "priority": CLASSES[99]},
                             {"id": "other", "workspace": "last/w", "gpus": 1, "priority": CLASSES[98]}]}  # fmt: skip
        done = subprocess.run([program("tollgate"), "quota", "simulate", "-"], input=json.dumps(file), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual({x["id"]: x["decision"] for x in said if "decision" in x}, {"none": "reject", "last": "admit", "other": "reject"})

    def dry(self, priority_class):
        body = {"request_id": f"dry-{time.monotonic_ns()}", "workspace": "acme/prod", "gpu_model": SHORT, "gpus": 1}
        if priority_class:
            body["priority_class"] = priority_class
        reply = self.stack.call("POST", "/v1/decisions?dry_run=1", json.dumps(body).encode(), "scheduler")
        if reply.status == 400 and reply.json()["field"] == "priority_class":
            return "reject"
        self.assertEqual(reply.status, 200, reply.text())
        return reply.json()["verdict"]["decision"]

    def test_a_hundred_priority_classes_are_enforced(self):
        self.stack.apply(classes_policy(100, acme=CLASSES[:70] + CLASSES[99:]))
        wait_for("class 99 is known and allowed", lambda: self.dry(CLASSES[99]) != "reject", self.stack.aggregator)
        self.assertEqual([self.dry(c) == "reject" for c in (CLASSES[69], CLASSES[70], CLASSES[98])], [False, True, True])
        reply = self.stack.call("PUT", "/v1/policy", (HEAD + "priority_classes:\n" + "".join(f"  - {{name: c{i}, value: {i}}}\n" for i in range(101)) + TENANTS).encode())
        self.assertEqual((reply.status, "at most 100" in reply.text()), (400, True), reply.text())

    # B4, F3

    def test_a_long_name_an_empty_model_or_a_strange_profile_stops_nobody_else(self):
        long_name = "n" + "x" * 251 + "1"
        self.stack.token(f"node {long_name}", role="node", node=long_name)
        for what, node, gpus in (
            ("a name of 253 bytes", long_name, [gpu("GPU-long-0")]),
            ("an empty model", "evil", [gpu("GPU-evil-0", model="")]),
            ("a profile of other units", "evil",
             [gpu("GPU-evil-0", sharing="mig", instances=[instance("MIG-0", "1g.10gb", 1)])]),
            ("two weights of one profile", "evil",
             [gpu(f"GPU-evil-{i}", model="Strange", sharing="mig", instances=[instance(f"MIG-{i}", "9g.9gb", 100 + i)]) for i in range(2)]),
        ):  # fmt: skip
            with self.subTest(what):
                self.assertEqual(self.say(node, gpus).status, 200)
                self.others_go_on()
                self.say(node, [])

    def test_a_node_that_is_left_out_is_reported(self):
        self.say("evil", [gpu("GPU-evil-0", sharing="mig", instances=[instance("MIG-0", "1g.10gb", 1)])])
        why = "GPU GPU-evil-0: an instance of 1g.10gb weighs 1 units, on a H100-80GB it is 675"
        wait_for("an anomaly", lambda: self.left_out() == [("evil", "globex", {"node": "evil", "why": why})], self.stack.aggregator)
        self.say("evil", [])
        wait_for("none", lambda: self.left_out() == [], self.stack.aggregator)

    def left_out(self):
        found = self.stack.get("/v1/quota/anomalies").json()["anomalies"]
        return [(a["subject"], a["tenant"], a["detail"]) for a in found if a["kind"] == "inventory"]

    def test_a_batch_of_2000_gpus_stops_nobody_else(self):
        devices = [{"id": i + 1, "uuid": f"GPU-many-{i}", "model": MODEL, "index": i} for i in range(2000)]
        self.push("evil", 300, 1, devices, range(1, 2001))
        self.others_go_on()
        # nor do they when they come in two batches
        self.push("evil", 301, 1, devices[:1000], range(1, 1001))
        self.push("evil", 302, 1, devices[1000:], range(1001, 2001))
        self.others_go_on()
        self.stack.sql("delete from tollgate.gpu_service where node_id = (select id from tollgate.node where name = 'evil')")

    # G2

    def test_a_gpu_is_counted_where_it_is_in_service_and_as_what_the_ledger_knows(self):
        theirs = [gpu(self.nodes.uuid("n1", i), model="NVIDIA L40S", index=i) for i in range(2)]
        self.assertEqual(self.say("evil", theirs).status, 200)
        self.nodes.silent.add("n1")  # the node that speaks is the other one
        self.nodes.speak()
        wait_for("n1 lost", lambda: self.live() == 2 * 5040, self.stack.aggregator)
        pools = {(p["tenant"], p["gpu_model"]): p["declared_units"] for p in self.stack.get("/v1/quota").json()["pools"]}
        self.assertEqual((pools["acme", SHORT], {model for _, model in pools}), (4 * 5040, {SHORT}))
        # and its own node does not make it something else by its status
        self.nodes.silent.clear()
        self.nodes.speak()
        own = [gpu(self.nodes.uuid("n1", i), model="NVIDIA L40S", index=i) for i in range(2)]
        self.assertEqual(self.say("n1", own).status, 200)
        self.others_go_on()

    # G3

    def test_a_foreign_node_neither_confirms_a_lease_nor_keeps_a_reclaim(self):
        self.push("evil", 310, 1, [{"id": 1, "uuid": "GPU-evil-own", "model": MODEL, "index": 0}], [1])
        self.assertEqual(self.ask("mine", workload={"namespace": "prod", "pod": "job-0", "pod_uid": "uid-job-0"})["status"], "admitted")
        named = [gpu("GPU-evil-own", holders=[holder("GPU-evil-own")])]
        self.say("evil", named)
        self.others_go_on()  # several ticks have seen it
        self.assertEqual(self.status("mine"), "admitted")
        self.nodes.holders = {("n1", 0): [holder(self.nodes.uuid("n1", 0))]}
        self.nodes.speak()
        wait_for("confirmed by its own node", lambda: self.status("mine") == "confirmed", self.stack.aggregator)
        self.post("/v1/leases/mine/release")
        self.nodes.holders = {}
        self.nodes.speak()
        self.say("evil", named)
        wait_for("returned although another node names it", lambda: self.status("mine") == "ended", self.stack.aggregator)

    def status(self, i):
        return self.stack.get(f"/v1/decisions/{i}").json()["status"]


if __name__ == "__main__":
    unittest.main()
