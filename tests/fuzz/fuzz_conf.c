/* tests/fuzz/fuzz_conf.c - any bytes as a configuration file followed, after a NUL, by the words of a command line, each
 * ended by a NUL. Whatever is accepted lies within the table's ranges. */
#include <string.h>

#include "common/conf/conf.h"
#include "common/base/time.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct options {
	char *listen;
	char *token_file;
	int64_t workers;
	int64_t interval_ns;
	int64_t spool_bytes;
	bool compress;
	int source;
};

static const char *const sources[] = {"nvml", "dcgm", NULL};
static const struct conf_option table[] = {
	{"listen", CONF_STRING, offsetof(struct options, listen), "127.0.0.1:9401", 0, 0, NULL, "", "Address"},
	{"token-file", CONF_PATH, offsetof(struct options, token_file), NULL, 0, 0, NULL, "", "Token"},
	{"workers", CONF_INT, offsetof(struct options, workers), "4", 1, 64, NULL, "threads", "Workers"},
	{"sample-interval", CONF_DURATION, offsetof(struct options, interval_ns), "1s", 100 * NS_PER_MS, NS_PER_MIN,
         NULL, "", "Interval"},
	{"spool-max-bytes", CONF_BYTES, offsetof(struct options, spool_bytes), "1GiB", 1 << 20, INT64_MAX, NULL, "",
         "Spool"},
	{"compress", CONF_BOOL, offsetof(struct options, compress), "true", 0, 0, NULL, "", "Compress"},
	{"source", CONF_ENUM, offsetof(struct options, source), "nvml", 0, 0, sources, "", "Source"},
};
static const struct conf_program program = {
	.name = "fuzz", .summary = "Fuzz", .options = table, .count = ARRAY_LEN(table)};

static void
assert_within_ranges(const struct options *o)
{
	char host[64];
	struct err err;
	uint16_t port;

	ASSERT(o->listen && o->listen[0]);
	ASSERT(!o->token_file || o->token_file[0]);
	ASSERT(o->workers >= 1 && o->workers <= 64);
	ASSERT(o->interval_ns >= 100 * NS_PER_MS && o->interval_ns <= NS_PER_MIN);
	ASSERT(o->spool_bytes >= 1 << 20);
	ASSERT(o->source == 0 || o->source == 1);
	(void)!addr_parse(o->listen, host, sizeof(host), &port, &err);
}

/* --config would read files of this machine. */
static bool
is_allowed(const char *word)
{
	return strncmp(word, "--config", 8) != 0;
}

static void
load_words(char *words, size_t size)
{
	char name[] = "fuzz";
	char *argv[16] = {name};
	struct options o = {.workers = 0};
	enum conf_action action = CONF_RUN;
	in_place(buf) struct buf text;
	bool check = false;
	struct err err;
	int argc = 1;

	for (char *end = words + size; words < end && argc < 15; words += strlen(words) + 1)
		if (is_allowed(words))
			argv[argc++] = words;
	buf_init(&text, 1 << 20);
	if (conf_load(&program, argc, argv, &o, &action, &check, &text, &err) && action == CONF_RUN)
		assert_within_ranges(&o);
	conf_free(&program, &o);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t file_len = strnlen((const char *)data, size);
	owned(mem) char *rest = mem_alloc(size - file_len + 1);
	struct options o = {.workers = 0};
	struct err err;

	ASSERT(conf_set_defaults(&program, &o, &err));
	if (conf_load_text(&program, "c.yaml", (const char *)data, file_len, &o, &err))
		assert_within_ranges(&o);
	conf_free(&program, &o);
	if (file_len < size) {
		memcpy(rest, data + file_len + 1, size - file_len - 1);
		load_words(rest, size - file_len - 1);
	}
	return 0;
}
