/* common/conf/conf_text.c - what the table of options says to people: --help, the sample configuration and the manual page. */
#include <string.h>

#include "common/conf/conf_value.h"
#include "common/conf/json.h"
#include "common/conf/roff.h"

#define WIDTH 100u      /* columns of a terminal that help is laid out for */
#define HELP_COLUMN 32u /* where an option's text begins */

/* Where a text of several lines is written: none goes beyond WIDTH unless a single word does. */
struct column {
	struct buf *out;
	const char *lead; /* the beginning of continuation lines */
	size_t indent;    /* and where their text stands */
	size_t at;
	bool begun;
};

/* A word, or several that stay together. */
static void
add_word(struct column *c, const char *word, size_t len)
{
	if (c->begun && c->at + 1 + len > WIDTH) {
		buf_char(c->out, '\n');
		buf_str(c->out, c->lead);
		for (c->at = strlen(c->lead); c->at < c->indent; c->at++)
			buf_char(c->out, ' ');
	} else if (c->begun) {
		buf_char(c->out, ' ');
		c->at++;
	}
	buf_add(c->out, word, len);
	c->at += len;
	c->begun = true;
}

static void
add_words(struct column *c, const char *text)
{
	while (*text) {
		size_t len = strcspn(text, " ");

		add_word(c, text, len);
		text += len;
		text += strspn(text, " ");
	}
}

static void
add_choices(struct buf *out, const struct conf_option *o, const char *separator)
{
	for (size_t i = 0; o->choices[i]; i++)
		buf_printf(out, "%s%s", i ? separator : "", o->choices[i]);
}

/* "--listen=TEXT", "--sample-interval=DURATION", "--[no-]compress". */
static void
add_flag(struct buf *out, const struct conf_option *o)
{
	static const char *const words[] = {
		[CONF_STRING] = "TEXT",       [CONF_PATH] = "PATH",  [CONF_INT] = "N",
		[CONF_DURATION] = "DURATION", [CONF_BYTES] = "SIZE",
	};

	if (o->type == CONF_BOOL) {
		buf_printf(out, "--[no-]%s", o->name);
	} else if (o->type == CONF_ENUM) {
		buf_printf(out, "--%s=", o->name);
		add_choices(out, o, "|");
	} else {
		buf_printf(out, "--%s=%s", o->name, words[o->type]);
	}
}

/* "1s; 100ms to 1m", "none", "127.0.0.1:9401". */
static void
add_facts(struct buf *out, const struct conf_option *o)
{
	char text[TIME_TEXT_SIZE];

	buf_str(out, o->preset ? o->preset : "none");
	if (!conf_value_has_range(o))
		return;
	if (o->type == CONF_INT && o->unit && o->unit[0])
		buf_printf(out, " %s", o->unit);
	buf_printf(out, "; %s", conf_value_format(o, o->min, text));
	if (o->max == INT64_MAX)
		buf_str(out, " or more");
	else
		buf_printf(out, " to %s", conf_value_format(o, o->max, text));
}

/* An entry of the help: flag, then its text at HELP_COLUMN, on the next line where the flag is too long. */
static void
add_entry(struct buf *out, const char *flag, const char *text, const char *facts)
{
	static const char spaces[] = "                                ";
	struct column c = {.out = out, .lead = "", .indent = HELP_COLUMN, .at = HELP_COLUMN};
	size_t at = 2 + strlen(flag);

	_Static_assert(sizeof(spaces) - 1 == HELP_COLUMN, "one string pads a whole column");
	buf_printf(out, "  %s", flag);
	if (at + 2 > HELP_COLUMN) {
		buf_char(out, '\n');
		at = 0;
	}
	buf_add(out, spaces, HELP_COLUMN - at);
	add_words(&c, text);
	if (facts)
		add_word(&c, facts, strlen(facts));
	buf_char(out, '\n');
}

static void
add_paragraph(struct buf *out, const char *lead, const char *text)
{
	struct column c = {.out = out, .lead = lead, .at = strlen(lead)};

	buf_str(out, lead);
	add_words(&c, text);
	buf_char(out, '\n');
}

/* Flags that every program takes beside its table. --print-man is missing: only the build uses it. */
static const struct {
	const char *flag, *text;
} also[] = {
	{"--config=FILE", "Read options from this YAML file"},
	{"-n, --check", "Check the configuration and exit"},
	{"--print-config", "Print a commented sample configuration with the defaults and exit"},
	{"--help", "Print this text and exit"},
	{"--version", "Print the version and exit"},
};

static const char rules[] =
	"A flag goes before TOLLGATE_<NAME> in the environment, that before "
	"the file, that before the default. An option --some-name is TOLLGATE_SOME_NAME in the environment and "
	"some_name in the file. Durations are written like 90s or 1h30m, sizes like 512MiB.";

void
conf_help(const struct conf_program *p, struct buf *out)
{
	in_place(buf) struct buf flag = {0}, facts = {0};

	buf_init(&flag, 4096);
	buf_init(&facts, 4096);
	buf_printf(out, "Usage: %s [OPTION]...\n\n", p->name);
	add_paragraph(out, "", p->summary);
	buf_str(out, "\nOptions:\n");
	for (size_t i = 0; i < p->count; i++) {
		const struct conf_option *o = &p->options[i];

		buf_clear(&flag);
		buf_clear(&facts);
		add_flag(&flag, o);
		buf_char(&facts, '[');
		add_facts(&facts, o);
		buf_char(&facts, ']');
		add_entry(out, buf_text(&flag), o->help, buf_text(&facts));
	}
	buf_str(out, "\nAlso:\n");
	for (size_t i = 0; i < ARRAY_LEN(also); i++)
		add_entry(out, also[i].flag, also[i].text, NULL);
	buf_str(out, "\nIn brackets: the default and the range.\n");
	add_paragraph(out, "", rules);
}

static void
add_key(struct buf *out, const char *name)
{
	for (; *name; name++)
		buf_char(out, *name == '-' ? '_' : *name);
}

/* Every line is a comment; without its '#' (no space behind it) an option's line says what holds anyway. */
void
conf_sample(const struct conf_program *p, struct buf *out)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, 16384);
	buf_printf(
		&text,
		"Configuration of %s. Every option is shown at its default; remove the # in front of a key to set it.",
		p->name);
	add_paragraph(out, "# ", buf_text(&text));
	for (size_t i = 0; i < p->count; i++) {
		const struct conf_option *o = &p->options[i];

		buf_clear(&text);
		buf_printf(&text, "%s. Default: ", o->help);
		add_facts(&text, o);
		if (o->type == CONF_ENUM) {
			buf_str(&text, "; one of ");
			add_choices(&text, o, ", ");
		} else if (o->type == CONF_BOOL) {
			buf_str(&text, "; true or false");
		}
		buf_char(&text, '.');
		buf_char(out, '\n');
		add_paragraph(out, "# ", buf_text(&text));
		buf_char(out, '#');
		add_key(out, o->name);
		buf_char(out, ':');
		if (o->preset) {
			buf_char(out, ' ');
			/* a JSON string is a YAML string; the other types need no quotes */
			if (o->type == CONF_STRING || o->type == CONF_PATH)
				json_write_string(o->preset, out);
			else
				buf_str(out, o->preset);
		}
		buf_char(out, '\n');
	}
}

/* ---- the manual page ---- */

static void
man_option(const struct conf_option *o, struct buf *flag, struct buf *text, struct buf *out)
{
	buf_clear(flag);
	buf_clear(text);
	add_flag(flag, o);
	buf_printf(text, "%s. Default: ", o->help);
	add_facts(text, o);
	roff_item(out, buf_text(flag), NULL, buf_text(text));
}

void
conf_man(const struct conf_program *p, struct buf *out)
{
	in_place(buf) struct buf flag = {0}, text = {0};

	buf_init(&flag, 4096);
	buf_init(&text, 16384);
	roff_page(out, p->name, 8, p->summary);
	roff_section(out, "SYNOPSIS");
	buf_printf(&text, "%s [OPTION]...", p->name);
	roff_command(out, buf_text(&text));
	if (p->details) {
		roff_section(out, "DESCRIPTION");
		roff_paragraph(out, p->details);
	}
	roff_section(out, "OPTIONS");
	roff_paragraph(out, rules);
	for (size_t i = 0; i < p->count; i++)
		man_option(&p->options[i], &flag, &text, out);
	for (size_t i = 0; i < ARRAY_LEN(also); i++)
		roff_item(out, also[i].flag, NULL, also[i].text);
	roff_section(out, "EXIT STATUS");
	roff_item(out, "0", NULL, "ended on a signal, or printed what was asked for");
	roff_item(out, "1", NULL, "failed; standard error says why");
	roff_item(out, "2", NULL, "an option or the configuration file is wrong");
	if (p->see_also)
		roff_see_also(out, p->see_also);
}
