-- oldest-binary: 0.1.0
-- What nodes say of this moment; never usage. It may be lost at any time: every node says all of it again within seconds.

CREATE UNLOGGED TABLE node_status (
	node_id integer PRIMARY KEY REFERENCES node,
	boot_id uuid NOT NULL,
	boot_ns bigint NOT NULL CHECK (boot_ns >= 0),
	wall_ns bigint NOT NULL,
	received_at timestamptz NOT NULL,
	skew_ns bigint NOT NULL,
	interval_ns bigint NOT NULL CHECK (interval_ns > 0),
	left_out integer NOT NULL CHECK (left_out >= 0),
	digest bytea NOT NULL CHECK (octet_length(digest) = 32),
	gpus jsonb NOT NULL,
	instances jsonb NOT NULL,
	holders jsonb NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- Written over every few seconds: compressing it would cost more than the room.
ALTER TABLE node_status ALTER COLUMN gpus SET STORAGE EXTERNAL, ALTER COLUMN instances SET STORAGE EXTERNAL,
	ALTER COLUMN holders SET STORAGE EXTERNAL;
COMMENT ON TABLE node_status IS 'The last status of each node: one row, replaced. Not logged, and so not on a standby; empty after a crash, until nodes speak again.';
COMMENT ON COLUMN node_status.boot_ns IS 'the node''s clock since its boot: of one boot_id the greater is the newer';
COMMENT ON COLUMN node_status.received_at IS 'by the database''s clock, so that all replicas agree about the age';
COMMENT ON COLUMN node_status.skew_ns IS 'the node''s clock less that of the aggregator which received it';
COMMENT ON COLUMN node_status.interval_ns IS 'when the next one may be expected';
COMMENT ON COLUMN node_status.left_out IS 'holders that did not fit into the message';
COMMENT ON COLUMN node_status.digest IS 'of the three lists: while it stays the same they are not written again';
COMMENT ON COLUMN node_status.gpus IS 'read through live_gpu, instances through live_instance, holders through live_holder';

-- Two intervals may be lost on the way.
CREATE FUNCTION is_silent(received_at timestamptz, interval_ns bigint) RETURNS boolean
	LANGUAGE sql STABLE PARALLEL SAFE
	RETURN coalesce(received_at + interval_ns / 1000 * interval '3 microseconds' < now(), true);
COMMENT ON FUNCTION is_silent IS 'nothing was heard for three intervals, or ever';

CREATE VIEW live_gpu AS
	SELECT s.node_id, g.uuid, g.model, g.short_model, g.index, g.healthy, g.reason, g.xid, g.sharing, g.replicas
	FROM node_status s, jsonb_to_recordset(s.gpus) AS g(uuid text, model text, short_model text, index integer, healthy boolean,
		reason text, xid integer, sharing text, replicas integer);
COMMENT ON VIEW live_gpu IS 'The GPUs that each node sees, and whether they work. Whether the node is heard at all: is_silent().';

CREATE VIEW live_instance AS
	SELECT s.node_id, i.gpu, i.uuid, i.profile, i.gi, i.ci, i.units
	FROM node_status s, jsonb_to_recordset(s.instances) AS i(gpu text, uuid text, profile text, gi integer, ci integer, units integer);
COMMENT ON VIEW live_instance IS 'How partitioned GPUs are cut now; gpu is the UUID.';

-- A workload that was heard of in no batch yet is nobody's: that is a matter of one interval of its exporter.
CREATE INDEX holder_workload ON holder (kind, pod_uid, slurm_job, user_name);
CREATE VIEW live_holder AS
	SELECT s.node_id, h.gpu, h.device, h.replica, h.kind, h.namespace, h.pod, h.pod_uid, h.container, h.slurm_job, h.slurm_account,
		h.user_name, h.uid, h.allocated, h.holds, h.active, k.id AS holder_id, a.workspace_id
	FROM node_status s
	JOIN node n ON n.id = s.node_id
	CROSS JOIN LATERAL jsonb_to_recordset(s.holders) AS h(gpu text, device text, replica integer, kind smallint, namespace text, pod text,
		pod_uid text, container text, slurm_job text, slurm_account text, user_name text, uid bigint, allocated boolean, holds boolean,
		active boolean)
	LEFT JOIN LATERAL (SELECT x.id FROM holder x WHERE x.kind = h.kind AND x.pod_uid = h.pod_uid AND x.slurm_job = h.slurm_job
		AND x.user_name = h.user_name AND x.cluster_id = n.cluster_id AND x.namespace = h.namespace AND x.pod = h.pod
		AND x.container = h.container AND x.slurm_account = h.slurm_account AND x.uid = h.uid ORDER BY x.id DESC LIMIT 1) k ON true
	LEFT JOIN holder_attribution a ON a.holder_id = k.id AND a.effective @> now();
COMMENT ON VIEW live_holder IS 'Who is on which GPU or instance now. holds: it counts as held; else it is on a device of somebody else.';

-- Every GPU in service once, so that the states add up to the inventory.
--  1. what is retired is not counted
--  2. declared in maintenance, the node or the GPU: down
--  3. the node is silent, or does not show the GPU: unknown
--  4. else as the node says: healthy or down
CREATE VIEW capacity AS
	SELECT v.gpu_id, v.node_id, n.cluster_id, o.tenant_id, g.uuid, g.short_model,
		CASE WHEN coalesce(m.maintenance, false) THEN 'down'
			WHEN l.uuid IS NULL OR is_silent(s.received_at, s.interval_ns) THEN 'unknown'
			WHEN l.healthy THEN 'healthy' ELSE 'down' END AS state
	FROM gpu_service v
	JOIN gpu g ON g.id = v.gpu_id
	JOIN node n ON n.id = v.node_id
	LEFT JOIN node_owner o ON o.node_id = n.id AND o.effective @> now()
	LEFT JOIN node_status s ON s.node_id = n.id
	LEFT JOIN live_gpu l ON l.node_id = n.id AND l.uuid = g.uuid
	LEFT JOIN LATERAL (SELECT bool_or(x.state = 'retired') AS retired, bool_or(x.state = 'maintenance') AS maintenance
		FROM node_state x WHERE (x.node_id = n.id OR x.gpu_id = g.id) AND x.effective @> now()) m ON true
	WHERE v.until_ns IS NULL AND NOT coalesce(m.retired, false);
COMMENT ON VIEW capacity IS 'Each GPU in service and whether it can be used now: healthy, down or unknown.';
