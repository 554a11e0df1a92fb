/* aggregator/service/audit_reads.c - buffer of audit entries for reads. The rules are numbered in the header. */
#include "aggregator/service/audit_reads.h"

#include <pthread.h>
#include <string.h>

#include "aggregator/store/access/access.h"
#include "common/base/log.h"

#define READS_MAX 256

struct noted {
	char *actor, *tenant, *subject;
	const char *action;
	int64_t first_ns, last_ns, times;
};

struct audit_reads {
	pthread_mutex_t lock;  /* protects at and count */
	pthread_mutex_t enter; /* taken first: one writer at a time, so that after an error the entries can go back */
	struct noted *at;
	size_t count;
};

struct audit_reads *
audit_reads_new(void)
{
	struct audit_reads *r = mem_alloc(sizeof(*r));

	pthread_mutex_init(&r->lock, NULL);
	pthread_mutex_init(&r->enter, NULL);
	r->at = mem_array(READS_MAX, sizeof(*r->at));
	return r;
}

static void
drop_all(struct noted *at, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		mem_free(at[i].actor);
		mem_free(at[i].tenant);
		mem_free(at[i].subject);
	}
	mem_free(at);
}

void
audit_reads_free(struct audit_reads *r)
{
	if (r == NULL)
		return;
	drop_all(r->at, r->count);
	pthread_mutex_destroy(&r->lock);
	pthread_mutex_destroy(&r->enter);
	mem_free(r);
}

static bool
same(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* Rule 2, under the lock. False: there is no room. */
static bool
add(struct audit_reads *r, const struct audit_read *read)
{
	for (size_t i = 0; i < r->count; i++) {
		struct noted *n = &r->at[i];

		if (same(n->actor, read->actor) && same(n->tenant, read->tenant) && same(n->action, read->action) &&
		    same(n->subject, read->subject)) {
			n->times += read->times;
			if (read->last_ns > n->last_ns)
				n->last_ns = read->last_ns;
			return true;
		}
	}
	if (r->count == READS_MAX)
		return false;
	r->at[r->count++] = (struct noted){.actor = mem_strdup(read->actor),
	                                   .tenant = mem_strdup(read->tenant),
	                                   .subject = mem_strdup(read->subject),
	                                   .action = read->action,
	                                   .first_ns = read->first_ns,
	                                   .last_ns = read->last_ns,
	                                   .times = read->times};
	return true;
}

static bool
try_note(struct audit_reads *r, const struct audit_read *read)
{
	bool ok;

	pthread_mutex_lock(&r->lock);
	ok = add(r, read);
	pthread_mutex_unlock(&r->lock);
	return ok;
}

void
audit_reads_note(struct audit_reads *r, struct db *db, const struct identity_row *who, const char *tenant,
                 const char *action, const char *subject, int64_t now_ns)
{
	struct audit_read read = {.actor = who->name,
	                          .action = action,
	                          .subject = subject,
	                          .tenant = tenant,
	                          .first_ns = now_ns,
	                          .last_ns = now_ns,
	                          .times = 1};
	char why[ERR_LOG_SIZE];
	struct err err = {0};
	int64_t entered;

	if (try_note(r, &read) || (audit_reads_enter(r, db, &entered, &err) && try_note(r, &read)))
		return;
	log_event(LOG_ERROR, "a read is not in the audit log", LS("by", read.actor), LS("action", action),
	          LS("subject", subject), LS("error", err_log_text(&err, why)));
}

/* Puts back entries that could not be written. */
static void
put_back(struct audit_reads *r, const struct audit_read *reads, size_t n)
{
	pthread_mutex_lock(&r->lock);
	for (size_t i = 0; i < n; i++)
		if (!add(r, &reads[i]))
			log_event(LOG_ERROR, "a read is not in the audit log", LS("by", reads[i].actor),
			          LS("action", reads[i].action), LS("subject", reads[i].subject));
	pthread_mutex_unlock(&r->lock);
}

static bool
enter(struct audit_reads *r, struct db *db, int64_t *ret_entered, struct err *err)
{
	struct noted *at = mem_array(READS_MAX, sizeof(*at));
	struct audit_read reads[READS_MAX];
	size_t n;
	bool ok;

	pthread_mutex_lock(&r->lock);
	n = r->count;
	for (size_t i = 0; i < n; i++)
		at[i] = r->at[i];
	r->count = 0;
	pthread_mutex_unlock(&r->lock);
	for (size_t i = 0; i < n; i++)
		reads[i] = (struct audit_read){.actor = at[i].actor,
		                               .action = at[i].action,
		                               .subject = at[i].subject,
		                               .tenant = at[i].tenant,
		                               .first_ns = at[i].first_ns,
		                               .last_ns = at[i].last_ns,
		                               .times = at[i].times};
	ok = n == 0 || store_audit_reads(db, reads, n, err);
	if (!ok)
		put_back(r, reads, n);
	drop_all(at, n);
	*ret_entered = ok ? (int64_t)n : 0;
	return ok;
}

bool
audit_reads_enter(struct audit_reads *r, struct db *db, int64_t *ret_entered, struct err *err)
{
	bool ok;

	pthread_mutex_lock(&r->enter);
	ok = enter(r, db, ret_entered, err);
	pthread_mutex_unlock(&r->enter);
	return ok;
}
