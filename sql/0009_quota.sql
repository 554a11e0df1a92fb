-- oldest-binary: 0.1.0
-- Members, isolation, reservations, quotas and states of nodes, over time.
SELECT 1;
