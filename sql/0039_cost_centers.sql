-- oldest-binary: 0.1.0
-- Cost centres of past days: what was in force then.

-- A billing day has one cost centre: that in force when the day begins, so a change within a day counts from the next one on. Days before a tenant's first term
-- have the first one. Only tenants that have more than one in the range are listed.
CREATE FUNCTION cost_centers(p_from timestamptz, p_until timestamptz) RETURNS TABLE (tenant_id integer, first_day date, cost_center text)
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		WITH begun AS (
			SELECT DISTINCT ON (x.tenant_id, d.day) x.tenant_id, d.day, x.cost_center FROM ledger l CROSS JOIN tenant_term x
				CROSS JOIN LATERAL (SELECT CASE WHEN lower_inf(x.effective) OR lower(x.effective) <= p_from THEN (p_from AT TIME ZONE l.zone)::date
					ELSE (lower(x.effective) AT TIME ZONE l.zone + interval '1 day' - interval '1 microsecond')::date END AS day) d
			WHERE x.effective && tstzrange(p_from, p_until) AND d.day < (p_until AT TIME ZONE l.zone)::date
			ORDER BY x.tenant_id, d.day, lower(x.effective) DESC NULLS LAST
		)
		SELECT b.tenant_id, b.day, b.cost_center FROM begun b
		WHERE b.tenant_id IN (SELECT m.tenant_id FROM begun m GROUP BY m.tenant_id HAVING min(m.cost_center) <> max(m.cost_center));
	END;
COMMENT ON FUNCTION cost_centers IS 'of tenants with several cost centres in a range of days: from which day on each counts';
