"""Live state: what nodes say of this moment, how it is kept, and who sees what of it."""

import gzip
import json
import os
import tempfile
import time
import re
import unittest

from tests.support.daemons import stack
from tests.support.daemons.stack import BUILD, Process, Stack, free_port, program, wait_for
from tests.support.store import ledger

POLICY = """
version: 1
cluster: test
tenants:
  - {name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}
  - {name: globex, workspaces: [{name: research, rules: [{namespace: globex}]}]}
nodes: [{name: shared, shared: true}, {name: own, tenant: acme}, {name: other, tenant: globex}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""
MINUTE = 60_000_000_000
NODES = ("shared", "own", "other")


def holder(ns, device, **more):
    return {"kind": "pod", "namespace": ns, "pod": f"{ns}-0", "pod_uid": f"uid-{ns}", "container": "main", "user": "", "uid": -1,
            "device": device, "replica": -1, "allocated": True, "holds": True, "active": True, **more}  # fmt: skip


def gpu(node, index, holders=(), **more):
    return {"uuid": f"GPU-{node}-{index}", "model": "NVIDIA H100 80GB HBM3", "index": index, "healthy": True, "reason": "", "xid": 0,
            "sharing": "exclusive", "replicas": 1, "instances": [], "holders": list(holders), **more}  # fmt: skip


def status(node, gpus=None, **more):
    gpus = [gpu(node, 0), gpu(node, 1)] if gpus is None else gpus
    return {"node": node, "boot_id": "abcd0000-0000-0000-0000-000000000001", "boot_ns": 1000, "wall_ns": time.time_ns(),
            "interval_ns": 3600_000_000_000, "simulated": True, "left_out": 0, "gpus": gpus, **more}  # fmt: skip


def batch(node, seq=1):
    """Two GPUs of a node for a minute: the first held by acme's pod, the second by globex's."""
    now = time.time_ns() // MINUTE * MINUTE - MINUTE
    pods = [{"id": i + 1, "kind": 1, "ns": ns, "pod": f"{ns}-0", "pod_uid": f"uid-{ns}", "container": "main"} for i, ns in enumerate(("acme", "globex"))]
    devices = [{"id": i + 1, "uuid": f"GPU-{node}-{i}", "model": "NVIDIA H100 80GB HBM3", "index": i} for i in range(2)]
    records = [[i, i, 1, 1, 1, 5040, now, MINUTE, MINUTE, MINUTE // 2, 0, 0, 0, 1000, 60] for i in (1, 2)]
    return {"node": node, "boot_id": "00" * 16, "epoch": 100, "seq": seq, "flags": 1, "from_ns": now, "to_ns": now + MINUTE,
            "devices": devices, "holders": pods, "records": records}  # fmt: skip


class AChangeOfAnAllocation(unittest.TestCase):
    def test_is_told_at_once_by_an_exporter_that_would_be_silent_for_minutes(self):
        s = self.enterContext(Stack())
        s.apply(POLICY)
        at = self.enterContext(tempfile.TemporaryDirectory(prefix="tollgate-live-"))
        for sub in ("spool", "pods"):
            os.mkdir(os.path.join(at, sub))
        jobs = os.path.join(at, "jobs")  # as after a boot: the first prolog makes it
        with open(os.path.join(at, "node.yaml"), "w", encoding="utf-8") as f:
            f.write("{name: shared, gpus: [{model: NVIDIA H100 80GB HBM3, memory_mib: 81559, count: 2}]}\n")
        argv = [program("tollgate-exporter"), "--node", "shared", "--listen", f"127.0.0.1:{free_port()}", "--sample-interval", "60s", "--interval", "60s",
                "--status-interval", "10m", "--nvml-library", os.path.join(BUILD, "sim", "libnvidia-ml.so.1"), "--pods-root", os.path.join(at, "pods"),
                "--slurm-map-dir", jobs, "--slurm-map-uid", str(os.geteuid()), "--spool-dir", os.path.join(at, "spool"),
                "--aggregator-url", s.url, "--token-file", s.node_token("shared")]  # fmt: skip
        os.mkdir(jobs, 0o755)
        node = Process(argv, os.path.join(at, "log"), {"TOLLGATE_SIM_SCENARIO": os.path.join(at, "node.yaml")})
        self.addCleanup(node.kill9)

        def held():
            rows = [r for r in s.get("/v1/status").json() if r["node"] == "shared"]
            return [h["slurm_job"] for d in rows[0]["devices"] for h in d["holders"]] if rows else None

        wait_for("the first status", lambda: held() == [], node)
        for job in ("41", "42"):
            with open(os.path.join(jobs, "." + job), "w", encoding="utf-8") as f:
                f.write(f"job={job}\naccount=physics\ngpus={int(job) - 41}\n")
            os.rename(f.name, os.path.join(jobs, job))
            wait_for(f"the status with job {job}", lambda job=job: job in (held() or []), node)
        os.remove(os.path.join(jobs, "41"))
        wait_for("the status without job 41", lambda: held() == ["42"], node)


class Live(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=["--clock-skew-max", "30s"]))
        s.apply(POLICY)
        for node in (*NODES, "new"):
            s.token(f"node {node}", role="node", node=node)
        for tenant in ("acme", "globex"):
            s.token(tenant, role="viewer", tenant=tenant)
        for node in NODES:
            assert s.call("POST", "/v1/ingest", ledger.frames([batch(node)]), role=f"node {node}").status == 200

    def send(self, message, node=None, clock=None):
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        if clock is not None:
            headers["Tollgate-Clock"] = str(clock)
        return self.stack.call("POST", "/v1/status", gzip.compress(json.dumps(message).encode()), f"node {node or message['node']}", headers)

    def say(self, message, **more):
        reply = self.send(message, **more)
        self.assertEqual(reply.status, 200, reply.text())
        return reply.json()

    def seen(self, node, role="admin"):
        rows = [r for r in self.stack.get("/v1/status", role).json() if r["node"] == node]
        return rows[0] if rows else None

    def test_what_a_node_says_is_seen_until_it_says_something_else(self):
        self.say(status("shared", [gpu("shared", 0, [holder("acme", "GPU-shared-0")]), gpu("shared", 1, healthy=False, reason="lost", xid=79)]))
        row = self.seen("shared")
        self.assertEqual((row["gpus"], row["healthy"], row["held"], row["silent"], row["skewed"]), (2, 1, 1, False, False))
        self.assertEqual((row["devices"][1]["reason"], row["devices"][1]["xid"]), ("lost", 79))
        mine = row["devices"][0]["holders"][0]
        self.assertEqual((mine["tenant"], mine["workspace"], mine["pod"], mine["holds"]), ("acme", "training", "acme-0", True))
        self.say(status("shared", boot_ns=2000))
        row = self.seen("shared")
        self.assertEqual((row["gpus"], row["healthy"], row["held"], row["devices"][0]["holders"]), (2, 2, 0, []))

    def test_an_older_message_of_one_boot_never_replaces_a_newer_one_and_another_boot_does(self):
        later = {"boot_id": "abcd0000-0000-0000-0000-000000000002", "boot_ns": 10}
        self.assertTrue(self.say(status("own", boot_ns=5000))["kept"])
        self.assertFalse(self.say(status("own", [], boot_ns=4999))["kept"])
        self.assertEqual(self.seen("own")["gpus"], 2)
        self.assertTrue(self.say(status("own", [gpu("own", 0)], **later))["kept"])
        self.assertEqual(self.seen("own")["gpus"], 1)
        # the clock of the wall decides nothing: a node may set it back
        self.assertTrue(self.say(status("own", boot_ns=11, boot_id=later["boot_id"], wall_ns=1))["kept"])
        self.assertEqual(self.seen("own")["gpus"], 2)

    def test_a_clock_that_is_wrong_is_measured_when_the_message_arrives(self):
        hour = 3600_000_000_000
        self.say(status("other", boot_ns=1), clock=time.time_ns() - hour)
        row = self.seen("other")
        self.assertTrue(row["skewed"])
        self.assertLess(abs(float(row["skew_seconds"]) + 3600), 60)
        self.say(status("other", boot_ns=2, wall_ns=time.time_ns() - hour), clock=time.time_ns())
        self.assertFalse(self.seen("other")["skewed"], "the header is nearer to the moment of sending than the message")
        self.say(status("other", boot_ns=3, wall_ns=time.time_ns() - hour))
        self.assertTrue(self.seen("other")["skewed"], "without the header the message tells")

    def test_a_node_that_was_never_heard_of_is_seen_from_its_first_status(self):
        self.assertIsNone(self.seen("new"))
        self.say(status("new"))
        self.assertEqual(self.seen("new")["gpus"], 2)
        self.assertEqual(self.stack.sql("select count(*) from usage_interval i join node n on n.id = i.node_id where n.name = 'new'"), [["0"]])

    def test_a_node_is_silent_after_three_intervals(self):
        self.say(status("shared", boot_ns=3000, interval_ns=5_000_000_000))
        self.stack.sql("update node_status s set received_at = now() - interval '14 s' from node n where n.id = s.node_id and n.name = 'shared'")
        self.assertFalse(self.stack.sql("select is_silent(now() - interval '14 s', 5000000000)") == [["t"]])
        self.stack.sql("update node_status s set received_at = now() - interval '16 s' from node n where n.id = s.node_id and n.name = 'shared'")
        row = self.seen("shared")
        self.assertTrue(row["silent"])
        self.assertGreaterEqual(row["age_seconds"], 16)
        self.say(status("shared", boot_ns=3001))
        self.assertFalse(self.seen("shared")["silent"])

    def test_what_is_wrong_is_refused_by_name_and_leaves_what_was_there(self):
        self.say(status("shared", boot_ns=4000))
        twice = [gpu("shared", 0), gpu("shared", 0)]
        for message, code, words in ((status("shared", twice), 400, "gpus[1].uuid"), (status("shared", boot_ns=-1), 400, "boot_ns")):
            reply = self.send(message)
            self.assertEqual(reply.status, code)
            self.assertIn(words, reply.json()["detail"])
        reply = self.send(status("shared"), node="own")
        self.assertEqual(reply.status, 403)
        bomb = gzip.compress(b"{" + b" " * (2 << 20))
        self.assertEqual(self.stack.call("POST", "/v1/status", bomb, "node own", {"Content-Encoding": "gzip"}).status, 413)
        self.assertEqual(self.seen("shared")["gpus"], 2)

    def test_a_tenant_sees_its_nodes_and_what_it_is_on_and_nothing_of_others(self):
        both = [gpu("{}", 0, [holder("acme", "GPU-{}-0")]), gpu("{}", 1, [holder("globex", "GPU-{}-1")])]
        for node in NODES:
            self.say(json.loads(json.dumps(status(node, both, boot_ns=9000, boot_id="abcd0000-0000-0000-0000-000000000009")).replace("{}", node)))
        mine = {r["node"]: r for r in self.stack.get("/v1/status", "acme").json()}
        self.assertEqual(set(mine), {"shared", "own", "other"}, "a pod of acme runs on each")
        for node, gpus in (("shared", [0]), ("own", [0, 1]), ("other", [0])):
            self.assertEqual([d["index"] for d in mine[node]["devices"]], gpus, node)
            self.assertEqual((mine[node]["gpus"], mine[node]["held"]), (len(gpus), 1))
            self.assertEqual({h["tenant"] for d in mine[node]["devices"] for h in d["holders"]}, {"acme"})
        self.assertNotIn("globex", json.dumps(mine))
        self.say(status("other", boot_ns=9001, boot_id="abcd0000-0000-0000-0000-000000000009"))
        self.assertIsNone(self.seen("other", "acme"), "nothing of acme is there any more")
        self.assertEqual(self.stack.call("GET", "/v1/status?node=other", role="acme").json(), [])

    def test_capacity_counts_every_gpu_in_service_in_exactly_one_state(self):
        boot = {"boot_id": "abcd0000-0000-0000-0000-00000000000a"}
        states = "select n.name, c.state, count(*) from capacity c join node n on n.id = c.node_id group by 1, 2 order by 1, 2"
        self.say(status("shared", [gpu("shared", 0), gpu("shared", 1, healthy=False)], **boot))
        self.say(status("own", [gpu("own", 0)], **boot))
        self.say(status("other", **boot))
        self.stack.sql("update node_status s set received_at = now() - interval '1 day' from node n where n.id = s.node_id and n.name = 'other'")
        rows = self.stack.sql(states)
        self.assertEqual(rows, [["other", "unknown", "2"], ["own", "healthy", "1"], ["own", "unknown", "1"], ["shared", "down", "1"], ["shared", "healthy", "1"]])
        declare = "update node_state s set state = '{}' from node n where n.id = s.node_id and n.name = 'own'"
        self.addCleanup(self.stack.sql, declare.format("in-service"))
        self.stack.sql(declare.format("maintenance"))
        self.assertIn(["own", "down", "2"], self.stack.sql(states))
        self.stack.sql(declare.format("retired"))
        self.assertNotIn("own", [r[0] for r in self.stack.sql(states)])


class FromANode(unittest.TestCase):
    def test_an_exporter_says_who_holds_what_and_counts_it(self):
        scenario = {
            "name": "live",
            "gpus": [{"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "count": 2}],
            "processes": [{"pid": 4001, "gpu": 0, "sm": 80, "memory_mib": 1024, "pod": {"namespace": "acme", "name": "a"}}],
        }
        with Stack() as s:
            s.apply(POLICY)
            e = s.exporter("shared", scenario, "--status-interval", "1s")
            row = wait_for("live state with whose it is", lambda: next((r for r in s.get("/v1/status").json() if r["held"] and r["devices"][0]["holders"][0]["tenant"]), None), e)
            self.assertEqual((row["node"], row["gpus"], row["healthy"], row["held"], row["silent"]), ("shared", 2, 2, 1, False))
            self.assertEqual(row["devices"][0]["holders"][0]["tenant"], "acme")
            sent = re.compile(r'tollgate_exporter_status_messages_total\{result="sent"\} [1-9]')
            # The page is of the last tick, and the answer may have come after it.
            page = wait_for("a page that counts it", lambda: next((p for p in [stack.request("GET", e.url + "/metrics").text()] if sent.search(p)), None), e)
            self.assertIn("tollgate_exporter_status_last_success_timestamp_seconds ", page)
            self.assertEqual(e.stop(), 0)

    def test_a_ledger_that_is_no_demo_refuses_the_status_of_a_simulator(self):
        with Stack(demo=False) as s:
            s.token("node n", role="node", node="n")
            for simulated, code in ((True, 422), (False, 200)):
                reply = s.call("POST", "/v1/status", json.dumps(status("n", simulated=simulated)).encode(), "node n")
                self.assertEqual(reply.status, code, reply.text())


if __name__ == "__main__":
    unittest.main()
