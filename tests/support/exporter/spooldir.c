/* tests/support/exporter/spooldir.c - a private directory for a spool, and batches to put into it. */
#include "tests/support/exporter/spooldir.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/gz.h"
#include "common/base/time.h"

void
spooldir_init(struct spooldir *d)
{
	snprintf(d->path, sizeof(d->path), "%s/tollgate-spool-XXXXXX",
	         access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	ASSERT(mkdtemp(d->path));
}

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void
spooldir_fini(struct spooldir *d)
{
	(void)nftw(d->path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int
by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static bool
ends_with(const char *name, const char *suffix)
{
	size_t n = strlen(name), m = strlen(suffix);

	return n >= m && strcmp(name + n - m, suffix) == 0;
}

/* Calls fn for each file with this ending, by name. */
static void
each_file(const struct spooldir *d, const char *suffix, void (*fn)(const char *name, void *arg), void *arg)
{
	struct dirent **names = NULL;
	int n = scandir(d->path, &names, NULL, by_name);

	ASSERT(n >= 0);
	for (int i = 0; i < n; i++) {
		if (names[i]->d_name[0] != '.' && ends_with(names[i]->d_name, suffix))
			fn(names[i]->d_name, arg);
		free(names[i]);
	}
	free(names);
}

struct copy_job {
	const struct spooldir *from, *to;
};

static void
copy_one(const char *name, void *arg)
{
	const struct copy_job *job = arg;
	owned(mem) char *from = mem_printf("%s/%s", job->from->path, name);
	owned(mem) char *to = mem_printf("%s/%s", job->to->path, name);
	in_place(buf) struct buf text;
	struct err err;

	buf_init(&text, 1 << 28);
	ASSERT(buf_read_file(&text, from, &err));
	ASSERT(file_write_atomic(to, buf_text(&text), text.len, 0600, &err));
}

void
spooldir_copy(const struct spooldir *from, struct spooldir *to)
{
	spooldir_init(to);
	each_file(from, "", copy_one, &(struct copy_job){from, to});
}

struct pick {
	size_t left, count;
	char *name;
};

static void
pick_one(const char *name, void *arg)
{
	struct pick *p = arg;

	p->count++;
	if (p->left-- == 0)
		p->name = mem_strdup(name);
}

char *
spooldir_segment(const struct spooldir *d, size_t n)
{
	struct pick p = {.left = n};

	each_file(d, ".seg", pick_one, &p);
	owned(mem) char *name = p.name;

	return name ? mem_printf("%s/%s", d->path, name) : NULL;
}

size_t
spooldir_count(const struct spooldir *d, const char *suffix)
{
	struct pick p = {.left = SIZE_MAX};

	each_file(d, suffix, pick_one, &p);
	return p.count;
}

struct spool_options
spooldir_options(const struct spooldir *d)
{
	return (struct spool_options){.dir = d->path,
	                              .cap_bytes = INT64_C(1) << 30,
	                              .segment_bytes = 1000,
	                              .keep_ns = NS_PER_DAY,
	                              .node = "gn1",
	                              .boot_id = {1, 2, 3},
	                              .flags = WIRE_SIMULATED,
	                              .exporter_version = "test"};
}

int64_t
spooldir_from_ns(uint64_t seq)
{
	return SPOOLDIR_WALL + (int64_t)seq * NS_PER_MIN;
}

/* The filler is a text that gzip cannot shorten. */
void
spooldir_batch_in(uint32_t version, const struct spool_options *o, uint64_t epoch, uint64_t seq, size_t filler,
                  struct buf *out)
{
	owned(wire_batch) struct wire_batch *b = wire_batch_new();
	in_place(buf) struct buf body;
	char text[WIRE_MAX_TEXT + 1] = "v";
	uint64_t x = epoch * 1000003 + seq + 1;
	struct err err;

	for (size_t i = 0; i < filler && i < WIRE_MAX_TEXT; i++) {
		x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		text[i] = (char)('!' + (x >> 33) % 90);
	}
	b->kind = WIRE_USAGE;
	b->node = mem_strdup(o->node);
	memcpy(b->boot_id, o->boot_id, sizeof(b->boot_id));
	b->epoch = epoch;
	b->seq = b->last_seq = seq;
	b->flags = o->flags;
	b->exporter_version = mem_strdup(text);
	b->from_ns = spooldir_from_ns(seq);
	b->to_ns = b->from_ns + NS_PER_MIN;
	b->version = version < WIRE_VERSION ? version : WIRE_VERSION;
	buf_init(&body, WIRE_MAX_BODY);
	ASSERT(wire_check(b, &err) && wire_encode(b, &body, &err));
	body.data[3] = (char)version; /* behind TGW */
	ASSERT(gz_compress(body.data, body.len, 6, out, &err));
}

void
spooldir_batch(const struct spool_options *o, uint64_t epoch, uint64_t seq, size_t filler, struct buf *out)
{
	spooldir_batch_in(WIRE_VERSION, o, epoch, seq, filler, out);
}
