"""Who may do what in the database: the daemon's login owns nothing and writes nothing that is made from inputs; the schema's owner migrates and serves nothing."""

import contextlib
import json
import os
import re
import signal
import subprocess
import unittest

from tests.integration import test_sums as sums
from tests.support.daemons import pg
from tests.support.daemons.stack import WAIT_S, Stack, program, wait_for
from tests.support.store import ledger
from tests.support.store.ledger import ROOT

DERIVED = ("usage_hourly", "usage_daily", "usage_slice", "node_hour", "billing_day", "charge_day", "reserve_day", "loan_day", "pool_day", "lost_hold",
           "late_change", "period", "period_close", "invoice", "invoice_total", "invoice_line", "invoice_document")  # fmt: skip
DENIED = "permission denied|must be owner|must be superuser|permission to set"


class Logins(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack())

    def psql(self, statement, user=None):
        """With the rights of the login that the daemon has. (ok, what the server said)"""
        s = self.stack
        conninfo = s.conninfo(user)
        done = subprocess.run([os.path.join(s.pg.bin, "psql"), "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", conninfo, "-c", statement],
                              capture_output=True, text=True, env={**os.environ, "PGOPTIONS": "-c search_path=tollgate"})  # fmt: skip
        return done.returncode == 0, done.stdout + done.stderr

    def refused(self, statement, user=None):
        with self.subTest(statement=statement, user=user):
            ok, text = self.psql(statement, user)
            self.assertFalse(ok, f"{statement} was done")
            self.assertRegex(text, DENIED)

    def test_the_daemons_login_changes_no_derived_table(self):
        """REVIEW A2: two plain UPDATEs of charge_day moved money between tenants, and every proof stayed green."""
        for tenant in ("other", "acme"):
            self.refused(f"update charge_day set workspace_id = (select min(id) from workspace) where class = 'on-demand' and '{tenant}' <> ''")
        for table in DERIVED:
            column = self.stack.sql(f"select min(attname) from pg_attribute where attrelid = 'tollgate.{table}'::regclass and attnum > 0 and attgenerated = ''")[0][0]
            self.refused(f"update {table} set {column} = {column}")
            self.refused(f"delete from {table}")
            if table != "usage_slice":  # by COPY, and bounded: see below
                self.refused(f"insert into {table} select * from {table}" if table not in ("invoice", "late_change") else f"insert into {table} default values")
        self.refused("update ingest_batch set payload = ''")
        self.refused("delete from ingest_batch")
        self.refused("update usage_interval set used_ns = 0")
        self.refused("delete from usage_interval")
        self.refused("update price_item set price = 0")
        self.refused("update audit_log set actor = 'x'")

    def test_the_daemons_login_switches_nothing_off_and_drops_nothing(self):
        for table in (*DERIVED, "usage_interval", "ingest_batch", "audit_log", "quota_event", "price_item", "access_token"):
            self.refused(f"alter table {table} disable trigger all")
            self.refused(f"truncate {table}")
            self.refused(f"drop table {table}")
        day = self.stack.sql("select make_partitions(1790000000000000000, 1790000000000000001); select min(inhrelid::regclass::text) from pg_inherits "
                             "where inhparent = 'tollgate.usage_interval'::regclass")[-1][0]  # fmt: skip
        self.refused(f"drop table {day}")
        self.refused(f"select count(*) from {day}")
        self.refused(f"alter table usage_interval detach partition {day}")
        self.refused("set session_replication_role = replica")
        self.refused("create table tollgate.mine (i integer)")
        self.refused("create or replace function tollgate.make_periods(p_from timestamptz, p_until timestamptz) returns void language sql as ''")
        self.refused("alter function tollgate.retire_intervals(bigint) security invoker")
        self.refused("set role tollgate_owner")
        self.refused("set role tollgate_rollup")
        self.refused("select retire_intervals(20000)")
        self.refused("select nodes_fall_silent(1, 1)")

    def test_the_roll_ups_login_owns_nothing_sees_no_token_and_changes_no_input(self):
        for statement in ("alter table charge_day disable trigger all", "drop table charge_day", "truncate charge_day", "select * from access_token",
                          "select * from join_token", "update invoice_line set billed = 0", "delete from invoice", "update tenant set name = 'x'",
                          "update price_book set effective = 'empty'", "insert into holder_attribution select * from holder_attribution",
                          "update ingest_batch set payload = ''", "insert into ingest_batch select * from ingest_batch", "delete from audit_log"):  # fmt: skip
            self.refused(statement, pg.ROLLUP)

    def test_what_runs_with_the_owners_rights_has_a_fixed_search_path_and_an_owner_who_is_no_superuser(self):
        rows = self.stack.sql("select p.proname, array_to_string(p.proconfig, ' '), r.rolname, r.rolsuper from pg_proc p join pg_roles r on r.oid = p.proowner "
                              "where p.pronamespace = 'tollgate'::regnamespace and p.prosecdef")  # fmt: skip
        self.assertGreater(len(rows), 20)
        for name, settings, owner, is_super in rows:
            self.assertIn("search_path=tollgate, pg_temp", settings or "", name)
            self.assertEqual((owner, is_super), ("tollgate_owner", "f"), name)
        self.assertEqual(self.stack.sql("select relname from pg_class where relnamespace = 'tollgate'::regnamespace and relowner <> 'tollgate_owner'::regrole"), [])
        self.assertEqual(self.stack.sql("select p.proname from pg_proc p where p.pronamespace = 'tollgate'::regnamespace and p.proacl is null and not exists "
                                        "(select from pg_depend d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')"), [],
                         "a function that everybody may call")  # fmt: skip

    def test_functions_with_the_owners_rights_have_bounds_of_their_own(self):
        for statement, says in (
            ("select make_partitions(0, 86400000000000)", "not within 2020 to 2100"),
            ("select make_partitions(1790000000000000000, 1890000000000000000)", "more than 100"),
            ("select make_periods('1970-01-01', '1970-02-01')", "not within 2000 to 2100"),
            ("select make_periods('-infinity', 'infinity')", "not within 2000 to 2100"),
            ("insert into node (cluster_id, name) select min(id), 'bounds' from cluster; select node_hours_touch(id, '{}', '2001-01-01', '2026-01-01', 1) from node where name = 'bounds'",
             "more than ten years"),
            ("insert into usage_slice values ('2026-01-01', 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)", "has not marked"),
        ):  # fmt: skip
            with self.subTest(statement=statement):
                ok, text = self.psql(statement)
                self.assertFalse(ok)
                self.assertIn(says, text)
        ok, text = self.psql("select retire_intervals(60000)", pg.ROLLUP)
        self.assertFalse(ok)
        self.assertIn("no node has come past day 60000", text)

    def test_every_table_is_named_in_the_grants(self):
        with open(os.path.join(ROOT, "sql", "access", "grants.sql"), encoding="utf-8") as f:
            named = set(re.findall(r"'(\w+)'", f.read()))
        tables = {r[0] for r in self.stack.sql("select relname from pg_class where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'p') and not relispartition")}
        self.assertEqual(tables - named, set(), "tables whose rights nobody has decided; they have those of inputs until sql/access/grants.sql names them")

    def start(self, database, *options):
        done = subprocess.run([program("tollgate-aggregator"), "--listen", "127.0.0.1:1", "--database", database, "--demo", *options], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def test_a_daemon_with_more_rights_than_it_needs_does_not_start(self):
        s = self.stack
        s.sql("create role climber login in role tollgate_owner; create role two_in_one login in role tollgate, tollgate_rollup")
        self.addCleanup(s.sql, "drop role climber; drop role two_in_one")
        for user, says in ((pg.USER, "login postgres is a superuser"), ("climber", "login climber owns"), (pg.ROLLUP, "login tollgate_rollup may write"), ("two_in_one", "login two_in_one may write")):
            with self.subTest(user=user):
                text = self.start(s.conninfo(user))
                self.assertIn(says, text)
                self.assertIn("--migrate", text)
        for user, says in ((pg.USER, "rollup-database: login postgres is a superuser"), (pg.DAEMON, "rollup-database: login tollgate may not write")):
            with self.subTest(rollup=user):
                self.assertIn(says, self.start(s.conninfo(), "--rollup-database", s.conninfo(user)))


class Migrating(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster(copied=False))
        cls.count = 0

    def migrate(self, user, database, *options):
        return subprocess.run([program("tollgate-aggregator"), "--migrate", "--database", self.cluster.conninfo(database, user), *options], capture_output=True, text=True)

    def test_an_owner_without_other_rights_is_told_the_statements_and_then_migrates(self):
        c = self.cluster
        c.query("create role keeper login; create database kept owner keeper")
        roles = ("--daemon-role", "kept_daemon", "--rollup-role", "kept_rollup")
        done = self.migrate("keeper", "kept", *roles)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("CREATE ROLE kept_daemon LOGIN", done.stderr)
        c.query("create role kept_daemon login; create role kept_rollup login")
        for _ in range(2):
            done = self.migrate("keeper", "kept", *roles)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(c.query("select distinct relowner::regrole::text from pg_class where relnamespace = 'tollgate'::regnamespace", "kept"), [["keeper"]])
        self.assertEqual(c.value("select has_table_privilege('kept_daemon', 'tollgate.charge_day', 'insert') or not has_table_privilege('kept_rollup', 'tollgate.charge_day', 'insert')", "kept"), "f")

    def test_an_owner_who_may_make_roles_makes_them(self):
        c = self.cluster
        c.query("create role maker login createrole; create database made owner maker")
        done = self.migrate("maker", "made", "--daemon-role", "made_daemon", "--rollup-role", "made_rollup")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(c.value("select count(*) from pg_roles where rolname in ('made_daemon', 'made_rollup') and rolcanlogin and not rolsuper"), "2")

    def test_a_schema_of_somebody_else_is_handed_over_by_a_superuser_and_refused_to_others(self):
        c = self.cluster
        c.query("create role first_owner login createrole; create role second_owner login createrole; create database moved owner first_owner; grant create on database moved to second_owner")
        self.assertEqual(self.migrate("first_owner", "moved").returncode, 0)
        done = self.migrate("second_owner", "moved")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("schema tollgate belongs to first_owner", done.stderr)
        done = self.migrate(pg.USER, "moved")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(c.query("select distinct relowner::regrole::text from pg_class where relnamespace = 'tollgate'::regnamespace", "moved"), [["tollgate_owner"]])

    def test_a_superuser_or_the_owner_cannot_be_the_daemons_role(self):
        c = self.cluster
        c.query("create role boss login createrole; create database bossy owner boss; create role friend login in role boss")
        for role, says in (("boss", "is the owner of the schema"), ("friend", "is the owner of the schema, or a member"), (pg.USER, "is a superuser")):
            with self.subTest(role=role):
                done = self.migrate("boss", "bossy", "--daemon-role", role)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(says, done.stderr)
        done = self.migrate("boss", "bossy", "--daemon-role", "same", "--rollup-role", "same")
        self.assertIn("a login of its own", done.stderr)


class Closing(unittest.TestCase):
    """The month before this one, with everything in it. The tests are numbered because it is closed once: by the last."""

    @classmethod
    def setUpClass(cls):
        cls.s = s = cls.enterClassContext(Stack(zone=sums.ZONE, options=["--rollup-interval", "100ms"]))
        s.apply(sums.policy(sums.rfc3339(int(sums.BEFORE.timestamp()) * sums.NS), True))
        s.apply(sums.policy(sums.rfc3339(sums.END), False))
        for node in ("n1", "n3"):
            s.token(node, role="node", node=node)
            reply = s.call("POST", "/v1/ingest", ledger.frames(sums.batches(node, sums.START - 8 * sums.HOUR, 8)), role=node)
            assert reply.status == 200 and reply.json()["quarantined"] == 0, reply.text()
        cls.month, cls.reason = sums.CLOSED, {"reason": "n2 has not been heard of"}
        wait_for("the days of the month to be folded", lambda: s.sql(
            "select bool_and(not b.dirty) and not exists (select from node_hour h where h.sealed_at is null or h.dirty) from billing_day b join period p "
            f"on b.starts_at >= p.starts_at and b.starts_at < p.ends_at where p.month = '{cls.month}'") == [["t"]], s.aggregator)  # fmt: skip

    def status(self):
        return self.s.sql(f"select status, (select count(*) from invoice) from period where month = '{self.month}'")[0]

    @contextlib.contextmanager
    def locked(self, table, mode):
        """Whoever wants that table has to wait here."""
        with subprocess.Popen([os.path.join(self.s.pg.bin, "psql"), "-X", "-q", "-d", self.s.pg.conninfo("tollgate")],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as psql:  # fmt: skip
            psql.stdin.write(f"begin; lock table tollgate.{table} in {mode} mode;\n\\echo locked\n")
            psql.stdin.flush()
            self.assertEqual(psql.stdout.readline(), "locked\n")
            yield
            psql.communicate("rollback;\n")

    def ask(self):
        reply = self.s.call("POST", f"/v1/periods/{self.month}/close", json.dumps(self.reason).encode())
        self.assertEqual(reply.status, 202, reply.text())
        self.assertEqual((reply.json()["state"], reply.json()["period"]), ("running", self.month))

    def documents_locked(self):
        """What is written for the month waits."""
        return self.locked("invoice_document", "share")

    def wait_blocked(self, table):
        sql = f"select count(*) from pg_locks join pg_stat_activity using (pid) where not granted and relation = 'tollgate.{table}'::regclass and usename = 'tollgate_rollup'"
        wait_for(f"the close to want {table}", lambda: self.s.sql(sql) != [["0"]], self.s.aggregator)

    def wait_writing(self):
        self.wait_blocked("invoice_document")

    def test_1_what_stands_against_it_is_told_at_once(self):
        reply = self.s.call("POST", f"/v1/periods/{sums.MONTH}/close", b"{}")
        self.assertEqual(reply.status, 409, reply.text())
        self.assertIn("earlier-open", reply.text())
        self.assertEqual(self.s.call("GET", f"/v1/periods/{self.month}/close").status, 404)
        self.assertEqual(self.s.call("DELETE", f"/v1/periods/{self.month}/close").status, 409)

    def test_2_a_month_that_is_not_what_its_batches_say_is_refused(self):
        """REVIEW A2: hours of one tenant become those of another, by somebody with a superuser's rights."""
        s = self.s
        moved = "(select id from workspace where name = '{}')"
        rows = f"day in (select b.day from billing_day b, period p where b.starts_at >= p.starts_at and b.starts_at < p.ends_at and p.month = '{self.month}')"
        self.addCleanup(s.sql, "delete from charge_day; insert into charge_day select * from public.before; drop table public.before")
        s.sql("create table public.before as select * from charge_day; "
              f"update charge_day set used = used + 504000000000000 where {rows} and class = 'on-demand' and workspace_id = {moved.format('research')}; "
              f"update charge_day set used = used - 504000000000000 where {rows} and class = 'on-demand' and workspace_id = {moved.format('own')}")  # fmt: skip
        done = s.cli("close", self.month, "--yes", "--reason", "tampered")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("it is not what its batches say", done.stderr)
        self.assertNotEqual(self.status()[0], "closed")
        job = s.get(f"/v1/periods/{self.month}/close").json()
        self.assertEqual((job["state"], job["stage"]), ("refused", "prove"))
        self.assertGreaterEqual(job["proof"]["differences"], 2)
        self.assertEqual(sorted((d["kind"], d["difference"]) for d in job["differences"]), [("charge-changed", "-504000000000000"), ("charge-changed", "504000000000000")])
        self.assertEqual(s.sql("select count(*) from audit_log where action = 'period.close-refused'"), [["1"]])

    def refused(self, change, mend, *words):
        """By a superuser, with triggers off: the close ends with 1 and says so, nothing is billed."""
        off = "set session_replication_role = replica; "
        self.s.sql(off + change)
        try:
            done = self.s.cli("close", self.month, "--yes", "--reason", "tampered")
        finally:
            self.s.sql(off + mend)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertNotEqual(self.status()[0], "closed")
        self.assertEqual(self.status()[1], "0")

    def test_2a_a_journal_that_was_rewritten_refuses_the_close(self):
        wait_for("the journal to be sealed", lambda: self.s.sql("select count(*) from row_journal where seq = 1") == [["1"]], self.s.aggregator)
        self.refused("update row_journal set at = at + interval '1 second' where seq = 1", "update row_journal set at = at - interval '1 second' where seq = 1", "in 1 places")

    def test_2b_evidence_that_is_said_to_be_gone_refuses_the_close(self):
        self.refused("update ledger set evidence_from_ns = (select ns_of(max(ends_at)) from period)", "update ledger set evidence_from_ns = 0", "cannot be closed")
        with self.assertRaisesRegex(Exception, "batches are given up to the end of a closed month"):
            self.s.sql("update ledger set evidence_from_ns = (select ns_of(max(ends_at)) from period)")

    def test_2c_hours_that_are_said_to_be_on_their_way_refuse_the_close(self):
        self.refused("update node_hour set retired = true, changes = changes + 1", "update node_hour set retired = false, changes = changes - 1", "cannot be closed")

    def meddle(self, statements):
        """With a trigger `sly` of a superuser's on close_job; charges and the rest are put back afterwards."""
        self.addCleanup(self.s.sql, "drop trigger sly on close_job; drop function public.sly(); delete from charge_day; insert into charge_day select * from public.before; drop table public.before")
        self.s.sql("create table public.before as select * from charge_day; " + statements)

    def test_2d_what_changes_between_the_proof_and_the_close_is_proved_again(self):
        self.s.sql("create table public.before as select * from charge_day")
        self.addCleanup(self.s.sql, "delete from charge_day; insert into charge_day select * from public.before; drop table public.before")
        with self.locked("audit_seal", "access exclusive"):  # the last thing that a proof reads
            self.ask()
            self.wait_blocked("audit_seal")
            self.s.sql("update charge_day set used = used + 504000000000000 where class = 'on-demand'")
        job = self.s.close_ended(self.month)
        self.assertEqual(job["state"], "refused", job)
        self.assertIn("it is not what its batches say", job["error"])
        self.assertEqual(self.status()[1], "0")
        self.assertGreaterEqual(job["attempts"], 2)

    def test_2e_nobodys_word_for_a_proof_is_taken(self):
        self.meddle("update charge_day set used = used + 504000000000000 where class = 'on-demand'; "
                   "create function public.sly() returns trigger language plpgsql as $$ begin new.stage := 'write'; return new; end $$; "
                   "create trigger sly before insert or update on close_job for each row when (new.stage = 'prove') execute function public.sly()")  # fmt: skip
        done = self.s.cli("close", self.month, "--yes", "--reason", "skipped")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("it is not what its batches say", done.stderr)

    def test_2f_a_schema_that_was_changed_refuses_the_close(self):
        self.s.sql("alter table invoice_line disable trigger closed_is_final")
        self.addCleanup(self.s.sql, "alter table invoice_line enable trigger closed_is_final")
        done = self.s.cli("close", self.month, "--yes", "--reason", "a trigger is off")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("the schema of the database is not the one that this version makes, in 1 places", done.stderr)
        self.assertEqual(self.status()[1], "0")
        [found] = self.s.get(f"/v1/periods/{self.month}/close").json()["differences"]
        self.assertEqual((found["what"], found["expected"], found["found"]), ("trigger tollgate.invoice_line closed_is_final", "enabled", "disabled"))

    def test_3_a_close_that_is_cancelled_leaves_nothing(self):
        with self.documents_locked():
            self.ask()
            self.wait_writing()
            # The command finds it running, follows it, and leaves it running.
            token = os.path.join(self.s.dir, "closing.cli-token")
            with open(token, "w", encoding="ascii") as f:
                f.write(self.s.tokens["admin"])
            env = {**os.environ, "TOLLGATE_URL": self.s.url, "TOLLGATE_TOKEN_FILE": token}
            asked = len(self.s.words_of("a period is to be closed"))
            with subprocess.Popen([program("tollgate"), "close", self.month, "--yes", "--reason", "again"], stderr=subprocess.PIPE, text=True, env=env) as cli:
                wait_for("the command to ask", lambda: len(self.s.words_of("a period is to be closed")) > asked, self.s.aggregator)
                cli.send_signal(signal.SIGINT)
                self.assertEqual(cli.wait(WAIT_S), 1)
                self.assertIn(f"tollgate close {self.month} --status", cli.stderr.read())
            # An attempt whose lock was not given in time begins again with the proof.
            wait_for("the stage", lambda: self.s.get(f"/v1/periods/{self.month}/close").json()["stage"] == "write", self.s.aggregator)
            job = self.s.get(f"/v1/periods/{self.month}/close").json()
            self.assertEqual((job["state"], job["proof"]["differences"]), ("running", 0))
            self.assertGreater(job["proof"]["batches"], 0)
            reply = self.s.call("DELETE", f"/v1/periods/{self.month}/close")
            self.assertEqual((reply.status, reply.json()["state"]), (200, "cancelled"))
        wait_for("the work to end", lambda: self.s.sql("select count(*) from pg_locks where locktype = 'advisory' and classid = 1953459308 and mode = 'ExclusiveLock' and "
                 "pid in (select pid from pg_stat_activity where application_name = 'tollgate-aggregator close')") == [["0"]], self.s.aggregator)  # fmt: skip
        self.assertEqual(self.status()[1], "0")
        self.assertNotEqual(self.status()[0], "closed")
        self.assertEqual(self.s.get(f"/v1/periods/{self.month}/close").json()["state"], "cancelled")

    def test_4_a_close_that_is_killed_goes_on(self):
        s = self.s
        with self.documents_locked():
            self.ask()
            self.wait_writing()
            s.aggregator.child.send_signal(signal.SIGKILL)
            s.aggregator.child.wait()
        s.restart_aggregator()
        job = s.close_ended(self.month)
        self.assertEqual((job["state"], job["stage"]), ("closed", "done"), job)
        self.assertGreaterEqual(job["attempts"], 2)
        self.assertEqual(self.status()[0], "closed")
        self.assertEqual(s.sql("select count(*), count(distinct closed_in) from invoice"), [[str(job["closed"]["invoices"]), "1"]])
        again = s.cli("close", self.month, "--yes", "--reason", "once more")
        self.assertEqual(again.returncode, 1)
        self.assertIn("is closed", again.stderr)
        shown = s.cli("close", self.month, "--status", "--out", "json")
        self.assertEqual((shown.returncode, json.loads(shown.stdout)["state"]), (0, "closed"))
        proof = s.cli("report", self.month, "--recompute", "--out", "json")
        self.assertEqual((proof.returncode, json.loads(proof.stdout)["identical"]), (0, True), proof.stderr)


if __name__ == "__main__":
    unittest.main()
