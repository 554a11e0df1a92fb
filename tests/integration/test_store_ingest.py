"""What ingest refuses, what it puts into quarantine, and that neither ever stops a stream or changes a total."""

# also: san

import json
import unittest

from tests.support.daemons import pg
from tests.support.fleet.fleet import HOUR, MINUTE, NS
from tests.support.store.ledger import Ledger, StoreError, frames

START = 1_796_068_800 * NS  # 2026-11-30T20:00Z
H100 = "NVIDIA H100 80GB HBM3"
GPU = {"id": 1, "uuid": "GPU-1", "model": H100}
POD = {"id": 1, "ns": "a", "pod": "p"}
HELD = [1, 1, 1, 1, 1, 5040, START, MINUTE, MINUTE, MINUTE // 2, 0, 0, 0, 1000, 60]


def record(**change):
    names = "device holder state sharing method units start_ns duration_ns held_ns used_ns unmeasured_ns over_ns memory_byte_ms energy_mj ticks".split()
    assert set(change) <= set(names), change
    return [change.get(n, v) for n, v in zip(names, HELD)]


def batch(seq=1, **change):
    """A minute of one GPU, held by one pod; the minute follows from the number."""
    start = START + (seq - 1) * MINUTE
    b = {"node": "n1", "boot_id": "22" * 16, "epoch": 5, "seq": seq, "from_ns": start, "to_ns": start + MINUTE,
         "devices": [GPU] if seq == 1 else [], "holders": [POD] if seq == 1 else [], "records": [record(start_ns=start)]}  # fmt: skip
    return {**b, **change}


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())
        cls.count = 0

    def new_ledger(self, **options):
        type(self).count += 1
        led = Ledger(self.cluster, f"i{self.count}", now=START + HOUR, **options)
        self.addCleanup(led.assert_sound)
        return led

    def total(self, led):
        return int(led.value("select coalesce(sum(used + idle + unmeasured), 0) from usage_rows('2026-01-01', '2028-01-01')"))

    def counts(self, led):
        return [int(led.value(f"select count(*) from {t}")) for t in ("stream", "ingest_batch", "usage_interval")]


class Refused(Base):
    """The call fails, nothing of it is stored, and the same stream goes on afterwards."""

    CASES = [
        ("an empty body", "other", b"", "invalid", "no frame"),
        ("a wrong CRC", "crc", [batch(break_="crc")], "invalid", "frame 0: its length or CRC32C is wrong"),
        ("a frame that is cut off", "torn", [batch(1), batch(2, break_="torn")], "invalid", "frame 1: the body ends inside it"),
        ("a payload that is no gzip", "gzip", [batch(1), batch(2, break_="gzip")], "invalid", "frame 1"),
        ("a gzip bomb", "gzip", [batch(break_="bomb")], "invalid", "frame 0"),
        ("a body without its end", "content", [batch(break_="body")], "invalid", "frame 0"),
        ("a length that cannot be", "crc", b"\xff\xff\xff\xff" + b"\0" * 60, "invalid", "frame 0"),
        ("a version from the future", "version", [batch(break_="version")], "retry", "version"),
        ("frames of two streams", "stream", [batch(1), batch(2, epoch=6)], "invalid", "frame 1: is of another stream"),
        ("frames of two boots", "stream", [batch(1), batch(2, boot_id="33" * 16)], "invalid", "another stream"),
        ("another node than the token's", "node", [batch(node="n2")], "denied", "the token speaks for node n1, the batch is of node n2"),
        ("epoch 0", "stream", [batch(epoch=0)], "invalid", "epoch is 0"),
        ("number 0", "stream", [batch(seq=1, seq_=0)], "invalid", "seq is 0"),
    ]

    def encode(self, batches):
        if isinstance(batches, bytes):
            return batches
        return frames([{k: v for k, v in {**b, "break": b.get("break_", ""), "seq": b.get("seq_", b["seq"])}.items() if k[-1] != "_"} for b in batches])

    def test_each_unsound_push_is_refused_with_the_frame_and_the_reason(self):
        led = self.new_ledger()
        for name, refusal, batches, kind, words in self.CASES:
            with self.subTest(name):
                r = led.ingest(self.encode(batches), node="n1")
                self.assertEqual((r["ok"], r["error"], r["refusal"]), (False, kind, refusal), r)
                self.assertIn(words, r["text"])
                self.assertEqual(self.counts(led), [0, 0, 0])
        r = led.ingest([batch(1), batch(2)], node="n1")
        self.assertEqual((r["ok"], r["next_seq"], r["records"]), (True, 3, 2))

    def test_without_a_token_s_node_the_name_itself_is_judged(self):
        led = self.new_ledger()
        for name in ("", "x" * 254, "bell\a"):
            with self.subTest(name=name):
                r = led.ingest([batch(node=name)])
                self.assertEqual((r["ok"], r["error"]), (False, "invalid"))
                self.assertIn("node", r["text"])

    def test_a_gap_names_the_number_expected_and_stores_nothing(self):
        led = self.new_ledger()
        led.ingest([batch(1)])
        for push in ([batch(3)], [batch(2), batch(4)], [batch(5), batch(2)]):
            with self.subTest(push=[b["seq"] for b in push]):
                before = self.counts(led)
                r = led.ingest(push)
                self.assertEqual((r["ok"], r["gap"], r["refusal"], r["error"], r["epoch"], r["next_seq"]), (False, True, "gap", "conflict", 5, 2))
                self.assertEqual(self.counts(led), before)

    def test_a_known_number_with_other_bytes_is_an_alarm(self):
        led = self.new_ledger()
        led.ingest([batch(1), batch(2)])
        before = self.counts(led), self.total(led)
        other = batch(2, records=[record(start_ns=START + MINUTE, used_ns=7)])
        for push in ([other], [batch(1), other, batch(3)]):
            r = led.ingest(push)
            self.assertEqual((r["ok"], r["mismatch"], r["refusal"], r["error"], r["next_seq"]), (False, True, "mismatch", "conflict", 3))
            self.assertIn("batch 2 of node n1, epoch 5, is known with other bytes", r["text"])
            self.assertEqual((self.counts(led), self.total(led)), before)
        r = led.ingest([batch(3), batch(4), batch(4, records=[])])
        self.assertTrue(r["mismatch"], "twice in one push, with other bytes")

    def test_what_is_known_is_acknowledged_again(self):
        led = self.new_ledger()
        led.ingest([batch(1), batch(2)])
        before = self.total(led)
        r = led.ingest([batch(1), batch(2)])
        self.assertEqual((r["ok"], r["duplicates"], r["batches"], r["next_seq"]), (True, 2, 0, 3))
        r = led.ingest([batch(2), batch(3), batch(3)])
        self.assertEqual((r["ok"], r["duplicates"], r["batches"], r["next_seq"]), (True, 2, 1, 4))
        self.assertEqual(self.total(led), before + 5040 * MINUTE)

    def test_simulated_records_are_for_demos_only(self):
        led = self.new_ledger(demo=False)
        r = led.ingest([batch(1), batch(2, flags=1)])
        self.assertEqual((r["ok"], r["simulated"], r["refusal"], r["error"]), (False, True, "simulated", "invalid"))
        self.assertIn("simulator", r["text"])
        self.assertEqual(self.counts(led), [0, 0, 0])
        self.assertTrue(led.ingest([batch(1), batch(2)])["ok"])
        self.assertTrue(self.new_ledger(demo=True).ingest([batch(1, flags=1)])["ok"])


MIG = {"id": 2, "gpu": 1, "uuid": "MIG-1", "model": H100, "profile": "3g.40gb", "gi": 1, "ci": 0, "units": 2340, "created_ns": 9}


class Quarantined(Base):
    """The second batch is sound but wrong: it is kept with its reason, acknowledged, and changes no total."""

    CASES = [
        ("more used than held", "format", {"records": [record(start_ns=START + MINUTE, used_ns=MINUTE + 1)]}, "used_ns"),
        ("more held than time", "format", {"records": [record(start_ns=START + MINUTE, held_ns=MINUTE + 1)]}, "held_ns"),
        ("a negative amount", "format", {"records": [record(start_ns=START + MINUTE, energy_mj=-1)]}, "energy_mj"),
        ("an amount that overflows", "format", {"records": [record(start_ns=START + MINUTE, duration_ns=2**63 - 1)]}, "duration_ns"),
        ("a state that does not exist", "format", {"records": [record(start_ns=START + MINUTE, state=9)]}, "state"),
        ("a holder where nobody holds", "format", {"records": [record(start_ns=START + MINUTE, state=2, method=0, used_ns=0)]}, "holder"),
        ("a record outside the batch", "format", {"records": [record(start_ns=START)]}, "before the batch's from_ns"),
        ("a record across a quarter-hour", "format", {"to_ns": START + 16 * MINUTE, "records": [record(start_ns=START + 14 * MINUTE + 30 * NS)]}, "quarter-hour"),
        ("an unknown device", "unknown-id", {"records": [record(start_ns=START + MINUTE, device=7)]}, "record 0: device 7 was never introduced"),
        ("an unknown holder", "unknown-id", {"records": [record(start_ns=START + MINUTE, holder=7)]}, "record 0: holder 7 was never introduced"),
        ("the future", "future", {"from_ns": START + HOUR, "to_ns": START + HOUR + 6 * MINUTE, "records": []}, "more than five minutes after"),
        ("the distant past", "past", {"from_ns": START - 46 * 24 * HOUR, "to_ns": START - 46 * 24 * HOUR + MINUTE, "records": []}, "more than 45 days before"),
        ("time the stream has covered", "covered", {"from_ns": START + MINUTE - 1, "to_ns": START + 2 * MINUTE}, "has covered all until"),
        ("a GPU counted twice", "weight", {"records": [record(start_ns=START + MINUTE), record(start_ns=START + MINUTE)]}, "more than 5040 units"),
        ("a device number with another meaning", "dictionary", {"devices": [{**GPU, "uuid": "GPU-2"}]}, "device id 1 meant another device before"),
        ("a holder number with another meaning", "dictionary", {"holders": [{**POD, "pod": "q"}]}, "holder id 1 meant another holder before"),
        ("an instance of no GPU", "dictionary", {"devices": [{**MIG, "gpu": 9}]}, "which the stream has not introduced"),
        ("an instance of an instance", "dictionary", {"devices": [MIG, {**MIG, "id": 3, "gi": 2, "gpu": 2}]}, "which the stream has not introduced"),
        ("more units than the device has", "weight", {"devices": [MIG], "records": [record(start_ns=START + MINUTE, device=2)]}, "more than its device's 2340"),
        ("text that is not UTF-8", "format", {"break": "text"}, "exporter_version"),
        ("a kind that does not exist", "format", {"kind": 3}, "kind"),
        ("a loss beyond all numbers", "format", {"kind": 2, "last_seq": 2**62 + 5, "records": []}, "beyond what a stream can reach"),
    ]

    def test_each_refused_content_is_quarantined_with_its_reason_and_the_stream_goes_on(self):
        led = self.new_ledger()
        for i, (name, klass, change, words) in enumerate(self.CASES):
            with self.subTest(name):
                self.one_case(led, i, klass, change, words)
        led.rollup()
        gpus = led.conservation(START, START + HOUR)
        self.assertEqual({g["difference_unit_ns"] for g in gpus}, {"0"})
        self.assertEqual(len(gpus), len(self.CASES))

    def one_case(self, led, i, klass, change, words):
        """Every case has a node and a GPU of its own."""

        def own(b):
            return json.loads(json.dumps({**b, "node": f"q{i}"}).replace('"GPU-', f'"GPU-{i}-'))

        def total():
            return int(led.value("select sum(u.used + u.idle + u.unmeasured) from usage_rows('2026-01-01', '2028-01-01') u "
                                 f"join node n on n.id = u.node_id where n.name = 'q{i}'"))  # fmt: skip

        first, bad, next_ = own(batch(1)), own(batch(2, **change)), own(batch(3))
        _, r = led.ingest_many([[first], [bad]])
        self.assertEqual((r["ok"], r["quarantined"], r["batches"], r["next_seq"]), (True, 1, 0, 3), r)
        self.assertEqual(r["classes"], {klass: 1})
        self.assertIn(words, r["reason"])
        self.assertEqual(total(), 5040 * MINUTE)
        [[status, reason]] = led.rows(
            f"select b.status, b.reason from ingest_batch b join stream s on s.id = b.stream_id join node n on n.id = s.node_id where n.name = 'q{i}' and seq = 2"
        )
        self.assertEqual(status, "quarantined")
        self.assertIn(words, reason)
        r = led.ingest([bad, next_])
        self.assertEqual((r["ok"], r["duplicates"], r["batches"], r["next_seq"]), (True, 1, 1, 4), r)
        self.assertEqual(total(), 5040 * 2 * MINUTE)

    def test_a_dictionary_is_learnt_from_a_batch_whose_time_is_refused(self):
        led = self.new_ledger()
        led.ingest([batch(1, to_ns=START + 2 * HOUR)])
        r = led.ingest([batch(2)])
        self.assertEqual((r["ok"], r["batches"], r["quarantined"]), (True, 1, 0), r)

    def test_a_dictionary_may_come_again(self):
        led = self.new_ledger()
        led.ingest([batch(1)])
        r = led.ingest([batch(2, devices=[GPU, MIG], holders=[POD]), batch(3, devices=[MIG, GPU])])
        self.assertEqual((r["ok"], r["batches"], r["quarantined"]), (True, 2, 0), r)

    def test_an_instance_that_changes_its_size_is_a_contradiction(self):
        led = self.new_ledger()
        of_it = lambda start, units: [record(start_ns=start, device=2, units=units)]
        led.ingest([batch(1, devices=[GPU, MIG], records=of_it(START, 2340))])
        later = {"from_ns": START + MINUTE, "to_ns": START + 2 * MINUTE, "devices": [GPU, {**MIG, "units": 1350}]}
        r = led.ingest([batch(1, epoch=6, **later, records=of_it(START + MINUTE, 1350))])
        self.assertIn("another profile or other units", r["reason"])
        r = led.ingest([batch(2, **later, records=of_it(START + MINUTE, 1350))])
        self.assertIn("another profile or other units", r["reason"], "of one stream")

    def test_one_workload_under_two_numbers_is_one_holder(self):
        led = self.new_ledger()
        half = [record(held_ns=MINUTE // 2, used_ns=0), record(held_ns=MINUTE // 2, used_ns=0, holder=2)]
        r = led.ingest([batch(1, holders=[POD, {**POD, "id": 2}], records=half)])
        self.assertEqual((r["ok"], r["batches"]), (True, 1), r)
        self.assertEqual(led.value("select count(*) from holder"), "1")
        self.assertEqual(self.total(led), 5040 * MINUTE)


class Sums(Base):
    """What a call says it has added: by workspace, class of device and state."""

    POLICY = "version: 1\ncluster: test\neffective: 2026-11-30T00:00:00Z\ntenants:\n  - {name: t, workspaces: [{name: w, rules: [{namespace: a}]}]}\n"

    def test_only_what_became_durable_is_summed_and_only_once(self):
        led = self.new_ledger()
        led.apply(self.POLICY)
        workspace = int(led.value("select w.id from workspace w join tenant t on t.id = w.tenant_id where t.name = 't'"))
        nobody = int(led.value("select id from workspace where builtin"))
        free = record(start_ns=START + MINUTE, holder=0, state=2, method=0, used_ns=0, device=2, units=2340, energy_mj=0)
        held = record(start_ns=START + MINUTE, units=2700, unmeasured_ns=MINUTE // 4, used_ns=MINUTE // 4)
        first, second = batch(1, holders=[POD, {"id": 2, "ns": "else", "pod": "q"}]), batch(2, devices=[GPU, MIG], records=[held, free])
        pushes = [
            [first],
            [first, second],
            [first, second],
            [batch(3, records=[record(start_ns=START + 2 * MINUTE, holder=2), record(start_ns=0)])],
            [batch(4, records=[record(start_ns=START + 3 * MINUTE, holder=2, used_ns=MINUTE)])],
            [batch(6)],
        ]
        half = 5040 * MINUTE // 2
        whole, slice_ = ["test", "H100-80GB", ""], ["test", "H100-80GB", "3g.40gb"]
        expected = [
            [[workspace, *whole, "used", half, 1000], [workspace, *whole, "idle", half, 0]],
            [
                [workspace, *whole, "used", 2700 * MINUTE // 4, 1000],
                [workspace, *whole, "unmeasured", 2700 * MINUTE // 4, 0],
                [workspace, *whole, "idle", 2700 * MINUTE // 2, 0],
                [0, *slice_, "unallocated", 2340 * MINUTE, 0],
            ],
            [],  # duplicates
            [],  # quarantined
            [[nobody, *whole, "used", 5040 * MINUTE, 1000]],
            [],  # a gap
        ]
        for push, sums in zip(pushes, expected):
            with self.subTest(push=[b["seq"] for b in push]):
                self.assertEqual(sorted(led.ingest(push)["sums"]), sorted(sums))


class Loss(Base):
    def loss(self, seq, last, start, end, **change):
        return batch(seq, kind=2, last_seq=last, from_ns=start, to_ns=end, devices=[], holders=[], records=[], **change)

    def test_a_loss_moves_the_cursor_and_its_time_is_unknown(self):
        led = self.new_ledger()
        led.ingest([batch(1)])
        r = led.ingest([self.loss(2, 4, START + MINUTE, START + 4 * MINUTE), batch(5)])
        self.assertEqual((r["ok"], r["lost"], r["batches"], r["next_seq"]), (True, 3, 1, 6), r)
        unknown = led.value("select sum(unknown) from usage_rows('2026-01-01', '2028-01-01')")
        self.assertEqual(int(unknown), 5040 * 3 * MINUTE)
        self.assertEqual(led.rows("select seq, last_seq, status from ingest_batch where seq = 2"), [["2", "4", "loss"]])

    def test_a_loss_of_what_had_arrived_after_all_takes_nothing_away(self):
        led = self.new_ledger()
        led.ingest([batch(1), batch(2), batch(3)])
        before = self.total(led)
        r = led.ingest([self.loss(2, 5, START + MINUTE, START + 5 * MINUTE)])
        self.assertEqual((r["ok"], r["lost"], r["next_seq"], r["mismatch"]), (True, 2, 6, False), r)
        self.assertEqual(self.total(led), before)
        r = led.ingest([self.loss(2, 3, START + MINUTE, START + 3 * MINUTE), batch(6)])
        self.assertEqual((r["ok"], r["duplicates"], r["batches"], r["next_seq"]), (True, 1, 1, 7), r)

    def test_a_number_inside_a_loss_that_comes_after_all_is_not_counted(self):
        led = self.new_ledger()
        led.ingest([batch(1), self.loss(2, 4, START + MINUTE, START + 4 * MINUTE)])
        r = led.ingest([batch(3)])
        self.assertEqual((r["ok"], r["duplicates"], r["next_seq"]), (True, 1, 5), r)

    def test_a_loss_that_is_refused_still_gives_way_to_what_follows_it(self):
        led = self.new_ledger()
        led.ingest([batch(1)])
        r = led.ingest([self.loss(2, 4, START + MINUTE, START + 3 * HOUR), batch(5)])
        self.assertEqual((r["ok"], r["quarantined"], r["batches"], r["next_seq"]), (True, 1, 1, 6), r)


class Service(Base):
    def gpu_on(self, node, start, minutes=1, epoch=5, seq=1):
        return batch(seq, node=node, epoch=epoch, from_ns=start, to_ns=start + minutes * MINUTE, devices=[GPU], holders=[POD],
                     records=[record(start_ns=start, duration_ns=minutes * MINUTE, held_ns=minutes * MINUTE)])  # fmt: skip

    def services(self, led):
        return [
            (n, (int(a) - START) // MINUTE, None if b is None else (int(b) - START) // MINUTE)
            for n, a, b in led.rows("select n.name, s.from_ns, s.until_ns from gpu_service s join node n on n.id = s.node_id order by s.from_ns")
        ]

    def aside(self, led):
        return [(q["node"], q["seq"], q["gpu"], q["class"]) for q in led.quarantine() if q["gpu"]]

    def rows(self, led):
        return [int(led.value(f"select count(*) from {t}")) for t in ("gpu", "gpu_spec", "device", "holder", "gpu_service", "usage_interval")]

    def test_a_gpu_of_another_node_is_set_aside_and_its_owner_goes_on(self):
        led = self.new_ledger()
        led.ingest([self.gpu_on("n1", START, 10)])
        before = self.rows(led)
        for start in (5, 10, 30):  # while it is covered, right after, and where its owner has not come yet
            claim = self.gpu_on("n2", START + start * MINUTE, 5, epoch=start)
            claim["holders"], claim["devices"] = [{**POD, "pod": "forged"}], [{**GPU, "model": "NVIDIA L40S"}]
            r = led.ingest([claim])
            self.assertEqual((r["ok"], r["quarantined"], r["batches"], r["records"], r["set_aside"]), (True, 0, 1, 0, 1), r)
            self.assertIn("GPU GPU-1 is in service on node n1", r["reason"])
            self.assertEqual(self.rows(led), before)
        self.assertEqual(self.aside(led), [("n2", 1, "GPU-1", "two-nodes")] * 3)
        r = led.ingest([self.gpu_on("n1", START + 10 * MINUTE, 5, epoch=6)])
        self.assertEqual((r["quarantined"], r["set_aside"], r["records"]), (0, 0, 1), r)
        self.assertEqual(self.services(led), [("n1", 0, None)])
        self.assertEqual(self.total(led), 5040 * 15 * MINUTE)

    def test_the_rest_of_a_batch_counts(self):
        led = self.new_ledger()
        led.ingest([self.gpu_on("n1", START, 10)])
        own = {"id": 2, "uuid": "GPU-2", "model": H100}
        both = [record(start_ns=START), record(start_ns=START, device=2)]
        r = led.ingest([batch(1, node="n2", devices=[GPU, own], records=both), batch(2, node="n2", records=[[*x[:6], START + MINUTE, *x[7:]] for x in both])])
        self.assertEqual((r["batches"], r["records"], r["set_aside"], r["classes"]), (2, 2, 2, {"two-nodes": 2}), r)
        self.assertEqual(led.rows("select local_id, uuid from stream_device_entry"), [["1", "GPU-1"]])
        self.assertEqual(self.total(led), 5040 * 12 * MINUTE)
        [first, second] = [q for q in led.quarantine() if q["gpu"]]
        self.assertEqual((first["records"], first["decision"]), (1, "open"))
        with self.assertRaises(StoreError) as refused:
            led.release(first)
        self.assertIn("it cannot be released: GPU GPU-1 is in service on node n1", refused.exception.text)
        led.discard(first)
        led.move("GPU-1", "n2", START + 90 * NS)
        with self.assertRaises(StoreError) as refused:
            led.release(second)
        self.assertIn("was in service on node n1", refused.exception.text)
        self.assertEqual([q["decision"] for q in led.quarantine() if q["gpu"]], ["discarded", "open"])

    def test_what_was_set_aside_is_released_when_the_gpu_was_moved(self):
        led = self.new_ledger()
        led.ingest([self.gpu_on("n1", START, 10)])
        claims = [self.gpu_on("n2", START + m * MINUTE, 5, seq=i + 1) for i, m in enumerate((20, 25, 30))]
        self.assertEqual(led.ingest(claims)["set_aside"], 3)
        led.assert_sound()
        self.assertEqual(led.move("GPU-1", "n2", START + 12 * MINUTE), {"gpu": "GPU-1", "node": "n1", "next_node": "n2", "until": "2026-11-30T20:12:00Z"})
        r = led.ingest([self.gpu_on("n2", START + 35 * MINUTE, 5, seq=4)])
        self.assertEqual((r["records"], r["set_aside"]), (1, 0), r)
        led.rollup()
        for one in [q for q in led.quarantine("open")]:
            self.assertEqual(led.release(one)["decision"], "released")
            led.assert_sound()
        self.assertEqual(self.services(led), [("n1", 0, 12), ("n2", 20, None)])
        self.assertEqual(self.total(led), 5040 * 30 * MINUTE)
        self.assertEqual(led.rows("select count(*) from stream_device_entry"), [["0"]])
        r = led.ingest([self.gpu_on("n1", START + 40 * MINUTE, 5, seq=1, epoch=6)])
        self.assertEqual((r["records"], r["set_aside"]), (0, 1), "it is not taken back by speaking")
        self.assertEqual(led.value("select count(*) from audit_log where action = 'gpu.move'"), "1")

    def test_a_gpu_that_was_moved_is_in_service_on_its_new_node(self):
        led = self.new_ledger()
        led.now = START + 8 * HOUR
        led.ingest([self.gpu_on("n1", START, 10)])
        led.rollup()  # the old node is silent: unknown until now
        led.ingest([{**batch(1, node="n2"), "devices": [], "holders": [], "records": []}])
        led.move("GPU-1", "n2", START)
        led.ingest([self.gpu_on("n2", START + 60 * MINUTE, 5, epoch=6)])
        self.assertEqual(self.services(led), [("n1", 0, 10), ("n2", 60, None)])
        led.move("GPU-1", "n1", START)
        led.ingest([self.gpu_on("n1", START + 120 * MINUTE, 5, seq=1, epoch=6)])
        self.assertEqual(self.services(led), [("n1", 0, 10), ("n2", 60, 65), ("n1", 120, None)])
        led.rollup()
        gpus = led.conservation(START, led.now)
        self.assertEqual([g["difference_unit_ns"] for g in gpus], ["0", "0"])
        hours = {g["node"]: g["in_service_unit_ns"] for g in gpus}
        self.assertEqual(hours["n2"], str(5040 * 5 * MINUTE))
        self.assertEqual(hours["n1"], str(5040 * (10 * MINUTE + led.now - START - 120 * MINUTE)))

    def test_a_node_s_own_batches_say_that_a_gpu_is_gone(self):
        led = self.new_ledger()
        led.ingest([self.gpu_on("n1", START, 10)])
        empty = lambda start, minutes, seq: {**batch(seq), "from_ns": START + start * MINUTE, "to_ns": START + (start + minutes) * MINUTE, "devices": [], "holders": [], "records": []}
        led.ingest([empty(10, 9, 2)])
        self.assertEqual(led.ingest([self.gpu_on("n2", START + 10 * MINUTE, 5)])["set_aside"], 1, "not for ten minutes yet")
        led.ingest([empty(19, 5, 3)])
        self.assertEqual(led.ingest([self.gpu_on("n2", START + 21 * MINUTE, 4, seq=2)])["set_aside"], 1, "the end of the claim is not covered")
        self.assertEqual(led.ingest([self.gpu_on("n2", START + 25 * MINUTE, 5, seq=3)])["set_aside"], 1)
        led.ingest([empty(25, 10, 4)])
        self.assertEqual(led.ingest([self.gpu_on("n2", START + 31 * MINUTE, 4, seq=4)])["set_aside"], 0)
        self.assertEqual(self.services(led), [("n1", 0, 10), ("n2", 31, None)])
        self.assertEqual(led.rows("select actor, reason from audit_log where action = 'gpu.move'"), [["node n1", "its batches account for the time without it"]])

    def test_a_declared_node_has_it_before_an_undeclared_one(self):
        led = self.new_ledger()
        led.ingest([self.gpu_on("n2", START, 10)])
        led.apply("version: 1\ncluster: test\neffective: 2026-11-30T20:00:00Z\nnodes: [{name: n1, shared: true}]\n")
        r = led.ingest([self.gpu_on("n1", START + 5 * MINUTE, 5)])
        self.assertEqual((r["records"], r["set_aside"]), (0, 1), "what the other one measured stays")
        self.assertIn("was in service on node n2 at that time", r["reason"])
        r = led.ingest([self.gpu_on("n2", START + 10 * MINUTE, 5, seq=2)])
        self.assertEqual((r["records"], r["set_aside"]), (0, 1), r)
        self.assertIn("was moved to node n1", r["reason"])
        led.ingest([self.gpu_on("n1", START + 15 * MINUTE, 5, seq=2)])
        self.assertEqual(self.services(led), [("n2", 0, 10), ("n1", 15, None)])

    def test_the_old_node_s_last_batches_may_arrive_after_the_new_node_s_first(self):
        led = self.new_ledger()
        led.ingest([self.gpu_on("n1", START, 10), ])
        led.ingest([{**batch(1, node="n2", epoch=4), "devices": [], "holders": [], "records": []}])
        led.move("GPU-1", "n2", START + 30 * MINUTE)
        led.ingest([self.gpu_on("n2", START + 40 * MINUTE, 5)])
        r = led.ingest([self.gpu_on("n1", START + 10 * MINUTE, 5, seq=1, epoch=6)])
        self.assertEqual((r["ok"], r["quarantined"], r["set_aside"]), (True, 0, 0), r)
        self.assertEqual(self.services(led), [("n1", 0, 30), ("n2", 40, None)])
        r = led.ingest([self.gpu_on("n3", START + 32 * MINUTE, 5)])
        self.assertEqual((r["ok"], r["set_aside"]), (True, 1), r)
        self.assertEqual(self.services(led), [("n1", 0, 30), ("n2", 40, None)])

    def test_the_table_itself_refuses_impossible_records(self):
        led = self.new_ledger()
        led.ingest([batch(1)])
        for change in ("used_ns = held_ns + 1", "units = 0", "holder_id = null", "state = 6", "duration_ns = 1000000000000", "energy_mj = -1"):
            with self.subTest(change), self.assertRaisesRegex(RuntimeError, "check constraint"):
                led.rows(f"update usage_interval set {change}")


if __name__ == "__main__":
    unittest.main()
