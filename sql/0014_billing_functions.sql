-- oldest-binary: 0.2.0
-- Functions of billing: what a month's status allows, late changes of closed months, one-off charges, requests to close a month.

CREATE FUNCTION make_periods(p_from timestamptz, p_until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF NOT isfinite(p_from) OR NOT isfinite(p_until) OR p_until - p_from > interval '3660 days' OR p_from < '2000-01-01' OR p_until > '2100-01-01' THEN
		PERFORM tollgate.refuse_bounds('make_periods', format('%s to %s is not within 2000 to 2100, or more than ten years', p_from, p_until));
	END IF;
	INSERT INTO tollgate.period (month, starts_at, ends_at)
		SELECT to_char(m, 'YYYY-MM'), m AT TIME ZONE l.zone, (m + interval '1 month') AT TIME ZONE l.zone
		FROM tollgate.ledger l, generate_series(date_trunc('month', p_from AT TIME ZONE l.zone),
			(p_until AT TIME ZONE l.zone) - interval '1 microsecond', interval '1 month') m
		ON CONFLICT DO NOTHING;
END $$;
COMMENT ON FUNCTION make_periods IS 'Makes the billing months that the range touches.';

CREATE FUNCTION period_begins_open() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'a period begins open, and a closed one stays' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER period_begins_open BEFORE INSERT ON period FOR EACH ROW WHEN (NEW.status <> 'open') EXECUTE FUNCTION period_begins_open();
CREATE TRIGGER period_stays BEFORE DELETE ON period FOR EACH ROW WHEN (OLD.status = 'closed') EXECUTE FUNCTION period_begins_open();
CREATE TRIGGER period_stays_whole BEFORE TRUNCATE ON period FOR EACH STATEMENT EXECUTE FUNCTION period_begins_open();

-- Rules of a month:
--  1. its bounds stay, and its status goes forward only; a closed month stays as it is
--  2. a month is closed with its record in period_close, and by nothing else
--  3. months are closed in order
--  4. the lines of its invoices add up to their totals: a total without lines, or with others, cannot be committed with a close
CREATE FUNCTION period_goes_forward() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	found text;
BEGIN
	IF OLD.status = 'closed' OR (OLD.month, OLD.starts_at, OLD.ends_at) IS DISTINCT FROM (NEW.month, NEW.starts_at, NEW.ends_at)
		OR NEW.status < OLD.status THEN
		RAISE EXCEPTION 'period % is %: a month only goes forward, and its bounds stay', OLD.month, OLD.status
			USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	IF NEW.status <> 'closed' THEN
		RETURN NEW;
	END IF;
	IF NOT EXISTS (SELECT FROM tollgate.period_close c WHERE c.month = NEW.month AND c.closed_at = NEW.closed_at) THEN
		RAISE EXCEPTION 'period % has no record of its closing', NEW.month USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	SELECT min(p.month) INTO found FROM tollgate.period p WHERE p.starts_at < NEW.starts_at AND p.status <> 'closed';
	IF found IS NOT NULL THEN
		RAISE EXCEPTION 'period % cannot be closed before %', NEW.month, found USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	SELECT min(i.invoice_id) INTO found FROM tollgate.invoice i
		LEFT JOIN tollgate.invoice_total t ON t.number = i.number
		LEFT JOIN (SELECT l.number, l.currency, count(*) AS lines, sum(l.allocated_gpu_hours) AS hours, sum(l.list_cost) AS list_cost,
				sum(l.discount) AS discount, sum(l.rounding) AS rounding, sum(l.billed) AS billed
			FROM tollgate.invoice_line l WHERE l.closed_in = NEW.month GROUP BY 1, 2) s ON s.number = t.number AND s.currency = t.currency
		WHERE i.closed_in = NEW.month AND (t.lines, t.allocated_gpu_hours, t.list_cost, t.discount, t.rounding, t.billed)
			IS DISTINCT FROM (s.lines, s.hours, s.list_cost, s.discount, s.rounding, s.billed);
	IF found IS NOT NULL THEN
		RAISE EXCEPTION 'the lines of invoice % do not add up to its total', found USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER period_goes_forward BEFORE UPDATE ON period FOR EACH ROW EXECUTE FUNCTION period_goes_forward();

CREATE FUNCTION closed_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'what was billed is final: % is only ever added to, by closing a month', TG_TABLE_NAME
		USING ERRCODE = 'integrity_constraint_violation';
END $$;

-- The month is made closed last, so a session that adds a row afterwards finds it closed.
CREATE FUNCTION closed_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	found text;
BEGIN
	EXECUTE format('SELECT min(p.month) FROM added a JOIN tollgate.period p ON p.month = a.%I WHERE p.status = ''closed''', TG_ARGV[0])
		INTO found;
	IF found IS NOT NULL THEN
		RAISE EXCEPTION 'period % is closed: nothing can be added to it', found USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	RETURN NULL;
END $$;

CREATE TRIGGER closed_is_whole AFTER INSERT ON period_close REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION closed_is_whole('month');
CREATE TRIGGER closed_is_whole AFTER INSERT ON invoice REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION closed_is_whole('closed_in');
CREATE TRIGGER closed_is_whole AFTER INSERT ON invoice_line REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION closed_is_whole('closed_in');
CREATE TRIGGER closed_is_whole AFTER INSERT ON invoice_document REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION closed_is_whole('month');
CREATE TRIGGER closed_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON period_close FOR EACH STATEMENT EXECUTE FUNCTION closed_is_final();
CREATE TRIGGER closed_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON invoice FOR EACH STATEMENT EXECUTE FUNCTION closed_is_final();
CREATE TRIGGER closed_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON invoice_total FOR EACH STATEMENT EXECUTE FUNCTION closed_is_final();
CREATE TRIGGER closed_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON invoice_line FOR EACH STATEMENT EXECUTE FUNCTION closed_is_final();
CREATE TRIGGER closed_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON invoice_document FOR EACH STATEMENT EXECUTE FUNCTION closed_is_final();

-- --- changes of closed months ---

CREATE FUNCTION period_is_late(p_from timestamptz, p_until timestamptz) RETURNS void LANGUAGE sql VOLATILE
	BEGIN ATOMIC
		INSERT INTO late_change (month) SELECT p.month FROM period p
		WHERE p.starts_at < p_until AND p.ends_at > p_from AND (p.status <> 'open' OR p.ends_at <= now());
	END;

CREATE FUNCTION day_is_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM tollgate.period_is_late(NEW.starts_at, NEW.ends_at);
	RETURN NULL;
END $$;
CREATE TRIGGER day_is_late AFTER INSERT ON billing_day FOR EACH ROW EXECUTE FUNCTION day_is_late();
CREATE TRIGGER day_is_late_again AFTER UPDATE OF dirty ON billing_day FOR EACH ROW WHEN (NEW.dirty) EXECUTE FUNCTION day_is_late();

CREATE FUNCTION events_are_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM tollgate.period_is_late(tollgate.at_ns(m.time_ns), tollgate.at_ns(m.time_ns) + interval '1 microsecond')
		FROM (SELECT min(a.time_ns) AS time_ns FROM added a JOIN tollgate.period p
			ON a.time_ns >= tollgate.ns_of(p.starts_at) AND a.time_ns < tollgate.ns_of(p.ends_at) GROUP BY p.month) m;
	RETURN NULL;
END $$;
CREATE TRIGGER events_are_late AFTER INSERT ON meter_event REFERENCING NEW TABLE AS added
	FOR EACH STATEMENT EXECUTE FUNCTION events_are_late();

-- --- one-off charges and credits ---

CREATE FUNCTION adjustment_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'one-off charges and credits are never changed: a reversal is a new row'
		USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER adjustment_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON adjustment
	FOR EACH STATEMENT EXECUTE FUNCTION adjustment_is_final();
CREATE TRIGGER adjustment_approval_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON adjustment_approval
	FOR EACH STATEMENT EXECUTE FUNCTION adjustment_is_final();

-- The lock makes a close of the month wait for this row, or refuses this row after the close.
CREATE FUNCTION adjustment_month_is_open() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	v_month text;
	v_status text;
BEGIN
	IF TG_TABLE_NAME = 'adjustment' THEN
		v_month := NEW.period;
	ELSE
		SELECT a.period INTO v_month FROM adjustment a WHERE a.id = NEW.adjustment_id;
	END IF;
	SELECT p.status INTO v_status FROM period p WHERE p.month = v_month FOR SHARE;
	IF v_status = 'closed' THEN
		RAISE EXCEPTION 'period % is closed: a one-off charge or credit goes into one that is open', v_month
			USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER adjustment_month_is_open BEFORE INSERT ON adjustment FOR EACH ROW EXECUTE FUNCTION adjustment_month_is_open();
CREATE TRIGGER adjustment_month_is_open BEFORE INSERT ON adjustment_approval FOR EACH ROW EXECUTE FUNCTION adjustment_month_is_open();

-- --- the closing of a month ---

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
