"""What a fresh ledger's schema is, by sql/access/catalogue.sql. `make schema` writes sql/access/expected.txt from it: python3 -m tests.support.schema"""

import functools
import os
import subprocess

from tests.support import pg
from tests.support.ledger import ROOT
from tests.support.stack import program

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


if __name__ == "__main__":
    with pg.Cluster(copied=False) as c:
        print(fresh(c), end="")
