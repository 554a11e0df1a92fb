-- oldest-binary: 0.1.0
-- Jobs that ended because a GPU or a node failed: what may be refunded. Nothing is refunded by itself.

-- --- critical errors of GPUs ---

CREATE TABLE gpu_xid (
	gpu_id integer NOT NULL REFERENCES gpu,
	at_ns bigint NOT NULL CHECK (at_ns > 0),
	xid integer NOT NULL CHECK (xid BETWEEN 1 AND 100000),
	PRIMARY KEY (gpu_id, at_ns, xid)
);
COMMENT ON TABLE gpu_xid IS 'Critical errors as nodes told them in their statuses, by NVIDIA''s number; of one kind at most one a minute. Never usage.';

-- One that is told late changes what was lost on its day.
CREATE FUNCTION xid_dirties_days() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM tollgate.days_dirty(ARRAY(SELECT DISTINCT b.day FROM added a JOIN tollgate.billing_day b
		ON tollgate.at_ns(a.at_ns) >= b.starts_at AND tollgate.at_ns(a.at_ns) < b.ends_at AND NOT b.dirty));
	RETURN NULL;
END $$;
CREATE TRIGGER xid_dirties_days AFTER INSERT ON gpu_xid REFERENCING NEW TABLE AS added
	FOR EACH STATEMENT EXECUTE FUNCTION xid_dirties_days();

CREATE FUNCTION xid_is_the_programs(p_xid integer) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN p_xid IN (13, 31, 43, 45, 68, 109);
COMMENT ON FUNCTION xid_is_the_programs IS 'errors that a program makes itself, on a sound GPU: an exception, a page fault, a hang, the cleaning up after it';

-- --- what was lost ---

CREATE TABLE lost_hold (
	day date NOT NULL REFERENCES billing_day,
	node_id integer NOT NULL REFERENCES node,
	stream_id integer NOT NULL REFERENCES stream,
	device_id integer NOT NULL REFERENCES device,
	holder_id bigint NOT NULL REFERENCES holder,
	ended_ns bigint NOT NULL,
	cause text NOT NULL CHECK (cause IN ('gpu-down', 'node-silent', 'xid')),
	xid integer,
	failed_gpu_id integer NOT NULL REFERENCES gpu,
	PRIMARY KEY (device_id, holder_id, ended_ns)
);
CREATE INDEX lost_hold_day ON lost_hold (day);
COMMENT ON TABLE lost_hold IS 'Devices that a workload lost because a GPU or the node failed, by the day it did: made with the day, from records that are gone later.';
COMMENT ON COLUMN lost_hold.cause IS 'gpu-down: the GPU was down from then on; node-silent: nothing accounts for it from then on; xid: a critical error, and the GPU went on';
COMMENT ON COLUMN lost_hold.failed_gpu_id IS 'the GPU that failed: another one, where the workload held several';

CREATE FUNCTION refund_id(p_device integer, p_holder bigint, p_ended_ns bigint) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
	RETURN left(encode(sha256(convert_to(p_device || ' ' || p_holder || ' ' || p_ended_ns, 'UTF8')), 'hex'), 16);
COMMENT ON FUNCTION refund_id IS 'the name of a lost hold, by which a credit says what it is for';

-- Only GPU-hours in which somebody held, or has just held, and then something was down, silent for five minutes, or had an error, are looked
-- at record by record.
--  1. a stay has ended where no record of its holder and device goes on within ten minutes
--  2. the GPU is down within a minute after: gpu-down
--  3. nothing accounts for the GPU for ten minutes, and the node's accounts have passed them: node-silent
--  4. the GPU had a critical error that was not the program's own, at most ten minutes before or a minute after: xid
CREATE FUNCTION lost_stays(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (node_id integer, stream_id integer, device_id integer, holder_id bigint, ended_ns bigint, cause text, xid integer, failed_gpu_id integer)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan AS $$
DECLARE
	minute constant bigint := 60000000000;
	g record;
	h bigint;
BEGIN
	FOR g IN
		SELECT o.hour, o.node_id, array_agg(DISTINCT o.gpu_id) AS gpus FROM (
			SELECT x.hour, x.node_id, x.gpu_id FROM (
				SELECT s.*, lag(s.held) OVER w AS held_before, lead(s.gap) OVER w AS gap_after FROM (
					SELECT u.hour, u.node_id, d.gpu_id, sum(u.used + u.idle + u.unmeasured) AS held, sum(u.down) AS down,
						coalesce(sum(u.unknown) FILTER (WHERE u.sharing = 0), 0) AS gap
					FROM tollgate.usage_rows(p_from - interval '1 hour', p_until + interval '1 hour') u JOIN tollgate.device d ON d.id = u.device_id
					GROUP BY u.hour, u.node_id, d.gpu_id
				) s WINDOW w AS (PARTITION BY s.node_id, s.gpu_id ORDER BY s.hour)
			) x WHERE (x.held > 0 OR x.held_before > 0) AND (x.down > 0 OR greatest(x.gap, x.gap_after) >= 5 * minute::numeric * 5040)
			UNION ALL
			SELECT tollgate.hour_of(t.at_ns), s.node_id, x.gpu_id FROM tollgate.gpu_xid x
				JOIN tollgate.gpu_service s ON s.gpu_id = x.gpu_id AND int8range(s.from_ns, s.until_ns) @> x.at_ns
				CROSS JOIN LATERAL (VALUES (x.at_ns - minute), (x.at_ns + 10 * minute)) t(at_ns)
			WHERE x.at_ns >= tollgate.ns_of(p_from) - 10 * minute AND x.at_ns < tollgate.ns_of(p_until) + minute
				AND NOT tollgate.xid_is_the_programs(x.xid)
		) o WHERE o.hour >= p_from AND o.hour < p_until GROUP BY 1, 2 ORDER BY 1, 2
	LOOP
		h := tollgate.ns_of(g.hour);
		RETURN QUERY
		WITH records AS MATERIALIZED (
			SELECT d.gpu_id, i.device_id, i.holder_id, i.stream_id, i.state, i.start_ns, i.start_ns + i.duration_ns AS end_ns
			FROM tollgate.usage_interval i JOIN tollgate.device d ON d.id = i.device_id
			WHERE i.node_id = g.node_id AND i.start_ns >= h - 15 * minute AND i.start_ns < h + 70 * minute AND d.gpu_id = ANY (g.gpus)
		), ends AS (
			SELECT r.gpu_id, r.device_id, r.holder_id, max(r.stream_id) AS stream_id, r.end_ns FROM records r
			WHERE r.state = 1 AND r.end_ns >= h AND r.end_ns < h + 60 * minute AND NOT EXISTS (SELECT FROM records n
				WHERE n.device_id = r.device_id AND n.holder_id = r.holder_id AND n.end_ns > r.end_ns AND n.start_ns <= r.end_ns + 10 * minute)
			GROUP BY r.gpu_id, r.device_id, r.holder_id, r.end_ns
		), judged AS (
			SELECT e.*, CASE
				WHEN EXISTS (SELECT FROM records r WHERE r.gpu_id = e.gpu_id AND r.state = 4 AND r.start_ns BETWEEN e.end_ns AND e.end_ns + minute)
					THEN 'gpu-down'
				WHEN NOT EXISTS (SELECT FROM records r WHERE r.gpu_id = e.gpu_id AND r.end_ns > e.end_ns AND r.start_ns <= e.end_ns + 10 * minute)
					AND EXISTS (SELECT FROM tollgate.node n WHERE n.id = g.node_id
						AND greatest(n.covered_until_ns, n.silent_until_ns) >= e.end_ns + 10 * minute)
					THEN 'node-silent'
				WHEN EXISTS (SELECT FROM tollgate.gpu_xid x WHERE x.gpu_id = e.gpu_id AND NOT tollgate.xid_is_the_programs(x.xid)
					AND x.at_ns BETWEEN e.end_ns - 10 * minute AND e.end_ns + minute)
					THEN 'xid' END AS cause
			FROM ends e
		)
		SELECT g.node_id, j.stream_id, j.device_id, j.holder_id, j.end_ns, j.cause,
			(SELECT x.xid FROM tollgate.gpu_xid x WHERE x.gpu_id = j.gpu_id AND NOT tollgate.xid_is_the_programs(x.xid)
				AND x.at_ns BETWEEN j.end_ns - 10 * minute AND j.end_ns + minute ORDER BY x.at_ns DESC LIMIT 1), j.gpu_id
		FROM judged j WHERE j.cause IS NOT NULL;
	END LOOP;
END $$;

-- Those, and the other devices of the same pod or job, which it gave up at that time: from a minute before until ten minutes after.
CREATE FUNCTION lost_holds(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (node_id integer, stream_id integer, device_id integer, holder_id bigint, ended_ns bigint, cause text, xid integer, failed_gpu_id integer)
LANGUAGE sql STABLE
BEGIN ATOMIC
	WITH failed AS MATERIALIZED (
		SELECT s.* FROM lost_stays(p_from, p_until) s
	)
	SELECT f.* FROM failed f
	UNION ALL
	SELECT DISTINCT ON (k.device_id, f.holder_id) k.node_id, k.stream_id, k.device_id, f.holder_id, k.end_ns, f.cause, f.xid, f.failed_gpu_id
	FROM failed f JOIN holder o ON o.id = f.holder_id AND o.kind <> 3
		CROSS JOIN LATERAL (SELECT i.node_id, max(i.stream_id) AS stream_id, i.device_id, max(i.start_ns + i.duration_ns) AS end_ns
			FROM usage_interval i WHERE i.holder_id = f.holder_id AND i.start_ns >= f.ended_ns - 900000000000 AND i.start_ns < f.ended_ns + 1500000000000
			GROUP BY i.node_id, i.device_id) k
	WHERE k.end_ns >= f.ended_ns - 60000000000 AND k.end_ns < f.ended_ns + 600000000000
		AND NOT EXISTS (SELECT FROM failed m WHERE m.device_id = k.device_id AND m.holder_id = f.holder_id);
END;
COMMENT ON FUNCTION lost_holds IS 'What was lost in a range of billing hours, as far as its records are kept: folding stores it, days that are not folded are read through it.';

-- A node that was silent, and whose exporter went on in the same boot, was not lost: its workloads were not seen, and that is all.
CREATE FUNCTION lost_rows(p_from timestamptz, p_until timestamptz)
RETURNS TABLE (node_id integer, stream_id integer, device_id integer, holder_id bigint, ended_ns bigint, cause text, xid integer, failed_gpu_id integer)
LANGUAGE sql STABLE
BEGIN ATOMIC
	SELECT l.* FROM (
		SELECT s.node_id, s.stream_id, s.device_id, s.holder_id, s.ended_ns, s.cause, s.xid, s.failed_gpu_id
		FROM lost_hold s JOIN billing_day b ON b.day = s.day
		WHERE b.starts_at >= p_from AND b.starts_at < p_until
			AND (NOT b.dirty OR EXISTS (SELECT FROM node_hour h WHERE h.node_id = s.node_id AND h.hour = hour_of(s.ended_ns) AND h.retired))
		UNION
		SELECT x.* FROM billing_day b, LATERAL lost_holds(b.starts_at, b.ends_at) x
		WHERE b.starts_at >= p_from AND b.starts_at < p_until AND b.dirty
	) l
	WHERE l.cause <> 'node-silent' OR NOT EXISTS (SELECT FROM stream m JOIN stream s ON s.node_id = m.node_id AND s.boot_id = m.boot_id
		WHERE m.id = l.stream_id AND s.covered_until_ns > l.ended_ns + 600000000000);
END;
COMMENT ON FUNCTION lost_rows IS 'What was lost on the billing days that begin in the range.';

-- Days that were folded before, as far as their records are there.
INSERT INTO lost_hold SELECT b.day, x.* FROM billing_day b, LATERAL lost_holds(b.starts_at, b.ends_at) x
	WHERE NOT b.dirty AND b.ends_at > now() - interval '9 days' ON CONFLICT DO NOTHING;

-- --- what a credit is for ---

ALTER TABLE adjustment ADD refund text CHECK (refund IS NULL OR (refund ~ '^[0-9a-f]{16}$' AND amount < 0 AND reverses IS NULL));
CREATE INDEX adjustment_refund ON adjustment (refund) WHERE refund IS NOT NULL;
COMMENT ON COLUMN adjustment.refund IS 'the lost hold that this is a credit for (refund_id)';
