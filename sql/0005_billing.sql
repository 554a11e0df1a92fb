-- oldest-binary: 0.2.0
-- Billing: months, invoices, documents, corrections, one-off charges and credits, and the job that closes a month.
--
-- A month is open, then in grace, then closed, and never goes back. Closing writes everything in one transaction, whose last statement makes the month closed:
-- from then on no row of the month can be added, changed or removed. Later changes of that month are billed as corrections in the first month that is not closed.
-- Any replica runs the closing job and resumes it when another one died. close_job has the request and the result; close_progress has the progress, because the
-- transaction that writes the month cannot change a row that others change meanwhile.

-- --- months ---

CREATE TYPE period_status AS ENUM ('open', 'grace', 'closed');
COMMENT ON TYPE period_status IS 'in the order in which a month goes through them';

CREATE TABLE period (
	month text PRIMARY KEY CHECK (month ~ '^[0-9]{4}-(0[1-9]|1[0-2])$'),
	starts_at timestamptz NOT NULL,
	ends_at timestamptz NOT NULL,
	status period_status NOT NULL DEFAULT 'open',
	closed_at timestamptz,
	CONSTRAINT starts_before_ends CHECK (starts_at < ends_at),
	EXCLUDE USING gist (tstzrange(starts_at, ends_at) WITH &&),
	CONSTRAINT only_closed_has_a_time CHECK ((status = 'closed') = (closed_at IS NOT NULL))
);
COMMENT ON TABLE period IS 'A billing month. Its bounds are stored when it is made, so that a later change of the zone''s rules does not move them.';
COMMENT ON COLUMN period.closed_at IS 'its batches are kept for a while after that; NULL: for as long as it takes';

CREATE TABLE period_close (
	month text PRIMARY KEY REFERENCES period,
	closed_at timestamptz NOT NULL,
	actor text NOT NULL CHECK (actor <> ''),
	reason text NOT NULL DEFAULT '' CHECK (octet_length(reason) <= 1000),
	checks jsonb NOT NULL CHECK (jsonb_typeof(checks) = 'array'),
	price_versions text[] NOT NULL,
	input_sha256 bytea NOT NULL CHECK (octet_length(input_sha256) = 32),
	prices_sha256 bytea NOT NULL CHECK (octet_length(prices_sha256) = 32),
	output_sha256 bytea NOT NULL CHECK (octet_length(output_sha256) = 32),
	rating_rules integer CHECK (rating_rules > 0)
);
COMMENT ON TABLE period_close IS 'The close of a month: actor, time, reason and the checks before it.';
COMMENT ON COLUMN period_close.checks IS 'the objections to closing: each with its number and the threshold at that time';
COMMENT ON COLUMN period_close.input_sha256 IS 'over the charge rows of all tenants, by name, and what documents say beside their lines';
COMMENT ON COLUMN period_close.prices_sha256 IS 'over the price books that were in force';
COMMENT ON COLUMN period_close.output_sha256 IS 'over the SHA-256 of all documents, by tenant and format';
COMMENT ON COLUMN period_close.rating_rules IS 'by which rules the month was rated (aggregator/core/rating); NULL: rules 1. Only a month of the rules that a '
	'program has is rated again by it; any other stays as it was billed, and is corrected by what has changed of its rows alone';

-- Changes of a month that is over add rows, and the close that bills them removes those that it saw. So a change that comes while a month is being closed is not lost.
CREATE TABLE late_change (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	month text NOT NULL REFERENCES period,
	at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE late_change IS 'A month that is over, and of which something has changed that is not billed yet. A closed one is computed again to see '
	'the difference.';
CREATE INDEX late_change_month ON late_change (month);

-- --- invoices ---

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
	CONSTRAINT closed_in_not_before_month CHECK (closed_in >= month),
	UNIQUE (tenant_id, month, version),
	UNIQUE (number, closed_in),
	UNIQUE (tenant_id, month, closed_in),
	FOREIGN KEY (tenant_id, month, corrects) REFERENCES invoice (tenant_id, month, version)
);
COMMENT ON TABLE invoice IS 'A tenant''s month as it was billed, and each set of corrections to it: a document of its own with a number of its own.';
COMMENT ON COLUMN invoice.month IS 'the month of the usage';
COMMENT ON COLUMN invoice.corrects IS 'the version that it corrects; NULL: the first one';
COMMENT ON COLUMN invoice.closed_in IS 'the month that was closed when it was issued: that month itself, or of corrections a later one';
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
	CONSTRAINT billed_adds_up CHECK (list_cost - discount + rounding = billed)
);
COMMENT ON TABLE invoice_total IS 'The sums of an invoice''s lines, per currency.';

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
	-- The price of a correction's unit for its tenant, shown by FOCUS.
	discount_price numeric NOT NULL DEFAULT 0,
	discount_ratio bigint NOT NULL DEFAULT 0 CHECK (discount_ratio BETWEEN 0 AND 1000000000),
	own_unit text,
	own_quantity numeric,
	own_price numeric CHECK (own_price >= 0),
	days text,
	PRIMARY KEY (number, line_id),
	FOREIGN KEY (number, closed_in) REFERENCES invoice (number, closed_in),
	FOREIGN KEY (number, currency) REFERENCES invoice_total (number, currency),
	CONSTRAINT only_corrections_correct_a_line CHECK ((charge_type = 'correction') = (correction_of IS NOT NULL)),
	CONSTRAINT billed_adds_up CHECK (list_cost - discount + rounding = billed),
	CONSTRAINT own_price_is_complete CHECK (num_nulls(own_unit, own_quantity, own_price) IN (0, 3))
);
COMMENT ON TABLE invoice_line IS 'Every line of every invoice, exactly.';
COMMENT ON COLUMN invoice_line.correction_of IS 'the line of the invoice''s month that it changes; the amounts are what is more, or less';
COMMENT ON COLUMN invoice_line.kind IS 'enum charge_kind of aggregator/core/rating';
COMMENT ON COLUMN invoice_line.discount_price IS 'of the unit price: what the tenant''s own price for the same unit saves; negative: it is dearer';
COMMENT ON COLUMN invoice_line.discount_ratio IS 'of what is left, in 10^-9';
COMMENT ON COLUMN invoice_line.own_unit IS 'of a tenant''s own price for another unit or basis than the public one, with how much and at what price; else NULL';
COMMENT ON COLUMN invoice_line.days IS 'of a correction: what differs of each day of the month that it corrects (aggregator/core/rating); NULL: no correction, or not known by day';

CREATE TABLE invoice_document (
	month text NOT NULL REFERENCES period,
	tenant_id integer REFERENCES tenant,
	format text NOT NULL CHECK (format ~ '^[a-z.]{1,32}$'),
	lines bigint NOT NULL CHECK (lines >= 0),
	plain_bytes bigint NOT NULL CHECK (plain_bytes >= 0),
	sha256 bytea NOT NULL CHECK (octet_length(sha256) = 32),
	gzip bytea NOT NULL,
	rows bigint CHECK (rows >= 0),
	joined boolean NOT NULL DEFAULT false
);
ALTER TABLE invoice_document ALTER COLUMN gzip SET STORAGE EXTERNAL;
COMMENT ON TABLE invoice_document IS 'The documents of a closed month, byte for byte.';
COMMENT ON COLUMN invoice_document.tenant_id IS 'NULL: the document of all tenants';
COMMENT ON COLUMN invoice_document.sha256 IS 'of the plain bytes';
COMMENT ON COLUMN invoice_document.rows IS 'of the document: lines, days of lines, or pages; NULL: as many as lines';
COMMENT ON COLUMN invoice_document.joined IS 'a table of all tenants: its first line is here, and behind it come all lines but the first of each tenant''s own, by name. '
	'Size and SHA-256 are of the whole';
CREATE UNIQUE INDEX invoice_document_key ON invoice_document (month, format, tenant_id) NULLS NOT DISTINCT;

-- --- one-off charges and credits ---

CREATE TABLE adjustment (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	tenant_id integer NOT NULL REFERENCES tenant,
	workspace_id integer REFERENCES workspace,
	period text NOT NULL REFERENCES period,
	amount numeric NOT NULL CHECK (amount <> 0 AND abs(amount) <= 1e15 AND scale(amount) <= 9),
	currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
	category text NOT NULL CHECK (category IN ('gpu', 'storage', 'network', 'inference', 'support', 'energy', 'other')),
	reason text NOT NULL CHECK (reason <> ''),
	requested_by text NOT NULL,
	at timestamptz NOT NULL DEFAULT now(),
	reverses bigint UNIQUE REFERENCES adjustment,
	refund text CONSTRAINT refund_is_a_credit CHECK (refund IS NULL OR (refund ~ '^[0-9a-f]{16}$' AND amount < 0 AND reverses IS NULL)),
	CONSTRAINT reverses_another_row CHECK (reverses <> id)
);
COMMENT ON TABLE adjustment IS 'A one-off charge, or a credit when the amount is negative. It is billed once it was approved (adjustment_approval).';
COMMENT ON COLUMN adjustment.workspace_id IS 'NULL: of the tenant as a whole';
COMMENT ON COLUMN adjustment.reverses IS 'the row that this one takes back: a row is never changed, and is taken back once at most';
COMMENT ON COLUMN adjustment.refund IS 'the lost hold that this is a credit for (refund_id)';
CREATE INDEX adjustment_month ON adjustment (period, tenant_id);
CREATE INDEX adjustment_refund ON adjustment (refund) WHERE refund IS NOT NULL;

CREATE TABLE adjustment_approval (
	adjustment_id bigint PRIMARY KEY REFERENCES adjustment,
	approved_by text NOT NULL,
	at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE adjustment_approval IS 'The approval of a one-off charge or credit, by another person than the requester unless that was an administrator.';

-- --- the closing of a month ---

CREATE TYPE close_state AS ENUM ('running', 'closed', 'refused', 'failed', 'cancelled');
CREATE TYPE close_stage AS ENUM ('prove', 'write', 'done');

CREATE TABLE close_job (
	month text PRIMARY KEY REFERENCES period,
	state close_state NOT NULL DEFAULT 'running',
	stage close_stage NOT NULL DEFAULT 'prove',
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
	CONSTRAINT only_running_has_no_end CHECK ((state = 'running') = (ended_at IS NULL)),
	CONSTRAINT only_closed_has_a_result CHECK ((state = 'closed') = (closed IS NOT NULL))
);
COMMENT ON TABLE close_job IS 'The last request to close a month, and its result.';
COMMENT ON COLUMN close_job.stage IS 'prove: the month from batches to charges; write: invoices and documents, in one transaction';
COMMENT ON COLUMN close_job.attempts IS 'how often a replica took it up: more than once when one died, or lost the database';
COMMENT ON COLUMN close_job.proof IS 'counts of the checked objects and of the differences found';
COMMENT ON COLUMN close_job.closed IS 'as the audit log has it';

CREATE TABLE close_progress (
	month text PRIMARY KEY REFERENCES close_job,
	step text NOT NULL,
	done bigint NOT NULL CHECK (done >= 0),
	total bigint NOT NULL CHECK (total >= 0),
	at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE close_progress IS 'How far the stage of a job has come.';
