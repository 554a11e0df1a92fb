/* tests/fuzz/fuzz_policy.c - any bytes as a policy file: refused with one clear sentence, or read into something sound. */
#include <string.h>

#include "aggregator/core/policy/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_amounts(const struct policy_amounts *a)
{
	for (size_t i = 0; i < a->count; i++)
		ASSERT(a->at[i].unlimited || (a->at[i].num >= 0 && a->at[i].den > 0));
}

static void
check_quota(const struct policy_workspace *w)
{
	check_amounts(&w->reserved);
	check_amounts(&w->reserved_shared);
	check_amounts(&w->limit);
	check_amounts(&w->borrow);
	check_amounts(&w->lend);
	ASSERT(w->reclaim != NULL && w->preempt_own != NULL && w->enforce != NULL);
	ASSERT(w->weight >= 1 && w->idle_timeout_ns >= 0);
	for (size_t i = 0; i < w->members.count; i++)
		ASSERT(w->members.at[i].user != NULL && w->members.at[i].role != NULL);
}

static void
check_book(const struct policy_book *b)
{
	for (size_t i = 0; i < b->item_count; i++) {
		const struct policy_price *it = &b->items[i];

		ASSERT(it->price >= 0 && it->sku != NULL && it->per >= 1);
		ASSERT(it->meter == NULL || (it->gpu_model == NULL && it->klass == NULL && !it->basis_used));
	}
	for (size_t i = 0; i < b->discount_count; i++)
		ASSERT(b->discounts[i].ratio >= 0 && b->discounts[i].ratio <= 1000000000);
	for (size_t i = 0; i < b->weight_count; i++)
		ASSERT(b->weights[i].tenant != NULL && b->weights[i].weight >= 1);
	ASSERT(b->lender_ratio >= 0 && b->lender_ratio <= 1000000000);
	ASSERT(b->shared_idle != NULL && b->platform_cost >= -1);
}

/* What other code relies on without asking again. */
static void
check_sound(const struct policy *p)
{
	ASSERT(p->cluster != NULL && p->cluster[0] != '\0');
	for (size_t i = 0; i < p->tenant_count; i++)
		for (size_t w = 0; w < p->tenants[i].workspace_count; w++) {
			const struct policy_workspace *ws = &p->tenants[i].workspaces[w];

			ASSERT(ws->name != NULL && ws->description != NULL);
			check_quota(ws);
			for (size_t r = 0; r < ws->rule_count; r++)
				ASSERT(ws->rules[r].priority >= 0 && ws->rules[r].priority <= POLICY_MAX_PRIORITY);
		}
	for (size_t i = 0; i < p->node_count; i++)
		ASSERT(p->nodes[i].name != NULL && p->nodes[i].cluster != NULL && p->nodes[i].state != NULL);
	if (p->prices != NULL)
		check_book(p->prices);
}

/* Written as a file it says the same, also when each tenant's administrator puts its own part back. */
static void
check_written(const struct policy *p, const char *document, size_t size)
{
	in_place(buf) struct buf text, part_text, diff;
	owned(policy) struct policy *again = NULL;
	struct err err = {0};

	buf_init(&text, 8u << 20);
	buf_init(&part_text, 8u << 20);
	buf_init(&diff, 8u << 20);
	policy_render(p, &text);
	ASSERT(policy_parse("again.yaml", buf_text(&text), text.len, &again, &err));
	ASSERT(policy_diff(p, again, &diff) == 0 && again->effective_ns == p->effective_ns);
	for (size_t i = 0; i < p->tenant_count && i < 4; i++) {
		owned(policy) struct policy *part = NULL;

		buf_clear(&part_text);
		buf_clear(&text);
		policy_render_part(p, &p->tenants[i], &part_text);
		ASSERT(policy_parse_part("part.yaml", buf_text(&part_text), part_text.len, &part, &err));
		ASSERT(policy_part_check(p, part, p->tenants[i].name, "part.yaml", &err));
		ASSERT(policy_part_merge(document, size, p, part, p->effective_ns, &text, &err));
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	owned(policy) struct policy *p = NULL;
	in_place(buf) struct buf out;
	struct err err = {0};
	size_t first;

	buf_init(&out, 8u << 20);
	if (!policy_parse("fuzz.yaml", (const char *)data, size, &p, &err)) {
		ASSERT(p == NULL && err.kind == ERR_INVALID);
		ASSERT(strncmp(err.text, "fuzz.yaml:", strlen("fuzz.yaml:")) == 0);
		return 0;
	}
	check_sound(p);
	first = policy_diff(NULL, p, &out);
	ASSERT(first >= 1 + p->tenant_count + p->node_count);
	buf_clear(&out);
	ASSERT(policy_diff(p, p, &out) == 0 && out.len == 0);
	check_written(p, (const char *)data, size);
	return 0;
}
