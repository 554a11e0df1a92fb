"""A draft of a policy from what a ledger has seen: applied to the same ledger as it is, it owns at least 95 % of the time that somebody held."""

import random
import unittest

from tests.integration.test_store import START, seed
from tests.support.daemons import pg
from tests.support.daemons.stack import Stack
from tests.support.fleet.fleet import HOUR, Fleet
from tests.support.store.ledger import Ledger

OWNED = """select sum(used + idle + unmeasured) filter (where not w.builtin), sum(used + idle + unmeasured)
    from usage_rows('2026-01-01', '2028-01-01') u join workspace w on w.id = u.workspace_id"""


def somebody(rng, holder):
    """Another workload in the place of a generated pod: pods of teams, Slurm jobs, users of hosts. The same pod is always the same one."""
    one = random.Random(f"{rng.salt} {holder['ns']} {holder['pod']}")
    kind = one.choice(["pod", "labelled", "slurm", "user", "group"])
    if kind == "pod":
        return {**holder, "ns": f"{one.choice(['acme', 'globex', 'x'])}-{one.choice(['train', 'dev', 'prod'])}{one.randrange(4)}"}
    if kind == "labelled":
        return {**holder, "ns": "shared", "labels": f"team={one.choice(['ml', 'web', 'zoe'])}"}
    own = {"id": holder["id"], "kind": 2 if kind == "slurm" else 3, "user": f"user{one.randrange(70)}", "uid": one.randrange(1000, 1070)}
    if kind == "slurm":
        return {**own, "slurm_job": str(one.randrange(1000)), "slurm_account": one.choice(["phys_a", "phys_b", "chem"])}
    return {**own, "group": one.choice(["bio", "Astro Lab"])} if kind == "group" else own


class Drafts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())

    def fleet(self, rng, led):
        rng.salt = rng.random()
        fleet = Fleet(rng.randrange(1 << 32), START, START + 3 * HOUR)
        for b in fleet.batches():
            b["holders"][:] = [somebody(rng, h) for h in b["holders"]]
        for r in led.ingest_many([s for n in fleet.nodes for s in n.streams]):
            self.assertEqual((r["ok"], r["quarantined"]), (True, 0), r)
        return fleet

    def share(self, led):
        [[owned, held]] = led.rows(OWNED)
        return int(owned or 0) / int(held)

    def test_a_draft_applied_to_the_ledger_it_was_made_from_owns_nearly_all(self):
        rng = random.Random(seed())
        for i in range(3):
            led = Ledger(self.cluster, f"d{i}", now=START + 5 * HOUR)
            fleet = self.fleet(rng, led)
            if rng.random() < 0.5:
                led.rollup()
            self.assertEqual(self.share(led), 0)
            text = led.text("suggest", "--from", START - HOUR, "--to", led.now)
            changed = led.apply(text)
            self.assertGreater(changed["changes"], 0)
            self.assertGreaterEqual(self.share(led), 0.95, text)
            nodes = led.rows("select n.name from node n join node_owner o on o.node_id = n.id order by 1")
            self.assertEqual([n for [n] in nodes], sorted(n.name for n in fleet.nodes))
            # Now everything is owned: a second draft is the same policy.
            again = led.text("suggest", "--from", START - HOUR, "--to", led.now)
            self.assertEqual(led.apply(again)["changes"], 0, again)
            led.assert_sound()

    def test_what_is_in_force_stays_and_new_workspaces_join_their_tenant(self):
        rng = random.Random(7)
        led = Ledger(self.cluster, "kept", now=START + 5 * HOUR)
        policy = """
version: 1
cluster: test
effective: 2026-11-30T00:00:00Z
tenants:
  - {name: acme, display_name: "Acme: all", cost_center: "007", workspaces: [{name: train, rules: [{namespace: "acme-train?"}]}]}
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""
        led.apply(policy)
        self.fleet(rng, led)
        text = led.text("suggest", "--from", START - HOUR, "--to", led.now)
        change = led.apply(text)
        self.assertEqual([line for line in change["diff"].splitlines() if not line.startswith("+")], [], change["diff"])
        self.assertIn("+ workspace acme/", change["diff"])
        self.assertEqual(led.value("select cost_center from tenants_known(now()) where name = 'acme'"), "007")
        self.assertGreaterEqual(self.share(led), 0.95)
        led.assert_sound()

    def test_an_empty_ledger_gives_a_policy_that_can_be_applied(self):
        led = Ledger(self.cluster, "empty", now=START)
        self.assertEqual(led.apply(led.text("suggest", "--from", START - HOUR, "--to", START))["version"] >= 0, True)


class Command(unittest.TestCase):
    def test_the_command_prints_a_draft_that_apply_takes(self):
        with Stack() as s:
            draft = s.cli("policy", "suggest", "--since", "7d")
            self.assertEqual(draft.returncode, 0, draft.stderr)
            self.assertIn("tollgate apply -f FILE --dry-run", draft.stdout)
            self.assertEqual(s.apply(draft.stdout, dry_run=True)["dry_run"], True)
            self.assertEqual(s.cli("policy", "suggest", "--since", "x").returncode, 2)
            self.assertEqual(s.get("/v1/policy/suggest", role="admin").headers["Content-Type"], "application/yaml; charset=utf-8")


if __name__ == "__main__":
    unittest.main()
