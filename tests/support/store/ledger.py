"""A ledger for tests of the store: a database of a private cluster, reached through store_tool and batch_tool.

    led = Ledger(cluster, "name")
    led.ingest([batch, ...])           # one call; a batch is a dict as batch_tool reads it
    led.apply(policy_text)
    led.rollup()
    led.rows("select ...")

Time is the test's: `now` is an attribute in nanoseconds, and every call gets it."""

import json
import os
import subprocess
import tempfile

from tests.support.daemons import pg

NS = 1_000_000_000
HOUR = 3600 * NS
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BUILD = os.environ.get("TOLLGATE_BUILD_DIR") or os.path.join(ROOT, "build", "release")


# Commands of store_tool that are the roll-up's; migrating is the superuser's, and all others the daemon's.
ROLLUP = {"rollup", "slice", "fold", "retain", "close", "schedule"}
HELD_COLUMNS = tuple(f"column tollgate.node.{c}" for c in ("held", "approved_at", "approved_by"))


class StoreError(Exception):
    def __init__(self, kind, text):
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


def frames(batches):
    """The bytes of a push."""
    with tempfile.TemporaryDirectory(prefix="tollgate-frames-") as d:
        source, target = os.path.join(d, "in.json"), os.path.join(d, "out")
        with open(source, "w", encoding="utf-8") as f:
            json.dump({"batches": batches}, f)
        subprocess.run([os.path.join(BUILD, "tests", "batch_tool"), source, target], check=True)
        with open(target, "rb") as f:
            return f.read()


def each_frame(batches):
    """The frames of sound batches one by one: any concatenation of them is a push."""
    data, out = frames(batches), []
    while data:
        end = 8 + int.from_bytes(data[:4], "little")
        out.append(data[:end])
        data = data[end:]
    return out


class Ledger:
    def __init__(self, cluster, name, now=0, demo=True, zone="UTC"):
        self.cluster, self.name, self.now = cluster, name, now
        self.grace = HOUR // 12
        self.closed_by_hand = False
        self.slices = []  # --slice and nanoseconds: as ingest stores them, 0 for none
        self.dir = cluster.private_dir(name)
        # The first ledger of a kind is migrated; the others are copies of what it was then.
        template = pg.ledger_name(zone, demo)
        if template not in cluster.names:
            cluster.create_database(template)
            self.name = template
            self.run("migrate", "--zone", zone, *(["--demo", "1"] if demo else []))
            self.name = name
        cluster.create_database(name, template)
        self.held(False)

    def login(self, command):
        """The connection string of whoever does that in the programs."""
        if command == "migrate" or not pg.has_logins(BUILD):
            return self.cluster.conninfo(self.name)
        return self.cluster.conninfo(self.name, pg.ROLLUP if command in ROLLUP else pg.DAEMON)

    def held(self, held):
        """Whether nodes that nobody has approved are held, as in the product; here they are approved at first sight unless a test asks."""
        if self.rows("select 1 from information_schema.columns where table_schema = 'tollgate' and table_name = 'node' and column_name = 'held'"):
            self.rows(
                f"alter table tollgate.node alter held set default {str(held).lower()}, alter approved_at set default {'null' if held else 'now()'}, "
                f"alter approved_by set default {'null' if held else chr(39) + 'test' + chr(39)}"
            )

    def tool(self, *args, conninfo=None):
        return subprocess.run(
            [os.path.join(BUILD, "tests", "store_tool"), conninfo or self.login(args[0]), *map(str, args)],
            capture_output=True,
            text=True,
        )

    def text(self, *args):
        done = self.tool(*args)
        if done.returncode == 1:
            problem = json.loads(done.stdout.splitlines()[-1])
            raise StoreError(problem["error"], problem["text"])
        if done.returncode != 0:
            raise AssertionError(f"store_tool {args} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def run(self, *args):
        return json.loads(self.text(*args))

    def file(self, data, name="file"):
        path = os.path.join(self.dir, name)
        with open(path, "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return path

    def ingest(self, batches, node=None, clock=None):
        """One call with these batches, or with these bytes. The result as a dict; "ok" says whether it was taken."""
        data = batches if isinstance(batches, bytes) else frames(batches)
        said = [*(["--node", node] if node else []), *(["--clock", clock] if clock is not None else [])]
        return self.run("ingest", "--now", self.now, *self.slices, *said, self.file(data, "push"))

    def ingest_many(self, pushes):
        """Several calls in one process."""
        paths = [self.file(p if isinstance(p, bytes) else frames(p), f"push-{i}") for i, p in enumerate(pushes)]
        return [json.loads(line) for line in self.text("ingest", "--now", self.now, *self.slices, *paths).splitlines()]

    def quarantine(self, decision=None, node=None):
        """The batches in quarantine, oldest first."""
        asked = [*(["--decision", decision] if decision else []), *(["--node", node] if node else [])]
        return self.run("quarantine", *asked)["batches"][::-1]

    def release(self, batch, why="the clock was set"):
        return self.run("release", "--now", self.now, "--why", why, *self.gpu_of(batch), batch["stream"], batch["seq"])

    def gpu_of(self, batch):
        return ["--gpu", batch["gpu"]] if batch.get("gpu") else []

    def move(self, gpu, node, at=None):
        """As an operator."""
        return self.run("move", "--now", at or self.now, gpu, node)

    def discard(self, batch, why="a broken node"):
        return self.run("discard", "--now", self.now, "--why", why, *self.gpu_of(batch), batch["stream"], batch["seq"])

    def apply(self, policy, dry_run=False, tenant=None):
        """As an operator, or the part of a tenant as its administrator."""
        options = (["--dry-run", "1"] if dry_run else []) + (["--tenant", tenant] if tenant else [])
        return self.run("apply", "--now", self.now, *options, self.file(policy, "policy"))

    def rollup(self, limit=100000):
        return self.run("rollup", "--now", self.now, "--grace", self.grace, "--limit", limit)

    def slice(self):
        return self.run("slice")["sliced"]

    def fold(self):
        return self.run("fold", "--now", self.now)["folded"]

    def retain(self, intervals=0, batches=0, hours=0):
        return self.run("retain", "--now", self.now, "--intervals", intervals, "--batches", batches, "--hours", hours)

    def close(self, month, reason=None, now=None):
        return self.run("close", "--now", now or self.now, *(["--reason", reason] if reason else []), month)["closed"]

    def close_by_hand(self, month):
        """Closed, with nothing in it."""
        self.closed_by_hand = True
        self.rows(
            f"insert into period_close values ('{month}', '2027-01-01', 'test', '', '[]', '{{}}', sha256(''), sha256(''), sha256('')); "
            f"update period set status = 'closed', closed_at = '2027-01-01' where month = '{month}'"
        )

    def close_check(self, month):
        """What stands against closing: check -> number."""
        reply = self.run("close-check", "--now", self.now, month)
        return {c["check"]: c["number"] for c in reply["checks"] if not c["ok"]}

    def bill(self, month, tenant=None, json_form=False):
        """The month's CSV or JSON: as it was stored, or with corrections while it is open."""
        return self.text("bill", *(["--tenant", tenant] if tenant else []), "--format", "json" if json_form else "csv", month)

    def document(self, month, tenant, name, manifest=False, organisation="Example Inc."):
        """A document of the month in bytes, or its manifest."""
        options = [*(["--tenant", tenant] if tenant else []), *(["--manifest", "1"] if manifest else [])]
        argv = [os.path.join(BUILD, "tests", "store_tool"), self.login("bill"), "bill", *options]
        return subprocess.run([*argv, "--format", name, "--organisation", organisation, month], capture_output=True, check=True).stdout

    def usage(self, start, end, by="", tenant=None):
        extra = ["--tenant", tenant] if tenant else []
        return self.run("usage", "--from", start, "--to", end, "--by", by, *extra)["groups"]

    def conservation(self, start, end):
        return self.run("conservation", "--from", start, "--to", end)["gpus"]

    def verify(self, start, end, node=None):
        reply = self.run("verify", "--from", start, "--to", end, *(["--node", node] if node else []))
        own = [d for d in reply["differences"] if d["kind"] == "schema" and d["what"] in HELD_COLUMNS]  # see held()
        return {**reply, "differences": [d for d in reply["differences"] if d not in own], "count": reply["count"] - len(own)}

    def assert_sound(self):
        """Whatever a test did to it through the store, the ledger says what its evidence says."""
        reply = self.verify(self.now - 1000 * HOUR, self.now + 1000 * HOUR)
        # A month that a test closed by hand has no record in the audit log, and nothing was billed of it.
        found = [d for d in reply["differences"] if not (self.closed_by_hand and d["kind"] in ("close", "line-rated", "row-unaudited"))]
        if found:
            raise AssertionError(f"{len(found)} differences, the first: {found[:3]}")

    def rows(self, statement):
        return self.cluster.query(statement, self.name)

    def declare(self, statement, action="policy.apply"):
        """A change of what people decide, with its entry in the audit log: without one verify calls it unaudited."""
        return self.rows(f"begin; insert into audit_log (actor, action, subject) values ('test', '{action}', 'a test'); {statement}; commit")

    def value(self, statement):
        return self.rows(statement)[0][0]
