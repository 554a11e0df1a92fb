"""A database that hangs, and a network that is cut: what arrived is judged by when it arrived, nothing waits without limit, a commit whose
answer was lost is not called a failure, and stopping takes at most its grace.

No verdict here is a measured speed: what must not wait for the database is asked for while it cannot answer, with far more patience than it needs."""

import concurrent.futures
import contextlib
import json
import signal
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from tests.integration.test_events import BATCH, event, now
from tests.integration.test_live import status
from tests.support.daemons import stack
from tests.support.daemons.pgproxy import Proxy
from tests.support.daemons.stack import Stack, wait_for
from tests.support.quota.quotanodes import SHORT, Nodes
from tests.support.store.ledger import frames

NS = 1_000_000_000
MINUTE = 60 * NS
SKEW_S = 5
FROZEN_S = 2 * SKEW_S + 1
PATIENCE_S = 300  # for what must come while the database is silent: far beyond what it may take
POLICY = f"""
version: 1
cluster: test
tenants:
  - name: acme
    workspaces: [{{name: training, reserved: {{{SHORT}: 2}}, enforce: on, rules: [{{namespace: acme}}]}}]
nodes: [{{name: n1, tenant: acme, model: {SHORT}, gpus: 2}}, {{name: n2, shared: true}}]
prices: {{version: "1", currency: EUR, items: [{{price: "1.00"}}]}}
"""


def known(*options):
    """Those of the options that this build has."""
    text = subprocess.run([stack.program("tollgate-aggregator"), "--help"], capture_output=True, text=True).stdout
    return [word for name, value in zip(options[::2], options[1::2]) if name in text for word in (name, value)]


def ask(url, timeout=PATIENCE_S, method="GET", body=None, token=None, headers=None):
    """Status and body. Silence is an exception."""
    rq = urllib.request.Request(url, data=body, method=method, headers=dict(headers or {}))
    if token:
        rq.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(rq, timeout=timeout) as r:
            return r.status, r.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read()


def batch(node, seq, minutes_ago=10):
    """One GPU of a node, held by nobody for a minute."""
    at = batch.start + (seq - minutes_ago) * MINUTE
    device = {"id": 1, "uuid": f"GPU-{node}-time", "model": "NVIDIA H100 80GB HBM3", "index": 7}
    return frames([{"node": node, "boot_id": "33" * 16, "epoch": 7, "seq": seq, "flags": 1, "from_ns": at, "to_ns": at + MINUTE,
                    "devices": [device] if seq == 1 else [], "holders": [], "records": [[1, 0, 2, 1, 0, 5040, at, MINUTE, MINUTE, 0, 0, 0, 0, 0, 1]]}])  # fmt: skip


batch.start = time.time_ns() // MINUTE * MINUTE


def stop_within(case, process, seconds):
    """SIGTERM; how it ended. A process that does not end fails the test, and is ended."""
    process.child.send_signal(signal.SIGTERM)
    try:
        return process.child.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill9()
        case.fail(f"still running {seconds} s after SIGTERM:\n{process.words()}")


class Arrival(unittest.TestCase):
    """PostgreSQL is stopped by SIGSTOP for longer than a clock may be wrong, and nobody's patience ends."""

    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=["--clock-skew-max", f"{SKEW_S}s", "--connect-timeout", "1m"]))
        s.apply(POLICY)
        s.node_token("n2")
        reply = s.call("POST", "/v1/ingest", batch("n2", 1), role="node n2")
        assert reply.status == 200, reply.text()

    def by_the_clock(self, path, body):
        """As a node posts: with its time at that moment."""
        return self.stack.call("POST", path, body, "node n2", {"Tollgate-Clock": str(time.time_ns())})

    def test_what_waited_for_the_database_is_judged_by_when_it_arrived(self):
        s = self.stack
        said = {**status("n2"), "boot_ns": time.monotonic_ns()}
        with concurrent.futures.ThreadPoolExecutor() as threads:
            with s.pg.frozen():
                push = threads.submit(self.by_the_clock, "/v1/ingest", batch("n2", 2))
                told = threads.submit(self.by_the_clock, "/v1/status", json.dumps(said).encode())
                time.sleep(FROZEN_S)
            push, told = push.result(), told.result()
        self.assertEqual((push.status, push.json().get("quarantined")), (200, 0), push.text())
        self.assertEqual((told.status, told.json().get("kept")), (200, True), told.text())
        self.assertLess(abs(told.json()["skew_ns"]), SKEW_S * NS)
        self.assertEqual(s.get("/v1/quarantine").json()["batches"], [])
        node = next(n for n in s.get("/v1/status").json() if n["node"] == "n2")
        self.assertGreaterEqual(node["age_seconds"], FROZEN_S - 1)  # it was said when it came, not when it was written


class Frozen(unittest.TestCase):
    """The same, and what must not wait for it."""

    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=known("--stop-grace", "12s", "--statement-timeout", "10m")))
        s.apply(POLICY)

    def test_health_and_readiness_are_told_while_every_worker_waits_for_the_database(self):
        s = self.stack
        waits = []
        with concurrent.futures.ThreadPoolExecutor(max_workers=64) as threads:
            with s.pg.frozen():
                for _ in range(40):
                    waits.append(threads.submit(s.call, "GET", "/v1/whoami"))
                time.sleep(1)
                for path in ["/healthz", "/readyz"] * 10:
                    code, body = ask(s.url + path)
                    self.assertIn(code, (200, 503) if path == "/readyz" else (200,), body)
                self.assertFalse(all(w.done() for w in waits), "what asks the database still waits for it")
                wait_for("/readyz to say no", lambda: ask(s.url + "/readyz")[0] == 503)
                said = json.loads(ask(s.url + "/readyz")[1])["detail"]
                self.assertNotIn(s.pg.socket_dir, said)
                self.assertEqual(ask(s.url + "/healthz")[0], 200)
            for w in waits:
                self.assertIn(w.result().status, (200, 429, 503))
        s.wait_ready()

    def test_stopping_takes_its_grace_and_no_longer(self):
        s = self.stack
        with concurrent.futures.ThreadPoolExecutor(max_workers=16) as threads:
            with s.pg.frozen():
                waits = [threads.submit(self.quietly, "/v1/whoami") for _ in range(8)]
                time.sleep(1)
                code = stop_within(self, s.aggregator, PATIENCE_S)
            for w in waits:
                self.assertIn(w.result(), (429, 503, None))
        self.assertEqual(code, 0)
        self.assertIn("cut off", s.aggregator.words())
        s.restart_aggregator()
        self.assertEqual(s.call("GET", "/v1/whoami").status, 200)

    def quietly(self, path):
        with contextlib.suppress(OSError):
            return self.stack.call("GET", path).status
        return None


class ProxiedStack(Stack):
    """Its aggregator reaches PostgreSQL by a network that a test can break."""

    proxy = None

    def conninfo(self, *user):
        self.proxy = self.proxy or Proxy(self.pg)
        return self.proxy.conninfo(super().conninfo(*user))

    def close(self):
        super().close()
        if self.proxy:
            self.proxy.close()


class Cut(unittest.TestCase):
    """Packets are lost, and no side is told."""

    @classmethod
    def setUpClass(cls):
        options = ["--statement-timeout", "5s", "--lock-timeout", "5s", "--connect-timeout", "2s", "--clock-skew-max", f"{SKEW_S}s", "--quota-tick", "200ms"]
        cls.stack = s = cls.enterClassContext(ProxiedStack(options=options))
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")
        cls.nodes = Nodes(s, {"n1": 2})
        cls.nodes.speak()
        s.node_token("n2")
        cls.url = s.url
        wait_for("two GPUs in the book", lambda: sum(p["free_units"] for p in s.get("/v1/quota").json()["pools"]) == 2 * 5040)

    def decide(self, request_id):
        body = {"request_id": request_id, "workspace": "acme/training", "gpu_model": SHORT, "gpus": 1}
        return ask(self.url + "/v1/decisions", method="POST", body=json.dumps(body).encode(), token=self.stack.tokens["scheduler"])

    def test_requests_end_at_their_deadline_and_all_goes_on_when_the_network_is_back(self):
        s = self.stack
        self.assertEqual(self.decide("before")[0], 200)
        push = batch("n2", 1)
        s.proxy.cut()
        with concurrent.futures.ThreadPoolExecutor(max_workers=64) as threads:
            decisions = [threads.submit(self.decide, f"cut-{i}") for i in range(4)]
            reads = [threads.submit(ask, self.url + "/v1/whoami", token=s.tokens["admin"]) for _ in range(30)]
            clock = {"Tollgate-Clock": str(time.time_ns())}
            pushed = threads.submit(ask, self.url + "/v1/ingest", method="POST", body=push, token=s.tokens["node n2"], headers=clock)
            for asked in [*decisions, *reads, pushed]:
                code, body = asked.result()
                self.assertIn(code, (429, 503), body)
        s.proxy.heal()
        s.wait_ready()
        wait_for("the decider to decide again", lambda: self.decide("after")[0] == 200)
        code, body = ask(self.url + "/v1/ingest", method="POST", body=push, token=s.tokens["node n2"], headers={"Tollgate-Clock": str(time.time_ns())})
        self.assertEqual((code, json.loads(body).get("quarantined")), (200, 0), body)

    def test_stopping_does_not_wait_for_a_network_that_is_cut(self):
        s = self.stack
        s.proxy.cut()
        self.addCleanup(s.proxy.heal)
        time.sleep(1)
        self.assertEqual(stop_within(self, s.aggregator, PATIENCE_S), 0)
        s.proxy.heal()
        s.restart_aggregator()
        self.assertEqual(s.call("GET", "/v1/whoami").status, 200)


class Commits(unittest.TestCase):
    """COMMIT is done, and the connection is lost before its answer."""

    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(ProxiedStack())
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")
        s.token("dev", role="developer", tenant="acme")
        s.token("second", role="billing")
        cls.nodes = Nodes(s, {"n1": 2})
        cls.nodes.speak()
        s.node_token("n2")
        wait_for("two GPUs in the book", lambda: sum(p["free_units"] for p in s.get("/v1/quota").json()["pools"]) == 2 * 5040)

    def call(self, method, path, body=None, role="admin", by="tollgate-aggregator", headers=None, refuse=False):
        s = self.stack
        s.proxy.lose_commit(by, refuse)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        reply = s.call(method, path, raw, role, headers)
        self.assertTrue(s.proxy.lost.wait(PATIENCE_S), f"{method} {path} committed nothing: {reply.status} {reply.text()}")
        return reply

    def did(self, status, *args, **named):
        reply = self.call(*args, **named)
        self.assertEqual(reply.status, status, reply.text())
        return reply.json()

    def count(self, what):
        return int(self.stack.sql(f"select count(*) from {what}")[0][0])

    def test_tokens(self):
        made = self.did(201, "POST", "/v1/tokens", {"role": "admin", "description": "once"})
        self.assertEqual(self.count("access_token where description = 'once'"), 1)
        self.assertEqual(stack.request("GET", self.stack.url + "/v1/whoami", token=made["token"]).status, 200)
        self.did(200, "DELETE", f"/v1/tokens/{made['id']}")
        self.assertEqual(stack.request("GET", self.stack.url + "/v1/whoami", token=made["token"]).status, 401)

    def test_join_tokens_and_the_exchange(self):
        made = self.did(201, "POST", "/v1/join-tokens", {"node": "n9", "expires": "1h"})
        self.stack.tokens["join"] = made["join_token"]
        joined = self.did(201, "POST", "/v1/join", {"node": "n9"}, role="join")
        self.assertEqual(stack.request("GET", self.stack.url + "/v1/whoami", token=joined["token"]).status, 200)
        other = self.did(201, "POST", "/v1/join-tokens", {"node": "n8", "expires": "1h"})
        self.did(200, "DELETE", f"/v1/join-tokens/{other['id']}")

    def test_a_policy(self):
        before = self.count("policy_version")
        self.did(200, "PUT", "/v1/policy", POLICY.replace('"1.00"', '"1.10"').replace('version: "1"', 'version: "2"').encode())
        self.assertEqual(self.count("policy_version") - before, 1)

    def test_exceptions(self):
        row = self.did(201, "POST", "/v1/exceptions", {"workspace": "acme/training", "gpu_model": SHORT, "gpus": 1, "until": "8h", "reason": "lost"}, role="dev")
        self.assertEqual(self.count("exception where reason = 'lost'"), 1)
        self.assertEqual(self.did(200, "POST", f"/v1/exceptions/{row['id']}/approve", {"reason": "yes"})["status"], "approved")
        self.assertEqual(self.did(200, "POST", f"/v1/exceptions/{row['id']}/revoke", {"reason": "no"})["status"], "revoked")

    def test_adjustments(self):
        what = {"tenant": "acme", "amount": "12.50", "currency": "EUR", "reason": "lost"}
        row = self.did(201, "POST", "/v1/adjustments", what)
        self.assertEqual(self.count("adjustment where reason = 'lost'"), 1)
        self.did(200, "POST", f"/v1/adjustments/{row['id']}/reverse", {"reason": "back"})

    def test_events_of_other_meters(self):
        reply = self.did(200, "POST", "/v1/events", [event(1, at=now(), owner={"tenant": "acme", "workspace": "training"})], headers={"Content-Type": BATCH})
        self.assertEqual([e["status"] for e in reply["events"]], ["accepted"])

    def test_pushes_and_a_decision_about_quarantine(self):
        s = self.stack
        before = self.count("usage_interval")
        first = self.did(200, "POST", "/v1/ingest", batch("n2", 1), role="node n2")
        self.assertEqual((first["next_seq"], first["quarantined"]), (2, 0))
        for seq in (2, 3):  # a stream that is known goes another way than one that is new
            again = self.did(200, "POST", "/v1/ingest", batch("n2", seq), role="node n2")
            self.assertEqual((again["next_seq"], again["quarantined"], again["batches"] + again["duplicates"]), (seq + 1, 0, 1))
        self.assertEqual(self.count("usage_interval") - before, 3)
        late = self.did(200, "POST", "/v1/ingest", batch("n2", 4), role="node n2", headers={"Tollgate-Clock": str(time.time_ns() - 60 * NS)})
        self.assertEqual(late["quarantined"], 1)
        held = s.get("/v1/quarantine").json()["batches"][0]
        done = self.did(200, "POST", f"/v1/quarantine/{held['stream']}/{held['seq']}/release", {"reason": "it was the network"})
        self.assertEqual(done["decision"], "released")

    def test_decisions_and_leases(self):
        decider = {"role": "scheduler", "by": "tollgate-aggregator decider"}
        body = {"request_id": "lost", "workspace": "acme/training", "gpu_model": SHORT, "gpus": 1}
        self.assertEqual(self.did(200, "POST", "/v1/decisions", body, **decider)["status"], "admitted")
        self.assertEqual(self.count("decision where request_id = 'lost'"), 1)
        self.did(200, "POST", "/v1/leases/lost/confirm", {}, **decider)
        self.did(200, "POST", "/v1/leases/lost/release", {}, **decider)
        self.assertEqual(self.count("quota_event where event like '{\"submit\"%lost\"%'"), 1)

    def test_when_nobody_can_be_asked_the_answer_says_that_it_is_not_known(self):
        s = self.stack
        self.addCleanup(s.proxy.answer)
        reply = self.call("POST", "/v1/tokens", {"role": "admin", "description": "perhaps"}, refuse=True)
        s.proxy.answer()
        self.assertEqual(reply.status, 503)
        self.assertIn("not known", reply.json()["detail"])
        self.assertIn("/v1/tokens", reply.json()["detail"])
        self.assertIsNone(reply.headers["Retry-After"])
        self.assertEqual(self.count("access_token where description = 'perhaps'"), 1)


if __name__ == "__main__":
    unittest.main()
