"""tollgate doctor on whole and broken systems: the line that matters, its remedy, and the exit code."""

# instead: san

import email.utils
import http.server
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from tests.support.daemons.stack import WAIT_S, Stack, free_port, program, wait_for

HOST_PID_NAMESPACE = "pid:[4026531836]"
POLICY = """
version: 1
cluster: test
tenants:
  - {name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}
nodes: [{name: n1, shared: true}]
prices: {version: "1", currency: EUR, items: [{gpu_model: H100-80GB, price: "3.00"}]}
"""


def scenario(namespace="acme", model="NVIDIA H100 80GB HBM3"):
    return {"name": "n1", "gpus": [{"model": model, "memory_mib": 46068}],
            "processes": [{"pid": 4001, "gpu": 0, "sm": 75, "memory_mib": 2048, "pod": {"namespace": namespace, "name": "p"}}]}  # fmt: skip


def doctor(*args, **env):
    base = {k: v for k, v in os.environ.items() if not k.startswith("TOLLGATE_") and k != "NO_COLOR"}
    return subprocess.run([program("tollgate"), "doctor", *args], capture_output=True, text=True, env={**base, **env}, timeout=WAIT_S)


def lines(done):
    """check -> (result, the rest of its line)"""
    found = {}
    for line in done.stdout.splitlines():
        result, rest = line.split(None, 1)
        check, _, text = rest.partition(": ")
        found[check] = (result, text)
    return found


class Doctor(unittest.TestCase):
    def expect(self, done, code, **expected):
        found = lines(done)
        self.assertEqual(done.stderr, "")
        for check, (result, *words) in expected.items():
            check = check.replace("_", " ")
            self.assertIn(check, found, done.stdout)
            self.assertEqual(found[check][0], result, done.stdout)
            for word in words:
                self.assertIn(word, found[check][1])
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertEqual(code == 1, any(result == "fail" for result, _ in found.values()), done.stdout)
        for result, text in found.values():
            self.assertIn(result, ("ok", "warn", "fail"))
            if result != "ok":
                self.assertIn("; ", text, "what is not well has a remedy")
        return found


class Server(Doctor):
    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack())
        cls.stack.apply(POLICY)

    def token(self, text=None, mode=0o600):
        path = os.path.join(self.stack.dir, "doctor.token")
        with open(path, "w", encoding="ascii") as f:
            f.write(text or self.stack.tokens["admin"])
        os.chmod(path, mode)
        return path

    def ask(self, *args, **env):
        if "TOLLGATE_TOKEN_FILE" not in env:
            env["TOLLGATE_TOKEN_FILE"] = self.token()
        return doctor("--server", *args, **{"TOLLGATE_URL": self.stack.url, **env})

    def test_a_sound_aggregator_has_nothing_that_fails(self):
        found = self.expect(self.ask(), 0, aggregator=("ok",), database=("ok",), token_file=("ok", "mode 0600"), token=("ok", "role admin"), clock=("ok",))
        self.assertNotIn("driver", found, "--server does not look at this machine's GPUs")

    def test_the_role_of_a_token_is_named(self):
        for role, what in (("viewer", {"tenant": "acme"}), ("billing", {})):
            self.stack.token(f"doctor {role}", role=role, **what)
            done = self.ask(TOLLGATE_TOKEN_FILE=self.token(self.stack.tokens[f"doctor {role}"]))
            self.expect(done, 0, token=("ok", f"role {role}"))

    def test_a_token_that_is_unknown_missing_or_open_to_others(self):
        self.expect(self.ask(TOLLGATE_TOKEN_FILE=self.token("nobody-gave-me")), 1, token_file=("ok",), token=("fail", "token create"))
        self.expect(self.ask(TOLLGATE_TOKEN_FILE="/nowhere/token"), 1, token_file=("fail", "/nowhere/token does not exist"))
        self.expect(self.ask(TOLLGATE_TOKEN_FILE=""), 1, token_file=("fail", "TOLLGATE_TOKEN_FILE"))
        self.expect(self.ask(TOLLGATE_TOKEN_FILE=self.token(mode=0o644)), 0, token_file=("warn", "mode 0644", "chmod 600"), token=("ok",))

    def test_an_aggregator_that_is_not_there_or_speaks_no_tls(self):
        found = self.expect(self.ask(TOLLGATE_URL=f"http://127.0.0.1:{free_port()}"), 1, aggregator=("fail", "start tollgate-aggregator"))
        self.assertNotIn("database", found, "what cannot be asked is not guessed")
        self.assertNotIn("token", found)
        self.expect(self.ask(TOLLGATE_URL=self.stack.url.replace("http:", "https:")), 1, aggregator=("fail", "TLS fails", "--ca-file"))
        self.assertEqual(self.ask(TOLLGATE_URL="ftp://x").returncode, 2)

    def test_findings_are_data_too(self):
        rows = json.loads(self.ask("-o", "json").stdout)
        self.assertEqual(set(rows[0]), {"result", "check", "finding", "remedy"})
        self.assertEqual(rows[0]["check"], "aggregator")
        self.assertTrue(self.ask("-o", "csv").stdout.startswith("result,check,finding,remedy\n"))

    def test_no_colour_without_a_terminal(self):
        self.assertNotIn("\x1b", self.ask().stdout)


class Ledger(Doctor):
    def test_usage_of_nobody_without_a_price_and_then_without_a_database(self):
        stack = self.enterContext(Stack())
        stack.apply(POLICY)
        token = os.path.join(stack.dir, "admin.token")
        ask = lambda *args: doctor("--server", *args, TOLLGATE_URL=stack.url, TOLLGATE_TOKEN_FILE=token)  # noqa: E731
        self.expect(ask(), 0, nodes=("warn", "no node"))
        stack.exporter("n1", scenario("nobody-knows", "NVIDIA L40S"))
        wait_for("usage in the ledger", lambda: stack.get("/v1/reports/current.json").json()["lines"] if stack.sql(
            "select count(*) from tollgate.usage_interval") != [["0"]] else None)  # fmt: skip
        wait_for("a cent of a GPU-hour", lambda: lines(ask())["unattributed usage"][0] == "warn")
        self.expect(ask(), 0, nodes=("ok", "1 send"), unattributed_usage=("warn", "add a rule"), prices=("warn", "no price: L40S"))
        event = {"specversion": "1.0", "id": "1", "source": "/test", "type": "tollgate.support.v1", "time": stack.sql("select to_json(now())::text")[0][0].strip('"'), "data": {"tenant": "acme", "workspace": "training", "hours": 1}}
        sent = stack.call("POST", "/v1/events", json.dumps(event).encode(), headers={"Content-Type": "application/cloudevents+json"})
        self.assertEqual(sent.status, 200, sent.text())
        self.assertRegex(lines(ask())["prices"][1], r"^2 of 2 lines of this month have no price: (L40S, standard \(support\)|standard \(support\), L40S); ")
        stack.pg.stop()
        wait_for("the probe to notice", lambda: lines(ask())["database"][0] == "fail")  # /readyz tells what the last probe found
        self.expect(ask(), 1, aggregator=("ok",), database=("fail", "start PostgreSQL"), token=("fail",))


class Clock(Doctor):
    def clock(self, off_s):
        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response_only(200)
                self.send_header("Date", email.utils.formatdate(time.time() + off_s, usegmt=True))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            return lines(doctor("--server", TOLLGATE_URL=f"http://127.0.0.1:{server.server_address[1]}"))["clock"]
        finally:
            server.shutdown()
            server.server_close()

    def test_a_clock_that_differs_is_told_from_the_date_of_a_reply(self):
        for off_s, result, words in ((0, "ok", ""), (60, "warn", "behind the aggregator"), (-60, "warn", "ahead of the aggregator"),
                                     (-3600, "fail", "set the clock"), (86400, "fail", "behind")):  # fmt: skip
            with self.subTest(off_s=off_s):
                got, text = self.clock(off_s)
                self.assertEqual(got, result, text)
                self.assertIn(words, text)


class Node(Doctor):
    def setUp(self):
        self.root = self.enterContext(tempfile.TemporaryDirectory())
        for name, text in {
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01\nGCC version: x\n",
            "proc/driver/nvidia/gpus/0000:07:00.0/information": "", "proc/1/cgroup": "0::/init.scope\n",
            "proc/self/mounts": "proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n",
            "usr/lib64/libnvidia-ml.so.1": "", "dev/nvidiactl": "", "dev/nvidia0": "", "dev/nvidia-uvm": "",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n", "var/log/pods/a_b_c/0.log": "",
            "var/lib/kubelet/pod-resources/cpu_manager_state": "", "var/lib/tollgate/spool/lock": "",
        }.items():  # fmt: skip
            path = os.path.join(self.root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="ascii") as f:
                f.write(text)
        self.kubelet = self.enterContext(socket.socket(socket.AF_UNIX))
        self.kubelet.bind(os.path.join(self.root, "var/lib/kubelet/pod-resources/kubelet.sock"))
        self.kubelet.listen()
        os.makedirs(os.path.join(self.root, "proc/self/ns"))
        os.symlink(HOST_PID_NAMESPACE, os.path.join(self.root, "proc/self/ns/pid"))
        self.port = free_port()

    def ask(self, *args):
        return doctor("--node", "--root", self.root, "--exporter", f"http://127.0.0.1:{self.port}", *args)

    def remove(self, name):
        os.unlink(os.path.join(self.root, name))

    def test_a_node_with_everything_but_an_exporter(self):
        found = self.expect(self.ask(), 1, driver=("ok", "550.163.01"), NVML_library=("ok",), GPU_devices=("ok", "2 device files"),
                            user=("ok",), process_namespace=("ok",), processes=("ok",), cgroups=("ok", "version 2"), pod_directories=("ok", "1 pods"), kubelet_socket=("ok",),
                            exporter=("fail", "start tollgate-exporter"))  # fmt: skip
        self.assertNotIn("aggregator", found)
        self.assertNotIn("Slurm job files", found, "it is no node of Slurm")
        self.assertIn(found["spool"][0], ("ok", "warn"))

    def test_each_missing_thing_is_one_line_with_its_remedy(self):
        self.remove("proc/driver/nvidia/version")
        self.remove("usr/lib64/libnvidia-ml.so.1")
        self.remove("dev/nvidiactl")
        self.remove("dev/nvidia0")
        self.remove("proc/1/cgroup")
        self.remove("proc/self/ns/pid")
        os.symlink("pid:[4026532177]", os.path.join(self.root, "proc/self/ns/pid"))
        self.remove("sys/fs/cgroup/cgroup.controllers")
        self.remove("var/lib/kubelet/pod-resources/kubelet.sock")
        self.remove("var/log/pods/a_b_c/0.log")
        os.removedirs(os.path.join(self.root, "var/log/pods/a_b_c"))
        done = self.ask("--spool-dir", "/var/lib/elsewhere")
        self.expect(done, 1, driver=("fail", "modprobe nvidia"), NVML_library=("fail", "--nvml-library"), GPU_devices=("fail", "nvidia-modprobe"),
                    process_namespace=("fail", "hostPID"), processes=("fail", "/proc/1/cgroup does not exist"), cgroups=("warn", "mount"), pod_directories=("fail", "host mount"),
                    kubelet_socket=("warn", "does not exist"), spool=("fail", "/var/lib/elsewhere does not exist"))  # fmt: skip

    def test_a_machine_without_kubernetes_needs_no_kubelet(self):
        self.remove("var/lib/kubelet/pod-resources/kubelet.sock")
        self.remove("var/lib/kubelet/pod-resources/cpu_manager_state")
        os.removedirs(os.path.join(self.root, "var/lib/kubelet/pod-resources"))
        self.remove("var/log/pods/a_b_c/0.log")
        os.removedirs(os.path.join(self.root, "var/log/pods/a_b_c"))
        found = lines(self.ask())
        self.assertNotIn("kubelet socket", found)
        self.assertNotIn("pod directories", found)

    def write(self, name, text="", mode=0o644):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii") as f:
            f.write(text)
        os.chmod(path, mode)

    def test_a_device_file_that_was_not_made_is_missed(self):
        self.write("proc/driver/nvidia/gpus/0000:0a:00.0/information")
        self.expect(self.ask(), 1, GPU_devices=("fail", "1 of the driver's device files are missing, 2 are there", "nvidia-modprobe"))
        self.write("dev/nvidia1")
        self.expect(self.ask(), 1, GPU_devices=("ok", "3 device files"))
        self.remove("dev/nvidiactl")
        self.expect(self.ask(), 1, GPU_devices=("fail", "1 of the driver's device files are missing, 2 are there"))

    def test_how_proc_is_mounted_is_said(self):
        self.write("proc/self/mounts", "sysfs /sys sysfs rw 0 0\nproc /proc proc rw,nosuid,hidepid=invisible,gid=27 0 0\n")
        self.expect(self.ask(), 1, processes=("ok", "although /proc has hidepid=invisible"))
        self.remove("proc/1/cgroup")
        self.expect(self.ask(), 1, processes=("fail", "does not exist, /proc has hidepid=invisible:", "remount,hidepid=0"))

    def test_a_socket_of_the_kubelet_that_is_not_one_or_that_nobody_listens_at(self):
        self.kubelet.close()
        self.expect(self.ask(), 1, kubelet_socket=("warn", "nobody listens", "start the kubelet"))
        self.remove("var/lib/kubelet/pod-resources/kubelet.sock")
        self.expect(self.ask(), 1, kubelet_socket=("warn", "does not exist", "pod-resources"))
        self.write("var/lib/kubelet/pod-resources/kubelet.sock")
        self.expect(self.ask(), 1, kubelet_socket=("warn", "is not a socket"))

    def test_slurms_files_are_looked_at_on_its_nodes(self):
        self.write("etc/slurm/slurm.conf")
        self.expect(self.ask(), 1, Slurm_job_files=("warn", "/run/tollgate-slurm does not exist", "tollgate-prolog.sh"))
        self.write("run/tollgate-slurm/4711", "job=4711\n", mode=0o666)
        self.expect(self.ask(), 1, Slurm_job_files=("fail", "not believed", "4711", "--slurm-map-uid"))
        os.chmod(os.path.join(self.root, "run/tollgate-slurm/4711"), 0o644)
        found = self.expect(self.ask(), 1, Slurm_job_files=("ok" if os.geteuid() == 0 else "fail",))
        if os.geteuid() == 0:
            self.assertIn("1 jobs", found["Slurm job files"][1])

    def test_jobs_whose_cgroups_have_a_sluid_need_it_in_their_files(self):
        self.write("sys/fs/cgroup/system.slice/slurmstepd.scope/job_4710/cgroup.procs")
        self.write("run/tollgate-slurm/4711", "job=4711\naccount=a\n")
        self.assertNotIn("Slurm job names", lines(self.ask()))
        self.write("sys/fs/cgroup/system.slice/gn1_slurmstepd.scope/sEKNKTV3WPV500/cgroup.procs")
        self.expect(self.ask(), 1, Slurm_job_names=("warn", "1 of 1 jobs", "no sluid=", "sEKNKTV3WPV500", "CgroupJobIdPaths=yes", "tollgate-prolog.sh"))
        self.write("run/tollgate-slurm/4711", "job=4711\nsluid=sEKNKTV3WPV500\naccount=a\n")
        self.expect(self.ask(), 1, Slurm_job_names=("ok", "1 jobs", "CgroupJobIdPaths=no"))

    @unittest.skipUnless(os.geteuid() == 0, "giving files to another user needs root")
    def test_the_exporters_user_is_told_what_is_closed_to_it(self):
        for folder, _, _ in os.walk(self.root):
            os.chmod(folder, 0o755)
        for name, mode in (("dev/nvidiactl", 0o600), ("dev/nvidia0", 0o666), ("proc/1/cgroup", 0o600), ("var/log/pods", 0o700),
                           ("var/lib/kubelet/pod-resources", 0o750), ("usr/lib64/libnvidia-ml.so.1", 0o600)):  # fmt: skip
            os.chmod(os.path.join(self.root, name), mode)
        os.chown(os.path.join(self.root, "var/lib/tollgate/spool"), 65534, 65534)
        self.expect(self.ask(), 1, user=("warn", "this one is #0", "runuser -u "))
        # the build may lie where that user cannot go
        command = [shutil.copy(program("tollgate"), self.root), "doctor", "--node", "--root", self.root, "--exporter", f"http://127.0.0.1:{self.port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, user=65534, group=65534, extra_groups=[])
        self.expect(done, 1, user=("ok",), NVML_library=("fail", "is not open to this user"), GPU_devices=("fail", "1 of 2", "nvidiactl"),
                    processes=("fail", "is not open to this user"), pod_directories=("fail", "is not open to this user"),
                    kubelet_socket=("warn", "is not open to this user", "DaemonSet"))  # fmt: skip
        self.assertIn(lines(done)["spool"][0], ("ok", "warn"))

    def test_a_node_whose_exporter_sends(self):
        stack = self.enterContext(Stack())
        stack.apply(POLICY)
        exporter = stack.exporter("n1", scenario())
        self.port = exporter.port
        wait_for("an acknowledged batch", lambda: "batches arrive" in self.ask().stdout)
        self.expect(self.ask(), 0, exporter=("ok",), readings=("ok", "1 GPUs are read", "simulated"), accounting=("warn", "is off on 1 of 1 GPUs", "nvidia-smi -am 1"),
                    allocations=("ok", "0 devices"), push=("ok",))  # fmt: skip

    def test_what_to_look_at_is_found_out(self):
        bare = self.enterContext(tempfile.TemporaryDirectory())
        node = lines(doctor("--root", self.root, "--exporter", f"http://127.0.0.1:{self.port}", "--url", f"http://127.0.0.1:{free_port()}"))
        self.assertIn("driver", node)
        self.assertIn("aggregator", node, "one was named")
        desk = lines(doctor("--root", bare, "--exporter", f"http://127.0.0.1:{self.port}"))
        self.assertIn("aggregator", desk)
        self.assertNotIn("driver", desk, "a desk is no GPU node")


if __name__ == "__main__":
    unittest.main()
