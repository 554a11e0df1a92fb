-- oldest-binary: 0.1.0
-- Quota in service: the book, the log of what happened to it, what was decided, leases, and what was asked back.
--
-- The log is the truth: the state after event n is the state of the last snapshot before it with the events behind it applied by the engine. Rows of
-- decisions and reclaims are written in the transaction that writes the events they follow from, under the lock of the one row of quota_book.

CREATE TABLE quota_book (
	one boolean PRIMARY KEY DEFAULT true CHECK (one),
	seq bigint NOT NULL CHECK (seq >= 0),
	at_ns bigint NOT NULL CHECK (at_ns >= 0),
	head bytea NOT NULL CHECK (octet_length(head) = 32),
	policy_digest bytea CHECK (octet_length(policy_digest) = 32),
	snapshot_seq bigint NOT NULL CHECK (snapshot_seq BETWEEN 0 AND seq),
	snapshot_at_ns bigint NOT NULL CHECK (snapshot_at_ns BETWEEN 0 AND at_ns)
) WITH (fillfactor = 20);
COMMENT ON TABLE quota_book IS 'One row. Whoever decides locks it, so that one decides at a time, in whichever replica.';
COMMENT ON COLUMN quota_book.seq IS 'of the last event';
COMMENT ON COLUMN quota_book.head IS 'the hash of the last event; zeros before the first';
COMMENT ON COLUMN quota_book.policy_digest IS 'SHA-256 of the policy that the last policy event carries';
INSERT INTO quota_book (seq, at_ns, head, snapshot_seq, snapshot_at_ns) VALUES (0, 0, decode(repeat('00', 32), 'hex'), 0, 0);

CREATE FUNCTION quota_never_goes_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION '% never goes back, and nothing is taken out of it', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER quota_book_never_goes_back BEFORE UPDATE ON quota_book FOR EACH ROW
	WHEN (NEW.seq < OLD.seq OR NEW.at_ns < OLD.at_ns OR NEW.snapshot_seq < OLD.snapshot_seq OR (NEW.seq = OLD.seq) <> (NEW.head = OLD.head))
	EXECUTE FUNCTION quota_never_goes_back();
CREATE TRIGGER quota_book_stays BEFORE DELETE OR TRUNCATE ON quota_book FOR EACH STATEMENT EXECUTE FUNCTION quota_never_goes_back();

CREATE TABLE quota_event (
	seq bigint PRIMARY KEY CHECK (seq > 0),
	at_ns bigint NOT NULL CHECK (at_ns >= 0),
	actor text NOT NULL CHECK (actor <> ''),
	event text NOT NULL,
	outcome text NOT NULL,
	hash bytea NOT NULL CHECK (octet_length(hash) = 32)
);
COMMENT ON TABLE quota_event IS 'What happened to the book, in order, and what came of it. Rows are only ever added.';
COMMENT ON COLUMN quota_event.actor IS 'who asked; several are divided by commas';
COMMENT ON COLUMN quota_event.event IS 'as the engine reads it (core/quota_book.h); text, because its bytes are hashed';
COMMENT ON COLUMN quota_event.outcome IS 'verdicts and notices';
COMMENT ON COLUMN quota_event.hash IS 'SHA-256 over the hash before and seq, at_ns, actor, event, outcome (core/decision_rows.h)';
CREATE TRIGGER quota_event_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON quota_event
	FOR EACH STATEMENT EXECUTE FUNCTION quota_never_goes_back();
-- outcomes are large and much alike; lz4 costs a tenth of the time, where the server has it
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
COMMENT ON COLUMN quota_snapshot.state IS 'gzip of what core/quota_book.h writes, bytes long when expanded';

CREATE TABLE decision (
	id bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
	request_id text PRIMARY KEY CHECK (request_id ~ '^[A-Za-z0-9][A-Za-z0-9._:-]{0,62}$'),
	digest bytea NOT NULL CHECK (octet_length(digest) = 32),
	tenant_id integer REFERENCES tenant,
	workspace_id integer REFERENCES workspace,
	workspace text NOT NULL,
	body json NOT NULL,
	status text NOT NULL CHECK (status IN ('waiting', 'admitted', 'confirmed', 'suspect', 'ended', 'rejected', 'cancelled', 'expired')),
	decision text NOT NULL CHECK (decision IN ('admit', 'borrow', 'reclaim', 'queue', 'reject')),
	would text NOT NULL CHECK (would IN ('admit', 'borrow', 'reclaim', 'queue', 'reject')),
	rule text NOT NULL CHECK (rule IN ('valid', 'limit', 'budget', 'ownership', 'available', 'owed', 'borrow', 'own', 'declared')),
	warn boolean NOT NULL,
	position bigint NOT NULL CHECK (position >= 0),
	asked_by text NOT NULL CHECK (asked_by <> ''),
	submitted_seq bigint NOT NULL REFERENCES quota_event DEFERRABLE INITIALLY DEFERRED,
	submitted_ns bigint NOT NULL,
	verdict_seq bigint NOT NULL CHECK (verdict_seq >= submitted_seq),
	changed_seq bigint NOT NULL CHECK (changed_seq >= verdict_seq),
	changed_ns bigint NOT NULL CHECK (changed_ns >= submitted_ns),
	admitted_ns bigint,
	confirmed_ns bigint,
	seen_ns bigint,
	released_ns bigint,
	ended_ns bigint,
	ended_why text CHECK (ended_why IN ('returned', 'unconfirmed', 'cancelled', 'expired')),
	workload_namespace text,
	workload_pod text,
	workload_pod_uid text,
	workload_slurm_job text,
	CONSTRAINT what_was_decided CHECK (CASE status WHEN 'waiting' THEN decision IN ('queue', 'reclaim') WHEN 'rejected' THEN decision = 'reject'
		WHEN 'cancelled' THEN decision IN ('queue', 'reclaim') WHEN 'expired' THEN decision IN ('queue', 'reclaim') ELSE decision IN ('admit', 'borrow') END),
	CONSTRAINT a_lease_was_admitted CHECK ((status IN ('admitted', 'confirmed', 'suspect', 'ended')) = (admitted_ns IS NOT NULL)),
	CONSTRAINT a_lease_runs_once_confirmed CHECK (status NOT IN ('confirmed', 'suspect') OR confirmed_ns IS NOT NULL),
	CONSTRAINT only_a_lease_is_confirmed CHECK (admitted_ns IS NOT NULL OR num_nonnulls(confirmed_ns, seen_ns, released_ns) = 0),
	CONSTRAINT an_end_has_its_time CHECK ((status IN ('ended', 'cancelled', 'expired')) = (ended_ns IS NOT NULL)),
	CONSTRAINT an_end_has_its_reason CHECK ((ended_ns IS NOT NULL) = (ended_why IS NOT NULL)),
	CONSTRAINT only_who_waits_has_a_place CHECK (status = 'waiting' OR position = 0)
);
COMMENT ON TABLE decision IS 'What was asked for, and what became of it. While it is admitted, confirmed or suspect it is a lease, of the same id.';
COMMENT ON COLUMN decision.digest IS 'of what was asked: the same id with another one is refused';
COMMENT ON COLUMN decision.tenant_id IS 'NULL: no such workspace is known, which was the decision; likewise workspace_id';
COMMENT ON COLUMN decision.verdict_seq IS 'the event whose outcome has its last verdict, with every check';
COMMENT ON COLUMN decision.changed_seq IS 'the event that last changed this row';
COMMENT ON COLUMN decision.rule IS 'that decided: owed or borrow when admitted, else the first that was not met';
COMMENT ON COLUMN decision.would IS 'what the rules say; another answer than decision only where they are not enforced';
COMMENT ON COLUMN decision.workload_pod_uid IS 'by which telemetry knows the workload; likewise namespace and pod, or the Slurm job';
CREATE INDEX decision_of_tenant ON decision (tenant_id, id);
CREATE INDEX decision_open ON decision (id) WHERE status IN ('waiting', 'admitted', 'confirmed', 'suspect');
CREATE TRIGGER decision_is_final BEFORE UPDATE ON decision FOR EACH ROW
	WHEN (OLD.status IN ('ended', 'rejected', 'cancelled', 'expired') OR (OLD.status <> 'waiting' AND NEW.status NOT IN ('admitted', 'confirmed', 'suspect', 'ended'))
		OR NEW.changed_seq < OLD.changed_seq OR (NEW.request_id, NEW.digest, NEW.workspace, NEW.submitted_seq) IS DISTINCT FROM
			(OLD.request_id, OLD.digest, OLD.workspace, OLD.submitted_seq))
	EXECUTE FUNCTION quota_never_goes_back();
CREATE TRIGGER decision_stays BEFORE DELETE OR TRUNCATE ON decision FOR EACH STATEMENT EXECUTE FUNCTION quota_never_goes_back();

CREATE TABLE reclaim (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	lease_id text NOT NULL REFERENCES decision,
	cause text NOT NULL CHECK (cause IN ('request', 'idle', 'drain')),
	for_request text,
	state text NOT NULL CHECK (state IN ('ordered', 'draining', 'overdue', 'enforced', 'returned', 'cancelled')),
	ordered_seq bigint NOT NULL,
	changed_seq bigint NOT NULL CHECK (changed_seq >= ordered_seq),
	ordered_ns bigint NOT NULL,
	due_ns bigint,
	acked_ns bigint,
	ended_ns bigint,
	asked_by text NOT NULL CHECK (asked_by <> ''),
	CHECK ((cause = 'request') = (for_request IS NOT NULL)),
	CHECK (state <> 'draining' OR acked_ns IS NOT NULL),
	CHECK (cause = 'request' OR state NOT IN ('ordered', 'cancelled')),
	CHECK ((state IN ('returned', 'cancelled')) = (ended_ns IS NOT NULL))
);
COMMENT ON TABLE reclaim IS 'What a lease was asked to give back: ordered, draining, overdue, enforced, and returned or cancelled.';
COMMENT ON COLUMN reclaim.cause IS 'request: for another one that waits; idle: it was measured idle for too long; drain: its scheduler drains it';
CREATE UNIQUE INDEX reclaim_one_at_a_time ON reclaim (lease_id) WHERE state NOT IN ('returned', 'cancelled');
CREATE TRIGGER reclaim_is_final BEFORE UPDATE ON reclaim FOR EACH ROW
	WHEN (OLD.state IN ('returned', 'cancelled') OR NEW.lease_id <> OLD.lease_id OR NEW.changed_seq < OLD.changed_seq)
	EXECUTE FUNCTION quota_never_goes_back();

CREATE TABLE quota_anomaly (
	kind text NOT NULL CHECK (kind ~ '^[a-z][a-z_]*$'),
	subject text NOT NULL,
	tenant_id integer REFERENCES tenant,
	since_ns bigint NOT NULL,
	last_ns bigint NOT NULL CHECK (last_ns >= since_ns),
	detail jsonb NOT NULL CHECK (jsonb_typeof(detail) = 'object'),
	PRIMARY KEY (kind, subject)
);
COMMENT ON TABLE quota_anomaly IS 'Where what telemetry shows and what the book says differ, while they do.';

CREATE TABLE quota_idle (
	lease_id text PRIMARY KEY REFERENCES decision,
	since_ns bigint NOT NULL,
	warned_ns bigint
);
COMMENT ON TABLE quota_idle IS 'Leases of workspaces with an idle_timeout: since when their holders are measured and do nothing, and when they were warned.';
