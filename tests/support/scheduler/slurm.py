"""A private Slurm on loopback: munge, slurmctld and a slurmd per simulated node, in a directory of its own, as whoever runs it.

    with Slurm(directory, ["gn1", "gn2"], gpus={"a100": 8, "1g.10gb": 7}, environment={"gn1": {...}}, job_submit="hooks/slurm/job_submit.lua") as s:
        job = s.submit("script", account="physics", gpus=2)
        s.wait(job, "COMPLETED")

Each node runs the prolog and epilog of hooks/slurm with its own environment, and writes down when: Slurm's own word for when a
job had its GPUs. The controller runs job_submit.lua and PrologSlurmctld where they are named. Run by root, jobs of several users work;
`user` lets root start it as an ordinary user, whose jobs alone it can run. Daemons are stopped by their process ids.
Packages: slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge lua-socket.
"""

import contextlib
import os
import pwd
import re
import secrets
import shlex
import signal
import socket
import subprocess
import time

from tests.support.daemons.stack import ROOT, WAIT_S, free_port, wait_for

# Devices that slurmd may count as GPUs: it wants special files, one for each.
SPECIAL = "/dev/null"

PARTITION = "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"


def ports(count):
    """The first of `count` adjoining free ports: slurmctld, and a slurmd each."""
    return free_port(count)


class Slurm(contextlib.AbstractContextManager):
    def __init__(self, directory, nodes, gpus, environment=None, job_submit=None, prolog_slurmctld=None, partitions=(PARTITION,), conf=(), user=None):
        """gpus: of each node, a number without types or type → number. environment: node → variables of its prolog and epilog.
        job_submit: the text of job_submit.lua. prolog_slurmctld: the command of that script. partitions, conf: lines of slurm.conf.
        user: an ordinary user's name, where root starts it."""
        self.dir, self.nodes, self.environment = directory, nodes, environment
        self.gpus = gpus if isinstance(gpus, dict) else {"": gpus}
        self.job_submit, self.prolog_slurmctld, self.partitions, self.conf = job_submit, prolog_slurmctld, partitions, conf
        self.user = user or pwd.getpwuid(os.geteuid()).pw_name
        self.env = {**os.environ, "SLURM_CONF": self.path("slurm.conf")}
        self.pid_files = []

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def __enter__(self):
        try:
            self._prepare()
            self._munge()
            self.start_slurmctld()
            for node in self.nodes:
                self.start_slurmd(node)
            wait_for("idle nodes of Slurm", lambda: self._idle() == len(self.nodes))
        except BaseException as error:
            words = self.words()
            self.close()
            raise AssertionError(f"Slurm did not start: {error}\n{words}") from error
        return self

    def __exit__(self, *exc):
        self.close()

    # --- files ---

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(self.path(name), mode)

    def _prepare(self):
        for sub in ("munge", "state", "log", "run", "dev", *(f"spool/{n}" for n in self.nodes)):
            os.makedirs(self.path(sub), exist_ok=True)
        os.chmod(self.path("munge"), 0o755)
        for i in range(sum(self.gpus.values())):
            os.symlink(SPECIAL, self.path("dev", f"nvidia{i}"))
        self.port = ports(1 + len(self.nodes))
        self.write("slurm.conf", self._conf())
        self.write("gres.conf", "".join(self._gres(node) for node in self.nodes))
        # 22.05 opens a cgroup plugin even when nothing uses it; v1 asks for nothing then
        self.write("cgroup.conf", "CgroupPlugin=cgroup/v1\nConstrainDevices=no\nConstrainCores=no\nConstrainRAMSpace=no\n")
        if self.environment:
            for hook in ("prolog", "epilog"):
                self.write(f"{hook}.sh", self._hook(hook), 0o755)
        if self.job_submit:
            self.write("job_submit.lua", self.job_submit)
        for at, _, names in os.walk(self.dir):
            self._give_away(at, *(os.path.join(at, name) for name in names))

    def _give_away(self, *paths):
        """To the user whose Slurm it is."""
        who = pwd.getpwnam(self.user)
        if who.pw_uid != os.geteuid():
            for path in paths:
                os.lchown(path, who.pw_uid, who.pw_gid)

    def _gres(self, node):
        lines, first = "", 0
        for kind, count in self.gpus.items():
            typed = f" Type={kind}" if kind else ""
            lines += f"NodeName={node} Name=gpu{typed} File={self.path('dev')}/nvidia[{first}-{first + count - 1}]\n"
            first += count
        return lines

    def _conf(self):
        return f"""ClusterName=private
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={self.user}
SlurmdUser={self.user}
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
{self._hook_lines()}
{self._node_lines()}
""" + "".join(f"{line}\n" for line in (*self.partitions, *self.conf))

    def _hook_lines(self):
        lines = [f"Prolog={self.path('prolog.sh')}", f"Epilog={self.path('epilog.sh')}"] if self.environment else []
        lines += ["JobSubmitPlugins=lua"] if self.job_submit else []
        lines += [f"PrologSlurmctld={self.prolog_slurmctld}"] if self.prolog_slurmctld else []
        return "\n".join(lines)

    def _node_lines(self):
        host = socket.gethostname()
        gres = ",".join(f"gpu:{kind}:{count}" if kind else f"gpu:{count}" for kind, count in self.gpus.items())
        return "\n".join(
            f"NodeName={n} NodeHostname={host} NodeAddr=127.0.0.1 Port={self.port + 1 + i} CPUs=64 Boards=1 SocketsPerBoard=2 "
            f"CoresPerSocket=32 ThreadsPerCore=1 RealMemory=1000 Gres={gres} State=UNKNOWN"
            for i, n in enumerate(self.nodes))

    def _hook(self, hook):
        """The one under test, with its node's environment; then the moment and Slurm's word for the GPUs."""
        cases = "".join(
            f"{n})\n" + "".join(f"\texport {k}={shlex.quote(v)}\n" for k, v in self.environment[n].items()) + "\t;;\n"
            for n in self.nodes)
        script = shlex.quote(os.path.join(ROOT, "hooks/slurm", f"tollgate-{hook}.sh"))
        log = shlex.quote(self.path("log"))
        return (f'#!/bin/sh\ncase "$SLURMD_NODENAME" in\n{cases}esac\nbefore=$(date +%s%N)\n{script} || exit 1\n'
                f'echo "$before $(date +%s%N) ${{SLURM_JOB_GPUS-}}" >{log}/{hook}.$SLURM_JOB_ID.$SLURMD_NODENAME\n')

    # --- daemons ---

    def _munge(self):
        at = self.path("munge")
        key = self.path("munge/munge.key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as f:
            f.write(secrets.token_bytes(128))
        self._give_away(key)
        self._daemon("munged", "/usr/sbin/munged", f"--key-file={key}", f"--socket={at}/munge.sock",
                     f"--pid-file={self.path('run/munged.pid')}", f"--log-file={at}/munged.log", f"--seed-file={at}/munged.seed")

    def start_slurmctld(self):
        self._daemon("slurmctld", "/usr/sbin/slurmctld", "-f", self.path("slurm.conf"))

    def start_slurmd(self, node):
        self._daemon(f"slurmd.{node}", "/usr/sbin/slurmd", "-f", self.path("slurm.conf"), "-N", node)

    def kill9(self, name):
        """slurmctld or slurmd.NODE, at this moment."""
        pid = self._pid(self.path("run", f"{name}.pid"))
        os.kill(pid, signal.SIGKILL)
        wait_for(f"the end of process {pid}", lambda: not os.path.exists(f"/proc/{pid}"))

    def _daemon(self, name, *argv):
        path = self.path("run", f"{name}.pid")
        if path not in self.pid_files:
            self.pid_files.append(path)
        with open(self.path("log", f"{name}.start"), "w", encoding="utf-8") as log:
            subprocess.run([*self._as(self.user), *argv], env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=WAIT_S, check=True)

    def _as(self, user):
        """What root writes before a command that this user is to run."""
        if user is None or pwd.getpwnam(user).pw_uid == os.geteuid():
            return []
        who = pwd.getpwnam(user)
        return ["setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups"]

    def words(self):
        text = ""
        for name in sorted(os.listdir(self.path("log"))) if os.path.isdir(self.path("log")) else ():
            with open(self.path("log", name), encoding="utf-8", errors="replace") as f:
                text += f"{name}:\n{''.join(f.readlines()[-8:])}"
        return text

    def run(self, *argv, user=None):
        """A client's command, as the user that Slurm runs as or another."""
        return subprocess.run([*self._as(user or self.user), *argv], env=self.env, cwd=self.dir, capture_output=True, text=True, timeout=WAIT_S, check=False,
                              stdin=subprocess.DEVNULL)

    def _idle(self):
        return len(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").stdout.split())

    def _pid(self, path):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as f:
            return int(f.read())
        return None

    def close(self):
        # stopping slurmd alone would leave the jobs behind
        ctld = self._pid(self.path("run/slurmctld.pid"))
        if ctld and os.path.exists(f"/proc/{ctld}"):
            deadline = time.monotonic() + WAIT_S
            while (jobs := self.run("squeue", "-h", "-o", "%A").stdout.split()) and time.monotonic() < deadline:
                self.run("scancel", "--full", *sorted(set(jobs)))
                time.sleep(0.2)
        pids = [pid for pid in map(self._pid, reversed(self.pid_files)) if pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        for pid in pids:
            wait_for(f"the end of process {pid}", lambda pid=pid: not os.path.exists(f"/proc/{pid}"))

    # --- jobs ---

    def submit(self, script, account, gpus, nodes=1):
        """Every node of the job gives `gpus` GPUs; the script runs on the first of them, srun starts the rest."""
        return self.sbatch(f"--nodes={nodes}", f"--gres=gpu:{gpus}", "-A", account, "--wrap", script)

    def sbatch(self, *options, user=None):
        """The new job's number."""
        done = self.try_sbatch(*options, user=user)
        if done.returncode != 0:
            raise AssertionError(f"sbatch: {done.stderr}")
        return int(done.stdout.split(";")[0])

    def try_sbatch(self, *options, user=None):
        """The finished sbatch, refused or not."""
        return self.run("sbatch", "--parsable", f"--output={self.path('log/job.%j')}", *options, user=user)

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
