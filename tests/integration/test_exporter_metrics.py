"""/metrics of a running exporter as a real Prometheus takes it in: every family is there, and what has ended is gone."""

import contextlib
import glob
import gzip
import os
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from tests.support.daemons import stack
from tests.support.daemons.prometheus import Prometheus

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
GOLDEN = os.path.join(stack.ROOT, "tests", "golden", "exporter.metrics")
# Not on this node: it has no kubelet, so that nobody can be on a device of others, and pushes to no aggregator.
ELSEWHERE = {
    "tollgate_workload_intruder",
    "tollgate_exporter_kubelet_up",
    "tollgate_exporter_kubelet_failures_total",
    "tollgate_exporter_kubelet_answer_age_seconds",
    "tollgate_exporter_push_requests_total",
    "tollgate_exporter_push_last_success_timestamp_seconds",
}

POD = {"namespace": "research", "name": "train-0", "container": "main"}
NODE = {
    "name": "metrics",
    "driver": "550.163.01",
    "gpus": [
        {
            "model": "NVIDIA H100 80GB HBM3",
            "memory_mib": 81559,
            "idle_watts": 70,
            "max_watts": 700,
            "accounting": True,
            "readings": ["0s ecc_corrected=4 remapped_uncorrected=1 remap_pending=1 throttle_reasons=68"],
        },
        {"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "idle_watts": 70, "max_watts": 700, "mig": ["3g.40gb", "1g.10gb"]},
    ],
    "processes": [
        {"pid": 4001, "gpu": 0, "sm": 90, "memory_mib": 1024, "comm": "python3", "pod": POD},
        {"pid": 4002, "gpu": 1, "instance": 0, "sm": 50, "memory_mib": 2048, "comm": "python3", "pod": {**POD, "name": "train-1"}},
    ],
    "xids": [{"gpu": 0, "at": "1s", "xid": 31}],
}


class Node(stack.Stack):
    """Exporters without an aggregator."""

    def __init__(self):
        self.processes, self.port = [], None

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tollgate-metrics-")
        self.dir = self.folder.name
        return self

    def close(self):
        for p in reversed(self.processes):
            p.kill9()
        self.folder.cleanup()


# What a kernel with v2 counts for a cgroup.
CGROUP_FILES = {
    "cgroup.procs": "",
    "cpu.stat": "usage_usec 7500000\nuser_usec 5000000\nsystem_usec 2500000\n",
    "memory.current": "1000000\n",
    "memory.peak": "2000000\n",
    "memory.max": "4000000\n",
    "memory.stat": "anon 400000\nfile 500000\ninactive_file 300000\n",
    "memory.events": "oom 3\noom_kill 2\n",
    "io.stat": "8:0 rbytes=100 wbytes=20 rios=1 wios=1\n",
    **{f"{r}.pressure": "".join(f"{k} avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n" for k in ("some", "full")) for r in ("cpu", "memory", "io")},
}


SETTLED = ("tollgate_exporter_workloads_without_cgroup 0\n", "tollgate_exporter_cgroup_read_duration_seconds ")


def make_cgroups(exporter, root):
    """For each simulated process the files of the cgroup that it is in."""
    for path in glob.glob(os.path.join(exporter.dir, "proc", "*", "cgroup")):
        with open(path, encoding="ascii") as f:
            folder = os.path.join(root, f.read().strip().removeprefix("0::/"))
        os.makedirs(folder, exist_ok=True)
        for name, text in CGROUP_FILES.items():
            with open(os.path.join(folder, name), "w", encoding="ascii") as f:
                f.write(text)


def families(text):
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))


def samples(text):
    """{name and labels: value} of the lines that are no comments."""
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def page(exporter, **headers):
    return stack.request("GET", exporter.url + "/metrics", headers=headers)


class Families(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = n = cls.enterClassContext(Node())
        cgroups = os.path.join(n.dir, "cgroup")
        os.mkdir(cgroups)
        with open(os.path.join(cgroups, "cgroup.controllers"), "w", encoding="ascii") as f:
            f.write("cpu io memory\n")
        cls.exporter = n.exporter("n1", NODE, "--cgroup-root", cgroups)
        make_cgroups(cls.exporter, cgroups)
        # from here on the same series are there on every page
        stack.wait_for("workloads' cgroups", lambda: all(s in page(cls.exporter).text() for s in SETTLED), cls.exporter)
        cls.prometheus = Prometheus(os.path.join(n.dir, "prometheus"), {"tollgate-exporter": [f"127.0.0.1:{cls.exporter.port}"]})
        n.processes.append(cls.prometheus)

    def find(self, expression):
        return stack.wait_for(f"series for {expression}", lambda: self.prometheus.query(expression), self.exporter)

    def test_prometheus_has_every_family_with_its_type_unit_and_help(self):
        with open(GOLDEN, encoding="utf-8") as f:
            text = f.read()
        wanted = families(text)
        self.assertGreater(len(wanted), 60)
        for family in sorted(set(wanted) - ELSEWHERE):
            with self.subTest(family=family):
                self.find(family)
        told = stack.request("GET", self.prometheus.url + "/api/v1/metadata").json()["data"]
        helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.M))
        for family in sorted(set(wanted) - ELSEWHERE):
            with self.subTest(family=family):
                name = family.removesuffix("_total")  # scraped as OpenMetrics
                self.assertEqual([(m["type"], m["help"]) for m in told[name]], [(wanted[family], helps[family])])
                unit = re.search(r"_(bytes|celsius|hertz|joules|ratio|seconds|watts)$", name)
                self.assertEqual(told[name][0]["unit"], unit.group(1) if unit else "")

    def test_no_family_is_missing_from_the_golden_page(self):
        with open(GOLDEN, encoding="utf-8") as f:
            self.assertEqual(set(families(page(self.exporter).text())) - set(families(f.read())), set())

    def test_values_are_those_of_the_scenario_in_base_units(self):
        def value(expression):
            return float(self.find(expression)[0]["value"][1])

        self.assertEqual(value('tollgate_gpu_memory_total_bytes{gpu="0"}'), 81559 << 20)
        self.assertEqual(value('tollgate_gpu_ecc_errors_total{gpu="0", kind="corrected"}'), 4)
        self.assertEqual(value('tollgate_gpu_row_remap_pending{gpu="0"}'), 1)
        self.assertEqual(value('tollgate_gpu_xid_errors_total{gpu="0", xid="31"}'), 1)
        self.assertEqual({r["metric"]["reason"] for r in self.find('tollgate_gpu_throttle{gpu="0"} == 1')}, {"sw_power_cap", "hw_thermal"})
        self.assertGreater(value('tollgate_gpu_clock_hertz{gpu="0", clock="sm"}'), 1e8)
        self.assertEqual(value('tollgate_process_memory_used_bytes{pid="4001"}'), 1 << 30)
        self.assertEqual(value('tollgate_workload_cpu_seconds_total{pod="train-0", mode="user"}'), 5)
        self.assertEqual(value('tollgate_workload_memory_working_set_bytes{pod="train-0"}'), 700000)
        self.assertEqual(value('tollgate_workload_oom_kills_total{pod="train-0"}'), 2)
        self.assertEqual(value('tollgate_workload_pressure_seconds_total{pod="train-0", resource="io", stall="full"}'), 1.5)
        # an error has come once, and the other GPU has none: absent, not zero
        self.assertEqual(self.prometheus.query('tollgate_gpu_xid_errors_total{gpu="1"}'), [])
        # a partitioned GPU has no utilisation of its own
        self.assertEqual(self.prometheus.query('tollgate_gpu_utilization_ratio{gpu="1"}'), [])

    def test_text_openmetrics_and_gzip_hold_the_same_samples(self):
        text, opened = page(self.exporter), page(self.exporter, Accept=OPENMETRICS)
        zipped = page(self.exporter, **{"Accept": OPENMETRICS, "Accept-Encoding": "gzip"})
        self.assertEqual(zipped.headers["Content-Encoding"], "gzip")
        self.assertTrue(opened.text().endswith("# EOF\n"))
        names = set(samples(text.text()))
        self.assertEqual(set(samples(opened.text())), names)
        self.assertEqual(set(samples(gzip.decompress(zipped.body).decode())), names)


class Compat(unittest.TestCase):
    def test_prometheus_has_the_default_list_of_dcgm_exporter_by_its_names(self):
        with open(os.path.join(stack.ROOT, "tests", "golden", "exporter.dcgm"), encoding="utf-8") as f:
            wanted = families(f.read())
        self.assertEqual(len(wanted), 25)
        with Node() as n:
            e = n.exporter("n1", NODE, "--compat", "dcgm", "--compat-hostname", "hostname")
            p = Prometheus(os.path.join(n.dir, "prometheus"), {"tollgate-exporter": [f"127.0.0.1:{e.port}"]})
            n.processes.append(p)
            for family in sorted(wanted):
                with self.subTest(family=family):
                    found = stack.wait_for(f"series for {family}", lambda family=family: p.query(family + '{hostname="n1"}'), e)
                    self.assertTrue(all(r["metric"]["modelName"] == "NVIDIA H100 80GB HBM3" for r in found))
            self.assertEqual([r["metric"]["pod"] for r in p.query('DCGM_FI_DEV_GPU_UTIL{gpu="0"}')], ["train-0"])
            self.assertEqual({(r["metric"]["GPU_I_PROFILE"], r["metric"].get("pod")) for r in p.query('DCGM_FI_DEV_FB_USED{gpu="1"}')},
                             {("3g.40gb", "train-1"), ("1g.10gb", None)})  # fmt: skip
            self.assertEqual(len(p.query('DCGM_FI_DEV_POWER_USAGE{gpu="1"}')), 1, "a board's power, once")
            # both names of one reading, on one page
            text = samples(page(e).text())
            watts = {name.split("{")[0]: float(v) for name, v in text.items() if re.match(r'(DCGM_FI_DEV_POWER_USAGE|tollgate_gpu_power_watts)\{gpu="1"', name)}
            self.assertEqual(watts["DCGM_FI_DEV_POWER_USAGE"], watts["tollgate_gpu_power_watts"])


# Uses memory, and then the processor until it is ended.
BUSY = "block = bytearray(64 << 20)\nprint('ready', flush=True)\nwhile True: pass"
MALLORY = 54322  # a number that nobody has


class Workload(unittest.TestCase):
    """Real processes in real cgroups, where this machine has some that may be changed."""

    def setUp(self):
        self.made, self.children = [], []
        self.mounts = {h: f"/sys/fs/cgroup/{h}" for h in ("unified", "cpuacct", "memory", "blkio")}
        if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
            self.mounts = {"unified": "/sys/fs/cgroup"}
        self.mounts = {h: at for h, at in self.mounts.items() if os.access(at, os.W_OK)}
        if os.geteuid() != 0 or not self.mounts:
            self.skipTest("no cgroups that this user may change")
        self.node = self.enterContext(Node())
        for sub in ("live", "pods-of-node"):
            os.mkdir(os.path.join(self.node.dir, sub))
        self.addCleanup(self.remove)

    def remove(self):
        for child in self.children:
            child.kill()
            child.wait()
            child.stdout.close()
        for at in reversed(self.made):
            # another test may use the upper folders meanwhile
            if not any(entry.is_dir() for entry in os.scandir(at)):
                os.rmdir(at)

    def run_in(self, cgroup):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.readline()\n" + BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.children.append(child)
        for mount in self.mounts.values():
            at = mount
            for part in cgroup.split("/"):
                at = os.path.join(at, part)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(at)
                    self.made.append(at)
            with open(os.path.join(at, "cgroup.procs"), "w", encoding="ascii") as f:
                f.write(str(child.pid))
        child.stdin.write(b"\n")
        child.stdin.close()
        self.assertEqual(child.stdout.readline(), b"ready\n")
        live = os.path.join(self.node.dir, "live")
        with open(os.path.join(live, f".{child.pid}"), "w", encoding="ascii") as f:
            f.write(f"{{pid: {child.pid}, gpu: 0, sm: 10, memory_mib: 100}}\n")
        os.rename(os.path.join(live, f".{child.pid}"), os.path.join(live, str(child.pid)))
        return child

    def test_what_the_kernel_counts_is_shown_of_the_right_workload_until_it_ends(self):
        uid = f"10000000-1111-2222-3333-{os.getpid():012d}"
        pod = f"kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-containerd-{'4d7a9b0c1e2f' * 5}4d7a.scope"
        os.mkdir(os.path.join(self.node.dir, "pods-of-node", f"research_train-0_{uid}"))
        # in cgroups that they made: the pod below its own, and a user with a name like the pod's
        child = self.run_in(f"{pod}/made-by-the-pod")
        self.run_in(f"user.slice/user-{MALLORY}.slice/user@{MALLORY}.service/{pod}")
        with mock.patch.dict(os.environ, TOLLGATE_SIM_LIVE=os.path.join(self.node.dir, "live")):
            e = self.node.exporter("n1", {**NODE, "processes": []}, "--proc-root", "/proc", "--cgroup-root", "/sys/fs/cgroup",
                                   "--pods-root", os.path.join(self.node.dir, "pods-of-node"), "--sample-interval", "250ms")  # fmt: skip

        def of(kind, name, **labels):
            found = [float(v) for s, v in samples(page(e).text()).items() if s.startswith(f"tollgate_workload_{name}{{") and f'kind="{kind}"' in s
                     and all(f'{k}="{w}"' in s for k, w in labels.items())]  # fmt: skip
            self.assertLessEqual(len(found), 1)
            return found[0] if found else None

        for kind in ("pod", "host_user"):
            first = stack.wait_for(f"CPU time of the {kind}", lambda kind=kind: of(kind, "cpu_seconds_total", mode="user"), e)
            stack.wait_for("more of it", lambda kind=kind, first=first: of(kind, "cpu_seconds_total", mode="user") > first, e)
        if "memory" in self.mounts or os.path.exists(os.path.join(self.mounts["unified"], pod, "memory.current")):
            self.assertGreater(of("pod", "memory_bytes"), 64 << 20)
            self.assertGreater(of("pod", "memory_anon_bytes"), 64 << 20)
            self.assertGreaterEqual(of("pod", "memory_peak_bytes"), of("pod", "memory_bytes"))
            self.assertEqual(of("pod", "oom_kills_total"), 0)
            self.assertIsNone(of("pod", "memory_limit_bytes"))
        pressure = "unified" in self.mounts and os.path.exists(os.path.join(self.mounts["unified"], pod, "cpu.pressure"))
        self.assertEqual(of("pod", "pressure_seconds_total", resource="cpu", stall="some") is not None, pressure)
        self.assertEqual(float(samples(page(e).text())["tollgate_exporter_cgroup_read_failures_total"]), 0)
        child.kill()
        child.wait()
        gone = stack.wait_for("its end", lambda: next((t for t in [page(e).text()] if f'pid="{child.pid}"' not in t), None), e)
        self.assertNotIn('pod="train-0"', gone)
        self.assertIsNotNone(of("host_user", "cpu_seconds_total", mode="user"))

    def test_it_can_be_switched_off(self):
        e = self.node.exporter("n1", NODE, "--workload-metrics=false")
        self.assertNotIn("cgroup", page(e).text())


class Bounds(unittest.TestCase):
    def test_an_ended_workload_is_gone_from_the_next_page(self):
        short = {**NODE, "processes": [*NODE["processes"], {"pid": 4003, "gpu": 0, "end": "3s", "every": "6s", "sm": 5, "memory_mib": 64,
                                                            "pod": {**POD, "name": "short"}}]}  # fmt: skip
        with Node() as n:
            e = n.exporter("n1", short)
            # it comes and goes again and again, so that a slow machine cannot miss it; when its process is gone, so is its time
            stack.wait_for("the workload", lambda: 'pod="short"' in page(e).text(), e)
            gone = stack.wait_for("its end", lambda: next((t for t in [page(e).text()] if 'pid="4003"' not in t), None), e)
            self.assertNotIn('pod="short"', gone)
            self.assertIn('pod="train-0"', gone)

    def test_series_of_processes_are_bounded_and_what_is_left_out_is_counted(self):
        many = {**NODE, "processes": [{"pid": 5000 + i, "gpu": 0, "start": f"{i * 100}ms", "sm": 1, "memory_mib": 64, "pod": {**POD, "name": f"p-{i}"}}
                                      for i in range(10)]}  # fmt: skip
        with Node() as n:
            e = n.exporter("n1", many, "--max-process-series", "12")

            def settled():
                text = page(e).text()
                return text if len(set(re.findall(r'tollgate_workload_gpu_seconds_total\{.*pod="(p-\d)"', text))) == 10 else None

            text = stack.wait_for("all ten workloads", settled, e)
            self.assertEqual(sorted(set(re.findall(r'pid="(\d+)"', text))), ["5000", "5001", "5002", "5003"])
            self.assertLessEqual(sum("pid=" in s for s in samples(text)), 12)
            self.assertGreater(int(samples(text)["tollgate_exporter_process_series_dropped"]), 0)


if __name__ == "__main__":
    unittest.main()
