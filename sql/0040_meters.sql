-- oldest-binary: 0.1.0
-- Meters: a token that sends events of named sources for every tenant and may do nothing else; the end user of an inference.

ALTER TABLE access_token ADD COLUMN sources text[];
COMMENT ON COLUMN access_token.sources IS 'of a meter: the sources whose events it sends; NULL: its role is another';
ALTER TABLE access_token DROP CONSTRAINT access_token_role_check;
ALTER TABLE access_token ADD CONSTRAINT access_token_role_check
	CHECK (role IN ('admin', 'billing', 'tenant-admin', 'developer', 'viewer', 'node', 'scheduler', 'meter'));
ALTER TABLE access_token ADD CONSTRAINT meter_names_sources CHECK ((role = 'meter') = (sources IS NOT NULL)
	AND (sources IS NULL OR (cardinality(sources) BETWEEN 1 AND 64 AND array_position(sources, NULL) IS NULL AND array_position(sources, '') IS NULL)));

DROP TRIGGER access_token_is_final ON access_token;
CREATE TRIGGER access_token_is_final BEFORE UPDATE OF sha256, role, tenant_id, node, sources, created_at, created_by, join_token_id ON access_token
	FOR EACH ROW EXECUTE FUNCTION token_is_final();

CREATE OR REPLACE FUNCTION shown(k access_token) RETURNS jsonb LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT jsonb_strip_nulls(jsonb_build_object('role', k.role, 'tenant', (SELECT t.name FROM tenant t WHERE t.id = k.tenant_id),
			'node', k.node, 'sources', array_to_string(k.sources, ','), 'description', nullif(k.description, ''), 'expires', rfc3339(k.expires_at),
			'revoked', rfc3339(k.revoked_at), 'join_token', k.join_token_id));
	END;

ALTER TABLE meter_event ADD COLUMN end_user text CHECK (end_user IS NULL OR (octet_length(end_user) BETWEEN 1 AND 253 AND type = 3));
COMMENT ON COLUMN meter_event.end_user IS 'who asked, as the sender calls them; NULL: not said. Never a label of a metric';
