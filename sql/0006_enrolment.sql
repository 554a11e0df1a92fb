-- oldest-binary: 0.1.0
-- Tokens that end, are found again and say when they were used; nodes that enrol themselves once; whose an audit entry is.

CREATE TABLE join_token (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	sha256 bytea NOT NULL UNIQUE CHECK (octet_length(sha256) = 32),
	node text CHECK (length(node) BETWEEN 1 AND 253),
	description text NOT NULL DEFAULT '' CHECK (octet_length(description) <= 200),
	created_at timestamptz NOT NULL DEFAULT now(),
	created_by text NOT NULL,
	expires_at timestamptz NOT NULL,
	used_at timestamptz,
	revoked_at timestamptz,
	revoked_by text,
	CHECK (used_at IS NULL OR revoked_at IS NULL),
	CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);
COMMENT ON TABLE join_token IS 'What a node exchanges for its own token, once. Only the SHA-256 is here; the join token itself is shown once.';
COMMENT ON COLUMN join_token.node IS 'the one name it enrols; NULL: any that has no active token';

ALTER TABLE access_token
	ADD COLUMN description text NOT NULL DEFAULT '' CHECK (octet_length(description) <= 200),
	ADD COLUMN revoked_by text,
	ADD COLUMN last_used_at timestamptz,
	ADD COLUMN join_token_id bigint UNIQUE REFERENCES join_token,
	ADD CHECK (revoked_by IS NULL OR revoked_at IS NOT NULL),
	ADD CHECK (join_token_id IS NULL OR role = 'node');
COMMENT ON COLUMN access_token.last_used_at IS 'the start of the hour in which it was last used: at most one write an hour';
COMMENT ON COLUMN access_token.join_token_id IS 'what it was exchanged for: a join token gives one token, never two';
CREATE INDEX access_token_tenant ON access_token (tenant_id, id) WHERE tenant_id IS NOT NULL;
CREATE INDEX access_token_node ON access_token (node) WHERE node IS NOT NULL;

-- What is over stays over, whoever writes SQL here.
CREATE FUNCTION token_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'a token keeps what it was made for, and one that was used up or revoked stays so' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER access_token_is_kept BEFORE DELETE OR TRUNCATE ON access_token
	FOR EACH STATEMENT EXECUTE FUNCTION token_is_final();
CREATE TRIGGER access_token_is_final BEFORE UPDATE OF sha256, role, tenant_id, node, created_at, created_by, join_token_id ON access_token
	FOR EACH ROW EXECUTE FUNCTION token_is_final();
CREATE TRIGGER access_token_stays_revoked BEFORE UPDATE OF revoked_at, revoked_by ON access_token
	FOR EACH ROW WHEN (OLD.revoked_at IS NOT NULL) EXECUTE FUNCTION token_is_final();
CREATE TRIGGER join_token_is_kept BEFORE DELETE OR TRUNCATE ON join_token
	FOR EACH STATEMENT EXECUTE FUNCTION token_is_final();
CREATE TRIGGER join_token_is_final BEFORE UPDATE OF sha256, node, created_at, created_by ON join_token
	FOR EACH ROW EXECUTE FUNCTION token_is_final();
CREATE TRIGGER join_token_stays_over BEFORE UPDATE ON join_token
	FOR EACH ROW WHEN (OLD.used_at IS NOT NULL OR OLD.revoked_at IS NOT NULL) EXECUTE FUNCTION token_is_final();

-- What may be shown of them, for the audit log.
CREATE FUNCTION shown(k access_token) RETURNS jsonb LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT jsonb_strip_nulls(jsonb_build_object('role', k.role, 'tenant', (SELECT t.name FROM tenant t WHERE t.id = k.tenant_id),
			'node', k.node, 'description', nullif(k.description, ''), 'expires', rfc3339(k.expires_at), 'revoked', rfc3339(k.revoked_at),
			'join_token', k.join_token_id));
	END;
CREATE FUNCTION shown(j join_token) RETURNS jsonb LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT jsonb_strip_nulls(jsonb_build_object('node', j.node, 'description', nullif(j.description, ''),
			'expires', rfc3339(j.expires_at), 'used', rfc3339(j.used_at), 'revoked', rfc3339(j.revoked_at)));
	END;

ALTER TABLE audit_log ADD COLUMN tenant_id integer REFERENCES tenant;
COMMENT ON COLUMN audit_log.tenant_id IS 'the tenant whose business it is; NULL: the operator''s';
CREATE INDEX audit_log_tenant ON audit_log (tenant_id, id) WHERE tenant_id IS NOT NULL;

-- Ledgers made from now on are entered when they are created.
INSERT INTO audit_log (actor, action, subject, after, reason)
	SELECT 'tollgate-aggregator', 'ledger.create', 'ledger',
		jsonb_build_object('demo', l.demo, 'zone', l.zone, 'created', rfc3339(l.created_at)), 'entered later, by migration 0006'
	FROM ledger l;
