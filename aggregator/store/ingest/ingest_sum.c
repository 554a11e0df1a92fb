/* aggregator/store/ingest/ingest_sum.c - what the accepted records add up to, by whose they are at their hour. */
#include "aggregator/store/ingest/ingest_push.h"

/* Where the accepted records begin. */
static int64_t
accepted_from(const struct ingest *in)
{
	int64_t from_ns = INT64_MAX;

	for (size_t i = 0; i < in->count; i++)
		if (in->frames[i].fate == FATE_ACCEPTED && in->frames[i].batch->from_ns < from_ns)
			from_ns = in->frames[i].batch->from_ns;
	return from_ns;
}

/* Of all holders of the dictionary, from the first record on, without an end: rules may change at any hour. */
static bool
load_owners(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"holder owners",
		"SELECT holder_id, workspace_id, ns_of(lower(effective)), ns_of(upper(effective)) FROM holder_attribution "
		"WHERE holder_id = ANY ($1::bigint[]) AND effective && tstzrange($2::timestamptz, NULL) "
		"ORDER BY holder_id, lower(effective) NULLS FIRST"};
	owned(result) PGresult *r = NULL;
	in_place(db_array) struct db_array ids = {0};
	struct dict *d = &in->dict;
	struct db_args a = {0};

	db_array_init(&ids);
	mem_free(take(d->owners));
	d->owner_count = 0;
	idmap_clear(&d->owner_ids);
	d->has_owners = true;
	if (d->holder_count == 0)
		return true;
	for (size_t i = 0; i < d->holder_count; i++)
		if (d->holders[i].holder_id != 0)
			array_i64(&ids, d->holders[i].holder_id);
	arg_array(&a, &ids);
	arg_time(&a, hour_floor(&in->ledger, accepted_from(in)));
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	d->owners = mem_array((size_t)PQntuples(r), sizeof(*d->owners));
	for (int row = 0; row < PQntuples(r); row++) {
		size_t i = d->owner_count++;

		d->owners[i] = (struct dict_owner){
			.holder_id = res_i64(r, row, 0),
			.workspace_id = (int32_t)res_i64(r, row, 1),
			.from_ns = res_null(r, row, 2) ? INT64_MIN : res_i64(r, row, 2),
			.until_ns = res_null(r, row, 3) ? INT64_MAX : res_i64(r, row, 3),
		};
		if (i == 0 || d->owners[i - 1].holder_id != d->owners[i].holder_id)
			idmap_put(&d->owner_ids, (uint64_t)d->owners[i].holder_id, i);
	}
	return true;
}

/* Attribution changes at billing hours, and a record lies in one. */
static int32_t
owner_at(const struct dict *d, int64_t holder_id, int64_t start_ns)
{
	size_t i;

	if (holder_id == 0 || !idmap_find(&d->owner_ids, (uint64_t)holder_id, &i))
		return 0;
	for (; i < d->owner_count && d->owners[i].holder_id == holder_id; i++)
		if (d->owners[i].from_ns <= start_ns && start_ns < d->owners[i].until_ns)
			return d->owners[i].workspace_id;
	return 0;
}

static void
add_frame(const struct dict *d, const struct ingest_frame *f, const int32_t *classes, struct ingest_sums *sums)
{
	for (size_t i = 0; i < f->batch->record_count; i++) {
		const struct wire_record *r = &f->batch->records[i];
		size_t device = idmap_get(&d->device_ids, r->device);

		if (f->device_id[i] == 0)
			continue;
		ingest_sums_add(sums, owner_at(d, f->holder_id[i], r->start_ns),
		                classes[d->devices[device].device_class], r);
	}
}

void
ingest_sum_known(const struct ingest *in, struct ingest_sums *sums)
{
	const struct dict *d = &in->dict;
	owned(mem) int32_t *classes = mem_array(d->classes.count, sizeof(*classes));

	for (size_t i = 0; i < d->classes.count; i++) {
		const struct device_class *c = &d->classes.at[i];

		classes[i] = device_classes_find(&sums->classes, c->cluster, c->gpu_model, c->profile);
	}
	for (size_t i = 0; i < in->count; i++)
		if (in->frames[i].fate == FATE_ACCEPTED)
			add_frame(d, &in->frames[i], classes, sums);
}

bool
ingest_sum_up(struct ingest *in, struct ingest_sums *sums, struct err *err)
{
	if (!load_owners(in, err))
		return false;
	ingest_sum_known(in, sums);
	return true;
}
