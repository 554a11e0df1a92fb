"""What tenants must pay for hours of usage, computed again in fractions from the rules of who pays, without a line of the product's code.

    bill = Bill(rules)
    bill.add(groups)           # of GET /v1/usage, exact, grouped by KEYS; every hour is settled for itself
    bill.exact["acme"]         # a fraction of money, before anything is rounded

Rules: owner(node) is the tenant whose node it is or None; rights(hour, owner, model) gives {(tenant, workspace): {(profile, units of one): amount}} in unit-nanoseconds;
caps the same of what may be lent, without profiles; price(tenant, class, profile) gives (price, per instance); discount(tenant) is a part of 1; ratio is what a lender gets."""

import collections
from fractions import Fraction

from tests.support.billing import chargeref, csv_check

KEYS = "hour,node,tenant,workspace,gpu_model,profile,sharing"
HOUR = 3600 * 1_000_000_000
MJ_PER_KWH = 3_600_000_000


class Bill:
    def __init__(self, rules):
        self.rules = rules
        self.exact = collections.defaultdict(Fraction)  # without the credits of lent time
        self.loans = collections.defaultdict(Fraction)  # those, by lender, who borrowed and which kind of device: each is rounded toward zero
        self.hours = collections.Counter()  # (tenant, workspace, class) -> unit-nanoseconds; also of what reservations became
        self.energy = collections.Counter()

    def add(self, groups):
        pools = collections.defaultdict(list)
        for g in groups:
            pools[g["hour"], self.rules.owner(g["node"]), g["gpu_model"]].append(g)
        for (hour, owner, model), rows in sorted(pools.items(), key=str):
            self.add_hour(hour, owner, model, rows)
        for tenant, mj in self.energy.items():
            self.exact[tenant] += Fraction(mj, MJ_PER_KWH) * self.rules.energy_price
        self.energy.clear()

    def add_hour(self, hour, owner, model, rows):
        uses, held, capacity = collections.Counter(), collections.Counter(), 0
        for g in rows:
            amount = sum(int(g[f"{state}_unit_ns"]) for state in ("used", "idle", "unmeasured"))
            capacity += amount + int(g["unallocated_unit_ns"]) + int(g["stranded_unit_ns"])
            if g["tenant"] or owner:  # else it is the platform's
                self.energy[g["tenant"] or owner] += int(g["energy_mj"])
            if amount:
                who = g["tenant"], g["workspace"]
                uses[who, csv_check.units_of(model, g["profile"]), g["profile"], g["sharing"]] += amount
                held[who] += amount
        rights = self.rules.rights(hour, owner, model)
        settled, idle = chargeref.settle(capacity, held, {w: sum(kinds.values()) for w, kinds in rights.items()}, self.rules.caps)
        self.add_uses(model, uses, settled)
        for who, kinds in rights.items():
            self.add_right(who, kinds, settled[who])
        if owner:
            self.charge(owner, "", "dedicated", idle, 5040, "")

    def charge(self, tenant, workspace, klass, amount, units, profile, sign=1):
        price, per_instance = self.rules.price(tenant, klass, profile)
        self.exact[tenant] += sign * Fraction(amount, (units if per_instance else 5040) * HOUR) * price * (1 - self.rules.discount(tenant))
        self.hours[tenant, workspace, klass] += sign * amount

    def add_uses(self, model, uses, settled):
        """Whole GPUs first, then larger instances. What was borrowed was lent by whoever lent in that hour: here always one."""
        lenders = [(w, s["lent"]) for w, s in settled.items() if s["lent"]]
        left = {w: dict(s) for w, s in settled.items()}
        for (who, units, profile, sharing), amount in sorted(uses.items(), key=lambda u: (u[0][0], -u[0][1], u[0][2:])):
            for klass in ("covered", "on-demand", "borrowed"):
                part = min(amount, left[who][klass])
                left[who][klass] -= part
                amount -= part
                if klass == "covered":
                    self.hours[*who, klass] += part
                elif part:
                    self.charge(*who, klass, part, units, profile)
                if klass == "borrowed" and part:
                    [(lender, _)] = lenders
                    self.credit_loan(lender, who, part, units, profile, sharing)
            assert amount == 0

    def credits(self, tenant):
        """In hundredths."""
        return sum(int(v * 100) for (lender, *_), v in self.loans.items() if lender[0] == tenant)

    def credit_loan(self, lender, who, amount, units, profile, sharing):
        borrower = who[0]
        price, per_instance = self.rules.price(borrower, "borrowed", profile)
        most = self.rules.price(lender[0], "reserved", "")[0] * (1 - self.rules.discount(lender[0])) * (Fraction(units, 5040) if per_instance else 1)
        paid = price * (1 - self.rules.discount(borrower)) * self.rules.ratio
        self.loans[lender, who, units, profile, sharing] += Fraction(amount, (units if per_instance else 5040) * HOUR) * min(paid, most)
        self.hours[*lender, "lent"] += amount

    def add_right(self, who, kinds, s):
        """All of it at the reserved price; what was undelivered is taken off again, of the kinds in proportion."""
        order = sorted(kinds, key=lambda k: (-k[1], k[0]))
        for (profile, units), short in zip(order, chargeref.shares(s["undelivered"], [kinds[k] for k in order])):
            self.charge(*who, "reserved", kinds[profile, units], units, profile)
            if short:
                self.charge(*who, "reserved", short, units, profile, -1)
                self.hours[*who, "undelivered"] += short
        self.hours[*who, "unused"] += s["unused"]
