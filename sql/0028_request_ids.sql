-- oldest-binary: 0.1.0
-- A request_id is its tenant's own: two tenants may use the same one, and neither learns of it.
--
-- The engine, its log, reclaims and idle leases know a request by its key, which is TENANT/REQUEST_ID. Requests from before this migration keep the bare
-- request_id as their key: the log that made them is not rewritten. A bare id has no slash, so the two kinds never meet.

ALTER TABLE decision ADD COLUMN key text;
ALTER TABLE decision DISABLE TRIGGER USER;
UPDATE decision SET key = request_id;
ALTER TABLE decision ENABLE TRIGGER USER;
ALTER TABLE decision ALTER COLUMN key SET NOT NULL;
COMMENT ON COLUMN decision.key IS 'by which the engine and its log know it: TENANT/REQUEST_ID, or the bare request_id of old ones';
COMMENT ON COLUMN decision.request_id IS 'as its tenant chose it; unique in the tenant whose workspace it names';

ALTER TABLE reclaim DROP CONSTRAINT reclaim_lease_id_fkey;
ALTER TABLE quota_idle DROP CONSTRAINT quota_idle_lease_id_fkey;
ALTER TABLE decision DROP CONSTRAINT decision_pkey, ADD PRIMARY KEY (key);
ALTER TABLE reclaim ADD FOREIGN KEY (lease_id) REFERENCES decision;
ALTER TABLE quota_idle ADD FOREIGN KEY (lease_id) REFERENCES decision;
CREATE UNIQUE INDEX decision_of_namespace ON decision (request_id, split_part(workspace, '/', 1));

DROP TRIGGER decision_is_final ON decision;
CREATE TRIGGER decision_is_final BEFORE UPDATE ON decision FOR EACH ROW
	WHEN (OLD.status IN ('ended', 'rejected', 'cancelled', 'expired') OR (OLD.status <> 'waiting' AND NEW.status NOT IN ('admitted', 'confirmed', 'suspect', 'ended'))
		OR NEW.changed_seq < OLD.changed_seq OR (NEW.key, NEW.request_id, NEW.digest, NEW.workspace, NEW.submitted_seq) IS DISTINCT FROM
			(OLD.key, OLD.request_id, OLD.digest, OLD.workspace, OLD.submitted_seq))
	EXECUTE FUNCTION quota_never_goes_back();

CREATE OR REPLACE FUNCTION decision_is_sound() RETURNS trigger LANGUAGE plpgsql AS $$
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
