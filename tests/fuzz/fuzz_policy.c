/* tests/fuzz/fuzz_policy.c - any bytes as a policy file: refused with one clear sentence, or read into something sound. */
#include <string.h>

#include "aggregator/core/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What other code relies on without asking again. */
static void
check_sound(const struct policy *p)
{
	ASSERT(p->cluster != NULL && p->cluster[0] != '\0');
	for (size_t i = 0; i < p->tenant_count; i++)
		for (size_t w = 0; w < p->tenants[i].workspace_count; w++) {
			const struct policy_workspace *ws = &p->tenants[i].workspaces[w];

			ASSERT(ws->name != NULL && ws->description != NULL);
			for (size_t r = 0; r < ws->rule_count; r++)
				ASSERT(ws->rules[r].priority >= 0 && ws->rules[r].priority <= POLICY_MAX_PRIORITY);
		}
	for (size_t i = 0; i < p->node_count; i++)
		ASSERT(p->nodes[i].name != NULL && p->nodes[i].cluster != NULL);
	if (p->prices != NULL)
		for (size_t i = 0; i < p->prices->item_count; i++)
			ASSERT(p->prices->items[i].price >= 0 && p->prices->items[i].sku != NULL);
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
	return 0;
}
