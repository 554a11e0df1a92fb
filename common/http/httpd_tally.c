/* common/http/httpd_tally.c - amounts by name: what each caller of the HTTP server holds. */
#include "common/http/httpd_tally.h"

#include <string.h>

#include "common/base/text.h"

#define BUCKETS 1024u

struct entry {
	struct entry *next;
	size_t amount;
	char name[];
};

struct http_tally {
	struct entry *buckets[BUCKETS];
};

struct http_tally *
http_tally_new(void)
{
	return mem_alloc(sizeof(struct http_tally));
}

void
http_tally_free(struct http_tally *t)
{
	for (size_t i = 0; t && i < BUCKETS; i++)
		for (struct entry *e = t->buckets[i], *next; e; e = next) {
			next = e->next;
			mem_free(e);
		}
	mem_free(t);
}

static size_t
bucket_of(const char *name)
{
	return (size_t)(text_hash(name) % BUCKETS);
}

size_t
http_tally_get(const struct http_tally *t, const char *name)
{
	const struct entry *e = t->buckets[bucket_of(name)];

	while (e && strcmp(e->name, name) != 0)
		e = e->next;
	return e ? e->amount : 0;
}

void
http_tally_add(struct http_tally *t, const char *name, size_t amount)
{
	struct entry **bucket = &t->buckets[bucket_of(name)], *e = *bucket;
	size_t n = strlen(name) + 1;

	if (amount == 0)
		return;
	while (e && strcmp(e->name, name) != 0)
		e = e->next;
	if (!e) {
		e = mem_alloc(sizeof(*e) + n);
		memcpy(e->name, name, n);
		e->next = *bucket;
		*bucket = e;
	}
	e->amount += amount;
}

void
http_tally_take(struct http_tally *t, const char *name, size_t amount)
{
	struct entry **at = &t->buckets[bucket_of(name)], *e;

	if (amount == 0)
		return;
	/* every amount was added under the same name before it is taken, so the entry exists */
	while (strcmp((*at)->name, name) != 0)
		at = &(*at)->next;
	e = *at;
	ASSERT(e->amount >= amount);
	e->amount -= amount;
	if (e->amount > 0)
		return;
	*at = e->next;
	mem_free(e);
}
