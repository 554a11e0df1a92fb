"""Tokens from their making to their end, nodes that join, and the log that has it all."""

# instead: san

import concurrent.futures
import contextlib
import json
import os
import stat
import subprocess
import unittest

from tests.support.daemons.stack import Stack, program, query, request, wait_for
from tests.support.store import ledger

POLICY = """
version: 1
cluster: test
tenants:
  - {name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}
  - {name: globex, workspaces: [{name: research, rules: [{namespace: globex}]}]}
nodes: [{name: n1, shared: true}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""
NS = 1_000_000_000


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # a test locks the table of tokens: the daemon's patience must not decide
        cls.stack = cls.enterClassContext(Stack(options=["--lock-timeout", "10m", "--statement-timeout", "10m"]))
        cls.stack.apply(POLICY)
        cls.stack.token("boss of acme", role="tenant-admin", tenant="acme")
        cls.stack.token("viewer of globex", role="viewer", tenant="globex")

    def post(self, path, by="admin", /, **what):
        return self.stack.call("POST", path, json.dumps(what).encode(), role=by)

    def make(self, by="admin", /, **what):
        reply = self.post("/v1/tokens", by, **what)
        self.assertEqual(reply.status, 201, reply.text())
        return reply.json()

    def as_token(self, token, path="/v1/tenants"):
        self.stack.tokens["this one"] = token
        return self.stack.call("GET", path, role="this one")

    def entries(self, role="admin", **query):
        return self.stack.get("/v1/audit?" + "&".join(f"{k}={v}" for k, v in query.items()), role).json()["entries"]

    def rows(self, role="admin", query="limit=1000"):
        return {t["id"]: t for t in self.stack.get("/v1/tokens?" + query, role).json()["tokens"]}

    def refused(self, reply, status, *words):
        self.assertEqual(reply.status, status, reply.text())
        for word in words:
            self.assertIn(word, reply.json()["detail"])


class Tokens(Case):
    def test_every_role_may_see_its_own_token_and_only_that(self):
        for what in ({"role": "admin"}, {"role": "scheduler"}, {"role": "viewer", "tenant": "acme", "expires": "30d"}, {"role": "node", "node": "who"}):
            with self.subTest(what=what):
                made = self.make(description="who", **what)
                reply = self.as_token(made["token"], "/v1/whoami")
                self.assertEqual(reply.status, 200, reply.text())
                row = reply.json()
                self.assertEqual(row, self.rows()[made["id"]])
                self.assertEqual((row["tenant"], row["node"], row["expires"]), (what.get("tenant"), what.get("node"), made["expires"]))
                self.assertNotIn(made["token"], reply.text())

    def test_a_revoked_token_is_refused_from_the_next_request_on(self):
        made = self.make(role="viewer", tenant="acme")
        self.assertEqual(self.as_token(made["token"]).status, 200)
        ended = self.stack.call("DELETE", f"/v1/tokens/{made['id']}")
        self.assertEqual((ended.status, ended.json()["status"]), (200, "revoked"))
        self.refused(self.as_token(made["token"]), 401, "revoked")

    def test_requests_that_come_together_are_each_their_own_tokens(self):
        s = self.stack
        made = {f"crowd-{i}": self.make(role="node", node=f"crowd-{i}") for i in range(12)}
        shown = {name: m["token"] for name, m in made.items()} | {"nobody": "0" * 64, "over": self.make(role="admin")["token"]}
        s.sql(f"update tollgate.access_token set revoked_at = now() where sha256 = sha256('{shown['over']}'::bytea)")
        held = "begin; lock table tollgate.access_token in access exclusive mode; select 'held';\n"
        waits = "select count(*) from pg_stat_activity where datname = 'tollgate' and wait_event_type = 'Lock'"
        with (
            concurrent.futures.ThreadPoolExecutor(14) as pool,
            subprocess.Popen([os.path.join(s.pg.bin, "psql"), "-X", "-q", "-At", "-d", s.pg.conninfo("tollgate")],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder,
        ):  # fmt: skip
            # The first looks wait for the table, and all others gather behind them.
            holder.stdin.write(held)
            holder.stdin.flush()
            self.assertEqual(holder.stdout.readline().strip(), "held")
            asked = {name: pool.submit(request, "GET", s.url + "/v1/whoami", None, token) for name, token in shown.items()}
            wait_for("two looks", lambda: int(s.sql(waits)[0][0]) >= 2)
            holder.stdin.close()
            replies = {name: a.result() for name, a in asked.items()}
        self.refused(replies.pop("nobody"), 401, "not known")
        self.refused(replies.pop("over"), 401, "revoked")
        self.assertEqual({name: (r.status, r.json()["node"], r.json()["id"]) for name, r in replies.items()}, {n: (200, n, m["id"]) for n, m in made.items()})

    def test_a_second_revocation_changes_nothing_and_is_not_logged_again(self):
        made = self.make(role="viewer", tenant="acme")
        first = self.stack.call("DELETE", f"/v1/tokens/{made['id']}").json()
        self.assertEqual(self.stack.call("DELETE", f"/v1/tokens/{made['id']}").json(), first)
        self.assertEqual(len(self.entries(action="token.revoke", subject=f"token+{made['id']}")), 1)

    def test_a_token_works_until_it_expires(self):
        made = self.make(role="viewer", tenant="acme", expires="1h")
        self.assertEqual(self.as_token(made["token"]).status, 200)
        self.assertEqual(self.rows()[made["id"]]["expires"], made["expires"])
        self.stack.sql(f"update access_token set expires_at = now() where id = {made['id']}")
        self.refused(self.as_token(made["token"]), 401, "expired")
        self.assertEqual(self.rows()[made["id"]]["status"], "expired")

    def test_what_an_expiry_may_be(self):
        for expires, by, words in (
            ("yesterday", "admin", ("expires", "yesterday", "30d")),
            ("2020-01-01T00:00:00Z", "admin", ("expires", "future")),
            ("0s", "admin", ("expires", "future")),
            ("3651d", "admin", ("expires", "3650d")),
            ("2999-01-01T00:00:00Z", "admin", ("expires", "2262")),
            ("2200-01-01T00:00:00Z", "admin", ("expires", "3650d")),
            ("100000d", "admin", ("expires", "3650d")),
            ("367d", "boss of acme", ("expires", "366d")),
        ):
            with self.subTest(expires=expires, by=by):
                self.refused(self.post("/v1/tokens", by, role="viewer", tenant="acme", expires=expires), 400, *words)
        self.assertIsNone(self.make(role="viewer", tenant="acme")["expires"])
        self.assertIsNotNone(self.make("boss of acme", role="viewer")["expires"])
        self.assertEqual(self.make(role="viewer", tenant="acme", expires="2030-01-01T01:00:00+01:00")["expires"], "2030-01-01T00:00:00Z")

    def test_a_list_has_everything_but_what_opens_a_door(self):
        made = self.make(role="node", node="n9", description="rack 4")
        row = self.rows()[made["id"]]
        self.assertEqual((row["role"], row["node"], row["tenant"], row["description"]), ("node", "n9", None, "rack 4"))
        self.assertEqual((row["name"], row["created_by"], row["status"]), (made["name"], "admin #1", "active"))
        self.assertIsNone(row["last_used"])
        text = self.stack.get("/v1/tokens?limit=1000").text()
        for name, token in self.stack.tokens.items():
            self.assertNotIn(token, text, name)
        self.assertNotIn("sha", text)

    def test_last_used_is_the_hour(self):
        made = self.make(role="viewer", tenant="acme")
        self.as_token(made["token"])
        self.assertRegex(self.rows()[made["id"]]["last_used"], r"^\d{4}-\d\d-\d\dT\d\d:00:00Z$")
        # An hour later it is written again, within it not.
        self.stack.sql(f"update access_token set last_used_at = date_trunc('hour', now()) - interval '1 hour' where id = {made['id']}")
        seen = []  # the hour, and the transaction that wrote it
        for _ in range(3):
            seen += self.stack.sql(f"select last_used_at, xmin from access_token where id = {made['id']}")
            self.as_token(made["token"])
        self.assertNotEqual(seen[0], seen[1])
        self.assertEqual(seen[1][0] == seen[2][0], seen[1][1] == seen[2][1], "written once for each hour")

    def test_a_description_is_one_short_line(self):
        self.refused(self.post("/v1/tokens", role="billing", description="x" * 201), 400, "description", "201", "200")
        self.refused(self.post("/v1/tokens", role="billing", description="two\nlines"), 400, "description")

    def test_lists_come_in_pages(self):
        for _ in range(5):
            self.make(role="billing", description="page")
        ids, query = [], "role=billing&limit=2"
        while True:
            page = self.stack.get(f"/v1/tokens?{query}").json()
            ids += [t["id"] for t in page["tokens"]]
            if page["next"] is None:
                break
            self.assertEqual(len(page["tokens"]), 2)
            query = f"role=billing&limit=2&before={page['next']}"
        self.assertEqual(ids, sorted(set(ids), reverse=True))
        self.assertEqual(set(ids), {i for i, t in self.rows().items() if t["role"] == "billing"})

    def test_wrong_filters_are_named(self):
        for query, word in (("limit=0", "limit"), ("limit=1001", "1000"), ("before=x", "before"), ("role=king", "king"), ("status=old", "old")):
            with self.subTest(query=query):
                self.refused(self.stack.call("GET", "/v1/tokens?" + query), 400, word)
        self.refused(self.stack.call("GET", "/v1/tokens?node=%ff"), 400, "node")
        self.refused(self.stack.call("GET", "/v1/tokens?tenant=%ff"), 400)
        self.refused(self.stack.call("DELETE", "/v1/tokens/x"), 404)
        self.refused(self.stack.call("DELETE", "/v1/tokens/0"), 404)

    def test_the_lookup_is_one_index_scan_however_many_tokens_there_are(self):
        s = self.stack
        s.sql("insert into access_token (sha256, role, created_by) select sha256(i::text::bytea), 'billing', 'test' "
              "from generate_series(1, 20000) i; analyze access_token;")  # fmt: skip
        # The server writes down the plans of the very statements that the program sends.
        s.sql("alter database tollgate set session_preload_libraries = 'auto_explain';"
              "alter database tollgate set auto_explain.log_min_duration = 0")  # fmt: skip
        s.aggregator.stop()
        s.restart_aggregator()
        with open(s.pg.log_file, encoding="utf-8") as log:
            log.seek(0, os.SEEK_END)
            for _ in range(8):  # beyond five a prepared statement may get a plan that does not know the token
                s.get("/v1/tenants", "viewer of globex")
            plans = [p for p in log.read().split("plan:") if "a.sha256 = e.sha256" in p]
        s.sql("alter database tollgate reset all")
        self.assertGreater(len(plans), 3)
        for plan in plans:
            self.assertIn("using access_token_sha256_key on access_token", plan)
            self.assertNotIn("Seq Scan on access_token", plan)


class TenantAdmin(Case):
    def test_makes_tokens_of_its_own_tenant_without_naming_it(self):
        for role in ("tenant-admin", "developer", "viewer"):
            made = self.make("boss of acme", role=role)
            row = self.rows()[made["id"]]
            self.assertEqual((row["role"], row["tenant"]), (role, "acme"))
            self.assertTrue(row["created_by"].startswith("tenant-admin acme #"))
            self.assertEqual(json.loads(self.as_token(made["token"]).body)[0]["name"], "acme")

    def test_makes_no_role_that_is_not_a_tenants(self):
        for role in ("admin", "billing", "scheduler"):
            self.refused(self.post("/v1/tokens", "boss of acme", role=role), 403, role)
        self.refused(self.post("/v1/tokens", "boss of acme", role="node", node="n1"), 403, "node")

    def test_another_tenant_does_not_exist_for_it(self):
        self.refused(self.post("/v1/tokens", "boss of acme", role="viewer", tenant="globex"), 404, 'no tenant "globex"')
        self.refused(self.post("/v1/tokens", "boss of acme", role="viewer", tenant="nobody"), 404, 'no tenant "nobody"')
        foreign = next(i for i, t in self.rows().items() if t["tenant"] == "globex")
        for token_id in (1, foreign, 999999999):
            self.refused(self.stack.call("DELETE", f"/v1/tokens/{token_id}", role="boss of acme"), 404, f"no token {token_id}")
        self.assertEqual(self.rows()[foreign]["status"], "active")

    def test_lists_and_revokes_its_own_tenants_tokens(self):
        made = self.make(role="developer", tenant="acme")
        mine = self.rows("boss of acme")
        self.assertEqual({t["tenant"] for t in mine.values()}, {"acme"})
        self.assertEqual(mine.keys(), {i for i, t in self.rows().items() if t["tenant"] == "acme"})
        self.assertEqual(self.stack.call("DELETE", f"/v1/tokens/{made['id']}", role="boss of acme").status, 200)
        self.refused(self.as_token(made["token"]), 401)

    def test_sees_of_the_audit_log_what_concerns_its_tenant(self):
        self.make("boss of acme", role="viewer")
        self.make(role="viewer", tenant="globex")
        mine = self.entries("boss of acme", limit=1000)
        self.assertGreater(len(mine), 0)
        self.assertEqual({e["tenant"] for e in mine}, {"acme"})
        self.assertEqual(len(mine), len(self.entries(tenant="acme", limit=1000)))


class Audit(Case):
    def test_has_who_what_before_and_after_of_a_token(self):
        made = self.make(role="viewer", tenant="acme", description="for the wall", expires="7d")
        self.stack.call("DELETE", f"/v1/tokens/{made['id']}", role="boss of acme")
        revoke, create = self.entries(subject=f"token+{made['id']}")
        self.assertEqual((create["action"], create["actor"], create["tenant"], create["before"]), ("token.create", "admin #1", "acme", None))
        shown = {"role": "viewer", "tenant": "acme", "description": "for the wall", "expires": made["expires"]}
        self.assertEqual(create["after"], shown)
        self.assertEqual((revoke["action"], revoke["before"]), ("token.revoke", shown))
        self.assertTrue(revoke["actor"].startswith("tenant-admin acme #"))
        self.assertEqual(revoke["after"], {**shown, "revoked": revoke["at"]})

    def test_has_the_ledger_and_the_policy(self):
        created = self.entries(action="ledger.create")
        self.assertEqual([e["after"] for e in created], [{"demo": True, "zone": "UTC"}])
        policy = self.entries(action="policy.apply")[-1]
        self.assertIn("acme", policy["after"]["diff"])
        self.assertEqual(policy["actor"], "admin #1")

    def test_only_grows(self):
        for change in ("update audit_log set actor = 'nobody'", "delete from audit_log", "truncate audit_log cascade"):
            with self.subTest(change=change), self.assertRaisesRegex(RuntimeError, "only grows"):
                self.stack.sql(change)

    def test_what_is_over_cannot_come_back_by_sql(self):
        made = self.make(role="viewer", tenant="acme")
        self.stack.call("DELETE", f"/v1/tokens/{made['id']}")
        for change in (
            f"update access_token set revoked_at = null, revoked_by = null where id = {made['id']}",
            f"update access_token set role = 'admin', tenant_id = null where id = {made['id']}",
            f"delete from access_token where id = {made['id']}",
        ):
            with self.subTest(change=change), self.assertRaisesRegex(RuntimeError, "stays so"):
                self.stack.sql(change)

    def test_comes_in_pages_and_by_time(self):
        for _ in range(3):
            self.make(role="scheduler")
        everything = self.entries(limit=1000)
        first = self.stack.get("/v1/audit?limit=2").json()
        self.assertEqual(first["entries"], everything[:2])
        second = self.stack.get(f"/v1/audit?limit=1000&before={first['next']}").json()
        self.assertEqual((second["entries"], second["next"]), (everything[2:], None))
        self.assertEqual(self.entries(**{"from": "2200-01-01T00:00:00Z"}), [])
        self.assertEqual(self.entries(to="2200-01-01T00:00:00Z", limit=1000), everything)
        self.assertEqual(self.entries(actor="nobody"), [])
        self.refused(self.stack.call("GET", "/v1/audit?from=yesterday"), 400, "from", "yesterday")

    def test_holds_no_secret(self):
        joined = self.post("/v1/join-tokens", node="secret").json()["join_token"]
        self.stack.tokens["joining"] = joined
        node = self.post("/v1/join", "joining", node="secret").json()["token"]
        text = self.stack.get("/v1/audit?limit=1000").text() + str(self.stack.sql("select * from audit_log"))
        for secret in [*self.stack.tokens.values(), joined, node]:
            self.assertNotIn(secret, text)
        for (sha,) in self.stack.sql("select encode(sha256, 'hex') from access_token union select encode(sha256, 'hex') from join_token"):
            self.assertNotIn(sha, text)


class Chains(Case):
    """The audit log in chains: what is changed behind the program's back is found."""

    def seal(self):
        """As the background does each minute. Where it was first, its seal is the one."""
        done = self.stack.sql("select entries, seal, encode(hash, 'hex') from audit_seal_entries(1000)")
        return (done or self.stack.sql("select 0, seq, encode(hash, 'hex') from audit_seal order by seq desc limit 1"))[0]

    @contextlib.contextmanager
    def behind(self, *statements):
        """Changes as by somebody who may do anything in the database and switches its triggers off; undone afterwards."""
        tables = ("log", "unsealed", "link", "chain", "seal", "sealed_head")
        self.stack.sql("; ".join(["set session_replication_role = replica", *(f"create table public.kept_{t} as select * from audit_{t}" for t in tables), *statements]))
        yield
        self.stack.sql("; ".join(["set session_replication_role = replica", *(
            f"delete from audit_{t}; insert into audit_{t} overriding system value select * from public.kept_{t}; drop table public.kept_{t}" for t in tables)]))  # fmt: skip
        self.assertEqual(self.verify(), [])

    def verify(self, seal=None):
        found, after = [], None
        while True:
            asked = {k: v for k, v in (("after", after), ("seal", seal)) if v}
            page = self.stack.get("/v1/audit/differences" + query(**asked)).json()
            self.assertEqual(page["count"], len(page["differences"]))
            found, after = found + page["differences"], page["next"]
            if after is None:
                return found

    def kinds(self, seal=None):
        return {d["kind"] for d in self.verify(seal)}

    def entry(self, tenant):
        """The id of a sealed one in the middle of its chain, and the chain."""
        for _ in range(3):
            self.make(role="viewer", tenant=tenant)
        self.seal()
        return self.stack.sql(f"select a.id, t.id from audit_log a join tenant t on t.id = a.tenant_id where t.name = '{tenant}' order by a.id desc offset 1 limit 1")[0]  # fmt: skip

    def test_one_chain_for_each_tenant_and_one_for_the_operator_are_sound(self):
        self.entry("acme")
        self.entry("globex")
        done = self.stack.cli("verify")
        self.assertEqual(done.returncode, 4, done.stderr)  # no node has reported: there are chains to prove, and no usage
        self.assertRegex(done.stdout, r", [1-9]\d+ audit entries, \d+ quota events, [1-9]\d* journal entries, [1-9]\d* seals: no difference\n")
        chains = self.stack.sql("select count(distinct chain), count(distinct coalesce(tenant_id, 0)), bool_and(chain = coalesce(tenant_id, 0)) "
                                "from audit_link l join audit_log a on a.id = l.audit_id")  # fmt: skip
        self.assertEqual(chains, [["3", "3", "t"]])

    def test_a_change_of_any_column_is_found_and_the_entry_named(self):
        changes = {"actor": "'nobody'", "action": "'token.revoke'", "subject": "subject || ' '", "before": "'{}'", "after": "after || '{\"role\": \"admin\"}'",
                   "reason": "'why not'", "at": "at + interval '1 microsecond'", "tenant_id": "null"}  # fmt: skip
        for _ in changes:
            self.make(role="viewer", tenant="acme")
        self.seal()
        ids = [i for (i,) in self.stack.sql(f"select id from audit_log order by id desc limit {len(changes)}")]
        with self.behind(*(f"update audit_log set {column} = {value} where id = {i}" for i, (column, value) in zip(ids, changes.items(), strict=True))):
            found = self.verify()
            done = self.stack.cli("verify", "-o", "json")
        self.assertEqual({d["kind"] for d in found}, {"audit-changed"})
        self.assertEqual([d["what"].split(",")[0] for d in found], [f"entry {i}" for i in reversed(ids)])
        self.assertEqual({d["what"].partition(" in ")[2] for d in found}, {"the chain of acme"})
        self.assertEqual((done.returncode, json.loads(done.stdout)["differences"]), (1, found))

    def test_an_entry_that_is_removed_is_found_also_with_its_link(self):
        one, _ = self.entry("acme")
        with self.behind(f"delete from audit_log where id = {one}"):
            self.assertEqual(self.kinds(), {"audit-removed"})
            self.stack.sql(f"set session_replication_role = replica; delete from audit_link where audit_id = {one}")
            self.assertEqual(self.kinds(), {"audit-removed"})

    def test_the_last_entry_cannot_be_cut_off_unseen(self):
        _, chain = self.entry("globex")
        last = f"(select max(audit_id) from audit_link where chain = {chain})"
        with self.behind(f"delete from audit_log where id = {last}", f"delete from audit_link where audit_id = {last}"):
            self.assertEqual(self.kinds(), {"audit-head", "audit-seal"})
            self.stack.sql(f"update audit_chain c set (seq, hash) = (select seq, hash from audit_link l where l.chain = c.chain order by seq desc limit 1) where chain = {chain}")
            self.assertEqual(self.kinds(), {"audit-seal"})

    def test_an_entry_that_is_put_beside_the_chains_is_found(self):
        with self.behind("insert into audit_log (actor, action, subject) values ('nobody', 'token.create', 'token 1')"):
            [found] = self.verify()
        self.assertEqual((found["kind"], found["found"]), ("audit-inserted", "nobody token.create"))

    def test_one_that_is_slipped_in_with_all_hashes_made_again_is_found_by_the_seals(self):
        one, chain = self.entry("acme")
        seal = self.stack.sql("select seq || ':' || encode(hash, 'hex') from audit_seal order by seq desc limit 1")[0][0]
        again = (f"delete from audit_link where chain = {chain}", f"delete from audit_chain where chain = {chain}", "delete from audit_unsealed",
                 f"insert into audit_unsealed select id from audit_log where tenant_id = {chain}", "select audit_seal_entries(100000)")  # fmt: skip
        with self.behind(f"update audit_log set actor = 'nobody' where id = {one}", *again):
            self.assertEqual(self.kinds(), {"audit-seal"})
            # with the seals made again too, all that is left is what somebody wrote down
            self.stack.sql("; ".join(["set session_replication_role = replica", "delete from audit_sealed_head", "delete from audit_seal", *again]))
            self.assertEqual((self.kinds(), self.kinds(seal)), (set(), {"audit-seal"}))
        self.assertEqual(self.kinds(seal), set())

    def test_entries_that_wait_for_their_seal_are_no_difference_and_one_that_is_removed_meanwhile_is(self):
        self.make(role="scheduler")
        self.assertNotEqual(self.stack.sql("select count(*) from audit_unsealed"), [["0"]])
        self.assertEqual(self.verify(), [])
        with self.behind("delete from audit_log where id = (select max(id) from audit_log)"):
            self.assertEqual(self.kinds(), {"audit-removed"})
        self.seal()

    def test_writers_of_one_chain_do_not_wait_for_each_other(self):
        slow = subprocess.Popen([os.path.join(self.stack.pg.bin, "psql"), "-X", "-q", "-d", self.stack.pg.conninfo("tollgate") + " options=-csearch_path=tollgate"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with slow, slow.stdin:
            slow.stdin.write("begin; insert into audit_log (actor, action, subject) values ('slow', 'x', 'y');\n\\echo written\n")
            slow.stdin.flush()
            self.assertEqual(slow.stdout.readline(), "written\n")
            self.make(role="scheduler")  # answered while the other one is in the middle
            self.assertGreater(int(self.seal()[0]), 0)
            slow.stdin.write("commit;\n")
        self.assertEqual(slow.returncode, 0)
        self.assertEqual(int(self.seal()[0]), 1)
        self.assertEqual(self.verify(), [])

    def test_reads_of_reports_and_of_the_log_are_in_it_when_the_daemon_stops_and_each_minute(self):
        self.stack.sql("select make_periods(now(), now() + interval '1 hour')")
        for path, role in (("/v1/reports/current.csv", "viewer of globex"), ("/v1/reports/current.csv", "viewer of globex"), ("/v1/reports/current.json?tenant=acme", "admin"),
                           ("/v1/audit", "boss of acme"), ("/v1/audit", "admin")):  # fmt: skip
            self.assertEqual(self.stack.call("GET", path, role=role).status, 200)
        month = self.stack.sql("select month from period where now() <@ tstzrange(starts_at, ends_at)")[0][0]
        self.assertEqual(self.stack.aggregator.stop(), 0)
        self.assertEqual(self.stack.sql("select count(*) from audit_unsealed"), [["0"]])
        with open(self.stack.aggregator.log, encoding="utf-8") as f:
            told = [line for line in f if "audit log sealed" in line]
        last = self.stack.sql("select seq, encode(hash, 'hex') from audit_seal order by seq desc limit 1")[0]
        self.assertTrue(told and f"seal={last[0]} " in told[-1] and last[1] in told[-1], told[-1:])
        self.stack.restart_aggregator()
        reads = [(e["tenant"], e["actor"].rpartition(" #")[0], e["action"], e["subject"], (e["after"] or {}).get("times", 1)) for e in self.entries(limit=1000) if e["action"].endswith(".read")]
        for expected in (("globex", "viewer globex", "report.read", f"report {month}.csv", 2), ("acme", "admin", "report.read", f"report {month}.json", 1),
                         ("acme", "tenant-admin acme", "audit.read", "audit log", 1)):  # fmt: skip
            self.assertIn(expected, reads)
        self.assertEqual({t for t, *_ in reads if t} | {None}, {"acme", "globex", None})


class Join(Case):
    def join_token(self, **what):
        reply = self.post("/v1/join-tokens", **what)
        self.assertEqual(reply.status, 201, reply.text())
        made = reply.json()
        self.stack.tokens[f"join {made['id']}"] = made["join_token"]
        return made

    def join(self, made, node):
        return self.post("/v1/join", f"join {made['id']}", node=node)

    def test_a_join_token_gives_a_token_that_speaks_for_its_node_alone(self):
        made = self.join_token(node="alpha")
        reply = self.join(made, "alpha")
        self.assertEqual((reply.status, reply.json()["role"], reply.json()["node"]), (201, "node", "alpha"))
        self.stack.tokens["alpha"] = reply.json()["token"]
        self.assertEqual(self.stack.call("GET", "/v1/usage", role="alpha").status, 403)
        for node, status in (("alpha", 200), ("beta", 403)):
            frames = ledger.frames([{"node": node, "boot_id": "07" * 16, "epoch": 1, "seq": 1, "from_ns": NS, "to_ns": 2 * NS}])
            pushed = self.stack.call("POST", "/v1/ingest", frames, role="alpha")
            self.assertEqual(pushed.status, status, pushed.text())
        self.assertEqual(self.stack.sql("select count(*) from node where name = 'beta'"), [["0"]])

    def test_works_once(self):
        made = self.join_token()
        self.assertEqual(self.join(made, "once").status, 201)
        self.refused(self.join(made, "once"), 401, "was used", "once")
        self.refused(self.join(made, "twice"), 401, "was used")
        row = next(j for j in self.stack.get("/v1/join-tokens").json()["join_tokens"] if j["id"] == made["id"])
        self.assertEqual((row["status"], row["used_by_node"]), ("used", "once"))

    def test_of_many_joins_at_once_one_wins(self):
        for fixed in (True, False):
            made = self.join_token(**({"node": "race"} if fixed else {}))
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                names = ["race"] * 16 if fixed else [f"race-{i}" for i in range(16)]
                replies = list(pool.map(lambda n: self.join(made, n), names))  # noqa: B023
            self.assertEqual(sorted(r.status for r in replies), [201] + [401] * 15)
            self.assertEqual(self.stack.sql(f"select count(*) from access_token where join_token_id = {made['id']}"), [["1"]])

    def test_two_join_tokens_cannot_enrol_the_same_name(self):
        made = [self.join_token() for _ in range(8)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda m: self.join(m, "same-name"), made))
        self.assertEqual(sorted(r.status for r in replies), [201] + [409] * 7)
        # Those that were refused are not used up.
        left = next(m for m, r in zip(made, replies) if r.status == 409)
        self.assertEqual(self.join(left, "another-name").status, 201)

    def test_one_made_for_a_node_enrols_no_other_and_may_enrol_it_again(self):
        made = self.join_token(node="fixed")
        self.refused(self.join(made, "other"), 403, "fixed", "other")
        self.assertEqual(self.join(made, "fixed").status, 201)
        self.assertEqual(self.join(self.join_token(node="fixed"), "fixed").status, 201)
        self.refused(self.join(self.join_token(), "fixed"), 409, "active token")

    def test_one_that_is_over_says_so(self):
        expired, revoked = self.join_token(), self.join_token()
        self.stack.sql(f"update join_token set expires_at = now() where id = {expired['id']}")
        self.refused(self.join(expired, "late"), 401, "expired")
        self.assertEqual(self.stack.call("DELETE", f"/v1/join-tokens/{revoked['id']}").json()["status"], "revoked")
        self.refused(self.join(revoked, "late"), 401, "revoked")
        self.stack.tokens["join unknown"] = "f" * 64
        self.refused(self.join({"id": "unknown"}, "late"), 401, "not known")
        for body in (b"", b"{", b'{"node": 7}', b'{"name": "late"}'):
            with self.subTest(body=body):
                self.refused(self.stack.call("POST", "/v1/join", body, role="join unknown"), 401, "not known")
        used = self.join_token()
        self.join(used, "used")
        self.refused(self.stack.call("DELETE", f"/v1/join-tokens/{used['id']}"), 409, "used")

    def test_is_no_bearer_token_and_no_bearer_token_joins(self):
        made = self.join_token()
        self.assertEqual(self.stack.call("GET", "/v1/tenants", role=f"join {made['id']}").status, 401)
        self.refused(self.post("/v1/join", "admin", node="x"), 403, "admin")
        self.refused(self.post("/v1/join", None, node="x"), 401)

    def test_a_wrong_request_does_not_use_it_up(self):
        made = self.join_token()
        for body in (b"", b"{}", b'{"node": ""}', b'{"node": 7}', b'{"node": "a\\nb"}', b'{"node": "a", "role": "admin"}', b"[" * 100):
            with self.subTest(body=body):
                self.assertEqual(self.stack.call("POST", "/v1/join", body, role=f"join {made['id']}").status, 400)
        self.refused(self.join(made, "n" * 254), 400, "node", "253")
        self.assertEqual(self.join(made, "patient").status, 201)

    def test_ends_after_an_hour_unless_told_otherwise_and_within_thirty_days(self):
        self.join_token(node="hour")
        self.assertEqual(
            self.stack.sql("select expires_at - created_at between interval '59 minutes' and interval '61 minutes' from join_token where node = 'hour'"),
            [["t"]],
        )
        self.refused(self.post("/v1/join-tokens", expires="31d"), 400, "30d")

    def test_is_in_the_audit_log(self):
        made = self.join_token(node="logged", description="rack 7")
        token = self.join(made, "logged").json()
        create = self.entries(subject=f"join+token+{made['id']}")[0]
        self.assertEqual((create["action"], create["after"]["node"], create["after"]["description"]), ("join-token.create", "logged", "rack 7"))
        join = self.entries(subject=f"token+{token['id']}")[0]
        self.assertEqual((join["action"], join["actor"]), ("node.join", f"join token #{made['id']}"))
        self.assertEqual(join["after"], {"role": "node", "node": "logged", "join_token": made["id"]})


class ExporterJoins(Case):
    """The exporter comes by its token itself."""

    def exporter(self, node, join_token, token_file=None):
        self.token_file = token_file or os.path.join(self.stack.dir, f"{node}.own-token")
        self.join_file = os.path.join(self.stack.dir, f"{node}.join-token")
        with open(self.join_file, "w", encoding="ascii") as f:
            f.write(join_token + "\n")
        scenario = {"name": node, "gpus": [{"model": "NVIDIA L40S", "memory_mib": 46068}]}
        e = self.stack.exporter(node, scenario, "--join-token-file", self.join_file, token_file=self.token_file)
        self.addCleanup(e.kill9)
        return e

    def join_token(self, **what):
        return self.post("/v1/join-tokens", **what).json()["join_token"]

    def reported(self, node):
        return self.stack.sql(f"select 1 from node where name = '{node}' and covered_until_ns is not null")

    def test_joins_once_keeps_the_token_to_itself_and_pushes(self):
        e = self.exporter("gpu-1", self.join_token(node="gpu-1"))
        wait_for("records of gpu-1", lambda: self.reported("gpu-1"), e)
        self.assertEqual(stat.S_IMODE(os.stat(self.token_file).st_mode), 0o600)
        self.assertEqual([f for f in os.listdir(self.stack.dir) if f.endswith(".trial")], [])
        self.assertEqual(e.stop(), 0)
        with open(self.token_file, encoding="ascii") as f:
            kept = f.read()
        self.assertTrue(os.path.exists(self.join_file), "nothing is deleted")
        # A second start has its token and does not ask again.
        e.start()
        wait_for("the second start", lambda: e.words().count("push works") == 2, e)
        self.assertEqual(e.stop(), 0)
        self.assertEqual(e.words().count("has joined"), 1)
        with open(self.token_file, encoding="ascii") as f:
            self.assertEqual(f.read(), kept)
        self.assertNotIn(kept.strip(), e.words())

    def test_says_why_it_cannot_join_and_joins_with_a_better_token(self):
        e = self.exporter("gpu-2", self.join_token(node="gpu-3"))
        wait_for("the refusal", lambda: "the join token is for node gpu-3, not for gpu-2" in e.words(), e)
        self.assertFalse(os.path.exists(self.token_file))
        self.assertIn("batches stay in the spool", e.words())
        with open(self.join_file, "w", encoding="ascii") as f:
            f.write(self.join_token(node="gpu-2"))
        wait_for("records of gpu-2", lambda: self.reported("gpu-2"), e)
        self.assertEqual(e.stop(), 0)

    def test_does_not_use_the_join_token_up_when_it_could_not_keep_the_token(self):
        token = self.join_token(node="gpu-4")
        e = self.exporter("gpu-4", token, token_file=os.path.join(self.stack.dir, "nowhere", "token"))
        wait_for("the refusal", lambda: "could not write one to" in e.words(), e)
        e.stop()
        self.assertEqual(self.stack.sql("select used_at from join_token where node = 'gpu-4'"), [[None]])

    def test_a_join_token_without_a_place_for_the_token_is_a_wrong_use(self):
        done = subprocess.run([program("tollgate-exporter"), "--join-token-file", "x", "-n"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("token-file", done.stderr)


if __name__ == "__main__":
    unittest.main()
