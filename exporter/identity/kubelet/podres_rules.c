/* exporter/identity/kubelet/podres_rules.c - what the kubelet's answer means: rules 3 to 6 of podres.h. Pure. */
#include <stdlib.h>
#include <string.h>

#include "exporter/identity/kubelet/podres.h"

static bool
same_device(const struct podres_grant *a, const struct podres_grant *b)
{
	return a->replica == b->replica && strcmp(a->device, b->device) == 0;
}

static bool
same_pod(const struct podres_grant *a, const struct podres_grant *b)
{
	return strcmp(a->pod, b->pod) == 0 && strcmp(a->ns, b->ns) == 0;
}

static void
drop(struct podres_list *l, size_t at)
{
	podres_grant_fini(&l->grants[at]);
	l->grants[at] = l->grants[--l->count];
}

static void
name_uid(const struct podres_circumstances *c, struct podres_grant *g)
{
	const struct pod_dir *dir = pod_dirs_by_name(c->dirs, g->ns, g->pod);

	if (!dir)
		return;
	mem_free(g->uid);
	g->uid = mem_strdup(dir->uid);
}

static int
by_content(const void *a, const void *b)
{
	const struct podres_grant *x = a, *y = b;
	int order = strcmp(x->device, y->device);

	if (order == 0)
		order = x->replica < y->replica ? -1 : x->replica > y->replica;
	if (order == 0)
		order = strcmp(x->ns, y->ns);
	if (order == 0)
		order = strcmp(x->pod, y->pod);
	return order ? order : strcmp(x->container, y->container);
}

static void
sort(struct podres_list *l)
{
	if (l->count > 0)
		qsort(l->grants, l->count, sizeof(*l->grants), by_content);
}

/* Since when each is listed, and rule 6. Where there are no folders at all, there is none to wait for. */
static void
note_age(const struct podres_circumstances *c, struct podres_list *list, const struct podres_list *before)
{
	for (size_t i = 0; i < list->count; i++) {
		struct podres_grant *g = &list->grants[i];

		g->listed_boot_ns = c->boot_ns;
		for (size_t k = 0; k < before->count; k++)
			if (same_device(&before->grants[k], g) && same_pod(&before->grants[k], g))
				g->listed_boot_ns = before->grants[k].listed_boot_ns;
		g->setting_up =
			!g->uid[0] && c->dirs->changed_ns != 0 && c->boot_ns - g->listed_boot_ns < PODRES_SETUP_NS;
	}
}

/* Rule 3. */
static void
keep_missing(const struct podres_circumstances *c, struct podres_list *list, struct podres_list *before)
{
	size_t answered = list->count;

	for (size_t i = before->count; i-- > 0;) {
		const struct podres_grant *old = &before->grants[i];
		bool given = false;

		for (size_t k = 0; k < answered && !given; k++)
			given = same_device(&list->grants[k], old);
		if (given || (old->uid[0] && !pod_dirs_by_uid(c->dirs, old->uid)))
			continue;
		list->grants = mem_grow(list->grants, list->count + 1, sizeof(*list->grants));
		list->grants[list->count++] = *old;
		before->grants[i] = before->grants[--before->count];
	}
}

/* Rule 5: true when a is to stay and b not. */
static bool
is_newer(const struct podres_circumstances *c, const struct podres_grant *a, const struct podres_grant *b)
{
	const struct pod_dir *x = pod_dirs_by_uid(c->dirs, a->uid), *y = pod_dirs_by_uid(c->dirs, b->uid);

	return x && y && x->changed_ns > y->changed_ns;
}

/* The list is sorted: the grants of one device are neighbours. */
static bool
is_superseded(const struct podres_circumstances *c, const struct podres_list *l, size_t at)
{
	const struct podres_grant *g = &l->grants[at];
	size_t first = at, last = at;

	while (first > 0 && same_device(&l->grants[first - 1], g))
		first--;
	while (last + 1 < l->count && same_device(&l->grants[last + 1], g))
		last++;
	for (size_t i = first; i <= last; i++)
		if (!same_pod(&l->grants[i], g) && is_newer(c, &l->grants[i], g))
			return true;
	return false;
}

static int
by_device(const void *key, const void *offer)
{
	return strcmp(key, ((const struct podres_offer *)offer)->device);
}

/* How often the device is advertised; 0: not told. */
static int32_t
replicas_of(const struct podres_offers *o, const struct podres_grant *g)
{
	const struct podres_offer *found = NULL;

	if (g->replica < 0)
		return 0;
	if (o->count > 0)
		found = bsearch(g->device, o->offers, o->count, sizeof(*o->offers), by_device);
	return found ? found->replicas : 0;
}

void
podres_apply(const struct podres_circumstances *c, const struct podres_offers *offers, struct podres_list *list,
             struct podres_list *before)
{
	for (size_t i = 0; i < list->count; i++)
		name_uid(c, &list->grants[i]);
	note_age(c, list, before);
	if (c->just_started)
		keep_missing(c, list, before);
	for (size_t i = list->count; i-- > 0;) {
		const struct podres_grant *g = &list->grants[i];

		if (c->alive && g->uid[0] && pod_dirs_by_uid(c->dirs, g->uid) && !c->alive(c->arg, g->uid))
			drop(list, i);
	}
	/* marked first: dropping one must not change what the others are compared with */
	sort(list);
	for (size_t i = 0; i < list->count; i++)
		list->grants[i].replica_of = is_superseded(c, list, i) ? -1 : replicas_of(offers, &list->grants[i]);
	for (size_t i = list->count; i-- > 0;)
		if (list->grants[i].replica_of < 0)
			drop(list, i);
	sort(list);
}
