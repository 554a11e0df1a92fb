/* exporter/delivery/status_write.c - the message that says who holds what now. */
#include <string.h>

#include "common/base/digest.h"
#include "common/conf/json.h"
#include "exporter/source/sanitize.h"
#include "exporter/delivery/status.h"

#define TAIL_BYTES 4096u  /* kept free for what follows the last holder */
#define PARTIES_MAX 1024u /* of one GPU */

/* Somebody on one device of a GPU. */
struct party {
	const struct wire_holder *holder;
	int32_t device; /* instance of the reading; -1: the GPU itself */
	int32_t replica;
	bool allocated, active;
};

struct writer {
	struct buf *out;
	struct party *parties; /* of the GPU at hand */
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

/* Takes the comma behind the last member away. */
static void
close_with(struct buf *out, char c)
{
	if (out->len > 0 && out->data[out->len - 1] == ',')
		out->data[--out->len] = '\0';
	buf_char(out, c);
}

/* ---- who is there ---- */

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
add_party(struct writer *w, struct party party)
{
	if (w->count == PARTIES_MAX) {
		w->left_out++;
		return;
	}
	if (w->count == w->cap) {
		w->cap = w->cap ? 2 * w->cap : 64;
		w->parties = mem_grow(w->parties, w->cap, sizeof(*w->parties));
	}
	w->parties[w->count++] = party;
}

/* A process makes the allocations of its holder active; where there is none it is somebody without an allocation. */
static void
add_process(struct writer *w, const struct wire_holder *holder, int32_t device)
{
	bool known = false;

	for (size_t i = 0; i < w->count; i++) {
		struct party *p = &w->parties[i];

		if (p->holder == holder && p->device == device)
			known = p->active = true;
	}
	if (!known)
		add_party(w, (struct party){.holder = holder, .device = device, .replica = -1, .active = true});
}

/* Holders are the same when they are at the same place in memory: identity keeps each content once. */
static void
find_parties(struct writer *w, const struct tick *t, const struct tick_gpu *g)
{
	w->count = 0;
	for (size_t i = 0; i < t->allocation_count; i++) {
		const struct tick_allocation *a = &t->allocations[i];
		int32_t device = device_named(g->reading, a->device_uuid);

		if (device >= -1)
			add_party(w, (struct party){.holder = a->holder,
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
		if (w->parties[i].device == device && w->parties[i].allocated)
			return true;
	return false;
}

/* ---- writing ---- */

static void
put_holder(struct buf *out, const struct gpu_reading *r, const struct party *p, bool holds)
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

	find_parties(w, t, g);
	buf_str(out, "\"holders\":[");
	for (size_t i = 0; i < w->count; i++) {
		const struct party *p = &w->parties[i];
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

/* The newest critical error; of code 0: none. */
static struct gpu_xid
last_xid(const struct gpu_reading *r)
{
	const struct gpu_xid *last = NULL;

	for (size_t i = 0; i < r->xid_count; i++)
		if (!last || r->xids[i].last_wall_ns > last->last_wall_ns)
			last = &r->xids[i];
	return last ? *last : (struct gpu_xid){0};
}

/* As how many the GPU is given away: what its scheduler says, or else the option. */
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
	mem_free(w.parties);
}
