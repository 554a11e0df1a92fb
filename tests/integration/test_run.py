"""`make run`, as a person uses it: it starts, shows, stops, goes on next time, and says what is wrong in a sentence."""

import collections
import csv
import decimal
import glob
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

from tests.support.daemons import pg, stack

RUN = os.path.join(stack.ROOT, "deploy", "demo", "run.sh")
WORKSPACES = {("acme", "training"), ("acme", "inference"), ("globex", "research"), ("globex", "sandbox")}
COLUMNS = (
    "period_start,period_end,period_status,invoice_id,invoice_version,line_id,cluster,tenant,cost_center,workspace,"
    "charge_type,category,sku,gpu_model,mig_profile,sharing_mode,class,allocated_gpu_hours,used_gpu_hours,idle_gpu_hours,"
    "unmeasured_gpu_hours,unknown_gpu_hours,measured_ratio,quantity,unit,unit_price,price_version,list_cost,discount,rounding,"
    "billed_cost,currency,energy_kwh,counterparty,description,correction_of"
).split(",")


def held(rows):
    """Whose workspaces held something; what nobody held of a tenant's own nodes is of no workspace."""
    return {(r["tenant"], r["workspace"]) for r in rows if r["class"] != "dedicated"}


def allocated(rows):
    """Hours that were held, by workspace, model and profile."""
    sums = collections.Counter()
    for r in rows:
        sums[r["tenant"], r["workspace"], r["gpu_model"], r["mig_profile"], r["sharing_mode"]] += decimal.Decimal(r["allocated_gpu_hours"] or 0)
    return sums


class MakeRun(unittest.TestCase):
    def setUp(self):
        # Reachable for the database's own user, and short enough for a unix socket.
        self.state = tempfile.mkdtemp(prefix="tg-run-")
        os.chmod(self.state, 0o755)
        self.addCleanup(shutil.rmtree, self.state, ignore_errors=True)
        self.ports = self.free_ports()

    @staticmethod
    def free_ports():
        base = stack.free_port(4)
        return {"TOLLGATE_PORT": str(base), "TOLLGATE_EXPORTER_PORT": str(base + 1)}

    def start(self, seconds=None, **env):
        env = {**os.environ, **self.ports, "TOLLGATE_STATE": self.state, "TOLLGATE_GPUS": "sim",
               "TOLLGATE_BUILD_DIR": stack.BUILD, **env}  # fmt: skip
        env.pop("RUN_SECONDS", None)
        if seconds is not None:
            env["RUN_SECONDS"] = str(seconds)
        run = subprocess.Popen(
            ["bash", RUN], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            # As a terminal's shell would start it: a job in the background ignores Ctrl-C, and hands that on.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        self.addCleanup(run.stdout.close)
        self.addCleanup(run.kill)
        return run

    def begun(self, run):
        seen = []
        for line in iter(run.stdout.readline, ""):
            seen.append(line)
            if "Ctrl-C" in line or "Runs for" in line:
                return
        self.fail("it ended: " + "".join(seen[-30:]))

    def finish(self, run):
        out, _ = run.communicate()
        return run.returncode, out

    def report(self):
        with open(os.path.join(self.state, "report.csv"), encoding="utf-8", newline="") as f:
            return list(csv.DictReader(f))

    def leftovers(self):
        found = []
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(path, "rb") as f:
                    text = f.read().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if self.state in text:
                found.append(text)
        return found

    def test_it_ends_by_itself_with_a_bill_for_every_workspace_and_goes_on_next_time(self):
        code, out = self.finish(self.start(15))
        self.assertEqual(code, 0, out)
        self.assertIn("SIMULATED", out)
        self.assertEqual(self.leftovers(), [])
        first = self.report()
        self.assertEqual(list(first[0]), COLUMNS)
        self.assertEqual(held(first), WORKSPACES)
        for name in ("admin", "viewer-acme", "viewer-globex", "scheduler", "node-demo-h100", "node-demo-mig", "node-demo-shared"):
            self.assertEqual(os.stat(os.path.join(self.state, name + ".token")).st_mode & 0o777, 0o600, name)

        code, out = self.finish(self.start(12))
        self.assertEqual(code, 0, out)
        # The class of an hour is settled when the hour is over: until then what was held may move between the lines of its workspace and SKU.
        before, after = allocated(first), allocated(self.report())
        self.assertEqual({key: (hours, after[key]) for key, hours in before.items() if after[key] < hours}, {})

    def cli(self, *args):
        env = {**os.environ, "TOLLGATE_URL": f"http://127.0.0.1:{self.ports['TOLLGATE_PORT']}", "TOLLGATE_TOKEN_FILE": os.path.join(self.state, "admin.token")}
        done = subprocess.run([stack.program("tollgate"), *args], env=env, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_credit_and_a_tenant_added_during_a_run_are_there_in_its_table_and_in_the_next_run(self):
        run = self.start(120)  # ends by itself where the table is never shown
        self.begun(run)
        self.assertTrue(any(line.startswith("acme ") for line in iter(run.stdout.readline, "")), "a month has begun with its first usage")
        self.cli("credit", "add", "--tenant", "acme", "--amount", "-7.00", "--currency", "EUR", "--reason", "a test")
        policy = os.path.join(self.state, "mine.yaml")
        with open(policy, "w", encoding="utf-8") as f:
            f.write(self.cli("get", "policy").replace("tenants:\n", "tenants:\n  - {name: mine, workspaces: [{name: w, rules: [{namespace: mine}]}]}\n", 1))
        self.cli("apply", "-f", policy)
        applied = self.cli("get", "policy")
        table = next((line for line in iter(run.stdout.readline, "") if re.match(r"acme .*-7\.00 EUR", line) or "cannot be shown" in line), "the run ended")
        self.assertRegex(table, r"^acme .* -7\.00 EUR")
        run.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(run)[0], 0)
        run = self.start()
        self.begun(run)
        self.assertEqual(self.cli("get", "policy"), applied)
        self.assertIn("mine", self.cli("get", "tenants", "-o", "json"))
        run.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(run)[0], 0)

    def test_a_table_that_fails_says_why(self):
        run = self.start(30)
        self.begun(run)
        self.cli("token", "revoke", "1")
        said = next((line for line in iter(run.stdout.readline, "") if "cannot be shown" in line), "")
        self.assertRegex(said, r"the table cannot be shown: tollgate: .*401")
        run.send_signal(signal.SIGINT)
        code, out = self.finish(run)
        self.assertEqual(code, 0, out)
        self.assertRegex(out, r"the bill so far cannot be written to \S+: tollgate: .*401")

    def test_ctrl_c_stops_everything(self):
        run = self.start()
        self.begun(run)
        run.send_signal(signal.SIGINT)
        code, out = self.finish(run)
        self.assertEqual(code, 0, out)
        self.assertEqual(self.leftovers(), [])

    def test_a_kill_9_of_the_run_itself_leaves_no_process_and_the_next_run_goes_on(self):
        run = self.start()
        self.begun(run)
        run.kill()
        run.wait()
        stack.wait_for("the children to notice", lambda: not self.leftovers())
        code, out = self.finish(self.start(12))
        self.assertEqual(code, 0, out)
        self.assertEqual(held(self.report()), WORKSPACES)

    def test_a_killed_daemon_is_started_again(self):
        run = self.start(25)
        lines = iter(run.stdout.readline, "")
        self.assertTrue(any("Runs for" in line for line in lines))
        for name in ("tollgate-exporter", "tollgate-aggregator"):
            pid = next(p for p in self.pids(name))
            os.kill(pid, signal.SIGKILL)
        code, out = self.finish(run)
        self.assertEqual(code, 0, out)
        self.assertIn("the aggregator ended; starting it again", out)
        self.assertRegex(out, r"the exporter of demo-\w+ ended; starting it again")
        self.assertEqual(held(self.report()), WORKSPACES)

    def pids(self, name):
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(path, "rb") as f:
                    words = f.read().decode(errors="replace").split("\0")
            except OSError:
                continue
            if os.path.basename(words[0]) == name and self.belongs(path, words):
                yield int(re.search(r"\d+", path)[0])

    def belongs(self, path, words):
        ports = set(range(int(self.ports["TOLLGATE_PORT"]), int(self.ports["TOLLGATE_PORT"]) + 4))
        return any(w == f"127.0.0.1:{p}" for w in words for p in ports)

    def test_a_ledger_that_cannot_be_upgraded_is_moved_aside_and_kept(self):
        for statement, suffix, maker in (
            ("insert into tollgate.schema_migration values (99, '0003_billing.sql', sha256('x'), now(), '0.1.0')", "before-0.2", "a version before 0.2"),
            ("update tollgate.schema_migration set sha256 = sha256('x') where name = '0012_rollup_functions.sql'", "unreleased",
             "a commit that was not released, with another text of sql/0012_rollup_functions.sql,"),
        ):  # fmt: skip
            with self.subTest(suffix):
                self.moved_aside(statement, suffix, maker)

    def moved_aside(self, statement, suffix, maker):
        code, out = self.finish(self.start(2))
        self.assertEqual(code, 0, out)
        with open(os.path.join(self.state, "mine"), "w", encoding="ascii") as f:
            f.write("kept")
        argv = [os.path.join(pg.bindir(), "postgres"), "--single", "-D", os.path.join(self.state, "pg", "data"), "tollgate_demo"]
        user = {"user": pg.USER, "group": pg.USER, "extra_groups": []} if os.geteuid() == 0 else {}
        subprocess.run(argv, input=statement + "\n", text=True, check=True, capture_output=True, cwd="/", **user)
        code, out = self.finish(self.start(2))
        moved = glob.glob(f"{self.state}.{suffix}-*")
        for path in moved:
            self.addCleanup(shutil.rmtree, path, ignore_errors=True)
        self.assertEqual(code, 0, out)
        self.assertEqual(len(moved), 1, out)
        self.assertIn(f"the ledger in {self.state} was made by {maker} and cannot be upgraded: the directory is now {moved[0]}, and a new ledger begins", out)
        self.assertTrue(os.path.exists(os.path.join(moved[0], "mine")) and os.path.exists(os.path.join(moved[0], "pg", "data", "PG_VERSION")))
        self.assertFalse(os.path.exists(os.path.join(self.state, "mine")))
        self.assertTrue(self.report())
        self.assertEqual(self.leftovers(), [])

    def test_a_taken_port_is_named(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", int(self.ports["TOLLGATE_EXPORTER_PORT"]) + 1))
            s.listen()
            code, out = self.finish(self.start(5))
        self.assertEqual(code, 1, out)
        self.assertIn(f"port {int(self.ports['TOLLGATE_EXPORTER_PORT']) + 1}", out)
        self.assertIn("taken", out)

    def test_a_second_run_on_the_same_state_is_refused(self):
        run = self.start()
        self.begun(run)
        self.ports = self.free_ports()
        code, out = self.finish(self.start(5))
        self.assertEqual(code, 1, out)
        self.assertIn("another run uses", out)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(run)[0], 0)

    def test_real_gpus_are_asked_for_where_there_is_no_driver(self):
        if os.path.exists("/proc/driver/nvidia/version"):
            self.skipTest("this host has an NVIDIA driver")
        code, out = self.finish(self.start(5, TOLLGATE_GPUS="real"))
        self.assertEqual(code, 1, out)
        self.assertIn("NVIDIA", out)
        self.assertIn("does not start", out)
        self.assertEqual(self.leftovers(), [])

    def test_a_full_disk_is_named(self):
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", self.state], capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"a small disk cannot be mounted: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", self.state])
        code, out = self.finish(self.start(5))
        self.assertEqual(code, 1, out)
        self.assertRegex(out, r"the disk of .* has \d+ MiB free")

    def test_wrong_settings_are_named(self):
        for env, word in (
            ({"RUN_SECONDS": "soon"}, "RUN_SECONDS"),
            ({"TOLLGATE_GPUS": "amd"}, "TOLLGATE_GPUS"),
            ({"TOLLGATE_STATE": "relative/path"}, "TOLLGATE_STATE"),
            ({"TOLLGATE_STATE": "/" + "x" * 100}, "TOLLGATE_STATE"),
        ):
            with self.subTest(env=env):
                seconds = env.pop("RUN_SECONDS", None)
                code, out = self.finish(self.start(seconds, **env))
                self.assertEqual(code, 1, out)
                self.assertIn(word, out)


if __name__ == "__main__":
    unittest.main()
