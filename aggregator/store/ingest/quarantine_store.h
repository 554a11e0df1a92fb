/* aggregator/store/ingest/quarantine_store.h - between quarantine_store.c (what is there) and quarantine_decide.c (what becomes of it). */
#ifndef TOLLGATE_QUARANTINE_STORE_H
#define TOLLGATE_QUARANTINE_STORE_H

#include "aggregator/store/ingest/ingest_push.h"

/* The row that is shown of a batch, or of one GPU's records in it. */
#define QUARANTINE_COLUMNS                                                                                       \
	"q.id, q.node, q.stream_id AS stream, q.epoch, q.seq, q.last_seq, q.gpu, q.class, q.reason, "            \
	"rfc3339(at_ns(q.from_ns)) AS \"from\", rfc3339(at_ns(q.to_ns)) AS \"to\", q.records, "                  \
	"rfc3339(q.received_at) AS received, extract(epoch FROM now() - q.received_at)::bigint AS age_seconds, " \
	"coalesce(q.decision, 'open') AS decision, q.decided_by, rfc3339(q.decided_at) AS decided, q.decided_why AS why "

/* gpu "": the batch itself. ERR_MISSING: no batch of that number was ever in quarantine, or nothing of that GPU set aside. */
MUST_CHECK bool quarantine_row(struct db *db, int64_t stream, int64_t seq, const char *gpu, PGresult **ret,
                               struct err *err);

/* A batch as it was received, held against its SHA-256. */
struct quarantine_bytes {
	unsigned char *data;
	size_t len;
	uint8_t sha[SHA256_SIZE];
};
void quarantine_bytes_fini(struct quarantine_bytes *b);
MUST_CHECK bool quarantine_payload(struct db *db, int64_t stream, int64_t seq, struct quarantine_bytes *ret,
                                   struct err *err);

#endif
