/* tests/support/quota/quotaref.c - one request judged by the text of QUOTA, and every subset of victims tried. */
#include "tests/support/quota/quotaref.h"

#define BIT(i) (1u << (i))

static int64_t
at_least_0(int64_t v)
{
	return v > 0 ? v : 0;
}

static int64_t
least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

const char *
qref_decision_name(enum qref_decision d)
{
	static const char *const names[] = {"admit", "borrow", "reclaim", "queue", "reject"};

	return names[d];
}

/* ---- quantities: every one of them is per pool ---- */

static const struct qref_quota *
quota_in(const struct qref_state *s, int workspace, int pool)
{
	return pool == QREF_SHARED ? &s->workspaces[workspace].shared : &s->workspaces[workspace].own;
}

static bool
uses_pool(const struct qref_state *s, int workspace, int pool)
{
	return pool == QREF_SHARED || s->workspaces[workspace].tenant == pool;
}

static int64_t
devices_of(const struct qref_state *s, const struct qref_lease *l, int pool)
{
	int64_t sum = 0;

	for (int n = 0; n < s->node_count; n++)
		if (s->nodes[n].tenant == pool)
			sum += l->on[n];
	return sum;
}

static unsigned
draining(const struct qref_state *s)
{
	unsigned set = 0;

	for (int i = 0; i < s->lease_count; i++)
		if (s->leases[i].draining)
			set |= BIT(i);
	return set;
}

/* leased(w): draining ones included, the leases in `gone` not. */
static int64_t
leased(const struct qref_state *s, int workspace, int pool, unsigned gone)
{
	int64_t sum = 0;

	for (int i = 0; i < s->lease_count; i++)
		if (s->leases[i].workspace == workspace && !(gone & BIT(i)))
			sum += devices_of(s, &s->leases[i], pool);
	return sum;
}

static int64_t
debt(const struct qref_state *s, int workspace, int pool, unsigned gone)
{
	return at_least_0(leased(s, workspace, pool, gone) - quota_in(s, workspace, pool)->reserved);
}

static int64_t
firm(const struct qref_state *s, int workspace, int pool, unsigned gone)
{
	int64_t sum = 0;

	for (int i = 0; i < s->lease_count; i++)
		if (s->leases[i].workspace == workspace && !s->leases[i].preemptible && !(gone & BIT(i)))
			sum += devices_of(s, &s->leases[i], pool);
	return sum;
}

/* What nobody but its owner may have: the idle part of each reservation beyond its lend cap. */
static int64_t
protected_from(const struct qref_state *s, int workspace, int pool, unsigned gone)
{
	int64_t sum = 0;

	for (int j = 0; j < s->workspace_count; j++)
		if (j != workspace && uses_pool(s, j, pool)) {
			const struct qref_quota *q = quota_in(s, j, pool);

			if (q->lend != QREF_NONE)
				sum += at_least_0(q->reserved - leased(s, j, pool, gone) - q->lend);
		}
	return sum;
}

static int64_t
free_on(const struct qref_state *s, int node, unsigned gone, bool declared)
{
	int64_t left = s->nodes[node].devices;

	if (s->nodes[node].down && !declared)
		return 0;
	for (int i = 0; i < s->lease_count; i++)
		if (!(gone & BIT(i)))
			left -= s->leases[i].on[node];
	return at_least_0(left);
}

static bool
shape_fits(const struct qref_state *s, const struct qref_request *r, int pool, unsigned gone, bool declared,
           int64_t *ret_free)
{
	int64_t fit = 0, sum = 0;

	for (int n = 0; n < s->node_count; n++) {
		int64_t left;

		if (s->nodes[n].tenant != pool)
			continue;
		left = free_on(s, n, gone, declared);
		sum += left;
		fit += r->per_node > 0 ? left / r->per_node * r->per_node : left;
	}
	*ret_free = sum;
	return fit >= r->count;
}

bool
qref_fits(const struct qref_state *s, const struct qref_request *r, int pool, unsigned gone)
{
	int64_t sum;

	return shape_fits(s, r, pool, gone, false, &sum);
}

/* ---- rules 5 to 7, as if the leases in `gone` had ended ---- */

static bool
available(const struct qref_state *s, const struct qref_request *r, int pool, unsigned gone)
{
	int64_t sum;

	return shape_fits(s, r, pool, gone, false, &sum) &&
	       sum - protected_from(s, r->workspace, pool, gone) >= r->count;
}

static bool
owed(const struct qref_state *s, const struct qref_request *r, int pool, unsigned gone)
{
	int64_t reserved = quota_in(s, r->workspace, pool)->reserved;

	return leased(s, r->workspace, pool, gone) + r->count <= reserved &&
	       (r->preemptible || firm(s, r->workspace, pool, gone) + r->count <= reserved);
}

static int64_t
new_debt(const struct qref_state *s, const struct qref_request *r, int pool, unsigned gone)
{
	int64_t reserved = quota_in(s, r->workspace, pool)->reserved, has = leased(s, r->workspace, pool, gone);

	return at_least_0(has + r->count - reserved) - at_least_0(has - reserved);
}

/* The new part of the debt is found in free unreserved devices first, then in idle reservations of others, at most L_j each
 * counting what they lend already. What is idle and yet not free is lent. */
static bool
lendable(const struct qref_state *s, const struct qref_request *r, int pool, unsigned gone)
{
	int64_t own_idle = at_least_0(quota_in(s, r->workspace, pool)->reserved - leased(s, r->workspace, pool, gone));
	int64_t free = 0, idle = 0, may_lend = 0;

	for (int n = 0; n < s->node_count; n++)
		if (s->nodes[n].tenant == pool)
			free += free_on(s, n, gone, false);
	for (int j = 0; j < s->workspace_count; j++)
		if (uses_pool(s, j, pool) && j != r->workspace) {
			const struct qref_quota *q = quota_in(s, j, pool);
			int64_t idle_j = at_least_0(q->reserved - leased(s, j, pool, gone));

			idle += idle_j;
			may_lend += least(idle_j, q->lend);
		}
	return new_debt(s, r, pool, gone) <=
	       at_least_0(free - own_idle - idle) + may_lend - at_least_0(own_idle + idle - free);
}

static bool
may_borrow(const struct qref_state *s, const struct qref_request *r, int pool, unsigned gone)
{
	int64_t after = debt(s, r->workspace, pool, gone) + new_debt(s, r, pool, gone);

	return !owed(s, r, pool, gone) && r->preemptible && after <= quota_in(s, r->workspace, pool)->borrow &&
	       lendable(s, r, pool, gone);
}

/* ---- rule 2, as if those of the workspace's own leases that are in `gone` had ended: what others give up does not relax it ---- */

static bool
within_limit(const struct qref_state *s, const struct qref_request *r, int pool, unsigned gone)
{
	const struct qref_quota *q = quota_in(s, r->workspace, pool);
	int64_t of_tenant = 0;

	for (int j = 0; j < s->workspace_count; j++)
		if (s->workspaces[j].tenant == s->workspaces[r->workspace].tenant) {
			unsigned ended = j == r->workspace ? gone : 0;

			of_tenant += leased(s, j, s->workspaces[j].tenant, ended) + leased(s, j, QREF_SHARED, ended);
		}
	return (q->limit == QREF_NONE || leased(s, r->workspace, pool, gone) + r->count <= q->limit) &&
	       (s->maximum == QREF_NONE || of_tenant + r->count <= s->maximum);
}

/* ---- victims ---- */

/* On nodes that the request may use: a lost one is not among them. */
static int64_t
usable_devices(const struct qref_state *s, const struct qref_lease *l, int pool)
{
	int64_t sum = 0;

	for (int n = 0; n < s->node_count; n++)
		if (s->nodes[n].tenant == pool && !s->nodes[n].down)
			sum += l->on[n];
	return sum;
}

/* Legal with the leases of `before` gone already, beside those draining. */
static bool
legal_after(const struct qref_state *s, const struct qref_request *r, int pool, int i, unsigned before)
{
	const struct qref_lease *l = &s->leases[i];
	const struct qref_workspace *w = &s->workspaces[r->workspace];
	unsigned gone = before | draining(s);

	/* For rule 2 the lease given up may be in either pool, on whatever node. */
	if (usable_devices(s, l, pool) == 0 && (l->workspace != r->workspace || within_limit(s, r, pool, 0)))
		return false;
	if (l->workspace == r->workspace && !(w->preempt_own && l->priority < r->priority))
		return false;
	if (l->workspace != r->workspace && w->reclaim == QREF_NEVER)
		return false;
	if (l->draining) /* it goes anyway, and waiting for it harms nobody */
		return true;
	if (l->workspace != r->workspace && w->reclaim == QREF_LOWER && l->priority >= r->priority)
		return false;
	return l->preemptible && (l->workspace == r->workspace || debt(s, l->workspace, pool, gone) > 0);
}

static int
pool_of(const struct qref_state *s, const struct qref_lease *l)
{
	return devices_of(s, l, QREF_SHARED) > 0 ? QREF_SHARED : s->workspaces[l->workspace].tenant;
}

/* What still has to borrow gives up only own work that borrows: in the lease's pool the workspace has debt just before. What drains
 * already is not given up. */
static bool
own_victims_borrow(const struct qref_state *s, const struct qref_request *r, unsigned set)
{
	for (int i = 0; i < s->lease_count; i++) {
		unsigned smaller = 0;

		if (!(set & BIT(i)) || s->leases[i].workspace != r->workspace || s->leases[i].draining)
			continue;
		for (int k = 0; k < s->lease_count; k++) {
			int64_t x = devices_of(s, &s->leases[k], pool_of(s, &s->leases[i]));
			int64_t y = devices_of(s, &s->leases[i], pool_of(s, &s->leases[i]));

			if ((set & BIT(k)) && s->leases[k].workspace == r->workspace && (x < y || (x == y && k < i)))
				smaller |= BIT(k);
		}
		if (debt(s, r->workspace, pool_of(s, &s->leases[i]), smaller | draining(s)) == 0)
			return false;
	}
	return true;
}

/* Some order exists in which each of them is legal just before its removal. Taking a legal one never makes another set's
 * chances better, so that the smallest first is the order to try. */
static bool
legal_set(const struct qref_state *s, const struct qref_request *r, int pool, unsigned set)
{
	unsigned left = set, taken = 0;

	while (left != 0) {
		int next = -1;

		for (int i = 0; i < s->lease_count; i++)
			if ((left & BIT(i)) &&
			    (next < 0 || devices_of(s, &s->leases[i], pool) < devices_of(s, &s->leases[next], pool)))
				next = i;
		if (!legal_after(s, r, pool, next, taken))
			return false;
		left &= ~BIT(next);
		taken |= BIT(next);
	}
	return true;
}

static bool
has_foreign(const struct qref_state *s, const struct qref_request *r, unsigned set)
{
	for (int i = 0; i < s->lease_count; i++)
		if ((set & BIT(i)) && s->leases[i].workspace != r->workspace)
			return true;
	return false;
}

/* With these gone the request is admitted: owed, or within its borrowing when only its own were given up. */
static bool
served_by(const struct qref_state *s, const struct qref_request *r, int pool, unsigned set)
{
	return within_limit(s, r, pool, set) && available(s, r, pool, set) &&
	       (owed(s, r, pool, set) ||
	        (!has_foreign(s, r, set) && may_borrow(s, r, pool, set) && own_victims_borrow(s, r, set)));
}

bool
qref_victims_hold(const struct qref_state *s, const struct qref_request *r, int pool, unsigned victims, struct buf *why)
{
	if (!legal_set(s, r, pool, victims)) {
		buf_str(why, "a victim is not legal");
		return false;
	}
	if (!served_by(s, r, pool, victims)) {
		buf_str(why, "the request does not fit when its victims are gone");
		return false;
	}
	for (int i = 0; i < s->lease_count; i++)
		if ((victims & BIT(i)) && served_by(s, r, pool, victims & ~BIT(i))) {
			buf_printf(why, "victim l%d is not needed", i);
			return false;
		}
	return true;
}

/* ---- the order of victims ---- */

/* Whether a comes before b when those in `taken` are gone: what was debt before a removal may be none after it. */
static bool
comes_before(const struct qref_state *s, const struct qref_request *r, int pool, int a, int b, unsigned taken)
{
	const struct qref_lease *x = &s->leases[a], *y = &s->leases[b];
	int64_t dx, dy;

	if (x->draining != y->draining)
		return x->draining;
	if ((x->workspace == r->workspace) != (y->workspace == r->workspace))
		return y->workspace == r->workspace;
	dx = debt(s, x->workspace, pool, draining(s) | taken) * s->workspaces[y->workspace].weight;
	dy = debt(s, y->workspace, pool, draining(s) | taken) * s->workspaces[x->workspace].weight;
	if (dx != dy)
		return dx > dy;
	if (x->priority != y->priority)
		return x->priority < y->priority;
	return a > b;
}

static unsigned
take_in_order(const struct qref_state *s, const struct qref_request *r, int pool, unsigned without, int *order,
              int *ret_count)
{
	unsigned set = 0;
	int count = 0;

	while (!served_by(s, r, pool, set)) {
		int next = -1;

		for (int i = 0; i < s->lease_count; i++)
			if (!((set | without) & BIT(i)) && legal_after(s, r, pool, i, set) &&
			    (next < 0 || comes_before(s, r, pool, i, next, set)))
				next = i;
		if (next < 0)
			return 0;
		order[count++] = next;
		set |= BIT(next);
	}
	*ret_count = count;
	return set;
}

static unsigned
ordered_without(const struct qref_state *s, const struct qref_request *r, int pool, unsigned without)
{
	for (;;) {
		int order[QREF_LEASES], count = 0;
		unsigned set = take_in_order(s, r, pool, without, order, &count), before = 0, faulty = 0;

		if (set == 0)
			return 0;
		for (int i = count; i-- > 0;)
			if (served_by(s, r, pool, set & ~BIT(order[i])))
				set &= ~BIT(order[i]);
		for (int i = 0; i < count && faulty == 0; i++)
			if (set & BIT(order[i])) {
				if (!legal_after(s, r, pool, order[i], before))
					faulty = BIT(order[i]);
				before |= BIT(order[i]);
			}
		if (faulty == 0)
			return set;
		without |= faulty;
	}
}

unsigned
qref_ordered_victims(const struct qref_state *s, const struct qref_request *r, int pool)
{
	bool mixed = false;

	for (int i = 0; i < s->lease_count; i++)
		mixed |= s->leases[i].workspace != r->workspace && legal_after(s, r, pool, i, 0);
	return mixed && !owed(s, r, pool, 0) ? 0 : ordered_without(s, r, pool, 0);
}

/* ---- the decision ---- */

/* Whether declared capacity and the present policy could ever admit it: everybody's leases are gone. */
static bool
possible_in(const struct qref_state *s, const struct qref_request *r, int pool)
{
	const struct qref_quota *q = quota_in(s, r->workspace, pool);
	unsigned all = BIT(s->lease_count) - 1;
	int64_t sum;

	if (q->limit != QREF_NONE && r->count > q->limit)
		return false;
	if (s->maximum != QREF_NONE && r->count > s->maximum)
		return false;
	if (!shape_fits(s, r, pool, all, true, &sum) || sum - protected_from(s, r->workspace, pool, all) < r->count)
		return false;
	return r->count <= q->reserved || (r->preemptible && r->count - q->reserved <= q->borrow);
}

static bool
reclaim_in(const struct qref_state *s, const struct qref_request *r, int pool, struct qref_answer *a)
{
	for (unsigned set = 1; set < BIT(s->lease_count); set++)
		if (legal_set(s, r, pool, set) && served_by(s, r, pool, set)) {
			a->decision = QREF_RECLAIM;
			a->legal = set;
			a->pool = pool;
			return true;
		}
	return false;
}

struct qref_answer
qref_decide(const struct qref_state *s, const struct qref_request *r)
{
	const int pools[] = {s->workspaces[r->workspace].tenant, QREF_SHARED};
	struct qref_answer a = {.decision = QREF_REJECT};

	for (int i = 0; i < 2; i++) {
		if (!possible_in(s, r, pools[i]))
			continue;
		a.decision = QREF_QUEUE;
		if (within_limit(s, r, pools[i], 0) && available(s, r, pools[i], 0) &&
		    (owed(s, r, pools[i], 0) || may_borrow(s, r, pools[i], 0))) {
			a.pool = pools[i];
			a.decision = owed(s, r, pools[i], 0) ? QREF_ADMIT : QREF_BORROW;
			a.borrowed = new_debt(s, r, pools[i], 0);
			return a;
		}
	}
	for (int i = 0; i < 2; i++)
		if (possible_in(s, r, pools[i]) && reclaim_in(s, r, pools[i], &a))
			return a;
	return a;
}

/* ---- for people ---- */

static void
describe_quota(const char *name, const struct qref_quota *q, struct buf *out)
{
	buf_printf(out, " %s R%" PRId64, name, q->reserved);
	if (q->limit != QREF_NONE)
		buf_printf(out, " M%" PRId64, q->limit);
	if (q->borrow != QREF_NONE)
		buf_printf(out, " B%" PRId64, q->borrow);
	if (q->lend != QREF_NONE)
		buf_printf(out, " L%" PRId64, q->lend);
}

void
qref_describe(const struct qref_state *s, const struct qref_request *r, struct buf *out)
{
	static const char *const reclaims[] = {"any", "lower", "never"};

	for (int n = 0; n < s->node_count; n++)
		buf_printf(out, "\n#     node n%d: tenant %d, %d devices%s", n, s->nodes[n].tenant, s->nodes[n].devices,
		           s->nodes[n].down ? ", down" : "");
	for (int j = 0; j < s->workspace_count; j++) {
		const struct qref_workspace *w = &s->workspaces[j];

		buf_printf(out, "\n#     workspace w%d: tenant %d,", j, w->tenant);
		describe_quota("own", &w->own, out);
		describe_quota("shared", &w->shared, out);
		buf_printf(out, " weight %" PRId64 " reclaim %s preempt_own %s", w->weight, reclaims[w->reclaim],
		           w->preempt_own ? "lower" : "never");
	}
	for (int i = 0; i < s->lease_count; i++) {
		const struct qref_lease *l = &s->leases[i];

		buf_printf(out, "\n#     lease l%d: w%d p%" PRId64 "%s%s on", i, l->workspace, l->priority,
		           l->preemptible ? "" : " firm", l->draining ? " draining" : "");
		for (int n = 0; n < s->node_count; n++)
			buf_printf(out, " %d", l->on[n]);
	}
	if (s->maximum != QREF_NONE)
		buf_printf(out, "\n#     tenants' maximum %" PRId64, s->maximum);
	buf_printf(out, "\n#     request: w%d, %d devices, per_node %d, p%" PRId64 "%s", r->workspace, r->count,
	           r->per_node, r->priority, r->preemptible ? "" : " firm");
}
