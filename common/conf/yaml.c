/* common/conf/yaml.c - a YAML document as a tree that knows its lines, by libyaml's event parser. */
#include "common/conf/yaml.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "common/base/text.h"

/* A node and its strings, in a chain that ends the document without recursion. */
struct item {
	struct yaml_node node;
	char *text;
	char *key;
	struct item *older;
};

struct yaml_doc {
	char *name;
	struct item *newest;
	size_t node_count;
	struct yaml_node *root;
};

/* A list or map that is still open, and where its next child goes. */
struct level {
	struct yaml_node *node;
	struct yaml_node *last;
	char *key; /* of the next child of a map; NULL: the key itself comes next */
	int key_line;
};

struct reader {
	struct yaml_doc *doc;
	yaml_parser_t parser;
	struct level level[YAML_MAX_DEPTH];
	size_t depth;
};

void
yaml_doc_free(struct yaml_doc *doc)
{
	if (!doc)
		return;
	while (doc->newest) {
		struct item *i = doc->newest;

		doc->newest = i->older;
		mem_free(i->text);
		mem_free(i->key);
		mem_free(i);
	}
	mem_free(doc->name);
	mem_free(doc);
}

const struct yaml_node *
yaml_root(const struct yaml_doc *doc)
{
	return doc->root;
}

const char *
yaml_name(const struct yaml_doc *doc)
{
	return doc->name;
}

static bool line_err(const struct yaml_doc *doc, int line, struct err *err, const char *fmt, ...) PRINTF_LIKE(4, 5);
static bool line_err_va(const struct yaml_doc *doc, int line, struct err *err, const char *fmt, va_list args)
	PRINTF_LIKE(4, 0);

static bool
line_err_va(const struct yaml_doc *doc, int line, struct err *err, const char *fmt, va_list args)
{
	char text[sizeof(err->text)];

	vsnprintf(text, sizeof(text), fmt, args);
	return err_set(err, ERR_INVALID, "%s:%d: %s", doc->name, line, text);
}

static bool
line_err(const struct yaml_doc *doc, int line, struct err *err, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	line_err_va(doc, line, err, fmt, args);
	va_end(args);
	return false;
}

bool
yaml_err(const struct yaml_doc *doc, const struct yaml_node *n, struct err *err, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	line_err_va(doc, n->line, err, fmt, args);
	va_end(args);
	return false;
}

/* ---- reading ---- */

/* libyaml counts lines from 0, in size_t; the size cap keeps them far below INT_MAX. */
static int
line_of(const yaml_mark_t *mark)
{
	return (int)mark->line + 1;
}

static bool
parser_err(const struct reader *r, struct err *err)
{
	const yaml_parser_t *p = &r->parser;
	const char *problem = p->problem ? p->problem : "not readable as YAML";

	switch (p->error) {
	case YAML_MEMORY_ERROR: return err_set(err, ERR_FATAL, "%s: out of memory", r->doc->name);
	case YAML_READER_ERROR:
		/* the reader knows an offset in bytes, no line */
		return err_set(err, ERR_INVALID, "%s: byte %zu: %s", r->doc->name, p->problem_offset, problem);
	default:
		if (p->context)
			return line_err(r->doc, line_of(&p->problem_mark), err, "%s, %s that began on line %d", problem,
			                p->context, line_of(&p->context_mark));
		return line_err(r->doc, line_of(&p->problem_mark), err, "%s", problem);
	}
}

/* The text of a scalar event; a NUL made by an escape would cut it short unseen. */
static bool
scalar_text(const struct reader *r, const yaml_event_t *e, char **ret, struct err *err)
{
	const char *text = (const char *)e->data.scalar.value;
	size_t len = e->data.scalar.length;

	if (memchr(text, '\0', len))
		return line_err(r->doc, line_of(&e->start_mark), err, "a text holds a NUL character");
	*ret = mem_strndup(text, len);
	return true;
}

/* Makes the node of an event and hangs it into the list or map that is open. */
static bool
add_node(struct reader *r, enum yaml_kind kind, const yaml_event_t *e, struct yaml_node **ret, struct err *err)
{
	int line = line_of(&e->start_mark);
	struct level *up = r->depth ? &r->level[r->depth - 1] : NULL;
	struct item *i;

	if (r->doc->node_count >= YAML_MAX_NODES)
		return line_err(r->doc, line, err, "more than %d values in one document", YAML_MAX_NODES);
	i = mem_alloc(sizeof(*i));
	i->older = r->doc->newest;
	r->doc->newest = i;
	r->doc->node_count++;
	i->node.kind = kind;
	i->node.line = line;
	*ret = &i->node;
	if (!up) {
		r->doc->root = &i->node;
		return true;
	}
	if (up->node->kind == YAML_MAP) {
		i->node.key_line = up->key_line;
		i->key = take(up->key);
		i->node.key = i->key;
	}
	if (up->last)
		up->last->next = &i->node;
	else
		up->node->child = &i->node;
	up->last = &i->node;
	up->node->count++;
	return true;
}

/* A map whose next event must be a key. */
static bool
wants_key(const struct reader *r)
{
	const struct level *up = r->depth ? &r->level[r->depth - 1] : NULL;

	return up && up->node->kind == YAML_MAP && !up->key;
}

static bool
on_scalar(struct reader *r, const yaml_event_t *e, struct err *err)
{
	owned(mem) char *text = NULL;
	struct yaml_node *n;

	if (!scalar_text(r, e, &text, err))
		return false;
	if (wants_key(r)) {
		r->level[r->depth - 1].key = take(text);
		r->level[r->depth - 1].key_line = line_of(&e->start_mark);
		return true;
	}
	if (!add_node(r, YAML_SCALAR, e, &n, err))
		return false;
	n->quoted = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
	n->text = text;
	r->doc->newest->text = take(text);
	return true;
}

static bool
on_open(struct reader *r, enum yaml_kind kind, const yaml_event_t *e, struct err *err)
{
	struct yaml_node *n;

	if (wants_key(r))
		return line_err(r->doc, line_of(&e->start_mark), err,
		                "the key of a map is itself a %s; only text can be a key",
		                kind == YAML_MAP ? "map" : "list");
	if (r->depth == YAML_MAX_DEPTH)
		return line_err(r->doc, line_of(&e->start_mark), err, "nested deeper than %d levels", YAML_MAX_DEPTH);
	if (!add_node(r, kind, e, &n, err))
		return false;
	r->level[r->depth++] = (struct level){.node = n};
	return true;
}

static int
compare_keys(const void *a, const void *b)
{
	const struct yaml_node *const *x = a, *const *y = b;
	int order = strcmp((*x)->key, (*y)->key);

	return order ? order : ((*x)->key_line > (*y)->key_line) - ((*x)->key_line < (*y)->key_line);
}

/* Sorted rather than compared pairwise: the file may hold as many keys as the ceiling lets it. */
static bool
check_duplicates(const struct yaml_doc *doc, const struct yaml_node *map, struct err *err)
{
	owned(mem) const struct yaml_node **sorted = NULL;
	size_t n = 0;

	if (map->count < 2)
		return true;
	sorted = mem_array(map->count, sizeof(*sorted));
	for (const struct yaml_node *c = map->child; c; c = c->next)
		sorted[n++] = c;
	qsort(sorted, n, sizeof(*sorted), compare_keys);
	for (size_t i = 1; i < n; i++)
		if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0)
			return line_err(doc, sorted[i]->key_line, err,
			                "key '%s' appears twice in one map, first on line %d", sorted[i]->key,
			                sorted[i - 1]->key_line);
	return true;
}

static bool
on_close(struct reader *r, struct err *err)
{
	const struct yaml_node *n = r->level[r->depth - 1].node;

	r->depth--;
	return n->kind != YAML_MAP || check_duplicates(r->doc, n, err);
}

/* Refuses anchors, aliases and tags: with them a file means something else than its visible text. */
static bool
refuse_indirection(const struct reader *r, const yaml_event_t *e, const yaml_char_t *anchor, const yaml_char_t *tag,
                   struct err *err)
{
	if (anchor)
		return line_err(r->doc, line_of(&e->start_mark), err, "anchor '&%s' is not allowed",
		                (const char *)anchor);
	if (tag)
		return line_err(r->doc, line_of(&e->start_mark), err, "tag '%s' is not allowed", (const char *)tag);
	return true;
}

static bool
on_event(struct reader *r, const yaml_event_t *e, size_t *documents, struct err *err)
{
	switch (e->type) {
	case YAML_DOCUMENT_START_EVENT:
		if (++*documents > 1)
			return line_err(r->doc, line_of(&e->start_mark), err,
			                "a second document begins here; only one is read");
		return true;
	case YAML_ALIAS_EVENT:
		return line_err(r->doc, line_of(&e->start_mark), err, "alias '*%s' is not allowed",
		                (const char *)e->data.alias.anchor);
	case YAML_SCALAR_EVENT:
		return refuse_indirection(r, e, e->data.scalar.anchor, e->data.scalar.tag, err) && on_scalar(r, e, err);
	case YAML_SEQUENCE_START_EVENT:
		return refuse_indirection(r, e, e->data.sequence_start.anchor, e->data.sequence_start.tag, err) &&
		       on_open(r, YAML_LIST, e, err);
	case YAML_MAPPING_START_EVENT:
		return refuse_indirection(r, e, e->data.mapping_start.anchor, e->data.mapping_start.tag, err) &&
		       on_open(r, YAML_MAP, e, err);
	case YAML_SEQUENCE_END_EVENT:
	case YAML_MAPPING_END_EVENT: return on_close(r, err);
	default: return true;
	}
}

static bool
read_events(struct reader *r, struct err *err)
{
	size_t documents = 0;
	bool ok = true, end = false;

	while (ok && !end) {
		yaml_event_t e;

		if (!yaml_parser_parse(&r->parser, &e))
			return parser_err(r, err);
		end = e.type == YAML_STREAM_END_EVENT;
		ok = on_event(r, &e, &documents, err);
		yaml_event_delete(&e);
	}
	return ok;
}

/* No document, or one without content, reads as an empty map: a configuration of comments alone is complete. */
static void
root_of_nothing(struct reader *r)
{
	if (r->doc->root && !(r->doc->root->kind == YAML_SCALAR && yaml_is_null(r->doc->root)))
		return;
	if (!r->doc->root) {
		struct item *i = mem_alloc(sizeof(*i));

		r->doc->newest = i;
		r->doc->root = &i->node;
		i->node.line = 1;
	}
	r->doc->root->kind = YAML_MAP;
	r->doc->root->text = NULL;
}

/* Also in comments: what a reviewer sees of a file is what it says. A byte order mark may begin it. */
static bool
check_characters(const struct yaml_doc *doc, const char *text, size_t len, struct err *err)
{
	size_t at = len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
	int line = 1;

	while (at < len) {
		uint32_t code = 0;
		size_t n = utf8_next(text + at, len - at, &code);

		if (n == 0)
			return true; /* the parser says where */
		if (code >= 0x80 && text_deceives(code))
			return line_err(doc, line, err,
			                "the character U+%04" PRIX32
			                " is not allowed: it shows text otherwise than it is",
			                code);
		line += code == '\n';
		at += n;
	}
	return true;
}

bool
yaml_parse(const char *name, const char *text, size_t len, struct yaml_doc **ret_doc, struct err *err)
{
	owned(yaml) struct yaml_doc *doc = mem_alloc(sizeof(*doc));
	struct reader r = {.doc = doc};
	bool ok;

	doc->name = mem_strdup(name);
	if (len > YAML_MAX_BYTES)
		return err_set(err, ERR_INVALID, "%s: %zu bytes are more than the limit of %u", name, len,
		               YAML_MAX_BYTES);
	if (!check_characters(doc, text, len, err))
		return false;
	if (!yaml_parser_initialize(&r.parser))
		return err_set(err, ERR_FATAL, "%s: out of memory", name);
	yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&r.parser, (const unsigned char *)(text ? text : ""), len);
	ok = read_events(&r, err);
	yaml_parser_delete(&r.parser);
	for (size_t i = 0; i < r.depth; i++)
		mem_free(r.level[i].key);
	if (!ok)
		return false;
	root_of_nothing(&r);
	*ret_doc = take(doc);
	return true;
}

/* ---- asking ---- */

static const char *
kind_name(enum yaml_kind kind)
{
	switch (kind) {
	case YAML_SCALAR: return "a single value";
	case YAML_LIST: return "a list";
	case YAML_MAP: return "a map";
	}
	return "something else";
}

const struct yaml_node *
yaml_get(const struct yaml_node *map, const char *key)
{
	if (map->kind != YAML_MAP)
		return NULL;
	for (const struct yaml_node *c = map->child; c; c = c->next)
		if (strcmp(c->key, key) == 0)
			return c;
	return NULL;
}

bool
yaml_is_null(const struct yaml_node *n)
{
	return n->kind == YAML_SCALAR && !n->quoted &&
	       (n->text[0] == '\0' || strcmp(n->text, "~") == 0 || strcmp(n->text, "null") == 0);
}

bool
yaml_expect(const struct yaml_doc *doc, const struct yaml_node *n, enum yaml_kind kind, const char *what,
            struct err *err)
{
	if (n->kind == kind)
		return true;
	return yaml_err(doc, n, err, "%s must be %s, here it is %s", what, kind_name(kind), kind_name(n->kind));
}

bool
yaml_only_keys(const struct yaml_doc *doc, const struct yaml_node *map, const char *const *allowed, struct err *err)
{
	if (!yaml_expect(doc, map, YAML_MAP, map->key ? map->key : "this", err))
		return false;
	for (const struct yaml_node *c = map->child; c; c = c->next) {
		const char *const *a = allowed;
		const char *near;

		while (*a && strcmp(*a, c->key) != 0)
			a++;
		if (*a)
			continue;
		near = text_nearest(c->key, allowed);
		if (near)
			return line_err(doc, c->key_line, err, "unknown key '%s'; did you mean '%s'?", c->key, near);
		return line_err(doc, c->key_line, err, "unknown key '%s'", c->key);
	}
	return true;
}

/* The scalar under a key that must be there and must have a value. */
static bool
get_scalar(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, const struct yaml_node **ret,
           struct err *err)
{
	const struct yaml_node *n;

	if (!yaml_expect(doc, map, YAML_MAP, map->key ? map->key : "this", err))
		return false;
	n = yaml_get(map, key);
	if (!n)
		return yaml_err(doc, map, err, "key '%s' is missing", key);
	if (!yaml_expect(doc, n, YAML_SCALAR, key, err))
		return false;
	if (yaml_is_null(n))
		return yaml_err(doc, n, err, "%s has no value", key);
	*ret = n;
	return true;
}

bool
yaml_str(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, const char **ret, struct err *err)
{
	const struct yaml_node *n;

	if (!get_scalar(doc, map, key, &n, err))
		return false;
	*ret = n->text;
	return true;
}

bool
yaml_i64(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, int64_t min, int64_t max,
         int64_t *ret, struct err *err)
{
	const struct yaml_node *n;
	int64_t v;

	if (!get_scalar(doc, map, key, &n, err))
		return false;
	if (n->quoted || !text_to_i64(n->text, &v))
		return yaml_err(doc, n, err, "%s must be a whole number, not '%s'", key, n->text);
	if (v < min || v > max)
		return yaml_err(doc, n, err, "%s is %" PRId64 ", outside %" PRId64 " to %" PRId64, key, v, min, max);
	*ret = v;
	return true;
}

bool
yaml_bool(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, bool *ret, struct err *err)
{
	const struct yaml_node *n;
	bool yes;

	if (!get_scalar(doc, map, key, &n, err))
		return false;
	yes = strcmp(n->text, "true") == 0;
	if (n->quoted || (!yes && strcmp(n->text, "false") != 0))
		return yaml_err(doc, n, err, "%s must be true or false, not '%s'", key, n->text);
	*ret = yes;
	return true;
}
