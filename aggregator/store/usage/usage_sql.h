/* aggregator/store/usage/usage_sql.h - how rows of usage find their names; the same joins for every reader. */
#ifndef TOLLGATE_USAGE_SQL_H
#define TOLLGATE_USAGE_SQL_H

/* What rows of usage_rows(...) u were at their hour, before they are summed: k.cluster_id, m.short_model, o.tenant_id. */
#define USAGE_CLUSTER_OF_HOUR "LEFT JOIN node_cluster k ON k.node_id = u.node_id AND k.effective @> u.hour "
#define USAGE_MODEL_OF_HOUR \
	"LEFT JOIN device e ON e.id = u.device_id LEFT JOIN gpu_spec m ON m.gpu_id = e.gpu_id AND m.effective @> u.hour "

/* o.tenant_id: whose node it was; none: shared. */
#define USAGE_OWNER_OF_HOUR "LEFT JOIN node_owner o ON o.node_id = u.node_id AND o.effective @> u.hour "

/* u has the ids of usage_rows(...), summed as far as they are needed, with cluster_id and gpu_model as of their hour: n node,
 * c cluster, d device, g GPU, w workspace, t tenant, h holder; none of them where the id was not needed, or nobody held. */
#define USAGE_JOINS                                                                                \
	"LEFT JOIN node n ON n.id = u.node_id LEFT JOIN cluster c ON c.id = u.cluster_id "         \
	"LEFT JOIN device d ON d.id = u.device_id LEFT JOIN gpu g ON g.id = d.gpu_id "             \
	"LEFT JOIN workspace w ON w.id = u.workspace_id LEFT JOIN tenant t ON t.id = w.tenant_id " \
	"LEFT JOIN holder h ON h.id = u.holder_id "

/* "namespace/pod/container", "slurm job 17", "user alice"; empty where nobody held. */
#define USAGE_WORKLOAD                                                      \
	"CASE h.kind WHEN 1 THEN concat_ws('/', nullif(h.namespace, ''), "  \
	"coalesce(nullif(h.pod, ''), h.pod_uid), nullif(h.container, '')) " \
	"WHEN 2 THEN 'slurm job ' || h.slurm_job WHEN 3 THEN 'user ' || h.user_name ELSE '' END"

/* Every sum, and the peak, under its own name, so that sums can be summed again. */
#define USAGE_SUMS                                                                              \
	"sum(u.used) AS used, sum(u.idle) AS idle, sum(u.unmeasured) AS unmeasured, "           \
	"sum(u.unallocated) AS unallocated, sum(u.stranded) AS stranded, sum(u.down) AS down, " \
	"sum(u.unknown) AS unknown, sum(u.over) AS over, sum(u.clock_adjust) AS clock_adjust, " \
	"sum(u.energy_mj) AS energy_mj, sum(u.memory_byte_ms) AS memory_byte_ms, "              \
	"sum(u.sm_active) AS sm_active, sum(u.sm_measured) AS sm_measured, "                    \
	"max(u.peak_memory_bytes) AS peak_memory_bytes"

#endif
