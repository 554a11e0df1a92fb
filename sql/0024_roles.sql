-- oldest-binary: 0.1.0
-- What the daemon's login may do to derived tables: nothing but call these functions, each with bounds of its own.
--
-- The functions run with the rights of their owner (SECURITY DEFINER) and a fixed search_path. Both are set by access/grants.sql, together with who may
-- call each of them, every time the schema is migrated: a later CREATE OR REPLACE of one of them does not lose them.

-- --- room for hours, days and months ---

CREATE FUNCTION refuse_bounds(p_function text, p_what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION '%: %', p_function, p_what USING ERRCODE = 'invalid_parameter_value';
END $$;

-- As before, within bounds: whoever may call it cannot fill the catalogue.
CREATE OR REPLACE FUNCTION make_partitions(p_from_ns bigint, p_until_ns bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
	day_ns constant bigint := 86400000000000;
	first_day constant bigint := date '2020-01-01' - date '1970-01-01';
	last_day constant bigint := date '2100-01-01' - date '1970-01-01';
	days_at_once constant bigint := 100;
	made integer := 0;
	name text;
BEGIN
	IF p_from_ns / day_ns < first_day OR p_until_ns / day_ns > last_day OR p_until_ns / day_ns - p_from_ns / day_ns > days_at_once THEN
		PERFORM tollgate.refuse_bounds('make_partitions', format('days %s to %s are not within 2020 to 2100, or more than %s',
			p_from_ns / day_ns, p_until_ns / day_ns, days_at_once));
	END IF;
	FOR day IN p_from_ns / day_ns .. (p_until_ns - 1) / day_ns LOOP
		name := tollgate.partition_name(day);
		CONTINUE WHEN to_regclass('tollgate.' || name) IS NOT NULL;
		PERFORM pg_advisory_xact_lock(hashtextextended('tollgate.' || name, 0));
		CONTINUE WHEN EXISTS (SELECT FROM pg_class c WHERE c.relname = name AND c.relnamespace = 'tollgate'::regnamespace);
		-- Made apart and attached, because PARTITION OF would stop all writers for as long as this transaction lasts.
		EXECUTE format('CREATE TABLE tollgate.%I (LIKE tollgate.usage_interval INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
		EXECUTE format('ALTER TABLE tollgate.usage_interval ATTACH PARTITION tollgate.%I FOR VALUES FROM (%s) TO (%s)',
			name, day * day_ns, (day + 1) * day_ns);
		made := made + 1;
	END LOOP;
	RETURN made;
END $$;

-- As before, within bounds. Ten years of hours are 87,600 rows of a node.
CREATE OR REPLACE FUNCTION node_hours_extend(p_node integer, p_from timestamptz, p_until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
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
	IF NOT isfinite(p_from) OR NOT isfinite(p_until) OR p_until - p_from > interval '3660 days' THEN
		PERFORM tollgate.refuse_bounds('node_hours_extend', format('%s to %s is more than ten years', p_from, p_until));
	END IF;
	INSERT INTO tollgate.node_hour (node_id, hour)
		SELECT p_node, h FROM generate_series(p_from, p_until - interval '1 hour', interval '1 hour') h
		WHERE had_from IS NULL OR h < had_from OR h >= had_until;
	UPDATE tollgate.node SET hours_from = p_from, hours_until = p_until WHERE id = p_node;
	PERFORM tollgate.make_periods(p_from, p_until);
END $$;

DROP FUNCTION make_periods(timestamptz, timestamptz);
CREATE FUNCTION make_periods(p_from timestamptz, p_until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF NOT isfinite(p_from) OR NOT isfinite(p_until) OR p_until - p_from > interval '3660 days' OR p_from < '2000-01-01' OR p_until > '2100-01-01' THEN
		PERFORM tollgate.refuse_bounds('make_periods', format('%s to %s is not within 2000 to 2100, or more than ten years', p_from, p_until));
	END IF;
	INSERT INTO tollgate.period (month, starts_at, ends_at)
		SELECT to_char(m, 'YYYY-MM'), m AT TIME ZONE l.zone, (m + interval '1 month') AT TIME ZONE l.zone
		FROM tollgate.ledger l, generate_series(date_trunc('month', p_from AT TIME ZONE l.zone),
			(p_until AT TIME ZONE l.zone) - interval '1 microsecond', interval '1 month') m
		ON CONFLICT DO NOTHING;
END $$;
COMMENT ON FUNCTION make_periods IS 'Makes the billing months that the range touches.';

-- As before; and no day goes that a node has not come past.
CREATE OR REPLACE FUNCTION retire_intervals(p_day bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	day_ns constant bigint := 86400000000000;
	hours tstzrange := tstzrange(tollgate.at_ns(p_day * day_ns) - interval '1 hour', tollgate.at_ns((p_day + 1) * day_ns), '()');
BEGIN
	IF NOT EXISTS (SELECT FROM tollgate.node n WHERE n.covered_until_ns >= (p_day + 1) * day_ns) THEN
		PERFORM tollgate.refuse_bounds('retire_intervals', format('no node has come past day %s', p_day));
	END IF;
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

-- --- hours of an ingest ---

-- The share lock makes sealing wait for this transaction, and this transaction for sealing.
CREATE FUNCTION node_hours_share(p_nodes integer[], p_hours timestamptz[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN (SELECT coalesce(bool_or(x.sealed), false) FROM (SELECT h.sealed_at IS NOT NULL AND NOT h.dirty AS sealed
		FROM unnest(p_nodes, p_hours) AS e(node_id, hour) JOIN tollgate.node_hour h USING (node_id, hour)
		ORDER BY h.hour, h.node_id FOR SHARE OF h) x);
END $$;
COMMENT ON FUNCTION node_hours_share IS 'Locks hours against sealing; whether one of them is sealed and clean.';

-- Whoever has an hour locked seals it or attributes it again: nobody waits for that. A slice begins where the one before ends, and ends in its hour.
CREATE FUNCTION slices_mark(p_nodes integer[], p_hours timestamptz[], p_from_ns bigint[], p_until_ns bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY UPDATE tollgate.node_hour h SET sliced_until_ns = x.until_ns FROM (SELECT n.node_id, n.hour, e.until_ns, e.place
		FROM unnest(p_nodes, p_hours, p_from_ns, p_until_ns) WITH ORDINALITY AS e(node_id, hour, from_ns, until_ns, place)
			JOIN tollgate.node_hour n ON n.node_id = e.node_id AND n.hour = e.hour
		WHERE n.sealed_at IS NULL AND coalesce(n.sliced_until_ns, tollgate.ns_of(n.hour)) = e.from_ns
			AND e.until_ns > e.from_ns AND e.until_ns <= tollgate.ns_of(n.hour) + 3600000000000
		ORDER BY n.hour, n.node_id FOR NO KEY UPDATE OF n SKIP LOCKED) x
	WHERE h.node_id = x.node_id AND h.hour = x.hour RETURNING x.place;
END $$;
COMMENT ON FUNCTION slices_mark IS 'Open hours have one slice more; the places of those that were marked.';

-- A login that may not mark an hour itself adds only slices that its transaction has marked so: a stretch of an hour is summed once. By a trigger, because
-- ingest adds them by COPY.
CREATE FUNCTION slices_are_marked() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	stray record;
BEGIN
	SELECT a.node_id, a.hour INTO stray FROM (SELECT DISTINCT node_id, hour, until_ns FROM added) a
		WHERE NOT EXISTS (SELECT FROM tollgate.node_hour h WHERE h.node_id = a.node_id AND h.hour = a.hour AND h.sealed_at IS NULL
			AND h.sliced_until_ns = a.until_ns AND h.xmin = pg_current_xact_id()::xid) LIMIT 1;
	IF FOUND THEN
		PERFORM tollgate.refuse_bounds('usage_slice', format('a slice of node %s in the hour of %s that this transaction has not marked', stray.node_id, stray.hour));
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER slices_are_marked AFTER INSERT ON usage_slice REFERENCING NEW TABLE AS added
	FOR EACH STATEMENT WHEN (NOT has_table_privilege('tollgate.node_hour', 'UPDATE')) EXECUTE FUNCTION slices_are_marked();

-- --- hours whose holders are somebody else's now ---

-- Sealing that begins later reads what the holders have now; what is being sealed is waited for.
CREATE FUNCTION node_hours_reattribute(p_from timestamptz, p_until timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	marked bigint;
BEGIN
	PERFORM FROM tollgate.node_hour h WHERE h.hour >= p_from AND h.hour < p_until ORDER BY h.node_id, h.hour FOR SHARE OF h;
	UPDATE tollgate.node_hour h SET dirty = true
		FROM (SELECT DISTINCT u.node_id, u.hour FROM tollgate.usage_hourly u
				JOIN tollgate.holder_attribution a ON a.holder_id = u.holder_id AND a.effective @> u.hour
			WHERE u.hour >= p_from AND u.hour < p_until AND a.workspace_id <> u.workspace_id) x
		WHERE h.node_id = x.node_id AND h.hour = x.hour AND h.sealed_at IS NOT NULL AND NOT h.dirty;
	GET DIAGNOSTICS marked = ROW_COUNT;
	RETURN marked;
END $$;
COMMENT ON FUNCTION node_hours_reattribute IS 'Sealed hours whose rows say another workspace than holder_attribution are due again; how many.';
