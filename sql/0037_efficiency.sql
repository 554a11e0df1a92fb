-- oldest-binary: 0.1.0
-- Efficiency beside what is billed (wire version 3): the most memory that a holder had at once, and the time in which the multiprocessors of its
-- device worked. Kept from the record to the day; no charge is made from it.

-- --- columns ---

ALTER TABLE usage_interval
	ADD COLUMN peak_memory_bytes bigint NOT NULL DEFAULT 0,
	ADD COLUMN sm_active_ns bigint NOT NULL DEFAULT 0,
	ADD COLUMN sm_measured_ns bigint NOT NULL DEFAULT 0,
	ADD CONSTRAINT efficiency CHECK (peak_memory_bytes >= 0 AND sm_active_ns >= 0 AND sm_active_ns <= sm_measured_ns AND sm_measured_ns <= held_ns
		AND (state = 1 OR sm_measured_ns = 0)) NOT VALID;
COMMENT ON COLUMN usage_interval.peak_memory_bytes IS '0: not told, as in batches before version 3';
COMMENT ON COLUMN usage_interval.sm_measured_ns IS 'part of held_ns for which the source told SM activity';
ALTER TABLE usage_slice
	ADD COLUMN peak_memory_bytes bigint NOT NULL DEFAULT 0,
	ADD COLUMN sm_active numeric NOT NULL DEFAULT 0,
	ADD COLUMN sm_measured numeric NOT NULL DEFAULT 0,
	ADD CONSTRAINT efficiency CHECK (peak_memory_bytes >= 0 AND sm_active >= 0 AND sm_active <= sm_measured) NOT VALID;
ALTER TABLE usage_hourly
	ADD COLUMN peak_memory_bytes bigint NOT NULL DEFAULT 0,
	ADD COLUMN sm_active numeric NOT NULL DEFAULT 0,
	ADD COLUMN sm_measured numeric NOT NULL DEFAULT 0,
	ADD CONSTRAINT efficiency CHECK (peak_memory_bytes >= 0 AND sm_active >= 0 AND sm_active <= sm_measured
		AND (holder_id IS NOT NULL OR sm_measured = 0)) NOT VALID;
COMMENT ON COLUMN usage_hourly.peak_memory_bytes IS 'the most of its records; 0: not told';
COMMENT ON COLUMN usage_hourly.sm_active IS 'unit-nanoseconds, of sm_measured';
COMMENT ON COLUMN usage_hourly.sm_measured IS 'unit-nanoseconds held for which the source told SM activity';
ALTER TABLE usage_daily
	ADD COLUMN peak_memory_bytes bigint NOT NULL DEFAULT 0,
	ADD COLUMN sm_active numeric NOT NULL DEFAULT 0,
	ADD COLUMN sm_measured numeric NOT NULL DEFAULT 0,
	ADD CONSTRAINT efficiency CHECK (peak_memory_bytes >= 0 AND sm_active >= 0 AND sm_active <= sm_measured
		AND scale(sm_active + sm_measured) IS NOT DISTINCT FROM 0 AND (workspace_id IS NOT NULL OR sm_measured = 0)) NOT VALID;

-- --- readers ---

-- Each of these has three columns more, so all are made anew, with those that read them. The latter are left as they are.
CREATE TEMPORARY TABLE read_before ON COMMIT DROP AS
	SELECT DISTINCT p.oid, p.oid::regprocedure::text AS name, pg_get_functiondef(p.oid) AS text, obj_description(p.oid, 'pg_proc') AS said
	FROM pg_depend x JOIN pg_proc p ON p.oid = x.objid
	WHERE x.classid = 'pg_proc'::regclass AND x.refclassid = 'pg_proc'::regclass AND x.refobjid = 'usage_rows(timestamptz, timestamptz)'::regprocedure
		AND p.proname <> 'folded_usage';
DO $$
DECLARE
	f record;
BEGIN
	FOR f IN SELECT * FROM read_before LOOP
		EXECUTE 'DROP FUNCTION ' || f.name;
	END LOOP;
END $$;
DROP FUNCTION daily_rows(timestamptz, timestamptz);
DROP FUNCTION folded_usage(timestamptz, timestamptz);
DROP FUNCTION usage_rows(timestamptz, timestamptz);
DROP FUNCTION open_usage(timestamptz, timestamptz);
DROP FUNCTION hour_usage(timestamptz, integer[], bigint, boolean);
DROP FUNCTION summed_records(bigint, bigint, integer[]);

-- A stretch of records, summed: what a slice stores, and what is read of the end of an open hour.
CREATE FUNCTION summed_records(p_from_ns bigint, p_until_ns bigint, p_nodes integer[])
RETURNS TABLE (node_id integer, device_id integer, holder_id bigint, state smallint, sharing smallint, method smallint,
	held numeric, used numeric, unmeasured numeric, over numeric, energy_mj numeric, memory_byte_ms numeric,
	peak_memory_bytes bigint, sm_active numeric, sm_measured numeric)
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
	SELECT i.node_id, i.device_id, i.holder_id, i.state, i.sharing, i.method,
		sum(i.units * i.held_ns), sum(i.units * i.used_ns), sum(i.units * i.unmeasured_ns), sum(i.units * i.over_ns),
		sum(i.energy_mj), sum(i.memory_byte_ms),
		max(i.peak_memory_bytes), sum(i.units * i.sm_active_ns), sum(i.units * i.sm_measured_ns)
	FROM usage_interval i
	WHERE i.start_ns >= p_from_ns AND i.start_ns < p_until_ns AND i.node_id = ANY (p_nodes)
	GROUP BY i.node_id, i.device_id, i.holder_id, i.state, i.sharing, i.method;
END;

-- The rows of a billing hour for some nodes, by the rules of 0012_days.sql. The peak of a row is the most of its records; SM activity is added up like used.
CREATE FUNCTION hour_usage(p_hour timestamptz, p_nodes integer[], p_from_ns bigint, p_kept boolean)
RETURNS TABLE (node_id integer, device_id integer, holder_id bigint, workspace_id integer, sharing smallint, method smallint,
	used numeric, idle numeric, unmeasured numeric, unallocated numeric, stranded numeric, down numeric, unknown numeric,
	over numeric, clock_adjust numeric, energy_mj numeric, memory_byte_ms numeric,
	peak_memory_bytes bigint, sm_active numeric, sm_measured numeric)
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
	WITH stretches AS (
		SELECT r.* FROM summed_records(p_from_ns, ns_of(p_hour) + 3600000000000, p_nodes) r WHERE NOT p_kept
		UNION ALL
		SELECT s.node_id, s.device_id, s.holder_id, s.state, s.sharing, s.method, s.held, s.used, s.unmeasured, s.over, s.energy_mj, s.memory_byte_ms,
			s.peak_memory_bytes, s.sm_active, s.sm_measured
		FROM usage_slice s
		WHERE s.hour = p_hour AND s.node_id = ANY (p_nodes) AND s.until_ns <= p_from_ns AND NOT p_kept
	), measured AS MATERIALIZED (
		SELECT m.node_id, d.gpu_id, m.device_id, m.holder_id, m.sharing, m.method, sum(m.used) AS used,
			coalesce(sum(m.held - m.used - m.unmeasured) FILTER (WHERE m.state = 1), 0) AS idle, sum(m.unmeasured) AS unmeasured,
			coalesce(sum(m.held) FILTER (WHERE m.state = 2), 0) AS unallocated, coalesce(sum(m.held) FILTER (WHERE m.state = 3), 0) AS stranded,
			coalesce(sum(m.held) FILTER (WHERE m.state = 4), 0) AS down, coalesce(sum(m.held) FILTER (WHERE m.state = 5), 0) AS unknown,
			sum(m.over) AS over, sum(m.energy_mj) AS energy_mj, sum(m.memory_byte_ms) AS memory_byte_ms,
			max(m.peak_memory_bytes) AS peak_memory_bytes, sum(m.sm_active) AS sm_active, sum(m.sm_measured) AS sm_measured
		FROM stretches m JOIN device d ON d.id = m.device_id
		GROUP BY m.node_id, d.gpu_id, m.device_id, m.holder_id, m.sharing, m.method
		UNION ALL
		SELECT u.node_id, d.gpu_id, u.device_id, u.holder_id, u.sharing, u.method, u.used, u.idle, u.unmeasured, u.unallocated, u.stranded,
			u.down, u.unknown, u.over, u.energy_mj, u.memory_byte_ms, u.peak_memory_bytes, u.sm_active, u.sm_measured
		FROM usage_hourly u JOIN device d ON d.id = u.device_id
		WHERE p_kept AND u.hour = p_hour AND u.node_id = ANY (p_nodes) AND u.sharing <> 0
	), served AS (
		SELECT s.node_id, s.gpu_id,
			sum(least(ns_of(p_hour) + 3600000000000, s.until_ns, greatest(n.covered_until_ns, n.silent_until_ns))
				- greatest(ns_of(p_hour), s.from_ns)) AS ns
		FROM gpu_service s JOIN node n ON n.id = s.node_id
		WHERE s.node_id = ANY (p_nodes)
			AND greatest(ns_of(p_hour), s.from_ns)
				< least(ns_of(p_hour) + 3600000000000, s.until_ns, greatest(n.covered_until_ns, n.silent_until_ns))
		GROUP BY s.node_id, s.gpu_id
	), accounted AS (
		SELECT m.node_id, m.gpu_id,
			sum(m.used + m.idle + m.unmeasured + m.unallocated + m.stranded + m.down + m.unknown) AS held
		FROM measured m GROUP BY m.node_id, m.gpu_id
	), balance AS (
		SELECT coalesce(s.node_id, a.node_id) AS node_id, coalesce(s.gpu_id, a.gpu_id) AS gpu_id,
			5040 * coalesce(s.ns, 0) - coalesce(a.held, 0) AS missing
		FROM served s FULL JOIN accounted a ON a.node_id = s.node_id AND a.gpu_id = s.gpu_id
	), maintained AS MATERIALIZED (
		SELECT b.node_id, b.gpu_id FROM balance b
		WHERE EXISTS (SELECT FROM node_state x WHERE x.effective @> p_hour)
			AND declared_state(b.node_id, b.gpu_id, p_hour) = 'maintenance'
	)
	SELECT m.node_id, m.device_id, m.holder_id, a.workspace_id, m.sharing, m.method, m.used, m.idle, m.unmeasured,
		CASE WHEN x.gpu_id IS NULL THEN m.unallocated ELSE 0 END, CASE WHEN x.gpu_id IS NULL THEN m.stranded ELSE 0 END,
		CASE WHEN x.gpu_id IS NULL THEN m.down ELSE m.down + m.unallocated + m.stranded + m.unknown END,
		CASE WHEN x.gpu_id IS NULL THEN m.unknown ELSE 0 END,
		m.over, 0::numeric, m.energy_mj, m.memory_byte_ms, m.peak_memory_bytes, m.sm_active, m.sm_measured
	FROM measured m
		LEFT JOIN holder_attribution a ON a.holder_id = m.holder_id AND a.effective @> p_hour
		LEFT JOIN maintained x ON x.node_id = m.node_id AND x.gpu_id = m.gpu_id
	UNION ALL
	SELECT b.node_id, d.id, NULL, NULL, 0::smallint, 0::smallint, 0, 0, 0, 0, 0, CASE WHEN x.gpu_id IS NULL THEN 0 ELSE greatest(b.missing, 0) END,
		CASE WHEN x.gpu_id IS NULL THEN greatest(b.missing, 0) ELSE 0 END, 0, greatest(-b.missing, 0), 0, 0, 0, 0, 0
	FROM balance b JOIN device d ON d.gpu_id = b.gpu_id AND d.gi = -1 LEFT JOIN maintained x ON x.node_id = b.node_id AND x.gpu_id = b.gpu_id
	WHERE b.missing <> 0;
END;
COMMENT ON FUNCTION hour_usage IS 'The roll-up of a billing hour for some nodes: sealing stores it, open hours are read through it.';

-- Open and dirty hours. Each group of nodes is planned for itself, because the planner must know the nodes and the stretch.
CREATE FUNCTION open_usage(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (hour timestamptz, node_id integer, device_id integer, holder_id bigint, workspace_id integer, sharing smallint, method smallint,
	used numeric, idle numeric, unmeasured numeric, unallocated numeric, stranded numeric, down numeric, unknown numeric,
	over numeric, clock_adjust numeric, energy_mj numeric, memory_byte_ms numeric,
	peak_memory_bytes bigint, sm_active numeric, sm_measured numeric)
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SET work_mem = '64MB' SET enable_sort = off SET jit = off AS $$
DECLARE
	g record;
BEGIN
	FOR g IN SELECT h.hour, coalesce(h.sliced_until_ns, tollgate.ns_of(h.hour)) AS from_ns, array_agg(h.node_id) AS nodes FROM tollgate.node_hour h
		WHERE h.hour >= p_from AND h.hour < p_until AND (h.sealed_at IS NULL OR h.dirty) AND NOT h.retired GROUP BY 1, 2
	LOOP
		RETURN QUERY EXECUTE 'SELECT $1, u.* FROM tollgate.hour_usage($1, $2, $3, false) u' USING g.hour, g.nodes, g.from_ns;
	END LOOP;
END $$;

-- The difference between sealed, sliced and open time ends here: everything that reads usage by the hour reads this.
CREATE FUNCTION usage_rows(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (hour timestamptz, node_id integer, device_id integer, holder_id bigint, workspace_id integer, sharing smallint, method smallint,
	used numeric, idle numeric, unmeasured numeric, unallocated numeric, stranded numeric, down numeric, unknown numeric,
	over numeric, clock_adjust numeric, energy_mj numeric, memory_byte_ms numeric,
	peak_memory_bytes bigint, sm_active numeric, sm_measured numeric)
LANGUAGE sql STABLE PARALLEL RESTRICTED
BEGIN ATOMIC
	SELECT u.hour, u.node_id, u.device_id, u.holder_id, u.workspace_id, u.sharing, u.method, u.used, u.idle, u.unmeasured, u.unallocated,
		u.stranded, u.down, u.unknown, u.over, u.clock_adjust, u.energy_mj, u.memory_byte_ms,
		u.peak_memory_bytes, u.sm_active, u.sm_measured
	FROM usage_hourly u
	WHERE u.hour >= p_from AND u.hour < p_until
		AND NOT EXISTS (SELECT FROM node_hour h WHERE h.dirty AND NOT h.retired AND h.hour = u.hour AND h.node_id = u.node_id
			AND h.hour >= p_from AND h.hour < p_until)
	UNION ALL
	SELECT o.* FROM open_usage(p_from, p_until) o;
END;
COMMENT ON FUNCTION usage_rows IS 'Usage of a range of billing hours, sealed or open.';

-- The hours of a range without node and holder: folding stores it day by day, days that are not folded are read through it.
CREATE FUNCTION folded_usage(p_from timestamptz, p_until timestamptz)
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
		JOIN node_cluster k ON k.node_id = u.node_id AND k.effective @> u.hour
		JOIN device d ON d.id = u.device_id JOIN gpu_spec g ON g.gpu_id = d.gpu_id AND g.effective @> u.hour
		LEFT JOIN price_book p ON p.effective @> u.hour
		LEFT JOIN node_owner o ON o.node_id = u.node_id AND o.effective @> u.hour
	GROUP BY p.id, k.cluster_id, o.tenant_id, u.workspace_id, g.short_model, d.profile, d.units, u.sharing, u.method;
END;

-- Days of the range, folded or not: everything that reads usage by the day reads this.
CREATE FUNCTION daily_rows(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (day date, price_book_id bigint, cluster_id integer, owner_id integer, workspace_id integer, gpu_model text, profile text,
	units smallint, sharing smallint, method smallint, used numeric, idle numeric, unmeasured numeric, unallocated numeric, stranded numeric,
	down numeric, unknown numeric, over numeric, clock_adjust numeric, energy_mj numeric, memory_byte_ms numeric,
	peak_memory_bytes bigint, sm_active numeric, sm_measured numeric)
LANGUAGE sql STABLE PARALLEL RESTRICTED
BEGIN ATOMIC
	SELECT u.* FROM usage_daily u JOIN billing_day b ON b.day = u.day
	WHERE b.starts_at >= p_from AND b.starts_at < p_until AND NOT b.dirty
	UNION ALL
	SELECT b.day, x.* FROM billing_day b, LATERAL folded_usage(b.starts_at, b.ends_at) x
	WHERE b.starts_at >= p_from AND b.starts_at < p_until AND b.dirty;
END;
COMMENT ON FUNCTION daily_rows IS 'Usage of the billing days that begin in the range, folded or not.';

DO $$
DECLARE
	f record;
BEGIN
	FOR f IN SELECT * FROM read_before LOOP
		EXECUTE f.text;
		EXECUTE format('COMMENT ON FUNCTION %s IS %L', f.name, f.said);
	END LOOP;
END $$;
