-- oldest-binary: 0.2.0
-- Functions of usage: partitions, quarantine, evidence, and views of the present state of nodes.
--
-- Rules of evidence:
--  1. what was received of a batch (number, time, records, SHA-256) never changes. Ranges of a stream's batches are hashed into the journal, after the push and beside it
--  2. the decision about a batch changes while it is in quarantine. Each change of a batch that is not simply accepted has its own entry in the journal
--  3. an accepted or released batch stays so
--  4. batches are removed from the front of their stream, in whole ranges, once the ledger has given up their time; one row says how far

CREATE FUNCTION sharing_name(sharing smallint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN coalesce((ARRAY['exclusive', 'mig', 'mps', 'timeslice', 'plain'])[sharing], '');

CREATE FUNCTION method_name(method smallint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN coalesce((ARRAY['none', 'measured', 'estimated', 'reserved'])[method + 1], '');

-- --- partitions of records ---

CREATE FUNCTION partition_name(p_day bigint) RETURNS text LANGUAGE sql STABLE STRICT
	RETURN 'usage_interval_' || to_char(at_ns(p_day * 86400000000000) AT TIME ZONE 'UTC', 'YYYYMMDD');
COMMENT ON FUNCTION partition_name IS 'of the records of a UTC day, counted from 1970';

-- The bounds keep callers from filling the catalogue. Whether another session has made a partition meanwhile is read from pg_class: to_regclass() may remember that there was
-- none, because waiting for an advisory lock does not make a session read what others have committed.
CREATE FUNCTION make_partitions(p_from_ns bigint, p_until_ns bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
	day_ns constant bigint := 86400000000000;
	first_day constant bigint := date '2020-01-01' - date '1970-01-01';
	last_day constant bigint := date '2100-01-01' - date '1970-01-01';
	days_at_once constant bigint := 100;
	made integer := 0;
	name text;
BEGIN
	IF p_from_ns / day_ns < first_day OR p_until_ns / day_ns > last_day OR p_until_ns / day_ns - p_from_ns / day_ns > days_at_once THEN
		PERFORM tollgate.refuse_bounds('make_partitions', format('days %s to %s are not within 2020 to 2100, or more than %s',
			p_from_ns / day_ns, p_until_ns / day_ns, days_at_once));
	END IF;
	-- From here on no day is dropped: whoever retires one waits for this transaction, or this one for it, and sees which days are gone.
	LOCK TABLE tollgate.usage_interval IN ROW EXCLUSIVE MODE;
	FOR day IN p_from_ns / day_ns .. (p_until_ns - 1) / day_ns LOOP
		name := tollgate.partition_name(day);
		CONTINUE WHEN to_regclass('tollgate.' || name) IS NOT NULL;
		PERFORM pg_advisory_xact_lock(hashtextextended('tollgate.' || name, 0));
		CONTINUE WHEN EXISTS (SELECT FROM pg_class c WHERE c.relname = name AND c.relnamespace = 'tollgate'::regnamespace);
		-- Made apart and attached, because PARTITION OF would stop all writers for as long as this transaction lasts.
		EXECUTE format('CREATE TABLE tollgate.%I (LIKE tollgate.usage_interval INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
		EXECUTE format('ALTER TABLE tollgate.usage_interval ATTACH PARTITION tollgate.%I FOR VALUES FROM (%s) TO (%s)',
			name, day * day_ns, (day + 1) * day_ns);
		made := made + 1;
	END LOOP;
	RETURN made;
END $$;
COMMENT ON FUNCTION make_partitions IS 'Makes the missing day partitions of usage_interval; safe in several sessions at once.';

-- The records of a day are dropped when every hour and day made of them is sealed, clean and folded, and some node has accounts beyond that day. The lock waits for
-- sessions that write records at this moment, at most lock_timeout; what they wrote has made its hour dirty. False: not now.
CREATE FUNCTION retire_intervals(p_day bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	day_ns constant bigint := 86400000000000;
	hours tstzrange := tstzrange(tollgate.at_ns(p_day * day_ns) - interval '1 hour', tollgate.at_ns((p_day + 1) * day_ns), '()');
BEGIN
	IF NOT EXISTS (SELECT FROM tollgate.node n WHERE n.covered_until_ns >= (p_day + 1) * day_ns) THEN
		PERFORM tollgate.refuse_bounds('retire_intervals', format('no node has come past day %s', p_day));
	END IF;
	UPDATE tollgate.node_hour h SET retired = true WHERE h.hour > lower(hours) AND h.hour < upper(hours)
		AND h.sealed_at IS NOT NULL AND NOT h.dirty AND NOT h.retired;
	LOCK TABLE tollgate.usage_interval IN ACCESS EXCLUSIVE MODE;
	IF EXISTS (SELECT FROM tollgate.node_hour h WHERE h.hour > lower(hours) AND h.hour < upper(hours) AND (h.dirty OR NOT h.retired))
		OR EXISTS (SELECT FROM tollgate.billing_day b WHERE tstzrange(b.starts_at, b.ends_at) && hours AND b.dirty) THEN
		RETURN false;
	END IF;
	EXECUTE format('DROP TABLE tollgate.%I', tollgate.partition_name(p_day));
	RETURN true;
END $$;
COMMENT ON FUNCTION retire_intervals IS 'Drops the records of a UTC day (counted from 1970) if nothing needs them. To be rolled back when it says false.';

-- --- quarantine ---

CREATE FUNCTION released_stays_released() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'a batch that was released stays released' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER released_stays_released BEFORE UPDATE OF status, decision, decided_by, decided_at, decided_why ON ingest_batch
	FOR EACH ROW WHEN (OLD.decision = 'released') EXECUTE FUNCTION released_stays_released();
CREATE TRIGGER released_stays_released BEFORE UPDATE ON batch_set_aside
	FOR EACH ROW WHEN (OLD.decision = 'released') EXECUTE FUNCTION released_stays_released();

CREATE VIEW quarantine AS
	SELECT b.quarantine_id AS id, n.name AS node, b.stream_id, s.epoch, b.seq, b.last_seq, '' AS gpu, coalesce(b.class, '') AS class, b.reason,
		b.from_ns, b.to_ns, b.records, b.received_at, b.decision, b.decided_by, b.decided_at, b.decided_why
	FROM ingest_batch b JOIN stream s ON s.id = b.stream_id JOIN node n ON n.id = s.node_id WHERE b.quarantine_id IS NOT NULL
	UNION ALL
	SELECT a.quarantine_id, n.name, a.stream_id, s.epoch, a.seq, a.seq, a.gpu, a.class, a.reason, a.from_ns, a.to_ns, a.records, b.received_at,
		a.decision, a.decided_by, a.decided_at, a.decided_why
	FROM batch_set_aside a JOIN ingest_batch b ON b.stream_id = a.stream_id AND b.seq = a.seq JOIN stream s ON s.id = a.stream_id
		JOIN node n ON n.id = s.node_id;
COMMENT ON VIEW quarantine IS 'Batches that were refused, and GPUs whose records in an accepted batch were set aside (gpu is not empty).';

-- --- evidence ---

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

CREATE FUNCTION batch_fate(p_status text, p_reason text, p_class text, p_decision text, p_by text, p_at timestamptz, p_why text, p_quarantine bigint,
		p_held_ns bigint) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN sha256(convert_to(audit_field(p_status) || audit_field(p_reason) || audit_field(p_class) || audit_field(p_decision) || audit_field(p_by)
		|| audit_field(ns_of(p_at)::text) || audit_field(p_why) || audit_field(p_quarantine::text) || audit_field(p_held_ns::text), 'UTF8'));

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

-- Evidence is given up to the end of a closed month at most: what is not closed yet is proved first.
CREATE FUNCTION evidence_outlives_open_months() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM tollgate.period p WHERE ns_of(p.ends_at) = NEW.evidence_from_ns AND p.status = 'closed'
		AND NOT EXISTS (SELECT FROM tollgate.period o WHERE o.starts_at < p.starts_at AND o.status <> 'closed')) THEN
		RAISE EXCEPTION 'batches are given up to the end of a closed month, and not to %', rfc3339(at_ns(NEW.evidence_from_ns))
			USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER evidence_outlives_open_months BEFORE UPDATE OF evidence_from_ns ON ledger FOR EACH ROW
	EXECUTE FUNCTION evidence_outlives_open_months();

-- --- the present state of nodes ---

-- Two intervals may be lost on the way.
CREATE FUNCTION is_silent(received_at timestamptz, interval_ns bigint) RETURNS boolean
	LANGUAGE sql STABLE PARALLEL SAFE
	RETURN coalesce(received_at + interval_ns / 1000 * interval '3 microseconds' < now(), true);
COMMENT ON FUNCTION is_silent IS 'no status arrived for three intervals, or ever';

-- A GPU is shown by the node that has it in service; until any node has, by every node that reports it.
CREATE VIEW live_gpu AS
	SELECT s.node_id, g.uuid, g.model, g.short_model, g.index, g.healthy, g.reason, g.xid, g.sharing, g.replicas
	FROM node_status s
	CROSS JOIN LATERAL jsonb_to_recordset(s.gpus) AS g(uuid text, model text, short_model text, index integer, healthy boolean,
		reason text, xid integer, sharing text, replicas integer)
	LEFT JOIN gpu_now v ON v.uuid = g.uuid AND v.node_id <> s.node_id
	WHERE v.uuid IS NULL;
COMMENT ON VIEW live_gpu IS 'The GPUs that each node reports and their health, without those in service on another node. is_silent() tells whether the node reports at all.';

CREATE VIEW live_instance AS
	SELECT s.node_id, i.gpu, i.uuid, i.profile, i.gi, i.ci, i.units
	FROM node_status s
	CROSS JOIN LATERAL jsonb_to_recordset(s.instances) AS i(gpu text, uuid text, profile text, gi integer, ci integer, units integer)
	LEFT JOIN gpu_now v ON v.uuid = i.gpu AND v.node_id <> s.node_id
	WHERE v.uuid IS NULL;
COMMENT ON VIEW live_instance IS 'How partitioned GPUs are cut now; gpu is the UUID.';

CREATE VIEW live_holder AS
	SELECT s.node_id, h.gpu, h.device, h.replica, h.kind, h.namespace, h.pod, h.pod_uid, h.container, h.slurm_job, h.slurm_account,
		h.user_name, h.uid, h.allocated, h.holds, h.active, k.id AS holder_id, a.workspace_id
	FROM node_status s
	CROSS JOIN LATERAL (SELECT ARRAY(SELECT z.id FROM stream z WHERE z.node_id = s.node_id ORDER BY z.id DESC LIMIT 4) AS ids) r
	CROSS JOIN LATERAL jsonb_to_recordset(s.holders) AS h(gpu text, device text, replica integer, kind smallint, namespace text, pod text,
		pod_uid text, container text, slurm_job text, slurm_account text, user_name text, uid bigint, allocated boolean, holds boolean,
		active boolean)
	LEFT JOIN gpu_now v ON v.uuid = h.gpu AND v.node_id <> s.node_id
	LEFT JOIN LATERAL (SELECT x.id FROM holder x JOIN stream_holder y ON y.holder_id = x.id AND y.stream_id = ANY (r.ids)
		WHERE x.kind = h.kind AND x.pod_uid = h.pod_uid AND x.slurm_job = h.slurm_job
			AND x.user_name = h.user_name AND x.namespace = h.namespace AND x.pod = h.pod
			AND x.container = h.container AND x.slurm_account = h.slurm_account AND x.uid = h.uid
		ORDER BY y.stream_id DESC, y.local_id DESC LIMIT 1) k ON true
	LEFT JOIN holder_attribution a ON a.holder_id = k.id AND a.effective @> now()
	WHERE v.uuid IS NULL;
COMMENT ON VIEW live_holder IS 'The workloads on each GPU or instance now, on GPUs that the node may report. holds: the time counts as held; else the device is held by another workload.';

-- For quota, and for what a node may say of a GPU:
--  1. a GPU in service is on the node that has it in service, with the ledger's model, whichever other node shows it
--  2. a GPU that no node has in service is on the node that shows it, if exactly one approved node does and the policy declares no other model for that node
CREATE VIEW gpu_place AS
	SELECT s.node_id, s.uuid, s.short_model AS model, true AS in_service FROM gpu_now s
	UNION ALL
	SELECT min(l.node_id), l.uuid, min(l.short_model), false
	FROM live_gpu l JOIN node n ON n.id = l.node_id AND n.approved_at IS NOT NULL
	WHERE NOT EXISTS (SELECT FROM gpu g JOIN gpu_service v ON v.gpu_id = g.id AND v.until_ns IS NULL WHERE g.uuid = l.uuid)
		AND (l.short_model = '' OR NOT EXISTS (SELECT FROM node_declared d WHERE d.node_id = l.node_id AND d.effective @> now())
			OR EXISTS (SELECT FROM node_declared d WHERE d.node_id = l.node_id AND d.effective @> now() AND d.model = l.short_model))
	GROUP BY l.uuid HAVING count(*) = 1;
COMMENT ON VIEW gpu_place IS 'Every GPU that is counted, on one node: where it is in service, else where alone it is shown.';

-- Every GPU in service once, so that the states add up to the inventory.
--  1. what is retired is not counted
--  2. declared in maintenance, the node or the GPU: down
--  3. the node is silent, or does not show the GPU: unknown
--  4. else as the node says: healthy or down
CREATE VIEW capacity AS
	SELECT v.gpu_id, v.node_id, n.cluster_id, o.tenant_id, g.uuid, g.short_model,
		CASE WHEN coalesce(m.maintenance, false) THEN 'down'
			WHEN l.uuid IS NULL OR is_silent(s.received_at, s.interval_ns) THEN 'unknown'
			WHEN l.healthy THEN 'healthy' ELSE 'down' END AS state
	FROM gpu_service v
	JOIN gpu g ON g.id = v.gpu_id
	JOIN node n ON n.id = v.node_id
	LEFT JOIN node_owner o ON o.node_id = n.id AND o.effective @> now()
	LEFT JOIN node_status s ON s.node_id = n.id
	LEFT JOIN live_gpu l ON l.node_id = n.id AND l.uuid = g.uuid
	LEFT JOIN LATERAL (SELECT bool_or(x.state = 'retired') AS retired, bool_or(x.state = 'maintenance') AS maintenance
		FROM node_state x WHERE (x.node_id = n.id OR x.gpu_id = g.id) AND x.effective @> now()) m ON true
	WHERE v.until_ns IS NULL AND NOT coalesce(m.retired, false);
COMMENT ON VIEW capacity IS 'Each GPU in service and whether it can be used now: healthy, down or unknown.';

-- Critical errors that a status tells:
--  1. of GPUs that are in service on the reporting node
--  2. from when they are in service there, at most 45 days old and at most five minutes ahead, as records are
--  3. of one kind at most one a minute, of one GPU at most sixty in the hour before it
-- The same when it runs twice.
CREATE FUNCTION xids_told(p_node text, p_gpus jsonb, p_now_ns bigint) RETURNS void LANGUAGE sql VOLATILE
	BEGIN ATOMIC
		INSERT INTO gpu_xid (gpu_id, at_ns, xid) SELECT v.gpu_id, x.xid_at, x.xid
			FROM jsonb_to_recordset(p_gpus) AS x(uuid text, xid integer, xid_at bigint)
				JOIN gpu_now v ON v.uuid = x.uuid JOIN node n ON n.id = v.node_id AND n.name = p_node AND n.approved_at IS NOT NULL
			WHERE x.xid > 0 AND x.xid_at >= greatest(v.from_ns, p_now_ns - 3888000000000000) AND x.xid_at <= p_now_ns + 300000000000
				AND NOT EXISTS (SELECT FROM gpu_xid o WHERE o.gpu_id = v.gpu_id AND o.xid = x.xid AND o.at_ns > x.xid_at - 60000000000 AND o.at_ns < x.xid_at + 60000000000)
				AND (SELECT count(*) FROM gpu_xid o WHERE o.gpu_id = v.gpu_id AND o.at_ns > x.xid_at - 3600000000000 AND o.at_ns <= x.xid_at) < 60
			ON CONFLICT DO NOTHING;
	END;
