-- oldest-binary: 0.2.0
-- Functions of events of other meters: sums by day, workspace and SKU.

CREATE FUNCTION meter_event_only_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'events are only ever added' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER meter_event_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON meter_event
	FOR EACH STATEMENT EXECUTE FUNCTION meter_event_only_grows();

CREATE FUNCTION meter_usage(p_from timestamptz, p_until timestamptz)
	RETURNS TABLE (day date, workspace_id integer, category text, meter text, unit text, sku text, quantity numeric, events bigint)
	LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT (at_ns(e.time_ns) AT TIME ZONE l.zone)::date, coalesce(e.workspace_id, a.workspace_id), m.category, m.meter, m.unit, e.sku,
			sum(m.quantity), count(*)
		FROM ledger l
			CROSS JOIN meter_event e
			LEFT JOIN holder_attribution a ON a.holder_id = e.holder_id AND a.effective @> at_ns(e.time_ns)
			CROSS JOIN LATERAL (VALUES
				(1, 'storage', 'storage', 'GB-hour', e.amount),
				(2, 'network', 'egress', 'GB', e.amount),
				(3, 'inference', 'inference-requests', 'request', e.requests::numeric),
				(3, 'inference', 'inference-input-tokens', 'token', e.input_tokens::numeric),
				(3, 'inference', 'inference-output-tokens', 'token', e.output_tokens::numeric),
				(4, 'support', 'support', 'hour', e.amount)) AS m(type, category, meter, unit, quantity)
		WHERE e.time_ns >= ns_of(p_from) AND e.time_ns < ns_of(p_until) AND m.type = e.type AND m.quantity IS NOT NULL
		GROUP BY 1, 2, 3, 4, 5, 6;
	END;
COMMENT ON FUNCTION meter_usage IS 'Sums of the events of the range, per billing day, workspace, meter and SKU; rating reads it.';

-- meter_usage() with the price book in force: a day on which the book changes has two rows.
CREATE FUNCTION meter_charges(p_from timestamptz, p_until timestamptz)
	RETURNS TABLE (day date, price_book_id bigint, workspace_id integer, category text, meter text, unit text, sku text, quantity numeric)
	LANGUAGE sql STABLE
	BEGIN ATOMIC
		WITH bounds AS (
			SELECT p_from AS at UNION SELECT p_until
			UNION SELECT x.at FROM price_book b, LATERAL (VALUES (lower(b.effective)), (upper(b.effective))) AS x(at)
			WHERE x.at > p_from AND x.at < p_until
		), stretches AS (
			SELECT b.at AS starts_at, lead(b.at) OVER (ORDER BY b.at) AS ends_at FROM bounds b
		)
		SELECT m.day, (SELECT p.id FROM price_book p WHERE p.effective @> s.starts_at), m.workspace_id, m.category, m.meter, m.unit, m.sku, m.quantity
		FROM stretches s, LATERAL meter_usage(s.starts_at, s.ends_at) m
		WHERE s.ends_at IS NOT NULL;
	END;
COMMENT ON FUNCTION meter_charges IS 'Sums of the events of the range, per billing day, price book, workspace, meter and SKU; reports read it.';
