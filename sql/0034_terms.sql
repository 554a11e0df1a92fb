-- oldest-binary: 0.1.0
-- Tenants and workspaces over time: what the policy says of each, over ranges of billing hours, as it says whose a node is.
--
-- A tenant or workspace is in force at T while a term of it holds T; a workspace only while its tenant is too. tenants_at() and workspaces_at() answer for an
-- instant, tenants_known() and workspaces_known() also name what is over or has not begun. No other reader looks at the terms (lint `terms`).

CREATE TABLE tenant_term (
	tenant_id integer NOT NULL REFERENCES tenant,
	display_name text NOT NULL,
	cost_center text NOT NULL,
	owner text NOT NULL,
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective) OR (lower_inf(effective) AND upper_inf(effective))),
	EXCLUDE USING gist (tenant_id WITH =, effective WITH &&)
);
COMMENT ON TABLE tenant_term IS 'When a tenant is in force, and what the policy says of it then. One that is built in has one term without bounds.';

CREATE TABLE workspace_term (
	workspace_id integer NOT NULL REFERENCES workspace,
	description text NOT NULL,
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective) OR (lower_inf(effective) AND upper_inf(effective))),
	EXCLUDE USING gist (workspace_id WITH =, effective WITH &&)
);
COMMENT ON TABLE workspace_term IS 'When a workspace is in force, and what the policy says of it then.';

-- Every policy so far wrote a quota for each tenant and workspace that it names: those ranges say when they were in force. Names and cost centres of the past are
-- not known; the last ones stand for all of it.
INSERT INTO tenant_term (tenant_id, display_name, cost_center, owner, effective)
	SELECT t.id, t.display_name, t.cost_center, t.owner, r.effective FROM tenant t CROSS JOIN LATERAL (
		SELECT tstzrange(NULL, NULL) AS effective WHERE t.builtin
		UNION ALL SELECT unnest(range_agg(q.effective)) FROM tenant_quota q WHERE q.tenant_id = t.id
		UNION ALL SELECT tstzrange(hour_of(ns_of(t.created_at)), t.retired_at) WHERE NOT t.builtin AND coalesce(t.retired_at > hour_of(ns_of(t.created_at)), true)
			AND NOT EXISTS (SELECT FROM tenant_quota q WHERE q.tenant_id = t.id)) r;
INSERT INTO workspace_term (workspace_id, description, effective)
	SELECT w.id, w.description, r.effective FROM workspace w CROSS JOIN LATERAL (
		SELECT tstzrange(NULL, NULL) AS effective WHERE w.builtin
		UNION ALL SELECT unnest(range_agg(q.effective)) FROM workspace_quota q WHERE q.workspace_id = w.id
		UNION ALL SELECT tstzrange(hour_of(ns_of(w.created_at)), w.retired_at) WHERE NOT w.builtin AND coalesce(w.retired_at > hour_of(ns_of(w.created_at)), true)
			AND NOT EXISTS (SELECT FROM workspace_quota q WHERE q.workspace_id = w.id)) r;

ALTER TABLE tenant DROP COLUMN display_name, DROP COLUMN cost_center, DROP COLUMN owner, DROP COLUMN retired_at;
ALTER TABLE workspace DROP COLUMN description, DROP COLUMN retired_at;
COMMENT ON TABLE tenant IS 'A team or customer that gets invoices, by its name. Never deleted: old usage keeps its name. What the policy says of it is in tenant_term.';
COMMENT ON TABLE workspace IS 'Users and workloads inside a tenant; what usage is attributed to. When it is in force is in workspace_term.';

-- The rows have other columns now, so the journal has them once more. Where it has changes of them already, that is an entry of the audit log too.
SET LOCAL timezone = 'UTC';
SET LOCAL datestyle = 'ISO';
SELECT journal_table('tenant_term', 'tenant_id,effective', ''), journal_table('workspace_term', 'workspace_id,effective', '');
INSERT INTO audit_log (actor, action, subject, reason) SELECT 'migration', 'schema.migrate', '0034_terms', 'names and cost centres of tenants have ranges'
	WHERE EXISTS (SELECT FROM row_journal j WHERE j.relation IN ('tenant', 'workspace') AND j.operation <> 'found');
INSERT INTO row_journal (relation, operation, keys, hashes)
	SELECT x.relation, CASE WHEN EXISTS (SELECT FROM row_journal j WHERE j.relation IN ('tenant', 'workspace') AND j.operation <> 'found') THEN 'update' ELSE 'found' END,
		array_agg(x.key), array_agg(x.hash) FROM (
			SELECT y.*, (row_number() OVER (PARTITION BY y.relation) - 1) / 10000 AS part FROM (
				SELECT 'tenant' AS relation, t.id::text AS key, journal_hash(to_jsonb(t), '{}') AS hash FROM tenant t
				UNION ALL SELECT 'workspace', w.id::text, journal_hash(to_jsonb(w), '{}') FROM workspace w) y) x
	GROUP BY x.relation, x.part ORDER BY x.relation, x.part;

CREATE FUNCTION tenants_at(p_at timestamptz) RETURNS TABLE (id integer, name text, display_name text, cost_center text, owner text, builtin boolean)
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT t.id, t.name, x.display_name, x.cost_center, x.owner, t.builtin FROM tenant t JOIN tenant_term x ON x.tenant_id = t.id AND x.effective @> p_at;
	END;
COMMENT ON FUNCTION tenants_at IS 'the tenants in force at an instant, as the policy says they are then';

CREATE FUNCTION workspaces_at(p_at timestamptz) RETURNS TABLE (id integer, tenant_id integer, tenant text, name text, description text, builtin boolean)
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT w.id, t.id, t.name, w.name, x.description, w.builtin FROM workspace w JOIN workspace_term x ON x.workspace_id = w.id AND x.effective @> p_at
			JOIN tenant t ON t.id = w.tenant_id JOIN tenant_term y ON y.tenant_id = t.id AND y.effective @> p_at;
	END;
COMMENT ON FUNCTION workspaces_at IS 'the workspaces in force at an instant, which are those of tenants in force';

-- Of the terms in their order: the one that holds p_at, else the last before it, else the first. since, until: the run of terms without a gap to which it belongs.
-- A tenant whose terms were all taken back before they had begun, or within their first hour, was over when it began.
CREATE FUNCTION tenants_known(p_at timestamptz) RETURNS TABLE (id integer, name text, display_name text, cost_center text, owner text, builtin boolean,
		since timestamptz, until timestamptz)
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT t.id, t.name, coalesce(x.display_name, t.name), coalesce(x.cost_center, ''), coalesce(x.owner, ''), t.builtin, lower(r.run),
				CASE WHEN r.run IS NULL THEN hour_of(ns_of(t.created_at)) ELSE upper(r.run) END FROM tenant t
			LEFT JOIN LATERAL (SELECT y.* FROM tenant_term y WHERE y.tenant_id = t.id ORDER BY coalesce(lower(y.effective) > p_at, false),
				CASE WHEN lower(y.effective) <= p_at THEN lower(y.effective) END DESC, lower(y.effective) LIMIT 1) x ON true
			LEFT JOIN LATERAL (SELECT u.run FROM (SELECT unnest(range_agg(y.effective)) AS run FROM tenant_term y WHERE y.tenant_id = t.id) u
				WHERE u.run @> x.effective) r ON true;
	END;
COMMENT ON FUNCTION tenants_known IS 'every tenant that a policy has named, also one that is over or has not begun by then';

CREATE FUNCTION workspaces_known(p_at timestamptz) RETURNS TABLE (id integer, tenant_id integer, tenant text, name text, description text, builtin boolean,
		since timestamptz, until timestamptz)
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT w.id, w.tenant_id, t.name, w.name, coalesce(x.description, ''), w.builtin, lower(r.run),
				CASE WHEN r.run IS NULL THEN hour_of(ns_of(w.created_at)) ELSE upper(r.run) END FROM workspace w JOIN tenant t ON t.id = w.tenant_id
			LEFT JOIN LATERAL (SELECT y.* FROM workspace_term y WHERE y.workspace_id = w.id ORDER BY coalesce(lower(y.effective) > p_at, false),
				CASE WHEN lower(y.effective) <= p_at THEN lower(y.effective) END DESC, lower(y.effective) LIMIT 1) x ON true
			LEFT JOIN LATERAL (SELECT u.run FROM (SELECT unnest(range_agg(y.effective)) AS run FROM workspace_term y WHERE y.workspace_id = w.id) u
				WHERE u.run @> x.effective) r ON true;
	END;
COMMENT ON FUNCTION workspaces_known IS 'every workspace that a policy has named, also one that is over or has not begun by then';

CREATE VIEW term_history AS
	SELECT 'display_name' AS kind, t.name AS tenant, t.name AS subject, x.display_name AS value, unnest(range_agg(x.effective)) AS effective
		FROM tenant_term x JOIN tenant t ON t.id = x.tenant_id WHERE NOT t.builtin GROUP BY t.name, x.display_name
	UNION ALL SELECT 'cost_center', t.name, t.name, x.cost_center, unnest(range_agg(x.effective))
		FROM tenant_term x JOIN tenant t ON t.id = x.tenant_id WHERE x.cost_center <> '' GROUP BY t.name, x.cost_center
	UNION ALL SELECT 'tenant_owner', t.name, t.name, x.owner, unnest(range_agg(x.effective))
		FROM tenant_term x JOIN tenant t ON t.id = x.tenant_id WHERE x.owner <> '' GROUP BY t.name, x.owner
	UNION ALL SELECT 'workspace', t.name, t.name || '/' || w.name, x.description, unnest(range_agg(x.effective))
		FROM workspace_term x JOIN workspace w ON w.id = x.workspace_id JOIN tenant t ON t.id = w.tenant_id WHERE NOT w.builtin
		GROUP BY t.name, w.name, x.description;
COMMENT ON VIEW term_history IS 'what the policy said of tenants and workspaces, over time; a value that stays the same is one range';
