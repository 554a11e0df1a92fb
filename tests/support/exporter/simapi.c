/* tests/support/exporter/simapi.c - the simulator's functions under their names. */
#include "tests/support/exporter/simapi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
load(void *handle, const char *name, void *field)
{
	void *symbol = dlsym(handle, name);

	if (!symbol) {
		fprintf(stderr, "simapi: the simulator has no %s\n", name);
		abort();
	}
	memcpy(field, &symbol, sizeof(symbol));
}

void
simapi_load(struct simapi *api, const struct simnode *n)
{
#define LOAD(ret, name, args) load(n->handle, #name, &api->name);
	NVML_FUNCTIONS(LOAD, LOAD)
#undef LOAD
	load(n->handle, "tollgate_sim_hanging", &api->tollgate_sim_hanging);
	load(n->handle, "tollgate_sim_release", &api->tollgate_sim_release);
}
