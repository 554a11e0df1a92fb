-- oldest-binary: 0.1.0
-- What nodes say of this moment; never usage.
SELECT 1;
