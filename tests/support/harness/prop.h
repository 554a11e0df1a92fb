/* tests/support/harness/prop.h - property tests: random cases that are printed small when they fail.
 *
 * A generator draws whole numbers from a source and builds a case from them. The draws are recorded, so a failing case
 * can be made smaller without knowing what it is: draws are deleted or lowered and the generator runs again on what is
 * left. Generators therefore put the simple at 0: the first of several choices, the empty list, the small number.
 *
 * Every run prints its seed. TOLLGATE_PROP_SEED sets it, TOLLGATE_PROP_CASES the number of cases per property. */
#ifndef TOLLGATE_TESTS_PROP_H
#define TOLLGATE_TESTS_PROP_H

#include "common/base/buf.h"

struct prop_source;

uint64_t prop_u64(struct prop_source *s, uint64_t max); /* 0 .. max, with a leaning to the ends and to small numbers */
int64_t prop_i64(struct prop_source *s, int64_t least, int64_t most); /* simplest: 0, or the end nearest to it */
int128 prop_i128(struct prop_source *s, int bits); /* -(2^bits - 1) .. 2^bits - 1, bits at most 126 */
bool prop_bool(struct prop_source *s);
size_t prop_index(struct prop_source *s, size_t count); /* 0 .. count - 1 */
void prop_bytes(struct prop_source *s, void *out, size_t n);

struct prop_test {
	const char *name; /* a sentence: what always holds */
	size_t size;      /* of a case, which is zeroed before generate */
	void (*generate)(struct prop_source *s, void *c);
	bool (*holds)(const void *c, struct buf *why); /* why: what was found instead */
	void (*describe)(const void *c, struct buf *out);
	void (*fini)(void *c); /* NULL when a case owns nothing */
};

/* False when some case failed; the report then has the smallest one found, its seed and what was found instead. */
MUST_CHECK bool prop_run(const struct prop_test *t, uint64_t seed, size_t cases, struct buf *report);

/* All properties of a program, with seed and cases from the environment; writes TAP. The exit code of main. */
int prop_main(const char *program, const struct prop_test *tests, size_t count);

#endif
