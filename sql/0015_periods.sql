-- oldest-binary: 0.1.0
-- Months that close: invoices, documents, corrections.
--
-- A month is open, then in grace, then closed, and never goes back. Closing writes everything here in one transaction, whose last
-- statement makes the month closed: from then on no row of it can be added, changed or removed. What comes later for that month is
-- billed as corrections in the first month that is not closed.

CREATE TABLE period_close (
	month text PRIMARY KEY REFERENCES period,
	closed_at timestamptz NOT NULL,
	actor text NOT NULL CHECK (actor <> ''),
	reason text NOT NULL DEFAULT '' CHECK (octet_length(reason) <= 1000),
	checks jsonb NOT NULL CHECK (jsonb_typeof(checks) = 'array'),
	price_versions text[] NOT NULL,
	input_sha256 bytea NOT NULL CHECK (octet_length(input_sha256) = 32),
	prices_sha256 bytea NOT NULL CHECK (octet_length(prices_sha256) = 32),
	output_sha256 bytea NOT NULL CHECK (octet_length(output_sha256) = 32)
);
COMMENT ON TABLE period_close IS 'Who closed a month, when, why, and what was found before.';
COMMENT ON COLUMN period_close.checks IS 'what stood against closing: each with its number, and the threshold at that time';
COMMENT ON COLUMN period_close.input_sha256 IS 'over the charge rows of all tenants, by name';
COMMENT ON COLUMN period_close.prices_sha256 IS 'over the price books that were in force';
COMMENT ON COLUMN period_close.output_sha256 IS 'over the SHA-256 of all documents, by tenant and format';

-- A number follows the one before it, and a version corrects the one before it: both by foreign key, so that none is left out.
CREATE TABLE invoice (
	number bigint PRIMARY KEY,
	follows bigint GENERATED ALWAYS AS (nullif(number - 1, 0)) STORED REFERENCES invoice,
	tenant_id integer NOT NULL REFERENCES tenant,
	month text NOT NULL REFERENCES period,
	version integer NOT NULL CHECK (version >= 1),
	corrects integer GENERATED ALWAYS AS (nullif(version - 1, 0)) STORED,
	closed_in text NOT NULL REFERENCES period_close DEFERRABLE INITIALLY DEFERRED,
	invoice_id text NOT NULL UNIQUE,
	CHECK (number >= 1),
	CHECK (closed_in >= month),
	UNIQUE (tenant_id, month, version),
	UNIQUE (number, closed_in),
	UNIQUE (tenant_id, month, closed_in),
	FOREIGN KEY (tenant_id, month, corrects) REFERENCES invoice (tenant_id, month, version)
);
COMMENT ON TABLE invoice IS 'A tenant''s month as it was billed, and each set of corrections to it: a document of its own with a number of its own.';
COMMENT ON COLUMN invoice.month IS 'whose usage it is';
COMMENT ON COLUMN invoice.closed_in IS 'the month that was closed when it was issued: that month itself, or of corrections a later one';
COMMENT ON COLUMN invoice.corrects IS 'the version that it corrects; NULL: the first one';
CREATE INDEX invoice_closed_in ON invoice (closed_in);

CREATE TABLE invoice_total (
	number bigint NOT NULL REFERENCES invoice,
	currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
	lines bigint NOT NULL CHECK (lines > 0),
	allocated_gpu_hours numeric NOT NULL,
	list_cost numeric NOT NULL,
	discount numeric NOT NULL,
	rounding numeric NOT NULL,
	billed numeric NOT NULL,
	PRIMARY KEY (number, currency),
	CHECK (list_cost - discount + rounding = billed)
);
COMMENT ON TABLE invoice_total IS 'What the lines of an invoice add up to, per currency.';

CREATE TABLE invoice_line (
	number bigint NOT NULL,
	closed_in text NOT NULL,
	line_id text NOT NULL CHECK (line_id ~ '^[0-9a-f]{32}$'),
	correction_of text CHECK (correction_of ~ '^[0-9a-f]{32}$'),
	kind smallint NOT NULL CHECK (kind >= 0),
	priced boolean NOT NULL,
	currency_scale smallint NOT NULL CHECK (currency_scale BETWEEN 0 AND 18),
	cluster text NOT NULL,
	cost_center text NOT NULL,
	workspace text NOT NULL,
	charge_type text NOT NULL CHECK (charge_type IN ('usage', 'commitment', 'covered', 'credit', 'correction', 'adjustment', 'tax')),
	category text NOT NULL,
	sku text NOT NULL,
	gpu_model text NOT NULL,
	mig_profile text NOT NULL,
	sharing_mode text NOT NULL,
	class text NOT NULL,
	unit text NOT NULL,
	price_version text NOT NULL,
	currency text NOT NULL,
	counterparty text NOT NULL,
	description text NOT NULL,
	allocated_gpu_hours numeric NOT NULL,
	used_gpu_hours numeric NOT NULL,
	idle_gpu_hours numeric NOT NULL,
	unmeasured_gpu_hours numeric NOT NULL,
	gpu_hours numeric NOT NULL,
	quantity numeric NOT NULL,
	unit_price numeric NOT NULL CHECK (unit_price >= 0),
	list_cost numeric NOT NULL,
	discount numeric NOT NULL,
	rounding numeric NOT NULL,
	billed numeric NOT NULL,
	energy_mj numeric NOT NULL,
	PRIMARY KEY (number, line_id),
	FOREIGN KEY (number, closed_in) REFERENCES invoice (number, closed_in),
	FOREIGN KEY (number, currency) REFERENCES invoice_total (number, currency),
	CHECK ((charge_type = 'correction') = (correction_of IS NOT NULL)),
	CHECK (list_cost - discount + rounding = billed)
);
COMMENT ON TABLE invoice_line IS 'Every line of every invoice, exactly.';
COMMENT ON COLUMN invoice_line.correction_of IS 'the line of the invoice''s month that it changes; the amounts are what is more, or less';
COMMENT ON COLUMN invoice_line.kind IS 'enum charge_kind of core/rating.h';

CREATE TABLE invoice_document (
	month text NOT NULL REFERENCES period,
	tenant_id integer REFERENCES tenant,
	format text NOT NULL CHECK (format ~ '^[a-z.]{1,32}$'),
	lines bigint NOT NULL CHECK (lines >= 0),
	plain_bytes bigint NOT NULL CHECK (plain_bytes >= 0),
	sha256 bytea NOT NULL CHECK (octet_length(sha256) = 32),
	gzip bytea NOT NULL
);
ALTER TABLE invoice_document ALTER COLUMN gzip SET STORAGE EXTERNAL;
COMMENT ON TABLE invoice_document IS 'What was exported when a month was closed, byte for byte.';
COMMENT ON COLUMN invoice_document.tenant_id IS 'NULL: the document of all tenants';
COMMENT ON COLUMN invoice_document.sha256 IS 'of the plain bytes';
CREATE UNIQUE INDEX invoice_document_key ON invoice_document (month, format, tenant_id) NULLS NOT DISTINCT;

-- --- nothing of a closed month changes ---

CREATE FUNCTION closed_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'what was billed is final: % is only ever added to, by closing a month', TG_TABLE_NAME
		USING ERRCODE = 'integrity_constraint_violation';
END $$;
-- The month is made closed last, so whoever adds a row afterwards finds it closed.
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

DO $$
DECLARE
	t text[];
BEGIN
	FOREACH t SLICE 1 IN ARRAY ARRAY[['period_close', 'month'], ['invoice', 'closed_in'], ['invoice_line', 'closed_in'],
		['invoice_document', 'month']] LOOP
		EXECUTE format('CREATE TRIGGER closed_is_whole AFTER INSERT ON %I REFERENCING NEW TABLE AS added '
			'FOR EACH STATEMENT EXECUTE FUNCTION closed_is_whole(%L)', t[1], t[2]);
	END LOOP;
	FOREACH t SLICE 1 IN ARRAY ARRAY[['period_close'], ['invoice'], ['invoice_total'], ['invoice_line'], ['invoice_document']] LOOP
		EXECUTE format('CREATE TRIGGER closed_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON %I '
			'FOR EACH STATEMENT EXECUTE FUNCTION closed_is_final()', t[1]);
	END LOOP;
END $$;

-- A total without lines, or with others than it says, cannot be committed with a close (rule 4).
--  1. a month's bounds stay, and its status goes forward only; a closed one stays as it is
--  2. a month is closed with its record in period_close, and by nothing else
--  3. months are closed in order
--  4. the lines of its invoices add up to their totals
CREATE FUNCTION period_goes_forward() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	states constant text[] := ARRAY['open', 'grace', 'closed'];
	found text;
BEGIN
	IF OLD.status = 'closed' OR (OLD.month, OLD.starts_at, OLD.ends_at) IS DISTINCT FROM (NEW.month, NEW.starts_at, NEW.ends_at)
		OR array_position(states, NEW.status) < array_position(states, OLD.status) THEN
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
CREATE FUNCTION period_begins_open() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'a period begins open, and a closed one stays' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER period_begins_open BEFORE INSERT ON period FOR EACH ROW WHEN (NEW.status <> 'open') EXECUTE FUNCTION period_begins_open();
CREATE TRIGGER period_stays BEFORE DELETE ON period FOR EACH ROW WHEN (OLD.status = 'closed') EXECUTE FUNCTION period_begins_open();
CREATE TRIGGER period_stays_whole BEFORE TRUNCATE ON period FOR EACH STATEMENT EXECUTE FUNCTION period_begins_open();
ALTER TABLE period ADD CONSTRAINT closed_has_a_time CHECK ((status = 'closed') = (closed_at IS NOT NULL));

-- --- what comes for a closed month ---

-- Rows are added by whoever changes something of a month that is over, and removed by the close that has billed it: a close removes
-- those that it saw. So a change that comes while a month is being closed is not lost, whoever is first.
CREATE TABLE late_change (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	month text NOT NULL REFERENCES period,
	at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX late_change_month ON late_change (month);
COMMENT ON TABLE late_change IS 'A month that is over, and of which something has changed that is not billed yet. A closed one is computed again to see '
	'the difference.';

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
