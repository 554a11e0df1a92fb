-- oldest-binary: 0.2.0
-- Access and proof: tokens, the audit log with its chains of hashes, and the journal of rows.

-- --- tokens ---

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
	CONSTRAINT used_or_revoked CHECK (used_at IS NULL OR revoked_at IS NULL),
	CONSTRAINT revocation_is_complete CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);
COMMENT ON TABLE join_token IS 'A token that a node exchanges for its own one, once. Only the SHA-256 is here; the join token itself is shown once.';
COMMENT ON COLUMN join_token.node IS 'the one name it enrols; NULL: any that has no active token';

CREATE TABLE access_token (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	sha256 bytea NOT NULL UNIQUE CHECK (octet_length(sha256) = 32),
	role text NOT NULL CHECK (role IN ('admin', 'billing', 'tenant-admin', 'developer', 'viewer', 'node', 'scheduler', 'meter')),
	tenant_id integer REFERENCES tenant,
	node text CHECK (length(node) BETWEEN 1 AND 253),
	created_at timestamptz NOT NULL DEFAULT now(),
	created_by text NOT NULL,
	expires_at timestamptz,
	revoked_at timestamptz,
	description text NOT NULL DEFAULT '' CHECK (octet_length(description) <= 200),
	revoked_by text,
	last_used_at timestamptz,
	join_token_id bigint UNIQUE REFERENCES join_token,
	sources text[],
	CONSTRAINT only_tenant_roles_have_a_tenant CHECK ((role IN ('tenant-admin', 'developer', 'viewer')) = (tenant_id IS NOT NULL)),
	CONSTRAINT only_nodes_have_a_node CHECK ((role = 'node') = (node IS NOT NULL)),
	CONSTRAINT revoked_by_needs_revoked_at CHECK (revoked_by IS NULL OR revoked_at IS NOT NULL),
	CONSTRAINT only_nodes_have_a_join_token CHECK (join_token_id IS NULL OR role = 'node'),
	CONSTRAINT only_meters_have_sources CHECK ((role = 'meter') = (sources IS NOT NULL)
		AND (sources IS NULL OR (cardinality(sources) BETWEEN 1 AND 64 AND array_position(sources, NULL) IS NULL AND array_position(sources, '') IS NULL)))
);
COMMENT ON TABLE access_token IS 'Bearer tokens. Only the SHA-256 is here; the token itself is shown once.';
COMMENT ON COLUMN access_token.tenant_id IS 'the one tenant a tenant role may see';
COMMENT ON COLUMN access_token.node IS 'the one node name a node token speaks for; the node need not have reported yet';
COMMENT ON COLUMN access_token.last_used_at IS 'the start of the hour in which it was last used: at most one write an hour';
COMMENT ON COLUMN access_token.join_token_id IS 'the join token that was exchanged for it: each gives one token, never two';
COMMENT ON COLUMN access_token.sources IS 'of a meter: the sources whose events it sends; NULL: its role is another';
CREATE INDEX access_token_tenant ON access_token (tenant_id, id) WHERE tenant_id IS NOT NULL;
CREATE INDEX access_token_node ON access_token (node) WHERE node IS NOT NULL;

-- --- the audit log ---

CREATE TABLE audit_log (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	at timestamptz NOT NULL DEFAULT now(),
	actor text NOT NULL,
	action text NOT NULL,
	subject text NOT NULL,
	before jsonb,
	after jsonb,
	reason text NOT NULL DEFAULT '',
	tenant_id integer REFERENCES tenant,
	-- Which transaction wrote an entry: a change of a journalled row has one of the same.
	xid xid8 DEFAULT pg_current_xact_id()
);
COMMENT ON TABLE audit_log IS 'Every decision of a person or program: actor, action, time, reason, values before and after. Rows are only ever added.';
COMMENT ON COLUMN audit_log.tenant_id IS 'the tenant that the entry is about; NULL: the operator';
COMMENT ON COLUMN audit_log.xid IS 'the transaction that wrote it; not in its hash: a wrong one makes changes of rows unaudited';
CREATE INDEX audit_log_tenant ON audit_log (tenant_id, id) WHERE tenant_id IS NOT NULL;
CREATE INDEX audit_log_xid ON audit_log (xid);

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
COMMENT ON TABLE audit_sealed_head IS 'Where a chain ended when it was sealed.';
COMMENT ON COLUMN audit_sealed_head.chain IS '-1: the quota log; -2: the journal of rows';
CREATE INDEX audit_sealed_head_last ON audit_sealed_head (chain, seal);

-- --- the journal of rows ---

CREATE TABLE row_journal (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	at timestamptz NOT NULL DEFAULT now(),
	xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
	relation text NOT NULL,
	operation text NOT NULL CHECK (operation IN ('found', 'insert', 'update', 'delete', 'kept')),
	keys text[] NOT NULL,
	hashes bytea[] NOT NULL,
	seq bigint UNIQUE CHECK (seq > 0),
	hash bytea CHECK (octet_length(hash) = 32),
	CONSTRAINT one_hash_for_each_key CHECK (cardinality(keys) = cardinality(hashes)),
	CONSTRAINT seq_and_hash_together CHECK ((seq IS NULL) = (hash IS NULL))
);
COMMENT ON TABLE row_journal IS 'Hashes of rows as they were written: what verify compares the rows with.';
COMMENT ON COLUMN row_journal.operation IS 'found: rows that were there when their table came under the journal; kept: derived rows that became final, because what they are made from is given up';
COMMENT ON COLUMN row_journal.hashes IS 'SHA-256 of each row; NULL: it was removed';
COMMENT ON COLUMN row_journal.seq IS 'its place in the chain; NULL until it is sealed, as is the hash';
CREATE INDEX row_journal_relation ON row_journal (relation, id);
CREATE INDEX row_journal_unsealed ON row_journal (id) WHERE seq IS NULL;
