-- oldest-binary: 0.1.0
-- What each billing day is charged as: classes, commitments, loans, idle capacity.
--
-- A pool is a cluster's nodes of one owner, or its shared ones, of one GPU model. These tables are made from hours (core/classes.h)
-- and replaced day by day, in the transaction that folds the day. What is not folded is made by the same function when it is read.

CREATE TABLE charge_day (
	day date NOT NULL REFERENCES billing_day,
	price_book_id bigint,
	cluster_id integer NOT NULL,
	owner_id integer,
	gpu_model text NOT NULL,
	workspace_id integer NOT NULL,
	profile text NOT NULL,
	units smallint NOT NULL CHECK (units BETWEEN 1 AND 5040),
	sharing smallint NOT NULL CHECK (sharing BETWEEN 0 AND 5),
	class text NOT NULL CHECK (class IN ('covered', 'on-demand', 'borrowed')),
	used numeric NOT NULL CHECK (used >= 0),
	idle numeric NOT NULL CHECK (idle >= 0),
	unmeasured numeric NOT NULL CHECK (unmeasured >= 0),
	over numeric NOT NULL CHECK (over >= 0),
	energy_mj numeric NOT NULL CHECK (energy_mj >= 0)
);
COMMENT ON TABLE charge_day IS 'What a workspace held in a pool on a day, by kind of device and class. Unit-nanoseconds.';
COMMENT ON COLUMN charge_day.price_book_id IS 'in force at those hours of the day; NULL: none was';
COMMENT ON COLUMN charge_day.owner_id IS 'the tenant whose nodes the pool has; NULL: shared';
-- A tenant's month is read by its workspaces, a day is replaced whole.
CREATE UNIQUE INDEX charge_day_key ON charge_day
	(workspace_id, day, price_book_id, cluster_id, owner_id, gpu_model, profile, units, sharing, class) NULLS NOT DISTINCT;
CREATE INDEX charge_day_day ON charge_day (day);

CREATE TABLE reserve_day (
	day date NOT NULL REFERENCES billing_day,
	price_book_id bigint,
	cluster_id integer NOT NULL,
	owner_id integer,
	gpu_model text NOT NULL,
	workspace_id integer NOT NULL,
	profile text NOT NULL,
	units smallint NOT NULL CHECK (units BETWEEN 1 AND 5040),
	reserved numeric NOT NULL CHECK (reserved > 0),
	covered numeric NOT NULL CHECK (covered >= 0),
	lent numeric NOT NULL CHECK (lent >= 0),
	unused numeric NOT NULL CHECK (unused >= 0),
	undelivered numeric NOT NULL CHECK (undelivered >= 0),
	CONSTRAINT parts_add_up CHECK (reserved = covered + lent + unused + undelivered)
);
COMMENT ON TABLE reserve_day IS 'What a workspace had reserved in a pool on a day, and what became of it. Unit-nanoseconds.';
COMMENT ON COLUMN reserve_day.profile IS 'empty: GPUs or parts of them, else a MIG profile';
COMMENT ON COLUMN reserve_day.units IS 'of one instance of the profile; 5040 of GPUs';
CREATE UNIQUE INDEX reserve_day_key ON reserve_day
	(workspace_id, day, price_book_id, cluster_id, owner_id, gpu_model, profile, units) NULLS NOT DISTINCT;
CREATE INDEX reserve_day_day ON reserve_day (day);

CREATE TABLE loan_day (
	day date NOT NULL REFERENCES billing_day,
	price_book_id bigint,
	cluster_id integer NOT NULL,
	owner_id integer,
	gpu_model text NOT NULL,
	lender_id integer NOT NULL,
	borrower_id integer NOT NULL,
	profile text NOT NULL,
	units smallint NOT NULL CHECK (units BETWEEN 1 AND 5040),
	sharing smallint NOT NULL CHECK (sharing BETWEEN 0 AND 5),
	used numeric NOT NULL CHECK (used >= 0),
	idle numeric NOT NULL CHECK (idle >= 0),
	unmeasured numeric NOT NULL CHECK (unmeasured >= 0),
	over numeric NOT NULL CHECK (over >= 0),
	energy_mj numeric NOT NULL CHECK (energy_mj >= 0),
	CHECK (lender_id <> borrower_id),
	CHECK (used + idle + unmeasured > 0)
);
COMMENT ON TABLE loan_day IS 'Whose idle reservation a workspace borrowed on a day. The kind of device is the borrower''s.';
COMMENT ON COLUMN loan_day.lender_id IS 'a workspace, as is the borrower';
CREATE UNIQUE INDEX loan_day_key ON loan_day
	(lender_id, day, price_book_id, cluster_id, owner_id, gpu_model, borrower_id, profile, units, sharing) NULLS NOT DISTINCT;
CREATE INDEX loan_day_day ON loan_day (day);

CREATE TABLE pool_day (
	day date NOT NULL REFERENCES billing_day,
	price_book_id bigint,
	cluster_id integer NOT NULL,
	owner_id integer,
	gpu_model text NOT NULL,
	capacity numeric NOT NULL CHECK (capacity >= 0),
	covered numeric NOT NULL CHECK (covered >= 0),
	on_demand numeric NOT NULL CHECK (on_demand >= 0),
	borrowed numeric NOT NULL CHECK (borrowed >= 0),
	unused numeric NOT NULL CHECK (unused >= 0),
	unreserved_idle numeric NOT NULL CHECK (unreserved_idle >= 0),
	unallocated numeric NOT NULL CHECK (unallocated >= 0),
	stranded numeric NOT NULL CHECK (stranded >= 0),
	down numeric NOT NULL CHECK (down >= 0),
	unknown numeric NOT NULL CHECK (unknown >= 0),
	energy_mj numeric NOT NULL CHECK (energy_mj >= 0),
	CONSTRAINT capacity_is_its_classes CHECK (capacity = covered + on_demand + borrowed + unused + unreserved_idle),
	CONSTRAINT capacity_is_its_states CHECK (capacity = covered + on_demand + borrowed + unallocated + stranded)
);
COMMENT ON TABLE pool_day IS 'A pool''s day: what its capacity was charged as, and which state it was in. Unit-nanoseconds.';
COMMENT ON COLUMN pool_day.capacity IS 'in service, and neither down nor unknown';
COMMENT ON COLUMN pool_day.unused IS 'reserved, and neither held nor lent';
COMMENT ON COLUMN pool_day.unreserved_idle IS 'of what nobody held (unallocated, stranded): what nobody had reserved';
COMMENT ON COLUMN pool_day.energy_mj IS 'of what nobody held';
CREATE UNIQUE INDEX pool_day_key ON pool_day (day, price_book_id, cluster_id, owner_id, gpu_model) NULLS NOT DISTINCT;

-- What a workspace may lend in each pool at an hour; NULL: all that it has reserved.
--  1. amounts of the model go before those of any model
--  2. an amount of instances weighs what the workspace's reservation of that profile does; what is not reserved cannot be lent
CREATE FUNCTION lend_cap(p_workspace integer, p_model text, p_hour timestamptz) RETURNS numeric LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT CASE WHEN bool_and(l.units IS NOT NULL OR l.profile <> '') THEN sum(coalesce(l.units,
			l.instances * (SELECT max(r.units / r.instances) FROM reservation r WHERE r.workspace_id = p_workspace AND r.model = p_model
				AND r.profile = l.profile AND r.effective @> p_hour), 0)) END
		FROM workspace_limit l
		WHERE l.workspace_id = p_workspace AND l.kind = 'lend' AND l.effective @> p_hour AND l.model = (
			SELECT max(m.model) FROM workspace_limit m
			WHERE m.workspace_id = p_workspace AND m.kind = 'lend' AND m.effective @> p_hour AND m.model IN ('', p_model));
	END;

-- The hours of a range as core/classes.h wants them: what was held and what was not, and what was reserved, per pool and hour.
--  1. a reservation counts in the hours that the ledger has, whether its pool has nodes then or not
--  2. of an hour that is not over it counts as far as every node of the pool is accounted for; a pool without nodes at that hour, as
--     far as any node is. A sealed hour counts whole
--  3. right: held is what is reserved, lend_cap what of it may be lent
CREATE FUNCTION charge_input(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (cluster_id integer, owner_id integer, gpu_model text, hour_ns bigint, price_book_id bigint, is_right boolean,
	workspace_id integer, profile text, units smallint, sharing smallint, used numeric, idle numeric, unmeasured numeric,
	unallocated numeric, stranded numeric, down numeric, unknown numeric, over numeric, energy_mj numeric, reserved numeric, lend_cap numeric)
LANGUAGE sql STABLE PARALLEL RESTRICTED
BEGIN ATOMIC
	WITH accounts AS MATERIALIZED (
		SELECT h.hour, n.cluster_id, o.tenant_id AS owner_id, CASE WHEN h.sealed_at IS NOT NULL THEN ns_of(h.hour) + 3600000000000
			ELSE greatest(ns_of(h.hour), least(ns_of(h.hour) + 3600000000000, greatest(n.covered_until_ns, n.silent_until_ns))) END AS until_ns
		FROM node_hour h JOIN node n ON n.id = h.node_id LEFT JOIN node_owner o ON o.node_id = h.node_id AND o.effective @> h.hour
		WHERE h.hour >= p_from AND h.hour < p_until
	), hours AS (
		SELECT a.hour, max(a.until_ns) AS until_ns FROM accounts a GROUP BY a.hour
	), pools AS (
		SELECT a.hour, a.cluster_id, coalesce(a.owner_id, 0) AS owner_id, min(a.until_ns) AS until_ns FROM accounts a GROUP BY 1, 2, 3
	), rights AS (
		SELECT r.cluster_id, CASE WHEN NOT r.shared THEN w.tenant_id END AS owner_id, r.model, h.hour, r.workspace_id, r.profile,
			(CASE WHEN r.instances IS NULL THEN 5040 ELSE r.units / r.instances END)::smallint AS units, r.units AS reserved, h.until_ns
		FROM hours h JOIN reservation r ON r.effective @> h.hour JOIN workspace w ON w.id = r.workspace_id
	)
	SELECT n.cluster_id, o.tenant_id, g.short_model, ns_of(u.hour), p.id, false, u.workspace_id, d.profile, d.units, u.sharing,
		sum(u.used), sum(u.idle), sum(u.unmeasured), sum(u.unallocated), sum(u.stranded), sum(u.down), sum(u.unknown), sum(u.over),
		sum(u.energy_mj), 0, 0
	FROM usage_rows(p_from, p_until) u
		JOIN node n ON n.id = u.node_id JOIN device d ON d.id = u.device_id JOIN gpu g ON g.id = d.gpu_id
		LEFT JOIN price_book p ON p.effective @> u.hour
		LEFT JOIN node_owner o ON o.node_id = u.node_id AND o.effective @> u.hour
	GROUP BY n.cluster_id, o.tenant_id, g.short_model, u.hour, p.id, u.workspace_id, d.profile, d.units, u.sharing
	UNION ALL
	SELECT r.cluster_id, r.owner_id, r.model, ns_of(r.hour), p.id, true, r.workspace_id, r.profile, r.units, 0::smallint,
		0, 0, 0, 0, 0, 0, 0, 0, 0, r.reserved * x.ns::numeric, lend_cap(r.workspace_id, r.model, r.hour) * x.ns
	FROM rights r
		LEFT JOIN pools a ON a.hour = r.hour AND a.cluster_id = r.cluster_id AND a.owner_id = coalesce(r.owner_id, 0)
		LEFT JOIN price_book p ON p.effective @> r.hour
		CROSS JOIN LATERAL (SELECT coalesce(a.until_ns, r.until_ns) - ns_of(r.hour) AS ns) x
	WHERE x.ns > 0;
END;
COMMENT ON FUNCTION charge_input IS 'What the charges of a range of billing hours are made from; store/charges.c reads it.';

CREATE TRIGGER reservation_dirties_days AFTER INSERT OR UPDATE OR DELETE ON reservation
	FOR EACH ROW EXECUTE FUNCTION effective_dirties_days();
-- Limits and borrow caps change no charge.
CREATE FUNCTION lend_cap_dirties_days() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP <> 'INSERT' AND OLD.kind = 'lend' THEN
		PERFORM tollgate.days_dirty(OLD.effective);
	END IF;
	IF TG_OP <> 'DELETE' AND NEW.kind = 'lend' THEN
		PERFORM tollgate.days_dirty(NEW.effective);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER lend_cap_dirties_days AFTER INSERT OR UPDATE OR DELETE ON workspace_limit
	FOR EACH ROW EXECUTE FUNCTION lend_cap_dirties_days();

-- Days that were folded before have no charges yet.
UPDATE billing_day SET dirty = true WHERE NOT dirty AND NOT hours_gone;

-- --- other meters ---

-- meter_usage() with the price book in force: a day on which the book changes has two rows.
CREATE FUNCTION meter_charges(p_from timestamptz, p_until timestamptz)
	RETURNS TABLE (day date, price_book_id bigint, workspace_id integer, category text, meter text, unit text, sku text, quantity numeric)
	LANGUAGE sql STABLE
	BEGIN ATOMIC
		WITH bounds AS (
			SELECT p_from AS at UNION SELECT p_until
			UNION SELECT x.at FROM price_book b, LATERAL (VALUES (lower(b.effective)), (upper(b.effective))) AS x(at)
			WHERE x.at > p_from AND x.at < p_until
		), stretches AS (
			SELECT b.at AS starts_at, lead(b.at) OVER (ORDER BY b.at) AS ends_at FROM bounds b
		)
		SELECT m.day, (SELECT p.id FROM price_book p WHERE p.effective @> s.starts_at), m.workspace_id, m.category, m.meter, m.unit, m.sku, m.quantity
		FROM stretches s, LATERAL meter_usage(s.starts_at, s.ends_at) m
		WHERE s.ends_at IS NOT NULL;
	END;
COMMENT ON FUNCTION meter_charges IS 'What the events of the range add up to, per billing day, price book, workspace, meter and SKU: what reports read.';
