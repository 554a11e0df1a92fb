-- oldest-binary: 0.1.0
-- What the large events of a month add up to, for the limit on it: of a tenant's workspaces and of a namespace. The conditions are those of store/event_store.c.

CREATE INDEX meter_event_large ON meter_event (workspace_id, time_ns)
	WHERE ((type = 4 AND amount >= 10) OR (type IN (1, 2) AND amount >= 10000) OR greatest(requests, input_tokens, output_tokens) >= 10000000);
CREATE INDEX meter_event_large_of_holder ON meter_event (holder_id, time_ns)
	WHERE ((type = 4 AND amount >= 10) OR (type IN (1, 2) AND amount >= 10000) OR greatest(requests, input_tokens, output_tokens) >= 10000000)
		AND holder_id IS NOT NULL;
