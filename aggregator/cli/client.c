/* aggregator/cli/client.c - HTTP requests of the command line to the aggregator. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"

/* State of the progress bar. Only one call runs at a time. */
static struct progress progress;

/* Requests to a busy or restarting aggregator are retried before the user sees an error. */
static const struct httpc_retry again = {
	.attempts = 3, .least_ns = 200 * NS_PER_MS, .most_ns = 2 * NS_PER_S, .patience_ns = 10 * NS_PER_S};

void
cli_tls(const struct cli *c, struct httpc_options *o)
{
	o->ca_file = cli_setting(c, "ca-file", "TOLLGATE_CA_FILE");
	o->client_cert = cli_setting(c, "client-cert", "TOLLGATE_CLIENT_CERT");
	o->client_key = cli_setting(c, "client-key", "TOLLGATE_CLIENT_KEY");
}

static bool
connect_client(struct cli *c, struct err *err)
{
	const char *url = cli_setting(c, "url", "TOLLGATE_URL");
	struct httpc_options o = {
		.base_url = url != NULL ? url : CLI_DEFAULT_URL,
		.token_file = cli_setting(c, "token-file", "TOLLGATE_TOKEN_FILE"),
		.user_agent = "tollgate/" TOLLGATE_VERSION,
		.connect_timeout_ns = 5 * NS_PER_S,
		.timeout_ns = 10 * NS_PER_MIN,
		.progress = progress_tell,
		.progress_arg = &progress,
	};

	cli_tls(c, &o);
	return c->client != NULL || httpc_new(&o, &c->client, err);
}

/* A status of 400 or above is an error. */
static bool
call(struct cli *c, const char *method, const char *path, const char *content_type, const void *body, size_t n,
     struct httpc_reply *reply, struct err *err)
{
	bool ok;

	if (!connect_client(c, err))
		return false;
	progress_begin(&progress, time_boot_ns());
	ok = httpc_call_again(c->client, &again, method, path, content_type, body, n, reply, err);
	progress_end(&progress);
	if (ok && reply->status >= 400) {
		ok = httpc_problem(reply, "aggregator", err);
		/* Only a missing reply counts as unreachable; 503 is a refusal. */
		if (err->kind == ERR_RETRY)
			err->kind = ERR_FATAL;
	}
	if (ok)
		c->server_wall_ns = reply->date_wall_ns;
	return ok;
}

bool
cli_call(struct cli *c, const char *method, const char *path, const char *content_type, const void *body, size_t n,
         struct buf *ret_body, struct err *err)
{
	struct httpc_reply reply = {0};

	buf_init(&reply.body, CLI_REPLY_MAX);
	if (!call(c, method, path, content_type, body, n, &reply, err)) {
		buf_fini(&reply.body);
		return false;
	}
	buf_fini(ret_body);
	*ret_body = reply.body;
	return true;
}

bool
cli_get_pieces(struct cli *c, const char *path, bool (*sink)(void *arg, const void *data, size_t n), void *arg,
               struct buf *manifest, struct err *err)
{
	struct httpc_reply reply = {.sink = sink,
	                            .sink_arg = arg,
	                            .header = manifest != NULL ? "Tollgate-Manifest" : NULL,
	                            .header_value = manifest};
	bool ok;

	buf_init(&reply.body, CLI_TEXT_BYTES);
	ok = call(c, "GET", path, NULL, NULL, 0, &reply, err);
	buf_fini(&reply.body);
	return ok;
}

bool
cli_get_json(struct cli *c, const char *path, json_t **ret, struct err *err)
{
	in_place(buf) struct buf body = {0};

	buf_init(&body, CLI_REPLY_MAX);
	return cli_call(c, "GET", path, NULL, NULL, 0, &body, err) &&
	       json_parse(path, buf_text(&body), body.len, ret, err);
}

void
cli_path(struct buf *path, const char *text)
{
	static const char hex[] = "0123456789ABCDEF";

	for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
		if ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
		    strchr("-._~,", *p) != NULL) {
			buf_char(path, (char)*p);
		} else {
			buf_char(path, '%');
			buf_char(path, hex[*p >> 4]);
			buf_char(path, hex[*p & 15]);
		}
	}
}

void
cli_query(struct buf *path, const char *name, const char *value)
{
	if (value != NULL && value[0] != '\0')
		cli_query_set(path, name, value);
}

void
cli_query_set(struct buf *path, const char *name, const char *value)
{
	buf_char(path, strchr(buf_text(path), '?') == NULL ? '?' : '&');
	buf_str(path, name);
	buf_char(path, '=');
	cli_path(path, value);
}

int
cli_fail(const struct err *err)
{
	fprintf(stderr, "tollgate: %s\n", err->text);
	return err->kind == ERR_RETRY ? CLI_UNREACHABLE : CLI_FAILED;
}

int
cli_misuse(const struct err *err)
{
	fprintf(stderr, "tollgate: %s\n", err->text);
	return CLI_USAGE;
}
