"""Price books in the ledger: everything that prices is kept, a version stands for all of it, and nobody changes it afterwards."""

# instead: san

import csv
import io
import os
import unittest
from decimal import Decimal

from tests.support.daemons import pg
from tests.support.daemons.stack import Stack
from tests.support.fleet.fleet import EXCLUSIVE, H100, HELD, HOUR, MEASURED, MINUTE, NONE, NS, UNALLOCATED, UNITS
from tests.support.store.ledger import Ledger, StoreError

START = 1_796_068_800 * NS  # 2026-11-30T20:00Z

BOOK = """prices:
  version: "{version}"
  currency: EUR
  items:
    - {{gpu_model: H100-80GB, class: on-demand, price: "{price}"}}
    - {{gpu_model: H100-80GB, class: on-demand, basis: used, tenant: acme, sku: own, price: "2.50"}}
    - {{meter: inference-input-tokens, meter_sku: llama, price: "0.15", per: {per}}}
  discounts:
    - {{tenant: acme, category: gpu, class: on-demand, percent: "{percent}"}}
  lender_ratio: "{ratio}"
  energy:
    - {{cluster: test, price_per_kwh: "0.30", carbon_g_per_kwh: {carbon}}}
  shared_idle: {{method: weights, weights: {{acme: {weight}, globex: 1}}}}
  platform_cost: {{monthly: "{cost}"}}
"""
PRESET = {"version": "a", "price": "3.20", "per": 1000000, "percent": "12.5", "ratio": "0.8", "carbon": 380, "weight": 2, "cost": "120000.00"}


def policy(effective=None, **said):
    text = "version: 1\ncluster: test\n" + (f"effective: {effective}\n" if effective else "")
    return text + "tenants: [{name: acme}, {name: globex}]\n" + BOOK.format(**{**PRESET, **said})


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())
        cls.count = 0

    def new_ledger(self):
        type(self).count += 1
        return Ledger(self.cluster, f"b{self.count}", now=START + 6 * HOUR)

    def refused(self, kind, call, *args, **more):
        with self.assertRaises(StoreError) as caught:
            call(*args, **more)
        self.assertEqual(caught.exception.kind, kind, caught.exception)
        return caught.exception.text


class Books(Base):
    def test_everything_that_prices_is_kept_exactly(self):
        led = self.new_ledger()
        led.apply(policy())
        self.assertEqual(
            led.rows("select lender_ratio, shared_idle, platform_cost from price_book"), [["0.800000000", "weights", "120000.000000000"]]
        )
        self.assertEqual(
            led.rows("select gpu_model, class, basis, meter, meter_sku, t.name, price from price_item i left join tenant t on t.id = i.tenant_id order by position"),
            [
                ["H100-80GB", "on-demand", "allocated", None, None, None, "3.200000000"],
                ["H100-80GB", "on-demand", "used", None, None, "acme", "2.500000000"],
                [None, None, "allocated", "inference-input-tokens", "llama", None, "0.150000000"],
            ],
        )
        self.assertEqual(
            led.rows("select t.name, category, class, ratio from price_discount d join tenant t on t.id = d.tenant_id"),
            [["acme", "gpu", "on-demand", "0.125000000"]],
        )
        self.assertEqual(
            led.rows("select c.name, energy_price, carbon from price_site s join cluster c on c.id = s.cluster_id"),
            [["test", "0.300000000", "380.000000000"]],
        )
        self.assertEqual(
            led.rows("select t.name, weight from price_weight w join tenant t on t.id = w.tenant_id order by 1"), [["acme", "2"], ["globex", "1"]]
        )

    def test_a_version_that_was_applied_stands_for_all_of_its_book(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T20:00:00Z"))
        later = "2026-11-30T21:00:00Z"
        self.refused("conflict", led.apply, policy("2026-11-30T20:00:00Z", price="3.30"), dry_run=True)
        for said in ({"price": "3.30"}, {"per": 100000}, {"percent": "12"}, {"ratio": "0.7"}, {"carbon": 381}, {"weight": 3}, {"cost": "1"}):
            with self.subTest(said):
                text = self.refused("conflict", led.apply, policy(later, **said), dry_run=True)
                self.assertIn('version "a" was applied with other prices: a change needs a new version', text)
                led.apply(policy(later, version="b", **said), dry_run=True)
        self.assertEqual(led.value("select count(*) from price_book"), "1")

    def test_prices_change_at_billing_hours_only(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T20:00:00Z"))
        text = self.refused("invalid", led.apply, policy("2026-11-30T20:10:00Z", version="b", price="4.00"))
        for word in ("2026-11-30T20:10:00Z", "2026-11-30T20:00:00Z", "2026-11-30T21:00:00Z"):
            self.assertIn(word, text)
        led.apply(policy("2026-11-30T21:00:00Z", version="b", price="4.00"))
        self.assertEqual(
            led.rows("select version, rfc3339(lower(effective)), rfc3339(upper(effective)) from price_book order by id"),
            [["a", "2026-11-30T20:00:00Z", "2026-11-30T21:00:00Z"], ["b", "2026-11-30T21:00:00Z", None]],
        )

    def test_two_books_never_hold_at_one_hour_and_no_row_of_one_is_changed(self):
        led = self.new_ledger()
        led.apply(policy())
        for sql, word in (
            ("insert into price_book (version, currency, sha256, effective) select 'x', currency, sha256, effective from price_book", "conflicting key"),
            ("update price_item set price = 1", "not changed"),
            ("delete from price_discount", "not changed"),
            ("update price_site set carbon = 1", "not changed"),
            ("delete from price_weight", "not changed"),
            ("update price_book set lender_ratio = 1", "not changed"),
            ("delete from price_book", "not changed"),
            ("insert into price_item (book_id, position, meter, gpu_model, price) select id, 9, 'storage', 'L4', 1 from price_book", "gpu_price_or_meter_price"),
            ("insert into price_item (book_id, position, class, basis, price) select id, 9, 'reserved', 'used', 1 from price_book", "only_held_time_is_priced_by_use"),
            ("insert into price_item (book_id, position, gpu_model, class, price) select id, 9, 'H100-80GB', 'on-demand', 1 from price_book", "price_item_once"),
            ("insert into price_discount (book_id, position, ratio) select id, 9, 1.1 from price_book", "price_discount_ratio_check"),
        ):  # fmt: skip
            with self.subTest(sql):
                with self.assertRaisesRegex(Exception, word):
                    led.rows(sql)

    def test_a_file_without_prices_ends_the_book(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T20:00:00Z"))
        r = led.apply("version: 1\ncluster: test\neffective: 2026-11-30T22:00:00Z\ntenants: [{name: acme}, {name: globex}]\n")
        self.assertIn("- prices a in EUR", r["diff"])
        self.assertEqual(led.rows("select rfc3339(upper(effective)) from price_book"), [["2026-11-30T22:00:00Z"]])


WORLD = """version: 1
cluster: test
effective: {effective}
tenants:
  - {{name: acme, cost_center: "7", workspaces: [{{name: w, reserved_shared: 1, rules: [{{namespace: acme}}]}}]}}
  - {{name: globex, workspaces: [{{name: g, rules: [{{namespace: globex}}]}}]}}
  - {{name: initech}}
nodes: [{{name: n1, shared: true, model: H100-80GB, gpus: 4}}]
"""
PLAIN = """prices:
  version: "{version}"
  currency: EUR
  items:
    - {{class: on-demand, price: "3.00"}}
    - {{class: reserved, price: "2.00"}}
    - {{class: dedicated, price: "0.30"}}
"""
RICH = """prices:
  version: "{version}"
  currency: EUR
  items:
    - {{class: on-demand, price: "3.10"}}
    - {{class: reserved, price: "2.20"}}
    - {{class: dedicated, price: "0.35"}}
    - {{class: on-demand, basis: used, tenant: globex, sku: globex-secret, price: "4.10"}}
  discounts: [{{tenant: acme, category: gpu, percent: "33.3333333"}}]
  energy: [{{cluster: test, price_per_kwh: "0.31"}}]
  shared_idle: {{method: weights, weights: {{acme: 1, initech: 2}}}}
"""
MONTH = "2026-11"
FIRST = "2026-11-01T00:00:00Z"


def usage(led, hours=4):
    """Of four GPUs acme holds two (one is reserved), globex holds one and uses a third of it, and nobody the last."""
    holders = [{"id": i + 1, "ns": ns, "pod": "p"} for i, ns in enumerate(("acme", "globex"))]
    devices = [{"id": i + 1, "uuid": f"GPU-{i}", "model": H100, "index": i} for i in range(4)]
    batches = []
    for i in range(4 * hours):
        at = START + i * 15 * MINUTE
        records = [
            [gpu, holder, HELD if holder else UNALLOCATED, EXCLUSIVE, MEASURED if holder else NONE, UNITS, at, 15 * MINUTE, 15 * MINUTE,
             used * MINUTE, 0, 0, 0, 3_600_001, 1]
            for gpu, holder, used in ((1, 1, 15), (2, 1, 4), (3, 2, 5), (4, 0, 0))
        ]  # fmt: skip
        batches.append({
            "node": "n1", "boot_id": "44" * 16, "epoch": 1, "seq": i + 1, "from_ns": at, "to_ns": at + 15 * MINUTE,
            "devices": devices, "holders": holders, "records": records,
        })  # fmt: skip
    r = led.ingest(batches)
    assert r["ok"] and r["quarantined"] == 0, r


class Preview(Base):
    def world(self, book=PLAIN):
        led = self.new_ledger()
        led.apply(WORLD.format(effective=FIRST) + book.format(version="a"))
        usage(led)
        return led

    def preview(self, led, book, *more):
        reply = led.run("preview", MONTH, led.file(book.format(version="b"), "prices"), *more)
        return reply, {r["tenant"]: (Decimal(r["now"]), Decimal(r["then"])) for r in reply["tenants"]}

    def report(self, led, *more):
        return list(csv.DictReader(io.StringIO(led.text("report", MONTH, *more), newline="")))

    def billed(self, led):
        sums = {}
        for line in self.report(led):
            sums[line["tenant"]] = sums.get(line["tenant"], Decimal(0)) + Decimal(line["billed_cost"])
        return sums

    def test_a_preview_is_what_the_report_says_once_the_book_holds_from_the_start(self):
        led = self.world()
        now = self.billed(led)
        self.assertEqual(now, {"acme": Decimal("20.00"), "globex": Decimal("12.00")})
        reply, rows = self.preview(led, RICH)
        led.apply(WORLD.format(effective=FIRST) + RICH.format(version="b"))
        then = self.billed(led)
        self.assertNotEqual(now, then)
        self.assertEqual({t: v for t, (v, _) in rows.items() if v}, now)
        self.assertEqual({t: v for t, (_, v) in rows.items()}, then)
        self.assertIn("initech", then)  # pays its share although it held nothing
        self.assertEqual((reply["period"], reply["status"], reply["version"]), (MONTH, "open", "b"))
        [total] = reply["totals"]
        self.assertEqual((Decimal(total["now"]), Decimal(total["then"])), (sum(now.values()), sum(then.values())))
        self.assertEqual(Decimal(total["difference"]), sum(then.values()) - sum(now.values()))
        for row in reply["tenants"]:
            self.assertEqual(Decimal(row["difference"]), Decimal(row["then"]) - Decimal(row["now"]))

    def test_a_preview_over_a_change_of_prices_within_a_day_is_the_same(self):
        led = self.world()
        led.apply(WORLD.format(effective="2026-11-30T22:00:00Z") + PLAIN.format(version="b").replace("3.00", "3.33"))
        self.assertEqual({line["price_version"] for line in self.report(led)}, {"a", "b"})
        _, rows = self.preview(led, RICH.replace("{version}", "c"))
        led.apply(WORLD.format(effective=FIRST) + RICH.format(version="c"))
        self.assertEqual({t: v for t, (_, v) in rows.items()}, self.billed(led))

    def test_a_price_change_at_an_hour_is_two_bills(self):
        led = self.world()
        led.apply(WORLD.format(effective="2026-11-30T22:00:00Z") + PLAIN.format(version="b").replace("3.00", "4.00"))
        lines = [(x["price_version"], x["quantity"], x["list_cost"]) for x in self.report(led) if x["tenant"] == "globex"]
        self.assertEqual([(v, Decimal(q), Decimal(c)) for v, q, c in sorted(lines)], [("a", 2, 6), ("b", 2, 8)])

    def test_a_preview_writes_nothing(self):
        led = self.world()
        tables = [t for [t] in led.rows("select tablename from pg_tables where schemaname = 'tollgate' order by 1")]
        state = [f"select md5(coalesce(string_agg(x::text, '|' order by x::text), '')) from {t} x" for t in tables]
        before = [led.value(s) for s in state]
        self.preview(led, RICH)
        self.assertEqual([led.value(s) for s in state], before)

    def test_an_open_month_is_priced_again_when_its_book_changes(self):
        led = self.world()
        led.now += 10 * HOUR
        while sum(led.rollup().values()):
            pass
        led.fold()
        self.assertEqual(self.billed(led)["globex"], Decimal("12.00"))
        led.apply(WORLD.format(effective=FIRST) + PLAIN.format(version="b").replace("3.00", "5.00"))
        self.assertEqual(self.billed(led)["globex"], Decimal("20.00"))
        led.fold()
        self.assertEqual(self.billed(led)["globex"], Decimal("20.00"))

    def test_what_nobody_held_is_divided_without_remainder(self):
        led = self.world(RICH)
        for method, payers in (
            ("weights, weights: {acme: 1, initech: 2}", {"acme", "initech"}), ("even", {"acme", "globex"}), ("proportional", {"acme", "globex"}), ("none", set()),
        ):  # fmt: skip
            with self.subTest(method):
                book = RICH.replace("method: weights, weights: {{acme: 1, initech: 2}}", "method: " + method.replace("{", "{{").replace("}", "}}"))
                led.apply(WORLD.format(effective=FIRST) + book.format(version=method[:4]))
                lines = [x for x in self.report(led) if x["class"] == "dedicated"]
                self.assertEqual({x["tenant"] for x in lines}, payers)
                self.assertEqual(sum((Decimal(x["quantity"]) for x in lines), Decimal(0)), 4 if payers else 0)
                for tenant in payers:  # alone it is the same
                    [line] = [x for x in self.report(led, "--tenant", tenant) if x["class"] == "dedicated"]
                    self.assertIn(line, lines)

    def test_no_line_of_usage_is_negative_and_prices_of_one_tenant_leak_to_nobody(self):
        led = self.world(RICH.replace('price: "4.10"', 'price: "0"').replace("33.3333333", "100"))
        for line in self.report(led):
            self.assertGreaterEqual(Decimal(line["billed_cost"]), 0, line)
            self.assertGreaterEqual(Decimal(line["list_cost"]), Decimal(line["discount"]), line)
        self.assertNotIn("globex", led.text("report", MONTH, "--tenant", "acme"))
        self.assertIn("globex-secret", led.text("report", MONTH, "--tenant", "globex"))

    def test_a_preview_of_one_tenant_is_its_row_of_all(self):
        led = self.world()
        everybody = {r["tenant"]: r for r in self.preview(led, RICH)[0]["tenants"]}
        for tenant in ("acme", "initech"):
            [row] = self.preview(led, RICH, "--tenant", tenant)[0]["tenants"]
            self.assertEqual(row, everybody[tenant])

    def test_a_wrong_file_or_month_is_refused(self):
        led = self.world()
        for book, word in (("prices: {version: b}", "currency"), ("tenants: []", "no key prices"), (RICH.format(version="b").replace("initech", "nobody"), "nobody")):
            with self.subTest(word):
                text = self.refused("invalid", led.run, "preview", MONTH, led.file(book, "prices"))
                self.assertIn(word, text)
                self.assertIn("prices.yaml:", text)
        self.refused("missing", led.run, "preview", "2019-01", led.file(RICH.format(version="b"), "prices"))


class Door(unittest.TestCase):
    def test_the_command_shows_now_then_and_the_difference(self):
        with Stack() as s:
            s.apply("version: 1\ncluster: test\ntenants: [{name: acme}]\n" + PLAIN.format(version="a"))
            path = os.path.join(s.dir, "prices.yaml")
            with open(path, "w", encoding="utf-8") as f:
                f.write(RICH.format(version="b").replace("globex", "acme").replace("initech", "acme").replace("acme: 1, ", ""))
            s.sql("select tollgate.make_periods(now(), now())")
            done = s.cli("price", "preview", "-f", path, "--month", "current")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("(open) with prices b:", done.stdout)
            done = s.cli("price", "preview", "-f", path, "--month", "2019-01")
            self.assertEqual(done.returncode, 1)
            self.assertIn("2019-01", done.stderr)


if __name__ == "__main__":
    unittest.main()
