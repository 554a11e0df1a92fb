"""What every holder's hour of a random world costs (tests/support/billing/billworld.py), in whole millionths of the currency's smallest unit: EffectiveCost of each line's day over the
hours of its class and the holders of each hour, computed from the rules as they are written, without a line of the ledger's code.

    costs, left = hour_costs(expected, days_of)    # {(tenant, workspace, node, gpu, hour): units}, {(tenant, reason): units}"""

import collections
import functools

from tests.support.billing import billoracle, billworld
from tests.support.billing.billoracle import TENANTS, Prices, shares

FINE = 10**6
CLASSES = ("covered", "on-demand", "borrowed")
SHARING = ("", "exclusive", "mig", "mps", "timeslice", "plain")

# What a workspace held of one kind of device in one hour of one pool; the order of the fields is the one in which equal remainders are given out.
Cell = collections.namedtuple("Cell", "workspace cluster model profile units sharing hour owner")


class Hours(billoracle.Charged):
    """The classes of each hour."""

    def __init__(self, world, month, late):
        self.cells = collections.defaultdict(dict)  # Cell -> class -> activity
        self.books = {}  # hour -> book
        super().__init__(world, month, late)
        self.cells_of = collections.defaultdict(list)
        for cell in self.cells:
            self.cells_of[world.day_of(cell.hour), self.books[cell.hour].version, billworld.WORKSPACES[cell.workspace], cell.cluster].append(cell)

    def add_hour(self, hour):
        self.hour = hour
        self.books[hour] = billoracle.terms_at(self.world, hour).book
        super().add_hour(hour)

    def add_uses(self, at, pool, cell, s, rights):
        kept, self.uses = self.uses, collections.defaultdict(collections.Counter)
        borrowed = super().add_uses(at, pool, cell, s, rights)
        for (_, _, cluster, model, who, profile, units, sharing, klass, _), activity in self.uses.items():
            self.cells[cell_of(who, cluster, model, profile, units, sharing, self.hour, pool[1])][klass] = activity
            kept[cluster, klass] += activity
        self.uses = kept
        return borrowed


def cell_of(who, cluster, model, profile, units, sharing, hour, owner):
    return Cell(billworld.WORKSPACES.index(who), cluster, model, profile, units, SHARING.index(sharing), hour, TENANTS.index(owner) + 1 if owner else 0)


def amounts(activity):
    held = activity["used"] + activity["idle"] + activity["unmeasured"]
    return {"held": held, "used": activity["used"] + activity["unmeasured"] + activity["over"], "energy": activity["energy"]}


def holders_of(world):
    """Cell -> (node, gpu) -> activity; as the ledger has it now."""
    nodes, out = {n.name: n for n in world.nodes}, collections.defaultdict(lambda: collections.defaultdict(collections.Counter))
    for r in world.records:
        if r.state == billworld.HELD:
            n, hour = nodes[r.node], world.hour_of(r.start)
            one = out[cell_of(r.who, n.cluster, n.model, r.profile, billworld.units_of(n.model, r.profile), r.sharing, hour, n.owner)][r.node, r.gpu]
            for name, amount in (("used", r.used), ("unmeasured", r.unmeasured), ("idle", r.held - r.used - r.unmeasured), ("over", r.over)):
                one[name] += r.units * amount
            one["energy"] += r.energy
    return out


@functools.lru_cache(maxsize=2)
def of_world(world, month):
    """With what came late: the hours as the ledger has them now."""
    return Hours(world, month, True), holders_of(world)


def basis_of(k, book):
    """What the tenant pays for."""
    if k.kind == "energy":
        return "energy"
    return "used" if k.kind == "usage" and Prices(book).both(k.klass, k.model, k.profile, k.sharing, k.tenant)[1]["basis"] == "used" else "held"


def hour_costs(expected, days_of):
    """days_of(key, line): {day: smallest units} of a line that workloads caused, None of any other."""
    world = expected.world
    hours, holders = of_world(world, expected.bill.month)
    parts, left = collections.defaultdict(collections.Counter), collections.Counter()
    for (k, correction), line in expected.lines.items():
        days = None if correction else days_of(k, line)
        if days is None:
            continue
        book = next(b for b in world.books if b.version == k.version)
        basis = basis_of(k, book)
        klass = "covered" if k.kind == "covered" else k.klass
        for day, units in days.items():
            cells = {}
            for cell in hours.cells_of[day, k.version, (k.tenant, k.workspace), k.cluster]:
                classes = hours.cells[cell]
                if basis == "energy":
                    cells[cell] = sum(a["energy"] for a in classes.values())
                elif (cell.model, cell.profile, SHARING[cell.sharing]) == (k.model, k.profile, k.sharing) and klass in classes:
                    cells[cell] = amounts(classes[klass])[basis]
            order = sorted(cells)
            if not sum(cells.values()):
                left[k.tenant, "workload-unknown"] += units * FINE
            for cell, part in zip(order, shares(units * FINE, [cells[c] for c in order])):
                parts[cell][basis] += part
    return spread(parts, holders), left


def spread(parts, holders):
    """Of each cell over its holders, by what is paid for."""
    out = collections.Counter()
    for cell, of in parts.items():
        who = sorted(holders[cell])
        for basis, units in of.items():
            weights = [amounts(holders[cell][w])[basis] for w in who]
            for (node, gpu), part in zip(who, shares(units, weights if sum(weights) else [amounts(holders[cell][w])["held"] for w in who])):
                out[*billworld.WORKSPACES[cell.workspace], node, gpu, billworld.rfc3339(cell.hour)] += part
    return out
