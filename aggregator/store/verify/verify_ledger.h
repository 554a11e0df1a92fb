/* aggregator/store/verify/verify_ledger.h - shared by the files that compare the ledger with its batches:
 * verify_ledger.c (the parts, the list of differences), verify_chain.c (batches, their ranges, cursors),
 * verify_stream.c (heads and dictionaries), verify_hour.c (records and sums), verify_owner.c (attribution),
 * verify_history.c (models of GPUs), verify_day.c (days), verify_charge.c (their charges), verify_lost.c (lost
 * holds), verify_documents.c (closed months), verify_lines.c (their lines), verify_rows.c (rows that cannot be
 * recomputed), verify_dispositions.c (decisions on batches), verify_schema.c (functions, triggers, constraints and
 * rights).
 *
 * A node is read in one snapshot, hour by hour; a billing day in another. Memory holds one page of batches, the
 * records of one of them, the keys of one node-hour and the dictionaries of the node's streams; or the sums of one
 * day. */
#ifndef TOLLGATE_VERIFY_LEDGER_H
#define TOLLGATE_VERIFY_LEDGER_H

#include "aggregator/core/policy/attribution.h"
#include "aggregator/core/metering/node_hour_expected.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/store.h"
#include "aggregator/store/verify/verify.h"
#include "common/base/hash.h"

/* The differences found, and counts of the compared objects. */
struct verify_report {
	struct buf *out;
	struct verify_counts counts;
	int64_t written;   /* differences listed in out */
	int64_t proved_ns; /* start of the oldest stored batches */
};
/* Verifies the chains of the audit log, the quota log and the journal, and their seals, from their beginning
 * (audit_verify.c). */
MUST_CHECK bool verify_audit_chains(struct db *db, struct verify_report *report, struct err *err);

/* The rules and the names of workspaces, as of the node's snapshot. */
struct verify_rules {
	PGresult *rows, *workspaces; /* own the texts */
	size_t count;
	struct attribution_rule *active; /* those in force at active_ns, sorted */
	size_t active_count;
	int64_t active_ns, unattributed;
	struct hash names; /* workspace -> row of workspaces */
};

/* A stream's latest description of a GPU, by the stream's number of it. */
struct verify_gpu_entry {
	uint32_t device;
	char *gpu, *model;
	int64_t memory_bytes;
};
/* A description of a GPU in a batch of the node with counting records of it; each different one once. */
struct verify_gpu_model {
	char *gpu, *model;
	int64_t memory_bytes;
};

/* A stream and how far its batches have been read. */
struct verify_stream {
	int64_t id, epoch, next_seq, covered_until_ns; /* covered INT64_MIN: none */
	char boot_id[64];
	int64_t evidence_seq;        /* the first number whose batch is stored */
	int64_t at_seq;              /* the first batch that may have records of the next hour */
	int64_t next_from_ns;        /* start of those records; INT64_MAX: there are none */
	int64_t checked_seq;         /* heads of batches up to this one have been compared */
	PGresult *devices, *holders; /* the dictionary; NULL until needed */
	struct hash device_rows, holder_rows;
	PGresult *entries; /* devices without a row, as they arrived */
	struct hash entry_rows;
	PGresult *aside; /* GPUs whose records were set aside, by batch and GPU */
	int aside_next;  /* the first row that may be of a later batch */
	struct verify_gpu_entry *gpu_entries;
	size_t gpu_entry_count;
};
/* The GPU of a record's device; NULL: the dictionary does not know it. */
const char *verify_stream_gpu(const struct verify_stream *s, uint32_t device);
/* Whether the records of a GPU in a batch are set aside. */
bool verify_set_aside(const struct verify_stream *s, int64_t seq, const char *gpu);

struct verify_gpu {
	int64_t gpu_id, device_id;
	char *uuid;
	/* of the current hour */
	int128 held;
	int64_t first_ns;
	bool outside; /* has a record outside its time in service */
};
struct verify_service {
	size_t gpu;
	int64_t from_ns, until_ns; /* INT64_MAX: still in service */
};

/* State that operators declared for the node or for one of its GPUs. */
struct verify_state {
	size_t gpu; /* SIZE_MAX: of the node */
	bool maintenance;
	int64_t from_ns, until_ns; /* INT64_MAX: without end */
};

struct verify_node {
	struct db *db;
	struct db_ledger ledger;
	struct verify_report *report;
	int64_t from_ns, to_ns;   /* the requested range */
	int64_t id, accounted_ns; /* covered, or silent beyond the grace */
	int64_t covered_until_ns;
	const char *name;
	bool of_close;                         /* requested by a close */
	int64_t hours_from_ns, hours_until_ns; /* of node_hour, then widened to the time that the batches cover */
	struct verify_rules rules;
	struct verify_stream *streams;
	size_t stream_count;
	struct verify_gpu *gpus;
	size_t gpu_count;
	struct hash gpu_at, device_gpu; /* gpu_id, device_id -> gpus */
	struct verify_service *services;
	size_t service_count;
	struct verify_state *states;
	size_t state_count;
	struct verify_gpu_model *gpu_models;
	size_t gpu_model_count;
};

/* Reports a difference. gpu: NULL if it concerns no GPU; hour_ns: INT64_MIN if it concerns no hour. */
void verify_report_amount(struct verify_node *n, const char *kind, const char *gpu, int64_t hour_ns, const char *what,
                          int128 expected, int128 found);
void verify_report_text(struct verify_node *n, const char *kind, const char *gpu, int64_t hour_ns, const char *what,
                        const char *expected, const char *found);

/* After a step: unreadable data is a difference, and the verification goes on. False if the step may succeed later or
 * was cancelled. thing: the object of the step. */
MUST_CHECK bool verify_continue(struct verify_node *n, bool ok, const char *thing, const struct err *why,
                                struct err *err);
/* An amount, which must be a whole number. Any other value is reported as a difference and returned as 0. */
int128 verify_amount(struct verify_node *n, const PGresult *r, int row, int col, const char *kind, const char *gpu,
                     int64_t hour_ns, const char *what);

size_t verify_gpu_enter(struct verify_node *n, int64_t gpu_id, int64_t device_id, const char *uuid);
const char *verify_gpu_of(const struct verify_node *n, int64_t device_id); /* its UUID; NULL: not known */

/* Verifies the batches, ranges and cursors of the node's streams, and finds where to begin reading. */
MUST_CHECK bool verify_streams(struct verify_node *n, struct err *err);
/* "batch 7 of epoch 100: used_ns" */
void verify_name_batch(const struct verify_stream *s, int64_t seq, const char *thing, char out[256]);
void verify_stream_fini(struct verify_stream *s);

/* The current hour. */
struct verify_hour {
	struct verify_node *node;
	int64_t from_ns, to_ns;
	bool stored, retired;    /* sealed and clean; its records are gone */
	bool pending;            /* retired, and data that arrived since is not in it yet */
	int64_t sliced_until_ns; /* if not stored */
	struct node_hour_rows expected;
	/* rows of usage_interval by stream and batch */
	PGresult *page;
	int row;
	bool ended;
};
MUST_CHECK bool verify_hour(struct verify_node *n, int64_t hour_ns, struct err *err);
/* Compares the records of a decoded batch in this hour with the rows. */
MUST_CHECK bool verify_records(struct verify_hour *h, struct verify_stream *s, const struct wire_batch *b, int64_t seq,
                               struct err *err);
/* Reads the stream's batches that have records of this hour. */
MUST_CHECK bool verify_stream_hour(struct verify_hour *h, struct verify_stream *s, struct err *err);

/* The model history of GPUs, over all time. */
MUST_CHECK bool verify_histories(struct verify_node *n, struct err *err);
/* Collects the descriptions of GPUs in a batch or in its dictionary alone; then checks that the ledger has only
 * descriptions that the node has reported. accepted: false leaves known descriptions unchanged. */
void verify_models_dictionary(struct verify_stream *s, const struct wire_batch *b, bool accepted);
void verify_models_batch(struct verify_node *n, const struct verify_stream *s, const struct wire_batch *b, int64_t seq);
MUST_CHECK bool verify_models_check(struct verify_node *n, struct err *err);
void verify_models_fini(struct verify_node *n);
void verify_gpu_entries_fini(struct verify_stream *s);
/* Billing days that begin in the range: folded ones against their sealed hours and, row by row, against recomputed
 * charges. */
MUST_CHECK bool verify_days(struct verify_node *n, struct err *err);
/* Closed months that begin in the range: records, documents, lines, and changes since. */
MUST_CHECK bool verify_bills(struct verify_node *n, struct err *err);
/* Compares the billed lines of a month with the lines rated a second time, inside a transaction of one snapshot in
 * which days that are not folded were charged (charges_open). ret: a row for each difference, 1,000 at most: line,
 * invoice, column, expected, found, and the number of compared lines; a sound month has one row without a line. */
MUST_CHECK bool verify_lines(struct db *db, const char *month, PGresult **ret, struct err *err);
/* Tables, functions, triggers, constraints and rights, against this program's migrations. It has no range. */
MUST_CHECK bool verify_schema(struct verify_node *n, struct err *err);
/* Rows that cannot be recomputed, against the journal written with them. It has no range. */
MUST_CHECK bool verify_rows_journal(struct verify_node *n, struct err *err);
/* The part of verify_rows_journal() about decisions on batches, in the current snapshot. */
MUST_CHECK bool verify_dispositions(struct verify_node *n, struct err *err);
MUST_CHECK bool verify_charges(struct verify_node *n, const char *day, int64_t from_ns, int64_t until_ns,
                               struct err *err);
/* Holds that workloads lost on a folded day. */
MUST_CHECK bool verify_losses(struct verify_node *n, const char *day, int64_t from_ns, int64_t until_ns,
                              struct err *err);

MUST_CHECK bool verify_rules_load(struct verify_node *n, struct err *err);
void verify_rules_fini(struct verify_rules *r);
/* Sets the workspaces of the rows with a holder by the rules in force at that hour; holder_attribution must agree. */
MUST_CHECK bool verify_owners(struct verify_node *n, int64_t hour_ns, struct node_hour_rows *rows, struct err *err);
/* Checks holder_attribution for the holders that events of the range name, at the hour of the event. */
MUST_CHECK bool verify_event_owners(struct verify_node *n, struct err *err);
/* Checks the owner of every holder at each change of it. It has no range. */
MUST_CHECK bool verify_owner_histories(struct verify_node *n, struct err *err);
const char *verify_workspace(const struct verify_node *n, int64_t workspace_id);

#endif
