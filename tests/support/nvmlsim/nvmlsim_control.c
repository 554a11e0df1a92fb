/* tests/support/nvmlsim/nvmlsim_control.c - what tests do to the simulator: its clock, and calls that do not return.
 *
 * A hanging call waits in real time and without the lock, so that every other call goes on. It returns when the scenario's `until`
 * has come, when tollgate_sim_release is called, or while the file named by TOLLGATE_SIM_RELEASE exists. */
#include "tests/support/nvmlsim/nvmlsim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/time.h"

#define LOOK_NS (5 * NS_PER_MS) /* between two looks at the clock and the file */

/* Stops the virtual clock at a moment of the scenario; a negative one lets it run again. */
EXPORTED void tollgate_sim_set_time_ns(int64_t t_ns);
/* Lets the calls go that hang now. */
EXPORTED void tollgate_sim_release(void);
/* How many calls hang. */
EXPORTED unsigned tollgate_sim_hanging(void);
/* The virtual clock, for the DCGM simulator; -1: it has not begun. */
EXPORTED int64_t tollgate_sim_clock_ns(void);

void
tollgate_sim_set_time_ns(int64_t t_ns)
{
	pthread_mutex_lock(&sim.lock);
	sim.frozen = t_ns >= 0;
	sim.frozen_ns = t_ns;
	pthread_cond_broadcast(&sim.changed);
	pthread_mutex_unlock(&sim.lock);
}

void
tollgate_sim_release(void)
{
	pthread_mutex_lock(&sim.lock);
	sim.releases++;
	pthread_cond_broadcast(&sim.changed);
	pthread_mutex_unlock(&sim.lock);
}

unsigned
tollgate_sim_hanging(void)
{
	unsigned hanging;

	pthread_mutex_lock(&sim.lock);
	hanging = sim.hanging;
	pthread_mutex_unlock(&sim.lock);
	return hanging;
}

int64_t
tollgate_sim_clock_ns(void)
{
	int64_t t_ns;

	pthread_mutex_lock(&sim.lock);
	t_ns = sim.frozen || sim.t0_ns ? sim_clock_ns() : -1;
	pthread_mutex_unlock(&sim.lock);
	return t_ns;
}

void
sim_wait_a_little(void)
{
	struct timespec at;

	clock_gettime(CLOCK_REALTIME, &at);
	at.tv_nsec += LOOK_NS;
	if (at.tv_nsec >= NS_PER_S) {
		at.tv_nsec -= NS_PER_S;
		at.tv_sec++;
	}
	pthread_cond_timedwait(&sim.changed, &sim.lock, &at);
}

static bool
is_released_by_file(void)
{
	const char *path = getenv("TOLLGATE_SIM_RELEASE");

	return path && *path && access(path, F_OK) == 0;
}

static void
hang(int64_t until_ns)
{
	uint64_t releases = sim.releases;

	sim.hanging++;
	while (sim.releases == releases && sim_clock_ns() < until_ns && !is_released_by_file())
		sim_wait_a_little();
	sim.hanging--;
}

static void
sleep_without_lock(int64_t ns)
{
	struct timespec left = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};

	pthread_mutex_unlock(&sim.lock);
	while (nanosleep(&left, &left) != 0 && errno == EINTR)
		;
	pthread_mutex_lock(&sim.lock);
}

int
sim_misbehave(const char *function, int gpu)
{
	for (size_t i = 0; i < sim.sc->call_count; i++) {
		/* a copy: the scenario may be gone after the wait */
		struct sim_call c = sim.sc->calls[i];

		if ((c.gpu != -1 && c.gpu != gpu) || sim.now_ns < c.at_ns || sim.now_ns >= c.until_ns ||
		    (strcmp(c.name, "*") != 0 && strcmp(c.name, function) != 0))
			continue;
		if (c.hang)
			hang(c.until_ns);
		if (c.delay_ns)
			sleep_without_lock(c.delay_ns);
		return c.status;
	}
	return NVST_SUCCESS;
}
