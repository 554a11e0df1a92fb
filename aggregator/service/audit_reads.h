/* aggregator/service/audit_reads.h - buffer of audit entries for reads of reports and of the audit log.
 *
 * Rules, in order:
 *  1. a read is noted in memory after its reply, so that it costs the reader nothing
 *  2. repeated reads of one thing by one token become one entry with a count and the time of the last
 *  3. background.c writes the entries to the audit log each audit-interval and when the daemon stops; a killed process loses the rest
 *  4. the buffer is bounded: a read that finds it full writes all entries first. Reads that cannot be written are logged */
#ifndef TOLLGATE_AUDIT_READS_H
#define TOLLGATE_AUDIT_READS_H

#include "aggregator/store/access/access.h"
#include "aggregator/store/store.h"

struct audit_reads;
struct audit_reads *audit_reads_new(void);
void audit_reads_free(struct audit_reads *r);

/* tenant: whose rows were read; NULL: not of one tenant. */
void audit_reads_note(struct audit_reads *r, struct db *db, const struct identity_row *who, const char *tenant,
                      const char *action, const char *subject, int64_t now_ns);
/* Writes the noted reads to the audit log. After an error they are kept. */
MUST_CHECK bool audit_reads_enter(struct audit_reads *r, struct db *db, int64_t *ret_entered, struct err *err);

#endif
