/* aggregator/core/rating/refund.c - charges for lost devices. The numbers are those of refund.h. */
#include "aggregator/core/rating/refund.h"

#include <stdio.h>
#include <string.h>

#define PART_ONE pow10_i128(12) /* parts are in 10^-12 of a day of a line */

/* Sums of parts, 10^12 times what they are. */
struct refund_sum {
	size_t refund;
	char currency[8];
	int scale;
	int128 charged, gpu, reserved;
};

void
refund_charges_fini(struct refund_charges *c)
{
	mem_free(c->at);
}

static struct refund_sum *
sum_of(struct refund_charges *c, size_t refund, const struct rated_line *l)
{
	for (size_t i = 0; i < c->count; i++)
		if (c->at[i].refund == refund && strcmp(c->at[i].currency, l->currency) == 0)
			return &c->at[i];
	c->at = mem_grow(c->at, c->count + 1, sizeof(*c->at));
	c->at[c->count] = (struct refund_sum){.refund = refund, .scale = l->currency_scale};
	snprintf(c->at[c->count].currency, sizeof(c->at->currency), "%s", l->currency);
	return &c->at[c->count++];
}

/* A covered line has no price version where no book was in force, as any other. */
static bool
is_of(const struct refund_part *p, const struct rated_line *l)
{
	return strcmp(p->tenant, l->tenant) == 0 && strcmp(p->workspace, l->workspace) == 0 &&
	       strcmp(p->cluster, l->cluster) == 0 && strcmp(p->gpu_model, l->gpu_model) == 0 &&
	       strcmp(p->mig_profile, l->mig_profile) == 0 && strcmp(p->sharing_mode, l->sharing_mode) == 0 &&
	       (strcmp(p->price_version, l->price_version) == 0 || !l->priced);
}

static bool
add_day(struct refund_charges *c, const struct rated_line *l, const struct rated_day *d, const struct refund_part *p,
        struct err *err)
{
	struct refund_sum *s;
	int128 part;

	if (p->held <= 0 || p->held > p->all)
		return err_set(err, ERR_INVALID,
		               "%s/%s: the time that was lost on day %" PRId32 " is no part of the day's", p->tenant,
		               p->workspace, p->day);
	if (__builtin_mul_overflow(p->held, PART_ONE, &part))
		return err_set(err, ERR_INVALID, "%s/%s: the lost time is beyond the number's range", p->tenant,
		               p->workspace);
	part = div_round_half_even(part, p->all);
	s = sum_of(c, p->refund, l);
	s->charged += d->billed * part;
	s->gpu += d->ngh * part;
	if (l->kind == CHARGE_COVERED)
		s->reserved += d->ngh * part;
	return true;
}

bool
refund_add(struct refund_charges *c, const struct rated *r, const struct refund_part *parts, size_t n, struct err *err)
{
	for (size_t i = 0; i < r->count; i++) {
		const struct rated_line *l = &r->lines[i];

		if ((l->kind != CHARGE_USAGE && l->kind != CHARGE_COVERED) ||
		    (l->correction_of != NULL && l->correction_of[0] != '\0'))
			continue;
		for (size_t k = 0; k < n; k++)
			for (size_t j = 0; j < l->day_count && is_of(&parts[k], l); j++)
				if (l->days[j].day == parts[k].day && !add_day(c, l, &l->days[j], &parts[k], err))
					return false;
	}
	return true;
}

bool
refund_charge_at(const struct refund_charges *c, size_t refund, size_t index, struct refund_charge *ret)
{
	for (size_t i = 0; i < c->count; i++) {
		const struct refund_sum *s = &c->at[i];

		if (s->refund != refund || index-- > 0)
			continue;
		*ret = (struct refund_charge){.scale = s->scale,
		                              .charged = div_round_half_even(s->charged, PART_ONE),
		                              .gpu_ngh = div_round_half_even(s->gpu, PART_ONE),
		                              .reserved_ngh = div_round_half_even(s->reserved, PART_ONE)};
		memcpy(ret->currency, s->currency, sizeof(ret->currency));
		return true;
	}
	return false;
}
