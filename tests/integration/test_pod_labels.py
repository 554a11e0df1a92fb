"""Labels and groups from the node to the bill: a kubelet that tells the labels of its pods, an exporter, a ledger with rules about them."""

# instead: san

import unittest

from tests.support.daemons.stack import Stack, query, request, wait_for
from tests.support.scheduler import podlist

UID = [f"{i}0000000-1111-2222-3333-444444444444" for i in range(3)]
SCENARIO = {
    "name": "labels",
    "gpus": [{"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "count": 3}],
    "processes": [
        *({"pid": 4000 + g, "gpu": g, "sm": 50, "memory_mib": 1024, "pod": {"namespace": "shared", "name": f"job-{g}", "uid": UID[g], "container": "main"}}
          for g in range(2)),
        {"pid": 4002, "gpu": 2, "sm": 50, "memory_mib": 1024, "uid": 0},
    ],
}  # fmt: skip
POLICY = """\
version: 1
cluster: test
tenants:
  - name: acme
    workspaces:
      - {name: ml, rules: [{namespace: shared, labels: {team: "ml-*"}}]}
      - {name: web, rules: [{labels: {team: web, x.io/tier: ""}}]}
      - {name: hosts, rules: [{group: root}]}
"""


class PodLabels(unittest.TestCase):
    def setUp(self):
        self.kubelet = self.enterContext(podlist.PodList(token="node-token"))
        self.kubelet.pods = [podlist.pod("shared", "job-0", UID[0], team="ml-core", secret="of-nobody"), podlist.pod("shared", "job-1", UID[1])]
        self.stack = self.enterContext(Stack())
        self.stack.apply(POLICY)
        self.token = f"{self.stack.dir}/kubelet.token"
        with open(self.token, "w", encoding="ascii") as f:
            f.write("node-token\n")

    def exporter(self):
        return self.stack.exporter(
            "n1", SCENARIO, "--sample-interval", "250ms", "--kubelet-url", f"http://127.0.0.1:{self.kubelet.port}", "--kubelet-token-file", self.token,
            "--pod-labels", "x.io/tier,team")  # fmt: skip

    def metric(self, e, name):
        for line in request("GET", f"{e.url}/metrics").text().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        return None

    def owners(self):
        """Workspace by GPU index of those who have held it, in GPU-seconds."""
        rows = self.stack.sql(
            "select g.index, w.name, sum(i.held_ns) from tollgate.usage_interval i join tollgate.device d on d.id = i.device_id "
            "join tollgate.gpu g on g.id = d.gpu_id join tollgate.holder_attribution a on a.holder_id = i.holder_id and upper_inf(a.effective) "
            "join tollgate.workspace w on w.id = a.workspace_id group by 1, 2 order by 1, 2")  # fmt: skip
        return {(int(gpu), name): int(ns) for gpu, name, ns in rows}

    def test_usage_lands_in_the_workspace_of_its_label_or_group(self):
        e = self.exporter()
        wait_for("usage of all three", lambda: {(0, "ml"), (1, "unattributed"), (2, "hosts")} <= set(self.owners()), e)
        self.assertEqual(set(self.owners()), {(0, "ml"), (1, "unattributed"), (2, "hosts")})
        self.assertEqual(self.metric(e, "tollgate_exporter_pod_labels_up"), 1)
        self.assertEqual(self.metric(e, "tollgate_exporter_pods_known"), 2)
        self.assertEqual(self.metric(e, "tollgate_exporter_pods_labelled"), 1)
        # What was not asked for has not left the node.
        self.assertEqual(self.stack.sql("select distinct labels::text from tollgate.holder where labels <> '{}'"), [['{"team": "ml-core"}']])
        # Another pod of the other owner: its first seconds stay where they were, the rest goes with the labels.
        self.kubelet.pods[1] = podlist.pod("shared", "job-1", UID[1], team="web", x_io__tier="")
        wait_for("usage with the new labels", lambda: (1, "web") in self.owners(), e)
        first = self.owners()[1, "unattributed"]
        wait_for("more of it", lambda: self.owners()[1, "web"] > 2_000_000_000, e)
        self.assertEqual(self.owners()[1, "unattributed"], first)
        # A kubelet that hangs stops nothing, and what it said holds.
        asked, self.kubelet.hangs = self.kubelet.asked, True
        wait_for("a question without an answer", lambda: self.kubelet.asked > asked, e)
        ticks, before = self.metric(e, "tollgate_exporter_ticks_total"), self.owners()
        wait_for("ticks", lambda: self.metric(e, "tollgate_exporter_ticks_total") > ticks + 4, e)
        wait_for("more usage", lambda: all(self.owners()[k] > before[k] for k in ((0, "ml"), (1, "web"), (2, "hosts"))), e)
        self.assertEqual(e.stop(), 0, e.words())
        self.assertEqual(self.owners()[1, "unattributed"], first)
        groups = self.stack.get("/v1/usage" + query(**{"from": "2020-01-01T00:00:00Z", "to": "2120-01-01T00:00:00Z", "group_by": "workspace"})).json()
        self.assertLessEqual({"ml", "web", "hosts", "unattributed"}, {g["workspace"] for g in groups["groups"]})

    def test_a_kubelet_that_refuses_is_said_once_and_usage_is_metered_all_the_same(self):
        self.kubelet.token = "another"
        e = self.exporter()
        wait_for("usage", lambda: {(0, "unattributed"), (2, "hosts")} <= set(self.owners()), e)
        self.assertEqual(self.metric(e, "tollgate_exporter_pod_labels_up"), 0)
        self.assertGreaterEqual(self.metric(e, "tollgate_exporter_pod_labels_failures_total"), 1)
        self.assertIn("the kubelet does not tell the labels of its pods, its last answer holds", e.words())
        self.assertIn("401", e.words())
        self.assertNotIn("node-token", e.words())
        self.assertEqual(e.stop(), 0, e.words())


if __name__ == "__main__":
    unittest.main()
