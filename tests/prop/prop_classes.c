/* tests/prop/prop_classes.c - what holds of the classes of every pool's hour. */
#include "aggregator/core/rating/charge_classes.h"
#include "aggregator/core/rating/charges_expected.h"
#include "common/base/money.h"
#include "common/base/units.h"
#include "tests/support/harness/prop.h"

#define WORKSPACES 6
#define KINDS 3
#define USES (WORKSPACES * KINDS)

static const struct {
	int64_t units;
	const char *profile;
} kinds[KINDS] = {{UNITS_PER_GPU, ""}, {2340, "3g.40gb"}, {675, "1g.10gb"}};

struct hour_case {
	struct class_use uses[USES];
	struct class_right rights[WORKSPACES];
	size_t use_count, right_count;
	int128 capacity;
};

/* Small numbers meet remainders, large ones the width of the products: a pool of 100,000 GPUs. */
static int128
amount(struct prop_source *s, int bits)
{
	int128 v = prop_bool(s) ? prop_i128(s, bits) : prop_i128(s, 4);

	return v < 0 ? -v : v;
}

static void
generate(struct prop_source *s, void *c)
{
	struct hour_case *h = c;
	int bits = prop_bool(s) ? 70 : 6;
	int128 held = 0;

	for (int64_t w = 1; w <= WORKSPACES; w++) {
		for (size_t k = 0; k < KINDS; k++) {
			struct class_use *u = &h->uses[h->use_count];

			if (prop_index(s, 3) != 1)
				continue;
			*u = (struct class_use){.workspace = w,
			                        .instance_units = kinds[k].units,
			                        .profile = kinds[k].profile,
			                        .amounts = {amount(s, bits), amount(s, bits), amount(s, bits),
			                                    amount(s, bits), amount(s, 40)}};
			held += u->amounts.used + u->amounts.idle + u->amounts.unmeasured;
			h->use_count++;
		}
		if (prop_bool(s))
			h->rights[h->right_count++] = (struct class_right){.workspace = w,
			                                                   .reserved = amount(s, bits),
			                                                   .lend_cap = amount(s, bits)};
	}
	h->capacity = held + (prop_bool(s) ? amount(s, bits) : 0);
}

static void
add(struct buf *out, const char *name, int128 v)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_printf(out, " %s %s", name, decimal_format(v, 0, 0, text));
}

static void
describe(const void *c, struct buf *out)
{
	const struct hour_case *h = c;

	add(out, "capacity", h->capacity);
	for (size_t i = 0; i < h->use_count; i++) {
		const struct class_use *u = &h->uses[i];

		buf_printf(out, "; %" PRId64 " held %s", u->workspace, u->profile[0] ? u->profile : "GPUs");
		add(out, "used", u->amounts.used);
		add(out, "idle", u->amounts.idle);
		add(out, "unmeasured", u->amounts.unmeasured);
	}
	for (size_t i = 0; i < h->right_count; i++) {
		buf_printf(out, "; %" PRId64, h->rights[i].workspace);
		add(out, "reserved", h->rights[i].reserved);
		add(out, "lends", h->rights[i].lend_cap);
	}
}

static struct class_hour
input(const struct hour_case *h)
{
	return (struct class_hour){.capacity = h->capacity,
	                           .uses = h->uses,
	                           .use_count = h->use_count,
	                           .rights = h->rights,
	                           .right_count = h->right_count};
}

static int128
allocated(const struct class_amounts *a)
{
	return a->used + a->idle + a->unmeasured;
}

static bool
not_negative(const struct class_amounts *a)
{
	return a->used >= 0 && a->idle >= 0 && a->unmeasured >= 0 && a->over >= 0 && a->energy_mj >= 0;
}

static bool
a_use_is_its_classes(const struct class_use *u, const struct class_amounts *c)
{
	struct class_amounts sum = {0};

	for (int k = 0; k < CLASS_COUNT; k++) {
		if (!not_negative(&c[k]))
			return false;
		sum.used += c[k].used;
		sum.idle += c[k].idle;
		sum.unmeasured += c[k].unmeasured;
		sum.over += c[k].over;
		sum.energy_mj += c[k].energy_mj;
	}
	return sum.used == u->amounts.used && sum.idle == u->amounts.idle && sum.unmeasured == u->amounts.unmeasured &&
	       sum.over == u->amounts.over && sum.energy_mj == u->amounts.energy_mj;
}

static bool
capacity_is_its_classes(const void *c, struct buf *why)
{
	const struct hour_case *h = c;
	struct class_hour in = input(h);
	owned(classes) struct classes *got = NULL;
	int128 sum, borrowed = 0, lent = 0;
	struct err err = {0};

	if (!classes_of_hour(&in, &got, &err)) {
		buf_str(why, err.text);
		return false;
	}
	sum = got->unreserved_idle;
	for (size_t i = 0; i < h->use_count; i++) {
		if (!a_use_is_its_classes(&h->uses[i], got->uses[i])) {
			buf_printf(why, "use %zu is not its classes", i);
			return false;
		}
		sum += allocated(&h->uses[i].amounts);
		borrowed += allocated(&got->uses[i][CLASS_BORROWED]);
	}
	for (size_t i = 0; i < h->right_count; i++) {
		const struct class_settled *s = &got->rights[i];

		sum += s->unused;
		lent += s->lent;
		if (s->covered < 0 || s->lent < 0 || s->unused < 0 || s->undelivered < 0 ||
		    s->covered + s->lent + s->unused + s->undelivered != h->rights[i].reserved) {
			buf_printf(why, "reservation %zu is not its parts", i);
			return false;
		}
	}
	add(why, "sum", sum);
	add(why, "borrowed", borrowed);
	add(why, "lent", lent);
	return sum == h->capacity && borrowed == lent && got->unreserved_idle >= 0;
}

static int128
held_by(const struct hour_case *h, int64_t workspace)
{
	int128 held = 0;

	for (size_t i = 0; i < h->use_count; i++)
		if (h->uses[i].workspace == workspace)
			held += allocated(&h->uses[i].amounts);
	return held;
}

/* Nobody is short while there is capacity, nobody for what it held, nobody borrows while there is spare, nobody lends beyond its
 * cap while somebody else still would. */
static bool
each_right_is_kept(const void *c, struct buf *why)
{
	const struct hour_case *h = c;
	struct class_hour in = input(h);
	owned(classes) struct classes *got = NULL;
	int128 reserved = 0, undelivered = 0, borrowed = 0;
	bool beyond = false, willing = false;
	struct err err = {0};

	if (!classes_of_hour(&in, &got, &err))
		return false;
	for (size_t i = 0; i < h->right_count; i++) {
		int128 held = held_by(h, h->rights[i].workspace), r = h->rights[i].reserved;
		const struct class_settled *s = &got->rights[i];

		reserved += r;
		undelivered += s->undelivered;
		if (s->covered != (held < r ? held : r)) {
			buf_printf(why, "reservation %zu does not cover what was held", i);
			return false;
		}
		beyond = beyond || s->lent > h->rights[i].lend_cap;
		willing = willing || (s->unused > 0 && s->lent < h->rights[i].lend_cap);
	}
	for (size_t i = 0; i < h->use_count; i++)
		borrowed += allocated(&got->uses[i][CLASS_BORROWED]);
	buf_printf(why, "beyond %d willing %d", beyond, willing);
	add(why, "undelivered", undelivered);
	return undelivered == (reserved > h->capacity ? reserved - h->capacity : 0) && !(beyond && willing) &&
	       (borrowed == 0 || got->unreserved_idle == 0);
}

static bool
loans_add_up_on_both_sides(const void *c, struct buf *why)
{
	const struct hour_case *h = c;
	struct class_hour in = input(h);
	owned(classes) struct classes *got = NULL;
	int128 lent[WORKSPACES] = {0};
	struct class_amounts rest[USES];
	struct err err = {0};

	if (!classes_of_hour(&in, &got, &err))
		return false;
	for (size_t i = 0; i < h->use_count; i++)
		rest[i] = got->uses[i][CLASS_BORROWED];
	for (size_t i = 0; i < got->loan_count; i++) {
		const struct class_loan *l = &got->loans[i];

		lent[l->lender] += allocated(&l->part);
		rest[l->use].used -= l->part.used;
		rest[l->use].idle -= l->part.idle;
		rest[l->use].unmeasured -= l->part.unmeasured;
		rest[l->use].over -= l->part.over;
		rest[l->use].energy_mj -= l->part.energy_mj;
		if (allocated(&l->part) <= 0 || !not_negative(&l->part) ||
		    h->rights[l->lender].workspace == h->uses[l->use].workspace) {
			buf_printf(why, "loan %zu", i);
			return false;
		}
	}
	for (size_t i = 0; i < h->right_count; i++)
		if (lent[i] != got->rights[i].lent)
			return false;
	/* each lent hour is borrowed by the same: what a use has of a lender is its share of all that was lent, to a unit for each use */
	for (size_t i = 0; i < got->loan_count; i++) {
		const struct class_loan *l = &got->loans[i];
		int128 all = 0, off, of = got->rights[l->lender].lent,
		       use = allocated(&got->uses[l->use][CLASS_BORROWED]);

		for (size_t k = 0; k < h->right_count; k++)
			all += got->rights[k].lent;
		if (all > (int128)1 << 60) /* the products leave 128 bits */
			continue;
		off = allocated(&l->part) * all - of * use;
		if (off > all * USES || off < -all * USES) {
			buf_printf(why, "loan %zu is not its share", i);
			return false;
		}
	}
	for (size_t i = 0; i < h->use_count; i++)
		if (!not_negative(&rest[i]) || allocated(&rest[i]) != 0 || rest[i].over != 0 ||
		    (rest[i].energy_mj != 0 && allocated(&got->uses[i][CLASS_BORROWED]) > 0)) {
			buf_printf(why, "use %zu", i);
			return false;
		}
	return true;
}

/* Backwards: the order of the rows says nothing. */
static bool
the_order_of_rows_changes_nothing(const void *c, struct buf *why)
{
	const struct hour_case *h = c;
	struct hour_case turned = {.capacity = h->capacity, .use_count = h->use_count, .right_count = h->right_count};
	struct class_hour a = input(h), b;
	owned(classes) struct classes *x = NULL, *y = NULL;
	struct err err = {0};

	for (size_t i = 0; i < h->use_count; i++)
		turned.uses[i] = h->uses[h->use_count - 1 - i];
	for (size_t i = 0; i < h->right_count; i++)
		turned.rights[i] = h->rights[h->right_count - 1 - i];
	b = input(&turned);
	if (!classes_of_hour(&a, &x, &err) || !classes_of_hour(&b, &y, &err))
		return false;
	for (size_t i = 0; i < h->use_count; i++)
		for (int k = 0; k < CLASS_COUNT; k++) {
			const struct class_amounts *p = &x->uses[i][k], *q = &y->uses[h->use_count - 1 - i][k];

			if (p->used != q->used || p->idle != q->idle || p->unmeasured != q->unmeasured ||
			    p->over != q->over || p->energy_mj != q->energy_mj) {
				buf_printf(why, "use %zu", i);
				return false;
			}
		}
	for (size_t i = 0; i < h->right_count; i++) {
		const struct class_settled *p = &x->rights[i], *q = &y->rights[h->right_count - 1 - i];

		if (p->covered != q->covered || p->lent != q->lent || p->unused != q->unused ||
		    p->undelivered != q->undelivered) {
			buf_printf(why, "reservation %zu", i);
			return false;
		}
	}
	return x->unreserved_idle == y->unreserved_idle && x->loan_count == y->loan_count;
}

/* What the second computation tells, taken off what the first one says: nothing may be left. */
struct checked {
	const struct hour_case *h;
	struct classes *got;
	int128 unreserved_idle;
	size_t loan;
	bool wrong;
};

static void
take_off(struct class_amounts *a, const int128 sum[CHARGES_EXPECTED_SUMS])
{
	int128 *const to[CHARGES_EXPECTED_AMOUNTS] = {&a->used, &a->idle, &a->unmeasured, &a->over, &a->energy_mj};

	for (int i = 0; i < CHARGES_EXPECTED_AMOUNTS; i++)
		*to[i] -= sum[i];
}

static void
check_row(void *arg, const struct charges_expected_row *row)
{
	struct checked *c = arg;

	if (row->table == CHARGES_EXPECTED_POOL_DAY) {
		c->unreserved_idle = row->sum[5];
		c->wrong = c->wrong || row->sum[0] != c->h->capacity;
		return;
	}
	for (size_t i = 0; row->table == CHARGES_EXPECTED_CHARGE_DAY && i < c->h->use_count; i++)
		if (c->h->uses[i].workspace == row->use->workspace && c->h->uses[i].instance_units == row->use->units)
			take_off(&c->got->uses[i][row->klass], row->sum);
	for (size_t i = 0; row->table == CHARGES_EXPECTED_RESERVE_DAY && i < c->h->right_count; i++)
		if (c->h->rights[i].workspace == row->right->workspace) {
			c->got->rights[i].covered -= row->sum[1];
			c->got->rights[i].lent -= row->sum[2];
			c->got->rights[i].unused -= row->sum[3];
			c->got->rights[i].undelivered -= row->sum[4];
		}
	if (row->table == CHARGES_EXPECTED_LOAN_DAY) {
		struct class_loan *l = &c->got->loans[c->loan++];

		if (c->loan > c->got->loan_count || c->h->rights[l->lender].workspace != row->lender ||
		    c->h->uses[l->use].workspace != row->use->workspace)
			c->wrong = true;
		else
			take_off(&l->part, row->sum);
	}
}

static bool
is_nothing(const struct class_amounts *a)
{
	return a->used == 0 && a->idle == 0 && a->unmeasured == 0 && a->over == 0 && a->energy_mj == 0;
}

static bool
the_second_computation_says_the_same(const void *c, struct buf *why)
{
	const struct hour_case *h = c;
	struct class_hour in = input(h);
	owned(classes) struct classes *got = NULL;
	struct charges_expected_use uses[USES];
	struct charges_expected_right rights[WORKSPACES];
	struct charges_expected_pool pool = {.uses = uses, .rights = rights, .unallocated = h->capacity};
	struct checked k = {.h = h};
	struct err err = {0};

	if (!classes_of_hour(&in, &got, &err))
		return false;
	for (size_t i = h->use_count; i-- > 0;) {
		const struct class_use *u = &h->uses[i];

		uses[pool.use_count++] = (struct charges_expected_use){
			.workspace = u->workspace,
			.units = u->instance_units,
			.profile = u->profile,
			.sharing = u->sharing,
			.amount = {u->amounts.used, u->amounts.idle, u->amounts.unmeasured, u->amounts.over,
		                   u->amounts.energy_mj},
		};
		pool.unallocated -= allocated(&u->amounts);
	}
	for (size_t i = h->right_count; i-- > 0;)
		rights[pool.right_count++] = (struct charges_expected_right){.workspace = h->rights[i].workspace,
		                                                             .units = UNITS_PER_GPU,
		                                                             .profile = "",
		                                                             .reserved = h->rights[i].reserved,
		                                                             .lend_cap = h->rights[i].lend_cap};
	k.got = got;
	k.unreserved_idle = 0;
	charges_expected_settle(&pool, check_row, &k);
	for (size_t i = 0; i < h->use_count; i++)
		for (int j = 0; j < CLASS_COUNT; j++)
			if (!is_nothing(&got->uses[i][j])) {
				buf_printf(why, "class %d of use %zu", j, i);
				return false;
			}
	for (size_t i = 0; i < h->right_count; i++) {
		const struct class_settled *s = &got->rights[i];

		if (s->covered != 0 || s->lent != 0 || s->unused != 0 || s->undelivered != 0) {
			buf_printf(why, "reservation %zu", i);
			return false;
		}
	}
	for (size_t i = 0; i < got->loan_count; i++)
		if (!is_nothing(&got->loans[i].part)) {
			buf_printf(why, "loan %zu", i);
			return false;
		}
	buf_printf(why, "loans %zu of %zu, wrong %d", k.loan, got->loan_count, k.wrong);
	return !k.wrong && k.loan == got->loan_count && k.unreserved_idle == got->unreserved_idle;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"capacity, uses and reservations are the sums of their classes", sizeof(struct hour_case), generate,
	         capacity_is_its_classes, describe, NULL},
		{"reservations are delivered, covered and lent as far as they go", sizeof(struct hour_case), generate,
	         each_right_is_kept, describe, NULL},
		{"loans add up for lenders and borrowers, and nobody borrows from itself", sizeof(struct hour_case),
	         generate, loans_add_up_on_both_sides, describe, NULL},
		{"the order of the rows changes nothing", sizeof(struct hour_case), generate,
	         the_order_of_rows_changes_nothing, describe, NULL},
		{"the computation that verify makes says the same", sizeof(struct hour_case), generate,
	         the_second_computation_says_the_same, describe, NULL},
	};

	return prop_main("classes", tests, ARRAY_LEN(tests));
}
