/* exporter/identity/kubelet/podlabels_decode.c - what a kubelet answers about its pods. The bytes are hostile until they have passed. */
#include <stdlib.h>
#include <string.h>

#include "common/conf/json.h"
#include "common/base/text.h"
#include "common/wire/wire.h"
#include "exporter/identity/kubelet/podlabels.h"

/* ---- which labels ---- */

static bool
add_key(struct podlabels_keys *k, const char *key, size_t len, struct err *err)
{
	const char *fault = label_key_fault(key, len);

	if (fault)
		return err_set(err, ERR_INVALID, "'%.*s' %s", (int)(len < 100 ? len : 100), key, fault);
	for (size_t i = 0; i < k->count; i++)
		if (strlen(k->keys[i]) == len && memcmp(k->keys[i], key, len) == 0)
			return err_set(err, ERR_INVALID, "%s is there twice", k->keys[i]);
	if (k->count == LABEL_MAX_COUNT)
		return err_set(err, ERR_INVALID, "more than %u labels", LABEL_MAX_COUNT);
	k->keys[k->count++] = mem_strndup(key, len);
	return true;
}

bool
podlabels_keys_parse(const char *text, struct podlabels_keys *ret, struct err *err)
{
	*ret = (struct podlabels_keys){0};
	while (*text) {
		size_t len = strcspn(text, ",");

		if (!add_key(ret, text, len, err)) {
			podlabels_keys_fini(ret);
			return false;
		}
		text += len + (text[len] == ',');
	}
	return true;
}

void
podlabels_keys_fini(struct podlabels_keys *k)
{
	for (size_t i = 0; i < k->count; i++)
		mem_free(k->keys[i]);
	k->count = 0;
}

/* ---- lists ---- */

void
podlabels_list_fini(struct podlabels_list *l)
{
	for (size_t i = 0; i < l->count; i++) {
		mem_free(l->pods[i].uid);
		mem_free(l->pods[i].labels);
	}
	mem_free(l->pods);
	*l = (struct podlabels_list){0};
}

static int
pod_order(const void *a, const void *b)
{
	const struct pod_labels *x = a, *y = b;
	int order = strcmp(x->uid, y->uid);

	return order ? order : strcmp(x->labels, y->labels);
}

static int
uid_is(const void *uid, const void *pod)
{
	return strcmp(uid, ((const struct pod_labels *)pod)->uid);
}

const char *
podlabels_find(const struct podlabels_list *l, const char *uid)
{
	const struct pod_labels *found = l->count ? bsearch(uid, l->pods, l->count, sizeof(*l->pods), uid_is) : NULL;

	return found ? found->labels : NULL;
}

/* The texts of the pod become the list's. */
static void
add_pod(struct podlabels_list *l, struct pod_labels pod)
{
	l->pods = mem_grow(l->pods, l->count + 1, sizeof(*l->pods));
	l->pods[l->count++] = pod;
}

/* Of a UID that is there twice one is kept, the same one whatever the order in which they came. */
static void
sort_list(struct podlabels_list *l)
{
	size_t kept = 0;

	if (l->count > 1)
		qsort(l->pods, l->count, sizeof(*l->pods), pod_order);
	for (size_t i = 0; i < l->count; i++) {
		if (kept > 0 && strcmp(l->pods[kept - 1].uid, l->pods[i].uid) == 0) {
			mem_free(l->pods[i].uid);
			mem_free(l->pods[i].labels);
			continue;
		}
		l->pods[kept++] = l->pods[i];
	}
	l->count = kept;
}

void
podlabels_keep(struct podlabels_list *list, const struct podlabels_list *before, int64_t boot_ns)
{
	size_t listed = list->count;

	for (size_t i = 0; i < listed; i++)
		list->pods[i].listed_boot_ns = boot_ns;
	for (size_t i = 0; i < before->count; i++) {
		const struct pod_labels *old = &before->pods[i];
		const struct podlabels_list now = {list->pods, listed};

		if (boot_ns - old->listed_boot_ns < PODLABELS_KEEP_NS && !podlabels_find(&now, old->uid) &&
		    list->count < PODLABELS_PODS_MAX)
			add_pod(list, (struct pod_labels){.uid = mem_strdup(old->uid),
			                                  .labels = mem_strdup(old->labels),
			                                  .listed_boot_ns = old->listed_boot_ns});
	}
	sort_list(list);
}

/* ---- the answer ---- */

/* A pod's whole description is of no interest and may be large, so the answer is cut into pods, and only one at a time becomes a
 * tree. Cutting looks at strings and brackets alone; what is in a pod the parser judges. */
struct scan {
	const char *at, *end;
};

static void
skip_space(struct scan *s)
{
	while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r'))
		s->at++;
}

static bool
skip_char(struct scan *s, char c)
{
	skip_space(s);
	if (s->at == s->end || *s->at != c)
		return false;
	s->at++;
	return true;
}

/* At the opening quote. */
static bool
skip_string(struct scan *s)
{
	for (s->at++; s->at < s->end; s->at++) {
		if (*s->at == '"') {
			s->at++;
			return true;
		}
		if (*s->at == '\\' && ++s->at == s->end)
			return false;
	}
	return false;
}

static bool
ends_a_word(char c)
{
	return strchr(" \n\t\r,:[]{}\"", c) != NULL;
}

/* One value of any kind. */
static bool
skip_value(struct scan *s)
{
	size_t depth = 0;

	do {
		skip_space(s);
		if (s->at >= s->end)
			return false;
		switch (*s->at) {
		case '"':
			if (!skip_string(s))
				return false;
			break;
		case '{':
		case '[':
			depth++;
			s->at++;
			break;
		case '}':
		case ']':
			if (depth == 0)
				return false;
			depth--;
			s->at++;
			break;
		case ',':
		case ':':
			if (depth == 0)
				return false;
			s->at++;
			break;
		default:
			do
				s->at++;
			while (s->at < s->end && !ends_a_word(*s->at));
		}
	} while (depth > 0);
	return true;
}

static char *
labels_of(const json_t *labels, const struct podlabels_keys *keys)
{
	struct labels_set set = {0};

	for (size_t i = 0; i < keys->count; i++) {
		const char *value = json_string_value(json_object_get(labels, keys->keys[i]));

		if (value && !label_value_fault(value, strlen(value)))
			ASSERT(labels_put(&set, keys->keys[i], value));
	}
	return labels_join(&set);
}

static bool
read_pod(const char *text, size_t len, const struct podlabels_keys *keys, struct podlabels_list *to, struct err *err)
{
	owned(json) json_t *pod = NULL;
	const json_t *metadata;
	const char *uid;

	if (!json_parse("pod", text, len, &pod, err))
		return err_prefix(err, "pod %zu of the kubelet's answer", to->count);
	metadata = json_object_get(pod, "metadata");
	uid = json_string_value(json_object_get(metadata, "uid"));
	if (!uid || !uid[0] || strlen(uid) > WIRE_MAX_TEXT || !text_is_clean(uid))
		return true;
	if (to->count == PODLABELS_PODS_MAX)
		return err_set(err, ERR_INVALID, "the kubelet tells of more than %u pods", PODLABELS_PODS_MAX);
	add_pod(to, (struct pod_labels){.uid = mem_strdup(uid),
	                                .labels = labels_of(json_object_get(metadata, "labels"), keys)});
	return true;
}

static bool
not_an_answer(const char *why, struct err *err)
{
	return err_set(err, ERR_INVALID, "the kubelet's answer is not a list of pods: %s", why);
}

/* A list without an element may be null, as Go writes it. */
static bool
read_items(struct scan *s, const struct podlabels_keys *keys, struct podlabels_list *to, struct err *err)
{
	struct scan value = *s;

	if (!skip_value(s))
		return not_an_answer("it ends too early", err);
	skip_space(&value);
	if (s->at - value.at == 4 && memcmp(value.at, "null", 4) == 0)
		return true;
	value.end = s->at;
	if (!skip_char(&value, '['))
		return not_an_answer("items is no list", err);
	if (skip_char(&value, ']'))
		return true;
	do {
		const char *start;

		skip_space(&value);
		start = value.at;
		if (!skip_value(&value))
			return not_an_answer("items ends too early", err);
		if (!read_pod(start, (size_t)(value.at - start), keys, to, err))
			return false;
	} while (skip_char(&value, ','));
	return skip_char(&value, ']') || not_an_answer("items does not end where it should", err);
}

/* One member of the answer. */
static bool
read_member(struct scan *s, const struct podlabels_keys *keys, struct podlabels_list *to, bool *had_items,
            struct err *err)
{
	static const char items[] = "\"items\"";
	const char *key;

	skip_space(s);
	key = s->at;
	if (s->at == s->end || *s->at != '"' || !skip_string(s))
		return not_an_answer("a key is missing", err);
	bool is_items = (size_t)(s->at - key) == sizeof(items) - 1 && memcmp(key, items, sizeof(items) - 1) == 0;
	if (!skip_char(s, ':'))
		return not_an_answer("a value is missing", err);
	if (!is_items)
		return skip_value(s) || not_an_answer("it ends too early", err);
	if (*had_items)
		return not_an_answer("items is there twice", err);
	*had_items = true;
	return read_items(s, keys, to, err);
}

static bool
read_answer(struct scan *s, const struct podlabels_keys *keys, struct podlabels_list *to, struct err *err)
{
	bool had_items = false;

	if (!skip_char(s, '{'))
		return not_an_answer("it is no object", err);
	if (!skip_char(s, '}')) {
		do {
			if (!read_member(s, keys, to, &had_items, err))
				return false;
		} while (skip_char(s, ','));
		if (!skip_char(s, '}'))
			return not_an_answer("it ends too early", err);
	}
	skip_space(s);
	if (s->at != s->end)
		return not_an_answer("something follows it", err);
	return had_items || not_an_answer("it has no items", err);
}

bool
podlabels_decode(const char *body, size_t n, const struct podlabels_keys *keys, struct podlabels_list *ret,
                 struct err *err)
{
	struct podlabels_list list = {0};
	struct scan s = {body, body + n};

	if (!read_answer(&s, keys, &list, err)) {
		podlabels_list_fini(&list);
		return false;
	}
	sort_list(&list);
	*ret = list;
	return true;
}
