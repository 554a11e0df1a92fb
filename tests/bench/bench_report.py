#!/usr/bin/python3
"""A month's chargeback CSV from the charges of its days, its closing, and what is read of it afterwards: TOLLGATE_BENCH_TENANTS tenants
(1,000 unless told) of 5 workspaces, 20 SKUs each, 31 days, which is 3.1 million rows of charges and 100,000 lines.

Beside it PostgreSQL's own COPY (SELECT ...) TO STDOUT CSV of the same lines, in the same run: all columns of the contract, quantised per
day, from the same table, planned as well as it can be, in parallel and with as much memory to sort in as the program may have in all. Its
hours must be ours, but for the rounding of ties. Figures are processor time of the server and of the program together, and the wall clock's where
the goal is about waiting. The days are written by SQL: what is measured begins behind folding. The report reads no table of usage, so
what lies behind the charges may grow: that figure is taken with 25 rows of usage where there was one."""

import collections
import csv
import decimal
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from tests.bench.bench_http import emit  # noqa: E402
from tests.bench.bench_ingest import server_cpu, spent  # noqa: E402
from tests.support.daemons.stack import Stack  # noqa: E402

TENANTS = int(os.environ.get("TOLLGATE_BENCH_TENANTS", "1000"))
WORKSPACES, SKUS, DAYS, GROWTH = 5, 20, 31, 25
TICKS = os.sysconf("SC_CLK_TCK")
FILL = f"""
insert into tenant (name) select 't' || n from generate_series(1, {TENANTS}) n;
insert into tenant_term select id, name, '', '', '[2020-01-01 00:00Z,)' from tenant where not builtin;
insert into workspace (tenant_id, name) select t.id, t.name || '-' || n from tenant t, generate_series(1, {WORKSPACES}) n where t.name ~ '^t[0-9]+$';
insert into cluster (name) values ('bench') on conflict do nothing;
select make_periods('2026-10-01Z', '2026-11-01Z');
insert into billing_day (day, starts_at, ends_at, folded_at, dirty)
    select d, d::timestamp at time zone 'UTC', (d + 1)::timestamp at time zone 'UTC', now(), true from (select date '2026-10-01' + n as d from generate_series(0, {DAYS - 1}) n) x;
insert into price_book (version, currency, sha256, effective) values ('bench', 'EUR', sha256('bench'), '[2026-10-01Z,2026-11-01Z)');
insert into price_item (book_id, position, price) select id, 0, 2.5 from price_book where version = 'bench';
insert into charge_day select d.day, (select id from price_book where version = 'bench'), (select id from cluster where name = 'bench'), NULL, 'GPU-' || s, w.id, '', 5040, 1,
    'on-demand', 1000000007::numeric * (w.id + s) * 1000, 999999937::numeric * s * 1000, 0, 0, 123456
    from billing_day d, workspace w join tenant t on t.id = w.tenant_id and t.name ~ '^t[0-9]+$', generate_series(1, {SKUS}) s order by d.day, w.id, s;
update billing_day set dirty = false;
vacuum analyze charge_day, workspace, tenant;
"""
UNIT_HOUR = 18144000000000000  # unit-nanoseconds of a GPU-hour
SAME = f"""set work_mem = '64MB'; copy (select date '2026-10-01', date '2026-11-01', 'grace', t.name || '-2026-10-1', 1,
    encode(substr(sha256(convert_to(concat_ws(',', t.name, w.name, l.name, c.gpu_model, c.profile, c.class, c.units, c.sharing, b.version, i.price), 'UTF8')), 1, 16), 'hex'),
    l.name, t.name, '', w.name, 'usage', 'gpu', lower(c.gpu_model), c.gpu_model, c.profile, 'exclusive', c.class, c.held, c.used, c.idle, c.unmeasured,
    '0.000000000', round((c.used + c.idle) / nullif(c.held, 0), 6), c.held, 'gpu-hour', i.price, b.version, c.held * i.price, '0.00',
    round(c.held * i.price, 2) - c.held * i.price, round(c.held * i.price, 2), b.currency, round(c.energy_mj / 3600000000, 6), '', 'On-demand use of ' || c.gpu_model, ''
    from (select workspace_id, cluster_id, price_book_id, gpu_model, profile, class, units, sharing, sum(round((used + idle + unmeasured) / {UNIT_HOUR}, 9)) as held,
        sum(round(used / {UNIT_HOUR}, 9)) as used, sum(round(idle / {UNIT_HOUR}, 9)) as idle, sum(round(unmeasured / {UNIT_HOUR}, 9)) as unmeasured,
        sum(energy_mj) as energy_mj from tollgate.charge_day where day >= '2026-10-01' and day < '2026-11-01' group by 1, 2, 3, 4, 5, 6, 7, 8) c
    join tollgate.workspace w on w.id = c.workspace_id join tollgate.tenant t on t.id = w.tenant_id join tollgate.cluster l on l.id = c.cluster_id
    join tollgate.price_book b on b.id = c.price_book_id join tollgate.price_item i on i.book_id = b.id
    order by t.name collate "C", w.name collate "C", c.gpu_model collate "C") to stdout csv"""
USAGE = """insert into usage_daily select d.day, NULL, 1, NULL, w.id, 'GPU-' || n, '', 5040, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
    from billing_day d, workspace w, generate_series({}, {}) n where w.id % 10 = 0"""


def own_cpu(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024


def forget_peak(pid):
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as f:
        f.write("5")


Asked = collections.namedtuple("Asked", "cpu wall peak lines size")


def asked(s, path, method="GET"):
    """Processor seconds of both, the wall clock's, the program's largest memory, and what came. The answer goes to a file, as to a browser."""
    pid, out = s.aggregator.child.pid, os.path.join(s.dir, "answer")
    argv = ["curl", "-sS", "--fail", "--max-time", "600", "-o", out, "-X", method, "-H", f"Authorization: Bearer {s.tokens['admin']}", s.url + path]
    forget_peak(pid)
    before, began = own_cpu(pid) + server_cpu(s.pg), time.monotonic()
    subprocess.run(argv, check=True)
    wall = time.monotonic() - began
    cpu = own_cpu(pid) + server_cpu(s.pg) - before
    with open(out, "rb") as f:
        lines = sum(piece.count(b"\n") for piece in iter(lambda: f.read(1 << 20), b""))
    return Asked(cpu, wall, peak_mib(pid), lines, os.path.getsize(out))


def hours(path, header):
    """All allocated GPU-hours of a CSV."""
    with open(path, encoding="utf-8", newline="") as f:
        rows = csv.reader(f)
        if header:
            next(rows)
        return sum((decimal.Decimal(row[17]) for row in rows), decimal.Decimal(0))


def best(rounds):
    return min(rounds, key=lambda a: a.cpu)


def fill(s):
    for statement in FILL.split(";\n"):
        if statement.strip():
            s.sql(statement)


def exporting(s):
    """The open month's CSV against COPY."""
    out = os.path.join(s.dir, "copy.csv")
    psql = [os.path.join(s.pg.bin, "psql"), "-X", "-q", "-d", s.pg.conninfo("tollgate"), "-c", SAME, "-o", out]
    theirs = [spent(s.pg, psql) for _ in range(2)]
    ours = [asked(s, "/v1/reports/2026-10.csv") for _ in range(2)]
    assert ours[0].lines == TENANTS * WORKSPACES * SKUS + 1, ours
    # numeric rounds ties up, the program to even: at most the last digit of each day
    assert abs(hours(out, False) - hours(os.path.join(s.dir, "answer"), True)) <= decimal.Decimal(ours[0].lines * DAYS).scaleb(-9), "COPY has other hours"
    emit("month's CSV, cpu", "ms", best(ours).cpu * 1e3, f"COPY of the same {ours[0].lines - 1:,} lines", min(t[0] for t in theirs) * 1e3, 2.0)
    emit("month's CSV, wall", "ms", min(o.wall for o in ours) * 1e3, "the same, with parallel workers", min(t[1] for t in theirs) * 1e3, 2.0)
    emit("memory, open month's CSV", "MiB", max(o.peak for o in ours), "what it may have", 64, 1.0)
    return min(t[0] for t in theirs)


def one_tenant(s, name):
    one = sorted(asked(s, f"/v1/reports/2026-10.csv?tenant=t{n}").wall for n in range(1, 10))[4]
    emit(name, "ms", one * 1e3, "what it may take", 200, 1.0)


def more_usage(s):
    def many():  # a tick of the processor's clock is 10 ms: many together, and the quietest of some
        return min(sum(asked(s, f"/v1/reports/2026-10.csv?tenant=t{n}").cpu for n in range(1, 31)) for _ in range(3))

    s.sql(USAGE.format(1, 1))
    s.sql("vacuum analyze usage_daily")
    before = many()
    s.sql(USAGE.format(2, GROWTH))
    s.sql("vacuum analyze usage_daily")
    s.sql("checkpoint")
    emit("30 tenants' CSV, 25 x usage", "ms", many() * 1e3, "with the usage of one", before * 1e3, 1.3)


def closing(s, copy):
    close = asked(s, "/v1/periods/2026-10/close", "POST")
    emit("closing, cpu", "ms", close.cpu * 1e3, "COPY of its lines", copy * 1e3, None)
    emit("memory, closing", "MiB", close.peak, "what it may have", 64, 1.0)
    for suffix in ("csv", "json", "focus.csv"):
        a = asked(s, f"/v1/reports/2026-10.{suffix}")
        emit(f"closed month's {suffix}, cpu", "ms", a.cpu * 1e3, "COPY of its lines", copy * 1e3, 2.0 if suffix == "csv" else None)
        emit(f"memory, closed month's {suffix}", "MiB", a.peak, "what it may have", 64, 1.0)


def main():
    with Stack(settings={"shared_buffers": "512MB", "max_wal_size": "4GB", "autovacuum": "off"}) as s:
        fill(s)
        copy = exporting(s)
        one_tenant(s, "one tenant's month")
        more_usage(s)
        closing(s, copy)
        one_tenant(s, "one tenant's closed month")


if __name__ == "__main__":
    main()
