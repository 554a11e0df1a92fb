#!/usr/bin/python3
"""A fleet of 1,000 nodes (8 GPUs x 7 instances x 3 processes, cut every 10 s) on one aggregator and one PostgreSQL of this machine: two
minutes at its own pace, without growing lag or memory; all nodes pushing in the same moment; and how far it goes.

Lag is the time from when a batch was due to its acknowledgement. TOLLGATE_BENCH_STEPS shortens the two minutes."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from tests.bench.bench_http import emit  # noqa: E402
from tests.support.fleetrun import Fleet  # noqa: E402

NODES, STEP_S = 1000, 10
STEPS = int(os.environ.get("TOLLGATE_BENCH_STEPS") or 12)
WANTED = 16_800  # records a second


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
        early, late = (sorted(part)[len(part) // 2] for part in (run["resident"][: third * STEP_S], run["resident"][-third * STEP_S :]))
        emit("fleet, memory of the last third", "KiB", late, "of the first", early, 1.1)


def burst():
    with Fleet(NODES) as fleet:
        run = fleet.run("--steps", 3, "--step-ms", STEP_S * 1000, "--paced", 1, "--burst", 1)
        emit("burst, longest lag", "ms", max(s["max_ms"] for s in run["steps"]), "a step", STEP_S * 1000, 1.0)
        emit("burst, answered 503", "pushes", run["retries"], "of all", run["pushes"], None)


def flat_out():
    with Fleet(NODES) as fleet:
        run = fleet.run("--steps", STEPS)
        emit("flat out, records", "records/s", run["records"] / run["seconds"], "what 1,000 nodes send", WANTED, None)
        for who, used in cores(run).items():
            emit(f"flat out, {who}", "cores", used, "the machine", os.cpu_count(), None)


def main():
    paced()
    burst()
    flat_out()


if __name__ == "__main__":
    main()
