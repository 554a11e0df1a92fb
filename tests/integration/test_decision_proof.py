"""Rows of decisions are what the quota log says of them: what never changes is refused, what does change is proved by verify."""

import json
import os
import subprocess
import unittest

from tests.integration.test_decision_workload import SHORT, Asked

OTHERS = "(select verdict_seq, verdict_at, verdict_bytes from decision where request_id = 'g2')"


class Rows(Asked):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for tenant, workspace in (("acme", "prod"), ("globex", "research")):
            for i in range(3):
                body = {"request_id": f"{tenant[0]}{i}", "workspace": workspace, "gpu_model": SHORT, "gpus": 2}
                reply = cls.stack.call("POST", "/v1/decisions", json.dumps(body).encode(), tenant)
                assert reply.status == 200, reply.text()

    def write(self, sql):
        """With the login of the daemon; returns what the ledger says against it."""
        s = self.stack
        argv = [os.path.join(s.pg.bin, "psql"), "-X", "-q", "-d", s.conninfo("tollgate"), "-c", "set search_path = tollgate", "-c", sql]
        return subprocess.run(argv, capture_output=True, text=True).stderr

    def found(self):
        done = self.stack.cli("-o", "json", "verify")
        return {(d["kind"], d["what"]) for d in json.loads(done.stdout)["differences"]}

    def test_what_was_asked_never_changes(self):
        for change in (
            "submitted_ns = submitted_ns - 1",
            "tenant_id = (select id from tenant where name = 'globex')",
            "workspace_id = (select id from workspace where name = 'research')",
            "asked_by = 'somebody'",
            "body = '{}'",
            "verdict_seq = verdict_seq - 1",
        ):
            with self.subTest(change=change):
                self.assertIn("ERROR", self.write(f"update decision set {change} where request_id = 'a0'"))

    def test_a_row_that_is_not_what_the_log_says_is_named(self):
        self.assertEqual(self.found(), set())
        for request, change, columns in (
            ("acme/a0", "admitted_ns = admitted_ns + 3600000000000", {"admitted_ns"}),
            ("acme/a0", "rule = 'borrow'", {"rule"}),
            ("acme/a1", "would = 'queue'", {"would"}),
            ("acme/a1", "warn = not warn", {"warn"}),
            ("globex/g0", "verdict_at = verdict_at + 1", {"verdict_at"}),
            ("globex/g0", "verdict_bytes = -1", {"verdict_at"}),
            ("globex/g0", "status = 'ended', ended_ns = changed_ns, ended_why = 'returned'", {"status"}),
            ("acme/a2", f"(verdict_seq, verdict_at, verdict_bytes) = {OTHERS}, changed_seq = 1000000", {"verdict_seq", "verdict_at"}),
            ("acme/a0", "verdict_seq = 1000000, changed_seq = 1000000", {"verdict_seq"}),
        ):
            with self.subTest(request=request, change=change):
                self.stack.sql(f"create table public.kept as select * from decision where key = '{request}'")
                self.assertEqual(self.write(f"update decision set {change} where key = '{request}'"), "")
                found = self.found()
                if request == "acme/a2":
                    reply = self.stack.call("GET", "/v1/decisions/a2", role="acme")
                    self.assertEqual(reply.status, 500, reply.text())
                self.stack.sql(f"""set session_replication_role = replica; update decision d set (admitted_ns, rule, would, warn, verdict_seq, verdict_at, verdict_bytes, changed_seq, status,
                    ended_ns, ended_why) = (k.admitted_ns, k.rule, k.would, k.warn, k.verdict_seq, k.verdict_at, k.verdict_bytes, k.changed_seq, k.status, k.ended_ns, k.ended_why)
                    from public.kept k where k.key = d.key; drop table public.kept""")
                self.assertEqual(found, {("quota-decision", f"decision {request}, {column}") for column in columns})
        self.assertEqual(self.found(), set())


if __name__ == "__main__":
    unittest.main()
