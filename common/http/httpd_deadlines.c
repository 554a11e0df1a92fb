/* common/http/httpd_deadlines.c - the open connections of the HTTP server: until when each may take, and whether its client is still there. */
#include "common/http/httpd_deadlines.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/time.h"

#define LEAST_NS (20 * NS_PER_MS)
#define EVENTS 64
#define LINGER_NS (2 * NS_PER_S)
#define LINGER_BYTES (1 << 20)
#define LINGER_MAX 256 /* connections at once */

/* A connection that was closed, while its client may still be sending. */
struct lingering {
	int fd;
	int64_t until_ns;
	size_t read;
	struct lingering *before, *behind;
};

/* The use of a descriptor. An event of an older generation belongs to a connection that was closed meanwhile. */
struct entry {
	uint32_t generation;
	struct httpd_slot *slot;
	struct lingering *lingering;
};

struct httpd_watch {
	struct httpd_watch_options options;
	pthread_t thread;
	bool running;
	int epoll, wake;
	pthread_mutex_t lock;
	bool stop;
	struct httpd_slot *first;
	struct lingering *lingering;
	int lingering_count;
	struct entry *entries; /* by descriptor */
	size_t entry_count;
};

/* ---- descriptors, with the lock ---- */

static struct entry *
entry_of(struct httpd_watch *w, int fd)
{
	size_t need = (size_t)fd + 1;

	if (need > w->entry_count) {
		size_t count = need > 2 * w->entry_count ? need : 2 * w->entry_count;
		struct entry *entries = mem_array(count, sizeof(*entries));

		for (size_t i = 0; i < w->entry_count; i++)
			entries[i] = w->entries[i];
		mem_free(w->entries);
		w->entries = entries;
		w->entry_count = count;
	}
	return &w->entries[fd];
}

/* A descriptor that cannot be watched is not: its client is found out when the reply is sent. */
static void
entry_watch(struct httpd_watch *w, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events,
	                            .data.u64 = ((uint64_t)w->entries[fd].generation << 32) | (uint32_t)fd};

	(void)epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &event);
}

static void
entry_forget(struct httpd_watch *w, int fd)
{
	struct entry *e = &w->entries[fd];

	*e = (struct entry){.generation = e->generation + 1};
	(void)epoll_ctl(w->epoll, EPOLL_CTL_DEL, fd, NULL);
}

static void
wake(struct httpd_watch *w)
{
	uint64_t one = 1;

	if (write(w->wake, &one, sizeof(one)) != (ssize_t)sizeof(one))
		ASSERT(errno == EAGAIN); /* it is awake */
}

static void
lingering_end(struct httpd_watch *w, struct lingering *l)
{
	entry_forget(w, l->fd);
	close(l->fd);
	if (l->before)
		l->before->behind = l->behind;
	else
		w->lingering = l->behind;
	if (l->behind)
		l->behind->before = l->before;
	w->lingering_count--;
	mem_free(l);
}

static void
lingering_begin(struct httpd_watch *w, int fd)
{
	struct lingering *l = mem_alloc(sizeof(*l));

	*l = (struct lingering){.fd = fd, .until_ns = time_boot_ns() + LINGER_NS, .behind = w->lingering};
	if (l->behind)
		l->behind->before = l;
	w->lingering = l;
	w->lingering_count++;
	entry_of(w, fd)->lingering = l;
	entry_watch(w, fd, EPOLLIN | EPOLLRDHUP);
	wake(w); /* its end is nearer than any deadline */
}

static void
lingering_read(struct httpd_watch *w, struct lingering *l)
{
	char bytes[16 << 10];

	for (;;) {
		ssize_t n = recv(l->fd, bytes, sizeof(bytes), MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		l->read += n > 0 ? (size_t)n : 0;
		if (n <= 0 || l->read > LINGER_BYTES) {
			lingering_end(w, l);
			return;
		}
	}
}

/* ---- the thread ---- */

/* Both directions: an end of reading alone is not noticed by libmicrohttpd when bytes came just before it. Returns when to look
 * again: at the nearest deadline, and not later than a deadline set from now on can be due. */
static int64_t
end_overdue(struct httpd_watch *w, int64_t now_ns)
{
	int64_t next_ns = now_ns + w->options.interval_ns;

	pthread_mutex_lock(&w->lock);
	for (struct httpd_slot *s = w->first; s; s = s->behind) {
		int64_t deadline_ns = atomic_load_explicit(&s->deadline_ns, memory_order_relaxed);

		if (deadline_ns > now_ns && deadline_ns < next_ns)
			next_ns = deadline_ns;
		if (deadline_ns == 0 || deadline_ns > now_ns)
			continue;
		atomic_store_explicit(&s->deadline_ns, 0, memory_order_relaxed);
		(void)shutdown(s->fd, SHUT_RDWR);
	}
	for (struct lingering *l = w->lingering, *behind; l; l = behind) {
		behind = l->behind;
		if (l->until_ns <= now_ns)
			lingering_end(w, l);
		else if (l->until_ns < next_ns)
			next_ns = l->until_ns;
	}
	pthread_mutex_unlock(&w->lock);
	return next_ns;
}

/* The request to drop, or NULL. */
static void *
client_gone(struct httpd_watch *w, struct httpd_slot *slot, bool *ret_told)
{
	void *resting = slot->resting;

	slot->gone = true;
	slot->resting = NULL;
	*ret_told |= resting != NULL;
	return resting && w->options.gone(w->options.arg, resting) ? resting : NULL;
}

/* True: it was woken. */
static bool
look_at_events(struct httpd_watch *w, const struct epoll_event *events, int n)
{
	void *dropped[EVENTS];
	size_t count = 0;
	uint64_t times = 0;
	bool told = false;

	pthread_mutex_lock(&w->lock);
	for (int i = 0; i < n; i++) {
		int fd = (int)(uint32_t)events[i].data.u64;
		const struct entry *e = &w->entries[fd];
		void *resting = NULL;

		if (fd == w->wake && read(fd, &times, sizeof(times)) < 0)
			times = 0;
		if (fd == w->wake || e->generation != (uint32_t)(events[i].data.u64 >> 32))
			continue;
		if (e->lingering)
			lingering_read(w, e->lingering);
		else if (e->slot)
			resting = client_gone(w, e->slot, &told);
		if (resting)
			dropped[count++] = resting;
	}
	pthread_mutex_unlock(&w->lock);
	for (size_t i = 0; i < count; i++)
		w->options.drop(w->options.arg, dropped[i]);
	if (told)
		w->options.told(w->options.arg);
	return times > 0;
}

static bool
stopped(struct httpd_watch *w)
{
	bool stop;

	pthread_mutex_lock(&w->lock);
	stop = w->stop;
	pthread_mutex_unlock(&w->lock);
	return stop;
}

static void *
watch(void *arg)
{
	struct httpd_watch *w = arg;
	int64_t look_ns = time_boot_ns() + w->options.interval_ns;

	while (!stopped(w)) {
		int64_t now_ns = time_boot_ns(), sleep_ns = look_ns - now_ns < LEAST_NS ? LEAST_NS : look_ns - now_ns;
		struct epoll_event events[EVENTS];
		int n = epoll_wait(w->epoll, events, EVENTS, (int)(sleep_ns / NS_PER_MS));

		bool woken = n > 0 && look_at_events(w, events, n);

		now_ns = time_boot_ns();
		if (look_ns - now_ns >= NS_PER_MS && !woken)
			continue;
		look_ns = end_overdue(w, now_ns);
		w->options.tick(w->options.arg);
	}
	return NULL;
}

static bool
start_thread(struct httpd_watch *w, struct err *err)
{
	struct epoll_event event = {.events = EPOLLIN};
	sigset_t all, before;
	int rc;

	w->epoll = epoll_create1(EPOLL_CLOEXEC);
	w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (w->epoll < 0 || w->wake < 0)
		return err_errno(err, ERR_RETRY, errno, "cannot watch HTTP connections");
	event.data.u64 = (uint32_t)w->wake;
	(void)entry_of(w, w->wake);
	if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->wake, &event) != 0)
		return err_errno(err, ERR_RETRY, errno, "cannot watch HTTP connections");
	/* signals stay with the program's own threads */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&w->thread, NULL, watch, w);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	w->running = rc == 0;
	return rc == 0 || err_errno(err, ERR_RETRY, rc, "cannot start the thread that watches HTTP connections");
}

bool
httpd_watch_start(const struct httpd_watch_options *o, struct httpd_watch **ret, struct err *err)
{
	struct httpd_watch *w = mem_alloc(sizeof(*w));

	ASSERT(o->interval_ns > 0);
	w->options = *o;
	w->epoll = -1;
	w->wake = -1;
	pthread_mutex_init(&w->lock, NULL);
	if (!start_thread(w, err)) {
		httpd_watch_free(w);
		return false;
	}
	*ret = w;
	return true;
}

void
httpd_watch_stop(struct httpd_watch *w)
{
	if (!w || !w->running)
		return;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	while (w->lingering)
		lingering_end(w, w->lingering);
	pthread_mutex_unlock(&w->lock);
	wake(w);
	pthread_join(w->thread, NULL);
	w->running = false;
}

void
httpd_watch_free(struct httpd_watch *w)
{
	if (!w)
		return;
	httpd_watch_stop(w);
	if (w->epoll >= 0)
		close(w->epoll);
	if (w->wake >= 0)
		close(w->wake);
	pthread_mutex_destroy(&w->lock);
	mem_free(w->entries);
	mem_free(w);
}

/* ---- from outside ---- */

void
httpd_watch_add(struct httpd_watch *w, struct httpd_slot *slot, int fd, int64_t deadline_ns)
{
	*slot = (struct httpd_slot){.fd = fd, .deadline_ns = deadline_ns};
	pthread_mutex_lock(&w->lock);
	slot->behind = w->first;
	if (w->first)
		w->first->before = slot;
	w->first = slot;
	entry_of(w, fd)->slot = slot;
	/* an edge: it is told once, whether a request rests just then or not */
	if (w->options.gone)
		entry_watch(w, fd, EPOLLRDHUP | EPOLLET);
	pthread_mutex_unlock(&w->lock);
}

void
httpd_watch_remove(struct httpd_watch *w, struct httpd_slot *slot, bool linger)
{
	int copy = -1;

	pthread_mutex_lock(&w->lock);
	if (slot->before)
		slot->before->behind = slot->behind;
	else
		w->first = slot->behind;
	if (slot->behind)
		slot->behind->before = slot->before;
	entry_forget(w, slot->fd);
	/* libmicrohttpd closes its descriptor: while there is another one the connection stays */
	if (linger && !slot->gone && !w->stop && w->lingering_count < LINGER_MAX)
		copy = dup(slot->fd);
	if (copy >= 0)
		lingering_begin(w, copy);
	pthread_mutex_unlock(&w->lock);
}

bool
httpd_watch_rest(struct httpd_watch *w, struct httpd_slot *slot, void *resting)
{
	bool there;

	pthread_mutex_lock(&w->lock);
	there = !slot->gone;
	slot->resting = there ? resting : NULL;
	pthread_mutex_unlock(&w->lock);
	return there;
}

void
httpd_watch_wake(struct httpd_watch *w, struct httpd_slot *slot)
{
	pthread_mutex_lock(&w->lock);
	slot->resting = NULL;
	pthread_mutex_unlock(&w->lock);
}
