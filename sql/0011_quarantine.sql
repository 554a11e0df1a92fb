-- oldest-binary: 0.1.0
-- Why a batch is in quarantine, in one word, and what an operator decided about it; how far a change of rules has come.

CREATE SEQUENCE quarantine_id AS bigint;
ALTER TABLE ingest_batch
	ADD COLUMN quarantine_id bigint,
	ADD COLUMN class text CHECK (class IN ('format', 'dictionary', 'skewed-clock', 'future', 'past', 'covered', 'unknown-id', 'weight', 'two-nodes')),
	ADD COLUMN decision text CHECK (decision IN ('released', 'discarded')),
	ADD COLUMN decided_by text CHECK (decided_by <> ''),
	ADD COLUMN decided_at timestamptz,
	ADD COLUMN decided_why text CHECK (octet_length(decided_why) BETWEEN 1 AND 1000);
COMMENT ON COLUMN ingest_batch.quarantine_id IS 'its place in the list of all that ever were in quarantine; NULL: it never was';
COMMENT ON COLUMN ingest_batch.reason IS 'why it was put into quarantine; it stays when it is released';
COMMENT ON COLUMN ingest_batch.class IS 'the rule of store/ingest_judge.c that refused it; NULL: from before rules had names';
COMMENT ON COLUMN ingest_batch.decision IS 'released: its records were taken in after all, and its status says so; discarded: its time stays unknown; '
	'NULL: nobody has decided';

UPDATE ingest_batch b SET quarantine_id = x.id
	FROM (SELECT q.stream_id, q.seq, nextval('quarantine_id') AS id
		FROM (SELECT stream_id, seq FROM ingest_batch WHERE status = 'quarantined' ORDER BY received_at, stream_id, seq) q) x
	WHERE b.stream_id = x.stream_id AND b.seq = x.seq;

ALTER TABLE ingest_batch
	DROP CONSTRAINT ingest_batch_check2,
	ADD CONSTRAINT quarantine_has_a_reason CHECK ((quarantine_id IS NOT NULL) = (reason <> '')),
	ADD CONSTRAINT quarantine_has_a_class CHECK (class IS NULL OR quarantine_id IS NOT NULL),
	ADD CONSTRAINT quarantine_is_known CHECK (status <> 'quarantined' OR quarantine_id IS NOT NULL),
	ADD CONSTRAINT decision_is_whole CHECK (num_nulls(decision, decided_by, decided_at, decided_why) IN (0, 4)),
	-- Only a decision takes a batch out of quarantine.
	ADD CONSTRAINT decision_is_true CHECK (quarantine_id IS NULL OR (status = 'quarantined') = (decision IS DISTINCT FROM 'released'));
CREATE UNIQUE INDEX ingest_batch_quarantine ON ingest_batch (quarantine_id) WHERE quarantine_id IS NOT NULL;

CREATE FUNCTION released_stays_released() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'a batch that was released stays released' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER released_stays_released BEFORE UPDATE OF status, decision, decided_by, decided_at, decided_why ON ingest_batch
	FOR EACH ROW WHEN (OLD.decision = 'released') EXECUTE FUNCTION released_stays_released();

CREATE TABLE reattribution (
	one boolean PRIMARY KEY DEFAULT true CHECK (one),
	effective_at timestamptz NOT NULL,
	started_at timestamptz NOT NULL DEFAULT now(),
	finished_at timestamptz,
	after_id bigint NOT NULL DEFAULT 0 CHECK (after_id >= 0),
	last_id bigint NOT NULL CHECK (last_id >= 0),
	holders bigint NOT NULL CHECK (holders >= 0),
	holders_done bigint NOT NULL DEFAULT 0 CHECK (holders_done >= 0),
	changed bigint NOT NULL DEFAULT 0 CHECK (changed BETWEEN 0 AND holders_done),
	hour timestamptz,
	last_hour timestamptz,
	hours_dirty bigint NOT NULL DEFAULT 0,
	CHECK (hour IS NULL OR after_id >= last_id),
	CHECK (finished_at IS NULL OR hour IS NOT NULL)
);
COMMENT ON TABLE reattribution IS 'The last change of rules, and how far it has come with what was there: first the holders, in the order of their ids, then '
	'the sealed hours whose rows say something else. A change that comes before the end begins again, from the earlier of both times.';
COMMENT ON COLUMN reattribution.after_id IS 'holders up to this one have what the rules say; those after last_id are attributed as they are made';
COMMENT ON COLUMN reattribution.hour IS 'hours before this one are marked; NULL: the holders come first';
