"""A change of rules reaches the holders that are there in small steps: whatever happens between two of them, the end is what a ledger gives
that had the rules from the start."""

import os
import random
import subprocess
import unittest

from tests.integration.test_store import START, all_rows, seed
from tests.support.daemons import pg
from tests.support.fleet.fleet import HOUR, MINUTE, Fleet
from tests.support.store.ledger import Ledger, StoreError


def policy(rng, effective):
    """Any rules for the namespaces of a fleet: some owned, some by a pattern, some by nobody."""
    names = [f"ns-{i}" for i in range(6)]
    rng.shuffle(names)
    cut = rng.randint(0, 5)
    some, others = ([f'{{namespace: "{n}"}}' for n in part] for part in (names[:cut], names[cut:5]))
    if rng.random() < 0.5:
        others.append('{namespace: "ns-*", priority: 900}')
    text = "version: 1\ncluster: test\neffective: %s\ntenants:\n" % effective
    return text + f"  - {{name: acme, workspaces: [{{name: a, rules: [{', '.join(some)}]}}]}}\n  - {{name: globex, workspaces: [{{name: b, rules: [{', '.join(others)}]}}]}}\n"


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())

    def late(self, led, text):
        """The change alone, as if the server had stopped right behind it: its steps are still to be done."""
        led.apply(text)
        led.rows("update reattribution set finished_at = null, hour = null, last_hour = null, after_id = 0, holders_done = 0, changed = 0")

    def many(self, led, n):
        """Holders that hold nothing, attributed to nobody by rules of before."""
        led.rows(
            "insert into holder (identity, cluster_id, kind, namespace, pod, pod_uid, container, slurm_job, slurm_account, user_name, uid) "
            f"select sha256(g::text::bytea), (select cluster_id from ledger), 1, 'many-' || g % 97, 'p' || g, '', '', '', '', '', -1 from generate_series(1, {n}) g"
        )
        led.rows("insert into holder_attribution select h.id, w.id, '(,)' from holder h, workspace w where w.builtin and not exists (select from holder_attribution a where a.holder_id = h.id)")


class Steps(Base):
    def test_changes_of_rules_among_ingest_and_roll_ups_end_as_if_they_had_always_been(self):
        rng = random.Random(seed())
        fleet = Fleet(rng.randrange(1 << 32), START, START + 5 * HOUR, nodes=3)
        streams = [s for n in fleet.nodes for s in n.streams]
        hours = sorted(rng.sample(range(0, 5), 3))
        policies = [policy(rng, f"2026-11-30T{18 + h:02}:00:00Z" if 18 + h < 24 else f"2026-12-01T{h - 6:02}:00:00Z") for h in hours]
        fresh = Ledger(self.cluster, "fresh", now=START + 12 * HOUR)
        for p in policies:
            fresh.apply(p)
        fresh.ingest_many(streams)
        led = Ledger(self.cluster, "changed", now=START + 12 * HOUR)
        waiting = list(streams)
        for p in policies:
            led.ingest_many([waiting.pop(0) for _ in range(min(len(waiting), rng.randint(0, 4)))] or [streams[0]])
            if rng.random() < 0.7:
                led.rollup()
            self.late(led, p)
            for _ in range(rng.randint(0, 3)):
                rng.choice([lambda: led.run("reattribute", "--steps", 1), led.rollup, lambda: led.ingest_many([waiting.pop(0)] if waiting else [streams[0]])])()
        led.ingest_many(waiting or [streams[0]])
        self.assertFalse(led.run("reattribute")["running"])
        for one in (fresh, led):
            while sum(one.rollup().values()):
                pass
            one.assert_sound()
        self.assertEqual(all_rows(led), all_rows(fresh))
        self.assertGreater(len({row[5] for row in all_rows(led)}), 1)

    def test_progress_is_told_and_verify_waits_for_the_end(self):
        led = Ledger(self.cluster, "progress", now=START + HOUR)
        self.many(led, 25_000)
        r = led.apply('version: 1\ncluster: test\neffective: 2026-11-30T00:00:00Z\ntenants: [{name: acme, workspaces: [{name: w, rules: [{namespace: "many-*"}]}]}]')
        self.assertGreater(r["changes"], 0)
        at = led.run("reattribute", "--steps", 0)
        self.assertEqual((at["running"], at["holders"], at["finished"]), (True, 25_000, None))
        self.assertTrue(0 < at["holders_done"] < 25_000, at)
        with self.assertRaises(StoreError) as refused:
            led.verify(START, START + HOUR)
        self.assertEqual(refused.exception.kind, "retry")
        self.assertIn("of 25000 holders are attributed again so far", refused.exception.text)
        at = led.run("reattribute")
        self.assertEqual((at["running"], at["holders_done"], at["changed"]), (False, 25_000, 25_000))
        self.assertEqual(led.value("select count(*) from holder_attribution a join workspace w on w.id = a.workspace_id where w.name = 'w' and upper_inf(effective)"), "25000")
        self.assertEqual(led.value("select after ->> 'changed' from audit_log where action = 'policy.reattribute'"), "25000")
        led.assert_sound()

    def test_new_holders_are_taken_in_while_a_step_is_under_way(self):
        led = Ledger(self.cluster, "ingest", now=START + HOUR)
        text = 'version: 1\ncluster: test\neffective: 2026-11-30T00:00:00Z\ntenants: [{name: acme, workspaces: [{name: w, rules: [{namespace: "%s"}]}]}]'
        led.apply(text % "ns-*")
        self.late(led, text % "ns-?")
        fleet = Fleet(3, START, START + 50 * MINUTE, nodes=2)
        # A step in another session, which has done its work and does not end.
        step = subprocess.Popen(
            [os.path.join(self.cluster.bin, "psql"), "-X", "-q", "-d", self.cluster.conninfo(led.name)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        step.stdin.write("begin; select pg_advisory_xact_lock_shared(1953459308, 2); select * from tollgate.reattribution for update; select 'held';\n")
        step.stdin.flush()
        while "held" not in step.stdout.readline():
            pass
        taken = led.ingest_many([s for n in fleet.nodes for s in n.streams])
        self.assertTrue(taken and all(r["ok"] for r in taken))
        self.assertGreater(int(led.value("select count(*) from holder")), 0)
        self.assertTrue(led.run("reattribute")["running"], "another one is at it")
        step.communicate("\\q\n")
        led.run("reattribute")
        self.assertEqual(led.value("select count(*) from holder h where not exists (select from holder_attribution a where a.holder_id = h.id)"), "0")
        led.assert_sound()


if __name__ == "__main__":
    unittest.main()
