#!/usr/bin/python3
"""What becomes of records: sealing an hour, reading an open one, and a month's usage when there are many more records behind it.

Figures are processor time of the server. The records are made in the database: nodes of 8 GPUs with 21 holders each, cut every 10 s,
as 1,000 nodes would send 16,800 a second. An hour is sliced as it goes and sealed at its end, which is how the aggregator does it; one
that becomes dirty is sealed from all its records at once. A month's query reads days and hours, so its rows stay the same in number
while the records behind them grow from one million, TOLLGATE_BENCH_GROWTH times (100 unless told)."""

import concurrent.futures
import os
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from tests.bench.bench_http import emit  # noqa: E402
from tests.bench.bench_ingest import spent  # noqa: E402
from tests.support.daemons import pg  # noqa: E402
from tests.support.fleet.fleet import HOUR, MINUTE, NS  # noqa: E402
from tests.support.store.ledger import BUILD, Ledger  # noqa: E402

START = 1_796_083_200 * NS  # 2026-12-01T00:00Z
NODES, GPUS, HOLDERS, CUTS = 50, 8, 21, 6
GROWTH = int(os.environ.get("TOLLGATE_BENCH_GROWTH", "100"))
MONTH_NODES, MONTH_DAYS, MONTH_FIRST = 2, 31, 4  # 4 records of a holder in an hour, or GROWTH times as many
SLICE = 5
REPEATS = 10


def directory(nodes):
    """Nodes, their GPUs and holders, without a stream: what is measured here begins behind ingest."""
    return f"""
insert into node (cluster_id, name, covered_until_ns) select 1, 'n' || n, {START} from generate_series(1, {nodes}) n;
insert into gpu (uuid, model, short_model, memory_bytes, index) select 'GPU-' || n || '-' || g, 'H100', 'H100', 1, g
    from generate_series(1, {nodes}) n, generate_series(0, {GPUS - 1}) g order by n, g;
insert into gpu_spec (gpu_id, model, short_model, memory_bytes, effective) select id, model, short_model, memory_bytes, tstzrange(null, null) from gpu;
insert into device (gpu_id, gi, ci, created_ns, uuid, profile, units, memory_bytes) select id, -1, -1, 0, uuid, '', 5040, 1 from gpu order by id;
insert into gpu_service (gpu_id, node_id, from_ns) select id, (id - 1) / {GPUS} + 1, {START} from gpu;
insert into holder (identity, cluster_id, kind, namespace, pod, pod_uid, container, slurm_job, slurm_account, user_name, uid)
    select sha256(h::text::bytea), 1, 1, 'team-' || h % 20, 'pod-' || h, '', '', '', '', '', -1 from generate_series(1, {nodes * GPUS * HOLDERS}) h;
insert into holder_attribution select id, (select id from workspace), '(,)' from holder;
"""


def records(nodes, hour, minutes):
    """Those minutes of an hour, a node's minute in one piece, as a push brings it."""
    return f"""
insert into usage_interval select {START + hour * HOUR} + m * {MINUTE} + c * {MINUTE // CUTS}, {MINUTE // CUTS}, {MINUTE // CUTS // HOLDERS},
    case when h % 3 = 0 then 0 else {MINUTE // CUTS // HOLDERS}::bigint * ((g * 7 + h * 13 + m * 5 + c) % 11) / 10 end, 0, 0, 1000000000000, 500, m + 1, n, n,
    (n - 1) * {GPUS} + g + 1, 10, 5040, 1, 5, 1, ((n - 1) * {GPUS} + g) * {HOLDERS} + h + 1
    from generate_series({minutes.start}, {minutes.stop - 1}) m, generate_series(1, {nodes}) n, generate_series(0, {GPUS - 1}) g, generate_series(0, {HOLDERS - 1}) h,
    generate_series(0, {CUTS - 1}) c order by m, n, g, h, c;
"""


def cpu_of(cluster, argv):
    """Seconds of the program and of the server together."""
    return spent(cluster, argv)[0]


def tool(cluster, led, *args):
    return cpu_of(cluster, [os.path.join(BUILD, "tests", "store_tool"), cluster.conninfo(led.name), *map(str, args)])


def least(times, run):
    return min(run() for _ in range(times))


def repeated(times, run):
    """One of so many: what the system counts of a process comes in ticks of some milliseconds, and a query may take less."""
    return sum(run() for _ in range(times)) / times


def sliced(cluster, led, minutes):
    """What slicing costs while the nodes cover those minutes of the hour, a slice at a time."""
    cpu = 0
    for until in range(minutes.start + SLICE, minutes.stop + 1, SLICE):
        led.rows(f"update node set covered_until_ns = {START + until * MINUTE}")
        cpu += tool(cluster, led, "slice")
    return cpu


def seal(cluster):
    """An hour of which 40 minutes are there: read as it is, read with slices, and sealed with them and without."""
    led = Ledger(cluster, "seal", now=START + HOUR)
    led.rows(directory(NODES) + f"select make_partitions({START}, {START + HOUR})")
    led.rows(f"select node_hours_extend(id, at_ns({START}), at_ns({START + HOUR})) from node; " + records(NODES, 0, range(40)))
    led.rows(f"update node set covered_until_ns = {START + 40 * MINUTE}; vacuum analyze; checkpoint")
    count = int(led.value("select count(*) from usage_interval"))
    usage = lambda: tool(cluster, led, "usage", "--from", START, "--to", START + HOUR, "--by", "workspace")  # noqa: E731
    plain = "select count(*) from (select node_id, device_id, holder_id, sum(units * held_ns) x from tollgate.usage_interval group by 1, 2, 3) y where x > 0"
    psql = [os.path.join(cluster.bin, "psql"), "-X", "-q", "-d", cluster.conninfo(led.name), "-c", plain]
    theirs = least(3, lambda: cpu_of(cluster, psql))
    whole = usage()
    seal_it = lambda: tool(cluster, led, "rollup", "--now", START + 2 * HOUR, "--grace", 0)  # noqa: E731
    # The last stretch is what a node covers when it comes to the end of the hour: that is sealed from its records.
    slicing = sliced(cluster, led, range(35))
    led.rows(f"update node set covered_until_ns = {START + 40 * MINUTE}")
    emit("open hour, sliced", "ms/query", least(3, usage) * 1e3, "the same from its records", whole * 1e3, 0.5)
    sealing = seal_it()
    emit("sealing", "ns/record", sealing * 1e9 / count, "what it may cost", 500, 1.0)
    emit("slicing and sealing", "ns/record", (slicing + sealing) * 1e9 / count, "one sum over the same rows", theirs * 1e9 / count, 3.0)
    led.rows("update node_hour set dirty = true; vacuum analyze")
    again = seal_it()
    emit("sealing again, all at once", "ns/record", again * 1e9 / count, "one sum over the same rows", theirs * 1e9 / count, 2.0)


def touched(led):
    """Pages of records that anybody has looked at. The planner looks at the head of their indexes, whatever it plans."""
    return int(led.value("select sum(heap_blks_read + heap_blks_hit) from pg_statio_user_tables where relname like 'usage_interval_%'"))


def fill_days(cluster, led, days, cuts):
    """Those cuts of every hour of the days, in order of time, as they would come. They are as long as fills the hour up to the last of them."""
    cut = HOUR // cuts.stop
    statement = f"""set join_collapse_limit = 1; set from_collapse_limit = 1;
insert into usage_interval select {START} + t * {HOUR} + c * {cut}, {cut}, {cut // HOLDERS}, {cut // HOLDERS // 2}, 0, 0, 1000000000000, 500, t + 1, s.n, s.n,
    (s.n - 1) * {GPUS} + s.g + 1, 10, 5040, 1, 5, 1, ((s.n - 1) * {GPUS} + s.g) * {HOLDERS} + s.h + 1
    from generate_series({days.start * 24}, {days.stop * 24 - 1}) t cross join generate_series({cuts.start}, {cuts.stop - 1}) c cross join month_shape s"""
    cluster.query(statement, led.name)


def fill(cluster, led, cuts):
    """All days, two at once: what it costs to write them is not measured."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda d: fill_days(cluster, led, range(d, d + 1), cuts), range(MONTH_DAYS)))
    led.rows("analyze")
    # What vacuum does for an index of ranges, without reading everything for the rest of what it does.
    led.rows("select sum(brin_summarize_new_values(indexrelid::regclass)) from pg_index where indrelid in (select inhrelid from pg_inherits where inhparent = 'usage_interval'::regclass)")


def month(cluster):
    """The same month of roll-ups, with a million records behind them and with a hundred million. The others are added when the hours are sealed and the days
    folded: what is stored is not made again, so that both times the same rows are there to be read."""
    end = START + MONTH_DAYS * 24 * HOUR
    led = Ledger(cluster, "month", now=end + HOUR)
    led.rows(directory(MONTH_NODES) + f"select make_partitions({START}, {end})")
    led.rows("; ".join(f"alter table {name} set unlogged" for [name] in led.rows("select inhrelid::regclass from pg_inherits where inhparent = 'usage_interval'::regclass")))
    led.rows(f"create table month_shape as select n, g, h from generate_series(1, {MONTH_NODES}) n, generate_series(0, {GPUS - 1}) g, generate_series(0, {HOLDERS - 1}) h order by 1, 2, 3")
    led.rows(f"select node_hours_extend(id, at_ns({START}), at_ns({end})) from node; update node set covered_until_ns = {end}")
    queries = [["usage", "--from", START, "--to", end, "--by", "workspace,day"], ["report", "2026-12"]]
    found, counts = [], []
    for cuts in (range(MONTH_FIRST), range(MONTH_FIRST, MONTH_FIRST * GROWTH)):
        fill(cluster, led, cuts)
        while sum(led.rollup().values()):
            pass
        led.fold()
        led.rows("checkpoint")
        counts.append(int(led.value("select count(*) from month_shape")) * MONTH_DAYS * 24 * cuts.stop)
        before = touched(led)
        found.append([least(3, lambda q=q: repeated(REPEATS, lambda: tool(cluster, led, *q))) for q in queries])
        pages = touched(led) - before
    for name, ours, theirs in zip(("month's usage", "month's report"), found[1], found[0]):
        emit(f"{name}, {counts[1] / 1e6:.0f} million records", "ms/query", ours * 1e3, f"{counts[0] / 1e6:.0f} million behind the same roll-ups", theirs * 1e3, 1.3)
    there = int(led.value("select sum(pg_relation_size(inhrelid) / 8192) from pg_inherits where inhparent = 'usage_interval'::regclass"))
    emit("records' pages in those queries", "pages", pages / (2 * 3 * REPEATS), "all of them", there, 0.01)


def main():
    # A hundred million records are 14 GB: on a disk, not in memory.
    os.environ.setdefault("TMPDIR", tempfile.gettempdir())
    with pg.Cluster({"shared_buffers": "512MB", "max_wal_size": "4GB", "autovacuum": "off"}) as cluster:
        seal(cluster)
        month(cluster)


if __name__ == "__main__":
    main()
