"""POST /v1/events: CloudEvents of other meters. Each counts once, whoever sends it how often, and each has its own answer."""

# instead: san

import csv
import datetime
import decimal
import gzip
import io
import json
import os
import random
import re
import threading
import unittest

from tests.support.daemons import stack

POLICY = """
version: 1
cluster: test
tenants:
  - {name: acme, workspaces: [{name: ml, rules: [{namespace: acme-*}]}, {name: web}]}
  - {name: globex, workspaces: [{name: research, rules: [{namespace: globex}]}]}
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""
SINGLE, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
AMOUNTS = {"storage": "gb_hours", "egress": "gb", "support": "hours"}
INFERENCE = ("requests", "input_tokens", "output_tokens")
SEED = int(os.environ.get("TOLLGATE_PROP_SEED") or random.SystemRandom().randrange(1 << 32))


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def event(number, kind="storage", source="/test", at=None, owner=None, **data):
    owner = {"tenant": "acme", "workspace": "ml"} if owner is None else owner
    if kind in AMOUNTS:
        data.setdefault(AMOUNTS[kind], 1)
    at = at or now() - datetime.timedelta(minutes=1)
    return {"specversion": "1.0", "id": str(number), "source": source, "type": f"tollgate.{kind}.v1", "time": at.isoformat(),
            "data": {**owner, **data}}  # fmt: skip


class Events(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(stack.Stack())
        first = f"effective: {now() - datetime.timedelta(days=50):%Y-%m-%dT00:00:00Z}\n"  # its tenants and workspaces are in force from here on
        s.apply(re.sub(r", rules: \[.*?\]", "", POLICY) + first)
        cls.since = datetime.datetime.fromisoformat(s.apply(POLICY)["effective"])  # when its rules began
        s.token("billing", role="billing")
        for tenant in ("acme", "globex"):
            s.token(tenant, role="tenant-admin", tenant=tenant)
        s.token("viewer", role="viewer", tenant="acme")

    def post(self, body, role="admin"):
        kind = BATCH if isinstance(body, list) else SINGLE
        return self.stack.call("POST", "/v1/events", json.dumps(body).encode(), role=role, headers={"Content-Type": kind})

    def fates(self, events, role="admin"):
        return [e["status"] for e in self.post(events, role).json()["events"]]

    def rows(self, source):
        return int(self.stack.sql(f"select count(*) from meter_event e join event_source s on s.id = e.source_id where s.name = '{source}'")[0][0])

    def totals(self, source):
        """Of one source, by another path than meter_usage(): the table's own columns."""
        found = self.stack.sql(
            "select t.name, w.name, e.type, e.sku, sum(e.amount), sum(e.requests), sum(e.input_tokens), sum(e.output_tokens), count(*) "
            "from meter_event e join event_source s on s.id = e.source_id "
            "left join holder_attribution a on a.holder_id = e.holder_id and a.effective @> at_ns(e.time_ns) "
            "join workspace w on w.id = coalesce(e.workspace_id, a.workspace_id) join tenant t on t.id = w.tenant_id "
            f"where s.name = '{source}' group by 1, 2, 3, 4 order by 1, 2, 3, 4"
        )
        return [[None if v is None else decimal.Decimal(v) if i > 3 else v for i, v in enumerate(row)] for row in found]

    def summary(self, role="admin", **params):
        """Of all months: a minute ago may be last month."""
        months = [row[0] for row in self.stack.sql("select month from period order by month")]
        return [m for month in months for m in self.stack.get("/v1/events/summary" + stack.query(period=month, **params), role).json()["meters"]]

    # ---- answers ----

    def test_an_event_counts_once_and_its_repetition_is_acknowledged(self):
        e = event(1, source="/once", gb_hours="12.5")
        first, second = self.post(e), self.post(e)
        self.assertEqual([first.status, second.status], [200, 200])
        self.assertEqual(first.json()["events"], [{"index": 0, "id": "1", "source": "/once", "status": "accepted"}])
        self.assertEqual((second.json()["accepted"], second.json()["duplicates"]), (0, 1))
        self.assertEqual(self.rows("/once"), 1)

    def test_the_same_id_with_other_content_is_refused_and_counted(self):
        e = event(1, source="/conflict", gb_hours="12.5")
        self.post(e)
        before = self.counter("conflict")
        reply = self.post({**e, "data": {**e["data"], "gb_hours": "12.6"}})
        self.assertEqual(reply.status, 409)
        self.assertEqual(reply.json()["field"], "id")
        self.assertEqual(self.counter("conflict"), before + 1)
        self.assertEqual(self.post(e).json()["duplicates"], 1, "the first one still stands")

    def counter(self, result):
        for line in self.stack.get("/metrics", role=None).text().splitlines():
            if line.startswith(f'tollgate_events_total{{result="{result}"}}'):
                return int(line.rpartition(" ")[2])
        raise AssertionError(f"no counter of {result}")

    def test_of_a_batch_that_is_partly_bad_every_event_has_its_own_answer(self):
        old, ahead = now() - datetime.timedelta(days=45, minutes=1), now() + datetime.timedelta(minutes=6)
        batch = [
            event(1, source="/part"),
            event(2, source="/part", at=old),
            event(3, source="/part", at=ahead),
            event(4, source="/part", owner={"tenant": "acme", "workspace": "none"}),
            event(1, source="/part", gb_hours=1, at=datetime.datetime.fromisoformat("2026-01-01T00:00:00+00:00")),
            {"id": 7},
            event(5, source="/part", gb_hours=1.5),
            event(6, source="/part", owner={"tenant": "unattributed", "workspace": "unattributed"}),
            event(7, "egress", source="/part", gb="0.000000001"),
        ]
        batch.append(batch[0])
        batch.append({**batch[0], "data": {**batch[0]["data"], "gb_hours": 2}})
        reply = self.post(batch)
        self.assertEqual(reply.status, 207)
        answers = reply.json()["events"]
        self.assertEqual([a["index"] for a in answers], list(range(len(batch))))
        self.assertEqual(
            [(a["status"], a.get("problem", {}).get("field")) for a in answers],
            [("accepted", None), ("refused", "time"), ("refused", "time"), ("refused", "data.workspace"), ("refused", "time"),
             ("refused", "id"), ("refused", "data.gb_hours"), ("refused", "data.workspace"), ("accepted", None), ("duplicate", None),
             ("conflict", "id")],
        )  # fmt: skip
        self.assertEqual(self.rows("/part"), 2)
        self.assertEqual(answers[3]["problem"]["status"], 404)
        self.assertIn("45d", answers[1]["problem"]["detail"])

    def test_an_empty_batch_is_nothing(self):
        reply = self.post([])
        self.assertEqual((reply.status, reply.json()["events"]), (200, []))

    def test_a_request_that_is_no_events_fails_as_a_whole(self):
        for body, kind, status in ((b"{}", "application/json", 415), (b"{", SINGLE, 400), (b"[]", SINGLE, 400), (b"{}", BATCH, 400),
                                   (json.dumps([1] * 10001).encode(), BATCH, 400), (b" " * ((4 << 20) + 1), BATCH, 413)):  # fmt: skip
            with self.subTest(kind=kind, status=status):
                reply = self.stack.call("POST", "/v1/events", gzip.compress(body), headers={"Content-Type": kind, "Content-Encoding": "gzip"})
                self.assertEqual(reply.status, status)
                self.assertEqual(reply.headers["Content-Type"], "application/problem+json")

    # ---- whose ----

    def test_a_tenants_sender_adds_to_its_own_tenant_and_has_its_own_ids(self):
        mine = event(1, source="/shared", owner={"workspace": "web"})
        self.assertEqual(self.fates([mine], "acme"), ["accepted"])
        for other in ({"tenant": "globex", "workspace": "research"}, {"tenant": "nobody", "workspace": "research"}):
            reply = self.post(event(2, source="/shared", owner=other), "acme")
            self.assertEqual(reply.status, 404)
            self.assertEqual(reply.json()["detail"].replace("globex", "nobody"),
                             'there is no workspace "research" of a tenant "nobody" at that time')  # fmt: skip
        self.assertEqual(self.post(event(3, source="/shared", owner={"namespace": "globex"}), "acme").status, 403)
        # the same source and id of others is another event: nobody can take ids away or learn which are taken
        theirs = event(1, source="/shared", owner={"workspace": "research"}, gb_hours=5)
        self.assertEqual(self.fates([theirs], "globex"), ["accepted"])
        self.assertEqual(self.fates([event(1, source="/shared", gb_hours=9)], "billing"), ["accepted"])
        self.assertEqual(self.fates([mine], "acme"), ["duplicate"])
        self.assertEqual({m["tenant"] for m in self.summary("viewer")}, {"acme"})

    def test_a_namespace_is_attributed_by_the_rules_also_when_they_change(self):
        batch = [event(i, source="/ns", at=self.since, owner={"namespace": n}) for i, n in enumerate(("acme-a", "acme-b", "nobodys", "acme-a"))]
        self.assertEqual(set(self.fates(batch)), {"accepted"})
        self.assertEqual([(r[0], r[1], int(r[8])) for r in self.totals("/ns")], [("acme", "ml", 3), ("unattributed", "unattributed", 1)])
        holders = self.stack.sql("select count(*) from holder where namespace in ('acme-a', 'acme-b', 'nobodys')")
        self.assertEqual(holders, [["3"]], "one holder for each namespace")
        # another owner from some hour on
        self.stack.apply(POLICY.replace("namespace: globex", "namespace: nobodys"))
        ranges = self.stack.sql("select count(*) from holder_attribution a join holder h on h.id = a.holder_id where h.namespace = 'nobodys'")
        self.assertEqual(ranges, [["2"]])

    # ---- totals ----

    def test_the_summary_has_exact_sums_by_workspace_meter_and_sku(self):
        who = {"tenant": "globex", "workspace": "research"}
        at = self.since  # one moment, so that all of it is of one month
        batch = [event(i, source="/sum", at=at, owner=who, sku="nvme", gb_hours="0.1") for i in range(10)]
        batch += [event(20, "support", source="/sum", at=at, owner=who, hours="0.25"),
                  event(21, "inference", "/sum", at, who, model="llama", requests=2, input_tokens=100, caller="a", server="b"),
                  event(22, "inference", "/sum", at, who, model="llama", output_tokens="7")]  # fmt: skip
        self.assertEqual(set(self.fates(batch)), {"accepted"})
        found = {}
        for m in self.summary(tenant="globex"):
            if m["sku"] in ("nvme", "llama") or m["meter"] == "support":
                found[m["meter"], m["sku"]] = (m["category"], m["unit"], m["quantity"], m["events"])
        self.assertEqual(found, {
            ("storage", "nvme"): ("storage", "GB-hour", "1", 10),
            ("support", "standard"): ("support", "hour", "0.25", 1),
            ("inference-requests", "llama"): ("inference", "request", "2", 1),
            ("inference-input-tokens", "llama"): ("inference", "token", "100", 1),
            ("inference-output-tokens", "llama"): ("inference", "token", "7", 1),
        })  # fmt: skip
        self.assertEqual({m["meter"] for m in self.summary(meter="support")}, {"support"})
        self.assertEqual(self.stack.call("GET", "/v1/events/summary?meter=gpu").status, 400)
        self.assertEqual(self.stack.call("GET", "/v1/events/summary?period=1999-01").status, 404)

    def test_a_meter_sends_events_of_its_sources_for_every_tenant_and_does_nothing_else(self):
        s = self.stack
        s.token("gateway", role="meter", sources="/gateway/eu,/gateway/us")
        batch = [event("m1", source="/gateway/eu"), event("m2", source="/gateway/us", owner={"tenant": "globex", "workspace": "research"}),
                 event("m3", source="/gateway"), event("m4", source="/gateway/us", at=self.since, owner={"namespace": "acme-a"})]  # fmt: skip
        reply = self.post(batch, "gateway").json()
        self.assertEqual([e["status"] for e in reply["events"]], ["accepted", "accepted", "refused", "accepted"])
        self.assertEqual((reply["events"][2]["problem"]["status"], reply["events"][2]["problem"]["field"]), (403, "source"))
        self.assertEqual(self.post(event("m3", source="/gateway"), "gateway").status, 403)
        self.assertEqual(self.fates([event("m1", source="/gateway/eu", at=self.since)]), ["conflict"], "one set of sources with the operator's senders")
        for method, path in (("GET", "/v1/events/summary"), ("GET", "/v1/tenants"), ("GET", "/v1/reports/current.csv"), ("POST", "/v1/tokens"), ("POST", "/v1/decisions")):
            self.assertEqual(s.call(method, path, b"{}" if method == "POST" else None, "gateway").status, 403, path)
        self.assertNotIn("acme", s.call("GET", "/metrics", role="gateway").text())
        self.assertEqual(s.call("GET", "/v1/whoami", role="gateway").json()["sources"], "/gateway/eu,/gateway/us")
        for body, field in (({"role": "meter"}, "sources"), ({"role": "meter", "sources": ""}, "sources"), ({"role": "meter", "sources": "/a,,/b"}, "sources"),
                            ({"role": "meter", "sources": "/a b"}, "sources"), ({"role": "meter", "sources": "/a", "tenant": "acme"}, "tenant"),
                            ({"role": "meter", "sources": ",".join(["/a"] * 65)}, "sources"), ({"role": "billing", "sources": "/a"}, "sources")):  # fmt: skip
            reply = s.call("POST", "/v1/tokens", json.dumps(body).encode())
            self.assertEqual((reply.status, reply.json()["detail"].split(":")[0]), (400, field), body)
        with self.assertRaisesRegex(RuntimeError, "keeps what it was made for"):
            s.sql("update access_token set sources = '{/other}' where role = 'meter'")

    def test_the_end_user_of_an_inference_is_kept_and_can_be_grouped_by(self):
        def ask(number, **data):
            return event(number, "inference", source="/users", at=self.since, model="llama", requests=1, **data)

        batch = [ask("u1", end_user="ann@example.com", input_tokens=7), ask("u2", end_user="ann@example.com"), ask("u3"), ask("u4", end_user="bob")]
        self.assertEqual(self.fates(batch), ["accepted"] * 4)
        self.assertEqual(self.fates([ask("u1", end_user="eve", input_tokens=7), ask("u3")]), ["conflict", "duplicate"], "who asked is part of what it says")
        for wrong in ("x" * 254, "a\nb", 7):
            self.assertEqual(self.post(ask("u5", end_user=wrong)).json().get("field"), "data.end_user", wrong)
        self.assertEqual(self.post(event("u6", end_user="ann")).status, 400, "storage has no end user")
        rows = self.stack.get(f"/v1/events/summary?by=end_user&period={self.since:%Y-%m}", "acme").json()["meters"]
        mine = {(r["end_user"], r["meter"]): (r["quantity"], r["events"]) for r in rows if r["sku"] == "llama" and r["end_user"] != ""}
        self.assertEqual(mine, {("ann@example.com", "inference-requests"): ("2", 2), ("ann@example.com", "inference-input-tokens"): ("7", 1), ("bob", "inference-requests"): ("1", 1)})
        self.assertEqual(self.stack.get("/v1/events/summary?by=end_user", "globex").text().count("bob"), 0)

    def draw(self, rng, source, count):
        """Random sound events, and what they add up to without the ledger's code."""
        owners = [("acme", "ml", {"tenant": "acme", "workspace": "ml"}), ("acme", "web", {"tenant": "acme", "workspace": "web"}),
                  ("acme", "ml", {"namespace": "acme-x"}), ("unattributed", "unattributed", {"namespace": "zzz"})]  # fmt: skip
        kinds = {"storage": "1", "egress": "2", "inference": "3", "support": "4"}
        events, truth = [], {}
        for i in range(count):
            tenant, workspace, owner = rng.choice(owners)
            kind, sku = rng.choice(list(kinds)), rng.choice(["a", "b"])
            at = now() - datetime.timedelta(seconds=rng.choice([rng.randrange(1, 44 * 86400), 1]))
            if "namespace" in owner and at < self.since:
                tenant = workspace = "unattributed"
            row = truth.setdefault((tenant, workspace, kinds[kind], sku), [None] * 4 + [decimal.Decimal(0)])
            data = {"sku": sku}
            if kind == "inference":
                data["model"] = "m"
                for k, name in enumerate(INFERENCE):
                    if k == 0 or rng.random() < 0.5:
                        data[name] = rng.randrange(10**9)
                        row[1 + k] = (row[1 + k] or 0) + decimal.Decimal(data[name])
            else:
                amount = decimal.Decimal(rng.randrange(10**15)).scaleb(-9)
                data[AMOUNTS[kind]] = f"{amount:f}"
                row[0] = (row[0] or 0) + amount
            row[4] += 1
            events.append(event(i, kind, source, at, owner, **data))
        return events, [[*key, *truth[key]] for key in sorted(truth)]

    def scatter(self, rng, events):
        """Permuted, some repeated, split anywhere."""
        copies = events + rng.sample(events, len(events) // 3)
        rng.shuffle(copies)
        batches = []
        while copies:
            n = rng.randrange(1, 40)
            batches.append(copies[:n])
            copies = copies[n:]
        return batches

    def test_permuted_repeated_and_split_batches_give_the_same_totals(self):
        rng = random.Random(SEED)
        for case in range(6):
            source = f"/prop/{case}"
            events, truth = self.draw(rng, source, rng.randrange(1, 150))
            with self.subTest(seed=SEED, case=case):
                for batch in self.scatter(rng, events):
                    self.assertLessEqual(set(self.fates(batch)), {"accepted", "duplicate"})
                self.assertEqual(self.totals(source), truth)

    def test_two_senders_of_the_same_events_at_once_count_them_once(self):
        rng = random.Random(SEED)
        events, truth = self.draw(rng, "/twice", 400)
        accepted, failures = [], []

        def send(seed):
            for batch in self.scatter(random.Random(seed), events):
                reply = self.post(batch)
                if reply.status == 200:
                    accepted.append(reply.json()["accepted"])
                else:
                    failures.append(reply.text())

        senders = [threading.Thread(target=send, args=(seed,)) for seed in range(4)]
        for t in senders:
            t.start()
        for t in senders:
            t.join()
        self.assertEqual(failures, [])
        self.assertEqual(sum(accepted), len(events), "each was accepted by exactly one answer")
        self.assertEqual(self.totals("/twice"), truth)

    # ---- the command line ----

    def cli_file(self, events):
        path = os.path.join(self.stack.dir, "events.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(events, f)
        return path

    def test_the_command_line_sends_a_file_of_one_or_many_and_lists_what_was_refused(self):
        done = self.stack.cli("events", "send", self.cli_file(event(1, source="/cli")))
        self.assertEqual((done.returncode, done.stdout), (0, "1 accepted, 0 known already, 0 refused\n"))
        path = self.cli_file([event(2, source="/cli"), event(3, source="/cli", at=now() - datetime.timedelta(days=46)), event(2, source="/cli", gb_hours=9)])
        done = self.stack.cli("events", "send", path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 accepted, 0 known already, 2 refused\n", done.stdout)
        self.assertIn("45d", done.stdout)
        self.assertEqual(json.loads(self.stack.cli("events", "send", path, "-o", "json").stdout)["duplicates"], 1)
        rows = list(csv.DictReader(io.StringIO(self.stack.cli("events", "send", path, "-o", "csv").stdout)))
        self.assertEqual([(r["index"], r["status"], r["field"]) for r in rows], [("0", "duplicate", ""), ("1", "refused", "time"), ("2", "conflict", "id")])
        self.assertEqual(self.stack.cli("events", "send", self.cli_file({})).returncode, 1)
        self.assertEqual(self.rows("/cli"), 2)

    def test_the_command_line_shows_what_a_month_adds_up_to(self):
        self.post(event(1, "support", source="/cli/month", at=self.since))
        month = self.since.strftime("%Y-%m")
        shown = json.loads(self.stack.cli("events", "summary", month, "--meter", "support", "--tenant", "acme", "-o", "json").stdout)
        self.assertEqual({m["meter"] for m in shown["meters"]}, {"support"})
        rows = list(csv.DictReader(io.StringIO(self.stack.cli("events", "summary", month, "--meter", "support", "-o", "csv").stdout)))
        self.assertIn(("acme", "ml"), {(r["tenant"], r["workspace"]) for r in rows})
        self.assertIn("support", self.stack.cli("events", "summary", month).stdout)
        self.assertEqual(self.stack.cli("events", "summary", "--meter", "gpu").returncode, 2)

    # ---- wrong states ----

    def test_the_table_refuses_what_the_program_never_writes(self):
        self.post(event(1, source="/table"))
        key = "(select id from event_source where name = '/table')"
        row = {"time_ns": "1", "source_id": key, "token_id": "1", "workspace_id": "(select min(id) from workspace where not builtin)", "type": "1",
               "id": "'x'", "sku": "'s'", "amount": "1", "model": "''", "caller": "''", "server": "''", "digest": "sha256('x')"}  # fmt: skip
        cases = {
            "the same key twice": {"id": "'1'"}, "nobody's": {"workspace_id": "null"}, "two owners": {"holder_id": "(select min(id) from holder)"},
            "no amount": {"amount": "null"}, "less than nothing": {"amount": "-1"}, "no number": {"amount": "'NaN'"},
            "requests of storage": {"requests": "1"}, "inference without model": {"type": "3", "amount": "null", "requests": "1"},
            "an unknown type": {"type": "5"}, "a short digest": {"digest": "'x'"}, "nobody sent it": {"token_id": "null"},
        }  # fmt: skip
        self.post(event(2, source="/table", owner={"namespace": "acme-t"}))
        for name, change in cases.items():
            columns = {**row, **change}
            with self.subTest(name), self.assertRaises(RuntimeError) as refused:
                self.stack.sql(f"insert into meter_event ({', '.join(columns)}) values ({', '.join(columns.values())})")
            self.assertIn("violates", str(refused.exception), name)
        for statement in ("update meter_event set amount = 2", "delete from meter_event", "truncate meter_event"):
            with self.assertRaises(RuntimeError) as refused:
                self.stack.sql(statement)
            self.assertRegex(str(refused.exception), "only ever added|is not emptied")
        self.assertEqual(self.rows("/table"), 2)


class Killed(unittest.TestCase):
    # a request stays at the lock until the test has seen it there
    PATIENT = ["--lock-timeout", "10m", "--statement-timeout", "10m"]

    def test_an_aggregator_killed_in_the_middle_of_a_request_has_stored_all_of_it_or_nothing(self):
        with stack.Stack(options=self.PATIENT) as s:
            s.apply(POLICY)
            for case in range(6):
                batch = [event(i, source=f"/kill/{case}") for i in range(500)]
                body = json.dumps(batch).encode()
                # The transaction stands still at a lock that this test has, so the kill is in the middle of it.
                lock = threading.Thread(target=self.hold, args=(s, case)) if case % 2 else None
                sender = threading.Thread(target=self.send, args=(s, body))
                if lock:
                    lock.start()
                    stack.wait_for("the lock", lambda: s.sql("select count(*) from pg_locks where relation = 'meter_event'::regclass and mode = 'ExclusiveLock'") != [["0"]])
                sender.start()
                if lock:
                    stack.wait_for("the request at the lock", lambda: s.sql(
                        "select count(*) from pg_locks where relation = 'meter_event'::regclass and not granted") != [["0"]])  # fmt: skip
                s.aggregator.kill9()
                if lock:
                    s.sql("select pg_terminate_backend(pid) from pg_stat_activity where query like '%pg_sleep%' and pid <> pg_backend_pid()")
                    lock.join()
                sender.join()
                s.restart_aggregator()
                # A transaction that lost its client ends by itself: its rows are there, all of them, or they are not.
                stack.wait_for("the end of the transaction", lambda: s.sql(
                    "select count(*) from pg_locks where relation = 'meter_event'::regclass and mode = 'RowExclusiveLock'") == [["0"]])  # fmt: skip
                count = f"select count(*) from meter_event e join event_source s on s.id = e.source_id where s.name = '/kill/{case}'"
                self.assertIn(s.sql(count), ([["0"]], [["500"]]))
                again = s.call("POST", "/v1/events", body, headers={"Content-Type": BATCH}).json()
                self.assertEqual(again["accepted"] + again["duplicates"], 500)
                self.assertEqual(s.sql(count), [["500"]])

    def test_a_database_killed_in_the_middle_of_a_request_is_answered_503_and_the_repetition_counts_once(self):
        with stack.Stack(options=self.PATIENT) as s:
            s.apply(POLICY)
            body = json.dumps([event(i, source="/crash") for i in range(500)]).encode()
            answers = []
            lock = threading.Thread(target=self.hold, args=(s, 0))
            sender = threading.Thread(target=lambda: answers.append(self.send(s, body)))
            lock.start()
            stack.wait_for("the lock", lambda: s.sql("select count(*) from pg_locks where relation = 'meter_event'::regclass and mode = 'ExclusiveLock'") != [["0"]])
            sender.start()
            stack.wait_for("the request at the lock", lambda: s.sql(
                "select count(*) from pg_locks where relation = 'meter_event'::regclass and not granted") != [["0"]])  # fmt: skip
            s.pg.crash()
            sender.join()
            lock.join()
            self.assertEqual(answers, [503])
            s.pg.start()
            s.wait_ready()
            self.assertEqual(s.sql("select count(*) from meter_event"), [["0"]])
            self.assertEqual([self.send(s, body), self.send(s, body)], [200, 200])
            self.assertEqual(s.sql("select count(*), sum(amount)::int from meter_event"), [["500", "500"]])

    def send(self, s, body):
        """The status, or None: no answer, and that is what the repetition is for."""
        try:
            return s.call("POST", "/v1/events", body, headers={"Content-Type": BATCH}).status
        except OSError:
            return None

    def hold(self, s, case):
        try:
            s.sql(f"begin; lock table meter_event in exclusive mode; select pg_sleep(600), {case}; commit")
        except RuntimeError:
            pass  # ended from outside, as meant


if __name__ == "__main__":
    unittest.main()
