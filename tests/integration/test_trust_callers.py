"""Callers that take more than their share: strangers who send large bodies slowly, a viewer with thousands of polls, a tenant with dozens of reports.
What the others ask for is answered while all of that is still going on. No verdict depends on how long anything took."""

import contextlib
import json
import os
import select
import socket
import subprocess
import time
import unittest

from tests.support.daemons.stack import Reply, Stack, request, wait_for
from tests.support.quota.quotanodes import MINUTE, MODEL
from tests.support.store import ledger

POLICY = """
version: 1
cluster: c
tenants:
  - name: acme
    workspaces: [{name: prod, rules: [{namespace: prod}]}]
  - name: globex
    workspaces: [{name: research, rules: [{namespace: research}]}]
nodes:
  - {name: n1, tenant: globex, model: H100-80GB, gpus: 1}
"""
# what the tested reads of a month look at, and what no decision needs
READ_TABLES = "tollgate.adjustment, tollgate.meter_event, tollgate.tenant_limit"
REPORTS = ("/v1/reports/current.html", "/v1/refunds", "/v1/history", "/v1/events/summary")
LARGE = (16 << 20) - 1  # of ingest-max, 16 MiB
REPORTS_WAITING = 16
TENANT_POLLS = 256


class Raw:
    """One connection that says one thing, and hears its reply when it is asked to."""

    def __init__(self, stack, method, path, token=None, length=None, body=b"", headers=()):
        self.socket = socket.create_connection(("127.0.0.1", stack.port))
        lines = [f"{method} {path} HTTP/1.1", "Host: t", *headers]
        lines += [f"Authorization: Bearer {token}"] if token else []
        lines += [f"Content-Length: {length}"] if length is not None else []
        self.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + body)

    def pour(self, n):
        """Up to n more bytes, until the server ends the connection."""
        block = b"x" * (1 << 16)
        with contextlib.suppress(ConnectionError):
            while n > 0:
                n -= self.socket.send(block[: min(n, len(block))])

    def answered(self):
        return bool(select.select([self.socket], [], [], 0)[0])

    def reply(self):
        data = b""
        while b"\r\n\r\n" not in data:
            more = self.socket.recv(1 << 16)
            if not more:
                return None
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:])
        while len(body) < int(headers.get("Content-Length", "0")):
            more = self.socket.recv(1 << 16)
            if not more:
                break
            body += more
        return Reply(int(lines[0].split()[1]), headers, body)

    def close(self):
        self.socket.close()


class Locked(contextlib.AbstractContextManager):
    """Whoever reads these tables waits until the end."""

    def __init__(self, stack, tables):
        self.stack = stack
        wait_for("the lock", lambda: self.lock(tables), stack.aggregator)

    def lock(self, tables):
        """False: a reader was in the way, and the server chose it."""
        self.session = subprocess.Popen(
            [os.path.join(self.stack.pg.bin, "psql"), "-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-d", self.stack.pg.conninfo("tollgate")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
        self.session.stdin.write(f"BEGIN;\nLOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE;\nSELECT 'held';\n")
        self.session.stdin.flush()
        if self.session.stdout.readline() == "held\n":
            return True
        self.session.communicate()
        return False

    def wait_for_readers(self, n):
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'tollgate-aggregator'"
        wait_for(f"{n} readers that wait", lambda: int(self.stack.sql(blocked)[0][0]) >= n, self.stack.aggregator)

    def __exit__(self, *exc):
        self.session.communicate("ROLLBACK;\n")


class Callers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # time is not looked at by the decider, and a lock may be waited for
        cls.stack = s = cls.enterClassContext(Stack(options=["--quota-tick", "1h", "--lock-timeout", "5m", "--statement-timeout", "10m"]))
        s.apply(POLICY)
        s.token("viewer", role="viewer", tenant="acme")
        s.token("acme", role="developer", tenant="acme")
        s.token("globex", role="developer", tenant="globex")
        s.token("globex admin", role="tenant-admin", tenant="globex")
        s.token("scheduler", role="scheduler")
        s.token("node n1", role="node", node="n1")
        s.token("node n2", role="node", node="n2")
        cls.asked, cls.seq = 0, 0
        # the month is there once something was measured in it
        assert s.call("POST", "/v1/ingest", cls.push(cls()), "node n1").status == 200
        for path in REPORTS:
            wait_for(path, lambda p=path: s.call("GET", p, role="viewer").status == 200, s.aggregator)
        # the decider has read the policy
        assert cls.decide(cls()).status == 200

    def open(self, *args, **more):
        raw = Raw(self.stack, *args, **more)
        self.addCleanup(raw.close)
        return raw

    def decide(self, role="globex", **more):
        Callers.asked += 1
        body = {"request_id": f"r{self.asked}", "workspace": "globex/research", "gpu_model": "H100-80GB", "gpus": 1, **more}
        return self.stack.call("POST", "/v1/decisions", json.dumps(body).encode(), role)

    def push(self, node="n1", holders=0):
        """A batch as large as its holders make it."""
        Callers.seq += 1
        start = (time.time_ns() // MINUTE - 1000 + self.seq) * MINUTE
        people = [{"id": i + 1, "kind": 1, "pod": f"pod-{os.urandom(24).hex()}", "namespace": "research"} for i in range(holders)]
        batch = {"node": node, "boot_id": "00" * 16, "epoch": 7, "seq": self.seq, "flags": 1, "from_ns": start, "to_ns": start + MINUTE,
                 "devices": [{"id": 1, "uuid": f"GPU-{node}", "model": MODEL, "index": 0}], "holders": people, "records": [[1, 0, 2, 1, 0, 5040, start, MINUTE, MINUTE, 0, 0, 0, 0, 0, 1]]}  # fmt: skip
        return ledger.frames([batch])

    def metric(self, name):
        page = request("GET", self.stack.url + "/metrics").text()
        return sum(int(float(line.split()[-1])) for line in page.splitlines() if line.startswith(name))

    def others_are_served(self):
        """What another tenant, a node and a probe ask for, with small bodies and large ones."""
        self.assertEqual(self.decide().status, 200)
        self.assertEqual(self.decide("scheduler").status, 200)
        self.assertEqual(self.stack.call("GET", "/v1/reclaims", role="globex").status, 200)
        self.assertEqual(request("GET", self.stack.url + "/readyz").status, 200)
        self.assertEqual(self.stack.call("GET", "/v1/whoami", role="globex").status, 200)
        data = self.push(holders=1000)
        self.assertGreater(len(data), 20000)
        reply = self.stack.call("POST", "/v1/ingest", data, "node n1")
        self.assertEqual(reply.status, 200, reply.text())

    # ---- bodies ----

    def test_nine_strangers_with_large_bodies_keep_nobody_from_sending(self):
        for token in (None, "tg_of_nobody"):
            slow = [self.open("POST", "/v1/ingest", token, LARGE + 1) for _ in range(9)]
            for raw in slow:
                raw.pour(LARGE)  # and the last byte never comes
            self.others_are_served()
            for raw in slow:
                raw.close()

    def test_two_hundred_strangers_with_large_bodies_keep_nobody_from_sending(self):
        slow = [self.open("PUT", "/v1/policy", "tg_of_nobody" if i % 2 else None, 1 << 20) for i in range(200)]
        for raw in slow:
            raw.pour((1 << 20) - 1)
        self.others_are_served()

    def test_a_stranger_is_refused_before_its_large_body_is_read(self):
        for path, token, status in (
            ("/v1/ingest", None, 401),
            ("/v1/ingest", "tg_of_nobody", 401),
            ("/v1/ingest", self.stack.tokens["viewer"], 403),
            ("/v1/events", self.stack.tokens["viewer"], 403),
        ):
            for headers in ((), ("Expect: 100-continue",)):
                raw = self.open("POST", path, token, 1 << 20, headers=headers)  # no byte of it ever comes
                self.assertEqual(raw.reply().status, status)

    def test_a_known_sender_is_asked_for_its_body_and_one_that_is_refused_is_heard_out(self):
        data = self.push(holders=1000)
        raw = self.open("POST", "/v1/ingest", self.stack.tokens["node n1"], len(data), headers=("Expect: 100-continue",))
        self.assertEqual(raw.reply().status, 100)
        raw.socket.sendall(data)
        self.assertEqual(raw.reply().status, 200)
        # one that sends all of it at once still reads why it was refused
        raw = self.open("POST", "/v1/ingest", "tg_of_nobody", 900_000)
        raw.pour(900_000)
        self.assertEqual(raw.reply().status, 401)

    def test_bodies_of_a_token_have_a_limit_that_it_is_told_by_name(self):
        token = self.stack.tokens["node n2"]
        slow = self.open("POST", "/v1/ingest", token, 10 << 20, headers=("Expect: 100-continue",))
        self.assertEqual(slow.reply().status, 100)
        slow.pour(1 << 20)
        reply = self.open("POST", "/v1/ingest", token, 10 << 20).reply()
        self.assertEqual((reply.status, reply.json()["limit"]), (429, "bodies-per-caller"))
        self.assertGreater(int(reply.headers["Retry-After"]), 0)
        # a small one of its own, and everybody else's
        self.assertEqual(self.stack.call("POST", "/v1/status", b"{}", "node n2").status, 400)
        self.others_are_served()

    # ---- polls ----

    def test_polls_that_were_opened_and_closed_keep_nobody_from_deciding(self):
        before = self.metric("tollgate_aggregator_requests_total")
        for i in range(5200):
            raw = Raw(self.stack, "GET", "/v1/reclaims?wait=5m", self.stack.tokens["viewer"])
            raw.close()
            if i % 200 == 0:  # not more at once than may wait for a worker
                self.assertEqual(self.stack.call("GET", "/v1/whoami", role="viewer").status, 200)
        self.others_are_served()
        wait_for("no place is taken", lambda: self.metric("tollgate_aggregator_http_kept ") == 0, self.stack.aggregator)
        # none of them counts for the tenant any more
        wait_for("all were heard", lambda: self.metric("tollgate_aggregator_requests_total") - before >= 5200, self.stack.aggregator)
        polls = [self.open("GET", "/v1/reclaims?wait=5m", self.stack.tokens["viewer"]) for _ in range(TENANT_POLLS)]
        wait_for("as many wait as may", lambda: self.metric("tollgate_aggregator_http_kept ") == TENANT_POLLS, self.stack.aggregator)
        self.assertFalse(any(poll.answered() for poll in polls))

    def test_polls_of_a_tenant_have_a_limit_and_each_that_ends_makes_room(self):
        viewer, other = self.stack.tokens["viewer"], self.stack.tokens["globex"]
        polls = [self.open("GET", "/v1/reclaims?wait=5m", viewer) for _ in range(TENANT_POLLS + 20)]
        wait_for("20 are refused", lambda: sum(p.answered() for p in polls) >= 20, self.stack.aggregator)
        for poll in polls:
            if poll.answered():
                reply = poll.reply()
                self.assertEqual((reply.status, reply.json()["limit"]), (429, "polls-per-caller"))
                self.assertIn("Retry-After", reply.headers)
        # its own decisions and everybody else's go on, polls too
        self.assertEqual(self.decide("acme", workspace="acme/prod").status, 200)
        self.others_are_served()
        theirs = self.open("GET", "/v1/reclaims?wait=5m", other)
        wait_for("it waits", lambda: self.metric("tollgate_aggregator_http_kept ") == TENANT_POLLS + 1, self.stack.aggregator)
        for poll in polls:
            poll.close()
        wait_for("one place is taken", lambda: self.metric("tollgate_aggregator_http_kept ") == 1, self.stack.aggregator)
        self.assertFalse(theirs.answered())

    # ---- reports ----

    def heavy_reads(self, paths, n):
        viewer = self.stack.tokens["viewer"]
        return [self.open("GET", paths[i % len(paths)], viewer) for i in range(n)]

    def test_reports_of_one_tenant_keep_nobody_waiting(self):
        for path in REPORTS:
            with self.subTest(path), Locked(self.stack, READ_TABLES) as lock:
                reads = self.heavy_reads([path], 30)
                lock.wait_for_readers(1)
                self.others_are_served()
                # also what the same tenant asks for beside its reports
                self.assertEqual(self.stack.call("GET", "/v1/whoami", role="acme").status, 200)
                wait_for("all but those that wait are refused", lambda r=reads: sum(x.answered() for x in r) >= 29 - REPORTS_WAITING, self.stack.aggregator)
                refused = [read for read in reads if read.answered()]
                for reply in (read.reply() for read in refused):
                    self.assertEqual((reply.status, reply.json()["limit"]), (429, "reports-per-caller"))
                    self.assertIn("Retry-After", reply.headers)
            for read in reads:
                if read not in refused:
                    self.assertEqual(read.reply().status, 200)

    def test_reports_and_dry_runs_give_way_to_everything_else(self):
        tasks = f"/proc/{self.stack.aggregator.child.pid}/task"
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        nices = [os.getpriority(os.PRIO_PROCESS, int(tid)) for tid in os.listdir(tasks)]
        self.assertIn(mine, nices)
        self.assertGreater(sum(nice > mine for nice in nices), 1, nices)

    def test_how_far_a_close_has_come_is_told_while_the_same_token_reads_reports(self):
        admin = self.stack.tokens["admin"]
        with Locked(self.stack, READ_TABLES) as lock:
            reads = [self.open("GET", "/v1/history", admin) for _ in range(3)]
            lock.wait_for_readers(2)
            wait_for("the third", lambda: self.metric('tollgate_aggregator_http_waiting{workers="others"}') == 1, self.stack.aggregator)
            asked = self.open("GET", "/v1/periods/2001-01/close", admin)
            wait_for("an answer", asked.answered, self.stack.aggregator)
            self.assertEqual(asked.reply().status, 404)  # nobody has asked for it to be closed
            self.assertFalse(any(read.answered() for read in reads))

    def test_reports_whose_clients_went_are_not_made(self):
        with Locked(self.stack, READ_TABLES) as lock:
            reads = self.heavy_reads(["/v1/history"], 1)
            lock.wait_for_readers(1)
            reads += self.heavy_reads(["/v1/history"], REPORTS_WAITING)
            waiting = 'tollgate_aggregator_http_waiting{workers="others"}'
            wait_for("they wait", lambda: self.metric(waiting) == REPORTS_WAITING, self.stack.aggregator)
            gone = self.metric("tollgate_aggregator_http_abandoned_total")
            for read in reads[1:]:
                read.close()
            # while the first is still being made
            wait_for("none waits", lambda: self.metric(waiting) == 0, self.stack.aggregator)
            wait_for("all are counted", lambda: self.metric("tollgate_aggregator_http_abandoned_total") - gone == REPORTS_WAITING, self.stack.aggregator)
            self.assertFalse(reads[0].answered())
        self.assertEqual(reads[0].reply().status, 200)

    def test_a_report_that_is_being_made_ends_when_its_client_goes(self):
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'tollgate-aggregator'"
        with Locked(self.stack, READ_TABLES) as lock:
            first = self.heavy_reads(["/v1/history"], 1)[0]
            lock.wait_for_readers(1)
            second = self.heavy_reads(["/v1/history"], 1)[0]
            wait_for("it waits", lambda: self.metric('tollgate_aggregator_http_waiting{workers="others"}') == 1, self.stack.aggregator)
            (pid,) = self.stack.sql(blocked.replace("count(*)", "pid"))[0]
            first.close()
            # its turn comes while the lock is still held: another session waits for that, and the first one's ends
            wait_for("the second", lambda: self.metric('tollgate_aggregator_http_waiting{workers="others"}') == 0, self.stack.aggregator)
            wait_for("the first ends", lambda: self.stack.sql(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}") == [["0"]], self.stack.aggregator)
            self.assertFalse(second.answered())
        self.assertEqual(second.reply().status, 200)


if __name__ == "__main__":
    unittest.main()
