"""What the agent of a scheduler needs of the API: the age of requests over attempts, leases of several workloads that are kept until the work
starts, adoption of what runs already, and that an agent that is not the leader any more changes nothing."""

import json
import time
import unittest

from tests.support.daemons.stack import Stack, request, wait_for
from tests.support.quota.quotanodes import SHORT, Nodes

POLICY = f"""
version: 1
cluster: c
tenants:
  - name: acme
    workspaces:
      - {{name: prod, reserved: {{{SHORT}: 2}}, enforce: on, rules: [{{namespace: prod}}]}}
      - {{name: dev, reserved: {{{SHORT}: 2}}, enforce: on, rules: [{{namespace: dev}}]}}
  - {{name: globex, workspaces: [{{name: research, enforce: on, rules: [{{namespace: research}}]}}]}}
nodes:
  - {{name: n1, tenant: acme, model: {SHORT}, gpus: 2}}
  - {{name: n2, tenant: acme, model: {SHORT}, gpus: 2}}
  - {{name: n3, tenant: globex, model: {SHORT}, gpus: 2}}
"""
SIZES = {"n1": 2, "n2": 2, "n3": 2}
OPTIONS = ["--quota-tick", "100ms", "--reclaim-grace", "1h", "--borrow-backoff", "0s", "--lease-confirm", "1h", "--lease-silence", "1h"]


def pod(namespace, uid):
    return {"kind": "pod", "namespace": namespace, "pod": f"pod-{uid}", "pod_uid": uid, "container": "main", "user": "", "uid": -1, "replica": -1,
            "allocated": True, "holds": True, "active": True}  # fmt: skip


def rfc3339(seconds_ago):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds_ago))


class AgentApi(unittest.TestCase):
    OPTIONS = OPTIONS

    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=cls.OPTIONS))
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")
        s.token("dev", role="developer", tenant="acme")
        cls.nodes = Nodes(s, SIZES)
        cls.nodes.speak()
        wait_for("six GPUs in the book", lambda: cls.free() == 6 * 5040, s.aggregator)

    @classmethod
    def free(cls):
        return sum(p["free_units"] for p in cls.stack.get("/v1/quota").json()["pools"])

    def call(self, method, path, body=None, role="scheduler", headers=None):
        return self.stack.call(method, path, None if body is None else json.dumps(body).encode(), role, headers)

    def post(self, path, body=None, role="scheduler", status=200, headers=None):
        reply = self.call("POST", path, body if body is not None else {}, role, headers)
        self.assertEqual(reply.status, status, reply.text())
        return reply.json()

    def ask(self, request_id, workspace, gpus, role="scheduler", status=200, **more):
        return self.post("/v1/decisions", {"request_id": request_id, "workspace": workspace, "gpu_model": SHORT, "gpus": gpus, **more}, role, status)

    def state(self, request_id):
        return self.stack.get(f"/v1/decisions/{request_id}").json()["status"]

    def becomes(self, request_id, status):
        wait_for(f"{request_id} {status}", lambda: self.state(request_id) == status, self.stack.aggregator)

    def tearDown(self):
        s = self.stack
        self.nodes.holders = {}
        for request_id, tenant in s.sql("SELECT request_id, split_part(workspace, '/', 1) FROM tollgate.decision WHERE status = 'waiting'"):
            self.assertEqual(self.call("DELETE", f"/v1/decisions/{tenant}/{request_id}").status, 200)
        for request_id, tenant in s.sql("SELECT request_id, split_part(workspace, '/', 1) FROM tollgate.decision WHERE status IN ('admitted', 'confirmed', 'suspect')"):
            self.post(f"/v1/leases/{tenant}/{request_id}/release")
        self.nodes.speak()
        wait_for("everything is free", lambda: self.free() == 6 * 5040, s.aggregator)


class Age(AgentApi):
    def test_a_request_that_is_asked_for_anew_keeps_its_place_in_the_queue(self):
        self.ask("first", "acme/prod", 4)
        self.assertEqual(self.ask("young", "acme/prod", 1)["position"], 1)
        old = self.ask("old", "acme/prod", 1, queued_since=rfc3339(3600))
        self.assertEqual((old["status"], old["position"]), ("waiting", 1))
        self.assertEqual(self.stack.get("/v1/decisions/young").json()["position"], 2)
        # the clock of a scheduler that is ahead wins nothing, and one that is far behind is not refused
        self.assertEqual(self.ask("ahead", "acme/prod", 1, queued_since=rfc3339(-3600))["position"], 3)
        self.assertEqual(self.ask("ancient", "acme/prod", 1, queued_since="1999-01-01T00:00:00Z")["position"], 1)
        again = self.ask("ancient", "acme/prod", 1, queued_since="1999-01-01T00:00:00Z")
        self.assertEqual(again["request"]["queued_since"], "1999-01-01T00:00:00Z")
        self.ask("ancient", "acme/prod", 1, status=409, queued_since="1999-01-02T00:00:00Z")

    def test_a_tenant_cannot_make_its_request_older(self):
        reply = self.ask("mine", "prod", 1, role="dev", status=400, queued_since=rfc3339(3600))
        self.assertEqual(reply["field"], "queued_since")
        self.assertEqual(self.ask("mine", "acme/prod", 1, status=400, queued_since="yesterday")["field"], "queued_since")


class Workloads(AgentApi):
    def on(self, **places):
        """The pods that run from now on: u1=("n1", 0)."""
        self.nodes.holders = {place: [pod("prod", uid) | {"device": self.nodes.uuid(*place)}] for uid, place in places.items()}
        self.nodes.speak()

    def put(self, request_id, workloads, status=200, role="scheduler"):
        reply = self.call("PUT", f"/v1/leases/{request_id}/workloads", {"workloads": workloads}, role)
        self.assertEqual(reply.status, status, reply.text())
        return reply.json()

    def looked_again(self):
        """The loop has looked at what the nodes have said until now."""
        for broken, live in ({("n2", 1)}, 5), (set(), 6):
            self.nodes.broken = broken
            self.nodes.speak()
            wait_for(f"{live} live GPUs", lambda live=live: sum(p["live_units"] for p in self.stack.get("/v1/quota").json()["pools"]) == live * 5040, self.stack.aggregator)

    def test_a_gang_is_one_lease_which_is_seen_by_any_of_its_pods_and_ends_with_the_last(self):
        asked = self.ask("gang", "acme/prod", 2, workloads=["u1", "claim:c1"])
        self.assertEqual(asked["lease"]["workloads"], ["u1", "claim:c1"])
        self.on(u2=("n1", 0))
        self.looked_again()
        self.assertEqual(self.state("gang"), "admitted")
        self.assertEqual(self.put("acme/gang", ["u1", "u2"])["lease"]["workloads"], ["u1", "u2"])  # a late member
        self.on(u2=("n1", 0))
        self.becomes("gang", "confirmed")
        (lease,) = self.stack.get("/v1/leases").json()["leases"]
        self.assertEqual(lease["workloads"], ["u1", "u2"])
        self.post("/v1/leases/gang/drain")
        (order,) = self.stack.get("/v1/reclaims").json()["reclaims"]
        self.assertEqual(order["workloads"], ["u1", "u2"])
        self.assertEqual(self.post("/v1/leases/gang/release")["status"], "confirmed")
        self.assertIn("released", self.put("gang", ["u3"], status=409)["detail"])
        self.on(u1=("n1", 1))
        self.looked_again()
        self.assertEqual(self.state("gang"), "confirmed")
        self.on(u3=("n1", 1))
        self.becomes("gang", "ended")
        self.assertIn("not a lease", self.put("gang", ["u3"], status=409)["detail"])

    def test_a_foreign_node_confirms_no_lease_by_its_workloads(self):
        self.ask("near", "acme/prod", 1, workloads=["u1"])
        self.on(u1=("n3", 0))  # another tenant's
        self.looked_again()
        self.assertEqual(self.state("near"), "admitted")
        self.on(u1=("n2", 0))
        self.becomes("near", "confirmed")

    def test_only_a_scheduler_replaces_them_and_they_are_few_and_short(self):
        self.ask("mine", "prod", 1, role="dev", workloads=["u1"])
        self.put("mine", ["u2"], status=403, role="dev")
        self.assertEqual(self.put("mine", ["slurm:4711", "slurm:4711.2"], role="admin")["lease"]["workloads"], ["slurm:4711", "slurm:4711.2"])
        self.assertEqual(self.put("mine", [])["lease"]["workloads"], [])
        for bad in (["u"] * 65, ["u" * 129], ["slurm:x"], [1], "u1"):
            with self.subTest(bad=bad):
                self.assertEqual(self.put("mine", bad, status=400)["field"], "workloads")
        self.assertEqual(self.call("PUT", "/v1/leases/mine/workloads", {}).json()["field"], "workloads")
        self.assertEqual(self.put("none", ["u1"], status=404)["status"], 404)
        self.assertEqual(self.call("PUT", "/v1/leases/mine/other", {"workloads": []}).status, 404)
        self.ask("waits", "acme/prod", 4)
        self.put("waits", ["u1"], status=409)


class Adoption(AgentApi):
    def adopt(self, request_id, workspace, gpus, status=200, role="scheduler", **more):
        body = {"request_id": request_id, "workspace": workspace, "gpu_model": SHORT, "gpus": gpus, **more}
        return self.post("/v1/adopt", body, role, status)

    def tearDown(self):
        self.stack.apply(POLICY)
        super().tearDown()

    def test_what_runs_already_is_a_confirmed_lease_where_it_runs(self):
        parts = [{"node": "n2", "gpu": "GPU-n2-1", "count": 1}, {"node": "n1"}]
        first = self.adopt("job", "acme/prod", 2, workloads=["slurm:4711"], started=rfc3339(3600), parts=parts)
        self.assertEqual((first["status"], first["decision"], first["lease"]["state"], first["lease"]["workloads"]), ("confirmed", "admit", "confirmed", ["slurm:4711"]))
        self.assertIsNotNone(first["adopted_at"])
        self.assertEqual({n["node"]: n.get("gpus") for n in first["nodes"]}.keys(), {"n1", "n2"})
        again = self.adopt("job", "acme/prod", 2, workloads=["slurm:4711"], started=first["request"]["started"], parts=parts)
        self.assertEqual((again["seq"], again["adopted_at"]), (first["seq"], first["adopted_at"]))
        self.assertIn("request_id", self.adopt("job", "acme/prod", 1, status=409, workloads=["slurm:4711"])["detail"])
        self.assertIsNone(self.ask("asked", "acme/dev", 1)["adopted_at"])
        self.adopt("asked", "acme/dev", 1, status=409)
        self.ask("job", "acme/prod", 2, status=409, workloads=["slurm:4711"])
        (job,) = [x for x in self.stack.get("/v1/leases").json()["leases"] if x["request_id"] == "job"]
        self.assertEqual(job["adopted_at"], first["adopted_at"])

    def test_what_is_too_much_is_excess_and_nobody_gives_way(self):
        self.ask("mine", "acme/dev", 2)
        for i in range(3):
            self.adopt(f"more{i}", "acme/prod", 1, parts=[{"node": "n1", "gpu": "GPU-n1-0"}])
        self.adopt("elsewhere", "acme/prod", 2, parts=[{"node": "unknown", "count": 2}])
        pools = {p["tenant"]: p for p in self.stack.get("/v1/quota").json()["pools"]}
        self.assertGreater(pools["acme"]["excess_units"], 0)
        self.assertEqual(self.stack.get("/v1/reclaims").json()["reclaims"], [])
        differences = self.stack.get("/v1/audit/differences").json()["differences"]
        self.assertEqual([d for d in differences if d["kind"].startswith("quota")], [])

    def test_what_cannot_be_adopted_is_named(self):
        bad = {"parts": [{"parts": {}}, {"parts": [{}]}, {"parts": [{"node": "n1", "count": 0}]}, {"parts": [{"node": "n1", "count": 3}]}, {"parts": [{"node": "n1", "gpu": 0}]}],
               "started": [{"started": "yesterday"}, {"started": 7}]}  # fmt: skip
        for field, changes in bad.items():
            for change in changes:
                with self.subTest(change=change):
                    self.assertEqual(self.adopt("bad", "acme/prod", 2, status=400, **change)["field"], field)
        self.adopt("bad", "acme/none", 1, status=404)
        self.assertEqual(self.post("/v1/adopt", {"request_id": "bad", "workspace": "acme/prod", "gpu_model": "H200", "gpus": 1}, status=400)["status"], 400)
        self.adopt("bad", "acme/prod", 1, status=403, role="dev")
        self.assertEqual(self.call("PUT", "/v1/adoption", {"cluster": "c", "complete": True}, role="dev").status, 403)
        self.assertEqual(self.call("PUT", "/v1/adoption", {"cluster": "none", "complete": True}).status, 404)
        self.assertEqual(self.call("PUT", "/v1/adoption", {"cluster": "c", "complete": 1}).json()["field"], "complete")
        self.assertEqual(self.call("GET", "/v1/decisions/bad").status, 404)

    def test_a_switch_of_enforcement_waits_until_adoption_is_complete(self):
        def said(complete):
            reply = self.call("PUT", "/v1/adoption", {"cluster": "c", "complete": complete})
            self.assertEqual(reply.status, 200, reply.text())
            return reply.json()

        self.stack.apply(POLICY.replace("enforce: on", "enforce: off"))
        self.assertEqual(said(False)["complete"], False)
        self.stack.apply(POLICY)
        self.assertEqual(self.ask("early", "globex/research", 50)["status"], "admitted")
        self.assertEqual(self.stack.get("/v1/adoption").json()["adoptions"], [{"cluster": "c", "complete": False, "switched_at": None}])
        self.assertIsNotNone(said(True)["switched_at"])
        self.assertEqual(self.ask("late", "globex/research", 50)["status"], "rejected")


class Admit(AgentApi):
    def admit(self, request_id, gpus=1, role="scheduler", path="/v1/admit", **more):
        body = {"request_id": request_id, "gpu_model": SHORT, "gpus": gpus, **({"workspace": "acme/prod"} | more)}
        return self.call("POST", path, {k: v for k, v in body.items() if v is not None}, role)

    def test_the_status_is_the_answer_and_asking_again_advances(self):
        for _ in range(2):
            run = self.admit("run", 4)
            self.assertEqual((run.status, run.json()["lease"]["id"]), (200, "run"))
        for _ in range(2):
            wait = self.admit("wait")
            self.assertEqual((wait.status, wait.headers["Location"], wait.json()["status"]), (202, "/v1/decisions/acme/wait", "waiting"))
            self.assertGreater(int(wait.headers["Retry-After"]), 0)
        self.assertEqual(self.call("GET", wait.headers["Location"]).json()["position"], 1)
        for _ in range(2):
            never = self.admit("never", 99)
            self.assertEqual((never.status, never.headers["Content-Type"], never.json()["status"]), (403, "application/problem+json", 403))
            self.assertEqual(never.json()["decision"]["status"], "rejected")
            self.assertTrue([c for c in never.json()["decision"]["checks"] if not c["ok"]])
        self.post("/v1/leases/run/release")
        self.nodes.speak()
        wait_for("its turn", lambda: self.admit("wait").status == 200, self.stack.aggregator)
        self.assertIn("over", self.admit("run", 4).json()["detail"])
        self.assertEqual((self.admit("run", 4).status, self.admit("wait", 2).status), (409, 409))

    def test_it_is_asked_by_workload_and_by_tenants_for_their_own(self):
        reply = self.admit("by-workload", workspace=None, workload={"namespace": "dev", "pod_uid": "u9"})
        self.assertEqual((reply.status, reply.json()["workspace"]), (200, "acme/dev"))
        self.assertEqual(self.admit("own", role="dev", workspace="prod").status, 200)
        self.assertEqual(self.admit("others", role="dev", workspace="globex/research").status, 404)
        self.assertEqual(self.admit("bad", 0).json()["field"], "gpus")
        self.assertEqual(self.admit("one", 3, path="/v1/admit?wait=1ms").status, 202)


class Leader(AgentApi):
    def lead(self):
        return self.post("/v1/agents", {"cluster": "c"}, status=201)["epoch"]

    @staticmethod
    def headers(epoch, cluster="c"):
        return {"Tollgate-Agent": cluster, "Tollgate-Epoch": str(epoch)}

    def body(self, request_id):
        return {"request_id": request_id, "workspace": "acme/prod", "gpu_model": SHORT, "gpus": 1}

    def stored(self):
        return int(self.stack.sql("SELECT epoch FROM tollgate.agent_leader WHERE cluster = 'c'")[0][0])

    def test_an_agent_that_is_not_the_leader_any_more_changes_nothing(self):
        old = self.lead()
        self.assertEqual(self.post("/v1/decisions", self.body("old"), headers=self.headers(old))["status"], "admitted")
        self.ask("reclaimed", "acme/dev", 1)
        self.post("/v1/leases/reclaimed/drain")
        (order,) = self.stack.get("/v1/reclaims").json()["reclaims"]
        self.assertEqual(self.post("/v1/decisions", {**self.body("waits"), "gpus": 4})["status"], "waiting")
        new = self.lead()
        self.assertEqual(new, old + 1)
        before = self.stack.get("/v1/decisions/old").json()["seq"]
        calls = [("POST", "/v1/decisions", self.body("late")), ("POST", "/v1/decisions", self.body("old")), ("DELETE", "/v1/decisions/waits", None),
                 ("PUT", "/v1/leases/old/workloads", {"workloads": ["u1"]}), ("POST", "/v1/adopt", self.body("runs")),
                 ("PUT", "/v1/adoption", {"cluster": "c", "complete": False}), ("POST", f"/v1/reclaims/{order['id']}/ack", {}),
                 *(("POST", f"/v1/leases/old/{word}", {}) for word in ("confirm", "heartbeat", "renew", "drain", "release"))]  # fmt: skip
        for method, path, body in calls:
            with self.subTest(method=method, path=path):
                reply = self.call(method, path, body, headers=self.headers(old))
                self.assertEqual(reply.status, 409, reply.text())
                self.assertIn(f"Tollgate-Epoch: {old} of the agent of cluster \"c\" is over: epoch {new} leads", reply.json()["detail"])
        self.assertEqual(self.stack.get("/v1/decisions/old").json()["seq"], before)
        for request_id in ("late", "runs"):
            self.assertEqual(self.call("GET", f"/v1/decisions/{request_id}").status, 404)
        self.assertEqual((self.state("waits"), self.stack.get("/v1/adoption").json()["adoptions"]), ("waiting", []))
        self.assertEqual(self.stack.get("/v1/decisions/old").json()["lease"]["workloads"], [])
        self.assertEqual(self.post("/v1/leases/old/confirm", headers=self.headers(new))["status"], "confirmed")
        self.post("/v1/leases/old/heartbeat")  # a scheduler without agents says no epoch

    def test_a_larger_epoch_is_remembered_whoever_gave_it_and_also_by_another_replica(self):
        far = self.lead() + 100
        self.assertEqual(self.post("/v1/decisions", self.body("far"), headers=self.headers(far))["status"], "admitted")
        self.assertEqual(self.stored(), far)
        other = self.stack.replica()
        self.addCleanup(other.stop)
        for path, epoch, status in (("heartbeat", far - 1, 409), ("confirm", far, 200), ("heartbeat", far + 1, 200), ("heartbeat", far, 409)):
            reply = request("POST", f"http://127.0.0.1:{other.port}/v1/leases/far/{path}", b"{}", self.stack.tokens["scheduler"], self.headers(epoch))
            self.assertEqual(reply.status, status, reply.text())
        self.assertEqual(self.post("/v1/leases/far/heartbeat", headers=self.headers(far), status=409)["status"], 409)
        self.assertEqual(self.lead(), far + 2)
        for change in ("DELETE FROM tollgate.agent_leader", "UPDATE tollgate.agent_leader SET epoch = 1"):
            with self.assertRaises(RuntimeError):
                self.stack.sql(change)

    def test_who_says_half_of_it_or_nonsense_is_refused(self):
        for headers in ({"Tollgate-Agent": "c"}, {"Tollgate-Epoch": "1"}, self.headers(0), self.headers("x"), self.headers(10**16), self.headers(1, "c" * 64)):
            with self.subTest(headers=headers):
                self.assertEqual(self.call("POST", "/v1/decisions", self.body("half"), headers=headers).status, 400)
        self.assertEqual(self.call("POST", "/v1/decisions", self.body("half"), headers=self.headers(1, "none")).status, 404)
        self.assertEqual(self.call("POST", "/v1/decisions", {**self.body("half"), "workspace": "prod"}, role="dev", headers=self.headers(1)).status, 400)
        self.assertEqual(self.call("POST", "/v1/agents", {"cluster": "c"}, role="dev").status, 403)
        self.assertEqual(self.call("POST", "/v1/agents", {"cluster": "none"}).status, 404)
        self.assertEqual(self.call("POST", "/v1/agents", {}).status, 400)
        self.assertEqual(self.call("GET", "/v1/decisions/half").status, 404)


class Renewal(AgentApi):
    OPTIONS = [*OPTIONS, "--lease-confirm", "2s"]

    def logged(self, like):
        """When an event or a notice was logged last, by the book's time."""
        found = self.stack.sql(f"SELECT max(at_ns) FROM tollgate.quota_event WHERE event LIKE '{like}' OR outcome LIKE '{like}'")[0][0]
        return int(found or 0)

    def test_an_unconfirmed_lease_stays_while_its_scheduler_renews_it(self):
        for request_id in ("kept", "left"):
            self.assertEqual(self.ask(request_id, "acme/prod", 1)["status"], "admitted")
        wait_for("the end of the one that is not renewed", lambda: self.call("POST", "/v1/leases/acme/kept/renew", {}).status == 409 or self.state("left") == "ended")
        self.becomes("kept", "ended")
        self.assertEqual(self.stack.get("/v1/decisions/kept").json()["ended_why"], "unconfirmed")
        renewed, expired = self.logged('{"renew":["acme/kept"]}'), self.logged('%"lease expired","id":"acme/kept"%')
        self.assertGreaterEqual(expired - renewed, 2_000_000_000)
        self.assertGreater(renewed, self.logged('%"lease expired","id":"acme/left"%') - 2_000_000_000)
        self.assertIn("not a lease that runs", self.post("/v1/leases/kept/renew", status=409)["detail"])

    def test_only_schedulers_and_operators_renew(self):
        self.ask("theirs", "acme/prod", 1)
        self.assertIn("developer", self.post("/v1/leases/theirs/renew", role="dev", status=403)["detail"])
        self.assertEqual(self.post("/v1/leases/theirs/renew", role="admin")["status"], "admitted")
        self.post("/v1/leases/theirs/confirm")
        self.assertEqual(self.post("/v1/leases/theirs/renew")["status"], "confirmed")
        self.post("/v1/leases/none/renew", status=404)


if __name__ == "__main__":
    unittest.main()
