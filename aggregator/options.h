/* aggregator/options.h - the options of tollgate-aggregator. */
#ifndef TOLLGATE_AGGREGATOR_OPTIONS_H
#define TOLLGATE_AGGREGATOR_OPTIONS_H

#include "common/conf/conf.h"

struct aggregator_options {
	char *listen;
	char *tls_cert;
	char *tls_key;
	char *tls_client_ca;
	bool tls_client_required;
	char *database;
	char *rollup_database;
	char *owner_database;
	char *owner_role;
	char *daemon_role;
	char *rollup_role;
	char *billing_zone;
	bool demo;
	bool migrate;
	char *issue_admin_token;
	int64_t workers, workers_ingest, workers_decisions;
	int64_t queue;
	int64_t connections;
	int64_t tenant_polls;
	int64_t idle_timeout_ns;
	int64_t request_timeout_ns;
	int64_t statement_timeout_ns;
	int64_t lock_timeout_ns;
	int64_t connect_timeout_ns;
	int64_t report_timeout_ns, rollup_timeout_ns, close_timeout_ns, verify_timeout_ns, migrate_timeout_ns;
	int64_t stop_grace_ns;
	int64_t ingest_max_bytes;
	int64_t held_node_max_bytes;
	int64_t clock_skew_max_ns;
	int64_t event_age_ns;
	int64_t event_ahead_ns;
	int64_t event_batch;
	int64_t rollup_interval_ns;
	int64_t seal_grace_ns;
	int64_t metrics_refresh_ns;
	int64_t metrics_series_max;
	int64_t cost_rows;
	int64_t slice_ns;
	int64_t keep_intervals_ns;
	int64_t keep_batches_ns;
	int64_t keep_hours_ns;
	int64_t period_grace_ns;
	int64_t close_after_ns;
	int64_t audit_interval_ns;
	int64_t close_unknown_ppm;
	int64_t close_unattributed_ppm;
	int64_t reclaim_grace_ns;
	int64_t queue_aging_ns;
	int64_t head_wait_ns;
	int64_t borrow_backoff_ns;
	int64_t borrow_backoff_forget_ns;
	int64_t lease_confirm_ns;
	int64_t lease_silence_ns;
	int64_t quota_tick_ns, quota_quiet_ns;
	int64_t tenant_dry_runs;
	int64_t tenant_queued;
	int64_t tenant_exceptions;
	int64_t tenant_skus;
	char *organisation;
	char *provider_name;
	bool access_log;
	int log_level;
};

extern const struct conf_program aggregator_program;

#endif
