/* tests/prop/prop_quota_book.c - the quota book beside the engine it is about, over random worlds and events. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/quota/book/quota_book.h"
#include "tests/support/quota/quotatext.h"
#include "tests/support/quota/quotaworld.h"

#define TEXT_BYTES (16u << 20)
#define OPEN_EVERY 16

static bool
step_text(struct quota_book *b, int64_t now_ns, const struct buf *text, struct buf *ret_outcome, struct buf *why)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	struct err err = {0};

	if (!quota_book_step(b, now_ns, buf_text(text), text->len, &o, &err)) {
		buf_printf(why, "%s of %.300s", err.text, buf_text(text));
		return false;
	}
	if (ret_outcome)
		quota_book_outcome_json(b, o, ret_outcome);
	return true;
}

/* The world as a book: from its policy and its nodes, by events. */
static bool
book_of(const struct quota_state *s, struct quota_book **ret, struct buf *why)
{
	in_place(buf) struct buf policy, nodes;
	struct quota_saved saved;
	struct err err = {0};
	bool ok;

	buf_init(&policy, TEXT_BYTES);
	buf_init(&nodes, TEXT_BYTES);
	quota_save(s, &saved);
	quotatext_policy(&saved.world.policy, &policy);
	quotatext_nodes(&saved.world, &nodes);
	quota_saved_fini(&saved);
	ok = quota_book_open("{}", 2, ret, &err);
	if (!ok)
		buf_str(why, err.text);
	return ok && step_text(*ret, 0, &policy, NULL, why) && step_text(*ret, 0, &nodes, NULL, why);
}

/* Opened from its text a book writes the same text; from here on the new one is used. */
static bool
open_again(struct quota_book **b, struct buf *why)
{
	in_place(buf) struct buf first, second;
	struct quota_book *opened = NULL;
	struct err err = {0};

	buf_init(&first, TEXT_BYTES);
	buf_init(&second, TEXT_BYTES);
	quota_book_write(*b, &first);
	if (!quota_book_open(buf_text(&first), first.len, &opened, &err)) {
		buf_printf(why, "it cannot be opened: %s", err.text);
		return false;
	}
	quota_book_free(*b);
	*b = opened;
	quota_book_write(*b, &second);
	if (strcmp(buf_text(&first), buf_text(&second)) == 0)
		return true;
	buf_printf(why, "written %s\nwritten again %s", buf_text(&first), buf_text(&second));
	return false;
}

/* Parts of another shape than the lease's cannot be said in a text. */
static void
keep_sayable(const struct quota_world *now, struct quota_event *e)
{
	for (size_t i = 0; i < now->lease_count; i++)
		if (e->part_count > 0 && strcmp(now->leases[i].id, e->id) == 0 &&
		    now->leases[i].shape != e->parts[0].shape)
			e->part_count = 0;
}

static bool
same_step(struct quota_state *s, struct quota_book *b, const struct quotaworld *k, size_t i, struct buf *why)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	in_place(buf) struct buf text, one, other;
	struct quotaworld_event drawn;
	struct quota_saved saved;
	struct err err = {0};
	bool ok;

	buf_init(&text, TEXT_BYTES);
	buf_init(&one, TEXT_BYTES);
	buf_init(&other, TEXT_BYTES);
	quota_save(s, &saved);
	(void)quotaworld_event(k, i, &saved.world, &drawn);
	keep_sayable(&saved.world, &drawn.event);
	quotatext_event(&saved.world, &drawn.event, &text);
	ok = quota_step(s, drawn.now_ns, &drawn.event, &o, &err);
	quota_saved_fini(&saved);
	if (!ok) {
		buf_printf(why, "event %zu: %s", i, err.text);
		return false;
	}
	quota_book_outcome_json(b, o, &one);
	if (!step_text(b, drawn.now_ns, &text, &other, why))
		return false;
	if (strcmp(buf_text(&one), buf_text(&other)) == 0)
		return true;
	buf_printf(why, "event %zu, %s\nthe engine: %s\nthe book: %s", i, buf_text(&text), buf_text(&one),
	           buf_text(&other));
	return false;
}

static bool
texts_are_the_engine(const void *c, struct buf *why)
{
	const struct quotaworld *k = c;
	owned(quota) struct quota_state *s = NULL;
	owned(quota_book) struct quota_book *b = NULL;
	struct err err = {0};

	if (!quotaworld_load(k, &s, &err)) {
		buf_str(why, err.text);
		return false;
	}
	if (!book_of(s, &b, why))
		return false;
	for (size_t i = 0; i < k->event_count; i++) {
		if (!same_step(s, b, k, i, why))
			return false;
		if (i % OPEN_EVERY == 0 && !open_again(&b, why))
			return false;
	}
	return open_again(&b, why);
}

/* What was not changed comes again and changes nothing; what is tried changes nothing. */
static bool
nothing_new_changes_nothing(const void *c, struct buf *why)
{
	const struct quotaworld *k = c;
	owned(quota) struct quota_state *s = NULL;
	owned(quota_book) struct quota_book *b = NULL;
	owned(quota_outcome) struct quota_outcome *o = NULL;
	in_place(buf) struct buf before, after, nodes;
	struct quota_saved saved;
	struct err err = {0};
	int64_t leased = 0, again = 0;

	buf_init(&before, TEXT_BYTES);
	buf_init(&after, TEXT_BYTES);
	buf_init(&nodes, TEXT_BYTES);
	if (!quotaworld_load(k, &s, &err) || !book_of(s, &b, why))
		return false;
	for (size_t i = 0; i < k->event_count && i < 100; i++)
		if (!same_step(s, b, k, i, why))
			return false;
	quota_book_write(b, &before);
	quota_save(s, &saved);
	quotatext_nodes(&saved.world, &nodes);
	quota_saved_fini(&saved);
	if (!quota_book_try(b, 0, buf_text(&nodes), nodes.len, &o, &err)) {
		buf_str(why, err.text);
		return false;
	}
	quota_book_write(b, &after);
	if (strcmp(buf_text(&before), buf_text(&after)) != 0) {
		buf_str(why, "what was tried changed the book");
		return false;
	}
	for (size_t i = 0; i < quota_pool_count(s); i++)
		leased += quota_pool_at(s, i).leased;
	if (!step_text(b, 0, &nodes, NULL, why))
		return false;
	for (size_t i = 0; i < quota_pool_count(quota_book_state(b)); i++)
		again += quota_pool_at(quota_book_state(b), i).leased;
	if (leased > again)
		buf_printf(why, "leased %" PRId64 ", and %" PRId64 " after the same inventory", leased, again);
	return leased <= again && open_again(&b, why);
}

/* A thousand events each, and each is a text twice. */
#define CASES "20"

int
main(void)
{
	static const struct prop_test tests[] = {
		{"events as texts do what the events do, and a book opened from its text goes on like it",
	         sizeof(struct quotaworld), quotaworld_generate, texts_are_the_engine, quotaworld_describe, NULL},
		{"an inventory that was known changes nothing that is leased, and a try changes nothing",
	         sizeof(struct quotaworld), quotaworld_generate, nothing_new_changes_nothing, quotaworld_describe,
	         NULL},
	};

	ASSERT(setenv("TOLLGATE_PROP_CASES", CASES, 0) == 0);
	return prop_main("prop_quota_book", tests, ARRAY_LEN(tests));
}
