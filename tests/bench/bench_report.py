#!/usr/bin/python3
"""A month's chargeback CSV from the charges of its days: TOLLGATE_BENCH_TENANTS tenants (1,000 unless told) of 5 workspaces, 20 SKUs each, 31 days.

Beside it PostgreSQL's own COPY (SELECT ...) TO STDOUT CSV of the same lines, in the same run. Figures are processor time of the server and
of the program together. The days are written by SQL: what is measured begins behind folding. The report reads no table of usage, so what
lies behind the charges may grow: the last figure is taken with 25 rows of usage for each workspace and day that had none before."""

import os
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from tests.bench.bench_http import emit  # noqa: E402
from tests.bench.bench_ingest import server_cpu, spent  # noqa: E402
from tests.support.stack import Stack  # noqa: E402

TENANTS = int(os.environ.get("TOLLGATE_BENCH_TENANTS", "1000"))
WORKSPACES, SKUS, DAYS, GROWTH = 5, 20, 31, 25
TICKS = os.sysconf("SC_CLK_TCK")
FILL = f"""
insert into tenant (name, cost_center) select 't' || n, '' from generate_series(1, {TENANTS}) n;
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
SAME = """copy (select to_char(min(c.day), 'YYYY-MM'), t.name, t.cost_center, w.name, l.name, c.gpu_model, c.profile, c.class, c.units, c.sharing, b.version, b.currency, i.price,
    round(sum(c.used + c.idle + c.unmeasured) / 18144000000000000, 9), round(sum(c.used) / 18144000000000000, 9), round(sum(c.idle) / 18144000000000000, 9),
    round(sum(c.unmeasured) / 18144000000000000, 9), round(sum(c.used + c.idle + c.unmeasured) / 18144000000000000, 9) * i.price, sum(c.energy_mj)
    from tollgate.charge_day c join tollgate.workspace w on w.id = c.workspace_id join tollgate.tenant t on t.id = w.tenant_id join tollgate.cluster l on l.id = c.cluster_id
    join tollgate.price_book b on b.id = c.price_book_id join tollgate.price_item i on i.book_id = b.id where c.day >= '2026-10-01' and c.day < '2026-11-01'
    group by 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13 order by 2, 4, 6) to stdout csv"""


def own_cpu(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024


def asked(s, path):
    """Processor seconds of both, the wall clock's, and how many lines came."""
    pid = s.aggregator.child.pid
    before, began = own_cpu(pid) + server_cpu(s.pg), time.monotonic()
    lines = s.get(path).text().count("\n")
    return own_cpu(pid) + server_cpu(s.pg) - before, time.monotonic() - began, lines


def main():
    with Stack(settings={"shared_buffers": "512MB", "max_wal_size": "4GB", "autovacuum": "off"}) as s:
        for statement in FILL.split(";\n"):
            if statement.strip():
                s.sql(statement)
        psql = [os.path.join(s.pg.bin, "psql"), "-X", "-q", "-d", s.pg.conninfo("tollgate"), "-c", SAME]
        theirs = min(spent(s.pg, psql)[0] for _ in range(2))
        ours, _, lines = min(asked(s, "/v1/reports/2026-10.csv") for _ in range(2))
        assert lines == TENANTS * WORKSPACES * SKUS + 1, lines
        emit("month's CSV", "ms", ours * 1e3, f"COPY of the same {lines - 1:,} lines", theirs * 1e3, 2.0)
        emit("memory of the aggregator", "MiB", peak_mib(s.aggregator.child.pid), "what it may have", 64, 1.0)
        one = min(asked(s, "/v1/reports/2026-10.csv?tenant=t7")[1] for _ in range(5))
        emit("one tenant's month", "ms", one * 1e3, "what it may take", 200, 1.0)
        # A tick of the processor's clock is 10 ms: many together.
        many = lambda: sum(asked(s, "/v1/reports/2026-10.csv?tenant=t7")[0] for _ in range(30)) / 30  # noqa: E731
        before = many()
        s.sql(f"insert into usage_daily select d.day, NULL, 1, NULL, w.id, 'GPU-' || n, '', 5040, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 from billing_day d, workspace w, generate_series(1, {GROWTH}) n ")
        s.sql("vacuum analyze usage_daily")
        s.sql("checkpoint")
        emit("the same, more usage behind it", "ms", many() * 1e3, "without it", before * 1e3, 1.3)


if __name__ == "__main__":
    main()
