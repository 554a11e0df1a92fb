-- oldest-binary: 0.1.0
-- What each billing day is charged as: classes, commitments, loans, idle capacity.
SELECT 1;
