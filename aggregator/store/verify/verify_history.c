/* aggregator/store/verify/verify_history.c - what GPUs were: the rows of gpu_spec against each other, against the audit log, whose chains
 * are proved by themselves, and against the batches of the node that said so.
 *
 * Rules:
 *  1. the rows of a GPU follow each other without a gap, from ever to ever
 *  2. each but the first is what the last audit entry of its hour says, and the first is what the first entry says was before
 *  3. an audit entry has its row
 *  4. the short name is the one of the model
 *  5. a row is what some batch of its node said. A word is the model and the memory of the stream's dictionary, in a batch with records of the GPU
 *     that count. Which of several words was the last is not asked: streams come late, and a node that says now this, now that must not stop a close */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/verify/verify_ledger.h"
#include "common/base/units.h"
#include "common/wire/wire.h"

/* GPU, hour, what, expected, found; only what differs. An entry's hour is text, as it was written. */
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
		verify_say_text(n, "gpu-history", res_text(r, row, 0),
		                res_null(r, row, 1) ? INT64_MIN : res_i64(r, row, 1), res_text(r, row, 2),
		                res_text(r, row, 3), res_text(r, row, 4));
	for (int row = 0; row < PQntuples(models); row++) {
		char name[WIRE_MAX_TEXT + 1];

		gpu_model_short(res_text(models, row, 1), name, sizeof(name));
		if (strcmp(name, res_text(models, row, 2)) != 0)
			verify_say_text(n, "gpu-history", res_text(models, row, 0), INT64_MIN,
			                "short name of its model", name, res_text(models, row, 2));
	}
	return db_tx_commit(&tx, err);
}

/* --- rule 5 --- */

void
verify_said_fini(struct verify_stream *s)
{
	for (size_t i = 0; i < s->said_count; i++) {
		mem_free(s->said[i].gpu);
		mem_free(s->said[i].model);
	}
	mem_free(s->said);
	s->said = NULL;
	s->said_count = 0;
}

void
verify_words_fini(struct verify_node *n)
{
	for (size_t i = 0; i < n->word_count; i++) {
		mem_free(n->words[i].gpu);
		mem_free(n->words[i].model);
	}
	mem_free(n->words);
}

void
verify_words_entries(struct verify_stream *s, const struct wire_batch *b, bool accepted)
{
	for (size_t i = 0; i < b->device_count; i++) {
		const struct wire_device *d = &b->devices[i];
		size_t k = 0;

		if (d->gpu != d->id)
			continue;
		while (k < s->said_count && s->said[k].device != d->id)
			k++;
		if (k == s->said_count) {
			s->said = mem_grow(s->said, ++s->said_count, sizeof(*s->said));
			s->said[k] = (struct verify_said){.device = d->id};
		} else if (!accepted) {
			continue;
		}
		mem_free(s->said[k].gpu);
		mem_free(s->said[k].model);
		s->said[k].gpu = mem_strdup(d->uuid);
		s->said[k].model = mem_strdup(d->model);
		s->said[k].memory_bytes = d->memory_bytes;
	}
}

static bool
is_word(const struct verify_word *w, const char *model, int64_t memory_bytes)
{
	return strcmp(w->model, model) == 0 && w->memory_bytes == memory_bytes;
}

static void
add_word(struct verify_node *n, const struct verify_said *said)
{
	for (size_t i = n->word_count; i-- > 0;)
		if (strcmp(n->words[i].gpu, said->gpu) == 0 && is_word(&n->words[i], said->model, said->memory_bytes))
			return;
	n->words = mem_grow(n->words, n->word_count + 1, sizeof(*n->words));
	n->words[n->word_count++] = (struct verify_word){.gpu = mem_strdup(said->gpu),
	                                                 .model = mem_strdup(said->model),
	                                                 .memory_bytes = said->memory_bytes};
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
verify_words_batch(struct verify_node *n, const struct verify_stream *s, const struct wire_batch *b, int64_t seq)
{
	for (size_t i = 0; i < s->said_count; i++)
		if (has_records_of(s, b, s->said[i].gpu) && !verify_set_aside(s, seq, s->said[i].gpu))
			add_word(n, &s->said[i]);
}

/* *ret_some: another word of the GPU; NULL where there is none. */
static bool
was_said(const struct verify_node *n, const char *gpu, const char *model, int64_t memory_bytes,
         const struct verify_word **ret_some)
{
	*ret_some = NULL;
	for (size_t i = 0; i < n->word_count; i++) {
		if (strcmp(n->words[i].gpu, gpu) != 0)
			continue;
		*ret_some = &n->words[i];
		if (is_word(*ret_some, model, memory_bytes))
			return true;
	}
	return false;
}

/* Where evidence was given up, or only a part of it was read, nothing can be said of a GPU without a word. */
static bool
is_all_read(const struct verify_node *n)
{
	for (size_t i = 0; i < n->stream_count; i++)
		if (n->streams[i].evidence_seq > 1)
			return false;
	return n->from_ns <= n->hours_from_ns && n->to_ns >= n->hours_until_ns;
}

bool
verify_words_check(struct verify_node *n, struct err *err)
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
		const struct verify_word *said;
		char expected[WIRE_MAX_TEXT + 64] = "", found[WIRE_MAX_TEXT + 64];
		bool all = is_all_read(n);

		if (was_said(n, gpu, model, memory_bytes, &said))
			continue;
		if (!all && (said == NULL || hour_ns < n->from_ns || hour_ns >= n->to_ns))
			continue;
		if (said != NULL)
			snprintf(expected, sizeof(expected), "%s, %" PRId64 " bytes", said->model, said->memory_bytes);
		snprintf(found, sizeof(found), "%s, %" PRId64 " bytes", model, memory_bytes);
		verify_say_text(n, "gpu-history", gpu, hour_ns, "gpu_spec: what its node's batches say it is", expected,
		                found);
	}
	return true;
}
