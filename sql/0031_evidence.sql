-- oldest-binary: 0.1.0
-- Evidence stays what it was when it came: batches are anchored in the journal of rows.
--
--  1. what was received (number, time, records, SHA-256 of the bytes) never changes. Ranges of a stream's batches are hashed and go into the journal,
--     after the push and beside it: the hot path has no part in it
--  2. what was decided of a batch changes, while it is in quarantine. Each that is or was not simply accepted has an entry of its own for every change
--  3. what was accepted, or released, stays so
--  4. batches are removed from the front of their stream, in whole ranges, once the ledger has given up their time; one row says how far

CREATE TABLE batch_range (
	stream_id integer NOT NULL REFERENCES stream,
	first_seq bigint NOT NULL CHECK (first_seq >= 1),
	last_seq bigint NOT NULL,
	batches integer NOT NULL CHECK (batches >= 0),
	hash bytea CHECK (octet_length(hash) = 32),
	retired boolean NOT NULL DEFAULT false,
	PRIMARY KEY (stream_id, first_seq),
	CHECK (last_seq >= first_seq),
	CHECK (retired = (hash IS NULL)),
	CHECK (NOT retired OR first_seq = 1)
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

-- Puts batches that are in no range yet into one for each stream, of 1000 at most. more: there may be others. One at a time: the caller has the lock.
CREATE FUNCTION batches_anchor(p_most integer, OUT batches bigint, OUT more boolean) LANGUAGE plpgsql SECURITY DEFINER
	SET search_path = tollgate, pg_temp AS $$
#variable_conflict use_column
BEGIN
	WITH due AS MATERIALIZED (
		SELECT d.id, d.seq, d.until FROM (
			SELECT s.id, coalesce(a.seq, 0) AS seq, least(s.next_seq - 1 - coalesce(a.seq, 0), 1000) AS numbers,
				sum(least(s.next_seq - 1 - coalesce(a.seq, 0), 1000)) OVER (ORDER BY s.id) AS until
			FROM stream s LEFT JOIN stream_anchor a ON a.stream_id = s.id WHERE s.next_seq - 1 > coalesce(a.seq, 0)) d
		WHERE d.until - d.numbers < p_most),
	ranges AS MATERIALIZED (
		SELECT d.id, d.seq + 1 AS first_seq, r.* FROM due d CROSS JOIN LATERAL (
			SELECT max(b.last_seq) AS last_seq, count(*)::integer AS batches, sha256(convert_to(string_agg(b.line, '' ORDER BY b.seq), 'UTF8')) AS hash
			FROM (SELECT b.seq, b.last_seq, b.seq || ' ' || b.last_seq || ' ' || b.from_ns || ' ' || b.to_ns || ' ' || b.records || ' ' || ns_of(b.received_at) || ' '
				|| encode(b.sha256, 'hex') || ' ' || octet_length(b.exporter_version) || ':' || b.exporter_version || ';' AS line FROM ingest_batch b WHERE b.stream_id = d.id AND b.seq > d.seq ORDER BY b.seq LIMIT 1000) b) r
		WHERE r.batches > 0),
	moved AS (INSERT INTO stream_anchor AS a SELECT r.id, r.last_seq FROM ranges r ON CONFLICT (stream_id) DO UPDATE SET seq = excluded.seq),
	kept AS (INSERT INTO batch_range (stream_id, first_seq, last_seq, batches, hash) SELECT r.id, r.first_seq, r.last_seq, r.batches, r.hash FROM ranges r
		RETURNING batches)
	SELECT coalesce(sum(k.batches), 0), count(*) > 0 AND coalesce((SELECT max(d.until) >= p_most FROM due d), false) INTO batches, more FROM kept k;
END $$;

-- --- what was decided ---

CREATE FUNCTION batch_fate(p_status text, p_reason text, p_class text, p_decision text, p_by text, p_at timestamptz, p_why text, p_quarantine bigint,
		p_held_ns bigint) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN sha256(convert_to(audit_field(p_status) || audit_field(p_reason) || audit_field(p_class) || audit_field(p_decision) || audit_field(p_by)
		|| audit_field(ns_of(p_at)::text) || audit_field(p_why) || audit_field(p_quarantine::text) || audit_field(p_held_ns::text), 'UTF8'));

CREATE INDEX ingest_batch_fate ON ingest_batch (stream_id, seq)
	WHERE status <> 'accepted' OR quarantine_id IS NOT NULL OR decision IS NOT NULL OR held_ns IS NOT NULL;

CREATE FUNCTION journal_fate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO tollgate.row_journal (relation, operation, keys, hashes) VALUES ('ingest_batch', lower(TG_OP), ARRAY[NEW.stream_id || ' ' || NEW.seq],
		ARRAY[tollgate.batch_fate(NEW.status, NEW.reason, NEW.class, NEW.decision, NEW.decided_by, NEW.decided_at, NEW.decided_why, NEW.quarantine_id, NEW.held_ns)]);
	RETURN NULL;
END $$;
-- A batch that is accepted when it comes does not reach it.
CREATE TRIGGER fate_inserts AFTER INSERT ON ingest_batch FOR EACH ROW
	WHEN (NEW.status <> 'accepted' OR NEW.quarantine_id IS NOT NULL OR NEW.decision IS NOT NULL OR NEW.held_ns IS NOT NULL)
	EXECUTE FUNCTION journal_fate();
CREATE TRIGGER fate_updates AFTER UPDATE OF status, reason, class, decision, decided_by, decided_at, decided_why, quarantine_id, held_ns ON ingest_batch FOR EACH ROW
	WHEN ((OLD.status, OLD.reason, OLD.class, OLD.decision, OLD.decided_by, OLD.decided_at, OLD.decided_why, OLD.quarantine_id, OLD.held_ns)
		IS DISTINCT FROM (NEW.status, NEW.reason, NEW.class, NEW.decision, NEW.decided_by, NEW.decided_at, NEW.decided_why, NEW.quarantine_id, NEW.held_ns))
	EXECUTE FUNCTION journal_fate();

CREATE FUNCTION settled_batch_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF OLD.status <> 'quarantined' THEN
		RAISE EXCEPTION 'batch % of stream % is %, and stays so', OLD.seq, OLD.stream_id, OLD.status USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	IF NEW.quarantine_id IS DISTINCT FROM OLD.quarantine_id OR NEW.held_ns IS DISTINCT FROM OLD.held_ns AND NEW.held_ns IS NOT NULL
		OR OLD.held_ns IS NULL AND (NEW.class, NEW.reason) IS DISTINCT FROM (OLD.class, OLD.reason) THEN
		RAISE EXCEPTION 'why batch % of stream % is in quarantine was judged when it came', OLD.seq, OLD.stream_id
			USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER settled_batch_stays BEFORE UPDATE OF status, reason, class, decision, decided_by, decided_at, decided_why, quarantine_id, held_ns ON ingest_batch
	FOR EACH ROW
	WHEN ((OLD.status, OLD.reason, OLD.class, OLD.decision, OLD.decided_by, OLD.decided_at, OLD.decided_why, OLD.quarantine_id, OLD.held_ns)
		IS DISTINCT FROM (NEW.status, NEW.reason, NEW.class, NEW.decision, NEW.decided_by, NEW.decided_at, NEW.decided_why, NEW.quarantine_id, NEW.held_ns))
	EXECUTE FUNCTION settled_batch_stays();

-- Records of a GPU are set aside in the transaction that takes their batch in, or releases it: both times are its beginning.
CREATE FUNCTION set_aside_with_its_batch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM tollgate.ingest_batch b WHERE b.stream_id = NEW.stream_id AND b.seq = NEW.seq AND (b.received_at = now() OR b.decided_at = now())) THEN
		RAISE EXCEPTION 'records of batch % of stream % were taken in before', NEW.seq, NEW.stream_id USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER set_aside_with_its_batch BEFORE INSERT ON batch_set_aside FOR EACH ROW EXECUTE FUNCTION set_aside_with_its_batch();

-- --- what was kept long enough ---

CREATE FUNCTION batches_retire() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = tollgate, pg_temp AS $$
DECLARE
	v_gone CONSTANT text := 'a batch is evidence: ';
BEGIN
	IF EXISTS (SELECT FROM removed r, ledger l WHERE r.to_ns > l.evidence_from_ns) THEN
		RAISE EXCEPTION '%its time is not given up', v_gone USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	IF EXISTS (SELECT FROM (SELECT r.stream_id, max(r.last_seq) AS seq FROM removed r GROUP BY r.stream_id) g
		WHERE EXISTS (SELECT FROM ingest_batch b WHERE b.stream_id = g.stream_id AND b.seq <= g.seq)
			OR EXISTS (SELECT FROM batch_range a WHERE a.stream_id = g.stream_id AND a.first_seq <= g.seq AND a.last_seq > g.seq)) THEN
		RAISE EXCEPTION '%it goes from the front of its stream, with its range', v_gone USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	DELETE FROM batch_range a USING (SELECT r.stream_id, max(r.last_seq) AS seq FROM removed r GROUP BY r.stream_id) g
		WHERE a.stream_id = g.stream_id AND a.first_seq > 1 AND a.first_seq <= g.seq;
	INSERT INTO batch_range AS a (stream_id, first_seq, last_seq, batches, retired) SELECT r.stream_id, 1, max(r.last_seq), 0, true FROM removed r GROUP BY r.stream_id
		ON CONFLICT (stream_id, first_seq) DO UPDATE SET last_seq = excluded.last_seq, batches = 0, hash = NULL, retired = true;
	INSERT INTO stream_anchor AS a SELECT r.stream_id, max(r.last_seq) FROM removed r GROUP BY r.stream_id
		ON CONFLICT (stream_id) DO UPDATE SET seq = greatest(a.seq, excluded.seq);
	INSERT INTO row_journal (relation, operation, keys, hashes) SELECT 'ingest_batch', 'delete', array_agg(r.stream_id || ' ' || r.seq), array_agg(NULL::bytea)
		FROM removed r WHERE r.status <> 'accepted' OR r.quarantine_id IS NOT NULL OR r.decision IS NOT NULL OR r.held_ns IS NOT NULL HAVING count(*) > 0;
	RETURN NULL;
END $$;
CREATE TRIGGER fate_deletes AFTER DELETE ON ingest_batch REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION batches_retire();
CREATE TRIGGER journalled_stays BEFORE TRUNCATE ON ingest_batch FOR EACH STATEMENT EXECUTE FUNCTION journalled_stays();

-- --- what is there ---

-- Batches that are there already are put into ranges by the daemon, a step at a time.
INSERT INTO batch_range (stream_id, first_seq, last_seq, batches, retired) SELECT s.id, 1, s.evidence_seq - 1, 0, true FROM stream s WHERE s.evidence_seq > 1;
INSERT INTO stream_anchor SELECT s.id, s.evidence_seq - 1 FROM stream s WHERE s.evidence_seq > 1;
SELECT journal_table('batch_range', 'stream_id,first_seq', '');
INSERT INTO row_journal (relation, operation, keys, hashes) SELECT 'ingest_batch', 'found', array_agg(x.key), array_agg(x.hash) FROM (
		SELECT b.stream_id || ' ' || b.seq AS key, batch_fate(b.status, b.reason, b.class, b.decision, b.decided_by, b.decided_at, b.decided_why, b.quarantine_id,
			b.held_ns) AS hash, (row_number() OVER () - 1) / 10000 AS part
		FROM ingest_batch b WHERE b.status <> 'accepted' OR b.quarantine_id IS NOT NULL OR b.decision IS NOT NULL OR b.held_ns IS NOT NULL) x
	GROUP BY x.part ORDER BY x.part;
