"""Whose usage it is, from what a node says of a holder to the workspace in the ledger: groups, labels, and the version that had neither."""

# instead: san

import hashlib
import unittest

from tests.support.daemons import pg
from tests.support.fleet.fleet import HOUR, MINUTE, NS
from tests.support.store.ledger import Ledger

START = 1_796_068_800 * NS  # 2026-11-30T20:00Z
POD = {"ns": "shared", "pod": "p", "pod_uid": "u-1", "container": "c"}


def policy(rules, effective="2026-11-30T00:00:00Z"):
    """One workspace per rule: w0, w1 ..."""
    spaces = ", ".join(f"{{name: w{i}, rules: [{rule}]}}" for i, rule in enumerate(rules))
    return f"version: 1\ncluster: test\neffective: {effective}\ntenants:\n  - {{name: acme, workspaces: [{spaces}]}}\n"


def quarter(seq, holders, holds, version=2, node="n1"):
    """A quarter-hour of one GPU, held by the holder of that number."""
    at = START + (seq - 1) * 15 * MINUTE
    return {
        "version": version, "node": node, "boot_id": "55" * 16, "epoch": 1, "seq": seq, "from_ns": at, "to_ns": at + 15 * MINUTE,
        "devices": [{"id": 1, "uuid": f"GPU-{node}", "model": "NVIDIA H100 80GB HBM3"}] if seq == 1 else [], "holders": holders,
        "records": [[1, holds, 1, 1, 1, 5040, at, 15 * MINUTE, 15 * MINUTE, 5 * MINUTE, 0, 0, 0, 3_600_000, 1]],
    }  # fmt: skip


class Attribution(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())
        cls.count = 0

    def new_ledger(self):
        type(self).count += 1
        led = Ledger(self.cluster, f"a{self.count}", now=START + 6 * HOUR)
        self.addCleanup(led.assert_sound)
        return led

    def take(self, led, batches):
        r = led.ingest(batches)
        self.assertTrue(r["ok"] and r["quarantined"] == 0, r)

    def owners(self, led):
        groups = led.usage(START, START + 6 * HOUR, "workspace")
        return {g["workspace"]: g["allocated_gpu_hours"] for g in groups if g["allocated_gpu_hours"] != "0.000000000"}

    def test_a_holder_goes_to_the_workspace_whose_group_or_labels_it_has(self):
        cases = [
            ("a pod by one label", {**POD, "labels": "team=ml-core"}, "w0"),
            ("a pod by the first of two rules", {**POD, "labels": "app=web,team=ml-core"}, "w0"),
            ("a pod by two labels", {**POD, "labels": "app=web,x.io/tier="}, "w1"),
            ("a pod with one of two labels", {**POD, "labels": "app=web"}, "unattributed"),
            ("a pod without labels", POD, "unattributed"),
            ("a host user by group", {"kind": 3, "user": "ann", "uid": 1001, "group": "gpu-research"}, "w2"),
            ("a job's user by group", {"kind": 2, "slurm_job": "7", "user": "ann", "uid": 1001, "group": "gpu-research"}, "w2"),
            ("a host user of another group", {"kind": 3, "user": "ann", "uid": 1001, "group": "users"}, "unattributed"),
            ("a pod of a vCluster by its host namespace", {**POD, "ns": "vc-acme-dev"}, "w3"),
            ("the other vCluster's", {**POD, "ns": "vc-globex-dev"}, "unattributed"),
            ("a synced pod by the namespace it has inside", {**POD, "ns": "vc-globex-dev", "labels": "vcluster.loft.sh/namespace=prod"}, "w4"),
        ]
        rules = ['{labels: {team: "ml-*"}}', '{labels: {x.io/tier: "", app: web}}', '{group: "gpu-*"}', '{namespace: "vc-acme-*"}',
                 '{namespace: "vc-globex-*", labels: {vcluster.loft.sh/namespace: prod}}']  # fmt: skip
        led = self.new_ledger()
        batches = [quarter(i + 1, [{"id": i + 1, **holder}], i + 1) for i, (_, holder, _) in enumerate(cases)]
        # Half of them are there before the rules: those are asked again, the others when they are made.
        self.take(led, batches[:5])
        led.apply(policy(rules))
        self.take(led, batches[5:])
        rows = led.rows("select w.name from holder h join holder_attribution a on a.holder_id = h.id and upper_inf(a.effective) "
                        "join workspace w on w.id = a.workspace_id order by h.id")  # fmt: skip
        for (name, _, want), (got,) in zip(cases, rows, strict=True):
            with self.subTest(name):
                self.assertEqual(got, want)
        self.assertEqual(self.owners(led), {
            "w0": "0.500000000", "w1": "0.250000000", "w2": "0.500000000", "w3": "0.250000000", "w4": "0.250000000",
            "unattributed": "1.000000000"})  # fmt: skip

    def test_labels_that_change_move_what_comes_after_and_nothing_before(self):
        led = self.new_ledger()
        led.apply(policy(["{labels: {team: a}}", "{labels: {team: b}}"]))
        self.take(led, [quarter(1, [{"id": 1, **POD}], 1), quarter(2, [{"id": 2, **POD, "labels": "team=a"}], 2), quarter(3, [], 2),
                        quarter(4, [{"id": 3, **POD, "labels": "team=b"}], 3)])  # fmt: skip
        self.assertEqual(self.owners(led), {"unattributed": "0.250000000", "w0": "0.500000000", "w1": "0.250000000"})
        self.assertEqual(led.rows("select labels->>'team' from holder order by id"), [[None], ["a"], ["b"]])
        led.rollup()
        self.assertEqual(self.owners(led), {"unattributed": "0.250000000", "w0": "0.500000000", "w1": "0.250000000"})

    def test_a_rule_on_labels_reaches_back_over_what_was_stored(self):
        led = self.new_ledger()
        self.take(led, [quarter(1, [{"id": 1, **POD, "labels": "app=web,team=a"}], 1)])
        led.rollup()
        self.assertEqual(self.owners(led), {"unattributed": "0.250000000"})
        led.apply(policy(["{labels: {team: a}}"]))
        led.rollup()
        self.assertEqual(self.owners(led), {"w0": "0.250000000"})
        # The same rule in another order of its keys is no change.
        both = policy(["{labels: {team: a, app: 'w*'}}"])
        self.assertEqual(led.apply(both)["changes"], 2)
        self.assertEqual(led.apply(both.replace("{team: a, app: 'w*'}", "{app: 'w*', team: a}"))["changes"], 0)
        self.assertEqual(led.value("select labels_text(labels) from attribution_rule where upper_inf(effective)"), "app=w*,team=a")

    def test_a_holder_without_group_and_labels_is_who_it_was_in_version_1(self):
        led = self.new_ledger()
        user = {"kind": 3, "user": "ann", "uid": 1001}
        self.take(led, [quarter(1, [{"id": 1, **POD}, {"id": 2, **user}], 1, version=1)])
        self.take(led, [quarter(1, [{"id": 1, **POD}, {"id": 2, **user}], 2, node="n2")])
        rows = led.rows("select cluster_id, kind, uid, namespace, pod, pod_uid, container, slurm_job, slurm_account, user_name, encode(identity, 'hex') "
                        "from holder order by id")  # fmt: skip
        self.assertEqual(len(rows), 2)
        for cluster, kind, uid, *texts, identity in rows:
            spelt = f"{cluster} {kind} {uid} " + "".join(f"{len(t.encode())}:{t}" for t in texts)
            self.assertEqual(identity, hashlib.sha256(spelt.encode()).hexdigest())
        # A group or a label makes another holder, and so does the side on which a text stands.
        self.take(led, [quarter(1, [{"id": 1, **POD, "labels": "a=b"}, {"id": 2, **user, "group": "a"}, {"id": 3, **user, "group": "b"}], 1, node="n3"),
                        quarter(2, [], 2, node="n3"), quarter(3, [], 3, node="n3")])  # fmt: skip
        self.assertEqual(led.value("select count(*) from holder"), "5")

    def test_the_batches_of_an_old_and_a_new_exporter_follow_each_other(self):
        """An exporter that was upgraded sends what its old self left in the spool, as it is, then its own."""
        led = self.new_ledger()
        led.apply(policy(["{namespace: shared}", '{group: "gpu-*"}']))
        ann = {"kind": 3, "user": "ann", "uid": 1001}
        self.take(led, [quarter(1, [{"id": 1, **POD}, {"id": 2, **ann}], 1, version=1), quarter(2, [], 2, version=1)])
        self.take(led, [quarter(3, [{"id": 3, **ann, "group": "gpu-research"}], 3), quarter(4, [{"id": 4, **POD, "labels": "app=web"}], 4)])
        self.assertEqual(self.owners(led), {"w0": "0.500000000", "w1": "0.250000000", "unattributed": "0.250000000"})

    def test_labels_that_are_no_labels_are_quarantined_and_acknowledged(self):
        led = self.new_ledger()
        for i, labels in enumerate(["b=1,a=1", "a=1,a=2", "a", "a=" + "x" * 64, ",".join(f"k{k:02}=" for k in range(17))]):
            with self.subTest(labels[:20]):
                r = led.ingest([quarter(i + 1, [{"id": i + 1, **POD, "labels": labels}], i + 1)])
                self.assertTrue(r["ok"] and r["quarantined"] == 1, r)
        self.assertEqual(led.value("select count(*) from holder"), "0")

    def test_a_rule_without_a_pattern_cannot_be_written(self):
        led = self.new_ledger()
        for labels, check in (("null", "rule_has_a_pattern"), ("'{}'", "labels_check"), ("'[]'", "labels_check")):
            with self.subTest(labels), self.assertRaisesRegex(RuntimeError, check):
                led.rows(f"insert into attribution_rule (workspace_id, position, priority, labels, effective) select id, 0, 1, {labels}, 'empty' "
                         "from workspace limit 1")  # fmt: skip
        self.assertEqual(led.value("select count(*) from attribution_rule"), "0")


if __name__ == "__main__":
    unittest.main()
