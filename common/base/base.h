/* common/base/base.h - ownership, checked allocation, background threads and the few macros every file uses. */
#ifndef TOLLGATE_BASE_H
#define TOLLGATE_BASE_H

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

__extension__ typedef __int128 int128;
__extension__ typedef unsigned __int128 uint128;

#define MUST_CHECK __attribute__((warn_unused_result))
/* The compiler moves paths that call it out of the hot code. */
#define SELDOM __attribute__((cold))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define ORDER(a, b) (((a) > (b)) - ((a) < (b))) /* as a comparison of qsort() gives it */

/* owned(thing) struct thing *t = NULL;  frees with thing_free() when t leaves its scope.
 * Ownership leaves only by take(t), which empties t. */
#define owned(name) __attribute__((cleanup(name##_freep)))
#define DEFINE_OWNED(name, type)                  \
	static inline void name##_freep(type **p) \
	{                                         \
		name##_free(*p);                  \
	}
/* in_place(thing) struct thing t;  runs thing_fini(&t) when t leaves its scope. */
#define in_place(name) __attribute__((cleanup(name##_fini)))
#define take(p)                             \
	__extension__({                     \
		__typeof__(p) taken_ = (p); \
		(p) = NULL;                 \
		taken_;                     \
	})

/* A broken promise of the program itself ends it, in release builds too. Never used on bytes, rows or driver values. */
#define ASSERT(cond) ((cond) ? (void)0 : assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void assert_failed(const char *cond, const char *file, int line);

/* Memory. These never return NULL: running out of memory ends the program with a sentence.
 * Every size that came from outside is capped by the caller first. */
void *mem_alloc(size_t size);               /* zeroed */
void *mem_array(size_t count, size_t size); /* zeroed; the product is checked */
void *mem_grow(void *p, size_t count, size_t size);
/* Room for one more element behind `count` of them: the array doubles when it is full. `cap` is how many it has room for. */
#define array_room(array, count, cap) \
	((count) < (cap) ? (void)0 : (void)((array) = mem_double((array), &(cap), sizeof(*(array)))))
void *mem_double(void *p, size_t *cap, size_t size);
/* The same for an array that only grows, without a `cap`: it has room for the next power of two. */
#define array_room_by_count(array, count) \
	((((count) & ((count)-1)) != 0)   \
	         ? (void)0                \
	         : (void)((array) = mem_grow((array), (count) == 0 ? 1 : 2 * (count), sizeof(*(array)))))
char *mem_strdup(const char *s); /* NULL gives NULL */
char *mem_strndup(const char *s, size_t n);
char *mem_printf(const char *fmt, ...) PRINTF_LIKE(1, 2);
void mem_free(void *p);
/* Returns freed memory to the system. Called after large work, because malloc keeps it per thread. */
void mem_give_back(void);

/* Raises the nice value of the calling thread and requests short time slices, so that other threads that wake up on its
 * processor run soon. Kernels before 6.12 ignore the slice. */
void thread_gives_way(int nice);

static inline void
mem_freep(void *p)
{
	mem_free(*(void **)p);
}

#endif
