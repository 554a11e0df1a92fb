"""Somebody changes the ledger behind its back: whatever a bill is made from, `tollgate verify` names the row, or the database refuses the change.

The attacks run against the programs, on the ledger of test_sums: two months, one closed and corrected, with every class, MIG, events and credits."""

import csv
import io
import json
import os
import random
import re
import unittest

from tests.integration import test_sums
from tests.support import ledger


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
        self.named("delete from late_change", back, "late-change", test_sums.CLOSED)

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
    "ingest_batch": {"received_at", "exporter_version", "reason", "class", "decided_by", "decided_at", "decided_why", "decision", "quarantine_id"},
    "node": {"behind", "silent_until_ns"},
    "gpu": {"index"},
    "late_change": {"id", "at", "month"},
    "stream": {"evidence_seq"},
}
# How verify names rows of tables that it computes again; of the others it is a row of the journal.
KINDS = {
    "usage_interval": "interval-", "usage_hourly": "hour-|attribution|conservation", "node_hour": "hour-|day-flag|interval-extra", "usage_daily": "day-",
    "charge_day": "charge-", "reserve_day": "charge-", "loan_day": "charge-", "pool_day": "charge-", "ingest_batch": "batch-|interval-|dictionary|hour-|cursor",
    "late_change": "late-change", "billing_day": "day-|row-", "node": "cursor|hour-|row-", "stream": "cursor|row-|batch-",
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
