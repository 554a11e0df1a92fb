-- oldest-binary: 0.2.0
-- The directory: the ledger, clusters, tenants, workspaces, nodes, GPUs, devices and holders, and who owned each of them when.
--
-- There are two kinds of time. Measured times are bigint nanoseconds since 1970 (column names end in _ns), because timestamptz would round them. Times that people
-- decide (owners, rules, prices, periods) lie on a billing hour and are timestamptz.

CREATE EXTENSION IF NOT EXISTS btree_gist WITH SCHEMA tollgate;

-- --- time, ranges and labels ---

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

CREATE FUNCTION is_range_of_hours(r tstzrange) RETURNS boolean
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN NOT isempty(r) AND NOT lower_inf(r) AND lower_inc(r) AND NOT upper_inc(r)
		AND mod(ns_of(lower(r)), 900000000000) = 0 AND (upper_inf(r) OR mod(ns_of(upper(r)), 900000000000) = 0);
COMMENT ON FUNCTION is_range_of_hours IS 'begins and ends where a billing hour of some zone can: at a quarter-hour of UTC';

-- "app=web,team=ml", as wire format and policy write labels: sorted by key, and neither = nor , can stand in a key or a value.
CREATE FUNCTION labels_of(p_text text) RETURNS jsonb
	LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
	RETURN (SELECT coalesce(jsonb_object_agg(split_part(l, '=', 1), split_part(l, '=', 2)), '{}')
		FROM unnest(string_to_array(p_text, ',')) AS l);
COMMENT ON FUNCTION labels_of IS 'an object of texts from key=value,key=value; empty for no text';

CREATE FUNCTION labels_text(p_labels jsonb) RETURNS text
	LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
	RETURN (SELECT coalesce(string_agg(key || '=' || value, ',' ORDER BY key COLLATE "C"), '') FROM jsonb_each_text(p_labels));
COMMENT ON FUNCTION labels_text IS 'the text that labels_of() reads';

-- --- codes ---

-- Small numbers in the large tables. A domain has the binary format of smallint.
CREATE DOMAIN gpu_units AS smallint CONSTRAINT gpu_units_check CHECK (VALUE BETWEEN 1 AND 5040);
COMMENT ON DOMAIN gpu_units IS 'weight of a device; a whole GPU is 5040';
CREATE DOMAIN usage_state AS smallint CONSTRAINT usage_state_check CHECK (VALUE BETWEEN 1 AND 5);
COMMENT ON DOMAIN usage_state IS '1 held, 2 unallocated, 3 stranded, 4 down, 5 unknown';
CREATE DOMAIN sharing_code AS smallint CONSTRAINT sharing_code_check CHECK (VALUE BETWEEN 0 AND 5);
COMMENT ON DOMAIN sharing_code IS '0 none: computed for time that no record covers, 1 exclusive, 2 mig, 3 mps, 4 timeslice, 5 plain; sharing_name() has the names';
CREATE DOMAIN method_code AS smallint CONSTRAINT method_code_check CHECK (VALUE BETWEEN 0 AND 3);
COMMENT ON DOMAIN method_code IS 'source of the used time: 0 none, 1 measured, 2 estimated, 3 reserved; method_name() has the names';
CREATE DOMAIN holder_kind AS smallint CONSTRAINT holder_kind_check CHECK (VALUE BETWEEN 1 AND 3);
COMMENT ON DOMAIN holder_kind IS '1 container of a pod, 2 Slurm job, 3 user of the host';

-- --- the ledger and its clusters ---

CREATE TABLE cluster (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 253)
);
COMMENT ON TABLE cluster IS 'A group of nodes that shares capacity: a request never spans two clusters, and every node is in exactly one.';

INSERT INTO cluster (name) VALUES ('default');

CREATE TABLE ledger (
	one boolean PRIMARY KEY DEFAULT true CHECK (one),
	demo boolean NOT NULL,
	zone text NOT NULL,
	hour_phase_ns bigint NOT NULL CHECK (hour_phase_ns IN (0, 900000000000, 1800000000000, 2700000000000)),
	cluster_id integer NOT NULL REFERENCES cluster,
	created_at timestamptz NOT NULL DEFAULT now(),
	evidence_from_ns bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE ledger IS 'One row: what this ledger is. Demo and zone are decided when it is created and never change.';
COMMENT ON COLUMN ledger.demo IS 'only a demo takes records made by a simulator';
COMMENT ON COLUMN ledger.zone IS 'billing hours, days and months are local to this IANA zone';
COMMENT ON COLUMN ledger.hour_phase_ns IS 'where the zone''s hours begin within a UTC hour: 0, or 45 min in Nepal';
COMMENT ON COLUMN ledger.cluster_id IS 'the cluster of nodes that no policy declares; named by the policy';
COMMENT ON COLUMN ledger.evidence_from_ns IS 'batches that end before this were given up, and no usage before it can be accepted any more';

CREATE FUNCTION hour_of(ns bigint) RETURNS timestamptz
	LANGUAGE sql STABLE STRICT PARALLEL SAFE
	BEGIN ATOMIC
		SELECT at_ns(ns - mod(ns - l.hour_phase_ns, 3600000000000)) FROM ledger l;
	END;
COMMENT ON FUNCTION hour_of IS 'the start of the billing hour in which the nanosecond lies';

-- --- tenants and workspaces ---

CREATE TABLE tenant (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$'),
	builtin boolean NOT NULL DEFAULT false,
	created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tenant IS 'A team or customer that gets invoices, by its name. Never deleted: old usage keeps its name. What the policy says of it is in tenant_term.';
COMMENT ON COLUMN tenant.builtin IS 'unattributed: owns what no rule matches; not in any policy file';

CREATE TABLE tenant_term (
	tenant_id integer NOT NULL REFERENCES tenant,
	display_name text NOT NULL,
	cost_center text NOT NULL,
	owner text NOT NULL,
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective) OR (lower_inf(effective) AND upper_inf(effective))),
	data_boundary text CHECK (octet_length(data_boundary) BETWEEN 1 AND 200),
	EXCLUDE USING gist (tenant_id WITH =, effective WITH &&)
);
COMMENT ON TABLE tenant_term IS 'When a tenant is in force, and what the policy says of it then. One that is built in has one term without bounds.';
COMMENT ON COLUMN tenant_term.data_boundary IS 'where its data may be, in the operator''s words; no decision looks at it';

CREATE TABLE workspace (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	tenant_id integer NOT NULL REFERENCES tenant,
	name text NOT NULL CHECK (name ~ '^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$'),
	builtin boolean NOT NULL DEFAULT false,
	created_at timestamptz NOT NULL DEFAULT now(),
	UNIQUE (tenant_id, name)
);
COMMENT ON TABLE workspace IS 'Users and workloads inside a tenant; what usage is attributed to. When it is in force is in workspace_term.';
CREATE UNIQUE INDEX workspace_builtin ON workspace (builtin) WHERE builtin;

CREATE TABLE workspace_term (
	workspace_id integer NOT NULL REFERENCES workspace,
	description text NOT NULL,
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective) OR (lower_inf(effective) AND upper_inf(effective))),
	EXCLUDE USING gist (workspace_id WITH =, effective WITH &&)
);
COMMENT ON TABLE workspace_term IS 'When a workspace is in force, and what the policy says of it then.';

WITH t AS (INSERT INTO tenant (name, builtin) VALUES ('unattributed', true) RETURNING id),
	w AS (INSERT INTO workspace (tenant_id, name, builtin) SELECT id, 'unattributed', true FROM t RETURNING id),
	x AS (INSERT INTO tenant_term (tenant_id, display_name, cost_center, owner, effective) SELECT id, 'Unattributed', '', '', tstzrange(NULL, NULL) FROM t)
INSERT INTO workspace_term (workspace_id, description, effective) SELECT id, 'usage that no rule matches', tstzrange(NULL, NULL) FROM w;

-- --- nodes ---

CREATE TABLE node (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	cluster_id integer NOT NULL REFERENCES cluster,
	name text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 253),
	covered_until_ns bigint,
	silent_until_ns bigint,
	hours_from timestamptz,
	hours_until timestamptz,
	created_at timestamptz NOT NULL DEFAULT now(),
	behind bigint NOT NULL DEFAULT 0,
	approved_at timestamptz,
	approved_by text CHECK (approved_by <> ''),
	held boolean NOT NULL DEFAULT true,
	held_bytes bigint NOT NULL DEFAULT 0 CHECK (held_bytes >= 0),
	CONSTRAINT hours_from_and_until_together CHECK ((hours_from IS NULL) = (hours_until IS NULL) AND hours_from < hours_until),
	CONSTRAINT approval_is_complete CHECK ((approved_at IS NULL) = (approved_by IS NULL)),
	CONSTRAINT held_until_approved CHECK (held OR approved_at IS NOT NULL)
) WITH (fillfactor = 70);
COMMENT ON COLUMN node.cluster_id IS 'as the last policy says; an hour of usage joins node_cluster by the hour';
COMMENT ON COLUMN node.name IS 'unique in the ledger: a node token speaks for one name';
COMMENT ON COLUMN node.covered_until_ns IS 'how far its streams account for its GPUs; the greatest of them';
COMMENT ON COLUMN node.silent_until_ns IS 'set by the roll-up once the node has been silent for longer than the grace: '
	'until then its time counts, as unknown';
COMMENT ON COLUMN node.hours_from IS 'node_hour has a row for every hour from here ...';
COMMENT ON COLUMN node.hours_until IS '... to here, without a hole';
COMMENT ON COLUMN node.behind IS 'counts records that came behind the covered time, and GPUs that were moved away: a push whose sums were made before a change starts again';
COMMENT ON COLUMN node.approved_at IS 'NULL: no policy declared it, no token was made for its name, and nobody approved it';
COMMENT ON COLUMN node.held IS 'its batches are put aside: it is not approved, or what it sent before that is still being taken in';
COMMENT ON COLUMN node.held_bytes IS 'of the batches put aside';
CREATE INDEX node_held ON node (approved_at) WHERE held;

CREATE TABLE node_cluster (
	node_id integer NOT NULL REFERENCES node,
	cluster_id integer NOT NULL REFERENCES cluster,
	effective tstzrange NOT NULL CHECK (NOT isempty(effective) AND lower_inc(effective) <> lower_inf(effective) AND NOT upper_inc(effective)),
	EXCLUDE USING gist (node_id WITH =, effective WITH &&)
);
COMMENT ON TABLE node_cluster IS 'The cluster of a node, for all of time: exactly one at any billing hour. The policy moves it.';

CREATE TABLE node_owner (
	node_id integer NOT NULL REFERENCES node,
	tenant_id integer REFERENCES tenant,
	effective tstzrange NOT NULL CHECK (NOT isempty(effective)),
	EXCLUDE USING gist (node_id WITH =, effective WITH &&)
);
COMMENT ON TABLE node_owner IS 'The owner of a declared node over time: at most one at a time.';
COMMENT ON COLUMN node_owner.tenant_id IS 'NULL: declared as shared';

-- --- GPUs and their devices ---

CREATE TABLE gpu (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	uuid text NOT NULL UNIQUE CHECK (octet_length(uuid) BETWEEN 1 AND 512),
	model text NOT NULL,
	short_model text NOT NULL,
	memory_bytes bigint NOT NULL CHECK (memory_bytes >= 0),
	index integer NOT NULL CHECK (index >= 0)
);
COMMENT ON TABLE gpu IS 'A physical GPU, wherever it is plugged in.';
COMMENT ON COLUMN gpu.short_model IS 'its last known short name; usage joins gpu_spec by the hour';
COMMENT ON COLUMN gpu.index IS 'its last known number on its node';

CREATE TABLE gpu_spec (
	gpu_id integer NOT NULL REFERENCES gpu,
	model text NOT NULL,
	short_model text NOT NULL,
	memory_bytes bigint NOT NULL CHECK (memory_bytes >= 0),
	node_id integer REFERENCES node,
	stream_id integer,
	seq bigint,
	effective tstzrange NOT NULL CHECK (NOT isempty(effective) AND lower_inc(effective) <> lower_inf(effective) AND NOT upper_inc(effective)),
	CONSTRAINT origin_is_complete CHECK (num_nulls(node_id, stream_id, seq) IN (0, 3)),
	EXCLUDE USING gist (gpu_id WITH =, effective WITH &&)
);
COMMENT ON TABLE gpu_spec IS 'Model and memory of a GPU over time: exactly one row at any billing hour. Only the node that has it in service adds to it (gpu_describe).';
COMMENT ON COLUMN gpu_spec.short_model IS 'the name in policies, prices and reports';
COMMENT ON COLUMN gpu_spec.node_id IS 'the node that said so, in this batch of this stream';
COMMENT ON COLUMN gpu_spec.effective IS 'from a billing hour on; the first row of a GPU has no beginning';
-- The exclusion constraint's index cannot be used by a hash join; the last row is looked up at every change.
CREATE UNIQUE INDEX gpu_spec_last ON gpu_spec (gpu_id) WHERE upper_inf(effective);

CREATE TABLE gpu_service (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	gpu_id integer NOT NULL REFERENCES gpu,
	node_id integer NOT NULL REFERENCES node,
	from_ns bigint NOT NULL,
	until_ns bigint CONSTRAINT until_not_before_from CHECK (until_ns >= from_ns),
	moved_to integer REFERENCES node,
	EXCLUDE USING gist (gpu_id WITH =, int8range(from_ns, until_ns) WITH &&),
	CONSTRAINT moved_service_has_an_end CHECK (moved_to IS NULL OR until_ns IS NOT NULL)
);
COMMENT ON TABLE gpu_service IS 'When a GPU was in service and where: on one node at a time. Every nanosecond of it is in exactly one state.';
COMMENT ON COLUMN gpu_service.from_ns IS 'the start of its first record there';
COMMENT ON COLUMN gpu_service.until_ns IS 'NULL: in service; else retired, or moved to another node';
COMMENT ON COLUMN gpu_service.moved_to IS 'the node that may have it next, and no other one; NULL: the service was not moved away';
CREATE INDEX gpu_service_node ON gpu_service (node_id);

CREATE TABLE device (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	gpu_id integer NOT NULL REFERENCES gpu,
	gi integer NOT NULL CHECK (gi >= -1),
	ci integer NOT NULL CHECK (ci >= -1),
	created_ns bigint NOT NULL CHECK (created_ns >= 0),
	uuid text NOT NULL,
	profile text NOT NULL,
	units gpu_units NOT NULL,
	memory_bytes bigint NOT NULL CHECK (memory_bytes >= 0),
	UNIQUE (gpu_id, gi, ci, created_ns),
	CONSTRAINT whole_gpu_has_full_weight CHECK (gi >= 0 OR (ci = -1 AND created_ns = 0 AND units = 5040 AND profile = '')),
	CONSTRAINT instance_has_a_profile CHECK (gi = -1 OR profile <> '')
);
COMMENT ON TABLE device IS 'The thing that is held: a whole GPU (gi = -1), or a MIG instance from its creation to its end.';
COMMENT ON COLUMN device.units IS 'weight; a whole GPU is 5040';

-- --- holders ---

CREATE TABLE holder (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	identity bytea NOT NULL UNIQUE CHECK (octet_length(identity) = 32),
	cluster_id integer NOT NULL REFERENCES cluster,
	kind holder_kind NOT NULL,
	namespace text NOT NULL,
	pod text NOT NULL,
	pod_uid text NOT NULL,
	container text NOT NULL,
	slurm_job text NOT NULL,
	slurm_account text NOT NULL,
	user_name text NOT NULL,
	uid bigint NOT NULL CHECK (uid >= -1),
	first_seen_at timestamptz NOT NULL DEFAULT now(),
	group_name text NOT NULL DEFAULT '',
	labels jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object')
);
COMMENT ON TABLE holder IS 'A workload that held a device: a pod''s container (kind 1), a Slurm job (2), a host user (3).';
COMMENT ON COLUMN holder.identity IS 'SHA-256 of cluster and all the fields: the same workload on two nodes is one holder. '
	'Group and labels count only where there are any';
COMMENT ON COLUMN holder.uid IS '-1: not known';
COMMENT ON COLUMN holder.group_name IS 'primary group of the user of a job or a host; empty: not known';
COMMENT ON COLUMN holder.labels IS 'the pod''s labels that its exporter was told to read: texts by key. A pod whose labels change is a new holder';
-- Finds the holder of a workload that a status names. Before its first batch, within one interval, a workload has none.
CREATE INDEX holder_workload ON holder (kind, pod_uid, slurm_job, user_name);
-- Every document asks whether any pod has labels; scanning a million holders without labels took a quarter of a second.
CREATE INDEX holder_labelled ON holder (id) WHERE labels <> '{}';

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
	group_name text,
	labels jsonb CHECK (jsonb_typeof(labels) = 'object' AND labels <> '{}'),
	EXCLUDE USING gist (position WITH =, effective WITH &&),
	CONSTRAINT rule_has_a_pattern CHECK (num_nonnulls(cluster, namespace, slurm_account, user_name, group_name, labels) > 0)
);
COMMENT ON TABLE attribution_rule IS 'Patterns that say whose a holder is, in force over a range of billing hours. Lowest priority number first, then id.';
COMMENT ON COLUMN attribution_rule.position IS 'place in the policy file';
COMMENT ON COLUMN attribution_rule.effective IS 'empty: replaced before it came into force';
COMMENT ON COLUMN attribution_rule.labels IS 'patterns by key; a holder must have all of the keys';

CREATE TABLE holder_attribution (
	holder_id bigint NOT NULL REFERENCES holder,
	workspace_id integer NOT NULL REFERENCES workspace,
	effective tstzrange NOT NULL CHECK (NOT isempty(effective)),
	EXCLUDE USING gist (holder_id WITH =, effective WITH &&)
);
COMMENT ON TABLE holder_attribution IS 'The workspace of a holder by the attribution rules (aggregator/core/policy), over time: exactly one at any hour.';
CREATE INDEX holder_attribution_holder ON holder_attribution (holder_id);
