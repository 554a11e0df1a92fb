/* aggregator/api/closer.c - the thread that closes months that somebody asked for.
 *
 * Every replica has one; the store sees to it that one works at a time. A job that a replica left in the middle is found by the others, or by the
 * same one when it is there again. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "aggregator/api/app.h"
#include "aggregator/store/period.h"
#include "common/log.h"
#include "common/time.h"

#define LOOK_EVERY_NS (2 * NS_PER_S)

struct closer {
	struct app *app;
	struct db *work, *tell;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stop, asked; /* under lock */
	char last_error[sizeof((struct err *)0)->text];
};

static bool
go_on(void *closer)
{
	struct closer *c = closer;
	bool stop;

	pthread_mutex_lock(&c->lock);
	stop = c->stop;
	pthread_mutex_unlock(&c->lock);
	return !stop;
}

static void
log_outcome(const struct close_outcome *o)
{
	switch (o->state) {
	case CLOSE_CLOSED: log_event(LOG_INFO, "period closed", LS("period", o->month), LS("by", o->actor)); break;
	case CLOSE_CANCELLED:
		log_event(LOG_INFO, "the close of a period was cancelled", LS("period", o->month), LS("by", o->actor));
		break;
	case CLOSE_REFUSED:
	case CLOSE_FAILED:
		log_event(LOG_WARN, "a period was not closed", LS("period", o->month), LS("by", o->actor),
		          LS("error", o->text));
		break;
	case CLOSE_NONE:
	case CLOSE_RUNNING: break;
	}
}

/* Whether there may be more to do at once. The same error is told once. */
static bool
look(struct closer *c)
{
	const struct close_work work = {.work = c->work, .tell = c->tell, .go_on = go_on, .arg = c};
	struct close_outcome out;
	struct err err = {0};

	if (store_close_work(&work, &out, &err)) {
		c->last_error[0] = '\0';
		log_outcome(&out);
		return out.state != CLOSE_NONE;
	}
	if (strcmp(c->last_error, err.text) != 0)
		log_event(LOG_WARN, "closing a period was interrupted, will try again", LS("period", out.month),
		          LS("error", err.text));
	memcpy(c->last_error, err.text, sizeof(c->last_error));
	return false;
}

static bool
wait_turn(struct closer *c)
{
	struct timespec until;
	bool stop;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += LOOK_EVERY_NS / NS_PER_S;
	pthread_mutex_lock(&c->lock);
	while (!c->stop && !c->asked && pthread_cond_timedwait(&c->wake, &c->lock, &until) != ETIMEDOUT)
		;
	c->asked = false;
	stop = c->stop;
	pthread_mutex_unlock(&c->lock);
	return !stop;
}

static void *
closer_main(void *arg)
{
	struct closer *c = arg;

	do
		while (go_on(c) && look(c))
			;
	while (wait_turn(c));
	return NULL;
}

static void
closer_free(struct closer *c)
{
	pthread_cond_destroy(&c->wake);
	pthread_mutex_destroy(&c->lock);
	db_free(c->work);
	db_free(c->tell);
	mem_free(c);
}

bool
closer_start(struct app *app, struct closer **ret, struct err *err)
{
	owned(db) struct db *work = NULL, *tell = NULL;
	pthread_condattr_t attr;
	struct closer *c;
	int rc;

	if (!app_rollup_new(app->options, "tollgate-aggregator close", &app->db, &work, err) ||
	    !app_rollup_new(app->options, "tollgate-aggregator close progress", &app->db, &tell, err))
		return false;
	c = mem_alloc(sizeof(*c));
	*c = (struct closer){.app = app, .work = take(work), .tell = take(tell)};
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->wake, &attr);
	pthread_condattr_destroy(&attr);
	rc = pthread_create(&c->thread, NULL, closer_main, c);
	if (rc != 0) {
		closer_free(c);
		return err_errno(err, ERR_FATAL, rc, "cannot start the thread that closes periods");
	}
	*ret = c;
	return true;
}

void
closer_wake(struct closer *c)
{
	pthread_mutex_lock(&c->lock);
	c->asked = true;
	pthread_cond_signal(&c->wake);
	pthread_mutex_unlock(&c->lock);
}

void
closer_stop(struct closer *c)
{
	if (c == NULL)
		return;
	pthread_mutex_lock(&c->lock);
	c->stop = true;
	pthread_cond_signal(&c->wake);
	pthread_mutex_unlock(&c->lock);
	pthread_join(c->thread, NULL);
	closer_free(c);
}
