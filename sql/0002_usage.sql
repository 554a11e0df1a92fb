-- oldest-binary: 0.2.0
-- Usage as it was measured: streams and their batches (the evidence), the interval records decoded from them, and the last status of each node.

-- --- streams and their dictionaries ---

CREATE TABLE stream (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	node_id integer NOT NULL REFERENCES node,
	boot_id uuid NOT NULL,
	epoch bigint NOT NULL CHECK (epoch > 0),
	next_seq bigint NOT NULL DEFAULT 1 CHECK (next_seq >= 1),
	covered_until_ns bigint,
	created_at timestamptz NOT NULL DEFAULT now(),
	evidence_seq bigint NOT NULL DEFAULT 1 CONSTRAINT evidence_seq_not_after_next_seq CHECK (evidence_seq BETWEEN 1 AND next_seq),
	-- A holder is who it is in one cluster (holder.identity), and a stream's numbers keep their meaning: its holders are of the cluster
	-- that its node was in when the exporter began to run.
	cluster_id integer NOT NULL REFERENCES cluster,
	UNIQUE (node_id, boot_id, epoch)
) WITH (fillfactor = 70);
COMMENT ON TABLE stream IS 'One run of an exporter. Its row is the cursor, locked while batches of it are taken in.';
COMMENT ON COLUMN stream.next_seq IS 'everything before is durable; the only number accepted next';
COMMENT ON COLUMN stream.covered_until_ns IS 'a later batch may not go back behind this';
COMMENT ON COLUMN stream.evidence_seq IS 'the first number whose batch is kept; those before were retired with their period';
COMMENT ON COLUMN stream.cluster_id IS 'of its holders: where the node was when the run began';

CREATE TABLE stream_device (
	stream_id integer NOT NULL REFERENCES stream,
	local_id bigint NOT NULL CHECK (local_id > 0),
	device_id integer NOT NULL REFERENCES device,
	PRIMARY KEY (stream_id, local_id)
);
COMMENT ON TABLE stream_device IS 'The stream''s dictionary: what its own small device numbers mean.';

CREATE TABLE stream_holder (
	stream_id integer NOT NULL REFERENCES stream,
	local_id bigint NOT NULL CHECK (local_id > 0),
	holder_id bigint NOT NULL REFERENCES holder,
	PRIMARY KEY (stream_id, local_id)
);
COMMENT ON TABLE stream_holder IS 'The stream''s dictionary: what its own small holder numbers mean.';
-- A status names a workload without its labels and group. Its owner follows from the newest of the node's own streams that has introduced it;
-- another node's description of the same workload does not count.
CREATE INDEX stream_holder_holder ON stream_holder (holder_id, stream_id);

-- A device or holder has a row once a record that counts needs it. Until then the stream's numbers are known as they came.
CREATE TABLE stream_device_entry (
	stream_id integer NOT NULL REFERENCES stream,
	local_id bigint NOT NULL CHECK (local_id > 0),
	gpu_local_id bigint NOT NULL CHECK (gpu_local_id > 0),
	uuid text NOT NULL,
	model text NOT NULL,
	profile text NOT NULL,
	gi integer NOT NULL,
	ci integer NOT NULL,
	created_ns bigint NOT NULL,
	units gpu_units NOT NULL,
	memory_bytes bigint NOT NULL,
	index integer NOT NULL,
	PRIMARY KEY (stream_id, local_id)
);
COMMENT ON TABLE stream_device_entry IS 'Dictionary entries as they came: devices that no counted record has named yet, and GPUs whose description has changed since. The entry moves to stream_device with the first such record.';

CREATE TABLE stream_holder_entry (
	stream_id integer NOT NULL REFERENCES stream,
	local_id bigint NOT NULL CHECK (local_id > 0),
	kind holder_kind NOT NULL,
	namespace text NOT NULL,
	pod text NOT NULL,
	pod_uid text NOT NULL,
	container text NOT NULL,
	slurm_job text NOT NULL,
	slurm_account text NOT NULL,
	user_name text NOT NULL,
	uid bigint NOT NULL,
	group_name text NOT NULL,
	labels text NOT NULL,
	PRIMARY KEY (stream_id, local_id)
);
COMMENT ON TABLE stream_holder_entry IS 'The same for holders; labels as they are spelt in a batch.';

CREATE VIEW stream_dict AS
	SELECT stream_id, 'device' AS kind, local_id, device_id::bigint AS global_id FROM stream_device
	UNION ALL
	SELECT stream_id, 'holder', local_id, holder_id FROM stream_holder;
COMMENT ON VIEW stream_dict IS 'Both dictionaries in one list.';

-- --- batches ---

CREATE SEQUENCE quarantine_id AS bigint;

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
	quarantine_id bigint,
	class text CHECK (class IN ('format', 'dictionary', 'skewed-clock', 'future', 'past', 'covered', 'unknown-id', 'weight',
		'two-nodes', 'retired', 'unproved', 'unapproved', 'energy')),
	decision text CHECK (decision IN ('released', 'discarded')),
	decided_by text CHECK (decided_by <> ''),
	decided_at timestamptz,
	decided_why text CHECK (octet_length(decided_why) BETWEEN 1 AND 1000),
	held_ns bigint,
	PRIMARY KEY (stream_id, seq),
	CONSTRAINT last_seq_not_before_seq CHECK (last_seq >= seq),
	CONSTRAINT accepted_batch_has_one_number CHECK (last_seq = seq OR status <> 'accepted'),
	CONSTRAINT quarantine_has_a_reason CHECK ((quarantine_id IS NOT NULL) = (reason <> '')),
	CONSTRAINT only_quarantine_has_a_class CHECK (class IS NULL OR quarantine_id IS NOT NULL),
	CONSTRAINT quarantine_has_an_id CHECK (status <> 'quarantined' OR quarantine_id IS NOT NULL),
	CONSTRAINT decision_is_complete CHECK (num_nulls(decision, decided_by, decided_at, decided_why) IN (0, 4)),
	-- Only a decision takes a batch out of quarantine.
	CONSTRAINT only_release_ends_quarantine CHECK (quarantine_id IS NULL OR (status = 'quarantined') = (decision IS DISTINCT FROM 'released'))
);
-- Gzip does not compress twice.
ALTER TABLE ingest_batch ALTER COLUMN payload SET STORAGE EXTERNAL;
COMMENT ON TABLE ingest_batch IS 'The evidence: every batch as it was received. Duplicates are recognised here, by number and SHA-256.';
COMMENT ON COLUMN ingest_batch.status IS 'accepted: its records are in usage_interval; quarantined: sound, but its content was refused; '
	'loss: the exporter dropped seq to last_seq';
COMMENT ON COLUMN ingest_batch.reason IS 'why it was put into quarantine; it stays when it is released';
COMMENT ON COLUMN ingest_batch.payload IS 'the gzipped batch, see common/wire/WIRE.md';
COMMENT ON COLUMN ingest_batch.quarantine_id IS 'its place in the list of all that ever were in quarantine; NULL: it never was';
COMMENT ON COLUMN ingest_batch.class IS 'the rule of aggregator/store/ingest that refused it';
COMMENT ON COLUMN ingest_batch.decision IS 'released: its records were taken in after all, and its status says so; discarded: its time stays unknown; '
	'NULL: nobody has decided';
COMMENT ON COLUMN ingest_batch.held_ns IS 'put aside because its node is held: when it came, by the clock that judges it; NULL: it never was, or has been judged since';
CREATE INDEX ingest_batch_quarantined ON ingest_batch (received_at) WHERE status = 'quarantined';
CREATE UNIQUE INDEX ingest_batch_quarantine ON ingest_batch (quarantine_id) WHERE quarantine_id IS NOT NULL;
CREATE INDEX ingest_batch_held ON ingest_batch (stream_id, seq) WHERE held_ns IS NOT NULL;
CREATE INDEX ingest_batch_fate ON ingest_batch (stream_id, seq)
	WHERE status <> 'accepted' OR quarantine_id IS NOT NULL OR decision IS NOT NULL OR held_ns IS NOT NULL;

CREATE TABLE batch_set_aside (
	stream_id integer NOT NULL,
	seq bigint NOT NULL,
	gpu text NOT NULL CHECK (octet_length(gpu) BETWEEN 1 AND 512),
	class text NOT NULL CHECK (class IN ('two-nodes', 'retired', 'model')),
	reason text NOT NULL CHECK (reason <> ''),
	records integer NOT NULL CHECK (records > 0),
	from_ns bigint NOT NULL,
	to_ns bigint NOT NULL CONSTRAINT to_after_from CHECK (to_ns > from_ns),
	quarantine_id bigint NOT NULL UNIQUE DEFAULT nextval('quarantine_id'),
	decision text CHECK (decision IN ('released', 'discarded')),
	decided_by text CHECK (decided_by <> ''),
	decided_at timestamptz,
	decided_why text CHECK (octet_length(decided_why) BETWEEN 1 AND 1000),
	PRIMARY KEY (stream_id, seq, gpu),
	FOREIGN KEY (stream_id, seq) REFERENCES ingest_batch ON DELETE CASCADE,
	CONSTRAINT decision_is_complete CHECK (num_nulls(decision, decided_by, decided_at, decided_why) IN (0, 4))
);
COMMENT ON TABLE batch_set_aside IS 'The records of one GPU in an accepted batch that do not count: the rest of the batch does. They are released or discarded like a batch in quarantine.';
COMMENT ON COLUMN batch_set_aside.gpu IS 'its UUID as the batch says it; it may have no row';
COMMENT ON COLUMN batch_set_aside.class IS 'two-nodes: it is another node''s; retired; model: the policy declares another model of the node';
COMMENT ON COLUMN batch_set_aside.from_ns IS 'where its records begin';
CREATE INDEX batch_set_aside_gpu ON batch_set_aside (gpu);
CREATE INDEX batch_set_aside_open ON batch_set_aside (stream_id, seq) WHERE decision IS NULL;

CREATE TABLE batch_range (
	stream_id integer NOT NULL REFERENCES stream,
	first_seq bigint NOT NULL CHECK (first_seq >= 1),
	last_seq bigint NOT NULL,
	batches integer NOT NULL CHECK (batches >= 0),
	hash bytea CHECK (octet_length(hash) = 32),
	retired boolean NOT NULL DEFAULT false,
	PRIMARY KEY (stream_id, first_seq),
	CONSTRAINT last_seq_not_before_first_seq CHECK (last_seq >= first_seq),
	CONSTRAINT retired_range_has_no_hash CHECK (retired = (hash IS NULL)),
	CONSTRAINT only_first_range_is_retired CHECK (NOT retired OR first_seq = 1)
);
COMMENT ON TABLE batch_range IS 'Batches of a stream that were there when the range was made. Without a hole from number 1; the journal has each row.';
COMMENT ON COLUMN batch_range.hash IS 'SHA-256 over the lines of its batches, in the order of their numbers: what was received of each, see batches_anchor()';
COMMENT ON COLUMN batch_range.retired IS 'its batches were kept long enough, and are gone: the first range of a stream';

-- Beside the stream's row: that one is locked by every push, and an index over next_seq would end its updates in place.
CREATE TABLE stream_anchor (
	stream_id integer PRIMARY KEY REFERENCES stream,
	seq bigint NOT NULL CHECK (seq >= 1)
) WITH (fillfactor = 70);
COMMENT ON TABLE stream_anchor IS 'How far the batches of a stream are in ranges; no row: none is.';

-- --- records ---

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
	units gpu_units NOT NULL,
	state usage_state NOT NULL,
	sharing sharing_code NOT NULL,
	method method_code NOT NULL,
	holder_id bigint,
	peak_memory_bytes bigint NOT NULL DEFAULT 0,
	sm_active_ns bigint NOT NULL DEFAULT 0,
	sm_measured_ns bigint NOT NULL DEFAULT 0,
	-- The rules of common/wire once more: an impossible record is refused, whichever program writes it.
	CONSTRAINT times_within_interval CHECK (duration_ns > 0 AND held_ns BETWEEN 0 AND duration_ns AND used_ns >= 0 AND unmeasured_ns >= 0
		AND used_ns + unmeasured_ns <= held_ns AND over_ns BETWEEN 0 AND duration_ns),
	CONSTRAINT within_one_quarter_hour CHECK (start_ns >= 0
		AND start_ns / 900000000000 = (start_ns + duration_ns - 1) / 900000000000),
	CONSTRAINT sharing_is_known CHECK (sharing >= 1),
	CONSTRAINT only_held_time_has_a_holder CHECK ((holder_id IS NOT NULL) = (state = 1) AND (state = 1 OR (method = 0 AND used_ns = 0 AND unmeasured_ns = 0))),
	CONSTRAINT amounts_not_negative CHECK (memory_byte_ms >= 0 AND energy_mj >= 0 AND ticks >= 0),
	CONSTRAINT sm_time_within_held_time CHECK (peak_memory_bytes >= 0 AND sm_active_ns >= 0 AND sm_active_ns <= sm_measured_ns AND sm_measured_ns <= held_ns
		AND (state = 1 OR sm_measured_ns = 0))
) PARTITION BY RANGE (start_ns);
COMMENT ON TABLE usage_interval IS 'The decoded records, by UTC day. No key: a batch is taken in once or not at all. '
	'Ids come from the stream''s dictionary, which has the foreign keys.';
COMMENT ON COLUMN usage_interval.held_ns IS 'this record''s part of the time; units x held_ns over a GPU''s records is 5040 x the time';
COMMENT ON COLUMN usage_interval.seq IS 'with stream_id: the batch it came in';
COMMENT ON COLUMN usage_interval.state IS '1 held, 2 unallocated, 3 stranded, 4 down, 5 unknown';
COMMENT ON COLUMN usage_interval.sharing IS '1 exclusive, 2 mig, 3 mps, 4 timeslice, 5 plain';
COMMENT ON COLUMN usage_interval.method IS 'where used_ns comes from: 0 none, 1 measured, 2 estimated, 3 reserved';
COMMENT ON COLUMN usage_interval.peak_memory_bytes IS '0: not told, as in batches of wire format 1 and 2';
COMMENT ON COLUMN usage_interval.sm_measured_ns IS 'part of held_ns for which the source told SM activity';
-- Rows arrive nearly in order of time, a node's batch in one piece: a summary per 16 pages finds an hour, and a node in it.
CREATE INDEX usage_interval_time ON usage_interval USING brin (start_ns, node_id int4_bloom_ops (n_distinct_per_range = 40))
	WITH (pages_per_range = 16, autosummarize = on);

-- --- the present state of nodes ---

CREATE UNLOGGED TABLE node_status (
	node_id integer PRIMARY KEY REFERENCES node,
	boot_id uuid NOT NULL,
	boot_ns bigint NOT NULL CHECK (boot_ns >= 0),
	wall_ns bigint NOT NULL,
	received_at timestamptz NOT NULL,
	skew_ns bigint NOT NULL,
	interval_ns bigint NOT NULL CHECK (interval_ns > 0),
	left_out integer NOT NULL CHECK (left_out >= 0),
	digest bytea NOT NULL CHECK (octet_length(digest) = 32),
	gpus jsonb NOT NULL,
	instances jsonb NOT NULL,
	holders jsonb NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- Written over every few seconds: compressing it would cost more than the room.
ALTER TABLE node_status ALTER COLUMN gpus SET STORAGE EXTERNAL, ALTER COLUMN instances SET STORAGE EXTERNAL, ALTER COLUMN holders SET STORAGE EXTERNAL;
COMMENT ON TABLE node_status IS 'The last status of each node: one row, replaced. Not logged, and so not on a standby; empty after a crash, until nodes speak again.';
COMMENT ON COLUMN node_status.boot_ns IS 'the node''s clock since its boot: of one boot_id the greater is the newer';
COMMENT ON COLUMN node_status.received_at IS 'by the database''s clock, so that all replicas agree about the age';
COMMENT ON COLUMN node_status.skew_ns IS 'the node''s clock less that of the aggregator which received it';
COMMENT ON COLUMN node_status.interval_ns IS 'when the next one may be expected';
COMMENT ON COLUMN node_status.left_out IS 'holders that did not fit into the message';
COMMENT ON COLUMN node_status.digest IS 'of the three lists: while it stays the same they are not written again';
COMMENT ON COLUMN node_status.gpus IS 'read through live_gpu, instances through live_instance, holders through live_holder';

CREATE TABLE gpu_xid (
	gpu_id integer NOT NULL REFERENCES gpu,
	at_ns bigint NOT NULL CHECK (at_ns > 0),
	xid integer NOT NULL CHECK (xid BETWEEN 1 AND 100000),
	PRIMARY KEY (gpu_id, at_ns, xid)
);
COMMENT ON TABLE gpu_xid IS 'Critical errors as nodes told them in their statuses, by NVIDIA''s number; of one kind at most one a minute. Never usage.';
