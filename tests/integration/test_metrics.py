"""The aggregator's /metrics: counters that add up to the ledger over replicas, gauges that are the ledger's, and who sees which series."""

import contextlib
import gzip
import http.client
import json
import os
import re
import time
import unittest
from fractions import Fraction

from tests.integration.test_live import gpu, holder, status
from tests.support.daemons import stack
from tests.support.daemons.prometheus import Prometheus
from tests.support.daemons.stack import WAIT_S, Stack, request, wait_for
from tests.support.store import ledger

POLICY = """
version: 1
cluster: test
tenants:
  - {name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}
  - {name: globex, workspaces: [{name: research, rules: [{namespace: globex}]}]}
  - {name: other, workspaces: [{name: odd, rules: [{namespace: odd}]}]}
nodes: [{name: shared, shared: true}, {name: own, tenant: acme}, {name: foreign, tenant: globex}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""
SECOND = 1_000_000_000
UNITS = 5040
SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
NAMESPACES = ("acme", "globex", "odd")
# What a tenant may see, and so what every scrape with its token must have.
OF_TENANTS = {"tollgate_gpu_seconds_total", "tollgate_energy_joules_total", "tollgate_period_gpu_hours", "tollgate_period_cost", "tollgate_capacity_gpus",
              "tollgate_node_lag_seconds", "tollgate_node_status_age_seconds", "tollgate_node_clock_skew_seconds", "tollgate_node_silent"}  # fmt: skip
# What only operators see.
OF_THE_WHOLE = {"tollgate_conservation_error_seconds", "tollgate_period_unrated_lines", "tollgate_held_nodes", "tollgate_quarantined_batches", "tollgate_quarantine_age_seconds", "tollgate_rollup_backlog",
                "tollgate_unsealed_age_seconds", "tollgate_ledger_series_left_out"}  # fmt: skip
OWN = re.compile("tollgate_(ingest|aggregator|events|quarantine_decisions|status|decision_duration|decision_turns)_")
# Of quota there is what happens to be there; test_quota_cli.py has it all.
QUOTA = re.compile("tollgate_(quota|decisions|reclaims|exceptions|unleased|would_deny)")


def samples(page):
    found = []
    for line in page.splitlines():
        if line and not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            found.append((name, dict(LABEL.findall(labels or "")), value))
    return found


def total(page, name, **labels):
    return sum(Fraction(v) for n, have, v in samples(page) if n == name and labels.items() <= have.items())


def batch(node, seq, at, energy=1000):
    """A second of a node: a GPU each of three namespaces, an idle one, and a MIG instance that acme holds beside free slices."""
    ids = range(1, 4)
    devices = [{"id": i, "uuid": f"GPU-{node}-{i - 1}", "model": "NVIDIA H100 80GB HBM3", "index": i - 1} for i in range(1, 6)]
    devices += [{"id": 6, "gpu": 5, "uuid": f"MIG-{node}", "model": "NVIDIA H100 80GB HBM3", "profile": "1g.10gb", "gi": 1, "ci": 0, "created_ns": 1, "units": 675, "index": 4}]
    pods = [{"id": i, "kind": 1, "ns": ns, "pod": f"{ns}-0", "pod_uid": f"uid-{ns}", "container": "main"} for i, ns in zip(ids, NAMESPACES)]
    record = lambda device, who, state, units, method, used: [device, who, state, 2 if units < UNITS else 1, method, units, at, SECOND, SECOND, used, 0, 0, 0, energy, 1]  # noqa: E731
    records = [record(i, i, 1, UNITS, 1, i * SECOND // 4) for i in ids] + [record(4, 0, 2, UNITS, 0, 0)]
    records += [record(6, 1, 1, 675, 1, SECOND // 3), record(5, 0, 2, UNITS - 675, 0, 0)]
    first = seq == 1
    return {"node": node, "boot_id": "00" * 16, "epoch": 100, "seq": seq, "flags": 1, "from_ns": at, "to_ns": at + SECOND,
            "devices": devices if first else [], "holders": pods if first else [], "records": records}  # fmt: skip


class Fleet:
    """Streams of some nodes, pushed to one of the replicas at a time."""

    def __init__(self, s, nodes, seconds):
        self.stack = s
        # all of it in the hour, and so in the month, in which the policy was applied
        while time.time() % 3600 < 15:
            time.sleep(1)
        start = (time.time_ns() // SECOND - 10) * SECOND
        for node in nodes:
            s.token(f"node {node}", role="node", node=node)
        self.pushes = [(node, ledger.frames([batch(node, k + 1, start + k * SECOND)])) for k in range(seconds) for node in nodes]

    def push(self, i, port=None):
        node, frames = self.pushes[i]
        reply = request("POST", f"http://127.0.0.1:{port or self.stack.port}/v1/ingest", frames, self.stack.tokens[f"node {node}"])
        assert reply.status == 200, reply.text()


def tenants_of(s):
    for tenant in ("acme", "globex", "other"):
        s.token(tenant, role="viewer", tenant=tenant)
    s.token("billing", role="billing")


LEDGER = """select coalesce(t.name, ''), coalesce(w.name, ''), g.short_model, d.profile, s.state, sum(s.v), sum(s.energy) from usage_rows('2020-01-01', '2100-01-01') u
    join device d on d.id = u.device_id join gpu g on g.id = d.gpu_id left join workspace w on w.id = u.workspace_id left join tenant t on t.id = w.tenant_id,
    lateral (values ('used', u.used, u.energy_mj), ('idle', u.idle, 0), ('unmeasured', u.unmeasured, 0), ('unallocated', u.unallocated, 0),
        ('stranded', u.stranded, 0), ('down', u.down, 0)) s(state, v, energy)
    group by 1, 2, 3, 4, 5 having sum(s.v) > 0"""


class Replicas(unittest.TestCase):
    def test_hours_of_the_period_are_shown_by_class(self):
        with Stack() as s:
            s.apply(POLICY)
            fleet = Fleet(s, ("shared",), 1)
            fleet.push(0, s.port)
            s.sql("insert into reservation select w.id, c.id, true, 'H100-80GB', '', NULL, 2520, tstzrange(date_trunc('hour', now()) - interval '1 hour', NULL) "
                  "from workspace w, cluster c where w.name = 'training' and c.name = 'test'")  # fmt: skip
            page = s.get("/metrics").text()
            # Reserved since the hour began, and there for a second: all of it is delivered to whom it is reserved, and lent to the others.
            for tenant, klass in (("acme", "reserved"), ("globex", "borrowed")):
                held = {c: total(page, "tollgate_period_gpu_hours", tenant=tenant, **{"class": c}) for c in ("reserved", "on-demand", "borrowed")}
                self.assertEqual({c for c, hours in held.items() if hours > 0}, {klass}, held)
            self.assertGreater(total(page, "tollgate_period_gpu_hours", state="unallocated"), 0)

    def test_the_increase_over_two_replicas_is_what_the_ledger_has_and_is_there_within_seconds(self):
        with Stack() as s:
            s.apply(POLICY)
            second = s.replica()
            fleet = Fleet(s, ("shared", "own"), 4)
            prometheus = Prometheus(os.path.join(s.dir, "prometheus"), {"tollgate-aggregator": [f"127.0.0.1:{s.port}", f"127.0.0.1:{second.port}"]},
                                    {"tollgate-aggregator": s.tokens["admin"]})  # fmt: skip
            s.processes.append(prometheus)
            for i in range(len(fleet.pushes)):
                fleet.push(i, (s.port, second.port)[i % 2])
            fleet.push(0, second.port)  # what is known counts nowhere a second time
            rows = {tuple(r[:5]): Fraction(r[5]) / (UNITS * 10**9) for r in s.sql(LEDGER)}
            self.assertEqual(len(rows), 2 * 3 + 2 + 1)
            joules = Fraction(s.sql("select sum(energy_mj) from usage_rows('2020-01-01', '2100-01-01')")[0][0]) / 1000
            by = "sum by (tenant, workspace, gpu_model, profile, state) (tollgate_gpu_seconds_total)"

            def scraped():
                found = prometheus.query(by)
                return found if len(found) == len(rows) and sum(float(r["value"][1]) for r in found) > float(sum(rows.values())) - 0.1 else None

            for r in wait_for("all of it on Prometheus", scraped, prometheus):
                key = tuple(r["metric"].get(k, "") for k in ("tenant", "workspace", "gpu_model", "profile", "state"))
                # each replica cuts at the microsecond; whole GPUs for whole seconds are exact
                self.assertLess(rows[key] - Fraction(r["value"][1]), Fraction(2, 10**6), key)
                self.assertGreaterEqual(rows[key] + Fraction(1, 10**9), Fraction(r["value"][1]), key)
                if not key[3] and key[4] != "unallocated":
                    self.assertEqual(Fraction(r["value"][1]), rows[key], key)
            self.assertEqual(Fraction(prometheus.query("sum(tollgate_energy_joules_total)")[0]["value"][1]), joules)
            # the gauges and the API have the open hour too, each replica the same
            hours = sum(Fraction(r["value"][1]) for r in wait_for("the gauge", lambda: prometheus.query('sum by (instance) (tollgate_period_gpu_hours{tenant="acme"})'), prometheus))
            self.assertGreater(hours, 0)
            self.assertTrue(s.get("/v1/usage?group_by=tenant").json()["groups"])
            wait_for("both replicas to show the same", lambda: len({r["value"][1] for r in prometheus.query('sum by (instance) (tollgate_period_gpu_hours{state!="unknown"})')}) == 1, prometheus)
            second.stop()
            second.start()
            wait_for("the replica again", lambda: stack.answers(f"http://127.0.0.1:{second.port}/readyz"), second)
            page = request("GET", f"http://127.0.0.1:{second.port}/metrics", token=s.tokens["admin"]).text()
            self.assertEqual(total(page, "tollgate_gpu_seconds_total"), 0, "a counter is of one life of a replica")
            fleet.push(1, second.port)
            page = request("GET", f"http://127.0.0.1:{second.port}/metrics", token=s.tokens["admin"]).text()
            self.assertEqual((total(page, "tollgate_gpu_seconds_total"), total(page, "tollgate_ingest_duplicate_batches_total")), (0, 1))


class Sight(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=["--metrics-refresh", "100ms"]))
        s.apply(POLICY)
        tenants_of(s)
        fleet = Fleet(s, ("shared", "own", "foreign"), 1)
        for i in range(len(fleet.pushes)):
            fleet.push(i)
        for node in ("shared", "own", "foreign"):
            body = status(node, [gpu(node, i, [holder("globex", f"GPU-{node}-{i}")]) for i in range(5)])
            assert s.call("POST", "/v1/status", json.dumps(body).encode(), f"node {node}").status == 200
        wait_for("the first page with everything", lambda: total(s.get("/metrics").text(), "tollgate_capacity_gpus", state="healthy") == 15)

    def test_a_tenant_sees_every_family_of_its_own_and_no_row_of_anybody_else(self):
        for role, tenant in (("acme", "acme"), ("globex", "globex")):
            found = samples(self.stack.get("/metrics", role).text())
            theirs = [(n, labels) for n, labels, _ in found if not OWN.match(n)]
            self.assertEqual({n for n, _ in theirs if not QUOTA.match(n)}, OF_TENANTS)
            for name, labels in theirs:
                self.assertEqual(labels.get("tenant"), tenant, name)
            everything = json.dumps(found)
            for stranger in {"acme", "globex", "training", "research"} - {tenant, {"acme": "training", "globex": "research"}[tenant]}:
                self.assertNotIn(stranger, everything)
            self.assertNotIn("shared", everything, "a node that is not theirs")

    def test_operators_see_all_and_a_scrape_without_a_token_the_daemon_only(self):
        for role in ("admin", "billing"):
            page = self.stack.get("/metrics", role).text()
            self.assertEqual({n for n, _, _ in samples(page) if not OWN.match(n) and not QUOTA.match(n)}, OF_TENANTS | OF_THE_WHOLE)
            self.assertEqual({labels.get("tenant", "") for n, labels, _ in samples(page) if n == "tollgate_gpu_seconds_total"}, {"", "acme", "globex", "other"})
        for role in (None, "node own"):
            names = {n for n, _, _ in samples(self.stack.get("/metrics", role).text())}
            self.assertEqual({n for n in names if not OWN.match(n)}, set())
            self.assertGreater(len(names), 20)

    def test_every_family_says_what_it_is(self):
        page = self.stack.get("/metrics").text()
        families = {n for n, _, _ in samples(page)}
        for name in families:
            base = re.sub("_(bucket|sum|count)$", "", name) if "duration_seconds_" in name else name
            self.assertRegex(page, rf"(?m)^# HELP {base} \S")
            self.assertRegex(page, rf"(?m)^# TYPE {base} (gauge|counter|histogram)$")

    def test_capacity_adds_up_to_the_gpus_in_service(self):
        page = self.stack.get("/metrics").text()
        self.assertEqual(total(page, "tollgate_capacity_gpus"), int(self.stack.sql("select count(*) from gpu_service where until_ns is null")[0][0]))
        self.assertEqual(total(page, "tollgate_capacity_gpus", tenant="acme", gpu_model="H100-80GB", state="healthy"), 5)


class Counted(unittest.TestCase):
    """What became of a push is on the page by why, whatever it was."""

    REFUSED = "tollgate_ingest_refused_total"
    ASIDE = "tollgate_ingest_quarantined_batches_total"

    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack())
        s.apply(POLICY)
        cls.fleet = Fleet(s, ("own",), 2)
        cls.fleet.push(0)
        cls.token = s.tokens["node own"]
        cls.at = (time.time_ns() // SECOND - 5) * SECOND

    def page(self):
        """Of each family with a reason and of those without: what it counts now, without what is 0."""
        wanted = re.compile("tollgate_ingest_(refused_total|(.*_)?batches_total)")
        return {(n, labels.get("reason", "")): int(v) for n, labels, v in samples(self.stack.get("/metrics").text()) if wanted.fullmatch(n) and v}

    def push(self, body, **headers):
        return request("POST", self.stack.url + "/v1/ingest", body, self.token, headers).status

    def grows(self, before, *keys):
        """Exactly these by one."""
        now = self.page()
        self.assertEqual({k: v - before.get(k, 0) for k, v in now.items() if v != before.get(k, 0)}, {k: 1 for k in keys})

    def test_a_push_that_is_refused_counts_its_reason_and_nothing_else(self):
        def second(**change):
            return ledger.frames([{**batch("own", 2, self.at), **change}])

        cases = [("gap", 409, ledger.frames([batch("own", 9, self.at)])), ("stream", 400, second(epoch=0)), ("node", 403, second(node="foreign")), ("other", 400, b"")]
        cases += [(why, status, second(**{"break": harm})) for why, status, harm in (
            ("crc", 400, "crc"), ("torn", 400, "torn"), ("gzip", 400, "gzip"), ("gzip", 400, "bomb"), ("content", 400, "body"), ("version", 503, "version"))]  # fmt: skip
        for why, status, body in cases:
            with self.subTest(why=why, body=body[:8]):
                before = self.page()
                self.assertEqual(self.push(body), status)
                self.grows(before, (self.REFUSED, why))
        before = self.page()
        self.assertEqual(self.push(ledger.frames([batch("own", 1, self.at)])), 409)
        self.grows(before, (self.REFUSED, "mismatch"), ("tollgate_ingest_mismatched_batches_total", ""))
        page = self.stack.get("/metrics").text()
        self.assertEqual(total(page, "tollgate_ingest_duration_seconds_bucket", le="+Inf"), total(page, "tollgate_ingest_duration_seconds_count"))

    def test_a_push_above_the_limit_counts_though_nobody_looks_into_it(self):
        limit = 16 << 20
        before = self.page()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.stack.port, timeout=WAIT_S)) as said:
            said.putrequest("POST", "/v1/ingest")
            said.putheader("Authorization", f"Bearer {self.token}")
            said.putheader("Content-Length", str(limit + 1))
            said.endheaders()
            self.assertEqual(said.getresponse().status, 413)
        # counted once it is sent, not before
        wait_for("the count of a length that was only said", lambda: self.page() != before)
        self.grows(before, (self.REFUSED, "oversized"))
        before = self.page()
        self.assertEqual(self.push(gzip.compress(bytes(limit + 1)), **{"Content-Encoding": "gzip"}), 413)
        wait_for("the count of a body that is larger than it looks", lambda: self.page() != before)
        self.grows(before, (self.REFUSED, "oversized"))
        # of other routes it is no push
        before, large = self.page(), gzip.compress(bytes(2 << 20))
        self.assertEqual(request("POST", self.stack.url + "/v1/status", large, self.token, {"Content-Encoding": "gzip"}).status, 413)
        self.grows(before)

    def test_what_is_acknowledged_counts_as_what_it_was(self):
        self.stack.token("node foreign", role="node", node="foreign")
        self.token = self.stack.tokens["node foreign"]
        first, stranger = batch("foreign", 1, self.at), batch("foreign", 2, self.at + SECOND)
        stranger["records"][0][0] = 77
        for name, body, headers, keys in (
            ("new", first, {}, [("tollgate_ingest_batches_total", "")]),
            ("known", first, {}, [("tollgate_ingest_duplicate_batches_total", "")]),
            ("of nobody", stranger, {}, [(self.ASIDE, "unknown-id")]),
            ("a wrong clock", batch("foreign", 3, self.at + SECOND), {"Tollgate-Clock": str(self.at - 3600 * SECOND)}, [(self.ASIDE, "skewed-clock")]),
            ("lost", {**batch("foreign", 4, self.at + SECOND), "kind": 2, "last_seq": 4, "records": []}, {}, [("tollgate_ingest_lost_batches_total", "")]),
        ):
            with self.subTest(name):
                before = self.page()
                self.assertEqual(self.push(ledger.frames([body]), **headers), 200)
                self.grows(before, *keys)


class Bounds(unittest.TestCase):
    def test_beyond_the_limit_the_rest_is_one_series_per_state_and_nothing_is_lost(self):
        with Stack(options=["--metrics-refresh", "100ms", "--metrics-series-max", "3"]) as s:
            s.apply(POLICY)
            tenants_of(s)
            fleet = Fleet(s, ("shared", "own"), 1)
            for i in range(len(fleet.pushes)):
                fleet.push(i)
            page = s.get("/metrics").text()
            wait_for("all of the ledger", lambda: total(s.get("/metrics").text(), "tollgate_capacity_gpus") == 10)
            page = s.get("/metrics").text()
            exact = sum(Fraction(r[5]) for r in s.sql(LEDGER)) / (UNITS * 10**9)
            self.assertLess(abs(total(page, "tollgate_gpu_seconds_total") - exact), Fraction(1, 10**4))
            series = [labels for n, labels, _ in samples(page) if n in ("tollgate_gpu_seconds_total", "tollgate_energy_joules_total")]
            self.assertLessEqual(len([x for x in series if "cluster" in x]), 3)
            self.assertTrue([x for x in series if x.get("tenant") == "other" and "workspace" not in x])
            self.assertGreater(total(page, "tollgate_aggregator_usage_series_left_out"), 0)
            self.assertGreater(total(page, "tollgate_ledger_series_left_out", family="tollgate_period_gpu_hours"), 0)
            # a tenant of that name has no claim to what is everybody's
            mine = samples(s.get("/metrics", "other").text())
            self.assertEqual([x for n, x, _ in mine if not OWN.match(n) and x.get("tenant") == "other" and "workspace" not in x], [])
            # the same labels twice would make a scraper refuse the page
            keys = [(n, tuple(sorted(x.items()))) for n, x, _ in samples(page)]
            self.assertEqual(len(keys), len(set(keys)))


if __name__ == "__main__":
    unittest.main()
