"""GET /v1/openapi.json: its form, that it has the routes of the program and no others, and that real requests and replies match it.

Every request here goes through one recorder, which holds the request and the reply against the document. The validator knows the
part of JSON Schema that the document uses and fails on any other, and on members that the document does not name."""

import gzip
import json
import re
import subprocess
import time
import unittest
import urllib.parse

from tests.support.daemons import stack
from tests.support.store import ledger

POLICY = """
version: 1
cluster: test
tenants:
  - {name: acme, display_name: Acme, cost_center: "1", sla: {owed_wait: 1m, delivered: 99}, budget: {amount: "10.00", currency: EUR}, workspaces: [{name: training, rules: [{namespace: acme}]}]}
nodes: [{name: n1, shared: true}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""
SCENARIO = {
    "name": "openapi",
    "gpus": [{"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559}],
    "processes": [{"pid": 4001, "gpu": 0, "sm": 80, "memory_mib": 1024, "pod": {"namespace": "acme", "name": "a"}}],
}
MINUTE = 60_000_000_000
BATCH = {
    "node": "n2", "boot_id": "00" * 16, "epoch": 100, "seq": 1, "flags": 1,
    "from_ns": 29_000_000 * MINUTE, "to_ns": 29_000_001 * MINUTE,
    "devices": [{"id": 1, "uuid": "GPU-n2-0", "model": "NVIDIA H100 80GB HBM3", "index": 0}], "holders": [],
    "records": [[1, 0, 2, 1, 0, 5040, 29_000_000 * MINUTE, MINUTE, MINUTE, 0, 0, 0, 0, 0, 1]],
}  # fmt: skip
EVENT = {
    "specversion": "1.0", "id": "1", "source": "/ceph", "type": "tollgate.storage.v1", "traceparent": "00-x",
    "data": {"tenant": "acme", "workspace": "training", "gb_hours": "12.5"},
}  # fmt: skip
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
FORMATS = {"date-time": TIME, "date": re.compile(r"\d{4}-\d\d-\d\d")}
TYPES = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}
PROBLEM = "application/problem+json"


class Document:
    def __init__(self, text):
        self.doc = json.loads(text)

    def resolve(self, node):
        while "$ref" in node:
            assert set(node) == {"$ref"} and node["$ref"].startswith("#/"), node
            target = self.doc
            for step in node["$ref"][2:].split("/"):
                target = target[step]
            node = target
        return node

    def check(self, schema, value, where):
        """Raises AssertionError with the place of the first difference."""
        schema = self.resolve(schema)
        unknown = set(schema) - {"type", "format", "pattern", "items", "properties", "required", "additionalProperties", "anyOf"}
        assert not unknown, f"the validator does not know {unknown}"
        if "anyOf" in schema:
            problems = []
            for one in schema["anyOf"]:
                try:
                    return self.check(one, value, where)
                except AssertionError as e:
                    problems.append(str(e))
            raise AssertionError(" or ".join(problems))
        kind = schema.get("type")
        if kind == "integer":
            assert isinstance(value, int) and not isinstance(value, bool), f"{where}: {value!r} is no integer"
        elif kind:
            assert isinstance(value, TYPES[kind]), f"{where}: {value!r} is no {kind}"
        if kind == "string":
            for expression in (schema.get("pattern"), FORMATS[schema["format"]].pattern if "format" in schema else None):
                assert expression is None or re.fullmatch(expression, value), f"{where}: {value!r} does not match {expression}"
        if kind == "array":
            for i, one in enumerate(value):
                self.check(schema["items"], one, f"{where}[{i}]")
        if kind == "object":
            for name in schema["required"]:
                assert name in value, f"{where}: {name} is missing"
            for name, one in value.items():
                inner = schema["properties"].get(name, schema.get("additionalProperties"))
                assert inner is not None, f"{where}: {name} is not in the document"
                self.check(inner, one, f"{where}.{name}")

    def operation(self, method, path):
        for template, methods in self.doc["paths"].items():
            expression = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
            if re.fullmatch(expression, path) and method.lower() in methods:
                return template, methods[method.lower()]
        raise AssertionError(f"{method} {path} is not in the document")


class Recorder:
    def __init__(self, test_stack, document):
        self.stack, self.document, self.seen = test_stack, document, {}

    def call(self, method, path, body=None, role="admin", headers=None, wrong=False):
        """wrong: the request is meant to break the document, only the reply must keep it."""
        parts = urllib.parse.urlsplit(path)
        template, operation = self.document.operation(method, parts.path)
        where = f"{method} {path} as {role}"
        if not wrong:
            self.check_request(operation, parts.query, body, headers, where)
        reply = self.stack.call(method, path, body, role=role, headers=headers)
        self.check_reply(operation, reply, where)
        self.seen.setdefault((method, template), set()).add(reply.status)
        return reply

    def check_request(self, operation, query, body, headers, where):
        declared = {p["name"]: p for p in operation["parameters"] if p["in"] == "query"}
        for name, value in urllib.parse.parse_qsl(query):
            assert name in declared, f"{where}: the parameter {name} is not in the document"
            integer = self.document.resolve(declared[name]["schema"])["type"] == "integer"
            self.document.check(declared[name]["schema"], int(value) if integer else value, f"{where}: {name}")
        assert (body is not None) == ("requestBody" in operation), f"{where}: a body where the document has none, or the reverse"
        for media, content in operation["requestBody"]["content"].items() if body is not None else ():
            if media == "application/json" or (headers or {}).get("Content-Type") == media:
                self.document.check(content["schema"], json.loads(body), f"{where}: body")

    def check_reply(self, operation, reply, where):
        where = f"{where}: {reply.status} {reply.body[:200]!r}"
        assert str(reply.status) in operation["responses"], f"{where}: the status is not in the document"
        content = self.document.resolve(operation["responses"][str(reply.status)])["content"]
        media = reply.headers["Content-Type"].partition(";")[0]
        assert media in content, f"{where}: {media} is not in the document"
        assert (media == PROBLEM) == (reply.status >= 400), where
        if media.endswith("json"):
            body = gzip.decompress(reply.body) if reply.headers.get("Content-Encoding") == "gzip" else reply.body
            self.document.check(content[media]["schema"], json.loads(body), where)


class OpenApi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(stack.Stack())
        cls.document = Document(s.get("/v1/openapi.json", role=None).text())
        cls.doc = cls.document.doc
        s.apply(POLICY)
        s.token("viewer", role="viewer", tenant="acme")
        s.token("node", role="node", node="n2")
        exporter = s.exporter("n1", SCENARIO)
        stack.wait_for("the first batches", lambda: int(s.sql("select count(*) from tollgate.ingest_batch")[0][0]) > 1, exporter)
        exporter.stop()

    def test_the_document_has_the_form_of_openapi(self):
        d = self.doc
        self.assertEqual(d["openapi"], "3.1.0")
        self.assertEqual(set(d), {"openapi", "info", "paths", "components"})
        self.assertTrue(d["info"]["title"] and d["info"]["version"])
        ids = []
        for path, methods in d["paths"].items():
            for method, operation in methods.items():
                with self.subTest(operation=f"{method} {path}"):
                    self.assertIn(method, ("get", "put", "post", "delete"))
                    ids.append(operation["operationId"])
                    self.assertTrue(operation["summary"] and operation["responses"])
                    self.assertIn("security", operation)
                    for requirement in operation["security"]:
                        for scheme in requirement:
                            self.assertEqual(d["components"]["securitySchemes"][scheme]["type"], "http")
                    in_path = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
                    self.assertEqual(in_path, set(re.findall(r"\{(\w+)\}", path)))
                    for p in operation["parameters"]:
                        self.assertTrue(p["in"] == "query" or p["required"])
                        self.document.resolve(p["schema"])
                    for status, response in operation["responses"].items():
                        self.assertRegex(status, "[2-5][0-9][0-9]")
                        response = self.document.resolve(response)
                        self.assertTrue(response["description"] and response["content"])
        self.assertEqual(len(ids), len(set(ids)), "two operations have one id")

    def test_its_version_is_the_programs(self):
        printed = subprocess.run([stack.program("tollgate-aggregator"), "--version"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(self.doc["info"]["version"], printed.split()[1])

    def test_every_reference_has_a_target_and_every_schema_a_reader(self):
        text = json.dumps(self.doc)
        used = set(re.findall(r'"#/components/schemas/(\w+)"', text))
        self.assertEqual(used, set(self.doc["components"]["schemas"]))

    def test_every_route_of_the_program_is_in_it_with_its_roles(self):
        printed = subprocess.run([stack.program("tollgate-aggregator"), "--print-routes"], capture_output=True, text=True, check=True).stdout
        routes = {}
        for line in printed.splitlines():
            method, path, who, summary = line.split(" ", 3)
            routes[method, path] = set(who.split(",")), summary
        documented = {}
        for path, methods in self.doc["paths"].items():
            for method, operation in methods.items():
                who = set(operation.get("x-tollgate-roles", ["open"])) or {"join-token"}
                documented[method.upper(), path.partition("{")[0]] = who, operation["summary"]
        self.assertEqual(documented, routes)
        self.assertGreater(len(routes), 20)

    def test_all_traffic_is_as_the_document_says(self):
        r = Recorder(self.stack, self.document)
        self.good_requests(r)
        self.quarantine(r)
        self.events(r)
        self.adjustments(r)
        self.exceptions(r)
        self.periods(r)
        self.decisions(r)
        self.tokens(r)
        self.bad_requests(r)
        with self.stack.pg.frozen():
            stack.wait_for("/readyz to say no", lambda: r.call("GET", "/readyz", role=None).status == 503)
        for path, methods in self.doc["paths"].items():
            for method in methods:
                seen = r.seen.get((method.upper(), path), set())
                with self.subTest(operation=f"{method} {path}"):
                    self.assertTrue({s for s in seen if s < 300}, f"no success was recorded, only {seen}")
                    if path != "/healthz":  # has no way to fail
                        self.assertTrue({s for s in seen if s >= 400}, f"no error was recorded, only {seen}")

    def good_requests(self, r):
        for path in ("/healthz", "/readyz", "/metrics", "/v1/openapi.json"):
            r.call("GET", path, role=None)
        r.call("GET", "/metrics")
        r.call("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        for path in ("/v1/policy", "/v1/policy/progress", "/v1/policy/suggest?from=2026-11-01T00:00:00Z", "/v1/usage", "/v1/conservation", "/v1/conservation/differences", "/v1/tenants", "/v1/workspaces", "/v1/nodes", "/v1/periods",
                     "/v1/audit", "/v1/audit?limit=1&action=policy.apply", "/v1/audit/differences", "/v1/audit/differences?after=events.0", "/v1/audit/differences?after=seals.0", "/v1/tokens", "/v1/tokens?limit=1&status=active"):  # fmt: skip
            r.call("GET", path)
        r.call("GET", "/v1/usage?format=csv&limit=5")
        r.call("GET", "/v1/usage?exact=1&node=n1&workspace=training&cluster=test&user=x&gpu_model=y")
        for keys in ("", "label:team,label:app.kubernetes.io/name", "tenant,workspace,user,workload", "node,gpu,gpu_model,profile,sharing,method", "day,hour", "cluster,state"):
            usage = r.call("GET", "/v1/usage" + stack.query(group_by=keys)).json()
            self.assertTrue(usage["groups"], "nothing to check")
        for report in ("current.json", "current.csv", "current.json?tenant=acme", "current.csv?manifest=1", "current.csv?excel=1"):
            r.call("GET", "/v1/reports/" + report)
        self.assertTrue(r.call("GET", "/v1/reports/current.json").json()["lines"], "nothing to check")
        r.call("GET", "/v1/tenants", role="viewer")
        r.call("PUT", "/v1/policy?dry_run=1&name=p.yaml", POLICY.encode())
        self.assertTrue(r.call("POST", "/v1/prices/preview?period=current", POLICY.encode()).json()["tenants"], "nothing to check")
        self.live(r)
        frames = ledger.frames([BATCH])
        self.assertEqual(r.call("POST", "/v1/ingest", frames, role="node").status, 200)
        self.assertEqual(r.call("POST", "/v1/ingest", gzip.compress(frames), role="node", headers={"Content-Encoding": "gzip"}).status, 200)
        self.assertEqual(r.call("POST", "/v1/ingest", ledger.frames([{**BATCH, "seq": 7}]), role="node").status, 409)
        r.call("GET", "/v1/usage", headers={"Accept-Encoding": "gzip"})

    def quarantine(self, r):
        odd = {**BATCH, "seq": 2, "kind": 3, "devices": [], "records": []}
        self.assertEqual(r.call("POST", "/v1/ingest", ledger.frames([odd]), role="node").json()["quarantined"], 1)
        [batch, *_] = r.call("GET", "/v1/quarantine?node=n2&decision=open&limit=1").json()["batches"]
        at = f"/v1/quarantine/{batch['stream']}/{batch['seq']}"
        self.assertEqual(r.call("GET", at).json()["class"], "format")
        why = json.dumps({"reason": "a test"}).encode()
        self.assertEqual(r.call("POST", at + "/discard", why).json()["decision"], "discarded")
        self.assertEqual(r.call("POST", at + "/release", why).status, 409)
        self.assertEqual(r.call("POST", at + "/burn", why).status, 404)
        self.assertEqual(r.call("POST", at + "/discard", b'{"reason": ""}').status, 400)
        self.assertEqual(r.call("GET", "/v1/quarantine?class=odd", wrong=True).status, 400)
        self.assertEqual(r.call("POST", "/v1/nodes/n2/approve", why).status, 200)
        self.assertEqual(r.call("POST", "/v1/nodes/nowhere/approve", why).status, 404)
        [[uuid]] = self.stack.sql("select uuid from gpu order by id limit 1")
        move = json.dumps({"node": "n1", "reason": "a test"}).encode()
        self.assertEqual(r.call("POST", f"/v1/gpus/{uuid}/move", move).json()["next_node"], "n1")
        self.assertEqual(r.call("POST", "/v1/gpus/GPU-none/move", move).status, 404)
        [[entry]] = self.stack.sql("select min(id) from row_journal")
        self.assertEqual(r.call("POST", f"/v1/journal/{entry}/accept", why).json()["entry"], int(entry))
        self.assertEqual(r.call("POST", f"/v1/journal/{entry}/accept", why).status, 409)
        self.assertEqual(r.call("POST", "/v1/journal/0/accept", why).status, 404)

    def decisions(self, r):
        gpu = {"uuid": "GPU-n2-0", "model": "NVIDIA H100 80GB HBM3", "index": 0, "healthy": True, "reason": "", "xid": 0, "sharing": "exclusive",
               "replicas": 1, "holders": [], "instances": []}  # fmt: skip
        status = {"node": "n2", "boot_id": "abcd0000-0000-0000-0000-000000000001", "boot_ns": 2, "wall_ns": time.time_ns(),
                  "interval_ns": 3600_000_000_000, "simulated": True, "left_out": 0, "gpus": [gpu]}  # fmt: skip
        self.assertEqual(self.stack.call("POST", "/v1/status", json.dumps(status).encode(), "node", {"Content-Type": "application/json"}).status, 200)
        stack.wait_for("a GPU in the book", lambda: any(p["free_units"] == 5040 for p in self.stack.get("/v1/quota").json()["pools"]), self.stack.aggregator)
        ask = {"request_id": "a", "workspace": "acme/training", "gpu_model": "H100-80GB", "gpus": 1, "workload": {"slurm_job": "7"}}
        path, b = "/v1/decisions", {**ask, "request_id": "b", "expires": "1h", "cpu": "500m", "memory": "1Gi"}
        self.assertEqual(r.call("POST", path + "?dry_run=1", json.dumps(ask).encode()).json()["verdict"]["decision"], "borrow")
        self.assertEqual(r.call("POST", path, json.dumps(ask).encode()).json()["status"], "admitted")
        self.assertEqual(r.call("POST", path, json.dumps({**ask, "gpus": 2}).encode()).status, 409)
        self.assertEqual(r.call("POST", path + "?wait=1ms", json.dumps(b).encode()).json()["status"], "waiting")
        self.assertEqual(r.call("GET", path + "/b?wait=1ms").json()["position"], 1)
        self.assertEqual(r.call("DELETE", path + "/b").json()["status"], "cancelled")
        self.assertEqual(r.call("DELETE", path + "/a").status, 409)
        self.assertEqual(len(r.call("GET", path + "?limit=5&status=cancelled").json()["decisions"]), 1)
        self.assertEqual(r.call("POST", "/v1/leases/a/confirm", b'{"nodes": [{"node": "n2", "gpus": ["GPU-n2-0"]}]}').json()["status"], "confirmed")
        self.assertEqual(r.call("POST", "/v1/leases/a/confirm", b'{"nodes": [{"node": "n9", "gpus": ["GPU-n2-0"]}]}', wrong=True).status, 400)
        named = {"workloads": ["6f1c", "claim:97ab", "slurm:7.2"]}
        self.assertEqual(r.call("PUT", "/v1/leases/a/workloads", json.dumps(named).encode()).json()["lease"]["workloads"], named["workloads"])
        self.assertEqual(r.call("PUT", "/v1/leases/b/workloads", json.dumps(named).encode()).status, 409)
        self.assertEqual(r.call("POST", "/v1/agents", b'{"cluster": "test"}').json(), {"cluster": "test", "epoch": 1})
        self.assertEqual(r.call("POST", "/v1/agents", b'{"cluster": "none"}').status, 404)
        self.assertEqual(r.call("POST", "/v1/admit", json.dumps(ask).encode()).status, 200)
        self.assertEqual(r.call("POST", "/v1/admit?wait=1ms", json.dumps({**ask, "request_id": "c"}).encode()).status, 202)
        self.assertEqual(r.call("POST", "/v1/admit", json.dumps({**ask, "request_id": "d", "gpus": 99}).encode()).json()["decision"]["status"], "rejected")
        self.assertEqual(r.call("POST", "/v1/admit", json.dumps({**ask, "request_id": "d", "gpus": 99}).encode(), role="viewer").status, 403)
        self.assertEqual(r.call("DELETE", path + "/c").json()["status"], "cancelled")
        adopted = {"request_id": "r", "workspace": "acme/training", "gpu_model": "H100-80GB", "gpus": 1, "workloads": ["slurm:8"], "started": "2026-11-01T00:00:00Z",
                   "parts": [{"node": "n2", "gpu": "GPU-n2-0", "count": 1}]}  # fmt: skip
        self.assertEqual(r.call("POST", "/v1/adopt", json.dumps(adopted).encode()).json()["status"], "confirmed")
        self.assertEqual(r.call("POST", "/v1/adopt", json.dumps({**adopted, "gpus": 2}).encode()).status, 409)
        self.assertEqual(r.call("GET", "/v1/decisions/r").json()["request"]["parts"], adopted["parts"])
        self.assertTrue(r.call("PUT", "/v1/adoption", b'{"cluster": "test", "complete": true}').json()["complete"])
        self.assertEqual(r.call("PUT", "/v1/adoption", b'{"cluster": "none", "complete": true}').status, 404)
        self.assertEqual([a["cluster"] for a in r.call("GET", "/v1/adoption").json()["adoptions"]], ["test"])
        self.assertEqual(r.call("GET", "/v1/adoption", role="viewer").status, 403)
        self.assertEqual(self.stack.call("POST", "/v1/leases/r/release", b"{}").status, 200)
        self.assertEqual(self.stack.call("POST", "/v1/status", json.dumps({**status, "boot_ns": 3, "wall_ns": time.time_ns()}).encode(), "node", {"Content-Type": "application/json"}).status, 200)
        stack.wait_for("the end of what was adopted", lambda: self.stack.get("/v1/decisions/r").json()["status"] == "ended", self.stack.aggregator)
        for word in ("heartbeat", "drain"):
            self.assertEqual(r.call("POST", f"/v1/leases/a/{word}", b"{}").status, 200)
        [order] = r.call("GET", "/v1/reclaims?wait=10s").json()["reclaims"]
        self.assertEqual((order["cause"], order["state"], order["workload"]["slurm_job"]), ("drain", "draining", "7"))
        self.assertEqual(r.call("POST", f"/v1/reclaims/{order['id']}/ack").json()["lease"]["reclaim"], "draining")
        self.assertEqual(r.call("POST", f"/v1/reclaims/{order['id']}/enforce").status, 409)
        self.assertEqual(len(r.call("GET", "/v1/leases?workspace=acme/training").json()["leases"]), 1)
        self.assertEqual(sum(p["in_use_units"] for p in r.call("GET", "/v1/quota?tenant=acme").json()["pools"]), 5040)
        self.assertEqual({a["kind"] for a in r.call("GET", "/v1/quota/anomalies?tenant=acme").json()["anomalies"]} - {"reserved", "unused"}, set())
        self.assertEqual(len(r.call("GET", "/v1/quota/recording?from_seq=1&to_seq=4").json()["events"]), 4)
        for path in ("/v1/decisions/none", "/v1/decisions?status=odd", "/v1/leases?limit=0", "/v1/reclaims?wait=1y", "/v1/quota/recording?from_seq=0"):
            self.assertGreaterEqual(r.call("GET", path, wrong=True).status, 400)
        self.assertEqual(r.call("GET", "/v1/quota", role="node").status, 403)

    def periods(self, r):
        # A month before all others, in which nothing was.
        self.stack.sql("select make_periods('2001-01-15', '2001-01-16')")
        self.assertTrue(r.call("GET", "/v1/periods/2001-01/check").json()["closable"])
        self.assertEqual(r.call("GET", "/v1/periods/1999-01/check").status, 404)
        self.assertEqual(r.call("GET", "/v1/periods/2001-01/recompute").status, 409)
        closed = r.call("POST", "/v1/periods/2001-01/close", json.dumps({"reason": "a test"}).encode())
        self.assertEqual((closed.status, closed.json()["period"]), (202, "2001-01"))
        self.assertEqual(self.stack.close_ended("2001-01")["state"], "closed")
        self.assertEqual(r.call("GET", "/v1/periods/2001-01/close").json()["stage"], "done")
        self.assertEqual(r.call("DELETE", "/v1/periods/2001-01/close").status, 409)
        self.stack.sql("select make_periods('2001-02-15', '2001-02-16')")
        with self.stack.nobody_closes():
            self.assertEqual(r.call("POST", "/v1/periods/2001-02/close", json.dumps({"reason": "a test"}).encode()).status, 202)
            self.assertEqual(r.call("DELETE", "/v1/periods/2001-02/close").json()["state"], "cancelled")
        self.assertEqual(r.call("POST", "/v1/periods/2001-01/close", b"{}").status, 409)
        self.assertTrue(r.call("GET", "/v1/periods/2001-01/recompute").json()["identical"])
        self.assertEqual(r.call("POST", "/v1/periods/2001-01/open", b"{}").status, 404)

    def adjustments(self, r):
        what = {"tenant": "acme", "workspace": "training", "amount": "-1.00", "currency": "EUR", "category": "other", "reason": "a test"}
        made = r.call("POST", "/v1/adjustments", json.dumps(what).encode())
        self.assertEqual(made.status, 201)
        at, why = f"/v1/adjustments/{made.json()['id']}", json.dumps({"reason": "a test"}).encode()
        self.assertEqual(r.call("POST", at + "/approve", why).status, 200)
        self.assertEqual(r.call("POST", at + "/reverse", why).json()["amount"], "1.00")
        self.assertEqual(r.call("POST", at + "/reverse", why).status, 409)
        self.assertEqual(r.call("POST", "/v1/adjustments", json.dumps({**what, "amount": "0"}).encode()).status, 400)
        self.assertTrue(r.call("GET", "/v1/adjustments?tenant=acme&limit=5").json()["adjustments"], "nothing to check")
        self.assertEqual(r.call("GET", "/v1/adjustments?limit=0", wrong=True).status, 400)
        self.assertTrue(r.call("GET", "/v1/budgets?period=current&tenant=acme").json()["budgets"], "nothing to check")
        self.assertEqual(r.call("GET", "/v1/budgets?period=1999-01").status, 404)
        self.assertTrue(r.call("GET", "/v1/sla?period=current&tenant=acme").json()["promises"], "nothing to check")
        self.assertEqual(r.call("GET", "/v1/sla?period=1999-01").status, 404)
        self.assertTrue(r.call("GET", "/v1/reconciliation?month=current").json()["totals"], "nothing to check")
        for path in ("/v1/reconciliation", "/v1/refunds"):
            self.assertEqual(r.call("GET", path + "?format=csv").status, 200)
            self.assertEqual(r.call("GET", path + "?month=1999-01").status, 404)
            self.assertEqual(r.call("GET", path + "?format=pdf", wrong=True).status, 400)
        r.call("GET", "/v1/refunds?tenant=acme")
        self.assertEqual(r.call("POST", "/v1/adjustments", json.dumps({**what, "refund": "0" * 16}).encode()).status, 404)

    def exceptions(self, r):
        what = {"workspace": "acme/training", "gpu_model": "H100-80GB", "gpus": 2, "until": "8h", "reason": "a test"}
        made = r.call("POST", "/v1/exceptions", json.dumps(what).encode())
        self.assertEqual((made.status, made.json()["status"]), (201, "approved"))
        at, why = f"/v1/exceptions/{made.json()['id']}", json.dumps({"reason": "a test"}).encode()
        self.assertEqual(r.call("POST", at + "/revoke", why).json()["status"], "revoked")
        self.assertEqual(r.call("POST", at + "/approve", why).status, 409)
        self.assertEqual(r.call("POST", "/v1/exceptions", json.dumps({**what, "gpus": "many"}).encode()).status, 400)
        self.assertTrue(r.call("GET", "/v1/exceptions?tenant=acme&workspace=training&status=revoked&limit=5").json()["exceptions"], "nothing to check")
        self.assertEqual(r.call("GET", "/v1/exceptions?status=odd", wrong=True).status, 400)

    def live(self, r):
        pod = {"kind": "pod", "namespace": "acme", "pod": "a", "pod_uid": "1", "container": "c", "user": "", "uid": -1,
               "device": "MIG-0", "replica": -1, "allocated": True, "holds": True, "active": False}  # fmt: skip
        gpu = {"uuid": "GPU-n2-0", "model": "NVIDIA H100 80GB HBM3", "index": 0, "healthy": True, "reason": "", "xid": 0, "sharing": "mig",
               "replicas": 1, "holders": [pod], "instances": [{"gi": 1, "ci": 0, "units": 675, "uuid": "MIG-0", "profile": "1g.10gb"}]}  # fmt: skip
        status = {"node": "n2", "boot_id": "abcd0000-0000-0000-0000-000000000001", "boot_ns": 1, "wall_ns": time.time_ns(),
                  "interval_ns": 5_000_000_000, "simulated": True, "left_out": 0, "gpus": [gpu]}  # fmt: skip
        json_body = {"Content-Type": "application/json"}
        self.assertEqual(r.call("POST", "/v1/status", json.dumps(status).encode(), role="node", headers=json_body).status, 200)
        devices = [n["devices"] for n in r.call("GET", "/v1/status?node=n2").json()]
        self.assertTrue(devices[0][0]["holders"] and devices[0][0]["instances"], "nothing to check")
        r.call("GET", "/v1/status", role="viewer")
        self.assertEqual(r.call("GET", "/v1/status?tenant=nobody", role="viewer").status, 404)

    def events(self, r):
        sound = {**EVENT, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        one, many = {"Content-Type": "application/cloudevents+json"}, {"Content-Type": "application/cloudevents-batch+json"}
        self.assertEqual(r.call("POST", "/v1/events", json.dumps(sound).encode(), headers=one).status, 200)
        self.assertEqual(r.call("POST", "/v1/events", json.dumps([sound, {**sound, "id": "2"}]).encode(), headers=many).status, 200)
        other = {**sound, "data": {**sound["data"], "gb_hours": 1}}
        self.assertEqual(r.call("POST", "/v1/events", json.dumps(other).encode(), headers=one).status, 409)
        self.assertEqual(r.call("POST", "/v1/events", json.dumps([sound, other, {"id": 7}]).encode(), headers=many, wrong=True).status, 207)
        self.assertEqual(r.call("POST", "/v1/events", json.dumps(sound).encode()).status, 415)
        self.assertTrue(r.call("GET", "/v1/events/summary").json()["meters"], "nothing to check")
        self.assertEqual(r.call("GET", "/v1/events/summary?meter=storage&period=1999-01").status, 404)

    def tokens(self, r):
        made = r.call("POST", "/v1/tokens", json.dumps({"role": "viewer", "tenant": "acme", "expires": "1h", "description": "x"}).encode())
        r.call("DELETE", f"/v1/tokens/{made.json()['id']}")
        r.call("POST", "/v1/tokens", json.dumps({"role": "billing"}).encode())
        join = r.call("POST", "/v1/join-tokens", json.dumps({"description": "rack 7"}).encode()).json()
        self.stack.tokens["join"] = join["join_token"]
        r.call("POST", "/v1/join", json.dumps({"node": "n9"}).encode(), role="join")
        r.call("POST", "/v1/join", json.dumps({"node": "n9"}).encode(), role="join")  # a second time
        other = r.call("POST", "/v1/join-tokens", json.dumps({"node": "n10"}).encode()).json()
        r.call("DELETE", f"/v1/join-tokens/{other['id']}")
        r.call("GET", "/v1/join-tokens")
        r.call("GET", "/v1/join-tokens?status=used")

    def bad_requests(self, r):
        self.stack.tokens["wrong"] = "0" * 64
        for path, methods in self.doc["paths"].items():
            for method in methods:
                if path == "/healthz":
                    continue
                at = path.replace("{id}", "999999999").replace("{report}", "current.csv").replace("{decision}", "release")
                at = re.sub(r"\{(stream|seq)\}", "999999999", at)
                body = b"{" if method in ("post", "put") else None
                for role in ("wrong", None, "node", "viewer"):
                    r.call(method.upper(), at, body, role=role, wrong=True)
        for method, path in (("DELETE", "/v1/tokens/x"), ("DELETE", "/v1/join-tokens/0"), ("GET", "/v1/reports/x"), ("GET", "/v1/reports/1999-01.csv"),
                             ("GET", "/v1/usage?from=yesterday"), ("GET", "/v1/usage?group_by=colour"), ("GET", "/v1/conservation?to=x"), ("GET", "/v1/conservation/differences?node=nobody"),
                             ("GET", "/v1/audit?limit=0"), ("GET", "/v1/audit/differences?after=here"), ("GET", "/v1/audit/differences?seal=1"), ("GET", "/v1/tokens?status=odd"), ("GET", "/v1/tokens?tenant=nobody")):  # fmt: skip
            r.call(method, path, wrong=True)
        for path in ("/v1/tenants", "/v1/workspaces", "/v1/usage", "/v1/reports/current.csv"):
            self.assertEqual(r.call("GET", path + "?tenant=nobody", role="viewer").status, 404)
        for body in ("[]", "{", '{"role": "king"}', '{"role": "viewer", "tenant": "nobody"}', '{"roll": 1}'):
            self.assertGreaterEqual(r.call("POST", "/v1/tokens", body.encode(), wrong=True).status, 400)
        r.call("POST", "/v1/tokens", b" " * (1 << 17), wrong=True)
        r.call("POST", "/v1/tokens", b"x", headers={"Content-Encoding": "br"}, wrong=True)
        r.call("PUT", "/v1/policy", b"version: 99", wrong=True)
        r.call("POST", "/v1/ingest", b"no frames", role="node", wrong=True)


if __name__ == "__main__":
    unittest.main()
