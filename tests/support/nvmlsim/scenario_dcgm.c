/* tests/support/nvmlsim/scenario_dcgm.c - what a scenario says of DCGM. */
#include "tests/support/nvmlsim/sim_scenario_read.h"

#include <string.h>

static bool
read_quirk(const struct reader *r, const struct yaml_node *n)
{
	static const struct {
		const char *name;
		enum sim_dcgm_quirk quirk;
	} known[] = {
		{"blanks", DCGM_QUIRK_BLANKS},         {"above_one", DCGM_QUIRK_ABOVE_ONE},
		{"multi_pass", DCGM_QUIRK_MULTI_PASS}, {"untold", DCGM_QUIRK_UNTOLD},
		{"needs_root", DCGM_QUIRK_NEEDS_ROOT},
	};

	for (size_t i = 0; n->kind == YAML_SCALAR && i < ARRAY_LEN(known); i++)
		if (strcmp(n->text, known[i].name) == 0) {
			r->sc->dcgm.quirks |= known[i].quirk;
			return true;
		}
	return yaml_err(r->doc, n, r->err, "the quirk \"%.60s\" of DCGM is not known",
	                n->kind == YAML_SCALAR ? n->text : "");
}

static bool
read_outage(const struct reader *r, const struct yaml_node *n)
{
	static const char *const keys[] = {"at", "until", "stuck", NULL};
	struct sim_outage *o = &r->sc->dcgm.outages[r->sc->dcgm.outage_count++];

	*o = (struct sim_outage){0};
	return yaml_expect(r->doc, n, YAML_MAP, "an outage", r->err) && yaml_only_keys(r->doc, n, keys, r->err) &&
	       read_span(r, n, &o->at_ns, &o->until_ns) && read_flag(r, n, "stuck", &o->stuck);
}

static bool
read_unlisted(const struct reader *r, const struct yaml_node *n)
{
	static const char *const keys[] = {"gpu", "instance", "at", "until", NULL};
	struct sim_unlisted *u = &r->sc->dcgm.unlisted[r->sc->dcgm.unlisted_count++];

	*u = (struct sim_unlisted){0};
	if (!yaml_expect(r->doc, n, YAML_MAP, "an instance that is not listed", r->err) ||
	    !yaml_only_keys(r->doc, n, keys, r->err))
		return false;
	if (!yaml_get(n, "gpu") || !yaml_get(n, "instance"))
		return yaml_err(r->doc, n, r->err, "an instance that is not listed has a gpu and an instance");
	return read_gpu_number(r, yaml_get(n, "gpu"), &u->gpu) &&
	       read_int(r, n, "instance", 0, SIM_INSTANCES_MAX - 1, &u->instance) &&
	       read_span(r, n, &u->at_ns, &u->until_ns);
}

bool
read_dcgm(const struct reader *r, const struct yaml_node *root)
{
	static const char *const keys[] = {"version", "quirk", "outages", "unlisted", NULL};
	const struct yaml_node *map = yaml_get(root, "dcgm"), *list;

	r->sc->dcgm.version = mem_strdup("4.2.3");
	if (!map)
		return true;
	if (!yaml_expect(r->doc, map, YAML_MAP, "dcgm", r->err) || !yaml_only_keys(r->doc, map, keys, r->err) ||
	    !read_text(r, map, "version", &r->sc->dcgm.version) || !read_list(r, map, "quirk", 16, &list))
		return false;
	for (const struct yaml_node *n = list ? list->child : NULL; n; n = n->next)
		if (!read_quirk(r, n))
			return false;
	if (!read_list(r, map, "outages", SIM_OUTAGES_MAX, &list))
		return false;
	for (const struct yaml_node *n = list ? list->child : NULL; n; n = n->next)
		if (!read_outage(r, n))
			return false;
	if (!read_list(r, map, "unlisted", SIM_UNLISTED_MAX, &list))
		return false;
	for (const struct yaml_node *n = list ? list->child : NULL; n; n = n->next)
		if (!read_unlisted(r, n))
			return false;
	return true;
}
