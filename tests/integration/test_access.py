"""Who may use which door: every route of the program is walked with every role and with every kind of token that must not work.

The routes come from the program itself (--print-routes). What is expected of each is written here by hand: a route that the
program has and this file does not know fails, and so does one that it declares for other roles than are written here."""

# instead: san

import json
import subprocess
import unittest

from tests.support.daemons.stack import Stack, program

POLICY = """
version: 1
cluster: test
tenants:
  - {name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}
  - {name: globex, workspaces: [{name: research, rules: [{namespace: globex}]}]}
nodes: [{name: n1, shared: true}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""

ROLES = ["admin", "billing", "tenant-admin", "developer", "viewer", "node", "scheduler", "meter"]
TENANT = {"tenant-admin", "developer", "viewer"}
ADMINS = {"admin", "tenant-admin"}
MONEY = {"admin", "billing"}
READ = MONEY | TENANT
ASK = ADMINS | {"developer", "scheduler"}
SCHEDULE = {"admin", "scheduler"}
OPEN = {"open"}
JOIN = {"join-token"}

# Method and path as in the program's table: who may, and a path to call when the route's is a prefix. None of the calls
# changes anything: bodies are empty, ids do not exist.
EXPECTED = {
    ("GET", "/healthz"): (OPEN, None),
    ("GET", "/readyz"): (OPEN, None),
    ("GET", "/metrics"): (OPEN, None),
    ("GET", "/v1/openapi.json"): (OPEN, None),
    ("POST", "/v1/ingest"): ({"node"}, None),
    ("GET", "/v1/quarantine"): (MONEY, None),
    ("GET", "/v1/quarantine/"): (MONEY, "/v1/quarantine/999999/1"),
    ("POST", "/v1/quarantine/"): ({"admin"}, "/v1/quarantine/999999/1/release"),
    ("POST", "/v1/gpus/"): ({"admin"}, "/v1/gpus/GPU-none/move"),
    ("POST", "/v1/status"): ({"node"}, None),
    ("GET", "/v1/status"): (READ, None),
    ("POST", "/v1/events"): (MONEY | {"tenant-admin", "meter"}, None),
    ("GET", "/v1/events/summary"): (READ, None),
    ("PUT", "/v1/policy"): (ADMINS, None),
    ("GET", "/v1/policy"): (MONEY | {"tenant-admin"}, None),
    ("GET", "/v1/policy/progress"): (MONEY, None),
    ("GET", "/v1/policy/suggest"): ({"admin"}, None),
    ("POST", "/v1/prices/preview"): (MONEY, None),
    ("POST", "/v1/tokens"): (ADMINS, None),
    ("GET", "/v1/tokens"): (ADMINS, None),
    ("DELETE", "/v1/tokens/"): (ADMINS, "/v1/tokens/999999999"),
    ("GET", "/v1/whoami"): (set(ROLES), None),
    ("POST", "/v1/join-tokens"): ({"admin"}, None),
    ("GET", "/v1/join-tokens"): ({"admin"}, None),
    ("DELETE", "/v1/join-tokens/"): ({"admin"}, "/v1/join-tokens/999999999"),
    ("POST", "/v1/join"): (JOIN, None),
    ("GET", "/v1/audit"): (MONEY | {"tenant-admin"}, None),
    ("GET", "/v1/audit/differences"): (MONEY, None),
    ("POST", "/v1/journal/"): ({"admin"}, "/v1/journal/0/accept"),
    ("POST", "/v1/exceptions"): (ADMINS | {"developer"}, None),
    ("POST", "/v1/exceptions/"): (ADMINS | {"developer"}, "/v1/exceptions/999999999/approve"),
    ("GET", "/v1/exceptions"): (READ, None),
    ("POST", "/v1/decisions"): (ASK, None),
    ("GET", "/v1/decisions"): (READ | {"scheduler"}, None),
    ("GET", "/v1/decisions/"): (READ | {"scheduler"}, "/v1/decisions/never-asked"),
    ("DELETE", "/v1/decisions/"): (ASK, "/v1/decisions/never-asked"),
    ("GET", "/v1/leases"): (READ | {"scheduler"}, None),
    ("POST", "/v1/leases/"): (ASK, "/v1/leases/never-asked/heartbeat"),
    ("PUT", "/v1/leases/"): (SCHEDULE, "/v1/leases/never-asked/workloads"),
    ("POST", "/v1/admit"): (ASK, None),
    ("POST", "/v1/adopt"): (SCHEDULE, None),
    ("PUT", "/v1/adoption"): (SCHEDULE, None),
    ("GET", "/v1/adoption"): (SCHEDULE | {"billing"}, None),
    ("POST", "/v1/agents"): (SCHEDULE, None),
    ("GET", "/v1/reclaims"): (READ | {"scheduler"}, None),
    ("POST", "/v1/reclaims/"): (ASK, "/v1/reclaims/999999999/ack"),
    ("GET", "/v1/quota"): (READ | {"scheduler"}, None),
    ("GET", "/v1/quota/anomalies"): (READ | {"scheduler"}, None),
    ("GET", "/v1/quota/recording"): ({"admin"}, None),
    ("GET", "/v1/usage"): (READ, None),
    ("GET", "/v1/conservation"): (MONEY, None),
    ("GET", "/v1/conservation/differences"): (MONEY, None),
    ("GET", "/v1/reports/"): (READ, "/v1/reports/current.csv"),
    ("GET", "/v1/budgets"): (READ, None),
    ("GET", "/v1/sla"): (READ, None),
    ("POST", "/v1/adjustments"): (MONEY, None),
    ("POST", "/v1/adjustments/"): (MONEY, "/v1/adjustments/999999999/approve"),
    ("GET", "/v1/adjustments"): (READ, None),
    ("GET", "/v1/reconciliation"): (MONEY, None),
    ("GET", "/v1/refunds"): (READ, None),
    ("GET", "/v1/tenants"): (READ, None),
    ("GET", "/v1/workspaces"): (READ, None),
    ("GET", "/v1/nodes"): (MONEY, None),
    ("POST", "/v1/nodes/"): ({"admin"}, "/v1/nodes/nowhere/approve"),
    ("GET", "/v1/members"): (READ, None),
    ("GET", "/v1/history"): (READ, None),
    ("GET", "/v1/periods"): (READ, None),
    ("GET", "/v1/periods/"): (MONEY, "/v1/periods/1999-01/check"),
    ("POST", "/v1/periods/"): (MONEY, "/v1/periods/1999-01/close"),
    ("DELETE", "/v1/periods/"): (MONEY, "/v1/periods/1999-01/close"),
}
INLINE = {"/healthz", "/readyz"}  # answered before anything is looked up
OF_THE_TOKEN = {"/v1/whoami"}  # its own row and no other
# What shows a tenant's rows, and so must not know other tenants.
OF_A_TENANT = {
    "/v1/tokens", "/v1/audit", "/v1/usage", "/v1/status", "/v1/events/summary", "/v1/reports/", "/v1/tenants", "/v1/workspaces", "/v1/members",
    "/v1/history", "/v1/policy", "/v1/periods", "/v1/adjustments", "/v1/budgets", "/v1/sla", "/v1/refunds", "/v1/exceptions",
    "/v1/decisions", "/v1/decisions/", "/v1/leases", "/v1/reclaims", "/v1/quota", "/v1/quota/anomalies",
}  # fmt: skip


def program_routes():
    printed = subprocess.run([program("tollgate-aggregator"), "--print-routes"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(" ", 3) for line in printed.splitlines()]
    return {(method, path): set(who.split(",")) for method, path, who, _ in rows}


class Access(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack())
        s.apply(POLICY)
        for role in ROLES[1:]:
            what = {"role": role}
            if role in TENANT:
                what["tenant"] = "acme"
            if role == "meter":
                what["sources"] = "/gateway"
            if role == "node":
                what["node"] = "n1"
            s.token(role, **what)
        s.tokens["wrong"] = "0" * 64
        s.token("expired", role="admin", expires="1h")
        s.token("revoked", role="admin")
        # An hour is not waited for: the clock that counts is the database's, and so is the row.
        s.sql("update access_token set expires_at = now() - interval '1 second' where expires_at is not null")
        revoked = s.get("/v1/tokens?limit=1").json()["tokens"][0]["id"]
        assert s.call("DELETE", f"/v1/tokens/{revoked}").status == 200
        cls.routes = program_routes()

    def call(self, route, role, query=""):
        method, path = route
        body = b"" if method in ("PUT", "POST") else None
        return self.stack.call(method, (EXPECTED[route][1] or path) + query, body, role=role)

    def walk(self):
        for route in sorted(self.routes.keys() & EXPECTED.keys()):
            yield route, self.routes[route]

    def test_every_route_of_the_program_has_an_expectation(self):
        self.assertGreater(len(self.routes), 20)
        self.assertEqual(self.routes.keys() - EXPECTED.keys(), set(), "add a row to EXPECTED")
        for route, who in self.walk():
            self.assertEqual(who, EXPECTED[route][0], route)

    def test_every_route_admits_exactly_the_roles_it_declares(self):
        for route, may in self.walk():
            for role in ROLES:
                with self.subTest(route=route, role=role):
                    status = self.call(route, role).status
                    if may == OPEN or role in may:
                        self.assertNotIn(status, (401, 403, 405), "an admitted role was turned away")
                    else:
                        self.assertEqual(status, 403)

    def test_billing_reads_everything_closes_and_exports_and_changes_no_quota(self):
        may = {route for route, who in self.routes.items() if "billing" in who}
        read = {route for route, who in self.routes.items() if route[0] == "GET" and who & READ and who != {"admin"}} - {("GET", "/v1/tokens")}
        self.assertEqual({r for r in may if r[0] == "GET"}, read, "all but tokens and drafts of a policy")
        for route in (("GET", "/v1/reports/"), ("GET", "/v1/reconciliation"), ("GET", "/v1/refunds"), ("POST", "/v1/periods/"), ("POST", "/v1/adjustments")):
            self.assertIn(route, may)
        self.assertNotIn(("PUT", "/v1/policy"), may)
        policy = POLICY.replace("nodes: [{name: n1", "nodes: [{name: n2")
        self.assertEqual(self.stack.call("PUT", "/v1/policy", policy.encode(), role="billing", headers={"Content-Type": "application/yaml"}).status, 403)

    def test_without_a_token_every_guarded_route_answers_401(self):
        for route, may in self.walk():
            with self.subTest(route=route):
                self.assertEqual(self.call(route, None).status == 401, may != OPEN)

    def test_a_token_that_is_unknown_expired_or_revoked_is_turned_away_also_at_open_doors(self):
        for route, may in self.walk():
            for role in ("wrong", "expired", "revoked"):
                if route[1] in INLINE:
                    continue
                with self.subTest(route=route, token=role):
                    self.assertEqual(self.call(route, role).status, 401)

    def test_a_tenant_never_learns_that_another_exists(self):
        for route, may in self.walk():
            if not may & TENANT or route[0] != "GET" or route[1] in OF_THE_TOKEN:
                continue
            self.assertIn(route[1], OF_A_TENANT, "a route that tenants may read: say here how it keeps them apart")
            for role in sorted(may & TENANT):
                with self.subTest(route=route, role=role):
                    other, nobody = self.call(route, role, "?tenant=globex"), self.call(route, role, "?tenant=nobody")
                    self.assertEqual((other.status, nobody.status), (404, 404))
                    self.assertEqual(other.json()["detail"].replace("globex", "nobody"), nobody.json()["detail"])
                    mine = self.call(route, role)
                    self.assertIn(mine.status, (200, 404))
                    self.assertNotIn(b"globex", mine.body)
                    self.assertEqual(self.call(route, role, "?tenant=acme").status, mine.status)
            if "admin" in may:  # who may read of any tenant is told that it mistyped one
                with self.subTest(route=route, role="admin"):
                    self.assertEqual(self.call(route, "admin", "?tenant=nobody").status, 404)

    def test_every_path_refuses_the_methods_it_does_not_have(self):
        for path in sorted({p for _, p in self.routes}):
            have = {m for m, p in self.routes if p == path}
            for method in {"GET", "PUT", "POST", "DELETE", "PATCH"} - have:
                with self.subTest(path=path, method=method):
                    self.assertEqual(self.stack.call(method, path, role="admin").status, 405)

    def test_a_token_for_a_tenant_that_does_not_exist_is_refused(self):
        reply = self.stack.call("POST", "/v1/tokens", json.dumps({"role": "viewer", "tenant": "nobody"}).encode())
        self.assertEqual(reply.status, 404)
        self.assertIn("nobody", reply.json()["detail"])

    def test_a_node_token_needs_a_node_and_an_unknown_role_is_named(self):
        reply = self.stack.call("POST", "/v1/tokens", json.dumps({"role": "node"}).encode())
        self.assertEqual(reply.status, 400)
        self.assertIn("node", reply.json()["detail"])
        reply = self.stack.call("POST", "/v1/tokens", json.dumps({"role": "king"}).encode())
        self.assertEqual(reply.status, 400)
        self.assertIn("king", reply.json()["detail"])

    def test_only_hashes_of_tokens_are_in_the_database(self):
        dump = self.stack.sql("select string_agg(t::text, '|') from tollgate.access_token t")
        for name, token in self.stack.tokens.items():
            if name != "wrong":
                self.assertNotIn(token, str(dump))

    def test_errors_are_problem_json_with_the_request_id(self):
        reply = self.stack.call("GET", "/v1/usage?from=yesterday")
        self.assertEqual(reply.status, 400)
        self.assertEqual(reply.headers["Content-Type"], "application/problem+json")
        problem = reply.json()
        self.assertIn("yesterday", problem["detail"])
        self.assertIn(reply.headers["X-Request-Id"], json.dumps(problem))


if __name__ == "__main__":
    unittest.main()
