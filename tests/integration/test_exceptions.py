"""Exceptions: asked for with a reason and an end, agreed to by a rule or a person, revoked, ended, and all of it in the audit log."""

# instead: san

import json
import unittest

from tests.support.daemons.stack import Stack, wait_for

POLICY = """
version: 1
cluster: test
tenants:
  - name: acme
    maximum: {H100-80GB: 6}
    auto_approve: {max: 2, for: 24h}
    workspaces: [{name: training, rules: [{namespace: acme}]}, {name: batch, rules: [{namespace: batch}]}]
  - {name: globex, workspaces: [{name: research, rules: [{namespace: globex}]}]}
nodes:
  - {name: n1, shared: true, model: H100-80GB, gpus: 8}
  - {name: n2, shared: true, model: A100-80GB, gpus: 1}
  - {name: n3, shared: true, model: L4, gpus: 1}
  - {name: n4, shared: true, model: B200, gpus: 1}
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""
WHAT = {"workspace": "acme/training", "gpu_model": "H100-80GB", "gpus": 1, "until": "8h", "reason": "a deadline"}


class Exceptions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # what the quota log takes is for the test that says so
        cls.stack = s = cls.enterClassContext(Stack(options=["--rollup-interval", "200ms", "--quota-tick", "1m"]))
        s.apply(POLICY)
        for name, role, tenant in (("boss", "tenant-admin", "acme"), ("dev", "developer", "acme"), ("dev 2", "developer", "acme"), ("other", "tenant-admin", "globex"), ("viewer", "viewer", "globex")):
            s.token(name, role=role, tenant=tenant)

    def tearDown(self):
        # room for the next test
        for (i,) in self.stack.sql("select id from exception where status in ('requested', 'approved')"):
            self.decide("admin", {"id": i}, "revoke")

    def ask(self, by, status=201, **what):
        reply = self.stack.call("POST", "/v1/exceptions", json.dumps({**WHAT, **what}).encode(), role=by)
        self.assertEqual(reply.status, status, reply.text())
        return reply.json()

    def decide(self, by, row, verb, status=200, why="because"):
        reply = self.stack.call("POST", f"/v1/exceptions/{row['id']}/{verb}", json.dumps({"reason": why}).encode(), role=by)
        self.assertEqual(reply.status, status, reply.text())
        return reply.json()

    def entries(self, row):
        return [(e["action"], e["actor"].split(" #")[0], e["tenant"], e["reason"]) for e in reversed(self.stack.get(f"/v1/audit?subject=exception+{row['id']}").json()["entries"])]

    def events(self):
        return self.stack.sql("select id, status from exception where (status = 'approved' and begun_seq is null) or (status = 'revoked' and begun_seq is not null and ended_seq is null)")

    def test_within_the_tenants_rule_nobody_has_to_agree_until_the_rule_is_used_up(self):
        first = self.ask("dev")
        self.assertEqual((first["status"], first["rule"], first["running"], first["gpus"], first["units"]), ("approved", "auto_approve", True, "1", 5040))
        self.assertEqual(self.ask("dev", workspace="batch")["status"], "approved")
        self.assertEqual(self.ask("dev")["status"], "requested")
        self.assertEqual(self.ask("dev", gpu_model="A100-80GB", gpus="3/7")["status"], "approved")
        self.assertEqual(self.ask("dev", **{"from": "9h"})["status"], "approved", "the first two are over by then")
        self.assertEqual(self.ask("dev", **{"from": "9h"}, until="25h", gpu_model="L4")["status"], "requested", "for too long")
        self.assertEqual(self.ask("dev", kind="reserved", gpu_model="B200")["status"], "requested", "a reservation is promised by people")
        self.assertEqual(self.entries(first), [("exception.request", "developer acme", "acme", "a deadline")])

    def test_what_a_person_has_to_agree_to(self):
        five = self.ask("dev", gpus=5)
        self.decide("dev", five, "approve", 403)
        self.decide("other", five, "approve", 404)
        row = self.decide("boss", five, "approve", why="for this week")
        self.assertEqual((row["status"], row["rule"], row["decided_why"]), ("approved", "tenant-admin", "for this week"))
        self.assertEqual(self.decide("boss", five, "approve")["decided"], row["decided"], "again changes nothing")
        self.assertEqual(self.entries(five), [("exception.request", "developer acme", "acme", "a deadline"), ("exception.approve", "tenant-admin acme", "acme", "for this week")])
        two = self.ask("dev", gpus=2, until="25h")
        self.assertIn("maximum", self.decide("boss", two, "approve", 403)["detail"])
        self.assertEqual(self.decide("admin", two, "approve")["rule"], "administrator")
        promised = self.ask("boss", kind="reserved")
        self.assertIn("administrator", self.decide("boss", promised, "approve", 403)["detail"])
        self.assertEqual(self.decide("admin", promised, "refuse")["status"], "refused")
        self.decide("admin", promised, "approve", 409)
        self.assertEqual(self.ask("admin", gpus=100, kind="reserved")["rule"], "administrator")

    def test_what_is_agreed_to_can_be_revoked_and_who_asked_can_take_it_back(self):
        row = self.ask("dev")
        self.decide("dev 2", row, "revoke", 403)
        gone = self.decide("dev", row, "revoke", why="done early")
        self.assertEqual((gone["status"], gone["running"], gone["over_why"]), ("revoked", False, "done early"))
        self.decide("boss", row, "approve", 409)
        [_, entry] = self.stack.get(f"/v1/audit?subject=exception+{row['id']}").json()["entries"][::-1]
        self.assertEqual((entry["before"]["status"], entry["after"]["status"], entry["reason"]), ("approved", "revoked", "done early"))

    def test_an_exception_ends_by_itself_and_so_does_a_request_that_nobody_decided(self):
        agreed, asked = self.ask("dev"), self.ask("dev", gpus=5)
        # a day is not waited for
        self.stack.sql("set session_replication_role = replica; update exception set effective = tstzrange(now() - interval '2 hours', now() - interval '1 hour') where status in ('requested', 'approved')")
        for row, why in ((agreed, ""), (asked, "nobody decided")):
            ended = self.wait_ended(row)
            self.assertEqual((ended["running"], ended["over_by"], ended["over_why"]), (False, "tollgate-aggregator", why))
            self.assertEqual(self.entries(row)[-1], ("exception.end", "tollgate-aggregator", "acme", why))
            self.decide("admin", row, "revoke", 409)

    def wait_ended(self, row):
        def ended():
            return [x for x in self.stack.get("/v1/exceptions?limit=1000&status=ended").json()["exceptions"] if x["id"] == row["id"]]

        return wait_for(f"the end of exception {row['id']}", ended, self.stack.aggregator)[0]

    def test_the_quota_log_is_handed_what_began_and_what_was_revoked(self):
        row = self.ask("dev")
        self.assertIn([str(row["id"]), "approved"], self.events())
        self.stack.sql(f"update exception set begun_seq = 7 where id = {row['id']}")
        self.assertNotIn(str(row["id"]), [i for i, _ in self.events()])
        self.decide("boss", row, "revoke")
        self.assertIn([str(row["id"]), "revoked"], self.events())
        never = self.ask("dev")
        self.decide("boss", never, "revoke")
        self.assertNotIn(str(never["id"]), [i for i, _ in self.events()], "what was never in the log is not taken out")

    def test_a_tenant_sees_and_asks_for_its_own_only(self):
        mine = self.ask("dev")
        self.assertEqual(self.stack.get("/v1/exceptions?limit=1000", "viewer").json()["exceptions"], [])
        self.assertIn(mine["id"], [x["id"] for x in self.stack.get("/v1/exceptions?workspace=training&status=approved", "boss").json()["exceptions"]])
        self.assertEqual(self.stack.call("GET", "/v1/exceptions?tenant=acme", role="other").status, 404)
        self.assertIn("there is no workspace", self.ask("other", 404)["detail"])
        self.decide("other", mine, "revoke", 404)

    def test_what_makes_no_sense_is_refused_and_named(self):
        for what, status, word in (({"gpus": 0}, 400, "gpus"), ({"gpus": "none"}, 400, "gpus"), ({"gpus": [1]}, 400, "gpus"), ({"gpus": "2x9g.99gb"}, 400, "gpus"),
                                   ({"until": "soon"}, 400, "until"), ({"until": "2001-01-01T00:00:00Z"}, 400, "until"), ({"until": "400d"}, 400, "until"),
                                   ({"kind": "more"}, 400, "kind"), ({"reason": ""}, 400, "reason"), ({"gpu_model": ""}, 400, "gpu_model"), ({"shared": 1}, 400, "shared"),
                                   ({"workspace": "acme/nowhere"}, 404, "nowhere"), ({"cluster": "mars"}, 404, "mars"), ({"odd": 1}, 400, "odd")):  # fmt: skip
            with self.subTest(what=what):
                self.assertIn(word, self.ask("dev", status, **what)["detail"])
        self.decide("admin", {"id": 999999}, "approve", 404)
        self.decide("admin", {"id": 1}, "bless", 404)

    def test_rows_cannot_be_made_to_say_something_else_by_sql(self):
        row = self.ask("dev")
        self.decide("boss", row, "revoke")
        for change in ("update exception set units = 9", f"update exception set status = 'approved' where id = {row['id']}", "delete from exception", "truncate exception"):
            with self.subTest(change=change), self.assertRaisesRegex(RuntimeError, "stays over"):
                self.stack.sql(change)

    def test_from_the_command_line(self):
        done = self.stack.cli("exception", "request", "training", "--gpus", "3", "--gpu-model", "H100-80GB", "--until", "8h", "--reason", "a deadline", "-o", "json", role="dev")
        self.assertEqual(done.returncode, 0, done.stderr)
        row = json.loads(done.stdout)
        self.assertEqual(row["status"], "requested")
        done = self.stack.cli("exception", "approve", str(row["id"]), "--reason", "fine", role="boss")
        self.assertIn("approved", done.stdout)
        done = self.stack.cli("exception", "list", "--status", "approved", role="boss")
        self.assertIn("a deadline", done.stdout)
        self.assertEqual(self.stack.cli("exception", "revoke", str(row["id"]), "--reason", "x", role="dev").returncode, 0)
        self.assertEqual(self.stack.cli("exception", "refuse", str(row["id"]), "--reason", "x", role="boss").returncode, 1)
        self.assertEqual(self.stack.cli("exception", "approve", "first", "--reason", "x").returncode, 2)


if __name__ == "__main__":
    unittest.main()
