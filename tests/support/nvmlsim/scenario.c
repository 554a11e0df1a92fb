/* tests/support/nvmlsim/scenario.c - the scenario file: processes, faults and the whole. */
#include "tests/support/nvmlsim/scenario_read.h"

#include <stdio.h>
#include <string.h>

#include "common/buf.h"

#define PID_MAX 4194304
#define FRESH_PIDS 1000 /* of a process that repeats with fresh PIDs */

/* ---- processes and faults ------------------------------------------------------------------------------------------- */

static bool
read_gpu_number(const struct reader *r, const struct yaml_node *n, int *ret)
{
	int value = 0;

	if (n->kind != YAML_SCALAR || !*n->text || strspn(n->text, "0123456789") != strlen(n->text) ||
	    strlen(n->text) > 3)
		return yaml_err(r->doc, n, r->err, "gpu is the number of a GPU, from 0");
	for (const char *p = n->text; *p; p++)
		value = value * 10 + (*p - '0');
	if ((size_t)value >= r->sc->gpu_count)
		return yaml_err(r->doc, n, r->err, "gpu %d does not exist: there are %zu", value, r->sc->gpu_count);
	*ret = value;
	return true;
}

/* `gpu: 3`, or `gpu: [0, 1]` for one process on several. */
static bool
read_gpu_set(const struct reader *r, const struct yaml_node *map, uint64_t *ret)
{
	const struct yaml_node *n = yaml_get(map, "gpu");
	int gpu;

	*ret = 0;
	if (!n)
		return yaml_err(r->doc, map, r->err, "gpu is missing");
	if (n->kind == YAML_SCALAR) {
		if (!read_gpu_number(r, n, &gpu))
			return false;
		*ret = UINT64_C(1) << gpu;
		return true;
	}
	if (!yaml_expect(r->doc, n, YAML_LIST, "gpu", r->err))
		return false;
	for (const struct yaml_node *c = n->child; c; c = c->next) {
		if (!read_gpu_number(r, c, &gpu))
			return false;
		*ret |= UINT64_C(1) << gpu;
	}
	return *ret != 0 || yaml_err(r->doc, n, r->err, "gpu is an empty list");
}

/* A process is in an instance exactly where its GPUs have instances, in one layout at least. */
static bool
check_instance(const struct reader *r, const struct yaml_node *n, const struct sim_process *p)
{
	for (size_t g = 0; g < r->sc->gpu_count; g++) {
		const struct sim_gpu *gpu = &r->sc->gpus[g];
		bool possible = false;

		if (!(p->gpus >> g & 1))
			continue;
		for (size_t l = 0; l < gpu->layout_count; l++)
			possible |= p->instance < 0
			                    ? !gpu->layouts[l].mig
			                    : gpu->layouts[l].mig && (size_t)p->instance < gpu->layouts[l].count;
		if (!possible && p->instance < 0)
			return yaml_err(r->doc, n, r->err,
			                "GPU %zu is partitioned: say which instance holds the process", g);
		if (!possible)
			return yaml_err(r->doc, n, r->err, "GPU %zu has no instance %d", g, p->instance);
	}
	return true;
}

/* They become names of folders. */
static bool
is_name(const char *text)
{
	size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-.");

	return len > 0 && len < 64 && text[len] == '\0' && text[0] != '.';
}

/* "0::/kubepods.slice/..." of a pod: the path that kubelet and containerd make with systemd on cgroup v2. */
static char *
pod_cgroup(const struct sim_pod *pod)
{
	char words[256], uuid[SIM_TEXT], under[SIM_TEXT], id[2][SIM_TEXT];

	snprintf(under, sizeof(under), "%s", pod->uid);
	for (char *c = under; *c; c++)
		if (*c == '-')
			*c = '_';
	/* two UUIDs without their dashes are the 64 digits of a container's id */
	for (int i = 0; i < 2; i++) {
		size_t len = 0;

		snprintf(words, sizeof(words), "%s/%s/%d", pod->uid, pod->container, i);
		sim_uuid("", words, uuid);
		for (const char *c = uuid; *c; c++)
			if (*c != '-')
				id[i][len++] = *c;
		id[i][len] = '\0';
	}
	return mem_printf(
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod%s.slice/cri-containerd-%s%s.scope\n",
		under, id[0], id[1]);
}

static bool
read_pod(const struct reader *r, const struct yaml_node *map, struct sim_process *p)
{
	static const char *const keys[] = {"namespace", "name", "uid", "container", NULL};
	const struct yaml_node *n = yaml_get(map, "pod");
	char words[256], uuid[SIM_TEXT];

	if (!n)
		return true;
	if (yaml_get(map, "cgroup"))
		return yaml_err(r->doc, n, r->err, "a pod has its own cgroup: give one of pod and cgroup");
	p->pod = mem_alloc(sizeof(*p->pod));
	p->pod->container = mem_strdup("main");
	if (!yaml_expect(r->doc, n, YAML_MAP, "pod", r->err) || !yaml_only_keys(r->doc, n, keys, r->err) ||
	    !read_text(r, n, "namespace", &p->pod->ns) || !read_text(r, n, "name", &p->pod->name) ||
	    !read_text(r, n, "uid", &p->pod->uid) || !read_text(r, n, "container", &p->pod->container))
		return false;
	if (!p->pod->ns || !p->pod->name)
		return yaml_err(r->doc, n, r->err, "a pod has a namespace and a name");
	if (!is_name(p->pod->ns) || !is_name(p->pod->name) || !is_name(p->pod->container) ||
	    (p->pod->uid && !is_name(p->pod->uid)))
		return yaml_err(r->doc, n, r->err,
		                "the words of a pod have 1 to 63 small letters, digits, dashes and dots");
	snprintf(words, sizeof(words), "%s/%s", p->pod->ns, p->pod->name);
	sim_uuid("", words, uuid);
	if (!p->pod->uid)
		p->pod->uid = mem_strdup(uuid);
	p->cgroup = pod_cgroup(p->pod);
	return true;
}

static bool
read_repetition(const struct reader *r, const struct yaml_node *n, struct sim_process *p)
{
	bool fresh = false;

	if (!read_duration(r, n, "start", &p->start_ns) || !read_duration(r, n, "end", &p->end_ns) ||
	    !read_duration(r, n, "every", &p->every_ns) || !read_flag(r, n, "fresh_pids", &fresh))
		return false;
	if (p->end_ns <= p->start_ns)
		return yaml_err(r->doc, n, r->err, "end must be after start");
	if (p->every_ns && p->end_ns == SIM_NEVER)
		return yaml_err(r->doc, n, r->err, "a process that repeats has an end");
	if (p->every_ns && p->end_ns - p->start_ns > p->every_ns)
		return yaml_err(r->doc, n, r->err, "a run is longer than the time until the next one");
	if (fresh && !p->every_ns)
		return yaml_err(r->doc, n, r->err, "fresh_pids needs every");
	p->pid_span = fresh ? FRESH_PIDS : 1;
	return true;
}

static bool
same_pid_at_once(const struct sim_process *a, const struct sim_process *b)
{
	bool pids = a->pid < b->pid + b->pid_span && b->pid < a->pid + a->pid_span;
	bool apart = a->every_ns == 0 && b->every_ns == 0 && (a->end_ns <= b->start_ns || b->end_ns <= a->start_ns);

	return pids && !apart;
}

static bool
read_process(const struct reader *r, const struct yaml_node *n)
{
	static const char *const keys[] = {"pid",        "gpu", "instance",   "start", "end",    "every",
	                                   "fresh_pids", "sm",  "memory_mib", "uid",   "cgroup", "pod",
	                                   "comm",       "mps", "graphics",   NULL};
	struct sim_process *p = &r->sc->processes[r->sc->process_count++];
	int64_t pid, instance = -1, memory_mib = 0;

	*p = (struct sim_process){.line = n->line, .end_ns = SIM_NEVER};
	if (!yaml_expect(r->doc, n, YAML_MAP, "a process", r->err) || !yaml_only_keys(r->doc, n, keys, r->err) ||
	    !yaml_i64(r->doc, n, "pid", 2, PID_MAX - FRESH_PIDS, &pid, r->err) || !read_gpu_set(r, n, &p->gpus) ||
	    !read_int(r, n, "instance", 0, SIM_INSTANCES_MAX, &instance) || !read_repetition(r, n, p) ||
	    !read_int(r, n, "sm", 0, 100, &p->sm) || !read_int(r, n, "memory_mib", 0, 1 << 24, &memory_mib) ||
	    !read_int(r, n, "uid", 0, UINT32_MAX, &p->uid) || !read_text(r, n, "comm", &p->comm) ||
	    !read_flag(r, n, "mps", &p->mps) || !read_flag(r, n, "graphics", &p->graphics) || !read_pod(r, n, p))
		return false;
	p->pid = (uint32_t)pid;
	p->instance = (int)instance;
	p->memory_bytes = memory_mib << 20;
	if (!p->comm)
		p->comm = mem_strdup("python3");
	if (yaml_get(n, "cgroup")) {
		const char *path;

		if (!yaml_str(r->doc, n, "cgroup", &path, r->err))
			return false;
		p->cgroup = mem_printf(*path == '/' ? "0::%s\n" : "%s\n", path);
	}
	if (!p->cgroup)
		p->cgroup = mem_printf("0::/user.slice/user-%" PRId64 ".slice/session-1.scope\n", p->uid);
	for (size_t i = 0; i + 1 < r->sc->process_count; i++)
		if (same_pid_at_once(&r->sc->processes[i], p))
			return yaml_err(r->doc, n, r->err, "PID %" PRIu32 " belongs to the process of line %d too",
			                p->pid, r->sc->processes[i].line);
	return check_instance(r, n, p);
}

static bool
read_fault(const struct reader *r, const struct yaml_node *n)
{
	static const char *const keys[] = {"gpu", "at", "until", "lost", "reset_required", "unknown", "unloaded", NULL};
	static const char *const kinds[] = {
		[FAULT_LOST] = "lost",
		[FAULT_RESET_REQUIRED] = "reset_required",
		[FAULT_UNKNOWN] = "unknown",
		[FAULT_UNLOADED] = "unloaded",
	};
	struct sim_fault *f = &r->sc->faults[r->sc->fault_count++];
	const struct yaml_node *gpu;
	int found = 0;

	*f = (struct sim_fault){.gpu = -1, .until_ns = SIM_NEVER};
	if (!yaml_expect(r->doc, n, YAML_MAP, "a fault", r->err) || !yaml_only_keys(r->doc, n, keys, r->err) ||
	    !read_duration(r, n, "at", &f->at_ns) || !read_duration(r, n, "until", &f->until_ns))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		bool on = false;

		if (!read_flag(r, n, kinds[i], &on))
			return false;
		if (on)
			f->kind = (enum sim_fault_kind)i;
		found += on;
	}
	if (found != 1)
		return yaml_err(r->doc, n, r->err, "a fault is one of lost, reset_required, unknown and unloaded");
	if (f->until_ns <= f->at_ns)
		return yaml_err(r->doc, n, r->err, "until must be after at");
	gpu = yaml_get(n, "gpu");
	if ((f->kind == FAULT_UNLOADED) == (gpu != NULL))
		return yaml_err(r->doc, n, r->err, "unloaded concerns the driver, every other fault names its gpu");
	return !gpu || read_gpu_number(r, gpu, &f->gpu);
}

/* ---- the file ------------------------------------------------------------------------------------------------------- */

static bool
read_quirk(const struct reader *r, const struct yaml_node *n)
{
	static const struct {
		const char *name;
		enum sim_quirk quirk;
	} known[] = {
		{"stride32", QUIRK_STRIDE32},
		{"no_v3", QUIRK_NO_V3},
		{"no_v2", QUIRK_NO_V2},
		{"list_race", QUIRK_LIST_RACE},
		{"zombie_samples", QUIRK_ZOMBIE_SAMPLES},
		{"no_samples", QUIRK_NO_SAMPLES},
		{"memory_v1", QUIRK_MEMORY_V1},
		{"no_attributes", QUIRK_NO_ATTRIBUTES},
		{"unprivileged", QUIRK_UNPRIVILEGED},
	};

	for (size_t i = 0; n->kind == YAML_SCALAR && i < ARRAY_LEN(known); i++)
		if (strcmp(n->text, known[i].name) == 0) {
			r->sc->quirks |= known[i].quirk;
			return true;
		}
	return yaml_err(r->doc, n, r->err, "the driver_quirk \"%s\" is not known",
	                n->kind == YAML_SCALAR ? n->text : "");
}

/* One name, or a list of them. */
static bool
read_quirks(const struct reader *r, const struct yaml_node *root)
{
	const struct yaml_node *n = yaml_get(root, "driver_quirk");

	if (!n)
		return true;
	if (n->kind == YAML_SCALAR)
		return read_quirk(r, n);
	for (const struct yaml_node *c = n->child; c; c = c->next)
		if (!read_quirk(r, c))
			return false;
	return true;
}

static bool
read_each(const struct reader *r, const struct yaml_node *list,
          bool (*read)(const struct reader *, const struct yaml_node *))
{
	for (const struct yaml_node *n = list ? list->child : NULL; n; n = n->next)
		if (!read(r, n))
			return false;
	return true;
}

static bool
read_root(const struct reader *r, const struct yaml_node *root)
{
	static const char *const keys[] = {"name", "driver",    "driver_quirk", "init_error",
	                                   "gpus", "processes", "faults",       NULL};
	const struct yaml_node *gpus, *processes, *faults;
	struct scenario *sc = r->sc;
	int64_t init_error = 0;

	if (!yaml_expect(r->doc, root, YAML_MAP, "a scenario", r->err) || !yaml_only_keys(r->doc, root, keys, r->err) ||
	    !read_text(r, root, "name", &sc->name) || !read_text(r, root, "driver", &sc->driver) ||
	    !read_int(r, root, "init_error", 0, 999, &init_error) || !read_quirks(r, root) ||
	    !read_list(r, root, "gpus", SIM_GPUS_MAX, &gpus) ||
	    !read_list(r, root, "processes", SIM_PROCESSES_MAX, &processes) ||
	    !read_list(r, root, "faults", SIM_FAULTS_MAX, &faults))
		return false;
	sc->init_error = (int)init_error;
	if (!sc->name)
		return yaml_err(r->doc, root, r->err,
		                "name is missing: it tells the GPUs of one scenario from those of another");
	sc->gpus = mem_array(SIM_GPUS_MAX, sizeof(*sc->gpus));
	sc->processes = mem_array(processes ? processes->count : 0, sizeof(*sc->processes));
	sc->faults = mem_array(faults ? faults->count : 0, sizeof(*sc->faults));
	return read_each(r, gpus, read_gpu) && read_each(r, processes, read_process) &&
	       read_each(r, faults, read_fault);
}

bool
scenario_parse(const char *name, const char *text, size_t len, struct scenario **ret, struct err *err)
{
	owned(yaml) struct yaml_doc *doc = NULL;
	owned(scenario) struct scenario *sc = mem_alloc(sizeof(*sc));
	struct reader r = {.sc = sc, .err = err};

	sc->driver = mem_strdup("550.163.01");
	if (!yaml_parse(name, text, len, &doc, err))
		return false;
	r.doc = doc;
	if (!read_root(&r, yaml_root(doc)))
		return false;
	*ret = take(sc);
	return true;
}

bool
scenario_load(const char *path, struct scenario **ret, struct err *err)
{
	in_place(buf) struct buf text;

	buf_init(&text, YAML_MAX_BYTES);
	return buf_read_file(&text, path, err) && scenario_parse(path, buf_text(&text), text.len, ret, err);
}

static void
pod_free(struct sim_pod *pod)
{
	if (!pod)
		return;
	mem_free(pod->ns);
	mem_free(pod->name);
	mem_free(pod->uid);
	mem_free(pod->container);
	mem_free(pod);
}

void
scenario_free(struct scenario *sc)
{
	if (!sc)
		return;
	for (size_t i = 0; i < sc->process_count; i++) {
		mem_free(sc->processes[i].cgroup);
		mem_free(sc->processes[i].comm);
		pod_free(sc->processes[i].pod);
	}
	mem_free(sc->name);
	mem_free(sc->driver);
	mem_free(sc->gpus);
	mem_free(sc->processes);
	mem_free(sc->faults);
	mem_free(sc);
}
