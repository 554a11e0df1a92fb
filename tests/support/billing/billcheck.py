"""Every figure of every document of a ledger against an independent computation (tests/support/billing/billoracle.py).

    check = Check()
    check_csv(check, text, expected)     # likewise json, focus, html, usage, metrics
    check.count, check.differences       # how many figures were compared; a sentence for each that differs"""

import collections
import csv
import datetime
import html
import io
import json
import re
from fractions import Fraction

from tests.support.billing import billworld
from tests.support.billing.billhours import FINE, hour_costs
from tests.support.billing.billoracle import BILLION, MJ_PER_KWH, Key, together
from tests.support.billing.billworld import COST_CENTRES, HELD, HOUR, MONTHS, NS, STATES, UNITS

KINDS = (
    (r"(On-demand|Borrowed) use of", "usage"), (r"Use of .*, covered by the reservation", "covered"), (r"Reserved .*, neither used nor lent", "unused"), (r"Reserved .*, not delivered", "undelivered"),
    (r"Reserved .*, lent to", "lent"), (r"Reservation of", "commitment"), (r"Own ", "own idle"), (r"Share of", "shared idle"), (r"Energy$", "energy"), (r"(One-off charge|Credit): ", "one-off"),
)  # fmt: skip
CHARGE_TYPES = {"usage": "usage", "covered": "covered", "unused": "covered", "undelivered": "credit", "lent": "credit", "commitment": "commitment", "own idle": "usage", "shared idle": "usage", "energy": "usage", "meter": "usage"}


class Difference(collections.namedtuple("Difference", "document of figure sentence")):
    """Of a document, and there of a kind of line or a name, this figure."""

    def __str__(self):
        return self.sentence


class Check:
    def __init__(self):
        self.differences = []
        self.of = collections.Counter()  # figures compared, by document

    @property
    def count(self):
        return self.of.total()

    def same(self, where, expected, found, equal=None):
        """where: the document, of what (lines: their key with slashes, the kind first), the figure."""
        self.of[where[0]] += 1
        if not (expected == found if equal is None else equal):
            shown = [f"{float(v):.12g}" if isinstance(v, Fraction) else repr(v) for v in (expected, found)]
            sentence = f"{' '.join(map(str, where))}: must be {shown[0]}, is {shown[1]}"
            self.differences.append(Difference(where[0], str(where[1]).partition("/")[0], str(where[-1]), sentence))

    def near(self, where, expected, found):
        """To a double's precision."""
        self.same(where, expected, Fraction(found), abs(Fraction(found) - expected) <= abs(expected) * Fraction(1, 2**50))


class Expected:
    """A month as its documents have it: its own lines and corrections of the one before."""

    def __init__(self, bill, status, corrections=None, closed_ids=None, before=None):
        self.bill, self.world, self.status = bill, bill.world, status
        self.before = before  # the month before as it was billed
        self.month = MONTHS[bill.month]
        self.lines = {(key, False): line for key, line in bill.lines.items()} | {(key, True): line for key, line in (corrections or {}).items()}
        self.closed_ids = closed_ids or {}  # of the month that is corrected: key -> line_id

    def money(self, units):
        return Fraction(units, 10**self.world.exponent)


def kind_of(description):
    return next((kind for pattern, kind in KINDS if re.match(pattern, description)), "meter")


def key_of(row):
    """(key, whether it is a correction)"""
    said = re.fullmatch(r"(correction of \d{4}-\d\d: )?(.*)", row["description"], re.S)
    kind, sku, meter = kind_of(said[2]), "", ""
    if kind == "one-off":
        sku = said[2].split(": ", 1)[1]
    if kind == "meter":
        sku, meter = row["sku"], re.sub(r"^.*?, ([a-z-]+).*$", r"\1", said[2])
    names = ("cluster", "tenant", "workspace", "gpu_model", "mig_profile", "sharing_mode", "class", "price_version", "counterparty")
    unit = row["unit"] if kind in ("covered", "lent") else ""
    if unit == "instance-hour":
        unit += f" of {row['mig_profile']}"
    return Key(kind, *(row[n] for n in names), sku, meter, unit), bool(said[1])


def plain_text(cell):
    """Without the apostrophe that keeps a spreadsheet from reading a formula."""
    return cell[1:] if cell[:2] in ("'=", "'+", "'-", "'@") else cell


def places(amount, n):
    """With n decimals, half to even."""
    return Fraction(round(amount * 10**n), 10**n)


def check_rows(check, name, rows, expected):
    """The lines of CSV or JSON."""
    found = {}
    for row in rows:
        key = key_of(row)
        check.same((name, key[0].kind, key, "line_id"), True, key not in found and row["line_id"] not in {r["line_id"] for r in found.values()})
        found[key] = row
    for key in sorted({*found} ^ {*expected.lines}, key=str):
        check.same((name, key[0].kind, key, "there"), key in expected.lines, key in found)
    for key in found.keys() & expected.lines.keys():
        check_row(check, name, found[key], key, expected)


def check_row(check, name, row, key, expected):
    (k, correction), line, world = key, expected.lines[key], expected.world
    where = (name, "/".join(p for p in k if p) + (" (correction)" if correction else ""))
    gpu = line.category == "gpu" and k.kind != "one-off"
    first, last = (datetime.datetime.fromtimestamp(world.bounds[expected.bill.month + i] // NS, world.zone).date().isoformat() for i in range(2))
    version, month = ("2", MONTHS[expected.bill.month - 1]) if correction else ("1", expected.month)
    kind = CHARGE_TYPES.get(k.kind) or ("adjustment" if line.sum("list") > 0 else "credit")
    texts = {
        "period_status": expected.status, "invoice_id": f"{k.tenant}-{month}-{version}", "invoice_version": version,
        "cost_center": COST_CENTRES[k.tenant], "charge_type": "correction" if correction else kind, "category": line.category, "unit": line.unit, "currency": world.currency,
    }  # fmt: skip
    if not correction:
        texts |= {"period_start": first, "period_end": last, "correction_of": ""}
    elif key[0] in expected.closed_ids:
        texts["correction_of"] = expected.closed_ids[key[0]]
    if line.sku is not None:
        texts["sku"] = line.sku
    for column, text in texts.items():
        check.same((*where, column), text, plain_text(row[column]))
    amounts = {"quantity": line.sum("quantity"), "unit_price": line.unit_price, "list_cost": line.sum("list"), "discount": line.sum("discount"), "billed_cost": expected.money(line.billed),
               "rounding": expected.money(line.billed) - line.sum("list") + line.sum("discount")}  # fmt: skip
    if gpu:
        amounts |= {f"{n}_gpu_hours": line.sum(n) for n in ("allocated", "used", "idle", "unmeasured")}
        amounts |= {"unknown_gpu_hours": Fraction(0), "energy_kwh": places(line.sum("energy") / MJ_PER_KWH, 6)}
        held = line.sum("allocated")
        if not correction:
            measured = places((held - line.sum("unmeasured")) / held, 6) if held else ""
            check.same((*where, "measured_ratio"), measured, row["measured_ratio"] and Fraction(row["measured_ratio"]))
    for column, amount in amounts.items():
        check.same((*where, column), amount, Fraction(row[column]) if row[column] else None)
    decimals = len(row["billed_cost"].partition(".")[2])
    check.same((*where, "decimals"), world.exponent, decimals)


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def line_ids(text):
    """Of a CSV: {whether they are corrections: {key: line_id of the line itself, or of the line that is corrected}}"""
    out = {False: {}, True: {}}
    for row in rows_of(text):
        key, correction = key_of(row)
        out[correction][key] = row["correction_of"] if correction else row["line_id"]
    return out


def check_csv(check, text, expected):
    check_rows(check, "csv", rows_of(text), expected)


def check_tenant(check, text, tenant, expected):
    """A tenant's own document: its lines with the same figures, and no other tenant's name."""
    wanted, found = collections.Counter(), collections.Counter()
    for (k, correction), line in expected.lines.items():
        if k.tenant == tenant:
            wanted[k._replace(counterparty=""), correction, line.sum("quantity"), line.sum("list"), line.sum("discount"), expected.money(line.billed)] += 1
    for row in rows_of(text):
        found[*key_of(row), *(Fraction(row[n]) for n in ("quantity", "list_cost", "discount", "billed_cost"))] += 1
        others = [t for t in COST_CENTRES if t != tenant and re.search(rf"\b{t}\b", ",".join(row.values()))]
        check.same(("tenant", tenant, row["line_id"], "names"), [], others)
    for line in sorted(wanted.keys() | found.keys(), key=str):
        check.same(("tenant", line[0].kind, *line, "there"), wanted[line], found[line])


def check_json(check, text, expected):
    doc = json.loads(text)
    check_rows(check, "json", doc["lines"], expected)
    check.same(("json", "period"), (expected.month, expected.status, expected.world.currency), (doc["period"], doc["period_status"], doc["currency"]))
    totals = collections.defaultdict(lambda: [Fraction(0), Fraction(0)])
    for (k, correction), line in expected.lines.items():
        invoice = f"{k.tenant}-{MONTHS[expected.bill.month - 1]}-2" if correction else f"{k.tenant}-{expected.month}-1"
        totals[invoice][0] += expected.money(line.billed)
        totals[invoice][1] += line.sum("allocated")
    found = {t["invoice_id"]: t for t in doc["totals"]}
    check.same(("json", "invoices"), sorted(totals), sorted(found))
    for invoice, (billed, held) in totals.items():
        if invoice in found:
            check.same(("json", invoice, "billed_cost"), billed, Fraction(found[invoice]["billed_cost"]))
            check.same(("json", invoice, "allocated_gpu_hours"), held, Fraction(found[invoice]["allocated_gpu_hours"]))


# ---- usage ----

REASONS = {"unused": "reservation-unused", "lent": "reservation-lent", "undelivered": "reservation-undelivered", "own idle": "dedicated-idle", "shared idle": "shared-idle", "meter": "meter", "energy": "idle-energy"}
USAGE_KEYS = ("hour", "cluster", "node", "gpu", "tenant", "workspace", "gpu_model", "profile", "sharing")
USAGE_STATES = ("used", "idle", "unmeasured", "unallocated", "stranded", "down", "unknown")


def usage_truth(world):
    """Of every hour, GPU and holder: unit-nanoseconds by state, and energy. What no record covers has no device."""
    nodes = {n.name: n for n in world.nodes}
    out = collections.defaultdict(collections.Counter)
    covered, first = collections.Counter(), {}

    def maintenance(node, hour):
        return [t for t in world.terms if t.at <= hour][-1].nodes[node][1] == "maintenance"

    for r in world.records:
        n, hour = nodes[r.node], world.hour_of(r.start)
        key = (billworld.rfc3339(hour), n.cluster, r.node, r.gpu, *(r.who or ("", "")), n.model, r.profile, r.sharing)
        covered[r.gpu, hour] += r.units * r.held
        first[r.gpu] = min(first.get(r.gpu, r.start), r.start)
        out[key]["energy_mj"] += r.energy
        if r.state == HELD:
            for state, amount in (("used", r.used), ("unmeasured", r.unmeasured), ("idle", r.held - r.used - r.unmeasured), ("over", r.over)):
                out[key][state] += r.units * amount
        else:
            out[key]["down" if maintenance(r.node, hour) else STATES[r.state]] += r.units * r.held
    for n in world.nodes:
        end = world.windows[n.window][1]
        for gpu in n.gpus:
            hour = world.hour_of(first[gpu.uuid])
            while hour < end:
                missing = UNITS * (min(end, hour + HOUR) - max(first[gpu.uuid], hour)) - covered[gpu.uuid, hour]
                if missing:
                    key = (billworld.rfc3339(hour), n.cluster, n.name, gpu.uuid, "", "", n.model, "", None)
                    out[key]["down" if maintenance(n.name, hour) else "unknown"] += missing
                hour += HOUR
    return out


def grouped(truth, names):
    out = collections.defaultdict(collections.Counter)
    for key, amounts in truth.items():
        out[tuple(v for n, v in zip(USAGE_KEYS, key) if n in names)] += amounts
    return out


def check_usage(check, ask, world):
    """ask(query) gives the groups of GET /v1/usage over both months."""
    truth = usage_truth(world)
    for names in (USAGE_KEYS[:8], ("tenant", "workspace"), ("cluster", "gpu_model", "profile"), ("hour", "tenant"), ()):
        expected = {k: v for k, v in grouped(truth, names).items() if any(v.values())}
        groups = {tuple(g[n] for n in names): g for g in ask(f"group_by={','.join(names)}&exact=1&limit=100000")}
        groups = {k: g for k, g in groups.items() if any(int(v) for n, v in g.items() if n.endswith("_unit_ns") or n == "energy_mj")}
        for key in sorted(expected.keys() ^ groups.keys(), key=str):
            check.same(("usage", *key, "there"), key in expected, key in groups)
        for key in expected.keys() & groups.keys():
            for state in (*USAGE_STATES, "over"):
                if f"{state}_unit_ns" in groups[key]:
                    check.same(("usage", *key, state), expected[key][state], int(groups[key][f"{state}_unit_ns"]))
                else:
                    check.same(("usage", *key, state, "is not there"), 0, expected[key][state])
            check.same(("usage", *key, "energy_mj"), expected[key]["energy_mj"], int(groups[key]["energy_mj"]))
    for g in ask("group_by=tenant,workspace&limit=100000"):
        amounts = grouped(truth, ("tenant", "workspace"))[g["tenant"], g["workspace"]]
        states = ("used", "idle", "unmeasured")
        for state, ngh in zip(states, together([Fraction(amounts[s] * BILLION, UNITS * HOUR) for s in states])):
            check.same(("usage hours", g["tenant"], g["workspace"], state), Fraction(ngh, BILLION), Fraction(g[f"{state}_gpu_hours"]))


USAGE_COST_KEYS = ("tenant", "workspace", "node", "gpu", "hour")


def check_usage_costs(check, reply, lines, expected):
    """Of a month, by USAGE_COST_KEYS: amortised costs of each hour; what no workload caused, by tenant and reason; all of it is the invoices. lines: the CSV."""
    order = {key_of(row)[0]: n for n, row in enumerate(rows_of(lines))}
    effective, without = amortised(expected, order), collections.Counter()

    def days_of(k, line):
        if k.kind == "covered":
            return {day: effective.get((k, day), 0) for day in line.days}
        return cents_of_days(line, expected) if k.kind == "usage" or (k.kind == "energy" and k.workspace) else None

    held, left = hour_costs(expected, days_of)
    for key, units in left.items():
        without[key] += expected.money(units) / FINE
    for (k, correction), line in expected.lines.items():
        if correction or k.kind == "one-off":
            without[k.tenant, "correction" if correction else "adjustment"] += expected.money(line.billed)
        elif k.kind in REASONS and days_of(k, line) is None:
            for day, units in cents_of_days(line, expected).items():
                without[k.tenant, REASONS[k.kind]] += expected.money(effective.get((k, day), 0) + units)
    found = collections.Counter()
    for g in reply["groups"]:
        for cost in g.get("costs") or ():
            check.same(("usage cost", "currency"), expected.world.currency, cost["currency"])
            found[tuple(g[n] for n in USAGE_COST_KEYS)] += Fraction(cost["amount"])
    for key in sorted(held.keys() | found.keys()):
        check.same(("usage cost", *key, "amount"), expected.money(held[key]) / FINE, Fraction(found[key]))
    said = collections.Counter()
    for row in reply["costs_without_workload"]:
        said[row["tenant"], row["reason"]] += Fraction(row["amount"])
    for key in sorted(without.keys() | said.keys()):
        check.same(("usage cost", *key, "amount"), Fraction(without[key]), Fraction(said[key]))
    check.same(("usage cost", "all", "total"), expected.money(sum(line.billed for line in expected.lines.values())), sum(Fraction(c["amount"]) for c in reply["costs_total"]))


# ---- metrics ----

def series(text):
    """{(name, labels): value as text}"""
    out = {}
    for line in text.splitlines():
        said = re.fullmatch(r'(\w+)\{(.*)\} (\S+)', line)
        if said:
            out[said[1], frozenset(re.findall(r'(\w+)="(.*?)"', said[2]))] = said[3]
    return out


def check_metrics(check, text, expected):
    world, found = expected.world, series(text)
    costs, hours = collections.defaultdict(Fraction), collections.defaultdict(Fraction)
    for (k, _), line in expected.lines.items():
        costs[k.tenant, k.workspace] += expected.money(line.billed)
    for (_, _, _, _, who, _, _, _, klass, _), activity in expected.bill.charged.uses.items():
        for state in ("used", "idle", "unmeasured"):
            hours[*who, "reserved" if klass == "covered" else klass, state] += Fraction(activity[state], UNITS * HOUR)
    wanted = {}
    for (tenant, workspace), amount in costs.items():
        labels = {"period": expected.month, "tenant": tenant, "workspace": workspace, "currency": world.currency}
        wanted["tollgate_period_cost", frozenset((k, v) for k, v in labels.items() if v)] = amount
    for (tenant, workspace, klass, state), amount in hours.items():
        labels = {"period": expected.month, "tenant": tenant, "workspace": workspace, "class": klass, "state": state}
        if amount:
            wanted["tollgate_period_gpu_hours", frozenset(labels.items())] = places(amount, 9)
    nodes = {n.name: n for n in world.nodes}
    seconds = collections.Counter()
    for r in world.records:
        n = nodes[r.node]
        labels = {"cluster": n.cluster, "tenant": r.who and r.who[0], "workspace": r.who and r.who[1], "gpu_model": n.model, "profile": r.profile}
        labels = frozenset((k, v) for k, v in labels.items() if v)
        amounts = {"used": r.used, "idle": r.held - r.used - r.unmeasured, "unmeasured": r.unmeasured} if r.state == HELD else {STATES[r.state]: r.held}
        for state, amount in amounts.items():
            seconds["tollgate_gpu_seconds_total", labels | {("state", state)}] += Fraction(r.units * amount, UNITS * NS)
        seconds["tollgate_energy_joules_total", labels] += Fraction(r.energy, 1000)
    # The page has whole microseconds, cut.
    wanted |= {k: Fraction(v * 10**6 // 1, 10**6) for k, v in seconds.items() if v}
    names = {"tollgate_period_cost", "tollgate_period_gpu_hours", "tollgate_gpu_seconds_total", "tollgate_energy_joules_total"}
    there = {k: v for k, v in found.items() if k[0] in names and (float(v) or k in wanted)}
    for key in sorted(wanted.keys() ^ there.keys(), key=str):
        if key[0] == "tollgate_period_gpu_hours" and not dict(key[1]).get("class"):
            continue
        check.same(("metrics", key[0], sorted(key[1]), "there"), key in wanted, key in there)
    for key in wanted.keys() & there.keys():
        check.near(("metrics", key[0], sorted(key[1]), "value"), wanted[key], there[key])


# ---- FOCUS ----

FOCUS_UNITS = {"gpu-hour": "GPU-Hours", "instance-hour": "Instance-Hours", "kWh": "Kilowatt-Hours", "GB-hour": "GB-Hours", "GB": "GB", "request": "Requests", "token": "Tokens", "1000 requests": "1000 Requests", "1000000 tokens": "1000000 Tokens", "hour": "Hours", "charge": "Units"}


def apportion(units, parts):
    """So many among the parts, each within one of its own value, by largest remainder."""
    floors = [p.numerator // p.denominator for p in parts]
    for i in sorted(range(len(parts)), key=lambda i: floors[i] - parts[i])[: units - sum(floors)]:
        floors[i] += 1
    return floors


PARTS = ("covered", "unused", "lent", "undelivered")  # of a reservation


def amortised(expected, order):
    """(key, day) -> smallest units: what was billed for each reservation's day on the hours of its parts, by largest remainder, equal ones in the order of the lines (4)."""
    out, cents, lines = {}, collections.Counter(), collections.defaultdict(list)
    for (k, correction), line in expected.lines.items():
        of = (k.cluster, k.tenant, k.workspace, k.model, k.version, line.reservation)
        if not correction and k.kind in PARTS:
            lines[of].append(line)
        if not correction and k.kind == "commitment":
            for day, units in cents_of_days(line, expected).items():
                cents[of, day] += units
    for of, mine in lines.items():
        mine.sort(key=lambda x: order.get(x.key, 0))
        for day, units in [(day, units) for (other, day), units in cents.items() if other == of]:
            parts = [x for x in mine if day in x.days]
            hours = [x.days[day]["gpu_hours"] for x in parts]
            for part, amount in zip(parts, apportion(units, [units * h / sum(hours) for h in hours])):
                out[part.key, day] = amount
    return out


def cents_of_days(line, expected):
    """A line's cents among its days: each within one of what it costs; of a credit for what was lent, which was cut, in proportion."""
    days = sorted(line.days)
    nets = [line.days[d]["net"] * 10**expected.world.exponent for d in days]
    if line.key.kind == "lent":
        whole = sum(nets, Fraction(0))
        return dict(zip(days, (-n for n in apportion(-line.billed, [-line.billed * n / whole if whole else Fraction(0) for n in nets]))))
    return dict(zip(days, apportion(line.billed, nets)))


def check_focus(check, text, expected, lines):
    """lines: the CSV of the same month."""
    world = expected.world
    ids, order = {}, {}
    for n, row in enumerate(rows_of(lines)):
        ids[key_of(row)] = row["line_id"]
        order[key_of(row)[0]] = n
    rows = collections.defaultdict(list)
    for row in rows_of(text):
        rows[row["x_LineId"]].append(row)
    check.same(("focus", "all", "lines"), sorted(ids.values()), sorted(rows))
    effective = amortised(expected, order)
    check_sku_prices(check, rows)
    for (k, correction), line in expected.lines.items():
        where = ("focus", "/".join(p for p in k if p) + (" (correction)" if correction else ""))
        mine = rows[ids[k, correction]] if (k, correction) in ids else []
        check.same((*where, "BilledCost"), expected.money(line.billed), sum((Fraction(r["BilledCost"]) for r in mine), Fraction(0)))
        for row in mine:
            check.same((*where, "texts"), (k.tenant, k.workspace, world.currency), (row["SubAccountId"], row["x_WorkspaceId"], row["BillingCurrency"]))
            check.same((*where, "billing period"), tuple(billworld.rfc3339(world.bounds[expected.bill.month + i]) for i in range(2)), (row["BillingPeriodStart"], row["BillingPeriodEnd"]))
        if correction or k.kind == "one-off":
            continue
        if k.kind not in PARTS:
            contracted = sum((Fraction(r["ContractedCost"]) for r in mine), Fraction(0))
            check.same((*where, "ContractedCost of all days"), line.net, contracted)
        split = k.kind in ("lent", "undelivered")  # hours that were not used, and a credit for them
        check.same((*where, "rows"), len(line.days) * (2 if split else 1), len(mine))
        found = {(r["ChargePeriodStart"], r["ChargeCategory"] == "Credit"): r for r in mine}
        for day, units in cents_of_days(line, expected).items():
            start, end = (billworld.rfc3339(ns) for ns in world.day_bounds(day))
            for credit in (True, False) if split else (False,):
                row = found.get((start, credit))
                check.same((*where, day, "there"), True, row is not None and row["ChargePeriodEnd"] == end)
                if row is not None:
                    check_focus_row(check, (*where, day), row, line, day, units, effective.get((k, day), 0), credit, expected)


def check_sku_prices(check, rows):
    """At any instant, which is to say in a price version, a SkuPriceId has one list price and one unit."""
    found = collections.defaultdict(set)
    for row in (r for mine in rows.values() for r in mine if r["SkuPriceId"] and r["ChargeClass"] != "Correction"):
        found[row["SkuPriceId"], row["x_PriceVersion"]].add((Fraction(row["ListUnitPrice"]), row["PricingUnit"]))
    for key, prices in found.items():
        check.same(("focus", *key, "SkuPriceId"), 1, len(prices), len(prices) == 1)


def check_focus_row(check, where, row, line, day, units, amortised_units, credit, expected):
    k, d = line.key, line.days[day]
    billed = expected.money(units)
    if credit:
        amounts = {"BilledCost": billed, "ListCost": billed, "ContractedCost": billed, "EffectiveCost": billed, "PricingQuantity": d["quantity"]}
    elif k.kind in PARTS:
        amounts = {"BilledCost": Fraction(0), "EffectiveCost": expected.money(amortised_units)}
        if k.kind == "covered":
            # The same use on demand.
            quantity = d["on_demand_quantity"]
            check.same((*where, "PricingUnit"), FOCUS_UNITS[line.on_demand_unit], row["PricingUnit"])
            amounts |= {"PricingQuantity": quantity, "ListUnitPrice": line.on_demand_price, "ListCost": quantity * line.on_demand_price, "ContractedCost": quantity * Fraction(row["ContractedUnitPrice"])}
        else:
            amounts |= {"PricingQuantity": abs(d["quantity"]), "ListCost": d["reserved_list"], "ContractedCost": d["reserved_net"]}
    else:
        amounts = {"BilledCost": billed, "ListCost": d["list"], "ContractedCost": d["net"], "PricingQuantity": d["quantity"], "EffectiveCost": Fraction(0) if k.kind == "commitment" else billed}
    if line.category == "gpu" and not credit:
        amounts |= {"x_GpuHours": d["gpu_hours"], "x_UsedGpuHours": d["used"], "x_IdleGpuHours": d["idle"], "x_UnmeasuredGpuHours": d["unmeasured"], "x_EnergyKwh": places(d["energy"] / MJ_PER_KWH, 6)}
    for column, amount in amounts.items():
        check.same((*where, column), amount, Fraction(row[column] or 0))
    if k.kind != "covered":
        check.same((*where, "PricingUnit"), FOCUS_UNITS[line.unit.partition(" of ")[0]], row["PricingUnit"])


# ---- pages ----

CATEGORIES = ("gpu", "storage", "network", "inference", "support", "energy", "other")


def cells(row):
    return [html.unescape(re.sub(r"<[^>]*>", " ", c)).strip() for c in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)]


def number(cell):
    return Fraction(cell.replace("\N{MINUS SIGN}", "-").replace("+", ""))


def tables(section):
    """(class, [(class of the row, cells), ...]) of each table."""
    out = []
    for kind, body in re.findall(r'<table class="(\w+)">(.*?)</table>', section, re.S):
        out.append((kind, [(c, cells(r)) for c, r in re.findall(r'<tr(?: class="(\w+)")?>(.*?)</tr>', body, re.S)]))
    return out


def check_parts(check, where, names, exact, printed):
    """Hours of which a page prints the sum and its parts: the sum is rounded, the parts add up to it, and each is within a thousandth."""
    total, *parts = map(number, printed)
    check.same((*where, names[0]), places(sum(exact, Fraction(0)), 3), total)
    check.same((*where, names[0], "adds up"), total, sum(parts))
    for name, amount, cell in zip(names[1:], exact, parts):
        check.same((*where, name), amount, cell, abs(amount - cell) < Fraction(1, 1000))


def check_html(check, text, expected):
    pages = text.split("<section>")[1:]
    tenants = sorted({k.tenant for (k, _) in expected.lines})
    check.same(("html", "pages"), len(tenants), len(pages))
    for tenant, page in zip(tenants, pages):
        check_page(check, page, tenant, expected)


def check_page(check, page, tenant, expected):
    where = ("html", tenant)
    lines = [(k, correction, line) for (k, correction), line in expected.lines.items() if k.tenant == tenant]
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    check.same((*where, "number"), f"{tenant}-{expected.month}-1", html.unescape(facts["Number"]))
    found = tables(page)
    totals = {row[0]: row[1] for _, row in found[0][1] if len(row) == 2}
    for category in CATEGORIES:
        amount = expected.money(sum(line.billed for _, _, line in lines if line.category == category))
        check.same((*where, category), amount, number(totals["GPU" if category == "gpu" else category.capitalize()]))
    total = expected.money(sum(line.billed for _, _, line in lines))
    check.same((*where, "total"), total, number(totals["Total"]))
    corrected = [line for _, correction, line in lines if correction]
    memo = next((k, v) for k, v in totals.items() if k.startswith("Corrections"))
    check.same((*where, "corrections"), len(corrected), int(re.search(r"in it: (\d+)", memo[0])[1]))
    check.same((*where, "corrections' amount"), expected.money(sum(line.billed for line in corrected)), number(memo[1]))
    change = next((v for k, v in totals.items() if k.startswith("Change against")), None)
    if expected.before is not None and change is not None:
        before = expected.money(sum(line.billed for k, line in expected.before.lines.items() if k.tenant == tenant))
        check.same((*where, "change"), total - before, number(change.split()[0]))
    own = [(k, line) for k, correction, line in lines if not correction]
    check_hours(check, where, found, own)
    check_capacity(check, where, found, tenant, expected)
    check_lines(check, where, next(rows for kind, rows in found if kind == "lines"), lines, expected)


def check_hours(check, where, found, own):
    parts = {row[0].lstrip("=+ "): row[1] for kind, rows in found for _, row in rows if kind == "parts" and len(row) == 2}
    states = ("used", "idle", "unmeasured")
    names = ("Allocated", *states)
    check_parts(check, where, names, [sum((line.sum(s) for _, line in own), Fraction(0)) for s in states], [parts[n] for n in names])
    fates = {"covered": "covered", "lent": "lent", "unused": "reserved, unused", "undelivered": "undelivered"}
    hours = [sum((line.sum("gpu_hours") for k, line in own if k.kind == fate), Fraction(0)) for fate in fates]
    if any(hours) or "Committed" in parts:
        names = ("Committed", *fates.values())
        check_parts(check, where, names, hours, [parts[n] for n in names])


def check_capacity(check, where, found, tenant, expected):
    """What became of the time of its own nodes."""
    world = expected.world
    amounts = collections.Counter()
    for (hour, _, owner, _), cell in expected.bill.charged.measured.hours.items():
        if owner == tenant and world.bounds[expected.bill.month] <= hour < world.bounds[expected.bill.month + 1]:
            amounts += collections.Counter(cell.states)
            amounts["held"] += sum(a["used"] + a["idle"] + a["unmeasured"] for a in cell.uses.values())
    names = ("held", "unallocated", "stranded", "down", "unknown")
    row = next((row for kind, rows in found for _, row in rows if kind == "parts" and row[0] == "States of the capacity"), None)
    check.same((*where, "own nodes"), True, row is not None or not amounts.total())
    if row is not None:
        check_parts(check, where, ("in service", *names), [Fraction(amounts[n], UNITS * HOUR) for n in names], row[1:])


def check_lines(check, where, rows, lines, expected):
    """Of each line shown quantity, unit, price, list, discount and net; by workspace and in total with those that are not shown."""
    exponent = expected.world.exponent
    sums = collections.defaultdict(lambda: [Fraction(0)] * 3, {"Other workspaces": [Fraction(0)] * 3})
    left = collections.defaultdict(list)
    for k, correction, line in lines:
        amounts = (line.sum("list"), line.sum("discount"), expected.money(line.billed))
        for name in (k.workspace or "The tenant as a whole", "Total"):
            sums[name] = [a + b for a, b in zip(sums[name], amounts)]
        said = (line.sum("quantity"), line.unit, line.unit_price, places(amounts[0], exponent), places(amounts[1], exponent), amounts[2])
        left[k.workspace or "The tenant as a whole"].append((k.kind, correction, *said))
    workspace, groups = None, []
    for _, row in rows[1:]:
        if len(row) == 7:
            description, unit = row[0], row[2]
            correction = re.match(r"correction of \d{4}-\d\d: ", description)
            said = (kind_of(description[correction.end() :] if correction else description), bool(correction), number(row[1]), unit, *map(number, row[3:]))
            check.same((*where, workspace, description, said, "line"), True, said in left[workspace])
            if said in left[workspace]:
                left[workspace].remove(said)
        else:
            workspace = re.split(r"  +", row[0])[0]
            groups.append((workspace, row[1:]))
    named = {name for name, _ in groups}
    for name, amounts in sums.items():
        if name not in named:
            sums["Other workspaces"] = [a + b for a, b in zip(sums["Other workspaces"], amounts)] if name != "Other workspaces" else amounts
    for name, row in groups:
        for column, amount, cell in zip(("list", "discount", "net"), sums[name], row):
            check.same((*where, name, column), places(amount, exponent), number(cell))
