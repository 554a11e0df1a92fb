-- oldest-binary: 0.2.0
-- Functions of tokens and of the audit log's chains.

-- --- tokens ---

-- A token that was used up or revoked stays so, also for SQL typed by hand.
CREATE FUNCTION token_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'a token keeps what it was made for, and one that was used up or revoked stays so' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER access_token_is_kept BEFORE DELETE OR TRUNCATE ON access_token
	FOR EACH STATEMENT EXECUTE FUNCTION token_is_final();
CREATE TRIGGER access_token_stays_revoked BEFORE UPDATE OF revoked_at, revoked_by ON access_token
	FOR EACH ROW WHEN (OLD.revoked_at IS NOT NULL) EXECUTE FUNCTION token_is_final();
CREATE TRIGGER join_token_is_kept BEFORE DELETE OR TRUNCATE ON join_token
	FOR EACH STATEMENT EXECUTE FUNCTION token_is_final();
CREATE TRIGGER join_token_is_final BEFORE UPDATE OF sha256, node, created_at, created_by ON join_token
	FOR EACH ROW EXECUTE FUNCTION token_is_final();
CREATE TRIGGER join_token_stays_over BEFORE UPDATE ON join_token
	FOR EACH ROW WHEN (OLD.used_at IS NOT NULL OR OLD.revoked_at IS NOT NULL) EXECUTE FUNCTION token_is_final();
CREATE TRIGGER access_token_is_final BEFORE UPDATE OF sha256, role, tenant_id, node, sources, created_at, created_by, join_token_id ON access_token
	FOR EACH ROW EXECUTE FUNCTION token_is_final();

-- The fields of tokens that the audit log may show.
CREATE FUNCTION shown(k access_token) RETURNS jsonb LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT jsonb_strip_nulls(jsonb_build_object('role', k.role, 'tenant', (SELECT t.name FROM tenant t WHERE t.id = k.tenant_id),
			'node', k.node, 'sources', array_to_string(k.sources, ','), 'description', nullif(k.description, ''), 'expires', rfc3339(k.expires_at),
			'revoked', rfc3339(k.revoked_at), 'join_token', k.join_token_id));
	END;

CREATE FUNCTION shown(j join_token) RETURNS jsonb LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT jsonb_strip_nulls(jsonb_build_object('node', j.node, 'description', nullif(j.description, ''),
			'expires', rfc3339(j.expires_at), 'used', rfc3339(j.used_at), 'revoked', rfc3339(j.revoked_at)));
	END;

-- --- the audit log ---

CREATE FUNCTION audit_log_only_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'the audit log only grows' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER audit_log_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
	FOR EACH STATEMENT EXECUTE FUNCTION audit_log_only_grows();
CREATE TRIGGER audit_link_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_link
	FOR EACH STATEMENT EXECUTE FUNCTION audit_log_only_grows();
CREATE TRIGGER audit_seal_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_seal
	FOR EACH STATEMENT EXECUTE FUNCTION audit_log_only_grows();
CREATE TRIGGER audit_sealed_head_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_sealed_head
	FOR EACH STATEMENT EXECUTE FUNCTION audit_log_only_grows();

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
			WHERE b.seq > 0 AND (b.seq, b.head) IS DISTINCT FROM (h.seq, h.hash)
		UNION ALL SELECT -2, j.seq, j.hash FROM (SELECT r.seq, r.hash FROM row_journal r WHERE r.seq IS NOT NULL ORDER BY r.seq DESC LIMIT 1) j
			LEFT JOIN LATERAL (SELECT h.* FROM audit_sealed_head h WHERE h.chain = -2 ORDER BY h.seal DESC LIMIT 1) h ON true
			WHERE (j.seq, j.hash) IS DISTINCT FROM (h.seq, h.hash);
	END;
COMMENT ON FUNCTION audit_grown IS 'the chains that end elsewhere than when they were sealed last; -1 is the quota log, which chains its events itself, -2 the journal of rows';

-- Appends committed entries to the ends of their chains and seals the ends. One caller at a time: it has the lock.
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
