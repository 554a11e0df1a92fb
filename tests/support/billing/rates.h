/* tests/support/billing/rates.h - what tests of rating and of its report share: a month, prices, hours. */
#ifndef TOLLGATE_TESTS_RATES_H
#define TOLLGATE_TESTS_RATES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "aggregator/core/rating/rating.h"

#define HOUR_NS (INT64_C(3600) * 1000000000)
#define GPU_HOUR ((int128)5040 * HOUR_NS)
#define CENTS(n) ((int128)(n)*10000000) /* a price, scale 9 */

/* Of a struct rating_input: an open month without books or usage. */
#define NOVEMBER_2026                                                                                           \
	.period_start = "2026-11-01", .period_end = "2026-12-01", .period = "2026-11", .period_status = "open", \
	.currency = "EUR", .invoice_version = 1

/* Fails the running test when it cannot be rated. */
static inline struct rated *
rate(const struct rating_input *in)
{
	struct rated *r = NULL;
	struct err err = {0};

	if (!rating_run(in, &r, &err))
		fail_msg("rating failed: %s", err.text);
	return r;
}

#endif
