/* tests/support/nvmlsim/scenario_event.c - what goes wrong in a scenario: faults, calls that misbehave, XIDs, clock steps. */
#include "tests/support/nvmlsim/sim_scenario_read.h"

#include <stdlib.h>
#include <string.h>

bool
read_span(const struct reader *r, const struct yaml_node *n, int64_t *at_ns, int64_t *until_ns)
{
	*at_ns = 0;
	*until_ns = SIM_NEVER;
	if (!read_duration(r, n, "at", at_ns) || !read_duration(r, n, "until", until_ns))
		return false;
	return *until_ns > *at_ns || yaml_err(r->doc, n, r->err, "until must be after at");
}

bool
read_fault(const struct reader *r, const struct yaml_node *n)
{
	static const char *const keys[] = {"gpu", "at", "until", "lost", "reset_required", "unknown", "unloaded", NULL};
	static const char *const kinds[] = {
		[FAULT_LOST] = "lost",
		[FAULT_RESET_REQUIRED] = "reset_required",
		[FAULT_UNKNOWN] = "unknown",
		[FAULT_UNLOADED] = "unloaded",
	};
	struct sim_fault *f = &r->sc->faults[r->sc->fault_count++];
	const struct yaml_node *gpu;
	int found = 0;

	*f = (struct sim_fault){.gpu = -1};
	if (!yaml_expect(r->doc, n, YAML_MAP, "a fault", r->err) || !yaml_only_keys(r->doc, n, keys, r->err) ||
	    !read_span(r, n, &f->at_ns, &f->until_ns))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		bool on = false;

		if (!read_flag(r, n, kinds[i], &on))
			return false;
		if (on)
			f->kind = (enum sim_fault_kind)i;
		found += on;
	}
	if (found != 1)
		return yaml_err(r->doc, n, r->err, "a fault is one of lost, reset_required, unknown and unloaded");
	gpu = yaml_get(n, "gpu");
	if ((f->kind == FAULT_UNLOADED) == (gpu != NULL))
		return yaml_err(r->doc, n, r->err, "unloaded concerns the driver, every other fault names its gpu");
	return !gpu || read_gpu_number(r, gpu, &f->gpu);
}

bool
read_call(const struct reader *r, const struct yaml_node *n)
{
	static const char *const keys[] = {"name", "gpu", "at", "until", "delay", "status", "hang", NULL};
	struct sim_call *c = &r->sc->calls[r->sc->call_count++];
	const struct yaml_node *gpu = yaml_get(n, "gpu");
	int64_t status = 0;

	*c = (struct sim_call){.gpu = -1};
	if (!yaml_expect(r->doc, n, YAML_MAP, "a call", r->err) || !yaml_only_keys(r->doc, n, keys, r->err) ||
	    !read_short(r, n, "name", c->name, sizeof(c->name)) || !read_span(r, n, &c->at_ns, &c->until_ns) ||
	    !read_duration(r, n, "delay", &c->delay_ns) || !read_int(r, n, "status", 1, 999, &status) ||
	    !read_flag(r, n, "hang", &c->hang) || (gpu && !read_gpu_number(r, gpu, &c->gpu)))
		return false;
	c->status = (int)status;
	if (strcmp(c->name, "*") != 0 && strncmp(c->name, "nvml", 4) != 0 && strncmp(c->name, "dcgm", 4) != 0)
		return yaml_err(r->doc, n, r->err, "name \"%s\" is neither a function of NVML or DCGM nor \"*\"",
		                c->name);
	if (!c->delay_ns && !c->status && !c->hang)
		return yaml_err(r->doc, n, r->err, "a call has a delay, a status, or hang: true");
	return true;
}

/* The ids of an instance of the layout at that moment. */
static bool
find_ids(const struct reader *r, const struct yaml_node *n, int64_t instance, struct sim_event *e)
{
	const struct sim_gpu *g = &r->sc->gpus[e->gpu];
	const struct sim_layout *l = &g->layouts[0];

	for (size_t i = 1; i < g->layout_count && g->layouts[i].at_ns <= e->at_ns; i++)
		l = &g->layouts[i];
	if ((size_t)instance >= l->count)
		return yaml_err(r->doc, n, r->err, "GPU %zu has no instance %" PRId64 " then", e->gpu, instance);
	e->gi = l->instances[instance].gi;
	e->ci = l->instances[instance].ci;
	return true;
}

bool
read_xid(const struct reader *r, const struct yaml_node *n)
{
	static const char *const keys[] = {"gpu", "at", "xid", "instance", NULL};
	struct sim_event *e = &r->sc->events[r->sc->event_count++];
	int64_t xid, instance = -1;
	int gpu;

	*e = (struct sim_event){.type = SIM_EVENT_XID, .gi = UINT32_MAX, .ci = UINT32_MAX};
	if (!yaml_expect(r->doc, n, YAML_MAP, "an XID", r->err) || !yaml_only_keys(r->doc, n, keys, r->err) ||
	    !read_duration(r, n, "at", &e->at_ns) || !yaml_i64(r->doc, n, "xid", 1, 1023, &xid, r->err) ||
	    !read_int(r, n, "instance", 0, SIM_INSTANCES_MAX, &instance))
		return false;
	if (!yaml_get(n, "gpu"))
		return yaml_err(r->doc, n, r->err, "gpu is missing");
	if (!read_gpu_number(r, yaml_get(n, "gpu"), &gpu))
		return false;
	e->gpu = (size_t)gpu;
	e->data = (uint64_t)xid;
	return instance < 0 || find_ids(r, n, instance, e);
}

bool
read_clock_step(const struct reader *r, const struct yaml_node *n)
{
	static const char *const keys[] = {"at", "forward", "back", NULL};
	struct sim_clock_step *s = &r->sc->steps[r->sc->step_count++];
	int64_t forward = 0, back = 0;

	*s = (struct sim_clock_step){0};
	if (!yaml_expect(r->doc, n, YAML_MAP, "a clock step", r->err) || !yaml_only_keys(r->doc, n, keys, r->err) ||
	    !read_duration(r, n, "at", &s->at_ns) || !read_duration(r, n, "forward", &forward) ||
	    !read_duration(r, n, "back", &back))
		return false;
	if ((forward == 0) == (back == 0))
		return yaml_err(r->doc, n, r->err, "a clock step goes forward or back");
	if (r->sc->step_count > 1 && s[-1].at_ns >= s->at_ns)
		return yaml_err(r->doc, n, r->err, "clock steps are in order of their time");
	s->by_ns = forward - back;
	return true;
}

static int
by_time(const void *a, const void *b)
{
	const struct sim_event *x = a, *y = b;

	if (x->at_ns != y->at_ns)
		return x->at_ns < y->at_ns ? -1 : 1;
	if (x->gpu != y->gpu)
		return x->gpu < y->gpu ? -1 : 1;
	return x->data < y->data ? -1 : x->data > y->data;
}

/* The driver tells of new layouts too. */
void
order_events(struct scenario *sc)
{
	size_t layouts = 0;

	for (size_t g = 0; g < sc->gpu_count; g++)
		layouts += sc->gpus[g].layout_count - 1;
	sc->events = mem_grow(sc->events, sc->event_count + layouts + 1, sizeof(*sc->events));
	for (size_t g = 0; g < sc->gpu_count; g++)
		for (size_t i = 1; i < sc->gpus[g].layout_count; i++)
			sc->events[sc->event_count++] = (struct sim_event){.at_ns = sc->gpus[g].layouts[i].at_ns,
			                                                   .gpu = g,
			                                                   .type = SIM_EVENT_MIG,
			                                                   .gi = UINT32_MAX,
			                                                   .ci = UINT32_MAX};
	qsort(sc->events, sc->event_count, sizeof(*sc->events), by_time);
}
