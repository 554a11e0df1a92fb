-- oldest-binary: 0.1.0
-- Who asked for a decision, for whom, when and for what never changes: promises are judged by it, and replies repeat it.

DROP TRIGGER decision_is_final ON decision;
CREATE TRIGGER decision_is_final BEFORE UPDATE ON decision FOR EACH ROW
	WHEN (OLD.status IN ('ended', 'rejected', 'cancelled', 'expired') OR (OLD.status <> 'waiting' AND NEW.status NOT IN ('admitted', 'confirmed', 'suspect', 'ended'))
		OR NEW.changed_seq < OLD.changed_seq OR NEW.verdict_seq < OLD.verdict_seq
		OR (NEW.key, NEW.request_id, NEW.digest, NEW.workspace, NEW.tenant_id, NEW.workspace_id, NEW.submitted_seq, NEW.submitted_ns, NEW.asked_by, NEW.body::text)
			IS DISTINCT FROM
			(OLD.key, OLD.request_id, OLD.digest, OLD.workspace, OLD.tenant_id, OLD.workspace_id, OLD.submitted_seq, OLD.submitted_ns, OLD.asked_by, OLD.body::text))
	EXECUTE FUNCTION quota_never_goes_back();
