"""The sample configurations are what the option tables say, and a program starts from its sample."""

import os
import subprocess
import unittest

from tests.support.daemons.stack import ROOT, program

PROGRAMS = {"aggregator": "tollgate-aggregator", "exporter": "tollgate-exporter", "agent": "tollgate-agent"}


class Samples(unittest.TestCase):
    def test_each_sample_is_the_option_table(self):
        for name, binary in PROGRAMS.items():
            with self.subTest(program=binary):
                with open(os.path.join(ROOT, "deploy", f"{name}.yaml"), encoding="utf-8") as f:
                    sample = f.read()
                printed = subprocess.run([program(binary), "--print-config"], capture_output=True, text=True, check=True).stdout
                self.assertEqual(sample, printed, f"deploy/{name}.yaml is old; make samples writes it anew")

    def test_each_program_accepts_its_sample(self):
        for name, binary in PROGRAMS.items():
            with self.subTest(program=binary):
                path = os.path.join(ROOT, "deploy", f"{name}.yaml")
                done = subprocess.run([program(binary), "--config", path, "-n"], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_an_unknown_option_is_a_wrong_use(self):
        for binary in PROGRAMS.values():
            with self.subTest(program=binary):
                done = subprocess.run([program(binary), "--lissten=x"], capture_output=True, text=True)
                self.assertEqual(done.returncode, 2)
                self.assertIn("--listen", done.stderr)


if __name__ == "__main__":
    unittest.main()
