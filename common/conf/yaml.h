/* common/conf/yaml.h - a YAML document (or JSON, which is YAML) as a tree that knows its lines.
 *
 * Built on libyaml's parser with ceilings on size, depth and node count. Anchors, aliases, tags, duplicate keys and a second
 * document are refused: a policy says what it says. All scalars stay text until they are asked for as a type. A document
 * with nothing in it is an empty map. Errors read "FILE:LINE: ...". */
#ifndef TOLLGATE_YAML_H
#define TOLLGATE_YAML_H

#include "common/base/err.h"

enum yaml_kind { YAML_SCALAR, YAML_LIST, YAML_MAP };

struct yaml_node {
	enum yaml_kind kind;
	int line;                /* where the value begins, from 1 */
	int key_line;            /* where its key is, in a map; else 0 */
	bool quoted;             /* a quoted scalar is text, never null, number or boolean */
	const char *key;         /* the key under which a map holds this node, else NULL */
	const char *text;        /* scalar */
	struct yaml_node *child; /* first child of a list or map, in document order */
	struct yaml_node *next;
	size_t count;
};

struct yaml_doc; /* owns every node and string */

#define YAML_MAX_BYTES (4u << 20)
#define YAML_MAX_DEPTH 32
#define YAML_MAX_NODES 200000

MUST_CHECK bool yaml_parse(const char *name, const char *text, size_t len, struct yaml_doc **ret_doc, struct err *err);
/* Not yaml_free: libyaml has a function of that name, and ours would take its place. */
void yaml_doc_free(struct yaml_doc *doc);
static inline void
yaml_freep(struct yaml_doc **doc)
{
	yaml_doc_free(*doc);
} /* owned(yaml) */
const struct yaml_node *yaml_root(const struct yaml_doc *doc); /* never NULL */
const char *yaml_name(const struct yaml_doc *doc);

/* "FILE:LINE: message"; returns false. */
bool yaml_err(const struct yaml_doc *doc, const struct yaml_node *n, struct err *err, const char *fmt, ...)
	PRINTF_LIKE(4, 5);

const struct yaml_node *yaml_get(const struct yaml_node *map,
                                 const char *key); /* NULL when absent, or when it is no map */
bool yaml_is_null(const struct yaml_node *n);      /* an empty value, ~ or null, not quoted */
/* Refuses a node of another kind, naming what was expected. */
MUST_CHECK bool yaml_expect(const struct yaml_doc *doc, const struct yaml_node *n, enum yaml_kind kind,
                            const char *what, struct err *err);
/* Refuses keys of a map that are not in the NULL-ended list, naming the nearest allowed one. */
MUST_CHECK bool yaml_only_keys(const struct yaml_doc *doc, const struct yaml_node *map, const char *const *allowed,
                               struct err *err);
/* Scalars as types. A missing key is an error that names `key` and the map's line. Strings may be plain or quoted and keep
 * their text ("007" and 007 alike), but not null; integers are plain decimal without leading zeros; booleans true or false. */
MUST_CHECK bool yaml_str(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, const char **ret,
                         struct err *err);
MUST_CHECK bool yaml_i64(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, int64_t min,
                         int64_t max, int64_t *ret, struct err *err);
MUST_CHECK bool yaml_bool(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, bool *ret,
                          struct err *err);

#endif
