-- oldest-binary: 0.1.0
-- Which SKUs a tenant has in a month: counted here, because a report has a line for each.

CREATE TABLE event_sku (
	tenant_id integer NOT NULL,
	month date NOT NULL CHECK (extract(day FROM month) = 1),
	sku text NOT NULL,
	PRIMARY KEY (tenant_id, month, sku)
);
COMMENT ON TABLE event_sku IS 'SKUs that events of a tenant have named, by the billing month of the event; they are limited (option tenant-skus).';
COMMENT ON COLUMN event_sku.tenant_id IS 'of the workspace or, when the event came, of the namespace that it names; 0: nobody''s';

INSERT INTO event_sku (tenant_id, month, sku)
SELECT DISTINCT coalesce(w.tenant_id, x.tenant_id, 0), date_trunc('month', at_ns(e.time_ns) AT TIME ZONE l.zone)::date, e.sku
FROM ledger l, meter_event e LEFT JOIN workspace w ON w.id = e.workspace_id
LEFT JOIN holder_attribution y ON y.holder_id = e.holder_id AND y.effective @> at_ns(e.time_ns) LEFT JOIN workspace x ON x.id = y.workspace_id
WHERE e.sku <> '';
