"""The command line as a person or a script uses it: policy files, tables, exit codes."""

import csv
import io
import json
import os
import subprocess
import unittest

from tests.support.stack import ROOT, Stack, free_port, program

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
        for command in ("apply", "report", "usage", "top", "conservation", "get", "token create"):
            self.assertIn(command, text)
            self.assertIn("--url", self.run_cli(*command.split(), "--help"))

    def test_the_demo_policy_applies(self):
        self.assertIn("applied", self.run_cli("apply", "-f", os.path.join(ROOT, "deploy", "demo", "policy.yaml")))


if __name__ == "__main__":
    unittest.main()
