-- oldest-binary: 0.2.0
-- Which node has a GPU in service, and how a GPU leaves its node. Records of a GPU that another node has are set aside, by batch and GPU.

CREATE FUNCTION services_stay(p_node integer) RETURNS void LANGUAGE sql VOLATILE
	BEGIN ATOMIC
		UPDATE node SET behind = behind + 1 WHERE id = p_node;
	END;
COMMENT ON FUNCTION services_stay IS 'No push of the node is judged by its services of before when this transaction is over.';

-- A push reads the services of its node and judges by them; then it locks the node's row (node_hours_touch), or has done so before (a group
-- of steady pushes). A service is ended under a lock of that row (services_stay): the end waits for a push that has the lock, and finds its
-- records; a push without the lock finds that other services have ended than it had read, and starts again. node.behind does not tell that: every push
-- of an older stream changes it, and pushes of a node's other streams would start again until their attempts were used up.
CREATE FUNCTION services_ended(p_node integer) RETURNS bigint LANGUAGE sql STABLE
	RETURN (SELECT coalesce(hashtextextended(string_agg(s.id || ' ' || s.until_ns, ',' ORDER BY s.id), 0), 0)
		FROM gpu_service s WHERE s.node_id = p_node AND s.until_ns IS NOT NULL);
COMMENT ON FUNCTION services_ended IS 'A hash of the services of a node that have ended, and when.';

CREATE FUNCTION services_as_read(p_node integer, p_read bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	IF p_read <> tollgate.services_ended(p_node) THEN
		RAISE EXCEPTION 'a GPU of the node was moved away or retired' USING ERRCODE = 'serialization_failure';
	END IF;
	RETURN true;
END $$;
COMMENT ON FUNCTION services_as_read IS 'services_ended() is what it was when the services of the node were read; p_read is NULL where they were not. The node''s row is locked.';

-- Records are looked for backwards, from where the service or what its node has covered ends, in stretches that double.
CREATE FUNCTION gpu_last_ns(p_service gpu_service) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
	end_ns bigint := least(p_service.until_ns, (SELECT n.covered_until_ns FROM tollgate.node n WHERE n.id = p_service.node_id));
	devices integer[] := ARRAY(SELECT d.id FROM tollgate.device d WHERE d.gpu_id = p_service.gpu_id);
	step_ns bigint := 3600000000000;
	last_ns bigint;
BEGIN
	WHILE end_ns > p_service.from_ns LOOP
		SELECT max(i.start_ns + i.duration_ns) INTO last_ns FROM tollgate.usage_interval i
			WHERE i.node_id = p_service.node_id AND i.device_id = ANY (devices)
				AND i.start_ns >= greatest(end_ns - step_ns, p_service.from_ns) AND i.start_ns < end_ns;
		IF last_ns IS NOT NULL THEN
			RETURN last_ns;
		END IF;
		end_ns := end_ns - step_ns;
		step_ns := 2 * step_ns;
	END LOOP;
	RETURN (SELECT least(tollgate.ns_of(max(u.hour)) + 3600000000000, p_service.until_ns) FROM tollgate.usage_hourly u
		WHERE u.node_id = p_service.node_id AND u.hour >= tollgate.hour_of(p_service.from_ns) AND (p_service.until_ns IS NULL OR u.hour < tollgate.at_ns(p_service.until_ns))
			AND u.sharing <> 0 AND u.device_id = ANY (devices));
END $$;
COMMENT ON FUNCTION gpu_last_ns IS 'where the records of a GPU in a service end; by the hour where they are kept no longer; NULL: there are none';

-- The service that a GPU had last ends at p_at_ns, but not before its last record, and p_to may have it from then on. NULL: it never
-- served, or has it there already; else where the service ended.
CREATE FUNCTION gpu_move(p_gpu integer, p_to integer, p_at_ns bigint, p_actor text, p_why text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	was tollgate.gpu_service;
	end_ns bigint;
BEGIN
	PERFORM FROM tollgate.gpu g WHERE g.id = p_gpu FOR NO KEY UPDATE;
	SELECT * INTO was FROM tollgate.gpu_service s WHERE s.gpu_id = p_gpu ORDER BY s.from_ns DESC LIMIT 1;
	IF NOT FOUND OR (was.until_ns IS NULL AND was.node_id = p_to) OR was.moved_to = p_to THEN
		RETURN NULL;
	END IF;
	IF was.until_ns IS NULL THEN
		PERFORM tollgate.services_stay(was.node_id);
	END IF;
	end_ns := coalesce(was.until_ns, greatest(was.from_ns, p_at_ns, tollgate.gpu_last_ns(was)));
	UPDATE tollgate.gpu_service s SET until_ns = end_ns, moved_to = p_to WHERE s.id = was.id;
	IF was.until_ns IS NULL THEN
		PERFORM tollgate.node_hours_dirty(was.node_id, end_ns);
	END IF;
	INSERT INTO tollgate.audit_log (actor, action, subject, before, after, reason)
		SELECT p_actor, 'gpu.move', 'GPU ' || g.uuid, jsonb_build_object('node', n.name),
			jsonb_build_object('node', t.name, 'until', tollgate.rfc3339(tollgate.at_ns(end_ns))), p_why
		FROM tollgate.gpu g, tollgate.node n, tollgate.node t WHERE g.id = p_gpu AND n.id = was.node_id AND t.id = p_to;
	RETURN end_ns;
END $$;
COMMENT ON FUNCTION gpu_move IS 'A GPU leaves the node that has it: by policy, by an operator, by its own node''s report, or because a declared node has it.';

-- A node's own report that a GPU is gone:
--  1. no record and no record that is set aside reaches beyond the beginning of the time claimed
--  2. a later batch accounts for all of the node's GPUs until the end of that time, and for ten minutes at least, without it
--  3. its last status does not show it
CREATE FUNCTION gpu_has_left(p_node integer, p_gpu integer, p_from_ns bigint, p_until_ns bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	last_ns bigint;
BEGIN
	IF EXISTS (SELECT FROM tollgate.node n WHERE n.id = p_node AND n.covered_until_ns < p_until_ns)
		OR EXISTS (SELECT FROM tollgate.gpu g JOIN tollgate.live_gpu l ON l.uuid = g.uuid WHERE g.id = p_gpu AND l.node_id = p_node)
		OR EXISTS (SELECT FROM tollgate.usage_interval i WHERE i.node_id = p_node AND i.start_ns >= p_from_ns - 900000000000
			AND i.start_ns + i.duration_ns > p_from_ns AND i.device_id IN (SELECT d.id FROM tollgate.device d WHERE d.gpu_id = p_gpu))
		OR EXISTS (SELECT FROM tollgate.usage_hourly u WHERE u.node_id = p_node AND u.hour >= tollgate.hour_of(p_from_ns) AND u.sharing <> 0
			AND u.device_id IN (SELECT d.id FROM tollgate.device d WHERE d.gpu_id = p_gpu))
		OR EXISTS (SELECT FROM tollgate.batch_set_aside a JOIN tollgate.stream s ON s.id = a.stream_id JOIN tollgate.gpu g ON g.uuid = a.gpu
			WHERE g.id = p_gpu AND s.node_id = p_node AND a.to_ns > p_from_ns) THEN
		RETURN false;
	END IF;
	last_ns := coalesce((SELECT tollgate.gpu_last_ns(s) FROM tollgate.gpu_service s WHERE s.gpu_id = p_gpu AND s.node_id = p_node ORDER BY s.from_ns DESC LIMIT 1), 0);
	RETURN EXISTS (SELECT FROM tollgate.stream s CROSS JOIN LATERAL (SELECT b.from_ns, b.to_ns FROM tollgate.ingest_batch b
			WHERE b.stream_id = s.id AND b.status = 'accepted' ORDER BY b.seq DESC LIMIT 1) b
		WHERE s.node_id = p_node AND b.from_ns >= last_ns AND b.to_ns >= greatest(p_until_ns, last_ns + 600000000000));
END $$;

-- Puts a GPU that a node reports over a stretch of time into service there. class is NULL when that is possible, else it says why not.
--  1. what is retired serves nowhere
--  2. where the policy lists a GPU, no other node has it
--  3. a service of this node is stretched to cover it, unless another service or a retirement lies in the way, or it was moved away;
--     the GPU's last service, ended by a retirement that was taken back, goes on until the next one
--  4. a GPU in service on another node stays there, unless
--     a. that node's own batches say that it is gone
--     b. this node is declared and that one is not, and this is no late report: one that ends more than a quarter-hour before the
--        other node's last record does not say who has it now. The other node's service ends with its last record: a report that
--        begins before that is set aside all the same, and the next one counts. A report that ends before the other node's service begins
--        is entered, and ends nothing
--  5. a GPU that was moved is for the node it was moved to
--  6. else it is entered, if it overlaps nothing
-- Nothing is written unless the GPU is entered, except the end of the other node's service in 4b.
CREATE FUNCTION gpu_serve(p_node integer, p_gpu integer, p_from_ns bigint, p_until_ns bigint, OUT class text, OUT why text) LANGUAGE plpgsql AS $$
DECLARE
	mine tollgate.gpu_service;
	other record;
	beside record;
	reach int8range;
	is_gone boolean := false;
	outranks boolean := false;
	is_beaten boolean := false;
	ends_ns bigint;
BEGIN
	PERFORM FROM tollgate.gpu g WHERE g.id = p_gpu FOR NO KEY UPDATE;
	IF tollgate.is_retired(p_node, p_gpu, p_from_ns, p_until_ns) THEN
		class := 'retired';
		why := 'was declared retired for that time';
		RETURN;
	END IF;
	SELECT n.name INTO other FROM tollgate.gpu_declared d JOIN tollgate.node n ON n.id = d.node_id
		WHERE d.gpu_id = p_gpu AND d.node_id <> p_node AND d.effective @> tollgate.hour_of(p_from_ns);
	IF FOUND THEN
		class := 'two-nodes';
		why := 'is listed under node ' || other.name || ' by the policy';
		RETURN;
	END IF;
	FOR mine IN SELECT * FROM tollgate.gpu_service s WHERE s.gpu_id = p_gpu AND s.node_id = p_node ORDER BY s.from_ns DESC LOOP
		reach := int8range(least(mine.from_ns, p_from_ns), CASE WHEN mine.until_ns IS NOT NULL THEN greatest(mine.until_ns, p_until_ns) END);
		CONTINUE WHEN EXISTS (SELECT FROM tollgate.gpu_service s
			WHERE s.gpu_id = p_gpu AND s.id <> mine.id AND int8range(s.from_ns, s.until_ns) && reach)
			OR (mine.until_ns < p_from_ns AND tollgate.is_retired(p_node, p_gpu, mine.until_ns, p_from_ns))
			OR (mine.moved_to IS NOT NULL AND p_until_ns > mine.until_ns);
		IF upper(reach) > mine.until_ns AND NOT EXISTS (SELECT FROM tollgate.gpu_service s WHERE s.gpu_id = p_gpu AND s.from_ns > mine.from_ns) THEN
			reach := int8range(lower(reach), tollgate.retired_from(p_node, p_gpu, p_until_ns));
		END IF;
		IF lower(reach) < mine.from_ns OR upper(reach) IS DISTINCT FROM mine.until_ns THEN
			UPDATE tollgate.gpu_service s SET from_ns = lower(reach), until_ns = upper(reach) WHERE s.id = mine.id;
			PERFORM tollgate.node_hours_dirty(p_node, least(p_from_ns, mine.until_ns));
		END IF;
		RETURN;
	END LOOP;

	SELECT s.id, s.node_id, s.from_ns, s.until_ns, s.moved_to, n.name, t.name AS next INTO other FROM tollgate.gpu_service s
		JOIN tollgate.node n ON n.id = s.node_id LEFT JOIN tollgate.node t ON t.id = s.moved_to
		WHERE s.gpu_id = p_gpu ORDER BY s.from_ns DESC LIMIT 1;
	IF other.until_ns IS NULL AND other.node_id <> p_node THEN
		-- Twice: before the other node's row is locked, so that a claim that comes to nothing keeps nobody waiting, and after what it had under way.
		FOR pass IN 1 .. 2 LOOP
			is_gone := tollgate.gpu_has_left(other.node_id, p_gpu, p_from_ns, p_until_ns);
			outranks := NOT is_gone AND tollgate.node_is_declared(p_node, p_from_ns) AND NOT tollgate.node_is_declared(other.node_id, p_from_ns);
			IF is_gone OR (outranks AND p_until_ns > other.from_ns) THEN
				ends_ns := (SELECT greatest(s.from_ns, tollgate.gpu_last_ns(s)) FROM tollgate.gpu_service s WHERE s.id = other.id);
				is_beaten := outranks AND p_until_ns + 900000000000 >= ends_ns;
			END IF;
			EXIT WHEN NOT is_gone AND NOT is_beaten;
			IF pass = 1 THEN
				PERFORM FROM tollgate.node n WHERE n.id = other.node_id FOR NO KEY UPDATE;
			END IF;
		END LOOP;
		IF NOT is_gone AND NOT is_beaten AND NOT (outranks AND p_until_ns <= other.from_ns) THEN
			class := 'two-nodes';
			why := 'is in service on node ' || other.name;
			RETURN;
		END IF;
	ELSIF other.moved_to <> p_node THEN
		class := 'two-nodes';
		why := 'was moved to node ' || other.next;
		RETURN;
	END IF;

	IF NOT EXISTS (SELECT FROM tollgate.gpu_service s WHERE s.gpu_id = p_gpu AND s.from_ns >= p_from_ns) THEN
		-- In service from then on, until a retirement that is declared already.
		p_until_ns := tollgate.retired_from(p_node, p_gpu, p_until_ns);
	END IF;
	SELECT n.name INTO beside FROM tollgate.gpu_service s JOIN tollgate.node n ON n.id = s.node_id
		WHERE s.gpu_id = p_gpu AND int8range(s.from_ns, CASE WHEN s.id = other.id AND (is_gone OR is_beaten) THEN ends_ns ELSE s.until_ns END)
			&& int8range(p_from_ns, p_until_ns) LIMIT 1;
	IF FOUND THEN
		class := 'two-nodes';
		why := 'was in service on node ' || beside.name || ' at that time';
	END IF;
	IF is_beaten THEN
		PERFORM tollgate.gpu_move(p_gpu, p_node, 0, 'node ' || n.name, 'a node of the policy has it, and node ' || other.name || ' is not declared')
			FROM tollgate.node n WHERE n.id = p_node;
	ELSIF is_gone AND class IS NULL THEN
		PERFORM tollgate.gpu_move(p_gpu, p_node, 0, 'node ' || other.name, 'its batches account for the time without it');
	END IF;
	IF class IS NOT NULL THEN
		RETURN;
	END IF;
	INSERT INTO tollgate.gpu_service (gpu_id, node_id, from_ns, until_ns) VALUES (p_gpu, p_node, p_from_ns, p_until_ns);
	PERFORM tollgate.node_hours_dirty(p_node, p_from_ns);
END $$;

-- How many other GPUs (of a model, or of all) a node has at that time: those that it has just brought, and those that had records in the quarter-hour before. One
-- that was taken out counts no longer, though its service goes on until somebody else has it.
CREATE FUNCTION gpus_beside(p_node integer, p_gpu integer, p_model text, p_from_ns bigint, p_until_ns bigint) RETURNS bigint LANGUAGE sql STABLE
	BEGIN ATOMIC
		SELECT count(DISTINCT s.gpu_id) FROM gpu_service s JOIN gpu g ON g.id = s.gpu_id
			WHERE s.node_id = p_node AND s.gpu_id IS DISTINCT FROM p_gpu AND (p_model IS NULL OR g.short_model = p_model)
				AND int8range(s.from_ns, s.until_ns) && int8range(p_from_ns, p_until_ns)
				AND (s.from_ns >= p_from_ns - 900000000000
					OR EXISTS (SELECT FROM usage_interval i WHERE i.node_id = p_node AND i.start_ns >= p_from_ns - 900000000000 AND i.start_ns < p_until_ns
						AND i.device_id IN (SELECT d.id FROM device d WHERE d.gpu_id = s.gpu_id))
					OR EXISTS (SELECT FROM usage_hourly u WHERE u.node_id = p_node AND u.hour >= hour_of(p_from_ns) AND u.hour < at_ns(p_until_ns) AND u.sharing <> 0
						AND u.device_id IN (SELECT d.id FROM device d WHERE d.gpu_id = s.gpu_id)));
	END;

-- A GPU as a batch names it, whose records reach from p_from_ns to p_until_ns. class is NULL when they count: then it has a row, is in
-- service on the node, from from_ns to until_ns the last time, and is what the node says it is. Else nothing was written, but for the end of a
-- service by rule 4b of gpu_serve().
CREATE FUNCTION gpu_claim(p_node integer, p_uuid text, p_model text, p_short_model text, p_memory_bytes bigint, p_index integer,
	p_from_ns bigint, p_until_ns bigint, p_stream integer, p_seq bigint, OUT gpu_id integer, OUT class text, OUT why text, OUT from_ns bigint, OUT until_ns bigint)
LANGUAGE plpgsql AS $$
DECLARE
	declared text;
	most bigint;
BEGIN
	SELECT string_agg(DISTINCT d.model, ', ' ORDER BY d.model) INTO declared FROM tollgate.node_declared d
		WHERE d.node_id = p_node AND d.effective @> tollgate.hour_of(p_from_ns);
	IF declared IS NOT NULL AND NOT EXISTS (SELECT FROM tollgate.node_declared d
		WHERE d.node_id = p_node AND d.effective @> tollgate.hour_of(p_from_ns) AND d.model = p_short_model) THEN
		class := 'model';
		why := 'is reported as ' || p_short_model || ', and the policy declares ' || declared || ' of the node';
		RETURN;
	END IF;
	SELECT g.id INTO gpu_id FROM tollgate.gpu g WHERE g.uuid = p_uuid;
	IF NOT EXISTS (SELECT FROM tollgate.gpu_service s WHERE s.gpu_id = gpu_claim.gpu_id AND s.node_id = p_node AND int8range(s.from_ns, s.until_ns) @> p_from_ns) THEN
		SELECT coalesce(sum(d.count), 1024) INTO most FROM tollgate.node_declared d
			WHERE d.node_id = p_node AND d.effective @> tollgate.hour_of(p_from_ns) AND d.model = p_short_model;
		IF tollgate.gpus_beside(p_node, gpu_id, CASE WHEN declared IS NOT NULL THEN p_short_model END, p_from_ns, p_until_ns) >= most THEN
			class := 'model';
			why := 'is one more than the ' || most || CASE WHEN declared IS NOT NULL THEN ' ' || p_short_model || ' that the policy declares of the node'
				ELSE ' that a node may have' END;
			RETURN;
		END IF;
	END IF;
	IF gpu_id IS NULL THEN
		IF tollgate.is_retired(p_node, NULL, p_from_ns, p_until_ns) THEN
			class := 'retired';
			why := 'is on a node that was declared retired for that time';
			RETURN;
		END IF;
		INSERT INTO tollgate.gpu (uuid, model, short_model, memory_bytes, index)
			VALUES (p_uuid, p_model, p_short_model, p_memory_bytes, p_index) ON CONFLICT (uuid) DO NOTHING;
		SELECT g.id INTO STRICT gpu_id FROM tollgate.gpu g WHERE g.uuid = p_uuid;
	END IF;
	SELECT s.class, s.why INTO class, why FROM tollgate.gpu_serve(p_node, gpu_id, p_from_ns, p_until_ns) s;
	IF class IS NULL THEN
		PERFORM tollgate.gpu_describe(p_node, gpu_id, p_model, p_short_model, p_memory_bytes, p_index, p_from_ns, p_stream, p_seq);
		SELECT v.from_ns, v.until_ns INTO from_ns, until_ns FROM tollgate.gpu_service v
			WHERE v.gpu_id = gpu_claim.gpu_id AND v.node_id = p_node ORDER BY v.from_ns DESC LIMIT 1;
	END IF;
END $$;
COMMENT ON FUNCTION gpu_claim IS 'Whether the records of a GPU count on a node, for a stretch of time: the only writer of gpu and gpu_spec, and the only one that begins a service.';

CREATE FUNCTION declared_gpu_moves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM tollgate.gpu_move(NEW.gpu_id, NEW.node_id, tollgate.ns_of(lower(NEW.effective)), 'policy', 'the policy lists it under the node');
	RETURN NULL;
END $$;
CREATE TRIGGER declared_gpu_moves AFTER INSERT ON gpu_declared FOR EACH ROW EXECUTE FUNCTION declared_gpu_moves();

-- A policy that is replaced before its hour has moved nothing.
CREATE FUNCTION declared_gpu_stays() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	stays tollgate.gpu_service;
BEGIN
	PERFORM FROM tollgate.gpu g WHERE g.id = OLD.gpu_id FOR NO KEY UPDATE;
	UPDATE tollgate.gpu_service s SET until_ns = NULL, moved_to = NULL
		WHERE s.gpu_id = OLD.gpu_id AND s.moved_to = OLD.node_id AND s.until_ns = tollgate.ns_of(lower(OLD.effective))
			AND NOT EXISTS (SELECT FROM tollgate.gpu_service l WHERE l.gpu_id = s.gpu_id AND l.from_ns > s.from_ns) RETURNING s.* INTO stays;
	IF FOUND THEN
		PERFORM tollgate.node_hours_dirty(stays.node_id, tollgate.ns_of(lower(OLD.effective)));
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER declared_gpu_stays AFTER DELETE ON gpu_declared FOR EACH ROW EXECUTE FUNCTION declared_gpu_stays();

-- Approves a node; whether it was not before. With p_make it is made where it was never seen: a token for its name comes first.
-- Batches that it sent while it was held are taken in afterwards (aggregator/store/ingest).
CREATE FUNCTION node_approve(p_name text, p_by text, p_reason text, p_make boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	n tollgate.node;
	batches bigint;
BEGIN
	IF p_make THEN
		INSERT INTO tollgate.node (cluster_id, name) SELECT l.cluster_id, p_name FROM tollgate.ledger l ON CONFLICT (name) DO NOTHING;
	END IF;
	-- Pushes of a held node lock its row: what they put aside is counted below.
	SELECT * INTO n FROM tollgate.node x WHERE x.name = p_name FOR NO KEY UPDATE;
	IF NOT FOUND OR n.approved_at IS NOT NULL THEN
		RETURN false;
	END IF;
	SELECT count(*) INTO batches FROM tollgate.stream s JOIN tollgate.ingest_batch b ON b.stream_id = s.id AND b.held_ns IS NOT NULL WHERE s.node_id = n.id;
	UPDATE tollgate.node x SET approved_at = now(), approved_by = p_by, held = batches > 0 WHERE x.id = n.id;
	IF EXISTS (SELECT FROM tollgate.stream s WHERE s.node_id = n.id) OR EXISTS (SELECT FROM tollgate.node_status s WHERE s.node_id = n.id) THEN
		INSERT INTO tollgate.audit_log (actor, action, subject, before, after, reason)
			VALUES (p_by, 'node.approve', 'node ' || p_name, jsonb_build_object('status', 'held', 'batches', batches),
				jsonb_build_object('status', 'approved'), p_reason);
	END IF;
	RETURN true;
END $$;
COMMENT ON FUNCTION node_approve IS 'Its batches count from then on, and those it sent before, as far as their month is open.';
