-- oldest-binary: 0.2.0
-- Functions of quota: the rules of the book and of decisions, exceptions, and how promises were kept.

CREATE FUNCTION quota_never_goes_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION '% never goes back, and nothing is taken out of it', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER quota_book_stays BEFORE DELETE OR TRUNCATE ON quota_book FOR EACH STATEMENT EXECUTE FUNCTION quota_never_goes_back();
CREATE TRIGGER quota_event_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON quota_event
	FOR EACH STATEMENT EXECUTE FUNCTION quota_never_goes_back();
CREATE TRIGGER decision_stays BEFORE DELETE OR TRUNCATE ON decision FOR EACH STATEMENT EXECUTE FUNCTION quota_never_goes_back();
CREATE TRIGGER reclaim_is_final BEFORE UPDATE ON reclaim FOR EACH ROW
	WHEN (OLD.state IN ('returned', 'cancelled') OR NEW.lease_id <> OLD.lease_id OR NEW.changed_seq < OLD.changed_seq)
	EXECUTE FUNCTION quota_never_goes_back();
CREATE TRIGGER decision_is_final BEFORE UPDATE ON decision FOR EACH ROW
	WHEN (OLD.status IN ('ended', 'rejected', 'cancelled', 'expired') OR (OLD.status <> 'waiting' AND NEW.status NOT IN ('admitted', 'confirmed', 'suspect', 'ended'))
		OR NEW.changed_seq < OLD.changed_seq OR NEW.verdict_seq < OLD.verdict_seq
		OR (NEW.key, NEW.request_id, NEW.digest, NEW.workspace, NEW.tenant_id, NEW.workspace_id, NEW.submitted_seq, NEW.submitted_ns, NEW.asked_by, NEW.body::text)
			IS DISTINCT FROM
			(OLD.key, OLD.request_id, OLD.digest, OLD.workspace, OLD.tenant_id, OLD.workspace_id, OLD.submitted_seq, OLD.submitted_ns, OLD.asked_by, OLD.body::text))
	EXECUTE FUNCTION quota_never_goes_back();

CREATE FUNCTION quota_book_is_sound() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	broken text := CASE
		WHEN NOT NEW.one THEN 'there_is_one_book'
		WHEN NOT NEW.seq >= 0 THEN 'events_count_from_1'
		WHEN NOT NEW.at_ns >= 0 THEN 'time_is_not_negative'
		WHEN NOT octet_length(NEW.head) = 32 THEN 'a_hash_has_32_bytes'
		WHEN NOT octet_length(NEW.policy_digest) = 32 THEN 'a_digest_has_32_bytes'
		WHEN NOT NEW.snapshot_seq BETWEEN 0 AND NEW.seq THEN 'a_snapshot_is_of_what_happened'
		WHEN NOT NEW.snapshot_at_ns BETWEEN 0 AND NEW.at_ns THEN 'a_snapshot_is_of_what_happened'
		WHEN TG_OP = 'INSERT' THEN NULL
		WHEN NEW.seq < OLD.seq OR NEW.at_ns < OLD.at_ns OR NEW.snapshot_seq < OLD.snapshot_seq THEN 'the_book_never_goes_back'
		WHEN (NEW.seq = OLD.seq) <> (NEW.head = OLD.head) THEN 'the_head_is_that_of_the_last_event'
	END;
BEGIN
	IF broken IS NOT NULL THEN
		PERFORM refuse_row('quota_book', broken);
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER quota_book_is_sound BEFORE INSERT OR UPDATE ON quota_book FOR EACH ROW EXECUTE FUNCTION quota_book_is_sound();

CREATE FUNCTION decision_is_sound() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	broken text := CASE
		WHEN NOT NEW.request_id ~ '^[A-Za-z0-9][A-Za-z0-9._:-]{0,62}$' THEN 'a_request_has_a_sound_id'
		WHEN NEW.key NOT IN (NEW.request_id, split_part(NEW.workspace, '/', 1) || '/' || NEW.request_id) THEN 'a_key_is_of_its_tenant'
		WHEN NOT octet_length(NEW.digest) = 32 THEN 'a_digest_has_32_bytes'
		WHEN NOT NEW.status IN ('waiting', 'admitted', 'confirmed', 'suspect', 'ended', 'rejected', 'cancelled', 'expired') THEN 'status'
		WHEN NOT NEW.decision IN ('admit', 'borrow', 'reclaim', 'queue', 'reject') THEN 'decision'
		WHEN NOT NEW.would IN ('admit', 'borrow', 'reclaim', 'queue', 'reject') THEN 'would'
		WHEN NOT NEW.rule IN ('valid', 'limit', 'budget', 'ownership', 'available', 'owed', 'borrow', 'own', 'declared') THEN 'rule'
		WHEN NOT NEW.position >= 0 THEN 'a_place_is_not_negative'
		WHEN NOT NEW.asked_by <> '' THEN 'somebody_asked'
		WHEN NOT NEW.verdict_seq >= NEW.submitted_seq THEN 'a_verdict_follows_its_request'
		WHEN NOT NEW.changed_seq >= NEW.verdict_seq THEN 'a_change_follows_its_verdict'
		WHEN NOT NEW.changed_ns >= NEW.submitted_ns THEN 'time_does_not_go_back'
		WHEN NOT NEW.ended_why IN ('returned', 'unconfirmed', 'cancelled', 'expired') THEN 'ended_why'
		WHEN NOT CASE NEW.status WHEN 'waiting' THEN NEW.decision IN ('queue', 'reclaim') WHEN 'rejected' THEN NEW.decision = 'reject'
			WHEN 'cancelled' THEN NEW.decision IN ('queue', 'reclaim') WHEN 'expired' THEN NEW.decision IN ('queue', 'reclaim')
			ELSE NEW.decision IN ('admit', 'borrow') END THEN 'what_was_decided'
		WHEN NOT (NEW.status IN ('admitted', 'confirmed', 'suspect', 'ended')) = (NEW.admitted_ns IS NOT NULL) THEN 'a_lease_was_admitted'
		WHEN NOT (NEW.status NOT IN ('confirmed', 'suspect') OR NEW.confirmed_ns IS NOT NULL) THEN 'a_lease_runs_once_confirmed'
		WHEN NOT (NEW.admitted_ns IS NOT NULL OR num_nonnulls(NEW.confirmed_ns, NEW.seen_ns, NEW.released_ns) = 0) THEN 'only_a_lease_is_confirmed'
		WHEN NOT (NEW.status IN ('ended', 'cancelled', 'expired')) = (NEW.ended_ns IS NOT NULL) THEN 'an_end_has_its_time'
		WHEN NOT (NEW.ended_ns IS NOT NULL) = (NEW.ended_why IS NOT NULL) THEN 'an_end_has_its_reason'
		WHEN NOT (NEW.status = 'waiting' OR NEW.position = 0) THEN 'only_who_waits_has_a_place'
	END;
BEGIN
	IF broken IS NOT NULL THEN
		PERFORM refuse_row('decision', broken);
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER decision_is_sound BEFORE INSERT OR UPDATE ON decision FOR EACH ROW EXECUTE FUNCTION decision_is_sound();

-- --- exceptions ---

CREATE FUNCTION exception_goes_on() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'an exception is not changed or removed, and what is over stays over' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER exception_stays BEFORE DELETE OR TRUNCATE ON exception FOR EACH STATEMENT EXECUTE FUNCTION exception_goes_on();
CREATE TRIGGER exception_is_what_it_was BEFORE UPDATE OF id, tenant_id, workspace_id, cluster_id, model, shared, kind, units, reason, effective, requested_by,
	requested_at ON exception FOR EACH ROW EXECUTE FUNCTION exception_goes_on();
CREATE TRIGGER exception_goes_on BEFORE UPDATE ON exception FOR EACH ROW
	WHEN ((OLD.status IN ('refused', 'revoked', 'ended') AND NEW.status <> OLD.status) OR (OLD.status = 'approved' AND NEW.status IN ('requested', 'refused'))
		OR (OLD.decided_at IS NOT NULL AND (NEW.decided_by, NEW.decided_at, NEW.rule) IS DISTINCT FROM (OLD.decided_by, OLD.decided_at, OLD.rule))
		OR (OLD.begun_seq IS NOT NULL AND NEW.begun_seq IS DISTINCT FROM OLD.begun_seq) OR (OLD.ended_seq IS NOT NULL AND NEW.ended_seq IS DISTINCT FROM OLD.ended_seq))
	EXECUTE FUNCTION exception_goes_on();

CREATE FUNCTION shown(x exception) RETURNS jsonb LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT jsonb_strip_nulls(jsonb_build_object('workspace', (SELECT t.name || '/' || w.name FROM workspace w JOIN tenant t ON t.id = w.tenant_id WHERE w.id = x.workspace_id),
			'gpu_model', x.model, 'kind', x.kind, 'gpus', quantity_text(x.units, '', NULL), 'shared', x.shared, 'from', rfc3339(lower(x.effective)),
			'until', rfc3339(upper(x.effective)), 'status', x.status, 'rule', x.rule));
	END;

-- --- promises ---

-- Promises of a month: those in force at some instant of it until p_at, and what was measured of each while it was.
--  1. an owed request is one that was admitted by the rule owed, and would have been without enforcement too; or one that was not admitted and whose
--     last verdict says that it was owed: it waits, for what it reclaims or for capacity that is down, or it waited until it was cancelled or expired.
--     It is of the month in which it was submitted, and judged by the promise in force then
--  2. it waited until it was admitted or ended, else until p_at; it is late when that is longer than was promised
--  3. delivered is what was covered, lent or unused of the reserved time of days that are folded, each judged by the promise in force when it began;
--     undelivered what was not there; promised the reserved time x what was promised of it, in millionths
--  4. what is shown as promised is the last of the month
CREATE FUNCTION promises_kept(p_from timestamptz, p_until timestamptz, p_at timestamptz) RETURNS TABLE (tenant text, workspace text, data_boundary text, owed_wait_ns bigint,
		owed_requests bigint, owed_late bigint, longest_wait_ns bigint, delivered_millionths bigint, reserved numeric, undelivered numeric, promised numeric, days bigint)
	LANGUAGE sql STABLE
	BEGIN ATOMIC
		WITH promise AS (SELECT * FROM (
				SELECT q.tenant_id, 0 AS workspace_id, q.owed_wait_ns, q.delivered_millionths, q.effective FROM tenant_quota q
				UNION ALL SELECT v.tenant_id, v.id, q.owed_wait_ns, q.delivered_millionths, q.effective FROM workspace_quota q JOIN workspace v ON v.id = q.workspace_id) q
			WHERE q.effective && tstzrange(p_from, least(p_until, p_at), '[]') AND lower(q.effective) < p_until AND num_nonnulls(q.owed_wait_ns, q.delivered_millionths) > 0
		), request AS (SELECT c.tenant_id, c.workspace_id, at_ns(c.submitted_ns) AS at, coalesce(c.admitted_ns, c.ended_ns, ns_of(p_at)) - c.submitted_ns AS waited
			FROM (SELECT DISTINCT p.tenant_id FROM promise p WHERE p.owed_wait_ns IS NOT NULL) t JOIN decision c ON c.tenant_id = t.tenant_id
				AND c.submitted_ns >= ns_of(p_from) AND c.submitted_ns < ns_of(p_until)
			WHERE (c.admitted_ns IS NOT NULL AND c.rule = 'owed' AND c.would = 'admit') OR (c.status IN ('waiting', 'cancelled', 'expired')
				AND (SELECT (convert_from(substring(convert_to(e.outcome, 'UTF8') FROM c.verdict_at + 1 FOR c.verdict_bytes), 'UTF8')::json ->> 'owed')::boolean
					FROM quota_event e WHERE e.seq = c.verdict_seq))
		), wait AS (SELECT p.tenant_id, p.workspace_id, count(*) AS requests, count(*) FILTER (WHERE r.waited > p.owed_wait_ns) AS late, max(r.waited) AS longest
			FROM promise p JOIN request r ON r.tenant_id = p.tenant_id AND p.workspace_id IN (0, r.workspace_id) AND p.effective @> r.at
			WHERE p.owed_wait_ns IS NOT NULL GROUP BY 1, 2
		), delivery AS (SELECT p.tenant_id, p.workspace_id, sum(e.reserved) AS reserved, sum(e.undelivered) AS undelivered,
				sum(e.reserved * p.delivered_millionths) AS promised, count(DISTINCT e.day) AS days
			FROM billing_day b JOIN reserve_day e ON e.day = b.day JOIN workspace v ON v.id = e.workspace_id
				JOIN promise p ON p.tenant_id = v.tenant_id AND p.workspace_id IN (0, v.id) AND p.effective @> b.starts_at
			WHERE b.starts_at >= p_from AND b.starts_at < p_until AND NOT b.dirty AND p.delivered_millionths IS NOT NULL GROUP BY 1, 2
		), shown AS (SELECT DISTINCT ON (p.tenant_id, p.workspace_id) p.* FROM promise p ORDER BY p.tenant_id, p.workspace_id, lower(p.effective) DESC)
		SELECT t.name, coalesce(v.name, ''), t.data_boundary, s.owed_wait_ns, coalesce(w.requests, 0), coalesce(w.late, 0), w.longest, s.delivered_millionths,
				d.reserved, d.undelivered, d.promised, coalesce(d.days, 0)
			FROM shown s JOIN tenants_known(p_at) t ON t.id = s.tenant_id LEFT JOIN workspace v ON v.id = s.workspace_id
				LEFT JOIN wait w ON w.tenant_id = s.tenant_id AND w.workspace_id = s.workspace_id
				LEFT JOIN delivery d ON d.tenant_id = s.tenant_id AND d.workspace_id = s.workspace_id
			ORDER BY t.name COLLATE "C", coalesce(v.name, '') COLLATE "C";
	END;
COMMENT ON FUNCTION promises_kept IS 'The promises of a range, each beside its measurement.';
