/* tests/support/nvmlsim/scenario_mig.c - how the GPUs of a scenario are cut, and where their instances lie. */
#include "tests/support/nvmlsim/sim_scenario_read.h"

#include <stdio.h>
#include <string.h>

#define NOT_PLACED (-1)

static bool
gi_is_taken(const struct sim_layout *l, uint32_t gi)
{
	for (size_t i = 0; i < l->count; i++)
		if (l->instances[i].gi == gi)
			return true;
	return false;
}

/* Ids as drivers give them: the larger the instance, the lower the range its id is from. A compute instance that is a part
 * joins the GPU instance of the one before it while that has slices left. */
static void
number_instance(const struct sim_layout *l, struct sim_instance *in)
{
	const struct sim_instance *last = l->count ? &l->instances[l->count - 1] : NULL;
	static const uint32_t first_id[] = {0, 7, 3, 1, 1, 0, 0, 0, 0};

	if (last && in->slices.compute < in->slices.gi_compute && last->slices.gi_compute == in->slices.gi_compute &&
	    last->slices.memory == in->slices.memory) {
		int taken = 0;

		for (size_t i = 0; i < l->count; i++)
			if (l->instances[i].gi == last->gi)
				taken += l->instances[i].slices.compute;
		if (taken + in->slices.compute <= in->slices.gi_compute) {
			in->gi = last->gi;
			in->ci = last->ci + 1;
			return;
		}
	}
	in->ci = 0;
	in->gi = first_id[in->slices.gi_compute < 8 ? in->slices.gi_compute : 8];
	while (gi_is_taken(l, in->gi))
		in->gi++;
}

/* "3g.40gb", or a map of which only the profile is required. */
static bool
read_instance(const struct reader *r, const struct yaml_node *n, const struct sim_gpu *g, struct sim_layout *l)
{
	static const char *const keys[] = {"profile", "gi", "ci", "uuid", "placement", NULL};
	struct sim_instance *in = &l->instances[l->count];
	int64_t gi = -1, ci = 0, placement = NOT_PLACED;
	const char *profile = n->text;
	char words[3 * SIM_TEXT];
	struct err cause;

	if (n->kind == YAML_MAP) {
		if (!yaml_only_keys(r->doc, n, keys, r->err) || !yaml_str(r->doc, n, "profile", &profile, r->err) ||
		    !read_int(r, n, "gi", 0, 100, &gi) || !read_int(r, n, "ci", 0, 100, &ci) ||
		    !read_int(r, n, "placement", 0, g->geometry.memory_slices - 1, &placement) ||
		    !read_short(r, n, "uuid", in->uuid, sizeof(in->uuid)))
			return false;
	} else if (n->kind != YAML_SCALAR) {
		return yaml_err(r->doc, n, r->err,
		                "an instance is a profile like 3g.40gb, or a map with profile, gi and ci");
	}
	if (!mig_profile_parse(&g->geometry, profile, &in->slices, &cause))
		return yaml_err(r->doc, n, r->err, "%s", cause.text);
	snprintf(in->profile, sizeof(in->profile), "%s", profile);
	number_instance(l, in);
	if (gi >= 0) {
		in->gi = (uint32_t)gi;
		in->ci = (uint32_t)ci;
	}
	in->placement = (int)placement;
	/* less than its slices, as on real GPUs: the driver keeps some for itself */
	in->memory_mib = (uint64_t)(in->slices.memory * g->geometry.memory_slice_mib * 95 / 100);
	snprintf(words, sizeof(words), "%s/%" PRId64 "/%" PRIu32 "/%" PRIu32, g->uuid, l->at_ns, in->gi, in->ci);
	if (!in->uuid[0])
		sim_uuid("MIG", words, in->uuid);
	l->count++;
	return true;
}

/* ---- placement ------------------------------------------------------------------------------------------------------ */

static bool
first_of_its_gi(const struct sim_layout *l, size_t i)
{
	for (size_t j = 0; j < i; j++)
		if (l->instances[j].gi == l->instances[i].gi)
			return false;
	return true;
}

static bool
is_free(const struct sim_layout *l, size_t before, int at, int size)
{
	for (size_t i = 0; i < before; i++) {
		const struct sim_instance *other = &l->instances[i];

		if (at < other->placement + other->slices.memory && other->placement < at + size)
			return false;
	}
	return true;
}

/* Places the GPU instances from the i-th on; those that say where they are stay there. */
static bool
place_from(const struct mig_geometry *g, struct sim_layout *l, size_t i)
{
	struct sim_instance *in = &l->instances[i];
	int given = i < l->count ? in->placement : NOT_PLACED;

	if (i == l->count)
		return true;
	if (!first_of_its_gi(l, i)) {
		for (size_t j = 0; j < i; j++)
			if (l->instances[j].gi == in->gi)
				in->placement = l->instances[j].placement;
		return place_from(g, l, i + 1);
	}
	for (int at = 0; at < g->memory_slices; at++) {
		if ((given != NOT_PLACED && at != given) ||
		    !mig_may_begin_at(g, in->slices.gi_compute, in->slices.memory, at) ||
		    !is_free(l, i, at, in->slices.memory))
			continue;
		in->placement = at;
		if (place_from(g, l, i + 1))
			return true;
	}
	in->placement = given;
	return false;
}

/* What a driver would refuse to make. */
static bool
layout_fits(const struct sim_gpu *g, struct sim_layout *l)
{
	int compute = 0;

	for (size_t i = 0; i < l->count; i++) {
		int parts = 0;

		for (size_t j = 0; j < l->count; j++) {
			if (l->instances[j].gi != l->instances[i].gi)
				continue;
			parts += l->instances[j].slices.compute;
			if (j != i && l->instances[j].ci == l->instances[i].ci)
				return false;
		}
		if (parts > l->instances[i].slices.gi_compute)
			return false;
		if (first_of_its_gi(l, i))
			compute += l->instances[i].slices.gi_compute;
	}
	return compute <= g->geometry.compute_slices && place_from(&g->geometry, l, 0);
}

/* ---- layouts -------------------------------------------------------------------------------------------------------- */

/* `mig: [profiles]`, or `mig: off`. */
static bool
read_layout(const struct reader *r, const struct yaml_node *n, struct sim_gpu *g, int64_t at_ns)
{
	struct sim_layout *l = &g->layouts[g->layout_count++];

	*l = (struct sim_layout){.at_ns = at_ns};
	if (!n || (n->kind == YAML_SCALAR && strcmp(n->text, "off") == 0))
		return true;
	if (n->kind != YAML_LIST)
		return yaml_err(r->doc, n, r->err, "mig is a list of profiles, or off");
	if (!g->mig_capable)
		return yaml_err(r->doc, n, r->err, "a %s cannot be partitioned", g->model);
	if (n->count > SIM_INSTANCES_MAX || n->count > (size_t)g->geometry.compute_slices)
		return yaml_err(r->doc, n, r->err, "%zu instances are more than the GPU has compute slices", n->count);
	l->mig = true;
	for (const struct yaml_node *c = n->child; c; c = c->next)
		if (!read_instance(r, c, g, l))
			return false;
	return layout_fits(g, l) || yaml_err(r->doc, n, r->err, "these instances do not fit on one %s", g->model);
}

bool
read_layouts(const struct reader *r, const struct yaml_node *map, struct sim_gpu *g)
{
	static const char *const keys[] = {"at", "mig", NULL};
	const struct yaml_node *list;

	if (!read_list(r, map, "repartition", SIM_LAYOUTS_MAX - 1, &list))
		return false;
	g->layouts = mem_array(1 + (list ? list->count : 0), sizeof(*g->layouts));
	if (!read_layout(r, yaml_get(map, "mig"), g, 0))
		return false;
	for (const struct yaml_node *n = list ? list->child : NULL; n; n = n->next) {
		int64_t at = 0;

		if (!yaml_expect(r->doc, n, YAML_MAP, "a repartition", r->err) ||
		    !yaml_only_keys(r->doc, n, keys, r->err) || !read_duration(r, n, "at", &at))
			return false;
		if (at <= g->layouts[g->layout_count - 1].at_ns)
			return yaml_err(r->doc, n, r->err,
			                "repartitions are in order of their time, the first after 0s");
		if (!read_layout(r, yaml_get(n, "mig"), g, at))
			return false;
	}
	return true;
}
