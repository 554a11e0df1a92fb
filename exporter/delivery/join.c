/* exporter/delivery/join.c - enrolment: exchanges the join token for this node's own token. The rules are numbered in push.h. */
#include "exporter/delivery/push.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/conf/json.h"

#define REPLY_MAX (64u << 10)
#define BODY_MAX (64u << 10)
#define TOKEN_MAX 256u

/* Rule 1. */
static bool
has_token(const char *path, bool *ret, struct err *err)
{
	struct stat st;

	if (stat(path, &st) == 0) {
		*ret = st.st_size > 0;
		return true;
	}
	*ret = false;
	return errno == ENOENT || err_errno(err, ERR_FATAL, errno, "token file %s", path);
}

/* Rule 2. */
static bool
check_writable(const char *path, struct err *err)
{
	owned(mem) char *trial = mem_printf("%s.trial", path);

	if (!file_write_atomic(trial, "", 0, 0600, err))
		return err_prefix(err, "this node has no token, and could not write one to %s", path);
	unlink(trial);
	return true;
}

static bool
is_token(const char *s)
{
	size_t n = strlen(s);

	for (size_t i = 0; i < n; i++)
		if (s[i] <= ' ' || s[i] > '~')
			return false;
	return n > 0 && n <= TOKEN_MAX;
}

/* Rule 3. */
static bool
keep_token(const struct httpc_reply *reply, const char *path, struct err *err)
{
	owned(json) json_t *doc = NULL;
	owned(mem) char *line = NULL;
	const char *token = NULL;

	if (!json_parse("reply", buf_text(&reply->body), reply->body.len, &doc, err) ||
	    !json_get_str(doc, "token", &token, err))
		return false;
	if (!is_token(token))
		return err_set(err, ERR_INVALID, "the aggregator's answer is not a token");
	line = mem_printf("%s\n", token);
	return file_write_atomic(path, line, strlen(line), 0600, err);
}

static bool
ask(struct httpc *http, const char *node, struct httpc_reply *reply, struct err *err)
{
	in_place(buf) struct buf body = {0};

	buf_init(&body, BODY_MAX);
	buf_str(&body, "{\"node\":");
	json_write_string(node, &body);
	buf_char(&body, '}');
	return buf_ok(&body, "the name of the node", err) &&
	       httpc_call(http, "POST", JOIN_PATH, "application/json", buf_text(&body), body.len, reply, err);
}

bool
join_if_needed(struct httpc *http, const struct join_options *o, bool *ret_joined, struct err *err)
{
	struct httpc_reply reply = {0};
	bool has = false, ok;

	*ret_joined = false;
	if (!has_token(o->token_file, &has, err))
		return false;
	if (has)
		return true;
	if (!check_writable(o->token_file, err))
		return false;
	buf_init(&reply.body, REPLY_MAX);
	ok = ask(http, o->node, &reply, err) && (reply.status == 201 || httpc_problem(&reply, "join", err)) &&
	     keep_token(&reply, o->token_file, err);
	buf_fini(&reply.body);
	*ret_joined = ok;
	return ok || err_prefix(err, "node %s cannot join with %s", o->node, o->join_token_file);
}
