/* aggregator/store/verify/verify_history.c - the model history of GPUs: the rows of gpu_spec against each other,
 * against the audit log, whose chains are verified separately, and against the batches of the reporting node.
 *
 * Rules:
 *  1. the rows of a GPU follow each other without a gap, without a first beginning or a last end
 *  2. each row but the first matches the last audit entry of its hour, and the first matches the earlier value of the
 *     first entry
 *  3. an audit entry has its row
 *  4. the short name is the one of the model
 *  5. a row was reported by some batch of its node. A report is the model and the memory in the stream's dictionary,
 *     in a batch with counting records of the GPU. The order of several reports is not checked: streams arrive late,
 *     and a node that alternates between two descriptions must not block a close */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/verify/verify_ledger.h"
#include "common/base/units.h"
#include "common/wire/wire.h"

/* GPU, hour, what, expected, found; only differences. An entry's hour is text, as it was written. */
static const char differences_sql[] =
	"WITH entry AS (SELECT a.id, a.subject, a.after ->> 'from' AS begins, "
	"concat_ws(', ', a.before ->> 'model', a.before ->> 'gpu_model', (a.before ->> 'memory_bytes') || ' bytes') AS was, "
	"concat_ws(', ', a.after ->> 'model', a.after ->> 'gpu_model', (a.after ->> 'memory_bytes') || ' bytes') AS spec "
	"FROM audit_log a WHERE a.action = 'gpu.change'), "
	"said AS (SELECT DISTINCT ON (subject, begins) subject, begins, spec FROM entry ORDER BY subject, begins, id DESC), "
	"first AS (SELECT DISTINCT ON (subject) subject, was AS spec FROM entry ORDER BY subject, id), "
	"had AS (SELECT g.uuid, 'GPU ' || g.uuid AS subject, s.effective, rfc3339(lower(s.effective)) AS begins, "
	"concat_ws(', ', s.model, s.short_model, s.memory_bytes || ' bytes') AS spec, lag(upper(s.effective)) OVER w AS before_until, "
	"row_number() OVER w AS n, lead(1) OVER w IS NULL AS is_last FROM gpu g LEFT JOIN gpu_spec s ON s.gpu_id = g.id "
	"WINDOW w AS (PARTITION BY g.id ORDER BY lower(s.effective) NULLS FIRST)) "
	"SELECT h.uuid, ns_of(lower(h.effective)), 'where it begins', rfc3339(h.before_until), h.begins FROM had h "
	"WHERE CASE WHEN h.n = 1 THEN h.effective IS NULL OR NOT lower_inf(h.effective) ELSE h.before_until IS DISTINCT FROM lower(h.effective) END "
	"UNION ALL SELECT h.uuid, ns_of(lower(h.effective)), 'where it ends', '', rfc3339(upper(h.effective)) FROM had h "
	"WHERE h.is_last AND NOT upper_inf(h.effective) "
	"UNION ALL SELECT h.uuid, ns_of(lower(h.effective)), 'what it is', coalesce(s.spec, ''), h.spec FROM had h "
	"LEFT JOIN said s ON s.subject = h.subject AND s.begins = h.begins WHERE h.n > 1 AND s.spec IS DISTINCT FROM h.spec "
	"UNION ALL SELECT h.uuid, NULL, 'what it was at first', f.spec, h.spec FROM had h JOIN first f ON f.subject = h.subject "
	"WHERE h.n = 1 AND f.spec IS DISTINCT FROM h.spec "
	"UNION ALL SELECT substr(s.subject, 5), NULL, 'what it is from ' || s.begins, s.spec, '' FROM said s WHERE NOT EXISTS "
	"(SELECT FROM had h WHERE h.subject = s.subject AND h.begins = s.begins) ORDER BY 1, 2";

bool
verify_histories(struct verify_node *n, struct err *err)
{
	static const struct db_stmt names = {
		"verify models",
		"SELECT g.uuid, s.model, s.short_model FROM gpu_spec s JOIN gpu g ON g.id = s.gpu_id ORDER BY g.uuid"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL, *models = NULL;

	if (!db_tx_begin_read_long(&tx, n->db, DB_WORK_VERIFY, err) ||
	    !db_run_text(n->db, differences_sql, NULL, &r, err) || !db_run(n->db, &names, NULL, &models, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		verify_report_text(n, "gpu-history", res_text(r, row, 0),
		                   res_null(r, row, 1) ? INT64_MIN : res_i64(r, row, 1), res_text(r, row, 2),
		                   res_text(r, row, 3), res_text(r, row, 4));
	for (int row = 0; row < PQntuples(models); row++) {
		char name[WIRE_MAX_TEXT + 1];

		gpu_model_short(res_text(models, row, 1), name, sizeof(name));
		if (strcmp(name, res_text(models, row, 2)) != 0)
			verify_report_text(n, "gpu-history", res_text(models, row, 0), INT64_MIN,
			                   "short name of its model", name, res_text(models, row, 2));
	}
	return db_tx_commit(&tx, err);
}

/* --- rule 5 --- */

void
verify_gpu_entries_fini(struct verify_stream *s)
{
	for (size_t i = 0; i < s->gpu_entry_count; i++) {
		mem_free(s->gpu_entries[i].gpu);
		mem_free(s->gpu_entries[i].model);
	}
	mem_free(s->gpu_entries);
	s->gpu_entries = NULL;
	s->gpu_entry_count = 0;
}

void
verify_models_fini(struct verify_node *n)
{
	for (size_t i = 0; i < n->gpu_model_count; i++) {
		mem_free(n->gpu_models[i].gpu);
		mem_free(n->gpu_models[i].model);
	}
	mem_free(n->gpu_models);
}

void
verify_models_dictionary(struct verify_stream *s, const struct wire_batch *b, bool accepted)
{
	for (size_t i = 0; i < b->device_count; i++) {
		const struct wire_device *d = &b->devices[i];
		size_t k = 0;

		if (d->gpu != d->id)
			continue;
		while (k < s->gpu_entry_count && s->gpu_entries[k].device != d->id)
			k++;
		if (k == s->gpu_entry_count) {
			s->gpu_entries = mem_grow(s->gpu_entries, ++s->gpu_entry_count, sizeof(*s->gpu_entries));
			s->gpu_entries[k] = (struct verify_gpu_entry){.device = d->id};
		} else if (!accepted) {
			continue;
		}
		mem_free(s->gpu_entries[k].gpu);
		mem_free(s->gpu_entries[k].model);
		s->gpu_entries[k].gpu = mem_strdup(d->uuid);
		s->gpu_entries[k].model = mem_strdup(d->model);
		s->gpu_entries[k].memory_bytes = d->memory_bytes;
	}
}

static bool
is_model(const struct verify_gpu_model *w, const char *model, int64_t memory_bytes)
{
	return strcmp(w->model, model) == 0 && w->memory_bytes == memory_bytes;
}

static void
add_model(struct verify_node *n, const struct verify_gpu_entry *entry)
{
	for (size_t i = n->gpu_model_count; i-- > 0;)
		if (strcmp(n->gpu_models[i].gpu, entry->gpu) == 0 &&
		    is_model(&n->gpu_models[i], entry->model, entry->memory_bytes))
			return;
	n->gpu_models = mem_grow(n->gpu_models, n->gpu_model_count + 1, sizeof(*n->gpu_models));
	n->gpu_models[n->gpu_model_count++] = (struct verify_gpu_model){.gpu = mem_strdup(entry->gpu),
	                                                                .model = mem_strdup(entry->model),
	                                                                .memory_bytes = entry->memory_bytes};
}

static bool
has_records_of(const struct verify_stream *s, const struct wire_batch *b, const char *gpu)
{
	for (size_t i = 0; i < b->record_count; i++) {
		const char *of = verify_stream_gpu(s, b->records[i].device);

		if (of != NULL && strcmp(of, gpu) == 0)
			return true;
	}
	return false;
}

void
verify_models_batch(struct verify_node *n, const struct verify_stream *s, const struct wire_batch *b, int64_t seq)
{
	for (size_t i = 0; i < s->gpu_entry_count; i++)
		if (has_records_of(s, b, s->gpu_entries[i].gpu) && !verify_set_aside(s, seq, s->gpu_entries[i].gpu))
			add_model(n, &s->gpu_entries[i]);
}

/* *ret_other: another report of the GPU; NULL where there is none. */
static bool
was_reported(const struct verify_node *n, const char *gpu, const char *model, int64_t memory_bytes,
             const struct verify_gpu_model **ret_other)
{
	*ret_other = NULL;
	for (size_t i = 0; i < n->gpu_model_count; i++) {
		if (strcmp(n->gpu_models[i].gpu, gpu) != 0)
			continue;
		*ret_other = &n->gpu_models[i];
		if (is_model(*ret_other, model, memory_bytes))
			return true;
	}
	return false;
}

/* If batches were deleted or only part of them was read, a GPU without a report cannot be judged. */
static bool
all_batches_read(const struct verify_node *n)
{
	for (size_t i = 0; i < n->stream_count; i++)
		if (n->streams[i].evidence_seq > 1)
			return false;
	return n->from_ns <= n->hours_from_ns && n->to_ns >= n->hours_until_ns;
}

bool
verify_models_check(struct verify_node *n, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify specs",
		"SELECT g.uuid, s.model, s.memory_bytes, ns_of(lower(s.effective)) FROM gpu_spec s JOIN gpu g ON "
		"g.id = s.gpu_id WHERE s.node_id = $1 ORDER BY 1, 4 NULLS FIRST"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, n->id);
	if (!db_run(n->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		const char *gpu = res_text(r, row, 0), *model = res_text(r, row, 1);
		int64_t memory_bytes = res_i64(r, row, 2);
		int64_t hour_ns = res_null(r, row, 3) ? INT64_MIN : res_i64(r, row, 3);
		const struct verify_gpu_model *other;
		char expected[WIRE_MAX_TEXT + 64] = "", found[WIRE_MAX_TEXT + 64];
		bool all = all_batches_read(n);

		if (was_reported(n, gpu, model, memory_bytes, &other))
			continue;
		if (!all && (other == NULL || hour_ns < n->from_ns || hour_ns >= n->to_ns))
			continue;
		if (other != NULL)
			snprintf(expected, sizeof(expected), "%s, %" PRId64 " bytes", other->model,
			         other->memory_bytes);
		snprintf(found, sizeof(found), "%s, %" PRId64 " bytes", model, memory_bytes);
		verify_report_text(n, "gpu-history", gpu, hour_ns, "gpu_spec: what its node's batches say it is",
		                   expected, found);
	}
	return true;
}
