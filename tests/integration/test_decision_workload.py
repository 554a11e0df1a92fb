"""A request that names its workload instead of its workspace: the attribution rules of the ledger say whose it is."""

import json
import os
import random
import re
import time
import unittest

from tests.integration.test_decisions import OPTIONS, SIZES, free_units
from tests.support.daemons.stack import Stack, wait_for
from tests.support.quota.quotanodes import MODEL, SHORT, Nodes
from tests.support.store import ledger
from tests.support.store.locked import Session

POLICY = f"""
version: 1
cluster: c
tenants:
  - name: acme
    workspaces:
      - {{name: prod, reserved: {{{SHORT}: 4}}, enforce: on, rules: [{{namespace: prod}}, {{namespace: "prod-*"}}]}}
      - {{name: ml, enforce: on, rules: [{{labels: {{team: "ml-*"}}, priority: 1}}]}}
      - {{name: batch, enforce: on, rules: [{{slurm_account: physics, user: ann}}, {{slurm_account: physics, group: gpu}}, {{user: "1007"}}]}}
  - name: globex
    workspaces:
      - {{name: research, reserved: {{{SHORT}: 2}}, enforce: on, rules: [{{namespace: research}}, {{slurm_account: chem}}]}}
nodes:
  - {{name: n1, tenant: acme, model: {SHORT}, gpus: 4}}
  - {{name: n2, tenant: acme, model: {SHORT}, gpus: 4}}
  - {{name: n3, tenant: globex, model: {SHORT}, gpus: 2}}
  - {{name: n4, shared: true, model: {SHORT}, gpus: 2}}
"""
SECOND = 1_000_000_000
QUARTER = 900 * SECOND


def ask(request_id, workload, **more):
    return {"request_id": request_id, "workload": workload, "gpu_model": SHORT, "gpus": 1, **more}


class Asked(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=[*OPTIONS, "--lease-confirm", "1h", "--lease-silence", "1h"]))
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")
        s.token("acme", role="developer", tenant="acme")
        s.token("globex", role="developer", tenant="globex")
        cls.nodes = Nodes(s, SIZES)
        cls.nodes.speak()
        wait_for("12 GPUs in the book", lambda: free_units(s) == 12 * 5040, s.aggregator)

    def post(self, body, role="scheduler", query=""):
        return self.stack.call("POST", f"/v1/decisions{query}", json.dumps(body).encode(), role)

    def dry(self, workload, role="scheduler", **more):
        return self.post(ask("dry", workload, **more), role, "?dry_run=1")


class ByWorkload(Asked):
    def test_the_rules_say_whose_it_is(self):
        cases = [
            ({"namespace": "prod"}, "acme/prod"),
            ({"namespace": "prod-7", "labels": {}}, "acme/prod"),
            ({"namespace": "elsewhere", "labels": {"team": "ml-core", "app": "x"}}, "acme/ml"),
            ({"labels": {"team": "ml-core"}}, "acme/ml"),
            ({"namespace": "prod", "labels": {"team": "ml-core"}}, "acme/ml"),  # the lowest priority is asked first
            ({"slurm_account": "physics", "user": "ann"}, "acme/batch"),
            ({"slurm_account": "physics", "user": "bob", "group": "gpu", "slurm_job": "4711"}, "acme/batch"),
            ({"user": "eve", "uid": 1007}, "acme/batch"),
            ({"slurm_account": "chem", "user": "ann"}, "globex/research"),
        ]
        for workload, workspace in cases:
            with self.subTest(workload=workload):
                reply = self.dry(workload)
                self.assertEqual((reply.status, reply.json().get("verdict", {}).get("workspace")), (200, workspace), reply.text())
        self.assertEqual(self.dry({"namespace": "prod"}, "acme").json()["verdict"]["workspace"], "acme/prod")

    def test_the_workspace_is_stored_with_the_decision_and_shown(self):
        workload = {"namespace": "prod", "labels": {"app": "web"}, "pod": "p-1", "pod_uid": "uid-1"}
        said = self.post(ask("stored", workload), "acme").json()
        self.assertEqual((said["tenant"], said["workspace"], said["status"], said["request"]["workload"]), ("acme", "acme/prod", "admitted", workload))
        self.assertEqual(self.stack.sql("SELECT workspace, workload_pod FROM tollgate.decision WHERE request_id = 'stored'"), [["acme/prod", "p-1"]])
        listed = self.stack.get("/v1/decisions?workspace=acme/prod").json()["decisions"]
        self.assertIn("stored", [d["request_id"] for d in listed])
        job = {"slurm_account": "chem", "user": "ann", "slurm_job": "12"}
        self.assertEqual(self.post(ask("stored", job)).json()["workspace"], "globex/research")  # an id is its tenant's
        self.assertEqual(self.stack.get("/v1/decisions/globex/stored").json()["request"]["workload"], job)

    def test_another_tenants_workload_is_answered_like_nobodys(self):
        pairs = [({"namespace": "research"}, {"namespace": "nobodys1"}), ({"slurm_account": "chem"}, {"slurm_account": "nobo"})]
        for theirs, nobodys in pairs:
            for query in ("", "?dry_run=1"):
                with self.subTest(theirs=theirs, query=query):
                    replies = [self.post(ask("other", workload), "acme", query) for workload in (theirs, nobodys)]
                    self.assertEqual([r.status for r in replies], [404, 404])
                    [(name, value)], [other] = theirs.items(), nobodys.values()
                    bare = [re.sub(r'"request_id":"\w+"', "", r.text().replace(v, "-")) for r, v in zip(replies, (value, other), strict=True)]
                    self.assertEqual(*bare)
                    self.assertIn(f'{name} "{value}"'.replace('"', '\\"'), replies[0].text())
                    for word in ("acme", "globex", "prod"):
                        self.assertNotIn(word, replies[0].text())
        self.assertEqual(self.dry({"namespace": "research"}, "globex").status, 200)
        self.assertEqual(self.stack.sql("SELECT count(*) FROM tollgate.decision WHERE request_id = 'other'"), [["0"]])

    def test_rules_on_labels_that_are_asked_first_tell_nothing_of_other_tenants_namespaces(self):
        replies = [self.dry({"namespace": ns, "labels": {"team": "ml-x"}}, "acme") for ns in ("research", "nobodys1")]
        self.assertEqual([r.json()["verdict"]["workspace"] for r in replies], ["acme/ml", "acme/ml"])

    def test_what_is_wrong_is_named(self):
        cases = [
            ({}, "workload"),
            ({"workspace": None}, "workspace"),
            ({"workload": {"namespace": "prod", "labels": {"a": "b"}}, "workspace": "acme/prod"}, "labels says whose it is, and so does workspace"),
            ({"workload": {"pod_uid": "u"}}, "namespace or labels"),
            ({"workload": {"namespace": "prod", "user": "ann"}}, "namespace is of a pod and user of a Slurm job"),
            ({"workload": {"labels": {"team": 1}}}, "labels"),
            ({"workload": {"labels": {f"k{i}": "" for i in range(17)}}}, "there are 17, at most 16"),
            ({"workload": {"labels": {"a b": "c"}}}, "a b"),
            ({"workload": {"user": "ann", "uid": -1}}, "uid"),
            ({"workload": {"user": "x" * 300}}, "user has 1 to 253 bytes"),
            ({"workload": {"colour": "red"}}, "colour"),
            ({"workload": "prod"}, "workload"),
        ]
        for members, text in cases:
            with self.subTest(members=members):
                reply = self.post({"request_id": "wrong", "gpu_model": SHORT, "gpus": 1, **members})
                self.assertEqual(reply.status, 400, reply.text())
                self.assertIn(text, reply.json()["detail"])

    def test_the_command_line_asks_by_workload(self):
        def decide(*words, code=0):
            done = self.stack.cli("quota", "decide", "--gpus", "1", "--dry-run", *words)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            return done.stdout + done.stderr

        self.assertIn(" of acme/ml: ", decide("--namespace", "x", "--labels", "team=ml-1,app=web", "--gpu-model", SHORT))
        self.assertIn(" of acme/batch: ", decide("--slurm-account", "physics", "--user", "ann", "--gpu-model", SHORT))
        self.assertIn("one of the two is needed", decide(code=2))
        self.assertIn("one of the two is needed", decide("acme/prod", "--namespace", "prod", code=2))
        self.assertIn("KEY=VALUE", decide("--labels", "team", code=2))
        self.assertIn('namespace \\"nobodys\\"'.replace("\\", ""), decide("--namespace", "nobodys", code=1))


class Replays(Asked):
    """What was decided stays decided when the rules change, for who asked for it."""

    MOVED = POLICY.replace("{namespace: prod}, ", "").replace("{namespace: research}", "{namespace: research}, {namespace: prod}")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.first = {}
        for role, name in (("scheduler", "again"), ("acme", "mine"), ("acme", "runs"), ("acme", "over"), ("scheduler", "ended")):
            reply = cls.stack.call("POST", "/v1/decisions", json.dumps(ask(name, {"namespace": "prod"}, gpus=2 if name == "over" else 1)).encode(), role)
            cls.first[name] = reply.json()
        for name in ("over", "ended"):
            cls.stack.call("POST", f"/v1/leases/acme/{name}/release", b"{}", "scheduler")
        cls.nodes.speak()
        over = lambda: {cls.stack.get(f"/v1/decisions/acme/{name}").json()["status"] for name in ("over", "ended")} == {"ended"}
        wait_for("the end of two leases", over, cls.stack.aggregator)
        cls.stack.apply(cls.MOVED)

    def test_the_same_request_has_the_same_decision_and_a_new_one_the_new_rules(self):
        for role, name in (("scheduler", "again"), ("acme", "mine")):
            with self.subTest(role=role):
                was, now = self.first[name], self.post(ask(name, {"namespace": "prod"}), role).json()
                self.assertEqual((now["workspace"], now["seq"], now["status"]), ("acme/prod", was["seq"], "admitted"))
        self.assertEqual(self.post(ask("mine", {"namespace": "prod"}, gpus=2), "acme").status, 409)
        self.assertEqual(self.post(ask("fresh", {"namespace": "prod"})).json()["workspace"], "globex/research")
        self.assertEqual(self.post(ask("fresh", {"namespace": "prod"}), "acme").status, 404)
        self.assertEqual(self.stack.sql("SELECT count(*) FROM tollgate.decision WHERE request_id IN ('again', 'mine')"), [["2"]])

    def test_what_a_tenant_asked_for_or_what_is_over_answers_no_schedulers_request_for_another(self):
        for name, gpus in (("runs", 1), ("over", 2), ("ended", 1)):
            with self.subTest(name=name):
                body = ask(name, {"namespace": "prod"}, gpus=gpus)
                said = self.post(body).json()
                self.assertEqual((said["tenant"], said["workspace"]), ("globex", "globex/research"))
                self.assertNotIn(said["status"], ("ended", "cancelled"))
                self.assertEqual((self.post(body).json()["workspace"], self.post(body).json()["submitted_at"]), ("globex/research", said["submitted_at"]))
                self.assertEqual(self.post(body, "acme").json()["submitted_at"], self.first[name]["submitted_at"])

    def test_two_that_run_while_the_rules_name_neither_are_a_conflict(self):
        body = ask("twice", {"namespace": "research"})
        said = [self.post(b).json()["tenant"] for b in (body, ask("twice", {"namespace": "prod-7"}))]
        self.assertEqual(said, ["globex", "acme"])
        # as two replicas leave it that ask at once while a rule moves
        self.stack.sql("SET session_replication_role = replica; UPDATE tollgate.decision d SET digest = g.digest FROM tollgate.decision g WHERE (d.request_id, g.request_id) = ('twice', 'twice') AND g.workspace LIKE 'globex/%'")
        self.assertEqual(self.post(body).json()["tenant"], "globex")
        self.stack.apply(self.MOVED.replace("{namespace: research}, ", ""))
        reply = self.post(body)
        self.assertEqual(reply.status, 409, reply.text())
        self.assertIn("for acme and for globex", reply.json()["detail"])


class RulesKept(unittest.TestCase):
    def test_rules_are_read_once_for_each_version_of_the_policy(self):
        """With one worker: once it has asked, a request needs no rule of the database, and a new policy counts at once."""
        with Stack(options=[*OPTIONS, "--workers-decisions", "1"]) as s:
            s.apply(POLICY)
            s.token("scheduler", role="scheduler")
            dry = lambda ns: s.call("POST", "/v1/decisions?dry_run=1", json.dumps(ask("dry", {"namespace": ns})).encode(), "scheduler")
            whose = lambda ns: dry(ns).json()["verdict"]["workspace"]
            self.assertEqual(whose("prod"), "acme/prod")
            with Session(s.pg) as other:
                other.run("BEGIN")
                other.run("LOCK tollgate.attribution_rule IN ACCESS EXCLUSIVE MODE")
                self.assertEqual([whose("prod"), whose("research"), dry("nobodys").status], ["acme/prod", "globex/research", 404])
                other.run("ROLLBACK")
            s.apply(Replays.MOVED)
            self.assertEqual([whose("prod"), whose("prod-7")], ["globex/research", "acme/prod"])


class SameAsTheLedger(unittest.TestCase):
    """Random rules and holders: what the ledger bills a holder to is what a request that names it is decided for."""

    def random_rule(self, r):
        rule = {}
        while not rule:
            if r.random() < 0.5:
                if r.random() < 0.6:
                    rule["namespace"] = r.choice(["a", "b", "a*", "*", "?"])
                if r.random() < 0.6:
                    rule["labels"] = {k: r.choice(["x", "y", "*", "x*"]) for k in r.sample(["team", "app"], r.randint(1, 2))}
            else:
                for key, values in (("slurm_account", ["p", "q", "*"]), ("user", ["ann", "b*", "1001", "*"]), ("group", ["g", "*"])):
                    if r.random() < 0.5:
                        rule[key] = r.choice(values)
            if r.random() < 0.3:
                rule["cluster"] = r.choice(["c", "d", "*"])
        return {**rule, "priority": r.randint(1, 4)}

    def random_workload(self, r):
        if r.random() < 0.5:
            w = {"namespace": r.choice(["a", "ab", "b", "c"])}
            if r.random() < 0.7:
                w["labels"] = {k: r.choice(["x", "y", "xy", ""]) for k in r.sample(["team", "app"], r.randint(1, 2))}
            return w
        w = {"user": r.choice(["ann", "bob", "eve"])}
        if r.random() < 0.6:
            w["slurm_account"] = r.choice(["p", "q"])
        if r.random() < 0.5:
            w["group"] = r.choice(["g", "h"])
        if r.random() < 0.5:
            w["uid"] = r.choice([1001, 1002])
        return w

    @staticmethod
    def holder(i, w):
        if "namespace" in w:
            labels = ",".join(f"{k}={v}" for k, v in sorted(w.get("labels", {}).items()))
            return {"id": i + 1, "ns": w["namespace"], "pod": f"p{i}", "pod_uid": f"u{i}", "container": "c", "labels": labels}
        return {"id": i + 1, "kind": 2, "slurm_job": str(i), "slurm_account": w.get("slurm_account", ""), "user": w["user"], "uid": w.get("uid", -1), "group": w.get("group", "")}

    def test_random_rules(self):
        seed = int(os.environ.get("SEED", time.time_ns() % 10**9))
        r = random.Random(seed)
        rules, seen = [], set()
        while len(rules) < 24:
            rule = self.random_rule(r)
            key = json.dumps({**rule, "priority": 0}, sort_keys=True)
            if key not in seen:
                rules.append(rule)
            seen.add(key)
        # one of each tenant's is its own whatever is drawn
        workloads = [{"namespace": "of-acme"}, {"namespace": "of-globex"}, *(self.random_workload(r) for _ in range(80))]
        tenants = {t: [{"name": "own", "rules": [{"namespace": f"of-{t}", "priority": 0}]}] + [{"name": f"w{i}", "rules": rules[i : i + 2]} for i in range(12 * n, 12 * n + 12, 2)] for n, t in enumerate(("acme", "globex"))}
        at = time.time_ns() // QUARTER * QUARTER - QUARTER
        batch = {"node": "n1", "boot_id": "00" * 16, "epoch": 1, "seq": 1, "flags": 1, "from_ns": at, "to_ns": at + QUARTER,
                 "devices": [{"id": 1, "uuid": "GPU-1", "model": MODEL, "index": 0}], "holders": [self.holder(i, w) for i, w in enumerate(workloads)],
                 "records": [[1, i + 1, 1, 1, 0, 5040, at + i * SECOND, SECOND, SECOND, 0, SECOND, 0, 0, 0, 1] for i in range(len(workloads))]}  # fmt: skip
        with Stack(options=OPTIONS) as s:
            s.apply(json.dumps({"version": 1, "cluster": "c", "tenants": [{"name": t, "workspaces": w} for t, w in tenants.items()],
                                "nodes": [{"name": "n1", "shared": True, "model": SHORT, "gpus": 1}]}))  # fmt: skip
            s.token("node", role="node", node="n1")
            s.token("scheduler", role="scheduler")
            s.token("acme", role="developer", tenant="acme")
            reply = s.call("POST", "/v1/ingest", ledger.frames([batch]), role="node")
            self.assertEqual(reply.status, 200, reply.text())
            rows = s.sql("SELECT substr(pod_uid, 2) || slurm_job, t.name || '/' || w.name FROM tollgate.holder h JOIN tollgate.holder_attribution a ON a.holder_id = h.id "
                         "AND a.effective @> now() JOIN tollgate.workspace w ON w.id = a.workspace_id JOIN tollgate.tenant t ON t.id = w.tenant_id")  # fmt: skip
            billed = {int(i): path for i, path in rows}
            self.assertEqual(len(billed), len(workloads))
            self.assertEqual((billed[0], billed[1]), ("acme/own", "globex/own"), f"SEED={seed}")
            for i, w in enumerate(workloads):
                with self.subTest(seed=seed, workload=w):
                    want = None if billed[i].startswith("unattributed/") else billed[i]
                    for role in ("scheduler", "acme"):
                        got = s.call("POST", "/v1/decisions?dry_run=1", json.dumps(ask("dry", w)).encode(), role)
                        sees = want is not None and (role == "scheduler" or want.startswith("acme/"))
                        self.assertEqual(got.json().get("verdict", {}).get("workspace") if got.status == 200 else got.status, want if sees else 404, got.text())

