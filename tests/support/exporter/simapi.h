/* tests/support/exporter/simapi.h - the simulator's functions under their names, for tests that call them as the exporter does. */
#ifndef TOLLGATE_TESTS_SIMAPI_H
#define TOLLGATE_TESTS_SIMAPI_H

#include "exporter/source/nvml/nvml_abi.h"
#include "tests/support/exporter/simnode.h"

struct simapi {
#define FIELD(ret, name, args) ret(*name) args;
	NVML_FUNCTIONS(FIELD, FIELD)
#undef FIELD
	unsigned (*tollgate_sim_hanging)(void);
	void (*tollgate_sim_release)(void);
};

/* Of the node's library; every function must be there. */
void simapi_load(struct simapi *api, const struct simnode *n);

#endif
