"""Quota when the database fails over to a standby that lost its last events: replicas remember more than there is, and clients were told more."""

import json
import os
import unittest

from tests.support.daemons.stack import Stack, request, wait_for
from tests.support.quota import quotalog
from tests.support.quota.quotanodes import SHORT, Nodes

POLICY = f"""
version: 1
cluster: c
tenants:
  - name: acme
    workspaces:
      - {{name: prod, limit: {{{SHORT}: 4}}, enforce: on, rules: [{{namespace: prod}}]}}
      - {{name: dev, limit: {{{SHORT}: 4}}, enforce: on, rules: [{{namespace: dev}}]}}
nodes: [{{name: n1, tenant: acme, model: {SHORT}, gpus: 4}}]
"""
OPTIONS = ["--quota-tick", "100ms", "--lease-confirm", "1h", "--lease-silence", "1h", "--borrow-backoff", "0s"]


def ask(request_id, workspace, gpus):
    return {"request_id": request_id, "workspace": f"acme/{workspace}", "gpu_model": SHORT, "gpus": gpus}


class Lost(unittest.TestCase):
    def test_replicas_follow_the_database_and_who_asks_again_is_answered_again(self):
        with Stack(options=OPTIONS, standby=True) as s:
            s.apply(POLICY)
            s.token("scheduler", role="scheduler")
            self.stack, self.nodes, self.ports = s, Nodes(s, {"n1": 4}), [s.port, s.replica().port]
            self.nodes.speak()
            wait_for("four GPUs in both books", lambda: self.free() == [4, 4], s.aggregator)
            self.assertEqual(self.post(0, "/v1/decisions", ask("kept", "prod", 1)).json()["status"], "admitted")
            wait_for("what the standby has", lambda: s.standby.query("SELECT seq FROM quota_book", "tollgate") == s.sql("SELECT seq FROM quota_book"))
            s.standby.fall_behind()
            # of this the database will know nothing, but both replicas and all clients do
            self.assertEqual(self.post(0, "/v1/decisions", ask("first", "prod", 2)).json()["status"], "admitted")
            self.assertEqual(self.post(1, "/v1/decisions", ask("second", "dev", 1)).json()["status"], "admitted")
            self.assertEqual(self.post(1, "/v1/leases/kept/confirm").json()["status"], "confirmed")
            wait_for("both books to be full", lambda: self.free() == [0, 0], s.aggregator)
            remembered = int(s.sql("SELECT seq FROM quota_book")[0][0])
            s.failover()
            self.assertLess(int(s.sql("SELECT seq FROM quota_book")[0][0]), remembered, "the standby was behind, or nothing is tried here")
            self.go_on(s)
            self.check(s)

    def go_on(self, s):
        # What nodes said last is not on the standby, so the first look may find the node lost, before or after both books have followed. A GPU
        # that breaks now is in the books only when a look has read what the node said to the new database.
        self.nodes.broken = {("n1", 3)}
        self.becomes([2, 2])
        self.nodes.broken = set()
        self.becomes([3, 3])
        self.assertEqual([self.get(p, "/v1/decisions/first").status for p in (0, 1)], [404, 404])
        self.assertEqual(self.post(1, "/v1/leases/first/heartbeat").status, 404)
        self.assertEqual(self.get(1, "/v1/decisions/kept").json()["status"], "admitted")
        # a stranger comes before those who were admitted: the GPUs are free, by all that is known
        stranger = self.post(0, "/v1/decisions", ask("stranger", "dev", 2)).json()
        self.assertEqual(stranger["status"], "admitted", stranger)
        # whoever asks again is decided again, on what there is now: one has its GPU, the other waits for it
        self.assertEqual(self.post(0, "/v1/decisions", ask("second", "dev", 1)).json()["status"], "admitted")
        first = self.post(1, "/v1/decisions", ask("first", "prod", 2)).json()
        self.assertEqual((first["status"], first["decision"]), ("waiting", "queue"), first)
        self.assertEqual(self.post(0, "/v1/leases/kept/confirm").json()["status"], "confirmed")
        # what runs without a lease is seen
        pod = {"kind": "pod", "namespace": "prod", "pod": "first-0", "pod_uid": "u1", "container": "main", "user": "", "uid": -1, "replica": -1,
               "allocated": True, "holds": True, "active": True, "device": self.nodes.uuid("n1", 3)}  # fmt: skip
        self.nodes.holders = {("n1", 3): [pod]}
        self.nodes.speak()
        wait_for("what nobody leased", lambda: [a["kind"] for a in s.get("/v1/quota/anomalies").json()["anomalies"]] == ["unleased"], s.aggregator)
        self.nodes.holders = {}
        for lease in ("stranger", "kept"):
            self.assertEqual(self.post(1, f"/v1/leases/{lease}/release").status, 200)
        self.nodes.speak()
        wait_for("its turn", lambda: self.get(0, "/v1/decisions/first").json()["status"] == "admitted", s.aggregator)

    def check(self, s):
        wait_for("both books to agree", lambda: self.free() == [1, 1], s.aggregator)
        self.assertEqual(quotalog.chain_faults(s), [])
        path = os.path.join(s.dir, "recording.json")
        with open(path, "w", encoding="utf-8") as f:
            f.write(s.get("/v1/quota/recording?from_seq=1").text())
        replayed = s.cli("quota", "simulate", path)
        self.assertEqual(replayed.returncode, 0, replayed.stdout[-2000:] + replayed.stderr[-2000:])
        self.assertEqual(s.cli("verify").returncode, 0)

    def becomes(self, free):
        """The node says how it is until both books have it: a replica without a database does not hear it."""

        def so():
            self.nodes.speak()
            return self.free() == free

        wait_for(f"{free} free GPUs in the books", so, self.stack.aggregator)

    def get(self, replica, path):
        return request("GET", f"http://127.0.0.1:{self.ports[replica]}{path}", None, self.stack.tokens["admin"])

    def post(self, replica, path, body=None):
        """Whoever gets 503 asks again."""

        def once():
            reply = request("POST", f"http://127.0.0.1:{self.ports[replica]}{path}", json.dumps(body or {}).encode(), self.stack.tokens["scheduler"])
            return reply if reply.status != 503 else None

        return wait_for(f"an answer to {path}", once, self.stack.aggregator)

    def free(self):
        """In GPUs, as each replica says; None: it does not know."""
        replies = [self.get(p, "/v1/quota") for p in (0, 1)]
        return [sum(pool["free_units"] for pool in r.json()["pools"]) / 5040 if r.status == 200 else None for r in replies]


if __name__ == "__main__":
    unittest.main()
