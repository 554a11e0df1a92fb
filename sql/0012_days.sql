-- oldest-binary: 0.1.0
-- Slices of open hours, days folded from hours, and what is kept for how long.

-- --- what a node-hour is made of ---

ALTER TABLE node_hour
	ADD COLUMN sliced_until_ns bigint,
	ADD COLUMN changes bigint NOT NULL DEFAULT 0,
	ADD COLUMN sealed_changes bigint NOT NULL DEFAULT 0,
	ADD COLUMN retired boolean NOT NULL DEFAULT false,
	ADD CHECK (NOT retired OR sealed_at IS NOT NULL);
COMMENT ON COLUMN node_hour.sliced_until_ns IS 'its records before that are summed in usage_slice; NULL: none are';
COMMENT ON COLUMN node_hour.changes IS 'how often its records changed behind what had been covered, or its states were declared otherwise';
COMMENT ON COLUMN node_hour.sealed_changes IS 'changes when it was sealed: as long as they are the same, its stored sums are still those of its records';
COMMENT ON COLUMN node_hour.retired IS 'its records are gone from usage_interval: it is read from usage_hourly, and made from its batches if they change';

CREATE TABLE usage_slice (
	hour timestamptz NOT NULL,
	until_ns bigint NOT NULL,
	node_id integer NOT NULL,
	device_id integer NOT NULL,
	holder_id bigint,
	state smallint NOT NULL,
	sharing smallint NOT NULL,
	method smallint NOT NULL,
	held numeric NOT NULL CHECK (held >= 0),
	used numeric NOT NULL CHECK (used >= 0),
	unmeasured numeric NOT NULL CHECK (unmeasured >= 0),
	over numeric NOT NULL CHECK (over >= 0),
	energy_mj numeric NOT NULL CHECK (energy_mj >= 0),
	memory_byte_ms numeric NOT NULL CHECK (memory_byte_ms >= 0)
);
COMMENT ON TABLE usage_slice IS 'The records of an hour that is still open, summed as far as its node has covered it. Gone when the hour is sealed. '
	'Rows beyond node_hour.sliced_until_ns mean nothing.';
COMMENT ON COLUMN usage_slice.until_ns IS 'where the slice ends; it begins where the one before ends';
CREATE INDEX usage_slice_hour ON usage_slice (hour, node_id, until_ns);

-- --- days ---

CREATE TABLE billing_day (
	day date PRIMARY KEY,
	starts_at timestamptz NOT NULL,
	ends_at timestamptz NOT NULL,
	folded_at timestamptz,
	dirty boolean NOT NULL DEFAULT true,
	hours_gone boolean NOT NULL DEFAULT false,
	CHECK (starts_at < ends_at),
	CHECK (NOT (dirty AND hours_gone)),
	CHECK (dirty OR folded_at IS NOT NULL),
	EXCLUDE USING gist (tstzrange(starts_at, ends_at) WITH &&)
);
COMMENT ON TABLE billing_day IS 'Every day that has a node-hour, with the bounds it had in the billing zone when it was made.';
COMMENT ON COLUMN billing_day.dirty IS 'not folded yet, or something it was folded from has changed since: read from the hours';
COMMENT ON COLUMN billing_day.hours_gone IS 'its hours were kept long enough: what is folded is final';

CREATE TABLE usage_daily (
	day date NOT NULL REFERENCES billing_day,
	price_book_id bigint,
	cluster_id integer NOT NULL,
	owner_id integer,
	workspace_id integer,
	gpu_model text NOT NULL,
	profile text NOT NULL,
	units smallint NOT NULL,
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
	CHECK (workspace_id IS NOT NULL OR used + idle + unmeasured + over = 0)
);
COMMENT ON TABLE usage_daily IS 'Folded days: the hours of all nodes, without the node and the holder.';
COMMENT ON COLUMN usage_daily.price_book_id IS 'in force at those hours of the day; NULL: none was';
COMMENT ON COLUMN usage_daily.owner_id IS 'the tenant that owned the node at those hours; NULL: shared';
CREATE UNIQUE INDEX usage_daily_key ON usage_daily
	(day, price_book_id, cluster_id, owner_id, workspace_id, gpu_model, profile, units, sharing, method) NULLS NOT DISTINCT;

-- Whoever changes what a day is folded from holds its lock shared until it commits; folding takes it alone or not at all. So a
-- folded day has seen every change, or is dirty.
CREATE FUNCTION day_lock(p_day date) RETURNS integer LANGUAGE sql IMMUTABLE STRICT
	RETURN p_day - date '1970-01-01';

CREATE FUNCTION days_dirty(p_days date[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	d date;
BEGIN
	FOR d IN SELECT DISTINCT x FROM unnest(p_days) x ORDER BY x LOOP
		PERFORM pg_advisory_xact_lock_shared(1953459309, tollgate.day_lock(d));
		UPDATE tollgate.billing_day b SET dirty = true WHERE b.day = d AND NOT b.dirty AND NOT b.hours_gone;
	END LOOP;
END $$;

CREATE FUNCTION days_dirty(p_range tstzrange) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM tollgate.days_dirty(ARRAY(SELECT b.day FROM tollgate.billing_day b WHERE tstzrange(b.starts_at, b.ends_at) && p_range));
END $$;
COMMENT ON FUNCTION days_dirty(tstzrange) IS 'Something that the days of the range were folded from has changed.';

-- A new node-hour, and one that becomes dirty, makes its day dirty.
CREATE FUNCTION node_hour_is_in_a_day() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO tollgate.billing_day (day, starts_at, ends_at)
		SELECT d.day, d.day::timestamp AT TIME ZONE l.zone, (d.day + 1)::timestamp AT TIME ZONE l.zone
		FROM tollgate.ledger l, LATERAL (SELECT DISTINCT (c.hour AT TIME ZONE l.zone)::date AS day FROM changed c) d
		ORDER BY d.day ON CONFLICT DO NOTHING;
	PERFORM tollgate.days_dirty(ARRAY(SELECT DISTINCT b.day FROM changed c
		JOIN tollgate.billing_day b ON b.starts_at <= c.hour AND c.hour < b.ends_at WHERE TG_OP = 'INSERT' OR c.dirty));
	RETURN NULL;
END $$;
CREATE TRIGGER node_hour_makes_days AFTER INSERT ON node_hour REFERENCING NEW TABLE AS changed
	FOR EACH STATEMENT EXECUTE FUNCTION node_hour_is_in_a_day();

CREATE FUNCTION dirty_hour_has_a_dirty_day() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM tollgate.days_dirty(ARRAY(SELECT DISTINCT b.day FROM changed c
		JOIN tollgate.billing_day b ON b.starts_at <= c.hour AND c.hour < b.ends_at WHERE c.dirty));
	RETURN NULL;
END $$;
CREATE TRIGGER node_hour_dirties_days AFTER UPDATE ON node_hour REFERENCING NEW TABLE AS changed
	FOR EACH STATEMENT EXECUTE FUNCTION dirty_hour_has_a_dirty_day();

-- Prices and owners are looked up by the hour when a day is folded, clusters and models as they are called then.
CREATE FUNCTION effective_dirties_days() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP <> 'INSERT' THEN
		PERFORM tollgate.days_dirty(OLD.effective);
	END IF;
	IF TG_OP <> 'DELETE' THEN
		PERFORM tollgate.days_dirty(NEW.effective);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER price_book_dirties_days AFTER INSERT OR UPDATE OR DELETE ON price_book
	FOR EACH ROW EXECUTE FUNCTION effective_dirties_days();
CREATE TRIGGER node_owner_dirties_days AFTER INSERT OR UPDATE OR DELETE ON node_owner
	FOR EACH ROW EXECUTE FUNCTION effective_dirties_days();

CREATE FUNCTION name_dirties_days() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM tollgate.days_dirty(tstzrange(NULL, NULL));
	RETURN NULL;
END $$;
CREATE TRIGGER node_cluster_dirties_days AFTER UPDATE OF cluster_id ON node
	FOR EACH ROW WHEN (OLD.cluster_id <> NEW.cluster_id AND OLD.hours_from IS NOT NULL) EXECUTE FUNCTION name_dirties_days();
CREATE TRIGGER gpu_model_dirties_days AFTER UPDATE OF short_model ON gpu
	FOR EACH ROW WHEN (OLD.short_model <> NEW.short_model) EXECUTE FUNCTION name_dirties_days();

INSERT INTO billing_day (day, starts_at, ends_at)
	SELECT d.day, d.day::timestamp AT TIME ZONE l.zone, (d.day + 1)::timestamp AT TIME ZONE l.zone
	FROM ledger l, LATERAL (SELECT DISTINCT (h.hour AT TIME ZONE l.zone)::date AS day FROM node_hour h) d;

-- --- hours that change ---

-- As before; and a record behind what its node has covered voids the slices of its hour. An ingest that only goes forward leaves
-- them alone, and needs no lock against slicing: whoever slices has seen that the node has covered the slice, so every record in
-- it that is not there yet comes behind. p_from_ns: where the records begin; NULL: somewhere.
-- p_had_ns: how far the node was covered before, where the caller has moved that already.
DROP FUNCTION node_hours_touch(integer, timestamptz[], timestamptz, timestamptz, bigint);
CREATE FUNCTION node_hours_touch(p_node integer, p_hours timestamptz[], p_first timestamptz, p_last timestamptz, p_covered_ns bigint,
	p_from_ns bigint DEFAULT NULL, p_had_ns bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	had record;
	behind boolean;
BEGIN
	SELECT n.hours_from, n.hours_until, n.covered_until_ns INTO had FROM tollgate.node n WHERE n.id = p_node FOR NO KEY UPDATE;
	UPDATE tollgate.node n SET covered_until_ns = greatest(n.covered_until_ns, p_covered_ns) WHERE n.id = p_node;
	IF had.hours_from IS NULL OR p_first < had.hours_from OR p_last >= had.hours_until THEN
		PERFORM tollgate.node_hours_extend(p_node, p_first, p_last + interval '1 hour');
	END IF;
	behind := coalesce(p_from_ns, 0) < coalesce(p_had_ns, had.covered_until_ns);
	SELECT bool_or(x.sealed_at IS NOT NULL OR behind) INTO behind FROM (SELECT h.sealed_at FROM tollgate.node_hour h
		WHERE h.node_id = p_node AND h.hour = ANY (p_hours) ORDER BY h.hour FOR SHARE) x;
	IF behind THEN
		UPDATE tollgate.node_hour h SET dirty = h.sealed_at IS NOT NULL, changes = h.changes + 1, sliced_until_ns = NULL
			WHERE h.node_id = p_node AND h.hour = ANY (p_hours);
	END IF;
END $$;

-- The share lock is for hours that are being sealed at this moment: they may have read what is about to change.
CREATE FUNCTION node_hours_change(p_node integer, p_from timestamptz, p_until timestamptz, p_changes integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM tollgate.node_hour h WHERE h.node_id = p_node AND h.hour >= p_from AND h.hour < p_until ORDER BY h.hour FOR SHARE;
	UPDATE tollgate.node_hour h SET dirty = true, changes = h.changes + p_changes
		WHERE h.node_id = p_node AND h.hour >= p_from AND h.hour < p_until AND h.sealed_at IS NOT NULL AND (NOT h.dirty OR p_changes > 0);
END $$;
DROP FUNCTION node_hours_dirty(integer, bigint);
CREATE FUNCTION node_hours_dirty(p_node integer, p_from_ns bigint) RETURNS void LANGUAGE sql VOLATILE
	BEGIN ATOMIC
		SELECT node_hours_change(p_node, hour_of(p_from_ns), 'infinity', 0);
	END;
COMMENT ON FUNCTION node_hours_dirty IS 'The time in service of a GPU of the node has changed from then on.';

-- --- what operators declared of nodes and GPUs ---

CREATE FUNCTION declared_state(p_node integer, p_gpu integer, p_hour timestamptz) RETURNS text
	LANGUAGE sql STABLE PARALLEL SAFE
	RETURN coalesce((SELECT s.state FROM node_state s WHERE s.gpu_id = p_gpu AND s.effective @> p_hour),
		(SELECT s.state FROM node_state s WHERE s.node_id = p_node AND s.effective @> p_hour));
COMMENT ON FUNCTION declared_state IS 'What was declared of a GPU at that hour, or else of its node; NULL: nothing';

ALTER TABLE gpu_service DROP CONSTRAINT gpu_service_check, ADD CONSTRAINT gpu_service_check CHECK (until_ns >= from_ns);

-- A retired GPU's service ends where the state begins, and one that began later where it began. What was cut off is not given back
-- when the state is taken back: the next record is what stretches it again.
CREATE FUNCTION state_is_declared(p_state node_state, p_now boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	retired_ns bigint := tollgate.ns_of(lower(p_state.effective));
BEGIN
	PERFORM tollgate.node_hours_change(x.node_id, lower(p_state.effective), coalesce(upper(p_state.effective), 'infinity'), 1)
		FROM (SELECT p_state.node_id WHERE p_state.node_id IS NOT NULL
			UNION SELECT s.node_id FROM tollgate.gpu_service s WHERE s.gpu_id = p_state.gpu_id ORDER BY 1) x;
	IF p_now AND p_state.state = 'retired' THEN
		UPDATE tollgate.gpu_service s SET until_ns = greatest(retired_ns, s.from_ns)
			WHERE (s.gpu_id = p_state.gpu_id OR s.node_id = p_state.node_id)
				AND int8range(s.from_ns, s.until_ns) && int8range(retired_ns, tollgate.ns_of(upper(p_state.effective)));
	END IF;
END $$;

CREATE FUNCTION node_state_changes_hours() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP <> 'INSERT' THEN
		PERFORM tollgate.state_is_declared(OLD, false);
	END IF;
	IF TG_OP <> 'DELETE' THEN
		PERFORM tollgate.state_is_declared(NEW, true);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER node_state_changes_hours AFTER INSERT OR UPDATE OR DELETE ON node_state
	FOR EACH ROW EXECUTE FUNCTION node_state_changes_hours();

CREATE FUNCTION is_retired(p_node integer, p_gpu integer, p_from_ns bigint, p_until_ns bigint) RETURNS boolean
	LANGUAGE sql STABLE PARALLEL SAFE
	RETURN EXISTS (SELECT FROM node_state s WHERE s.state = 'retired' AND (s.gpu_id = p_gpu OR s.node_id = p_node)
		AND int8range(ns_of(lower(s.effective)), ns_of(upper(s.effective))) && int8range(p_from_ns, p_until_ns));
COMMENT ON FUNCTION is_retired IS 'the GPU, or its node, was declared retired for some of that time';

CREATE FUNCTION retired_from(p_node integer, p_gpu integer, p_from_ns bigint) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
	RETURN (SELECT min(ns_of(lower(s.effective))) FROM node_state s WHERE s.state = 'retired' AND (s.gpu_id = p_gpu OR s.node_id = p_node)
		AND ns_of(lower(s.effective)) >= p_from_ns);
COMMENT ON FUNCTION retired_from IS 'where the next retirement of the GPU, or of its node, begins; NULL: none is declared';

-- A GPU reported on a node over a stretch of time. NULL when that is possible; else the node that has it at that time, or '' when
-- the GPU or the node is retired then.
--  1. what is retired serves nowhere
--  2. a service of this node is stretched to cover it, unless another service or a retirement lies in the way; the GPU's last one,
--     which a retirement has ended that was taken back, goes on until the next
--  3. else it was moved: the node that had it last must have nothing from the start of this stretch on, and its service ends
--     where its accounts end
--  4. else it is an older stretch that arrives late: it is entered if it overlaps nothing
CREATE OR REPLACE FUNCTION gpu_serve(p_node integer, p_gpu integer, p_from_ns bigint, p_until_ns bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	mine tollgate.gpu_service;
	other record;
	reach int8range;
BEGIN
	PERFORM FROM tollgate.gpu g WHERE g.id = p_gpu FOR NO KEY UPDATE;
	IF tollgate.is_retired(p_node, p_gpu, p_from_ns, p_until_ns) THEN
		RETURN '';
	END IF;
	FOR mine IN SELECT * FROM tollgate.gpu_service s WHERE s.gpu_id = p_gpu AND s.node_id = p_node ORDER BY s.from_ns DESC LOOP
		reach := int8range(least(mine.from_ns, p_from_ns), CASE WHEN mine.until_ns IS NOT NULL THEN greatest(mine.until_ns, p_until_ns) END);
		CONTINUE WHEN EXISTS (SELECT FROM tollgate.gpu_service s
			WHERE s.gpu_id = p_gpu AND s.id <> mine.id AND int8range(s.from_ns, s.until_ns) && reach)
			OR (mine.until_ns < p_from_ns AND tollgate.is_retired(p_node, p_gpu, mine.until_ns, p_from_ns));
		IF upper(reach) > mine.until_ns AND NOT EXISTS (SELECT FROM tollgate.gpu_service s WHERE s.gpu_id = p_gpu AND s.from_ns > mine.from_ns) THEN
			reach := int8range(lower(reach), tollgate.retired_from(p_node, p_gpu, p_until_ns));
		END IF;
		IF lower(reach) < mine.from_ns OR upper(reach) IS DISTINCT FROM mine.until_ns THEN
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
		-- In service from then on, until a retirement that is declared already.
		p_until_ns := tollgate.retired_from(p_node, p_gpu, p_until_ns);
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

-- --- the roll-up ---

-- A stretch of records, summed: what a slice stores, and what is read of the end of an open hour.
CREATE FUNCTION summed_records(p_from_ns bigint, p_until_ns bigint, p_nodes integer[])
RETURNS TABLE (node_id integer, device_id integer, holder_id bigint, state smallint, sharing smallint, method smallint,
	held numeric, used numeric, unmeasured numeric, over numeric, energy_mj numeric, memory_byte_ms numeric)
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
	SELECT i.node_id, i.device_id, i.holder_id, i.state, i.sharing, i.method,
		sum(i.units * i.held_ns), sum(i.units * i.used_ns), sum(i.units * i.unmeasured_ns), sum(i.units * i.over_ns),
		sum(i.energy_mj), sum(i.memory_byte_ms)
	FROM usage_interval i
	WHERE i.start_ns >= p_from_ns AND i.start_ns < p_until_ns AND i.node_id = ANY (p_nodes)
	GROUP BY i.node_id, i.device_id, i.holder_id, i.state, i.sharing, i.method;
END;

-- The rows of a billing hour for some nodes: slices until p_from_ns, records from there on. Sealing stores them, open hours are
-- read through it. With p_kept the sums are those of usage_hourly itself, whose records are gone, and only 3 to 6 are done again.
--  1. units x time per device, holder, sharing and method; used, unmeasured and over only count where somebody holds
--  2. idle is what is held and neither used nor unmeasured
--  3. what nobody holds of a GPU that is declared in maintenance is down
--  4. a GPU's time in service ends where its node's accounts end: covered, or silent beyond the grace (node.silent_until_ns)
--  5. what no record covers of 5040 x that time is unknown, or down in maintenance; what the records have beyond it is clock_adjust
--  6. a holder's workspace is what holder_attribution says of the hour
DROP FUNCTION usage_rows(timestamptz, timestamptz);
DROP FUNCTION hour_usage(timestamptz, integer[]);
CREATE FUNCTION hour_usage(p_hour timestamptz, p_nodes integer[], p_from_ns bigint, p_kept boolean)
RETURNS TABLE (node_id integer, device_id integer, holder_id bigint, workspace_id integer, sharing smallint, method smallint,
	used numeric, idle numeric, unmeasured numeric, unallocated numeric, stranded numeric, down numeric, unknown numeric,
	over numeric, clock_adjust numeric, energy_mj numeric, memory_byte_ms numeric)
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
	WITH stretches AS (
		SELECT r.* FROM summed_records(p_from_ns, ns_of(p_hour) + 3600000000000, p_nodes) r WHERE NOT p_kept
		UNION ALL
		SELECT s.node_id, s.device_id, s.holder_id, s.state, s.sharing, s.method, s.held, s.used, s.unmeasured, s.over, s.energy_mj, s.memory_byte_ms
		FROM usage_slice s
		WHERE s.hour = p_hour AND s.node_id = ANY (p_nodes) AND s.until_ns <= p_from_ns AND NOT p_kept
	), measured AS MATERIALIZED (
		SELECT m.node_id, d.gpu_id, m.device_id, m.holder_id, m.sharing, m.method, sum(m.used) AS used,
			coalesce(sum(m.held - m.used - m.unmeasured) FILTER (WHERE m.state = 1), 0) AS idle, sum(m.unmeasured) AS unmeasured,
			coalesce(sum(m.held) FILTER (WHERE m.state = 2), 0) AS unallocated, coalesce(sum(m.held) FILTER (WHERE m.state = 3), 0) AS stranded,
			coalesce(sum(m.held) FILTER (WHERE m.state = 4), 0) AS down, coalesce(sum(m.held) FILTER (WHERE m.state = 5), 0) AS unknown,
			sum(m.over) AS over, sum(m.energy_mj) AS energy_mj, sum(m.memory_byte_ms) AS memory_byte_ms
		FROM stretches m JOIN device d ON d.id = m.device_id
		GROUP BY m.node_id, d.gpu_id, m.device_id, m.holder_id, m.sharing, m.method
		UNION ALL
		SELECT u.node_id, d.gpu_id, u.device_id, u.holder_id, u.sharing, u.method, u.used, u.idle, u.unmeasured, u.unallocated, u.stranded,
			u.down, u.unknown, u.over, u.energy_mj, u.memory_byte_ms
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
		m.over, 0::numeric, m.energy_mj, m.memory_byte_ms
	FROM measured m
		LEFT JOIN holder_attribution a ON a.holder_id = m.holder_id AND a.effective @> p_hour
		LEFT JOIN maintained x ON x.node_id = m.node_id AND x.gpu_id = m.gpu_id
	UNION ALL
	SELECT b.node_id, d.id, NULL, NULL, 0::smallint, 0::smallint, 0, 0, 0, 0, 0, CASE WHEN x.gpu_id IS NULL THEN 0 ELSE greatest(b.missing, 0) END,
		CASE WHEN x.gpu_id IS NULL THEN greatest(b.missing, 0) ELSE 0 END, 0, greatest(-b.missing, 0), 0, 0
	FROM balance b JOIN device d ON d.gpu_id = b.gpu_id AND d.gi = -1 LEFT JOIN maintained x ON x.node_id = b.node_id AND x.gpu_id = b.gpu_id
	WHERE b.missing <> 0;
END;
COMMENT ON FUNCTION hour_usage IS 'The roll-up of a billing hour for some nodes: sealing stores it, open hours are read through it.';

-- Open and dirty hours. Each group of nodes is planned for itself, because the planner must know the nodes and the stretch.
CREATE FUNCTION open_usage(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (hour timestamptz, node_id integer, device_id integer, holder_id bigint, workspace_id integer, sharing smallint, method smallint,
	used numeric, idle numeric, unmeasured numeric, unallocated numeric, stranded numeric, down numeric, unknown numeric,
	over numeric, clock_adjust numeric, energy_mj numeric, memory_byte_ms numeric)
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
	over numeric, clock_adjust numeric, energy_mj numeric, memory_byte_ms numeric)
LANGUAGE sql STABLE PARALLEL RESTRICTED
BEGIN ATOMIC
	SELECT u.hour, u.node_id, u.device_id, u.holder_id, u.workspace_id, u.sharing, u.method, u.used, u.idle, u.unmeasured, u.unallocated,
		u.stranded, u.down, u.unknown, u.over, u.clock_adjust, u.energy_mj, u.memory_byte_ms
	FROM usage_hourly u
	WHERE u.hour >= p_from AND u.hour < p_until
		AND NOT EXISTS (SELECT FROM node_hour h WHERE h.dirty AND NOT h.retired AND h.hour = u.hour AND h.node_id = u.node_id
			AND h.hour >= p_from AND h.hour < p_until)
	UNION ALL
	SELECT o.* FROM open_usage(p_from, p_until) o;
END;
COMMENT ON FUNCTION usage_rows IS 'Usage of a range of billing hours, sealed or open.';

-- --- folding ---

-- The hours of a range without node and holder: folding stores it day by day, days that are not folded are read through it.
CREATE FUNCTION folded_usage(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (price_book_id bigint, cluster_id integer, owner_id integer, workspace_id integer, gpu_model text, profile text, units smallint,
	sharing smallint, method smallint, used numeric, idle numeric, unmeasured numeric, unallocated numeric, stranded numeric, down numeric,
	unknown numeric, over numeric, clock_adjust numeric, energy_mj numeric, memory_byte_ms numeric)
LANGUAGE sql STABLE PARALLEL RESTRICTED
BEGIN ATOMIC
	SELECT p.id, n.cluster_id, o.tenant_id, u.workspace_id, g.short_model, d.profile, d.units, u.sharing, u.method,
		sum(u.used), sum(u.idle), sum(u.unmeasured), sum(u.unallocated), sum(u.stranded), sum(u.down), sum(u.unknown), sum(u.over),
		sum(u.clock_adjust), sum(u.energy_mj), sum(u.memory_byte_ms)
	FROM usage_rows(p_from, p_until) u
		JOIN node n ON n.id = u.node_id JOIN device d ON d.id = u.device_id JOIN gpu g ON g.id = d.gpu_id
		LEFT JOIN price_book p ON p.effective @> u.hour
		LEFT JOIN node_owner o ON o.node_id = u.node_id AND o.effective @> u.hour
	GROUP BY p.id, n.cluster_id, o.tenant_id, u.workspace_id, g.short_model, d.profile, d.units, u.sharing, u.method;
END;

-- Days of the range, folded or not: everything that reads usage by the day reads this.
CREATE FUNCTION daily_rows(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (day date, price_book_id bigint, cluster_id integer, owner_id integer, workspace_id integer, gpu_model text, profile text,
	units smallint, sharing smallint, method smallint, used numeric, idle numeric, unmeasured numeric, unallocated numeric, stranded numeric,
	down numeric, unknown numeric, over numeric, clock_adjust numeric, energy_mj numeric, memory_byte_ms numeric)
LANGUAGE sql STABLE PARALLEL RESTRICTED
BEGIN ATOMIC
	SELECT u.* FROM usage_daily u JOIN billing_day b ON b.day = u.day
	WHERE b.starts_at >= p_from AND b.starts_at < p_until AND NOT b.dirty
	UNION ALL
	SELECT b.day, x.* FROM billing_day b, LATERAL folded_usage(b.starts_at, b.ends_at) x
	WHERE b.starts_at >= p_from AND b.starts_at < p_until AND b.dirty;
END;
COMMENT ON FUNCTION daily_rows IS 'Usage of the billing days that begin in the range, folded or not.';

-- --- what is kept ---

ALTER TABLE period ADD COLUMN closed_at timestamptz CHECK (closed_at IS NULL OR status = 'closed');
COMMENT ON COLUMN period.closed_at IS 'its batches are kept for a while after that; NULL: for as long as it takes';
ALTER TABLE stream ADD COLUMN evidence_seq bigint NOT NULL DEFAULT 1 CHECK (evidence_seq BETWEEN 1 AND next_seq);
COMMENT ON COLUMN stream.evidence_seq IS 'the first number whose batch is kept; those before were retired with their period';
ALTER TABLE ledger ADD COLUMN evidence_from_ns bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN ledger.evidence_from_ns IS 'what ends before has lost its batches, and nothing of it can be taken in any more';
ALTER TABLE ingest_batch DROP CONSTRAINT ingest_batch_class_check,
	ADD CONSTRAINT ingest_batch_class_check CHECK (class IN ('format', 'dictionary', 'skewed-clock', 'future', 'past', 'covered', 'unknown-id', 'weight',
		'two-nodes', 'retired', 'unproved'));

CREATE FUNCTION partition_name(p_day bigint) RETURNS text LANGUAGE sql STABLE STRICT
	RETURN 'usage_interval_' || to_char(at_ns(p_day * 86400000000000) AT TIME ZONE 'UTC', 'YYYYMMDD');
COMMENT ON FUNCTION partition_name IS 'of the records of a UTC day, counted from 1970';

-- How many records a stretch of some nodes has, about: by the size of its days and how much of them has passed.
CREATE FUNCTION expected_records(p_from_ns bigint, p_until_ns bigint, p_nodes integer) RETURNS bigint LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT coalesce(sum(pg_relation_size(to_regclass(d.name)) / 130.0 * (least(p_until_ns, d.until_ns) - greatest(p_from_ns, d.from_ns))
			/ greatest(least(n.covered_ns, d.until_ns) - d.from_ns, 3600000000000)) * p_nodes / max(n.nodes), 0)::bigint
		FROM (SELECT count(*) AS nodes, max(covered_until_ns) AS covered_ns FROM node WHERE covered_until_ns IS NOT NULL) n,
			LATERAL (SELECT x * 86400000000000 AS from_ns, (x + 1) * 86400000000000 AS until_ns, partition_name(x) AS name
				FROM generate_series(p_from_ns / 86400000000000, (p_until_ns - 1) / 86400000000000) x) d;
	END;

-- A day of records goes when all that was made of it is sealed, clean and folded. The lock waits for those who write records at
-- this moment, and no longer than lock_timeout; what they wrote has made its hour dirty. False: not now.
CREATE FUNCTION retire_intervals(p_day bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	day_ns constant bigint := 86400000000000;
	hours tstzrange := tstzrange(tollgate.at_ns(p_day * day_ns) - interval '1 hour', tollgate.at_ns((p_day + 1) * day_ns), '()');
BEGIN
	UPDATE tollgate.node_hour h SET retired = true WHERE h.hour > lower(hours) AND h.hour < upper(hours)
		AND h.sealed_at IS NOT NULL AND NOT h.dirty AND NOT h.retired;
	LOCK TABLE tollgate.usage_interval IN ACCESS EXCLUSIVE MODE;
	IF EXISTS (SELECT FROM tollgate.node_hour h WHERE h.hour > lower(hours) AND h.hour < upper(hours) AND (h.dirty OR NOT h.retired))
		OR EXISTS (SELECT FROM tollgate.billing_day b WHERE tstzrange(b.starts_at, b.ends_at) && hours AND b.dirty) THEN
		RETURN false;
	END IF;
	EXECUTE format('DROP TABLE tollgate.%I', tollgate.partition_name(p_day));
	RETURN true;
END $$;
COMMENT ON FUNCTION retire_intervals IS 'Drops the records of a UTC day (counted from 1970) if nothing needs them. To be rolled back when it says false.';
