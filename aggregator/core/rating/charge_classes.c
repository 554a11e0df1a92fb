/* aggregator/core/rating/charge_classes.c - the classes of a pool's hour. The numbers are those of charge_classes.h. */
#include "aggregator/core/rating/charge_classes.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/apportion.h"

#define AMOUNT_MAX ((int128)1 << 120)

/* One workspace: its rows of uses in the order of rule 7, and its reservation. */
struct holder_row {
	int64_t workspace;
	size_t first, count; /* into the sorted uses */
	ptrdiff_t right;     /* index into rights; -1: it has none */
	int128 held, covered, over, on_demand, borrowed;
};

struct working {
	const struct class_hour *in;
	const struct class_use **uses;     /* by workspace, then as rule 7 says */
	const struct class_right **rights; /* by workspace */
	struct holder_row *rows;           /* by workspace; also those that only reserve */
	size_t row_count;
	int128 *delivered;     /* per right */
	int128 *weight, *part; /* as many as rows or rights, whichever is more */
	struct classes *out;
};

static int128
min_i128(int128 a, int128 b)
{
	return a < b ? a : b;
}

static int128
allocated(const struct class_amounts *a)
{
	return a->used + a->idle + a->unmeasured;
}

/* ---- the input: checked and sorted ---- */

static int
use_order(const struct class_use *a, const struct class_use *b)
{
	int order;

	if (a->workspace != b->workspace)
		return a->workspace < b->workspace ? -1 : 1;
	if (a->instance_units != b->instance_units) /* 7: a whole GPU is the largest */
		return a->instance_units > b->instance_units ? -1 : 1;
	order = strcmp(a->profile, b->profile);
	return order ? order : (a->sharing > b->sharing) - (a->sharing < b->sharing);
}

static int
compare_uses(const void *a, const void *b)
{
	return use_order(*(const struct class_use *const *)a, *(const struct class_use *const *)b);
}

static int
compare_rights(const void *a, const void *b)
{
	int64_t x = (*(const struct class_right *const *)a)->workspace;
	int64_t y = (*(const struct class_right *const *)b)->workspace;

	return (x > y) - (x < y);
}

static bool
in_range(int128 v)
{
	return v >= 0 && v < AMOUNT_MAX;
}

static bool
check_use(const struct class_use *u, struct err *err)
{
	const struct class_amounts *a = &u->amounts;

	return (in_range(a->used) && in_range(a->idle) && in_range(a->unmeasured) && in_range(a->over) &&
	        in_range(a->energy_mj)) ||
	       err_set(err, ERR_INVALID, "workspace %" PRId64 ": an amount of %s is negative or beyond all bounds",
	               u->workspace, u->profile[0] ? u->profile : "whole GPUs");
}

static bool
sort_input(struct working *w, struct err *err)
{
	const struct class_hour *in = w->in;

	if (!in_range(in->capacity))
		return err_set(err, ERR_INVALID, "the capacity is negative or beyond all bounds");
	for (size_t i = 0; i < in->use_count; i++) {
		w->uses[i] = &in->uses[i];
		if (!check_use(&in->uses[i], err))
			return false;
	}
	for (size_t i = 0; i < in->right_count; i++) {
		w->rights[i] = &in->rights[i];
		if (!in_range(in->rights[i].reserved) || !in_range(in->rights[i].lend_cap))
			return err_set(err, ERR_INVALID,
			               "workspace %" PRId64 ": the reservation is negative or beyond all bounds",
			               in->rights[i].workspace);
	}
	qsort(w->uses, in->use_count, sizeof(*w->uses), compare_uses);
	qsort(w->rights, in->right_count, sizeof(*w->rights), compare_rights);
	for (size_t i = 1; i < in->use_count; i++)
		if (use_order(w->uses[i - 1], w->uses[i]) == 0)
			return err_set(err, ERR_INVALID, "workspace %" PRId64 " has a kind of device twice",
			               w->uses[i]->workspace);
	for (size_t i = 1; i < in->right_count; i++)
		if (w->rights[i - 1]->workspace == w->rights[i]->workspace)
			return err_set(err, ERR_INVALID, "workspace %" PRId64 " has a reservation twice",
			               w->rights[i]->workspace);
	return true;
}

/* Merges both sorted lists into one row per workspace. */
static void
make_rows(struct working *w)
{
	const struct class_hour *in = w->in;
	size_t u = 0, r = 0;

	while (u < in->use_count || r < in->right_count) {
		struct holder_row *row = &w->rows[w->row_count++];

		row->workspace = u < in->use_count ? w->uses[u]->workspace : INT64_MAX;
		if (r < in->right_count && w->rights[r]->workspace < row->workspace)
			row->workspace = w->rights[r]->workspace;
		row->first = u;
		row->right = -1;
		if (r < in->right_count && w->rights[r]->workspace == row->workspace)
			row->right = w->rights[r++] - in->rights;
		for (; u < in->use_count && w->uses[u]->workspace == row->workspace; u++) {
			row->count++;
			row->held += allocated(&w->uses[u]->amounts);
		}
	}
}

/* ---- rule 2 ---- */

/* Divides a total over rows in proportion to weight, none above its room; the rooms together have space for it. A row that is full leaves the
 * rest to the others. */
static void
fill_within(int128 total, const int128 *weight, int128 *room, size_t n, int128 *share, int128 *out)
{
	owned(mem) int128 *open = mem_array(n, sizeof(*open));

	for (size_t i = 0; i < n; i++)
		out[i] = 0;
	while (total > 0) {
		bool full = false;
		int128 given = 0;

		for (size_t i = 0; i < n; i++)
			open[i] = room[i] > 0 ? weight[i] : 0;
		if (!apportion(total, open, n, share))
			return;
		for (size_t i = 0; i < n; i++)
			if (share[i] > room[i]) {
				full = true;
				given += room[i];
				out[i] += room[i];
				room[i] = 0;
			}
		if (!full) {
			for (size_t i = 0; i < n; i++) {
				out[i] += share[i];
				room[i] -= share[i];
			}
			return;
		}
		total -= given;
	}
}

/* Computes the undelivered part of each right, in the order of the rows. */
static void
deliver(struct working *w)
{
	const struct class_hour *in = w->in;
	owned(mem) int128 *room = mem_array(w->row_count, sizeof(*room));
	owned(mem) int128 *short_of = mem_array(w->row_count, sizeof(*short_of));
	int128 reserved = 0;

	for (size_t i = 0; i < w->row_count; i++) {
		const struct holder_row *row = &w->rows[i];
		int128 r = row->right < 0 ? 0 : in->rights[row->right].reserved;

		w->weight[i] = r;
		room[i] = r - min_i128(r, row->held);
		reserved += r;
	}
	if (reserved > in->capacity)
		fill_within(reserved - in->capacity, w->weight, room, w->row_count, w->part, short_of);
	for (size_t i = 0; i < w->row_count; i++)
		if (w->rows[i].right >= 0) {
			w->out->rights[w->rows[i].right].undelivered = short_of[i];
			w->delivered[w->rows[i].right] = w->weight[i] - short_of[i];
		}
}

/* ---- rules 3, 4 and 6 ---- */

static void
classify(struct working *w)
{
	int128 spare = w->in->capacity, over = 0, on_demand;

	for (size_t i = 0; i < w->row_count; i++) {
		struct holder_row *row = &w->rows[i];
		int128 r = row->right < 0 ? 0 : w->delivered[row->right];

		row->covered = min_i128(row->held, r);
		row->over = row->held - row->covered;
		spare -= r;
		over += row->over;
		w->weight[i] = row->over;
	}
	on_demand = min_i128(over, spare);
	/* false: nobody holds more than is reserved */
	if (!apportion(on_demand, w->weight, w->row_count, w->part))
		on_demand = 0;
	for (size_t i = 0; i < w->row_count; i++) {
		struct holder_row *row = &w->rows[i];

		row->on_demand = on_demand == 0 ? 0 : w->part[i];
		row->borrowed = row->over - row->on_demand;
		if (row->right >= 0)
			w->out->rights[row->right].covered = row->covered;
	}
	w->out->unreserved_idle = spare - on_demand;
}

/* ---- rule 5 ---- */

static void
lend(struct working *w, int128 borrowed)
{
	size_t n = w->row_count;
	owned(mem) int128 *room = mem_array(n, sizeof(*room));
	owned(mem) int128 *within = mem_array(n, sizeof(*within));
	owned(mem) int128 *beyond = mem_array(n, sizeof(*beyond));
	owned(mem) int128 *left = mem_array(n, sizeof(*left));
	int128 willing = 0;

	for (size_t i = 0; i < n; i++) {
		ptrdiff_t r = w->rows[i].right;

		w->weight[i] = r < 0 ? 0 : w->delivered[r] - w->rows[i].covered;
		room[i] = r < 0 ? 0 : min_i128(w->weight[i], w->in->rights[r].lend_cap);
		willing += room[i];
	}
	fill_within(min_i128(borrowed, willing), w->weight, room, n, w->part, within);
	for (size_t i = 0; i < n; i++)
		left[i] = room[i] = w->weight[i] - within[i];
	fill_within(borrowed - min_i128(borrowed, willing), left, room, n, w->part, beyond);
	for (size_t i = 0; i < n; i++)
		if (w->rows[i].right >= 0) {
			struct class_settled *s = &w->out->rights[w->rows[i].right];

			s->lent = within[i] + beyond[i];
			s->unused = w->weight[i] - s->lent;
		}
}

/* ---- rule 7 ---- */

/* The classes of one kind of device, whose totals are given; everything else of it pro rata. */
static void
divide_use(const struct class_amounts *a, const int128 total[CLASS_COUNT], struct class_amounts out[CLASS_COUNT])
{
	int128 left[3] = {a->used, a->idle, a->unmeasured}, part[3], over[CLASS_COUNT], energy[CLASS_COUNT];

	for (int c = 0; c < CLASS_COUNT; c++) {
		/* false: nothing of it is left, and nothing of this class either */
		if (!apportion(total[c], left, ARRAY_LEN(left), part))
			memset(part, 0, sizeof(part));
		out[c] = (struct class_amounts){.used = part[0], .idle = part[1], .unmeasured = part[2]};
		for (size_t s = 0; s < ARRAY_LEN(left); s++)
			left[s] -= part[s];
	}
	/* amounts without allocated time are on demand: they use no reservation */
	if (!apportion(a->over, total, CLASS_COUNT, over))
		over[CLASS_ON_DEMAND] = a->over;
	if (!apportion(a->energy_mj, total, CLASS_COUNT, energy))
		energy[CLASS_ON_DEMAND] = a->energy_mj;
	for (int c = 0; c < CLASS_COUNT; c++) {
		out[c].over = over[c];
		out[c].energy_mj = energy[c];
	}
}

static void
divide_uses(struct working *w)
{
	for (size_t i = 0; i < w->row_count; i++) {
		const struct holder_row *row = &w->rows[i];
		int128 left[CLASS_COUNT] = {row->covered, row->on_demand, row->borrowed};

		for (size_t k = 0; k < row->count; k++) {
			const struct class_use *use = w->uses[row->first + k];
			int128 rest = allocated(&use->amounts), total[CLASS_COUNT];

			for (int c = 0; c < CLASS_COUNT; c++) {
				total[c] = min_i128(rest, left[c]);
				left[c] -= total[c];
				rest -= total[c];
			}
			divide_use(&use->amounts, total, w->out->uses[use - w->in->uses]);
		}
	}
}

/* ---- rule 8 ---- */

/* Takes a part of the time off what is left of a use's borrowed time, with the activity and the energy of that time. */
static struct class_amounts
take_part(struct class_amounts *left, int128 time)
{
	const int128 whole = allocated(left), weight[2] = {time, whole - time},
		     states[3] = {left->used, left->idle, left->unmeasured};
	struct class_amounts part;
	int128 of[3], beside[2];

	ASSERT(apportion(time, states, ARRAY_LEN(states), of));
	part = (struct class_amounts){.used = of[0], .idle = of[1], .unmeasured = of[2]};
	ASSERT(apportion(left->over, weight, 2, beside));
	part.over = beside[0];
	ASSERT(apportion(left->energy_mj, weight, 2, beside));
	part.energy_mj = beside[0];
	left->used -= part.used;
	left->idle -= part.idle;
	left->unmeasured -= part.unmeasured;
	left->over -= part.over;
	left->energy_mj -= part.energy_mj;
	return part;
}

static void
pair_loans(struct working *w)
{
	const size_t n = w->in->right_count;
	owned(mem) int128 *left_of = mem_array(n, sizeof(*left_of)); /* the time each lender has left, by id */
	owned(mem) int128 *time = mem_array(n, sizeof(*time));
	size_t lenders = 0, cap = 0;

	for (size_t i = 0; i < n; i++) {
		left_of[i] = w->out->rights[w->rights[i] - w->in->rights].lent;
		lenders += left_of[i] > 0;
	}
	for (size_t i = 0; i < w->in->use_count; i++)
		cap += allocated(&w->out->uses[i][CLASS_BORROWED]) > 0 ? lenders : 0;
	w->out->loans = mem_array(cap, sizeof(*w->out->loans));
	for (size_t i = 0; i < w->in->use_count; i++) {
		size_t use = (size_t)(w->uses[i] - w->in->uses);
		struct class_amounts left = w->out->uses[use][CLASS_BORROWED];

		if (allocated(&left) == 0)
			continue;
		/* no part is more than its lender has left: together they are not */
		ASSERT(apportion(allocated(&left), left_of, n, time));
		for (size_t k = 0; k < n; k++) {
			if (time[k] == 0)
				continue;
			left_of[k] -= time[k];
			w->out->loans[w->out->loan_count++] =
				(struct class_loan){.lender = (size_t)(w->rights[k] - w->in->rights),
			                            .use = use,
			                            .part = take_part(&left, time[k])};
		}
	}
}

static bool
settle(struct working *w, struct err *err)
{
	int128 held = 0, borrowed = 0;

	make_rows(w);
	for (size_t i = 0; i < w->row_count; i++)
		held += w->rows[i].held;
	if (held > w->in->capacity) /* 1 */
		return err_set(err, ERR_INVALID, "more is allocated than there is capacity");
	deliver(w);
	classify(w);
	for (size_t i = 0; i < w->row_count; i++)
		borrowed += w->rows[i].borrowed;
	lend(w, borrowed);
	divide_uses(w);
	pair_loans(w);
	return true;
}

bool
classes_of_hour(const struct class_hour *in, struct classes **ret, struct err *err)
{
	owned(classes) struct classes *out = mem_alloc(sizeof(*out));
	size_t most = in->use_count + in->right_count;
	owned(mem) const struct class_use **uses = mem_array(in->use_count, sizeof(const struct class_use *));
	owned(mem) const struct class_right **rights = mem_array(in->right_count, sizeof(const struct class_right *));
	owned(mem) struct holder_row *rows = mem_array(most, sizeof(*rows));
	owned(mem) int128 *delivered = mem_array(in->right_count, sizeof(*delivered));
	owned(mem) int128 *weight = mem_array(most, sizeof(*weight));
	owned(mem) int128 *part = mem_array(most, sizeof(*part));
	struct working w = {.in = in,
	                    .uses = uses,
	                    .rights = rights,
	                    .rows = rows,
	                    .delivered = delivered,
	                    .weight = weight,
	                    .part = part,
	                    .out = out};

	out->uses = mem_array(in->use_count, sizeof(*out->uses));
	out->rights = mem_array(in->right_count, sizeof(*out->rights));
	if (!sort_input(&w, err) || !settle(&w, err))
		return false;
	*ret = take(out);
	return true;
}

void
classes_free(struct classes *c)
{
	if (c == NULL)
		return;
	mem_free(c->uses);
	mem_free(c->rights);
	mem_free(c->loans);
	mem_free(c);
}
