"""A ledger of version 0.1, which was never released, is refused in one sentence, and nothing in it changes."""

import gzip
import os
import subprocess
import unittest

from tests.support.daemons import pg
from tests.support.daemons.stack import ROOT, free_port, program

DUMP = os.path.join(ROOT, "tests", "golden", "upgrade", "ledger-0.1.0.sql.gz")
SENTENCE = (
    "this ledger was made by a version before 0.2 and cannot be upgraded: keep this database if you need its figures, create an empty one, "
    "and run tollgate-aggregator --migrate there"
)


class OldLedger(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = c = cls.enterClassContext(pg.Cluster())
        c.create_database("new")  # it makes the logins
        done = cls.aggregator("--migrate", "--database", c.conninfo("new"))
        assert done.returncode == 0, done.stderr
        c.create_database("old")
        argv = [os.path.join(c.bin, "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", os.devnull, "-d", c.conninfo("old")]
        with gzip.open(DUMP) as dump:
            subprocess.run(argv, input=b"create extension btree_gist;" + dump.read(), check=True)
        cls.before = cls.dump()

    @classmethod
    def dump(cls):
        done = subprocess.run([os.path.join(cls.c.bin, "pg_dump"), "-d", cls.c.conninfo("old")], check=True, capture_output=True)
        return [line for line in done.stdout.splitlines() if not line.startswith((b"\\restrict", b"\\unrestrict"))]

    @staticmethod
    def aggregator(*args):
        return subprocess.run([program("tollgate-aggregator"), *args], capture_output=True, text=True, timeout=120)

    def refused(self, *args):
        done = self.aggregator(*args)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(SENTENCE, done.stderr)
        self.assertEqual(self.dump(), self.before)

    def test_the_dump_is_of_the_old_chain(self):
        self.assertEqual(self.c.query("select count(*), min(name) filter (where number = 3) from tollgate.schema_migration", "old"), [["32", "0003_billing.sql"]])

    def test_migrate_refuses_it_and_changes_nothing(self):
        self.refused("--migrate", "--database", self.c.conninfo("old"))

    def test_migrate_refuses_it_by_the_owner_too(self):
        self.c.query("alter role tollgate_owner login")
        self.refused("--migrate", "--database", self.c.conninfo("old", "tollgate_owner"))

    def test_a_login_that_may_read_nothing_of_it_hears_the_same(self):
        self.c.query("create role stranger login")
        self.assertEqual(self.c.query("select has_schema_privilege('stranger', 'tollgate', 'USAGE')", "old"), [["f"]])
        self.refused("--migrate", "--database", self.c.conninfo("old", "stranger"))
        self.refused("--listen", f"127.0.0.1:{free_port()}", "--demo", "--database", self.c.conninfo("old", "stranger"), "--rollup-database", self.c.conninfo("old", "stranger"))

    def test_the_daemon_does_not_start_with_it(self):
        self.refused("--listen", f"127.0.0.1:{free_port()}", "--demo", "--database", self.c.conninfo("old", pg.DAEMON), "--rollup-database", self.c.conninfo("old", pg.ROLLUP))


if __name__ == "__main__":
    unittest.main()
