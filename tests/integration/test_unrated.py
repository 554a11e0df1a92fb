"""A line whose cost no bill can hold: it gives nothing back, it defeats no budget, and it hurts nobody else."""

import csv
import datetime
import io
import json
import threading
import unittest

from tests.support.daemons.stack import Stack

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


class Door(unittest.TestCase):
    """What the events of a tenant add up to in a month is limited where they come in."""

    @classmethod
    def setUpClass(cls):
        cls.s = s = cls.enterClassContext(Stack(options=["--event-age", "100d"]))
        s.apply(POLICY)
        s.token("wild", role="tenant-admin", tenant="wild")

    def fates(self, events, role="wild"):
        return [e["status"] for e in post(self.s, events, role).json()["events"]]

    def test_1_a_tenant_cannot_push_its_own_line_beyond_a_bill(self):
        s = self.s
        first = FIRST.strftime("%Y-%m")
        self.assertEqual(self.fates([event(1, "storage", "wild", FIRST, gb_hours=200000), event(2, "storage", "wild", gb_hours=200000), event(3, "storage", "good", gb_hours=5)], "admin"), ["accepted"] * 3)
        s.close_month(first, reason="test")
        reply = post(s, [event(f"a{i}", "storage", "wild", at, "/mine", gb_hours="999999999999999") for at in (FIRST, None) for i in (range(5000) if at else range(5000, 10000))], "wild")
        self.assertEqual((reply.json()["accepted"], reply.json()["refused"]), (0, 10000))
        self.assertEqual(reply.json()["events"][0]["problem"], {"status": 400, "field": "data.gb_hours", "detail":
            f"data.gb_hours is 999999999999999: the events of {first} add up to 200000, and may add up to 1000000000000"})  # fmt: skip
        self.assertEqual(of(lines(s), "tenant", "charge_type", "billed_cost"), [("good", "usage", "0.50"), ("wild", "usage", "20000.00")])
        self.assertEqual((budget(s)["consumed"], budget(s)["threshold"]), ("20000.00", 100))

    def test_2_the_sum_counts_over_workspaces_and_skus_and_others_in_the_batch_are_taken(self):
        big = "600000000000"
        batch = [event("b1", "egress", "wild", gb=big), event("b2", "egress", "wild", workspace="x", sku="other", gb=big), event("b3", "egress", "wild", gb="300000000000"),
                 event("b4", "egress", "wild", LAST, gb=big), event("b5", "storage", "wild", gb_hours=big), event("b6", "egress", "wild", gb=1), event("b1", "egress", "wild", gb="5")]  # fmt: skip
        self.assertEqual(self.fates(batch[:6]), ["accepted", "refused", "accepted", "accepted", "accepted", "accepted"])
        reply = post(self.s, batch, "wild").json()["events"]
        self.assertEqual([e["status"] for e in reply], ["duplicate", "refused", "duplicate", "duplicate", "duplicate", "duplicate", "conflict"])
        self.assertEqual((reply[1]["problem"]["status"], reply[1]["problem"]["field"]), (429, "data.gb"))
        self.assertRegex(reply[1]["problem"]["detail"], "^data.gb is 600000000000: the events of .* add up to 900000000000, and may add up to 1000000000000$")
        self.assertEqual(self.fates([event("b7", "egress", "good", gb=big)], "admin"), ["accepted"])

    def test_3_each_meter_has_its_limit(self):
        for number, (kind, field, most) in enumerate((("inference", "output_tokens", 10**15), ("inference", "requests", 10**15), ("support", "hours", 10**9))):
            more = {"model": "m"} if kind == "inference" else {}
            values = (most // 10, most - most // 10 - 10, most // 10**7, 10)
            self.assertEqual(self.fates([event(f"c{number}-{i}", kind, "wild", **more, **{field: v}) for i, v in enumerate(values)]), ["accepted", "accepted", "refused", "accepted"], field)

    def test_4_two_senders_do_not_both_find_what_is_left(self):
        fates = []
        senders = [threading.Thread(target=lambda i=i: fates.extend(self.fates([event(f"d{i}", "storage", "good", LAST, gb_hours="600000000000")], "admin"))) for i in range(6)]
        for t in senders:
            t.start()
        for t in senders:
            t.join()
        self.assertEqual(sorted(fates), ["accepted"] + ["refused"] * 5)

    def test_5_events_of_a_namespace_have_the_same_limit(self):
        def of_namespace(number, hours):
            return {**event(number, "support", ""), "data": {"namespace": "team", "hours": hours}}

        self.assertEqual(self.fates([of_namespace("e1", 600000000), of_namespace("e2", 600000000)], "admin"), ["accepted", "refused"])
        self.assertEqual(self.fates([of_namespace("e3", 600000000), of_namespace("e4", 300000000)], "admin"), ["refused", "accepted"])

    def test_6_a_price_is_such_that_what_may_come_can_be_billed(self):
        for old, bad, good, detail in (('"0.10"', '"100000.01"', '"100000"', r'price: 100000\.01 for 1 of meter "storage" is more than the limit of 100000'),
                                       ('"100"', '"100000001"', '"100000000"', 'for 1 of meter "support" is more than the limit of 100000000'),
                                       ('"0.60"', '"100000001"', '"100000000"', 'for 1000000 of meter "inference-output-tokens" is more than the limit of 100000000')):  # fmt: skip
            policy = "\n".join(line for line in POLICY.replace("v1", "v2").splitlines() if not line.startswith("effective:"))
            reply = self.s.call("PUT", "/v1/policy?dry_run=1", policy.replace(old, bad).encode())
            self.assertEqual(reply.status, 400)
            self.assertRegex(reply.json()["detail"], detail)
            self.assertEqual(self.s.call("PUT", "/v1/policy?dry_run=1", policy.replace(old, good).encode()).status, 200)

    def test_7_an_end_user_has_something_that_is_seen(self):
        for number, user in enumerate(("  ", "\u200b", " \u2060\u00a0\u3000 ")):
            reply = post(self.s, [event(f"f{number}", "inference", "good", model="m", output_tokens=1, end_user=user)]).json()["events"][0]
            self.assertEqual((reply["status"], reply["problem"]["field"]), ("refused", "data.end_user"))
        self.assertEqual(self.fates([event("f", "inference", "good", model="m", output_tokens=1, end_user="a b")], "admin"), ["accepted"])

    def test_8_a_meter_names_sources_and_no_pattern(self):
        for sources in ("*", "/a,*", "/a/*"):
            reply = self.s.call("POST", "/v1/tokens", json.dumps({"role": "meter", "sources": sources}).encode())
            self.assertEqual(reply.status, 400)
            self.assertRegex(reply.json()["detail"], r"sources: .*\*.*no patterns")


class Late(unittest.TestCase):
    def test_a_month_that_only_corrects_another_has_a_report(self):
        s = self.enterContext(Stack())
        s.apply(POLICY.replace(f"{FIRST:%Y-%m-%d}", f"{LAST:%Y-%m-%d}"))
        near_its_end = OPEN - datetime.timedelta(days=10)
        self.assertEqual(post(s, [event(1, "storage", "good", near_its_end, gb_hours=5)]).json()["accepted"], 1)
        s.close_month(LAST.strftime("%Y-%m"), reason="test")
        self.assertEqual(post(s, [event(2, "storage", "good", near_its_end, gb_hours=20)]).json()["accepted"], 1)
        self.assertEqual(of(lines(s), "tenant", "charge_type", "billed_cost"), [("good", "correction", "2.00")])
        for suffix in ("json", "focus.csv", "html"):
            self.assertEqual(s.get(f"/v1/reports/current.{suffix}").status, 200)


if __name__ == "__main__":
    unittest.main()
