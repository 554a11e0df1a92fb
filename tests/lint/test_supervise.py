"""What ends a test: processor time of all its processes, or a stall; never time alone."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support/harness"))
import supervise  # noqa: E402

PYTHON = "/usr/bin/python3"
# A grandchild in a session of its own, whose parent has ended: PostgreSQL is started like this.
BURNS_FAR_AWAY = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            pass
    os._exit(0)
os.wait()
time.sleep(600)
"""


class Decision(unittest.TestCase):
    """A test with 100 s of processor time and a stall of 120 s, by what was seen at each look."""

    def end_of(self, looks):
        limits = supervise.Limits(100, 120, 0)
        for at, cpu, running, output in looks:
            why = limits.reached(at, cpu, running, output)
            if why:
                return at, why
        return None

    def test_processor_time_ends_it_whatever_the_clock_says(self):
        self.assertEqual(self.end_of([(1, 50, True, 0), (2, 101, True, 0)]), (2, "used more than 100 s of processor time"))

    def test_no_processor_time_and_no_output_for_the_length_of_a_stall_end_it(self):
        self.assertEqual(self.end_of((t, 1.5, False, 10) for t in range(1000)), (120, "used no processor time and wrote nothing for 120 s"))

    def test_time_alone_never_ends_it(self):
        day = 86400
        for name, looks in (
            ("a little processor time now and then", ((t, t // 100 * 0.01, False, 0) for t in range(day))),
            ("output alone", ((t, 1, False, t // 100) for t in range(day))),
            ("processes that wait for a processor and get none", ((t, 1, True, 0) for t in range(day))),
            ("processor time that is lost with a process nobody waited for", ((t, 1 + t // 100 % 2, False, 0) for t in range(day))),
        ):
            with self.subTest(name):
                self.assertIsNone(self.end_of(looks))


class Process(unittest.TestCase):
    def supervised(self, cpu_s, stall_s, code):
        with tempfile.TemporaryDirectory() as work:
            with open(f"{work}/log", "wb") as log:
                command = [PYTHON, "-SE", str(ROOT / "tests/support/harness/supervise.py"), f"{work}/status", str(cpu_s), str(stall_s), PYTHON, "-SEc", code]
                subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=True)
            return json.loads(Path(f"{work}/status").read_text(encoding="utf-8"))

    def test_one_that_computes_without_end_is_ended_at_its_limit(self):
        self.assertEqual(self.supervised(0.5, 600, "while True: pass")["limit"], "used more than 0.5 s of processor time")

    def test_one_whose_far_descendant_computes_is_ended_at_the_same_limit(self):
        self.assertEqual(self.supervised(0.5, 600, BURNS_FAR_AWAY), {"exit": -15, "limit": "used more than 0.5 s of processor time", "left": []})

    def test_one_that_waits_for_nothing_is_ended_after_a_stall(self):
        self.assertEqual(self.supervised(600, 1.5, "import time; time.sleep(600)")["limit"], "used no processor time and wrote nothing for 1.5 s")

    def test_one_that_ends_is_left_alone(self):
        self.assertEqual(self.supervised(600, 600, "raise SystemExit(3)"), {"exit": 3, "limit": None, "left": []})


if __name__ == "__main__":
    unittest.main()
