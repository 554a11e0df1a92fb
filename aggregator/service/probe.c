/* aggregator/service/probe.c - the thread that asks whether the database answers and has this program's schema. The rules are in the header. */
#include "aggregator/service/probe.h"

#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/base/time.h"

#define EVERY_NS NS_PER_S
#define LATE_NS (5 * NS_PER_S)

struct probe {
	struct db *db;
	struct ticker *ticker;
	pthread_mutex_t lock;  /* of all that follows */
	enum err_kind failure; /* of the last look */
	int64_t succeeded_ns;  /* when the last good one ended, on the boot clock */
	bool told;             /* that it is not ready */
};

static void
conclude(struct probe *p, bool ok, const struct err *err)
{
	char why[ERR_LOG_SIZE];
	bool tell;

	pthread_mutex_lock(&p->lock);
	p->failure = ok ? ERR_NONE : err->kind;
	if (ok)
		p->succeeded_ns = time_boot_ns();
	tell = p->told == ok;
	p->told = !ok;
	pthread_mutex_unlock(&p->lock);
	if (tell && ok)
		log_write(LOG_INFO, "ready again", NULL);
	else if (tell)
		log_event(LOG_WARN, "not ready", LS("error", err_log_text(err, why)));
}

static void
look(struct ticker *ticker, void *arg)
{
	struct probe *p = arg;

	while (ticker_wait(ticker, EVERY_NS)) {
		struct err err = {0};

		conclude(p, store_ready(p->db, &err), &err);
	}
}

static void
probe_free(struct probe *p)
{
	pthread_mutex_destroy(&p->lock);
	db_free(p->db);
	mem_free(p);
}

bool
probe_start(struct app *app, struct probe **ret, struct err *err)
{
	owned(db) struct db *db = NULL;
	struct probe *p;

	if (!app_db_new(app->options, "tollgate-aggregator probe", &app->db, &db, err))
		return false;
	p = mem_alloc(sizeof(*p));
	*p = (struct probe){.db = take(db), .succeeded_ns = time_boot_ns()};
	pthread_mutex_init(&p->lock, NULL);
	if (!ticker_start("that asks whether the database answers", look, p, &p->ticker, err)) {
		probe_free(p);
		return false;
	}
	*ret = p;
	return true;
}

void
probe_stop(struct probe *p)
{
	ticker_stop(p->ticker);
	probe_free(p);
}

const char *
probe_why_not(struct probe *p)
{
	enum err_kind failure;
	bool late;

	pthread_mutex_lock(&p->lock);
	failure = p->failure;
	late = time_boot_ns() - p->succeeded_ns > EVERY_NS + LATE_NS;
	pthread_mutex_unlock(&p->lock);
	if (failure != ERR_NONE && failure != ERR_RETRY)
		return "the database cannot be used by this program: its log says why";
	return failure != ERR_NONE || late ? "the database does not answer" : NULL;
}
