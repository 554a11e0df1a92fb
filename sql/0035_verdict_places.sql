-- oldest-binary: 0.1.0
-- A verdict is read from its place in the outcome's text: reading one of a batch of many parsed the whole batch as JSON, and reading all of them
-- did so for each.

ALTER TABLE decision ADD COLUMN verdict_at integer, ADD COLUMN verdict_bytes integer;
ALTER TABLE decision DISABLE TRIGGER USER; -- one that has ended is not changed by anybody else
UPDATE decision d SET verdict_at = octet_length(split_part(e.outcome, p.verdict, 1)), verdict_bytes = octet_length(p.verdict)
	FROM quota_event e CROSS JOIN LATERAL
		(SELECT x.v ->> 'id' AS key, (array_agg(x.v::text ORDER BY x.i DESC))[1] AS verdict
			FROM json_array_elements((e.outcome::json) -> 'verdicts') WITH ORDINALITY AS x(v, i) GROUP BY 1) p
	WHERE e.seq = d.verdict_seq AND p.key = d.key;
ALTER TABLE decision ENABLE TRIGGER USER;
ALTER TABLE decision ALTER COLUMN verdict_at SET NOT NULL, ALTER COLUMN verdict_bytes SET NOT NULL;
COMMENT ON COLUMN decision.verdict_at IS 'how many bytes of the outcome are before its verdict, which is verdict_bytes long';
