"""tollgate quota simulate: the worked examples of QUOTA through the real program, YAML and JSON alike, a week replayed, and files that
are wrong."""

# instead: san

import json
import os
import subprocess
import tempfile
import unittest

from tests.support.daemons.stack import program


def simulate(scenario, *options, check=True):
    """What the program prints for a scenario, a value or a text; its lines as objects unless it explains."""
    text = scenario if isinstance(scenario, str) else json.dumps(scenario)
    done = subprocess.run(
        [program("tollgate"), "quota", "simulate", "-", *options], input=text, capture_output=True, text=True
    )
    if check and done.returncode != 0:
        raise AssertionError(f"exit {done.returncode}: {done.stderr}")
    return done


def lines(scenario):
    return [json.loads(line) for line in simulate(scenario).stdout.splitlines()]


def by_id(scenario):
    return {line["id"]: line for line in lines(scenario) if "decision" in line}


def one_tenant(workspaces, leases=(), requests=(), **more):
    return {
        "version": 1,
        "tenants": [{"name": "t", "workspaces": workspaces} | more.pop("tenant", {})],
        "leases": [dict(zip(("id", "workspace", "gpus", "priority"), row)) if isinstance(row, tuple) else row for row in leases],
        "requests": [dict(zip(("id", "workspace", "gpus", "priority"), row)) if isinstance(row, tuple) else row for row in requests],
    } | more


def ws(name, reserved, **more):
    return {"name": name, "reserved": reserved} | more


A50_B50 = [ws("a", 50, borrow=50), ws("b", 50, borrow=10)]
C1_C2 = [ws("c1", 6), ws("c2", 6)]
SLICES = {"workspaces": [ws("q0", "1x1g.10gb"), ws("q1", "2x1g.10gb")], "tenant": {"capacity": "4x1g.10gb"}}

# name, scenario, id -> (decision, borrowed, victims)
EXAMPLES = [
    ("45 and 56 are more than there is",
     one_tenant(A50_B50, requests=[("a", "t/a", 45), ("b", "t/b", 56)]),
     {"a": ("admit", 0, []), "b": ("queue", 0, [])}),
    ("45 and 55 fit, and five of them are borrowed",
     one_tenant(A50_B50, requests=[("a", "t/a", 45), ("b", "t/b", 55)]),
     {"a": ("admit", 0, []), "b": ("borrow", 5, [])}),
    ("a lender with a cap of two lends two",
     one_tenant([ws("a", 3, lend=2), ws("b", 2, lend=2)], [("l", "t/b", 2)], [("r", "t/b", 3)]),
     {"r": ("queue", 0, [])}),
    ("the borrower goes, not the own low job",
     one_tenant(C1_C2, [("c1-low", "t/c1", 3, -1), ("c2-mid", "t/c2", 3, 0), ("c2-high", "t/c2", 6, 1)], [("r", "t/c1", 3, 1)]),
     {"r": ("reclaim", 0, ["c2-mid"])}),
    ("who would have to borrow has no right to reclaim",
     one_tenant(C1_C2, [("x", "t/c1", 4, 1), ("y", "t/c2", 4, -1), ("z", "t/c2", 4, -1)], [("r", "t/c1", 4, 1)]),
     {"r": ("queue", 0, [])}),
    ("low alone is too small, and not needed with mid",
     one_tenant([ws("a", 6)], [("low", "t/a", 1, -1), ("mid", "t/a", 2, 0), ("high", "t/a", 3, 1)], [("r", "t/a", 2, 1)]),
     {"r": ("reclaim", 0, ["mid"])}),
    ("a gang that could not be completed evicts nobody",
     one_tenant([ws("q0", 0), ws("q1", 2)], [("l", "t/q0", 1)], [("r", "t/q1", 2)],
                nodes=[{"name": "n1", "tenant": "t", "gpus": 1}, {"name": "n2", "tenant": "t", "gpus": 1, "lost": True}]),
     {"r": ("queue", 0, [])}),
    ("one slice is free and one is lent",
     one_tenant(SLICES["workspaces"], [{"id": "two", "workspace": "t/q0", "profile": "1g.10gb", "count": 2},
                                       {"id": "one", "workspace": "t/q0", "profile": "1g.10gb"}],
                [{"id": "r", "workspace": "t/q1", "profile": "1g.10gb", "count": 2}], tenant=SLICES["tenant"]),
     {"r": ("reclaim", 0, ["one"])}),
    ("a workspace at its limit replaces its own lower work",
     one_tenant([ws("a", 0, limit=8)], [("low", "t/a", 8, 0)], [("r", "t/a", 8, 1)], tenant={"capacity": 16}),
     {"r": ("reclaim", 8, ["low"])}),
    ("eight that drain for two count as eight: sixteen of a maximum of ten are never leased",
     one_tenant([ws("a", 8)], [("low", "t/a", 8, 0)],
                [{"id": "r", "workspace": "t/a", "gpus": 2, "priority": 1, "preemptible": False},
                 {"id": "s", "workspace": "t/a", "gpus": 8, "priority": 0}],
                tenant={"maximum": 10},
                nodes=[{"name": "n1", "tenant": "t", "gpus": 8}, {"name": "n2", "shared": True, "gpus": 8}]),
     {"r": ("reclaim", 0, ["low"]), "s": ("queue", 0, [])}),
]  # fmt: skip

def scenario(nodes, tenants, requests, **more):
    return {"version": 1, "nodes": nodes, "tenants": tenants, "requests": requests} | more


def node(name, gpus=None, **more):
    return {"name": name, "tenant": "t", "model": "H100"} | ({"gpus": gpus} if gpus else {}) | more


def tenant(*workspaces, name="t", **more):
    return {"name": name, "workspaces": list(workspaces)} | more


def ask(name, workspace, gpus=None, **more):
    return {"id": name, "workspace": workspace} | ({"gpus": gpus} if gpus else {}) | more


EAST_WEST = [node("e", 4, cluster="east"), node("w", 4, cluster="west")]
CLASSES = [{"name": "batch", "value": -10}, {"name": "production", "value": 100, "preemptible": False}]
TWO_MODELS = [node("h", 4), node("a", 4, model="A100")]

# name, scenario, id -> (decision, borrowed, victims)
RULES = [
    ("clusters have their own capacity, and what is free in one is not in the other",
     scenario(EAST_WEST, [tenant(ws("a", 4, cluster="east"), ws("b", 4, cluster="west"))],
              [ask("r1", "t/a", 4), ask("r2", "t/a", 1), ask("r3", "t/b", 4)], clusters=[{"name": "east"}, {"name": "west"}]),
     {"r1": ("admit", 0, []), "r2": ("queue", 0, []), "r3": ("admit", 0, [])}),
    ("a reservation in one cluster takes nothing back in another",
     scenario(EAST_WEST, [tenant(ws("a", 4, cluster="east"), ws("b", 0, cluster="west", limit="none"))],
              [ask("r1", "t/a", 1), ask("r2", "t/a", 1, cluster="west")], clusters=[{"name": "east"}, {"name": "west"}],
              leases=[ask("x", "t/b", 4)]),
     {"r1": ("admit", 0, []), "r2": ("queue", 0, [])}),
    ("the cluster's maximum counts all tenants",
     scenario([node("n", 4), node("m", 4, tenant="u")], [tenant(ws("a", 4)), tenant(ws("b", 4), name="u")],
              [ask("r1", "t/a", 4), ask("r2", "u/b", 3), ask("r3", "u/b", 2)], clusters=[{"name": "c", "maximum": 6}]),
     {"r1": ("admit", 0, []), "r2": ("queue", 0, []), "r3": ("admit", 0, [])}),
    ("the tenant's maximum is per model",
     scenario(TWO_MODELS, [tenant(ws("a", {"H100": 4, "A100": 4}), maximum={"H100": 2, "A100": 4})],
              [ask("r1", "t/a", 3, model="H100"), ask("r2", "t/a", 3, model="A100"), ask("r3", "t/a", 2, model="H100")]),
     {"r1": ("reject", 0, []), "r2": ("admit", 0, []), "r3": ("admit", 0, [])}),
    ("models are never summed: a debt of one gives no right to the other",
     scenario(TWO_MODELS, [tenant(ws("a", {"H100": 4, "A100": 0}), ws("b", {"H100": 0, "A100": 4}, limit="none"))],
              [ask("r1", "t/a", 4, model="H100"), ask("r2", "t/a", 1, model="A100")],
              leases=[ask("x", "t/b", 4, model="H100"), ask("y", "t/b", 4, model="A100")]),
     {"r1": ("reclaim", 0, ["x"]), "r2": ("queue", 0, [])}),
    ("a hard budget of GPU-hours stops new work, running work stays",
     scenario([node("n", 4)], [tenant(ws("a", 4, budget={"gpu_hours": 10, "consumed": 5}))],
              [ask("r1", "t/a", 1, expected="3h"), ask("r2", "t/a", 1, expected="3h"), ask("r3", "t/a", 1, expected="6h")]),
     {"r1": ("admit", 0, []), "r2": ("queue", 0, []), "r3": ("reject", 0, [])}),
    ("a hard budget of money counts what requests say they cost",
     scenario([node("n", 4)], [tenant(ws("a", 4), ws("b", 0, limit="none"), budget={"money": 100, "consumed": 40})],
              [ask("r1", "t/a", 1, cost=50), ask("r2", "t/b", 1, cost=20), ask("r3", "t/b", 1, cost=10)]),
     {"r1": ("admit", 0, []), "r2": ("queue", 0, []), "r3": ("borrow", 1, [])}),
    ("a class by name gives priority and says whether it can be preempted",
     scenario([node("n", 4)], [tenant(ws("a", 2), ws("b", 2, limit="none"))],
              [ask("r1", "t/a", 2, priority="production"), ask("r2", "t/a", 1, priority="production")], priority_classes=CLASSES,
              leases=[ask("x", "t/b", 1, priority="production"), ask("y", "t/b", 2, priority="batch"), ask("z", "t/b", 1)]),
     {"r1": ("reclaim", 0, ["y"]), "r2": ("queue", 0, [])}),
    ("a class that the tenant may not use is refused",
     scenario([node("n", 4)], [tenant(ws("a", 4), priority_classes=["batch"])],
              [ask("r1", "t/a", 1, priority="production"), ask("r2", "t/a", 1, priority="batch")], priority_classes=CLASSES),
     {"r1": ("reject", 0, []), "r2": ("admit", 0, [])}),
    ("slices and whole GPUs of one pool are counted together and placed apart",
     scenario([node("n", 1), node("m", mig={"1g.10gb": 7})], [tenant(ws("a", "1x1g.10gb"), ws("b", 1, limit="none"))],
              [ask("r1", "t/b", 1), ask("r2", "t/b", 1), ask("r3", "t/b", profile="1g.10gb", count=6),
               ask("r4", "t/a", profile="1g.10gb")]),
     {"r1": ("admit", 0, []), "r2": ("queue", 0, []), "r3": ("borrow", 0.803571429, []), "r4": ("admit", 0, [])}),
    ("cores, memory and storage are limited for the workspace and for the tenant, without borrowing",
     scenario([node("n", 8)], [tenant(ws("a", 4, limits={"memory": "10Gi"}), ws("b", 4), limits={"cpu": 8, "storage": "1Ti"})],
              [ask("r1", "t/a", 1, limits={"memory": "8Gi", "cpu": 4}), ask("r2", "t/a", 1, limits={"memory": "4Gi"}),
               ask("r3", "t/b", 1, limits={"cpu": 6}), ask("r4", "t/b", 1, limits={"storage": "2Ti"}),
               ask("r5", "t/b", 1, limits={"cpu": 4, "memory": "900Gi", "storage": "1Ti"})]),
     {"r1": ("admit", 0, []), "r2": ("queue", 0, []), "r3": ("queue", 0, []), "r4": ("reject", 0, []), "r5": ("admit", 0, [])}),
    ("a workload above the guardrail of its workspace or tenant is refused, whatever is free",
     scenario([node("n", 8)], [tenant(ws("a", 4, max_per_workload=2), ws("b", 4), max_per_workload=3)],
              [ask("r1", "t/a", 3), ask("r2", "t/a", 2), ask("r3", "t/b", 4), ask("r4", "t/b", 3)]),
     {"r1": ("reject", 0, []), "r2": ("admit", 0, []), "r3": ("reject", 0, []), "r4": ("admit", 0, [])}),
] + [
    (f"on shared nodes isolation by {kind}: {said}",
     scenario([{"name": "s", "shared": True, "model": "H100", "gpus": 2}, {"name": "m", "shared": True, "model": "H100", "mig": {"1g.10gb": 7}}],
              [tenant(ws("a", 0, limit="none"), isolation=kind), tenant(ws("b", 0, limit="none"), name="u")],
              [ask("r1", "u/b", 1), ask("r2", "u/b", profile="1g.10gb")],
              leases=[ask("x", "t/a", 1), ask("y", "t/a", profile="1g.10gb")]),
     {"r1": (gpu, 1 if gpu == "borrow" else 0, []), "r2": (mig, 0.133928571 if mig == "borrow" else 0, [])})
    for kind, said, gpu, mig in [
        ("node", "nobody else is on its nodes", "queue", "queue"),
        ("gpu", "others are on its nodes, not on its GPUs", "borrow", "queue"),
        ("mig", "others have the other instances of its GPUs", "borrow", "borrow"),
        ("shared", "anybody is beside it", "borrow", "borrow"),
    ]
]  # fmt: skip


def answers(told):
    return {k: (v["decision"], v["borrowed_gpus"], v["victims"]) for k, v in told.items()}


# The example of the document, as it stands there.
DOCUMENT = """
version: 1
nodes:                 # optional: without nodes a tenant has one node of `capacity` GPUs (default: sum of reserved) of one model
  - {name: n1, tenant: acme, model: H100, gpus: 8}
  - {name: n2, tenant: acme, model: H100, mig: {1g.10gb: 7}}
tenants:
  - name: acme
    maximum: 16
    workspaces:
      - {name: prod, reserved: 4, limit: 8, borrow: 4, lend: 4, reclaim: any, preempt_own: lower, weight: 1}
      - {name: research, reserved: 2x1g.10gb}
leases:                # oldest first
  - {id: l1, workspace: acme/prod, gpus: 2, priority: 0, preemptible: true, draining: false, node: n1}
requests:              # one batch
  - {id: r1, workspace: acme/prod, gpus: 3, priority: 1, preemptible: true, per_node: 3}
  - {id: r2, workspace: acme/research, profile: 1g.10gb, count: 2}
"""


class WorkedExamples(unittest.TestCase):
    def test_each_is_answered_as_the_document_says(self):
        for name, state, expected in EXAMPLES:
            with self.subTest(name):
                self.assertEqual(answers(by_id(state)), expected)

    def test_every_kind_of_limit_capacity_and_right_is_answered_as_the_rules_say(self):
        for name, state, expected in RULES:
            with self.subTest(name):
                self.assertEqual(answers(by_id(state)), expected)

    def test_the_limit_is_told_before_and_after_own_work_is_given_up(self):
        verdict = by_id(
            one_tenant([ws("a", 0, limit=8)], [("low", "t/a", 8, 0)], [("r", "t/a", 8, 1)], tenant={"capacity": 16})
        )["r"]
        own = [c for c in verdict["checks"] if (c["rule"], c["scope"], c["pool"]) == ("limit", "workspace", "own")]
        self.assertEqual(
            [(c["need"], c["have"], c["ok"], c.get("after", False)) for c in own],
            [(16, 8, False, False), (8, 8, True, True)],
        )

    def test_a_soft_budget_warns_and_admits(self):
        for kind, requested in ({"gpu_hours": 1}, {"expected": "2h"}), ({"money": 10}, {"cost": 11}):
            told = by_id(scenario([node("n", 1)], [tenant(ws("a", 1, budget=kind | {"hard": False}))], [ask("r", "t/a", 1, **requested)]))
            self.assertEqual((told["r"]["decision"], told["r"]["warn"]), ("admit", True))

    def test_an_idle_timeout_is_for_the_service_and_warns(self):
        done = simulate(one_tenant([ws("a", 1, idle_timeout="1h")], requests=[("r", "t/a", 1)]))
        self.assertIn("idle_timeout of workspace", done.stderr)
        self.assertEqual(json.loads(done.stdout)["decision"], "admit")

    def test_the_documents_file_is_read_and_its_keys_come_first(self):
        first, second = sorted(lines(DOCUMENT), key=lambda line: line["id"])
        self.assertEqual(list(first)[:5], ["id", "decision", "borrowed_gpus", "victims", "checks"])
        self.assertEqual((first["decision"], first["borrowed_gpus"], first["victims"]), ("borrow", 1, []))
        self.assertEqual((second["decision"], second["borrowed_gpus"]), ("admit", 0))
        limit = next(c for c in first["checks"] if c["rule"] == "limit" and c["scope"] == "workspace")
        self.assertEqual(list(limit)[:4], ["rule", "ok", "need", "have"])
        self.assertEqual((limit["ok"], limit["need"], limit["have"], limit["headroom"]), (True, 5, 8, 6))

    def test_every_rule_is_recorded_also_when_it_holds(self):
        rules = {c["rule"] for c in by_id(EXAMPLES[3][1])["r"]["checks"]}
        self.assertGreaterEqual(rules, {"valid", "limit", "ownership", "available", "owed"})

    def test_no_limit_is_null(self):
        r = by_id(one_tenant([ws("a", 1, limit="none")], requests=[("r", "t/a", 1)]))["r"]
        self.assertIn(None, [c["have"] for c in r["checks"] if c["rule"] == "limit"])


class Bytes(unittest.TestCase):
    def test_json_and_yaml_give_the_same_bytes_each_time(self):
        for name, scenario, _ in EXAMPLES:
            with self.subTest(name):
                compact, indented = json.dumps(scenario), json.dumps(scenario, indent=2)
                yaml = "\n".join(f"{key}: {json.dumps(value)}" for key, value in scenario.items()) + "\n"
                outputs = {simulate(text).stdout for text in (compact, indented, yaml, compact)}
                self.assertEqual(len(outputs), 1)

    def test_block_style_and_flow_style_give_the_same_bytes(self):
        block = (
            "version: 1\ntenants:\n  - name: t\n    workspaces:\n      - name: a\n        reserved: 2\n"
            "requests:\n  - id: r\n    workspace: t/a\n    gpus: 1\n"
        )
        flow = json.dumps(one_tenant([ws("a", 2)], requests=[("r", "t/a", 1)]))
        self.assertEqual(simulate(block).stdout, simulate(flow).stdout)

    def test_a_file_by_name_is_read_and_left_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "s.yaml")
            with open(path, "w", encoding="utf-8") as f:
                f.write(DOCUMENT)
            done = subprocess.run([program("tollgate"), "quota", "simulate", path], capture_output=True, text=True, cwd=folder,
                                  env={"PATH": os.environ["PATH"]})  # fmt: skip
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(done.stdout, simulate(DOCUMENT).stdout)
            self.assertEqual(os.listdir(folder), ["s.yaml"])


class Warnings(unittest.TestCase):
    def test_reservations_beyond_capacity_warn_and_go_on(self):
        done = simulate(one_tenant([ws("a", 3), ws("b", 3)], requests=[("r", "t/a", 2)], tenant={"capacity": 4}))
        self.assertIn("reservations of 6 GPU exceed the capacity of 4", done.stderr)
        self.assertEqual(json.loads(done.stdout)["decision"], "admit")

    def test_wrong_files_and_wrong_use_have_their_exit_codes(self):
        for text, code, said in [
            ("version: 3\n", 1, "standard input:1: version"),
            ("{", 1, "standard input"),
            ("version: 1\ntenants: []\nbudgets: []\n", 1, "standard input:3"),
        ]:
            with self.subTest(text):
                done = simulate(text, check=False)
                self.assertEqual((done.returncode, done.stdout), (code, ""))
                self.assertIn(said, done.stderr)
        for words in ([], ["a", "b"], ["x", "--dance"]):
            done = subprocess.run([program("tollgate"), "quota", "simulate", *words], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
        done = subprocess.run([program("tollgate"), "quota", "simulate", "/nonexistent/s.yaml"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))


class Explain(unittest.TestCase):
    def test_checks_victims_and_the_smallest_change_are_told(self):
        text = simulate(EXAMPLES[3][1], "--explain").stdout
        self.assertRegex(text, r"request r of t/c1: reclaim, owed")
        self.assertRegex(text, r"victim 1: c2-mid of t/c2, 3 GPUs, priority 0, debt 3")
        self.assertRegex(text, r"RULE +SCOPE +POOL +HOLDS +NEED +HAVE")
        self.assertRegex(text, r"owed +workspace +own +yes +6 +6")
        waiting = simulate(EXAMPLES[2][1], "--explain").stdout
        self.assertRegex(waiting, r"request r of t/b: queue, position 1 of 1 in the queue for its own GPUs")
        self.assertRegex(waiting, r"To be admitted: ")
        self.assertEqual(waiting, simulate(EXAMPLES[2][1], "-o", "table").stdout)


def week():
    """Seven days: a team that works by day, another that borrows by night, and a node that fails on Wednesday."""
    events = []
    for day in range(7):
        at = day * 24
        events.append({"at": f"{at}h" if at else "0", "requests": [
            {"id": f"night-{day}-{i}", "workspace": "t/research", "gpus": 4, "runs": "20h", "drains": "2m"} for i in range(3)]})  # fmt: skip
        if day == 2:
            events.append({"at": f"{at + 4}h", "node_lost": "n1"})
            events.append({"at": f"{at + 6}h", "node_back": "n1"})
        if day < 5:
            events.append({"at": f"{at + 8}h", "requests": [
                {"id": f"day-{day}-{i}", "workspace": "t/prod", "gpus": 2, "priority": 1, "runs": "9h"} for i in range(4)]})  # fmt: skip
        events.append({"at": f"{at + 23}h", "tick": True})
    return one_tenant([ws("prod", 8), ws("research", 4, limit="none")], requests=[], events=events, settings={"tick": "10m", "end": "8d"},
                      nodes=[{"name": "n1", "tenant": "t", "gpus": 8}, {"name": "n2", "tenant": "t", "gpus": 4}])  # fmt: skip


class OverTime(unittest.TestCase):
    def setUp(self):
        scenario = week()
        del scenario["requests"], scenario["leases"]
        self.scenario = scenario
        self.told = lines(scenario)

    def test_everybody_is_served_in_the_end(self):
        asked = {r["id"] for e in self.scenario["events"] for r in e.get("requests", ())}
        admitted = [t["id"] for t in self.told if t.get("decision") in ("admit", "borrow")]
        self.assertEqual(len(admitted), len(set(admitted)), "nobody is admitted twice")
        self.assertEqual(set(admitted), asked)

    def test_owners_wait_one_grace_at_most(self):
        asked, got = {}, {}
        for t in self.told:
            if t.get("id", "").startswith("day-") and "decision" in t:
                asked.setdefault(t["id"], t["at"])
                if t["decision"] in ("admit", "borrow"):
                    got[t["id"]] = t["at"]
        self.assertTrue(any(asked[i] != got[i] for i in asked), "some had to wait for a reclaim")
        for i in asked:
            self.assertLessEqual(minutes(got[i]) - minutes(asked[i]), 5, i)

    def test_what_happens_later_has_its_time_and_its_reason(self):
        kinds = {t["event"] for t in self.told if "event" in t}
        self.assertGreaterEqual(len(kinds), 2, kinds)
        for t in self.told:
            self.assertIn("at", t)
        times = [minutes(t["at"]) for t in self.told]
        self.assertEqual(times, sorted(times))

    def test_what_was_lost_with_its_node_is_free_when_it_is_not_seen_any_more(self):
        told = lines({"version": 1, "nodes": [node("n1", 2)], "tenants": [tenant(ws("a", 2))], "leases": [{"id": "l", "workspace": "t/a", "gpus": 2}],
                      "events": [{"at": "1m", "lost": "l"}, {"at": "2m", "requests": [ask("r", "t/a", 2)]}, {"at": "3m", "unfence": "l"}]})  # fmt: skip
        self.assertEqual([(t["at"], t["id"], t.get("event") or t["decision"]) for t in told],
                         [("1m", "l", "lease returned"), ("1m", "l", "fenced"), ("2m", "r", "queue"), ("3m", "r", "admit"), ("3m", "l", "unfenced")])  # fmt: skip

    def test_nobody_is_evicted_twice_in_a_row_for_what_the_scheduler_cannot_place(self):
        again = [{"at": "13m", "requests": [ask("s", "t/a", 2, reason="Resources")]}, {"at": "14m", "requests": [ask("u", "t/a", 2, reason="Licenses")]}]
        told = lines({"version": 1, "nodes": [node("n1", 2)], "tenants": [tenant(ws("a", 2), ws("b", 0, limit=9))],
                      "settings": {"confirm": "10m", "tick": "1m", "backoff": "0s"}, "leases": [{"id": "l", "workspace": "t/b", "gpus": 2}],
                      "events": [{"at": "1m", "requests": [ask("r", "t/a", 2, reason="Resources")]}, {"at": "1m", "finish": "l"},
                                 {"at": "12m", "requests": [ask("m", "t/b", 2)]}, {"at": "12m", "confirm": "m"}, *again, {"at": "15m", "tick": True}]})  # fmt: skip
        self.assertEqual([(t["at"], t["id"], t["decision"], t["victims"]) for t in told if "decision" in t],
                         [("1m", "r", "reclaim", ["l"]), ("1m", "r", "admit", []), ("12m", "m", "borrow", []), ("13m", "s", "queue", []), ("14m", "u", "reclaim", ["m"])])  # fmt: skip
        self.assertEqual([(t["at"], t["id"]) for t in told if t.get("event") == "lease expired"], [("11m", "r")])
        [check] = [c for t in told if t["id"] == "s" for c in t.get("checks", []) if c["scope"] == "unused lease"]
        self.assertEqual((check["ok"], check["have"], check["unit"]), (False, 480, "seconds"))
        [said] = [t["summary"] for t in told if t["id"] == "s" and "summary" in t]
        self.assertIn("Nobody is evicted for it until", said)

    def test_a_replay_gives_the_same_bytes(self):
        text = json.dumps(self.scenario)
        self.assertEqual(simulate(text).stdout, simulate(text).stdout)


def minutes(text):
    """"1d8h2m" as minutes."""
    total, number = 0, ""
    for c in text:
        if c.isdigit():
            number += c
        else:
            total += int(number) * {"d": 1440, "h": 60, "m": 1, "s": 0}[c]
            number = ""
    return total


if __name__ == "__main__":
    unittest.main()
