/* aggregator/core/rating/cost_day.h - the cost of a day's lines, divided over the hours and holders that caused it. Pure, exact.
 *
 * Rules, in order:
 *  1. a cell is the time that a workspace held of one kind of device (GPU model, MIG profile, size, sharing mode) in one hour of one pool, by class
 *     (charge_classes.h)
 *  2. the cost of a line's day goes to the cells of its workspace, cluster, kind of device and price version, in proportion to the part of each
 *     in the line's class: time held, or used + unmeasured + over where the tenant pays for use. Covered time is paid for by
 *     the time held. Energy goes to all cells of its workspace, cluster and price version, in proportion to their energy
 *  3. the cost of a cell goes to its holders in proportion to the same amount of each: time held, time used, energy. Where it is 0 for all
 *     of them, in proportion to the time held
 *  4. both by largest remainder, ties in the order of the cells and of the holders. So the parts add up to the line
 *  5. a cost that finds no cell, or a cell that finds no holder, is left over, and returned */
#ifndef TOLLGATE_COST_DAY_H
#define TOLLGATE_COST_DAY_H

#include "aggregator/core/rating/charge_classes.h"

enum cost_basis { COST_HELD, COST_USED, COST_ENERGY, COST_BASES };

/* Texts are borrowed. */
struct cost_cell {
	int64_t workspace_id, cluster_id;
	const char *gpu_model, *profile;
	int64_t units; /* of one whole device of this kind */
	int sharing;
	int64_t hour_ns, owner_id; /* owner 0: shared nodes */
	const char *price_version; /* in force in that hour; "": none */
	struct class_amounts classes[CLASS_COUNT];
	int128 parts[COST_BASES]; /* of lines: rule 2 */
	bool priced;              /* a line with a price is for it, which may cost 0 */
	size_t currency;          /* of the parts, if it is priced */
};

struct cost_line {
	int32_t day;
	int64_t workspace_id, cluster_id;
	const char *gpu_model, *profile;
	int64_t units;
	int sharing;
	const char *price_version;
	enum usage_class klass; /* not of energy */
	enum cost_basis basis;
	size_t currency;
	int128 amount;
};

/* By workspace, cluster, kind of device, hour, owner. */
int cost_cell_compare(const struct cost_cell *a, const struct cost_cell *b);
/* Rule 2. The cells are sorted. Returns the amount left over: 0, or all of it. */
int128 cost_line_spread(const struct cost_line *l, struct cost_cell *cells, size_t n);

/* The part of a holder, or of a group of them, in a cell; not negative. */
struct cost_share {
	int128 amount[COST_BASES];
};
/* Rule 3. out has n parts. Returns the amount left over. */
int128 cost_cell_split(const struct cost_cell *c, const struct cost_share *shares, size_t n, int128 *out);

#endif
