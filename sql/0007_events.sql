-- oldest-binary: 0.1.0
-- Other meters: what CloudEvents said was used of storage, network, inference and support.

CREATE TABLE event_source (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	tenant_id integer REFERENCES tenant,
	name text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 512),
	UNIQUE NULLS NOT DISTINCT (tenant_id, name)
);
COMMENT ON TABLE event_source IS 'Who sends events: the CloudEvents attribute source.';
COMMENT ON COLUMN event_source.tenant_id IS 'of senders that are bound to a tenant: they have their own ids, and cannot take or see those of others. '
	'NULL: the operator''s senders';

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
	type smallint NOT NULL,
	id text NOT NULL CHECK (octet_length(id) BETWEEN 1 AND 256),
	sku text NOT NULL CHECK (octet_length(sku) BETWEEN 1 AND 128),
	amount numeric(24, 9) CHECK (amount >= 0 AND amount <> 'NaN'),
	model text NOT NULL,
	caller text NOT NULL,
	server text NOT NULL,
	digest bytea NOT NULL CHECK (octet_length(digest) = 32),
	PRIMARY KEY (source_id, id),
	CONSTRAINT one_owner CHECK (num_nonnulls(workspace_id, holder_id) = 1),
	CONSTRAINT amounts_of_its_type CHECK (CASE
		WHEN type IN (1, 2, 4) THEN amount IS NOT NULL AND num_nonnulls(requests, input_tokens, output_tokens) = 0
			AND model = '' AND caller = '' AND server = ''
		WHEN type = 3 THEN amount IS NULL AND num_nonnulls(requests, input_tokens, output_tokens) > 0 AND model <> ''
		ELSE false END)
);
COMMENT ON TABLE meter_event IS 'One row per event, once: the key is source and id. Rows are only ever added, so sums over them are the only roll-up.';
COMMENT ON COLUMN meter_event.type IS '1 storage, 2 egress, 3 inference, 4 support';
COMMENT ON COLUMN meter_event.workspace_id IS 'whose it is, when the event said so';
COMMENT ON COLUMN meter_event.holder_id IS 'else a holder of its namespace: the attribution rules say whose it is, at its hour';
COMMENT ON COLUMN meter_event.amount IS 'GB-hours, GB or hours; exact';
COMMENT ON COLUMN meter_event.digest IS 'SHA-256 of what it says: the same key with another digest is refused';
COMMENT ON COLUMN meter_event.token_id IS 'who sent it';
-- Events arrive nearly in order of time.
CREATE INDEX meter_event_time ON meter_event USING brin (time_ns) WITH (pages_per_range = 16, autosummarize = on);

CREATE FUNCTION meter_event_only_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'events are only ever added' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER meter_event_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON meter_event
	FOR EACH STATEMENT EXECUTE FUNCTION meter_event_only_grows();

CREATE FUNCTION meter_usage(p_from timestamptz, p_until timestamptz)
	RETURNS TABLE (day date, workspace_id integer, category text, meter text, unit text, sku text, quantity numeric, events bigint)
	LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT (at_ns(e.time_ns) AT TIME ZONE l.zone)::date, coalesce(e.workspace_id, a.workspace_id), m.category, m.meter, m.unit, e.sku,
			sum(m.quantity), count(*)
		FROM ledger l
			CROSS JOIN meter_event e
			LEFT JOIN holder_attribution a ON a.holder_id = e.holder_id AND a.effective @> at_ns(e.time_ns)
			CROSS JOIN LATERAL (VALUES
				(1, 'storage', 'storage', 'GB-hour', e.amount),
				(2, 'network', 'egress', 'GB', e.amount),
				(3, 'inference', 'inference-requests', 'request', e.requests::numeric),
				(3, 'inference', 'inference-input-tokens', 'token', e.input_tokens::numeric),
				(3, 'inference', 'inference-output-tokens', 'token', e.output_tokens::numeric),
				(4, 'support', 'support', 'hour', e.amount)) AS m(type, category, meter, unit, quantity)
		WHERE e.time_ns >= ns_of(p_from) AND e.time_ns < ns_of(p_until) AND m.type = e.type AND m.quantity IS NOT NULL
		GROUP BY 1, 2, 3, 4, 5, 6;
	END;
COMMENT ON FUNCTION meter_usage IS 'What the events of the range add up to, per billing day, workspace, meter and SKU: what rating reads.';
