"""What a fresh ledger's schema is, by sql/access/catalogue.sql. `make schema` writes sql/access/expected.txt from it: python3 -m tests.support.store.schema"""

import functools
import os
import subprocess

from tests.support.daemons import pg
from tests.support.daemons.stack import program
from tests.support.store.ledger import ROOT

CATALOGUE = os.path.join(ROOT, "sql", "access", "catalogue.sql")
EXPECTED = os.path.join(ROOT, "sql", "access", "expected.txt")


def lines(cluster, database):
    """The lines of expected.txt, of a ledger that is migrated. One partition stands for all."""
    cluster.query("select make_partitions(1790000000000000000, 1790000000000000001)", database)
    with open(CATALOGUE, encoding="utf-8") as f:
        rows = cluster.query("set search_path = pg_catalog; " + f.read(), database)
    return "".join("\t".join(row[:4]) + "\n" for row in rows)


@functools.cache
def fresh(cluster):
    cluster.create_database("fresh")
    subprocess.run([program("tollgate-aggregator"), "--migrate", "--database", cluster.conninfo("fresh")], check=True, capture_output=True)
    return lines(cluster, "fresh")


def restored(cluster):
    """The same of a ledger that a backup was restored to: some definitions are printed otherwise then."""
    cluster.create_database("restored")
    dump = subprocess.run([os.path.join(cluster.bin, "pg_dump"), "-d", cluster.conninfo("fresh")], check=True, capture_output=True)
    subprocess.run([os.path.join(cluster.bin, "psql"), "-qv", "ON_ERROR_STOP=1", "-d", cluster.conninfo("restored")], input=dump.stdout, check=True, capture_output=True)
    return lines(cluster, "restored")


def expected(cluster):
    """What expected.txt must be: a fresh ledger, and behind a definition what a restored one prints in its place."""
    both = zip(fresh(cluster).splitlines(), restored(cluster).splitlines(), strict=True)
    pairs = [(a, *a.rsplit("\t", 1), *b.rsplit("\t", 1)) for a, b in both]
    assert all(names == others for _, names, _, others, _ in pairs), "a restored ledger has other objects"
    return "".join(f"{line}\n" if text == other else f"{line}\t{other}\n" for line, _, text, _, other in pairs)


if __name__ == "__main__":
    with pg.Cluster(copied=False) as c:
        print(expected(c), end="")
