#!/usr/bin/python3
"""make test: builds what the tests need, runs them, and says what passed, failed and was skipped. See tests/README.md."""

import argparse
import copy
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True
from tests.support.daemons import pg  # noqa: E402

HARNESS = ROOT / "tests" / "support" / "harness"
SUITES = ("unit", "prop", "fuzz", "golden", "lint", "integration")
VARIANTS = ("release", "san", "tsan", "mem")
# What ends a test, as support/harness/supervise.py says: processor time of all its processes, about ten times what the longest takes, and a stall.
# A soak (make soak) takes as long as it is told, on all processors, and its requests a few milliseconds each.
SOAK_CPU_SECONDS = 3 * (os.cpu_count() or 1) * int(os.environ.get("SOAK_SECONDS") or 0) + int(os.environ.get("SOAK_REQUESTS") or 0) // 50
CPU_SECONDS = {"integration": 1200 + SOAK_CPU_SECONDS}
CPU_SECONDS_DEFAULT = 300
STALL_SECONDS = 120
MEMCHECK_SLOWER = 5  # than the same test without valgrind
# How many of the slowest are named at the end: CI's time is a budget, and these are where it goes.
SLOWEST = 10


class Job:
    """One process: a C test program or a Python test file, in one variant. `targets` is what make builds for it."""

    def __init__(self, suite, name, variant, source, targets=(), pattern=None):
        self.suite, self.name, self.variant, self.source = suite, name, variant, source
        self.targets, self.pattern = list(targets), pattern
        self.results = []  # (name, passed|failed|skipped, detail)
        self.output = ""
        self.turn = 0  # of a soak, which runs each many times
        self.seconds = 0.0
        self.cpu_seconds = 0.0  # of all its processes

    @property
    def label(self):
        return f"{self.suite}/{self.name}" + (f" [{self.variant}]" if self.variant else "")

    def add(self, name, result, detail=""):
        self.results.append((name, result, detail))

    def count(self, result):
        return sum(1 for r in self.results if r[1] == result)


def text_of(path):
    return Path(path).read_text(encoding="utf-8", errors="replace")


# ---- what there is to run --------------------------------------------------------------------------------------------


def c_jobs(suite, prefix, out):
    """Every program in release and san; in tsan those that say so, because they use threads."""
    for source in sorted(glob(f"tests/{suite}/**/{prefix}_*.c", recursive=True)):
        name = Path(source).stem
        variants = ["release", "san"] + (["tsan"] if "/* tsan */" in text_of(source) else [])
        for variant in variants:
            yield Job(suite, name, variant, source, [f"{out}/{variant}/tests/{name}"])


def fuzz_jobs(out):
    for source in sorted(glob("tests/fuzz/fuzz_*.c")):
        name = Path(source).stem
        yield Job("fuzz", name, "san", source, [f"{out}/san/tests/{name}"])


def python_jobs(suite, out, only=None):
    """Integration tests run against the release programs, and again against the variants named in '# also: ...'; those that say
    '# instead: ...' run against these alone."""
    for source in sorted(glob(f"tests/{suite}/test_*.py")):
        if suite == "lint":
            yield Job(suite, Path(source).stem, "", source)
            continue
        said = re.search(r"^# (also|instead):(.*)$", text_of(source), re.M)
        first = [] if said and said.group(1) == "instead" else ["release"]
        for variant in [only] if only else first + (said.group(2).split() if said else []):
            if variant not in VARIANTS:
                sys.exit(f"{source}: '{said.group(0)}' names no variant; there are {', '.join(VARIANTS)}")
            tools = [f"{out}/{variant}/tests/{Path(t).stem}" for t in sorted(glob("tests/support/**/*_tool.c", recursive=True))]
            yield Job(suite, Path(source).stem, variant, source, ["programs", f"{out}/{variant}/sim/libclockstep.so"] + tools)


def memcheck_jobs(out):
    """Of the files that say '# memcheck', for make memcheck: they start the command line program, which then runs under valgrind."""
    for job in python_jobs("integration", out, "mem"):
        if re.search("^# memcheck$", text_of(job.source), re.M):
            yield job


def all_jobs(out):
    yield from c_jobs("unit", "test", out)
    yield from c_jobs("prop", "prop", out)
    yield from fuzz_jobs(out)
    yield Job("golden", "files", "", "tests/golden")
    yield from python_jobs("lint", out)
    yield from python_jobs("integration", out)


def selected(jobs, pattern):
    """A file whose name matches runs whole; otherwise only the Python tests that match, or the C file that has the name."""
    for job in jobs:
        if pattern is None or pattern in job.label:
            yield job
        elif job.source.endswith((".c", ".py")) and pattern in text_of(job.source):
            job.pattern = pattern if job.source.endswith(".py") else None
            yield job


# ---- building --------------------------------------------------------------------------------------------------------


def build(jobs, out):
    # The make that called us holds a job server we cannot use from here.
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}
    for variant in VARIANTS:
        targets = sorted({t for j in jobs if j.variant == variant for t in j.targets})
        if targets:
            print(f"build {variant}", flush=True)
            if subprocess.run(["make", f"O={out}", f"BUILD={variant}", *targets], env=env, check=False).returncode != 0:
                print(f"make: BUILD={variant} does not build, so no test ran\n0 passed, 1 failed, 0 skipped")
                sys.exit(1)


# ---- running one job -------------------------------------------------------------------------------------------------


def sanitizer_env(log):
    common = f"log_path={log}:print_stacktrace=1"
    return {
        "LSAN_OPTIONS": f"suppressions={HARNESS / 'leaks.supp'}:print_suppressions=0",
        "ASAN_OPTIONS": f"{common}:detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1",
        "UBSAN_OPTIONS": f"{common}:halt_on_error=1",
        "TSAN_OPTIONS": f"{common}:halt_on_error=1:second_deadlock_stack=1",
    }


def seed_of_tree(label):
    """CI's seed of a job: of what was committed, so that a commit passes or fails each time. None: not CI, or no repository."""
    if not os.environ.get("CI"):
        return None
    tree = subprocess.run(["git", "rev-parse", "HEAD^{tree}"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return str(int(hashlib.sha256(f"{tree} {label}".encode()).hexdigest()[:8], 16)) if tree else None


def can_fix_addresses():
    """ThreadSanitizer of this gcc fails under strong address randomisation; where allowed, switch that off for it."""
    return subprocess.run(["setarch", "-R", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


class Runner:
    def __init__(self, out, templates, fresh_seeds=False):
        self.templates = templates  # of PostgreSQL clusters
        self.fresh_seeds = fresh_seeds  # also under CI
        self.out = Path(out).resolve()
        self.logs = self.out / "test"
        shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir(parents=True)
        # A daemon under test may have given up root before its sanitizer writes here.
        self.sanitizer_logs = self.logs / "sanitizer"
        self.sanitizer_logs.mkdir()
        self.sanitizer_logs.chmod(0o1777)
        self.tsan_prefix = ["setarch", "-R"] if can_fix_addresses() else []

    def supervise(self, job, command):
        """Runs the command to its end; returns (exit code, results file). What went wrong around it becomes a result."""
        stem = self.logs / f"{job.suite}-{job.name}-{job.variant or 'any'}{f'-{job.turn}' if job.turn else ''}"
        results, status, log = (stem.with_suffix(s) for s in (".results", ".status", ".log"))
        reports = self.sanitizer_logs / stem.name
        env = dict(os.environ, **sanitizer_env(reports))
        env["CMOCKA_MESSAGE_OUTPUT"] = "TAP"
        env["PYTHONPATH"] = str(ROOT)
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        env["TOLLGATE_BUILD_DIR"] = str(self.out / (job.variant or "release"))
        env["TOLLGATE_PG_TEMPLATES"] = self.templates
        if not self.fresh_seeds and (seed := seed_of_tree(job.label)):
            env.setdefault("TOLLGATE_PROP_SEED", seed)
        cpu_seconds = CPU_SECONDS.get(job.suite, CPU_SECONDS_DEFAULT)
        if job.variant == "mem":
            env["TOLLGATE_MEMCHECK"] = f"{reports}.%p"  # see support/harness/memcheck.sh
            cpu_seconds *= MEMCHECK_SLOWER
        limits = [str(cpu_seconds), str(STALL_SECONDS)]
        command = [c.replace("RESULTS", str(results)) for c in command]
        prefix = self.tsan_prefix if job.variant == "tsan" else []
        began = time.monotonic()
        with open(log, "wb") as f:
            child = subprocess.Popen(
                [sys.executable, "-SE", str(HARNESS / "supervise.py"), str(status), *limits, *prefix, *command],
                stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, env=env, cwd=ROOT)
        _, child.returncode, used = os.wait4(child.pid, 0)
        job.seconds, job.cpu_seconds = time.monotonic() - began, used.ru_utime + used.ru_stime
        job.output = text_of(log)
        job.log = log
        ended = json.loads(text_of(status)) if status.exists() else {"exit": -9, "limit": None, "left": []}
        if ended["limit"]:
            job.add("ends", "failed", ended["limit"])
        if ended["left"]:
            job.add("leaves no process behind", "failed", "\n".join(ended["left"]))
        for report in sorted(glob(f"{reports}.*")):
            if os.path.getsize(report) > 0:  # valgrind makes its file at once
                job.add("has no sanitizer report", "failed", text_of(report))
        return ended["exit"], results

    def run_c(self, job):
        code, _ = self.supervise(job, [str(self.out / job.variant / "tests" / job.name)])
        read_tap(job, code)

    def run_fuzz(self, job):
        corpus = Path("tests/fuzz/corpus") / job.name.removeprefix("fuzz_")
        inputs = sorted(str(p) for p in corpus.glob("*") if p.is_file())
        if not inputs:
            job.add("has a corpus", "failed", f"{corpus} is missing or empty")
            return
        code, _ = self.supervise(job, [str(self.out / job.variant / "tests" / job.name), *inputs])
        name = f"replays {len(inputs)} inputs"
        if code == 0:
            job.add(name, "passed")
        else:
            job.add(name, "failed", f"{ended_how(code)}; the last input named above is the one")

    def run_golden(self, job):
        """A golden file that no test names is a check that cannot fail."""
        sources = "".join(text_of(p) for suffix in ("c", "h", "py") for p in glob(f"tests/**/*.{suffix}", recursive=True))
        for path in sorted(p for p in Path("tests/golden").rglob("*") if p.is_file() and p.name != "README.md"):
            used = path.name in sources
            job.add(f"{path.name} is compared by a test", "passed" if used else "failed", "" if used else f"{path}: no test names it")

    def run_python(self, job):
        pattern = [job.pattern] if job.pattern else []
        command = [sys.executable, str(HARNESS / "unittest_json.py"), "RESULTS", job.source, *pattern]
        code, results = self.supervise(job, command)
        lines = [json.loads(line) for line in text_of(results).splitlines()] if results.exists() else []
        for r in lines:
            if r["result"] != "end":
                job.add(r["name"], r["result"], r["detail"])
        if code != 0 or not lines or lines[-1]["result"] != "end":
            job.add("runs to its end", "failed", ended_how(code))
        elif len(lines) == 1 and not job.pattern:
            job.add("has tests", "failed", f"{job.source} has none")

    def run(self, job):
        kind = {"fuzz": self.run_fuzz, "golden": self.run_golden, "unit": self.run_c, "prop": self.run_c}
        kind.get(job.suite, self.run_python)(job)


def ended_how(code):
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"


TAP = re.compile(r"^(not ok|ok) \d+ (?:- (?P<name>.*)|# SKIP (?P<skipped>.*))$")


def read_tap(job, code):
    """cmocka's TAP. A program that dies leaves its plan unfulfilled, which is a failure of the test that was running."""
    planned, seen, reason, last = 0, 0, "no reason given", ""
    for line in job.output.splitlines():
        plan = re.match(r"^1\.\.(\d+)$", line)
        if plan:
            planned += int(plan.group(1))
        elif line.startswith("skip: "):
            reason = line.removeprefix("skip: ")
        m = TAP.match(line)
        if not m:
            continue
        seen += 1
        last = m["name"] or m["skipped"]
        if m["skipped"]:
            job.add(m["skipped"], "skipped", reason)
            reason = "no reason given"
        else:
            job.add(m["name"], "passed" if m[1] == "ok" else "failed")
    if seen < planned:
        after = f"after {last}" if last else "before its first result"
        job.add("runs to its end", "failed", f"{ended_how(code)} {after}, {planned - seen} tests without a result")
    elif planned == 0:
        job.add("has tests", "failed", f"no TAP plan in its output; {ended_how(code)}")
    elif code != 0 and not job.count("failed"):
        job.add("ends well", "failed", ended_how(code))


def run_all(jobs, count, run):
    """So many at a time. Those that wait and those that compute go side by side: one worker in three begins with the latter, and all
    take what is left. Of each kind the long ones come first, so that the last to end is a short one."""
    order = sorted(jobs, key=lambda j: (SUITES.index(j.suite), VARIANTS.index(j.variant or "release")), reverse=True)
    kinds = [deque(j for j in order if (j.suite == "integration") == waits) for waits in (True, False)]

    def work(number):
        for queue in kinds[::-1] if number % 3 == 1 else kinds:
            while True:
                try:
                    job = queue.popleft()
                except IndexError:
                    break
                run(job)

    in_threads(count, work, lambda: [queue.clear() for queue in kinds])


def in_threads(count, work, stop):
    pool = ThreadPoolExecutor(count)
    try:
        list(pool.map(work, range(count)))
    except KeyboardInterrupt:
        stop()
        pool.shutdown()
        raise


def soak(jobs, count, seconds, run):
    """Runs the jobs again and again, each time with a seed of its own, and begins none after so many seconds. Gives every run as a job."""
    until, lock, turns, runs = time.monotonic() + seconds, threading.Lock(), itertools.cycle(jobs), []
    stopped = threading.Event()

    def work(_):
        while time.monotonic() < until and not stopped.is_set():
            with lock:
                job = copy.deepcopy(next(turns))
                job.turn = len(runs) + 1
                runs.append(job)
            run(job)
            if not job.count("failed"):
                job.log.unlink()

    in_threads(count, work, stopped.set)
    return runs


# ---- reporting -------------------------------------------------------------------------------------------------------


def report(job):
    failed, skipped = job.count("failed"), job.count("skipped")
    counts = f"{job.count('passed')} passed" + (f", {failed} failed" if failed else "") + (f", {skipped} skipped" if skipped else "")
    print(f"{'FAIL' if failed else 'ok  '}  {job.label:<50} {counts}, {job.seconds:.1f} s, {job.cpu_seconds:.1f} s of CPU")
    if failed:
        for line in job.output.splitlines():
            print(f"      | {line}")
        for name, result, detail in job.results:
            if result == "failed":
                print(f"      failed: {name}")
                # A Python test's detail is already in the output.
                for line in detail.splitlines() if detail not in job.output else []:
                    print(f"      | {line}")
    sys.stdout.flush()


def summary(jobs):
    for result in ("skipped", "failed"):
        for job in jobs:
            for name, r, detail in job.results:
                if r == result:
                    print(f"{result}: {job.label}: {name}" + (f" ({detail})" if r == "skipped" else ""))
    print(f"the slowest, of {sum(j.cpu_seconds for j in jobs):.0f} s of CPU:")
    for job in sorted(jobs, key=lambda j: j.seconds, reverse=True)[:SLOWEST]:
        print(f"      {job.label:<50} {job.seconds:5.1f} s, {job.cpu_seconds:5.1f} s of CPU")
    passed, failed, skipped = (sum(j.count(r) for j in jobs) for r in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if failed == 0 and passed > 0 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="build", help="the build tree")
    parser.add_argument("-k", dest="pattern", help="only tests whose name contains this")
    parser.add_argument("--only", choices=SUITES, action="append", help="only this suite; may be repeated")
    # thrice the cores: the tests of daemons wait for ticks more than they compute
    parser.add_argument("--jobs", type=int, default=3 * (os.cpu_count() or 1), help="test processes at a time")
    parser.add_argument("--memcheck", action="store_true", help="the tests of the command line, with valgrind")
    parser.add_argument("--soak", type=int, metavar="SECONDS", help="run the selected tests again and again with fresh seeds, for so long")
    args = parser.parse_args()

    os.chdir(ROOT)
    there_are = memcheck_jobs if args.memcheck else all_jobs
    jobs = [j for j in there_are(args.out) if not args.only or j.suite in args.only]
    jobs = list(selected(jobs, args.pattern))
    build(jobs, args.out)
    printing = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="tollgate-pg-", dir=pg.base()) as templates:
        os.chmod(templates, 0o755)
        runner = Runner(args.out, templates, fresh_seeds=args.soak is not None)

        def run_and_report(job):
            try:
                runner.run(job)
            except Exception as e:  # the runner's own mistake must not pass for a test that ran
                job.add("can be run", "failed", repr(e))
            with printing:
                report(job)

        try:
            if args.soak is not None:
                jobs = soak(jobs, min(args.jobs, os.cpu_count() or 1), args.soak, run_and_report)
            else:
                run_all(jobs, args.jobs, run_and_report)
        except KeyboardInterrupt:
            sys.exit("interrupted")
    sys.exit(summary(jobs))


if __name__ == "__main__":
    main()
