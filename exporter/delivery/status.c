/* exporter/delivery/status.c - the status message, and the thread that sends it. The rules are numbered in status.h. */
#include "exporter/delivery/status.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/base/time.h"
#include "common/conf/json.h"
#include "exporter/delivery/push.h"
#include "exporter/source/sanitize.h"

#define REPLY_MAX (64u << 10)
#define ABORT_NS (5 * NS_PER_S) /* wait for an aborted request to return */
#define LEAST_TIMEOUT_NS (5 * NS_PER_S)
#define TAIL_BYTES 4096u  /* kept free for the text after the last holder */
#define HOLDERS_MAX 1024u /* of one GPU */

/* ---- the message ---- */

/* A holder on one device of a GPU. */
struct device_holder {
	const struct wire_holder *holder;
	int32_t device; /* instance of the reading; -1: the GPU itself */
	int32_t replica;
	bool allocated, active;
};

struct writer {
	struct buf *out;
	struct device_holder *holders; /* of the GPU being written */
	size_t count, cap;
	int64_t left_out;
};

static void
put_text(struct buf *out, const char *name, const char *text)
{
	owned(mem) char *clean = sanitized_copy(text ? text : "", WIRE_MAX_TEXT);

	buf_printf(out, "\"%s\":", name);
	json_write_string(clean, out);
	buf_char(out, ',');
}

static void
put_bool(struct buf *out, const char *name, bool value)
{
	buf_printf(out, "\"%s\":%s,", name, value ? "true" : "false");
}

/* Removes the comma after the last member. */
static void
close_with(struct buf *out, char c)
{
	if (out->len > 0 && out->data[out->len - 1] == ',')
		out->data[--out->len] = '\0';
	buf_char(out, c);
}

/* The instance, -1 for the GPU itself, -2 for none of this GPU. */
static int32_t
device_named(const struct gpu_reading *r, const char *uuid)
{
	if (!r->mig && strcmp(r->uuid, uuid) == 0)
		return -1;
	for (size_t i = 0; i < r->instance_count; i++)
		if (strcmp(r->instances[i].uuid, uuid) == 0)
			return (int32_t)i;
	return -2;
}

static int32_t
device_of(const struct gpu_reading *r, const struct tick_process *p)
{
	if (!r->mig)
		return -1;
	for (size_t i = 0; i < r->instance_count; i++)
		if (r->instances[i].gi == p->gi && r->instances[i].ci == p->ci)
			return (int32_t)i;
	return -2;
}

static void
add_holder(struct writer *w, struct device_holder entry)
{
	if (w->count == HOLDERS_MAX) {
		w->left_out++;
		return;
	}
	array_room(w->holders, w->count, w->cap);
	w->holders[w->count++] = entry;
}

/* A process makes the allocations of its holder active. Without an allocation the holder is listed by the process alone. */
static void
add_process(struct writer *w, const struct wire_holder *holder, int32_t device)
{
	bool known = false;

	for (size_t i = 0; i < w->count; i++) {
		struct device_holder *p = &w->holders[i];

		if (p->holder == holder && p->device == device)
			known = p->active = true;
	}
	if (!known)
		add_holder(w,
		           (struct device_holder){.holder = holder, .device = device, .replica = -1, .active = true});
}

/* Holders are compared by address: identity keeps each holder once. */
static void
find_holders(struct writer *w, const struct tick *t, const struct tick_gpu *g)
{
	w->count = 0;
	for (size_t i = 0; i < t->allocation_count; i++) {
		const struct tick_allocation *a = &t->allocations[i];
		int32_t device = device_named(g->reading, a->device_uuid);

		if (device >= -1)
			add_holder(w, (struct device_holder){.holder = a->holder,
			                                     .device = device,
			                                     .replica = a->replica,
			                                     .allocated = true});
	}
	for (size_t i = 0; i < g->process_count; i++) {
		int32_t device = device_of(g->reading, &g->processes[i]);

		if (device >= -1)
			add_process(w, g->processes[i].holder, device);
	}
}

static bool
is_allocated(const struct writer *w, int32_t device)
{
	for (size_t i = 0; i < w->count; i++)
		if (w->holders[i].device == device && w->holders[i].allocated)
			return true;
	return false;
}

static void
put_holder(struct buf *out, const struct gpu_reading *r, const struct device_holder *p, bool holds)
{
	const struct wire_holder *h = p->holder;

	buf_char(out, '{');
	put_text(out, "kind", wire_holder_kind_name(h->kind));
	if (h->kind == WIRE_POD) {
		put_text(out, "namespace", h->ns);
		put_text(out, "pod", h->pod);
		put_text(out, "pod_uid", h->pod_uid);
		put_text(out, "container", h->container);
	} else if (h->kind == WIRE_SLURM_JOB) {
		put_text(out, "slurm_job", h->slurm_job);
		put_text(out, "slurm_account", h->slurm_account);
	}
	put_text(out, "user", h->user);
	buf_printf(out, "\"uid\":%" PRId64 ",", h->uid);
	put_text(out, "device", p->device < 0 ? r->uuid : r->instances[p->device].uuid);
	buf_printf(out, "\"replica\":%d,", (int)p->replica);
	put_bool(out, "allocated", p->allocated);
	put_bool(out, "holds", holds);
	put_bool(out, "active", p->active);
	close_with(out, '}');
	buf_char(out, ',');
}

static void
put_holders(struct writer *w, const struct tick *t, const struct tick_gpu *g)
{
	struct buf *out = w->out;

	find_holders(w, t, g);
	buf_str(out, "\"holders\":[");
	for (size_t i = 0; i < w->count; i++) {
		const struct device_holder *p = &w->holders[i];
		size_t before = out->len;

		put_holder(out, g->reading, p, p->allocated || !is_allocated(w, p->device));
		if (out->len + TAIL_BYTES > STATUS_MAX || out->over) {
			out->len = before;
			out->data[before] = '\0';
			out->over = false;
			w->left_out++;
		}
	}
	close_with(out, ']');
}

static void
put_instances(struct buf *out, const struct gpu_reading *r)
{
	buf_str(out, "\"instances\":[");
	for (size_t i = 0; r->mig && i < r->instance_count; i++) {
		const struct gpu_instance *in = &r->instances[i];

		buf_printf(out, "{\"gi\":%d,\"ci\":%d,\"units\":%" PRId64 ",", (int)in->gi, (int)in->ci, in->units);
		put_text(out, "uuid", in->uuid);
		put_text(out, "profile", in->profile);
		close_with(out, '}');
		buf_char(out, ',');
	}
	close_with(out, ']');
	buf_char(out, ',');
}

/* The newest critical error; code 0: none. */
static struct gpu_xid
last_xid(const struct gpu_reading *r)
{
	const struct gpu_xid *last = NULL;

	for (size_t i = 0; i < r->xid_count; i++)
		if (!last || r->xids[i].last_wall_ns > last->last_wall_ns)
			last = &r->xids[i];
	return last ? *last : (struct gpu_xid){0};
}

/* Into how many replicas a scheduler divides the GPU: as its allocations say, or else the option. */
static int64_t
replicas_of(const struct status_input *in, const struct gpu_reading *r)
{
	int64_t n = r->mig ? 1 : in->replicas;

	for (size_t i = 0; i < in->tick->allocation_count; i++) {
		const struct tick_allocation *a = &in->tick->allocations[i];

		if (a->replica_of > n && device_named(r, a->device_uuid) == -1)
			n = a->replica_of;
	}
	return n;
}

static void
put_gpu(struct writer *w, const struct status_input *in, const struct tick_gpu *g)
{
	const struct gpu_reading *r = g->reading;
	bool healthy = !r->down && !r->silent;
	int64_t replicas = replicas_of(in, r);
	struct gpu_xid xid = last_xid(r);
	struct buf *out = w->out;

	buf_char(out, '{');
	put_text(out, "uuid", r->uuid);
	put_text(out, "model", r->model);
	buf_printf(out, "\"index\":%d,", (int)r->index);
	put_bool(out, "healthy", healthy);
	put_text(out, "reason", healthy ? "" : r->silent ? "the driver does not answer" : r->down_reason);
	buf_printf(out, "\"xid\":%" PRIu32 ",\"xid_at\":%" PRId64 ",", xid.code, xid.code != 0 ? xid.last_wall_ns : 0);
	put_text(out, "sharing",
	         wire_sharing_name(r->mig         ? WIRE_MIG
	                           : r->mps       ? WIRE_MPS
	                           : replicas > 1 ? WIRE_TIMESLICE
	                                          : WIRE_EXCLUSIVE));
	buf_printf(out, "\"replicas\":%" PRId64 ",", replicas);
	put_instances(out, r);
	put_holders(w, in->tick, g);
	buf_str(out, "},");
}

static void
put_boot_id(struct buf *out, const uint8_t id[WIRE_BOOT_ID_SIZE])
{
	char hex[2 * WIRE_BOOT_ID_SIZE + 1];

	hex_encode(id, WIRE_BOOT_ID_SIZE, hex);
	buf_printf(out, "\"boot_id\":\"%.8s-%.4s-%.4s-%.4s-%.12s\",", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

void
status_write(const struct status_input *in, struct buf *out)
{
	struct writer w = {.out = out};

	buf_char(out, '{');
	put_text(out, "node", in->node);
	put_boot_id(out, in->boot_id);
	buf_printf(out, "\"boot_ns\":%" PRId64 ",\"wall_ns\":%" PRId64 ",\"interval_ns\":%" PRId64 ",", in->boot_ns,
	           in->wall_ns, in->interval_ns);
	put_bool(out, "simulated", in->simulated);
	buf_str(out, "\"gpus\":[");
	for (size_t i = 0; in->tick && i < in->tick->gpu_count; i++)
		if (in->tick->gpus[i].reading->uuid[0])
			put_gpu(&w, in, &in->tick->gpus[i]);
	close_with(out, ']');
	buf_printf(out, ",\"left_out\":%" PRId64 "}", w.left_out);
	mem_free(w.holders);
}

static uint64_t
mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
	return hash ^ hash >> 29;
}

static uint64_t
mix_text(uint64_t hash, const char *text)
{
	for (const char *c = text; *c; c++)
		hash = mix(hash, (unsigned char)*c);
	return mix(hash, 0);
}

/* Sums, because drivers list processes and instances in any order. */
uint64_t
status_fingerprint(const struct status_input *in)
{
	struct writer w = {0};
	uint64_t sum = in->tick != NULL;

	for (size_t i = 0; in->tick && i < in->tick->gpu_count; i++) {
		const struct tick_gpu *g = &in->tick->gpus[i];
		const struct gpu_reading *r = g->reading;
		uint64_t gpu = mix_text(1, r->uuid);

		sum += mix(gpu, (uint64_t)(r->down || r->silent) << 1 | r->mig);
		for (size_t k = 0; r->mig && k < r->instance_count; k++)
			sum += mix_text(gpu, r->instances[k].uuid);
		find_holders(&w, in->tick, g);
		for (size_t k = 0; k < w.count; k++) {
			const struct device_holder *h = &w.holders[k];

			sum += mix(mix(mix(gpu, h->holder->id), (uint64_t)h->device << 1 | h->allocated),
			           (uint64_t)h->replica);
		}
	}
	mem_free(w.holders);
	return sum;
}

/* ---- the thread ---- */

struct status {
	struct status_options options;
	char *token_file;
	struct httpc *http;
	pthread_t thread;
	pthread_mutex_t lock; /* of what follows up to stats */
	pthread_cond_t wake, done;
	struct buf waiting; /* the newest message that is not being sent; empty: none */
	bool stop, ended;
	struct status_stats stats;
	/* of the thread that offers */
	int64_t offered_boot_ns; /* INT64_MIN: never */
	uint64_t offered;        /* fingerprint */
	/* of the thread */
	struct buf sending;
	char reason[256]; /* the last one logged; empty: all is well */
};

/* Waits for a message and takes it; false when the thread is to end. */
static bool
next_message(struct status *s)
{
	struct buf empty;
	bool stop;

	pthread_mutex_lock(&s->lock);
	while (!s->stop && s->waiting.len == 0)
		pthread_cond_wait(&s->wake, &s->lock);
	stop = s->stop;
	if (!stop) {
		empty = s->sending;
		buf_clear(&empty);
		s->sending = s->waiting;
		s->waiting = empty;
	}
	pthread_mutex_unlock(&s->lock);
	return !stop;
}

static void
note(struct status *s, const char *reason, bool refused)
{
	bool ok = reason == NULL, again;

	pthread_mutex_lock(&s->lock);
	s->stats.sent += ok;
	s->stats.failed += !ok;
	if (ok) {
		s->stats.last_success_wall_ns = time_wall_ns();
		s->stats.refused[0] = '\0';
	} else if (refused) {
		snprintf(s->stats.refused, sizeof(s->stats.refused), "%.*s", (int)sizeof(s->stats.refused) - 1, reason);
	}
	pthread_mutex_unlock(&s->lock);
	if (reason == NULL) {
		if (s->reason[0])
			log_event(LOG_INFO, "the aggregator takes statuses again", LS("was", s->reason));
		s->reason[0] = '\0';
		return;
	}
	again = s->reason[0] != '\0';
	snprintf(s->reason, sizeof(s->reason), "%.*s", (int)sizeof(s->reason) - 1, reason);
	if (!again)
		log_event(LOG_WARN, "the aggregator does not take statuses, live state is not told",
		          LS("reason", reason), LS("url", s->options.http.base_url));
}

/* Rule 1: the result is only counted. */
static void
send_message(struct status *s)
{
	struct httpc_reply reply = {0};
	struct err err;

	if (s->options.joins && access(s->token_file, F_OK) != 0)
		return;
	buf_init(&reply.body, REPLY_MAX);
	if (httpc_call(s->http, "POST", STATUS_PATH, "application/json", s->sending.data, s->sending.len, &reply,
	               &err) &&
	    (reply.status == 200 || httpc_problem(&reply, "status", &err)))
		note(s, NULL, false);
	else
		note(s, err.text, reply.status == 401 || reply.status == 403);
	buf_fini(&reply.body);
}

static void *
status_main(void *arg)
{
	struct status *s = arg;

	while (next_message(s))
		send_message(s);
	pthread_mutex_lock(&s->lock);
	s->ended = true;
	pthread_cond_signal(&s->done);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static void
status_free(struct status *s)
{
	if (!s)
		return;
	httpc_free(s->http);
	buf_fini(&s->waiting);
	buf_fini(&s->sending);
	pthread_cond_destroy(&s->wake);
	pthread_cond_destroy(&s->done);
	pthread_mutex_destroy(&s->lock);
	mem_free(s->token_file);
	mem_free(s);
}
DEFINE_OWNED(status, struct status)

bool
status_start(const struct status_options *o, struct status **ret, struct err *err)
{
	owned(status) struct status *s = mem_alloc(sizeof(*s));
	struct httpc_options http = o->http;
	int rc;

	http.clock_header = PUSH_CLOCK_HEADER;
	http.gzip = true;
	/* a status is obsolete once the next one is due */
	if (http.timeout_ns > o->interval_ns)
		http.timeout_ns = o->interval_ns > LEAST_TIMEOUT_NS ? o->interval_ns : LEAST_TIMEOUT_NS;
	s->options = *o;
	s->token_file = mem_strdup(o->http.token_file ? o->http.token_file : "");
	s->offered_boot_ns = INT64_MIN;
	s->stats.last_success_wall_ns = -1;
	buf_init(&s->waiting, STATUS_MAX);
	buf_init(&s->sending, STATUS_MAX);
	pthread_mutex_init(&s->lock, NULL);
	condition_init(&s->wake);
	condition_init(&s->done);
	if (!httpc_new(&http, &s->http, err))
		return false;
	rc = pthread_create(&s->thread, NULL, status_main, s);
	if (rc != 0)
		return err_errno(err, ERR_FATAL, rc, "cannot start the status thread");
	*ret = take(s);
	return true;
}

int64_t
status_interval_ns(const struct status *s)
{
	return s->options.interval_ns;
}

bool
status_due(const struct status *s, int64_t boot_ns, uint64_t fingerprint)
{
	return s->offered_boot_ns == INT64_MIN || fingerprint != s->offered ||
	       boot_ns - s->offered_boot_ns >= s->options.interval_ns;
}

void
status_offer(struct status *s, const struct buf *text, int64_t boot_ns, uint64_t fingerprint)
{
	s->offered_boot_ns = boot_ns;
	s->offered = fingerprint;
	pthread_mutex_lock(&s->lock);
	s->stats.replaced += s->waiting.len > 0;
	buf_clear(&s->waiting);
	buf_add(&s->waiting, text->data, text->len);
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

bool
status_stop(struct status *s)
{
	int64_t deadline_ns;
	bool ended;

	if (!s)
		return true;
	deadline_ns = time_monotonic_ns() + ABORT_NS;
	httpc_abort(s->http);
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_signal(&s->wake);
	while (!s->ended && condition_wait_until(&s->done, &s->lock, deadline_ns))
		;
	ended = s->ended;
	pthread_mutex_unlock(&s->lock);
	if (!ended)
		return false;
	pthread_join(s->thread, NULL);
	status_free(s);
	return true;
}

void
status_stats(struct status *s, struct status_stats *ret)
{
	pthread_mutex_lock(&s->lock);
	*ret = s->stats;
	pthread_mutex_unlock(&s->lock);
}
