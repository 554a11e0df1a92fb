"""A private Slurm on loopback: munge, slurmctld and a slurmd per simulated node, in a directory of its own, as whoever runs it.

    with Slurm(directory, ["gn1", "gn2"], gpus=8, hooks={"gn1": {...}}) as s:
        job = s.submit("script", account="physics", gpus=2)
        s.wait_ended(job)

Each node runs the prolog and epilog of deploy/slurm with its own environment, and writes down when: Slurm's own word for when a
job had its GPUs. Packages: slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge.
"""

import contextlib
import getpass
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import time

from tests.support.stack import ROOT, WAIT_S, free_port, wait_for

# Devices that slurmd may count as GPUs: it wants special files, one for each.
SPECIAL = "/dev/null"


def ports(count):
    """The first of `count` adjoining free ports: slurmctld, and a slurmd each."""
    return free_port(count)


class Slurm(contextlib.AbstractContextManager):
    def __init__(self, directory, nodes, gpus, environment):
        """environment: node → variables of its prolog and epilog"""
        self.dir, self.nodes, self.gpus, self.environment = directory, nodes, gpus, environment
        self.env = {**os.environ, "SLURM_CONF": self.path("slurm.conf")}
        self.pid_files = []

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def __enter__(self):
        try:
            self._prepare()
            self._munge()
            self._daemon("slurmctld", "/usr/sbin/slurmctld", "-f", self.path("slurm.conf"))
            for node in self.nodes:
                self._daemon(f"slurmd.{node}", "/usr/sbin/slurmd", "-f", self.path("slurm.conf"), "-N", node)
            wait_for("idle nodes of Slurm", lambda: self._idle() == len(self.nodes))
        except BaseException as error:
            words = self._words()
            self.close()
            raise AssertionError(f"Slurm did not start: {error}\n{words}") from error
        return self

    def __exit__(self, *exc):
        self.close()

    # --- files ---

    def _write(self, name, text, mode=0o644):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(self.path(name), mode)

    def _prepare(self):
        for sub in ("munge", "state", "log", "run", "dev", *(f"spool/{n}" for n in self.nodes)):
            os.makedirs(self.path(sub), exist_ok=True)
        os.chmod(self.path("munge"), 0o755)
        for i in range(self.gpus):
            os.symlink(SPECIAL, self.path("dev", f"nvidia{i}"))
        self.port = ports(1 + len(self.nodes))
        self._write("slurm.conf", self._conf())
        self._write("gres.conf", "".join(
            f"NodeName={n} Name=gpu File={self.path('dev')}/nvidia[0-{self.gpus - 1}]\n" for n in self.nodes))
        # 22.05 opens a cgroup plugin even when nothing uses it; v1 asks for nothing then
        self._write("cgroup.conf", "CgroupPlugin=cgroup/v1\nConstrainDevices=no\nConstrainCores=no\nConstrainRAMSpace=no\n")
        for hook in ("prolog", "epilog"):
            self._write(f"{hook}.sh", self._hook(hook), 0o755)

    def _conf(self):
        me = getpass.getuser()
        return f"""ClusterName=private
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={me}
SlurmdUser={me}
AuthType=auth/munge
AuthInfo=socket={self.path("munge/munge.sock")},cred_expire=5
CredType=cred/munge
SlurmctldPort={self.port}
SlurmctldPidFile={self.path("run/slurmctld.pid")}
SlurmdPidFile={self.path("run/slurmd.%n.pid")}
SlurmctldLogFile={self.path("log/slurmctld.log")}
SlurmdLogFile={self.path("log/slurmd.%n.log")}
StateSaveLocation={self.path("state")}
SlurmdSpoolDir={self.path("spool/%n")}
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
KillWait=5
MinJobAge=600
PrologFlags=Alloc
Prolog={self.path("prolog.sh")}
Epilog={self.path("epilog.sh")}
{self._node_lines()}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

    def _node_lines(self):
        host = socket.gethostname()
        return "\n".join(
            f"NodeName={n} NodeHostname={host} NodeAddr=127.0.0.1 Port={self.port + 1 + i} CPUs=64 Boards=1 SocketsPerBoard=2 "
            f"CoresPerSocket=32 ThreadsPerCore=1 RealMemory=1000 Gres=gpu:{self.gpus} State=UNKNOWN"
            for i, n in enumerate(self.nodes))

    def _hook(self, hook):
        """The one under test, with its node's environment; then the moment and Slurm's word for the GPUs."""
        cases = "".join(
            f"{n})\n" + "".join(f"\texport {k}={shlex.quote(v)}\n" for k, v in self.environment[n].items()) + "\t;;\n"
            for n in self.nodes)
        script = shlex.quote(os.path.join(ROOT, "deploy/slurm", f"tollgate-{hook}.sh"))
        log = shlex.quote(self.path("log"))
        return (f'#!/bin/sh\ncase "$SLURMD_NODENAME" in\n{cases}esac\nbefore=$(date +%s%N)\n{script} || exit 1\n'
                f'echo "$before $(date +%s%N) ${{SLURM_JOB_GPUS-}}" >{log}/{hook}.$SLURM_JOB_ID.$SLURMD_NODENAME\n')

    # --- daemons ---

    def _munge(self):
        key = self.path("munge/munge.key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as f:
            f.write(secrets.token_bytes(128))
        at = self.path("munge")
        self._daemon("munged", "/usr/sbin/munged", f"--key-file={key}", f"--socket={at}/munge.sock",
                     f"--pid-file={self.path('run/munged.pid')}", f"--log-file={at}/munged.log", f"--seed-file={at}/munged.seed")

    def _daemon(self, name, *argv):
        self.pid_files.append(self.path("run", f"{name}.pid"))
        with open(self.path("log", f"{name}.start"), "w", encoding="utf-8") as log:
            subprocess.run(argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=WAIT_S, check=True)

    def _words(self):
        text = ""
        for name in sorted(os.listdir(self.path("log"))) if os.path.isdir(self.path("log")) else ():
            with open(self.path("log", name), encoding="utf-8", errors="replace") as f:
                text += f"{name}:\n{''.join(f.readlines()[-8:])}"
        return text

    def run(self, *argv):
        return subprocess.run(argv, env=self.env, cwd=self.dir, capture_output=True, text=True, timeout=WAIT_S, check=False)

    def _idle(self):
        return len(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").stdout.split())

    def _pids(self):
        for path in reversed(self.pid_files):
            with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as f:
                yield int(f.read())

    def close(self):
        # stopping slurmd alone would leave the jobs behind
        if os.path.exists(self.path("run/slurmctld.pid")):
            for job in self.run("squeue", "-h", "-o", "%A").stdout.split():
                self.run("scancel", job)
            deadline = time.monotonic() + WAIT_S
            while self.run("squeue", "-h").stdout.strip() and time.monotonic() < deadline:
                time.sleep(0.2)
        pids = list(self._pids())
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        for pid in pids:
            wait_for(f"the end of process {pid}", lambda pid=pid: not os.path.exists(f"/proc/{pid}"))

    # --- jobs ---

    def submit(self, script, account, gpus, nodes=1):
        """Every node of the job gives `gpus` GPUs; the script runs on the first of them, srun starts the rest."""
        done = self.run("sbatch", "--parsable", f"--nodes={nodes}", f"--gres=gpu:{gpus}", "-A", account,
                        f"--output={self.path('log/job.%j')}", "--wrap", script)
        if done.returncode != 0:
            raise AssertionError(f"sbatch: {done.stderr}")
        return int(done.stdout.split(";")[0])

    def facts(self, job):
        """What Slurm says of a job."""
        text = self.run("scontrol", "show", "job", "--oneliner", str(job)).stdout
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def wait(self, job, *states):
        wait_for(f"job {job} to be {' or '.join(states)}", lambda: self.facts(job).get("JobState") in states)

    def stretches(self, job):
        """node → (begin, end, GPUs): from the prolog to the epilog, in ns; the epilog may still be running."""
        found = {}
        for node in self.nodes:
            begin, end = (self._stamp(hook, job, node) for hook in ("prolog", "epilog"))
            if begin and end:
                found[node] = (begin[0], end[1], [int(g) for g in begin[2].split(",")])
        return found

    def _stamp(self, hook, job, node):
        try:
            with open(self.path("log", f"{hook}.{job}.{node}"), encoding="ascii") as f:
                words = f.read().split()
        except FileNotFoundError:
            return None
        return (int(words[0]), int(words[1]), words[2] if len(words) > 2 else "") if len(words) >= 2 else None
