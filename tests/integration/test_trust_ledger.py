"""Somebody changes the ledger behind its back: whatever a bill is made from, `tollgate verify` names the row, or the database refuses the change.

The attacks run against the programs, on the ledger of test_sums: two months, one closed and corrected, with every class, MIG, events and credits."""

import csv
import io
import json
import unittest

from tests.integration import test_sums


class World(test_sums.Sums):
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
        self.assertEqual((code, differences), (0, []))
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
