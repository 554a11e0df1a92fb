"""Budgets in tokens: read, measured from events of inference, shown, and heeded by decisions."""

import datetime
import json
import unittest

from tests.support.daemons.stack import Stack, wait_for
from tests.support.quota.quotanodes import SHORT, Nodes

TRILLION = 10**12
POLICY = f"""
version: 1
cluster: c
prices: {{version: "1", currency: EUR, items: [{{meter: inference-input-tokens, per: 1000000, price: "0.50"}}]}}
tenants:
  - name: acme
    budget: {{tokens: {5 * TRILLION}}}
    workspaces:
      - {{name: prod, budget: {{tokens: {2 * TRILLION}, kind: hard}}, rules: [{{namespace: prod}}]}}
      - {{name: dev, rules: [{{namespace: dev}}]}}
  - {{name: globex, workspaces: [{{name: research, rules: [{{namespace: research}}]}}]}}
nodes: [{{name: n1, tenant: acme, model: {SHORT}, gpus: 4}}]
"""


class Tokens(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=["--quota-tick", "100ms", "--rollup-interval", "100ms", "--lease-confirm", "1h"]))
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")
        s.token("acme", role="tenant-admin", tenant="acme")
        s.token("globex", role="viewer", tenant="globex")
        Nodes(s, {"n1": 4}).speak()
        wait_for("four GPUs in the book", lambda: sum(p["free_units"] for p in s.get("/v1/quota").json()["pools"]) == 4 * 5040, s.aggregator)

    def spend(self, number, workspace, **tokens):
        now = datetime.datetime.now(datetime.timezone.utc).isoformat()
        body = {"specversion": "1.0", "id": number, "source": "/s", "type": "tollgate.inference.v1", "time": now,
                "data": {"tenant": "acme", "workspace": workspace, "model": "llama", **tokens}}  # fmt: skip
        reply = self.stack.call("POST", "/v1/events", json.dumps([body]).encode(), headers={"Content-Type": "application/cloudevents-batch+json"})
        self.assertEqual(reply.json()["events"][0]["status"], "accepted", reply.text())

    def budgets(self, role="admin"):
        return {b["workspace"]: b for b in self.stack.get("/v1/budgets", role).json()["budgets"]}

    def dry(self, workspace):
        body = {"request_id": "r", "workspace": f"acme/{workspace}", "gpu_model": SHORT, "gpus": 1}
        verdict = self.stack.call("POST", "/v1/decisions?dry_run=1", json.dumps(body).encode(), "scheduler").json()["verdict"]
        return verdict, {c["scope"]: c for c in verdict["checks"] if c["rule"] == "budget"}

    def test_1_the_policy_says_the_same_when_it_is_shown_and_applied_again(self):
        part = self.stack.get("/v1/policy", "acme").text()
        self.assertIn(f"tokens: {5 * TRILLION}", part.replace('"', ""))
        self.assertEqual(self.stack.call("PUT", "/v1/policy?dry_run=1", part.encode(), "acme").json()["changes"], 0)
        self.assertEqual(self.stack.call("PUT", "/v1/policy?dry_run=1", POLICY.encode()).json()["changes"], 0)

    def test_2_what_events_count_is_measured_shown_and_stops_new_work(self):
        verdict, checks = self.dry("prod")
        self.assertEqual((verdict["would"], checks["workspace"]["have"], checks["workspace"]["unit"], checks["tenant"]["have"]), ("borrow", 2 * TRILLION, "tokens", 5 * TRILLION))
        self.spend("e1", "prod", input_tokens=TRILLION, output_tokens=TRILLION - 1)
        self.spend("e2", "dev", output_tokens=3, requests=7)
        b = self.budgets()
        self.assertEqual((b["prod"]["unit"], b["prod"]["limit"], b["prod"]["consumed"], b["prod"]["threshold"]), ("token", str(2 * TRILLION), str(2 * TRILLION - 1), 80))
        self.assertEqual((b[""]["consumed"], b[""]["ratio"], b[""]["kind"]), (str(2 * TRILLION + 2), "0.400000", "soft"))
        self.assertEqual((set(self.budgets("acme")), self.budgets("globex")), ({"", "prod"}, {}))
        wait_for("the book to know", lambda: self.dry("prod")[1]["workspace"]["leased"] == 2 * TRILLION - 1, self.stack.aggregator)
        self.assertTrue(self.dry("prod")[1]["workspace"]["ok"], "one token is left")
        self.spend("e3", "prod", output_tokens=1)
        wait_for("the budget to be spent", lambda: not self.dry("prod")[1]["workspace"]["ok"], self.stack.aggregator)
        verdict, checks = self.dry("prod")
        self.assertIn(verdict["would"], ("queue", "reject"))
        self.assertIn("raise the workspace's budget by 1 token", verdict["summary"])
        self.assertEqual(self.dry("dev")[0]["would"], "borrow", "the tenant's own has room")
        self.assertIn(str(2 * TRILLION), self.stack.cli("budget", "status").stdout)
        page = self.stack.get("/v1/reports/current.html?tenant=acme").text()
        self.assertRegex(page, r"prod, hard(</div>)?</th><td>tokens</td>")
        gauge = f'tollgate_budget{{tenant="acme",workspace="prod",kind="consumed",currency="token"}} {2 * TRILLION}.'
        wait_for("the gauge", lambda: gauge in self.stack.get("/metrics").text(), self.stack.aggregator)
        self.assertEqual(self.stack.cli("verify").returncode, 0)


if __name__ == "__main__":
    unittest.main()
