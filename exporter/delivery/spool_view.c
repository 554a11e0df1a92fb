/* exporter/delivery/spool_view.c - a spool to read from while its owner writes: what it had at one moment, and how far the aggregator
 * is. */
#include <string.h>

#include "exporter/delivery/spool_files.h"

struct spool *
spool_view(const struct spool *s)
{
	struct spool *v = mem_alloc(sizeof(*v));

	*v = *s;
	v->view = true;
	v->fd = v->lock_fd = -1;
	v->options.dir = v->dir = mem_strdup(s->dir);
	v->options.node = v->node = mem_strdup(s->node);
	v->options.exporter_version = v->version = mem_strdup(s->version);
	v->segments = mem_array(s->count + 1, sizeof(*v->segments));
	v->cap = s->count + 1;
	for (size_t i = 0; i < s->count; i++) {
		v->segments[i] = s->segments[i];
		v->segments[i].node = mem_strdup(s->segments[i].node);
	}
	v->acks = mem_array(s->ack_count + 1, sizeof(*v->acks));
	if (s->ack_count > 0)
		memcpy(v->acks, s->acks, s->ack_count * sizeof(*v->acks));
	v->refused = mem_array(s->refused_count + 1, sizeof(*v->refused));
	if (s->refused_count > 0)
		memcpy(v->refused, s->refused, s->refused_count * sizeof(*v->refused));
	v->hint_epoch = 0;
	return v;
}

static bool
has_stream(const struct spool *s, uint64_t epoch)
{
	for (size_t i = 0; i < s->count; i++)
		if (s->segments[i].epoch == epoch)
			return true;
	return false;
}

void
spool_carry(struct spool *to, const struct spool *from)
{
	for (size_t i = 0; i < from->ack_count; i++) {
		const struct stream_ack *a = &from->acks[i];

		if (has_stream(to, a->epoch))
			spool_put_ack(to, *a);
	}
	to->refused_count = 0;
	for (size_t i = 0; i < from->refused_count; i++)
		spool_refuse(to, from->refused[i]);
	spool_mark_acked(to);
}

void
spool_read_on(struct spool *to, const struct spool *from)
{
	to->hint_epoch = from->hint_epoch;
	to->hint_seq = from->hint_seq;
	to->hint_offset = from->hint_offset;
}

void
spool_set_flags(struct spool *s, uint32_t flags)
{
	s->options.flags = flags;
}
