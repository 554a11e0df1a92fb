"""Every command of the command line in every form of output, on a ledger with everything in it and on an empty one; and every command that a document prints."""
# memcheck

import collections
import csv
import functools
import glob
import io
import json
import os
import re
import shlex
import subprocess
import time
import unittest

import yaml

from tests.integration import test_sums
from tests.integration.test_live import gpu, status
from tests.integration.test_sums import CLOSED, END, MONTH, START, rfc3339
from tests.support.daemons.stack import ROOT, Stack, program, wait_for
from tests.support.fleet.fleet import HOUR, MINUTE, NS
from tests.support.store.ledger import frames

SCENARIO = """
version: 1
nodes: [{name: n1, tenant: acme, gpus: 2}]
tenants: [{name: acme, workspaces: [{name: a, limit: 1}]}]
requests: [{id: one, workspace: acme/a, gpus: 1}, {id: two, workspace: acme/a, gpus: 1}]
"""
# Beside what test_sums declares: a tenant whose workspaces borrow of each other on nodes that speak, and shared GPUs.
QUOTA = """
  - name: lab
    auto_approve: {max: 1, for: 24h}
    budget: {amount: "100.00", currency: EUR, kind: soft}
    workspaces:
      - {name: prod, reserved: {H100-80GB: 4}, limit: {H100-80GB: 4}, rules: [{namespace: prod}]}
      - {name: batch, reserved: {H100-80GB: 2}, limit: {H100-80GB: 6}, rules: [{namespace: batch}]}
      - {name: notebooks, limit: {L40S: 1}, rules: [{namespace: notebooks}]}
"""
RETIRED = "  - {name: gone, workspaces: [{name: w, rules: [{namespace: gone}]}]}\n"
NODES = "nodes: [{name: q1, tenant: lab, model: H100-80GB, gpus: 8}, {name: q2, tenant: lab, model: L40S, gpus: 1}, "
EVENT = {"specversion": "1.0", "source": "/test", "type": "tollgate.inference.v1",
         "data": {"tenant": "acme", "workspace": "training", "sku": "m", "model": "m", "requests": 10, "input_tokens": 1000, "output_tokens": 2000}}  # fmt: skip


def policy(more=""):
    text = test_sums.policy(rfc3339(END), False, name="Renamed GmbH").replace(f"effective: {rfc3339(END)}\n", "")
    return text.replace("nodes: [", more + QUOTA + NODES)


class Full:
    """A month that is closed and corrected, charges of every meter, credits and a reversal, refunds; then leases, a reclaim, exceptions, batches in quarantine and a
    tenant that is retired."""

    empty = False

    def __init__(self):
        self.sums = type("Ledger", (test_sums.Sums,), {})  # not a name of this module: its tests run in their own file
        self.sums.setUpClass()
        self.s = s = self.sums.s
        self.made = collections.Counter()
        s.token("billing", role="billing")
        s.apply(policy(RETIRED))
        s.apply(policy())
        s.token("dev", role="developer", tenant="lab")
        for node in ("q1", "q2", "stray"):
            s.token(node, role="node", node=node)
        for node, gpus in (("q1", [gpu("q1", i) for i in range(8)]), ("q2", [gpu("q2", 0, model="NVIDIA L40S", sharing="timeslice", replicas=4)])):
            reply = s.call("POST", "/v1/status", json.dumps(status(node, gpus)).encode(), node)
            assert reply.status == 200, reply.text()
        wait_for("the book of quota", lambda: sum(p["live_units"] for p in s.get("/v1/quota").json()["pools"]) == 9 * 5040, s.aggregator)
        for workspace, gpus, name, decision in (("batch", 6, "borrower", "borrow"), ("prod", 4, "owner", "reclaim"), ("prod", 1, "waits", "queue")):
            what = {"request_id": name, "workspace": f"lab/{workspace}", "gpus": gpus, "gpu_model": "H100-80GB", "preemptible": True}
            reply = s.call("POST", "/v1/decisions", json.dumps(what).encode())
            assert reply.json().get("decision") == decision, reply.text()
        confirmed = s.call("POST", "/v1/leases/borrower/confirm", b"{}")
        assert confirmed.status == 200, confirmed.text()
        self.stray()
        for seq in range(40):
            self.one_batch(seq + 1)
        self.stream = self.cli_json("quarantine", "list", "--node", "n5")[0]["stream"]
        self.credit_id = self.credit()
        self.cli_json("credit", "reverse", str(self.credit()), "--reason", "entered twice")
        self.refund = s.get(f"/v1/refunds?month={MONTH}").json()["refunds"][0]
        self.exception()
        self.exception(gpus=1)
        usage = [r for r in self.sums.rows if r["charge_type"] == "usage" and r["category"] == "gpu" and not r["correction_of"]]
        self.line_id = max(usage, key=lambda r: float(r["quantity"]))["line_id"]  # nothing that is done here takes all of that away

    def close(self):
        self.sums.doClassCleanups()

    def cli_json(self, *args):
        done = self.s.cli(*args, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def stray(self):
        """A node that no policy declares."""
        batch = {**test_sums.batches("n5", time.time_ns() // HOUR * HOUR - HOUR, 1)[0], "node": "stray", "devices": [{"id": 1, "uuid": "GPU-stray", "model": test_sums.A100, "index": 0}]}
        reply = self.s.call("POST", "/v1/ingest", frames([batch]), "stray")
        assert reply.status == 200, reply.text()

    def one_batch(self, seq):
        """A batch of a new stream whose node has a wrong clock: it waits in quarantine."""
        at = START + 9 * HOUR + seq * MINUTE
        batch = {**test_sums.batches("n5", at, 1)[0], "epoch": 9, "seq": seq, "to_ns": at + MINUTE}
        batch["records"] = [[1, 1, 1, 1, 1, 5040, at, MINUTE, MINUTE, 0, 0, 0, 0, 0, 1]]
        reply = self.s.call("POST", "/v1/ingest", frames([batch]), "n5", {"Tollgate-Clock": str(time.time_ns() + 600 * NS)})
        assert reply.status == 200 and reply.json()["quarantined"] == 1, reply.text()

    # what a command changes is new for each time that it runs

    def next(self, what):
        self.made[what] += 1
        return self.made[what]

    def quarantined(self):
        return [str(self.stream), str(self.next("batch"))]

    def credit(self, role="admin"):
        what = {"tenant": "acme", "amount": "-3.00", "currency": "EUR", "reason": "a test"}
        return str(self.s.call("POST", "/v1/adjustments", json.dumps(what).encode(), role).json()["id"])

    def exception(self, gpus=9):
        what = {"workspace": "lab/notebooks", "gpu_model": "L40S", "gpus": gpus, "until": "8h", "reason": "a deadline"}
        return str(self.s.call("POST", "/v1/exceptions", json.dumps(what).encode(), "dev").json()["id"])

    def lease(self):
        what = {"request_id": f"job-{self.next('lease')}", "workspace": "lab/notebooks", "gpu_model": "L40S", "replicas": 1, "of": 4}
        return self.s.call("POST", "/v1/adopt", json.dumps(what).encode()).json()["request_id"]

    def waiting(self):
        what = {"request_id": f"later-{self.next('waiting')}", "workspace": "lab/prod", "gpu_model": "H100-80GB", "gpus": 1}
        reply = self.s.call("POST", "/v1/decisions", json.dumps(what).encode()).json()
        assert reply["status"] == "waiting", reply
        return "lab/" + reply["request_id"]

    def token(self, path="/v1/tokens", **what):
        return str(self.s.call("POST", path, json.dumps(what).encode()).json()["id"])


class Empty:
    """A ledger that was made, and nothing more: what is named is not there."""

    empty = True
    line_id, refund = "0" * 32, {"id": "0" * 16, "charged": "1.00"}

    def __init__(self):
        self.s = Stack()
        self.s.__enter__()

    def close(self):
        self.s.close()

    def next(self, what):
        return 1

    def quarantined(self):
        return ["1", "1"]

    def credit(self, role=None):
        return "1"

    def exception(self):
        return "1"

    def lease(self):
        return "none"

    def waiting(self):
        return "lab/none"

    def token(self, path=None, **what):
        return "999999"


WHY = ["--reason", "a test"]
# Of each command: its words and options, the exit code on the ledger with everything, and on the empty one. None: 0 or 1; a code by form of output, else 0.
ROWS = {
    "apply": [(lambda w: ["-f", "policy.yaml", "--dry-run"], 0, 0), (lambda w: ["-f", "broken.yaml"], 1, 1), (lambda w: ["-f", "missing.yaml"], 1, 1)],
    "policy suggest": [(lambda w: [], 0, 0)],
    "price preview": [(lambda w: ["-f", "prices.yaml", "--month", "current"], 0, 1), (lambda w: ["-f", "prices.yaml"], 0, 1)],
    "report": [(lambda w: ["current"], 0, 1), (lambda w: ["previous"], 0, 1), (lambda w: [CLOSED, "--recompute"], 0, 1), (lambda w: [MONTH, "--detail", w.line_id], 0, 1)],
    "close": [(lambda w: [MONTH, "--check"], 1, 1), (lambda w: [CLOSED, "--status"], 0, 1), (lambda w: [CLOSED, "--yes"], 1, 1), (lambda w: ["soon"], 2, 2)],
    "usage": [(lambda w: ["--this-month", "--by", "tenant,workspace,gpu_model,state"], 0, 1), (lambda w: ["--exact"], 0, 0), (lambda w: ["--this-month", "--cost"], 0, 1), (lambda w: ["--cost", "--exact", "--by", "label:team,hour"], 0, 0)],
    "top": [(lambda w: ["--count", "2", "--interval", "1ms"], 0, 0)],
    "conservation": [(lambda w: ["--since", "40d"], 0, 0)],
    "verify": [(lambda w: ["--month", CLOSED], 0, 4), (lambda w: ["--node", "n1", "--since", "1h"], 4, 4)],
    "journal accept": [(lambda w: ["999999", *WHY], 1, 1)],
    "get": [(lambda w, name=name: [name], 0, 0) for name in ("tenants", "workspaces", "nodes", "status", "members", "history", "periods", "leases", "decisions", "reclaims")]
    + [(lambda w: ["sla"], 0, 1)]
    + [(lambda w: ["policy"], 0, 1), (lambda w: ["dragons"], 2, 2)],
    "node approve": [(lambda w: ["stray", *WHY], 0, 1)],
    "quarantine list": [(lambda w: [], 0, 0)],
    "quarantine show": [(lambda w: w.quarantined(), 0, 1)],
    "quarantine release": [(lambda w: [*w.quarantined(), *WHY], None, 1)],
    "quarantine discard": [(lambda w: [*w.quarantined(), *WHY], 0, 1)],
    "events send": [(lambda w: ["event.json"], 0, 1), (lambda w: ["broken.yaml"], 1, 1)],
    "events summary": [(lambda w: [], 0, 1)],
    "budget status": [(lambda w: [], 0, 1)],
    "reconcile": [(lambda w: [], 0, 1), (lambda w: ["--month", CLOSED], 1, 1)],
    "refunds": [(lambda w: ["--month", MONTH], 0, 1)],
    "credit add": [(lambda w: ["--tenant", "acme", "--amount", "-1.00", "--currency", "EUR", *WHY], 0, 1),
                   (lambda w: ["--tenant", "globex", "--amount", "-0.01", "--currency", "EUR", "--refund", w.refund["id"], *WHY], 0, 1)],
    "credit list": [(lambda w: [], 0, 0)],
    "credit approve": [(lambda w: [w.credit("billing"), *WHY], 0, 1)],
    "credit reverse": [(lambda w: [w.credit(), *WHY], 0, 1)],
    "quota status": [(lambda w: [], 0, 0)],
    "quota watch": [(lambda w: ["--count", "2", "--interval", "1ms"], 0, 0)],
    "quota decide": [(lambda w: ["lab/notebooks", "--replicas", "1", "--of", "4", "--gpu-model", "L40S", "--dry-run"], 0, 1),
                     (lambda w: ["lab/prod", "--gpus", "64", "--gpu-model", "H100-80GB"], 1, 1),
                     (lambda w: ["lab/prod", "--gpus", "one"], 2, 2)],
    "quota explain": [(lambda w: ["waits"], 0, 1), (lambda w: ["owner"], 0, 1)],
    "quota record": [(lambda w: [], 0, 0)],
    "quota simulate": [(lambda w: ["scenario.yaml"], 0, 0), (lambda w: ["scenario.yaml", "--explain"], {"json": 2}, {"json": 2}), (lambda w: ["broken.yaml"], 1, 1)],
    "lease list": [(lambda w: [], 0, 0), (lambda w: ["--status", "ended", "--limit", "2"], 0, 0)],
    "lease confirm": [(lambda w: [w.lease()], 0, 1), (lambda w: ["a?b"], 2, 2)],
    "lease heartbeat": [(lambda w: [w.lease()], 0, 1)],
    "lease release": [(lambda w: [w.lease()], 0, 1), (lambda w: [w.lease(), "--lost"], 0, 1)],
    "lease cancel": [(lambda w: [w.waiting()], 0, 1), (lambda w: [w.lease()], 1, 1)],
    "lease renew": [(lambda w: [w.lease()], 0, 1)],
    "exception request": [(lambda w: ["lab/notebooks", "--gpus", "1", "--gpu-model", "L40S", "--until", "1h", *WHY], 0, 1)],
    "exception list": [(lambda w: [], 0, 0)],
    "exception approve": [(lambda w: [w.exception(), *WHY], 0, 1)],
    "exception refuse": [(lambda w: [w.exception(), *WHY], 0, 1)],
    "exception revoke": [(lambda w: [w.exception(), *WHY], 0, 1)],
    "token create": [(lambda w: ["--role", "scheduler"], 0, 0)],
    "token list": [(lambda w: [], 0, 0)],
    "token revoke": [(lambda w: [w.token(role="scheduler")], 0, 1)],
    "token whoami": [(lambda w: [], 0, 0)],
    "node join-token": [(lambda w: [], 0, 0)],
    "node join-tokens": [(lambda w: [], 0, 0)],
    "node revoke-join-token": [(lambda w: [w.token("/v1/join-tokens")], 0, 1)],
    "gpu move": [(lambda w: ["GPU-n1-0", "n3", *WHY], 0, 1)],
    "audit": [(lambda w: [], 0, 0)],
    "doctor": [(lambda w: ["--server"], None, None)],
    "completion": [(lambda w: ["bash"], 0, 0), (lambda w: ["zsh"], 0, 0)],
}  # fmt: skip
DOCUMENTED = {0, 1, 2, 3, 4}


def says(*args):
    return subprocess.run([program("tollgate"), *args], capture_output=True, text=True, check=True).stdout


@functools.cache
def commands():
    """The names in the table: each stands after two spaces, and what is said of it on the same line from a column on, or below."""
    text = says("--help").split("Commands", 1)[1].split("\n\n", 1)[0]
    return [line[2:18].strip() if len(line) > 18 and line[18] == " " else line.strip() for line in text.splitlines()[1:] if re.match("  [a-z]", line)]


@functools.cache
def forms(command):
    """The values of --out that its help offers; one without the option has one form."""
    offered = re.search(r"-o, --out ([a-z|]+)", says(*command.split(), "--help"))
    return offered[1].split("|") if offered else [None]


def setUpModule():
    global full, empty, folder
    full = Full()
    unittest.addModuleCleanup(full.close)
    empty = Empty()
    unittest.addModuleCleanup(empty.close)
    folder = full.s.pg.private_dir("commands")
    files = {"policy.yaml": policy(), "broken.yaml": "version: 1\ntenants: [{nam: x}]\n", "scenario.yaml": SCENARIO, "prices.yaml": test_sums.PRICES,
             "event.json": json.dumps({**EVENT, "id": "smoke", "time": rfc3339(START + HOUR)})}  # fmt: skip
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)


def run(world, argv):
    token = os.path.join(folder, "admin.token")
    with open(token, "w", encoding="ascii") as f:
        f.write(world.s.tokens["admin"])
    env = {**os.environ, "TOLLGATE_URL": world.s.url, "TOLLGATE_TOKEN_FILE": token}
    return subprocess.run([program("tollgate"), *argv], capture_output=True, text=True, env=env, cwd=folder, stdin=subprocess.DEVNULL)


def parse_json(text):
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def wrong_with(form, done):
    """What is wrong with the output of a command that did what it was asked."""
    if not done.stdout:
        return "it printed nothing"
    try:
        if form == "json":
            parse_json(done.stdout)
        elif form == "yaml":
            list(yaml.safe_load_all(done.stdout))
        elif form == "csv":
            widths = {len(row) for row in csv.reader(io.StringIO(done.stdout, newline=""), strict=True)}
            if len(widths) != 1:
                return f"its CSV is of widths {widths}"
    except (ValueError, csv.Error, yaml.YAMLError) as error:
        return f"it is not {form}: {error}"
    if "(null)" in done.stdout:
        return "it printed (null)"
    return None


class EveryCommand(unittest.TestCase):
    def test_each_command_of_the_table_has_a_row_here(self):
        self.assertEqual(sorted(ROWS), sorted(commands()))

    def run_all(self, world, expected):
        for command, rows in ROWS.items():
            for form in forms(command):
                for row in rows:
                    argv = [*command.split(), *row[0](world), *(["-o", form] if form else [])]
                    with self.subTest(command=" ".join(argv)):
                        self.run_one(world, argv, form, row[expected])

    def run_one(self, world, argv, form, code):
        done = run(world, argv)
        said = f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        self.assertIn(done.returncode, DOCUMENTED, said)
        if code is not None:
            self.assertEqual(done.returncode, code.get(form, 0) if isinstance(code, dict) else code, said)
        if done.returncode == 0:
            self.assertIsNone(wrong_with(form, done), said)
        elif not done.stdout:
            self.assertRegex(done.stderr, r"\Atollgate: \S.*\n", said)
        for line in done.stderr.splitlines():
            self.assertNotRegex(line, r'\(null\)|: *$|""', said)

    def test_on_a_ledger_with_everything_in_it(self):
        self.run_all(full, 1)

    def test_on_an_empty_ledger(self):
        self.run_all(empty, 2)

    def test_the_ledger_has_everything_in_it(self):
        for statement in (
            f"select from adjustment_approval limit 1", "select from adjustment where reverses is not null", "select from adjustment where refund is not null",
            "select from exception where status = 'requested'", "select from exception where status = 'approved'", "select from tenants_known(now()) where name = 'gone' and until <= now()",
            f"select from period where month = '{CLOSED}' and status = 'closed'", "select from ingest_batch where status = 'quarantined'",
        ):  # fmt: skip
            with self.subTest(statement=statement):
                self.assertNotEqual(full.s.sql(f"select count(*) from ({statement}) x"), [["0"]])
        report = full.s.get(f"/v1/reports/{MONTH}.json").json()["lines"]
        self.assertTrue(any(line["correction_of"] for line in report))
        self.assertEqual({m["meter"] for m in full.s.get(f"/v1/events/summary?month={MONTH}").json()["meters"]},
                         {"storage", "egress", "inference-requests", "inference-input-tokens", "inference-output-tokens", "support"})  # fmt: skip
        for name in ("leases", "reclaims", "decisions"):
            self.assertTrue(full.s.get(f"/v1/{name}").json()[name], name)

    def test_yaml_and_json_are_the_same_values(self):
        for argv in (["get", "tenants"], ["get", "policy", "--tenant", "acme"], ["get", "nodes"], ["get", "status"], ["report", CLOSED], ["reconcile", "--month", CLOSED], ["get", "reclaims"]):
            with self.subTest(command=argv):
                said = yaml.safe_load(run(full, ["-o", "yaml", *argv]).stdout)
                if argv[1] == "policy":
                    self.assertEqual(said["version"], 1)
                else:
                    self.assertEqual(self.without_age(said), self.without_age(parse_json(run(full, ["-o", "json", *argv]).stdout)))

    def without_age(self, value):
        return [{k: v for k, v in row.items() if k != "age_seconds"} for row in value] if isinstance(value, list) else value

    def test_options_of_every_command_stand_before_it_or_behind_it(self):
        outside = {k: v for k, v in os.environ.items() if not k.startswith("TOLLGATE_")}
        token = os.path.join(folder, "before.token")
        with open(token, "w", encoding="ascii") as f:
            f.write(full.s.tokens["admin"])
        for argv in (["--url", full.s.url, "--token-file", token, "-o", "yaml", "get", "nodes"], ["get", "nodes", f"--url={full.s.url}", "--token-file", token, "-o", "yaml"],
                     [f"--url={full.s.url}", "get", "nodes", "-o", "yaml", "--token-file", token]):  # fmt: skip
            done = subprocess.run([program("tollgate"), *argv], capture_output=True, text=True, env=outside)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("q1", {row["name"] for row in yaml.safe_load(done.stdout)})

    def test_groups_and_commands_have_help(self):
        groups = {name.split()[0] for name in commands() if " " in name}
        for argv in ([], *([g] for g in groups), *(name.split() for name in commands())):
            for asked in ([*argv, "--help"], [*argv, "-h"], ["help", *argv]):
                with self.subTest(command=asked):
                    done = subprocess.run([program("tollgate"), *asked], capture_output=True, text=True)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertIn(f"tollgate {' '.join(argv)}".strip(), done.stdout)

    def test_costs_of_a_table_have_one_number_of_decimals(self):
        table = run(full, ["usage", "--this-month", "--cost", "--by", "workload,day"]).stdout
        costs = re.findall(r"(?m) -?(\d+(?:\.\d+)?)  EUR$", table.split("\n\n", 1)[0])
        self.assertGreater(len(costs), 1, table)
        self.assertEqual(len({len(c.partition(".")[2]) for c in costs}), 1, table)

    def test_the_table_of_status_fits_a_terminal(self):
        table = run(full, ["get", "status"]).stdout
        self.assertIn("q1", table)
        self.assertLessEqual(max(map(len, table.splitlines())), 120)


# ---- what documents print ----

DOCUMENTS = [p for p in ("README.md", *glob.glob("*/**/README.md", root_dir=ROOT, recursive=True), *glob.glob("deploy/**/*", root_dir=ROOT, recursive=True))
             if os.path.isfile(os.path.join(ROOT, p)) and not p.startswith(("build/", "deploy/debian/")) and not p.endswith((".service",))]  # fmt: skip
# Words of documents that stand for something, and what stands for them here; and what a document leaves out.
WORDS = {"2026-10": CLOSED, "NAME": "stray", "ENTRY": "999999", "ID": "waits", "LINE_ID": "0" * 32, "KEYS": "tenant", "TEXT": "a test", "DIR": "documents", "UUID": "GPU-n1-0", "NODE": "n3",
         "two-nodes.yaml": os.path.join(ROOT, "deploy/examples/two-nodes.yaml"), "deploy/demo/policy.yaml": os.path.join(ROOT, "deploy/demo/policy.yaml"),
         "https://localhost:9402": None, "URL": None, "${node#node/}": "node-of-kubernetes", "SEQ:HASH": "1:" + "0" * 64}  # fmt: skip
FILES = {"events send": "event.json", "quota simulate": "scenario.yaml", "price preview": "prices.yaml"}


def printed():
    """(document, command): in code, in a span, or between quotes; up to what the shell would take for its own."""
    found = {}
    for path in DOCUMENTS:
        with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as f:
            text = f.read()
        spans = re.findall(r"`(?:runuser -u \S+ -- )?(tollgate [^`\n]+)`", text)
        spans += re.findall(r'"(tollgate [a-z][^"\n]+)"', text) if not path.endswith(".md") else []
        spans += re.findall(r"^(?:[#\s]+|\t+say \"\s+)(tollgate (?:--|[a-z]).*)$", text, re.M) if not path.endswith(".md") else []
        for block in re.findall(r"^```(?:sh)?\n(.*?)^```", text, re.M | re.S):
            spans += re.findall(r"^\s*(tollgate .*)$", block, re.M)
        for span in spans:
            command = re.split(r"  +| ──| #| \|(?! )| \| | >| &&|; | \(|\)$", span.replace("\\|", "\0"))[0].replace("\0", "|").rstrip(",.:\"")
            found.setdefault(command, path)
    return {c: p for c, p in found.items() if c != "tollgate" and "…" not in c}


def each_form(command):
    """`a|b` is a and b, `[--x]` with it and without it."""
    optional = re.search(r" \[([^\]]*)\]", command)
    if optional:
        rest = command[: optional.start()] + command[optional.end() :]
        inside = [part.strip() for part in optional[1].split("|")]
        return [c for one in ["", *inside] for c in each_form((command[: optional.start()] + (" " + one if one else "") + command[optional.end() :]) if one else rest)]
    choice = next((w for w in command.split() if re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", w)), None)
    return [command.replace(choice, one, 1) for one in choice.split("|")] if choice else [command]


class PrintedCommands(unittest.TestCase):
    """After the others: some of these change the policy."""

    def run_printed(self, command):
        words = shlex.split(command)[1:]
        names = commands()
        name = next((n for n in names if " ".join(w for w in words).startswith(n)), None)
        words = [WORDS.get(w, w) if w != "FILE" else FILES.get(name, "policy.yaml") for w in words]
        words = [full.s.url if w is None else w for w in words]
        bare = " ".join(words) in names or " ".join(words) in {n.split()[0] for n in names}
        if "top" in words or "watch" in words:
            words += ["--count", "1"]
        done = run(full, words)
        self.assertIn(done.returncode, DOCUMENTED, done.stderr)
        if done.returncode == 2 and bare:  # a name, not a command line
            done = run(full, [*words, "--help"])
        self.assertNotEqual(done.returncode, 2, done.stderr)
        self.assertNotEqual(done.returncode, 3, done.stderr)

    def test_every_command_that_a_document_prints_runs(self):
        os.makedirs(os.path.join(folder, "documents"), exist_ok=True)
        found = printed()
        self.assertGreater(len(found), 40)
        self.assertIn("tollgate --url https://localhost:9402 --token-file admin.token --ca-file ca.crt apply -f policy.yaml", found)
        for command, path in found.items():
            for one in each_form(command):
                with self.subTest(document=path, command=one):
                    self.run_printed(one)

    def test_the_command_lines_readme_names_every_command(self):
        with open(os.path.join(ROOT, "aggregator/cli/README.md"), encoding="utf-8") as f:
            text = f.read()
        said = set()
        for span in re.findall(r"`(?:tollgate )?([^`\n]+)`", text):
            said |= {" ".join(one.split()[:2]) for one in each_form(span.replace("\\|", "|"))} | {span.split()[0]}
        for row in re.findall(r"^\| `tollgate ([a-z]+) .*?\|(?! )", text, re.M):
            said |= {f"{row} {word}" for word in re.findall(r"`([a-z-]+)", text)}
        self.assertEqual([name for name in commands() if name not in said], [])
        known = re.search("is not one of (.*)", run(full, ["get", "nothing"]).stderr)[1].split(", ")
        self.assertEqual([f"get {one}" for one in known if f"get {one}" not in said], [])
        self.assertEqual([one for one in known if one not in re.split(r"[|\s]", run(full, ["get", "--help"]).stdout)], [])


if __name__ == "__main__":
    unittest.main()
