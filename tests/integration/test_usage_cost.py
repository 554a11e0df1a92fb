"""What a holder's hours cost (GET /v1/usage?cost=1, tollgate usage --cost): by hour and class, by what the tenant pays for, and together with what no workload caused the invoice."""

import csv
import datetime
import io
import json
import unittest
from decimal import Decimal

from tests.support import csv_check, ledger
from tests.support.fleet import EXCLUSIVE, H100, HELD, HOUR, MEASURED, MIG, NONE, NS, UNALLOCATED, UNITS
from tests.support.stack import Stack, wait_for

POOL, PROFILE, INSTANCE = "H100-80GB", "1g.10gb", 675
MONTH_START = (datetime.datetime.now(datetime.timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0) - datetime.timedelta(days=1)).replace(day=1)
MONTH = MONTH_START.strftime("%Y-%m")
START = int((MONTH_START + datetime.timedelta(days=9)).timestamp()) * NS
HOURS = 9
END = START + HOURS * HOUR
COST_ROWS = 50


def rfc3339(ns):
    return datetime.datetime.fromtimestamp(ns // NS, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def policy(effective, on):
    """on: reservations and nodes are there; else both are over."""
    one = f', reserved_shared: {{{POOL}: "1"}}, lend: {{{POOL}: "0"}}' if on else ""
    state = "in-service" if on else "retired"
    return f"""
version: 1
cluster: test
effective: {effective}
tenants:
  - {{name: acme, workspaces: [{{name: research, rules: [{{namespace: acme}}]{one}}}]}}
  - {{name: globex, workspaces: [{{name: serving, rules: [{{namespace: globex}}]}}]}}
  - {{name: initech, workspaces: [{{name: spare, rules: [{{namespace: initech}}]{one}}}]}}
nodes:
  - {{name: n1, shared: true, gpus: 8, model: {POOL}, state: {state}}}
  - {{name: n2, shared: true, mig: {{{PROFILE}: 3}}, model: {POOL}, state: {state}}}
prices:
  version: "1"
  currency: EUR
  items:
    - {{class: reserved, price: "2.00"}}
    - {{class: on-demand, price: "3.00"}}
    - {{class: on-demand, tenant: globex, price: "6.00", basis: used}}
    - {{class: on-demand, mig_profile: {PROFILE}, tenant: globex, price: "0.50", basis: used}}
"""


# Of each hour: which pod has which GPU, and whether it is active. What acme reserves covers one GPU.
def n1_at(hour):
    if hour < 4:
        acme = ["early"]
    elif hour < 8:
        acme = ["late", "late", "late"]
    else:
        acme = ["early", "both"]
    return [("acme", pod, True) for pod in acme] + [("globex", "busy", True), ("globex", "asleep", False)]


def n2_at(_):
    return [("globex", "busy-part", True), ("globex", "asleep-part", False)]


PODS = [("acme", "early"), ("acme", "late"), ("acme", "both"), ("globex", "busy"), ("globex", "asleep"), ("globex", "busy-part"), ("globex", "asleep-part")]
COSTS = {  # what each costs, by hand
    "early": 4 * Decimal(2) + (Decimal(2) + Decimal(3)) / 2,
    "late": 4 * Decimal(2) + 4 * 2 * Decimal(3),
    "both": (Decimal(2) + Decimal(3)) / 2,
    "busy": HOURS * Decimal(6),
    "busy-part": HOURS * Decimal("0.50"),
}


def batches(node):
    cut = node == "n2"
    gpus = [{"id": i + 1, "uuid": f"GPU-{node}-{i}", "model": H100, "index": i} for i in range(1 if cut else 8)]
    parts = [
        {"id": i + 2, "gpu": 1, "uuid": f"MIG-{i}", "model": H100, "profile": PROFILE, "gi": i, "ci": 0, "units": INSTANCE, "created_ns": 77, "index": 0, "memory_bytes": 10 << 30} for i in range(3 if cut else 0)
    ]  # fmt: skip
    holders = [{"id": i + 1, "kind": 1, "ns": ns, "pod": pod, "pod_uid": f"{ns}-{pod}", "container": "c", "labels": f"team=team-{pod[0]}"} for i, (ns, pod) in enumerate(PODS)]
    out, step = [], HOUR // 4
    for at in range(START, END, step):
        held = (n2_at if cut else n1_at)((at - START) // HOUR)
        records = []
        for i, device in enumerate(parts or gpus):
            ns, pod, active = held[i] if i < len(held) else ("", "", False)
            records.append([device["id"], PODS.index((ns, pod)) + 1 if pod else 0, HELD if pod else UNALLOCATED, MIG if cut else EXCLUSIVE, MEASURED if pod else NONE,
                            device.get("units", UNITS), at, step, step, step if active else 0, 0, 0, 0, 1000, 1])  # fmt: skip
        if cut:  # the slices of no instance
            records.append([1, 0, UNALLOCATED, MIG, NONE, UNITS - 3 * INSTANCE, at, step, step, 0, 0, 0, 0, 0, 1])
        out.append({"node": node, "boot_id": "ab" * 16, "epoch": 1, "seq": len(out) + 1, "flags": 1, "from_ns": at, "to_ns": at + step, "devices": gpus + parts, "holders": holders, "records": records})
    return out


def amount(costs):
    return sum((Decimal(c["amount"]) for c in costs), Decimal(0))


class UsageCost(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = cls.enterClassContext(Stack(options=["--rollup-interval", "100ms", "--cost-rows", str(COST_ROWS)]))
        cls.s.apply(policy(rfc3339(START), True))
        cls.s.apply(policy(rfc3339(END), False))
        for node in ("n1", "n2"):
            cls.s.token(node, role="node", node=node)
            reply = cls.s.call("POST", "/v1/ingest", ledger.frames(batches(node)), role=node)
            assert reply.status == 200 and reply.json()["quarantined"] == 0, reply.text()
        sql = "select bool_and(not b.dirty) and not exists (select from node_hour h where h.sealed_at is null or h.dirty) from billing_day b where b.ends_at <= now()"
        wait_for("the days to be folded", lambda: cls.s.sql(sql) == [["t"]], cls.s.aggregator)

    def ask(self, group_by, more="", status=200):
        reply = self.s.call("GET", f"/v1/usage?from={rfc3339(START)}&to={rfc3339(END)}&group_by={group_by}&cost=1{more}")
        self.assertEqual(reply.status, status, reply.text())
        return reply.json()

    def pods(self, groups):
        return {g["workload"].split("/")[1]: amount(g["costs"]) for g in groups if g["costs"]}

    def test_a_workload_pays_for_its_own_hours_and_their_class(self):
        """One ran in hours that the reservation covers, one beyond it, on the same day in the same workspace. Of a tenant that pays for use, GPUs and instances, those that were idle cost nothing."""
        self.assertEqual(self.pods(self.ask("workload")["groups"]), COSTS)

    def test_every_hour_has_its_own_cost(self):
        groups = self.ask("hour", "&tenant=acme")["groups"]
        self.assertEqual([amount(g["costs"]) for g in groups], [2] * 4 + [8] * 4 + [5])
        late = self.pods(g for g in self.ask("workload,hour", "&tenant=acme")["groups"] if g["hour"] == rfc3339(START + 8 * HOUR))
        self.assertEqual(late, {"early": Decimal("2.5"), "both": Decimal("2.5")})

    def test_groups_and_what_no_workload_caused_are_the_invoice(self):
        lines = csv_check.rows_of(self.s.get(f"/v1/reports/{MONTH}.csv").text())
        billed = sum(Decimal(r["billed_cost"]) for r in lines)
        for key in ("", "tenant", "workspace", "user", "workload", "node", "gpu_model", "profile", "sharing", "cluster", "day", "hour", "method", "state", "label:team", "tenant,label:team,day"):
            with self.subTest(key=key):
                reply = self.ask(key)
                rest = reply["costs_without_workload"]
                self.assertEqual({r["reason"]: Decimal(r["amount"]) for r in rest}, {"reservation-unused": 2 * HOURS})
                self.assertEqual(amount(rest) + sum(amount(g["costs"]) for g in reply["groups"]), billed)
                self.assertEqual(amount(reply["costs_total"]), billed)

    def test_a_question_that_would_read_too_much_is_refused_and_the_limit_named(self):
        self.ask("workload")
        refused = self.ask("workload,gpu", status=400)
        self.assertIn(str(COST_ROWS), refused["detail"])
        self.assertIn("cost-rows", refused["detail"])


if __name__ == "__main__":
    unittest.main()
