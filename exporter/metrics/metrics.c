/* exporter/metrics/metrics.c - the newest page of /metrics, shared with the scrapes that still read an older one. */
#include "exporter/metrics/metrics.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/base/gz.h"
#include "exporter/metrics/metrics_render.h"

#define GZIP_LEVEL 1 /* once per tick and scraper; level 6 costs three times as much for a fifth less */

struct metrics_page {
	atomic_int references;
	pthread_mutex_t lock; /* of all but text[PROM_TEXT] */
	struct buf text[2];   /* by enum prom_format */
	struct buf compressed[2];
	struct metrics_memory memory; /* of the thread that publishes */
};

struct metrics {
	pthread_mutex_t lock; /* of newest */
	struct metrics_page *newest;
	/* of the thread that publishes */
	struct dcgm_links links;
	struct metrics_page *spare; /* the page before the newest, when no scrape reads it any more */
};

struct metrics *
metrics_new(void)
{
	struct metrics *m = mem_alloc(sizeof(*m));

	pthread_mutex_init(&m->lock, NULL);
	return m;
}

void
metrics_free(struct metrics *m)
{
	if (!m)
		return;
	metrics_page_release(m->newest);
	metrics_page_release(m->spare);
	pthread_mutex_destroy(&m->lock);
	mem_free(m);
}

void
metrics_page_release(void *arg)
{
	struct metrics_page *page = arg;

	if (!page || atomic_fetch_sub(&page->references, 1) > 1)
		return;
	for (size_t i = 0; i < ARRAY_LEN(page->text); i++) {
		buf_fini(&page->text[i]);
		buf_fini(&page->compressed[i]);
	}
	metrics_memory_fini(&page->memory);
	pthread_mutex_destroy(&page->lock);
	mem_free(page);
}

static struct metrics_page *
page_new(void)
{
	struct metrics_page *page = mem_alloc(sizeof(*page));

	atomic_init(&page->references, 1);
	pthread_mutex_init(&page->lock, NULL);
	metrics_memory_init(&page->memory);
	for (size_t i = 0; i < ARRAY_LEN(page->text); i++) {
		buf_init(&page->text[i], METRICS_MAX);
		buf_init(&page->compressed[i], METRICS_MAX);
	}
	return page;
}

/* A page that no scrape holds any more becomes the next page but one: only its numbers must change. */
static void
keep_spare(struct metrics *m, struct metrics_page *old)
{
	if (!old || m->spare || atomic_load(&old->references) > 1) {
		metrics_page_release(old);
		return;
	}
	buf_clear(&old->text[PROM_OPENMETRICS]);
	for (size_t i = 0; i < ARRAY_LEN(old->compressed); i++)
		buf_clear(&old->compressed[i]);
	m->spare = old;
}

void
metrics_publish(struct metrics *m, const struct metrics_input *in)
{
	struct metrics_page *page = m->spare ? take(m->spare) : page_new(), *old;
	struct metrics_input with_links = *in;

	if (in->dcgm_hostname && in->tick)
		dcgm_links_update(&m->links, in->tick);
	with_links.dcgm_links = &m->links;
	metrics_render(&with_links, &page->memory, &page->text[PROM_TEXT]);
	pthread_mutex_lock(&m->lock);
	old = m->newest;
	m->newest = page;
	pthread_mutex_unlock(&m->lock);
	/* no scrape can get the old page any more, they can only release it */
	keep_spare(m, old);
}

/* A line of HELP or TYPE, whose name ends at `name_end`. */
static void
openmetrics_head(const char *text, size_t len, size_t name_end, struct buf *out)
{
	const char suffix[] = "_total", counter[] = " counter\n";
	const size_t head = strlen("# HELP "), suffix_len = sizeof(suffix) - 1;
	bool type = text[2] == 'T',
	     total = name_end > head + suffix_len && memcmp(text + name_end - suffix_len, suffix, suffix_len) == 0;
	size_t shown = total ? name_end - suffix_len : name_end;

	buf_add(out, text, shown);
	if (type && !total && len - name_end == strlen(counter) &&
	    memcmp(text + name_end, counter, strlen(counter)) == 0)
		buf_str(out, " unknown\n");
	else
		buf_add(out, text + name_end, len - name_end);
	if (type)
		prom_add_unit(out, text + head, shown - head);
}

/* The two formats differ in the names of counters in HELP and TYPE, in UNIT, and in the last line. Turning one into the other, for the
 * scrape that asks, is cheaper than rendering both every second. */
void
metrics_openmetrics(const char *text, size_t len, struct buf *out)
{
	const size_t head = strlen("# HELP ");

	while (len > 0) {
		const char *end = memchr(text, '\n', len);
		size_t line = end ? (size_t)(end - text) + 1 : len;
		const char *name = line > head && text[0] == '#' ? text + head : NULL;
		const char *space = name ? memchr(name, ' ', line - head) : NULL;

		if (space)
			openmetrics_head(text, line, (size_t)(space - text), out);
		else
			buf_add(out, text, line);
		text += line;
		len -= line;
	}
	buf_str(out, "# EOF\n");
}

struct metrics_page *
metrics_get(struct metrics *m)
{
	struct metrics_page *page;

	pthread_mutex_lock(&m->lock);
	page = m->newest;
	if (page)
		atomic_fetch_add(&page->references, 1);
	pthread_mutex_unlock(&m->lock);
	return page;
}

void
metrics_page_bytes(struct metrics_page *page, enum prom_format format, bool gzip, const void **ret, size_t *ret_len)
{
	const struct buf *plain = &page->text[PROM_TEXT];
	struct buf *text = &page->text[format], *compressed = &page->compressed[format];
	struct err err;

	if (gzip || format != PROM_TEXT) {
		pthread_mutex_lock(&page->lock);
		if (text->len == 0)
			metrics_openmetrics(buf_text(plain), plain->len, text);
		if (gzip && compressed->len == 0)
			ASSERT(gz_compress(buf_text(text), text->len, GZIP_LEVEL, compressed, &err));
		pthread_mutex_unlock(&page->lock);
	}
	*ret = buf_text(gzip ? compressed : text);
	*ret_len = gzip ? compressed->len : text->len;
}
