"""Budgets; one-off charges and credits: who may enter them, who must agree, and what the month's report says of them."""

import csv
import datetime
import io
import json
import re
import unittest
from decimal import Decimal

from tests.support.daemons.stack import Stack, wait_for
from tests.support.fleet.fleet import DOWN, EXCLUSIVE, H100, HELD, MEASURED, MINUTE, NONE, NS, UNALLOCATED, UNITS
from tests.support.store import ledger

POLICY = """
version: 1
cluster: test
tenants:
  - {name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}
  - {name: globex, workspaces: [{name: research, rules: [{namespace: globex}]}]}
nodes: [{name: n1, shared: true}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""


def setUpModule():
    """One ledger for all that enter charges: each looks at its own rows, or at a month of its own. Budgets look at the month that is open."""
    global shared
    shared = unittest.enterModuleContext(Stack())
    prepare(shared)


def prepare(s):
    s.apply(POLICY)
    s.token("billing", role="billing")
    s.token("second", role="billing")
    s.token("acme", role="viewer", tenant="acme")
    s.token("globex", role="viewer", tenant="globex")
    s.sql("select make_periods(now() - interval '70 days', now() + interval '1 second')")


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = shared
        cls.months = [m["month"] for m in sorted(s.get("/v1/periods").json(), key=lambda m: m["month"])]

    def post(self, path, by="admin", /, **what):
        return self.stack.call("POST", path, json.dumps(what).encode(), role=by)

    def enter(self, by="admin", /, **what):
        what = {"tenant": "acme", "amount": "12.50", "currency": "EUR", "reason": "a test", **what}
        return self.post("/v1/adjustments", by, **what)

    def entered(self, by="admin", /, **what):
        reply = self.enter(by, **what)
        self.assertEqual(reply.status, 201, reply.text())
        return reply.json()

    def refused(self, reply, status, *words):
        self.assertEqual(reply.status, status, reply.text())
        for word in words:
            self.assertIn(word, reply.json()["detail"])

    def listed(self, role="admin", query="limit=1000"):
        return {a["id"]: a for a in self.stack.get("/v1/adjustments?" + query, role).json()["adjustments"]}

    def audited(self, action):
        return self.stack.get(f"/v1/audit?action={action}&limit=1").json()["entries"][0]


class Entered(Case):
    def test_what_an_administrator_enters_counts_at_once_and_is_in_the_log(self):
        row = self.entered(workspace="training", amount="-7", category="gpu", reason="node lost")
        self.assertEqual(
            {k: row[k] for k in ("tenant", "workspace", "period", "amount", "currency", "category", "reason", "status")},
            {"tenant": "acme", "workspace": "training", "period": self.months[-1], "amount": "-7.00", "currency": "EUR", "category": "gpu",
             "reason": "node lost", "status": "approved"},
        )  # fmt: skip
        self.assertEqual(row["requested_by"], row["approved_by"])
        entry = self.audited("credit.add")
        self.assertEqual((entry["tenant"], entry["reason"], entry["after"]["amount"]), ("acme", "node lost", "-7.00"))

    def test_what_billing_enters_counts_when_somebody_else_agrees(self):
        row = self.entered("billing")
        self.assertEqual((row["status"], row["approved_by"]), ("requested", None))
        self.assertNotIn(row["id"], self.listed("acme"), "what nobody agreed to is not the tenant's business")
        path = f"/v1/adjustments/{row['id']}/approve"
        self.refused(self.post(path, "billing", reason="mine"), 403, "somebody else has to agree")
        approved = self.post(path, "second", reason="seen").json()
        self.assertEqual(approved["status"], "approved")
        self.assertNotEqual(approved["approved_by"], approved["requested_by"])
        self.assertEqual(self.post(path, "admin", reason="again").json(), approved)
        self.assertIn(row["id"], self.listed("acme"))
        self.assertNotIn(row["id"], self.listed("globex"))
        self.assertEqual(self.audited("credit.approve")["reason"], "seen")

    def test_what_is_wrong_is_said(self):
        self.refused(self.enter(tenant="nobody"), 404, 'no tenant "nobody"')
        self.refused(self.enter(workspace="research"), 404, 'no workspace "research"')
        self.refused(self.enter(period="1999-01"), 404, "1999-01")
        self.refused(self.enter(period="a month"), 404, "a month")
        self.refused(self.enter(amount="0.00"), 400, "amount")
        self.refused(self.enter(amount="0.001"), 400, "amount")
        self.refused(self.enter(amount="1e3"), 400, "amount")
        self.refused(self.enter(amount="1" + "0" * 16), 400, "amount")
        self.refused(self.enter(currency="XYZ1"), 400, "currency")
        self.refused(self.enter(category="tips"), 400, "category")
        self.refused(self.enter(reason=""), 400, "reason")
        self.refused(self.enter(reason="x\n"), 400, "reason")
        listed = [self.stack.get(f"/v1/adjustments?period={p}").json()["adjustments"] for p in ("current", self.stack.get("/v1/budgets").json()["period"])]
        self.assertEqual(*listed)
        self.refused(self.post("/v1/adjustments/1/burn", reason="x"), 404, "approved or reversed")
        self.refused(self.post("/v1/adjustments/999999/approve", reason="x"), 404, "999999")

    def test_rows_are_never_changed(self):
        self.entered()
        for statement in ("update adjustment set amount = 1", "delete from adjustment", "truncate adjustment cascade",
                          "update adjustment_approval set approved_by = 'x'", "delete from adjustment_approval"):  # fmt: skip
            with self.assertRaises(Exception, msg=statement) as refused:
                self.stack.sql(statement)
            self.assertIn("never changed", str(refused.exception) + str(getattr(refused.exception, "stderr", "")))

    def test_nothing_enters_a_closed_month(self):
        month = self.months[0]
        waiting, there = self.entered("billing", period=month), self.entered(period=month)
        closed = self.stack.close_month(month, reason="what is asked here is what comes after")
        self.assertEqual(closed["state"], "closed", closed)
        self.refused(self.enter(period=month), 409, "closed")
        self.refused(self.post(f"/v1/adjustments/{waiting['id']}/approve", reason="late"), 409, "closed")
        self.refused(self.post(f"/v1/adjustments/{there['id']}/reverse", reason="late"), 409, "closed")
        reversal = self.post(f"/v1/adjustments/{there['id']}/reverse", reason="late", period="current").json()
        self.assertEqual((reversal["period"], reversal["amount"], reversal["reverses"]), (self.months[-1], "-12.50", there["id"]))


class Reversed(Case):
    def test_a_reversal_is_a_new_row_and_final(self):
        row = self.entered(amount="30.00", workspace="training")
        reversal = self.post(f"/v1/adjustments/{row['id']}/reverse", reason="wrong tenant").json()
        self.assertEqual((reversal["amount"], reversal["reverses"], reversal["workspace"], reversal["status"]), ("-30.00", row["id"], "training", "approved"))
        now = self.listed()[row["id"]]
        self.assertEqual((now["status"], now["reversed_by"]), ("reversed", reversal["id"]))
        self.refused(self.post(f"/v1/adjustments/{row['id']}/reverse", reason="twice"), 409, "taken back")
        self.refused(self.post(f"/v1/adjustments/{reversal['id']}/reverse", reason="back"), 409, "final")
        self.assertEqual(self.audited("credit.reverse")["reason"], "wrong tenant")

    def test_what_nobody_agreed_to_is_not_reversed(self):
        row = self.entered("billing")
        self.refused(self.post(f"/v1/adjustments/{row['id']}/reverse", reason="no"), 409, "nobody agreed")


class Billed(Case):
    def test_the_report_has_each_that_counts_as_a_line_and_in_its_total(self):
        month = self.months[1]
        self.entered(period=month, amount="25.50", workspace="training", category="support", reason="on-site visit")
        self.entered(period=month, amount="-10.00", reason="=goodwill")
        self.entered("billing", period=month, amount="99.00", reason="nobody agreed")
        self.entered(period=month, amount="1.00", tenant="globex")
        text = self.stack.get(f"/v1/reports/{month}.csv", "acme").text()
        lines = {line["charge_type"]: line for line in csv.DictReader(io.StringIO(text))}
        self.assertEqual(set(lines), {"adjustment", "credit"})
        charge, credit = lines["adjustment"], lines["credit"]
        self.assertEqual((charge["workspace"], charge["category"], charge["billed_cost"]), ("training", "support", "25.50"))
        self.assertEqual((credit["workspace"], credit["category"], credit["billed_cost"]), ("", "other", "-10.00"))
        [total] = self.stack.get(f"/v1/reports/{month}.json", "acme").json()["totals"]
        self.assertEqual(Decimal(total["billed_cost"]), Decimal("15.50"))


class Budgets(Case):
    BUDGETS = POLICY.replace(
        "{name: acme, workspaces: [{name: training,", '{name: acme, budget: {amount: "40.00", currency: EUR, kind: hard}, workspaces: [{name: training, budget: {gpu_hours: 10},'
    )

    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack())
        prepare(cls.stack)

    def metrics(self, role):
        return self.stack.get("/metrics", role).text()

    def test_a_budget_has_spent_what_the_report_bills_and_says_how_it_foresees(self):
        self.stack.apply(self.BUDGETS)
        self.assertEqual(self.stack.apply(self.BUDGETS)["changes"], 0)
        self.assertEqual(self.stack.sql("select count(*) from budget where upper_inf(effective)"), [["2"]])
        self.entered(amount="20.00", tenant="acme")
        self.entered(amount="9.00", tenant="globex")
        [whole, training] = self.stack.get("/v1/budgets", "acme").json()["budgets"]
        [total] = self.stack.get("/v1/reports/current.json", "acme").json()["totals"]
        self.assertEqual((whole["workspace"], whole["kind"], whole["unit"], whole["limit"]), ("", "hard", "EUR", "40.00"))
        self.assertEqual(whole["consumed"], total["billed_cost"])
        self.assertEqual((whole["ratio"], whole["threshold"], whole["forecast"], whole["forecast_breach"]), ("0.500000", 50, "20.00", False))
        self.assertIn(whole["method"], ("pro-rata", "7-day-mean", "none"))
        self.assertEqual((training["workspace"], training["unit"], Decimal(training["limit"]), Decimal(training["consumed"])), ("training", "gpu-hour", 10, 0))
        self.assertEqual(self.stack.get("/v1/budgets", "globex").json()["budgets"], [])
        self.refused(self.stack.call("GET", "/v1/budgets?period=1999-01"), 404, "1999-01")
        table = self.stack.cli("budget", "status").stdout
        for kind, value in (("limit", "40"), ("consumed", "20"), ("forecast", "20")):
            line = f'tollgate_budget{{tenant="acme",kind="{kind}",currency="EUR"}} {value}'
            wait_for(line, lambda want=line: want in self.metrics("acme"), self.stack.aggregator)
        self.assertIn('tollgate_budget_ratio{tenant="acme",currency="EUR"} 0.5', self.metrics("acme"))
        for threshold, reached in (("50", 1), ("80", 0), ("100", 0), ("forecast", 0)):
            self.assertIn(f'tollgate_budget_reached{{tenant="acme",currency="EUR",threshold="{threshold}"}} {reached}', self.metrics("acme"))
        self.assertNotIn("tollgate_budget", re.sub("^#.*$", "", self.metrics("globex"), flags=re.M).replace('family="tollgate_budget"', ""))
        self.assertIn("##########..........", table)
        self.stack.apply(POLICY)
        self.assertEqual(self.stack.get("/v1/budgets").json()["budgets"], [])


class Young(unittest.TestCase):
    """A ledger that began some hours ago, in the middle of a month."""

    def test_the_forecast_begins_with_the_first_hour_of_the_ledger(self):
        s = self.enterContext(Stack(options=["--rollup-interval", "100ms"]))
        hour = 3600 * NS
        month = int(datetime.datetime.now(datetime.timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()) * NS
        last = int(datetime.datetime.now().timestamp()) * NS // hour * hour
        first = last - 5 * hour
        begin = max(first, month)  # on the first of a month the ledger may be older than it
        policy = POLICY.replace("cluster: test\n", f"cluster: test\neffective: {datetime.datetime.fromtimestamp(first // NS, datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}\n")
        s.apply(policy.replace("{name: acme, ", '{name: acme, budget: {amount: "5000.00", currency: EUR}, '))
        s.token("n1", role="node", node="n1")
        records = [[1, 1, HELD, EXCLUSIVE, MEASURED, UNITS, at, 15 * MINUTE, 15 * MINUTE, 0, 0, 0, 0, 0, 1] for at in range(first, last, 15 * MINUTE)]
        batch = {"node": "n1", "boot_id": "ab" * 16, "epoch": 1, "seq": 1, "flags": 1, "from_ns": first, "to_ns": last, "records": records,
                 "devices": [{"id": 1, "uuid": "GPU-1", "model": H100, "index": 0}],
                 "holders": [{"id": 1, "kind": 1, "ns": "acme", "pod": "p", "pod_uid": "u", "container": "c"}]}  # fmt: skip
        reply = s.call("POST", "/v1/ingest", ledger.frames([batch]), role="n1")
        self.assertEqual(reply.status, 200, reply.text())
        s.sql("select make_periods(now(), now() + interval '1 second')")
        end = int(s.sql("select ns_of(max(ends_at)) from period")[0][0])
        before = int(datetime.datetime.now().timestamp()) * NS
        budget = s.get("/v1/budgets").json()["budgets"][0]
        after = (int(datetime.datetime.now().timestamp()) + 1) * NS
        consumed = Decimal(budget["consumed"])
        self.assertEqual(consumed, Decimal((last - begin) // hour))
        young = first > month
        self.assertEqual(budget["method"], "pro-rata-since-first-hour" if young else "pro-rata")
        self.assertEqual("the ledger's first hour" in budget["method_text"], young)
        most, least = (consumed * (end - begin) / (at - begin) for at in (before, after))
        self.assertTrue(least - Decimal("0.01") <= Decimal(budget["forecast"]) <= most + Decimal("0.01"), (least, budget["forecast"], most))
        self.assertIn(budget["method_text"], s.get("/v1/reports/current.html?tenant=acme").text())
        self.assertIn(budget["method"], s.cli("budget", "status").stdout)


HALF_DAY = 44 * 3600  # before the month began: within one day, in the middle of nothing
FIRST = datetime.datetime.now(datetime.timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
START = (int(FIRST.timestamp()) - HALF_DAY) * NS
BEFORE = (FIRST - datetime.timedelta(days=1)).replace(day=1)
LAST_MONTH = BEFORE.strftime("%Y-%m")


def pieces(gpu, runs):
    """runs: (until, pod or state), from START on; cut at quarter-hours, as exporters do."""
    at = START
    for until, what in runs:
        while at < START + until:
            end = min(START + until, (at // (15 * MINUTE) + 1) * 15 * MINUTE)
            yield gpu, what, at, end
            at = end


def stream(node, boot, epoch, gpus, skip=0):
    """One batch: GPUs with their runs, those before `skip` left out."""
    cut = sorted((p for g, runs in enumerate(gpus) for p in pieces(g, runs) if p[2] >= START + skip), key=lambda p: p[2])
    pods = sorted({what for _, what, _, _ in cut if isinstance(what, str)})
    return {
        "node": node, "boot_id": boot * 16, "epoch": epoch, "seq": 1, "flags": 1, "from_ns": cut[0][2], "to_ns": max(p[3] for p in cut),
        "devices": [{"id": i + 1, "uuid": f"GPU-{node}-{i}", "model": H100, "index": i} for i in range(len(gpus))],
        "holders": [{"id": i + 1, "kind": 1, "ns": pod.split("/")[0], "pod": pod.split("/")[1], "pod_uid": pod, "container": "c"} for i, pod in enumerate(pods)],
        "records": [[g + 1, pods.index(what) + 1 if isinstance(what, str) else 0, HELD if isinstance(what, str) else what, EXCLUSIVE,
                     MEASURED if isinstance(what, str) else NONE, UNITS, at, end - at, end - at, 0, 0, 0, 0, 0, 1] for g, what, at, end in cut],
    }  # fmt: skip


class Refunds(unittest.TestCase):
    """A job of two GPUs of which one is lost, one that an error ends on a sound GPU, one whose node is gone; those that just ended; one that loses its
    GPU twice, and one that had left its GPU for an hour before."""

    N1 = [
        [(80 * MINUTE, "acme/job-a"), (240 * MINUTE, DOWN)],
        [(81 * MINUTE, "acme/job-a"), (240 * MINUTE, UNALLOCATED)],
        [(120 * MINUTE, "globex/job-b"), (240 * MINUTE, UNALLOCATED)],
        [(30 * MINUTE, UNALLOCATED), (130 * MINUTE, "globex/job-c"), (240 * MINUTE, UNALLOCATED)],
    ]
    GONE = [[(90 * MINUTE, "globex/job-d"), (180 * MINUTE, UNALLOCATED), (240 * MINUTE, UNALLOCATED)]]
    RESTARTED = [[(90 * MINUTE, "globex/job-e"), (120 * MINUTE, UNALLOCATED), (240 * MINUTE, UNALLOCATED)]]
    AGAIN = [
        [(70 * MINUTE, "acme/job-f"), (90 * MINUTE, DOWN), (190 * MINUTE, "acme/job-f"), (240 * MINUTE, DOWN)],
        [(50 * MINUTE, "acme/job-g"), (130 * MINUTE, UNALLOCATED), (150 * MINUTE, "acme/job-g"), (240 * MINUTE, DOWN)],
    ]
    XIDS = {0: (79, 80 * MINUTE - 2 * NS), 2: (31, 120 * MINUTE - NS), 3: (94, 130 * MINUTE - 30 * NS)}

    @classmethod
    def setUpClass(cls):
        cls.s = s = cls.enterClassContext(Stack(zone="Europe/Berlin", options=["--rollup-interval", "100ms"]))
        prices = 'prices: {version: "1", currency: EUR, items: [{class: on-demand, price: "3.00"}]}'
        nodes = "nodes: [{name: n1, shared: true}, {name: n2, shared: true}, {name: n3, shared: true}, {name: n4, shared: true}]"
        policy = POLICY.replace("nodes: [{name: n1, shared: true}]", nodes).replace("cluster: test\n", f"cluster: test\neffective: {BEFORE:%Y-%m-%d}T00:00:00Z\n")
        s.apply(policy.replace('prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}', prices))
        for role in ("acme", "globex"):
            s.token(role, role="viewer", tenant=role)

        def until(gpus, end):
            return [[r for r in runs if r[0] <= end] for runs in gpus]

        for node, streams in (
            ("n1", [stream("n1", "a1", 1, cls.N1)]),
            ("n2", [stream("n2", "a2", 1, until(cls.GONE, 90 * MINUTE)), stream("n2", "b2", 2, cls.GONE, 180 * MINUTE)]),
            ("n3", [stream("n3", "a3", 1, until(cls.RESTARTED, 90 * MINUTE)), stream("n3", "a3", 2, cls.RESTARTED, 120 * MINUTE)]),
            ("n4", [stream("n4", "a4", 1, cls.AGAIN)]),
        ):
            s.token(node, role="node", node=node)
            for batch in streams:
                reply = s.call("POST", "/v1/ingest", ledger.frames([batch]), role=node)
                assert reply.status == 200 and reply.json()["quarantined"] == 0, reply.text()
        gpus = [{"uuid": f"GPU-n1-{i}", "model": H100, "index": i, "healthy": True, "reason": "", "xid": cls.XIDS.get(i, (0, 0))[0],
                 "xid_at": START + cls.XIDS[i][1] if i in cls.XIDS else 0, "sharing": "exclusive", "replicas": 1, "instances": [], "holders": []}
                for i in range(4)]  # fmt: skip
        status = {"node": "n1", "boot_id": "a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1", "boot_ns": 1, "wall_ns": START + 240 * MINUTE, "interval_ns": 5 * NS,
                  "simulated": True, "left_out": 0, "gpus": gpus}  # fmt: skip
        reply = s.call("POST", "/v1/status", json.dumps(status).encode(), role="n1")
        assert reply.status == 200, reply.text()
        folded = f"select bool_and(not dirty) from billing_day where day <= '{FIRST:%Y-%m-%d}'"
        wait_for("the days to be folded", lambda: s.sql(folded) == [["t"]])

    def listed(self, role="admin", query=""):
        return self.s.get(f"/v1/refunds?month={LAST_MONTH}{query}", role).json()["refunds"]

    def test_what_was_lost_is_listed_with_its_cause_and_what_it_cost(self):
        found = [(r["tenant"], r["pod"], r["gpu"], r["cause"], r["xid"], r["failed_gpu"], r["gpu_hours"], r["charged"], r["currency"]) for r in self.listed()]
        self.assertEqual(
            found,
            [
                ("acme", "job-f", "GPU-n4-0", "gpu-down", "", "GPU-n4-0", "1.666666667", "5.00", "EUR"),  # its hours 0 and 1
                ("acme", "job-a", "GPU-n1-0", "gpu-down", "79", "GPU-n1-0", "1.333333333", "4.00", "EUR"),
                ("acme", "job-a", "GPU-n1-1", "gpu-down", "79", "GPU-n1-0", "1.350000000", "4.05", "EUR"),
                ("acme", "job-g", "GPU-n4-1", "gpu-down", "", "GPU-n4-1", "0.333333333", "1.00", "EUR"),  # since it was back
                ("acme", "job-f", "GPU-n4-0", "gpu-down", "", "GPU-n4-0", "1.166666667", "3.50", "EUR"),  # its hours 2 and 3
                ("globex", "job-d", "GPU-n2-0", "node-silent", "", "GPU-n2-0", "1.500000000", "4.50", "EUR"),
                ("globex", "job-c", "GPU-n1-3", "xid", "94", "GPU-n1-3", "1.666666667", "5.00", "EUR"),
            ],
        )
        moments = {r["gpu"]: (r["from"], r["until"]) for r in self.listed()}
        for gpu, since, until in (("GPU-n1-0", 0, 80), ("GPU-n1-3", 30, 130), ("GPU-n4-1", 130, 150), ("GPU-n4-0", 120, 190)):
            want = tuple(datetime.datetime.fromtimestamp((START + m * MINUTE) // NS, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") for m in (since, until))
            self.assertEqual(moments[gpu], want)

    def test_a_tenant_sees_its_own_and_the_table_is_the_list(self):
        self.assertEqual({r["pod"] for r in self.listed("acme")}, {"job-a", "job-f", "job-g"})
        self.assertEqual({r["pod"] for r in self.listed("globex")}, {"job-c", "job-d"})
        self.assertEqual(self.s.call("GET", f"/v1/refunds?month={LAST_MONTH}&tenant=globex", role="acme").status, 404)
        table = self.s.get(f"/v1/refunds?month={LAST_MONTH}&format=csv", "globex").body.decode()
        self.assertEqual(list(csv.DictReader(io.StringIO(table, newline=""))), self.listed("globex"))
        self.assertIn("job-c", self.s.cli("refunds", "--month", LAST_MONTH).stdout)
        self.assertEqual(self.s.call("GET", "/v1/refunds?month=1999-01").status, 404)
        self.assertEqual(self.s.get("/v1/refunds").json()["refunds"], [])

    def test_it_is_the_same_before_the_day_is_folded_and_stays_when_its_records_are_gone(self):
        found = self.listed()
        self.s.sql("begin; update billing_day set dirty = true where day >= '2000-01-01'; commit")
        self.assertEqual(self.listed(), found)
        folded = f"select bool_and(not dirty) from billing_day where day <= '{FIRST:%Y-%m-%d}'"
        wait_for("the days to be folded again", lambda: self.s.sql(folded) == [["t"]])
        self.assertEqual(self.listed(), found)
        # As after --keep-intervals: a node-hour without records.
        self.s.sql(f"begin; update node_hour set retired = true where sealed_at is not null and hour < '{FIRST:%Y-%m-%d}'; delete from usage_interval; update billing_day set dirty = true; commit")
        self.assertEqual(self.listed(), found)
        wait_for("the days to be folded without records", lambda: self.s.sql(folded) == [["t"]])
        self.assertEqual(self.listed(), found)

    def test_a_credit_names_the_row_that_it_is_for_and_the_row_names_it(self):
        row = next(r for r in self.listed() if r["pod"] == "job-c")
        self.assertEqual(row["credits"], "")
        common = ["credit", "add", "--tenant", "globex", "--currency", "EUR", "--category", "gpu", "--reason", "lost by XID 94", "-o", "json"]
        made = json.loads(self.s.cli(*common, "--amount", "-" + row["charged"], "--refund", row["id"]).stdout)
        self.assertEqual((made["refund"], made["amount"], made["status"]), (row["id"], "-5.00", "approved"))
        self.assertEqual(next(r for r in self.listed() if r["pod"] == "job-c")["credits"], str(made["id"]))
        for what, status in (({"refund": "0" * 16}, 404), ({"refund": "x"}, 400), ({"refund": row["id"], "amount": "5"}, 400), ({"refund": row["id"], "tenant": "acme"}, 404)):
            body = {"tenant": "globex", "amount": "-1.00", "currency": "EUR", "reason": "x", **what}
            self.assertEqual(self.s.call("POST", "/v1/adjustments", json.dumps(body).encode()).status, status, what)
        back = self.s.call("POST", f"/v1/adjustments/{made['id']}/reverse", json.dumps({"reason": "not agreed"}).encode())
        self.assertEqual(back.status, 200, back.text())
        self.assertEqual(next(r for r in self.listed() if r["pod"] == "job-c")["credits"], "", "taken back")


class Command(Case):
    def test_the_command_enters_lists_and_reverses(self):
        out = json.loads(self.stack.cli("credit", "add", "--tenant", "acme", "--amount", "-3.00", "--currency", "EUR", "--reason", "sorry", "-o", "json").stdout)
        self.assertEqual((out["amount"], out["status"]), ("-3.00", "approved"))
        self.assertIn("sorry", self.stack.cli("credit", "list", "--tenant", "acme").stdout)
        back = json.loads(self.stack.cli("credit", "reverse", str(out["id"]), "--reason", "after all", "-o", "json").stdout)
        self.assertEqual((back["amount"], back["reverses"]), ("3.00", out["id"]))
        words = {r["sku"]: r["description"] for r in self.stack.get("/v1/reports/current.json?tenant=acme").json()["lines"]}
        self.assertEqual(words[f"adjustment-{out['id']}"], "Credit: sorry")
        self.assertEqual(words[f"adjustment-{back['id']}"], f"Reversal of credit adjustment-{out['id']}: after all")


if __name__ == "__main__":
    unittest.main()
