/* tests/support/exporter/dcgmnode.c - a node with both simulators inside a test. */
#include "tests/support/exporter/dcgmnode.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/time.h"
#include "exporter/source/dcgm/dcgm.h"

static _Noreturn void
give_up(const char *what, const char *why)
{
	fprintf(stderr, "dcgmnode: %s: %s\n", what, why);
	abort();
}

static void
load(struct dcgmnode *n)
{
	void *hanging, *release, *users;
	size_t folder = (size_t)(strrchr(n->node.library, '/') - n->node.library);

	snprintf(n->library, sizeof(n->library), "%.*s/libdcgm.so.4", (int)folder, n->node.library);
	n->handle = dlopen(n->library, RTLD_NOW | RTLD_LOCAL);
	if (!n->handle)
		give_up("the simulator of DCGM does not load", dlerror());
	hanging = dlsym(n->handle, "tollgate_sim_hanging");
	release = dlsym(n->handle, "tollgate_sim_release");
	users = dlsym(n->handle, "tollgate_sim_users");
	if (!hanging || !release || !users)
		give_up(n->library, "cannot be driven");
	memcpy(&n->hanging, &hanging, sizeof(hanging));
	memcpy(&n->release, &release, sizeof(release));
	memcpy(&n->users, &users, sizeof(users));
}

void
dcgmnode_init(struct dcgmnode *n, const char *scenario_yaml)
{
	*n = (struct dcgmnode){0};
	simnode_init(&n->node, scenario_yaml);
	load(n);
	n->options = (struct dcgm_options){.library = n->library,
	                                   .sample_interval_ns = NS_PER_S,
	                                   .wait_ns = SIMNODE_PATIENCE_NS};
}

void
dcgmnode_fini(struct dcgmnode *n)
{
	if (n->release)
		n->release();
	gpu_source_free(take(n->node.source));
	dcgm_free(take(n->dcgm));
	/* a worker that was left behind is not to meet the next test */
	while (n->users && n->users() > 0) {
		n->release();
		usleep(1000);
	}
	simnode_fini(&n->node);
	if (n->handle)
		dlclose(n->handle);
	*n = (struct dcgmnode){0};
}

bool
dcgmnode_try_open(struct dcgmnode *n, struct err *err)
{
	return dcgm_new(&n->options, &n->dcgm, err) && dcgm_wait_open(n->dcgm, SIMNODE_PATIENCE_NS, err);
}

void
dcgmnode_open(struct dcgmnode *n, bool prefer)
{
	struct err err;

	(void)!dcgmnode_try_open(n, &err);
	if (!n->dcgm)
		give_up("no thread for DCGM", err.text);
	simnode_open(&n->node);
	n->node.source = source_auto_new(n->node.source, n->dcgm, prefer);
}

const struct gpu_reading *
dcgmnode_read(struct dcgmnode *n, int64_t t_ns, size_t gpu)
{
	if (!n->dcgm)
		dcgmnode_open(n, false);
	return simnode_read(&n->node, t_ns, gpu);
}

const struct gpu_instance *
dcgmnode_instance(const struct gpu_reading *r, int32_t gi, int32_t ci)
{
	for (size_t i = 0; i < r->instance_count; i++)
		if (r->instances[i].gi == gi && r->instances[i].ci == ci)
			return &r->instances[i];
	fprintf(stderr, "dcgmnode: no instance %d/%d\n", gi, ci);
	abort();
}
