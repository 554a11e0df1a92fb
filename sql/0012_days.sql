-- oldest-binary: 0.1.0
-- Days folded from hours, and what is kept for how long.
SELECT 1;
