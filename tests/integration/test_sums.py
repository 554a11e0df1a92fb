"""An open month with everything in it, beside a closed one that is corrected in it: CSV, FOCUS, JSON, pages, metrics, usage and SQL come to the same cents, each by
its own way; workloads add up to every line; an export made again says nothing else of what is past."""

import collections
import csv
import datetime
import decimal
import io
import json
import re
import unittest
from decimal import Decimal
from fractions import Fraction

from tests.integration.test_documents import page_amounts
from tests.support.billing import csv_check, focus_check, moneyref
from tests.support.daemons.stack import Stack, wait_for
from tests.support.fleet.fleet import DOWN, EXCLUSIVE, H100, HELD, HOUR, MEASURED, MIG, MINUTE, NONE, NS, UNALLOCATED, UNITS
from tests.support.store import ledger

A100 = "NVIDIA A100-SXM4-40GB"
POOL = "H100-80GB"
NAMES = {"n1": 4, "n2": ("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"), "n3": 2, "n5": 1}


def billing_month():
    """A zone whose month, at this moment, has a day behind it and an hour before it; and when that month began."""
    now = datetime.datetime.now(datetime.timezone.utc)
    for zone, hours in (("UTC", 0), ("Etc/GMT+12", -12), ("Etc/GMT-14", 14)):
        local = now.astimezone(datetime.timezone(datetime.timedelta(hours=hours)))
        first = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        if local - first >= datetime.timedelta(hours=25) and (local + datetime.timedelta(hours=1)).month == local.month:
            return zone, first
    raise AssertionError("of three zones 26 hours apart one is far from the turn of a month")


ZONE, FIRST = billing_month()
START = int(FIRST.timestamp()) * NS
END = START + 8 * HOUR  # of what was reserved, and of the nodes
BEFORE = (FIRST - datetime.timedelta(days=1)).replace(day=1)
MONTH, CLOSED = FIRST.strftime("%Y-%m"), BEFORE.strftime("%Y-%m")


def rfc3339(ns):
    return datetime.datetime.fromtimestamp(ns // NS, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


TENANTS = """
  - name: acme
    cost_center: "{center}"
    display_name: "{name}"
    workspaces:
      - {{name: training, rules: [{{namespace: acme}}]{acme}}}
      - {{name: own, rules: [{{namespace: own}}]}}
  - {{name: globex, cost_center: "-2+3", workspaces: [{{name: research, rules: [{{namespace: globex}}], borrow: "9"}}]}}
  - {{name: initech, cost_center: "@now", workspaces: [{{name: serving, rules: [{{namespace: initech}}]{initech}}}]}}
"""
PRICES = """
prices:
  version: "1"
  currency: EUR
  lender_ratio: "0.8"
  items:
    - {class: reserved, price: "2.00"}
    - {class: on-demand, price: "3.333"}
    - {class: borrowed, price: "1.50"}
    - {class: dedicated, price: "1.10"}
    - {mig_profile: 1g.10gb, class: borrowed, price: "0.111"}
    - {mig_profile: 1g.10gb, class: reserved, price: "0.301"}
    - {class: on-demand, tenant: initech, price: "3.00"}
    - {meter: storage, price: "0.000123"}
    - {meter: egress, price: "0.0421"}
    - {meter: inference-requests, price: "0.07", per: 1000}
    - {meter: inference-input-tokens, price: "0.15", per: 1000000}
    - {meter: support, price: "81"}
  discounts: [{tenant: globex, category: gpu, percent: "7"}]
  energy: [{cluster: test, price_per_kwh: "0.3017"}]
"""


def policy(effective, reserved, **words):
    """reserved: with reservations, and the nodes in service; else both are over."""
    said = {"center": "=1+1;\\\"x\\\"", "name": "Acme Ltd.", **words}
    said["acme"] = f', reserved_shared: {{{POOL}: "3"}}, lend: {{{POOL}: "3"}}' if reserved else ""
    said["initech"] = f', reserved_shared: {{{POOL}: 1x1g.10gb}}, lend: {{{POOL}: "0"}}' if reserved else ""
    state = "in-service" if reserved else "retired"
    nodes = [f"{{name: n1, shared: true, gpus: 4, model: {POOL}, state: {state}}}",
             f"{{name: n2, shared: true, mig: {{3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}}, model: {POOL}, state: {state}}}",
             f"{{name: n3, tenant: acme, gpus: 2, model: {POOL}, state: {state}}}",
             f"{{name: n5, shared: true, gpus: 1, model: A100-40GB, state: {state}}}"]  # fmt: skip
    return f"version: 1\ncluster: test\neffective: {effective}\ntenants:{TENANTS.format(**said)}nodes: [{', '.join(nodes)}]\n{PRICES}"


def holders_at(node, hour):
    """Of each device of a node: the namespace that holds it, None, or DOWN. The same in both months."""
    if node == "n1":
        lost = [DOWN] * 2 if hour in (5, 6) else ["globex" if hour < 7 else None] * 2
        return [None if hour == 6 else "acme", "globex" if hour < 7 else None, *lost]
    if node == "n2":
        return ["initech", None, "initech" if hour < 4 else None, "globex" if hour < 7 else None]
    return ["own", None] if node == "n3" else ["globex"]


def batches(node, start, hours, seq=0):
    """A record of each device per quarter-hour. Whole GPUs are active for a third of it, instances cannot be measured."""
    cut = isinstance(NAMES[node], tuple)
    model = A100 if node == "n5" else H100
    gpus = [{"id": i + 1, "uuid": f"GPU-{node}-{i}", "model": model, "index": i} for i in range(1 if cut else NAMES[node])]
    instances = [
        {"id": i + 2, "gpu": 1, "uuid": f"MIG-{node}-{i}", "model": model, "profile": p, "gi": i, "ci": 0, "units": csv_check.units_of(POOL, p), "created_ns": 77, "index": 0,
         "memory_bytes": 10 << 30}
        for i, p in enumerate(NAMES[node] if cut else ())
    ]  # fmt: skip
    names = ["acme", "globex", "initech", "own"]
    holders = [{"id": i + 1, "kind": 1, "ns": ns, "pod": f"pod-{ns}", "pod_uid": f"{node}-{ns}", "container": "c"} for i, ns in enumerate(names)]
    out, step = [], 15 * MINUTE
    for at in range(start, start + hours * HOUR, step):
        records = []
        for device, who in zip(instances or gpus, holders_at(node, (at - start) // HOUR)):
            held = isinstance(who, str)
            method = MEASURED if held and not cut else NONE
            records.append([device["id"], names.index(who) + 1 if held else 0, HELD if held else who or UNALLOCATED, MIG if cut else EXCLUSIVE, method,
                            device.get("units", UNITS), at, step, step, step // 3 if method else 0, step if held and cut else 0, 0, 0, 361_007_003 // (len(instances) or 1), 1])  # fmt: skip
        out.append({"node": node, "boot_id": "ab" * 16, "epoch": 1, "seq": seq + len(out) + 1, "flags": 1, "from_ns": at, "to_ns": at + step, "devices": gpus + instances,
                    "holders": holders, "records": records})  # fmt: skip
    return out


EVENTS = [  # type, tenant, workspace, sku, data, and what it costs
    ("storage", "acme", "training", "+49", {"gb_hours": "123456.7"}, Fraction("123456.7") * Fraction("0.000123")),
    ("egress", "globex", "research", None, {"gb": "17.3"}, Fraction("17.3") * Fraction("0.0421")),
    ("inference", "initech", "serving", "llama", {"requests": 12345, "input_tokens": 9876543, "model": "llama"}, Fraction(12345 * 7, 100_000) + Fraction(9876543 * 15, 100_000_000)),
    ("support", "acme", "training", None, {"hours": "0.37"}, Fraction("0.37") * 81),
]
ONE_OFF = {"acme": "12.34", "globex": "-5.55"}


class Rules:
    """The same policy as the reference wants it."""

    energy_price, ratio = Fraction("0.3017"), Fraction("0.8")
    caps = {("initech", "serving"): 0}
    prices = {"reserved": "2.00", "on-demand": "3.333", "borrowed": "1.50", "dedicated": "1.10"}
    instances = {"borrowed": "0.111", "reserved": "0.301"}

    def owner(self, node):
        return "acme" if node == "n3" else None

    def rights(self, hour, owner, model):
        if owner or model != POOL or hour >= rfc3339(END):
            return {}
        return {("acme", "training"): {("", 5040): 3 * UNITS * HOUR}, ("initech", "serving"): {("1g.10gb", 675): 675 * HOUR}}

    def price(self, tenant, klass, profile):
        if tenant == "initech" and klass == "on-demand":
            return Fraction(3), False
        own = profile == "1g.10gb" and klass in self.instances
        return Fraction(self.instances[klass] if own else self.prices[klass]), own

    def discount(self, tenant):
        return Fraction(7, 100) if tenant == "globex" else Fraction(0)


# What every tenant owes for the days of a month, from the tables of charges: exact, before anything is rounded.
MONEY_SQL = """
with book as (select id, lender_ratio from price_book where version = '1'),
t as (select w.id as workspace_id, w.tenant_id from workspace w),
-- the tenant's own item before those for all, then the one of the profile
price as (select k.tenant_id, k.class, k.profile, i.price, i.mig_profile is not null as per_instance, coalesce((select d.ratio from price_discount d where d.tenant_id = k.tenant_id), 0) as off
	from (select x.id as tenant_id, c.class, p.profile from tenant x, (values ('reserved'), ('on-demand'), ('borrowed'), ('dedicated')) c(class),
		(select distinct profile from charge_day union select '') p) k,
	lateral (select i.* from price_item i join book b on b.id = i.book_id where i.meter is null and i.class = k.class and coalesce(i.tenant_id, k.tenant_id) = k.tenant_id
		and coalesce(i.mig_profile, k.profile) = k.profile order by i.tenant_id is null, i.mig_profile is null limit 1) i),
days as (select b.day from billing_day b join period p on b.starts_at >= p.starts_at and b.starts_at < p.ends_at where p.month = '{month}'),
hours as (
	select t.tenant_id, c.class, c.profile, c.units, c.used + c.idle + c.unmeasured as amount from days join charge_day c using (day) join t using (workspace_id) where c.class <> 'covered'
	union all select t.tenant_id, 'reserved', r.profile, r.units, r.reserved - r.undelivered from days join reserve_day r using (day) join t using (workspace_id)
	union all select p.owner_id, 'dedicated', '', 5040, p.unreserved_idle from days join pool_day p using (day) where p.owner_id is not null),
energy as (
	select t.tenant_id, c.energy_mj from days join charge_day c using (day) join t using (workspace_id)
	union all select p.owner_id, p.energy_mj from days join pool_day p using (day) where p.owner_id is not null),
owed as (
	select h.tenant_id, h.amount / (case when p.per_instance then h.units else 5040 end * 3600000000000.0) * p.price * (1 - p.off) as money from hours h join price p using (tenant_id, class, profile)
	union all select e.tenant_id, e.energy_mj / 3600000000.0 * s.energy_price from energy e, price_site s join book b on b.id = s.book_id
	union all select t.tenant_id, m.quantity * i.price / coalesce(i.per, 1) from period p, meter_usage(p.starts_at, p.ends_at) m join t using (workspace_id) join price_item i on i.meter = m.meter where p.month = '{month}'
	union all select a.tenant_id, a.amount from adjustment a join adjustment_approval using (adjustment_id) where a.period = '{month}'),
loans as (select l.tenant_id, trunc(sum((n.used + n.idle + n.unmeasured) / (case when p.per_instance then n.units else 5040 end * 3600000000000.0)
		* least(p.price * (1 - p.off) * b.lender_ratio, r.price * case when p.per_instance then n.units / 5040.0 else 1 end)), 2) as money
		from book b, days join loan_day n using (day) join t l on l.workspace_id = n.lender_id join t w on w.workspace_id = n.borrower_id
		join price p on p.tenant_id = w.tenant_id and p.class = 'borrowed' and p.profile = n.profile join price r on r.tenant_id = l.tenant_id and r.class = 'reserved' and r.profile = ''
		group by 1, n.lender_id, n.borrower_id, n.profile, n.units, n.sharing)
select t.name, sum(o.money)::text, coalesce((select sum(l.money) from loans l where l.tenant_id = t.id), 0)::text from owed o join tenant t on t.id = o.tenant_id group by t.id
""".replace("join adjustment_approval using (adjustment_id)", "join adjustment_approval v on v.adjustment_id = a.id")


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def by(rows, *names, cost="billed_cost"):
    out = collections.defaultdict(Decimal)
    for r in rows:
        out[tuple(r[n] for n in names) if len(names) > 1 else r[names[0]]] += Decimal(r[cost])
    return dict(out)


def plain(cell):
    """A text that begins like a formula has an apostrophe before it in the CSV."""
    return cell[1:] if cell[:2] in ("'=", "'+", "'-", "'@") else cell


def cents(exact):
    """Of a fraction of money; one that lies at half a cent would say nothing."""
    amount = Decimal(exact.numerator) / Decimal(exact.denominator)
    whole = amount.quantize(Decimal("0.01"), rounding=decimal.ROUND_HALF_EVEN)
    assert abs(abs(amount - whole) - Decimal("0.005")) > Decimal("1e-6"), amount
    return whole


class Sums(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = cls.enterClassContext(Stack(zone=ZONE, options=["--rollup-interval", "100ms", "--metrics-refresh", "1s"]))
        cls.s.apply(policy(rfc3339(int(BEFORE.timestamp()) * NS), True))
        cls.s.apply(policy(rfc3339(END), False))  # at once, or the nodes would be silent until today
        for node in NAMES:
            cls.s.token(node, role="node", node=node)
        for node in ("n1", "n3"):
            cls.push(batches(node, START - 8 * HOUR, 8))
        cls.event(EVENTS[0], START - 3 * HOUR, "a")
        cls.settled(CLOSED)
        done = cls.s.cli("close", CLOSED, "--reason", "n2 has not been heard of", "--yes")
        assert done.returncode == 0, done.stderr
        cls.billed = {f: cls.report(f, CLOSED) for f in ("csv", "focus.csv", "json", "html", "focus-invoices.csv")}
        cls.versions = {v: cls.report("focus.csv", CLOSED, focus_version=v) for v in ("1.3", "1.4")}
        # What comes now is late for the closed month, or of the open one.
        cls.s.apply(policy(rfc3339(END), False, name="Renamed GmbH", center="=1+1;\\\"y\\\""))
        cls.push(batches("n2", START - 8 * HOUR, 8))
        for node in ("n1", "n2", "n3"):
            cls.push(batches(node, START, 8, seq=32))
        cls.event(EVENTS[1], START - 2 * HOUR, "b")
        for i, e in enumerate(EVENTS):
            cls.event(e, START + (i + 1) * HOUR, f"c{i}")
        for tenant, amount in ONE_OFF.items():
            what = {"tenant": tenant, "amount": amount, "currency": "EUR", "reason": "=a test"}
            assert cls.s.call("POST", "/v1/adjustments", json.dumps(what).encode()).status == 201
        cls.settled(CLOSED)
        cls.settled(MONTH)
        cls.first = {f: cls.report(f) for f in ("csv", "focus.csv")}
        # And more of it after it was exported once.
        cls.push(batches("n5", END - HOUR, 1))
        cls.settled(MONTH)
        cls.text = cls.report("csv")
        cls.rows = csv_check.rows_of(cls.text)

    @classmethod
    def push(cls, some):
        reply = cls.s.call("POST", "/v1/ingest", ledger.frames(some), role=some[0]["node"])
        assert reply.status == 200 and reply.json()["quarantined"] == 0, reply.text()

    @classmethod
    def event(cls, what, at, number):
        kind, tenant, workspace, sku, data, _ = what
        data = {"tenant": tenant, "workspace": workspace, **({"sku": sku} if sku else {}), **data}
        event = {"specversion": "1.0", "id": number, "source": "/test", "type": f"tollgate.{kind}.v1", "time": rfc3339(at), "data": data}
        reply = cls.s.call("POST", "/v1/events", json.dumps(event).encode(), headers={"Content-Type": "application/cloudevents+json"})
        assert reply.status in (200, 201, 202), reply.text()

    @classmethod
    def settled(cls, month):
        """All hours are sealed, and all days of it that are over are stored."""
        sql = f"select bool_and(not b.dirty) and not exists (select from node_hour h where h.sealed_at is null or h.dirty) from billing_day b join period p on b.starts_at >= p.starts_at and b.starts_at < p.ends_at where p.month = '{month}' and b.ends_at <= now()"
        wait_for(f"the days of {month} to be folded", lambda: cls.s.sql(sql) == [["t"]], cls.s.aggregator)

    @classmethod
    def report(cls, suffix, month=MONTH, **query):
        asked = "&".join(f"{k}={v}" for k, v in query.items())
        return cls.s.get(f"/v1/reports/{month}.{suffix}?{asked}").body.decode()

    def usage(self, month, start):
        groups = self.s.get(f"/v1/usage?from={rfc3339(start)}&to={rfc3339(start + 48 * HOUR if month == MONTH else START)}&group_by={moneyref.KEYS}&exact=1&limit=10000").json()["groups"]
        bill = moneyref.Bill(Rules())
        bill.add(groups)
        return bill

    def owed(self):
        """From usage: what the open month comes to, and what is to be corrected in it of the closed one."""
        now, then = self.usage(MONTH, START), self.usage(CLOSED, START - 8 * HOUR)
        for event in EVENTS:
            now.exact[event[1]] += event[5]
        for event in EVENTS[:2]:
            then.exact[event[1]] += event[5]
        for tenant, amount in ONE_OFF.items():
            now.exact[tenant] += Fraction(amount)
        billed = by(csv_check.rows_of(self.billed["csv"]), "tenant")
        lent = {t: Decimal(now.credits(t) + then.credits(t)) / 100 for t in now.exact}
        return {t: cents(now.exact[t]) + cents(then.exact[t]) - lent[t] - billed.get(t, 0) for t in now.exact}, now

    def test_every_version_of_a_closed_month_stays_byte_for_byte(self):
        """The tenant has another name since, and usage of the month came late."""
        for version, text in self.versions.items():
            self.assertEqual(self.report("focus.csv", CLOSED, focus_version=version), text, version)
            self.assertEqual(focus_check.check(text, version=version), [])
        self.assertEqual(self.report("focus-invoices.csv", CLOSED), self.billed["focus-invoices.csv"])
        self.assertEqual(focus_check.check_invoices(self.billed["focus-invoices.csv"], self.versions["1.4"]), [])

    def costs(self, month, group_by, tenant=None):
        """The groups of all pages, the rows that no workload caused, and what both add up to in EUR."""
        first = FIRST if month == MONTH else BEFORE
        end = (first + datetime.timedelta(days=32)).replace(day=1)
        asked = f"/v1/usage?from={rfc3339(int(first.timestamp()) * NS)}&to={rfc3339(int(end.timestamp()) * NS)}&group_by={group_by}&cost=1&limit=7" + (f"&tenant={tenant}" if tenant else "")
        first = page = self.s.get(asked).json()
        groups = [*first["groups"]]
        while page["next"]:
            page = self.s.get(f"{asked}&cursor={page['next']}").json()
            groups += page["groups"]
            self.assertFalse({"costs_without_workload", "costs_total"} & page.keys(), "they are on the first page only")
        rest = first["costs_without_workload"]
        amounts = [c for g in groups for c in g["costs"]] + rest
        self.assertEqual({c["currency"] for c in amounts}, {"EUR"})
        total = sum(Decimal(c["amount"]) for c in amounts)
        self.assertEqual([Decimal(c["amount"]) for c in first["costs_total"]], [total])
        return groups, rest, total

    def test_costs_of_usage_add_up_to_the_invoices_whatever_they_are_grouped_by(self):
        for month, text in ((MONTH, self.text), (CLOSED, self.billed["csv"])):
            rows = csv_check.rows_of(text)
            for key in ("", "tenant", "workspace", "user", "workload", "node", "gpu", "gpu_model", "profile", "sharing", "cluster", "day", "hour", "method", "state", "label:team", "tenant,user,day"):
                with self.subTest(month, key=key):
                    self.assertEqual(self.costs(month, key)[2], sum(Decimal(r["billed_cost"]) for r in rows))
            for tenant, due in by(rows, "tenant").items():
                self.assertEqual(self.costs(month, "workload,gpu", tenant)[2], due, tenant)

    def test_costs_of_usage_are_the_effective_costs_of_focus(self):
        """Of each workspace and day: what its holders cost is EffectiveCost of what it held; everything else has a reason."""
        held, rest = collections.Counter(), collections.Counter()
        for r in rows_of(self.report("focus.csv")):
            use = r["ChargeCategory"] == "Usage" and r["ChargeClass"] == "" and r["x_WorkspaceId"] and r["x_Class"] in ("reserved", "on-demand", "borrowed", "") and r["SkuId"] != "" and r["ServiceName"] in ("GPU Platform", "Energy")
            if use and r["CommitmentDiscountStatus"] != "Unused" and r["x_ChargeType"] != "credit":
                held[r["SubAccountId"], r["x_WorkspaceId"]] += Decimal(r["EffectiveCost"])
            else:
                rest[r["SubAccountId"]] += Decimal(r["EffectiveCost"])
        groups, without, _ = self.costs(MONTH, "tenant,workspace")
        found = {(g["tenant"], g["workspace"]): sum(Decimal(c["amount"]) for c in g["costs"]) for g in groups if g["costs"]}
        self.assertEqual(found, {k: v for k, v in held.items() if v})
        self.assertEqual(by(without, "tenant", cost="amount"), {k: v for k, v in rest.items() if v})
        self.assertGreaterEqual({r["reason"] for r in without}, {"reservation-unused", "reservation-lent", "dedicated-idle", "meter", "adjustment", "correction"}, "undelivered time is paid and given back: it costs nothing")
        self.assertEqual(self.s.call("GET", "/v1/usage?cost=1&user=alice").status, 400)
        self.assertEqual(self.s.call("GET", "/v1/usage?cost=1&format=csv").status, 400)
        table = self.s.cli("usage", "--this-month", "--by", "tenant", "--cost").stdout
        self.assertIn("reservation-unused", table)

    def test_the_months_have_every_kind_of_line(self):
        kinds = {(r["charge_type"], r["class"], r["category"], r["unit"]) for r in self.rows}
        for kind in (
            ("commitment", "reserved", "gpu", "gpu-hour"), ("commitment", "reserved", "gpu", "instance-hour"), ("covered", "reserved", "gpu", "gpu-hour"), ("credit", "reserved", "gpu", "gpu-hour"),
            ("covered", "reserved", "gpu", "instance-hour of 1g.10gb"), ("credit", "borrowed", "gpu", "gpu-hour"), ("usage", "on-demand", "gpu", "gpu-hour"), ("usage", "borrowed", "gpu", "gpu-hour"),
            ("usage", "borrowed", "gpu", "instance-hour"), ("usage", "dedicated", "gpu", "gpu-hour"), ("usage", "", "storage", "GB-hour"), ("usage", "", "network", "GB"),
            ("usage", "", "inference", "1000 requests"), ("usage", "", "inference", "1000000 tokens"), ("usage", "", "support", "hour"), ("usage", "", "energy", "kWh"), ("adjustment", "", "other", "charge"),
            ("credit", "", "other", "charge"), ("correction", "borrowed", "gpu", "gpu-hour"), ("correction", "", "network", "GB"),
        ):  # fmt: skip
            self.assertIn(kind, kinds)
        self.assertTrue(any("neither used nor lent" in r["description"] for r in self.rows))
        self.assertEqual({r["tenant"] for r in self.rows if r["correction_of"]}, {"acme", "globex", "initech"})

    def test_seven_ways_to_the_same_cents(self):
        due = by(self.rows, "tenant")
        self.assertEqual(csv_check.check(self.text, json.loads(self.report("csv", manifest=1))), [])
        focus = self.report("focus.csv")
        self.assertEqual(focus_check.check(focus, by(self.rows, "invoice_id")), [])
        self.assertEqual(by(rows_of(focus), "SubAccountId", cost="BilledCost"), due)
        doc = json.loads(self.report("json"))
        self.assertEqual(doc["lines"], [{k: plain(v) for k, v in r.items()} for r in self.rows])
        self.assertEqual(by(doc["totals"], "tenant"), due)
        self.assertEqual({number.split("-")[0]: page["Total"] for number, page in page_amounts(self.report("html")).items()}, due)
        self.assertEqual(self.owed()[0], due, "usage, hour by hour")
        exact = {month: {t: cents(Fraction(v)) - Decimal(lent) for t, v, lent in self.s.sql(MONEY_SQL.format(month=month))} for month in (MONTH, CLOSED)}
        billed = {t: Decimal(v) for t, v in self.s.sql(f"select t.name, sum(l.billed) from invoice i join invoice_line l using (number) join tenant t on t.id = i.tenant_id where i.month = '{CLOSED}' group by 1")}
        self.assertEqual({t: v + exact[CLOSED][t] - billed.get(t, 0) for t, v in exact[MONTH].items()}, due, "the tables of charges")

        def metrics():
            found = re.findall(rf'^tollgate_period_cost\{{period="{MONTH}",tenant="(.*?)"(?:,workspace="(.*?)")?,currency="EUR"\}} (\S+)$', self.s.get("/metrics").text(), re.M)
            return {(tenant, workspace): Decimal(v) for tenant, workspace, v in found}

        wait_for("the metrics to have every workspace's cost", lambda: metrics() == by(self.rows, "tenant", "workspace"), self.s.aggregator)

    def test_the_hours_are_the_same_in_lines_usage_and_metrics(self):
        bill = self.owed()[1]
        lines = [r for r in self.rows if not r["correction_of"] and r["category"] == "gpu"]
        found = collections.Counter()
        for r in lines:
            klass = {"credit": "lent" if r["class"] == "borrowed" else "undelivered", "commitment": None}.get(r["charge_type"], r["class"])
            if r["charge_type"] == "covered":
                klass = "unused" if "neither" in r["description"] else "covered"
            if klass:
                found[r["tenant"], r["workspace"], klass] += csv_check.gpu_hours_of(r)[0]
        expected = {k: Decimal(v) / UNITS / HOUR for k, v in bill.hours.items() if v and k[2] != "reserved"}
        self.assertEqual(found.keys(), expected.keys())
        for key, hours in expected.items():
            self.assertLess(abs(found[key] - hours), Decimal("1e-8"), key)
        shown = collections.defaultdict(Decimal)
        for tenant, workspace, klass, hours in re.findall(rf'^tollgate_period_gpu_hours\{{period="{MONTH}",tenant="(.*?)",workspace="(.*?)",class="(.+?)",state=".*?"\}} (\S+)$', self.s.get("/metrics").text(), re.M):
            shown[tenant, workspace, "covered" if klass == "reserved" else klass] += Decimal(hours)
        held = {k: v for k, v in expected.items() if k[2] in ("covered", "on-demand", "borrowed")}
        self.assertEqual(shown.keys(), held.keys())
        for key, hours in held.items():
            self.assertLess(abs(shown[key] - hours), Decimal("1e-8"), key)

    def detail(self, month, line):
        return csv_check.rows_of(self.s.get(f"/v1/reports/{month}/lines/{line['line_id']}").body.decode())

    def test_workloads_add_up_to_every_line_whatever_it_is_of(self):
        shown = collections.defaultdict(list)
        for month, lines in ((MONTH, self.rows), (CLOSED, csv_check.rows_of(self.billed["csv"]))):
            for line in lines:
                rows = self.detail(month, line)
                shown[line["charge_type"], line["class"] if line["charge_type"] == "credit" else ""].append((month, line, rows))
                same = ["quantity", "list_cost", "billed_cost"]
                if line["category"] == "gpu":
                    same += ["used_gpu_hours", "idle_gpu_hours", "unmeasured_gpu_hours"]
                for name in same:
                    self.assertEqual(sum(Decimal(r[name]) for r in rows), Decimal(line[name]), f"{name} of {line['description']}")
        for kind, words in ((("credit", "reserved"), "there was no capacity"), (("adjustment", ""), "a one-off amount"), (("credit", ""), "a one-off amount")):
            for month, line, rows in shown[kind]:
                self.assertTrue(all(words in r["note"] for r in rows), kind)
        for kind in (("credit", "reserved"), ("adjustment", ""), ("credit", ""), ("correction", "")):
            month, line, rows = shown[kind][0]
            done = self.s.cli("report", month, "--detail", line["line_id"])
            self.assertEqual((done.returncode, rows_of(done.stdout)), (0, rows), kind)
        self.assert_corrections_are_told(shown["correction", ""])

    def assert_corrections_are_told(self, corrections):
        """What was never billed has its workloads; what is a difference names a line that has them."""
        known = {r["line_id"] for r in csv_check.rows_of(self.billed["csv"])}
        held = [(line, rows) for _, line, rows in corrections if Decimal(line["allocated_gpu_hours"] or 0) or line["category"] == "energy"]
        new = [(line, rows) for line, rows in held if line["correction_of"] not in known]
        self.assertEqual({(r["pod"], r["device"]) for line, rows in new if line["class"] == "borrowed" for r in rows}, {("pod-globex", "MIG-n2-3"), ("pod-initech", "MIG-n2-0"), ("pod-initech", "MIG-n2-2")})
        self.assertTrue(all(r["pod"] and not r["note"] for _, rows in new for r in rows))
        for line, rows in held:
            if line["correction_of"] in known:
                [row] = rows
                self.assertIn(f"line {line['correction_of']} of {CLOSED}", row["note"])
                self.assertTrue(self.detail(CLOSED, {"line_id": line["correction_of"]}))
        self.assertGreater(len(held), len(new))

    def test_an_open_month_exported_again_keeps_what_is_past(self):
        periods = self.report("focus-periods.csv")
        self.assertEqual(focus_check.check_periods(periods), [])
        before, after = self.first["focus.csv"], self.report("focus.csv")
        self.assertEqual(focus_check.check_again(before, after, periods), [])
        keys = [{(r["x_LineId"], r["ChargePeriodStart"]) for r in rows_of(text)} for text in (before, after)]
        self.assertLess(keys[0], keys[1], "there was more usage between the two, and nothing went")
        renamed = after.replace("GPU Platform", "Compute")
        self.assertEqual({s.split()[0] for s in focus_check.check_again(before, renamed, periods)}, {"D8"})

    def test_reconcile_says_why_a_closed_month_differs_from_what_is_in_the_ledger_now(self):
        """The hours that came late, class by class: those of the corrections."""
        done = self.s.cli("reconcile", "--month", CLOSED)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(f"after {CLOSED} was closed. Its documents stay as they are; the difference is billed by corrections", done.stderr)
        rows = [r for r in self.s.get(f"/v1/reconciliation?month={CLOSED}").json()["rows"] if r["level"] == "model"]
        late = sum(Decimal(r["allocated_gpu_hours"]) for r in self.rows if r["correction_of"] and r["category"] == "gpu" and r["allocated_gpu_hours"])
        self.assertGreater(late, 0)
        self.assertGreaterEqual(sum(Decimal(r["differing_gpu_hours"]) for r in rows), late)
        done = self.s.cli("reconcile", "--month", MONTH)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_closed_month_exported_again_is_the_same_and_its_corrections_are_later(self):
        periods = self.report("focus-periods.csv")
        for suffix, before in self.billed.items():
            self.assertEqual(self.report(suffix, CLOSED), before, suffix)
        before, after, later = self.billed["focus.csv"], self.report("focus.csv", CLOSED), self.report("focus.csv")
        self.assertEqual(focus_check.check_again(before, after, periods, later), [])
        corrections = [r for r in rows_of(later) if r["ChargeClass"] == "Correction"]
        self.assertEqual({r["ChargePeriodEnd"] for r in corrections}, {rfc3339(START)})
        known = {r["x_LineId"] for r in rows_of(before)}
        self.assertTrue([r for r in corrections if r["x_CorrectionOf"] in known] and [r for r in corrections if r["x_CorrectionOf"] not in known])
        # The rules see a closed month in which a cent or a name has changed, one that was corrected in place, and corrections of what is still open.
        row = next(r for r in rows_of(after) if r["BilledCost"] not in ("", "0"))
        for rule, harmed in (("D7", after.replace(f",{row['BilledCost']},", ",9999.99,", 1)), ("D8", after.replace("GPU Platform", "Compute")),
                             ("D7", after + later.splitlines(keepends=True)[-1])):  # fmt: skip
            self.assertIn(rule, {s.split()[0] for s in focus_check.check_again(before, harmed, periods, later)}, rule)
        self.assertEqual({s.split()[0] for s in focus_check.check_again(before, after, periods.replace(",Closed,", ",Open,"), later)}, {"D7"})

    def test_what_is_lent_by_the_instance_adds_up_to_what_was_committed(self):
        self.assertEqual([s for s in csv_check.check(self.text) if s.startswith("C9")], [])
        lent = next(r for r in self.rows if r["charge_type"] == "credit" and r["mig_profile"] and r["class"] == "borrowed")
        at = self.text.index(lent["line_id"])
        harmed = self.text[:at] + self.text[at:].replace(f",{lent['quantity']},", f",{Decimal(lent['quantity']) - Decimal('0.001')},", 1)
        self.assertNotEqual(harmed, self.text)
        self.assertTrue([s for s in csv_check.check(harmed) if s.startswith("C9 test/acme/training")])

    def test_a_spreadsheet_of_a_comma_locale_reads_the_same(self):
        text = self.report("csv", excel=1)
        rows = spreadsheet(text)
        self.assertEqual(rows[0], csv_check.COLUMNS)
        self.assertEqual(len(rows), len(self.rows) + 1)
        for found, line in zip(rows[1:], self.rows):
            for name, cell in zip(csv_check.COLUMNS, found, strict=True):
                said = line[name]
                if name in csv_check.NUMBERS or name == "invoice_version":
                    self.assertEqual(cell, Decimal(said) if said else None, name)
                elif name in ("period_start", "period_end"):
                    self.assertEqual(cell, datetime.date.fromisoformat(said), name)
                else:
                    self.assertEqual(cell, said or None, name)
        names = {cell for row in rows for cell in row if isinstance(cell, str)}
        self.assertLessEqual({"'=1+1;\"y\"", "'-2+3", "'@now", "'+49"}, names)
        # The reader is as gullible as a spreadsheet: what is not guarded is a formula, a number or a date.
        for harmed in ('a;b\r\n"=1+1";2\r\n', 'a;b\r\n"+1";2\r\n', "a;b\r\n@x;2\r\n"):
            with self.assertRaises(Formula):
                spreadsheet("\ufeff" + harmed)
        self.assertEqual(spreadsheet('\ufeffa\r\n"1,5"\r\n"2026-11"\r\n')[1:], [[Decimal("1.5")], [datetime.date(2026, 11, 1)]])
        self.assertEqual(by(self.rows, "currency")["EUR"], sum(r[csv_check.COLUMNS.index("billed_cost")] for r in rows[1:]))


class Formula(Exception):
    pass


def spreadsheet(text):
    """A CSV as a spreadsheet opens it where the decimal sign is a comma: a mark of UTF-8, semicolons, and every cell, in quotes or not, guessed: number, date, formula, text.
    A formula that is nothing but a text is that text; an apostrophe is a letter like others."""

    def guess(cell):
        if (literal := re.fullmatch(r'="([^"]*)"', cell)) is not None:
            return literal[1]
        if re.fullmatch(r"-?\d+(,\d+)?", cell):
            return Decimal(cell.replace(",", "."))
        if cell[:1] in ("=", "+", "-", "@", "\t", "\r"):
            raise Formula(cell)
        if re.fullmatch(r"\d{4}-\d\d(-\d\d)?", cell):
            return datetime.date.fromisoformat(cell if len(cell) == 10 else cell + "-01")
        if re.fullmatch(r"[\d.,:/eE+-]*\d[\d.,:/eE+-]*", cell):
            return float("nan")  # a number of thousands, a time, something with an exponent
        return cell or None

    if text[0] != "\ufeff":
        raise ValueError("without the mark the letters of other countries are torn apart")
    if "\n" in text.replace("\r\n", ""):
        raise ValueError("a line ends without CRLF")
    table = list(csv.reader(io.StringIO(text[1:], newline=""), delimiter=";", strict=True))
    return [[guess(cell) for cell in row] for row in table]


if __name__ == "__main__":
    unittest.main()
