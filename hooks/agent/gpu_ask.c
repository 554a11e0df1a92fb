/* hooks/agent/gpu_ask.c - the quantities of a Slurm job. The rules are numbered in gpu_ask.h. */
#include "hooks/agent/gpu_ask.h"

#include <string.h>

#include "common/base/text.h"

#define ENTRY_SIZE 256

static const char *
skip_digits(const char *s)
{
	while (*s >= '0' && *s <= '9')
		s++;
	return s;
}

bool
gpu_type_is_mig(const char *type)
{
	const char *s = skip_digits(type), *memory;

	if (s == type || strncmp(s, "g.", 2) != 0)
		return false;
	memory = s + 2;
	s = skip_digits(memory);
	return s != memory && strncmp(s, "gb", 2) == 0 && (s[2] == '\0' || s[2] == '+' || s[2] == '.');
}

static bool
is_word(const char *s, const char *word, size_t n)
{
	return strlen(word) == n && strncmp(s, word, n) == 0;
}

static bool
is_gpu_name(const char *s, size_t n)
{
	return is_word(s, "gpu", n) || is_word(s, "mps", n) || is_word(s, "shard", n);
}

static bool
type_is_sound(const char *s)
{
	for (; *s; s++)
		if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') || *s == '.' ||
		      *s == '_' || *s == '-' || *s == '+'))
			return false;
	return true;
}

/* Copies one entry of a list, without spaces and without what is in parentheses, and gives the place behind its comma; NULL: the list has ended. */
static const char *
next_entry(const char *at, char out[ENTRY_SIZE], bool *ret_long)
{
	size_t n = 0;
	int depth = 0;

	*ret_long = false;
	if (*at == '\0')
		return NULL;
	for (; *at && (*at != ',' || depth > 0); at++) {
		depth += (*at == '(') - (*at == ')' && depth > 0);
		if (depth > 0 || *at == ')' || *at == ' ')
			continue;
		if (n < ENTRY_SIZE - 1)
			out[n++] = *at;
		else
			*ret_long = true;
	}
	out[n] = '\0';
	return *at == ',' ? at + 1 : at;
}

struct entry {
	bool is_gpu;
	int64_t count;
	char type[GPU_TYPE_SIZE];
};

/* Rule 1. */
static bool
read_entry(char *text, struct entry *ret, struct err *err)
{
	char *name = text, *rest, *count = NULL;
	size_t len;

	*ret = (struct entry){.count = 1};
	if (strncmp(name, "gres:", 5) == 0 || strncmp(name, "gres/", 5) == 0)
		name += 5;
	len = strcspn(name, ":=");
	if (is_word(name, "mps", len) || is_word(name, "shard", len))
		return err_set(err, ERR_INVALID,
		               "%.*s: parts of a GPU have no lease here; ask for whole GPUs or MIG instances", (int)len,
		               name);
	if (!is_word(name, "gpu", len)) {
		for (const char *at = text; *at; at++) {
			const char *word = at + strlen("gres");

			if (strncmp(at, "gres", strlen("gres")) != 0)
				continue;
			word += *word == ':' || *word == '/';
			if (is_gpu_name(word, strcspn(word, ":=")))
				return err_set(err, ERR_INVALID, "gres: \"%.64s\": write gres:gpu:TYPE:COUNT", text);
		}
		return true;
	}
	ret->is_gpu = true;
	rest = name + len;
	if (*rest == '\0')
		return true;
	count = strrchr(rest, '=');
	if (!count) {
		count = strrchr(rest, ':');
		/* "gpu:a100": a type alone */
		if (*skip_digits(count + 1) != '\0' || count[1] == '\0')
			count = NULL;
	}
	if (count) {
		*count++ = '\0';
		if (!text_to_i64(count, &ret->count) || ret->count < 0 || ret->count > GPU_COUNT_MAX)
			return err_set(err, ERR_INVALID, "gpu: \"%.32s\" is no number of GPUs from 0 to %d", count,
			               GPU_COUNT_MAX);
	}
	if (*rest != ':')
		return true;
	rest++;
	if (strlen(rest) >= GPU_TYPE_SIZE || !type_is_sound(rest))
		return err_set(err, ERR_INVALID, "gpu: \"%.64s\" is no type of GPU", rest);
	memcpy(ret->type, rest, strlen(rest) + 1);
	return true;
}

/* Rule 2: all of a job's entries have one type. */
static bool
agree_on_type(const char *type, struct gpu_ask *ask, struct err *err)
{
	if (type[0] == '\0' || strcmp(ask->type, type) == 0)
		return true;
	if (ask->type[0] != '\0')
		return err_set(err, ERR_INVALID, "GPUs of two types, %s and %s, in one job: submit one job for each",
		               ask->type, type);
	memcpy(ask->type, type, GPU_TYPE_SIZE);
	return true;
}

/* Adds up the GPUs of one TRES text. */
static bool
read_list(const char *list, int64_t *ret_count, struct gpu_ask *ask, struct err *err)
{
	char text[ENTRY_SIZE];
	bool too_long;

	*ret_count = 0;
	for (const char *at = list ? list : ""; (at = next_entry(at, text, &too_long));) {
		struct entry e;

		if (too_long)
			return err_set(err, ERR_INVALID, "gres: an entry has more than %d bytes", ENTRY_SIZE - 1);
		if (!read_entry(text, &e, err))
			return false;
		if (!e.is_gpu || e.count == 0)
			continue;
		if (!agree_on_type(e.type, ask, err))
			return false;
		*ret_count += e.count;
		if (*ret_count > GPU_COUNT_MAX)
			return err_set(err, ERR_INVALID, "gpu: more than %d GPUs", GPU_COUNT_MAX);
	}
	return true;
}

static bool
times(int64_t each, int64_t of, int64_t *ret, struct err *err)
{
	if (of < 1)
		of = 1;
	if (of > GPU_COUNT_MAX || each * of > GPU_COUNT_MAX)
		return err_set(err, ERR_INVALID, "gpu: more than %d GPUs", GPU_COUNT_MAX);
	*ret = each * of;
	return true;
}

/* Rule 5. */
static bool
ask_exclusive(int64_t node_count, const struct node_gpus *nodes, struct gpu_ask *ask, struct err *err)
{
	if (!nodes)
		return err_set(err, ERR_INVALID,
		               "exclusive: how many GPUs a node of this partition has is not known yet; try again");
	if (nodes->mixed)
		return err_set(
			err, ERR_INVALID,
			"exclusive: the nodes of this partition have different GPUs; name GPUs, or a partition of equal nodes");
	if (nodes->count == 0 && ask->gpus == 0)
		return true;
	if (!agree_on_type(nodes->type, ask, err) || !times(nodes->count, node_count, &ask->gpus, err))
		return false;
	ask->per_node = nodes->count;
	return true;
}

bool
gpu_ask_parse(const struct gpu_ask_text *t, const struct node_gpus *nodes, struct gpu_ask *ret, struct err *err)
{
	int64_t job = 0, node = 0, socket = 0, task = 0;
	int64_t node_count = t->max_nodes > t->min_nodes ? t->max_nodes : t->min_nodes;
	struct gpu_ask ask = {0};

	if (!read_list(t->per_job, &job, &ask, err) || !read_list(t->per_node, &node, &ask, err) ||
	    !read_list(t->per_socket, &socket, &ask, err) || !read_list(t->per_task, &task, &ask, err))
		return false;
	if (socket > 0) /* 6 */
		return err_set(err, ERR_INVALID, "gpus-per-socket: say --gpus-per-node or --gpus instead");
	if (job > 0) /* 3 */
		ask.gpus = job;
	else if ((node > 0 && !times(node, node_count, &ask.gpus, err)) ||
	         (node == 0 && task > 0 && !times(task, t->tasks > node_count ? t->tasks : node_count, &ask.gpus, err)))
		return false;
	if (node > 0 && ask.gpus % node == 0) /* 4 */
		ask.per_node = node;
	if (t->exclusive && !ask_exclusive(node_count, nodes, &ask, err))
		return false;
	if (ask.gpus > 0 && ask.type[0] == '\0' && nodes && !nodes->mixed) /* 2 */
		memcpy(ask.type, nodes->type, GPU_TYPE_SIZE);
	*ret = ask;
	return true;
}

bool
node_gpus_add(const char *gres, bool first, struct node_gpus *into, struct err *err)
{
	struct node_gpus here = {0};
	char text[ENTRY_SIZE];
	bool too_long;

	for (const char *at = gres; (at = next_entry(at, text, &too_long));) {
		struct entry e;

		/* mps and shard are other views of the same GPUs */
		if (too_long || strncmp(text, "gpu", 3) != 0)
			continue;
		if (!read_entry(text, &e, err))
			return false;
		if (!e.is_gpu || e.count == 0)
			continue;
		here.mixed = here.mixed || (here.count > 0 && strcmp(here.type, e.type) != 0);
		here.count += e.count;
		memcpy(here.type, e.type, GPU_TYPE_SIZE);
	}
	if (first)
		*into = here;
	else if (here.mixed || here.count != into->count || strcmp(here.type, into->type) != 0)
		into->mixed = true;
	if (into->mixed)
		into->type[0] = '\0';
	return true;
}
