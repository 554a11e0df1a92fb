/* exporter/nvml.c - NVIDIA's management library, opened at run time, and the GPUs of a node through it. */
#include "exporter/nvml_source.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_LIBRARY "libnvidia-ml.so.1"
#define PCI_DEVICES "/sys/bus/pci/devices"

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

/* ---- the node ------------------------------------------------------------------------------------------------------- */

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
know_gpu(struct nvml_source *s, struct nvml_device *device)
{
	struct nvml_pci_info pci = {0};
	char uuid[NVML_TEXT_SIZE] = "";
	struct known_gpu *known;

	if (!nvml_needs(s, s->api.nvmlDeviceGetUUID(device, uuid, sizeof(uuid))))
		return NULL;
	uuid[sizeof(uuid) - 1] = '\0';
	known = find_gpu(s, uuid);
	if (known || s->gpu_count == GPU_MAX)
		return known;
	known = mem_alloc(sizeof(*known));
	snprintf(known->uuid, sizeof(known->uuid), "%s", uuid);
	if (!nvml_needs(s, s->api.nvmlDeviceGetName(device, known->model, sizeof(known->model)))) {
		mem_free(known);
		return NULL;
	}
	known->model[sizeof(known->model) - 1] = '\0';
	if (nvml_has(s, NVML_CALL(s, nvmlDeviceGetPciInfo_v3, device, &pci)))
		snprintf(known->pci, sizeof(known->pci), "%.*s", (int)sizeof(pci.bus_id) - 1, pci.bus_id);
	s->gpus[s->gpu_count++] = known;
	return known;
}

static struct gpu_reading *
begin_reading(struct nvml_source *s, struct known_gpu *known, struct gpu_snapshot *into)
{
	size_t place = 0;
	struct gpu_reading *r;

	while (s->gpus[place] != known)
		place++;
	if (place >= into->count)
		gpu_snapshot_resize(into, place + 1);
	r = &into->gpus[place];
	gpu_reading_clear(r);
	memcpy(r->uuid, known->uuid, sizeof(r->uuid));
	memcpy(r->model, known->model, sizeof(r->model));
	memcpy(r->pci, known->pci, sizeof(r->pci));
	r->index = known->index;
	known->seen = true;
	return r;
}

/* A GPU that does not even give its handle is told by the index it had; one never seen has no name to book it under. */
static void
read_index(struct nvml_source *s, uint32_t index, struct gpu_snapshot *into)
{
	struct nvml_device *device = NULL;
	struct known_gpu *known = NULL;

	s->fault = NVST_SUCCESS;
	if (nvml_needs(s, s->api.nvmlDeviceGetHandleByIndex_v2(index, &device)))
		known = know_gpu(s, device);
	if (known && !known->seen) {
		known->index = (int32_t)index;
		nvml_read_gpu(s, device, known, begin_reading(s, known, into));
		return;
	}
	for (size_t i = 0; i < s->gpu_count; i++)
		if (s->gpus[i]->index == (int32_t)index && !s->gpus[i]->seen && s->fault != NVST_SUCCESS)
			gpu_reading_down(begin_reading(s, s->gpus[i], into), "%s", nvml_status_text(s, s->fault));
}

static bool
nvml_read(struct gpu_source *base, int64_t boot_ns, struct gpu_snapshot *into, struct err *err)
{
	struct nvml_source *s = (struct nvml_source *)base;
	uint32_t count = 0;
	int status = s->api.nvmlDeviceGetCount_v2(&count);

	if (status != NVST_SUCCESS)
		return err_set(err, ERR_RETRY, "the NVIDIA driver does not list its GPUs: %s",
		               nvml_status_text(s, status));
	if (count > GPU_MAX)
		return err_set(err, ERR_INVALID, "the NVIDIA driver lists %" PRIu32 " GPUs, at most %d are metered",
		               count, GPU_MAX);
	for (size_t i = 0; i < s->gpu_count; i++)
		s->gpus[i]->seen = false;
	into->boot_ns = boot_ns;
	for (uint32_t i = 0; i < count; i++) {
		read_index(s, i, into);
		if (s->fault == NVST_UNINITIALIZED)
			return err_set(err, ERR_RETRY, "the NVIDIA library lost its driver: %s",
			               nvml_status_text(s, s->fault));
	}
	for (size_t i = 0; i < s->gpu_count; i++)
		if (!s->gpus[i]->seen)
			gpu_reading_down(begin_reading(s, s->gpus[i], into), "no longer listed by the driver");
	gpu_snapshot_resize(into, s->gpu_count);
	return true;
}

/* ---- open and close ------------------------------------------------------------------------------------------------- */

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

	if (s->initialised)
		s->api.nvmlShutdown();
	if (s->library)
		dlclose(s->library);
	for (size_t i = 0; i < s->gpu_count; i++)
		mem_free(s->gpus[i]);
	mem_free(s->entries);
	mem_free(s->samples);
	mem_free(s);
}

static const struct gpu_source_ops nvml_ops = {
	.name = "nvml",
	.driver_version = nvml_driver_version,
	.library_version = nvml_library_version,
	.simulated = nvml_simulated,
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
initialise(struct nvml_source *s, const char *path, struct err *err)
{
	int status = s->api.nvmlInit_v2();

	s->initialised = status == NVST_SUCCESS;
	switch (status) {
	case NVST_SUCCESS: return true;
	case NVST_DRIVER_NOT_LOADED:
	case NVST_LIBRARY_NOT_FOUND:
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
read_version(struct nvml_source *s, int (*call)(char *, uint32_t), char out[NVML_VERSION_SIZE])
{
	if (!call || !nvml_has(s, call(out, NVML_VERSION_SIZE)))
		out[0] = '\0';
	out[NVML_VERSION_SIZE - 1] = '\0';
}

bool
nvml_open(const char *path, struct gpu_source **ret, struct err *err)
{
	const char *name = path ? path : DEFAULT_LIBRARY;
	struct nvml_source *s = mem_alloc(sizeof(*s));
	owned(gpu_source) struct gpu_source *source = &s->base;

	s->base.ops = &nvml_ops;
	s->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!s->library)
		return err_set(
			err, ERR_MISSING,
			"NVIDIA's management library cannot be loaded (%s): install the NVIDIA driver, or name the library "
			"with --nvml-library",
			dlerror());
	if (!load_symbols(s, name, err))
		return false;
	/* The real library, run by root without a driver, makes /dev/nvidiactl and leaves it: do not let it try in vain. */
	if (!s->simulated && !pci_has_nvidia(PCI_DEVICES))
		return err_set(err, ERR_MISSING, "this machine has no NVIDIA GPU: nothing of NVIDIA is on its PCI bus");
	if (!initialise(s, name, err))
		return false;
	read_version(s, s->api.nvmlSystemGetDriverVersion, s->driver_version);
	read_version(s, s->api.nvmlSystemGetNVMLVersion, s->library_version);
	*ret = take(source);
	return true;
}
