/* aggregator/store/verify/verify_ledger.h - between the files that compare the ledger with its evidence: verify_ledger.c (the parts, the list of
 * differences), verify_chain.c (batches, their ranges, cursors), verify_stream.c (what batches say, dictionaries), verify_hour.c (records
 * and sums), verify_owner.c (attribution), verify_day.c (days), verify_charge.c (their charges), verify_lost.c (what workloads lost),
 * verify_bill.c (closed months), verify_lines.c (their lines), verify_rows.c (rows that cannot be computed again), verify_dispositions.c (what became of batches),
 * verify_schema.c (functions, triggers, constraints and rights).
 *
 * A node is read in one snapshot, hour by hour; a billing day in another. At any moment there is one page of batches in memory, the
 * records of one of them, the keys of one node-hour, the dictionaries of the node's streams; or the sums of one day. */
#ifndef TOLLGATE_VERIFY_LEDGER_H
#define TOLLGATE_VERIFY_LEDGER_H

#include "aggregator/core/policy/attribution.h"
#include "aggregator/core/metering/node_hour_expected.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/store.h"
#include "aggregator/store/verify/verify.h"
#include "common/base/idmap.h"

/* What is told, and how much was looked at. */
struct verify_report {
	struct buf *out;
	struct verify_counts counts;
	int64_t written;   /* differences that are told */
	int64_t proved_ns; /* where the evidence begins */
};
/* The chains of the audit log, the quota log and the journal, and their seals, from their beginning (audit_verify.c). */
MUST_CHECK bool store_audit_prove(struct db *db, struct verify_report *report, struct err *err);

/* The rules and the names of workspaces, as of the node's snapshot. */
struct verify_rules {
	PGresult *rows, *workspaces; /* own the texts */
	size_t count;
	struct attribution_rule *active; /* those in force at active_ns, sorted */
	size_t active_count;
	int64_t active_ns, unattributed;
	struct idmap names; /* workspace -> row of workspaces */
};

/* What a stream says a GPU is, by the stream's number of it. */
struct verify_said {
	uint32_t device;
	char *gpu, *model;
	int64_t memory_bytes;
};
/* What the node said a GPU is, in a batch with records of it that count: each word once. */
struct verify_word {
	char *gpu, *model;
	int64_t memory_bytes;
};

/* A stream and how far its batches have been read. */
struct verify_stream {
	int64_t id, epoch, next_seq, covered_until_ns; /* covered INT64_MIN: nothing */
	char boot_id[64];
	int64_t evidence_seq;        /* the first number whose batch is kept */
	int64_t at_seq;              /* the first batch that may have records of the next hour */
	int64_t next_from_ns;        /* where those begin; INT64_MAX: there are none */
	int64_t checked_seq;         /* heads of batches up to this one have been compared */
	PGresult *devices, *holders; /* the dictionary; NULL until needed */
	struct idmap device_rows, holder_rows;
	PGresult *entries; /* devices that are not entered, as they came */
	struct idmap entry_rows;
	PGresult *aside; /* GPUs whose records were set aside, by batch and GPU */
	int aside_next;  /* the first row that may be of a later batch */
	struct verify_said *said;
	size_t said_count;
};
/* The GPU of a record's device; NULL: the dictionary does not know it. */
const char *verify_stream_gpu(const struct verify_stream *s, uint32_t device);
/* Whether the records of a GPU in a batch are set aside. */
bool verify_set_aside(const struct verify_stream *s, int64_t seq, const char *gpu);

struct verify_gpu {
	int64_t gpu_id, device_id;
	char *uuid;
	/* of the hour at hand */
	int128 held;
	int64_t first_ns;
	bool outside; /* has a record outside its time in service */
};
struct verify_service {
	size_t gpu;
	int64_t from_ns, until_ns; /* INT64_MAX: still in service */
};

/* What operators declared: of the node, or of one of its GPUs. */
struct verify_state {
	size_t gpu; /* SIZE_MAX: of the node */
	bool maintenance;
	int64_t from_ns, until_ns; /* INT64_MAX: still */
};

struct verify_node {
	struct db *db;
	struct db_ledger ledger;
	struct verify_report *report;
	int64_t from_ns, to_ns;   /* the range asked for */
	int64_t id, accounted_ns; /* covered, or silent beyond the grace */
	int64_t covered_until_ns;
	const char *name;
	bool of_close;                         /* asked for by a close */
	int64_t hours_from_ns, hours_until_ns; /* of node_hour, then widened to what the batches cover */
	struct verify_rules rules;
	struct verify_stream *streams;
	size_t stream_count;
	struct verify_gpu *gpus;
	size_t gpu_count;
	struct idmap gpu_at, device_gpu; /* gpu_id, device_id -> gpus */
	struct verify_service *services;
	size_t service_count;
	struct verify_state *states;
	size_t state_count;
	struct verify_word *words;
	size_t word_count;
};

/* A difference. gpu: NULL where it is of no GPU; hour_ns: INT64_MIN where it is of no hour. */
void verify_say(struct verify_node *n, const char *kind, const char *gpu, int64_t hour_ns, const char *what,
                int128 expected, int128 found);
void verify_say_text(struct verify_node *n, const char *kind, const char *gpu, int64_t hour_ns, const char *what,
                     const char *expected, const char *found);

/* After a step: what it could not read is a difference, and the proof goes on; false where the step may work later, or somebody has ended it.
 * thing: what the step was about. */
MUST_CHECK bool verify_goes_on(struct verify_node *n, bool ok, const char *thing, const struct err *why,
                               struct err *err);
/* An amount, which must be a whole number. One that is not is a difference, and 0. */
int128 verify_amount(struct verify_node *n, const PGresult *r, int row, int col, const char *kind, const char *gpu,
                     int64_t hour_ns, const char *what);

size_t verify_gpu_enter(struct verify_node *n, int64_t gpu_id, int64_t device_id, const char *uuid);
const char *verify_gpu_of(const struct verify_node *n, int64_t device_id); /* its UUID; NULL: not known */

/* The node's streams: their batches one by one, in ranges; their cursors, and where to begin reading. */
MUST_CHECK bool verify_streams(struct verify_node *n, struct err *err);
/* "batch 7 of epoch 100: used_ns" */
void verify_name_batch(const struct verify_stream *s, int64_t seq, const char *thing, char out[256]);
void verify_stream_fini(struct verify_stream *s);

/* The hour at hand. */
struct verify_hour {
	struct verify_node *node;
	int64_t from_ns, to_ns;
	bool stored, retired;    /* sealed and clean; its records are gone */
	bool pending;            /* retired, and what has come since is not in it yet */
	int64_t sliced_until_ns; /* of one that is not stored */
	struct verify_rows expected;
	/* rows of usage_interval by stream and batch */
	PGresult *page;
	int row;
	bool ended;
};
MUST_CHECK bool verify_hour(struct verify_node *n, int64_t hour_ns, struct err *err);
/* A batch of the stream, decoded: its records of this hour against the rows. */
MUST_CHECK bool verify_records(struct verify_hour *h, struct verify_stream *s, const struct wire_batch *b, int64_t seq,
                               struct err *err);
/* The stream's batches that have records of this hour. */
MUST_CHECK bool verify_stream_hour(struct verify_hour *h, struct verify_stream *s, struct err *err);

/* What GPUs were, over all of time. */
MUST_CHECK bool verify_histories(struct verify_node *n, struct err *err);
/* Takes in what a batch, or its dictionary alone, says GPUs are; then: what the ledger took from the node is what it said by then.
 * accepted: else what is known already is not changed by it. */
void verify_words_entries(struct verify_stream *s, const struct wire_batch *b, bool accepted);
void verify_words_batch(struct verify_node *n, const struct verify_stream *s, const struct wire_batch *b, int64_t seq);
MUST_CHECK bool verify_words_check(struct verify_node *n, struct err *err);
void verify_words_fini(struct verify_node *n);
void verify_said_fini(struct verify_stream *s);
/* Billing days that begin in the range: folded ones against their sealed hours and, row by row, against charges computed again. */
MUST_CHECK bool verify_days(struct verify_node *n, struct err *err);
/* Closed months that begin in the range: records, documents, lines, and what has changed since. */
MUST_CHECK bool verify_bills(struct verify_node *n, struct err *err);
/* The lines of a month that are billed, against the same rated a second time, inside a transaction of one snapshot in which days that are not
 * folded were charged (charges_open). ret: a row for each difference, 1,000 at most: line, invoice, column, expected, found, and how many lines
 * were compared; a sound month has one row without a line. */
MUST_CHECK bool verify_lines(struct db *db, const char *month, PGresult **ret, struct err *err);
/* Tables, functions, triggers, constraints and rights, against those of this program's migrations. It has no range. */
MUST_CHECK bool verify_schema(struct verify_node *n, struct err *err);
/* Rows that cannot be computed again, against the journal that was written with them. It has no range. */
MUST_CHECK bool verify_rows_journal(struct verify_node *n, struct err *err);
/* The part of it that is about batches: what became of them, in the snapshot at hand. */
MUST_CHECK bool verify_dispositions(struct verify_node *n, struct err *err);
MUST_CHECK bool verify_charges(struct verify_node *n, const char *day, int64_t from_ns, int64_t until_ns,
                               struct err *err);
/* What workloads lost on a folded day. */
MUST_CHECK bool verify_losses(struct verify_node *n, const char *day, int64_t from_ns, int64_t until_ns,
                              struct err *err);

MUST_CHECK bool verify_rules_load(struct verify_node *n, struct err *err);
void verify_rules_fini(struct verify_rules *r);
/* Enters the workspaces of the rows that somebody held, as the rules in force at that hour say; holder_attribution must
 * say the same. */
MUST_CHECK bool verify_owners(struct verify_node *n, int64_t hour_ns, struct verify_rows *rows, struct err *err);
/* Holders that events of the range name: what holder_attribution has of them at the hour of the event. */
MUST_CHECK bool verify_event_owners(struct verify_node *n, struct err *err);
/* Whose every holder is said to be, from each change of it on. It has no range. */
MUST_CHECK bool verify_owner_histories(struct verify_node *n, struct err *err);
const char *verify_workspace(const struct verify_node *n, int64_t workspace_id);

#endif
