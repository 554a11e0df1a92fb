"""Two aggregators on one database, behind a door that leads to either: whatever is repeated, split, delayed, cut off or killed, and
whichever server the database is, the ledger is that of the records."""

import datetime
import hashlib
import os
import random
import threading
import time
import unittest
import urllib.error
from http.client import HTTPException

from tests.integration.test_store import OWNER, POLICY, by_state, by_workspace, seed
from tests.support.daemons.stack import Stack, answers, request, wait_for
from tests.support.daemons.target import Target
from tests.support.exporter.segments import frames_of
from tests.support.fleet.fleet import HOUR, NS, Fleet, truth
from tests.support.store.ledger import each_frame

OPTIONS = ["--rollup-interval", "200ms"]


def last_month_end():
    """Four hours before the last end of a month: what is sent from then on comes late, past midnight and past the month."""
    today = datetime.datetime.now(datetime.timezone.utc).date()
    first = datetime.datetime(today.year, today.month, 1, tzinfo=datetime.timezone.utc)
    if datetime.datetime.now(datetime.timezone.utc) - first < datetime.timedelta(hours=16):
        first = (first - datetime.timedelta(days=1)).replace(day=1)
    return int(first.timestamp()) * NS - 4 * HOUR


class Sender(threading.Thread):
    """A node that pushes as an exporter does, only worse: pushes of any size, some of it again, streams in turn."""

    def __init__(self, rng, url, token, node, tell):
        super().__init__(daemon=True)
        self.rng, self.url, self.token, self.tell = random.Random(rng.randrange(1 << 32)), url, token, tell
        self.streams = [[each_frame(s), 0] for s in node.streams]
        self.failure = None

    def run(self):
        try:
            while self.streams:
                self.push(self.rng.choice(self.streams))
                self.tell()
        except BaseException as error:  # pylint: disable=broad-except
            self.failure = error

    def push(self, stream):
        frames, at = stream
        n = self.rng.choice([1, 2, 5, 20])
        first = max(0, at - self.rng.randint(0, 3)) if self.rng.random() < 0.3 else at
        if self.rng.random() < 0.05 and at + 1 < len(frames):
            first = at + 1
        try:
            reply = request("POST", self.url + "/v1/ingest", b"".join(frames[first : at + 1 + n]), self.token)
            body = reply.json()
        except (OSError, HTTPException, urllib.error.URLError, ValueError):
            time.sleep(0.02)  # nobody there, or cut off: it may have been taken in or not
            return
        if reply.status == 200:
            assert body["quarantined"] == 0, body
            stream[1] = body["next_seq"] - 1
        elif reply.status == 409 and "expected_seq" in body:
            stream[1] = body["expected_seq"] - 1
        elif reply.status in (429, 500, 502, 503, 504):
            time.sleep(0.02)
        else:
            raise AssertionError(f"{reply.status} {body}")
        if stream[1] >= len(frames):
            self.streams.remove(stream)


class Fate:
    """Deals blows while the senders work, one each time that so many pushes were answered. It works in the thread that makes it: a
    server that another thread starts is stopped when that thread ends."""

    def __init__(self, stack, replicas, rng, blows, every):
        self.stack, self.replicas, self.rng = stack, replicas, random.Random(rng.randrange(1 << 32))
        self.left, self.every, self.dealt = blows, every, []
        self.answers = threading.Semaphore(0)

    def answered(self):
        self.answers.release()

    def watch(self, senders):
        while self.left and any(t.is_alive() for t in senders):
            count = 0
            while count < self.every and any(t.is_alive() for t in senders):
                self.revive()
                count += self.answers.acquire(timeout=0.1)
            self.left -= 1
            self.strike(self.rng.choice(["aggregator", "aggregator", "both", "database"]))

    def revive(self):
        """As its unit does: an aggregator that the database left while it started has ended."""
        for p in self.replicas:
            if p.ended():
                p.start()
        return True

    def strike(self, what):
        self.dealt.append(what)
        if what == "database":
            self.stack.pg.crash()
            self.stack.pg.start()
            return
        for p in self.replicas if what == "both" else [self.rng.choice(self.replicas)]:
            p.kill9()
            p.start()


class Replicas(unittest.TestCase):
    def test_a_random_fleet_through_two_replicas_and_any_blows_gives_its_truth(self):
        for size, blows, cut in ((2, 0, 0.2), (3, 6, 0.1)):
            with self.subTest(nodes=size, blows=blows):
                self.deliver(random.Random(seed()), size, blows, cut)

    def deliver(self, rng, size, blows, cut):
        start = last_month_end()
        fleet = Fleet(rng.randrange(1 << 32), start, start + 12 * HOUR, size)
        with Stack(options=OPTIONS) as s:
            s.apply(POLICY.replace("2026-11-30T00:00:00Z", iso(start - 24 * HOUR)))
            replicas = [s.aggregator, s.replica()]
            with Target([s.port, replicas[1].port], rng, cut) as door:
                pushes = sum(len(x) for n in fleet.nodes for x in n.streams) // 6
                fate = Fate(s, replicas, rng, blows, max(1, pushes // (blows + 1)))
                url = f"http://127.0.0.1:{door.port}"
                senders = [Sender(rng, url, self.token(s, n.name), n, fate.answered) for n in fleet.nodes]
                for t in senders:
                    t.start()
                fate.watch(senders)
                for t in senders:
                    while t.is_alive():
                        fate.revive()
                        t.join(timeout=0.1)
                    self.assertIsNone(t.failure, t.failure)
                wait_for("the replicas to be ready", lambda: fate.revive() and all(answers(f"http://127.0.0.1:{port}/readyz") for port in (s.port, replicas[1].port)))
                self.assertEqual(fate.left, 0, "every blow was dealt")
                self.assertGreater(door.cuts, 0)
            self.check(s, fleet, fate.dealt)

    def token(self, s, node):
        return s.token(f"node {node}", role="node", node=node)

    def check(self, s, fleet, dealt):
        end = fleet.end // HOUR * HOUR
        s.wait_ready()
        wait_for("sealed hours", lambda: s.sql(
            f"SELECT count(*) FROM node_hour WHERE hour < at_ns({end}) AND (sealed_at IS NULL OR dirty)") == [["0"]], s.aggregator)
        s.rows = s.sql
        states, held = truth(fleet.batches(), time.time_ns(), HOUR)
        owned = {}
        for (gpu, hour, namespace), v in held.items():
            owned[gpu, hour, OWNER[namespace]] = owned.get((gpu, hour, OWNER[namespace]), 0) + v
        self.assertEqual({k: v for k, v in by_state(s).items() if k[1] < end}, {k: v for k, v in states.items() if k[1] < end}, dealt)
        self.assertEqual({k: v for k, v in by_workspace(s).items() if k[1] < end}, {k: v for k, v in owned.items() if k[1] < end}, dealt)
        verified = s.cli("verify", "--from", iso(fleet.start - HOUR), "--to", iso(end))
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)


def iso(ns):
    return datetime.datetime.fromtimestamp(ns // NS, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


SCENARIO = {
    "name": "failover",
    "gpus": [{"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "count": 2}],
    "processes": [
        {"pid": 4001, "gpu": 0, "sm": 80, "memory_mib": 1024, "pod": {"namespace": "ns-0", "name": "a"}},
        {"pid": 4002, "gpu": 1, "start": "1s", "end": "2s", "every": "3s", "sm": 80, "memory_mib": 1024, "pod": {"namespace": "ns-1", "name": "b"}},
    ],
}


class Failover(unittest.TestCase):
    """The database's standby is promoted while two replicas and an exporter work; nobody tells them."""

    def run_through(self, synchronous):
        rng = random.Random(seed())
        with Stack(options=OPTIONS, standby=True) as s:
            s.apply(POLICY.replace("effective: 2026-11-30T00:00:00Z\n", ""))
            if synchronous:
                s.pg.wait_for_standby()
            replica = s.replica()
            with Target([s.port, replica.port], rng) as door:
                s.url = f"http://127.0.0.1:{door.port}"
                e = s.exporter("n1", SCENARIO, t0_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME))
                self.progress(s, e, 2)
                if not synchronous:
                    s.standby.fall_behind()
                    self.progress(s, e, 3)
                time.sleep(rng.random())
                acknowledged = self.stored(s)
                s.failover()
                after = self.stored(s)
                if synchronous:
                    self.assertLessEqual(acknowledged, after, "what was acknowledged is on the standby")
                else:
                    self.assertGreaterEqual(len(acknowledged - after), 3, "the standby was behind, or nothing is tried here")
                self.progress(s, e, 2)
                wait_for("what the standby did not have", lambda: acknowledged <= self.stored(s), e)
                self.assertEqual(e.stop(), 0, e.words())
                self.check(s, e)

    def stored(self, s):
        return {row[0] for row in s.sql("SELECT encode(sha256, 'hex') FROM ingest_batch WHERE status = 'accepted'")}

    def progress(self, s, e, batches):
        before = len(self.stored(s))
        wait_for(f"{batches} more batches", lambda: len(self.stored(s)) >= before + batches, e)

    def check(self, s, e):
        spooled = {hashlib.sha256(f).hexdigest() for f in frames_of(os.path.join(e.dir, "spool"))}
        self.assertEqual(spooled, self.stored(s), "the spool and the ledger hold the same batches")
        self.assertEqual(s.sql("SELECT sum(records) FROM ingest_batch"), s.sql("SELECT count(*) FROM usage_interval"))
        verified = s.cli("verify")
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)

    def test_a_synchronous_standby_has_all_that_was_acknowledged(self):
        self.run_through(True)

    def test_what_an_asynchronous_standby_lacks_is_offered_again(self):
        self.run_through(False)


if __name__ == "__main__":
    unittest.main()
