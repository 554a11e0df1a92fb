"""What operators look at: alerts pass promtool, and every query of a panel or alert finds series on a real Prometheus."""

import glob
import json
import os
import re
import subprocess
import unittest

from tests.support import stack
from tests.support.prometheus import Prometheus

HERE = os.path.join(stack.ROOT, "dashboards")
POLICY = """
version: 1
cluster: test
tenants: [{name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""
SCENARIO = {
    "name": "dashboards",
    "gpus": [{"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559}, {"model": "NVIDIA A100-SXM4-80GB", "memory_mib": 81920, "mig": ["3g.40gb"]}],
    "processes": [
        {"pid": 4001, "gpu": 0, "sm": 80, "memory_mib": 1024, "pod": {"namespace": "acme", "name": "a"}},
        {"pid": 4002, "gpu": 1, "instance": 0, "sm": 80, "memory_mib": 1024, "pod": {"namespace": "acme", "name": "b"}},
    ],
}


def promtool(*args, stdin=None):
    return subprocess.run(["promtool", *args], capture_output=True, text=True, input=stdin, cwd=os.path.join(HERE, "prometheus"))


def dashboards():
    for path in sorted(glob.glob(os.path.join(HERE, "grafana", "*.json"))):
        with open(path, encoding="utf-8") as f:
            yield os.path.basename(path), json.load(f)


class Rules(unittest.TestCase):
    def test_alerts_are_sound_and_their_own_tests_pass(self):
        for args in (("check", "rules", "tollgate.rules.yml"), ("test", "rules", "tollgate.rules.test.yml")):
            done = promtool(*args)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_scrape_configuration_is_sound(self):
        done = promtool("check", "config", "--syntax-only", "scrape.yml")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Dashboards(unittest.TestCase):
    def test_every_dashboard_keeps_the_house_rules(self):
        for name, d in dashboards():
            with self.subTest(dashboard=name):
                self.assertIsNone(d["id"])
                self.assertTrue(d["uid"])
                self.assertIs(d["editable"], False)
                self.assertIn("datasource", [v["name"] for v in d["templating"]["list"]])
                for v in d["templating"]["list"]:
                    if v["type"] == "query":
                        self.assertEqual(v["refresh"], 2, v["name"])
                for p in d["panels"]:
                    for key in ("title", "description"):
                        self.assertTrue(p.get(key), f"panel {p['id']} has no {key}")
                    self.assertTrue(p["fieldConfig"]["defaults"].get("unit"), p["title"])
                    for t in p["targets"]:
                        for counter in re.findall(r"\w+_total\b", t["expr"]):
                            self.assertRegex(t["expr"], rf"(rate|increase)\({counter}", "a counter outside rate() or increase()")


class Queries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(stack.Stack())
        s.apply(POLICY)
        cls.exporter = s.exporter("n1", SCENARIO)
        cls.prometheus = Prometheus(
            os.path.join(s.dir, "prometheus"),
            {"tollgate-exporter": [f"127.0.0.1:{cls.exporter.port}"], "tollgate-aggregator": [f"127.0.0.1:{s.port}"]},
            {"tollgate-aggregator": s.tokens["admin"]},
        )
        s.processes.append(cls.prometheus)
        stack.wait_for("the first batch", lambda: s.sql("select 1 from tollgate.ingest_batch limit 1"))
        stack.wait_for("some scrapes", lambda: cls.prometheus.query('min(count_over_time(up[1m])) > 4'), cls.prometheus)

    def find(self, expression):
        return stack.wait_for(f"series for {expression}", lambda: self.prometheus.query(expression), self.prometheus)

    def test_every_target_is_up(self):
        self.assertEqual({r["value"][1] for r in self.prometheus.query("up")}, {"1"})

    def test_every_panel_finds_series(self):
        for name, d in dashboards():
            for p in d["panels"]:
                for t in p["targets"]:
                    with self.subTest(dashboard=name, panel=p["title"]):
                        self.find(t["expr"].replace("$__rate_interval", "1m").replace("$node", ".*"))
            for v in d["templating"]["list"]:
                if v["type"] == "query":
                    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", v["definition"]).groups()
                    with self.subTest(dashboard=name, variable=v["name"]):
                        self.assertTrue(all(r["metric"][label] for r in self.find(metric)))

    def test_every_metric_of_an_alert_exists(self):
        with open(os.path.join(HERE, "prometheus", "tollgate.rules.yml"), encoding="utf-8") as f:
            metrics = set(re.findall(r"\btollgate_\w+", "".join(line for line in f if "expr:" in line)))
        self.assertGreater(len(metrics), 3)
        for metric in sorted(metrics):
            with self.subTest(metric=metric):
                self.find(metric)

    def test_both_daemons_pass_promtool_in_both_formats(self):
        for url, token in (
            (f"http://127.0.0.1:{self.exporter.port}/metrics", None),
            (self.stack.url + "/metrics", self.stack.tokens["admin"]),
            (self.stack.url + "/metrics", None),
        ):
            with self.subTest(url=url, token=bool(token)):
                done = promtool("check", "metrics", stdin=stack.request("GET", url, token=token).text())
                # A public name of the design that finance reads in hours; promtool would have it in seconds.
                findings = [f for f in (done.stdout + done.stderr).splitlines() if not f.startswith("tollgate_period_gpu_hours ")]
                self.assertEqual(findings, [])
                self.assertIn(done.returncode, (0, 3))
                open_metrics = stack.request("GET", url, token=token, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
                self.assertTrue(open_metrics.headers["Content-Type"].startswith("application/openmetrics-text"))
                self.assertTrue(open_metrics.text().endswith("# EOF\n"))

    def test_a_scrape_without_a_token_shows_no_tenant(self):
        self.assertNotIn("acme", stack.request("GET", self.stack.url + "/metrics").text())


if __name__ == "__main__":
    unittest.main()
