"""What is kept for how long, and what becomes of batches that come for time that is over: retired GPUs, retired evidence."""

import random
import unittest

from tests.integration.test_days import DAY, settle
from tests.integration.test_ingest_group import Replica, batch
from tests.integration.test_store import ALWAYS, POLICY, START, Base, by_state, seed
from tests.support.fleet.fleet import HOUR, MINUTE, NS, Fleet, truth
from tests.support.store.ledger import StoreError


def of_another_node(fleet, name):
    """The streams of a fleet's first node, as a node of that name with GPUs of its own would send them."""
    return [[{**b, "node": name, "devices": [{**d, "uuid": f"{name}-{d['uuid']}"} for d in b["devices"]]} for b in s] for s in fleet.nodes[0].streams]


class Kept(Base):
    def old_ledger(self):
        """The end of November, sealed and folded; 44 days later one other node is there."""
        led = self.new_ledger()
        led.apply(POLICY)
        fleet = Fleet(seed(), START, START + 8 * HOUR)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        settle(led)
        led.now = START + 44 * DAY
        later = Fleet(1, led.now - HOUR, led.now, nodes=1)
        led.ingest_many(of_another_node(later, "later"))
        return led, fleet

    def close(self, led, at):
        # Closing itself is another test's: here only the time since then matters.
        led.closed_by_hand = True
        led.rows(f"set session_replication_role = replica; update period set status = 'closed', closed_at = at_ns({at}) where month <= '2026-11'; "
                 "insert into row_journal (relation, operation, keys, hashes) select 'period', 'update', array_agg(month), array_agg(journal_hash(to_jsonb(p), '{}')) from period p")  # fmt: skip

    def report(self, led):
        return led.text("report", "2026-11")

    def test_batches_go_35_days_after_their_period_was_closed(self):
        led, _ = self.old_ledger()
        all_batches = int(led.value("select count(*) from ingest_batch"))
        self.assertEqual(led.retain(batches=35 * DAY)["batches"], 0, "the period is open")
        self.close(led, led.now - 34 * DAY)
        self.assertEqual(led.retain(batches=35 * DAY)["batches"], 0, "it was closed 34 days ago")
        before = self.report(led)
        self.close(led, led.now - 36 * DAY)
        old = int(led.value("select count(*) from ingest_batch where to_ns <= ns_of('2026-12-01 00:00Z')"))
        self.assertEqual(led.retain(batches=35 * DAY)["batches"], old)
        self.assertGreater(old, 0)
        self.assertEqual(int(led.value("select count(*) from ingest_batch")), all_batches - old)
        self.assertEqual(led.retain(batches=35 * DAY)["batches"], 0)
        self.assertEqual(self.report(led), before)
        reply = led.verify(START - DAY, led.now)
        self.assertEqual((reply["count"], reply["proved_from"]), (0, "2026-12-01T00:00:00Z"))

    def test_what_comes_for_time_whose_batches_are_gone_is_quarantined_and_stays_there(self):
        led, fleet = self.old_ledger()
        self.close(led, led.now - 36 * DAY)
        self.assertEqual(led.retain(intervals=7 * DAY, batches=35 * DAY)["days"], 1)
        before = by_state(led)
        late = {**next(b for b in fleet.batches() if b["seq"] == 1), "boot_id": "ab" * 16, "epoch": 1}
        r = led.ingest([late])
        self.assertEqual((r["ok"], r["classes"]), (True, {"unproved": 1}))
        self.assertIn("the evidence of all before 2026-12-01T00:00:00Z was retired", r["reason"])
        [batch] = led.quarantine()
        with self.assertRaisesRegex(StoreError, "conflict.*it cannot be released: covers time from"):
            led.release(batch)
        led.rows(f"update ingest_batch set received_at = at_ns({led.now}) where class = 'unproved'")
        self.assertEqual(led.retain(batches=35 * DAY)["batches"], 0, "what came late is kept as long")
        self.assertEqual(by_state(led), before)

    def test_a_state_declared_for_time_whose_batches_are_gone_leaves_its_sums(self):
        led, _ = self.old_ledger()
        self.close(led, led.now - 36 * DAY)
        led.retain(intervals=7 * DAY, batches=35 * DAY)
        held = "select sum(used + idle + unmeasured), sum(used + idle + unmeasured + unallocated + stranded + down + unknown) from usage_hourly where hour < '2026-12-01'"
        before = led.rows(held)
        led.declare(f"insert into node_state (node_id, state, effective) select min(id), 'maintenance', tstzrange(at_ns({START + HOUR}), at_ns({START + 3 * HOUR})) from node")
        now, led.now = led.now, START + 12 * HOUR
        r = led.rollup()
        self.assertEqual((r["restored"], r["resealed"]), (0, 2))
        led.now = now
        self.assertEqual(led.rows(held), before)

    def test_hours_go_after_13_months_and_their_day_is_final(self):
        led, _ = self.old_ledger()
        before = self.report(led)
        self.assertEqual(led.retain(hours=40 * DAY)["hours"], 0, "their records are there")
        led.retain(intervals=7 * DAY)
        self.assertEqual(led.retain(hours=45 * DAY)["hours"], 0, "they are not old enough")
        hours = int(led.value("select count(*) from node_hour where hour < '2026-12-01'"))
        self.assertEqual(led.retain(hours=40 * DAY)["hours"], hours)
        self.assertEqual(led.rows("select count(*) from usage_hourly where hour < '2026-12-01'"), [["0"]])
        self.assertEqual(led.rows("select day, hours_gone, dirty from billing_day order by 1 limit 1"), [["2026-11-30", "t", "f"]])
        self.assertEqual(self.report(led), before)
        led.declare("insert into node_owner (node_id, tenant_id, effective) select min(n.id), (select min(id) from tenant), '[2026-11-30 21:00Z,2026-11-30 22:00Z)' from node n")
        self.assertEqual(self.report(led), before, "what is final does not follow an owner")


class Released(Base):
    def test_a_batch_released_for_a_day_whose_records_are_gone_is_counted(self):
        rng = random.Random(seed())
        led = self.new_ledger()
        led.apply(POLICY)
        fleet = Fleet(rng.randrange(1 << 32), START, START + 8 * HOUR)
        skewed = min((s for n in fleet.nodes for s in n.streams[1:] if s[0]["from_ns"] < START + 3 * HOUR), key=len)
        self.assertEqual(led.ingest(skewed, clock=led.now + HOUR)["classes"], {"skewed-clock": len(skewed)})
        led.ingest_many([s for n in fleet.nodes for s in n.streams if s is not skewed])
        settle(led)
        self.assertEqual(led.retain(intervals=1)["days"], 1)
        for batch in led.quarantine():
            led.release(batch)
        self.assertGreater(led.rollup()["restored"], 0)
        settle(led)
        self.assert_truth(led, fleet)

    def test_records_of_a_retired_gpu_wait_until_the_policy_puts_it_back(self):
        led = self.new_ledger(now=START + 6 * HOUR)
        led.apply(POLICY)
        fleet = Fleet(seed(), START, START + 6 * HOUR, nodes=1)
        batches = fleet.batches()
        half = next(i for i, b in enumerate(batches) if b["from_ns"] >= START + 3 * HOUR)
        for b in batches[:half]:
            self.assertTrue(led.ingest([b])["ok"])
        gpu = batches[0]["devices"][0]["uuid"]
        led.declare(f"insert into node_state (gpu_id, state, effective) select id, 'retired', tstzrange(at_ns({START + 3 * HOUR}), null) from gpu where uuid = '{gpu}'")
        settle(led)
        replies = led.ingest_many([[b] for b in batches[half:]])
        self.assertEqual({str(r["classes"]) for r in replies}, {"{'retired': 1}"})
        self.assertIn(f"GPU {gpu} was declared retired for that time", replies[0]["reason"])
        waiting = led.quarantine()
        self.assertEqual(len(waiting), len(batches) - half)
        with self.assertRaisesRegex(StoreError, "was declared retired"):
            led.release(waiting[0])
        led.declare("delete from node_state")
        for batch in waiting:
            led.release(batch)
        settle(led)
        states, _ = truth(batches, led.now, led.grace)
        held = {k: v for k, v in states.items() if k[2] != "unknown"}
        self.assertEqual({k: v for k, v in by_state(led).items() if k[2] != "unknown"}, held)
        self.assert_conserved(led)

    def test_a_node_that_fell_silent_before_its_gpu_was_retired_has_the_time_between_as_unknown(self):
        led = self.new_ledger(now=START + 6 * HOUR)
        led.ingest([batch(1, 1)])
        led.declare(f"insert into node_state (gpu_id, state, effective) select id, 'retired', tstzrange(at_ns({START + 2 * HOUR}), null) from gpu")
        settle(led)
        self.assertEqual(self.unknown(led), {"GPU-1": 2 * HOUR - MINUTE})
        led.assert_sound()
        led.declare("delete from node_state")
        self.assertTrue(led.ingest([{**batch(1, 1 + 5 * 60), "seq": 2}])["ok"])
        settle(led)
        self.assertEqual(self.unknown(led), {"GPU-1": 6 * HOUR - 2 * MINUTE})

    def unknown(self, led):
        return {uuid: int(v) // 5040 for uuid, v in led.rows(f"select g.uuid, sum(u.unknown) from {ALWAYS} group by 1")}

    def test_a_steady_stream_notices_at_once_that_a_gpu_was_retired(self):
        led = self.new_ledger(now=START + 2 * HOUR)
        led.apply(POLICY)
        for begins in (START, START + HOUR):  # where its service begins, and in the middle of it
            node = begins // HOUR
            with self.subTest(begins - START), Replica(led) as replica:
                seqs = iter(range(1, 100) if begins == START else [1, *range(61, 100)])

                def push(replica=replica, node=node, seqs=seqs):
                    [r] = replica.push({**batch(node, (at := next(seqs))), "seq": push.seq})
                    push.seq += 1
                    return at, r["grouped"], r["quarantined"], r["classes"]

                push.seq = 1
                push()
                push()
                self.assertEqual(push()[1:], (True, 0, {}))
                led.declare(f"insert into node_state (gpu_id, state, effective) select id, 'retired', tstzrange(at_ns({begins}), null) from gpu where uuid = 'GPU-{node}'")
                self.assertEqual(push()[1:], (False, 0, {"retired": 1}))
                self.assertEqual(led.value(f"select count(*) from gpu_service s join gpu g on g.id = s.gpu_id where g.uuid = 'GPU-{node}' and s.until_ns is null"), "0")
                led.declare("delete from node_state")
                self.assertEqual(push()[2:], (0, {}))
                self.assertEqual(push()[1:], (True, 0, {}))
                led.assert_sound()


class Zones(Base):
    def test_a_day_in_which_the_clocks_change_has_25_or_23_hours(self):
        for change, hours in ((1_792_890_000 * NS, 25), (1_806_195_600 * NS, 23)):  # 2026-10-25 and 2027-03-28, 01:00Z
            with self.subTest(hours):
                start = change - 4 * HOUR  # one or two hours before the day begins
                led = self.new_ledger(now=start + 30 * HOUR, zone="Europe/Berlin")
                led.apply(POLICY.replace("2026-11-30T00:00:00Z", "2026-10-24T00:00:00Z" if hours == 25 else "2027-03-27T00:00:00Z"))
                fleet = Fleet(seed(), start, start + 4 * HOUR, nodes=1)
                led.ingest_many([s for n in fleet.nodes for s in n.streams])
                settle(led)
                self.assertEqual(by_state(led), truth(fleet.batches(), led.now, led.grace)[0])
                [[day, begins, long]] = led.rows(f"select day, ns_of(starts_at), extract(epoch from ends_at - starts_at)::int / 3600 from billing_day where starts_at <= at_ns({change}) and ends_at > at_ns({change}) and not dirty")
                self.assertEqual(int(long), hours)
                folded = led.value(f"select sum(used + idle + unmeasured + unallocated + stranded + down + unknown - clock_adjust) from usage_daily where day = '{day}'")
                served = sum(5040 * (int(begins) + hours * HOUR - max(int(begins), int(from_ns))) for [from_ns] in led.rows("select from_ns from gpu_service"))
                self.assertEqual(int(folded), served)
                led.assert_sound()

    def test_where_hours_begin_at_a_quarter_past(self):
        led = self.new_ledger(zone="Asia/Kathmandu")
        led.apply(POLICY.replace("T00:00:00Z", "T00:15:00Z"))
        fleet = Fleet(seed(), START, START + 8 * HOUR, nodes=2)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        settle(led)
        self.assertEqual(led.rows("select distinct to_char(hour at time zone 'UTC', 'MI:SS') from usage_hourly"), [["15:00"]])
        self.assertEqual(led.rows("select distinct to_char(starts_at at time zone 'UTC', 'HH24:MI') from billing_day"), [["18:15"]])

        def totals(states):
            sums = {}
            for (gpu, _, state), v in states.items():
                sums[gpu, state] = sums.get((gpu, state), 0) + v
            return {k: v for k, v in sums.items() if v}

        self.assertEqual(totals(by_state(led)), totals(truth(fleet.batches(), led.now, led.grace)[0]))
        # Midnight in Kathmandu is in the middle of a UTC hour: neither day has the other's records.
        midnight = int(led.value("select ns_of(max(starts_at)) from billing_day"))
        self.assertEqual(midnight % HOUR, 15 * MINUTE)
        held = {k: 0 for k in ("before", "after")}
        for b in fleet.batches():
            for r in b["records"]:
                held["before" if r[6] < midnight else "after"] += r[5] * r[8] if r[2] == 1 else 0
        rows = led.rows(f"select sum(used + idle + unmeasured) filter (where hour < at_ns({midnight})), sum(used + idle + unmeasured) filter (where hour >= at_ns({midnight})) from usage_hourly")
        self.assertEqual([int(v or 0) for v in rows[0]], [held["before"], held["after"]])


if __name__ == "__main__":
    unittest.main()
