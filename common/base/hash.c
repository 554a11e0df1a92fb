/* common/base/hash.c - the hash table, and the hash of texts and numbers. */
#include "common/base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define FIRST_CAP 64u /* a power of two */

struct hash_slot {
	uint64_t key;
	size_t position_plus_1; /* 0: free */
};

/* ---- random numbers of the process ---- */

#define PRIME ((UINT64_C(1) << 61) - 1)

static struct {
	uint64_t mask, factor; /* of a key's place; the factor is odd */
	uint64_t point;        /* of a content's hash; 2^32 to PRIME - 1 */
} seed;

/* Before main(), so that no thread finds it unset. */
static __attribute__((constructor)) void
seed_init(void)
{
	if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed)) {
		fputs("cannot read random numbers for hash tables\n", stderr);
		abort();
	}
	seed.factor |= 1;
	seed.point = (UINT64_C(1) << 32) + seed.point % (PRIME - (UINT64_C(1) << 32));
}

/* ---- hashes of contents ---- */

/* The contents are a sequence of words below 2^60, which are the coefficients of a polynomial modulo PRIME; the hash is its value at the
 * random point. Two sequences of at most n words meet for at most n of the 2^61 points. Values are not reduced fully: they stay below
 * 2^61 + 8, and equal sequences give equal values. */
static uint64_t
add_word(uint64_t h, uint64_t word)
{
	uint128 product = (uint128)(h + word) * seed.point;
	uint64_t sum = ((uint64_t)product & PRIME) + (uint64_t)(product >> 61);

	return (sum & PRIME) + (sum >> 61);
}

/* Seven bytes are a word; the last word has six at most and is marked by their number, so that no sequence is the start of another. */
#define WORD_BYTES 7u

uint64_t
hash_bytes(uint64_t before, const void *bytes, size_t n)
{
	const char *at = bytes;
	uint64_t h = before, word = 0;

	for (; n > WORD_BYTES; n -= WORD_BYTES, at += WORD_BYTES) {
		memcpy(&word, at, sizeof(word));
		h = add_word(h, word & ((UINT64_C(1) << 56) - 1));
	}
	if (n == WORD_BYTES) {
		word = 0;
		memcpy(&word, at, WORD_BYTES);
		h = add_word(h, word);
		n = 0;
	}
	word = 0;
	memcpy(&word, at, n);
	return add_word(h, word | (n + 1) << 56);
}

uint64_t
hash_text(uint64_t before, const char *text)
{
	return hash_bytes(before, text, strlen(text));
}

uint64_t
hash_number(uint64_t before, uint64_t number)
{
	return add_word(add_word(before, number & UINT32_MAX), number >> 32);
}

/* ---- the table ---- */

void
hash_fini(struct hash *h)
{
	mem_free(h->slots);
	*h = (struct hash){0};
}

size_t
hash_memory(const struct hash *h)
{
	return h->cap * sizeof(*h->slots);
}

void
hash_clear(struct hash *h)
{
	if (h->count > 0)
		memset(h->slots, 0, h->cap * sizeof(*h->slots));
	h->count = 0;
}

void
hash_copy(struct hash *to, const struct hash *from)
{
	*to = *from;
	if (from->slots == NULL)
		return;
	to->slots = mem_array(from->cap, sizeof(*to->slots));
	memcpy(to->slots, from->slots, from->cap * sizeof(*to->slots));
}

/* Neighbouring numbers, such as PIDs, land far apart. */
static size_t
home_of(const struct hash *h, uint64_t key)
{
	uint128 product = (uint128)(key ^ seed.mask) * seed.factor;

	return ((size_t)product ^ (size_t)(product >> 64)) & (h->cap - 1);
}

/* The first slot from i on that has the key, or the free one before which it would be. The table is never full. */
static size_t
seek(const struct hash *h, uint64_t key, size_t i)
{
	while (h->slots[i].position_plus_1 != 0 && h->slots[i].key != key)
		i = (i + 1) & (h->cap - 1);
	return i;
}

size_t
hash_get(const struct hash *h, uint64_t key)
{
	if (h->count == 0)
		return HASH_NONE;
	return h->slots[seek(h, key, home_of(h, key))].position_plus_1 - 1; /* 0 - 1 is HASH_NONE */
}

size_t
hash_first(const struct hash *h, uint64_t key, size_t *slot)
{
	if (h->count == 0)
		return HASH_NONE;
	*slot = seek(h, key, home_of(h, key));
	return h->slots[*slot].position_plus_1 - 1;
}

size_t
hash_next(const struct hash *h, uint64_t key, size_t *slot)
{
	*slot = seek(h, key, (*slot + 1) & (h->cap - 1));
	return h->slots[*slot].position_plus_1 - 1;
}

static size_t
free_slot(const struct hash *h, uint64_t key)
{
	size_t i = home_of(h, key);

	while (h->slots[i].position_plus_1 != 0)
		i = (i + 1) & (h->cap - 1);
	return i;
}

/* For one entry more. */
static void
make_room(struct hash *h)
{
	struct hash larger = {.cap = h->cap != 0 ? h->cap * 2 : FIRST_CAP, .count = h->count};

	if ((h->count + 1) * 2 <= h->cap)
		return;
	larger.slots = mem_array(larger.cap, sizeof(*larger.slots));
	for (size_t i = 0; i < h->cap; i++)
		if (h->slots[i].position_plus_1 != 0)
			larger.slots[free_slot(&larger, h->slots[i].key)] = h->slots[i];
	mem_free(h->slots);
	*h = larger;
}

void
hash_put(struct hash *h, uint64_t key, size_t position)
{
	struct hash_slot *slot;

	ASSERT(position < HASH_NONE);
	make_room(h);
	slot = &h->slots[seek(h, key, home_of(h, key))];
	h->count += slot->position_plus_1 == 0;
	*slot = (struct hash_slot){.key = key, .position_plus_1 = position + 1};
}

void
hash_add(struct hash *h, uint64_t key, size_t position)
{
	ASSERT(position < HASH_NONE);
	make_room(h);
	h->slots[free_slot(h, key)] = (struct hash_slot){.key = key, .position_plus_1 = position + 1};
	h->count++;
}

static size_t
slot_of(const struct hash *h, uint64_t key, size_t position)
{
	size_t slot = 0, at = hash_first(h, key, &slot);

	while (at != position) {
		ASSERT(at != HASH_NONE);
		at = hash_next(h, key, &slot);
	}
	return slot;
}

void
hash_move(struct hash *h, uint64_t key, size_t from, size_t to)
{
	ASSERT(to < HASH_NONE);
	h->slots[slot_of(h, key, from)].position_plus_1 = to + 1;
}

/* The entries that follow without a gap move up, so that no search meets a free slot before its key. */
void
hash_remove(struct hash *h, uint64_t key, size_t position)
{
	size_t mask = h->cap - 1, hole;

	ASSERT(position < HASH_NONE);
	hole = slot_of(h, key, position);
	for (size_t i = (hole + 1) & mask; h->slots[i].position_plus_1 != 0; i = (i + 1) & mask) {
		if (((i - home_of(h, h->slots[i].key)) & mask) < ((i - hole) & mask))
			continue;
		h->slots[hole] = h->slots[i];
		hole = i;
	}
	h->slots[hole].position_plus_1 = 0;
	h->count--;
}

size_t
hash_find_text(const struct hash *h, const void *entries, size_t size, const char *text)
{
	uint64_t key = hash_text(HASH_START, text);
	size_t slot, at;

	for (at = hash_first(h, key, &slot); at != HASH_NONE; at = hash_next(h, key, &slot))
		if (strcmp((const char *)entries + at * size, text) == 0)
			break;
	return at;
}
