/* tests/support/dcgmsim/dcgmsim_control.c - the clock, which is the NVML simulator's where that is loaded, and calls that do not return.
 *
 * A hanging call returns when the scenario's `until` has come, when tollgate_sim_release is called, or while the file named by
 * TOLLGATE_SIM_RELEASE exists. */
#include "tests/support/dcgmsim/dcgmsim.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/time.h"

#define LOOK_NS (5 * NS_PER_MS) /* between two looks at the clock and the file */

/* Lets the calls go that hang now; how many do. */
EXPORTED void tollgate_sim_release(void);
EXPORTED unsigned tollgate_sim_hanging(void);
/* How many use the library: dcgmInit without dcgmShutdown. */
EXPORTED unsigned tollgate_sim_users(void);

void
dsim_begin_time(void)
{
	const char *text = getenv("TOLLGATE_SIM_T0_NS");

	if (text && *text)
		dsim.t0_ns = strtoll(text, NULL, 10);
	else if (!dsim.t0_ns)
		dsim.t0_ns = time_boot_ns();
	dsim.now_ns = dsim_clock_ns();
}

/* One clock for both: the other library is found by its name if the process has it, and not loaded by this. */
int64_t
dsim_clock_ns(void)
{
	void *other = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
	void *symbol = other ? dlsym(other, "tollgate_sim_clock_ns") : NULL;
	int64_t (*clock_of_other)(void), t_ns = -1;

	if (symbol) {
		memcpy(&clock_of_other, &symbol, sizeof(symbol));
		t_ns = clock_of_other();
	}
	if (other)
		dlclose(other);
	if (t_ns < 0)
		t_ns = time_boot_ns() - dsim.t0_ns;
	return t_ns < 0 ? 0 : t_ns;
}

void
tollgate_sim_release(void)
{
	pthread_mutex_lock(&dsim.lock);
	dsim.releases++;
	pthread_cond_broadcast(&dsim.changed);
	pthread_mutex_unlock(&dsim.lock);
}

unsigned
tollgate_sim_hanging(void)
{
	unsigned hanging;

	pthread_mutex_lock(&dsim.lock);
	hanging = dsim.hanging;
	pthread_mutex_unlock(&dsim.lock);
	return hanging;
}

unsigned
tollgate_sim_users(void)
{
	unsigned users;

	pthread_mutex_lock(&dsim.lock);
	users = dsim.users;
	pthread_mutex_unlock(&dsim.lock);
	return users;
}

static void
wait_a_little(void)
{
	struct timespec at;

	clock_gettime(CLOCK_REALTIME, &at);
	at.tv_nsec += LOOK_NS;
	if (at.tv_nsec >= NS_PER_S) {
		at.tv_nsec -= NS_PER_S;
		at.tv_sec++;
	}
	pthread_cond_timedwait(&dsim.changed, &dsim.lock, &at);
}

static void
hang(int64_t until_ns)
{
	const char *path = getenv("TOLLGATE_SIM_RELEASE");
	uint64_t releases = dsim.releases;

	dsim.hanging++;
	while (dsim.releases == releases && dsim_clock_ns() < until_ns && !(path && *path && access(path, F_OK) == 0))
		wait_a_little();
	dsim.hanging--;
}

static void
sleep_without_lock(int64_t ns)
{
	struct timespec left = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};

	pthread_mutex_unlock(&dsim.lock);
	while (nanosleep(&left, &left) != 0 && errno == EINTR)
		;
	pthread_mutex_lock(&dsim.lock);
}

/* DCGM's codes are negative, and the scenario's numbers are not. */
int
dsim_misbehave(const char *function)
{
	for (size_t i = 0; dsim.sc && i < dsim.sc->call_count; i++) {
		struct sim_call c = dsim.sc->calls[i]; /* a copy: the scenario may be gone after the wait */

		if (dsim.now_ns < c.at_ns || dsim.now_ns >= c.until_ns || strcmp(c.name, function) != 0)
			continue;
		if (c.hang)
			hang(c.until_ns);
		if (c.delay_ns)
			sleep_without_lock(c.delay_ns);
		return -c.status;
	}
	return DCST_OK;
}
