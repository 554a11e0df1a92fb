"""What comes in and what goes out: requests that two readers may read differently, text that shows itself otherwise than it is, answers
that tell of the database or of another tenant, tokens that should have ended, an exporter that anybody can read.

Each test is against the programs, as somebody outside meets them."""

import contextlib
import csv
import datetime
import hashlib
import io
import json
import os
import re
import socket
import subprocess
import tempfile
import time
import unittest

from tests.integration.test_documents import MONTH, fill
from tests.support.daemons.stack import BUILD, WAIT_S, Process, Stack, answers, free_port, program, query, request, wait_for
from tests.support.store import ledger

POLICY = """
version: 1
cluster: test
tenants:
  - {name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}
  - {name: globex, workspaces: [{name: research, rules: [{namespace: globex}]}]}
nodes: [{name: n1, shared: true, model: H100-80GB, gpus: 1}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""
# A user of a web configuration; the hash is of "open sesame".
HASH = "$2y$04$abcdefghijklmnopqrstuu/LVz6MZlItEy42I2juLihZ66HnQx/cy"
SCENARIO = {"name": "n1", "gpus": [{"model": "NVIDIA H100 80GB HBM3", "uuid": "GPU-00000000-0000-0000-0000-000000000001", "memory_mib": 81559}], "processes": []}


def raw(port, data, patience=WAIT_S):
    """Everything that comes back for these bytes, until the server closes or stops talking."""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as s:
        s.sendall(data)
        got = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while piece := s.recv(65536):
                got += piece
    return got


def statuses(got):
    return [int(n) for n in re.findall(rb"(?m)^HTTP/1\.1 (\d{3}) ", got)]


def routes():
    printed = subprocess.run([program("tollgate-aggregator"), "--print-routes"], capture_output=True, text=True, check=True).stdout
    return [line.split(" ", 3)[:2] for line in printed.splitlines()]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack())
        s.apply(POLICY)
        s.token("viewer of acme", role="viewer", tenant="acme")
        s.token("boss of acme", role="tenant-admin", tenant="acme")
        s.token("node n1", role="node", node="n1")
        s.token("scheduler", role="scheduler")


# ---- F13: framing and headers ------------------------------------------------------------------------------------------


HOST = b"Host: t\r\n"
CLOSE = b"Connection: close\r\n"
# What libmicrohttpd takes and a proxy in front may read otherwise.
AMBIGUOUS = {
    "a bare LF ends the request line": b"GET /healthz HTTP/1.1\n" + HOST + CLOSE + b"\r\n",
    "a bare LF ends a header": b"GET /healthz HTTP/1.1\r\nA: b\n" + HOST + CLOSE + b"\r\n",
    "a NUL in the target": b"GET /healthz\0 HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
    "a NUL behind which another path begins": b"GET /healthz\0/v1/tokens HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
    "a NUL in the method": b"GET\0X /healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
    "a NUL in a value": b"GET /healthz HTTP/1.1\r\nA: b\0c\r\n" + HOST + CLOSE + b"\r\n",
    "a bare CR in a value": b"GET /healthz HTTP/1.1\r\nA: b\rX: y\r\n" + HOST + CLOSE + b"\r\n",
    "a bare CR in the target": b"GET /healthz\r HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
    "two Hosts": b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n" + CLOSE + b"\r\n",
    "two Authorizations": b"GET /healthz HTTP/1.1\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n" + HOST + CLOSE + b"\r\n",
    "a folded header": b"GET /healthz HTTP/1.1\r\nA: b\r\n c\r\n" + HOST + CLOSE + b"\r\n",
    "a space before the colon": b"GET /healthz HTTP/1.1\r\nA : b\r\n" + HOST + CLOSE + b"\r\n",
    "two spaces in the request line": b"GET  /healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
    "a length and chunks": b"POST /v1/join HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n" + HOST + CLOSE + b"\r\n0\r\n\r\n",
    "two lengths that differ": b"POST /v1/join HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n" + HOST + CLOSE + b"\r\n{}",
}
CHUNKED = {
    "a sound chunked body": b"2\r\n{}\r\n0\r\n\r\n",
    "a bare LF behind a chunk's size": b"2\n{}\r\n0\r\n\r\n",
    "a bare LF in a chunk's extension": b"2;a=\nb\r\n{}\r\n0\r\n\r\n",
    "a bare LF behind the last chunk": b"2\r\n{}\r\n0\n\r\n",
}
HEADERS = {
    "X-Content-Type-Options": lambda v: v == "nosniff",
    "Content-Security-Policy": lambda v: v is not None and v.startswith("default-src 'none'") and "script-src" not in v and "frame-ancestors 'none'" in v,
    "Cache-Control": lambda v: v in ("no-store", "private, no-cache"),
}


class Framing(Case):
    """F13."""

    def ports(self):
        return {"aggregator": self.stack.port, "exporter": self.exporter.port}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.exporter = cls.stack.exporter("n1", SCENARIO)

    def test_what_two_readers_may_read_differently_is_refused(self):
        for daemon, port in self.ports().items():
            for name, data in AMBIGUOUS.items():
                with self.subTest(daemon=daemon, case=name):
                    got = statuses(raw(port, data))
                    self.assertEqual(got[:1], [400])
                    self.assertNotIn(200, got)

    def test_a_chunked_body_is_refused_and_nothing_behind_it_is_answered(self):
        behind = b"GET /healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"
        for daemon, port in self.ports().items():
            for name, body in CHUNKED.items():
                with self.subTest(daemon=daemon, case=name):
                    head = b"POST /v1/join HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HOST + b"\r\n"
                    self.assertEqual(statuses(raw(port, head + body + behind)), [411])

    def check(self, what, reply):
        for name, sound in HEADERS.items():
            self.assertTrue(sound(reply.headers[name]), f"{what}: {reply.status} {name}: {reply.headers[name]}")
            self.assertEqual(len(reply.headers.get_all(name)), 1)

    def test_every_reply_says_what_may_be_done_with_it(self):
        s = self.stack
        for method, path in routes():
            for role in ("admin", "viewer of acme", "node n1", None):
                self.check(f"{method} {path} by {role}", s.call(method, path, b"{}" if method in ("POST", "PUT") else None, role=role))
        for path in ("/", "/metrics", "/healthz", "/readyz", "/nowhere"):
            self.check(f"exporter {path}", request("GET", self.exporter.url + path))
        wait_for("the first usage of the month", lambda: s.call("GET", "/v1/reports/current.csv").status == 200, self.exporter)
        html = s.call("GET", "/v1/reports/current.html")
        self.check("an invoice", html)
        # an entity tag may be kept and asked about; nothing else is kept by anybody
        kept = s.call("GET", "/v1/reports/current.csv")
        self.assertEqual(kept.headers["Cache-Control"], "private, no-cache")
        same = s.call("GET", "/v1/reports/current.csv", headers={"If-None-Match": kept.headers["ETag"]})
        self.assertEqual(same.status, 304)
        self.check("not modified", same)
        self.assertEqual(s.call("GET", "/v1/tokens").headers["Cache-Control"], "no-store")


# ---- F9: no answer tells of the database -------------------------------------------------------------------------------


class Telling(Case):
    """Looks at what an answer tells."""

    def secrets(self):
        s = self.stack
        return [s.pg.socket_dir, "port 5432", "dbname", "SQLSTATE", "libpq", "psql", 'database "', "PostgreSQL", "server closed", "connection to"]

    def sound(self, what, reply):
        text = reply.body.decode("utf-8", "surrogateescape")
        for word in self.secrets():
            self.assertNotIn(word, text, f"{what}: {reply.status} {text[:300]}")
        self.assertIsNone(re.search(r"\(\d[0-9A-Z]{4}\)", text), f"{what} has an SQLSTATE: {text[:300]}")
        self.assertNotIn("\udcff", text)


class Details(Telling):
    """F9."""

    BAD = ("%ff", "%c0%80", "%ed%a0%80", "a%0ab", "%e2%80%ae", "%00")

    def test_bad_bytes_in_a_path_are_404_and_in_a_query_400(self):
        s = self.stack
        for method, path in routes():
            body = b"{}" if method in ("POST", "PUT") else None
            for bad in self.BAD:
                if path.endswith("/"):
                    for tail in (f"{bad}.csv", f"2026-11{bad}.csv", f"2026-11/lines/{bad}", f"{bad}/check", f"7/{bad}"):
                        reply = s.call(method, path + tail, body)
                        self.sound(f"{method} {path}{tail}", reply)
                        self.assertIn(reply.status, (404,) if bad != "%00" else (400,), f"{method} {path}{tail}: {reply.text()}")
                for name in ("tenant", "node", "period", "from", "limit", "workspace", "group_by", "after", "nonsense"):
                    reply = s.call(method, f"{path}{'999999999' if path.endswith('/') else ''}?{name}={bad}", body)
                    self.sound(f"{method} {path}?{name}={bad}", reply)
                    self.assertEqual(reply.status, 400, f"{method} {path}?{name}={bad}: {reply.text()}")

    def test_the_path_of_the_review(self):
        for path in ("/v1/reports/%ff.csv", "/v1/reports/%ff.json", "/v1/reports/2026-11/lines/%ff"):
            reply = self.stack.call("GET", path)
            self.assertEqual(reply.status, 404, reply.text())
            self.sound(path, reply)


class Away(Telling):
    """F9, with a database that is not there."""

    def test_no_answer_tells_where_the_database_is_and_the_log_does(self):
        s = self.stack
        where = s.pg.socket_dir
        s.pg.stop()
        try:
            for method, path in routes():
                for role in ("admin", "node n1", None):
                    body = b"{}" if method in ("POST", "PUT") else None
                    self.sound(f"{method} {path} by {role}", s.call(method, path + ("999999999" if path.endswith("/") else ""), body, role=role))
            reply = s.call("GET", "/v1/tenants", headers={"X-Request-Id": "while-it-is-away"})
            self.assertEqual(reply.status, 503)
            self.assertEqual(reply.json()["request_id"], "while-it-is-away")
            ready = wait_for("the probe to notice", lambda: (r := s.call("GET", "/readyz", role=None)).status == 503 and r)
            self.sound("/readyz", ready)
            self.assertNotEqual(ready.json()["detail"], "")
        finally:
            s.pg.start()
        s.wait_ready()
        # for the operator: the same request, with the server's words
        with open(s.aggregator.log, encoding="utf-8") as f:
            line = next(line for line in f if "id=while-it-is-away" in line)
        self.assertIn(where, line)
        self.assertIn("status=503", line)


# ---- F10: text that shows itself otherwise than it is -------------------------------------------------------------------

# U+061C, marks, embeddings and overrides, isolates, separators; controls C0 and C1.
DECEIVING = ("\u061c", "\u200e", "\u200f", "\u202a", "\u202e", "\u2066", "\u2069", "\u2028", "\x1b", "\x07", "\x7f", "\x85", "\n")


class Entrances(Case):
    """F10: every entrance of text, with characters that deceive and with the same text without them."""

    def event(self, **more):
        data = {"tenant": "acme", "workspace": "training", "gb_hours": "1"} | more.pop("data", {})
        at = datetime.datetime.now(datetime.UTC).isoformat()
        return {"specversion": "1.0", "id": "1", "source": "/test", "type": "tollgate.storage.v1", "time": at, "data": data} | more

    def entrances(self, text):
        """name: method, path, body, who; each has the text in one field."""
        j = json.dumps
        quoted = j(text)  # YAML's double quotes take JSON's escapes
        asked = {"request_id": "r1", "workspace": "acme/training", "gpus": 1}
        soon = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"node": "n1", "boot_id": "abcd0000-0000-0000-0000-000000000001", "boot_ns": 1000, "wall_ns": time.time_ns(), "interval_ns": 10**9, "simulated": True,
                  "left_out": 0}  # fmt: skip
        gpu = {"uuid": "GPU-1", "model": "NVIDIA H100 80GB HBM3", "index": 0, "healthy": True, "reason": "", "xid": 0, "sharing": "exclusive", "replicas": 1,
               "instances": []}  # fmt: skip
        holder = {"kind": "pod", "namespace": "acme", "pod": "p", "pod_uid": "u", "container": "main", "user": "", "uid": -1, "device": "GPU-1", "replica": -1,
                  "allocated": True, "holds": True, "active": True}  # fmt: skip
        return {
            "a tenant's name in a policy": ("PUT", "/v1/policy?dry_run=1", POLICY.replace("name: acme", f"name: {quoted}", 1), "admin"),
            "a display name in a policy": ("PUT", "/v1/policy?dry_run=1", POLICY.replace("name: acme,", f"name: acme, display_name: {quoted},", 1), "admin"),
            "a cost center in a policy": ("PUT", "/v1/policy?dry_run=1", POLICY.replace("name: acme,", f"name: acme, cost_center: {quoted},", 1), "admin"),
            "a node in a policy": ("PUT", "/v1/policy?dry_run=1", POLICY.replace("name: n1", f"name: {quoted}"), "admin"),
            "a price version in a policy": ("PUT", "/v1/policy?dry_run=1", POLICY.replace('version: "1"', f"version: {quoted}"), "admin"),
            "a token's description": ("POST", "/v1/tokens", j({"role": "billing", "description": text}), "admin"),
            "a token's node": ("POST", "/v1/tokens", j({"role": "node", "node": text}), "admin"),
            "a join token's description": ("POST", "/v1/join-tokens", j({"description": text}), "admin"),
            "a join token's node": ("POST", "/v1/join-tokens", j({"node": text}), "admin"),
            "a request id": ("POST", "/v1/decisions?dry_run=1", j(asked | {"request_id": text}), "admin"),
            "a request's pod": ("POST", "/v1/decisions?dry_run=1", j(asked | {"workload": {"namespace": "acme", "pod": text}}), "admin"),
            "a request's model": ("POST", "/v1/decisions?dry_run=1", j(asked | {"gpu_model": text}), "admin"),
            "a reason of an adjustment": ("POST", "/v1/adjustments", j({"tenant": "acme", "amount": "1.00", "currency": "EUR", "reason": text}), "admin"),
            "a reason of an exception": ("POST", "/v1/exceptions", j({"workspace": "acme/training", "gpu_model": "H100", "kind": "limit", "gpus": 1, "until": soon, "reason": text}), "admin"),
            "a reason of a close": ("POST", "/v1/periods/1999-01/close", j({"reason": text}), "admin"),
            "a reason of a release": ("POST", "/v1/quarantine/1/1/release", j({"reason": text}), "admin"),
            "an event's id": ("POST", "/v1/events", j(self.event(id=text)), "admin"),
            "an event's source": ("POST", "/v1/events", j(self.event(source=text)), "admin"),
            "an event's workspace": ("POST", "/v1/events", j(self.event(data={"workspace": text})), "admin"),
            "an event's SKU": ("POST", "/v1/events", j(self.event(data={"sku": text})), "admin"),
            "a name in a body": ("POST", "/v1/tokens", j({"role": "billing", text: "x"}), "admin"),
            "a status' GPU": ("POST", "/v1/status", j(status | {"gpus": [gpu | {"uuid": text, "holders": []}]}), "node n1"),
            "a status' holder": ("POST", "/v1/status", j(status | {"gpus": [gpu | {"holders": [holder | {"pod": text}]}]}), "node n1"),
            "a query": ("GET", "/v1/usage" + query(tenant=text), None, "admin"),
        }  # fmt: skip

    def call(self, method, path, body, role):
        headers = {"Content-Type": "application/cloudevents+json"} if path == "/v1/events" else {}
        return self.stack.call(method, path, body.encode() if body is not None else None, role=role, headers=headers)

    def test_characters_that_deceive_are_refused_where_they_enter(self):
        let_in = []
        # without such a character none of these is malformed: they are refused, if at all, for what they name
        for name, what in self.entrances("ab").items():
            reply = self.call(*what)
            self.assertNotIn("control", reply.text(), name)
            if name != "a name in a body":
                self.assertNotEqual(reply.status, 400, f"{name}: {reply.text()}")
        for sign in DECEIVING:
            for name, what in self.entrances(f"a{sign}b").items():
                reply = self.call(*what)
                if reply.status not in (400, 404):
                    let_in.append((name, f"U+{ord(sign):04X}", reply.status, reply.text()[:120]))
                elif any(s in reply.text() for s in DECEIVING if s != "\n"):
                    let_in.append((name, f"U+{ord(sign):04X}", "is repeated"))
        self.assertEqual(let_in, [])

    def test_letters_of_any_script_are_let_in(self):
        for text in ("ä", "שלום", "数据", "می\u200cخواهم"):
            for name in ("a display name in a policy", "a token's description"):
                reply = self.call(*self.entrances(text)[name])
                self.assertIn(reply.status, (200, 201), f"{name}: {reply.text()}")

    def test_nodes_are_named_as_hosts_are(self):
        """Two names that look the same in a list that an operator approves from are two nodes."""
        for text in ("honest ", "hоnеst", "honest\u200b", "a/../b", ".hidden", "-o"):
            reply = self.call(*self.entrances(text)["a token's node"])
            self.assertEqual(reply.status, 400, (text, reply.text()))
            self.assertIn("is not the name of a node", reply.text())

    def test_a_comment_of_a_policy_cannot_show_a_reviewer_another_file(self):
        for sign in "\u202e\u2066":
            reply = self.stack.call("PUT", "/v1/policy?dry_run=1", (POLICY + f"# limit {sign} tnemmoc\n").encode())
            self.assertEqual(reply.status, 400, reply.text())
            self.assertIn("policy", reply.json()["detail"])
            self.assertRegex(reply.json()["detail"], rf":9: .*U\+{ord(sign):04X}")


# ---- F8: what was lent, and to whom; F10: documents ------------------------------------------------------------------------


class Loans(unittest.TestCase):
    """F8: acme lends to globex; n1 is held by both. A month that is over, open and then closed."""

    FORMATS = ("csv", "csv?excel=1", "json", "focus.csv", "html")

    @classmethod
    def setUpClass(cls):
        cls.s = cls.enterClassContext(Stack(zone="Europe/Berlin", options=["--rollup-interval", "100ms"]))
        fill(cls.s)
        cls.s.token("globex", role="viewer", tenant="globex")

    def report(self, name, role, **more):
        name, _, flags = name.partition("?")
        return self.s.get(f"/v1/reports/{MONTH}.{name}?{flags}" + "".join(f"&{k}={v}" for k, v in more.items()), role)

    def check_documents(self):
        for name in self.FORMATS:
            with self.subTest(document=name):
                own, all_ = self.report(name, "acme"), self.report(name, "admin")
                self.assertEqual(re.findall(".{30}globex.{30}", own.text()), [])
                self.assertTrue("another tenant" in own.text())
                # whoever asks for it: what the operator hands on to acme is acme's
                self.assertEqual(self.report(name, "admin", tenant="acme").body, own.body)
                self.assertTrue("lent to globex" in all_.text())
                self.assertEqual(re.findall(".{30}another tenant.{30}", all_.text()), [])
                for reply, role in ((own, "acme"), (all_, "admin")):
                    manifest = self.report(name, role, manifest=1).json()
                    self.assertEqual(manifest["sha256"], hashlib.sha256(reply.body).hexdigest())
                    self.assertEqual(json.loads(reply.headers["Tollgate-Manifest"])["sha256"], manifest["sha256"])
                self.assertTrue("globex" in self.report(name, "globex").text())
        mine = list(csv.DictReader(io.StringIO(self.report("csv", "acme").text(), newline="")))
        theirs = [r for r in csv.DictReader(io.StringIO(self.report("csv", "admin").text(), newline="")) if r["tenant"] == "acme"]
        loans = [(m, t) for m, t in zip(mine, theirs, strict=True) if m != t]
        self.assertTrue(loans, "nothing was lent")
        for m, t in loans:
            self.assertEqual((m["counterparty"], t["counterparty"]), ("", "globex"))
            self.assertEqual(m["description"], t["description"].replace("lent to globex", "lent to another tenant"))
            self.assertEqual({k for k in m if m[k] != t[k]}, {"counterparty", "description"})
            for suffix in ("", ".json"):
                self.assertNotIn("globex", self.s.get(f"/v1/reports/{MONTH}/lines/{m['line_id']}{suffix}", "acme").text())

    def test_a_lender_hears_of_another_tenant_and_the_operator_of_which(self):
        self.check_documents()
        for path in ("/v1/usage?group_by=tenant,workspace,state&from=2020-01-01", "/v1/quota", "/v1/status", "/v1/budgets", "/v1/adjustments", "/v1/refunds", "/v1/history", "/metrics"):
            self.assertEqual(re.findall(".{30}globex.{30}", self.s.get(path, "acme").text()), [], path)
        done = self.s.cli("close", MONTH, "--yes", "--reason", "a test") if "--yes" in self.s.cli("close", "--help").stdout else self.s.cli("close", MONTH, "--reason", "a test")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        wait_for("the month to be closed", lambda: self.s.sql(f"select status from period where month = '{MONTH}'") == [["closed"]])
        # as it was stored, and as it follows from what it was made of
        self.check_documents()
        proof = self.s.get(f"/v1/periods/{MONTH}/recompute").json()
        self.assertEqual((proof["identical"], proof["differences"]), (True, []))
        before = {(name, role): self.report(name, role).body for name in self.FORMATS for role in ("acme", "admin")}
        self.assertEqual({k: self.report(*k).body for k in before}, before)


class Formulas(unittest.TestCase):
    """F10: a text that a spreadsheet would run is text in every document; a quantity stays a quantity."""

    def test_no_document_has_a_cell_that_runs(self):
        s = self.enterContext(Stack(options=["--rollup-interval", "100ms", "--organisation", "=cmd|calc", "--provider-name", "@SUM(1)"]))
        s.apply(POLICY.replace("name: acme,", 'name: acme, cost_center: "=HYPERLINK(1)",'))
        s.token("node n1", role="node", node="n1")
        now = time.time_ns() // (60 * 10**9) * (60 * 10**9)
        batch = {"node": "n1", "boot_id": "ab" * 16, "epoch": 1, "seq": 1, "flags": 1, "from_ns": now - 60 * 10**9, "to_ns": now,
                 "devices": [{"id": 1, "uuid": "=GPU", "model": "NVIDIA H100 80GB HBM3", "index": 0}],
                 "holders": [{"id": 1, "kind": 1, "ns": "acme", "pod": "+pod", "pod_uid": "u", "container": "@c"}],
                 "records": [[1, 1, 1, 1, 2, 5040, now - 60 * 10**9, 60 * 10**9, 60 * 10**9, 0, 0, 0, 0, 360_000, 1]]}  # fmt: skip
        reply = s.call("POST", "/v1/ingest", ledger.frames([batch]), role="node n1")
        self.assertEqual((reply.status, reply.json().get("quarantined")), (200, 0), reply.text())
        credit = {"tenant": "acme", "workspace": "training", "amount": "-1.00", "currency": "EUR", "reason": "=1+1"}
        self.assertEqual(s.call("POST", "/v1/adjustments", json.dumps(credit).encode()).status, 201)
        line = next(r for r in csv.DictReader(io.StringIO(s.get("/v1/reports/current.csv").text(), newline="")) if r["charge_type"] == "usage")
        documents = {path: s.get(path).text() for path in (
            "/v1/reports/current.csv", "/v1/reports/current.csv?tenant=acme", "/v1/reports/current.focus.csv", "/v1/reports/current.focus-periods.csv",
            f"/v1/reports/current/lines/{line['line_id']}", "/v1/usage?format=csv&group_by=tenant,workspace,cluster,user,workload,gpu", "/v1/reconciliation?month=current&format=csv",
            "/v1/refunds?month=current&format=csv")}  # fmt: skip
        for command in (["usage", "--by", "workspace,workload,gpu"], ["get", "workspaces"], ["get", "nodes"], ["credit", "list"]):
            done = s.cli(*command, "-o", "csv")
            if done.returncode == 0:
                documents["tollgate " + " ".join(command)] = done.stdout
        seen = set()
        for name, text in documents.items():
            for row in csv.DictReader(io.StringIO(text, newline="")):
                for column, cell in row.items():
                    if cell and cell[0] in "=+-@\t\r":
                        # only numbers begin so
                        self.assertRegex(cell, r"^-\d+(\.\d+)?$", f"{name}: {column}")
                    if cell and cell[0] == "'":
                        self.assertNotRegex(cell, r"^'-?\d+(\.\d+)?$", f"{name}: {column} is a number")
                        seen.add((name, column))
        self.assertTrue({("/v1/reports/current.focus.csv", c) for c in ("BillingAccountName", "ProviderName", "x_CostCenter")} <= seen, sorted(seen))
        self.assertIn(("/v1/reports/current.focus-periods.csv", "InvoiceIssuerName"), seen)
        self.assertIn(("/v1/reports/current.csv", "cost_center"), seen)
        self.assertGreaterEqual(len({name for name, _ in seen}), 6, sorted(seen))


# ---- F11, F12: the exporter, and tokens that end ------------------------------------------------------------------------


class Exporter(unittest.TestCase):
    """F11."""

    def setUp(self):
        self.dir = self.enterContext(tempfile.TemporaryDirectory(prefix="tollgate-doors-"))

    def web(self, text):
        path = os.path.join(self.dir, "web.yml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def check(self, *options):
        return subprocess.run([program("tollgate-exporter"), "-n", "--node", "n1", *options], capture_output=True, text=True, timeout=WAIT_S)

    def test_it_listens_on_this_host_alone_unless_told_otherwise(self):
        printed = subprocess.run([program("tollgate-exporter"), "--print-config"], capture_output=True, text=True, check=True).stdout
        self.assertIn('listen: "127.0.0.1:9401"', printed)

    def test_an_address_that_others_reach_needs_authentication(self):
        users, none = f'basic_auth_users: {{ada: "{HASH}"}}\n', "tls_server_config: {cert_file: c, key_file: k}\n"
        clients = "tls_server_config: {cert_file: c, key_file: k, client_ca_file: a, client_auth_type: %s}\n"
        for address in ("0.0.0.0:9401", "[::]:9401", "192.0.2.1:9401", "gn1.example:9401", "127.example:9401"):
            with self.subTest(address=address):
                for options in ((), ("--web-config-file", self.web(none)), ("--web-config-file", self.web(clients % "VerifyClientCertIfGiven"))):
                    done = self.check("--listen", address, *options)
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertIn("listen", done.stderr)
                    self.assertIn("web-config-file", done.stderr)
                for text in (users, clients % "RequireAndVerifyClientCert"):
                    self.assertEqual(self.check("--listen", address, "--web-config-file", self.web(text)).returncode, 0)
        for address in ("127.0.0.1:9401", "127.8.8.8:0", "[::1]:9401", "localhost:9401"):
            self.assertEqual(self.check("--listen", address).returncode, 0)

    def test_a_probe_hears_yes_or_no_and_the_rest_needs_the_password(self):
        for sub in ("proc", "pods"):
            os.mkdir(os.path.join(self.dir, sub))
        scenario = os.path.join(self.dir, "scenario.yaml")
        with open(scenario, "w", encoding="utf-8") as f:
            json.dump(SCENARIO, f)
        env = {"TOLLGATE_SIM_SCENARIO": scenario, "TOLLGATE_SIM_PROC": f"{self.dir}/proc", "TOLLGATE_SIM_PODS": f"{self.dir}/pods"}
        port = free_port()
        options = ["--node", "n1", "--listen", f"0.0.0.0:{port}", "--nvml-library", f"{BUILD}/sim/libnvidia-ml.so.1", "--proc-root", f"{self.dir}/proc",
                   "--pods-root", f"{self.dir}/pods", "--spool-dir", f"{self.dir}/spool"]  # fmt: skip
        done = subprocess.run([program("tollgate-exporter"), *options], capture_output=True, text=True, timeout=WAIT_S, env={**os.environ, **env})
        self.assertEqual(done.returncode, 2, done.stderr)
        e = Process([program("tollgate-exporter"), *options, "--web-config-file", self.web(f'basic_auth_users: {{ada: "{HASH}"}}\n')], f"{self.dir}/log", env)
        self.addCleanup(e.kill9)
        url = f"http://127.0.0.1:{port}"
        wait_for("/readyz", lambda: answers(url + "/readyz"), e)
        self.assertEqual(request("GET", url + "/healthz").text(), "ok\n")
        for path in ("/metrics", "/"):
            self.assertEqual(request("GET", url + path).status, 401)
            self.assertNotIn("GPU-0000", request("GET", url + path).text())


class Enrolment(Case):
    """F12: a node that enrols again, and an exporter whose token is refused."""

    def join(self, node, named=True):
        s = self.stack
        made = s.call("POST", "/v1/join-tokens", json.dumps({"node": node} if named else {}).encode()).json()
        return request("POST", s.url + "/v1/join", json.dumps({"node": node}).encode(), made["join_token"])

    def works(self, token):
        return request("GET", self.stack.url + "/v1/whoami", token=token).status

    def test_a_node_that_enrols_again_ends_its_old_token(self):
        first = self.join("again").json()
        self.assertEqual(self.works(first["token"]), 200)
        made = self.stack.call("POST", "/v1/tokens", json.dumps({"role": "node", "node": "again"}).encode()).json()
        other = self.join("another").json()
        second = self.join("again").json()
        self.assertEqual([self.works(t["token"]) for t in (first, made, second, other)], [401, 401, 200, 200])
        # nobody has to look for it: the log says which, and why
        entries = self.stack.get("/v1/audit" + query(action="token.revoke", limit=10)).json()["entries"]
        ended = {e["subject"]: e for e in entries if e["reason"] == "the node enrolled again"}
        self.assertEqual(set(ended), {f"token {first['id']}", f"token {made['id']}"})
        for e in ended.values():
            self.assertRegex(e["actor"], r"^join token #\d+$")
            self.assertIn("revoked", e["after"])
        # a join token for no node in particular still takes no name that is in use
        refused = self.join("again", named=False)
        self.assertEqual(refused.status, 409)
        self.assertEqual(self.works(second["token"]), 200)

    def test_an_exporter_whose_token_is_refused_is_not_ready_until_it_has_another(self):
        s = self.stack
        e = s.exporter("n2", SCENARIO | {"name": "n2"}, "--status-interval", "1s")
        ready = lambda: request("GET", e.url + "/readyz")  # noqa: E731
        wait_for("readiness", lambda: ready().status == 200, e)
        row = next(t for t in s.get("/v1/tokens?node=n2").json()["tokens"] if t["status"] == "active")
        self.assertEqual(s.call("DELETE", f"/v1/tokens/{row['id']}").status, 200)
        wait_for("no readiness", lambda: ready().status == 503, e)
        self.assertIn("token", ready().json()["detail"])
        self.assertIn("401", ready().json()["detail"])
        self.assertEqual(request("GET", e.url + "/healthz").status, 200)
        made = s.call("POST", "/v1/tokens", json.dumps({"role": "node", "node": "n2"}).encode()).json()
        with open(os.path.join(s.dir, "n2.token"), "w", encoding="ascii") as f:
            f.write(made["token"])
        wait_for("readiness with the new token", lambda: ready().status == 200, e)


if __name__ == "__main__":
    unittest.main()
