/* tests/prop/prop_quota_advice.c - doing what the sentences advise admits the request.
 *
 * A case is a small world, some events, and requests that are tried beside them. Now and then every request that waits, and every one that
 * is tried and does not get what it asks for, is looked at as a person would: the sentence is read, what it advises is done to a copy of
 * the book, and the request must be admitted there.
 *   a lease to wait for      it ends
 *   a limit, a maximum,      it is raised by what is said: in the policy, or by an exception where one can be asked for
 *   a budget, a reservation
 *   GPUs to wait for         a node with as many of them comes
 *   a back-off               it has ended
 *   the head of the queue    it has its GPUs and is gone
 *   its turn                 it is decided next, before all others that wait
 *   another request          it is made instead: of another shape, smaller, or preemptible
 * Every amount is read back from the words and is the one in the verdict, in its unit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/quota/engine/quota_text.h"
#include "common/base/time.h"
#include "tests/support/harness/prop.h"
#include "tests/support/quota/quotaworld.h"

/* A case advises some ten requests, of which three wait: a thousand that wait are asked for, and reached several times over. With a
 * sanitizer there are fewer cases. */
#ifdef __SANITIZE_ADDRESS__
#define CASES "150"
#define ADVISED_MIN 100u
#else
#define CASES "1500"
#define ADVISED_MIN 1000u
#endif
#define EVENTS_MAX 120u
#define EVERY 24u
#define TRIED 4u
#define BUDGETS 4u
#define KINDS (QUOTA_CHANGE_TURN + 1)
#define GIB (INT64_C(1) << 30)

struct advice_case {
	struct quotaworld world;
	bool plain; /* without the limits that follow: then more of the rest happens */
	int64_t guard[2 * QUOTAWORLD_THINGS];
	int64_t other[2 * QUOTAWORLD_THINGS][QUOTA_OTHERS];
	struct quota_budget budgets[BUDGETS];
	size_t budget_count;
	int64_t cluster_maximum;
	struct {
		uint8_t workspace, shape, count, per_node, priority, preemptible, expected, cost, cpu, memory, storage;
	} tried[TRIED];
};

static size_t advised, advised_waiting, by_kind[KINDS], by_lease, by_turn, by_exception, by_preemptible;

/* ---- cases --------------------------------------------------------------------------------------------------------------------- */

/* Mostly none. */
static int64_t
some_limit(struct prop_source *s, int64_t most, int64_t each)
{
	return prop_index(s, 4) < 3 ? QUOTA_UNLIMITED : prop_i64(s, 0, most) * each;
}

static void
generate(struct prop_source *s, void *c_)
{
	struct advice_case *c = c_;

	c->plain = prop_index(s, 2) == 0;
	for (size_t i = 0; i < 2 * QUOTAWORLD_THINGS; i++) {
		c->guard[i] = some_limit(s, 6, UNITS_PER_GPU);
		c->other[i][QUOTA_CPU] = some_limit(s, 8, 500);
		c->other[i][QUOTA_MEMORY] = some_limit(s, 8, GIB);
		c->other[i][QUOTA_STORAGE] = some_limit(s, 8, 1000);
	}
	c->cluster_maximum = some_limit(s, 12, UNITS_PER_GPU);
	c->budget_count = prop_index(s, BUDGETS + 1);
	for (size_t i = 0; i < c->budget_count; i++)
		c->budgets[i] =
			(struct quota_budget){.tenant = (int32_t)prop_index(s, 6),
		                              .workspace = (int32_t)prop_index(s, 6) - 1,
		                              .kind = prop_bool(s) ? QUOTA_BUDGET_MONEY : QUOTA_BUDGET_UNIT_SECONDS,
		                              .hard = prop_index(s, 4) < 3,
		                              .amount = prop_i64(s, 0, 100),
		                              .consumed = prop_i64(s, 0, 30)};
	for (size_t i = 0; i < TRIED; i++) {
		c->tried[i].workspace = (uint8_t)prop_index(s, 60);
		c->tried[i].shape = (uint8_t)prop_index(s, 5);
		c->tried[i].count = (uint8_t)prop_index(s, 12);
		c->tried[i].per_node = (uint8_t)prop_index(s, 4);
		c->tried[i].priority = (uint8_t)prop_index(s, 4);
		c->tried[i].preemptible = (uint8_t)prop_index(s, 4);
		c->tried[i].expected = (uint8_t)prop_index(s, 200);
		c->tried[i].cost = (uint8_t)prop_index(s, 100);
		c->tried[i].cpu = (uint8_t)prop_index(s, 12);
		c->tried[i].memory = (uint8_t)prop_index(s, 12);
		c->tried[i].storage = (uint8_t)prop_index(s, 12);
	}
	quotaworld_generate(s, &c->world);
	if (c->world.event_count > EVENTS_MAX)
		c->world.event_count = EVENTS_MAX;
}

static void
describe(const void *c_, struct buf *out)
{
	const struct advice_case *c = c_;

	buf_printf(out, "maximum of the cluster %" PRId64, c->cluster_maximum);
	for (size_t i = 0; i < 2 * QUOTAWORLD_THINGS; i++)
		buf_printf(out, "\n#   %s %zu: guard %" PRId64 " others %" PRId64 " %" PRId64 " %" PRId64,
		           i < QUOTAWORLD_THINGS ? "tenant" : "workspace", i % QUOTAWORLD_THINGS, c->guard[i],
		           c->other[i][0], c->other[i][1], c->other[i][2]);
	for (size_t i = 0; i < c->budget_count; i++)
		buf_printf(out, "\n#   budget of %d/%d %s%s %" PRId64 ", used %" PRId64, c->budgets[i].tenant,
		           c->budgets[i].workspace, c->budgets[i].hard ? "hard " : "",
		           c->budgets[i].kind == QUOTA_BUDGET_MONEY ? "money" : "hours", c->budgets[i].amount,
		           c->budgets[i].consumed);
	for (size_t i = 0; i < TRIED; i++)
		buf_printf(out, "\n#   tried: workspace %u shape %u count %u per node %u priority %u preemptible %u",
		           c->tried[i].workspace, c->tried[i].shape, c->tried[i].count, c->tried[i].per_node,
		           c->tried[i].priority, c->tried[i].preemptible);
	buf_str(out, "\n#   ");
	quotaworld_describe(&c->world, out);
}

/* The world of a case with its guardrails, budgets and other limits. */
static bool
load(const struct advice_case *c, struct quota_state **ret, struct err *err)
{
	owned(quota) struct quota_state *plain = NULL;
	struct quota_tenant tenants[QUOTAWORLD_THINGS];
	struct quota_workspace workspaces[QUOTAWORLD_THINGS];
	struct quota_cap caps[QUOTAWORLD_THINGS + 1];
	struct quota_budget budgets[BUDGETS];
	struct quota_saved saved;
	struct quota_policy *p = &saved.world.policy;
	bool ok;

	if (c->plain)
		return quotaworld_load(&c->world, ret, err);
	if (!quotaworld_load(&c->world, &plain, err))
		return false;
	quota_save(plain, &saved);
	memcpy(tenants, p->tenants, p->tenant_count * sizeof(*tenants));
	memcpy(workspaces, p->workspaces, p->workspace_count * sizeof(*workspaces));
	if (p->cap_count > 0)
		memcpy(caps, p->caps, p->cap_count * sizeof(*caps));
	for (size_t i = 0; i < p->tenant_count; i++) {
		tenants[i].per_workload_units = c->guard[i];
		memcpy(tenants[i].other_limit, c->other[i], sizeof(tenants[i].other_limit));
	}
	for (size_t i = 0; i < p->workspace_count; i++) {
		workspaces[i].per_workload_units = c->guard[QUOTAWORLD_THINGS + i];
		memcpy(workspaces[i].other_limit, c->other[QUOTAWORLD_THINGS + i], sizeof(workspaces[i].other_limit));
	}
	for (size_t i = 0; i < c->budget_count; i++) {
		struct quota_budget *b = &budgets[i];
		int64_t each = c->budgets[i].kind == QUOTA_BUDGET_MONEY ? 50 : UNITS_PER_GPU * 100;

		*b = c->budgets[i];
		if (b->workspace != QUOTA_NONE) {
			b->workspace = b->workspace % (int32_t)p->workspace_count;
			b->tenant = workspaces[b->workspace].tenant;
		}
		b->tenant = b->tenant % (int32_t)p->tenant_count;
		b->amount *= each;
		b->consumed *= each;
	}
	caps[p->cap_count++] =
		(struct quota_cap){.tenant = QUOTA_NONE, .maximum = c->cluster_maximum, .default_limit = QUOTA_DEFAULT};
	p->tenants = tenants;
	p->workspaces = workspaces;
	p->caps = caps;
	p->budgets = budgets;
	p->budget_count = c->budget_count;
	ok = quota_load(&saved.world, ret, err);
	quota_saved_fini(&saved);
	return ok;
}

/* ---- the words ------------------------------------------------------------------------------------------------------------------ */

static void
name_workspace(const void *of, int32_t workspace, struct buf *out)
{
	(void)of;
	buf_printf(out, "t/%d", workspace);
}

static const char *
name_node(const void *of, int32_t node)
{
	return ((const struct quota_world *)of)->nodes[node].name;
}

static struct quota_shape
name_shape(const void *of, int32_t shape)
{
	return ((const struct quota_world *)of)->policy.shapes[shape];
}

/* The first number in the words, which are in `one` each: whole, with decimals or a fraction. */
static int64_t
number_in(const char *words, int64_t one)
{
	const char *at = strpbrk(words, "0123456789");
	int128 value = 0, scale = 1;
	bool fraction = false;

	for (; at && (*at == '.' || (*at >= '0' && *at <= '9')); at++) {
		if (*at == '.') {
			fraction = true;
			continue;
		}
		value = value * 10 + (*at - '0');
		scale *= fraction ? 10 : 1;
	}
	if (at && *at == '/')
		scale = strtoll(at + 1, NULL, 10);
	return (int64_t)((value * one * 2 + scale) / (2 * scale));
}

static int64_t
amount_in(const struct quota_change *c, const char *words, int64_t each)
{
	static const struct {
		const char *unit;
		int64_t one;
	} units[] = {{" GPU-hour", UNITS_PER_GPU * 3600},
	             {" GPU", UNITS_PER_GPU},
	             {" core", 1000},
	             {" in money", 100},
	             {" bytes", 1},
	             {" KiB", 1 << 10},
	             {" MiB", 1 << 20},
	             {" GiB", GIB},
	             {" TiB", INT64_C(1) << 40}};
	int64_t ns = 0;
	char text[64] = "";

	if (c->kind == QUOTA_CHANGE_CAPACITY || c->kind == QUOTA_CHANGE_SMALLER)
		return number_in(words, each);
	if (c->kind == QUOTA_CHANGE_WAIT) {
		if (sscanf(words, "wait %63[^,], until the back-off ends", text) != 1 ||
		    !duration_parse(text, &ns, NULL))
			return -1;
		return ns >= c->amount && ns < c->amount + NS_PER_S ? c->amount : -1;
	}
	words = strstr(words, " by ");
	for (size_t i = 0; words && i < ARRAY_LEN(units); i++)
		if (strstr(words, units[i].unit))
			return number_in(words, units[i].one);
	return c->amount == 0 ? 0 : -1;
}

static bool
words_are_true(const struct quota_world *w, const struct quota_verdict *v, struct buf *why)
{
	const struct quota_namer namer = {w, name_workspace, name_node, name_shape};
	in_place(buf) struct buf said = {0}, change = {0};

	buf_init(&said, 1 << 16);
	buf_init(&change, 1 << 12);
	quota_sentences(&namer, v, &said);
	for (size_t i = 0; i < v->change_count; i++) {
		const struct quota_change *c = &v->changes[i];
		int64_t each = v->shape == QUOTA_NONE ? 1 : w->policy.shapes[v->shape].units;

		buf_clear(&change);
		quota_change_text(&namer, v, c, &change);
		if (!strstr(buf_text(&said), buf_text(&change)) || amount_in(c, buf_text(&change), each) != c->amount) {
			buf_printf(why, "\"%s\" says \"%s\" of %s by %" PRId64, buf_text(&said), buf_text(&change),
			           quota_change_name(c), c->amount);
			return false;
		}
	}
	if (v->others_first != (strstr(buf_text(&said), "when its turn comes") != NULL) && v->change_count > 0)
		return buf_printf(why, "\"%s\" is wrong about the turn", buf_text(&said)), false;
	return true;
}

/* ---- what is advised is done ------------------------------------------------------------------------------------------------------ */

/* A book as lists that may be changed. */
struct changed {
	struct quota_saved saved;
	struct quota_world *world; /* of saved */
	struct quota_node *nodes;
	struct quota_exception *exceptions;
	struct quota_share *shares;
	struct quota_request *waiting;
	struct quota_gpu *gpus;
	struct quota_slots slots;
	struct quota_request request; /* as it is made now */
};

/* The lists are the test's own. */
#define MINE(list) ((void *)(uintptr_t)(list))

static void
changed_init(struct changed *b, const struct quota_state *s, const struct quota_request *r)
{
	*b = (struct changed){.request = *r};
	quota_save(s, &b->saved);
	b->world = &b->saved.world;
	b->nodes = mem_array(b->world->node_count + 1, sizeof(*b->nodes));
	memcpy(b->nodes, b->world->nodes, b->world->node_count * sizeof(*b->nodes));
	/* something that comes back, so that the whole queue is looked at */
	b->nodes[b->world->node_count++] = (struct quota_node){.name = "advice", .tenant = QUOTA_NONE};
	b->world->nodes = b->nodes;
	b->exceptions = mem_array(b->world->exception_count + QUOTA_MAX_CHANGES, sizeof(*b->exceptions));
	if (b->world->exception_count > 0)
		memcpy(b->exceptions, b->world->exceptions, b->world->exception_count * sizeof(*b->exceptions));
	b->world->exceptions = b->exceptions;
	b->shares = mem_array(b->world->policy.share_count + 2, sizeof(*b->shares));
	if (b->world->policy.share_count > 0)
		memcpy(b->shares, b->world->policy.shares, b->world->policy.share_count * sizeof(*b->shares));
	b->world->policy.shares = b->shares;
	b->waiting = MINE(b->world->waiting);
}

static void
changed_fini(struct changed *b)
{
	quota_saved_fini(&b->saved);
	mem_free(b->nodes);
	mem_free(b->exceptions);
	mem_free(b->shares);
	mem_free(b->gpus);
}

static void
leaves_the_queue(struct changed *b, size_t i)
{
	ASSERT(b->waiting[i].hold_count == 0);
	memmove(&b->waiting[i], &b->waiting[i + 1], (b->world->waiting_count - i - 1) * sizeof(*b->waiting));
	b->world->waiting_count--;
}

static int32_t
tenant_of(const struct changed *b, int32_t workspace)
{
	return b->world->policy.workspaces[workspace].tenant;
}

static struct quota_share *
share_of(struct changed *b, bool shared)
{
	struct quota_share *h;

	for (size_t i = 0; i < b->world->policy.share_count; i++)
		if (b->shares[i].workspace == b->request.workspace && b->shares[i].shared == shared)
			return &b->shares[i];
	h = &b->shares[b->world->policy.share_count++];
	*h = (struct quota_share){.workspace = b->request.workspace,
	                          .shared = shared,
	                          .reserved_shape = QUOTA_NONE,
	                          .limit = QUOTA_DEFAULT,
	                          .borrow = QUOTA_DEFAULT,
	                          .lend = QUOTA_DEFAULT};
	return h;
}

static void
ask_exception(struct changed *b, const struct quota_change *c)
{
	b->exceptions[b->world->exception_count++] =
		(struct quota_exception){.id = c->kind == QUOTA_CHANGE_LIMIT ? "advice-limit" : "advice-reserved",
	                                 .workspace = b->request.workspace,
	                                 .shared = c->shared,
	                                 .extra_limit = c->kind == QUOTA_CHANGE_LIMIT ? c->amount : 0,
	                                 .extra_reserved = c->kind == QUOTA_CHANGE_LIMIT ? 0 : c->amount,
	                                 .from_ns = b->world->now_ns,
	                                 .until_ns = b->world->now_ns + NS_PER_DAY};
	by_exception++;
}

static int64_t
extra_limit(const struct changed *b, bool shared)
{
	int64_t extra = 0;

	for (size_t i = 0; i < b->world->exception_count; i++) {
		const struct quota_exception *x = &b->exceptions[i];

		if (x->workspace == b->request.workspace && x->shared == shared && x->from_ns <= b->world->now_ns &&
		    x->until_ns > b->world->now_ns)
			extra += x->extra_limit + x->extra_reserved;
	}
	return extra;
}

static void
raise_term(struct changed *b, const struct quota_state *s, const struct quota_change *c)
{
	struct quota_account_figures a = quota_account_at(s, b->request.workspace, 0, 0, c->shared);
	struct quota_share *h = share_of(b, c->shared);

	if (c->kind == QUOTA_CHANGE_LIMIT)
		h->limit = a.limit - extra_limit(b, c->shared) + c->amount;
	else if (c->kind == QUOTA_CHANGE_BORROW)
		h->borrow = a.borrow + c->amount;
	else
		h->reserved += c->amount;
}

static void
raise_maximum(struct changed *b, const struct quota_change *c)
{
	int32_t tenant = c->kind == QUOTA_CHANGE_CLUSTER_MAXIMUM ? QUOTA_NONE : tenant_of(b, b->request.workspace);
	struct quota_cap *caps = MINE(b->world->policy.caps);

	for (size_t i = 0; i < b->world->policy.cap_count; i++)
		if (caps[i].tenant == tenant)
			caps[i].maximum += c->amount;
}

static void
raise_other(struct changed *b, const struct quota_change *c)
{
	struct quota_tenant *tenants = MINE(b->world->policy.tenants);
	struct quota_workspace *workspaces = MINE(b->world->policy.workspaces);

	if (c->scope >= QUOTA_SCOPE_TENANT_CPU)
		tenants[tenant_of(b, b->request.workspace)].other_limit[c->scope - QUOTA_SCOPE_TENANT_CPU] += c->amount;
	else
		workspaces[b->request.workspace].other_limit[c->scope - QUOTA_SCOPE_CPU] += c->amount;
}

/* The smaller one of the two is meant. */
static void
raise_guardrail(struct changed *b, const struct quota_change *c)
{
	struct quota_tenant *t =
		&((struct quota_tenant *)MINE(b->world->policy.tenants))[tenant_of(b, b->request.workspace)];
	struct quota_workspace *w =
		&((struct quota_workspace *)MINE(b->world->policy.workspaces))[b->request.workspace];
	int64_t least = t->per_workload_units < w->per_workload_units ? t->per_workload_units : w->per_workload_units;

	if (t->per_workload_units < least + c->amount)
		t->per_workload_units = least + c->amount;
	if (w->per_workload_units < least + c->amount)
		w->per_workload_units = least + c->amount;
}

static void
raise_budget(struct changed *b, const struct quota_change *c)
{
	struct quota_budget *budgets = MINE(b->world->policy.budgets);
	int32_t workspace = c->scope == QUOTA_SCOPE_TENANT ? QUOTA_NONE : b->request.workspace;

	for (size_t i = 0; i < b->world->policy.budget_count; i++)
		if (budgets[i].tenant == tenant_of(b, b->request.workspace) && budgets[i].workspace == workspace &&
		    budgets[i].kind == c->budget)
			budgets[i].amount += c->amount;
}

static void
add_node(struct changed *b, const struct quota_change *c)
{
	const struct quota_shape *shape = &b->world->policy.shapes[b->request.shape];
	struct quota_node *n = &b->nodes[b->world->node_count - 1];
	size_t devices = (size_t)(c->amount / shape->units);

	n->tenant = c->shared ? QUOTA_NONE : tenant_of(b, b->request.workspace);
	n->gpu_count = shape->kind == QUOTA_WHOLE ? devices : 1;
	b->gpus = mem_array(n->gpu_count, sizeof(*b->gpus));
	b->slots = (struct quota_slots){.shape = b->request.shape,
	                                .count = shape->kind == QUOTA_WHOLE ? 1 : (int32_t)devices};
	for (size_t i = 0; i < n->gpu_count; i++)
		b->gpus[i] = (struct quota_gpu){.slots = &b->slots, .slot_count = 1};
	n->gpus = b->gpus;
}

static void
end_backoff(struct changed *b, const struct quota_change *c)
{
	struct quota_backoff *backoffs = MINE(b->world->backoffs);

	for (size_t i = 0; i < b->world->backoff_count; i++)
		if (backoffs[i].workspace == b->request.workspace)
			backoffs[i].until_ns -= c->amount;
}

static void
head_is_served(struct changed *b, const struct quota_change *c)
{
	for (size_t i = b->world->waiting_count; i-- > 0;)
		if (c->shared ? b->waiting[i].head_shared
		              : b->waiting[i].head_own &&
		                        tenant_of(b, b->waiting[i].workspace) == tenant_of(b, b->request.workspace))
			leaves_the_queue(b, i);
}

struct manner {
	bool exception;   /* limits and reservations by exception; else in the policy */
	bool preemptible; /* asked for as such instead of a larger reservation */
};

static void
do_change(struct changed *b, const struct quota_state *s, const struct quota_verdict *v, const struct quota_change *c,
          struct manner m)
{
	by_kind[c->kind]++;
	switch (c->kind) {
	case QUOTA_CHANGE_REQUEST: break;
	case QUOTA_CHANGE_SHAPE: b->request.shape = v->shape; break;
	case QUOTA_CHANGE_SMALLER:
		b->request.count = (int32_t)(c->amount / b->world->policy.shapes[v->shape].units);
		break;
	case QUOTA_CHANGE_GUARDRAIL: raise_guardrail(b, c); break;
	case QUOTA_CHANGE_RESERVED:
		if (m.preemptible) {
			b->request.preemptible = true;
			by_preemptible++;
			break;
		}
		/* fallthrough */
	case QUOTA_CHANGE_LIMIT:
		if (m.exception) {
			ask_exception(b, c);
			break;
		}
		/* fallthrough */
	case QUOTA_CHANGE_BORROW: raise_term(b, s, c); break;
	case QUOTA_CHANGE_TENANT_MAXIMUM:
	case QUOTA_CHANGE_CLUSTER_MAXIMUM: raise_maximum(b, c); break;
	case QUOTA_CHANGE_OTHER_LIMIT: raise_other(b, c); break;
	case QUOTA_CHANGE_BUDGET: raise_budget(b, c); break;
	case QUOTA_CHANGE_CAPACITY: add_node(b, c); break;
	case QUOTA_CHANGE_WAIT: end_backoff(b, c); break;
	case QUOTA_CHANGE_TURN: head_is_served(b, c); break;
	}
}

/* ---- and the request is admitted ---------------------------------------------------------------------------------------------------- */

static bool
runs(const struct quota_state *s, const char *id)
{
	return quota_lease_shape(s, id) != QUOTA_NONE;
}

/* In its place of the queue, or out of it, to be decided next. */
static void
put_request(struct changed *b, bool at_once)
{
	for (size_t i = b->world->waiting_count; i-- > 0;)
		if (strcmp(b->waiting[i].id, b->request.id) == 0) {
			b->waiting[i] = b->request;
			if (at_once)
				leaves_the_queue(b, i);
		}
}

/* The book after everything that is advised was done: the whole queue was looked at, or the request alone when its turn came. */
static bool
book_after(const struct quota_state *s, const struct quota_request *r, const struct quota_verdict *v, struct manner m,
           struct quota_state **ret, struct buf *why)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	struct quota_event e = {.kind = QUOTA_NODE_BACK};
	struct changed b;
	struct err err = {0};
	bool at_once = v->others_first || v->decision == QUOTA_REJECT, ok;

	changed_init(&b, s, r);
	by_turn += v->others_first;
	for (size_t i = 0; i < v->change_count; i++)
		do_change(&b, s, v, &v->changes[i], m);
	put_request(&b, at_once);
	e.node = (int32_t)b.world->node_count - 1;
	if (at_once)
		e = (struct quota_event){.kind = QUOTA_SUBMIT, .requests = &b.request, .request_count = 1};
	ok = quota_load(b.world, ret, &err) && quota_step(*ret, b.world->now_ns, &e, &o, &err);
	if (!ok)
		buf_printf(why, "what is advised cannot be done: %s", err.text);
	changed_fini(&b);
	return ok;
}

static bool
admitted_once_done(const struct quota_state *s, const struct quota_request *r, const struct quota_verdict *v,
                   struct manner m, struct buf *why)
{
	owned(quota) struct quota_state *after = NULL;

	if (!book_after(s, r, v, m, &after, why))
		return false;
	if (runs(after, r->id))
		return true;
	buf_printf(why, "did what it was told%s%s, and is not admitted", m.exception ? ", by exception" : "",
	           m.preemptible ? ", as preemptible" : "");
	return false;
}

/* It waits for leases: they end. Those that are yet to be asked are asked when its turn comes. */
static bool
admitted_once_they_ended(const struct quota_state *s, const struct quota_request *r, const struct quota_verdict *v,
                         struct buf *why)
{
	owned(quota) struct quota_state *after = NULL;
	owned(quota_outcome) struct quota_outcome *now = NULL;
	struct err err = {0};

	by_lease++;
	if (v->not_yet) {
		if (!book_after(s, r, v, (struct manner){0}, &after, why))
			return false;
		now = quota_explain(after, quota_now(after), r->id);
		v = now ? &now->verdicts[0] : v;
		if (now && (v->decision != QUOTA_RECLAIM || v->not_yet))
			return buf_str(why, "the queue was looked at, and no lease was asked to end"), false;
	} else {
		after = quota_clone(s);
	}
	for (size_t i = 0; i < v->victim_count; i++) {
		owned(quota_outcome) struct quota_outcome *o = NULL;

		if (!quota_step(after, quota_now(s),
		                &(struct quota_event){.kind = QUOTA_FINISH, .id = v->victims[i].id}, &o, &err))
			return buf_str(why, err.text), false;
	}
	if (!runs(after, r->id))
		return buf_str(why, "the leases that it waits for ended, and it is not admitted"), false;
	return true;
}

static bool
advice_is_right(const struct quota_state *s, const struct quota_world *w, const struct quota_request *r,
                const struct quota_verdict *v, struct buf *why)
{
	const struct quota_namer namer = {w, name_workspace, name_node, name_shape};
	bool ok = true;

	if (v->decision == QUOTA_ADMIT || v->decision == QUOTA_BORROW)
		return true;
	advised++;
	advised_waiting += v->decision != QUOTA_REJECT;
	if (v->decision == QUOTA_RECLAIM) {
		ok = admitted_once_they_ended(s, r, v, why);
	} else {
		ok = words_are_true(w, v, why);
		if (ok && v->change_count > 0 && v->changes[0].kind == QUOTA_CHANGE_REQUEST)
			return true; /* nothing else is said than that it is not possible */
		ok = ok && admitted_once_done(s, r, v, (struct manner){0}, why) &&
		     admitted_once_done(s, r, v, (struct manner){.exception = true}, why) &&
		     (!v->or_preemptible || admitted_once_done(s, r, v, (struct manner){.preemptible = true}, why));
	}
	if (!ok) {
		buf_printf(why, "\n#   %s of %d, %d x shape %d per node %d priority %d%s: \"", r->id, r->workspace,
		           r->count, r->shape, r->per_node, r->priority, r->preemptible ? "" : " fixed");
		quota_sentences(&namer, v, why);
		buf_str(why, "\"");
	}
	return ok;
}

static bool
all_are_advised(const struct quota_state *s, struct buf *why)
{
	struct quota_saved saved;
	bool ok = true;

	quota_save(s, &saved);
	for (size_t i = 0; i < saved.world.waiting_count && ok; i++) {
		owned(quota_outcome) struct quota_outcome *o =
			quota_explain(s, quota_now(s), saved.world.waiting[i].id);

		ok = advice_is_right(s, &saved.world, &saved.world.waiting[i], &o->verdicts[0], why);
	}
	quota_saved_fini(&saved);
	return ok;
}

/* A request that is made now: what it is told at once. */
static bool
tried_is_advised(const struct quota_state *s, const struct advice_case *c, size_t i, struct buf *why)
{
	owned(quota) struct quota_state *with = quota_clone(s);
	owned(quota_outcome) struct quota_outcome *o = NULL;
	struct quota_request r = {.id = "tried",
	                          .workspace = c->tried[i].workspace % (int32_t)c->world.workspace_count,
	                          .shape = c->tried[i].shape < 3 ? 0 : c->tried[i].shape - 2,
	                          .count = 1 + c->tried[i].count,
	                          .priority = c->tried[i].priority - 1,
	                          .klass = QUOTA_NONE,
	                          .preemptible = c->tried[i].preemptible < 3,
	                          .expected_s = c->tried[i].expected,
	                          .cost = c->tried[i].cost * 50,
	                          .submitted_ns = quota_now(s),
	                          .other = {c->tried[i].cpu * 500, c->tried[i].memory * GIB,
	                                    c->tried[i].storage * 1000}};
	struct quota_saved saved;
	struct err err = {0};
	bool ok = true;

	r.per_node = c->tried[i].per_node == 3 ? r.count : 0;
	if (!quota_step(with, quota_now(s),
	                &(struct quota_event){.kind = QUOTA_SUBMIT, .requests = &r, .request_count = 1}, &o, &err))
		return buf_str(why, err.text), false;
	quota_save(with, &saved);
	for (size_t k = 0; k < o->verdict_count && ok; k++) {
		const struct quota_verdict *v = &o->verdicts[k];

		/* another one of the step may have changed what was said first: what is said last counts */
		if (strcmp(v->id, r.id) == 0 && k + 1 == o->verdict_count)
			ok = advice_is_right(with, &saved.world, &r, v, why);
	}
	quota_saved_fini(&saved);
	return ok;
}

static bool
doing_it_admits(const void *c_, struct buf *why)
{
	const struct advice_case *c = c_;
	owned(quota) struct quota_state *s = NULL;
	struct err err = {0};
	bool ok = true;

	if (!load(c, &s, &err)) {
		buf_printf(why, "the world cannot be loaded: %s", err.text);
		return false;
	}
	for (size_t i = 0; i < c->world.event_count && ok; i++) {
		owned(quota_outcome) struct quota_outcome *o = NULL;
		struct quotaworld_event made;
		struct quota_saved saved;

		quota_save(s, &saved);
		(void)quotaworld_event(&c->world, i, &saved.world, &made);
		for (size_t q = 0; q < ARRAY_LEN(made.requests); q++) {
			made.requests[q].expected_s = c->tried[q].expected / 4;
			made.requests[q].cost = c->tried[q].cost * 10;
			made.requests[q].other[QUOTA_MEMORY] = c->tried[q].memory % 4 * GIB;
		}
		ok = quota_step(s, made.now_ns, &made.event, &o, &err);
		quota_saved_fini(&saved);
		if (!ok)
			return buf_printf(why, "an event is refused: %s", err.text), false;
		if (i % EVERY != 0 && i + 1 != c->world.event_count)
			continue;
		ok = all_are_advised(s, why);
		for (size_t t = 0; t < TRIED && ok; t++)
			ok = tried_is_advised(s, c, t, why);
		if (!ok)
			buf_printf(why, " (event %zu)", i);
	}
	return ok;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"doing what the sentences advise admits the request", sizeof(struct advice_case), generate,
	         doing_it_admits, describe, NULL},
	};
	bool whole = getenv("TOLLGATE_PROP_CASES") == NULL;
	int code;

	ASSERT(setenv("TOLLGATE_PROP_CASES", CASES, 0) == 0);
	code = prop_main("prop_quota_advice", tests, ARRAY_LEN(tests));
	printf("# %zu requests were advised, of which %zu wait; %zu for leases, %zu for their turn, %zu by exception, %zu as preemptible\n",
	       advised, advised_waiting, by_lease, by_turn, by_exception, by_preemptible);
	for (size_t i = 0; i < KINDS; i++)
		printf("# %zu of change %zu\n", by_kind[i], i);
	if (code == 0 && whole && advised_waiting < ADVISED_MIN) {
		printf("not ok - %zu requests that wait are fewer than %u\n", advised_waiting, ADVISED_MIN);
		return 1;
	}
	return code;
}
