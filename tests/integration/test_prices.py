"""Price books in the ledger: everything that prices is kept, a version stands for all of it, and nobody changes it afterwards."""

# also: san

import unittest

from tests.support import pg
from tests.support.fleet import HOUR, NS
from tests.support.ledger import Ledger, StoreError

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


class Books(unittest.TestCase):
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
                [None, None, "allocated", "inference-input-tokens", "llama", None, "0.000000150"],
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

    def test_a_version_that_was_in_force_stands_for_all_of_its_book(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T20:00:00Z"))
        later = "2026-11-30T21:00:00Z"
        for said in ({"price": "3.30"}, {"per": 100000}, {"percent": "12"}, {"ratio": "0.7"}, {"carbon": 381}, {"weight": 3}, {"cost": "1"}):
            with self.subTest(said):
                text = self.refused("conflict", led.apply, policy(later, **said), dry_run=True)
                self.assertIn('version "a" was in force with other prices: a change needs a new version', text)
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
            ("insert into price_item (book_id, position, meter, gpu_model, price) select id, 9, 'storage', 'L4', 1 from price_book", "one_kind"),
            ("insert into price_item (book_id, position, class, basis, price) select id, 9, 'reserved', 'used', 1 from price_book", "used_is_held"),
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


if __name__ == "__main__":
    unittest.main()
