-- oldest-binary: 0.1.0
-- Pushes of several streams of one node at the same time: they begin anew only when a service has ended, and lock in one order.

-- A push reads the services of its node and judges by them; then it locks the node's row (node_hours_touch), or has done so before (a group
-- of steady pushes). A service is ended under a lock of that row (services_stay): the end waits for a push that has the lock, and finds its
-- records; a push without the lock finds that other services have ended than it had read, and begins anew. node.behind is no measure of that: every push
-- of an older stream changes it, and pushes of a node's other streams began anew until their attempts were used up.
CREATE FUNCTION services_ended(p_node integer) RETURNS bigint LANGUAGE sql STABLE
	RETURN (SELECT coalesce(hashtextextended(string_agg(s.id || ' ' || s.until_ns, ',' ORDER BY s.id), 0), 0)
		FROM gpu_service s WHERE s.node_id = p_node AND s.until_ns IS NOT NULL);
COMMENT ON FUNCTION services_ended IS 'A hash of the services of a node that have ended, and when.';
DROP FUNCTION services_as_read(bigint, bigint);
CREATE FUNCTION services_as_read(p_node integer, p_read bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	IF p_read <> tollgate.services_ended(p_node) THEN
		RAISE EXCEPTION 'a GPU of the node was moved away or retired' USING ERRCODE = 'serialization_failure';
	END IF;
	RETURN true;
END $$;
COMMENT ON FUNCTION services_as_read IS 'services_ended() is what it was when the services of the node were read; p_read is NULL where they were not. The node''s row is locked.';
COMMENT ON COLUMN node.behind IS 'how often records came behind what had been covered, or a GPU was moved away: a push that has summed up what went before begins anew';

-- As before; and the node's row is locked before its hours, as by every push. A push and a declared state waited for each other.
CREATE OR REPLACE FUNCTION node_hours_change(p_node integer, p_from timestamptz, p_until timestamptz, p_changes integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM tollgate.node n WHERE n.id = p_node FOR NO KEY UPDATE;
	PERFORM FROM tollgate.node_hour h WHERE h.node_id = p_node AND h.hour >= p_from AND h.hour < p_until ORDER BY h.hour FOR SHARE;
	UPDATE tollgate.node_hour h SET dirty = true, changes = h.changes + p_changes
		WHERE h.node_id = p_node AND h.hour >= p_from AND h.hour < p_until AND h.sealed_at IS NOT NULL AND (NOT h.dirty OR p_changes > 0);
END $$;
