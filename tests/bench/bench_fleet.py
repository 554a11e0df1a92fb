#!/usr/bin/python3
"""A fleet of 1,000 nodes (8 GPUs x 7 instances x 3 processes, cut every 10 s) on one aggregator and one PostgreSQL of this machine: two
minutes at its own pace, without growing lag or memory; all nodes pushing in the same moment; and how far it goes: the same nodes cut
oftener and oftener until their lag grows, and what was busy or waited for then.

Lag is the time from when a batch was due to its acknowledgement. TOLLGATE_BENCH_STEPS shortens the two minutes, TOLLGATE_BENCH_RUNG_S the
seconds of each pace on the way up."""

import os
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from tests.bench.bench_http import emit  # noqa: E402
from tests.support.fleet.fleetrun import Fleet, resident_thirds  # noqa: E402

NODES, STEP_S = 1000, 10
STEPS = int(os.environ.get("TOLLGATE_BENCH_STEPS") or 12)
WANTED = 16_800  # records a second
# Each divides a quarter of an hour, as an exporter's interval does.
RUNGS_MS = (5000, 2500, 1500, 1000, 750, 600, 500, 400, 300)
RUNG_S = int(os.environ.get("TOLLGATE_BENCH_RUNG_S") or 15)


def cores(run):
    return {who: cpu / run["seconds"] for who, cpu in run["cpu"].items()}


def paced():
    with Fleet(NODES) as fleet:
        run = fleet.run("--steps", STEPS, "--step-ms", STEP_S * 1000, "--paced", 1)
        steps, third = run["steps"], max(1, STEPS // 3)
        used = cores(run)
        emit("fleet, records", "records/s", run["records"] / run["seconds"], "what 1,000 nodes send", WANTED, None)
        emit("fleet, not in before the next", "batches", sum(s["late"] for s in steps), "of all", run["pushes"], 0.0)
        first, last = (sum(s["mean_ms"] for s in part) / third for part in (steps[:third], steps[-third:]))
        emit("fleet, lag of the last third", "ms", last, "of the first", first, None)
        emit("fleet, growth of the lag", "ms", max(0, last - first), "a step", STEP_S * 1000, 0.01)
        emit("fleet, longest lag", "ms", max(s["max_ms"] for s in steps), "a step", STEP_S * 1000, 1.0)
        for who in ("aggregator", "server", "fleet"):
            emit(f"fleet, {who}", "cores", used[who], "the machine", os.cpu_count(), None)
        early, _, late = resident_thirds(run)
        emit("fleet, memory of the last third", "KiB", late, "of the first", early, 1.1)


def burst():
    with Fleet(NODES) as fleet:
        run = fleet.run("--steps", 3, "--step-ms", STEP_S * 1000, "--paced", 1, "--burst", 1)
        emit("burst, longest lag", "ms", max(s["max_ms"] for s in run["steps"]), "a step", STEP_S * 1000, 1.0)
        emit("burst, answered 503", "pushes", run["retries"], "of all", run["pushes"], None)


def held(run, step_ms):
    """Every batch was in before the next, and the last third did not wait longer than the first."""
    steps = run["steps"]
    third = max(1, len(steps) // 3)
    first, last = (sum(s["mean_ms"] for s in part) / third for part in (steps[:third], steps[-third:]))
    return sum(s["late"] for s in steps) == 0 and last - first <= step_ms / 10


def limits(run):
    """(how near its end it is, what) of everything that could be the end, the nearest first. A process of one thread ends at one core."""
    seconds, machine = run["seconds"], run["machine"]
    shares = {"all processors": 1 - (machine["idle"] + machine["disk"]) / sum(machine.values())}
    shares |= {f"one {who}": used / seconds for who, used in run["busiest"].items()}
    shares["the generator"] = run["cpu"]["fleet"] / seconds
    shares["fsync of the WAL"] = run["wal"][1] / seconds
    seen = sum(run["waits"].values()) or 1
    shares |= {f"backends: {what}": n / seen for what, n in run["waits"].items() if what != "computes"}
    return sorted(((share, what) for what, share in shares.items()), reverse=True)


def climb():
    """The pace goes up until it is not held. What is said of a pace is of that pace alone: each begins with an empty ledger."""
    best = None
    for step_ms in RUNGS_MS:
        with Fleet(NODES) as fleet:
            run = fleet.run("--steps", max(6, RUNG_S * 1000 // step_ms), "--step-ms", step_ms, "--paced", 1)
        rate, ok = run["records"] / run["seconds"], held(run, step_ms)
        emit(f"cut every {step_ms / 1000:g} s, {'held' if ok else 'not held'}", "records/s", rate, "what 1,000 nodes send", WANTED, None)
        emit(f"cut every {step_ms / 1000:g} s, longest lag", "ms", max(s["max_ms"] for s in run["steps"]), "a step", step_ms, None)
        if not ok:
            break
        best = rate
    if best:
        emit("held at most", "records/s", best, "what 1,000 nodes send", WANTED, None)
    for who, used in {**cores(run), **{kind: seconds / run["seconds"] for kind, seconds in run["kinds"].items()}}.items():
        if used >= 0.005:
            emit(f"at the end, {who}", "cores", used, "the machine", os.cpu_count(), None)
    for share, what in limits(run)[:6]:
        emit(f"at the end, {what}", "of 1", share, "all of it", 1, None)


def main():
    # a database in memory would have no disk to wait for
    os.environ.setdefault("TMPDIR", tempfile.gettempdir())
    paced()
    burst()
    climb()


if __name__ == "__main__":
    main()
