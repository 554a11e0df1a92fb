/* aggregator/store/verify_history.c - what GPUs were: the rows of gpu_spec against each other and against the audit log, whose chains
 * are proved by themselves.
 *
 * Rules:
 *  1. the rows of a GPU follow each other without a gap, from ever to ever
 *  2. each but the first is what the last audit entry of its hour says, and the first is what the first entry says was before
 *  3. an audit entry has its row
 *  4. the short name is the one of the model */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/verify.h"
#include "common/units.h"
#include "common/wire.h"

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
