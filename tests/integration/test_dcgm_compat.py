"""--compat=dcgm against what dcgm-exporter would write for the same node: its whole default list, line by line, with every deliberate
difference in one table (tests/support/exporter/dcgm_expected.py) and in exporter/README.md."""

import difflib
import http.server
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import threading
import unittest

from tests.support.daemons import stack
from tests.support.exporter import dcgm_expected as expected
from tests.support.scheduler.kubelet import Kubelet, pod

MIB = 1 << 20
HOPPER, AMPERE = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
DRIVER = "550.163.01"
ALONE, SHARED, CUT, JOB, IDLE, UNTOLD = range(6)
UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{i}" for i in range(6)]
MIG = [f"MIG-00000000-0000-0000-0000-00000000000{i}" for i in range(2)]


def board(i):
    """What the driver tells of a GPU, another value for each."""
    return {
        "active": 80 + i, "memory_active": 20 + i, "encoder": i, "decoder": 10 + i, "power_mw": 412500 + 1000 * i, "energy_mj": 123456789 + i,
        "temperature_c": 61 + i, "memory_temperature_c": 70 + i, "sm_clock_mhz": 1965 + i, "memory_clock_mhz": 2619 + i,
        "memory_bytes": 81559 * MIB, "memory_used_bytes": (4096 + i) * MIB, "memory_reserved_bytes": (540 + i) * MIB,
        "remapped_corrected": 2 + i, "remapped_uncorrected": 1 + i, "remap_failed": i % 2, "pcie_replays": 3 + i,
        "pcie_tx_bytes_per_s": (12345 + i) * 1024, "pcie_rx_bytes_per_s": (67890 + i) * 1024, "nvlink_tx_bytes": 1024, "nvlink_rx_bytes": 2048,
        "engine_active_ppm": 800000 + 10000 * i, "tensor_active_ppm": 300000 + i, "dram_active_ppm": 200000 + i,
    }  # fmt: skip


def as_dcgm(b, partitioned):
    """The same as DCGM tells it: MiB, percent, watts, fractions."""
    values = {
        "SM_CLOCK": b["sm_clock_mhz"], "MEM_CLOCK": b["memory_clock_mhz"], "MEMORY_TEMP": b["memory_temperature_c"], "GPU_TEMP": b["temperature_c"],
        "POWER_USAGE": b["power_mw"] / 1000, "TOTAL_ENERGY_CONSUMPTION": b["energy_mj"], "PCIE_REPLAY_COUNTER": b["pcie_replays"],
        "GPU_UTIL": b["active"], "MEM_COPY_UTIL": b["memory_active"], "ENC_UTIL": b["encoder"], "DEC_UTIL": b["decoder"], "XID_ERRORS": 0,
        "FB_FREE": (b["memory_bytes"] - b["memory_used_bytes"] - b["memory_reserved_bytes"]) // MIB, "FB_USED": b["memory_used_bytes"] // MIB,
        "FB_RESERVED": b["memory_reserved_bytes"] // MIB, "UNCORRECTABLE_REMAPPED_ROWS": b["remapped_uncorrected"],
        "CORRECTABLE_REMAPPED_ROWS": b["remapped_corrected"], "ROW_REMAP_FAILURE": b["remap_failed"], "NVLINK_BANDWIDTH_TOTAL": 0,
        "VGPU_LICENSE_STATUS": 0,
    }  # fmt: skip
    named = {expected.DEV + k: v for k, v in values.items()}
    if not partitioned:
        named |= {expected.PROF + "GR_ENGINE_ACTIVE": b["engine_active_ppm"] / 1e6, expected.PROF + "PIPE_TENSOR_ACTIVE": b["tensor_active_ppm"] / 1e6,
                  expected.PROF + "DRAM_ACTIVE": b["dram_active_ppm"] / 1e6}  # fmt: skip
    return named | {expected.PROF + "PCIE_TX_BYTES": b["pcie_tx_bytes_per_s"], expected.PROF + "PCIE_RX_BYTES": b["pcie_rx_bytes_per_s"]}


def reading(values):
    return " ".join(f"{k}={v}" for k, v in values.items())


# Of the first instance a pod has all, of the second nobody has anything.
INSTANCES = [
    {"gi": 1, "profile": "3g.40gb", "memory_bytes": 40000 * MIB, "memory_used_bytes": 3000 * MIB, "engine_active_ppm": 600000, "tensor_active_ppm": 110000,
     "dram_active_ppm": 120000},
    {"gi": 9, "profile": "1g.10gb", "memory_bytes": 9728 * MIB, "memory_used_bytes": 16 * MIB, "engine_active_ppm": 0, "tensor_active_ppm": 0,
     "dram_active_ppm": 0},
]  # fmt: skip


def scenario(model):
    gpus = []
    for i, uuid in enumerate(UUIDS):
        b = board(i)
        gpu = {"model": model, "memory_mib": 81559, "uuid": uuid, "pci": f"00000000:{0x1B + i:02X}:00.0"}
        if i == UNTOLD:
            gpu["samples"] = False  # the driver does not tell its processes apart
        if i == CUT:
            gpu["mig"] = [{"profile": n["profile"], "gi": n["gi"], "uuid": u} for n, u in zip(INSTANCES, MIG, strict=True)]
            own = [f"@{n['gi']}/0 " + reading({k: v for k, v in n.items() if k not in ("gi", "profile")}) for n in INSTANCES]
            gpu["readings"] = [" ".join(["0s", reading({k: v for k, v in b.items() if not k.endswith("_ppm")}), *own])]
        else:
            gpu["readings"] = ["0s " + reading(b)]
        gpus.append(gpu)

    def process(pid, gpu, sm, mib, name, **more):
        return {"pid": pid, "gpu": gpu, "sm": sm, "memory_mib": mib, "comm": "python3", "pod": {"namespace": "team", "name": name, "container": "main"}, **more}

    return {"name": "compat", "driver": DRIVER, "gpus": gpus, "xids": [{"gpu": ALONE, "at": "1s", "xid": 31}], "processes": [
        process(4001, ALONE, 80, 4096, "alone"), process(4002, SHARED, 50, 1024, "first"), process(4003, SHARED, 10, 512, "first"),
        process(4004, SHARED, 0, 2048, "second"), process(4005, CUT, 60, 3000, "in-mig", instance=0), process(4006, UNTOLD, 10, 100, "third"),
        process(4007, UNTOLD, 20, 200, "fourth")]}  # fmt: skip


def in_team(name, **more):
    return {"namespace": "team", "name": name, "container": "main", "uid": "", **more}


def node(with_owners, model=HOPPER):
    """The truth, for dcgm_expected."""
    gpus = [{"index": i, "uuid": u, "pci": f"00000000:{0x1B + i:02X}:00.0", "model": model, "board": as_dcgm(board(i), i == CUT)} for i, u in enumerate(UUIDS)]
    gpus[ALONE]["board"][expected.DEV + "XID_ERRORS"] = 31
    gpus[CUT]["instances"] = [
        {"gi": n["gi"], "profile": n["profile"], "values": {
            expected.DEV + "FB_USED": n["memory_used_bytes"] // MIB, expected.DEV + "FB_FREE": (n["memory_bytes"] - n["memory_used_bytes"]) // MIB,
            expected.PROF + "GR_ENGINE_ACTIVE": n["engine_active_ppm"] / 1e6, expected.PROF + "PIPE_TENSOR_ACTIVE": n["tensor_active_ppm"] / 1e6,
            expected.PROF + "DRAM_ACTIVE": n["dram_active_ppm"] / 1e6}} for n in INSTANCES]  # fmt: skip
    if with_owners:
        gpus[ALONE]["pods"] = [in_team("alone")]
        # the last one has a replica, and no process
        gpus[SHARED]["pods"] = [in_team("first", gpu_util=60, fb_used=1536), in_team("second", gpu_util=0, fb_used=2048), in_team("idle", gpu_util=0, fb_used=0)]
        gpus[UNTOLD]["pods"] = [in_team("third", gpu_util=None, fb_used=100), in_team("fourth", gpu_util=None, fb_used=200)]
        gpus[CUT]["instances"][0]["pods"] = [in_team("in-mig")]
        gpus[JOB]["jobs"] = ["4711"]
    return {"hostname": "gn1", "driver": DRIVER, "gpus": gpus}


class Node(stack.Stack):
    def __init__(self):
        self.processes, self.port = [], None

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tollgate-compat-")
        self.dir = self.folder.name
        os.chmod(self.dir, 0o755)
        return self

    def close(self):
        for p in reversed(self.processes):
            p.kill9()
        self.folder.cleanup()


def pods_sorted(lines):
    """The order in which the original names the pods of one device is the kubelet's, and means nothing."""
    return [line for _, of_device in itertools.groupby(lines, lambda line: line.partition(",container=")[0].partition("} ")[0]) for line in sorted(of_device)]


def compat_lines(text):
    """Sample lines of dcgm-exporter's names, in their order; what err_msg says is left out."""
    lines = [line for line in text.splitlines() if line.startswith("DCGM_FI_")]
    return pods_sorted(re.sub(r'err_msg="[^"]+"', 'err_msg="*"', line) for line in lines)


def start(n, hostname, *options, model=HOPPER):
    nowhere = os.path.join(n.dir, "none")
    return n.exporter("gn1", scenario(model), *options, "--compat", "dcgm", "--compat-hostname", hostname, "--cgroup-root", n.dir, "--slurm-map-dir", nowhere)


class Compat(unittest.TestCase):
    def compare(self, with_owners, hostname, *options, model=HOPPER):
        truth = node(with_owners, model)
        wanted = pods_sorted(expected.rendered(line, truth, hostname) for line in expected.deliberate(expected.original(truth)))
        with Node() as n:
            e = start(n, hostname, *options, model=model)

            def settled():
                lines = compat_lines(stack.request("GET", e.url + "/metrics").text())
                return lines if lines == wanted else None

            try:
                stack.wait_for("dcgm-exporter's lines", settled, e)
            except AssertionError as error:
                found = compat_lines(stack.request("GET", e.url + "/metrics").text())
                raise AssertionError("\n".join([str(error), *difflib.unified_diff(wanted, found, "dcgm-exporter", "tollgate", n=0)])) from None

    def test_a_node_without_owners_is_the_same_line_by_line(self):
        with tempfile.TemporaryDirectory() as d:
            self.compare(False, "hostname", "--kubelet-socket", os.path.join(d, "none"), "--proc-root", d)

    def test_before_hopper_dcgm_tells_what_nvml_does_not(self):
        with tempfile.TemporaryDirectory() as d:
            self.compare(False, "hostname", "--kubelet-socket", os.path.join(d, "none"), "--proc-root", d, "--dcgm-library",
                         os.path.join(stack.BUILD, "sim", "libdcgm.so.4"), model=AMPERE)  # fmt: skip

    def test_pods_shared_gpus_instances_and_jobs_are_the_same_but_for_the_table(self):
        with tempfile.TemporaryDirectory() as d:
            os.chmod(d, 0o755)
            hpc = os.path.join(d, "hpc")
            os.mkdir(hpc, 0o755)
            with open(os.path.join(hpc, str(JOB)), "w", encoding="ascii") as f:
                f.write("4711\n")
            with Kubelet(os.path.join(d, "kubelet.sock")) as k:
                k.advertised = [UUIDS[ALONE], *(f"{UUIDS[SHARED]}::{i}" for i in range(4)), *MIG, UUIDS[IDLE],
                                *(f"{UUIDS[UNTOLD]}::{i}" for i in range(4))]
                k.pods = [pod("team", "alone", main=[UUIDS[ALONE]]), pod("team", "first", main=[f"{UUIDS[SHARED]}::0"]),
                          pod("team", "second", main=[f"{UUIDS[SHARED]}::1"]), pod("team", "idle", main=[f"{UUIDS[SHARED]}::2"]),
                          pod("team", "in-mig", main=[MIG[0]]), pod("team", "third", main=[f"{UUIDS[UNTOLD]}::0"]),
                          pod("team", "fourth", main=[f"{UUIDS[UNTOLD]}::1"])]  # fmt: skip
                self.compare(True, "Hostname", "--kubelet-socket", k.path, "--hpc-job-mapping-dir", hpc, "--slurm-map-uid", str(os.geteuid()))


class Table(unittest.TestCase):
    """The table of differences itself."""

    def test_every_difference_is_one_and_is_explained(self):
        truth = node(True)
        lines = expected.deliberate(expected.original(truth))
        with open(os.path.join(stack.ROOT, "exporter", "README.md"), encoding="utf-8") as f:
            words = f.read()
        for name, change in expected.DIFFERENCES.items():
            with self.subTest(difference=name):
                self.assertIn(f"\n| {name} |", words)
                if change is not expected.own_words:
                    self.assertNotEqual(expected.deliberate(expected.original(truth), leave_out=[name]), lines)

    def test_the_default_list_has_its_25_fields_by_number(self):
        self.assertEqual(len(expected.FIELDS), 25)
        self.assertEqual([f[0] for f in expected.FIELDS], sorted(f[0] for f in expected.FIELDS))
        with open(os.path.join(stack.ROOT, "tests", "golden", "exporter.dcgm"), encoding="utf-8") as f:
            types = re.findall(r"^# TYPE (\S+) (\S+)$", f.read(), re.M)
        self.assertEqual(types, [(name, "counter" if name in expected.COUNTERS else "gauge") for _, name, _ in expected.FIELDS])

    def test_sums_over_the_originals_lines_are_too_large(self):
        truth = node(True)

        def watts(lines):
            return sum(line.value for line in lines if line.name == expected.DEV + "POWER_USAGE")

        boards = sum(g["board"][expected.DEV + "POWER_USAGE"] for g in truth["gpus"])
        self.assertGreater(watts(expected.original(truth)), boards)
        self.assertAlmostEqual(watts(expected.deliberate(expected.original(truth))), boards)


class Original:
    """dcgm-exporter's page for the node, served."""

    def __enter__(self):
        truth = node(True)
        body = "".join(expected.rendered(line, truth, "Hostname") + "\n" for line in expected.original(truth)).encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self.server.server_address[1]

    def __exit__(self, *exc):
        self.server.shutdown()
        self.server.server_close()


class Guide(unittest.TestCase):
    """The configurations of dashboards/README.md, on a real Prometheus."""

    def setUp(self):
        if shutil.which("prometheus") is None:
            self.skipTest("Prometheus is not installed")
        self.node = self.enterContext(Node())
        self.exporter = start(self.node, "Hostname", "--kubelet-socket", os.path.join(self.node.dir, "none"))

    def text_of(self, name):
        path = os.path.join(stack.ROOT, "dashboards", "prometheus", name)
        done = subprocess.run(["promtool", "check", "config", path], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(path, encoding="utf-8") as f:
            return f.read().replace("15s", "1s")

    def prometheus(self, text):
        config, port = os.path.join(self.node.dir, "prometheus.yml"), stack.free_port()
        with open(config, "w", encoding="utf-8") as f:
            f.write(text)
        p = stack.Process(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.node.dir}/data", f"--web.listen-address=127.0.0.1:{port}"],
                          os.path.join(self.node.dir, "prometheus.log"))  # fmt: skip
        self.node.processes.append(p)

        def query(expression):
            try:
                reply = stack.request("GET", f"http://127.0.0.1:{port}/api/v1/query" + stack.query(query=expression))
            except OSError:
                return []
            return reply.json()["data"]["result"] if reply.status == 200 else []

        return lambda expression: stack.wait_for(expression, lambda: query(expression), p)

    def test_side_by_side_nothing_is_counted_twice_and_both_can_be_compared(self):
        with open(os.path.join(stack.ROOT, "dashboards", "README.md"), encoding="utf-8") as f:
            queries = re.findall(r"^ +((?:max|sum) by \(UUID\).*)$", f.read(), re.M)
        self.assertEqual(len(queries), 2)
        with Original() as original:
            text = self.text_of("beside-dcgm-exporter.yml")
            query = self.prometheus(text.replace("gn1.example:9400", f"127.0.0.1:{original}").replace("gn1.example:9401", f"127.0.0.1:{self.exporter.port}"))
            query("tollgate_compat:DCGM_FI_DEV_POWER_USAGE")
            self.assertEqual({r["metric"]["job"] for r in query('{__name__=~"DCGM_FI_.+"}')}, {"dcgm-exporter"})
            differences = {r["metric"]["UUID"]: float(r["value"][1]) for r in query(queries[0])}
            self.assertEqual(differences, dict.fromkeys(UUIDS, 0.0))
            times = {r["metric"]["UUID"]: float(r["value"][1]) for r in query(queries[1])}
            self.assertEqual([times[u] for u in UUIDS], [1, 3, 2, 1, 1, 2])  # three pods, two instances, two pods

    def test_after_the_switch_series_go_on_under_the_old_job_and_instance(self):
        text = self.text_of("instead-of-dcgm-exporter.yml").replace("gn1.example:9401", f"127.0.0.1:{self.exporter.port}")
        query = self.prometheus(text.replace(":9401", f":{self.exporter.port}"))
        found = query("DCGM_FI_DEV_POWER_USAGE")
        self.assertEqual({(r["metric"]["job"], r["metric"]["instance"]) for r in found}, {("dcgm-exporter", "127.0.0.1:9400")})
        self.assertEqual({r["metric"]["job"] for r in query("tollgate_gpu_power_watts")}, {"tollgate-exporter"})


if __name__ == "__main__":
    unittest.main()
