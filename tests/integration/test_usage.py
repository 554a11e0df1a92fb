"""Usage by group: whatever it is grouped by, the groups add up to the ungrouped total exactly, and pages hold every group once, also while
records arrive."""

import csv
import io
import json
import random
import time
import unittest

from tests.integration.test_store import POLICY, START, seed
from tests.support.daemons import pg
from tests.support.daemons.stack import Stack, query
from tests.support.fleet.fleet import HOUR, MINUTE, Fleet
from tests.support.store.ledger import Ledger, StoreError, frames

KEYS = ["cluster", "tenant", "workspace", "user", "workload", "label:team", "label:app.kubernetes.io/name", "gpu_model", "profile", "node", "gpu", "sharing",
        "day", "hour", "method"]  # fmt: skip
STATES = ["used", "idle", "unmeasured", "unallocated", "stranded", "down", "unknown"]


def with_labels(rng, fleet):
    """Some pods have labels, some have none, and some an empty one."""
    for b in fleet.batches():
        for h in b["holders"]:
            known = h["pod_uid"]
            h["labels"] = ["", "team=ml", "app.kubernetes.io/name=web,team=", "team=web"][hash_of(known, 4)]
    return fleet


def hash_of(text, n):
    return sum(text.encode()) % n


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(pg.Cluster())
        cls.rng = random.Random(seed())
        cls.led = led = Ledger(cls.cluster, "usage", now=START + 12 * HOUR)
        led.apply(POLICY)
        cls.fleet = with_labels(cls.rng, Fleet(cls.rng.randrange(1 << 32), START, START + 6 * HOUR))
        led.ingest_many([s for n in cls.fleet.nodes for s in n.streams])
        led.rollup(limit=7)

    def ask(self, by="", led=None, **options):
        said = [w for name, value in options.items() for w in ("--" + name.replace("_", "-"), value)]
        return (led or self.led).run("usage", "--from", START - HOUR, "--to", START + 9 * HOUR, "--by", by, *said)

    def numbers(self, groups):
        """The sums of all that is a number."""
        total = {}
        for g in groups:
            for name, value in g.items():
                if name.endswith(("_unit_ns", "_mj", "_byte_ms")) or name == "unit_ns":
                    total[name] = total.get(name, 0) + int(value)
        return total


class Sums(Base):
    def test_any_grouping_adds_up_to_the_ungrouped_total_exactly(self):
        [whole] = self.ask(exact=1)["groups"]
        whole = self.numbers([whole])
        self.assertGreater(whole["used_unit_ns"], 0)
        choices = [[k] for k in KEYS] + [self.rng.sample(KEYS, self.rng.randint(2, len(KEYS))) for _ in range(12)] + [KEYS]
        for keys in choices:
            with self.subTest(keys=keys):
                groups = self.ask(",".join(keys), exact=1)["groups"]
                self.assertEqual(self.numbers(groups), whole)
                self.assertEqual(len({tuple(g[k] for k in keys) for g in groups}), len(groups))
                by_state = self.ask(",".join([*keys, "state"]), exact=1)["groups"]
                for state in STATES:
                    self.assertEqual(self.numbers(g for g in by_state if g["state"] == state).get("unit_ns", 0), whole[state + "_unit_ns"])
        self.assertGreater(len(self.ask("label:team", exact=1)["groups"]), 2)

    def test_efficiency_is_the_sum_and_the_most_of_what_was_told(self):
        told = [(r[5], e) for b in self.fleet.batches() for r, e in zip(b["records"], b["efficiency"])]
        [whole] = self.ask(exact=1)["groups"]
        self.assertEqual((int(whole["sm_active_unit_ns"]), int(whole["sm_measured_unit_ns"]), int(whole["peak_memory_bytes"])),
                         (sum(u * e[1] for u, e in told), sum(u * e[2] for u, e in told), max(e[0] for _, e in told)))  # fmt: skip
        self.assertGreater(sum(e[1] for _, e in told), 0)
        [group] = self.ask()["groups"]
        ratio = round(sum(u * e[1] for u, e in told) / sum(u * e[2] for u, e in told), 4)
        self.assertAlmostEqual(float(group["sm_activity"]), ratio, 4)

    def test_the_parts_that_a_filter_leaves_are_the_groups_of_its_key(self):
        for key, name in (("tenant", "tenant"), ("workspace", "workspace"), ("cluster", "cluster"), ("user", "user"), ("gpu_model", "gpu_model"), ("node", "node")):
            for group in self.ask(key, exact=1)["groups"]:
                if group[key] == "" and key in ("tenant", "workspace"):
                    continue  # time that nobody held has no tenant to ask for
                if group[key] == "" and key == "user":
                    held = self.ask("workload", user="", exact=1)["groups"]
                    self.assertTrue(all(g["workload"] for g in held))
                    continue
                [only] = self.ask(exact=1, **{name: group[key]})["groups"]
                self.assertEqual(self.numbers([only]), self.numbers([group]), f"{key} {group[key]}")
        [nothing] = self.ask(exact=1, node="nobody", tenant="acme")["groups"]
        self.assertEqual(set(self.numbers([nothing]).values()), {0})

    def test_csv_has_the_same_groups_as_json(self):
        for keys, exact in (("tenant,workspace,day", {}), ("label:team,state", {"exact": 1}), ("workload,method", {"exact": 1})):
            groups = self.ask(keys, **exact)["groups"]
            text = self.led.text("usage", "--from", START - HOUR, "--to", START + 9 * HOUR, "--by", keys, "--csv", 1, *(["--exact", 1] if exact else []))
            self.assertEqual([list(r) for r in csv.DictReader(io.StringIO(text))][0], list(groups[0]))
            self.assertEqual(list(csv.DictReader(io.StringIO(text))), groups)

    def test_errors_name_the_word(self):
        for by, words in (("colour", 'group_by: "colour" is not one of cluster'), ("day,day", "group_by: day is named twice"), ("day,", "group_by: ends with a comma"),
                          ("label:a=b", 'group_by: the label "a=b" '), ("label:", 'group_by: "label:" is not one of'), ("label:a,label:a", "group_by: label:a is named twice"),
                          (",".join(f"label:k{i}" for i in range(5)), "group_by: more than 4 labels")):  # fmt: skip
            with self.subTest(by), self.assertRaises(StoreError) as refused:
                self.ask(by)
            self.assertIn(words, refused.exception.text)


class Pages(Base):
    def pages(self, by, limit, between=lambda: None, **options):
        groups, cursor = [], None
        while True:
            reply = self.ask(by, limit=limit, **({"cursor": cursor} if cursor else {}), **options)
            self.assertLessEqual(len(reply["groups"]), limit)
            groups.append(reply["groups"])
            cursor = reply["next"]
            if cursor is None:
                return groups
            self.assertEqual(len(reply["groups"]), limit)
            between()

    def test_the_pages_of_any_grouping_are_the_whole_in_order(self):
        for _ in range(6):
            keys = self.rng.sample(KEYS + ["state"], self.rng.randint(1, 4))
            whole = self.ask(",".join(keys))["groups"]
            limit = self.rng.choice([1, 2, 7, 50]) if len(whole) < 100 else self.rng.randint(20, 60)
            pages = self.pages(",".join(keys), limit)
            self.assertEqual([g for p in pages for g in p], whole)
            order = [[g[k].encode() for k in keys] for g in whole]
            self.assertEqual(order, sorted(order))

    def test_records_that_arrive_between_two_pages_move_no_group(self):
        led = Ledger(self.cluster, "pages", now=START + 12 * HOUR)
        led.apply(POLICY)
        streams = [s for n in Fleet(self.rng.randrange(1 << 32), START, START + 5 * HOUR, nodes=4).nodes for s in n.streams]
        waiting = [s for i, s in enumerate(streams) if i % 2]
        led.ingest_many([s for i, s in enumerate(streams) if i % 2 == 0])

        def arrive():
            if waiting:
                led.ingest_many([waiting.pop()])
            if self.rng.random() < 0.3:
                led.rollup(limit=5)

        before = [(g["hour"], g["node"]) for g in self.ask("hour,node", led=led)["groups"]]
        groups = [(g["hour"], g["node"]) for p in self.pages("hour,node", 3, arrive, led=led) for g in p]
        after = [(g["hour"], g["node"]) for g in self.ask("hour,node", led=led)["groups"]]
        self.assertEqual(groups, sorted(set(groups)), "in order, and none twice")
        self.assertLessEqual(set(before), set(groups))
        self.assertLessEqual(set(groups), set(after))

    def test_a_cursor_is_good_for_its_own_question_only(self):
        cursor = self.ask("node,day", limit=1)["next"]
        for by, given, words in (("node", cursor, "it is not the next of an answer"), ("day,node", cursor, "cursor: it is the next of another question"),
                                 ("node,day", "zz", "cursor: it is not"), ("node,day", cursor[:-2], "cursor: it is not"), ("node,day", "5b5d", "cursor: it is not"),
                                 ("node,day", "f" * 70000, "cursor: it is not")):  # fmt: skip
            with self.subTest(by=by, cursor=given[:20]), self.assertRaises(StoreError) as refused:
                self.ask(by, cursor=given)
            self.assertIn(words, refused.exception.text)


class Interface(unittest.TestCase):
    """GET /v1/usage and tollgate usage."""

    @classmethod
    def setUpClass(cls):
        cls.stack = s = cls.enterClassContext(Stack())
        s.apply(POLICY.replace("effective: 2026-11-30T00:00:00Z\n", ""))
        start = int(time.time()) // 3600 * HOUR - 4 * HOUR
        fleet = with_labels(random.Random(1), Fleet(20261116, start, start + 3 * HOUR, nodes=2))
        for node in fleet.nodes:
            s.node_token(node.name)
            for stream in node.streams:
                reply = s.call("POST", "/v1/ingest", frames(stream), role=f"node {node.name}")
                assert reply.status == 200, reply.text()
        s.token("viewer", role="viewer", tenant="acme")

    def unchanged(self, ask, compared):
        """What both gave when the roll-up, which goes on meanwhile, had changed nothing from before the second to after it."""
        before, other, after = ask(), None, None
        while after is None or after != before:
            before = after or before
            other, after = compared(), ask()
        return before, other

    def test_the_link_of_each_page_leads_to_the_next_also_in_csv(self):
        def whole():
            return self.stack.get("/v1/usage" + query(group_by="workload,label:team", exact=1)).json()["groups"]

        def pages():
            path, rows = "/v1/usage" + query(group_by="workload,label:team", exact=1, limit=3), []
            while path:
                reply = self.stack.call("GET", path, headers={"Accept": "text/csv"})
                self.assertEqual(reply.headers["Content-Type"], "text/csv; charset=utf-8; header=present")
                rows += csv.DictReader(io.StringIO(reply.text()))
                link = reply.headers.get("Link")
                path = link and link.removeprefix("<").removesuffix('>; rel="next"')
            return rows

        groups, rows = self.unchanged(whole, pages)
        self.assertEqual(rows, groups)
        self.assertGreater(len(groups), 3)

    def test_a_batch_of_each_version_is_taken_and_the_older_ones_tell_no_efficiency(self):
        at = int(time.time()) // 3600 * HOUR - 2 * HOUR
        for version in (1, 2, 3, 4):
            node = f"v{version}"
            self.stack.node_token(node)
            batch = {"node": node, "boot_id": "00" * 16, "epoch": 1, "seq": 1, "flags": 1, "version": version, "from_ns": at, "to_ns": at + MINUTE,
                     "devices": [{"id": 1, "uuid": f"GPU-{node}", "model": "NVIDIA H100 80GB HBM3", "index": 0, "memory_bytes": 80 << 30}],
                     "holders": [{"id": 1, "kind": 1, "ns": "acme", "pod": f"{node}-0", "pod_uid": f"uid-{node}", "container": "main"}],
                     "records": [[1, 1, 1, 1, 1, 5040, at, MINUTE, MINUTE, 36 * MINUTE // 60, 0, 0, 0, 1000, 60]],
                     "efficiency": [[3 << 29, MINUTE // 4, MINUTE]] if version >= 3 else []}  # fmt: skip
            reply = self.stack.call("POST", "/v1/ingest", frames([batch]), role=f"node {node}")
            self.assertEqual((reply.status, reply.json().get("quarantined")), (200, 0), reply.text())
            [g] = [g for g in self.stack.get("/v1/usage" + query(group_by="workload", node=node)).json()["groups"] if node in g["workload"]]
            self.assertEqual((g["used_gpu_hours"], g["sm_activity"], g["peak_memory_gib"]),
                             ("0.010000000", "0.250000" if version >= 3 else "", "1.500" if version >= 3 else "0.000"))  # fmt: skip

    def test_what_is_wrong_is_named_in_field(self):
        for path, field in (("group_by=colour", "group_by"), ("limit=0", "limit"), ("limit=x", "limit"), ("cursor=zz", "cursor"), ("from=yesterday", "from"), ("to=x", "to"),
                            ("format=xml", "format"), ("exact=2", "exact"), ("from=2026-01-02&to=2026-01-01", "from"), ("node=%01", "node")):  # fmt: skip
            reply = self.stack.call("GET", "/v1/usage?" + path)
            self.assertEqual((reply.status, reply.json().get("field")), (400, field), reply.text())

    def test_a_tenant_sees_its_own_whatever_it_asks(self):
        for ask in ("group_by=tenant", "group_by=tenant,state&node=" + "node-0", "group_by=tenant&workspace=rest"):
            groups = self.stack.get("/v1/usage?" + ask, role="viewer").json()["groups"]
            self.assertLessEqual({g["tenant"] for g in groups}, {"acme"})

    def test_the_command_follows_all_pages_and_takes_the_same_filters(self):
        def ask(*filters):
            return json.loads(self.stack.cli("usage", "--since", "6h", "--by", "label:team,node", "--exact", *filters, "-o", "json").stdout)

        whole = ask()
        self.assertEqual(whole["next"], None)
        node = whole["groups"][0]["node"]
        groups, mine = self.unchanged(lambda: ask()["groups"], lambda: ask("--node", node)["groups"])
        self.assertEqual(mine, [g for g in groups if g["node"] == node])
        head = self.stack.cli("usage", "--since", "6h", "--by", "state", "--node", "nobody", "--exact", "-o", "csv").stdout
        self.assertEqual(head.strip(), "state,unit_ns")
        wrong = self.stack.cli("usage", "--tenant", "nobody")
        self.assertEqual((wrong.returncode, wrong.stderr), (1, 'tollgate: aggregator: 404 Not Found: there is no tenant "nobody"\n'))
        wrong = self.stack.cli("usage", "--by", "label:")
        self.assertEqual(wrong.returncode, 1, wrong.stderr)


if __name__ == "__main__":
    unittest.main()
