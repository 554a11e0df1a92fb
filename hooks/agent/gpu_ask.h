/* hooks/agent/gpu_ask.h - how many GPUs a Slurm job asks for, of which type, and how many of them on each node. Pure.
 *
 * Rules:
 *  1. A TRES text is a list of [gres:|gres/]NAME[:TYPE][:COUNT] or NAME[:TYPE]=COUNT; without a count it is one. Names other than gpu, mps and
 *     shard are not our matter. mps and shard are refused: a lease is of whole GPUs or MIG instances. Slurm's own parser finds "gres" anywhere in an
 *     entry, with or without a divider after it: an entry that is a GPU to it alone ("xgresgpu:8") is refused.
 *  2. One job has GPUs of one type. An untyped request has the type of its partition where that has one only.
 *  3. The number is that of --gpus; else of each node times the nodes; else of each task times the tasks. Of a range of nodes the largest counts.
 *  4. per_node is what each node gives, where the request says so; 0: any distribution. (Of --gpus alone Slurm's queue does not tell whether one
 *     node is meant.)
 *  5. An exclusive job has all GPUs of its nodes. Where the nodes of its partition differ, it is refused.
 *  6. --gpus-per-socket is refused: how many sockets a job gets is known when it runs. */
#ifndef TOLLGATE_AGENT_GPU_ASK_H
#define TOLLGATE_AGENT_GPU_ASK_H

#include "common/base/err.h"

#define GPU_TYPE_SIZE 64
#define GPU_COUNT_MAX 1000000

/* A request as Slurm writes it. NULL or "": not given; numbers 0: not given. */
struct gpu_ask_text {
	const char *per_job, *per_node, *per_socket, *per_task;
	int64_t min_nodes, max_nodes, tasks;
	bool exclusive;
};

/* The GPUs of the nodes of a partition. */
struct node_gpus {
	int64_t count;            /* of one node; 0: it has none */
	char type[GPU_TYPE_SIZE]; /* "": untyped, or several */
	bool mixed;               /* nodes differ, or a node has several types */
};

struct gpu_ask {
	int64_t gpus; /* 0: it asks for none */
	int64_t per_node;
	char type[GPU_TYPE_SIZE];
};

/* nodes: of the partition; NULL: not known. ERR_INVALID: a sentence for the user. */
MUST_CHECK bool gpu_ask_parse(const struct gpu_ask_text *t, const struct node_gpus *nodes, struct gpu_ask *ret,
                              struct err *err);

/* The GPUs of a node, as sinfo writes them: "gpu:a100:8(S:0-1),nvme:1", "(null)". Adds to `into` what another node of the same partition has;
 * first: it is the first one. */
MUST_CHECK bool node_gpus_add(const char *gres, bool first, struct node_gpus *into, struct err *err);

/* "1g.10gb", "3g.40gb+me": the type is a MIG profile. */
bool gpu_type_is_mig(const char *type);

#endif
