"""A line whose cost no bill can hold: it gives nothing back, it defeats no budget, and it hurts nobody else."""

import csv
import datetime
import io
import json
import unittest

from tests.support.stack import Stack, wait_for

NOW = datetime.datetime.now(datetime.timezone.utc)
OPEN = NOW.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
LAST = (OPEN - datetime.timedelta(days=1)).replace(day=1)
FIRST = (LAST - datetime.timedelta(days=1)).replace(day=1)
POLICY = f"""
version: 1
cluster: c
effective: {FIRST:%Y-%m-%dT%H:%M:%SZ}
tenants:
  - name: wild
    budget: {{amount: "1000", currency: EUR, kind: hard}}
    workspaces: [{{name: w}}, {{name: x}}]
  - {{name: good, workspaces: [{{name: w}}]}}
prices:
  version: v1
  currency: EUR
  items:
    - {{meter: storage, price: "0.10"}}
    - {{meter: support, price: "100"}}
    - {{meter: inference-output-tokens, price: "0.60", per: 1000000}}
"""


def event(number, kind, tenant, at=None, source="/meter", workspace="w", **data):
    time = (at + datetime.timedelta(days=9) if at else NOW).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"specversion": "1.0", "id": str(number), "source": source, "type": f"tollgate.{kind}.v1", "time": time, "data": {"tenant": tenant, "workspace": workspace, **data}}


def post(stack, events, role="admin"):
    return stack.call("POST", "/v1/events", json.dumps(events).encode(), role, {"Content-Type": "application/cloudevents-batch+json"})


def lines(stack, month="current", role="admin"):
    return list(csv.DictReader(io.StringIO(stack.get(f"/v1/reports/{month}.csv", role).body.decode(), newline="")))


def of(rows, *columns):
    return sorted(tuple(r[c] for c in columns) for r in rows)


def budget(stack):
    return stack.get("/v1/budgets").json()["budgets"][0]


class OldLedger(unittest.TestCase):
    """The events are written past the door, as a ledger has them from before there was a limit."""

    @classmethod
    def setUpClass(cls):
        cls.s = s = cls.enterClassContext(Stack(options=["--event-age", "100d"]))
        s.apply(POLICY)
        reply = post(s, [event(1, "storage", "wild", FIRST, gb_hours=200000), event(2, "storage", "good", FIRST, gb_hours=5), event(3, "storage", "good", LAST, gb_hours=5),
                         event(4, "storage", "wild", gb_hours=20), event(5, "storage", "good", gb_hours=20)])  # fmt: skip
        assert reply.json()["accepted"] == 5, reply.text()

    def beyond(self, like):
        self.s.sql("insert into meter_event (token_id, source_id, id, type, time_ns, workspace_id, sku, amount, model, caller, server, digest) select token_id, source_id, "
                   f"id || '-' || g, type, time_ns, workspace_id, sku, 999999999999999, '', '', '', digest from meter_event, generate_series(1, 20000) g where id = '{like}'")  # fmt: skip

    def test_1_a_closed_month_gives_nothing_back(self):
        s = self.s
        first, last = FIRST.strftime("%Y-%m"), LAST.strftime("%Y-%m")
        s.close_month(first, reason="test")
        self.assertEqual(of(lines(s, first), "tenant", "billed_cost"), [("good", "0.50"), ("wild", "20000.00")])
        self.beyond(1)
        [line] = [r for r in lines(s, last) if r["correction_of"]]
        self.assertEqual((line["tenant"], line["billed_cost"], line["list_cost"].strip("0."), line["unit_price"]), ("wild", "0.00", "", ""))
        self.assertRegex(line["description"], r"not rated: the cost is beyond 10\^18 EUR")
        # The next month can be closed with it, and an independent computation agrees.
        s.close_month(last, reason="test")
        self.assertEqual(of(lines(s, last), "tenant", "charge_type", "billed_cost"), [("good", "usage", "0.50"), ("wild", "correction", "0.00")])
        for month in (first, last):
            verified = json.loads(s.cli("-o", "json", "verify", "--month", month).stdout)
            self.assertEqual(verified["differences"], [])
        self.assertEqual([r for r in lines(s) if r["correction_of"]], [])

    def test_2_it_is_over_every_budget_in_its_currency(self):
        self.assertEqual((budget(self.s)["consumed"], budget(self.s)["threshold"]), ("2.00", 0))
        self.beyond(4)
        self.assertEqual(of(lines(self.s), "tenant", "billed_cost"), [("good", "2.00"), ("wild", "0.00")])
        self.assertEqual((budget(self.s)["consumed"], budget(self.s)["threshold"]), ("1000000000000000000.00", 100))


if __name__ == "__main__":
    unittest.main()
