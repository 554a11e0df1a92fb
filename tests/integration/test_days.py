"""Slices, days and retention: whatever has been summed, folded or dropped, the ledger says what its batches say."""

import concurrent.futures
import contextlib
import random
import threading
import unittest

from tests.integration.test_store import POLICY, START, Base, all_rows, seed
from tests.support.daemons.stack import wait_for
from tests.support.fleet.fleet import DOWN, EXCLUSIVE, H100, HELD, HOUR, MEASURED, MINUTE, NONE, UNALLOCATED, UNITS, Fleet
from tests.support.store.ledger import StoreError, each_frame
from tests.support.store.locked import Session

DAY = 24 * HOUR


def streams(fleet):
    return [each_frame(s) for n in fleet.nodes for s in n.streams]


def settle(led):
    while sum(led.rollup().values()):
        pass
    led.fold()


def one_batch(gpus):
    """A stream of one batch: for each GPU its runs, (minute from START on, pod or state), cut at quarter-hours as exporters do."""
    cut = []
    for gpu, runs in enumerate(gpus):
        at = START
        for minute, what in runs:
            while at < START + minute * MINUTE:
                end = min(START + minute * MINUTE, (at // (15 * MINUTE) + 1) * 15 * MINUTE)
                cut.append((gpu, what, at, end))
                at = end
    cut.sort(key=lambda p: p[2])
    pods = sorted({what for _, what, _, _ in cut if isinstance(what, str)})
    return {
        "node": "n1", "boot_id": "a1" * 16, "epoch": 1, "seq": 1, "flags": 1, "from_ns": START, "to_ns": max(p[3] for p in cut),
        "devices": [{"id": i + 1, "uuid": f"GPU-{i}", "model": H100, "index": i} for i in range(len(gpus))],
        "holders": [{"id": i + 1, "kind": 1, "ns": pod.split("/")[0], "pod": pod.split("/")[1], "pod_uid": pod, "container": "c"} for i, pod in enumerate(pods)],
        "records": [[g + 1, pods.index(what) + 1 if isinstance(what, str) else 0, HELD if isinstance(what, str) else what, EXCLUSIVE,
                     MEASURED if isinstance(what, str) else NONE, UNITS, at, end - at, end - at, 0, 0, 0, 0, 0, 1] for g, what, at, end in cut],
    }  # fmt: skip


class Background(Base):
    def report(self, led):
        return [led.text("report", month) for [month] in led.rows("select month from period order by 1")]

    def assert_report_of_hours(self, led):
        """The report of folded days is, byte for byte, that of the hours."""
        folded = self.report(led)
        led.rows("update billing_day set dirty = true where not hours_gone")
        self.assertEqual(self.report(led), folded)
        led.fold()
        self.assertEqual(self.report(led), folded)

    def assert_sound_everywhere(self, led):
        led.assert_sound()
        reply = led.verify(START - 40 * DAY, led.now + DAY)
        self.assertEqual(reply["pending"], 0)
        return reply

    def test_a_random_fleet_with_everything_in_between_is_exact(self):
        rng = random.Random(seed())
        for zone, effective in (("Asia/Kathmandu", "T00:15:00Z"), ("America/New_York", "T00:00:00Z")):
            with self.subTest(zone):
                led = self.new_ledger(zone=zone)
                led.apply(POLICY.replace("T00:00:00Z", effective))
                fleet = Fleet(rng.randrange(1 << 32), START, START + 5 * HOUR)
                work = [led.slice, led.rollup, led.fold, lambda led=led: led.retain(intervals=1)]
                for part in self.deliveries(rng, led, fleet):
                    self.assertTrue(part)
                    for task in rng.choices(work, k=rng.randint(0, 3)):
                        task()
                settle(led)
                led.retain(intervals=1)
                self.assert_truth(led, fleet) if zone != "Asia/Kathmandu" else self.assert_conserved(led)
                self.assert_sound_everywhere(led)
                self.assert_report_of_hours(led)

    def deliveries(self, rng, led, fleet):
        """All batches in any order of streams, a few pushes at a time."""
        left = [[s, 0] for s in streams(fleet)]
        while left:
            pushes, cursors = [], []
            for _ in range(rng.randint(1, 12)):
                stream, at = cursor = rng.choice(left)
                cursor[1] += rng.choice([1, 5, 30])
                pushes.append(b"".join(stream[at : cursor[1]]))
                cursors.append(min(cursor[1], len(stream)) + 1)
                left = [c for c in left if c[1] < len(c[0])]
                if not left:
                    break
            yield [(r["next_seq"], r["quarantined"]) for r in led.ingest_many(pushes)] == [(seq, 0) for seq in cursors]

    def test_what_comes_for_a_day_whose_records_are_gone_is_taken_in_exactly(self):
        rng = random.Random(seed())
        led = self.new_ledger()
        led.apply(POLICY)
        fleet = Fleet(rng.randrange(1 << 32), START, START + 8 * HOUR)
        # A stream of the first day stays away until that day's records are gone.
        late = next(s for n in fleet.nodes for s in n.streams[1:] if s[0]["from_ns"] < START + 3 * HOUR)
        led.ingest_many([s for n in fleet.nodes for s in n.streams if s is not late])
        settle(led)
        led.declare("insert into node_owner (node_id, tenant_id, effective) select min(n.id), (select min(id) from tenant), '[2026-11-30 21:00Z,2026-11-30 22:00Z)' from node n")
        settle(led)
        self.assertEqual(led.retain(intervals=1)["days"], 1)
        self.assertEqual(led.value("select to_regclass('usage_interval_20261130')"), None)
        self.assert_sound_everywhere(led)
        led.ingest_many([late])
        self.assertNotEqual(led.value("select count(*) from node_hour where retired and dirty"), "0")
        self.assertGreater(led.verify(START, led.now)["pending"], 0)
        self.assertEqual(led.retain(intervals=1)["days"], 0, "nothing goes that is still needed")
        self.assertGreater(led.rollup()["restored"], 0)
        settle(led)
        self.assert_truth(led, fleet)
        self.assert_sound_everywhere(led)
        self.assertEqual(led.retain(intervals=1)["days"], 1)
        self.assert_truth(led, fleet)
        self.assert_sound_everywhere(led)

    def test_what_comes_for_a_day_while_its_records_go_is_taken_in_exactly(self):
        led = self.new_ledger()
        led.apply(POLICY)
        fleet = Fleet(seed(), START, START + 8 * HOUR)
        late = next(s for n in fleet.nodes for s in n.streams[1:] if s[0]["from_ns"] < START + 3 * HOUR)
        led.ingest_many([s for n in fleet.nodes for s in n.streams if s is not late])
        settle(led)
        day = START // (24 * HOUR)
        blocked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        with Session(led.cluster, led.name) as retention:
            self.assertEqual(retention.run(f"begin; select retire_intervals({day})"), ["t"])
            push, failed = threading.Thread(target=lambda: self.keep(failed, led.ingest_many, [late])), []
            push.start()
            wait_for("the push that waits for retention", lambda: int(led.value(blocked)) == 1)
            retention.run("commit")
            push.join()
        self.assertEqual(failed, [])
        self.assertGreater(led.rollup()["restored"], 0)
        settle(led)
        self.assert_truth(led, fleet)
        self.assert_sound_everywhere(led)

    @staticmethod
    def keep(failed, call, *args):
        try:
            call(*args)
        except Exception as e:  # told by the thread that started this one
            failed.append(str(e))

    def test_an_older_hour_changes_its_owner_without_its_records(self):
        led = self.new_ledger()
        led.apply(POLICY)
        fleet = Fleet(seed(), START, START + 8 * HOUR)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        settle(led)
        led.retain(intervals=1)
        before = all_rows(led)
        led.apply(POLICY.replace("{namespace: ns-2}", "{namespace: ns-4}"))
        self.assertNotEqual(led.value("select count(*) from node_hour where retired and dirty"), "0")
        r = led.rollup()
        self.assertEqual(r["restored"], 0)
        self.assertGreater(r["resealed"], 0)
        self.assertNotEqual(all_rows(led), before)
        self.assertEqual(led.value("select to_regclass('usage_interval_20261130')"), None)

    def test_an_open_hour_is_read_from_slices_and_its_end(self):
        led = self.new_ledger(now=START + 2 * HOUR)
        led.grace = 9 * HOUR
        led.apply(POLICY)
        led.slices = ["--slice", 0]
        fleet = Fleet(seed(), START, START + 2 * HOUR - 7 * MINUTE)
        parts = [s for n in fleet.nodes for s in n.streams]
        led.ingest_many(parts[:-1])
        before = all_rows(led)
        self.assertGreater(led.slice(), 0)
        self.assertEqual(led.slice(), 0)
        self.assertEqual(all_rows(led), before)
        self.assertGreater(int(led.value("select count(*) from usage_slice")), 0)
        led.assert_sound()
        led.ingest_many(parts[-1:])
        self.assert_truth(led, fleet)
        led.slice()
        self.assert_truth(led, fleet)
        led.now += 12 * HOUR
        settle(led)
        self.assert_truth(led, fleet)
        self.assertEqual(led.value("select count(*) from usage_slice s join node_hour h using (node_id, hour) where h.sealed_at is not null"), "0")

    def test_slices_that_ingest_stores_are_what_the_records_add_up_to(self):
        rng = random.Random(seed())
        led = self.new_ledger(now=START + 5 * HOUR)
        led.grace = 9 * HOUR
        led.apply(POLICY)
        led.slices = ["--slice", rng.choice([MINUTE, 5 * MINUTE, 20 * MINUTE, HOUR])]
        fleet = Fleet(rng.randrange(1 << 32), START, START + 4 * HOUR)
        for part in self.deliveries(rng, led, fleet):
            self.assertTrue(part)
            for task in rng.choices([led.slice, led.rollup], k=rng.choice([0, 0, 1])):
                task()
        before = all_rows(led)
        led.rows("delete from usage_slice; update node_hour set sliced_until_ns = null, dirty = sealed_at is not null, changes = changes + 1")
        self.assertEqual(all_rows(led), before)
        self.assert_truth(led, fleet)

    def test_usage_of_a_long_range_is_read_from_days_and_the_same_as_from_hours(self):
        led = self.new_ledger(now=START + 36 * HOUR)
        led.apply(POLICY)
        fleet = Fleet(seed(), START, START + 8 * HOUR)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        settle(led)
        groupings = ("", "tenant,day", "sharing,method,state", "node")

        def usage(start, end):
            return [led.usage(start, end, by) for by in groupings] + [led.usage(start, end, "workspace,day", tenant="acme")]

        for what, end in (("whole days", START + DAY), ("the end inside a day", START + 6 * HOUR)):  # the fleet runs over one midnight
            with self.subTest(what):
                hours = usage(START - HOUR, end)
                self.assertEqual(usage(START - 3 * DAY, end), hours)
                led.rows("update billing_day set dirty = true")
                self.assertEqual(usage(START - 3 * DAY, end), hours)
                led.fold()
        # Only what is read from days sees this.
        led.rows("update usage_daily set unknown = unknown + 5040 * 3600000000000, energy_mj = energy_mj + 3600000000")
        seen = [a != b for a, b in zip(usage(START - 3 * DAY, START + DAY), usage(START - HOUR, START + DAY))]
        self.assertEqual(seen, [True, True, True, False, True])
        led.rows("update usage_daily set unknown = unknown - 5040 * 3600000000000, energy_mj = energy_mj - 3600000000")

    def test_a_record_that_comes_behind_voids_the_slices_of_its_hour(self):
        led = self.new_ledger(now=START + HOUR)
        led.apply(POLICY)
        fleet = Fleet(seed(), START, START + HOUR - 7 * MINUTE, nodes=1)
        first = fleet.nodes[0].streams[0]
        led.ingest_many([first])
        led.slice()
        again = {**first[0], "epoch": 1, "boot_id": "ab" * 16}
        self.assertTrue(led.ingest([again])["ok"])
        self.assertEqual(led.value(f"select count(*) from node_hour where sliced_until_ns is not null and hour = at_ns({first[0]['from_ns'] // HOUR * HOUR})"), "0")
        led.assert_sound()
        led.slice()
        led.assert_sound()

    def test_a_day_is_folded_once_it_is_over_and_again_when_a_price_or_an_owner_changes(self):
        led = self.new_ledger(now=START + 3 * HOUR)
        led.apply(POLICY)
        fleet = Fleet(seed(), START, START + 3 * HOUR)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        led.rollup()
        self.assertEqual(led.fold(), 0, "the day is not over")
        led.now = START + 10 * HOUR
        while sum(led.rollup().values()):
            pass
        self.assertEqual(led.fold(), 1)
        self.assertEqual(led.fold(), 0)
        led.declare("insert into price_book (version, currency, sha256, effective) values ('x', 'EUR', sha256('x'), '[2026-10-01,2026-11-30 21:00Z)')")
        self.assertEqual(led.fold(), 1)
        led.declare("insert into node_owner (node_id, tenant_id, effective) select min(n.id), (select min(id) from tenant), '[2026-11-30 21:00Z,2026-11-30 22:00Z)' from node n")
        self.assertEqual(led.fold(), 1)
        self.assert_report_of_hours(led)

    def test_what_nobody_holds_in_maintenance_is_down_and_a_retired_gpu_serves_no_more(self):
        led = self.new_ledger()
        led.apply(POLICY)
        fleet = Fleet(seed(), START, START + 5 * HOUR, nodes=2)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        settle(led)
        led.declare(f"insert into node_state (node_id, state, effective) select min(id), 'maintenance', tstzrange(at_ns({START + HOUR}), at_ns({START + 3 * HOUR})) from node")
        led.declare(f"insert into node_state (gpu_id, state, effective) select max(gpu_id), 'retired', tstzrange(at_ns({START + 6 * HOUR}), null) from gpu_service")
        settle(led)
        where = f"hour >= at_ns({START + HOUR}) and hour < at_ns({START + 3 * HOUR}) and node_id = (select min(id) from node)"
        self.assertEqual(led.value(f"select sum(unallocated + stranded + unknown) from usage_hourly where {where}"), "0")
        self.assertNotEqual(led.value(f"select sum(down) from usage_hourly where {where}"), "0")
        self.assert_conserved(led)
        self.assert_sound_everywhere(led)
        self.assertEqual(led.value(f"select until_ns from gpu_service where gpu_id = (select gpu_id from node_state where state = 'retired')"), str(START + 6 * HOUR))
        led.declare("delete from node_state where state = 'maintenance'")
        settle(led)
        self.assertNotEqual(led.value(f"select sum(unallocated + stranded + unknown) from usage_hourly where {where}"), "0")
        self.assert_sound_everywhere(led)

    def test_a_changed_slice_or_day_is_found(self):
        led = self.new_ledger(now=START + 10 * HOUR)
        led.apply(POLICY)
        led.grace = 20 * HOUR
        fleet = Fleet(20261116, START, START + 9 * HOUR - 7 * MINUTE, nodes=2)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        settle(led)
        self.assertEqual(led.verify(START - DAY, led.now)["days"], 1)
        for table, where, kind in (("usage_daily", "used > 0", "day-changed"), ("usage_slice", "held > 0", "hour-changed")):
            with self.subTest(table):
                led.slice()
                column = "used" if table == "usage_daily" else "energy_mj"
                [[place]] = led.rows(f"select ctid from {table} where {where} order by ctid limit 1")
                [[place]] = led.rows(f"update {table} set {column} = {column} + 1 where ctid = '{place}' returning ctid")
                found = led.verify(START - DAY, led.now)["differences"]
                self.assertEqual([(d["kind"], d["difference"], d["what"].split()[0]) for d in found], [(kind, "1", column)])
                led.rows(f"update {table} set {column} = {column} - 1 where ctid = '{place}'")

    def test_replicas_that_work_at_once_do_each_thing_once(self):
        # The second seed has a workload that loses one device twice, the second time just after midnight.
        for value in (seed(), 4044506599):
            with self.subTest(seed=value):
                self.check_replicas(random.Random(value))

    def check_replicas(self, rng):
        led = self.new_ledger()
        led.apply(POLICY)
        fleet = Fleet(rng.randrange(1 << 32), START, START + 5 * HOUR)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            stop = []

            def work(task):
                for _ in range(20):
                    if not stop:
                        task()

            tasks = [pool.submit(work, t) for t in (led.slice, led.rollup, lambda: (led.rollup(), led.fold(), led.retain(intervals=1)))]
            for part in self.deliveries(rng, led, fleet):
                self.assertTrue(part)
            stop.append(True)
            for t in tasks:
                t.result()
        settle(led)
        self.assert_truth(led, fleet)
        self.assert_report_of_hours(led)

    def test_each_loss_of_a_device_is_kept_with_the_day_in_which_it_ended(self):
        led = self.new_ledger()
        led.apply(POLICY)
        led.ingest_many([[one_batch([
            [(30, "ns-0/a"), (60, DOWN), (236, "ns-0/a"), (300, DOWN)],
            [(31, "ns-0/a"), (60, UNALLOCATED), (243, "ns-0/a"), (300, UNALLOCATED)],  # lost with the first, twice, the second time after midnight
            [(31, "ns-0/a"), (100, UNALLOCATED), (110, "ns-0/a"), (130, DOWN), (300, UNALLOCATED)],  # with the first, then by itself
        ])]])  # fmt: skip
        settle(led)
        losses = (
            f"select l.day, d.uuid, (l.ended_ns - {START}) / {MINUTE}, g.uuid from lost_hold l "
            "join device d on d.id = l.device_id join gpu g on g.id = l.failed_gpu_id order by 3, 2"
        )
        expected = [
            ["2026-11-30", "GPU-0", "30", "GPU-0"],
            ["2026-11-30", "GPU-1", "31", "GPU-0"],
            ["2026-11-30", "GPU-2", "31", "GPU-0"],
            ["2026-11-30", "GPU-2", "110", "GPU-2"],
            ["2026-11-30", "GPU-0", "236", "GPU-0"],
        ]
        self.assertEqual(led.rows(losses), expected)
        listed = led.rows(f"select (x.ended_ns - {START}) / {MINUTE} from lost_rows('2026-11-01', '2026-12-31') x order by 1, x.device_id")
        self.assertEqual([int(minute) for [minute] in listed], [30, 31, 31, 110, 236, 243])
        led.now += DAY
        settle(led)
        expected.append(["2026-12-01", "GPU-1", "243", "GPU-0"])
        self.assertEqual(led.rows(losses), expected)
        self.assertEqual(led.retain(intervals=1)["days"], 1)
        for days in ("true", "day = '2026-11-30'", "day = '2026-12-01'"):
            led.rows(f"update billing_day set dirty = true where {days}")
            led.assert_sound()
            led.fold()
            self.assertEqual(led.rows(losses), expected)
            led.assert_sound()

    def test_a_server_killed_while_it_seals_folds_and_retires_loses_nothing(self):
        rng = random.Random(seed())
        led = self.new_ledger()
        led.apply(POLICY)
        fleet = Fleet(rng.randrange(1 << 32), START, START + 8 * HOUR)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        for task in (led.slice, lambda: led.rollup(limit=3), led.rollup, led.fold, lambda: led.retain(intervals=1)):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                running = pool.submit(task)
                with contextlib.suppress(concurrent.futures.TimeoutError):
                    running.exception(timeout=rng.random() / 20)
                self.cluster.crash()
                self.cluster.start()
                with contextlib.suppress(StoreError, AssertionError):
                    running.result()
            task()
        settle(led)
        led.retain(intervals=1)
        self.assert_truth(led, fleet)
        self.assert_sound_everywhere(led)

    def test_a_clock_that_is_far_ahead_drops_nothing(self):
        led = self.new_ledger()
        led.apply(POLICY)
        fleet = Fleet(seed(), START, START + 2 * HOUR)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        settle(led)
        led.now += 400 * DAY
        self.assertEqual(led.retain(intervals=7 * DAY, batches=DAY, hours=30 * DAY), {"days": 0, "busy": 0, "batches": 0, "hours": 0})
        led.now -= 400 * DAY


if __name__ == "__main__":
    unittest.main()
