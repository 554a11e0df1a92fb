"""A month with 10^12 tokens on one line, 10^4 SKUs, books in JPY and KWD, and one line that cannot be rated: it is billed, closed, proved and exported in every format."""

import csv
import datetime
import io
import json
import unittest
from decimal import Decimal

from tests.integration.test_sums import BEFORE, CLOSED, MONTH, START, ZONE, rfc3339
from tests.support.billing import csv_check, focus_check
from tests.support.daemons.stack import Stack, wait_for
from tests.support.fleet.fleet import HOUR, NS

TRILLION = 10**12
SKUS = 10_000
FIRST_DAY, TURN = (int((BEFORE + datetime.timedelta(days=d)).timestamp()) * NS for d in (20, 24))  # of the events; the book in KWD begins at the second
POLICY = """
version: 1
cluster: test
effective: {effective}
tenants:
  - {{name: acme, workspaces: [{{name: ml}}]}}
  - {{name: many, workspaces: [{{name: shop}}]}}
  - {{name: wild, workspaces: [{{name: west}}]}}
prices:
  version: "{currency}"
  currency: {currency}
  items:
    - {{meter: inference-output-tokens, price: "0.15", per: 1000000}}
    - {{meter: inference-output-tokens, price: "0.0001", per: 1000, tenant: many}}
    - {{meter: inference-input-tokens, price: "0.000012345", per: 1000000}}
    - {{meter: storage, price: "0.5"}}
    - {{meter: egress, price: "100000"}}
"""
FORMATS = ("csv", "json", "focus.csv", "focus-periods.csv", "html")


def event(number, kind, at, tenant, workspace, **data):
    return {"specversion": "1.0", "id": str(number), "source": "/large", "type": f"tollgate.{kind}.v1", "time": rfc3339(at), "data": {"tenant": tenant, "workspace": workspace, **data}}


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


class LargeAmounts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = s = cls.enterClassContext(Stack(zone=ZONE, options=["--rollup-interval", "100ms", "--metrics-refresh", "1s"]))
        s.apply(POLICY.format(effective=rfc3339(int(BEFORE.timestamp()) * NS), currency="JPY"))
        s.apply(POLICY.format(effective=rfc3339(TURN), currency="KWD"))
        for tenant in ("acme", "many", "wild"):
            s.token(tenant, role="tenant-admin", tenant=tenant)
        cls.post([event(f"t{i}", "inference", at, "acme", "ml", model="large", sku="large", output_tokens=TRILLION + i) for i, at in enumerate((FIRST_DAY, TURN + HOUR))])
        cls.post([event("s", "storage", FIRST_DAY, "acme", "ml", gb_hours="3")])
        for first in range(0, SKUS, 5000):
            cls.post([event(f"k{i}", "storage", TURN + HOUR, "many", "shop", sku=f"sku-{i}", gb_hours="0.001") for i in range(first, first + 5000)])
        cls.post([event("o", "inference", TURN + HOUR, "many", "shop", model="m", sku="sku-0", output_tokens=30_000_000, input_tokens=2_000_000)])
        # 9 x 10^19 of a currency: no bill holds it. What else the tenant had is billed.
        cls.post([event("w", "egress", FIRST_DAY, "wild", "west", gb="1"), event("v", "storage", FIRST_DAY, "wild", "west", gb_hours="10")])

        cls.beyond("w")

    @classmethod
    def beyond(cls, like):
        """As a ledger may have it from before there was a limit: no sender is allowed so much any more."""
        cls.s.sql("insert into meter_event (token_id, source_id, id, type, time_ns, workspace_id, sku, amount, model, caller, server, digest) select token_id, source_id, "
                  f"id || '-more', type, time_ns, workspace_id, sku, 899999999999999, '', '', '', digest from meter_event where id = '{like}'")  # fmt: skip

    @classmethod
    def post(cls, events):
        reply = cls.s.call("POST", "/v1/events", json.dumps(events).encode(), headers={"Content-Type": "application/cloudevents-batch+json"})
        assert reply.status == 200 and reply.json()["accepted"] == len(events), reply.text()[:300]

    def report(self, suffix, month=CLOSED, role="admin", **query):
        asked = "&".join(f"{k}={v}" for k, v in query.items())
        return self.s.get(f"/v1/reports/{month}.{suffix}?{asked}", role).body.decode()

    def check_documents(self, status):
        text = self.report("csv")
        rows = rows_of(text)
        self.assertLessEqual({r["period_status"] for r in rows}, status)
        self.assertEqual(csv_check.check(text, json.loads(self.report("csv", manifest=1))), [])
        tokens = {r["currency"]: r for r in rows if r["tenant"] == "acme" and r["sku"] == "large"}
        for currency, amount, billed in (("JPY", TRILLION, "150000"), ("KWD", TRILLION + 1, "150000.000")):
            line = tokens[currency]
            self.assertEqual((Decimal(line["quantity"]) * 10**6, line["unit"], Decimal(line["unit_price"])), (amount, "1000000 tokens", Decimal("0.15")))
            self.assertEqual(Decimal(line["list_cost"]), Decimal(amount) * Decimal("0.00000015"), line)
            self.assertEqual(line["billed_cost"], billed)
        self.assertEqual(sum(r["tenant"] == "many" and r["category"] == "storage" for r in rows), SKUS)
        # Its own price is for thousands, the public one for millions: list price and list cost are the public ones.
        [own] = [r for r in rows if r["tenant"] == "many" and r["category"] == "inference" and r["unit_price"] == "0.150"]
        self.assertEqual((own["quantity"], own["unit"], Decimal(own["list_cost"]), Decimal(own["discount"])), ("30.000000000", "1000000 tokens", Decimal("4.5"), Decimal("1.5")))
        self.assertIn("own price: 30000 x 0.0001 per 1000 tokens", own["description"])
        # 0.000012345 for a million has no price for one in nine decimals, and is exact.
        [fine] = [r for r in rows if r["tenant"] == "many" and r["category"] == "inference" and r["unit_price"] != "0.150"]
        self.assertEqual((Decimal(fine["list_cost"]), fine["quantity"]), (Decimal("0.000012345") * 2, "2.000000000"))
        due = {}
        for r in rows:
            due[r["invoice_id"], r["currency"]] = due.get((r["invoice_id"], r["currency"]), 0) + Decimal(r["billed_cost"])
        self.assertEqual({k: str(v) for k, v in due.items() if k[0].startswith("many")}, {(f"many-{CLOSED}-1", "KWD"): "8.000"})
        unrated = [r for r in rows if "not rated" in r["description"]]
        self.assertEqual([(r["tenant"], r["unit_price"], r["billed_cost"], Decimal(r["quantity"])) for r in unrated], [("wild", "", "0", Decimal("900000000000000"))])
        self.assertIn("beyond 10^18 JPY", unrated[0]["description"])
        self.assertEqual({k: str(v) for k, v in due.items() if k[0].startswith("wild")}, {(f"wild-{CLOSED}-1", "JPY"): "5"})
        text = self.report("focus.csv")
        self.assertEqual(focus_check.check(text), [])
        focus = rows_of(text)
        for currency, amount in (("JPY", TRILLION), ("KWD", TRILLION + 1)):
            [row] = [r for r in focus if r["SubAccountId"] == "acme" and r["BillingCurrency"] == currency and "large" in r["ChargeDescription"]]
            self.assertEqual((row["PricingUnit"], row["ConsumedUnit"], Decimal(row["ListUnitPrice"])), ("1000000 Tokens", "1000000 Tokens", Decimal("0.15")))
            for cost, price in (("ListCost", "ListUnitPrice"), ("ContractedCost", "ContractedUnitPrice")):
                self.assertEqual(Decimal(row[cost]), Decimal(amount) * Decimal("0.00000015"))
                self.assertEqual(Decimal(row[price]) * Decimal(row["PricingQuantity"]), Decimal(row[cost]))
        self.assertEqual(sum(r["SubAccountId"] == "many" for r in focus), SKUS + 2)
        doc = json.loads(self.report("json"))
        self.assertEqual(len(doc["lines"]), len(rows))
        self.assertEqual({(t["invoice_id"], t["currency"]): Decimal(t["billed_cost"]) for t in doc["totals"]}, due)
        page = self.report("html", tenant="acme")
        self.assertRegex(page, r"150[,.' \u202f\u00a0]?000")
        for suffix in FORMATS:
            self.assertGreater(len(self.report(suffix)), 100)

    def test_the_month_is_billed_closed_proved_and_exported(self):
        s = self.s
        self.check_documents({"open", "grace"})
        self.assertEqual(self.report("csv", role="acme").count("\n"), 4)
        self.assertEqual(s.get("/metrics").status, 200)
        checks = {c["check"]: c for c in s.get(f"/v1/periods/{CLOSED}/check").json()["checks"]}
        self.assertEqual((checks["unrated"]["number"], checks["unrated"]["final"]), (1, False))
        self.assertRegex(checks["unrated"]["meaning"], "line [0-9a-f]{32} of tenant wild, standard")
        without = s.call("POST", f"/v1/periods/{CLOSED}/close", b"{}")
        self.assertEqual(without.status, 409)
        self.assertRegex(without.json()["detail"], "unrated is 1 .*of tenant wild")
        self.assertEqual(s.close_month(CLOSED, reason="the egress of wild is disputed")["state"], "closed")
        self.check_documents({"closed"})
        proof = s.get(f"/v1/periods/{CLOSED}/recompute").json()
        self.assertEqual((proof["identical"], proof["differences"]), (True, []))
        verified = s.cli("-o", "json", "verify", "--month", CLOSED)
        self.assertEqual(json.loads(verified.stdout)["differences"], [], verified.stderr)
        # A trillion more comes late: the next month corrects it.
        self.post([event("late", "inference", FIRST_DAY, "acme", "ml", model="large", sku="large", output_tokens=TRILLION), event("now", "storage", START, "acme", "ml", gb_hours=1)])
        [line] = [r for r in rows_of(self.report("csv", MONTH)) if r["correction_of"]]
        self.assertEqual((line["billed_cost"], Decimal(line["list_cost"])), ("150000", Decimal(150000)))
        # One of the month that is open is on the operator's page of metrics, and on no tenant's.
        self.post([event("again", "egress", START, "wild", "west", gb="1")])
        self.beyond("again")
        wait_for("the line that cannot be rated", lambda: "\ntollgate_period_unrated_lines 1\n" in s.get("/metrics").text(), s.aggregator)
        self.assertNotIn("unrated", s.get("/metrics", "wild").text())

    def test_an_event_beyond_its_limit_is_refused_with_field_value_and_limit(self):
        reply = self.s.call("POST", "/v1/events", json.dumps(event("x", "storage", FIRST_DAY, "acme", "ml", gb_hours=10**15)).encode(), headers={"Content-Type": "application/cloudevents+json"})
        self.assertEqual((reply.status, reply.json()["field"]), (400, "data.gb_hours"))
        self.assertRegex(reply.json()["detail"], r"data\.gb_hours is 1000000000000000: .*below 10\^15")


if __name__ == "__main__":
    unittest.main()
