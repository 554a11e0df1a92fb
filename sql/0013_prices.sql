-- oldest-binary: 0.1.0
-- Price books with items of every meter, discounts, lender ratio and energy.
SELECT 1;
