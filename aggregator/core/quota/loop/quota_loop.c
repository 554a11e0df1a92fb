/* aggregator/core/quota/loop/quota_loop.c - the closed loop: one look, and what comes of it. */
#include "aggregator/core/quota/loop/quota_loop.h"

#include <stdlib.h>
#include <string.h>

#include "aggregator/core/quota/loop/quota_loop_state.h"

void
quota_loop_out_fini(struct quota_loop_out *out)
{
	mem_free(out->events);
	mem_free(out->anomalies);
	mem_free(out->idle);
	mem_free(out->warned);
	quota_memory_free(out->memory);
	*out = (struct quota_loop_out){0};
}

void
loop_event(struct loop *l, const char *actor, const struct buf *text)
{
	struct quota_loop_out *o = l->out;

	if (o->event_count == l->event_cap) {
		l->event_cap = l->event_cap > 0 ? 2 * l->event_cap : 16;
		o->events = mem_grow(o->events, l->event_cap, sizeof(*o->events));
	}
	o->events[o->event_count++] = (struct quota_loop_event){actor, quota_keep_text(&l->m, buf_text(text))};
}

void
loop_anomaly(struct loop *l, const char *kind, const char *subject, const char *tenant, const struct buf *detail)
{
	struct quota_loop_out *o = l->out;
	in_place(buf) struct buf object = {0};

	buf_init(&object, detail->len + 3);
	buf_printf(&object, "{%s}", buf_text(detail));
	if (o->anomaly_count == l->anomaly_cap) {
		l->anomaly_cap = l->anomaly_cap > 0 ? 2 * l->anomaly_cap : 16;
		o->anomalies = mem_grow(o->anomalies, l->anomaly_cap, sizeof(*o->anomalies));
	}
	o->anomalies[o->anomaly_count++] =
		(struct quota_anomaly){kind, quota_keep_text(&l->m, subject), quota_keep_text(&l->m, tenant),
	                               quota_keep_text(&l->m, buf_text(&object))};
}

static int
compare_anomalies(const void *a, const void *b)
{
	const struct quota_anomaly *x = a, *y = b;
	int c = strcmp(x->kind, y->kind);

	return c != 0 ? c : strcmp(x->subject, y->subject);
}

/* One of a kind and subject: what is found twice is one thing. */
static void
sort_anomalies(struct quota_loop_out *o)
{
	size_t kept = 0;

	if (o->anomaly_count == 0)
		return;
	qsort(o->anomalies, o->anomaly_count, sizeof(*o->anomalies), compare_anomalies);
	for (size_t i = 1; i < o->anomaly_count; i++)
		if (compare_anomalies(&o->anomalies[kept], &o->anomalies[i]) != 0)
			o->anomalies[++kept] = o->anomalies[i];
	o->anomaly_count = kept + 1;
}

static void
map_nodes(struct loop *l)
{
	l->seen_of = quota_keep(&l->m, l->w->node_count, sizeof(*l->seen_of));
	l->book_of = quota_keep(&l->m, l->in->node_count, sizeof(*l->book_of));
	for (size_t i = 0; i < l->w->node_count; i++)
		l->seen_of[i] = QUOTA_NONE;
	for (size_t i = 0; i < l->in->node_count; i++) {
		l->book_of[i] = quota_book_node(l->b, l->in->nodes[i].name);
		if (l->book_of[i] != QUOTA_NONE)
			l->seen_of[l->book_of[i]] = (int32_t)i;
	}
}

void
quota_loop(const struct quota_book *b, const struct quota_observed *seen, int64_t now_ns, struct quota_loop_out *ret)
{
	struct quota_saved saved;
	struct loop l = {.b = b, .in = seen, .now_ns = now_ns, .out = ret};

	*ret = (struct quota_loop_out){0};
	quota_save(quota_book_state(b), &saved);
	l.w = &saved.world;
	loop_judge(&l);
	map_nodes(&l);
	loop_clock(&l);
	loop_inventory(&l);
	loop_match(&l);
	loop_leases(&l);
	loop_budgets(&l);
	loop_anomalies(&l);
	sort_anomalies(ret);
	quota_saved_fini(&saved);
	ret->memory = l.m;
}
