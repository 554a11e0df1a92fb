#!/usr/bin/python3
"""Taking batches in, beside a bare COPY BINARY of the same rows into the same table; and sealing them, beside the plainest sum.

The figure is processor time per record of all processes together (the caller, the server and its helpers), because the wall
clock of a shared machine says little. A push is five batches of a node with 8 GPUs and 168 holders, as after an outage of
five minutes; the bare COPY takes the rows of one push per transaction too. The table is emptied between the two, the server
syncs."""

import os
import resource
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from tests.support import pg  # noqa: E402
from tests.support.fleet import HOUR, MINUTE, NS  # noqa: E402
from tests.support.ledger import BUILD, Ledger, each_frame  # noqa: E402

START = 1_796_068_800 * NS
NODES, MINUTES, GPUS, HOLDERS, CUTS, PUSH = 10, 30, 8, 21, 6, 5
STEP = MINUTE // CUTS


def batch(node, minute):
    start = START + minute * MINUTE
    records = []
    for gpu in range(GPUS):
        for h in range(HOLDERS):
            for cut in range(CUTS):
                held = STEP // HOLDERS
                used = held * ((gpu * 7 + h * 13 + minute * 5 + cut) % 11) // 10 if h % 3 else 0
                records.append([gpu + 1, gpu * HOLDERS + h + 1, 1, 5, 1, 5040, start + cut * STEP, STEP, held, min(used, held), 0, 0, 10**12, 500, 10])
    first = minute == 0
    return {
        "node": f"n{node}", "boot_id": "77" * 16, "epoch": 1, "seq": minute + 1, "from_ns": start, "to_ns": start + MINUTE,
        "devices": [{"id": g + 1, "uuid": f"GPU-{node}-{g}", "model": "NVIDIA H100 80GB HBM3", "index": g} for g in range(GPUS)] if first else [],
        "holders": [{"id": i + 1, "ns": f"team-{i % 20}", "pod": f"pod-{node}-{i}"} for i in range(GPUS * HOLDERS)] if first else [],
        "records": records,
    }  # fmt: skip


def server_cpu(cluster):
    """Seconds of the server, of what it has reaped, and of what runs under it now."""
    ticks = 0
    for pid in [cluster.server.pid, *cluster._children()]:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                v = f.read().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(v[11]) + int(v[12]) + (int(v[13]) + int(v[14]) if pid == cluster.server.pid else 0)
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(cluster, argv):
    """Runs it; its own processor seconds with the server's, and the wall clock's."""
    before, server = resource.getrusage(resource.RUSAGE_CHILDREN), server_cpu(cluster)
    began = time.monotonic()
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    wall = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return own + server_cpu(cluster) - server, wall, done.stdout


def figure(name, ours, against, theirs, goal, unit="us/record"):
    print(f'{{"name": "{name}", "unit": "{unit}", "ours": {ours:.3f}, "against": "{against}", "theirs": {theirs:.3f}, '
          f'"ratio": {ours / theirs:.3f}, "goal": {goal}}}', flush=True)  # fmt: skip


def main():
    settings = {"fsync": "on", "shared_buffers": "512MB", "max_wal_size": "4GB", "autovacuum": "off"}
    with pg.Cluster(settings) as cluster:
        led = Ledger(cluster, "bench", now=START + HOUR)
        nodes = [each_frame([batch(n, m) for m in range(MINUTES)]) for n in range(NODES)]
        paths = []
        for at in range(0, MINUTES, PUSH):
            for n, frames in enumerate(nodes):
                paths.append(led.file(b"".join(frames[at : at + PUSH]), f"push-{n}-{at}"))
        tool = os.path.join(BUILD, "tests", "store_tool")
        cpu, wall, out = measured(cluster, [tool, cluster.conninfo("bench"), "ingest", "--now", str(led.now), *paths])
        assert out.count('"ok":true') == len(paths) and '"quarantined":0' in out, out
        records = int(led.value("select count(*) from usage_interval"))

        psql = [os.path.join(cluster.bin, "psql"), "-X", "-q", "-d", cluster.conninfo("bench"), "-f"]
        out_of, into = [], []
        for at in range(0, MINUTES, PUSH):
            for node in range(NODES):
                dump = led.file(b"", f"dump-{node}-{at}")
                rows = f"select i.* from tollgate.usage_interval i join tollgate.node n on n.id = i.node_id where n.name = 'n{node}' and seq between {at + 1} and {at + PUSH}"
                out_of.append(f"\\copy ({rows}) to '{dump}' (format binary)\n")
                into.append(f"\\copy tollgate.usage_interval from '{dump}' (format binary)\n")
        subprocess.run([*psql, led.file("".join(out_of), "out.sql")], check=True)
        script, bare = led.file("".join(into), "into.sql"), []
        for _ in range(3):
            led.rows("truncate usage_interval; checkpoint")
            bare.append(measured(cluster, [*psql, script])[:2])
        assert int(led.value("select count(*) from usage_interval")) == records
        bare_cpu, bare_wall = sorted(bare)[1]
        figure("ingest_cpu", cpu * 1e6 / records, "COPY BINARY of the same rows", bare_cpu * 1e6 / records, 2.0)
        figure("ingest_wall", wall * 1e6 / records, "COPY BINARY of the same rows", bare_wall * 1e6 / records, 2.0)

        plain = "select count(*) from (select node_id, device_id, holder_id, sum(units * held_ns) from tollgate.usage_interval group by 1, 2, 3) x"
        bare_cpu = sorted(measured(cluster, [*psql, led.file(plain, "plain.sql")])[0] for _ in range(3))[1]
        led.now = START + 2 * HOUR
        cpu, _, _ = measured(cluster, [tool, cluster.conninfo("bench"), "rollup", "--now", str(led.now), "--grace", "0"])
        figure("seal_cpu", cpu * 1e6 / records, "one sum over the same rows", bare_cpu * 1e6 / records, 3.0)


if __name__ == "__main__":
    main()
