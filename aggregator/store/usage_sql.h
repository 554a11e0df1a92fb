/* aggregator/store/usage_sql.h - how rows of usage find their names; the same joins for every reader. */
#ifndef TOLLGATE_STORE_USAGE_SQL_H
#define TOLLGATE_STORE_USAGE_SQL_H

/* u is usage_rows(...): n node, c cluster, d device, g GPU; w workspace, t tenant and h holder where somebody held. */
#define USAGE_JOINS                                                                                \
	"JOIN node n ON n.id = u.node_id JOIN cluster c ON c.id = n.cluster_id "                   \
	"JOIN device d ON d.id = u.device_id JOIN gpu g ON g.id = d.gpu_id "                       \
	"LEFT JOIN workspace w ON w.id = u.workspace_id LEFT JOIN tenant t ON t.id = w.tenant_id " \
	"LEFT JOIN holder h ON h.id = u.holder_id "

/* "namespace/pod/container", "slurm job 17", "user alice"; empty where nobody held. */
#define USAGE_WORKLOAD                                                      \
	"CASE h.kind WHEN 1 THEN concat_ws('/', nullif(h.namespace, ''), "  \
	"coalesce(nullif(h.pod, ''), h.pod_uid), nullif(h.container, '')) " \
	"WHEN 2 THEN 'slurm job ' || h.slurm_job WHEN 3 THEN 'user ' || h.user_name ELSE '' END"

#endif
