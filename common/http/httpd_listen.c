/* common/http/httpd_listen.c - the listening socket of the HTTP server.
 * Opened here and not by libmicrohttpd, which does not say why it could not. */
#include "common/http/httpd_listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/conf/conf.h"

static bool
resolve(const char *address, struct addrinfo **ret, struct err *err)
{
	struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
	char host[256], service[8];
	uint16_t port;
	int rc;

	if (!addr_parse(address, host, sizeof(host), &port, err))
		return err_prefix(err, "listen address");
	snprintf(service, sizeof(service), "%u", (unsigned)port);
	rc = getaddrinfo(host, service, &hints, ret);
	if (rc != 0)
		return err_set(err, ERR_INVALID, "cannot listen on %s: %s", address, gai_strerror(rc));
	return true;
}

static bool
port_of(int fd, uint16_t *ret_port)
{
	struct sockaddr_storage bound;
	socklen_t len = sizeof(bound);

	if (getsockname(fd, (struct sockaddr *)&bound, &len) != 0)
		return false;
	if (bound.ss_family == AF_INET6)
		*ret_port = ntohs(((struct sockaddr_in6 *)&bound)->sin6_port);
	else
		*ret_port = ntohs(((struct sockaddr_in *)&bound)->sin_port);
	return true;
}

/* SO_REUSEADDR: a restart does not wait for the last run's connections to be forgotten. It does not let two servers
 * share a port. */
static bool
open_on(const struct addrinfo *ai, int fd, uint16_t *ret_port)
{
	int on = 1;

	return setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
	       bind(fd, ai->ai_addr, ai->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0 && port_of(fd, ret_port);
}

bool
httpd_listen(const char *address, int *ret_fd, uint16_t *ret_port, struct err *err)
{
	struct addrinfo *ai = NULL;
	int fd, errnum = 0;

	if (!resolve(address, &ai, err))
		return false;
	fd = socket(ai->ai_family, ai->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, ai->ai_protocol);
	if (fd < 0 || !open_on(ai, fd, ret_port))
		errnum = errno;
	freeaddrinfo(ai);
	if (errnum) {
		if (fd >= 0)
			close(fd);
		return err_errno(err, errnum == EADDRINUSE ? ERR_CONFLICT : ERR_FATAL, errnum, "cannot listen on %s",
		                 address);
	}
	*ret_fd = fd;
	return true;
}
