/* aggregator/service/tenant_queues.c - requests that wait for a thread, in one queue per tenant. */
#include "aggregator/service/tenant_queues.h"

#include <string.h>

#include "common/base/text.h"
#include "common/base/time.h"

struct tenant_queue {
	struct tenant_queue *next;      /* in the order of turns */
	struct tenant_queue *same_hash; /* in its bucket */
	uint64_t hash;
	char tenant[DECISION_TENANT_SIZE];
	struct capacity_request *first, **end;
};

static const char *
tenant_of(const struct capacity_request *i)
{
	return i->of_tenant[0] != '\0' ? i->of_tenant : i->tenant[0] != '\0' ? i->tenant : i->body.tenant;
}

static void
put_behind(struct tenant_queues *l, struct tenant_queue *line)
{
	line->next = NULL;
	if (l->last)
		l->last->next = line;
	else
		l->first = line;
	l->last = line;
}

static struct tenant_queue *
line_of(struct tenant_queues *l, const char *tenant)
{
	uint64_t hash = text_hash(tenant);
	struct tenant_queue **at = &l->buckets[hash % QUEUE_BUCKETS], *line;

	for (; *at; at = &(*at)->same_hash)
		if ((*at)->hash == hash && strcmp((*at)->tenant, tenant) == 0)
			return *at;
	line = mem_alloc(sizeof(*line));
	line->hash = hash;
	line->end = &line->first;
	memcpy(line->tenant, tenant, strnlen(tenant, sizeof(line->tenant) - 1));
	*at = line;
	put_behind(l, line);
	l->count++;
	return line;
}

static void
remove_line(struct tenant_queues *l, struct tenant_queue *line)
{
	struct tenant_queue **at = &l->buckets[line->hash % QUEUE_BUCKETS];

	while (*at != line)
		at = &(*at)->same_hash;
	*at = line->same_hash;
	mem_free(line);
	l->count--;
}

void
tenant_queues_add(struct tenant_queues *l, struct capacity_request *item)
{
	struct tenant_queue *line = line_of(l, tenant_of(item));

	item->next = NULL;
	*line->end = item;
	line->end = &item->next;
}

/* Takes at most so many of the first queue; the rest of that queue goes behind the others. Returns how many. */
static size_t
take_first(struct tenant_queues *l, size_t most, struct capacity_request ***end)
{
	struct tenant_queue *line = l->first;
	size_t n = 0;

	if (l->served_count < QUEUES_SERVED)
		l->served[l->served_count++] = line->hash;
	for (; line->first && n < most; n++) {
		**end = line->first;
		line->first = line->first->next;
		(**end)->next = NULL;
		*end = &(**end)->next;
	}
	l->first = line->next;
	if (!l->first)
		l->last = NULL;
	if (line->first)
		put_behind(l, line);
	else
		remove_line(l, line);
	return n;
}

struct capacity_request *
tenant_queues_take(struct tenant_queues *l, size_t most, size_t alone, size_t beside)
{
	struct capacity_request *items = NULL, **end = &items;
	int64_t now_ns = time_monotonic_ns();
	size_t share;

	if (l->count > 1)
		l->crowded_ns = now_ns;
	share = l->crowded_ns != 0 && now_ns - l->crowded_ns < NS_PER_S ? beside : alone;
	l->served_count = 0;
	for (size_t lines = l->count; lines > 0 && most > 0; lines--)
		most -= take_first(l, share < most ? share : most, &end);
	return items;
}

bool
tenant_queues_has_other(const struct tenant_queues *l)
{
	for (const struct tenant_queue *line = l->first; line; line = line->next) {
		size_t i = 0;

		while (i < l->served_count && l->served[i] != line->hash)
			i++;
		if (i == l->served_count)
			return true;
	}
	return false;
}

struct capacity_request *
capacity_requests_gone(struct capacity_request **items)
{
	struct capacity_request *gone = NULL, **end = &gone;

	for (struct capacity_request **at = items; *at;) {
		struct capacity_request *i = *at;

		if (!http_gone(i->rq)) {
			at = &i->next;
			continue;
		}
		*at = i->next;
		i->next = NULL;
		*end = i;
		end = &i->next;
	}
	return gone;
}
