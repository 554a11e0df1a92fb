-- The rights of each login. tollgate.daemon_role and tollgate.rollup_role name the roles.
--
-- Rules, in order:
--  1. nobody has any right that is not given here
--  2. the daemon reads everything and writes inputs: what people, nodes and schedulers say. The roll-up reads everything but tokens
--  3. a table that is named below has the rights that stand there, one that is named nowhere those of inputs
--  4. what is only ever added to is not changed or removed by anybody
--  5. functions that write for the daemon what it may not write itself, and all triggers, run with the owner's rights and a fixed search_path
--  6. of these each is called by the logins that stand beside it; the others, which have the caller's rights, by both logins
DO $$
DECLARE
	daemon constant text := current_setting('tollgate.daemon_role');
	rollup constant text := current_setting('tollgate.rollup_role');
	inputs constant text := 'SELECT, INSERT, UPDATE, DELETE';
	nobody constant text := format('PUBLIC, %I, %I', daemon, rollup);
	-- Of a batch what was received stays as it is; the rest is what was decided of it.
	decided constant text := (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute a
		WHERE a.attrelid = 'tollgate.ingest_batch'::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attname NOT IN ('stream_id', 'seq', 'last_seq',
			'from_ns', 'to_ns', 'records', 'exporter_version', 'received_at', 'sha256', 'payload'));
	rights constant jsonb := jsonb_build_object(
		'SELECT / SELECT', ARRAY['schema_migration', 'audit_unsealed', 'audit_chain', 'audit_link', 'audit_seal', 'audit_sealed_head', 'gpu_service',
			'gpu', 'gpu_spec', 'gpu_xid', 'row_journal', 'batch_range', 'stream_anchor'],
		-- derived
		'SELECT / ' || inputs, ARRAY['usage_hourly', 'usage_daily', 'node_hour', 'billing_day', 'charge_day', 'reserve_day', 'loan_day',
			'pool_day', 'lost_hold', 'late_change'],
		-- the daemon's are bounded by the trigger slices_are_marked
		'SELECT, INSERT / ' || inputs, ARRAY['usage_slice'],
		'SELECT / SELECT, INSERT', ARRAY['period_close', 'invoice', 'invoice_total', 'invoice_line', 'invoice_document'],
		'SELECT / SELECT, UPDATE', ARRAY['period', 'close_job'],
		'SELECT / SELECT, INSERT, UPDATE', ARRAY['close_progress'],
		'SELECT, INSERT / SELECT, INSERT, DELETE', ARRAY['usage_interval'],
		-- evidence
		'SELECT, INSERT, UPDATE (' || decided || ') / SELECT, DELETE', ARRAY['ingest_batch'],
		'SELECT, INSERT, UPDATE / SELECT, UPDATE (evidence_seq)', ARRAY['stream'],
		'SELECT, INSERT / SELECT', ARRAY['event_sku', 'stream_device', 'stream_holder', 'meter_event', 'quota_event', 'policy_version', 'price_item', 'price_discount',
			'price_site', 'price_weight', 'adjustment_approval'],
		'SELECT, INSERT, DELETE / SELECT', ARRAY['stream_device_entry', 'stream_holder_entry'],
		'SELECT, INSERT, UPDATE (decision, decided_by, decided_at, decided_why) / SELECT', ARRAY['batch_set_aside'],
		-- its number and transaction are the server's
		'SELECT, INSERT (at, actor, action, subject, before, after, reason, tenant_id) / SELECT, INSERT (actor, action, subject, before, after, reason, tenant_id)',
			ARRAY['audit_log'],
		-- the rest
		'SELECT, UPDATE (cluster_id) / SELECT, UPDATE (evidence_from_ns)', ARRAY['ledger'],
		'SELECT, INSERT, UPDATE / SELECT, UPDATE (hours_from, hours_until, silent_until_ns)', ARRAY['node'],
		'SELECT, INSERT, UPDATE / ', ARRAY['access_token', 'join_token'],
		'SELECT, INSERT, UPDATE / SELECT', ARRAY['cluster', 'tenant', 'workspace', 'device', 'holder', 'price_book', 'decision', 'exception', 'adjustment', 'agent_leader'],
		inputs || ' / SELECT', ARRAY['node_owner', 'attribution_rule', 'holder_attribution', 'event_source', 'priority_class', 'tenant_member',
			'workspace_member', 'tenant_quota', 'tenant_limit', 'workspace_quota', 'workspace_limit', 'reservation', 'node_declared', 'node_state',
			'node_status', 'reattribution', 'budget', 'quota_book', 'quota_snapshot', 'reclaim', 'quota_anomaly', 'quota_idle',
			'tenant_auto_approve', 'node_cluster', 'gpu_declared', 'tenant_term', 'workspace_term']);
	definers constant jsonb := jsonb_build_object(
		'daemon', ARRAY['node_hours_touch', 'node_hours_share', 'slices_mark', 'node_hours_reattribute', 'gpu_claim', 'gpu_move', 'xids_told',
			'audit_seal_entries', 'journal_seal_entries', 'close_request', 'close_cancel'],
		'rollup', ARRAY['nodes_fall_silent', 'retire_intervals', 'journal_day'],
		'both', ARRAY['make_partitions', 'make_periods', 'batches_anchor']);
	-- Triggers that only look at their row, or only refuse: they need nobody's rights, and some of them run at every decision.
	judges constant text[] := ARRAY['decision_is_sound', 'quota_book_is_sound', 'quota_never_goes_back', 'audit_log_only_grows', 'closed_is_final',
		'ledger_is_final', 'meter_event_only_grows', 'period_begins_open', 'price_rows_are_final', 'released_stays_released', 'token_is_final', 'row_journal_only_grows', 'journalled_stays',
		'settled_batch_stays', 'set_aside_with_its_batch'];
	t record;
	given text;
BEGIN
	EXECUTE format('REVOKE ALL ON SCHEMA tollgate FROM %s', nobody);
	EXECUTE format('GRANT USAGE ON SCHEMA tollgate TO %I, %I', daemon, rollup);

	FOR t IN SELECT c.oid::regclass AS name, c.relname, c.relkind FROM pg_class c
		WHERE c.relnamespace = 'tollgate'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S') AND NOT c.relispartition
	LOOP
		IF t.relkind = 'S' THEN
			EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM %s', t.name, nobody);
			EXECUTE format('GRANT USAGE ON SEQUENCE %s TO %I', t.name, daemon);
			CONTINUE;
		END IF;
		EXECUTE format('REVOKE ALL ON %s FROM %s', t.name, nobody);
		-- A view has its owner's rights: nobody writes through one.
		given := CASE WHEN t.relkind = 'v' THEN 'SELECT / SELECT'
			ELSE coalesce((SELECT r.key FROM jsonb_each(rights) r WHERE r.value ? t.relname::text), inputs || ' / SELECT') END;
		EXECUTE format('GRANT %s ON %s TO %I', split_part(given, ' / ', 1), t.name, daemon);
		IF split_part(given, ' / ', 2) <> '' THEN
			EXECUTE format('GRANT %s ON %s TO %I', split_part(given, ' / ', 2), t.name, rollup);
		END IF;
	END LOOP;

	FOR t IN SELECT p.oid::regprocedure AS name, p.proname, p.prosecdef, p.prorettype = 'trigger'::regtype AS is_trigger,
			(SELECT d.key FROM jsonb_each(definers) d WHERE d.value ? p.proname::text) AS callers FROM pg_proc p
		WHERE p.pronamespace = 'tollgate'::regnamespace
			AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
	LOOP
		EXECUTE format('REVOKE ALL ON ROUTINE %s FROM %s', t.name, nobody);
		IF t.callers IS NOT NULL OR t.prosecdef OR (t.is_trigger AND t.proname <> ALL (judges)) THEN
			EXECUTE format('ALTER ROUTINE %s SECURITY DEFINER SET search_path = tollgate, pg_temp', t.name);
		END IF;
		CONTINUE WHEN t.is_trigger;
		IF t.callers IS DISTINCT FROM 'rollup' THEN
			EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', t.name, daemon);
		END IF;
		IF t.callers IS DISTINCT FROM 'daemon' THEN
			EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', t.name, rollup);
		END IF;
	END LOOP;
END $$;
