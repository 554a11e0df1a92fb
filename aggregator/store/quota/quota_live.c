/* aggregator/store/quota/quota_live.c - nodes, GPUs and their holders from telemetry, as the closed loop of quota reads them. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/quota/engine/quota_memory.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/quota/quota_store.h"
#include "common/base/hash.h"

#define RESULTS 10
#define READ_AGAIN_NS (5 * NS_PER_S)
#define MEASURED_NS \
	(900 * NS_PER_S) /* age of the records that are searched for activity; older activity is remembered */

struct live_memory {
	struct quota_memory *m;
	PGresult *results[RESULTS]; /* texts point into them */
	size_t count;
	struct quota_seen_node *nodes;
	struct quota_workload *workloads;
	int64_t at_ns; /* the time whose policy is in force */
};

/* GPUs and holders as they were last read, for as long as nodes say the same. */
struct quota_live_kept {
	struct live_memory m;
	uint64_t fingerprint;
	int64_t read_ns;
	struct quota_observed seen; /* the holders; GPUs are in the memory's nodes */
};

static void
memory_fini(struct live_memory *m)
{
	for (size_t i = 0; i < m->count; i++)
		PQclear(m->results[i]);
	quota_memory_free(m->m);
	*m = (struct live_memory){0};
}

struct quota_live_kept *
quota_live_kept_new(void)
{
	return mem_alloc(sizeof(struct quota_live_kept));
}

void
quota_live_kept_free(struct quota_live_kept *k)
{
	if (!k)
		return;
	memory_fini(&k->m);
	mem_free(k);
}

void
quota_live_fini(struct quota_live *live)
{
	struct live_memory *m = live->memory;

	if (m)
		memory_fini(m);
	mem_free(m);
	*live = (struct quota_live){0};
}

static bool
run(struct db *db, struct live_memory *m, const struct db_stmt *stmt, const struct db_args *a, PGresult **ret,
    struct err *err)
{
	ASSERT(m->count < RESULTS);
	if (!db_run(db, stmt, a, ret, err))
		return false;
	m->results[m->count++] = *ret;
	return true;
}

static uint64_t
mix(uint64_t h, const char *text)
{
	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
	return (h ^ 0xff) * UINT64_C(0x100000001b3);
}

/* ---- nodes and GPUs --------------------------------------------------------------------------------------------------------- */

/* Nothing was heard for three intervals; or the last report is of the future: the database's clock was set back since, and
 * a live node reports again within an interval. */
#define SILENT "(is_silent(s.received_at, s.interval_ns) OR s.received_at > now() + interval '1 second')"

/* Retired GPUs are left out. */
#define STATE_OF(what)                                                                                                        \
	"LEFT JOIN LATERAL (SELECT bool_or(x.state = 'retired') AS retired, bool_or(x.state = 'maintenance') AS maintenance " \
	"FROM node_state x WHERE " what " AND x.effective @> $1::timestamptz) m ON true "

static bool
load_nodes(struct db *db, struct live_memory *m, struct quota_observed *o, struct hash *at, uint64_t *ret_said,
           struct err *err)
{
	static const struct db_stmt stmt = {
		"quota nodes",
		"SELECT n.id, n.name, c.name, coalesce(t.name, ''), " SILENT ", "
		"coalesce(m.maintenance, false), coalesce(s.left_out > 0, false), coalesce(ns_of(s.received_at), 0), s.digest FROM node n "
		"JOIN cluster c ON c.id = n.cluster_id LEFT JOIN node_owner o ON o.node_id = n.id AND o.effective @> $1::timestamptz "
		"LEFT JOIN tenant t ON t.id = o.tenant_id LEFT JOIN node_status s ON s.node_id = n.id " STATE_OF(
			"x.node_id = n.id") "WHERE NOT coalesce(m.retired, false) AND n.approved_at IS NOT NULL ORDER BY n.name COLLATE \"C\""};
	struct quota_seen_node *nodes;
	struct db_args a = {0};
	PGresult *r;

	arg_time(&a, m->at_ns);
	if (!run(db, m, &stmt, &a, &r, err))
		return false;
	o->node_count = (size_t)PQntuples(r);
	o->nodes = m->nodes = nodes = quota_keep(&m->m, o->node_count, sizeof(*nodes));
	for (int i = 0; i < (int)o->node_count; i++) {
		nodes[i] = (struct quota_seen_node){.name = res_text(r, i, 1),
		                                    .cluster = res_text(r, i, 2),
		                                    .tenant = res_text(r, i, 3),
		                                    .silent = res_bool(r, i, 4),
		                                    .maintenance = res_bool(r, i, 5),
		                                    .partial = res_bool(r, i, 6),
		                                    .heard_ns = res_i64(r, i, 7)};
		hash_put(at, (uint64_t)res_i64(r, i, 0), (size_t)i);
		for (int c = 0; c < 9; c++)
			*ret_said = c == 7 ? *ret_said : mix(*ret_said, res_text(r, i, c));
	}
	return true;
}

/* The other inputs that decide which GPUs there are and to which workspaces their holders belong. */
static bool
add_counts(struct db *db, uint64_t *said, struct err *err)
{
	static const struct db_stmt stmt = {
		"quota live counts",
		"SELECT (SELECT max(id) FROM policy_version), (SELECT max(id) FROM gpu_service), (SELECT count(*) FROM gpu_service "
		"WHERE until_ns IS NULL), (SELECT max(id) FROM holder)"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	for (int c = 0; c < 4; c++)
		*said = mix(*said, res_text(r, 0, c));
	return true;
}

/* One slot of a GPU that is not cut: the whole of it, or its replicas. */
static void
plain_slots(struct live_memory *m, struct quota_seen_gpu *g, int32_t replicas)
{
	struct quota_seen_slot *slot = quota_keep(&m->m, 1, sizeof(*slot));

	*slot = replicas > 1 ? (struct quota_seen_slot){"", replicas, replicas, UNITS_PER_GPU / replicas}
	                     : (struct quota_seen_slot){"", 0, 1, UNITS_PER_GPU};
	g->slots = slot;
	g->slot_count = 1;
}

struct instances {
	const PGresult *r; /* node, gpu, profile, units, count, by node and GPU */
	int next;
};

/* Rows of instances come in the order of the GPUs that they are of. */
static void
cut_slots(struct live_memory *m, struct instances *in, int64_t node, struct quota_seen_gpu *g)
{
	int rows = PQntuples(in->r), first;
	struct quota_seen_slot *slots;

	while (in->next < rows &&
	       (res_i64(in->r, in->next, 0) < node ||
	        (res_i64(in->r, in->next, 0) == node && strcmp(res_text(in->r, in->next, 1), g->uuid) < 0)))
		in->next++;
	first = in->next;
	while (in->next < rows && res_i64(in->r, in->next, 0) == node &&
	       strcmp(res_text(in->r, in->next, 1), g->uuid) == 0)
		in->next++;
	g->slot_count = (size_t)(in->next - first);
	g->slots = slots = quota_keep(&m->m, g->slot_count, sizeof(*slots));
	for (int i = first; i < in->next; i++)
		slots[i - first] = (struct quota_seen_slot){.profile = res_text(in->r, i, 2),
		                                            .units = res_i64(in->r, i, 3),
		                                            .count = (int32_t)res_i64(in->r, i, 4)};
}

/* Each on the node that gpu_place names; reports of other nodes about it are ignored. */
static bool
load_gpus(struct db *db, struct live_memory *m, const struct hash *at, struct err *err)
{
	static const struct db_stmt gpus = {
		"quota gpus",
		"WITH live AS (SELECT l.node_id, l.uuid, l.healthy, l.sharing, l.replicas, "
		"NOT " SILENT " AS heard FROM live_gpu l JOIN node_status s ON s.node_id = l.node_id), "
		"every AS (SELECT p.node_id, p.uuid, p.model, coalesce(l.heard, false) AS known, coalesce(l.healthy, false) AS healthy, "
		"coalesce(l.sharing, '') AS sharing, coalesce(l.replicas, 0) AS replicas "
		"FROM gpu_place p LEFT JOIN live l ON l.node_id = p.node_id AND l.uuid = p.uuid) "
		"SELECT e.node_id, e.uuid, e.model, e.known, coalesce(m.maintenance, false) OR NOT e.healthy, e.sharing = 'mig', e.replicas "
		"FROM every e LEFT JOIN gpu g ON g.uuid = e.uuid " STATE_OF(
			"x.gpu_id = g.id") "WHERE NOT coalesce(m.retired, false) ORDER BY e.node_id, e.uuid COLLATE \"C\""};
	static const struct db_stmt instances = {
		"quota instances",
		"SELECT node_id, gpu, profile, units, count(*) FROM live_instance GROUP BY 1, 2, 3, 4 "
		"ORDER BY node_id, gpu COLLATE \"C\", profile COLLATE \"C\""};
	struct quota_seen_gpu *all;
	struct instances in = {0};
	struct db_args a = {0};
	PGresult *r, *cut;
	int rows;

	arg_time(&a, m->at_ns);
	if (!run(db, m, &gpus, &a, &r, err) || !run(db, m, &instances, NULL, &cut, err))
		return false;
	in.r = cut;
	rows = PQntuples(r);
	all = quota_keep(&m->m, (size_t)rows, sizeof(*all));
	for (int i = 0; i < rows; i++) {
		int64_t node = res_i64(r, i, 0);
		struct quota_seen_node *n;
		size_t position;

		all[i] = (struct quota_seen_gpu){.uuid = res_text(r, i, 1),
		                                 .model = res_text(r, i, 2),
		                                 .known = res_bool(r, i, 3),
		                                 .lost = res_bool(r, i, 4)};
		/* GPUs of a silent node are lost with it, and not one by one. */
		if (res_bool(r, i, 5) && all[i].known)
			cut_slots(m, &in, node, &all[i]);
		else
			plain_slots(m, &all[i], (int32_t)res_i64(r, i, 6));
		if (!hash_find(at, (uint64_t)node, &position))
			continue;
		n = &m->nodes[position];
		if (n->gpu_count == 0)
			n->gpus = &all[i];
		n->gpu_count++;
	}
	return true;
}

/* The GPUs that a policy declares of a node, until it is seen. Instances fill one GPU after the other. */
static bool
load_declared(struct db *db, struct live_memory *m, const struct hash *at, struct err *err)
{
	static const struct db_stmt stmt = {
		"quota declared",
		"SELECT d.node_id, d.model, d.profile, d.units, d.count FROM node_declared d WHERE d.effective @> $1::timestamptz "
		"ORDER BY d.node_id, d.model COLLATE \"C\", d.profile COLLATE \"C\""};
	struct db_args a = {0};
	PGresult *r;

	arg_time(&a, m->at_ns);
	if (!run(db, m, &stmt, &a, &r, err))
		return false;
	for (int i = 0; i < PQntuples(r);) {
		int64_t node = res_i64(r, i, 0), need = 0;
		struct quota_seen_gpu *gpus;
		struct quota_seen_node *n;
		size_t position = 0, count = 0;
		int first = i;

		for (; i < PQntuples(r) && res_i64(r, i, 0) == node; i++)
			need += res_i64(r, i, 4);
		if (!hash_find(at, (uint64_t)node, &position) || m->nodes[position].gpu_count > 0 ||
		    need > QUOTA_MAX_COUNT)
			continue;
		n = &m->nodes[position];
		gpus = quota_keep(&m->m, (size_t)need, sizeof(*gpus));
		for (int k = first; k < i; k++) {
			int64_t units = res_i64(r, k, 3), left = res_i64(r, k, 4), room = UNITS_PER_GPU / units;

			while (left > 0) {
				struct quota_seen_slot *slot = quota_keep(&m->m, 1, sizeof(*slot));
				int64_t here = left < room ? left : room;

				*slot = (struct quota_seen_slot){res_text(r, k, 2), 0, (int32_t)here, units};
				gpus[count++] = (struct quota_seen_gpu){
					.uuid = "", .model = res_text(r, k, 1), .slots = slot, .slot_count = 1};
				left -= here;
			}
		}
		n->gpus = gpus;
		n->gpu_count = count;
	}
	return true;
}

/* ---- holders ------------------------------------------------------------------------------------------------------------ */

struct measured {
	int64_t measured_ns, active_ns;
};

/* Of workloads of workspaces with an idle timeout: until when they are measured, and when they were last active. */
static bool
load_measured(struct db *db, struct live_memory *m, int64_t now_ns, struct hash *at, struct measured **ret,
              struct err *err)
{
	static const struct db_stmt stmt = {
		"quota active",
		"SELECT i.holder_id, max(i.start_ns + i.duration_ns), coalesce(max(i.start_ns + i.duration_ns) FILTER "
		"(WHERE i.used_ns > 0 OR i.unmeasured_ns > 0), 0) FROM usage_interval i JOIN holder_attribution a ON "
		"a.holder_id = i.holder_id AND a.effective @> $2::timestamptz JOIN workspace_quota q ON q.workspace_id = a.workspace_id AND "
		"q.idle_timeout_ns IS NOT NULL AND q.effective @> $2::timestamptz WHERE i.start_ns > $1 GROUP BY 1"};
	struct db_args a = {0};
	PGresult *r;

	arg_i64(&a, now_ns - MEASURED_NS);
	arg_time(&a, m->at_ns);
	if (!run(db, m, &stmt, &a, &r, err))
		return false;
	*ret = quota_keep(&m->m, (size_t)PQntuples(r), sizeof(**ret));
	for (int i = 0; i < PQntuples(r); i++) {
		(*ret)[i] = (struct measured){res_i64(r, i, 1), res_i64(r, i, 2)};
		hash_put(at, (uint64_t)res_i64(r, i, 0), (size_t)i);
	}
	return true;
}

static bool
load_holders(struct db *db, struct live_memory *m, int64_t now_ns, struct quota_observed *o, const struct hash *nodes,
             struct err *err)
{
	static const struct db_stmt stmt = {
		"quota holders",
		"SELECT h.node_id, h.gpu, h.device, coalesce(h.replica, -1), coalesce(i.profile, ''), coalesce(t.name || '/' || w.name, ''), "
		"h.namespace, h.pod, h.pod_uid, h.slurm_job, h.holds, h.holder_id FROM live_holder h JOIN node n ON n.id = h.node_id "
		"JOIN node_status s ON s.node_id = h.node_id LEFT JOIN live_instance i ON i.node_id = h.node_id AND i.uuid = h.device "
		"LEFT JOIN workspace w ON w.id = h.workspace_id AND NOT w.builtin LEFT JOIN tenant t ON t.id = w.tenant_id "
		"WHERE NOT " SILENT " "
		"ORDER BY n.name COLLATE \"C\", h.gpu COLLATE \"C\", h.device COLLATE \"C\", 4, h.holds DESC, h.holder_id"};
	struct quota_seen_holder *holders;
	struct hash measured_at = {0};
	struct measured *measured = NULL;
	size_t count = 0;
	PGresult *r;
	bool ok;

	ok = (o->idle_rule_count == 0 || load_measured(db, m, now_ns, &measured_at, &measured, err)) &&
	     run(db, m, &stmt, NULL, &r, err);
	if (!ok) {
		hash_fini(&measured_at);
		return false;
	}
	o->holders = holders = quota_keep(&m->m, (size_t)PQntuples(r), sizeof(*holders));
	for (int i = 0; i < PQntuples(r); i++) {
		size_t node, known;

		if (!hash_find(nodes, (uint64_t)res_i64(r, i, 0), &node))
			continue;
		holders[count] = (struct quota_seen_holder){.node = (int32_t)node,
		                                            .gpu = res_text(r, i, 1),
		                                            .device = res_text(r, i, 2),
		                                            .replica = (int32_t)res_i64(r, i, 3),
		                                            .profile = res_text(r, i, 4),
		                                            .workspace = res_text(r, i, 5),
		                                            .ns = res_text(r, i, 6),
		                                            .pod = res_text(r, i, 7),
		                                            .pod_uid = res_text(r, i, 8),
		                                            .slurm_job = res_text(r, i, 9),
		                                            .holds = res_bool(r, i, 10)};
		if (!res_null(r, i, 11) && hash_find(&measured_at, (uint64_t)res_i64(r, i, 11), &known)) {
			holders[count].measured_ns = measured[known].measured_ns;
			holders[count].active_ns = measured[known].active_ns;
		}
		count++;
	}
	o->holder_count = count;
	hash_fini(&measured_at);
	return true;
}

/* ---- leases ---------------------------------------------------------------------------------------------------------------------- */

/* Rows of the workloads that leases name beside their first one, in the order of the leases. Telemetry shows no claims. */
static bool
load_more_workloads(struct db *db, struct live_memory *m, size_t lease_count, struct err *err)
{
	static const struct db_stmt more = {
		"quota more workloads",
		"SELECT d.key, CASE WHEN w.name LIKE 'slurm:%' THEN '' ELSE w.name END, CASE WHEN w.name LIKE 'slurm:%' THEN "
		"split_part(substr(w.name, 7), '.', 1) ELSE '' END FROM decision d CROSS JOIN LATERAL unnest(d.workloads) AS w(name) "
		"WHERE d.status IN ('admitted', 'confirmed', 'suspect') AND w.name NOT LIKE 'claim:%' ORDER BY d.key COLLATE \"C\""};
	struct quota_identity *all;
	PGresult *r;
	int at = 0, count;

	if (!run(db, m, &more, NULL, &r, err))
		return false;
	count = PQntuples(r);
	all = quota_keep(&m->m, (size_t)count, sizeof(*all));
	for (int i = 0; i < count; i++)
		all[i] = (struct quota_identity){.pod_uid = res_text(r, i, 1), .slurm_job = res_text(r, i, 2)};
	for (size_t i = 0; i < lease_count; i++) {
		struct quota_workload *w = &m->workloads[i];

		while (at < count && strcmp(res_text(r, at, 0), w->lease) < 0)
			at++;
		w->more = &all[at];
		for (; at < count && strcmp(res_text(r, at, 0), w->lease) == 0; at++)
			w->more_count++;
	}
	return true;
}

/* A repeated release changes nothing. */
static bool
load_leases(struct db *db, struct live_memory *m, struct quota_observed *o, struct err *err)
{
	static const struct db_stmt workloads = {
		"quota workloads",
		"SELECT key, coalesce(workload_namespace, ''), coalesce(workload_pod, ''), coalesce(workload_pod_uid, ''), "
		"coalesce(workload_slurm_job, ''), coalesce(released_ns, changed_ns), CASE WHEN released_ns IS NULL THEN changed_seq "
		"ELSE 0 END FROM decision WHERE status IN ('admitted', 'confirmed', 'suspect') "
		"ORDER BY key COLLATE \"C\""};
	static const struct db_stmt in_service = {"quota in service", "SELECT EXISTS (SELECT FROM decision)"};
	static const struct db_stmt idle = {
		"quota idle",
		"SELECT lease_id, since_ns, coalesce(warned_ns, 0) FROM quota_idle ORDER BY lease_id COLLATE \"C\""};
	struct quota_workload *w;
	struct quota_idle *x;
	PGresult *r;

	if (!run(db, m, &workloads, NULL, &r, err))
		return false;
	o->workload_count = (size_t)PQntuples(r);
	o->workloads = m->workloads = w = quota_keep(&m->m, o->workload_count, sizeof(*w));
	for (int i = 0; i < (int)o->workload_count; i++)
		w[i] = (struct quota_workload){.lease = res_text(r, i, 0),
		                               .ns = res_text(r, i, 1),
		                               .pod = res_text(r, i, 2),
		                               .pod_uid = res_text(r, i, 3),
		                               .slurm_job = res_text(r, i, 4),
		                               .changed_ns = res_i64(r, i, 5),
		                               .change = res_i64(r, i, 6)};
	if (!load_more_workloads(db, m, o->workload_count, err))
		return false;
	if (!run(db, m, &in_service, NULL, &r, err))
		return false;
	o->in_service = res_bool(r, 0, 0);
	if (!run(db, m, &idle, NULL, &r, err))
		return false;
	o->idle_count = (size_t)PQntuples(r);
	o->idle = x = quota_keep(&m->m, o->idle_count, sizeof(*x));
	for (int i = 0; i < (int)o->idle_count; i++)
		x[i] = (struct quota_idle){res_text(r, i, 0), res_i64(r, i, 1), res_i64(r, i, 2)};
	return true;
}

static bool
load_rules(struct db *db, struct live_memory *m, struct quota_observed *o, struct err *err)
{
	static const struct db_stmt stmt = {
		"quota idle rules",
		"SELECT t.name || '/' || w.name AS path, q.idle_timeout_ns FROM workspace_quota q JOIN workspace w ON w.id = "
		"q.workspace_id JOIN tenant t ON t.id = w.tenant_id WHERE q.idle_timeout_ns IS NOT NULL AND q.effective @> $1::timestamptz "
		"ORDER BY (t.name || '/' || w.name) COLLATE \"C\""};
	struct quota_idle_rule *rules;
	struct db_args a = {0};
	PGresult *r;

	arg_time(&a, m->at_ns);
	if (!run(db, m, &stmt, &a, &r, err))
		return false;
	o->idle_rule_count = (size_t)PQntuples(r);
	o->idle_rules = rules = quota_keep(&m->m, o->idle_rule_count, sizeof(*rules));
	for (int i = 0; i < (int)o->idle_rule_count; i++)
		rules[i] = (struct quota_idle_rule){res_text(r, i, 0), res_i64(r, i, 1)};
	return true;
}

/* GPUs and holders are read again when a node says something else, and every few seconds: whose a holder is may change without a
 * word of its node. */
static bool
load_devices(struct db *db, struct quota_live_kept *k, int64_t now_ns, int64_t at_ns, const struct quota_observed *o,
             const struct hash *nodes, struct err *err)
{
	memory_fini(&k->m);
	k->m.at_ns = at_ns;
	k->seen = (struct quota_observed){.idle_rule_count = o->idle_rule_count};
	k->m.nodes = quota_keep(&k->m.m, o->node_count, sizeof(*k->m.nodes));
	if (!load_gpus(db, &k->m, nodes, err) || !load_declared(db, &k->m, nodes, err) ||
	    !load_holders(db, &k->m, now_ns, &k->seen, nodes, err)) {
		k->read_ns = 0;
		return false;
	}
	k->read_ns = now_ns;
	return true;
}

bool
store_quota_observe(struct db *db, int64_t now_ns, int64_t at_ns, struct quota_live_kept *kept, struct quota_live *ret,
                    struct err *err)
{
	struct live_memory *m = mem_alloc(sizeof(*m));
	struct quota_live live = {.memory = m};
	uint64_t said = UINT64_C(0xcbf29ce484222325);
	struct hash nodes = {0};
	bool ok;

	m->at_ns = at_ns;
	ok = load_rules(db, m, &live.seen, err) && load_nodes(db, m, &live.seen, &nodes, &said, err) &&
	     add_counts(db, &said, err);
	if (ok && (kept->read_ns == 0 || said != kept->fingerprint || now_ns < kept->read_ns ||
	           now_ns - kept->read_ns >= READ_AGAIN_NS)) {
		kept->fingerprint = said;
		ok = load_devices(db, kept, now_ns, at_ns, &live.seen, &nodes, err);
	}
	hash_fini(&nodes);
	if (!ok || !load_leases(db, m, &live.seen, err)) {
		quota_live_fini(&live);
		return false;
	}
	for (size_t i = 0; i < live.seen.node_count; i++) {
		m->nodes[i].gpus = kept->m.nodes[i].gpus;
		m->nodes[i].gpu_count = kept->m.nodes[i].gpu_count;
	}
	live.workloads = m->workloads;
	live.seen.holders = kept->seen.holders;
	live.seen.holder_count = kept->seen.holder_count;
	*ret = live;
	return true;
}
