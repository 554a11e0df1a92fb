/* common/base/labels.c - labels of a pod as one text. */
#include "common/base/labels.h"

#include <string.h>

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGIT "0123456789"

static bool
is_one_of(char c, const char *set)
{
	return c != '\0' && strchr(set, c) != NULL;
}

static bool
only(const char *text, size_t len, const char *set)
{
	for (size_t i = 0; i < len; i++)
		if (!is_one_of(text[i], set))
			return false;
	return true;
}

/* Letters, digits and -_. with a letter or digit at both ends: a value, and the name of a key. */
static bool
is_word(const char *text, size_t len)
{
	return len > 0 && only(text, len, LOWER UPPER DIGIT "-_.") && is_one_of(text[0], LOWER UPPER DIGIT) &&
	       is_one_of(text[len - 1], LOWER UPPER DIGIT);
}

/* A DNS name: parts of lower-case letters, digits and - between dots, each with a letter or digit at both ends. */
static bool
is_dns_name(const char *text, size_t len)
{
	size_t part = 0;

	for (size_t i = 0; i <= len; i++) {
		if (i < len && text[i] != '.')
			continue;
		if (i == part || !only(text + part, i - part, LOWER DIGIT "-") || text[part] == '-' ||
		    text[i - 1] == '-')
			return false;
		part = i + 1;
	}
	return true;
}

const char *
label_key_fault(const char *key, size_t len)
{
	const char *slash = len > 0 ? memchr(key, '/', len) : NULL;
	size_t prefix = slash ? (size_t)(slash - key) : 0;
	const char *name = slash ? slash + 1 : key;
	size_t name_len = len - (size_t)(name - key);

	if (prefix > LABEL_MAX_PREFIX)
		return "has more than 253 characters before the /";
	if (name_len > LABEL_MAX_NAME)
		return slash ? "has more than 63 characters behind the /" : "is longer than 63 characters";
	if (slash && !is_dns_name(key, prefix))
		return "must have a DNS name of lower-case letters, digits, '-' and '.' before the /";
	if (!is_word(name, name_len))
		return "must be letters, digits, '-', '_' and '.', beginning and ending with a letter or digit";
	return NULL;
}

const char *
label_value_fault(const char *value, size_t len)
{
	if (len > LABEL_MAX_VALUE)
		return "is longer than 63 characters";
	if (len > 0 && !is_word(value, len))
		return "must be letters, digits, '-', '_' and '.', beginning and ending with a letter or digit";
	return NULL;
}

bool
labels_next(const char **at, struct label *ret)
{
	size_t len = strcspn(*at, ",");
	const char *equals;

	if (**at == '\0')
		return false;
	equals = memchr(*at, '=', len);
	ret->key = *at;
	ret->key_len = equals ? (size_t)(equals - *at) : len;
	ret->value = equals ? equals + 1 : *at + len;
	ret->value_len = len - (size_t)(ret->value - *at);
	*at += len + ((*at)[len] == ',');
	return true;
}

static int
compare_keys(const struct label *a, const struct label *b)
{
	size_t shorter = a->key_len < b->key_len ? a->key_len : b->key_len;
	int order = memcmp(a->key, b->key, shorter);

	return order ? order : (a->key_len > b->key_len) - (a->key_len < b->key_len);
}

const char *
labels_fault(const char *labels)
{
	struct label before = {0}, l;
	const char *at = labels, *fault;
	size_t count = 0;

	for (; labels_next(&at, &l); before = l) {
		if (++count > LABEL_MAX_COUNT)
			return "has more than 16 labels";
		_Static_assert(LABEL_MAX_COUNT == 16, "the message above says 16");
		if (l.value == l.key + l.key_len)
			return "has a label without =";
		if ((fault = label_key_fault(l.key, l.key_len)) || (fault = label_value_fault(l.value, l.value_len)))
			return fault;
		if (before.key && compare_keys(&before, &l) >= 0)
			return "has labels that are not in the order of their keys, or one of them twice";
	}
	return labels[0] != '\0' && at[-1] == ',' ? "ends in a comma" : NULL;
}

bool
labels_find(const char *labels, const char *key, size_t key_len, struct label *ret)
{
	while (labels_next(&labels, ret))
		if (ret->key_len == key_len && memcmp(ret->key, key, key_len) == 0)
			return true;
	return false;
}

bool
labels_put(struct labels_set *s, const char *key, const char *value)
{
	const struct label l = {key, value, strlen(key), strlen(value)};
	size_t at = 0;

	while (at < s->count && compare_keys(&s->at[at], &l) < 0)
		at++;
	if (at == s->count || compare_keys(&s->at[at], &l) != 0) {
		if (s->count == LABEL_MAX_COUNT)
			return false;
		memmove(&s->at[at + 1], &s->at[at], (s->count - at) * sizeof(s->at[0]));
		s->count++;
	}
	s->at[at] = l;
	return true;
}

char *
labels_join(const struct labels_set *s)
{
	in_place(buf) struct buf b = {0};

	/* patterns have no more characters than what they match is allowed */
	buf_init(&b, LABELS_MAX_TEXT);
	for (size_t i = 0; i < s->count; i++) {
		if (i > 0)
			buf_char(&b, ',');
		buf_add(&b, s->at[i].key, s->at[i].key_len);
		buf_char(&b, '=');
		buf_add(&b, s->at[i].value, s->at[i].value_len);
	}
	ASSERT(!b.over);
	return mem_strdup(buf_text(&b));
}
