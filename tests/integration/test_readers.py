"""One policy, three readers: what the validator accepts the service's book takes and `tollgate quota simulate` reads, and both decide the same.

Random policies are applied to a service with real nodes, and the same text, as a scenario, is replayed by the command line; then the same requests go to both."""

import json
import os
import random
import unittest

from tests.support.daemons.stack import Stack, wait_for
from tests.support.quota.quotanodes import SHORT, Nodes

SEED = int(os.environ.get("TOLLGATE_PROP_SEED") or random.SystemRandom().randrange(1 << 32))
CASES = int(os.environ.get("TOLLGATE_PROP_CASES") or 12)
SIZES = {"n1": 4, "n2": 4, "n3": 2}
CLASSES = {"high": 100, "mid": 10, "low": 1}
SAME = {"reclaim-grace": "1h", "queue-aging": "1h", "head-wait": "1h", "borrow-backoff": "1h"}  # nothing comes to its end here
SETTINGS = {"grace": "1h", "aging": "1h", "head_wait": "1h", "backoff": "1h"}


def amount(rng, least, most):
    """As people write amounts: a number, the same as text, by model."""
    n = rng.randrange(least, most + 1)
    return rng.choice([n, str(n), {SHORT: n}])


def draw_workspace(rng, name, room):
    w = {"name": name, "enforce": rng.choice(["on", "on", "on", "warn", "off"])}
    reserved = rng.randrange(room + 1)
    if reserved:
        w["reserved"] = {SHORT: reserved}
    for key, least, most in (("limit", reserved, max(8, reserved)), ("borrow", 0, 6), ("lend", 0, reserved)):
        if rng.random() < 0.4:
            w[key] = amount(rng, least, most)
    if rng.random() < 0.5:
        w["reclaim"] = rng.choice(["any", "lower", "never"])
    if rng.random() < 0.3:
        w["preempt_own"] = rng.choice(["lower", "never"])
    if rng.random() < 0.3:
        w["weight"] = rng.randrange(1, 5)
    if rng.random() < 0.2:
        w["limits"] = {"cpu": rng.randrange(1, 9)}
    if rng.random() < 0.3:
        w["budget"] = draw_budget(rng)
    return w, reserved


def draw_budget(rng):
    """Nothing is spent here, and requests do not say how long they run: what is left is what is compared."""
    b = rng.choice([{"amount": rng.choice(["10.00", 7]), "currency": "EUR"}, {"gpu_hours": rng.choice([1, "0.25", 500])}, {"tokens": rng.choice([1, 10**12, "5000000"])}])
    return {**b, **rng.choice([{}, {"kind": "soft"}, {"kind": "hard"}])}


def draw_policy(rng, number):
    """Names are new in each case: nothing of the one before is in the way."""
    owners = {node: rng.choice([0, 1, None]) for node in SIZES}
    shared_room = sum(SIZES[n] for n, o in owners.items() if o is None)
    tenants = []
    for t in range(2):
        room = sum(SIZES[n] for n, o in owners.items() if o == t)
        tenant = {"name": f"t{number}-{t}", "workspaces": []}
        for i in range(rng.randrange(1, 4)):
            w, reserved = draw_workspace(rng, f"w{i}", room)
            room -= reserved
            if shared_room and rng.random() < 0.3:
                w["reserved_shared"] = {SHORT: 1}
                shared_room -= 1
            tenant["workspaces"].append(w)
        if rng.random() < 0.3:
            tenant["maximum"] = amount(rng, 8, 11)
        if rng.random() < 0.3:
            tenant["default_limit"] = amount(rng, 0, 4)
        if rng.random() < 0.4:
            tenant["priority_classes"] = rng.sample(sorted(CLASSES), rng.randrange(4))
        if rng.random() < 0.2:
            tenant["isolation"] = rng.choice(["shared", "gpu", "node"])
        if rng.random() < 0.2:
            tenant["limits"] = {"cpu": rng.randrange(1, 17)}
        if rng.random() < 0.3:
            tenant["budget"] = draw_budget(rng)
        tenants.append(tenant)
    nodes = [{"name": n, **({"shared": True} if o is None else {"tenant": tenants[o]["name"]}), "model": SHORT, "gpus": SIZES[n]} for n, o in owners.items()]
    return {"version": 1, "priority_classes": [{"name": n, "value": v, "preemptible": n != "high"} for n, v in CLASSES.items()], "tenants": tenants, "nodes": nodes}


def draw_promise(rng):
    """sla of a tenant or workspace, right or wrong."""
    good = {"owed_wait": rng.choice(["1s", "10m", "30d"]), "delivered": rng.choice([99, "99.5", "0.0001", 100])}
    keys = rng.choice([["owed_wait"], ["delivered"], ["owed_wait", "delivered"]])
    bad = [{}, [], "soon", {"owed_wait": "0s"}, {"owed_wait": "31d"}, {"owed_wait": 5}, {"delivered": 0}, {"delivered": "100.1"}, {"delivered": "99.12345"}, {"waits": "1s"}]
    return rng.choice(bad) if rng.random() < 0.5 else {k: good[k] for k in keys}


def draw_boundary(rng):
    return rng.choice(["EU", "", "x" * 200, "x" * 201, "a\tb", ["EU"], {"in": "EU"}, "\u202eEU"])


def draw_request(rng, policy, number, i):
    tenant = rng.choice(policy["tenants"])
    rq = {"id": f"c{number}-{i}", "workspace": f"{tenant['name']}/{rng.choice(tenant['workspaces'])['name']}", "gpus": rng.choice([1, 1, 2, 2, 3, 4, 5])}
    if rng.random() < 0.6:
        rq["class"] = rng.choice(sorted(CLASSES))
    if rng.random() < 0.3:
        rq["preemptible"] = rng.random() < 0.5
    if rng.random() < 0.3:
        rq["per_node"] = rng.choice([n for n in (1, 2, rq["gpus"]) if rq["gpus"] % n == 0])
    if rng.random() < 0.2:
        rq["limits"] = {"cpu": rng.randrange(1, 4)}
    return rq


class Readers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack(options=["--quota-tick", "200ms", *(w for k, v in SAME.items() for w in (f"--{k}", v))]))
        s.token("scheduler", role="scheduler")
        s.apply(json.dumps({"version": 1, "cluster": "c", "nodes": [{"name": n, "shared": True} for n in SIZES]}))
        cls.nodes = Nodes(s, SIZES)
        cls.nodes.speak()

    def ask(self, rq):
        body = {"request_id": rq["id"], "gpu_model": SHORT, **{k: v for k, v in rq.items() if k not in ("id", "class", "limits")}}
        if "class" in rq:
            body["priority_class"] = rq["class"]
        if "limits" in rq:
            body["cpu"] = rq["limits"]["cpu"]
        reply = self.stack.call("POST", "/v1/decisions", json.dumps(body).encode(), "scheduler")
        if reply.status == 400 and reply.json()["field"] == "priority_class":
            return None  # which a simulation, that has nobody to send it back to, rejects
        self.assertEqual(reply.status, 200, reply.text())
        return reply.json()

    def simulate(self, number, policy, requests):
        events = [{"at": f"{i + 1}s", "requests": [{**{k: v for k, v in rq.items() if k != "class"}, **({"priority": rq["class"]} if "class" in rq else {})}]} for i, rq in enumerate(requests)]
        path = os.path.join(self.stack.dir, f"scenario-{number}.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({**policy, "settings": SETTINGS, "events": events}, f)
        done = self.stack.cli("quota", "simulate", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = {}
        for line in done.stdout.splitlines():
            row = json.loads(line)
            if "decision" in row:
                said.setdefault(row["id"], row)  # the first answer: later ones are how it advanced
        return said

    @staticmethod
    def core(row):
        """What a decision is, without the words around it."""
        checks = [(c["rule"], c.get("scope"), c["ok"], c["need"], c["have"]) for c in row["checks"]]
        return {"decision": row["decision"], "would": row.get("would"), "victims": row["victims"], "borrowed": row["borrowed_gpus"], "checks": checks}

    def is_free(self):
        self.nodes.speak()  # what was released is returned when telemetry sees that it is empty
        return sum(p["free_units"] for p in self.stack.get("/v1/quota").json()["pools"]) == sum(SIZES.values()) * 5040

    def clean(self, requests):
        for rq in requests:
            self.stack.call("DELETE", f"/v1/decisions/{rq['id']}")
            self.stack.call("POST", f"/v1/leases/{rq['id']}/release", b"{}")

    def test_the_service_and_simulate_decide_the_same_by_every_policy_that_is_accepted(self):
        print(f"seed {SEED} (TOLLGATE_PROP_SEED={SEED} repeats it)", flush=True)
        accepted, refused = 0, []
        for number in range(20 * CASES):  # about half of what is drawn is refused, which shows nothing here
            if accepted == CASES:
                break
            rng = random.Random(f"{SEED} {number}")
            policy = draw_policy(rng, number)
            requests = [draw_request(rng, policy, number, i) for i in range(8)]
            reply = self.stack.call("PUT", "/v1/policy", json.dumps({**policy, "cluster": "c"}).encode())
            if reply.status == 400:
                refused.append(reply.json()["detail"])
                continue
            accepted += 1
            with self.subTest(seed=SEED, case=number, policy=policy):
                self.assertEqual((reply.status, reply.json().get("quota")), (200, "in-effect"), "the book takes what the validator accepts")
                said = self.simulate(number, policy, requests)
                for rq in requests:
                    told = self.ask(rq)
                    if told is None:
                        self.assertEqual((said[rq["id"]]["decision"], said[rq["id"]]["checks"][0]["ok"]), ("reject", False), said[rq["id"]])
                        continue
                    verdict = told.get("verdict") or told
                    self.assertEqual(self.core(verdict), self.core(said[rq["id"]]), (rq, told, said[rq["id"]]))
            self.clean(requests)
            wait_for("everything to be free again", self.is_free, self.stack.aggregator)
        self.assertEqual(accepted, CASES, refused)

    def test_what_decides_nothing_is_refused_by_both_or_by_none(self):
        print(f"seed {SEED} (TOLLGATE_PROP_SEED={SEED} repeats it)", flush=True)
        fates = {True: 0, False: 0}
        for number in range(4 * CASES):
            rng = random.Random(f"{SEED} promises {number}")
            tenant = {"name": "acme", "workspaces": [{"name": "prod"}]}
            key = rng.choice(["sla", "sla of a workspace", "data_boundary"])
            if key == "data_boundary":
                tenant[key] = draw_boundary(rng)
            else:
                (tenant if key == "sla" else tenant["workspaces"][0])["sla"] = draw_promise(rng)
            policy = {"version": 1, "tenants": [tenant]}
            path = os.path.join(self.stack.dir, "promises.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(policy, f)
            with self.subTest(seed=SEED, case=number, tenant=tenant):
                reply = self.stack.call("PUT", "/v1/policy?dry_run=1", json.dumps({**policy, "cluster": "c"}).encode())
                done = self.stack.cli("quota", "simulate", path)
                self.assertEqual(done.returncode == 0, reply.status == 200, (reply.text(), done.stderr))
                fates[reply.status == 200] += 1
        self.assertTrue(fates[True] and fates[False], fates)


if __name__ == "__main__":
    unittest.main()
