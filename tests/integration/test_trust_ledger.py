"""Somebody changes the ledger behind its back: whatever a bill is made from, `tollgate verify` names the row, or the database refuses the change.

The attacks run against the programs, on the ledger of test_sums: two months, one closed and corrected, with every class, MIG, events and credits."""

import csv
import io
import json
import unittest

from tests.integration import test_sums


class World(test_sums.Sums):
    maxDiff = None
    """The ledger of test_sums, without its tests."""

    def verify(self):
        """The whole ledger by the command: exit code, differences, counts."""
        done = self.s.cli("verify", "--since", "96d", "-o", "json")
        self.assertIn(done.returncode, (0, 1, 4), done.stderr)
        reply = json.loads(done.stdout)
        return done.returncode, reply["differences"], reply

    def bill(self):
        """What each tenant owes for the open month."""
        out = {}
        for r in csv.DictReader(io.StringIO(self.report("csv"))):
            out[r["tenant"]] = out.get(r["tenant"], 0) + round(float(r["billed_cost"]) * 100)
        return out

    def changed(self, change, mend):
        """As the owner of the database, with triggers off."""
        off = "set session_replication_role = replica; "
        self.s.sql(off + change)
        self.addCleanup(self.s.sql, off + mend)


for name in dir(test_sums.Sums):
    if name.startswith("test_"):
        setattr(World, name, None)


class Attacks(World):
    def test_a_sound_ledger_has_no_difference(self):
        code, differences, reply = self.verify()
        self.assertEqual((code, [(d["kind"], d["what"], d["expected"][:80], d["found"][:80]) for d in differences]), (0, []))
        for what in ("nodes", "hours", "batches", "records", "days"):
            self.assertGreater(reply[what], 0, what)

    def test_charges_that_are_moved_to_another_tenant_before_the_close_are_named(self):
        before = self.bill()
        workspace = {n: self.s.sql(f"select id from workspace where name = '{n}'")[0][0] for n in ("research", "serving")}
        [[day, used]] = self.s.sql(
            f"select c.day, c.used from charge_day c join billing_day b using (day) where c.workspace_id = {workspace['research']} and c.class = 'on-demand' and not b.dirty "
            f"and c.day >= '{test_sums.MONTH}-01' and c.gpu_model = 'H100-80GB' and c.profile = '' and c.used > 0 order by c.day limit 1")  # fmt: skip
        where = f"day = '{day}' and class = 'on-demand' and gpu_model = 'H100-80GB' and profile = '' and workspace_id = {workspace['research']}"
        part = int(used) // 2
        self.changed(f"update charge_day set used = used - {part} where {where}", f"update charge_day set used = used + {part} where {where}")
        after = self.bill()
        self.assertLess(after["globex"], before["globex"], "the attack moves money")
        code, differences, _ = self.verify()
        self.assertEqual(code, 1)
        [d] = [d for d in differences if d["difference"] == str(-part)]
        self.assertIn(f"used of charge_day, {day}: ", d["what"])
        self.assertIn(f"workspace {workspace['research']}", d["what"])

    def named(self, change, mend, *words):
        """verify ends with 1 after the change, and a difference has all these words."""
        self.assertEqual(self.verify()[0], 0)
        self.changed(change, mend)
        code, differences, _ = self.verify()
        self.assertEqual(code, 1)
        self.assertTrue([d for d in differences if all(w in d["kind"] + " " + d["what"] for w in words)], differences)

    def test_a_billed_line_that_is_changed_after_the_close_is_named(self):
        [[number, line, billed]] = self.s.sql("select number, line_id, billed from invoice_line where charge_type = 'usage' and billed > 1 order by 1, 2 limit 1")
        where = f"where number = {number} and line_id = '{line}'"
        self.named(f"update invoice_line set billed = billed - 1, rounding = rounding - 1 {where}", f"update invoice_line set billed = billed + 1, rounding = rounding + 1 {where}", line)

    def test_a_price_that_is_changed_is_named(self):
        self.named("update price_item set price = price + 1 where position = 1", "update price_item set price = price - 1 where position = 1", "price_item", " 1")

    def test_the_reason_of_a_close_that_is_rewritten_is_named(self):
        self.named("update period_close set reason = 'all was well'", "update period_close set reason = 'n2 has not been heard of'", "close", "reason")

    def test_a_late_change_that_is_removed_is_named_by_its_lines(self):
        rows = self.s.sql("select id, month, at from late_change")
        self.assertGreater(len(rows), 0)
        back = "; ".join(f"insert into late_change overriding system value values ({i}, '{m}', '{at}')" for i, m, at in rows)
        self.named("delete from late_change", back, "late-change", test_sums.CLOSED)

    def test_a_document_that_is_replaced_with_its_hash_is_named(self):
        document = f"month = '{test_sums.CLOSED}' and format = 'csv' and tenant_id = (select id from tenant where name = 'globex')"
        [[gzip, sha, size]] = self.s.sql(f"select encode(gzip, 'hex'), encode(sha256, 'hex'), plain_bytes from invoice_document where {document}")
        of = f"{{}}.month = '{test_sums.CLOSED}' and {{}}.format = 'csv' and {{}}.tenant_id = (select id from tenant where name = '{{}}')"
        self.named("update invoice_document d set gzip = o.gzip, sha256 = o.sha256, plain_bytes = o.plain_bytes from invoice_document o "
                   f"where {of.format('d', 'd', 'd', 'globex')} and {of.format('o', 'o', 'o', 'acme')}",
                   f"update invoice_document set gzip = decode('{gzip}', 'hex'), sha256 = decode('{sha}', 'hex'), plain_bytes = {size} where {document}",
                   "document", "output hash")  # fmt: skip

    def test_a_reconciliation_that_does_not_add_up_ends_with_1(self):
        self.assertEqual(self.s.cli("reconcile", "--month", test_sums.MONTH).returncode, 0)
        [[row]] = self.s.sql(f"select c.ctid from charge_day c join billing_day b using (day) where not b.dirty and c.day >= '{test_sums.MONTH}-01' and c.class = 'on-demand' and c.used > 0 limit 1")
        [[row]] = self.s.sql(f"set session_replication_role = replica; update charge_day set used = used + 18144000000000000 where ctid = '{row}' returning ctid")
        self.addCleanup(self.s.sql, f"set session_replication_role = replica; update charge_day set used = used - 18144000000000000 where ctid = '{row}'")
        for form in ((), ("-o", "json"), ("--format", "csv")):
            done = self.s.cli("reconcile", "--month", test_sums.MONTH, *form)
            self.assertEqual(done.returncode, 1, form)
            self.assertIn("does not add up", done.stderr)


if __name__ == "__main__":
    unittest.main()
