/* exporter/identity/kubelet/podres_call.c - a gRPC call on a unix socket: HTTP/2 by nghttp2, with limits on time and size. */
#include <errno.h>
#include <fcntl.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/time.h"
#include "exporter/identity/kubelet/podres.h"
#include "exporter/source/sanitize.h"

#define PREFIX_BYTES 5u /* before a message: compressed or not, and its length */
#define READ_BYTES 65536u
#define WINDOW_BYTES (4 << 20)
#define REASON_BYTES 200u

/* The call under way, as its frames come in. */
struct call {
	int32_t stream;
	struct buf *message;
	uint8_t prefix[PREFIX_BYTES];
	size_t prefix_len;
	uint64_t length; /* of the message, by its prefix */
	bool too_large, trailing;
	bool closed;
	uint32_t reset; /* how the stream ended: 0 well */
	char http_status[8], grpc_status[8], reason[REASON_BYTES];
};

struct podres_conn {
	int fd;
	nghttp2_session *session;
	struct call call;
};

/* ---- receiving ---- */

static bool
take_prefix(struct call *c, const uint8_t **data, size_t *n)
{
	size_t missing = PREFIX_BYTES - c->prefix_len;
	size_t got = *n < missing ? *n : missing;

	memcpy(c->prefix + c->prefix_len, *data, got);
	c->prefix_len += got;
	*data += got;
	*n -= got;
	if (c->prefix_len < PREFIX_BYTES)
		return false;
	if (got > 0)
		c->length = (uint64_t)c->prefix[1] << 24 | (uint64_t)c->prefix[2] << 16 | (uint64_t)c->prefix[3] << 8 |
		            (uint64_t)c->prefix[4];
	return true;
}

static int
on_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *data, size_t n, void *arg)
{
	struct podres_conn *conn = arg;
	struct call *c = &conn->call;

	(void)session;
	(void)flags;
	if (stream != c->stream || !take_prefix(c, &data, &n))
		return 0;
	if (c->length > c->message->max) {
		c->too_large = true;
		return NGHTTP2_ERR_CALLBACK_FAILURE;
	}
	if (n > c->length - c->message->len) {
		c->trailing = true;
		return NGHTTP2_ERR_CALLBACK_FAILURE;
	}
	buf_add(c->message, data, n);
	return 0;
}

static void
keep(char *to, size_t size, const uint8_t *value, size_t n)
{
	snprintf(to, size, "%.*s", (int)(n < size ? n : size), (const char *)value);
}

static int
on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_len,
          const uint8_t *value, size_t value_len, uint8_t flags, void *arg)
{
	struct podres_conn *conn = arg;
	struct call *c = &conn->call;

	(void)session;
	(void)flags;
	if (frame->hd.stream_id != c->stream)
		return 0;
	if (name_len == 7 && memcmp(name, ":status", 7) == 0)
		keep(c->http_status, sizeof(c->http_status), value, value_len);
	else if (name_len == 11 && memcmp(name, "grpc-status", 11) == 0)
		keep(c->grpc_status, sizeof(c->grpc_status), value, value_len);
	else if (name_len == 12 && memcmp(name, "grpc-message", 12) == 0)
		keep(c->reason, sizeof(c->reason), value, value_len);
	return 0;
}

static int
on_close(nghttp2_session *session, int32_t stream, uint32_t error_code, void *arg)
{
	struct podres_conn *conn = arg;

	(void)session;
	if (stream == conn->call.stream) {
		conn->call.closed = true;
		conn->call.reset = error_code;
	}
	return 0;
}

/* ---- the connection ---- */

static bool
wait_for(int fd, short events, int64_t deadline_ns, struct err *err)
{
	for (;;) {
		int64_t left_ns = deadline_ns - time_monotonic_ns();
		struct pollfd p = {.fd = fd, .events = events};
		int n = left_ns <= 0 ? 0 : poll(&p, 1, (int)(left_ns / NS_PER_MS) + 1);

		if (n > 0)
			return true;
		if (n == 0)
			return err_set(err, ERR_RETRY, "the kubelet does not answer in time");
		if (errno != EINTR)
			return err_errno(err, ERR_RETRY, errno, "cannot wait for the kubelet");
	}
}

/* Only root can be the kubelet; whoever else listens there would hand out other people's GPUs. */
static bool
check_peer(int fd, const char *path, struct err *err)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0)
		return err_errno(err, ERR_RETRY, errno, "%s: cannot see which user listens", path);
	if (peer.uid != 0 && peer.uid != geteuid())
		return err_set(err, ERR_DENIED, "%s: uid %u listens, which is neither root nor the exporter's own",
		               path, peer.uid);
	return true;
}

static bool
dial(const char *path, int fd, struct err *err)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};

	if (strlen(path) >= sizeof(to.sun_path))
		return err_set(err, ERR_INVALID, "%s: longer than the %zu bytes of a socket's name", path,
		               sizeof(to.sun_path) - 1);
	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
	/* on a unix socket this does not block: it is there at once or not (EAGAIN: its queue is full) */
	if (connect(fd, (const struct sockaddr *)&to, sizeof(to)) != 0)
		return err_errno(err, errno == ENOENT || errno == ECONNREFUSED ? ERR_MISSING : ERR_RETRY, errno,
		                 "cannot connect to the kubelet at %s", path);
	return check_peer(fd, path, err);
}

static bool
new_session(struct podres_conn *c, struct err *err)
{
	const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
	                                           {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, WINDOW_BYTES}};
	nghttp2_session_callbacks *callbacks = NULL;
	int rc = nghttp2_session_callbacks_new(&callbacks);

	if (rc == 0) {
		nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
		nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
		nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
		rc = nghttp2_session_client_new(&c->session, callbacks, c);
		nghttp2_session_callbacks_del(callbacks);
	}
	if (rc == 0)
		rc = nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, settings, ARRAY_LEN(settings));
	if (rc == 0)
		rc = nghttp2_session_set_local_window_size(c->session, NGHTTP2_FLAG_NONE, 0, WINDOW_BYTES);
	return rc == 0 || err_set(err, ERR_FATAL, "no HTTP/2 session: %s", nghttp2_strerror(rc));
}

bool
podres_connect(const char *socket_path, int64_t deadline_ns, struct podres_conn **ret, struct err *err)
{
	owned(podres_conn) struct podres_conn *c = mem_alloc(sizeof(*c));

	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->fd < 0)
		return err_errno(err, ERR_RETRY, errno, "no socket");
	if (!dial(socket_path, c->fd, err) || !new_session(c, err) || !wait_for(c->fd, POLLOUT, deadline_ns, err))
		return false;
	*ret = take(c);
	return true;
}

void
podres_conn_free(struct podres_conn *c)
{
	if (!c)
		return;
	nghttp2_session_del(c->session);
	if (c->fd >= 0)
		close(c->fd);
	mem_free(c);
}

static bool
send_all(struct podres_conn *c, int64_t deadline_ns, struct err *err)
{
	const uint8_t *data;
	ssize_t n;

	while ((n = nghttp2_session_mem_send(c->session, &data)) > 0) {
		while (n > 0) {
			ssize_t sent = send(c->fd, data, (size_t)n, MSG_NOSIGNAL);

			if (sent < 0 && errno != EAGAIN && errno != EINTR)
				return err_errno(err, ERR_RETRY, errno, "cannot write to the kubelet");
			if (sent < 0 && !wait_for(c->fd, POLLOUT, deadline_ns, err))
				return false;
			data += sent > 0 ? sent : 0;
			n -= sent > 0 ? sent : 0;
		}
	}
	return n == 0 || err_set(err, ERR_INVALID, "HTTP/2 to the kubelet: %s", nghttp2_strerror((int)n));
}

static bool
receive(struct podres_conn *c, int64_t deadline_ns, struct err *err)
{
	uint8_t data[READ_BYTES];
	ssize_t n, used;

	if (!wait_for(c->fd, POLLIN, deadline_ns, err))
		return false;
	n = recv(c->fd, data, sizeof(data), 0);
	if (n == 0)
		return err_set(err, ERR_RETRY, "the kubelet closed the connection");
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ||
		       err_errno(err, ERR_RETRY, errno, "cannot read from the kubelet");
	used = nghttp2_session_mem_recv(c->session, data, (size_t)n);
	if (c->call.too_large)
		return err_set(err, ERR_INVALID, "the kubelet's answer has %" PRIu64 " bytes, more than %zu",
		               c->call.length, c->call.message->max);
	if (c->call.trailing)
		return err_set(err, ERR_INVALID, "the kubelet's answer goes on after its end");
	return used == n || err_set(err, ERR_INVALID, "the kubelet does not speak HTTP/2: %s",
	                            used < 0 ? nghttp2_strerror((int)used) : "cut off");
}

/* ---- a call ---- */

/* The request's message is empty: five zero bytes. */
static ssize_t
read_request(nghttp2_session *session, int32_t stream, uint8_t *data, size_t n, uint32_t *flags,
             nghttp2_data_source *source, void *arg)
{
	(void)session;
	(void)stream;
	(void)source;
	(void)arg;
	if (n < PREFIX_BYTES)
		return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
	memset(data, 0, PREFIX_BYTES);
	*flags |= NGHTTP2_DATA_FLAG_EOF;
	return PREFIX_BYTES;
}

static bool
submit(struct podres_conn *c, const char *method, int64_t timeout_ns, struct err *err)
{
	char path[128] = "", timeout[32] = "";
	char *const fields[][2] = {
		{(char[]){":method"}, (char[]){"POST"}},
		{(char[]){":scheme"}, (char[]){"http"}},
		{(char[]){":path"}, path},
		{(char[]){":authority"}, (char[]){"localhost"}},
		{(char[]){"te"}, (char[]){"trailers"}},
		{(char[]){"content-type"}, (char[]){"application/grpc"}},
		{(char[]){"user-agent"}, (char[]){"tollgate-exporter"}},
		{(char[]){"grpc-timeout"}, timeout},
	};
	nghttp2_data_provider body = {.read_callback = read_request};
	nghttp2_nv nv[ARRAY_LEN(fields)];

	snprintf(path, sizeof(path), "/v1.PodResourcesLister/%s", method);
	snprintf(timeout, sizeof(timeout), "%" PRId64 "m", timeout_ns > 0 ? timeout_ns / NS_PER_MS + 1 : 1);
	for (size_t i = 0; i < ARRAY_LEN(fields); i++)
		nv[i] = (nghttp2_nv){.name = (uint8_t *)fields[i][0],
		                     .value = (uint8_t *)fields[i][1],
		                     .namelen = strlen(fields[i][0]),
		                     .valuelen = strlen(fields[i][1])};
	c->call.stream = nghttp2_submit_request(c->session, NULL, nv, ARRAY_LEN(nv), &body, NULL);
	return c->call.stream > 0 || err_set(err, ERR_RETRY, "no HTTP/2 request: %s", nghttp2_strerror(c->call.stream));
}

static bool
check_answer(const struct call *c, const char *method, struct err *err)
{
	owned(mem) char *status = sanitized_copy(c->http_status, sizeof(c->http_status));
	owned(mem) char *code = sanitized_copy(c->grpc_status, sizeof(c->grpc_status));
	owned(mem) char *reason = sanitized_copy(c->reason, sizeof(c->reason));

	if (strcmp(status, "200") != 0)
		return err_set(err, ERR_INVALID, "%s: the kubelet answers with HTTP status '%s'", method, status);
	/* 12: the kubelet has no such method */
	if (strcmp(code, "0") != 0)
		return err_set(err, strcmp(code, "12") == 0 ? ERR_MISSING : ERR_RETRY,
		               "%s: the kubelet answers with gRPC status '%s': %s", method, code, reason);
	if (c->reset != NGHTTP2_NO_ERROR)
		return err_set(err, ERR_RETRY, "%s: the kubelet gave up: %s", method, nghttp2_http2_strerror(c->reset));
	if (c->prefix_len < PREFIX_BYTES || c->length != c->message->len)
		return err_set(err, ERR_INVALID, "%s: the kubelet's answer ends early", method);
	if (c->prefix[0] != 0)
		return err_set(err, ERR_INVALID, "%s: the kubelet's answer is compressed, which was not asked for",
		               method);
	return true;
}

bool
podres_call(struct podres_conn *c, const char *method, int64_t deadline_ns, struct buf *ret, struct err *err)
{
	buf_clear(ret);
	c->call = (struct call){.message = ret};
	if (!submit(c, method, deadline_ns - time_monotonic_ns(), err))
		return false;
	while (!c->call.closed) {
		if (!send_all(c, deadline_ns, err))
			return err_prefix(err, "%s", method);
		/* the session has said goodbye to bytes that are no frames */
		if (!nghttp2_session_want_read(c->session))
			return err_set(err, ERR_INVALID, "%s: the kubelet does not speak HTTP/2", method);
		if (!receive(c, deadline_ns, err))
			return err_prefix(err, "%s", method);
	}
	/* frames that the session still has to send, such as the acknowledgement of settings, go with the next call */
	return check_answer(&c->call, method, err);
}
