"""Random requests to every route, by every role: the daemon, built with the sanitizers, goes on, answers none of them with an error of its
own, and what another tenant reads stays as it was. A few thousand here; `make soak` sends SOAK_REQUESTS, 200,000 unless told otherwise."""

# instead: san

import json
import os
import random
import socket
import subprocess
import threading
import time
import unittest
from collections import Counter

from tests.support.daemons.stack import Stack, program, wait_for
from tests.support.store import ledger

REQUESTS = int(os.environ.get("SOAK_REQUESTS") or 3000)
CLIENTS = 8
PATIENCE_S = 300.0
POLICY = """
version: 1
cluster: test
tenants:
  - {name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}
  - {name: globex, workspaces: [{name: research, rules: [{namespace: globex}], borrow: "4"}]}
nodes: [{name: n1, shared: true}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""
# Of acme, and of nothing that the roles below may change.
READS = ("/v1/policy", "/v1/tenants", "/v1/workspaces", "/v1/members", "/v1/history", "/v1/tokens", "/v1/adjustments", "/v1/exceptions", "/v1/reports/{month}.csv",
         "/v1/usage?from={from}&to={to}&exact=1&group_by=gpu,state")  # fmt: skip
METHODS = ("GET", "GET", "GET", "POST", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "TRACE", "get", "G\x01T")
NAMES = ("tenant", "workspace", "node", "period", "month", "from", "to", "limit", "before", "after", "wait", "dry_run", "format", "group_by", "cursor", "exact", "manifest",
         "excel", "status", "class", "decision", "meter", "name", "role", "seal", "from_seq", "to_seq", "action", "x")  # fmt: skip
VALUES = ("", "0", "1", "-1", "acme", "globex", "globex/research", "n1", "2026-11", "2026-11-16", "2026-11-16T00:00:00Z", "9223372036854775808", "1ms", "csv", "json", "tenant,hour",
          "%ff", "%00", "%e2%80%ae", "'", "\"", "a" * 300, "%", "..", "=1+1", "null", "label:team")  # fmt: skip
TAILS = ("", "1", "999999999", "2026-11.csv", "2026-11.json", "current.html", "current.focus.csv", "2026-11/lines/x", "a/confirm", "a/release", "1/ack", "2026-11/check", "2026-11/recompute",
         "1/1/release", "..", "%ff", "%2e%2e/x", "a" * 500, "a/b/c/d")  # fmt: skip
HEADERS = ("Accept-Encoding: gzip", "Content-Encoding: gzip", "Content-Encoding: br", "Content-Type: application/json", "Content-Type: application/cloudevents+json",
           "Content-Type: application/cloudevents-batch+json", "If-None-Match: *", "X-Request-Id: fuzz", "X-Request-Id: \xff", "Expect: 100-continue", "Connection: close", "Range: bytes=0-1",
           "Host: other", "Tollgate-Clock: 1", "Tollgate-Clock: x", "Authorization: Bearer x", "Transfer-Encoding: chunked", "A: b\rc", "Cookie: " + "c" * 4000)  # fmt: skip
WORDS = ("role", "tenant", "node", "description", "expires", "request_id", "workspace", "gpus", "gpu_model", "count", "reason", "amount", "currency", "kind", "until", "from", "nodes",
         "specversion", "id", "source", "type", "time", "data", "gb_hours", "workload", "boot_id", "boot_ns", "wall_ns", "interval_ns", "simulated", "left_out", "holders", "uuid")  # fmt: skip


def routes():
    printed = subprocess.run([program("tollgate-aggregator"), "--print-routes"], capture_output=True, text=True, check=True).stdout
    return [line.split(" ", 3)[:2] for line in printed.splitlines()]


class Fuzzer(threading.Thread):
    def __init__(self, port, value, count, table, tokens, frames):
        super().__init__(daemon=True)
        self.port, self.rng, self.count, self.table, self.tokens, self.frames = port, random.Random(value), count, table, tokens, frames
        self.told, self.errors, self.sock = Counter(), [], None

    def value(self, depth=0):
        rng = self.rng
        what = rng.randrange(10 if depth < 4 else 6)
        if what < 3:
            return rng.choice(VALUES)
        if what < 6:
            return rng.choice([0, 1, -1, 2**63, 1.5, True, None, "\u202e", "x" * rng.randrange(2000)])
        if what < 8:
            return {rng.choice(WORDS): self.value(depth + 1) for _ in range(rng.randrange(5))}
        return [self.value(depth + 1) for _ in range(rng.randrange(4))]

    def body(self):
        rng = self.rng
        what = rng.randrange(6)
        if what == 0:
            return b""
        if what == 1:
            return rng.randbytes(rng.randrange(3000))
        if what == 2:
            text = bytearray(rng.choice(self.frames))
            for _ in range(rng.randrange(6)):
                text[rng.randrange(len(text))] = rng.randrange(256)
            return bytes(text)
        if what == 3:
            return POLICY.encode()[: rng.randrange(len(POLICY))]
        return json.dumps({rng.choice(WORDS): self.value() for _ in range(rng.randrange(8))}).encode()

    def request(self):
        """The bytes, and whether they are all that they promise."""
        rng, whole = self.rng, True
        method, path = rng.choice(self.table)
        if rng.random() < 0.2:
            method = rng.choice(METHODS)
        if path.endswith("/") or rng.random() < 0.05:
            path += rng.choice(TAILS)
        if rng.random() < 0.5:
            path += "?" + "&".join(f"{rng.choice(NAMES)}={rng.choice(VALUES)}".replace(" ", "+") for _ in range(rng.randint(1, 4)))
        role = rng.choice([*self.tokens, None])
        # those who may change what is acme's only read, or send what is no request
        reads = role in ("admin", "billing")
        body = b"" if method in ("GET", "HEAD") else rng.randbytes(rng.randrange(1, 200)) if reads else self.body()
        if reads and method not in ("GET", "HEAD", "POST", "PUT"):
            method = "GET"
        lines = [f"{method} {path} HTTP/1.1", "Host: t"]
        if role:
            lines.append(f"Authorization: Bearer {self.tokens[role]}")
        if body or rng.random() < 0.1:
            wrong = rng.choice([-1, 1]) if rng.random() < 0.02 else 0
            whole = wrong == 0
            lines.append(f"Content-Length: {len(body) + wrong}")
        lines += [rng.choice(HEADERS) for _ in range(rng.randrange(4))]
        data = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body
        if rng.random() < 0.05:
            at = rng.randrange(len(data))
            data = data[:at] + rng.randbytes(rng.randrange(4)) + data[at + rng.randrange(4) :]
            whole = False
        return data, whole

    def answer(self):
        """The status, and the first bytes; 0: the connection was closed without one."""
        got = b""
        while True:
            while b"\r\n\r\n" not in got:
                piece = self.sock.recv(65536)
                if not piece:
                    return 0, got
                got += piece
            status = int(got[9:12])
            if status >= 200:
                return status, got
            got = got.partition(b"\r\n\r\n")[2]  # 100: go on

    def run(self):
        for _ in range(self.count):
            data, whole = self.request()
            status, got = 0, b""
            try:
                # its own connection: what is left of an answer, or of a request that promised more, is nobody else's
                with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as self.sock:
                    self.sock.sendall(data)
                    if not whole:
                        self.sock.settimeout(0.2)
                    status, got = self.answer()
            except ConnectionError:
                pass
            except TimeoutError:
                status = -1 if whole else 0
            self.told[status] += 1
            if status in (-1, 500) or status > 503:
                self.errors.append((status, data[:400], got[:600]))


class Fuzz(unittest.TestCase):
    def test_random_requests_hurt_nobody(self):
        value = int(os.environ.get("TOLLGATE_PROP_SEED") or random.SystemRandom().randrange(1 << 32))
        print(f"seed {value} (TOLLGATE_PROP_SEED={value} repeats it)", flush=True)
        s = self.enterContext(Stack())
        s.apply(POLICY)
        for name, what in (("acme", {"role": "tenant-admin", "tenant": "acme"}), ("billing", {"role": "billing"}), ("boss", {"role": "tenant-admin", "tenant": "globex"}),
                           ("dev", {"role": "developer", "tenant": "globex"}), ("viewer", {"role": "viewer", "tenant": "globex"}), ("stranger", {"role": "node", "node": "stranger"}),
                           ("scheduler", {"role": "scheduler"}), ("n1", {"role": "node", "node": "n1"})):  # fmt: skip
            s.token(name, **what)
        minute = 60 * 10**9
        now = time.time_ns() // (60 * minute) * (60 * minute) - 60 * minute
        batch = {"node": "n1", "boot_id": "ab" * 16, "epoch": 1, "seq": 1, "flags": 1, "from_ns": now, "to_ns": now + minute, "devices": [{"id": 1, "uuid": "GPU-1", "model": "NVIDIA H100 80GB HBM3"}],
                 "holders": [{"id": 1, "kind": 1, "ns": "acme", "pod": "p", "pod_uid": "u"}],
                 "records": [[1, 1, 1, 1, 0, 5040, now, minute, minute, 0, minute, 0, 0, 1000, 1]]}  # fmt: skip
        self.assertEqual(s.call("POST", "/v1/ingest", ledger.frames([batch]), role="n1").json()["quarantined"], 0)
        stamp = lambda ns: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ns // 10**9))  # noqa: E731
        given = {"month": time.strftime("%Y-%m", time.gmtime(now // 10**9)), "from": stamp(now), "to": stamp(now + minute)}
        reads = lambda: {path: s.get(path.format(**given), "acme").body for path in READS}  # noqa: E731
        before = reads()
        self.assertEqual(reads(), before, "it is still before anybody does anything")
        forged = [ledger.frames([{**batch, "node": "stranger", "epoch": e, "devices": [{"id": 1, "uuid": f"GPU-{e}", "model": "x"}]}]) for e in range(1, 6)]
        tokens = {k: v for k, v in s.tokens.items() if k not in ("acme", "n1")}
        threads = [Fuzzer(s.port, value + i, REQUESTS // CLIENTS, routes(), tokens, forged) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            while t.is_alive():
                t.join(5.0)
                self.assertFalse(s.aggregator.ended(), s.aggregator.words())
        told = sum((t.told for t in threads), Counter())
        print("answers:", dict(sorted(told.items())), flush=True)
        self.assertEqual([e for t in threads for e in t.errors][:3], [])
        self.assertGreater(told[200], 0)
        wait_for("readiness", lambda: s.call("GET", "/readyz", role=None).status == 200, s.aggregator)
        self.assertEqual(reads(), before)
        # with the leak check, and what a sanitizer has to say
        self.assertEqual(s.aggregator.stop(), 0, s.aggregator.words())


if __name__ == "__main__":
    unittest.main()
