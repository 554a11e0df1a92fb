-- oldest-binary: 0.1.0
-- Price books with items of every meter, discounts, lender ratio and energy.
--
-- A book is written once, with all its rows, and never changed; only its range ends. Its hash is over all of them, so that a version
-- names one state of everything that prices a month (version_is_final).

ALTER TABLE price_book
	ADD lender_ratio numeric(10, 9) NOT NULL DEFAULT 0 CHECK (lender_ratio BETWEEN 0 AND 1),
	ADD shared_idle text NOT NULL DEFAULT 'none' CHECK (shared_idle IN ('none', 'even', 'proportional', 'weights')),
	ADD platform_cost numeric(39, 9) CHECK (platform_cost >= 0);
COMMENT ON COLUMN price_book.sha256 IS 'of everything that prices: currency, items, discounts, energy, ratio and shares';
COMMENT ON COLUMN price_book.lender_ratio IS 'of what a borrower pays goes to its lender';
COMMENT ON COLUMN price_book.shared_idle IS 'who pays what nobody held of shared nodes; none: the platform';
COMMENT ON COLUMN price_book.platform_cost IS 'what the platform itself costs in a month; NULL: not said';

ALTER TABLE price_item
	ADD tenant_id integer REFERENCES tenant,
	ADD basis text NOT NULL DEFAULT 'allocated' CHECK (basis IN ('allocated', 'used')),
	ADD meter text CHECK (meter IN ('storage', 'egress', 'inference-requests', 'inference-input-tokens', 'inference-output-tokens', 'support')),
	ADD meter_sku text CHECK (meter_sku <> ''),
	ADD CONSTRAINT one_kind CHECK (CASE WHEN meter IS NULL THEN meter_sku IS NULL
		ELSE num_nonnulls(gpu_model, mig_profile, sharing_mode, class) = 0 AND basis = 'allocated' END),
	ADD CONSTRAINT used_is_held CHECK (basis = 'allocated' OR class IS NULL OR class IN ('on-demand', 'borrowed'));
CREATE UNIQUE INDEX price_item_once ON price_item
	(book_id, tenant_id, meter, meter_sku, gpu_model, mig_profile, sharing_mode, class) NULLS NOT DISTINCT;
COMMENT ON TABLE price_item IS 'A price per hour, or per unit of a meter. NULL in a column matches anything; the most specific item wins (core/rating.h).';
COMMENT ON COLUMN price_item.tenant_id IS 'for this tenant alone, before all others';
COMMENT ON COLUMN price_item.basis IS 'used: active, unmeasured and over; else all that was held';

CREATE TABLE price_discount (
	book_id bigint NOT NULL REFERENCES price_book,
	position integer NOT NULL CHECK (position >= 0),
	tenant_id integer REFERENCES tenant,
	category text CHECK (category IN ('gpu', 'storage', 'network', 'inference', 'support')),
	class text CHECK (class IN ('on-demand', 'borrowed', 'dedicated', 'reserved')),
	ratio numeric(10, 9) NOT NULL CHECK (ratio BETWEEN 0 AND 1),
	PRIMARY KEY (book_id, position),
	CHECK (class IS NULL OR category IS NULL OR category = 'gpu'),
	CONSTRAINT price_discount_once UNIQUE NULLS NOT DISTINCT (book_id, tenant_id, category, class)
);
COMMENT ON TABLE price_discount IS 'Off every price that matches. NULL matches anything; the most specific one holds (core/rating.h).';

CREATE TABLE price_site (
	book_id bigint NOT NULL REFERENCES price_book,
	cluster_id integer NOT NULL REFERENCES cluster,
	energy_price numeric(39, 9) CHECK (energy_price >= 0),
	carbon numeric(16, 9) CHECK (carbon >= 0),
	PRIMARY KEY (book_id, cluster_id),
	CHECK (energy_price IS NOT NULL OR carbon IS NOT NULL)
);
COMMENT ON TABLE price_site IS 'Energy of a cluster: per kWh its price (NULL: not billed) and its carbon in grams (NULL: not known).';

CREATE TABLE price_weight (
	book_id bigint NOT NULL REFERENCES price_book,
	tenant_id integer NOT NULL REFERENCES tenant,
	weight bigint NOT NULL CHECK (weight BETWEEN 1 AND 1000000),
	PRIMARY KEY (book_id, tenant_id)
);
COMMENT ON TABLE price_weight IS 'Shares in what nobody held of shared nodes, where the book says weights.';

-- What priced a line stays what it was.
CREATE FUNCTION price_rows_are_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'the prices of a book are not changed: apply a policy with a new version'
		USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER price_book_is_final BEFORE UPDATE OF version, currency, sha256, lender_ratio, shared_idle, platform_cost OR DELETE ON price_book
	FOR EACH ROW EXECUTE FUNCTION price_rows_are_final();
CREATE TRIGGER price_item_is_final BEFORE UPDATE OR DELETE ON price_item FOR EACH ROW EXECUTE FUNCTION price_rows_are_final();
CREATE TRIGGER price_discount_is_final BEFORE UPDATE OR DELETE ON price_discount FOR EACH ROW EXECUTE FUNCTION price_rows_are_final();
CREATE TRIGGER price_site_is_final BEFORE UPDATE OR DELETE ON price_site FOR EACH ROW EXECUTE FUNCTION price_rows_are_final();
CREATE TRIGGER price_weight_is_final BEFORE UPDATE OR DELETE ON price_weight FOR EACH ROW EXECUTE FUNCTION price_rows_are_final();
