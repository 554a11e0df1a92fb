"""The node daemon as a process: a driver that hangs, the end of it all, who may read it, and as whom it runs."""

# also: san tsan

import base64
import contextlib
import gzip
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
import unittest.mock

from tests.support.daemons import stack
from tests.support.daemons.prometheus import Prometheus
from tests.support.exporter import segments
from tests.support.wire import wire

UNITS = 5040
UNKNOWN = 5  # the state's number in common/wire/WIRE.md
HASH = "$2y$04$abcdefghijklmnopqrstuu/LVz6MZlItEy42I2juLihZ66HnQx/cy"  # of PASSWORD
USER, PASSWORD = "ada", "open sesame"
BASIC = {"Authorization": "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}


def scenario(*calls, gpus=3, **more):
    return {
        "name": "lab",
        "gpus": [{"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "count": gpus}],
        "processes": [
            {"pid": 4000 + g, "gpu": g, "sm": 50, "memory_mib": 1024, "pod": {"namespace": "acme", "name": f"job-{g}"}} for g in range(gpus)
        ],
        "calls": list(calls),
        **more,
    }


def hang(name, at="0s", **more):
    return {"name": name, "at": at, "hang": True, **more}


def logged(process):
    with open(process.log, encoding="utf-8") as f:
        return f.read()


class Node(stack.Process):
    """An exporter on the simulator, without an aggregator."""

    def __init__(self, directory, world, *options, url="http"):
        self.dir, self.port = directory, stack.free_port()
        for sub in ("proc", "pods"):
            os.makedirs(os.path.join(directory, sub), exist_ok=True)
        self.spool = os.path.join(directory, "spool")
        self.release_file = os.path.join(directory, "release")
        path = os.path.join(directory, "scenario.yaml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(world, f)
        env = {
            "TOLLGATE_SIM_SCENARIO": path,
            "TOLLGATE_SIM_PROC": os.path.join(directory, "proc"),
            "TOLLGATE_SIM_PODS": os.path.join(directory, "pods"),
            "TOLLGATE_SIM_RELEASE": self.release_file,
        }
        self.url = f"{url}://127.0.0.1:{self.port}"
        super().__init__(
            [stack.program("tollgate-exporter"), "--node", "n1", "--listen", f"127.0.0.1:{self.port}",
             "--nvml-library", os.path.join(stack.BUILD, "sim", "libnvidia-ml.so.1"), "--interval", "1s",
             "--proc-root", env["TOLLGATE_SIM_PROC"], "--pods-root", env["TOLLGATE_SIM_PODS"], "--spool-dir", self.spool, *options],
            os.path.join(directory, "log"), env,
        )  # fmt: skip

    def get(self, path, headers=None):
        return stack.request("GET", self.url + path, headers=headers)

    def serves(self):
        return stack.wait_for("the exporter's /healthz", lambda: stack.answers(self.url + "/healthz"), self)

    def metric(self, name):
        """The value of a metric without labels; None when it is not there."""
        with contextlib.suppress(OSError):
            found = re.search(rf"^{name} (\S+)$", self.get("/metrics").text(), re.M)
            return float(found[1]) if found else None
        return None

    def wait_metric(self, name, condition):
        return stack.wait_for(f"{name} as it should be", lambda: (v := self.metric(name)) is not None and condition(v), self)

    def release(self):
        with open(self.release_file, "w", encoding="ascii"):
            pass

    def logged(self):
        return logged(self)

    def books(self):
        """Per GPU: the time that its records cover, and how much of it is unknown; in nanoseconds of a whole GPU."""
        gpus, covered, unknown = {}, {}, {}
        for payload in segments.frames_of(self.spool):
            batch = wire.decode(gzip.decompress(payload))
            gpus.update({d["id"]: d["uuid"] for d in batch["devices"]})
            for r in batch["records"]:
                uuid = gpus[r["device"]]
                covered[uuid] = covered.get(uuid, 0) + r["units"] * r["held_ns"]
                if r["state"] == UNKNOWN:
                    unknown[uuid] = unknown.get(uuid, 0) + r["units"] * r["held_ns"]
        return covered, unknown


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = self.enterContext(tempfile.TemporaryDirectory())

    def node(self, world, *options, **more):
        n = Node(tempfile.mkdtemp(dir=self.dir), world, *options, **more)
        self.addCleanup(n.kill9)
        return n

    def refused(self, node, status, words):
        self.assertEqual(node.child.wait(stack.WAIT_S), status, node.words())
        self.assertIn(words, node.logged())

    def problem(self, reply, words):
        self.assertEqual((reply.status, reply.headers["Content-Type"]), (503, "application/problem+json"))
        self.assertIn(words, reply.json()["detail"])


class AHangingDriver(Case):
    def test_a_gpu_that_hangs_is_unknown_and_the_others_go_on_exactly(self):
        n = self.node(scenario(hang("nvmlDeviceGetMemoryInfo_v2", gpu=1, at="2s")), "--sample-interval", "500ms")
        n.wait_metric("tollgate_exporter_silent_gpus", lambda v: v == 1)
        ticks = n.metric("tollgate_exporter_ticks_total")
        n.wait_metric("tollgate_exporter_ticks_total", lambda v: v >= ticks + 4)
        page = n.get("/metrics").text()
        up = dict(re.findall(r'^tollgate_gpu_up\{gpu="(\d)".*\} (\d)$', page, re.M))
        self.assertEqual(up, {"0": "1", "1": "0", "2": "1"})
        self.assertGreater(n.metric("tollgate_exporter_silent_seconds"), 0)
        self.assertEqual(n.metric("tollgate_exporter_hanging_calls"), 1)
        self.assertEqual((n.get("/healthz").status, n.get("/readyz").status), (200, 200))
        n.release()
        n.wait_metric("tollgate_exporter_silent_gpus", lambda v: v == 0)
        n.wait_metric("tollgate_exporter_hanging_calls", lambda v: v == 0)
        self.assertEqual(n.stop(), 0, n.words())
        log = n.logged()
        self.assertEqual((log.count("GPUs do not answer"), log.count("every GPU answers")), (1, 1), log)
        covered, unknown = n.books()
        self.assertEqual(len(covered), 3)
        self.assertEqual(len(set(covered.values())), 1, "all three are covered for the same time")
        self.assertEqual(len(unknown), 1, "one of them was unknown for a while")
        self.assertLess(max(unknown.values()), max(covered.values()))

    def test_the_end_comes_with_a_call_that_never_returns(self):
        for call in (hang("nvmlDeviceGetPowerUsage", gpu=0, at="2s"), hang("nvmlDeviceGetCount_v2", at="2s")):
            with self.subTest(call["name"]):
                n = self.node(scenario(call))
                n.wait_metric("tollgate_exporter_hanging_calls", lambda v: v == 1)
                self.assertEqual(n.stop(), 0, n.words())
                self.assertIn("a call has not returned and is left behind", n.logged())
                covered, unknown = n.books()
                self.assertEqual(len(set(covered.values())), 1)
                self.assertGreater(sum(unknown.values()), 0)

    def test_a_driver_that_hangs_as_a_whole_is_not_ready_but_alive(self):
        n = self.node(scenario(hang("nvmlDeviceGetCount_v2", at="2s")))
        stack.wait_for("/readyz to be well first", lambda: stack.answers(n.url + "/readyz"), n)
        stack.wait_for("/readyz to say no", lambda: n.get("/readyz").status == 503, n)
        self.problem(n.get("/readyz"), "the GPU driver does not return from listing its GPUs")
        self.assertEqual(n.get("/healthz").status, 200)
        n.wait_metric("tollgate_exporter_silent_gpus", lambda v: v == 3)
        n.release()
        stack.wait_for("/readyz to be well again", lambda: stack.answers(n.url + "/readyz"), n)
        self.assertEqual(n.stop(), 0, n.words())

    def test_a_driver_that_hangs_from_the_start_is_waited_for(self):
        n = self.node(scenario(hang("nvmlInit_v2")))
        n.serves()
        self.problem(n.get("/readyz"), "")
        stack.wait_for("the reason", lambda: "does not return from opening" in n.get("/readyz").json()["detail"], n)
        self.assertIn("the GPU driver does not answer, it is waited for", n.logged())
        self.assertEqual(n.metric("tollgate_exporter_silent_gpus"), 0)
        n.release()
        stack.wait_for("/readyz to be well", lambda: stack.answers(n.url + "/readyz"), n)
        self.assertEqual(n.stop(), 0, n.words())
        self.assertIn("the GPU driver answers", n.logged())
        flags = {wire.decode(gzip.decompress(f))["flags"] for f in segments.frames_of(n.spool)}
        self.assertEqual(flags, {1}, "all that was metered is known to be simulated")

    def test_the_end_comes_while_the_driver_hangs_from_the_start(self):
        n = self.node(scenario(hang("nvmlInit_v2")))
        n.serves()
        self.assertEqual(n.stop(), 0, n.words())

    def test_a_driver_that_is_not_there_ends_the_start(self):
        self.refused(self.node(scenario(init_error=9)), 1, "no NVIDIA driver answers")
        self.refused(self.node(scenario(), "--nvml-library", "/nonexistent.so"), 1, "cannot be loaded")

    def test_batches_reach_the_ledger_while_a_gpu_hangs(self):
        release = os.path.join(self.dir, "release")
        with unittest.mock.patch.dict(os.environ, {"TOLLGATE_SIM_RELEASE": release}), stack.Stack() as s:
            e = s.exporter("n1", scenario(hang("nvmlDeviceGetTemperature", gpu=0, at="2s")))
            count = "select count(*) from tollgate.ingest_batch"
            stack.wait_for("the hang", lambda: "GPUs do not answer" in logged(e), e)
            before = int(s.sql(count)[0][0])
            stack.wait_for("three more batches", lambda: int(s.sql(count)[0][0]) >= before + 3, e)
            self.assertEqual(e.stop(), 0, e.words())
            spooled = len(list(segments.frames_of(os.path.join(e.dir, "spool"))))
            self.assertEqual(int(s.sql(count)[0][0]), spooled, "the last batch was sent too")


class GpusThatCannotBeRead(Case):
    REFUSED = {"name": "nvmlDeviceGetHandleByIndex_v2", "status": 4}
    DOWN, BACK, XID = "a GPU is down", "a GPU that was down is read again", "a GPU reports a critical error (XID)"

    def gpus(self, n):
        return {state: int(v) for state, v in re.findall(r'^tollgate_exporter_gpus\{state="(\w+)"\} (\d+)$', n.get("/metrics").text(), re.M)}

    def test_a_gpu_whose_handle_is_refused_is_counted_and_named_in_the_log_once(self):
        n = self.node(scenario({**self.REFUSED, "gpu": 1}), "--sample-interval", "200ms")
        n.serves()
        n.wait_metric("tollgate_exporter_ticks_total", lambda v: v >= 4)
        self.assertEqual(self.gpus(n), {"listed": 3, "readable": 2, "down": 1})
        self.assertEqual(n.get("/readyz").status, 200)
        self.assertEqual(n.stop(), 0, n.words())
        self.assertEqual(n.logged().count("the driver lists GPUs that it does not let be read"), 1, n.logged())
        self.assertIn("GPU 1: no permission", n.logged())
        self.assertNotIn("every GPU that the driver lists can be named", n.logged())

    def test_the_instances_of_a_gpu_are_metered_beside_slots_that_are_an_invalid_argument(self):
        world = scenario(gpus=1, driver_quirk="invalid_slots")
        world["gpus"][0]["mig"] = ["3g.40gb", "2g.20gb"]
        world["processes"] = [{"pid": 4000, "gpu": 0, "instance": 1, "sm": 50, "memory_mib": 1024, "pod": {"namespace": "acme", "name": "job"}}]
        n = self.node(world, "--sample-interval", "200ms")
        n.serves()
        n.wait_metric("tollgate_exporter_ticks_total", lambda v: v >= 4)
        page = n.get("/metrics").text()
        self.assertEqual(re.findall(r'^tollgate_mig_memory_used_bytes\{.*profile="([^"]+)".*\}', page, re.M), ["3g.40gb", "2g.20gb"])
        self.assertRegex(page, r'(?m)^tollgate_workload_gpu_seconds_total\{.*pod="job".*state="used"\} \d*\.?\d*[1-9]')
        self.assertEqual(self.gpus(n), {"listed": 1, "readable": 1, "down": 0})

    def test_a_node_whose_gpus_are_all_refused_is_not_ready(self):
        n = self.node(scenario(self.REFUSED, gpus=2))
        n.serves()
        n.wait_metric("tollgate_exporter_ticks_total", lambda v: v >= 1)
        stack.wait_for("the reason", lambda: "can be read" in n.get("/readyz").json()["detail"], n)
        self.problem(n.get("/readyz"), "none of the 2 GPUs can be read: GPU 0: no permission; GPU 1: no permission")
        self.assertEqual(n.get("/healthz").status, 200)
        self.assertEqual(self.gpus(n), {"listed": 2, "readable": 0, "down": 2})

    def test_a_node_whose_driver_lists_no_gpu_is_not_ready(self):
        n = self.node({"name": "empty", "gpus": []})
        n.serves()
        stack.wait_for("the reason", lambda: "lists no GPU" in n.get("/readyz").json().get("detail", ""), n)
        self.assertEqual(n.get("/healthz").status, 200)
        self.assertEqual(self.gpus(n), {"listed": 0, "readable": 0, "down": 0})

    def test_a_gpu_that_goes_down_and_comes_back_and_its_xid_are_one_line_each(self):
        world = scenario(gpus=2, faults=[{"gpu": 1, "at": "4s", "until": "8s", "lost": True}], xids=[{"gpu": 1, "at": "3500ms", "xid": 79}])
        n = self.node(world, "--sample-interval", "200ms")
        n.serves()
        stack.wait_for("the GPU to be back", lambda: self.BACK in n.logged(), n)
        self.assertEqual(self.gpus(n), {"listed": 2, "readable": 2, "down": 0})
        self.assertEqual(n.stop(), 0, n.words())
        log = n.logged()
        self.assertEqual([log.count(words) for words in (self.DOWN, self.BACK, self.XID)], [1, 1, 1], log)
        self.assertRegex(log, r'level=warn .*a GPU is down.* gpu=GPU-\S+ index=1 reason="GPU is lost"')
        self.assertRegex(log, r"level=warn .*\(XID\).* index=1 xid=79 count=1")

    def test_a_node_whose_gpus_are_all_down_is_not_ready_until_one_is_back(self):
        broken = {"name": "nvmlDeviceGetMigMode", "status": 16}
        n = self.node(scenario(broken, gpus=2))
        n.serves()
        stack.wait_for("the reason", lambda: "can be read" in n.get("/readyz").json()["detail"], n)
        self.problem(n.get("/readyz"), "none of the 2 GPUs can be read: GPU-")
        self.problem(n.get("/readyz"), ": GPU requires a reset")
        self.assertEqual(n.get("/healthz").status, 200)
        self.assertEqual(self.gpus(n), {"listed": 2, "readable": 0, "down": 2})
        n = self.node(scenario({**broken, "until": "3s"}, gpus=2))
        stack.wait_for("/readyz to be well again", lambda: stack.answers(n.url + "/readyz"), n)
        self.assertEqual(n.stop(), 0, n.words())
        self.assertEqual(n.logged().count(self.DOWN), n.logged().count(self.BACK), n.logged())


class WhoMayReadIt(Case):
    def setUp(self):
        super().setUp()
        subprocess.run([stack.program("tests/certs_tool"), self.dir], check=True)
        self.web = os.path.join(self.dir, "web.yml")

    def configure(self, tls=True, users=None, **more):
        config = {}
        if tls:
            config["tls_server_config"] = {"cert_file": "server.pem", "key_file": "server.key", **more}
        if users is not None:
            config["basic_auth_users"] = users
        with open(self.web, "w", encoding="utf-8") as f:
            json.dump(config, f)

    def curl(self, n, path, *args):
        """The status, and the headers and body as text; status 0: no answer at all."""
        done = subprocess.run(
            ["curl", "-s", "-i", "--noproxy", "*", "--cacert", os.path.join(self.dir, "ca.pem"), *args, n.url + path],
            capture_output=True, text=True, timeout=stack.WAIT_S,
        )  # fmt: skip
        return int(done.stdout.split()[1]) if done.stdout else 0, done.stdout

    def wait_curl(self, n, status, path, *args):
        stack.wait_for(f"{status} for {path}", lambda: self.curl(n, path, *args)[0] == status, n)

    def test_name_and_password_over_tls(self):
        self.configure(users={USER: HASH})
        n = self.node(scenario(), "--web-config-file", self.web, url="https")
        ada = ("-u", f"{USER}:{PASSWORD}")
        self.wait_curl(n, 200, "/readyz", *ada)
        for path in ("/metrics", "/healthz", "/readyz", "/"):
            status, text = self.curl(n, path)
            # a kubelet that probes has no password
            self.assertEqual(status, 200 if path.endswith("z") else 401, path)
            if status == 401:
                self.assertRegex(text, r'(?i)www-authenticate: Basic realm="tollgate"')
            self.assertEqual(self.curl(n, path, "-u", f"{USER}:no")[0], 401)
            self.assertEqual(self.curl(n, path, *ada)[0], 200)
        self.assertEqual(self.curl(n, "/metrics", "-u", f"nobody:{PASSWORD}")[0], 401)

    def test_a_flood_of_wrong_passwords_does_not_keep_the_right_one_out(self):
        self.configure(tls=False, users={USER: HASH})
        n = self.node(scenario(), "--web-config-file", self.web)
        self.wait_curl(n, 200, "/readyz", "-u", f"{USER}:{PASSWORD}")
        statuses = set()
        for i in range(60):
            wrong = base64.b64encode(f"{USER}:{i}".encode()).decode()
            statuses.add(n.get("/metrics", {"Authorization": f"Basic {wrong}"}).status)
            self.assertEqual(n.get("/metrics", BASIC).status, 200)
        self.assertLessEqual(statuses, {401, 429, 503})
        self.assertIn(401, statuses)

    def test_a_changed_file_takes_effect_on_sighup_and_a_wrong_one_does_not(self):
        self.configure(users={USER: HASH}, min_version="TLS13")
        n = self.node(scenario(), "--web-config-file", self.web, url="https")
        ada, bob = ("-u", f"{USER}:{PASSWORD}"), ("-u", f"bob:{PASSWORD}")
        self.wait_curl(n, 200, "/healthz", *ada)
        self.assertEqual(self.curl(n, "/healthz", "--tls-max", "1.2", *ada)[0], 0)
        self.configure(users={"bob": HASH})
        n.child.send_signal(signal.SIGHUP)
        self.wait_curl(n, 200, "/healthz", "--tls-max", "1.2", *bob)
        self.assertEqual(self.curl(n, "/healthz", *ada)[0], 401)
        for wrong, words in (({"users": {"bob": "secret"}}, "this is no bcrypt hash"), ({"tls": False}, "a restart is needed")):
            self.configure(**wrong)
            n.child.send_signal(signal.SIGHUP)
            stack.wait_for("the refusal", lambda text=words: text in n.logged(), n)
            self.assertEqual(self.curl(n, "/healthz", *bob)[0], 200)

    def test_client_certificates_by_the_web_configuration(self):
        self.configure(client_ca_file="ca.pem", client_auth_type="RequireAndVerifyClientCert")
        n = self.node(scenario(), "--web-config-file", self.web, url="https")
        client = [word for name, end in (("cert", "pem"), ("key", "key")) for word in (f"--{name}", os.path.join(self.dir, f"client.{end}"))]
        self.wait_curl(n, 200, "/healthz", *client)
        self.assertEqual(self.curl(n, "/healthz")[0], 0)

    def test_prometheus_scrapes_it_and_promtool_finds_nothing_wrong(self):
        self.configure(users={USER: HASH})
        n = self.node(scenario(), "--web-config-file", self.web, url="https")
        self.wait_curl(n, 200, "/readyz", "-u", f"{USER}:{PASSWORD}")
        more = {"scheme": "https", "tls_config": {"ca_file": os.path.join(self.dir, "ca.pem"), "server_name": "localhost"},
                "basic_auth": {"username": USER, "password": PASSWORD}}  # fmt: skip
        p = Prometheus(os.path.join(self.dir, "prometheus"), {"exporter": [f"127.0.0.1:{n.port}"]}, more={"exporter": more})
        self.addCleanup(p.kill9)
        stack.wait_for("a scrape", lambda: [r for r in p.query('up{job="exporter"}') if r["value"][1] == "1"], p)
        stack.wait_for("every GPU on Prometheus", lambda: len(p.query("tollgate_gpu_up == 1")) == 3, p)
        page = self.curl(n, "/metrics", "-u", f"{USER}:{PASSWORD}")[1].split("\n\n", 1)[1]
        done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=stack.WAIT_S)
        # a public name of the design that finance reads in hours; promtool would have it in seconds
        complaints = [line for line in (done.stdout + done.stderr).splitlines() if "_hours" not in line]
        self.assertEqual(complaints, [])

    def test_wrong_files_and_both_ways_at_once_are_refused_as_options(self):
        self.configure()
        self.refused(self.node(scenario(), "--web-config-file", self.web, "--tls-cert", "a", "--tls-key", "b"), 2, "not with both")
        self.refused(self.node(scenario(), "--web-config-file", "/nonexistent.yml"), 2, "/nonexistent.yml")
        with open(self.web, "w", encoding="utf-8") as f:
            f.write("tls_server_config:\n  cipher_suites: [x]\n")
        self.refused(self.node(scenario(), "--web-config-file", self.web, "-n"), 2, f"{self.web}:2: 'cipher_suites' is not supported")


@unittest.skipUnless(os.geteuid() == 0, "only root can become somebody else")
@unittest.skipIf(os.path.basename(stack.BUILD) == "tsan", "the sanitizer has a thread of its own, older than main")
class AsWhom(Case):
    def folders_for(self, user):
        os.chmod(self.dir, 0o755)
        directory = tempfile.mkdtemp(dir=self.dir)
        for sub in ("", "proc", "pods", "spool"):
            os.makedirs(os.path.join(directory, sub), exist_ok=True)
            shutil.chown(os.path.join(directory, sub), user)
        return directory

    def tasks(self, n):
        """What the kernel says of each thread."""
        folder = f"/proc/{n.child.pid}/task"
        for task in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError), open(f"{folder}/{task}/status", encoding="utf-8") as f:
                yield dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)

    def is_nobody(self, status):
        uid = str(pwd.getpwnam("nobody").pw_uid)
        return status["Uid"].split() == [uid] * 4 and int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0 and status["NoNewPrivs"] == "1"

    def test_every_thread_leaves_root(self):
        n = Node(self.folders_for("nobody"), scenario(), "--user", "nobody")
        self.addCleanup(n.kill9)
        stack.wait_for("/readyz", lambda: stack.answers(n.url + "/readyz"), n)
        self.assertEqual([s for s in self.tasks(n) if not self.is_nobody(s)], [])
        self.assertIn('msg="root is left" user=nobody', n.logged())
        self.assertEqual(n.stop(), 0, n.words())

    def test_a_thread_that_hangs_in_the_driver_leaves_root_when_it_returns(self):
        n = Node(self.folders_for("nobody"), scenario(hang("nvmlInit_v2")), "--user", "nobody")
        self.addCleanup(n.kill9)
        n.serves()
        self.assertEqual(sum(not self.is_nobody(s) for s in self.tasks(n)), 1, "the one that hangs")
        n.release()
        stack.wait_for("/readyz", lambda: stack.answers(n.url + "/readyz"), n)
        self.assertEqual([s for s in self.tasks(n) if not self.is_nobody(s)], [])
        self.assertEqual(n.stop(), 0, n.words())

    def test_a_user_that_cannot_be_is_refused(self):
        self.refused(self.node(scenario(), "--user", "no-such-user"), 1, "there is no 'no-such-user'")
        self.refused(self.node(scenario(), "--user", "root"), 1, "is root")
        self.refused(self.node(scenario(), "--user", "nobody"), 1, "Permission denied")


if __name__ == "__main__":
    unittest.main()
