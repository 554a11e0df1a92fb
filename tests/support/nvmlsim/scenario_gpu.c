/* tests/support/nvmlsim/scenario_gpu.c - the GPUs of a scenario and how they are cut. */
#include "tests/support/nvmlsim/scenario_read.h"

#include <stdio.h>
#include <string.h>

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

/* "3g.40gb", or {profile: 3g.40gb, gi: 2, ci: 0}. */
static bool
read_instance(const struct reader *r, const struct yaml_node *n, const struct sim_gpu *g, struct sim_layout *l)
{
	static const char *const keys[] = {"profile", "gi", "ci", NULL};
	struct sim_instance *in = &l->instances[l->count];
	const char *profile = n->text;
	int64_t gi = -1, ci = 0;
	char words[3 * SIM_TEXT];
	struct err cause;

	if (n->kind == YAML_MAP) {
		if (!yaml_only_keys(r->doc, n, keys, r->err) || !yaml_str(r->doc, n, "profile", &profile, r->err) ||
		    !read_int(r, n, "gi", 0, 100, &gi) || !read_int(r, n, "ci", 0, 100, &ci))
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
	/* less than its slices, as on real GPUs: the driver keeps some for itself */
	in->memory_mib = (uint64_t)(in->slices.memory * g->geometry.memory_slice_mib * 95 / 100);
	snprintf(words, sizeof(words), "%s/%" PRId64 "/%" PRIu32 "/%" PRIu32, g->uuid, l->at_ns, in->gi, in->ci);
	sim_uuid("MIG", words, in->uuid);
	l->count++;
	return true;
}

/* What a driver would refuse to make. */
static bool
layout_fits(const struct sim_gpu *g, const struct sim_layout *l)
{
	int compute = 0, memory = 0;

	for (size_t i = 0; i < l->count; i++) {
		bool first = true;
		int parts = 0;

		for (size_t j = 0; j < l->count; j++) {
			if (l->instances[j].gi != l->instances[i].gi)
				continue;
			first &= j >= i;
			parts += l->instances[j].slices.compute;
			if (j != i && l->instances[j].ci == l->instances[i].ci)
				return false;
		}
		if (parts > l->instances[i].slices.gi_compute)
			return false;
		if (first) {
			compute += l->instances[i].slices.gi_compute;
			memory += l->instances[i].slices.memory;
		}
	}
	return compute <= g->geometry.compute_slices && memory <= g->geometry.memory_slices;
}

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

static bool
read_repartitions(const struct reader *r, const struct yaml_node *map, struct sim_gpu *g)
{
	static const char *const keys[] = {"at", "mig", NULL};
	const struct yaml_node *list;

	if (!read_list(r, map, "repartition", SIM_LAYOUTS_MAX - 1, &list))
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

bool
read_gpu(const struct reader *r, const struct yaml_node *n)
{
	static const char *const keys[] = {"model",     "count", "uuid",        "memory_mib", "idle_watts",
	                                   "max_watts", "mig",   "repartition", NULL};
	int64_t count = 1, memory_mib, idle = 50, max = 400;
	const char *model, *uuid = NULL;
	char words[2 * SIM_TEXT];

	if (!yaml_expect(r->doc, n, YAML_MAP, "a GPU", r->err) || !yaml_only_keys(r->doc, n, keys, r->err) ||
	    !yaml_str(r->doc, n, "model", &model, r->err) || !read_int(r, n, "count", 1, SIM_GPUS_MAX, &count) ||
	    !yaml_i64(r->doc, n, "memory_mib", 1, 1 << 24, &memory_mib, r->err) ||
	    !read_int(r, n, "idle_watts", 0, 5000, &idle) || !read_int(r, n, "max_watts", 0, 5000, &max) ||
	    (yaml_get(n, "uuid") && !yaml_str(r->doc, n, "uuid", &uuid, r->err)))
		return false;
	if (max < idle)
		return yaml_err(r->doc, n, r->err, "max_watts %" PRId64 " is below idle_watts %" PRId64, max, idle);
	if (uuid && count != 1)
		return yaml_err(r->doc, n, r->err, "a uuid belongs to one GPU, and count is %" PRId64, count);
	if (r->sc->gpu_count + (size_t)count > SIM_GPUS_MAX)
		return yaml_err(r->doc, n, r->err, "more than %d GPUs", SIM_GPUS_MAX);
	for (int64_t i = 0; i < count; i++) {
		struct sim_gpu *g = &r->sc->gpus[r->sc->gpu_count];

		*g = (struct sim_gpu){.memory_mib = memory_mib, .idle_mw = idle * 1000, .max_mw = max * 1000};
		snprintf(g->model, sizeof(g->model), "%s", model);
		snprintf(words, sizeof(words), "%.90s/%zu", r->sc->name, r->sc->gpu_count);
		if (uuid)
			snprintf(g->uuid, sizeof(g->uuid), "%s", uuid);
		else
			sim_uuid("GPU", words, g->uuid);
		g->mig_capable = mig_geometry_of(model, memory_mib, &g->geometry, NULL);
		if (!read_layout(r, yaml_get(n, "mig"), g, 0) || !read_repartitions(r, n, g))
			return false;
		r->sc->gpu_count++;
	}
	return true;
}
