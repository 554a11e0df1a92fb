/* tests/support/store/store_tool.c - the store's calls for integration tests, one process each:
 *
 * store_tool CONNINFO migrate [--demo 1] [--zone Z]
 * store_tool CONNINFO ingest --now NS [--node N] [--clock NS] FILE...      one call per file
 * store_tool CONNINFO quarantine [--decision D] [--node N]
 * store_tool CONNINFO release --now NS [--why TEXT] STREAM SEQ         or discard
 * store_tool CONNINFO approve NODE
 * store_tool CONNINFO held-release [--steps N]          takes in what approved nodes sent while they were held
 * store_tool CONNINFO ingest-group --now NS                   each line of standard input names the files of pushes that wait at the
 *     same time; the process remembers what it knows from one line to the next
 * store_tool CONNINFO apply --now NS [--dry-run 1] [--tenant T] FILE    a tenant's part, by its administrator
 * store_tool CONNINFO reattribute [--steps N]
 * store_tool CONNINFO suggest --from NS --to NS
 * store_tool CONNINFO rollup --now NS --grace NS [--limit N]
 * store_tool CONNINFO slice [--slice NS]
 * store_tool CONNINFO fold --now NS [--limit N]
 * store_tool CONNINFO retain --now NS [--intervals NS] [--batches NS] [--hours NS]
 * store_tool CONNINFO usage --from NS --to NS [--by KEYS] [--FILTER NAME] [--limit N] [--cursor C] [--exact 1] [--csv 1]
 * store_tool CONNINFO conservation --from NS --to NS
 * store_tool CONNINFO conservation-error PERIOD
 * store_tool CONNINFO verify --from NS --to NS [--node N]
 * store_tool CONNINFO report PERIOD [--tenant T] [--json 1]
 * store_tool CONNINFO reconcile PERIOD [--csv 1]
 * store_tool CONNINFO close-check PERIOD --now NS
 * store_tool CONNINFO close PERIOD --now NS [--reason TEXT] [--organisation NAME] [--unknown PPM] [--unattributed PPM]
 * store_tool CONNINFO bill PERIOD [--tenant T] [--format F] [--organisation NAME] [--manifest 1]    a document (document_name()) as it was
 *     stored, or with corrections while it is not closed
 * store_tool CONNINFO schedule --now NS --after NS [as close] months that are over are in grace; the first that is due is closed
 * store_tool CONNINFO recompute PERIOD
 * store_tool CONNINFO totals PERIOD
 * store_tool CONNINFO token ROLE [--tenant T] [--node N]      makes one and looks it up
 * store_tool CONNINFO check TOKEN
 * store_tool CONNINFO list WHAT [--tenant T]
 * store_tool CONNINFO policy [--tenant T]
 * store_tool CONNINFO quota-look --now NS     what a quota book that knows nothing is told: {"events":[...],"anomalies":[...]}
 * store_tool CONNINFO ready | ledger | period --now NS
 *
 * Every call writes one line of JSON (or the document itself). A call that fails writes {"error": KIND, "text": ...}
 * and the exit code is 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "aggregator/core/reports/chargeback.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/billing/document.h"
#include "aggregator/store/billing/period.h"
#include "aggregator/store/billing/report_store.h"
#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/policy/policy_store.h"
#include "aggregator/store/quota/quota_store.h"
#include "aggregator/store/billing/finance.h"
#include "aggregator/store/rollup/rollup.h"
#include "aggregator/store/usage/usage.h"
#include "aggregator/store/verify/verify.h"
#include "common/conf/json.h"
#include "common/base/time.h"

#define OUT_MAX (256u << 20)
#define FILE_MAX (256u << 20)

struct args {
	int count;
	char **words;
};

static const char *
option(const struct args *a, const char *name)
{
	for (int i = 0; i + 1 < a->count; i++)
		if (strcmp(a->words[i], name) == 0)
			return a->words[i + 1];
	return NULL;
}

static int64_t
option_i64(const struct args *a, const char *name, int64_t preset)
{
	const char *s = option(a, name);

	return s ? strtoll(s, NULL, 10) : preset;
}

/* The nth word that is neither an option nor its value. */
static const char *
word(const struct args *a, int n)
{
	for (int i = 0; i < a->count; i++) {
		if (strncmp(a->words[i], "--", 2) == 0)
			i++;
		else if (n-- == 0)
			return a->words[i];
	}
	return NULL;
}

static void
write_error(struct buf *out, const struct err *err)
{
	char text[ERR_LOG_SIZE];

	buf_printf(out, "{\"error\":\"%s\",\"text\":", err_kind_name(err->kind));
	json_write_string(err_log_text(err, text), out);
	buf_str(out, "}\n");
}

static bool
migrate(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	int applied = 0;

	if (!store_migrate(db,
	                   &(struct ledger_options){.demo = option(a, "--demo") != NULL, .zone = option(a, "--zone")},
	                   &applied, err))
		return false;
	buf_printf(out, "{\"applied\":%d}\n", applied);
	return true;
}

static void
write_ingest(struct buf *out, bool ok, const struct ingest_result *r, const struct err *err)
{
	bool any = false;

	buf_printf(out,
	           "{\"ok\":%s,\"epoch\":%" PRIu64 ",\"next_seq\":%" PRIu64 ",\"batches\":%" PRId64
	           ",\"records\":%" PRId64 ",\"duplicates\":%" PRId64 ",\"quarantined\":%" PRId64
	           ",\"set_aside\":%" PRId64 ",\"lost\":%" PRId64
	           ",\"grouped\":%s,\"gap\":%s,\"mismatch\":%s,\"simulated\":%s,\"reason\":",
	           ok ? "true" : "false", r->epoch, r->next_seq, r->batches, r->records, r->duplicates, r->quarantined,
	           r->set_aside, r->lost, r->grouped ? "true" : "false", r->gap ? "true" : "false",
	           r->mismatch ? "true" : "false", r->simulated ? "true" : "false");
	json_write_string(r->quarantine_reason, out);
	buf_printf(out, ",\"refusal\":\"%s\",\"classes\":{", ingest_refusal_name(r->refusal));
	for (size_t i = 0; i < QUARANTINE_CLASSES; i++) {
		if (r->quarantined_by[i] == 0)
			continue;
		buf_printf(out, "%s\"%s\":%" PRId64, any ? "," : "", quarantine_class_name((enum quarantine_class)i),
		           r->quarantined_by[i]);
		any = true;
	}
	buf_str(out, "},\"sums\":[");
	for (size_t i = 0; i < r->sums.count; i++) {
		const struct ingest_sum *s = &r->sums.at[i];
		const struct device_class *c = &r->sums.classes.at[s->device_class];
		char text[DECIMAL_TEXT_SIZE];

		buf_printf(out, "%s[%" PRId32 ",\"%s\",\"%s\",\"%s\",\"%s\",%s,%" PRId64 "]", i > 0 ? "," : "",
		           s->workspace_id, c->cluster, c->gpu_model, c->profile, usage_state_name(s->state),
		           decimal_format(s->unit_ns, 0, 0, text), s->energy_mj);
	}
	buf_printf(out, "],\"error\":\"%s\",\"text\":", ok ? "" : err_kind_name(err->kind));
	json_write_string(ok ? "" : err->text, out);
	buf_str(out, "}\n");
}

/* Each file is a call; what a call refuses is its line, not the end. */
static bool
ingest(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	in_place(buf) struct buf file;
	owned(ingest_cache) struct ingest_cache *cache = ingest_cache_new(option_i64(a, "--slice", 5 * NS_PER_MIN));
	const char *name;

	buf_init(&file, FILE_MAX);
	for (int i = 0; (name = word(a, i)) != NULL; i++) {
		in_place(ingest_result) struct ingest_result r = {0};
		struct err why = {0};
		bool ok;

		if (!buf_read_file(&file, name, err))
			return false;
		ok = store_ingest(db, cache,
		                  &(struct ingest_request){.node = option(a, "--node"),
		                                           .frames = buf_text(&file),
		                                           .len = file.len,
		                                           .now_ns = option_i64(a, "--now", 0),
		                                           .clock_ns = option_i64(a, "--clock", INT64_MIN),
		                                           .skew_max_ns = 30 * NS_PER_S},
		                  &r, &why);
		write_ingest(out, ok, &r, &why);
		/* A test that kills the server reads along. */
		fwrite(out->data, 1, out->len, stdout);
		fflush(stdout);
		buf_clear(out);
	}
	return true;
}

static bool
quarantine(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	struct quarantine_query q = {.node = option(a, "--node"),
	                             .decision = option(a, "--decision"),
	                             .page = {.limit = PAGE_MAX}};

	return word(a, 1) == NULL
	               ? store_quarantine_json(db, &q, out, err)
	               : store_quarantine_show(db, strtoll(word(a, 0), NULL, 10), strtoll(word(a, 1), NULL, 10),
	                                       option(a, "--gpu") ? option(a, "--gpu") : "", out, err);
}

static bool
approve(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	bool changed = false;

	if (!store_node_approve(db, word(a, 0), "test", "a test says so", false, &changed, err))
		return false;
	buf_printf(out, "{\"changed\":%s}\n", changed ? "true" : "false");
	return true;
}

/* As the daemon does besides: --steps at most. */
static bool
held_release(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	int64_t steps = option_i64(a, "--steps", INT64_MAX), done = 0, batches = 0;
	in_place(held_turn) struct held_turn turn = {0};
	bool more = true;

	for (; done < steps && more; done++) {
		in_place(ingest_result) struct ingest_result r = {0};

		if (!store_held_release(db, &turn, &r, &more, err))
			return false;
		batches += r.batches;
	}
	if (turn.count > 0) {
		*err = turn.err;
		return false;
	}
	buf_printf(out, "{\"steps\":%" PRId64 ",\"batches\":%" PRId64 ",\"more\":%s}\n", done, batches,
	           more ? "true" : "false");
	return true;
}

static bool
decide(struct db *db, const struct args *a, bool release, struct buf *out, struct err *err)
{
	in_place(ingest_result) struct ingest_result r = {0};
	struct quarantine_decision d = {
		.stream = strtoll(word(a, 0), NULL, 10),
		.seq = strtoll(word(a, 1), NULL, 10),
		.gpu = option(a, "--gpu") ? option(a, "--gpu") : "",
		.release = release,
		.actor = "test",
		.why = option(a, "--why") ? option(a, "--why") : "a test says so",
		.now_ns = option_i64(a, "--now", 0),
	};

	return store_quarantine_decide(db, &d, &r, out, err);
}

static bool
move(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	struct gpu_move m = {.gpu = word(a, 0),
	                     .node = word(a, 1),
	                     .at_ns = option_i64(a, "--now", 0),
	                     .actor = "test",
	                     .why = "a test says so"};

	return store_gpu_move(db, &m, out, err);
}

static bool
release(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	return decide(db, a, true, out, err);
}

static bool
discard(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	return decide(db, a, false, out, err);
}

#define STEP_MAX 64

/* The pushes of one step: decoded, written as a group, then each has its outcome. Unsound files are not for this command. */
static bool
ingest_step(struct db *db, struct ingest_cache *cache, const char *const *names, size_t n, int64_t now_ns,
            struct buf *out, struct err *err)
{
	struct buf files[STEP_MAX];
	struct ingest_push *pushes[STEP_MAX] = {0};
	bool ok = true;

	for (size_t i = 0; i < n; i++)
		buf_init(&files[i], FILE_MAX);
	for (size_t i = 0; i < n && ok; i++) {
		struct ingest_result r = {0};

		ok = buf_read_file(&files[i], names[i], err) &&
		     ingest_push_new(&(struct ingest_request){.frames = buf_text(&files[i]),
		                                              .len = files[i].len,
		                                              .now_ns = now_ns,
		                                              .clock_ns = INT64_MIN,
		                                              .skew_max_ns = 30 * NS_PER_S},
		                     &pushes[i], &r, err);
	}
	if (ok)
		store_ingest_group(db, cache, pushes, n);
	for (size_t i = 0; i < n; i++) {
		in_place(ingest_result) struct ingest_result r = {0};
		struct err why = {0};
		bool taken = ok && store_ingest_push(db, cache, pushes[i], &r, &why);

		if (ok)
			write_ingest(out, taken, &r, &why);
		ingest_push_free(pushes[i]);
		buf_fini(&files[i]);
	}
	fwrite(out->data, 1, out->len, stdout);
	fflush(stdout);
	buf_clear(out);
	return ok;
}

/* Steps come as lines on standard input, the files of a step with blanks between them: a test does what it likes between two of them. */
static bool
ingest_group(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	owned(ingest_cache) struct ingest_cache *cache = ingest_cache_new(option_i64(a, "--slice", 5 * NS_PER_MIN));
	char line[16384];

	while (fgets(line, sizeof(line), stdin)) {
		const char *names[STEP_MAX];
		size_t n = 0;

		for (char *rest = line, *name; n < STEP_MAX && (name = strtok_r(rest, " \n", &rest)) != NULL;)
			names[n++] = name;
		if (!ingest_step(db, cache, names, n, option_i64(a, "--now", 0), out, err))
			return false;
	}
	return true;
}

static bool
apply(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	in_place(buf) struct buf file, diff;
	struct policy_outcome o;

	buf_init(&file, FILE_MAX);
	buf_init(&diff, OUT_MAX);
	if (!buf_read_file(&file, word(a, 0), err) ||
	    !store_policy_apply(db,
	                        &(struct policy_request){.name = "policy.yaml",
	                                                 .text = buf_text(&file),
	                                                 .len = file.len,
	                                                 .actor = "test",
	                                                 .tenant = option(a, "--tenant"),
	                                                 .now_ns = option_i64(a, "--now", 0),
	                                                 .dry_run = option(a, "--dry-run") != NULL},
	                        &o, &diff, err))
		return false;
	buf_printf(out,
	           "{\"changes\":%zu,\"effective_ns\":%" PRId64 ",\"version\":%" PRId64
	           ",\"corrects_from\":\"%s\",\"diff\":",
	           o.changes, o.effective_ns, o.version, o.corrects_from);
	json_write_string(buf_text(&diff), out);
	buf_str(out, "}\n");
	return true;
}

/* As the daemon's thread does it: to the end, or so many steps. */
static bool
reattribute(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	int done = 0;

	return store_reattribute(db, (int)option_i64(a, "--steps", 1000000), &done, err) &&
	       store_reattribution_json(db, out, err);
}

static bool
suggest(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	return store_policy_suggest(db, option_i64(a, "--from", 0), option_i64(a, "--to", 0), out, err);
}

static bool
rollup(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	struct rollup_result r;

	if (!store_rollup(db, option_i64(a, "--now", 0), option_i64(a, "--grace", 0),
	                  (int)option_i64(a, "--limit", 100000), &r, err))
		return false;
	buf_printf(out, "{\"sealed\":%" PRId64 ",\"resealed\":%" PRId64 ",\"restored\":%" PRId64 "}\n", r.sealed,
	           r.resealed, r.restored);
	return true;
}

static bool
slice(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	int64_t sliced;

	if (!store_slice(db, option_i64(a, "--slice", 5 * NS_PER_MIN), &sliced, err))
		return false;
	buf_printf(out, "{\"sliced\":%" PRId64 "}\n", sliced);
	return true;
}

static bool
fold(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	int64_t folded;

	if (!store_fold(db, option_i64(a, "--now", 0), (int)option_i64(a, "--limit", 100000), &folded, err))
		return false;
	buf_printf(out, "{\"folded\":%" PRId64 "}\n", folded);
	return true;
}

static bool
retain(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	const struct retention keep = {.intervals_ns = option_i64(a, "--intervals", 0),
	                               .batches_ns = option_i64(a, "--batches", 0),
	                               .hours_ns = option_i64(a, "--hours", 0)};
	struct retention_result r;
	int64_t made;

	if (!store_partitions(db, option_i64(a, "--now", 0), &made, err) ||
	    !store_retain(db, option_i64(a, "--now", 0), &keep, &r, err))
		return false;
	buf_printf(out, "{\"days\":%" PRId64 ",\"busy\":%" PRId64 ",\"batches\":%" PRId64 ",\"hours\":%" PRId64 "}\n",
	           r.days, r.busy, r.batches, r.hours);
	return true;
}

static bool
usage(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	const char *by = option(a, "--by");
	struct usage_query q = {.from_ns = option_i64(a, "--from", 0),
	                        .to_ns = option_i64(a, "--to", 0),
	                        .group_by = by ? by : "",
	                        .tenant = option(a, "--tenant"),
	                        .workspace = option(a, "--workspace"),
	                        .cluster = option(a, "--cluster"),
	                        .user = option(a, "--user"),
	                        .gpu_model = option(a, "--gpu-model"),
	                        .node = option(a, "--node"),
	                        .cursor = option(a, "--cursor"),
	                        .limit = option_i64(a, "--limit", USAGE_PAGE_MAX),
	                        .exact = option(a, "--exact") != NULL,
	                        .csv = option(a, "--csv") != NULL};
	in_place(buf) struct buf next;

	buf_init(&next, OUT_MAX);
	return store_usage(db, &q, out, &next, err);
}

static bool
conservation(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	return store_conservation_json(db, option_i64(a, "--from", 0), option_i64(a, "--to", 0), out, err);
}

static bool
conservation_error(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	char text[DECIMAL_TEXT_SIZE];
	int128 unit_ns;

	if (!store_conservation_error(db, word(a, 0), &unit_ns, err))
		return false;
	buf_printf(out, "{\"unit_ns\":\"%s\"}\n", decimal_format(unit_ns, 0, 0, text));
	return true;
}

static bool
verify(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	return store_verify_json(db,
	                         &(struct verify_query){.from_ns = option_i64(a, "--from", 0),
	                                                .to_ns = option_i64(a, "--to", 0),
	                                                .node = option(a, "--node")},
	                         out, err);
}

static bool
preview(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	in_place(buf) struct buf text;

	buf_init(&text, FILE_MAX);
	return buf_read_file(&text, word(a, 1), err) &&
	       store_price_preview(db,
	                           &(struct price_request){.name = "prices.yaml",
	                                                   .text = buf_text(&text),
	                                                   .len = text.len,
	                                                   .period = word(a, 0),
	                                                   .tenant = option(a, "--tenant")},
	                           out, err);
}

static bool
report(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	owned(report_input) struct report_input *input = NULL;
	owned(rated) struct rated *rated = NULL;

	if (!store_report_load(db, word(a, 0), option(a, "--tenant"), &input, err) ||
	    !rating_run(&input->in, &rated, err))
		return false;
	return option(a, "--json") ? report_json(&input->in, rated, out, err) : report_csv(&input->in, rated, out, err);
}

static bool
reconcile(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	owned(reconciliation) struct reconciliation *r = NULL;
	char zone[64];

	if (!store_reconcile(db, word(a, 0), &r, zone, err))
		return false;
	return option(a, "--csv") ? reconcile_csv(r, out, err) : reconcile_json(r, out, err);
}

static bool
close_check(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	struct period_checks c;

	if (!store_period_check(db, word(a, 0), option_i64(a, "--now", 0), &PERIOD_THRESHOLDS, &c, err))
		return false;
	period_checks_json(&c, word(a, 0), out);
	return true;
}

static const char *
organisation(const struct args *a)
{
	return option(a, "--organisation") ? option(a, "--organisation") : "Example Inc.";
}

static struct period_close
close_request(const struct args *a, const char *month)
{
	struct period_close rq = {.month = month,
	                          .actor = "test",
	                          .reason = option(a, "--reason") ? option(a, "--reason") : "",
	                          .organisation = organisation(a),
	                          .provider = "Platform",
	                          .now_ns = option_i64(a, "--now", 0),
	                          .thresholds = PERIOD_THRESHOLDS};

	rq.thresholds.unknown_ppm = option_i64(a, "--unknown", rq.thresholds.unknown_ppm);
	rq.thresholds.unattributed_ppm = option_i64(a, "--unattributed", rq.thresholds.unattributed_ppm);
	return rq;
}

static bool
close_period(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	struct period_close rq = close_request(a, word(a, 0));

	return store_period_close(db, &rq, out, err);
}

static bool
schedule(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	int64_t now_ns = option_i64(a, "--now", 0), changed;
	char month[8] = "";
	struct period_close rq = close_request(a, month);

	if (!store_period_grace(db, now_ns, &changed, err) ||
	    !store_period_due(db, now_ns, option_i64(a, "--after", 0), month, err))
		return false;
	if (month[0] != '\0')
		return store_period_close(db, &rq, out, err);
	buf_printf(out, "{\"grace\":%" PRId64 "}\n", changed);
	return true;
}

static bool
bill(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	struct document_request rq = {.period = word(a, 0),
	                              .tenant = option(a, "--tenant"),
	                              .format = DOCUMENT_FORMATS,
	                              .organisation = organisation(a),
	                              .provider = "Platform",
	                              .now_ns = option_i64(a, "--now", 0)};
	const char *format = option(a, "--format") ? option(a, "--format") : "csv";
	struct document_result result;
	owned(spill) struct spill *spill = NULL;
	struct spill_file file;
	char piece[65536];
	ssize_t n;

	for (int i = 0; i < DOCUMENT_FORMATS; i++)
		if (strcmp(format, document_name((enum document_format)i)) == 0)
			rq.format = (enum document_format)i;
	if (!spill_new(false, &spill, err) || !store_document(db, &rq, spill, &result, err) ||
	    !spill_end(spill, &file, err))
		return false;
	if (option(a, "--manifest")) {
		struct manifest_document about = {.name = format,
		                                  .period = rq.period,
		                                  .period_status = result.period_status,
		                                  .tenant = rq.tenant,
		                                  .bytes = file.plain_len};

		memcpy(about.sha256, file.sha256, sizeof(about.sha256));
		manifest_json(&result.sums, &about, out);
	} else {
		while ((n = read(file.fd, piece, sizeof(piece))) > 0)
			buf_add(out, piece, (size_t)n);
	}
	close(file.fd);
	return true;
}

static bool
recompute(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	return store_period_recompute(db, word(a, 0), out, err);
}

static void
add_total(void *arg, const struct usage_total *t)
{
	struct buf *out = arg;
	char text[DECIMAL_TEXT_SIZE];

	buf_printf(out, "%s[\"%s\",\"%s\",\"%s\",\"%s\",\"%s\",\"%s\",\"%s\"]", out->len > 1 ? "," : "", t->cluster,
	           t->tenant, t->workspace, t->gpu_model, t->profile, t->state, decimal_format(t->unit_ns, 0, 0, text));
}

static bool
totals(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	buf_char(out, '[');
	if (!store_period_totals(db, word(a, 0), add_total, out, err))
		return false;
	buf_str(out, "]\n");
	return true;
}

/* The policy first, then what the loop says of a book that has it. */
static bool
quota_look(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	static const struct quota_settings settings = {.burst = 2,
	                                               .grace_ns = 300 * NS_PER_S,
	                                               .silence_ns = 300 * NS_PER_S};
	owned(quota_book) struct quota_book *book = NULL;
	owned(quota_outcome) struct quota_outcome *outcome = NULL;
	owned(quota_live_kept) struct quota_live_kept *kept = quota_live_kept_new();
	in_place(quota_live) struct quota_live live = {0};
	in_place(quota_policy_rows) struct quota_policy_rows rows = {0};
	struct quota_loop_out found;
	in_place(buf) struct buf policy;
	int64_t now_ns = option_i64(a, "--now", 0);

	buf_init(&policy, OUT_MAX);
	if (!store_quota_policy(db, now_ns, &rows, err) || !policy_to_quota(&rows.policy, &settings, &policy, err) ||
	    !quota_book_open("{}", 2, &book, err) ||
	    !quota_book_step(book, now_ns, buf_text(&policy), policy.len, &outcome, err) ||
	    !store_quota_observe(db, now_ns, now_ns, kept, &live, err))
		return false;
	quota_loop(book, &live.seen, now_ns, &found);
	buf_printf(out, "{\"events\":[%s", buf_text(&policy));
	for (size_t i = 0; i < found.event_count; i++)
		buf_printf(out, ",%s", found.events[i].text);
	buf_str(out, "],\"anomalies\":[");
	for (size_t i = 0; i < found.anomaly_count; i++)
		buf_printf(out, "%s[\"%s\",\"%s\",\"%s\",%s]", i > 0 ? "," : "", found.anomalies[i].kind,
		           found.anomalies[i].subject, found.anomalies[i].tenant, found.anomalies[i].detail);
	buf_str(out, "]}\n");
	quota_loop_out_fini(&found);
	return true;
}

static bool
check(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	struct identity_row who;

	if (!store_token_check(db, word(a, 0), &who, err))
		return false;
	buf_printf(out, "{\"role\":\"%s\",\"name\":\"%s\",\"node\":\"%s\",\"tenant\":\"%s\"}\n", role_name(who.role),
	           who.name, who.node, who.tenant);
	return true;
}

static bool
token(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	struct token_request rq = {.tenant = option(a, "--tenant"), .node = option(a, "--node")};
	struct token_made made;

	if (!role_parse(word(a, 0), &rq.role, err) || !store_token_create(db, &rq, "test", &made, err))
		return false;
	buf_printf(out, "{\"id\":%" PRId64 ",\"token\":\"%s\"}\n", made.id, made.token);
	return true;
}

static bool
list(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	return store_list_json(db, word(a, 0), option(a, "--tenant"), out, err);
}

static bool
policy(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	return store_policy_get(db, option(a, "--tenant"), out, err);
}

static bool
ready(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	(void)a;
	if (!store_ready(db, err))
		return false;
	buf_str(out, "{\"ready\":true}\n");
	return true;
}

static bool
ledger(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	struct ledger l;

	(void)a;
	if (!store_ledger(db, &l, err))
		return false;
	buf_printf(out, "{\"demo\":%s,\"zone\":\"%s\"}\n", l.demo ? "true" : "false", l.zone);
	return true;
}

static bool
period(struct db *db, const struct args *a, struct buf *out, struct err *err)
{
	char name[40];

	if (!store_period_now(db, option_i64(a, "--now", 0), name, err))
		return false;
	buf_printf(out, "{\"period\":\"%s\"}\n", name);
	return true;
}

static const struct {
	const char *name;
	bool (*run)(struct db *db, const struct args *a, struct buf *out, struct err *err);
} commands[] = {
	{"migrate", migrate},
	{"ingest", ingest},
	{"ingest-group", ingest_group},
	{"apply", apply},
	{"rollup", rollup},
	{"slice", slice},
	{"fold", fold},
	{"retain", retain},
	{"usage", usage},
	{"conservation", conservation},
	{"verify", verify},
	{"conservation-error", conservation_error},
	{"report", report},
	{"reconcile", reconcile},
	{"preview", preview},
	{"close-check", close_check},
	{"close", close_period},
	{"bill", bill},
	{"schedule", schedule},
	{"recompute", recompute},
	{"totals", totals},
	{"token", token},
	{"check", check},
	{"list", list},
	{"policy", policy},
	{"quota-look", quota_look},
	{"ready", ready},
	{"ledger", ledger},
	{"period", period},
	{"quarantine", quarantine},
	{"approve", approve},
	{"held-release", held_release},
	{"suggest", suggest},
	{"reattribute", reattribute},
	{"release", release},
	{"move", move},
	{"discard", discard},
};

int
main(int argc, char **argv)
{
	struct args a = {.count = argc - 3, .words = argv + 3};
	owned(db) struct db *db = NULL;
	in_place(buf) struct buf out;
	struct err err = {0};
	bool ok = false;

	buf_init(&out, OUT_MAX);
	if (argc < 3) {
		fprintf(stderr, "usage: store_tool CONNINFO COMMAND ...\n");
		return 2;
	}
	err_set(&err, ERR_INVALID, "there is no command %s", argv[2]);
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		if (strcmp(commands[i].name, argv[2]) == 0)
			ok = db_new(&(struct db_options){.conninfo = argv[1],
			                                 .application = "store_tool",
			                                 .statement_timeout_ns = 10 * NS_PER_MIN,
			                                 .lock_timeout_ns = 10 * NS_PER_MIN,
			                                 .connect_timeout_ns = 10 * NS_PER_S},
			            &db, &err) &&
			     commands[i].run(db, &a, &out, &err);
	if (!ok) {
		buf_clear(&out);
		write_error(&out, &err);
	}
	fwrite(buf_text(&out), 1, out.len, stdout);
	return ok ? 0 : 1;
}
