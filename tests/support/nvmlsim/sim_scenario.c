/* tests/support/nvmlsim/sim_scenario.c - the scenario file as a whole. */
#include "tests/support/nvmlsim/sim_scenario_read.h"

#include <string.h>

#include "common/base/buf.h"

static bool
read_quirk(const struct reader *r, const struct yaml_node *n)
{
	static const struct {
		const char *name;
		enum sim_quirk quirk;
	} known[] = {
		{"stride32", QUIRK_STRIDE32},
		{"no_v3", QUIRK_NO_V3},
		{"no_v2", QUIRK_NO_V2},
		{"list_race", QUIRK_LIST_RACE},
		{"zombie_samples", QUIRK_ZOMBIE_SAMPLES},
		{"no_samples", QUIRK_NO_SAMPLES},
		{"memory_v1", QUIRK_MEMORY_V1},
		{"no_attributes", QUIRK_NO_ATTRIBUTES},
		{"unprivileged", QUIRK_UNPRIVILEGED},
		{"invalid_slots", QUIRK_INVALID_SLOTS},
	};

	for (size_t i = 0; n->kind == YAML_SCALAR && i < ARRAY_LEN(known); i++)
		if (strcmp(n->text, known[i].name) == 0) {
			r->sc->quirks |= known[i].quirk;
			return true;
		}
	return yaml_err(r->doc, n, r->err, "the driver_quirk \"%.60s\" is not known",
	                n->kind == YAML_SCALAR ? n->text : "");
}

/* One name, or a list of them. */
static bool
read_quirks(const struct reader *r, const struct yaml_node *root)
{
	const struct yaml_node *n = yaml_get(root, "driver_quirk");

	if (!n)
		return true;
	if (n->kind == YAML_SCALAR)
		return read_quirk(r, n);
	for (const struct yaml_node *c = n->child; c; c = c->next)
		if (!read_quirk(r, c))
			return false;
	return true;
}

/* The driver's array of GPM metrics has grown under one version. */
static bool
read_gpm_metrics(const struct reader *r, const struct yaml_node *root)
{
	int64_t *n = &r->sc->gpm_metrics;

	*n = 98;
	if (!read_int(r, root, "gpm_metrics", 98, 333, n))
		return false;
	return *n == 98 || *n == 210 || *n == 333 ||
	       yaml_err(r->doc, yaml_get(root, "gpm_metrics"), r->err,
	                "gpm_metrics is 98, 210 or 333, as drivers have it, and not %" PRId64, *n);
}

static const struct section {
	const char *key;
	size_t max;
	bool (*read)(const struct reader *r, const struct yaml_node *n);
} sections[] = {
	{"gpus", SIM_GPUS_MAX, read_gpu},       {"processes", SIM_PROCESSES_MAX, read_process},
	{"faults", SIM_FAULTS_MAX, read_fault}, {"calls", SIM_FAULTS_MAX, read_call},
	{"xids", SIM_EVENTS_MAX, read_xid},     {"clock_steps", SIM_FAULTS_MAX, read_clock_step},
};

static bool
read_section(const struct reader *r, const struct yaml_node *root, const struct section *s)
{
	const struct yaml_node *list;

	if (!read_list(r, root, s->key, s->max, &list))
		return false;
	for (const struct yaml_node *n = list ? list->child : NULL; n; n = n->next)
		if (!s->read(r, n))
			return false;
	return true;
}

static size_t
length_of(const struct yaml_node *root, const char *key)
{
	const struct yaml_node *n = yaml_get(root, key);

	return n && n->kind == YAML_LIST ? n->count : 0;
}

static bool
read_root(const struct reader *r, const struct yaml_node *root)
{
	static const char *const keys[] = {"name", "driver",    "library", "driver_quirk", "init_error", "gpm_metrics",
	                                   "gpus", "processes", "faults",  "calls",        "xids",       "clock_steps",
	                                   "dcgm", NULL};
	struct scenario *sc = r->sc;
	int64_t init_error = 0;

	if (!yaml_expect(r->doc, root, YAML_MAP, "a scenario", r->err) || !yaml_only_keys(r->doc, root, keys, r->err) ||
	    !read_text(r, root, "name", &sc->name) || !read_text(r, root, "driver", &sc->driver) ||
	    !read_text(r, root, "library", &sc->library) || !read_int(r, root, "init_error", 0, 999, &init_error) ||
	    !read_quirks(r, root) || !read_gpm_metrics(r, root))
		return false;
	sc->init_error = (int)init_error;
	if (!sc->name)
		return yaml_err(r->doc, root, r->err,
		                "name is missing: it tells the GPUs of one scenario from those of another");
	sc->gpus = mem_array(SIM_GPUS_MAX, sizeof(*sc->gpus));
	sc->faults = mem_array(length_of(root, "faults"), sizeof(*sc->faults));
	sc->calls = mem_array(length_of(root, "calls"), sizeof(*sc->calls));
	sc->events = mem_array(length_of(root, "xids"), sizeof(*sc->events));
	sc->steps = mem_array(length_of(root, "clock_steps"), sizeof(*sc->steps));
	for (size_t i = 0; i < ARRAY_LEN(sections); i++)
		if (!read_section(r, root, &sections[i]))
			return false;
	order_events(sc);
	return read_dcgm(r, root) && check_pids(r);
}

bool
scenario_parse(const char *name, const char *text, size_t len, struct scenario **ret, struct err *err)
{
	owned(yaml) struct yaml_doc *doc = NULL;
	owned(scenario) struct scenario *sc = mem_alloc(sizeof(*sc));
	struct reader r = {.sc = sc, .err = err};

	sc->driver = mem_strdup("550.163.01");
	sc->library = mem_strdup("12.550.163.01");
	if (!yaml_parse(name, text, len, &doc, err))
		return false;
	r.doc = doc;
	if (!read_root(&r, yaml_root(doc)))
		return false;
	*ret = take(sc);
	return true;
}

bool
scenario_load(const char *path, struct scenario **ret, struct err *err)
{
	in_place(buf) struct buf text;

	buf_init(&text, YAML_MAX_BYTES);
	return buf_read_file(&text, path, err) && scenario_parse(path, buf_text(&text), text.len, ret, err);
}

void
scenario_free(struct scenario *sc)
{
	if (!sc)
		return;
	for (size_t i = 0; i < sc->process_count; i++)
		sim_process_fini(&sc->processes[i]);
	for (size_t g = 0; g < sc->gpu_count; g++) {
		for (size_t i = 0; i < sc->gpus[g].series_count; i++)
			mem_free(sc->gpus[g].series[i].points);
		mem_free(sc->gpus[g].series);
		mem_free(sc->gpus[g].layouts);
	}
	mem_free(sc->name);
	mem_free(sc->driver);
	mem_free(sc->library);
	mem_free(sc->dcgm.version);
	mem_free(sc->gpus);
	mem_free(sc->processes);
	mem_free(sc->faults);
	mem_free(sc->calls);
	mem_free(sc->events);
	mem_free(sc->steps);
	mem_free(sc);
}
