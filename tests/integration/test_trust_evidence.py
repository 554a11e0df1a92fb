"""Somebody changes stored batches: with the daemon's login it is refused, behind the triggers `tollgate verify` names the batch or its range.

Honest flows beside them (release, discard, approval, losses, retention, several replicas, a replica that is killed) stay without a difference."""

import gzip
import hashlib
import json
import os
import subprocess
import time
import unittest

from tests.integration.test_days import DAY
from tests.integration.test_retention import Kept as KeptLedger
from tests.integration.test_trust_held import MINUTE, POLICY, batch
from tests.support.daemons.stack import Stack, wait_for
from tests.support.fleet.fleet import HOUR
from tests.support.store import ledger
from tests.support.store.ledger import NS

OPTIONS = ["--quota-tick", "100ms", "--rollup-interval", "100ms"]
OFF = "set session_replication_role = replica; "
HONEST, BATCHES = "honest", 8


class World(unittest.TestCase):
    """An honest node with a loss and three batches in quarantine, and a node that nobody approved."""

    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=OPTIONS))
        s.apply(POLICY % "")
        cls.at = time.time_ns() // MINUTE * MINUTE - 30 * MINUTE
        s.node_token(HONEST)
        cls.join("stray")
        cls.push(HONEST, 1, 5)
        cls.send(HONEST, [{"node": HONEST, "boot_id": "00" * 16, "epoch": 100, "seq": 6, "last_seq": 9, "kind": 2, "flags": 1,
                           "from_ns": cls.at + 5 * MINUTE, "to_ns": cls.at + 6 * MINUTE}])  # fmt: skip
        for seq in (10, 11, 12):  # a clock that is wrong by an hour
            cls.send(HONEST, [batch(HONEST, seq, cls.at + (seq - 4) * MINUTE)], {"Tollgate-Clock": str(time.time_ns() + 3600 * NS)})
        cls.push(HONEST, 13, 3)
        cls.push("stray", 1, BATCHES)
        cls.anchored()

    @classmethod
    def join(cls, node):
        s = cls.stack
        s.tokens["join"] = s.call("POST", "/v1/join-tokens", b"{}").json()["join_token"]
        s.tokens[f"node {node}"] = s.call("POST", "/v1/join", json.dumps({"node": node}).encode(), "join").json()["token"]

    @classmethod
    def send(cls, node, batches, headers=None):
        reply = cls.stack.call("POST", "/v1/ingest", ledger.frames(batches), f"node {node}", headers=headers or {})
        assert reply.status == 200, reply.text()
        return reply.json()

    @classmethod
    def push(cls, node, seq, count=1):
        return cls.send(node, [batch(node, i, cls.at + (i - 1 if i < 6 or node != HONEST else i - 4) * MINUTE) for i in range(seq, seq + count)])

    @classmethod
    def anchored(cls):
        left = "select count(*) from stream s left join stream_anchor a on a.stream_id = s.id where s.next_seq - 1 > coalesce(a.seq, 0)"
        wait_for("all batches to be in ranges", lambda: cls.stack.sql(left) == [["0"]], cls.stack.aggregator)

    def verify(self):
        done = self.stack.cli("verify", "--all", "-o", "json")
        self.assertIn(done.returncode, (0, 1), done.stdout + done.stderr)
        reply = json.loads(done.stdout)
        return done.returncode, [(d["kind"], d["node"], d["what"]) for d in reply["differences"]], reply

    def sound(self):
        code, found, reply = self.verify()
        self.assertEqual((code, found), (0, []))
        return reply

    def psql(self, statement):
        """With the daemon's login. (ok, what the server said)"""
        s = self.stack
        done = subprocess.run([os.path.join(s.pg.bin, "psql"), "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", s.conninfo(), "-c", statement],
                              capture_output=True, text=True, env={**os.environ, "PGOPTIONS": "-c search_path=tollgate"})  # fmt: skip
        return done.returncode == 0, done.stdout + done.stderr

    def stream(self, node):
        return self.stack.sql(f"select s.id from stream s join node n on n.id = s.node_id where n.name = '{node}'")[0][0]

    def row(self, stream, seq):
        return f"stream_id = {stream} and seq = {seq}"

    def spoil(self, statement, table, where):
        """As the owner of the database, with triggers off; the rows are put back afterwards."""
        self.stack.sql(f"create table public.kept_{table} as select * from {table} where {where}")

        def mend():
            self.stack.sql(OFF + f"delete from {table} where {where}; insert into {table} overriding system value select * from public.kept_{table}; drop table public.kept_{table}")

        self.addCleanup(mend)
        self.stack.sql(OFF + statement)

    def named(self, kind, node, *words):
        code, found, _ = self.verify()
        self.assertEqual(code, 1)
        self.assertTrue([f for f in found if f[0] == kind and f[1] in (node, "") and all(w in f[2] for w in words)], found)


class Attacks(World):
    def test_every_stored_batch_is_checked_and_in_a_range(self):
        reply = self.sound()
        self.assertEqual((reply["batches"], reply["unanchored"], reply["batches_outside"]), (int(self.stack.sql("select count(*) from ingest_batch")[0][0]), 0, 0))
        self.assertEqual(reply["batches"], 5 + 1 + 3 + 3 + BATCHES)

    def test_the_daemons_login_takes_no_accepted_batch_back(self):
        """A2: accepted batches put into quarantine after the fact."""
        stream = self.stream(HONEST)
        moved = "status = 'quarantined', quarantine_id = nextval('quarantine_id'), reason = 'x', class = 'past'"
        decided = "decision = 'discarded', decided_by = 'x', decided_at = now(), decided_why = 'x'"
        touch = f"select node_hours_touch(s.node_id, array[hour_of({self.at})], hour_of({self.at}), hour_of({self.at}), {self.at}, {self.at}, null) from stream s where s.id = {stream}"
        for change in (moved, f"{moved}, {decided}", decided, "status = 'loss'", "held_ns = 1", "reason = 'x', quarantine_id = 7"):
            for seq in (2,) if "loss" in change else (2, 6):
                ok, text = self.psql(f"update ingest_batch set {change} where {self.row(stream, seq)}; {touch}")
                self.assertFalse(ok, change)
                self.assertRegex(text, "and stays so|violates check constraint|was released stays released")
        for statement in ("insert into batch_range values (1, 1, 1, 1, null, true)", "update batch_range set last_seq = 1", "delete from batch_range",
                          "update stream_anchor set seq = 1", "delete from ingest_batch", "update ingest_batch set sha256 = sha256('')",
                          "truncate ingest_batch", "insert into row_journal (relation, operation, keys, hashes) values ('batch_range', 'kept', '{x}', '{x}')"):  # fmt: skip
            ok, text = self.psql(statement)
            self.assertFalse(ok, statement)
            self.assertIn("permission denied", text)
        ok, text = self.psql(f"insert into batch_set_aside (stream_id, seq, gpu, class, reason, records, from_ns, to_ns) values ({stream}, 2, 'GPU-honest-0', 'model', 'x', 1, 1, 2)")
        self.assertFalse(ok, text)
        self.assertIn("were taken in before", text)
        self.sound()

    def test_why_a_batch_is_in_quarantine_is_not_rewritten(self):
        stream = self.stream(HONEST)
        for change in ("class = 'format'", "reason = 'another'", "held_ns = 5", "quarantine_id = 999"):
            ok, text = self.psql(f"update ingest_batch set {change} where {self.row(stream, 10)}")
            self.assertFalse(ok, change)
            self.assertIn("was judged when it came", text)

    def test_z_a_decision_without_its_entry_in_the_audit_log_is_named(self):
        stream = self.stream(HONEST)
        decided = "decision = 'discarded', decided_by = 'x', decided_at = now(), decided_why = 'x'"
        ok, text = self.psql(f"begin; insert into audit_log (actor, action, subject) values ('x', 'tenant.rename', 'y'); update ingest_batch set {decided} where {self.row(stream, 12)}; commit")
        self.assertTrue(ok, text)
        self.named("row-unaudited", "", f"ingest_batch {stream} 12", "of node honest")

    def test_a_status_that_is_changed_behind_the_triggers_is_named(self):
        stream = self.stream(HONEST)
        for seq, change, kind in ((2, "status = 'quarantined', quarantine_id = 9000, reason = 'x', class = 'past'", "row-extra"), (10, "class = 'format'", "row-changed"),
                                  (11, "status = 'accepted', quarantine_id = null, reason = '', class = null", "row-missing"),
                                  (6, "last_seq = 6, status = 'accepted'", "row-missing")):  # fmt: skip
            with self.subTest(change=change):
                where = self.row(stream, seq)
                self.spoil(f"update ingest_batch set {change} where {where}", "ingest_batch", where)
                self.named(kind, "", f"ingest_batch {stream} {seq}, of node honest")
                self.doCleanups()
        self.sound()

    def test_bytes_that_are_replaced_with_their_hash_are_named_by_their_range(self):
        """A5, of an accepted batch and of one in quarantine."""
        stream = self.stream(HONEST)
        for seq in (2, 10):
            with self.subTest(seq=seq):
                where = self.row(stream, seq)
                plain = gzip.decompress(bytes.fromhex(self.stack.sql(f"select encode(payload, 'hex') from ingest_batch where {where}")[0][0]))
                forged = gzip.compress(plain, 1)
                self.spoil(f"update ingest_batch set payload = decode('{forged.hex()}', 'hex'), sha256 = decode('{hashlib.sha256(forged).hexdigest()}', 'hex') where {where}; "
                           "update node_hour set dirty = true where sealed_at is not null; update billing_day set dirty = true where folded_at is not null", "ingest_batch", where)  # fmt: skip
                self.named("batch-range", HONEST, f"(stream {stream})", "what was received")
                self.doCleanups()

    def test_what_was_received_beside_the_bytes_is_named_by_its_range(self):
        stream = self.stream(HONEST)
        for seq, change in ((2, "received_at = received_at + interval '1 us'"), (3, "exporter_version = 'x'"), (10, "from_ns = from_ns + 1"), (10, "records = records + 1")):
            with self.subTest(change=change):
                where = self.row(stream, seq)
                self.spoil(f"update ingest_batch set {change} where {where}", "ingest_batch", where)
                self.named("batch-range", HONEST, "what was received")
                self.doCleanups()

    def test_a_byte_of_a_held_nodes_batch_is_named(self):
        """A6: without an accepted batch no byte was looked at."""
        stream = self.stream("stray")
        where = self.row(stream, 3)
        self.spoil(f"update ingest_batch set payload = set_byte(payload, 20, get_byte(payload, 20) # 1) where {where}", "ingest_batch", where)
        self.named("batch-bytes", "stray", "batch 3 of epoch 100")

    def test_a_held_nodes_batch_that_is_replaced_with_its_hash_is_named(self):
        stream = self.stream("stray")
        where = self.row(stream, 3)
        other = f"(select {{}} from ingest_batch where {self.row(stream, 4)})"
        self.spoil(f"update ingest_batch set payload = {other.format('payload')}, sha256 = {other.format('sha256')} where {where}", "ingest_batch", where)
        self.named("batch-range", "stray", "what was received")

    def test_the_last_batch_of_a_stream_that_is_removed_is_named(self):
        for node, last in (("stray", BATCHES), (HONEST, 15)):
            with self.subTest(node=node):
                stream = self.stream(node)
                where = self.row(stream, last)
                self.spoil(f"delete from ingest_batch where {where}", "ingest_batch", where)
                self.spoil(f"update stream set next_seq = {last} where id = {stream}", "stream", f"id = {stream}")
                self.named("batch-range", node, f"(stream {stream})", "next_seq")
                if node == "stray":
                    self.named("row-missing", "", f"ingest_batch {stream} {last}, of node stray")
                self.doCleanups()
        self.sound()

    def test_ranges_that_are_removed_or_put_back_are_named(self):
        stream = self.stream(HONEST)
        of = f"stream_id = {stream}"
        for table, change, words in (("batch_range", f"delete from batch_range where {of}", "where the ranges of epoch 100"),
                                     ("batch_range", f"update batch_range set hash = sha256('x') where {of}", "what was received"),
                                     ("batch_range", f"update batch_range set hash = null, retired = true, batches = 0 where {of} and first_seq = 1", "which are retired"),
                                     ("stream_anchor", f"delete from stream_anchor where {of}", "where the ranges of epoch 100"),
                                     ("stream", f"update stream set evidence_seq = 3 where id = {stream}", "evidence_seq of epoch 100")):  # fmt: skip
            with self.subTest(change=change):
                # the daemon would go on from where it is told to
                self.stack.aggregator.stop()
                self.spoil(change, table, of if table != "stream" else f"id = {stream}")
                found = self.offline()
                self.doCleanups()
                self.stack.restart_aggregator()
                self.assertTrue([f for f in found if f[0] == "batch-range" and words in f[1]], found)

    def offline(self):
        led = ledger.Ledger.__new__(ledger.Ledger)
        led.cluster, led.name, led.dir = self.stack.pg, "tollgate", self.stack.dir
        return [(d["kind"], d["what"]) for d in led.verify(self.at - DAY, self.at + DAY)["differences"]]

    def test_guards_that_are_narrowed_are_named(self):
        self.stack.sql("drop trigger fate_inserts on ingest_batch; create trigger fate_inserts after insert on ingest_batch for each row when (false) execute function journal_fate(); "
                       "alter table ingest_batch disable trigger settled_batch_stays")  # fmt: skip
        try:
            self.named("trigger", "", "fate_inserts of ingest_batch")
            self.named("trigger", "", "settled_batch_stays of ingest_batch")
        finally:
            self.stack.sql("drop trigger fate_inserts on ingest_batch; create trigger fate_inserts after insert on ingest_batch for each row when "
                           "(new.status <> 'accepted' or new.quarantine_id is not null or new.decision is not null or new.held_ns is not null) execute function journal_fate(); "
                           "alter table ingest_batch enable trigger settled_batch_stays")  # fmt: skip
        self.sound()


class Honest(World):
    def test_1_release_and_discard(self):
        s, stream = self.stack, self.stream(HONEST)
        self.assertEqual(s.cli("quarantine", "discard", stream, "11", "--reason", "no").returncode, 0)
        self.assertEqual(s.cli("quarantine", "release", stream, "10", "--through", "11", "--reason", "its clock was set").returncode, 0)
        self.assertEqual(s.cli("quarantine", "discard", stream, "12", "--reason", "no").returncode, 0)
        self.sound()

    def test_2_a_held_node_that_is_approved_with_two_replicas_one_of_which_is_killed(self):
        s = self.stack
        other = s.replica()
        self.assertEqual(s.call("POST", "/v1/nodes/stray/approve", b'{"reason": "ours"}').status, 200)
        s.aggregator.kill9()
        wait_for("all are taken in", lambda: s.sql("select held from node where name = 'stray'") == [["f"]], other)
        s.restart_aggregator()
        self.push("stray", BATCHES + 1, 3)
        self.anchored()
        reply = self.sound()
        self.assertEqual(reply["batches"], int(s.sql("select count(*) from ingest_batch")[0][0]))
        entries = s.get("/v1/audit?action=node.release").json()["entries"]
        self.assertEqual([(e["subject"], e["after"]["first"], e["after"]["last"], e["after"]["taken"]) for e in entries], [("node stray", 1, BATCHES, BATCHES)])


    def test_3_a_push_that_is_accepted_writes_no_entry_of_its_own(self):
        entries = "select count(*) from row_journal where relation = 'ingest_batch'"
        before = self.stack.sql(entries)
        self.assertEqual(self.push(HONEST, 16, 5)["batches"], 5)
        self.assertEqual(self.stack.sql(entries), before)
        self.anchored()
        self.assertEqual(self.sound()["unanchored"], 0)


class Kept(KeptLedger):
    def anchor(self, led):
        return led.value("select batches from batches_anchor(100000)")

    def found(self, led):
        """Without what comes of a month that was closed by hand."""
        reply = led.verify(led.now - 100 * DAY, led.now)
        return [(d["kind"], d["what"]) for d in reply["differences"] if d["kind"] not in ("close", "line-rated") and not d["what"].startswith("period")]

    def test_batches_that_were_in_ranges_are_retired_with_them(self):
        led, _ = self.old_ledger()
        self.assertEqual(self.anchor(led), led.value("select count(*) from ingest_batch"))
        self.close(led, led.now - 36 * DAY)
        old = int(led.value("select count(*) from ingest_batch where to_ns <= ns_of('2026-12-01 00:00Z')"))
        gone = led.retain(batches=35 * DAY)["batches"]
        self.assertTrue(0 < gone <= old, (gone, old))
        self.assertEqual(led.retain(batches=35 * DAY)["batches"], 0)
        self.assertEqual(self.found(led), [])
        self.assertEqual(self.anchor(led), "0")
        # One that was not retired, and is gone.
        led.assert_sound = lambda: None
        led.rows(OFF + "delete from ingest_batch b using stream s where s.id = b.stream_id and b.seq = 1 and s.evidence_seq = 1; update stream s set evidence_seq = 2 where evidence_seq = 1")
        self.assertIn("batch-range", {kind for kind, _ in self.found(led)})

    def test_what_was_never_in_a_range_is_retired_as_well(self):
        led, _ = self.old_ledger()
        self.close(led, led.now - 36 * DAY)
        self.assertGreater(led.retain(batches=35 * DAY)["batches"], 0)
        self.assertGreater(int(self.anchor(led)), 0)
        self.assertEqual(self.found(led), [])

    def test_a_range_that_is_written_again_is_named_whatever_the_audit_log_says(self):
        led, _ = self.old_ledger()
        self.anchor(led)
        forged = "update ingest_batch set received_at = received_at + interval '1 hour' where seq = 1"
        led.assert_sound = lambda: None
        led.rows(f"{OFF} {forged}; delete from batch_range; delete from stream_anchor; reset session_replication_role; select batches_anchor(100000); "
                 "insert into audit_log (actor, action, subject) values ('x', 'evidence.retire', 'batches')")  # fmt: skip
        self.assertTrue([what for kind, what in self.found(led) if kind == "row-unaudited" and what.startswith("ingest_batch ")])

    def test_a_batch_whose_time_is_not_given_up_is_not_removed(self):
        led, _ = self.old_ledger()
        with self.assertRaisesRegex(RuntimeError, "a batch is evidence: its time is not given up"):
            led.rows("delete from ingest_batch where seq = 1")


for name in dir(KeptLedger):
    if name.startswith("test_"):
        setattr(Kept, name, None)
del KeptLedger

if __name__ == "__main__":
    unittest.main()
