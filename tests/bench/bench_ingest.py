#!/usr/bin/python3
"""Taking batches in over HTTP (gunzip, decode, evidence, COPY, commit), beside a bare COPY BINARY of the same rows into the same table; what
a record takes on the wire and as evidence; and sealing, beside the plainest sum.

The figure is processor time per record of all processes that do the work (the aggregator, the server and its helpers; psql on the other
side), because the wall clock of a shared machine says little. What stands for the exporters is not counted. A backlog is what a node sends
after an outage of five minutes, a steady push is one interval; the bare COPY has the rows of one push in a transaction too. The table
is emptied between the two, the server syncs."""

import os
import resource
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from tests.bench.bench_http import emit  # noqa: E402
from tests.support.daemons import stack  # noqa: E402
from tests.support.fleet.fleetrun import Fleet, resident_thirds, server_cpu  # noqa: E402

NODES = 60
ROUNDS = 3


def spent(cluster, argv):
    """Runs it; its own processor seconds with the server's, and the wall clock's."""
    sessions = set(cluster._children())
    before, server = resource.getrusage(resource.RUSAGE_CHILDREN), server_cpu(cluster)
    began = time.monotonic()
    subprocess.run(argv, stdout=subprocess.PIPE, check=True)
    wall = time.monotonic() - began
    while set(cluster._children()) - sessions:  # what its session spent is the server's once that has ended
        time.sleep(0.01)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return own + server_cpu(cluster) - server, wall


class Bare:
    """The rows of each push in a file, as COPY BINARY takes them."""

    def __init__(self, s, batches):
        self.s, self.dir = s, s.pg.private_dir("copies")
        os.chmod(self.dir, 0o777)
        self.psql = [os.path.join(s.pg.bin, "psql"), "-X", "-q", "-d", s.pg.conninfo("tollgate"), "-f"]
        pushes = s.sql(f"select stream_id, min(seq), max(seq) from tollgate.ingest_batch where seq > 1 group by stream_id, (seq - 2) / {batches} order by 2, 1")
        out_of, into = [], []
        for stream, first, last in pushes:
            path = os.path.join(self.dir, f"{stream}-{first}")
            rows = f"select * from tollgate.usage_interval where stream_id = {stream} and seq between {first} and {last}"
            out_of.append(f"\\copy ({rows}) to '{path}' (format binary)\n")
            into.append(f"\\copy tollgate.usage_interval from '{path}' (format binary)\n")
        s.sql("create index bare_copy on tollgate.usage_interval (stream_id, seq)")
        self.records = int(s.sql("select count(*) from tollgate.usage_interval where seq > 1")[0][0])
        subprocess.run([*self.psql, self.script("out.sql", out_of)], check=True)
        s.sql("drop index tollgate.bare_copy")
        self.into = self.script("into.sql", into)

    def script(self, name, lines):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write("".join(lines))
        return path

    def run(self):
        """Microseconds per record: processor, wall; the middle of three."""
        rounds = []
        for _ in range(ROUNDS):
            self.s.sql("truncate tollgate.usage_interval; checkpoint")
            rounds.append(spent(self.s.pg, [*self.psql, self.into]))
        assert int(self.s.sql("select count(*) from tollgate.usage_interval")[0][0]) == self.records
        return [sorted(r)[ROUNDS // 2] * 1e6 / self.records for r in zip(*rounds)]


def against_copy(name, steps, batches):
    with Fleet(NODES) as fleet:
        run = fleet.run("--steps", steps, "--batches", batches, "--at-once", 32)
        bare = Bare(fleet.stack, batches)
        assert bare.records == run["records"], (bare.records, run)
        cpu, wall = bare.run()
        ours = (run["cpu"]["aggregator"] + run["cpu"]["server"]) * 1e6 / run["records"]
        rows = run["records"] // run["pushes"]
        emit(f"ingest, {name}, cpu", "us/record", ours, f"COPY BINARY, {rows} rows a transaction", cpu, 2.0)
        emit(f"ingest, {name}, wall", "us/record", run["seconds"] * 1e6 / run["records"], f"COPY BINARY, {rows} rows a transaction", wall, 2.0)
        return run


def memory():
    """What the aggregator's memory is once every worker has taken in large pushes, and what it is at the end of three times as many."""
    with Fleet(20) as fleet:
        run = fleet.run("--steps", 30, "--batches", 30, "--at-once", 32)
        _, middle, last = resident_thirds(run)
        emit(f"ingest, backlog, memory after {run['records'] / 1e6:.1f} million records", "KiB", last, "of the third before", middle, 1.1)


def sealing():
    """Two hours of some nodes, cut every ten seconds, in pushes of five minutes: as many slices as a steady fleet has. The hours that were covered to their end
    while that came are sealed, as they are in service."""
    with Fleet(10, options=["--rollup-interval=1h"]) as fleet:
        fleet.run("--steps", 24, "--batches", 30)
        seal(fleet.stack)


def seal(s):
    """All that is done with a record once it is stored: storing what slices it is summed in (here the same COPY alone; the sums are made in the aggregator,
    where they are part of ingest's figures), and sealing."""
    s.aggregator.stop()
    s.sql("analyze")
    covered = "(select tollgate.ns_of(max(hour)) from tollgate.node_hour)"
    slices = f"select * from tollgate.usage_slice where tollgate.ns_of(hour) < {covered}"
    records, rows = (int(v) for v in s.sql(f"select (select count(*) from tollgate.usage_interval where start_ns < {covered}), (select count(*) from ({slices}) x)")[0])
    assert s.sql("select count(*) from tollgate.node_hour where sealed_at is not null") == [["0"]]
    psql = [os.path.join(s.pg.bin, "psql"), "-X", "-q", "-d", s.pg.conninfo("tollgate"), "-c"]
    plain = f"select node_id, device_id, holder_id, sum(units * held_ns) from tollgate.usage_interval where start_ns < {covered} group by 1, 2, 3"
    bare = sorted(spent(s.pg, [*psql, f"select count(*) from ({plain}) x"])[0] for _ in range(ROUNDS))[ROUNDS // 2]
    s.sql("create table tollgate.stored (like tollgate.usage_slice including all)")
    path = os.path.join(s.pg.private_dir("slices"), "slices")
    os.chmod(os.path.dirname(path), 0o777)
    subprocess.run([*psql, f"\\copy ({slices}) to '{path}' (format binary)"], check=True)
    storing = sorted(spent(s.pg, [*psql, f"\\copy tollgate.stored from '{path}' (format binary)"])[0] for _ in range(ROUNDS))[ROUNDS // 2]
    tool = [stack.program("tests/store_tool"), s.pg.conninfo("tollgate"), "rollup", "--now", "1", "--grace", "0"]  # at no time but what is covered is due
    ours, _ = spent(s.pg, tool)
    assert s.sql(f"select count(*) from tollgate.node_hour where sealed_at is null and tollgate.ns_of(hour) < {covered}") == [["0"]]
    each = 1e6 / records
    emit("sealing, cpu", "us/record", ours * each, "one sum over the same rows", bare * each, 1.0)
    emit(f"sealing and storing {rows / records:.3f} slices a record, cpu", "us/record", (ours + storing) * each, "the limit", 0.5, 1.0)


def bytes_per_record(name, shape, goal):
    """On the wire without the first batch, which has the dictionary and is sent once; on disk all that the table takes. A batch has one record of each
    holder, as a node sends on which nothing changes within its interval: no neighbour of a record is of the same holder."""
    with Fleet(20, shape) as fleet:
        run = fleet.run("--steps", 60, "--at-once", 8)
        on_disk, records = fleet.evidence()
        emit(f"wire, {name}", "bytes/record", run["wire_bytes"] / run["records"], "the limit", 13, goal)
        emit(f"evidence, {name}", "bytes/record", on_disk / records, "the limit", 20, goal)


def main():
    against_copy("backlog", 4, 30)
    against_copy("steady", 60, 1)
    memory()
    bytes_per_record("8 GPUs x 7 x 3", (8, 7, 3), 1.0)
    bytes_per_record("8 GPUs, whole", (8, 0, 1), None)
    bytes_per_record("1 GPU, whole", (1, 0, 1), None)
    sealing()


if __name__ == "__main__":
    main()
