/* common/wire/wire_check.c - the rules every batch obeys, whoever made it. Their numbers are those of WIRE.md. */
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "common/base/time.h"
#include "common/base/units.h"
#include "common/wire/wire_layout.h"

/* Where a refusal points: "record 17", or "batch". */
struct place {
	const struct wire_layout *layout;
	size_t number;
};

static bool
blame(const struct place *at, struct err *err)
{
	if (at->layout == &wire_head)
		return err_prefix(err, "batch");
	return err_prefix(err, "%s %zu", at->layout->thing, at->number);
}

#define REFUSE(at, ...) (err_set(err, ERR_INVALID, __VA_ARGS__), blame(at, err))

static bool
check_text(const struct place *at, const struct wire_field *f, const char *text, struct err *err)
{
	size_t max = (size_t)f->max;
	const char *fault;

	if (!text)
		return REFUSE(at, "%s is NULL", f->name);
	if (strnlen(text, max + 1) > max)
		return REFUSE(at, "%s has more than %zu bytes", f->name, max);
	if (!text_is_clean(text))
		return REFUSE(at, "%s is not UTF-8 text without control or direction characters: '%s'", f->name, text);
	if (f->type == WIRE_LABELS && (fault = labels_fault(text)) != NULL)
		return REFUSE(at, "%s is '%.200s': it %s", f->name, text, fault);
	return true;
}

/* Rules 1 and 2: every number in the range of its field, every text clean. */
static bool
check_fields(const struct place *at, const void *thing, struct err *err)
{
	for (size_t i = 0; i < at->layout->count; i++) {
		const struct wire_field *f = &at->layout->fields[i];
		int64_t v;

		if (wire_is_text(f->type)) {
			if (!check_text(at, f, wire_text(thing, f), err))
				return false;
			continue;
		}
		if (f->type == WIRE_BOOT)
			continue;
		v = wire_number(thing, f);
		if (f->type == WIRE_U64 && v < 0)
			return REFUSE(at, "%s is %" PRIu64 ", the most is %" PRId64, f->name, (uint64_t)v, f->max);
		if (v < f->min)
			return REFUSE(at, "%s is %" PRId64 ", the least is %" PRId64, f->name, v, f->min);
		if (v > f->max)
			return REFUSE(at, "%s is %" PRId64 ", the most is %" PRId64, f->name, v, f->max);
	}
	return true;
}

static bool
check_present(const struct place *at, const char *name, const char *text, struct err *err)
{
	return text[0] != '\0' || REFUSE(at, "%s is empty", name);
}

static bool
check_absent(const struct place *at, const char *name, const char *text, struct err *err)
{
	return text[0] == '\0' || REFUSE(at, "%s is '%s', it must be empty for this kind", name, text);
}

static bool
check_number(const struct place *at, const char *name, int64_t value, int64_t must, struct err *err)
{
	return value == must || REFUSE(at, "%s is %" PRId64 ", it must be %" PRId64, name, value, must);
}

static bool
check_most(const struct place *at, const char *name, int64_t value, const char *limit_name, int64_t limit,
           struct err *err)
{
	return value <= limit || REFUSE(at, "%s is %" PRId64 ", more than %s %" PRId64, name, value, limit_name, limit);
}

/* Rule 3. */
static bool
check_head(const struct wire_batch *b, struct err *err)
{
	const struct place at = {&wire_head, 0};

	if (!check_fields(&at, b, err) || !check_present(&at, "node", b->node, err))
		return false;
	if (b->to_ns < b->from_ns)
		return REFUSE(&at, "to_ns is %" PRId64 ", less than from_ns %" PRId64, b->to_ns, b->from_ns);
	if (b->kind == WIRE_USAGE)
		return check_number(&at, "last_seq", (int64_t)b->last_seq, (int64_t)b->seq, err);
	if (b->last_seq < b->seq)
		return REFUSE(&at, "last_seq is %" PRIu64 ", less than seq %" PRIu64, b->last_seq, b->seq);
	return b->record_count == 0 || REFUSE(&at, "a loss batch has %zu records, it must have none", b->record_count);
}

/* Rule 4. */
static bool
check_device(const struct place *at, const struct wire_device *d, struct err *err)
{
	if (!check_fields(at, d, err) || !check_present(at, "uuid", d->uuid, err) ||
	    !check_present(at, "model", d->model, err))
		return false;
	if (d->gpu == d->id)
		return check_number(at, "gi", d->gi, -1, err) && check_number(at, "ci", d->ci, -1, err) &&
		       check_number(at, "units", d->units, UNITS_PER_GPU, err) &&
		       check_number(at, "created_ns", d->created_ns, 0, err) &&
		       check_absent(at, "profile", d->profile, err);
	if (d->gi < 0)
		return REFUSE(at, "gi is %" PRId32 ", a MIG instance has 0 or more", d->gi);
	return check_present(at, "profile", d->profile, err);
}

/* Rule 5. */
static bool
check_holder(const struct place *at, const struct wire_holder *h, struct err *err)
{
	if (!check_fields(at, h, err))
		return false;
	if (h->kind != WIRE_POD &&
	    !(check_absent(at, "ns", h->ns, err) && check_absent(at, "pod", h->pod, err) &&
	      check_absent(at, "pod_uid", h->pod_uid, err) && check_absent(at, "container", h->container, err) &&
	      check_absent(at, "labels", h->labels, err)))
		return false;
	if (h->kind == WIRE_POD && !check_absent(at, "group", h->group, err))
		return false;
	if (h->kind != WIRE_SLURM_JOB && !(check_absent(at, "slurm_job", h->slurm_job, err) &&
	                                   check_absent(at, "slurm_account", h->slurm_account, err)))
		return false;
	switch ((enum wire_holder_kind)h->kind) {
	case WIRE_POD: return h->pod[0] || h->pod_uid[0] || REFUSE(at, "pod and pod_uid are both empty");
	case WIRE_SLURM_JOB: return check_present(at, "slurm_job", h->slurm_job, err);
	case WIRE_HOST_USER: return check_present(at, "user", h->user, err);
	}
	return false;
}

/* Rule 6: time. duration_ns is positive and start_ns is not negative by their ranges. */
static bool
check_time(const struct place *at, const struct wire_batch *b, const struct wire_record *r, struct err *err)
{
	int64_t end;

	if (r->start_ns < b->from_ns)
		return REFUSE(at, "start_ns is %" PRId64 ", before the batch's from_ns %" PRId64, r->start_ns,
		              b->from_ns);
	if (__builtin_add_overflow(r->start_ns, r->duration_ns, &end) || end > b->to_ns)
		return REFUSE(at, "start_ns %" PRId64 " + duration_ns %" PRId64 " is after the batch's to_ns %" PRId64,
		              r->start_ns, r->duration_ns, b->to_ns);
	if (r->start_ns / NS_PER_QUARTER_HOUR != (end - 1) / NS_PER_QUARTER_HOUR)
		return REFUSE(at, "start_ns %" PRId64 " + duration_ns %" PRId64 " crosses a quarter-hour", r->start_ns,
		              r->duration_ns);
	return true;
}

/* Rules 7 to 9: who holds, what was measured, and that the parts do not exceed the whole. */
static bool
check_shares(const struct place *at, const struct wire_record *r, struct err *err)
{
	bool held = r->state == WIRE_HELD;

	if (held != (r->holder != 0))
		return REFUSE(at, "holder is %" PRIu32 " in state %s", r->holder, wire_state_name(r->state));
	if (!check_most(at, "held_ns", r->held_ns, "duration_ns", r->duration_ns, err) ||
	    !check_most(at, "unmeasured_ns", r->unmeasured_ns, "held_ns", r->held_ns, err) ||
	    !check_most(at, "used_ns", r->used_ns, "held_ns - unmeasured_ns", r->held_ns - r->unmeasured_ns, err) ||
	    !check_most(at, "over_ns", r->over_ns, "duration_ns", r->duration_ns, err) ||
	    !check_most(at, "sm_measured_ns", r->sm_measured_ns, "held_ns", held ? r->held_ns : 0, err) ||
	    !check_most(at, "sm_active_ns", r->sm_active_ns, "sm_measured_ns", r->sm_measured_ns, err))
		return false;
	if (!held && !check_number(at, "peak_memory_bytes", r->peak_memory_bytes, 0, err))
		return false;
	if (held && r->method != WIRE_NONE)
		return true;
	if (!held && r->method != WIRE_NONE)
		return REFUSE(at, "method is %s in state %s, it must be none", wire_method_name(r->method),
		              wire_state_name(r->state));
	return check_number(at, "used_ns", r->used_ns, 0, err) && check_number(at, "over_ns", r->over_ns, 0, err) &&
	       check_number(at, "unmeasured_ns", r->unmeasured_ns, held ? r->held_ns : 0, err);
}

static int
compare_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* Rule 10, after the entries themselves. Both structs begin with their id. */
static bool
check_unique(const struct wire_layout *l, const void *things, size_t count, struct err *err)
{
	owned(mem) uint32_t *ids = mem_array(count, sizeof(*ids));

	for (size_t i = 0; i < count; i++)
		ids[i] = *(const uint32_t *)(const void *)((const char *)things + i * l->size);
	qsort(ids, count, sizeof(*ids), compare_u32);
	for (size_t i = 1; i < count; i++)
		if (ids[i] == ids[i - 1])
			return err_set(err, ERR_INVALID, "batch: id %" PRIu32 " is given to two %ss", ids[i], l->thing);
	return true;
}

/* Rule 4's limit on instances, wherever their GPU was introduced. */
static bool
check_instances(const struct wire_batch *b, struct err *err)
{
	owned(mem) uint32_t *gpus = NULL;
	size_t n = 0;

	if (b->device_count <= LIMIT_BATCH_INSTANCES)
		return true;
	gpus = mem_array(b->device_count, sizeof(*gpus));
	for (size_t i = 0; i < b->device_count; i++)
		if (b->devices[i].gpu != b->devices[i].id)
			gpus[n++] = b->devices[i].gpu;
	qsort(gpus, n, sizeof(*gpus), compare_u32);
	for (size_t i = LIMIT_BATCH_INSTANCES; i < n; i++)
		if (gpus[i] == gpus[i - LIMIT_BATCH_INSTANCES])
			return err_set(err, ERR_INVALID, "batch: GPU id %" PRIu32 " has more than %d MIG instances",
			               gpus[i], LIMIT_BATCH_INSTANCES);
	return true;
}

_Static_assert(offsetof(struct wire_device, id) == 0 && offsetof(struct wire_holder, id) == 0,
               "check_unique reads ids there");

bool
wire_check(const struct wire_batch *b, struct err *err)
{
	size_t gpus = 0;

	if (!check_head(b, err))
		return false;
	for (size_t i = 0; i < b->device_count; i++) {
		const struct place at = {&wire_device_layout, i};

		if (!check_device(&at, &b->devices[i], err))
			return false;
		gpus += b->devices[i].gpu == b->devices[i].id;
		if (gpus > LIMIT_NODE_GPUS)
			return REFUSE(&at, "it is GPU %zu of its node, the most is %d", gpus, LIMIT_NODE_GPUS);
	}
	for (size_t i = 0; i < b->holder_count; i++)
		if (!check_holder(&(struct place){&wire_holder_layout, i}, &b->holders[i], err))
			return false;
	for (size_t i = 0; i < b->record_count; i++) {
		const struct place at = {&wire_record_layout, i};

		if (!check_fields(&at, &b->records[i], err) || !check_time(&at, b, &b->records[i], err) ||
		    !check_shares(&at, &b->records[i], err))
			return false;
	}
	return check_instances(b, err) && check_unique(&wire_device_layout, b->devices, b->device_count, err) &&
	       check_unique(&wire_holder_layout, b->holders, b->holder_count, err);
}
