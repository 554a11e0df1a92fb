/* exporter/source/gpu_changes.c - changes of GPUs between two ticks, for the log. The rules are in gpu_changes.h. */
#include "exporter/source/gpu_changes.h"

#include <stdio.h>
#include <string.h>

struct logged_xid {
	uint32_t code;
	int64_t count;   /* already logged */
	int64_t boot_ns; /* when it was logged */
};

struct logged_state {
	char uuid[GPU_TEXT];
	char down_reason[GPU_TEXT]; /* "": it is not down */
	struct logged_xid xids[GPU_XID_MAX];
	size_t xid_count;
};

struct gpu_changes {
	struct logged_state *gpus[GPU_MAX];
	size_t gpu_count;
	struct gpu_change *list;
	size_t count, cap;
};

struct gpu_changes *
gpu_changes_new(void)
{
	return mem_alloc(sizeof(struct gpu_changes));
}

void
gpu_changes_free(struct gpu_changes *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < c->gpu_count; i++)
		mem_free(c->gpus[i]);
	mem_free(c->list);
	mem_free(c);
}

/* NULL: more GPUs than a node may have. */
static struct logged_state *
state_of(struct gpu_changes *c, const char *uuid)
{
	for (size_t i = 0; i < c->gpu_count; i++)
		if (strcmp(c->gpus[i]->uuid, uuid) == 0)
			return c->gpus[i];
	if (c->gpu_count == GPU_MAX)
		return NULL;
	c->gpus[c->gpu_count] = mem_alloc(sizeof(struct logged_state));
	snprintf(c->gpus[c->gpu_count]->uuid, GPU_TEXT, "%s", uuid);
	return c->gpus[c->gpu_count++];
}

static struct gpu_change *
add(struct gpu_changes *c, enum gpu_change_kind kind, const struct gpu_reading *r)
{
	struct gpu_change *change;

	array_room(c->list, c->count, c->cap);
	change = &c->list[c->count++];
	*change = (struct gpu_change){.kind = kind, .index = r->index};
	memcpy(change->uuid, r->uuid, sizeof(change->uuid));
	return change;
}

/* Rules 1 and 2. */
static void
compare_state(struct gpu_changes *c, struct logged_state *logged, const struct gpu_reading *r)
{
	const char *reason = !r->down ? "" : r->down_reason[0] ? r->down_reason : "no reason given";
	struct gpu_change *change;

	if (r->silent || strcmp(reason, logged->down_reason) == 0)
		return;
	change = add(c, r->down ? GPU_CHANGE_DOWN : GPU_CHANGE_BACK, r);
	snprintf(change->reason, sizeof(change->reason), "%s", r->down ? reason : logged->down_reason);
	snprintf(logged->down_reason, sizeof(logged->down_reason), "%s", reason);
}

static struct logged_xid *
logged_xid_of(struct logged_state *logged, uint32_t code)
{
	size_t i = 0;

	while (i < logged->xid_count && logged->xids[i].code != code)
		i++;
	if (i == GPU_XID_MAX)
		return NULL;
	if (i == logged->xid_count)
		logged->xids[logged->xid_count++] = (struct logged_xid){.code = code};
	return &logged->xids[i];
}

/* Rule 3. */
static void
compare_xids(struct gpu_changes *c, struct logged_state *logged, const struct gpu_reading *r, int64_t boot_ns)
{
	for (size_t i = 0; i < r->xid_count; i++) {
		struct logged_xid *x = logged_xid_of(logged, r->xids[i].code);
		struct gpu_change *change;

		if (!x || r->xids[i].count <= x->count || (x->count > 0 && boot_ns - x->boot_ns < GPU_CHANGES_PAUSE_NS))
			continue;
		change = add(c, GPU_CHANGE_XID, r);
		change->xid = x->code;
		change->count = r->xids[i].count - x->count;
		x->count = r->xids[i].count;
		x->boot_ns = boot_ns;
	}
}

size_t
gpu_changes_take(struct gpu_changes *c, const struct gpu_snapshot *s, int64_t boot_ns, const struct gpu_change **ret)
{
	c->count = 0;
	for (size_t i = 0; i < s->count; i++) {
		struct logged_state *logged = state_of(c, s->gpus[i].uuid);

		if (!logged)
			continue;
		compare_xids(c, logged, &s->gpus[i], boot_ns);
		compare_state(c, logged, &s->gpus[i]);
	}
	*ret = c->list;
	return c->count;
}
