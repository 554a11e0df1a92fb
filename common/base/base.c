/* common/base/base.c - checked allocation, background threads and the end of a program that broke its own promise. */
#include "common/base/base.h"

#include <linux/sched.h>
#include <linux/sched/types.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NICE_MAX 19
#define SHORT_TURN_NS 100000 /* the shortest that Linux grants */

/* Straight to the descriptor: stdio may be what is broken, and its lock may be held. */
static _Noreturn void
die(const char *text, size_t len)
{
	ssize_t ignored = write(STDERR_FILENO, text, len);

	(void)ignored;
	abort();
}

_Noreturn void
assert_failed(const char *cond, const char *file, int line)
{
	char text[512];
	int len = snprintf(text, sizeof(text), "%s:%d: broken promise: %s\n", file, line, cond);

	if (len < 0)
		len = 0;
	if ((size_t)len >= sizeof(text))
		len = (int)sizeof(text) - 1;
	die(text, (size_t)len);
}

static _Noreturn void
out_of_memory(void)
{
	static const char text[] = "out of memory: the program ends here\n";

	die(text, sizeof(text) - 1);
}

void *
mem_alloc(size_t size)
{
	return mem_array(1, size);
}

/* At least one byte, so that NULL always means failure. */
void *
mem_array(size_t count, size_t size)
{
	bool empty = count == 0 || size == 0;
	void *p = empty ? calloc(1, 1) : calloc(count, size);

	if (!p)
		out_of_memory();
	return p;
}

void *
mem_grow(void *p, size_t count, size_t size)
{
	bool empty = count == 0 || size == 0;
	void *grown = empty ? realloc(p, 1) : reallocarray(p, count, size);

	if (!grown)
		out_of_memory();
	return grown;
}

void *
mem_double(void *p, size_t *cap, size_t size)
{
	*cap = *cap == 0 ? 16 : 2 * *cap;
	return mem_grow(p, *cap, size);
}

char *
mem_strdup(const char *s)
{
	return s ? mem_strndup(s, strlen(s)) : NULL;
}

char *
mem_strndup(const char *s, size_t n)
{
	size_t len;
	char *copy;

	if (!s)
		return NULL;
	len = strnlen(s, n);
	copy = malloc(len + 1);
	if (!copy)
		out_of_memory();
	memcpy(copy, s, len);
	copy[len] = '\0';
	return copy;
}

char *
mem_printf(const char *fmt, ...)
{
	char *text = NULL;
	va_list args;
	int len;

	va_start(args, fmt);
	len = vasprintf(&text, fmt, args);
	va_end(args);
	if (len < 0 || !text)
		out_of_memory();
	return text;
}

void
mem_free(void *p)
{
	free(p);
}

void
mem_give_back(void)
{
	(void)malloc_trim(0);
}

void
thread_gives_way(int nice)
{
	int now = getpriority(PRIO_PROCESS, (id_t)gettid());
	struct sched_attr a = {.size = sizeof(a), .sched_policy = SCHED_NORMAL, .sched_runtime = SHORT_TURN_NS};

	a.sched_nice = now + nice < NICE_MAX ? now + nice : NICE_MAX;
	/* glibc has no function for it before 2.41 */
	if (syscall(SYS_sched_setattr, 0, &a, 0u) != 0)
		(void)setpriority(PRIO_PROCESS, (id_t)gettid(), a.sched_nice);
}
