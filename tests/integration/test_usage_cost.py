"""What a holder's hours cost (GET /v1/usage?cost=1, tollgate usage --cost): by hour and class, by what the tenant pays for, and together with what no workload caused the invoice."""

import concurrent.futures
import csv
import datetime
import io
import unittest
from decimal import Decimal

from tests.support.billing import csv_check
from tests.support.daemons.stack import Stack, wait_for
from tests.support.fleet.fleet import EXCLUSIVE, H100, HELD, HOUR, MEASURED, MIG, NONE, NS, UNALLOCATED, UNITS
from tests.support.store import ledger
from tests.support.store.locked import Session

POOL, PROFILE, INSTANCE = "H100-80GB", "1g.10gb", 675
MONTH_START = (datetime.datetime.now(datetime.timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0) - datetime.timedelta(days=1)).replace(day=1)
MONTH = MONTH_START.strftime("%Y-%m")
START = int((MONTH_START + datetime.timedelta(days=9)).timestamp()) * NS
HOURS = 9
END = START + HOURS * HOUR
LATER = START + 24 * HOUR  # an hour with prices in another currency
COST_ROWS = 50


def rfc3339(ns):
    return datetime.datetime.fromtimestamp(ns // NS, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def policy(effective, on=(), version="1", currency="EUR"):
    """on: the nodes in service; reservations are with n1."""
    one = f', reserved_shared: {{{POOL}: "1"}}, lend: {{{POOL}: "0"}}' if "n1" in on else ""
    n1, n2, n3 = ("in-service" if n in on else "retired" for n in ("n1", "n2", "n3"))
    return f"""
version: 1
cluster: test
effective: {effective}
tenants:
  - {{name: acme, workspaces: [{{name: research, rules: [{{namespace: acme}}]{one}}}]}}
  - {{name: globex, workspaces: [{{name: serving, rules: [{{namespace: globex}}]}}]}}
  - {{name: initech, workspaces: [{{name: spare, rules: [{{namespace: initech}}]{one}}}]}}
nodes:
  - {{name: n1, shared: true, gpus: 8, model: {POOL}, state: {n1}}}
  - {{name: n2, shared: true, mig: {{{PROFILE}: 3}}, model: {POOL}, state: {n2}}}
  - {{name: n3, shared: true, gpus: 1, model: {POOL}, state: {n3}}}
prices:
  version: "{version}"
  currency: {currency}
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


HOLDERS = {"n1": n1_at, "n2": lambda _: [("globex", "busy-part", True), ("globex", "asleep-part", False)], "n3": lambda _: [("acme", "early", True)]}
GPUS = {"n1": 8, "n2": 1, "n3": 1}


PODS = [("acme", "early"), ("acme", "late"), ("acme", "both"), ("globex", "busy"), ("globex", "asleep"), ("globex", "busy-part"), ("globex", "asleep-part")]
COSTS = {  # what each costs, by hand
    "early": 4 * Decimal(2) + (Decimal(2) + Decimal(3)) / 2,
    "late": 4 * Decimal(2) + 4 * 2 * Decimal(3),
    "both": (Decimal(2) + Decimal(3)) / 2,
    "busy": HOURS * Decimal(6),
    "busy-part": HOURS * Decimal("0.50"),
    "asleep": Decimal(0),  # it has a price, and used nothing
    "asleep-part": Decimal(0),
}


def batches(node, start, end):
    cut = node == "n2"
    gpus = [{"id": i + 1, "uuid": f"GPU-{node}-{i}", "model": H100, "index": i} for i in range(GPUS[node])]
    parts = [
        {"id": i + 2, "gpu": 1, "uuid": f"MIG-{i}", "model": H100, "profile": PROFILE, "gi": i, "ci": 0, "units": INSTANCE, "created_ns": 77, "index": 0, "memory_bytes": 10 << 30} for i in range(3 if cut else 0)
    ]  # fmt: skip
    holders = [{"id": i + 1, "kind": 1, "ns": ns, "pod": pod, "pod_uid": f"{ns}-{pod}", "container": "c", "labels": f"team=team-{pod[0]}"} for i, (ns, pod) in enumerate(PODS)]
    out, step = [], HOUR // 4
    for at in range(start, end, step):
        held = HOLDERS[node]((at - start) // HOUR)
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
        cls.s = cls.enterClassContext(Stack(options=["--rollup-interval", "100ms", "--cost-rows", str(COST_ROWS), "--lock-timeout", "10m", "--statement-timeout", "10m"]))
        cls.s.apply(policy(rfc3339(START), ("n1", "n2")))
        cls.s.apply(policy(rfc3339(END)))
        cls.s.apply(policy(rfc3339(LATER), ("n3",), "2", "USD"))
        cls.s.apply(policy(rfc3339(LATER + HOUR), (), "2", "USD"))
        for node, start, end in (("n1", START, END), ("n2", START, END), ("n3", LATER, LATER + HOUR)):
            cls.s.token(node, role="node", node=node)
            reply = cls.s.call("POST", "/v1/ingest", ledger.frames(batches(node, start, end)), role=node)
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
        billed = sum(Decimal(r["billed_cost"]) for r in lines if r["currency"] == "EUR")
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

    def test_an_answer_is_of_one_snapshot(self):
        """While the lines wait for a lock, an hour changes. Hours, lines and holders are those of before."""
        change = f"set session_replication_role = replica; update usage_hourly set idle = idle + %d where hour = '{rfc3339(START)}' and workspace_id = (select id from workspace where name = 'research')"
        before = self.ask("workload", "&tenant=acme&exact=1")
        with Session(self.s.pg) as other, concurrent.futures.ThreadPoolExecutor() as pool:
            other.run("begin; lock table loan_day")
            asked = pool.submit(self.ask, "workload", "&tenant=acme&exact=1")
            wait_for("the question to wait", lambda: self.s.sql("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'loan_day'") == [["1"]])
            other.run(change % 5040)
            other.run("commit")
            self.assertEqual(asked.result(), before)
        self.assertNotEqual(self.ask("workload", "&tenant=acme&exact=1")["groups"], before["groups"])
        self.s.sql(change % -5040)

    def test_a_damaged_hour_is_named(self):
        """By hand, and without the constraints that forbid it: one of three rows that are added up, then all of them."""
        names = [n for [n] in self.s.sql("select conname from pg_constraint where contype = 'c' and conrelid = 'tollgate.usage_hourly'::regclass and conname ~ '(used|_check1)'")]
        late = f"hour = '{rfc3339(START + 5 * HOUR)}' and workspace_id = (select id from workspace where name = 'research')"
        self.assertEqual(self.s.sql(f"select count(*) from usage_hourly where {late}"), [["3"]])
        self.s.sql("".join(f"alter table usage_hourly drop constraint {n};" for n in names))
        for n, said in ((1, f"H100-80GB in acme/research in the hour of {rfc3339(START + 5 * HOUR)}"), (3, f"H100-80GB of cluster 1 in the hour of {rfc3339(START + 5 * HOUR)}")):
            self.s.sql(f"set session_replication_role = replica; update usage_hourly set used = -used where {late} and device_id in (select device_id from usage_hourly where {late} order by 1 limit {n})")
            broken = self.ask("gpu", "&tenant=acme", status=500)
            self.assertIn(said, broken["detail"])
            self.assertIn("negative", broken["detail"])
            self.s.sql(f"set session_replication_role = replica; update usage_hourly set used = abs(used) where {late}")
        self.assertEqual(self.pods(self.ask("workload", "&tenant=acme")["groups"])["late"], COSTS["late"])

    def cli(self, *words, end=END):
        done = self.s.cli("usage", "--from", rfc3339(START), "--to", rfc3339(end), *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_table_fits_a_line_and_says_what_costs_are_of(self):
        """Every line of it, of a ledger with usage and of one without."""
        table = """\
GPU-hours and what they cost
TENANT  WORKSPACE  ALLOCATED     USED   COST  CURRENCY
acme    research     18.0000  18.0000  45.00  EUR
globex  serving      20.4107  10.2054  58.50  EUR

Costs that no workload caused
TENANT   WORKSPACE  REASON               COST  CURRENCY
initech  spare      reservation-unused  18.00  EUR

Total 121.50 EUR
"""
        self.assertEqual(self.cli("--cost"), table)
        self.assertLess(max(map(len, self.cli("--cost", "--by", "workload,hour").splitlines())), 80)
        self.assertRegex(self.cli("--cost", "--by", "workload"), r"(?m)^globex/asleep/c +9\.0000 +0\.0000 +0\.00  EUR$")
        self.assertEqual(self.cli("--cost", "--by", "hour", "--tenant", "initech"), "Costs that no workload caused\nREASON               COST  CURRENCY\nreservation-unused  18.00  EUR\n\nTotal 18.00 EUR\n")
        self.assertRegex(self.cli("--cost", "--by", ""), r"(?m)^ *38\.4107 +28\.2054 +103\.50 +EUR$")
        refused = self.s.cli("usage", "--from", rfc3339(START), "--to", rfc3339(END), "--cost", "--node", "n1")
        self.assertEqual((refused.returncode, refused.stderr), (2, "tollgate: --node: costs are of tenants and workspaces as a whole; --cost --by node has them of each\n"))
        for cost in (("--cost",), ()):
            empty = self.s.cli("usage", "--from", "2001-01-01", "--to", "2001-01-02", *cost).stdout
            self.assertEqual(empty, "No usage from 2001-01-01T00:00:00Z to 2001-01-02T00:00:00Z.\n")
        self.assertEqual(self.cli().splitlines()[:2], ["GPU-hours", "TENANT  WORKSPACE  ALLOCATED     USED     IDLE  UNALLOCATED"])

    def test_a_csv_has_the_same_columns_with_rows_and_without(self):
        hours = ",".join(f"{s}_gpu_hours" for s in ("allocated", "used", "idle", "unmeasured", "unallocated", "stranded", "down", "unknown", "over", "clock_adjust"))
        hours += ",energy_kwh,memory_gib_hours,sm_active_gpu_hours,sm_measured_gpu_hours,sm_activity,peak_memory_gib"
        for words, header in ((("--cost",), f"tenant,workspace,{hours},cost,currency,reason"), (("--cost", "--by", "hour,state"), "hour,state,gpu_hours,cost,currency,reason"), ((), f"tenant,workspace,{hours}")):
            full = self.cli(*words, "-o", "csv").splitlines()
            empty = self.s.cli("usage", "--from", "2001-01-01", "--to", "2001-01-02", *words, "-o", "csv").stdout.splitlines()
            self.assertEqual((full[0], empty), (header, [header]))
        rows = list(csv.DictReader(io.StringIO(self.cli("--cost", "-o", "csv"))))
        self.assertEqual([(r["tenant"], r["cost"], r["currency"], r["reason"]) for r in rows], [("", "", "", ""), ("acme", "45.00", "EUR", ""), ("globex", "58.50", "EUR", ""), ("initech", "18.00", "EUR", "reservation-unused")])

    def test_costs_in_two_currencies_are_not_added_up(self):
        """A row of each; the hours are on the first one."""
        rows = list(csv.DictReader(io.StringIO(self.cli("--cost", "--tenant", "acme", "-o", "csv", end=LATER + HOUR))))
        self.assertEqual([(r["workspace"], r["allocated_gpu_hours"], r["cost"], r["currency"]) for r in rows], [("research", "19.000000000", "45.00", "EUR"), ("research", "", "3.00", "USD")])
        self.assertTrue(self.cli("--cost", end=LATER + HOUR).endswith("\nTotal 121.50 EUR\nTotal 3.00 USD\n"))


if __name__ == "__main__":
    unittest.main()
