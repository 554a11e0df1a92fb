-- oldest-binary: 0.2.0
-- Events of other meters: storage, network, inference and support, received as CloudEvents.

CREATE TABLE event_source (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	tenant_id integer REFERENCES tenant,
	name text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 512),
	UNIQUE NULLS NOT DISTINCT (tenant_id, name)
);
COMMENT ON TABLE event_source IS 'Senders of events: the CloudEvents attribute source.';
COMMENT ON COLUMN event_source.tenant_id IS 'of senders that are bound to a tenant: they have their own ids, and cannot take or see those of others. '
	'NULL: the operator''s senders';

CREATE DOMAIN meter_type AS smallint CONSTRAINT meter_type_check CHECK (VALUE BETWEEN 1 AND 4);
COMMENT ON DOMAIN meter_type IS '1 storage, 2 egress, 3 inference, 4 support';

CREATE TABLE meter_event (
	time_ns bigint NOT NULL CHECK (time_ns >= 0),
	source_id bigint NOT NULL REFERENCES event_source,
	holder_id bigint REFERENCES holder,
	token_id bigint NOT NULL REFERENCES access_token,
	requests bigint CHECK (requests BETWEEN 0 AND 999999999999999),
	input_tokens bigint CHECK (input_tokens BETWEEN 0 AND 999999999999999),
	output_tokens bigint CHECK (output_tokens BETWEEN 0 AND 999999999999999),
	received_at timestamptz NOT NULL DEFAULT now(),
	workspace_id integer REFERENCES workspace,
	type meter_type NOT NULL,
	id text NOT NULL CHECK (octet_length(id) BETWEEN 1 AND 256),
	sku text NOT NULL CHECK (octet_length(sku) BETWEEN 1 AND 128),
	amount numeric(24, 9) CHECK (amount >= 0 AND amount <> 'NaN'),
	model text NOT NULL,
	caller text NOT NULL,
	server text NOT NULL,
	digest bytea NOT NULL CHECK (octet_length(digest) = 32),
	end_user text CONSTRAINT only_inference_has_an_end_user CHECK (end_user IS NULL OR (octet_length(end_user) BETWEEN 1 AND 253 AND type = 3)),
	PRIMARY KEY (source_id, id),
	CONSTRAINT either_workspace_or_holder CHECK (num_nonnulls(workspace_id, holder_id) = 1),
	CONSTRAINT amounts_match_type CHECK (CASE
		WHEN type IN (1, 2, 4) THEN amount IS NOT NULL AND num_nonnulls(requests, input_tokens, output_tokens) = 0
			AND model = '' AND caller = '' AND server = ''
		WHEN type = 3 THEN amount IS NULL AND num_nonnulls(requests, input_tokens, output_tokens) > 0 AND model <> ''
		ELSE false END)
);
COMMENT ON TABLE meter_event IS 'One row per event, once: the key is source and id. Rows are only ever added, so sums over them are the only roll-up.';
COMMENT ON COLUMN meter_event.holder_id IS 'else a holder of its namespace: the attribution rules give its workspace, by the hour';
COMMENT ON COLUMN meter_event.token_id IS 'the token of its sender';
COMMENT ON COLUMN meter_event.workspace_id IS 'its workspace, where the event names one';
COMMENT ON COLUMN meter_event.type IS '1 storage, 2 egress, 3 inference, 4 support';
COMMENT ON COLUMN meter_event.amount IS 'GB-hours, GB or hours; exact';
COMMENT ON COLUMN meter_event.digest IS 'SHA-256 of what it says: the same key with another digest is refused';
COMMENT ON COLUMN meter_event.end_user IS 'the user of the inference, as the sender names them; NULL: not given. Never a label of a metric';
-- Events arrive nearly in order of time.
CREATE INDEX meter_event_time ON meter_event USING brin (time_ns) WITH (pages_per_range = 16, autosummarize = on);
-- The large events of a month, summed for their limit: of a tenant's workspaces and of a namespace. aggregator/store/ingest has the same condition.
CREATE INDEX meter_event_large ON meter_event (workspace_id, time_ns)
	WHERE ((type = 4 AND amount >= 10) OR (type IN (1, 2) AND amount >= 10000) OR greatest(requests, input_tokens, output_tokens) >= 10000000);
CREATE INDEX meter_event_large_of_holder ON meter_event (holder_id, time_ns)
	WHERE ((type = 4 AND amount >= 10) OR (type IN (1, 2) AND amount >= 10000) OR greatest(requests, input_tokens, output_tokens) >= 10000000)
		AND holder_id IS NOT NULL;

CREATE TABLE event_sku (
	tenant_id integer NOT NULL,
	month date NOT NULL CHECK (extract(day FROM month) = 1),
	sku text NOT NULL,
	PRIMARY KEY (tenant_id, month, sku)
);
COMMENT ON TABLE event_sku IS 'SKUs that events of a tenant have named, by the billing month of the event; they are limited (option tenant-skus).';
COMMENT ON COLUMN event_sku.tenant_id IS 'of the workspace or, when the event came, of the namespace that it names; 0: nobody''s';
