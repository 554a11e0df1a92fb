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
put_behind(struct tenant_queues *q, struct tenant_queue *queue)
{
	queue->next = NULL;
	if (q->last)
		q->last->next = queue;
	else
		q->first = queue;
	q->last = queue;
}

static struct tenant_queue *
queue_of(struct tenant_queues *q, const char *tenant)
{
	uint64_t hash = text_hash(tenant);
	struct tenant_queue **at = &q->buckets[hash % QUEUE_BUCKETS], *queue;

	for (; *at; at = &(*at)->same_hash)
		if ((*at)->hash == hash && strcmp((*at)->tenant, tenant) == 0)
			return *at;
	queue = mem_alloc(sizeof(*queue));
	queue->hash = hash;
	queue->end = &queue->first;
	memcpy(queue->tenant, tenant, strnlen(tenant, sizeof(queue->tenant) - 1));
	*at = queue;
	put_behind(q, queue);
	q->count++;
	return queue;
}

static void
remove_queue(struct tenant_queues *q, struct tenant_queue *queue)
{
	struct tenant_queue **at = &q->buckets[queue->hash % QUEUE_BUCKETS];

	while (*at != queue)
		at = &(*at)->same_hash;
	*at = queue->same_hash;
	mem_free(queue);
	q->count--;
}

void
tenant_queues_add(struct tenant_queues *q, struct capacity_request *item)
{
	struct tenant_queue *queue = queue_of(q, tenant_of(item));

	item->next = NULL;
	*queue->end = item;
	queue->end = &item->next;
}

/* Takes at most so many of the first queue; the rest of that queue goes behind the others. Returns how many. */
static size_t
take_first(struct tenant_queues *q, size_t most, struct capacity_request ***end)
{
	struct tenant_queue *queue = q->first;
	size_t n = 0;

	if (q->served_count < QUEUES_SERVED)
		q->served[q->served_count++] = queue->hash;
	for (; queue->first && n < most; n++) {
		**end = queue->first;
		queue->first = queue->first->next;
		(**end)->next = NULL;
		*end = &(**end)->next;
	}
	q->first = queue->next;
	if (!q->first)
		q->last = NULL;
	if (queue->first)
		put_behind(q, queue);
	else
		remove_queue(q, queue);
	return n;
}

struct capacity_request *
tenant_queues_take(struct tenant_queues *q, size_t most, size_t alone, size_t beside)
{
	struct capacity_request *items = NULL, **end = &items;
	int64_t now_ns = time_monotonic_ns();
	size_t share;

	if (q->count > 1)
		q->crowded_ns = now_ns;
	share = q->crowded_ns != 0 && now_ns - q->crowded_ns < NS_PER_S ? beside : alone;
	q->served_count = 0;
	for (size_t queues = q->count; queues > 0 && most > 0; queues--)
		most -= take_first(q, share < most ? share : most, &end);
	return items;
}

bool
tenant_queues_has_other(const struct tenant_queues *q)
{
	for (const struct tenant_queue *queue = q->first; queue; queue = queue->next) {
		size_t i = 0;

		while (i < q->served_count && q->served[i] != queue->hash)
			i++;
		if (i == q->served_count)
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
