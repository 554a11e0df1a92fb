-- oldest-binary: 0.2.0
-- The contents of the policy, over time: members, isolation, quotas, reservations, priority classes, budgets, declared nodes and GPUs, prices.
--
-- Every row is in force for a range of billing hours. Exclusion constraints allow one answer at any hour.
-- A price book is written once, with all its rows, and never changed; only its range ends. Its hash covers all rows, so that a version names one state of
-- everything that prices a month (version_is_final).

CREATE TABLE policy_version (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name text NOT NULL,
	document text NOT NULL,
	sha256 bytea NOT NULL CHECK (octet_length(sha256) = 32),
	actor text NOT NULL,
	effective_at timestamptz NOT NULL,
	applied_at timestamptz NOT NULL DEFAULT now(),
	tenant_id integer REFERENCES tenant
);
COMMENT ON TABLE policy_version IS 'Every policy file as it was applied. The last one is in force, from effective_at on.';
COMMENT ON COLUMN policy_version.tenant_id IS 'NULL: applied by an operator; else the one tenant whose part its administrator changed';

CREATE TABLE reattribution (
	one boolean PRIMARY KEY DEFAULT true CHECK (one),
	effective_at timestamptz NOT NULL,
	started_at timestamptz NOT NULL DEFAULT now(),
	finished_at timestamptz,
	after_id bigint NOT NULL DEFAULT 0 CHECK (after_id >= 0),
	last_id bigint NOT NULL CHECK (last_id >= 0),
	holders bigint NOT NULL CHECK (holders >= 0),
	holders_done bigint NOT NULL DEFAULT 0 CHECK (holders_done >= 0),
	changed bigint NOT NULL DEFAULT 0 CONSTRAINT changed_within_holders_done CHECK (changed BETWEEN 0 AND holders_done),
	hour timestamptz,
	last_hour timestamptz,
	hours_dirty bigint NOT NULL DEFAULT 0,
	CONSTRAINT holders_before_hours CHECK (hour IS NULL OR after_id >= last_id),
	CONSTRAINT finished_after_hours CHECK (finished_at IS NULL OR hour IS NOT NULL)
);
COMMENT ON TABLE reattribution IS 'The last change of rules, and how far it has come with what was there: first the holders, in the order of their ids, then '
	'the sealed hours whose rows say something else. A change that comes before the end begins again, from the earlier of both times.';
COMMENT ON COLUMN reattribution.after_id IS 'holders up to this one have what the rules say; those after last_id are attributed as they are made';
COMMENT ON COLUMN reattribution.hour IS 'hours before this one are marked; NULL: the holders come first';

-- --- members and quotas ---

CREATE TABLE priority_class (
	name text NOT NULL CHECK (name ~ '^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$'),
	value integer NOT NULL CHECK (value BETWEEN -1000000 AND 1000000),
	preemptible boolean NOT NULL,
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	EXCLUDE USING gist (name WITH =, effective WITH &&)
);
COMMENT ON TABLE priority_class IS 'The class that a request names: the higher value goes first; a request that is not preemptible stays within the reservation.';

CREATE TABLE tenant_member (
	tenant_id integer NOT NULL REFERENCES tenant,
	member text NOT NULL CHECK (octet_length(member) BETWEEN 1 AND 254),
	role text NOT NULL CHECK (role IN ('tenant-admin', 'developer', 'viewer')),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	EXCLUDE USING gist (tenant_id WITH =, member WITH =, effective WITH &&)
);
COMMENT ON TABLE tenant_member IS 'Members of a tenant, each with one role at a time.';

CREATE TABLE workspace_member (
	workspace_id integer NOT NULL REFERENCES workspace,
	member text NOT NULL CHECK (octet_length(member) BETWEEN 1 AND 254),
	role text NOT NULL CHECK (role IN ('developer', 'viewer')),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	EXCLUDE USING gist (workspace_id WITH =, member WITH =, effective WITH &&)
);
COMMENT ON TABLE workspace_member IS 'Members of a workspace, each with one role at a time.';

CREATE TABLE tenant_quota (
	tenant_id integer NOT NULL REFERENCES tenant,
	isolation text NOT NULL CHECK (isolation IN ('node', 'gpu', 'mig', 'shared')),
	priority_classes text[] CHECK (array_position(priority_classes, NULL) IS NULL),
	cpu_millis bigint CHECK (cpu_millis >= 0),
	memory_bytes bigint CHECK (memory_bytes >= 0),
	storage_bytes bigint CHECK (storage_bytes >= 0),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	owed_wait_ns bigint CHECK (owed_wait_ns > 0),
	delivered_millionths bigint CHECK (delivered_millionths BETWEEN 1 AND 1000000),
	EXCLUDE USING gist (tenant_id WITH =, effective WITH &&)
);
COMMENT ON TABLE tenant_quota IS 'How far a tenant is kept apart, and what holds for all its workspaces together.';
COMMENT ON COLUMN tenant_quota.isolation IS 'the least that separates it from others: its own nodes, whole GPUs, MIG instances, nothing';
COMMENT ON COLUMN tenant_quota.priority_classes IS 'those it may use; NULL: all';
COMMENT ON COLUMN tenant_quota.cpu_millis IS 'thousandths of a core; NULL: no limit';
COMMENT ON COLUMN tenant_quota.owed_wait_ns IS 'promised to all its workspaces together: an owed request is admitted within this; NULL: nothing is promised';
COMMENT ON COLUMN tenant_quota.delivered_millionths IS 'promised likewise: the part of reserved time that is delivered';

CREATE TABLE tenant_limit (
	tenant_id integer NOT NULL REFERENCES tenant,
	kind text NOT NULL CHECK (kind IN ('maximum', 'default_limit')),
	model text NOT NULL,
	profile text NOT NULL,
	instances bigint CHECK (instances >= 0),
	units bigint CHECK (units >= 0),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	CONSTRAINT only_profiles_have_instances CHECK ((profile = '') = (instances IS NULL)),
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
	owed_wait_ns bigint CHECK (owed_wait_ns > 0),
	delivered_millionths bigint CHECK (delivered_millionths BETWEEN 1 AND 1000000),
	EXCLUDE USING gist (workspace_id WITH =, effective WITH &&)
);
COMMENT ON TABLE workspace_quota IS 'How a workspace asks, gives back and is counted. NULL: no limit.';
COMMENT ON COLUMN workspace_quota.owed_wait_ns IS 'promised to this workspace: an owed request is admitted within this; NULL: nothing is promised';
COMMENT ON COLUMN workspace_quota.delivered_millionths IS 'promised likewise: the part of reserved time that is delivered';

CREATE TABLE workspace_limit (
	workspace_id integer NOT NULL REFERENCES workspace,
	kind text NOT NULL CHECK (kind IN ('limit', 'borrow', 'lend')),
	model text NOT NULL,
	profile text NOT NULL,
	instances bigint CHECK (instances >= 0),
	units bigint CHECK (units >= 0),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	CONSTRAINT only_profiles_have_instances CHECK ((profile = '') = (instances IS NULL)),
	EXCLUDE USING gist (workspace_id WITH =, kind WITH =, model WITH =, profile WITH =, effective WITH &&)
);
COMMENT ON TABLE workspace_limit IS 'Limits of a workspace in each pool: its hard limit, its debt and its loans. No row: the default of the quota engine.';
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
	CONSTRAINT only_profiles_have_instances CHECK ((profile = '') = (instances IS NULL)),
	CONSTRAINT instances_have_equal_weight CHECK (instances IS NULL OR mod(units, instances) = 0),
	EXCLUDE USING gist (workspace_id WITH =, cluster_id WITH =, (shared::integer) WITH =, model WITH =, profile WITH =, effective WITH &&)
);
COMMENT ON TABLE reservation IS 'An entitlement in a pool: a cluster''s nodes of the workspace''s tenant, or its shared ones. Not a device.';
COMMENT ON COLUMN reservation.shared IS 'false: among the tenant''s own nodes; true: among the shared ones';
COMMENT ON COLUMN reservation.profile IS 'empty: GPUs or parts of them, else a MIG profile';
COMMENT ON COLUMN reservation.units IS '5040 are a GPU; of a profile: instances x its weight';

CREATE TABLE tenant_auto_approve (
	tenant_id integer NOT NULL REFERENCES tenant,
	units bigint NOT NULL CHECK (units > 0),
	for_ns bigint NOT NULL CHECK (for_ns > 0),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	EXCLUDE USING gist (tenant_id WITH =, effective WITH &&)
);
COMMENT ON TABLE tenant_auto_approve IS 'Which exceptions from limits of a tenant''s workspaces nobody has to agree to; from the policy.';
COMMENT ON COLUMN tenant_auto_approve.units IS 'of one model, all that run at one time together';

CREATE TABLE budget (
	tenant_id integer NOT NULL REFERENCES tenant,
	workspace_id integer REFERENCES workspace,
	kind text NOT NULL CHECK (kind IN ('soft', 'hard')),
	currency text CHECK (currency ~ '^[A-Z]{3}$'),
	amount numeric(30, 9) NOT NULL CHECK (amount > 0),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	meter_unit text CHECK (meter_unit = 'token'),
	EXCLUDE USING gist (tenant_id WITH =, coalesce(workspace_id, 0) WITH =, effective WITH &&),
	CONSTRAINT only_one_unit CHECK (num_nonnulls(currency, meter_unit) < 2)
);
COMMENT ON TABLE budget IS 'The monthly budget of a tenant or of one of its workspaces. It changes no price.';
COMMENT ON COLUMN budget.workspace_id IS 'NULL: of the tenant as a whole';
COMMENT ON COLUMN budget.currency IS 'NULL: the amount is of meter_unit, or GPU-hours where that is NULL too';
COMMENT ON COLUMN budget.meter_unit IS 'token: of all meters that count tokens';

-- --- declared nodes and GPUs ---

CREATE TABLE node_declared (
	node_id integer NOT NULL REFERENCES node,
	model text NOT NULL CHECK (model <> ''),
	profile text NOT NULL,
	count bigint NOT NULL CHECK (count > 0),
	units bigint NOT NULL CHECK (units BETWEEN 1 AND 5040),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	CONSTRAINT whole_gpu_has_full_weight CHECK (profile <> '' OR units = 5040),
	EXCLUDE USING gist (node_id WITH =, model WITH =, profile WITH =, effective WITH &&)
);
COMMENT ON TABLE node_declared IS 'The devices of a node by the policy: its capacity until its first report.';
COMMENT ON COLUMN node_declared.profile IS 'empty: whole GPUs, else MIG instances';
COMMENT ON COLUMN node_declared.units IS 'of one of them';

CREATE TABLE node_state (
	node_id integer REFERENCES node,
	gpu_id integer REFERENCES gpu,
	state text NOT NULL CHECK (state IN ('in-service', 'maintenance', 'retired')),
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	CONSTRAINT either_node_or_gpu CHECK (num_nonnulls(node_id, gpu_id) = 1),
	EXCLUDE USING gist (node_id WITH =, effective WITH &&) WHERE (node_id IS NOT NULL),
	EXCLUDE USING gist (gpu_id WITH =, effective WITH &&) WHERE (gpu_id IS NOT NULL)
);
COMMENT ON TABLE node_state IS 'The declared state of a node or of one GPU: at most one at a time. No row: in service.';
COMMENT ON COLUMN node_state.state IS 'maintenance: what nobody holds is down; retired: its service has ended';

CREATE TABLE gpu_declared (
	gpu_id integer NOT NULL REFERENCES gpu,
	node_id integer NOT NULL REFERENCES node,
	effective tstzrange NOT NULL CHECK (is_range_of_hours(effective)),
	EXCLUDE USING gist (gpu_id WITH =, effective WITH &&)
);
COMMENT ON TABLE gpu_declared IS 'The node under which a policy lists a GPU: no other one has it in service then.';

-- --- prices ---

CREATE TABLE price_book (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	version text NOT NULL CHECK (version <> ''),
	currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
	sha256 bytea NOT NULL CHECK (octet_length(sha256) = 32),
	effective tstzrange NOT NULL,
	lender_ratio numeric(10, 9) NOT NULL DEFAULT 0 CHECK (lender_ratio BETWEEN 0 AND 1),
	shared_idle text NOT NULL DEFAULT 'none' CHECK (shared_idle IN ('none', 'even', 'proportional', 'weights')),
	platform_cost numeric(39, 9) CHECK (platform_cost >= 0),
	EXCLUDE USING gist (effective WITH &&),
	-- A version names one state of prices on every line billed with it. One that was replaced within its first hour never was.
	CONSTRAINT version_is_final EXCLUDE USING gist (version WITH =, sha256 WITH <>) WHERE (NOT isempty(effective))
);
COMMENT ON TABLE price_book IS 'Prices in force over a range of billing hours; at most one book at a time.';
COMMENT ON COLUMN price_book.sha256 IS 'of everything that prices: currency, items, discounts, energy, ratio and shares';
COMMENT ON COLUMN price_book.effective IS 'empty: replaced before it came into force';
COMMENT ON COLUMN price_book.lender_ratio IS 'of what a borrower pays goes to its lender';
COMMENT ON COLUMN price_book.shared_idle IS 'who pays the idle time of shared nodes; none: the platform';
COMMENT ON COLUMN price_book.platform_cost IS 'the monthly cost of the platform itself; NULL: not given';

CREATE TABLE price_item (
	book_id bigint NOT NULL REFERENCES price_book,
	position integer NOT NULL CHECK (position >= 0),
	sku text NOT NULL DEFAULT '',
	gpu_model text,
	mig_profile text,
	sharing_mode text CHECK (sharing_mode IN ('exclusive', 'mig', 'mps', 'timeslice', 'plain')),
	class text CHECK (class IN ('on-demand', 'borrowed', 'dedicated', 'reserved')),
	price numeric(39, 9) NOT NULL CHECK (price >= 0),
	tenant_id integer REFERENCES tenant,
	basis text NOT NULL DEFAULT 'allocated' CHECK (basis IN ('allocated', 'used')),
	meter text CHECK (meter IN ('storage', 'egress', 'inference-requests', 'inference-input-tokens', 'inference-output-tokens', 'support')),
	meter_sku text CHECK (meter_sku <> ''),
	per bigint CHECK (per BETWEEN 2 AND 1000000000),
	PRIMARY KEY (book_id, position),
	CONSTRAINT gpu_price_or_meter_price CHECK (CASE WHEN meter IS NULL THEN meter_sku IS NULL
		ELSE num_nonnulls(gpu_model, mig_profile, sharing_mode, class) = 0 AND basis = 'allocated' END),
	CONSTRAINT only_held_time_is_priced_by_use CHECK (basis = 'allocated' OR class IS NULL OR class IN ('on-demand', 'borrowed')),
	CONSTRAINT only_meters_have_per CHECK (per IS NULL OR meter IS NOT NULL)
);
COMMENT ON TABLE price_item IS 'A price per hour, or per unit of a meter. NULL in a column matches anything; the most specific item wins (aggregator/core/rating).';
COMMENT ON COLUMN price_item.tenant_id IS 'for this tenant alone, before all others';
COMMENT ON COLUMN price_item.basis IS 'used: active, unmeasured and over; else all that was held';
COMMENT ON COLUMN price_item.per IS 'how many units of the meter the price is for; NULL: one';
CREATE UNIQUE INDEX price_item_once ON price_item
	(book_id, tenant_id, meter, meter_sku, gpu_model, mig_profile, sharing_mode, class) NULLS NOT DISTINCT;

CREATE TABLE price_discount (
	book_id bigint NOT NULL REFERENCES price_book,
	position integer NOT NULL CHECK (position >= 0),
	tenant_id integer REFERENCES tenant,
	category text CHECK (category IN ('gpu', 'storage', 'network', 'inference', 'support')),
	class text CHECK (class IN ('on-demand', 'borrowed', 'dedicated', 'reserved')),
	ratio numeric(10, 9) NOT NULL CHECK (ratio BETWEEN 0 AND 1),
	PRIMARY KEY (book_id, position),
	CONSTRAINT only_gpus_have_a_class CHECK (class IS NULL OR category IS NULL OR category = 'gpu'),
	CONSTRAINT price_discount_once UNIQUE NULLS NOT DISTINCT (book_id, tenant_id, category, class)
);
COMMENT ON TABLE price_discount IS 'Off every price that matches. NULL matches anything; the most specific one holds (aggregator/core/rating).';

CREATE TABLE price_site (
	book_id bigint NOT NULL REFERENCES price_book,
	cluster_id integer NOT NULL REFERENCES cluster,
	energy_price numeric(39, 9) CHECK (energy_price >= 0),
	carbon numeric(16, 9) CHECK (carbon >= 0),
	PRIMARY KEY (book_id, cluster_id),
	CONSTRAINT price_or_carbon CHECK (energy_price IS NOT NULL OR carbon IS NOT NULL)
);
COMMENT ON TABLE price_site IS 'Energy of a cluster: per kWh its price (NULL: not billed) and its carbon in grams (NULL: not known).';

CREATE TABLE price_weight (
	book_id bigint NOT NULL REFERENCES price_book,
	tenant_id integer NOT NULL REFERENCES tenant,
	weight bigint NOT NULL CHECK (weight BETWEEN 1 AND 1000000),
	PRIMARY KEY (book_id, tenant_id)
);
COMMENT ON TABLE price_weight IS 'Shares in what nobody held of shared nodes, where the book says weights.';
