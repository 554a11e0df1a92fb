"""Budgets; one-off charges and credits: who may enter them, who must agree, and what the month's report says of them."""

import csv
import io
import json
import re
import unittest
from decimal import Decimal

from tests.support.stack import Stack, wait_for

POLICY = """
version: 1
cluster: test
tenants:
  - {name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}
  - {name: globex, workspaces: [{name: research, rules: [{namespace: globex}]}]}
nodes: [{name: n1, shared: true}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack())
        s.apply(POLICY)
        s.token("billing", role="billing")
        s.token("second", role="billing")
        s.token("acme", role="viewer", tenant="acme")
        s.token("globex", role="viewer", tenant="globex")
        s.sql("select make_periods(now() - interval '70 days', now() + interval '1 second')")
        cls.months = [m["month"] for m in sorted(s.get("/v1/periods").json(), key=lambda m: m["month"])]

    def post(self, path, by="admin", /, **what):
        return self.stack.call("POST", path, json.dumps(what).encode(), role=by)

    def enter(self, by="admin", /, **what):
        what = {"tenant": "acme", "amount": "12.50", "currency": "EUR", "reason": "a test", **what}
        return self.post("/v1/adjustments", by, **what)

    def entered(self, by="admin", /, **what):
        reply = self.enter(by, **what)
        self.assertEqual(reply.status, 201, reply.text())
        return reply.json()

    def refused(self, reply, status, *words):
        self.assertEqual(reply.status, status, reply.text())
        for word in words:
            self.assertIn(word, reply.json()["detail"])

    def listed(self, role="admin", query="limit=1000"):
        return {a["id"]: a for a in self.stack.get("/v1/adjustments?" + query, role).json()["adjustments"]}

    def audited(self, action):
        return self.stack.get(f"/v1/audit?action={action}&limit=1").json()["entries"][0]


class Entered(Case):
    def test_what_an_administrator_enters_counts_at_once_and_is_in_the_log(self):
        row = self.entered(workspace="training", amount="-7", category="gpu", reason="node lost")
        self.assertEqual(
            {k: row[k] for k in ("tenant", "workspace", "period", "amount", "currency", "category", "reason", "status")},
            {"tenant": "acme", "workspace": "training", "period": self.months[-1], "amount": "-7.00", "currency": "EUR", "category": "gpu",
             "reason": "node lost", "status": "approved"},
        )  # fmt: skip
        self.assertEqual(row["requested_by"], row["approved_by"])
        entry = self.audited("credit.add")
        self.assertEqual((entry["tenant"], entry["reason"], entry["after"]["amount"]), ("acme", "node lost", "-7.00"))

    def test_what_billing_enters_counts_when_somebody_else_agrees(self):
        row = self.entered("billing")
        self.assertEqual((row["status"], row["approved_by"]), ("requested", None))
        self.assertNotIn(row["id"], self.listed("acme"), "what nobody agreed to is not the tenant's business")
        path = f"/v1/adjustments/{row['id']}/approve"
        self.refused(self.post(path, "billing", reason="mine"), 403, "somebody else has to agree")
        approved = self.post(path, "second", reason="seen").json()
        self.assertEqual(approved["status"], "approved")
        self.assertNotEqual(approved["approved_by"], approved["requested_by"])
        self.assertEqual(self.post(path, "admin", reason="again").json(), approved)
        self.assertIn(row["id"], self.listed("acme"))
        self.assertNotIn(row["id"], self.listed("globex"))
        self.assertEqual(self.audited("credit.approve")["reason"], "seen")

    def test_what_is_wrong_is_said(self):
        self.refused(self.enter(tenant="nobody"), 404, 'no tenant "nobody"')
        self.refused(self.enter(workspace="research"), 404, 'no workspace "research"')
        self.refused(self.enter(period="1999-01"), 404, "1999-01")
        self.refused(self.enter(period="a month"), 404, "a month")
        self.refused(self.enter(amount="0.00"), 400, "amount")
        self.refused(self.enter(amount="0.001"), 400, "amount")
        self.refused(self.enter(amount="1e3"), 400, "amount")
        self.refused(self.enter(amount="1" + "0" * 16), 400, "amount")
        self.refused(self.enter(currency="XYZ1"), 400, "currency")
        self.refused(self.enter(category="tips"), 400, "category")
        self.refused(self.enter(reason=""), 400, "reason")
        self.refused(self.enter(reason="x\n"), 400, "reason")
        self.refused(self.post("/v1/adjustments/1/burn", reason="x"), 404, "approved or reversed")
        self.refused(self.post("/v1/adjustments/999999/approve", reason="x"), 404, "999999")

    def test_rows_are_never_changed(self):
        self.entered()
        for statement in ("update adjustment set amount = 1", "delete from adjustment", "truncate adjustment cascade",
                          "update adjustment_approval set approved_by = 'x'", "delete from adjustment_approval"):  # fmt: skip
            with self.assertRaises(Exception, msg=statement) as refused:
                self.stack.sql(statement)
            self.assertIn("never changed", str(refused.exception) + str(getattr(refused.exception, "stderr", "")))

    def test_nothing_enters_a_closed_month(self):
        month = self.months[0]
        waiting, there = self.entered("billing", period=month), self.entered(period=month)
        # Closed by hand, past the rules of closing: what is asked here is what comes after.
        self.stack.sql(f"set session_replication_role = replica; update period set status = 'closed', closed_at = now() where month = '{month}'")
        self.refused(self.enter(period=month), 409, "closed")
        self.refused(self.post(f"/v1/adjustments/{waiting['id']}/approve", reason="late"), 409, "closed")
        self.refused(self.post(f"/v1/adjustments/{there['id']}/reverse", reason="late"), 409, "closed")
        reversal = self.post(f"/v1/adjustments/{there['id']}/reverse", reason="late", period="current").json()
        self.assertEqual((reversal["period"], reversal["amount"], reversal["reverses"]), (self.months[-1], "-12.50", there["id"]))


class Reversed(Case):
    def test_a_reversal_is_a_new_row_and_final(self):
        row = self.entered(amount="30.00", workspace="training")
        reversal = self.post(f"/v1/adjustments/{row['id']}/reverse", reason="wrong tenant").json()
        self.assertEqual((reversal["amount"], reversal["reverses"], reversal["workspace"], reversal["status"]), ("-30.00", row["id"], "training", "approved"))
        now = self.listed()[row["id"]]
        self.assertEqual((now["status"], now["reversed_by"]), ("reversed", reversal["id"]))
        self.refused(self.post(f"/v1/adjustments/{row['id']}/reverse", reason="twice"), 409, "taken back")
        self.refused(self.post(f"/v1/adjustments/{reversal['id']}/reverse", reason="back"), 409, "final")
        self.assertEqual(self.audited("credit.reverse")["reason"], "wrong tenant")

    def test_what_nobody_agreed_to_is_not_reversed(self):
        row = self.entered("billing")
        self.refused(self.post(f"/v1/adjustments/{row['id']}/reverse", reason="no"), 409, "nobody agreed")


class Billed(Case):
    def test_the_report_has_each_that_counts_as_a_line_and_in_its_total(self):
        month = self.months[1]
        self.entered(period=month, amount="25.50", workspace="training", category="support", reason="on-site visit")
        self.entered(period=month, amount="-10.00", reason="=goodwill")
        self.entered("billing", period=month, amount="99.00", reason="nobody agreed")
        self.entered(period=month, amount="1.00", tenant="globex")
        text = self.stack.get(f"/v1/reports/{month}.csv", "acme").text()
        lines = {line["charge_type"]: line for line in csv.DictReader(io.StringIO(text))}
        self.assertEqual(set(lines), {"adjustment", "credit"})
        charge, credit = lines["adjustment"], lines["credit"]
        self.assertEqual((charge["workspace"], charge["category"], charge["billed_cost"]), ("training", "support", "25.50"))
        self.assertEqual((credit["workspace"], credit["category"], credit["billed_cost"]), ("", "other", "-10.00"))
        [total] = self.stack.get(f"/v1/reports/{month}.json", "acme").json()["totals"]
        self.assertEqual(Decimal(total["billed_cost"]), Decimal("15.50"))


class Budgets(Case):
    BUDGETS = POLICY.replace(
        "{name: acme, workspaces: [{name: training,", '{name: acme, budget: {amount: "40.00", currency: EUR, kind: hard}, workspaces: [{name: training, budget: {gpu_hours: 10},'
    )

    def metrics(self, role):
        return self.stack.get("/metrics", role).text()

    def test_a_budget_has_spent_what_the_report_bills_and_says_how_it_foresees(self):
        self.stack.apply(self.BUDGETS)
        self.assertEqual(self.stack.apply(self.BUDGETS)["changes"], 0)
        self.assertEqual(self.stack.sql("select count(*) from budget where upper_inf(effective)"), [["2"]])
        self.entered(amount="20.00", tenant="acme")
        self.entered(amount="9.00", tenant="globex")
        [whole, training] = self.stack.get("/v1/budgets", "acme").json()["budgets"]
        [total] = self.stack.get("/v1/reports/current.json", "acme").json()["totals"]
        self.assertEqual((whole["workspace"], whole["kind"], whole["unit"], whole["limit"]), ("", "hard", "EUR", "40.00"))
        self.assertEqual(whole["consumed"], total["billed_cost"])
        self.assertEqual((whole["ratio"], whole["threshold"], whole["forecast"], whole["forecast_breach"]), ("0.500", 50, "20.00", False))
        self.assertIn(whole["method"], ("pro-rata", "7-day-mean", "none"))
        self.assertEqual((training["workspace"], training["unit"], Decimal(training["limit"]), Decimal(training["consumed"])), ("training", "gpu-hour", 10, 0))
        self.assertEqual(self.stack.get("/v1/budgets", "globex").json()["budgets"], [])
        self.refused(self.stack.call("GET", "/v1/budgets?period=1999-01"), 404, "1999-01")
        table = self.stack.cli("budget", "status").stdout
        for kind, value in (("limit", "40"), ("consumed", "20"), ("forecast", "20")):
            line = f'tollgate_budget{{tenant="acme",kind="{kind}",currency="EUR"}} {value}'
            wait_for(line, lambda want=line: want in self.metrics("acme"), self.stack.aggregator)
        self.assertIn('tollgate_budget_ratio{tenant="acme",currency="EUR"} 0.5', self.metrics("acme"))
        for threshold, reached in (("50", 1), ("80", 0), ("100", 0), ("forecast", 0)):
            self.assertIn(f'tollgate_budget_reached{{tenant="acme",currency="EUR",threshold="{threshold}"}} {reached}', self.metrics("acme"))
        self.assertNotIn("tollgate_budget", re.sub("^#.*$", "", self.metrics("globex"), flags=re.M).replace('family="tollgate_budget"', ""))
        self.assertIn("##########..........", table)
        self.stack.apply(POLICY)
        self.assertEqual(self.stack.get("/v1/budgets").json()["budgets"], [])


class Command(Case):
    def test_the_command_enters_lists_and_reverses(self):
        out = json.loads(self.stack.cli("credit", "add", "--tenant", "acme", "--amount", "-3.00", "--currency", "EUR", "--reason", "sorry", "-o", "json").stdout)
        self.assertEqual((out["amount"], out["status"]), ("-3.00", "approved"))
        self.assertIn("sorry", self.stack.cli("credit", "list", "--tenant", "acme").stdout)
        back = json.loads(self.stack.cli("credit", "reverse", str(out["id"]), "--reason", "after all", "-o", "json").stdout)
        self.assertEqual((back["amount"], back["reverses"]), ("3.00", out["id"]))


if __name__ == "__main__":
    unittest.main()
