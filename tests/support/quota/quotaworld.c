/* tests/support/quota/quotaworld.c - random small quota worlds and what happens in them. */
#include "tests/support/quota/quotaworld.h"

#include <stdio.h>
#include <string.h>

#define SECOND INT64_C(1000000000)

static const char *const names[] = {"n0", "n1", "n2", "n3", "n4", "n5"};
static const char *const models[] = {"H100"};
static const struct quota_shape shapes[] = {
	{.model = 0, .kind = QUOTA_WHOLE, .units = 5040, .name = ""},
	{.model = 0, .kind = QUOTA_MIG, .units = 675, .name = "1g.10gb"},
	{.model = 0, .kind = QUOTA_REPLICA, .units = 1260, .name = "1/4"},
};

enum step_kind {
	STEP_SUBMIT,
	STEP_FINISH,
	STEP_TICK,
	STEP_DRAIN,
	STEP_RELEASE,
	STEP_EMPTY,
	STEP_CONFIRM,
	STEP_BEAT,
	STEP_ENFORCE,
	STEP_CANCEL,
	STEP_NODE_LOST,
	STEP_NODE_BACK,
	STEP_GPU_LOST,
	STEP_GPU_BACK,
	STEP_LAYOUT,
	STEP_EXCEPTION,
	STEP_REVOKE,
	STEP_POLICY,
	STEP_MOVE,
	STEP_RENEW,
	STEP_ADOPT,
	STEP_ADOPTION,
	STEP_ENFORCEMENT,
	STEP_LOSE,
	STEP_UNFENCE,
};
static const char *const words[] = {"submit",   "finish",      "tick",   "drain",  "release", "empty",    "confirm",
                                    "beat",     "enforce",     "cancel", "lost",   "back",    "gpu lost", "gpu back",
                                    "layout",   "exception",   "revoke", "policy", "move",    "renew",    "adopt",
                                    "adoption", "enforcement", "lose",   "unfence"};

/* How often each comes: work comes and ends, the rest happens now and then. The first ones were there before schedulers could adopt. */
#define FIRST_KINDS 31
static const uint8_t often[] = {
	STEP_SUBMIT,    STEP_SUBMIT,    STEP_SUBMIT,    STEP_SUBMIT,    STEP_FINISH,   STEP_FINISH,   STEP_FINISH,
	STEP_TICK,      STEP_TICK,      STEP_DRAIN,     STEP_RELEASE,   STEP_EMPTY,    STEP_EMPTY,    STEP_CONFIRM,
	STEP_CONFIRM,   STEP_BEAT,      STEP_ENFORCE,   STEP_CANCEL,    STEP_FINISH,   STEP_SUBMIT,   STEP_LAYOUT,
	STEP_REVOKE,    STEP_NODE_LOST, STEP_NODE_BACK, STEP_NODE_BACK, STEP_GPU_LOST, STEP_GPU_BACK, STEP_GPU_BACK,
	STEP_EXCEPTION, STEP_POLICY,    STEP_MOVE,      STEP_RENEW,     STEP_ADOPT,    STEP_ADOPTION, STEP_ENFORCEMENT,
	STEP_LOSE,      STEP_UNFENCE,   STEP_UNFENCE,
};

/* ---- drawing ------------------------------------------------------------------------------------------------------------------- */

static int64_t
gpus(struct prop_source *s, int64_t most)
{
	return prop_i64(s, 0, most) * UNITS_PER_GPU;
}

/* Mostly the default, else a number of GPUs. */
static int64_t
term(struct prop_source *s, int64_t most)
{
	return prop_index(s, 3) < 2 ? QUOTA_DEFAULT : gpus(s, most);
}

static void
draw_share(struct prop_source *s, struct quota_share *h, int32_t workspace, bool shared)
{
	*h = (struct quota_share){.workspace = workspace, .shared = shared, .reserved_shape = QUOTA_NONE};
	if (prop_index(s, 5) == 4) {
		h->reserved_shape = 1;
		h->reserved = prop_i64(s, 0, 4) * shapes[1].units;
	} else {
		h->reserved = gpus(s, shared ? 2 : 4);
	}
	h->limit = term(s, 8);
	h->borrow = term(s, 6);
	h->lend = term(s, 3);
}

static void
draw_people(struct prop_source *s, struct quotaworld *k)
{
	k->tenant_count = 1 + prop_index(s, 3);
	for (size_t i = 0; i < k->tenant_count; i++) {
		k->tenants[i] =
			(struct quota_tenant){.name = names[i],
		                              .isolation =
		                                      prop_index(s, 2) ? (enum quota_isolation)prop_index(s, 4) : 0,
		                              .per_workload_units = QUOTA_UNLIMITED};
		for (size_t o = 0; o < QUOTA_OTHERS; o++)
			k->tenants[i].other_limit[o] = QUOTA_UNLIMITED;
		if (prop_index(s, 4) == 3)
			k->caps[k->cap_count++] = (struct quota_cap){.tenant = (int32_t)i,
			                                             .maximum = gpus(s, 8),
			                                             .default_limit = QUOTA_DEFAULT};
	}
	k->workspace_count = 1 + prop_index(s, 5);
	for (size_t i = 0; i < k->workspace_count; i++) {
		struct quota_workspace *w = &k->workspaces[i];

		*w = (struct quota_workspace){.name = names[i],
		                              .tenant = (int32_t)prop_index(s, k->tenant_count),
		                              .reclaim = prop_index(s, 2) ? (enum quota_reclaim)prop_index(s, 3) : 0,
		                              .preempt_own = prop_index(s, 4) < 3,
		                              .enforce = prop_index(s, 8) == 7 ? QUOTA_ENFORCE_OFF : QUOTA_ENFORCE_ON,
		                              .weight = 1 + (int64_t)prop_index(s, 3),
		                              .per_workload_units = QUOTA_UNLIMITED};
		for (size_t o = 0; o < QUOTA_OTHERS; o++)
			w->other_limit[o] = o == QUOTA_CPU && prop_index(s, 4) == 3 ? 4 : QUOTA_UNLIMITED;
		draw_share(s, &k->shares[k->share_count++], (int32_t)i, false);
		if (prop_index(s, 2))
			draw_share(s, &k->shares[k->share_count++], (int32_t)i, true);
	}
}

/* kinds: of often, those that are drawn; ages: whether requests may have waited before they are submitted. */
static void
generate(struct prop_source *s, struct quotaworld *k, size_t kinds, bool ages)
{
	k->settings = (struct quota_settings){.burst = 2,
	                                      .grace_ns = prop_i64(s, 0, 20) * SECOND,
	                                      .aging_ns = prop_i64(s, 0, 20) * SECOND,
	                                      .head_wait_ns = prop_i64(s, 0, 60) * SECOND,
	                                      .backoff_ns = prop_i64(s, 0, 20) * SECOND,
	                                      .backoff_forget_ns = prop_i64(s, 0, 100) * SECOND,
	                                      .confirm_ns = prop_i64(s, 0, 50) * SECOND,
	                                      .silence_ns = prop_i64(s, 0, 50) * SECOND,
	                                      .unused_most_ns = ages ? prop_i64(s, 0, 400) * SECOND : 0};
	draw_people(s, k);
	k->node_count = 1 + prop_index(s, 5);
	for (size_t i = 0; i < k->node_count; i++) {
		int32_t shape = prop_index(s, 2) ? (int32_t)prop_index(s, 3) : 0;

		k->nodes[i].shape = shape;
		k->nodes[i].tenant = (int32_t)prop_index(s, k->tenant_count + 1) - 1;
		k->nodes[i].count = shape == 0 ? 1 : shape == 1 ? 1 + (int32_t)prop_index(s, 7) : 4;
		k->nodes[i].gpus = shape == 0 ? 1 + (int32_t)prop_index(s, 4) : 1 + (int32_t)prop_index(s, 2);
	}
	k->event_count = prop_index(s, QUOTAWORLD_EVENTS);
	for (size_t i = 0; i < k->event_count; i++) {
		struct quotaworld_step *e = &k->events[i];

		e->kind = often[prop_index(s, kinds)];
		e->pick = (uint8_t)prop_index(s, 64);
		e->count = (uint8_t)prop_index(s, 3);
		for (size_t d = 0; d < ARRAY_LEN(e->detail); d++)
			e->detail[d] =
				e->kind == STEP_SUBMIT || e->kind >= STEP_LAYOUT ? (uint8_t)prop_index(s, 240) : 0;
		e->advance_s = prop_index(s, 3) == 2 ? (int32_t)prop_index(s, 30) : 0;
		e->age = ages && e->kind == STEP_SUBMIT && prop_index(s, 8) == 7 ? (uint8_t)prop_index(s, 200) : 0;
	}
}

void
quotaworld_generate(struct prop_source *s, void *c)
{
	generate(s, c, ARRAY_LEN(often), true);
}

void
quotaworld_generate_first(struct prop_source *s, void *c)
{
	generate(s, c, FIRST_KINDS, false);
}

/* ---- the world ----------------------------------------------------------------------------------------------------------------- */

bool
quotaworld_load(const struct quotaworld *k, struct quota_state **ret, struct err *err)
{
	static const char *const clusters[] = {"c"};
	struct quota_node nodes[QUOTAWORLD_THINGS];
	struct quota_gpu devices[QUOTAWORLD_THINGS][4];
	struct quota_slots slots[QUOTAWORLD_THINGS];
	struct quota_world w = {.policy = {.settings = k->settings,
	                                   .clusters = clusters,
	                                   .cluster_count = 1,
	                                   .models = models,
	                                   .model_count = 1,
	                                   .shapes = shapes,
	                                   .shape_count = ARRAY_LEN(shapes),
	                                   .tenants = k->tenants,
	                                   .tenant_count = k->tenant_count,
	                                   .workspaces = k->workspaces,
	                                   .workspace_count = k->workspace_count,
	                                   .shares = k->shares,
	                                   .share_count = k->share_count,
	                                   .caps = k->caps,
	                                   .cap_count = k->cap_count},
	                        .nodes = nodes,
	                        .node_count = k->node_count};

	for (size_t i = 0; i < k->node_count; i++) {
		slots[i] = (struct quota_slots){.shape = k->nodes[i].shape, .count = k->nodes[i].count};
		for (int32_t d = 0; d < k->nodes[i].gpus; d++)
			devices[i][d] = (struct quota_gpu){.slots = &slots[i], .slot_count = 1};
		nodes[i] = (struct quota_node){.name = names[i],
		                               .tenant = k->nodes[i].tenant,
		                               .gpus = devices[i],
		                               .gpu_count = (size_t)k->nodes[i].gpus};
	}
	return quota_load(&w, ret, err);
}

bool
quotaworld_only_whole(const struct quota_world *w, int32_t tenant)
{
	for (size_t i = 0; i < w->node_count; i++)
		for (size_t d = 0; w->nodes[i].tenant == tenant && d < w->nodes[i].gpu_count; d++)
			for (size_t k = 0; k < w->nodes[i].gpus[d].slot_count; k++)
				if (w->nodes[i].gpus[d].slots[k].shape != 0)
					return false;
	return true;
}

/* ---- events -------------------------------------------------------------------------------------------------------------------- */

/* Mostly none. */
static const char *const reasons[] = {"", "", "", "Resources", "Priority \"high\""};

static void
make_requests(const struct quotaworld_step *e, size_t i, const struct quota_world *now, struct quotaworld_event *ret)
{
	size_t count = e->count == 0 ? 1 : e->count;

	for (size_t q = 0; q < count; q++) {
		struct quota_request *r = &ret->requests[q];
		const uint8_t *d = &e->detail[q];

		snprintf(ret->ids[q], sizeof(ret->ids[q]), "r%zu-%zu", i, q);
		*r = (struct quota_request){.id = ret->ids[q],
		                            .workspace =
		                                    (int32_t)((size_t)(e->pick + d[0]) % now->policy.workspace_count),
		                            .shape = d[1] % 5 < 3 ? 0 : d[1] % 5 - 2,
		                            .count = 1 + d[2] % 4,
		                            .priority = d[3] % 4 - 1,
		                            .klass = QUOTA_NONE,
		                            .preemptible = d[0] % 4 != 3,
		                            .submitted_ns = ret->now_ns - (e->age * SECOND),
		                            .other = {d[2] % 7 == 6 ? d[1] % 6 : 0}};
		if (r->submitted_ns < 0)
			r->submitted_ns = 0;
		r->reason = reasons[d[3] / 5 % ARRAY_LEN(reasons)];
		r->per_node = d[3] % 5 == 4 ? r->count : 0;
		r->expires_ns = d[1] % 11 == 10 ? ret->now_ns + 20 * SECOND : 0;
	}
	ret->event.requests = ret->requests;
	ret->event.request_count = count;
}

static void
make_policy(const struct quotaworld_step *e, const struct quota_world *now, struct quotaworld_event *ret)
{
	size_t n = now->policy.share_count;

	ret->policy = now->policy;
	memcpy(ret->shares, now->policy.shares, n * sizeof(*ret->shares));
	if (n > 0) {
		struct quota_share *h = &ret->shares[e->pick % n];

		h->reserved_shape = QUOTA_NONE;
		h->reserved = e->detail[0] % 5 * UNITS_PER_GPU;
		h->limit = e->detail[1] % 3 ? QUOTA_DEFAULT : e->detail[2] % 8 * UNITS_PER_GPU;
		h->lend = e->detail[3] % 3 ? QUOTA_DEFAULT : e->detail[4] % 4 * UNITS_PER_GPU;
	}
	ret->policy.shares = ret->shares;
	ret->event.policy = &ret->policy;
}

/* Another workspace is enforced, or not any more. */
static void
make_enforcement(const struct quotaworld_step *e, const struct quota_world *now, struct quotaworld_event *ret)
{
	size_t n = now->policy.workspace_count;
	struct quota_workspace *w = &ret->workspaces[e->pick % n];

	ret->policy = now->policy;
	memcpy(ret->workspaces, now->policy.workspaces, n * sizeof(*ret->workspaces));
	w->enforce = w->enforce == QUOTA_ENFORCE_ON && e->detail[0] % 8 > 5 ? (enum quota_enforce)(e->detail[0] % 8 - 5)
	                                                                    : QUOTA_ENFORCE_ON;
	ret->policy.workspaces = ret->workspaces;
	ret->event.policy = &ret->policy;
}

/* Wherever it says that it runs: on devices that are free or not, its own, shared or of another tenant, by GPU or by node, or nowhere. */
static void
make_adoption(const struct quotaworld_step *e, size_t i, const struct quota_world *now, struct quotaworld_event *ret)
{
	struct quota_lease *l = &ret->adopted;
	const uint8_t *d = e->detail;

	snprintf(ret->ids[0], sizeof(ret->ids[0]), "a%zu", i);
	*l = (struct quota_lease){.id = ret->ids[0],
	                          .workspace = (int32_t)(e->pick % now->policy.workspace_count),
	                          .shape = d[0] % 5 < 3 ? 0 : d[0] % 5 - 2,
	                          .count = 1 + d[1] % 4,
	                          .node = QUOTA_NONE,
	                          .parts = ret->parts,
	                          .priority = d[2] % 4 - 1,
	                          .preemptible = d[3] % 4 != 3,
	                          .since_ns = ret->now_ns - d[4] * SECOND,
	                          .other = {d[2] % 7 == 6 ? d[1] % 6 : 0}};
	if (l->since_ns < 0)
		l->since_ns = 0;
	for (int32_t k = 0; k < l->count && d[5] % 8 != 7; k++) {
		int32_t node = (int32_t)((size_t)(d[5] + (d[4] % 3 == 2 ? k : 0)) % now->node_count);

		ret->parts[l->part_count++] = (struct quota_part){
			.node = node,
			.gpu = d[3] % 3 == 2 ? QUOTA_NONE : (int32_t)((size_t)(d[2] + k) % now->nodes[node].gpu_count),
			.shape = l->shape,
			.count = 1};
	}
	ret->event.adopted = l;
}

static void
make_exception(const struct quotaworld_step *e, size_t i, const struct quota_world *now, struct quotaworld_event *ret)
{
	snprintf(ret->ids[3], sizeof(ret->ids[3]), "x%zu", i);
	ret->exception = (struct quota_exception){.id = ret->ids[3],
	                                          .workspace = (int32_t)(e->pick % now->policy.workspace_count),
	                                          .shared = e->detail[0] % 4 == 3,
	                                          .extra_limit = e->detail[1] % 4 * UNITS_PER_GPU,
	                                          .extra_reserved = e->detail[2] % 3 * UNITS_PER_GPU,
	                                          .from_ns = ret->now_ns + e->detail[3] % 10 * SECOND};
	ret->exception.until_ns = ret->exception.from_ns + (1 + e->detail[4] % 40) * SECOND;
	ret->event.exception = &ret->exception;
}

static const char *
nth_lease(const struct quotaworld_step *e, const struct quota_world *now, bool ordered)
{
	for (size_t i = 0; ordered && i < now->lease_count; i++)
		if (now->leases[(i + e->pick) % now->lease_count].order != QUOTA_NO_ORDER)
			return now->leases[(i + e->pick) % now->lease_count].id;
	return now->lease_count > 0 ? now->leases[e->pick % now->lease_count].id : "nobody";
}

/* To whole GPUs or slices, whatever is on it. */
static void
make_layout(const struct quotaworld_step *e, struct quotaworld_event *ret)
{
	bool whole = e->detail[0] % 2 == 0;

	ret->slots[0] = (struct quota_slots){.shape = whole ? 0 : 1, .count = whole ? 1 : 1 + e->detail[1] % 7};
	ret->event.slots = ret->slots;
	ret->event.slot_count = 1;
}

/* All of a fence, or its part on one GPU. */
static void
make_unfence(const struct quotaworld_step *e, const struct quota_world *now, struct quotaworld_event *ret)
{
	const struct quota_fence *f = now->fence_count > 0 ? &now->fences[e->pick % now->fence_count] : NULL;

	ret->event.id = f ? f->id : "nobody";
	if (!f || e->detail[0] % 2 == 0)
		return;
	ret->parts[0] = (struct quota_part){.node = f->node, .gpu = f->gpu};
	ret->event.parts = ret->parts;
	ret->event.part_count = 1;
}

const struct quota_event *
quotaworld_event(const struct quotaworld *k, size_t i, const struct quota_world *now, struct quotaworld_event *ret)
{
	static const enum quota_event_kind kinds[] = {
		[STEP_SUBMIT] = QUOTA_SUBMIT,
		[STEP_FINISH] = QUOTA_FINISH,
		[STEP_TICK] = QUOTA_TICK,
		[STEP_DRAIN] = QUOTA_DRAIN,
		[STEP_RELEASE] = QUOTA_RELEASE,
		[STEP_EMPTY] = QUOTA_EMPTY,
		[STEP_CONFIRM] = QUOTA_CONFIRM,
		[STEP_BEAT] = QUOTA_HEARTBEAT,
		[STEP_ENFORCE] = QUOTA_ENFORCE,
		[STEP_CANCEL] = QUOTA_CANCEL,
		[STEP_NODE_LOST] = QUOTA_NODE_LOST,
		[STEP_NODE_BACK] = QUOTA_NODE_BACK,
		[STEP_GPU_LOST] = QUOTA_GPU_LOST,
		[STEP_GPU_BACK] = QUOTA_GPU_BACK,
		[STEP_LAYOUT] = QUOTA_LAYOUT,
		[STEP_EXCEPTION] = QUOTA_EXCEPTION,
		[STEP_REVOKE] = QUOTA_EXCEPTION_END,
		[STEP_POLICY] = QUOTA_POLICY,
		[STEP_MOVE] = QUOTA_CONFIRM,
		[STEP_RENEW] = QUOTA_RENEW,
		[STEP_ADOPT] = QUOTA_ADOPT,
		[STEP_ADOPTION] = QUOTA_ADOPTION,
		[STEP_ENFORCEMENT] = QUOTA_POLICY,
		[STEP_LOSE] = QUOTA_RELEASE,
		[STEP_UNFENCE] = QUOTA_UNFENCE,
	};
	const struct quotaworld_step *e = &k->events[i];

	*ret = (struct quotaworld_event){.now_ns = now->now_ns + e->advance_s * SECOND,
	                                 .event = {.kind = kinds[e->kind]}};
	ret->event.node = (int32_t)(e->pick % now->node_count);
	ret->event.gpu = (int32_t)(e->count % now->nodes[ret->event.node].gpu_count);
	ret->event.id = nth_lease(e, now, e->kind == STEP_DRAIN || e->kind == STEP_ENFORCE || e->kind == STEP_EMPTY);
	switch ((enum step_kind)e->kind) {
	case STEP_SUBMIT: make_requests(e, i, now, ret); break;
	case STEP_CANCEL:
		ret->event.id = now->waiting_count > 0 ? now->waiting[e->pick % now->waiting_count].id : "nobody";
		break;
	case STEP_LAYOUT: make_layout(e, ret); break;
	case STEP_EXCEPTION: make_exception(e, i, now, ret); break;
	case STEP_REVOKE:
		ret->event.id =
			now->exception_count > 0 ? now->exceptions[e->pick % now->exception_count].id : "nobody";
		break;
	case STEP_POLICY: make_policy(e, now, ret); break;
	case STEP_ENFORCEMENT: make_enforcement(e, now, ret); break;
	case STEP_ADOPT: make_adoption(e, i, now, ret); break;
	case STEP_ADOPTION: ret->event.complete = e->detail[0] % 2 == 1; break;
	case STEP_LOSE: ret->event.lost = true; break;
	case STEP_UNFENCE: make_unfence(e, now, ret); break;
	case STEP_MOVE:
		/* Where another lease is, or was before it ended: often taken, sometimes not. */
		if (now->lease_count > 0) {
			ret->event.parts = now->leases[e->count % now->lease_count].parts;
			ret->event.part_count = now->leases[e->count % now->lease_count].part_count;
		}
		break;
	default: break;
	}
	return &ret->event;
}

/* ---- for people ---------------------------------------------------------------------------------------------------------------- */

void
quotaworld_describe(const void *c, struct buf *out)
{
	const struct quotaworld *k = c;

	buf_printf(out,
	           "grace %" PRId64 " aging %" PRId64 " head %" PRId64 " back-off %" PRId64 "/%" PRId64
	           " confirm %" PRId64 " silence %" PRId64 " unused %" PRId64,
	           k->settings.grace_ns / SECOND, k->settings.aging_ns / SECOND, k->settings.head_wait_ns / SECOND,
	           k->settings.backoff_ns / SECOND, k->settings.backoff_forget_ns / SECOND,
	           k->settings.confirm_ns / SECOND, k->settings.silence_ns / SECOND,
	           k->settings.unused_most_ns / SECOND);
	for (size_t i = 0; i < k->tenant_count; i++)
		buf_printf(out, "\n#   tenant %zu isolation %d", i, k->tenants[i].isolation);
	for (size_t i = 0; i < k->cap_count; i++)
		buf_printf(out, "\n#   maximum of tenant %d: %" PRId64, k->caps[i].tenant, k->caps[i].maximum);
	for (size_t i = 0; i < k->workspace_count; i++)
		buf_printf(out, "\n#   workspace %zu of %d reclaim %d own %d enforce %d weight %" PRId64, i,
		           k->workspaces[i].tenant, k->workspaces[i].reclaim, k->workspaces[i].preempt_own,
		           k->workspaces[i].enforce, k->workspaces[i].weight);
	for (size_t i = 0; i < k->share_count; i++)
		buf_printf(out, "\n#   share of %d%s R %" PRId64 " (shape %d) M %" PRId64 " B %" PRId64 " L %" PRId64,
		           k->shares[i].workspace, k->shares[i].shared ? " shared" : "", k->shares[i].reserved,
		           k->shares[i].reserved_shape, k->shares[i].limit, k->shares[i].borrow, k->shares[i].lend);
	for (size_t i = 0; i < k->node_count; i++)
		buf_printf(out, "\n#   node %zu of %d: %d GPUs of %d x shape %d", i, k->nodes[i].tenant,
		           k->nodes[i].gpus, k->nodes[i].count, k->nodes[i].shape);
	for (size_t i = 0; i < k->event_count; i++) {
		const struct quotaworld_step *e = &k->events[i];

		buf_printf(out, "\n#   %zu %s pick %u count %u [%u %u %u %u %u %u] age %u +%d s", i, words[e->kind],
		           e->pick, e->count, e->detail[0], e->detail[1], e->detail[2], e->detail[3], e->detail[4],
		           e->detail[5], e->age, e->advance_s);
	}
}
