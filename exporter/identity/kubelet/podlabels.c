/* exporter/identity/kubelet/podlabels.c - labels of pods: decoding the answer, and the thread that asks for it. The rules are numbered in
 * podlabels.h. */
#include "exporter/identity/kubelet/podlabels.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/base/text.h"
#include "common/base/thread.h"
#include "common/base/time.h"
#include "common/conf/json.h"
#include "common/http/httpc.h"
#include "common/wire/wire.h"
#include "exporter/source/gpu_source.h"

#define LEAST_PAUSE_NS NS_PER_S /* between two questions, even after podlabels_hurry */
#define MOST_PAUSE_NS NS_PER_MIN
#define MOST_WAIT_S 60 /* that a kubelet may ask for */

/* ---- the keys that are read ---- */

static bool
add_key(struct podlabels_keys *k, const char *key, size_t len, struct err *err)
{
	const char *fault = label_key_fault(key, len);

	if (fault)
		return err_set(err, ERR_INVALID, "'%.*s' %s", (int)(len < 100 ? len : 100), key, fault);
	for (size_t i = 0; i < k->count; i++)
		if (strlen(k->keys[i]) == len && memcmp(k->keys[i], key, len) == 0)
			return err_set(err, ERR_INVALID, "%s is there twice", k->keys[i]);
	if (k->count == LABEL_MAX_COUNT)
		return err_set(err, ERR_INVALID, "more than %u labels", LABEL_MAX_COUNT);
	k->keys[k->count++] = mem_strndup(key, len);
	return true;
}

bool
podlabels_keys_parse(const char *text, struct podlabels_keys *ret, struct err *err)
{
	*ret = (struct podlabels_keys){0};
	while (*text) {
		size_t len = strcspn(text, ",");

		if (!add_key(ret, text, len, err)) {
			podlabels_keys_fini(ret);
			return false;
		}
		text += len + (text[len] == ',');
	}
	return true;
}

void
podlabels_keys_fini(struct podlabels_keys *k)
{
	for (size_t i = 0; i < k->count; i++)
		mem_free(k->keys[i]);
	k->count = 0;
}

/* ---- lists ---- */

void
podlabels_list_fini(struct podlabels_list *l)
{
	for (size_t i = 0; i < l->count; i++) {
		mem_free(l->pods[i].uid);
		mem_free(l->pods[i].labels);
	}
	mem_free(l->pods);
	*l = (struct podlabels_list){0};
}

static int
pod_order(const void *a, const void *b)
{
	const struct pod_labels *x = a, *y = b;
	int order = strcmp(x->uid, y->uid);

	return order ? order : strcmp(x->labels, y->labels);
}

static int
uid_is(const void *uid, const void *pod)
{
	return strcmp(uid, ((const struct pod_labels *)pod)->uid);
}

const char *
podlabels_find(const struct podlabels_list *l, const char *uid)
{
	const struct pod_labels *found = l->count ? bsearch(uid, l->pods, l->count, sizeof(*l->pods), uid_is) : NULL;

	return found ? found->labels : NULL;
}

/* The texts of the pod become the list's. */
static void
add_pod(struct podlabels_list *l, struct pod_labels pod)
{
	l->pods = mem_grow(l->pods, l->count + 1, sizeof(*l->pods));
	l->pods[l->count++] = pod;
}

/* Of a UID that is there twice one is kept, the same one whatever the order in which they came. */
static void
sort_list(struct podlabels_list *l)
{
	size_t kept = 0;

	if (l->count > 1)
		qsort(l->pods, l->count, sizeof(*l->pods), pod_order);
	for (size_t i = 0; i < l->count; i++) {
		if (kept > 0 && strcmp(l->pods[kept - 1].uid, l->pods[i].uid) == 0) {
			mem_free(l->pods[i].uid);
			mem_free(l->pods[i].labels);
			continue;
		}
		l->pods[kept++] = l->pods[i];
	}
	l->count = kept;
}

void
podlabels_keep(struct podlabels_list *list, const struct podlabels_list *before, int64_t boot_ns)
{
	size_t listed = list->count;

	for (size_t i = 0; i < listed; i++)
		list->pods[i].listed_boot_ns = boot_ns;
	for (size_t i = 0; i < before->count; i++) {
		const struct pod_labels *old = &before->pods[i];
		const struct podlabels_list now = {list->pods, listed};

		if (boot_ns - old->listed_boot_ns < PODLABELS_KEEP_NS && !podlabels_find(&now, old->uid) &&
		    list->count < PODLABELS_PODS_MAX)
			add_pod(list, (struct pod_labels){.uid = mem_strdup(old->uid),
			                                  .labels = mem_strdup(old->labels),
			                                  .listed_boot_ns = old->listed_boot_ns});
	}
	sort_list(list);
}

/* ---- decoding the answer; its bytes are not trusted ---- */

/* The description of a pod may be large and most of it is not needed, so the answer is cut into pods, and only one at a time becomes a
 * tree. Cutting looks at strings and brackets alone; the JSON parser checks each pod. */
struct scan {
	const char *at, *end;
};

static void
skip_space(struct scan *s)
{
	while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r'))
		s->at++;
}

static bool
skip_char(struct scan *s, char c)
{
	skip_space(s);
	if (s->at == s->end || *s->at != c)
		return false;
	s->at++;
	return true;
}

/* At the opening quote. */
static bool
skip_string(struct scan *s)
{
	for (s->at++; s->at < s->end; s->at++) {
		if (*s->at == '"') {
			s->at++;
			return true;
		}
		if (*s->at == '\\' && ++s->at == s->end)
			return false;
	}
	return false;
}

static bool
ends_a_word(char c)
{
	return strchr(" \n\t\r,:[]{}\"", c) != NULL;
}

/* One value of any kind. */
static bool
skip_value(struct scan *s)
{
	size_t depth = 0;

	do {
		skip_space(s);
		if (s->at >= s->end)
			return false;
		switch (*s->at) {
		case '"':
			if (!skip_string(s))
				return false;
			break;
		case '{':
		case '[':
			depth++;
			s->at++;
			break;
		case '}':
		case ']':
			if (depth == 0)
				return false;
			depth--;
			s->at++;
			break;
		case ',':
		case ':':
			if (depth == 0)
				return false;
			s->at++;
			break;
		default:
			do
				s->at++;
			while (s->at < s->end && !ends_a_word(*s->at));
		}
	} while (depth > 0);
	return true;
}

static char *
labels_of(const json_t *labels, const struct podlabels_keys *keys)
{
	struct labels_set set = {0};

	for (size_t i = 0; i < keys->count; i++) {
		const char *value = json_string_value(json_object_get(labels, keys->keys[i]));

		if (value && !label_value_fault(value, strlen(value)))
			ASSERT(labels_put(&set, keys->keys[i], value));
	}
	return labels_join(&set);
}

static bool
read_pod(const char *text, size_t len, const struct podlabels_keys *keys, struct podlabels_list *to, struct err *err)
{
	owned(json) json_t *pod = NULL;
	const json_t *metadata;
	const char *uid;

	if (!json_parse("pod", text, len, &pod, err))
		return err_prefix(err, "pod %zu of the kubelet's answer", to->count);
	metadata = json_object_get(pod, "metadata");
	uid = json_string_value(json_object_get(metadata, "uid"));
	if (!uid || !uid[0] || strlen(uid) > WIRE_MAX_TEXT || !text_is_clean(uid))
		return true;
	if (to->count == PODLABELS_PODS_MAX)
		return err_set(err, ERR_INVALID, "the kubelet lists more than %u pods", PODLABELS_PODS_MAX);
	add_pod(to, (struct pod_labels){.uid = mem_strdup(uid),
	                                .labels = labels_of(json_object_get(metadata, "labels"), keys)});
	return true;
}

static bool
not_an_answer(const char *why, struct err *err)
{
	return err_set(err, ERR_INVALID, "the kubelet's answer is not a list of pods: %s", why);
}

/* A list without an element may be null, as Go writes it. */
static bool
read_items(struct scan *s, const struct podlabels_keys *keys, struct podlabels_list *to, struct err *err)
{
	struct scan value = *s;

	if (!skip_value(s))
		return not_an_answer("it ends too early", err);
	skip_space(&value);
	if (s->at - value.at == 4 && memcmp(value.at, "null", 4) == 0)
		return true;
	value.end = s->at;
	if (!skip_char(&value, '['))
		return not_an_answer("items is no list", err);
	if (skip_char(&value, ']'))
		return true;
	do {
		const char *start;

		skip_space(&value);
		start = value.at;
		if (!skip_value(&value))
			return not_an_answer("items ends too early", err);
		if (!read_pod(start, (size_t)(value.at - start), keys, to, err))
			return false;
	} while (skip_char(&value, ','));
	return skip_char(&value, ']') || not_an_answer("items does not end where it should", err);
}

/* One member of the answer. */
static bool
read_member(struct scan *s, const struct podlabels_keys *keys, struct podlabels_list *to, bool *had_items,
            struct err *err)
{
	static const char items[] = "\"items\"";
	const char *key;

	skip_space(s);
	key = s->at;
	if (s->at == s->end || *s->at != '"' || !skip_string(s))
		return not_an_answer("a key is missing", err);
	bool is_items = (size_t)(s->at - key) == sizeof(items) - 1 && memcmp(key, items, sizeof(items) - 1) == 0;
	if (!skip_char(s, ':'))
		return not_an_answer("a value is missing", err);
	if (!is_items)
		return skip_value(s) || not_an_answer("it ends too early", err);
	if (*had_items)
		return not_an_answer("items is there twice", err);
	*had_items = true;
	return read_items(s, keys, to, err);
}

static bool
read_answer(struct scan *s, const struct podlabels_keys *keys, struct podlabels_list *to, struct err *err)
{
	bool had_items = false;

	if (!skip_char(s, '{'))
		return not_an_answer("it is no object", err);
	if (!skip_char(s, '}')) {
		do {
			if (!read_member(s, keys, to, &had_items, err))
				return false;
		} while (skip_char(s, ','));
		if (!skip_char(s, '}'))
			return not_an_answer("it ends too early", err);
	}
	skip_space(s);
	if (s->at != s->end)
		return not_an_answer("something follows it", err);
	return had_items || not_an_answer("it has no items", err);
}

bool
podlabels_decode(const char *body, size_t n, const struct podlabels_keys *keys, struct podlabels_list *ret,
                 struct err *err)
{
	struct podlabels_list list = {0};
	struct scan s = {body, body + n};

	if (!read_answer(&s, keys, &list, err)) {
		podlabels_list_fini(&list);
		return false;
	}
	sort_list(&list);
	*ret = list;
	return true;
}

/* ---- one question ---- */

struct podlabels {
	struct httpc *client;
	struct podlabels_keys keys;
	int64_t refresh_ns;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed; /* stop, hurry, or the first question has ended */
	bool has_thread, stop, hurry, asked;
	struct podlabels_list holds; /* under the lock; written by the thread only */
	uint64_t version;
	struct podlabels_stats stats;
	/* the thread's own */
	struct httpc_reply reply;
	unsigned failed; /* in a row */
};

static bool
ask(struct podlabels *p, struct podlabels_list *ret, struct err *err)
{
	p->reply.retry_after_s = 0;
	if (!httpc_call(p->client, "GET", "/pods", NULL, NULL, 0, &p->reply, err))
		return false;
	if (p->reply.status != 200)
		return httpc_problem(&p->reply, "GET /pods", err);
	return podlabels_decode(buf_text(&p->reply.body), p->reply.body.len, &p->keys, ret, err);
}

static bool
same_list(const struct podlabels_list *a, const struct podlabels_list *b)
{
	if (a->count != b->count)
		return false;
	for (size_t i = 0; i < a->count; i++)
		if (strcmp(a->pods[i].uid, b->pods[i].uid) != 0 || strcmp(a->pods[i].labels, b->pods[i].labels) != 0)
			return false;
	return true;
}

static void
settle(struct podlabels *p, struct podlabels_list *list)
{
	struct podlabels_list old;
	size_t labelled = 0;
	bool same;

	/* only this thread writes it, so reading needs no lock */
	podlabels_keep(list, &p->holds, time_boot_ns());
	same = same_list(list, &p->holds);
	for (size_t i = 0; i < list->count; i++)
		labelled += list->pods[i].labels[0] != '\0';
	pthread_mutex_lock(&p->lock);
	old = p->holds;
	p->holds = *list;
	p->version += !same;
	p->stats.pods = list->count;
	p->stats.labelled = labelled;
	pthread_mutex_unlock(&p->lock);
	podlabels_list_fini(&old);
}

/* ---- the thread ---- */

static void
note_outcome(struct podlabels *p, bool answered, const struct err *err)
{
	pthread_mutex_lock(&p->lock);
	p->stats.up = answered;
	memset(&p->stats.trouble, 0, sizeof(p->stats.trouble));
	if (!answered)
		p->stats.trouble = *err;
	if (answered) {
		p->stats.answers++;
		p->stats.answered_boot_ns = time_boot_ns();
	} else {
		p->stats.failures++;
	}
	p->asked = true;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

/* Waits for so long at least, then until the next question is due or somebody hurries; true when the thread shall end. */
static bool
rest(struct podlabels *p, int64_t least_ns, int64_t most_ns)
{
	int64_t began_ns = time_monotonic_ns();
	bool stop;

	pthread_mutex_lock(&p->lock);
	for (;;) {
		int64_t until_ns = began_ns + (p->hurry ? least_ns : most_ns);

		if (p->stop || time_monotonic_ns() >= until_ns)
			break;
		(void)condition_wait_until(&p->changed, &p->lock, until_ns);
	}
	p->hurry = false;
	stop = p->stop;
	pthread_mutex_unlock(&p->lock);
	return stop;
}

/* Rule 2: podlabels_hurry does not shorten a pause after a failure. */
static bool
pause_until_next(struct podlabels *p)
{
	int wait_s = p->reply.retry_after_s < MOST_WAIT_S ? p->reply.retry_after_s : MOST_WAIT_S;
	uint64_t chance;
	int64_t pause_ns;

	if (p->failed == 0)
		return rest(p, LEAST_PAUSE_NS, p->refresh_ns);
	random_bytes((uint8_t *)&chance, sizeof(chance));
	pause_ns = httpc_pause_ns(LEAST_PAUSE_NS, MOST_PAUSE_NS, p->failed, wait_s, chance);
	return rest(p, pause_ns, pause_ns);
}

static void *
run(void *arg)
{
	struct podlabels *p = arg;

	do {
		struct podlabels_list list = {0};
		struct err err = {0};
		bool answered = ask(p, &list, &err);

		/* the largest answer's memory is not kept for the small ones */
		buf_fini(&p->reply.body);
		buf_init(&p->reply.body, PODLABELS_BODY_MAX);
		if (answered)
			settle(p, &list);
		p->failed = answered ? 0 : p->failed + 1;
		note_outcome(p, answered, &err);
	} while (!pause_until_next(p));
	return NULL;
}

bool
podlabels_start(const struct podlabels_options *o, struct podlabels **ret, struct err *err)
{
	owned(podlabels) struct podlabels *p = mem_alloc(sizeof(*p));
	struct httpc_options h = {.base_url = o->url,
	                          .token_file = o->token_file,
	                          .ca_file = o->ca_file,
	                          .user_agent = o->user_agent,
	                          .connect_timeout_ns = o->timeout_ns,
	                          .timeout_ns = o->timeout_ns};
	int rc;

	p->refresh_ns = o->refresh_ns;
	p->stats.answered_boot_ns = ABSENT;
	buf_init(&p->reply.body, PODLABELS_BODY_MAX);
	pthread_mutex_init(&p->lock, NULL);
	condition_init(&p->changed);
	if (!podlabels_keys_parse(o->keys, &p->keys, err) || !httpc_new(&h, &p->client, err))
		return false;
	rc = pthread_create(&p->thread, NULL, run, p);
	if (rc != 0)
		return err_errno(err, ERR_FATAL, rc, "no thread to ask the kubelet for labels");
	p->has_thread = true;
	*ret = take(p);
	return true;
}

void
podlabels_free(struct podlabels *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
	if (p->has_thread) {
		httpc_abort(p->client);
		pthread_join(p->thread, NULL);
	}
	httpc_free(p->client);
	buf_fini(&p->reply.body);
	podlabels_keys_fini(&p->keys);
	podlabels_list_fini(&p->holds);
	pthread_cond_destroy(&p->changed);
	pthread_mutex_destroy(&p->lock);
	mem_free(p);
}

void
podlabels_wait_first(struct podlabels *p, int64_t most_ns)
{
	int64_t until_ns = time_monotonic_ns() + most_ns;

	pthread_mutex_lock(&p->lock);
	while (!p->asked && condition_wait_until(&p->changed, &p->lock, until_ns))
		;
	pthread_mutex_unlock(&p->lock);
}

void
podlabels_hurry(struct podlabels *p)
{
	pthread_mutex_lock(&p->lock);
	p->hurry = true;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

bool
podlabels_take(struct podlabels *p, uint64_t *version, struct podlabels_list *ret)
{
	bool other;

	pthread_mutex_lock(&p->lock);
	other = p->version != *version;
	if (other) {
		*version = p->version;
		*ret = (struct podlabels_list){.pods = mem_array(p->holds.count, sizeof(*ret->pods)),
		                               .count = p->holds.count};
		for (size_t i = 0; i < p->holds.count; i++)
			ret->pods[i] = (struct pod_labels){.uid = mem_strdup(p->holds.pods[i].uid),
			                                   .labels = mem_strdup(p->holds.pods[i].labels),
			                                   .listed_boot_ns = p->holds.pods[i].listed_boot_ns};
	}
	pthread_mutex_unlock(&p->lock);
	return other;
}

void
podlabels_stats(struct podlabels *p, struct podlabels_stats *ret)
{
	pthread_mutex_lock(&p->lock);
	*ret = p->stats;
	pthread_mutex_unlock(&p->lock);
}
