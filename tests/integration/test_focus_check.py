"""The checker of FOCUS exports fails where it should: a sound file, harmed in one place for each of its rules."""

import csv
import io
import os
import unittest

from tests.support.billing import focus_check
from tests.support.daemons.stack import ROOT

USAGE, PURCHASE, DIVIDED, CREDIT, UNUSED, COVERED = 0, 1, 2, 4, 5, 6
DETAILS = '{"Elements":[{"AllocatedRatio":%s,"UsageUnit":"GPU-Hours","UsageQuantity":1}]}'


def parse(text):
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def text_of(rows):
    out = io.StringIO(newline="")
    w = csv.DictWriter(out, rows[0].keys(), lineterminator="\r\n")
    w.writeheader()
    w.writerows(rows)
    return out.getvalue()


def sound():
    """Rows of the golden export: a use, a purchase, two made of the use that divide two hours, a credit, unused and used hours of the reservation, and its other rows."""
    with open(os.path.join(ROOT, "tests/golden/focus.csv"), encoding="utf-8", newline="") as f:
        rows = parse(f.read())
    use = next(r for r in rows if r["x_Class"] == "on-demand")
    purchase = next(r for r in rows if r["ChargeCategory"] == "Purchase")
    reserved = [r for r in rows if r["InvoiceId"] == purchase["InvoiceId"] and r is not purchase]
    first = [next(r for r in reserved if (r["ChargeCategory"], r["CommitmentDiscountStatus"]) == kind) for kind in (("Credit", ""), ("Usage", "Unused"), ("Usage", "Used"))]
    halves = []
    for line in ("a" * 32, "b" * 32):
        r = dict(use, x_LineId=line, SkuPriceId=use["SkuPriceId"] + "/shared", AllocatedMethodId="shared-idle/even", AllocatedMethodDetails=DETAILS % "0.5", x_GpuHours="1.0", x_OriginGpuHours="2.0")
        halves.append(r)
    return [use, purchase, *halves, *first, *[r for r in reserved if r not in first]]


# Rule, what is harmed, the row, and its cells.
HARMED = [
    ("F2", "a day that the calendar has not", USAGE, {"ChargePeriodStart": "2026-11-31T00:00:00Z"}),
    ("F2", "a time without a zone", USAGE, {"BillingPeriodEnd": "2026-12-01T00:00:00"}),
    ("F3", "a decimal comma", USAGE, {"BilledCost": "6,00"}),
    ("F3", "a plus sign", USAGE, {"x_GpuHours": "+2.0"}),
    ("F3", "a decimal that reads as an integer", USAGE, {"BilledCost": "6"}),
    ("F4", "a word for null", USAGE, {"ChargeDescription": "N/A"}),
    ("F4", "a space at the end", USAGE, {"ServiceName": "GPU Platform "}),
    ("F5", "a tag in a tag", USAGE, {"Tags": '{"a":{"b":"c"}}'}),
    ("F5", "a key that is there twice", USAGE, {"Tags": '{"a":"b","a":"c"}'}),
    ("F5", "a ratio of a text", DIVIDED, {"AllocatedMethodDetails": '{"Elements":[{"AllocatedRatio":"half"}]}'}),
    ("F5", "no ratio at all", DIVIDED, {"AllocatedMethodDetails": '{"Elements":[]}'}),
    ("F6", "a currency that is none", USAGE, {"BillingCurrency": "XXX", "PricingCurrency": "XXX"}),
    ("F7", "a unit in small letters", USAGE, {"PricingUnit": "gpu-hours"}),
    ("F8", "an umlaut", USAGE, {"x_CostCenter": "K\u00f6ln"}),
    ("R1", "nobody who issued the invoice", USAGE, {"InvoiceIssuerName": ""}),
    ("R2", "a category of our own", USAGE, {"ChargeCategory": "Rent"}),
    ("R2", "a service of no category", USAGE, {"ServiceCategory": "GPUs"}),
    ("R2", "a subcategory of another category", USAGE, {"ServiceSubcategory": "Block Storage"}),
    ("R3", "a use without a price", USAGE, {"ListUnitPrice": "", "PricingCurrencyListUnitPrice": ""}),
    ("R4", "a tax with a quantity", USAGE, {"ChargeCategory": "Tax", "ConsumedQuantity": "", "ConsumedUnit": ""}),
    ("R5", "a purchase that consumed", PURCHASE, {"ConsumedQuantity": "4.0", "ConsumedUnit": "GPU-Hours"}),
    ("R5", "a use that consumed nothing", USAGE, {"ConsumedQuantity": "", "ConsumedUnit": ""}),
    ("R6", "a quantity without its unit", USAGE, {"ConsumedUnit": ""}),
    ("R7", "a purchase by use", PURCHASE, {"ChargeFrequency": "Usage-Based"}),
    ("R8", "a list cost that is rounded up", USAGE, {"ListCost": "6.01"}),
    ("R8", "another cost in the same currency", USAGE, {"PricingCurrencyEffectiveCost": "1.0"}),
    ("R9", "a negative price", USAGE, {"ListUnitPrice": "-3.0", "PricingCurrencyListUnitPrice": "-3.0", "ListCost": "-6.0"}),
    ("R10", "a day that ends before it begins", USAGE, {"ChargePeriodEnd": "2026-10-01T00:00:00Z"}),
    ("R10", "a day of another month", USAGE, {"ChargePeriodStart": "2027-01-01T00:00:00Z", "ChargePeriodEnd": "2027-01-02T00:00:00Z"}),
    ("R10", "a correction of its own month", USAGE, {"ChargeClass": "Correction"}),
    ("R11", "a tenant's name without a tenant", USAGE, {"SubAccountId": ""}),
    ("R11", "a part without its method", DIVIDED, {"AllocatedMethodId": ""}),
    ("R11", "a meter without a SKU", PURCHASE, {"SkuId": "", "ChargeClass": "Correction"}),
    ("R12", "a purchase that is effective at once", PURCHASE, {"EffectiveCost": "1.0", "PricingCurrencyEffectiveCost": "1.0"}),
    ("R13", "a detail that FOCUS does not have", USAGE, {"SkuPriceDetails": '{"GpuSort":"H100"}'}),
    ("R13", "a count that is a text", USAGE, {"SkuPriceDetails": '{"GpuCount":"1"}'}),
    ("R13", "a MIG instance that is a whole GPU", USAGE, {"SkuPriceDetails": '{"GpuCount":1,"x_MigProfile":"1g.10gb"}'}),
    ("R10", "a charge of a whole month", USAGE, {"ChargePeriodEnd": "2026-11-30T23:00:00Z"}),
    ("R14", "hours that nobody held", USAGE, {"x_UsedGpuHours": "0.0", "x_IdleGpuHours": "0.0", "x_UnmeasuredGpuHours": "0.0"}),
    ("R15", "a credit that costs something", CREDIT, {"EffectiveCost": "0.92", "PricingCurrencyEffectiveCost": "0.92"}),
    ("R16", "committed without a commitment", USAGE, {"PricingCategory": "Committed"}),
    ("R16", "a purchase that is committed", PURCHASE, {"PricingCategory": "Committed"}),
    ("R17", "a commitment without a type", COVERED, {"CommitmentDiscountType": ""}),
    ("R17", "a purchase that was used", PURCHASE, {"CapacityReservationStatus": "Used"}),
    ("R17", "a reservation that nobody knows whether it was used", COVERED, {"CapacityReservationStatus": ""}),
    ("R17", "no hours of the commitment", COVERED, {"CommitmentDiscountQuantity": "", "CommitmentDiscountUnit": ""}),
    ("R17", "unused hours of a workspace", UNUSED, {"ResourceId": "main/acme/w"}),
    ("R18", "unused hours that are on no list", UNUSED, {"ListUnitPrice": "0.0", "PricingCurrencyListUnitPrice": "0.0", "ListCost": "0.0"}),
    ("D1", "an invoice in two currencies", DIVIDED, {"BillingCurrency": "USD", "PricingCurrency": "USD"}),
    ("D2", "a service of two categories", USAGE, {"ServiceCategory": "Compute", "ServiceSubcategory": "Virtual Machines"}),
    ("D3", "a price of two SKUs", DIVIDED, {"SkuId": "other"}),
    ("D4", "a hole between two periods", USAGE, {"BillingPeriodStart": "2025-01-01T00:00:00Z", "BillingPeriodEnd": "2025-02-01T00:00:00Z",
                                                  "ChargePeriodStart": "2025-01-01T00:00:00Z", "ChargePeriodEnd": "2025-01-02T00:00:00Z"}),
    ("D5", "an effective cost that nobody was billed", USAGE, {"EffectiveCost": "7.0", "PricingCurrencyEffectiveCost": "7.0"}),
    ("D5", "a purchase that no use joins", PURCHASE, {"CapacityReservationId": "other"}),
    ("D5", "hours that were not bought", COVERED, {"CommitmentDiscountQuantity": "2.0"}),
    ("D3", "a price with two amounts", USAGE, {"ListUnitPrice": "4.0"}),
    ("D9", "a resource of two tenants", USAGE, {"ResourceId": "main/acme/w"}),
    ("D6", "ratios beyond one", DIVIDED, {"AllocatedMethodDetails": DETAILS % "0.6"}),
    ("D6", "parts of two different wholes", DIVIDED, {"x_OriginGpuHours": "3.0"}),
    ("D6", "hours that were not divided", DIVIDED, {"x_GpuHours": "1.1"}),
]  # fmt: skip


class Harmed(unittest.TestCase):
    def setUp(self):
        self.rows = sound()
        self.payable = {}
        for r in self.rows:
            self.payable[r["InvoiceId"]] = self.payable.get(r["InvoiceId"], 0) + focus_check.D(r["BilledCost"])

    def rules(self, rows, **more):
        return {s.split()[0] for s in focus_check.check(text_of(rows), **more)}

    def test_the_sound_file_is_sound(self):
        self.assertEqual(focus_check.check(text_of(self.rows), self.payable), [])

    def test_every_rule_fails_on_a_row_that_breaks_it(self):
        for rule, what, row, cells in HARMED:
            rows = [dict(r) for r in self.rows]
            rows[row].update(cells)
            self.assertIn(rule, self.rules(rows), what)

    def test_every_rule_has_its_harm(self):
        with open(focus_check.__file__, encoding="utf-8") as f:
            source = f.read()
        said = {word for word in source.replace('f"', '"').split('"') for word in [word.split(" ")[0]] if len(word) in (2, 3) and word[0] in "FRD" and word[1:].isdigit()}
        self.assertEqual(said - {h[0] for h in HARMED}, {"F1", "D7", "D8"}, "F1 is about the header, D7 and D8 about two files; they are below")

    def test_a_header_that_is_wrong_is_seen(self):
        rows = self.rows
        for rule, header in (("F1", {**rows[0], "Billed": ""}), ("F1", {"x_First": "", **rows[0]}), ("P", {k: v for k, v in rows[0].items() if k != "ServiceProviderName"})):
            self.assertIn(rule, self.rules([header]))
        self.assertIn("F1", self.rules([{**{k: v for k, v in rows[0].items()}, " ": ""}]))
        self.assertIn("F1", self.rules(rows, version="1.4"), "1.4 has no ProviderName")
        twice = text_of(rows).replace("BillingAccountId", "BillingAccountName", 1)
        self.assertIn("F1 a column is there twice", focus_check.check(twice))
        self.assertTrue(focus_check.check(text_of(rows) + "a,b\r\n")[-1].startswith("F1 row"))

    def test_the_lines_of_an_invoice_that_are_wrong_are_seen(self):
        uses = [{**r, "InvoiceDetailId": r["x_LineId"]} for r in self.rows]
        at = "2026-12-03T00:00:00Z"
        lines = {}
        for r in uses:
            line = lines.setdefault((r["InvoiceId"], r["InvoiceDetailId"]), dict.fromkeys(focus_check.INVOICES, "x") | {
                "InvoiceId": r["InvoiceId"], "InvoiceDetailId": r["InvoiceDetailId"], "BilledCost": 0, "BillingPeriodStart": at, "BillingPeriodEnd": at, "InvoiceDetailCreated": at,
                "InvoiceDetailLastUpdated": at, "InvoiceIssueStatus": "Issued", "InvoiceIssueDate": at, "InvoiceDetailGrain": "{}", "PaymentDueDate": ""})  # fmt: skip
            line["BilledCost"] += focus_check.D(r["BilledCost"])
        sound = list(lines.values())
        self.assertEqual(focus_check.check_invoices(text_of(sound), text_of(uses)), [])
        for rule, cells in (("R1", {"PaymentTerms": ""}), ("F2", {"InvoiceDetailCreated": "now"}), ("R2", {"InvoiceIssueStatus": "Open"}), ("F5", {"InvoiceDetailGrain": "x"}), ("D1", {"BilledCost": "1.0"})):
            said = focus_check.check_invoices(text_of([{**sound[0], **cells}, *sound[1:]]), text_of(uses))
            self.assertIn(rule, {s.split()[0] for s in said}, cells)

    def test_an_invoice_that_is_not_what_is_payable_is_seen(self):
        invoice = next(iter(self.payable))
        self.assertIn("D1", self.rules(self.rows, payable={**self.payable, invoice: "0.01"}))
        self.assertIn("D1", self.rules(self.rows, payable={invoice: self.payable[invoice]}))

    def test_the_part_of_one_tenant_need_not_be_the_whole(self):
        rows = self.rows[:3] + self.rows[4:]
        self.assertIn("D6", self.rules(rows))
        self.assertNotIn("D6", self.rules(rows, whole=False))

    def test_a_closed_period_that_changes_is_seen(self):
        start, end = self.rows[0]["BillingPeriodStart"], self.rows[0]["BillingPeriodEnd"]
        head = "BillingPeriodStart,BillingPeriodEnd,BillingPeriodStatus,x_BillingPeriodClosed,InvoiceIssuerName,BillingPeriodCreated,BillingPeriodLastUpdated\r\n"
        closed, open_ = (f"{head}{start},{end},{status},{at},Platform,{start},{end}\r\n" for status, at in (("Closed", end), ("Open", "")))
        before = text_of(self.rows)
        dearer = text_of([{**self.rows[0], "BilledCost": "7.0"}, *self.rows[1:]])
        renamed = text_of([{**self.rows[0], "SubAccountName": "other"}, *self.rows[1:]])
        late = text_of([*self.rows, {**self.rows[0], "ChargeClass": "Correction", "x_LineId": "c" * 32}])
        self.assertEqual(focus_check.check_again(before, before, closed), [])
        self.assertEqual(focus_check.check_again(before, dearer, open_), [])
        self.assertEqual([s[:2] for s in focus_check.check_again(before, dearer, closed)], ["D7"])
        self.assertEqual([s[:2] for s in focus_check.check_again(before, renamed, open_)], ["D8"])
        self.assertEqual([s[:2] for s in focus_check.check_again(before, late, closed)], ["D7", "D7"])
        # Of the next month's export: a correction is of a closed month, and in one that is open.
        bounds = {"BillingPeriodStart": end, "BillingPeriodEnd": "2027-01-01T00:00:00Z", "ChargeClass": "Correction", "ChargePeriodStart": start, "ChargePeriodEnd": end}
        for cells, sound in (({}, True), ({"ChargePeriodStart": end}, False), ({"BillingPeriodStart": start}, False), ({"ChargeClass": "", "ChargePeriodStart": end}, True)):
            later = text_of([{**self.rows[0], **bounds, **cells}])
            self.assertEqual(focus_check.check_again(before, before, closed, later) == [], sound, cells)

    def test_periods_that_are_wrong_are_seen(self):
        head = "BillingPeriodStart,BillingPeriodEnd,BillingPeriodStatus,x_BillingPeriodClosed,InvoiceIssuerName,BillingPeriodCreated,BillingPeriodLastUpdated\r\n"
        october, november = "2026-10-01T00:00:00Z,2026-11-01T00:00:00Z", "2026-11-01T00:00:00Z,2026-12-01T00:00:00Z"
        at = "2026-12-03T00:00:00Z"
        for rule, rows, updated in (
            (None, f"{october},Closed,{at},P\r\n{november},Open,,P\r\n", at),
            ("F2", f"October,{november[:20]},Open,,P\r\n", at),
            ("R2", f"{october},Grace,,P\r\n", at),
            ("R6", f"{october},Closed,,P\r\n", at),
            ("D4", f"{november},Open,,P\r\n{october},Open,,P\r\n", at),
            ("D7", f"{october},Open,,P\r\n{november},Closed,{at},P\r\n", at),
            ("R10", f"{october},Open,,P\r\n", "2026-09-01T00:00:00Z"),
        ):
            said = focus_check.check_periods(head + rows.replace("P\r\n", f"P,{october[:20]},{updated}\r\n"))
            self.assertEqual(said == [], rule is None, said)
            self.assertTrue(rule is None or said[0].startswith(rule), said)


if __name__ == "__main__":
    unittest.main()
