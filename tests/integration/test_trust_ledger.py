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
import subprocess
import unittest

from tests.integration import test_sums
from tests.integration.test_month_close import settle
from tests.integration.test_store import seed
from tests.support.daemons import pg
from tests.support.store import ledger


class World(test_sums.Sums):
    """The ledger of test_sums, without its tests, and with events of a namespace: what the rules say of them is money too."""

    maxDiff = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for i, at in enumerate((test_sums.START + 3 * test_sums.HOUR, test_sums.START + 5 * test_sums.HOUR)):
            event = {"specversion": "1.0", "id": f"ns{i}", "source": "/test", "type": "tollgate.support.v1", "time": test_sums.rfc3339(at),
                     "data": {"namespace": "globex", "hours": "2.6"}}  # fmt: skip
            reply = cls.s.call("POST", "/v1/events", json.dumps(event).encode(), headers={"Content-Type": "application/cloudevents+json"})
            assert reply.status in (200, 201, 202), reply.text()
        # Records of a GPU that is another node's are set aside.
        [claim] = test_sums.batches("n5", test_sums.END, 1, seq=4)[:1]
        claim["devices"].append({"id": 9, "uuid": "GPU-n1-0", "model": test_sums.H100, "index": 1})
        claim["records"] = [[9, 0, test_sums.UNALLOCATED, test_sums.EXCLUSIVE, test_sums.NONE, test_sums.UNITS, *claim["records"][0][6:9], 0, 0, 0, 0, 0, 1]]
        reply = cls.s.call("POST", "/v1/ingest", ledger.frames([claim]), role="n5")
        assert reply.status == 200, reply.text()
        # Rows of tables that the ledger of test_sums does not have, as the policy would write them: with an entry in the audit log.
        cls.s.sql(f"""begin; insert into audit_log (actor, action, subject) values ('test', 'policy.apply', 'a test');
            insert into priority_class values ('high', 5, false, '[2026-01-01 00:00Z,)');
            insert into tenant_member select id, 'a@example.com', 'viewer', '[2026-01-01 00:00Z,)' from tenant where name = 'acme';
            insert into workspace_member select id, 'a@example.com', 'viewer', '[2026-01-01 00:00Z,)' from workspace where name = 'own';
            insert into tenant_limit select id, 'maximum', '', '', null, 504000, '[2026-01-01 00:00Z,)' from tenant where name = 'acme';
            insert into tenant_auto_approve select id, 5040, 3600000000000, '[2026-01-01 00:00Z,)' from tenant where name = 'acme';
            insert into budget select id, null, 'soft', null, 1000000, '[2026-01-01 00:00Z,)' from tenant where name = 'acme';
            insert into gpu_declared select g.id, n.id, '[2026-01-01 00:00Z,)' from gpu g, node n where g.uuid = 'GPU-n1-1' and n.name = 'n1';
            insert into gpu_xid select id, {test_sums.START + 5 * test_sums.HOUR - 30 * test_sums.NS}, 79 from gpu where uuid = 'GPU-n1-2'; commit""")
        cls.settled(test_sums.MONTH)

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

    def test_charges_of_a_day_that_is_not_there_bill_nobody_and_are_named(self):
        before, day = self.bill(), f"{test_sums.MONTH}-28"
        if self.s.sql(f"select from billing_day where day = '{day}'"):
            self.s.sql(f"set session_replication_role = replica; create table public.kept as select * from billing_day where day = '{day}'; delete from billing_day where day = '{day}'")
            self.addCleanup(self.s.sql, "set session_replication_role = replica; insert into billing_day select * from public.kept; drop table public.kept")
        tables = ("usage_daily", "charge_day", "reserve_day", "loan_day", "pool_day", "lost_hold")
        for table in tables:
            names = [r[0] for r in self.s.sql(f"select attname from pg_attribute where attrelid = 'tollgate.{table}'::regclass and attnum > 0 and not attisdropped order by attnum")]
            values = ", ".join({"day": f"date '{day}'", "ended_ns": "ended_ns + 7"}.get(n, n) for n in names)
            self.changed(f"insert into {table} select {values} from {table} where day >= '{test_sums.CLOSED}-01' limit 1", f"delete from {table} where day = '{day}'")
            self.assertEqual(self.s.sql(f"select count(*) from {table} where day = '{day}'"), [["1"]], table)
        self.assertEqual(self.bill(), before)
        self.assertEqual(self.s.cli("reconcile", "--month", test_sums.MONTH).returncode, 0)
        code, differences, _ = self.verify()
        self.assertEqual(code, 1)
        for table in tables:
            self.assertTrue([d for d in differences if d["what"].startswith(f"a row of {table}, {day}: ")], table)

    def test_rows_that_cannot_be_rated_are_named_and_reports_say_that_it_is_the_ledger(self):
        """More lent than was reserved: the month cannot be rated again. verify names it and goes on; whoever asks for a report did nothing wrong."""
        for table, month in (("loan_day", test_sums.CLOSED), ("charge_day", test_sums.MONTH)):
            [[day]] = self.s.sql(f"select min(c.day) from {table} c join billing_day b using (day) where not b.dirty and to_char(c.day, 'YYYY-MM') = '{month}'"
                                 + (" and c.class = 'covered' and c.used > 0" if table == "charge_day" else ""))  # fmt: skip
            kind = " and class = 'covered'" if table == "charge_day" else ""
            more = f"update {table} set used = used {{}} 18144000000000000 where day = '{day}' and used >= 0{kind}"
            self.changed(more.format("+"), more.format("-"))
            with self.subTest(table=table):
                done = self.s.cli("verify", "--month", month, "-o", "json")
                self.assertEqual(done.returncode, 1, done.stderr)
                found = json.loads(done.stdout)["differences"]
                self.assertTrue([d for d in found if d["kind"] == "charge-changed" and d["what"].startswith(f"used of {table}, {day}: ")], found)
                self.assertGreater(json.loads(done.stdout)["rows"], 0, "the rest is proved")
        reply = self.s.call("GET", f"/v1/reports/{test_sums.MONTH}.csv")
        self.assertEqual(reply.status, 500, reply.text())

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
        self.s.sql("begin; insert into audit_log (actor, action, subject) values ('admin #1', 'token.use', 'x'); update tenant_term set cost_center = 'elsewhere' where upper_inf(effective) and tenant_id = (select id from tenant where name = 'acme'); commit")
        code, differences, _ = self.verify()
        [d] = differences
        self.assertEqual((code, d["kind"], d["what"].split()[0]), (1, "row-unaudited", "tenant_term"))
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
# Columns of the others that no bill is made from, or that are made again at once, and why.
NO_BILL_COLUMNS = {
    # when it was sealed, and counts of what was; an hour that is dirty or open is made again, and its day with it
    "node_hour": {"sealed_at", "dirty", "changes", "sealed_changes", "sliced_until_ns"},
    # a day that is dirty is folded again, and counted as open
    "billing_day": {"folded_at", "dirty"},
    # how far behind it is; until when it was silent is compared where an hour depends on it; held batches are not accepted, which is proved
    "node": {"behind", "silent_until_ns", "held", "held_bytes"},
    "gpu": {"index"},  # which slot it is in
    "access_token": {"last_used_at"},  # written with every hour's first use
    # a note that something is to be corrected: its number and time say nothing, and one note of a month is as good as three
    "late_change": {"id", "at", "month"},
}
# How verify names rows of tables that it computes again; rows of the others are named by the key that the journal has of them. A kind, and what of the row must be in its words (the hour and the node are words too).
# Each element of the list is one way; {x} is the row's column before or after the change.
NAMED = {
    "usage_interval": [("interval-", "device {device_id} at start_ns {start_ns}"), ("interval-", "hour={hour}")],
    "usage_hourly": [("hour-|attribution", "hour={hour} of device {device_id}"), ("conservation", "hour={hour}"), ("hour-row-extra", "rows of usage_hourly for node {node_id}, {hour}")],
    "node_hour": [("hour-|service|conservation|attribution|interval-", "hour={hour} node={node}"), ("day-flag|hour-extra", "node {node}, {hour}"), ("day-missing", "{day}"),
                  ("interval-extra", "records of node {node_id} in {hour}"), ("hour-row-extra", "node {node_id}, {hour}")],
    "usage_daily": [("day-", "usage_daily, {day}")],
    **{t: [("charge-", f"{t}, {{day}}")] for t in ("charge_day", "reserve_day", "loan_day", "pool_day")},
    "ingest_batch": [("batch-range", "(stream {stream_id})"), ("row-", "ingest_batch {stream_id} {seq}"), ("batch-|interval-|dictionary|set-aside", "batch {seq} of epoch {epoch}"), ("cursor", "node={node}"), ("hour-|batch-missing|interval-", "node={node}")],
    "late_change": [("line-rated", "{month}")],
    "stream_anchor": [("batch-range", "")],
    "billing_day": [("day-", "{day}"), ("row-", "billing_day {day}"), ("charge-|lost-", ", {day}")],
    "node": [("cursor|hour-|batch-|gpu-|service", "node={name}"), ("row-", "node {id}"), ("hour-extra|day-", "node {name}")],
    "stream": [("cursor|batch-|hour-|interval-|dictionary|gpu-", "node={node}"), ("row-", "stream {id}")],
    "invoice_document": [("document|line", "{format} of period {month}"), ("document", "output hash of period {month}"), ("row-", "invoice_document {month}")],
    "period": [("period-bounds|close", "period {month}"), ("row-", "period {month}"), ("document|line-rated|unreadable", "{month}")],
    "lost_hold": [("lost-hold-", "lost_hold, {day}: device {device_id}, holder {holder_id}, ended_ns {ended_ns}"), ("row-", "lost_hold {device_id} {holder_id} {ended_ns}")],
    "holder_attribution": [("attribution", "holder_attribution of "), ("row-", "holder_attribution {holder_id} ")],
    "gpu_spec": [("gpu-history", "gpu={uuid}"), ("row-", "gpu_spec {gpu_id} ")],
    "gpu_service": [("service|conservation|hour-", "gpu={uuid}"), ("row-", "gpu_service {id}")],
    "stream_device_entry": [("dictionary", "device number {local_id} node={node}"), ("row-", "stream_device_entry {stream_id} {local_id}")],
    "stream_holder_entry": [("dictionary", "holder number {local_id} node={node}"), ("row-", "stream_holder_entry {stream_id} {local_id}")],
}  # fmt: skip
# What else the words may have: of a row of the table.
MORE = {
    "usage_interval": "rfc3339(hour_of(start_ns)) as hour", "usage_hourly": "rfc3339(hour) as hour", "gpu_spec": "(select g.uuid from gpu g where g.id = gpu_id) as uuid",
    "node_hour": "rfc3339(hour) as hour, (select n.name from node n where n.id = node_id) as node, (select (hour at time zone l.zone)::date from ledger l) as day",
    "ingest_batch": "(select s.epoch from stream s where s.id = stream_id) as epoch, (select n.name from node n join stream s on s.node_id = n.id where s.id = stream_id) as node",
    **{t: "(select n.name from node n join stream s on s.node_id = n.id where s.id = stream_id) as node" for t in ("stream_device_entry", "stream_holder_entry")},
    "stream": "(select n.name from node n where n.id = node_id) as node", "gpu_service": "(select g.uuid from gpu g where g.id = gpu_id) as uuid",
}  # fmt: skip
DERIVED = ("usage_hourly", "usage_daily", "charge_day", "reserve_day", "loan_day", "pool_day", "invoice_line", "lost_hold")
AT_ONCE = 5


def spoiled(kind, column):
    """Another value of the column, made from the one it has."""
    c = f'"{column}"'
    return {
        "boolean": f"not {c}", "text": f"{c} || 'x'", "uuid": "gen_random_uuid()", "date": f"{c} + 1", "jsonb": "'[\"x\"]'",
        "timestamp with time zone": f"{c} + interval '1 hour'", "bytea": f"set_byte({c}, 0, get_byte({c}, 0) # 1)", "ARRAY": f"array_append({c}, {c}[1])",
        "tstzrange": f"tstzrange(lower({c}) + interval '1 hour', coalesce(upper({c}), '2100-01-01') + interval '1 hour')",
    }.get(kind, f"{c} + 1")  # fmt: skip


class Adversary(World):
    """Random changes of random rows in copies of the ledger: as the owner of the database with triggers off, and with the logins of the programs."""

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
        cls.keys = {t: f"journal_key(to_jsonb(t), '{{{k}}}') as journalled" for t, k in cls.s.sql(
            "select tgrelid::regclass::text, split_part(encode(tgargs, 'escape'), '\\000', 1) from pg_trigger where tgname = 'journal_inserts'")}  # fmt: skip
        # Of columns with a list of values: the list.
        cls.lists = {}
        for table, text in cls.s.sql("select conrelid::regclass::text, pg_get_constraintdef(oid) from pg_constraint where contype = 'c' and connamespace = 'tollgate'::regnamespace"):
            for column, values in re.findall(r"\(\(?(\w+) = ANY \(ARRAY\[([^\]]*)\]", text):
                cls.lists[table.split(".")[-1], column] = re.findall(r"'([^']*)'::text", values)

    def copy(self, name):
        self.s.pg.create_database(name, "tollgate")
        led = ledger.Ledger.__new__(ledger.Ledger)
        led.cluster, led.name, led.dir, led.closed_by_hand = self.s.pg, name, self.s.dir, False
        return led

    def attack(self, name, statement, user=None):
        """What verify says after a statement with that login, triggers on, in a copy of the ledger."""
        led = self.copy(name)
        self.addCleanup(self.s.pg.query, f'drop database "{name}"')
        self.assertEqual(self.proof(led)["differences"], [])
        done = self.as_login(led, statement, user)
        self.assertEqual(done.returncode, 0, done.stderr)
        return led, self.proof(led)["differences"]

    def as_login(self, led, statement, user=None):
        return subprocess.run([os.path.join(self.s.pg.bin, "psql"), "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", self.s.pg.conninfo(led.name, user or pg.USER), "-c", statement],
                              capture_output=True, text=True, env={**os.environ, "PGOPTIONS": "-c search_path=tollgate"})  # fmt: skip

    def proof(self, led):
        return led.verify(test_sums.START - 90 * 24 * test_sums.HOUR, test_sums.START + 40 * 24 * test_sums.HOUR)

    def test_the_owner_of_a_holder_that_only_an_event_names_is_judged_by_the_rules(self):
        """The daemon's login moves the money of a namespace to another tenant."""
        [[holder]] = self.s.sql("select distinct holder_id from meter_event where holder_id is not null")
        self.assertEqual(self.s.sql(f"select count(*) from usage_hourly where holder_id = {holder}"), [["0"]])
        _, found = self.attack("moved", f"update holder_attribution set workspace_id = (select id from workspace where name = 'serving') where holder_id = {holder}", pg.DAEMON)
        said = [(d["hour"], d["expected"], d["found"]) for d in found]
        for hour in (test_sums.rfc3339(test_sums.START + h * test_sums.HOUR) for h in (3, 5)):
            self.assertIn((hour, "globex/research", "initech/serving"), said)
        self.assertTrue(all(d["what"].startswith("holder_attribution of ") for d in found), found)

    def test_what_workloads_lost_is_found_again_in_the_batches(self):
        """The roll-up's login adds, changes and removes inputs of refunds."""
        self.assertGreater(int(self.s.sql("select count(*) from lost_hold")[0][0]), 1)
        [[day, device, holder, ended]] = self.s.sql("select day, device_id, holder_id, ended_ns from lost_hold order by 1, 2, 3, 4 limit 1")
        row = f"a row of lost_hold, {day}: device {device}, holder {holder}, ended_ns "
        of = f"where device_id = {device} and holder_id = {holder} and ended_ns = {ended}"
        names = "day, node_id, stream_id, device_id, holder_id, {} as ended_ns, cause, xid, failed_gpu_id"
        later = int(ended) + test_sums.HOUR
        for number, (statement, kind, what) in enumerate((
            (f"insert into lost_hold select {names.format(later)} from lost_hold {of}", "lost-hold-extra", f"{row}{later}"),
            (f"update lost_hold set cause = 'xid', xid = 79 {of}", "lost-hold-changed", f"{row}{ended}"),
            (f"update lost_hold set failed_gpu_id = (select min(id) from gpu where id <> failed_gpu_id) {of}", "lost-hold-changed", f"{row}{ended}"),
            (f"delete from lost_hold {of}", "lost-hold-missing", f"{row}{ended}"),
        )):  # fmt: skip
            with self.subTest(statement=statement):
                led, found = self.attack(f"lost{number}", statement, pg.ROLLUP)
                self.assertEqual([(d["kind"], d["what"]) for d in found], [(kind, what)])
                # Also when the records are gone: batches are kept longer.
                led.rows("set session_replication_role = replica; update node_hour set retired = true; delete from usage_interval")
                self.assertEqual([(d["kind"], d["what"]) for d in self.proof(led)["differences"] if d["kind"].startswith("lost")], [(kind, what)])

    def test_what_a_gpu_is_said_to_be_is_what_the_batches_of_its_node_say(self):
        """The daemon's login claims a GPU of a node with another model: its hours would have another price."""
        [[node, uuid, stream, seq]] = self.s.sql("select s.node_id, g.uuid, s.stream_id, s.seq from gpu_spec s join gpu g on g.id = s.gpu_id where g.uuid = 'GPU-n1-0'")
        at = test_sums.START + 7 * test_sums.HOUR
        claim = f"select * from gpu_claim({node}, '{uuid}', 'NVIDIA A100-SXM4-40GB', 'A100-40GB', 42949672960, 0, {at}, {at + 1}, {stream}, {seq})"
        led, found = self.attack("claimed", f"delete from node_declared where node_id = {node}; insert into audit_log (actor, action, subject) values ('x', 'policy.apply', 'x'); {claim}", pg.DAEMON)
        self.assertEqual([(d["gpu"], d["node"], d["what"], d["found"].split(",")[0]) for d in found if d["kind"] == "gpu-history"],
                         [(uuid, "n1", "gpu_spec: what its node's batches say it is", "NVIDIA A100-SXM4-40GB")])  # fmt: skip
        begins = led.value(f"select rfc3339(lower(effective)) from gpu_spec s join gpu g on g.id = s.gpu_id where g.uuid = '{uuid}' and not lower_inf(effective)")
        self.assertEqual([d["hour"] for d in found if d["kind"] == "gpu-history"], [begins])
        # A range that begins long after the stream named its GPUs says the same.
        part = led.verify(test_sums.START + 2 * test_sums.HOUR, test_sums.START + 24 * test_sums.HOUR, "n1")["differences"]
        self.assertEqual([d["gpu"] for d in part if d["kind"] == "gpu-history"], [uuid])

    def test_an_amount_that_is_no_whole_number_is_refused_or_named_and_ends_no_proof(self):
        led = self.copy("parts")
        self.addCleanup(self.s.pg.query, 'drop database "parts"')
        [[day]] = led.rows("select min(day) from charge_day")
        days = {"usage_daily": "energy_mj", "charge_day": "used", "reserve_day": "covered", "loan_day": "used", "pool_day": "down"}
        for table, column in days.items():
            for amount in (f"{column} + 0.5", "'NaN'", "'Infinity'"):
                self.assertNotEqual(self.as_login(led, f"update {table} set {column} = {amount}", pg.ROLLUP).returncode, 0, (table, amount))
        # Somebody with more rights: the constraints are gone, and something else is wrong too, which must still be found.
        led.rows("set session_replication_role = replica; " + "".join(f"alter table {t} drop constraint amounts_are_whole; " for t in days) + "alter table reserve_day drop constraint reserved_adds_up; "
                 + "".join(f"update {t} set {c} = {a} where day = '{day}'; " for (t, c), a in zip(days.items(), ("energy_mj + 0.5", "'NaN'", "covered + 0.25", "'Infinity'", "'NaN'")))
                 + "update usage_hourly set energy_mj = 'NaN' where ctid = (select min(ctid) from usage_hourly); update price_item set price = price + 1 where position = 1")  # fmt: skip
        found = self.proof(led)["differences"]
        for table, column in days.items():
            self.assertTrue([d for d in found if d["what"].startswith(f"{column} of {table}, {day}: ") and not re.fullmatch("[0-9-]*", d["found"])], (table, [d["what"] for d in found]))
        self.assertTrue([d for d in found if d["kind"] == "hour-changed" and d["what"].startswith("energy_mj of ") and d["found"] == "NaN"])
        self.assertTrue([d for d in found if d["kind"] == "row-changed" and d["what"].startswith("price_item ")])

    # ---- one change ----

    def values(self, led, rng, table, column, place):
        """Other values for the column of that row, as SQL: of its list, of other rows, or made from the one it has."""
        kind = self.columns[table][column]
        # "grace" says that a month is over, and nothing is made from it.
        out = [f"'{v}'" for v in self.lists.get((table, column), []) if v != led.rows(f'select "{column}" from {table} where {place}')[0][0] and (table, v) != ("period", "grace")]
        rng.shuffle(out)
        if not out:
            others = led.rows(f'select distinct quote_literal("{column}"::text) from {table} where "{column}" is distinct from (select "{column}" from {table} where {place} limit 1) and "{column}" is not null limit 20')
            cast = {"ARRAY": "", "bytea": "", "jsonb": "::jsonb"}.get(kind, "")
            out = [spoiled(kind, column), *(f"{rng.choice(others)[0]}{cast}" for _ in range(2) if others)]
        return out

    def statements(self, led, rng, table, operation, place):
        """Ways to do that to the row: of an update, a column and other values for it."""
        if operation == "delete":
            # Of several notes about one month each says all: they count as long as one is there.
            return [f"delete from {table}" + ("" if table == "late_change" else f" where {place}")]
        if operation == "update":
            names = sorted(set(self.columns[table]) - NO_BILL_COLUMNS.get(table, set()))
            [there] = led.rows(f"select {', '.join(chr(34) + n + chr(34) + ' is not null' for n in names)} from {table} where {place}") if names else [[]]
            names = [n for n, full in zip(names, there) if full == "t"]
            rng.shuffle(names)
            return [f'update {table} set "{n}" = {v} where {place}' for n in names[:3] for v in self.values(led, rng, table, n, place)]
        own = ", ".join(f'"{n}"' for n in self.columns[table])
        keys = [n for n in self.columns[table] if n in ("workspace_id", "lender_id", "sharing", "units", "method", "line_id", "ended_ns", "cluster_id")]
        rng.shuffle(keys)
        out = []
        for key in keys:
            other = f"translate({key}, '0123456789abcdef', '123456789abcdef0')" if key == "line_id" else f"{key} - 1" if key in ("sharing", "method", "units") else f"{key} + 7"
            out.append(f"insert into {table} ({own}) overriding system value select {own.replace(chr(34) + key + chr(34), other)} from {table} where {place}")
        return out

    def words(self, led, table, place):
        """What names the row: its columns, and more."""
        more = [m for m in (MORE.get(table), self.keys.get(table)) if m]
        [[row]] = led.rows(f"set timezone = 'UTC'; select row_to_json(x) from (select {', '.join(['t.*', *more])} from {table} t where {place}) x")
        return json.loads(row)

    def spoil(self, led, rng, table, operation, user):
        """One row: the statement and what names the row, before and after. None: the table has no row; refused: the reason."""
        rows = led.rows(f"select tableoid, ctid from {table}")
        if not rows:
            return None
        where = rng.choice(rows)
        place = "(tableoid, ctid) = ('%s', '%s')" % tuple(where)
        before = self.words(led, table, place)
        reason = "no statement"
        for statement in self.statements(led, rng, table, operation, place):
            if user == pg.USER:
                done = self.as_login(led, "set session_replication_role = replica; " + statement)
            else:
                done = self.as_login(led, statement, user)
            if done.returncode == 0:
                found = [r for r in led.rows(f"select tableoid, ctid from {table}") if r not in rows]
                after = self.words(led, table, "(tableoid, ctid) = ('%s', '%s')" % tuple(found[0])) if found else before
                return {"statement": statement, "rows": [before, after]}
            reason = done.stderr.strip()
            if "permission denied" in reason:
                break
        return {"refused": reason}

    def test_a_change_with_triggers_on_and_without_an_entry_in_the_audit_log_is_named(self):
        led = self.copy("unaudited")
        led.rows("update tenant_term set cost_center = 'elsewhere' where tenant_id = (select id from tenant where name = 'acme'); update attribution_rule set priority = priority + 1 where id = (select min(id) from attribution_rule)")
        found = led.verify(test_sums.START - 90 * 24 * test_sums.HOUR, test_sums.START)["differences"]
        self.assertEqual({d["what"].split()[0] for d in found if d["kind"] == "row-unaudited"}, {"tenant_term", "attribution_rule"})

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
        cases = [(t, o, u) for t in self.tables for o in ("update", "delete", *(("insert",) if t in DERIVED else ())) for u in (pg.USER, pg.DAEMON, pg.ROLLUP)]
        rng.shuffle(cases)
        self.tally = {u: {"made": 0, "refused": 0, "empty": 0, "named": 0} for u in (pg.USER, pg.DAEMON, pg.ROLLUP)}
        self.refusals, self.empty, self.number = [], set(), 0
        # What is refused changes nothing: copies are made for what may be done.
        tries = self.copy("tries")
        made = []
        for table, operation, user in cases:
            # Of two logins that may not write a table the server says so without a copy.
            if user != pg.USER and not self.may(tries, user, table, operation):
                self.tally[user]["refused"] += 1
                continue
            made.append((table, operation, user))
        self.s.pg.query('drop database "tries"')
        for n in range(0, len(made), AT_ONCE):
            self.judge(rng, made[n : n + AT_ONCE])
        print(self.tally, "without a row:", sorted(self.empty), flush=True)
        # agent_leader: no bill is made of it, and whoever raises an epoch costs an agent its lead alone, which it asks for anew
        self.assertLessEqual(self.empty, {"price_weight", "join_token", "agent_leader"}, "the ledger has a row of every other table")
        owner = self.tally[pg.USER]
        self.assertGreaterEqual(owner["made"], 9 * (owner["made"] + owner["refused"]) // 10, self.refusals)
        self.assertGreater(self.tally[pg.DAEMON]["made"], 5)
        self.assertGreater(self.tally[pg.ROLLUP]["made"], 5)
        self.assertEqual([t["named"] for t in self.tally.values()], [t["made"] for t in self.tally.values()])

    def may(self, led, user, table, operation):
        """Whether the login has the right for it, for any column."""
        return led.value(f"select has_any_column_privilege('{user}', 'tollgate.{table}', '{operation}')" if operation != "delete" else f"select has_table_privilege('{user}', 'tollgate.{table}', 'delete')") == "t"

    def judge(self, rng, cases):
        """Changes in one copy, of different tables; those that are not named are done once more, each alone: another change of the same copy
        may hide one, as a day that is not there any more hides its charges."""
        self.number += 1
        led, done = self.copy(f"copy{self.number}"), {}
        for case in cases:
            if any(case[0] == other[0] for other in done):
                self.judge(rng, [case])
                continue
            what = self.spoil(led, rng, *case)
            tally = self.tally[case[2]]
            if what is None:
                tally["empty"] += 1
                self.empty.add(case[0])
            elif "refused" in what:
                tally["refused"] += 1
                self.refusals.append((case, what["refused"][:200]))
            else:
                done[case] = what
        try:
            found = self.proof(led)["differences"] if done else []
        except ledger.StoreError as refused:
            # A ledger that does not know any more what it is cannot be proved: verify fails, and says why.
            if len(done) == 1:
                [(case, what)] = done.items()
                self.assertEqual((case[0], refused.kind), ("ledger", "fatal"), (what, refused.text))
                self.tally[case[2]]["made"] += 1
                self.tally[case[2]]["named"] += 1
                return
            for case in done:
                self.judge(rng, [case])
            return
        finally:
            self.s.pg.query(f'drop database "{led.name}"')
        for case, what in done.items():
            with self.subTest(case=case):
                if not self.named(case[0], what["rows"], found) and len(done) > 1:
                    self.judge(rng, [case])
                    continue
                self.tally[case[2]]["made"] += 1
                self.assertTrue(self.named(case[0], what["rows"], found),
                                f"{what['statement']}\n{what['rows'][0]}\nnot named among {sorted({(d['kind'], d['node'], d['hour'], d['what'][:100]) for d in found})[:20]}")  # fmt: skip
                self.tally[case[2]]["named"] += 1

    def named(self, table, rows, found):
        """Whether a difference names one of the rows: by its own words, or as a row of the journal."""
        for kind, words in NAMED.get(table, [("row-", table + " {journalled}")]):
            for row in rows:
                wanted = [w.strip() for w in re.split(r" (?=\w+=)|(?<=\d\dZ) ", words.format_map(row))]
                for d in found:
                    said = d["what"] + "".join(f"\n{k}={d[k]}" for k in ("hour", "node", "gpu"))
                    if re.match(kind, d["kind"]) and all(w in said for w in wanted):
                        return True
        return False


if __name__ == "__main__":
    unittest.main()
