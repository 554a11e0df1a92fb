-- A superuser migrates: the schema gets an owner that is none, so that no function of ours runs with a superuser's rights.
-- tollgate.owner_role names the role.
DO $$
DECLARE
	owner constant text := current_setting('tollgate.owner_role');
	r record;
BEGIN
	EXECUTE format('GRANT CREATE ON DATABASE %I TO %I', current_database(), owner);
	EXECUTE format('CREATE SCHEMA IF NOT EXISTS tollgate AUTHORIZATION %I', owner);
	EXECUTE format('ALTER SCHEMA tollgate OWNER TO %I', owner);
	-- A schema that somebody else has made gets the owner too, but for objects of an extension and sequences of a column.
	FOR r IN
		SELECT format('ALTER %s %s OWNER TO %I', CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass, owner) AS sql
		FROM pg_class c WHERE c.relnamespace = 'tollgate'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S') AND c.relowner <> owner::regrole
			AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i', 'e')
				AND c.relkind = 'S')
		UNION ALL
		SELECT format('ALTER ROUTINE %s OWNER TO %I', p.oid::regprocedure, owner)
		FROM pg_proc p WHERE p.pronamespace = 'tollgate'::regnamespace AND p.proowner <> owner::regrole
			AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
		UNION ALL
		SELECT format('ALTER TYPE %s OWNER TO %I', t.oid::regtype, owner)
		FROM pg_type t WHERE t.typnamespace = 'tollgate'::regnamespace AND t.typtype IN ('d', 'e') AND t.typowner <> owner::regrole
	LOOP
		EXECUTE r.sql;
	END LOOP;
END $$;
