-- oldest-binary: 0.1.0
-- Budgets of tokens: what events of inference count, input and output together.

ALTER TABLE budget ADD COLUMN meter_unit text CHECK (meter_unit = 'token'), ADD CONSTRAINT a_budget_has_one_unit CHECK (num_nonnulls(currency, meter_unit) < 2);
COMMENT ON COLUMN budget.currency IS 'NULL: the amount is of meter_unit, or GPU-hours where that is NULL too';
COMMENT ON COLUMN budget.meter_unit IS 'token: of all meters that count tokens';
