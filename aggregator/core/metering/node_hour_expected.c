/* aggregator/core/metering/node_hour_expected.c - an hour computed from its records, and the differences to what the ledger has. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/metering/node_hour_expected.h"
#include "common/base/units.h"
#include "common/wire/wire.h"

/* Rows are packed when they have doubled since: an hour needs as much room as it has keys, however many records. */
#define PACK_LEAST 4096

const char *const verify_column_names[VERIFY_COLUMNS] = {
	[VERIFY_START] = "start_ns",
	[VERIFY_DEVICE] = "device_id",
	[VERIFY_HOLDER] = "holder_id",
	[VERIFY_STATE] = "state",
	[VERIFY_UNITS] = "units",
	[VERIFY_SHARING] = "sharing",
	[VERIFY_METHOD] = "method",
	[VERIFY_DURATION] = "duration_ns",
	[VERIFY_HELD] = "held_ns",
	[VERIFY_USED_NS] = "used_ns",
	[VERIFY_UNMEASURED_NS] = "unmeasured_ns",
	[VERIFY_OVER_NS] = "over_ns",
	[VERIFY_MEMORY_BYTE_MS] = "memory_byte_ms",
	[VERIFY_ENERGY_MJ] = "energy_mj",
	[VERIFY_TICKS] = "ticks",
	[VERIFY_PEAK_MEMORY_BYTES] = "peak_memory_bytes",
	[VERIFY_SM_ACTIVE_NS] = "sm_active_ns",
	[VERIFY_SM_MEASURED_NS] = "sm_measured_ns",
};

const char *const verify_sum_names[VERIFY_SUMS] = {
	[VERIFY_USED] = "used",
	[VERIFY_IDLE] = "idle",
	[VERIFY_UNMEASURED] = "unmeasured",
	[VERIFY_UNALLOCATED] = "unallocated",
	[VERIFY_STRANDED] = "stranded",
	[VERIFY_DOWN] = "down",
	[VERIFY_UNKNOWN] = "unknown",
	[VERIFY_OVER] = "over",
	[VERIFY_CLOCK_ADJUST] = "clock_adjust",
	[VERIFY_ENERGY] = "energy_mj",
	[VERIFY_MEMORY] = "memory_byte_ms",
	[VERIFY_SM_ACTIVE] = "sm_active",
	[VERIFY_SM_MEASURED] = "sm_measured",
	[VERIFY_PEAK_MEMORY] = "peak_memory_bytes",
};

/* --- rule 1 --- */

static int
compare_columns(const struct verify_interval *a, const struct verify_interval *b, size_t columns)
{
	for (size_t i = 0; i < columns; i++)
		if (a->v[i] != b->v[i])
			return a->v[i] < b->v[i] ? -1 : 1;
	return 0;
}

static int
compare_intervals(const void *a, const void *b)
{
	return compare_columns(a, b, VERIFY_COLUMNS);
}

/* Intervals of one key. Equal ones cancel out; the others are moved to the front of their arrays and reported in pairs. */
static void
compare_group(struct verify_interval *e, size_t n, struct verify_interval *f, size_t m, verify_interval_fault *tell,
              void *arg)
{
	size_t i = 0, j = 0, less = 0, more = 0;
	const struct verify_interval *twin = NULL;
	struct verify_interval matched;

	while (i < n || j < m) {
		int order = i == n ? 1 : j == m ? -1 : compare_intervals(&e[i], &f[j]);

		if (order == 0) {
			matched = e[i];
			twin = &matched;
			i++, j++;
		} else if (order < 0) {
			e[less++] = e[i++];
		} else if (twin != NULL && compare_intervals(twin, &f[j]) == 0) {
			tell(arg, VERIFY_DOUBLED, twin, &f[j++]);
		} else {
			f[more++] = f[j++];
		}
	}
	for (size_t k = 0; k < less || k < more; k++)
		tell(arg,
		     k >= more   ? VERIFY_MISSING
		     : k >= less ? VERIFY_EXTRA
		                 : VERIFY_CHANGED,
		     k < less ? &e[k] : NULL, k < more ? &f[k] : NULL);
}

/* How many from the first on have the key. */
static size_t
group_length(const struct verify_interval *at, size_t n, const struct verify_interval *key)
{
	size_t k = 0;

	while (k < n && compare_columns(&at[k], key, VERIFY_KEY_COLUMNS) == 0)
		k++;
	return k;
}

void
verify_intervals(struct verify_interval *expected, size_t n, struct verify_interval *found, size_t m,
                 verify_interval_fault *tell, void *arg)
{
	size_t i = 0, j = 0;

	if (n > 0)
		qsort(expected, n, sizeof(*expected), compare_intervals);
	if (m > 0)
		qsort(found, m, sizeof(*found), compare_intervals);
	while (i < n || j < m) {
		bool from_found = i == n || (j < m && compare_columns(&found[j], &expected[i], VERIFY_KEY_COLUMNS) < 0);
		struct verify_interval key = from_found ? found[j] : expected[i];
		size_t e = group_length(&expected[i], n - i, &key), f = group_length(&found[j], m - j, &key);

		compare_group(&expected[i], e, &found[j], f, tell, arg);
		i += e;
		j += f;
	}
}

/* --- rules 2 and 3 --- */

void
verify_rows_fini(struct verify_rows *r)
{
	mem_free(r->at);
	memset(r, 0, sizeof(*r));
}

static int
compare_rows(const void *a, const void *b)
{
	const struct verify_row *x = a, *y = b;

	if (x->device_id != y->device_id)
		return x->device_id < y->device_id ? -1 : 1;
	if (x->holder_id != y->holder_id)
		return x->holder_id < y->holder_id ? -1 : 1;
	if (x->sharing != y->sharing)
		return x->sharing < y->sharing ? -1 : 1;
	return (x->method > y->method) - (x->method < y->method);
}

static void
add_sums(struct verify_row *to, const struct verify_row *row)
{
	for (size_t s = 0; s < VERIFY_SUMS; s++)
		if (s != VERIFY_PEAK_MEMORY)
			to->sum[s] += row->sum[s];
		else if (row->sum[s] > to->sum[s])
			to->sum[s] = row->sum[s];
}

void
verify_rows_pack(struct verify_rows *r)
{
	size_t kept = 0;

	if (r->count > 0)
		qsort(r->at, r->count, sizeof(*r->at), compare_rows);
	for (size_t i = 0; i < r->count; i++) {
		if (kept == 0 || compare_rows(&r->at[kept - 1], &r->at[i]) != 0) {
			r->at[kept++] = r->at[i];
			continue;
		}
		add_sums(&r->at[kept - 1], &r->at[i]);
	}
	r->count = kept;
}

void
verify_rows_add(struct verify_rows *r, const struct verify_row *row)
{
	if (r->count == r->cap) {
		verify_rows_pack(r);
		if (r->cap == 0 || r->count > r->cap / 2) {
			r->cap = r->cap == 0 ? PACK_LEAST : 2 * r->cap;
			r->at = mem_grow(r->at, r->cap, sizeof(*r->at));
		}
	}
	r->at[r->count++] = *row;
}

void
verify_rows_record(struct verify_rows *r, int64_t gpu_id, const struct verify_interval *i)
{
	static const enum verify_sum sums[] = {
		[WIRE_UNALLOCATED] = VERIFY_UNALLOCATED,
		[WIRE_STRANDED] = VERIFY_STRANDED,
		[WIRE_DOWN] = VERIFY_DOWN,
		[WIRE_UNKNOWN] = VERIFY_UNKNOWN,
	};
	int128 units = i->v[VERIFY_UNITS];
	struct verify_row row = {
		.device_id = i->v[VERIFY_DEVICE],
		.holder_id = i->v[VERIFY_HOLDER],
		.sharing = i->v[VERIFY_SHARING],
		.method = i->v[VERIFY_METHOD],
		.gpu_id = gpu_id,
	};

	if (i->v[VERIFY_STATE] == WIRE_HELD) {
		row.sum[VERIFY_USED] = units * i->v[VERIFY_USED_NS];
		row.sum[VERIFY_UNMEASURED] = units * i->v[VERIFY_UNMEASURED_NS];
		row.sum[VERIFY_IDLE] = units * (i->v[VERIFY_HELD] - i->v[VERIFY_USED_NS] - i->v[VERIFY_UNMEASURED_NS]);
		row.sum[VERIFY_OVER] = units * i->v[VERIFY_OVER_NS];
	} else if (i->v[VERIFY_STATE] >= WIRE_UNALLOCATED && i->v[VERIFY_STATE] <= WIRE_UNKNOWN) {
		row.sum[sums[i->v[VERIFY_STATE]]] = units * i->v[VERIFY_HELD];
	}
	row.sum[VERIFY_ENERGY] = i->v[VERIFY_ENERGY_MJ];
	row.sum[VERIFY_MEMORY] = i->v[VERIFY_MEMORY_BYTE_MS];
	row.sum[VERIFY_SM_ACTIVE] = units * i->v[VERIFY_SM_ACTIVE_NS];
	row.sum[VERIFY_SM_MEASURED] = units * i->v[VERIFY_SM_MEASURED_NS];
	row.sum[VERIFY_PEAK_MEMORY] = i->v[VERIFY_PEAK_MEMORY_BYTES];
	verify_rows_add(r, &row);
}

void
verify_rows_balance(struct verify_rows *r, int64_t gpu_id, int64_t gpu_device_id, int64_t served_ns, int128 held)
{
	int128 rest = (int128)UNITS_PER_GPU * served_ns - held;
	struct verify_row row = {.device_id = gpu_device_id, .gpu_id = gpu_id};

	if (rest == 0)
		return;
	row.sum[rest > 0 ? VERIFY_UNKNOWN : VERIFY_CLOCK_ADJUST] = rest > 0 ? rest : -rest;
	verify_rows_add(r, &row);
}

void
verify_rows_compare(const struct verify_rows *expected, const struct verify_rows *found, verify_row_fault *tell,
                    void *arg)
{
	size_t i = 0, j = 0;

	while (i < expected->count || j < found->count) {
		int order = i == expected->count ? 1
		            : j == found->count  ? -1
		                                 : compare_rows(&expected->at[i], &found->at[j]);

		if (order < 0)
			tell(arg, VERIFY_MISSING, &expected->at[i++], NULL);
		else if (order > 0)
			tell(arg, VERIFY_EXTRA, NULL, &found->at[j++]);
		else
			tell(arg, VERIFY_CHANGED, &expected->at[i++], &found->at[j++]);
	}
}

int128
verify_rows_conserved(const struct verify_rows *r, int64_t gpu_id)
{
	int128 sum = 0;

	for (size_t i = 0; i < r->count; i++) {
		if (r->at[i].gpu_id != gpu_id)
			continue;
		for (size_t s = 0; s < VERIFY_STATES; s++)
			sum += r->at[i].sum[s];
		sum -= r->at[i].sum[VERIFY_CLOCK_ADJUST];
	}
	return sum;
}
