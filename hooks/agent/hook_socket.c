/* hooks/agent/hook_socket.c - one thread with a poll over all connections: a client that sends nothing keeps nobody waiting. */
#include "hooks/agent/hook_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/thread.h"
#include "common/base/time.h"

#define CONNECTIONS 64
#define BACKLOG 128
#define PATIENCE_NS (2 * NS_PER_S) /* for a whole exchange; job_submit.lua waits for 100 ms */

struct connection {
	int fd; /* -1: free */
	int64_t until_ns;
	struct buf in, out;
	size_t sent;
};

struct hook_socket {
	struct hook_desk *desk;
	char *path;
	int listener, stop_fd;
	bool bound, running;
	pthread_t thread;
	struct connection connections[CONNECTIONS];
};

static void
end_connection(struct connection *c)
{
	close(c->fd);
	c->fd = -1;
	buf_fini(&c->in);
	buf_fini(&c->out);
}

static bool
is_trusted(int fd)
{
	struct ucred who = {0};
	socklen_t n = sizeof(who);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && (who.uid == 0 || who.uid == geteuid());
}

static void
accept_one(struct hook_socket *s)
{
	int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	for (size_t i = 0; i < CONNECTIONS && is_trusted(fd); i++) {
		struct connection *c = &s->connections[i];

		if (c->fd >= 0)
			continue;
		*c = (struct connection){.fd = fd, .until_ns = time_monotonic_ns() + PATIENCE_NS};
		buf_init(&c->in, HOOK_LINE_MAX + 1);
		buf_init(&c->out, HOOK_LINE_MAX);
		return;
	}
	close(fd);
}

static void
send_answer(struct connection *c)
{
	ssize_t n = send(c->fd, buf_text(&c->out) + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);

	if (n > 0)
		c->sent += (size_t)n;
	if ((n < 0 && errno != EAGAIN && errno != EINTR) || c->sent == c->out.len)
		end_connection(c);
}

static void
answer(struct hook_socket *s, struct connection *c, char *end)
{
	*end = '\0';
	hook_desk_answer(s->desk, c->in.data, time_monotonic_ns(), &c->out);
	if (c->out.len == 0) {
		end_connection(c);
		return;
	}
	buf_char(&c->out, '\n');
	send_answer(c);
}

static void
read_question(struct hook_socket *s, struct connection *c)
{
	char *to = buf_reserve(&c->in, 4096 < c->in.max - c->in.len ? 4096 : c->in.max - c->in.len), *end;
	ssize_t n;

	if (!to || c->in.len == c->in.max) {
		end_connection(c);
		return;
	}
	n = recv(c->fd, to, 4096 < c->in.max - c->in.len ? 4096 : c->in.max - c->in.len, 0);
	if (n <= 0) {
		if (n == 0 || (errno != EAGAIN && errno != EINTR))
			end_connection(c);
		return;
	}
	buf_commit(&c->in, (size_t)n);
	end = memchr(c->in.data, '\n', c->in.len);
	if (end)
		answer(s, c, end);
}

static void
serve_connection(struct hook_socket *s, struct connection *c, short events)
{
	if (events & POLLOUT)
		send_answer(c);
	else if (events)
		read_question(s, c);
	if (c->fd >= 0 && time_monotonic_ns() > c->until_ns)
		end_connection(c);
}

static void *
serve(void *arg)
{
	struct hook_socket *s = arg;

	for (;;) {
		struct pollfd fds[CONNECTIONS + 2] = {{.fd = s->stop_fd, .events = POLLIN},
		                                      {.fd = s->listener, .events = POLLIN}};
		bool open = false;

		for (size_t i = 0; i < CONNECTIONS; i++) {
			const struct connection *c = &s->connections[i];

			fds[i + 2] =
				(struct pollfd){.fd = c->fd, .events = c->fd >= 0 && c->out.len > 0 ? POLLOUT : POLLIN};
			open = open || c->fd >= 0;
		}
		if (poll(fds, ARRAY_LEN(fds), open ? 100 : -1) < 0)
			continue;
		if (fds[0].revents)
			return NULL;
		for (size_t i = 0; i < CONNECTIONS; i++)
			if (s->connections[i].fd >= 0)
				serve_connection(s, &s->connections[i], fds[i + 2].revents);
		if (fds[1].revents)
			accept_one(s);
	}
}

/* A file that is left of an agent that was killed. */
static bool
remove_left(const struct sockaddr_un *a, struct err *err)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct stat st;
	bool answered;

	if (lstat(a->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode)) {
		if (fd >= 0)
			close(fd);
		return true; /* bind() says what is wrong */
	}
	answered = fd >= 0 && connect(fd, (const struct sockaddr *)a, sizeof(*a)) == 0;
	if (fd >= 0)
		close(fd);
	if (answered)
		return err_set(err, ERR_CONFLICT, "another program answers there");
	unlink(a->sun_path);
	return true;
}

static bool
listen_on(struct hook_socket *s, struct err *err)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	if (strlen(s->path) >= sizeof(a.sun_path))
		return err_set(err, ERR_INVALID, "the path has %zu bytes, at most %zu are possible", strlen(s->path),
		               sizeof(a.sun_path) - 1);
	memcpy(a.sun_path, s->path, strlen(s->path) + 1);
	if (!remove_left(&a, err))
		return false;
	s->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	s->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (s->listener < 0 || s->stop_fd < 0)
		return err_errno(err, ERR_FATAL, errno, "cannot make a socket");
	if (bind(s->listener, (const struct sockaddr *)&a, sizeof(a)) != 0)
		return err_errno(err, ERR_FATAL, errno, "cannot bind");
	s->bound = true;
	if (chmod(s->path, 0660) != 0 || listen(s->listener, BACKLOG) != 0)
		return err_errno(err, ERR_FATAL, errno, "cannot listen");
	return true;
}

bool
hook_socket_start(const char *path, struct hook_desk *desk, struct hook_socket **ret, struct err *err)
{
	struct hook_socket *s = mem_alloc(sizeof(*s));

	s->desk = desk;
	s->path = mem_strdup(path);
	s->listener = s->stop_fd = -1;
	for (size_t i = 0; i < CONNECTIONS; i++)
		s->connections[i].fd = -1;
	if (!listen_on(s, err) || !thread_start("that answers job_submit.lua", serve, s, &s->thread, err)) {
		hook_socket_stop(s);
		return err_prefix(err, "socket %s", path);
	}
	s->running = true;
	*ret = s;
	return true;
}

void
hook_socket_stop(struct hook_socket *s)
{
	uint64_t one = 1;

	if (!s)
		return;
	if (s->running) {
		ASSERT(write(s->stop_fd, &one, sizeof(one)) == sizeof(one));
		pthread_join(s->thread, NULL);
	}
	for (size_t i = 0; i < CONNECTIONS; i++)
		if (s->connections[i].fd >= 0)
			end_connection(&s->connections[i]);
	if (s->bound)
		unlink(s->path);
	if (s->listener >= 0)
		close(s->listener);
	if (s->stop_fd >= 0)
		close(s->stop_fd);
	mem_free(s->path);
	mem_free(s);
}
