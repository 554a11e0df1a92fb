/* common/conf/roff.c - manual pages in the man(7) macros. */
#include "common/conf/roff.h"

#include <string.h>

#define LINE_BYTES 78u

/* The escape of a character that roff would interpret, or NULL. The hyphen of an option must stay a hyphen, because people copy it. */
static const char *
escape_of(char c)
{
	switch (c) {
	case '\\': return "\\e";
	case '-': return "\\-";
	case '\'': return "\\(aq";
	case '`': return "\\(ga";
	case '^': return "\\(ha";
	case '~': return "\\(ti";
	default: return NULL;
	}
}

static void
put_char(struct buf *out, char c)
{
	const char *escape = escape_of(c);

	if (escape)
		buf_str(out, escape);
	else
		buf_char(out, c);
}

/* Of the next word as it will be written. */
static size_t
word_bytes(const char *text)
{
	size_t bytes = 0;

	for (; *text && *text != ' '; text++)
		bytes += escape_of(*text) ? strlen(escape_of(*text)) : 1;
	return bytes;
}

void
roff_text(struct buf *out, const char *text)
{
	/* a line must not begin as a request */
	if (*text == '.')
		buf_str(out, "\\&");
	for (; *text; text++)
		put_char(out, *text);
}

/* Words in lines that an editor shows whole; `line` is where the line under way begins. */
static void
put_words(struct buf *out, const char *text, size_t line)
{
	for (; *text; text++) {
		/* a word that begins with a full stop stays on the line of the one before it */
		if (*text == ' ' && text[1] != '.' && out->len - line + word_bytes(text + 1) > LINE_BYTES) {
			buf_char(out, '\n');
			line = out->len;
		} else {
			put_char(out, *text);
		}
	}
}

/* Capital at the beginning, full stop at the end. */
static void
sentence(struct buf *out, const char *text)
{
	size_t line = out->len;

	ASSERT(*text);
	if (*text == '.')
		buf_str(out, "\\&");
	if (*text >= 'a' && *text <= 'z')
		buf_char(out, (char)(*text++ - 'a' + 'A'));
	put_words(out, text, line);
	if (!strchr(".!?:", buf_text(out)[out->len - 1]))
		buf_char(out, '.');
	buf_char(out, '\n');
}

/* A heading begins a paragraph by itself. */
static void
paragraph(struct buf *out)
{
	const char *text = buf_text(out);
	size_t at = out->len > 0 ? out->len - 1 : 0;

	while (at > 0 && text[at - 1] != '\n')
		at--;
	if (strncmp(text + at, ".SH ", 4) != 0 && strncmp(text + at, ".SS ", 4) != 0)
		buf_str(out, ".PP\n");
}

void
roff_page(struct buf *out, const char *name, int section, const char *summary)
{
	size_t line;

	buf_str(out, ".TH ");
	for (const char *p = name; *p; p++)
		buf_char(out, *p >= 'a' && *p <= 'z' ? (char)(*p - 'a' + 'A') : *p);
	buf_printf(out, " %d \"%s\" \"Tollgate %s\" \"Tollgate\"\n", section, TOLLGATE_DATE, TOLLGATE_VERSION);
	buf_str(out, ".SH NAME\n");
	line = out->len;
	roff_text(out, name);
	buf_str(out, " \\- ");
	put_words(out, summary, line);
	buf_char(out, '\n');
}

void
roff_section(struct buf *out, const char *title)
{
	buf_printf(out, ".SH %s\n", title);
}

void
roff_subsection(struct buf *out, const char *title)
{
	buf_str(out, ".SS ");
	roff_text(out, title);
	buf_char(out, '\n');
}

void
roff_paragraph(struct buf *out, const char *text)
{
	paragraph(out);
	sentence(out, text);
}

void
roff_item(struct buf *out, const char *tag, const char *after, const char *text)
{
	buf_str(out, ".TP\n\\fB");
	roff_text(out, tag);
	buf_str(out, "\\fR");
	if (after) {
		buf_str(out, " \\fI");
		roff_text(out, after);
		buf_str(out, "\\fR");
	}
	buf_char(out, '\n');
	sentence(out, text);
}

void
roff_command(struct buf *out, const char *text)
{
	paragraph(out);
	buf_str(out, "\\fB");
	roff_text(out, text);
	buf_str(out, "\\fR\n");
}

void
roff_see_also(struct buf *out, const char *const *pages)
{
	roff_section(out, "SEE ALSO");
	for (size_t i = 0; pages[i]; i++) {
		const char *bracket = strchr(pages[i], '(');

		ASSERT(bracket);
		buf_str(out, ".BR ");
		for (const char *p = pages[i]; p < bracket; p++) {
			if (*p == '-')
				buf_char(out, '\\');
			buf_char(out, *p);
		}
		buf_printf(out, " %s%s\n", bracket, pages[i + 1] ? "," : "");
	}
}
