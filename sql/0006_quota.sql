-- oldest-binary: 0.2.0
-- Quota in service: the book, the log of its events, decisions, leases, reclaims and exceptions.
--
-- The log is the truth: the state after event n is the last snapshot before it with the later events applied by the engine. Decisions and reclaims are written in the
-- transaction that writes their events, under the lock of the one row of quota_book.
-- quota_book and decision have no CHECK constraints: PostgreSQL parses every CHECK of a table anew for every statement that writes to it, and 19 of them cost a decision
-- 0.2 ms, more than everything else. The triggers quota_book_is_sound and decision_is_sound have the rules; a trigger function is parsed once per session.

-- --- the book and its log ---

CREATE TABLE quota_book (
	one boolean PRIMARY KEY DEFAULT true,
	seq bigint NOT NULL,
	at_ns bigint NOT NULL,
	head bytea NOT NULL,
	policy_digest bytea,
	snapshot_seq bigint NOT NULL,
	snapshot_at_ns bigint NOT NULL
) WITH (fillfactor = 20);
COMMENT ON TABLE quota_book IS 'One row. Deciding locks it, so that one replica decides at a time.';
COMMENT ON COLUMN quota_book.seq IS 'of the last event';
COMMENT ON COLUMN quota_book.head IS 'the hash of the last event; zeros before the first';
COMMENT ON COLUMN quota_book.policy_digest IS 'SHA-256 of the policy that the last policy event carries';

INSERT INTO quota_book (seq, at_ns, head, snapshot_seq, snapshot_at_ns) VALUES (0, 0, decode(repeat('00', 32), 'hex'), 0, 0);

CREATE TABLE quota_event (
	seq bigint PRIMARY KEY CHECK (seq > 0),
	at_ns bigint NOT NULL CHECK (at_ns >= 0),
	actor text NOT NULL CHECK (actor <> ''),
	event text NOT NULL,
	outcome text NOT NULL,
	hash bytea NOT NULL CHECK (octet_length(hash) = 32)
);
COMMENT ON TABLE quota_event IS 'The events of the book, in order, each with its outcome. Rows are only ever added.';
COMMENT ON COLUMN quota_event.actor IS 'the requesters, separated by commas';
COMMENT ON COLUMN quota_event.event IS 'as the engine reads it (aggregator/core/quota/book); text, because its bytes are hashed';
COMMENT ON COLUMN quota_event.outcome IS 'verdicts and notices';
COMMENT ON COLUMN quota_event.hash IS 'SHA-256 over the hash before and seq, at_ns, actor, event, outcome (aggregator/core/quota/book)';

-- Outcomes are large and repetitive; lz4 costs a tenth of the time, where the server has it.
DO $$ BEGIN
	ALTER TABLE quota_event ALTER COLUMN outcome SET COMPRESSION lz4;
	ALTER TABLE quota_event ALTER COLUMN event SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported OR invalid_parameter_value THEN NULL;
END $$;

CREATE TABLE quota_snapshot (
	seq bigint PRIMARY KEY CHECK (seq >= 0),
	at_ns bigint NOT NULL CHECK (at_ns >= 0),
	head bytea NOT NULL CHECK (octet_length(head) = 32),
	state bytea NOT NULL,
	bytes bigint NOT NULL CHECK (bytes > 0)
);
ALTER TABLE quota_snapshot ALTER COLUMN state SET STORAGE EXTERNAL;
COMMENT ON TABLE quota_snapshot IS 'The book after an event: where a replica that starts begins. Made from the log, and only a shorter way to it.';
COMMENT ON COLUMN quota_snapshot.state IS 'gzip of the state that aggregator/core/quota/book writes, bytes long when expanded';

-- --- decisions ---

CREATE TABLE decision (
	id bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
	request_id text NOT NULL,
	digest bytea NOT NULL,
	tenant_id integer REFERENCES tenant,
	workspace_id integer REFERENCES workspace,
	workspace text NOT NULL,
	body json NOT NULL,
	status text NOT NULL,
	decision text NOT NULL,
	would text NOT NULL,
	rule text NOT NULL,
	warn boolean NOT NULL,
	position bigint NOT NULL,
	asked_by text NOT NULL,
	submitted_seq bigint NOT NULL REFERENCES quota_event DEFERRABLE INITIALLY DEFERRED,
	submitted_ns bigint NOT NULL,
	verdict_seq bigint NOT NULL,
	changed_seq bigint NOT NULL,
	changed_ns bigint NOT NULL,
	admitted_ns bigint,
	confirmed_ns bigint,
	seen_ns bigint,
	released_ns bigint,
	ended_ns bigint,
	ended_why text,
	workload_namespace text,
	workload_pod text,
	workload_pod_uid text,
	workload_slurm_job text,
	key text PRIMARY KEY,
	verdict_at integer NOT NULL,
	verdict_bytes integer NOT NULL
);
COMMENT ON TABLE decision IS 'A request for capacity and its result. While it is admitted, confirmed or suspect it is a lease with the same id.';
COMMENT ON COLUMN decision.request_id IS 'as its tenant chose it; unique in the tenant whose workspace it names';
COMMENT ON COLUMN decision.digest IS 'of what was asked: the same id with another one is refused';
COMMENT ON COLUMN decision.tenant_id IS 'NULL: no such workspace is known, which was the decision; likewise workspace_id';
COMMENT ON COLUMN decision.would IS 'the verdict of the rules; it differs from decision only where they are not enforced';
COMMENT ON COLUMN decision.rule IS 'that decided: owed or borrow when admitted, else the first that was not met';
COMMENT ON COLUMN decision.verdict_seq IS 'the event whose outcome has its last verdict, with every check';
COMMENT ON COLUMN decision.changed_seq IS 'the event that last changed this row';
COMMENT ON COLUMN decision.workload_pod_uid IS 'by which telemetry knows the workload; likewise namespace and pod, or the Slurm job';
COMMENT ON COLUMN decision.key IS 'by which the engine and its log know it: TENANT/REQUEST_ID';
COMMENT ON COLUMN decision.verdict_at IS 'how many bytes of the outcome are before its verdict, which is verdict_bytes long';
CREATE INDEX decision_of_tenant ON decision (tenant_id, id);
CREATE INDEX decision_open ON decision (id) WHERE status IN ('waiting', 'admitted', 'confirmed', 'suspect');
CREATE UNIQUE INDEX decision_of_namespace ON decision (request_id, split_part(workspace, '/', 1));
CREATE INDEX decision_of_tenant_submitted ON decision (tenant_id, submitted_ns);

CREATE TABLE reclaim (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	lease_id text NOT NULL REFERENCES decision,
	cause text NOT NULL CHECK (cause IN ('request', 'idle', 'drain')),
	for_request text,
	state text NOT NULL CHECK (state IN ('ordered', 'draining', 'overdue', 'enforced', 'returned', 'cancelled')),
	ordered_seq bigint NOT NULL,
	changed_seq bigint NOT NULL CONSTRAINT changed_not_before_ordered CHECK (changed_seq >= ordered_seq),
	ordered_ns bigint NOT NULL,
	due_ns bigint,
	acked_ns bigint,
	ended_ns bigint,
	asked_by text NOT NULL CHECK (asked_by <> ''),
	CONSTRAINT only_requests_name_a_request CHECK ((cause = 'request') = (for_request IS NOT NULL)),
	CONSTRAINT draining_was_acknowledged CHECK (state <> 'draining' OR acked_ns IS NOT NULL),
	CONSTRAINT only_requests_are_ordered_or_cancelled CHECK (cause = 'request' OR state NOT IN ('ordered', 'cancelled')),
	CONSTRAINT end_has_a_time CHECK ((state IN ('returned', 'cancelled')) = (ended_ns IS NOT NULL))
);
COMMENT ON TABLE reclaim IS 'An order to a lease to give its capacity back: ordered, draining, overdue, enforced, and returned or cancelled.';
COMMENT ON COLUMN reclaim.cause IS 'request: for another one that waits; idle: it was measured idle for too long; drain: its scheduler drains it';
CREATE UNIQUE INDEX reclaim_one_at_a_time ON reclaim (lease_id) WHERE state NOT IN ('returned', 'cancelled');

CREATE TABLE quota_anomaly (
	kind text NOT NULL CHECK (kind ~ '^[a-z][a-z_]*$'),
	subject text NOT NULL,
	tenant_id integer REFERENCES tenant,
	since_ns bigint NOT NULL,
	last_ns bigint NOT NULL CONSTRAINT last_not_before_since CHECK (last_ns >= since_ns),
	detail jsonb NOT NULL CHECK (jsonb_typeof(detail) = 'object'),
	PRIMARY KEY (kind, subject)
);
COMMENT ON TABLE quota_anomaly IS 'Present differences between telemetry and the book.';

CREATE TABLE quota_idle (
	lease_id text PRIMARY KEY REFERENCES decision,
	since_ns bigint NOT NULL,
	warned_ns bigint
);
COMMENT ON TABLE quota_idle IS 'Leases of workspaces with an idle_timeout: since when their holders have been measured idle, and when they were warned.';

-- --- exceptions ---

CREATE TABLE exception (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	tenant_id integer NOT NULL REFERENCES tenant,
	workspace_id integer NOT NULL REFERENCES workspace,
	cluster_id integer NOT NULL REFERENCES cluster,
	model text NOT NULL CHECK (model <> ''),
	shared boolean NOT NULL,
	kind text NOT NULL CHECK (kind IN ('limit', 'reserved')),
	units bigint NOT NULL CHECK (units BETWEEN 1 AND 5040000000),
	reason text NOT NULL CHECK (reason <> ''),
	effective tstzrange NOT NULL CHECK (NOT isempty(effective) AND NOT lower_inf(effective) AND NOT upper_inf(effective)),
	requested_by text NOT NULL CHECK (requested_by <> ''),
	requested_at timestamptz NOT NULL,
	status text NOT NULL CHECK (status IN ('requested', 'approved', 'refused', 'revoked', 'ended')),
	rule text CHECK (rule IN ('auto_approve', 'administrator', 'tenant-admin')),
	decided_by text,
	decided_at timestamptz,
	decided_why text,
	over_by text,
	over_at timestamptz,
	over_why text,
	begun_seq bigint,
	ended_seq bigint,
	CONSTRAINT decision_is_complete CHECK (num_nonnulls(decided_by, decided_at, rule) IN (0, 3)),
	CONSTRAINT decided_has_a_decision CHECK (status NOT IN ('approved', 'refused') OR decided_at IS NOT NULL),
	CONSTRAINT requested_has_no_decision CHECK (status <> 'requested' OR decided_at IS NULL),
	CONSTRAINT end_is_complete CHECK ((status IN ('revoked', 'ended')) = (over_at IS NOT NULL) AND num_nonnulls(over_by, over_at) IN (0, 2)),
	CONSTRAINT only_approved_is_in_the_book CHECK (begun_seq IS NULL OR (decided_at IS NOT NULL AND status <> 'refused')),
	CONSTRAINT only_revoked_leaves_the_book CHECK (ended_seq IS NULL OR (begun_seq < ended_seq AND status = 'revoked'))
);
COMMENT ON TABLE exception IS 'Extra limit or reservation of a workspace until a time, with its requester, reason and approver. Rows are never removed.';
COMMENT ON COLUMN exception.shared IS 'among the shared nodes; false: among the tenant''s own';
COMMENT ON COLUMN exception.rule IS 'the approver: the tenant''s rule, an administrator, or the tenant''s own administrator';
COMMENT ON COLUMN exception.begun_seq IS 'the event of the quota log that brought it in; ended_seq: the one that took it out before its time';
CREATE INDEX exception_of_tenant ON exception (tenant_id, id);
CREATE INDEX exception_open ON exception (upper(effective)) WHERE status IN ('requested', 'approved');
CREATE INDEX exception_not_in_book ON exception (id) WHERE (status = 'approved' AND begun_seq IS NULL) OR (status = 'revoked' AND begun_seq IS NOT NULL AND ended_seq IS NULL);
