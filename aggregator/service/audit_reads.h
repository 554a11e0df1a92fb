/* aggregator/service/audit_reads.h - reads of reports and of the audit log, on their way into the audit log.
 *
 * Rules, in order:
 *  1. a read that was answered is noted in memory, and costs its reader nothing more
 *  2. the same read by the same token is one entry, with how often and when last, until it is entered
 *  3. they are entered by the background each audit-interval and when the daemon stops; a process that is killed loses what it had not
 *     entered yet
 *  4. there is room for a number of different ones: whoever finds none enters them all first. What cannot be entered is in the
 *     daemon's log */
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
/* Enters what was noted. When it fails it is kept. */
MUST_CHECK bool audit_reads_enter(struct audit_reads *r, struct db *db, int64_t *ret_entered, struct err *err);

#endif
