/* aggregator/core/rating/rating_text.h - the texts of a rated line that follow from its columns. For rating.c, and for whoever writes a tenant's document. Pure. */
#ifndef TOLLGATE_RATING_TEXT_H
#define TOLLGATE_RATING_TEXT_H

#include "aggregator/core/rating/rating.h"

/* The stock-keeping unit of a kind of device: "h100-80gb", "a100-80gb-mig-3g.40gb". */
char *rating_sku(const char *gpu_model, const char *mig_profile);

/* The class a row is priced and shown as: that of its usage, or what its kind says. */
const char *rating_class(const struct usage_day *d);
const char *rating_charge_type(const struct usage_day *d);

/* What the line is for, in the words of whoever pays it: "On-demand use of A100-80GB MIG 3g.40gb". d: a row of the line. */
char *rating_description(const struct rated_line *l, const struct usage_day *d);

/* "gpu-hour", "1000000 tokens", "instance-hour of 1g.10gb". */
char *rating_unit_text(const struct rating_unit *unit);
/* The same of a tenant's own price, with its basis: "gpu-hour used". */
char *rating_own_unit_text(const struct rating_unit *unit);
/* Back from the text of either, where a line is read that was stored. The unit's own texts are new, and the caller's. */
struct rating_unit rating_unit_read(enum charge_kind kind, const char *text);
void rating_unit_fini(struct rating_unit *u); /* of one that was read */
/* Adds to the description what a tenant's own price is for, and of how much: after the line's sums. */
void rating_describe_own(struct rated_line *l);

/* Fills l->line_id from the key columns, which must all be set. reserved: its unit is the commitment's instance.
 * with_cost_center: it is not the tenant's first in the month. */
MUST_CHECK bool rating_line_id(const char *period, const struct usage_day *d, bool reserved, bool with_cost_center,
                               struct rated_line *l, struct err *err);

/* Lines as a tenant's own document shows them: who borrowed from it is "another tenant" (BILLING 3.8); all else is as in the operator's.
 * Borrows from r, but for what it changes. in_place(tenant_lines) struct tenant_lines t = {0}; */
struct tenant_lines {
	struct rated rated;
	bool *owned; /* which descriptions are its own */
};
void tenant_lines_make(struct tenant_lines *t, const struct rated *r);
void tenant_lines_fini(struct tenant_lines *t);

#endif
