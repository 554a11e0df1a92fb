/* exporter/source/gpu_source.c - the snapshot that sources fill, the units of a partitioned GPU, and XID counters. */
#include "exporter/source/gpu_source.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct gpu_snapshot *
gpu_snapshot_new(void)
{
	return mem_alloc(sizeof(struct gpu_snapshot));
}

void
gpu_snapshot_free(struct gpu_snapshot *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->cap; i++) {
		mem_free(s->gpus[i].processes);
		mem_free(s->gpus[i].exits);
	}
	mem_free(s->gpus);
	mem_free(s);
}

void
gpu_snapshot_resize(struct gpu_snapshot *s, size_t count)
{
	ASSERT(count <= GPU_MAX);
	if (count > s->cap) {
		s->gpus = mem_grow(s->gpus, count, sizeof(*s->gpus));
		memset(s->gpus + s->cap, 0, (count - s->cap) * sizeof(*s->gpus));
		s->cap = count;
	}
	s->count = count;
}

static void
forget_values(struct gpu_reading *r)
{
	r->silent = r->library_lost = false;
	r->mig = r->mps = r->process_activity = r->accounting = false;
	r->units_unallocated = r->units_stranded = 0;
	r->active_ppm = r->memory_active_ppm = ABSENT;
	r->memory_bytes = r->memory_used_bytes = ABSENT;
	r->power_mw = r->energy_mj = r->temperature_c = ABSENT;
	memset(&r->board, 0xff, sizeof(r->board)); /* all ABSENT */
	r->sm_active_ppm = r->sm_occupancy_ppm = r->tensor_active_ppm = r->dram_active_ppm = ABSENT;
	r->by_dcgm = 0;
	r->counters.present = false;
	r->instance_count = r->process_count = r->exit_count = r->sampled_count = 0;
}

void
gpu_reading_clear(struct gpu_reading *r)
{
	r->uuid[0] = r->model[0] = r->pci[0] = r->down_reason[0] = '\0';
	r->index = -1;
	r->xid_count = 0;
	r->down = false;
	r->fault = GPU_FAULT_NONE;
	forget_values(r);
}

void
gpu_reading_down(struct gpu_reading *r, enum gpu_fault fault, const char *fmt, ...)
{
	va_list args;

	forget_values(r);
	r->down = true;
	r->fault = fault;
	va_start(args, fmt);
	vsnprintf(r->down_reason, sizeof(r->down_reason), fmt, args);
	va_end(args);
}

static int
process_order(const struct gpu_process *p, uint32_t pid, int32_t gi, int32_t ci)
{
	if (p->gi != gi)
		return p->gi < gi ? -1 : 1;
	if (p->ci != ci)
		return p->ci < ci ? -1 : 1;
	return p->pid < pid ? -1 : p->pid > pid;
}

/* The position of the process in the sorted array, or where to insert it. */
static size_t
process_place(const struct gpu_reading *r, uint32_t pid, int32_t gi, int32_t ci)
{
	size_t low = 0, high = r->process_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (process_order(&r->processes[mid], pid, gi, ci) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

const struct gpu_process *
gpu_reading_find(const struct gpu_reading *r, uint32_t pid, int32_t gi, int32_t ci)
{
	size_t at = process_place(r, pid, gi, ci);

	if (at < r->process_count && process_order(&r->processes[at], pid, gi, ci) == 0)
		return &r->processes[at];
	return NULL;
}

struct gpu_process *
gpu_reading_process(struct gpu_reading *r, uint32_t pid, int32_t gi, int32_t ci)
{
	size_t at = process_place(r, pid, gi, ci);

	if (at < r->process_count && process_order(&r->processes[at], pid, gi, ci) == 0)
		return &r->processes[at];
	if (r->process_count == GPU_PROCESS_MAX)
		return NULL;
	array_room(r->processes, r->process_count, r->process_cap);
	memmove(r->processes + at + 1, r->processes + at, (r->process_count - at) * sizeof(*r->processes));
	r->process_count++;
	r->processes[at] = (struct gpu_process){
		.pid = pid,
		.gi = gi,
		.ci = ci,
		.memory_bytes = ABSENT,
		.sm_ppm = ABSENT,
	};
	return &r->processes[at];
}

struct gpu_exit *
gpu_reading_exit(struct gpu_reading *r)
{
	if (r->exit_count == GPU_EXIT_MAX)
		return NULL;
	array_room(r->exits, r->exit_count, r->exit_cap);
	return &r->exits[r->exit_count++];
}

static bool
first_of_its_gi(const struct gpu_reading *r, size_t i)
{
	for (size_t j = 0; j < i; j++)
		if (r->instances[j].gi == r->instances[i].gi)
			return false;
	return true;
}

/* The driver may change the numbers while they are read, so they are checked. */
static bool
slices_are_sound(const struct gpu_instance *in, const struct mig_geometry *g)
{
	return in->compute_slices >= 1 && in->compute_slices <= in->gi_compute_slices &&
	       in->gi_compute_slices <= g->compute_slices && in->memory_slices >= 1 &&
	       in->memory_slices <= g->memory_slices;
}

/* Marks the memory slices of a GPU instance as taken. False: its placement is not known or impossible. */
static bool
take_place(const struct gpu_instance *in, const struct mig_geometry *g, uint32_t *taken)
{
	uint32_t slices;

	if (in->placement_size != in->memory_slices ||
	    !mig_may_begin_at(g, in->gi_compute_slices, in->memory_slices, in->placement_start))
		return false;
	slices = ((1u << in->placement_size) - 1) << in->placement_start;
	if (*taken & slices)
		return false;
	*taken |= slices;
	return true;
}

bool
gpu_reading_weigh(struct gpu_reading *r, const struct mig_geometry *g, struct err *err)
{
	int compute_left = g->compute_slices, memory_left = g->memory_slices;
	int64_t in_instances = 0, in_gpu_instances = 0, creatable;
	uint32_t taken = 0;
	bool placed = true;

	for (size_t i = 0; i < r->instance_count; i++) {
		struct gpu_instance *in = &r->instances[i];
		struct mig_slices s = {in->compute_slices, in->memory_slices, in->gi_compute_slices};

		if (!slices_are_sound(in, g))
			return err_set(err, ERR_INVALID, "instance %.40s has %d of %d compute and %d memory slices",
			               in->profile, in->compute_slices, in->gi_compute_slices, in->memory_slices);
		in->units = units_of_slices(g, s);
		in_instances += in->units;
		if (!first_of_its_gi(r, i))
			continue;
		s.compute = s.gi_compute;
		in_gpu_instances += units_of_slices(g, s);
		compute_left -= in->gi_compute_slices;
		memory_left -= in->memory_slices;
		placed = placed && take_place(in, g, &taken);
	}
	if (compute_left < 0 || memory_left < 0 || in_instances > in_gpu_instances)
		return err_set(err, ERR_INVALID, "MIG instances add up to more than the GPU");
	creatable = placed ? units_creatable_at(g, taken) : units_creatable(g, compute_left, memory_left);
	r->units_unallocated = in_gpu_instances - in_instances + creatable;
	r->units_stranded = UNITS_PER_GPU - in_gpu_instances - creatable;
	return true;
}

bool
gpu_source_read_all(struct gpu_source *s, int64_t boot_ns, struct gpu_snapshot *into, struct err *err)
{
	if (!s->ops->list(s, boot_ns, into, err))
		return false;
	for (size_t i = 0; i < into->count; i++) {
		s->ops->read(s, i, &into->gpus[i]);
		if (into->gpus[i].library_lost)
			return err_set(err, ERR_RETRY, "the GPU library failed: %s", into->gpus[i].down_reason);
	}
	return true;
}

void
gpu_source_free(struct gpu_source *s)
{
	if (s)
		s->ops->close(s);
}

static bool
vendor_is_nvidia(int dir_fd, const char *device)
{
	char path[288], text[16] = "";
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "%s/vendor", device);
	fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	return n > 0 && strncmp(text, "0x10de", 6) == 0;
}

enum pci_view
pci_view(const char *devices_dir)
{
	DIR *dir = opendir(devices_dir);
	const struct dirent *entry;
	bool found = false;

	if (!dir)
		return PCI_HIDDEN;
	while (!found && (entry = readdir(dir)))
		found = entry->d_name[0] != '.' && vendor_is_nvidia(dirfd(dir), entry->d_name);
	closedir(dir);
	return found ? PCI_WITH_NVIDIA : PCI_WITHOUT_NVIDIA;
}

/* ---- XIDs over several openings ---- */

struct xid_list {
	struct gpu_xid list[GPU_XID_MAX];
	size_t count;
};

struct xid_history {
	char uuid[GPU_TEXT];
	unsigned opening;
	struct xid_list before; /* of the openings before this one */
	struct xid_list all;
};

struct gpu_xids {
	struct xid_history *gpus[GPU_MAX]; /* those that had an error */
	size_t count;
};

struct gpu_xids *
gpu_xids_new(void)
{
	return mem_alloc(sizeof(struct gpu_xids));
}

void
gpu_xids_free(struct gpu_xids *x)
{
	if (!x)
		return;
	for (size_t i = 0; i < x->count; i++)
		mem_free(x->gpus[i]);
	mem_free(x);
}

/* NULL: it has never had an error. */
static struct xid_history *
history_of(struct gpu_xids *x, const struct gpu_reading *r, unsigned opening)
{
	for (size_t i = 0; i < x->count; i++)
		if (strcmp(x->gpus[i]->uuid, r->uuid) == 0)
			return x->gpus[i];
	if (r->xid_count == 0 || x->count == GPU_MAX)
		return NULL;
	x->gpus[x->count] = mem_alloc(sizeof(struct xid_history));
	x->gpus[x->count]->opening = opening;
	memcpy(x->gpus[x->count]->uuid, r->uuid, sizeof(r->uuid));
	return x->gpus[x->count++];
}

/* Kinds that do not fit share the last entry, with code 0, as in the sources. */
static void
add_xid(struct xid_list *to, const struct gpu_xid *xid)
{
	uint32_t code = xid->code;
	size_t i = 0;

	while (i < to->count && to->list[i].code != code)
		i++;
	if (i == to->count && i >= GPU_XID_MAX - 1) {
		code = 0;
		for (i = 0; i < to->count && to->list[i].code != 0;)
			i++;
		if (i == GPU_XID_MAX)
			i--;
	}
	if (i == to->count)
		to->list[to->count++] = (struct gpu_xid){.code = code};
	to->list[i].count += xid->count;
	if (xid->last_wall_ns > to->list[i].last_wall_ns)
		to->list[i].last_wall_ns = xid->last_wall_ns;
}

void
gpu_xids_accumulate(struct gpu_xids *x, unsigned opening, struct gpu_snapshot *s)
{
	for (size_t i = 0; i < s->count; i++) {
		struct gpu_reading *r = &s->gpus[i];
		struct xid_history *h = history_of(x, r, opening);

		if (!h)
			continue;
		if (h->opening != opening) {
			h->opening = opening;
			h->before = h->all;
		}
		h->all = h->before;
		for (size_t k = 0; k < r->xid_count; k++)
			add_xid(&h->all, &r->xids[k]);
		memcpy(r->xids, h->all.list, sizeof(r->xids));
		r->xid_count = h->all.count;
	}
}
