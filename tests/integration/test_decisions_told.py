"""What people and schedulers are told about their requests: names that do not exist, the place in the queue, what stands against a request and
what they can do about it."""

import datetime
import json
import unittest

from tests.integration.test_decisions import OPTIONS, POLICY, SIZES, ask, free_units
from tests.integration.test_quota_loop import holder
from tests.integration.test_quota_simulate import simulate
from tests.support.daemons.stack import Stack, wait_for
from tests.support.quota.quotanodes import SHORT, Nodes


def flat(text):
    """Without the ends of lines, which the width of the terminal decides."""
    return text.replace("\n", " ")


class Told(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=[*OPTIONS, "--lease-confirm", "1h", "--lease-silence", "1h"]))
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")
        s.token("acme", role="developer", tenant="acme")
        s.token("globex", role="developer", tenant="globex")
        cls.nodes = Nodes(s, SIZES)
        cls.nodes.speak()
        wait_for("12 GPUs in the book", lambda: free_units(s) == 12 * 5040, s.aggregator)

    def post(self, body, role="scheduler", path="/v1/decisions"):
        return self.stack.call("POST", path, json.dumps(body).encode(), role)

    def written(self):
        return self.stack.sql("SELECT (SELECT count(*) FROM tollgate.decision), (SELECT count(*) FROM tollgate.quota_event WHERE event LIKE '%submit%')")


class Workspaces(Told):
    def test_a_workspace_that_does_not_exist_is_not_found_whoever_asks_and_nothing_is_written(self):
        before = self.written()
        for role in ("scheduler", "acme", "admin"):
            for path in ("/v1/decisions", "/v1/decisions?dry_run=1"):
                reply = self.post(ask("typo", "acme/prd", 1), role, path)
                with self.subTest(role=role, path=path):
                    self.assertEqual(reply.status, 404, reply.text())
                    self.assertEqual(reply.json()["detail"], 'workspace: there is no workspace "acme/prd"; did you mean "acme/prod"?')
        self.assertEqual(self.written(), before)

    def test_a_tenant_hears_of_other_tenants_workspaces_what_it_hears_of_those_that_do_not_exist(self):
        for name in ("globex/research", "globex/nothing", "nowhere/research"):
            reply = self.post(ask("peep", name, 1), "acme")
            self.assertEqual((reply.status, reply.json()["detail"]), (404, f'workspace: there is no workspace "{name}"'))
        # what a tenant may mean is its own
        self.assertNotIn("research", self.post(ask("peep", "acme/researc", 1), "acme").text().replace("acme/researc", ""))
        self.assertIn('did you mean "globex/research"?', self.post(ask("peep", "globex/reserch", 1)).json()["detail"])

    def test_a_decision_is_known_by_its_id_although_its_workspace_is_gone(self):
        self.stack.apply(POLICY.replace("{name: lab, enforce: off, rules: [{namespace: trial}]}", "{name: lab, enforce: off, rules: [{namespace: trial}]}\n      - {name: gone, enforce: on}"))
        body = ask("kept", "globex/gone", 1)
        first = self.post(body, "globex")
        self.assertEqual(first.status, 200, first.text())
        self.stack.apply(POLICY)
        again = self.post(body, "globex")
        self.assertEqual((again.status, again.json()["seq"]), (200, first.json()["seq"]))
        wait_for("the policy in the book", lambda: self.post(ask("fresh", "globex/gone", 1), "globex", "/v1/decisions?dry_run=1").status == 404)
        self.assertEqual(self.post(ask("fresh", "globex/gone", 1), "globex").status, 404)


class Stored(Told):
    def test_a_verdict_that_cannot_be_read_is_an_error_and_not_left_out(self):
        self.assertEqual(self.post(ask("shown", "acme/prod", 1)).json()["status"], "admitted")
        change = "set session_replication_role = replica; update decision set verdict_bytes = verdict_bytes {} 1 where request_id = 'shown'"
        self.stack.sql(change.format("-"))
        reply = self.stack.call("GET", "/v1/decisions/shown")
        self.assertEqual(reply.status, 500, reply.text())
        self.stack.sql(change.format("+"))
        self.assertIn("checks", self.stack.get("/v1/decisions/shown").json())

    def test_a_request_that_contradicts_itself_is_not_decided(self):
        before = self.written()
        for path in ("/v1/decisions", "/v1/decisions?dry_run=1"):
            for more, detail in (
                ({"per_node": 2}, "per_node: gpus is 3, which is not a multiple of per_node 2: each node gives the same number"),
                ({"priority_class": "gold"}, 'priority_class: its tenant has no class "gold"; it may use: high, low'),
            ):
                reply = self.post(ask("odd", "acme/prod", 3) | more, path=path)
                self.assertEqual((reply.status, reply.json()["detail"]), (400, detail))
        self.assertEqual(self.written(), before)
        # the id was not used up; where quotas are not enforced nothing is refused
        self.assertEqual(self.post(ask("odd", "globex/lab", 1, priority_class="gold")).json()["decision"], "admit")

    def test_what_was_said_first_is_said_again(self):
        for name, workspace, gpus in (("fits", "acme/prod", 1), ("free", "globex/lab", 90), ("never", "acme/prod", 100)):
            first = self.post(ask(name, workspace, gpus)).json()
            self.assertNotEqual(first["status"], "waiting")
            again = self.stack.call("GET", f"/v1/decisions/{name}", role="scheduler").json()
            self.assertEqual(again["summary"], first["summary"])
            self.assertEqual(self.post(ask(name, workspace, gpus)).json()["summary"], first["summary"])
            told = flat(self.stack.cli("quota", "explain", name, role="scheduler").stdout)
            self.assertIn(first["summary"], told)
            self.assertNotIn("would be admitted after", told)


class Queue(Told):
    def waiting(self, path="/v1/decisions?status=waiting"):
        return {d["request_id"]: d for d in self.stack.call("GET", path).json()["decisions"]}

    def test_within_a_pool_no_two_requests_have_the_same_position(self):
        self.assertEqual(self.post(ask("all", "acme/prod", 8, preemptible=True)).json()["status"], "admitted")
        for name, klass in (("late", "low"), ("soon", "high"), ("sooner", "high")):
            self.assertEqual(self.post(ask(name, "acme/dev", 8, priority_class=klass)).json()["status"], "waiting")
        for name in ("own", "shared", "elsewhere"):
            told = self.post(ask(name, "globex/research", 2)).json()
        self.assertEqual(told["status"], "waiting")
        rows = self.waiting()
        self.assertEqual({n: (r["queue_pool"], r["position"]) for n, r in rows.items()},
                         {"soon": ("own", 1), "sooner": ("own", 2), "late": ("own", 3), "elsewhere": ("own", 1)})  # fmt: skip
        for name, row in rows.items():
            now = self.stack.call("GET", f"/v1/decisions/{name}", role="scheduler").json()
            self.assertEqual((now["position"], now["queue_pool"]), (row["position"], row["queue_pool"]), name)
            self.assertEqual(now["queue_length"], 1 if name == "elsewhere" else 3)

    def test_what_is_wrong_with_a_request_is_named(self):
        for body, fault, remedy in (
            (ask("card", "acme/prod", 1, gpu_model="B900"), 'there is no gpu_model "B900"', f"name a gpu_model: {SHORT}"),
            (ask("cut", "acme/prod", 1, profile="9g.99gb") | {"gpus": None}, f"no GPU of {SHORT} is cut like this", "ask for whole GPUs"),
        ):
            reply = self.post({k: v for k, v in body.items() if v is not None}).json()
            self.assertEqual((reply["decision"], reply["rule"]), ("reject", "valid"))
            self.assertEqual(reply["summary"], f"It cannot be admitted as it is asked for: {fault}. To be admitted: {remedy}.")

    def test_sentences_come_before_the_checks(self):
        reply = self.post(ask("many", "acme/lab", 1, gpu_model=SHORT) | {"workspace": "acme/prod", "gpus": 100}).json()
        self.assertEqual(reply["decision"], "reject")
        self.assertIn("As things are it can never be admitted. To be admitted: ", reply["summary"])
        keys = list(reply)
        self.assertLess(keys.index("summary"), keys.index("checks"))


class Estimates(Told):
    def test_what_waits_is_told_when_it_is_expected_to_start(self):
        """A chain on the eight GPUs of acme: each starts when the one before it ends, as far as that was announced."""
        self.assertEqual(self.post(ask("runs", "acme/prod", 8, expected_duration="2h")).json()["status"], "admitted")
        for name, more in (("second", {"expected_duration": "30m"}), ("third", {}), ("fourth", {"expected_duration": "1m"})):
            self.assertEqual(self.post(ask(name, "acme/prod", 8, **more)).json()["status"], "waiting")
        get = lambda name: self.stack.call("GET", f"/v1/decisions/{name}", role="scheduler").json()
        moment = lambda text: datetime.datetime.fromisoformat(text)
        began = moment(get("runs")["lease"]["admitted_at"])
        second, third, fourth = get("second"), get("third"), get("fourth")
        # to five minutes: not to the second when another tenant's work ends
        five = lambda at: -(-int(at.timestamp()) // 300) * 300
        for told, after in ((second, 120), (third, 150)):
            lies = began + datetime.timedelta(minutes=after)  # told to the second itself
            self.assertIn(moment(told["expected_start"]).timestamp(), (five(lies), five(lies + datetime.timedelta(seconds=1))))
        self.assertIn(second["expected_start"], second["summary"])
        self.assertEqual(second["expected_start_reason"], "an estimate: what runs ends as announced, and nothing else is asked for")
        self.assertRegex(second["summary"], r" and is expected to start at about \S+Z, if what runs ends as announced \(an estimate\)\.")
        self.assertEqual((fourth["expected_start"], fourth["expected_start_reason"]),
                         (None, "work that must end first has no expected duration, or has run longer than expected"))  # fmt: skip
        self.assertNotIn("expected to start", fourth["summary"])
        rows = {d["request_id"]: d["expected_start"] for d in self.stack.call("GET", "/v1/decisions").json()["decisions"]}
        self.assertEqual(rows, {"runs": None, "second": second["expected_start"], "third": third["expected_start"], "fourth": None})
        self.assertIn("is expected to start at about", self.stack.cli("quota", "explain", "second", role="scheduler").stdout)
        self.assertIn("expected start: not known, work that must end first has no expected duration", self.stack.cli("quota", "explain", "fourth", role="scheduler").stdout)


class Holders(Told):
    def test_holders_without_a_lease_are_shown_with_what_is_free(self):
        self.nodes.holders = {("n1", 0): [holder("prod") | {"device": self.nodes.uuid("n1", 0)}]}
        self.nodes.speak()
        told = lambda: [(r["node"], r["gpus"]) for r in self.stack.call("GET", "/v1/quota").json().get("held_without_lease", [])]
        wait_for("the holder", lambda: told() == [("n1", 1)], self.stack.aggregator)
        self.nodes.holders = {}
        self.nodes.speak()
        wait_for("nobody", lambda: told() == [], self.stack.aggregator)

    def test_borrowed_is_what_others_reserved_and_on_demand_what_nobody_did(self):
        """Acme reserves all its 8 GPUs; of the 2 shared ones globex reserves 1."""
        self.assertEqual(self.post(ask("beyond", "acme/prod", 6)).json()["decision"], "borrow")
        self.assertEqual(self.post(ask("spare", "acme/dev", 1, per_node=1)).json()["decision"], "admit")
        rows = {(r["workspace"], r["pool"]): r for r in self.stack.call("GET", "/v1/quota").json()["workspaces"]}
        prod = rows["acme/prod", "own"]
        self.assertEqual((prod["borrowed_units"], prod["on_demand_units"]), (2 * 5040, 0))
        self.assertEqual(rows["acme/dev", "own"]["lent_units"], 2 * 5040)
        page = self.stack.call("GET", "/metrics").text()
        self.assertRegex(page, r'tollgate_quota_gpus\{[^}]*workspace="prod"[^}]*kind="borrowed"\} 2(\.0+)?\n')
        self.assertRegex(page, r'tollgate_quota_gpus\{[^}]*workspace="prod"[^}]*kind="on_demand"\} 0(\.0+)?\n')


class Sliced(unittest.TestCase):
    """An L40S that is time-sliced is asked for as a whole."""

    def test_the_remedy_is_named(self):
        scenario = {
            "version": 1,
            "nodes": [{"name": "n1", "tenant": "t", "model": "L40S", "gpus": 1, "replicas": 4}],
            "tenants": [{"name": "t", "workspaces": [{"name": "a"}]}],
            "requests": [{"id": "r", "workspace": "t/a", "gpus": 1}],
        }
        told = flat(simulate(scenario, "--explain").stdout)
        self.assertIn("GPUs of this model are given out as replicas of 4.", told)
        self.assertIn("To be admitted: ask for replicas of 4.", told)

    def test_a_back_off_is_told_as_a_duration(self):
        scenario = {
            "version": 1,
            "settings": {"backoff": "10m"},
            "nodes": [{"name": "n1", "tenant": "t", "gpus": 4}],
            "tenants": [{"name": "t", "workspaces": [{"name": "a", "reserved": 4}, {"name": "b", "limit": 4}]}],
            "events": [
                {"at": "0s", "requests": [{"id": "loan", "workspace": "t/b", "gpus": 4}]},
                {"at": "1m", "requests": [{"id": "owner", "workspace": "t/a", "gpus": 2}]},
                {"at": "2m", "finish": "loan"},
                {"at": "210500ms", "requests": [{"id": "again", "workspace": "t/b", "gpus": 1}]},
            ],
        }
        told = flat(simulate(scenario, "--explain").stdout)
        self.assertRegex(told, r"it may borrow this model again in 8m\d+s\.")

    def test_changes_are_told_in_the_units_that_people_count_in(self):
        tenant = {"name": "t", "limits": {"memory": "4Gi"}, "budget": {"money": "10.00", "hard": True}, "workspaces": [
            {"name": "a", "reserved": 4, "limits": {"cpu": 2}, "budget": {"gpu_hours": 3, "hard": True}}]}  # fmt: skip
        request = {"id": "r", "workspace": "t/a", "gpus": 2, "expected": "2h", "cost": "12.50", "limits": {"cpu": 3, "memory": "6Gi"}}
        scenario = {"version": 1, "nodes": [{"name": "n1", "tenant": "t", "gpus": 4}], "tenants": [tenant], "requests": [request]}
        told = flat(simulate(scenario, "--explain").stdout)
        for change in ("raise the workspace's CPU limit by 1 core", "raise the tenant's memory limit by 2 GiB",
                       "raise the workspace's budget by 1 GPU-hour", "raise the tenant's budget by 2.5 in money"):  # fmt: skip
            self.assertIn(change, told)
        changes = json.loads(simulate(scenario).stdout)["changes"]
        self.assertEqual(sorted((c["scope"], c["amount"], c["unit"]) for c in changes),
                         [("cpu", 1, "cores"), ("tenant", 2.5, "money"), ("tenant memory", 2 << 30, "bytes"), ("workspace", 1, "gpu_hours")])  # fmt: skip

    def test_a_budget_that_is_used_up_is_one_of_this_month(self):
        for consumed, expected, told in (
            ("10.00", "1.00", "The tenant's budget of this month is used up, and it asks for 1 in money. It cannot be admitted before the next billing month."),
            ("12.50", None, "is used up: 2.5 in money more than it has are spent or promised. It cannot be admitted before the next billing month."),
            ("9.00", "5.00", "leaves 1 in money, and it asks for 5 in money. It cannot be admitted before the next billing month."),
            ("0", "12.00", "leaves 10 in money, and it asks for 12 in money. As things are it can never be admitted."),
        ):
            tenant = {"name": "t", "budget": {"money": "10.00", "consumed": consumed, "hard": True}, "workspaces": [{"name": "a", "reserved": 4}]}
            request = {"id": "r", "workspace": "t/a", "gpus": 1} | ({"cost": expected} if expected else {})
            scenario = {"version": 1, "nodes": [{"name": "n1", "tenant": "t", "gpus": 4}], "tenants": [tenant], "requests": [request]}
            self.assertIn(told, flat(simulate(scenario, "--explain").stdout))

    def test_what_is_not_preemptible_must_fit_the_reservation(self):
        scenario = {
            "version": 1,
            "nodes": [{"name": "n1", "tenant": "t", "gpus": 8}],
            "tenants": [{"name": "t", "workspaces": [{"name": "a", "reserved": 4, "limit": 8}]}],
            "leases": [{"id": "l", "workspace": "t/a", "gpus": 4}],
            "requests": [{"id": "r", "workspace": "t/a", "gpus": 6, "preemptible": False}],
        }
        told = flat(simulate(scenario, "--explain").stdout)
        self.assertIn("The workspace's limit leaves 4 GPUs", told)
        self.assertIn("either raise the reservation by 6 GPUs or ask for it as preemptible, and wait or add nodes until 2 more GPUs are free", told)

    def test_a_workspace_without_enforcement_is_told_so(self):
        for enforce in ("off", "warn"):
            for gpus, would, why in ((3, "wait", "It needs 1 more free GPU."), (5, "be refused", "It needs 3 more free GPUs.")):
                scenario = {
                    "version": 1,
                    "nodes": [{"name": "n1", "tenant": "t", "gpus": 4}],
                    "tenants": [{"name": "t", "workspaces": [{"name": "a", "reserved": 4, "enforce": enforce}]}],
                    "leases": [{"id": "l", "workspace": "t/a", "gpus": 2, "priority": 1}],
                    "requests": [{"id": "r", "workspace": "t/a", "gpus": gpus}],
                }
                told = flat(simulate(scenario, "--explain").stdout)
                self.assertIn(f"It is admitted because quotas are not enforced for its workspace; if they were, it would {would}. {why} ", told)
                self.assertNotIn("To be admitted", told)


if __name__ == "__main__":
    unittest.main()
