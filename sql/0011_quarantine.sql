-- oldest-binary: 0.1.0
-- What an operator decided about quarantined batches.
SELECT 1;
