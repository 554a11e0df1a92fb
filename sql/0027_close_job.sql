-- oldest-binary: 0.1.0
-- Closing a month is a job: asked for by a request, done by any replica, resumed by another one when that dies.
--
-- What was asked for and how it ended is in close_job, how far it has come in close_progress: the month is written in one transaction of one snapshot, which
-- could not change a row that others change meanwhile. The daemon's login asks and cancels through functions, so that it can neither skip a stage nor end a job.

CREATE TABLE close_job (
	month text PRIMARY KEY REFERENCES period,
	state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'closed', 'refused', 'failed', 'cancelled')),
	stage text NOT NULL DEFAULT 'prove' CHECK (stage IN ('prove', 'write', 'done')),
	actor text NOT NULL CHECK (actor <> ''),
	reason text NOT NULL CHECK (octet_length(reason) <= 1000),
	organisation text NOT NULL CHECK (octet_length(organisation) <= 4096),
	provider text NOT NULL CHECK (octet_length(provider) <= 4096),
	unknown_ppm bigint NOT NULL CHECK (unknown_ppm BETWEEN 0 AND 1000000),
	unattributed_ppm bigint NOT NULL CHECK (unattributed_ppm BETWEEN 0 AND 1000000),
	grace_ns bigint NOT NULL CHECK (grace_ns >= 0),
	asked_at timestamptz NOT NULL DEFAULT now(),
	ended_at timestamptz,
	attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
	proof jsonb CHECK (jsonb_typeof(proof) = 'object'),
	differences jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(differences) = 'array'),
	error text NOT NULL DEFAULT '',
	closed jsonb CHECK (jsonb_typeof(closed) = 'object'),
	CHECK ((state = 'running') = (ended_at IS NULL)),
	CHECK ((state = 'closed') = (closed IS NOT NULL))
);
COMMENT ON TABLE close_job IS 'The last time that somebody asked for a month to be closed, and what came of it.';
COMMENT ON COLUMN close_job.stage IS 'prove: the month from batches to charges; write: invoices and documents, in one transaction';
COMMENT ON COLUMN close_job.attempts IS 'how often a replica took it up: more than once when one died, or lost the database';
COMMENT ON COLUMN close_job.proof IS 'what was looked at, and how many differences there were';
COMMENT ON COLUMN close_job.closed IS 'as the audit log has it';

CREATE TABLE close_progress (
	month text PRIMARY KEY REFERENCES close_job,
	step text NOT NULL,
	done bigint NOT NULL CHECK (done >= 0),
	total bigint NOT NULL CHECK (total >= 0),
	at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE close_progress IS 'How far the stage of a job has come.';

-- False: there is one that runs. One that ended otherwise than closed is replaced: what became of it is in the audit log.
CREATE FUNCTION close_request(p_month text, p_actor text, p_reason text, p_organisation text, p_provider text, p_unknown_ppm bigint, p_unattributed_ppm bigint,
	p_grace_ns bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM tollgate.period p WHERE p.month = p_month AND p.status <> 'closed' FOR SHARE;
	IF NOT FOUND THEN
		PERFORM tollgate.refuse_bounds('close_request', format('there is no month %s that is not closed', p_month));
	END IF;
	INSERT INTO tollgate.close_job AS j (month, actor, reason, organisation, provider, unknown_ppm, unattributed_ppm, grace_ns)
		VALUES (p_month, p_actor, p_reason, p_organisation, p_provider, p_unknown_ppm, p_unattributed_ppm, p_grace_ns)
		ON CONFLICT (month) DO UPDATE SET state = 'running', stage = 'prove', actor = excluded.actor, reason = excluded.reason,
			organisation = excluded.organisation, provider = excluded.provider, unknown_ppm = excluded.unknown_ppm,
			unattributed_ppm = excluded.unattributed_ppm, grace_ns = excluded.grace_ns, asked_at = now(), ended_at = NULL, attempts = 0, proof = NULL,
			differences = '[]', error = ''
		WHERE j.state NOT IN ('running', 'closed');
	IF FOUND THEN
		DELETE FROM tollgate.close_progress p WHERE p.month = p_month;
		RETURN true;
	END IF;
	RETURN false;
END $$;

-- False: none runs. The transaction that writes the month fails where it would make it closed.
CREATE FUNCTION close_cancel(p_month text, p_actor text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	UPDATE tollgate.close_job j SET state = 'cancelled', ended_at = now(), error = 'cancelled by ' || p_actor WHERE j.month = p_month AND j.state = 'running';
	IF FOUND THEN
		INSERT INTO tollgate.audit_log (actor, action, subject) VALUES (p_actor, 'period.close-cancelled', 'period ' || p_month);
	END IF;
	RETURN FOUND;
END $$;

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
