/* exporter/delivery/spool_files.c - the files of the spool: a segment's bytes, the directory, repair, loss batches, the state file.
 *
 * The state file:
 *
 *   tollgate-spool 1
 *   epoch 1794807900                      the last epoch that was opened
 *   acked 1794807900 17 1794808500000...  stream, next number it wants, wall time of that acknowledgement */
#include "exporter/delivery/spool_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/text.h"
#include "common/base/time.h"
#include "common/wire/frame.h"

#define NAME_FORMAT "%016" PRIx64 "-%016" PRIx64 ".seg"
#define NAME_LEN (16 + 1 + 16 + 4)
#define FILE_MAX (INT64_C(1) << 30) /* a segment may end with one frame beyond its limit */
#define STATE_MAX (1u << 20)

/* ---- the bytes of a segment ---- */

static const char magic[8] = {'T', 'G', 'S', 'P', 'O', 'O', 'L', '\n'};

/* magic 8, version 2, node length 2, flags 4, boot id 16, epoch 8, first seq 8; then the node and the CRC */
#define FIXED_LEN 48u
#define CRC_LEN 4u

static void
put_le(struct buf *out, uint64_t v, int bytes)
{
	for (int i = 0; i < bytes; i++)
		buf_char(out, (char)(v >> (8 * i)));
}

static uint64_t
get_le(const uint8_t *p, int bytes)
{
	uint64_t v = 0;

	for (int i = 0; i < bytes; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

size_t
segment_head_len(const char *node)
{
	return FIXED_LEN + strlen(node) + CRC_LEN;
}

void
segment_head_write(const struct segment_head *h, struct buf *out)
{
	size_t start = out->len, node_len = strlen(h->node);

	buf_add(out, magic, sizeof(magic));
	put_le(out, SEGMENT_VERSION, 2);
	put_le(out, node_len, 2);
	put_le(out, h->flags, 4);
	buf_add(out, h->boot_id, sizeof(h->boot_id));
	put_le(out, h->epoch, 8);
	put_le(out, h->first_seq, 8);
	buf_add(out, h->node, node_len);
	put_le(out, crc32c(0, out->data + start, out->len - start), CRC_LEN);
}

bool
segment_head_read(const void *data, size_t n, struct segment_head *ret, size_t *ret_len, struct err *err)
{
	const uint8_t *p = data;
	struct segment_head h = {0};
	size_t node_len, len;

	if (n < FIXED_LEN || memcmp(p, magic, sizeof(magic)) != 0)
		return err_set(err, ERR_INVALID, "no segment head");
	node_len = (size_t)get_le(p + 10, 2);
	len = FIXED_LEN + node_len;
	if (node_len > WIRE_MAX_TEXT || len + CRC_LEN > n)
		return err_set(err, ERR_INVALID, "a node name of %zu bytes does not fit", node_len);
	if (get_le(p + len, CRC_LEN) != crc32c(0, p, len))
		return err_set(err, ERR_INVALID, "the CRC of the head is wrong");
	if (get_le(p + 8, 2) != SEGMENT_VERSION)
		return err_set(err, ERR_RETRY, "segment version %u is not known", (unsigned)get_le(p + 8, 2));
	h.flags = (uint32_t)get_le(p + 12, 4);
	memcpy(h.boot_id, p + 16, sizeof(h.boot_id));
	h.epoch = get_le(p + 32, 8);
	h.first_seq = get_le(p + 40, 8);
	memcpy(h.node, p + FIXED_LEN, node_len);
	if (h.epoch < 1 || h.epoch > INT64_MAX || h.first_seq < 1 || h.first_seq > INT64_MAX || node_len == 0 ||
	    strlen(h.node) != node_len || !text_is_clean(h.node))
		return err_set(err, ERR_INVALID, "the head has an impossible epoch, sequence number or node");
	*ret = h;
	*ret_len = len + CRC_LEN;
	return true;
}

/* Compares a batch with its place in the stream. A batch of an unknown version is accepted unseen. */
static bool
check_batch(struct segment_scan *s, const uint8_t *payload, size_t len, uint64_t seq)
{
	owned(wire_batch) struct wire_batch *b = NULL;
	bool first = seq == s->head.first_seq;
	struct err err;

	if (!wire_unpack(payload, len, &b, &err))
		return err.kind == ERR_RETRY;
	if (b->epoch != s->head.epoch || b->seq != seq || strcmp(b->node, s->head.node) != 0 ||
	    memcmp(b->boot_id, s->head.boot_id, sizeof(b->boot_id)) != 0)
		return false;
	if (b->kind == WIRE_LOSS) {
		if (!first || b->last_seq < seq || b->last_seq >= INT64_MAX)
			return false;
		s->loss = true;
		s->last_seq = b->last_seq;
	}
	if (first)
		s->from_ns = b->from_ns;
	s->to_ns = b->to_ns;
	return true;
}

/* Adds one frame; false when it is not sound. */
static bool
scan_frame(struct segment_scan *s, const uint8_t *payload, size_t len, size_t end)
{
	if (s->loss || (s->frames == 0 && !check_batch(s, payload, len, s->head.first_seq)))
		return false;
	s->frames++;
	if (!s->loss)
		s->last_seq = s->head.first_seq + s->frames - 1;
	s->sound_bytes = end;
	return true;
}

bool
segment_scan(const void *data, size_t n, struct segment_scan *ret, struct err *err)
{
	const uint8_t *payload = NULL, *last = NULL;
	struct segment_scan s = {0}, first_only = {0};
	size_t pos, last_len = 0, len = 0;
	enum frame_result r;

	if (!segment_head_read(data, n, &s.head, &pos, err))
		return false;
	s.sound_bytes = pos;
	s.last_seq = s.head.first_seq - 1;
	while ((r = frame_next(data, n, &pos, &payload, &len)) == FRAME_OK) {
		if (!scan_frame(&s, payload, len, pos))
			break;
		if (s.frames == 1)
			first_only = s;
		last = payload;
		last_len = len;
	}
	s.end = r == FRAME_END ? SEGMENT_WHOLE : r == FRAME_TORN ? SEGMENT_TORN : SEGMENT_BAD;
	/* the number of the last batch proves the count of frames */
	if (s.frames > 1 && !check_batch(&s, last, last_len, s.last_seq)) {
		s = first_only;
		s.end = SEGMENT_BAD;
	}
	*ret = s;
	return true;
}

/* ---- the list of segments ---- */

char *
segment_path(const struct spool *s, uint64_t epoch, uint64_t first_seq)
{
	return mem_printf("%s/" NAME_FORMAT, s->options.dir, epoch, first_seq);
}

static void
segment_fini(struct segment *g)
{
	mem_free(g->node);
	*g = (struct segment){0};
}

void
spool_insert(struct spool *s, struct segment g)
{
	size_t at = s->count;

	array_room(s->segments, s->count, s->cap);
	while (at > 0 && (s->segments[at - 1].epoch > g.epoch ||
	                  (s->segments[at - 1].epoch == g.epoch && s->segments[at - 1].first_seq > g.first_seq)))
		at--;
	memmove(&s->segments[at + 1], &s->segments[at], (s->count - at) * sizeof(g));
	s->segments[at] = g;
	s->count++;
	s->bytes += g.bytes;
}

void
spool_remove(struct spool *s, size_t at)
{
	s->bytes -= s->segments[at].bytes;
	segment_fini(&s->segments[at]);
	s->count--;
	memmove(&s->segments[at], &s->segments[at + 1], (s->count - at) * sizeof(*s->segments));
}

bool
spool_delete(struct spool *s, size_t at, struct err *err)
{
	owned(mem) char *path = segment_path(s, s->segments[at].epoch, s->segments[at].first_seq);

	if (unlink(path) != 0 && errno != ENOENT)
		return err_errno(err, ERR_RETRY, errno, "cannot delete %s", path);
	spool_remove(s, at);
	return true;
}

/* ---- loss batches ---- */

bool
spool_loss_frame(const struct spool *s, const struct segment *g, uint64_t first_seq, uint64_t last_seq, int64_t from_ns,
                 int64_t to_ns, struct buf *out, struct err *err)
{
	owned(wire_batch) struct wire_batch *b = wire_batch_new();
	in_place(buf) struct buf payload = {0};

	b->kind = WIRE_LOSS;
	b->node = mem_strdup(g->node);
	memcpy(b->boot_id, g->boot_id, sizeof(b->boot_id));
	b->epoch = g->epoch;
	b->seq = first_seq;
	b->last_seq = last_seq;
	b->flags = g->flags;
	b->exporter_version = mem_strdup(s->options.exporter_version);
	b->to_ns = to_ns > 0 ? to_ns : 0;
	b->from_ns = from_ns < 0 ? 0 : from_ns > b->to_ns ? b->to_ns : from_ns;
	buf_init(&payload, FRAME_MAX);
	if (!wire_pack(b, &payload, err))
		return false;
	frame_append(out, payload.data, payload.len);
	return true;
}

/* Writes a segment of one loss batch, replacing a file of the same name. g has the numbers and times. */
static bool
write_loss(const struct spool *s, struct segment *g, struct err *err)
{
	owned(mem) char *path = segment_path(s, g->epoch, g->first_seq);
	struct segment_head head = {.flags = g->flags, .epoch = g->epoch, .first_seq = g->first_seq};
	in_place(buf) struct buf file = {0};

	memcpy(head.boot_id, g->boot_id, sizeof(head.boot_id));
	snprintf(head.node, sizeof(head.node), "%s", g->node);
	buf_init(&file, SEGMENT_HEAD_MAX + FRAME_HEAD + FRAME_MAX);
	segment_head_write(&head, &file);
	if (!spool_loss_frame(s, g, g->first_seq, g->last_seq, g->from_ns, g->to_ns, &file, err) ||
	    !buf_ok(&file, path, err))
		return false;
	if (!file_write_atomic(path, file.data, file.len, 0600, err)) {
		if (err)
			err->kind = ERR_RETRY;
		return false;
	}
	g->bytes = (int64_t)file.len;
	g->loss = true;
	return true;
}

/* An empty segment of the same stream. */
static struct segment
same_stream(const struct segment *g)
{
	struct segment copy = {.epoch = g->epoch, .flags = g->flags, .acked_wall_ns = -1, .node = mem_strdup(g->node)};

	memcpy(copy.boot_id, g->boot_id, sizeof(copy.boot_id));
	return copy;
}

/* Order matters for a crash: the loss is written first, the file it covers deleted after. Loading removes such a duplicate
 * (drop_duplicates). */
bool
spool_replace_by_loss(struct spool *s, size_t at, struct err *err)
{
	struct segment *g = &s->segments[at];
	bool join = at > 0 && g[-1].epoch == g->epoch && g[-1].loss && g[-1].last_seq + 1 == g->first_seq;
	struct segment loss = same_stream(g);
	int64_t lost = g->loss ? 0 : segment_unacked(g, spool_cursor(s, g->epoch));

	loss.first_seq = join ? g[-1].first_seq : g->first_seq;
	loss.last_seq = g->last_seq;
	loss.from_ns = join ? g[-1].from_ns : g->from_ns;
	loss.to_ns = g->to_ns;
	if (!write_loss(s, &loss, err)) {
		segment_fini(&loss);
		return false;
	}
	if (join) {
		/* the new file replaced the one before under its name: only its list entry goes */
		spool_remove(s, at - 1);
		at--;
		if (!spool_delete(s, at, NULL))
			spool_remove(s, at);
	} else {
		spool_remove(s, at);
	}
	spool_insert(s, loss);
	s->lost_batches += lost;
	return true;
}

/* ---- repair ---- */

/* A loss segment for the numbers first..last between two others; `like` names the stream. */
static bool
fill_hole(struct spool *s, const struct segment *like, uint64_t first_seq, uint64_t last_seq, int64_t from_ns,
          int64_t to_ns, struct err *err)
{
	struct segment loss = same_stream(like);

	loss.first_seq = first_seq;
	loss.last_seq = last_seq;
	loss.from_ns = from_ns < to_ns ? from_ns : to_ns;
	loss.to_ns = to_ns;
	if (!write_loss(s, &loss, err)) {
		segment_fini(&loss);
		return false;
	}
	s->lost_batches += segment_unacked(&loss, spool_cursor(s, loss.epoch));
	spool_insert(s, loss);
	return true;
}

/* Fills a hole between segment `at` and the one before it. Numbers before a stream's first segment were acknowledged and
 * deleted, so they are no hole. */
static bool
fill_before(struct spool *s, size_t at, struct err *err)
{
	const struct segment *g = &s->segments[at], *before = at > 0 ? g - 1 : NULL;

	if (!before || before->epoch != g->epoch || before->last_seq + 1 >= g->first_seq)
		return true;
	return fill_hole(s, g, before->last_seq + 1, g->first_seq - 1, before->to_ns, g->from_ns, err);
}

/* A hard link first, so that after a crash the file is still found under its own name and its sound beginning with it. On a
 * file system without links a crash loses that beginning. */
static bool
link_as_corrupt(struct spool *s, const char *path, struct err *err)
{
	owned(mem) char *aside = mem_printf("%s.corrupt", path);

	(void)unlink(aside);
	if (link(path, aside) != 0 && rename(path, aside) != 0)
		return err_errno(err, ERR_RETRY, errno, "cannot rename %s", path);
	s->corrupt_segments++;
	return true;
}

static struct segment
segment_of_scan(const struct segment_scan *scan)
{
	struct segment g = {.epoch = scan->head.epoch,
	                    .first_seq = scan->head.first_seq,
	                    .last_seq = scan->last_seq,
	                    .bytes = (int64_t)scan->sound_bytes,
	                    .from_ns = scan->from_ns,
	                    .to_ns = scan->to_ns,
	                    .acked_wall_ns = -1,
	                    .loss = scan->loss,
	                    .flags = scan->head.flags,
	                    .node = mem_strdup(scan->head.node)};

	memcpy(g.boot_id, scan->head.boot_id, sizeof(g.boot_id));
	return g;
}

/* Reads a segment's file and keeps its sound part: a torn tail is cut off; any other damage sets the file aside first. A file
 * without a sound batch is not listed. */
static bool
load_segment(struct spool *s, const char *path, uint64_t epoch, uint64_t first_seq, struct err *err)
{
	in_place(buf) struct buf file = {0};
	struct segment_scan scan = {0};
	struct err why;
	bool sound;

	buf_init(&file, FILE_MAX);
	if (!buf_read_file(&file, path, err))
		return false;
	sound = segment_scan(file.data, file.len, &scan, &why);
	/* written by a newer exporter: left alone for that one */
	if (!sound && why.kind == ERR_RETRY) {
		s->foreign_segments++;
		return true;
	}
	sound = sound && scan.head.epoch == epoch && scan.head.first_seq == first_seq;
	if (!sound || scan.end == SEGMENT_BAD) {
		if (!link_as_corrupt(s, path, err))
			return false;
		if (sound && scan.frames > 0 && !file_write_atomic(path, file.data, scan.sound_bytes, 0600, err))
			return false;
	} else if (scan.end == SEGMENT_TORN) {
		if (scan.frames > 0 && truncate(path, (off_t)scan.sound_bytes) != 0)
			return err_errno(err, ERR_RETRY, errno, "cannot cut %s", path);
		s->torn_tails++;
	}
	if (sound && scan.frames > 0)
		spool_insert(s, segment_of_scan(&scan));
	else
		(void)unlink(path); /* a head without batches, or already linked as .corrupt */
	return true;
}

/* Takes a segment out of the list without freeing it. */
static struct segment
detach(struct spool *s, size_t at)
{
	struct segment g = s->segments[at];

	s->segments[at].node = NULL;
	spool_remove(s, at);
	return g;
}

bool
spool_set_aside(struct spool *s, size_t at, struct err *err)
{
	owned(mem) char *path = segment_path(s, s->segments[at].epoch, s->segments[at].first_seq);
	size_t before = s->count;
	struct segment was;
	struct err why;
	uint64_t kept_to;
	bool ok = true;

	if (s->fd >= 0 && at == s->count - 1) {
		close(s->fd);
		s->fd = -1;
	}
	was = detach(s, at);
	/* a deleted file has no sound part */
	if (!load_segment(s, path, was.epoch, was.first_seq, &why) && why.kind != ERR_MISSING) {
		spool_insert(s, was);
		return err_set(err, ERR_RETRY, "%s", why.text);
	}
	kept_to = s->count == before ? s->segments[at].last_seq : was.first_seq - 1;
	if (kept_to < was.last_seq)
		ok = fill_hole(s, &was, kept_to + 1, was.last_seq, was.from_ns, was.to_ns, err);
	segment_fini(&was);
	return ok;
}

/* ---- the state file ---- */

/* Reads the number at *at up to a space or the end of the line, and moves behind it. */
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

/* A state that cannot be read counts as empty: batches are then sent again, and the aggregator recognises them. */
static void
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

/* Forgets streams that have no segments left. */
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
spool_save(struct spool *s, struct err *err)
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

/* ---- the directory ---- */

/* Sixteen digits, as NAME_FORMAT writes them. */
static bool
parse_hex(const char *at, uint64_t *ret)
{
	const char digits[] = "0123456789abcdef";

	*ret = 0;
	for (int i = 0; i < 16; i++) {
		const char *digit = at[i] ? strchr(digits, at[i]) : NULL;

		if (!digit)
			return false;
		*ret = *ret << 4 | (uint64_t)(digit - digits);
	}
	return *ret <= INT64_MAX;
}

static bool
parse_name(const char *name, uint64_t *ret_epoch, uint64_t *ret_seq)
{
	return strlen(name) == NAME_LEN && parse_hex(name, ret_epoch) && name[16] == '-' &&
	       parse_hex(name + 17, ret_seq) && strcmp(name + 33, ".seg") == 0 && *ret_seq >= 1;
}

/* A temporary file of an interrupted file_write_atomic: "<name>.XXXXXX". */
static bool
is_leftover(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot && strlen(dot) == 7 && (strncmp(name, "state.", 6) == 0 || strstr(name, ".seg.") != NULL);
}

static bool
load_name(struct spool *s, const char *name, struct err *err)
{
	owned(mem) char *path = mem_printf("%s/%s", s->options.dir, name);
	uint64_t epoch, first_seq;

	if (is_leftover(name))
		(void)unlink(path);
	else if (parse_name(name, &epoch, &first_seq))
		return load_segment(s, path, epoch, first_seq, err);
	return true;
}

/* The process ended inside spool_replace_by_loss: the loss batch and the segment it covers are both there. The loss stays. */
static bool
drop_duplicates(struct spool *s, struct err *err)
{
	for (size_t i = 1; i < s->count;) {
		const struct segment *g = &s->segments[i];

		if (g[-1].epoch != g->epoch || g[-1].last_seq < g->last_seq) {
			i++;
			continue;
		}
		if (!spool_delete(s, i, err))
			return false;
	}
	return true;
}

static int
name_order(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

bool
spool_load(struct spool *s, struct err *err)
{
	struct dirent **names = NULL;
	int count = scandir(s->options.dir, &names, NULL, name_order);
	bool ok = count >= 0;

	if (!ok)
		return err_errno(err, ERR_RETRY, errno, "cannot read the spool %s", s->options.dir);
	for (int i = 0; i < count; i++) {
		ok = ok && load_name(s, names[i]->d_name, err);
		free(names[i]);
	}
	free(names);
	if (!ok || !drop_duplicates(s, err))
		return false;
	state_load(s);
	for (size_t i = 0; i < s->count; i++)
		if (!fill_before(s, i, err))
			return false;
	return true;
}
