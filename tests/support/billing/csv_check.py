"""The chargeback CSV added up again, at every level, in exact decimals.

    check(text)                   # a list of sentences, one per rule that is broken; [] when all hold
    check(text, manifest=value)   # also against the manifest beside it

Rules: C1 the columns of the contract, in order, CRLF, every row as long as the header. C2 numbers are plain decimals. C3 a line_id is there once.
C4 list_cost = quantity x unit_price. C5 billed_cost = list_cost - discount + rounding, with the currency's decimals, and the rounding is under one
smallest unit. C6 allocated = used + idle + unmeasured. C7 per invoice and currency: the billed costs are the sum of list_cost - discount, rounded
once, half to even, but for credits of lent time, each of which is rounded toward zero for every workspace that borrowed. C8 lines, workspaces, tenants and the total add up to the same. C9 per workspace, cluster, model and price version: commitment =
covered + lent + unused + undelivered, in GPU-hours: what is priced per instance counts as so much of a GPU as the instance is. C10 an invoice has one
tenant. C11 the manifest has the same rows and sums.
"""

import collections
import csv
import datetime
import decimal
import fractions
import io
import re

COLUMNS = (
    "period_start,period_end,period_status,invoice_id,invoice_version,line_id,cluster,tenant,cost_center,workspace,charge_type,category,sku,gpu_model,"
    "mig_profile,sharing_mode,class,allocated_gpu_hours,used_gpu_hours,idle_gpu_hours,unmeasured_gpu_hours,unknown_gpu_hours,measured_ratio,quantity,unit,"
    "unit_price,price_version,list_cost,discount,rounding,billed_cost,currency,energy_kwh,counterparty,description,correction_of"
).split(",")
NUMBERS = (
    "allocated_gpu_hours used_gpu_hours idle_gpu_hours unmeasured_gpu_hours unknown_gpu_hours measured_ratio quantity unit_price list_cost discount "
    "rounding billed_cost energy_kwh"
).split()
EXPONENT = {"JPY": 0, "KRW": 0, "CLP": 0, "ISK": 0, "VND": 0, "BHD": 3, "KWD": 3, "JOD": 3, "OMR": 3, "TND": 3}
decimal.getcontext().prec = 60
D = decimal.Decimal


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def units_of(model, profile):
    """Of the 5040 of a GPU: the mean of the compute and the memory slices that the names say. None: they say nothing."""
    if not profile:
        return 5040
    said, whole = re.fullmatch(r"(?:(\d+)c\.)?(\d+)g\.(\d+)gb(?:[+-]\w+)?", profile), re.search(r"-(\d+)GB$", model)
    if not said or not (whole or model == "A30"):
        return None
    compute, memory = (4, 4) if model.startswith("A30") else (7, 8)
    slices = round(fractions.Fraction(int(said[3]) * memory, int(whole[1]) if whole else 24))
    own = int(said[1] or said[2])
    slices = fractions.Fraction(slices * own, int(said[2]))
    return int((fractions.Fraction(own, compute) + fractions.Fraction(slices, memory)) * 2520)


def part_of_commitment(row):
    """Which part of a reservation a line is; None: it is of none."""
    if row["charge_type"] == "commitment":
        return "whole"
    if row["category"] == "gpu" and (row["charge_type"] == "covered" or (row["charge_type"] == "credit" and row["class"] in ("reserved", "borrowed"))):
        return "part"
    return None


def is_loan(row):
    return row["charge_type"] == "credit" and row["class"] == "borrowed"


def check_row(n, row, said):
    def number(name):
        return D(row[name] or "0")

    for name in NUMBERS:
        if row[name] and not re.fullmatch(r"-?\d+(\.\d+)?", row[name]):
            said.append(f"C2 row {n}: {name} is {row[name]!r}")
            return
    if not row["correction_of"] and number("list_cost") != number("quantity") * number("unit_price"):
        said.append(f"C4 row {n}: {row['quantity']} x {row['unit_price']} is not {row['list_cost']}")
    if number("billed_cost") != number("list_cost") - number("discount") + number("rounding"):
        said.append(f"C5 row {n}: {row['list_cost']} - {row['discount']} + {row['rounding']} is not {row['billed_cost']}")
    places = EXPONENT.get(row["currency"], 2)
    if -D(row["billed_cost"]).as_tuple().exponent != places:
        said.append(f"C5 row {n}: {row['billed_cost']} {row['currency']} has not {places} decimals")
    if is_loan(row):
        if number("rounding") < 0 or number("billed_cost") > 0:
            said.append(f"C5 row {n}: a credit of lent time of {row['billed_cost']} with a rounding of {row['rounding']}")
    elif not row["correction_of"] and abs(number("rounding")) >= D(1).scaleb(-places):
        said.append(f"C5 row {n}: a rounding of {row['rounding']}")
    held = sum(number(k) for k in ("used_gpu_hours", "idle_gpu_hours", "unmeasured_gpu_hours"))
    if number("allocated_gpu_hours") != held:
        said.append(f"C6 row {n}: {row['allocated_gpu_hours']} allocated is not {held}")


def check_invoices(rows, said):
    exact, billed, tenants = collections.Counter(), collections.Counter(), collections.defaultdict(set)
    for row in rows:
        tenants[row["invoice_id"]].add(row["tenant"])
        key = row["invoice_id"], row["currency"]
        if row["correction_of"] or is_loan(row):
            continue
        exact[key] += D(row["list_cost"]) - D(row["discount"])
        billed[key] += D(row["billed_cost"])
    for (invoice, currency), amount in exact.items():
        rounded = amount.quantize(D(1).scaleb(-EXPONENT.get(currency, 2)), rounding=decimal.ROUND_HALF_EVEN)
        if rounded != billed[invoice, currency]:
            said.append(f"C7 {invoice}: {amount} {currency} rounds to {rounded}, billed are {billed[invoice, currency]}")
    for invoice, names in tenants.items():
        if len(names) != 1:
            said.append(f"C10 {invoice} is of {sorted(names)}")


def gpu_hours_of(row):
    """What a line of a reservation has, and how far off that may be: credits are negative; instance-hours were rounded for themselves, every day."""
    hours = abs(D(row["quantity"]))
    if not row["unit"].startswith("instance-hour"):
        return hours, D(0)
    units = units_of(row["gpu_model"], row["unit"].partition(" of ")[2] or row["mig_profile"])
    if units is None:
        return None, D(0)
    days = datetime.date.fromisoformat(row["period_end"]) - datetime.date.fromisoformat(row["period_start"])
    return hours * units / 5040, D(days.days).scaleb(-9)


def priced_by_use(rows):
    """What borrowers pay for by their use, not by what they held: how much was lent is then on no line."""
    key = "tenant gpu_model mig_profile sharing_mode price_version".split()
    out = set()
    for row in rows:
        if row["charge_type"] == "usage" and row["class"] == "borrowed":
            hours, off = gpu_hours_of(row)
            if hours is not None and abs(hours - D(row["allocated_gpu_hours"])) > off:
                out.add(tuple(row[k] for k in key))
    return out


def check_commitments(rows, said):
    wholes, parts, offs, by_use = collections.Counter(), collections.Counter(), collections.Counter(), set()
    used = priced_by_use(rows)
    for row in rows:
        what = part_of_commitment(row)
        if what is None or row["correction_of"]:
            continue
        key = row["cluster"], row["tenant"], row["workspace"], row["gpu_model"], row["price_version"]
        hours, off = gpu_hours_of(row)
        if hours is None:
            said.append(f"C9 {'/'.join(key)}: nobody knows how much of a GPU {row['mig_profile']} is")
            continue
        (wholes if what == "whole" else parts)[key] += hours
        offs[key] += off
        if row["counterparty"] and (row["counterparty"], *(row[k] for k in ("gpu_model", "mig_profile", "sharing_mode", "price_version"))) in used:
            by_use.add(key)
    for key in wholes.keys() | parts.keys():
        if abs(wholes[key] - parts[key]) > offs[key] and key not in by_use:
            said.append(f"C9 {'/'.join(key)}: committed {wholes[key]} is not covered + lent + unused + undelivered = {parts[key]}")


def levels(rows, measure):
    """Sums of a column by tenant, by workspace, and the total, per currency."""
    out = collections.defaultdict(D)
    for row in rows:
        for key in (("total",), ("tenant", row["tenant"]), ("workspace", row["tenant"], row["workspace"])):
            out[(row["currency"], *key)] += D(row[measure] or "0")
    return out


def check_levels(rows, said):
    for measure in ("billed_cost", "list_cost", "discount", "rounding", "allocated_gpu_hours"):
        sums = levels(rows, measure)
        for currency in {key[0] for key in sums}:
            total = sums[currency, "total"]
            for level in ("tenant", "workspace"):
                parts = sum((v for k, v in sums.items() if k[0] == currency and k[1] == level), D(0))
                if parts != total:
                    said.append(f"C8 {measure} by {level} is {parts}, in total {total} {currency}")


def check_manifest(rows, manifest, said):
    if manifest["rows"] != len(rows) or manifest["chargeback_lines"] != len(rows):
        said.append(f"C11 the manifest says {manifest['rows']} rows, there are {len(rows)}")
    currencies = {row["currency"] for row in rows}
    if {s["currency"] for s in manifest["sums"]} != currencies:
        said.append(f"C11 the manifest has other currencies than {sorted(currencies)}")
    for total in manifest["sums"]:
        for name in ("list_cost", "discount", "rounding", "billed_cost"):
            there = sum((D(row[name]) for row in rows if row["currency"] == total["currency"]), D(0))
            if D(total[name]) != there:
                said.append(f"C11 {name} in {total['currency']}: the manifest says {total[name]}, the rows {there}")


def check(text, manifest=None):
    said = []
    if "\n" in text.replace("\r\n", ""):
        said.append("C1 a line ends without CRLF")
    table = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    if table[0] != COLUMNS:
        return said + ["C1 the columns are not those of the contract"]
    if any(len(row) != len(COLUMNS) for row in table):
        return said + ["C1 a row is shorter or longer than the header"]
    rows = rows_of(text)
    for n, row in enumerate(rows, 1):
        check_row(n, row, said)
    if any(s.startswith("C2") for s in said):
        return said
    for line, count in collections.Counter(row["line_id"] for row in rows).items():
        if count != 1:
            said.append(f"C3 line {line} is there {count} times")
    check_invoices(rows, said)
    check_commitments(rows, said)
    check_levels(rows, said)
    if manifest is not None:
        check_manifest(rows, manifest, said)
    return said
