"""`make install`: what it puts where, with which mode, and that what was put there runs."""

import os
import stat
import subprocess
import tempfile
import unittest

from tests.support.daemons.stack import BUILD

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PREFIX = "/opt/tollgate"
PROGRAMS = {"bin/tollgate", "bin/tollgate-exporter", "bin/tollgate-aggregator", "bin/tollgate-agent"}
PAGES = {"share/man/man1/tollgate.1", "share/man/man8/tollgate-exporter.8", "share/man/man8/tollgate-aggregator.8", "share/man/man8/tollgate-agent.8"}
UNITS = {"lib/systemd/system/tollgate-exporter.service", "lib/systemd/system/tollgate-aggregator.service", "lib/systemd/system/tollgate-migrate.service",
         "lib/systemd/system/tollgate-agent.service"}  # fmt: skip
COMPLETIONS = {"share/bash-completion/completions/tollgate", "share/zsh/site-functions/_tollgate"}
SLURM = {"share/tollgate/slurm/tollgate-prolog.sh", "share/tollgate/slurm/tollgate-epilog.sh"}
SAMPLES = {"share/tollgate/systemd/exporter-root.conf", "share/tollgate/aggregator.yaml", "share/tollgate/exporter.yaml", "share/tollgate/agent.yaml",
           "share/tollgate/slurm/job_submit.lua"}  # fmt: skip
POLICIES = {f"share/tollgate/examples/{name}.yaml" for name in ("policy", "two-nodes", "slurm", "showback")}


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="tollgate-install-"))
        variant, out = os.path.basename(BUILD), os.path.dirname(BUILD)
        # the test runner's make must not hand its own variables down
        env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k != "MFLAGS"}
        done = subprocess.run(
            ["make", "-s", f"O={out}", f"BUILD={variant}", f"DESTDIR={cls.dir}", f"PREFIX={PREFIX}", "install"],
            cwd=ROOT, capture_output=True, text=True, env=env,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        cls.at = cls.dir + PREFIX
        cls.files = {}
        for folder, _, names in os.walk(cls.dir):
            for name in names:
                path = os.path.join(folder, name)
                cls.files[os.path.relpath(path, cls.at)] = stat.S_IMODE(os.stat(path).st_mode)

    def read(self, name):
        with open(os.path.join(self.at, name), encoding="utf-8") as f:
            return f.read()

    def test_everything_is_there_and_nothing_beside_the_prefix(self):
        for name in PROGRAMS | PAGES | UNITS | COMPLETIONS | SLURM | SAMPLES | POLICIES:
            self.assertIn(name, self.files)
        for folder in ("share/tollgate/grafana", "share/tollgate/prometheus"):
            self.assertTrue([f for f in self.files if f.startswith(folder + "/")], folder)
        self.assertEqual([f for f in self.files if f.startswith("..") or ".test." in f], [])

    def test_programs_may_be_run_and_the_rest_only_read(self):
        for name, mode in self.files.items():
            with self.subTest(file=name):
                self.assertEqual(mode, 0o755 if name in PROGRAMS | SLURM else 0o644)

    def test_the_programs_run_where_they_are(self):
        for name in PROGRAMS:
            with self.subTest(program=name):
                done = subprocess.run([os.path.join(self.at, name), "--version"], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertRegex(done.stdout, rf"^{os.path.basename(name)} \S+\n$")

    def test_the_units_name_the_installed_programs(self):
        for name in UNITS:
            with self.subTest(unit=name):
                program = os.path.splitext(os.path.basename(name))[0].replace("-migrate", "-aggregator")
                text = self.read(name)
                self.assertIn(f"ExecStart={PREFIX}/bin/{program}", text)
                self.assertNotIn("/usr/local/", text)

    def test_the_pages_are_pages_of_what_they_lie_under(self):
        for name in PAGES:
            with self.subTest(page=name):
                page, _, section = os.path.basename(name).rpartition(".")
                self.assertEqual(self.read(name).replace("\\-", "-").split()[:3], [".TH", page.upper(), section])

    def test_the_completions_are_those_of_the_installed_program(self):
        for shell, name in (("bash", "share/bash-completion/completions/tollgate"), ("zsh", "share/zsh/site-functions/_tollgate")):
            with self.subTest(shell=shell):
                done = subprocess.run([os.path.join(self.at, "bin/tollgate"), "completion", shell], capture_output=True, text=True, check=True)
                self.assertEqual(self.read(name), done.stdout)


if __name__ == "__main__":
    unittest.main()
