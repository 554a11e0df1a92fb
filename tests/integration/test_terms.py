"""Tenants and workspaces over time: a policy that is to take effect later changes nothing before, and everything from that instant on, without another word."""

import datetime
import itertools
import json
import re
import os
import subprocess
import unittest

from tests.integration.test_sums import billing_month
from tests.support.daemons.clock import Clock
from tests.support.daemons.stack import Stack, request, wait_for
from tests.support.quota.quotanodes import SHORT, Nodes

HOUR = datetime.timedelta(hours=1)
GLOBEX = f"""
  - name: globex
    display_name: Globex {{0}}
    cost_center: "{{0}}"
    owner: ann-{{0}}
    workspaces: [{{{{name: research, rules: [{{{{namespace: globex}}}}], limit: {{{{{SHORT}: 8}}}}, enforce: on}}}}]
"""
POLICY = f"""
version: 1
cluster: c
effective: {{effective}}
tenants:
  - name: acme
    workspaces: [{{{{name: prod, rules: [{{{{namespace: prod}}}}], enforce: on}}}}{{batch}}]
{{globex}}
nodes: [{{{{name: n1, shared: true, model: {SHORT}, gpus: 8}}}}]
prices: {{{{version: "1", currency: EUR, items: [{{{{price: "1.00"}}}}]}}}}
"""
BATCH = ", {name: batch, rules: [{namespace: batch}], enforce: on}"


def text(at):
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


class Terms(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.clock = cls.enterClassContext(Clock())
        cls.stack = cls.enterClassContext(Stack(options=["--quota-tick", "100ms"], clock=cls.clock, wall=cls.clock))
        cls.hour = datetime.datetime.now(datetime.timezone.utc).replace(minute=0, second=0, microsecond=0)
        cls.next = cls.hour + 2 * HOUR  # also where an hour ends while this runs
        cls.apply(cls.hour - HOUR, "1", BATCH)
        cls.stack.token("scheduler", role="scheduler")
        cls.nodes = Nodes(cls.stack, {"n1": 8})
        cls.nodes.speak()
        wait_for("eight GPUs in the book", lambda: sum(p["free_units"] for p in cls.stack.get("/v1/quota").json()["pools"]) == 8 * 5040, cls.stack.aggregator)

    @classmethod
    def apply(cls, at, globex=None, batch=""):
        return cls.stack.apply(POLICY.format(effective=text(at), batch=batch, globex=GLOBEX.format(globex) if globex else ""))

    def ask(self, request_id, workspace):
        body = {"request_id": request_id, "workspace": workspace, "gpu_model": SHORT, "gpus": 1}
        reply = self.stack.call("POST", "/v1/decisions", json.dumps(body).encode(), "scheduler")
        return reply.json().get("status") if reply.status == 200 else reply.status

    def make_token(self):
        return self.stack.call("POST", "/v1/tokens", json.dumps({"role": "viewer", "tenant": "globex"}).encode()).status

    def make_exception(self, workspace):
        body = {"workspace": workspace, "gpu_model": SHORT, "gpus": 1, "until": "8h", "reason": "a deadline"}
        return self.stack.call("POST", "/v1/exceptions", json.dumps(body).encode()).status

    def send_event(self, number, at):
        body = {"specversion": "1.0", "id": number, "source": "/s", "type": "tollgate.storage.v1", "time": text(at),
                "data": {"tenant": "globex", "workspace": "research", "gb_hours": 1}}  # fmt: skip
        reply = self.stack.call("POST", "/v1/events", json.dumps([body]).encode(), headers={"Content-Type": "application/cloudevents-batch+json"})
        return reply.json()["events"][0]["status"]

    def listed(self, what, name):
        return next(row for row in self.stack.get(f"/v1/{what}").json() if row["name"] == name)

    def test_what_a_later_policy_drops_or_changes_is_there_until_then_and_gone_from_then_on(self):
        # applied after this, the policy drops globex and acme/batch two hours from now
        self.apply(self.next)
        self.assertEqual((self.ask("r1", "globex/research"), self.ask("r2", "acme/batch")), ("admitted", "admitted"))
        self.assertEqual((self.make_token(), self.make_exception("globex/research"), self.make_exception("acme/batch")), (201, 201, 201))
        self.assertEqual(self.listed("tenants", "globex")["until"], text(self.next))
        self.assertEqual((self.listed("tenants", "acme")["until"], self.listed("tenants", "acme")["workspaces"]), (None, 2))
        self.assertEqual((self.send_event("e1", self.hour), self.send_event("e2", self.hour - 2 * HOUR)), ("accepted", "refused"), "from its first hour on")

        # a policy of the same two hours later gives globex another name, owner and cost centre instead
        self.apply(self.next, "2", BATCH)
        row = self.listed("tenants", "globex")
        self.assertEqual((row["display_name"], row["owner"], row["cost_center"], row["until"]), ("Globex 1", "ann-1", "1", None))
        values = [(h["kind"], h["value"], h["from"], h["until"]) for h in self.stack.get("/v1/history?tenant=globex").json() if h["kind"] in ("cost_center", "display_name")]
        first, change = text(self.hour - HOUR), text(self.next)
        self.assertEqual(values, [("cost_center", "1", first, change), ("cost_center", "2", change, None), ("display_name", "Globex 1", first, change), ("display_name", "Globex 2", change, None)])

        # one more: the change stays, and both are dropped an hour after it
        self.apply(self.next + HOUR)
        self.clock.set(7200)  # two hours later, as the servers see it
        wait_for("the second name", lambda: self.listed("tenants", "globex")["display_name"] == "Globex 2", self.stack.aggregator)
        self.assertEqual((self.make_token(), self.make_exception("acme/batch")), (201, 201))
        self.clock.set(3 * 3600)
        numbers = itertools.count()
        wait_for("globex to end in the book", lambda: self.ask(f"w{next(numbers)}", "globex/research") not in ("admitted", "waiting"), self.stack.aggregator)
        self.assertEqual((self.make_token(), self.make_exception("globex/research"), self.make_exception("acme/batch")), (404, 404, 404))
        self.assertNotIn(self.ask("r4", "acme/batch"), ("admitted", "waiting"))
        self.assertEqual(self.make_exception("acme/prod"), 201, "what stays in force is not touched")
        self.assertEqual(self.listed("tenants", "globex")["until"], text(self.next + HOUR))
        self.assertEqual((self.send_event("e3", self.next + HOUR), self.send_event("e4", self.next)), ("refused", "accepted"))
        [report] = [self.stack.cli("verify")]
        self.assertEqual(report.returncode, 0, report.stdout + report.stderr)


class Promises(unittest.TestCase):
    POLICY = f"""
version: 1
cluster: c
effective: EFFECTIVE
tenants:
  - name: acme
    data_boundary: "EU: Frankfurt, \\"only\\""
    sla: {{owed_wait: 10m, delivered: "99.5"}}
    workspaces: [{{name: prod, rules: [{{namespace: prod}}], reserved_shared: {{{SHORT}: 4}}, sla: {{owed_wait: 1s}}}}, {{name: dev, rules: [{{namespace: dev}}], borrow: {{{SHORT}: 8}}}}]
  - {{name: globex, workspaces: [{{name: research, rules: [{{namespace: globex}}]}}]}}
nodes: [{{name: n1, shared: true, model: {SHORT}, gpus: 8}}]
"""

    @classmethod
    def setUpClass(cls):
        zone, cls.first = billing_month()  # begun a day ago at least
        cls.stack = s = cls.enterClassContext(Stack(zone=zone, options=["--quota-tick", "100ms", "--rollup-interval", "1h"]))
        cls.POLICY = cls.POLICY.replace("EFFECTIVE", text(cls.first.astimezone(datetime.timezone.utc)))
        s.apply(cls.POLICY)
        for tenant in ("acme", "globex"):
            s.token(tenant, role="tenant-admin", tenant=tenant)
        s.token("scheduler", role="scheduler")
        nodes = Nodes(s, {"n1": 8})
        nodes.speak()
        wait_for("eight GPUs in the book", lambda: sum(p["free_units"] for p in s.get("/v1/quota").json()["pools"]) == 8 * 5040, s.aggregator)

    def promises(self, role="admin"):
        return {p["workspace"]: p for p in self.stack.get("/v1/sla", role).json()["promises"]}

    def test_promises_are_measured_from_the_decisions_and_the_reservations(self):
        s = self.stack
        for i in ("p1", "p2"):
            body = {"request_id": i, "workspace": "acme/prod", "gpu_model": SHORT, "gpus": 1}
            self.assertEqual(s.call("POST", "/v1/decisions", json.dumps(body).encode(), "scheduler").json()["rule"], "owed")
        self.assertEqual({w: (p["owed_requests"], p["owed_late"], p["owed_kept"], p["delivered_kept"]) for w, p in self.promises().items()}, {"": (2, 0, True, None), "prod": (2, 0, True, None)})
        # one of them waited for two minutes, and of 100 reserved GPU-hours of this month one was not there
        at = self.first.isoformat()
        s.sql(f"set session_replication_role = replica; update decision set submitted_ns = ns_of('{at}') + 3600000000000, admitted_ns = ns_of('{at}') + 3720000000000 where request_id = 'p2'; "
              f"insert into billing_day (day, starts_at, ends_at) values ('{self.first:%F}', '{at}', timestamptz '{at}' + interval '1 day'); "
              f"insert into reserve_day select '{self.first:%F}', null, c.id, null, 'H100-80GB', w.id, '', 5040, 18144000000000000 * 100, 0, 0, "
              "18144000000000000 * 99, 18144000000000000 from cluster c, workspace w where w.name = 'prod'")  # fmt: skip
        self.assertEqual((self.promises()[""]["reserved_gpu_hours"], self.promises()[""]["measured_days"]), (None, 0), "a day that is not folded is not measured")
        s.sql("set session_replication_role = replica; update billing_day set dirty = false, folded_at = now()")
        whole, prod = self.promises()[""], self.promises()["prod"]
        self.assertEqual((whole["owed_late"], whole["owed_kept"], prod["owed_late"], prod["owed_kept"], prod["longest_wait_seconds"]), (0, True, 1, False, "120"))
        self.assertEqual((whole["delivered_percent"], whole["measured_percent"], whole["delivered_kept"], prod["delivered_kept"]), ("99.5", "99", False, None))
        self.assertEqual((whole["reserved_gpu_hours"], whole["undelivered_gpu_hours"], whole["measured_days"]), ("100", "1", 1))
        self.assertEqual((set(self.promises("acme")), self.promises("globex")), ({"", "prod"}, {}))
        table = s.cli("get", "sla").stdout
        self.assertIn("acme", table)
        titles = ("OWED WAIT SECONDS", "OWED REQUESTS", "LONGEST WAIT SECONDS", "DELIVERED PERCENT", "MEASURED PERCENT", "MEASURED DAYS", "DELIVERED KEPT")
        self.assertEqual([t for t in titles if t not in table.splitlines()[0]], [], "what was measured has its columns, empty or not")
        # and the month's documents say so
        for tenant in ("acme", "globex"):
            reply = s.call("POST", "/v1/adjustments", json.dumps({"tenant": tenant, "amount": "1.00", "currency": "EUR", "reason": "a test"}).encode())
            self.assertEqual(reply.status, 201, reply.text())
        month = f"{self.first:%Y-%m}"
        told = {p["workspace"]: p for p in s.get(f"/v1/reports/{month}.json").json()["promises"]}
        self.assertEqual((set(told), told[""]["delivered_percent"], told[""]["measured_percent"], told[""]["delivered_kept"]), ({"", "prod"}, "99.5", "99", "false"))
        self.assertEqual((told["prod"]["owed_wait_seconds"], told["prod"]["owed_requests"], told["prod"]["owed_late"], told["prod"]["owed_kept"]), ("1", "2", "1", "false"))
        self.assertIn("Promises of the month", s.get(f"/v1/reports/{month}.html?tenant=acme").text())
        self.assertNotIn("promises", s.get(f"/v1/reports/{month}.json", "globex").json())
        self.assertNotIn("Promises of the month", s.get(f"/v1/reports/{month}.html", "globex").text())
        # what is promised from now on does not judge what was before
        s.apply(self.POLICY.replace(f"effective: {text(self.first.astimezone(datetime.timezone.utc))}\n", "").replace("owed_wait: 10m, delivered: \"99.5\"", 'owed_wait: 1m, delivered: "50"'))
        whole = self.promises()[""]
        self.assertEqual((whole["owed_wait_seconds"], whole["owed_late"], whole["delivered_percent"], whole["delivered_kept"]), ("60", 0, "50", False))
        # an owed request that waited until it was cancelled counts as well
        for i, workspace, gpus, decision in (("b1", "dev", 6, "borrow"), ("p3", "prod", 2, "reclaim")):
            body = {"request_id": i, "workspace": f"acme/{workspace}", "gpu_model": SHORT, "gpus": gpus, "preemptible": True}
            self.assertEqual(s.call("POST", "/v1/decisions", json.dumps(body).encode(), "scheduler").json()["decision"], decision)
        self.assertEqual(self.promises()[""]["owed_requests"], 3)
        self.assertEqual(s.call("DELETE", "/v1/decisions/p3", role="scheduler").status, 200)
        self.assertEqual(s.sql("select status from decision where request_id = 'p3'"), [["cancelled"]])
        self.assertEqual(self.promises()[""]["owed_requests"], 3)
        # a tenant that is over keeps what was promised to it in the month
        s.sql("set session_replication_role = replica; update tenant_quota q set effective = tstzrange(lower(effective), lower(effective) + interval '1 hour') "
              "from tenant t where t.id = q.tenant_id and t.name = 'acme' and upper_inf(q.effective)")  # fmt: skip
        self.assertIn("", self.promises())

    def test_a_boundary_is_kept_and_shown_and_both_are_the_operators(self):
        s = self.stack
        row = next(t for t in s.get("/v1/tenants").json() if t["name"] == "acme")
        self.assertEqual(row["data_boundary"], 'EU: Frankfurt, "only"')
        part = s.get("/v1/policy", "acme").text()
        self.assertEqual(s.call("PUT", "/v1/policy?dry_run=1", part.encode(), "acme").json()["changes"], 0, part)
        for old, new, field in (("owed_wait: 1s", "owed_wait: 2s", "sla"), ("Frankfurt", "Paris", "data_boundary"), ('delivered: "99.5"', 'delivered: "1"', "sla")):
            self.assertIn(old, part)
            reply = s.call("PUT", "/v1/policy", part.replace(old, new).encode(), "acme")
            self.assertEqual((reply.status, field in reply.json()["detail"], "only an operator" in reply.json()["detail"]), (400, True, True), reply.text())
        # a file from before the promise still applies, and the promise stays
        older = part.replace("owed_wait: 1s", "owed_wait: gone")
        older = re.sub(r"\n *sla: \{owed_wait: gone\}|, sla: \{owed_wait: gone\}|sla: \{owed_wait: gone\}, ", "", older)
        self.assertNotIn("gone", older)
        self.assertEqual(s.call("PUT", "/v1/policy?dry_run=1", older.encode(), "acme").json()["changes"], 0, older)
        self.assertEqual(s.call("PUT", "/v1/policy", older.encode(), "acme").status, 200)
        reply = s.call("PUT", "/v1/policy", re.sub(r"name: \"?dev\"?", "name: trial", older, count=1).encode(), "acme")
        self.assertEqual(reply.status, 200, (reply.text(), older))
        self.assertEqual(set(self.promises()), {"", "prod"})
        s.apply(self.POLICY)
        for wrong, words in (("sla: {}", "owed_wait, delivered or both"), ("sla: {owed_wait: 0s}", "outside 1s to"), ("sla: {delivered: 101}", "outside 0 (not included) to 100"),
                             ("sla: {delivered: 0}", "outside 0"), ("sla: {waits: 1s}", "waits"), ("data_boundary: " + "x" * 201, "200"), ('data_boundary: "a\\tb"', "data_boundary")):  # fmt: skip
            reply = s.call("PUT", "/v1/policy?dry_run=1", self.POLICY.replace("  - {name: globex,", "  - {name: globex, " + wrong + ",").encode())
            self.assertEqual((reply.status, words in reply.json()["detail"]), (400, True), reply.text())


class Effect(unittest.TestCase):
    """What `apply` says about quota is so when it says it, in every replica."""

    POLICY = f"""
version: 1
cluster: c
tenants: [{{name: acme, workspaces: [{{name: prod, rules: [{{namespace: prod}}], limit: {{{SHORT}: 1}}, enforce: MODE}}]}}]
nodes: [{{name: n1, shared: true, model: {SHORT}, gpus: 8}}]
"""

    @classmethod
    def setUpClass(cls):
        # a look of the clock comes once a minute: what is in effect before it is so because of the apply
        cls.stack = s = cls.enterClassContext(Stack(options=["--quota-tick", "1m"]))
        cls.replica = s.replica()
        s.token("scheduler", role="scheduler")
        s.apply(cls.POLICY.replace("MODE", "off"))
        Nodes(s, {"n1": 8}).speak()
        cls.numbers = itertools.count()

    def ask(self, port):
        body = {"request_id": f"e{next(self.numbers)}", "workspace": "acme/prod", "gpu_model": SHORT, "gpus": 2}
        reply = request("POST", f"http://127.0.0.1:{port}/v1/decisions", json.dumps(body).encode(), self.stack.tokens["scheduler"])
        self.assertEqual(reply.status, 200, reply.text())
        return (reply.json()["status"], reply.json()["decision"])

    def test_a_limit_that_is_switched_on_holds_for_the_next_request_in_both_replicas(self):
        for port in (self.stack.port, self.replica.port):
            done = self.stack.apply(self.POLICY.replace("MODE", "off"))
            self.assertEqual(self.ask(port)[1], "admit", "nothing is enforced")
            done = self.stack.apply(self.POLICY.replace("MODE", "on"))
            self.assertEqual([self.ask(p)[1] for p in (port, self.stack.port, self.replica.port, port)], ["reject"] * 4)
            self.assertEqual(done["quota"], "in-effect")

    def test_what_is_not_in_effect_yet_is_not_said_to_be(self):
        self.assertEqual(self.stack.apply(self.POLICY.replace("MODE", "warn"), dry_run=True)["quota"], "unchanged")
        soon = datetime.datetime.now(datetime.timezone.utc).replace(minute=0, second=0, microsecond=0) + 2 * HOUR
        self.assertEqual(self.stack.apply(f"effective: {text(soon)}" + self.POLICY.replace("MODE", "warn"))["quota"], "later")
        # somebody has the book: nobody can write in it that there is another policy
        argv = [os.path.join(self.stack.pg.bin, "psql"), "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", self.stack.pg.conninfo("tollgate")]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as psql:
            psql.stdin.write("begin; select 'locked' from tollgate.quota_book for update;\n")
            psql.stdin.flush()
            self.assertEqual(psql.stdout.readline(), "locked\n")
            path = os.path.join(self.stack.dir, "policy.yaml")
            with open(path, "w", encoding="utf-8") as f:
                f.write(self.POLICY.replace("MODE", "on").replace(f"{SHORT}: 1", f"{SHORT}: 3"))
            done = self.stack.cli("apply", "-f", path)
            psql.communicate("rollback;\n")
        self.assertIn("Quota still decides by the policy before", done.stdout, done.stderr)


if __name__ == "__main__":
    unittest.main()
