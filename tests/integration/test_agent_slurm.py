"""tollgate-agent in hold mode: a private Slurm with job_submit.lua, exporters on its nodes, the aggregator, and jobs that wait, borrow, give back and start."""

import contextlib
import os
import re
import shutil
import tempfile
import unittest

from tests.integration.test_slurm import Node
from tests.support.daemons.stack import ROOT, Process, Stack, answers, free_port, program, request, wait_for
from tests.support.scheduler.slurm import Slurm

GPUS, MODEL = 4, "A100-80GB"
OPTIONS = ["--quota-tick", "200ms", "--reclaim-grace", "12s", "--borrow-backoff", "0s", "--lease-confirm", "1h", "--lease-silence", "1h", "--rollup-interval", "1s"]

POLICY = f"""
version: 1
cluster: main
tenants:
  - name: science
    workspaces:
      - {{name: physics, reserved_shared: {{{MODEL}: 3}}, limit: {{{MODEL}: 4}}, rules: [{{slurm_account: physics}}]}}
      - {{name: chemistry, reserved_shared: {{{MODEL}: 1}}, limit: {{{MODEL}: 3}}, rules: [{{slurm_account: chem}}]}}
nodes:
  - {{name: gn1, shared: true, model: {MODEL}, gpus: {GPUS}}}
"""


class Agent(Process):
    def __init__(self, test, *options):
        self.port = free_port()
        self.socket = os.path.join(test.dir, "agent.sock")
        token = os.path.join(test.dir, "scheduler.token")
        with open(token, "w", encoding="ascii") as f:
            f.write(test.stack.token("scheduler", role="scheduler"))
        argv = [program("tollgate-agent"), "--listen", f"127.0.0.1:{self.port}", "--socket", self.socket, "--aggregator-url", test.stack.url, "--token-file", token,
                "--cluster", "private", "--gpu-models", f"a100={MODEL}", "--poll-interval", "300ms", "--kill-wait", "6s", "--ask-again", "1s", *options]  # fmt: skip
        super().__init__(argv, os.path.join(test.dir, "agent.log"), {"SLURM_CONF": os.path.join(test.dir, "slurm", "slurm.conf")})

    def ready(self):
        wait_for("the agent's /readyz", lambda: answers(f"http://127.0.0.1:{self.port}/readyz"), self)
        return self

    def metric(self, name):
        text = request("GET", f"http://127.0.0.1:{self.port}/metrics").text()
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)[1])


class HoldMode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp(prefix="tollgate-hold-")
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        os.chmod(cls.dir, 0o755)
        cls.stack = cls.enterClassContext(Stack(options=OPTIONS))
        cls.stack.apply(POLICY)
        cls.node = Node(cls.stack, cls.dir, "gn1")
        cls.addClassCleanup(cls.node.kill9)
        with open(os.path.join(ROOT, "hooks/slurm/job_submit.lua"), encoding="utf-8") as f:
            hook = f'tollgate_options = {{socket = "{cls.dir}/agent.sock", timeout_ms = 20000, pause_s = 1}}\n' + f.read()
        os.mkdir(os.path.join(cls.dir, "slurm"))
        hooks = {"gn1": {"TOLLGATE_SLURM_DIR": cls.node.slurm_dir, "TOLLGATE_SLURM_GPUS": "/nonexistent"}}
        cls.slurm = cls.enterClassContext(Slurm(os.path.join(cls.dir, "slurm"), ["gn1"], {"a100": GPUS}, hooks, job_submit=hook))
        wait_for("four GPUs in the book", lambda: cls.free_gpus() == GPUS, cls.stack.aggregator)

    @classmethod
    def free_gpus(cls):
        return sum(p["free_units"] for p in cls.stack.get("/v1/quota").json()["pools"]) / 5040

    def setUp(self):
        self.agent = Agent(self)
        self.addCleanup(self.finish)
        self.agent.ready()

    def finish(self):
        """Everything ends, and the agent gives back every lease."""
        with contextlib.suppress(AssertionError):
            jobs = self.slurm.run("squeue", "-h", "-o", "%A").stdout.split()
            if jobs:
                self.slurm.run("scancel", *jobs)
        if self.agent.ended():
            self.agent.start()
        wait_for("an empty queue and book", lambda: not self.slurm.run("squeue", "-h").stdout and not self.requests() and self.free_gpus() == GPUS, self.agent)
        self.agent.kill9()

    # --- what is seen ---

    def requests(self):
        """job → (status, workspace) of what has not ended."""
        found = {}
        for path in ("decisions?status=waiting", "leases"):
            reply = self.stack.get(f"/v1/{path}").json()
            for row in reply["decisions" if "decisions" in reply else "leases"]:
                found[row["request_id"].split(":")[2]] = (row["status"], row["workspace"])
        return found

    def submit(self, account, gpus, script="sleep 1000", *more):
        return self.slurm.sbatch(f"--gpus={gpus}", "-A", account, *more, "--wrap", script)

    def fact(self, job, name):
        text = self.slurm.run("scontrol", "show", "job", "--oneliner", str(job)).stdout
        found = re.search(rf"{name}=(.*?)(?= \w+=|$)", text)
        return found[1].strip() if found else ""

    def mark(self, job):
        return self.fact(job, "AdminComment")

    def wait_mark(self, job, pattern):
        wait_for(f"the mark {pattern!r} of job {job}, which is {self.mark(job)!r}", lambda: re.match(pattern, self.mark(job)), self.agent)

    def wait_state(self, job, *states):
        wait_for(f"job {job} to be {states}", lambda: self.fact(job, "JobState") in states, self.agent)

    def wait_request(self, job, status):
        wait_for(f"request of job {job} {status}", lambda: self.requests().get(str(job), ("",))[0] == status, self.agent)

    # --- the tests ---

    def test_a_job_within_its_reservation_starts_and_its_lease_ends_with_it(self):
        job = self.submit("physics", 2, "sleep 3")
        self.wait_state(job, "RUNNING")
        self.wait_request(job, "confirmed")
        self.assertEqual(self.requests()[str(job)], ("confirmed", "science/physics"))
        self.wait_mark(job, r"tollgate run\.0 admitted: ")
        self.wait_state(job, "COMPLETED")
        wait_for("the end of its lease", lambda: not self.requests() and self.free_gpus() == GPUS, self.agent)

    def test_a_job_that_ends_before_the_queue_is_read_again_leaves_no_lease(self):
        self.agent.kill9()
        self.agent = Agent(self, "--poll-interval", "5s").ready()
        job = self.submit("physics", 2, "true")
        self.slurm.wait(job, "COMPLETED")
        wait_for("the end of its lease", lambda: not self.requests() and self.free_gpus() == GPUS, self.agent)

    def test_a_borrower_gives_way_to_the_owner_and_runs_again_by_itself(self):
        borrower = self.submit("chem", 3)
        self.wait_state(borrower, "RUNNING")
        self.wait_request(borrower, "confirmed")
        owner = self.submit("physics", 3, "sleep 5")
        self.wait_mark(borrower, r"tollgate drain\.0 reclaim: Tollgate: the owner of these GPUs needs them")
        self.wait_state(owner, "RUNNING")
        self.assertEqual(self.fact(borrower, "Restarts"), "1")
        self.assertEqual(self.fact(borrower, "JobState"), "PENDING")
        self.wait_state(owner, "COMPLETED")
        self.wait_state(borrower, "RUNNING")
        self.wait_request(borrower, "confirmed")
        self.assertEqual(self.agent.metric("tollgate_evictions_total"), 1)

    def test_the_agent_may_be_killed_at_any_point(self):
        first = self.submit("chem", 3)
        self.agent.kill9()  # the job is held, and perhaps asked for
        blind = self.submit("physics", 1, "sleep 4")  # held by the hook alone
        self.assertRegex(self.mark(blind), r"^tollgate wait\.0 agent: the quota agent did not answer at submission$")
        self.agent.start()
        self.wait_state(first, "RUNNING")
        self.agent.kill9()
        self.agent.start()
        self.wait_request(first, "confirmed")
        self.wait_state(blind, "RUNNING", "COMPLETED")
        owner = self.submit("physics", 3, "sleep 3")
        self.wait_mark(first, r"tollgate drain\.0 ")
        self.agent.kill9()
        self.agent.start()
        self.wait_state(owner, "RUNNING", "COMPLETED")
        self.agent.kill9()
        self.slurm.wait(owner, "COMPLETED")
        self.agent.start()
        self.wait_state(first, "RUNNING")
        wait_for("one lease", lambda: self.requests() == {str(first): ("confirmed", "science/chemistry")}, self.agent)

    def test_a_job_over_its_limit_waits_with_numbers_and_an_equal_one_is_refused_at_sbatch(self):
        job = self.submit("chem", 4)
        self.wait_mark(job, r"tollgate wait\.0 never: .*\d")
        self.assertEqual(self.fact(job, "JobState"), "PENDING")

        def refused():
            done = self.slurm.try_sbatch("--gpus=4", "-A", "chem", "--wrap", "sleep 1")
            return done.stderr if done.returncode != 0 else None

        said = wait_for("a refusal", refused, self.agent)
        self.assertRegex(said, r"Tollgate: .*4 GPUs?")
        self.stack.apply(POLICY.replace(f"limit: {{{MODEL}: 3}}", f"limit: {{{MODEL}: 4}}"))
        self.addCleanup(self.stack.apply, POLICY)
        self.wait_state(job, "RUNNING")
        self.assertRegex(self.mark(job), r"^tollgate run\.1 ")

    def test_a_users_own_hold_is_not_lifted(self):
        taken = self.submit("physics", 4)
        self.wait_state(taken, "RUNNING")
        job = self.slurm.sbatch("--gpus=1", "-A", "physics", "--hold", "--wrap", "sleep 2")
        other = self.submit("physics", 1, "sleep 2")
        self.wait_mark(other, r"tollgate wait\.0 (?!submitted)\w+: ")
        self.assertRegex(self.mark(job), r"^tollgate wait\.0u submitted: the user holds it")
        self.slurm.run("scancel", str(taken))
        self.wait_state(other, "RUNNING", "COMPLETED")
        self.assertEqual(self.fact(job, "JobState"), "PENDING")
        self.assertNotIn(str(job), self.requests())

    @unittest.skipUnless(os.geteuid() == 0, "only root runs jobs of another user")
    def test_a_user_cannot_lift_our_hold_and_can_lift_the_own_one(self):
        taken = self.submit("physics", 4)
        self.wait_state(taken, "RUNNING")
        waits = self.slurm.sbatch("--gpus=1", "-A", "physics", "--output=/dev/null", "--wrap", "sleep 2", user="nobody")
        held = self.slurm.sbatch("--gpus=1", "-A", "physics", "--hold", "--output=/dev/null", "--wrap", "sleep 2", user="nobody")
        self.wait_mark(waits, r"tollgate wait\.0 (?!submitted)\w+: ")
        for job in (waits, held):
            self.assertNotEqual(self.slurm.run("scontrol", "release", str(job), user="nobody").returncode, 0)
            self.assertEqual(self.fact(job, "Priority"), "0")
        self.assertNotEqual(self.slurm.run("scontrol", "update", f"JobId={waits}", "AdminComment=tollgate run.0", user="nobody").returncode, 0)
        self.wait_mark(held, r"tollgate wait\.1 (?!hold)\w+: ")
        self.slurm.run("scancel", str(taken))
        for job in (waits, held):
            self.wait_state(job, "RUNNING", "COMPLETED")

    def test_tasks_of_an_array_are_asked_for_singly(self):
        array = self.slurm.sbatch("--gpus=1", "-A", "chem", "--array=1-5", "--wrap", "sleep 2")
        wait_for("three of five tasks run", lambda: self.slurm.run("squeue", "-h", "-r", "-t", "R", "-o", "%K").stdout.split(), self.agent)
        leased = set()

        def ended():
            now = {k for k, (status, _) in self.requests().items() if status != "waiting"}
            self.assertLessEqual(len(now), 3)
            leased.update(now)
            return not self.slurm.run("squeue", "-h", "-j", str(array)).stdout

        wait_for("the end of all tasks", ended, self.agent)
        self.assertTrue(leased <= {f"{array}_{i}" for i in range(1, 6)})

    def test_while_the_aggregator_is_down_jobs_wait_and_say_so(self):
        self.stack.aggregator.kill9()
        job = self.submit("physics", 1, "sleep 2")
        self.wait_mark(job, r"tollgate wait\.0 outage: the quota service does not answer")
        self.stack.restart_aggregator()
        self.wait_state(job, "RUNNING", "COMPLETED")

    def test_an_outage_may_let_jobs_run_and_their_leases_follow(self):
        self.agent.kill9()
        self.agent = Agent(self, "--outage", "run", "--outage-after", "1s")
        self.stack.aggregator.kill9()
        job = self.submit("physics", 1)
        self.wait_state(job, "RUNNING")
        self.wait_mark(job, r"tollgate run\.0 outage: ")
        self.stack.restart_aggregator()
        self.wait_request(job, "confirmed")

    def test_a_job_that_nobody_owns_runs_without_a_lease(self):
        job = self.submit("strangers", 1, "sleep 3")
        self.wait_state(job, "RUNNING", "COMPLETED")
        self.assertRegex(self.mark(job), r"^tollgate run\.0 unattributed: ")

    def test_a_cancelled_job_leaves_no_request(self):
        taken = self.submit("physics", 4)
        self.wait_state(taken, "RUNNING")
        job = self.submit("physics", 1)
        self.wait_request(job, "waiting")
        self.slurm.run("scancel", str(job))
        wait_for("no request", lambda: str(job) not in self.requests(), self.agent)

    def test_requests_that_cannot_be_leased_are_refused_at_sbatch(self):
        for options, words in ((["--gres=gpu:a100:1,gpu:h100:1"], "two types, a100 and h100"), (["--gpus-per-socket=1", "--sockets-per-node=1"], "gpus-per-socket")):
            done = self.slurm.try_sbatch(*options, "-A", "physics", "--wrap", "true")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
