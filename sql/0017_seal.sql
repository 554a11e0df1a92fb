-- oldest-binary: 0.1.0
-- Silence ends with the last service, and what sealing costs.

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
