/* exporter/source/xids.c - errors counted for as long as the exporter runs. */
#include "exporter/source/xids.h"

#include <string.h>

struct xid_list {
	struct gpu_xid list[GPU_XID_MAX];
	size_t count;
};

struct gpu_history {
	char uuid[GPU_TEXT];
	unsigned opening;
	struct xid_list before; /* of the sources before this one */
	struct xid_list all;
};

struct xids {
	struct gpu_history *gpus[GPU_MAX]; /* those that had an error */
	size_t count;
};

struct xids *
xids_new(void)
{
	return mem_alloc(sizeof(struct xids));
}

void
xids_free(struct xids *x)
{
	if (!x)
		return;
	for (size_t i = 0; i < x->count; i++)
		mem_free(x->gpus[i]);
	mem_free(x);
}

/* NULL: it never had an error, and has none now. */
static struct gpu_history *
history_of(struct xids *x, const struct gpu_reading *r, unsigned opening)
{
	for (size_t i = 0; i < x->count; i++)
		if (strcmp(x->gpus[i]->uuid, r->uuid) == 0)
			return x->gpus[i];
	if (r->xid_count == 0 || x->count == GPU_MAX)
		return NULL;
	x->gpus[x->count] = mem_alloc(sizeof(struct gpu_history));
	x->gpus[x->count]->opening = opening;
	memcpy(x->gpus[x->count]->uuid, r->uuid, sizeof(r->uuid));
	return x->gpus[x->count++];
}

/* The last place is for all kinds that have no other, as in the sources. */
static void
add(struct xid_list *to, const struct gpu_xid *xid)
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
xids_carry(struct xids *x, unsigned opening, struct gpu_snapshot *s)
{
	for (size_t i = 0; i < s->count; i++) {
		struct gpu_reading *r = &s->gpus[i];
		struct gpu_history *h = history_of(x, r, opening);

		if (!h)
			continue;
		if (h->opening != opening) {
			h->opening = opening;
			h->before = h->all;
		}
		h->all = h->before;
		for (size_t k = 0; k < r->xid_count; k++)
			add(&h->all, &r->xids[k]);
		memcpy(r->xids, h->all.list, sizeof(r->xids));
		r->xid_count = h->all.count;
	}
}
