"""A month as documents: CSV, FOCUS, JSON and the printed page say the same, down to the last cent, and every one is checked by its rules."""

import csv
import datetime
import hashlib
import html
import http.server
import io
import json
import os
import re
import subprocess
import tempfile
import threading
import unittest
import zoneinfo
from decimal import Decimal

from tests.support.billing import csv_check, focus_check
from tests.support.daemons.stack import ROOT, Stack, program, wait_for
from tests.support.fleet.fleet import EXCLUSIVE, H100, HELD, HOUR, MEASURED, MINUTE, NONE, NS, UNALLOCATED, UNITS
from tests.support.store import ledger

FIRST = datetime.datetime.now(datetime.timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
START = (int(FIRST.timestamp()) - 50 * 3600) * NS  # in the month before this one, over three days of it
BEFORE = (FIRST - datetime.timedelta(days=1)).replace(day=1)
A100 = "NVIDIA A100-SXM4-40GB"
MONTH = BEFORE.strftime("%Y-%m")
POLICY = f"""
version: 1
cluster: test
effective: {BEFORE:%Y-%m-%d}T00:00:00Z
tenants:
  - name: acme
    display_name: Acme <Robotics>
    cost_center: R&D, Köln
    budget: {{amount: "500.00", currency: EUR}}
    workspaces:
      - {{name: training, rules: [{{namespace: acme}}], reserved_shared: {{H100-80GB: "2"}}, lend: {{H100-80GB: "2"}}}}
      - {{name: own, rules: [{{namespace: own}}]}}
  - {{name: globex, workspaces: [{{name: research, rules: [{{namespace: globex}}], borrow: "4"}}]}}
nodes: [{{name: n1, shared: true, gpus: 4, model: H100-80GB}}, {{name: n2, tenant: acme, gpus: 2, model: H100-80GB}},
        {{name: n3, shared: true, gpus: 3, model: A100-40GB}}]
prices:
  version: "{MONTH}"
  currency: EUR
  lender_ratio: "0.8"
  items:
    - {{class: reserved, price: "2.00"}}
    - {{class: on-demand, price: "3.333"}}
    - {{class: borrowed, price: "1.50"}}
    - {{class: dedicated, price: "1.10"}}
    - {{meter: storage, price: "0.000123"}}
  discounts: [{{tenant: globex, category: gpu, percent: "7"}}]
  energy: [{{cluster: test, price_per_kwh: "0.30", carbon_g_per_kwh: "380"}}]
  shared_idle: {{method: even}}
  platform_cost: {{monthly: "1000.00"}}
"""


def batches(node, held, hours, model=H100):
    """held: per GPU the namespace that holds it, or None. A record per quarter-hour; a third of it is active."""
    devices = [{"id": i + 1, "uuid": f"GPU-{node}-{i}", "model": model, "index": i} for i in range(len(held))]
    names = sorted({ns for ns in held if ns})
    holders = [{"id": i + 1, "kind": 1, "ns": ns, "pod": f"pod-{ns}", "pod_uid": f"{node}-{ns}", "container": "c", "labels": f"app={node},team={ns}"} for i, ns in enumerate(names)]
    out, step = [], 15 * MINUTE
    for at in range(START, START + hours * HOUR, step):
        records = [
            [i + 1, names.index(ns) + 1 if ns else 0, HELD if ns else UNALLOCATED, EXCLUSIVE, MEASURED if ns else NONE, UNITS, at, step, step,
             step // 3 if ns else 0, 0, 0, 0, 360_000, 1]
            for i, ns in enumerate(held)
        ]  # fmt: skip
        out.append({"node": node, "boot_id": "ab" * 16, "epoch": 1, "seq": len(out) + 1, "flags": 1, "from_ns": at, "to_ns": at + step,
                    "devices": [] if out else devices, "holders": [] if out else holders, "records": records})  # fmt: skip
    return out


def retired():
    """The same from the end of the month on, without nodes and what was reserved of them: a silent node is work for every hour until today."""
    over = FIRST.replace(tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")).astimezone(datetime.timezone.utc)
    text = re.sub(r", reserved_shared: \{.*?\}, lend: \{.*?\}", "", POLICY).replace(f"effective: {BEFORE:%Y-%m-%d}T00:00:00Z", f"effective: {over:%Y-%m-%dT%H:%M:%SZ}")
    return re.sub(r"(model: [AH]100-\d+GB)", r"\1, state: retired", text)


def fill(s):
    s.apply(POLICY)
    s.apply(retired())
    s.sql("select make_periods(now(), now() + interval '1 second')")
    s.token("acme", role="viewer", tenant="acme")
    for node, held, hours, model in (("n1", ["acme", "globex", "globex", "globex"], 44, H100), ("n2", ["own", None], 41, H100), ("n3", ["own", "globex", None], 7, A100)):
        s.token(node, role="node", node=node)
        reply = s.call("POST", "/v1/ingest", ledger.frames(batches(node, held, hours, model)), role=node)
        assert reply.status == 200 and reply.json()["quarantined"] == 0, reply.text()
    event = {"specversion": "1.0", "id": "1", "source": "/ceph", "type": "tollgate.storage.v1", "time": (FIRST - datetime.timedelta(hours=30)).isoformat(),
             "data": {"tenant": "acme", "workspace": "training", "gb_hours": "1234.5"}}  # fmt: skip
    reply = s.call("POST", "/v1/events", json.dumps(event).encode(), headers={"Content-Type": "application/cloudevents+json"})
    assert reply.status in (200, 201, 202), reply.text()
    # From then on nothing of the month changes by itself.
    folded = f"select count(*) from billing_day b join period p on b.starts_at >= p.starts_at and b.starts_at < p.ends_at where p.month = '{MONTH}' and b.dirty"
    wait_for("the days of the month to be folded", lambda: s.sql(folded) == [["0"]])
    wait_for("the month to be over", lambda: s.sql(f"select status from period where month = '{MONTH}'") == [["grace"]])


def page_amounts(text):
    """The total of each invoice on the pages, and its amounts by category."""
    out = {}
    for section in text.split("<section>")[1:]:
        number = html.unescape(re.search(r"<dt>Number</dt><dd>(.*?)</dd>", section)[1])
        rows = dict(re.findall(r'<tr(?: class="total")?><th>(\w+)</th><td class="n">(.*?)</td>', section))
        out[number] = {k: Decimal(v.replace("\N{MINUS SIGN}", "-")) for k, v in rows.items() if k in ("GPU", "Storage", "Network", "Inference", "Support", "Energy", "Other", "Total")}
    return out


def page_lines(section):
    """The rows of a page's table of lines: (what kind of row, its words, its numbers)."""
    for kind, cells in re.findall(r'<tr(?: class="(\w+)")?>(.*?)</tr>', section.split('class="lines"')[1].split("<tbody>")[1], re.S):
        numbers = [Decimal(n.replace("\N{MINUS SIGN}", "-")) for n in re.findall(r'<td class="n">([^<]*)</td>', cells)]
        yield kind or "line", html.unescape(re.sub("<.*?>", "", re.search(r"<td.*?>(.*?)</td>", cells)[1])), numbers


class Documents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = cls.enterClassContext(Stack(zone="Europe/Berlin", options=["--rollup-interval", "100ms", "--organisation", "Example & Söhne", "--provider-name", "Platform"]))
        fill(cls.s)
        cls.text = cls.report("csv")
        cls.rows = csv_check.rows_of(cls.text)
        cls.payable = {}
        for row in cls.rows:
            cls.payable[row["invoice_id"]] = cls.payable.get(row["invoice_id"], Decimal(0)) + Decimal(row["billed_cost"])

    @classmethod
    def report(cls, suffix, role="admin", **query):
        asked = "&".join(f"{k}={v}" for k, v in query.items())
        return cls.s.get(f"/v1/reports/{MONTH}.{suffix}?{asked}", role).body.decode()

    def test_the_month_has_every_kind_of_line(self):
        kinds = {(r["charge_type"], r["class"], r["category"]) for r in self.rows}
        for kind in (("commitment", "reserved", "gpu"), ("covered", "reserved", "gpu"), ("credit", "borrowed", "gpu"), ("usage", "on-demand", "gpu"), ("usage", "borrowed", "gpu"),
                     ("usage", "dedicated", "gpu"), ("usage", "", "storage"), ("usage", "", "energy")):  # fmt: skip
            self.assertIn(kind, kinds)

    def test_the_csv_adds_up_at_every_level_and_so_does_its_manifest(self):
        manifest = json.loads(self.report("csv", manifest=1))
        self.assertEqual(csv_check.check(self.text, manifest), [])
        self.assertEqual(manifest["sha256"], hashlib.sha256(self.text.encode()).hexdigest())
        self.assertEqual(manifest["bytes"], len(self.text.encode()))
        for suffix in ("csv", "csv?excel=1", "json", "html", "focus.csv", "focus-periods.csv"):
            reply = self.s.get(f"/v1/reports/{MONTH}.{suffix}")
            about = json.loads(reply.headers["Tollgate-Manifest"])
            self.assertEqual((about["sha256"], about["bytes"]), (hashlib.sha256(reply.body).hexdigest(), len(reply.body)), suffix)
            self.assertEqual(about, self.s.get(f"/v1/reports/{MONTH}.{suffix}{'&' if '?' in suffix else '?'}manifest=1").json())

    def test_focus_follows_its_rules_and_comes_to_the_same_invoices(self):
        text = self.report("focus.csv")
        self.assertEqual(focus_check.check(text, self.payable), [])
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        for line in self.rows:
            days = [r for r in rows if r["x_LineId"] == line["line_id"]]
            same = [("billed_cost", "BilledCost")]
            if line["charge_type"] in ("usage", "commitment"):  # FOCUS has list prices for what the bill has at none, and none for credits
                same += [("list_cost", "ListCost"), ("quantity", "PricingQuantity")]
            for ours, theirs in same:
                self.assertEqual(sum(Decimal(r[theirs]) for r in days), Decimal(line[ours]), f"{theirs} of {line['description']}")
        self.assertEqual(json.loads(self.report("focus.csv", manifest=1))["rows"], len(rows))
        self.assertEqual({r["AllocatedMethodId"] for r in rows}, {"", "shared-idle/even"})
        mine = self.report("focus.csv", tenant="acme")
        self.assertEqual(focus_check.check(mine, whole=False), [])
        self.assertTrue(any(s.startswith("D6") for s in focus_check.check(mine)), "a part is not the whole")
        self.assertIn("Example & Soehne", text)
        self.assertEqual(focus_check.check_periods(self.report("focus-periods.csv")), [])

    def test_tags_have_the_labels_that_all_of_a_workspace_had(self):
        """The pods of own were on two nodes, and their label app says which."""
        tags = {}
        for r in csv.DictReader(io.StringIO(self.report("focus.csv"), newline="")):
            held = any(Decimal(r[name] or 0) for name in ("x_UsedGpuHours", "x_IdleGpuHours"))
            labels = {k: v for k, v in json.loads(r["Tags"]).items() if not k.startswith("tollgate/")}
            tags.setdefault((r["SubAccountId"], r["x_WorkspaceId"], held or r["ServiceName"] == "Energy"), []).append(labels)
        for (tenant, workspace, held), found in tags.items():
            expected = {("acme", "training"): {"app": "n1", "team": "acme"}, ("acme", "own"): {"team": "own"}, ("globex", "research"): {"team": "globex"}}.get((tenant, workspace), {}) if held else {}
            for labels in found:
                self.assertEqual(labels, expected, (tenant, workspace, held))

    def test_every_version_of_focus_has_its_columns_and_the_same_cents(self):
        texts = {version: self.report("focus.csv", focus_version=version) for version in ("1.2", "1.3", "1.4")}
        self.assertEqual(texts["1.2"], self.report("focus.csv"), "1.2 is what comes without a version")
        for version, text in texts.items():
            self.assertEqual(focus_check.check(text, self.payable, version=version), [], version)
        head = {version: set(text.split("\r\n")[0].split(",")) for version, text in texts.items()}
        self.assertEqual(head["1.3"] - head["1.2"], {"AllocatedResourceId", "AllocatedResourceName", "AllocatedTags"})
        self.assertEqual((head["1.3"] - head["1.4"], head["1.4"] - head["1.3"]), ({"ProviderName", "PublisherName"}, {"InvoiceDetailId"}))
        self.assertEqual(focus_check.check_invoices(self.report("focus-invoices.csv"), texts["1.4"]), [])
        for asked in ("focus.csv?focus_version=1.5", "csv?focus_version=1.3"):
            self.assertEqual(self.s.call("GET", f"/v1/reports/{MONTH}.{asked}").status, 400, asked)
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.s.cli("report", MONTH, "--format", "focus", "--focus-version", "1.4", "--output", folder).returncode, 0)
            self.assertEqual({n for n in os.listdir(folder) if n.endswith(".csv")}, {f"tollgate-{MONTH}.focus{n}.csv" for n in ("-1.4", "-periods", "-invoices")})
        self.assertEqual(self.s.cli("report", MONTH, "--focus-version", "1.4").returncode, 2)

    def test_json_has_the_lines_of_the_csv(self):
        doc = json.loads(self.report("json"))
        self.assertEqual(doc["lines"], self.rows)
        self.assertEqual({t["invoice_id"]: Decimal(t["billed_cost"]) for t in doc["totals"]}, self.payable)

    def test_the_printed_pages_have_the_sums_of_the_csv(self):
        text = self.report("html")
        pages = page_amounts(text)
        self.assertEqual({k: v["Total"] for k, v in pages.items()}, self.payable)
        for invoice, page in pages.items():
            lines = [r for r in self.rows if r["invoice_id"] == invoice]
            for category in ("gpu", "storage", "network", "inference", "support", "energy", "other"):
                there = sum((Decimal(r["billed_cost"]) for r in lines if r["category"] == category), Decimal(0))
                self.assertEqual(page[category.upper() if category == "gpu" else category.capitalize()], there, f"{invoice} {category}")
        self.assertNotIn("<Robotics>", text)
        self.assertIn("Acme &lt;Robotics&gt;", text)
        self.assertIn("Example &amp; Söhne", text)

    def test_the_printed_lines_have_list_discount_and_net(self):
        """What a line is multiplied from and what is taken off it is on the paper, as the CSV has it; a workspace's subtotal has all its lines."""
        cents, discounted = Decimal("0.01"), 0
        for section in self.report("html").split("<section>")[1:]:
            invoice = html.unescape(re.search(r"<dt>Number</dt><dd>(.*?)</dd>", section)[1])
            lines = [r for r in self.rows if r["invoice_id"] == invoice]
            table = list(page_lines(section))
            for kind, words, numbers in table:
                if kind != "line":
                    continue
                quantity, price, listed, discount, net = numbers
                self.assertEqual(listed, (quantity * price).quantize(cents, "ROUND_HALF_EVEN"), words)
                self.assertLessEqual(abs(listed - discount - net), cents, words)
                discounted += discount > 0
                found = [r for r in lines if (r["description"], Decimal(r["quantity"]), Decimal(r["unit_price"]), Decimal(r["billed_cost"])) == (words, quantity, price, net)]
                self.assertEqual({Decimal(r["discount"]).quantize(cents, "ROUND_HALF_EVEN") for r in found}, {discount}, words)
            sums = {}
            for r in lines:
                of = sums.setdefault(r["workspace"] or "The tenant as a whole", [Decimal(0)] * 3)
                sums[r["workspace"] or "The tenant as a whole"] = [a + Decimal(r[k]) for a, k in zip(of, ("list_cost", "discount", "billed_cost"))]
            groups = {re.sub(" with \\d+ smaller lines?, in the CSV", "", words): n for kind, words, n in table if kind == "group"}
            self.assertEqual(groups, {k: [v.quantize(cents, "ROUND_HALF_EVEN") for v in of] for k, of in sums.items()}, "subtotals by workspace")
            [total] = [n for kind, _, n in table if kind == "total"]
            self.assertEqual(total, [sum(of[i] for of in sums.values()).quantize(cents, "ROUND_HALF_EVEN") for i in range(3)])
            words = [w for kind, w, _ in table if kind == "line"]
            if "Reservation of H100-80GB" in words:
                self.assertLess(words.index("Reservation of H100-80GB"), words.index("Reserved H100-80GB, lent to globex"), "credits come after what they are for")
            rounding = Decimal(re.search(r"Rounding in all: (.*?)\xa0EUR", section)[1].replace("\N{MINUS SIGN}", "-"))
            self.assertEqual(rounding, sum(Decimal(r["rounding"]) for r in lines))
            last = FIRST - datetime.timedelta(days=1)
            self.assertIn(f"<dd>1 to {last.day} {last:%B %Y}, Europe/Berlin</dd>", section)
        self.assertGreater(discounted, 0, "no line of these pages has a discount")

    def test_the_page_says_what_the_budget_has_come_to(self):
        text = self.report("html", role="acme")
        spent = self.payable[f"acme-{MONTH}-1"]
        row = re.search(r'<tr><th class="what"><div class="one">All workspaces, soft</div></th><td>EUR</td><td class="n whole">500.00</td><td class="n">(.*?)</td><td class="n">(.*?)</td><td class="n">(.*?)</td>', text)
        self.assertEqual((row[1], row[3]), (str(spent), str(spent)), "the month is over: it has come to what was spent")
        self.assertIn("the month is over", text)
        self.assertNotIn("Budgets", self.report("html", tenant="globex"))

    def reconciled(self, month):
        """Its totals, after every row was added up again, as JSON, table and page have it; of the open month, which grows, JSON alone."""
        doc = self.s.get(f"/v1/reconciliation?month={month}").json()
        table = list(csv.DictReader(io.StringIO(self.s.get(f"/v1/reconciliation?month={month}&format=csv").body.decode(), newline="")))
        page = self.s.get(f"/v1/reconciliation?month={month}&format=html").body.decode().replace("\N{MINUS SIGN}", "-")
        for row in doc["rows"]:
            terms = {t["item"]: t["amount"] for t in row["terms"]}
            self.assertEqual(sum(map(Decimal, terms.values())), Decimal(row["capacity_value"]))
            self.assertTrue(row["agrees"])
            if month == "current":
                continue
            same = {r["item"]: r["amount"] for r in table if (r["level"], r["cluster"], r["gpu_model"]) == (row["level"], row["cluster"], row["gpu_model"]) and r["section"] not in ("hours", "capacity")}
            self.assertEqual(same, terms)
            self.assertIn(f'<td class="n">{row["capacity_value"]}</td>', page)
        return {t["currency"]: t for t in doc["totals"]}

    def test_the_reconciliation_comes_to_the_sum_of_all_invoices(self):
        total = self.reconciled(MONTH)["EUR"]
        self.assertEqual(Decimal(total["total"]), sum(self.payable.values()))
        for category in ("storage", "energy"):
            self.assertEqual(Decimal(total[category]), sum(Decimal(r["billed_cost"]) for r in self.rows if r["category"] == category))
        self.assertEqual(Decimal(total["capacity"]), sum(Decimal(r["billed_cost"]) for r in self.rows if r["category"] == "gpu"))
        self.assertEqual((total["platform_cost"], Decimal(total["difference"])), ("1000.00", sum(self.payable.values()) - 1000))
        self.assertEqual(self.s.call("GET", "/v1/reconciliation", role="acme").status, 403)
        self.assertEqual(self.s.call("GET", "/v1/reconciliation?month=1999-01").status, 404)
        self.assertEqual(self.s.call("GET", "/v1/reconciliation?format=pdf").status, 400)
        self.assertIn("test", self.s.cli("reconcile", "--month", MONTH).stdout)
        self.assertEqual(self.s.cli("reconcile", "--month", MONTH, "--format", "csv").stdout.replace("\n", "\r\n"),
                         self.s.get(f"/v1/reconciliation?month={MONTH}&format=csv").body.decode().replace("\r\r", "\r"))  # fmt: skip

    def test_of_the_open_month_metrics_and_every_document_have_the_same_sum(self):
        for tenant, amount in (("acme", "12.34"), ("globex", "-5.55")):
            what = {"tenant": tenant, "amount": amount, "currency": "EUR", "reason": "a test"}
            self.assertEqual(self.s.call("POST", "/v1/adjustments", json.dumps(what).encode()).status, 201)

        def by_tenant(rows, tenant, cost):
            out = {}
            for r in rows:
                out[r[tenant]] = out.get(r[tenant], Decimal(0)) + Decimal(r[cost])
            return out

        def metrics():
            found = re.findall(r'^tollgate_period_cost\{period="(.*?)",tenant="(.*?)"[^}]*currency="EUR"\} (\S+)$', self.s.get("/metrics").text(), re.M)
            return by_tenant([dict(zip(("period", "tenant", "cost"), f)) for f in found], "tenant", "cost")

        def document(suffix):
            return self.s.get(f"/v1/reports/current.{suffix}").body.decode()

        rows = csv_check.rows_of(document("csv"))
        expected = by_tenant(rows, "tenant", "billed_cost")
        self.assertEqual((expected["acme"], expected["globex"]), (Decimal("12.34"), Decimal("-5.55")))
        wait_for("the metrics to have it", lambda: metrics() == expected, self.s.aggregator)
        focus = list(csv.DictReader(io.StringIO(document("focus.csv"), newline="")))
        self.assertEqual(by_tenant(focus, "SubAccountId", "BilledCost"), expected)
        self.assertEqual(by_tenant(json.loads(document("json"))["lines"], "tenant", "billed_cost"), expected)
        self.assertEqual({k.split("-")[0]: v["Total"] for k, v in page_amounts(document("html")).items()}, expected)
        self.assertEqual(Decimal(self.reconciled("current")["EUR"]["total"]), sum(expected.values()))
        table = self.s.sql("select t.name, sum(a.amount)::text from adjustment a join adjustment_approval p on p.adjustment_id = a.id join tenant t on t.id = a.tenant_id group by 1")
        self.assertEqual({k: Decimal(v) for k, v in table}, expected)

    def test_hours_are_those_of_usage_and_of_the_tables(self):
        held = sum(Decimal(r["allocated_gpu_hours"] or "0") for r in self.rows)
        asked = f"/v1/usage?from={BEFORE:%Y-%m-%d}&to={FIRST:%Y-%m-%d}&group_by=tenant&exact=1"
        groups = [g for g in self.s.get(asked).json()["groups"] if g["tenant"]]
        exact = sum(int(g["allocated_unit_ns"]) for g in groups)
        self.assertEqual(exact, int(held * UNITS * HOUR))
        table = self.s.sql(f"select sum(u.used + u.idle + u.unmeasured)::text from period p, usage_rows(p.starts_at, p.ends_at) u where p.month = '{MONTH}' and u.workspace_id is not null")
        self.assertEqual(table, [[str(exact)]])

    def test_a_tenant_gets_its_own_document_and_no_other(self):
        # who borrowed is for the operator
        lent = {"counterparty": "", "description": "Reserved H100-80GB, lent to another tenant"}
        mine = [r | lent if r["counterparty"] else r for r in self.rows if r["tenant"] == "acme"]
        self.assertEqual(csv_check.rows_of(self.report("csv", role="acme")), mine)
        for suffix in ("csv", "focus.csv", "json", "html"):
            self.assertEqual(self.s.call("GET", f"/v1/reports/{MONTH}.{suffix}?tenant=globex", role="acme").status, 404)
            self.assertNotIn("globex", self.report(suffix, role="acme"))

    def test_a_spreadsheet_gets_the_same_numbers(self):
        text = self.report("csv", excel=1)
        self.assertTrue(text.startswith("\N{ZERO WIDTH NO-BREAK SPACE}period_start;"))
        rows = list(csv.DictReader(io.StringIO(text[1:], newline=""), delimiter=";"))
        for row, same in zip(rows, self.rows, strict=True):
            for name in csv_check.NUMBERS:
                self.assertEqual(row[name].replace(",", "."), same[name], name)
        self.assertEqual(self.s.call("GET", f"/v1/reports/{MONTH}.json?excel=1").status, 400)


    def test_workloads_add_up_to_every_line_in_every_digit(self):
        named = 0
        for line in self.rows:
            rows = csv_check.rows_of(self.s.get(f"/v1/reports/{MONTH}/lines/{line['line_id']}").body.decode())
            same = [("quantity", "quantity"), ("billed_cost", "billed_cost"), ("list_cost", "list_cost")]
            if line["charge_type"] == "usage" and line["class"] in ("on-demand", "borrowed"):
                same += [(k, k) for k in ("used_gpu_hours", "idle_gpu_hours", "unmeasured_gpu_hours")] + [("gpu_hours", "allocated_gpu_hours")]
                self.assertTrue(all(r["pod"].startswith("pod-") and r["device"].startswith("GPU-") and r["container"] == "c" for r in rows), rows[:1])
                named += len(rows)
            for theirs, ours in same:
                self.assertEqual(sum(Decimal(r[theirs]) for r in rows), Decimal(line[ours]), f"{theirs} of {line['description']}")
        self.assertGreater(named, 6, "several devices on several days")
        one = self.rows[0]["line_id"]
        self.assertEqual(self.s.get(f"/v1/reports/{MONTH}/lines/{one}.json").json()["rows"], csv_check.rows_of(self.s.get(f"/v1/reports/{MONTH}/lines/{one}.csv").body.decode()))
        self.assertEqual(self.s.cli("report", MONTH, "--detail", one).stdout, self.s.get(f"/v1/reports/{MONTH}/lines/{one}").body.decode().replace("\r\n", "\n"))

    def test_a_row_without_a_workload_says_why(self):
        notes = {}
        for line in self.rows:
            for r in csv_check.rows_of(self.s.get(f"/v1/reports/{MONTH}/lines/{line['line_id']}").body.decode()):
                self.assertEqual(r["note"] == "", r["pod"] != "", r)
                notes.setdefault(line["description"].split(",")[-1].strip(), set()).add(r["note"])
        said = set().union(*notes.values())
        for words in ("whoever used it", "lent", "held by nobody", "this tenant's part", "events"):
            self.assertTrue(any(words in n for n in said), words)

    def test_what_was_retired_is_named_and_still_adds_up(self):
        line = next(r for r in self.rows if r["class"] == "on-demand" and r["workspace"] == "research" and r["gpu_model"].startswith("H100"))
        path = f"/v1/reports/{MONTH}/lines/{line['line_id']}"
        day = max(int(r["day"]) for r in csv_check.rows_of(self.s.get(path).body.decode()))
        when = f"'{MONTH}-{day:02}'::date"
        hours = f"hour >= (select starts_at from billing_day where day = {when}) and hour < (select ends_at from billing_day where day = {when})"
        self.s.sql(f"create table kept_hours as select * from usage_hourly where {hours}")
        self.s.sql(f"begin; delete from usage_hourly where {hours}; update billing_day set hours_gone = true where day = {when}; commit")
        try:
            rows = csv_check.rows_of(self.s.get(path).body.decode())
        finally:
            self.s.sql(f"begin; update billing_day set hours_gone = false where day = {when}; insert into usage_hourly select * from kept_hours; drop table kept_hours; commit")
        gone = [r for r in rows if int(r["day"]) == day]
        self.assertEqual([(r["pod"], "retired" in r["note"]) for r in gone], [("", True)])
        self.assertTrue(all(r["pod"] and not r["note"] for r in rows if int(r["day"]) != day))
        for name in ("quantity", "billed_cost", "list_cost", "used_gpu_hours", "idle_gpu_hours"):
            self.assertEqual(sum(Decimal(r[name]) for r in rows), Decimal(line[name]), name)

    def test_the_workloads_of_others_are_not_there(self):
        theirs = next(r["line_id"] for r in self.rows if r["tenant"] == "globex")
        self.assertEqual(self.s.call("GET", f"/v1/reports/{MONTH}/lines/{theirs}", role="acme").status, 404)
        self.assertEqual(self.s.call("GET", f"/v1/reports/{MONTH}/lines/{theirs}?tenant=globex", role="acme").status, 404)
        self.assertEqual(self.s.call("GET", f"/v1/reports/{MONTH}/lines/0000").status, 404)

    def test_the_command_keeps_each_document_with_its_manifest(self):
        folder = os.path.join(self.s.dir, "documents")
        os.mkdir(folder)
        for wanted in (["--format", "csv"], ["--excel"], ["--format", "focus"], ["--format", "html", "--tenant", "acme"], ["--format", "json"]):
            done = self.s.cli("report", MONTH, *wanted, "--output", folder)
            self.assertEqual(done.returncode, 0, done.stderr)
        names = {n for n in os.listdir(folder) if not n.endswith(".manifest.json")}
        self.assertEqual(names, {f"tollgate-{MONTH}{n}" for n in (".csv", ".excel.csv", ".focus.csv", ".focus-periods.csv", "-acme.html", ".json")})
        for name in names:
            with open(os.path.join(folder, name), "rb") as f, open(os.path.join(folder, name + ".manifest.json"), encoding="utf-8") as m:
                manifest = json.load(m)
                self.assertEqual((manifest["document"], manifest["sha256"]), (name, hashlib.sha256(f.read()).hexdigest()))
        self.assertEqual(self.s.cli("report", MONTH, "--format", "csv").stdout.replace("\n", "\r\n"), self.text.replace("\r\r", "\r"))
        self.assertEqual(self.s.cli("report", MONTH, "--format", "focus", "--excel").returncode, 2)


class Growing(unittest.TestCase):
    """A month that is another one at every reading, as that of a large fleet is, or a page with a forecast."""

    def serve(self, with_manifest):
        """Its url, and the paths that were asked for."""
        asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                body = f"reading,{len(asked)}\r\n".encode()
                manifest = json.dumps({"document": "tollgate-2026-11.csv", "rows": len(asked), "sha256": hashlib.sha256(body).hexdigest()})
                self.send_response(200)
                if with_manifest:
                    self.send_header("Tollgate-Manifest", manifest)
                body = manifest.encode() if "manifest=1" in self.path else body
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = self.enterContext(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_address[1]}", asked

    def save(self, url, folder):
        return subprocess.run([program("tollgate"), "report", "2026-11", "--url", url, "--output", folder], capture_output=True, text=True, env={**os.environ, "TOLLGATE_TOKEN_FILE": ""})

    def test_a_document_comes_with_its_own_manifest(self):
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="tollgate-growing-"))
        url, asked = self.serve(True)
        done = self.save(url, folder)
        self.assertEqual((done.returncode, asked), (0, ["/v1/reports/2026-11.csv"]), done.stderr)
        with open(os.path.join(folder, "tollgate-2026-11.csv"), "rb") as f, open(os.path.join(folder, "tollgate-2026-11.csv.manifest.json"), encoding="utf-8") as m:
            self.assertEqual(hashlib.sha256(f.read()).hexdigest(), json.load(m)["sha256"])

    def test_one_that_does_not_is_never_kept_beside_anothers(self):
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="tollgate-growing-"))
        url, asked = self.serve(False)
        done = self.save(url, folder)
        self.assertEqual((done.returncode != 0, len(asked), os.listdir(folder)), (True, 6, []), done.stderr)
        self.assertIn("the month changed while it was read", done.stderr)


class Checkers(unittest.TestCase):
    """A checker that cannot fail checks nothing."""

    def golden(self, name):
        with open(os.path.join(ROOT, "tests", "golden", name), encoding="utf-8", newline="") as f:
            return f.read()

    def change(self, text, column, value, where=lambda row: True):
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        row = next(r for r in rows if where(r))
        row[column] = value(row[column]) if callable(value) else value
        out = io.StringIO(newline="")
        writer = csv.DictWriter(out, rows[0].keys(), lineterminator="\r\n")
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()

    def test_the_golden_files_follow_the_rules(self):
        self.assertEqual(csv_check.check(self.golden("report.csv")), [])
        self.assertEqual(focus_check.check(self.golden("focus.csv")), [])

    def test_every_harm_to_a_chargeback_is_seen(self):
        text = self.golden("report.csv")

        def more(v):
            return str(Decimal(v) + Decimal("0.01"))

        for rule, column, value in (("C2", "quantity", "1,5"), ("C4", "unit_price", more), ("C5", "billed_cost", more), ("C5", "discount", more), ("C6", "idle_gpu_hours", more),
                                    ("C10", "tenant", "globex")):  # fmt: skip
            with self.subTest(rule, column=column):
                self.assertTrue([s for s in csv_check.check(self.change(text, column, value)) if s.startswith(rule)])
        self.assertTrue(csv_check.check(text.replace("\r\n", "\n")))
        self.assertTrue(csv_check.check(text + text.splitlines(keepends=True)[1]), "a line twice")

    def test_instances_weigh_the_mean_of_their_slices(self):
        for model, profile, units in (("H100-80GB", "", 5040), ("H100-80GB", "1g.10gb", 675), ("H100-80GB", "1g.20gb", 990), ("A100-80GB", "2g.20gb", 1350), ("H100-80GB", "3g.40gb", 2340),
                                      ("H100-80GB", "4g.40gb", 2700), ("H100-80GB", "7g.80gb", 5040), ("A100-40GB", "1g.10gb", 990), ("A100-40GB", "1g.5gb+me", 675), ("H200-141GB", "1g.18gb", 675),
                                      ("A30-24GB", "1g.6gb", 1260), ("A30", "2g.12gb", 2520), ("H100-80GB", "1c.3g.40gb", 780), ("H100", "1g.10gb", None), ("H100-80GB", "small", None)):  # fmt: skip
            self.assertEqual(csv_check.units_of(model, profile), units, f"{profile} of {model}")

    def test_a_commitment_is_added_up_in_gpu_hours_whatever_its_parts_are_priced_by(self):
        def line(charge_type, klass, quantity, unit="gpu-hour", profile="", model="H100-80GB", **more):
            said = {"charge_type": charge_type, "class": klass, "quantity": quantity, "unit": unit, "mig_profile": profile, "gpu_model": model, "category": "gpu", "tenant": "acme", "workspace": "w",
                    "period_start": "2026-11-01", "period_end": "2026-12-01", "cluster": "c", "price_version": "1", **more}  # fmt: skip
            return {**dict.fromkeys(csv_check.COLUMNS, ""), **said}

        def lent(quantity, **more):
            return line("credit", "borrowed", quantity, "instance-hour", "1g.10gb", counterparty="globex", **more)

        whole, covered, unused = line("commitment", "reserved", "24"), line("covered", "reserved", "10"), line("covered", "reserved", "6.5")
        small = line("commitment", "reserved", "8", "instance-hour", "1g.10gb")
        by_use = line("usage", "borrowed", "20", "instance-hour", "1g.10gb", tenant="globex", allocated_gpu_hours="7.5")
        for what, rows, sound in (
            ("56 instances of 675 units are seven and a half GPUs", [whole, covered, unused, lent("-56")], True),
            ("less is lent than was committed", [whole, covered, unused, lent("-55.999")], False),
            ("counted as if an instance were a GPU", [line("commitment", "reserved", "72.5"), covered, unused, lent("-56")], False),
            ("on a smaller GPU the same name weighs more", [{**r, "gpu_model": "A100-40GB"} for r in (whole, covered, unused, lent("-56"))], False),
            ("and then it is eleven", [{**r, "gpu_model": "A100-40GB"} for r in (line("commitment", "reserved", "27.5"), covered, unused, lent("-56"))], True),
            ("instances are reserved, and covered in GPU-hours", [small, line("covered", "reserved", "0.5"), line("covered", "reserved", "0.571428571")], True),
            ("but not all of them", [small, line("covered", "reserved", "0.5"), line("covered", "reserved", "0.5714")], False),
            ("whole hours are exact to the last digit", [whole, covered, unused, line("credit", "borrowed", "-7.499999999")], False),
            ("nobody knows what the instance is", [whole, covered, unused, {**lent("-56"), "mig_profile": "small"}], False),
            ("what the borrower pays by its use is on no line", [whole, covered, unused, lent("-20"), by_use], True),
            ("but what another borrows is", [whole, covered, unused, lent("-20"), {**by_use, "tenant": "initech"}], False),
        ):  # fmt: skip
            said = []
            csv_check.check_commitments(rows, said)
            self.assertEqual([s for s in said if not s.startswith("C9")], [])
            self.assertEqual(not said, sound, f"{what}: {said}")

    def test_every_harm_to_focus_is_seen(self):
        text = self.golden("focus.csv")

        def usage(r):
            return r["ChargeCategory"] == "Usage" and r["SkuPriceDetails"] and r["ConsumedQuantity"]

        for rule, column, value in (
            ("F2", "ChargePeriodEnd", "2026-02-30T00:00:00Z"), ("F3", "BilledCost", "+1"), ("F4", "ResourceName", "N/A"), ("F5", "Tags", '{"a":{"b":1}}'), ("F5", "Tags", '{"a":1,"a":2}'),
            ("F6", "BillingCurrency", "GPU"), ("F7", "PricingUnit", "gpu hours"), ("R1", "ServiceName", ""), ("R2", "ChargeCategory", "usage"), ("R2", "ServiceSubcategory", "Block Storage"),
            ("R3", "SkuId", ""), ("R5", "ConsumedQuantity", ""), ("R6", "PricingUnit", ""), ("R8", "ListCost", "1.000001"), ("R9", "ListUnitPrice", "-1.0"),
            ("R10", "ChargePeriodEnd", "2027-01-01T00:00:00Z"), ("R11", "SubAccountName", ""), ("R11", "ResourceType", ""), ("R13", "SkuPriceDetails", '{"Price":"1"}'),
            ("R13", "SkuPriceDetails", '{"GpuCount":"1"}'), ("D1", "BillingAccountId", "org/2"), ("D2", "ServiceName", "Storage"), ("D3", "SkuId", "other"),
            ("D4", "BillingPeriodStart", "2026-10-30T23:00:00Z"), ("D5", "EffectiveCost", "99.0"),
        ):  # fmt: skip
            with self.subTest(rule, column=column):
                said = focus_check.check(self.change(text, column, value, usage))
                self.assertTrue([s for s in said if s.startswith(rule)], said)
        for rule, column, value in (("R7", "ChargeFrequency", "Usage-Based"), ("R12", "EffectiveCost", "1.0"), ("R5", "ConsumedQuantity", "1.0")):
            with self.subTest(rule, column=column):
                said = focus_check.check(self.change(text, column, value, lambda r: r["ChargeCategory"] == "Purchase"))
                self.assertTrue([s for s in said if s.startswith(rule)], said)
        self.assertTrue(focus_check.check(text.replace("x_WorkspaceId", "WorkspaceId")))
        self.assertTrue(focus_check.check(text.replace("PublisherName", "x_PublisherName")))
        self.assertTrue(focus_check.check(text, {"acme-2026-11-1": "1.00"}))


if __name__ == "__main__":
    unittest.main()
