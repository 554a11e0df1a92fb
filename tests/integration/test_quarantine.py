"""A batch in quarantine is decided by an operator: released, it is in the ledger as if it had never been refused; discarded, its time stays
unknown. Either way the ledger says what its evidence says."""

import json
import random
import time
import unittest

from tests.integration import test_store_ingest
from tests.integration.test_store import POLICY, START, all_rows, seed
from tests.integration.test_store_ingest import GPU, POD, batch, record
from tests.support.daemons import pg
from tests.support.daemons.stack import Stack
from tests.support.fleet.fleet import HOUR, MINUTE, NS, Fleet
from tests.support.store.ledger import Ledger, StoreError, frames

SKEW = 31 * NS


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())
        cls.count = 0

    def new_ledger(self, now=START + 12 * HOUR):
        type(self).count += 1
        led = Ledger(self.cluster, f"q{self.count}", now=now)
        self.addCleanup(led.assert_sound)
        return led

    def assert_refused(self, led, one, words):
        """Refused, and nothing at all has changed."""
        before = all_rows(led), led.rows("select * from ingest_batch order by 1, 2"), led.value("select count(*) from audit_log")
        with self.assertRaises(StoreError) as refused:
            led.release(one)
        self.assertEqual(refused.exception.kind, "conflict")
        self.assertIn(words, refused.exception.text)
        self.assertEqual((all_rows(led), led.rows("select * from ingest_batch order by 1, 2"), led.value("select count(*) from audit_log")), before)


class Released(Base):
    def test_a_fleet_with_wrong_clocks_is_right_once_its_batches_are_released(self):
        rng = random.Random(seed())
        fleet = Fleet(rng.randrange(1 << 32), START, START + 3 * HOUR, nodes=2)
        right, led = self.new_ledger(), self.new_ledger()
        for one in (right, led):
            one.apply(POLICY)
        right.ingest_many([s for n in fleet.nodes for s in n.streams])
        for stream in (s for n in fleet.nodes for s in n.streams):
            at = 0
            while at < len(stream):
                some = stream[at : at + rng.randint(1, 12)]
                skewed = rng.random() < 0.5
                r = led.ingest(some, clock=led.now + rng.choice([-SKEW, SKEW]) if skewed else led.now + 29 * NS)
                self.assertEqual((r["ok"], r["quarantined"]), (True, len(some) if skewed else 0), r)
                at += len(some)
            if rng.random() < 0.3:
                led.rollup()
        waiting = led.quarantine("open")
        self.assertEqual({b["class"] for b in waiting}, {"skewed-clock"})
        led.assert_sound()
        rng.shuffle(waiting)
        for i, one in enumerate(waiting):
            self.assertEqual(led.release(one)["decision"], "released")
            if i == len(waiting) // 2:
                led.rollup()
                led.assert_sound()
        self.assertEqual(led.quarantine("open"), [])
        for one in (right, led):
            while sum(one.rollup().values()):
                pass
        self.assertEqual(all_rows(led), all_rows(right))

    def test_a_second_release_changes_nothing_and_the_log_has_it_once(self):
        led = self.new_ledger(START + HOUR)
        led.ingest([batch(1), batch(2)], clock=led.now - SKEW)
        [one, two] = led.quarantine()
        self.assertEqual((one["reason"], one["class"]), ("the node's clock was 31s behind when it sent, more than 30s", "skewed-clock"))
        first = led.release(one, why="ntpd was off")
        rows = all_rows(led)
        again = led.release(one, why="another reason")
        self.assertEqual({**again, "age_seconds": 0}, {**first, "age_seconds": 0})
        self.assertEqual(all_rows(led), rows)
        [[actor, subject, before, after, why]] = led.rows(
            "select actor, subject, before, after, reason from audit_log where action = 'quarantine.release'"
        )
        self.assertEqual((actor, subject, why), ("test", "batch 1 of node n1, epoch 5", "ntpd was off"))
        self.assertEqual((json.loads(before)["decision"], json.loads(after)["records"]), ("open", 1))
        self.assertEqual(led.release(two)["decision"], "released")

    def test_what_is_known_again_is_a_duplicate_whatever_was_decided(self):
        led = self.new_ledger(START + HOUR)
        led.ingest([batch(1), batch(2)], clock=led.now + SKEW)
        [one, two] = led.quarantine()
        led.release(one)
        led.discard(two)
        r = led.ingest([batch(1), batch(2), batch(3)])
        self.assertEqual((r["duplicates"], r["batches"], r["next_seq"]), (2, 1, 4), r)

    def test_the_distant_past_is_overruled_and_the_future_is_waited_for(self):
        led = self.new_ledger(START + 46 * 24 * HOUR)
        led.ingest([batch(1)])
        [old] = led.quarantine()
        self.assertEqual((old["class"], led.release(old)["decision"]), ("past", "released"))
        led = self.new_ledger(START - 10 * MINUTE)
        led.ingest([batch(1)])
        [ahead] = led.quarantine()
        self.assertEqual(ahead["class"], "future")
        self.assert_refused(led, ahead, "it cannot be released: covers time until")
        led.now = START
        self.assertEqual(led.release(ahead)["decision"], "released")

    def test_a_batch_keeps_its_place_in_the_time_of_its_stream(self):
        led = self.new_ledger(START + HOUR)
        over = batch(3, from_ns=START + MINUTE, to_ns=START + 3 * MINUTE, records=[record(start_ns=START + MINUTE)])
        r = led.ingest([batch(1), batch(2), over, batch(4)])
        self.assertEqual((r["batches"], r["classes"]), (3, {"covered": 1}), r)
        [one] = led.quarantine()
        self.assert_refused(led, one, "covers time that batch 2 of this stream accounts for")
        # A loss accounts for numbers, not for time that somebody measured.
        led = self.new_ledger(START + HOUR)
        lost = {**batch(2), "kind": 2, "last_seq": 2, "from_ns": START, "to_ns": START + 10 * MINUTE, "records": []}
        r = led.ingest([batch(1), lost, batch(3)])
        self.assertEqual((r["lost"], r["batches"], r["classes"]), (1, 1, {"covered": 1}), r)
        self.assertEqual(led.release(led.quarantine()[0])["decision"], "released")

    def test_a_gpu_of_two_nodes_is_released_once_one_of_them_is_corrected(self):
        led = self.new_ledger(START + HOUR)
        led.ingest([batch(1), batch(2), batch(3)])
        other = [{**b, "node": "n2", "epoch": 9} for b in (batch(1, **self.later(30)), batch(2, **self.later(31)), batch(3, **self.later(32)))]
        led.ingest(other)
        waiting = led.quarantine(node="n2")
        self.assertEqual([(b["class"], b["gpu"]) for b in waiting], [("two-nodes", "GPU-1")] * 3)
        self.assert_refused(led, waiting[0], "GPU GPU-1 is in service on node n1")
        led.move("GPU-1", "n2", START + 20 * MINUTE)
        for one in waiting:
            led.release(one)
        self.assertEqual(led.value("select count(*) from usage_interval where node_id = (select id from node where name = 'n2')"), "3")

    def later(self, minutes):
        at = START + minutes * MINUTE
        return {"from_ns": at, "to_ns": at + MINUTE, "records": [record(start_ns=at)]}

    def test_a_loss_with_a_wrong_clock_is_released_as_a_loss(self):
        led = self.new_ledger(START + HOUR)
        led.ingest([batch(1)])
        lost = {**batch(2), "kind": 2, "last_seq": 5, "from_ns": START + MINUTE, "to_ns": START + 5 * MINUTE, "records": []}
        r = led.ingest([lost], clock=led.now + SKEW)
        self.assertEqual((r["classes"], r["next_seq"]), ({"skewed-clock": 1}, 6))
        [one] = led.quarantine()
        led.release(one)
        self.assertEqual(led.rows("select status, last_seq from ingest_batch where seq = 2"), [["loss", "5"]])
        self.assertEqual(int(led.value("select sum(unknown) from usage_rows('2026-01-01', '2028-01-01')")), 5040 * 4 * MINUTE)

    def test_what_can_never_be_true_stays_refused_with_its_reason(self):
        led = self.new_ledger(START + HOUR)
        never = [c for c in test_store_ingest.Quarantined.CASES if c[1] in ("format", "dictionary", "weight", "unknown-id")]
        self.assertGreater(len(never), 12)
        for i, (name, klass, change, words) in enumerate(never):
            with self.subTest(name):
                own = [json.loads(json.dumps({**b, "node": f"n{i}"}).replace('"GPU-', f'"GPU-{i}-')) for b in (batch(1), batch(2, **change))]
                led.ingest_many([[own[0]], [own[1]]])
                [one] = led.quarantine(node=f"n{i}")
                self.assertEqual(one["class"], klass)
                self.assert_refused(led, one, words)


class Discarded(Base):
    def test_its_time_stays_unknown_and_it_can_still_be_released(self):
        led = self.new_ledger(START + HOUR)
        led.ingest([batch(1)])
        led.ingest([batch(2)], clock=led.now + SKEW)
        led.ingest([batch(3)])
        unknown = "select sum(unknown) from usage_rows('2026-01-01', '2028-01-01')"
        [one] = led.quarantine("open")
        self.assertEqual(int(led.value(unknown)), 5040 * MINUTE)
        done = led.discard(one, why="nobody knows what it measured")
        self.assertEqual((done["decision"], done["decided_by"], done["why"]), ("discarded", "test", "nobody knows what it measured"))
        self.assertEqual((led.quarantine("open"), len(led.quarantine("discarded"))), ([], 1))
        self.assertEqual(int(led.value(unknown)), 5040 * MINUTE)
        led.assert_sound()
        led.discard(one)
        self.assertEqual(led.value("select count(*) from audit_log where action = 'quarantine.discard'"), "1")
        led.release(one)
        self.assertEqual(int(led.value(unknown)), 0)
        with self.assertRaises(StoreError) as refused:
            led.discard(one)
        self.assertIn("it was released by test at ", refused.exception.text)

    def test_the_table_itself_keeps_decisions_whole_and_final(self):
        led = self.new_ledger(START + HOUR)
        led.ingest([batch(1), batch(2)], clock=led.now + SKEW)
        led.release(led.quarantine()[0])
        for statement in ("update ingest_batch set decision = 'discarded', status = 'quarantined' where seq = 1",
                          "update ingest_batch set decision = 'released' where seq = 2",
                          "update ingest_batch set status = 'accepted' where seq = 2",
                          "update ingest_batch set decision = 'released', decided_by = 'x', decided_at = now(), decided_why = 'y' where seq = 2",
                          "update ingest_batch set reason = '' where seq = 2", "update ingest_batch set class = 'odd' where seq = 2"):  # fmt: skip
            with self.subTest(statement), self.assertRaises(Exception):
                led.rows(statement)

    def test_what_is_not_in_quarantine_cannot_be_decided(self):
        led = self.new_ledger(START + HOUR)
        led.ingest([batch(1)])
        for stream, seq in ((1, 1), (1, 2), (99, 1)):
            with self.subTest(stream=stream, seq=seq), self.assertRaises(StoreError) as refused:
                led.discard({"stream": stream, "seq": seq})
            self.assertEqual(refused.exception.kind, "missing")


class Operator(unittest.TestCase):
    """The interface and the command line, against a running aggregator."""

    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack())

    def test_a_node_with_a_wrong_clock_waits_for_an_operator_who_decides_by_command(self):
        s = self.stack
        now = time.time_ns()
        start = now // HOUR * HOUR - HOUR

        def minute(seq):
            at = start + seq * MINUTE
            return {"node": "n1", "boot_id": "22" * 16, "epoch": 5, "seq": seq, "flags": 1, "from_ns": at, "to_ns": at + MINUTE,
                    "devices": [GPU] if seq == 1 else [], "holders": [POD] if seq == 1 else [], "records": [record(start_ns=at)]}  # fmt: skip

        s.node_token("n1")
        for seq, clock in ((1, None), (2, time.time_ns()), (3, time.time_ns() + 60 * NS), (4, time.time_ns() - 60 * NS), (5, "odd"), (6, -1)):
            headers = {"Tollgate-Clock": str(clock)} if clock else {}
            reply = s.call("POST", "/v1/ingest", frames([minute(seq)]), role="node n1", headers=headers).json()
            self.assertEqual(reply["quarantined"], int(seq in (3, 4)), reply)
        rows = json.loads(s.cli("quarantine", "list", "-o", "json").stdout)
        self.assertEqual([(r["node"], r["seq"], r["class"], r["records"], r["decision"]) for r in rows],
                         [("n1", 4, "skewed-clock", 1, "open"), ("n1", 3, "skewed-clock", 1, "open")])  # fmt: skip
        stream = str(rows[0]["stream"])
        shown = s.cli("quarantine", "show", stream, "3").stdout
        self.assertIn("the node's clock was", shown)
        self.assertIn("first_records", shown)
        page = s.get("/v1/quarantine?limit=1").json()
        self.assertEqual([b["seq"] for b in page["batches"]], [4])
        self.assertEqual([b["seq"] for b in s.get(f"/v1/quarantine?limit=1&before={page['next']}").json()["batches"]], [3])
        done = s.cli("quarantine", "release", stream, "3", "--through", "4", "--reason", "its clock was set", "-o", "json")
        self.assertEqual([(r["seq"], r["decision"], r["why"]) for r in json.loads(done.stdout)], [(3, "released", "its clock was set"), (4, "released", "its clock was set")])
        self.assertEqual(s.sql("select count(*) from tollgate.usage_interval"), [["6"]])
        self.assertEqual(s.cli("quarantine", "discard", stream, "3", "--reason", "x").returncode, 1)
        self.assertEqual(s.cli("quarantine", "release", stream, "9", "--reason", "x").returncode, 1)
        self.assertEqual(s.cli("quarantine", "release", stream, "x", "--reason", "x").returncode, 2)
        self.assertEqual(s.cli("quarantine", "release", stream, "3").returncode, 2)
        self.assertIn("quarantine.release", s.cli("audit", "--action", "quarantine.release").stdout)
        self.assertEqual(s.cli("verify", "--since", "5h").returncode, 0)


if __name__ == "__main__":
    unittest.main()
