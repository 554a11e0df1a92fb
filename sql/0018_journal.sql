-- oldest-binary: 0.2.0
-- The journal of rows: a hash of every row that a bill is made from and that cannot be computed again, taken when the row was written.
--
-- It covers what people decided (tenants, rules, owners, prices, reservations), what came from outside beside batches (events, errors of GPUs), what was billed, and flags
-- that end a proof. `tollgate verify` compares each row with its last hash and names those that differ. Triggers write the journal, one row for each statement, so a change
-- made behind the triggers is not in it. Its entries are chained and sealed with the audit log (chain -2). A change made with triggers is in the journal; then its
-- transaction must have an entry in the audit log, or verify says so.

CREATE FUNCTION row_journal_only_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP = 'UPDATE' AND OLD.seq IS NULL AND (OLD.id, OLD.at, OLD.xid, OLD.relation, OLD.operation, OLD.keys, OLD.hashes)
		IS NOT DISTINCT FROM (NEW.id, NEW.at, NEW.xid, NEW.relation, NEW.operation, NEW.keys, NEW.hashes) THEN
		RETURN NEW;
	END IF;
	RAISE EXCEPTION 'the journal of rows only grows' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER row_journal_only_grows BEFORE UPDATE OR DELETE ON row_journal FOR EACH ROW EXECUTE FUNCTION row_journal_only_grows();
CREATE TRIGGER row_journal_stays BEFORE TRUNCATE ON row_journal FOR EACH STATEMENT EXECUTE FUNCTION row_journal_only_grows();

-- Times and bytes as text do not depend on the session.
CREATE FUNCTION journal_key(p_row jsonb, p_key text[]) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
	RETURN (SELECT string_agg(coalesce(p_row ->> k.name, '-'), ' ' ORDER BY k.n) FROM unnest(p_key) WITH ORDINALITY AS k(name, n));

CREATE FUNCTION journal_hash(p_row jsonb, p_left_out text[]) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
	RETURN sha256(convert_to((jsonb_strip_nulls(p_row) - p_left_out)::text, 'UTF8'));
COMMENT ON FUNCTION journal_hash IS 'Without columns that are NULL, so that a column which is added later, and empty, changes no hash.';

-- The arguments: key columns, and columns that are not in the hash, each a list with commas.
CREATE FUNCTION journal_rows() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
	SET search_path = tollgate, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET bytea_output = 'hex' AS $$
DECLARE
	v_key text[] := string_to_array(TG_ARGV[0], ',');
	v_left_out text[] := string_to_array(TG_ARGV[1], ',');
BEGIN
	IF TG_OP = 'INSERT' THEN
		INSERT INTO row_journal (relation, operation, keys, hashes) SELECT TG_TABLE_NAME, 'insert', array_agg(x.key), array_agg(x.hash)
			FROM (SELECT journal_key(to_jsonb(a), v_key) AS key, journal_hash(to_jsonb(a), v_left_out) AS hash FROM added a) x HAVING count(*) > 0;
	ELSIF TG_OP = 'DELETE' THEN
		INSERT INTO row_journal (relation, operation, keys, hashes) SELECT TG_TABLE_NAME, 'delete', array_agg(journal_key(to_jsonb(r), v_key)),
			array_agg(NULL::bytea) FROM removed r HAVING count(*) > 0;
	ELSE
		INSERT INTO row_journal (relation, operation, keys, hashes) SELECT TG_TABLE_NAME, 'update', array_agg(x.key), array_agg(x.hash) FROM (
			SELECT coalesce(n.key, o.key) AS key, n.hash FROM (SELECT journal_key(to_jsonb(a), v_key) AS key, journal_hash(to_jsonb(a), v_left_out) AS hash
					FROM added a) n FULL JOIN (SELECT journal_key(to_jsonb(r), v_key) AS key, journal_hash(to_jsonb(r), v_left_out) AS hash FROM removed r) o
				ON o.key = n.key WHERE o.hash IS DISTINCT FROM n.hash) x HAVING count(*) > 0;
	END IF;
	RETURN NULL;
END $$;

-- The same for one row that was updated. Tables whose rows move all the time in columns that are not in the hash (cursors of nodes and streams)
-- have this: an update of those columns alone does not reach it, where a trigger with transition tables would run at every push.
CREATE FUNCTION journal_row() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
	SET search_path = tollgate, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET bytea_output = 'hex' AS $$
DECLARE
	v_key text[] := string_to_array(TG_ARGV[0], ',');
	v_old text := journal_key(to_jsonb(OLD), v_key);
	v_new text := journal_key(to_jsonb(NEW), v_key);
	v_hash bytea := journal_hash(to_jsonb(NEW), string_to_array(TG_ARGV[1], ','));
BEGIN
	IF v_old = v_new THEN
		INSERT INTO row_journal (relation, operation, keys, hashes) VALUES (TG_TABLE_NAME, 'update', ARRAY[v_new], ARRAY[v_hash]);
	ELSE
		INSERT INTO row_journal (relation, operation, keys, hashes) VALUES (TG_TABLE_NAME, 'update', ARRAY[v_old, v_new], ARRAY[NULL, v_hash]);
	END IF;
	RETURN NULL;
END $$;

CREATE FUNCTION journalled_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'table % is not emptied: bills are made from it', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER journalled_stays BEFORE TRUNCATE ON ingest_batch FOR EACH STATEMENT EXECUTE FUNCTION journalled_stays();

-- A table comes under the journal, with the rows that it has. aggregator/store/verify has the same list: verify compares the triggers with it.
CREATE FUNCTION journal_table(p_table name, p_key text, p_left_out text) RETURNS void LANGUAGE plpgsql
	SET timezone = 'UTC' SET datestyle = 'ISO' SET bytea_output = 'hex' AS $$
DECLARE
	v_columns text;
	v_old text;
	v_new text;
BEGIN
	EXECUTE format('CREATE TRIGGER journal_inserts AFTER INSERT ON %I REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION journal_rows(%L, %L)',
		p_table, p_key, p_left_out);
	IF p_left_out = '' THEN
		EXECUTE format('CREATE TRIGGER journal_updates AFTER UPDATE ON %I REFERENCING OLD TABLE AS removed NEW TABLE AS added FOR EACH STATEMENT '
			'EXECUTE FUNCTION journal_rows(%L, %L)', p_table, p_key, p_left_out);
	ELSE
		SELECT string_agg(quote_ident(a.attname), ', '), string_agg(format('OLD.%I', a.attname), ', '), string_agg(format('NEW.%I', a.attname), ', ')
			INTO v_columns, v_old, v_new FROM pg_attribute a WHERE a.attrelid = p_table::regclass AND a.attnum > 0 AND NOT a.attisdropped
				AND a.attname <> ALL (string_to_array(p_left_out, ','));
		EXECUTE format('CREATE TRIGGER journal_updates AFTER UPDATE OF %s ON %I FOR EACH ROW WHEN ((%s) IS DISTINCT FROM (%s)) '
			'EXECUTE FUNCTION journal_row(%L, %L)', v_columns, p_table, v_old, v_new, p_key, p_left_out);
	END IF;
	EXECUTE format('CREATE TRIGGER journal_deletes AFTER DELETE ON %I REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION '
		'journal_rows(%L, %L)', p_table, p_key, p_left_out);
	EXECUTE format('CREATE TRIGGER journalled_stays BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION journalled_stays()', p_table);
	-- an entry has at most 10,000 rows: its hash is taken of one text
	EXECUTE format('INSERT INTO row_journal (relation, operation, keys, hashes) SELECT %L, ''found'', array_agg(x.key), array_agg(x.hash) FROM (SELECT '
		'journal_key(to_jsonb(t), %L) AS key, journal_hash(to_jsonb(t), %L) AS hash, (row_number() OVER () - 1) / 10000 AS part FROM %I t) x '
		'GROUP BY x.part ORDER BY x.part', p_table, string_to_array(p_key, ','), string_to_array(p_left_out, ','), p_table);
END $$;
COMMENT ON FUNCTION journal_table IS 'Once for each table: rows that are found later have no entry that explains them.';

SELECT journal_table(t.name, t.key, t.left_out) FROM (VALUES
	-- what the policy says
	('cluster', 'id', ''), ('tenant', 'id', ''), ('workspace', 'id', ''), ('tenant_term', 'tenant_id,effective', ''), ('workspace_term', 'workspace_id,effective', ''),
	('policy_version', 'id', ''), ('attribution_rule', 'id', ''),
	('node_owner', 'node_id,effective', ''), ('gpu_declared', 'gpu_id,effective', ''), ('node_state', 'node_id,gpu_id,effective', ''), ('node_declared', 'node_id,model,profile,effective', ''),
	('reservation', 'workspace_id,cluster_id,shared,model,profile,effective', ''), ('workspace_limit', 'workspace_id,kind,model,profile,effective', ''),
	('tenant_limit', 'tenant_id,kind,model,profile,effective', ''), ('workspace_quota', 'workspace_id,effective', ''), ('tenant_quota', 'tenant_id,effective', ''),
	('tenant_auto_approve', 'tenant_id,effective', ''), ('priority_class', 'name,effective', ''), ('tenant_member', 'tenant_id,member,effective', ''),
	('workspace_member', 'workspace_id,member,effective', ''), ('budget', 'tenant_id,workspace_id,effective', ''), ('price_book', 'id', ''),
	('price_item', 'book_id,position', ''), ('price_discount', 'book_id,position', ''), ('price_site', 'book_id,cluster_id', ''),
	('price_weight', 'book_id,tenant_id', ''),
	-- what was billed, and what was entered by hand
	('period_close', 'month', ''), ('invoice', 'number', ''), ('invoice_total', 'number,currency', ''), ('invoice_line', 'number,line_id', ''),
	('invoice_document', 'month,tenant_id,format', 'gzip'), ('adjustment', 'id', ''), ('adjustment_approval', 'adjustment_id', ''),
	-- what came from outside beside batches
	('event_source', 'id', ''), ('meter_event', 'source_id,id', ''), ('gpu_xid', 'gpu_id,at_ns,xid', ''),
	-- whose a holder was, and what nodes, GPUs and streams are
	('holder_attribution', 'holder_id,effective', ''), ('node', 'id', 'covered_until_ns,silent_until_ns,hours_from,hours_until,behind,held,held_bytes'),
	('node_cluster', 'node_id,effective', ''), ('gpu', 'id', 'index'), ('gpu_spec', 'gpu_id,effective', ''), ('device', 'id', ''), ('holder', 'id', ''), ('gpu_service', 'id', ''),
	('stream', 'id', 'next_seq,covered_until_ns,evidence_seq'), ('stream_device', 'stream_id,local_id', ''), ('stream_holder', 'stream_id,local_id', ''),
	('stream_device_entry', 'stream_id,local_id', ''), ('stream_holder_entry', 'stream_id,local_id', ''), ('batch_set_aside', 'stream_id,seq,gpu', ''),
	('batch_range', 'stream_id,first_seq', ''),
	-- what the ledger is, its months, what workloads lost, and which days have given up their hours
	('ledger', 'one', ''), ('period', 'month', ''), ('lost_hold', 'device_id,holder_id,ended_ns', ''),
	('billing_day', 'day', 'starts_at,ends_at,folded_at,dirty'),
	-- who may speak
	('access_token', 'id', 'last_used_at'), ('join_token', 'id', '')) AS t(name, key, left_out);

CREATE FUNCTION journal_link(p_before bytea, p_seq bigint, j row_journal) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE
	SET bytea_output = 'hex'
	RETURN sha256(p_before || convert_to(audit_field(p_seq::text) || audit_field(j.id::text) || audit_field(ns_of(j.at)::text) || audit_field(j.xid::text)
		|| audit_field(j.relation) || audit_field(j.operation) || audit_field(j.keys::text) || audit_field(j.hashes::text), 'UTF8'));

-- Entries of the journal go to the end of its chain. One at a time: the caller has the lock.
CREATE FUNCTION journal_seal_entries(p_most integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	v_entry row_journal;
	v_seq bigint;
	v_hash bytea;
	v_count bigint := 0;
BEGIN
	SELECT j.seq, j.hash INTO v_seq, v_hash FROM row_journal j WHERE j.seq IS NOT NULL ORDER BY j.seq DESC LIMIT 1;
	v_seq := coalesce(v_seq, 0);
	v_hash := coalesce(v_hash, decode(repeat('00', 32), 'hex'));
	FOR v_entry IN SELECT j.* FROM row_journal j WHERE j.seq IS NULL ORDER BY j.id LIMIT p_most LOOP
		v_seq := v_seq + 1;
		v_hash := journal_link(v_hash, v_seq, v_entry);
		UPDATE row_journal j SET seq = v_seq, hash = v_hash WHERE j.id = v_entry.id;
		v_count := v_count + 1;
	END LOOP;
	RETURN v_count;
END $$;

-- The charges of a day cannot be recomputed once its hours are dropped, so the journal takes in its rows as they are, in the transaction that
-- drops the hours, and never again.
CREATE FUNCTION journal_day(p_day date) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
	SET search_path = tollgate, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET bytea_output = 'hex' AS $$
DECLARE
	t record;
BEGIN
	IF NOT EXISTS (SELECT FROM billing_day b JOIN node_hour h ON h.hour >= b.starts_at AND h.hour < b.ends_at WHERE b.day = p_day)
		OR EXISTS (SELECT FROM row_journal j WHERE j.relation IN ('usage_daily', 'charge_day', 'reserve_day', 'loan_day', 'pool_day')
			AND j.operation = 'kept' AND j.keys[1] LIKE p_day || ' %') THEN
		RAISE EXCEPTION 'the hours of % are given up: what the day is charged as is final', p_day USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	FOR t IN SELECT * FROM (VALUES
		('usage_daily', '{day,price_book_id,cluster_id,owner_id,workspace_id,gpu_model,profile,units,sharing,method}'::text[]),
		('charge_day', '{day,price_book_id,cluster_id,owner_id,workspace_id,gpu_model,profile,units,sharing,class}'::text[]),
		('reserve_day', '{day,price_book_id,cluster_id,owner_id,workspace_id,gpu_model,profile,units}'::text[]),
		('loan_day', '{day,price_book_id,cluster_id,owner_id,lender_id,borrower_id,gpu_model,profile,units,sharing}'::text[]),
		('pool_day', '{day,price_book_id,cluster_id,owner_id,gpu_model}'::text[])) AS x(name, key)
	LOOP
		EXECUTE format('INSERT INTO row_journal (relation, operation, keys, hashes) SELECT %L, ''kept'', array_agg(x.key), array_agg(x.hash) FROM (SELECT '
			'journal_key(to_jsonb(t), $1) AS key, journal_hash(to_jsonb(t), ''{}'') AS hash, (row_number() OVER () - 1) / 10000 AS part FROM %I t '
			'WHERE t.day = $2) x GROUP BY x.part ORDER BY x.part', t.name, t.name) USING t.key, p_day;
	END LOOP;
END $$;
