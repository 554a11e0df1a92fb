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
			WHERE (c.seq, c.hash) IS DISTINCT FROM (h.seq, h.hash);
	END;
COMMENT ON FUNCTION audit_grown IS 'the chains that end elsewhere than when they were sealed last';

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
	IF v_count = 0 THEN
		RETURN;
	END IF;
	SELECT s.seq, s.hash INTO v_seal, v_hash FROM audit_seal s ORDER BY s.seq DESC LIMIT 1;
	v_seal := coalesce(v_seal, 0) + 1;
	v_hash := coalesce(v_hash, decode(repeat('00', 32), 'hex'));
	SELECT string_agg(audit_field(m.chain::text) || audit_field(m.seq::text) || audit_field(encode(m.hash, 'hex')), '' ORDER BY m.chain)
		INTO v_heads FROM audit_grown() m;
	v_hash := sha256(v_hash || convert_to(audit_field(v_seal::text) || audit_field(ns_of(v_at)::text) || v_heads, 'UTF8'));
	INSERT INTO audit_seal VALUES (v_seal, v_at, v_hash);
	INSERT INTO audit_sealed_head SELECT v_seal, m.chain, m.seq, m.hash FROM audit_grown() m;
	RETURN QUERY SELECT v_count, v_seal, v_hash;
END $$;

-- Entries from before are chained as they are now.
INSERT INTO audit_unsealed SELECT id FROM audit_log;
SELECT audit_seal_entries(2147483647);
