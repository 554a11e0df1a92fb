/* common/base/log.c - logfmt on stderr, one write per line. */
#include "common/base/log.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/text.h"
#include "common/base/time.h"

/* Below PIPE_BUF, so that lines of several threads or programs on one pipe never mix. */
#define LOG_LINE_MAX 4000u
#define LOG_VALUE_MAX 1500u
#define LOG_CUT " cut=true"

/* Set once by main; atomic so that a thread that is already running may log meanwhile. */
static _Atomic(const char *) log_program = "tollgate";
static _Atomic int log_least = LOG_INFO;

void
log_init(const char *program, enum log_level least)
{
	atomic_store(&log_program, program);
	atomic_store(&log_least, (int)least);
}

static const char *
level_name(enum log_level level)
{
	switch (level) {
	case LOG_DEBUG: return "debug";
	case LOG_INFO: return "info";
	case LOG_WARN: return "warn";
	case LOG_ERROR: return "error";
	}
	return "unknown";
}

static bool
needs_quotes(const unsigned char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (s[i] <= 0x20 || s[i] >= 0x7f || s[i] == '"' || s[i] == '=' || s[i] == '\\')
			return true;
	return n == 0;
}

static void
add_escaped(struct buf *b, uint32_t cp, const unsigned char *bytes, size_t len)
{
	if (cp == '"' || cp == '\\')
		buf_printf(b, "\\%c", (int)cp);
	else if (cp == '\n')
		buf_str(b, "\\n");
	else if (cp == '\r')
		buf_str(b, "\\r");
	else if (cp == '\t')
		buf_str(b, "\\t");
	else if (text_deceives(cp))
		buf_printf(b, "\\u%04" PRIx32, cp);
	else
		buf_add(b, bytes, len);
}

static void
add_value(struct buf *b, const char *value)
{
	const unsigned char *s = (const unsigned char *)(value ? value : "");
	size_t n = strnlen((const char *)s, LOG_VALUE_MAX);
	bool cut = s[n] != '\0';

	if (!cut && !needs_quotes(s, n)) {
		buf_add(b, s, n);
		return;
	}
	buf_char(b, '"');
	for (size_t i = 0; i < n;) {
		uint32_t cp;
		size_t len = utf8_next((const char *)s + i, n - i, &cp);

		if (len)
			add_escaped(b, cp, s + i, len);
		else
			buf_printf(b, "\\x%02x", s[i]);
		i += len ? len : 1;
	}
	buf_str(b, cut ? "...\"" : "\"");
}

/* A field that does not fit is left out whole, and the line says so. */
static bool
add_field(struct buf *b, const struct log_field *f)
{
	size_t before = b->len;

	buf_char(b, ' ');
	buf_str(b, f->name);
	buf_char(b, '=');
	if (f->type == LOG_INT)
		buf_i64(b, f->num);
	else
		add_value(b, f->str);
	if (!b->over && b->len <= LOG_LINE_MAX)
		return true;
	b->over = false;
	b->len = before;
	return false;
}

static void
write_line(enum log_level level, const char *msg, const struct log_field *fields)
{
	/* room for the mark of a cut line and the newline on top of the fields */
	in_place(buf) struct buf line = {.max = LOG_LINE_MAX + sizeof(LOG_CUT) + 1};
	char ts[TIME_TEXT_SIZE];
	int64_t now_ns = time_wall_ns();
	bool whole = true;
	ssize_t put;

	/* Always three decimals, so that lines sort as text. */
	buf_printf(&line, "ts=%.19s.%03dZ", time_format(now_ns, ts), (int)(now_ns % NS_PER_S / NS_PER_MS));
	whole &= add_field(&line, &LS("level", level_name(level)));
	whole &= add_field(&line, &LS("prog", atomic_load(&log_program)));
	whole &= add_field(&line, &LS("msg", msg));
	for (; fields && fields->name; fields++)
		whole &= add_field(&line, fields);
	if (!whole)
		buf_str(&line, LOG_CUT);
	buf_char(&line, '\n');
	do
		put = write(STDERR_FILENO, line.data, line.len);
	while (put < 0 && errno == EINTR);
}

void
log_write(enum log_level level, const char *msg, const struct log_field *fields)
{
	if ((int)level >= atomic_load(&log_least))
		write_line(level, msg, fields);
}
