/* tests/support/nvmlsim/scenario_process.c - the processes of a scenario. */
#include "tests/support/nvmlsim/sim_scenario_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PID_MAX 4194304
#define FRESH_PIDS 1000 /* of a process that repeats with fresh PIDs */
#define PHASES_MAX 200000

/* ---- where it is ---------------------------------------------------------------------------------------------------- */

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

/* `instance: 0` is a place in the list `mig`, `instance: 1/0` a GPU instance and a compute instance by their ids. */
static bool
read_instance_of(const struct reader *r, const struct yaml_node *map, struct sim_process *p)
{
	const struct yaml_node *n = yaml_get(map, "instance");
	int64_t index = -1;
	int gi, ci, used = 0;

	p->instance = p->gi = p->ci = -1;
	if (n && n->kind == YAML_SCALAR && strchr(n->text, '/')) {
		if (strlen(n->text) > 5 || strspn(n->text, "0123456789/") != strlen(n->text) ||
		    sscanf(n->text, "%2d/%2d%n", &gi, &ci, &used) != 2 || n->text[used] != '\0')
			return yaml_err(r->doc, n, r->err, "instance \"%.20s\" is not GI/CI, such as 1/0", n->text);
		p->gi = gi;
		p->ci = ci;
		return true;
	}
	if (!read_int(r, map, "instance", 0, SIM_INSTANCES_MAX, &index))
		return false;
	p->instance = (int)index;
	return true;
}

static bool
layout_has(const struct sim_layout *l, const struct sim_process *p)
{
	if (p->instance >= 0)
		return l->mig && (size_t)p->instance < l->count;
	if (p->gi < 0)
		return !l->mig;
	for (size_t i = 0; i < l->count; i++)
		if (l->instances[i].gi == (uint32_t)p->gi && l->instances[i].ci == (uint32_t)p->ci)
			return true;
	return false;
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
			possible |= layout_has(&gpu->layouts[l], p);
		if (possible)
			continue;
		if (p->instance >= 0)
			return yaml_err(r->doc, n, r->err, "GPU %zu has no instance %d", g, p->instance);
		if (p->gi >= 0)
			return yaml_err(r->doc, n, r->err, "GPU %zu has no instance %d/%d", g, p->gi, p->ci);
		return yaml_err(r->doc, n, r->err, "GPU %zu is partitioned: say which instance holds the process", g);
	}
	return true;
}

/* ---- whose it is ---------------------------------------------------------------------------------------------------- */

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

/* The rules of exporter/identity/identity.c, in short. */
static char *
workload_of(const struct sim_process *p)
{
	const char *job = strstr(p->cgroup, "/job_");

	if (p->pod)
		return mem_printf("pod/%s/%s/%s", p->pod->ns, p->pod->name, p->pod->container);
	if (job && strspn(job + 5, "0123456789") > 0 && !strstr(p->cgroup, "user.slice"))
		return mem_printf("slurm/%.*s/%" PRId64, (int)strspn(job + 5, "0123456789"), job + 5, p->uid);
	return mem_printf("user/%" PRId64, p->uid);
}

static bool
read_owner(const struct reader *r, const struct yaml_node *n, struct sim_process *p)
{
	const char *path;

	if (!read_int(r, n, "uid", 0, UINT32_MAX, &p->uid) || !read_text(r, n, "comm", &p->comm) || !read_pod(r, n, p))
		return false;
	if (!p->comm)
		p->comm = mem_strdup("python3");
	if (strlen(p->comm) > 64)
		return yaml_err(r->doc, n, r->err, "comm has %zu characters, at most 64 are allowed", strlen(p->comm));
	if (yaml_get(n, "cgroup")) {
		if (!yaml_str(r->doc, n, "cgroup", &path, r->err))
			return false;
		p->cgroup = mem_printf(*path == '/' ? "0::%s\n" : "%s\n", path);
	}
	if (!p->cgroup)
		p->cgroup = mem_printf("0::/user.slice/user-%" PRId64 ".slice/session-1.scope\n", p->uid);
	p->workload = workload_of(p);
	return true;
}

/* ---- when and how active ---------------------------------------------------------------------------------------------*/

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
	if (fresh && p->pid > PID_MAX - FRESH_PIDS)
		return yaml_err(r->doc, n, r->err, "pid %" PRIu32 " leaves no room for %d fresh PIDs below %d", p->pid,
		                FRESH_PIDS, PID_MAX);
	p->pid_span = fresh ? FRESH_PIDS : 1;
	return true;
}

/* A word of a phase: sm=PERCENT, memory_mib=N or memory_bytes=N. */
static bool
take_phase_value(struct sim_word w, struct sim_phase *phase, struct err *err)
{
	struct sim_word key;
	int64_t value;

	if (!word_pair(w, &key, &value, err))
		return false;
	if (word_is(key, "sm") && value >= 0 && value <= 100)
		phase->sm = value;
	else if (word_is(key, "memory_mib") && value >= 0 && value <= 1 << 24)
		phase->memory_bytes = value << 20;
	else if (word_is(key, "memory_bytes") && value >= 0 && value >> 44 == 0)
		phase->memory_bytes = value;
	else
		return err_set(err, ERR_INVALID,
		               "\"%.*s\" is none of sm=0..100, memory_mib=0..16777216 and memory_bytes",
		               w.len > 40 ? 40 : (int)w.len, w.at);
	return true;
}

/* "30s sm=80 memory_mib=2048; 1m sm=0": each phase goes on from the one before it. */
static bool
parse_activity(const char *text, struct sim_process *p, struct err *err)
{
	struct sim_word w;

	while (next_word(&text, &w)) {
		struct sim_phase phase = p->phases[p->phase_count - 1];

		if (!word_duration(w, &phase.after_ns, err))
			return false;
		while (next_word(&text, &w) && !word_is(w, ";"))
			if (!take_phase_value(w, &phase, err))
				return false;
		if (phase.after_ns == 0 && p->phase_count == 1) {
			p->phases[0] = phase;
			continue;
		}
		if (phase.after_ns <= p->phases[p->phase_count - 1].after_ns)
			return err_set(err, ERR_INVALID, "phases are in order of their time, which is since the start");
		if (p->phase_count == PHASES_MAX)
			return err_set(err, ERR_INVALID, "more than %d phases", PHASES_MAX);
		if ((p->phase_count & (p->phase_count - 1)) == 0)
			p->phases = mem_grow(p->phases, 2 * p->phase_count, sizeof(*p->phases));
		p->phases[p->phase_count++] = phase;
	}
	return true;
}

bool
read_activity(const struct reader *r, const struct yaml_node *map, struct sim_process *p)
{
	int64_t sm = 0, memory_mib = 0;
	const char *text;
	struct err cause;

	if (!read_int(r, map, "sm", 0, 100, &sm) || !read_int(r, map, "memory_mib", 0, 1 << 24, &memory_mib))
		return false;
	p->phases = mem_alloc(sizeof(*p->phases));
	p->phases[p->phase_count++] = (struct sim_phase){0, sm, memory_mib << 20};
	if (!yaml_get(map, "activity"))
		return true;
	if (!yaml_str(r->doc, map, "activity", &text, r->err))
		return false;
	return parse_activity(text, p, &cause) ||
	       yaml_err(r->doc, yaml_get(map, "activity"), r->err, "activity: %s", cause.text);
}

/* ---- a process and its children ------------------------------------------------------------------------------------- */

static struct sim_process *
add_process(const struct reader *r, const struct yaml_node *n)
{
	struct scenario *sc = r->sc;

	if (sc->process_count == SIM_PROCESSES_MAX) {
		yaml_err(r->doc, n, r->err, "more than %d processes", SIM_PROCESSES_MAX);
		return NULL;
	}
	if ((sc->process_count & (sc->process_count - 1)) == 0)
		sc->processes =
			mem_grow(sc->processes, sc->process_count ? 2 * sc->process_count : 1, sizeof(*sc->processes));
	sc->processes[sc->process_count] = (struct sim_process){
		.line = n->line, .ppid = 1, .pid_span = 1, .instance = -1, .gi = -1, .ci = -1, .end_ns = SIM_NEVER};
	return &sc->processes[sc->process_count++];
}

/* A child is on the devices of its parent and is the same workload under another PID. */
static bool
read_fork(const struct reader *r, const struct yaml_node *n, size_t parent_at)
{
	static const char *const keys[] = {"pid", "after", "lasts", "sm", "memory_mib", "activity", "comm", NULL};
	struct sim_process *p = add_process(r, n);
	const struct sim_process *parent = &r->sc->processes[parent_at];
	int64_t pid, after = 0, lasts = 0;

	if (!p || !yaml_expect(r->doc, n, YAML_MAP, "a fork", r->err) || !yaml_only_keys(r->doc, n, keys, r->err) ||
	    !yaml_i64(r->doc, n, "pid", 2, PID_MAX - parent->pid_span, &pid, r->err) ||
	    !read_duration(r, n, "after", &after) || !read_duration(r, n, "lasts", &lasts) || !read_activity(r, n, p) ||
	    !read_text(r, n, "comm", &p->comm))
		return false;
	p->pid = (uint32_t)pid;
	p->ppid = parent->pid;
	p->pid_span = parent->pid_span;
	p->gpus = parent->gpus;
	p->instance = parent->instance;
	p->gi = parent->gi;
	p->ci = parent->ci;
	p->start_ns = parent->start_ns + after;
	p->end_ns = lasts ? p->start_ns + lasts : parent->end_ns;
	p->every_ns = parent->every_ns;
	p->uid = parent->uid;
	p->mps = parent->mps;
	p->graphics = parent->graphics;
	if (parent->pod) {
		p->pod = mem_alloc(sizeof(*p->pod));
		*p->pod = (struct sim_pod){mem_strdup(parent->pod->ns), mem_strdup(parent->pod->name),
		                           mem_strdup(parent->pod->uid), mem_strdup(parent->pod->container)};
	}
	p->cgroup = mem_strdup(parent->cgroup);
	p->workload = mem_strdup(parent->workload);
	if (!p->comm)
		p->comm = mem_strdup(parent->comm);
	if (p->end_ns <= p->start_ns)
		return yaml_err(r->doc, n, r->err,
		                "the fork begins at or after the end of its parent: say how long it lasts");
	if (p->every_ns && p->end_ns - p->start_ns > p->every_ns)
		return yaml_err(r->doc, n, r->err, "a run is longer than the time until the next one");
	return true;
}

static bool
read_forks(const struct reader *r, const struct yaml_node *map, size_t parent_at)
{
	const struct yaml_node *list;

	if (!read_list(r, map, "forks", SIM_PROCESSES_MAX, &list))
		return false;
	for (const struct yaml_node *n = list ? list->child : NULL; n; n = n->next)
		if (!read_fork(r, n, parent_at))
			return false;
	return true;
}

bool
read_process(const struct reader *r, const struct yaml_node *n)
{
	static const char *const keys[] = {"pid",   "gpu",        "instance", "start", "end",      "every",
	                                   "uid",   "fresh_pids", "sm",       "comm",  "activity", "memory_mib",
	                                   "forks", "cgroup",     "pod",      "mps",   "graphics", NULL};
	struct sim_process *p = add_process(r, n);
	size_t at = r->sc->process_count - 1;
	int64_t pid;

	if (!p || !yaml_expect(r->doc, n, YAML_MAP, "a process", r->err) || !yaml_only_keys(r->doc, n, keys, r->err) ||
	    !yaml_i64(r->doc, n, "pid", 2, PID_MAX, &pid, r->err) || !read_gpu_set(r, n, &p->gpus) ||
	    !read_instance_of(r, n, p))
		return false;
	p->pid = (uint32_t)pid;
	return read_repetition(r, n, p) && read_activity(r, n, p) && read_flag(r, n, "mps", &p->mps) &&
	       read_flag(r, n, "graphics", &p->graphics) && read_owner(r, n, p) && check_instance(r, n, p) &&
	       read_forks(r, n, at);
}

/* One process may do different things on different GPUs: it is then in several entries, which say the same of who it is. */
static bool
is_same_process(const struct sim_process *a, const struct sim_process *b)
{
	return (a->gpus & b->gpus) == 0 && a->pid == b->pid && a->pid_span == 1 && b->pid_span == 1 &&
	       a->uid == b->uid && strcmp(a->cgroup, b->cgroup) == 0 && strcmp(a->comm, b->comm) == 0;
}

static bool
same_pid_at_once(const struct sim_process *a, const struct sim_process *b)
{
	bool pids = a->pid < b->pid + b->pid_span && b->pid < a->pid + a->pid_span;
	bool apart = a->every_ns == 0 && b->every_ns == 0 && (a->end_ns <= b->start_ns || b->end_ns <= a->start_ns);

	return pids && !apart && !is_same_process(a, b);
}

bool
check_pids(const struct reader *r)
{
	for (size_t i = 0; i < r->sc->process_count; i++)
		for (size_t j = 0; j < i; j++) {
			const struct sim_process *a = &r->sc->processes[j], *b = &r->sc->processes[i];
			struct yaml_node at = {.line = b->line};

			if (same_pid_at_once(a, b))
				return yaml_err(r->doc, &at, r->err,
				                "PID %" PRIu32 " belongs to the process of line %d too", b->pid,
				                a->line);
		}
	return true;
}

/* ---- processes that register themselves ----------------------------------------------------------------------------- */

/* A GPU or an instance by its UUID. */
static bool
find_device(const struct scenario *sc, const char *uuid, struct sim_process *p)
{
	for (size_t g = 0; g < sc->gpu_count; g++) {
		const struct sim_gpu *gpu = &sc->gpus[g];

		if (strcmp(gpu->uuid, uuid) == 0) {
			p->gpus |= UINT64_C(1) << g;
			return true;
		}
		for (size_t l = 0; l < gpu->layout_count; l++)
			for (size_t i = 0; i < gpu->layouts[l].count; i++)
				if (strcmp(gpu->layouts[l].instances[i].uuid, uuid) == 0) {
					p->gpus |= UINT64_C(1) << g;
					p->instance_uuid = mem_strdup(uuid);
					return true;
				}
	}
	return false;
}

static bool
read_live(const struct reader *r, const struct yaml_node *n, struct sim_process *p)
{
	static const char *const keys[] = {"pid",        "gpu", "device",   "instance", "sm",
	                                   "memory_mib", "mps", "graphics", NULL};
	const char *uuid;
	int64_t pid;

	if (!yaml_expect(r->doc, n, YAML_MAP, "a registration", r->err) || !yaml_only_keys(r->doc, n, keys, r->err) ||
	    !yaml_i64(r->doc, n, "pid", 1, PID_MAX, &pid, r->err) || !read_instance_of(r, n, p) ||
	    !read_activity(r, n, p) || !read_flag(r, n, "mps", &p->mps) || !read_flag(r, n, "graphics", &p->graphics))
		return false;
	p->pid = (uint32_t)pid;
	if (!yaml_get(n, "device"))
		return read_gpu_set(r, n, &p->gpus) && check_instance(r, n, p);
	if (yaml_get(n, "gpu") || yaml_get(n, "instance"))
		return yaml_err(r->doc, n, r->err, "a device has its UUID: give one of device and gpu");
	return yaml_str(r->doc, n, "device", &uuid, r->err) &&
	       (find_device(r->sc, uuid, p) ||
	        yaml_err(r->doc, n, r->err, "no GPU or instance has the UUID \"%.96s\"", uuid));
}

bool
scenario_parse_live(struct scenario *sc, const char *name, const char *text, size_t len, struct sim_process **ret,
                    struct err *err)
{
	owned(yaml) struct yaml_doc *doc = NULL;
	struct reader r = {.sc = sc, .err = err};
	struct sim_process *p;

	if (!yaml_parse(name, text, len, &doc, err))
		return false;
	r.doc = doc;
	p = mem_alloc(sizeof(*p));
	*p = (struct sim_process){.ppid = 1, .pid_span = 1, .gi = -1, .ci = -1, .end_ns = SIM_NEVER};
	if (!read_live(&r, yaml_root(doc), p)) {
		sim_process_fini(p);
		mem_free(p);
		return false;
	}
	p->comm = mem_strdup("live");
	p->workload = mem_printf("live/%" PRIu32, p->pid);
	*ret = p;
	return true;
}

void
sim_process_fini(struct sim_process *p)
{
	if (p->pod) {
		mem_free(p->pod->ns);
		mem_free(p->pod->name);
		mem_free(p->pod->uid);
		mem_free(p->pod->container);
		mem_free(p->pod);
	}
	mem_free(p->phases);
	mem_free(p->instance_uuid);
	mem_free(p->cgroup);
	mem_free(p->comm);
	mem_free(p->workload);
}
