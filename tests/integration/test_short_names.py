"""What a policy, a decision and an exception call a model, and what a decision reckons that its GPUs will cost."""

import json
import unittest

from tests.support.stack import Stack, wait_for

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
tenants:
  - name: globex
    budget: {amount: "100.00", currency: EUR, kind: hard}
    workspaces: [{name: research, rules: [{namespace: research}]}]
  - name: initech
    budget: {amount: "100.00", currency: EUR, kind: hard}
    workspaces: [{name: lab, rules: [{namespace: lab}]}]
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


if __name__ == "__main__":
    unittest.main()
