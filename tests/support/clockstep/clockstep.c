/* tests/support/clockstep/clockstep.c - a library to preload: the wall clock of a process and its children, off by as many nanoseconds as a
 * file says, so that a test sets the clock of a program that knows nothing of it. Clocks that nobody can set are as they are. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S INT64_C(1000000000)

static const _Atomic int64_t *offset_ns; /* NULL: none is asked for */

__attribute__((constructor)) static void
open_offset(void)
{
	const char *path = getenv("TOLLGATE_CLOCKSTEP");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *at;

	if (fd < 0)
		return;
	at = mmap(NULL, sizeof(*offset_ns), PROT_READ, MAP_SHARED, fd, 0);
	if (at != MAP_FAILED)
		offset_ns = at;
	close(fd);
}

/* Under libc's names, for who is linked with them. */
int stepped_gettime(clockid_t id, struct timespec *ts) __asm__("clock_gettime");
int stepped_timeofday(struct timeval *tv, void *zone) __asm__("gettimeofday");
time_t stepped_time(time_t *ret) __asm__("time");

int
stepped_gettime(clockid_t id, struct timespec *ts)
{
	long rc = syscall(SYS_clock_gettime, id, ts);
	int64_t ns;

	if (rc != 0 || !offset_ns || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
		return (int)rc;
	ns = ts->tv_sec * NS_PER_S + ts->tv_nsec + atomic_load(offset_ns);
	ts->tv_sec = ns / NS_PER_S;
	ts->tv_nsec = ns % NS_PER_S;
	return 0;
}

int
stepped_timeofday(struct timeval *tv, void *zone)
{
	struct timespec ts = {0};
	int rc = stepped_gettime(CLOCK_REALTIME, &ts);

	(void)zone;
	*tv = (struct timeval){.tv_sec = ts.tv_sec, .tv_usec = ts.tv_nsec / 1000};
	return rc;
}

time_t
stepped_time(time_t *ret)
{
	struct timespec ts = {0};

	(void)stepped_gettime(CLOCK_REALTIME, &ts);
	if (ret)
		*ret = ts.tv_sec;
	return ts.tv_sec;
}
