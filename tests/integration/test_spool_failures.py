"""What happens around the spool with a real aggregator and a real PostgreSQL: a ledger that is set back, and a node that got another name. The other
failures, with their totals, are in tests/unit/exporter/delivery/test_spool_totals.c, on virtual clocks."""

import hashlib
import os
import shutil
import time
import unittest

from tests.support.daemons.stack import Stack, request, wait_for
from tests.support.exporter.segments import frames_of

POLICY = """
version: 1
cluster: test
tenants: [{name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""
SCENARIO = {
    "name": "failures",
    "gpus": [{"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "count": 2}],
    "processes": [{"pid": 4001, "gpu": 0, "sm": 80, "memory_mib": 1024, "pod": {"namespace": "acme", "name": "a"}}],
}


def spooled(exporter):
    return {hashlib.sha256(f).hexdigest() for f in frames_of(os.path.join(exporter.dir, "spool"))}


def metric(exporter, name):
    for line in request("GET", exporter.url + "/metrics").text().splitlines():
        if line.startswith(name + " "):
            return int(line.split()[1])
    raise AssertionError(f"the exporter shows no {name}")


class Failures(unittest.TestCase):
    def setUp(self):
        self.stack = self.enterContext(Stack())
        self.stack.apply(POLICY)
        self.t0_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def stored(self):
        return {row[0] for row in self.stack.sql("select encode(sha256, 'hex') from ingest_batch")}

    def progress(self, exporter, batches):
        before = len(self.stored())
        wait_for("more batches", lambda: len(self.stored()) >= before + batches, exporter)

    def check_books(self, count):
        """Every stream whole, every record once, and every nanosecond in one state."""
        self.assertEqual(len(self.stored()), count)
        holes = "select stream_id from ingest_batch group by stream_id having min(seq) <> 1 or count(*) <> max(last_seq)"
        self.assertEqual(self.stack.sql(holes), [])
        self.assertEqual(self.stack.sql("select sum(records) from ingest_batch"), self.stack.sql("select count(*) from usage_interval"))
        for gpu in self.stack.get("/v1/conservation").json()["gpus"]:
            self.assertEqual((int(gpu["difference_unit_ns"]), int(gpu["clock_adjust_unit_ns"])), (0, 0), gpu)

    def keep_a_copy(self):
        """As an asynchronous standby would have it."""
        self.stack.aggregator.stop()
        self.stack.pg.create_database("standby", template="tollgate")
        self.stack.restart_aggregator()

    def fail_over(self):
        self.stack.aggregator.kill9()
        self.stack.pg.drop_database("tollgate")
        self.stack.pg.query('ALTER DATABASE standby RENAME TO "tollgate"')
        self.stack.restart_aggregator()

    def test_a_ledger_that_is_set_back_gets_again_what_it_lost_also_of_the_stream_before(self):
        e = self.stack.exporter("n1", SCENARIO, t0_ns=self.t0_ns)
        self.progress(e, 3)
        self.keep_a_copy()
        self.progress(e, 3)
        self.assertEqual(e.stop(), 0, e.words())  # the end of this stream is not in the copy
        e.start()
        self.progress(e, 2)
        before = self.stored()
        self.fail_over()
        self.assertLess(self.stored(), before)
        wait_for("what was lost", lambda: before <= self.stored(), e)
        self.assertEqual(e.stop(), 0, e.words())
        self.assertEqual(self.stored(), spooled(e))
        self.check_books(len(spooled(e)))

    def test_a_node_that_got_another_name_sends_on_and_its_old_batches_wait_for_the_old_name(self):
        nobody = os.path.join(self.stack.dir, "no.token")
        old = self.stack.exporter("old", SCENARIO, t0_ns=self.t0_ns, token_file=nobody)
        wait_for("batches that nobody takes", lambda: metric(old, "tollgate_exporter_spool_batches") >= 3, old)
        self.assertEqual(old.stop(), 0, old.words())
        waiting = spooled(old)
        os.makedirs(os.path.join(self.stack.dir, "new"))
        shutil.move(os.path.join(old.dir, "spool"), os.path.join(self.stack.dir, "new", "spool"))
        new = self.stack.exporter("new", SCENARIO, t0_ns=self.t0_ns)
        self.progress(new, 3)
        wait_for("the count of what is refused", lambda: metric(new, "tollgate_exporter_spool_refused_batches") == len(waiting), new)
        self.assertEqual(self.stored() & waiting, set())
        self.assertEqual(new.stop(), 0, new.words())
        with open(new.log, encoding="utf-8") as f:
            self.assertEqual(sum("refuses an older stream" in line for line in f), 1)
        shutil.move(os.path.join(new.dir, "spool"), os.path.join(old.dir, "spool"))
        with open(nobody, "w", encoding="ascii") as f:
            f.write(self.stack.token("node old", role="node", node="old"))
        old.start()
        wait_for("the batches of the old name", lambda: waiting <= self.stored(), old)
        self.assertEqual(old.stop(), 0, old.words())
        self.assertEqual(self.stored(), spooled(old))


if __name__ == "__main__":
    unittest.main()
