-- oldest-binary: 0.1.0
-- Every document of a closed month is kept, and a change of policy marks the days that it changes.

ALTER TABLE invoice_document
	ADD COLUMN rows bigint CHECK (rows >= 0),
	ADD COLUMN joined boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN invoice_document.rows IS 'of the document: lines, days of lines, or pages; NULL: as many as lines';
COMMENT ON COLUMN invoice_document.joined IS 'a table of all tenants: its first line is here, and behind it come all lines but the first of each tenant''s own, by name. '
	'Size and SHA-256 are of the whole';
COMMENT ON COLUMN period_close.input_sha256 IS 'over the charge rows of all tenants, by name, and what documents say beside their lines';

-- What a correction's unit costs its tenant: FOCUS shows it.
ALTER TABLE invoice_line
	ADD COLUMN discount_price numeric NOT NULL DEFAULT 0 CHECK (discount_price >= 0),
	ADD COLUMN discount_ratio bigint NOT NULL DEFAULT 0 CHECK (discount_ratio BETWEEN 0 AND 1000000000);
COMMENT ON COLUMN invoice_line.discount_price IS 'of the unit price: what the tenant''s own price saves';
COMMENT ON COLUMN invoice_line.discount_ratio IS 'of what is left, in 10^-9';

-- --- what a change over time changes ---

-- Where a row only begins or ends elsewhere, the hours that it had before and after are as they were: months that were closed long ago
-- are not looked at again because a price, an owner or a reservation ends today.
CREATE FUNCTION changed_ranges(p_old tstzrange, p_new tstzrange) RETURNS SETOF tstzrange
	LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
	RETURN unnest((tstzmultirange(p_old) - tstzmultirange(p_new)) + (tstzmultirange(p_new) - tstzmultirange(p_old)));
COMMENT ON FUNCTION changed_ranges IS 'what is in one of them and not in the other';

CREATE OR REPLACE FUNCTION effective_dirties_days() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP = 'UPDATE' AND to_jsonb(OLD) - 'effective' = to_jsonb(NEW) - 'effective' THEN
		PERFORM tollgate.days_dirty(c) FROM tollgate.changed_ranges(OLD.effective, NEW.effective) c;
		RETURN NULL;
	END IF;
	IF TG_OP <> 'INSERT' THEN
		PERFORM tollgate.days_dirty(OLD.effective);
	END IF;
	IF TG_OP <> 'DELETE' THEN
		PERFORM tollgate.days_dirty(NEW.effective);
	END IF;
	RETURN NULL;
END $$;
-- Limits and borrow caps change no charge.
DROP TRIGGER lend_cap_dirties_days ON workspace_limit;
DROP FUNCTION lend_cap_dirties_days();
CREATE TRIGGER lend_cap_begins AFTER INSERT ON workspace_limit FOR EACH ROW WHEN (NEW.kind = 'lend') EXECUTE FUNCTION effective_dirties_days();
CREATE TRIGGER lend_cap_changes AFTER UPDATE ON workspace_limit
	FOR EACH ROW WHEN (OLD.kind = 'lend' OR NEW.kind = 'lend') EXECUTE FUNCTION effective_dirties_days();
CREATE TRIGGER lend_cap_ends AFTER DELETE ON workspace_limit FOR EACH ROW WHEN (OLD.kind = 'lend') EXECUTE FUNCTION effective_dirties_days();

CREATE OR REPLACE FUNCTION node_state_changes_hours() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	part tollgate.node_state;
BEGIN
	IF TG_OP = 'UPDATE' AND to_jsonb(OLD) - 'effective' = to_jsonb(NEW) - 'effective' THEN
		part := NEW;
		FOR part.effective IN SELECT tollgate.changed_ranges(OLD.effective, NEW.effective) LOOP
			PERFORM tollgate.state_is_declared(part, part.effective <@ NEW.effective);
		END LOOP;
		RETURN NULL;
	END IF;
	IF TG_OP <> 'INSERT' THEN
		PERFORM tollgate.state_is_declared(OLD, false);
	END IF;
	IF TG_OP <> 'DELETE' THEN
		PERFORM tollgate.state_is_declared(NEW, true);
	END IF;
	RETURN NULL;
END $$;
