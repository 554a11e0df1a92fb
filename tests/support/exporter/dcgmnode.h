/* tests/support/exporter/dcgmnode.h - a node with both simulators inside a test: NVML's (simnode.h), and DCGM's beside it on the same scenario
 * and the same clock. */
#ifndef TOLLGATE_TESTS_DCGMNODE_H
#define TOLLGATE_TESTS_DCGMNODE_H

#include "exporter/source/dcgm/dcgm.h"
#include "tests/support/exporter/simnode.h"

struct dcgmnode {
	struct simnode node;
	char library[512]; /* DCGM's */
	void *handle;      /* of it, for dlsym */
	struct dcgm_options options;
	struct dcgm *dcgm;
	unsigned (*hanging)(void); /* calls of DCGM */
	void (*release)(void);
	unsigned (*users)(void); /* of the library */
};

/* Virtual time stands at 0, and DCGM is not opened. Options may be changed up to then. */
void dcgmnode_init(struct dcgmnode *n, const char *scenario_yaml);
void dcgmnode_fini(struct dcgmnode *n);

/* Opens DCGM, and waits until that has returned. False: it failed. */
MUST_CHECK bool dcgmnode_try_open(struct dcgmnode *n, struct err *err);
/* Both; DCGM may fail. prefer: see dcgm_add. */
void dcgmnode_open(struct dcgmnode *n, bool prefer);
/* Reads at a virtual time, opening both first if nothing is open; returns the GPU at a place of the snapshot. */
const struct gpu_reading *dcgmnode_read(struct dcgmnode *n, int64_t t_ns, size_t gpu);
/* The instance with these ids; fails the test when there is none. */
const struct gpu_instance *dcgmnode_instance(const struct gpu_reading *r, int32_t gi, int32_t ci);

#endif
