"""A ledger that an earlier release filled (tests/support/old_ledger.py), upgraded: nothing that was billed changes, everything can be proved, and the next month closes."""

import collections
import csv
import gzip
import hashlib
import io
import json
import os
import subprocess
import time
import unittest
from decimal import Decimal

from tests.integration import test_sums
from tests.support import ledger
from tests.support.clock import Clock
from tests.support.old_ledger import MONTHS, NOW
from tests.support.stack import ROOT, Stack, wait_for

NS = 1_000_000_000
DUMP = os.path.join(ROOT, "tests", "golden", "upgrade", "ledger-0.1.0.sql.gz")
FORMATS = ("csv", "json", "focus.csv", "html")
CLOSED = ("2026-09", "2026-10")
SOON, LATER = NOW + 3600 * NS, NOW + 40 * 86400 * NS  # in November, in December


class Upgrade(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.clock = clock = cls.enterClassContext(Clock())
        cls.set(SOON)
        cls.s = s = cls.enterClassContext(Stack(options=["--rollup-interval", "100ms"], clock=clock, wall=clock))  # its ledger gives way: the logins stay
        s.aggregator.stop()
        s.pg.query("drop database tollgate", "postgres")
        s.pg.query("create database tollgate", "postgres")
        argv = [os.path.join(s.pg.bin, "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", os.devnull, "-d", s.pg.conninfo("tollgate")]
        with gzip.open(DUMP) as dump:
            subprocess.run(argv, input=b"create extension btree_gist;" + dump.read(), check=True)
        cls.had = int(s.sql("select count(*) from tollgate.schema_migration")[0][0])
        cls.before = cls.billed()
        s.migrate()
        s._aggregator_token()
        s.restart_aggregator()

    @classmethod
    def set(cls, now):
        cls.clock.set((now - time.time_ns()) / NS)

    @classmethod
    def billed(cls):
        """All rows that were billed, without columns that are empty: those that are new must be."""
        old = "jsonb_strip_nulls(to_jsonb(t)) from tollgate.{} t where t.number in (select i.number from tollgate.invoice i where i.closed_in < '2026-11') order by 1::text"
        rows = {name: cls.s.sql("select " + old.format(name)) for name in ("invoice", "invoice_total", "invoice_line")}
        rows["documents"] = cls.s.sql("select month, tenant_id, format, encode(sha256, 'hex') from tollgate.invoice_document where month < '2026-11' order by 1, 2, 3")
        return rows

    def verify(self):
        done = self.s.cli("verify", "--all", "-o", "json")
        found = json.loads(done.stdout)["differences"]
        kinds = collections.Counter(d["kind"] for d in found)
        told = "\n".join(f"{d['kind']} {d['what']}: {d['expected'][:300]}, found {d['found'][:300]}" for d in found[:60])
        self.assertFalse(found, f"{dict(kinds)}\n{told}")

    def test_the_dump_is_of_before(self):
        self.assertEqual(self.had, 32)

    def test_the_cost_of_a_closed_month_is_its_invoice(self):
        """Other lines, and other cents, would be rated by the rules of today."""
        s, ends = self.s, {"2026-09": "2026-10", "2026-10": "2026-11"}
        for month in CLOSED:
            billed = collections.Counter()
            for row in csv.DictReader(io.StringIO(s.get(f"/v1/reports/{month}.csv").text())):
                billed[row["tenant"]] += Decimal(row["billed_cost"])
            self.assertGreater(len(billed), 2)
            for tenant, invoice in billed.items():
                with self.subTest(month=month, tenant=tenant):
                    got = s.get(f"/v1/usage?cost=1&from={month}-01&to={ends[month]}-01&group_by=workspace&tenant={tenant}").json()
                    parts = got["costs_without_workload"] + [cost for group in got["groups"] for cost in group["costs"]]
                    self.assertEqual(sum(Decimal(cost["amount"]) for cost in got["costs_total"]), invoice)
                    self.assertEqual(sum(Decimal(cost["amount"]) for cost in parts), invoice)

    def corrections(self):
        return [line for line in self.s.get("/v1/reports/2026-11.json").json()["lines"] if line["correction_of"]]

    def test_nothing_that_was_billed_changes_and_only_what_comes_late_is_corrected(self):
        s = self.s
        self.verify()
        self.assertEqual(s.words_of("decided otherwise"), [])
        self.assertEqual(self.corrections(), [])
        days = s.get("/v1/usage?from=2026-09-29&to=2026-10-02&group_by=&exact=1").json()["groups"]
        self.assertEqual([(g["sm_measured_unit_ns"], g["peak_memory_bytes"]) for g in days], [("0", "0")])
        # an hour of a node that was not heard of: other lines of that month would be rated otherwise now, and are not corrected
        s.token("n5", role="node", node="n5")
        reply = s.call("POST", "/v1/ingest", ledger.frames(test_sums.batches("n5", MONTHS["2026-10"], 1)), role="n5")
        self.assertEqual((reply.status, reply.json()["quarantined"]), (200, 0), reply.text())
        wait_for("the day to be folded", lambda: s.sql("select (select count(*) from charge_day where gpu_model = 'A100-40GB') > 0 and not exists (select from billing_day where dirty)") == [["t"]], s.aggregator)
        late = self.corrections()
        self.assertEqual({(line["tenant"], line["gpu_model"], line["category"]) for line in late}, {("globex", "A100-40GB", "gpu"), ("globex", "", "energy")})
        self.set(LATER)
        done = s.cli("close", "2026-11", "--reason", "a test", "--yes")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual({line_id for [line_id] in s.sql("select line_id from invoice_line where correction_of is not null")}, {line["line_id"] for line in late})
        self.assertEqual(self.billed(), self.before)
        stored = {(month, form): sha for month, tenant, form, sha in self.before["documents"] if tenant is None}
        for month in CLOSED:
            for form in FORMATS:
                with self.subTest(month=month, format=form):
                    self.assertEqual(hashlib.sha256(s.get(f"/v1/reports/{month}.{form}").body).hexdigest(), stored[month, form])
            done = s.cli("report", month, "--recompute")
            self.assertIn("was rated by rules 1 of an earlier release", done.stderr)
        self.assertEqual(s.cli("report", "2026-11", "--recompute").returncode, 0)
        self.verify()


if __name__ == "__main__":
    unittest.main()
