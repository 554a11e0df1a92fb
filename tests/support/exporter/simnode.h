/* tests/support/exporter/simnode.h - a node on the NVML simulator inside a test: a scenario in a private folder, a clock that the
 * test moves, and the library that belongs to the build under test. */
#ifndef TOLLGATE_TESTS_SIMNODE_H
#define TOLLGATE_TESTS_SIMNODE_H

#include "exporter/source/reader.h"

struct simnode {
	char dir[64]; /* removed at the end, with what is in it */
	char library[512];
	char scenario[128];
	char proc[128], pods[128]; /* for simnode_show_processes */
	void *handle;              /* of the library, for dlsym */
	void (*set_time_ns)(int64_t t_ns);
	struct gpu_source *source; /* NULL until simnode_open */
	struct gpu_snapshot *snapshot;
};

#define SIMNODE_T0_NS INT64_C(5000123456789) /* boot time of virtual time 0 */

/* Beyond what anything here takes on a machine that is busy. */
#define SIMNODE_PATIENCE_NS INT64_C(300000000000)

/* Where the simulator is: $TOLLGATE_BUILD_DIR/sim, or beside the folder of this program. */
void simnode_library(char *out, size_t size);

/* Virtual time stands at 0. Fails the test when anything goes wrong. */
void simnode_init(struct simnode *n, const char *scenario_yaml);
void simnode_init_file(struct simnode *n, const char *path); /* a scenario that exists */
void simnode_fini(struct simnode *n);
/* Lets the simulator keep n->proc and n->pods. Before simnode_open. */
void simnode_show_processes(struct simnode *n);

/* A reader of the simulator, which opens it by itself; simnode_open is not needed then. The caller frees it. */
struct reader *simnode_reader(struct simnode *n);

MUST_CHECK bool simnode_try_open(struct simnode *n, struct err *err);
MUST_CHECK bool simnode_try_read(struct simnode *n, int64_t t_ns, struct err *err);
void simnode_open(struct simnode *n);
/* The NVML source of the node, opened if it is not, for replacing one of its functions. */
struct nvml_source *simnode_nvml(struct simnode *n);
/* Reads at a virtual time; returns the GPU at a place of the snapshot. */
const struct gpu_reading *simnode_read(struct simnode *n, int64_t t_ns, size_t gpu);
const struct gpu_process *simnode_process(const struct gpu_reading *r, uint32_t pid); /* NULL: not there */

#endif
