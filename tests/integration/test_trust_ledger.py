"""Somebody changes the ledger behind its back: whatever a bill is made from, `tollgate verify` names the row, or the database refuses the change.

The attacks run against the programs, on the ledger of test_sums: two months, one closed and corrected, with every class, MIG, events and credits."""

import csv
import datetime
import decimal
import gzip
import hashlib
import io
import json
import os
import random
import re
import unittest

from tests.integration import test_sums
from tests.integration.test_periods import settle
from tests.integration.test_store import seed
from tests.support import ledger, pg


class World(test_sums.Sums):
    maxDiff = None
    """The ledger of test_sums, without its tests."""

    def verify(self):
        """The whole ledger by the command: exit code, differences, counts."""
        done = self.s.cli("verify", "--since", "96d", "-o", "json")
        self.assertIn(done.returncode, (0, 1, 4), done.stderr)
        reply = json.loads(done.stdout)
        return done.returncode, reply["differences"], reply

    def bill(self):
        """What each tenant owes for the open month."""
        out = {}
        for r in csv.DictReader(io.StringIO(self.report("csv"))):
            out[r["tenant"]] = out.get(r["tenant"], 0) + round(float(r["billed_cost"]) * 100)
        return out

    def changed(self, change, mend):
        """As the owner of the database, with triggers off."""
        off = "set session_replication_role = replica; "
        self.s.sql(off + change)
        self.addCleanup(self.s.sql, off + mend)


for name in dir(test_sums.Sums):
    if name.startswith("test_"):
        setattr(World, name, None)


class Attacks(World):
    def test_a_sound_ledger_has_no_difference(self):
        code, differences, reply = self.verify()
        self.assertEqual((code, [(d["kind"], d["what"], d["expected"][:80], d["found"][:80]) for d in differences]), (0, []))
        for what in ("nodes", "hours", "batches", "records", "days"):
            self.assertGreater(reply[what], 0, what)

    def test_charges_that_are_moved_to_another_tenant_before_the_close_are_named(self):
        before = self.bill()
        workspace = {n: self.s.sql(f"select id from workspace where name = '{n}'")[0][0] for n in ("research", "serving")}
        [[day, used]] = self.s.sql(
            f"select c.day, c.used from charge_day c join billing_day b using (day) where c.workspace_id = {workspace['research']} and c.class = 'on-demand' and not b.dirty "
            f"and c.day >= '{test_sums.MONTH}-01' and c.gpu_model = 'H100-80GB' and c.profile = '' and c.used > 0 order by c.day limit 1")  # fmt: skip
        where = f"day = '{day}' and class = 'on-demand' and gpu_model = 'H100-80GB' and profile = '' and workspace_id = {workspace['research']}"
        part = int(used) // 2
        self.changed(f"update charge_day set used = used - {part} where {where}", f"update charge_day set used = used + {part} where {where}")
        after = self.bill()
        self.assertLess(after["globex"], before["globex"], "the attack moves money")
        code, differences, _ = self.verify()
        self.assertEqual(code, 1)
        [d] = [d for d in differences if d["difference"] == str(-part)]
        self.assertIn(f"used of charge_day, {day}: ", d["what"])
        self.assertIn(f"workspace {workspace['research']}", d["what"])

    def named(self, change, mend, *words):
        """verify ends with 1 after the change, and a difference has all these words."""
        self.assertEqual(self.verify()[0], 0)
        self.changed(change, mend)
        code, differences, _ = self.verify()
        self.assertEqual(code, 1)
        self.assertTrue([d for d in differences if all(w in d["kind"] + " " + d["what"] for w in words)], differences)

    def test_a_billed_line_that_is_changed_after_the_close_is_named(self):
        [[number, line, billed]] = self.s.sql("select number, line_id, billed from invoice_line where charge_type = 'usage' and billed > 1 order by 1, 2 limit 1")
        where = f"where number = {number} and line_id = '{line}'"
        self.named(f"update invoice_line set billed = billed - 1, rounding = rounding - 1 {where}", f"update invoice_line set billed = billed + 1, rounding = rounding + 1 {where}", line)

    def test_a_price_that_is_changed_is_named(self):
        self.named("update price_item set price = price + 1 where position = 1", "update price_item set price = price - 1 where position = 1", "price_item", " 1")

    def test_the_reason_of_a_close_that_is_rewritten_is_named(self):
        self.named("update period_close set reason = 'all was well'", "update period_close set reason = 'n2 has not been heard of'", "close", "reason")

    def test_a_late_change_that_is_removed_is_named_by_its_lines(self):
        rows = self.s.sql("select id, month, at from late_change")
        self.assertGreater(len(rows), 0)
        back = "; ".join(f"insert into late_change overriding system value values ({i}, '{m}', '{at}')" for i, m, at in rows)
        self.named("delete from late_change", back, "line-rated", test_sums.CLOSED)

    def test_a_document_that_is_replaced_with_its_hash_is_named(self):
        document = f"month = '{test_sums.CLOSED}' and format = 'csv' and tenant_id = (select id from tenant where name = 'globex')"
        [[gzip, sha, size]] = self.s.sql(f"select encode(gzip, 'hex'), encode(sha256, 'hex'), plain_bytes from invoice_document where {document}")
        of = f"{{}}.month = '{test_sums.CLOSED}' and {{}}.format = 'csv' and {{}}.tenant_id = (select id from tenant where name = '{{}}')"
        self.named("update invoice_document d set gzip = o.gzip, sha256 = o.sha256, plain_bytes = o.plain_bytes from invoice_document o "
                   f"where {of.format('d', 'd', 'd', 'globex')} and {of.format('o', 'o', 'o', 'acme')}",
                   f"update invoice_document set gzip = decode('{gzip}', 'hex'), sha256 = decode('{sha}', 'hex'), plain_bytes = {size} where {document}",
                   "document", "output hash")  # fmt: skip

    def test_a_reconciliation_that_does_not_add_up_ends_with_1(self):
        self.assertEqual(self.s.cli("reconcile", "--month", test_sums.MONTH).returncode, 0)
        [[row]] = self.s.sql(f"select c.ctid from charge_day c join billing_day b using (day) where not b.dirty and c.day >= '{test_sums.MONTH}-01' and c.class = 'on-demand' and c.used > 0 limit 1")
        [[row]] = self.s.sql(f"set session_replication_role = replica; update charge_day set used = used + 18144000000000000 where ctid = '{row}' returning ctid")
        self.addCleanup(self.s.sql, f"set session_replication_role = replica; update charge_day set used = used - 18144000000000000 where ctid = '{row}'")
        for form in ((), ("-o", "json"), ("--format", "csv")):
            done = self.s.cli("reconcile", "--month", test_sums.MONTH, *form)
            self.assertEqual(done.returncode, 1, form)
            self.assertIn("does not add up", done.stderr)


class Entries(World):
    """The audit log, the journal and who may speak."""

    def test_a_row_that_somebody_changed_with_the_daemons_rights_is_named_until_an_operator_accepts_it(self):
        self.s.sql("begin; insert into audit_log (actor, action, subject) values ('admin #1', 'token.use', 'x'); update tenant set cost_center = 'elsewhere' where name = 'acme'; commit")
        code, differences, _ = self.verify()
        [d] = differences
        self.assertEqual((code, d["kind"], d["what"].split()[0]), (1, "row-unaudited", "tenant"))
        entry = re.search(r"entry (\d+) of the journal", d["found"])[1]
        done = self.s.cli("journal", "accept", entry, "--reason", "it was us")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.verify()[0], 0)
        self.assertEqual(self.s.cli("journal", "accept", entry, "--reason", "again").returncode, 1)
        self.assertEqual(self.s.cli("journal", "accept", "first", "--reason", "x").returncode, 2)

    def test_a_newest_seal_that_is_removed_is_named(self):
        [[seq, *_]] = self.s.sql("select max(seq) from audit_seal")
        columns = "seq, at, hash"
        [values] = self.s.sql(f"select seq, at, encode(hash, 'hex') from audit_seal where seq = {seq}")
        self.changed(f"delete from audit_seal where seq = {seq}", f"insert into audit_seal ({columns}) overriding system value values ({values[0]}, '{values[1]}', decode('{values[2]}', 'hex'))")
        code, differences, _ = self.verify()
        self.assertEqual((code, [d["what"] for d in differences if d["kind"] == "audit-seal"]), (1, [f"seal {seq}"]))

    def test_a_token_whose_role_is_raised_is_named(self):
        [[token]] = self.s.sql("select id from access_token where role <> 'admin' order by id limit 1")
        self.changed(f"update access_token set role = 'admin', node = null, tenant_id = null where id = {token}", f"select {token}")
        [d] = [d for d in self.verify()[1] if d["kind"] == "row-changed"]
        self.assertEqual(d["what"], f"access_token {token}")


class Rated(unittest.TestCase):
    """Two closed months of the nodes of test_sums: all kinds of lines in the later one, which also bills corrections of the earlier one. What was billed is rated a second
    time by verify, and by the close."""

    START = int(datetime.datetime(2026, 11, 1, tzinfo=datetime.timezone.utc).timestamp()) * test_sums.NS
    LATER = START + 40 * 24 * test_sums.HOUR
    MONTHS = ("2026-10", "2026-11")

    @classmethod
    def setUpClass(cls):
        cls.pg = cls.enterClassContext(pg.Cluster())
        cls.count = 0
        cls.led = led = ledger.Ledger(cls.pg, "rated", now=cls.START + 30 * test_sums.HOUR)
        led.rows("select make_periods('2026-10-31', '2026-11-02')")
        led.run("token", "admin")
        led.apply(cls.policy("2026-10-31T00:00:00Z", True, "1", "3.35"))
        led.apply(cls.policy("2026-11-01T03:00:00Z", True, "2", "3.45"))
        led.apply(cls.policy("2026-11-01T08:00:00Z", False, "2", "3.45"))
        cls.push("n1", -8)
        cls.push("n3", -8)
        cls.event(0, -3)
        settle(led)
        led.close(cls.MONTHS[0], "n2 has not been heard of", cls.LATER)
        cls.push("n2", -8)
        cls.event(1, -2)
        for node in ("n1", "n2", "n3"):
            cls.push(node, 0, seq=32)
        for i in range(len(test_sums.EVENTS)):
            cls.event(i, i + 1)
        for tenant, amount in test_sums.ONE_OFF.items():
            led.declare(
                "with a as (insert into adjustment (tenant_id, period, amount, currency, category, reason, requested_by) "
                f"select id, '2026-11', {amount}, 'EUR', 'other', 'a test', 'ann' from tenant where name = '{tenant}' returning id) insert into adjustment_approval select id, 'bea' from a",
                "credit.add",
            )
        settle(led)

    @staticmethod
    def policy(effective, reserved, version, price):
        """As in test_sums, and what nobody held of shared nodes is divided."""
        text = test_sums.policy(effective, reserved).replace('3.333"', price + '"')
        return text.replace('version: "1"', f'version: "{version}"\n  shared_idle: {{method: weights, weights: {{acme: 2, globex: 1}}}}')

    @classmethod
    def push(cls, node, hour, seq=0):
        cls.led.ingest(test_sums.batches(node, cls.START + hour * test_sums.HOUR, 8, seq))

    @classmethod
    def event(cls, number, hour, led=None):
        kind, tenant, workspace, sku, data, _ = test_sums.EVENTS[number]
        types = {"storage": 1, "egress": 2, "inference": 3, "support": 4}
        amount = next((data[k] for k in ("gb_hours", "gb", "hours") if k in data), "null")
        counts = [data.get(k, "null") for k in ("requests", "input_tokens", "output_tokens")]
        (led or cls.led).rows(
            "insert into event_source (name) values ('test') on conflict do nothing; insert into meter_event (time_ns, source_id, token_id, workspace_id, type, id, sku, amount, requests, "
            "input_tokens, output_tokens, model, caller, server, digest) "
            f"select {cls.START + hour * test_sums.HOUR}, s.id, (select min(id) from access_token), w.id, {types[kind]}, '{number} at {hour}', '{sku or kind}', {amount}, {', '.join(map(str, counts))}, "
            f"'{data.get('model', '')}', '', '', sha256('') from event_source s, workspace w join tenant t on t.id = w.tenant_id where t.name = '{tenant}' and w.name = '{workspace}'"
        )

    def copy(self):
        type(self).count += 1
        name = f"copy{self.count}"
        self.pg.create_database(name, "rated")
        led = ledger.Ledger.__new__(ledger.Ledger)
        vars(led).update(vars(self.led), name=name)
        self.addCleanup(self.pg.query, f'drop database "{name}"')
        return led

    def closed(self):
        led = self.copy()
        led.close(self.MONTHS[1], "the same", self.LATER)
        return led

    def verify(self, led):
        return led.verify(self.START - 90 * 24 * test_sums.HOUR, self.LATER)

    def test_every_line_of_a_sound_ledger_is_rated_and_none_differs(self):
        led = self.closed()
        self.assertEqual({int(k) for [k] in led.rows("select distinct kind from invoice_line")}, set(range(11)))
        self.assertNotEqual(led.value("select count(*) from invoice_line where charge_type = 'correction'"), "0")
        reply = self.verify(led)
        self.assertEqual([d for d in reply["differences"]], [])
        self.assertEqual((reply["months"], reply["months_changed"]), (2, 0))
        self.assertEqual(str(reply["lines_rated"]), led.value("select count(*) from invoice_line"))

    def rated(self, led):
        """The lines that the second computation names: line, invoice, column, expected, found."""
        found = [(*re.fullmatch(r"line (\w+) of invoice (\S+), (.+)", d["what"]).groups(), d["expected"], d["found"]) for d in self.verify(led)["differences"] if d["kind"] == "line-rated"]
        return found

    def test_a_consistent_forgery_is_named_by_the_second_computation_alone(self):
        """Line, total, document, hashes, journal and the record of the close all say the same: two GPU-hours less."""
        led = self.closed()
        [[number, line, invoice, tenant, price]] = led.rows(
            "select l.number, l.line_id, i.invoice_id, i.tenant_id, l.unit_price from invoice_line l join invoice i using (number) join tenant t on t.id = i.tenant_id "
            f"where i.month = '{self.MONTHS[1]}' and i.version = 1 and l.class = 'on-demand' and l.discount = 0 and l.idle_gpu_hours > 2 order by l.line_id limit 1"
        )
        of = f"number = {number} and line_id = '{line}'"
        less = decimal.Decimal(price) * 2
        self.assertEqual(less, round(less, 2), "whole cents, so that the other lines stay as they are")
        led.rows(
            "set session_replication_role = replica; "
            f"update invoice_line set quantity = quantity - 2, allocated_gpu_hours = allocated_gpu_hours - 2, gpu_hours = gpu_hours - 2, idle_gpu_hours = idle_gpu_hours - 2, "
            f"list_cost = list_cost - {less}, billed = billed - {less} where {of}; "
            f"update invoice_total set allocated_gpu_hours = allocated_gpu_hours - 2, list_cost = list_cost - {less}, billed = billed - {less} where number = {number}"
        )
        self.forge_document(led, tenant, line, less)
        self.forge_records(led, number, line)
        found = self.verify(led)["differences"]
        self.assertEqual({d["kind"] for d in found}, {"line-rated"}, found)
        found = {what: (decimal.Decimal(b) - decimal.Decimal(a)) for named, of, what, a, b in self.rated(led) if (named, of) == (line, invoice)}
        self.assertEqual(found, {"quantity": -2, "allocated_gpu_hours": -2, "gpu_hours": -2, "idle_gpu_hours": -2, "list_cost": -less, "billed": -less})

    def forge_document(self, led, tenant, line, less):
        """The line as it is now in the CSV of its tenant and, because a lender's lines name borrowers there, in that of all tenants."""
        for of in (f"= {tenant}", "is null and not joined"):
            of = f"month = '{self.MONTHS[1]}' and format = 'csv' and tenant_id {of}"
            rows = list(csv.reader(io.StringIO(gzip.decompress(bytes.fromhex(led.value(f"select encode(gzip, 'hex') from invoice_document where {of}"))).decode(), newline="")))
            at = {name: i for i, name in enumerate(rows[0])}
            [row] = [r for r in rows if r[at["line_id"]] == line]
            for name, n in (("quantity", 2), ("allocated_gpu_hours", 2), ("idle_gpu_hours", 2), ("list_cost", less), ("billed_cost", less)):
                row[at[name]] = str(decimal.Decimal(row[at[name]]) - n)
            out = io.StringIO(newline="")
            csv.writer(out).writerows(rows)
            data = out.getvalue().encode()
            led.rows(f"set session_replication_role = replica; update invoice_document set gzip = decode('{gzip.compress(data).hex()}', 'hex'), sha256 = sha256(decode('{data.hex()}', 'hex')), "
                     f"plain_bytes = {len(data)} where {of}")  # fmt: skip

    def forge_records(self, led, number, line):
        """The output hash, in the record of the close and in the audit log; and the journal."""
        order = "array_position(array['source.rows', 'source.prices', 'source.facts', 'csv', 'excel.csv', 'json', 'focus.csv', 'focus.periods.csv', 'html'], d.format)"
        hashes = [h for [h] in led.rows(f"select encode(d.sha256, 'hex') from invoice_document d left join tenant t on t.id = d.tenant_id where month = '{self.MONTHS[1]}' order by t.name collate \"C\" nulls last, {order}")]
        output = hashlib.sha256(bytes.fromhex("".join(hashes))).hexdigest()
        month = self.MONTHS[1]
        led.rows(f"set session_replication_role = replica; update period_close set output_sha256 = '\\x{output}' where month = '{month}'; "
                 f"update audit_log set after = jsonb_set(after, '{{output_sha256}}', '\"{output}\"') where subject = 'period {month}' and action = 'period.close'")  # fmt: skip
        for table, key, left_out, where in (
            ("invoice_line", "number,line_id", "", f"number = {number} and line_id = '{line}'"), ("invoice_total", "number,currency", "", f"number = {number}"),
            ("invoice_document", "month,tenant_id,format", "gzip", f"month = '{month}' and format = 'csv'"), ("period_close", "month", "", f"month = '{month}'"),
        ):  # fmt: skip
            # In the entry that has the row, which is of the transaction that closed the month.
            led.rows(
                "set session_replication_role = replica; with r as (select journal_key(to_jsonb(t), '{" + key + "}') as key, journal_hash(to_jsonb(t), '{" + left_out + "}') as hash "
                f"from {table} t where {where}) update row_journal j set hashes = array(select coalesce(r.hash, x.hash) from unnest(j.keys, j.hashes) with ordinality x(key, hash, n) "
                f"left join r on r.key = x.key order by x.n) where j.relation = '{table}' and exists (select from r where r.key = any (j.keys))"
            )

    def random_prices(self, rng, version):
        """A book with every kind of item, some for a tenant alone, in a currency with 0, 2 or 3 decimals."""
        def price():
            return f"{rng.choice((0, 0, 1, 3))}.{rng.randrange(10**9):09}"

        items = {}
        for klass in ("reserved", "on-demand", "borrowed", "dedicated", None):
            for key in [{}, *({k: v for k, v in {"gpu_model": rng.choice((test_sums.POOL, "A100-40GB")), "mig_profile": rng.choice(("1g.10gb", "3g.40gb")), "sharing_mode": rng.choice(("mig", "exclusive")),
                                                 "tenant": rng.choice(("acme", "globex", "initech"))}.items() if rng.random() < 0.4} for _ in range(12))]:  # fmt: skip
                key |= {"class": klass} if klass else {}
                basis = {"basis": "used"} if klass in ("on-demand", "borrowed", None) and rng.random() < 0.3 else {}
                items[tuple(sorted(key.items()))] = {**key, **basis, "price": price()} | ({"sku": f"sku-{rng.randrange(9)}"} if rng.random() < 0.3 else {})
        for meter in ("storage", "egress", "inference-requests", "inference-input-tokens", "support"):
            for key in ({}, {"tenant": "acme"}, {"meter_sku": "llama"}):
                if not key or rng.random() < 0.4:
                    items[tuple(sorted({"meter": meter, **key}.items()))] = {"meter": meter, **key, "price": price()}
        rows = list(items.values())
        rng.shuffle(rows)
        discounts = {}
        for _ in range(12):
            klass = rng.choice((None, "on-demand", "reserved", "borrowed"))
            key = {"tenant": rng.choice((None, "acme", "globex", "initech")), "category": rng.choice((None, "gpu")) if klass else rng.choice((None, "gpu", "storage")), "class": klass}
            discounts[tuple(key.items())] = {k: v for k, v in key.items() if v} | {"percent": rng.choice(("50", f"{rng.randrange(100)}.{rng.randrange(10**7):07}"))}
        shared = rng.choice(({"method": "none"}, {"method": "even"}, {"method": "proportional"}, {"method": "weights", "weights": {"acme": rng.randint(1, 99), "initech": rng.randint(1, 99)}}))
        book = {"version": version, "currency": rng.choice(("EUR", "JPY", "KWD")), "lender_ratio": rng.choice(("1", *(f"0.{rng.randrange(10**9):09}" for _ in range(3)))), "shared_idle": shared, "items": rows,
                "discounts": list(discounts.values()), "energy": [{"cluster": "test", "price_per_kwh": price()}]}  # fmt: skip
        return "prices: " + json.dumps(book) + "\n"

    def test_months_with_random_books_and_hours_are_closed_and_corrected_as_the_second_computation_says(self):
        rng = random.Random(seed())
        for n in range(3):
            led = ledger.Ledger(self.pg, f"random{n}", now=self.START + 30 * test_sums.HOUR)
            led.rows("select make_periods('2026-10-31', '2026-11-02')")
            led.run("token", "admin")
            for effective, reserved, version in (("2026-10-31T00:00:00Z", True, "1"), ("2026-10-31T19:00:00Z", True, "2"), ("2026-11-01T04:00:00Z", True, "3"), ("2026-11-01T08:00:00Z", False, "3")):
                prices = self.random_prices(rng, version) if reserved else prices
                led.apply(test_sums.policy(effective, reserved).split("prices:")[0] + prices)

            def push(node, hour, hours, seq):
                some = test_sums.batches(node, self.START + hour * test_sums.HOUR, hours, seq)
                for record in (r for b in some for r in b["records"]):
                    if record[4] == test_sums.MEASURED:
                        record[9] = rng.randrange(record[8] + 1)
                        record[11] = rng.choice((0, rng.randrange(record[8])))
                    record[13] = rng.randrange(1 << 27)
                self.assertEqual(led.ingest(some).get("quarantined"), 0)

            late = rng.choice(("n1", "n2", "n3"))
            for node in ("n1", "n2", "n3"):
                if node != late:
                    push(node, -8, 8, 0)
            settle(led)
            led.close(self.MONTHS[0], "a node has not been heard of", self.LATER)
            push(late, -8, 8, 0)
            for node in ("n1", "n2", "n3"):
                push(node, 0, 8, 32)
            for i in range(len(test_sums.EVENTS)):
                self.event(i, rng.randrange(-8, 8), led)
            settle(led)
            led.close(self.MONTHS[1], "the same", self.LATER)
            reply = self.verify(led)
            self.assertEqual((reply["differences"], reply["months_changed"]), ([], 0))
            self.assertEqual(str(reply["lines_rated"]), led.value("select count(*) from invoice_line"))

    COLUMNS = {
        "quantity": "quantity = quantity + 1", "unit_price": "unit_price = unit_price + 1", "list_cost": "list_cost = list_cost + 1, discount = discount + 1", "discount": "list_cost = list_cost + 1, discount = discount + 1",
        "billed": "billed = billed + 0.01, rounding = rounding + 0.01", "rounding": "billed = billed + 0.01, rounding = rounding + 0.01", "allocated_gpu_hours": "allocated_gpu_hours = allocated_gpu_hours + 1",
        "used_gpu_hours": "used_gpu_hours = used_gpu_hours + 1", "idle_gpu_hours": "idle_gpu_hours = idle_gpu_hours + 1", "unmeasured_gpu_hours": "unmeasured_gpu_hours = unmeasured_gpu_hours + 1",
        "gpu_hours": "gpu_hours = gpu_hours + 1", "energy_mj": "energy_mj = energy_mj + 1", "price_version": "price_version = price_version || 'x'", "currency": "currency = 'JPY'", "currency_scale": "currency_scale = 3",
        "discount_price": "discount_price = discount_price + 1", "discount_ratio": "discount_ratio = discount_ratio + 1", "kind": "kind = (kind + 1) % 11", "class": "class = class || 'x'", "unit": "unit = unit || 'x'",
        "sku": "sku = sku || 'x'", "category": "category = category || 'x'", "cluster": "cluster = cluster || 'x'", "workspace": "workspace = workspace || 'x'", "counterparty": "counterparty = counterparty || 'x'",
        "gpu_model": "gpu_model = gpu_model || 'x'", "mig_profile": "mig_profile = mig_profile || 'x'", "sharing_mode": "sharing_mode = sharing_mode || 'x'", "priced": "priced = not priced",
        "charge_type": "charge_type = 'tax'",
    }  # fmt: skip

    def test_a_line_of_any_kind_that_is_wrong_in_one_column_is_named_with_that_column(self):
        led = self.closed()
        led.rows("create table public.kept as select * from invoice_line")
        some = "select distinct on (l.kind, l.charge_type) l.number, l.line_id, l.correction_of, l.charge_type from public.kept l order by l.kind, l.charge_type, l.line_id"
        lines = led.rows(some)
        self.assertGreater(len(lines), 15)
        for column, change in self.COLUMNS.items():
            with self.subTest(column=column):
                led.rows("set session_replication_role = replica; truncate invoice_line; insert into invoice_line select * from public.kept; "
                         f"update invoice_line l set {change} from ({some}) s where (l.number, l.line_id) = (s.number, s.line_id) and ('{column}', l.charge_type) <> ('charge_type', 'correction')")  # fmt: skip
                found = {line for line, _, what, *_ in self.rated(led) if what == column}
                for _, line, corrected, charge in lines:
                    # Of a correction the sum is wrong, which has the name of the line that it corrects.
                    self.assertTrue({line, corrected} & found or (column, charge) == ("charge_type", "correction"), (line, charge))

    def test_a_line_that_is_not_owed_and_one_that_is_not_billed_are_named(self):
        led = self.closed()
        [[number, line]] = led.rows("select number, line_id from invoice_line where charge_type = 'usage' order by 1 desc, 2 limit 1")
        led.rows(f"set session_replication_role = replica; update invoice_line set line_id = translate(line_id, '0123456789abcdef', '123456789abcdef0') where number = {number} and line_id = '{line}'")
        self.assertEqual({(what, b) for _, _, what, _, b in self.rated(led)}, {("a line", "not billed"), ("a line", "billed 1 times")})

    def test_a_close_whose_lines_differ_from_the_second_computation_is_refused(self):
        led = self.copy()
        for change, column, month in (
            ("new.discount := new.discount + 1; new.list_cost := new.list_cost + 1", "discount", self.MONTHS[1]),
            ("new.price_version := '7'", "price_version", self.MONTHS[1]),
            ("new.energy_mj := new.energy_mj + 1", "energy_mj", self.MONTHS[1]),
            ("new.used_gpu_hours := new.used_gpu_hours + 1", "used_gpu_hours", self.MONTHS[0]),
        ):
            with self.subTest(column=column):
                # Between rating and the table, so that totals are still made from what was rated.
                led.rows(f"create function public.meddle() returns trigger language plpgsql as $$ begin if new.class = 'on-demand' and (new.correction_of is null) = {month == self.MONTHS[1]} then {change}; end if; return new; end $$; "
                         "create trigger meddle before insert on tollgate.invoice_line for each row execute function public.meddle()")  # fmt: skip
                with self.assertRaises(ledger.StoreError) as refused:
                    led.close(self.MONTHS[1], "the same", self.LATER)
                led.rows("drop trigger meddle on tollgate.invoice_line; drop function public.meddle")
                self.assertEqual(refused.exception.kind, "conflict")
                self.assertRegex(refused.exception.text, rf"^period 2026-11 cannot be closed: line [0-9a-f]{{32}} of invoice [a-z]+-{month}-\d, {column}: rated a second time it is ")
                self.assertEqual(led.value(f"select count(*) from invoice where closed_in = '{self.MONTHS[1]}'"), "0")
        led.close(self.MONTHS[1], "the same", self.LATER)


# Tables that no bill is made from, and why. A new table that is neither here nor noticed by verify fails the test.
NO_BILL = {
    "audit_log": "proved by its chains: test_tokens",
    "audit_unsealed": "proved with the audit log: test_tokens",
    "audit_chain": "proved with the audit log: test_tokens",
    "audit_link": "proved with the audit log: test_tokens",
    "audit_seal": "proved with the audit log: test_tokens",
    "audit_sealed_head": "proved with the audit log: test_tokens",
    "row_journal": "proved with the audit log: its chain",
    "decision": "quota: replayed from its log",
    "reclaim": "quota: replayed from its log",
    "quota_book": "quota: replayed from its log",
    "quota_event": "the quota log, a chain of its own",
    "quota_snapshot": "quota: replayed from its log",
    "quota_anomaly": "what telemetry contradicts now",
    "quota_idle": "what telemetry shows now",
    "exception": "quota: extra limits; the log has them",
    "node_status": "live state, lost with every crash",
    "reattribution": "how far a change of rules has come",
    "schema_migration": "which migrations ran",
    "usage_slice": "sums of open hours; this ledger has none",
    "close_job": "how far a close has come; what it writes is proved",
    "close_progress": "how far a close has come",
    "event_sku": "what a limit of SKUs counts; events themselves are proved",
}
# Columns of the others that no bill is made from, or that are made again at once.
NO_BILL_COLUMNS = {
    "node_hour": {"sealed_at", "dirty", "changes", "sealed_changes", "sliced_until_ns", "retired"},
    "billing_day": {"folded_at", "dirty"},
    "node": {"behind", "silent_until_ns"},
    "gpu": {"index"},
    "late_change": {"id", "at", "month"},
}
# How verify names rows of tables that it computes again; of the others it is a row of the journal.
KINDS = {
    "usage_interval": "interval-", "usage_hourly": "hour-|attribution|conservation", "node_hour": "hour-|day-flag|interval-extra", "usage_daily": "day-",
    "charge_day": "charge-", "reserve_day": "charge-", "loan_day": "charge-", "pool_day": "charge-", "ingest_batch": "batch-|row-",
    "stream_anchor": "batch-range", "late_change": "line-rated", "billing_day": "day-|row-", "node": "cursor|hour-|row-", "stream": "cursor|row-|batch-",
    "invoice_document": "document|row-", "period": "period-bounds|close|row-",
}  # fmt: skip
DERIVED = ("usage_hourly", "usage_daily", "charge_day", "reserve_day", "loan_day", "pool_day", "invoice_line", "lost_hold")
AT_ONCE = 5


def spoiled(kind, column):
    c = f'"{column}"'
    return {
        "boolean": f"not {c}", "text": f"{c} || 'x'", "uuid": "gen_random_uuid()", "date": f"{c} + 1", "jsonb": "'[\"x\"]'",
        "timestamp with time zone": f"{c} + interval '1 hour'", "bytea": f"set_byte({c}, 0, get_byte({c}, 0) # 1)", "ARRAY": f"array_append({c}, {c}[1])",
        "tstzrange": f"tstzrange(lower({c}) + interval '1 hour', coalesce(upper({c}), '2100-01-01') + interval '1 hour')",
    }.get(kind, f"{c} + 1")  # fmt: skip


class Adversary(World):
    """Random changes of random rows, as the owner of the database with triggers off, in copies of the ledger."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.s.aggregator.stop()
        cls.s.sql("select batches_anchor(100000)")
        cls.columns = {}
        for table, column, kind, generated in cls.s.sql(
            "select c.table_name, c.column_name, c.data_type, c.is_generated from information_schema.columns c join information_schema.tables t using (table_schema, table_name) "
            "join pg_class k on k.oid = format('%I.%I', c.table_schema, c.table_name)::regclass where c.table_schema = 'tollgate' and t.table_type = 'BASE TABLE' and not k.relispartition order by 1, c.ordinal_position"
        ):
            cls.columns.setdefault(table, {})
            if generated != "ALWAYS":
                cls.columns[table][column] = kind if kind != "USER-DEFINED" else "text"
        cls.tables = [t for t in cls.columns if t not in NO_BILL]

    def copy(self, name):
        self.s.pg.create_database(name, "tollgate")
        led = ledger.Ledger.__new__(ledger.Ledger)
        led.cluster, led.name, led.dir, led.closed_by_hand = self.s.pg, name, self.s.dir, False
        return led

    def spoil(self, led, rng, table, operation):
        """One row. What was done, or None where the table has no row or the database refuses."""
        off = "set session_replication_role = replica; "
        rows = led.rows(f"select tableoid, ctid from {table}")
        if not rows:
            return None
        place = "(tableoid, ctid) = ('%s', '%s')" % tuple(rng.choice(rows))
        if operation == "update":
            names = sorted(set(self.columns[table]) - NO_BILL_COLUMNS.get(table, set()))
            if not names:
                return None
            [values] = led.rows(f"select {', '.join(chr(34) + n + chr(34) + ' is not null' for n in names)} from {table} where {place}")
            names = [n for n, there in zip(names, values) if there == "t"]
            column = rng.choice(names) if names else None
            statement = column and f'update {table} set "{column}" = {spoiled(self.columns[table][column], column)} where {place}'
        elif operation == "delete":
            # Of several notes about one month each says all: they count as long as one is there.
            statement = f"delete from {table}" + ("" if table == "late_change" else f" where {place}")
        else:
            own = ", ".join(f'"{n}"' for n in self.columns[table])
            key = rng.choice([n for n in self.columns[table] if n in ("workspace_id", "lender_id", "sharing", "units", "method", "line_id", "ended_ns", "cluster_id")])
            other = f"translate({key}, '0123456789abcdef', '123456789abcdef0')" if key == "line_id" else f"{key} - 1" if key in ("sharing", "method", "units") else f"{key} + 7"
            statement = f"insert into {table} ({own}) overriding system value select {own.replace(chr(34) + key + chr(34), other)} from {table} where {place}"
        if not statement:
            return None
        try:
            led.rows(off + statement)
        except RuntimeError:
            return None
        return statement

    def test_a_change_with_triggers_on_and_without_an_entry_in_the_audit_log_is_named(self):
        led = self.copy("unaudited")
        led.rows("update tenant set cost_center = 'elsewhere' where name = 'acme'; update attribution_rule set priority = priority + 1 where id = (select min(id) from attribution_rule)")
        found = led.verify(test_sums.START - 90 * 24 * test_sums.HOUR, test_sums.START)["differences"]
        self.assertEqual({d["what"].split()[0] for d in found if d["kind"] == "row-unaudited"}, {"tenant", "attribution_rule"})

    def test_a_journal_that_is_turned_off_narrowed_or_put_on_another_table_is_named(self):
        led = self.copy("triggers")
        led.rows("alter table tenant disable trigger journal_updates; drop trigger journal_inserts on budget; "
                 "create trigger journal_inserts after insert on budget referencing new table as added for each statement "
                 "execute function journal_rows('tenant_id,workspace_id,effective', 'amount'); "
                 "create trigger journal_inserts after insert on node_status referencing new table as added for each statement "
                 "execute function journal_rows('node_id', '')")  # fmt: skip
        found = led.verify(test_sums.START - 90 * 24 * test_sums.HOUR, test_sums.START)["differences"]
        self.assertEqual({(d["what"], d["found"]) for d in found if d["kind"] == "trigger"}, {
            ("trigger journal_updates of tenant", "off, or not there"), ("trigger journal_inserts of budget", "for other columns"),
            ("trigger journal_inserts of node_status", "on a table that this program does not compare")})  # fmt: skip

    def test_every_change_of_every_table_is_refused_or_named(self):
        seed = int(os.environ.get("TOLLGATE_PROP_SEED") or random.randrange(1 << 32))
        print(f"seed {seed} (TOLLGATE_PROP_SEED={seed} repeats it)", flush=True)
        rng = random.Random(seed)
        cases = [(t, o) for t in self.tables for o in ("update", "delete", *(("insert",) if t in DERIVED else ()))]
        rng.shuffle(cases)
        for n in range(0, len(cases), AT_ONCE):
            self.judge(rng, f"copy{n}", cases[n : n + AT_ONCE])

    def judge(self, rng, name, cases):
        led = self.copy(name)
        done = {(t, o): statement for t, o in cases if (statement := self.spoil(led, rng, t, o))}
        try:
            found = led.verify(test_sums.START - 90 * 24 * test_sums.HOUR, test_sums.START + 40 * 24 * test_sums.HOUR)["differences"]
        except ledger.StoreError as refused:
            # A ledger that does not know any more what it is cannot be proved: verify fails, and says why.
            if len(cases) == 1:
                self.assertEqual((cases[0][0], refused.kind), ("ledger", "fatal"), (done, refused.text))
                return
            for i, case in enumerate(cases):
                self.judge(rng, f"{name}x{i}", [case])
            return
        finally:
            self.s.pg.query(f'drop database "{name}"')
        for (table, operation), statement in done.items():
            with self.subTest(table=table, operation=operation):
                kinds = re.compile(KINDS.get(table, "row-"))
                named = [d for d in found if kinds.match(d["kind"]) and (table in KINDS or d["what"].startswith(table + " "))]
                # Another change of the same round may hide it: a day that is not there any more has no charges.
                if not named and len(cases) > 1:
                    self.judge(rng, f"{name}x{table}{operation}", [(table, operation)])
                    continue
                self.assertTrue(named, f"{statement}\nnot named among {sorted({(d['kind'], d['what'][:60]) for d in found})}")


if __name__ == "__main__":
    unittest.main()
