/* aggregator/store/verify/verify_stream.c - a stream's batches: heads and dictionaries against the rows made from
 * them, and their records hour by hour. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/verify/verify_ledger.h"
#include "common/base/digest.h"

#define BATCH_PAGE 8 /* a page contains payloads */

static inline void
pgmem_free(unsigned char *p)
{
	PQfreemem(p);
}
DEFINE_OWNED(pgmem, unsigned char)

void
verify_stream_fini(struct verify_stream *s)
{
	PQclear(s->devices);
	PQclear(s->holders);
	PQclear(s->entries);
	PQclear(s->aside);
	verify_gpu_entries_fini(s);
	hash_fini(&s->device_rows);
	hash_fini(&s->holder_rows);
	hash_fini(&s->entry_rows);
	s->devices = s->holders = s->entries = s->aside = NULL;
}

/* --- the dictionary --- */

/* Columns of s->devices. */
enum { DEV_LOCAL, DEV_ID, DEV_GPU, DEV_GPU_UUID, DEV_GPU_DEVICE, DEV_GI, DEV_CI, DEV_CREATED, DEV_PROFILE, DEV_UNITS };

/* Columns of s->entries and of s->aside. */
enum {
	ENTRY_LOCAL,
	ENTRY_GPU,
	ENTRY_UUID,
	ENTRY_MODEL,
	ENTRY_PROFILE,
	ENTRY_GI,
	ENTRY_CI,
	ENTRY_CREATED,
	ENTRY_UNITS,
	ENTRY_GPU_UUID
};
enum { ASIDE_SEQ, ASIDE_GPU, ASIDE_RECORDS, ASIDE_FROM, ASIDE_TO, ASIDE_RELEASED };

static bool
load_aside(struct verify_node *n, struct verify_stream *s, struct err *err)
{
	static const struct db_stmt entries = {
		"verify device entries",
		"SELECT e.local_id, e.gpu_local_id, e.uuid, e.model, e.profile, e.gi, e.ci, e.created_ns, e.units, coalesce(p.uuid, g.uuid) "
		"FROM stream_device_entry e LEFT JOIN stream_device_entry p ON p.stream_id = e.stream_id AND p.local_id = e.gpu_local_id "
		"LEFT JOIN stream_device x ON x.stream_id = e.stream_id AND x.local_id = e.gpu_local_id "
		"LEFT JOIN device d ON d.id = x.device_id LEFT JOIN gpu g ON g.id = d.gpu_id WHERE e.stream_id = $1"};
	static const struct db_stmt aside = {
		"verify set aside", "SELECT seq, gpu, records, from_ns, to_ns, coalesce(decision = 'released', false) "
				    "FROM batch_set_aside WHERE stream_id = $1 ORDER BY seq, gpu COLLATE \"C\""};
	struct db_args a = {0};

	arg_i64(&a, s->id);
	if (!db_run(n->db, &entries, &a, &s->entries, err) || !db_run(n->db, &aside, &a, &s->aside, err))
		return false;
	for (int row = 0; row < PQntuples(s->entries); row++)
		hash_put(&s->entry_rows, (uint64_t)res_i64(s->entries, row, ENTRY_LOCAL), (size_t)row);
	return true;
}

const char *
verify_stream_gpu(const struct verify_stream *s, uint32_t device)
{
	size_t row;

	if (hash_find(&s->device_rows, device, &row))
		return res_text(s->devices, (int)row, DEV_GPU_UUID);
	return hash_find(&s->entry_rows, device, &row) ? res_text(s->entries, (int)row, ENTRY_GPU_UUID) : NULL;
}

/* The first row of the batch; rows are in the order of batches. */
static int
aside_at(const struct verify_stream *s, int64_t seq)
{
	int low = 0, high = PQntuples(s->aside);

	while (low < high) {
		int middle = low + (high - low) / 2;

		if (res_i64(s->aside, middle, ASIDE_SEQ) < seq)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

bool
verify_set_aside(const struct verify_stream *s, int64_t seq, const char *gpu)
{
	for (int row = aside_at(s, seq); row < PQntuples(s->aside) && res_i64(s->aside, row, ASIDE_SEQ) == seq; row++)
		if (strcmp(res_text(s->aside, row, ASIDE_GPU), gpu) == 0)
			return !res_bool(s->aside, row, ASIDE_RELEASED);
	return false;
}

/* A stream names its GPUs in its first batches, which may lie before the range. */
static bool
load_gpu_entries(struct verify_node *n, struct verify_stream *s, struct err *err)
{
	static const struct db_stmt stmt = {"verify first batches",
	                                    "SELECT payload, status = 'accepted' FROM ingest_batch "
	                                    "WHERE stream_id = $1 AND seq < $2 ORDER BY seq LIMIT $3"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, s->id);
	arg_i64(&a, s->at_seq);
	arg_i64(&a, BATCH_PAGE);
	if (!db_run(n->db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		owned(wire_batch) struct wire_batch *b = NULL;
		owned(pgmem) unsigned char *payload = NULL;
		struct err why = {0};
		size_t len = 0;

		payload = PQunescapeBytea((const unsigned char *)res_text(r, row, 0), &len);
		if (payload == NULL)
			return err_set(err, ERR_RETRY, "no memory for a batch");
		if (wire_unpack(payload, len, &b, &why) && wire_check(b, &why))
			verify_models_dictionary(s, b, res_bool(r, row, 1));
	}
	return true;
}

static bool
load_dictionary(struct verify_node *n, struct verify_stream *s, struct err *err)
{
	static const struct db_stmt devices = {
		"verify devices",
		"SELECT x.local_id, d.id, d.gpu_id, g.uuid, w.id, d.gi, d.ci, d.created_ns, d.profile, d.units "
		"FROM stream_device x JOIN device d ON d.id = x.device_id JOIN gpu g ON g.id = d.gpu_id "
		"JOIN device w ON w.gpu_id = g.id AND w.gi = -1 WHERE x.stream_id = $1"};
	static const struct db_stmt holders = {"verify holders",
	                                       "SELECT local_id, holder_id FROM stream_holder WHERE stream_id = $1"};
	struct db_args a = {0};

	if (s->devices != NULL)
		return true;
	arg_i64(&a, s->id);
	if (!db_run(n->db, &devices, &a, &s->devices, err) || !db_run(n->db, &holders, &a, &s->holders, err) ||
	    !load_aside(n, s, err) || !load_gpu_entries(n, s, err))
		return false;
	for (int row = 0; row < PQntuples(s->devices); row++) {
		size_t gpu =
			verify_gpu_enter(n, res_i64(s->devices, row, DEV_GPU), res_i64(s->devices, row, DEV_GPU_DEVICE),
		                         res_text(s->devices, row, DEV_GPU_UUID));

		hash_put(&n->device_gpu, (uint64_t)res_i64(s->devices, row, DEV_ID), gpu);
		hash_put(&s->device_rows, (uint64_t)res_i64(s->devices, row, DEV_LOCAL), (size_t)row);
	}
	for (int row = 0; row < PQntuples(s->holders); row++)
		hash_put(&s->holder_rows, (uint64_t)res_i64(s->holders, row, 0), (size_t)row);
	return true;
}

static bool
same_device(const struct verify_stream *s, const struct wire_device *d, int row)
{
	const PGresult *r = s->devices;
	size_t gpu;

	if (d->gpu == d->id)
		return strcmp(res_text(r, row, DEV_GPU_UUID), d->uuid) == 0 && res_i64(r, row, DEV_GI) == -1;
	return hash_find(&s->device_rows, d->gpu, &gpu) && res_i64(r, row, DEV_GPU) == res_i64(r, (int)gpu, DEV_GPU) &&
	       res_i64(r, row, DEV_GI) == d->gi && res_i64(r, row, DEV_CI) == d->ci &&
	       res_i64(r, row, DEV_CREATED) == d->created_ns &&
	       strcmp(res_text(r, row, DEV_PROFILE), d->profile) == 0 && res_i64(r, row, DEV_UNITS) == d->units;
}

/* A device that no counting record has named is stored as it arrived. */
static bool
same_entry(const struct verify_stream *s, const struct wire_device *d, int row)
{
	const PGresult *r = s->entries;

	return res_i64(r, row, ENTRY_GPU) == d->gpu && strcmp(res_text(r, row, ENTRY_UUID), d->uuid) == 0 &&
	       strcmp(res_text(r, row, ENTRY_PROFILE), d->profile) == 0 && res_i64(r, row, ENTRY_GI) == d->gi &&
	       res_i64(r, row, ENTRY_CI) == d->ci && res_i64(r, row, ENTRY_CREATED) == d->created_ns &&
	       res_i64(r, row, ENTRY_UNITS) == d->units;
}

/* The records set aside must be those that the batch has of that GPU. */
static void
check_aside(struct verify_node *n, const struct verify_stream *s, const struct wire_batch *b, int64_t seq)
{
	for (int row = aside_at(s, seq); row < PQntuples(s->aside) && res_i64(s->aside, row, ASIDE_SEQ) == seq; row++) {
		const char *uuid = res_text(s->aside, row, ASIDE_GPU);
		int64_t records = 0, from_ns = INT64_MAX, to_ns = INT64_MIN;
		char what[256];

		for (size_t i = 0; i < b->record_count; i++) {
			const struct wire_record *r = &b->records[i];
			const char *gpu = verify_stream_gpu(s, r->device);

			if (gpu == NULL || strcmp(gpu, uuid) != 0)
				continue;
			records++;
			from_ns = r->start_ns < from_ns ? r->start_ns : from_ns;
			to_ns = r->start_ns + r->duration_ns > to_ns ? r->start_ns + r->duration_ns : to_ns;
		}
		verify_name_batch(s, seq, "records of the GPU that are set aside", what);
		if (records != res_i64(s->aside, row, ASIDE_RECORDS))
			verify_report_amount(n, "set-aside", uuid, INT64_MIN, what, records,
			                     res_i64(s->aside, row, ASIDE_RECORDS));
		else if (from_ns != res_i64(s->aside, row, ASIDE_FROM) || to_ns != res_i64(s->aside, row, ASIDE_TO))
			verify_report_text(n, "set-aside", uuid, INT64_MIN, what, "in the time of these records",
			                   "in another");
	}
}

static void
check_devices(struct verify_node *n, const struct verify_stream *s, const struct wire_batch *b, int64_t seq)
{
	for (size_t i = 0; i < b->device_count; i++) {
		const struct wire_device *d = &b->devices[i];
		char thing[64], what[256];
		size_t row;

		snprintf(thing, sizeof(thing), "device number %" PRIu32, d->id);
		verify_name_batch(s, seq, thing, what);
		if (!hash_find(&s->device_rows, d->id, &row)) {
			if (!hash_find(&s->entry_rows, d->id, &row))
				verify_report_text(n, "dictionary", NULL, INT64_MIN, what, d->uuid, "");
			else if (!same_entry(s, d, (int)row))
				verify_report_text(n, "dictionary", NULL, INT64_MIN, what, d->uuid, "another entry");
		} else if (!same_device(s, d, (int)row))
			verify_report_text(n, "dictionary", res_text(s->devices, (int)row, DEV_GPU_UUID), INT64_MIN,
			                   what, d->uuid, "another device, or another shape of it");
	}
}

static bool
same_holder(const PGresult *r, int row, const struct wire_holder *h)
{
	const char *const texts[] = {h->ns,   h->pod,   h->pod_uid, h->container, h->slurm_job, h->slurm_account,
	                             h->user, h->group, h->labels};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		if (strcmp(res_text(r, row, 3 + (int)i), texts[i]) != 0)
			return false;
	return res_i64(r, row, 1) == h->kind && res_i64(r, row, 2) == h->uid;
}

static bool
check_holders(struct verify_node *n, const struct verify_stream *s, const struct wire_batch *b, int64_t seq,
              struct err *err)
{
	static const struct db_stmt stmt = {
		"verify holder rows",
		"SELECT e.ord, h.kind, h.uid, h.namespace, h.pod, h.pod_uid, h.container, h.slurm_job, h.slurm_account, "
		"h.user_name, h.group_name, h.labels, h.kind FROM unnest($2::bigint[]) WITH ORDINALITY AS e(local_id, ord) "
		"LEFT JOIN LATERAL (SELECT h.kind, h.uid, h.namespace, h.pod, h.pod_uid, h.container, h.slurm_job, h.slurm_account, "
		"h.user_name, h.group_name, labels_text(h.labels) AS labels FROM stream_holder x JOIN holder h ON h.id = x.holder_id "
		"WHERE x.stream_id = $1 AND x.local_id = e.local_id UNION ALL SELECT y.kind, y.uid, y.namespace, y.pod, y.pod_uid, "
		"y.container, y.slurm_job, y.slurm_account, y.user_name, y.group_name, y.labels FROM stream_holder_entry y "
		"WHERE y.stream_id = $1 AND y.local_id = e.local_id LIMIT 1) h ON true ORDER BY e.ord"};
	owned(result) PGresult *r = NULL;
	in_place(db_array) struct db_array ids = {0};
	struct db_args a = {0};

	db_array_init(&ids);
	if (b->holder_count == 0)
		return true;
	for (size_t i = 0; i < b->holder_count; i++)
		array_i64(&ids, b->holders[i].id);
	arg_i64(&a, s->id);
	arg_array(&a, &ids);
	if (!db_run(n->db, &stmt, &a, &r, err))
		return false;
	for (size_t i = 0; i < b->holder_count && i < (size_t)PQntuples(r); i++) {
		const struct wire_holder *h = &b->holders[i];
		char thing[64], what[256], named[WIRE_MAX_TEXT + 64];

		if (same_holder(r, (int)i, h))
			continue;
		snprintf(thing, sizeof(thing), "holder number %" PRIu32, h->id);
		verify_name_batch(s, seq, thing, what);
		snprintf(named, sizeof(named), "%s %s", wire_holder_kind_name(h->kind),
		         h->kind == WIRE_POD         ? h->pod
		         : h->kind == WIRE_SLURM_JOB ? h->slurm_job
		                                     : h->user);
		verify_report_text(n, "dictionary", NULL, INT64_MIN, what, named,
		                   res_null(r, (int)i, 12) ? "" : "another holder");
	}
	return true;
}

/* --- a batch --- */

/* Columns of a page of batches. */
enum { BATCH_SEQ, BATCH_LAST, BATCH_STATUS, BATCH_FROM, BATCH_TO, BATCH_RECORDS, BATCH_PAYLOAD };

/* The columns stored beside the bytes. A loss may stand for the end of its range only. */
static void
check_head(struct verify_node *n, const struct verify_stream *s, const struct wire_batch *b, const PGresult *r, int row)
{
	bool loss = strcmp(res_text(r, row, BATCH_STATUS), "loss") == 0;
	int64_t seq = res_i64(r, row, BATCH_SEQ);
	const struct {
		const char *name;
		int64_t expected, found;
	} numbers[] = {
		{"kind", b->kind, loss ? WIRE_LOSS : WIRE_USAGE},
		{"epoch", (int64_t)b->epoch, s->epoch},
		{"seq", loss && (int64_t)b->seq < seq ? seq : (int64_t)b->seq, seq},
		{"last_seq", (int64_t)b->last_seq, res_i64(r, row, BATCH_LAST)},
		{"from_ns", b->from_ns, res_i64(r, row, BATCH_FROM)},
		{"to_ns", b->to_ns, res_i64(r, row, BATCH_TO)},
		{"records", (int64_t)b->record_count, res_i64(r, row, BATCH_RECORDS)},
	};
	char boot[2 * WIRE_BOOT_ID_SIZE + 1], what[256];

	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		if (numbers[i].expected == numbers[i].found)
			continue;
		verify_name_batch(s, seq, numbers[i].name, what);
		verify_report_amount(n, "batch-head", NULL, INT64_MIN, what, numbers[i].expected, numbers[i].found);
	}
	hex_encode(b->boot_id, sizeof(b->boot_id), boot);
	if (strcmp(boot, s->boot_id) != 0) {
		verify_name_batch(s, seq, "boot_id", what);
		verify_report_text(n, "batch-head", NULL, INT64_MIN, what, boot, s->boot_id);
	}
	if (strcmp(b->node, n->name) != 0) {
		verify_name_batch(s, seq, "node", what);
		verify_report_text(n, "batch-head", NULL, INT64_MIN, what, b->node, n->name);
	}
}

/* Checks head and dictionary when the batch is read first, and its records against this hour's rows. */
static bool
check_batch(struct verify_hour *h, struct verify_stream *s, const PGresult *r, int row, struct err *err)
{
	int64_t seq = res_i64(r, row, BATCH_SEQ);
	bool first = seq > s->checked_seq;
	owned(wire_batch) struct wire_batch *b = NULL;
	owned(pgmem) unsigned char *payload = NULL;
	struct err why = {0};
	char what[256];
	size_t len = 0;

	payload = PQunescapeBytea((const unsigned char *)res_text(r, row, BATCH_PAYLOAD), &len);
	if (payload == NULL)
		return err_set(err, ERR_RETRY, "no memory for a batch");
	if (strcmp(res_text(r, row, BATCH_STATUS), "quarantined") == 0) {
		s->checked_seq = first ? seq : s->checked_seq;
		/* Its records do not count; later batches may still use the names in its dictionary. */
		if (first && wire_unpack(payload, len, &b, &why) && wire_check(b, &why))
			verify_models_dictionary(s, b, false);
		return true;
	}
	if (!wire_unpack(payload, len, &b, &why) || !wire_check(b, &why)) {
		verify_name_batch(s, seq, "its content", what);
		if (first)
			verify_report_text(h->node, "batch-bytes", NULL, INT64_MIN, what, "a sound batch", why.text);
		s->checked_seq = first ? seq : s->checked_seq;
		return true;
	}
	if (!load_dictionary(h->node, s, err))
		return false;
	if (first) {
		s->checked_seq = seq;
		check_head(h->node, s, b, r, row);
		check_devices(h->node, s, b, seq);
		check_aside(h->node, s, b, seq);
		verify_models_dictionary(s, b, true);
		verify_models_batch(h->node, s, b, seq);
		if (!check_holders(h->node, s, b, seq, err))
			return false;
	}
	return verify_records(h, s, b, seq, err);
}

bool
verify_stream_hour(struct verify_hour *h, struct verify_stream *s, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify batches", "SELECT seq, last_seq, status, from_ns, to_ns, records, payload FROM ingest_batch "
				  "WHERE stream_id = $1 AND seq >= $2 ORDER BY seq LIMIT $3"};
	int64_t seq = s->at_seq, next_from_ns = INT64_MAX, next_seq = 0;

	if (s->next_from_ns >= h->to_ns)
		return true;
	for (bool more = true; more;) {
		owned(result) PGresult *r = NULL;
		struct db_args a = {0};

		arg_i64(&a, s->id);
		arg_i64(&a, seq);
		arg_i64(&a, BATCH_PAGE);
		if (!db_run(h->node->db, &stmt, &a, &r, err))
			return false;
		more = PQntuples(r) == BATCH_PAGE;
		for (int row = 0; row < PQntuples(r); row++) {
			bool accepted = strcmp(res_text(r, row, BATCH_STATUS), "accepted") == 0;
			int64_t from_ns = res_i64(r, row, BATCH_FROM);

			seq = res_i64(r, row, BATCH_SEQ);
			if (accepted && res_i64(r, row, BATCH_TO) > h->to_ns && next_seq == 0) {
				next_seq = seq;
				next_from_ns = from_ns;
			}
			if (accepted && from_ns >= h->to_ns) {
				more = false;
				break;
			}
			if (!check_batch(h, s, r, row, err))
				return false;
		}
		seq++;
	}
	s->at_seq = next_seq != 0 ? next_seq : seq;
	s->next_from_ns = next_from_ns;
	if (next_from_ns == INT64_MAX)
		verify_stream_fini(s); /* its dictionary is not needed any more */
	return true;
}
