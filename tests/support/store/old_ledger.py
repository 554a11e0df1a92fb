"""Fills a ledger with everything that an upgrade must carry over, and dumps it: python3 -m tests.support.store.old_ledger OUT.sql

Run by the tree of a release, with its programs; the dump stays in tests/golden/upgrade for the programs after it (tests/integration/test_upgrade.py)."""

import datetime
import json
import os
import re
import subprocess
import sys
import time

from tests.integration import test_sums
from tests.integration.test_live import gpu, status
from tests.integration.test_sums import NAMES, batches
from tests.support.daemons.clock import Clock
from tests.support.daemons.stack import BUILD, Stack, wait_for
from tests.support.fleet.fleet import HOUR, NS
from tests.support.store import ledger

DAY = 24 * HOUR


def at(text):
    return int(datetime.datetime.fromisoformat(text + "+00:00").timestamp()) * NS


def rfc3339(ns):
    return datetime.datetime.fromtimestamp(ns // NS, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# Each month has eight hours of usage. The first has given up its batches and hours, the second is closed, the third is open and has other nodes: those of the
# first two would have every hour between.
MONTHS = {"2026-09": at("2026-09-30T16:00:00"), "2026-10": at("2026-10-01T00:00:00"), "2026-11": at("2026-11-10T00:00:00")}
THEN, NOW = at("2026-10-02T12:30:00"), at("2026-11-11T12:30:00")
LAB = """
  - name: lab
    maximum: {H100-80GB: 16}
    auto_approve: {max: 1, for: 24h}
    budget: {amount: "100.00", currency: EUR, kind: soft}
    workspaces:
      - {name: prod, reserved: {H100-80GB: 4}, limit: {H100-80GB: 4}, rules: [{namespace: prod}]}
      - {name: batch, reserved: {H100-80GB: 2}, limit: {H100-80GB: 6}, rules: [{namespace: batch}]}
"""
GONE = "  - {name: gone, cost_center: gone, workspaces: [{name: w, rules: [{namespace: gone}]}]}\n"
LAB_NODE = "{name: q1, tenant: lab, model: H100-80GB, gpus: 8}"
# what two tenants pay instead of the list prices
OWN_PRICES = """
    - {class: on-demand, tenant: globex, price: "2.777"}
    - {meter: storage, tenant: acme, price: "0.0001"}
"""


def policy(from_ns, old, new, more=""):
    """old, new: the state of the nodes of the first two months and of the last one, None: not there yet. Reservations are in force with either."""
    text = test_sums.policy(rfc3339(from_ns), "in-service" in (old, new))
    text = text.replace("    - {meter: storage, price", OWN_PRICES.strip("\n") + "\n    - {meter: storage, price")
    head, nodes = text.split("nodes: [")
    nodes, tail = nodes.split("]\n", 1)
    nodes = re.sub(r"state: [a-z-]+", "state: STATE", nodes)
    listed = [nodes.replace("STATE", old), *([nodes.replace("name: n", "name: m").replace("STATE", new)] if new else []), *([LAB_NODE] if "lab" in more else [])]
    return f"{head}{more}nodes: [{', '.join(listed)}]\n{tail}"


def renamed(batch):
    """The same of a node of the last month."""
    name = batch["node"].replace("n", "m")
    devices = [{**d, "uuid": d["uuid"].replace(f"-{batch['node']}-", f"-{name}-")} for d in batch["devices"]]
    return {**batch, "node": name, "devices": devices, "holders": [{**h, "pod_uid": h["pod_uid"] + "-m"} for h in batch["holders"]]}


class Filling:
    def __init__(self, s):
        self.s = s

    def push(self, some):
        reply = self.s.call("POST", "/v1/ingest", ledger.frames(some), role=some[0]["node"])
        assert reply.status == 200 and reply.json()["quarantined"] == 0, reply.text() + self.s.get("/v1/quarantine").text()[:900]

    def event(self, what, when, number):
        kind, tenant, workspace, sku, data, _ = what
        data = {"tenant": tenant, "workspace": workspace, **({"sku": sku} if sku else {}), **data}
        event = {"specversion": "1.0", "id": number, "source": "/test", "type": f"tollgate.{kind}.v1", "time": rfc3339(when), "data": data}
        reply = self.s.call("POST", "/v1/events", json.dumps(event).encode(), headers={"Content-Type": "application/cloudevents+json"})
        assert reply.status in (200, 201, 202), reply.text()

    def settled(self):
        sql = ("select not exists (select from billing_day b where b.dirty and b.ends_at <= now()) and not exists (select from node_hour h "
               "where h.sealed_at is null or h.dirty)")  # fmt: skip
        wait_for("all days to be folded", lambda: self.s.sql(sql) == [["t"]], self.s.aggregator)

    def month(self, month):
        s = self.s
        for node in ("n1", "n2", "n3"):
            some = batches(node, MONTHS[month], 8, seq=32 if month == "2026-10" else 0)
            self.push([renamed(b) for b in some] if month == "2026-11" else some)
        for i, e in enumerate(test_sums.EVENTS):
            self.event(e, MONTHS[month] + (i + 1) * HOUR, f"{month}-{i}")
        what = {"tenant": "acme", "amount": "-5.55", "currency": "EUR", "reason": "a credit", "period": month}
        reply = s.call("POST", "/v1/adjustments", json.dumps(what).encode())
        assert reply.status == 201, reply.text()
        self.settled()

    def close(self, month):
        done = self.s.cli("close", month, "--reason", "a test", "--yes")
        assert done.returncode == 0, done.stderr

    def usage(self, clock):
        s = self.s
        s.apply(policy(MONTHS["2026-09"], "in-service", None, GONE))
        s.apply(policy(MONTHS["2026-10"] + 8 * HOUR, "retired", None, GONE))
        for node in (*NAMES, *(n.replace("n", "m") for n in NAMES)):
            s.token(node, role="node", node=node)
        self.month("2026-09")
        self.month("2026-10")
        self.close("2026-09")
        clock.set((NOW - time.time_ns()) / NS)
        s.apply(policy(MONTHS["2026-11"], "retired", "in-service"))
        s.apply(policy(MONTHS["2026-11"] + 8 * HOUR, "retired", "retired"))
        self.month("2026-11")
        self.close("2026-10")

    def decisions(self):
        s = self.s
        s.apply(policy(NOW // HOUR * HOUR, "retired", "retired", LAB))
        s.token("q1", role="node", node="q1")
        reply = s.call("POST", "/v1/status", json.dumps(status("q1", [gpu("q1", i) for i in range(8)], wall_ns=NOW)).encode(), "q1")
        assert reply.status == 200, reply.text()
        wait_for("the book of quota", lambda: sum(p["live_units"] for p in s.get("/v1/quota").json()["pools"]) == 8 * 5040, s.aggregator)
        asked = (("batch", 6, "borrower", "borrow"), ("prod", 4, "owner", "reclaim"), ("prod", 1, "waits", "queue"), ("prod", 9, "refused", "reject"), ("batch", 1, "cancelled", "queue"))
        for workspace, gpus, name, decision in asked:
            what = {"request_id": name, "workspace": f"lab/{workspace}", "gpus": gpus, "gpu_model": "H100-80GB", "preemptible": True}
            reply = s.call("POST", "/v1/decisions", json.dumps(what).encode())
            assert reply.json().get("decision") == decision, reply.text()
        assert s.call("POST", "/v1/leases/borrower/confirm", b"{}").status == 200
        reply = s.call("DELETE", "/v1/decisions/cancelled")
        assert reply.status == 200, reply.text()

    def give_up(self):
        """The batches and the hours of the first month."""
        s = self.s
        s.aggregator.stop()
        argv = [os.path.join(BUILD, "tests", "store_tool"), s.conninfo("tollgate_rollup"), "retain", "--now", str(NOW), "--intervals", str(40 * DAY), "--batches", str(35 * DAY),
                "--hours", str(40 * DAY)]  # fmt: skip
        print(subprocess.run(argv, capture_output=True, text=True, check=True).stdout, file=sys.stderr)
        assert s.sql("select day from billing_day where hours_gone") == [["2026-09-30"]], s.sql("select * from billing_day")


class Then(Clock):
    """As if it were THEN when the servers start."""

    def __enter__(self):
        super().__enter__()
        self.set((THEN - time.time_ns()) / NS)
        return self


def main():
    with Then() as clock, Stack(options=["--rollup-interval", "100ms"], clock=clock, wall=clock) as s:
        f = Filling(s)
        f.usage(clock)
        f.decisions()
        f.give_up()
        s.restart_aggregator()
        done = s.cli("verify", "--all")
        print(done.stdout[-3000:], done.stderr[-3000:], file=sys.stderr)
        assert "no difference" in done.stdout
        s.aggregator.stop()
        dump = subprocess.run([os.path.join(s.pg.bin, "pg_dump"), "-n", "tollgate", s.pg.conninfo("tollgate")], capture_output=True, check=True).stdout
    with open(sys.argv[1], "wb") as out:
        out.write(b"".join(line for line in dump.splitlines(True) if not line.startswith((b"\\restrict", b"\\unrestrict"))))


if __name__ == "__main__":
    main()
