"""A policy in the ledger: all or nothing, at billing hours, and what it changes is what the books say afterwards."""

# instead: san

import csv
import hashlib
import io
import os
import subprocess
import unittest
from decimal import Decimal

from tests.support.daemons import pg
from tests.support.fleet.fleet import HOUR, MINUTE, NS
from tests.support.store.ledger import BUILD, Ledger, StoreError, frames

START = 1_796_068_800 * NS  # 2026-11-30T20:00Z
ITEM = '{gpu_model: H100-80GB, price: "%s"}'


def policy(effective=None, tenants=None, nodes="", version="a", price="3.00", cluster="test"):
    tenants = tenants if tenants is not None else "  - {name: acme, cost_center: '42', workspaces: [{name: w1, rules: [{namespace: one}]}]}"
    text = f"version: 1\ncluster: {cluster}\n"
    text += f"effective: {effective}\n" if effective else ""
    text += f"tenants:\n{tenants}\n" if tenants else ""
    text += f"nodes:\n{nodes}\n" if nodes else ""
    return text + f'prices: {{version: "{version}", currency: EUR, items: [{ITEM % price}]}}\n'


TWO = "  - {name: acme, workspaces: [{name: w1, rules: [{namespace: one}]}, {name: w2, rules: [{namespace: two}]}]}\n  - {name: globex, workspaces: [{name: g1, rules: [{namespace: 'o*', priority: 500}]}]}"
MOVED = TWO.replace("{namespace: one}", "{namespace: three}")  # what was w1's is g1's


def hours(led, start=START, n=4, namespace="one", node="n1", epoch=1, user=None):
    """One GPU held for n hours; batches of a quarter-hour."""
    holder = {"id": 1, "ns": namespace, "pod": "p"} if user is None else {"id": 1, "kind": 3, "user": user}
    batches = []
    for i in range(4 * n):
        at = start + i * 15 * MINUTE
        batches.append({
            "node": node, "boot_id": "44" * 16, "epoch": epoch, "seq": i + 1, "from_ns": at, "to_ns": at + 15 * MINUTE,
            "devices": [{"id": 1, "uuid": f"GPU-{node}", "model": "NVIDIA H100 80GB HBM3"}], "holders": [holder],
            "records": [[1, 1, 1, 1, 1, 5040, at, 15 * MINUTE, 15 * MINUTE, 5 * MINUTE, 0, 0, 0, 3_600_000, 1]],
        })  # fmt: skip
    r = led.ingest(batches)
    assert r["ok"] and r["quarantined"] == 0, r


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())
        cls.count = 0

    def new_ledger(self, now=START + 6 * HOUR, **options):
        type(self).count += 1
        led = Ledger(self.cluster, f"p{self.count}", now=now, **options)
        self.addCleanup(led.assert_sound)
        return led

    def refused(self, kind, call, *args, **more):
        with self.assertRaises(StoreError) as caught:
            call(*args, **more)
        self.assertEqual(caught.exception.kind, kind, caught.exception)
        return caught.exception.text

    def by_workspace(self, led, start=START - HOUR, end=START + 12 * HOUR):
        return {g["workspace"]: Decimal(g["allocated_gpu_hours"]) for g in led.usage(start, end, "workspace") if Decimal(g["allocated_gpu_hours"])}

    def report(self, led, period, *more):
        return list(csv.DictReader(io.StringIO(led.text("report", period, *more), newline="")))


class Apply(Base):
    def test_an_applied_policy_is_kept_word_for_word_with_who_and_when(self):
        led = self.new_ledger()
        self.assertEqual(self.refused("missing", led.text, "policy"), "no policy has been applied yet")
        text = policy(tenants=TWO) + "# the last word\n"
        r = led.apply(text)
        self.assertEqual((r["version"], r["effective_ns"]), (1, START + 6 * HOUR))
        self.assertIn("+ workspace acme/w1", r["diff"])
        self.assertGreater(r["changes"], 4)
        self.assertEqual(led.text("policy"), text)
        [[actor, digest]] = led.rows("select actor, encode(sha256, 'hex') from policy_version")
        self.assertEqual((actor, digest), ("test", hashlib.sha256(text.encode()).hexdigest()))
        [[actor, action, before, sha]] = led.rows("select actor, action, before, after ->> 'sha256' from audit_log where action <> 'ledger.create'")
        self.assertEqual((actor, action, before, sha), ("test", "policy.apply", None, digest))

    def test_the_same_policy_again_changes_nothing(self):
        led = self.new_ledger()
        led.apply(policy())
        before = led.rows("select (select max(id) from attribution_rule), (select max(id) from price_book), (select max(id) from audit_log)")
        r = led.apply(policy() + "# a comment is no change\n")
        self.assertEqual((r["changes"], r["version"], r["diff"]), (0, 0, ""))
        self.assertEqual(led.rows("select (select max(id) from attribution_rule), (select max(id) from price_book), (select max(id) from audit_log)"), before)

    def test_a_dry_run_says_the_same_and_writes_nothing(self):
        led = self.new_ledger()
        led.apply(policy())
        everything = "select (select string_agg(t::text, '|' order by t.id) from tenant t), (select string_agg(r::text, '|' order by r.id) from attribution_rule r), " \
            "(select string_agg(b::text, '|' order by b.id) from price_book b), (select count(*) from policy_version), (select count(*) from audit_log), (select count(*) from node)"  # fmt: skip
        before = led.rows(everything)
        dry = led.apply(policy(tenants=TWO, version="b", price="4.00", nodes="  - {name: x, shared: true}"), dry_run=True)
        self.assertEqual(dry["version"], 0)
        self.assertEqual(led.rows(everything), before)
        wet = led.apply(policy(tenants=TWO, version="b", price="4.00", nodes="  - {name: x, shared: true}"))
        self.assertEqual((wet["diff"], wet["changes"], wet["effective_ns"]), (dry["diff"], dry["changes"], dry["effective_ns"]))
        self.assertNotEqual(led.rows(everything), before)

    def test_a_wrong_file_is_refused_with_its_line_and_leaves_everything(self):
        led = self.new_ledger()
        led.apply(policy())
        text = self.refused("invalid", led.apply, policy().replace("cluster: test", "clutser: test"))
        self.assertIn("policy.yaml:2", text)
        self.assertEqual(led.value("select count(*) from policy_version"), "1")

    def test_a_time_between_billing_hours_is_refused_with_the_two_nearest(self):
        text = self.refused("invalid", self.new_ledger().apply, policy("2026-11-30T20:30:00Z"))
        for word in ("2026-11-30T20:30:00Z", "UTC", "2026-11-30T20:00:00Z", "2026-11-30T21:00:00Z"):
            self.assertIn(word, text)
        led = self.new_ledger(zone="Asia/Kathmandu")
        text = self.refused("invalid", led.apply, policy("2026-11-30T20:00:00Z"))
        self.assertIn("2026-11-30T19:15:00Z and 2026-11-30T20:15:00Z", text)
        self.assertEqual(led.apply(policy("2026-11-30T20:15:00Z"))["version"], 1)

    def test_prices_of_a_closed_period_stay_whatever_file_reaches_back_into_it(self):
        led = self.new_ledger()
        hours(led, start=START, n=2)
        led.close_by_hand("2026-11")
        text = self.refused("conflict", led.apply, policy("2026-11-30T23:00:00Z"))
        self.assertIn("a closed period keeps its prices", text)
        self.assertIn("effective from 2026-12-01T00:00:00Z on", text)
        done = led.apply(policy("2026-12-01T00:00:00Z"))
        self.assertEqual((done["version"], done["corrects_from"]), (1, ""))
        done = led.apply(policy("2026-11-30T23:00:00Z"))
        self.assertEqual((done["version"], done["corrects_from"]), (2, "2026-11"), "the prices in force are no change")
        self.assertEqual(led.value("select min(lower(effective)) from price_book where not isempty(effective)")[:10], "2026-12-01")
        led.rows("set session_replication_role = replica; update billing_day set hours_gone = true, dirty = false, folded_at = now() where day = '2026-11-30'")
        self.assertIn("no longer kept", self.refused("conflict", led.apply, policy("2026-11-30T22:00:00Z")))
        led.rows("set session_replication_role = replica; update billing_day set hours_gone = false, dirty = true where day = '2026-11-30'")

    def test_what_a_policy_no_longer_names_is_retired_and_can_come_back(self):
        led = self.new_ledger()
        led.apply(policy("2026-12-01T01:00:00Z", tenants=TWO))
        led.apply(policy())
        retired = {t["name"]: t["until"] for t in led.run("list", "tenants")}
        self.assertEqual(retired, {"acme": None, "globex": "2026-12-01T02:00:00Z", "unattributed": None})
        ids = led.rows("select t.name, w.name, w.id from workspace w join tenant t on t.id = w.tenant_id order by w.id")
        self.assertEqual({w["name"] for w in led.run("list", "workspaces") if w["until"]}, {"w2", "g1"})
        led.apply(policy(tenants=TWO))
        self.assertFalse([t for t in led.run("list", "tenants") if t["until"]])
        self.assertEqual(led.rows("select t.name, w.name, w.id from workspace w join tenant t on t.id = w.tenant_id order by w.id"), ids)

    def test_a_node_has_one_owner_at_a_time_and_its_history(self):
        led = self.new_ledger()

        def owners():
            return led.rows("select n.name, coalesce(t.name, 'shared'), rfc3339(lower(o.effective)), rfc3339(upper(o.effective)) from node_owner o "
                            "join node n on n.id = o.node_id left join tenant t on t.id = o.tenant_id order by lower(o.effective), n.name")  # fmt: skip

        led.apply(policy("2026-11-30T20:00:00Z", nodes="  - {name: n1, tenant: acme}\n  - {name: n2, shared: true}"))
        led.apply(policy("2026-11-30T22:00:00Z", nodes="  - {name: n1, shared: true}\n  - {name: n2, shared: true}"))
        self.assertEqual(owners(), [["n1", "acme", "2026-11-30T20:00:00Z", "2026-11-30T22:00:00Z"], ["n2", "shared", "2026-11-30T20:00:00Z", None],
                                    ["n1", "shared", "2026-11-30T22:00:00Z", None]])  # fmt: skip
        nodes = {n["name"]: (n["tenant"], n["shared"], n["declared"], n["cluster"], n["gpus"]) for n in led.run("list", "nodes")}
        self.assertEqual(nodes["n2"], ("", False, False, "test", 0), "by the clock of this machine it has not begun")
        # A policy from 21:00 on replaces everything that was to come after.
        led.apply(policy("2026-11-30T21:00:00Z", nodes="  - {name: n1, tenant: acme}"))
        self.assertEqual(owners(), [["n1", "acme", "2026-11-30T20:00:00Z", "2026-11-30T21:00:00Z"], ["n2", "shared", "2026-11-30T20:00:00Z", "2026-11-30T21:00:00Z"],
                                    ["n1", "acme", "2026-11-30T21:00:00Z", None]])  # fmt: skip
        with self.assertRaisesRegex(RuntimeError, "exclusion constraint"):
            led.rows("insert into node_owner select node_id, null, tstzrange('2026-12-01', '2026-12-02') from node_owner where upper_inf(effective)")

    def test_a_node_moves_to_another_cluster_at_an_hour_and_what_was_before_stays(self):
        led = self.new_ledger()
        hours(led, n=4)
        led.apply(policy(cluster="east"))
        self.assertEqual([n["cluster"] for n in led.run("list", "nodes")], ["east"], "the first policy names the home cluster")
        led.apply(policy("2026-11-30T22:00:00Z", cluster="east", nodes="  - {name: n1, cluster: west, shared: true}\n  - {name: n9, cluster: west, shared: true}"))
        self.assertEqual({n["name"]: n["cluster"] for n in led.run("list", "nodes")}, {"n1": "west", "n9": "west"})
        held = lambda: {g["cluster"]: Decimal(g["allocated_gpu_hours"]) for g in led.usage(START, START + 4 * HOUR, "cluster")}
        self.assertEqual(held(), {"east": 2, "west": 2})
        led.apply(policy("2026-11-30T23:00:00Z", cluster="east", nodes="  - {name: n1, cluster: east, shared: true}"))
        self.assertEqual(held(), {"east": 3, "west": 1})
        led.apply(policy("2026-11-30T21:00:00Z", cluster="east", nodes="  - {name: n1, cluster: west, shared: true}"))
        self.assertEqual(held(), {"east": 1, "west": 3}, "what was to come is replaced")
        self.assertEqual(led.rows("select k.cluster_id from node_cluster k join node n on n.id = k.node_id where n.name = 'n9'"), led.rows("select id from cluster where name = 'west'"))

    def test_two_policies_at_once_are_applied_one_after_the_other(self):
        led = self.new_ledger()
        paths = [led.file(policy(version=v, price=f"{i}.00"), f"policy-{v}") for i, v in enumerate("abcd")]
        tool = os.path.join(BUILD, "tests", "store_tool")
        running = [subprocess.Popen([tool, self.cluster.conninfo(led.name), "apply", "--now", str(led.now), p], stdout=subprocess.PIPE) for p in paths]
        for child in running:
            out, _ = child.communicate()
            self.assertEqual(child.returncode, 0, out)
        self.assertEqual(led.value("select count(*) from policy_version"), "4")
        self.assertEqual(led.value("select count(*) from price_book where upper_inf(effective)"), "1")


class Attribution(Base):
    def test_a_rule_with_a_past_effective_hour_re_attributes_sealed_and_open_hours(self):
        led = self.new_ledger(now=START + 3 * HOUR)
        led.apply(policy("2026-11-30T00:00:00Z", tenants=TWO))
        hours(led, n=3)
        self.assertEqual(led.rollup()["sealed"], 3)
        led.now += HOUR
        hours(led, start=START + 3 * HOUR, n=1, epoch=2)
        self.assertEqual(self.by_workspace(led), {"w1": 4})
        r = led.apply(policy("2026-11-30T22:00:00Z", tenants=MOVED))
        self.assertGreater(r["changes"], 0)
        # Right at once, while one of the two hours is dirty and the other open, and after they are sealed.
        self.assertEqual(self.by_workspace(led), {"w1": 2, "g1": 2})
        self.assertEqual(led.rollup(), {"sealed": 1, "resealed": 1, "restored": 0})
        self.assertEqual(self.by_workspace(led), {"w1": 2, "g1": 2})
        self.assertEqual(led.rollup(), {"sealed": 0, "resealed": 0, "restored": 0})
        # And back, for one hour more.
        led.apply(policy("2026-11-30T23:00:00Z", tenants=TWO))
        self.assertEqual(led.rollup(), {"sealed": 0, "resealed": 1, "restored": 0})
        self.assertEqual(self.by_workspace(led), {"w1": 3, "g1": 1})

    def test_only_hours_that_a_rule_changes_are_sealed_again(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T00:00:00Z", tenants=TWO))
        hours(led, n=2)
        hours(led, n=2, node="n2", namespace="two")
        led.rollup()
        led.apply(policy("2026-11-30T00:00:00Z", tenants=MOVED))
        self.assertEqual(led.rollup()["resealed"], 2)
        led.apply(policy("2026-11-30T00:00:00Z", tenants=MOVED, version="b", price="9.00"))
        self.assertEqual(led.rollup()["resealed"], 0, "a price is looked up when a report is made")

    def test_a_holder_seen_after_the_rules_changed_is_attributed_by_the_rules_of_each_hour(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T00:00:00Z", tenants=TWO))
        led.apply(policy("2026-11-30T22:00:00Z", tenants=MOVED))
        led.apply(policy("2026-11-30T23:00:00Z", tenants=TWO))
        hours(led, n=4)
        self.assertEqual(self.by_workspace(led), {"w1": 3, "g1": 1})
        self.assertEqual(led.value("select count(*) from holder_attribution"), "4")

    def test_the_order_of_usage_and_policy_does_not_matter(self):
        results = []
        for usage_first in (True, False):
            led = self.new_ledger()
            if usage_first:
                hours(led, n=4)
                led.rollup()
            led.apply(policy("2026-11-30T21:00:00Z", tenants=TWO))
            led.apply(policy("2026-11-30T23:00:00Z", tenants=MOVED))
            if not usage_first:
                hours(led, n=4)
            led.rollup()
            results.append(led.rows("select w.name, effective from holder_attribution a join workspace w on w.id = a.workspace_id order by effective"))
            self.assertEqual(self.by_workspace(led), {"unattributed": 1, "w1": 2, "g1": 1})
        self.assertEqual(*results)

    def test_rules_that_change_while_new_holders_arrive_leave_nobody_behind(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T20:00:00Z", tenants=TWO))
        paths = []
        for i in range(60):
            at = START + i * MINUTE
            b = {"node": "n1", "boot_id": "66" * 16, "epoch": 1, "seq": i + 1, "from_ns": at, "to_ns": at + MINUTE,
                 "devices": [{"id": 1, "uuid": "GPU-n1", "model": "NVIDIA H100 80GB HBM3"}], "holders": [{"id": i + 1, "ns": "one", "pod": f"p{i}"}],
                 "records": [[1, i + 1, 1, 1, 1, 5040, at, MINUTE, MINUTE, 0, 0, 0, 0, 0, 1]]}  # fmt: skip
            paths.append(led.file(frames([b]), f"push-{i}"))
        argv = [os.path.join(BUILD, "tests", "store_tool"), self.cluster.conninfo(led.name), "ingest", "--now", str(led.now), *paths]
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        rounds = 0
        while child.poll() is None or rounds % 2 == 1:
            led.apply(policy("2026-11-30T20:00:00Z", tenants=TWO if rounds % 2 else MOVED, version=str(rounds)))
            led.rollup()
            rounds += 1
        out, _ = child.communicate()
        self.assertEqual(out.count('"ok":true'), 60, out)
        led.rollup()
        # The last round had the rules of the first policy: every holder is w1's, and has an answer for all of time.
        self.assertEqual(self.by_workspace(led), {"w1": 1})
        gaps = led.rows("select holder_id from holder_attribution group by holder_id having range_agg(effective) <> '{(,)}'::tstzmultirange")
        self.assertEqual(gaps, [])

    def test_before_any_policy_usage_is_unattributed_and_visible(self):
        led = self.new_ledger()
        hours(led, n=1)
        [g] = led.usage(START, START + HOUR, "tenant,workspace,workload,state")[:1]
        self.assertEqual((g["tenant"], g["workspace"], g["workload"]), ("unattributed", "unattributed", "one/p"))

    def test_users_of_hosts_and_groups_of_usage(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T00:00:00Z", tenants="  - {name: acme, workspaces: [{name: w1, rules: [{user: alice}]}]}"))
        hours(led, n=1, user="alice")
        [g] = led.usage(START, START + HOUR, "cluster,tenant,workspace,user,workload,gpu_model,profile,node,gpu,sharing,day,hour,method")
        keys = {k: v for k, v in g.items() if not k.endswith(("_hours", "_kwh", "_activity", "_gib"))}
        self.assertEqual(keys, {
            "cluster": "test", "tenant": "acme", "workspace": "w1", "user": "alice", "workload": "user alice", "gpu_model": "H100-80GB", "profile": "",
            "node": "n1", "gpu": "GPU-n1", "sharing": "exclusive", "day": "2026-11-30", "hour": "2026-11-30T20:00:00Z", "method": "measured"})  # fmt: skip
        self.assertEqual((g["allocated_gpu_hours"], g["used_gpu_hours"], g["energy_kwh"]), ("1.000000000", "0.333333333", "0.004000000"))
        for by, word in (("tenant,tenant", "twice"), ("colour", "colour"), ("tenant,", "comma")):
            self.assertIn(word, self.refused("invalid", led.usage, START, START + HOUR, by))


class Prices(Base):
    def test_a_price_that_changes_in_the_month_gives_two_lines(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T00:00:00Z", tenants=TWO))
        hours(led, n=4)
        led.apply(policy("2026-11-30T21:00:00Z", tenants=TWO, version="b", price="5.00"))
        lines = {r["price_version"]: r for r in self.report(led, "2026-11")}
        self.assertEqual({v: (r["quantity"], r["unit_price"], r["billed_cost"]) for v, r in lines.items()},
                         {"a": ("1.000000000", "3.00", "3.00"), "b": ("3.000000000", "5.00", "15.00")})  # fmt: skip
        self.assertEqual({(r["tenant"], r["workspace"], r["gpu_model"], r["class"], r["period_status"]) for r in lines.values()},
                         {("acme", "w1", "H100-80GB", "on-demand", "open")})  # fmt: skip

    def test_usage_over_the_end_of_a_month_is_in_both_months(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T00:00:00Z", tenants=TWO))
        hours(led, n=6)
        led.rollup()
        quantities = [[r["quantity"] for r in self.report(led, month)] for month in ("2026-11", "2026-12")]
        self.assertEqual(quantities, [["4.000000000"], ["2.000000000"]])
        [total] = [t for t in led.run("totals", "2026-12") if t[5] == "idle"]
        self.assertEqual(total, ["test", "acme", "w1", "H100-80GB", "", "idle", str(5040 * 2 * HOUR * 2 // 3)])
        self.assertEqual([p["month"] for p in led.run("list", "periods")], ["2026-11", "2026-12"])

    def test_sealed_and_open_hours_give_the_same_report(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T00:00:00Z", tenants=TWO))
        hours(led, n=3)
        before = led.text("report", "2026-11")
        led.rollup()
        self.assertEqual(led.text("report", "2026-11"), before.replace(" (provisional: an hour is still open)", ""))

    def test_a_tenant_s_report_has_its_lines_only(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T00:00:00Z", tenants=TWO))
        hours(led, n=1)
        hours(led, n=1, node="n2", namespace="other")
        self.assertEqual({r["tenant"] for r in self.report(led, "2026-11")}, {"acme", "globex"})
        self.assertEqual({r["tenant"] for r in self.report(led, "2026-11", "--tenant", "globex")}, {"globex"})
        self.assertEqual(self.report(led, "2026-11", "--tenant", "nobody"), [])
        self.assertEqual({g["tenant"] for g in led.usage(START, START + HOUR, "tenant", tenant="acme")}, {"acme"})

    def test_usage_without_a_price_is_a_line_at_no_cost(self):
        led = self.new_ledger()
        hours(led, n=1)
        [r] = self.report(led, "2026-11")
        self.assertEqual((r["tenant"], r["billed_cost"], r["unit_price"], r["price_version"], r["quantity"]), ("unattributed", "0.00", "", "", "1.000000000"))

    def test_a_version_that_was_applied_cannot_come_again_with_other_prices(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T20:00:00Z"))
        # also within its first hour, and when it was replaced before it was ever in force
        for effective in ("2026-11-30T21:00:00Z", "2026-11-30T20:00:00Z"):
            text = self.refused("conflict", led.apply, policy(effective, price="4.00"))
            self.assertIn('version "a" was applied with other prices', text)
        led.apply(policy("2026-11-30T21:00:00Z", version="never", price="6.00"))
        led.apply(policy("2026-11-30T21:00:00Z", version="b", price="5.00"))
        self.refused("conflict", led.apply, policy("2026-11-30T22:00:00Z", version="never", price="7.00"))
        led.apply(policy("2026-11-30T22:00:00Z", version="a"))
        self.assertEqual(
            led.rows("select version, rfc3339(lower(effective)), rfc3339(upper(effective)) from price_book where not isempty(effective) order by 2"),
            [["a", "2026-11-30T20:00:00Z", "2026-11-30T21:00:00Z"], ["b", "2026-11-30T21:00:00Z", "2026-11-30T22:00:00Z"], ["a", "2026-11-30T22:00:00Z", None]],
        )
        hours(led, n=4)
        self.assertEqual({r["price_version"]: r["quantity"] for r in self.report(led, "2026-11")}, {"a": "3.000000000", "b": "1.000000000"})

    def test_a_month_the_ledger_has_nothing_of_is_missing_and_nonsense_is_invalid(self):
        led = self.new_ledger()
        self.assertIn("nothing of period 2026-11", self.refused("missing", led.text, "report", "2026-11"))
        for period in ("2026-13", "2026-1", "november", "2026-11x", ""):
            with self.subTest(period=period):
                self.assertIn("is not a month like", self.refused("invalid", led.text, "report", period))


class Tokens(Base):
    def test_a_token_says_its_role_and_what_it_speaks_for(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-01T00:00:00Z"))
        for args, expected in (
            (["admin"], {"role": "admin", "name": "admin #1", "node": "", "tenant": ""}),
            (["node", "--node", "n1"], {"role": "node", "name": "node n1 #2", "node": "n1", "tenant": ""}),
            (["viewer", "--tenant", "acme"], {"role": "viewer", "name": "viewer acme #3", "node": "", "tenant": "acme"}),
        ):
            token = led.run("token", *args)["token"]
            self.assertRegex(token, "^[0-9a-f]{64}$")
            self.assertEqual(led.run("check", token), expected)
            digest = hashlib.sha256(token.encode()).hexdigest()
            self.assertEqual(led.value(f"select count(*) from access_token where sha256 = decode('{digest}', 'hex')"), "1")
        self.assertEqual(led.value("select count(*) from audit_log where action = 'token.create'"), "3")

    def test_unknown_expired_and_revoked_tokens_are_denied(self):
        led = self.new_ledger()
        self.refused("denied", led.run, "check", "0" * 64)
        for change in ("expires_at = now() - interval '1 second'", "revoked_at = now()"):
            token = led.run("token", "admin")["token"]
            led.run("check", token)
            led.declare(f"update access_token set {change}", "token.revoke")
            self.refused("denied", led.run, "check", token)

    def test_a_role_must_name_what_it_is_for_and_nothing_else(self):
        led = self.new_ledger()
        led.apply(policy())
        for args, kind, word in (
            (["viewer"], "invalid", "tenant"),
            (["node"], "invalid", "node"),
            (["admin", "--tenant", "acme"], "invalid", "tenant"),
            (["billing", "--node", "n1"], "invalid", "node"),
            (["viewer", "--tenant", "nobody"], "missing", "nobody"),
            (["king"], "invalid", "king"),
            (["node", "--node", "x" * 254], "invalid", "253"),
        ):
            with self.subTest(args=args):
                self.assertIn(word, self.refused(kind, led.run, "token", *args))

    def test_lists_show_a_tenant_itself_only(self):
        led = self.new_ledger()
        led.apply(policy(tenants=TWO, nodes="  - {name: n1, tenant: acme}\n  - {name: n2, tenant: globex}"))
        self.assertEqual([t["name"] for t in led.run("list", "tenants", "--tenant", "acme")], ["acme"])
        self.assertEqual({w["tenant"] for w in led.run("list", "workspaces", "--tenant", "acme")}, {"acme"})
        self.assertIn("no list of secrets", self.refused("missing", led.run, "list", "secrets"))


if __name__ == "__main__":
    unittest.main()
