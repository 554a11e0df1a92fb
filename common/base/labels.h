/* common/base/labels.h - labels of a pod as one text: "app=web,team=ml".
 *
 * Kubernetes allows neither = nor , in a key or a value, so the text can be taken apart again. There is one spelling for
 * one set of labels: ordered by the bytes of the keys, no key twice, no empty part. The empty text is no labels. Patterns
 * of labels (core/policy) are written alike. Pure. */
#ifndef TOLLGATE_LABELS_H
#define TOLLGATE_LABELS_H

#include "common/base/buf.h"

#define LABEL_MAX_COUNT 16u   /* of one pod */
#define LABEL_MAX_PREFIX 253u /* of a key, before its / */
#define LABEL_MAX_NAME 63u
#define LABEL_MAX_KEY (LABEL_MAX_PREFIX + 1 + LABEL_MAX_NAME)
#define LABEL_MAX_VALUE 63u
#define LABELS_MAX_TEXT (LABEL_MAX_COUNT * (LABEL_MAX_KEY + 1 + LABEL_MAX_VALUE + 1) - 1)

/* NULL if Kubernetes allows it, otherwise the reason as the end of a sentence: "is longer than 63 characters". */
const char *label_key_fault(const char *key, size_t len);
const char *label_value_fault(const char *value, size_t len);

/* NULL when the text is the one spelling of at most LABEL_MAX_COUNT labels, each with a key and a value that are allowed; else the
 * reason. */
const char *labels_fault(const char *labels);

/* One label of a text; key and value are not terminated. */
struct label {
	const char *key, *value;
	size_t key_len, value_len;
};

/* The label at *at, which moves behind it; false at the end. Any text is safe to walk. */
bool labels_next(const char **at, struct label *ret);
/* The label of that key. */
bool labels_find(const char *labels, const char *key, size_t key_len, struct label *ret);

/* A set that is being put together, in any order. Texts are borrowed. */
struct labels_set {
	struct label at[LABEL_MAX_COUNT];
	size_t count;
};

/* A key that is there already keeps its place and gets the new value. False when it is full. */
MUST_CHECK bool labels_put(struct labels_set *s, const char *key, const char *value);
/* The text, from mem_*. */
char *labels_join(const struct labels_set *s);

#endif
