-- oldest-binary: 0.2.0
-- Functions of the directory: tenants and workspaces over time, declared states, the models of GPUs.
--
-- A tenant or workspace is in force at T while a term of it contains T; a workspace only while its tenant is too. tenants_at() and workspaces_at() answer for an instant,
-- tenants_known() and workspaces_known() also return those that have ended or not begun. No other reader looks at the terms (lint `terms`).
--
-- The daemon's login may not write derived tables. It calls functions that do, each with its own bounds; access/grants.sql makes them SECURITY DEFINER with a fixed
-- search_path and says who may call them, at every migration.

CREATE FUNCTION refuse_row(p_table name, p_rule text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'new row for relation "%" violates check constraint "%"', p_table, p_rule
		USING ERRCODE = 'check_violation', TABLE = p_table, CONSTRAINT = p_rule;
END $$;
COMMENT ON FUNCTION refuse_row IS 'as PostgreSQL refuses a row itself';

CREATE FUNCTION refuse_bounds(p_function text, p_what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION '%: %', p_function, p_what USING ERRCODE = 'invalid_parameter_value';
END $$;

-- A field that ends where its length says, so that no two entries have the same bytes.
CREATE FUNCTION audit_field(t text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN coalesce(octet_length(convert_to(t, 'UTF8')) || ':' || t, '-') || ';';

CREATE FUNCTION ledger_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'a ledger keeps its billing zone and whether it is a demo' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER ledger_is_final BEFORE UPDATE OF demo, zone, hour_phase_ns, created_at OR DELETE ON ledger
	FOR EACH ROW EXECUTE FUNCTION ledger_is_final();

-- --- tenants and workspaces over time ---

-- Of ranges: the one that holds p_at, else the last before it, else the first; and the run without a gap to which it belongs. No row: there are no ranges.
CREATE FUNCTION term_known(p_terms tstzrange[], p_at timestamptz) RETURNS TABLE (effective tstzrange, run tstzrange)
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT t.effective, r.run FROM (SELECT x.effective FROM unnest(p_terms) AS x(effective) ORDER BY coalesce(lower(x.effective) > p_at, false),
				CASE WHEN lower(x.effective) <= p_at THEN lower(x.effective) END DESC, lower(x.effective) LIMIT 1) t
			JOIN unnest((SELECT range_agg(x.effective) FROM unnest(p_terms) AS x(effective))) AS r(run) ON r.run @> t.effective;
	END;
COMMENT ON FUNCTION term_known IS 'which term of a tenant or workspace is shown at an instant';

CREATE FUNCTION tenants_at(p_at timestamptz) RETURNS TABLE (id integer, name text, display_name text, cost_center text, owner text, builtin boolean)
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT t.id, t.name, x.display_name, x.cost_center, x.owner, t.builtin FROM tenant t JOIN tenant_term x ON x.tenant_id = t.id AND x.effective @> p_at;
	END;
COMMENT ON FUNCTION tenants_at IS 'the tenants in force at an instant, as the policy says they are then';

-- Of the terms in their order: the one that contains p_at, else the last before it, else the first. since, until: the run of terms without a gap to which it belongs.
-- A tenant whose terms were all taken back before they had begun, or within their first hour, ended when it began.
CREATE FUNCTION tenants_known(p_at timestamptz) RETURNS TABLE (id integer, name text, display_name text, cost_center text, owner text, data_boundary text,
		builtin boolean, since timestamptz, until timestamptz)
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT t.id, t.name, coalesce(x.display_name, t.name), coalesce(x.cost_center, ''), coalesce(x.owner, ''), coalesce(x.data_boundary, ''), t.builtin,
				lower(k.run), CASE WHEN k.run IS NULL THEN hour_of(ns_of(t.created_at)) ELSE upper(k.run) END FROM tenant t
			LEFT JOIN LATERAL term_known((SELECT array_agg(y.effective) FROM tenant_term y WHERE y.tenant_id = t.id), p_at) k ON true
			LEFT JOIN tenant_term x ON x.tenant_id = t.id AND x.effective = k.effective;
	END;
COMMENT ON FUNCTION tenants_known IS 'every tenant that a policy has named, also one that is over or has not begun by then';

CREATE FUNCTION workspaces_at(p_at timestamptz) RETURNS TABLE (id integer, tenant_id integer, tenant text, name text, description text, builtin boolean)
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT w.id, t.id, t.name, w.name, x.description, w.builtin FROM workspace w JOIN workspace_term x ON x.workspace_id = w.id AND x.effective @> p_at
			JOIN tenant t ON t.id = w.tenant_id JOIN tenant_term y ON y.tenant_id = t.id AND y.effective @> p_at;
	END;
COMMENT ON FUNCTION workspaces_at IS 'the workspaces in force at an instant, which are those of tenants in force';

CREATE FUNCTION workspaces_known(p_at timestamptz) RETURNS TABLE (id integer, tenant_id integer, tenant text, name text, description text, builtin boolean,
		since timestamptz, until timestamptz)
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT w.id, w.tenant_id, t.name, w.name, coalesce(x.description, ''), w.builtin, lower(k.run),
				CASE WHEN k.run IS NULL THEN hour_of(ns_of(w.created_at)) ELSE upper(k.run) END FROM workspace w JOIN tenant t ON t.id = w.tenant_id
			LEFT JOIN LATERAL term_known((SELECT array_agg(y.effective) FROM workspace_term y WHERE y.workspace_id = w.id), p_at) k ON true
			LEFT JOIN workspace_term x ON x.workspace_id = w.id AND x.effective = k.effective;
	END;
COMMENT ON FUNCTION workspaces_known IS 'every workspace that a policy has named, also one that is over or has not begun by then';

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

CREATE VIEW term_history AS
	SELECT v.kind, t.name AS tenant, t.name AS subject, v.value, unnest(range_agg(x.effective)) AS effective
		FROM tenant_term x JOIN tenant t ON t.id = x.tenant_id CROSS JOIN LATERAL (VALUES ('display_name', CASE WHEN NOT t.builtin THEN x.display_name END),
			('cost_center', nullif(x.cost_center, '')), ('tenant_owner', nullif(x.owner, '')), ('data_boundary', x.data_boundary)) AS v(kind, value)
		WHERE v.value IS NOT NULL GROUP BY v.kind, t.name, v.value
	UNION ALL SELECT 'workspace', t.name, t.name || '/' || w.name, x.description, unnest(range_agg(x.effective))
		FROM workspace_term x JOIN workspace w ON w.id = x.workspace_id JOIN tenant t ON t.id = w.tenant_id WHERE NOT w.builtin
		GROUP BY t.name, w.name, x.description;
COMMENT ON VIEW term_history IS 'the policy''s values of tenants and workspaces over time; a value that stays the same is one range';

-- --- nodes ---

CREATE FUNCTION node_has_a_cluster() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO tollgate.node_cluster (node_id, cluster_id, effective) VALUES (NEW.id, NEW.cluster_id, tstzrange(NULL, NULL));
	RETURN NULL;
END $$;
CREATE TRIGGER node_has_a_cluster AFTER INSERT ON node FOR EACH ROW EXECUTE FUNCTION node_has_a_cluster();

CREATE FUNCTION node_is_declared(p_node integer, p_at_ns bigint) RETURNS boolean LANGUAGE sql STABLE
	RETURN EXISTS (SELECT FROM node_owner o WHERE o.node_id = p_node AND o.effective @> hour_of(p_at_ns));

CREATE FUNCTION declared_state(p_node integer, p_gpu integer, p_hour timestamptz) RETURNS text
	LANGUAGE sql STABLE PARALLEL SAFE
	RETURN coalesce((SELECT s.state FROM node_state s WHERE s.gpu_id = p_gpu AND s.effective @> p_hour),
		(SELECT s.state FROM node_state s WHERE s.node_id = p_node AND s.effective @> p_hour));
COMMENT ON FUNCTION declared_state IS 'The declared state of a GPU at that hour, or else of its node; NULL: none';

CREATE FUNCTION is_retired(p_node integer, p_gpu integer, p_from_ns bigint, p_until_ns bigint) RETURNS boolean
	LANGUAGE sql STABLE PARALLEL SAFE
	RETURN EXISTS (SELECT FROM node_state s WHERE s.state = 'retired' AND (s.gpu_id = p_gpu OR s.node_id = p_node)
		AND int8range(ns_of(lower(s.effective)), ns_of(upper(s.effective))) && int8range(p_from_ns, p_until_ns));
COMMENT ON FUNCTION is_retired IS 'the GPU, or its node, was declared retired for some of that time';

CREATE FUNCTION retired_from(p_node integer, p_gpu integer, p_from_ns bigint) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
	RETURN (SELECT min(ns_of(lower(s.effective))) FROM node_state s WHERE s.state = 'retired' AND (s.gpu_id = p_gpu OR s.node_id = p_node)
		AND ns_of(lower(s.effective)) >= p_from_ns);
COMMENT ON FUNCTION retired_from IS 'where the next retirement of the GPU, or of its node, begins; NULL: none is declared';

-- --- models of GPUs ---

CREATE FUNCTION gpu_spec_has_begun(p_spec gpu_spec) RETURNS boolean LANGUAGE sql STABLE
	RETURN lower_inf(p_spec.effective) OR EXISTS (SELECT FROM gpu_service v JOIN node_hour h ON h.node_id = v.node_id
		WHERE v.gpu_id = p_spec.gpu_id AND h.hour >= lower(p_spec.effective));

-- A description that has begun to apply stays. A change from an hour that no node with the GPU has reached may still be replaced.
CREATE FUNCTION gpu_spec_only_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP = 'UPDATE' AND to_jsonb(OLD) - 'effective' = to_jsonb(NEW) - 'effective' AND upper_inf(OLD.effective)
		AND lower(OLD.effective) IS NOT DISTINCT FROM lower(NEW.effective) THEN
		RETURN NEW;
	END IF;
	IF TG_OP = 'UPDATE' AND OLD.effective = NEW.effective AND OLD.gpu_id = NEW.gpu_id AND NOT tollgate.gpu_spec_has_begun(OLD) THEN
		RETURN NEW;
	END IF;
	RAISE EXCEPTION 'what a GPU was stays as it was' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER gpu_spec_only_grows BEFORE UPDATE OR DELETE ON gpu_spec FOR EACH ROW EXECUTE FUNCTION gpu_spec_only_grows();

-- The row in force ends, and where the next one begins: at the hour of p_at_ns, or the first after it that nothing stands against.
CREATE FUNCTION gpu_spec_change(p_gpu integer, p_was gpu_spec, p_at_ns bigint) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
	begins timestamptz;
BEGIN
	SELECT greatest(tollgate.hour_of(p_at_ns), lower(p_was.effective) + interval '1 hour', max(h.hour) + interval '1 hour') INTO begins
		FROM tollgate.gpu_service v JOIN tollgate.node_hour h ON h.node_id = v.node_id AND h.sealed_at IS NOT NULL
			AND (v.until_ns IS NULL OR h.hour < tollgate.at_ns(v.until_ns))
		WHERE v.gpu_id = p_gpu;
	UPDATE tollgate.gpu_spec s SET effective = tstzrange(lower(s.effective), begins) WHERE s.gpu_id = p_gpu AND upper_inf(s.effective);
	RETURN begins;
END $$;

-- Records the description of a GPU by the node that has it in service, from a batch whose records of the GPU begin at p_at_ns.
--  1. the first word of a GPU holds from ever
--  2. the same as before changes nothing, and so does a word about a time before the last change that has begun
--  3. else it holds from the billing hour of the report on; not in an hour that is sealed, and one change in an hour at most: another
--     one is for the next hour, and the last of those counts
--  4. a change is in the audit log
CREATE FUNCTION gpu_describe(p_node integer, p_gpu integer, p_model text, p_short_model text, p_memory_bytes bigint, p_index integer,
	p_at_ns bigint, p_stream integer, p_seq bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	was tollgate.gpu_spec;
	begins timestamptz;
BEGIN
	UPDATE tollgate.gpu g SET index = p_index WHERE g.id = p_gpu AND g.index <> p_index;
	SELECT * INTO was FROM tollgate.gpu_spec s WHERE s.gpu_id = p_gpu AND upper_inf(s.effective) FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		INSERT INTO tollgate.gpu_spec (gpu_id, model, short_model, memory_bytes, node_id, stream_id, seq, effective)
			VALUES (p_gpu, p_model, p_short_model, p_memory_bytes, p_node, p_stream, p_seq, tstzrange(NULL, NULL));
		RETURN;
	END IF;
	IF (was.model, was.short_model, was.memory_bytes) = (p_model, p_short_model, p_memory_bytes) THEN
		RETURN;
	END IF;
	begins := lower(was.effective);
	IF tollgate.hour_of(p_at_ns) < begins THEN
		IF tollgate.gpu_spec_has_begun(was) THEN
			RETURN;
		END IF;
		UPDATE tollgate.gpu_spec s SET model = p_model, short_model = p_short_model, memory_bytes = p_memory_bytes, node_id = p_node,
			stream_id = p_stream, seq = p_seq WHERE s.gpu_id = p_gpu AND upper_inf(s.effective);
	ELSE
		begins := tollgate.gpu_spec_change(p_gpu, was, p_at_ns);
		INSERT INTO tollgate.gpu_spec (gpu_id, model, short_model, memory_bytes, node_id, stream_id, seq, effective)
			VALUES (p_gpu, p_model, p_short_model, p_memory_bytes, p_node, p_stream, p_seq, tstzrange(begins, NULL));
	END IF;
	UPDATE tollgate.gpu g SET model = p_model, short_model = p_short_model, memory_bytes = p_memory_bytes WHERE g.id = p_gpu;
	INSERT INTO tollgate.audit_log (actor, action, subject, before, after, reason)
		SELECT 'node ' || n.name, 'gpu.change', 'GPU ' || g.uuid,
			jsonb_build_object('model', was.model, 'gpu_model', was.short_model, 'memory_bytes', was.memory_bytes),
			jsonb_build_object('model', p_model, 'gpu_model', p_short_model, 'memory_bytes', p_memory_bytes, 'from', tollgate.rfc3339(begins),
				'stream', p_stream, 'seq', p_seq), 'reported by its node'
		FROM tollgate.gpu g, tollgate.node n WHERE g.id = p_gpu AND n.id = p_node;
END $$;

CREATE VIEW gpu_now AS
	SELECT v.node_id, v.gpu_id, g.uuid, g.index, s.model, s.short_model, s.memory_bytes, v.from_ns
	FROM gpu_service v JOIN gpu g ON g.id = v.gpu_id JOIN gpu_spec s ON s.gpu_id = v.gpu_id AND s.effective @> now()
	WHERE v.until_ns IS NULL;
COMMENT ON VIEW gpu_now IS 'Every GPU in service: the one node that has it, and what it is at this hour.';
