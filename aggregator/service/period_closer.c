/* aggregator/service/period_closer.c - the thread that closes months on request.
 *
 * Every replica has one; the store sees to it that one works at a time. A job that a replica left in the middle is found by the others, or by the
 * same one when it is there again. */
#include <string.h>

#include "aggregator/service/app.h"
#include "aggregator/store/billing/period.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/base/time.h"

#define LOOK_EVERY_NS (2 * NS_PER_S)

struct closer {
	struct app *app;
	struct db *work, *status;
	struct ticker *ticker;
	char last_error[sizeof((struct err *)0)->text];
};

static bool
go_on(void *ticker)
{
	return !ticker_is_stopping(ticker);
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

/* Whether there may be more to do at once. Repeated errors are logged once. */
static bool
look(struct closer *c, struct ticker *ticker)
{
	const struct close_work work = {.work = c->work, .status = c->status, .go_on = go_on, .arg = ticker};
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

static void
work(struct ticker *ticker, void *arg)
{
	do
		while (go_on(ticker) && look(arg, ticker))
			;
	while (ticker_wait(ticker, LOOK_EVERY_NS));
}

static void
closer_free(struct closer *c)
{
	db_free(c->work);
	db_free(c->status);
	mem_free(c);
}

bool
closer_start(struct app *app, struct closer **ret, struct err *err)
{
	owned(db) struct db *work_db = NULL, *status_db = NULL;
	struct closer *c;

	if (!app_rollup_new(app->options, "tollgate-aggregator close", &app->db, &work_db, err) ||
	    !app_rollup_new(app->options, "tollgate-aggregator close progress", &app->db, &status_db, err))
		return false;
	c = mem_alloc(sizeof(*c));
	*c = (struct closer){.app = app, .work = take(work_db), .status = take(status_db)};
	if (!ticker_start("that closes periods", work, c, &c->ticker, err)) {
		closer_free(c);
		return false;
	}
	*ret = c;
	return true;
}

void
closer_wake(struct closer *c)
{
	ticker_wake(c->ticker);
}

void
closer_stop(struct closer *c)
{
	if (!c)
		return;
	ticker_stop(c->ticker);
	closer_free(c);
}
