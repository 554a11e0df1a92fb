-- oldest-binary: 0.1.0
-- Months that close: invoices, documents, corrections.
SELECT 1;
