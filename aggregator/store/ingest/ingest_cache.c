/* aggregator/store/ingest/ingest_cache.c - stream state cached between pushes, so that a steady stream needs few
 * queries.
 *
 * Rules:
 *  1. only committed state is cached. A dictionary number never changes its meaning, so cached entries stay true;
 *     another replica may have added more
 *  2. an entry is valid for one database of one server (struct db_ledger) and one version of the policy, which
 *     decides the owner of a holder and the name of the cluster. The cursor is never cached: it is read under its
 *     lock each time
 *  3. the thread that takes an entry out of the cache owns it, so no two threads share one
 *  4. above a limit in bytes, the streams with the oldest push are evicted */
#include <pthread.h>
#include <string.h>

#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/ingest/ingest_push.h"
#include "common/base/text.h"

#define BUCKETS 4096u /* a power of two */
#define CACHE_BYTES_MAX \
	((size_t)128u << 20) /* bytes; a stream of eight GPUs and fifty holders needs about eight thousand */

struct ingest_cache {
	pthread_mutex_t lock;
	struct cached_stream *bucket[BUCKETS];
	struct cached_stream *newest, *oldest;
	int64_t slice_ns;
	size_t bytes;                        /* memory of all entries */
	int64_t server_started_us, database; /* the server that days_from and days_until are about */
	int64_t days_from, days_until;       /* their partitions exist */
};

struct ingest_cache *
ingest_cache_new(int64_t slice_ns)
{
	struct ingest_cache *c = mem_alloc(sizeof(*c));

	c->slice_ns = slice_ns;
	pthread_mutex_init(&c->lock, NULL);
	return c;
}

void
cached_stream_free(struct cached_stream *k)
{
	if (!k)
		return;
	mem_free(k->node);
	mem_free(k->cluster);
	dict_fini(&k->dict);
	slice_sums_fini(&k->slice);
	mem_free(k);
}

void
ingest_cache_free(struct ingest_cache *c)
{
	if (!c)
		return;
	for (struct cached_stream *k = c->newest, *older; k; k = older) {
		older = k->older;
		cached_stream_free(k);
	}
	pthread_mutex_destroy(&c->lock);
	mem_free(c);
}

/* Memory of an entry, with the allocator's overhead. */
static size_t
weight(const struct cached_stream *k)
{
	return sizeof(*k) + 64 + strlen(k->node) + strlen(k->cluster) + dict_bytes(&k->dict) +
	       k->slice.cap * sizeof(*k->slice.at) + hash_memory(&k->slice.index);
}

static struct cached_stream **
bucket_of(struct ingest_cache *c, const char *node, const uint8_t *boot_id, uint64_t epoch)
{
	uint64_t h = text_hash(node);

	for (size_t i = 0; i < WIRE_BOOT_ID_SIZE; i++)
		h = (h ^ boot_id[i]) * UINT64_C(0x100000001b3);
	h = (h ^ epoch) * UINT64_C(0x100000001b3);
	return &c->bucket[(h >> 32) & (BUCKETS - 1)];
}

/* The caller holds the lock. */
static struct cached_stream *
unlink_at(struct ingest_cache *c, struct cached_stream **at)
{
	struct cached_stream *k = *at;

	*at = k->next;
	*(k->newer ? &k->newer->older : &c->newest) = k->older;
	*(k->older ? &k->older->newer : &c->oldest) = k->newer;
	c->bytes -= k->bytes;
	k->next = k->newer = k->older = NULL;
	return k;
}

static struct cached_stream *
unlink_same(struct ingest_cache *c, const char *node, const uint8_t *boot_id, uint64_t epoch)
{
	for (struct cached_stream **at = bucket_of(c, node, boot_id, epoch); *at; at = &(*at)->next)
		if ((*at)->epoch == epoch && memcmp((*at)->boot_id, boot_id, WIRE_BOOT_ID_SIZE) == 0 &&
		    strcmp((*at)->node, node) == 0)
			return unlink_at(c, at);
	return NULL;
}

struct cached_stream *
ingest_cache_take(struct ingest_cache *c, const struct wire_batch *b)
{
	struct cached_stream *k;

	pthread_mutex_lock(&c->lock);
	k = unlink_same(c, b->node, b->boot_id, b->epoch);
	pthread_mutex_unlock(&c->lock);
	return k;
}

/* The caller holds the lock. Returns the evicted streams as a list, which the caller frees after unlocking. */
static struct cached_stream *
make_room(struct ingest_cache *c)
{
	struct cached_stream *gone = NULL;

	while (c->bytes > CACHE_BYTES_MAX && c->oldest) {
		const struct cached_stream *o = c->oldest;
		struct cached_stream *k = unlink_same(c, o->node, o->boot_id, o->epoch);

		ASSERT(k != NULL);
		k->next = gone;
		gone = k;
	}
	return gone;
}

void
ingest_cache_put(struct ingest_cache *c, struct cached_stream *k)
{
	struct cached_stream **at = bucket_of(c, k->node, k->boot_id, k->epoch), *before, *gone;

	k->bytes = weight(k);
	pthread_mutex_lock(&c->lock);
	before = unlink_same(c, k->node, k->boot_id, k->epoch);
	k->next = *at;
	*at = k;
	k->newer = NULL;
	k->older = c->newest;
	*(c->newest ? &c->newest->newer : &c->oldest) = k;
	c->newest = k;
	c->bytes += k->bytes;
	gone = make_room(c);
	pthread_mutex_unlock(&c->lock);
	cached_stream_free(before);
	for (struct cached_stream *next; gone; gone = next) {
		next = gone->next;
		cached_stream_free(gone);
	}
}

/* One range of days is remembered; a new range replaces it unless the two touch. */
static void
learn_days(struct ingest_cache *c, const struct ingest *in)
{
	int64_t from = INT64_MAX, until = INT64_MIN;

	for (size_t i = 0; i < in->count; i++) {
		const struct wire_batch *b = in->frames[i].batch;

		if (in->frames[i].outcome != OUTCOME_ACCEPTED || b->record_count == 0)
			continue;
		from = b->from_ns / NS_PER_DAY < from ? b->from_ns / NS_PER_DAY : from;
		until = (b->to_ns - 1) / NS_PER_DAY + 1 > until ? (b->to_ns - 1) / NS_PER_DAY + 1 : until;
	}
	if (from >= until)
		return;
	pthread_mutex_lock(&c->lock);
	if (c->server_started_us == in->ledger.server_started_us && c->database == in->ledger.database &&
	    from <= c->days_until && until >= c->days_from) {
		from = from < c->days_from ? from : c->days_from;
		until = until > c->days_until ? until : c->days_until;
	}
	c->server_started_us = in->ledger.server_started_us;
	c->database = in->ledger.database;
	c->days_from = from;
	c->days_until = until;
	pthread_mutex_unlock(&c->lock);
}

bool
ingest_cache_has_days(struct ingest_cache *c, const struct db_ledger *l, int64_t from_ns, int64_t to_ns)
{
	bool has;

	pthread_mutex_lock(&c->lock);
	has = c->server_started_us == l->server_started_us && c->database == l->database &&
	      c->days_from <= from_ns / NS_PER_DAY && (to_ns - 1) / NS_PER_DAY < c->days_until;
	pthread_mutex_unlock(&c->lock);
	return has;
}

void
ingest_cache_forget_days(struct ingest_cache *c)
{
	pthread_mutex_lock(&c->lock);
	c->days_from = c->days_until = 0;
	pthread_mutex_unlock(&c->lock);
}

int64_t
ingest_cache_slice_ns(const struct ingest_cache *c)
{
	return c->slice_ns;
}

void
ingest_cache_slice(struct ingest_cache *c, const struct db_ledger *l, struct ingest *in)
{
	owned(cached_stream) struct cached_stream *k = NULL;

	in->slice_ns = c->slice_ns;
	if (in->slice.begun)
		return;
	k = ingest_cache_take(c, in->frames[0].batch);
	if (!k || k->server_started_us != l->server_started_us || k->database != l->database)
		return;
	slice_sums_fini(&in->slice);
	in->slice = k->slice;
	k->slice = (struct slice_sums){0};
}

void
ingest_cache_learn(struct ingest_cache *c, struct ingest *in)
{
	const struct wire_batch *b = in->frames[0].batch;
	struct cached_stream *k;

	/* Owners are loaded only when a record was accepted. */
	if (!in->dict.has_owners)
		return;
	learn_days(c, in);
	k = mem_alloc(sizeof(*k));
	*k = (struct cached_stream){
		.node = mem_strdup(b->node),
		.epoch = b->epoch,
		.server_started_us = in->ledger.server_started_us,
		.database = in->ledger.database,
		.policy_version = in->policy_version,
		.stream_id = in->stream_id,
		.node_id = in->node_id,
		.cluster_id = in->cluster_id,
		.dict = in->dict,
		.slice = in->slice,
	};
	k->cluster = take(in->cluster);
	memcpy(k->boot_id, b->boot_id, sizeof(k->boot_id));
	in->dict = (struct dict){0};
	in->slice = (struct slice_sums){0};
	ingest_cache_put(c, k);
}
