/* aggregator/store/rollup/charges.c - the charges of a billing day, from its hours, pool by pool.
 *
 * Rules, in order:
 *  1. the hours come sorted by pool, so that memory holds one pool-hour and the sums of one pool's day
 *  2. core/rating/charge_classes.c classifies an hour. A workspace has one right in a pool, however many kinds of
 *     instances it has reserved there
 *  3. undelivered time is divided among these kinds pro rata; covered, lent and unused time goes to them in their
 *     order, whole GPUs first, then by profile
 *  4. a pool's capacity is the time held, unallocated or stranded
 *  5. unreserved idle time minus stranded time is computed per hour (BILLING 3.4): one hour's stranded time does not
 *     reduce another hour's idle time
 *  6. an hour of a pool is open until it is sealed for all nodes of the pool. Until then its classes may change; if
 *     the day is not stored, every workspace with a part in the hour is listed (PROVISIONAL_DAY) */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "aggregator/store/rollup/charges.h"
#include "common/base/money.h"
#include "common/base/apportion.h"
#include "common/base/units.h"

/* --- sums of one pool's day, written to the charge tables --- */

/* PROVISIONAL_DAY exists only as a temporary table: workspaces with a part in unsealed hours of the pool's day. */
enum charge_table { CHARGE_DAY, RESERVE_DAY, LOAN_DAY, POOL_DAY, PROVISIONAL_DAY, CHARGE_TABLES };
#define CHARGE_KEYS 6
#define CHARGE_SUMS 12
/* One row for a table: the columns after those of the pool, in the table's order; the first key is the price book.
 * Columns that a table lacks are 0. */
struct charge_sum {
	int64_t key[CHARGE_KEYS];
	int128 sum[CHARGE_SUMS];
};
struct charge_sums {
	struct charge_sum *at;
	size_t count, cap;
	struct hash where;
};
/* in_place(charge_out) struct charge_out o = {0}; */
struct charge_out {
	struct db *db;
	enum charge_place to;
	const char *day;
	char **profiles; /* keys have their positions */
	size_t profile_count;
	struct charge_sums tables[CHARGE_TABLES];
	struct buf text[CHARGE_TABLES];
};

#define COPY_CHUNK (1u << 20)
#define COPY_MAX (256u << 20)

/* The kind of a key decides how it is written. */
enum key_kind { KEY_NONE, KEY_ID, KEY_PROFILE, KEY_CLASS };

static const struct {
	const char *name, *columns;
	enum key_kind keys[CHARGE_KEYS]; /* the first is the price book, before the pool's columns */
	size_t sums;
} tables[CHARGE_TABLES] = {
	[CHARGE_DAY] = {"charge_day",
                        "workspace_id, profile, units, sharing, class, used, idle, unmeasured, over, energy_mj",
                        {KEY_ID, KEY_ID, KEY_PROFILE, KEY_ID, KEY_ID, KEY_CLASS},
                        5},
	[RESERVE_DAY] = {"reserve_day",
                         "workspace_id, profile, units, reserved, covered, lent, unused, undelivered",
                         {KEY_ID, KEY_ID, KEY_PROFILE, KEY_ID},
                         5},
	[LOAN_DAY] = {"loan_day",
                      "lender_id, borrower_id, profile, units, sharing, used, idle, unmeasured, over, energy_mj",
                      {KEY_ID, KEY_ID, KEY_ID, KEY_PROFILE, KEY_ID, KEY_ID},
                      5},
	[POOL_DAY] =
		{"pool_day",
                 "capacity, covered, on_demand, borrowed, unused, unreserved_idle, unallocated, stranded, down, unknown, "
                 "energy_mj, idle_less_stranded",
                 {KEY_ID},
                 CHARGE_SUMS},
	[PROVISIONAL_DAY] = {"provisional_day", "workspace_id, open_hours", {KEY_ID, KEY_ID}, 1},
};
static const char *const places[CHARGE_PLACES] = {"", "open_"};
static const char *const class_names[CLASS_COUNT] = {"covered", "on-demand", "borrowed"};

static void
charge_out_init(struct charge_out *o, struct db *db, const char *day, enum charge_place to)
{
	*o = (struct charge_out){.db = db, .day = day, .to = to};
	for (size_t t = 0; t < CHARGE_TABLES; t++)
		buf_init(&o->text[t], COPY_MAX);
}

static void
charge_out_fini(struct charge_out *o)
{
	for (size_t t = 0; t < CHARGE_TABLES; t++) {
		mem_free(o->tables[t].at);
		hash_fini(&o->tables[t].where);
		buf_fini(&o->text[t]);
	}
	for (size_t i = 0; i < o->profile_count; i++)
		mem_free(o->profiles[i]);
	mem_free(o->profiles);
}

static int64_t
charge_profile(struct charge_out *o, const char *profile)
{
	size_t i = 0;

	while (i < o->profile_count && strcmp(o->profiles[i], profile) != 0)
		i++;
	if (i == o->profile_count) {
		o->profiles = mem_grow(o->profiles, ++o->profile_count, sizeof(*o->profiles));
		o->profiles[i] = mem_strdup(profile);
	}
	return (int64_t)i;
}

static struct charge_sum *
row_of(struct charge_sums *s, const int64_t key[CHARGE_KEYS])
{
	uint64_t hash = hash_bytes(HASH_START, key, CHARGE_KEYS * sizeof(*key));
	size_t at, slot;

	for (at = hash_first(&s->where, hash, &slot); at != HASH_NONE; at = hash_next(&s->where, hash, &slot))
		if (memcmp(s->at[at].key, key, sizeof(s->at[at].key)) == 0)
			return &s->at[at];
	array_room(s->at, s->count, s->cap);
	hash_add(&s->where, hash, s->count);
	s->at[s->count] = (struct charge_sum){0};
	memcpy(s->at[s->count].key, key, sizeof(s->at[s->count].key));
	return &s->at[s->count++];
}

static void
charge_add(struct charge_out *o, enum charge_table t, const int64_t key[CHARGE_KEYS], const int128 *sum, size_t n)
{
	struct charge_sum *row;
	bool any = false;

	for (size_t i = 0; i < n; i++)
		any = any || sum[i] != 0;
	if (!any)
		return;
	row = row_of(&o->tables[t], key);
	for (size_t i = 0; i < n; i++)
		row->sum[i] += sum[i];
}

static void
put_id(struct buf *b, int64_t id)
{
	if (id == 0)
		buf_str(b, "\\N");
	else
		buf_i64(b, id);
}

/* Model and profile names come from devices: characters special to COPY are escaped. */
static void
put_text(struct buf *b, const char *text)
{
	for (; *text != '\0'; text++) {
		if (*text == '\\' || *text == '\t' || *text == '\n' || *text == '\r')
			buf_char(b, '\\');
		buf_char(b, *text);
	}
}

static void
put_row(struct charge_out *o, enum charge_table t, const struct charge_sum *row, int64_t cluster_id, int64_t owner_id,
        const char *gpu_model)
{
	struct buf *b = &o->text[t];
	char number[DECIMAL_TEXT_SIZE];

	buf_str(b, o->day);
	buf_char(b, '\t');
	put_id(b, row->key[0]);
	buf_char(b, '\t');
	put_id(b, cluster_id);
	buf_char(b, '\t');
	put_id(b, owner_id);
	buf_char(b, '\t');
	put_text(b, gpu_model);
	for (size_t k = 1; k < CHARGE_KEYS && tables[t].keys[k] != KEY_NONE; k++) {
		buf_char(b, '\t');
		if (tables[t].keys[k] == KEY_PROFILE)
			put_text(b, o->profiles[row->key[k]]);
		else if (tables[t].keys[k] == KEY_CLASS)
			buf_str(b, class_names[row->key[k]]);
		else
			buf_i64(b, row->key[k]);
	}
	for (size_t s = 0; s < tables[t].sums; s++) {
		buf_char(b, '\t');
		buf_str(b, decimal_format(row->sum[s], 0, 0, number));
	}
	buf_char(b, '\n');
}

static bool
flush(struct charge_out *o, enum charge_table t, struct err *err)
{
	char sql[256];
	struct buf *b = &o->text[t];

	if (b->len == 0)
		return true;
	snprintf(sql, sizeof(sql), "COPY %s%s (day, price_book_id, cluster_id, owner_id, gpu_model, %s) FROM STDIN",
	         places[o->to], tables[t].name, tables[t].columns);
	if (!buf_ok(b, "the charges of a pool", err) || !db_copy_begin(o->db, sql, err) ||
	    !db_copy_put(o->db, b->data, b->len, err) || !db_copy_end(o->db, err))
		return false;
	buf_clear(b);
	return true;
}

static bool
charge_pool_end(struct charge_out *o, int64_t cluster_id, int64_t owner_id, const char *gpu_model, struct err *err)
{
	for (size_t t = 0; t < CHARGE_TABLES; t++) {
		struct charge_sums *s = &o->tables[t];

		for (size_t i = 0; i < s->count; i++)
			put_row(o, (enum charge_table)t, &s->at[i], cluster_id, owner_id, gpu_model);
		s->count = 0;
		hash_clear(&s->where);
		if (o->text[t].len >= COPY_CHUNK && !flush(o, (enum charge_table)t, err))
			return false;
	}
	return true;
}

static bool
charge_out_end(struct charge_out *o, struct err *err)
{
	for (size_t t = 0; t < CHARGE_TABLES; t++)
		if (!flush(o, (enum charge_table)t, err))
			return false;
	return true;
}

/* --- hours of a pool --- */

#define ROWS_AT_ONCE 4000

/* A kind of instances that a workspace has reserved. */
struct component {
	size_t right;
	int64_t profile, units;
	int128 reserved;
};

/* The current pool-hour. */
struct pool_hour {
	struct charge_out *out;
	charge_use_each *each; /* gets the uses of every hour, and out stays empty; NULL: out gets the sums */
	void *arg;
	bool any;
	int64_t cluster_id, owner_id; /* owner 0: shared */
	char *gpu_model;
	int64_t hour_ns, book; /* book 0: none */
	PGresult *open_hours;  /* rule 6: cluster, owner, hour; NULL: not needed */
	struct class_use *uses;
	struct class_right *rights;
	struct component *components;
	size_t use_count, use_cap, right_count, right_cap, component_count, component_cap;
	int128 unallocated, stranded, down, unknown, energy_mj; /* energy of time not held */
};

enum column {
	CLUSTER,
	OWNER,
	MODEL,
	HOUR,
	BOOK,
	IS_RIGHT,
	WORKSPACE,
	PROFILE,
	UNITS,
	SHARING,
	USED,
	IDLE,
	UNMEASURED,
	UNALLOCATED,
	STRANDED,
	DOWN,
	UNKNOWN,
	OVER,
	ENERGY,
	RESERVED,
	LEND_CAP,
};

static void
pool_hour_fini(struct pool_hour *h)
{
	mem_free(h->gpu_model);
	mem_free(h->uses);
	mem_free(h->rights);
	mem_free(h->components);
	PQclear(h->open_hours);
}

#define GROW(array, count, cap)                                               \
	do {                                                                  \
		if ((count) == (cap)) {                                       \
			(cap) = (cap) == 0 ? 64 : 2 * (cap);                  \
			(array) = mem_grow((array), (cap), sizeof(*(array))); \
		}                                                             \
	} while (0)

/* --- an hour --- */

/* Rule 3. */
static void
settle_components(struct pool_hour *h, const struct classes *c)
{
	owned(mem) int128 *weights = mem_array(h->component_count, sizeof(*weights));
	owned(mem) int128 *undelivered = mem_array(h->component_count, sizeof(*undelivered));

	for (size_t from = 0, to; from < h->component_count; from = to) {
		struct class_settled left = c->rights[h->components[from].right];

		for (to = from; to < h->component_count && h->components[to].right == h->components[from].right; to++)
			weights[to] = h->components[to].reserved;
		if (!apportion(left.undelivered, weights + from, to - from, undelivered + from))
			continue;
		for (size_t i = from; i < to; i++) {
			const struct component *p = &h->components[i];
			int64_t key[CHARGE_KEYS] = {h->book, h->rights[p->right].workspace, p->profile, p->units};
			int128 *const parts[] = {&left.covered, &left.lent, &left.unused};
			int128 room = p->reserved - undelivered[i];
			int128 sum[5] = {p->reserved, 0, 0, 0, undelivered[i]};

			for (size_t k = 0; k < ARRAY_LEN(parts); k++) {
				sum[1 + k] = *parts[k] < room ? *parts[k] : room;
				*parts[k] -= sum[1 + k];
				room -= sum[1 + k];
			}
			charge_add(h->out, RESERVE_DAY, key, sum, ARRAY_LEN(sum));
		}
	}
}

static void
settle_uses(struct pool_hour *h, const struct classes *c, int128 held[CLASS_COUNT])
{
	for (size_t i = 0; i < h->use_count; i++) {
		const struct class_use *u = &h->uses[i];

		for (size_t k = 0; k < CLASS_COUNT; k++) {
			const struct class_amounts *a = &c->uses[i][k];
			int64_t key[CHARGE_KEYS] = {h->book,           u->workspace, charge_profile(h->out, u->profile),
			                            u->instance_units, u->sharing,   (int64_t)k};
			int128 sum[] = {a->used, a->idle, a->unmeasured, a->over, a->energy_mj};

			charge_add(h->out, CHARGE_DAY, key, sum, ARRAY_LEN(sum));
			held[k] += a->used + a->idle + a->unmeasured;
		}
	}
	for (size_t i = 0; i < c->loan_count; i++) {
		const struct class_loan *l = &c->loans[i];
		const struct class_use *u = &h->uses[l->use];
		int64_t key[CHARGE_KEYS] = {h->book,           h->rights[l->lender].workspace,
		                            u->workspace,      charge_profile(h->out, u->profile),
		                            u->instance_units, u->sharing};
		int128 sum[] = {l->part.used, l->part.idle, l->part.unmeasured, l->part.over, l->part.energy_mj};

		charge_add(h->out, LOAN_DAY, key, sum, ARRAY_LEN(sum));
	}
}

static bool
tell_uses(struct pool_hour *h, const struct classes *c, struct err *err)
{
	for (size_t i = 0; i < h->use_count; i++) {
		struct charge_use u = {.hour_ns = h->hour_ns,
		                       .book_id = h->book,
		                       .cluster_id = h->cluster_id,
		                       .owner_id = h->owner_id,
		                       .gpu_model = h->gpu_model,
		                       .use = &h->uses[i],
		                       .classes = c->uses[i]};

		if (!h->each(h->arg, &u, err))
			return false;
	}
	return true;
}

/* Rule 6; workspace 0: time not held. */
static void
mark_provisional(struct pool_hour *h)
{
	if (res_find_i64(h->open_hours, (int64_t[]){h->cluster_id, h->owner_id, h->hour_ns}, 3) < 0)
		return;
	charge_add(h->out, PROVISIONAL_DAY, (int64_t[CHARGE_KEYS]){0, 0}, (int128[]){1}, 1);
	for (size_t i = 0; i < h->use_count; i++)
		charge_add(h->out, PROVISIONAL_DAY, (int64_t[CHARGE_KEYS]){0, h->uses[i].workspace}, (int128[]){1}, 1);
	for (size_t i = 0; i < h->right_count; i++)
		charge_add(h->out, PROVISIONAL_DAY, (int64_t[CHARGE_KEYS]){0, h->rights[i].workspace}, (int128[]){1},
		           1);
}

static void
sum_hour(struct pool_hour *h, int128 capacity, const struct classes *c)
{
	int128 held[CLASS_COUNT] = {0}, unused = 0, idle;

	settle_uses(h, c, held);
	settle_components(h, c);
	for (size_t i = 0; i < h->right_count; i++)
		unused += c->rights[i].unused;
	idle = c->unreserved_idle > h->stranded ? c->unreserved_idle - h->stranded : 0; /* rule 5 */
	charge_add(h->out, POOL_DAY, (int64_t[CHARGE_KEYS]){h->book},
	           (int128[CHARGE_SUMS]){capacity, held[CLASS_COVERED], held[CLASS_ON_DEMAND], held[CLASS_BORROWED],
	                                 unused, c->unreserved_idle, h->unallocated, h->stranded, h->down, h->unknown,
	                                 h->energy_mj, idle},
	           CHARGE_SUMS);
	if (h->open_hours != NULL)
		mark_provisional(h);
}

static bool
settle_hour(struct pool_hour *h, struct err *err)
{
	struct class_hour in = {.capacity = h->unallocated + h->stranded, /* rule 4 */
	                        .uses = h->uses,
	                        .use_count = h->use_count,
	                        .rights = h->rights,
	                        .right_count = h->right_count};
	owned(classes) struct classes *c = NULL;
	char at[TIME_TEXT_SIZE];

	if (!h->any)
		return true;
	for (size_t i = 0; i < h->use_count; i++)
		in.capacity += h->uses[i].amounts.used + h->uses[i].amounts.idle + h->uses[i].amounts.unmeasured;
	if (!classes_of_hour(&in, &c, err))
		return err_prefix(err, "%s of cluster %" PRId64 " in the hour of %s", h->gpu_model, h->cluster_id,
		                  time_format(h->hour_ns, at)) ||
		       db_damaged(err);
	if (h->each == NULL)
		sum_hour(h, in.capacity, c);
	else if (!tell_uses(h, c, err))
		return false;
	h->use_count = h->right_count = h->component_count = 0;
	h->unallocated = h->stranded = h->down = h->unknown = h->energy_mj = 0;
	return true;
}

/* --- reading --- */

/* A use's profile must outlive the page that brought it. */
static bool
add_use(struct pool_hour *h, const PGresult *r, int row, struct err *err)
{
	struct class_amounts a = {0};
	int64_t profile;
	int128 rest[4];

	if (!res_i128(r, row, USED, 0, &a.used, err) || !res_i128(r, row, IDLE, 0, &a.idle, err) ||
	    !res_i128(r, row, UNMEASURED, 0, &a.unmeasured, err) || !res_i128(r, row, OVER, 0, &a.over, err) ||
	    !res_i128(r, row, ENERGY, 0, &a.energy_mj, err))
		return false;
	for (int i = 0; i < 4; i++)
		if (!res_i128(r, row, UNALLOCATED + i, 0, &rest[i], err))
			return false;
	h->unallocated += rest[0];
	h->stranded += rest[1];
	h->down += rest[2];
	h->unknown += rest[3];
	if (res_null(r, row, WORKSPACE)) {
		h->energy_mj += a.energy_mj;
		return true;
	}
	profile = charge_profile(h->out, res_text(r, row, PROFILE));
	GROW(h->uses, h->use_count, h->use_cap);
	h->uses[h->use_count++] = (struct class_use){
		.workspace = res_i64(r, row, WORKSPACE),
		.instance_units = res_i64(r, row, UNITS),
		.profile = h->out->profiles[profile],
		.sharing = (int)res_i64(r, row, SHARING),
		.amounts = a,
	};
	return true;
}

/* Rights come by workspace, then in the order of rule 3. */
static bool
add_right(struct pool_hour *h, const PGresult *r, int row, struct err *err)
{
	struct component p = {.profile = charge_profile(h->out, res_text(r, row, PROFILE)),
	                      .units = res_i64(r, row, UNITS)};
	int64_t workspace = res_i64(r, row, WORKSPACE);
	struct class_right *right;
	int128 cap;

	if (!res_i128(r, row, RESERVED, 0, &p.reserved, err))
		return false;
	if (h->right_count == 0 || h->rights[h->right_count - 1].workspace != workspace) {
		GROW(h->rights, h->right_count, h->right_cap);
		h->rights[h->right_count++] = (struct class_right){.workspace = workspace};
	}
	p.right = h->right_count - 1;
	right = &h->rights[p.right];
	right->reserved += p.reserved;
	if (res_null(r, row, LEND_CAP))
		right->lend_cap = right->reserved;
	else if (res_i128(r, row, LEND_CAP, 0, &cap, err))
		right->lend_cap = cap;
	else
		return false;
	GROW(h->components, h->component_count, h->component_cap);
	h->components[h->component_count++] = p;
	return true;
}

static bool
same_pool(const struct pool_hour *h, const PGresult *r, int row)
{
	return h->any && h->cluster_id == res_i64(r, row, CLUSTER) && h->owner_id == res_i64(r, row, OWNER) &&
	       strcmp(h->gpu_model, res_text(r, row, MODEL)) == 0;
}

static bool
end_pool(struct pool_hour *h, struct err *err)
{
	return !h->any ||
	       (settle_hour(h, err) && charge_pool_end(h->out, h->cluster_id, h->owner_id, h->gpu_model, err));
}

static bool
add_row(struct pool_hour *h, const PGresult *r, int row, struct err *err)
{
	int64_t hour_ns = res_i64(r, row, HOUR);

	if (!same_pool(h, r, row)) {
		if (!end_pool(h, err))
			return false;
		h->any = true;
		h->cluster_id = res_i64(r, row, CLUSTER);
		h->owner_id = res_i64(r, row, OWNER);
		mem_free(h->gpu_model);
		h->gpu_model = mem_strdup(res_text(r, row, MODEL));
	} else if (hour_ns != h->hour_ns && !settle_hour(h, err)) {
		return false;
	}
	h->hour_ns = hour_ns;
	h->book = res_i64(r, row, BOOK);
	return res_bool(r, row, IS_RIGHT) ? add_right(h, r, row, err) : add_use(h, r, row, err);
}

/* Not prepared: the plan should know how long the range is. */
static bool
read_day(struct db *db, int64_t from_ns, int64_t until_ns, struct pool_hour *h, struct err *err)
{
	static const char declare[] =
		"DECLARE charge_rows NO SCROLL CURSOR FOR SELECT * FROM charge_input($1, $2) "
		"ORDER BY cluster_id, owner_id NULLS FIRST, gpu_model COLLATE \"C\", hour_ns, is_right, workspace_id, "
		"units DESC, profile COLLATE \"C\", sharing";
	char fetch[64];
	struct db_args a = {0};
	int rows;

	arg_time(&a, from_ns);
	arg_time(&a, until_ns);
	snprintf(fetch, sizeof(fetch), "FETCH %d FROM charge_rows", ROWS_AT_ONCE);
	if (!db_run_text(db, declare, &a, NULL, err))
		return false;
	do {
		owned(result) PGresult *r = NULL;

		if (!db_run_text(db, fetch, NULL, &r, err))
			return false;
		rows = PQntuples(r);
		for (int row = 0; row < rows; row++)
			if (!add_row(h, r, row, err))
				return false;
	} while (rows == ROWS_AT_ONCE);
	return end_pool(h, err) && db_script(db, "CLOSE charge_rows", err);
}

/* Rule 6: the hours of pools that are not sealed, or are to be sealed again. */
static bool
find_open_hours(struct db *db, int64_t from_ns, int64_t until_ns, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"charge open hours",
		"SELECT DISTINCT k.cluster_id, coalesce(o.tenant_id, 0), ns_of(h.hour) FROM node_hour h JOIN node_cluster k ON k.node_id = h.node_id "
		"AND k.effective @> h.hour LEFT JOIN node_owner o ON o.node_id = h.node_id AND o.effective @> h.hour "
		"WHERE h.hour >= $1 AND h.hour < $2 AND (h.sealed_at IS NULL OR h.dirty) ORDER BY 1, 2, 3"};
	struct db_args a = {0};

	arg_time(&a, from_ns);
	arg_time(&a, until_ns);
	return db_run(db, &stmt, &a, ret, err);
}

bool
charges_each_use(struct db *db, int64_t from_ns, int64_t until_ns, charge_use_each *each, void *arg, struct err *err)
{
	in_place(charge_out) struct charge_out names = {0}; /* of profiles */
	in_place(pool_hour) struct pool_hour h = {.out = &names, .each = each, .arg = arg};

	charge_out_init(&names, db, "", CHARGES_OPEN);
	return read_day(db, from_ns, until_ns, &h, err);
}

bool
charges_write(struct db *db, const char *day, int64_t from_ns, int64_t until_ns, enum charge_place to, struct err *err)
{
	in_place(charge_out) struct charge_out out = {0};
	in_place(pool_hour) struct pool_hour h = {.out = &out};

	charge_out_init(&out, db, day, to);
	return ((to != CHARGES_OPEN || find_open_hours(db, from_ns, until_ns, &h.open_hours, err)) &&
	        read_day(db, from_ns, until_ns, &h, err) && charge_out_end(&out, err)) ||
	       err_prefix(err, "charges of %s", day);
}

/* --- days that are not stored --- */

bool
charges_tables(struct db *db, struct err *err)
{
	static const struct db_stmt there = {"charges there",
	                                     "SELECT to_regclass('pg_temp.open_pool_day') IS NOT NULL"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &there, NULL, &r, err))
		return false;
	return res_bool(r, 0, 0) ||
	       db_script(
		       db,
		       "CREATE TEMP TABLE open_charge_day (LIKE charge_day) ON COMMIT DELETE ROWS; "
		       "CREATE TEMP TABLE open_reserve_day (LIKE reserve_day) ON COMMIT DELETE ROWS; "
		       "CREATE TEMP TABLE open_loan_day (LIKE loan_day) ON COMMIT DELETE ROWS; "
		       "CREATE TEMP TABLE open_meter_day (day integer, price_book_id bigint, tenant_id integer, "
		       "workspace_id integer, category text, meter text, unit text, sku text, quantity numeric) "
		       "ON COMMIT DELETE ROWS; CREATE INDEX ON open_meter_day (tenant_id); "
		       "CREATE TEMP TABLE open_provisional_day (day date, price_book_id bigint, cluster_id integer, "
		       "owner_id integer, gpu_model text, workspace_id integer, open_hours numeric) ON COMMIT DELETE ROWS; "
		       "CREATE TEMP TABLE open_pool_day (LIKE pool_day) ON COMMIT DELETE ROWS",
		       err);
}

bool
charges_tables_clear(struct db *db, struct err *err)
{
	return db_script(
		db,
		"TRUNCATE open_charge_day, open_reserve_day, open_loan_day, open_meter_day, open_provisional_day, "
		"open_pool_day",
		err);
}

bool
charges_open(struct db *db, int64_t from_ns, int64_t until_ns, bool folded, int64_t *ret_count, struct err *err)
{
	static const struct db_stmt days = {
		"charge days",
		"SELECT b.day, ns_of(b.starts_at), ns_of(b.ends_at) FROM billing_day b WHERE b.dirty <> $3 "
		"AND NOT b.hours_gone AND b.starts_at >= $1 AND b.starts_at < $2 ORDER BY b.day"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, from_ns);
	arg_time(&a, until_ns);
	arg_bool(&a, folded);
	if (!db_run(db, &days, &a, &r, err))
		return false;
	*ret_count = PQntuples(r);
	for (int row = 0; row < PQntuples(r); row++)
		if (!charges_write(db, res_text(r, row, 0), res_i64(r, row, 1), res_i64(r, row, 2), CHARGES_OPEN, err))
			return false;
	return true;
}
