/* aggregator/store/quarantine.h - between quarantine.c (what is there) and quarantine_decide.c (what becomes of it). */
#ifndef TOLLGATE_STORE_QUARANTINE_H
#define TOLLGATE_STORE_QUARANTINE_H

#include "aggregator/store/ingest.h"

/* The row that is shown of a batch. */
#define QUARANTINE_COLUMNS                                                                                             \
	"b.quarantine_id AS id, n.name AS node, b.stream_id AS stream, s.epoch, b.seq, b.last_seq, "                   \
	"coalesce(b.class, '') AS class, b.reason, rfc3339(at_ns(b.from_ns)) AS \"from\", "                            \
	"rfc3339(at_ns(b.to_ns)) AS \"to\", b.records, rfc3339(b.received_at) AS received, "                           \
	"extract(epoch FROM now() - b.received_at)::bigint AS age_seconds, coalesce(b.decision, 'open') AS decision, " \
	"b.decided_by, rfc3339(b.decided_at) AS decided, b.decided_why AS why "
#define QUARANTINE_FROM "FROM ingest_batch b JOIN stream s ON s.id = b.stream_id JOIN node n ON n.id = s.node_id "

/* ERR_MISSING: no batch of that number was ever in quarantine. */
MUST_CHECK bool quarantine_row(struct db *db, int64_t stream, int64_t seq, PGresult **ret, struct err *err);

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
