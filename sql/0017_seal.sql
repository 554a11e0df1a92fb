-- oldest-binary: 0.1.0
-- Silence ends with the last service; a partition is made once.

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
