"""A GPU that is moved while pushes are under way, and claims that come at the same moment: what is judged by services that have ended meanwhile
is judged again, and what is refused writes nothing."""

import contextlib
import threading
import unittest

from tests.integration.test_ingest_group import START, Base, batch
from tests.support.fleet import HOUR, MINUTE
from tests.support.locked import Session
from tests.support.stack import wait_for

H100 = "NVIDIA H100 80GB HBM3"
POLICY = "version: 1\ncluster: test\neffective: 2026-11-30T20:00:00Z\nnodes:\n"
NODES = "  - {name: n0, shared: true}\n  - {name: n1, shared: true}\n"
LISTED = "  - {name: n0, shared: true}\n  - {name: n1, shared: true, devices: [{uuid: GPU-0, state: in-service}]}\n"


class Waiting(Base):
    def waiting(self, count=1):
        blocked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        wait_for(f"{count} sessions that wait", lambda: int(self.led.value(blocked)) == count)

    def at_once(self, call):
        """Runs beside the test; what it gave is read at the end."""
        thread, got = threading.Thread(target=lambda: got.append(call())), []
        thread.start()
        self.addCleanup(thread.join)

        def result():
            thread.join()
            return got[0]

        return result

    @contextlib.contextmanager
    def no_records(self):
        """Nobody writes a record meanwhile: a push has judged its batches, and waits there."""
        with Session(self.cluster, self.led.name) as s:
            s.run("begin; lock table usage_interval in share mode")
            yield
            s.run("commit")

    def services(self):
        return [
            (n, (int(a) - START) // MINUTE, None if b is None else (int(b) - START) // MINUTE)
            for n, a, b in self.led.rows("select n.name, s.from_ns, s.until_ns from gpu_service s join gpu g on g.id = s.gpu_id join node n on n.id = s.node_id "
                                         "where g.uuid = 'GPU-0' order by s.from_ns")
        ]  # fmt: skip


class Moves(Waiting):
    """After each of these the ledger is verified: no record lies outside the time in service of its GPU."""

    def go_on(self):
        """The new node has it from then on, and no minute twice."""
        moved = batch(1, 2, devices=[{"id": 2, "uuid": "GPU-0", "model": H100}], from_ns=START + 9 * MINUTE, to_ns=START + 10 * MINUTE)
        moved["records"][0][0], moved["records"][0][6] = 2, START + 9 * MINUTE
        (r,) = self.replica().push(moved)
        self.assertEqual((r["ok"], r["records"], r["set_aside"]), (True, 1, 0), r)

    def begin(self):
        self.led.apply(POLICY + NODES)
        a = self.replica()
        self.steady(a, range(2))
        return a

    def test_a_policy_moves_a_gpu_while_a_push_alone_is_under_way(self):
        self.begin()
        fresh = self.replica()  # it knows no stream
        with self.no_records():
            fresh.send(batch(0, 2))
            self.waiting()
            self.led.apply(POLICY + LISTED)
        (r,) = fresh.outcomes()
        self.assertEqual((r["ok"], r["records"], r["set_aside"]), (True, 0, 1), r)
        self.assertEqual(self.services(), [("n0", 0, 1)])
        self.go_on()
        self.assertEqual(self.minutes(), {"n0": 1, "n1": 2})

    def test_a_policy_that_moves_a_gpu_waits_for_a_steady_push_and_ends_after_it(self):
        a = self.begin()
        with self.no_records():
            a.send(batch(0, 2))
            self.waiting()
            applied = self.at_once(lambda: self.led.apply(POLICY + LISTED))
            self.waiting(2)
        (r,) = a.outcomes()
        self.assertEqual((r["ok"], r["grouped"], r["records"]), (True, True, 1), r)
        applied()
        self.assertEqual(self.services(), [("n0", 0, 2)])
        self.go_on()
        self.assertEqual(self.minutes(), {"n0": 2, "n1": 2})

    def test_an_operator_moves_a_gpu_while_a_push_is_under_way(self):
        self.begin()
        fresh = self.replica()
        with self.no_records():
            fresh.send(batch(0, 2))
            self.waiting()
            self.led.move("GPU-0", "n1", START)
        (r,) = fresh.outcomes()
        self.assertEqual((r["ok"], r["set_aside"]), (True, 1), r)
        self.go_on()

    def test_a_retirement_ends_a_service_behind_its_records(self):
        retired = NODES.replace("{name: n0, shared: true}", "{name: n0, shared: true, devices: [{uuid: GPU-0, state: retired}]}").replace("n1, shared: true", "n1, shared: true, state: retired")
        self.begin()
        fresh = self.replica()
        with self.no_records():
            fresh.send(batch(0, 2))
            self.waiting()
            self.led.apply(POLICY + retired)
        (r,) = fresh.outcomes()
        self.assertEqual((r["ok"], r["set_aside"], list(r["classes"])), (True, 1, ["retired"]), r)
        self.assertEqual(self.services(), [("n0", 0, 1)])

    def test_a_push_with_new_holders_and_a_policy_do_not_wait_for_each_other(self):
        """Both need the policy's lock and rows of GPUs and nodes: in the same order."""
        self.begin()
        fresh = self.replica()
        again = batch(0, 2, devices=[{"id": 1, "uuid": "GPU-0", "model": H100, "index": 3}], holders=[{"id": 2, "ns": "b", "pod": "new"}])
        again["records"][0][1] = 2
        with Session(self.cluster, self.led.name) as s:
            s.run("begin; lock table node_declared in share mode")
            applied = self.at_once(lambda: self.led.apply(POLICY + LISTED))
            self.waiting()
            fresh.send(again)
            self.waiting(2)
            s.run("commit")
        (r,) = fresh.outcomes()
        self.assertTrue(r["ok"], r)
        applied()
        self.assertEqual(self.led.value("select deadlocks from pg_stat_database where datname = current_database()"), "0")

    def test_a_policy_that_is_replaced_before_its_hour_gives_the_hours_back(self):
        self.begin()
        self.led.apply(POLICY.replace("20:00", "21:00") + LISTED)
        self.assertEqual(self.services(), [("n0", 0, 60)])
        self.led.now = START + 4 * HOUR
        self.led.rollup()
        self.led.apply(POLICY.replace("20:00", "21:00") + NODES)
        self.assertEqual(self.services(), [("n0", 0, None)])
        self.led.rollup()
        self.assertEqual({g["difference_unit_ns"] for g in self.led.conservation(START, START + 3 * HOUR)}, {"0"})


class Claims(Waiting):
    def claim(self, node, start, minutes, seq=1, epoch=7):
        at = START + start * MINUTE
        b = batch(node, seq, epoch=epoch, from_ns=at, to_ns=at + minutes * MINUTE, devices=[{"id": 1, "uuid": "GPU-0", "model": H100}], holders=[{"id": 1, "ns": "a", "pod": "p"}])
        b["records"][0][6:9] = at, minutes * MINUTE, minutes * MINUTE
        b["records"][0][9] = 0
        (r,) = self.replica().push(b)
        return r

    def written(self):
        return (self.services(), self.led.value("select count(*) from audit_log where action = 'gpu.move'"))

    def test_a_late_batch_of_a_declared_node_ends_nothing(self):
        self.led.now = START + 2 * HOUR
        self.claim(2, 0, 15)
        self.claim(2, 15, 15, seq=2)
        self.claim(2, 30, 15, seq=3)
        self.led.apply("version: 1\ncluster: test\neffective: 2026-11-30T19:00:00Z\nnodes: [{name: n1, shared: true}]\n")
        before = self.written()
        r = self.claim(1, 10, 5)
        self.assertEqual((r["records"], r["set_aside"]), (0, 1), r)
        self.assertIn("is in service on node n2", r["reason"])
        self.assertEqual(self.written(), before, "a refused claim writes nothing")
        r = self.claim(1, -30, 15, epoch=8)
        self.assertEqual((r["records"], r["set_aside"]), (1, 0), "it had it before the other one")
        self.assertEqual(self.services(), [("n1", -30, -15), ("n2", 0, None)])
        r = self.claim(1, 40, 5, epoch=9)
        self.assertEqual((r["records"], r["set_aside"]), (0, 1), "what the other one measured stays")
        self.assertEqual(self.services(), [("n1", -30, -15), ("n2", 0, 45)])
        r = self.claim(1, 45, 5, seq=2, epoch=9)
        self.assertEqual((r["records"], r["set_aside"]), (1, 0), r)

    def test_gpus_are_locked_in_the_order_of_their_uuids(self):
        names = [f"GPU-{x}" for x in "cab"]
        devices = [{"id": i + 1, "uuid": u, "model": H100} for i, u in enumerate(names)]
        records = lambda at: [[i + 1, 1, 1, 1, 1, 5040, at, MINUTE, MINUTE, 0, 0, 0, 0, 1000, 60] for i in range(3)]
        self.replica().push(batch(5, 1, devices=devices, records=records(START)))
        free = lambda u: bool(self.led.rows(f"select 1 from gpu where uuid = '{u}' for no key update skip locked"))
        with Session(self.cluster, self.led.name) as s:
            s.run("begin; select from gpu where uuid = 'GPU-b' for no key update")
            other = self.replica()
            other.send(batch(6, 1, devices=devices, records=records(START)))
            self.waiting()
            self.assertEqual({u: free(u) for u in names}, {"GPU-a": False, "GPU-b": False, "GPU-c": True})
            s.run("commit")
        (r,) = other.outcomes()
        self.assertEqual((r["ok"], r["set_aside"]), (True, 3), r)


if __name__ == "__main__":
    unittest.main()
