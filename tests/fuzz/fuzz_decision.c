/* tests/fuzz/fuzz_decision.c - any bytes as a request for capacity, of an operator and of a tenant, and as work that runs already: refused in words, or an event that is JSON of
 * its own, with the id and the workspace that the store relies on. */
#include <string.h>

#include "aggregator/core/quota/book/decision_ask.h"
#include "common/base/labels.h"
#include "common/base/time.h"

#define NOW_NS (INT64_C(1800000000) * NS_PER_S)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_sound(const struct decision_body *b, const char *tenant)
{
	owned(json) json_t *request = NULL, *body = NULL;
	struct err err = {0};
	size_t n = tenant ? strlen(tenant) : 0;

	ASSERT(decision_id_sound(b->request_id));
	ASSERT(strchr(b->workspace, '/') != NULL);
	ASSERT(!tenant || (strncmp(b->workspace, tenant, n) == 0 && b->workspace[n] == '/'));
	ASSERT(json_parse("request", buf_text(&b->request), b->request.len, &request, &err));
	ASSERT(strcmp(json_string_value(json_object_get(request, "id")), b->key) == 0);
	ASSERT(strcmp(decision_key_id(b->key), b->request_id) == 0);
	ASSERT(strcmp(json_string_value(json_object_get(request, "workspace")), b->workspace) == 0);
	ASSERT(json_parse("body", buf_text(&b->body), b->body.len, &body, &err));
}

static void
run(const json_t *doc, const char *tenant, bool adopts)
{
	in_place(decision_body) struct decision_body b = {0};
	struct err err = {0};

	if (adopts ? !decision_adoption_read(doc, NOW_NS, &b, &err)
	           : !decision_body_read(doc, tenant, NOW_NS, &b, &err)) {
		ASSERT(err.text[0] != '\0' && (err.kind == ERR_INVALID || err.kind == ERR_MISSING));
		return;
	}
	if (b.workspace[0] == '\0') {
		ASSERT(b.request.len == 0 && labels_fault(b.holder.labels) == NULL && b.holder.ns && b.holder.user);
		ASSERT(!decision_body_no_workspace(&b, &err) && err.kind == ERR_MISSING);
		ASSERT(decision_body_place(&b, "acme/prod", &err));
	}
	check_sound(&b, tenant);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	owned(json) json_t *doc = NULL;
	struct err err = {0};

	if (!json_parse("body", (const char *)data, size, &doc, &err))
		return 0;
	run(doc, NULL, false);
	run(doc, "acme", false);
	run(doc, NULL, true);
	return 0;
}
