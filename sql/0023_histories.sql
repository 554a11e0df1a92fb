-- oldest-binary: 0.1.0
-- What a GPU is and which cluster a node is in have histories: an hour keeps what was true then.

-- --- what a GPU is ---

CREATE TABLE gpu_spec (
	gpu_id integer NOT NULL REFERENCES gpu,
	model text NOT NULL,
	short_model text NOT NULL,
	memory_bytes bigint NOT NULL CHECK (memory_bytes >= 0),
	node_id integer REFERENCES node,
	stream_id integer,
	seq bigint,
	effective tstzrange NOT NULL CHECK (NOT isempty(effective) AND lower_inc(effective) <> lower_inf(effective) AND NOT upper_inc(effective)),
	CHECK (num_nulls(node_id, stream_id, seq) IN (0, 3)),
	EXCLUDE USING gist (gpu_id WITH =, effective WITH &&)
);
COMMENT ON TABLE gpu_spec IS 'What a GPU is, for all of time: exactly one row at any billing hour. Only the node that has it in service adds to it (gpu_describe).';
COMMENT ON COLUMN gpu_spec.short_model IS 'the name in policies, prices and reports';
COMMENT ON COLUMN gpu_spec.node_id IS 'the node that said so, in this batch of this stream; NULL: from before histories were kept';
COMMENT ON COLUMN gpu_spec.effective IS 'from a billing hour on; the first row of a GPU has no beginning';
-- The exclusion constraint's index cannot be used by a hash join; the last row is looked up at every change.
CREATE UNIQUE INDEX gpu_spec_last ON gpu_spec (gpu_id) WHERE upper_inf(effective);

INSERT INTO gpu_spec (gpu_id, model, short_model, memory_bytes, effective)
	SELECT id, model, short_model, memory_bytes, tstzrange(NULL, NULL) FROM gpu;
COMMENT ON COLUMN gpu.short_model IS 'what it was called last; an hour of usage joins gpu_spec by the hour';

-- A row that has no beginning is the first of a new GPU, which no hour has yet.
CREATE TRIGGER gpu_spec_begins AFTER INSERT ON gpu_spec FOR EACH ROW WHEN (NOT lower_inf(NEW.effective)) EXECUTE FUNCTION effective_dirties_days();
CREATE TRIGGER gpu_spec_changes AFTER UPDATE OR DELETE ON gpu_spec FOR EACH ROW EXECUTE FUNCTION effective_dirties_days();

CREATE FUNCTION gpu_spec_has_begun(p_spec gpu_spec) RETURNS boolean LANGUAGE sql STABLE
	RETURN lower_inf(p_spec.effective) OR EXISTS (SELECT FROM gpu_service v JOIN node_hour h ON h.node_id = v.node_id
		WHERE v.gpu_id = p_spec.gpu_id AND h.hour >= lower(p_spec.effective));

-- What has begun stays. A change of an hour that no node with the GPU has reached may still be replaced.
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

DROP TRIGGER gpu_model_dirties_days ON gpu;

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

-- What the node that has a GPU in service says it is, in a batch whose records of it begin at p_at_ns.
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

-- --- where a node is ---

CREATE TABLE node_cluster (
	node_id integer NOT NULL REFERENCES node,
	cluster_id integer NOT NULL REFERENCES cluster,
	effective tstzrange NOT NULL CHECK (NOT isempty(effective) AND lower_inc(effective) <> lower_inf(effective) AND NOT upper_inc(effective)),
	EXCLUDE USING gist (node_id WITH =, effective WITH &&)
);
COMMENT ON TABLE node_cluster IS 'The cluster of a node, for all of time: exactly one at any billing hour. The policy moves it.';
COMMENT ON COLUMN node.cluster_id IS 'as the last policy says; an hour of usage joins node_cluster by the hour';
INSERT INTO node_cluster (node_id, cluster_id, effective) SELECT id, cluster_id, tstzrange(NULL, NULL) FROM node;

DROP TRIGGER node_cluster_dirties_days ON node;
DROP FUNCTION name_dirties_days();
CREATE TRIGGER node_cluster_begins AFTER INSERT ON node_cluster FOR EACH ROW WHEN (NOT lower_inf(NEW.effective)) EXECUTE FUNCTION effective_dirties_days();
CREATE TRIGGER node_cluster_changes AFTER UPDATE OR DELETE ON node_cluster FOR EACH ROW EXECUTE FUNCTION effective_dirties_days();

CREATE FUNCTION node_has_a_cluster() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO tollgate.node_cluster (node_id, cluster_id, effective) VALUES (NEW.id, NEW.cluster_id, tstzrange(NULL, NULL));
	RETURN NULL;
END $$;
CREATE TRIGGER node_has_a_cluster AFTER INSERT ON node FOR EACH ROW EXECUTE FUNCTION node_has_a_cluster();

-- A holder is who it is in one cluster (holder.identity), and a stream's numbers keep their meaning: its holders are of the cluster
-- that its node was in when the exporter began to run.
ALTER TABLE stream ADD COLUMN cluster_id integer REFERENCES cluster;
UPDATE stream s SET cluster_id = n.cluster_id FROM node n WHERE n.id = s.node_id;
ALTER TABLE stream ALTER COLUMN cluster_id SET NOT NULL;
COMMENT ON COLUMN stream.cluster_id IS 'of its holders: where the node was when the run began';

-- --- readers ---

CREATE VIEW gpu_now AS
	SELECT v.node_id, v.gpu_id, g.uuid, g.index, s.model, s.short_model, s.memory_bytes, v.from_ns
	FROM gpu_service v JOIN gpu g ON g.id = v.gpu_id JOIN gpu_spec s ON s.gpu_id = v.gpu_id AND s.effective @> now()
	WHERE v.until_ns IS NULL;
COMMENT ON VIEW gpu_now IS 'Every GPU in service: the one node that has it, and what it is at this hour.';

-- As before; model and cluster are those of the hour.
CREATE OR REPLACE FUNCTION folded_usage(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (price_book_id bigint, cluster_id integer, owner_id integer, workspace_id integer, gpu_model text, profile text, units smallint,
	sharing smallint, method smallint, used numeric, idle numeric, unmeasured numeric, unallocated numeric, stranded numeric, down numeric,
	unknown numeric, over numeric, clock_adjust numeric, energy_mj numeric, memory_byte_ms numeric)
LANGUAGE sql STABLE PARALLEL RESTRICTED
BEGIN ATOMIC
	SELECT p.id, k.cluster_id, o.tenant_id, u.workspace_id, g.short_model, d.profile, d.units, u.sharing, u.method,
		sum(u.used), sum(u.idle), sum(u.unmeasured), sum(u.unallocated), sum(u.stranded), sum(u.down), sum(u.unknown), sum(u.over),
		sum(u.clock_adjust), sum(u.energy_mj), sum(u.memory_byte_ms)
	FROM usage_rows(p_from, p_until) u
		JOIN node_cluster k ON k.node_id = u.node_id AND k.effective @> u.hour
		JOIN device d ON d.id = u.device_id JOIN gpu_spec g ON g.gpu_id = d.gpu_id AND g.effective @> u.hour
		LEFT JOIN price_book p ON p.effective @> u.hour
		LEFT JOIN node_owner o ON o.node_id = u.node_id AND o.effective @> u.hour
	GROUP BY p.id, k.cluster_id, o.tenant_id, u.workspace_id, g.short_model, d.profile, d.units, u.sharing, u.method;
END;

-- The same.
CREATE OR REPLACE FUNCTION charge_input(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (cluster_id integer, owner_id integer, gpu_model text, hour_ns bigint, price_book_id bigint, is_right boolean,
	workspace_id integer, profile text, units smallint, sharing smallint, used numeric, idle numeric, unmeasured numeric,
	unallocated numeric, stranded numeric, down numeric, unknown numeric, over numeric, energy_mj numeric, reserved numeric, lend_cap numeric)
LANGUAGE sql STABLE PARALLEL RESTRICTED
BEGIN ATOMIC
	WITH accounts AS MATERIALIZED (
		SELECT h.hour, k.cluster_id, o.tenant_id AS owner_id, CASE WHEN h.sealed_at IS NOT NULL THEN ns_of(h.hour) + 3600000000000
			ELSE greatest(ns_of(h.hour), least(ns_of(h.hour) + 3600000000000, greatest(n.covered_until_ns, n.silent_until_ns))) END AS until_ns
		FROM node_hour h JOIN node n ON n.id = h.node_id JOIN node_cluster k ON k.node_id = h.node_id AND k.effective @> h.hour
			LEFT JOIN node_owner o ON o.node_id = h.node_id AND o.effective @> h.hour
		WHERE h.hour >= p_from AND h.hour < p_until
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
		JOIN node_cluster k ON k.node_id = u.node_id AND k.effective @> u.hour
		JOIN device d ON d.id = u.device_id JOIN gpu_spec g ON g.gpu_id = d.gpu_id AND g.effective @> u.hour
		LEFT JOIN price_book p ON p.effective @> u.hour
		LEFT JOIN node_owner o ON o.node_id = u.node_id AND o.effective @> u.hour
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
