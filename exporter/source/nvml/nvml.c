/* exporter/source/nvml/nvml.c - the NVML source: the library opened at run time, the list of GPUs, their events. Rules in nvml_source.h. */
#include "exporter/source/nvml/nvml_source.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/time.h"

#define DEFAULT_LIBRARY "libnvidia-ml.so.1"
#define PCI_DEVICES "/sys/bus/pci/devices"
#define WSL_DEVICE "/dev/dxg"
#define DRIVER_FOLDER "/proc/driver/nvidia" /* there while the kernel module is loaded */
#define CONTROL_NODE "/dev/nvidiactl"
#define UNSUPPORTED_NS (10 * NS_PER_MIN) /* rule 8 */
#define EVENTS_EACH_LIST 256

static const struct symbol {
	const char *name;
	size_t offset; /* in struct nvml_api */
	bool required;
} symbols[] = {
#define REQUIRED_SYMBOL(ret, name, args) {#name, offsetof(struct nvml_api, name), true},
#define OPTIONAL_SYMBOL(ret, name, args) {#name, offsetof(struct nvml_api, name), false},
	NVML_FUNCTIONS(REQUIRED_SYMBOL, OPTIONAL_SYMBOL)
#undef REQUIRED_SYMBOL
#undef OPTIONAL_SYMBOL
};

const char *
nvml_status_text(const struct nvml_source *s, int status)
{
	const char *text = s->api.nvmlErrorString(status);

	return text && *text ? text : "error without a name";
}

static struct known_gpu *
find_gpu(struct nvml_source *s, const char *uuid)
{
	for (size_t i = 0; i < s->gpu_count; i++)
		if (strcmp(s->gpus[i]->uuid, uuid) == 0)
			return s->gpus[i];
	return NULL;
}

/* The GPU of a handle. It keeps its place in every snapshot. */
static struct known_gpu *
find_or_add_gpu(struct nvml_reading *n)
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
set_listed(struct nvml_source *s, struct known_gpu *known, const struct listed_gpu *listed)
{
	pthread_mutex_lock(&s->lock);
	known->listed = *listed;
	pthread_mutex_unlock(&s->lock);
}

static enum gpu_fault
fault_of_status(int status)
{
	switch (status) {
	case NVST_SUCCESS: return GPU_FAULT_NONE;
	case NVST_GPU_IS_LOST: return GPU_FAULT_LOST;
	case NVST_RESET_REQUIRED: return GPU_FAULT_RESET_REQUIRED;
	default: return GPU_FAULT_OTHER;
	}
}

static void
set_down(struct nvml_source *s, struct known_gpu *known, int64_t boot_ns, enum gpu_fault fault, const char *why)
{
	struct listed_gpu listed = {.index = known->listed.index, .boot_ns = boot_ns, .seen = true, .fault = fault};

	snprintf(listed.down_reason, sizeof(listed.down_reason), "%s", why);
	set_listed(s, known, &listed);
}

/* ---- events ---- */

/* A GPU that was reset has a new handle, which must be registered again. Drivers refuse unknown event types. */
static void
register_events(struct nvml_source *s, struct known_gpu *known)
{
	struct nvml_device *device = known->listed.device;
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
	/* the last entry counts all other codes */
	if (i == to->xid_count && i == GPU_XID_MAX - 1)
		code = 0;
	if (i == to->xid_count)
		to->xids[to->xid_count++] = (struct gpu_xid){.code = code};
	to->xids[i].count++;
	to->xids[i].last_wall_ns = time_wall_ns();
}

/* Records an event with the GPU of its handle. */
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

/* Does not wait. Errors are ignored: a GPU that causes one fails in its own reading too. */
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

/* ---- the list ---- */

static void
add_unidentified(struct gpu_snapshot *into, uint32_t index, const char *why)
{
	size_t len = strlen(into->unnamed_reason);

	into->unnamed++;
	snprintf(into->unnamed_reason + len, sizeof(into->unnamed_reason) - len, "%sGPU %" PRIu32 ": %s",
	         len ? "; " : "", index, why);
}

/* A GPU without a handle is recognised by its last index. A GPU that was never identified has no name to record it under, and is
 * counted. */
static void
list_index(struct nvml_reading *n, uint32_t index, struct gpu_snapshot *into)
{
	struct nvml_source *s = n->s;
	struct known_gpu *known = NULL;

	n->fault = NVST_SUCCESS;
	if (nvml_needs(n, s->api.nvmlDeviceGetHandleByIndex_v2(index, &n->device)))
		known = find_or_add_gpu(n);
	if (known && !known->listed.seen) {
		struct listed_gpu listed = {
			.device = n->device, .index = (int32_t)index, .boot_ns = n->boot_ns, .seen = true};

		set_listed(s, known, &listed);
		register_events(s, known);
		return;
	}
	if (n->fault == NVST_SUCCESS) {
		add_unidentified(into, index, known ? "has the UUID of another GPU" : "too many GPUs since the start");
		return;
	}
	for (size_t i = 0; i < s->gpu_count; i++)
		if (s->gpus[i]->listed.index == (int32_t)index && !s->gpus[i]->listed.seen) {
			set_down(s, s->gpus[i], n->boot_ns, fault_of_status(n->fault), nvml_status_text(s, n->fault));
			return;
		}
	add_unidentified(into, index, nvml_status_text(s, n->fault));
}

/* Fills in the identity of the GPU, no values. */
static void
begin_reading(const struct known_gpu *known, const struct listed_gpu *listed, const struct gpu_events *events,
              struct gpu_reading *r)
{
	gpu_reading_clear(r);
	memcpy(r->uuid, known->uuid, sizeof(r->uuid));
	memcpy(r->model, known->model, sizeof(r->model));
	memcpy(r->pci, known->pci, sizeof(r->pci));
	r->index = listed->index;
	r->xid_count = events->xid_count;
	memcpy(r->xids, events->xids, events->xid_count * sizeof(*r->xids));
	if (!listed->device)
		gpu_reading_down(r, listed->fault, "%s", listed->down_reason);
}

/* Only nvml_list changes known_gpu.listed, in one thread, so it reads that without the lock. */
static bool
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
		s->gpus[i]->listed.seen = false;
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
		if (!s->gpus[i]->listed.seen)
			set_down(s, s->gpus[i], boot_ns, GPU_FAULT_LOST, "no longer listed by the driver");
		begin_reading(s->gpus[i], &s->gpus[i]->listed, &s->gpus[i]->events, &into->gpus[i]);
	}
	return true;
}

/* A change of the partition invalidates indexes, handles and unsupported answers. */
static void
begin_gpu(struct nvml_reading *n, unsigned mig_changes)
{
	struct known_gpu *g = n->gpu;

	if (g->mig_changes != mig_changes) {
		g->mig_changes = mig_changes;
		g->unsupported = 0;
		for (size_t i = 0; i < GPU_INSTANCE_MAX; i++)
			g->slots[i].instance.uuid[0] = '\0';
	}
	if (n->boot_ns - g->unsupported_boot_ns >= UNSUPPORTED_NS) {
		g->unsupported = 0;
		g->unsupported_boot_ns = n->boot_ns;
	}
}

/* A GPU that was down may have been reset, and its counters with it. */
static void
forget_counters(struct known_gpu *g)
{
	g->slow_begun = false;
	g->gpm_whole.begun = false;
	for (size_t i = 0; i < GPU_INSTANCE_MAX; i++)
		g->slots[i].gpm.begun = false;
}

static void
nvml_read(struct gpu_source *base, size_t place, struct gpu_reading *r)
{
	struct nvml_source *s = (struct nvml_source *)base;
	struct nvml_reading n = {.s = s, .place = place, .r = r};
	struct listed_gpu listed;
	unsigned mig_changes;

	pthread_mutex_lock(&s->lock);
	ASSERT(place < s->gpu_count);
	n.gpu = s->gpus[place];
	listed = n.gpu->listed;
	mig_changes = n.gpu->events.mig_changes;
	begin_reading(n.gpu, &listed, &n.gpu->events, r);
	pthread_mutex_unlock(&s->lock);
	n.device = listed.device;
	n.boot_ns = listed.boot_ns;
	if (!r->down) {
		begin_gpu(&n, mig_changes);
		nvml_read_gpu(&n);
	}
	if (n.fault != NVST_SUCCESS) {
		gpu_reading_down(r, fault_of_status(n.fault), "%s", nvml_status_text(s, n.fault));
		r->library_lost = n.fault == NVST_UNINITIALIZED;
	}
	if (r->down)
		forget_counters(n.gpu);
}

/* ---- the source ---- */

static const char *
nvml_driver_version(const struct gpu_source *base)
{
	return ((const struct nvml_source *)base)->driver_version;
}

static const char *
nvml_library_version(const struct gpu_source *base)
{
	return ((const struct nvml_source *)base)->library_version;
}

static bool
nvml_simulated(const struct gpu_source *base)
{
	return ((const struct nvml_source *)base)->simulated;
}

static void
nvml_close(struct gpu_source *base)
{
	struct nvml_source *s = (struct nvml_source *)base;

	for (size_t i = 0; i < s->gpu_count; i++) {
		struct known_gpu *g = s->gpus[i];

		nvml_free_gpm(s, g);
		nvml_free_accounting(&g->accounting);
		mem_free(g->names);
		mem_free(g->entries);
		mem_free(g->samples);
		mem_free(g);
	}
	if (s->events)
		(void)NVML_CALL(s, nvmlEventSetFree, s->events);
	if (s->initialised)
		s->api.nvmlShutdown();
	if (s->library)
		dlclose(s->library);
	pthread_mutex_destroy(&s->lock);
	mem_free(s);
}

static const struct gpu_source_ops nvml_ops = {
	.name = "nvml",
	.driver_version = nvml_driver_version,
	.library_version = nvml_library_version,
	.simulated = nvml_simulated,
	.list = nvml_list,
	.read = nvml_read,
	.close = nvml_close,
};

static bool
load_symbols(struct nvml_source *s, const char *path, struct err *err)
{
	for (size_t i = 0; i < ARRAY_LEN(symbols); i++) {
		void *symbol = dlsym(s->library, symbols[i].name);

		if (!symbol && symbols[i].required)
			return err_set(err, ERR_INVALID, "%s is not NVIDIA's management library: it has no %s", path,
			               symbols[i].name);
		memcpy((char *)&s->api + symbols[i].offset, &symbol, sizeof(symbol));
	}
#define VERSIONS(name) {s->api.name##_v3, s->api.name##_v2, s->api.name}
	nvml_list_function *lists[LIST_KINDS][LIST_VERSIONS] = {
		[LIST_COMPUTE] = VERSIONS(nvmlDeviceGetComputeRunningProcesses),
		[LIST_GRAPHICS] = VERSIONS(nvmlDeviceGetGraphicsRunningProcesses),
		[LIST_MPS] = VERSIONS(nvmlDeviceGetMPSComputeRunningProcesses),
	};
#undef VERSIONS
	memcpy(s->lists, lists, sizeof(lists));
	s->simulated = dlsym(s->library, "tollgate_simulator") != NULL;
	return true;
}

static bool
exists(const char *path)
{
	return access(path, F_OK) == 0;
}

/* On WSL 2 the GPU is behind a device of the host; on some virtual machines the driver is loaded before a PCI device appears. */
static bool
shows_gpu(enum pci_view bus)
{
	return exists(WSL_DEVICE) || exists(DRIVER_FOLDER) || bus == PCI_WITH_NVIDIA;
}

static bool
no_gpu(struct err *err)
{
	return err_set(
		err, ERR_MISSING,
		"this machine has no NVIDIA GPU that can be seen: no driver is loaded, and no PCI bus shows one");
}

/* NVIDIA's library, run by root without a driver, creates a useless device node. */
static int
init_library(struct nvml_source *s)
{
	bool had_node = exists(CONTROL_NODE);
	int status = s->api.nvmlInit_v2();

	if (status == NVST_DRIVER_NOT_LOADED && !s->simulated && !had_node && !exists(DRIVER_FOLDER))
		(void)unlink(CONTROL_NODE);
	return status;
}

static bool
initialise(struct nvml_source *s, const char *path, struct err *err)
{
	enum pci_view bus = pci_view(PCI_DEVICES);
	bool may_lack_gpu = !s->simulated && !shows_gpu(bus);
	int status;

	if (may_lack_gpu && bus == PCI_WITHOUT_NVIDIA)
		return no_gpu(err);
	status = init_library(s);
	s->initialised = status == NVST_SUCCESS;
	switch (status) {
	case NVST_SUCCESS: return true;
	case NVST_DRIVER_NOT_LOADED:
	case NVST_LIBRARY_NOT_FOUND:
		if (may_lack_gpu)
			return no_gpu(err);
		return err_set(
			err, ERR_MISSING,
			"no NVIDIA driver answers (%s): load the nvidia kernel module, or run on a node that has one; "
			"nvidia-smi must work first",
			nvml_status_text(s, status));
	case NVST_NO_PERMISSION:
		return err_set(err, ERR_DENIED,
		               "the NVIDIA driver refuses this user (%s): access to /dev/nvidiactl is needed",
		               nvml_status_text(s, status));
	case NVST_INVALID_ARGUMENT:
		return err_set(err, ERR_INVALID, "%s refuses to start: %s", path, nvml_status_text(s, status));
	case NVST_LIB_RM_VERSION_MISMATCH:
		return err_set(err, ERR_RETRY,
		               "%s and the loaded NVIDIA driver differ in version: reload the driver or reboot", path);
	default: return err_set(err, ERR_RETRY, "the NVIDIA driver does not start: %s", nvml_status_text(s, status));
	}
}

static void
read_version(int (*call)(char *, uint32_t), char out[NVML_VERSION_SIZE])
{
	if (!call || call(out, NVML_VERSION_SIZE) != NVST_SUCCESS)
		out[0] = '\0';
	out[NVML_VERSION_SIZE - 1] = '\0';
}

bool
nvml_open(const struct nvml_options *o, struct gpu_source **ret, struct err *err)
{
	const char *name = o->library ? o->library : DEFAULT_LIBRARY;
	struct nvml_source *s = mem_alloc(sizeof(*s));
	owned(gpu_source) struct gpu_source *source = &s->base;

	s->base.ops = &nvml_ops;
	s->enable_accounting = o->enable_accounting;
	pthread_mutex_init(&s->lock, NULL);
	s->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!s->library)
		return err_set(
			err, ERR_MISSING,
			"NVIDIA's management library cannot be loaded (%s): install the NVIDIA driver, or name the library "
			"with --nvml-library",
			dlerror());
	if (!load_symbols(s, name, err))
		return false;
	if (!initialise(s, name, err))
		return false;
	read_version(s->api.nvmlSystemGetDriverVersion, s->driver_version);
	read_version(s->api.nvmlSystemGetNVMLVersion, s->library_version);
	if (NVML_CALL(s, nvmlEventSetCreate, &s->events) != NVST_SUCCESS)
		s->events = NULL;
	nvml_enable_accounting(s);
	*ret = take(source);
	return true;
}
