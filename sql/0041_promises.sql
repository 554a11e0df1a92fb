-- oldest-binary: 0.1.0
-- What the operator promised a tenant or a workspace, over time: how long owed requests wait at most, which part of reservations is there; and where
-- a tenant's data may be.

ALTER TABLE tenant_quota ADD COLUMN owed_wait_ns bigint CHECK (owed_wait_ns > 0),
	ADD COLUMN delivered_millionths bigint CHECK (delivered_millionths BETWEEN 1 AND 1000000);
ALTER TABLE workspace_quota ADD COLUMN owed_wait_ns bigint CHECK (owed_wait_ns > 0),
	ADD COLUMN delivered_millionths bigint CHECK (delivered_millionths BETWEEN 1 AND 1000000);
COMMENT ON COLUMN tenant_quota.owed_wait_ns IS 'promised to all its workspaces together: an owed request is admitted within this; NULL: nothing is promised';
COMMENT ON COLUMN tenant_quota.delivered_millionths IS 'promised likewise: the part of reserved time that is delivered';
COMMENT ON COLUMN workspace_quota.owed_wait_ns IS 'promised to this workspace: an owed request is admitted within this; NULL: nothing is promised';
COMMENT ON COLUMN workspace_quota.delivered_millionths IS 'promised likewise: the part of reserved time that is delivered';

ALTER TABLE tenant_term ADD COLUMN data_boundary text CHECK (octet_length(data_boundary) BETWEEN 1 AND 200);
COMMENT ON COLUMN tenant_term.data_boundary IS 'where its data may be, in the operator''s words; no decision looks at it';

-- Promises of a month: those in force at p_at, and what was measured between p_from and p_until.
--  1. an owed request is one that was admitted by the rule owed, and would have been without enforcement too; one that waits for what it reclaims
--     counts as owed with the time it has waited by p_at. It is of the month in which it was submitted
--  2. it is late when it waited longer than was promised
--  3. delivered is what was covered, lent or unused of the reserved time of days that are folded; undelivered what was not there
CREATE FUNCTION promises_kept(p_from timestamptz, p_until timestamptz, p_at timestamptz) RETURNS TABLE (tenant text, workspace text, data_boundary text, owed_wait_ns bigint,
		owed_requests bigint, owed_late bigint, longest_wait_ns bigint, delivered_millionths bigint, reserved numeric, undelivered numeric, days bigint)
	LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT t.name, coalesce(w.name, ''), coalesce(x.data_boundary, ''), s.owed_wait_ns, d.requests, d.late, d.longest, s.delivered_millionths, r.reserved, r.undelivered, r.days
		FROM (SELECT q.tenant_id, NULL::integer AS workspace_id, q.owed_wait_ns, q.delivered_millionths FROM tenant_quota q WHERE q.effective @> p_at
				AND num_nonnulls(q.owed_wait_ns, q.delivered_millionths) > 0
			UNION ALL SELECT v.tenant_id, v.id, q.owed_wait_ns, q.delivered_millionths FROM workspace_quota q JOIN workspace v ON v.id = q.workspace_id
				WHERE q.effective @> p_at AND num_nonnulls(q.owed_wait_ns, q.delivered_millionths) > 0) s
			JOIN tenant t ON t.id = s.tenant_id JOIN tenant_term x ON x.tenant_id = t.id AND x.effective @> p_at LEFT JOIN workspace w ON w.id = s.workspace_id
			CROSS JOIN LATERAL (SELECT count(*) AS requests, count(*) FILTER (WHERE y.waited > s.owed_wait_ns) AS late, max(y.waited) AS longest FROM (
				SELECT coalesce(c.admitted_ns, c.ended_ns, ns_of(p_at)) - c.submitted_ns AS waited FROM decision c WHERE c.tenant_id = s.tenant_id
					AND (s.workspace_id IS NULL OR c.workspace_id = s.workspace_id) AND c.submitted_ns >= ns_of(p_from) AND c.submitted_ns < ns_of(p_until)
					AND ((c.admitted_ns IS NOT NULL AND c.rule = 'owed' AND c.would = 'admit') OR (c.status = 'waiting' AND c.decision = 'reclaim'))) y) d
			CROSS JOIN LATERAL (SELECT sum(e.reserved) AS reserved, sum(e.undelivered) AS undelivered, count(DISTINCT e.day) AS days FROM ledger l
				JOIN reserve_day e ON e.day >= (p_from AT TIME ZONE l.zone)::date AND e.day < (p_until AT TIME ZONE l.zone)::date
				JOIN workspace v ON v.id = e.workspace_id AND v.tenant_id = s.tenant_id WHERE s.workspace_id IS NULL OR v.id = s.workspace_id) r
		ORDER BY t.name COLLATE "C", coalesce(w.name, '') COLLATE "C";
	END;
COMMENT ON FUNCTION promises_kept IS 'What was promised at an instant, beside what was measured of it in a range.';

DROP FUNCTION tenants_known(timestamptz);
CREATE FUNCTION tenants_known(p_at timestamptz) RETURNS TABLE (id integer, name text, display_name text, cost_center text, owner text, data_boundary text,
		builtin boolean, since timestamptz, until timestamptz)
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT t.id, t.name, coalesce(x.display_name, t.name), coalesce(x.cost_center, ''), coalesce(x.owner, ''), coalesce(x.data_boundary, ''), t.builtin, lower(r.run),
				CASE WHEN r.run IS NULL THEN hour_of(ns_of(t.created_at)) ELSE upper(r.run) END FROM tenant t
			LEFT JOIN LATERAL (SELECT y.* FROM tenant_term y WHERE y.tenant_id = t.id ORDER BY coalesce(lower(y.effective) > p_at, false),
				CASE WHEN lower(y.effective) <= p_at THEN lower(y.effective) END DESC, lower(y.effective) LIMIT 1) x ON true
			LEFT JOIN LATERAL (SELECT u.run FROM (SELECT unnest(range_agg(y.effective)) AS run FROM tenant_term y WHERE y.tenant_id = t.id) u
				WHERE u.run @> x.effective) r ON true;
	END;
COMMENT ON FUNCTION tenants_known IS 'every tenant that a policy has named, also one that is over or has not begun by then';

CREATE OR REPLACE VIEW term_history AS
	SELECT 'display_name' AS kind, t.name AS tenant, t.name AS subject, x.display_name AS value, unnest(range_agg(x.effective)) AS effective
		FROM tenant_term x JOIN tenant t ON t.id = x.tenant_id WHERE NOT t.builtin GROUP BY t.name, x.display_name
	UNION ALL SELECT 'cost_center', t.name, t.name, x.cost_center, unnest(range_agg(x.effective))
		FROM tenant_term x JOIN tenant t ON t.id = x.tenant_id WHERE x.cost_center <> '' GROUP BY t.name, x.cost_center
	UNION ALL SELECT 'tenant_owner', t.name, t.name, x.owner, unnest(range_agg(x.effective))
		FROM tenant_term x JOIN tenant t ON t.id = x.tenant_id WHERE x.owner <> '' GROUP BY t.name, x.owner
	UNION ALL SELECT 'data_boundary', t.name, t.name, x.data_boundary, unnest(range_agg(x.effective))
		FROM tenant_term x JOIN tenant t ON t.id = x.tenant_id WHERE x.data_boundary IS NOT NULL GROUP BY t.name, x.data_boundary
	UNION ALL SELECT 'workspace', t.name, t.name || '/' || w.name, x.description, unnest(range_agg(x.effective))
		FROM workspace_term x JOIN workspace w ON w.id = x.workspace_id JOIN tenant t ON t.id = w.tenant_id WHERE NOT w.builtin
		GROUP BY t.name, w.name, x.description;
