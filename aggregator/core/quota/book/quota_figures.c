/* aggregator/core/quota/book/quota_figures.c - figures of each workspace from a quota book. The rules are numbered in the header. */
#include "aggregator/core/quota/book/quota_figures.h"

#include <stdlib.h>

#include "common/base/hash.h"

void
quota_figures_fini(struct quota_figures *f)
{
	mem_free(f->at);
	*f = (struct quota_figures){0};
}

int64_t
quota_pool_lent(const struct quota_pool_figures *p)
{
	int64_t unreserved = p->live > p->reserved ? p->live - p->reserved : 0;
	int64_t lent = p->debt > unreserved ? p->debt - unreserved : 0;

	return lent < p->idle ? lent : p->idle;
}

/* While the list is being made. */
struct making {
	const struct quota_book *b;
	struct quota_saved saved;
	struct quota_figures *f;
	struct hash where; /* of an account: its figure */
};

static uint64_t
key_of(const struct making *m, int32_t workspace, int32_t cluster, int32_t model, bool shared)
{
	uint64_t at = (uint64_t)workspace * quota_book_cluster_count(m->b) + (uint64_t)cluster;

	return (at * quota_book_model_count(m->b) + (uint64_t)model) * 2 + shared;
}

static struct quota_figure *
figure_of(struct making *m, int32_t workspace, int32_t cluster, int32_t model, bool shared)
{
	uint64_t key = key_of(m, workspace, cluster, model, shared);
	size_t at;

	if (hash_find(&m->where, key, &at))
		return &m->f->at[at];
	array_room_by_count(m->f->at, m->f->count);
	hash_put(&m->where, key, m->f->count);
	m->f->at[m->f->count] = (struct quota_figure){.workspace = workspace,
	                                              .cluster = cluster,
	                                              .model = model,
	                                              .shared = shared,
	                                              .account = quota_account_at(quota_book_state(m->b), workspace,
	                                                                          cluster, model, shared)};
	return &m->f->at[m->f->count++];
}

/* A limit alone says nothing in the shared pool, where everybody has one. */
static bool
says_something(const struct quota_account_figures *a, bool shared)
{
	return a->reserved > 0 || a->committed > 0 || (a->limit != 0 && !shared);
}

static void
add_accounts(struct making *m)
{
	const struct quota_state *s = quota_book_state(m->b);

	for (int32_t w = 0; (size_t)w < quota_book_workspace_count(m->b); w++)
		for (int32_t c = 0; (size_t)c < quota_book_cluster_count(m->b); c++)
			for (int32_t k = 0; (size_t)k < quota_book_model_count(m->b); k++)
				for (int shared = 0; shared < 2; shared++) {
					struct quota_account_figures a = quota_account_at(s, w, c, k, shared == 1);

					if (says_something(&a, shared == 1))
						(void)figure_of(m, w, c, k, shared == 1);
				}
}

static void
add_queued(struct making *m)
{
	const struct quota_world *w = &m->saved.world;

	for (size_t i = 0; i < w->waiting_count; i++) {
		const struct quota_request *r = &w->waiting[i];
		const struct quota_shape *shape = r->shape != QUOTA_NONE ? &w->policy.shapes[r->shape] : NULL;

		if (shape != NULL && r->workspace != QUOTA_NONE && r->cluster != QUOTA_NONE)
			figure_of(m, r->workspace, r->cluster, shape->model, false)->queued += r->count * shape->units;
	}
}

/* Of the pool, whose reservations these are. */
static bool
is_in(const struct making *m, const struct quota_pool_figures *p, const struct quota_figure *f)
{
	return f->cluster == p->cluster && f->model == p->model &&
	       (f->shared ? p->tenant == QUOTA_NONE
	                  : p->tenant == m->saved.world.policy.workspaces[f->workspace].tenant);
}

static int64_t
may_lend(const struct quota_figure *f)
{
	return f->account.idle < f->account.lend ? f->account.idle : f->account.lend;
}

/* Rule 3, likewise by the running sum. */
static void
split_borrowed(struct making *m, const struct quota_pool_figures *p, int64_t lent)
{
	int64_t before = 0;

	for (size_t i = 0; i < m->f->count; i++) {
		struct quota_figure *f = &m->f->at[i];
		int64_t after = before + f->account.debt;

		if (!is_in(m, p, f) || p->debt == 0)
			continue;
		f->borrowed = (int64_t)((int128)lent * after / p->debt - (int128)lent * before / p->debt);
		f->on_demand = f->account.debt - f->borrowed;
		before = after;
	}
}

/* Rule 2: by the running sum, so that nothing is lost in rounding. */
static void
split_lent(struct making *m, const struct quota_pool_figures *p)
{
	int64_t lent = quota_pool_lent(p), all = 0, before = 0;

	for (size_t i = 0; i < m->f->count && lent > 0; i++)
		if (is_in(m, p, &m->f->at[i]))
			all += may_lend(&m->f->at[i]);
	if (lent > all)
		lent = all;
	for (size_t i = 0; i < m->f->count && lent > 0; i++) {
		int64_t after = before + may_lend(&m->f->at[i]);

		if (!is_in(m, p, &m->f->at[i]))
			continue;
		m->f->at[i].lent = (int64_t)((int128)lent * after / all - (int128)lent * before / all);
		before = after;
	}
	split_borrowed(m, p, lent);
}

static int
by_place(const void *a, const void *b)
{
	const struct quota_figure *x = a, *y = b;

	if (x->workspace != y->workspace)
		return x->workspace < y->workspace ? -1 : 1;
	if (x->cluster != y->cluster)
		return x->cluster < y->cluster ? -1 : 1;
	if (x->model != y->model)
		return x->model < y->model ? -1 : 1;
	return (int)x->shared - (int)y->shared;
}

void
quota_figures_make(const struct quota_book *b, struct quota_figures *ret)
{
	const struct quota_state *s = quota_book_state(b);
	struct making m = {.b = b, .f = ret};

	*ret = (struct quota_figures){0};
	quota_save(s, &m.saved);
	add_accounts(&m);
	add_queued(&m);
	for (size_t i = 0; i < quota_pool_count(s); i++) {
		struct quota_pool_figures p = quota_pool_at(s, i);

		split_lent(&m, &p);
	}
	if (ret->count > 1)
		qsort(ret->at, ret->count, sizeof(*ret->at), by_place);
	hash_fini(&m.where);
	quota_saved_fini(&m.saved);
}
