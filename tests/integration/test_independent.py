"""Bills of random ledgers against a computation of their own: nine worlds of two months in five zones and four currencies, fed through the daemon's door; every figure of CSV, JSON, FOCUS, pages,
usage and metrics against tests/support/billing/billoracle.py."""

import collections
import copy
import csv
import io
import json
import os
import random
import re
import time
import unittest
from decimal import Decimal

from tests.support.billing import billcheck, billoracle, billworld, focus_check
from tests.support.daemons import pg
from tests.support.daemons.clock import Clock
from tests.support.daemons.stack import Stack, wait_for
from tests.support.store import ledger

FORMATS = ("csv", "json", "focus.csv", "html")


class Collected:
    """What a ledger says of a world that it was told: documents of both months, usage, metrics."""

    def __init__(self, server, clock, world, name):
        self.world = world
        options = ["--rollup-interval", "100ms", "--metrics-refresh", "1s"]
        with Stack(zone=world.zone_name, options=options, wall=clock, server=server, database=name) as self.s:
            self.fill()
            self.documents = {month: self.of_month(month) for month in range(2)}
            self.usage = {}
            self.ask_usage = lambda query: self.usage.setdefault(query, self.groups(query))
            billcheck.check_usage(billcheck.Check(), self.ask_usage, world)  # asks for all that is compared
            self.costs = {month: self.cost_of_month(month) for month in range(2)}
            self.metrics = self.s.get("/metrics").text()
        del self.s, self.ask_usage

    def fill(self):
        for text in self.world.policies():
            self.s.apply(text)
        self.feed(late=False)
        self.enter(0)
        self.settle()
        job = self.s.close_month(billworld.MONTHS[0], reason="a test")
        assert job["state"] == "closed", job
        self.feed(late=True)
        self.enter(1)
        self.settle()

    def feed(self, late):
        runs = self.world.batches(late)
        frames = iter(ledger.each_frame([b for _, batches in runs for b in batches]))
        for node, batches in runs:
            self.s.token(node, role="node", node=node)
            reply = self.s.call("POST", "/v1/ingest", b"".join(next(frames) for _ in batches), role=node)
            assert reply.status == 200 and reply.json()["quarantined"] == 0, reply.text() + self.s.aggregator.words()
        events = [
            {"specversion": "1.0", "id": e.id, "source": "/test", "type": f"tollgate.{e.type}.v1", "time": billworld.rfc3339(e.at),
             "data": {**e.data, "tenant": e.who[0], "workspace": e.who[1], **({"sku": e.sku} if e.sku else {})}}
            for e in self.world.events if e.late == late
        ]  # fmt: skip
        reply = self.s.call("POST", "/v1/events", json.dumps(events).encode(), headers={"Content-Type": "application/cloudevents-batch+json"})
        assert reply.status == 200 and reply.json()["accepted"] == len(events), reply.text()

    def enter(self, month):
        """One-off charges and credits."""
        for o in self.world.one_offs:
            if o.month == month:
                what = {"tenant": o.tenant, "amount": billworld.plain(o.amount), "currency": self.world.currency, "reason": o.reason, "period": billworld.MONTHS[month]}
                what |= {k: v for k, v in (("workspace", o.workspace), ("category", o.category)) if v}
                reply = self.s.call("POST", "/v1/adjustments", json.dumps(what).encode())
                assert reply.status == 201, reply.text()

    def settle(self):
        sql = "select bool_and(not b.dirty) and not exists (select from node_hour h where h.sealed_at is null or h.dirty) from billing_day b where b.ends_at <= now()"
        wait_for("the days to be folded", lambda: self.s.sql(sql) == [["t"]], self.s.aggregator)

    def of_month(self, month):
        asked = f"/v1/reports/{billworld.MONTHS[month]}"
        out = {suffix: self.s.get(f"{asked}.{suffix}").body.decode() for suffix in FORMATS}
        for tenant in billworld.COST_CENTRES:
            self.s.token(f"viewer of {tenant}", role="viewer", tenant=tenant)
            out[tenant] = self.s.get(f"{asked}.csv", f"viewer of {tenant}").body.decode()
        return out

    def cost_of_month(self, month):
        low, high = (billworld.rfc3339(self.world.bounds[i]) for i in (month, month + 1))
        return self.s.get(f"/v1/usage?from={low}&to={high}&group_by={','.join(billcheck.USAGE_COST_KEYS)}&cost=1&limit=100000").json()

    def groups(self, query):
        low, high = (billworld.rfc3339(self.world.bounds[i]) for i in (0, 2))
        return self.s.get(f"/v1/usage?from={low}&to={high}&{query}").json()["groups"]


def compare(collected):
    """All figures of a ledger."""
    world, check = collected.world, billcheck.Check()
    ids = [billcheck.line_ids(collected.documents[month]["csv"]) for month in range(2)]
    billed = billoracle.Bill(world, 0, False, ids[0][False])
    right = billoracle.Bill(world, 0, True, ids[1][True] | ids[0][False])
    now = billoracle.Bill(world, 1, True, ids[1][False])
    first = billcheck.Expected(billed, "closed")
    second = billcheck.Expected(now, "open", billoracle.corrections(billed, right), ids[0][False], billed)
    for expected, documents in ((first, collected.documents[0]), (second, collected.documents[1])):
        billcheck.check_csv(check, documents["csv"], expected)
        billcheck.check_json(check, documents["json"], expected)
        billcheck.check_focus(check, documents["focus.csv"], expected, documents["csv"])
        check.same(("focus", "all", "rules"), [], focus_check.check(documents["focus.csv"]))
        billcheck.check_html(check, documents["html"], expected)
        for tenant in billworld.COST_CENTRES:
            billcheck.check_tenant(check, documents[tenant], tenant, expected)
        billcheck.check_usage_costs(check, collected.costs[expected.bill.month], documents["csv"], expected)
    billcheck.check_usage(check, collected.usage.__getitem__, world)
    billcheck.check_metrics(check, collected.metrics, second)
    return check


# A zone with half-hour offset, two with a change of summer time in the months, one of them of the south; exponents 0, 2 and 3.
LEDGERS = (
    (101, "Europe/Berlin", "EUR"), (102, "UTC", "USD"), (103, "Asia/Kolkata", "KWD"), (104, "Australia/Sydney", "JPY"), (105, "America/New_York", "USD"),
    (106, "Europe/Berlin", "KWD"), (107, "Asia/Kolkata", "JPY"), (108, "Australia/Sydney", "EUR"), (109, "America/New_York", "JPY"),
)  # fmt: skip
SOAK_SECONDS = int(os.environ.get("SOAK_SECONDS") or 0)


def harms(collected):
    """(what, a copy of what the ledger said with one figure changed)"""

    def other(what, change):
        harmed = copy.copy(collected)
        harmed.documents = {month: dict(documents) for month, documents in collected.documents.items()}
        harmed.usage, harmed.costs = copy.deepcopy(collected.usage), copy.deepcopy(collected.costs)
        change(harmed)
        return what, harmed

    def cell(month, suffix, column, pick, change):
        def act(harmed):
            rows = billcheck.rows_of(harmed.documents[month][suffix])
            row = next(r for r in rows if r[column] and pick(r))
            row[column] = change(row[column])
            out = io.StringIO(newline="")
            writer = csv.DictWriter(out, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
            harmed.documents[month][suffix] = out.getvalue()

        return act

    def more(step):
        return lambda text: f"{Decimal(text) + Decimal(step):f}"

    def in_json(harmed):
        doc = json.loads(harmed.documents[1]["json"])
        doc["totals"][-1]["billed_cost"] = more(smallest)(doc["totals"][-1]["billed_cost"])
        harmed.documents[1]["json"] = json.dumps(doc)

    def in_usage(harmed):
        group = next(g for groups in harmed.usage.values() for g in groups if int(g.get("idle_unit_ns") or 0))
        group["idle_unit_ns"] = str(int(group["idle_unit_ns"]) + 1)

    def in_costs(harmed):
        """From one hour to another of the same workspace."""
        costs = [g["costs"][0] for g in harmed.costs[1]["groups"] if g["costs"] and g["tenant"] == "acme"][:2]
        for cost, step in zip(costs, (smallest, "-" + smallest)):
            cost["amount"] = more(step)(cost["amount"])

    def in_metrics(harmed):
        harmed.metrics = re.sub(r"^(tollgate_period_cost\{.*\} )(\S+)$", lambda m: m[1] + more(smallest)(m[2]), harmed.metrics, count=1, flags=re.M)

    def in_page(harmed):
        page = harmed.documents[1]["html"]
        total = re.search(r"<th>Total</th><td class=\"n\">(.*?)</td>", page)
        harmed.documents[1]["html"] = page[: total.start(1)] + more(smallest)(total[1].replace("\N{MINUS SIGN}", "-")) + page[total.end(1) :]

    smallest = f"3e-{collected.world.exponent}"
    held = lambda r: Decimal(r["allocated_gpu_hours"] or 0) > 0
    yield other("the cents of a line", cell(0, "csv", "billed_cost", held, more(smallest)))
    yield other("a billionth of a quantity", cell(1, "csv", "quantity", held, more("1e-9")))
    yield other("the cost centre of a line", cell(1, "csv", "cost_center", lambda r: True, lambda text: text + "x"))
    yield other("the unit price of a correction", cell(1, "csv", "unit_price", lambda r: r["charge_type"] == "correction", more("0.0001")))
    yield other("the cents of a day", cell(0, "focus.csv", "BilledCost", lambda r: r["x_ChargeType"] == "usage", more(smallest)))
    yield other("the idle hours of a day", cell(1, "focus.csv", "x_IdleGpuHours", lambda r: r["x_ChargeType"] == "usage", more("1e-9")))
    yield other("the total of an invoice", in_json)
    yield other("a unit-nanosecond", in_usage)
    yield other("the cost of an hour", in_costs)
    yield other("a cent of the metrics", in_metrics)
    yield other("the total of a page", in_page)


class Worlds(unittest.TestCase):
    def test_the_worlds_have_everything_in_them(self):
        found, methods = set(), set()
        for seed, zone, currency in LEDGERS:
            world = billworld.World(seed, zone, currency)
            billed, right = (billoracle.Bill(world, 0, late) for late in (False, True))
            lines = [*billed.lines.values(), *billoracle.Bill(world, 1, True).lines.values()]
            methods |= {book.shared_idle[0] for book in world.books}
            found |= {line.key.kind for line in lines} | {line.key.klass for line in lines} | {line.key.sharing for line in lines} | {line.unit for line in lines} | {line.category for line in lines}
            found |= {"a dearer own price"} if any(line.sum("discount") < 0 < line.sum("list") for line in lines) else set()
            found |= {"a cheaper own price"} if any(line.sum("discount") > 0 for line in lines) else set()
            found |= {"corrections"} if billoracle.corrections(billed, right) else set()
            fates = [fate for fate in billed.charged.rights.values()]
            found |= {name for fate in fates for name, amount in fate.items() if amount}
            found |= {"own reservations" for key in billed.charged.rights if key[3]} | {"shared reservations" for key in billed.charged.rights if not key[3]}
            found |= {item["basis"] for book in world.books for item in book.items}
            found |= {"basis used without class" for book in world.books for item in book.items if item["basis"] == "used" and not item["class"]}
            found |= {"a meter without public price" for book in world.books if not any(m["meter"] == "support" and not m["tenant"] for m in book.meters)}
            found |= {"reservations per GPU and per instance" for t in world.terms for agreed in t.rights.values() if {not r[3] for r in agreed} == {False, True}}
        self.assertGreaterEqual(methods, {"none", "even", "proportional", "weights"})
        self.assertGreaterEqual(found, {
            "usage", "covered", "unused", "undelivered", "lent", "commitment", "own idle", "shared idle", "energy", "meter", "one-off", "on-demand", "borrowed", "reserved", "dedicated",
            "exclusive", "mig", "timeslice", "gpu-hour", "instance-hour", "kWh", "GB-hour", "GB", "hour", "charge", "gpu", "storage", "network", "inference", "support", "other",
            "a dearer own price", "a cheaper own price", "corrections", "beyond", "own reservations", "shared reservations", "used", "allocated",
            "basis used without class", "a meter without public price", "reservations per GPU and per instance",
        })  # fmt: skip

    def test_the_worked_example_of_a_pool_of_eight(self):
        """A reserves 4 and holds 1, B reserves 2 and holds 5."""
        a, b = billworld.WORKSPACES[:2]
        settled = billoracle.Settled(8, {a: 1, b: 5}, {a: 4, b: 2}, {})
        self.assertEqual(settled.of[a], {"covered": 1, "on-demand": 0, "borrowed": 0, "lent": 1, "beyond": 0, "unused": 2, "undelivered": 0})
        self.assertEqual(settled.of[b], {"covered": 2, "on-demand": 2, "borrowed": 1, "lent": 0, "beyond": 0, "unused": 0, "undelivered": 0})
        self.assertEqual(settled.idle, 0)


class Independent(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.clock = cls.enterClassContext(Clock())
        cls.clock.set(billworld.NOW.timestamp() - time.time())
        server = pg.Cluster()
        server.env = cls.clock.env
        cls.server = cls.enterClassContext(server)
        cls.count = 0

    def collect(self, seed, zone, currency):
        print(f"world {seed} {zone} {currency}", flush=True)
        type(self).count += 1
        return Collected(self.server, self.clock, billworld.World(seed, zone, currency), f"ledger{self.count}")

    def worlds(self):
        """Nine that are always the same; in a soak others after them until its time is over."""
        yield from LEDGERS
        until, rng = time.monotonic() + SOAK_SECONDS / 4, random.SystemRandom()
        while time.monotonic() < until:
            yield rng.randrange(1 << 32), *rng.choice(LEDGERS)[1:]

    def test_random_ledgers_are_billed_as_the_rules_say(self):
        figures = collections.Counter()
        for world in self.worlds():
            with self.subTest(world):
                collected = self.collect(*world)
                check = compare(collected)
                figures += check.of
                wrong = [str(d) for d in check.differences]
                self.assertEqual(wrong[:20], [], f"{len(wrong)} of {check.count} figures differ")
                if world == LEDGERS[0]:
                    self.assert_harm_is_noticed(collected)
        print(f"{figures.total()} figures compared: {dict(figures)}", flush=True)

    def assert_harm_is_noticed(self, collected):
        for what, harmed in harms(collected):
            with self.subTest(what):
                self.assertTrue(compare(harmed).differences, f"nobody noticed {what}")


if __name__ == "__main__":
    unittest.main()
