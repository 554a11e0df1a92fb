#!/usr/bin/python3
"""A tenant at its limits, and what the others notice of it: 30 clients that read an open month's report as often as they may, 5,000 that poll and
1,000 dry runs a second, all of one tenant. Meanwhile another tenant asks for capacity, one request after the other, and a fleet of 500 nodes of 8 GPUs
pushes a batch of each every 5 seconds. In a second turn the greedy tenant also asks for capacity 1,000 times a second; 5,000 of that wait, the others
are refused.

The greedy clients would be on other machines: here they have what the processors leave (SCHED_IDLE, where a nice one still keeps who wakes up
waiting for 20 ms). The other side is the same without the greedy tenant, in the same run, in turns; what waits of it has expired then. A refused
report or poll (429) is repeated after Retry-After, a poll after ten times that: 500 a second are refused. A batch is late that is not in before the
next of its node is due."""

import json
import os
import random
import selectors
import socket
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from tests.bench.bench_http import emit  # noqa: E402
from tests.support.daemons import stack  # noqa: E402
from tests.support.fleet.fleetrun import Fleet, resident_kib  # noqa: E402
from tests.support.quota import quotalog  # noqa: E402

ROUNDS = int(os.environ.get("TOLLGATE_BENCH_ROUNDS") or 3)
SECONDS = int(os.environ.get("TOLLGATE_BENCH_SECONDS") or 15)
REPORTS, POLLS, DRY_RUNS_PER_S = 30, int(os.environ.get("TOLLGATE_BENCH_POLLS") or 5000), 1000
QUEUED, QUEUED_PER_S = int(os.environ.get("TOLLGATE_BENCH_QUEUED") or 5000), 1000
SKUS, DAYS = int(os.environ.get("TOLLGATE_BENCH_SKUS") or 20000), 5
NODES, STEP_S, WARM_STEPS = 500, 5, 4  # of the first batches each is the first of its node, with all that it has to say
SETTLE_S = 8
EXPIRES_S = SETTLE_S + SECONDS + 2  # what is asked for at the beginning of a round still waits at its end
OF, GPUS, BOOK_NODES = 48, 8, 220
DECISIONS_PER_S = 50

TENANTS = """
version: 1
cluster: c
tenants:
  - {name: greedy, workspaces: [{name: only, rules: [{namespace: greedy}]}]}
  - {name: calm, workspaces: [{name: only, rules: [{namespace: calm}]}]}
"""
BOOK = {
    "policy": {
        "settings": {"burst": 2}, "clusters": ["c"], "models": ["H100"], "shapes": [{"model": "H100", "of": OF}],
        "tenants": [{"name": "greedy"}, {"name": "calm"}],
        "workspaces": [{"path": "greedy/only", "home": "c"}, {"path": "calm/only", "home": "c"}],
        "shares": [{"workspace": "calm/only", "cluster": "c", "model": "H100", "reserved_units": BOOK_NODES * GPUS * 5040},
                   {"workspace": "greedy/only", "cluster": "c", "model": "H100", "reserved_units": 5040}],
    }
}  # fmt: skip
FILL = f"""
select make_periods('2026-10-01Z', '2026-11-01Z');
insert into billing_day (day, starts_at, ends_at, folded_at, dirty)
    select d, d::timestamp at time zone 'UTC', (d + 1)::timestamp at time zone 'UTC', now(), true from (select date '2026-10-01' + n as d from generate_series(0, {DAYS - 1}) n) x;
insert into price_book (version, currency, sha256, effective) values ('bench', 'EUR', sha256('bench'), '[2026-10-01Z,2026-11-01Z)');
insert into price_item (book_id, position, price) select id, 0, 2.5 from price_book where version = 'bench';
insert into charge_day select d.day, (select id from price_book where version = 'bench'), (select id from cluster where name = 'c'), NULL, 'GPU-' || s, w.id, '', 5040, 1,
    'on-demand', 1000000007::numeric * (w.id + s) * 1000, 999999937::numeric * s * 1000, 0, 0, 123456
    from billing_day d, workspace w join tenant t on t.id = w.tenant_id and t.name = 'greedy', generate_series(1, {SKUS}) s order by d.day, w.id, s;
update billing_day set dirty = false;
vacuum analyze charge_day, workspace, tenant;
"""
REPORT, POLL = "/v1/reports/2026-10.html", "/v1/reclaims?wait=5m"


def fields(tenant):
    return f'"workspace":"{tenant}/only","gpu_model":"H100","replicas":1,"of":{OF}'


# ---- the generator, a process of its own ----


class Reader:
    """One connection that asks the same again and again."""

    def __init__(self, port, token, path, patience):
        self.port, self.path, self.patience = port, path, patience
        self.text = f"GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        self.socket, self.head, self.left = None, b"", 0

    def ask(self, loop):
        if self.socket is None:
            self.socket = socket.create_connection(("127.0.0.1", self.port))
            self.socket.setblocking(False)
            loop.register(self.socket, selectors.EVENT_READ, self)
        self.head, self.left = b"", None
        self.socket.send(self.text)

    def end(self, loop):
        loop.unregister(self.socket)
        self.socket.close()
        self.socket = None

    def hear(self, loop, counts):
        """When to ask again, or None while there is more to come."""
        data = self.socket.recv(1 << 18)
        if not data:
            self.end(loop)
            return time.monotonic() + 1
        if self.left is None:
            self.head += data
            head, found, rest = self.head.partition(b"\r\n\r\n")
            if not found:
                return None
            lines = head.decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
            self.status, self.wait = lines[0].split()[1], int(headers.get("retry-after", "0"))
            self.left, data = int(headers["content-length"]), rest
        self.left -= len(data)
        if self.left > 0:
            return None
        key = f"{'report' if self.path == REPORT else 'poll'} {self.status}"
        counts[key] = counts.get(key, 0) + 1
        return time.monotonic() + self.wait * self.patience * random.uniform(0.5, 1.5)


def generate(port, token, queues):
    """Until its input ends."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    waits = f'{fields("greedy")},"preemptible":false,"expires":"{EXPIRES_S}s"'  # beyond its reservation
    asking = [
        subprocess.Popen([os.path.join(stack.BUILD, "tests", "decide_tool"), str(port), token, "32", str(rate * 3600), prefix, fields_, query, str(rate)], stdout=subprocess.DEVNULL)
        for prefix, fields_, query, rate in (("dry", fields("greedy"), "?dry_run=1", DRY_RUNS_PER_S), (f"waits{os.getpid()}", waits, "", QUEUED_PER_S))[: 1 + queues]
    ]
    loop, counts = selectors.DefaultSelector(), {}
    waiting = [(time.monotonic(), Reader(port, token, REPORT, 1)) for _ in range(REPORTS)]
    waiting += [(time.monotonic() + i / 2500, Reader(port, token, POLL, 10)) for i in range(POLLS)]
    loop.register(sys.stdin, selectors.EVENT_READ, None)
    try:
        while True:
            now = time.monotonic()
            due = [reader for at, reader in waiting if at <= now]
            waiting = [(at, reader) for at, reader in waiting if at > now]
            for reader in due:
                reader.ask(loop)
            for key, _ in loop.select(0.02):
                if key.data is None:
                    return counts
                at = key.data.hear(loop, counts)
                if at is not None:
                    waiting.append((at, key.data))
    finally:
        for child in asking:
            child.terminate()
            child.wait()


class Greedy:
    def __init__(self, s, queues):
        self.child = subprocess.Popen([sys.executable, __file__, "--generate", str(s.port), s.tokens["greedy"], str(int(queues))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stop(self):
        out, _ = self.child.communicate()
        return json.loads(out)


# ---- what is measured ----


def decide(s, prefix):
    """One client, as often as a scheduler asks, for so many seconds."""
    done = subprocess.run(
        [os.path.join(stack.BUILD, "tests", "decide_tool"), str(s.port), s.tokens["calm"], "1", str(DECISIONS_PER_S * SECONDS), prefix, fields("calm"), "", str(DECISIONS_PER_S)],
        capture_output=True, text=True, check=True)  # fmt: skip
    told = json.loads(done.stdout)
    if told["other"]:
        raise RuntimeError(f"{told['other']} requests of the calm tenant were not admitted, {told['limited']} of them limited")
    return told


class Pushing(threading.Thread):
    """The fleet, all the while."""

    def __init__(self, fleet):
        super().__init__()
        self.fleet, self.told = fleet, {}

    def run(self):
        self.told = self.fleet.run("--steps", WARM_STEPS + ROUNDS * (3 * SECONDS + 2 * SETTLE_S + EXPIRES_S) // STEP_S, "--step-ms", STEP_S * 1000, "--paced", 1)


def median(values):
    return sorted(values)[len(values) // 2]


def prepare(s):
    s.apply(TENANTS)
    s.token("greedy", role="developer", tenant="greedy")
    s.token("calm", role="developer", tenant="calm")
    for statement in FILL.split(";\n"):
        if statement.strip():
            s.sql(statement)
    s.call("POST", "/v1/decisions", b'{"request_id":"first","workspace":"calm/only","gpu_model":"H100","gpus":1}', "calm")
    quotalog.append(s, BOOK)
    gpus = [{"model": "H100", "slots": [{"of": OF, "count": OF}]} for _ in range(GPUS)]
    quotalog.append(s, {"nodes": [{"name": f"n{i}", "cluster": "c", "tenant": "calm", "gpus": gpus} for i in range(BOOK_NODES)] + [{"name": "greedy", "cluster": "c", "tenant": "greedy", "gpus": gpus[:1]}]})


def main():
    if sys.argv[1:2] == ["--generate"]:
        print(json.dumps(generate(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))))
        return
    with Fleet(NODES, shape=(8, 1, 1), options=["--quota-tick", "1h", "--tenant-queued", str(QUEUED)]) as fleet:
        s = fleet.stack
        prepare(s)
        idle, busy, counts, peak = [], ([], []), {}, 0
        pushing = Pushing(fleet)
        pushing.start()
        time.sleep(WARM_STEPS * STEP_S)
        for i in range(ROUNDS):
            idle.append(decide(s, f"idle{i}"))
            for queues in (False, True):
                greedy = Greedy(s, queues)
                time.sleep(SETTLE_S)  # until it is at its limits
                busy[queues].append(decide(s, f"busy{i}{queues}"))
                peak = max(peak, resident_kib(s.aggregator.child.pid))
                waiting = int(s.sql("SELECT count(*) FROM decision WHERE status = 'waiting'")[0][0])
                if queues and waiting < QUEUED * 0.9:
                    raise RuntimeError(f"{waiting} requests of the greedy tenant wait, it may have {QUEUED}")
                for what, n in greedy.stop().items():
                    counts[what] = counts.get(what, 0) + n
            time.sleep(EXPIRES_S)
        pushing.join()
        print(f"of the greedy tenant: {counts}", file=sys.stderr)
        for key in ("p50", "p99"):
            without = median([t[f"{key}_us"] for t in idle])
            for queues, name in ((False, ""), (True, " (also queues)")):
                emit(f"greedy: another's decision, {key}{name}", "us", median([t[f"{key}_us"] for t in busy[queues]]), "without the greedy tenant",
                     without, 3.0 if key == "p99" and not queues else None)  # fmt: skip
        steps = pushing.told["steps"][WARM_STEPS:]
        emit("greedy: batches that are late", "batches", sum(step["late"] for step in steps), "of all", NODES * len(steps), 0.0)
        emit("greedy: longest lag of a batch", "ms", max(step["max_ms"] for step in steps), "a step", STEP_S * 1000, 1.0)
        emit("greedy: memory", "MiB", peak / 1024, "for each connection", POLLS * 32 / 1024, None)


if __name__ == "__main__":
    main()
