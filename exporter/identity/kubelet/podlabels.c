/* exporter/identity/kubelet/podlabels.c - the thread that asks the kubelet for its pods. The rules are numbered in podlabels.h. */
#include "exporter/identity/kubelet/podlabels.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "common/base/digest.h"
#include "common/http/httpc.h"
#include "common/base/time.h"
#include "exporter/source/gpu_source.h"

#define LEAST_PAUSE_NS NS_PER_S /* between two questions, however much somebody hurries */
#define MOST_PAUSE_NS NS_PER_MIN
#define MOST_WAIT_S 60 /* that a kubelet may ask for */

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

/* ---- one question ---- */

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
		struct timespec t = {.tv_sec = (time_t)(until_ns / NS_PER_S), .tv_nsec = (long)(until_ns % NS_PER_S)};

		if (p->stop || time_monotonic_ns() >= until_ns)
			break;
		(void)pthread_cond_timedwait(&p->changed, &p->lock, &t);
	}
	p->hurry = false;
	stop = p->stop;
	pthread_mutex_unlock(&p->lock);
	return stop;
}

/* Rule 2: who hurries does not shorten a pause after a failure. */
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
	pthread_condattr_t monotonic;
	int rc;

	p->refresh_ns = o->refresh_ns;
	p->stats.answered_boot_ns = ABSENT;
	buf_init(&p->reply.body, PODLABELS_BODY_MAX);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
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
	struct timespec t = {.tv_sec = (time_t)(until_ns / NS_PER_S), .tv_nsec = (long)(until_ns % NS_PER_S)};

	pthread_mutex_lock(&p->lock);
	while (!p->asked && pthread_cond_timedwait(&p->changed, &p->lock, &t) != ETIMEDOUT)
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
