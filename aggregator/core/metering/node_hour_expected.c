/* aggregator/core/metering/node_hour_expected.c - an hour computed from its records, and the differences to what the ledger has. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/metering/node_hour_expected.h"
#include "common/base/units.h"
#include "common/wire/wire.h"

/* Rows are packed when they have doubled since: an hour needs as much room as it has keys, however many records. */
#define PACK_LEAST 4096

const char *const node_hour_column_names[NODE_HOUR_COLUMNS] = {
	[NODE_HOUR_START] = "start_ns",
	[NODE_HOUR_DEVICE] = "device_id",
	[NODE_HOUR_HOLDER] = "holder_id",
	[NODE_HOUR_STATE] = "state",
	[NODE_HOUR_UNITS] = "units",
	[NODE_HOUR_SHARING] = "sharing",
	[NODE_HOUR_METHOD] = "method",
	[NODE_HOUR_DURATION] = "duration_ns",
	[NODE_HOUR_HELD] = "held_ns",
	[NODE_HOUR_USED_NS] = "used_ns",
	[NODE_HOUR_UNMEASURED_NS] = "unmeasured_ns",
	[NODE_HOUR_OVER_NS] = "over_ns",
	[NODE_HOUR_MEMORY_BYTE_MS] = "memory_byte_ms",
	[NODE_HOUR_ENERGY_MJ] = "energy_mj",
	[NODE_HOUR_TICKS] = "ticks",
	[NODE_HOUR_PEAK_MEMORY_BYTES] = "peak_memory_bytes",
	[NODE_HOUR_SM_ACTIVE_NS] = "sm_active_ns",
	[NODE_HOUR_SM_MEASURED_NS] = "sm_measured_ns",
};

const char *const node_hour_sum_names[NODE_HOUR_SUMS] = {
	[NODE_HOUR_USED] = "used",
	[NODE_HOUR_IDLE] = "idle",
	[NODE_HOUR_UNMEASURED] = "unmeasured",
	[NODE_HOUR_UNALLOCATED] = "unallocated",
	[NODE_HOUR_STRANDED] = "stranded",
	[NODE_HOUR_DOWN] = "down",
	[NODE_HOUR_UNKNOWN] = "unknown",
	[NODE_HOUR_OVER] = "over",
	[NODE_HOUR_CLOCK_ADJUST] = "clock_adjust",
	[NODE_HOUR_ENERGY] = "energy_mj",
	[NODE_HOUR_MEMORY] = "memory_byte_ms",
	[NODE_HOUR_SM_ACTIVE] = "sm_active",
	[NODE_HOUR_SM_MEASURED] = "sm_measured",
	[NODE_HOUR_PEAK_MEMORY] = "peak_memory_bytes",
};

/* --- rule 1 --- */

static int
compare_columns(const struct node_hour_interval *a, const struct node_hour_interval *b, size_t columns)
{
	for (size_t i = 0; i < columns; i++)
		if (a->v[i] != b->v[i])
			return a->v[i] < b->v[i] ? -1 : 1;
	return 0;
}

static int
compare_intervals(const void *a, const void *b)
{
	return compare_columns(a, b, NODE_HOUR_COLUMNS);
}

/* Intervals of one key. Equal ones cancel out; the others are moved to the front of their arrays and reported in pairs. */
static void
compare_group(struct node_hour_interval *e, size_t n, struct node_hour_interval *f, size_t m,
              node_hour_interval_fault *tell, void *arg)
{
	size_t i = 0, j = 0, less = 0, more = 0;
	const struct node_hour_interval *twin = NULL;
	struct node_hour_interval matched;

	while (i < n || j < m) {
		int order = i == n ? 1 : j == m ? -1 : compare_intervals(&e[i], &f[j]);

		if (order == 0) {
			matched = e[i];
			twin = &matched;
			i++, j++;
		} else if (order < 0) {
			e[less++] = e[i++];
		} else if (twin != NULL && compare_intervals(twin, &f[j]) == 0) {
			tell(arg, NODE_HOUR_DOUBLED, twin, &f[j++]);
		} else {
			f[more++] = f[j++];
		}
	}
	for (size_t k = 0; k < less || k < more; k++)
		tell(arg,
		     k >= more   ? NODE_HOUR_MISSING
		     : k >= less ? NODE_HOUR_EXTRA
		                 : NODE_HOUR_CHANGED,
		     k < less ? &e[k] : NULL, k < more ? &f[k] : NULL);
}

/* How many from the first on have the key. */
static size_t
group_length(const struct node_hour_interval *at, size_t n, const struct node_hour_interval *key)
{
	size_t k = 0;

	while (k < n && compare_columns(&at[k], key, NODE_HOUR_KEY_COLUMNS) == 0)
		k++;
	return k;
}

void
node_hour_compare_intervals(struct node_hour_interval *expected, size_t n, struct node_hour_interval *found, size_t m,
                            node_hour_interval_fault *tell, void *arg)
{
	size_t i = 0, j = 0;

	if (n > 0)
		qsort(expected, n, sizeof(*expected), compare_intervals);
	if (m > 0)
		qsort(found, m, sizeof(*found), compare_intervals);
	while (i < n || j < m) {
		bool from_found =
			i == n || (j < m && compare_columns(&found[j], &expected[i], NODE_HOUR_KEY_COLUMNS) < 0);
		struct node_hour_interval key = from_found ? found[j] : expected[i];
		size_t e = group_length(&expected[i], n - i, &key), f = group_length(&found[j], m - j, &key);

		compare_group(&expected[i], e, &found[j], f, tell, arg);
		i += e;
		j += f;
	}
}

/* --- rules 2 and 3 --- */

void
node_hour_rows_fini(struct node_hour_rows *r)
{
	mem_free(r->at);
	memset(r, 0, sizeof(*r));
}

static int
compare_rows(const void *a, const void *b)
{
	const struct node_hour_row *x = a, *y = b;

	if (x->device_id != y->device_id)
		return x->device_id < y->device_id ? -1 : 1;
	if (x->holder_id != y->holder_id)
		return x->holder_id < y->holder_id ? -1 : 1;
	if (x->sharing != y->sharing)
		return x->sharing < y->sharing ? -1 : 1;
	return (x->method > y->method) - (x->method < y->method);
}

static void
add_sums(struct node_hour_row *to, const struct node_hour_row *row)
{
	for (size_t s = 0; s < NODE_HOUR_SUMS; s++)
		if (s != NODE_HOUR_PEAK_MEMORY)
			to->sum[s] += row->sum[s];
		else if (row->sum[s] > to->sum[s])
			to->sum[s] = row->sum[s];
}

void
node_hour_rows_pack(struct node_hour_rows *r)
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
node_hour_rows_add(struct node_hour_rows *r, const struct node_hour_row *row)
{
	if (r->count == r->cap) {
		node_hour_rows_pack(r);
		if (r->cap == 0 || r->count > r->cap / 2) {
			r->cap = r->cap == 0 ? PACK_LEAST : 2 * r->cap;
			r->at = mem_grow(r->at, r->cap, sizeof(*r->at));
		}
	}
	r->at[r->count++] = *row;
}

void
node_hour_rows_record(struct node_hour_rows *r, int64_t gpu_id, const struct node_hour_interval *i)
{
	static const enum node_hour_sum sums[] = {
		[WIRE_UNALLOCATED] = NODE_HOUR_UNALLOCATED,
		[WIRE_STRANDED] = NODE_HOUR_STRANDED,
		[WIRE_DOWN] = NODE_HOUR_DOWN,
		[WIRE_UNKNOWN] = NODE_HOUR_UNKNOWN,
	};
	int128 units = i->v[NODE_HOUR_UNITS];
	struct node_hour_row row = {
		.device_id = i->v[NODE_HOUR_DEVICE],
		.holder_id = i->v[NODE_HOUR_HOLDER],
		.sharing = i->v[NODE_HOUR_SHARING],
		.method = i->v[NODE_HOUR_METHOD],
		.gpu_id = gpu_id,
	};

	if (i->v[NODE_HOUR_STATE] == WIRE_HELD) {
		row.sum[NODE_HOUR_USED] = units * i->v[NODE_HOUR_USED_NS];
		row.sum[NODE_HOUR_UNMEASURED] = units * i->v[NODE_HOUR_UNMEASURED_NS];
		row.sum[NODE_HOUR_IDLE] =
			units * (i->v[NODE_HOUR_HELD] - i->v[NODE_HOUR_USED_NS] - i->v[NODE_HOUR_UNMEASURED_NS]);
		row.sum[NODE_HOUR_OVER] = units * i->v[NODE_HOUR_OVER_NS];
	} else if (i->v[NODE_HOUR_STATE] >= WIRE_UNALLOCATED && i->v[NODE_HOUR_STATE] <= WIRE_UNKNOWN) {
		row.sum[sums[i->v[NODE_HOUR_STATE]]] = units * i->v[NODE_HOUR_HELD];
	}
	row.sum[NODE_HOUR_ENERGY] = i->v[NODE_HOUR_ENERGY_MJ];
	row.sum[NODE_HOUR_MEMORY] = i->v[NODE_HOUR_MEMORY_BYTE_MS];
	row.sum[NODE_HOUR_SM_ACTIVE] = units * i->v[NODE_HOUR_SM_ACTIVE_NS];
	row.sum[NODE_HOUR_SM_MEASURED] = units * i->v[NODE_HOUR_SM_MEASURED_NS];
	row.sum[NODE_HOUR_PEAK_MEMORY] = i->v[NODE_HOUR_PEAK_MEMORY_BYTES];
	node_hour_rows_add(r, &row);
}

void
node_hour_rows_balance(struct node_hour_rows *r, int64_t gpu_id, int64_t gpu_device_id, int64_t served_ns, int128 held)
{
	int128 rest = (int128)UNITS_PER_GPU * served_ns - held;
	struct node_hour_row row = {.device_id = gpu_device_id, .gpu_id = gpu_id};

	if (rest == 0)
		return;
	row.sum[rest > 0 ? NODE_HOUR_UNKNOWN : NODE_HOUR_CLOCK_ADJUST] = rest > 0 ? rest : -rest;
	node_hour_rows_add(r, &row);
}

void
node_hour_rows_compare(const struct node_hour_rows *expected, const struct node_hour_rows *found,
                       node_hour_row_fault *tell, void *arg)
{
	size_t i = 0, j = 0;

	while (i < expected->count || j < found->count) {
		int order = i == expected->count ? 1
		            : j == found->count  ? -1
		                                 : compare_rows(&expected->at[i], &found->at[j]);

		if (order < 0)
			tell(arg, NODE_HOUR_MISSING, &expected->at[i++], NULL);
		else if (order > 0)
			tell(arg, NODE_HOUR_EXTRA, NULL, &found->at[j++]);
		else
			tell(arg, NODE_HOUR_CHANGED, &expected->at[i++], &found->at[j++]);
	}
}

int128
node_hour_rows_conserved(const struct node_hour_rows *r, int64_t gpu_id)
{
	int128 sum = 0;

	for (size_t i = 0; i < r->count; i++) {
		if (r->at[i].gpu_id != gpu_id)
			continue;
		for (size_t s = 0; s < NODE_HOUR_STATES; s++)
			sum += r->at[i].sum[s];
		sum -= r->at[i].sum[NODE_HOUR_CLOCK_ADJUST];
	}
	return sum;
}
