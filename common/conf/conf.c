/* common/conf/conf.c - the options of a program from its table: defaults, file, environment, command line, in this order. */
#include "common/conf/conf.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf_value.h"
#include "common/base/text.h"
#include "common/conf/yaml.h"

#ifndef TOLLGATE_VERSION
#define TOLLGATE_VERSION "unversioned"
#endif

#define NAME_SIZE 64u /* of an option in any of its spellings */

/* "sample-interval" as the file writes it, sample_interval. */
static void
key_of(const char *name, char out[NAME_SIZE])
{
	size_t i;

	for (i = 0; name[i]; i++)
		out[i] = name[i] == '-' ? '_' : name[i];
	out[i] = '\0';
}

static void
env_of(const char *name, char out[NAME_SIZE])
{
	char key[NAME_SIZE];
	size_t len = (size_t)snprintf(out, NAME_SIZE, "TOLLGATE_");

	key_of(name, key);
	for (size_t i = 0; key[i]; i++)
		out[len++] = (char)toupper((unsigned char)key[i]);
	out[len] = '\0';
}

/* The table is part of the program: what is wrong in it ends the program at its first start, not at a customer's. */
static void
assert_table(const struct conf_program *p)
{
	for (size_t i = 0; i < p->count; i++) {
		const struct conf_option *o = &p->options[i];
		size_t len = strlen(o->name);

		ASSERT(len > 0 && len + sizeof("TOLLGATE_") <= NAME_SIZE);
		ASSERT(strspn(o->name, "abcdefghijklmnopqrstuvwxyz0123456789-") == len && o->name[0] != '-');
		ASSERT(strncmp(o->name, "no-", 3) != 0);
		ASSERT(o->help && o->help[0] && o->help[strlen(o->help) - 1] != '.');
		ASSERT(!conf_value_has_range(o) || o->min <= o->max);
		ASSERT(o->type != CONF_ENUM || (o->choices && o->choices[0]));
		for (size_t j = 0; j < i; j++)
			ASSERT(strcmp(o->name, p->options[j].name) != 0);
	}
}

static const struct conf_option *
find_option(const struct conf_program *p, const char *name, size_t len)
{
	for (size_t i = 0; i < p->count; i++)
		if (strlen(p->options[i].name) == len && strncmp(p->options[i].name, name, len) == 0)
			return &p->options[i];
	return NULL;
}

bool
conf_set_defaults(const struct conf_program *p, void *into, struct err *err)
{
	assert_table(p);
	for (size_t i = 0; i < p->count; i++) {
		const struct conf_option *o = &p->options[i];

		if (o->preset && !conf_value_set(o, o->preset, into, err))
			return err_prefix(err, "default of --%s", o->name);
	}
	return true;
}

void
conf_free(const struct conf_program *p, void *into)
{
	for (size_t i = 0; i < p->count; i++)
		conf_value_clear(&p->options[i], into);
}

/* ---- the file ---- */

static const struct conf_option *
option_of_key(const struct conf_program *p, const char *key)
{
	char name[NAME_SIZE];

	for (size_t i = 0; i < p->count; i++) {
		key_of(p->options[i].name, name);
		if (strcmp(name, key) == 0)
			return &p->options[i];
	}
	return NULL;
}

static bool
check_keys(const struct conf_program *p, const struct yaml_doc *doc, struct err *err)
{
	owned(mem) char(*text)[NAME_SIZE] = mem_array(p->count, sizeof(*text));
	owned(mem) const char **keys = mem_array(p->count + 1, sizeof(*keys));

	for (size_t i = 0; i < p->count; i++) {
		key_of(p->options[i].name, text[i]);
		keys[i] = text[i];
	}
	return yaml_only_keys(doc, yaml_root(doc), keys, err);
}

static bool
set_from_node(const struct yaml_doc *doc, const struct yaml_node *n, const struct conf_option *o, void *into,
              struct err *err)
{
	struct err why;

	if (!yaml_expect(doc, n, YAML_SCALAR, n->key, err))
		return false;
	if (yaml_is_null(n)) {
		if (o->preset)
			return yaml_err(doc, n, err, "%s has no value", n->key);
		conf_value_clear(o, into);
		return true;
	}
	if (!conf_value_set(o, n->text, into, &why))
		return yaml_err(doc, n, err, "%s: %s", n->key, why.text);
	return true;
}

bool
conf_load_text(const struct conf_program *p, const char *file, const char *text, size_t len, void *into,
               struct err *err)
{
	owned(yaml) struct yaml_doc *doc = NULL;

	if (!yaml_parse(file, text, len, &doc, err))
		return false;
	if (!yaml_expect(doc, yaml_root(doc), YAML_MAP, "a configuration", err) || !check_keys(p, doc, err))
		return false;
	for (const struct yaml_node *n = yaml_root(doc)->child; n; n = n->next)
		if (!set_from_node(doc, n, option_of_key(p, n->key), into, err))
			return false;
	return true;
}

static bool
load_file(const struct conf_program *p, const char *path, void *into, struct err *err)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, YAML_MAX_BYTES);
	if (!buf_read_file(&text, path, err))
		return err_prefix(err, "--config");
	return conf_load_text(p, path, buf_text(&text), text.len, into, err);
}

/* ---- the environment ---- */

/* Asks for the names of the table only: other programs use the prefix too. */
static bool
load_environment(const struct conf_program *p, void *into, struct err *err)
{
	for (size_t i = 0; i < p->count; i++) {
		char name[NAME_SIZE];
		const char *text;

		env_of(p->options[i].name, name);
		text = getenv(name);
		if (text && !conf_value_set(&p->options[i], text, into, err))
			return err_prefix(err, "%s in the environment", name);
	}
	return true;
}

/* ---- the command line ---- */

/* A flag as given, and what it stands for. Exactly one of option and builtin is set. */
struct flag {
	const struct conf_option *option;
	const char *builtin; /* "config", "check", ... */
	const char *value;   /* NULL: none */
};

static const char *const builtins[] = {"config", "check", "help", "version", "print-config", "print-man", NULL};

static bool
unknown_flag(const struct conf_program *p, const char *name, size_t len, struct err *err)
{
	owned(mem) const char **known = mem_array(p->count + ARRAY_LEN(builtins), sizeof(*known));
	owned(mem) char *word = mem_strndup(name, len);
	const char *near;
	size_t n = 0;

	for (size_t i = 0; i < p->count; i++)
		known[n++] = p->options[i].name;
	for (size_t i = 0; builtins[i]; i++)
		known[n++] = builtins[i];
	near = text_nearest(word, known);
	if (near)
		return err_set(err, ERR_INVALID, "command line: unknown option --%s; did you mean --%s?", word, near);
	return err_set(err, ERR_INVALID, "command line: unknown option --%s; --help lists them", word);
}

/* Which option or builtin a name is; "no-x" is the BOOL x set to false. */
static bool
identify(const struct conf_program *p, const char *name, size_t len, struct flag *f, struct err *err)
{
	f->option = find_option(p, name, len);
	if (f->option)
		return true;
	for (size_t i = 0; builtins[i]; i++) {
		if (strlen(builtins[i]) == len && strncmp(builtins[i], name, len) == 0) {
			f->builtin = builtins[i];
			return true;
		}
	}
	if (len > 3 && strncmp(name, "no-", 3) == 0) {
		const struct conf_option *o = find_option(p, name + 3, len - 3);

		if (o && o->type == CONF_BOOL) {
			if (f->value)
				return err_set(err, ERR_INVALID, "command line: --no-%s takes no value", o->name);
			f->option = o;
			f->value = "false";
			return true;
		}
	}
	return unknown_flag(p, name, len, err);
}

/* Reads the flag at argv[*at] and moves behind it and its value. */
static bool
next_flag(const struct conf_program *p, int argc, char *const *argv, int *at, struct flag *f, struct err *err)
{
	const char *word = argv[(*at)++];
	const char *equals;
	size_t len;

	*f = (struct flag){.option = NULL};
	if (strcmp(word, "-n") == 0) {
		f->builtin = "check";
		return true;
	}
	if (strncmp(word, "--", 2) != 0 || word[2] == '\0')
		return err_set(err, ERR_INVALID, "command line: unexpected word '%s'; options begin with --", word);
	word += 2;
	equals = strchr(word, '=');
	len = equals ? (size_t)(equals - word) : strlen(word);
	f->value = equals ? equals + 1 : NULL;
	if (!identify(p, word, len, f, err))
		return false;
	if (f->option && f->option->type == CONF_BOOL) {
		if (!f->value)
			f->value = "true";
		return true;
	}
	if (f->builtin && strcmp(f->builtin, "config") != 0) {
		if (f->value)
			return err_set(err, ERR_INVALID, "command line: --%s takes no value", f->builtin);
		return true;
	}
	if (!f->value) {
		/* a forgotten value would otherwise swallow the next flag in silence */
		if (*at >= argc || strncmp(argv[*at], "--", 2) == 0)
			return err_set(err, ERR_INVALID, "command line: --%.*s needs a value", (int)len, word);
		f->value = argv[(*at)++];
	}
	return true;
}

/* The requests of the built-in flags. */
struct request {
	const char *config;
	bool check;
	bool exits; /* the text is written */
};

static void
on_builtin(const struct conf_program *p, const struct flag *f, struct request *rq, struct buf *text)
{
	if (strcmp(f->builtin, "config") == 0) {
		rq->config = f->value;
	} else if (strcmp(f->builtin, "check") == 0) {
		rq->check = true;
	} else {
		rq->exits = true;
		if (strcmp(f->builtin, "help") == 0)
			conf_help(p, text);
		else if (strcmp(f->builtin, "version") == 0)
			buf_printf(text, "%s %s\n", p->name, TOLLGATE_VERSION);
		else if (strcmp(f->builtin, "print-man") == 0)
			conf_man(p, text);
		else
			conf_sample(p, text);
	}
}

/* First pass: the shape of the command line and the builtins, which stop at the first that exits. */
static bool
scan(const struct conf_program *p, int argc, char *const *argv, struct request *rq, struct buf *text, struct err *err)
{
	for (int at = 1; at < argc && !rq->exits;) {
		struct flag f;

		if (!next_flag(p, argc, argv, &at, &f, err))
			return false;
		if (f.builtin)
			on_builtin(p, &f, rq, text);
	}
	return true;
}

static bool
load_flags(const struct conf_program *p, int argc, char *const *argv, void *into, struct err *err)
{
	for (int at = 1; at < argc;) {
		struct flag f;

		if (!next_flag(p, argc, argv, &at, &f, err))
			return false;
		if (f.option && !conf_value_set(f.option, f.value, into, err))
			return err_prefix(err, "command line: --%s", f.option->name);
	}
	return true;
}

bool
conf_load(const struct conf_program *p, int argc, char *const *argv, void *into, enum conf_action *ret_action,
          bool *ret_check, struct buf *ret_text, struct err *err)
{
	struct request rq = {.config = NULL};

	assert_table(p);
	if (!scan(p, argc, argv, &rq, ret_text, err))
		return false;
	if (!rq.exits) {
		if (!conf_set_defaults(p, into, err))
			return false;
		if (rq.config && !load_file(p, rq.config, into, err))
			return false;
		if (!load_environment(p, into, err) || !load_flags(p, argc, argv, into, err))
			return false;
	} else if (!buf_ok(ret_text, "the text", err)) {
		return false;
	}
	*ret_check = rq.check;
	*ret_action = rq.exits ? CONF_EXIT_OK : CONF_RUN;
	return true;
}

#define TEXT_MAX (1u << 20) /* of a manual page or a sample */

static int
complain(const struct conf_program *p, const struct err *err, int status)
{
	char text[ERR_LOG_SIZE];

	fprintf(stderr, "%s: %s\n", p->name, err_log_text(err, text));
	return status;
}

static int
load_and_run(const struct conf_daemon *d, int argc, char *const *argv)
{
	enum conf_action action = CONF_RUN;
	in_place(buf) struct buf text = {0};
	struct err err = {0};
	bool check = false;

	buf_init(&text, TEXT_MAX);
	if (!conf_load(d->program, argc, argv, d->options, &action, &check, &text, &err) ||
	    (action == CONF_RUN && !d->check(d->options, &err)))
		return complain(d->program, &err, CONF_EXIT_USAGE);
	if (action == CONF_EXIT_OK || check) {
		fputs(buf_text(&text), stdout);
		return CONF_EXIT_STOPPED;
	}
	return d->run(d->options, &err) ? CONF_EXIT_STOPPED : complain(d->program, &err, CONF_EXIT_FAILED);
}

int
conf_main(const struct conf_daemon *d, int argc, char *const *argv)
{
	int status = load_and_run(d, argc, argv);

	conf_free(d->program, d->options);
	return status;
}
