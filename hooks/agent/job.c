/* hooks/agent/job.c - jobs of Slurm's queue, their marks, and the names of their requests. The language of marks is in job.h. */
#include "hooks/agent/job.h"

#include <stdio.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/base/text.h"

static const char *const words[] = {"", "wait", "run", "back", "drain"};

/* Reads digits from *at, and moves it behind them. */
static bool
take_number(const char **at, int64_t max, int64_t *ret)
{
	int64_t value = 0;

	if (**at < '0' || **at > '9')
		return false;
	for (; **at >= '0' && **at <= '9'; ++*at) {
		value = value * 10 + (**at - '0');
		if (value > max)
			return false;
	}
	*ret = value;
	return true;
}

static bool
take_word(const char **at, const char *word)
{
	size_t n = strlen(word);

	if (strncmp(*at, word, n) != 0)
		return false;
	*at += n;
	return true;
}

void
text_fit(char *out, size_t size, const char *text)
{
	memset(out, 0, size);
	if (text)
		memcpy(out, text, strnlen(text, size - 1));
}

/* ---- marks ---- */

struct mark
mark_parse(const char *admin_comment)
{
	const char *s = admin_comment;
	struct mark m = {0}, none = {0};
	size_t n;

	if (!take_word(&s, "tollgate "))
		return none;
	for (size_t i = MARK_WAIT; i < ARRAY_LEN(words) && m.word == MARK_NONE; i++) {
		n = strlen(words[i]);
		if (strncmp(s, words[i], n) == 0 && s[n] == '.') {
			m.word = (enum mark_word)i;
			s += n + 1;
		}
	}
	if (m.word == MARK_NONE || !take_number(&s, INT32_MAX, &m.attempt))
		return none;
	m.user_hold = take_word(&s, "u");
	if (*s == 'b' || *s == 's') {
		m.signal_batch = *s++ == 'b';
		if (!take_number(&s, 64, &m.signal))
			return none;
	}
	if (*s == '\0')
		return m;
	n = *s == ' ' ? strcspn(s + 1, ": ") : 0;
	if (*s != ' ' || n >= sizeof(m.category))
		return none;
	memcpy(m.category, s + 1, n);
	return m;
}

void
mark_write(const struct mark *m, const char *text, struct buf *out)
{
	size_t n = strlen(text);

	buf_printf(out, "tollgate %s.%" PRId64 "%s", words[m->word], m->attempt, m->user_hold ? "u" : "");
	if (m->signal > 0)
		buf_printf(out, "%c%" PRId64, m->signal_batch ? 'b' : 's', m->signal);
	buf_printf(out, " %s: ", m->category);
	if (n > MARK_TEXT_MAX) {
		n = MARK_TEXT_MAX;
		while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
			n--;
	}
	for (size_t i = 0; i < n; i++)
		buf_char(out, (unsigned char)text[i] < ' ' || text[i] == 0x7f ? ' ' : text[i]);
}

/* ---- partitions ---- */

void
partitions_fini(struct partitions *p)
{
	mem_free(p->at);
}

static struct partition *
find_partition(const struct partitions *p, const char *name, size_t n)
{
	for (size_t i = 0; i < p->count; i++)
		if (strlen(p->at[i].name) == n && strncmp(p->at[i].name, name, n) == 0)
			return &p->at[i];
	return NULL;
}

bool
partitions_add(struct partitions *p, const char *line, struct err *err)
{
	size_t n = strcspn(line, "|");
	struct partition *found;
	bool first;

	if (line[n] != '|' || n == 0 || n >= PARTITION_SIZE)
		return err_set(err, ERR_INVALID, "sinfo: \"%.80s\" is no partition with its GRES", line);
	found = find_partition(p, line, n);
	first = !found;
	if (first) {
		array_room(p->at, p->count, p->cap);
		found = &p->at[p->count++];
		*found = (struct partition){0};
		memcpy(found->name, line, n);
	}
	return node_gpus_add(line + n + 1, first, &found->gpus, err);
}

const struct node_gpus *
partitions_find(const struct partitions *p, const char *names)
{
	const struct node_gpus *all = NULL;

	for (const char *at = names; *at;) {
		size_t n = strcspn(at, ",");
		const struct partition *one = find_partition(p, at, n);

		if (!one || (all && (all->count != one->gpus.count || strcmp(all->type, one->gpus.type) != 0)))
			return NULL;
		all = &one->gpus;
		at += n + (at[n] == ',');
	}
	return all;
}

/* ---- the queue ---- */

enum column {
	COL_ARRAY_JOB,
	COL_ARRAY_TASK,
	COL_JOB,
	COL_STATE,
	COL_PRIORITY,
	COL_RESTARTS,
	COL_REQUEUE,
	COL_BATCH,
	COL_UID,
	COL_NICE,
	COL_NODES,
	COL_MAX_NODES,
	COL_TASKS,
	COL_SHARING,
	COL_SUBMITTED,
	COL_ELIGIBLE,
	COL_TIME_LIMIT,
	COL_HET_JOB,
	COL_ACCOUNT,
	COL_USER,
	COL_PARTITION,
	COL_PER_JOB,
	COL_PER_NODE,
	COL_PER_SOCKET,
	COL_PER_TASK,
	COL_DEPENDENCY,
	COL_MARK,
	COLS
};

void
job_list_fini(struct job_list *l)
{
	mem_free(l->at);
}

/* Cuts a copy of the line into its columns, without the spaces around them. */
static bool
split(char *line, char *cols[COLS])
{
	for (int i = 0; i < COLS; i++) {
		char *end = i < COLS - 1 ? strchr(line, '|') : line + strlen(line);

		if (!end)
			return false;
		cols[i] = line;
		line = i < COLS - 1 ? end + 1 : end;
		*end = '\0';
		while (*cols[i] == ' ')
			cols[i]++;
		while (end > cols[i] && end[-1] == ' ')
			*--end = '\0';
	}
	return true;
}

/* "" where squeue has nothing to say. */
static const char *
text_of(const char *col)
{
	return strcmp(col, "N/A") == 0 || strcmp(col, "(null)") == 0 ? "" : col;
}

static int64_t
number_of(const char *col, int64_t otherwise)
{
	int64_t value;

	return text_to_i64(col, &value) ? value : otherwise;
}

/* "2", or the larger one of "1-4". */
static int64_t
last_number_of(const char *col)
{
	const char *dash = strrchr(col, '-');

	return number_of(dash && dash != col ? dash + 1 : col, 0);
}

/* [DAYS-]HOURS:MINUTES:SECONDS, MINUTES:SECONDS; 0: no limit, or not understood. */
static int64_t
seconds_of(const char *s)
{
	int64_t days = 0, parts[3] = {0}, n = 0;
	const char *dash = strchr(s, '-');

	if (dash && (!take_number(&s, 100000, &days) || s++ != dash))
		return 0;
	do {
		if (n == 3 || !take_number(&s, 100000000, &parts[n++]))
			return 0;
	} while (*s++ == ':');
	if (s[-1] != '\0' || n < 2)
		return 0;
	return days * 86400 + (n == 3 ? parts[0] * 3600 + parts[1] * 60 + parts[2] : parts[0] * 60 + parts[1]);
}

static enum job_state
state_of(const char *compact)
{
	static const char *const running[] = {"R", "CF", "S", "ST", "SI", "RS", "SO"};

	if (strcmp(compact, "PD") == 0)
		return JOB_PENDING;
	for (size_t i = 0; i < ARRAY_LEN(running); i++)
		if (strcmp(compact, running[i]) == 0)
			return JOB_RUNNING;
	return JOB_ENDING;
}

/* A request that cannot be asked for keeps the sentence why; the job then waits, with that text. */
static void
read_ask(char *cols[COLS], const struct partitions *partitions, struct job *j)
{
	struct gpu_ask_text t = {.per_job = text_of(cols[COL_PER_JOB]),
	                         .per_node = text_of(cols[COL_PER_NODE]),
	                         .per_socket = text_of(cols[COL_PER_SOCKET]),
	                         .per_task = text_of(cols[COL_PER_TASK]),
	                         .min_nodes = last_number_of(cols[COL_NODES]),
	                         .max_nodes = last_number_of(cols[COL_MAX_NODES]),
	                         .tasks = number_of(cols[COL_TASKS], 0),
	                         .exclusive = strcmp(cols[COL_SHARING], "NO") == 0};
	struct err err = {0};

	if (!gpu_ask_parse(&t, partitions_find(partitions, cols[COL_PARTITION]), &j->ask, &err))
		text_fit(j->fault, sizeof(j->fault), err.text);
	else if (*text_of(cols[COL_HET_JOB]) && j->ask.gpus > 0)
		text_fit(j->fault, sizeof(j->fault), "heterogeneous jobs are not asked for");
}

bool
job_list_add(struct job_list *l, const char *line, const struct partitions *partitions, int64_t now_s, struct err *err)
{
	owned(mem) char *text = mem_strdup(line);
	char *cols[COLS];
	struct job j = {.array_task = -1};

	if (!split(text, cols) || (j.id = number_of(cols[COL_JOB], 0)) < 1 ||
	    (j.array_id = number_of(cols[COL_ARRAY_JOB], 0)) < 1)
		return err_set(err, ERR_INVALID, "squeue: \"%.120s\" is no line of the format that was asked for",
		               line);
	if (l->count >= JOBS_MAX)
		return err_set(err, ERR_LIMIT, "squeue: more than %u jobs with GPUs", JOBS_MAX);
	read_ask(cols, partitions, &j);
	if (j.ask.gpus == 0 && j.fault[0] == '\0')
		return true;
	j.array_task = number_of(cols[COL_ARRAY_TASK], -1);
	if (j.array_task >= 0)
		snprintf(j.key, sizeof(j.key), "%" PRId64 "_%" PRId64, j.array_id, j.array_task);
	else
		snprintf(j.key, sizeof(j.key), "%" PRId64, j.id);
	j.state = state_of(cols[COL_STATE]);
	j.held = strcmp(cols[COL_PRIORITY], "0") == 0;
	j.restarts = number_of(cols[COL_RESTARTS], 0);
	j.requeue = strcmp(cols[COL_REQUEUE], "1") == 0;
	j.batch = strcmp(cols[COL_BATCH], "1") == 0;
	j.uid = number_of(cols[COL_UID], -1);
	j.nice = number_of(cols[COL_NICE], 0);
	j.submit_s = number_of(cols[COL_SUBMITTED], 0);
	j.time_limit_s = seconds_of(cols[COL_TIME_LIMIT]);
	j.waits = *text_of(cols[COL_DEPENDENCY]) || number_of(cols[COL_ELIGIBLE], 0) > now_s;
	text_fit(j.account, sizeof(j.account), text_of(cols[COL_ACCOUNT]));
	text_fit(j.user, sizeof(j.user), text_of(cols[COL_USER]));
	j.mark = mark_parse(cols[COL_MARK]);
	array_room(l->at, l->count, l->cap);
	l->at[l->count++] = j;
	l->marked += j.mark.word != MARK_NONE;
	return true;
}

/* ---- names of requests ---- */

void
job_request_id(const struct job *j, const char *cluster, char out[REQUEST_ID_SIZE])
{
	owned(mem) char *ask =
		mem_printf("%s|%s|%s|%" PRId64 "|%" PRId64 "|%d|%" PRId64, j->account, j->user, j->ask.type,
	                   j->ask.gpus, j->ask.per_node, job_is_preemptible(j), j->time_limit_s);
	uint8_t digest[SHA256_SIZE];
	char hex[9];

	sha256(ask, strlen(ask), digest);
	hex_encode(digest, 4, hex);
	snprintf(out, REQUEST_ID_SIZE, "s:%.*s:%s:%" PRId64 ".%" PRId64 ":%s", CLUSTER_NAME_MAX, cluster, j->key,
	         j->restarts, j->mark.attempt, hex);
}

bool
request_id_parse(const char *id, const char *cluster, struct request_name *ret)
{
	struct request_name name = {0};
	size_t n;

	if (!take_word(&id, "s:") || !take_word(&id, cluster) || !take_word(&id, ":"))
		return false;
	n = strcspn(id, ":");
	if (n == 0 || n >= sizeof(name.key) || id[n] != ':')
		return false;
	memcpy(name.key, id, n);
	id += n + 1;
	if (!take_number(&id, INT32_MAX, &name.restarts) || !take_word(&id, ".") ||
	    !take_number(&id, INT32_MAX, &name.attempt) || *id != ':')
		return false;
	*ret = name;
	return true;
}
