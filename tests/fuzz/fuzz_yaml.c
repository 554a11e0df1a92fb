/* tests/fuzz/fuzz_yaml.c - any bytes as a YAML document. The tree that comes out is whole and within its ceilings. */
#include <string.h>

#include "common/conf/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t
walk(const struct yaml_doc *doc, const struct yaml_node *n, int depth)
{
	size_t children = 0, all = 1;
	struct err err;
	int64_t number;
	bool yes;

	ASSERT(depth <= YAML_MAX_DEPTH + 1 && n->line >= 1);
	if (n->kind == YAML_SCALAR) {
		ASSERT(n->text && !n->child);
		return 1;
	}
	for (const struct yaml_node *c = n->child; c; c = c->next, children++) {
		ASSERT((n->kind == YAML_MAP) == (c->key != NULL));
		if (c->key) {
			const struct yaml_node *found = yaml_get(n, c->key);

			ASSERT(found == c); /* no key twice */
			ASSERT(!yaml_i64(doc, n, c->key, 0, 10, &number, &err) || (number >= 0 && number <= 10));
			(void)!yaml_bool(doc, n, c->key, &yes, &err);
		}
		all += walk(doc, c, depth + 1);
	}
	ASSERT(children == n->count);
	return all;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const allowed[] = {"tenants", "name", "workspaces", NULL};
	owned(yaml) struct yaml_doc *doc = NULL;
	struct err err;

	/* finding each key again is quadratic: of this target, not of the parser */
	if (size > 1 << 14)
		return 0;
	if (!yaml_parse("input", (const char *)data, size, &doc, &err)) {
		ASSERT(strncmp(err.text, "input:", 6) == 0);
		return 0;
	}
	ASSERT(walk(doc, yaml_root(doc), 1) <= YAML_MAX_NODES);
	(void)!yaml_only_keys(doc, yaml_root(doc), allowed, &err);
	return 0;
}
