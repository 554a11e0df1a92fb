-- oldest-binary: 0.1.0
-- Node-hours: what intervals are rolled up into, how the hours of a node come into being, and when they are due again.

CREATE TABLE node_hour (
	node_id integer NOT NULL REFERENCES node,
	hour timestamptz NOT NULL,
	sealed_at timestamptz,
	dirty boolean NOT NULL DEFAULT false,
	PRIMARY KEY (node_id, hour),
	CHECK (NOT dirty OR sealed_at IS NOT NULL)
) WITH (fillfactor = 80);
COMMENT ON TABLE node_hour IS 'One row for every billing hour of a node since its first record, data or not.';
COMMENT ON COLUMN node_hour.sealed_at IS 'NULL: open, read from usage_interval; else its rows are in usage_hourly';
COMMENT ON COLUMN node_hour.dirty IS 'sealed, and something it was made of has changed since: read from usage_interval, and due to be sealed again';
CREATE INDEX node_hour_open ON node_hour (hour, node_id) WHERE sealed_at IS NULL OR dirty;

CREATE TABLE usage_hourly (
	hour timestamptz NOT NULL,
	node_id integer NOT NULL,
	device_id integer NOT NULL,
	holder_id bigint,
	workspace_id integer,
	sharing smallint NOT NULL CHECK (sharing BETWEEN 0 AND 5),
	method smallint NOT NULL CHECK (method BETWEEN 0 AND 3),
	used numeric NOT NULL CHECK (used >= 0),
	idle numeric NOT NULL CHECK (idle >= 0),
	unmeasured numeric NOT NULL CHECK (unmeasured >= 0),
	unallocated numeric NOT NULL CHECK (unallocated >= 0),
	stranded numeric NOT NULL CHECK (stranded >= 0),
	down numeric NOT NULL CHECK (down >= 0),
	unknown numeric NOT NULL CHECK (unknown >= 0),
	over numeric NOT NULL CHECK (over >= 0),
	clock_adjust numeric NOT NULL CHECK (clock_adjust >= 0),
	energy_mj numeric NOT NULL CHECK (energy_mj >= 0),
	memory_byte_ms numeric NOT NULL CHECK (memory_byte_ms >= 0),
	FOREIGN KEY (node_id, hour) REFERENCES node_hour,
	CHECK ((holder_id IS NULL) = (workspace_id IS NULL)),
	CHECK (holder_id IS NOT NULL OR used + idle + unmeasured + over = 0)
);
COMMENT ON TABLE usage_hourly IS 'Sealed node-hours. The states are in unit-nanoseconds, exact; a hostile node''s sums may exceed 64 bits, hence numeric.';
COMMENT ON COLUMN usage_hourly.workspace_id IS 'what holder_attribution said when the hour was sealed; NULL with holder_id: nobody held';
COMMENT ON COLUMN usage_hourly.sharing IS '0: the row was computed for time that no record covers';
COMMENT ON COLUMN usage_hourly.over IS 'activity beyond a share, outside the sum of states';
COMMENT ON COLUMN usage_hourly.clock_adjust IS 'what a clock that was set back measured twice, beside the states';
CREATE UNIQUE INDEX usage_hourly_key ON usage_hourly (hour, node_id, device_id, holder_id, sharing, method) NULLS NOT DISTINCT;

CREATE FUNCTION node_hours_extend(p_node integer, p_from timestamptz, p_until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	had_from timestamptz;
	had_until timestamptz;
BEGIN
	SELECT n.hours_from, n.hours_until INTO had_from, had_until FROM tollgate.node n WHERE n.id = p_node FOR NO KEY UPDATE;
	IF p_from >= had_from AND p_until <= had_until THEN
		RETURN;
	END IF;
	p_from := least(p_from, had_from);
	p_until := greatest(p_until, had_until);
	INSERT INTO tollgate.node_hour (node_id, hour)
		SELECT p_node, h FROM generate_series(p_from, p_until - interval '1 hour', interval '1 hour') h
		WHERE had_from IS NULL OR h < had_from OR h >= had_until;
	UPDATE tollgate.node SET hours_from = p_from, hours_until = p_until WHERE id = p_node;
	PERFORM tollgate.make_periods(p_from, p_until);
END $$;
COMMENT ON FUNCTION node_hours_extend IS 'Makes node_hour rows so that they reach from p_from to p_until without a hole.';

-- Called once per ingest transaction: the hours of its records, and the first and last hour that must exist. The share lock makes
-- sealing wait for this transaction, and this transaction for sealing: a record is either in the sealed rows, or its hour is dirty
-- afterwards.
CREATE FUNCTION node_hours_touch(p_node integer, p_hours timestamptz[], p_first timestamptz, p_last timestamptz, p_covered_ns bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	had record;
	sealed boolean;
BEGIN
	UPDATE tollgate.node n SET covered_until_ns = greatest(n.covered_until_ns, p_covered_ns) WHERE n.id = p_node
		RETURNING n.hours_from, n.hours_until INTO had;
	IF had.hours_from IS NULL OR p_first < had.hours_from OR p_last >= had.hours_until THEN
		PERFORM tollgate.node_hours_extend(p_node, p_first, p_last + interval '1 hour');
	END IF;
	SELECT bool_or(x.sealed_at IS NOT NULL AND NOT x.dirty) INTO sealed FROM (SELECT h.sealed_at, h.dirty FROM tollgate.node_hour h
		WHERE h.node_id = p_node AND h.hour = ANY (p_hours) ORDER BY h.hour FOR SHARE) x;
	IF sealed THEN
		UPDATE tollgate.node_hour h SET dirty = true
			WHERE h.node_id = p_node AND h.hour = ANY (p_hours) AND h.sealed_at IS NOT NULL AND NOT h.dirty;
	END IF;
END $$;

-- Nodes that have been silent for longer than the grace: their time counts until now, as unknown.
CREATE FUNCTION nodes_fall_silent(p_now_ns bigint, p_grace_ns bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	n record;
BEGIN
	FOR n IN SELECT x.id FROM tollgate.node x
		WHERE x.covered_until_ns < p_now_ns - p_grace_ns AND (x.silent_until_ns IS NULL OR x.silent_until_ns < p_now_ns)
			AND EXISTS (SELECT FROM tollgate.gpu_service s WHERE s.node_id = x.id AND s.until_ns IS NULL)
		ORDER BY x.id FOR NO KEY UPDATE OF x
	LOOP
		UPDATE tollgate.node x SET silent_until_ns = p_now_ns WHERE x.id = n.id;
		PERFORM tollgate.node_hours_extend(n.id, tollgate.hour_of(p_now_ns - 1), tollgate.hour_of(p_now_ns - 1) + interval '1 hour');
	END LOOP;
END $$;

CREATE FUNCTION node_hours_dirty(p_node integer, p_from_ns bigint) RETURNS void LANGUAGE sql VOLATILE
	BEGIN ATOMIC
		UPDATE node_hour h SET dirty = true
			WHERE h.node_id = p_node AND h.hour >= hour_of(p_from_ns) AND h.sealed_at IS NOT NULL AND NOT h.dirty;
	END;

-- A GPU reported on a node over a stretch of time. NULL when that is possible, else the node that has it at that time.
--  1. a service of this node is stretched to cover it, unless another service lies in the way
--  2. else it was moved: the node that had it last must have nothing from the start of this stretch on, and its service ends
--     where its accounts end
--  3. else it is an older stretch that arrives late: it is entered if it overlaps nothing
CREATE FUNCTION gpu_serve(p_node integer, p_gpu integer, p_from_ns bigint, p_until_ns bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	mine tollgate.gpu_service;
	other record;
	reach int8range;
BEGIN
	PERFORM FROM tollgate.gpu g WHERE g.id = p_gpu FOR NO KEY UPDATE;
	FOR mine IN SELECT * FROM tollgate.gpu_service s WHERE s.gpu_id = p_gpu AND s.node_id = p_node ORDER BY s.from_ns DESC LOOP
		reach := int8range(least(mine.from_ns, p_from_ns), CASE WHEN mine.until_ns IS NOT NULL THEN greatest(mine.until_ns, p_until_ns) END);
		CONTINUE WHEN EXISTS (SELECT FROM tollgate.gpu_service s
			WHERE s.gpu_id = p_gpu AND s.id <> mine.id AND int8range(s.from_ns, s.until_ns) && reach);
		IF lower(reach) < mine.from_ns OR upper(reach) > mine.until_ns THEN
			UPDATE tollgate.gpu_service s SET from_ns = lower(reach), until_ns = upper(reach) WHERE s.id = mine.id;
			PERFORM tollgate.node_hours_dirty(p_node, least(p_from_ns, mine.until_ns));
		END IF;
		RETURN NULL;
	END LOOP;

	SELECT s.id, s.from_ns, s.node_id, n.name, n.covered_until_ns INTO other
		FROM tollgate.gpu_service s JOIN tollgate.node n ON n.id = s.node_id WHERE s.gpu_id = p_gpu AND s.until_ns IS NULL;
	IF other.covered_until_ns <= p_from_ns THEN
		UPDATE tollgate.gpu_service s SET until_ns = other.covered_until_ns WHERE s.id = other.id;
		PERFORM tollgate.node_hours_dirty(other.node_id, other.covered_until_ns);
	END IF;

	IF NOT EXISTS (SELECT FROM tollgate.gpu_service s WHERE s.gpu_id = p_gpu AND s.from_ns >= p_from_ns) THEN
		p_until_ns := NULL;
	END IF;
	SELECT n.name INTO other FROM tollgate.gpu_service s JOIN tollgate.node n ON n.id = s.node_id
		WHERE s.gpu_id = p_gpu AND int8range(s.from_ns, s.until_ns) && int8range(p_from_ns, p_until_ns) LIMIT 1;
	IF FOUND THEN
		RETURN other.name;
	END IF;
	INSERT INTO tollgate.gpu_service (gpu_id, node_id, from_ns, until_ns) VALUES (p_gpu, p_node, p_from_ns, p_until_ns);
	PERFORM tollgate.node_hours_dirty(p_node, p_from_ns);
	RETURN NULL;
END $$;

-- The roll-up: the rows of a billing hour for some nodes, from the records. Sealing stores them, open hours are read through it.
--  1. units x time per device, holder, sharing and method; used, unmeasured and over only count where somebody holds
--  2. idle is what is held and neither used nor unmeasured
--  3. a GPU's time in service ends where its node's accounts end: covered, or silent beyond the grace (node.silent_until_ns)
--  4. what no record covers of 5040 x that time is unknown; what the records have beyond it is clock_adjust
CREATE FUNCTION hour_usage(p_hour timestamptz, p_nodes integer[])
RETURNS TABLE (node_id integer, device_id integer, holder_id bigint, workspace_id integer, sharing smallint, method smallint,
	used numeric, idle numeric, unmeasured numeric, unallocated numeric, stranded numeric, down numeric, unknown numeric,
	over numeric, clock_adjust numeric, energy_mj numeric, memory_byte_ms numeric)
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
	WITH measured AS MATERIALIZED (
		SELECT i.node_id, i.device_id, i.holder_id, i.state, i.sharing, i.method,
			sum(i.units * i.held_ns) AS held, sum(i.units * i.used_ns) AS used, sum(i.units * i.unmeasured_ns) AS unmeasured,
			sum(i.units * i.over_ns) AS over, sum(i.energy_mj) AS energy_mj, sum(i.memory_byte_ms) AS memory_byte_ms
		FROM usage_interval i
		WHERE i.start_ns >= ns_of(p_hour) AND i.start_ns < ns_of(p_hour) + 3600000000000 AND i.node_id = ANY (p_nodes)
		GROUP BY i.node_id, i.device_id, i.holder_id, i.state, i.sharing, i.method
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
		SELECT m.node_id, d.gpu_id, sum(m.held) AS held
		FROM measured m JOIN device d ON d.id = m.device_id
		GROUP BY m.node_id, d.gpu_id
	), missing AS (
		SELECT coalesce(s.node_id, a.node_id) AS node_id, coalesce(s.gpu_id, a.gpu_id) AS gpu_id,
			5040 * coalesce(s.ns, 0) - coalesce(a.held, 0) AS units_ns
		FROM served s FULL JOIN accounted a ON a.node_id = s.node_id AND a.gpu_id = s.gpu_id
	)
	SELECT m.node_id, m.device_id, m.holder_id,
		CASE WHEN m.holder_id IS NOT NULL THEN
			(SELECT h.workspace_id FROM holder_attribution h WHERE h.holder_id = m.holder_id AND h.effective @> p_hour)
		END,
		m.sharing, m.method, sum(m.used),
		coalesce(sum(m.held - m.used - m.unmeasured) FILTER (WHERE m.state = 1), 0), sum(m.unmeasured),
		coalesce(sum(m.held) FILTER (WHERE m.state = 2), 0), coalesce(sum(m.held) FILTER (WHERE m.state = 3), 0),
		coalesce(sum(m.held) FILTER (WHERE m.state = 4), 0), coalesce(sum(m.held) FILTER (WHERE m.state = 5), 0),
		sum(m.over), 0::numeric, sum(m.energy_mj), sum(m.memory_byte_ms)
	FROM measured m
	GROUP BY m.node_id, m.device_id, m.holder_id, m.sharing, m.method
	UNION ALL
	SELECT x.node_id, d.id, NULL, NULL, 0::smallint, 0::smallint, 0, 0, 0, 0, 0, 0, greatest(x.units_ns, 0), 0, greatest(-x.units_ns, 0), 0, 0
	FROM missing x JOIN device d ON d.gpu_id = x.gpu_id AND d.gi = -1
	WHERE x.units_ns <> 0;
END;
COMMENT ON FUNCTION hour_usage IS 'The roll-up of a billing hour for some nodes, from the records: sealing stores it, open hours are read through it.';

-- The difference between a sealed and an open hour ends here: everything that reads usage reads this.
CREATE FUNCTION usage_rows(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (hour timestamptz, node_id integer, device_id integer, holder_id bigint, workspace_id integer, sharing smallint, method smallint,
	used numeric, idle numeric, unmeasured numeric, unallocated numeric, stranded numeric, down numeric, unknown numeric,
	over numeric, clock_adjust numeric, energy_mj numeric, memory_byte_ms numeric)
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
	SELECT u.hour, u.node_id, u.device_id, u.holder_id, u.workspace_id, u.sharing, u.method, u.used, u.idle, u.unmeasured, u.unallocated,
		u.stranded, u.down, u.unknown, u.over, u.clock_adjust, u.energy_mj, u.memory_byte_ms
	FROM usage_hourly u
	WHERE u.hour >= p_from AND u.hour < p_until
		AND NOT EXISTS (SELECT FROM node_hour h WHERE h.dirty AND h.hour = u.hour AND h.node_id = u.node_id
			AND h.hour >= p_from AND h.hour < p_until)
	UNION ALL
	SELECT o.hour, x.node_id, x.device_id, x.holder_id, x.workspace_id, x.sharing, x.method, x.used, x.idle, x.unmeasured, x.unallocated,
		x.stranded, x.down, x.unknown, x.over, x.clock_adjust, x.energy_mj, x.memory_byte_ms
	FROM (SELECT h.hour, array_agg(h.node_id) AS nodes FROM node_hour h
		WHERE h.hour >= p_from AND h.hour < p_until AND (h.sealed_at IS NULL OR h.dirty) GROUP BY h.hour) o,
		LATERAL hour_usage(o.hour, o.nodes) x;
END;
COMMENT ON FUNCTION usage_rows IS 'Usage of a range of billing hours, sealed or open.';
