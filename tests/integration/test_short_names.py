"""What a policy, a decision and an exception call a model, and what a decision reckons that its GPUs will cost."""

import datetime
import json
import re
import unittest

from tests.support.daemons.stack import Stack, wait_for

POLICY = """
version: 1
cluster: c
prices:
  version: "1"
  currency: EUR
  items:
    - {gpu_model: A100-80GB, price: "2.10"}
    - {gpu_model: A100-80GB, mig_profile: 1g.10gb, price: "0.35"}
    - {gpu_model: A100-80GB, mig_profile: 1g.10gb, tenant: initech, price: "0.50"}
    - {price: "1.00"}
    - {meter: inference-input-tokens, per: 1000000, price: "5.00"}
tenants:
  - name: globex
    budget: {amount: "100.00", currency: EUR, kind: hard}
    workspaces: [{name: research, rules: [{namespace: research}]}]
  - name: initech
    budget: {amount: "100.00", currency: EUR, kind: hard}
    workspaces: [{name: lab, limit: "1/4", rules: [{namespace: lab}]}]
  - name: acme
    workspaces: [{name: training, reserved: {H100: 4}, limit: {H100: 5}, rules: [{namespace: training}]}]
nodes:
  - {name: mig, shared: true, model: A100-80GB, mig: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 3}}
  - {name: big, tenant: acme, model: H100-80GB, gpus: 8}
  - {name: small, shared: true, model: L40S, gpus: 1}
  - {name: old, shared: true, model: A100-40GB, gpus: 1}
"""


class ShortNames(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=["--quota-tick", "100ms"]))
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")
        s.token("acme", role="developer", tenant="acme")
        wait_for("the policy in the book", lambda: cls.dry("globex/research", gpu_model="L40S", gpus=1).status == 200, s.aggregator)

    @classmethod
    def dry(cls, workspace, role="scheduler", **more):
        body = {"request_id": "r", "workspace": workspace, **more}
        return cls.stack.call("POST", "/v1/decisions?dry_run=1", json.dumps(body).encode(), role)

    def cost(self, workspace, **more):
        """What the tenant's budget is asked for, and whether it has that."""
        reply = self.dry(workspace, **more)
        self.assertEqual(reply.status, 200, reply.text())
        check = next(c for c in reply.json()["verdict"]["checks"] if c["rule"] == "budget" and c["scope"] == "tenant")
        return check["need"], check["ok"]

    def test_a_decision_reckons_with_the_price_that_the_bill_will_have(self):
        mig = {"gpu_model": "A100-80GB", "profile": "1g.10gb", "expected_duration": "300h"}
        self.assertEqual(self.cost("globex/research", **mig), (105, False), "0.35 for an instance and hour, not its share of 2.10")
        self.assertEqual(self.cost("initech/lab", **mig), (150, False), "its own price")
        self.assertEqual(self.cost("globex/research", **{**mig, "count": 2, "expected_duration": "100h"}), (70, True))
        # 3g.40gb has no price of its own: 2340/5040 of the GPU
        self.assertEqual(self.cost("globex/research", **{**mig, "profile": "3g.40gb", "expected_duration": "100h"}), (97.5, True))
        self.assertEqual(self.cost("globex/research", gpu_model="L40S", gpus=1, expected_duration="101h"), (101, False))

    def limits(self):
        """Of acme/training, by model, whichever pool has them."""
        return {(w["gpu_model"], w["pool"]): w["limit_units"] for w in self.stack.get("/v1/quota").json()["workspaces"] if w["workspace"] == "acme/training"}

    def test_a_limit_that_names_a_family_holds_for_its_only_model(self):
        limits = self.limits()
        self.assertEqual(limits[("H100-80GB", "own")], 5 * 5040, limits)
        self.assertNotIn("H100", [model for model, _ in limits])

    def test_a_decision_that_names_a_family_is_of_its_only_model(self):
        def told(model):
            return self.dry("acme/training", gpu_model=model, gpus=1).json()["verdict"]

        self.assertEqual(told("H100"), told("H100-80GB"))
        body = json.dumps({"request_id": "family", "workspace": "acme/training", "gpu_model": "H100", "gpus": 1}).encode()
        reply = self.stack.call("POST", "/v1/decisions", body, "scheduler")
        self.assertEqual((reply.status, reply.json()["rule"]), (200, self.stack.call("POST", "/v1/decisions", body.replace(b"family", b"exact").replace(b"H100", b"H100-80GB"), "scheduler").json()["rule"]))
        self.assertEqual(self.stack.call("POST", "/v1/decisions", body, "scheduler").json()["seq"], reply.json()["seq"], "asked again it is the same request")
        self.assertIn('"model":"H100-80GB"', self.stack.sql("select event from tollgate.quota_event where event like '%family%'")[0][0])

    def test_a_family_of_two_models_is_refused_and_both_are_named(self):
        for reply in (self.dry("globex/research", gpu_model="A100", gpus=1),
                      self.stack.call("POST", "/v1/decisions", json.dumps({"request_id": "two", "workspace": "globex/research", "gpu_model": "A100", "gpus": 1}).encode(), "scheduler"),
                      self.ask(400, gpu_model="A100")):  # fmt: skip
            self.assertEqual(reply.status, 400, reply.text())
            self.assertEqual(reply.json()["detail"], 'gpu_model: "A100" stands for several models, A100-40GB, A100-80GB: name one of them')
        reply = self.stack.call("PUT", "/v1/policy?dry_run=1", POLICY.replace("limit: {H100: 5}", "limit: {A100: 5}").encode())
        self.assertEqual(reply.status, 400, reply.text())
        self.assertIn('workspace acme/training: limit {A100: 5}: "A100" stands for several models, A100-40GB, A100-80GB', reply.json()["detail"])

    def test_amounts_are_told_in_the_decimals_they_have_and_the_advice_as_it_can_be_typed(self):
        body = {"request_id": "decimals", "workspace": "globex/research", "gpu_model": "A100-80GB", "profile": "1g.10gb", "expected_duration": "29h"}
        made = self.stack.call("POST", "/v1/decisions", json.dumps(body).encode(), "scheduler").text()
        for reply in (made, self.stack.get("/v1/decisions/decimals?tenant=globex").text(), self.stack.cli("quota", "explain", "decimals", "-o", "json").stdout):
            self.assertIn('"requested":10.15', reply)
            self.assertNotRegex(reply, r"\.[0-9]{10,}")
        advice = self.dry("initech/lab", gpu_model="A100-80GB", profile="3g.40gb", count=2).json()["verdict"]["summary"]
        amount = re.search(r"raise the workspace's limit in the shared pool by ([0-9/]+) GPUs.*; an exception can be asked for, with --shared", advice)
        self.assertIsNotNone(amount, advice)
        self.revoke(self.ask(201, workspace="initech/lab", gpu_model="A100-80GB", gpus=amount[1]).json())

    def ask(self, status, role="admin", **more):
        body = {"workspace": "acme/training", "gpus": 1, "gpu_model": "H100", "until": "1h", "reason": "a deadline", **more}
        reply = self.stack.call("POST", "/v1/exceptions", json.dumps(body).encode(), role)
        self.assertEqual(reply.status, status, reply.text())
        return reply

    def revoke(self, row):
        self.stack.call("POST", f"/v1/exceptions/{row['id']}/revoke", b'{"reason": "over"}')

    def test_an_exception_of_a_family_raises_the_limit_of_its_only_model(self):
        row = self.ask(201).json()
        self.addCleanup(self.revoke, row)
        self.assertEqual((row["gpu_model"], row["shared"]), ("H100-80GB", False))
        wait_for("the limit to be raised", lambda: self.limits()[("H100-80GB", "own")] == 6 * 5040, self.stack.aggregator)

    def test_an_exception_of_a_model_that_does_not_exist_is_refused_with_those_that_do(self):
        for role in ("admin", "acme"):
            self.assertEqual(self.ask(400, role, gpu_model="NOSUCH").json()["detail"], 'gpu_model: there is no model "NOSUCH"; there are A100-40GB, A100-80GB, H100-80GB, L40S')

    def test_an_exception_is_of_the_nodes_that_have_the_model_unless_it_says_which(self):
        for asked, shared in (({}, True), ({"shared": True}, True), ({"shared": False}, False)):
            row = self.ask(201, gpu_model="A100-80GB", gpus="2x3g.40gb", **asked).json()
            self.revoke(row)
            self.assertEqual((row["units"], row["shared"]), (2 * 2340, shared), asked)


class Delay(unittest.TestCase):
    def test_a_budget_that_is_spent_stops_new_work_within_a_few_turns_of_the_background(self):
        s = self.enterContext(Stack(options=["--quota-tick", "100ms", "--rollup-interval", "1s"]))
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")

        turns = set()

        def spent():
            turns.add(re.search(r"^tollgate_aggregator_rollup_time_seconds (.+)$", s.get("/metrics").text(), re.MULTILINE)[1])
            return not budget()

        def budget():
            body = {"request_id": "r", "workspace": "globex/research", "gpu_model": "L40S", "gpus": 1}
            reply = s.call("POST", "/v1/decisions?dry_run=1", json.dumps(body).encode(), "scheduler")
            return reply.status == 200 and next(c["ok"] for c in reply.json()["verdict"]["checks"] if c["rule"] == "budget" and c["scope"] == "tenant")

        wait_for("room in the budget", budget, s.aggregator)
        event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "tollgate.inference.v1", "time": datetime.datetime.now(datetime.timezone.utc).isoformat(),
                 "data": {"tenant": "globex", "workspace": "research", "model": "llama", "input_tokens": 1_000_000_000}}  # fmt: skip
        reply = s.call("POST", "/v1/events", json.dumps([event]).encode(), headers={"Content-Type": "application/cloudevents-batch+json"})
        self.assertEqual(reply.json()["events"][0]["status"], "accepted", reply.text())
        wait_for("the budget to be spent", spent, s.aggregator)
        self.assertLess(len(turns), 8)


if __name__ == "__main__":
    unittest.main()
