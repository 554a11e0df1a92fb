/* exporter/delivery/spool_state.c - how far the aggregator is, remembered across restarts.
 *
 *   tollgate-spool 1
 *   epoch 1794807900                      the last epoch that was opened
 *   acked 1794807900 17 1794808500000...  stream, next number it wants, wall time of that acknowledgement */
#include <string.h>

#include "common/base/text.h"
#include "exporter/delivery/spool_files.h"

#define STATE_MAX (1u << 20)
#define DOUBTED_MAX 8 /* streams of one batch in a row: minutes, as a failover may lose */

/* The position of the first entry that is not before this epoch. */
static size_t
ack_position(const struct spool *s, uint64_t epoch)
{
	size_t low = 0, high = s->ack_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (s->acks[middle].epoch < epoch)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

const struct stream_ack *
spool_find_ack(const struct spool *s, uint64_t epoch)
{
	size_t at = ack_position(s, epoch);

	return at < s->ack_count && s->acks[at].epoch == epoch ? &s->acks[at] : NULL;
}

void
spool_put_ack(struct spool *s, struct stream_ack ack)
{
	size_t at = ack_position(s, ack.epoch);

	if (at == s->ack_count || s->acks[at].epoch != ack.epoch) {
		s->acks = mem_grow(s->acks, s->ack_count + 1, sizeof(*s->acks));
		memmove(&s->acks[at + 1], &s->acks[at], (s->ack_count - at) * sizeof(*s->acks));
		s->ack_count++;
	}
	s->acks[at] = ack;
}

/* What it lost, it lost from the end: when the last batch is there, so is all before it, and in the streams before too. A stream of one
 * batch cannot tell, because that batch is taken either way: then some more. */
void
spool_doubt_before(struct spool *s, uint64_t epoch)
{
	size_t streams = 0;

	for (size_t i = s->count; i-- > 0 && streams < DOUBTED_MAX;) {
		const struct segment *g = &s->segments[i];
		const struct stream_ack *a = g->epoch < epoch ? spool_find_ack(s, g->epoch) : NULL;
		struct stream_ack doubted;

		if (g->epoch >= epoch || spool_is_refused(s, g->epoch))
			continue;
		if (!a || a->next_seq <= g->last_seq)
			return; /* it is offered anyway */
		doubted = *a;
		doubted.next_seq = g->loss ? g->first_seq : g->last_seq;
		if (!doubted.doubted_wall_ns)
			doubted.doubted_wall_ns = a->wall_ns;
		epoch = g->epoch;
		spool_put_ack(s, doubted);
		if (doubted.next_seq > 1)
			return;
		streams++;
	}
}

/* Of a stream without acknowledgement: its first number that is here. */
uint64_t
cursor_next(struct cursor_walk *w, const struct spool *s, const struct segment *g)
{
	if (w->epoch != g->epoch) {
		const struct stream_ack *a = spool_find_ack(s, g->epoch);

		w->epoch = g->epoch;
		w->cursor = a ? a->next_seq : g->first_seq;
	}
	return w->cursor;
}

uint64_t
spool_cursor(const struct spool *s, uint64_t epoch)
{
	const struct stream_ack *a = spool_find_ack(s, epoch);

	for (size_t i = 0; !a && i < s->count; i++)
		if (s->segments[i].epoch == epoch)
			return s->segments[i].first_seq;
	return a ? a->next_seq : 1;
}

int64_t
segment_unacked(const struct segment *g, uint64_t cursor)
{
	uint64_t first = g->first_seq > cursor ? g->first_seq : cursor;

	return first > g->last_seq ? 0 : (int64_t)(g->last_seq - first + 1);
}

void
spool_mark_acked(struct spool *s)
{
	for (size_t i = 0; i < s->count; i++) {
		struct segment *g = &s->segments[i];
		const struct stream_ack *a = spool_find_ack(s, g->epoch);

		if (!a || g->last_seq >= a->next_seq)
			g->acked_wall_ns = -1;
		else if (g->acked_wall_ns < 0)
			g->acked_wall_ns = a->wall_ns;
	}
}

/* The number at *at, which ends at a space or at the end of the line; moves behind it. */
static bool
take_number(const char **at, int64_t least, int64_t *ret)
{
	size_t len = strcspn(*at, " \n");
	owned(mem) char *word = mem_strndup(*at, len);

	*at += len;
	*at += **at == ' ';
	return text_to_i64(word, ret) && *ret >= least;
}

static bool
take_word(const char **at, const char *word)
{
	size_t len = strlen(word);

	if (strncmp(*at, word, len) != 0)
		return false;
	*at += len;
	return true;
}

static bool
parse_line(struct spool *s, const char *at)
{
	int64_t epoch, next_seq, wall_ns;

	if (take_word(&at, "epoch ")) {
		if (!take_number(&at, 0, &epoch) || epoch == INT64_MAX)
			return false;
		s->epoch = (uint64_t)epoch > s->epoch ? (uint64_t)epoch : s->epoch;
		return true;
	}
	if (!take_word(&at, "acked ") || !take_number(&at, 0, &epoch) || !take_number(&at, 1, &next_seq) ||
	    !take_number(&at, 0, &wall_ns))
		return false;
	spool_put_ack(
		s, (struct stream_ack){.epoch = (uint64_t)epoch, .next_seq = (uint64_t)next_seq, .wall_ns = wall_ns});
	return true;
}

void
state_load(struct spool *s)
{
	owned(mem) char *path = mem_printf("%s/state", s->options.dir);
	in_place(buf) struct buf text = {0};
	const char *line;

	buf_init(&text, STATE_MAX);
	if (!buf_read_file(&text, path, NULL))
		return;
	line = buf_text(&text);
	if (!take_word(&line, "tollgate-spool 1\n"))
		return;
	while (*line && parse_line(s, line)) {
		line += strcspn(line, "\n");
		line += *line == '\n';
	}
	spool_mark_acked(s);
}

/* Streams that have gone are forgotten. */
static void
drop_old_acks(struct spool *s)
{
	size_t kept = 0, at = 0;

	for (size_t i = 0; i < s->ack_count; i++) {
		while (at < s->count && s->segments[at].epoch < s->acks[i].epoch)
			at++;
		if (at < s->count && s->segments[at].epoch == s->acks[i].epoch)
			s->acks[kept++] = s->acks[i];
	}
	s->ack_count = kept;
}

bool
state_save(struct spool *s, struct err *err)
{
	owned(mem) char *path = mem_printf("%s/state", s->options.dir);
	in_place(buf) struct buf text = {0};

	drop_old_acks(s);
	buf_init(&text, STATE_MAX);
	buf_printf(&text, "tollgate-spool 1\nepoch %" PRIu64 "\n", s->epoch);
	for (size_t i = 0; i < s->ack_count; i++)
		buf_printf(&text, "acked %" PRIu64 " %" PRIu64 " %" PRId64 "\n", s->acks[i].epoch, s->acks[i].next_seq,
		           s->acks[i].wall_ns);
	if (buf_ok(&text, path, err) && file_write_atomic(path, text.data, text.len, 0600, err))
		return true;
	if (err)
		err->kind = ERR_RETRY;
	return false;
}
