-- oldest-binary: 0.2.0
-- What 0033 to 0041 left wrong in a ledger that was there before them, and promises judged by what was promised at each instant.

-- --- days whose hours are gone ---

-- 0037 gave the rows of folded days three columns that are 0 where nothing was told. Rows of a day whose hours were given up before are proved by the
-- hash that was taken then, and a column that is added must be empty in them.
ALTER TABLE usage_daily
	ALTER COLUMN peak_memory_bytes DROP NOT NULL, ALTER COLUMN peak_memory_bytes DROP DEFAULT,
	ALTER COLUMN sm_active DROP NOT NULL, ALTER COLUMN sm_active DROP DEFAULT,
	ALTER COLUMN sm_measured DROP NOT NULL, ALTER COLUMN sm_measured DROP DEFAULT,
	DROP CONSTRAINT efficiency,
	ADD CONSTRAINT efficiency CHECK (num_nulls(peak_memory_bytes, sm_active, sm_measured) = 3 OR (num_nulls(peak_memory_bytes, sm_active, sm_measured) = 0
		AND peak_memory_bytes >= 0 AND sm_active >= 0 AND sm_active <= sm_measured AND scale(sm_active + sm_measured) IS NOT DISTINCT FROM 0
		AND (workspace_id IS NOT NULL OR sm_measured = 0))) NOT VALID;
COMMENT ON COLUMN usage_daily.peak_memory_bytes IS 'the most of its hours, 0: not told; NULL, as both below: the hours of its day were given up before this column was there';
UPDATE usage_daily u SET peak_memory_bytes = NULL, sm_active = NULL, sm_measured = NULL FROM billing_day b
	WHERE b.day = u.day AND b.hours_gone AND EXISTS (SELECT FROM row_journal j JOIN schema_migration m ON m.number = 37 AND j.at < m.applied_at
		WHERE j.relation = 'usage_daily' AND j.operation = 'kept' AND j.keys[1] LIKE b.day || ' %');

CREATE OR REPLACE FUNCTION daily_rows(p_from timestamptz, p_until timestamptz)
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

-- Partitions that were there before 0037 have its constraint without having been looked at, those made since have it valid: verify takes all of a table for alike.
ALTER TABLE usage_interval VALIDATE CONSTRAINT efficiency;

-- --- months that an earlier release has rated ---

ALTER TABLE period_close ADD COLUMN rating_rules integer CHECK (rating_rules > 0);
COMMENT ON COLUMN period_close.rating_rules IS 'by which rules the month was rated (core/rating.h); NULL: by those of before this column. Only a month of the rules that a '
	'program has is rated again by it; any other stays as it was billed, and is corrected by what has changed of its rows alone';

-- --- terms ---

-- Of ranges: the one that holds p_at, else the last before it, else the first; and the run without a gap to which it belongs. No row: there are no ranges.
CREATE FUNCTION term_known(p_terms tstzrange[], p_at timestamptz) RETURNS TABLE (effective tstzrange, run tstzrange)
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT t.effective, r.run FROM (SELECT x.effective FROM unnest(p_terms) AS x(effective) ORDER BY coalesce(lower(x.effective) > p_at, false),
				CASE WHEN lower(x.effective) <= p_at THEN lower(x.effective) END DESC, lower(x.effective) LIMIT 1) t
			JOIN unnest((SELECT range_agg(x.effective) FROM unnest(p_terms) AS x(effective))) AS r(run) ON r.run @> t.effective;
	END;
COMMENT ON FUNCTION term_known IS 'which term of a tenant or workspace is shown at an instant';

CREATE OR REPLACE FUNCTION tenants_known(p_at timestamptz) RETURNS TABLE (id integer, name text, display_name text, cost_center text, owner text, data_boundary text,
		builtin boolean, since timestamptz, until timestamptz)
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT t.id, t.name, coalesce(x.display_name, t.name), coalesce(x.cost_center, ''), coalesce(x.owner, ''), coalesce(x.data_boundary, ''), t.builtin,
				lower(k.run), CASE WHEN k.run IS NULL THEN hour_of(ns_of(t.created_at)) ELSE upper(k.run) END FROM tenant t
			LEFT JOIN LATERAL term_known((SELECT array_agg(y.effective) FROM tenant_term y WHERE y.tenant_id = t.id), p_at) k ON true
			LEFT JOIN tenant_term x ON x.tenant_id = t.id AND x.effective = k.effective;
	END;
CREATE OR REPLACE FUNCTION workspaces_known(p_at timestamptz) RETURNS TABLE (id integer, tenant_id integer, tenant text, name text, description text, builtin boolean,
		since timestamptz, until timestamptz)
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT w.id, w.tenant_id, t.name, w.name, coalesce(x.description, ''), w.builtin, lower(k.run),
				CASE WHEN k.run IS NULL THEN hour_of(ns_of(w.created_at)) ELSE upper(k.run) END FROM workspace w JOIN tenant t ON t.id = w.tenant_id
			LEFT JOIN LATERAL term_known((SELECT array_agg(y.effective) FROM workspace_term y WHERE y.workspace_id = w.id), p_at) k ON true
			LEFT JOIN workspace_term x ON x.workspace_id = w.id AND x.effective = k.effective;
	END;

CREATE OR REPLACE VIEW term_history AS
	SELECT v.kind, t.name AS tenant, t.name AS subject, v.value, unnest(range_agg(x.effective)) AS effective
		FROM tenant_term x JOIN tenant t ON t.id = x.tenant_id CROSS JOIN LATERAL (VALUES ('display_name', CASE WHEN NOT t.builtin THEN x.display_name END),
			('cost_center', nullif(x.cost_center, '')), ('tenant_owner', nullif(x.owner, '')), ('data_boundary', x.data_boundary)) AS v(kind, value)
		WHERE v.value IS NOT NULL GROUP BY v.kind, t.name, v.value
	UNION ALL SELECT 'workspace', t.name, t.name || '/' || w.name, x.description, unnest(range_agg(x.effective))
		FROM workspace_term x JOIN workspace w ON w.id = x.workspace_id JOIN tenant t ON t.id = w.tenant_id WHERE NOT w.builtin
		GROUP BY t.name, w.name, x.description;

-- --- promises ---

CREATE INDEX decision_of_tenant_submitted ON decision (tenant_id, submitted_ns);

-- Promises of a month: those in force at some instant of it until p_at, and what was measured of each while it was.
--  1. an owed request is one that was admitted by the rule owed, and would have been without enforcement too; or one that was not admitted and whose
--     last verdict says that it was owed: it waits, for what it reclaims or for capacity that is down, or it waited until it was cancelled or expired.
--     It is of the month in which it was submitted, and judged by the promise in force then
--  2. it waited until it was admitted or ended, else until p_at; it is late when that is longer than was promised
--  3. delivered is what was covered, lent or unused of the reserved time of days that are folded, each judged by the promise in force when it began;
--     undelivered what was not there; promised the reserved time x what was promised of it, in millionths
--  4. what is shown as promised is the last of the month
DROP FUNCTION promises_kept(timestamptz, timestamptz, timestamptz);
CREATE FUNCTION promises_kept(p_from timestamptz, p_until timestamptz, p_at timestamptz) RETURNS TABLE (tenant text, workspace text, data_boundary text, owed_wait_ns bigint,
		owed_requests bigint, owed_late bigint, longest_wait_ns bigint, delivered_millionths bigint, reserved numeric, undelivered numeric, promised numeric, days bigint)
	LANGUAGE sql STABLE
	BEGIN ATOMIC
		WITH promise AS (SELECT * FROM (
				SELECT q.tenant_id, 0 AS workspace_id, q.owed_wait_ns, q.delivered_millionths, q.effective FROM tenant_quota q
				UNION ALL SELECT v.tenant_id, v.id, q.owed_wait_ns, q.delivered_millionths, q.effective FROM workspace_quota q JOIN workspace v ON v.id = q.workspace_id) q
			WHERE q.effective && tstzrange(p_from, least(p_until, p_at), '[]') AND lower(q.effective) < p_until AND num_nonnulls(q.owed_wait_ns, q.delivered_millionths) > 0
		), request AS (SELECT c.tenant_id, c.workspace_id, at_ns(c.submitted_ns) AS at, coalesce(c.admitted_ns, c.ended_ns, ns_of(p_at)) - c.submitted_ns AS waited
			FROM (SELECT DISTINCT p.tenant_id FROM promise p WHERE p.owed_wait_ns IS NOT NULL) t JOIN decision c ON c.tenant_id = t.tenant_id
				AND c.submitted_ns >= ns_of(p_from) AND c.submitted_ns < ns_of(p_until)
			WHERE (c.admitted_ns IS NOT NULL AND c.rule = 'owed' AND c.would = 'admit') OR (c.status IN ('waiting', 'cancelled', 'expired')
				AND (SELECT (convert_from(substring(convert_to(e.outcome, 'UTF8') FROM c.verdict_at + 1 FOR c.verdict_bytes), 'UTF8')::json ->> 'owed')::boolean
					FROM quota_event e WHERE e.seq = c.verdict_seq))
		), wait AS (SELECT p.tenant_id, p.workspace_id, count(*) AS requests, count(*) FILTER (WHERE r.waited > p.owed_wait_ns) AS late, max(r.waited) AS longest
			FROM promise p JOIN request r ON r.tenant_id = p.tenant_id AND p.workspace_id IN (0, r.workspace_id) AND p.effective @> r.at
			WHERE p.owed_wait_ns IS NOT NULL GROUP BY 1, 2
		), delivery AS (SELECT p.tenant_id, p.workspace_id, sum(e.reserved) AS reserved, sum(e.undelivered) AS undelivered,
				sum(e.reserved * p.delivered_millionths) AS promised, count(DISTINCT e.day) AS days
			FROM billing_day b JOIN reserve_day e ON e.day = b.day JOIN workspace v ON v.id = e.workspace_id
				JOIN promise p ON p.tenant_id = v.tenant_id AND p.workspace_id IN (0, v.id) AND p.effective @> b.starts_at
			WHERE b.starts_at >= p_from AND b.starts_at < p_until AND NOT b.dirty AND p.delivered_millionths IS NOT NULL GROUP BY 1, 2
		), shown AS (SELECT DISTINCT ON (p.tenant_id, p.workspace_id) p.* FROM promise p ORDER BY p.tenant_id, p.workspace_id, lower(p.effective) DESC)
		SELECT t.name, coalesce(v.name, ''), t.data_boundary, s.owed_wait_ns, coalesce(w.requests, 0), coalesce(w.late, 0), w.longest, s.delivered_millionths,
				d.reserved, d.undelivered, d.promised, coalesce(d.days, 0)
			FROM shown s JOIN tenants_known(p_at) t ON t.id = s.tenant_id LEFT JOIN workspace v ON v.id = s.workspace_id
				LEFT JOIN wait w ON w.tenant_id = s.tenant_id AND w.workspace_id = s.workspace_id
				LEFT JOIN delivery d ON d.tenant_id = s.tenant_id AND d.workspace_id = s.workspace_id
			ORDER BY t.name COLLATE "C", coalesce(v.name, '') COLLATE "C";
	END;
COMMENT ON FUNCTION promises_kept IS 'What was promised over a range, beside what was measured of it.';
