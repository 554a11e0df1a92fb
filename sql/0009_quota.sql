-- oldest-binary: 0.1.0
-- What the policy grants, over time: members, isolation, quotas, reservations, priority classes, and the states of nodes and GPUs.
--
-- Every row holds for a range of billing hours. An exclusion constraint says that one thing has one answer at any hour.

CREATE FUNCTION is_range_of_hours(r tstzrange) RETURNS boolean
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN NOT isempty(r) AND NOT lower_inf(r) AND lower_inc(r) AND NOT upper_inc(r)
		AND mod(ns_of(lower(r)), 900000000000) = 0 AND (upper_inf(r) OR mod(ns_of(upper(r)), 900000000000) = 0);
COMMENT ON FUNCTION is_range_of_hours IS 'begins and ends where a billing hour of some zone can: at a quarter-hour of UTC';

-- One whole GPU is 5040 units.
CREATE FUNCTION quantity_text(units bigint, profile text, instances bigint) RETURNS text
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN CASE WHEN profile <> '' THEN instances || 'x' || profile WHEN units IS NULL THEN 'none'
		WHEN mod(units, 5040) = 0 THEN (units / 5040)::text ELSE units / gcd(units, 5040) || '/' || 5040 / gcd(units, 5040) END;
COMMENT ON FUNCTION quantity_text IS 'as people write it in a policy: 4, 3/7, 2x1g.10gb, none';

CREATE TABLE priority_class (
	name text NOT NULL CHECK (name ~ '^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$'),
	value integer NOT NULL CHECK (value BETWEEN -1000000 AND 1000000),
	preemptible boolean NOT NULL,
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	EXCLUDE USING gist (name WITH =, effective WITH &&)
);
COMMENT ON TABLE priority_class IS 'What a request may say it is: the higher value goes first; what is not preemptible stays within the reservation.';

CREATE TABLE tenant_member (
	tenant_id integer NOT NULL REFERENCES tenant,
	member text NOT NULL CHECK (octet_length(member) BETWEEN 1 AND 254),
	role text NOT NULL CHECK (role IN ('tenant-admin', 'developer', 'viewer')),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	EXCLUDE USING gist (tenant_id WITH =, member WITH =, effective WITH &&)
);
COMMENT ON TABLE tenant_member IS 'Who belongs to a tenant, with one role in it at a time.';

CREATE TABLE workspace_member (
	workspace_id integer NOT NULL REFERENCES workspace,
	member text NOT NULL CHECK (octet_length(member) BETWEEN 1 AND 254),
	role text NOT NULL CHECK (role IN ('developer', 'viewer')),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	EXCLUDE USING gist (workspace_id WITH =, member WITH =, effective WITH &&)
);
COMMENT ON TABLE workspace_member IS 'Who works in a workspace, with one role in it at a time.';

CREATE TABLE tenant_quota (
	tenant_id integer NOT NULL REFERENCES tenant,
	isolation text NOT NULL CHECK (isolation IN ('node', 'gpu', 'mig', 'shared')),
	priority_classes text[] CHECK (array_position(priority_classes, NULL) IS NULL),
	cpu_millis bigint CHECK (cpu_millis >= 0),
	memory_bytes bigint CHECK (memory_bytes >= 0),
	storage_bytes bigint CHECK (storage_bytes >= 0),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	EXCLUDE USING gist (tenant_id WITH =, effective WITH &&)
);
COMMENT ON TABLE tenant_quota IS 'How far a tenant is kept apart, and what holds for all its workspaces together.';
COMMENT ON COLUMN tenant_quota.isolation IS 'the least that separates it from others: its own nodes, whole GPUs, MIG instances, nothing';
COMMENT ON COLUMN tenant_quota.priority_classes IS 'those it may use; NULL: all';
COMMENT ON COLUMN tenant_quota.cpu_millis IS 'thousandths of a core; NULL: no limit';

CREATE TABLE tenant_limit (
	tenant_id integer NOT NULL REFERENCES tenant,
	kind text NOT NULL CHECK (kind IN ('maximum', 'default_limit')),
	model text NOT NULL,
	profile text NOT NULL,
	instances bigint CHECK (instances >= 0),
	units bigint CHECK (units >= 0),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	CHECK ((profile = '') = (instances IS NULL)),
	EXCLUDE USING gist (tenant_id WITH =, kind WITH =, model WITH =, profile WITH =, effective WITH &&)
);
COMMENT ON TABLE tenant_limit IS 'Limits on GPUs over all workspaces of a tenant (maximum), and of each that has none of its own (default_limit).';
COMMENT ON COLUMN tenant_limit.model IS 'empty: each model for itself; models are never summed';
COMMENT ON COLUMN tenant_limit.units IS '5040 are a GPU; NULL: no limit; of a MIG profile NULL too when its model, and so its weight, is not named';

CREATE TABLE workspace_quota (
	workspace_id integer NOT NULL REFERENCES workspace,
	reclaim text NOT NULL CHECK (reclaim IN ('any', 'lower', 'never')),
	preempt_own text NOT NULL CHECK (preempt_own IN ('lower', 'never')),
	weight integer NOT NULL CHECK (weight BETWEEN 1 AND 1000000),
	enforce text NOT NULL CHECK (enforce IN ('off', 'warn', 'on')),
	idle_timeout_ns bigint CHECK (idle_timeout_ns > 0),
	cpu_millis bigint CHECK (cpu_millis >= 0),
	memory_bytes bigint CHECK (memory_bytes >= 0),
	storage_bytes bigint CHECK (storage_bytes >= 0),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	EXCLUDE USING gist (workspace_id WITH =, effective WITH &&)
);
COMMENT ON TABLE workspace_quota IS 'How a workspace asks, gives back and is counted. NULL: no limit.';

CREATE TABLE workspace_limit (
	workspace_id integer NOT NULL REFERENCES workspace,
	kind text NOT NULL CHECK (kind IN ('limit', 'borrow', 'lend')),
	model text NOT NULL,
	profile text NOT NULL,
	instances bigint CHECK (instances >= 0),
	units bigint CHECK (units >= 0),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	CHECK ((profile = '') = (instances IS NULL)),
	EXCLUDE USING gist (workspace_id WITH =, kind WITH =, model WITH =, profile WITH =, effective WITH &&)
);
COMMENT ON TABLE workspace_limit IS 'What a workspace may have, may owe and may lend, in each pool. No row: the default of the quota engine.';
COMMENT ON COLUMN workspace_limit.model IS 'empty: each model for itself; models are never summed';
COMMENT ON COLUMN workspace_limit.units IS '5040 are a GPU; NULL: no limit; of a MIG profile NULL too when its model, and so its weight, is not named';

CREATE TABLE reservation (
	workspace_id integer NOT NULL REFERENCES workspace,
	cluster_id integer NOT NULL REFERENCES cluster,
	shared boolean NOT NULL,
	model text NOT NULL CHECK (model <> ''),
	profile text NOT NULL,
	instances bigint CHECK (instances > 0),
	units bigint NOT NULL CHECK (units > 0),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	CHECK ((profile = '') = (instances IS NULL)),
	CHECK (instances IS NULL OR mod(units, instances) = 0),
	EXCLUDE USING gist (workspace_id WITH =, cluster_id WITH =, (shared::integer) WITH =, model WITH =, profile WITH =, effective WITH &&)
);
COMMENT ON TABLE reservation IS 'An entitlement in a pool: a cluster''s nodes of the workspace''s tenant, or its shared ones. Not a device.';
COMMENT ON COLUMN reservation.shared IS 'false: among the tenant''s own nodes; true: among the shared ones';
COMMENT ON COLUMN reservation.profile IS 'empty: GPUs or parts of them, else a MIG profile';
COMMENT ON COLUMN reservation.units IS '5040 are a GPU; of a profile: instances x its weight';

CREATE FUNCTION tenant_limit_text(p_tenant integer, p_kind text, p_at timestamptz) RETURNS text
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT coalesce(string_agg(CASE WHEN l.model = '' THEN '' ELSE l.model || ': ' END || quantity_text(l.units, l.profile, l.instances),
			', ' ORDER BY l.model), '')
		FROM tenant_limit l WHERE l.tenant_id = p_tenant AND l.kind = p_kind AND l.effective @> p_at;
	END;
CREATE FUNCTION workspace_limit_text(p_workspace integer, p_kind text, p_at timestamptz) RETURNS text
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT coalesce(string_agg(CASE WHEN l.model = '' THEN '' ELSE l.model || ': ' END || quantity_text(l.units, l.profile, l.instances),
			', ' ORDER BY l.model), '')
		FROM workspace_limit l WHERE l.workspace_id = p_workspace AND l.kind = p_kind AND l.effective @> p_at;
	END;
CREATE FUNCTION reservation_text(p_workspace integer, p_shared boolean, p_at timestamptz) RETURNS text
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT coalesce(string_agg(r.model || ': ' || quantity_text(r.units, r.profile, r.instances), ', ' ORDER BY r.model, r.profile), '')
		FROM reservation r WHERE r.workspace_id = p_workspace AND r.shared = p_shared AND r.effective @> p_at;
	END;
COMMENT ON FUNCTION tenant_limit_text IS 'a limit at an hour, as people write it; empty: none is declared';
COMMENT ON FUNCTION workspace_limit_text IS 'a limit at an hour, as people write it; empty: none is declared';
COMMENT ON FUNCTION reservation_text IS 'what is reserved at an hour, as people write it';

CREATE TABLE node_declared (
	node_id integer NOT NULL REFERENCES node,
	model text NOT NULL CHECK (model <> ''),
	profile text NOT NULL,
	count bigint NOT NULL CHECK (count > 0),
	units bigint NOT NULL CHECK (units BETWEEN 1 AND 5040),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	CHECK (profile <> '' OR units = 5040),
	EXCLUDE USING gist (node_id WITH =, model WITH =, profile WITH =, effective WITH &&)
);
COMMENT ON TABLE node_declared IS 'What a policy says a node has: its capacity until it was seen.';
COMMENT ON COLUMN node_declared.profile IS 'empty: whole GPUs, else MIG instances';
COMMENT ON COLUMN node_declared.units IS 'of one of them';

CREATE TABLE node_state (
	node_id integer REFERENCES node,
	gpu_id integer REFERENCES gpu,
	state text NOT NULL CHECK (state IN ('in-service', 'maintenance', 'retired')),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	CHECK (num_nonnulls(node_id, gpu_id) = 1),
	EXCLUDE USING gist (node_id WITH =, effective WITH &&) WHERE (node_id IS NOT NULL),
	EXCLUDE USING gist (gpu_id WITH =, effective WITH &&) WHERE (gpu_id IS NOT NULL)
);
COMMENT ON TABLE node_state IS 'What operators declared of a node or of one GPU: at most one state at a time. No row: in service.';
COMMENT ON COLUMN node_state.state IS 'maintenance: what nobody holds is down; retired: its service has ended';

ALTER TABLE policy_version ADD COLUMN tenant_id integer REFERENCES tenant;
COMMENT ON COLUMN policy_version.tenant_id IS 'NULL: applied by an operator; else the one tenant whose part its administrator changed';
