"""FOCUS exports checked by the rules of the specification, row by row and over the whole file; stricter than the official validator.

    check(text)                          # a list of sentences that begin with the rule that is broken; [] when all hold
    check(text, payable={"ID": "18.30"}) # also what each invoice comes to
    check(text, whole=False)             # of one tenant: what was divided among all does not add up
    check(text, version="1.4")           # columns of another version than 1.2
    check_invoices(text, focus)          # Invoice Detail of 1.4 against the rows of the same month
    check_periods(text)                  # the file of billing periods
    check_again(before, after, periods)  # two exports of one period, the second one later; with a third, that of a later period, in which its corrections are

F rules are about format, R rules about a row, D rules about the file; their numbers are in the sentences.
"""

import collections
import csv
import datetime
import decimal
import io
import json
import re

decimal.getcontext().prec = 80
D = decimal.Decimal

MANDATORY = (
    "BilledCost BillingAccountId BillingAccountName BillingCurrency BillingPeriodEnd BillingPeriodStart ChargeCategory ChargeClass ChargeDescription "
    "ChargePeriodEnd ChargePeriodStart ContractedCost EffectiveCost InvoiceIssuerName ListCost PricingQuantity PricingUnit ProviderName PublisherName "
    "ServiceCategory ServiceName ServiceProviderName"
).split()
# beyond the mandatory ones: what FOCUS knows, and the official validator wants to see
KNOWN = set(MANDATORY) | set(
    "AllocatedMethodDetails AllocatedMethodId AvailabilityZone CapacityReservationId CapacityReservationStatus ChargeFrequency CommitmentDiscountCategory "
    "CommitmentDiscountId CommitmentDiscountName CommitmentDiscountQuantity CommitmentDiscountStatus CommitmentDiscountType CommitmentDiscountUnit "
    "ConsumedQuantity ConsumedUnit ContractApplied ContractedUnitPrice HostProviderName InvoiceId ListUnitPrice PricingCategory PricingCurrency "
    "PricingCurrencyContractedUnitPrice PricingCurrencyEffectiveCost PricingCurrencyListUnitPrice RegionId RegionName ResourceId ResourceName ResourceType "
    "ServiceSubcategory SkuId SkuMeter SkuPriceDetails SkuPriceId SubAccountId SubAccountName SubAccountType Tags".split()
)
EXPECTED = "CapacityReservationId CapacityReservationStatus CommitmentDiscountId CommitmentDiscountQuantity CommitmentDiscountStatus CommitmentDiscountUnit PricingCurrency PricingCurrencyContractedUnitPrice PricingCurrencyEffectiveCost PricingCurrencyListUnitPrice HostProviderName".split()
NULLABLE = {"BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit"}
DATES = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")
NUMBERS = (
    "BilledCost ConsumedQuantity ContractedCost ContractedUnitPrice EffectiveCost ListCost ListUnitPrice PricingCurrencyContractedUnitPrice "
    "PricingCurrencyEffectiveCost PricingCurrencyListUnitPrice PricingQuantity CommitmentDiscountQuantity"
).split()
# what a row with a commitment says about it
COMMITMENT = "CommitmentDiscountCategory CommitmentDiscountName CommitmentDiscountType".split()
JSONS = ("SkuPriceDetails", "Tags")  # flat; AllocatedMethodDetails has a shape of its own
NAMES = "BillingAccountName SubAccountName ResourceName RegionName ServiceName ProviderName PublisherName InvoiceIssuerName ServiceProviderName HostProviderName".split()
ENUMS = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"", "Correction"},
    "ChargeFrequency": {"", "One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"", "Standard", "Dynamic", "Committed", "Other"},
    "CapacityReservationStatus": {"", "Used", "Unused"},
    "CommitmentDiscountStatus": {"", "Used", "Unused"},
    "CommitmentDiscountCategory": {"", "Spend", "Usage"},
}
SUBCATEGORIES = {
    "AI and Machine Learning": {"AI Platforms", "Bots", "Generative AI", "Machine Learning", "Natural Language Processing", "Other (AI and Machine Learning)"},
    "Compute": {"Containers", "End User Computing", "Quantum Compute", "Serverless Compute", "Virtual Machines", "Other (Compute)"},
    "Storage": {"Backup Storage", "Block Storage", "File Storage", "Object Storage", "Storage Platforms", "Other (Storage)"},
    "Networking": {
        "Application Networking", "Content Delivery", "Network Connectivity", "Network Infrastructure", "Network Routing", "Network Security", "Other (Networking)",
    },
    "Management and Governance": {
        "Architecture", "Compliance", "Cost Management", "Data Governance", "Disaster Recovery", "Endpoint Management", "Observability", "Support",
        "Other (Management and Governance)",
    },
    "Other": {"Other (Other)"},
}  # fmt: skip
CATEGORIES = set(SUBCATEGORIES) | {
    "Analytics", "Business Applications", "Databases", "Developer Tools", "Multicloud", "Identity", "Integration", "Internet of Things", "Media",
    "Migration", "Mobile", "Security", "Web",
}  # fmt: skip
CURRENCIES = set(
    "AED ARS AUD BDT BGN BHD BRL CAD CHF CLP CNY COP CZK DKK EGP EUR GBP HKD HUF IDR ILS INR ISK JOD JPY KRW KWD KZT LKR MAD MXN MYR NGN NOK NPR NZD OMR PEN PHP "
    "PKR PLN QAR RON RSD SAR SEK SGD THB TND TRY TWD UAH USD UYU VND ZAR".split()
)
DETAIL_KEYS = {"CoreCount": int, "DiskMaxIops": int, "DiskSpace": (int, float), "DiskType": str, "GpuCount": (int, float), "InstanceSeries": str, "InstanceType": str,
               "MemorySize": (int, float), "NetworkMaxIops": int, "OperatingSystem": str, "Redundancy": str, "StorageClass": str}  # fmt: skip
DATA = r"(?:[KMGTPE]?[bB]|[KMGTPE]i[bB])"
NOUN = rf"(?:{DATA}|[A-Z]\w*(?: [A-Z]\w*)*)"
UNIT = re.compile(
    rf"(?:\d+ )?{NOUN}(?:-(?:Years|Months|Days|Hours|Minutes|Seconds)|/(?:Year|Month|Day|Hour|Minute|Second)|/\d+ (?:Years|Months|Days|Hours|Minutes|Seconds))?"
)
NUMERIC = re.compile(r"-?\d+(\.\d+)?(E-?\d+)?")
PLACEHOLDERS = {"N/A", "n/a", "NULL", "null", "None", "none", "-", '""', "NaN"}


def is_date(text):
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text):
        return False
    try:
        datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return False
    return True


def flat_object(text):
    """Its members; None when it is not a flat object with unique keys."""
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except ValueError:
        return None
    if not isinstance(pairs, list) or any(not isinstance(p, tuple) for p in pairs):
        return None
    if len({k for k, _ in pairs}) != len(pairs) or any(isinstance(v, (list, dict)) for _, v in pairs):
        return None
    return dict(pairs)


def ratio_of(text):
    """AllocatedRatio of a row that is a part of something; None when it is not of the shape that FOCUS 1.3 gives it."""
    try:
        elements = json.loads(text, parse_float=D, parse_int=D)["Elements"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(elements, list) or not elements:
        return None
    for e in elements:
        if not isinstance(e, dict) or not isinstance(e.get("AllocatedRatio"), D) or set(e) - {"AllocatedRatio", "UsageUnit", "UsageQuantity"}:
            return None
        if not 0 <= e["AllocatedRatio"] <= 1 or ("UsageUnit" in e) != ("UsageQuantity" in e):
            return None
    return sum(e["AllocatedRatio"] for e in elements)


# columns that not all versions have: the first one, the last one
CHANGED = {"AllocatedResourceId": ("1.3", "1.4"), "AllocatedResourceName": ("1.3", "1.4"), "AllocatedTags": ("1.3", "1.4"), "InvoiceDetailId": ("1.4", "1.4"), "ProviderName": ("1.2", "1.3"),
           "PublisherName": ("1.2", "1.3")}  # fmt: skip
INVOICES = (
    "BilledCost BillingAccountId BillingCurrency BillingPeriodEnd BillingPeriodStart ChargeCategory InvoiceDetailCreated InvoiceDetailDescription InvoiceDetailGrain InvoiceDetailId "
    "InvoiceDetailLastUpdated InvoiceId InvoiceIssueDate InvoiceIssueStatus InvoiceIssuerName PaymentCurrency PaymentDueDate PaymentTerms ReferenceInvoiceId"
).split()


def mandatory(version):
    return [name for name in MANDATORY if name not in CHANGED or version <= CHANGED[name][1]]


def check_header(header, version, say):
    custom = [name.startswith("x_") for name in header]
    if len(set(header)) != len(header):
        say("F1 a column is there twice")
    if custom != sorted(custom):
        say("F1 a column of FOCUS comes after one of ours")
    for name in header:
        if not name.startswith("x_") and (name not in KNOWN | set(CHANGED) or not CHANGED.get(name, (version,))[0] <= version <= CHANGED.get(name, (version,))[-1]):
            say(f"F1 FOCUS {version} has no column {name}")
    for name in mandatory(version) + EXPECTED + [name for name, (first, last) in CHANGED.items() if first <= version <= last]:
        if name not in header:
            say(f"P the column {name} is missing")


def check_format(r, say):
    for name, value in r.items():
        if value in PLACEHOLDERS:
            say(f"F4 {name} is {value}: null is an empty field")
        if value != value.strip():
            say(f"F4 {name} has spaces around it")
        if not value.isascii():
            say(f"F8 {name} is not ASCII: {value!r}")
    for name in DATES:
        if not is_date(r[name]):
            say(f"F2 {name} is {r[name]!r}")
    for name, value in r.items():
        number = name in NUMBERS or (name.startswith("x_") and name.endswith(("Hours", "Kwh", "Ratio", "Seconds")))
        if number and value and not NUMERIC.fullmatch(value):
            say(f"F3 {name} is {value!r}")
        elif number and value and "." not in value:
            say(f"F3 {name} is {value!r}: a column of such values is read as integers")
    for name in JSONS:
        if r.get(name) and flat_object(r[name]) is None:
            say(f"F5 {name} is not a flat object: {r[name]}")
    if r.get("AllocatedMethodDetails") and ratio_of(r["AllocatedMethodDetails"]) is None:
        say(f"F5 AllocatedMethodDetails is {r['AllocatedMethodDetails']}")
    for name in ("BillingCurrency", "PricingCurrency"):
        if r.get(name, "EUR") not in CURRENCIES:
            say(f"F6 {name} is {r[name]!r}")
    for name in ("PricingUnit", "ConsumedUnit"):
        if r.get(name) and not UNIT.fullmatch(r[name]):
            say(f"F7 {name} is {r[name]!r}")


def check_values(r, version, say):
    correction = r["ChargeClass"] == "Correction"
    category = r["ChargeCategory"]
    priced = "PricingQuantity PricingUnit ListUnitPrice ContractedUnitPrice PricingCategory SkuId SkuPriceId".split()

    for name in mandatory(version):
        if name not in NULLABLE and r[name] == "":
            say(f"R1 {name} is null")
    for name, allowed in ENUMS.items():
        if r.get(name, "") not in allowed:
            say(f"R2 {name} is {r[name]!r}")
    if r["ServiceCategory"] not in CATEGORIES:
        say(f"R2 ServiceCategory is {r['ServiceCategory']!r}")
    if r.get("ServiceSubcategory") and r["ServiceSubcategory"] not in SUBCATEGORIES.get(r["ServiceCategory"], {r["ServiceSubcategory"]}):
        say(f"R2 {r['ServiceSubcategory']!r} is not of {r['ServiceCategory']!r}")
    if category in ("Usage", "Purchase") and not correction:
        for name in priced:
            if r[name] == "":
                say(f"R3 {name} of {category} is null")
    if category == "Tax":
        for name in priced:
            if r[name] != "":
                say(f"R4 {name} of a tax is {r[name]!r}")
    unused = r.get("CommitmentDiscountStatus") == "Unused"
    if r["ConsumedQuantity"] and (category != "Usage" or unused):
        say(f"R5 {category} consumed {r['ConsumedQuantity']}")
    if not r["ConsumedQuantity"] and category == "Usage" and not correction and not unused:
        say("R5 a Usage consumed nothing that is said")
    for quantity, unit in (("ConsumedQuantity", "ConsumedUnit"), ("PricingQuantity", "PricingUnit")):
        if (r[quantity] == "") != (r[unit] == ""):
            say(f"R6 {quantity} {r[quantity]!r} with {unit} {r[unit]!r}")
    if category == "Purchase" and r["ChargeFrequency"] == "Usage-Based":
        say("R7 a Purchase is not Usage-Based")
    held = [D(r[name]) for name in ("x_UsedGpuHours", "x_IdleGpuHours", "x_UnmeasuredGpuHours") if r.get(name)]
    if held and r["ConsumedQuantity"] and sum(held) == 0 and D(r["ConsumedQuantity"]) != 0:
        say(f"R14 {r['ConsumedQuantity']} consumed, and nobody held anything")


def check_commitment(r, say):
    """R15 to R17: what a commitment paid for, and what is not of one."""
    category, correction, commitment = r["ChargeCategory"], r["ChargeClass"] == "Correction", r["CommitmentDiscountId"]
    status = r["CommitmentDiscountStatus"]

    if category == "Credit" and D(r["EffectiveCost"]) != D(r["BilledCost"]):
        say(f"R15 a Credit of {r['BilledCost']} has the EffectiveCost {r['EffectiveCost']}")
    if (r["PricingCategory"] == "Committed") != (category == "Usage" and commitment != "") and not correction:
        say(f"R16 {category} of the commitment {commitment!r} has the PricingCategory {r['PricingCategory']!r}")
    for name in COMMITMENT:
        if (r.get(name, "") == "") != (commitment == ""):
            say(f"R17 {name} is {r.get(name)!r} with CommitmentDiscountId {commitment!r}")
    for found, id in ((status, commitment), (r["CapacityReservationStatus"], r["CapacityReservationId"])):
        if (found != "") != (id != "" and category == "Usage"):
            say(f"R17 {category} of {id!r} has the status {found!r}")
    if (r["CommitmentDiscountQuantity"] != "") != (commitment != "" and category in ("Usage", "Purchase")):
        say(f"R17 CommitmentDiscountQuantity of {category} is {r['CommitmentDiscountQuantity']!r}")
    if (r["CommitmentDiscountUnit"] == "") != (r["CommitmentDiscountQuantity"] == ""):
        say("R6 CommitmentDiscountQuantity and its unit come together")
    if commitment and (category == "Purchase" or status == "Unused") and r["ResourceId"] != commitment:
        say(f"R17 the resource of {category} {status} is {r['ResourceId']!r}, not the commitment")
    if status and not correction and D(r["PricingQuantity"]) != 0 and D(r["EffectiveCost"]) != 0 and D(r["ListCost"]) == 0:
        say(f"R18 EffectiveCost is {r['EffectiveCost']}, and ListCost is 0")


def check_money(r, say):
    correction = r["ChargeClass"] == "Correction"

    for price, cost in (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost")):
        if r[price] and D(r[price]) < 0:
            say(f"R9 {price} is {r[price]}")
        if r[price] and r["PricingQuantity"] and not correction:
            quantity = D(r["PricingQuantity"])
            # What a tenant pays by another unit or basis is exact; for a unit of the list price it has 18 decimals, and of none it has no price.
            lost = quantity * D("5e-19") if price == "ContractedUnitPrice" else 0
            if abs(D(r[price]) * quantity - D(r[cost])) > lost and not (quantity == 0 and price == "ContractedUnitPrice"):
                say(f"R8 {r[price]} x {r['PricingQuantity']} is not the {cost} {r[cost]}")
    if r["ChargeCategory"] == "Purchase" and not correction and D(r["EffectiveCost"]) != 0:
        say(f"R12 a Purchase of what is used later has the EffectiveCost {r['EffectiveCost']}")
    if r.get("PricingCurrency") == r["BillingCurrency"]:
        for ours in ("ListUnitPrice", "ContractedUnitPrice", "EffectiveCost"):
            if r.get("PricingCurrency" + ours) != r[ours]:
                say(f"R8 PricingCurrency{ours} is not {ours}, and the currency is the same")


def check_places(r, say):
    if not (r["ChargePeriodStart"] < r["ChargePeriodEnd"] and r["BillingPeriodStart"] < r["BillingPeriodEnd"]):
        say("R10 a period ends before it begins")
    inside = r["BillingPeriodStart"] <= r["ChargePeriodStart"] and r["ChargePeriodEnd"] <= r["BillingPeriodEnd"]
    if r["ChargeClass"] != "Correction" and not inside:
        say(f"R10 the charge of {r['ChargePeriodStart']} is not of the billing period")
    if r["ChargeClass"] == "Correction" and not r["ChargePeriodEnd"] <= r["BillingPeriodStart"]:
        say("R10 a correction is of a period before")
    length = [datetime.datetime.strptime(r[name], "%Y-%m-%dT%H:%M:%SZ") for name in ("ChargePeriodStart", "ChargePeriodEnd")]
    if length[1] - length[0] > datetime.timedelta(hours=25):
        say("R10 a charge period is longer than a day")
    for name, other in (("SubAccountName", "SubAccountId"), ("SubAccountType", "SubAccountId"), ("RegionName", "RegionId"), ("ResourceType", "ResourceId"),
                        ("AllocatedMethodDetails", "AllocatedMethodId"), ("x_OriginGpuHours", "AllocatedMethodId")):  # fmt: skip
        if (r.get(name, "") == "") != (r.get(other, "") == ""):
            say(f"R11 {name} is {r.get(name)!r} with {other} {r.get(other)!r}")
    for name, other in (("ResourceName", "ResourceId"), ("SkuMeter", "SkuId"), ("SkuPriceDetails", "SkuPriceId"), ("CapacityReservationStatus", "CapacityReservationId")):
        if r.get(name) and not r.get(other):
            say(f"R11 {name} without {other}")
    for key, value in (flat_object(r.get("SkuPriceDetails") or "{}") or {}).items():
        kind = DETAIL_KEYS.get(key)
        if kind is None and not key.startswith("x_"):
            say(f"R13 SkuPriceDetails has {key}")
        elif kind is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            say(f"R13 {key} is {value!r}")
        elif key == "GpuCount" and value == 1 and "x_MigProfile" in r["SkuPriceDetails"]:
            say("R13 a MIG instance is not a GPU")


def one_each(rows, key, values, rule, say):
    """Rows with the same key have the same values."""
    seen = {}
    for r in rows:
        if r.get(key):
            found = tuple(r.get(v, "") for v in values)
            if seen.setdefault(r[key], found) != found:
                say(f"{rule} {key} {r[key]} has {seen[r[key]]} and {found}")


def check_divided(rows, whole, say):
    """D6: the parts of what was divided add up to it. Each part is quantised for itself, hence to a billionth each."""
    parts = collections.defaultdict(list)
    for r in rows:
        if r.get("AllocatedMethodId"):
            parts[r["AllocatedMethodId"], r["SkuPriceId"], r["RegionId"], r["ChargePeriodStart"], r.get("x_PriceVersion"), r["BillingCurrency"]].append(r)
    for key, found in parts.items():
        origins = {D(r["x_OriginGpuHours"]) for r in found}
        ratio = sum(ratio_of(r["AllocatedMethodDetails"]) for r in found)
        hours = sum(D(r["x_GpuHours"]) for r in found)
        if len(origins) != 1:
            say(f"D6 {key}: parts of {sorted(origins)}")
        elif ratio > 1 or (whole and ratio != 1):
            say(f"D6 {key}: the ratios add up to {ratio}")
        elif hours > (origin := origins.pop()) + D(len(found)).scaleb(-9) or (whole and abs(hours - origin) > D(len(found)).scaleb(-9)):
            say(f"D6 {key}: {hours} hours are not the {origin} that were divided")


def check_amortised(rows, say):
    """D5 of each commitment and month: what its use and what was left of it cost is what was paid for it, and its hours are those that were bought."""
    bought, used = collections.Counter(), collections.Counter()
    for r in rows:
        for id in ("CommitmentDiscountId", "CapacityReservationId"):
            key = id, r[id], r["ChargeClass"], r["BillingCurrency"]
            if r[id] and r["ChargeCategory"] == "Purchase":
                bought[key] += D(r["BilledCost"])
                used[key] += D(r["EffectiveCost"])  # of a correction, where nothing else of the reservation is corrected; else R12 says that it is 0
                bought[*key, "hours"] += D(r["CommitmentDiscountQuantity"] or 0)
            elif r[id] and r["ChargeCategory"] == "Usage":
                used[key] += D(r["EffectiveCost"])
                used[*key, "hours"] += D(r["CommitmentDiscountQuantity"] or 0)
    for key in sorted(set(bought) | set(used)):
        if bought[key] != used[key]:
            say(f"D5 {' '.join(key)}: {bought[key]} were bought, EffectiveCost of its use adds up to {used[key]}")


def check_file(rows, payable, say):
    billed, effective, purchases = collections.Counter(), collections.Counter(), collections.Counter()

    for r in rows:
        billed[r["InvoiceId"]] += D(r["BilledCost"])
        key = r["InvoiceId"], r["BillingCurrency"]
        effective[key] += D(r["EffectiveCost"])
        purchases[key] += D(r["BilledCost"])
    for invoice, amount in (payable or {}).items():
        if billed[invoice] != D(amount):
            say(f"D1 {invoice} is {billed[invoice]}, payable are {amount}")
    if payable is not None and set(billed) != set(payable):
        say(f"D1 invoices {sorted(set(billed) ^ set(payable))} are in one of the two only")
    one_each(rows, "InvoiceId", ("BillingAccountId", "BillingCurrency"), "D1", say)
    one_each(rows, "ServiceName", ("ServiceCategory", "ServiceSubcategory"), "D2", say)
    one_each(rows, "SkuPriceId", ("SkuId",), "D3", say)
    one_each([r for r in rows if r["ChargeClass"] == ""], "SkuPriceId", ("SkuPriceDetails",), "D3", say)
    one_each([{**r, "at": f"{r['SkuPriceId']} in {r.get('x_PriceVersion')}"} for r in rows if r["SkuPriceId"]], "at", ("ListUnitPrice", "PricingUnit", "BillingCurrency"), "D3", say)
    one_each(rows, "ResourceId", ("SubAccountId", "ResourceName", "ResourceType"), "D9", say)
    one_each(rows, "CommitmentDiscountId", ("SubAccountId", "CapacityReservationId", "CommitmentDiscountCategory", "CommitmentDiscountType"), "D9", say)
    one_each([r for r in rows if r["CommitmentDiscountUnit"]], "CommitmentDiscountId", ("CommitmentDiscountUnit",), "D9", say)
    bounds = sorted({(r["BillingPeriodStart"], r["BillingPeriodEnd"]) for r in rows})
    for (_, end), (start, _) in zip(bounds, bounds[1:]):
        if end != start:
            say(f"D4 a billing period ends at {end}, the next begins at {start}")
    check_amortised(rows, say)
    for key in effective:
        if effective[key] != purchases[key]:
            say(f"D5 {key[0]}: EffectiveCost adds up to {effective[key]}, BilledCost to {purchases[key]} {key[1]}")


def check(text, payable=None, whole=True, version="1.2"):
    said = []
    table = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    check_header(table[0], version, said.append)
    if said:
        return said
    rows = []
    for n, values in enumerate(table[1:], 1):
        if len(values) != len(table[0]):
            return said + [f"F1 row {n} has {len(values)} fields"]
        r = dict(zip(table[0], values))
        before = len(said)

        def say(sentence, n=n):
            said.append(f"{sentence} (row {n})")

        check_format(r, say)
        if len(said) == before:
            check_values(r, version, say)
            check_commitment(r, say)
            check_money(r, say)
            check_places(r, say)
        rows.append(r)
    if not any(s.startswith("F") for s in said):
        check_file(rows, payable, said.append)
        check_divided(rows, whole, said.append)
    return said


def check_again(before, after, periods, later=None):
    """D7 and D8: a closed period is the same bytes for ever, its corrections are in later ones, and names of what was billed stay."""
    said = []
    closed = {r["BillingPeriodStart"] for r in csv.DictReader(io.StringIO(periods, newline=""), strict=True) if r["BillingPeriodStatus"] == "Closed"}
    old, new = (list(csv.DictReader(io.StringIO(text, newline=""), strict=True)) for text in (before, after))
    if any(r["BillingPeriodStart"] in closed for r in old) and before != after:
        said.append("D7 the export of a closed period has changed")
    past = {(r["x_LineId"], r["ChargePeriodStart"], r["ChargeCategory"]): r for r in old}
    for r in new:
        same = past.get((r["x_LineId"], r["ChargePeriodStart"], r["ChargeCategory"]))
        for name in NAMES if same else ():
            if r.get(name) != same.get(name):
                said.append(f"D8 {name} of {r['x_LineId']} was {same.get(name)!r} and is {r.get(name)!r}")
        if r["ChargeClass"] == "Correction" and same is None and r["BillingPeriodStart"] in closed and before != after:
            said.append(f"D7 the correction {r['x_LineId']} is in a closed period")
    past_periods = [(r["BillingPeriodStart"], r["BillingPeriodEnd"]) for r in csv.DictReader(io.StringIO(periods, newline=""), strict=True) if r["BillingPeriodStatus"] == "Closed"]
    for r in csv.DictReader(io.StringIO(later or "", newline=""), strict=True):
        inside = any(start <= r["ChargePeriodStart"] < end and r["ChargePeriodEnd"] <= end for start, end in past_periods)
        if r["ChargeClass"] == "Correction" and (r["BillingPeriodStart"] in closed or not inside):
            said.append(f"D7 the correction {r['x_LineId']} is not of a closed period in an open one")
    return said


def check_periods(text):
    said = []
    rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    for r in rows:
        for name in ("BillingPeriodStart", "BillingPeriodEnd", "BillingPeriodCreated", "BillingPeriodLastUpdated"):
            if not is_date(r[name]):
                said.append(f"F2 {name} is {r[name]!r}")
        if r["BillingPeriodStatus"] not in ("Open", "Closed"):
            said.append(f"R2 BillingPeriodStatus is {r['BillingPeriodStatus']!r}")
        if (r["BillingPeriodStatus"] == "Closed") != is_date(r["x_BillingPeriodClosed"]):
            said.append("R6 a closed period says when it was closed, and no other does")
        if r["BillingPeriodLastUpdated"] < r["BillingPeriodCreated"]:
            said.append("R10 a period was updated before it was created")
    for a, b in zip(rows, rows[1:]):
        if a["BillingPeriodEnd"] != b["BillingPeriodStart"]:
            said.append(f"D4 {a['BillingPeriodEnd']} is not {b['BillingPeriodStart']}")
        if a["BillingPeriodStatus"] == "Open" and b["BillingPeriodStatus"] == "Closed":
            said.append("D7 a period is closed before the one before it")
    return said


def check_invoices(text, focus):
    said = []
    rows, uses = (list(csv.DictReader(io.StringIO(t, newline=""), strict=True)) for t in (text, focus))
    billed, lines = collections.Counter(), collections.Counter()
    for name in INVOICES:
        if not rows or name not in rows[0]:
            return [f"P the column {name} is missing"]
    for r in rows:
        lines[r["InvoiceId"], r["InvoiceDetailId"]] += D(r["BilledCost"])
        for name in INVOICES:
            if r[name] == "" and name not in ("PaymentDueDate", "InvoiceIssueDate", "InvoiceDetailDescription"):
                said.append(f"R1 {name} is null")
        for name in ("BillingPeriodStart", "BillingPeriodEnd", "InvoiceDetailCreated", "InvoiceDetailLastUpdated"):
            if not is_date(r[name]):
                said.append(f"F2 {name} is {r[name]!r}")
        if (r["InvoiceIssueStatus"] == "Issued") != is_date(r["InvoiceIssueDate"]) or r["InvoiceIssueStatus"] not in ("Open", "Issued"):
            said.append(f"R2 {r['InvoiceIssueStatus']} at {r['InvoiceIssueDate']!r}")
        if flat_object(r["InvoiceDetailGrain"]) is None:
            said.append(f"F5 InvoiceDetailGrain is {r['InvoiceDetailGrain']}")
    for r in uses:
        billed[r["InvoiceId"], r["InvoiceDetailId"]] += D(r["BilledCost"])
    if len(lines) != len(rows):
        said.append("D1 an InvoiceDetailId is there twice")
    if billed != lines:
        said.append(f"D1 the lines of the invoices are not those of the rows: {sorted(set(billed.items()) ^ set(lines.items()))[:3]}")
    return said
