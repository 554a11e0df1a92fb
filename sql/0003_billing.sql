-- oldest-binary: 0.1.0
-- What a GPU-hour costs, which months there are, and which policy said so.

CREATE TABLE policy_version (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name text NOT NULL,
	document text NOT NULL,
	sha256 bytea NOT NULL CHECK (octet_length(sha256) = 32),
	actor text NOT NULL,
	effective_at timestamptz NOT NULL,
	applied_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE policy_version IS 'Every policy file as it was applied. The last one is in force, from effective_at on.';

CREATE TABLE price_book (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	version text NOT NULL CHECK (version <> ''),
	currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
	sha256 bytea NOT NULL CHECK (octet_length(sha256) = 32),
	effective tstzrange NOT NULL,
	EXCLUDE USING gist (effective WITH &&),
	-- A version names one state of prices on every line billed with it. One that was replaced within its first hour never was.
	CONSTRAINT version_is_final EXCLUDE USING gist (version WITH =, sha256 WITH <>) WHERE (NOT isempty(effective))
);
COMMENT ON TABLE price_book IS 'Prices in force over a range of billing hours; at most one book at a time.';
COMMENT ON COLUMN price_book.sha256 IS 'of currency and items: a version cannot come again with other prices';
COMMENT ON COLUMN price_book.effective IS 'empty: replaced before it came into force';

CREATE TABLE price_item (
	book_id bigint NOT NULL REFERENCES price_book,
	position integer NOT NULL CHECK (position >= 0),
	sku text NOT NULL DEFAULT '',
	gpu_model text,
	mig_profile text,
	sharing_mode text CHECK (sharing_mode IN ('exclusive', 'mig', 'mps', 'timeslice', 'plain')),
	class text CHECK (class IN ('on-demand', 'borrowed', 'dedicated', 'reserved')),
	price numeric(39, 9) NOT NULL CHECK (price >= 0),
	PRIMARY KEY (book_id, position)
);
COMMENT ON TABLE price_item IS 'A price per hour. NULL in a column matches anything; the most specific item wins (core/rating.h).';

CREATE TABLE period (
	month text PRIMARY KEY CHECK (month ~ '^[0-9]{4}-(0[1-9]|1[0-2])$'),
	starts_at timestamptz NOT NULL,
	ends_at timestamptz NOT NULL,
	status text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'grace', 'closed')),
	CHECK (starts_at < ends_at),
	EXCLUDE USING gist (tstzrange(starts_at, ends_at) WITH &&)
);
COMMENT ON TABLE period IS 'A billing month. Its bounds are stored when it is made, so that a later change of the zone''s rules does not move them.';

CREATE FUNCTION make_periods(p_from timestamptz, p_until timestamptz) RETURNS void
	LANGUAGE sql VOLATILE
	BEGIN ATOMIC
		INSERT INTO period (month, starts_at, ends_at)
		SELECT to_char(m, 'YYYY-MM'), m AT TIME ZONE l.zone, (m + interval '1 month') AT TIME ZONE l.zone
		FROM ledger l, generate_series(date_trunc('month', p_from AT TIME ZONE l.zone),
			(p_until AT TIME ZONE l.zone) - interval '1 microsecond', interval '1 month') m
		ON CONFLICT DO NOTHING;
	END;
COMMENT ON FUNCTION make_periods IS 'Makes the billing months that the range touches.';
