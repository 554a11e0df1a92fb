"""tollgate doctor on whole and broken systems: the line that matters, its remedy, and the exit code."""

# also: san

import email.utils
import http.server
import json
import os
import subprocess
import tempfile
import threading
import time
import unittest

from tests.support.stack import WAIT_S, Stack, free_port, program, wait_for

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
        stack.pg.stop()
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
            "usr/lib64/libnvidia-ml.so.1": "", "dev/nvidiactl": "", "dev/nvidia0": "", "dev/nvidia-uvm": "",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n", "var/log/pods/a_b_c/0.log": "",
            "var/lib/kubelet/pod-resources/kubelet.sock": "", "var/lib/tollgate/spool/lock": "",
        }.items():  # fmt: skip
            path = os.path.join(self.root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="ascii") as f:
                f.write(text)
        os.makedirs(os.path.join(self.root, "proc/self/ns"))
        os.symlink(HOST_PID_NAMESPACE, os.path.join(self.root, "proc/self/ns/pid"))
        self.port = free_port()

    def ask(self, *args):
        return doctor("--node", "--root", self.root, "--exporter", f"http://127.0.0.1:{self.port}", *args)

    def remove(self, name):
        os.unlink(os.path.join(self.root, name))

    def test_a_node_with_everything_but_an_exporter(self):
        found = self.expect(self.ask(), 1, driver=("ok", "550.163.01"), NVML_library=("ok",), GPU_devices=("ok", "2 device files"),
                            process_namespace=("ok",), cgroups=("ok", "version 2"), pod_directories=("ok", "1 pods"), kubelet_socket=("ok",),
                            exporter=("fail", "start tollgate-exporter"))  # fmt: skip
        self.assertNotIn("aggregator", found)
        self.assertIn(found["spool"][0], ("ok", "warn"))

    def test_each_missing_thing_is_one_line_with_its_remedy(self):
        self.remove("proc/driver/nvidia/version")
        self.remove("usr/lib64/libnvidia-ml.so.1")
        self.remove("dev/nvidiactl")
        self.remove("dev/nvidia0")
        self.remove("proc/self/ns/pid")
        os.symlink("pid:[4026532177]", os.path.join(self.root, "proc/self/ns/pid"))
        self.remove("sys/fs/cgroup/cgroup.controllers")
        self.remove("var/lib/kubelet/pod-resources/kubelet.sock")
        self.remove("var/log/pods/a_b_c/0.log")
        os.removedirs(os.path.join(self.root, "var/log/pods/a_b_c"))
        done = self.ask("--spool-dir", "/var/lib/elsewhere")
        self.expect(done, 1, driver=("fail", "modprobe nvidia"), NVML_library=("fail", "--nvml-library"), GPU_devices=("fail", "nvidia-modprobe"),
                    process_namespace=("fail", "hostPID"), cgroups=("warn", "mount"), pod_directories=("fail", "host mount"),
                    kubelet_socket=("warn", "does not exist"), spool=("fail", "/var/lib/elsewhere does not exist"))  # fmt: skip

    def test_a_machine_without_kubernetes_needs_no_kubelet(self):
        self.remove("var/lib/kubelet/pod-resources/kubelet.sock")
        os.removedirs(os.path.join(self.root, "var/lib/kubelet/pod-resources"))
        self.remove("var/log/pods/a_b_c/0.log")
        os.removedirs(os.path.join(self.root, "var/log/pods/a_b_c"))
        found = lines(self.ask())
        self.assertNotIn("kubelet socket", found)
        self.assertNotIn("pod directories", found)

    def test_a_node_whose_exporter_sends(self):
        stack = self.enterContext(Stack())
        stack.apply(POLICY)
        exporter = stack.exporter("n1", scenario())
        self.port = exporter.port
        wait_for("an acknowledged batch", lambda: "batches arrive" in self.ask().stdout)
        self.expect(self.ask(), 0, exporter=("ok",), readings=("ok", "1 GPUs are read", "simulated"), push=("ok",))

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
