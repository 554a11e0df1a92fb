"""A GPU that is moved while pushes are under way, and claims that come at the same moment: what is judged by services that have ended meanwhile
is judged again, and what is refused writes nothing."""

# also: san

import contextlib
import threading
import unittest

from tests.integration.test_ingest_group import START, Base, batch
from tests.support.daemons.stack import wait_for
from tests.support.fleet.fleet import HOUR, MINUTE
from tests.support.store.locked import Session

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

    def test_pushes_of_older_streams_of_the_node_do_not_make_a_push_begin_anew(self):
        """Each of its attempts would meet another one."""
        self.begin()
        self.led.value("create function older_stream() returns trigger language plpgsql as $$ begin update tollgate.node set behind = behind + 1 where name = 'n0'; "
                       "return new; end $$; create trigger older_stream before insert on ingest_batch for each row execute function older_stream(); select 1")  # fmt: skip
        (r,) = self.replica().push(batch(0, 2))
        self.assertEqual((r["ok"], r["records"], r["set_aside"]), (True, 1, 0), r)
        self.led.value("drop trigger older_stream on ingest_batch; drop function older_stream(); select 1")

    def test_a_push_that_enters_a_gpu_and_one_behind_what_the_node_has_covered_do_not_wait_for_each_other(self):
        """Both lock the node and its hours: in the same order."""
        self.begin()
        (r,) = self.replica().push(batch(0, 1, origin=START + 3 * MINUTE, epoch=6))
        self.assertTrue(r["ok"], r)
        new = {"devices": [{"id": 1, "uuid": "GPU-new", "model": H100}], "holders": [{"id": 1, "ns": "b", "pod": "new"}]}
        entering, behind = self.replica(), self.replica()
        with Session(self.cluster, self.led.name) as s:
            s.run("begin; lock table holder in share mode")
            entering.send(batch(0, 1, origin=START + 5 * MINUTE, epoch=7, **new))
            self.waiting()
            behind.send(batch(0, 2))
            self.waiting(2)
            s.run("commit")
        for r in entering.outcomes() + behind.outcomes():
            self.assertEqual((r["ok"], r["records"]), (True, 1), r)
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


class Models(Base):
    """The policy declares H100 of node n0, whose GPU says now this, now that."""

    H100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA L40S"

    def declare(self, model, hour="20:00"):
        self.led.apply(POLICY.replace("20:00", hour) + f"  - {{name: n0, shared: true, model: {model}, gpus: 1}}\n  - {{name: n1, shared: true}}\n")

    def says(self, seq, model):
        return batch(0, seq, devices=[{"id": 1, "uuid": "GPU-0", "model": model}])

    def push(self, replica, b, records, grouped=None):
        (r,) = replica.push(b)
        self.assertEqual((r["ok"], r["quarantined"], r["records"], r["set_aside"]), (True, 0, records, 1 - records), r)
        self.assertEqual(list(r["classes"]), [] if records else ["model"], r)
        if grouped is not None:
            self.assertEqual(r["grouped"], grouped, r)

    def test_a_gpu_is_held_as_long_as_the_stream_s_last_word_contradicts_the_policy(self):
        self.declare("H100-80GB")
        a, b = self.replica(), self.replica()
        self.push(b, batch(0, 1), 1)
        self.push(b, batch(0, 2), 1, grouped=True)
        self.push(a, self.says(3, self.L40S), 0)
        self.push(a, batch(0, 4), 0)
        self.push(self.replica(), batch(0, 5), 0)  # one that was started since
        self.push(b, batch(0, 6), 0)  # one that remembers the stream as it was
        self.push(a, self.says(7, "NVIDIA A100-SXM4-80GB"), 0)
        self.assertEqual(self.led.rows("select model from stream_device_entry"), [["NVIDIA A100-SXM4-80GB"]])
        self.push(a, batch(0, 8), 0)
        self.push(a, self.says(9, self.H100), 1)
        self.push(a, batch(0, 10), 1, grouped=True)
        self.push(b, batch(0, 11), 1)
        self.assertEqual(self.led.rows("select count(*) from stream_device_entry"), [["0"]])
        self.assertEqual(self.minutes(), {"n0": 5})
        self.led.assert_sound()

    def test_it_counts_once_the_policy_says_the_same(self):
        self.declare("H100-80GB")
        a = self.replica()
        self.push(a, batch(0, 1), 1)
        self.push(a, self.says(2, self.L40S), 0)
        self.declare("L40S")
        self.push(a, batch(0, 3), 1)
        self.push(a, batch(0, 4), 1)
        self.push(a, batch(0, 5), 1, grouped=True)
        self.assertEqual(self.led.rows("select count(*) from stream_device_entry"), [["0"]])
        self.assertEqual(self.led.value("select short_model from gpu"), "L40S")

    def test_the_first_word_of_a_gpu_may_be_corrected_by_the_next(self):
        self.declare("H100-80GB")
        a = self.replica()
        self.push(a, self.says(1, self.L40S) | {"holders": batch(0, 1)["holders"]}, 0)
        self.push(a, batch(0, 2), 0)
        self.push(a, self.says(3, self.H100), 1)
        self.push(a, batch(0, 4), 1, grouped=True)

    def test_a_batch_that_is_refused_has_described_its_gpus_all_the_same(self):
        self.declare("H100-80GB")
        a = self.replica()
        self.push(a, batch(0, 1), 1)
        absurd = self.says(2, self.L40S)
        absurd["records"][0][13] = 10**12
        (r,) = a.push(absurd)
        self.assertEqual((r["quarantined"], list(r["classes"])), (1, ["energy"]))
        self.push(a, batch(0, 3), 0)

    def test_only_declarations_in_force_are_asked_about(self):
        self.led.now = START + 3 * HOUR
        self.declare("L40S", "18:00")
        self.declare("H100-80GB", "20:00")
        self.declare("L40S", "22:00")
        a = self.replica()
        self.push(a, batch(0, 1), 1)
        claims = lambda: int(self.led.value("select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = 'gpu_claim'"))
        self.led.rows(f"alter database {self.led.name} set track_functions = 'all'")
        fresh = self.replica()
        self.push(fresh, batch(0, 2), 1, grouped=False)
        self.push(fresh, batch(0, 3), 1, grouped=True)
        late = batch(0, 4, from_ns=START + 2 * HOUR, to_ns=START + 2 * HOUR + MINUTE)
        late["records"][0][6] = START + 2 * HOUR
        self.assertEqual(claims(), 0)
        self.push(fresh, late, 0)  # what the replica remembers holds until the next declaration
        fresh.__exit__()
        self.assertEqual(claims(), 1)


class Limits(Base):
    """What one approved node can leave behind is bounded."""

    def devices(self, first, count, **more):
        return [{"id": i, "uuid": f"GPU-x{i}", "model": H100, **more} for i in range(first, first + count)]

    def test_beyond_a_number_of_undecided_ones_a_batch_is_refused_whole(self):
        a = self.replica()
        self.steady(a, [0])
        claim = lambda seq: batch(1, seq, devices=[{"id": 1, "uuid": "GPU-0", "model": H100}] if seq == 1 else [])
        (r,) = a.push(claim(1))
        self.assertEqual((r["batches"], r["set_aside"]), (1, 1), r)
        # as if it had claimed many
        fill = "set session_replication_role = replica; "
        self.led.rows(fill + "insert into batch_set_aside (stream_id, seq, gpu, class, reason, records, from_ns, to_ns) select stream_id, seq, 'GPU-y' || i, class, reason, 1, from_ns, to_ns "
                             "from batch_set_aside, generate_series(1, 65534) i")  # fmt: skip
        (r,) = a.push(claim(2))
        self.assertEqual((r["batches"], r["set_aside"], r["quarantined"]), (1, 1, 0), "the last one")
        (r,) = a.push([claim(3), claim(4)])
        self.assertEqual((r["batches"], r["quarantined"], r["classes"]), (0, 2, {"two-nodes": 2}), r)
        self.assertIn("65536 GPUs in its batches whose records are set aside and undecided", r["reason"])
        self.assertIn("GPU GPU-0 is in service on node n0", r["reason"])
        (r,) = a.push(batch(0, 2))
        self.assertEqual((r["ok"], r["records"], r["set_aside"]), (True, 1, 0), "its owner goes on")
        plan = "".join(x for [x] in self.led.rows("analyze batch_set_aside; explain select count(*) from batch_set_aside where decision is null and stream_id = 7"))
        self.assertIn("batch_set_aside_open", plan)
        self.led.rows(fill + "delete from batch_set_aside where gpu like 'GPU-y%'")
        (r,) = a.push(claim(5))
        self.assertEqual((r["set_aside"], r["quarantined"]), (1, 0), "decided, it is set aside by GPU again")

    def test_a_stream_names_so_many_devices_that_no_record_needs(self):
        a = self.replica()
        self.steady(a, [0])
        for i in range(8):
            (r,) = a.push(batch(0, 2 + i, devices=self.devices(2 + 1024 * i, 1024)))
            self.assertEqual((r["quarantined"], r["records"]), (0, 1), r)
        (r,) = a.push(batch(0, 10, devices=self.devices(9000, 1)))
        self.assertEqual((r["quarantined"], r["classes"]), (1, {"dictionary": 1}), r)
        self.assertIn("8192 devices", r["reason"])
        (r,) = a.push(batch(0, 11))
        self.assertEqual((r["quarantined"], r["records"]), (0, 1), r)
        self.assertEqual(self.led.value("select count(*) from stream_device_entry"), "8192")

    def test_a_gpu_has_so_many_instances_in_a_batch(self):
        a = self.replica()
        self.steady(a, [0])
        parts = lambda n: [{"id": 100 + i, "gpu": 1, "uuid": f"MIG-{i}", "model": H100, "gi": i, "ci": 0, "created_ns": 7, "profile": "1g.10gb", "units": 675} for i in range(n)]
        (r,) = a.push(batch(0, 2, devices=parts(448)))
        self.assertEqual((r["quarantined"], r["records"]), (0, 1), r)
        (r,) = a.push(batch(0, 3, devices=parts(449)))
        self.assertEqual((r["quarantined"], r["classes"]), (1, {"format": 1}), r)
        self.assertIn("GPU id 1 has more than 448 MIG instances", r["reason"])


if __name__ == "__main__":
    unittest.main()
