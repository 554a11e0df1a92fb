/* exporter/source/nvml/nvml_node.c - the GPUs of a node through NVML: who is there. The rules are in nvml_source.h. */
#include "exporter/source/nvml/nvml_source.h"

#include <stdio.h>
#include <string.h>

#include "common/base/time.h"

#define LACKING_NS (10 * NS_PER_MIN) /* rule 8 */
#define EVENTS_EACH_LIST 256

static struct known_gpu *
find_gpu(struct nvml_source *s, const char *uuid)
{
	for (size_t i = 0; i < s->gpu_count; i++)
		if (strcmp(s->gpus[i]->uuid, uuid) == 0)
			return s->gpus[i];
	return NULL;
}

/* The GPU behind a handle. Its place in every snapshot is that of its first sight. */
static struct known_gpu *
know_gpu(struct nvml_reading *n)
{
	struct nvml_source *s = n->s;
	struct nvml_pci_info pci = {0};
	char uuid[NVML_TEXT_SIZE] = "";
	struct known_gpu *known;

	if (!nvml_needs(n, s->api.nvmlDeviceGetUUID(n->device, uuid, sizeof(uuid))))
		return NULL;
	uuid[sizeof(uuid) - 1] = '\0';
	known = find_gpu(s, uuid);
	if (known || s->gpu_count == GPU_MAX)
		return known;
	known = mem_alloc(sizeof(*known));
	snprintf(known->uuid, sizeof(known->uuid), "%s", uuid);
	if (!nvml_needs(n, s->api.nvmlDeviceGetName(n->device, known->model, sizeof(known->model)))) {
		mem_free(known);
		return NULL;
	}
	known->model[sizeof(known->model) - 1] = '\0';
	if (nvml_has(n, NVML_CALL(s, nvmlDeviceGetPciInfo_v3, n->device, &pci)))
		snprintf(known->pci, sizeof(known->pci), "%.*s", (int)sizeof(pci.bus_id) - 1, pci.bus_id);
	pthread_mutex_lock(&s->lock);
	s->gpus[s->gpu_count++] = known;
	pthread_mutex_unlock(&s->lock);
	return known;
}

static void
tell(struct nvml_source *s, struct known_gpu *known, const struct told_gpu *told)
{
	pthread_mutex_lock(&s->lock);
	known->told = *told;
	pthread_mutex_unlock(&s->lock);
}

static void
tell_down(struct nvml_source *s, struct known_gpu *known, int64_t boot_ns, const char *why)
{
	struct told_gpu told = {.index = known->told.index, .boot_ns = boot_ns, .seen = true};

	snprintf(told.down_reason, sizeof(told.down_reason), "%s", why);
	tell(s, known, &told);
}

/* ---- events --------------------------------------------------------------------------------------------------------- */

/* A GPU that was reset has another handle, whose events are to be asked for anew. Drivers refuse events they do not know. */
static void
register_events(struct nvml_source *s, struct known_gpu *known)
{
	struct nvml_device *device = known->told.device;
	uint64_t wanted = NVML_EVENT_XID | NVML_EVENT_MIG_CONFIG, supported;

	if (!s->events || known->registered == device)
		return;
	known->registered = device;
	if (NVML_CALL(s, nvmlDeviceGetSupportedEventTypes, device, &supported) != NVST_SUCCESS)
		supported = NVML_EVENT_XID;
	if (wanted & supported)
		(void)NVML_CALL(s, nvmlDeviceRegisterEvents, device, wanted & supported, s->events);
}

static void
count_xid(struct gpu_events *to, uint32_t code)
{
	size_t i = 0;

	while (i < to->xid_count && to->xids[i].code != code)
		i++;
	if (i == GPU_XID_MAX) {
		count_xid(to, 0);
		return;
	}
	/* the last place is for the rest */
	if (i == to->xid_count && i == GPU_XID_MAX - 1)
		code = 0;
	if (i == to->xid_count)
		to->xids[to->xid_count++] = (struct gpu_xid){.code = code};
	to->xids[i].count++;
	to->xids[i].last_wall_ns = time_wall_ns();
}

/* What an event tells goes to the GPU behind its handle. */
static void
take_event(struct nvml_source *s, const struct nvml_event *e)
{
	for (size_t i = 0; i < s->gpu_count; i++) {
		struct known_gpu *g = s->gpus[i];

		if (!e->device || g->registered != e->device)
			continue;
		pthread_mutex_lock(&s->lock);
		if (e->type & NVML_EVENT_XID)
			count_xid(&g->events, e->data > UINT32_MAX ? 0 : (uint32_t)e->data);
		if (e->type & NVML_EVENT_MIG_CONFIG)
			g->events.mig_changes++;
		pthread_mutex_unlock(&s->lock);
		return;
	}
}

/* Without waiting. A GPU that makes this fail fails for itself, too. */
static void
drain_events(struct nvml_source *s)
{
	struct nvml_event e = {0};

	for (int i = 0; s->events && i < EVENTS_EACH_LIST; i++) {
		if (NVML_CALL(s, nvmlEventSetWait_v2, s->events, &e, 0) != NVST_SUCCESS)
			return;
		take_event(s, &e);
	}
}

/* ---- the list ------------------------------------------------------------------------------------------------------- */

static void
add_unnamed(struct gpu_snapshot *into, uint32_t index, const char *why)
{
	size_t len = strlen(into->unnamed_reason);

	into->unnamed++;
	snprintf(into->unnamed_reason + len, sizeof(into->unnamed_reason) - len, "%sGPU %" PRIu32 ": %s",
	         len ? "; " : "", index, why);
}

/* A GPU that does not even give its handle is told by the index it had; one never seen has no name to book it under, and is counted. */
static void
list_index(struct nvml_reading *n, uint32_t index, struct gpu_snapshot *into)
{
	struct nvml_source *s = n->s;
	struct known_gpu *known = NULL;

	n->fault = NVST_SUCCESS;
	if (nvml_needs(n, s->api.nvmlDeviceGetHandleByIndex_v2(index, &n->device)))
		known = know_gpu(n);
	if (known && !known->told.seen) {
		struct told_gpu told = {
			.device = n->device, .index = (int32_t)index, .boot_ns = n->boot_ns, .seen = true};

		tell(s, known, &told);
		register_events(s, known);
		return;
	}
	if (n->fault == NVST_SUCCESS) {
		add_unnamed(into, index, known ? "has the UUID of another GPU" : "too many GPUs since the start");
		return;
	}
	for (size_t i = 0; i < s->gpu_count; i++)
		if (s->gpus[i]->told.index == (int32_t)index && !s->gpus[i]->told.seen) {
			tell_down(s, s->gpus[i], n->boot_ns, nvml_status_text(s, n->fault));
			return;
		}
	add_unnamed(into, index, nvml_status_text(s, n->fault));
}

/* Says who the GPU is, and nothing else of it. */
static void
begin_reading(const struct known_gpu *known, const struct told_gpu *told, const struct gpu_events *events,
              struct gpu_reading *r)
{
	gpu_reading_clear(r);
	memcpy(r->uuid, known->uuid, sizeof(r->uuid));
	memcpy(r->model, known->model, sizeof(r->model));
	memcpy(r->pci, known->pci, sizeof(r->pci));
	r->index = told->index;
	r->xid_count = events->xid_count;
	memcpy(r->xids, events->xids, events->xid_count * sizeof(*r->xids));
	if (!told->device)
		gpu_reading_down(r, "%s", told->down_reason);
}

/* Only the list changes what is told, in one thread, so it reads that without the lock. */
bool
nvml_list(struct gpu_source *base, int64_t boot_ns, struct gpu_snapshot *into, struct err *err)
{
	struct nvml_source *s = (struct nvml_source *)base;
	struct nvml_reading n = {.s = s, .boot_ns = boot_ns};
	uint32_t count = 0;
	int status = s->api.nvmlDeviceGetCount_v2(&count);

	if (status != NVST_SUCCESS)
		return err_set(err, ERR_RETRY, "the NVIDIA driver does not list its GPUs: %s",
		               nvml_status_text(s, status));
	if (count > GPU_MAX)
		return err_set(err, ERR_INVALID, "the NVIDIA driver lists %" PRIu32 " GPUs, at most %d are metered",
		               count, GPU_MAX);
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < s->gpu_count; i++)
		s->gpus[i]->told.seen = false;
	pthread_mutex_unlock(&s->lock);
	into->listed = count;
	into->unnamed = 0;
	into->unnamed_reason[0] = '\0';
	for (uint32_t i = 0; i < count; i++) {
		list_index(&n, i, into);
		if (n.fault == NVST_UNINITIALIZED)
			return err_set(err, ERR_RETRY, "the NVIDIA library lost its driver: %s",
			               nvml_status_text(s, n.fault));
	}
	drain_events(s);
	into->boot_ns = boot_ns;
	gpu_snapshot_resize(into, s->gpu_count);
	for (size_t i = 0; i < s->gpu_count; i++) {
		if (!s->gpus[i]->told.seen)
			tell_down(s, s->gpus[i], boot_ns, "no longer listed by the driver");
		begin_reading(s->gpus[i], &s->gpus[i]->told, &s->gpus[i]->events, &into->gpus[i]);
	}
	return true;
}

/* A change of the partition makes everything new: what an index, a handle or a support answer meant is gone. */
static void
begin_gpu(struct nvml_reading *n, unsigned mig_changes)
{
	struct known_gpu *g = n->gpu;

	if (g->mig_changes != mig_changes) {
		g->mig_changes = mig_changes;
		g->lacking = 0;
		for (size_t i = 0; i < GPU_INSTANCE_MAX; i++)
			g->slots[i].instance.uuid[0] = '\0';
	}
	if (n->boot_ns - g->lacking_boot_ns >= LACKING_NS) {
		g->lacking = 0;
		g->lacking_boot_ns = n->boot_ns;
	}
}

/* A GPU that was down may have been reset: its counters begin anew, and what was true before may not be after. */
static void
forget_before(struct known_gpu *g)
{
	g->slow_begun = false;
	g->gpm_whole.begun = false;
	for (size_t i = 0; i < GPU_INSTANCE_MAX; i++)
		g->slots[i].gpm.begun = false;
}

void
nvml_read(struct gpu_source *base, size_t place, struct gpu_reading *r)
{
	struct nvml_source *s = (struct nvml_source *)base;
	struct nvml_reading n = {.s = s, .place = place, .r = r};
	struct told_gpu told;
	unsigned mig_changes;

	pthread_mutex_lock(&s->lock);
	ASSERT(place < s->gpu_count);
	n.gpu = s->gpus[place];
	told = n.gpu->told;
	mig_changes = n.gpu->events.mig_changes;
	begin_reading(n.gpu, &told, &n.gpu->events, r);
	pthread_mutex_unlock(&s->lock);
	n.device = told.device;
	n.boot_ns = told.boot_ns;
	if (!r->down) {
		begin_gpu(&n, mig_changes);
		nvml_read_gpu(&n);
	}
	if (n.fault != NVST_SUCCESS) {
		gpu_reading_down(r, "%s", nvml_status_text(s, n.fault));
		r->library_lost = n.fault == NVST_UNINITIALIZED;
	}
	if (r->down)
		forget_before(n.gpu);
}
