-- oldest-binary: 0.1.0
-- Budgets, one-off charges and credits.
SELECT 1;
