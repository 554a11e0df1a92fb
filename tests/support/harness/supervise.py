"""Runs one test process so that nothing of it survives: supervise.py STATUS_FILE CPU_SECONDS STALL_SECONDS COMMAND...

A test may start databases and daemons that put themselves into sessions of their own, so a process group is not enough
to find them. This process makes itself the reaper of every orphan below it: whatever is still its descendant when the
command has ended was left behind, is named in the status file, and is killed.

A test is ended early for two reasons, and time that passes is neither of them: a busy machine must not fail a test.
  1. All its processes together, databases and daemons included, used more than CPU_SECONDS of processor time.
  2. For STALL_SECONDS they used none, none of them was waiting for a processor, and nothing was written to the output.

The status file gets {"exit": code or -signal, "limit": why it was ended or null, "left": ["pid command", ...]}.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
GRACE_S = 5.0  # from SIGTERM to SIGKILL
LEAVE_S = 60.0  # in which what a test has stopped must be gone
LOOK_S = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def processes():
    """Every process that is not a zombie: {pid: (state, parent, processor seconds with those of its children that it has waited for)}."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as f:
                fields = f.read().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(entry)] = (fields[0], int(fields[1]), sum(map(int, fields[11:15])) / TICKS_PER_S)
    return found


def descendants(of=None):
    children = {}
    for pid, (state, parent, _) in (of or processes()).items():
        if state != "Z":
            children.setdefault(parent, []).append(pid)
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def look():
    """(processor seconds of all that was started here, whether one of them runs or waits for a processor, bytes of output)"""
    now = processes()
    mine = [now[pid] for pid in descendants(now)]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime + sum(cpu for _, _, cpu in mine), any(state == "R" for state, _, _ in mine), os.fstat(1).st_size


class Limits:
    """Decides by what look() saw. The clock is an argument."""

    def __init__(self, cpu_s, stall_s, now):
        self.cpu_s, self.stall_s = cpu_s, stall_s
        self.moved_at, self.last = now, None

    def reached(self, now, cpu, running, output):
        """Why the test is to be ended, or None."""
        if cpu > self.cpu_s:
            return f"used more than {self.cpu_s:g} s of processor time"
        if running or (cpu, output) != self.last:
            self.moved_at, self.last = now, (cpu, output)
        if now - self.moved_at >= self.stall_s:
            return f"used no processor time and wrote nothing for {self.stall_s:g} s"
        return None


def describe(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as f:
            return f"{pid} {f.read().replace(chr(0), ' ').strip()[:200]}"
    except OSError:
        return str(pid)


def reap(codes):
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        codes[pid] = os.waitstatus_to_exitcode(status)


def wait_until_gone(codes, seconds):
    """True when no descendant is left after at most so many seconds."""
    deadline = time.monotonic() + seconds
    while descendants():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        signal.sigtimedwait({signal.SIGCHLD}, min(left, 0.1))
        reap(codes)
    return True


def end_all(codes):
    for sig in (signal.SIGTERM, signal.SIGKILL):
        for pid in descendants():
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                pass
        if wait_until_gone(codes, GRACE_S):
            return


def main():
    status_file, cpu_s, stall_s, command = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            os.execvp(command[0], command)
        except OSError as e:
            print(f"{command[0]}: {e.strerror}", file=sys.stderr, flush=True)
            os._exit(127)

    codes, limit, looked = {}, None, time.monotonic()
    limits = Limits(cpu_s, stall_s, looked)
    while child not in codes:
        got = signal.sigtimedwait(SIGNALS, LOOK_S)
        reap(codes)
        if child in codes:
            break
        if time.monotonic() - looked >= LOOK_S:
            looked = time.monotonic()
            limit = limit or limits.reached(looked, *look())
        if limit or (got is not None and got.si_signo != signal.SIGCHLD):
            end_all(codes)
    left = []
    if not limit and not wait_until_gone(codes, LEAVE_S):
        left = [describe(pid) for pid in descendants()]
    end_all(codes)
    with open(status_file, "w", encoding="utf-8") as f:
        json.dump({"exit": codes.get(child, -signal.SIGKILL), "limit": limit, "left": left}, f)


if __name__ == "__main__":
    main()
