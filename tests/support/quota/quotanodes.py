"""Nodes that say by themselves what GPUs they have and whether these work, for tests of quota: records once, then live status."""

import json
import time

from tests.support.store import ledger

MODEL, SHORT = "NVIDIA H100 80GB HBM3", "H100-80GB"
MINUTE = 60_000_000_000
LONG = 3600_000_000_000
BOOT = "abcd0000-0000-0000-0000-000000000001"


class Nodes:
    def __init__(self, stack, sizes):
        self.stack, self.sizes = stack, dict(sizes)
        self.silent, self.broken, self.holders = set(), set(), {}
        for node, gpus in self.sizes.items():
            stack.token(f"node {node}", role="node", node=node)
            now = time.time_ns() // MINUTE * MINUTE - MINUTE
            devices = [{"id": i + 1, "uuid": self.uuid(node, i), "model": MODEL, "index": i} for i in range(gpus)]
            records = [[i + 1, 0, 2, 1, 0, 5040, now, MINUTE, MINUTE, 0, 0, 0, 0, 0, 1] for i in range(gpus)]
            batch = {"node": node, "boot_id": "00" * 16, "epoch": 100, "seq": 1, "flags": 1, "from_ns": now, "to_ns": now + MINUTE,
                     "devices": devices, "holders": [], "records": records}  # fmt: skip
            reply = stack.call("POST", "/v1/ingest", ledger.frames([batch]), role=f"node {node}")
            assert reply.status == 200, reply.text()

    @staticmethod
    def uuid(node, i):
        return f"GPU-{node}-{i}"

    def status(self, node):
        """A silent node is one whose next word was due long ago."""
        gpus = [
            {"uuid": self.uuid(node, i), "model": MODEL, "index": i, "healthy": (node, i) not in self.broken, "reason": "", "xid": 0,
             "sharing": "exclusive", "replicas": 1, "instances": [], "holders": self.holders.get((node, i), [])}
            for i in range(self.sizes[node])
        ]  # fmt: skip
        return {"node": node, "boot_id": BOOT, "boot_ns": time.monotonic_ns(), "wall_ns": time.time_ns(), "left_out": 0,
                "interval_ns": 1_000_000 if node in self.silent else LONG, "simulated": True, "gpus": gpus}  # fmt: skip

    def speak(self, call=None):
        """All of them once; call: as Stack.call."""
        for node in self.sizes:
            (call or self.stack.call)("POST", "/v1/status", json.dumps(self.status(node)).encode(), f"node {node}")
