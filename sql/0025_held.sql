-- oldest-binary: 0.1.0
-- Which node a GPU is counted on.

-- For quota, and for what a node may say of a GPU:
--  1. a GPU in service is on the node that it is in service on, with the ledger's model, whoever else shows it
--  2. one that nobody has in service is on the node that shows it, if exactly one does
CREATE VIEW gpu_place AS
	SELECT s.node_id, s.uuid, s.short_model AS model, true AS in_service FROM gpu_now s
	UNION ALL
	SELECT min(l.node_id), l.uuid, min(l.short_model), false
	FROM live_gpu l
	WHERE NOT EXISTS (SELECT FROM gpu g JOIN gpu_service v ON v.gpu_id = g.id AND v.until_ns IS NULL WHERE g.uuid = l.uuid)
	GROUP BY l.uuid HAVING count(*) = 1;
COMMENT ON VIEW gpu_place IS 'Every GPU that is counted, on one node: where it is in service, else where alone it is shown.';
