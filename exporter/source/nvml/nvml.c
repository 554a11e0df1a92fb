/* exporter/source/nvml/nvml.c - NVIDIA's management library, opened at run time. */
#include "exporter/source/nvml/nvml_source.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_LIBRARY "libnvidia-ml.so.1"
#define PCI_DEVICES "/sys/bus/pci/devices"
#define WSL_DEVICE "/dev/dxg"
#define DRIVER_FOLDER "/proc/driver/nvidia" /* there while the kernel module is loaded */
#define CONTROL_NODE "/dev/nvidiactl"

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

/* On WSL 2 the GPU is behind a device of the host's, and on some virtual machines the driver is there before any PCI device is. */
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

/* The real library, run by root without a driver, makes a device node and leaves it, for nobody's use. */
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
