"""Migrations: once, in order, by one migrator, and never on a schema that is not what it says it is."""

import json
import os
import subprocess
import unittest

from tests.support.daemons import pg
from tests.support.store.ledger import BUILD, ROOT, Ledger, StoreError

FILES = sorted(f for f in os.listdir(os.path.join(ROOT, "sql")) if f.endswith(".sql"))


class Migrate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())
        cls.count = 0

    def database(self):
        """An empty one, with a Ledger that has not migrated it."""
        type(self).count += 1
        led = Ledger.__new__(Ledger)
        led.cluster, led.name, led.now = self.cluster, f"m{self.count}", 0
        led.dir = self.cluster.private_dir(led.name)
        self.cluster.create_database(led.name)
        return led

    def migrated(self, **options):
        type(self).count += 1
        return Ledger(self.cluster, f"m{self.count}", **options)

    def refused(self, kind, led, *args):
        with self.assertRaises(StoreError) as caught:
            led.run(*(args or ("migrate",)))
        self.assertEqual(caught.exception.kind, kind, caught.exception)
        return caught.exception.text

    def test_every_file_is_recorded_with_its_hash_and_its_oldest_binary(self):
        led = self.database()
        self.assertEqual(led.run("migrate"), {"applied": len(FILES)})
        rows = led.rows("select number, name, encode(sha256, 'hex'), oldest_binary from schema_migration order by number")
        for i, (number, name, digest, oldest) in enumerate(rows):
            path = os.path.join(ROOT, "sql", FILES[i])
            expected = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout.split()[0]
            self.assertEqual((number, name, digest), (str(i + 1), FILES[i], expected))
            self.assertRegex(oldest, r"^\d+\.\d+\.\d+$")
        self.assertEqual(len(rows), len(FILES))

    def test_a_second_run_does_nothing(self):
        led = self.migrated()
        self.assertEqual(led.run("migrate"), {"applied": 0})
        self.assertEqual(led.run("ready"), {"ready": True})

    def test_two_migrators_at_once_share_the_work_without_error(self):
        for _ in range(3):
            led = self.database()
            argv = [os.path.join(BUILD, "tests", "store_tool"), self.cluster.conninfo(led.name), "migrate", "--zone", "UTC"]
            both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
            results = [json.loads(p.communicate()[0]) for p in both]
            self.assertEqual(sorted(r.get("applied", r) for r in results), [0, len(FILES)])
            self.assertEqual(led.value("select count(*) from ledger"), "1")

    def test_an_edited_file_is_refused_and_named(self):
        led = self.migrated()
        led.rows("update schema_migration set sha256 = decode(repeat('00', 32), 'hex') where number = 2")
        for command in ("migrate", "ready"):
            text = self.refused("fatal", led, command)
            self.assertIn(FILES[1], text)
            self.assertIn("edited", text)

    def test_a_newer_schema_is_refused_by_migrate(self):
        led = self.migrated()
        led.rows(f"insert into schema_migration values ({len(FILES) + 1}, 'later.sql', sha256('x'), now(), '0.0.1')")
        text = self.refused("fatal", led)
        self.assertIn("older than the schema", text)
        self.assertIn("later.sql", text)

    def test_a_newer_schema_is_used_only_where_it_says_so(self):
        led = self.migrated()
        led.rows(f"insert into schema_migration values ({len(FILES) + 1}, 'later.sql', sha256('x'), now(), '0.0.1')")
        self.assertEqual(led.run("ready"), {"ready": True})
        led.rows("update schema_migration set oldest_binary = '99.0.0' where name = 'later.sql'")
        self.assertIn("99.0.0", self.refused("fatal", led, "ready"))

    def test_a_gap_in_what_was_applied_is_refused(self):
        led = self.migrated()
        led.rows("delete from schema_migration where number = 2")
        self.assertIn("migration 3 but not 2", self.refused("fatal", led))

    def test_a_file_that_fails_leaves_nothing_of_itself_and_is_tried_again(self):
        led = self.database()
        led.rows("create schema tollgate; create table tollgate.audit_log (i integer)")
        text = self.refused("fatal", led)
        self.assertIn("access", text)
        done = next(i for i, name in enumerate(FILES) if "access" in name)
        self.assertEqual(led.value("select count(*) from schema_migration"), str(done))
        self.assertIsNone(led.value("select to_regclass('tollgate.access_token')"))
        self.assertIn("--migrate gives each login its rights", self.refused("fatal", led, "ready"))
        led.rows("drop table tollgate.audit_log")
        self.assertEqual(led.run("migrate"), {"applied": len(FILES) - done})

    def test_before_migration_the_database_is_not_ready(self):
        self.assertIn("migrate it", self.refused("fatal", self.database(), "ready"))

    def test_a_ledger_keeps_its_zone(self):
        led = self.migrated(zone="Europe/Berlin")
        self.assertEqual(led.run("migrate"), {"applied": 0})
        text = self.refused("conflict", led, "migrate", "--zone", "UTC")
        self.assertIn("Europe/Berlin", text)
        self.assertEqual(led.run("ledger"), {"demo": True, "zone": "Europe/Berlin"})
        with self.assertRaisesRegex(RuntimeError, "keeps its billing zone"):
            led.rows("update ledger set zone = 'UTC'")

    def test_a_ledger_that_is_no_demo_cannot_become_one(self):
        led = self.migrated(demo=False)
        self.assertIn("demo", self.refused("conflict", led, "migrate", "--demo", "1"))

    def test_zones_that_cannot_be_billed_by_the_hour_are_refused(self):
        for zone, words in (("Mars/Olympus", "not one that the database knows"), ("Australia/Lord_Howe", "moves the start of its hours")):
            with self.subTest(zone=zone):
                led = self.database()
                self.assertIn(words, self.refused("invalid", led, "migrate", "--zone", zone))
                self.assertEqual(led.run("migrate", "--zone", "Asia/Kathmandu"), {"applied": 0})
                self.assertEqual(led.value("select hour_phase_ns / 1000000000 / 60 from ledger"), "15")

    def test_the_audit_log_only_grows(self):
        led = self.migrated()
        led.run("token", "admin")
        for statement in ("update audit_log set actor = 'x'", "delete from audit_log", "truncate audit_log cascade"):
            with self.subTest(statement=statement), self.assertRaisesRegex(RuntimeError, "only grows"):
                led.rows(statement)


class Connection(unittest.TestCase):
    """What the door to the database says when it is shut."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())
        cls.ledger = Ledger(cls.cluster, "c")

    def call(self, conninfo, command="ready"):
        done = self.ledger.tool(command, conninfo=conninfo)
        return json.loads(done.stdout)

    def test_no_server_is_a_reason_to_try_again_and_names_the_place_but_no_password(self):
        r = self.call("host=/nonexistent port=5432 dbname=ledger user=x password=hunter2")
        self.assertEqual(r["error"], "retry")
        self.assertIn("the database does not answer (database at /nonexistent port 5432, database ledger: ", r["text"])
        self.assertNotIn("hunter2", r["text"])

    def test_an_unreadable_connection_string_is_not_repeated(self):
        for conninfo in ("password=hunter2 nonsense", "postgresql://u:hunter2@[::1/x", "dbname='hunter2"):
            with self.subTest(conninfo=conninfo):
                r = self.call(conninfo)
                self.assertEqual(r["error"], "invalid")
                self.assertNotIn("hunter2", r["text"])

    def test_the_first_host_that_answers_is_used(self):
        r = self.call(f"host=/nonexistent,{self.cluster.socket_dir} port=5432,5432 user=postgres dbname=c")
        self.assertEqual(r, {"ready": True})

    def test_a_server_that_only_reads_is_not_used_unless_asked_for(self):
        conninfo = self.cluster.conninfo("c") + " options='-c default_transaction_read_only=on'"
        r = self.call(conninfo)
        self.assertEqual(r["error"], "retry", r)
        self.assertEqual(self.call(conninfo + " target_session_attrs=any"), {"ready": True})

    def test_a_session_has_its_name_its_timeouts_and_utc(self):
        led = self.ledger
        led.rows("create table public.seen (name text, value text); grant insert on public.seen to public")
        led.rows(
            "create function tollgate.look() returns trigger language plpgsql as $$ begin insert into public.seen select name, setting from "
            "pg_settings where name in ('application_name', 'TimeZone', 'statement_timeout', 'lock_timeout', 'search_path', 'client_encoding'); "
            "return new; end $$; create trigger look before insert on access_token for each row execute function tollgate.look()"
        )
        led.run("token", "admin")
        self.assertEqual(
            dict(led.rows("select * from public.seen")),
            {"application_name": "store_tool", "TimeZone": "UTC", "statement_timeout": "600000", "lock_timeout": "600000", "search_path": "tollgate",
             "client_encoding": "UTF8"},
        )  # fmt: skip


if __name__ == "__main__":
    unittest.main()
