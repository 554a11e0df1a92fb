/* hooks/agent/hook_desk.c - answers to job_submit.lua. The rules are numbered in hook_desk.h. */
#include "hooks/agent/hook_desk.h"

#include <pthread.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/text.h"

#define FIELDS_MAX 64u
#define SHAPES_MAX 4096u /* beyond it all are forgotten: they are learned again */
#define HOLDS_MAX 4096u

const char *const hook_result_names[HOOK_RESULTS] = {"pass", "hold", "refuse", "malformed"};
const char *const hook_verb_names[HOOK_VERBS] = {"submit", "modify", "other"};

struct shape {
	char account[JOB_NAME_SIZE], user[JOB_NAME_SIZE];
	struct gpu_ask ask;
	bool preemptible;
	enum shape_verdict verdict;
	int64_t until_ns;
	char text[SHAPE_TEXT_SIZE];
};

struct hook_desk {
	pthread_mutex_t lock;
	enum unattributed unattributed;
	struct partitions partitions;
	struct shape *shapes;
	size_t shape_count, shape_cap;
	struct hash by_shape;
	struct user_hold *holds;
	size_t hold_count, hold_cap;
	int64_t counts[HOOK_VERBS][HOOK_RESULTS];
};

struct hook_desk *
hook_desk_new(enum unattributed unattributed)
{
	struct hook_desk *d = mem_alloc(sizeof(*d));

	pthread_mutex_init(&d->lock, NULL);
	d->unattributed = unattributed;
	return d;
}

void
hook_desk_free(struct hook_desk *d)
{
	if (!d)
		return;
	partitions_fini(&d->partitions);
	mem_free(d->shapes);
	hash_fini(&d->by_shape);
	mem_free(d->holds);
	pthread_mutex_destroy(&d->lock);
	mem_free(d);
}

void
hook_desk_partitions(struct hook_desk *d, struct partitions *p)
{
	pthread_mutex_lock(&d->lock);
	partitions_fini(&d->partitions);
	d->partitions = *p;
	*p = (struct partitions){0};
	pthread_mutex_unlock(&d->lock);
}

/* ---- shapes ---- */

static uint64_t
shape_key(const struct job *j)
{
	uint64_t key = hash_text(hash_text(hash_text(HASH_START, j->account), j->user), j->ask.type);

	key = hash_number(hash_number(key, (uint64_t)j->ask.gpus), (uint64_t)j->ask.per_node);
	return hash_number(key, job_is_preemptible(j));
}

static struct shape *
find_shape(struct hook_desk *d, const struct job *j)
{
	uint64_t key = shape_key(j);
	size_t slot;

	for (size_t at = hash_first(&d->by_shape, key, &slot); at != HASH_NONE;
	     at = hash_next(&d->by_shape, key, &slot)) {
		struct shape *s = &d->shapes[at];

		if (strcmp(s->account, j->account) == 0 && strcmp(s->user, j->user) == 0 &&
		    strcmp(s->ask.type, j->ask.type) == 0 && s->ask.gpus == j->ask.gpus &&
		    s->ask.per_node == j->ask.per_node && s->preemptible == job_is_preemptible(j))
			return s;
	}
	return NULL;
}

static struct shape *
add_shape(struct hook_desk *d, const struct job *j)
{
	struct shape *s;

	if (d->shape_count >= SHAPES_MAX) {
		d->shape_count = 0;
		hash_clear(&d->by_shape);
	}
	array_room(d->shapes, d->shape_count, d->shape_cap);
	s = &d->shapes[d->shape_count];
	*s = (struct shape){.ask = j->ask, .preemptible = job_is_preemptible(j)};
	memcpy(s->account, j->account, sizeof(s->account));
	memcpy(s->user, j->user, sizeof(s->user));
	hash_add(&d->by_shape, shape_key(j), d->shape_count++);
	return s;
}

void
hook_desk_learn(struct hook_desk *d, const struct job *j, enum shape_verdict v, const char *text, int64_t until_ns)
{
	struct shape *s;

	pthread_mutex_lock(&d->lock);
	s = find_shape(d, j);
	if (!s)
		s = add_shape(d, j);
	s->verdict = v;
	s->until_ns = until_ns;
	text_fit(s->text, sizeof(s->text), text);
	pthread_mutex_unlock(&d->lock);
}

static enum shape_verdict
verdict_of(const struct shape *s, int64_t now_ns)
{
	return s && s->until_ns > now_ns ? s->verdict : SHAPE_UNKNOWN;
}

enum shape_verdict
hook_desk_known(struct hook_desk *d, const struct job *j, int64_t now_ns, char ret_text[SHAPE_TEXT_SIZE])
{
	const struct shape *s;
	enum shape_verdict v;

	pthread_mutex_lock(&d->lock);
	s = find_shape(d, j);
	v = verdict_of(s, now_ns);
	memset(ret_text, 0, SHAPE_TEXT_SIZE);
	if (v != SHAPE_UNKNOWN)
		memcpy(ret_text, s->text, SHAPE_TEXT_SIZE);
	pthread_mutex_unlock(&d->lock);
	return v;
}

/* ---- questions ---- */

struct question {
	const char *verb;
	struct {
		const char *name, *value;
	} fields[FIELDS_MAX];
	size_t count;
};

static int
hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

/* In place. A NUL would end the text elsewhere, and is refused. */
static bool
decode(char *s)
{
	char *to = s;

	for (; *s; s++, to++) {
		if (*s != '%') {
			*to = *s;
			continue;
		}
		int high = hex_digit(s[1]), low = high < 0 ? -1 : hex_digit(s[2]);

		if (low < 0 || (high == 0 && low == 0))
			return false;
		*to = (char)(high * 16 + low);
		s += 2;
	}
	*to = '\0';
	return true;
}

/* Cuts the line, which must outlive the question. */
static bool
read_question(char *line, struct question *q)
{
	*q = (struct question){.verb = line};
	for (char *tab = strchr(line, '\t'); tab;) {
		char *name = tab + 1, *equals;

		*tab = '\0';
		tab = strchr(name, '\t');
		if (tab)
			*tab = '\0';
		equals = strchr(name, '=');
		if (!equals || q->count == FIELDS_MAX)
			return false;
		*equals = '\0';
		if (!decode(equals + 1))
			return false;
		q->fields[q->count].name = name;
		q->fields[q->count++].value = equals + 1;
	}
	return q->verb[0] != '\0';
}

static const char *
field(const struct question *q, const char *name)
{
	for (size_t i = 0; i < q->count; i++)
		if (strcmp(q->fields[i].name, name) == 0)
			return q->fields[i].value;
	return "";
}

static int64_t
number(const struct question *q, const char *name, int64_t otherwise)
{
	int64_t value;

	return text_to_i64(field(q, name), &value) ? value : otherwise;
}

static bool
is_set(const struct question *q, const char *name)
{
	return strcmp(field(q, name), "1") == 0;
}

/* ---- answers ---- */

static void
encode(struct buf *out, const char *s)
{
	static const char digits[] = "0123456789ABCDEF";

	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		    strchr("._:/,@+-", c)) {
			buf_char(out, *s);
			continue;
		}
		buf_char(out, '%');
		buf_char(out, digits[c >> 4]);
		buf_char(out, digits[c & 15]);
	}
}

static enum hook_result
answer(struct buf *out, enum hook_result result, const char *before, const char *text)
{
	buf_str(out, hook_result_names[result]);
	buf_char(out, '\t');
	encode(out, before);
	encode(out, text);
	return result;
}

/* Slurm writes accounts in lower case once it has the job. */
static void
copy_lower(char *out, size_t size, const char *s)
{
	size_t i = 0;

	memset(out, 0, size);
	for (; s[i] && i < size - 1; i++)
		out[i] = s[i] >= 'A' && s[i] <= 'Z' ? (char)(s[i] - 'A' + 'a') : s[i];
}

static void
add_mark(struct buf *out, const struct question *q)
{
	struct mark m = {.word = MARK_WAIT,
	                 .user_hold = is_set(q, "priority_hold"),
	                 .signal = number(q, "signal", 0),
	                 .signal_batch = is_set(q, "signal_batch"),
	                 .category = "submitted"};
	in_place(buf) struct buf mark = {0};

	buf_init(&mark, 512);
	mark_write(&m, m.user_hold ? "the user holds it" : "its quota is being asked for", &mark);
	buf_str(out, "\tadmin_comment=");
	encode(out, buf_text(&mark));
}

/* Rules 1 and 2. */
static bool
read_ask(const struct hook_desk *d, const struct question *q, const char *partition, struct gpu_ask *ret,
         struct err *err)
{
	const char *per_node = field(q, "tres_per_node");
	struct gpu_ask_text t = {.per_job = field(q, "tres_per_job"),
	                         .per_node = *per_node ? per_node : field(q, "gres"),
	                         .per_socket = field(q, "tres_per_socket"),
	                         .per_task = field(q, "tres_per_task"),
	                         .min_nodes = number(q, "min_nodes", 0),
	                         .max_nodes = number(q, "max_nodes", 0),
	                         .tasks = number(q, "tasks", 0),
	                         .exclusive = is_set(q, "exclusive")};

	if (!gpu_ask_parse(&t, partitions_find(&d->partitions, partition), ret, err))
		return false;
	return ret->gpus > 0 || number(q, "tasks_per_gpu", 0) == 0 ||
	       err_set(err, ERR_INVALID, "ntasks-per-gpu: say how many GPUs, with --gpus");
}

static enum hook_result
answer_submit(struct hook_desk *d, const struct question *q, int64_t now_ns, struct buf *out)
{
	struct job j = {.batch = !is_set(q, "interactive"), .requeue = number(q, "requeue", 1) != 0};
	const struct shape *s;
	struct err err = {0};

	if (!read_ask(d, q, field(q, "partition"), &j.ask, &err)) /* 2 */
		return answer(out, HOOK_REFUSE, "Tollgate: ", err.text);
	if (j.ask.gpus == 0) /* 1 */
		return answer(out, HOOK_PASS, "", "");
	if (*field(q, "het_index"))
		return answer(out, HOOK_REFUSE, "Tollgate: ",
		              "GPUs in a heterogeneous job cannot be leased; submit one job for each kind of node");
	copy_lower(j.account, sizeof(j.account), field(q, "account"));
	text_fit(j.user, sizeof(j.user), field(q, "user"));
	s = find_shape(d, &j);
	switch (verdict_of(s, now_ns)) {
	case SHAPE_REJECTED: /* 3 */ return answer(out, HOOK_REFUSE, "Tollgate: ", s->text);
	case SHAPE_NOBODY: /* 4 */
		if (d->unattributed == UNATTRIBUTED_PASS)
			return answer(out, HOOK_PASS, "", "");
		return answer(out, HOOK_REFUSE, "Tollgate: ", s->text);
	case SHAPE_UNKNOWN: break;
	}
	answer(out, HOOK_HOLD, "", ""); /* 5 */
	add_mark(out, q);
	return HOOK_HOLD;
}

/* Rule 6. */
static void
remember_hold(struct hook_desk *d, const struct question *q, bool hold)
{
	if (d->hold_count >= HOLDS_MAX)
		return;
	array_room(d->holds, d->hold_count, d->hold_cap);
	d->holds[d->hold_count++] = (struct user_hold){.job = number(q, "job", 0),
	                                               .array_id = number(q, "array_job", 0),
	                                               .array_task = number(q, "array_task", -1),
	                                               .hold = hold};
}

static enum hook_result
answer_modify(struct hook_desk *d, const struct question *q, struct buf *out)
{
	static const char *const request[] = {
		"account",         "qos",        "begin",        "min_nodes",     "max_nodes",
		"tasks",           "features",   "tres_per_job", "tres_per_node", "tres_per_task",
		"tres_per_socket", "partition",  "gres",         "tasks_per_gpu", "sockets_per_node",
		"nodes",           "reservation"};
	struct mark m = mark_parse(field(q, "admin_comment"));
	const char *hold = field(q, "hold");

	if (m.word == MARK_NONE) { /* 8 */
		const char *partition = field(q, "partition");
		struct gpu_ask ask = {0};
		struct err err = {0};

		if (read_ask(d, q, *partition ? partition : field(q, "was_partition"), &ask, &err) && ask.gpus == 0)
			return answer(out, HOOK_PASS, "", "");
		return answer(
			out, HOOK_REFUSE, "",
			"a job that was submitted without GPUs gets none by a change: cancel it, and submit another");
	}
	if (m.word == MARK_RUN || m.word == MARK_DRAIN) { /* 7 */
		for (size_t i = 0; i < ARRAY_LEN(request); i++)
			if (*field(q, request[i]))
				return answer(
					out, HOOK_REFUSE, request[i],
					" cannot change once the job was admitted: cancel it, and submit another");
		if (m.word == MARK_RUN)
			return answer(out, HOOK_PASS, "", "");
	}
	if (strcmp(hold, "1") == 0)
		remember_hold(d, q, true);
	if (strcmp(hold, "0") == 0) {
		remember_hold(d, q, false);
		return answer(out, HOOK_REFUSE, "", "the job waits for its quota, and is released when it is admitted");
	}
	return answer(out, HOOK_PASS, "", "");
}

void
hook_desk_answer(struct hook_desk *d, char *question, int64_t now_ns, struct buf *out)
{
	struct question q;
	enum hook_verb verb = HOOK_OTHER;
	enum hook_result result = HOOK_MALFORMED;

	pthread_mutex_lock(&d->lock);
	if (read_question(question, &q)) {
		if (strcmp(q.verb, "submit") == 0) {
			verb = HOOK_SUBMIT;
			result = answer_submit(d, &q, now_ns, out);
		} else if (strcmp(q.verb, "modify") == 0) {
			verb = HOOK_MODIFY;
			result = answer_modify(d, &q, out);
		}
	}
	d->counts[verb][result]++;
	pthread_mutex_unlock(&d->lock);
}

struct user_hold *
hook_desk_take_holds(struct hook_desk *d, size_t *ret_count)
{
	struct user_hold *holds;

	pthread_mutex_lock(&d->lock);
	holds = take(d->holds);
	*ret_count = d->hold_count;
	d->hold_count = d->hold_cap = 0;
	pthread_mutex_unlock(&d->lock);
	return holds;
}

void
hook_desk_counts(struct hook_desk *d, int64_t ret[HOOK_VERBS][HOOK_RESULTS])
{
	pthread_mutex_lock(&d->lock);
	memcpy(ret, d->counts, sizeof(d->counts));
	pthread_mutex_unlock(&d->lock);
}
