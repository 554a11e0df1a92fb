/* Any text as a TRES request, as a node's GRES, as a line of squeue, as a mark and as a question of job_submit.lua: what is taken is in its limits, and a mark is written
 * as it was read. */
#include <string.h>

#include "hooks/agent/hook_desk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_ask(const char *text)
{
	static const struct node_gpus nodes = {.count = 4, .type = "a100"};
	const struct gpu_ask_text ways[] = {{.per_job = text},
	                                    {.per_node = text, .min_nodes = 2, .max_nodes = 3},
	                                    {.per_task = text, .tasks = 5},
	                                    {.per_socket = text},
	                                    {.per_node = text, .exclusive = true}};

	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		struct gpu_ask ask = {0};
		struct err err = {0};

		if (!gpu_ask_parse(&ways[i], &nodes, &ask, &err)) {
			ASSERT(err.kind == ERR_INVALID && err.text[0]);
			continue;
		}
		ASSERT(ask.gpus >= 0 && ask.gpus <= GPU_COUNT_MAX && ask.per_node >= 0 && ask.per_node <= ask.gpus);
		ASSERT(ask.per_node == 0 || ask.gpus % ask.per_node == 0);
		ASSERT(strlen(ask.type) < GPU_TYPE_SIZE);
	}
}

static void
check_node(const char *text)
{
	struct node_gpus n = {0};

	if (node_gpus_add(text, true, &n, NULL))
		ASSERT(n.count >= 0 && strlen(n.type) < GPU_TYPE_SIZE && (!n.mixed || n.type[0] == '\0'));
}

static void
check_job(const char *text)
{
	in_place(job_list) struct job_list l = {0};
	struct partitions none = {0};
	struct request_name name;
	char id[REQUEST_ID_SIZE];
	struct err err = {0};

	if (!job_list_add(&l, text, &none, 0, &err)) {
		ASSERT(err.kind == ERR_INVALID && err.text[0]);
		return;
	}
	if (l.count == 0)
		return;
	ASSERT(l.at[0].id > 0 && l.at[0].key[0] && (l.at[0].ask.gpus > 0 || l.at[0].fault[0]));
	job_request_id(&l.at[0], "c", id);
	(void)request_id_parse(id, "c", &name);
}

static void
check_mark(const char *text)
{
	in_place(buf) struct buf written = {0};
	struct mark m = mark_parse(text), again;

	if (m.word == MARK_NONE)
		return;
	buf_init(&written, 1024);
	mark_write(&m, text, &written);
	again = mark_parse(buf_text(&written));
	ASSERT(!written.over && memcmp(&m, &again, sizeof(m)) == 0);
}

static void
check_question(const char *text)
{
	static struct hook_desk *desk;
	owned(mem) char *question = mem_strdup(text);
	in_place(buf) struct buf answer = {0};

	if (!desk)
		desk = hook_desk_new(UNATTRIBUTED_DENY);
	buf_init(&answer, HOOK_LINE_MAX);
	hook_desk_answer(desk, question, 1, &answer);
	ASSERT(!answer.over && !memchr(buf_text(&answer), '\n', answer.len));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* a copy of exactly this size, so that a read beyond it is seen */
	owned(mem) char *text = mem_strndup(size > 0 ? (const char *)data : "", size);

	check_ask(text);
	check_node(text);
	check_job(text);
	check_mark(text);
	check_question(text);
	return 0;
}
