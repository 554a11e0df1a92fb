"""The simulated day (tests/support/exporter/day.h) in a real ledger, after an aggregator that was gone for all of it: what the spool says is what PostgreSQL
says, to the unit-nanosecond, and the seams of kills and clock steps are unknown and clock_adjust, exactly. tests/unit/exporter/test_day.c compares the
spool with the truth of the scenario."""

import json
import os
import subprocess
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from tests.support.daemons.stack import ROOT, Stack, program, query

HOURS = 24
UNITS = 5040
STATES = ("used", "idle", "unmeasured", "unallocated", "stranded", "down")
NODES = ("gn1", "gn2")
POLICY = """
version: 1
cluster: test
tenants: [{name: acme, workspaces: [{name: all, rules: [{namespace: "*"}]}]}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""


def tool(*args):
    done = subprocess.run([program("tests/day_tool"), *map(str, args)], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise AssertionError(f"day_tool {args[0]}: {done.stderr}")
    return json.loads(done.stdout)


class Day(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack())
        s.apply(POLICY)
        cls.wall0 = int(time.time()) // 3600 * 3600 - (HOURS + 2) * 3600
        cls.spools = {node: os.path.join(s.dir, f"spool-{node}") for node in NODES}
        with ThreadPoolExecutor() as pool:
            books = pool.map(lambda node: tool("play", node, cls.spools[node], cls.wall0, HOURS), NODES)
            cls.books = dict(zip(NODES, books))
        cls.sent = {node: cls.push(node) for node in NODES}

    @classmethod
    def push(cls, node):
        return tool("push", node, cls.spools[node], cls.stack.url, cls.stack.node_token(node))

    def rows(self, columns, group):
        """Sums of the ledger over the hours of the day, from its one source. Behind them the node is silent, and unknown."""
        return self.stack.sql(
            f"select {group}, {columns} from usage_rows(to_timestamp({self.wall0}), to_timestamp({self.wall0 + HOURS * 3600})) u "
            "join device d on d.id = u.device_id join gpu g on g.id = d.gpu_id join node n on n.id = u.node_id "
            f"left join holder h on h.id = u.holder_id group by {group}"
        )

    def test_everything_is_sent_and_taken(self):
        self.assertEqual(self.sent, {node: {"unsent": 0, "refused": 0} for node in NODES})
        self.assertEqual(self.stack.sql("select count(*) from ingest_batch where status <> 'accepted'"), [["0"]])
        self.assertEqual(
            dict(self.stack.sql("select n.name, count(*) from ingest_batch b join stream s on s.id = b.stream_id join node n on n.id = s.node_id group by 1")),
            {node: str(self.books[node]["batches"]) for node in NODES},
        )

    def test_every_state_of_every_gpu_is_in_the_ledger_to_the_unit_nanosecond(self):
        columns = ", ".join(f"sum(u.{s})" for s in (*STATES, "over", "unknown", "clock_adjust"))
        rows = {(r[0], r[1]): [int(v) for v in r[2:]] for r in self.rows(columns, "n.name, g.uuid")}
        for node, books in self.books.items():
            for uuid, sums in books["gpus"].items():
                *states, over, unknown, clock_adjust = rows.pop((node, uuid))
                self.assertEqual(states, [int(sums[s]) for s in STATES], f"{node} {uuid}")
                self.assertEqual(over, int(sums["over"]))
                self.assertEqual(unknown, int(sums["unknown"]) + UNITS * books["gap_ns"], "kills and the step forward are unknown")
                self.assertEqual(clock_adjust, UNITS * books["overlap_ns"], "the step back is clock_adjust")
        self.assertEqual(rows, {}, "GPUs that were never there")

    def test_the_seams_of_the_day_are_what_the_story_says(self):
        # three kills: 43 s, 1 s and 10 min 59 s from the last whole interval to the next exporter's first tick; an hour forward, an hour back
        self.assertEqual(self.books["gn1"]["gap_ns"], (43 + 1 + 659 + 3600) * 10**9)
        self.assertEqual(self.books["gn1"]["overlap_ns"], 3600 * 10**9)
        self.assertEqual((self.books["gn2"]["gap_ns"], self.books["gn2"]["overlap_ns"]), (0, 0))

    def test_every_workload_has_what_the_spool_says_it_held_and_used(self):
        group = "g.uuid, case h.kind when 1 then 'pod/' || h.namespace || '/' || h.pod when 2 then 'slurm/' || h.slurm_job || '/' || h.uid else 'user/' || h.uid end"
        rows = {(r[0], r[1]): (int(r[2]), int(r[3])) for r in self.rows("sum(u.used + u.idle + u.unmeasured), sum(u.used)", group) if r[1]}
        spooled = {(w["gpu"], w["workload"]): (int(w["allocated"]), int(w["used"])) for b in self.books.values() for w in b["workloads"]}
        self.assertEqual(rows, spooled)

    def test_conservation_finds_no_difference(self):
        reply = self.stack.get("/v1/conservation" + query(**{"from": self.instant(0), "to": self.instant(HOURS)})).json()
        self.assertEqual(len(reply["gpus"]), sum(len(b["gpus"]) for b in self.books.values()))
        for gpu in reply["gpus"]:
            self.assertEqual(int(gpu["difference_unit_ns"]), 0, gpu)

    def test_the_evidence_says_the_same_as_the_ledger(self):
        done = self.stack.cli("verify", "--from", self.instant(0), "--to", self.instant(HOURS), "-o", "json")
        reply = json.loads(done.stdout)
        self.assertEqual((done.returncode, reply["differences"], reply["nodes"]), (0, [], len(NODES)), done.stderr)
        self.assertEqual([[str(reply["batches"])]], self.stack.sql("select count(*) from ingest_batch"))

    def instant(self, hours):
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.wall0 + hours * 3600))


if __name__ == "__main__":
    unittest.main()
