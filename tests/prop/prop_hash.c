/* tests/prop/prop_hash.c - the hash table answers as a plain list of keys and positions does. */
#include <string.h>

#include "common/base/hash.h"
#include "tests/support/harness/prop.h"

#define STEPS_MAX 400u

enum what { PUT, ADD, REMOVE, MOVE, CLEAR, COPY, WHATS };

struct step {
	enum what what;
	uint64_t key;
	size_t which; /* REMOVE, MOVE: of the entries in the list */
};
struct steps {
	struct step at[STEPS_MAX];
	size_t count;
};

struct entry {
	uint64_t key;
	size_t position;
};
struct list {
	struct entry at[STEPS_MAX];
	size_t count;
};

static void
generate(struct prop_source *s, void *c)
{
	struct steps *steps = c;
	uint64_t keys = prop_bool(s) ? 8 : 200;

	steps->count = (size_t)prop_u64(s, STEPS_MAX);
	for (size_t i = 0; i < steps->count; i++) {
		uint64_t what = prop_u64(s, 99);

		steps->at[i] = (struct step){.what = what < 50   ? ADD
		                                     : what < 65 ? PUT
		                                     : what < 88 ? REMOVE
		                                     : what < 96 ? MOVE
		                                     : what < 99 ? COPY
		                                                 : CLEAR,
		                             .key = prop_u64(s, keys) << prop_u64(s, 40),
		                             .which = (size_t)prop_u64(s, STEPS_MAX)};
	}
}

static void
describe(const void *c, struct buf *out)
{
	static const char *const names[WHATS] = {"put", "add", "remove", "move", "clear", "copy"};
	const struct steps *steps = c;

	for (size_t i = 0; i < steps->count; i++)
		buf_printf(out, "%s %" PRIu64 " %zu\n", names[steps->at[i].what], steps->at[i].key, steps->at[i].which);
}

static size_t
count_in_list(const struct list *l, uint64_t key, size_t position)
{
	size_t n = 0;

	for (size_t i = 0; i < l->count; i++)
		n += l->at[i].key == key && (position == HASH_NONE || l->at[i].position == position);
	return n;
}

/* hash_put() is for keys that have one position at most. */
static void
put(struct hash *h, struct list *l, uint64_t key, size_t position)
{
	size_t i = 0;

	if (count_in_list(l, key, HASH_NONE) > 1)
		return;
	while (i < l->count && l->at[i].key != key)
		i++;
	l->at[i] = (struct entry){.key = key, .position = position};
	l->count += i == l->count;
	hash_put(h, key, position);
}

static void
take_step(struct hash *h, struct list *l, const struct step *s, size_t position)
{
	struct entry *e = l->count > 0 ? &l->at[s->which % l->count] : NULL;
	struct hash copy = {0};

	if (s->what == PUT) {
		put(h, l, s->key, position);
	} else if (s->what == ADD) {
		l->at[l->count++] = (struct entry){.key = s->key, .position = position};
		hash_add(h, s->key, position);
	} else if (s->what == REMOVE && e) {
		hash_remove(h, e->key, e->position);
		*e = l->at[--l->count];
	} else if (s->what == MOVE && e) {
		hash_move(h, e->key, e->position, position);
		e->position = position;
	} else if (s->what == CLEAR) {
		hash_clear(h);
		l->count = 0;
	} else if (s->what == COPY) {
		hash_copy(&copy, h);
		hash_fini(h);
		*h = copy;
	}
}

static bool
is_same(const struct hash *h, const struct list *l, uint64_t key, struct buf *why)
{
	size_t slot = 0, found = 0, one = hash_get(h, key);

	for (size_t at = hash_first(h, key, &slot); at != HASH_NONE; at = hash_next(h, key, &slot), found++)
		if (count_in_list(l, key, at) != 1)
			buf_printf(why, "key %" PRIu64 " has the position %zu; ", key, at);
	if (found != count_in_list(l, key, HASH_NONE))
		buf_printf(why, "key %" PRIu64 " has %zu positions, not %zu; ", key, found,
		           count_in_list(l, key, HASH_NONE));
	if (one == HASH_NONE ? found != 0 : count_in_list(l, key, one) != 1)
		buf_printf(why, "key %" PRIu64 " is said to be at %zu; ", key, one);
	if (h->count != l->count || h->count * 2 > h->cap)
		buf_printf(why, "%zu entries of %zu, in %zu slots", h->count, l->count, h->cap);
	return why->len == 0;
}

static bool
holds(const void *c, struct buf *why)
{
	const struct steps *steps = c;
	in_place(hash) struct hash h = {0};
	struct list l = {.count = 0};

	for (size_t i = 0; i < steps->count; i++) {
		take_step(&h, &l, &steps->at[i], i);
		if (!is_same(&h, &l, steps->at[i].key, why))
			return false;
	}
	for (size_t i = 0; i < l.count; i++)
		if (!is_same(&h, &l, l.at[i].key, why))
			return false;
	return is_same(&h, &l, UINT64_MAX, why);
}

/* ---- hashes ---- */

struct texts {
	unsigned char a[40], b[40];
	size_t a_len, b_len;
};

static void
generate_texts(struct prop_source *s, void *c)
{
	struct texts *t = c;

	t->a_len = prop_index(s, sizeof(t->a));
	t->b_len = prop_bool(s) ? t->a_len : prop_index(s, sizeof(t->b));
	prop_bytes(s, t->a, t->a_len);
	memcpy(t->b, t->a, sizeof(t->b));
	for (uint64_t changes = prop_u64(s, 2); changes > 0 && t->b_len > 0; changes--)
		t->b[prop_index(s, t->b_len)] ^= (unsigned char)prop_u64(s, 255);
}

static void
describe_texts(const void *c, struct buf *out)
{
	const struct texts *t = c;

	for (size_t i = 0; i < t->a_len; i++)
		buf_printf(out, "%02x", t->a[i]);
	buf_char(out, ' ');
	for (size_t i = 0; i < t->b_len; i++)
		buf_printf(out, "%02x", t->b[i]);
}

static bool
tells_apart(const void *c, struct buf *why)
{
	const struct texts *t = c;
	bool same = t->a_len == t->b_len && memcmp(t->a, t->b, t->a_len) == 0;
	uint64_t a = hash_bytes(HASH_START, t->a, t->a_len), b = hash_bytes(HASH_START, t->b, t->b_len);

	if ((a == b) != same)
		buf_printf(why, "hashes %" PRIx64 " and %" PRIx64, a, b);
	return (a == b) == same;
}

int
main(void)
{
	const struct prop_test tests[] = {
		{.name = "a table has the positions that a list of all steps has",
	         .size = sizeof(struct steps),
	         .generate = generate,
	         .holds = holds,
	         .describe = describe},
		{.name = "contents have one hash if and only if they are equal",
	         .size = sizeof(struct texts),
	         .generate = generate_texts,
	         .holds = tells_apart,
	         .describe = describe_texts},
	};

	return prop_main("prop_hash", tests, ARRAY_LEN(tests));
}
