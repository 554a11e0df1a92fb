"""kill -9 of any process at any moment: nothing that was acknowledged is lost, and nothing is counted twice."""

import hashlib
import os
import random
import time
import unittest
from decimal import Decimal

from tests.support.daemons.stack import Stack, wait_for
from tests.support.exporter.segments import frames_of

POLICY = """
version: 1
cluster: test
tenants: [{name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""
SCENARIO = {
    "name": "crash",
    "gpus": [{"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "count": 2}],
    "processes": [
        {"pid": 4001, "gpu": 0, "sm": 80, "memory_mib": 1024, "pod": {"namespace": "acme", "name": "a"}},
        {"pid": 4002, "gpu": 1, "start": "1s", "end": "2s", "every": "3s", "sm": 80, "memory_mib": 1024, "pod": {"namespace": "acme", "name": "b"}},
    ],
}


class KillNine(unittest.TestCase):
    def test_any_one_process_killed_and_started_again_leaves_the_books_right(self):
        seed = int(os.environ.get("TOLLGATE_PROP_SEED") or random.randrange(1 << 32))
        print(f"seed {seed}")
        rng = random.Random(seed)
        with Stack() as s:
            s.apply(POLICY)
            e = s.exporter("n1", SCENARIO, t0_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME))
            acknowledged = set()
            for victim in rng.sample(["exporter", "aggregator", "database"] * 2, 6):
                self.progress(s, e)
                time.sleep(rng.random())  # so that the blow falls anywhere in a tick, a write or a push
                acknowledged |= self.stored(s)
                if victim == "exporter":
                    e.kill9()
                    e.start()
                elif victim == "aggregator":
                    s.aggregator.kill9()
                    s.restart_aggregator()
                else:
                    s.pg.crash()
                    s.pg.start()
                    s.wait_ready()
                self.assertLessEqual(acknowledged, self.stored(s), f"killing the {victim} lost acknowledged batches")
            self.progress(s, e)
            self.assertEqual(e.stop(), 0, e.words())
            self.books_are_right(s, e)

    def stored(self, s):
        return {row[0] for row in s.sql("select encode(sha256, 'hex') from tollgate.ingest_batch")}

    def progress(self, s, e):
        before = len(self.stored(s))
        wait_for("two more batches", lambda: len(self.stored(s)) >= before + 2, e)

    def books_are_right(self, s, e):
        for stream, rows, first, last, next_seq in s.sql(
            "select stream_id, count(*), min(seq), max(last_seq), (select next_seq from tollgate.stream where id = stream_id) "
            "from tollgate.ingest_batch group by stream_id"
        ):
            self.assertEqual((first, rows, int(next_seq)), ("1", last, int(last) + 1), f"stream {stream} has a hole")
        self.assertEqual(s.sql("select count(*) from tollgate.ingest_batch where status <> 'accepted'"), [["0"]])
        spooled = {hashlib.sha256(f).hexdigest() for f in frames_of(os.path.join(e.dir, "spool"))}
        self.assertEqual(spooled, self.stored(s), "the spool and the ledger do not hold the same batches")
        self.assertEqual(
            s.sql("select sum(records) from tollgate.ingest_batch"), s.sql("select count(*) from tollgate.usage_interval")
        )
        for g in s.get("/v1/conservation").json()["gpus"]:
            self.assertEqual(Decimal(g["difference_gpu_hours"]), 0, g)
            self.assertEqual(Decimal(g["clock_adjust_gpu_hours"]), 0, g)
        verified = s.cli("verify")
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)


if __name__ == "__main__":
    unittest.main()
