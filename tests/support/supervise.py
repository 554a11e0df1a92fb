"""Runs one test process so that nothing of it survives: supervise.py STATUS_FILE TIMEOUT_SECONDS COMMAND...

A test may start databases and daemons that put themselves into sessions of their own, so a process group is not enough
to find them. This process makes itself the reaper of every orphan below it: whatever is still its descendant when the
command has ended was left behind, is named in the status file, and is killed.

The status file gets {"exit": code or -signal, "timeout": bool, "left": ["pid command", ...]}.
"""

import ctypes
import json
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
GRACE_S = 5.0


def descendants():
    children = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as f:
                state, parent = f.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(int(entry))
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


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
    status_file, timeout, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
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

    codes, timed_out = {}, False
    deadline = time.monotonic() + timeout
    while child not in codes:
        got = signal.sigtimedwait(SIGNALS, max(0.0, deadline - time.monotonic()))
        reap(codes)
        if child in codes:
            break
        if got is None:
            timed_out = True
        if got is None or got.si_signo != signal.SIGCHLD:
            end_all(codes)
    left = []
    if not timed_out and not wait_until_gone(codes, GRACE_S):
        left = [describe(pid) for pid in descendants()]
    end_all(codes)
    with open(status_file, "w", encoding="utf-8") as f:
        json.dump({"exit": codes.get(child, -signal.SIGKILL), "timeout": timed_out, "left": left}, f)


if __name__ == "__main__":
    main()
