#!/usr/bin/python3
"""make lint: every rule of the house that a machine can check. Each finding names file and line. See tests/README.md."""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import abi
import abi_dcgm
import layers
import text
import tools
import tree

ROOT = tree.ROOT
sys.path.insert(0, str(ROOT / "tests/support/harness"))
import nvidia  # noqa: E402


def check_layers():
    findings, table = layers.check(ROOT)
    print("\n".join(["who includes whom (rows include columns):", *table]))
    return findings


def check_scripts():
    """Shell and Python at least parse, and import what is there."""
    findings = []
    for path in tree.files(ROOT, ".py"):
        try:
            compile(tree.read(ROOT, path), path, "exec")
        except SyntaxError as e:
            findings.append(f"{path}:{e.lineno}: {e.msg}")
    findings = findings or text.check_imports(ROOT)
    for path in tree.files(ROOT):
        first = tree.read(ROOT, path).partition("\n")[0] if not path.endswith((".c", ".h", ".sql", ".md")) else ""
        if first.startswith("#!") and first.endswith("sh"):
            shell = "bash" if "bash" in first else "sh"
            done = subprocess.run([shell, "-n", path], cwd=ROOT, capture_output=True, text=True, check=False)
            findings += [f"{path}: {line}" for line in done.stderr.splitlines()]
    return findings


def check_dcgm_abi():
    """(findings, what to say beside them)"""
    include = abi_dcgm.folder()
    if not include:
        return [], ["skipped: dcgm_agent.h is not on this machine (TOLLGATE_DCGM_INCLUDE names a folder with DCGM's headers)"]
    findings, missing = abi_dcgm.check(ROOT, include)
    return findings, [f"not in DCGM's headers in {include}, so not compared: {', '.join(missing)}"] if missing else []


def check_abi(out):
    """(findings, what to say beside them)"""
    try:
        findings, missing = abi.check(ROOT, nvidia.header(out))
    except nvidia.Unavailable as e:
        return [], [f"skipped: the real nvml.h cannot be had ({e})"]
    return findings, [f"not in this nvml.h, so not compared: {', '.join(missing)}"] if missing else []


TEXT_CHECKS = {
    "layers": check_layers,
    "calls": lambda: text.check_calls(ROOT),
    "terms": lambda: text.check_terms(ROOT),
    "added-columns": lambda: text.check_added_columns(ROOT),
    "unfinished": lambda: text.check_unfinished(ROOT),
    "readmes": lambda: text.check_readmes(ROOT),
    "scripts": check_scripts,
}
# The longest first, so that the last to end is a short one.
TOOL_CHECKS = ("analyzer", "tidy", "cppcheck", "clang", "headers", "format")


def report(name, files, findings, seconds, notes=()):
    verdict = "FAIL" if findings else "skip" if any(n.startswith("skipped: ") for n in notes) else "ok  "
    print(f"{verdict}  {name:<11} {files:>14} {seconds:6.1f} s")
    for finding in [*findings, *notes]:
        print("      " + finding.rstrip().replace(str(ROOT) + "/", "").replace("\n", "\n      "))
    sys.stdout.flush()


def start_tools(pool, names, out):
    """What runs, by check: the tasks of each batch with the future of their call."""
    cache = tools.Cache(ROOT, Path(out) / "lint")
    todo = [t for t in tools.tasks(ROOT) if t.check in names]
    running = {name: [] for name in names}
    for batch in sorted(tools.batches(todo), key=lambda b: TOOL_CHECKS.index(b[0].check)):
        running[batch[0].check].append((batch, pool.submit(tools.run, ROOT, batch, cache)))
    return running


def end_tools(running):
    """(failures) Each check reports when its last file is done."""
    failed = 0
    for name, batches in running.items():
        began = time.monotonic()
        for _, future in batches:
            future.result()
        tasks = [t for batch, _ in batches for t in batch]
        findings = [t.output or f"{t.path}:1: {name} failed" for t in tasks if not t.ok]
        failed += len(findings)
        report(name, f"{len(tasks)} files", findings, time.monotonic() - began)
    return failed


def check_text(only, out):
    """(failures) What needs no tool, and the comparison with NVIDIA's header."""
    failed = 0
    checks = {**{name: lambda check=check: (check(), []) for name, check in TEXT_CHECKS.items()}, "abi": lambda: check_abi(out), "abi-dcgm": check_dcgm_abi}
    for name, check in checks.items():
        if not only or name in only:
            began = time.monotonic()
            findings, notes = check()
            failed += len(findings)
            report(name, "", findings, time.monotonic() - began, notes)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="build", help="the build tree; what passed is remembered there")
    parser.add_argument("--only", choices=[*TEXT_CHECKS, "abi", "abi-dcgm", *TOOL_CHECKS], action="append", help="only this check; may be repeated")
    args = parser.parse_args()
    os.chdir(ROOT)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = start_tools(pool, [n for n in TOOL_CHECKS if not args.only or n in args.only], args.out)
        failed = check_text(args.only, args.out) + end_tools(running)
    print(f"lint: {failed} findings" if failed else "lint: clean")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
