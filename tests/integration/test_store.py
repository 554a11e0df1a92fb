"""The ledger is exact: whatever is repeated, split, reordered, late or killed, the totals are those of the records."""

import concurrent.futures
import datetime
import json
import os
import random
import subprocess
import threading
import time
import unittest
from decimal import ROUND_HALF_EVEN, Decimal

from tests.support.daemons import pg
from tests.support.daemons.stack import wait_for
from tests.support.fleet.fleet import ALL_STATES, HOUR, MINUTE, NS, Fleet, truth
from tests.support.store.ledger import BUILD, Ledger, each_frame

# 2026-11-30T20:00Z: the fleets run over midnight and the end of a month.
START = 1_796_068_800 * NS
POLICY = """
version: 1
cluster: test
effective: 2026-11-30T00:00:00Z
tenants:
  - {name: acme, workspaces: [{name: even, rules: [{namespace: ns-0}, {namespace: ns-2}]}, {name: odd, rules: [{namespace: ns-1}, {namespace: ns-3}]}]}
  - {name: globex, workspaces: [{name: rest, rules: [{namespace: "ns-?", priority: 500}]}]}
"""
OWNER = {"ns-0": "even", "ns-2": "even", "ns-1": "odd", "ns-3": "odd", "ns-4": "rest", "ns-5": "rest"}
STATES_SQL = ", ".join(f"('{s}', u.{s})" for s in ALL_STATES)
ALWAYS = "usage_rows('2026-01-01', '2028-01-01') u join device d on d.id = u.device_id join gpu g on g.id = d.gpu_id"


def seed():
    given = os.environ.get("TOLLGATE_PROP_SEED")
    value = int(given, 0) if given else random.randrange(1 << 32)
    print(f"seed {value} (TOLLGATE_PROP_SEED={value} repeats it)", flush=True)
    return value


def by_state(led):
    rows = led.rows(
        f"select g.uuid, ns_of(u.hour), s.state, sum(s.v) from {ALWAYS}, lateral (values {STATES_SQL}) s(state, v) where s.v <> 0 group by 1, 2, 3"
    )
    return {(uuid, int(hour), state): int(v) for uuid, hour, state, v in rows}


def by_workspace(led):
    rows = led.rows(
        f"select g.uuid, ns_of(u.hour), w.name, sum(u.used + u.idle + u.unmeasured) from {ALWAYS} join workspace w on w.id = u.workspace_id group by 1, 2, 3"
    )
    return {(uuid, int(hour), name): int(v) for uuid, hour, name, v in rows if int(v)}


def all_rows(led):
    """Every row as text, but for the ids, which depend on who came first."""
    return sorted(
        led.rows(
            "select g.uuid, d.gi, u.hour, h.namespace, h.pod, w.name, u.sharing, u.method, u.used, u.idle, u.unmeasured, u.unallocated, u.stranded, u.down, "
            f"u.unknown, u.over, u.clock_adjust, u.energy_mj, u.memory_byte_ms, u.peak_memory_bytes, u.sm_active, u.sm_measured from {ALWAYS} left join holder h on h.id = u.holder_id "
            "left join workspace w on w.id = u.workspace_id"
        ),
        key=str,
    )


def deliver(rng, led, fleet):
    """All batches, as a bad network would bring them: streams interleaved, pushes of any size, repeated, and too early."""
    cursors = [[each_frame(stream), 0] for node in fleet.nodes for stream in node.streams]
    while cursors:
        cursor = rng.choice(cursors)
        stream, at = cursor
        n = rng.choice([1, 2, 5, 20, 50])
        first = max(0, at - rng.randint(0, 3)) if rng.random() < 0.3 else at
        if rng.random() < 0.1 and at + 1 < len(stream):
            r = led.ingest(b"".join(stream[at + 1 : at + 1 + n]))
            assert (r["ok"], r["gap"], r["next_seq"]) == (False, True, at + 1), r
        r = led.ingest(b"".join(stream[first : at + n]))
        assert r["ok"] and r["quarantined"] == 0 and r["duplicates"] == at - first, r
        cursor[1] = r["next_seq"] - 1
        if cursor[1] == len(stream):
            cursors.remove(cursor)
        if rng.random() < 0.1:
            led.rollup()


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())
        cls.count = 0

    def new_ledger(self, now=START + 12 * HOUR, **options):
        type(self).count += 1
        led = Ledger(self.cluster, f"s{self.count}", now=now, **options)
        self.addCleanup(lambda: led.assert_sound())
        return led

    def assert_truth(self, led, fleet):
        states, held = truth(fleet.batches(), led.now, led.grace)
        self.assertEqual(by_state(led), states)
        owned = {}
        for (gpu, hour, namespace), v in held.items():
            key = (gpu, hour, OWNER[namespace])
            owned[key] = owned.get(key, 0) + v
        self.assertEqual(by_workspace(led), owned)
        self.assert_conserved(led)

    def assert_conserved(self, led):
        gpus = led.conservation(START - 48 * HOUR, led.now + 48 * HOUR)
        self.assertTrue(gpus)
        for g in gpus:
            self.assertEqual((g["difference_unit_ns"], g["clock_adjust_unit_ns"]), ("0", "0"), g)


class Exactness(Base):
    def test_any_order_repetition_and_splitting_of_batches_leaves_the_same_totals(self):
        rng = random.Random(seed())
        fleet = Fleet(rng.randrange(1 << 32), START, START + 8 * HOUR)
        results = []
        for _ in range(3):
            led = self.new_ledger()
            led.apply(POLICY)
            deliver(rng, led, fleet)
            while sum(led.rollup().values()):
                pass
            self.assert_truth(led, fleet)
            results.append(all_rows(led))
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0], results[2])

    def test_a_server_killed_in_the_middle_of_ingest_loses_and_doubles_nothing(self):
        rng = random.Random(seed())
        fleet = Fleet(rng.randrange(1 << 32), START, START + 6 * HOUR)
        led = self.new_ledger()
        led.apply(POLICY)
        streams = [s for n in fleet.nodes for s in n.streams]
        for i, stream in enumerate(streams):
            paths = [led.file(frame, f"k{i}-{k}") for k, frame in enumerate(each_frame(stream))]
            acknowledged = self.push_until_killed(rng, led, paths) if i < 4 else 0
            stored = int(led.value(f"select coalesce(max(next_seq), 1) from stream where epoch = {stream[0]['epoch']} and boot_id = '{stream[0]['boot_id']}'"))
            self.assertGreaterEqual(stored, acknowledged)
            for r in led.ingest_many([stream]):
                self.assertTrue(r["ok"], r)
        led.rollup()
        self.assert_truth(led, fleet)

    def push_until_killed(self, rng, led, paths):
        """One push per batch while the server dies; the number acknowledged last."""
        argv = [os.path.join(BUILD, "tests", "store_tool"), self.cluster.conninfo(led.name), "ingest", "--now", str(led.now), *paths]
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(child.stdout))
        reader.start()
        time.sleep(rng.random() * 0.3)
        self.cluster.crash()
        reader.join()
        child.wait()
        child.stdout.close()
        self.cluster.start()
        done = [json.loads(line) for line in lines]
        return max([r["next_seq"] for r in done if r["ok"]], default=0)

    def test_pushes_at_the_same_time_share_holders_and_streams_without_harm(self):
        rng = random.Random(seed())
        fleet = Fleet(rng.randrange(1 << 32), START, START + 4 * HOUR, nodes=4)
        led = self.new_ledger()
        led.apply(POLICY)
        jobs = []
        for i, stream in enumerate(s for n in fleet.nodes for s in n.streams):
            encoded = each_frame(stream)
            for copy in range(2):  # every stream comes twice, at once
                pushes = [b"".join(encoded[k : k + 5]) for k in range(0, len(encoded), 5)]
                paths = [led.file(push, f"c{i}-{copy}-{k}") for k, push in enumerate(pushes)]
                jobs.append([os.path.join(BUILD, "tests", "store_tool"), self.cluster.conninfo(led.name), "ingest", "--now", str(led.now), *paths])
        rng.shuffle(jobs)
        running = []
        for argv in jobs:
            running.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
            if len(running) == 8:
                self.finish(running.pop(0))
            if rng.random() < 0.1:
                led.rollup()
        for child in running:
            self.finish(child)
        led.rollup()
        self.assert_truth(led, fleet)

    def finish(self, child):
        out, _ = child.communicate()
        self.assertEqual(child.returncode, 0, out)
        self.assertNotIn('"ok":false', out)

    def test_the_interface_writes_the_same_numbers_rounded_once(self):
        fleet = Fleet(seed(), START, START + 5 * HOUR)
        led = self.new_ledger()
        led.apply(POLICY)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        led.rollup()
        states, held = truth(fleet.batches(), led.now, led.grace)

        def hours(unit_ns):
            return (Decimal(unit_ns) / 5040 / HOUR).quantize(Decimal("1e-9"), ROUND_HALF_EVEN)

        for g in led.usage(START - HOUR, led.now, "gpu,hour"):
            hour = int(time_ns(g["hour"]))
            for s in ("unallocated", "stranded", "down", "unknown"):
                self.assertEqual(Decimal(g[s + "_gpu_hours"]), hours(states.get((g["gpu"], hour, s), 0)), g)
            parts = [Decimal(g[s + "_gpu_hours"]) for s in ("used", "idle", "unmeasured")]
            allocated = sum(states.get((g["gpu"], hour, s), 0) for s in ("used", "idle", "unmeasured"))
            self.assertEqual(Decimal(g["allocated_gpu_hours"]), hours(allocated))
            self.assertEqual(sum(parts), Decimal(g["allocated_gpu_hours"]))
        for g in led.usage(START - HOUR, led.now, "state"):
            self.assertEqual(Decimal(g["gpu_hours"]), hours(sum(v for k, v in states.items() if k[2] == g["state"])), g)
        total = sum(held.values())
        [everything] = led.usage(START - HOUR, led.now)
        self.assertEqual(Decimal(everything["allocated_gpu_hours"]), hours(total))
        for tenant, owners in (("acme", ("even", "odd")), ("globex", ("rest",))):
            [g] = led.usage(START - HOUR, led.now, "tenant", tenant=tenant)
            self.assertEqual(Decimal(g["allocated_gpu_hours"]), hours(sum(v for k, v in held.items() if OWNER[k[2]] in owners)))


def time_ns(text):
    return int(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()) * NS


def run(node="n1", seq=1, start=START, minutes=5, holder="ns-0", epoch=7, **more):
    """One batch of one whole GPU, held by one pod and a quarter of the time active."""
    end = start + minutes * MINUTE
    number = int(holder[-1]) + 1
    records, at = [], start
    while at < end:
        until = min(end, (at // (15 * MINUTE) + 1) * 15 * MINUTE)
        records.append([1, number, 1, 1, 1, 5040, at, until - at, until - at, (until - at) // 4, 0, 0, 0, 1000, 1])
        at = until
    return {
        "node": node,
        "boot_id": "11" * 16,
        "epoch": epoch,
        "seq": seq,
        "flags": 1,
        "from_ns": start,
        "to_ns": end,
        "devices": [{"id": 1, "uuid": f"GPU-{node}", "model": "NVIDIA H100 80GB HBM3"}],
        "holders": [{"id": number, "ns": holder, "pod": "p"}],
        "records": records,
        **more,
    }


class RollUp(Base):
    def states(self, led, hour=START):
        return {state: v for (_, h, state), v in by_state(led).items() if h == hour}

    def test_a_sealed_hour_has_the_rows_that_it_had_open(self):
        fleet = Fleet(seed(), START, START + 3 * HOUR)
        led = self.new_ledger(now=START + 3 * HOUR + MINUTE)
        led.apply(POLICY)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        led.grace = 100 * HOUR  # nobody is silent: only what is covered is due
        before = all_rows(led)
        self.assertEqual(led.value("select count(*) from usage_hourly"), "0")
        sealed = led.rollup()["sealed"]
        self.assertGreater(sealed, 0)
        self.assertEqual(sealed, int(led.value("select count(*) from node_hour where sealed_at is not null")))
        self.assertEqual(all_rows(led), before)
        self.assertEqual(led.rollup(), {"sealed": 0, "resealed": 0, "restored": 0})

    def test_an_open_hour_counts_until_the_node_is_covered(self):
        led = self.new_ledger(now=START + 10 * MINUTE)
        led.ingest([run(minutes=5)])
        self.assertEqual(sum(self.states(led).values()), 5040 * 5 * MINUTE)
        led.rollup()
        self.assertEqual(sum(self.states(led).values()), 5040 * 5 * MINUTE)
        self.assert_conserved(led)

    def test_a_node_silent_beyond_the_grace_is_unknown_until_now(self):
        led = self.new_ledger(now=START + 5 * MINUTE)
        led.ingest([run(minutes=5)])
        led.now = START + 5 * MINUTE + led.grace + 1
        led.rollup()
        self.assertEqual(self.states(led)["unknown"], 5040 * (led.grace + 1))
        self.assert_conserved(led)

    def test_hours_without_any_data_are_sealed_as_unknown_after_the_grace(self):
        led = self.new_ledger(now=START + 10 * MINUTE)
        led.ingest([run(minutes=5)])
        led.now = START + 3 * HOUR + led.grace
        self.assertEqual(led.rollup(), {"sealed": 3, "resealed": 0, "restored": 0})
        self.assertEqual(self.states(led, START + HOUR), {"unknown": 5040 * HOUR})
        self.assertEqual(self.states(led, START + 2 * HOUR), {"unknown": 5040 * HOUR})
        self.assert_conserved(led)

    def test_an_hour_is_not_sealed_before_it_is_covered_or_its_grace_has_passed(self):
        led = self.new_ledger(now=START + HOUR + MINUTE)
        led.ingest([run(minutes=59)])
        self.assertEqual(led.rollup()["sealed"], 0)
        led.ingest([run(seq=2, start=START + 59 * MINUTE, minutes=1)])
        self.assertEqual(led.rollup()["sealed"], 1)

    def test_late_data_makes_a_sealed_hour_right_at_once_and_seals_it_again(self):
        led = self.new_ledger(now=START + 5 * HOUR)
        led.ingest([run(minutes=15), run(seq=2, start=START + 15 * MINUTE, minutes=15)])
        led.rollup()
        self.assertEqual(self.states(led)["unknown"], 5040 * 30 * MINUTE)
        led.ingest([run(seq=3, start=START + 30 * MINUTE, minutes=30, holder="ns-4")])
        late = self.states(led)
        self.assertEqual(sum(late.values()), 5040 * HOUR)
        self.assertNotIn("unknown", late)
        self.assertEqual(led.value("select count(*) from node_hour where dirty"), "1")
        self.assertEqual(led.rollup(), {"sealed": 0, "resealed": 1, "restored": 0})
        self.assertEqual(self.states(led), late)
        self.assertEqual(led.value("select count(*) from node_hour where dirty"), "0")
        self.assert_conserved(led)

    def test_data_before_the_first_known_record_moves_the_start_of_service(self):
        led = self.new_ledger(now=START + 5 * HOUR)
        led.ingest([run(epoch=9, start=START + 3 * HOUR, minutes=60)])
        led.rollup()
        led.ingest([run(epoch=8, start=START, minutes=30)])
        led.rollup()
        self.assertEqual(self.states(led), {"used": 5040 * 30 * MINUTE // 4, "idle": 5040 * 30 * MINUTE * 3 // 4, "unknown": 5040 * 30 * MINUTE})
        self.assertEqual(self.states(led, START + HOUR), {"unknown": 5040 * HOUR})
        self.assert_conserved(led)

    def test_a_clock_that_was_set_back_is_beside_the_states(self):
        led = self.new_ledger(now=START + HOUR)
        led.ingest([run(epoch=7, minutes=30)])
        led.ingest([run(epoch=8, start=START + 20 * MINUTE, minutes=40)])  # ten minutes are measured twice
        led.rollup()
        [g] = led.conservation(START, START + HOUR)
        self.assertEqual(g["clock_adjust_unit_ns"], str(5040 * 10 * MINUTE))
        self.assertEqual((g["sum_unit_ns"], g["in_service_unit_ns"]), (str(5040 * 70 * MINUTE), str(5040 * HOUR)))
        self.assertEqual(g["difference_unit_ns"], "0")

    def test_a_limit_bounds_one_call_and_the_next_goes_on(self):
        led = self.new_ledger(now=START + 10 * HOUR)
        led.ingest([run(minutes=5)])
        total = 0
        while True:
            n = led.rollup(limit=3)["sealed"]
            if n == 0:
                break
            self.assertLessEqual(n, 3)
            total += n
        self.assertEqual(total, 9)  # the tenth hour has not had its grace

    def test_while_another_session_rolls_up_nothing_is_done(self):
        led = self.new_ledger(now=START + 10 * HOUR)
        led.ingest([run(minutes=5)])
        holder = subprocess.Popen(
            [os.path.join(self.cluster.bin, "psql"), "-X", "-q", "-d", self.cluster.conninfo(led.name)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        holder.stdin.write("select pg_advisory_lock(1953459308, 3); select 'held';\n")
        holder.stdin.flush()
        while "held" not in holder.stdout.readline():
            pass
        self.assertEqual(led.rollup(), {"sealed": 0, "resealed": 0, "restored": 0})
        holder.communicate("\\q\n")
        self.assertEqual(led.rollup()["sealed"], 9)

    def test_an_hour_whose_node_pushed_while_it_was_about_to_be_sealed_has_all_its_time(self):
        led = self.new_ledger(now=START + 10 * HOUR)

        def free(minute, seq):
            at = START + minute * MINUTE
            return run(seq=seq, start=at, minutes=1, holders=[], records=[[1, 0, 2, 1, 0, 5040, at, MINUTE, MINUTE, 0, 0, 0, 0, 0, 1]])

        loss = run(seq=1, minutes=1, kind=2, last_seq=1, devices=[], holders=[], records=[])
        self.assertTrue(led.ingest([loss])["ok"])  # an hour with nothing in service
        with subprocess.Popen([os.path.join(self.cluster.bin, "psql"), "-X", "-q", "-At", "-d", self.cluster.conninfo(led.name)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as policy:  # fmt: skip
            policy.stdin.write("select 'held' from pg_advisory_lock(1953459308, 2);\n")
            policy.stdin.flush()
            self.assertEqual(policy.stdout.readline().strip(), "held")
            waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                sealing = pool.submit(led.rollup)
                wait_for("sealing to wait", lambda: led.value(waiting) == "1")
                push = pool.submit(led.ingest, [free(5, 2)])  # brings a GPU, which waits for a policy too
                wait_for("the push to wait", lambda: led.value(waiting) == "2")
                policy.stdin.close()
                self.assertTrue(push.result()["ok"])
                self.assertLessEqual(sealing.result()["sealed"], 1)
        self.assertTrue(led.ingest([free(125, 3)])["ok"])
        while sum(led.rollup().values()):
            pass
        self.assertEqual(int(led.value(f"select sum(u.unknown) from {ALWAYS}")), 5040 * (10 * HOUR - 7 * MINUTE))

    def test_partitions_are_made_ahead(self):
        led = self.new_ledger(now=START)
        led.retain()
        days = [r[0] for r in led.rows("select inhrelid::regclass::text from pg_inherits where inhparent = 'usage_interval'::regclass order by 1")]
        self.assertEqual(days, ["usage_interval_20261130", "usage_interval_20261201", "usage_interval_20261202"])

    def test_two_sessions_that_make_the_same_partition_both_find_it_made(self):
        led = self.new_ledger(now=START)
        make = f"select tollgate.make_partitions({START}, {START + HOUR})"
        psql = [os.path.join(self.cluster.bin, "psql"), "-X", "-q", "-At", "-d", self.cluster.conninfo(led.name)]
        with subprocess.Popen(psql, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
            first.stdin.write(f"begin; {make};\n")
            first.stdin.flush()
            self.assertEqual(first.stdout.readline().strip(), "1")
            with subprocess.Popen([*psql, "-c", make], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as second:
                wait_for("the second to wait", lambda: led.value("select count(*) from pg_locks where locktype = 'advisory' and not granted") == "1")
                first.stdin.write("commit;\n")
                first.stdin.close()
                self.assertEqual(second.stdout.read().strip(), "0")

    def test_billing_hours_days_and_months_are_the_zones(self):
        # Kathmandu is at +5:45: its hours begin at a quarter past, its December at 18:15 UTC.
        midnight = START - 105 * MINUTE
        led = self.new_ledger(now=START + HOUR, zone="Asia/Kathmandu")
        led.ingest([run(start=midnight - 30 * MINUTE, minutes=60)])
        led.rollup()
        self.assertEqual(
            led.rows("select month, rfc3339(starts_at), rfc3339(ends_at) from period order by 1"),
            [["2026-11", "2026-10-31T18:15:00Z", "2026-11-30T18:15:00Z"], ["2026-12", "2026-11-30T18:15:00Z", "2026-12-31T18:15:00Z"]],
        )
        days = {g["day"]: g["allocated_gpu_hours"] for g in led.usage(midnight - HOUR, midnight + HOUR, "day")}
        self.assertEqual((days["2026-11-30"], days["2026-12-01"]), ("0.500000000", "0.500000000"))
        hours = {g["hour"] for g in led.usage(midnight - HOUR, midnight + HOUR, "hour")}
        self.assertEqual(hours, {"2026-11-30T17:15:00Z", "2026-11-30T18:15:00Z"})
        self.assertEqual(led.run("period", "--now", midnight - 1), {"period": "2026-11"})
        self.assertEqual(led.run("period", "--now", midnight), {"period": "2026-12"})
        self.assert_conserved(led)


if __name__ == "__main__":
    unittest.main()
