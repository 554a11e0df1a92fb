#!/usr/bin/python3
"""make bench: runs every benchmark and shows our figure beside the other side's from the same run.

A benchmark is tests/bench/bench_*.c (or .py) that prints lines of JSON: name, unit, ours, against, theirs, ratio, goal.
The ratio is ours / theirs, the goal what it should be at most (null: none was set). A missed goal is shown, it does not fail:
machines are noisy. Other programs in the folder are what the benchmarks start."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def commands(out):
    for source in sorted((ROOT / "tests/bench").glob("bench_*")):
        if source.suffix == ".c":
            yield source.stem, [str(Path(out).resolve() / "release/bench" / source.stem)]
        elif source.suffix == ".py":
            yield source.stem, [sys.executable, str(source)]


def machine():
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {"cpu": model, "commit": commit.stdout.strip(), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def show(f):
    goal = "" if f["goal"] is None else f"{f['goal']:.3f}"
    met = "  (goal missed)" if f["goal"] is not None and f["ratio"] > f["goal"] else ""
    print(f"{f['name']:<32} {f['ours']:>10.1f} {f['theirs']:>10.1f} {f['unit']:<14} {f['ratio']:>7.3f} {goal:>6}  {f['against']}{met}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="build", help="the build tree; figures go to its bench.json")
    parser.add_argument("-k", dest="pattern", help="only benchmarks whose name contains this")
    args = parser.parse_args()
    figures, broken = [], 0
    environment = {**os.environ, "TOLLGATE_BUILD_DIR": str(Path(args.out).resolve() / "release")}
    print(f"{'benchmark':<32} {'ours':>10} {'theirs':>10} {'':<14} {'ratio':>7} {'goal':>6}  against")
    for name, command in commands(args.out):
        if args.pattern and args.pattern not in name:
            continue
        done = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment)
        for line in done.stdout:
            f = json.loads(line)
            figures.append(f)
            show(f)
        done.wait()
        if done.returncode != 0:
            print(f"{name}: exit code {done.returncode}", file=sys.stderr)
            broken += 1
    target = Path(args.out) / "bench.json"
    target.write_text(json.dumps({**machine(), "figures": figures}, indent=1) + "\n", encoding="utf-8")
    print(f"written to {target}")
    sys.exit(1 if broken or not figures else 0)


if __name__ == "__main__":
    main()
