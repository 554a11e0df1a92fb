"""The command line as a person or a script uses it: policy files, tables, exit codes."""
# memcheck

import csv
import io
import json
import os
import subprocess
import unittest

from tests.support.daemons.stack import ROOT, Stack, free_port, program

POLICY = """version: 1
cluster: test
tenants:
  - name: acme
    cost_center: "0042"
    workspaces:
      - {name: training, rules: [{namespace: acme}]}
nodes: [{name: n1, tenant: acme}]
prices: {version: "1", currency: EUR, items: [{gpu_model: H100-80GB, price: "3.00"}]}
"""


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.stack = self.enterContext(Stack())

    def file(self, text, name="policy.yaml"):
        path = os.path.join(self.stack.dir, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def run_cli(self, *args, code=0):
        done = self.stack.cli(*args)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def test_a_dry_run_shows_the_differences_and_changes_nothing(self):
        path = self.file(POLICY)
        shown = self.run_cli("apply", "-f", path, "--dry-run")
        for line in ("tenant acme", "workspace acme/training", "node n1", "H100-80GB"):
            self.assertIn(line, shown)
        self.assertIn("dry run", shown)
        self.assertEqual(self.stack.sql("select count(*) from tollgate.policy_version"), [["0"]])
        self.assertEqual(self.stack.sql("select count(*) from tollgate.tenant where name = 'acme'"), [["0"]])

    def test_applying_twice_changes_once_and_get_returns_the_same_document(self):
        path = self.file(POLICY)
        first = self.run_cli("apply", "-f", path)
        self.assertIn("applied", first)
        self.assertIn("no changes", self.run_cli("apply", "-f", path))
        self.assertEqual(self.run_cli("get", "policy"), POLICY)
        changed = self.run_cli("apply", "-f", self.file(POLICY.replace("3.00", "3.20").replace('version: "1"', 'version: "2"')), "--dry-run")
        self.assertRegex(changed, r"3\.00.*3\.20")
        self.assertNotIn("workspace", changed)

    def test_a_bad_policy_is_refused_whole_with_file_line_and_field(self):
        for text, words in (
            (POLICY.replace("namespace: acme", "namspace: acme"), ("policy.yaml:7", "namspace", "namespace")),
            (POLICY.replace("tenant: acme}", "tenant: nobody}"), ("policy.yaml:8", "nobody")),
            (POLICY.replace("EUR", "EURO"), ("policy.yaml:9", "EURO")),
            (POLICY.replace('"3.00"', '"-3.00"'), ("policy.yaml:9", "-3.00")),
            (POLICY + "effective: 2026-11-16T06:30:00Z\n", ("06:30", "06:00", "07:00")),
        ):
            with self.subTest(words=words):
                said = self.run_cli("apply", "-f", self.file(text), code=1)
                for word in words:
                    self.assertIn(word, said)
        self.assertEqual(self.stack.sql("select count(*) from tollgate.tenant where name = 'acme'"), [["0"]])

    def test_lists_are_tables_json_and_csv(self):
        self.run_cli("apply", "-f", self.file(POLICY))
        table = self.run_cli("get", "workspaces")
        self.assertTrue(table.startswith("TENANT"), table)
        self.assertIn("training", table)
        rows = json.loads(self.run_cli("get", "workspaces", "-o", "json"))
        self.assertIn("acme", json.dumps(rows))
        read = list(csv.DictReader(io.StringIO(self.run_cli("get", "tenants", "-o", "csv"))))
        self.assertIn("0042", [v for row in read for v in row.values()], "a number that is a name keeps its zeros")

    def test_exit_codes_tell_a_refusal_from_a_wrong_use_and_from_silence(self):
        self.run_cli("report", "1999-01", code=1)
        self.run_cli("report", "next month", code=2)
        self.run_cli("report", code=2)
        self.run_cli("usage", "--sinse", "1d", code=2)
        self.run_cli("dance", code=2)
        self.run_cli("get", "dragons", code=2)
        self.run_cli("usage", "--since", "7", code=2)
        self.run_cli("usage", "--by", "tenant,colour", code=2)
        env = {**os.environ, "TOLLGATE_URL": f"http://127.0.0.1:{free_port()}"}
        done = subprocess.run([program("tollgate"), "usage"], capture_output=True, text=True, env=env)
        self.assertEqual(done.returncode, 3, done.stderr)

    def test_help_names_every_command_and_its_options(self):
        text = self.run_cli("--help")
        for command in ("apply", "report", "usage", "top", "conservation", "verify", "get", "token create", "token list", "token revoke",
                        "token whoami", "node join-token", "node join-tokens", "node revoke-join-token", "audit", "doctor", "completion"):  # fmt: skip
            self.assertIn(command, text)
            self.assertIn("--url", self.run_cli(*command.split(), "--help"))

    def test_the_demo_policy_applies(self):
        self.assertIn("applied", self.run_cli("apply", "-f", os.path.join(ROOT, "deploy", "demo", "policy.yaml")))


class Ranges(unittest.TestCase):
    """Which time is asked for, in a ledger that bills in Berlin."""

    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack(zone="Europe/Berlin"))
        cls.stack.sql("set search_path = tollgate; select make_periods(now() - interval '40 days', now())")
        cls.months = {m: (a, b) for m, a, b in cls.stack.sql(
            "select month, tollgate.rfc3339(starts_at), tollgate.rfc3339(ends_at) from tollgate.period")}  # fmt: skip
        cls.this = cls.stack.sql("select to_char(now() at time zone 'Europe/Berlin', 'YYYY-MM')")[0][0]
        cls.last = cls.stack.sql("select to_char((now() at time zone 'Europe/Berlin') - interval '1 month', 'YYYY-MM')")[0][0]

    def asked(self, *args):
        done = self.stack.cli(*args, "-o", "json")
        self.assertEqual(done.returncode, 4 if args[0] == "verify" else 0, done.stderr)  # there is nothing to prove
        reply = json.loads(done.stdout)
        return reply["from"], reply["to"]

    def test_months_are_those_of_the_ledger(self):
        for command in ("usage", "conservation", "verify"):
            with self.subTest(command=command):
                self.assertEqual(self.asked(command, "--last-month"), self.months[self.last])
                self.assertEqual(self.asked(command, "--this-month")[0], self.months[self.this][0])

    def test_a_day_begins_where_the_ledger_bills(self):
        self.assertEqual(self.asked("usage", "--from", "2026-03-29", "--to", "2026-03-30"), ("2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"))
        self.assertEqual(self.asked("usage", "--from", "2026-07-01T00:00:00Z", "--to", "2026-07-02"), ("2026-07-01T00:00:00Z", "2026-07-01T22:00:00Z"))

    def test_a_report_of_the_last_month_is_that_months(self):
        for words in (("--last-month",), ("previous",), (self.last,)):
            with self.subTest(words=words):
                done = self.stack.cli("report", *words, "-o", "json")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads(done.stdout)["period"], self.last)
        done = self.stack.cli("report", "--this-month", "--out", "csv")
        self.assertTrue(done.stdout.startswith("period_start,"), done.stderr)

    def test_contradictions_are_a_wrong_use(self):
        for words in (("usage", "--since", "7d", "--last-month"), ("usage", "--from", "2026-02-31"), ("usage", "--to", "yesterday"),
                      ("report",), ("report", "2026-10", "--last-month"), ("report", "current", "--format", "csv", "-o", "json"),
                      ("report", "current", "-o", "table", "-O", "x")):  # fmt: skip
            with self.subTest(words=words):
                done = self.stack.cli(*words)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(self.stack.cli("usage", "--from", "2026-07-02", "--to", "2026-07-01").returncode, 1)


class Access(unittest.TestCase):
    """Tokens and the audit, from the command line."""

    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack())
        cls.stack.apply(POLICY)
        cls.stack.sql("set search_path = tollgate; select make_periods(now(), now())")

    def run_json(self, *args, role="admin"):
        done = self.stack.cli(*args, "-o", "json", role=role)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_token_is_made_used_listed_and_revoked(self):
        done = self.stack.cli("token", "create", "--role", "viewer", "--tenant", "acme", "--expires", "30d", "--description", "for a wall")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.stack.tokens["wall"] = done.stdout.strip()
        self.assertEqual(self.stack.cli("usage", role="wall").returncode, 0)
        row = next(r for r in self.run_json("token", "list", "--tenant", "acme") if r["description"] == "for a wall")
        self.assertEqual((row["role"], row["tenant"], row["revoked"]), ("viewer", "acme", None))
        self.assertIn("for a wall", self.stack.cli("token", "list").stdout)
        self.assertNotIn(self.stack.tokens["wall"], self.stack.cli("token", "list", "-o", "json").stdout)
        self.assertEqual(self.run_json("token", "revoke", str(row["id"]))["status"], "revoked")
        refused = self.stack.cli("usage", role="wall")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("revoked", refused.stderr)
        self.assertNotIn(row["id"], [r["id"] for r in self.run_json("token", "list", "--status", "active")])

    def test_wrong_uses_are_told_before_anything_is_asked(self):
        for words in (("token", "revoke", "x"), ("token", "create"), ("token", "create", "--role", "king"),
                      ("token", "create", "--role", "admin", "--expires", "soon"), ("node", "join-token", "--expires", "7"),
                      ("audit", "--limit", "-1"), ("audit", "--action", "dance")):  # fmt: skip
            with self.subTest(words=words):
                self.assertEqual(self.stack.cli(*words).returncode, 2)
        self.assertEqual(self.stack.cli("token", "revoke", "999999").returncode, 1)

    def test_a_node_gets_a_join_token(self):
        reply = self.run_json("node", "join-token", "--node", "n1", "--expires", "2h")
        self.assertEqual(reply["node"], "n1")
        self.assertEqual(self.stack.cli("node", "join-token").stdout.count("\n"), 1, "the token alone on a line")

    def test_join_tokens_are_listed_and_revoked(self):
        made = self.run_json("node", "join-token", "--node", "n7")
        row = next(j for j in self.run_json("node", "join-tokens", "--status", "active") if j["id"] == made["id"])
        self.assertEqual((row["node"], row["status"]), ("n7", "active"))
        self.assertNotIn(made["join_token"], self.stack.cli("node", "join-tokens", "-o", "csv").stdout)
        self.assertEqual(self.run_json("node", "revoke-join-token", str(made["id"]))["status"], "revoked")
        self.assertNotIn(made["id"], [j["id"] for j in self.run_json("node", "join-tokens", "--status", "active")])
        self.assertEqual(self.stack.cli("node", "revoke-join-token", "999999").returncode, 1)
        self.assertEqual(self.stack.cli("node", "revoke-join-token", "n7").returncode, 2)

    def test_a_token_says_whose_it_is(self):
        row = self.run_json("token", "whoami")
        self.assertEqual((row["role"], row["tenant"], row["node"], row["status"]), ("admin", None, None, "active"))
        self.assertIn("admin", self.stack.cli("token", "whoami").stdout)

    def test_the_audit_comes_in_pages_and_whole(self):
        for i in range(5):
            self.stack.cli("token", "create", "--role", "billing", "--description", f"audit {i}")
        whole = self.run_json("audit", "--limit", "0")
        ids = [e["id"] for e in whole]
        self.assertEqual(ids, sorted(ids, reverse=True))
        self.assertEqual([e["id"] for e in self.run_json("audit", "--limit", "3")], ids[:3])
        self.assertEqual([e["id"] for e in self.run_json("audit", "--limit", "2", "--before", str(ids[2]))], ids[3:5])
        self.assertEqual({e["action"] for e in self.run_json("audit", "--action", "policy.apply")}, {"policy.apply"})
        rows = list(csv.DictReader(io.StringIO(self.stack.cli("audit", "-o", "csv").stdout)))
        self.assertEqual(json.loads(rows[0]["after"])["role"], whole[0]["after"]["role"], "an object in a row is its JSON")

    def test_every_command_that_shows_something_shows_it_in_three_ways(self):
        path = os.path.join(self.stack.dir, "same.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(POLICY)
        for words in (("usage",), ("conservation",), ("verify",), ("get", "nodes"), ("get", "policy"), ("get", "periods"), ("top", "--count", "1"),
                      ("apply", "-f", path), ("token", "list"), ("audit",), ("report", "current"), ("doctor", "--server")):  # fmt: skip
            with self.subTest(words=words):
                for kind in ("table", "json", "csv"):
                    done = self.stack.cli(*words, "-o", kind)
                    self.assertIn(done.returncode, {"doctor": (0, 1), "verify": (4,)}.get(words[0], (0,)), done.stderr)  # the ledger is empty: nothing to prove
                    if kind == "json":
                        json.loads(done.stdout)
                    self.assertNotIn("\x1b", done.stdout)


if __name__ == "__main__":
    unittest.main()
