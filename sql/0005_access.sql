-- oldest-binary: 0.1.0
-- Who may ask, and what was decided by whom.

CREATE TABLE access_token (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	sha256 bytea NOT NULL UNIQUE CHECK (octet_length(sha256) = 32),
	role text NOT NULL CHECK (role IN ('admin', 'billing', 'tenant-admin', 'developer', 'viewer', 'node', 'scheduler')),
	tenant_id integer REFERENCES tenant,
	node text CHECK (length(node) BETWEEN 1 AND 253),
	created_at timestamptz NOT NULL DEFAULT now(),
	created_by text NOT NULL,
	expires_at timestamptz,
	revoked_at timestamptz,
	CHECK ((role IN ('tenant-admin', 'developer', 'viewer')) = (tenant_id IS NOT NULL)),
	CHECK ((role = 'node') = (node IS NOT NULL))
);
COMMENT ON TABLE access_token IS 'Bearer tokens. Only the SHA-256 is here; the token itself is shown once.';
COMMENT ON COLUMN access_token.tenant_id IS 'the one tenant a tenant role may see';
COMMENT ON COLUMN access_token.node IS 'the one node name a node token speaks for; the node need not have reported yet';

CREATE TABLE audit_log (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	at timestamptz NOT NULL DEFAULT now(),
	actor text NOT NULL,
	action text NOT NULL,
	subject text NOT NULL,
	before jsonb,
	after jsonb,
	reason text NOT NULL DEFAULT ''
);
COMMENT ON TABLE audit_log IS 'Who did what, when, why, before and after. Rows are only ever added.';

CREATE FUNCTION audit_log_only_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'the audit log only grows' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER audit_log_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
	FOR EACH STATEMENT EXECUTE FUNCTION audit_log_only_grows();
