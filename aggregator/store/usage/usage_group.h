/* aggregator/store/usage/usage_group.h - what usage can be grouped by, and the statement that sums it so. */
#ifndef TOLLGATE_USAGE_GROUP_H
#define TOLLGATE_USAGE_GROUP_H

#include "aggregator/store/db/db.h"
#include "aggregator/store/usage/usage.h"
#include "common/base/labels.h"

#define USAGE_LABELS 4u                 /* keys of labels in one question */
#define USAGE_KEYS (14u + USAGE_LABELS) /* every other key once */
#define USAGE_KEY_NAME (sizeof("label:") + LABEL_MAX_KEY)

struct grouping {
	char name[USAGE_KEYS][USAGE_KEY_NAME];
	const char *sql[USAGE_KEYS];
	size_t label[USAGE_KEYS]; /* the how manieth label it is, from 1; 0: it is none */
	size_t count, label_count;
	unsigned ids; /* the columns of usage_rows() that names and filters need */
	bool by_state;
	bool long_range; /* of days: what is folded may be read instead of hours */
};

/* "tenant,label:team,day"; an error names group_by and the word. */
MUST_CHECK bool grouping_parse(const char *text, struct grouping *g, struct err *err);

/* The statement: the keys as text, in bytewise order, then USAGE_SUMS, or one sum by state; one group more than the limit, to see
 * whether there is a next page. after: the keys of the last group of the page before; NULL: from the first one. Both arrays
 * must live until the statement has run. */
void grouping_sql(struct grouping *g, const struct usage_query *q, struct db_array *labels, struct db_array *after,
                  struct buf *sql, struct db_args *a);

/* What each group had of each cell of core/rating/cost_day.h, as a cursor, in the order of the cells and then of the keys: workspace, cluster, GPU model, MIG
 * profile, units, sharing, hour, owner, the keys, then time held, time used, energy. Of the query only tenant and workspace count. */
#define USAGE_CELL_COLUMNS 8
void grouping_cost_sql(const struct grouping *g, const struct usage_query *q, const char *cursor,
                       struct db_array *labels, struct buf *sql, struct db_args *a);

#endif
