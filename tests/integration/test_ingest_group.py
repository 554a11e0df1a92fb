"""Pushes that wait at the same time are one transaction: each has its own outcome, none spoils another, and nothing is counted twice,
whatever is lost on the way and whoever else is writing."""

# also: san

import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import threading
import time
import unittest

from tests.support.daemons import pg
from tests.support.daemons.stack import Stack, wait_for
from tests.support.fleet.fleet import ALL_STATES, HOUR, MINUTE, NS, Fleet, truth
from tests.support.store.ledger import BUILD, Ledger, each_frame, frames

START = 1_796_068_800 * NS  # 2026-11-30T20:00Z
POLICY = """
version: 1
cluster: test
effective: 2026-11-30T00:00:00Z
tenants: [{name: acme, workspaces: [{name: one, rules: [{namespace: %s}]}, {name: two, rules: [{namespace: %s}]}]}]
"""
COMMITS = b"Q\0\0\0\x0bCOMMIT\0", b"B\0\0\0\x14\0commit\0"  # by itself, or behind the last statements of a group


def batch(node, seq, origin=START, **change):
    """A minute of one GPU, held by one pod; the minute follows from the number."""
    start = origin + (seq - 1) * MINUTE
    b = {"node": f"n{node}", "boot_id": "33" * 16, "epoch": 5, "seq": seq, "from_ns": start, "to_ns": start + MINUTE,
         "devices": [{"id": 1, "uuid": f"GPU-{node}", "model": "NVIDIA H100 80GB HBM3"}] if seq == 1 else [],
         "holders": [{"id": 1, "ns": "a", "pod": f"p{node}"}] if seq == 1 else [],
         "records": [[1, 1, 1, 1, 1, 5040, start, MINUTE, MINUTE, MINUTE // 2, 0, 0, 0, 1000, 60]]}  # fmt: skip
    return {**b, **change}


class Proxy(contextlib.AbstractContextManager):
    """Stands between the store and the server, and cuts the connection at the next COMMIT when it is told to."""

    def __init__(self, cluster, name):
        self.target = os.path.join(cluster.socket_dir, ".s.PGSQL.5432")
        self.cut = None  # "before": the server never sees it; "after": its answer is lost
        self.cuts = 0
        self.drained = threading.Event()  # the server has ended the session
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.conninfo = f"host=127.0.0.1 port={self.listener.getsockname()[1]} user={pg.USER} dbname={name} sslmode=disable gssencmode=disable"
        threading.Thread(target=self.accept, daemon=True).start()

    def __exit__(self, *exc):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.target)
            threading.Thread(target=self.forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self.back, args=(server, client), daemon=True).start()

    def forward(self, client, server):
        with client, server, contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self.cut and any(c in data for c in COMMITS):
                    how, self.cut = self.cut, None
                    self.cuts += 1
                    # Nothing more goes back to the client.
                    client.shutdown(socket.SHUT_WR)
                    if how == "after":
                        server.sendall(data)
                    server.shutdown(socket.SHUT_WR)
                    self.drained.wait()
                    return
                server.sendall(data)

    def back(self, server, client):
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                with contextlib.suppress(OSError):
                    client.sendall(data)
        self.drained.set()


class Replica(contextlib.AbstractContextManager):
    """A process with what it remembers of streams, as a running aggregator has it."""

    def __init__(self, led, conninfo=None):
        self.led, self.steps = led, 0
        self.child = subprocess.Popen(
            [os.path.join(BUILD, "tests", "store_tool"), conninfo or led.cluster.conninfo(led.name), "ingest-group", "--now", str(led.now)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip

    def __exit__(self, *exc):
        self.child.stdin.close()
        self.child.wait()
        self.child.stdout.close()

    def send(self, *pushes):
        self.steps += 1
        made = [p if isinstance(p, bytes) else frames(p if isinstance(p, list) else [p]) for p in pushes]
        paths = [self.led.file(data, f"group-{self.child.pid}-{self.steps}-{i}") for i, data in enumerate(made)]
        self.child.stdin.write(" ".join(paths) + "\n")
        self.child.stdin.flush()
        self.expected = len(paths)

    def outcomes(self):
        return [json.loads(self.child.stdout.readline()) for _ in range(self.expected)]

    def push(self, *pushes):
        self.send(*pushes)
        return self.outcomes()


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())
        cls.count = 0

    def setUp(self):
        type(self).count += 1
        self.led = Ledger(self.cluster, f"g{self.count}", now=START + HOUR)
        self.addCleanup(self.led.assert_sound)

    def replica(self, conninfo=None):
        return self.enterContext(Replica(self.led, conninfo))

    def steady(self, replica, nodes):
        """After this the replica knows the streams of these nodes."""
        for r in replica.push(*[batch(n, 1) for n in nodes]):
            self.assertEqual((r["ok"], r["grouped"]), (True, False), r)

    def minutes(self):
        """By node, what the ledger has of it, in minutes of its GPU."""
        rows = self.led.rows("select n.name, sum(u.used + u.idle) from usage_rows('2026-01-01', '2028-01-01') u join node n on n.id = u.node_id group by 1")
        return {name: int(v) // (5040 * MINUTE) for name, v in rows}

    def transactions(self, seq):
        return int(self.led.value(f"select count(distinct xmin::text) from ingest_batch where seq = {seq}"))


class Group(Base):
    def test_steady_streams_share_one_transaction(self):
        a = self.replica()
        self.steady(a, range(5))
        for seq in (2, 3):
            got = a.push(*[[batch(n, seq)] for n in range(5)])
            self.assertEqual([(r["ok"], r["grouped"], r["next_seq"], r["records"]) for r in got], [(True, True, seq + 1, 1)] * 5)
            self.assertEqual(self.transactions(seq), 1)
        self.assertEqual(self.minutes(), {f"n{n}": 3 for n in range(5)})

    def test_one_that_is_not_steady_has_its_own_outcome_and_the_others_go_through_together(self):
        odd = [
            ("a gap", [batch(0, 4)], dict(ok=False, gap=True, next_seq=2)),
            ("a known number with other bytes", [batch(0, 1, records=[])], dict(ok=False, mismatch=True, next_seq=2)),
            ("a duplicate", [batch(0, 1)], dict(ok=True, duplicates=1, batches=0, next_seq=2)),
            ("a duplicate and what follows", [batch(0, 1), batch(0, 2)], dict(ok=True, duplicates=1, batches=1, next_seq=3)),
            ("refused content", [batch(0, 3, from_ns=START)], dict(ok=True, quarantined=1, next_seq=4)),
            ("a loss", [batch(0, 4, kind=2, last_seq=5, records=[], to_ns=START + 5 * MINUTE)], dict(ok=True, lost=2, next_seq=6)),
            ("numbers that do not follow each other", [batch(0, 6), batch(0, 6), batch(0, 7)], dict(ok=True, duplicates=1, batches=2, next_seq=8)),
            ("a holder that is new", [batch(0, 8, holders=[{"id": 2, "ns": "b", "pod": "q"}])], dict(ok=True, batches=1, next_seq=9)),
        ]
        a = self.replica()
        self.steady(a, range(3))
        for seq, (name, push, expected) in enumerate(odd, 2):
            with self.subTest(name):
                first, mine, last = a.push(batch(1, seq), push, batch(2, seq))
                self.assertEqual({k: mine[k] for k in expected}, expected, mine)
                self.assertFalse(mine["grouped"])
                for r in (first, last):
                    self.assertEqual((r["ok"], r["grouped"], r["next_seq"]), (True, True, seq + 1), r)
        self.assertEqual(self.minutes(), {"n0": 5, "n1": 9, "n2": 9})
        (r,) = a.push(batch(0, 9))
        self.assertTrue(r["grouped"], "the stream is steady again")

    def test_a_record_that_names_nobody_the_stream_has_introduced_is_quarantined_as_ever(self):
        a = self.replica()
        self.steady(a, range(2))
        strange = batch(0, 2)
        strange["records"][0][1] = 9
        bad, good = a.push(strange, batch(1, 2))
        self.assertEqual((bad["ok"], bad["quarantined"], good["grouped"]), (True, 1, True))
        self.assertIn("holder 9 was never introduced", bad["reason"])

    def test_two_pushes_of_one_stream_in_a_group_are_taken_in_once(self):
        a = self.replica()
        self.steady(a, range(2))
        got = a.push(batch(0, 2), batch(1, 2), batch(0, 2))
        self.assertEqual([(r["ok"], r["batches"], r["duplicates"]) for r in got], [(True, 1, 0), (True, 1, 0), (True, 0, 1)])
        self.assertEqual(self.minutes(), {"n0": 2, "n1": 2})

    def test_two_streams_of_one_node_do_not_lose_what_either_covers(self):
        a = self.replica()
        record = batch(0, 1)["records"][0]

        def later(seq):
            start = START + (9 + seq) * MINUTE
            return batch(0, seq, epoch=6, from_ns=start, to_ns=start + MINUTE, records=[record[:6] + [start] + record[7:]])

        self.steady(a, [0])
        a.push(later(1))
        got = a.push(batch(0, 2), later(2))
        self.assertTrue(all(r["ok"] for r in got), got)
        self.assertEqual(self.led.value("select covered_until_ns from node"), str(START + 12 * MINUTE))

    def test_a_new_hour_and_a_sealed_one_are_touched_as_ever(self):
        a = self.replica()
        self.led.now = START + 3 * HOUR
        self.steady(a, range(2))
        for r in a.push(*[[batch(n, seq) for seq in range(2, 60)] for n in range(2)]):
            self.assertTrue(r["grouped"], r)
        self.assertEqual(self.led.rollup()["sealed"], 4, "the hour of each, and one of silence")
        # 60 lies in the first hour, 61 begins another
        for r in a.push(*[[batch(n, 60)] for n in range(2)]):
            self.assertTrue(r["grouped"], r)
        self.assertEqual(self.led.value("select count(*) from node_hour where dirty"), "2")
        for r in a.push(*[[batch(n, 61)] for n in range(2)]):
            self.assertTrue(r["grouped"], r)
        self.led.rollup()
        self.assertEqual(self.minutes(), {"n0": 61, "n1": 61})


class Slices(Base):
    """Whoever takes in all records of a slice stores it; what it cannot vouch for is left to the roll-up. The ledger is verified after each."""

    def stored(self):
        """Where the slices of each node end that are there, in minutes, and where its open hour is sliced to."""
        rows = self.led.rows("select n.name, s.until_ns from usage_slice s join node n on n.id = s.node_id order by 1, 2")
        marks = self.led.rows("select n.name, h.sliced_until_ns from node_hour h join node n on n.id = h.node_id where h.sealed_at is null order by 1, h.hour")
        self.assertEqual({name: max(int(v) for n, v in rows if n == name) for name, _ in rows}, {name: int(v) for name, v in marks if v})
        return [(name, (int(until) - START) // MINUTE) for name, until in rows]

    def push(self, replica, seqs, node=0, **change):
        for seq in seqs:
            (r,) = replica.push(batch(node, seq, **change))
            self.assertTrue(r["ok"] and r["batches"], r)

    def test_a_steady_stream_leaves_nothing_to_slice(self):
        a = self.replica()
        for seq in range(1, 13):
            for r in a.push(*[batch(n, seq) for n in range(2)]):
                self.assertTrue(r["ok"], r)
        self.assertEqual(self.stored(), [("n0", 5), ("n0", 10), ("n1", 5), ("n1", 10)])
        self.assertEqual(self.led.slice(), 0)
        self.assertEqual(self.minutes(), {"n0": 12, "n1": 12})

    def test_one_push_of_hours_is_sliced_to_the_last_boundary_of_each(self):
        self.led.now = START + 3 * HOUR
        (r,) = self.replica().push([batch(0, seq) for seq in range(1, 129)])
        self.assertTrue(r["ok"], r)
        self.assertEqual(self.stored(), [("n0", 60), ("n0", 120), ("n0", 125)])
        self.assertEqual(self.led.slice(), 0)
        self.led.rollup()
        self.assertEqual(self.minutes(), {"n0": 128})

    def test_a_holder_that_is_new_does_not_interrupt_a_slice(self):
        a = self.replica()
        self.push(a, range(1, 4))
        self.push(a, [4], holders=[{"id": 2, "ns": "b", "pod": "q"}])
        self.push(a, [5])
        self.assertEqual(self.stored(), [("n0", 5)])

    def test_a_slice_that_another_replica_has_a_part_of_is_left_to_the_roll_up(self):
        a, b = self.replica(), self.replica()
        self.push(a, [1, 2, 3])
        self.push(b, [4])
        self.push(a, [5, 6])
        self.assertEqual(self.stored(), [])
        self.assertEqual(self.led.slice(), 1)
        self.push(a, range(7, 11))
        self.assertEqual(self.stored(), [("n0", 5), ("n0", 10)])

    def test_a_slice_whose_beginning_nobody_has_made_yet_is_left_to_the_roll_up(self):
        a = self.replica()
        self.push(self.replica(), [1])
        self.push(a, range(2, 11))
        self.assertEqual(self.stored(), [], "the first slice was in two hands")
        self.assertEqual(self.led.slice(), 1)
        self.push(a, range(11, 16))
        self.assertEqual(self.stored(), [("n0", 10), ("n0", 15)])

    def test_what_comes_behind_in_the_middle_of_a_slice_is_in_it(self):
        a = self.replica()
        record = batch(0, 1)["records"][0]

        def late(epoch, minute):
            at = START + minute * MINUTE
            self.assertTrue(self.led.ingest([batch(0, 1, epoch=epoch, from_ns=at, to_ns=at + MINUTE, records=[record[:6] + [at] + record[7:]])])["ok"])

        self.push(a, range(1, 4))
        late(8, 1)
        self.push(a, [4, 5])
        self.assertEqual(self.stored(), [], "the first of the hour")
        self.assertEqual(self.led.slice(), 1)
        self.push(a, [6, 7, 8])
        late(9, 6)
        self.assertEqual(self.stored(), [], "what was there is gone with it")
        self.push(a, [9, 10, 11])
        self.assertEqual(self.stored(), [])
        self.assertEqual(self.led.slice(), 1)
        self.assertEqual(self.minutes(), {"n0": 13})

    def test_a_commit_that_fails_or_whose_answer_is_lost_counts_nothing_twice(self):
        for node, how in enumerate(("before", "after")):
            with self.subTest(how), Proxy(self.cluster, self.led.name) as proxy:
                a = self.replica(proxy.conninfo)
                self.push(a, range(1, 4), node)
                proxy.cut = how
                (r,) = a.push(batch(node, 4))
                self.assertTrue(r["ok"], r)
                self.assertEqual(proxy.cuts, 1)
                self.push(a, range(5, 12), node)
                self.led.slice()
                self.assertEqual(self.minutes()[f"n{node}"], 11)
                self.led.assert_sound()

    def test_an_hour_that_somebody_has_locked_is_not_waited_for(self):
        a = self.replica()
        self.push(a, range(1, 5))
        with subprocess.Popen([os.path.join(self.cluster.bin, "psql"), "-X", "-q", "-At", "-d", self.cluster.conninfo(self.led.name)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:  # fmt: skip
            holder.stdin.write("begin; select 'held' from tollgate.node_hour for share;\n")
            holder.stdin.flush()
            self.assertEqual(holder.stdout.readline().strip(), "held")
            self.push(a, [5])
            holder.stdin.close()
        self.assertEqual(self.stored(), [])
        self.assertEqual(self.led.slice(), 1)
        self.push(a, range(6, 11))
        self.assertEqual(self.stored(), [("n0", 5), ("n0", 10)])

    def test_sums_beyond_64_bits_are_left_to_the_roll_up(self):
        a = self.replica()
        for seq in range(1, 6):
            b = batch(0, seq)
            for d in b["devices"]:
                d["model"] = "A model whose memory nobody knows"
            b["records"][0][12] = (1 << 63) - 1
            (r,) = a.push(b)
            self.assertTrue(r["ok"] and r["batches"], r)
        self.assertEqual(self.stored(), [])
        self.assertEqual(self.led.slice(), 1)
        self.assertEqual(self.led.value("select sum(memory_byte_ms) from usage_slice"), str(5 * ((1 << 63) - 1)))


class Others(Base):
    """What somebody else does between two pushes is never overlooked."""

    def test_two_replicas_take_the_same_stream_in_turn(self):
        a, b = self.replica(), self.replica()
        self.steady(a, [0])
        (r,) = b.push(batch(0, 2, holders=[{"id": 2, "ns": "b", "pod": "new"}]))
        self.assertTrue(r["ok"], r)
        by_two = batch(0, 3)
        by_two["records"][0][1] = 2
        (r,) = a.push(by_two)  # a has never heard of holder 2
        self.assertEqual((r["ok"], r["batches"], r["quarantined"]), (True, 1, 0), r)
        for seq in range(4, 10):
            (r,) = (a, b)[seq % 2].push(batch(0, seq))
            self.assertEqual((r["ok"], r["batches"], r["next_seq"]), (True, 1, seq + 1), r)
        (r,) = b.push(batch(0, 9))
        self.assertEqual((r["ok"], r["duplicates"]), (True, 1), r)
        self.assertEqual(self.minutes(), {"n0": 9})

    def test_two_replicas_take_the_same_pushes_at_the_same_time(self):
        a, b = self.replica(), self.replica()
        nodes = range(8)
        self.steady(a, nodes)
        b.push(*[[batch(n, 1), batch(n, 2)] for n in nodes])
        for seq in range(3, 12):
            a.send(*[[batch(n, seq)] for n in nodes])
            b.send(*[[batch(n, seq)] for n in reversed(nodes)])
            pairs = list(zip(a.outcomes(), reversed(b.outcomes())))
            for both in pairs:
                self.assertEqual([r["ok"] for r in both], [True, True], both)
                self.assertEqual(sum(r["batches"] for r in both), 1, both)
                self.assertEqual(sum(len(r["sums"]) > 0 for r in both), 1, "only one of them counts it")
        self.assertEqual(self.minutes(), {f"n{n}": 11 for n in nodes})

    def test_a_stream_that_somebody_holds_does_not_stop_the_others(self):
        a = self.replica()
        self.steady(a, range(3))
        with subprocess.Popen([os.path.join(self.cluster.bin, "psql"), "-X", "-q", "-At", "-d", self.cluster.conninfo(self.led.name)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:  # fmt: skip
            holder.stdin.write("begin; select 'held' from tollgate.stream where id = 2 for update;\n")
            holder.stdin.flush()
            self.assertEqual(holder.stdout.readline().strip(), "held")
            a.send(*[[batch(n, 2)] for n in range(3)])
            wait_for("the two others", lambda: self.led.value("select count(*) from ingest_batch where seq = 2") == "2")
            holder.stdin.write("rollback;\n")
            holder.stdin.close()
        got = a.outcomes()
        self.assertEqual([r["ok"] for r in got], [True] * 3)
        self.assertEqual([r["grouped"] for r in got].count(False), 1)

    def test_a_change_of_rules_changes_whose_the_next_push_is(self):
        self.led.apply(POLICY % ("a", "b"))
        ids = dict((name, int(i)) for i, name in self.led.rows("select id, name from workspace"))
        a = self.replica()
        self.steady(a, range(2))
        for r in a.push(batch(0, 2), batch(1, 2)):
            self.assertEqual((r["grouped"], {s[0] for s in r["sums"]}), (True, {ids["one"]}))
        self.led.apply(POLICY % ("b", "a"))
        for seq, grouped in ((3, False), (4, True)):
            for r in a.push(batch(0, seq), batch(1, seq)):
                self.assertEqual((r["grouped"], {s[0] for s in r["sums"]}), (grouped, {ids["two"]}))

    def test_a_gpu_that_moved_meanwhile_is_not_served_from_memory(self):
        a = self.replica()
        self.steady(a, [0])
        self.led.ingest([batch(1, 1)])
        self.led.move("GPU-0", "n1", START)
        moved = batch(1, 2, devices=[{"id": 2, "uuid": "GPU-0", "model": "NVIDIA H100 80GB HBM3"}], from_ns=START + 5 * MINUTE, to_ns=START + 6 * MINUTE)
        moved["records"][0][0], moved["records"][0][6] = 2, START + 5 * MINUTE
        self.assertEqual(self.led.ingest([moved])["records"], 1)
        self.assertEqual(self.led.value("select count(*) from gpu_service where moved_to is null"), "2")
        late = batch(0, 2, from_ns=START + 5 * MINUTE, to_ns=START + 6 * MINUTE)
        late["records"][0][6] = START + 5 * MINUTE
        (r,) = a.push(late)
        self.assertEqual((r["ok"], r["quarantined"], r["set_aside"]), (True, 0, 1), r)
        self.assertIn("GPU GPU-0 is in service on node n1", r["reason"])

    def test_a_partition_that_is_gone_is_made_again(self):
        a = self.replica()
        self.steady(a, range(2))
        self.led.rows("drop table usage_interval_20261130; set session_replication_role = replica; delete from ingest_batch; reset session_replication_role; update stream set next_seq = 2")
        for r in a.push(batch(0, 2), batch(1, 2)):
            self.assertEqual((r["ok"], r["grouped"]), (True, False), r)
        self.led.rows("set session_replication_role = replica; truncate usage_interval, ingest_batch, usage_hourly, node_hour, gpu, gpu_service, stream_device, stream_holder, stream cascade; "
                      "delete from row_journal where relation in ('gpu', 'gpu_spec', 'device', 'gpu_service', 'stream_device', 'stream_holder', 'stream')")  # fmt: skip
        self.led.rows("update node set covered_until_ns = null, hours_from = null, hours_until = null")


class Random(Base):
    def test_a_random_fleet_in_groups_of_two_replicas_adds_up_to_its_records(self):
        value = int(os.environ.get("TOLLGATE_PROP_SEED") or str(random.randrange(1 << 32)), 0)
        print(f"seed {value} (TOLLGATE_PROP_SEED={value} repeats it)", flush=True)
        rng = random.Random(value)
        fleet = Fleet(rng.randrange(1 << 32), START, START + 2 * HOUR, nodes=4)
        self.led.now = START + 4 * HOUR
        for first, *others in (s for n in fleet.nodes for s in n.streams):
            for kind in ("devices", "holders"):  # all that a stream names comes first: what follows is steady
                first[kind] = list({e["id"]: e for b in (first, *others) for e in b[kind]}.values())
                for b in others:
                    b[kind] = []
        streams = [(n.name, each_frame(s)) for n in fleet.nodes for s in n.streams]
        at = [0] * len(streams)
        replicas = [self.replica(), self.replica()]
        while left := [i for i, (_, s) in enumerate(streams) if at[i] < len(s)]:
            # Mostly the oldest of each node, and by the same replica.
            oldest = list({streams[i][0]: i for i in reversed(left)}.values())
            sent = []
            for r in rng.choice([replicas[:1], replicas[:1], replicas[:1], replicas[1:], replicas]):
                among = left if rng.random() < 0.1 else oldest
                chosen = rng.sample(among, rng.randint(1, len(among)))
                r.send(*[b"".join(streams[i][1][max(0, at[i] - rng.choice([0, 0, 0, 1])) : at[i] + rng.choice([1, 1, 1, 3])]) for i in chosen])
                sent.append((r, chosen))
            for r, chosen in sent:
                for i, got in zip(chosen, r.outcomes()):
                    self.assertEqual((got["ok"], got["quarantined"]), (True, 0), got)
                    at[i] = max(at[i], got["next_seq"] - 1)
            if rng.random() < 0.1:
                rng.choice([self.led.rollup, self.led.slice])()
        self.led.rollup()
        states = "(values " + ", ".join(f"('{s}', u.{s})" for s in ALL_STATES) + ") s(state, v)"
        rows = self.led.rows(
            "select g.uuid, ns_of(u.hour), s.state, sum(s.v) from usage_rows('2026-01-01', '2028-01-01') u join device d on d.id = u.device_id "
            f"join gpu g on g.id = d.gpu_id, lateral {states} where s.v <> 0 group by 1, 2, 3"
        )
        self.assertEqual({(uuid, int(hour), state): int(v) for uuid, hour, state, v in rows}, truth(fleet.batches(), self.led.now, self.led.grace)[0])


class Lost(Base):
    """The connection is gone at the very COMMIT: the outcome is unknown to whoever asked, and never wrong in the books."""

    def test_a_commit_that_was_or_was_not_done_is_found_out_by_doing_it_again(self):
        for how in ("before", "after"):
            with self.subTest(how), Proxy(self.cluster, self.led.name) as proxy:
                shift = {"before": 0, "after": 10}[how]
                a = self.replica(proxy.conninfo)
                nodes = [shift + n for n in range(4)]
                self.steady(a, nodes)
                proxy.drained.clear()
                proxy.cut = how
                got = a.push(*[[batch(n, 2)] for n in nodes])
                self.assertEqual(proxy.cuts, 1)
                for r in got:
                    self.assertEqual((r["ok"], r["grouped"], r["next_seq"]), (True, False, 3), r)
                    self.assertEqual((r["batches"], r["duplicates"]), (1, 0) if how == "before" else (0, 1), r)
                for r in a.push(*[[batch(n, 3)] for n in nodes]):
                    self.assertEqual((r["ok"], r["batches"]), (True, 1), r)
                self.assertEqual({self.minutes()[f"n{n}"] for n in nodes}, {3})

    def test_a_server_that_was_restarted_is_asked_everything_anew(self):
        a = self.replica()
        self.steady(a, range(3))
        self.assertTrue(all(r["grouped"] for r in a.push(*[[batch(n, 2)] for n in range(3)])))
        self.cluster.crash()
        down = a.push(*[[batch(n, 3)] for n in range(3)])
        self.assertEqual({(r["ok"], r["error"]) for r in down}, {(False, "retry")}, down)
        self.cluster.start()
        for r in a.push(*[[batch(n, 3)] for n in range(3)]):
            self.assertEqual((r["ok"], r["grouped"], r["batches"]), (True, False, 1), r)
        for r in a.push(*[[batch(n, 4)] for n in range(3)]):
            self.assertEqual((r["ok"], r["grouped"]), (True, True), r)
        self.assertEqual(self.minutes(), {f"n{n}": 4 for n in range(3)})


class KillNine(unittest.TestCase):
    NODES, BATCHES, BLOWS = 6, 60, 3

    def test_an_aggregator_killed_with_groups_half_way_loses_nothing_and_counts_nothing_twice(self):
        origin = time.time_ns() // (24 * HOUR) * 24 * HOUR - 24 * HOUR
        with Stack() as s:
            acknowledged = [0] * self.NODES
            threads = [threading.Thread(target=self.node, args=(s, n, origin, acknowledged)) for n in range(self.NODES)]
            for n in range(self.NODES):
                s.token(f"node n{n}", role="node", node=f"n{n}")
            for t in threads:
                t.start()
            for blow in range(1, self.BLOWS + 1):
                due = blow * self.NODES * self.BATCHES // (self.BLOWS + 1)
                wait_for("batches to be acknowledged", lambda: sum(acknowledged) >= due, s.aggregator)
                s.aggregator.kill9()
                s.restart_aggregator()
            for t in threads:
                t.join()
            self.assertEqual(acknowledged, [self.BATCHES] * self.NODES)
            rows = s.sql("select n.name, t.next_seq, (select count(*) from tollgate.ingest_batch b where b.stream_id = t.id and b.status = 'accepted'), "
                         "(select count(*) from tollgate.usage_interval i where i.stream_id = t.id) "
                         "from tollgate.stream t join tollgate.node n on n.id = t.node_id order by 1")  # fmt: skip
            self.assertEqual(rows, [[f"n{n}", str(self.BATCHES + 1), str(self.BATCHES), str(self.BATCHES)] for n in range(self.NODES)])
            verified = s.cli("verify", "--since", "3d")
            self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)

    def node(self, s, n, origin, acknowledged):
        """One after the other, each until it is acknowledged."""
        for frame in each_frame([batch(n, seq, origin) for seq in range(1, self.BATCHES + 1)]):
            while True:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    reply = s.call("POST", "/v1/ingest", frame, role=f"node n{n}")
                    if reply.status == 200:
                        break
                    if reply.status < 500:
                        return  # acknowledged stays behind, and the test fails
            acknowledged[n] += 1


if __name__ == "__main__":
    unittest.main()
