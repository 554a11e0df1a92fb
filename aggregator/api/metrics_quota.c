/* aggregator/api/metrics_quota.c - quota on /metrics: what everybody may have and has, what was decided, what was asked back, exceptions. */
#include "aggregator/api/metrics_quota.h"

#include <pthread.h>
#include <string.h>

#include "aggregator/service/decider.h"
#include "aggregator/service/gauges_page.h"
#include "aggregator/core/quota/book/quota_figures.h"
#include "common/base/units.h"

#define GPU_DECIMALS 3

/* ---- what this replica decided --------------------------------------------------------------------------------------------- */

struct decision_counters {
	pthread_mutex_t lock;
	struct gauge_rows rows;
};

struct decision_counters *
decision_counters_new(size_t series_max)
{
	struct decision_counters *c = mem_alloc(sizeof(*c));

	pthread_mutex_init(&c->lock, NULL);
	c->rows.max = series_max;
	return c;
}

void
decision_counters_free(struct decision_counters *c)
{
	if (c == NULL)
		return;
	gauge_rows_fini(&c->rows);
	pthread_mutex_destroy(&c->lock);
	mem_free(c);
}

/* "acme/prod" as two labels; a path of another form is nobody's. */
struct path {
	char tenant[QUOTA_NAME_SIZE];
	const char *workspace;
};

static void
path_of(const char *text, struct path *ret)
{
	const char *slash = strchr(text, '/');
	size_t n = slash != NULL ? (size_t)(slash - text) : 0;

	*ret = (struct path){.workspace = ""};
	if (n == 0 || n >= sizeof(ret->tenant))
		return;
	memcpy(ret->tenant, text, n);
	ret->tenant[n] = '\0';
	ret->workspace = slash + 1;
}

void
decision_counters_add(struct decision_counters *c, const char *workspace, const char *decision, const char *rule)
{
	struct path p;

	path_of(workspace, &p);
	pthread_mutex_lock(&c->lock);
	gauge_row(&c->rows,
	          &(struct gauge_key){
			  .cluster = "", .tenant = p.tenant, .workspace = p.workspace, .what = rule, .kind = decision})
		->amount++;
	pthread_mutex_unlock(&c->lock);
}

/* The rest is the operator's: a tenant may have its name. */
static bool
sees(const struct identity_row *who, const struct gauge_row *r)
{
	return api_sees(who, r->rest || r->tenant[0] == '\0' ? NULL : r->tenant);
}

static void
write_decisions(struct prom *p, struct app *app, const struct identity_row *who)
{
	struct decision_counters *c = app->decisions;

	prom_family(
		p, "tollgate_decisions_total", PROM_COUNTER,
		"Requests for capacity that this replica answered for the first time, by answer and the rule that decided.");
	pthread_mutex_lock(&c->lock);
	for (size_t i = 0; i < c->rows.count; i++) {
		const struct gauge_row *r = &c->rows.at[i];

		if (!sees(who, r))
			continue;
		prom_begin(p);
		prom_label(p, "tenant", r->tenant);
		prom_label(p, "workspace", r->workspace);
		prom_label(p, "decision", r->kind);
		prom_label(p, "rule", r->what);
		prom_int(p, (int64_t)r->amount);
	}
	pthread_mutex_unlock(&c->lock);
}

void
metrics_write_decision_duration(struct prom *p, struct counters *c)
{
	static const char *const ways[DECISION_TURNS] = {"bet", "locked", "lost"};

	prom_family(p, "tollgate_decision_duration_seconds", PROM_HISTOGRAM,
	            "How long requests for capacity took, from their arrival to the answer, the commit included.");
	histogram_write(p, &c->decision_duration);
	prom_family(
		p, "tollgate_decision_turns_total", PROM_COUNTER,
		"Times that requests for capacity were decided together: as a bet that no other replica has decided since, under the lock of "
		"the book, and bets that were lost.");
	for (size_t i = 0; i < DECISION_TURNS; i++) {
		prom_begin(p);
		prom_label(p, "way", ways[i]);
		prom_int(p, atomic_load(&c->decision_turns[i]));
	}
}

/* ---- the book ---------------------------------------------------------------------------------------------------------------- */

/* Thousandths of a GPU. */
static int64_t
milli_gpus(int64_t units)
{
	return (int64_t)div_round_half_even((int128)units * 1000, UNITS_PER_GPU);
}

static const char *const kinds[] = {"limit", "reserved", "in_use", "borrowed", "on_demand", "lent", "queued", "held"};

static int64_t
kind_of(const struct quota_figure *f, size_t kind)
{
	const int64_t amounts[ARRAY_LEN(kinds)] = {f->account.limit, f->account.reserved, f->account.leased,
	                                           f->borrowed,      f->on_demand,        f->lent,
	                                           f->queued,        f->account.held};

	return amounts[kind];
}

static void
write_figure(struct prom *p, const char *const labels[4], const char *kind, int64_t units)
{
	static const char *const names[4] = {"cluster", "tenant", "workspace", "gpu_model"};

	prom_begin(p);
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		prom_label(p, names[i], labels[i]);
	prom_label(p, "kind", kind);
	prom_fixed(p, milli_gpus(units), GPU_DECIMALS);
}

/* The own pool and the shared one are one number; a limit is one of each, and shown where there is something. No limit is no sample. */
static bool
is_same(const struct quota_figure *a, const struct quota_figure *b)
{
	return a->workspace == b->workspace && a->cluster == b->cluster && a->model == b->model;
}

static void
write_group(struct prom *p, const struct quota_book *b, const struct quota_figure *f, size_t n, int64_t *rest)
{
	const char *path = quota_book_workspace_path(b, f->workspace);
	struct path at;

	path_of(path, &at);
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
		int64_t sum = 0;

		for (size_t i = 0; i < n && sum != QUOTA_UNLIMITED; i++) {
			int64_t v = kind_of(&f[i], k);

			sum = v == QUOTA_UNLIMITED ? v : sum + v;
		}
		if (sum == QUOTA_UNLIMITED)
			continue;
		if (rest != NULL)
			rest[k] += sum;
		else
			write_figure(p,
			             (const char *const[]){quota_book_cluster_name(b, f->cluster), at.tenant,
			                                   at.workspace, quota_book_model_name(b, f->model)},
			             kinds[k], sum);
	}
}

static void
write_book(struct prom *p, const struct quota_book *b, size_t series_max, const struct identity_row *who)
{
	in_place(quota_figures) struct quota_figures f = {0};
	int64_t rest[ARRAY_LEN(kinds)] = {0};
	size_t groups = 0, n;
	struct path at;

	quota_figures_make(b, &f);
	prom_family(
		p, "tollgate_quota_gpus", PROM_GAUGE,
		"GPUs of a workspace by the quota book, in its own pool and the shared one: limit, reserved, in_use, borrowed (of what others reserved), on_demand (of what nobody did), lent, queued, held.");
	for (size_t i = 0; i < f.count; i += n) {
		for (n = 1; i + n < f.count && is_same(&f.at[i], &f.at[i + n]); n++)
			;
		path_of(quota_book_workspace_path(b, f.at[i].workspace), &at);
		groups++;
		if (api_sees(who, at.tenant))
			write_group(p, b, &f.at[i], n, groups * ARRAY_LEN(kinds) > series_max ? rest : NULL);
	}
	for (size_t k = 0; k < ARRAY_LEN(kinds) && groups * ARRAY_LEN(kinds) > series_max && api_sees(who, NULL); k++)
		write_figure(p, (const char *const[]){"", REST_TENANT, "", ""}, kinds[k], rest[k]);
	prom_family(
		p, "tollgate_would_deny_total", PROM_COUNTER,
		"Requests of workspaces that are not enforced that the rules would not have admitted, since the quota book began.");
	for (int32_t w = 0; (size_t)w < quota_book_workspace_count(b); w++) {
		path_of(quota_book_workspace_path(b, w), &at);
		if ((size_t)w >= series_max || !api_sees(who, at.tenant) || quota_book_would_deny(b, w) == 0)
			continue;
		prom_begin(p);
		prom_label(p, "tenant", at.tenant);
		prom_label(p, "workspace", at.workspace);
		prom_int(p, quota_book_would_deny(b, w));
	}
}

/* ---- the ledger -------------------------------------------------------------------------------------------------------------- */

#define KINDS_MAX 8
static const struct {
	const char *name, *help, *label;
	const char *kinds[KINDS_MAX]; /* those that operators always see, with 0 where there is none */
} families[QUOTA_GAUGE_FAMILIES] = {
	[QUOTA_RECLAIMS] = {"tollgate_reclaims",
                            "Leases that were asked to give back and have not yet, by state of the order.",
                            "state",
                            {"ordered", "draining", "overdue", "enforced"}},
	[QUOTA_EXCEPTIONS] = {"tollgate_exceptions",
                              "Exceptions from limits and reservations: asked for, agreed to and not begun, running.",
                              "state",
                              {"requested", "approved", "running"}},
	[QUOTA_ANOMALIES] = {"tollgate_quota_anomalies",
                             "Where what telemetry shows and what the quota book says differ, by kind.",
                             "kind",
                             {"unleased", "unused", "foreign", "excess", "reserved", "overdue", "idle"}},
	[QUOTA_UNLEASED] = {"tollgate_unleased_gpus", "GPUs that are held without a lease.", NULL, {""}},
};

static bool
has_kind(const struct gauge_rows *rows, const char *kind)
{
	for (size_t i = 0; i < rows->count; i++)
		if (strcmp(rows->at[i].kind, kind) == 0)
			return true;
	return false;
}

static void
write_row(struct prom *p, enum quota_gauge_family family, const struct gauge_row *r)
{
	prom_begin(p);
	prom_label(p, "tenant", r->tenant);
	if (family == QUOTA_UNLEASED) {
		prom_label(p, "workspace", r->workspace);
		prom_fixed(p, milli_gpus((int64_t)r->amount), GPU_DECIMALS);
		return;
	}
	prom_label(p, families[family].label, r->kind);
	prom_int(p, (int64_t)r->amount);
}

static void
write_rows(struct prom *p, const struct gauge_rows *rows, enum quota_gauge_family family,
           const struct identity_row *who)
{
	char nobody[] = "";

	prom_family(p, families[family].name, PROM_GAUGE, families[family].help);
	for (size_t i = 0; i < rows->count; i++)
		if (sees(who, &rows->at[i]))
			write_row(p, family, &rows->at[i]);
	for (size_t k = 0; k < KINDS_MAX && families[family].kinds[k] != NULL && api_sees(who, NULL); k++) {
		struct gauge_row none = {.tenant = nobody, .workspace = nobody};

		if (has_kind(rows, families[family].kinds[k]))
			continue;
		none.kind = mem_strdup(families[family].kinds[k]);
		write_row(p, family, &none);
		mem_free(none.kind);
	}
}

void
metrics_write_quota(struct prom *p, struct app *app, const struct gauges_page *page, const struct identity_row *who)
{
	struct quota_log *log = decider_log(app->decider);
	const struct quota_book *b;

	write_decisions(p, app, who);
	b = quota_log_borrow(log);
	if (b != NULL)
		write_book(p, b, (size_t)app->options->metrics_series_max, who);
	quota_log_give_back(log);
	for (int f = 0; f < QUOTA_GAUGE_FAMILIES; f++)
		write_rows(p, &page->quota[f], (enum quota_gauge_family)f, who);
}
