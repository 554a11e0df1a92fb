-- oldest-binary: 0.1.0
-- Idle time of shared nodes less what is stranded, taken hour by hour.
--
-- A day's sums cannot tell it: an hour with more stranded than unreserved time takes nothing from the idle time of another hour.

ALTER TABLE pool_day ADD COLUMN idle_less_stranded numeric;
COMMENT ON COLUMN pool_day.idle_less_stranded IS 'unreserved_idle less stranded, never below 0, of each hour, added up: what a price book''s shared_idle divides. '
	'NULL: the day was folded before this column was there and its month was closed, or its hours were given up; it is then taken of the day''s sums, as it was billed';
ALTER TABLE pool_day ADD CONSTRAINT idle_less_stranded_is_hourly CHECK (idle_less_stranded IS NULL OR (scale(idle_less_stranded) IS NOT DISTINCT FROM 0
	AND idle_less_stranded BETWEEN greatest(unreserved_idle - stranded, 0) AND unreserved_idle)) NOT VALID;

-- Days of months that are open are folded again; what was billed stays as it was billed.
UPDATE billing_day b SET dirty = true WHERE NOT b.dirty AND NOT b.hours_gone
	AND NOT EXISTS (SELECT FROM period p WHERE p.status = 'closed' AND b.starts_at >= p.starts_at AND b.starts_at < p.ends_at);
