-- oldest-binary: 0.1.0
-- What was measured: streams and their batches (the evidence), and the interval records decoded from them.

CREATE TABLE stream (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	node_id integer NOT NULL REFERENCES node,
	boot_id uuid NOT NULL,
	epoch bigint NOT NULL CHECK (epoch > 0),
	next_seq bigint NOT NULL DEFAULT 1 CHECK (next_seq >= 1),
	covered_until_ns bigint,
	created_at timestamptz NOT NULL DEFAULT now(),
	UNIQUE (node_id, boot_id, epoch)
) WITH (fillfactor = 70);
COMMENT ON TABLE stream IS 'One run of an exporter. Its row is the cursor, locked while batches of it are taken in.';
COMMENT ON COLUMN stream.next_seq IS 'everything before is durable; the only number accepted next';
COMMENT ON COLUMN stream.covered_until_ns IS 'a later batch may not go back behind this';

CREATE TABLE stream_device (
	stream_id integer NOT NULL REFERENCES stream,
	local_id bigint NOT NULL CHECK (local_id > 0),
	device_id integer NOT NULL REFERENCES device,
	PRIMARY KEY (stream_id, local_id)
);
CREATE TABLE stream_holder (
	stream_id integer NOT NULL REFERENCES stream,
	local_id bigint NOT NULL CHECK (local_id > 0),
	holder_id bigint NOT NULL REFERENCES holder,
	PRIMARY KEY (stream_id, local_id)
);
COMMENT ON TABLE stream_device IS 'The stream''s dictionary: what its own small device numbers mean.';
COMMENT ON TABLE stream_holder IS 'The stream''s dictionary: what its own small holder numbers mean.';
CREATE VIEW stream_dict AS
	SELECT stream_id, 'device' AS kind, local_id, device_id::bigint AS global_id FROM stream_device
	UNION ALL
	SELECT stream_id, 'holder', local_id, holder_id FROM stream_holder;
COMMENT ON VIEW stream_dict IS 'Both dictionaries in one list.';

CREATE TABLE ingest_batch (
	stream_id integer NOT NULL REFERENCES stream,
	seq bigint NOT NULL CHECK (seq >= 1),
	last_seq bigint NOT NULL,
	status text NOT NULL CHECK (status IN ('accepted', 'quarantined', 'loss')),
	reason text NOT NULL DEFAULT '',
	from_ns bigint NOT NULL,
	to_ns bigint NOT NULL,
	records integer NOT NULL CHECK (records >= 0),
	exporter_version text NOT NULL,
	received_at timestamptz NOT NULL DEFAULT now(),
	sha256 bytea NOT NULL CHECK (octet_length(sha256) = 32),
	payload bytea NOT NULL,
	PRIMARY KEY (stream_id, seq),
	CHECK (last_seq >= seq),
	CHECK (last_seq = seq OR status <> 'accepted'),
	CHECK ((status = 'quarantined') = (reason <> ''))
);
-- Gzip does not compress twice.
ALTER TABLE ingest_batch ALTER COLUMN payload SET STORAGE EXTERNAL;
COMMENT ON TABLE ingest_batch IS 'The evidence: every batch as it was received. Duplicates are recognised here, by number and SHA-256.';
COMMENT ON COLUMN ingest_batch.status IS 'accepted: its records are in usage_interval; quarantined: sound, but its content was refused; '
	'loss: the exporter dropped seq to last_seq';
COMMENT ON COLUMN ingest_batch.payload IS 'the gzipped batch, see common/WIRE.md';
CREATE INDEX ingest_batch_quarantined ON ingest_batch (received_at) WHERE status = 'quarantined';

CREATE TABLE usage_interval (
	start_ns bigint NOT NULL,
	duration_ns bigint NOT NULL,
	held_ns bigint NOT NULL,
	used_ns bigint NOT NULL,
	unmeasured_ns bigint NOT NULL,
	over_ns bigint NOT NULL,
	memory_byte_ms bigint NOT NULL,
	energy_mj bigint NOT NULL,
	seq bigint NOT NULL,
	stream_id integer NOT NULL,
	node_id integer NOT NULL,
	device_id integer NOT NULL,
	ticks integer NOT NULL,
	units smallint NOT NULL,
	state smallint NOT NULL,
	sharing smallint NOT NULL,
	method smallint NOT NULL,
	holder_id bigint,
	-- The rules of common/wire_check.c once more: whatever writes here, an impossible record does not get in.
	CONSTRAINT shares CHECK (duration_ns > 0 AND held_ns BETWEEN 0 AND duration_ns AND used_ns >= 0 AND unmeasured_ns >= 0
		AND used_ns + unmeasured_ns <= held_ns AND over_ns BETWEEN 0 AND duration_ns),
	CONSTRAINT one_quarter_hour CHECK (start_ns >= 0
		AND start_ns / 900000000000 = (start_ns + duration_ns - 1) / 900000000000),
	CONSTRAINT words CHECK (state BETWEEN 1 AND 5 AND sharing BETWEEN 1 AND 5 AND method BETWEEN 0 AND 3 AND units BETWEEN 1 AND 5040),
	CONSTRAINT holder_holds CHECK ((holder_id IS NOT NULL) = (state = 1) AND (state = 1 OR (method = 0 AND used_ns = 0 AND unmeasured_ns = 0))),
	CONSTRAINT amounts CHECK (memory_byte_ms >= 0 AND energy_mj >= 0 AND ticks >= 0)
) PARTITION BY RANGE (start_ns);
COMMENT ON TABLE usage_interval IS 'The decoded records, by UTC day. No key: a batch is taken in once or not at all. '
	'Ids come from the stream''s dictionary, which has the foreign keys.';
COMMENT ON COLUMN usage_interval.state IS '1 held, 2 unallocated, 3 stranded, 4 down, 5 unknown';
COMMENT ON COLUMN usage_interval.sharing IS '1 exclusive, 2 mig, 3 mps, 4 timeslice, 5 plain';
COMMENT ON COLUMN usage_interval.method IS 'where used_ns comes from: 0 none, 1 measured, 2 estimated, 3 reserved';
COMMENT ON COLUMN usage_interval.held_ns IS 'this record''s part of the time; units x held_ns over a GPU''s records is 5040 x the time';
COMMENT ON COLUMN usage_interval.seq IS 'with stream_id: the batch it came in';
-- Rows arrive nearly in order of time, a node's batch in one piece: a summary per 16 pages finds an hour, and a node in it.
CREATE INDEX usage_interval_time ON usage_interval USING brin (start_ns, node_id int4_bloom_ops (n_distinct_per_range = 40))
	WITH (pages_per_range = 16, autosummarize = on);

CREATE FUNCTION sharing_name(sharing smallint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN coalesce((ARRAY['exclusive', 'mig', 'mps', 'timeslice', 'plain'])[sharing], '');
CREATE FUNCTION method_name(method smallint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN coalesce((ARRAY['none', 'measured', 'estimated', 'reserved'])[method + 1], '');

CREATE FUNCTION make_partitions(p_from_ns bigint, p_until_ns bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
	day_ns constant bigint := 86400000000000;
	made integer := 0;
	name text;
BEGIN
	FOR day IN p_from_ns / day_ns .. (p_until_ns - 1) / day_ns LOOP
		name := 'usage_interval_' || to_char(tollgate.at_ns(day * day_ns) AT TIME ZONE 'UTC', 'YYYYMMDD');
		CONTINUE WHEN to_regclass('tollgate.' || name) IS NOT NULL;
		PERFORM pg_advisory_xact_lock(hashtextextended('tollgate.' || name, 0));
		CONTINUE WHEN to_regclass('tollgate.' || name) IS NOT NULL;
		-- Made apart and attached, because PARTITION OF would stop all writers for as long as this transaction lasts.
		EXECUTE format('CREATE TABLE tollgate.%I (LIKE tollgate.usage_interval INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
		EXECUTE format('ALTER TABLE tollgate.usage_interval ATTACH PARTITION tollgate.%I FOR VALUES FROM (%s) TO (%s)',
			name, day * day_ns, (day + 1) * day_ns);
		made := made + 1;
	END LOOP;
	RETURN made;
END $$;
COMMENT ON FUNCTION make_partitions IS 'Makes the missing day partitions of usage_interval; safe in several sessions at once.';
