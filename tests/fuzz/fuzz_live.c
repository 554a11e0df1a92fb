/* tests/fuzz/fuzz_live.c - any bytes as a status: refused in words that name something, or lists that are JSON and within their
 * limits, the same each time. */
#include <string.h>

#include "aggregator/core/metering/live.h"
#include "common/conf/json.h"
#include "common/base/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_list(const struct buf *list, size_t count)
{
	owned(json) json_t *j = NULL;
	struct err err;

	ASSERT(json_parse("list", buf_text(list), list->len, &j, &err));
	ASSERT(json_is_array(j) && json_array_size(j) == count);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	owned(live_status) struct live_status *s = NULL, *again = NULL;
	struct err err = {0};

	if (size > 1 << 16)
		return 0;
	if (!live_parse((const char *)data, size, &s, &err)) {
		ASSERT(s == NULL && err.kind == ERR_INVALID && err.text[0] != '\0');
		return 0;
	}
	ASSERT(live_parse((const char *)data, size, &again, &err));
	ASSERT(memcmp(s->digest, again->digest, sizeof(s->digest)) == 0);
	ASSERT(s->node[0] != '\0' && text_is_clean(s->node));
	ASSERT(s->gpu_count <= LIMIT_NODE_GPUS && s->healthy_count <= s->gpu_count && s->interval_ns > 0);
	check_list(&s->gpus, s->gpu_count);
	check_list(&s->instances, s->instance_count);
	check_list(&s->holders, s->holder_count);
	return 0;
}
