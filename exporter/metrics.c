/* exporter/metrics.c - the newest page of /metrics, and who still reads an older one. */
#include "exporter/metrics.h"

#include <pthread.h>
#include <stdatomic.h>

#include "common/gz.h"

#define GZIP_LEVEL 1 /* once per tick and scraper; level 6 costs three times as much for a fifth less */

struct metrics_page {
	atomic_int references;
	pthread_mutex_t lock; /* of all but text[PROM_TEXT] */
	struct buf text[2];   /* by enum prom_format */
	struct buf compressed[2];
};

struct metrics {
	pthread_mutex_t lock;
	struct metrics_page *newest;
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
	pthread_mutex_destroy(&page->lock);
	mem_free(page);
}

void
metrics_publish(struct metrics *m, const struct metrics_input *in)
{
	struct metrics_page *page = mem_alloc(sizeof(*page)), *old;

	atomic_init(&page->references, 1);
	pthread_mutex_init(&page->lock, NULL);
	for (size_t i = 0; i < ARRAY_LEN(page->text); i++) {
		buf_init(&page->text[i], METRICS_MAX);
		buf_init(&page->compressed[i], METRICS_MAX);
	}
	metrics_render(in, &page->text[PROM_TEXT]);
	pthread_mutex_lock(&m->lock);
	old = m->newest;
	m->newest = page;
	pthread_mutex_unlock(&m->lock);
	metrics_page_release(old);
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
