-- oldest-binary: 0.2.0
-- Functions of the roll-up: hours and days that must be computed again, usage by the hour and by the day, charges, lost devices.

-- --- days that must be folded again ---

-- A session that changes an input of a day holds the day's lock shared until it commits; folding takes it exclusively or skips the day. So a folded day has seen every change,
-- or is dirty.
CREATE FUNCTION day_lock(p_day date) RETURNS integer LANGUAGE sql IMMUTABLE STRICT
	RETURN p_day - date '1970-01-01';

-- Marks days that must be folded again.
CREATE FUNCTION days_dirty(p_days date[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	d date;
BEGIN
	FOR d IN SELECT DISTINCT x FROM unnest(p_days) x ORDER BY x LOOP
		PERFORM pg_advisory_xact_lock_shared(1953459309, tollgate.day_lock(d));
		UPDATE tollgate.billing_day b SET dirty = true WHERE b.day = d AND NOT b.dirty AND NOT b.hours_gone;
	END LOOP;
END $$;
-- Marks days that must be folded again.
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

-- Where a row only begins or ends elsewhere, the hours that it had before and after are as they were: months that were closed long ago
-- are not looked at again because a price, an owner or a reservation ends today.
CREATE FUNCTION changed_ranges(p_old tstzrange, p_new tstzrange) RETURNS SETOF tstzrange
	LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
	RETURN unnest((tstzmultirange(p_old) - tstzmultirange(p_new)) + (tstzmultirange(p_new) - tstzmultirange(p_old)));
COMMENT ON FUNCTION changed_ranges IS 'the parts that are in one of the ranges and not in the other';

-- Prices, owners, clusters and models are looked up by the hour when a day is folded.
CREATE FUNCTION effective_dirties_days() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP = 'UPDATE' AND to_jsonb(OLD) - 'effective' = to_jsonb(NEW) - 'effective' THEN
		PERFORM tollgate.days_dirty(c) FROM tollgate.changed_ranges(OLD.effective, NEW.effective) c;
		RETURN NULL;
	END IF;
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
CREATE TRIGGER reservation_dirties_days AFTER INSERT OR UPDATE OR DELETE ON reservation
	FOR EACH ROW EXECUTE FUNCTION effective_dirties_days();
-- Limits and borrow caps change no charge.
CREATE TRIGGER lend_cap_begins AFTER INSERT ON workspace_limit FOR EACH ROW WHEN (NEW.kind = 'lend') EXECUTE FUNCTION effective_dirties_days();
CREATE TRIGGER lend_cap_changes AFTER UPDATE ON workspace_limit
	FOR EACH ROW WHEN (OLD.kind = 'lend' OR NEW.kind = 'lend') EXECUTE FUNCTION effective_dirties_days();
CREATE TRIGGER lend_cap_ends AFTER DELETE ON workspace_limit FOR EACH ROW WHEN (OLD.kind = 'lend') EXECUTE FUNCTION effective_dirties_days();
-- A row that has no beginning is the first of a new GPU, which no hour has yet.
CREATE TRIGGER gpu_spec_begins AFTER INSERT ON gpu_spec FOR EACH ROW WHEN (NOT lower_inf(NEW.effective)) EXECUTE FUNCTION effective_dirties_days();
CREATE TRIGGER gpu_spec_changes AFTER UPDATE OR DELETE ON gpu_spec FOR EACH ROW EXECUTE FUNCTION effective_dirties_days();
CREATE TRIGGER node_cluster_begins AFTER INSERT ON node_cluster FOR EACH ROW WHEN (NOT lower_inf(NEW.effective)) EXECUTE FUNCTION effective_dirties_days();
CREATE TRIGGER node_cluster_changes AFTER UPDATE OR DELETE ON node_cluster FOR EACH ROW EXECUTE FUNCTION effective_dirties_days();

-- --- hours ---

-- The bounds keep callers from filling the table: ten years of hours are 87,600 rows of a node.
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
	IF NOT isfinite(p_from) OR NOT isfinite(p_until) OR p_until - p_from > interval '3660 days' THEN
		PERFORM tollgate.refuse_bounds('node_hours_extend', format('%s to %s is more than ten years', p_from, p_until));
	END IF;
	INSERT INTO tollgate.node_hour (node_id, hour)
		SELECT p_node, h FROM generate_series(p_from, p_until - interval '1 hour', interval '1 hour') h
		WHERE had_from IS NULL OR h < had_from OR h >= had_until;
	UPDATE tollgate.node SET hours_from = p_from, hours_until = p_until WHERE id = p_node;
	PERFORM tollgate.make_periods(p_from, p_until);
END $$;
COMMENT ON FUNCTION node_hours_extend IS 'Makes node_hour rows so that they reach from p_from to p_until without a hole.';

-- The share lock is for hours that are being sealed at this moment: they may have read what is about to change. The node's row is locked before its hours, as by every
-- push; otherwise a push and a declared state could wait for each other.
CREATE FUNCTION node_hours_change(p_node integer, p_from timestamptz, p_until timestamptz, p_changes integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM tollgate.node n WHERE n.id = p_node FOR NO KEY UPDATE;
	PERFORM FROM tollgate.node_hour h WHERE h.node_id = p_node AND h.hour >= p_from AND h.hour < p_until ORDER BY h.hour FOR SHARE;
	UPDATE tollgate.node_hour h SET dirty = true, changes = h.changes + p_changes
		WHERE h.node_id = p_node AND h.hour >= p_from AND h.hour < p_until AND h.sealed_at IS NOT NULL AND (NOT h.dirty OR p_changes > 0);
END $$;

CREATE FUNCTION node_hours_dirty(p_node integer, p_from_ns bigint) RETURNS void LANGUAGE sql VOLATILE
	BEGIN ATOMIC
		SELECT node_hours_change(p_node, hour_of(p_from_ns), 'infinity', 0);
	END;
COMMENT ON FUNCTION node_hours_dirty IS 'The time in service of a GPU of the node has changed from then on.';

-- The share lock makes sealing wait for this transaction, and this transaction for sealing.
CREATE FUNCTION node_hours_share(p_nodes integer[], p_hours timestamptz[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN (SELECT coalesce(bool_or(x.sealed), false) FROM (SELECT h.sealed_at IS NOT NULL AND NOT h.dirty AS sealed
		FROM unnest(p_nodes, p_hours) AS e(node_id, hour) JOIN tollgate.node_hour h USING (node_id, hour)
		ORDER BY h.hour, h.node_id FOR SHARE OF h) x);
END $$;
COMMENT ON FUNCTION node_hours_share IS 'Locks hours against sealing; whether one of them is sealed and clean.';

-- A push covers its hours. Records behind what was covered before are counted (node.behind) and remove the slices of their hours, so a slice that is void is never there.
-- had_ns and behind are the values from before.
CREATE FUNCTION node_hours_touch(p_node integer, p_hours timestamptz[], p_first timestamptz, p_last timestamptz, p_covered_ns bigint,
	p_from_ns bigint DEFAULT NULL, p_had_ns bigint DEFAULT NULL, OUT had_ns bigint, OUT behind bigint) LANGUAGE plpgsql AS $$
DECLARE
	had record;
	is_behind boolean;
	is_sealed boolean;
BEGIN
	SELECT n.hours_from, n.hours_until, n.covered_until_ns, n.behind INTO had FROM tollgate.node n WHERE n.id = p_node FOR NO KEY UPDATE;
	had_ns := coalesce(p_had_ns, had.covered_until_ns);
	behind := had.behind;
	is_behind := coalesce(p_from_ns, 0) < coalesce(had_ns, -1);
	UPDATE tollgate.node n SET covered_until_ns = greatest(n.covered_until_ns, p_covered_ns), behind = n.behind + is_behind::integer
		WHERE n.id = p_node;
	IF had.hours_from IS NULL OR p_first < had.hours_from OR p_last >= had.hours_until THEN
		PERFORM tollgate.node_hours_extend(p_node, p_first, p_last + interval '1 hour');
	END IF;
	SELECT bool_or(x.sealed_at IS NOT NULL) INTO is_sealed FROM (SELECT h.sealed_at FROM tollgate.node_hour h
		WHERE h.node_id = p_node AND h.hour = ANY (p_hours) ORDER BY h.hour FOR SHARE) x;
	IF is_behind OR is_sealed THEN
		DELETE FROM tollgate.usage_slice s WHERE s.node_id = p_node AND s.hour = ANY (p_hours);
		UPDATE tollgate.node_hour h SET dirty = h.sealed_at IS NOT NULL, changes = h.changes + 1, sliced_until_ns = NULL
			WHERE h.node_id = p_node AND h.hour = ANY (p_hours);
	END IF;
END $$;

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

-- Ends the service of a retired GPU at the begin of the state, or at its own begin if that is later, but never before its last record: measured time stays in service.
-- Withdrawing the state does not give the time back: the next record extends the service again.
CREATE FUNCTION state_is_declared(p_state node_state, p_now boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	retired_ns bigint := tollgate.ns_of(lower(p_state.effective));
	s tollgate.gpu_service;
BEGIN
	PERFORM tollgate.node_hours_change(x.node_id, lower(p_state.effective), coalesce(upper(p_state.effective), 'infinity'), 1)
		FROM (SELECT p_state.node_id WHERE p_state.node_id IS NOT NULL
			UNION SELECT v.node_id FROM tollgate.gpu_service v WHERE v.gpu_id = p_state.gpu_id ORDER BY 1) x;
	IF NOT p_now OR p_state.state <> 'retired' THEN
		RETURN;
	END IF;
	FOR s IN SELECT v.* FROM tollgate.gpu_service v WHERE (v.gpu_id = p_state.gpu_id OR v.node_id = p_state.node_id)
		AND int8range(v.from_ns, v.until_ns) && int8range(retired_ns, tollgate.ns_of(upper(p_state.effective))) ORDER BY v.node_id, v.gpu_id, v.from_ns
	LOOP
		PERFORM tollgate.services_stay(s.node_id);
		UPDATE tollgate.gpu_service v SET until_ns = greatest(retired_ns, s.from_ns, tollgate.gpu_last_ns(s)) WHERE v.id = s.id;
	END LOOP;
END $$;

CREATE FUNCTION node_state_changes_hours() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	part tollgate.node_state;
BEGIN
	IF TG_OP = 'UPDATE' AND to_jsonb(OLD) - 'effective' = to_jsonb(NEW) - 'effective' THEN
		part := NEW;
		FOR part.effective IN SELECT tollgate.changed_ranges(OLD.effective, NEW.effective) LOOP
			PERFORM tollgate.state_is_declared(part, part.effective <@ NEW.effective);
		END LOOP;
		RETURN NULL;
	END IF;
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

-- An hour that another session has locked is being sealed or attributed again; it is skipped. A slice begins where the one before ends, and ends in its hour.
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

-- The time of nodes that have been silent for longer than the grace counts as unknown, until now or until the last of their GPUs has left service, also when that was declared
-- before the silence. So an hour is sealed only when all time in service in it is accounted for; sealed hours from where the accounts ended are due again.
CREATE FUNCTION nodes_fall_silent(p_now_ns bigint, p_grace_ns bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	n record;
	end_ns bigint;
BEGIN
	FOR n IN SELECT x.id, greatest(x.covered_until_ns, x.silent_until_ns) AS accounted_ns FROM tollgate.node x
		WHERE x.covered_until_ns < p_now_ns - p_grace_ns AND (x.silent_until_ns IS NULL OR x.silent_until_ns < p_now_ns)
			AND EXISTS (SELECT FROM tollgate.gpu_service s WHERE s.node_id = x.id
				AND (s.until_ns IS NULL OR s.until_ns > greatest(x.covered_until_ns, x.silent_until_ns)))
		ORDER BY x.id FOR NO KEY UPDATE OF x
	LOOP
		SELECT least(p_now_ns, max(coalesce(s.until_ns, p_now_ns))) INTO end_ns FROM tollgate.gpu_service s WHERE s.node_id = n.id;
		UPDATE tollgate.node x SET silent_until_ns = end_ns WHERE x.id = n.id;
		PERFORM tollgate.node_hours_extend(n.id, tollgate.hour_of(end_ns - 1), tollgate.hour_of(end_ns - 1) + interval '1 hour');
		PERFORM tollgate.node_hours_dirty(n.id, n.accounted_ns);
	END LOOP;
END $$;

-- --- usage of hours and days ---

-- How many records a stretch of some nodes has, about: by the size of its days and how much of them has passed.
CREATE FUNCTION expected_records(p_from_ns bigint, p_until_ns bigint, p_nodes integer) RETURNS bigint LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT coalesce(sum(pg_relation_size(to_regclass(d.name)) / 130.0 * (least(p_until_ns, d.until_ns) - greatest(p_from_ns, d.from_ns))
			/ greatest(least(n.covered_ns, d.until_ns) - d.from_ns, 3600000000000)) * p_nodes / max(n.nodes), 0)::bigint
		FROM (SELECT count(*) AS nodes, max(covered_until_ns) AS covered_ns FROM node WHERE covered_until_ns IS NOT NULL) n,
			LATERAL (SELECT x * 86400000000000 AS from_ns, (x + 1) * 86400000000000 AS until_ns, partition_name(x) AS name
				FROM generate_series(p_from_ns / 86400000000000, (p_until_ns - 1) / 86400000000000) x) d;
	END;

CREATE FUNCTION is_accounted(p_node integer, p_hour timestamptz) RETURNS boolean LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT NOT EXISTS (SELECT FROM node n JOIN gpu_service s ON s.node_id = n.id
			WHERE n.id = p_node AND greatest(n.covered_until_ns, n.silent_until_ns) < ns_of(p_hour) + 3600000000000
				AND s.from_ns < ns_of(p_hour) + 3600000000000
				AND (s.until_ns IS NULL OR s.until_ns > greatest(n.covered_until_ns, n.silent_until_ns)));
	END;
COMMENT ON FUNCTION is_accounted IS 'All GPUs in service in that hour are covered to its end, or silent: a later push of that hour marks it as changed.';

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

-- The rows of a billing hour for some nodes: slices until p_from_ns, records from there on. Sealing stores them, open hours are read through it. With p_kept the sums are
-- those of usage_hourly itself, whose records are gone, and only rules 3 to 6 are applied again.
--  1. units x time per device, holder, sharing and method; used, unmeasured and over only count where somebody holds
--  2. idle is what is held and neither used nor unmeasured
--  3. what nobody holds of a GPU that is declared in maintenance is down
--  4. a GPU's time in service ends where its node's accounts end: covered, or silent beyond the grace (node.silent_until_ns)
--  5. what no record covers of 5040 x that time is unknown, or down in maintenance; what the records have beyond it is clock_adjust
--  6. a holder's workspace is what holder_attribution says of the hour
--  7. the peak of memory is the highest of the records; SM activity is summed like used
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
--
-- Outer joins, because PostgreSQL estimates that one row in two hundred has a range that contains the hour, where all of them have. Behind two inner joins on ranges it
-- expected a few rows of a day and scanned every GPU for each of its rows: a minute for a day of 800 GPUs. An outer join keeps every row in the estimate; coalesce() then
-- drops rows without a match, as inner joins would, and keeps the planner from turning them into inner joins.
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
		LEFT JOIN node_cluster k ON k.node_id = u.node_id AND k.effective @> u.hour
		LEFT JOIN device d ON d.id = u.device_id LEFT JOIN gpu_spec g ON g.gpu_id = d.gpu_id AND g.effective @> u.hour
		LEFT JOIN price_book p ON p.effective @> u.hour
		LEFT JOIN node_owner o ON o.node_id = u.node_id AND o.effective @> u.hour
	WHERE coalesce(k.cluster_id, 0) > 0 AND coalesce(g.gpu_id, 0) > 0
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
	SELECT u.day, u.price_book_id, u.cluster_id, u.owner_id, u.workspace_id, u.gpu_model, u.profile, u.units, u.sharing, u.method, u.used, u.idle,
		u.unmeasured, u.unallocated, u.stranded, u.down, u.unknown, u.over, u.clock_adjust, u.energy_mj, u.memory_byte_ms,
		coalesce(u.peak_memory_bytes, 0), coalesce(u.sm_active, 0), coalesce(u.sm_measured, 0)
	FROM usage_daily u JOIN billing_day b ON b.day = u.day
	WHERE b.starts_at >= p_from AND b.starts_at < p_until AND NOT b.dirty
	UNION ALL
	SELECT b.day, x.* FROM billing_day b, LATERAL folded_usage(b.starts_at, b.ends_at) x
	WHERE b.starts_at >= p_from AND b.starts_at < p_until AND b.dirty;
END;
COMMENT ON FUNCTION daily_rows IS 'Usage of the billing days that begin in the range, folded or not.';

-- --- charges ---

-- The lend cap of a workspace in each pool at an hour; NULL: all that it has reserved may be lent.
--  1. amounts of the model go before those of any model
--  2. an amount of instances weighs what the workspace's reservation of that profile does; what is not reserved cannot be lent
CREATE FUNCTION lend_cap(p_workspace integer, p_model text, p_hour timestamptz) RETURNS numeric LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT CASE WHEN bool_and(l.units IS NOT NULL OR l.profile <> '') THEN sum(coalesce(l.units,
			l.instances * (SELECT max(r.units / r.instances) FROM reservation r WHERE r.workspace_id = p_workspace AND r.model = p_model
				AND r.profile = l.profile AND r.effective @> p_hour), 0)) END
		FROM workspace_limit l
		WHERE l.workspace_id = p_workspace AND l.kind = 'lend' AND l.effective @> p_hour AND l.model = (
			SELECT max(m.model) FROM workspace_limit m
			WHERE m.workspace_id = p_workspace AND m.kind = 'lend' AND m.effective @> p_hour AND m.model IN ('', p_model));
	END;

-- The hours of a range as rating reads them (aggregator/core/rating): what was held, what was not, and what was reserved, per pool and hour.
--  1. a reservation counts in the hours that the ledger has, whether its pool has nodes then or not
--  2. of an hour that is not over it counts as far as every node of the pool is accounted for; in a pool without nodes at that hour, as far as any node is. A sealed hour
--     counts whole
--  3. in a row with is_right, reserved is the reservation and lend_cap the part of it that may be lent
-- The outer joins are explained at folded_usage().
CREATE FUNCTION charge_input(p_from timestamptz, p_until timestamptz)
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
COMMENT ON FUNCTION charge_input IS 'The input of the charges of a range of billing hours; aggregator/store/rollup reads it.';

-- --- lost devices ---

CREATE FUNCTION xid_is_the_programs(p_xid integer) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN p_xid IN (13, 31, 43, 45, 68, 109);
COMMENT ON FUNCTION xid_is_the_programs IS 'errors that a program makes itself, on a sound GPU: an exception, a page fault, a hang, the cleaning up after it';

-- One that is told late changes what was lost on its day.
CREATE FUNCTION xid_dirties_days() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM tollgate.days_dirty(ARRAY(SELECT DISTINCT b.day FROM added a JOIN tollgate.billing_day b
		ON tollgate.at_ns(a.at_ns) >= b.starts_at AND tollgate.at_ns(a.at_ns) < b.ends_at AND NOT b.dirty));
	RETURN NULL;
END $$;
CREATE TRIGGER xid_dirties_days AFTER INSERT ON gpu_xid REFERENCING NEW TABLE AS added
	FOR EACH STATEMENT EXECUTE FUNCTION xid_dirties_days();

CREATE FUNCTION refund_id(p_device integer, p_holder bigint, p_ended_ns bigint) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
	RETURN left(encode(sha256(convert_to(p_device || ' ' || p_holder || ' ' || p_ended_ns, 'UTF8')), 'hex'), 16);
COMMENT ON FUNCTION refund_id IS 'the name of a lost hold, by which a credit says what it is for';

-- Only GPU-hours in which somebody held, or has just held, and then something was down, silent for five minutes, or had an error, are looked
-- at record by record.
--  1. a stay has ended where no record of its holder and device goes on within ten minutes
--  2. the GPU is down within a minute after: gpu-down
--  3. nothing accounts for the GPU for ten minutes, and the node's accounts have passed them: node-silent
--  4. the GPU had a critical error that was not the program's own, at most ten minutes before or a minute after: xid
CREATE FUNCTION lost_stays(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (node_id integer, stream_id integer, device_id integer, holder_id bigint, ended_ns bigint, cause text, xid integer, failed_gpu_id integer)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan AS $$
DECLARE
	minute constant bigint := 60000000000;
	g record;
	h bigint;
BEGIN
	FOR g IN
		SELECT o.hour, o.node_id, array_agg(DISTINCT o.gpu_id) AS gpus FROM (
			SELECT x.hour, x.node_id, x.gpu_id FROM (
				SELECT s.*, lag(s.held) OVER w AS held_before, lead(s.gap) OVER w AS gap_after FROM (
					SELECT u.hour, u.node_id, d.gpu_id, sum(u.used + u.idle + u.unmeasured) AS held, sum(u.down) AS down,
						coalesce(sum(u.unknown) FILTER (WHERE u.sharing = 0), 0) AS gap
					FROM tollgate.usage_rows(p_from - interval '1 hour', p_until + interval '1 hour') u JOIN tollgate.device d ON d.id = u.device_id
					GROUP BY u.hour, u.node_id, d.gpu_id
				) s WINDOW w AS (PARTITION BY s.node_id, s.gpu_id ORDER BY s.hour)
			) x WHERE (x.held > 0 OR x.held_before > 0) AND (x.down > 0 OR greatest(x.gap, x.gap_after) >= 5 * minute::numeric * 5040)
			UNION ALL
			SELECT tollgate.hour_of(t.at_ns), s.node_id, x.gpu_id FROM tollgate.gpu_xid x
				JOIN tollgate.gpu_service s ON s.gpu_id = x.gpu_id AND int8range(s.from_ns, s.until_ns) @> x.at_ns
				CROSS JOIN LATERAL (VALUES (x.at_ns - minute), (x.at_ns + 10 * minute)) t(at_ns)
			WHERE x.at_ns >= tollgate.ns_of(p_from) - 10 * minute AND x.at_ns < tollgate.ns_of(p_until) + minute
				AND NOT tollgate.xid_is_the_programs(x.xid)
		) o WHERE o.hour >= p_from AND o.hour < p_until GROUP BY 1, 2 ORDER BY 1, 2
	LOOP
		h := tollgate.ns_of(g.hour);
		RETURN QUERY
		WITH records AS MATERIALIZED (
			SELECT d.gpu_id, i.device_id, i.holder_id, i.stream_id, i.state, i.start_ns, i.start_ns + i.duration_ns AS end_ns
			FROM tollgate.usage_interval i JOIN tollgate.device d ON d.id = i.device_id
			WHERE i.node_id = g.node_id AND i.start_ns >= h - 15 * minute AND i.start_ns < h + 70 * minute AND d.gpu_id = ANY (g.gpus)
		), ends AS (
			SELECT r.gpu_id, r.device_id, r.holder_id, max(r.stream_id) AS stream_id, r.end_ns FROM records r
			WHERE r.state = 1 AND r.end_ns >= h AND r.end_ns < h + 60 * minute AND NOT EXISTS (SELECT FROM records n
				WHERE n.device_id = r.device_id AND n.holder_id = r.holder_id AND n.end_ns > r.end_ns AND n.start_ns <= r.end_ns + 10 * minute)
			GROUP BY r.gpu_id, r.device_id, r.holder_id, r.end_ns
		), judged AS (
			SELECT e.*, CASE
				WHEN EXISTS (SELECT FROM records r WHERE r.gpu_id = e.gpu_id AND r.state = 4 AND r.start_ns BETWEEN e.end_ns AND e.end_ns + minute)
					THEN 'gpu-down'
				WHEN NOT EXISTS (SELECT FROM records r WHERE r.gpu_id = e.gpu_id AND r.end_ns > e.end_ns AND r.start_ns <= e.end_ns + 10 * minute)
					AND EXISTS (SELECT FROM tollgate.node n WHERE n.id = g.node_id
						AND greatest(n.covered_until_ns, n.silent_until_ns) >= e.end_ns + 10 * minute)
					THEN 'node-silent'
				WHEN EXISTS (SELECT FROM tollgate.gpu_xid x WHERE x.gpu_id = e.gpu_id AND NOT tollgate.xid_is_the_programs(x.xid)
					AND x.at_ns BETWEEN e.end_ns - 10 * minute AND e.end_ns + minute)
					THEN 'xid' END AS cause
			FROM ends e
		)
		SELECT g.node_id, j.stream_id, j.device_id, j.holder_id, j.end_ns, j.cause,
			(SELECT x.xid FROM tollgate.gpu_xid x WHERE x.gpu_id = j.gpu_id AND NOT tollgate.xid_is_the_programs(x.xid)
				AND x.at_ns BETWEEN j.end_ns - 10 * minute AND j.end_ns + minute ORDER BY x.at_ns DESC LIMIT 1), j.gpu_id
		FROM judged j WHERE j.cause IS NOT NULL;
	END LOOP;
END $$;

-- Those, and the other devices of the same pod or job, which it gave up at that time: from a minute before until ten minutes after.
--  1. a loss belongs to the range in which its stay ended, and to no other: failures just before and after the range are looked at too
--  2. a device may be lost several times, by its own failure or with another one: once for each end
--  3. of several failures that explain an end, the first is named
CREATE FUNCTION lost_holds(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (node_id integer, stream_id integer, device_id integer, holder_id bigint, ended_ns bigint, cause text, xid integer, failed_gpu_id integer)
LANGUAGE sql STABLE
BEGIN ATOMIC
	WITH failed AS MATERIALIZED (
		SELECT s.* FROM lost_stays(p_from - interval '1 hour', p_until + interval '1 hour') s
		WHERE s.ended_ns > ns_of(p_from) - 600000000000 AND s.ended_ns <= ns_of(p_until) + 60000000000
	), lost AS (
		SELECT f.* FROM failed f
		UNION ALL
		(SELECT DISTINCT ON (k.device_id, f.holder_id, k.end_ns) k.node_id, k.stream_id, k.device_id, f.holder_id, k.end_ns, f.cause, f.xid, f.failed_gpu_id
		FROM failed f JOIN holder o ON o.id = f.holder_id AND o.kind <> 3
			CROSS JOIN LATERAL (SELECT i.node_id, max(i.stream_id) AS stream_id, i.device_id, max(i.start_ns + i.duration_ns) AS end_ns
				FROM usage_interval i WHERE i.holder_id = f.holder_id AND i.start_ns >= f.ended_ns - 900000000000 AND i.start_ns < f.ended_ns + 1500000000000
				GROUP BY i.node_id, i.device_id) k
		WHERE k.end_ns >= f.ended_ns - 60000000000 AND k.end_ns < f.ended_ns + 600000000000
			AND NOT EXISTS (SELECT FROM failed m WHERE m.device_id = k.device_id AND m.holder_id = f.holder_id AND m.ended_ns = k.end_ns)
		ORDER BY k.device_id, f.holder_id, k.end_ns, f.ended_ns, f.failed_gpu_id, f.device_id)
	)
	SELECT l.* FROM lost l WHERE l.ended_ns >= ns_of(p_from) AND l.ended_ns < ns_of(p_until);
END;
COMMENT ON FUNCTION lost_holds IS 'Lost devices in a range of billing hours, as far as its records are kept: folding stores them, days that are not folded are read through it.';

-- A node that was silent, and whose exporter went on in the same boot, was not lost: its workloads were not seen, and that is all.
CREATE FUNCTION lost_rows(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (node_id integer, stream_id integer, device_id integer, holder_id bigint, ended_ns bigint, cause text, xid integer, failed_gpu_id integer)
LANGUAGE sql STABLE
BEGIN ATOMIC
	SELECT l.* FROM (
		SELECT s.node_id, s.stream_id, s.device_id, s.holder_id, s.ended_ns, s.cause, s.xid, s.failed_gpu_id
		FROM lost_hold s JOIN billing_day b ON b.day = s.day
		WHERE b.starts_at >= p_from AND b.starts_at < p_until
			AND (NOT b.dirty OR EXISTS (SELECT FROM node_hour h WHERE h.node_id = s.node_id AND h.hour = hour_of(s.ended_ns) AND h.retired))
		UNION
		SELECT x.* FROM billing_day b, LATERAL lost_holds(b.starts_at, b.ends_at) x
		WHERE b.starts_at >= p_from AND b.starts_at < p_until AND b.dirty
	) l
	WHERE l.cause <> 'node-silent' OR NOT EXISTS (SELECT FROM stream m JOIN stream s ON s.node_id = m.node_id AND s.boot_id = m.boot_id
		WHERE m.id = l.stream_id AND s.covered_until_ns > l.ended_ns + 600000000000);
END;
COMMENT ON FUNCTION lost_rows IS 'Lost devices of the billing days that begin in the range.';
