"""The exporter on a node of 8 GPUs x 7 MIG instances x 3 processes at 1 s: processor time and memory, and both over a simulated week.

The first two are of the real tollgate-exporter, on the NVML simulator and its folder of processes, which cost it more than a driver and /proc
would: the work of the thread that reads the GPUs is shown by itself. The week is in fast-forward (fast_week.c), a tick every 10 s; the first
and the last three days are compared, each by the median of its hours. Its memory has the scenario of 7,056 pods in it, twice."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from tests.support.daemons import stack

WARM_UP_S = 5
MEASURED_S = 20
LIMIT_PERCENT = 0.5
LIMIT_MB = 16
WEEK_DAYS = 7
WEEK_TICK_S = 10


def emit(name, unit, ours, against, theirs, goal):
    print(json.dumps({"name": name, "unit": unit, "ours": ours, "against": against, "theirs": theirs, "ratio": ours / theirs, "goal": goal}), flush=True)


def scenario():
    gpu = {"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "count": 8, "mig": ["1g.10gb"] * 7}
    processes = [
        {"pid": 10000 + g * 100 + i * 10 + p, "gpu": g, "instance": i, "sm": 10 + p, "memory_mib": 512, "pod": {"namespace": f"team-{g}", "name": f"job-{g}-{i}-{p}"}}
        for g in range(8) for i in range(7) for p in range(3)
    ]  # fmt: skip
    return {"name": "bench", "gpus": [gpu], "processes": processes}


def threads(pid):
    """Processor time of each thread in ns, by its id and name."""
    times = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm", encoding="ascii") as f:
            name = f.read().strip()
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as f:
            times[int(task), name] = int(f.read().split()[0])
    return times


def resident_mb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS:")) / 1024


def real_time(directory):
    path = os.path.join(directory, "scenario.yaml")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(scenario(), f)
    dirs = {d: os.path.join(directory, d) for d in ("proc", "pods", "spool")}
    env = {**os.environ, "TOLLGATE_SIM_SCENARIO": path, "TOLLGATE_SIM_PROC": dirs["proc"], "TOLLGATE_SIM_PODS": dirs["pods"]}
    argv = [stack.program("tollgate-exporter"), "--node", "bench", "--listen", f"127.0.0.1:{stack.free_port()}",
            "--nvml-library", os.path.join(stack.BUILD, "sim", "libnvidia-ml.so.1"), "--proc-root", dirs["proc"],
            "--pods-root", dirs["pods"], "--spool-dir", dirs["spool"], "--sample-interval", "1s", "--interval", "1m"]  # fmt: skip
    with open(os.path.join(directory, "log"), "wb") as log:
        exporter = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
    try:
        time.sleep(WARM_UP_S)
        before, began = threads(exporter.pid), time.monotonic()
        time.sleep(MEASURED_S)
        after, passed = threads(exporter.pid), time.monotonic() - began
        mb = resident_mb(exporter.pid)
    finally:
        exporter.terminate()
        exporter.wait()
    spent = {key: ns - before.get(key, 0) for key, ns in after.items()}
    percent = 100 * sum(spent.values()) / 1e9 / passed
    ticking = 100 * sum(ns for (task, _), ns in spent.items() if task == exporter.pid) / 1e9 / passed
    emit("exporter 8x7x3 at 1 s, processor", "% of a core", percent, "the limit", LIMIT_PERCENT, 1.0)
    emit("exporter 8x7x3 at 1 s, without its reading", "% of a core", ticking, "all of it, simulator included", percent, None)
    emit("exporter 8x7x3 at 1 s, resident memory", "MB", mb, "the limit", LIMIT_MB, 1.0)


def week():
    done = subprocess.run([os.path.join(stack.BUILD, "bench", "fast_week"), str(WEEK_DAYS), str(WEEK_TICK_S)], capture_output=True, text=True, check=True)
    days = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    # a day's processor time varies by a quarter on a shared machine; memory does not
    first, last = (statistics.median(d[0] for d in part) / 1000 for part in (days[:3], days[-3:]))
    emit("simulated week, tick, median of the last 3 days", "us", last, "of the first 3 days", first, 1.05)
    emit("simulated week, resident memory on the last day", "MB", days[-1][1] / 1024, "on the first day", days[0][1] / 1024, 1.05)
    emit("simulated week, heap in use on the last day", "MB", days[-1][2] / 2**20, "on the first day", days[0][2] / 2**20, 1.05)


def main():
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
        real_time(directory)
    week()


if __name__ == "__main__":
    main()
