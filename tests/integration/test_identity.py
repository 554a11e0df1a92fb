"""One host with pods, Slurm jobs and users on shared GPUs: every record names the right holder, through restarts of the kubelet
and of the exporter, and nobody becomes somebody else.

The processes are real, and so are their cgroups where the machine allows it (root, a mounted hierarchy: v2, and v1 beside it).
Where it does not, and once more in any case, /proc is a tree of files that was copied from the real one with the cgroups that
the processes would have. GPUs are simulated, the kubelet is gRPC's own server, the job files are written by our prolog."""

import errno
import fcntl
import gzip
import os
import shutil
import subprocess
import tempfile
import time
import unittest

from tests.support.daemons.stack import BUILD, ROOT, Process, answers, free_port, program, request, wait_for
from tests.support.exporter.segments import frames_of
from tests.support.scheduler.kubelet import Kubelet, pod
from tests.support.wire import wire

# also: san

HELD, UNKNOWN = 1, 5
POD, JOB, USER = 1, 2, 3
ALICE, MALLORY = 54321, 54322  # numbers that nobody has
GPU = [f"GPU-00000000-0000-0000-0000-00000000000{i}" for i in range(7)]
MIG = [f"MIG-00000000-0000-0000-0000-00000000000{i}" for i in range(2)]
H100 = "NVIDIA H100 80GB HBM3"
CID = "4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a"
PODS = {name: f"{i + 1}0000000-1111-2222-3333-{os.getpid():012d}" for i, name in enumerate(
    ("team-a/train-0", "team-b/serve-0", "team-c/serve-1", "team-d/idle-0", "team-a/mig-0", "slurm/worker-0"))}
JOB_ID, HPC_ID = str(9_000_000_000 + os.getpid()), "9100"
SLUID, LOST_SLUID = "sEKNKTV3WPV500", "sEKNKTV3WPV501"
SCENARIO = {
    "name": "identity",
    "gpus": [*({"model": H100, "memory_mib": 81559, "uuid": u} for u in GPU[:6]),
             {"model": H100, "memory_mib": 81559, "uuid": GPU[6],
              "mig": [{"profile": "3g.40gb", "uuid": MIG[0]}, {"profile": "3g.40gb", "uuid": MIG[1]}]}],
}


def systemd_path(name):
    uid = PODS[name].replace("-", "_")
    return f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice"


def cgroupfs_path(name):
    return f"kubepods/burstable/pod{PODS[name]}"


class Host:
    """Processes in cgroups, below one directory; `place` is up to those who inherit."""

    pod_path, container = staticmethod(systemd_path), f"cri-containerd-{CID}.scope"
    job_path = f"system.slice/slurmstepd.scope/job_{JOB_ID}/step_0/user/task_0"
    sluid = None  # of the job, where Slurm names its cgroup so
    slurm_pod = None  # in which slurmd runs

    def __init__(self, directory):
        self.dir, self.children = directory, []
        for sub in ("pods", "live", "hpc", "proc", "spool"):
            os.makedirs(os.path.join(directory, sub))
        os.chmod(os.path.join(directory, "hpc"), 0o755)
        for name, uid in PODS.items():
            if name.startswith("slurm/") and name != self.slurm_pod:
                continue
            os.makedirs(os.path.join(directory, "pods", f"{name.replace('/', '_')}_{uid}"))

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def run(self, cgroup, device, uid=None, program="/bin/sleep", environment=None):
        """A process in a cgroup, on a device; gives its number."""
        child = subprocess.Popen([program, "600"], user=uid if os.geteuid() == 0 else None, env={**os.environ, **(environment or {})})
        self.children.append(child)
        self.place(child.pid, cgroup, uid)
        name = f"{child.pid}-{device}"
        with open(self.path("live", "." + name), "w", encoding="ascii") as f:
            f.write(f"{{pid: {child.pid}, device: {device}, sm: 50, memory_mib: 100}}\n")
        os.rename(self.path("live", "." + name), self.path("live", name))
        return child.pid

    def close(self):
        for child in self.children:
            child.kill()
            child.wait()


class TreeHost(Host):
    """/proc and the cgroups as files."""

    proc_root = property(lambda self: self.path("proc"))
    cgroup_root = property(lambda self: self.path("cgroup"))

    def make(self, cgroup):
        os.makedirs(self.path("cgroup", cgroup), exist_ok=True)

    def remove(self, cgroup):
        os.rmdir(self.path("cgroup", cgroup))

    def place(self, pid, cgroup, uid):
        self.make(cgroup)
        folder = self.path("proc", str(pid))
        os.makedirs(folder)
        for name in ("stat", "status"):
            with open(f"/proc/{pid}/{name}", encoding="ascii") as f:
                text = f.read()
            if uid is not None:
                real = next(line for line in text.splitlines() if line.startswith("Uid:")) if name == "status" else ""
                text = text.replace(real, f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}") if real else text
            with open(os.path.join(folder, name), "w", encoding="ascii") as f:
                f.write(text)
        with open(os.path.join(folder, "cgroup"), "w", encoding="ascii") as f:
            f.write(f"0::/{cgroup}\n")


def mounted(kind, option):
    """The mount point of a hierarchy that this process may change, or None."""
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        for line in f:
            left, _, right = line.partition(" - ")
            where, (fstype, _, options) = left.split()[4], right.split(maxsplit=2)
            if fstype != kind or option not in options.strip().split(","):
                continue
            probe = os.path.join(where, f"tollgate-test-{os.getpid()}")
            try:
                os.mkdir(probe)
                os.rmdir(probe)
                return where
            except OSError:
                continue
    return None


def removed(cgroup):
    try:
        os.rmdir(cgroup)
    except FileNotFoundError:
        return True
    except OSError as e:
        if e.errno != errno.EBUSY:
            raise
        return False
    return True


class RealHost(Host):
    proc_root = "/proc"
    cgroup_root = "/sys/fs/cgroup"
    mount = None  # of whom inherits

    def __init__(self, directory):
        super().__init__(directory)
        self.made = []
        # one test at a time: they share the upper folders
        self.lock = os.open(self.mount, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def make(self, cgroup):
        at = self.mount
        for part in cgroup.split("/"):
            at = os.path.join(at, part)
            if not os.path.isdir(at):
                os.mkdir(at)
                self.made.append(at)

    def remove(self, cgroup):
        os.rmdir(os.path.join(self.mount, cgroup))

    def place(self, pid, cgroup, uid):
        self.make(cgroup)
        with open(os.path.join(self.mount, cgroup, "cgroup.procs"), "w", encoding="ascii") as f:
            f.write(str(pid))

    def close(self):
        super().close()
        for at in reversed(self.made):
            # the kernel lets go of an ended process a moment after its parent was told
            wait_for(f"the end of {at}", lambda at=at: removed(at))
        os.close(self.lock)


class Exporter(Process):
    def __init__(self, host, kubelet):
        self.port, self.unsure = free_port(), []
        argv = [program("tollgate-exporter"), "--node", "gn1", "--listen", f"127.0.0.1:{self.port}",
                "--nvml-library", os.path.join(BUILD, "sim", "libnvidia-ml.so.1"), "--sample-interval", "250ms", "--interval", "1s",
                "--proc-root", host.proc_root, "--pods-root", host.path("pods"), "--cgroup-root", host.cgroup_root,
                "--kubelet-socket", kubelet.path, "--slurm-map-dir", host.path("slurm"), "--slurm-map-uid", str(os.geteuid()),
                "--hpc-job-mapping-dir", host.path("hpc"), "--spool-dir", host.path("spool")]  # fmt: skip
        super().__init__(argv, host.path("log"), {"TOLLGATE_SIM_SCENARIO": host.path("scenario.yaml"), "TOLLGATE_SIM_LIVE": host.path("live")})
        self.ready()

    def start(self):
        self.started_ns = time.time_ns()
        super().start()

    def ready(self):
        """Waits for the kubelet's first answer too: until then processes alone tell who holds what, and a busy machine can make that long."""
        wait_for("the exporter's /metrics", lambda: answers(f"http://127.0.0.1:{self.port}/metrics"), self)
        wait_for("the kubelet's first answer", lambda: self.metric("tollgate_exporter_kubelet_up") == 1, self)
        self.advance(2)
        self.unsure.append((self.started_ns, time.time_ns()))

    def was_sure(self, at_ns):
        return not any(first <= at_ns <= last for first, last in self.unsure)

    def metric(self, name):
        for line in request("GET", f"http://127.0.0.1:{self.port}/metrics").text().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        return None

    def advance(self, ticks):
        goal = self.metric("tollgate_exporter_ticks_total") + ticks
        wait_for(f"{ticks} ticks", lambda: self.metric("tollgate_exporter_ticks_total") >= goal, self)

    def restart(self):
        self.start()
        self.ready()


def records_of(spool):
    """(device's UUID, holder or None, record), oldest first."""
    streams = {}
    for payload in frames_of(spool):
        batch = wire.decode(gzip.decompress(payload))
        devices, holders = streams.setdefault(batch["epoch"], ({}, {}))
        devices.update({d["id"]: d["uuid"] for d in batch["devices"]})
        holders.update({h["id"]: h for h in batch["holders"]})
        for r in batch["records"]:
            yield devices[r["device"]], holders.get(r["holder"]), r


def who(holder):
    if holder is None:
        return "nobody"
    if holder["kind"] == POD:
        return f"{holder['ns']}/{holder['pod']}/{holder['container']} {holder['pod_uid']}"
    if holder["kind"] == JOB:
        return f"job {holder['slurm_job']} {holder['slurm_account']} {holder['user']}"
    return f"user {holder['user']} {holder['uid']}"


class Identity:
    """The same story on each kind of host."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="tollgate-identity-")
        self.addCleanup(shutil.rmtree, self.dir)
        os.chmod(self.dir, 0o755)
        self.host = self.make_host(self.dir)
        self.addCleanup(self.host.close)
        self.kubelet = Kubelet(os.path.join(self.dir, "kubelet.sock"))
        self.addCleanup(self.kubelet.stop)
        with open(self.host.path("scenario.yaml"), "w", encoding="utf-8") as f:
            f.write(str(SCENARIO).replace("'", '"'))

    def slurm(self, script, **more):
        subprocess.run([os.path.join(ROOT, "hooks/slurm", script)], check=True, env={
            **os.environ, "TOLLGATE_SLURM_DIR": self.host.path("slurm"), "SLURM_JOB_ID": JOB_ID, **more})

    def populate(self):
        h = self.host
        for name in filter(lambda name: not name.startswith("slurm/"), PODS):
            h.make(f"{h.pod_path(name)}/{h.container}")
        for name, device in (("team-a/train-0", GPU[0]), ("team-b/serve-0", GPU[1]), ("team-c/serve-1", GPU[1]), ("team-a/mig-0", MIG[0])):
            h.run(f"{h.pod_path(name)}/{h.container}", device)
        h.run(h.job_path, GPU[2], ALICE)
        h.run(f"user.slice/user-{ALICE}.slice/session-{os.getpid()}.scope", GPU[3], ALICE)
        # below his own session he calls himself the victim, in every way that he has, and comes upon its GPU too
        own = f"user.slice/user-{MALLORY}.slice/user@{MALLORY}.service"
        evil = h.path('x) S 1\n"} 9 ')
        shutil.copy("/bin/sleep", evil)
        forged = {"SLURM_JOB_ID": JOB_ID, "SLURM_JOB_ACCOUNT": "physics", "POD_NAMESPACE": "team-a", "HOSTNAME": "train-0"}
        h.run(f"{own}/{h.pod_path('team-a/train-0')}/{h.container}", GPU[3], MALLORY, evil, forged)
        h.run(f"{own}/{h.job_path}", GPU[0], MALLORY, evil, forged)
        # a pod that may write to its own cgroup makes Slurm's folders there
        h.run(f"{h.pod_path('team-b/serve-0')}/{h.container}/{h.job_path.rpartition(h.container + '/')[2]}", GPU[1])
        if h.sluid:
            h.run(h.job_path.replace(h.sluid, LOST_SLUID), GPU[3], ALICE)
        self.kubelet.advertised = [GPU[0], *(f"{GPU[1]}::{i}" for i in range(4)), *MIG]
        self.kubelet.pods = [
            pod("team-a", "train-0", main=[GPU[0]]), pod("team-b", "serve-0", main=[f"{GPU[1]}::0"]),
            pod("team-c", "serve-1", main=[f"{GPU[1]}::2"]), pod("team-d", "idle-0", main=[GPU[4]]),
            pod("team-a", "mig-0", one=[MIG[0]], two=[MIG[1]])]
        if h.slurm_pod:
            self.kubelet.pods.append(pod(*h.slurm_pod.split("/"), slurmd=[GPU[2], GPU[5]]))
        self.slurm("tollgate-prolog.sh", **({"SLURM_JOB_SLUID": h.sluid} if h.sluid else {}), SLURM_JOB_ACCOUNT="physics", SLURM_JOB_USER="alice", SLURM_JOB_UID=str(ALICE),
                   SLURM_JOB_PARTITION="gpu", SLURM_JOB_GPUS="2", TOLLGATE_SLURM_GPUS="/nonexistent")
        with open(h.path("hpc", "5"), "w", encoding="ascii") as f:
            f.write(HPC_ID + "\n")
        os.chmod(h.path("hpc", "5"), 0o644)
        # a file that anybody could have written
        with open(h.path("slurm", "66"), "w", encoding="ascii") as f:
            f.write(f"job=66\naccount=mallory\ngpus={GPU[0]},{GPU[4]}\n")
        os.chmod(h.path("slurm", "66"), 0o666)

    def test_every_record_names_the_right_holder(self):
        self.populate()
        self.kubelet.start()
        e = Exporter(self.host, self.kubelet)
        self.addCleanup(e.kill9)
        try:
            released_ns = self.live_through_restarts(e)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{e.words()}") from None
        self.check(e, released_ns)

    def live_through_restarts(self, e):
        e.advance(8)
        self.assertEqual(e.metric("tollgate_exporter_intruders"), 1)
        self.assertEqual(e.metric("tollgate_exporter_unmapped_slurm_processes"), 1 if self.host.sluid else 0)
        self.assertEqual(e.metric('tollgate_exporter_allocations{source="kubelet"}'), 6)
        self.assertEqual(e.metric('tollgate_exporter_allocations{source="slurm"}'), 2)
        self.assertEqual(e.metric("tollgate_exporter_refused_map_files"), 1)
        self.assertIn("/slurm/66 has mode 0666: others may write to it", e.words())
        self.kubelet.stop()
        wait_for("the kubelet's absence", lambda: e.metric("tollgate_exporter_kubelet_up") == 0, e)
        e.advance(8)
        # it returns before it knows its pods
        pods, self.kubelet.pods = self.kubelet.pods, []
        self.kubelet.start()
        self.kubelet.wait_asked(2)
        e.advance(8)
        self.kubelet.pods = pods
        self.assertEqual(e.metric("tollgate_exporter_kubelet_up"), 1)
        self.kubelet.wait_asked(2)
        self.assertEqual(e.stop(), 0, e.words())
        e.restart()
        e.advance(8)
        e.kill9()
        e.restart()
        e.advance(8)
        # the kubelet goes on listing a pod that has ended, the job's epilog runs before its process is gone
        idle = self.host.pod_path("team-d/idle-0")
        self.host.remove(f"{idle}/{self.host.container}")
        self.host.remove(idle)
        self.slurm("tollgate-epilog.sh")
        wait_for("the end of the pod", lambda: e.metric('tollgate_exporter_allocations{source="kubelet"}') == 5, e)
        wait_for("the end of the job", lambda: e.metric('tollgate_exporter_allocations{source="slurm"}') == 1, e)
        e.advance(4)
        released_ns = time.time_ns()
        e.advance(12)
        self.assertEqual(e.stop(), 0, e.words())
        return released_ns

    def check(self, e, released_ns):
        def in_pod(name, container):
            return f"{name}/{container} {PODS[name]}"

        job, loose = f"job {JOB_ID} physics alice", f"job {JOB_ID}  {ALICE}"
        always = {
            GPU[0]: {in_pod("team-a/train-0", "main")},
            GPU[1]: {in_pod("team-b/serve-0", "main"), in_pod("team-c/serve-1", "main"), "nobody"},
            GPU[2]: {job},
            GPU[3]: {f"user {ALICE} {ALICE}", f"user {MALLORY} {MALLORY}"},
            GPU[4]: {in_pod("team-d/idle-0", "main")},
            GPU[5]: {f"job {HPC_ID}  "},
            GPU[6]: {"nobody"},  # the slice that is in no instance
            MIG[0]: {in_pod("team-a/mig-0", "one")},
            MIG[1]: {in_pod("team-a/mig-0", "two")},
        }
        if self.host.sluid:
            always[GPU[3]].add(f"job {LOST_SLUID}  {ALICE}")
        after = {**always, GPU[2]: {loose}, GPU[4]: {"nobody"}}
        seen, seen_after = {}, {}
        for device, holder, record in records_of(self.host.path("spool")):
            if record["state"] == UNKNOWN or not e.was_sure(record["start_ns"]):
                continue
            if record["start_ns"] >= released_ns:
                seen_after.setdefault(device, set()).add(who(holder))
            elif record["start_ns"] + record["duration_ns"] < released_ns - 10_000_000_000:
                seen.setdefault(device, set()).add(who(holder))
            if device == GPU[1] and holder:
                # one of four replicas
                self.assertLessEqual(abs(record["held_ns"] * 4 - record["duration_ns"]), 4)
        self.maxDiff = None
        self.assertEqual(seen_after, after)
        for device, holders in seen.items():
            self.assertLessEqual(holders, always[device], device)
        self.assertEqual(set(seen), set(always))


class Tree(Identity, unittest.TestCase):
    def make_host(self, directory):
        return TreeHost(directory)


class TreeSluid(Identity, unittest.TestCase):
    """Slurm 26.05: the job's cgroup has its SLUID, and the job's file says whose that is. Of one job there is no file."""

    def make_host(self, directory):
        class Sluid(TreeHost):
            sluid = SLUID
            job_path = f"system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0"

        return Sluid(directory)


class TreeSlurmInPods(Identity, unittest.TestCase):
    """slurmd runs in a pod, to which the kubelet gave the GPUs: they are the job's while it has them, and nobody's without one."""

    def make_host(self, directory):
        class InPod(TreeHost):
            slurm_pod, sluid = "slurm/worker-0", SLUID
            job_path = f"{systemd_path('slurm/worker-0')}/{Host.container}/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0"

        return InPod(directory)


class RealV2(Identity, unittest.TestCase):
    def make_host(self, directory):
        where = mounted("cgroup2", "rw") if os.geteuid() == 0 else None
        if not where:
            self.skipTest("no cgroup v2 hierarchy that this user may change")

        class V2(RealHost):
            mount = where

        return V2(directory)


class RealV1(Identity, unittest.TestCase):
    def make_host(self, directory):
        where = mounted("cgroup", "pids") if os.geteuid() == 0 else None
        if not where:
            self.skipTest("no cgroup v1 hierarchy that this user may change")

        class V1(RealHost):
            mount = where
            pod_path, container = staticmethod(cgroupfs_path), CID
            job_path = f"slurm/uid_{ALICE}/job_{JOB_ID}/step_0"

        return V1(directory)


if __name__ == "__main__":
    unittest.main()
