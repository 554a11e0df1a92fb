"""What operators look at: alerts pass promtool, and every query of a panel or alert finds series on a real Prometheus."""

import glob
import json
import os
import re
import subprocess
import unittest

from tests.support.daemons import stack
from tests.support.daemons.prometheus import Prometheus

HERE = os.path.join(stack.ROOT, "dashboards")
DEMO = os.path.join(stack.ROOT, "deploy", "demo")
# The nodes of `make run`: name, scenario, options.
NODES = [("demo-h100", "h100.yaml", ()), ("demo-mig", "mig.yaml", ()), ("demo-shared", "timeslice.yaml", ("--replicas", "4"))]
UNITS = {"none", "percentunit", "bytes", "watt", "s", "h"}  # Grafana's own names, as far as they are used


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
        names = list(dashboards())
        self.assertTrue(names)
        self.assertEqual(len({d["uid"] for _, d in names}), len(names), "two dashboards have one uid")
        for name, d in names:
            with self.subTest(dashboard=name):
                self.assertIsNone(d["id"])
                self.assertEqual(d["uid"] + ".json", name, "the uid is fixed: it is the file's name")
                self.assertIs(d["editable"], False)
                variables = {v["name"]: v for v in d["templating"]["list"]}
                self.assertEqual(variables["datasource"]["type"], "datasource")
                self.assertNotIn("DS_PROMETHEUS", json.dumps(d))
                for v in variables.values():
                    if v["type"] == "query":
                        self.assertEqual(v["refresh"], 2, v["name"])
                self.assertEqual(len({p["id"] for p in d["panels"]}), len(d["panels"]), "two panels have one id")
                for p in d["panels"]:
                    self.check_panel(p, variables)
                self.check_no_overlap(d["panels"])

    def check_panel(self, p, variables):
        for key in ("title", "description"):
            self.assertTrue(p.get(key), f"panel {p['id']} has no {key}")
        self.assertIn(p["fieldConfig"]["defaults"].get("unit"), UNITS, p["title"])
        self.assertTrue(p["targets"], p["title"])
        self.assertEqual(len({t["refId"] for t in p["targets"]}), len(p["targets"]), p["title"])
        for source in (p, *p["targets"]):
            self.assertEqual(source["datasource"], {"type": "prometheus", "uid": "${datasource}"}, p["title"])
        for t in p["targets"]:
            for counter in re.findall(r"\w+_total\b", t["expr"]):
                self.assertRegex(t["expr"], rf"(rate|increase)\({counter}", "a counter outside rate() or increase()")
            for window in re.findall(r"(?:rate|increase)\([^\[]*\[([^\]]+)\]", t["expr"]):
                self.assertEqual(window, "$__rate_interval", p["title"])
            for variable in re.findall(r"\$(\w+)", t["expr"]):
                self.assertTrue(variable in variables or variable == "__rate_interval", f"{p['title']}: ${variable}")

    def check_no_overlap(self, panels):
        taken = {}
        for p in panels:
            at = p["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24, p["title"])
            for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
                self.assertNotIn(cell, taken, f"{p['title']} lies over {taken.get(cell)}")
                taken[cell] = p["title"]


class Queries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(stack.Stack())
        with open(os.path.join(DEMO, "policy.yaml"), encoding="utf-8") as f:
            s.apply(f.read())
        cls.exporters = [s.exporter(node, os.path.join(DEMO, scenario), *options) for node, scenario, options in NODES]
        cls.exporter = cls.exporters[0]
        cls.prometheus = Prometheus(
            os.path.join(s.dir, "prometheus"),
            {"tollgate-exporter": [f"127.0.0.1:{e.port}" for e in cls.exporters], "tollgate-aggregator": [f"127.0.0.1:{s.port}"]},
            {"tollgate-aggregator": s.tokens["admin"]},
        )
        s.processes.append(cls.prometheus)
        for node, _, _ in NODES:
            taken = f"select 1 from tollgate.node where name = '{node}' and covered_until_ns is not null"
            stack.wait_for(f"the first batch of {node}", lambda taken=taken: s.sql(taken))
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

    def test_every_node_of_the_demo_is_in_the_fleet(self):
        found = {r["metric"]["node"]: r["value"][1] for r in self.find("count by (node) (tollgate_gpu_info)")}
        self.assertEqual(found, {"demo-h100": "8", "demo-mig": "2", "demo-shared": "1"})

    def test_a_scrape_without_a_token_shows_no_tenant(self):
        self.assertNotIn("acme", stack.request("GET", self.stack.url + "/metrics").text())


if __name__ == "__main__":
    unittest.main()
