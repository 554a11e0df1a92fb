/* aggregator/service/desk_lines.c - items that wait for a thread, one line for each tenant. */
#include "aggregator/service/desk_lines.h"

#include <string.h>

#include "common/base/text.h"
#include "common/base/time.h"

struct desk_line {
	struct desk_line *next;      /* in the order of turns */
	struct desk_line *same_hash; /* in its bucket */
	uint64_t hash;
	char tenant[DECISION_TENANT_SIZE];
	struct desk_item *first, **end;
};

static const char *
tenant_of(const struct desk_item *i)
{
	return i->of_tenant[0] != '\0' ? i->of_tenant : i->tenant[0] != '\0' ? i->tenant : i->body.tenant;
}

static void
put_behind(struct desk_lines *l, struct desk_line *line)
{
	line->next = NULL;
	if (l->last)
		l->last->next = line;
	else
		l->first = line;
	l->last = line;
}

static struct desk_line *
line_of(struct desk_lines *l, const char *tenant)
{
	uint64_t hash = text_hash(tenant);
	struct desk_line **at = &l->buckets[hash % DESK_BUCKETS], *line;

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
remove_line(struct desk_lines *l, struct desk_line *line)
{
	struct desk_line **at = &l->buckets[line->hash % DESK_BUCKETS];

	while (*at != line)
		at = &(*at)->same_hash;
	*at = line->same_hash;
	mem_free(line);
	l->count--;
}

void
desk_lines_add(struct desk_lines *l, struct desk_item *item)
{
	struct desk_line *line = line_of(l, tenant_of(item));

	item->next = NULL;
	*line->end = item;
	line->end = &item->next;
}

/* At most so many of the first line; what is left of it goes behind the others. How many there were. */
static size_t
take_first(struct desk_lines *l, size_t most, struct desk_item ***end)
{
	struct desk_line *line = l->first;
	size_t n = 0;

	if (l->served_count < DESK_SERVED)
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

struct desk_item *
desk_lines_take(struct desk_lines *l, size_t most, size_t alone, size_t beside)
{
	struct desk_item *items = NULL, **end = &items;
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
desk_lines_other(const struct desk_lines *l)
{
	for (const struct desk_line *line = l->first; line; line = line->next) {
		size_t i = 0;

		while (i < l->served_count && l->served[i] != line->hash)
			i++;
		if (i == l->served_count)
			return true;
	}
	return false;
}

struct desk_item *
desk_items_gone(struct desk_item **items)
{
	struct desk_item *gone = NULL, **end = &gone;

	for (struct desk_item **at = items; *at;) {
		struct desk_item *i = *at;

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
