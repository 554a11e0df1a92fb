"""Decisions through HTTP and PostgreSQL, against what the same database does for pgbench in the same run: one client against one durable commit of
one row, 64 clients on one tenant against 64 that lock one row, update it and insert another."""

import json
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from tests.bench.bench_http import emit
from tests.support.daemons import stack
from tests.support.quota import quotalog

ROUNDS = 3
QUIET_S = 6
CLIENTS = 64
ONE, MANY = int(os.environ.get("TOLLGATE_BENCH_ONE", "1000")), int(os.environ.get("TOLLGATE_BENCH_MANY", "12800"))
OF, GPUS, NODES = 48, 8, 220
SETTINGS = {"fsync": "on", "shared_buffers": "256MB", "max_connections": "200", "synchronous_commit": "on", "max_wal_size": "4GB"}
POLICY = {
    "policy": {
        "settings": {"burst": 2}, "clusters": ["c"], "models": ["H100"], "shapes": [{"model": "H100", "of": OF}],
        "tenants": [{"name": "hot"}], "workspaces": [{"path": "hot/only", "home": "c"}],
        "shares": [{"workspace": "hot/only", "cluster": "c", "model": "H100", "reserved_units": NODES * GPUS * 5040}],
    }
}  # fmt: skip
FIELDS = f'"workspace":"hot/only","gpu_model":"H100","replicas":1,"of":{OF}'
SCHEMA = """
CREATE TABLE public.bench_row (id int PRIMARY KEY, n bigint NOT NULL);
INSERT INTO public.bench_row VALUES (1, 0);
CREATE TABLE public.bench_log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), what text NOT NULL);
"""
COMMIT = "INSERT INTO bench_log (what) VALUES ('a decision');\n"
LOCKED = "BEGIN;\nUPDATE bench_row SET n = n + 1 WHERE id = 1;\nINSERT INTO bench_log (what) VALUES ('a decision');\nCOMMIT;\n"


def nodes():
    gpus = [{"model": "H100", "slots": [{"of": OF, "count": OF}]} for _ in range(GPUS)]
    return {"nodes": [{"name": f"n{i}", "cluster": "c", "tenant": "hot", "gpus": gpus} for i in range(NODES)]}


def pgbench(s, script, clients, transactions):
    """Latencies of all transactions in microseconds, and the rate."""
    with tempfile.TemporaryDirectory() as d:
        os.chmod(d, 0o755)
        path = os.path.join(d, "script.sql")
        with open(path, "w", encoding="ascii") as f:
            f.write(script)
        done = subprocess.run(
            [os.path.join(s.pg.bin, "pgbench"), "-n", "-M", "prepared", "-c", str(clients), "-j", "2", "-t", str(transactions // clients),
             "-l", f"--log-prefix={d}/log", "-f", path, "-h", s.pg.socket_dir, "-U", "postgres", "tollgate"],
            capture_output=True, text=True, check=True)  # fmt: skip
        rate = next(float(line.split()[2]) for line in done.stdout.splitlines() if line.startswith("tps"))
        took = []
        for name in os.listdir(d):
            if name.startswith("log"):
                with open(os.path.join(d, name), encoding="ascii") as f:
                    took += [int(line.split()[2]) for line in f]
    took.sort()
    return {"rate": rate, "p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100]}


def decide(s, clients, requests, prefix):
    done = subprocess.run(
        [os.path.join(stack.BUILD, "tests", "decide_tool"), str(s.port), s.tokens["scheduler"], str(clients), str(requests), prefix, FIELDS],
        capture_output=True, text=True, check=True)  # fmt: skip
    told = json.loads(done.stdout)
    if told["other"]:
        raise RuntimeError(f"{told['other']} requests were not admitted")
    return {"rate": told["requests"] / told["seconds"], "p50": told["p50_us"], "p99": told["p99_us"]}


def median(runs, key):
    return sorted(r[key] for r in runs)[len(runs) // 2]


def main():
    os.environ.setdefault("TMPDIR", tempfile.gettempdir())  # a disk: where a commit that is durable costs what it costs
    with stack.Stack(settings=SETTINGS, options=["--quota-tick", "1h"]) as s:
        s.token("scheduler", role="scheduler")
        s.sql(SCHEMA)
        stack.wait_for("the first look", lambda: s.sql("SELECT seq FROM tollgate.quota_book") != [["0"]], s.aggregator)
        quotalog.append(s, POLICY)
        quotalog.append(s, nodes())
        decide(s, 1, 10, "warm")
        time.sleep(QUIET_S)  # what was appended looked like another replica's, and this one bets again only after a while
        runs = {"one": [], "commit": [], "many": [], "locked": []}
        # the disk is still busy with what 64 clients wrote when one begins: each kind by itself
        for i in range(ROUNDS):
            runs["commit"].append(pgbench(s, COMMIT, 1, ONE))
            runs["one"].append(decide(s, 1, ONE, f"one{i}"))
        for i in range(ROUNDS):
            runs["locked"].append(pgbench(s, LOCKED, CLIENTS, MANY))
            runs["many"].append(decide(s, CLIENTS, MANY, f"many{i}"))
        emit("decide: one client, p50", "us", median(runs["one"], "p50"), "pgbench, one durable insert", median(runs["commit"], "p50"), 2.0)
        # emit's ratio is ours / theirs, at most the goal: times per decision, and latencies
        emit(f"decide: {CLIENTS} clients, time each", "us", 1e6 / median(runs["many"], "rate"), f"pgbench, {CLIENTS} clients, locked row",
             1e6 / median(runs["locked"], "rate"), 0.2)  # fmt: skip
        emit(f"decide: {CLIENTS} clients, p99", "us", median(runs["many"], "p99"), f"pgbench, {CLIENTS} clients, locked row", median(runs["locked"], "p99"), 0.2)


if __name__ == "__main__":
    main()
