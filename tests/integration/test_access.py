"""Who may use which door: every route is walked with every role, with no token and with a wrong one."""

# also: san

import json
import unittest

from tests.support.stack import Stack

POLICY = """
version: 1
cluster: test
tenants:
  - {name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}
  - {name: globex, workspaces: [{name: research, rules: [{namespace: globex}]}]}
nodes: [{name: n1, shared: true}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""

ROLES = ["admin", "billing", "tenant-admin", "developer", "viewer", "node", "scheduler"]
TENANT = {"tenant-admin", "developer", "viewer"}
MONEY = {"admin", "billing"}
READ = MONEY | TENANT
OPEN = None

# method, path, who may, what body
ROUTES = [
    ("GET", "/healthz", OPEN),
    ("GET", "/readyz", OPEN),
    ("GET", "/metrics", OPEN),
    ("POST", "/v1/ingest", {"node"}),
    ("PUT", "/v1/policy", {"admin"}),
    ("GET", "/v1/policy", MONEY),
    ("POST", "/v1/tokens", {"admin"}),
    ("GET", "/v1/usage", READ),
    ("GET", "/v1/conservation", MONEY),
    ("GET", "/v1/reports/current.csv", READ),
    ("GET", "/v1/reports/current.json", READ),
    ("GET", "/v1/tenants", READ),
    ("GET", "/v1/workspaces", READ),
    ("GET", "/v1/nodes", MONEY),
    ("GET", "/v1/periods", READ),
]


class Access(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack())
        cls.stack.apply(POLICY)
        for role in ROLES[1:]:
            what = {"role": role}
            if role in TENANT:
                what["tenant"] = "acme"
            if role == "node":
                what["node"] = "n1"
            cls.stack.token(role, **what)
        cls.stack.tokens["wrong"] = "0" * 64

    def test_every_route_admits_exactly_the_roles_it_declares(self):
        for method, path, may in ROUTES:
            for role in ROLES:
                with self.subTest(method=method, path=path, role=role):
                    body = b"" if method in ("PUT", "POST") else None
                    status = self.stack.call(method, path, body, role=role).status
                    if may is None or role in may:
                        self.assertNotIn(status, (401, 403), "an admitted role was turned away")
                    else:
                        self.assertEqual(status, 403)

    def test_without_a_token_every_guarded_route_answers_401(self):
        for method, path, may in ROUTES:
            with self.subTest(method=method, path=path):
                reply = self.stack.call(method, path, b"" if method != "GET" else None, role=None)
                self.assertEqual(reply.status == 401, may is not None)

    def test_an_unknown_token_is_turned_away_also_at_open_doors(self):
        for method, path, _ in ROUTES:
            if path == "/healthz":
                continue  # answered before anything is looked up
            with self.subTest(method=method, path=path):
                self.assertEqual(self.stack.call(method, path, b"" if method != "GET" else None, role="wrong").status, 401)

    def test_a_tenant_never_learns_that_another_exists(self):
        for path in ("/v1/usage", "/v1/reports/current.csv", "/v1/tenants", "/v1/workspaces", "/v1/periods"):
            with self.subTest(path=path):
                other = self.stack.call("GET", path + "?tenant=globex", role="viewer")
                nobody = self.stack.call("GET", path + "?tenant=nobody", role="viewer")
                self.assertEqual((other.status, nobody.status), (404, 404))
                mine = self.stack.call("GET", path, role="viewer")
                self.assertNotIn(b"globex", mine.body)

    def test_a_token_for_a_tenant_that_does_not_exist_is_refused(self):
        reply = self.stack.call("POST", "/v1/tokens", json.dumps({"role": "viewer", "tenant": "nobody"}).encode())
        self.assertIn(reply.status, (400, 404))
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
