-- oldest-binary: 0.1.0
-- The days of corrections, for exports that have a row for each day.

ALTER TABLE invoice_line ADD COLUMN days text;
COMMENT ON COLUMN invoice_line.days IS 'of a correction: what differs of each day of the month that it corrects (core/correction.h); NULL: no correction, or not known by day';
