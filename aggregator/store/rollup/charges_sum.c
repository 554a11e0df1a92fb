/* aggregator/store/rollup/charges_sum.c - the sums of a pool's day, written to the charge tables of sql/0003_rollup.sql. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "aggregator/store/rollup/charges.h"
#include "common/base/money.h"

#define COPY_CHUNK (1u << 20)
#define COPY_MAX (256u << 20)

/* What a key means decides how it is written. */
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

void
charge_out_init(struct charge_out *o, struct db *db, const char *day, enum charge_place to)
{
	*o = (struct charge_out){.db = db, .day = day, .to = to};
	for (size_t t = 0; t < CHARGE_TABLES; t++)
		buf_init(&o->text[t], COPY_MAX);
}

void
charge_out_fini(struct charge_out *o)
{
	for (size_t t = 0; t < CHARGE_TABLES; t++) {
		mem_free(o->tables[t].at);
		idmap_fini(&o->tables[t].where);
		buf_fini(&o->text[t]);
	}
	for (size_t i = 0; i < o->profile_count; i++)
		mem_free(o->profiles[i]);
	mem_free(o->profiles);
}

int64_t
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

static uint64_t
hash_of(const int64_t key[CHARGE_KEYS])
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < CHARGE_KEYS; i++)
		hash = (hash ^ (uint64_t)key[i]) * UINT64_C(0x9e3779b97f4a7c15);
	return hash ^ hash >> 32;
}

static struct charge_sum *
row_of(struct charge_sums *s, const int64_t key[CHARGE_KEYS])
{
	uint64_t hash = hash_of(key);
	size_t at;

	for (; idmap_find(&s->where, hash, &at); hash++)
		if (memcmp(s->at[at].key, key, sizeof(s->at[at].key)) == 0)
			return &s->at[at];
	if (s->count == s->cap) {
		s->cap = s->cap == 0 ? 64 : 2 * s->cap;
		s->at = mem_grow(s->at, s->cap, sizeof(*s->at));
	}
	idmap_put(&s->where, hash, s->count);
	s->at[s->count] = (struct charge_sum){0};
	memcpy(s->at[s->count].key, key, sizeof(s->at[s->count].key));
	return &s->at[s->count++];
}

void
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

/* Names of models and profiles come from devices: what COPY would read as its own is escaped. */
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

bool
charge_pool_end(struct charge_out *o, int64_t cluster_id, int64_t owner_id, const char *gpu_model, struct err *err)
{
	for (size_t t = 0; t < CHARGE_TABLES; t++) {
		struct charge_sums *s = &o->tables[t];

		for (size_t i = 0; i < s->count; i++)
			put_row(o, (enum charge_table)t, &s->at[i], cluster_id, owner_id, gpu_model);
		s->count = 0;
		idmap_clear(&s->where);
		if (o->text[t].len >= COPY_CHUNK && !flush(o, (enum charge_table)t, err))
			return false;
	}
	return true;
}

bool
charge_out_end(struct charge_out *o, struct err *err)
{
	for (size_t t = 0; t < CHARGE_TABLES; t++)
		if (!flush(o, (enum charge_table)t, err))
			return false;
	return true;
}
