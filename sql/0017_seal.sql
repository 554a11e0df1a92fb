-- oldest-binary: 0.1.0
-- Slices that ingest stores, silence that ends with the last service, a partition that is made once.

-- Nodes that have been silent for longer than the grace: their time counts as unknown, until now or until the last of their GPUs has
-- left service, also when that was declared before the silence. So an hour is only ever sealed when all time in service in it is
-- accounted for; sealed hours from where the accounts ended are due again.
CREATE OR REPLACE FUNCTION nodes_fall_silent(p_now_ns bigint, p_grace_ns bigint) RETURNS void LANGUAGE plpgsql AS $$
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

CREATE FUNCTION is_accounted(p_node integer, p_hour timestamptz) RETURNS boolean LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT NOT EXISTS (SELECT FROM node n JOIN gpu_service s ON s.node_id = n.id
			WHERE n.id = p_node AND greatest(n.covered_until_ns, n.silent_until_ns) < ns_of(p_hour) + 3600000000000
				AND s.from_ns < ns_of(p_hour) + 3600000000000
				AND (s.until_ns IS NULL OR s.until_ns > greatest(n.covered_until_ns, n.silent_until_ns)));
	END;
COMMENT ON FUNCTION is_accounted IS 'What is in service in that hour is covered to its end, or silent; a later push changes nothing of it unless it says so.';

-- As before; but whether somebody else has made it meanwhile is asked of the catalogue. to_regclass() may remember that there was
-- none: waiting for an advisory lock does not make a session hear of what others have committed.
CREATE OR REPLACE FUNCTION make_partitions(p_from_ns bigint, p_until_ns bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
	day_ns constant bigint := 86400000000000;
	made integer := 0;
	name text;
BEGIN
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

-- --- slices ---

-- Who takes records in sums them as they go by, and stores a slice in the transaction that covers its end. So a slice that does not
-- count must not be there: whoever voids it removes it.
DELETE FROM usage_slice s USING node_hour h
	WHERE h.hour = s.hour AND h.node_id = s.node_id AND (h.sliced_until_ns IS NULL OR s.until_ns > h.sliced_until_ns);
COMMENT ON TABLE usage_slice IS 'The records of an hour that is still open, summed as far as its node has covered it, until node_hour.sliced_until_ns. '
	'Gone when the hour is sealed.';
ALTER TABLE node ADD COLUMN behind bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN node.behind IS 'how often records came behind what had been covered: whoever sums them as they go by begins anew';

-- As before; and what is behind is counted, and takes the slices of its hours away. had_ns and behind are what was there before.
DROP FUNCTION node_hours_touch(integer, timestamptz[], timestamptz, timestamptz, bigint, bigint, bigint);
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
