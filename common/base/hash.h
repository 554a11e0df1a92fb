/* common/base/hash.h - the hash table: 64-bit keys to positions in an array of the caller.
 *
 *  1. Where the key is a number, each key has one position: hash_put(), hash_get().
 *  2. Where the key is hash_text() or the like of what an entry holds, entries with different contents may have one key: hash_add()
 *     keeps all of them, and the caller compares those that hash_first() and hash_next() give.
 *  3. The hash of a text, and the place of a key in the table, depend on random numbers of the process, so that nobody who chooses
 *     texts or numbers can make them meet. They are never written, sent or put in order: entries are listed from the caller's array.
 *  4. Half of the table stays free. It grows with the entries, whose number the caller limits, and does not shrink. */
#ifndef TOLLGATE_HASH_H
#define TOLLGATE_HASH_H

#include "common/base/base.h"

/* in_place(hash) struct hash h = {0}; */
struct hash {
	struct hash_slot *slots; /* NULL until the first entry */
	size_t cap, count;
};

#define HASH_NONE SIZE_MAX

void hash_fini(struct hash *h);
void hash_clear(struct hash *h);                          /* keeps the memory */
size_t hash_memory(const struct hash *h);                 /* bytes that it holds */
void hash_copy(struct hash *to, const struct hash *from); /* `to` is empty */

/* ---- one position for each key ---- */

/* The position of the key, or HASH_NONE. */
size_t hash_get(const struct hash *h, uint64_t key);
static inline bool
hash_find(const struct hash *h, uint64_t key, size_t *ret_position)
{
	size_t at = hash_get(h, key);

	if (at == HASH_NONE)
		return false;
	*ret_position = at;
	return true;
}
void hash_put(struct hash *h, uint64_t key, size_t position); /* replaces; position < HASH_NONE */

/* ---- several positions for a key ---- */

/* for (at = hash_first(h, key, &slot); at != HASH_NONE; at = hash_next(h, key, &slot)). The table must not change meanwhile. */
size_t hash_first(const struct hash *h, uint64_t key, size_t *slot);
size_t hash_next(const struct hash *h, uint64_t key, size_t *slot);
void hash_add(struct hash *h, uint64_t key, size_t position);
/* The key must have the position. */
void hash_remove(struct hash *h, uint64_t key, size_t position);
void hash_move(struct hash *h, uint64_t key, size_t from, size_t to);

/* Entries that are structs of `size` bytes whose first member is their text, an array of characters. The key is hash_text(HASH_START, text). */
size_t hash_find_text(const struct hash *h, const void *entries, size_t size, const char *text);

/* Entries that are objects of their own. The same address may not be added twice. NULL: none, or no more. */
static inline void *
hash_first_object(const struct hash *h, uint64_t key, size_t *slot)
{
	size_t at = hash_first(h, key, slot);

	return at == HASH_NONE ? NULL : (void *)(uintptr_t)at;
}
static inline void *
hash_next_object(const struct hash *h, uint64_t key, size_t *slot)
{
	size_t at = hash_next(h, key, slot);

	return at == HASH_NONE ? NULL : (void *)(uintptr_t)at;
}
static inline void
hash_add_object(struct hash *h, uint64_t key, const void *object)
{
	hash_add(h, key, (uintptr_t)object);
}
static inline void
hash_remove_object(struct hash *h, uint64_t key, const void *object)
{
	hash_remove(h, key, (uintptr_t)object);
}

/* ---- keys of contents ---- */

/* The hash of several things: hash_number(hash_text(HASH_START, name), id). Texts next to each other stay apart: "ab", "c" is not "a", "bc". */
#define HASH_START UINT64_C(1)
uint64_t hash_bytes(uint64_t before, const void *bytes, size_t n);
uint64_t hash_text(uint64_t before, const char *text);
uint64_t hash_number(uint64_t before, uint64_t number);

#endif
