"""What a day is charged as: classes, commitments, loans and idle capacity, from ingest to the report, exactly."""

import csv
import io
import json
import random
import unittest
from decimal import Decimal

from tests.integration.test_store import POLICY, START, Base, seed
from tests.support.billing import chargeref
from tests.support.fleet.fleet import DOWN, EXCLUSIVE, H100, HELD, HOUR, MEASURED, MINUTE, NONE, NS, STRANDED, UNALLOCATED, UNITS, UNKNOWN, Fleet
from tests.support.store.ledger import Ledger

MODEL = "H100-80GB"


def settle(led):
    while sum(led.rollup().values()):
        pass
    led.fold()


def at(ns):
    return f"at_ns({ns})"


def hold(led, node, gpus, start, end, active):
    """gpus: per GPU a list of (until, namespace, or the state in which nobody holds it). active: until when each is used while held."""
    devices = [{"id": i + 1, "uuid": f"GPU-{node}-{i}", "model": H100, "index": i} for i in range(len(gpus))]
    names = sorted({what for g in gpus for _, what in g if isinstance(what, str)})
    holders = [{"id": i + 1, "kind": 1, "ns": ns, "pod": "p", "pod_uid": f"uid-{ns}"} for i, ns in enumerate(names)]
    batches, quarter = [], 15 * MINUTE
    for hour in range(start, end, HOUR):
        until = min(hour + HOUR, end)
        records = []
        for at_ns in range(hour, until, quarter):
            for i, pieces in enumerate(gpus):
                what = next(w for until_ns, w in pieces if at_ns < until_ns)
                held = isinstance(what, str)
                used = quarter if held and at_ns < active[i] else 0
                records.append([i + 1, names.index(what) + 1 if held else 0, HELD if held else what, EXCLUSIVE, MEASURED if held else NONE, UNITS,
                                at_ns, quarter, quarter, used, 0, 0, 0, 3600, 1])  # fmt: skip
        batches.append({"node": node, "boot_id": "ab" * 16, "epoch": 1, "seq": len(batches) + 1, "flags": 1, "from_ns": hour, "to_ns": until,
                        "devices": devices if not batches else [], "holders": holders if not batches else [], "records": records})  # fmt: skip
    r = led.ingest(batches)
    assert r["ok"] and not r["quarantined"], r


class Random(Base):
    """Reservations, lending, owners, books and states that come and go, over fleets that do."""

    def hours(self, rng, start, count, phase):
        """Disjoint ranges of billing hours, the last one without end."""
        first = start // HOUR * HOUR + phase
        cuts = sorted(rng.sample(range(-2, count), rng.randint(1, 3)))
        for i, c in enumerate(cuts):
            until = f"at_ns({first + cuts[i + 1] * HOUR})" if i + 1 < len(cuts) else "NULL"
            yield f"tstzrange(at_ns({first + c * HOUR}), {until})"

    def grant(self, rng, led, start, count, phase):
        nodes = [n for [n] in led.rows("select id from node order by 1")]
        tenants = [t for [t] in led.rows("select id from tenant order by 1")]
        for node in nodes:
            for when in self.hours(rng, start, count, phase):
                if rng.random() < 0.5:
                    led.declare(f"insert into node_owner (node_id, tenant_id, effective) values ({node}, {rng.choice(tenants)}, {when})")
        for [workspace] in led.rows("select id from workspace order by 1"):
            for shared in ("true", "false"):
                for when in self.hours(rng, start, count, phase):
                    what = rng.choice(["NULL", "'', NULL, %d" % rng.choice([2520, 5040, 10080, 720]), "'1g.10gb', 2, 1350", "'3g.40gb', 1, 2340"])
                    if what != "NULL":
                        led.declare(
                            "insert into reservation (workspace_id, cluster_id, shared, model, profile, instances, units, effective) "
                            f"select {workspace}, (select min(id) from cluster), {shared}, '{MODEL}', {what}, {when}"
                        )
            for when in self.hours(rng, start, count, phase):
                model, what = rng.choice(["''", f"'{MODEL}'"]), rng.choice(["'', NULL, NULL", "'', NULL, 0", "'', NULL, 1260", "'1g.10gb', 1, NULL"])
                if rng.random() < 0.5:
                    led.declare(f"insert into workspace_limit (workspace_id, kind, model, profile, instances, units, effective) select {workspace}, 'lend', {model}, {what}, {when}")
        for i, when in enumerate(self.hours(rng, start, count, phase)):
            shared = rng.choice(["none", "even", "proportional"])
            led.declare(f"insert into price_book (version, currency, sha256, effective, lender_ratio, shared_idle) values ('v{i}', 'EUR', sha256('{i}'), {when}, 0.8, '{shared}')")

    def assert_charged(self, led):
        for name, found, expected in zip(("charge_day", "reserve_day", "loan_day", "pool_day"), chargeref.found(led), chargeref.expected(led)):
            differing = sorted({*found.items()} ^ {*expected.items()}, key=str)
            self.assertEqual(differing, [], name)
        self.assertEqual(
            led.rows(
                "select 1 from (select day, workspace_id, sum(used) u, sum(idle) i, sum(unmeasured) m, sum(over) o, sum(energy_mj) e from charge_day group by 1, 2) c "
                "full join (select day, workspace_id, sum(used) u, sum(idle) i, sum(unmeasured) m, sum(over) o, sum(energy_mj) e from usage_daily "
                "where workspace_id is not null group by 1, 2) d using (day, workspace_id) where (c.u, c.i, c.m, c.o, c.e) is distinct from (d.u, d.i, d.m, d.o, d.e)"
            ),
            [],
            "what was held is what is charged",
        )

    def dirty(self, led):
        """Days that are over."""
        return int(led.value(f"select count(*) from billing_day where dirty and ends_at <= {at(led.now)}"))

    def report(self, led):
        return [led.text("report", month) for [month] in led.rows("select month from period order by 1")]

    PRICES = (("NULL, NULL, 'on-demand'", "3.37"), ("NULL, NULL, 'borrowed'", "1.211"), ("NULL, NULL, 'reserved'", "2.003"), ("NULL, NULL, 'dedicated'", "0.91"),
              ("NULL, '1g.10gb', NULL", "0.777"))  # fmt: skip

    def price(self, rng, led):
        """Prices for the books that grant() made."""
        for [book] in led.rows("select id from price_book order by 1"):
            for n, (what, price) in enumerate(self.PRICES):
                led.declare(f"insert into price_item (book_id, position, gpu_model, mig_profile, class, price) select {book}, {n}, {what}, {price}")
            led.declare(f"insert into price_discount (book_id, position, category, ratio) values ({book}, 0, 'gpu', 0.0{rng.randint(1, 9)})")

    def assert_reconciled(self, led):
        """Capacity x list price = billed + credits + unrecovered + prices, to the cent; what is billed is the report, and capacity all that was in service."""
        hours = Decimal(0)
        for [month] in led.rows("select month from period order by 1"):
            doc = json.loads(led.text("reconcile", month))
            lines = list(csv.DictReader(io.StringIO(led.text("report", month))))
            for row in doc["rows"]:
                where = (month, row["level"], row["cluster"], row["gpu_model"])
                sections = {}
                for t in row["terms"]:
                    sections[t["section"]] = sections.get(t["section"], Decimal(0)) + Decimal(t["amount"])
                self.assertEqual(sections, {k: Decimal(row[k]) for k in ("billed", "credits", "unrecovered", "prices")}, where)
                self.assertEqual(sum(sections.values()), Decimal(row["capacity_value"]), where)
                self.assertEqual(sum(map(Decimal, row["gpu_hours"].values())), Decimal(row["capacity_gpu_hours"]), where)
                self.assertTrue(row["agrees"], where)
                if row["level"] != "model":
                    below = [r for r in doc["rows"] if r["level"] == "model" and row["cluster"] in ("", r["cluster"])]
                    self.assertEqual(sum(Decimal(r["capacity_value"]) for r in below), Decimal(row["capacity_value"]), where)
                    self.assertEqual([sum(Decimal(r["terms"][i]["amount"]) for r in below) for i in range(len(row["terms"]))], [Decimal(t["amount"]) for t in row["terms"]], where)
                else:
                    priced = Decimal(row["capacity_gpu_hours"]) - Decimal(row["unpriced_gpu_hours"])
                    self.assertLessEqual(abs(Decimal(row["capacity_value"]) - priced * Decimal("3.37")), Decimal("0.01"), where)
                    hours += Decimal(row["capacity_gpu_hours"])
            for total in doc["totals"]:
                self.assertEqual(Decimal(total["total"]), sum(Decimal(r["billed_cost"]) for r in lines if r["currency"] == total["currency"]), month)
                self.assertEqual(Decimal(total["capacity"]) + Decimal(total["energy"]), Decimal(total["total"]), "there are no other meters")
        exact = led.value("select sum(used + idle + unmeasured + unallocated + stranded + down + unknown)::text from usage_rows('2026-01-01', '2027-12-01')")
        self.assertLess(abs(hours - Decimal(exact) / UNITS / HOUR), Decimal("1e-6"))

    def test_any_fleet_is_charged_as_the_rules_say_in_any_zone(self):
        rng = random.Random(seed())
        # The second is the day on which the summer time of Berlin ends.
        for zone, start, phase in (("UTC", START, 0), ("Europe/Berlin", 1_792_872_000 * 10**9, 0), ("Asia/Kolkata", START, HOUR // 2)):
            with self.subTest(zone):
                led = self.new_ledger(now=start + 14 * HOUR, zone=zone)
                effective = "2026-10-24T00:00:00Z" if start < START else "2026-11-30T00:00:00Z"
                led.apply(POLICY.replace("2026-11-30T00:00:00Z", effective if phase == 0 else effective.replace("00:00Z", "30:00Z")))
                fleet = Fleet(rng.randrange(1 << 32), start, start + 8 * HOUR)
                led.ingest_many([s for n in fleet.nodes for s in n.streams])
                self.grant(rng, led, start, 9, phase)
                led.declare(f"insert into node_state (node_id, state, effective) select min(id), 'maintenance', tstzrange(at_ns({start // HOUR * HOUR + phase + 3 * HOUR}), at_ns({start // HOUR * HOUR + phase + 5 * HOUR})) from node")
                settle(led)
                led.now += 24 * HOUR
                settle(led)
                self.assertEqual(self.dirty(led), 0)
                self.assert_charged(led)
                self.price(rng, led)
                self.assert_reconciled(led)
                folded = self.report(led)
                led.rows("update billing_day set dirty = true")
                self.assertEqual(self.report(led), folded, "a month is the same from its days and from its hours")
                self.assert_reconciled(led)
                led.fold()
                self.assertEqual(self.report(led), folded)

    def test_what_changes_a_charge_makes_its_days_dirty(self):
        led = self.new_ledger()
        led.apply(POLICY)
        fleet = Fleet(seed(), START, START + 3 * HOUR)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        settle(led)
        led.now += 48 * HOUR
        settle(led)
        hours = f"tstzrange({at(START)}, {at(START + HOUR)})"
        for change in (
            f"insert into reservation select min(id), (select min(id) from cluster), true, '{MODEL}', '', NULL, 5040, {hours} from workspace",
            f"update reservation set effective = tstzrange({at(START)}, {at(START + 2 * HOUR)})",
            f"insert into workspace_limit select min(id), 'lend', '', '', NULL, 1, {hours} from workspace",
            "delete from workspace_limit where kind = 'lend'",
            "delete from reservation",
        ):
            with self.subTest(change):
                led.declare(change)
                self.assertEqual(self.dirty(led), 1)
                settle(led)
                self.assert_charged(led)
        led.declare(f"insert into workspace_limit select min(id), 'limit', '', '', NULL, 1, {hours} from workspace")
        self.assertEqual(self.dirty(led), 0)

    def test_of_an_open_hour_a_reservation_counts_as_far_as_the_nodes_have_come(self):
        led = self.new_ledger(now=START + 45 * MINUTE)
        led.apply(POLICY + "prices: {version: v, currency: EUR, items: [{price: '1.00'}]}\n")
        hold(led, "n", [[(START + HOUR, "ns-0")]], START, START + 30 * MINUTE, [0])
        led.declare(f"insert into reservation select min(id), (select min(id) from cluster), true, '{MODEL}', '', NULL, 5040, tstzrange({at(START)}, NULL) from workspace where name = 'even'")
        lines = [r for r in csv.DictReader(io.StringIO(led.text("report", "2026-11"))) if r["category"] == "gpu"]
        self.assertEqual({(r["charge_type"], Decimal(r["quantity"])) for r in lines}, {("commitment", Decimal("0.5")), ("covered", Decimal("0.5"))})

    def test_lines_of_an_hour_that_is_open_are_provisional_and_say_so(self):
        """ns-0 holds in both hours, ns-1 in the first one alone; the second is open. What changes class then is marked until it is sealed."""
        led = self.new_ledger(now=START + 90 * MINUTE)
        led.apply(POLICY + "prices: {version: v, currency: EUR, items: [{price: '1.00'}]}\n")
        first, end = START + HOUR, START + 2 * HOUR
        hold(led, "n", [[(end, "ns-0")], [(first, "ns-1"), (end, UNALLOCATED)]], START, first + 30 * MINUTE, [end, end])
        led.now = first + 31 * MINUTE
        led.rollup()
        marked = " (provisional: an hour is still open)"

        def said():
            csv_rows = list(csv.DictReader(io.StringIO(led.text("report", "2026-11"))))
            lines = json.loads(led.document("2026-11", None, "json"))["lines"]
            self.assertEqual([{k: v for k, v in line.items() if k != "provisional"} for line in lines], csv_rows)
            self.assertEqual([line.get("provisional", False) for line in lines], [r["description"].endswith(marked) for r in csv_rows])
            return {r["workspace"]: r["description"].endswith(marked) for r in csv_rows if r["category"] == "gpu"}

        self.assertEqual(int(led.value("select count(*) from node_hour where sealed_at is null")), 1)
        self.assertEqual(said(), {"even": True, "odd": False})
        led.now = end + 8 * HOUR
        settle(led)
        self.assertEqual(set(said().values()), {False})

    def test_verify_finds_every_charge_that_was_changed_added_or_taken_away(self):
        rng = random.Random(seed())
        led = self.new_ledger(now=START + 40 * HOUR)
        led.apply(POLICY)
        fleet = Fleet(rng.randrange(1 << 32), START, START + 3 * HOUR)
        led.ingest_many([s for n in fleet.nodes for s in n.streams])
        led.declare(f"insert into reservation select id, (select min(id) from cluster), true, '{MODEL}', '', NULL, 2520, tstzrange({at(START)}, NULL) from workspace where name <> 'rest'")
        settle(led)
        for spoil, mend, rows in (
            ("update charge_day set used = used + 1", "update charge_day set used = used - 1", "select count(*) from charge_day"),
            ("update reserve_day set unused = unused + 1, reserved = reserved + 1", "update reserve_day set unused = unused - 1, reserved = reserved - 1", "select count(*) from reserve_day"),
            ("update pool_day set down = down + 1", "update pool_day set down = down - 1", "select count(*) from pool_day"),
        ):
            with self.subTest(spoil):
                led.rows(spoil)
                found = [d for d in led.verify(START - 24 * HOUR, led.now)["differences"] if d["kind"] == "charge-changed" and d["difference"] == "1"]
                self.assertEqual(len(found), int(led.value(rows)) * spoil.count("+ 1"), "each row by its key, and each sum that was changed")
                self.assertGreater(len(found), 0)
                led.rows(mend)
        led.rows("delete from reserve_day")
        self.assertEqual({(d["kind"], d["found"]) for d in led.verify(START - 24 * HOUR, led.now)["differences"]}, {("charge-row-missing", "0")})
        led.rows("update billing_day set dirty = true")
        led.fold()

    def test_wrong_charges_are_refused_by_the_tables(self):
        led = self.new_ledger()
        led.rows("insert into billing_day (day, starts_at, ends_at) values ('2026-11-30', '2026-11-30', '2026-12-01')")
        for wrong in (
            "insert into reserve_day values ('2026-11-30', 1, 1, NULL, 'x', 1, '', 5040, 10, 1, 2, 3, 5)",
            "insert into pool_day values ('2026-11-30', 1, 1, NULL, 'x', 10, 1, 2, 3, 3, 2, 4, 0, 0, 0, 0)",
            "insert into pool_day values ('2026-11-30', 1, 1, NULL, 'x', 10, 1, 2, 3, 2, 2, 5, 0, 0, 0, 0)",
            "insert into loan_day values ('2026-11-30', 1, 1, NULL, 'x', 1, 1, '', 5040, 1, 1, 0, 0, 0, 0)",
            "insert into charge_day values ('2026-11-30', 1, 1, NULL, 'x', 1, '', 5040, 1, 'free', 1, 0, 0, 0, 0)",
        ):
            with self.subTest(wrong), self.assertRaises(Exception):
                led.rows(wrong)


class Plans(Base):
    """What PostgreSQL looks at, in rows, for a day of a fleet of hundreds of GPUs: about as many as there are."""

    NODES, HOURS = 60, 24
    FILL = f"""
set session_replication_role = replica;
insert into cluster (id, name) overriding system value values (77, 'many');
insert into node (cluster_id, name) select 77, 'n' || n from generate_series(1, {NODES}) n;
insert into node_cluster select id, cluster_id, '(,)' from node;
insert into gpu (uuid, model, short_model, memory_bytes, index) select n.id || '-' || i, 'm', '{MODEL}', 1, i from node n, generate_series(0, 7) i;
insert into gpu_spec (gpu_id, model, short_model, memory_bytes, effective) select id, model, short_model, memory_bytes, '(,)' from gpu;
insert into device (gpu_id, gi, ci, created_ns, uuid, profile, units, memory_bytes) select id, -1, -1, 0, uuid, '', 5040, 1 from gpu;
insert into node_hour (node_id, hour, sealed_at) select n.id, timestamptz '2026-10-05 00:00Z' + h * interval '1 hour', now() from node n, generate_series(0, {HOURS - 1}) h;
insert into usage_hourly (hour, node_id, device_id, sharing, method, used, idle, unmeasured, unallocated, stranded, down, unknown, over, clock_adjust, energy_mj, memory_byte_ms)
    select h.hour, h.node_id, d.id, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0 from node_hour h join device d on split_part(d.uuid, '-', 1) = h.node_id::text;
insert into price_book (version, currency, sha256, effective) values ('v', 'EUR', sha256('v'), '(,)');
"""

    def looked_at(self, plan):
        return max([plan["Actual Rows"] * plan["Actual Loops"], *(self.looked_at(p) for p in plan.get("Plans", ()))])

    def test_a_day_is_read_once_and_not_for_every_gpu(self):
        led = Ledger(self.cluster, "plans")
        led.rows(self.FILL)
        led.rows("analyze")
        rows = self.NODES * 8 * self.HOURS
        for function in ("charge_input", "folded_usage"):
            [[plan]] = led.rows(f"set jit = off; explain (analyze, timing off, format json) select * from {function}('2026-10-05Z', '2026-10-06Z')")
            self.assertLessEqual(self.looked_at(json.loads(plan)[0]["Plan"]), 2 * rows, function)


class Worked(Base):
    """The examples of the rules, from the node's records to the invoice's cents."""

    PRICES = """
prices:
  version: example
  currency: EUR
  lender_ratio: "%s"
  items:
    - {gpu_model: H100-80GB, class: reserved, price: "2.00"}
    - {gpu_model: H100-80GB, class: on-demand, price: "3.00"}
    - {gpu_model: H100-80GB, class: borrowed, price: "%s"}
"""

    def lines(self, led, month):
        rows = list(csv.DictReader(io.StringIO(led.text("report", month))))
        for r in rows:
            self.assertEqual(Decimal(r["list_cost"]) - Decimal(r["discount"]) + Decimal(r["rounding"]), Decimal(r["billed_cost"]))
        return sorted((r["tenant"], r["charge_type"], r["class"], r["counterparty"], Decimal(r["quantity"]), Decimal(r["billed_cost"])) for r in rows)

    def test_eight_gpus_for_an_hour(self):
        led = self.new_ledger(now=START + HOUR + MINUTE)
        led.apply(
            """
version: 1
cluster: test
effective: 2026-11-30T20:00:00Z
tenants:
  - {name: a, workspaces: [{name: wa, reserved_shared: 4, rules: [{namespace: a}]}]}
  - {name: b, workspaces: [{name: wb, reserved_shared: 2, rules: [{namespace: b}]}]}
nodes: [{name: n, shared: true, model: H100-80GB, gpus: 8}]
"""
            + self.PRICES % ("0.8", "1.50")
        )
        end = START + HOUR
        hold(led, "n", [[(end, what)] for what in ["a"] + ["b"] * 5 + [UNALLOCATED] * 2], START, end, [end] * 8)
        expected = [
            ("a", "commitment", "reserved", "", 4, Decimal("8.00")),
            ("a", "covered", "reserved", "", 1, 0),
            ("a", "covered", "reserved", "", 2, 0),  # reserved and unused
            ("a", "credit", "borrowed", "b", -1, Decimal("-1.20")),
            ("b", "commitment", "reserved", "", 2, Decimal("4.00")),
            ("b", "covered", "reserved", "", 2, 0),
            ("b", "usage", "borrowed", "", 1, Decimal("1.50")),
            ("b", "usage", "on-demand", "", 2, Decimal("6.00")),
        ]
        self.assertEqual(self.lines(led, "2026-11"), expected)
        self.assertEqual(sum(line[-1] for line in expected if line[0] == "a"), Decimal("6.80"))
        self.assertEqual(sum(line[-1] for line in expected), Decimal("18.30"))
        led.rollup()
        self.assertEqual(self.lines(led, "2026-11"), expected)

    def test_idle_time_of_shared_nodes_is_less_what_is_stranded_of_the_same_hour(self):
        """First hour: 4 GPUs reserved, 2 of them stranded. Second hour: nothing reserved, 1 stranded, 3 free. Idle less stranded is 0 and then 3;
        of the day's sums (4 idle, 3 stranded) it would be 1."""
        led = self.new_ledger(now=START + 2 * HOUR + MINUTE)
        people = """
version: 1
cluster: test
effective: %s
tenants:
  - {name: a, workspaces: [{name: wa%s, rules: [{namespace: a}]}]}
  - {name: b, workspaces: [{name: wb, rules: [{namespace: b}]}]}
nodes: [{name: n, shared: true, model: H100-80GB, gpus: 4}]
prices:
  version: example
  currency: EUR
  shared_idle: {method: weights, weights: {a: 1, b: 2}}
  items:
    - {gpu_model: H100-80GB, class: reserved, price: "2.00"}
    - {gpu_model: H100-80GB, class: dedicated, price: "1.00"}
"""
        first, end = START + HOUR, START + 2 * HOUR
        led.apply(people % ("2026-11-30T20:00:00Z", ", reserved_shared: 4"))
        led.apply(people % (led.value(f"select rfc3339(at_ns({first}))"), ""))
        hold(led, "n", [[(first, STRANDED), (end, what)] for what in (STRANDED, UNALLOCATED)] + [[(end, UNALLOCATED)]] * 2, START, end, [0] * 4)
        expected = {("a", Decimal(1), Decimal("1.00")), ("b", Decimal(2), Decimal("2.00"))}

        def shared(month="2026-11"):
            rows = csv.DictReader(io.StringIO(led.text("report", month)))
            return {(r["tenant"], Decimal(r["quantity"]), Decimal(r["billed_cost"])) for r in rows if r["class"] == "dedicated"}

        self.assertEqual(shared(), expected, "from the hours")
        led.now += 30 * HOUR
        settle(led)
        self.assertEqual(shared(), expected, "from the day")
        self.assertEqual(led.verify(START - 24 * HOUR, led.now)["differences"], [])
        found = json.loads(led.text("reconcile", "2026-11"))["rows"][0]
        self.assertTrue(found["agrees"])
        self.assertEqual({k: Decimal(v) for k, v in found["gpu_hours"].items() if k != "unknown" and Decimal(v)}, {"unused": 4, "shared": 3, "stranded": 1})
        for spoil in ("idle_less_stranded + 1", "NULL"):
            led.rows(f"update pool_day set idle_less_stranded = {spoil} where idle_less_stranded < unreserved_idle")
            self.assertEqual({d["kind"] for d in led.verify(START - 24 * HOUR, led.now)["differences"]}, {"charge-changed"}, spoil)
            led.rows("update billing_day set dirty = true")
            led.fold()

    def test_a_cluster_that_gets_another_name_keeps_the_old_one_for_its_past(self):
        """The nodes of the file and one that no policy declares, east until START, west from then on; a month that was closed stays sound."""
        led = self.new_ledger(now=START + 2 * HOUR + MINUTE)
        policy = """
version: 1
cluster: %s
effective: %s
tenants: [{name: a, workspaces: [{name: wa, rules: [{namespace: a}]}]}]
nodes: [{name: n, shared: true, model: H100-80GB, gpus: 1}]
"""
        first, end = START - 2 * HOUR, START + 2 * HOUR
        led.apply(policy % ("default", led.value(f"select rfc3339(at_ns({first}))")) + self.PRICES % ("0.5", "1.20"))
        led.apply(policy % ("east", led.value(f"select rfc3339(at_ns({first}))")) + self.PRICES % ("0.5", "1.20"))
        self.assertEqual(led.rows("select name from cluster"), [["east"]], "nothing was measured under the first name")
        for node in ("n", "undeclared"):
            hold(led, node, [[(end, "a")]], first, end, [end])

        def clusters():
            rows = csv.DictReader(io.StringIO(led.text("report", "2026-11")))
            return {(r["cluster"], Decimal(r["quantity"])) for r in rows if r["charge_type"] == "usage"}

        before = clusters()
        self.assertEqual({c for c, _ in before}, {"east"})
        led.apply(policy % ("west", led.value(f"select rfc3339(at_ns({START}))")) + self.PRICES % ("0.5", "1.20"))
        hours = sum(q for _, q in before)
        self.assertEqual(clusters(), {("east", hours / 2), ("west", hours / 2)})
        led.now = START + 15 * 24 * HOUR
        settle(led)
        self.assertEqual(clusters(), {("east", hours / 2), ("west", hours / 2)})
        capacity = {r["cluster"]: Decimal(r["gpu_hours"]["on_demand"]) for r in json.loads(led.text("reconcile", "2026-11"))["rows"] if r["level"] == "cluster"}
        self.assertEqual(capacity, {"east": hours / 2, "west": hours / 2})
        led.close("2026-11", "a test")
        led.apply(policy % ("north", led.value(f"select rfc3339(at_ns({led.now // HOUR * HOUR}))")) + self.PRICES % ("0.5", "1.20"))
        self.assertEqual(led.verify(first, led.now)["differences"], [], "a later name changes no closed month")
    def test_past_days_have_the_cost_centre_that_was_in_force_then(self):
        """One cost centre until 29 November, another from the 30th on; a third one, from 04:00 on that day, counts from December on."""
        midnight = START // (24 * HOUR) * 24 * HOUR
        led = self.new_ledger(now=midnight + 9 * HOUR)
        people = """
version: 1
cluster: test
effective: %s
tenants: [{name: a, cost_center: %s, workspaces: [{name: wa, reserved_shared: 1, rules: [{namespace: a}]}]}]
nodes: [{name: n, shared: true, model: H100-80GB, gpus: 2}]
"""
        for at_ns, center in ((midnight - 24 * HOUR, "old"), (midnight, "new"), (midnight + 4 * HOUR, "third")):
            led.apply(people % (led.value(f"select rfc3339(at_ns({at_ns}))"), center) + self.PRICES % ("0.5", "1.20"))
        hold(led, "n", [[(midnight + 8 * HOUR, "a")]] * 2, midnight - 6 * HOUR, midnight + 8 * HOUR, [midnight] * 2)
        expected = sorted([("new", "commitment", 8, Decimal(16)), ("new", "covered", 8, 0), ("new", "usage", 8, Decimal(24)),
                           ("old", "commitment", 6, Decimal(12)), ("old", "covered", 6, 0), ("old", "usage", 6, Decimal(18))])  # fmt: skip

        def lines(text):
            rows = [r for r in csv.DictReader(io.StringIO(text)) if Decimal(r["quantity"]) <= 8]
            self.assertEqual(len({r["line_id"] for r in rows}), len(rows), "each line has an id of its own")
            return sorted((r["cost_center"], r["charge_type"], Decimal(r["quantity"]), Decimal(r["billed_cost"])) for r in rows if r["charge_type"] != "credit")

        before = led.text("report", "2026-11")
        self.assertEqual(lines(before), expected)
        ids = {r["line_id"] for r in csv.DictReader(io.StringIO(before)) if r["cost_center"] == "old"}
        led.apply(people % (led.value(f"select rfc3339(at_ns({midnight}))"), "old") + self.PRICES % ("0.5", "1.20"))
        one = {r["line_id"] for r in csv.DictReader(io.StringIO(led.text("report", "2026-11")))}
        self.assertLessEqual(ids, one, "lines of the first cost centre have the ids that they have without another")
        led.apply(people % (led.value(f"select rfc3339(at_ns({midnight}))"), "new") + self.PRICES % ("0.5", "1.20"))
        led.now = midnight + 15 * 24 * HOUR
        settle(led)
        led.close("2026-11", "a test")
        self.assertEqual([r for r in lines(led.bill("2026-11")) if r in expected and r[1] != "commitment"], [r for r in expected if r[1] != "commitment"])
        self.assertEqual(led.verify(midnight - 40 * 24 * HOUR, led.now)["differences"], [], "verify has rated the closed month a second time")

    def test_a_cost_centre_that_changes_on_the_last_day_of_a_month_counts_from_the_next_one(self):
        last = START // (24 * HOUR) * 24 * HOUR  # the last day of November begins
        led = self.new_ledger(now=last + 30 * HOUR)
        people = """
version: 1
cluster: test
effective: %s
tenants: [{name: a, cost_center: %s, workspaces: [{name: wa, rules: [{namespace: a}]}]}]
nodes: [{name: n, shared: true, model: H100-80GB, gpus: 1}]
"""
        for at_ns, center in ((last - 24 * HOUR, "old"), (last + 5 * HOUR, "new")):
            led.apply(people % (led.value(f"select rfc3339(at_ns({at_ns}))"), center) + self.PRICES % ("0.5", "1.20"))
        hold(led, "n", [[(last + 8 * HOUR, "a")]], last, last + 8 * HOUR, [last])

        def centers(text):
            return {r["cost_center"] for r in csv.DictReader(io.StringIO(text)) if r["tenant"] == "a"}

        self.assertEqual(centers(led.text("report", "2026-11")), {"old"})
        led.now = last + 15 * 24 * HOUR
        settle(led)
        led.close("2026-11", "a test")
        self.assertEqual(centers(led.bill("2026-11")), {"old"})
        self.assertEqual(led.verify(last - 40 * 24 * HOUR, led.now)["differences"], [])
        # another text than was in force is named, by whoever wrote it into the journal too
        led.rows("set session_replication_role = replica; update invoice_line set cost_center = 'new' where cost_center = 'old'")
        reply = led.verify(last - 40 * 24 * HOUR, led.now)
        found = {d["what"].rsplit(", ")[-1] for d in reply["differences"] if d["kind"] == "line-rated"}
        self.assertEqual(found, {"cost_center"})
        led.rows("set session_replication_role = replica; update invoice_line set cost_center = 'old' where cost_center = 'new'")

    def test_a_shared_node_for_a_month(self):
        start = 1_793_491_200 * NS  # 2026-11-01
        end = start + 720 * HOUR
        led = self.new_ledger(now=end + MINUTE)
        led.apply(
            """
version: 1
cluster: test
effective: 2026-11-01T00:00:00Z
tenants:
  - {name: acme, workspaces: [{name: prod, reserved_shared: 4, rules: [{namespace: prod}]}, {name: research, rules: [{namespace: research}]}]}
nodes: [{name: n, shared: true, model: H100-80GB, gpus: 4}]
"""
            + self.PRICES % ("0.5", "1.20")
        )
        gpus = [
            [(end, "prod")],
            [(end, "prod")],
            [(start + 500 * HOUR, "research"), (end, UNALLOCATED)],
            [(start + 30 * HOUR, DOWN), (start + 40 * HOUR, UNKNOWN), (end, UNALLOCATED)],
        ]
        hold(led, "n", gpus, start, end, [end, start + 280 * HOUR, end, end])
        settle(led)
        expected = [
            ("acme", "commitment", "reserved", "", 2880, 5760),
            ("acme", "covered", "reserved", "", 900, 0),
            ("acme", "covered", "reserved", "", 1440, 0),
            ("acme", "credit", "borrowed", "acme", -500, -300),
            ("acme", "credit", "reserved", "", -40, -80),
            ("acme", "usage", "borrowed", "", 500, 600),
        ]
        self.assertEqual(self.lines(led, "2026-11"), expected)
        self.assertEqual(sum(line[-1] for line in expected), 5980)
        covered = [r for r in csv.DictReader(io.StringIO(led.text("report", "2026-11"))) if r["allocated_gpu_hours"] == "1440.000000000"]
        self.assertEqual([(r["used_gpu_hours"], r["idle_gpu_hours"]) for r in covered], [("1000.000000000", "440.000000000")])


if __name__ == "__main__":
    unittest.main()
