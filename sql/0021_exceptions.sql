-- oldest-binary: 0.1.0
-- The audit log in chains of hashes; exceptions from limits and reservations, and who agreed to them.

-- ---- the chains of the audit log ----

CREATE TABLE audit_unsealed (
	audit_id bigint PRIMARY KEY REFERENCES audit_log
);
COMMENT ON TABLE audit_unsealed IS 'Entries that are in no chain yet. An entry comes here in its own transaction, so that nobody who writes one waits for another.';

CREATE TABLE audit_chain (
	chain integer PRIMARY KEY CHECK (chain >= 0),
	seq bigint NOT NULL CHECK (seq > 0),
	hash bytea NOT NULL CHECK (octet_length(hash) = 32)
);
COMMENT ON TABLE audit_chain IS 'Where each chain ends: one chain for each tenant, and chain 0 for the operator''s entries.';

CREATE TABLE audit_link (
	chain integer NOT NULL CHECK (chain >= 0),
	seq bigint NOT NULL CHECK (seq > 0),
	audit_id bigint NOT NULL UNIQUE REFERENCES audit_log,
	hash bytea NOT NULL CHECK (octet_length(hash) = 32),
	PRIMARY KEY (chain, seq)
);
COMMENT ON COLUMN audit_link.hash IS 'audit_hash() of the link before it and of the entry';

CREATE TABLE audit_seal (
	seq bigint PRIMARY KEY CHECK (seq > 0),
	at timestamptz NOT NULL,
	hash bytea NOT NULL CHECK (octet_length(hash) = 32)
);
COMMENT ON TABLE audit_seal IS 'A chain of its own over the ends of the chains, each minute in which one has grown. The daemon writes its hash to its own log too.';

CREATE TABLE audit_sealed_head (
	seal bigint NOT NULL REFERENCES audit_seal,
	chain integer NOT NULL,
	seq bigint NOT NULL,
	hash bytea NOT NULL,
	PRIMARY KEY (seal, chain)
);
CREATE INDEX audit_sealed_head_last ON audit_sealed_head (chain, seal);
COMMENT ON TABLE audit_sealed_head IS 'Where a chain ended when it was sealed.';
COMMENT ON COLUMN audit_sealed_head.chain IS '-1: the quota log';

CREATE TRIGGER audit_link_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_link
	FOR EACH STATEMENT EXECUTE FUNCTION audit_log_only_grows();
CREATE TRIGGER audit_seal_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_seal
	FOR EACH STATEMENT EXECUTE FUNCTION audit_log_only_grows();
CREATE TRIGGER audit_sealed_head_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_sealed_head
	FOR EACH STATEMENT EXECUTE FUNCTION audit_log_only_grows();

-- A field that ends where its length says, so that no two entries have the same bytes.
CREATE FUNCTION audit_field(t text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN coalesce(octet_length(convert_to(t, 'UTF8')) || ':' || t, '-') || ';';

CREATE FUNCTION audit_hash(p_before bytea, p_seq bigint, a audit_log) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN sha256(p_before || convert_to(audit_field(coalesce(a.tenant_id, 0)::text) || audit_field(p_seq::text) || audit_field(a.id::text)
		|| audit_field(ns_of(a.at)::text) || audit_field(a.actor) || audit_field(a.action) || audit_field(a.subject) || audit_field(a.before::text)
		|| audit_field(a.after::text) || audit_field(a.reason), 'UTF8'));

CREATE FUNCTION audit_log_enters() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO audit_unsealed VALUES (NEW.id);
	RETURN NULL;
END $$;
CREATE TRIGGER audit_log_enters AFTER INSERT ON audit_log FOR EACH ROW EXECUTE FUNCTION audit_log_enters();

CREATE FUNCTION audit_grown() RETURNS SETOF audit_chain LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT c.* FROM audit_chain c
			LEFT JOIN LATERAL (SELECT h.* FROM audit_sealed_head h WHERE h.chain = c.chain ORDER BY h.seal DESC LIMIT 1) h ON true
			WHERE (c.seq, c.hash) IS DISTINCT FROM (h.seq, h.hash)
		UNION ALL SELECT -1, b.seq, b.head FROM quota_book b
			LEFT JOIN LATERAL (SELECT h.* FROM audit_sealed_head h WHERE h.chain = -1 ORDER BY h.seal DESC LIMIT 1) h ON true
			WHERE b.seq > 0 AND (b.seq, b.head) IS DISTINCT FROM (h.seq, h.hash);
	END;
COMMENT ON FUNCTION audit_grown IS 'the chains that end elsewhere than when they were sealed last; -1 is the quota log, which chains its events itself';

-- What was committed goes to the ends of its chains, and the ends are sealed. One at a time: the caller has the lock.
CREATE FUNCTION audit_seal_entries(p_most integer) RETURNS TABLE (entries bigint, seal bigint, hash bytea) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	v_entry audit_log;
	v_chain integer;
	v_seq bigint;
	v_hash bytea;
	v_count bigint := 0;
	v_seal bigint;
	v_at timestamptz := clock_timestamp();
	v_grown audit_chain[];
	v_heads text;
BEGIN
	FOR v_entry IN SELECT a.* FROM (SELECT u.audit_id FROM audit_unsealed u ORDER BY 1 LIMIT p_most) u JOIN audit_log a ON a.id = u.audit_id
		ORDER BY coalesce(a.tenant_id, 0), a.id
	LOOP
		IF v_chain IS DISTINCT FROM coalesce(v_entry.tenant_id, 0) THEN
			v_chain := coalesce(v_entry.tenant_id, 0);
			SELECT c.seq, c.hash INTO v_seq, v_hash FROM audit_chain c WHERE c.chain = v_chain;
			IF NOT FOUND THEN
				v_seq := 0;
				v_hash := decode(repeat('00', 32), 'hex');
			END IF;
		END IF;
		v_seq := v_seq + 1;
		v_hash := audit_hash(v_hash, v_seq, v_entry);
		INSERT INTO audit_link VALUES (v_chain, v_seq, v_entry.id, v_hash);
		INSERT INTO audit_chain VALUES (v_chain, v_seq, v_hash) ON CONFLICT (chain) DO UPDATE SET seq = v_seq, hash = v_hash;
		DELETE FROM audit_unsealed u WHERE u.audit_id = v_entry.id;
		v_count := v_count + 1;
	END LOOP;
	-- read once: the quota log goes on meanwhile
	v_grown := ARRAY(SELECT g FROM audit_grown() g);
	SELECT string_agg(audit_field(m.chain::text) || audit_field(m.seq::text) || audit_field(encode(m.hash, 'hex')), '' ORDER BY m.chain)
		INTO v_heads FROM unnest(v_grown) m;
	IF v_heads IS NULL THEN
		RETURN;
	END IF;
	SELECT s.seq, s.hash INTO v_seal, v_hash FROM audit_seal s ORDER BY s.seq DESC LIMIT 1;
	v_seal := coalesce(v_seal, 0) + 1;
	v_hash := coalesce(v_hash, decode(repeat('00', 32), 'hex'));
	v_hash := sha256(v_hash || convert_to(audit_field(v_seal::text) || audit_field(ns_of(v_at)::text) || v_heads, 'UTF8'));
	INSERT INTO audit_seal VALUES (v_seal, v_at, v_hash);
	INSERT INTO audit_sealed_head SELECT v_seal, m.chain, m.seq, m.hash FROM unnest(v_grown) m;
	RETURN QUERY SELECT v_count, v_seal, v_hash;
END $$;

-- Entries from before are chained as they are now.
INSERT INTO audit_unsealed SELECT id FROM audit_log;
SELECT audit_seal_entries(2147483647);

-- ---- exceptions ----

CREATE TABLE tenant_auto_approve (
	tenant_id integer NOT NULL REFERENCES tenant,
	units bigint NOT NULL CHECK (units > 0),
	for_ns bigint NOT NULL CHECK (for_ns > 0),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	EXCLUDE USING gist (tenant_id WITH =, effective WITH &&)
);
COMMENT ON TABLE tenant_auto_approve IS 'Which exceptions from limits of a tenant''s workspaces nobody has to agree to; from the policy.';
COMMENT ON COLUMN tenant_auto_approve.units IS 'of one model, all that run at one time together';

CREATE TABLE exception (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	tenant_id integer NOT NULL REFERENCES tenant,
	workspace_id integer NOT NULL REFERENCES workspace,
	cluster_id integer NOT NULL REFERENCES cluster,
	model text NOT NULL CHECK (model <> ''),
	shared boolean NOT NULL,
	kind text NOT NULL CHECK (kind IN ('limit', 'reserved')),
	units bigint NOT NULL CHECK (units BETWEEN 1 AND 5040000000),
	reason text NOT NULL CHECK (reason <> ''),
	effective tstzrange NOT NULL CHECK (NOT isempty(effective) AND NOT lower_inf(effective) AND NOT upper_inf(effective)),
	requested_by text NOT NULL CHECK (requested_by <> ''),
	requested_at timestamptz NOT NULL,
	status text NOT NULL CHECK (status IN ('requested', 'approved', 'refused', 'revoked', 'ended')),
	rule text CHECK (rule IN ('auto_approve', 'administrator', 'tenant-admin')),
	decided_by text,
	decided_at timestamptz,
	decided_why text,
	over_by text,
	over_at timestamptz,
	over_why text,
	begun_seq bigint,
	ended_seq bigint,
	CONSTRAINT a_decision_has_who_and_when CHECK (num_nonnulls(decided_by, decided_at, rule) IN (0, 3)),
	CONSTRAINT what_is_decided_was CHECK (status NOT IN ('approved', 'refused') OR decided_at IS NOT NULL),
	CONSTRAINT what_is_asked_is_open CHECK (status <> 'requested' OR decided_at IS NULL),
	CONSTRAINT an_end_has_who_and_when CHECK ((status IN ('revoked', 'ended')) = (over_at IS NOT NULL) AND num_nonnulls(over_by, over_at) IN (0, 2)),
	CONSTRAINT in_the_book_once_agreed_to CHECK (begun_seq IS NULL OR (decided_at IS NOT NULL AND status <> 'refused')),
	CONSTRAINT out_of_the_book_once_in_it CHECK (ended_seq IS NULL OR (begun_seq < ended_seq AND status = 'revoked'))
);
CREATE INDEX exception_of_tenant ON exception (tenant_id, id);
CREATE INDEX exception_open ON exception (upper(effective)) WHERE status IN ('requested', 'approved');
CREATE INDEX exception_not_in_book ON exception (id) WHERE (status = 'approved' AND begun_seq IS NULL) OR (status = 'revoked' AND begun_seq IS NOT NULL AND ended_seq IS NULL);
COMMENT ON TABLE exception IS 'Extra limit or reservation of a workspace until a time: who asked, why, and who agreed. Rows are never removed.';
COMMENT ON COLUMN exception.shared IS 'among the shared nodes; false: among the tenant''s own';
COMMENT ON COLUMN exception.rule IS 'who may have agreed: the tenant''s rule, an administrator, or the tenant''s own';
COMMENT ON COLUMN exception.begun_seq IS 'the event of the quota log that brought it in; ended_seq: the one that took it out before its time';

CREATE FUNCTION exception_goes_on() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'an exception is not changed or removed, and what is over stays over' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER exception_stays BEFORE DELETE OR TRUNCATE ON exception FOR EACH STATEMENT EXECUTE FUNCTION exception_goes_on();
CREATE TRIGGER exception_is_what_it_was BEFORE UPDATE OF id, tenant_id, workspace_id, cluster_id, model, shared, kind, units, reason, effective, requested_by,
	requested_at ON exception FOR EACH ROW EXECUTE FUNCTION exception_goes_on();
CREATE TRIGGER exception_goes_on BEFORE UPDATE ON exception FOR EACH ROW
	WHEN ((OLD.status IN ('refused', 'revoked', 'ended') AND NEW.status <> OLD.status) OR (OLD.status = 'approved' AND NEW.status IN ('requested', 'refused'))
		OR (OLD.decided_at IS NOT NULL AND (NEW.decided_by, NEW.decided_at, NEW.rule) IS DISTINCT FROM (OLD.decided_by, OLD.decided_at, OLD.rule))
		OR (OLD.begun_seq IS NOT NULL AND NEW.begun_seq IS DISTINCT FROM OLD.begun_seq) OR (OLD.ended_seq IS NOT NULL AND NEW.ended_seq IS DISTINCT FROM OLD.ended_seq))
	EXECUTE FUNCTION exception_goes_on();

CREATE FUNCTION shown(x exception) RETURNS jsonb LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT jsonb_strip_nulls(jsonb_build_object('workspace', (SELECT t.name || '/' || w.name FROM workspace w JOIN tenant t ON t.id = w.tenant_id WHERE w.id = x.workspace_id),
			'gpu_model', x.model, 'kind', x.kind, 'gpus', quantity_text(x.units, '', NULL), 'shared', x.shared, 'from', rfc3339(lower(x.effective)),
			'until', rfc3339(upper(x.effective)), 'status', x.status, 'rule', x.rule));
	END;
