"""A real Slurm runs jobs that register on simulated GPUs: the ledger's GPU-seconds per account are those of the jobs' start and end."""

import os
import shutil
import tempfile
import unittest

from tests.support.daemons.stack import BUILD, Process, Stack, answers, free_port, program, wait_for
from tests.support.scheduler.slurm import Slurm

GPUS = 4
NODES = ["gn1", "gn2"]
TICK_S = 0.25
# A job is seen at the first tick after its prolog and until the first tick after its epilog; a tick that comes later than two is
# a missed one, and its time is unknown.
SLACK_S = 4 * TICK_S

POLICY = """
version: 1
cluster: main
tenants:
  - name: science
    workspaces:
      - {name: physics, rules: [{slurm_account: physics}]}
      - {name: chemistry, rules: [{slurm_account: "chem*"}]}
nodes:
  - {name: gn1, shared: true}
  - {name: gn2, shared: true}
"""

# Registers its GPUs with the simulator of its node, as a CUDA context would with the driver, and stays for a while.
ON_NODE = """#!/bin/sh
at=$TOLLGATE_TEST_DIR/$SLURMD_NODENAME/live
printf '{pid: %d, gpu: [%s], sm: 80, memory_mib: 1024}\\n' $$ "$CUDA_VISIBLE_DEVICES" >"$at/.$$" && mv "$at/.$$" "$at/$$"
exec sleep "$1"
"""


class Node(Process):
    """An exporter whose simulated GPUs are used by real processes: those of Slurm's jobs."""

    def __init__(self, stack, directory, name):
        at = os.path.join(directory, name)
        for sub in ("live", "slurm", "spool", "pods"):
            os.makedirs(os.path.join(at, sub))
        scenario = os.path.join(at, "scenario.yaml")
        with open(scenario, "w", encoding="utf-8") as f:
            f.write(f"{{name: {name}, gpus: [{{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, count: {GPUS}}}]}}\n")
        self.name, self.slurm_dir, port = name, os.path.join(at, "slurm"), free_port()
        argv = [program("tollgate-exporter"), "--node", name, "--listen", f"127.0.0.1:{port}",
                "--nvml-library", os.path.join(BUILD, "sim", "libnvidia-ml.so.1"), "--sample-interval", f"{int(TICK_S * 1000)}ms",
                "--interval", "1s", "--pods-root", os.path.join(at, "pods"), "--slurm-map-dir", self.slurm_dir,
                "--slurm-map-uid", str(os.geteuid()), "--spool-dir", os.path.join(at, "spool"),
                "--aggregator-url", stack.url, "--token-file", stack.node_token(name)]  # fmt: skip
        super().__init__(argv, os.path.join(at, "log"), {"TOLLGATE_SIM_SCENARIO": scenario, "TOLLGATE_SIM_LIVE": os.path.join(at, "live")})
        wait_for("the exporter's /metrics", lambda: answers(f"http://127.0.0.1:{port}/metrics"), self)


class RealSlurm(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="tollgate-slurm-")
        self.addCleanup(shutil.rmtree, self.dir)
        os.chmod(self.dir, 0o755)
        with open(os.path.join(self.dir, "on-node"), "w", encoding="utf-8") as f:
            f.write(ON_NODE)
        os.chmod(f.name, 0o755)
        self.stack = self.enterContext(Stack(options=["--rollup-interval", "1s"]))
        self.stack.apply(POLICY)
        self.nodes = [Node(self.stack, self.dir, name) for name in NODES]
        for node in self.nodes:
            self.addCleanup(node.kill9)
        os.environ["TOLLGATE_TEST_DIR"] = self.dir
        self.addCleanup(os.environ.pop, "TOLLGATE_TEST_DIR")
        hooks = {n.name: {"TOLLGATE_SLURM_DIR": n.slurm_dir, "TOLLGATE_SLURM_GPUS": "/nonexistent"} for n in self.nodes}
        slurm_dir = os.path.join(self.dir, "slurm")
        os.mkdir(slurm_dir)
        self.slurm = self.enterContext(Slurm(slurm_dir, NODES, GPUS, hooks))

    def on_node(self, seconds):
        return f"{self.dir}/on-node {seconds}"

    def run_jobs(self):
        """One of each kind; job → (account, state it ends in)"""
        s = self.slurm
        whole = s.submit(self.on_node(6), "physics", GPUS)
        wide = s.submit(f"srun {self.on_node(5)}", "chem-a", 1, nodes=2)
        quiet = s.submit("sleep 4", "chem-b", 2)  # holds GPUs and never touches one
        cancelled = s.submit(self.on_node(600), "physics", 1)
        stranger = s.submit(self.on_node(2), "nobody-knows", 1)
        s.wait(cancelled, "RUNNING")
        self.wait_measured(cancelled)
        s.run("scancel", str(cancelled))
        ends = {whole: ("physics", "COMPLETED"), wide: ("chem-a", "COMPLETED"), quiet: ("chem-b", "COMPLETED"),
                cancelled: ("physics", "CANCELLED"), stranger: ("nobody-knows", "COMPLETED")}
        for job, (_, state) in ends.items():
            s.wait(job, state)
            nodes = int(s.facts(job)["NumNodes"].split("-")[0])
            wait_for(f"the epilogs of job {job}", lambda job=job, nodes=nodes: len(s.stretches(job)) == nodes)
        return {job: account for job, (account, _) in ends.items()}

    def wait_measured(self, job):
        wait_for(f"activity of job {job}", lambda: self.stack.sql(
            "SELECT 1 FROM usage_interval i JOIN holder h ON h.id = i.holder_id "
            f"WHERE h.slurm_job = '{job}' AND i.used_ns > 0 LIMIT 1"))

    def ledger(self):
        """(job, node, GPU's index) → seconds held, used; and what is unknown of each (node, GPU)."""
        rows = self.stack.sql(
            "SELECT h.slurm_job, h.slurm_account, n.name, g.index, sum(i.units::numeric * i.held_ns) / 5040 / 1e9, sum(i.units::numeric * i.used_ns) / 5040 / 1e9 "
            "FROM usage_interval i JOIN holder h ON h.id = i.holder_id JOIN node n ON n.id = i.node_id JOIN device d ON d.id = i.device_id "
            "JOIN gpu g ON g.id = d.gpu_id WHERE h.kind = 2 GROUP BY 1, 2, 3, 4")
        held = {(int(r[0]), r[2], int(r[3])): (r[1], float(r[4]), float(r[5])) for r in rows}
        rows = self.stack.sql(
            "SELECT n.name, g.index, sum(u.unknown) / 5040 / 1e9 FROM usage_rows('-infinity', 'infinity') u JOIN node n ON n.id = u.node_id "
            "JOIN device d ON d.id = u.device_id JOIN gpu g ON g.id = d.gpu_id GROUP BY 1, 2")
        return held, {(r[0], int(r[1])): float(r[2]) for r in rows}

    def test_gpu_seconds_per_account_are_those_of_the_jobs(self):
        accounts = self.run_jobs()
        for node in self.nodes:
            self.assertEqual(node.stop(), 0, node.words())
        held, unknown = self.ledger()
        expected, slack = {}, {}
        for job, account in accounts.items():
            begin, end = (self.slurm.facts(job)[k] for k in ("StartTime", "EndTime"))
            for name, (prolog_ns, epilog_ns, gpus) in self.slurm.stretches(job).items():
                for gpu in gpus:
                    of, seconds, used = held.pop((job, name, gpu))
                    room = SLACK_S + unknown.get((name, gpu), 0)
                    said = f"job {job} of {account} on {name} GPU {gpu}, by Slurm from {begin} to {end}"
                    self.assertEqual(of, account, said)
                    self.assertAlmostEqual(seconds, (epilog_ns - prolog_ns) / 1e9, delta=room, msg=said)
                    self.assertLessEqual(used, seconds)
                    if account == "chem-b":
                        self.assertEqual(used, 0, "it held its GPUs and did nothing")
                    else:
                        self.assertGreater(used, 0, said)
                    expected[account] = expected.get(account, 0) + (epilog_ns - prolog_ns) / 1e9
                    slack[account] = slack.get(account, 0) + room
        self.assertEqual(held, {}, "no job has more GPUs than Slurm gave it")
        self.check_usage(expected, slack)

    def check_usage(self, expected, slack):
        """The same by the interface that people see."""
        groups = self.stack.get("/v1/usage?group_by=tenant,workspace").json()["groups"]
        hours = {f"{g['tenant']}/{g['workspace']}": float(g["allocated_gpu_hours"]) for g in groups}
        for workspace, of in (("science/physics", ["physics"]), ("science/chemistry", ["chem-a", "chem-b"]), ("unattributed/unattributed", ["nobody-knows"])):
            self.assertAlmostEqual(hours[workspace] * 3600, sum(expected[a] for a in of), delta=sum(slack[a] for a in of), msg=workspace)
        wait_for("a sound ledger", lambda: self.stack.cli("verify").returncode == 0)


if __name__ == "__main__":
    unittest.main()
