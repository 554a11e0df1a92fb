-- oldest-binary: 0.2.0
-- The roll-up: node-hours summed from records, billing days folded from hours, and what each day is charged as.
--
-- A pool is the nodes of one owner in a cluster, or its shared nodes, with one GPU model. The charges of a day are made from its hours (aggregator/core/rating) and
-- replaced day by day, in the transaction that folds the day. Days that are not folded are computed by the same function when they are read.
-- peak_memory_bytes and the sm_ columns show efficiency; no charge is made from them.

-- --- hours ---

CREATE TABLE node_hour (
	node_id integer NOT NULL REFERENCES node,
	hour timestamptz NOT NULL,
	sealed_at timestamptz,
	dirty boolean NOT NULL DEFAULT false,
	sliced_until_ns bigint,
	changes bigint NOT NULL DEFAULT 0,
	sealed_changes bigint NOT NULL DEFAULT 0,
	retired boolean NOT NULL DEFAULT false,
	PRIMARY KEY (node_id, hour),
	CONSTRAINT only_sealed_is_dirty CHECK (NOT dirty OR sealed_at IS NOT NULL),
	CONSTRAINT only_sealed_is_retired CHECK (NOT retired OR sealed_at IS NOT NULL)
) WITH (fillfactor = 80);
COMMENT ON TABLE node_hour IS 'One row for every billing hour of a node since its first record, data or not.';
COMMENT ON COLUMN node_hour.sealed_at IS 'NULL: open, read from usage_interval; else its rows are in usage_hourly';
COMMENT ON COLUMN node_hour.dirty IS 'sealed, and something it was made of has changed since: read from usage_interval, and due to be sealed again';
COMMENT ON COLUMN node_hour.sliced_until_ns IS 'its records before that are summed in usage_slice; NULL: none are';
COMMENT ON COLUMN node_hour.changes IS 'how often its records changed behind what had been covered, or its states were declared otherwise';
COMMENT ON COLUMN node_hour.sealed_changes IS 'changes when it was sealed: as long as they are the same, its stored sums are still those of its records';
COMMENT ON COLUMN node_hour.retired IS 'its records are gone from usage_interval: it is read from usage_hourly, and made from its batches if they change';
CREATE INDEX node_hour_open ON node_hour (hour, node_id) WHERE sealed_at IS NULL OR dirty;

CREATE TABLE usage_slice (
	hour timestamptz NOT NULL,
	until_ns bigint NOT NULL,
	node_id integer NOT NULL,
	device_id integer NOT NULL,
	holder_id bigint,
	state usage_state NOT NULL,
	sharing sharing_code NOT NULL,
	method method_code NOT NULL,
	held numeric NOT NULL CHECK (held >= 0),
	used numeric NOT NULL CHECK (used >= 0),
	unmeasured numeric NOT NULL CHECK (unmeasured >= 0),
	over numeric NOT NULL CHECK (over >= 0),
	energy_mj numeric NOT NULL CHECK (energy_mj >= 0),
	memory_byte_ms numeric NOT NULL CHECK (memory_byte_ms >= 0),
	peak_memory_bytes bigint NOT NULL DEFAULT 0,
	sm_active numeric NOT NULL DEFAULT 0,
	sm_measured numeric NOT NULL DEFAULT 0,
	CONSTRAINT sm_active_within_measured CHECK (peak_memory_bytes >= 0 AND sm_active >= 0 AND sm_active <= sm_measured)
);
COMMENT ON TABLE usage_slice IS 'The records of an hour that is still open, summed as far as its node has covered it, until node_hour.sliced_until_ns. '
	'Gone when the hour is sealed.';
COMMENT ON COLUMN usage_slice.until_ns IS 'where the slice ends; it begins where the one before ends';
CREATE INDEX usage_slice_hour ON usage_slice (hour, node_id, until_ns);

CREATE TABLE usage_hourly (
	hour timestamptz NOT NULL,
	node_id integer NOT NULL,
	device_id integer NOT NULL,
	holder_id bigint,
	workspace_id integer,
	sharing sharing_code NOT NULL,
	method method_code NOT NULL,
	used numeric NOT NULL CHECK (used >= 0),
	idle numeric NOT NULL CHECK (idle >= 0),
	unmeasured numeric NOT NULL CHECK (unmeasured >= 0),
	unallocated numeric NOT NULL CHECK (unallocated >= 0),
	stranded numeric NOT NULL CHECK (stranded >= 0),
	down numeric NOT NULL CHECK (down >= 0),
	unknown numeric NOT NULL CHECK (unknown >= 0),
	over numeric NOT NULL CHECK (over >= 0),
	clock_adjust numeric NOT NULL CHECK (clock_adjust >= 0),
	energy_mj numeric NOT NULL CHECK (energy_mj >= 0),
	memory_byte_ms numeric NOT NULL CHECK (memory_byte_ms >= 0),
	peak_memory_bytes bigint NOT NULL DEFAULT 0,
	sm_active numeric NOT NULL DEFAULT 0,
	sm_measured numeric NOT NULL DEFAULT 0,
	FOREIGN KEY (node_id, hour) REFERENCES node_hour,
	CONSTRAINT holder_and_workspace_together CHECK ((holder_id IS NULL) = (workspace_id IS NULL)),
	CONSTRAINT only_holders_use CHECK (holder_id IS NOT NULL OR used + idle + unmeasured + over = 0),
	CONSTRAINT sm_active_within_measured CHECK (peak_memory_bytes >= 0 AND sm_active >= 0 AND sm_active <= sm_measured
		AND (holder_id IS NOT NULL OR sm_measured = 0))
);
COMMENT ON TABLE usage_hourly IS 'Sealed node-hours. The states are in unit-nanoseconds, exact; a hostile node''s sums may exceed 64 bits, hence numeric.';
COMMENT ON COLUMN usage_hourly.workspace_id IS 'by holder_attribution when the hour was sealed; NULL, as holder_id: not held';
COMMENT ON COLUMN usage_hourly.sharing IS '0: the row was computed for time that no record covers';
COMMENT ON COLUMN usage_hourly.over IS 'activity beyond a share, outside the sum of states';
COMMENT ON COLUMN usage_hourly.clock_adjust IS 'time measured twice because a clock was set back; not part of the states';
COMMENT ON COLUMN usage_hourly.peak_memory_bytes IS 'the most of its records; 0: not told';
COMMENT ON COLUMN usage_hourly.sm_active IS 'unit-nanoseconds, of sm_measured';
COMMENT ON COLUMN usage_hourly.sm_measured IS 'unit-nanoseconds held for which the source told SM activity';
CREATE UNIQUE INDEX usage_hourly_key ON usage_hourly (hour, node_id, device_id, holder_id, sharing, method) NULLS NOT DISTINCT;

-- --- days ---

CREATE TABLE billing_day (
	day date PRIMARY KEY,
	starts_at timestamptz NOT NULL,
	ends_at timestamptz NOT NULL,
	folded_at timestamptz,
	dirty boolean NOT NULL DEFAULT true,
	hours_gone boolean NOT NULL DEFAULT false,
	CONSTRAINT starts_before_ends CHECK (starts_at < ends_at),
	CONSTRAINT day_without_hours_is_clean CHECK (NOT (dirty AND hours_gone)),
	CONSTRAINT clean_day_is_folded CHECK (dirty OR folded_at IS NOT NULL),
	EXCLUDE USING gist (tstzrange(starts_at, ends_at) WITH &&)
);
COMMENT ON TABLE billing_day IS 'Every day that has a node-hour, with the bounds it had in the billing zone when it was made.';
COMMENT ON COLUMN billing_day.dirty IS 'not folded yet, or something it was folded from has changed since: read from the hours';
COMMENT ON COLUMN billing_day.hours_gone IS 'its hours were kept long enough: what is folded is final';

CREATE TABLE usage_daily (
	day date NOT NULL REFERENCES billing_day,
	price_book_id bigint,
	cluster_id integer NOT NULL,
	owner_id integer,
	workspace_id integer,
	gpu_model text NOT NULL,
	profile text NOT NULL,
	units gpu_units NOT NULL,
	sharing sharing_code NOT NULL,
	method method_code NOT NULL,
	used numeric NOT NULL CHECK (used >= 0),
	idle numeric NOT NULL CHECK (idle >= 0),
	unmeasured numeric NOT NULL CHECK (unmeasured >= 0),
	unallocated numeric NOT NULL CHECK (unallocated >= 0),
	stranded numeric NOT NULL CHECK (stranded >= 0),
	down numeric NOT NULL CHECK (down >= 0),
	unknown numeric NOT NULL CHECK (unknown >= 0),
	over numeric NOT NULL CHECK (over >= 0),
	clock_adjust numeric NOT NULL CHECK (clock_adjust >= 0),
	energy_mj numeric NOT NULL CHECK (energy_mj >= 0),
	memory_byte_ms numeric NOT NULL CHECK (memory_byte_ms >= 0),
	peak_memory_bytes bigint,
	sm_active numeric,
	sm_measured numeric,
	CONSTRAINT only_workspaces_use CHECK (workspace_id IS NOT NULL OR used + idle + unmeasured + over = 0),
	-- Refuses fractions of a unit-nanosecond, NaN and infinity. One test for all amounts of a row: a sum has the scale of the finest, and the scale of NaN is NULL.
	-- Hours have a thousand times the rows of days and go without; verify names fractions there.
	CONSTRAINT amounts_are_whole CHECK (scale(used + idle + unmeasured + unallocated + stranded + down + unknown + over + clock_adjust
		+ energy_mj + memory_byte_ms) IS NOT DISTINCT FROM 0),
	CONSTRAINT sm_active_within_measured CHECK (num_nulls(peak_memory_bytes, sm_active, sm_measured) = 3 OR (num_nulls(peak_memory_bytes, sm_active, sm_measured) = 0
		AND peak_memory_bytes >= 0 AND sm_active >= 0 AND sm_active <= sm_measured AND scale(sm_active + sm_measured) IS NOT DISTINCT FROM 0
		AND (workspace_id IS NOT NULL OR sm_measured = 0)))
);
COMMENT ON TABLE usage_daily IS 'Folded days: the hours of all nodes, without the node and the holder.';
COMMENT ON COLUMN usage_daily.price_book_id IS 'in force at those hours of the day; NULL: none was';
COMMENT ON COLUMN usage_daily.owner_id IS 'the tenant that owned the node at those hours; NULL: shared';
COMMENT ON COLUMN usage_daily.peak_memory_bytes IS 'the most of its hours; 0: not told';
CREATE UNIQUE INDEX usage_daily_key ON usage_daily
	(day, price_book_id, cluster_id, owner_id, workspace_id, gpu_model, profile, units, sharing, method) NULLS NOT DISTINCT;

-- --- charges of a day ---

CREATE TABLE charge_day (
	day date NOT NULL REFERENCES billing_day,
	price_book_id bigint,
	cluster_id integer NOT NULL,
	owner_id integer,
	gpu_model text NOT NULL,
	workspace_id integer NOT NULL,
	profile text NOT NULL,
	units gpu_units NOT NULL,
	sharing sharing_code NOT NULL,
	class text NOT NULL CHECK (class IN ('covered', 'on-demand', 'borrowed')),
	used numeric NOT NULL CHECK (used >= 0),
	idle numeric NOT NULL CHECK (idle >= 0),
	unmeasured numeric NOT NULL CHECK (unmeasured >= 0),
	over numeric NOT NULL CHECK (over >= 0),
	energy_mj numeric NOT NULL CHECK (energy_mj >= 0),
	CONSTRAINT amounts_are_whole CHECK (scale(used + idle + unmeasured + over + energy_mj) IS NOT DISTINCT FROM 0)
);
COMMENT ON TABLE charge_day IS 'Time held by a workspace in a pool on a day, by kind of device and class. Unit-nanoseconds.';
COMMENT ON COLUMN charge_day.price_book_id IS 'in force at those hours of the day; NULL: none was';
COMMENT ON COLUMN charge_day.owner_id IS 'the tenant whose nodes the pool has; NULL: shared';
-- A tenant's month is read by its workspaces, a day is replaced whole.
CREATE UNIQUE INDEX charge_day_key ON charge_day
	(workspace_id, day, price_book_id, cluster_id, owner_id, gpu_model, profile, units, sharing, class) NULLS NOT DISTINCT;
CREATE INDEX charge_day_day ON charge_day (day);

CREATE TABLE reserve_day (
	day date NOT NULL REFERENCES billing_day,
	price_book_id bigint,
	cluster_id integer NOT NULL,
	owner_id integer,
	gpu_model text NOT NULL,
	workspace_id integer NOT NULL,
	profile text NOT NULL,
	units gpu_units NOT NULL,
	reserved numeric NOT NULL CHECK (reserved > 0),
	covered numeric NOT NULL CHECK (covered >= 0),
	lent numeric NOT NULL CHECK (lent >= 0),
	unused numeric NOT NULL CHECK (unused >= 0),
	undelivered numeric NOT NULL CHECK (undelivered >= 0),
	CONSTRAINT reserved_adds_up CHECK (reserved = covered + lent + unused + undelivered),
	CONSTRAINT amounts_are_whole CHECK (scale(reserved + covered + lent + unused + undelivered) IS NOT DISTINCT FROM 0)
);
COMMENT ON TABLE reserve_day IS 'The reservation of a workspace in a pool on a day, and how it was used. Unit-nanoseconds.';
COMMENT ON COLUMN reserve_day.profile IS 'empty: GPUs or parts of them, else a MIG profile';
COMMENT ON COLUMN reserve_day.units IS 'of one instance of the profile; 5040 of GPUs';
CREATE UNIQUE INDEX reserve_day_key ON reserve_day
	(workspace_id, day, price_book_id, cluster_id, owner_id, gpu_model, profile, units) NULLS NOT DISTINCT;
CREATE INDEX reserve_day_day ON reserve_day (day);

CREATE TABLE loan_day (
	day date NOT NULL REFERENCES billing_day,
	price_book_id bigint,
	cluster_id integer NOT NULL,
	owner_id integer,
	gpu_model text NOT NULL,
	lender_id integer NOT NULL,
	borrower_id integer NOT NULL,
	profile text NOT NULL,
	units gpu_units NOT NULL,
	sharing sharing_code NOT NULL,
	used numeric NOT NULL CHECK (used >= 0),
	idle numeric NOT NULL CHECK (idle >= 0),
	unmeasured numeric NOT NULL CHECK (unmeasured >= 0),
	over numeric NOT NULL CHECK (over >= 0),
	energy_mj numeric NOT NULL CHECK (energy_mj >= 0),
	CONSTRAINT lender_is_not_borrower CHECK (lender_id <> borrower_id),
	CONSTRAINT loan_is_not_empty CHECK (used + idle + unmeasured > 0),
	CONSTRAINT amounts_are_whole CHECK (scale(used + idle + unmeasured + over + energy_mj) IS NOT DISTINCT FROM 0)
);
COMMENT ON TABLE loan_day IS 'Time that a workspace borrowed from the idle reservation of another one on a day. The kind of device is the borrower''s.';
COMMENT ON COLUMN loan_day.lender_id IS 'a workspace, as is the borrower';
CREATE UNIQUE INDEX loan_day_key ON loan_day
	(lender_id, day, price_book_id, cluster_id, owner_id, gpu_model, borrower_id, profile, units, sharing) NULLS NOT DISTINCT;
CREATE INDEX loan_day_day ON loan_day (day);

CREATE TABLE pool_day (
	day date NOT NULL REFERENCES billing_day,
	price_book_id bigint,
	cluster_id integer NOT NULL,
	owner_id integer,
	gpu_model text NOT NULL,
	capacity numeric NOT NULL CHECK (capacity >= 0),
	covered numeric NOT NULL CHECK (covered >= 0),
	on_demand numeric NOT NULL CHECK (on_demand >= 0),
	borrowed numeric NOT NULL CHECK (borrowed >= 0),
	unused numeric NOT NULL CHECK (unused >= 0),
	unreserved_idle numeric NOT NULL CHECK (unreserved_idle >= 0),
	unallocated numeric NOT NULL CHECK (unallocated >= 0),
	stranded numeric NOT NULL CHECK (stranded >= 0),
	down numeric NOT NULL CHECK (down >= 0),
	unknown numeric NOT NULL CHECK (unknown >= 0),
	energy_mj numeric NOT NULL CHECK (energy_mj >= 0),
	idle_less_stranded numeric,
	CONSTRAINT capacity_by_class_adds_up CHECK (capacity = covered + on_demand + borrowed + unused + unreserved_idle),
	CONSTRAINT capacity_by_state_adds_up CHECK (capacity = covered + on_demand + borrowed + unallocated + stranded),
	CONSTRAINT amounts_are_whole CHECK (scale(capacity + covered + on_demand + borrowed + unused + unreserved_idle + unallocated + stranded
		+ down + unknown + energy_mj) IS NOT DISTINCT FROM 0),
	CONSTRAINT idle_less_stranded_within_idle CHECK (idle_less_stranded IS NULL OR (scale(idle_less_stranded) IS NOT DISTINCT FROM 0
		AND idle_less_stranded BETWEEN greatest(unreserved_idle - stranded, 0) AND unreserved_idle))
);
COMMENT ON TABLE pool_day IS 'A pool''s day: what its capacity was charged as, and which state it was in. Unit-nanoseconds.';
COMMENT ON COLUMN pool_day.capacity IS 'in service, and neither down nor unknown';
COMMENT ON COLUMN pool_day.unused IS 'reserved, and neither held nor lent';
COMMENT ON COLUMN pool_day.unreserved_idle IS 'of what nobody held (unallocated, stranded): what nobody had reserved';
COMMENT ON COLUMN pool_day.energy_mj IS 'of what nobody held';
COMMENT ON COLUMN pool_day.idle_less_stranded IS 'unreserved_idle less stranded, never below 0, of each hour, added up: what a price book''s shared_idle divides. '
	'NULL: not known by hour; it is then computed from the day''s sums';
CREATE UNIQUE INDEX pool_day_key ON pool_day (day, price_book_id, cluster_id, owner_id, gpu_model) NULLS NOT DISTINCT;

-- --- lost devices ---

CREATE TABLE lost_hold (
	day date NOT NULL REFERENCES billing_day,
	node_id integer NOT NULL REFERENCES node,
	stream_id integer NOT NULL REFERENCES stream,
	device_id integer NOT NULL REFERENCES device,
	holder_id bigint NOT NULL REFERENCES holder,
	ended_ns bigint NOT NULL,
	cause text NOT NULL CHECK (cause IN ('gpu-down', 'node-silent', 'xid')),
	xid integer,
	failed_gpu_id integer NOT NULL REFERENCES gpu,
	PRIMARY KEY (device_id, holder_id, ended_ns)
);
COMMENT ON TABLE lost_hold IS 'Devices that a workload lost because a GPU or the node failed, by the day it did: made with the day, from records that are gone later.';
COMMENT ON COLUMN lost_hold.cause IS 'gpu-down: the GPU was down from then on; node-silent: nothing accounts for it from then on; xid: a critical error, and the GPU went on';
COMMENT ON COLUMN lost_hold.failed_gpu_id IS 'the GPU that failed: another one, where the workload held several';
CREATE INDEX lost_hold_day ON lost_hold (day);
