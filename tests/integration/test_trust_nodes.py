"""A GPU belongs to the node that has it in service: what a hostile node says of it changes nothing, and what it was stays with its hours."""

import json
import time
import unittest

from tests.support.daemons.stack import Stack, wait_for
from tests.support.store import ledger

NS = 1_000_000_000
MINUTE, HOUR, DAY = 60 * NS, 3600 * NS, 86400 * NS
H100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA L40S"
POLICY = """
version: 1
cluster: test
effective: {effective}
tenants:
  - name: acme
    workspaces:
      - {{name: training, rules: [{{namespace: acme, labels: {{team: a}}}}]}}
      - {{name: other, rules: [{{namespace: acme, labels: {{team: b}}}}]}}
  - {{name: globex, workspaces: [{{name: research, rules: [{{namespace: globex}}]}}]}}
nodes:
{nodes}
prices: {{version: "1", currency: EUR, items: [{{gpu_model: H100-80GB, price: "3.00"}}, {{gpu_model: L40S, price: "1.00"}}]}}
"""
NODES = "  - {name: evil, tenant: globex}\n"


def pod(number, **more):
    return {"id": number, "kind": 1, "ns": "acme", "pod": "job-0", "pod_uid": "uid-0", "container": "main", "labels": "team=a", **more}


def gpu(number, uuid, model=H100, **more):
    return {"id": number, "uuid": uuid, "model": model, "index": number - 1, **more}


def held(device, start, length, holder=1, units=5040):
    return [device, holder, 1, 1, 1, units, start, length, length, length, 0, 0, 0, 1000, 60]


class Node:
    """A stream of batches of one node."""

    def __init__(self, test, name, epoch=1):
        self.stack, self.name, self.epoch, self.seq = test.stack, name, epoch, 0
        self.stack.token(f"node {name}", role="node", node=name)

    def send(self, start, length, devices, records, holders=()):
        self.seq += 1
        batch = {"node": self.name, "boot_id": "aa" * 16, "epoch": self.epoch, "seq": self.seq, "flags": 1, "from_ns": start, "to_ns": start + length,
                 "devices": devices, "holders": list(holders), "records": records}  # fmt: skip
        reply = self.stack.call("POST", "/v1/ingest", ledger.frames([batch]), role=f"node {self.name}")
        assert reply.status == 200, reply.text()
        return reply.json()

    def say(self, gpus, boot_ns=1):
        status = {"node": self.name, "boot_id": "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa", "boot_ns": boot_ns, "wall_ns": time.time_ns(), "interval_ns": 3600 * NS,
                  "simulated": True, "left_out": 0, "gpus": gpus}  # fmt: skip
        reply = self.stack.call("POST", "/v1/status", json.dumps(status).encode(), role=f"node {self.name}")
        assert reply.status == 200, reply.text()


def shown(uuid, holders=(), **more):
    return {"uuid": uuid, "model": H100, "index": 0, "healthy": True, "reason": "", "xid": 0, "xid_at": 0, "sharing": "exclusive", "replicas": 1, "instances": [],
            "holders": list(holders), **more}  # fmt: skip


def now_minute():
    """A minute that is over, not the first of its quarter-hour: what follows it within five minutes may be sent too."""
    now = time.time_ns() // MINUTE * MINUTE
    return now - now % (15 * MINUTE) - 10 * MINUTE


def rfc3339(ns):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ns // NS))


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack())
        cls.count = 0

    def setUp(self):
        """Every test has an honest node and GPU of its own; the hostile node is declared, in a pool of its own."""
        type(self).count += 1
        self.name, self.uuid, self.at = f"honest-{self.count}", f"GPU-{self.count}-a", now_minute()
        self.others = "".join(f"  - {{name: honest-{i}, shared: true}}\n" for i in range(1, self.count + 1))
        self.apply(self.others)
        self.honest, self.evil = Node(self, self.name), Node(self, "evil", epoch=self.count)

    def apply(self, nodes, effective=None):
        self.stack.apply(POLICY.format(nodes=NODES + nodes, effective=rfc3339(effective or time.time_ns() // DAY * DAY - 10 * DAY)))

    def begin(self, start=None, **more):
        start = start or self.at
        reply = self.honest.send(start, MINUTE, [gpu(1, self.uuid, **more)], [held(1, start, MINUTE)], [pod(1)])
        self.assertEqual(reply["quarantined"], 0, reply)

    def go_on(self, start):
        """The honest node's next minute: taken as if nobody else were there."""
        reply = self.honest.send(start, MINUTE, [], [held(1, start, MINUTE)])
        self.assertEqual((reply["batches"], reply["quarantined"], reply.get("set_aside", 0)), (1, 0, 0), reply)

    def rows(self):
        one = lambda t, where: int(self.stack.sql(f"select count(*) from {t} where {where}")[0][0])
        gpu_id = f"(select id from gpu where uuid = '{self.uuid}')"
        return (one("device", f"gpu_id = {gpu_id}"), one("holder", "pod like 'forged%'"), one("gpu_service", f"gpu_id = {gpu_id}"),
                one("gpu_service", f"gpu_id = {gpu_id} and until_ns is null and node_id = (select id from node where name = '{self.name}')"))  # fmt: skip

    def models(self, start, end):
        query = f"/v1/usage?from={rfc3339(start)}&to={rfc3339(end)}&group_by=gpu_model&node={self.name}"
        return {g["gpu_model"]: g["allocated_gpu_hours"] for g in self.stack.get(query).json()["groups"] if float(g["allocated_gpu_hours"])}

    def sound(self):
        done = self.stack.cli("verify", "--since", "240h")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Claims(Base):
    def test_f1_a_node_that_names_another_s_gpus_does_not_change_what_they_are(self):
        self.begin()
        self.evil.send(self.at, MINUTE, [gpu(i + 1, f"GPU-{self.count}-{x}", L40S) for i, x in enumerate("abcdefgh")], [])
        self.assertEqual(set(self.models(self.at, self.at + MINUTE)), {"H100-80GB"})
        self.assertEqual(self.stack.sql(f"select count(*) from gpu where uuid like 'GPU-{self.count}-%'"), [["1"]], "who only names a GPU makes no row of it")
        self.sound()

    def test_f2_a_claim_of_a_second_leaves_the_owner_s_batches_alone(self):
        self.begin()
        before = self.rows()
        start = self.at + MINUTE
        reply = self.evil.send(start, NS, [gpu(1, self.uuid, L40S), gpu(2, f"GPU-evil-{self.count}")], [held(1, start, NS), held(2, start, NS)],
                               [pod(1, pod=f"forged-{self.count}", ns="globex")])  # fmt: skip
        self.go_on(self.at + MINUTE)
        self.go_on(self.at + 2 * MINUTE)
        self.assertEqual((reply["batches"], reply["quarantined"], reply.get("set_aside")), (1, 0, 1), reply)
        self.assertEqual(self.rows()[0::2], before[0::2])
        used = self.stack.sql(f"select count(*) from usage_interval i join device d on d.id = i.device_id join gpu g on g.id = d.gpu_id "
                              f"where i.node_id = (select id from node where name = 'evil') and g.uuid = 'GPU-evil-{self.count}'")  # fmt: skip
        self.assertEqual(used, [["1"]], "the rest of its batch counts")
        self.sound()

    def test_f2_a_refused_claim_writes_no_row_and_is_shown(self):
        self.begin()
        before = self.rows()
        start = self.at + MINUTE
        self.evil.send(start, MINUTE, [gpu(1, self.uuid)], [held(1, start, MINUTE)], [pod(1, pod="forged-x")])
        self.assertEqual(self.rows(), before, "devices, holders, services, the owner's service")
        [one] = [b for b in self.stack.get("/v1/quarantine?node=evil&decision=open").json()["batches"] if b.get("gpu") == self.uuid]
        self.assertEqual((one["class"], one["records"], one["reason"]), ("two-nodes", 1, f"GPU {self.uuid} is in service on node {self.name}"))
        self.assertIn(self.uuid, self.stack.cli("quarantine", "list", "--class", "two-nodes").stdout)
        self.sound()

    def test_g5_a_claim_right_after_what_is_covered_does_not_end_the_service(self):
        self.begin()
        for i in range(3):  # owners always lag behind an interval
            start = self.at + (i + 1) * MINUTE
            self.evil.send(start, MINUTE, [gpu(1, self.uuid)], [held(1, start, MINUTE)], [pod(1)])
            self.assertEqual(self.rows()[2:], (1, 1))
            self.go_on(start)

    def test_g6_a_device_that_another_node_named_first_is_the_owner_s_all_the_same(self):
        self.begin()
        mig = {"id": 2, "gpu": 1, "uuid": f"MIG-{self.count}", "model": H100, "gi": 1, "ci": 0, "created_ns": 77}
        self.evil.send(self.at, MINUTE, [gpu(1, self.uuid), {**mig, "profile": "1g.10gb", "units": 675}], [held(2, self.at, MINUTE, units=675)], [pod(1)])
        start = self.at + MINUTE
        reply = self.honest.send(start, MINUTE, [{**mig, "profile": "3g.40gb", "units": 2340}], [held(2, start, MINUTE, units=2340)])
        self.assertEqual((reply["batches"], reply["quarantined"]), (1, 0), reply)
        self.assertEqual(self.stack.sql(f"select profile from device where uuid = 'MIG-{self.count}'"), [["3g.40gb"]])
        self.sound()


class Twice(Base):
    """An approved node cannot account for more than there is."""

    def billed(self, tenant):
        groups = self.stack.get(f"/v1/usage?group_by=tenant&exact=1&from={rfc3339(self.at - 5 * DAY)}&to={rfc3339(self.at + HOUR)}").json()["groups"]
        return sum(int(g["allocated_unit_ns"]) for g in groups if g["tenant"] == tenant) // (5040 * MINUTE)

    def test_the_same_minutes_of_a_gpu_are_billed_once_whatever_the_number_of_streams(self):
        start, before = self.at - 2 * DAY, self.billed("acme")
        device, records = [gpu(1, f"GPU-{self.count}-x")], [held(1, start, 10 * MINUTE)]
        answers = [Node(self, "evil", epoch=self.count * 1000 + i).send(start, 10 * MINUTE, device, records, [pod(1)]) for i in range(20)]
        self.assertEqual(answers[0]["batches"], 1)
        self.assertLessEqual(self.billed("acme") - before, 10 + 65, "once, and what clocks may be set back")
        refused = self.stack.get("/v1/quarantine?node=evil&class=covered").json()["batches"]
        self.assertGreaterEqual(len(refused), 13)
        self.assertIn("its streams overlap", refused[0]["reason"])

    def test_a_stream_of_many_short_batches_overlaps_no_more_than_one_of_long_ones(self):
        start, before = (self.at - 3 * DAY) // (15 * MINUTE) * 15 * MINUTE, self.billed("acme")
        for epoch in range(3):
            node = Node(self, "evil", epoch=self.count * 1000 + 500 + epoch)
            batches = [{"node": "evil", "boot_id": "bb" * 16, "epoch": node.epoch, "seq": i + 1, "flags": 1, "from_ns": start + i * 5 * MINUTE, "to_ns": start + (i + 1) * 5 * MINUTE,
                        "devices": [gpu(1, f"GPU-{self.count}-y")] if i == 0 else [], "holders": [pod(1)] if i == 0 else [], "records": [held(1, start + i * 5 * MINUTE, 5 * MINUTE)]}
                       for i in range(48)]  # fmt: skip
            for at in range(0, 48, 12):
                reply = self.stack.call("POST", "/v1/ingest", ledger.frames(batches[at : at + 12]), role="node evil")
                self.assertEqual(reply.status, 200, reply.text())
        self.assertLessEqual(self.billed("acme") - before, 240 + 65)
        self.assertGreaterEqual(self.billed("acme") - before, 240)

    def test_a_clock_that_is_set_back_a_little_loses_nothing(self):
        self.begin()
        again = Node(self, self.name, epoch=2)
        start = self.at + 30 * NS
        self.assertEqual(again.send(start, MINUTE, [gpu(1, self.uuid)], [held(1, start, MINUTE)], [pod(1)])["batches"], 1)

    def test_no_more_gpus_count_than_the_policy_declares_of_a_node(self):
        self.apply(self.others + "  - {name: small, tenant: globex, model: H100-80GB, gpus: 2}\n")
        node, start, before = Node(self, "small"), self.at - 4 * DAY, self.billed("acme")
        reply = node.send(start, 10 * MINUTE, [gpu(i + 1, f"GPU-{self.count}-s{i}") for i in range(50)], [held(i + 1, start, 10 * MINUTE) for i in range(50)], [pod(1)])
        self.assertEqual((reply["batches"], reply["set_aside"]), (1, 48))
        self.assertEqual(self.billed("acme") - before, 20)
        [*rows] = [r for r in self.stack.get("/v1/quarantine?node=small").json()["batches"]]
        self.assertIn("is one more than the 2 H100-80GB that the policy declares of the node", rows[0]["reason"])
        told = {r["check"]: r for r in json.loads(self.stack.cli("doctor", "--server", "-o", "json").stdout)}
        self.assertEqual(told["quarantine"]["result"], "warn")
        self.assertRegex(told["quarantine"]["finding"], r"^\d+( or more)? batches or GPUs of batches are refused and billed to nobody, of .*small")
        # One that is put in later takes the place of one that is gone.
        later = start + HOUR
        reply = node.send(later, 10 * MINUTE, [gpu(100, f"GPU-{self.count}-new")], [held(1, later, 10 * MINUTE), held(100, later, 10 * MINUTE)], [])
        self.assertEqual((reply["batches"], reply["set_aside"]), (1, 0))


class Decided(Base):
    """How a GPU leaves its node, and how what was set aside is released."""

    def claim(self, start, seq_devices=True):
        return self.evil.send(start, MINUTE, [gpu(1, self.uuid)] if seq_devices else [], [held(1, start, MINUTE)], [pod(1)] if seq_devices else [])

    def waiting(self):
        return [b for b in self.stack.get("/v1/quarantine?node=evil&decision=open").json()["batches"] if b.get("gpu") == self.uuid]

    def test_an_operator_moves_it_and_releases_what_was_set_aside_gpu_by_gpu(self):
        self.begin()
        self.assertEqual(self.claim(self.at + 2 * MINUTE)["set_aside"], 1)
        [one] = self.waiting()
        refused = self.stack.cli("quarantine", "release", str(one["stream"]), str(one["seq"]), "--gpu", self.uuid, "--reason", "x")
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"is in service on node {self.name}", refused.stderr)
        moved = self.stack.cli("gpu", "move", self.uuid, "evil", "--at", rfc3339(self.at + MINUTE), "--reason", "plugged there", "-o", "json")
        self.assertEqual(moved.returncode, 0, moved.stderr)
        self.assertEqual(self.claim(self.at + 3 * MINUTE, False)["set_aside"], 0)
        done = self.stack.cli("quarantine", "release", str(one["stream"]), str(one["seq"]), "--gpu", self.uuid, "--reason", "it was there", "-o", "json")
        self.assertEqual([r["decision"] for r in json.loads(done.stdout)], ["released"], done.stderr)
        self.assertEqual(self.honest.send(self.at + 4 * MINUTE, MINUTE, [], [held(1, self.at + 4 * MINUTE, MINUTE)])["set_aside"], 1)
        self.assertIn(("admin #1", "plugged there"), [(e["actor"], e["reason"]) for e in self.stack.get("/v1/audit?action=gpu.move").json()["entries"] if e["subject"] == f"GPU {self.uuid}"])
        self.sound()

    def test_a_policy_that_lists_it_elsewhere_moves_it_and_holds_it_there(self):
        self.begin()
        nodes = self.others.replace(f"  - {{name: {self.name}, shared: true}}\n", "")
        self.stack.apply(POLICY.format(nodes=f"  - {{name: evil, tenant: globex, devices: [{{uuid: {self.uuid}, state: in-service}}]}}\n  - {{name: {self.name}, shared: true}}\n" + nodes,
                                       effective=rfc3339(self.at // HOUR * HOUR)))  # fmt: skip
        self.assertEqual(self.claim(self.at + 2 * MINUTE)["set_aside"], 0)
        self.assertEqual(self.honest.send(self.at + 2 * MINUTE, MINUTE, [], [held(1, self.at + 2 * MINUTE, MINUTE)])["set_aside"], 1)
        self.sound()

    def test_another_model_than_declared_is_held_until_the_policy_says_otherwise(self):
        declared = f"  - {{name: {self.name}, shared: true, model: H100-80GB, gpus: 1}}\n"
        rest = self.others.replace(f"  - {{name: {self.name}, shared: true}}\n", "")
        self.apply(declared + rest)
        reply = self.honest.send(self.at, MINUTE, [gpu(1, self.uuid, L40S)], [held(1, self.at, MINUTE)], [pod(1)])
        self.assertEqual((reply["batches"], reply["quarantined"], reply.get("set_aside")), (1, 0, 1), reply)
        self.assertEqual(self.models(self.at, self.at + MINUTE), {})
        [one] = self.stack.get(f"/v1/quarantine?node={self.name}").json()["batches"]
        self.assertEqual((one["class"], one["gpu"]), ("model", self.uuid))
        self.assertIn("is reported as L40S, and the policy declares H100-80GB of the node", one["reason"])
        self.apply(declared.replace("H100-80GB", "L40S") + rest)
        self.go_on(self.at + MINUTE)
        done = self.stack.cli("quarantine", "release", str(one["stream"]), str(one["seq"]), "--gpu", self.uuid, "--reason", "the policy was wrong")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(set(self.models(self.at, self.at + 2 * MINUTE)), {"L40S"})
        self.sound()

    def test_verify_names_a_row_that_was_removed_added_or_changed(self):
        self.begin()
        start = self.at + MINUTE
        self.evil.send(start, MINUTE, [gpu(1, self.uuid), gpu(2, f"GPU-evil-{self.count}")], [held(1, start, MINUTE), held(2, start, MINUTE)], [pod(1)])
        kinds = lambda: {d["kind"] for d in self.stack.get(f"/v1/conservation/differences?from={rfc3339(self.at - HOUR)}&to={rfc3339(self.at + HOUR)}&node=evil").json()["differences"]}
        self.assertEqual(kinds(), set())
        row = f"gpu = '{self.uuid}'"
        for change, back in (
            (f"update batch_set_aside set records = 2 where {row}", f"update batch_set_aside set records = 1 where {row}"),
            (f"update batch_set_aside set gpu = 'GPU-evil-{self.count}' where {row}", f"update batch_set_aside set gpu = '{self.uuid}' where gpu = 'GPU-evil-{self.count}'"),
            (f"create table kept as select * from batch_set_aside where {row}; set session_replication_role = replica; delete from batch_set_aside where {row}",
             "set session_replication_role = replica; insert into batch_set_aside select * from kept; drop table kept"),
            (f"create table kept as select * from stream_device_entry where uuid = '{self.uuid}'; delete from stream_device_entry where uuid = '{self.uuid}'",
             "insert into stream_device_entry select * from kept; drop table kept"),
        ):  # fmt: skip
            with self.subTest(change):
                self.stack.sql(change)
                self.assertNotEqual(kinds(), set())
                self.stack.sql(back)
                self.assertEqual(kinds(), set())


class Moment(Base):
    """Statuses, errors, and whose a workload is."""

    def test_g1_an_error_is_told_by_the_node_in_service_and_of_a_time_that_can_be(self):
        self.begin()
        at = self.at + 30 * NS
        xids = lambda: self.stack.sql(f"select xid from gpu_xid x join gpu g on g.id = x.gpu_id where g.uuid = '{self.uuid}' order by 1")
        self.evil.say([shown(self.uuid, xid=79, xid_at=at)], boot_ns=self.count)
        self.assertEqual(xids(), [])
        self.honest.say([shown(self.uuid, xid=48, xid_at=time.time_ns() + HOUR)], 1)
        self.honest.say([shown(self.uuid, xid=63, xid_at=self.at - MINUTE)], 2)
        self.assertEqual(xids(), [], "ahead, and before it served there")
        self.honest.say([shown(self.uuid, xid=94, xid_at=at)], 3)
        self.assertEqual(xids(), [["94"]])

    def test_g1_a_node_s_status_shows_no_gpu_of_another_one(self):
        self.begin()
        self.honest.say([shown(self.uuid)])
        self.evil.say([shown(self.uuid, healthy=False, reason="lost", holders=[])], boot_ns=self.count)
        rows = {r["node"]: [d["uuid"] for d in r["devices"]] for r in self.stack.get("/v1/status").json()}
        self.assertEqual((rows[self.name], rows.get("evil", [])), ([self.uuid], []))

    def test_g4_a_forged_twin_with_other_labels_moves_no_live_workload(self):
        self.begin()
        holder = {"kind": "pod", "namespace": "acme", "pod": "job-0", "pod_uid": "uid-0", "container": "main", "user": "", "uid": -1, "device": self.uuid, "replica": -1,
                  "allocated": True, "holds": True, "active": True}  # fmt: skip
        self.honest.say([shown(self.uuid, [holder])])
        whose = lambda: [h["workspace"] for r in self.stack.get("/v1/status").json() if r["node"] == self.name for d in r["devices"] for h in d["holders"]]
        self.assertEqual(whose(), ["training"])
        self.evil.send(self.at, MINUTE, [gpu(1, f"GPU-evil-{self.count}")], [held(1, self.at, MINUTE)], [pod(1, labels="team=b")])
        self.assertEqual(whose(), ["training"])


class Histories(Base):
    """What a GPU is and where its node is, by the hour."""

    def setUp(self):
        super().setUp()
        # in the hour that runs: the one before it may be sealed by now, and keeps what was true
        self.at = max(self.at, time.time_ns() // HOUR * HOUR)

    def old_day(self):
        """An hour's minute two days ago, folded with its day."""
        old = self.at - 2 * DAY
        self.begin(old)
        day = f"select dirty, folded_at from billing_day where starts_at <= at_ns({old}) and ends_at > at_ns({old})"
        wait_for("the day to be folded", lambda: self.stack.sql(day)[0][0] == "f")
        return old, day

    def test_g7_g10_a_change_of_model_holds_from_its_hour_on_and_touches_no_day_before(self):
        old, day = self.old_day()
        folded = self.stack.sql(day)
        again = Node(self, self.name, epoch=2)
        for i, model in enumerate((L40S, H100, L40S)):
            start = self.at + i * MINUTE
            reply = again.send(start, MINUTE, [gpu(1, self.uuid, model)], [held(1, start, MINUTE)], [pod(1)])
            self.assertEqual(reply["quarantined"], 0, reply)
            self.assertEqual(self.stack.sql(day), folded, "a day that is over is not folded again")
        self.assertEqual(set(self.models(old, old + MINUTE)), {"H100-80GB"})
        self.assertEqual(set(self.models(self.at, self.at + HOUR)), {"L40S"}, "one change in an hour")
        entries = [e for e in self.stack.get("/v1/audit?action=gpu.change").json()["entries"] if e["subject"] == f"GPU {self.uuid}"]
        self.assertGreaterEqual(len(entries), 2, entries)
        self.assertEqual((entries[-1]["actor"], entries[-1]["before"]["gpu_model"], entries[-1]["after"]["gpu_model"]), (f"node {self.name}", "H100-80GB", "L40S"))
        spoil = f"alter table gpu_spec disable trigger user; update gpu_spec set short_model = 'L40S' where gpu_id = (select id from gpu where uuid = '{self.uuid}') and lower_inf(effective); "
        self.stack.sql(spoil + "alter table gpu_spec enable trigger user")
        kinds = lambda: {d["kind"] for d in self.stack.get(f"/v1/conservation/differences?from={rfc3339(old)}&to={rfc3339(old + HOUR)}").json()["differences"]}
        self.assertIn("gpu-history", kinds())
        self.stack.sql(spoil.replace("'L40S'", "'H100-80GB'") + "alter table gpu_spec enable trigger user")
        lines = self.stack.get(f"/v1/reports/{rfc3339(old)[:7]}.json").json()["lines"]
        self.assertIn("H100-80GB", {x["gpu_model"] for x in lines if x["workspace"] == "training"})
        self.sound()

    def test_g9_a_node_that_moves_to_another_cluster_leaves_its_hours_behind(self):
        old, _ = self.old_day()
        self.go_on(self.at)
        moved = self.others.replace(f"{{name: {self.name}, shared: true}}", f"{{name: {self.name}, cluster: west, shared: true}}")
        reply = self.stack.call("PUT", "/v1/policy", POLICY.format(nodes=NODES + moved, effective=rfc3339(self.at // HOUR * HOUR)).encode())
        self.assertEqual(reply.status, 200, reply.text())
        groups = lambda start, **more: {g["cluster"] for g in self.stack.get(f"/v1/usage?from={rfc3339(start)}&to={rfc3339(start + MINUTE)}&group_by=cluster&node={self.name}").json()["groups"]}
        self.assertEqual((groups(old), groups(self.at)), ({"test"}, {"west"}))
        self.sound()


if __name__ == "__main__":
    unittest.main()
