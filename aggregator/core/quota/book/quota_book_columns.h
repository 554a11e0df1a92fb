/* aggregator/core/quota/book/quota_book_columns.h - what the rows of a quota book's text have. For the files that write and read it. */
#ifndef TOLLGATE_QUOTA_BOOK_COLUMNS_H
#define TOLLGATE_QUOTA_BOOK_COLUMNS_H

#include "aggregator/core/quota/book/quota_book_names.h"
#include "aggregator/core/quota/book/quota_book_row.h"

#define QUOTA_BOOK_VERSION 1
#define QUOTA_BOOK_MAX_ROWS (1u << 20)

struct tenant_row {
	struct quota_tenant in;
	bool gone;
};

struct workspace_row {
	struct quota_workspace in;
	int32_t home;
	bool gone;
	int64_t denied;
};

struct node_row {
	struct quota_node in;
};

struct gpu_row {
	const char *uuid;
	bool lost;
};

struct class_row {
	const char *name;
	int32_t value;
	bool preemptible, gone;
};

struct price_row {
	int32_t tenant, model;
	const char *profile;
	int64_t hour_micros;
};

/* A list of plain rows: its member, its columns, the size of a row. */
struct book_rows {
	const char *key;
	const struct book_column *columns;
	size_t column_count, size;
};

/* Lists without more in a row than its columns. */
extern const struct book_rows book_rows_classes, book_rows_shapes, book_rows_tenants, book_rows_workspaces,
	book_rows_shares, book_rows_caps, book_rows_budgets, book_rows_prices, book_rows_slots, book_rows_parts,
	book_rows_hold, book_rows_exceptions, book_rows_backoffs;
/* Those whose rows have lists of their own. */
extern const struct book_rows book_rows_settings, book_rows_nodes, book_rows_gpus, book_rows_leases, book_rows_waiting;

#endif
