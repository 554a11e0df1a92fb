/* hooks/agent/command.c - runs one of Slurm's commands. */
#include "hooks/agent/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/time.h"

#define WORDS_MAX 300u /* of standard error that an error repeats */
#define CHUNK 16384u

extern char **environ;

struct child {
	pid_t pid;
	int out, err; /* -1: at its end */
	struct buf line, words;
	bool words_cut;
};

static void
close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static bool
spawn(const char *const *argv, struct child *c, struct err *err)
{
	int out[2] = {-1, -1}, words[2] = {-1, -1}, failure;
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none, pipe_signal;
	/* posix_spawn() does not write to them */
	char *const *args = (char *const *)(uintptr_t)argv;

	if (pipe2(out, O_CLOEXEC) != 0 || pipe2(words, O_CLOEXEC) != 0) {
		failure = errno;
		close_fd(&out[0]);
		close_fd(&out[1]);
		return err_errno(err, ERR_RETRY, failure, "%s: cannot make a pipe", argv[0]);
	}
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&files, words[1], STDERR_FILENO);
	posix_spawnattr_init(&attr);
	sigemptyset(&none);
	sigemptyset(&pipe_signal);
	sigaddset(&pipe_signal, SIGPIPE);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &pipe_signal);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	failure = posix_spawn(&c->pid, argv[0], &files, &attr, args, environ);
	posix_spawn_file_actions_destroy(&files);
	posix_spawnattr_destroy(&attr);
	close_fd(&out[1]);
	close_fd(&words[1]);
	c->out = out[0];
	c->err = words[0];
	return failure == 0 || err_errno(err, ERR_FATAL, failure, "%s cannot be started", argv[0]);
}

static bool
take_output(struct child *c, const char *data, size_t n, command_line *each, void *arg, struct err *err)
{
	while (n > 0 && each) {
		const char *end = memchr(data, '\n', n);
		size_t part = end ? (size_t)(end - data) : n;

		buf_add(&c->line, data, part);
		if (c->line.over)
			return err_set(err, ERR_INVALID, "a line of more than %u bytes", COMMAND_LINE_MAX);
		if (!end)
			return true;
		if (memchr(buf_text(&c->line), '\0', c->line.len))
			return err_set(err, ERR_INVALID, "a line with a NUL");
		if (!each(arg, buf_text(&c->line), err))
			return false;
		buf_clear(&c->line);
		data += part + 1;
		n -= part + 1;
	}
	return true;
}

static void
take_words(struct child *c, const char *data, size_t n)
{
	size_t room = WORDS_MAX - c->words.len;

	for (size_t i = 0; i < n && i < room; i++)
		buf_char(&c->words, data[i] == '\n' ? ' ' : data[i]);
}

/* Reads both pipes until they end. */
static bool
read_all(struct child *c, int64_t deadline_ns, command_line *each, void *arg, struct err *err)
{
	char data[CHUNK];

	while (c->out >= 0 || c->err >= 0) {
		struct pollfd fds[] = {{.fd = c->out, .events = POLLIN}, {.fd = c->err, .events = POLLIN}};
		int64_t left_ms = (deadline_ns - time_monotonic_ns()) / NS_PER_MS;
		int *const ends[] = {&c->out, &c->err};

		if (left_ms <= 0)
			return err_set(err, ERR_RETRY, "no end of it in time");
		if (poll(fds, ARRAY_LEN(fds), (int)(left_ms > 1000 ? 1000 : left_ms)) < 0 && errno != EINTR)
			return err_errno(err, ERR_FATAL, errno, "poll");
		for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
			ssize_t n;

			if (fds[i].fd < 0 || !fds[i].revents)
				continue;
			n = read(fds[i].fd, data, sizeof(data));
			if (n <= 0)
				close_fd(ends[i]);
			else if (i == 1)
				take_words(c, data, (size_t)n);
			else if (!take_output(c, data, (size_t)n, each, arg, err))
				return false;
		}
	}
	return true;
}

/* The pipes have ended, or the child was killed: it ends now. */
static bool
wait_for_end(const struct child *c, int64_t deadline_ns, int *ret_status)
{
	for (;;) {
		pid_t got = waitpid(c->pid, ret_status, WNOHANG);

		if (got == c->pid)
			return true;
		if (got < 0 && errno != EINTR)
			return false;
		if (time_monotonic_ns() >= deadline_ns) {
			kill(c->pid, SIGKILL);
			while (waitpid(c->pid, ret_status, 0) < 0 && errno == EINTR)
				;
			return false;
		}
		poll(NULL, 0, 1);
	}
}

bool
command_run(const char *const *argv, int64_t timeout_ns, command_line *each, void *arg, struct err *err)
{
	struct child c = {.pid = -1, .out = -1, .err = -1};
	int64_t deadline_ns = time_monotonic_ns() + timeout_ns;
	const char *name = strrchr(argv[0], '/');
	int status = 0;
	bool ok;

	buf_init(&c.line, COMMAND_LINE_MAX);
	buf_init(&c.words, WORDS_MAX + 1);
	name = name ? name + 1 : argv[0];
	ok = spawn(argv, &c, err);
	if (ok) {
		ok = read_all(&c, deadline_ns, each, arg, err) || err_prefix(err, "%s", name);
		if (!wait_for_end(&c, ok ? deadline_ns : 0, &status) && ok)
			ok = err_set(err, ERR_RETRY, "%s: no end of it in time", name);
		if (ok && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
			ok = err_set(err, ERR_INVALID, "%s %s: %s", name, argv[1] ? argv[1] : "",
			             c.words.len > 0 ? buf_text(&c.words) : "it failed without a word");
	}
	close_fd(&c.out);
	close_fd(&c.err);
	buf_fini(&c.line);
	buf_fini(&c.words);
	return ok;
}
