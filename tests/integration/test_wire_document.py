"""common/wire/WIRE.md against the bytes the programs write: a decoder made from the document alone reads the golden batches."""

import gzip
import re
import unittest
from pathlib import Path

from tests.support.wire import wire

ROOT = Path(__file__).resolve().parents[2]
START = 1794807900 * 10**9
S = 10**9


def golden(name):
    return bytes.fromhex((ROOT / "tests/golden" / name).read_text())


class WireDocument(unittest.TestCase):
    def test_a_usage_batch_of_each_version_reads_as_the_document_says(self):
        for version in 1, 2, 3, 4:
            with self.subTest(version=version):
                self.check_usage(wire.decode(golden(f"wire_v{version}_usage.hex")), version)

    def check_usage(self, batch, version):
        self.assertEqual(batch["version"], version)
        self.assertEqual((batch["kind"], batch["flags"], batch["node"], batch["epoch"], batch["seq"], batch["last_seq"]),
                         (1, 1, "gpu-node-01", 1794800000, 7, 7))
        self.assertEqual(batch["boot_id"], bytes(range(0xa0, 0xb0)))
        self.assertEqual((batch["from_ns"], batch["to_ns"]), (START, START + 60 * S))
        gpu, other, mig = batch["devices"]
        self.assertEqual((gpu["id"], gpu["gpu"], gpu["gi"], gpu["ci"], gpu["units"], gpu["profile"]), (1, 1, -1, -1, 5040, ""))
        self.assertEqual((other["index"], other["memory_bytes"]), (1, 85520809984))
        self.assertEqual(mig, {"id": 3, "gpu": 2, "uuid": "MIG-0b000000-0000-0000-0000-000000000003", "model": "NVIDIA H100 80GB HBM3",
                               "profile": "3g.40gb", "gi": 1, "ci": 0, "created_ns": START - 3600 * S, "units": 2340,
                               "memory_bytes": 42278584320, "index": 1})
        pod, job, user = batch["holders"]
        self.assertEqual((pod["kind"], pod["ns"], pod["pod"], pod["container"], pod["uid"]), (1, "research", "train-0", "main", -1))
        self.assertEqual((job["kind"], job["slurm_job"], job["slurm_account"], job["user"], job["uid"]),
                         (2, "4711", "physics", "jørgen", 1007))
        self.assertEqual((user["kind"], user["user"]), (3, "1000"))
        self.assertEqual([h["group"] for h in batch["holders"]], ["", "physics", "staff"] if version >= 2 else ["", "", ""])
        self.assertEqual(pod["labels"], "app.kubernetes.io/name=trainer,debug=,team=ml" if version >= 2 else "")
        self.assertEqual((job["labels"], user["labels"]), ("", ""))
        self.assertEqual(len(batch["records"]), 8)
        self.assertEqual(batch["records"][0], {
            "device": 1, "holder": 1, "state": 1, "sharing": 5, "method": 1, "units": 5040, "start_ns": START,
            "duration_ns": 30 * S, "held_ns": 15 * S, "used_ns": 11 * S + 123, "unmeasured_ns": 0, "over_ns": S // 2,
            "memory_byte_ms": 1288490188800000, "energy_mj": 9000123, "ticks": 30,
            **dict(zip(wire.SINCE_VERSION_3, (45097156608, 7 * S + 21, 15 * S) if version >= 3 else (0, 0, 0)))})
        self.assertEqual(batch["records"][7]["state"], 3)

    def test_the_units_of_each_gpu_add_up_to_5040_times_the_time_covered(self):
        batch = wire.decode(golden("wire_v1_usage.hex"))
        gpu_of = {d["id"]: d["gpu"] for d in batch["devices"]}
        sums = {}
        for r in batch["records"]:
            sums[gpu_of[r["device"]]] = sums.get(gpu_of[r["device"]], 0) + r["units"] * r["held_ns"]
        self.assertEqual(sums, {1: 5040 * 60 * S, 2: 5040 * 60 * S})

    def test_the_example_of_the_document_is_the_golden_loss_batch(self):
        text = (ROOT / "common/wire/WIRE.md").read_text()
        example = re.search(r"### Example.*?```\n(.*?)```", text, re.S)[1]
        shown = b"".join(bytes.fromhex(re.match(r"(?:[0-9a-f]{2}(?: |$))+", line)[0]) for line in example.splitlines())
        self.assertEqual(shown, golden("wire_v4_loss.hex"))
        batch = wire.decode(shown)
        self.assertEqual((batch["kind"], batch["seq"], batch["last_seq"], batch["records"]), (2, 7, 1006, []))

    def test_the_tables_of_the_document_name_every_field_in_order(self):
        text = (ROOT / "common/wire/WIRE.md").read_text()
        columns = re.findall(r"^\| \d+ \| (\w+) \|", text, re.M)
        self.assertEqual(tuple(columns), wire.COLUMNS)
        for start, layout in (("| field | form |", wire.HEAD), ("| device | form |", wire.DEVICE), ("| holder | form |", wire.HOLDER)):
            rows = text[text.index(start):].split("\n\n")[0].splitlines()[2:]
            names = [name.strip() for row in rows for name in row.split("|")[1].split(",")]
            self.assertEqual(names, [name for name, _ in layout])

    def test_seeds_of_the_fuzzer_are_batches_too(self):
        for seed in sorted((ROOT / "tests/fuzz/corpus/wire").glob("*.gz")):
            with self.subTest(seed=seed.name):
                self.assertEqual(gzip.decompress(seed.read_bytes()), seed.with_suffix("").read_bytes())
                wire.decode(seed.with_suffix("").read_bytes())

    def test_bytes_cut_short_are_unsound(self):
        for name in "wire_v1_usage.hex", "wire_v2_usage.hex", "wire_v3_usage.hex", "wire_v4_usage.hex":
            body = golden(name)
            for end in range(len(body)):
                with self.assertRaises(wire.Unsound):
                    wire.decode(body[:end])

    def test_the_crc_is_castagnoli(self):
        self.assertEqual(wire.crc32c(b"123456789"), 0xE3069283)


if __name__ == "__main__":
    unittest.main()
