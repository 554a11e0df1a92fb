"""A session of psql that stays open between statements: for tests of what happens while somebody holds a lock."""

import contextlib
import os
import subprocess

DONE = "-- done --"


class Session(contextlib.AbstractContextManager):
    def __init__(self, cluster, database="tollgate"):
        self.child = subprocess.Popen(
            [os.path.join(cluster.bin, "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", cluster.conninfo(database)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PGOPTIONS": "-c search_path=tollgate,public -c timezone=UTC"})  # fmt: skip

    def __exit__(self, *exc):
        self.child.stdin.close()
        self.child.wait()
        self.child.stdout.close()

    def run(self, statement):
        """Returns when it is done, with its lines of output."""
        self.child.stdin.write(f"{statement};\n\\echo {DONE}\n")
        self.child.stdin.flush()
        lines = []
        for line in self.child.stdout:
            if line.strip() == DONE:
                return lines
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"psql ended: {lines}")
