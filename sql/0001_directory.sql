-- oldest-binary: 0.1.0
-- Who and what there is: the ledger, clusters, tenants, workspaces, nodes, GPUs, devices, holders, and whose each was when.
--
-- Two kinds of time. What an exporter measured is a bigint in nanoseconds since 1970 (column names end in _ns), because
-- timestamptz would round it. What people decide (owners, rules, prices, periods) lies on a billing hour and is timestamptz.

CREATE EXTENSION IF NOT EXISTS btree_gist WITH SCHEMA tollgate;

CREATE FUNCTION ns_of(t timestamptz) RETURNS bigint
	LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
	RETURN (extract(epoch FROM t AT TIME ZONE 'UTC') * 1000000000)::bigint;
COMMENT ON FUNCTION ns_of IS 'nanoseconds since 1970';

-- interval is multiplied in double precision, which is exact for whole microseconds until the year 2255.
CREATE FUNCTION at_ns(ns bigint) RETURNS timestamptz
	LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
	RETURN (timestamp 'epoch' + ns / 1000 * interval '1 microsecond') AT TIME ZONE 'UTC';
COMMENT ON FUNCTION at_ns IS 'the instant, cut to microseconds';

CREATE FUNCTION rfc3339(t timestamptz) RETURNS text
	LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
	RETURN to_char(t AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
COMMENT ON FUNCTION rfc3339 IS 'as the interface writes instants: whole seconds, UTC';

CREATE TABLE cluster (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 253)
);
COMMENT ON TABLE cluster IS 'Availability never crosses one; every node is in exactly one.';
INSERT INTO cluster (name) VALUES ('default');

CREATE TABLE ledger (
	one boolean PRIMARY KEY DEFAULT true CHECK (one),
	demo boolean NOT NULL,
	zone text NOT NULL,
	hour_phase_ns bigint NOT NULL CHECK (hour_phase_ns IN (0, 900000000000, 1800000000000, 2700000000000)),
	cluster_id integer NOT NULL REFERENCES cluster,
	created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE ledger IS 'One row: what this ledger is. Demo and zone are decided when it is created and never change.';
COMMENT ON COLUMN ledger.demo IS 'only a demo takes records made by a simulator';
COMMENT ON COLUMN ledger.zone IS 'billing hours, days and months are local to this IANA zone';
COMMENT ON COLUMN ledger.hour_phase_ns IS 'where the zone''s hours begin within a UTC hour: 0, or 45 min in Nepal';
COMMENT ON COLUMN ledger.cluster_id IS 'the cluster of nodes that no policy declares; named by the policy';

CREATE FUNCTION ledger_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'a ledger keeps its billing zone and whether it is a demo' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER ledger_is_final BEFORE UPDATE OF demo, zone, hour_phase_ns, created_at OR DELETE ON ledger
	FOR EACH ROW EXECUTE FUNCTION ledger_is_final();

CREATE FUNCTION hour_of(ns bigint) RETURNS timestamptz
	LANGUAGE sql STABLE STRICT PARALLEL SAFE
	BEGIN ATOMIC
		SELECT at_ns(ns - mod(ns - l.hour_phase_ns, 3600000000000)) FROM ledger l;
	END;
COMMENT ON FUNCTION hour_of IS 'the start of the billing hour in which the nanosecond lies';

CREATE TABLE tenant (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$'),
	display_name text NOT NULL DEFAULT '',
	cost_center text NOT NULL DEFAULT '',
	owner text NOT NULL DEFAULT '',
	builtin boolean NOT NULL DEFAULT false,
	created_at timestamptz NOT NULL DEFAULT now(),
	retired_at timestamptz,
	CHECK (NOT builtin OR retired_at IS NULL)
);
COMMENT ON TABLE tenant IS 'A team or customer that gets invoices. Never deleted: old usage keeps its name.';
COMMENT ON COLUMN tenant.builtin IS 'unattributed: owns what no rule matches; not in any policy file';

CREATE TABLE workspace (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	tenant_id integer NOT NULL REFERENCES tenant,
	name text NOT NULL CHECK (name ~ '^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$'),
	description text NOT NULL DEFAULT '',
	builtin boolean NOT NULL DEFAULT false,
	created_at timestamptz NOT NULL DEFAULT now(),
	retired_at timestamptz,
	UNIQUE (tenant_id, name),
	CHECK (NOT builtin OR retired_at IS NULL)
);
COMMENT ON TABLE workspace IS 'Users and workloads inside a tenant; what usage is attributed to.';
CREATE UNIQUE INDEX workspace_builtin ON workspace (builtin) WHERE builtin;

WITH t AS (INSERT INTO tenant (name, display_name, builtin) VALUES ('unattributed', 'Unattributed', true) RETURNING id)
INSERT INTO workspace (tenant_id, name, description, builtin)
	SELECT id, 'unattributed', 'usage that no rule matches', true FROM t;

CREATE TABLE node (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	cluster_id integer NOT NULL REFERENCES cluster,
	name text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 253),
	covered_until_ns bigint,
	silent_until_ns bigint,
	hours_from timestamptz,
	hours_until timestamptz,
	created_at timestamptz NOT NULL DEFAULT now(),
	CHECK ((hours_from IS NULL) = (hours_until IS NULL) AND hours_from < hours_until)
) WITH (fillfactor = 70);
COMMENT ON COLUMN node.name IS 'unique in the ledger: a node token speaks for one name';
COMMENT ON COLUMN node.covered_until_ns IS 'how far its streams account for its GPUs; the greatest of them';
COMMENT ON COLUMN node.silent_until_ns IS 'set by the roll-up once the node has been silent for longer than the grace: '
	'until then its time counts, as unknown';
COMMENT ON COLUMN node.hours_from IS 'node_hour has a row for every hour from here ...';
COMMENT ON COLUMN node.hours_until IS '... to here, without a hole';

CREATE TABLE node_owner (
	node_id integer NOT NULL REFERENCES node,
	tenant_id integer REFERENCES tenant,
	effective tstzrange NOT NULL CHECK (NOT isempty(effective)),
	EXCLUDE USING gist (node_id WITH =, effective WITH &&)
);
COMMENT ON TABLE node_owner IS 'Whose a declared node was when: at most one owner at a time.';
COMMENT ON COLUMN node_owner.tenant_id IS 'NULL: declared as shared';

CREATE TABLE gpu (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	uuid text NOT NULL UNIQUE CHECK (octet_length(uuid) BETWEEN 1 AND 512),
	model text NOT NULL,
	short_model text NOT NULL,
	memory_bytes bigint NOT NULL CHECK (memory_bytes >= 0),
	index integer NOT NULL CHECK (index >= 0)
);
COMMENT ON TABLE gpu IS 'A physical GPU, wherever it is plugged in.';
COMMENT ON COLUMN gpu.short_model IS 'the name in policies, prices and reports';
COMMENT ON COLUMN gpu.index IS 'its last known number on its node';

CREATE TABLE gpu_service (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	gpu_id integer NOT NULL REFERENCES gpu,
	node_id integer NOT NULL REFERENCES node,
	from_ns bigint NOT NULL,
	until_ns bigint CHECK (until_ns > from_ns),
	EXCLUDE USING gist (gpu_id WITH =, int8range(from_ns, until_ns) WITH &&)
);
COMMENT ON TABLE gpu_service IS 'When a GPU was in service and where: on one node at a time. Every nanosecond of it is in exactly one state.';
COMMENT ON COLUMN gpu_service.from_ns IS 'the start of its first record there';
COMMENT ON COLUMN gpu_service.until_ns IS 'NULL: in service; else retired, or found on another node';
CREATE INDEX gpu_service_node ON gpu_service (node_id);

CREATE TABLE device (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	gpu_id integer NOT NULL REFERENCES gpu,
	gi integer NOT NULL CHECK (gi >= -1),
	ci integer NOT NULL CHECK (ci >= -1),
	created_ns bigint NOT NULL CHECK (created_ns >= 0),
	uuid text NOT NULL,
	profile text NOT NULL,
	units smallint NOT NULL CHECK (units BETWEEN 1 AND 5040),
	memory_bytes bigint NOT NULL CHECK (memory_bytes >= 0),
	UNIQUE (gpu_id, gi, ci, created_ns),
	CHECK (gi >= 0 OR (ci = -1 AND created_ns = 0 AND units = 5040 AND profile = '')),
	CHECK (gi = -1 OR profile <> '')
);
COMMENT ON TABLE device IS 'What a holder can hold: the GPU itself (gi = -1), or a MIG instance from its creation to its end.';
COMMENT ON COLUMN device.units IS 'weight; a whole GPU is 5040';

CREATE TABLE holder (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	identity bytea NOT NULL UNIQUE CHECK (octet_length(identity) = 32),
	cluster_id integer NOT NULL REFERENCES cluster,
	kind smallint NOT NULL CHECK (kind BETWEEN 1 AND 3),
	namespace text NOT NULL,
	pod text NOT NULL,
	pod_uid text NOT NULL,
	container text NOT NULL,
	slurm_job text NOT NULL,
	slurm_account text NOT NULL,
	user_name text NOT NULL,
	uid bigint NOT NULL CHECK (uid >= -1),
	first_seen_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE holder IS 'A workload that held a device: a pod''s container (kind 1), a Slurm job (2), a host user (3).';
COMMENT ON COLUMN holder.identity IS 'SHA-256 of cluster and all the fields: the same workload on two nodes is one holder';
COMMENT ON COLUMN holder.uid IS '-1: not known';

CREATE TABLE attribution_rule (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	workspace_id integer NOT NULL REFERENCES workspace,
	position integer NOT NULL CHECK (position >= 0),
	priority integer NOT NULL CHECK (priority BETWEEN 0 AND 10000),
	cluster text,
	namespace text,
	slurm_account text,
	user_name text,
	effective tstzrange NOT NULL,
	CHECK (num_nonnulls(cluster, namespace, slurm_account, user_name) > 0),
	EXCLUDE USING gist (position WITH =, effective WITH &&)
);
COMMENT ON TABLE attribution_rule IS 'Patterns that say whose a holder is, in force over a range of billing hours. Lowest priority number first, then id.';
COMMENT ON COLUMN attribution_rule.position IS 'place in the policy file';
COMMENT ON COLUMN attribution_rule.effective IS 'empty: replaced before it came into force';

CREATE TABLE holder_attribution (
	holder_id bigint NOT NULL REFERENCES holder,
	workspace_id integer NOT NULL REFERENCES workspace,
	effective tstzrange NOT NULL CHECK (NOT isempty(effective)),
	EXCLUDE USING gist (holder_id WITH =, effective WITH &&)
);
COMMENT ON TABLE holder_attribution IS 'What the rules decided (core/attribution), for all of time: exactly one workspace at any hour.';
CREATE INDEX holder_attribution_holder ON holder_attribution (holder_id);
