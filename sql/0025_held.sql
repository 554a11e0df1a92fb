-- oldest-binary: 0.1.0
-- Nodes that nobody declared or approved are held: their batches are kept, and nothing is made from them until somebody approves the
-- node. Which node a GPU is counted on.

ALTER TABLE node
	ADD COLUMN approved_at timestamptz,
	ADD COLUMN approved_by text CHECK (approved_by <> ''),
	ADD COLUMN held boolean NOT NULL DEFAULT true,
	ADD COLUMN held_bytes bigint NOT NULL DEFAULT 0 CHECK (held_bytes >= 0),
	ADD CONSTRAINT approval_is_whole CHECK ((approved_at IS NULL) = (approved_by IS NULL)),
	ADD CONSTRAINT held_until_approved CHECK (held OR approved_at IS NOT NULL);
COMMENT ON COLUMN node.approved_at IS 'NULL: no policy declared it, no token was made for its name, and nobody approved it';
COMMENT ON COLUMN node.held IS 'its batches are put aside: it is not approved, or what it sent before that is still being taken in';
COMMENT ON COLUMN node.held_bytes IS 'of the batches put aside';
CREATE INDEX node_held ON node (approved_at) WHERE held;

-- What was billed, declared or named by an operator counts as approved.
UPDATE node n SET approved_at = now(), approved_by = 'migration 0025', held = false
	WHERE EXISTS (SELECT FROM gpu_service v WHERE v.node_id = n.id) OR EXISTS (SELECT FROM node_owner o WHERE o.node_id = n.id)
		OR EXISTS (SELECT FROM node_hour h WHERE h.node_id = n.id)
		OR EXISTS (SELECT FROM access_token k LEFT JOIN join_token j ON j.id = k.join_token_id
			WHERE k.node = n.name AND (j.id IS NULL OR j.node IS NOT NULL));

ALTER TABLE ingest_batch ADD COLUMN held_ns bigint;
COMMENT ON COLUMN ingest_batch.held_ns IS 'put aside because its node is held: when it came, by the clock that judges it; NULL: it never was, or has been judged since';
CREATE INDEX ingest_batch_held ON ingest_batch (stream_id, seq) WHERE held_ns IS NOT NULL;
ALTER TABLE ingest_batch DROP CONSTRAINT ingest_batch_class_check,
	ADD CONSTRAINT ingest_batch_class_check CHECK (class IN ('format', 'dictionary', 'skewed-clock', 'future', 'past', 'covered', 'unknown-id', 'weight',
		'two-nodes', 'retired', 'unproved', 'unapproved', 'energy'));

-- Approves a node; whether it was not before. With p_make it is made where it was never seen: a token for its name comes first.
-- What it sent while it was held is taken in afterwards (store/ingest_held.c).
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

-- For quota, and for what a node may say of a GPU:
--  1. a GPU in service is on the node that it is in service on, with the ledger's model, whoever else shows it
--  2. one that nobody has in service is on the node that shows it, if exactly one approved node does
CREATE VIEW gpu_place AS
	SELECT s.node_id, s.uuid, s.short_model AS model, true AS in_service FROM gpu_now s
	UNION ALL
	SELECT min(l.node_id), l.uuid, min(l.short_model), false
	FROM live_gpu l JOIN node n ON n.id = l.node_id AND n.approved_at IS NOT NULL
	WHERE NOT EXISTS (SELECT FROM gpu g JOIN gpu_service v ON v.gpu_id = g.id AND v.until_ns IS NULL WHERE g.uuid = l.uuid)
	GROUP BY l.uuid HAVING count(*) = 1;
COMMENT ON VIEW gpu_place IS 'Every GPU that is counted, on one node: where it is in service, else where alone it is shown.';
