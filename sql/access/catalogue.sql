-- The schema by the catalogue of the database: a row for each object, sorted by kind and name. expected.txt has the same of a fresh ledger.
-- Asked with search_path = pg_catalog, so that every other name comes with its schema.
--
--  kind, name   what it is called. Roles are called by what they are here, whatever their names: owner, daemon, rollup
--  value        what the columns of the catalogue say of it: the same in every version of PostgreSQL
--  text         its definition as the server prints it: the same in one major version, but for those that a restored backup prints otherwise:
--               expected.txt has these too, behind the first
--  partition    of kind "partition" the table's own name: all partitions of a table are alike, however many there are
--
-- Rules, in order:
--  1. the owner is the schema's; the daemon's role is the one that may add batches, the roll-up's the one that may close months. If several may, the oldest
--     is meant and the others show as rights that nobody gave them
--  2. rights of the owner itself are left out, and those of other roles that only read: a site may have such
--  3. what an extension brought in C is the extension's
--  4. what the server would pass over, because a flag of pg_class says that there is none, shows at the table
--  5. everything about a partition is one row: what differs from the parent only in the table's name does not differ
WITH known AS MATERIALIZED (
	SELECT n.oid AS schema, n.nspowner AS owner, n.nspacl AS acl,
		(SELECT min(a.grantee) FROM pg_class c, aclexplode(c.relacl) a WHERE c.relnamespace = n.oid AND c.relname = 'ingest_batch'
			AND a.privilege_type = 'INSERT' AND a.grantee NOT IN (0, n.nspowner)) AS daemon,
		(SELECT min(a.grantee) FROM pg_class c, aclexplode(c.relacl) a WHERE c.relnamespace = n.oid AND c.relname = 'period_close'
			AND a.privilege_type = 'INSERT' AND a.grantee NOT IN (0, n.nspowner)) AS rollup
	FROM pg_namespace n WHERE n.nspname = 'tollgate'
), role AS MATERIALIZED (
	SELECT 0::oid AS oid, 'PUBLIC' AS name, false AS is_site
	UNION ALL
	SELECT r.oid, CASE r.oid WHEN k.owner THEN 'owner' WHEN k.daemon THEN 'daemon' WHEN k.rollup THEN 'rollup' ELSE 'role ' || quote_ident(r.rolname) END,
		coalesce(r.oid NOT IN (k.owner, k.daemon, k.rollup), true)
	FROM pg_roles r, known k
), of_extension AS MATERIALIZED (
	SELECT d.classid, d.objid FROM pg_depend d WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
), relation AS MATERIALIZED (
	SELECT c.*, c.oid::regclass::text AS name, CASE WHEN c.relispartition THEN i.inhparent::regclass::text END AS parent,
		CASE c.relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' ELSE 'table' END AS kind, i.inhparent
	FROM known k, pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = i.inhparent
	WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND k.schema IN (c.relnamespace, p.relnamespace)
), function AS MATERIALIZED (
	SELECT p.*, p.oid::regprocedure::text AS name, l.lanname FROM known k, pg_proc p JOIN pg_language l ON l.oid = p.prolang
	WHERE p.pronamespace = k.schema AND NOT (l.lanname = 'c' AND EXISTS (SELECT FROM of_extension e WHERE e.classid = 'pg_proc'::regclass AND e.objid = p.oid))
), granted AS (
	SELECT NULL::oid AS relation, 'schema tollgate' AS on_what, 'USAGE' AS reads, a.* FROM known k, aclexplode(k.acl) a
	UNION ALL
	SELECT r.oid, r.kind || ' ' || r.name, 'SELECT', a.* FROM relation r, aclexplode(r.relacl) a
	UNION ALL
	SELECT r.oid, format('column %s.%I', r.name, c.attname), 'SELECT', a.* FROM relation r JOIN pg_attribute c ON c.attrelid = r.oid, aclexplode(c.attacl) a
	UNION ALL
	SELECT NULL, 'function ' || f.name, CASE WHEN f.prosecdef THEN '' ELSE 'EXECUTE' END, a.*
	FROM function f, aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) a
	UNION ALL
	SELECT NULL, 'new objects of type ' || d.defaclobjtype::text, 'SELECT', a.* FROM known k JOIN pg_default_acl d ON d.defaclrole = k.owner AND d.defaclnamespace IN (0, k.schema),
		aclexplode(d.defaclacl) a
), fact AS (
	SELECT NULL::oid AS relation, 'server' AS kind, 'PostgreSQL' AS name, (current_setting('server_version_num')::integer / 10000)::text AS value, '' AS text
	UNION ALL
	SELECT NULL, 'role', r.name, concat_ws('; ', 'role', CASE WHEN p.rolsuper THEN 'superuser' END, CASE WHEN p.rolbypassrls THEN 'bypasses row security' END,
		CASE WHEN p.rolcreaterole AND p.oid <> k.owner THEN 'makes roles' END, CASE WHEN p.rolcreatedb AND p.oid <> k.owner THEN 'makes databases' END,
		CASE WHEN p.rolreplication AND p.oid <> k.owner THEN 'replicates' END,
		(SELECT 'has members ' || string_agg(m.rolname, ', ' ORDER BY m.rolname) FROM pg_auth_members a JOIN pg_roles m ON m.oid = a.member
			WHERE a.roleid = p.oid AND p.oid <> k.owner AND NOT m.rolsuper AND m.oid NOT IN (k.owner, k.daemon, k.rollup)),
		(SELECT 'member of ' || string_agg(o.rolname, ', ' ORDER BY o.rolname) FROM pg_roles o WHERE p.oid <> k.owner AND o.oid <> p.oid AND pg_has_role(p.oid, o.oid, 'MEMBER')
			AND (o.rolsuper OR o.oid IN (k.owner, k.daemon, k.rollup) OR o.rolname IN ('pg_read_all_data', 'pg_write_all_data', 'pg_read_server_files',
				'pg_write_server_files', 'pg_execute_server_program')))), ''
	FROM known k JOIN pg_roles p ON p.oid IN (k.owner, k.daemon, k.rollup) JOIN role r ON r.oid = p.oid
	UNION ALL
	SELECT NULL, 'setting', 'session_replication_role', current_setting('session_replication_role'), ''
	UNION ALL
	SELECT NULL, 'setting', format('session_replication_role of role %s, database %s', s.setrole::regrole, s.setdatabase), split_part(c, '=', 2), ''
	FROM pg_db_role_setting s, unnest(s.setconfig) c WHERE c LIKE 'session\_replication\_role=%'
		AND s.setdatabase IN (0, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
	UNION ALL
	SELECT g.relation, 'right', format('%s may %s %s', r.name, g.privilege_type, g.on_what), CASE WHEN g.is_grantable THEN 'granted, and may be passed on' ELSE 'granted' END, ''
	FROM known k, granted g JOIN role r ON r.oid = g.grantee
	WHERE g.grantee <> k.owner AND NOT (r.is_site AND g.privilege_type = g.reads)
	UNION ALL
	SELECT r.oid, r.kind, r.name, concat_ws('; ', 'owner ' || w.name, 'kind ' || r.relkind::text, CASE WHEN r.relpersistence <> 'p' THEN 'unlogged' END,
			CASE WHEN r.relrowsecurity THEN 'row security' END, CASE WHEN r.relforcerowsecurity THEN 'row security of the owner too' END,
			CASE WHEN r.relkind = 'v' THEN array_to_string(r.reloptions, ', ') END,
			'inherits ' || r.inhparent::regclass, passed_over.value, s.value),
		CASE r.relkind WHEN 'v' THEN pg_get_viewdef(r.oid) WHEN 'm' THEN pg_get_viewdef(r.oid) WHEN 'p' THEN pg_get_partkeydef(r.oid) ELSE '' END
	FROM relation r JOIN role w ON w.oid = r.relowner LEFT JOIN (SELECT q.seqrelid, concat_ws(' ', format_type(q.seqtypid, NULL), q.seqstart, q.seqincrement, q.seqmin,
		q.seqmax, q.seqcycle) AS value FROM pg_sequence q) s ON s.seqrelid = r.oid
	CROSS JOIN LATERAL (SELECT nullif(concat_ws('; ',
		CASE WHEN NOT r.relhastriggers AND EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = r.oid) THEN 'triggers passed over' END,
		CASE WHEN r.relkind IN ('r', 'p') AND r.relchecks <> (SELECT count(*) FROM pg_constraint c WHERE c.conrelid = r.oid AND c.contype = 'c') THEN 'checks passed over' END,
		CASE WHEN NOT r.relhasindex AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = r.oid) THEN 'indexes passed over' END,
		CASE WHEN NOT r.relhasrules AND EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = r.oid) THEN 'rules passed over' END,
		CASE WHEN NOT r.relhassubclass AND EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = r.oid) THEN 'partitions passed over' END,
		CASE WHEN r.relpartbound IS NOT NULL AND pg_get_expr(r.relpartbound, r.oid) IS DISTINCT FROM CASE WHEN r.relname ~ '_[0-9]{8}$' THEN
			(SELECT format('FOR VALUES FROM (''%s'') TO (''%s'')', day.ns, day.ns + 86400000000000)
				FROM (SELECT extract(epoch FROM to_date(right(r.relname, 8), 'YYYYMMDD'))::bigint * 1000000000 AS ns) day) END
			THEN 'not the day of its name' END), '') AS value) passed_over
	UNION ALL
	SELECT r.oid, 'column', format('%s.%I', r.name, a.attname), concat_ws('; ', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'not null' END,
		'identity ' || nullif(a.attidentity::text, ''), CASE WHEN a.attgenerated <> '' THEN 'generated' WHEN a.atthasdef THEN 'default' END,
		(SELECT 'collation ' || c.collname FROM pg_collation c, pg_type t WHERE t.oid = a.atttypid AND c.oid = a.attcollation AND a.attcollation <> t.typcollation)),
		coalesce(pg_get_expr(d.adbin, d.adrelid), '')
	FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
		LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE r.kind = 'table'
	UNION ALL
	SELECT r.oid, 'constraint', format('%s %I', r.name, c.conname), concat_ws('; ',
		CASE c.contype WHEN 'c' THEN 'check' WHEN 'f' THEN 'foreign key' WHEN 'p' THEN 'primary key' WHEN 'u' THEN 'unique' WHEN 'x' THEN 'exclusion' ELSE c.contype::text END,
		CASE WHEN NOT c.convalidated THEN 'not validated' END, CASE WHEN c.condeferrable THEN 'deferrable' END, CASE WHEN c.condeferred THEN 'deferred' END,
		'columns ' || array_to_string(c.conkey, ' '),
		CASE WHEN c.contype = 'f' THEN format('to %s, %s %s %s', c.confrelid::regclass, c.confupdtype, c.confdeltype, c.confmatchtype) END,
		t.value), pg_get_constraintdef(c.oid)
	FROM relation r JOIN pg_constraint c ON c.conrelid = r.oid LEFT JOIN (SELECT t.tgconstraint, format('%s of %s triggers enabled',
		count(*) FILTER (WHERE t.tgenabled = 'O'), count(*)) AS value FROM pg_trigger t WHERE t.tgisinternal GROUP BY t.tgconstraint) t ON t.tgconstraint = c.oid
	WHERE c.contype <> 'n'
	UNION ALL
	SELECT r.oid, 'trigger', format('%s %I', r.name, t.tgname), concat_ws('; ',
		CASE t.tgenabled WHEN 'O' THEN 'enabled' WHEN 'D' THEN 'disabled' WHEN 'R' THEN 'enabled for replicas only' ELSE 'enabled always' END, 'calls ' || t.tgfoid::regprocedure,
		'type ' || t.tgtype, CASE WHEN t.tgdeferrable THEN 'deferrable' END, CASE WHEN t.tginitdeferred THEN 'deferred' END,
		'columns ' || nullif(t.tgattr::text, ''),
		'with ' || nullif(encode(t.tgargs, 'escape'), '')), pg_get_triggerdef(t.oid)
	FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid JOIN pg_proc p ON p.oid = t.tgfoid
	WHERE NOT (t.tgisinternal AND t.tgconstraint <> 0 AND p.pronamespace = 'pg_catalog'::regnamespace AND p.proname ~ '^(RI_FKey_|unique_key_recheck$)')
	UNION ALL
	SELECT r.oid, 'index', i.indexrelid::regclass::text, concat_ws('; ', CASE WHEN i.indisunique THEN 'unique' ELSE 'exclusion' END, CASE WHEN NOT i.indimmediate THEN 'deferred' END,
		CASE WHEN NOT (i.indisvalid AND i.indisready AND i.indislive) THEN 'not valid' END), pg_get_indexdef(i.indexrelid)
	FROM relation r JOIN pg_index i ON i.indrelid = r.oid WHERE i.indisunique OR i.indisexclusion
	UNION ALL
	SELECT r.oid, 'rule', format('%s %I', r.name, w.rulename), concat_ws('; ', CASE w.ev_enabled WHEN 'O' THEN 'enabled' ELSE 'not enabled' END, 'event ' || w.ev_type::text,
		CASE WHEN w.is_instead THEN 'instead' END), pg_get_ruledef(w.oid)
	FROM relation r JOIN pg_rewrite w ON w.ev_class = r.oid WHERE w.rulename <> '_RETURN' OR w.ev_enabled <> 'O'
	UNION ALL
	SELECT r.oid, 'policy', format('%s %I', r.name, p.polname), concat_ws('; ', 'command ' || p.polcmd::text, CASE WHEN p.polpermissive THEN 'permissive' END),
		concat_ws(' / ', pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
	FROM relation r JOIN pg_policy p ON p.polrelid = r.oid
	UNION ALL
	SELECT NULL, 'function', f.name, concat_ws('; ', 'owner ' || w.name, CASE WHEN f.prosecdef THEN 'with the owner''s rights' END, 'settings ' || array_to_string(f.proconfig, ', '),
		f.lanname, 'kind ' || f.prokind::text || f.provolatile::text || f.proparallel::text, CASE WHEN f.proisstrict THEN 'strict' END, CASE WHEN f.proleakproof THEN 'leakproof' END,
		'returns ' || CASE WHEN f.proretset THEN 'setof ' ELSE '' END || format_type(f.prorettype, NULL),
		'arguments ' || nullif(concat_ws(' ', array_to_string(f.proargnames, ','), array_to_string(f.proargmodes, ''), array_to_string(f.proallargtypes::regtype[], ',')), ''),
		nullif(f.prosupport::oid, 0)::regprocedure::text, f.probin, 'text ' || left(encode(sha256(convert_to(f.prosrc, 'UTF8')), 'hex'), 32)),
		concat_ws(' / ', nullif(pg_get_expr(f.proargdefaults, 0), ''), pg_get_function_sqlbody(f.oid))
	FROM function f JOIN role w ON w.oid = f.proowner
	UNION ALL
	SELECT NULL, 'type', t.oid::regtype::text, concat_ws('; ', 'owner ' || w.name, 'kind ' || t.typtype::text, nullif(t.typbasetype, 0)::regtype::text, t.typdefault,
		(SELECT string_agg(e.enumlabel, ', ' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid),
		(SELECT string_agg(pg_get_constraintdef(c.oid), ', ' ORDER BY c.conname) FROM pg_constraint c WHERE c.contypid = t.oid),
		(SELECT string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum) FROM pg_attribute a
			WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)), ''
	FROM known k JOIN pg_type t ON t.typnamespace = k.schema JOIN role w ON w.oid = t.typowner LEFT JOIN pg_class c ON c.oid = t.typrelid
	WHERE t.typcategory <> 'A' AND (t.typrelid = 0 OR c.relkind = 'c') AND NOT EXISTS (SELECT FROM of_extension e WHERE e.classid = 'pg_type'::regclass AND e.objid = t.oid)
	UNION ALL
	SELECT NULL, 'operator', o.oid::regoperator::text, 'calls ' || o.oprcode::oid::regprocedure, ''
	FROM known k JOIN pg_operator o ON o.oprnamespace = k.schema
	WHERE NOT (EXISTS (SELECT FROM of_extension e WHERE e.classid = 'pg_operator'::regclass AND e.objid = o.oid)
		AND EXISTS (SELECT FROM of_extension e WHERE e.classid = 'pg_proc'::regclass AND e.objid = o.oprcode))
)
SELECT f.kind COLLATE "C" AS kind, f.name COLLATE "C" AS name, f.value, CASE WHEN length(f.text) <= 160 AND f.text !~ '[\t\n]' THEN f.text
	ELSE 'text ' || left(encode(sha256(convert_to(f.text, 'UTF8')), 'hex'), 32) END AS text, '' AS partition
FROM fact f LEFT JOIN relation r ON r.oid = f.relation WHERE r.parent IS NULL
UNION ALL
SELECT 'partition' COLLATE "C", r.parent COLLATE "C", left(encode(sha256(convert_to(replace(string_agg(concat_ws(' ', f.kind, f.name, f.value), E'\n' ORDER BY f.kind COLLATE "C", f.name COLLATE "C"),
		r.relname, p.relname), 'UTF8')), 'hex'), 32),
	left(encode(sha256(convert_to(replace(string_agg(f.text, E'\n' ORDER BY f.kind COLLATE "C", f.name COLLATE "C"), r.relname, p.relname), 'UTF8')), 'hex'), 32), r.name
FROM relation r JOIN pg_class p ON p.oid = r.inhparent JOIN fact f ON f.relation = r.oid WHERE r.parent IS NOT NULL GROUP BY r.oid, r.name, r.parent, r.relname, p.relname
ORDER BY 1, 2, 5
