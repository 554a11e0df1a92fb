-- oldest-binary: 0.1.0
-- Reserved.

SELECT 1;
