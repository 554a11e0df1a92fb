"""The walk of a sample: simulated GPU, exporter, spool, push, ledger, price, CSV - with true numbers at the end of it."""

# also: san tsan

import csv
import io
import json
import time
import unittest
from decimal import Decimal

from tests.support.daemons.stack import Stack, query, wait_for

NS = 1_000_000_000
H100, A100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"
POLICY = """
version: 1
cluster: test
tenants:
  - name: acme
    cost_center: "0042"
    workspaces:
      - {name: training, rules: [{namespace: acme-training}]}
      - {name: inference, rules: [{namespace: "acme-inf*"}]}
  - name: globex
    workspaces:
      - {name: sandbox, rules: [{user: "20001"}]}
nodes:
  - {name: whole, tenant: acme}
  - {name: cut, shared: true}
  - {name: sliced, shared: true}
prices:
  version: "2026-a"
  currency: EUR
  items:
    - {gpu_model: H100-80GB, price: "3.20"}
    - {gpu_model: A100-80GB, price: "2.10"}
    - {gpu_model: A100-80GB, mig_profile: 1g.10gb, price: "0.35"}
    - {gpu_model: L40S, price: "1.40"}
"""


def pod(namespace, name):
    return {"namespace": namespace, "name": name}


WHOLE = {
    "name": "whole",
    "gpus": [{"model": H100, "memory_mib": 81559, "count": 3}],
    "processes": [
        # GPU 0 is held all the time, GPU 1 from second 4 to second 9, GPU 2 never.
        {"pid": 4001, "gpu": 0, "sm": 75, "memory_mib": 2048, "pod": pod("acme-training", "t-0")},
        {"pid": 4002, "gpu": 1, "start": "4s", "end": "9s", "sm": 50, "memory_mib": 2048, "pod": pod("acme-inference", "i-0")},
    ],
}
CUT = {
    "name": "cut",
    "gpus": [{"model": A100, "memory_mib": 81920, "mig": ["3g.40gb", "1g.10gb", "1g.10gb"]}],
    "processes": [
        {"pid": 5001, "gpu": 0, "instance": 0, "sm": 60, "memory_mib": 1024, "pod": pod("acme-training", "m-0")},
        {"pid": 5002, "gpu": 0, "instance": 1, "sm": 60, "memory_mib": 1024, "pod": pod("acme-inference", "m-1")},
    ],
}
SLICED = {
    "name": "sliced",
    "gpus": [{"model": L40S, "memory_mib": 46068}],
    "processes": [
        {"pid": 6001, "gpu": 0, "sm": 10, "memory_mib": 1024, "uid": 20001},
        {"pid": 6002, "gpu": 0, "sm": 10, "memory_mib": 1024, "pod": pod("acme-training", "s-0")},
        {"pid": 6003, "gpu": 0, "sm": 10, "memory_mib": 1024, "pod": pod("nobody-knows", "s-1")},
    ],
}
STATES = ("used", "idle", "unmeasured", "unallocated", "stranded", "down", "unknown")


class Walk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack())
        s.apply(POLICY)
        t0 = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        exporters = [
            s.exporter("whole", WHOLE, t0_ns=t0),
            s.exporter("cut", CUT, t0_ns=t0),
            s.exporter("sliced", SLICED, "--replicas", "4", t0_ns=t0),
        ]
        wait_for("the scenario to pass its last event", lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) - t0 > 12 * NS)
        for e in exporters:
            assert e.stop() == 0, e.words()
        cls.csv = s.get("/v1/reports/current.csv").text()
        cls.lines = list(csv.DictReader(io.StringIO(cls.csv, newline="")))
        cls.gpus = {(g["node"], g["gpu"]): g for g in s.get("/v1/conservation").json()["gpus"]}

    def usage(self, **more):
        return self.stack.get("/v1/usage" + query(**more)).json()["groups"]

    def hours(self, group):
        """GPU-hours of one workload on one node, by state."""
        rows = [g for g in self.usage(group_by="node,workload") if group in g["workload"]]
        self.assertEqual(len(rows), 1, rows)
        return {s: Decimal(rows[0][s + "_gpu_hours"]) for s in STATES}

    def in_service(self, node, gpu):
        return Decimal(self.gpus[node, gpu]["in_service_gpu_hours"])

    def test_a_csv_of_no_rows_has_the_header_of_one_with_rows(self):
        long_ago = ("--from", "2001-01-01", "--to", "2001-01-02")
        for words, none in ((("usage",), long_ago), (("usage", "--by", "node,state"), long_ago), (("usage", "--by", "day,workload"), long_ago),
                            (("conservation",), long_ago), (("audit",), ("--actor", "nobody")), (("token", "list"), ("--node", "nobody"))):  # fmt: skip
            with self.subTest(words=words):
                header, *rows = self.stack.cli(*words, "-o", "csv").stdout.splitlines()
                self.assertTrue(rows, "there is something to compare with")
                self.assertEqual(self.stack.cli(*words, *none, "-o", "csv").stdout.splitlines(), [header])

    def test_the_states_of_every_gpu_add_up_to_its_time_in_service(self):
        self.assertEqual(len(self.gpus), 5)
        for key, g in self.gpus.items():
            with self.subTest(gpu=key):
                self.assertGreater(Decimal(g["in_service_gpu_hours"]), 0)
                self.assertEqual(Decimal(g["difference_gpu_hours"]), 0)
                self.assertEqual(Decimal(g["clock_adjust_gpu_hours"]), 0)

    def test_a_holder_from_the_first_to_the_last_tick_has_all_of_its_gpu(self):
        h = self.hours("t-0")
        unknown = Decimal(self.gpus["whole", 0]["unknown_gpu_hours"])
        self.assertEqual(sum(h[s] for s in ("used", "idle", "unmeasured")) + unknown, self.in_service("whole", 0))
        self.assertEqual(h["unmeasured"], 0)
        self.assertGreater(h["used"], h["idle"])

    def test_a_holder_between_has_its_own_time_to_within_a_tick(self):
        h = self.hours("i-0")
        held_s = sum(h[s] for s in ("used", "idle", "unmeasured")) * 3600
        unknown_s = Decimal(self.gpus["whole", 1]["unknown_gpu_hours"]) * 3600
        self.assertGreaterEqual(held_s + unknown_s, Decimal("4.98"))
        self.assertLessEqual(held_s, Decimal("7.0"))  # a tick later than two sample intervals would have been unknown

    def test_a_gpu_that_nobody_held_is_unallocated(self):
        g = self.gpus["whole", 2]
        self.assertEqual(Decimal(g["unallocated_gpu_hours"]) + Decimal(g["unknown_gpu_hours"]), self.in_service("whole", 2))

    def test_mig_instances_weigh_their_share_and_are_unmeasured(self):
        whole = self.in_service("cut", 0)
        measured = whole - Decimal(self.gpus["cut", 0]["unknown_gpu_hours"])
        for name, units in (("m-0", 2340), ("m-1", 675)):
            with self.subTest(workload=name):
                h = self.hours(name)
                self.assertEqual((h["used"], h["idle"]), (0, 0))
                self.assertAlmostEqual(h["unmeasured"], measured * units / 5040, 8)
        g = self.gpus["cut", 0]
        # One small instance is free. The rest of the GPU is 1350 units, but where it lies only 1g.20gb fits, not 2g.20gb.
        self.assertAlmostEqual(Decimal(g["unallocated_gpu_hours"]), measured * (675 + 990) / 5040, 8)
        self.assertAlmostEqual(Decimal(g["stranded_gpu_hours"]), measured * (1350 - 990) / 5040, 8)

    def test_a_replica_is_a_quarter_and_the_free_one_is_nobodys(self):
        measured = self.in_service("sliced", 0) - Decimal(self.gpus["sliced", 0]["unknown_gpu_hours"])
        for name in ("s-0", "s-1", "20001"):
            with self.subTest(workload=name):
                h = self.hours(name)
                self.assertAlmostEqual(sum(h[s] for s in ("used", "idle", "unmeasured")), measured / 4, 8)
        self.assertAlmostEqual(Decimal(self.gpus["sliced", 0]["unallocated_gpu_hours"]), measured / 4, 8)

    def test_usage_that_no_rule_claims_is_unattributed_and_visible(self):
        tenants = {g["tenant"] for g in self.usage(group_by="tenant")}
        self.assertIn("unattributed", tenants)
        self.assertIn("unattributed", {r["tenant"] for r in self.lines})

    def test_the_csv_has_a_line_for_every_workspace_and_its_arithmetic_is_exact(self):
        self.assertLessEqual({("acme", "training"), ("acme", "inference"), ("globex", "sandbox")}, {(r["tenant"], r["workspace"]) for r in self.lines})
        for r in self.lines:
            with self.subTest(line=(r["workspace"], r["sku"])):
                d = {k: Decimal(r[k]) for k in r if k.endswith(("_hours", "_cost", "quantity", "price", "discount", "rounding")) and r[k]}
                self.assertEqual(d["used_gpu_hours"] + d["idle_gpu_hours"] + d["unmeasured_gpu_hours"], d["allocated_gpu_hours"])
                self.assertEqual(d["quantity"] * d["unit_price"], d["list_cost"])
                self.assertEqual(d["list_cost"] - d["discount"] + d["rounding"], d["billed_cost"])
                self.assertEqual(d["billed_cost"], d["billed_cost"].quantize(Decimal("0.01")))
                self.assertEqual((r["currency"], r["price_version"], r["period_status"]), ("EUR", "2026-a", "open"))
        instance = next(r for r in self.lines if r["mig_profile"] == "1g.10gb")
        self.assertEqual((instance["unit"], instance["unit_price"]), ("instance-hour", "0.35"))
        self.assertAlmostEqual(Decimal(instance["quantity"]) * 675 / 5040, Decimal(instance["allocated_gpu_hours"]), 8)

    def test_each_invoice_is_the_rounded_sum_of_its_exact_costs(self):
        for invoice in {r["invoice_id"] for r in self.lines}:
            rows = [r for r in self.lines if r["invoice_id"] == invoice]
            exact = sum(Decimal(r["list_cost"]) - Decimal(r["discount"]) for r in rows)
            self.assertEqual(sum(Decimal(r["billed_cost"]) for r in rows), exact.quantize(Decimal("0.01")), invoice)

    def test_csv_json_usage_metrics_and_command_line_agree(self):
        billed = {}
        hours = {}
        for r in self.lines:
            key = (r["tenant"], r["workspace"])
            billed[key] = billed.get(key, 0) + Decimal(r["billed_cost"])
            hours[key] = hours.get(key, 0) + Decimal(r["allocated_gpu_hours"])
        for line in self.stack.get("/v1/reports/current.json").json()["lines"]:
            key = (line["tenant"], line["workspace"])
            billed[key] -= Decimal(line["billed_cost"])
        self.assertEqual(set(billed.values()), {0})
        for g in self.usage(group_by="tenant,workspace"):
            if g["tenant"]:
                held = sum(Decimal(g[s + "_gpu_hours"]) for s in ("used", "idle", "unmeasured"))
                self.assertAlmostEqual(held, hours[g["tenant"], g["workspace"]], 7)
        done = self.stack.cli("report", self.lines[0]["period_start"][:7], "--format", "csv")
        self.assertEqual((done.returncode, done.stdout.replace("\n", "\r\n") if "\r" not in done.stdout else done.stdout), (0, self.csv))
        open_rows = {(line["tenant"], line["workspace"]) for line in self.stack.get("/v1/reports/current.json").json()["lines"] if line.get("provisional")}
        top = json.loads(self.stack.cli("top", "--count", "1", "-o", "json").stdout)
        self.assertEqual({(r["tenant"], r["workspace"]) for r in top if r["provisional"]}, open_rows)
        self.assertEqual("* provisional" in self.stack.cli("top", "--count", "1").stdout, bool(open_rows))
        cost = {}
        for line in self.stack.get("/metrics").text().splitlines():
            if line.startswith("tollgate_period_cost{"):
                labels, value = line[len("tollgate_period_cost{"):].split("} ")
                pairs = dict(p.split("=") for p in labels.replace('"', "").split(","))
                cost[pairs["tenant"], pairs.get("workspace", "")] = Decimal(value)
        self.assertEqual(cost, {k: sum(Decimal(r["billed_cost"]) for r in self.lines if (r["tenant"], r["workspace"]) == k) for k in hours})

    def test_a_tenant_sees_only_its_own(self):
        self.stack.token("viewer", role="viewer", tenant="globex")
        for path in ("/v1/reports/current.csv", "/v1/usage?group_by=tenant,workspace,workload", "/metrics"):
            with self.subTest(path=path):
                text = self.stack.get(path, role="viewer").text()
                self.assertIn("globex", text)
                for foreign in ("acme", "unattributed", "t-0", "s-1"):
                    self.assertNotIn(foreign, text)

    def test_a_simulator_is_refused_by_a_ledger_that_is_not_a_demo(self):
        with Stack(demo=False) as s:
            e = s.exporter("whole", WHOLE)
            wait_for("the refusal in the exporter's log", lambda: "demo" in e.words(), e)
            self.assertEqual(s.sql("select count(*) from tollgate.ingest_batch"), [["0"]])
            e.stop()


if __name__ == "__main__":
    unittest.main()
