"""Months that close: what was billed stays, byte for byte, and what comes later is billed as corrections, to the cent."""

import concurrent.futures
import csv
import datetime
import hashlib
import io
import json
import os
import random
import subprocess
import time
import unittest
from decimal import Decimal

from tests.integration.test_store import START, Base, seed
from tests.support.billing import csv_check, focus_check
from tests.support.daemons import stack
from tests.support.fleet.fleet import HOUR, Fleet
from tests.support.store.ledger import BUILD, StoreError

DAY = 24 * HOUR
LATER = START + 90 * DAY  # only for closing: nodes that are silent until then would be many hours
PRICED = """
version: 1
cluster: test
effective: {effective}
tenants:
  - {{name: acme, workspaces: [{{name: even, rules: [{{namespace: ns-0}}, {{namespace: ns-2}}]}}, {{name: odd, rules: [{{namespace: ns-1}}, {{namespace: ns-3}}]}}]}}
  - {{name: globex, workspaces: [{{name: rest, rules: [{{namespace: "ns-?", priority: 500}}]}}]}}
prices:
  version: "{version}"
  currency: EUR
  items:
    - {{price: "{price}"}}
"""


def policy(effective="2026-11-30T00:00:00Z", version="v1", price="3.333333333"):
    return PRICED.format(effective=effective, version=version, price=price)

PROVISIONAL = " (provisional: an hour is still open)"  # of what is not closed yet
FORMATS = ("csv", "excel.csv", "json", "focus.csv", "focus.periods.csv", "html")
# One of everything that documents show and a later policy can change.
FULL = """
version: 1
cluster: test
effective: {effective}
nodes: [{{name: node-0, tenant: {owner}}}, {{name: spare, shared: true, model: H100-80GB, gpus: 4}}]
tenants:
  - name: acme
    display_name: "{name}"
    cost_center: "{name}"
    workspaces: [{{name: even, rules: [{{namespace: ns-0}}, {{namespace: ns-2}}]}}, {{name: odd, rules: [{{namespace: ns-1}}, {{namespace: ns-3}}]}}]
  - name: globex
    workspaces: [{{name: rest, reserved_shared: {reserved}, rules: [{{namespace: "ns-?", priority: 500}}]}}]
prices:
  version: "{version}"
  currency: EUR
  lender_ratio: "0.5"
  items:
    - {{price: "{price}"}}
    - {{price: "1.25", tenant: acme, class: on-demand}}
    - {{meter: storage, price: "0.02"}}
  discounts: [{{tenant: globex, percent: "12.5"}}]
"""

# Own and shared nodes, reservations that lend, every class with its price.
LENDING = """
version: 1
cluster: test
effective: {effective}
nodes: [{{name: node-0, tenant: acme}}, {{name: spare, shared: true, model: H100-80GB, gpus: 4}}]
tenants:
  - name: acme
    workspaces:
      - {{name: even, reserved_shared: {{H100-80GB: {mine}}}, lend: {{H100-80GB: {lend}}}, rules: [{{namespace: ns-0}}, {{namespace: ns-2}}]}}
      - {{name: odd, rules: [{{namespace: ns-1}}, {{namespace: ns-3}}]}}
  - name: globex
    workspaces: [{{name: rest, reserved_shared: {{H100-80GB: {shared}}}, rules: [{{namespace: "ns-?", priority: 500}}]}}]
prices:
  version: "{version}"
  currency: EUR
  lender_ratio: "0.6"
  items:
    - {{price: "{price}"}}
    - {{price: "1.777777777", class: reserved}}
    - {{price: "1.25", class: borrowed}}
    - {{price: "0.333333333", class: dedicated}}
  discounts: [{{tenant: globex, percent: "12.5"}}]
"""


def settle(led):
    while sum(led.rollup().values()):
        pass
    led.fold()


def rows(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


def cents(lines):
    """Per tenant, of one month's usage: what was billed."""
    out = {}
    for line in lines:
        key = (line["tenant"], line["period_start"])
        out[key] = out.get(key, 0) + Decimal(line["billed_cost"])
        exact = Decimal(line["list_cost"]) - Decimal(line["discount"]) + Decimal(line["rounding"])
        assert exact == Decimal(line["billed_cost"]), line
    return {k: v for k, v in out.items() if v}


class Periods(Base):
    def fleet_of(self, value=None, start=START):
        fleet = Fleet(seed() if value is None else value, start, start + 8 * HOUR)
        return [s for n in fleet.nodes for s in n.streams]

    def closed(self, led, **kw):
        led.apply(policy(**kw))
        streams = self.fleet_of()
        led.ingest_many(streams)
        settle(led)
        led.close("2026-11", "a test")
        return streams

    def refused(self, led, sql, words):
        with self.assertRaisesRegex(RuntimeError, words):
            led.rows(sql)

    def test_a_closed_month_is_the_bytes_that_were_stored(self):
        led = self.new_ledger()
        self.closed(led)
        before = {(t, j): led.bill("2026-11", t, j) for t in (None, "acme", "globex") for j in (False, True)}
        self.assertEqual({line["period_status"] for line in rows(before[None, False])}, {"closed"})
        self.assertEqual(json.loads(before["acme", True])["period_status"], "closed")
        proof = led.run("recompute", "2026-11")
        self.assertEqual((proof["identical"], proof["differences"]), (True, []))
        self.assertEqual(led.value("select count(*) from audit_log where action = 'period.close' and reason = 'a test'"), "1")
        # What is stored adds up to what was exported.
        self.assertEqual(
            Decimal(led.value("select sum(billed) from invoice_total")), sum(Decimal(line["billed_cost"]) for line in rows(before[None, False]))
        )
        for price in ("1", "2"):
            led.apply(policy(f"2026-12-0{price}T00:00:00Z", f"v{price}{price}", price))
        self.assertEqual({k: led.bill("2026-11", *k) for k in before}, before)
        self.assertTrue(led.run("recompute", "2026-11")["identical"])

    def test_a_month_that_was_rated_by_other_rules_is_not_rated_again(self):
        led = self.new_ledger()
        self.closed(led)
        before = led.bill("2026-11", None, False)
        led.assert_sound = lambda: None  # the row is not what the journal has
        for rules in ("1", "null"):
            led.rows(f"set session_replication_role = replica; update period_close set rating_rules = {rules}")
            with self.assertRaisesRegex(StoreError, "period 2026-11 was rated by rules 1 of an earlier release, and this one has rules 2: it is not computed again"):
                led.run("recompute", "2026-11")
            self.assertEqual(led.bill("2026-11", None, False), before)

    def test_a_closed_month_is_the_same_in_every_format_after_a_year_of_changes(self):
        led = self.new_ledger()
        streams = self.fleet_of(7)
        first, late = streams[::2], streams[1::2]
        led.apply(FULL.format(effective="2026-11-30T00:00:00Z", owner="acme", name="Acme Ltd.", reserved="{H100-80GB: 1}", version="v1", price="3.333333333"))
        led.ingest_many(first)
        settle(led)
        led.close("2026-11", "a test")
        wanted = [(None, f, m) for f in FORMATS for m in (False, True)] + [("acme", f, False) for f in FORMATS]

        def documents(organisation):
            return {(t, f, m): led.document("2026-11", t, f, m, organisation) for t, f, m in wanted}

        before = documents("Example Inc.")
        self.assertIn(b"Acme Ltd.", before["acme", "html", False])
        self.assertIn(b"Example Inc.", before["acme", "focus.csv", False])
        for (tenant, fmt, manifest), text in before.items():
            if manifest:
                about = json.loads(text)
                plain = before[tenant, fmt, False]
                self.assertEqual((about["sha256"], about["bytes"]), (hashlib.sha256(plain).hexdigest(), len(plain)), (tenant, fmt))
        led.ingest_many(late)
        settle(led)
        led.rows("select make_periods('2026-12-15', '2027-11-16')")
        for month in range(12):
            at = f"{2026 + (month + 11) // 12}-{(month + 11) % 12 + 1:02}"
            led.apply(
                FULL.format(
                    effective=f"{at}-01T00:00:00Z",
                    owner=("globex", "acme")[month % 2],
                    name=f"Acme {month}",
                    reserved=("{H100-80GB: 3}", "{H100-80GB: 2}")[month % 2],
                    version=f"v{at}",
                    price=month + 1,
                )
            )
            led.close(at, "the same", LATER + 31 * (month + 1) * DAY)
        self.assertEqual(led.value("select count(*) > 0 from invoice where month = '2026-11' and closed_in = '2026-12'"), "t")
        led.assert_sound()
        led.assert_sound = lambda: None
        # Nothing of what was measured is asked any more.
        led.rows("set session_replication_role = replica; truncate usage_interval, usage_hourly, usage_daily, charge_day, reserve_day, loan_day, pool_day, meter_event")
        self.assertEqual(documents("Renamed GmbH"), before)
        for month in ("2026-11", "2026-12", "2027-11"):
            proof = led.run("recompute", month)
            self.assertEqual((proof["identical"], proof["differences"], set(proof["formats"])), (True, [], set(FORMATS)), month)

    def test_late_usage_and_reservations_are_billed_as_corrections_to_the_cent(self):
        rng = random.Random(seed())
        # The fleet runs over the end of a month, which is a leap day or in another zone; or over the end of summer time.
        for zone, start, price_change, months in (
            ("UTC", "2028-02-29T20:00:00Z", "2028-02-29T22:00:00Z", ("2028-02", "2028-03", "2028-04")),
            ("Asia/Kolkata", "2026-11-30T14:30:00Z", "2026-11-30T16:30:00Z", ("2026-11", "2026-12", "2027-01")),
            ("Europe/Berlin", "2026-10-24T21:00:00Z", "2026-10-25T01:00:00Z", ("2026-10", "2026-11", "2026-12")),
        ):
            with self.subTest(zone):
                self.close_three_months(rng, zone, start, price_change, months)

    def close_three_months(self, rng, zone, start, price_change, months):
        begin = int(datetime.datetime.fromisoformat(start).timestamp()) * 10**9
        led = self.new_ledger(zone=zone, now=begin + 16 * HOUR)
        last = begin + 95 * DAY
        led.rows(f"select make_periods((at_ns({begin}) at time zone '{zone}')::date, (at_ns({last}) at time zone '{zone}')::date)")

        prices = {v: f"{rng.randint(0, 9)}.{rng.randrange(10**9):09}" for v in ("v1", "v2")}

        def apply(effective, version):
            mine = rng.randint(1, 2)
            led.apply(LENDING.format(effective=effective, version=version, price=prices[version], mine=mine, lend=rng.randint(1, mine), shared=rng.randint(1, 2)))

        apply(start, "v1")
        apply(price_change, "v2")
        streams = self.fleet_of(rng.randrange(1 << 32), begin)
        first = [s for s in streams if s[0]["from_ns"] < begin + 2 * HOUR]
        late = [s for s in streams if s not in first]
        rng.shuffle(late)
        led.ingest_many(first)
        settle(led)
        led.close(months[0], "two nodes are down", last)
        billed = {f: led.document(months[0], None, f) for f in FORMATS}
        self.assert_sums_agree(billed)
        bills = [led.bill(months[0])]
        self.assert_reconciled(led, months[0], bills[0], True)
        for month, streams in ((months[1], late[: len(late) // 2]), (months[2], late[len(late) // 2 :])):
            led.ingest_many(streams)
            apply(price_change, "v2")
            settle(led)
            before = led.bill(month)
            self.assert_reconciled(led, months[0], bills[0])
            self.assert_recomputed(led, [*bills, before], months)
            led.close(month, "the same", last)
            bills.append(led.bill(month))
            self.assertEqual(bills[-1].replace(",closed,", ",open,"), before.replace(",grace,", ",open,").replace(PROVISIONAL, ""))
        self.assert_sums_agree({f: led.document(months[2], None, f) for f in FORMATS if f != "html"})
        self.assertEqual({f: led.document(months[0], None, f) for f in FORMATS}, billed)
        for month in months:
            self.assertEqual(led.run("recompute", month)["differences"], [], month)
        numbers = led.rows("select number from invoice order by number")
        self.assertEqual([int(n) for [n] in numbers], list(range(1, len(numbers) + 1)))

    def assert_sums_agree(self, documents):
        """CSV, its form for spreadsheets, FOCUS, JSON: the same cents for each invoice, and every rule of the checkers."""
        text = {f: d.decode() for f, d in documents.items()}
        self.assertEqual(csv_check.check(text["csv"]), [])
        due = {}
        for line in rows(text["csv"]):
            due[line["invoice_id"]] = due.get(line["invoice_id"], 0) + Decimal(line["billed_cost"])
        self.assertEqual(focus_check.check(text["focus.csv"], due), [])
        self.assertEqual(focus_check.check_periods(text["focus.periods.csv"]), [])
        self.assertEqual({t["invoice_id"]: Decimal(t["billed_cost"]) for t in json.loads(text["json"])["totals"]}, due)
        spread = csv.DictReader(io.StringIO(text["excel.csv"].lstrip("\ufeff"), newline=""), delimiter=";")
        self.assertEqual(sum(Decimal(line["billed_cost"].replace(",", ".")) for line in spread), sum(due.values()))

    def assert_reconciled(self, led, month, text, agrees=False):
        """Of a closed month too: capacity is worth what its terms add up to, and the page comes to the bill, corrections among it."""
        doc = json.loads(led.text("reconcile", month))
        for row in doc["rows"]:
            self.assertEqual(sum(Decimal(t["amount"]) for t in row["terms"]), Decimal(row["capacity_value"]), (month, row["level"]))
            self.assertTrue(row["agrees"] if agrees else not row["agrees"] or Decimal(row["differing_gpu_hours"]) == 0, month)
        lines = rows(text)
        [total] = doc["totals"]
        self.assertEqual(Decimal(total["total"]), sum(Decimal(r["billed_cost"]) for r in lines))
        self.assertEqual(Decimal(total["corrections"]), sum(Decimal(r["billed_cost"]) for r in lines if r["charge_type"] == "correction"))

    def assert_recomputed(self, led, bills, months=None):
        """Invoices and corrections together are the months computed again from what the ledger has now."""
        lines = [line for text in bills for line in rows(text)]
        now = [line for month in months or [m for [m] in led.rows("select month from period order by 1")] for line in rows(led.text("report", month))]
        self.assertEqual(cents(lines), cents(now))
        for line in lines:
            self.assertEqual(line["charge_type"] == "correction", line["correction_of"] != "")

    def test_a_change_of_rules_in_a_closed_month_takes_from_one_tenant_and_gives_to_another(self):
        led = self.new_ledger()
        self.closed(led)
        billed = led.bill("2026-11")
        other = policy().replace("{namespace: ns-1}, ", "").replace('{namespace: "ns-?", priority: 500}', '{namespace: "ns-?", priority: 500}, {namespace: ns-1}')
        self.assertEqual(led.apply(other)["corrects_from"], "2026-11")
        settle(led)
        december = led.bill("2026-12")
        self.assert_recomputed(led, [billed, december])
        corrections = [line for line in rows(december) if line["correction_of"]]
        self.assertEqual({line["invoice_id"] for line in corrections}, {"acme-2026-11-2", "globex-2026-11-2"})
        self.assertEqual({line["period_start"] for line in corrections}, {"2026-11-01"})
        self.assertLessEqual({line["correction_of"] for line in corrections if line["tenant"] == "acme"}, {line["line_id"] for line in rows(billed)})
        led.apply(policy())
        settle(led)
        self.assertEqual([line for line in rows(led.bill("2026-12")) if line["correction_of"]], [])
        self.assertEqual(led.bill("2026-11"), billed)

    def test_owners_and_reservations_that_change_in_a_closed_month_are_corrected(self):
        led = self.new_ledger()
        said = {"effective": "2026-11-30T00:00:00Z", "owner": "acme", "name": "Acme", "reserved": "{H100-80GB: 1}", "version": "v1", "price": "3.333333333"}
        led.apply(FULL.format(**said))
        led.ingest_many(self.fleet_of(7))
        settle(led)
        led.close("2026-11", "a test")
        bills = [led.bill("2026-11")]
        for month, change in (("2026-12", {"owner": "globex"}), ("2027-01", {"reserved": "{H100-80GB: 2}"})):
            led.rows("select make_periods('2026-12-15', '2027-02-16')")
            said.update(change)
            self.assertEqual(led.apply(FULL.format(**said))["corrects_from"], "2026-11")
            settle(led)
            now = led.bill(month)
            self.assertTrue([line for line in rows(now) if line["correction_of"]], month)
            self.assert_recomputed(led, [*bills, now])
            self.assertEqual(csv_check.check(led.document(month, None, "csv").decode()), [])
            due = {}
            for line in rows(now):
                due[line["invoice_id"]] = due.get(line["invoice_id"], 0) + Decimal(line["billed_cost"])
            self.assertEqual(focus_check.check(led.document(month, None, "focus.csv").decode(), due), [])
            led.close(month, "the same", LATER)
            bills.append(led.bill(month))
        self.assert_recomputed(led, bills)
        for month in ("2026-11", "2026-12", "2027-01"):
            self.assertEqual(led.run("recompute", month)["differences"], [], month)
        # A credit and a new number: three documents of November, each of which follows the one before.
        versions = led.rows("select version, closed_in, corrects from invoice i join tenant t on t.id = i.tenant_id where t.name = 'globex' and month = '2026-11' order by 1")
        self.assertEqual(versions, [["1", "2026-11", None], ["2", "2026-12", "1"], ["3", "2027-01", "2"]])

    def test_a_late_event_is_a_correction_and_a_late_credit_is_refused(self):
        led = self.new_ledger()
        led.apply(policy().rstrip() + '\n    - {meter: storage, price: "0.02"}\n')
        led.ingest_many(self.fleet_of(7))
        settle(led)
        led.close("2026-11", "a test")
        led.run("token", "admin")
        self.assertEqual(led.value("select count(*) from late_change"), "0")
        led.rows(
            "with s as (insert into event_source (name) values ('s') returning id) insert into meter_event (time_ns, source_id, token_id, workspace_id, type, id, sku, "
            "amount, model, caller, server, digest) select ns_of('2026-11-30 23:00Z'), s.id, t.id, w.id, 1, 'e', 'nvme', 10, '', '', '', sha256('e') from s, access_token t, workspace w "
            "where w.name = 'odd'"
        )
        self.assertEqual(led.rows("select distinct month from late_change"), [["2026-11"]])
        billed, december = led.bill("2026-11"), led.bill("2026-12")
        found = [line for line in rows(december) if line["category"] == "storage"]
        self.assertEqual([(line["charge_type"], line["period_start"], line["quantity"]) for line in found], [("correction", "2026-11-01", "10.000000000")])
        self.assert_recomputed(led, [billed, december])
        self.refused(
            led,
            "insert into adjustment (tenant_id, period, amount, currency, category, reason, requested_by) "
            "select id, '2026-11', -5, 'EUR', 'other', 'late', 'x' from tenant where name = 'acme'",
            "period 2026-11 is closed: a one-off charge or credit goes into one that is open",
        )

    def test_months_close_by_the_clock_alone_when_nothing_stands_against_it(self):
        led = self.new_ledger()
        led.apply(policy())
        led.ingest_many(self.fleet_of(7))
        settle(led)
        end, after = START + 4 * HOUR, 3 * DAY

        def at(now, *options):
            return led.run("schedule", "--now", now, "--after", after, *options)

        self.assertEqual(at(end - 1), {"grace": 0})
        self.assertEqual(led.value("select status from period where month = '2026-11'"), "open")
        self.assertEqual(at(end), {"grace": 1})
        self.assertEqual(at(end + after - 1), {"grace": 0})
        self.assertEqual(led.value("select status from period where month = '2026-11'"), "grace")
        # Nodes were silent for hours: the schedule has no reason to give, and closes only below the threshold.
        with self.assertRaises(StoreError) as stands:
            at(end + after)
        self.assertIn("with a reason only", stands.exception.text)
        self.assertIn("unknown is ", stands.exception.text)
        found = led.close_check("2026-11")
        self.assertEqual(set(found), {"unknown"})
        with self.assertRaises(StoreError):
            at(end + after, "--unknown", found["unknown"] - 1)
        self.assertEqual(at(end + after, "--unknown", found["unknown"])["closed"]["status"], "closed")
        self.assertEqual(led.rows("select actor, reason from period_close"), [["test", ""]])
        self.assertEqual(at(end + after), {"grace": 0}, "December is not due")

    def test_what_was_billed_cannot_be_changed_by_hand(self):
        led = self.new_ledger()
        self.closed(led)
        for table in ("period_close", "invoice", "invoice_total", "invoice_line", "invoice_document"):
            for sql in (f"delete from {table}", f"truncate {table} cascade"):
                self.refused(led, sql, "what was billed is final")
        self.refused(led, "update invoice_line set billed = 0", "what was billed is final")
        self.refused(led, "update invoice_document set gzip = ''", "what was billed is final")
        self.refused(led, "update period set status = 'open', closed_at = null where month = '2026-11'", "only goes forward")
        self.refused(led, "update period set starts_at = starts_at - interval '1 hour' where month = '2026-12'", "bounds stay")
        self.refused(led, "delete from period where month = '2026-11'", "closed one stays")
        self.refused(led, "update period set status = 'closed', closed_at = now() where month = '2026-12'", "no record of its closing")
        self.refused(
            led,
            "insert into invoice (number, tenant_id, month, version, closed_in, invoice_id) select max(number) + 1, 1, '2026-11', 9, '2026-11', 'x' from invoice",
            "violates",
        )
        self.refused(
            led,
            "insert into invoice (number, tenant_id, month, version, closed_in, invoice_id) select max(number) + 2, 1, '2026-12', 1, '2026-12', 'x' from invoice",
            "violates foreign key",
        )
        self.refused(led, "insert into invoice_line select l.* from invoice_line l limit 1", "violates")

    def test_what_stands_against_closing_is_told_with_its_numbers(self):
        led = self.new_ledger()
        led.apply(policy(price="1").split("prices:")[0])
        led.ingest_many(self.fleet_of())
        led.now = START + 8 * HOUR
        self.assertIn("open-hours", led.close_check("2026-11"))
        led.now = START + 12 * HOUR
        settle(led)
        self.assertIn("missing-prices", led.close_check("2026-11"))
        self.assertIn("earlier-open", led.close_check("2026-12"))
        with self.assertRaises(StoreError) as no_price:
            led.close("2026-11")
        self.assertEqual(no_price.exception.kind, "conflict")
        self.assertIn("missing-prices", no_price.exception.text)
        led.apply(policy())
        settle(led)
        with self.assertRaises(StoreError) as no_reason:
            led.close("2026-11")
        self.assertIn("with a reason only", no_reason.exception.text)
        self.assertGreater(led.close("2026-11", "because")["lines"], 0)
        with self.assertRaises(StoreError) as again:
            led.close("2026-11", "because")
        self.assertIn("is closed", again.exception.text)

    def test_an_event_that_nobody_priced_stops_no_month(self):
        """Whoever may send events could name an SKU without a price in every month: with a reason it is billed at nothing, and the others as always."""
        led = self.new_ledger()
        led.apply(policy())
        led.ingest_many(self.fleet_of())
        led.now = START + 12 * HOUR
        led.run("token", "admin")
        led.rows("with s as (insert into event_source (name) values ('s') returning id) insert into meter_event (time_ns, source_id, token_id, workspace_id, type, id, sku, "
                 "amount, model, caller, server, digest) select ns_of('2026-11-30 23:00Z'), s.id, t.id, w.id, 1, 'e', 'junk', 10, '', '', '', sha256('e') from s, access_token t, workspace w "
                 "where w.name = 'odd'")  # fmt: skip
        settle(led)
        self.assertIn("missing-prices", led.close_check("2026-11"))
        self.assertGreater(led.close("2026-11", "an SKU that nobody knows")["lines"], 0)
        [junk] = [r for r in rows(led.text("report", "2026-11")) if r["sku"].endswith("junk")]
        self.assertEqual(Decimal(junk["billed_cost"]), 0)
        led.assert_sound()

    def test_a_close_that_dies_leaves_nothing_and_two_at_once_are_one(self):
        led = self.new_ledger()
        led.apply(policy())
        led.ingest_many(self.fleet_of())
        settle(led)
        # A lock that the last statement waits for: everything else is written when the process dies.
        holder = subprocess.Popen(
            [os.path.join(led.cluster.bin, "psql"), "-X", "-q", "-d", led.cluster.conninfo(led.name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        holder.stdin.write("begin; lock table tollgate.audit_log in access exclusive mode;\n\\echo locked\n")
        holder.stdin.flush()
        self.assertEqual(holder.stdout.readline(), "locked\n")
        argv = [os.path.join(BUILD, "tests", "store_tool"), led.cluster.conninfo(led.name), "close", "--now", str(led.now), "--reason", "x", "2026-11"]
        tool = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        while led.value("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%audit_log%'") == "0":
            self.assertIsNone(tool.poll())
            time.sleep(0.02)
        tool.kill()
        tool.wait()
        holder.communicate("rollback;\n")
        self.assertEqual(led.value("select status from period where month = '2026-11'"), "open")
        self.assertEqual(led.value("select count(*) from invoice"), "0")

        def close(_):
            try:
                return led.close("2026-11", "both")["status"]
            except StoreError as e:
                return e.kind

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            self.assertEqual(sorted(pool.map(close, range(2))), ["closed", "conflict"])
        self.assertEqual(led.value("select count(*) from period_close"), "1")


class Daemon(unittest.TestCase):
    def test_the_command_closes_a_month_and_reports_are_what_was_stored(self):
        with stack.Stack(options=["--close-unknown-max=20000"]) as s:
            s.sql("select make_periods('2001-01-15', '2001-01-16')")
            check = s.cli("close", "2001-01", "--check", "--out", "json")
            self.assertEqual(check.returncode, 0, check.stderr)
            self.assertTrue(json.loads(check.stdout)["closable"])
            stricter = s.cli("close", "2001-01", "--check", "--unknown-max", "0", "--unattributed-max", "17", "--out", "json")
            found = {c["check"]: c["threshold"] for c in json.loads(stricter.stdout)["checks"]}
            self.assertEqual((found["unknown"], found["unattributed"]), (0, 17))
            looser = s.cli("close", "2001-01", "--yes", "--unknown-max", "20001")
            self.assertEqual(looser.returncode, 1)
            self.assertIn("is not a number from 0 to 20000", looser.stderr)
            s.token("billing", role="billing")
            self.assertEqual(s.cli("close", "2001-01", "--yes", role="billing").returncode, 0)
            check = s.cli("close", "2001-01", "--check")
            self.assertEqual(check.returncode, 1)
            self.assertIn("2001-01 is closed already", check.stderr)
            again = s.cli("close", "2001-01", "--yes", "--reason", "once more")
            self.assertEqual(again.returncode, 1)
            self.assertIn("is closed", again.stderr)
            self.assertEqual(s.get("/v1/reports/2001-01.json").json()["period_status"], "closed")
            self.assertEqual(s.sql("select actor from audit_log where action = 'period.close'")[0][0].split()[0], "billing")
            proof = s.cli("report", "2001-01", "--recompute", "--out", "json")
            self.assertEqual((proof.returncode, json.loads(proof.stdout)["identical"]), (0, True), proof.stderr)

    def test_the_daemon_closes_by_itself_when_it_is_time(self):
        with stack.Stack(options=["--close-after=1d", "--period-grace=1h", "--rollup-interval=100ms"]) as s:
            s.sql("select make_periods('2001-01-15', '2001-01-16')")
            stack.wait_for("the month to be closed", lambda: s.sql("select status from period where month = '2001-01'") == [["closed"]])
            self.assertEqual(s.sql("select actor, reason from period_close where month = '2001-01'"), [["schedule", ""]])


if __name__ == "__main__":
    unittest.main()
