"""The exporter with NVIDIA's own library, as Debian has it, on a machine without a driver."""
# also: san

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from glob import glob
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support/harness"))
sys.path.insert(0, str(ROOT / "tests/lint"))
import abi  # noqa: E402
import nvidia  # noqa: E402
import tree  # noqa: E402

BUILD = Path(os.environ.get("TOLLGATE_BUILD_DIR", ROOT / "build/release"))
NOBODY = 65534
PYTHON = "/usr/bin/python3"  # one that any user may run

# A mount namespace of its own: /dev is empty but for null, and /sys but for a PCI bus that shows what the first argument holds.
PRIVATE = """
mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 || exit 99
mkdir -p /sys && mount -t tmpfs none /sys && mkdir -p /sys/bus/pci/devices && mount --bind "$1" /sys/bus/pci/devices || exit 99
shift
"$@"
code=$?
echo "nodes:" $(ls /dev)
exit $code
"""
# As in a container whose /sys is not mounted.
WITHOUT_SYS = """
mkdir -p /sys && mount -t tmpfs none /sys || exit 99
exec "$@"
"""
CALL_LIBRARY = """
import ctypes, sys
nvml = ctypes.CDLL(sys.argv[1])
text = ctypes.create_string_buffer(80)
print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(ctypes.byref(ctypes.c_uint())), nvml.nvmlShutdown(),
      nvml.nvmlSystemGetNVMLVersion(text, 80), text.value.decode())
"""


class RealLibrary(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.missing = None
        try:
            library = nvidia.library(BUILD.parent)
        except nvidia.Unavailable as e:
            cls.missing = f"Debian's libnvidia-ml1 cannot be had: {e}"
            return
        if os.path.exists("/proc/driver/nvidia") or os.path.exists("/dev/dxg"):
            cls.missing = "this machine has a driver of NVIDIA, which would answer"
            return
        cls.work = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.work.cleanup)
        os.chmod(cls.work.name, 0o755)
        # copies that any user may read
        cls.library = shutil.copy(library, os.path.join(cls.work.name, "libnvidia-ml.so.1"))
        cls.exporter = shutil.copy(BUILD / "tollgate-exporter", cls.work.name)
        for path in (cls.library, cls.exporter):
            os.chmod(path, 0o755)

    def run_exporter(self, before=(), **options):
        spool = os.path.join(self.work.name, "spool")
        command = [*before, self.exporter, "--nvml-library", self.library, "--spool-dir", spool, "--listen", "127.0.0.1:0"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        self.skip_unless_mounted(done)
        return done

    def skip_unless_mounted(self, done):
        if done.returncode == 99 or "unshare failed" in done.stderr:
            self.skipTest(f"this machine does not let root mount: {done.stderr.strip()}")

    def needs_root(self):
        if os.geteuid() != 0:
            self.skipTest("mounting needs root")

    def private(self, *command):
        """Runs a command where the PCI bus shows a GPU and /dev is its own; returns (exit code, output, nodes in /dev)."""
        self.needs_root()
        bus = Path(self.work.name) / "pci"
        (bus / "0000:01:00.0").mkdir(parents=True, exist_ok=True)
        (bus / "0000:01:00.0/vendor").write_text("0x10de\n", encoding="ascii")
        done = subprocess.run(["unshare", "-m", "sh", "-c", PRIVATE, "sh", str(bus), *command], capture_output=True, text=True, check=False)
        self.skip_unless_mounted(done)
        nodes = done.stdout.rpartition("nodes:")[2].split()
        return done.returncode, done.stdout + done.stderr, nodes

    def assert_no_gpu(self, done):
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("this machine has no NVIDIA GPU", done.stderr)
        self.assertNotIn("Sanitizer", done.stderr)

    def setUp(self):
        if self.missing:
            self.skipTest(self.missing)
        self.nodes = sorted(glob("/dev/nvidia*"))
        self.addCleanup(self.check_nodes)

    def check_nodes(self):
        self.assertEqual(sorted(glob("/dev/nvidia*")), self.nodes, "a device node was left behind")

    def skip_with_gpu(self):
        if any(Path(v).read_text(encoding="ascii").strip() == "0x10de" for v in glob("/sys/bus/pci/devices/*/vendor")):
            self.skipTest("this machine has a GPU of NVIDIA")

    def test_without_a_gpu_it_says_so_and_ends(self):
        self.skip_with_gpu()
        self.assert_no_gpu(self.run_exporter())

    def test_without_a_gpu_another_user_is_told_the_same(self):
        self.skip_with_gpu()
        if os.geteuid() != 0:
            self.skipTest("becoming another user needs root")
        self.assert_no_gpu(self.run_exporter(user=NOBODY, group=NOBODY, extra_groups=[]))

    def test_without_a_gpu_and_without_sys_it_says_the_same(self):
        self.skip_with_gpu()
        self.needs_root()
        self.assert_no_gpu(self.run_exporter(before=("unshare", "-m", "sh", "-c", WITHOUT_SYS, "sh")))

    def test_with_a_gpu_and_no_driver_root_is_told_what_to_do_and_no_node_stays(self):
        code, output, nodes = self.private(self.exporter, "--nvml-library", self.library, "--spool-dir", self.work.name + "/spool",
                                           "--listen", "127.0.0.1:0")
        self.assertEqual(code, 1, output)
        self.assertIn("no NVIDIA driver answers (Driver Not Loaded)", output)
        self.assertIn("load the nvidia kernel module", output)
        self.assertEqual(nodes, ["null"])

    def test_the_library_alone_leaves_a_node_as_root(self):
        """Why the exporter clears up. Should a later library stop doing so, this test says that it may stop, too."""
        code, output, nodes = self.private(PYTHON, "-c", CALL_LIBRARY, self.library)
        self.assertEqual(code, 0, output)
        self.assertEqual(sorted(nodes), ["null", "nvidiactl"])

    def test_the_library_answers_as_the_simulator_says(self):
        options = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        done = subprocess.run([PYTHON, "-c", CALL_LIBRARY, self.library], capture_output=True, text=True, check=True, **options)
        init, later, shutdown, asked, version = done.stdout.split()
        self.assertEqual((init, later, shutdown, asked), ("9", "1", "0", "0"))
        self.assertRegex(version, r"^\d+\.\d+\.\d+")

    def test_it_has_every_function_that_is_required_and_lacks_only_newer_ones(self):
        nvml = ctypes.CDLL(self.library)
        code = abi.without_comments(tree.read(ROOT, abi.ABI))
        lacking = {name for name in abi.our_functions(code) if not hasattr(nvml, name)}
        self.assertFalse(lacking & abi.required_functions(code), "required, and not in a real library")
        self.assertLessEqual(lacking, {"nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetAccountingStats_v2"})


if __name__ == "__main__":
    unittest.main()
