/* exporter/identity/alloc.c - the allocations of this node, and the names by which schedulers call its devices. */
#include "exporter/identity/alloc.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/text.h"

#define KNOWN_MAX 4096u /* remembered matches of holders to allocations */
#define SLURMD "slurmd" /* the container of a pod that is a node of Slurm (Slinky) */

/* ---- names of devices ---- */

/* A number of up to six digits at *at; moves behind it. */
static bool
take_number(const char **at, int32_t *ret)
{
	size_t digits = strspn(*at, "0123456789");

	if (digits == 0 || digits > 6)
		return false;
	*ret = (int32_t)strtol(*at, NULL, 10);
	*at += digits;
	return true;
}

static bool
take_word(const char **at, const char *word)
{
	if (strncmp(*at, word, strlen(word)) != 0)
		return false;
	*at += strlen(word);
	return true;
}

struct device_name
device_name_none(void)
{
	return (struct device_name){.index = -1, .gi = -1, .ci = -1, .replica = -1};
}

static bool
parse_index(const char *text, struct device_name *d)
{
	const char *at = text;
	bool gke = take_word(&at, "nvidia");

	if (!take_number(&at, &d->index))
		return false;
	if (gke && take_word(&at, "/gi") && !take_number(&at, &d->gi))
		return false;
	if (gke && take_word(&at, "/vgpu") && !take_number(&at, &d->replica))
		return false;
	return !*at;
}

static bool
parse_old_mig(const char *text, struct device_name *d)
{
	const char *at = text + strlen("MIG-");
	const char *slash = strchr(text, '/');

	if (strncmp(text, "MIG-GPU-", strlen("MIG-GPU-")) != 0 || !slash)
		return false;
	d->uuid = mem_strndup(at, (size_t)(slash - at));
	at = slash + 1;
	return take_number(&at, &d->gi) && take_word(&at, "/") && take_number(&at, &d->ci) && !*at;
}

struct device_name
device_name_parse(const char *text)
{
	struct device_name d = device_name_none();

	if (parse_index(text, &d) || parse_old_mig(text, &d))
		return d;
	device_name_fini(&d);
	d = device_name_none();
	d.uuid = mem_strdup(text);
	return d;
}

bool
device_name_is_none(const struct device_name *d)
{
	return !d->uuid && d->index < 0;
}

bool
device_name_equal(const struct device_name *a, const struct device_name *b)
{
	if (a->index != b->index || a->gi != b->gi || a->ci != b->ci || a->replica != b->replica)
		return false;
	if (!a->uuid || !b->uuid)
		return !a->uuid && !b->uuid;
	return strcmp(a->uuid, b->uuid) == 0;
}

void
device_name_fini(struct device_name *d)
{
	mem_free(d->uuid);
	d->uuid = NULL;
}

static bool
means(const struct device_name *d, const struct gpu_reading *r)
{
	return d->uuid ? strcmp(d->uuid, r->uuid) == 0 : d->index == r->index;
}

size_t
device_name_resolve(const struct device_name *d, const struct gpu_snapshot *snap, const char *ret[GPU_INSTANCE_MAX])
{
	size_t n = 0;

	if (d->uuid && d->gi < 0) {
		ret[n++] = d->uuid;
		return n;
	}
	for (size_t i = 0; i < snap->count && !device_name_is_none(d); i++) {
		const struct gpu_reading *r = &snap->gpus[i];

		if (!means(d, r) || !r->uuid[0])
			continue;
		if (d->gi < 0) {
			ret[n++] = r->uuid;
			return n;
		}
		for (size_t k = 0; k < r->instance_count && n < GPU_INSTANCE_MAX; k++)
			if (r->instances[k].gi == d->gi && (d->ci < 0 || r->instances[k].ci == d->ci))
				ret[n++] = r->instances[k].uuid;
	}
	return n;
}

/* ---- allocations ---- */

/* Which allocations the holder of a process, as identity knows it, can have. */
enum match { MATCH_NONE, MATCH_ONE, MATCH_BY_DEVICE };
struct known {
	enum match match;
	const struct wire_holder *holder; /* MATCH_ONE */
};

struct grant {
	const struct wire_holder *holder; /* held in identity */
	struct device_name device;
	int64_t start_wall_ns; /* ABSENT: not known */
	bool kubelet;
};

struct alloc {
	struct identity *identity;
	struct podres *kubelet; /* NULL: none */
	struct slurm_map slurm;
	uint64_t kubelet_version, identity_version;
	bool built; /* once */
	struct grant *grants;
	size_t grant_count, grant_cap;
	struct tick_allocation *list;
	size_t count, cap;
	size_t unresolved;
	struct known *known;
	size_t known_count, known_cap;
	struct hash known_by_id; /* of the process's holder */
};

bool
alloc_new(const struct alloc_options *o, struct identity *id, int64_t patience_ns, struct alloc **ret, struct err *err)
{
	owned(alloc) struct alloc *a = mem_alloc(sizeof(*a));

	a->identity = id;
	slurm_map_init(&a->slurm, &o->slurm);
	if (o->kubelet.socket_path) {
		if (!podres_start(&o->kubelet, &a->kubelet, err))
			return false;
		podres_wait_first(a->kubelet, patience_ns);
	}
	*ret = take(a);
	return true;
}

static void
forget_grants(struct alloc *a, bool of_kubelet)
{
	size_t kept = 0;

	for (size_t i = 0; i < a->grant_count; i++) {
		if (a->grants[i].kubelet != of_kubelet) {
			a->grants[kept++] = a->grants[i];
			continue;
		}
		identity_release(a->identity, a->grants[i].holder);
		device_name_fini(&a->grants[i].device);
	}
	a->grant_count = kept;
}

static void
forget_known(struct alloc *a)
{
	hash_clear(&a->known_by_id);
	a->known_count = 0;
}

void
alloc_free(struct alloc *a)
{
	if (!a)
		return;
	podres_free(a->kubelet);
	forget_grants(a, true);
	forget_grants(a, false);
	slurm_map_fini(&a->slurm);
	hash_fini(&a->known_by_id);
	mem_free(a->grants);
	mem_free(a->list);
	mem_free(a->known);
	mem_free(a);
}

/* ---- grants ---- */

/* Takes ownership of the device name. A grant that is listed twice counts once. */
static void
add_grant(struct alloc *a, const struct wire_holder *content, struct device_name device, int64_t start_wall_ns,
          bool kubelet)
{
	const struct wire_holder *holder = identity_hold(a->identity, content);

	for (size_t i = 0; i < a->grant_count; i++)
		if (a->grants[i].holder == holder && device_name_equal(&a->grants[i].device, &device)) {
			identity_release(a->identity, holder);
			device_name_fini(&device);
			return;
		}
	array_room(a->grants, a->grant_count, a->grant_cap);
	a->grants[a->grant_count++] =
		(struct grant){.holder = holder, .device = device, .start_wall_ns = start_wall_ns, .kubelet = kubelet};
}

static void
add_pod(void *arg, const struct podres_grant *g)
{
	struct alloc *a = arg;
	struct wire_holder pod = {
		.kind = WIRE_POD, .ns = g->ns, .pod = g->pod, .pod_uid = g->uid, .container = g->container, .uid = -1};
	owned(mem) char *labels = mem_strdup(g->uid[0] ? identity_labels(a->identity, g->uid) : "");
	struct device_name device;

	if (strcmp(g->container, SLURMD) == 0 && identity_runs_slurm(a->identity, g->ns))
		return; /* rule 6 */
	device = device_name_parse(g->device);
	pod.labels = labels;
	if (g->replica >= 0)
		device.replica = g->replica;
	device.replica_of = g->replica_of;
	add_grant(a, &pod, device, ABSENT, true);
}

static const struct slurm_job *
find_job(const struct alloc *a, const char *job)
{
	for (size_t i = 0; i < a->slurm.job_count; i++)
		if (strcmp(a->slurm.jobs[i].job, job) == 0)
			return &a->slurm.jobs[i];
	return NULL;
}

static void
add_job_device(struct alloc *a, const struct slurm_job *j, struct device_name device)
{
	owned(mem) char *user = j->user[0] || j->uid < 0 ? mem_strdup(j->user) : mem_printf("%" PRId64, j->uid);
	owned(mem) char *group = mem_strdup(identity_group(a->identity, j->uid));
	struct wire_holder job = {.kind = WIRE_SLURM_JOB,
	                          .slurm_job = j->job,
	                          .slurm_account = j->account,
	                          .user = user,
	                          .uid = j->uid,
	                          .group = group};

	add_grant(a, &job, device, j->start_wall_ns, false);
}

/* A job without GPUs in its file is added too: its processes have its account. */
static void
add_jobs(struct alloc *a)
{
	for (size_t i = 0; i < a->slurm.job_count; i++) {
		const struct slurm_job *j = &a->slurm.jobs[i];

		for (size_t k = 0; k < j->gpu_count; k++)
			add_job_device(a, j, device_name_parse(j->gpus[k]));
		if (j->gpu_count == 0)
			add_job_device(a, j, device_name_none());
	}
}

/* The HPC mapping of a job adds nothing where its own file lists GPUs. */
static void
add_hpc_jobs(struct alloc *a)
{
	for (size_t i = 0; i < a->slurm.gpu_count; i++) {
		const struct hpc_gpu *g = &a->slurm.gpus[i];

		for (size_t k = 0; k < g->job_count; k++) {
			const struct slurm_job *j = find_job(a, g->jobs[k]);
			struct wire_holder job = {.kind = WIRE_SLURM_JOB, .slurm_job = g->jobs[k], .uid = -1};
			struct device_name device;

			if (j && j->gpu_count > 0)
				continue;
			device = device_name_parse(g->gpu);
			device.gi = g->gi;
			if (j)
				add_job_device(a, j, device);
			else
				add_grant(a, &job, device, ABSENT, false);
		}
	}
}

/* ---- the list of a tick ---- */

static void
add_to_list(struct alloc *a, const struct grant *g, const char *uuid, int64_t boot_ns, int64_t wall_ns)
{
	bool begun = g->start_wall_ns != ABSENT && g->start_wall_ns <= wall_ns;

	array_room(a->list, a->count, a->cap);
	a->list[a->count++] =
		(struct tick_allocation){.holder = g->holder,
	                                 .device_uuid = uuid,
	                                 .replica = g->device.replica,
	                                 .replica_of = g->device.replica_of,
	                                 .begin_boot_ns = begun ? g->start_wall_ns - wall_ns + boot_ns : ABSENT};
}

static void
make_list(struct alloc *a, const struct gpu_snapshot *snap, int64_t boot_ns, int64_t wall_ns)
{
	a->count = a->unresolved = 0;
	for (size_t i = 0; i < a->grant_count; i++) {
		const struct grant *g = &a->grants[i];
		const char *uuids[GPU_INSTANCE_MAX];
		size_t n = device_name_resolve(&g->device, snap, uuids);

		for (size_t k = 0; k < n; k++)
			add_to_list(a, g, uuids[k], boot_ns, wall_ns);
		a->unresolved += n == 0 && !device_name_is_none(&g->device);
	}
}

void
alloc_refresh(struct alloc *a, const struct gpu_snapshot *snap, int64_t boot_ns, int64_t wall_ns)
{
	/* groups and labels are part of a holder */
	uint64_t identity_now = identity_version(a->identity);
	bool holders_changed = identity_now != a->identity_version;
	bool slurm = slurm_map_refresh(&a->slurm, wall_ns) || holders_changed, kubelet = false;
	uint64_t version = a->kubelet_version;

	a->identity_version = identity_now;
	if (a->kubelet) {
		struct podres_stats stats;

		podres_stats(a->kubelet, &stats);
		kubelet = !a->built || stats.version != version || holders_changed;
	}
	if (kubelet) {
		forget_grants(a, true);
		a->kubelet_version = podres_visit(a->kubelet, add_pod, a);
	}
	if (slurm) {
		forget_grants(a, false);
		identity_set_jobs(a->identity, a->slurm.jobs, a->slurm.job_count);
		add_jobs(a);
		add_hpc_jobs(a);
	}
	a->built = true;
	if (kubelet || slurm)
		forget_known(a);
	make_list(a, snap, boot_ns, wall_ns);
}

size_t
alloc_list(const struct alloc *a, const struct tick_allocation **ret)
{
	*ret = a->list;
	return a->count;
}

/* ---- holders of processes ---- */

/* Rule 4: no job is named, or only by its SLUID. */
static bool
is_known_by_user(const struct wire_holder *process)
{
	return process->kind == WIRE_HOST_USER ||
	       (process->kind == WIRE_SLURM_JOB && text_is_sluid(process->slurm_job, strlen(process->slurm_job)));
}

/* Rules 3 and 4, but for the device. */
static bool
may_be(const struct wire_holder *process, const struct wire_holder *holder)
{
	if (process->kind == WIRE_POD)
		return holder->kind == WIRE_POD && process->pod[0] && strcmp(holder->pod, process->pod) == 0 &&
		       strcmp(holder->ns, process->ns) == 0;
	if (holder->kind != WIRE_SLURM_JOB)
		return false;
	if (!is_known_by_user(process))
		return strcmp(holder->slurm_job, process->slurm_job) == 0;
	return holder->uid >= 0 && holder->uid == process->uid;
}

static struct known
find_known(const struct alloc *a, const struct wire_holder *process)
{
	struct known k = {.match = MATCH_NONE};

	for (size_t i = 0; i < a->grant_count; i++) {
		const struct wire_holder *holder = a->grants[i].holder;

		if (!may_be(process, holder) || holder == k.holder)
			continue;
		if (is_known_by_user(process) || k.match != MATCH_NONE)
			return (struct known){.match = MATCH_BY_DEVICE};
		k = (struct known){.match = MATCH_ONE, .holder = holder};
	}
	return k;
}

static struct known
known_of(struct alloc *a, const struct wire_holder *process)
{
	size_t at = hash_get(&a->known_by_id, process->id);

	if (at == HASH_NONE) {
		if (a->known_count == KNOWN_MAX)
			forget_known(a);
		array_room(a->known, a->known_count, a->known_cap);
		at = a->known_count++;
		a->known[at] = find_known(a, process);
		hash_put(&a->known_by_id, process->id, at);
		if (a->known[at].match == MATCH_NONE && process->kind == WIRE_POD && a->kubelet)
			podres_hurry(a->kubelet);
	}
	return a->known[at];
}

static const char *
instance_uuid(const struct gpu_reading *r, int32_t gi, int32_t ci)
{
	for (size_t i = 0; gi >= 0 && i < r->instance_count; i++)
		if (r->instances[i].gi == gi && (ci < 0 || r->instances[i].ci == ci))
			return r->instances[i].uuid;
	return r->uuid;
}

const struct wire_holder *
alloc_holder(struct alloc *a, const struct wire_holder *process, const struct gpu_reading *r, int32_t gi, int32_t ci)
{
	struct known k = known_of(a, process);
	const char *uuid;

	if (k.match == MATCH_ONE)
		return k.holder;
	if (k.match == MATCH_NONE)
		return process;
	uuid = instance_uuid(r, gi, ci);
	for (size_t i = 0; i < a->count; i++) {
		const struct tick_allocation *t = &a->list[i];

		if ((strcmp(t->device_uuid, uuid) == 0 || strcmp(t->device_uuid, r->uuid) == 0) &&
		    may_be(process, t->holder))
			return t->holder;
	}
	return process;
}

void
alloc_stats(struct alloc *a, int64_t boot_ns, struct alloc_stats *ret)
{
	*ret = (struct alloc_stats){.kubelet_age_ns = ABSENT,
	                            .unresolved = a->unresolved,
	                            .unmapped_processes = identity_unmapped(a->identity),
	                            .refused_files = a->slurm.refused,
	                            .refused = a->slurm.trouble};
	ret->kubelet.answered_boot_ns = ABSENT;
	if (a->kubelet)
		podres_stats(a->kubelet, &ret->kubelet);
	if (ret->kubelet.answered_boot_ns != ABSENT)
		ret->kubelet_age_ns =
			boot_ns > ret->kubelet.answered_boot_ns ? boot_ns - ret->kubelet.answered_boot_ns : 0;
	for (size_t i = 0; i < a->grant_count; i++) {
		ret->from_kubelet += a->grants[i].kubelet;
		ret->from_slurm += !a->grants[i].kubelet && !device_name_is_none(&a->grants[i].device);
	}
}
