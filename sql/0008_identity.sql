-- oldest-binary: 0.1.0
-- Groups and pod labels of holders, and rules that look at them.
SELECT 1;
