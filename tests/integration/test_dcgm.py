"""DCGM beside NVML, from a simulated Ampere GPU that is cut to the bill: what NVML cannot measure is measured."""

import os
import re
import subprocess
import unittest
from decimal import Decimal

from tests.support.daemons.stack import BUILD, Stack, program, query, request, wait_for

POLICY = """
version: 1
cluster: test
tenants:
  - name: acme
    workspaces:
      - {name: training, rules: [{namespace: acme-training}]}
nodes:
  - {name: profiled, shared: true}
  - {name: plain, shared: true}
prices:
  version: "2026-a"
  currency: EUR
  items:
    - {gpu_model: A100-80GB, price: "2.10"}
"""
SCENARIO = {
    "name": "profiled",
    "gpus": [
        {"model": "NVIDIA A100-SXM4-80GB", "memory_mib": 81920, "mig": ["3g.40gb", "1g.10gb", "1g.10gb"]},
        {"model": "Tesla P100-PCIE-16GB", "memory_mib": 16280, "dcp": False},
    ],
    "processes": [
        {"pid": 5001, "gpu": 0, "instance": 0, "sm": 60, "memory_mib": 1024, "pod": {"namespace": "acme-training", "name": "m-0"}},
        {"pid": 5002, "gpu": 0, "instance": 1, "sm": 25, "memory_mib": 1024, "pod": {"namespace": "acme-training", "name": "m-1"}},
        {"pid": 5003, "gpu": 0, "instance": 2, "sm": 25, "memory_mib": 1024, "pod": {"namespace": "acme-training", "name": "m-2"}},
    ],
    "dcgm": {"unlisted": [{"gpu": 0, "instance": 2}]},
}
# Without DCGM: the first has NVML's GPM, the second nothing that tells of multiprocessors.
PLAIN = {
    "name": "plain",
    "gpus": [{"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559}, {"model": "Tesla P100-PCIE-16GB", "memory_mib": 16280}],
    "processes": [
        {"pid": 6001, "gpu": 0, "sm": 60, "memory_mib": 2048, "pod": {"namespace": "acme-training", "name": "h-0"}},
        {"pid": 6002, "gpu": 0, "sm": 60, "memory_mib": 1024, "pod": {"namespace": "acme-training", "name": "h-0"}},
        {"pid": 6003, "gpu": 1, "sm": 60, "memory_mib": 512, "pod": {"namespace": "acme-training", "name": "p-0"}},
    ],
}
DCGM = os.path.join(BUILD, "sim", "libdcgm.so.4")
USED = re.compile(r'^tollgate_workload_gpu_seconds_total\{.*pod="m-1".*state="used"\} (\S+)$', re.M)


class Profiled(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack())
        s.apply(POLICY)
        e = s.exporter("profiled", SCENARIO, "--dcgm-library", DCGM)
        plain = s.exporter("plain", PLAIN, "--source", "nvml")
        cls.page = ""

        def measured():
            cls.page = request("GET", e.url + "/metrics").text()
            found = USED.search(cls.page)
            return found and float(found[1]) > 0.05

        wait_for("two instances to be measured for some ticks", measured, e)
        assert e.stop() == 0, e.words()
        cls.words = e.words()
        told = re.compile(r'^tollgate_gpu_sm_active_ratio\{.*\} (\S+)$', re.M)
        wait_for("the plain node to tell of multiprocessors", lambda: told.search(request("GET", plain.url + "/metrics").text()), plain)
        seconds = re.compile(r'^tollgate_workload_gpu_seconds_total\{.*pod="h-0".*state="used"\} (\S+)$', re.M)
        wait_for("some ticks", lambda: (m := seconds.search(request("GET", plain.url + "/metrics").text())) and float(m[1]) > 1.5, plain)
        assert plain.stop() == 0, plain.words()

    def hours(self, workload):
        rows = [g for g in self.stack.get("/v1/usage" + query(group_by="node,workload")).json()["groups"] if workload in g["workload"]]
        self.assertEqual(len(rows), 1, rows)
        return {s: Decimal(rows[0][s + "_gpu_hours"]) for s in ("used", "idle", "unmeasured")}

    def test_the_bill_of_an_instance_on_ampere_tells_used_from_idle(self):
        for name, share in (("m-0", Decimal("0.60")), ("m-1", Decimal("0.25"))):
            with self.subTest(workload=name):
                h = self.hours(name)
                self.assertGreater(h["used"], 0)
                self.assertAlmostEqual(h["used"] / (h["used"] + h["idle"]), share, 3)

    def test_sm_activity_and_the_peak_of_memory_come_from_dcgm_and_from_gpm_and_are_empty_where_nothing_tells_them(self):
        rows = {w: g for g in self.stack.get("/v1/usage" + query(group_by="workload")).json()["groups"] for w in ("m-0", "m-2", "h-0", "p-0") if w in g["workload"]}
        self.assertEqual({w: g["peak_memory_gib"] for w, g in rows.items()}, {"m-0": "1.000", "m-2": "1.000", "h-0": "3.000", "p-0": "0.500"})
        for workload in ("m-0", "h-0"):
            self.assertGreater(float(rows[workload]["sm_activity"]), 0, rows[workload])
            self.assertLessEqual(float(rows[workload]["sm_activity"]), 1)
            self.assertLessEqual(Decimal(rows[workload]["sm_measured_gpu_hours"]), Decimal(rows[workload]["allocated_gpu_hours"]))
        for workload in ("m-2", "p-0"):
            self.assertEqual((rows[workload]["sm_activity"], rows[workload]["sm_measured_gpu_hours"]), ("", "0.000000000"))

    def test_what_was_measured_is_in_the_ledger_as_measured(self):
        rows = self.stack.get("/v1/usage" + query(group_by="workload,method")).json()["groups"]
        measured = [g for g in rows if "m-0" in g["workload"] and g["method"] == "measured"]
        self.assertEqual(len(measured), 1, rows)
        self.assertGreater(Decimal(measured[0]["used_gpu_hours"]), 0)

    def test_metrics_say_which_source_told_what(self):
        self.assertIn('tollgate_exporter_source_info{source="dcgm",field="mig_activity"} 1', self.page)
        self.assertNotIn('source="nvml",field="mig_activity"', self.page)
        self.assertIn('tollgate_exporter_source_info{source="nvml",field="gpu_activity"} 1', self.page)  # of the P100
        self.assertRegex(self.page, r'(?m)^tollgate_mig_pipe_active_ratio\{.*profile="1g.10gb",pipe="fp16"\} 0\.0[45]\d*$')
        self.assertIn("tollgate_exporter_dcgm_up 1", self.page)
        self.assertIn("tollgate_exporter_dcgm_refused 1", self.page)

    def test_the_log_has_one_line_of_the_gpu_that_cannot_be_profiled(self):
        self.assertEqual(self.words.count("DCGM does not profile"), 1, self.words)

    def test_an_instance_that_dcgm_does_not_list_is_counted_said_once_and_unmeasured_alone(self):
        self.assertIn("tollgate_exporter_dcgm_unlisted_instances 1", self.page)
        self.assertEqual(self.words.count("DCGM does not list 1 of the MIG instances that NVML lists, first MIG-"), 1, self.words)
        h = self.hours("m-2")
        self.assertEqual((h["used"], h["idle"]), (0, 0))
        self.assertGreater(h["unmeasured"], 0)


class Start(unittest.TestCase):
    def run_exporter(self, *options):
        env = {**os.environ, "TOLLGATE_SIM_SCENARIO": "/nonexistent"}
        return subprocess.run([program("tollgate-exporter"), *options], capture_output=True, text=True, env=env)

    def test_without_dcgm_the_source_dcgm_does_not_start(self):
        r = self.run_exporter("--source", "dcgm", "--dcgm-library", "/nonexistent/libdcgm.so.4")
        self.assertEqual(r.returncode, 1)
        self.assertIn("DCGM's library cannot be loaded", r.stderr)

    def test_options_of_dcgm_are_refused_where_it_is_not_used(self):
        r = self.run_exporter("--source", "nvml", "--dcgm-host", "localhost", "-n")
        self.assertEqual(r.returncode, 2)
        self.assertIn("dcgm-host", r.stderr)


if __name__ == "__main__":
    unittest.main()
