"""Clocks that are set while quota is in service: the database's, which the book takes its time from, and the aggregators' own."""

import json
import os
import unittest

from tests.support.daemons.clock import Clock
from tests.support.daemons.stack import Stack, wait_for
from tests.support.quota import quotalog
from tests.support.quota.quotanodes import SHORT, Nodes

POLICY = f"""
version: 1
cluster: c
tenants:
  - name: acme
    workspaces:
      - {{name: prod, reserved: {{{SHORT}: 4}}, enforce: on, rules: [{{namespace: prod}}]}}
      - {{name: dev, limit: {{{SHORT}: 4}}, borrow: {{{SHORT}: 4}}, enforce: on, rules: [{{namespace: dev}}]}}
nodes: [{{name: n1, tenant: acme, model: {SHORT}, gpus: 4}}]
"""
LONG = ["--lease-confirm", "10m", "--lease-silence", "10m", "--reclaim-grace", "10m"]
# A lease is to be confirmed before it expires, also by a busy machine.
SHORTLY = ["--lease-confirm", "10s", "--lease-silence", "2s", "--reclaim-grace", "2s"]
HOUR, DAY = 3600, 86400


class Clocks(unittest.TestCase):
    def enter(self, options, **clocks):
        s = self.enterContext(Stack(options=["--quota-tick", "100ms", "--borrow-backoff", "0s", *options], **clocks))
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")
        self.stack, self.nodes = s, Nodes(s, {"n1": 4})
        self.nodes.speak()
        wait_for("four GPUs in the book", lambda: sum(p["free_units"] for p in s.get("/v1/quota").json()["pools"]) == 4 * 5040, s.aggregator)
        return s

    def post(self, path, body=None):
        reply = self.stack.call("POST", path, json.dumps(body or {}).encode(), "scheduler")
        self.assertEqual(reply.status, 200, reply.text())
        return reply.json()

    def ask(self, request_id, workspace, gpus=1, **more):
        return self.post("/v1/decisions", {"request_id": request_id, "workspace": f"acme/{workspace}", "gpu_model": SHORT, "gpus": gpus, **more})["status"]

    def status(self, request_id):
        return self.stack.get(f"/v1/decisions/{request_id}").json()["status"]

    def becomes(self, request_id, status):
        def so():
            self.nodes.speak()
            return self.status(request_id) == status

        wait_for(f"{request_id} {status}", so, self.stack.aggregator)

    def orders(self):
        self.nodes.speak()
        return {r["lease"]: r["state"] for r in self.stack.get("/v1/reclaims").json()["reclaims"]}

    def left(self):
        """Seconds that each order leaves."""
        return {r["lease"]: r["due_in_seconds"] for r in self.stack.get("/v1/reclaims").json()["reclaims"]}

    def told(self, what):
        """Whose notices of this kind are in the log."""
        return {n["id"] for row in quotalog.rows(self.stack) for n in json.loads(row[4])["notices"] if n["event"] == what}

    def steps(self):
        return int(self.stack.sql("SELECT count(*) FROM quota_event WHERE event LIKE '{\"clock\":%'")[0][0])

    def events(self, like):
        return int(self.stack.sql(f"SELECT count(*) FROM quota_event WHERE event LIKE '{like}'")[0][0])

    def check_log(self):
        """Time in it does not go back, and the engine makes the same of it again."""
        self.assertEqual(quotalog.chain_faults(self.stack), [])
        path = os.path.join(self.stack.dir, "recording.json")
        with open(path, "w", encoding="utf-8") as f:
            f.write(self.stack.get("/v1/quota/recording?from_seq=1").text())
        replayed = self.stack.cli("quota", "simulate", path)
        self.assertEqual(replayed.returncode, 0, replayed.stdout[-2000:] + replayed.stderr[-2000:])

    def test_a_day_forward_ends_nothing_and_a_day_back_keeps_nothing_from_ending(self):
        clock = self.enterContext(Clock())
        s = self.enter(LONG, clock=clock)
        for i in range(4):
            self.assertEqual(self.ask(f"loan{i}", "dev"), "admitted")
        self.post("/v1/leases/loan0/confirm")
        self.assertEqual(self.ask("owner", "prod"), "waiting")
        (victim,) = self.orders()
        self.assertTrue(0 < self.left()[victim] <= 600, self.left())
        before = self.events("{\"tick\":%")
        clock.set(DAY)
        self.nodes.speak()
        wait_for("the step in the log", lambda: self.steps() == 1, s.aggregator)
        wait_for("a look at what is due a day later", lambda: self.events("{\"tick\":%") > before, s.aggregator)
        self.assertEqual([self.status(f"loan{i}") for i in range(4)], ["confirmed", "admitted", "admitted", "admitted"])
        wait_for("the order that was made", lambda: self.orders() == {victim: "ordered"}, s.aggregator)
        self.assertEqual([self.told(what) for what in ("lease expired", "lease suspect", "order overdue")], [set()] * 3)
        self.assertTrue(0 < self.left()[victim] <= 600, f"a clock that is set leaves an order its time: {self.left()}")
        # and back: the book's time stands, what nodes say is of a time before it, and things end all the same
        clock.set(0)
        self.post(f"/v1/leases/{victim}/release")
        self.becomes(victim, "ended")
        self.assertEqual(self.status("owner"), "admitted")
        self.post("/v1/leases/owner/release")
        self.becomes("owner", "ended")
        self.assertEqual(self.ask("new", "prod"), "admitted")
        self.post("/v1/leases/new/confirm")
        before = self.steps()
        wait_for("looks at it", lambda: self.steps() > before, s.aggregator)
        # and once more
        clock.set(-DAY)
        self.post("/v1/leases/new/release")
        self.becomes("new", "ended")
        self.check_log()

    def test_what_nobody_confirms_expires_and_what_nobody_returns_is_overdue_although_the_clock_was_set_back(self):
        clock = self.enterContext(Clock())
        s = self.enter(SHORTLY, clock=clock)
        self.assertEqual(self.ask("fixed", "prod", 3), "admitted")
        self.post("/v1/leases/fixed/confirm")
        self.assertEqual(self.ask("loan", "dev"), "admitted")
        self.post("/v1/leases/loan/confirm")
        self.assertEqual(self.ask("owner", "prod"), "waiting")
        clock.set(-DAY)
        for lease in ("fixed", "loan", "owner"):
            self.becomes(lease, "ended")
        self.assertEqual(self.ask("late", "prod"), "admitted")
        self.becomes("late", "ended")
        # those that were confirmed were seen empty; what was admitted behind them nobody confirmed
        self.assertEqual((self.told("lease suspect"), self.told("lease expired")), ({"acme/fixed", "acme/loan"}, {"acme/owner", "acme/late"}))
        self.assertGreater(self.steps(), 0)
        self.check_log()

    def test_an_aggregators_own_clock_changes_neither_expiry_nor_exceptions(self):
        wall = self.enterContext(Clock())
        s = self.enter(LONG + ["--rollup-interval", "100ms"], wall=wall)
        self.assertEqual(self.ask("all", "prod", 4), "admitted")
        until = s.sql("SELECT rfc3339(now() + interval '1 hour')")[0][0]
        for off in (2 * HOUR, -2 * HOUR):
            wall.set(off)
            self.assertEqual(self.ask(f"waits {off}".replace(" ", ":"), "prod", preemptible=False, expires="1h"), "waiting")
            body = {"workspace": "acme/dev", "gpu_model": SHORT, "gpus": 1, "until": until, "reason": "a deadline"}
            reply = s.call("POST", "/v1/exceptions", json.dumps(body).encode())
            self.assertEqual((reply.status, reply.json().get("status")), (201, "approved"), reply.text())
            self.ask(f"waits:{off}", "prod", preemptible=False, expires="1h")
        seq = s.sql("SELECT max(seq) FROM quota_event")[0][0]
        wait_for("both exceptions in the book", lambda: self.events("{\"exception\"%") == 2, s.aggregator)
        wait_for("a look at what waits", lambda: s.sql(f"SELECT EXISTS (SELECT FROM quota_event WHERE seq > {seq} AND event LIKE '{{\"tick\"%')") == [["t"]], s.aggregator)
        self.assertEqual({self.status(f"waits:{off}") for off in (2 * HOUR, -2 * HOUR)}, {"waiting"})
        self.assertEqual([x["status"] for x in s.get("/v1/exceptions").json()["exceptions"]], ["approved", "approved"])
        self.check_log()


if __name__ == "__main__":
    unittest.main()
