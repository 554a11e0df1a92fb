"""Quotas, members, reservations and states in the ledger: over time, all or nothing, within what the nodes have, and a tenant's own part."""

# instead: san

import json
import os
import random
import re
import subprocess
import time
import unittest

from tests.support.daemons import pg
from tests.support.daemons.stack import ROOT, Stack, program, wait_for
from tests.support.fleet.fleet import HOUR, MINUTE, NS
from tests.support.store.ledger import BUILD, Ledger, StoreError

START = 1_796_068_800 * NS  # 2026-11-30T20:00Z
EXAMPLES = ["examples/two-nodes.yaml", "examples/slurm.yaml", "examples/showback.yaml", "demo/policy.yaml"]
TABLES = {
    "priority_class": "name", "tenant_member": "tenant_id, member", "workspace_member": "workspace_id, member", "tenant_quota": "tenant_id",
    "tenant_limit": "tenant_id, kind, model", "workspace_quota": "workspace_id", "workspace_limit": "workspace_id, kind, model",
    "reservation": "workspace_id, shared, model", "node_declared": "node_id, model, profile", "node_state": "node_id, gpu_id",
}  # fmt: skip
POLICY = """
version: 1
cluster: demo
%(effective)spriority_classes: [{name: high, value: 10}]
tenants:
  # the first
  - name: acme
    maximum: 16
    owner: ops
    members: [{user: ada, role: tenant-admin}]
    workspaces:
      - {name: a, reserved: %(a)s, limit: 8, members: [{user: bob, role: developer}], rules: [{namespace: one}]}
      - {name: b, reserved: 1, rules: [{namespace: two}]}
  # the secret one
  - name: globex
    isolation: gpu
    workspaces: [{name: g, reserved_shared: 2, rules: [{namespace: g}]}]
nodes:
  - {name: n1, tenant: acme, model: H100-80GB, gpus: 8, state: %(state)s}
  - {name: n2, shared: true, model: H100-80GB, gpus: 4}
"""


def policy(effective=None, a=4, state="in-service"):
    return POLICY % {"effective": f"effective: {effective}\n" if effective else "", "a": a, "state": state}


def seen(led, node, gpus, start=START, profiles=(), epoch=1, n=1):
    """A node reports quarter-hours with so many whole H100, and one that is cut."""
    devices = [{"id": i + 1, "uuid": f"GPU-{node}-{i}", "model": "NVIDIA H100 80GB HBM3"} for i in range(gpus + bool(profiles))]
    cut = gpus + 1
    devices += [{"id": cut + 1 + i, "gpu": cut, "uuid": f"MIG-{node}-{start}-{i}", "model": "NVIDIA H100 80GB HBM3", "profile": p, "gi": i, "ci": 0, "units": u,
                 "created_ns": start} for i, (p, u) in enumerate(profiles)]  # fmt: skip
    free = [(i + 1, 5040) for i in range(gpus)] + [(cut + 1 + i, u) for i, (_, u) in enumerate(profiles)]
    free += [(cut, 5040 - sum(u for _, u in profiles))] if profiles and sum(u for _, u in profiles) < 5040 else []
    batches = []
    for k in range(n):
        at, q = start + k * 15 * MINUTE, 15 * MINUTE
        batches.append({"node": node, "boot_id": "77" * 16, "epoch": epoch, "seq": k + 1, "from_ns": at, "to_ns": at + q, "devices": devices if k == 0 else [], "holders": [],
                        "records": [[d, 0, 2, 1 if d <= gpus else 2, 0, u, at, q, q, 0, 0, 0, 0, 0, 1] for d, u in free]})  # fmt: skip
    r = led.ingest(batches)
    assert r["ok"] and r["quarantined"] == 0, r


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())
        cls.count = 0

    def new_ledger(self, now=START + 6 * HOUR):
        type(self).count += 1
        return Ledger(self.cluster, f"q{self.count}", now=now)

    def refused(self, call, *args, kind="invalid", **more):
        with self.assertRaises(StoreError) as caught:
            call(*args, **more)
        self.assertEqual(caught.exception.kind, kind, caught.exception)
        return caught.exception.text

    def said(self, led, at=None):
        """What every table says, at an hour or from the last policy on."""
        when = f"effective @> '{at}'::timestamptz" if at else "upper_inf(effective)"
        columns = (f"(select jsonb_agg(to_jsonb(t) - 'effective' order by {key}) from {t} t where {when}) as {t}" for t, key in TABLES.items())
        return led.rows(f"select {', '.join(columns)}")

    def everything(self, led):
        columns = (f"(select string_agg(t::text, '|' order by t::text) from {t} t)" for t in [*TABLES, "policy_version", "attribution_rule", "audit_log"])
        return led.rows(f"select {', '.join(columns)}")


class OverTime(Base):
    def test_each_example_is_applied_and_what_is_read_changes_nothing(self):
        for name in EXAMPLES:
            with self.subTest(example=name):
                with open(os.path.join(ROOT, "deploy", name), encoding="utf-8") as f:
                    text = f.read()
                led = self.new_ledger()
                self.assertGreater(led.apply(text)["changes"], 5)
                before = self.everything(led)
                self.assertEqual(led.text("policy"), text)
                self.assertEqual(led.apply(led.text("policy"))["changes"], 0)
                for tenant in re.findall(r"^  - name: (\S+)", text, re.MULTILINE):
                    self.assertEqual(led.apply(led.text("policy", "--tenant", tenant), tenant=tenant)["changes"], 0)
                self.assertEqual(self.everything(led), before)

    def test_a_change_counts_from_its_hour_and_the_hours_before_keep_what_they_had(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T20:00:00Z"))
        led.apply(policy("2026-11-30T22:00:00Z", a=6, state="maintenance"))
        at = "select quantity_text(units, profile, instances) from reservation r join workspace w on w.id = workspace_id where w.name = 'a' and r.effective @> '%s'::timestamptz"
        state = "select state from node_state s join node n on n.id = node_id where n.name = 'n1' and s.effective @> '%s'::timestamptz"
        for hour, reserved, now in (("20:00", "4", "in-service"), ("21:59", "4", "in-service"), ("22:00", "6", "maintenance"), ("23:00", "6", "maintenance")):
            when = f"2026-11-30T{hour}:00Z"
            self.assertEqual((led.value(at % when), led.value(state % when)), (reserved, now), hour)
        # What did not change was not cut.
        self.assertEqual(led.value("select count(*) from tenant_quota"), "2")
        # A policy from 21:00 on replaces what was to come.
        led.apply(policy("2026-11-30T21:00:00Z", a=5))
        self.assertEqual([r[0] for r in led.rows("select quantity_text(units, profile, instances) from reservation r join workspace w on w.id = workspace_id where w.name = 'a' order by r.effective")], ["4", "5"])
        self.assertEqual(led.value("select count(*) from node_state where state = 'maintenance'"), "0")
        history = {(h["kind"], h["subject"], h["value"], h["from"], h["until"]) for h in led.run("list", "history")}
        self.assertIn(("reserved", "acme/a", "H100-80GB: 4", "2026-11-30T20:00:00Z", "2026-11-30T21:00:00Z"), history)
        self.assertIn(("reserved", "acme/a", "H100-80GB: 5", "2026-11-30T21:00:00Z", None), history)
        self.assertIn(("owner", "n1", "acme", "2026-11-30T20:00:00Z", None), history)
        self.assertIn(("isolation", "globex", "gpu", "2026-11-30T20:00:00Z", None), history)
        self.assertFalse([h for h in led.run("list", "history", "--tenant", "acme") if "globex" in json.dumps(h)])

    def test_any_policy_after_any_others_says_what_it_says_alone(self):
        seed = int(os.environ.get("TOLLGATE_PROP_SEED") or random.randrange(1 << 32))
        print(f"seed {seed}")
        rng = random.Random(seed)

        def workspace(name):
            keys = [f"name: {name}"]
            keys += rng.choice([[], ["reserved: 1"], ["reserved: 2", "limit: 4", "borrow: 1"], ["reserved: {H100-80GB: '1/2'}"], ["limit: none"]])
            keys += rng.choice([[], ["reserved_shared: 1"], ["weight: 3", "enforce: warn"], ["idle_timeout: 1h", "limits: {cpu: 1}"]])
            keys += rng.choice([[], ["members: [{user: u, role: viewer}]"], ["members: [{user: u, role: developer}, {user: v, role: viewer}]"]])
            return "{" + ", ".join(keys) + "}"

        def tenant(name):
            keys = [f"name: {name}"] + rng.choice([[], ["maximum: 16"], ["maximum: {H100-80GB: 9, L4: none}", "default_limit: 1"]])
            keys += rng.choice([[], ["isolation: gpu"], ["priority_classes: [high]"], ["members: [{user: x, role: tenant-admin}]"]])
            return "{" + ", ".join(keys + ["workspaces: [" + ", ".join(workspace(w) for w in rng.sample("abc", rng.randint(1, 3))) + "]"]) + "}"

        def any_policy():
            nodes = [f"{{name: n{i}, {rng.choice(['shared: true', 'tenant: t1'])}, model: H100-80GB, gpus: 8, state: {rng.choice(['in-service', 'maintenance'])}}}" for i in range(rng.randint(0, 3))]
            return "version: 1\ncluster: c\npriority_classes: [{name: high, value: %d}]\ntenants: [%s]\nnodes: [%s]\n" % (
                rng.randint(1, 3), ", ".join(tenant(t) for t in ("t1", "t2")),
                ", ".join(["{name: own1, tenant: t1, model: H100-80GB, gpus: 8}", "{name: own2, tenant: t2, model: H100-80GB, gpus: 8}", "{name: s, shared: true, model: H100-80GB, gpus: 8}"] + nodes))  # fmt: skip

        a, b, c = any_policy(), any_policy(), any_policy()
        led = self.new_ledger()
        hours = ["2026-11-30T20:00:00Z", "2026-11-30T21:00:00Z", "2026-11-30T22:00:00Z"]
        led.apply(a.replace("tenants:", f"effective: {hours[0]}\ntenants:"))
        alone = self.said(led)
        for text, hour in ((b, hours[1]), (c, hours[1]), (b, hours[2]), (c, hours[1]), (a, hours[2])):
            led.apply(text.replace("tenants:", f"effective: {hour}\ntenants:"))
        self.assertEqual(self.said(led, hours[0]), alone)
        self.assertEqual(self.said(led), alone, "a, others, a again")

    def test_no_hand_written_sql_breaks_what_holds(self):
        led = self.new_ledger()
        led.apply(policy("2026-11-30T20:00:00Z"))
        wrong = []
        for t in TABLES:
            columns = led.value(f"select string_agg(quote_ident(column_name), ', ') from information_schema.columns where table_name = '{t}' and column_name <> 'effective'")
            for effective in ("tstzrange('2026-12-01', '2026-12-02')", "tstzrange('2026-11-30T20:00Z', null)"):
                wrong.append(("exclusion_violation", f"insert into {t} ({columns}, effective) select {columns}, {effective} from {t} limit 1"))
            for effective in ("'empty'", "tstzrange('2026-12-01T00:07Z', null)", "tstzrange(null, '2026-12-01')"):
                wrong.append(("check_violation", f"update {t} set effective = {effective}"))
        wrong += [("check_violation", f"update {change}") for change in (
            "reservation set units = 0", "reservation set model = ''", "reservation set profile = '1g.10gb'", "reservation set instances = 7",
            "workspace_quota set weight = 0", "workspace_quota set enforce = 'maybe'", "workspace_quota set idle_timeout_ns = 0",
            "workspace_limit set units = -1", "tenant_limit set instances = 1", "tenant_quota set isolation = 'vm'", "tenant_quota set priority_classes = '{null}'",
            "tenant_member set role = 'admin'", "workspace_member set role = 'tenant-admin'", "node_state set gpu_id = null, node_id = null",
            "node_state set state = 'broken'", "node_declared set count = 0", "node_declared set units = 1", "priority_class set value = 1000001",
        )]  # fmt: skip
        blocks = [f"begin {sql}; raise 'taken: %', $s${sql}$s$; exception when {what} then null; end" for what, sql in wrong]
        led.rows("do $do$ begin " + "; ".join(blocks) + "; end $do$")

    def test_one_that_is_killed_in_the_middle_has_changed_nothing(self):
        led = self.new_ledger()
        led.apply(policy())
        before = self.everything(led)
        holder = subprocess.Popen([os.path.join(self.cluster.bin, "psql"), "-X", "-q", "-d", self.cluster.conninfo(led.name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(holder.stdout.close)
        holder.stdin.write("begin; lock table tollgate.attribution_rule in exclusive mode; select 'held';\n")
        holder.stdin.flush()
        while "held" not in holder.stdout.readline():
            pass
        # It writes quotas and reservations, and then waits for the rules.
        changed = policy(a=6).replace("namespace: two", "namespace: three")
        tool = subprocess.Popen([os.path.join(BUILD, "tests", "store_tool"), self.cluster.conninfo(led.name), "apply", "--now", str(led.now), led.file(changed)], stdout=subprocess.DEVNULL)
        wait_for("the policy to wait", lambda: led.value("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%attribution_rule%' and pid <> pg_backend_pid()") == "1")
        tool.kill()
        tool.wait()
        holder.stdin.write("commit;\n\\q\n")
        holder.communicate()
        wait_for("its session to end", lambda: led.value("select count(*) from pg_stat_activity where state <> 'idle' and pid <> pg_backend_pid() and datname = current_database()") == "0")
        self.assertEqual(self.everything(led), before)
        self.assertEqual(led.apply(changed)["version"], 2)


class Capacity(Base):
    def test_what_was_seen_counts_and_before_that_what_is_declared(self):
        led = self.new_ledger(now=START + HOUR)
        self.assertIn("with it 9 GPUs of H100-80GB are reserved among the nodes of acme in cluster demo, which have 8", self.refused(led.apply, policy(a=8)))
        led.apply(policy(a=7))
        seen(led, "n1", 6)
        self.assertIn("which have 6", self.refused(led.apply, policy(a=6)))
        led.apply(policy(a=5))
        self.assertEqual({n["name"]: n["gpus"] for n in led.run("list", "nodes")}["n1"], 6)

    def test_a_partitioned_gpu_has_the_instances_that_are_there_now(self):
        led = self.new_ledger(now=START + HOUR)
        seen(led, "n1", 6, profiles=[("3g.40gb", 2340), ("3g.40gb", 2340)])

        def asks(amount):
            return policy(a=amount)

        led.apply(asks("2x3g.40gb"))
        self.assertIn("which have 2", self.refused(led.apply, asks("3x3g.40gb")))
        # The GPU is cut anew: the old instances are gone, although the books keep them.
        seen(led, "n1", 6, start=START + 15 * MINUTE, epoch=2, profiles=[("1g.10gb", 675)] * 7)
        self.assertIn("have no 3g.40gb instance of H100-80GB", self.refused(led.apply, policy(a="1x3g.40gb")))
        led.apply(asks("7x1g.10gb"))
        self.assertIn("which have 7", self.refused(led.apply, asks("8x1g.10gb")))
        self.assertEqual(led.rows("select instances, units from reservation r join workspace w on w.id = workspace_id where w.name = 'a' and upper_inf(effective)"), [["7", "4725"]])

    def test_retired_gpus_and_nodes_are_no_capacity_and_only_seen_gpus_have_a_state(self):
        led = self.new_ledger(now=START + HOUR)
        text = policy(a=5).replace("state: in-service}", "devices: [{uuid: GPU-n1-0, state: retired}]}")
        self.assertIn('device "GPU-n1-0" of node n1: no such GPU has been seen', self.refused(led.apply, text, kind="conflict"))
        seen(led, "n1", 6)
        self.assertIn("which have 5", self.refused(led.apply, text))
        led.apply(text.replace("retired", "maintenance"))
        self.assertEqual(led.rows("select g.uuid, s.state from node_state s join gpu g on g.id = s.gpu_id"), [["GPU-n1-0", "maintenance"]])
        self.assertIn("have no GPU", self.refused(led.apply, policy(state="retired")))
        led.apply(policy(a=5, state="maintenance"))

    def test_a_state_that_reaches_back_makes_sealed_hours_due_again(self):
        led = self.new_ledger(now=START + 2 * HOUR)
        led.apply(policy("2026-11-30T20:00:00Z"))
        seen(led, "n1", 8, n=8)
        self.assertEqual(led.rollup()["sealed"], 2)
        led.apply(policy("2026-11-30T21:00:00Z", state="maintenance"))
        self.assertGreaterEqual(led.rollup()["resealed"], 1)
        led.apply(policy("2026-11-30T21:00:00Z", state="maintenance", a=5))
        self.assertEqual(led.rollup()["resealed"], 0, "the state is the same")
        led.apply(policy("2026-11-30T21:00:00Z", a=5))
        self.assertGreaterEqual(led.rollup()["resealed"], 1)


class OwnPart(Base):
    """A tenant's administrator, through the store: bounds in time."""

    def test_its_part_counts_from_this_hour_on_or_later_and_never_before(self):
        led = self.new_ledger(now=START + 30 * MINUTE)
        led.apply(policy("2026-11-30T18:00:00Z"))
        part = led.text("policy", "--tenant", "acme").replace("reserved: 4", "reserved: 3")
        text = self.refused(led.apply, part.replace("tenants:", "effective: 2026-11-30T19:00:00Z\ntenants:"), tenant="acme")
        self.assertIn("effective: 2026-11-30T19:00:00Z is before 2026-11-30T20:00:00Z", text)
        self.assertEqual(led.apply(part, tenant="acme")["effective_ns"], START)
        # What it then reads, and what the operator reads, is applied without a change: the old hour is not in it any more.
        self.assertNotIn("effective", led.text("policy"))
        led.now += HOUR
        self.assertEqual(led.apply(led.text("policy"))["changes"], 0)
        self.assertEqual(led.value("select count(*) from policy_version"), "2")
        # One that is to come waits for its hour, and is in the document.
        led.apply(part.replace("reserved: 3", "reserved: 2").replace("tenants:", "effective: 2026-12-01T00:00:00Z\ntenants:"), tenant="acme")
        self.assertIn("effective: 2026-12-01T00:00:00Z\n", led.text("policy"))
        self.assertEqual(led.apply(led.text("policy"))["changes"], 0)
        # Nobody's part brings forward what was put off.
        r = led.apply(part, tenant="acme")
        self.assertEqual(r["effective_ns"], START + 4 * HOUR)

    def test_what_it_gave_up_it_may_take_back_but_no_more(self):
        led = self.new_ledger()
        led.apply(policy())
        part = led.text("policy", "--tenant", "acme")
        led.apply(part.replace("reserved: 4", "reserved: 0"), tenant="acme")
        self.assertEqual(led.apply(part, tenant="acme")["changes"], 1)
        self.assertIn("granted 5", self.refused(led.apply, part.replace("reserved: 4", "reserved: 5"), tenant="acme"))
        led.apply(policy(a=2))  # the operator's word is the new bound
        self.assertIn("granted 3", self.refused(led.apply, part, tenant="acme"))

    def test_reservations_of_others_stay_when_their_nodes_have_changed(self):
        led = self.new_ledger(now=START + HOUR)
        led.apply(policy())
        seen(led, "n2", 1)  # globex has 2 there: less was seen than was declared
        part = led.text("policy", "--tenant", "acme").replace("limit: 8", "limit: 7")
        self.assertEqual(led.apply(part, tenant="acme")["changes"], 1)
        self.assertEqual(led.value("select units from reservation r join workspace w on w.id = workspace_id where w.name = 'g' and upper_inf(effective)"), "10080")


class InTheBook(Base):
    """What a policy in the ledger means to the quota engine is what the same policy means in a scenario's file."""

    WORLD = {
        "priority_classes": [{"name": "prod", "value": 100, "preemptible": False}],
        "tenants": [
            {"name": "acme", "maximum": 14, "isolation": "gpu", "limits": {"cpu": 64},
             "workspaces": [{"name": "a", "reserved": 4, "limit": 8, "lend": 2}, {"name": "b", "reserved": 2, "borrow": 3, "reclaim": "lower", "weight": 3},
                            {"name": "c", "reserved_shared": 2}, {"name": "off", "enforce": "off"}]},
            {"name": "globex", "default_limit": 3, "priority_classes": ["prod"],
             "workspaces": [{"name": "g", "reserved": "2x1g.10gb"}, {"name": "h", "limit": "3x1g.10gb", "preempt_own": "never"}]},
        ],
        "nodes": [
            {"name": "n1", "tenant": "acme", "model": "H100-80GB", "gpus": 8},
            {"name": "n2", "shared": True, "model": "H100-80GB", "gpus": 4},
            {"name": "n3", "tenant": "globex", "model": "H100-80GB", "mig": {"1g.10gb": 7}},
        ],
    }  # fmt: skip

    def statuses(self, led):
        """All of it is there and healthy."""
        for node in self.WORLD["nodes"]:
            cut = node.get("mig")
            gpus = [{"uuid": f"GPU-{node['name']}-{i}", "model": "NVIDIA H100 80GB HBM3", "short_model": "H100-80GB", "index": i, "healthy": True, "reason": "", "xid": 0,
                     "sharing": "mig" if cut else "exclusive", "replicas": 0} for i in range(node.get("gpus", 1))]  # fmt: skip
            parts = [{"gpu": gpus[0]["uuid"], "uuid": f"MIG-{i}", "profile": "1g.10gb", "gi": i, "ci": 0, "units": 675} for i in range(7)] if cut else []
            led.rows(f"INSERT INTO node_status SELECT id, gen_random_uuid(), 1, 1, now(), 0, 3600000000000, 0, sha256('x'), '{json.dumps(gpus)}', "
                     f"'{json.dumps(parts)}', '[]' FROM node WHERE name = '{node['name']}'")  # fmt: skip

    def batches(self, rng):
        paths = [(t["name"], w["name"]) for t in self.WORLD["tenants"] for w in t["workspaces"]]
        for batch in range(3):
            requests = []
            for i in range(6):
                tenant, name = rng.choice(paths)
                r = {"id": f"r{batch}-{i}", "workspace": f"{tenant}/{name}"}
                if tenant == "globex" or rng.random() < 0.2:
                    r |= {"profile": "1g.10gb", "count": rng.randint(1, 4)}
                else:
                    r |= {"gpus": rng.randint(1, 6)}
                if rng.random() < 0.3:
                    r["priority"] = "prod"
                else:
                    r |= {"priority": rng.randint(-1, 2), "preemptible": rng.random() < 0.7}
                requests.append(r)
            yield requests

    @staticmethod
    def as_event(r):
        r = dict(r)
        if r["priority"] == "prod":
            r["class"] = r.pop("priority")
        return r

    def simulate(self, document):
        done = subprocess.run([program("tollgate"), "quota", "simulate", "-"], input=json.dumps(document), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        verdicts = [json.loads(line) for line in done.stdout.splitlines()]
        for v in verdicts:
            v.pop("at")
            v.pop("due", v.pop("due_ns", None))
        return verdicts

    def test_the_ledger_and_a_scenario_decide_alike(self):
        led = self.new_ledger(now=time.time_ns())
        rules = {"tenants": [t | {"workspaces": [w | {"rules": [{"namespace": f"{t['name']}-{w['name']}"}]} for w in t["workspaces"]]} for t in self.WORLD["tenants"]]}
        led.apply(json.dumps({"version": 1, "cluster": "demo"} | self.WORLD | rules))
        self.statuses(led)
        look = led.run("quota-look", "--now", led.now)
        self.assertEqual([list(e)[0] for e in look["events"]], ["policy", "nodes"])
        for seed in range(5):
            rng = random.Random(seed)
            batches = list(self.batches(rng))
            scenario = {"version": 1, "clusters": [{"name": "demo"}]} | self.WORLD | {"requests": batches[0]}
            scenario["events"] = [{"at": f"{i}s", "requests": b} for i, b in enumerate(batches) if i > 0]
            events = look["events"] + [{"submit": [self.as_event(r) for r in b]} for b in batches]
            at = [0, 0, *range(len(batches))]
            recording = {"recording": 1, "state": {}, "state_seq": 0,
                         "events": [{"seq": i + 1, "at_ns": led.now + at[i] * NS, "event": e} for i, e in enumerate(events)]}  # fmt: skip
            verdicts = self.simulate(recording)
            self.assertGreaterEqual(len({v["id"] for v in verdicts}), 18)
            self.assertEqual(verdicts, self.simulate(scenario), f"seed {seed}")


class OverHttp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack())
        s.apply(policy())
        for tenant in ("acme", "globex"):
            s.token(tenant, role="tenant-admin", tenant=tenant)

    def put(self, text, role, query=""):
        return self.stack.call("PUT", "/v1/policy" + query, text.encode(), role=role)

    def test_a_tenant_reads_and_changes_its_own_part_and_the_operator_sees_it_in_the_document(self):
        s = self.stack
        part = s.get("/v1/policy", role="acme").text()
        self.assertNotIn("globex", part)
        self.assertNotIn("secret", part)
        dry = self.put(part.replace("limit: 8", "limit: 6"), "acme", "?dry_run=1").json()
        self.assertEqual((dry["dry_run"], dry["changes"], dry["diff"]), (True, 1, "~ workspace acme/a limit 8 -> 6\n"))
        self.assertEqual(s.get("/v1/policy").text(), policy())
        done = self.put(part.replace("limit: 8", "limit: 6"), "acme").json()
        self.assertEqual((done["changes"], done["diff"]), (dry["changes"], dry["diff"]))
        document = s.get("/v1/policy").text()
        self.assertIn("limit: 6", document)
        self.assertIn("  # the secret one\n  - name: globex\n", document)
        self.assertEqual(s.apply(document)["changes"], 0)
        self.assertEqual(self.put(s.get("/v1/policy", role="acme").text(), "acme").json()["changes"], 0)
        [entry] = s.get("/v1/audit?action=policy.apply", role="acme").json()["entries"]
        self.assertIn("limit 8 -> 6", json.dumps(entry))
        self.assertNotIn("globex", json.dumps(s.get("/v1/audit", role="acme").json()))
        self.assertEqual(s.get("/v1/policy?tenant=acme").text(), s.get("/v1/policy", role="acme").text())

    def test_a_refusal_is_the_same_for_tenants_that_exist_and_that_do_not(self):
        part = self.stack.get("/v1/policy", role="acme").text()
        replies = [self.put(part.replace('"acme"', f'"{name}"'), "acme") for name in ("globex", "nobody")]
        self.assertEqual([r.status for r in replies], [400, 400])
        self.assertEqual(replies[0].json()["detail"].replace("globex", "nobody"), replies[1].json()["detail"])
        # Another's rule is refused as one that nobody has.
        replies = [self.put(part.replace('"two"', f'"{ns}"'), "acme") for ns in ("g", "x")]
        self.assertEqual(replies[0].json()["detail"].replace("namespace g", "namespace x"), replies[1].json()["detail"])
        for reply in replies:
            self.assertNotIn("globex", reply.text())
        self.assertEqual(self.put(policy(), "acme").status, 400)

    def test_lists_show_members_limits_and_states_as_people_write_them(self):
        s = self.stack
        members = s.get("/v1/members", role="acme").json()
        self.assertEqual([(m["workspace"], m["user"], m["role"]) for m in members], [("", "ada", "tenant-admin"), ("a", "bob", "developer")])
        self.assertEqual(s.get("/v1/members", role="globex").json(), [])
        [a, b] = s.get("/v1/workspaces", role="acme").json()
        self.assertEqual((a["reserved"], b["reserved"], b["limit"], a["weight"], a["enforce"]), ("H100-80GB: 4", "H100-80GB: 1", "", 1, "on"))
        self.assertEqual({t["name"]: (t["isolation"], t["maximum"]) for t in s.get("/v1/tenants").json() if not t["builtin"]}, {"acme": ("shared", "16"), "globex": ("gpu", "")})
        shown = s.cli("get", "nodes", "-o", "csv").stdout.splitlines()
        self.assertRegex(shown[1], r"^n1,demo,acme,.*shared,in-service,0,8 H100-80GB")
        self.assertIn("ada", s.cli("get", "members").stdout)
        self.assertIn("isolation", s.cli("get", "history").stdout)
        self.assertIn('name: "acme"', s.cli("get", "policy", role="acme").stdout)


if __name__ == "__main__":
    unittest.main()
