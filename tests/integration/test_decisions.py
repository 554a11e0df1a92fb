"""Quota in service: what is asked for, leased, asked back and given back; and that none of it is lost, given twice or left behind, whatever is
repeated, cut off, killed or failed over."""

import collections
import json
import os
import random
import re
import threading
import time
import unittest
import urllib.error
from http.client import HTTPException

from tests.integration.test_store import seed
from tests.support.daemons.clock import Clock
from tests.support.daemons.stack import Stack, request, wait_for
from tests.support.daemons.target import Target
from tests.support.quota import quotalog
from tests.support.quota.quotanodes import SHORT, Nodes

POLICY = f"""
version: 1
cluster: c
priority_classes: [{{name: high, value: 100}}, {{name: low, value: 1}}]
tenants:
  - name: acme
    workspaces:
      - {{name: prod, reserved: {{{SHORT}: 4}}, enforce: on, rules: [{{namespace: prod}}]}}
      - {{name: dev, reserved: {{{SHORT}: 4}}, enforce: on, rules: [{{namespace: dev}}]}}
      - {{name: lab, enforce: off, rules: [{{namespace: lab}}]}}
  - name: globex
    workspaces:
      - {{name: research, reserved: {{{SHORT}: 2}}, reserved_shared: {{{SHORT}: 1}}, enforce: on, rules: [{{namespace: research}}]}}
      - {{name: lab, enforce: off, rules: [{{namespace: trial}}]}}
nodes:
  - {{name: n1, tenant: acme, model: {SHORT}, gpus: 4}}
  - {{name: n2, tenant: acme, model: {SHORT}, gpus: 4}}
  - {{name: n3, tenant: globex, model: {SHORT}, gpus: 2}}
  - {{name: n4, shared: true, model: {SHORT}, gpus: 2}}
"""
SIZES = {"n1": 4, "n2": 4, "n3": 2, "n4": 2}
OPTIONS = ["--quota-tick", "100ms", "--reclaim-grace", "1s", "--borrow-backoff", "0s", "--lease-confirm", "2s", "--lease-silence", "2s"]
STEADY = {"wal_receiver_timeout": "0", "wal_sender_timeout": "0"}  # a clock that is set is no silence
OPEN = ("waiting", "admitted", "confirmed", "suspect")


def ask(request_id, workspace, gpus, **more):
    return {"request_id": request_id, "workspace": workspace, "gpu_model": SHORT, "gpus": gpus, **more}


def free_units(stack, path="/v1/quota"):
    reply = stack.call("GET", path)
    return sum(p["free_units"] for p in reply.json()["pools"]) if reply.status == 200 else None


def turns(port):
    """How a replica came to its decisions."""
    page = request("GET", f"http://127.0.0.1:{port}/metrics").text()
    return collections.Counter({way: int(n) for way, n in re.findall(r'^tollgate_decision_turns_total\{way="(\w+)"\} (\d+)', page, re.M)})


class Decisions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # an order is acknowledged before it is overdue, also by a busy machine
        long = ["--reclaim-grace", "10s", "--lease-confirm", "1h", "--lease-silence", "1h"]
        cls.stack = s = cls.enterClassContext(Stack(options=[*OPTIONS, *long, "--quota-quiet", "0s"]))
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")
        s.token("dev", role="developer", tenant="globex")
        s.token("acme dev", role="developer", tenant="acme")
        cls.nodes = Nodes(s, SIZES)
        cls.nodes.speak()
        wait_for("12 GPUs in the book", lambda: free_units(s) == 12 * 5040, s.aggregator)
        cls.replica = s.replica()

    def post(self, path, body=None, role="scheduler"):
        return self.stack.call("POST", path, json.dumps(body if body is not None else {}).encode(), role)

    def done(self, *ids):
        """Released and seen empty."""
        for i in ids:
            self.assertEqual(self.post(f"/v1/leases/{i}/release").status, 200)
        self.nodes.speak()
        for i in ids:
            wait_for(f"the end of {i}", lambda: self.stack.get(f"/v1/decisions/{i}").json()["status"] == "ended", self.stack.aggregator)

    def test_a_repeated_request_is_answered_by_what_was_decided_and_another_one_is_refused(self):
        body = ask("twice", "acme/prod", 2, expected_duration="1h")
        first, again = self.post("/v1/decisions", body), self.post("/v1/decisions", dict(reversed(body.items())))
        self.assertEqual((first.status, again.status), (200, 200))
        self.assertEqual(first.json()["seq"], again.json()["seq"])
        self.assertEqual((again.json()["decision"], again.json()["rule"], again.json()["asked_by"]), ("admit", "owed", "scheduler #2"))
        self.assertEqual(first.json()["checks"], again.json()["checks"])
        other = self.post("/v1/decisions", {**body, "gpus": 1})
        self.assertEqual(other.status, 409)
        self.done("twice")
        self.assertEqual(self.post("/v1/decisions", body).json()["status"], "ended")

    def test_what_can_never_be_is_rejected_and_a_tenant_asks_for_its_own_workspaces_only(self):
        self.assertEqual(self.post("/v1/decisions", ask("never", "globex/research", 50)).json()["status"], "rejected")
        self.assertEqual(self.post("/v1/decisions", ask("mine", "acme/prod", 1), role="dev").status, 404)
        reply = self.post("/v1/decisions?dry_run=1", ask("mine", "research", 1), role="dev")
        self.assertEqual(reply.json()["verdict"]["decision"], "admit")
        self.assertEqual(self.stack.call("GET", "/v1/decisions/never", role="dev").status, 200)
        self.assertEqual(self.stack.call("GET", "/v1/decisions/mine", role="dev").status, 404)
        bad = {"gpus: 0": {"gpus": 0}, "workspace": {"workspace": "prod"}, "cpu": {"cpu": "many"}, "colour": {"colour": "red"}, "expires": {"expires": "soon"}}
        for field, change in bad.items():
            with self.subTest(field=field):
                self.assertEqual(self.post("/v1/decisions", {**ask("bad", "acme/prod", 1), **change}).status, 400)

    def test_another_tenants_request_is_not_there(self):
        theirs = ask("theirs", "lab", 1, expected_duration="7h", workload={"slurm_job": "4711"})
        self.assertEqual(self.post("/v1/decisions", theirs, role="acme dev").json()["status"], "admitted")
        calls = [("POST", "/v1/decisions?dry_run=1", ask("theirs", "research", 1), 200),
                 ("GET", "/v1/decisions/theirs", None, 404), ("DELETE", "/v1/decisions/theirs", None, 404),
                 *(("POST", f"/v1/leases/theirs/{word}", {}, 404) for word in ("confirm", "heartbeat", "release", "drain"))]  # fmt: skip
        for method, path, body, status in calls:
            with self.subTest(method=method, path=path):
                reply = self.stack.call(method, path, json.dumps(body).encode() if body is not None else None, "dev")
                self.assertEqual(reply.status, status, reply.text())
                for word in ("acme", "4711", "7h", "admitted", "#"):
                    self.assertNotIn(word, reply.text())
        for path in ("/v1/decisions", "/v1/leases", "/v1/reclaims", "/v1/quota"):
            self.assertNotIn("theirs", self.stack.call("GET", path, role="dev").text(), path)
        self.assertEqual(self.stack.get("/v1/decisions/theirs").json()["status"], "admitted")
        self.done("theirs")

    def test_who_gives_way_to_another_tenant_is_not_told_to_whom_nor_who_gives_way(self):
        self.assertEqual([self.post("/v1/decisions", ask(f"far{i}", "acme/dev", 2)).json()["decision"] for i in range(5)], ["admit", "admit", "borrow", "borrow", "borrow"])
        self.assertEqual(self.post("/v1/decisions", ask("home", "globex/research", 2)).json()["decision"], "admit")
        tried = self.post("/v1/decisions?dry_run=1", ask("guest", "globex/research", 1), role="dev").json()["verdict"]
        asked = self.post("/v1/decisions", ask("guest", "globex/research", 1), role="dev").json()
        read = self.stack.call("GET", "/v1/decisions/guest", role="dev").json()
        for told in (tried, asked, read):
            self.assertEqual((told["decision"], told["victims"]), ("reclaim", []))
            (reason,) = told["reasons"]
            self.assertEqual((reason["id"], reason["workspace"], set(reason)), (None, None, {"id", "workspace", "why", "gpus"}))
            self.assertNotRegex(json.dumps(told), "acme|far[0-9]")
        (reason,) = self.stack.get("/v1/decisions/guest").json()["reasons"]
        self.assertEqual(reason["workspace"], "acme/dev")
        (order,) = self.stack.get("/v1/reclaims").json()["reclaims"]
        self.assertEqual((order["workspace"], order["for"]), ("acme/dev", "guest"))
        (order,) = self.stack.call("GET", "/v1/reclaims", role="acme dev").json()["reclaims"]
        self.assertEqual((order["workspace"], order["cause"], order["for"]), ("acme/dev", "request", None))
        self.done(*(f"far{i}" for i in range(5)))
        wait_for("what it waited for", lambda: self.stack.get("/v1/decisions/guest").json()["status"] == "admitted", self.stack.aggregator)
        self.done("home", "guest")

    def test_who_is_not_enforced_is_counted_and_never_refused(self):
        reply = self.post("/v1/decisions", ask("lab", "acme/lab", 100)).json()
        self.assertEqual((reply["status"], reply["decision"]), ("admitted", "admit"))
        self.assertNotEqual(reply["would"], "admit")
        self.done("lab")

    def test_what_was_lent_comes_back_and_who_waits_hears_of_it_in_either_replica(self):
        owner = ask("owner", "acme/prod", 4)
        loans = [self.post("/v1/decisions", ask(f"loan{i}", "acme/dev", 2)).json()["decision"] for i in range(4)]
        self.assertEqual(loans, ["admit", "admit", "borrow", "borrow"])
        before = self.stack.get("/v1/reclaims").json()["seq"]
        self.assertEqual(self.post("/v1/decisions", owner).json()["decision"], "reclaim")
        for role in ("scheduler", "acme dev"):  # its own tenant's
            told = self.stack.call("GET", "/v1/decisions/owner", role=role).json()
            self.assertEqual(sorted(told["victims"]), ["loan2", "loan3"])
            self.assertEqual({(r["id"], r["workspace"]) for r in told["reasons"]}, {("loan2", "acme/dev"), ("loan3", "acme/dev")})
        orders = self.stack.get(f"/v1/reclaims?wait=30s&after={before}").json()["reclaims"]
        self.assertEqual({(r["lease"], r["for"], r["workspace"]) for r in orders}, {("loan2", "owner", "acme/dev"), ("loan3", "owner", "acme/dev")})
        heard = []
        waiter = threading.Thread(target=lambda: heard.append(
            request("GET", f"http://127.0.0.1:{self.replica.port}/v1/decisions/owner?wait=60s", token=self.stack.tokens["scheduler"]).json()))
        waiter.start()
        for r in orders:
            self.assertEqual(self.post(f"/v1/reclaims/{r['id']}/ack").json()["lease"]["reclaim"], "draining")
        wait_for("orders that are overdue", lambda: all(r["state"] == "overdue" for r in self.stack.get("/v1/reclaims").json()["reclaims"]))
        self.assertEqual([r["due_in_seconds"] <= 0 for r in self.stack.get("/v1/reclaims").json()["reclaims"]], [True, True])
        self.assertEqual(self.post(f"/v1/reclaims/{orders[0]['id']}/enforce").json()["lease"]["reclaim"], "enforced")
        self.done("loan2", "loan3")
        waiter.join()
        self.assertEqual((heard[0]["status"], heard[0]["decision"]), ("admitted", "admit"))
        self.assertEqual(self.stack.get("/v1/reclaims").json()["reclaims"], [])
        self.done("owner", "loan0", "loan1")

    def test_a_request_that_is_no_longer_wanted_is_cancelled_and_one_that_runs_is_not(self):
        self.assertEqual(self.post("/v1/decisions", ask("c1", "globex/research", 2)).json()["decision"], "admit")
        self.assertEqual(self.post("/v1/decisions", ask("c2", "globex/research", 2, preemptible=False)).json()["status"], "waiting")
        self.assertEqual(self.stack.call("DELETE", "/v1/decisions/c1", role="dev").status, 409)
        self.assertEqual(self.stack.call("DELETE", "/v1/decisions/c2", role="dev").json()["status"], "cancelled")
        self.assertEqual(self.stack.call("DELETE", "/v1/decisions/c2", role="dev").json()["status"], "cancelled")
        self.done("c1")

    def test_a_token_that_ends_is_refused_from_the_next_request_on(self):
        s = self.stack
        for how in ("revoked", "expired"):
            s.token(how, role="developer", tenant="globex")
            for i in range(3):  # from the second on the token is remembered, and proved where the decision is written
                self.assertEqual(self.post("/v1/decisions", ask(f"{how}-{i}", "globex/research", 1), how).status, 200)
            change = "revoked_at = now(), revoked_by = 'test'" if how == "revoked" else "expires_at = now()"
            s.sql(f"UPDATE tollgate.access_token SET {change} WHERE id = (SELECT max(id) FROM tollgate.access_token)")
            for body in (ask(f"{how}-3", "globex/research", 1), ask(f"{how}-0", "globex/research", 1), {"request_id": "of nobody"}):
                self.assertEqual(self.post("/v1/decisions", body, how).status, 401)
            self.assertEqual(self.post("/v1/decisions?dry_run=1", ask(f"{how}-4", "globex/research", 1), how).status, 401)
            self.assertEqual(self.stack.call("GET", f"/v1/decisions/{how}-3").status, 404)
            self.done(*(f"{how}-{i}" for i in range(3) if self.stack.get(f"/v1/decisions/{how}-{i}").json()["lease"]))
            for i in range(3):
                self.stack.call("DELETE", f"/v1/decisions/{how}-{i}", role="scheduler")

    def test_a_replica_that_decides_alone_bets_and_one_that_was_overtaken_decides_once_more(self):
        s, ports, seqs = self.stack, (self.stack.port, self.replica.port), []
        for i in range(400):
            body = json.dumps(ask(f"never-{i}", "globex/research", 1000)).encode()
            reply = request("POST", f"http://127.0.0.1:{ports[i // 2 % 2]}/v1/decisions", body, s.tokens["scheduler"]).json()
            self.assertEqual(reply["decision"], "reject")
            seqs.append(reply["seq"])
            ways = sum((turns(p) for p in ports), collections.Counter())
            if i > 20 and ways["bet"] > 5 and ways["lost"] > 2:
                break
        else:
            self.fail(f"nobody bet, or nobody lost: {ways}")
        self.assertEqual(seqs, sorted(set(seqs)))
        self.assertEqual(quotalog.chain_faults(s), [])

    def test_the_tables_refuse_what_cannot_be(self):
        s = self.stack
        self.assertEqual(self.post("/v1/decisions", ask("sound", "acme/prod", 1)).json()["status"], "admitted")
        waits = {"status": "waiting", "decision": "queue", "admitted_ns": None}
        decisions = {
            "a_request_has_a_sound_id": {"request_id": "a b"}, "a_key_is_of_its_tenant": {"key": "globex/sound"}, "a_digest_has_32_bytes": {"digest": "\\x00"}, "status": {"status": "lost"},
            "decision": {"decision": "maybe"}, "would": {"would": "maybe"}, "rule": {"rule": "none"}, "a_place_is_not_negative": {"position": -1},
            "somebody_asked": {"asked_by": ""}, "a_verdict_follows_its_request": {"verdict_seq": 0}, "a_change_follows_its_verdict": {"changed_seq": 0},
            "time_does_not_go_back": {"changed_ns": 0}, "ended_why": {"ended_why": "tired"}, "what_was_decided": {"decision": "queue"},
            "a_lease_was_admitted": {"admitted_ns": None}, "a_lease_runs_once_confirmed": {"status": "confirmed"},
            "only_a_lease_is_confirmed": {**waits, "seen_ns": 1}, "an_end_has_its_time": {"status": "ended"}, "an_end_has_its_reason": {"status": "ended", "ended_ns": 1},
            "only_who_waits_has_a_place": {"position": 1},
        }  # fmt: skip
        books = {
            "there_is_one_book": {"one": False}, "events_count_from_1": {"seq": -1}, "time_is_not_negative": {"at_ns": -1}, "a_hash_has_32_bytes": {"head": "\\x00"},
            "a_digest_has_32_bytes": {"policy_digest": "\\x00"}, "a_snapshot_is_of_what_happened": {"snapshot_seq": 1 << 60},
            "the_book_never_goes_back": {"seq": 1, "snapshot_seq": 0}, "the_head_is_that_of_the_last_event": {"head": "\\x" + "ab" * 32},
        }  # fmt: skip
        rows = "SELECT (jsonb_populate_record(d, '%s')).* FROM tollgate.%s d"
        cases = [("decision", r, f"INSERT INTO tollgate.decision OVERRIDING SYSTEM VALUE {rows} WHERE request_id = 'sound'", c) for r, c in decisions.items()]
        update = "UPDATE tollgate.quota_book SET (one, seq, at_ns, head, policy_digest, snapshot_seq, snapshot_at_ns) = (%s)" % rows
        cases += [("quota_book", r, update, c) for r, c in books.items()]
        for table, rule, statement, change in cases:
            with self.subTest(rule), self.assertRaises(RuntimeError) as refused:
                s.sql(statement % (json.dumps(change), table))
            self.assertIn(f'new row for relation "{table}" violates check constraint "{rule}"', str(refused.exception))
        for table, seen in (("decision", decisions), ("quota_book", books)):
            source = s.sql(f"SELECT prosrc FROM pg_proc WHERE proname = '{table}_is_sound'")[0][0]
            self.assertEqual(set(re.findall(r"THEN '(\w+)'$", source, re.M)), set(seen))
        self.done("sound")

    def test_a_workspace_that_was_made_a_moment_ago_is_known(self):
        self.stack.apply(POLICY.replace("{name: lab,", "{name: fresh, enforce: on, rules: [{namespace: fresh}]}\n      - {name: lab,", 1))
        reply = self.post("/v1/decisions", ask("fresh", "acme/fresh", 1)).json()
        self.assertNotEqual(reply["rule"], "valid")
        self.done("fresh")


class Client(threading.Thread):
    """Asks, repeats, confirms, forgets; every answer is kept."""

    def __init__(self, rng, url, token, name, over):
        super().__init__(daemon=True)
        self.rng, self.url, self.token = random.Random(rng.randrange(1 << 32)), url, token
        self.name_, self.over, self.mine, self.answers, self.failure = name, over, {}, [], None

    def run(self):
        try:
            while not self.over.is_set():
                self.act()
        except BaseException as error:  # pylint: disable=broad-except
            self.failure = error

    def say(self, method, path, body=None):
        """The answer, or None when nobody knows what became of it."""
        try:
            reply = request(method, self.url + path, json.dumps(body).encode() if body is not None else None, self.token)
            answer = reply.json()
        except (OSError, HTTPException, urllib.error.URLError, ValueError):
            time.sleep(0.02)
            return None
        if reply.status == 200:
            self.answers.append(answer)
            return answer
        assert reply.status in (404, 409, 503), f"{method} {path}: {reply.status} {reply.text()}"
        return None

    def act(self):
        if not self.mine or self.rng.random() < 0.4:
            i = f"{self.name_}-{len(self.mine)}"
            workspace = self.rng.choice(["acme/prod", "acme/dev", "globex/research"])
            self.mine[i] = ask(i, workspace, self.rng.choice([1, 1, 2, 3]), preemptible=self.rng.random() < 0.8, priority_class=self.rng.choice(["low", "high"]))
            self.say("POST", "/v1/decisions", self.mine[i])
            return
        i = self.rng.choice(list(self.mine)[-8:])
        what = self.rng.choice(["again", "get", "confirm", "heartbeat", "release", "release", "cancel", "drain"])
        if what == "again":
            self.say("POST", "/v1/decisions", self.mine[i])
        elif what == "get":
            self.say("GET", f"/v1/decisions/{i}?wait=50ms")
        elif what == "cancel":
            self.say("DELETE", f"/v1/decisions/{i}")
        else:
            self.say("POST", f"/v1/leases/{i}/{what}", {})


class Blows(unittest.TestCase):
    """Two replicas behind a door that cuts connections, one killed in the middle, the database failed over and its clock set forward and back,
    nodes lost and back."""

    # In each the nodes speak once; a third of them comes before each blow, and a third after both. Time has no part in it.
    ROUNDS = int(os.environ.get("TOLLGATE_BLOWS_ROUNDS", "60"))

    def test_nothing_is_given_twice_lost_or_left_behind(self):
        rng = random.Random(seed())
        options = [*OPTIONS, "--quota-quiet", rng.choice(["0s", "100ms", "5s"])]
        with Clock() as clock, Stack(options=options, standby=True, settings=STEADY, clock=clock) as s:
            s.apply(POLICY)
            s.pg.wait_for_standby()
            s.token("scheduler", role="scheduler")
            nodes = Nodes(s, SIZES)
            nodes.speak()
            wait_for("the book", lambda: free_units(s) == 12 * 5040, s.aggregator)
            replicas = [s.aggregator, s.replica()]
            over = threading.Event()
            with Target([s.port, replicas[1].port], rng, 0.05) as door:
                clients = [Client(rng, f"http://127.0.0.1:{door.port}", s.tokens["scheduler"], f"c{i}", over) for i in range(6)]
                for c in clients:
                    c.start()
                try:
                    self.blows(rng, s, replicas, nodes)
                finally:
                    over.set()
                for c in clients:
                    c.join()
                    self.assertIsNone(c.failure, c.failure)
            s.wait_ready()
            nodes.silent.clear()
            nodes.broken.clear()
            self.clean_up(s, nodes)
            self.check_log(s)
            self.check_answers(s, [a for c in clients for a in c.answers])

    def blows(self, rng, s, replicas, nodes):
        for round_ in range(self.ROUNDS):
            if rng.random() < 0.1:
                s.clock.set(rng.choice([0, 1, -1, 10, -10, 3600, -3600]))
            nodes.silent = {rng.choice(list(SIZES))} if rng.random() < 0.3 else set()
            nodes.broken = {("n1", 0)} if rng.random() < 0.3 else set()
            for p in (s.port, replicas[1].port):
                try:
                    nodes.speak(lambda m, path, body, role, p=p: request(m, f"http://127.0.0.1:{p}{path}", body, s.tokens[role]))
                    break
                except (OSError, HTTPException, urllib.error.URLError):
                    continue
            if round_ == self.ROUNDS // 3:
                replicas[1].kill9()
                replicas[1].start()
            if round_ == self.ROUNDS * 2 // 3:
                s.failover()
            time.sleep(0.05)

    def clean_up(self, s, nodes):
        """Everybody goes home; then nothing is leased, held or waiting, and everything is free."""

        def gone():
            rows = s.sql(f"SELECT request_id, status FROM tollgate.decision WHERE status IN {OPEN}")
            for request_id, status in rows:
                if status == "waiting":
                    s.call("DELETE", f"/v1/decisions/{request_id}")
                else:
                    s.call("POST", f"/v1/leases/{request_id}/release", b"{}")
            nodes.speak()
            return not rows

        wait_for("the end of all leases", gone, s.aggregator)
        wait_for("all GPUs to be free", lambda: free_units(s) == 12 * 5040, s.aggregator)
        for pool in s.get("/v1/quota").json()["pools"]:
            self.assertEqual((pool["in_use_units"], pool["held_units"], pool["excess_units"]), (0, 0, 0), pool)
        self.assertEqual(s.sql("SELECT count(*) FROM tollgate.reclaim WHERE ended_ns IS NULL"), [["0"]])

    def check_log(self, s):
        self.assertEqual(quotalog.chain_faults(s), [])
        last = int(s.sql("SELECT seq FROM tollgate.quota_book")[0][0])
        path = os.path.join(s.dir, "recording.json")
        for first in (1, last):  # from nothing, and from the last snapshot
            with open(path, "w", encoding="utf-8") as f:
                f.write(s.get(f"/v1/quota/recording?from_seq={first}").text())
            replayed = s.cli("quota", "simulate", path)
            self.assertEqual(replayed.returncode, 0, replayed.stdout[-2000:] + replayed.stderr[-2000:])
        with open(path, encoding="utf-8") as f:
            self.assertGreater(json.load(f)["state_seq"], 0)
        # never more on a node than it has
        where, most = {}, collections.Counter()
        for _seq, _at, _actor, _event, outcome, _hash in quotalog.rows(s):
            told = json.loads(outcome)
            for n in told["notices"]:
                if n["event"] in ("lease returned", "lease expired"):
                    where.pop(n["id"], None)
            for v in told["verdicts"]:
                if v["decision"] in ("admit", "borrow"):
                    where[v["id"]] = {n["node"]: n["count"] for n in v["nodes"]}
            used = collections.Counter()
            for places in where.values():
                used.update(places)
            most |= used
        for node, count in most.items():
            self.assertLessEqual(count, SIZES[node], node)
        self.assertTrue(most, "nobody was admitted")

    def check_answers(self, s, answers):
        """Each is what the log says came of its id by then, and none takes back what was final."""
        said = collections.defaultdict(list)
        for seq, _at, _actor, _event, outcome, _hash in quotalog.rows(s):
            for v in json.loads(outcome)["verdicts"]:
                said[v["id"]].append((seq, v["decision"]))
        order = {"waiting": 0, "rejected": 1, "cancelled": 1, "expired": 1, "admitted": 1, "confirmed": 2, "suspect": 2, "ended": 3}
        final = dict(s.sql("SELECT request_id, status FROM tollgate.decision"))
        self.assertTrue(answers)
        for a in answers:
            told = [d for seq, d in said[f"{a['tenant']}/{a['request_id']}"] if seq <= a["seq"]]
            self.assertEqual(a["decision"], told[-1] if told else None, a)
            self.assertLessEqual(order[a["status"]], order[final[a["request_id"]]], a)


if __name__ == "__main__":
    unittest.main()
