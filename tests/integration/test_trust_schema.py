"""What a superuser, or somebody with the owner's password, changes of the schema is named by verify, and stops a close; undone, both are as before."""

import json
import os
import subprocess
import unittest

from tests.support.daemons import pg
from tests.support.daemons.stack import Stack, program
from tests.support.store import schema

# (round, what is done, what undoes it, what verify says of it: what, expected, found). All of a round is done before verify is asked. {} is a definition as it was before.
TAMPERED = (
    (1, "create or replace function tollgate.released_stays_released() returns trigger language plpgsql as 'begin return new; end'", "{function tollgate.released_stays_released()}",
     "function tollgate.released_stays_released()", "text ", "text "),
    (1, "alter function tollgate.retire_intervals(bigint) security invoker", "alter function tollgate.retire_intervals(bigint) security definer",
     "function tollgate.retire_intervals(bigint)", "with the owner's rights", "nothing else"),
    (2, "alter function tollgate.retire_intervals(bigint) set search_path = public", "alter function tollgate.retire_intervals(bigint) set search_path = tollgate, pg_temp",
     "function tollgate.retire_intervals(bigint)", "settings search_path=tollgate, pg_temp", "settings search_path=public"),
    (1, "alter function tollgate.make_periods(timestamptz, timestamptz) owner to postgres",
     "alter function tollgate.make_periods(timestamptz, timestamptz) owner to tollgate_owner",
     "function tollgate.make_periods(timestamp with time zone,timestamp with time zone)", "owner owner", "owner role postgres"),
    (1, "create function tollgate.ns_of(integer) returns bigint language sql as 'select 0::bigint'", "drop function tollgate.ns_of(integer)",
     "function tollgate.ns_of(integer)", "not there", "owner role postgres"),
    (1, "alter table tollgate.invoice_line disable trigger closed_is_final", "alter table tollgate.invoice_line enable trigger closed_is_final",
     "trigger tollgate.invoice_line closed_is_final", "enabled", "disabled"),
    (2, "alter table tollgate.invoice_line disable trigger all", "alter table tollgate.invoice_line enable trigger all",
     "constraint tollgate.invoice_line invoice_line_number_currency_fkey", "4 of 4 triggers enabled", "2 of 4 triggers enabled"),
    (1, "create trigger sly before insert on tollgate.charge_day for each row execute function suppress_redundant_updates_trigger()", "drop trigger sly on tollgate.charge_day",
     "trigger tollgate.charge_day sly", "not there", "enabled; calls suppress_redundant_updates_trigger()"),
    (1, "alter table tollgate.charge_day drop constraint amounts_are_whole", "alter table tollgate.charge_day add constraint amounts_are_whole {constraint charge_day amounts_are_whole}",
     "constraint tollgate.charge_day amounts_are_whole", "check", "not there"),
    (3, "alter table tollgate.invoice_line drop constraint invoice_line_number_currency_fkey",
     "alter table tollgate.invoice_line add constraint invoice_line_number_currency_fkey {constraint invoice_line invoice_line_number_currency_fkey}",
     "constraint tollgate.invoice_line invoice_line_number_currency_fkey", "foreign key", "not there"),
    (1, "grant update on tollgate.charge_day to tollgate", "revoke update on tollgate.charge_day from tollgate", "right daemon may UPDATE table tollgate.charge_day", "not there", "granted"),
    (1, "grant update (billed) on tollgate.invoice_line to tollgate_rollup", "revoke update (billed) on tollgate.invoice_line from tollgate_rollup",
     "right rollup may UPDATE column tollgate.invoice_line.billed", "not there", "granted"),
    (1, "grant insert on tollgate.ingest_batch, tollgate.period_close to stranger", "revoke insert on tollgate.ingest_batch, tollgate.period_close from stranger",
     "right role stranger may INSERT table tollgate.ingest_batch", "not there", "granted"),
    (1, "grant execute on function tollgate.retire_intervals(bigint) to public", "revoke execute on function tollgate.retire_intervals(bigint) from public",
     "right PUBLIC may EXECUTE function tollgate.retire_intervals(bigint)", "not there", "granted"),
    (1, "alter default privileges for role tollgate_owner in schema tollgate grant insert on tables to tollgate",
     "alter default privileges for role tollgate_owner in schema tollgate revoke insert on tables from tollgate",
     "right daemon may INSERT new objects of type r", "not there", "granted"),
    (1, "grant tollgate_rollup to tollgate", "revoke tollgate_rollup from tollgate", "role daemon", "nothing else", "member of tollgate_rollup"),
    (1, "alter role tollgate_rollup superuser", "alter role tollgate_rollup nosuperuser", "role rollup", "nothing else", "superuser"),
    (1, "alter role tollgate in database tollgate set session_replication_role = replica", "alter role tollgate in database tollgate reset session_replication_role",
     "setting session_replication_role of role tollgate", "not there", "replica"),
    (2, "alter table tollgate.charge_day owner to postgres", "alter table tollgate.charge_day owner to tollgate_owner", "table tollgate.charge_day", "owner owner", "owner role postgres"),
    (1, "alter table tollgate.node alter held set default false", "alter table tollgate.node alter held set default true", "column tollgate.node.held", "true", "false"),
    (1, "alter table tollgate.tenant alter name drop not null", "alter table tollgate.tenant alter name set not null", "column tollgate.tenant.name", "not null", "nothing else"),
    (1, "create rule deaf as on update to tollgate.invoice do instead nothing", "drop rule deaf on tollgate.invoice", "rule tollgate.invoice deaf", "not there", "enabled"),
    (1, "create policy open on tollgate.invoice using (true); alter table tollgate.invoice enable row level security",
     "drop policy open on tollgate.invoice; alter table tollgate.invoice disable row level security", "policy tollgate.invoice open", "not there", "command *"),
    (1, "create table public.more () inherits (tollgate.charge_day)", "drop table public.more", "table public.more", "not there", "inherits tollgate.charge_day"),
    (1, "alter view tollgate.gpu_now owner to postgres", "alter view tollgate.gpu_now owner to tollgate_owner", "view tollgate.gpu_now", "owner owner", "owner role postgres"),
    (1, "drop index tollgate.price_item_once", "{index tollgate.price_item_once}", "index tollgate.price_item_once", "unique", "not there"),
    (1, "create trigger sly before insert on tollgate.{partition} for each row execute function suppress_redundant_updates_trigger()", "drop trigger sly on tollgate.{partition}",
     "partition tollgate.{partition}", "the columns, constraints, triggers, owner and rights of every partition", "others"),
    (2, "grant select on tollgate.{partition} to tollgate", "revoke select on tollgate.{partition} from tollgate", "partition tollgate.{partition}", "the columns", "others"),
    (3, "alter table tollgate.usage_interval detach partition tollgate.{partition}",
     "alter table tollgate.usage_interval attach partition tollgate.{partition} {bound}", "table tollgate.{partition}", "not there", "owner owner"),
    (1, "update pg_class set relhastriggers = false where oid = 'tollgate.audit_log'::regclass", "update pg_class set relhastriggers = true where oid = 'tollgate.audit_log'::regclass",
     "table tollgate.audit_log", "nothing else", "triggers passed over"),
    (1, "update pg_class set relchecks = 0 where oid = 'tollgate.price_book'::regclass",
     "update pg_class set relchecks = (select count(*) from pg_constraint where contype = 'c' and conrelid = pg_class.oid) where oid = 'tollgate.price_book'::regclass",
     "table tollgate.price_book", "nothing else", "checks passed over"),
    (1, "update pg_class set relhasindex = false where oid = 'tollgate.workspace'::regclass", "update pg_class set relhasindex = true where oid = 'tollgate.workspace'::regclass",
     "table tollgate.workspace", "nothing else", "indexes passed over"),
    (5, "update pg_class set relhassubclass = false where oid = 'tollgate.usage_interval'::regclass", "update pg_class set relhassubclass = true where oid = 'tollgate.usage_interval'::regclass",
     "table tollgate.usage_interval", "nothing else", "partitions passed over"),
    (2, "create trigger sly before insert on tollgate.audit_log for each row execute function suppress_redundant_updates_trigger(); update pg_trigger set tgisinternal = true where tgname = 'sly'",
     "update pg_trigger set tgisinternal = false where tgname = 'sly'; drop trigger sly on tollgate.audit_log", "trigger tollgate.audit_log sly", "not there", "enabled"),
    (1, "create function public.alike(numeric, bigint) returns boolean language sql as 'select true'; "
     "create operator tollgate.= (leftarg = numeric, rightarg = bigint, function = public.alike); alter extension btree_gist add operator tollgate.= (numeric, bigint)",
     "alter extension btree_gist drop operator tollgate.= (numeric, bigint); drop operator tollgate.= (numeric, bigint); drop function public.alike(numeric, bigint)",
     "operator tollgate.=(numeric,bigint)", "not there", "calls public.alike"),
    (2, "create table tollgate.usage_interval_rest partition of tollgate.usage_interval default", "drop table tollgate.usage_interval_rest",
     "partition tollgate.usage_interval_rest", "the columns", "others"),
    (1, "alter role tollgate replication createdb", "alter role tollgate noreplication nocreatedb", "role daemon", "nothing else", "replicates"),
    (2, "grant tollgate_rollup to stranger", "revoke tollgate_rollup from stranger", "role rollup", "nothing else", "has members stranger"),
    (4, "insert into tollgate.schema_migration values (9999, 'later', sha256(''), now(), '0.1')", "delete from tollgate.schema_migration where number = 9999",
     "schema tollgate", "migrations, as this program has", "the schema of another version"),
)  # fmt: skip


class Schema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = cls.enterClassContext(Stack())
        cls.s.sql("create role stranger; select make_partitions(1790000000000000000, 1790300000000000001)")
        cls.partition = cls.s.sql("select min(relname) from pg_class where relispartition and relkind = 'r'")[0][0]

    def verify(self):
        reply = self.s.get("/v1/conservation/differences?part=rows&from=2026-01-01T00:00:00Z&to=2026-01-01T01:00:00Z").json()
        self.assertEqual([d for d in reply["differences"] if d["kind"] not in ("schema", "trigger")], [])
        return reply

    def definitions(self):
        """Of the functions, constraints and so on that a test puts back."""
        rows = self.s.sql(
            "select 'function tollgate.' || oid::regprocedure, pg_get_functiondef(oid) from pg_proc where proname = 'released_stays_released' union all "
            "select format('constraint %s %s', conrelid::regclass, conname), pg_get_constraintdef(oid) from pg_constraint where conname in ('amounts_are_whole', 'invoice_line_number_currency_fkey') "
            "union all select 'index tollgate.' || relname, pg_get_indexdef(oid) from pg_class where relname = 'price_item_once' union all "
            f"select 'bound', pg_get_expr(relpartbound, oid) from pg_class where relname = '{self.partition}'"
        )
        return {"{" + name + "}": text for name, text in rows} | {"{partition}": self.partition}

    def test_each_change_is_named_and_undone_is_forgotten(self):
        definitions = self.definitions()

        def filled(text):
            for name, definition in definitions.items():
                text = text.replace(name, definition)
            return text

        for each in sorted({row[0] for row in TAMPERED}):
            rows = [[filled(text) for text in row[1:]] for row in TAMPERED if row[0] == each]
            self.s.sql("; ".join(row[0] for row in rows))
            try:
                differences = [d for d in self.verify()["differences"] if d["kind"] == "schema"]
            finally:
                self.s.sql("; ".join(row[1] for row in rows))
            for done, _, what, expected, found in rows:
                with self.subTest(done=done):
                    told = [d for d in differences if d["what"].startswith(what)]
                    self.assertEqual(len(told), 1, differences)
                    self.assertIn(expected, told[0]["expected"])
                    self.assertIn(found, told[0]["found"])
                    self.assertNotEqual(told[0]["expected"], told[0]["found"])
        self.assertEqual(self.verify()["differences"], [])

    def test_an_untouched_schema_is_sound_and_counted(self):
        reply = self.verify()
        self.assertEqual((reply["count"], reply["schema_texts"]), (0, 0))
        with open(schema.EXPECTED, encoding="utf-8") as f:
            partitions = int(self.s.sql("select count(*) from pg_inherits where inhparent = 'tollgate.usage_interval'::regclass")[0][0])
            self.assertEqual(reply["schema"], len(f.readlines()) - 2 + partitions)  # the server's version is no object
        done = self.s.cli("verify")
        self.assertRegex(done.stdout, r", [1-9]\d{3} objects of the schema, ")

    def test_a_role_that_only_reads_is_the_sites_own_business(self):
        self.s.sql("grant usage on schema tollgate to stranger; grant select on all tables in schema tollgate to stranger; grant execute on function ns_of(timestamptz) to stranger")
        self.addCleanup(self.s.sql, "revoke all on schema tollgate from stranger; revoke all on all tables in schema tollgate from stranger; revoke all on function ns_of(timestamptz) from stranger")
        self.assertEqual(self.verify()["differences"], [])

    def test_the_command_line_ends_with_1(self):
        self.s.sql("alter table invoice disable trigger user")
        self.addCleanup(self.s.sql, "alter table invoice enable trigger user")
        done = self.s.cli("verify", "-o", "json")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("trigger tollgate.invoice ", {d["what"][:25] for d in json.loads(done.stdout)["differences"]})


class Restored(unittest.TestCase):
    def test_a_ledger_from_a_backup_is_the_same_schema(self):
        with Stack() as s:
            s.sql("select make_partitions(1790000000000000000, 1790300000000000001)")
            dump = subprocess.run([os.path.join(s.pg.bin, "pg_dump"), "-d", s.pg.conninfo("tollgate")], check=True, capture_output=True)
            s.aggregator.stop()
            s.pg.query("alter database tollgate rename to before")
            s.pg.create_database("tollgate")
            subprocess.run([os.path.join(s.pg.bin, "psql"), "-qv", "ON_ERROR_STOP=1", "-d", s.pg.conninfo("tollgate")], input=dump.stdout, check=True, capture_output=True)
            s.restart_aggregator()
            s.sql("select make_partitions(1791000000000000000, 1791300000000000001)")
            reply = s.get("/v1/conservation/differences?part=rows&from=2026-01-01T00:00:00Z&to=2026-01-01T01:00:00Z").json()
            self.assertEqual(reply["differences"], [])
            self.assertGreater(reply["schema"], 1000)


class Expected(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster(copied=False))

    def test_the_list_is_what_the_migrations_make(self):
        with open(schema.EXPECTED, encoding="utf-8") as f:
            self.assertEqual(f.read().splitlines(), schema.expected(self.cluster).splitlines(), "sql/access/expected.txt is old; make schema writes it anew")

    def test_roles_of_other_names_and_an_owner_of_the_sites_own_are_the_same_schema(self):
        c = self.cluster
        c.query("create role keeper login; create role kept_daemon login; create role kept_rollup login; create database kept owner keeper")
        roles = ("--daemon-role", "kept_daemon", "--rollup-role", "kept_rollup")
        subprocess.run([program("tollgate-aggregator"), "--migrate", "--database", c.conninfo("kept", "keeper"), *roles], check=True, capture_output=True)
        self.assertEqual(schema.lines(c, "kept"), schema.fresh(c))


if __name__ == "__main__":
    unittest.main()
