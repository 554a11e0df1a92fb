"""What one tenant, or one token, can do to everybody else's decisions: nothing."""

import concurrent.futures
import json
import subprocess
import unittest

from tests.integration.test_decisions import OPTIONS, POLICY, SIZES, ask, free_units
from tests.support.locked import Session
from tests.support.quotanodes import Nodes
from tests.support.stack import Stack, program, wait_for

BOOK = "SELECT FROM tollgate.quota_book FOR UPDATE"


def known(options):
    """Those of these options that the program has: an older one fails by what it does, not by what it is called with."""
    text = subprocess.run([program("tollgate-aggregator"), "--help"], capture_output=True, text=True).stdout
    return [word for name, value in options.items() if name in text for word in (name, value)]


class Trust(unittest.TestCase):
    OPTIONS = {}

    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=[*OPTIONS, "--lease-confirm", "1h", "--lease-silence", "1h", *known(cls.OPTIONS)]))
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")
        s.token("acme", role="developer", tenant="acme")
        s.token("globex", role="developer", tenant="globex")
        cls.nodes = Nodes(s, SIZES)
        cls.nodes.speak()
        wait_for("12 GPUs in the book", lambda: free_units(s) == 12 * 5040, s.aggregator)

    def post(self, path, body=None, role="scheduler"):
        return self.stack.call("POST", path, json.dumps(body if body is not None else {}).encode(), role)

    def dry(self, body, role="scheduler"):
        return self.post("/v1/decisions?dry_run=1", body, role)

    def seq(self):
        return int(self.stack.sql("SELECT seq FROM tollgate.quota_book")[0][0])


class DryRuns(Trust):
    OPTIONS = {"--tenant-dry-runs": "8"}

    def test_they_are_answered_while_somebody_else_decides_and_decisions_are_committed_while_they_are_asked_for(self):
        with Session(self.stack.pg) as other:
            other.run("BEGIN")
            other.run(BOOK)
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                earnest = pool.submit(self.post, "/v1/decisions", ask("earnest", "acme/prod", 1))
                wait_for("a decision that waits for the book", lambda: self.stack.sql(
                    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%quota_book%'"), self.stack.aggregator)
                tried = list(pool.map(lambda i: self.dry(ask(f"dry-{i}", "acme/prod", 1), "acme"), range(8)))
                self.assertEqual({(r.status, r.json()["verdict"]["decision"]) for r in tried}, {(200, "admit")})
                self.assertFalse(earnest.done())
                self.assertEqual({r.json()["seq"] for r in tried}, {self.seq()})
                other.run("ROLLBACK")
                self.assertEqual(earnest.result().json()["status"], "admitted")

    def test_they_agree_with_what_is_then_decided_and_say_after_which_event(self):
        for i, (workspace, gpus) in enumerate([("acme/prod", 3), ("acme/dev", 9), ("globex/research", 2), ("globex/research", 2), ("acme/prod", 100), ("acme/nosuch", 1)]):
            body = ask(f"agree-{i}", workspace, gpus)
            said, before = self.dry(body).json(), self.seq()
            self.assertEqual(self.stack.call("GET", f"/v1/decisions/agree-{i}").status, 404)
            done = self.post("/v1/decisions", body).json()
            with self.subTest(workspace=workspace, gpus=gpus):
                for key in ("decision", "victims", "would", "owed", "pool"):
                    self.assertEqual(said["verdict"][key], done[key])
                self.assertLessEqual(said["seq"], before)
                self.assertGreaterEqual(self.dry(ask("after", "acme/prod", 1)).json()["seq"], done["seq"])

    def test_a_tenant_has_a_limited_number_of_them_open_and_another_tenant_is_not_touched(self):
        """The log cannot be read, so those that are open stay open."""
        with Session(self.stack.pg) as other, concurrent.futures.ThreadPoolExecutor(40) as pool:
            other.run("BEGIN")
            other.run("LOCK tollgate.quota_book IN ACCESS EXCLUSIVE MODE")
            greedy = [pool.submit(self.dry, ask(f"greedy-{i}", "acme/prod", 1), ("acme", "scheduler")[i % 2]) for i in range(12)]
            refused = [f.result() for _, f in zip(range(4), concurrent.futures.as_completed(greedy))]
            for r in refused:
                self.assertEqual((r.status, r.headers["Retry-After"]), (429, "1"), r.text())
                self.assertIn("tenant-dry-runs", r.json()["detail"])
                self.assertRegex(r.json()["detail"], r'"acme" has 8 .* 8$')
            modest = pool.submit(self.dry, ask("modest", "globex/research", 1), "globex")
            other.run("ROLLBACK")
            self.assertEqual(modest.result().status, 200)
            self.assertEqual(sorted(f.result().status for f in greedy), [200] * 8 + [429] * 4)
        self.assertEqual(self.dry(ask("again", "acme/prod", 1)).status, 200)

    def test_a_workspace_that_was_made_a_moment_ago_is_known(self):
        self.stack.apply(POLICY.replace("{name: lab,", "{name: fresh, enforce: on, rules: [{namespace: fresh}]}\n      - {name: lab,", 1))
        checks = self.dry(ask("fresh", "acme/fresh", 1)).json()["verdict"]["checks"]
        self.assertEqual([c["ok"] for c in checks if c["rule"] == "valid"], [True] * 3)


if __name__ == "__main__":
    unittest.main()
