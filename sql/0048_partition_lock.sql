-- oldest-binary: 0.1.0
-- A push of old days found its partition there, and retention dropped it before the records came: the push was refused as a contradiction.

CREATE OR REPLACE FUNCTION make_partitions(p_from_ns bigint, p_until_ns bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
	day_ns constant bigint := 86400000000000;
	first_day constant bigint := date '2020-01-01' - date '1970-01-01';
	last_day constant bigint := date '2100-01-01' - date '1970-01-01';
	days_at_once constant bigint := 100;
	made integer := 0;
	name text;
BEGIN
	IF p_from_ns / day_ns < first_day OR p_until_ns / day_ns > last_day OR p_until_ns / day_ns - p_from_ns / day_ns > days_at_once THEN
		PERFORM tollgate.refuse_bounds('make_partitions', format('days %s to %s are not within 2020 to 2100, or more than %s',
			p_from_ns / day_ns, p_until_ns / day_ns, days_at_once));
	END IF;
	-- From here on no day is dropped: whoever retires one waits for this transaction, or this one for it, and sees which days are gone.
	LOCK TABLE tollgate.usage_interval IN ROW EXCLUSIVE MODE;
	FOR day IN p_from_ns / day_ns .. (p_until_ns - 1) / day_ns LOOP
		name := tollgate.partition_name(day);
		CONTINUE WHEN to_regclass('tollgate.' || name) IS NOT NULL;
		PERFORM pg_advisory_xact_lock(hashtextextended('tollgate.' || name, 0));
		CONTINUE WHEN EXISTS (SELECT FROM pg_class c WHERE c.relname = name AND c.relnamespace = 'tollgate'::regnamespace);
		-- Made apart and attached, because PARTITION OF would stop all writers for as long as this transaction lasts.
		EXECUTE format('CREATE TABLE tollgate.%I (LIKE tollgate.usage_interval INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
		EXECUTE format('ALTER TABLE tollgate.usage_interval ATTACH PARTITION tollgate.%I FOR VALUES FROM (%s) TO (%s)',
			name, day * day_ns, (day + 1) * day_ns);
		made := made + 1;
	END LOOP;
	RETURN made;
END $$;
