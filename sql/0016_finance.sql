-- oldest-binary: 0.1.0
-- One-off charges and credits, and who agreed to them; budgets.

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
	CHECK (reverses <> id)
);
CREATE INDEX adjustment_month ON adjustment (period, tenant_id);
COMMENT ON TABLE adjustment IS 'A one-off charge, or a credit when the amount is negative. It is billed once somebody agreed to it (adjustment_approval).';
COMMENT ON COLUMN adjustment.workspace_id IS 'NULL: of the tenant as a whole';
COMMENT ON COLUMN adjustment.reverses IS 'the row that this one takes back: a row is never changed, and is taken back once at most';

CREATE TABLE adjustment_approval (
	adjustment_id bigint PRIMARY KEY REFERENCES adjustment,
	approved_by text NOT NULL,
	at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE adjustment_approval IS 'Who agreed to a one-off charge or credit: another than who asked for it, unless that was an administrator.';

CREATE FUNCTION adjustment_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'one-off charges and credits are never changed: a reversal is a new row'
		USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER adjustment_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON adjustment
	FOR EACH STATEMENT EXECUTE FUNCTION adjustment_is_final();
CREATE TRIGGER adjustment_approval_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON adjustment_approval
	FOR EACH STATEMENT EXECUTE FUNCTION adjustment_is_final();

-- The lock makes whoever closes the month wait, or this row come too late.
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

CREATE TABLE budget (
	tenant_id integer NOT NULL REFERENCES tenant,
	workspace_id integer REFERENCES workspace,
	kind text NOT NULL CHECK (kind IN ('soft', 'hard')),
	currency text CHECK (currency ~ '^[A-Z]{3}$'),
	amount numeric(30, 9) NOT NULL CHECK (amount > 0),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	EXCLUDE USING gist (tenant_id WITH =, coalesce(workspace_id, 0) WITH =, effective WITH &&)
);
COMMENT ON TABLE budget IS 'What a tenant, or one of its workspaces, means to spend in a month. Nothing is priced by it.';
COMMENT ON COLUMN budget.workspace_id IS 'NULL: of the tenant as a whole';
COMMENT ON COLUMN budget.currency IS 'NULL: the amount is GPU-hours';
