/* common/base/err.c - writes and prefixes the errors of fallible functions. */
#include "common/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Shortens text in place to at most room - 1 bytes ending in "...", never inside a UTF-8 sequence. */
static void
cut(char *text, size_t room)
{
	size_t end = room - 1 - 3;

	while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80)
		end--;
	memcpy(text + end, "...", 4);
}

/* An error is one line wherever it is shown, whatever bytes its values had. */
static void
one_line(char *text)
{
	for (unsigned char *p = (unsigned char *)text; *p; p++)
		if (*p < 0x20 || *p == 0x7f)
			*p = ' ';
}

/* A copy, because the arguments may point into err->text. It is one byte longer than err->text, so that a text that does not fit is noticed. */
struct draft {
	char text[sizeof(((struct err *)NULL)->text) + 1];
	size_t len;
};

static void draft_add(struct draft *d, const char *fmt, va_list args) PRINTF_LIKE(2, 0);

static void
draft_add(struct draft *d, const char *fmt, va_list args)
{
	size_t room = sizeof(d->text) - d->len;
	int n = vsnprintf(d->text + d->len, room, fmt, args);

	if (n > 0)
		d->len += (size_t)n < room ? (size_t)n : room - 1;
}

static void
draft_text(struct draft *d, const char *text)
{
	size_t room = sizeof(d->text) - d->len;
	size_t n = strnlen(text, room - 1);

	memcpy(d->text + d->len, text, n);
	d->len += n;
	d->text[d->len] = '\0';
}

static void
draft_finish(struct draft *d, struct err *err)
{
	d->text[d->len] = '\0';
	if (d->len >= sizeof(err->text))
		cut(d->text, sizeof(err->text));
	one_line(d->text);
	memcpy(err->text, d->text, strlen(d->text) + 1);
}

bool
err_set(struct err *err, enum err_kind kind, const char *fmt, ...)
{
	struct draft d = {.len = 0};
	va_list args;

	if (!err)
		return false;
	va_start(args, fmt);
	draft_add(&d, fmt, args);
	va_end(args);
	draft_finish(&d, err);
	err->detail[0] = '\0';
	err->kind = kind;
	return false;
}

bool
err_prefix(struct err *err, const char *fmt, ...)
{
	struct draft d = {.len = 0};
	va_list args;

	if (!err)
		return false;
	va_start(args, fmt);
	draft_add(&d, fmt, args);
	va_end(args);
	draft_text(&d, ": ");
	draft_text(&d, err->text);
	draft_finish(&d, err);
	return false;
}

bool
err_errno(struct err *err, enum err_kind kind, int errnum, const char *fmt, ...)
{
	struct draft d = {.len = 0};
	char reason[128];
	va_list args;

	if (!err)
		return false;
	va_start(args, fmt);
	draft_add(&d, fmt, args);
	va_end(args);
	draft_text(&d, ": ");
	draft_text(&d, strerror_r(errnum, reason, sizeof(reason)));
	draft_finish(&d, err);
	err->detail[0] = '\0';
	err->kind = kind;
	return false;
}

bool
err_detail(struct err *err, const char *fmt, ...)
{
	struct draft d = {.len = 0};
	va_list args;
	size_t end;

	if (!err)
		return false;
	va_start(args, fmt);
	draft_add(&d, fmt, args);
	va_end(args);
	if (d.len >= sizeof(err->detail))
		cut(d.text, sizeof(err->detail));
	one_line(d.text);
	/* messages of servers end in a newline */
	for (end = strlen(d.text); end > 0 && d.text[end - 1] == ' ';)
		end--;
	d.text[end] = '\0';
	memcpy(err->detail, d.text, end + 1);
	return false;
}

const char *
err_log_text(const struct err *err, char out[ERR_LOG_SIZE])
{
	if (err->detail[0] == '\0')
		snprintf(out, ERR_LOG_SIZE, "%s", err->text);
	else
		snprintf(out, ERR_LOG_SIZE, "%s (%s)", err->text, err->detail);
	return out;
}

const char *
err_kind_name(enum err_kind kind)
{
	switch (kind) {
	case ERR_NONE: return "none";
	case ERR_INVALID: return "invalid";
	case ERR_CONFLICT: return "conflict";
	case ERR_DENIED: return "denied";
	case ERR_MISSING: return "missing";
	case ERR_RETRY: return "retry";
	case ERR_LIMIT: return "limit";
	case ERR_UNKNOWN: return "unknown outcome";
	case ERR_FATAL: return "fatal";
	}
	return "unknown";
}
