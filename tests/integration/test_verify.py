"""The ledger is computed a second time from the batches it keeps: a sound one differs nowhere, and every kind of tampering is named."""

import contextlib
import csv
import io
import json
import os
import pty
import random
import subprocess
import time
import unittest

from tests.integration.test_store import OWNER, POLICY, START, deliver, seed
from tests.support.daemons import pg
from tests.support.daemons.stack import Stack, program
from tests.support.fleet.fleet import HOUR, MINUTE, Fleet
from tests.support.store.ledger import Ledger, frames

DAYS = 48 * HOUR


def kinds(reply):
    return sorted({d["kind"] for d in reply["differences"]})


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())
        cls.count = 0

    def new_ledger(self, now=START + 12 * HOUR, **options):
        type(self).count += 1
        return Ledger(self.cluster, f"v{self.count}", now=now, **options)

    def verify(self, led, node=None):
        return led.verify(START - DAYS, led.now + DAYS, node)

    def assert_clean(self, led):
        reply = self.verify(led)
        self.assertEqual((reply["differences"], reply["count"]), ([], 0))
        return reply


class Sound(Base):
    def test_a_random_fleet_delivered_badly_has_no_difference_open_or_sealed(self):
        rng = random.Random(seed())
        for zone in ("UTC", "Asia/Kathmandu"):
            led = self.new_ledger(zone=zone)
            led.apply(POLICY.replace("T00:00:00Z", "T00:15:00Z") if zone != "UTC" else POLICY)
            fleet = Fleet(rng.randrange(1 << 32), START, START + 7 * HOUR)
            deliver(rng, led, fleet)
            reply = self.assert_clean(led)
            batches = fleet.batches()
            self.assertEqual(reply["batches"], len(batches))
            self.assertEqual(reply["records"], sum(len(b["records"]) for b in batches))
            while sum(led.rollup().values()):
                pass
            self.assertGreater(int(led.value("select count(*) from usage_hourly")), 20)
            self.assert_clean(led)

    def test_loss_quarantine_silence_and_a_clock_that_was_set_back_are_no_differences(self):
        led = self.new_ledger()
        led.apply(POLICY)
        # always the same: a gap in the hour that is delivered twice could outweigh what is there twice
        fleet = Fleet(1, START, START + 3 * HOUR, nodes=1)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        first = fleet.nodes[0].streams[0][0]
        again = {**first, "epoch": 1, "devices": list(first["devices"]), "boot_id": "ab" * 16}
        lost = {"node": first["node"], "boot_id": again["boot_id"], "epoch": 1, "seq": 2, "last_seq": 9, "kind": 2, "flags": 1,
                "from_ns": first["to_ns"], "to_ns": first["to_ns"] + MINUTE}  # fmt: skip
        refused = {**again, "seq": 10, "devices": [], "holders": []}
        r = led.ingest([again, lost, refused])
        self.assertEqual((r["ok"], r["batches"], r["lost"], r["quarantined"]), (True, 1, 8, 1), r)
        led.rollup()
        self.assertGreater(int(led.value("select sum(clock_adjust) from usage_rows('2026-01-01', '2028-01-01')")), 0)
        self.assertGreater(int(led.value("select sum(unknown) from usage_rows('2026-01-01', '2028-01-01')")), 0)
        self.assert_clean(led)

    def test_a_change_of_rules_is_followed_hour_by_hour(self):
        led = self.new_ledger(now=START + 4 * HOUR)
        led.apply(POLICY)
        fleet = Fleet(seed(), START, START + 4 * HOUR)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        led.apply(POLICY.replace("{namespace: ns-2}", "{namespace: ns-4}").replace("2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z"))
        led.now += 4 * HOUR
        later = Fleet(seed(), START + 4 * HOUR, START + 8 * HOUR)
        for i, node in enumerate(later.nodes):
            node.streams = [[{**b, "epoch": b["epoch"] + 500} for b in s] for s in node.streams]
        led.ingest_many([s for n in later.nodes for s in n.streams])
        led.rollup()
        self.assert_clean(led)

    def test_a_part_of_the_time_and_one_node_can_be_asked_for(self):
        led = self.new_ledger()
        led.apply(POLICY)
        fleet = Fleet(seed(), START, START + 5 * HOUR)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        led.rollup()
        name = fleet.nodes[0].name
        hour = led.verify(START + 2 * HOUR, START + 3 * HOUR, name)
        self.assertEqual((hour["count"], hour["nodes"], hour["hours"]), (0, 1, 1))
        records = [r for s in fleet.nodes[0].streams for b in s for r in b["records"]]
        self.assertEqual(hour["records"], sum(START + 2 * HOUR <= r[6] < START + 3 * HOUR for r in records))
        with self.assertRaises(Exception) as refused:
            led.verify(START, START + HOUR, "nobody")
        self.assertIn('there is no node "nobody"', str(refused.exception))


class Tampered(Base):
    """Every test spoils a copy of one sound ledger in one way."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.sound = Ledger(cls.cluster, "sound", now=START + 12 * HOUR)
        cls.sound.apply(POLICY)
        cls.fleet = Fleet(20261116, START, START + 3 * HOUR, nodes=2)
        cls.sound.ingest_many([s for n in cls.fleet.nodes for s in n.streams])
        while sum(cls.sound.rollup().values()):
            pass

    def setUp(self):
        type(self).count += 1
        self.led = Ledger.__new__(Ledger)
        self.led.__dict__.update(self.sound.__dict__, name=f"t{self.count}")
        self.cluster.create_database(self.led.name, self.sound.name)

    def spoil(self, *statements):
        for s in statements:
            self.led.rows(s)
        reply = self.verify(self.led)
        for d in reply["differences"]:
            self.assertEqual(set(d), {"kind", "node", "gpu", "hour", "what", "expected", "found", "difference"})
            self.assertIn(d["node"], ["", *(n.name for n in self.fleet.nodes)])
            if d["difference"]:
                self.assertEqual(int(d["found"]) - int(d["expected"]), int(d["difference"]))
        return reply

    def assert_one(self, reply, kind, difference=None):
        self.assertEqual([d["kind"] for d in reply["differences"]], [kind], reply["differences"])
        [d] = reply["differences"]
        if difference is not None:
            self.assertEqual(d["difference"], str(difference))
        return d

    def one(self, table, where="true"):
        return f"(select ctid from {table} where {where} order by ctid limit 1)"

    def interval(self, where="true"):
        return f"(tableoid, ctid) = (select tableoid, ctid from usage_interval where {where} order by tableoid, ctid limit 1)"

    def test_the_copy_is_sound(self):
        self.assertEqual(self.spoil()["differences"], [])

    def test_a_changed_interval_is_found_with_its_column(self):
        d = self.assert_one(self.spoil(f"update usage_interval set energy_mj = energy_mj + 7 where {self.interval()}"), "interval-changed", 7)
        self.assertIn("energy_mj of device", d["what"])
        self.assertTrue(d["gpu"].startswith("GPU-") and d["hour"].endswith(":00:00Z"), d)

    def test_an_interval_that_was_deleted_is_missing(self):
        self.assert_one(self.spoil(f"delete from usage_interval where {self.interval()}"), "interval-missing")

    def test_an_interval_that_is_there_twice_is_doubled(self):
        self.assert_one(self.spoil(f"insert into usage_interval select * from usage_interval where {self.interval()}"), "interval-doubled")

    def test_an_interval_of_no_batch_is_extra(self):
        row = "start_ns, duration_ns, held_ns, used_ns, unmeasured_ns, over_ns, memory_byte_ms, energy_mj, {}, stream_id, node_id, device_id, ticks, units, state, sharing, method, holder_id"
        d = self.assert_one(self.spoil(f"insert into usage_interval select {row.format('seq + 100000')} from usage_interval where {self.interval()}"), "interval-extra")
        self.assertIn("no batch", d["what"])

    def test_an_interval_changed_in_an_open_hour_shows_in_its_sums_too(self):
        reply = self.spoil("delete from usage_hourly", "update node_hour set sealed_at = null, dirty = false",
                           f"update usage_interval set held_ns = held_ns - 1, duration_ns = duration_ns where {self.interval('held_ns > 1 and state = 2')}")  # fmt: skip
        self.assertEqual(kinds(reply), ["hour-changed", "hour-row-extra", "interval-changed"])

    def test_a_changed_sum_of_an_hour_is_found_with_its_name(self):
        row = self.one("usage_hourly", "used > 0")
        reply = self.spoil(f"update usage_hourly set used = used - 5, idle = idle + 5 where ctid = {row}")
        self.assertEqual([(d["kind"], d["what"].split()[0], d["difference"]) for d in reply["differences"]],
                         [("hour-changed", "used", "-5"), ("hour-changed", "idle", "5")])  # fmt: skip

    def test_memory_energy_and_over_are_compared_as_well(self):
        for column in ("memory_byte_ms", "energy_mj", "over", "peak_memory_bytes", "sm_measured"):
            with self.subTest(column):
                reply = self.spoil(f"update usage_hourly set {column} = {column} + 3 where ctid = {self.one('usage_hourly', 'holder_id is not null')}")
                d = reply["differences"][-1]
                self.assertIn(column, [x["what"].split()[0] for x in reply["differences"]])
                self.assertEqual((d["kind"], d["difference"]), ("hour-changed", "3"))

    def test_a_sum_too_large_breaks_conservation(self):
        reply = self.spoil(f"update usage_hourly set down = down + 9 where ctid = {self.one('usage_hourly', 'down > 0')}")
        self.assertEqual([(d["kind"], d["difference"]) for d in reply["differences"]], [("hour-changed", "9"), ("conservation", "9")])

    def test_unknown_time_and_clock_adjust_are_recomputed_from_the_gaps(self):
        reply = self.spoil(f"update usage_hourly set unknown = unknown - 1 where ctid = {self.one('usage_hourly', 'sharing = 0 and unknown > 0')}")
        self.assertEqual([(d["kind"], d["difference"]) for d in reply["differences"]], [("hour-changed", "-1"), ("conservation", "-1")])

    def test_an_hour_row_that_was_deleted_is_missing(self):
        self.assertEqual(kinds(self.spoil(f"delete from usage_hourly where ctid = {self.one('usage_hourly', 'used > 0')}")), ["conservation", "hour-row-missing"])

    def test_an_hour_row_of_nothing_is_extra(self):
        row = "hour, node_id, device_id, holder_id, workspace_id, 3, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0"
        reply = self.spoil(f"insert into usage_hourly select {row} from usage_hourly where ctid = {self.one('usage_hourly', 'holder_id is not null')}")
        self.assertEqual(kinds(reply), ["conservation", "hour-row-extra"])

    def test_changed_bytes_of_a_batch_do_not_have_its_hash(self):
        row = self.one("ingest_batch")
        reply = self.spoil(f"update ingest_batch set payload = set_byte(payload, octet_length(payload) - 6, get_byte(payload, octet_length(payload) - 6) # 1) where ctid = {row}")
        found = [d for d in reply["differences"] if d["kind"] == "batch-bytes"]
        self.assertEqual([d["what"].split(": ")[1] for d in found], ["SHA-256 of its bytes", "its content"])
        # What it held has no evidence any more, and that is told as well.
        self.assertLessEqual({"interval-extra", "batch-bytes"}, set(kinds(reply)))

    def test_a_changed_hash_of_a_batch_is_found(self):
        d = self.assert_one(self.spoil(f"update ingest_batch set sha256 = sha256('x') where ctid = {self.one('ingest_batch')}"), "batch-bytes")
        self.assertEqual(len(d["found"]), 64)

    def test_a_changed_head_of_a_batch_is_found(self):
        self.assert_one(self.spoil(f"update ingest_batch set records = records + 1 where ctid = {self.one('ingest_batch')}"), "batch-head", 1)

    def test_a_batch_that_was_deleted_leaves_a_hole(self):
        reply = self.spoil("set session_replication_role = replica; delete from ingest_batch where (stream_id, seq) = (select stream_id, 2 from stream s join ingest_batch b on b.stream_id = s.id where b.seq = 3 limit 1)")
        [hole] = [d for d in reply["differences"] if d["kind"] == "batch-missing"]
        self.assertEqual((hole["expected"], hole["found"]), ("2", "3"))
        self.assertIn("interval-extra", kinds(reply))

    def test_a_moved_cursor_is_found(self):
        d = self.assert_one(self.spoil("update stream set next_seq = next_seq + 1 where id = (select min(id) from stream)"), "cursor", 1)
        self.assertIn("next_seq", d["what"])

    def test_a_stream_that_claims_to_have_covered_more_is_found(self):
        self.assert_one(self.spoil("update stream set covered_until_ns = covered_until_ns + 4 where id = (select min(id) from stream)"), "cursor", 4)

    def test_a_node_that_claims_to_be_covered_further_is_found(self):
        self.assertIn("cursor", kinds(self.spoil("update node set covered_until_ns = covered_until_ns + 1")))

    def test_a_changed_dictionary_is_found(self):
        reply = self.spoil("update stream_holder set holder_id = (select max(id) from holder) where ctid = "
                           f"{self.one('stream_holder', 'holder_id < (select max(id) from holder)')}")  # fmt: skip
        self.assertIn("dictionary", kinds(reply))

    def test_a_changed_holder_is_found(self):
        self.assertIn("dictionary", kinds(self.spoil("update holder set pod = 'other' where id = (select min(holder_id) from stream_holder)")))

    def test_a_changed_attribution_is_found_in_both_places(self):
        other = "(select id from workspace where builtin)"
        d = self.assert_one(self.spoil(f"update usage_hourly set workspace_id = {other} where ctid = {self.one('usage_hourly', 'holder_id is not null')}"), "attribution")
        self.assertEqual(d["found"], "unattributed/unattributed")
        self.assertIn(d["expected"].split("/")[1], OWNER.values())
        reply = self.spoil(f"update holder_attribution set workspace_id = {other} where holder_id = (select min(holder_id) from usage_hourly)")
        self.assertEqual(kinds(reply), ["attribution"])
        self.assertIn("holder_attribution of ns-", reply["differences"][0]["what"])

    def test_a_changed_time_in_service_is_found(self):
        reply = self.spoil("update gpu_service set from_ns = from_ns - 1 where id = (select min(id) from gpu_service)")
        self.assertIn("service", kinds(reply))
        self.assertIn("service", kinds(self.spoil("update gpu_service set from_ns = from_ns + 2")))

    def test_a_node_hour_that_is_gone_is_missing(self):
        reply = self.spoil("delete from usage_hourly where hour = (select min(hour) from node_hour)", "delete from node_hour where hour = (select min(hour) from node_hour)")
        self.assertIn("hour-missing", kinds(reply))

    def test_every_difference_is_counted_when_there_are_too_many_to_tell(self):
        reply = self.spoil("delete from usage_interval")
        total = sum(len(b["records"]) for b in self.fleet.batches())
        self.assertEqual((reply["count"], reply["left_out"]), (total, max(0, total - 10000)))

    def test_the_error_of_a_period_is_the_sum_of_what_its_gpus_differ_by(self):
        def error(period):
            return int(self.led.run("conservation-error", period)["unit_ns"])

        self.assertEqual((error("2026-11"), error("2026-12"), error("1999-01")), (0, 0, 0))
        rows = self.led.rows("select distinct on (d.gpu_id) u.ctid from usage_hourly u join device d on d.id = u.device_id where u.unknown > 7 and u.hour < '2026-12-01' order by d.gpu_id limit 2")
        self.led.rows(f"update usage_hourly set unknown = unknown + 7 where ctid = '{rows[0][0]}'")
        self.led.rows(f"update usage_hourly set unknown = unknown - 7 where ctid = '{rows[1][0]}'")
        self.assertEqual((error("2026-11"), error("2026-12")), (14, 0))


class Command(unittest.TestCase):
    """tollgate verify, against a running aggregator."""

    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack())
        s.apply(POLICY.replace("effective: 2026-11-30T00:00:00Z\n", ""))
        start = int(time.time()) // 3600 * HOUR - 4 * HOUR
        cls.fleet = Fleet(20261116, start, start + 3 * HOUR, nodes=2)
        for node in cls.fleet.nodes:
            s.node_token(node.name)
            for stream in node.streams:
                reply = s.call("POST", "/v1/ingest", frames(stream), role=f"node {node.name}")
                assert reply.status == 200, reply.text()
        s.token("viewer", role="viewer", tenant="acme")

    def spoiled(self, spoil, mend):
        self.stack.sql(spoil)
        self.addCleanup(self.stack.sql, mend)

    def test_a_sound_ledger_ends_with_0_and_says_how_much_was_looked_at(self):
        done = self.stack.cli("verify")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout.splitlines()[0], r"^\S+Z to \S+Z: 2 nodes, \d+ node-hours, %d batches, %d records, \d+ days, \d+ charges, \d+ closed months, \d+ documents, \d+ lines, \d+ lines rated again, \d+ rows by the journal, "
                         r"[1-9]\d{3} objects of the schema, \d+ audit entries, \d+ quota events, \d+ journal entries, \d+ seals: no difference$" % (len(self.fleet.batches()), sum(len(b["records"]) for b in self.fleet.batches())))  # fmt: skip
        self.assertEqual(self.stack.cli("verify", "-o", "csv").stdout, "kind,node,gpu,hour,what,expected,found,difference\n")
        self.assertEqual(json.loads(self.stack.cli("verify", "-o", "json").stdout)["differences"], [])

    def test_a_difference_is_shown_in_three_ways_and_ends_with_1(self):
        self.spoiled("update stream set next_seq = next_seq + 3 where id = (select min(id) from stream)",
                     "update stream set next_seq = next_seq - 3 where id = (select min(id) from stream)")  # fmt: skip
        table = self.stack.cli("verify")
        self.assertEqual(table.returncode, 1)
        self.assertIn("cursor", table.stdout)
        self.assertIn(": 1 differences, 0 of them not shown\n", table.stdout)
        done = self.stack.cli("verify", "-o", "csv")
        [row] = csv.DictReader(io.StringIO(done.stdout))
        self.assertEqual((done.returncode, row["kind"], row["difference"]), (1, "cursor", "3"))
        done = self.stack.cli("verify", "-o", "json")
        reply = json.loads(done.stdout)
        self.assertEqual((done.returncode, reply["count"], reply["nodes"]), (1, 1, 2))
        other = [n.name for n in self.fleet.nodes if n.name != row["node"]][0]
        self.assertEqual(self.stack.cli("verify", "--node", other).returncode, 0)
        self.assertEqual(self.stack.cli("verify", "--node", row["node"]).returncode, 1)

    def test_what_was_covered_is_said_and_a_range_without_anything_is_not_called_sound(self):
        nothing = self.stack.cli("verify", "--from", "2020-01-01T00:00:00Z", "--to", "2020-01-02T00:00:00Z")
        self.assertEqual(nothing.returncode, 4, nothing.stdout)
        self.assertIn("2020-01-01T00:00:00Z to 2020-01-02T00:00:00Z: 2 nodes, 0 node-hours", nothing.stdout)
        self.assertIn("Covered nothing", nothing.stdout)
        everything = self.stack.cli("verify", "--all", "-o", "json")
        self.assertEqual(everything.returncode, 0, everything.stdout)
        self.assertEqual(json.loads(everything.stdout)["batches"], len(self.fleet.batches()))
        month = time.strftime("%Y-%m", time.gmtime(self.fleet.start // 10**9))
        one = self.stack.cli("verify", "--month", month)
        self.assertEqual(one.returncode, 0, one.stdout)
        self.assertIn(f"{month}-01T00:00:00Z to ", one.stdout)
        self.assertEqual(self.stack.cli("verify", "--month", "1999-01").returncode, 4)
        self.assertEqual(self.stack.cli("verify", "--month", "last").returncode, 2)
        self.assertEqual(self.stack.cli("verify", "--month", month, "--all").returncode, 2)

    def test_a_node_that_is_not_there_and_a_role_that_may_not_are_refused(self):
        done = self.stack.cli("verify", "--node", "nobody")
        self.assertEqual(done.returncode, 4, "nothing was proved, and nothing is known to differ")
        self.assertIn('there is no node "nobody"', done.stderr)
        self.assertEqual(self.stack.cli("verify", role="viewer").returncode, 4)
        self.assertEqual(self.stack.cli("verify", "--since", "7").returncode, 2)

    def test_a_terminal_sees_how_far_it_has_come(self):
        outer, inner = pty.openpty()
        self.addCleanup(os.close, outer)
        token = os.path.join(self.stack.dir, "verify-token")
        with open(token, "w", encoding="ascii") as f:
            f.write(self.stack.tokens["admin"])
        env = {**os.environ, "TERM": "xterm", "TOLLGATE_URL": self.stack.url, "TOLLGATE_TOKEN_FILE": token}
        done = subprocess.run([program("tollgate"), "verify"], stdout=subprocess.PIPE, stderr=inner, env=env, check=False)
        os.close(inner)
        self.assertEqual(done.returncode, 0)
        self.assertNotIn(b"\x1b", done.stdout)
        seen = self.everything(outer)
        for i, node in enumerate(sorted(n.name for n in self.fleet.nodes)):
            self.assertIn(f"node {i + 1} of 2: {node}", seen)
        self.assertTrue(seen.endswith("\x1b[K"), seen)

    @staticmethod
    def everything(terminal):
        """What was written to the other end, which is closed: a terminal gives it in pieces, and ends with an error."""
        seen = b""
        with contextlib.suppress(OSError):
            while piece := os.read(terminal, 4096):
                seen += piece
        return seen.decode()

    def test_the_gauge_is_the_operators_and_zero(self):
        self.assertIn("\ntollgate_conservation_error_seconds 0\n", self.stack.get("/metrics").text().replace(" 0.000000000\n", " 0\n"))
        self.assertNotIn("tollgate_conservation_error_seconds", self.stack.get("/metrics", role="viewer").text())


if __name__ == "__main__":
    unittest.main()
