/* tests/bench/serve_mhd.c - libmicrohttpd with a static buffer and nothing else, the limit for bench_http.py: serve_mhd FILE [gzip].
 *
 * One thread with epoll, as in common/http/httpd.c. Prints its port; ends with its input. */
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/promtext/promtext.h"

#define PAGE_MAX (64u << 20)

static struct MHD_Response *page;

static enum MHD_Result
answer(void *arg, struct MHD_Connection *connection, const char *path, const char *method, const char *version,
       const char *data, size_t *n, void **slot)
{
	(void)arg;
	(void)path;
	(void)method;
	(void)version;
	(void)data;
	(void)n;
	if (!*slot) {
		*slot = page;
		return MHD_YES;
	}
	return MHD_queue_response(connection, MHD_HTTP_OK, page);
}

int
main(int argc, char **argv)
{
	struct MHD_Daemon *daemon;
	struct buf text;
	struct err err = {0};

	buf_init(&text, PAGE_MAX);
	if (argc < 2 || !buf_read_file(&text, argv[1], &err)) {
		fprintf(stderr, "serve_mhd: %s\n", argc < 2 ? "usage: serve_mhd FILE [gzip]" : err.text);
		return 2;
	}
	page = MHD_create_response_from_buffer(text.len, text.data, MHD_RESPMEM_PERSISTENT);
	MHD_add_response_header(page, "Content-Type", PROM_TEXT_TYPE);
	if (argc > 2)
		MHD_add_response_header(page, "Content-Encoding", argv[2]);
	daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC, 0, NULL, NULL, answer, NULL,
	                          MHD_OPTION_CONNECTION_LIMIT, 8192u, MHD_OPTION_CONNECTION_TIMEOUT, 90u,
	                          MHD_OPTION_END);
	if (!daemon) {
		fprintf(stderr, "serve_mhd: cannot start\n");
		return 1;
	}
	printf("%u 0\n", (unsigned)MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT)->port);
	fflush(stdout);
	while (getchar() != EOF)
		;
	MHD_stop_daemon(daemon);
	MHD_destroy_response(page);
	buf_fini(&text);
	return 0;
}
