"""The Debian packages: what is in them, what they depend on, and how they install, upgrade and leave, in a root of their own."""

import glob
import gzip
import os
import re
import shutil
import stat
import subprocess
import tempfile
import unittest

from tests.support.daemons.stack import BUILD, ROOT

NAMES = ("tollgate-agent", "tollgate-aggregator", "tollgate-cli", "tollgate-exporter")
CONTENTS = {
    "tollgate-agent": {
        "etc/tollgate/agent.yaml", "lib/systemd/system/tollgate-agent.service", "usr/bin/tollgate-agent", "usr/share/man/man8/tollgate-agent.8.gz",
        "usr/share/tollgate/slurm/job_submit.lua",
    },
    "tollgate-exporter": {
        "etc/tollgate/exporter.yaml", "lib/systemd/system/tollgate-exporter.service", "usr/bin/tollgate-exporter",
        "usr/lib/sysusers.d/tollgate-exporter.conf", "usr/share/man/man8/tollgate-exporter.8.gz",
        "usr/share/tollgate/slurm/tollgate-prolog.sh", "usr/share/tollgate/slurm/tollgate-epilog.sh",
        "usr/share/tollgate/systemd/exporter-root.conf",
    },
    "tollgate-aggregator": {
        "etc/tollgate/aggregator.yaml", "lib/systemd/system/tollgate-aggregator.service", "lib/systemd/system/tollgate-migrate.service", "usr/bin/tollgate-aggregator",
        "usr/lib/sysusers.d/tollgate-aggregator.conf", "usr/share/man/man8/tollgate-aggregator.8.gz",
    },
    "tollgate-cli": {
        "usr/bin/tollgate", "usr/share/man/man1/tollgate.1.gz", "usr/share/bash-completion/completions/tollgate",
        "usr/share/zsh/vendor-completions/_tollgate",
    },
}  # fmt: skip
# beside these, only documentation, dashboards and rules
ELSEWHERE = re.compile(r"usr/share/(doc/tollgate-|lintian/overrides/tollgate-|tollgate/(grafana|prometheus)/)")


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, **more)


def text_of(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


OUT = os.path.dirname(BUILD)


def setUpModule():
    if not shutil.which("dh") or not shutil.which("dpkg-buildpackage"):
        raise unittest.SkipTest("debhelper is not installed: make deps")
    # the test runner's make must not hand its own variables down
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in ("MFLAGS", "DEB_BUILD_OPTIONS")}
    done = run("make", f"O={OUT}", "deb", cwd=ROOT, env=env)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def packages():
    return {os.path.basename(p).split("_")[0]: p for p in glob.glob(f"{OUT}/deb/*.deb")}


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = packages()
        cls.dir = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="tollgate-packages-"))
        cls.trees = {}
        for name, path in cls.files.items():
            cls.trees[name] = os.path.join(cls.dir, name)
            subprocess.run(["dpkg-deb", "-x", path, cls.trees[name]], check=True)

    def field(self, name, field):
        return run("dpkg-deb", "-f", self.files[name], field, check=True).stdout.strip()

    def inside(self, name):
        tree = self.trees[name]
        return {os.path.relpath(os.path.join(d, f), tree) for d, _, files in os.walk(tree) for f in files}

    def test_there_are_four_of_the_version_that_the_programs_say(self):
        self.assertEqual(sorted(self.files), list(NAMES))
        version = run(os.path.join(BUILD, "tollgate"), "--version", check=True).stdout.split()[1]
        for name in NAMES:
            self.assertEqual(self.field(name, "Version"), version, "deploy/debian/changelog and the Makefile differ")

    def test_each_has_what_it_should_and_nothing_twice(self):
        seen = {}
        for name in NAMES:
            with self.subTest(package=name):
                files = self.inside(name)
                self.assertEqual(CONTENTS[name] - files, set())
                self.assertEqual({f for f in files - CONTENTS[name] if not ELSEWHERE.match(f)}, set())
                for f in files:
                    self.assertNotIn(f, seen)
                    seen[f] = name
                    mode = stat.S_IMODE(os.stat(os.path.join(self.trees[name], f)).st_mode)
                    self.assertEqual(mode, 0o755 if "/bin/" in f or f.endswith(".sh") else 0o644, f)

    def test_the_libraries_of_each_program_are_dependencies(self):
        for name in NAMES:
            depends = re.findall(r"[a-z0-9][a-z0-9+.-]+", re.sub(r"\([^)]*\)", "", self.field(name, "Depends")))
            program = glob.glob(os.path.join(self.trees[name], "usr/bin/*"))
            sonames = re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", *program, check=True).stdout)
            self.assertIn("libc.so.6", sonames)
            for soname in sonames:
                with self.subTest(package=name, library=soname):
                    found = run("dpkg-query", "-S", f"*/{soname}").stdout
                    owners = {line.split(":")[0] for line in found.splitlines() if line.endswith("/" + soname)}
                    self.assertTrue(owners & set(depends), f"{owners} is not in {depends}")

    def test_no_library_of_the_driver_or_of_the_tests_is_needed(self):
        for name in NAMES:
            for program in glob.glob(os.path.join(self.trees[name], "usr/bin/*")):
                self.assertNotRegex(run("objdump", "-p", program, check=True).stdout, r"NEEDED\s+lib(nvidia|dcgm|cmocka|asan)")

    def test_lintian_has_nothing_to_say(self):
        if not shutil.which("lintian"):
            self.skipTest("lintian is not installed: make deps")
        done = run("lintian", "--display-info", "--pedantic", *glob.glob(f"{OUT}/deb/*.changes"))
        self.assertEqual(re.findall(r"^[EWIP]: .*", done.stdout, re.M), [])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_pages_and_completions_are_those_of_the_packed_program(self):
        for name in NAMES:
            for page in glob.glob(os.path.join(self.trees[name], "usr/share/man/man*/*.gz")):
                with gzip.open(page, "rt", encoding="utf-8") as f:
                    program, _, section = os.path.basename(page)[:-3].rpartition(".")
                    self.assertEqual(f.readline().replace("\\-", "-").split()[:3], [".TH", program.upper(), section])
        tree = self.trees["tollgate-cli"]
        for shell, path in (("bash", "usr/share/bash-completion/completions/tollgate"), ("zsh", "usr/share/zsh/vendor-completions/_tollgate")):
            self.assertEqual(text_of(tree, path), run(f"{tree}/usr/bin/tollgate", "completion", shell, check=True).stdout)

    def test_the_units_start_the_packed_programs_with_the_packed_configuration(self):
        for name in ("tollgate-exporter", "tollgate-aggregator", "tollgate-agent"):
            tree, short = self.trees[name], name.split("-")[1]
            self.assertIn(f"ExecStart=/usr/bin/{name} --config /etc/tollgate/{short}.yaml\n", text_of(tree, f"lib/systemd/system/{name}.service"))
            self.assertEqual(text_of(tree, f"etc/tollgate/{short}.yaml"), text_of(ROOT, f"deploy/{short}.yaml"))
            user = re.search(r"^User=(.*)$", text_of(tree, f"lib/systemd/system/{name}.service"), re.M).group(1)
            if name == "tollgate-agent":
                self.assertEqual(user, "slurm", "Slurm's own package makes this user")
            else:
                self.assertRegex(text_of(tree, f"usr/lib/sysusers.d/{name}.conf"), rf"^u {user} - ")


@unittest.skipUnless(shutil.which("systemd-sysusers"), "systemd-sysusers is not installed, which the packages' scripts call")
class Machine(unittest.TestCase):
    """dpkg itself, with the packages' scripts, on a root that is an empty folder."""

    def setUp(self):
        self.files = packages()
        self.dir = self.enterContext(tempfile.TemporaryDirectory(prefix="tollgate-machine-"))
        self.root = os.path.join(self.dir, "root")
        for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"):
            os.makedirs(os.path.join(self.root, folder))
        with open(os.path.join(self.root, "var/lib/dpkg/status"), "w", encoding="ascii"):
            pass
        # The machine that runs the tests has services of its own: nobody may touch those.
        self.calls = os.path.join(self.dir, "calls")
        os.mkdir(os.path.join(self.dir, "bin"))
        for name in ("systemctl", "deb-systemd-invoke"):
            path = os.path.join(self.dir, "bin", name)
            with open(path, "w", encoding="ascii") as f:
                f.write(f'#!/bin/sh\necho "{name} $*" >>{self.calls}\n')
            os.chmod(path, 0o755)

    def dpkg(self, *args, code=0):
        as_root = [] if os.geteuid() == 0 else ["fakeroot"]
        env = {**os.environ, "PATH": f"{self.dir}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
        done = run(*as_root, "dpkg", f"--root={self.root}", f"--log={self.dir}/dpkg.log", "--force-depends", "--force-script-chrootless", "--force-confdef",
                   "--force-confold", *args, env=env, stdin=subprocess.DEVNULL)  # fmt: skip
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def at(self, *path):
        return os.path.join(self.root, *path)

    def install(self, *names):
        self.dpkg("--install", *[self.files[n] for n in names])

    def newer(self, name, version):
        """The package with another version, and another default configuration."""
        tree = os.path.join(self.dir, "newer-" + name)
        subprocess.run(["dpkg-deb", "-R", self.files[name], tree], check=True)
        control = text_of(tree, "DEBIAN/control")
        with open(os.path.join(tree, "DEBIAN/control"), "w", encoding="utf-8") as f:
            f.write(re.sub(r"^Version: .*$", f"Version: {version}", control, flags=re.M))
        short = name.split("-")[1]
        with open(os.path.join(tree, f"etc/tollgate/{short}.yaml"), "a", encoding="utf-8") as f:
            f.write("# new in this version\n")
        path = os.path.join(self.dir, f"{name}_{version}.deb")
        subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, path], check=True, stdout=subprocess.DEVNULL)
        return path

    def called(self):
        return text_of(self.calls).splitlines() if os.path.exists(self.calls) else []

    def test_installing_makes_users_and_starts_nothing(self):
        self.install(*NAMES)
        passwd = text_of(self.root, "etc/passwd")
        self.assertRegex(passwd, r"(?m)^tollgate-exporter:x:[1-9]\d*:\d+:.*:/usr/sbin/nologin$")
        self.assertRegex(passwd, r"(?m)^tollgate:x:[1-9]\d*:\d+:.*:/usr/sbin/nologin$")
        self.assertEqual(glob.glob(self.at("etc/systemd/system/**/*.service"), recursive=True), [], "no service is enabled")
        # deb-systemd-invoke starts what is enabled; systemctl itself is asked to start nothing
        self.assertEqual([c for c in self.called() if c.startswith("systemctl") and not c.endswith("daemon-reload")], [])
        for name, conffile in (("tollgate-exporter", "exporter.yaml"), ("tollgate-aggregator", "aggregator.yaml"), ("tollgate-agent", "agent.yaml")):
            shown = run("dpkg-query", f"--admindir={self.at('var/lib/dpkg')}", "-W", "-f", "${Conffiles}", name, check=True).stdout
            self.assertEqual(re.findall(r"(\S+) [0-9a-f]{32}", shown), [f"/etc/tollgate/{conffile}"])

    def test_what_was_installed_runs(self):
        self.install(*NAMES)
        for program in ("tollgate", "tollgate-exporter", "tollgate-aggregator", "tollgate-agent"):
            with self.subTest(program=program):
                done = run(self.at("usr/bin", program), "--version")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertRegex(done.stdout, rf"^{program} \S+\n$")
        for short in ("exporter", "aggregator", "agent"):
            done = run(self.at("usr/bin/tollgate-" + short), "--config", self.at(f"etc/tollgate/{short}.yaml"), "-n")
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_an_upgrade_keeps_a_changed_configuration_and_renews_an_untouched_one(self):
        self.install(*NAMES)
        changed = self.at("etc/tollgate/exporter.yaml")
        with open(changed, "w", encoding="utf-8") as f:
            f.write("node: gpu-7\n")
        self.dpkg("--install", self.newer("tollgate-exporter", "99.0"), self.newer("tollgate-aggregator", "99.0"))
        self.assertEqual(text_of(changed), "node: gpu-7\n")
        self.assertIn("# new in this version", text_of(changed + ".dpkg-dist"))
        self.assertIn("# new in this version", text_of(self.root, "etc/tollgate/aggregator.yaml"))

    def test_state_and_configuration_stay_until_purged(self):
        self.install("tollgate-exporter")
        os.makedirs(self.at("var/lib/tollgate/spool"))
        for path in ("var/lib/tollgate/spool/state", "var/lib/tollgate/token"):
            with open(self.at(path), "w", encoding="ascii") as f:
                f.write("of value\n")
        self.dpkg("--remove", "tollgate-exporter")
        self.assertFalse(os.path.exists(self.at("usr/bin/tollgate-exporter")))
        self.assertEqual(text_of(self.root, "var/lib/tollgate/token"), "of value\n")
        self.assertTrue(os.path.exists(self.at("etc/tollgate/exporter.yaml")))
        self.dpkg("--purge", "tollgate-exporter")
        self.assertFalse(os.path.exists(self.at("var/lib/tollgate")))
        self.assertFalse(os.path.exists(self.at("etc/tollgate")))

    def test_purging_the_aggregator_leaves_the_exporter_alone(self):
        self.install("tollgate-exporter", "tollgate-aggregator")
        os.makedirs(self.at("var/lib/tollgate/spool"))
        self.dpkg("--purge", "tollgate-aggregator")
        self.assertTrue(os.path.isdir(self.at("var/lib/tollgate/spool")))
        self.assertEqual(os.listdir(self.at("etc/tollgate")), ["exporter.yaml"])


if __name__ == "__main__":
    unittest.main()
