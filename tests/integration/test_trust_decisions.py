"""What one tenant, or one token, can do to everybody else's decisions: nothing."""

import concurrent.futures
import contextlib
import datetime
import json
import os
import re
import subprocess
import time
import unittest

from tests.integration.test_decisions import OPTIONS, POLICY, SIZES, ask, free_units, turns
from tests.integration.test_quota_loop import holder
from tests.integration.test_trust_callers import Raw
from tests.support.daemons.stack import Stack, program, request, wait_for
from tests.support.quota import quotalog
from tests.support.quota.quotanodes import MINUTE, MODEL, SHORT, Nodes
from tests.support.store import ledger
from tests.support.store.locked import Session

BOOK = "SELECT FROM tollgate.quota_book FOR UPDATE"


def known(options):
    """Those of these options that the program has: an older one fails by what it does, not by what it is called with."""
    text = subprocess.run([program("tollgate-aggregator"), "--help"], capture_output=True, text=True).stdout
    return [word for name, value in options.items() if name in text for word in (name, value)]


# What a test locks stays locked for as long as a busy machine needs to send a hundred requests: the daemon's patience must not decide.
PATIENT = {"--lock-timeout": "10m", "--statement-timeout": "10m"}


class Trust(unittest.TestCase):
    OPTIONS = {}

    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=[*OPTIONS, "--lease-confirm", "1h", "--lease-silence", "1h", *known({**PATIENT, **cls.OPTIONS})]))
        s.apply(POLICY)
        s.token("scheduler", role="scheduler")
        s.token("acme", role="developer", tenant="acme")
        s.token("globex", role="developer", tenant="globex")
        cls.nodes = Nodes(s, SIZES)
        cls.nodes.speak()
        wait_for("12 GPUs in the book", lambda: free_units(s) == 12 * 5040, s.aggregator)

    def post(self, path, body=None, role="scheduler"):
        return self.stack.call("POST", path, json.dumps(body if body is not None else {}).encode(), role)

    def dry(self, body, role="scheduler"):
        return self.post("/v1/decisions?dry_run=1", body, role)

    def seq(self):
        return int(self.stack.sql("SELECT seq FROM tollgate.quota_book")[0][0])


class DryRuns(Trust):
    OPTIONS = {"--tenant-dry-runs": "8"}

    def test_they_are_answered_while_somebody_else_decides_and_decisions_are_committed_while_they_are_asked_for(self):
        with Session(self.stack.pg) as other:
            other.run("BEGIN")
            other.run(BOOK)
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                earnest = pool.submit(self.post, "/v1/decisions", ask("earnest", "acme/prod", 1))
                wait_for("a decision that waits for the book", lambda: self.stack.sql(
                    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%quota_book%'"), self.stack.aggregator)
                tried = list(pool.map(lambda i: self.dry(ask(f"dry-{i}", "acme/prod", 1), "acme"), range(8)))
                self.assertEqual({(r.status, r.json()["verdict"]["decision"]) for r in tried}, {(200, "admit")})
                self.assertFalse(earnest.done())
                self.assertEqual({r.json()["seq"] for r in tried}, {self.seq()})
                other.run("ROLLBACK")
                self.assertEqual(earnest.result().json()["status"], "admitted")

    def test_they_agree_with_what_is_then_decided_and_say_after_which_event(self):
        for i, (workspace, gpus) in enumerate([("acme/prod", 3), ("acme/dev", 9), ("globex/research", 2), ("globex/research", 2), ("acme/prod", 100)]):
            body = ask(f"agree-{i}", workspace, gpus)
            said, before = self.dry(body).json(), self.seq()
            self.assertEqual(self.stack.call("GET", f"/v1/decisions/agree-{i}").status, 404)
            done = self.post("/v1/decisions", body).json()
            with self.subTest(workspace=workspace, gpus=gpus):
                for key in ("decision", "victims", "would", "owed", "pool"):
                    self.assertEqual(said["verdict"][key], done[key])
                self.assertLessEqual(said["seq"], before)
                self.assertGreaterEqual(self.dry(ask("after", "acme/prod", 1)).json()["seq"], done["seq"])

    def test_a_tenant_has_a_limited_number_of_them_open_and_another_tenant_is_not_touched(self):
        """The log cannot be read, so those that are open stay open."""
        with Session(self.stack.pg) as other, concurrent.futures.ThreadPoolExecutor(40) as pool:
            other.run("BEGIN")
            other.run("LOCK tollgate.quota_book IN ACCESS EXCLUSIVE MODE")
            greedy = [pool.submit(self.dry, ask(f"greedy-{i}", "acme/prod", 1), ("acme", "scheduler")[i % 2]) for i in range(12)]
            refused = [f.result() for _, f in zip(range(4), concurrent.futures.as_completed(greedy))]
            for r in refused:
                self.assertEqual((r.status, r.headers["Retry-After"]), (429, "1"), r.text())
                self.assertIn("tenant-dry-runs", r.json()["detail"])
                self.assertRegex(r.json()["detail"], r'"acme" has 8 .* 8$')
            modest = pool.submit(self.dry, ask("modest", "globex/research", 1), "globex")
            other.run("ROLLBACK")
            self.assertEqual(modest.result().status, 200)
            self.assertEqual(sorted(f.result().status for f in greedy), [200] * 8 + [429] * 4)
        self.assertEqual(self.dry(ask("again", "acme/prod", 1)).status, 200)

    def test_a_workspace_that_was_made_a_moment_ago_is_known(self):
        self.stack.apply(POLICY.replace("{name: lab,", "{name: fresh, enforce: on, rules: [{namespace: fresh}]}\n      - {name: lab,", 1))
        checks = self.dry(ask("fresh", "acme/fresh", 1)).json()["verdict"]["checks"]
        self.assertEqual([c["ok"] for c in checks if c["rule"] == "valid"], [True] * 3)


class RequestIds(Trust):
    """A request_id is its tenant's own."""

    def tearDown(self):
        running = self.stack.get("/v1/leases").json()["leases"]
        self.done(*(f"{r['workspace'].split('/')[0]}/{r['request_id']}" for r in running))

    def done(self, *paths):
        for path in paths:
            self.assertEqual(self.post(f"/v1/leases/{path}/release").status, 200)
        self.nodes.speak()
        for path in paths:
            wait_for(f"the end of {path}", lambda: self.stack.get(f"/v1/decisions/{path}").json()["status"] == "ended", self.stack.aggregator)

    def test_nobody_takes_the_ids_of_a_scheduler_or_learns_that_they_are_taken(self):
        squat = self.post("/v1/decisions", ask("job-1", "research", 1), "globex")
        self.assertEqual((squat.status, squat.json()["status"]), (200, "admitted"))
        earnest = self.post("/v1/decisions", ask("job-1", "acme/prod", 2))
        self.assertEqual((earnest.status, earnest.json()["status"], earnest.json()["tenant"]), (200, "admitted", "acme"), earnest.text())
        again = self.post("/v1/decisions", ask("job-1", "acme/prod", 2)).json()
        self.assertEqual((again["seq"], again["request_id"], again["lease"]["id"]), (earnest.json()["seq"], "job-1", "job-1"))
        self.assertEqual(self.post("/v1/decisions", ask("job-1", "acme/dev", 2)).status, 409)  # one namespace for all its workspaces, whoever asks
        self.assertEqual(self.post("/v1/decisions", ask("job-1", "prod", 3), "acme").status, 409)
        for role, workspace in (("globex", "globex/research"), ("acme", "acme/prod")):
            own = self.stack.get("/v1/decisions/job-1", role).json()
            self.assertEqual((own["tenant"], own["request"]["gpus"]), (role, {"globex": 1, "acme": 2}[role]))
            self.assertEqual(self.stack.get(f"/v1/decisions/{role}/job-1", role).json()["seq"], own["seq"])
            self.assertEqual([(r["request_id"], r["workspace"]) for r in self.stack.get("/v1/leases", role).json()["leases"]], [("job-1", workspace)])
            other = {"globex": "acme", "acme": "globex"}[role]
            for path in (f"{other}/job-1", f"job-1?tenant={other}", "nobody/job-1"):
                self.assertEqual(self.stack.call("GET", f"/v1/decisions/{path}", role=role).status, 404, path)
        self.done("acme/job-1", "globex/job-1")

    def test_an_operator_or_scheduler_who_names_no_tenant_is_told_of_both(self):
        for role, workspace in (("acme", "dev"), ("globex", "research")):
            self.assertEqual(self.post("/v1/decisions", ask("both", workspace, 1), role).json()["status"], "admitted")
            self.assertEqual(self.post("/v1/decisions", ask(f"only-{role}", workspace, 1), role).json()["status"], "admitted")
        calls = [("GET", "/v1/decisions/both"), ("DELETE", "/v1/decisions/both"), *(("POST", f"/v1/leases/both/{word}") for word in ("confirm", "heartbeat", "drain", "release"))]
        for method, path in calls:
            for role in ("scheduler", "admin"):
                reply = self.stack.call(method, path, b"{}" if method == "POST" else None, role)
                self.assertEqual(reply.status, 409, f"{method} {path} {reply.text()}")
                self.assertIn("acme/both", reply.json()["detail"])
                self.assertIn("globex/both", reply.json()["detail"])
        self.assertEqual(self.stack.get("/v1/decisions/both?tenant=acme", "scheduler").json()["tenant"], "acme")
        self.assertEqual(self.post("/v1/leases/globex/both/confirm").json()["tenant"], "globex")
        self.assertEqual(self.post("/v1/leases/both/heartbeat?tenant=globex").json()["status"], "confirmed")
        self.assertEqual(self.stack.get("/v1/decisions/acme/both", "scheduler").json()["status"], "admitted")
        self.assertEqual(self.stack.get("/v1/decisions/only-acme", "scheduler").json()["tenant"], "acme")
        self.assertIn("globex/both", self.stack.cli("quota", "explain", "both").stderr)
        self.assertEqual(self.stack.cli("quota", "explain", "globex/both").returncode, 0)
        self.done("acme/both", "globex/both", "only-acme", "only-globex")

    def test_reclaims_and_anomalies_know_whose_lease_it_is(self):
        """Two tenants' leases of the same id; one of them gives way for a request of that id too."""
        self.assertEqual([self.post("/v1/decisions", ask(i, "acme/dev", 4)).json()["decision"] for i in ("same", "away")], ["admit", "borrow"])
        self.assertEqual(self.post("/v1/decisions", ask("same", "globex/research", 1)).json()["decision"], "admit")
        told = self.post("/v1/decisions", ask("here", "acme/prod", 4)).json()
        self.assertEqual((told["decision"], told["victims"], [r["id"] for r in told["reasons"]]), ("reclaim", ["away"], ["away"]))
        (order,) = self.stack.get("/v1/reclaims").json()["reclaims"]
        self.assertEqual((order["lease"], order["workspace"], order["for"]), ("away", "acme/dev", "here"))
        self.assertEqual(self.post(f"/v1/reclaims/{order['id']}/ack").json()["request_id"], "away")
        self.done("away")
        wait_for("what it waited for", lambda: self.stack.get("/v1/decisions/here").json()["status"] == "admitted", self.stack.aggregator)
        self.assertEqual(self.stack.get("/v1/decisions/globex/same").json()["status"], "admitted")
        self.assertEqual(self.stack.get("/v1/audit/differences").json()["differences"], [])
        self.done("acme/same", "globex/same", "here")

    def test_requests_from_before_keep_their_keys_and_are_found(self):
        """As an older program left them: the key is the bare request_id, in the log and in the row."""
        s = self.stack
        body = ask("new", "acme/prod", 1)
        self.assertEqual(self.post("/v1/decisions", body).json()["status"], "admitted")
        [[outcome]] = s.sql("SELECT outcome FROM quota_event WHERE seq = (SELECT verdict_seq FROM decision WHERE request_id = 'new')")
        self.done("new")
        request = {"id": "old", "workspace": "acme/prod", "gpus": 1, "model": SHORT}
        outcome = outcome.replace('"acme/new"', '"old"')
        at = outcome.index('{"id":"old"')
        _, end = json.JSONDecoder().raw_decode(outcome, at)
        seq = quotalog.append(s, {"submit": [request]}, "scheduler #2", outcome)
        change = {"verdict_at": len(outcome[:at].encode()), "verdict_bytes": len(outcome[at:end].encode()), "id": 1 << 40, "key": "old", "request_id": "old", "submitted_seq": seq, "verdict_seq": seq, "changed_seq": seq,
                  "status": "admitted", "released_ns": None, "ended_ns": None, "ended_why": None}  # fmt: skip
        s.sql(f"INSERT INTO decision OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(d, '{json.dumps(change)}')).* FROM decision d WHERE request_id = 'new'")
        for path, role in (("old", "scheduler"), ("old", "acme"), ("acme/old", "scheduler")):
            self.assertEqual(s.get(f"/v1/decisions/{path}", role).json()["status"], "admitted")
        self.assertEqual(self.post("/v1/decisions", {**body, "request_id": "old"}).status, 409)  # known: its digest is another's
        self.assertEqual(s.call("GET", "/v1/decisions/old", role="globex").status, 404)
        self.assertEqual(self.post("/v1/decisions", ask("old", "globex/research", 1)).json()["status"], "admitted")
        self.assertEqual(self.post("/v1/leases/acme/old/confirm").json()["status"], "confirmed")
        self.done("acme/old", "globex/old")
        self.assertEqual(quotalog.chain_faults(s), [])
        with open(os.path.join(s.dir, "recording.json"), "w", encoding="utf-8") as f:
            f.write(s.get("/v1/quota/recording?from_seq=1").text())
        replayed = s.cli("quota", "simulate", f.name)
        self.assertEqual(replayed.returncode, 0, replayed.stdout[-2000:])


class Queued(Trust):
    """A tenant at `tenant-queued` that goes on asking, while the turns that refuse it also hold what others say."""

    OPTIONS = {"--tenant-queued": "3", "--quota-quiet": "0s"}  # every turn begins without the lock of the book

    def together(self, *asks):
        """Sends these requests while the turn before waits for its commit, so that the next turn has all of them. Returns their replies in this order."""
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'tollgate-aggregator decider'"
        with Session(self.stack.pg) as other, concurrent.futures.ThreadPoolExecutor(len(asks) + 1) as pool:
            other.run("BEGIN")
            other.run(BOOK)
            first = pool.submit(self.post, "/v1/leases/acme/runs/heartbeat", None, "acme")
            wait_for("a turn that waits for the book", lambda: self.stack.sql(blocked) == [["1"]], self.stack.aggregator)
            replies = [pool.submit(ask) for ask in asks]
            kept = re.compile(r"^tollgate_aggregator_http_kept (\d+)$", re.M)
            page = self.stack.url + "/metrics"
            wait_for("all requests to be queued", lambda: int(kept.search(request("GET", page).text())[1]) == len(asks) + 1, self.stack.aggregator)
            other.run("COMMIT")
            self.assertEqual(first.result().status, 200)
            return [reply.result() for reply in replies]

    def test_a_refusal_costs_nobody_the_book(self):
        def waits(i):
            return ask(f"waits-{i}", "globex/research", 2, preemptible=False)

        def heartbeat():
            return self.post("/v1/leases/acme/runs/heartbeat", None, "acme")

        gone = ask("gone", "globex/research", 2)
        for body in (ask("runs", "acme/prod", 1), gone):
            self.assertEqual(self.post("/v1/decisions", body).json()["status"], "admitted")
        self.assertEqual([self.post("/v1/decisions", waits(i)).json()["status"] for i in range(4)], ["waiting"] * 3 + [429])
        self.assertEqual(self.post("/v1/leases/globex/gone/release").status, 200)
        self.nodes.speak()
        wait_for("its end", lambda: self.stack.call("GET", "/v1/decisions/waits-0").json()["status"] == "admitted", self.stack.aggregator)
        self.assertEqual(self.post("/v1/decisions", waits(3)).json()["status"], "waiting")
        self.stack.aggregator.stop()
        self.stack.restart_aggregator()  # what was decided long ago is in no memory
        self.assertEqual(self.post("/v1/decisions", ask("first", "acme/lab", 1)).status, 200)
        before = turns(self.stack.port)
        for i in range(5):
            said, refused, other = self.together(
                heartbeat,
                lambda i=i: self.post("/v1/decisions", waits(4 + i), "globex"),
                lambda i=i: self.post("/v1/decisions", ask(f"other-{i}", "acme/lab", 1), "acme"),
            )
            self.assertEqual((said.status, refused.status, other.status), (200, 429, 200), refused.text())
            self.assertRegex(refused.json()["detail"], '^tenant-queued: .*"globex" has 3 ')
        after = turns(self.stack.port)
        self.assertEqual(after["lost"], before["lost"])
        self.assertGreaterEqual(after["bet"] - before["bet"], 5)
        # what was decided is told again, also by a turn that did not look for it
        said, again, changed = self.together(
            heartbeat,
            lambda: self.post("/v1/decisions", gone, "globex"),
            lambda: self.post("/v1/decisions", {**gone, "gpus": 1}, "globex"),
        )
        self.assertEqual((said.status, again.status, changed.status), (200, 200, 409), again.text())
        self.assertEqual(again.json()["status"], "ended")
        self.assertEqual(turns(self.stack.port)["lost"], before["lost"])


class Desk(Trust):
    """Requests that are queued while a turn waits for its commit."""

    BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'tollgate-aggregator decider'"

    @contextlib.contextmanager
    def turn_that_waits(self, name, lock=BOOK):
        with Session(self.stack.pg) as other, concurrent.futures.ThreadPoolExecutor(1) as pool:
            other.run("BEGIN")
            other.run(lock)
            first = pool.submit(self.post, "/v1/decisions", ask(name, "acme/prod", 1))
            wait_for("a turn that waits for the book", lambda: self.stack.sql(self.BLOCKED) == [["1"]], self.stack.aggregator)
            yield
            other.run("COMMIT")
            self.assertEqual(first.result().status, 200)

    def metric(self, name):
        return int(re.search(rf"^tollgate_aggregator_http_{name} (\d+)$", request("GET", self.stack.url + "/metrics").text(), re.M)[1])

    def kept(self, n):
        wait_for(f"{n} queued requests", lambda: self.metric("kept") == n, self.stack.aggregator)

    def put(self, role, *asks):
        bodies = [json.dumps(a).encode() for a in asks]
        sent = [Raw(self.stack, "POST", "/v1/decisions", self.stack.tokens[role], len(b), b) for b in bodies]
        for one in sent:
            self.addCleanup(one.close)
        return sent

    def test_a_tenant_with_many_requests_has_a_few_in_a_turn_and_another_one_is_in_the_next(self):
        with self.turn_that_waits("before-many"):
            many = self.put("acme", *(ask(f"many-{i}", "acme/prod", 1) for i in range(100)))
            self.kept(101)
            calm = self.put("globex", ask("calm-many", "globex/research", 1))[0]
            self.kept(102)
        self.assertEqual([r.reply().status for r in (calm, *many)], [200] * 101)
        ahead = self.stack.sql("SELECT count(*) FROM tollgate.decision WHERE request_id LIKE 'many-%' AND submitted_seq <= "
                               "(SELECT submitted_seq FROM tollgate.decision WHERE request_id = 'calm-many')")
        self.assertLessEqual(int(ahead[0][0]), 16)
        for i in range(100):  # of a turn with several each has its own verdict
            said = self.stack.call("GET", f"/v1/decisions/many-{i}").json()
            self.assertEqual((said["request_id"], said["checks"][0]["rule"]), (f"many-{i}", "valid"))

    def test_nothing_is_decided_for_who_has_gone(self):
        with self.turn_that_waits("before-gone"):
            gone = self.put("acme", *(ask(f"gone-{i}", "acme/prod", 1) for i in range(40)))
            self.kept(41)
            before = self.metric("abandoned_total")
            for r in gone:
                r.close()
            wait_for("all are seen to go", lambda: self.metric("abandoned_total") - before == 40, self.stack.aggregator)
            calm = self.put("globex", ask("calm-gone", "globex/research", 1))[0]
            self.kept(42)
        self.assertEqual(calm.reply().status, 200)
        self.assertEqual(self.stack.sql("SELECT count(*) FROM tollgate.decision WHERE request_id LIKE 'gone-%'"), [["0"]])
        self.assertEqual(self.post("/v1/decisions", ask("gone-0", "acme/prod", 1)).status, 200)


    def test_nothing_is_decided_for_who_went_while_it_stood_in_line_for_a_later_turn(self):
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ '^LOCK tollgate.quota_book'"
        lock = "LOCK tollgate.quota_book IN EXCLUSIVE MODE"  # who waits for it is served in the order of coming
        decided = "SELECT count(*) FROM tollgate.decision WHERE request_id LIKE 'line-%'"
        with Session(self.stack.pg) as second, concurrent.futures.ThreadPoolExecutor(1) as pool:
            second.run("BEGIN")
            with self.turn_that_waits("before-line", lock):
                line = self.put("acme", *(ask(f"line-{i}", "acme/prod", 1) for i in range(100)))
                self.kept(101)
                locked = pool.submit(second.run, lock)
                wait_for("the second lock", lambda: self.stack.sql(waits) == [["1"]], self.stack.aggregator)
            locked.result()
            wait_for("the next turn, with 64 at most", lambda: self.stack.sql(self.BLOCKED) == [["1"]], self.stack.aggregator)
            before = self.metric("abandoned_total")
            for r in line[70:]:
                r.close()
            wait_for("30 are seen to go", lambda: self.metric("abandoned_total") - before == 30, self.stack.aggregator)
            self.assertEqual(self.stack.sql(decided), [["0"]])
            second.run("COMMIT")
        self.assertEqual([r.reply().status for r in line[:70]], [200] * 70)
        self.kept(0)
        self.assertEqual(self.stack.sql(decided), [["70"]])


class QueuedElsewhere(Trust):
    """The same where another replica decides about what waits."""

    OPTIONS = {"--tenant-queued": "3"}

    def test_a_tenant_that_another_replica_made_room_for_is_not_refused(self):
        s = self.stack
        at = s.options.index("--quota-tick") + 1
        s.options[at] = "1h"  # it never looks at the log by itself
        slow = s.replica()

        def post(i):
            body = ask(f"waits-{i}", "globex/research", 2, preemptible=False)
            return request("POST", f"http://127.0.0.1:{slow.port}/v1/decisions", json.dumps(body).encode(), s.tokens["globex"])

        self.assertEqual(self.post("/v1/decisions", ask("runs", "globex/research", 2)).json()["status"], "admitted")
        self.assertEqual([post(i).json()["status"] for i in range(4)], ["waiting"] * 3 + [429])
        for i in range(3):
            self.assertEqual(s.call("DELETE", f"/v1/decisions/waits-{i}", role="globex").json()["status"], "cancelled")
        self.assertEqual(post(4).json()["status"], "waiting")

    def test_of_a_limit_only_a_token_that_holds_is_told(self):
        s = self.stack
        s.token("ended", role="developer", tenant="globex")
        for _ in range(3):  # it is remembered
            self.assertEqual(self.dry(ask("first", "globex/research", 1), "ended").status, 200)
        s.sql("UPDATE tollgate.access_token SET revoked_at = now(), revoked_by = 'test' WHERE id = (SELECT max(id) FROM tollgate.access_token)")
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            replies = list(pool.map(lambda i: self.dry(ask(f"dry-{i}", "globex/research", 1), "ended").status, range(256)))
        self.assertEqual(set(replies), {401})


class Polls(Trust):
    """What a scheduler polls counts for the tenant of what it polls, beside its own."""

    OPTIONS = {"--tenant-polls": "4"}

    def poll(self, path, role):
        raw = Raw(self.stack, "GET", path, self.stack.tokens[role])
        self.addCleanup(raw.close)
        return raw

    def kept(self):
        return int(re.search(r"^tollgate_aggregator_http_kept (\d+)$", request("GET", self.stack.url + "/metrics").text(), re.M)[1])

    def test_polls_of_a_scheduler_count_for_the_tenant(self):
        for name in ("runs", "waits"):
            self.assertEqual(self.post("/v1/decisions", ask(name, "globex/research", 2, preemptible=False)).status, 200)
        reclaims, decision = "/v1/reclaims?wait=5m", "/v1/decisions/waits?wait=5m"
        paths = ((decision, "scheduler"), ("/v1/decisions/globex/waits?wait=5m", "admin"), (f"{reclaims}&tenant=globex", "scheduler"), (reclaims, "globex"))
        polls = [self.poll(path, role) for path, role in paths]
        wait_for("4 polls", lambda: self.kept() == 4, self.stack.aggregator)
        for path, role in paths:  # the tenant has as many as it may, whoever polls
            with self.subTest(path=path, role=role):
                refused = self.poll(path, role)
                wait_for("an answer", refused.answered, self.stack.aggregator)
                reply = refused.reply()
                self.assertEqual((reply.status, reply.json()["limit"]), (429, "polls-per-caller"))
        # what names no tenant, or another one, is the scheduler's own
        polls += [self.poll(path, "scheduler") for path in [reclaims] * 6 + [f"{reclaims}&tenant=acme"]]
        wait_for("7 more", lambda: self.kept() == 11, self.stack.aggregator)
        polls[0].close()
        wait_for("a place", lambda: self.kept() == 10, self.stack.aggregator)
        polls.append(self.poll(decision, "scheduler"))
        wait_for("it is taken", lambda: self.kept() == 11, self.stack.aggregator)
        self.assertFalse(any(poll.answered() for poll in polls[1:]))


class Waited(Trust):
    def test_who_waited_is_told_how_things_stand_then(self):
        s = self.stack

        def waits(name, **more):
            return ask(name, "globex/research", 2, preemptible=False, **more)

        self.assertEqual(self.post("/v1/decisions", waits("runs")).json()["status"], "admitted")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            told = pool.submit(self.post, "/v1/decisions?wait=5m", waits("first"))
            wait_for("it waits", lambda: s.call("GET", "/v1/decisions/first").status == 200, s.aggregator)
            self.assertEqual(self.post("/v1/decisions", waits("passes", priority=5)).json()["position"], 1)
            s.aggregator.stop()  # then nobody waits any longer
            self.assertEqual((told.result().json()["status"], told.result().json()["position"]), ("waiting", 2))


class Limits(Trust):
    """What one tenant may have open; another one does not notice."""

    OPTIONS = {"--tenant-queued": "3", "--tenant-exceptions": "2"}

    def refused(self, reply, limit, tenant, count):
        self.assertEqual(reply.status, 429, reply.text())
        self.assertTrue(reply.headers["Retry-After"])
        self.assertRegex(reply.json()["detail"], rf'^{limit}: .*"{tenant}" has {count} .* {count}$')

    def test_requests_that_wait(self):
        def waits(i):
            return ask(f"waits-{i}", "globex/research", 2, preemptible=False)

        self.assertEqual(self.post("/v1/decisions", ask("runs", "globex/research", 2)).json()["decision"], "admit")
        self.assertEqual([self.post("/v1/decisions", waits(i)).json()["status"] for i in range(3)], ["waiting"] * 3)
        for role in ("scheduler", "globex"):
            self.refused(self.post("/v1/decisions", waits(3), role), "tenant-queued", "globex", 3)
        self.assertEqual(self.stack.call("GET", "/v1/decisions/waits-3").status, 404)
        for known in (waits(0), ask("runs", "globex/research", 2)):  # what was decided is told again
            self.assertEqual(self.post("/v1/decisions", known).status, 200)
        self.assertEqual(self.post("/v1/decisions", ask("other", "acme/prod", 1)).json()["status"], "admitted")
        self.assertEqual(self.stack.call("DELETE", "/v1/decisions/waits-0", role="globex").status, 200)
        self.assertEqual(self.post("/v1/decisions", waits(3)).json()["status"], "waiting")

    def test_exceptions_that_are_not_over(self):
        def extra(workspace, role):
            body = {"workspace": workspace, "gpu_model": SHORT, "gpus": 1, "until": "1h", "reason": "a deadline"}
            return self.post("/v1/exceptions", body, role)

        made = [extra("prod", "acme") for _ in range(2)]
        self.assertEqual([r.status for r in made], [201] * 2)
        self.refused(extra("dev", "acme"), "tenant-exceptions", "acme", 2)
        self.assertEqual(extra("research", "globex").status, 201)
        self.assertEqual(self.post(f"/v1/exceptions/{made[0].json()['id']}/refuse", {"reason": "no"}, "admin").status, 200)
        self.assertEqual(extra("dev", "acme").status, 201)

    def test_skus(self):
        def send(events, kind="application/cloudevents-batch+json"):
            return self.stack.call("POST", "/v1/events", json.dumps(events).encode(), headers={"Content-Type": kind})

        def event(sku, tenant="acme", workspace="prod", name=None):
            at = datetime.datetime.now(datetime.timezone.utc)
            return {"specversion": "1.0", "id": name or f"{tenant}-{sku}", "source": "/skus", "type": "tollgate.storage.v1", "time": at.isoformat(),
                    "data": {"tenant": tenant, "workspace": workspace, "sku": f"sku-{sku}", "gb_hours": 1}}  # fmt: skip

        single = "application/cloudevents+json"
        for first in range(0, 10_000, 5000):
            self.assertEqual(send([event(i) for i in range(first, first + 5000)]).json()["accepted"], 5000)
        one = send(event("more"), single)
        self.assertEqual((one.status, one.json().get("field")), (429, "data.sku"))
        self.assertRegex(one.json()["detail"], "^tenant-skus: .* 10000 .* 10000$")
        self.assertTrue(one.headers["Retry-After"])
        mixed = send([event("more"), event(7, name="again"), event("more", "globex", "research"), event("yet more")])
        self.assertEqual((mixed.status, [e["status"] for e in mixed.json()["events"]]), (207, ["refused", "accepted", "accepted", "refused"]))
        self.assertEqual(self.stack.sql("SELECT count(*) FROM meter_event WHERE sku LIKE '%more'"), [["1"]])

    def test_holders_of_one_batch(self):
        def push(seq, count):
            now = time.time_ns() // MINUTE * MINUTE - 3 * MINUTE + seq * MINUTE
            holders = [{"id": seq * 100_000 + i, "kind": 1, "namespace": "prod", "pod": f"p{i}", "pod_uid": f"uid-{seq}-{i}"} for i in range(count)]
            batch = {"node": "n1", "boot_id": "00" * 16, "epoch": 200, "seq": seq, "flags": 1, "from_ns": now, "to_ns": now + MINUTE, "devices": [], "holders": holders, "records": []}
            return self.stack.call("POST", "/v1/ingest", ledger.frames([batch]), role="node n1")

        self.assertEqual(push(1, 4096).status, 200)
        self.assertEqual(push(2, 4097).status, 200)
        # A holder has a row once a record of it counts; until then its dictionary entry is kept.
        self.assertEqual(self.stack.sql("SELECT count(*) FROM stream_holder_entry WHERE pod_uid LIKE 'uid-1-%'"), [["4096"]])
        self.assertEqual(self.stack.sql("SELECT count(*) FROM stream_holder_entry WHERE pod_uid LIKE 'uid-2-%'"), [["0"]])
        [batch] = self.stack.get("/v1/quarantine").json()["batches"]
        self.assertIn("names 4097 holders, and may name 4096", batch["reason"])


class Confirmations(Trust):
    def test_a_tenant_is_not_told_which_nodes_and_gpus_there_are(self):
        answers = []
        for i, (node, gpu) in enumerate([("n1", Nodes.uuid("n1", 0)), ("n1", "GPU-none"), ("nosuch", "GPU-none"), ("n3", "GPU-none")]):
            self.assertEqual(self.post("/v1/decisions", ask(f"lease-{i}", "lab", 1), "globex").json()["status"], "admitted")
            reply = self.post(f"/v1/leases/lease-{i}/confirm", {"nodes": [{"node": node, "gpus": [gpu]}]}, "globex")
            answers.append((reply.status, reply.json().get("status"), reply.json().get("warnings")))
        self.assertEqual(set(map(str, answers)), {str(answers[0])})
        self.assertEqual(answers[0][:2], (200, "confirmed"))
        self.assertIn("planned place", answers[0][2][0])
        unknown = self.post("/v1/leases/lease-0/confirm", {"nodes": [{"node": "nosuch", "gpus": ["GPU-none"]}]})
        self.assertEqual(unknown.status, 400)  # a scheduler is told

    def test_another_tenants_pod_is_not_believed_to_be_a_lease_of_mine(self):
        stranger = {"namespace": "prod", "pod": "prod-0", "pod_uid": "uid-prod"}
        self.assertEqual(self.post("/v1/decisions", ask("mine", "lab", 1, workload=stranger), "globex").json()["status"], "admitted")
        at = time.time_ns() // MINUTE * MINUTE - MINUTE
        pods = [{"id": 1, "kind": 1, "ns": "prod", "pod": "prod-0", "pod_uid": "uid-prod", "container": "main"}]  # attributed from here on
        batch = {"node": "n4", "boot_id": "00" * 16, "epoch": 300, "seq": 1, "flags": 1, "from_ns": at, "to_ns": at + MINUTE, "holders": pods,
                 "devices": [{"id": 1, "uuid": Nodes.uuid("n4", 0), "model": MODEL, "index": 0}],
                 "records": [[1, 1, 1, 1, 1, 5040, at, MINUTE, MINUTE, 0, 0, 0, 0, 0, 1]]}  # fmt: skip
        self.assertEqual(self.stack.call("POST", "/v1/ingest", ledger.frames([batch]), role="node n4").status, 200)
        self.nodes.holders = {("n4", 0): [holder("prod") | {"device": Nodes.uuid("n4", 0)}]}  # a shared node
        self.nodes.speak()

        def unleased():
            found = self.stack.get("/v1/quota/anomalies").json()["anomalies"]
            return [a["subject"] for a in found if a["kind"] == "unleased" and a["tenant"] == "acme"]

        self.assertEqual(wait_for("a GPU in use that nobody leased", unleased, self.stack.aggregator), ["acme/prod n4"])
        self.assertEqual(self.stack.get("/v1/decisions/globex/mine").json()["status"], "admitted")


if __name__ == "__main__":
    unittest.main()
