-- oldest-binary: 0.1.0
-- Prices for many units of a meter, and a tenant's own price for another unit than the public one.

ALTER TABLE price_item
	ADD per bigint CHECK (per BETWEEN 2 AND 1000000000),
	ADD CONSTRAINT per_is_of_meters CHECK (per IS NULL OR meter IS NOT NULL);
COMMENT ON COLUMN price_item.per IS 'how many units of the meter the price is for; NULL: one';

ALTER TABLE invoice_line
	DROP CONSTRAINT invoice_line_discount_price_check,
	ADD own_unit text,
	ADD own_quantity numeric,
	ADD own_price numeric CHECK (own_price >= 0),
	ADD CONSTRAINT own_price_is_whole CHECK (num_nulls(own_unit, own_quantity, own_price) IN (0, 3));
COMMENT ON COLUMN invoice_line.discount_price IS 'of the unit price: what the tenant''s own price for the same unit saves; negative: it is dearer';
COMMENT ON COLUMN invoice_line.own_unit IS 'of a tenant''s own price for another unit or basis than the public one, with how much and at what price; else NULL';

-- Loans are matched anew: borrowers have of every lender pro rata. Days of which that changes something are charged again, in months that are open: what was
-- billed stays as it was billed, and no month is corrected because of another release of the program.
UPDATE billing_day b SET dirty = true WHERE NOT b.dirty AND NOT b.hours_gone AND EXISTS (SELECT FROM loan_day l WHERE l.day = b.day
	GROUP BY l.price_book_id, l.cluster_id, l.owner_id, l.gpu_model HAVING count(DISTINCT l.lender_id) > 1 AND count(DISTINCT l.borrower_id) > 1)
	AND NOT EXISTS (SELECT FROM period p WHERE p.status = 'closed' AND b.starts_at >= p.starts_at AND b.starts_at < p.ends_at);
