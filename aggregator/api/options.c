/* aggregator/api/options.c - one row per option; help, sample configuration and checks come from it. */
#include "aggregator/api/options.h"

#include "common/time.h"

static const char *const log_levels[] = {"debug", "info", "warn", "error", NULL};

#define FIELD(f) offsetof(struct aggregator_options, f)

/* clang-format off */
static const struct conf_option options[] = {
	{.name = "listen", .type = CONF_STRING, .offset = FIELD(listen), .preset = "127.0.0.1:9402",
	 .help = "address and port of the HTTP interface"},
	{.name = "tls-cert", .type = CONF_PATH, .offset = FIELD(tls_cert),
	 .help = "PEM file with the certificate and those between it and its CA: the interface is then https only; read again on SIGHUP and when it changes"},
	{.name = "tls-key", .type = CONF_PATH, .offset = FIELD(tls_key),
	 .help = "PEM file with the key of tls-cert; nobody but the aggregator should be able to read it"},
	{.name = "tls-client-ca", .type = CONF_PATH, .offset = FIELD(tls_client_ca),
	 .help = "PEM file with the CAs of clients: a client that shows another certificate is refused; tokens are needed all the same"},
	{.name = "tls-client-required", .type = CONF_BOOL, .offset = FIELD(tls_client_required), .preset = "false",
	 .help = "refuse clients that show no certificate; with tls-client-ca"},
	{.name = "database", .type = CONF_STRING, .offset = FIELD(database), .preset = "dbname=tollgate",
	 .help = "libpq connection string; may name several hosts; passwords belong in a passfile"},
	{.name = "billing-zone", .type = CONF_STRING, .offset = FIELD(billing_zone), .preset = "UTC",
	 .help = "IANA time zone of billing hours, days and months; fixed when the ledger is created"},
	{.name = "demo", .type = CONF_BOOL, .offset = FIELD(demo), .preset = "false",
	 .help = "create the ledger as a demo: only a demo takes records of simulated GPUs"},
	{.name = "migrate", .type = CONF_BOOL, .offset = FIELD(migrate), .preset = "true",
	 .help = "bring the schema up to date at the start; otherwise an older schema is refused"},
	{.name = "issue-admin-token", .type = CONF_PATH, .offset = FIELD(issue_admin_token),
	 .help = "make an administrator's token, write it to this file (mode 0600; - for standard output) and exit"},
	{.name = "workers", .type = CONF_INT, .offset = FIELD(workers), .preset = "4", .min = 1, .max = 64,
	 .help = "requests answered at the same time, each with its own database connection"},
	{.name = "queue", .type = CONF_INT, .offset = FIELD(queue), .preset = "256", .min = 1, .max = 65536,
	 .help = "requests that may wait for a worker; beyond it the answer is 503 with Retry-After"},
	{.name = "connections", .type = CONF_INT, .offset = FIELD(connections), .preset = "10000",
	 .min = 10, .max = 100000,
	 .help = "HTTP connections held open at the same time"},
	{.name = "idle-timeout", .type = CONF_DURATION, .offset = FIELD(idle_timeout_ns), .preset = "90s",
	 .min = NS_PER_S, .max = NS_PER_HOUR,
	 .help = "an HTTP connection without traffic is closed after this"},
	{.name = "request-timeout", .type = CONF_DURATION, .offset = FIELD(request_timeout_ns), .preset = "1m",
	 .min = NS_PER_S, .max = NS_PER_HOUR,
	 .help = "longest time for a client to send one request; it has ten times that to take the reply"},
	{.name = "statement-timeout", .type = CONF_DURATION, .offset = FIELD(statement_timeout_ns), .preset = "60s",
	 .min = 100 * NS_PER_MS, .max = NS_PER_HOUR,
	 .help = "longest time for one database statement"},
	{.name = "lock-timeout", .type = CONF_DURATION, .offset = FIELD(lock_timeout_ns), .preset = "10s",
	 .min = 100 * NS_PER_MS, .max = NS_PER_HOUR,
	 .help = "longest wait for a database lock"},
	{.name = "connect-timeout", .type = CONF_DURATION, .offset = FIELD(connect_timeout_ns), .preset = "5s",
	 .min = NS_PER_S, .max = 10 * NS_PER_MIN,
	 .help = "longest wait for each database host"},
	{.name = "ingest-max", .type = CONF_BYTES, .offset = FIELD(ingest_max_bytes), .preset = "16MiB",
	 .min = 1 << 20, .max = 256 << 20, .unit = "bytes",
	 .help = "largest body of one push"},
	{.name = "clock-skew-max", .type = CONF_DURATION, .offset = FIELD(clock_skew_max_ns), .preset = "30s",
	 .min = NS_PER_S, .max = NS_PER_DAY,
	 .help = "what a node sends while its clock is further off than this is quarantined until an operator decides"},
	{.name = "event-age", .type = CONF_DURATION, .offset = FIELD(event_age_ns), .preset = "45d",
	 .min = NS_PER_HOUR, .max = 366 * NS_PER_DAY,
	 .help = "an event of another meter is refused when its time is longer ago than this"},
	{.name = "event-ahead", .type = CONF_DURATION, .offset = FIELD(event_ahead_ns), .preset = "5m",
	 .min = 0, .max = NS_PER_DAY,
	 .help = "an event of another meter is refused when its time is further ahead than this"},
	{.name = "event-batch", .type = CONF_INT, .offset = FIELD(event_batch), .preset = "10000", .min = 1, .max = 100000,
	 .help = "most events in one request"},
	{.name = "rollup-interval", .type = CONF_DURATION, .offset = FIELD(rollup_interval_ns), .preset = "5s",
	 .min = 100 * NS_PER_MS, .max = NS_PER_HOUR,
	 .help = "how often finished hours are looked for"},
	{.name = "seal-grace", .type = CONF_DURATION, .offset = FIELD(seal_grace_ns), .preset = "10m",
	 .min = NS_PER_S, .max = 7 * NS_PER_DAY,
	 .help = "an hour of a silent node is sealed this long after its end, with the rest unknown"},
	{.name = "access-log", .type = CONF_BOOL, .offset = FIELD(access_log), .preset = "false",
	 .help = "write a line for every HTTP request; without it those that failed with 500 and above"},
	{.name = "log-level", .type = CONF_ENUM, .offset = FIELD(log_level), .preset = "info", .choices = log_levels,
	 .help = "least important messages that are written"},
};
/* clang-format on */

const struct conf_program aggregator_program = {
	.name = "tollgate-aggregator",
	.summary = "keeps the ledger of GPU time in PostgreSQL, and answers for it over HTTP",
	.details =
		"Takes in what the exporters send, decides whose it is by the policy, rolls it up by the hour and prices it by the month. Several of them may serve one database.",
	.see_also = (const char *const[]){"tollgate(1)", "tollgate-exporter(8)", NULL},
	.options = options,
	.count = ARRAY_LEN(options),
};
