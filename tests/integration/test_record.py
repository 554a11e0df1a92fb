"""--record: what a running exporter has written down is a node like the one it saw."""

import os
import re
import stat
import tempfile
import unittest

from tests.support.daemons import stack

NODE = {
    "name": "recorded",
    "gpus": [
        {"model": "NVIDIA L40S", "memory_mib": 46068, "readings": ["0s ecc_corrected=4 power_limit_mw=123000"]},
        {"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "mig": ["3g.40gb", "1g.10gb"]},
    ],
    "processes": [
        {"pid": 4001, "gpu": 0, "sm": 90, "memory_mib": 1024, "comm": "a: 'b' \"c\"", "uid": 1234},
        {"pid": 4002, "gpu": 1, "instance": 0, "sm": 50, "memory_mib": 2048, "cgroup": "/system.slice/slurmstepd.scope/job_77/step_0"},
    ],
}
# What does not change while it runs, and so must be the same of the node and of its recording.
LASTING = r"tollgate_(gpu_info|gpu_up|gpu_memory_\w+|gpu_power_limit_watts|gpu_ecc_errors_total|mig_memory_\w+|process_memory_used_bytes)\{"


class Node(stack.Stack):
    """Exporters without an aggregator."""

    def __init__(self):
        self.processes, self.port = [], None

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tollgate-record-")
        self.dir = self.folder.name
        return self

    def close(self):
        for p in reversed(self.processes):
            p.kill9()
        self.folder.cleanup()


def lasting(exporter):
    text = stack.request("GET", exporter.url + "/metrics").text()
    return sorted(line for line in text.splitlines() if re.match(LASTING, line))


class Record(unittest.TestCase):
    def test_a_recording_is_a_node_like_the_one_that_was_read(self):
        with Node() as n:
            folder = os.path.join(n.dir, "recording")
            first = n.exporter("n1", NODE, "--record", folder, "--sample-interval", "100ms")
            # ECC totals and the power limit are read in turn, not at once
            stack.wait_for("every value", lambda: "ecc_errors" in str(lasting(first)) and "power_limit" in str(lasting(first)), first)
            seen = lasting(first)
            self.assertGreater(len(seen), 8)
            first.stop()
            path = os.path.join(folder, "recording-0001.yaml")
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
            with open(path, encoding="utf-8") as f:
                text = f.read()
            self.assertIn("job_77", text)
            self.assertIn("uid: 1234", text)
            # the same name, so that the labels can be compared
            os.rename(os.path.join(n.dir, "n1"), os.path.join(n.dir, "gone"))
            second = n.exporter("n1", path)
            stack.wait_for("the same readings", lambda: lasting(second) == seen, second)


if __name__ == "__main__":
    unittest.main()
