-- oldest-binary: 0.1.0
-- What an hour's rows were of, joined so that the planner keeps count of them.
--
-- PostgreSQL takes one row in two hundred for those whose range holds an hour, where it is all of them. Behind two inner joins on ranges it expected a few rows
-- of a day and looked at every GPU for each of its rows: a minute for a day of 800 GPUs. Outer joins keep every row, so it expects as many as there are;
-- coalesce() then leaves out what has no match, as the inner joins did, without the planner making inner joins of them again.

CREATE OR REPLACE FUNCTION folded_usage(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (price_book_id bigint, cluster_id integer, owner_id integer, workspace_id integer, gpu_model text, profile text, units smallint,
	sharing smallint, method smallint, used numeric, idle numeric, unmeasured numeric, unallocated numeric, stranded numeric, down numeric,
	unknown numeric, over numeric, clock_adjust numeric, energy_mj numeric, memory_byte_ms numeric,
	peak_memory_bytes bigint, sm_active numeric, sm_measured numeric)
LANGUAGE sql STABLE PARALLEL RESTRICTED
BEGIN ATOMIC
	SELECT p.id, k.cluster_id, o.tenant_id, u.workspace_id, g.short_model, d.profile, d.units, u.sharing, u.method,
		sum(u.used), sum(u.idle), sum(u.unmeasured), sum(u.unallocated), sum(u.stranded), sum(u.down), sum(u.unknown), sum(u.over),
		sum(u.clock_adjust), sum(u.energy_mj), sum(u.memory_byte_ms), max(u.peak_memory_bytes), sum(u.sm_active), sum(u.sm_measured)
	FROM usage_rows(p_from, p_until) u
		LEFT JOIN node_cluster k ON k.node_id = u.node_id AND k.effective @> u.hour
		LEFT JOIN device d ON d.id = u.device_id LEFT JOIN gpu_spec g ON g.gpu_id = d.gpu_id AND g.effective @> u.hour
		LEFT JOIN price_book p ON p.effective @> u.hour
		LEFT JOIN node_owner o ON o.node_id = u.node_id AND o.effective @> u.hour
	WHERE coalesce(k.cluster_id, 0) > 0 AND coalesce(g.gpu_id, 0) > 0
	GROUP BY p.id, k.cluster_id, o.tenant_id, u.workspace_id, g.short_model, d.profile, d.units, u.sharing, u.method;
END;

CREATE OR REPLACE FUNCTION charge_input(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (cluster_id integer, owner_id integer, gpu_model text, hour_ns bigint, price_book_id bigint, is_right boolean,
	workspace_id integer, profile text, units smallint, sharing smallint, used numeric, idle numeric, unmeasured numeric,
	unallocated numeric, stranded numeric, down numeric, unknown numeric, over numeric, energy_mj numeric, reserved numeric, lend_cap numeric)
LANGUAGE sql STABLE PARALLEL RESTRICTED
BEGIN ATOMIC
	WITH accounts AS MATERIALIZED (
		SELECT h.hour, k.cluster_id, o.tenant_id AS owner_id, CASE WHEN h.sealed_at IS NOT NULL THEN ns_of(h.hour) + 3600000000000
			ELSE greatest(ns_of(h.hour), least(ns_of(h.hour) + 3600000000000, greatest(n.covered_until_ns, n.silent_until_ns))) END AS until_ns
		FROM node_hour h JOIN node n ON n.id = h.node_id LEFT JOIN node_cluster k ON k.node_id = h.node_id AND k.effective @> h.hour
			LEFT JOIN node_owner o ON o.node_id = h.node_id AND o.effective @> h.hour
		WHERE h.hour >= p_from AND h.hour < p_until AND coalesce(k.cluster_id, 0) > 0
	), hours AS (
		SELECT a.hour, max(a.until_ns) AS until_ns FROM accounts a GROUP BY a.hour
	), pools AS (
		SELECT a.hour, a.cluster_id, coalesce(a.owner_id, 0) AS owner_id, min(a.until_ns) AS until_ns FROM accounts a GROUP BY 1, 2, 3
	), rights AS (
		SELECT r.cluster_id, CASE WHEN NOT r.shared THEN w.tenant_id END AS owner_id, r.model, h.hour, r.workspace_id, r.profile,
			(CASE WHEN r.instances IS NULL THEN 5040 ELSE r.units / r.instances END)::smallint AS units, r.units AS reserved, h.until_ns
		FROM hours h JOIN reservation r ON r.effective @> h.hour JOIN workspace w ON w.id = r.workspace_id
	)
	SELECT k.cluster_id, o.tenant_id, g.short_model, ns_of(u.hour), p.id, false, u.workspace_id, d.profile, d.units, u.sharing,
		sum(u.used), sum(u.idle), sum(u.unmeasured), sum(u.unallocated), sum(u.stranded), sum(u.down), sum(u.unknown), sum(u.over),
		sum(u.energy_mj), 0, 0
	FROM usage_rows(p_from, p_until) u
		LEFT JOIN node_cluster k ON k.node_id = u.node_id AND k.effective @> u.hour
		LEFT JOIN device d ON d.id = u.device_id LEFT JOIN gpu_spec g ON g.gpu_id = d.gpu_id AND g.effective @> u.hour
		LEFT JOIN price_book p ON p.effective @> u.hour
		LEFT JOIN node_owner o ON o.node_id = u.node_id AND o.effective @> u.hour
	WHERE coalesce(k.cluster_id, 0) > 0 AND coalesce(g.gpu_id, 0) > 0
	GROUP BY k.cluster_id, o.tenant_id, g.short_model, u.hour, p.id, u.workspace_id, d.profile, d.units, u.sharing
	UNION ALL
	SELECT r.cluster_id, r.owner_id, r.model, ns_of(r.hour), p.id, true, r.workspace_id, r.profile, r.units, 0::smallint,
		0, 0, 0, 0, 0, 0, 0, 0, 0, r.reserved * x.ns::numeric, lend_cap(r.workspace_id, r.model, r.hour) * x.ns
	FROM rights r
		LEFT JOIN pools a ON a.hour = r.hour AND a.cluster_id = r.cluster_id AND a.owner_id = coalesce(r.owner_id, 0)
		LEFT JOIN price_book p ON p.effective @> r.hour
		CROSS JOIN LATERAL (SELECT coalesce(a.until_ns, r.until_ns) - ns_of(r.hour) AS ns) x
	WHERE x.ns > 0;
END;
