/* tests/bench/bench_quota.c - the quota engine on a large cluster: 1,000 workspaces, 10,000 leases, 2,000 nodes of 8 GPUs.
 *
 * The other side of each figure is its limit: a loop that takes so much of the processor's time. Below 1 is within it. Twice the leases
 * against the limit of twice the time shows that the cost grows no faster than they do. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "aggregator/core/quota/engine/quota.h"
#include "tests/support/harness/bench.h"

#define TENANTS 100
#define WORKSPACES 1000
#define NODES 2000
#define GPUS 8
#define GPUS_FULL 5 /* with these every GPU is leased */
#define VICTIMS 50

struct world {
	struct quota_tenant tenants[TENANTS];
	struct quota_workspace workspaces[WORKSPACES + 1];
	struct quota_share shares[WORKSPACES + 1];
	struct quota_node nodes[NODES];
	struct quota_gpu gpus[GPUS];
	struct quota_slots slot;
	struct quota_shape shape;
	struct quota_lease *leases;
	char (*ids)[16];
	struct quota_world world;
	struct quota_state *state;
	size_t lease_count;
	int64_t limit_ns; /* of the other side */
};

static const char *const names[] = {"c"};

static void
must(bool ok, const struct err *err)
{
	if (!ok) {
		fprintf(stderr, "%s\n", err->text);
		exit(1);
	}
}

/* Each of a thousand workspaces runs two GPUs more than it reserved; one more has a large reservation and runs nothing. */
static void
fill(struct world *w, size_t lease_count, size_t gpus)
{
	w->shape = (struct quota_shape){.kind = QUOTA_WHOLE, .units = UNITS_PER_GPU, .name = ""};
	w->slot = (struct quota_slots){.shape = 0, .count = 1};
	for (size_t i = 0; i < GPUS; i++)
		w->gpus[i] = (struct quota_gpu){.slots = &w->slot, .slot_count = 1};
	for (size_t i = 0; i < NODES; i++)
		w->nodes[i] =
			(struct quota_node){.name = "n", .tenant = QUOTA_NONE, .gpus = w->gpus, .gpu_count = gpus};
	for (size_t i = 0; i < TENANTS; i++)
		w->tenants[i] =
			(struct quota_tenant){.name = "t",
		                              .per_workload_units = QUOTA_UNLIMITED,
		                              .other_limit = {QUOTA_UNLIMITED, QUOTA_UNLIMITED, QUOTA_UNLIMITED}};
	for (size_t i = 0; i < WORKSPACES + 1; i++) {
		w->workspaces[i] =
			(struct quota_workspace){.name = "w",
		                                 .tenant = (int32_t)(i % TENANTS),
		                                 .preempt_own = true,
		                                 .weight = 1,
		                                 .per_workload_units = QUOTA_UNLIMITED,
		                                 .other_limit = {QUOTA_UNLIMITED, QUOTA_UNLIMITED, QUOTA_UNLIMITED}};
		w->shares[i] = (struct quota_share){
			.workspace = (int32_t)i,
			.shared = true,
			.reserved = (i < WORKSPACES ? (int64_t)(lease_count / WORKSPACES) - 2 : 2000) * UNITS_PER_GPU,
			.reserved_shape = QUOTA_NONE,
			.limit = QUOTA_UNLIMITED,
			.borrow = QUOTA_UNLIMITED,
			.lend = QUOTA_DEFAULT};
	}
	w->lease_count = lease_count;
	w->leases = mem_array(lease_count, sizeof(*w->leases));
	w->ids = mem_array(lease_count, sizeof(*w->ids));
	for (size_t i = 0; i < lease_count; i++) {
		struct quota_part *part = mem_alloc(sizeof(*part));

		snprintf(w->ids[i], sizeof(w->ids[i]), "l%zu", i);
		*part = (struct quota_part){.node = (int32_t)(i / gpus % NODES),
		                            .gpu = (int32_t)(i % gpus),
		                            .count = 1};
		w->leases[i] = (struct quota_lease){.id = w->ids[i],
		                                    .workspace = (int32_t)(i % WORKSPACES),
		                                    .count = 1,
		                                    .parts = part,
		                                    .part_count = 1,
		                                    .preemptible = true,
		                                    .since_ns = (int64_t)i};
	}
	w->world = (struct quota_world){.now_ns = (int64_t)lease_count,
	                                .policy = {.settings = {.burst = 2, .grace_ns = 1},
	                                           .clusters = names,
	                                           .cluster_count = 1,
	                                           .models = names,
	                                           .model_count = 1,
	                                           .shapes = &w->shape,
	                                           .shape_count = 1,
	                                           .tenants = w->tenants,
	                                           .tenant_count = TENANTS,
	                                           .workspaces = w->workspaces,
	                                           .workspace_count = WORKSPACES + 1,
	                                           .shares = w->shares,
	                                           .share_count = WORKSPACES + 1},
	                                .nodes = w->nodes,
	                                .node_count = NODES,
	                                .leases = w->leases,
	                                .lease_count = lease_count};
}

static void
load(void *arg)
{
	struct world *w = arg;
	struct quota_state *s = NULL;
	struct err err;

	must(quota_load(&w->world, &s, &err), &err);
	bench_keep(s);
	quota_free(s);
}

static void
step(struct quota_state *s, const struct quota_event *e, enum quota_decision expected, size_t victims)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	struct err err;

	must(quota_step(s, 0, e, &o, &err), &err);
	if (o->verdict_count > 0 && (o->verdicts[0].decision != expected || o->verdicts[0].victim_count != victims)) {
		fprintf(stderr, "%s with %zu victims\n", quota_decision_name(o->verdicts[0].decision),
		        o->verdicts[0].victim_count);
		exit(1);
	}
}

/* Asked, decided, placed, and given back. */
static void
decide(void *arg)
{
	struct world *w = arg;
	const struct quota_request r = {
		.id = "r", .workspace = 7, .count = 2, .klass = QUOTA_NONE, .preemptible = true};

	step(w->state, &(struct quota_event){.kind = QUOTA_SUBMIT, .requests = &r, .request_count = 1}, QUOTA_BORROW,
	     0);
	step(w->state, &(struct quota_event){.kind = QUOTA_FINISH, .id = "r"}, QUOTA_BORROW, 0);
}

/* An owner wants fifty where nothing is free; then it changes its mind. */
static void
reclaim(void *arg)
{
	struct world *w = arg;
	const struct quota_request r = {
		.id = "r", .workspace = WORKSPACES, .count = VICTIMS, .klass = QUOTA_NONE, .preemptible = true};

	step(w->state, &(struct quota_event){.kind = QUOTA_SUBMIT, .requests = &r, .request_count = 1}, QUOTA_RECLAIM,
	     VICTIMS);
	step(w->state, &(struct quota_event){.kind = QUOTA_CANCEL, .id = "r"}, QUOTA_RECLAIM, 0);
}

static void
wait_limit(void *arg)
{
	const struct world *w = arg;
	struct timespec a, b;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
	while ((b.tv_sec - a.tv_sec) * INT64_C(1000000000) + b.tv_nsec - a.tv_nsec < w->limit_ns);
}

static void
measure(struct world *w, const char *name, void (*ours)(void *), int64_t limit_ns, const char *against)
{
	w->limit_ns = limit_ns;
	bench_run(&(struct bench){.name = name,
	                          .item = "call",
	                          .items = 1,
	                          .against = against,
	                          .goal = 1,
	                          .ours = ours,
	                          .theirs = wait_limit,
	                          .arg = w});
}

int
main(void)
{
	struct world *roomy = mem_alloc(sizeof(*roomy)), *full = mem_alloc(sizeof(*full)),
		     *half = mem_alloc(sizeof(*half));
	struct err err;

	fill(roomy, 10000, GPUS);
	fill(full, 10000, GPUS_FULL);
	fill(half, 5000, GPUS_FULL);
	half->world.node_count = NODES / 2;
	measure(roomy, "quota load 10,000 leases", load, 50000000, "a limit of 50 ms");
	must(quota_load(&roomy->world, &roomy->state, &err), &err);
	must(quota_load(&full->world, &full->state, &err), &err);
	must(quota_load(&half->world, &half->state, &err), &err);
	measure(roomy, "quota decide and end", decide, 20000, "a limit of 20 us for the decision alone");
	measure(full, "quota reclaim with 50 victims", reclaim, 5000000, "a limit of 5 ms");
	measure(half, "quota reclaim, half the leases", reclaim, 2500000, "half the limit");
	return 0;
}
