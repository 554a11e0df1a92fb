"""A simulated fleet that pushes to a real aggregator, and what all processes spent on it: for benchmarks.

    with Fleet(1000) as fleet:
        run = fleet.run("--steps", 12, "--paced", 1)
        run["records"], run["cpu"]["server"], ...
"""

import contextlib
import hashlib
import json
import os
import subprocess
import threading
from collections import Counter

from tests.support.daemons import stack

# As a machine of its own for PostgreSQL would have them, scaled to this one; deploy/README.md says more.
SETTINGS = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "15min",
            "track_wal_io_timing": "on"}  # fmt: skip


def process_cpu(pid, children=False):
    """Seconds; with those of the children that have ended."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        v = f.read().rpartition(")")[2].split()
    ticks = int(v[11]) + int(v[12]) + (int(v[13]) + int(v[14]) if children else 0)
    return ticks / os.sysconf("SC_CLK_TCK")


def server_cpu(cluster):
    """Of the server, of what it has reaped, and of what runs under it now."""
    total = process_cpu(cluster.server.pid, children=True)
    for pid in cluster._children():
        with contextlib.suppress(OSError):
            total += process_cpu(pid)
    return total


def server_cpu_by_kind(cluster):
    """(pid, kind) -> seconds, of what runs under the server now; a kind is "backend", "walwriter", "checkpointer", ..."""
    found = {}
    for pid in cluster._children():
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as f:
                words = f.read().removeprefix("postgres: ").strip("\0 ")
            found[pid, "backend" if words.startswith("postgres ") else words] = process_cpu(pid)
    return found


def thread_cpu(pid):
    """Thread -> seconds."""
    return {int(t): process_cpu(f"{pid}/task/{t}") for t in os.listdir(f"/proc/{pid}/task")}


def machine_cpu():
    """Seconds of all processors: (at work, waiting for a disk, idle, taken by others outside)."""
    with open("/proc/stat", encoding="ascii") as f:
        user, nice, system, idle, iowait, irq, softirq, steal = (int(v) / os.sysconf("SC_CLK_TCK") for v in f.readline().split()[1:9])
    return {"at work": user + nice + system + irq + softirq, "disk": iowait, "idle": idle, "steal": steal}


def grown(after, before):
    return {k: v - before.get(k, 0) for k, v in after.items()}


# What each backend that works waits for; nothing: it computes.
WAITS = """select coalesce(wait_event_type || ' ' || wait_event, 'computes'), count(*) from pg_stat_activity
    where backend_type = 'client backend' and state = 'active' and pid <> pg_backend_pid() group by 1"""


LOOKS_PER_S = 10  # at the aggregator's memory
LOOK_S = 1 / LOOKS_PER_S


def resident_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(next(line for line in f if line.startswith("VmRSS")).split()[1])


def resident_thirds(run):
    """The median of each third of a run, in KiB."""
    seen, third = run["resident"], len(run["resident"]) // 3
    return [sorted(part)[third // 2] for part in (seen[:third], seen[third : 2 * third], seen[-third:])]


class Fleet(contextlib.AbstractContextManager):
    def __init__(self, nodes, shape=(8, 7, 3), options=()):
        self.nodes, self.shape = nodes, shape
        self.stack = stack.Stack(settings=SETTINGS, options=options)

    def __enter__(self):
        self.stack.__enter__()
        rows = []
        for i in range(self.nodes):
            name = f"fleet-{i:05}"
            token = hashlib.sha256(name.encode()).hexdigest()
            rows.append(f"('\\x{hashlib.sha256(token.encode()).hexdigest()}', 'node', '{name}', 'bench')")
        self.stack.sql(f"insert into tollgate.access_token (sha256, role, node, created_by) values {','.join(rows)}")
        # as a join token made for each would have done: a node that nobody approved is held, and its batches are only put aside
        self.stack.sql(f"select tollgate.node_approve(format('fleet-%s', lpad(i::text, 5, '0')), 'bench', 'a benchmark', true) from generate_series(0, {self.nodes - 1}) i")
        return self

    def __exit__(self, *exc):
        self.stack.__exit__(*exc)

    def evidence(self):
        (row,) = self.stack.sql("select pg_total_relation_size('tollgate.ingest_batch'), coalesce(sum(records), 0) from tollgate.ingest_batch")
        return [int(v) for v in row]

    def wal(self):
        """(bytes written, seconds spent in fsync) since the server began."""
        (row,) = self.stack.sql("select wal_bytes, wal_sync_time / 1000 from pg_stat_wal")
        return [float(v) for v in row]

    def run(self, *options):
        """Of the measured part: what fleet_tool says of it, and cpu, resident (KiB, every tenth of a second), evidence_bytes; where the time went:
        machine, kinds (of PostgreSQL's processes), busiest (backend, thread of the aggregator), waits (backends seen at work, every second),
        wal (bytes, seconds in fsync)."""
        gpus, instances, processes = self.shape
        argv = [stack.program("tests/fleet_tool"), self.stack.port, "--nodes", self.nodes, "--gpus", gpus, "--instances", instances,
                "--processes", processes, "--wait", 1, *options]  # fmt: skip
        aggregator = self.stack.aggregator.child.pid
        with subprocess.Popen([str(a) for a in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert json.loads(child.stdout.readline())["ready"]
            resident, waits, done = [], Counter(), threading.Event()

            def watch():
                while not done.wait(LOOK_S):
                    resident.append(resident_kib(aggregator))
                    if len(resident) % LOOKS_PER_S == 0:
                        waits.update({what: int(n) for what, n in self.stack.sql(WAITS)})

            watcher = threading.Thread(target=watch)
            watcher.start()
            bytes_before, wal_before = self.evidence()[0], self.wal()
            before = process_cpu(aggregator), server_cpu(self.stack.pg)
            parts = server_cpu_by_kind(self.stack.pg), thread_cpu(aggregator), machine_cpu()
            child.stdin.write("go\n")
            child.stdin.flush()
            result = json.loads(child.stdout.readline())
            after = process_cpu(aggregator), server_cpu(self.stack.pg)
            backends, threads, machine = map(grown, (server_cpu_by_kind(self.stack.pg), thread_cpu(aggregator), machine_cpu()), parts)
            done.set()
            watcher.join()
        result["cpu"] = {"aggregator": after[0] - before[0], "server": after[1] - before[1], "fleet": result.pop("own_cpu")}
        kinds = Counter()
        for (_, kind), seconds in backends.items():
            kinds[kind] += seconds
        busiest = {"backend": max((v for (_, kind), v in backends.items() if kind == "backend"), default=0), "thread of the aggregator": max(threads.values())}
        result.update(resident=resident, waits=waits, machine=machine, kinds=kinds, busiest=busiest)
        result["wal"] = [after - before for after, before in zip(self.wal(), wal_before)]
        result["evidence_bytes"] = self.evidence()[0] - bytes_before
        return result
