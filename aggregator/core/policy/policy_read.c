/* aggregator/core/policy/policy_read.c - typed values of the policy file. */
#include "aggregator/core/policy/policy_read.h"

#include <string.h>

#include "aggregator/core/policy/policy_check.h"
#include "common/base/text.h"

#define SHOWN_MAX 80
#define LISTED_MAX 256u

int
policy_shown(const char *text)
{
	size_t n = strnlen(text, SHOWN_MAX);

	while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
		n--;
	return (int)n;
}

bool
policy_read_text(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, const char *preset,
                 size_t max, char **ret, struct err *err)
{
	const struct yaml_node *n = yaml_get(map, key);
	const char *text;

	if (n == NULL) {
		*ret = mem_strdup(preset);
		return true;
	}
	if (!yaml_str(doc, map, key, &text, err))
		return false;
	if (text[0] == '\0' && (preset == NULL || preset[0] != '\0'))
		return yaml_err(doc, n, err, "%s is empty", key);
	if (strlen(text) > max)
		return yaml_err(doc, n, err, "%s has %zu bytes, at most %zu are allowed", key, strlen(text), max);
	if (!text_is_clean(text))
		return yaml_err(
			doc, n, err,
			"%s has a control character or one that turns the direction of writing, or is not UTF-8", key);
	*ret = mem_strdup(text);
	return true;
}

bool
policy_read_checked(const struct yaml_doc *doc, const struct yaml_node *map, const char *what, const char *key,
                    const char *(*fault)(const char *), char **ret, struct err *err)
{
	const char *text, *reason;

	if (yaml_get(map, key) == NULL)
		return yaml_err(doc, map, err, "a %s needs the key %s", what, key);
	if (!yaml_str(doc, map, key, &text, err))
		return false;
	reason = fault(text);
	if (reason != NULL)
		return yaml_err(doc, yaml_get(map, key), err, "%s %s \"%.*s\" %s", what, key, policy_shown(text), text,
		                reason);
	*ret = mem_strdup(text);
	return true;
}

bool
policy_read_optional(const struct yaml_doc *doc, const struct yaml_node *map, const char *what, const char *key,
                     const char *(*fault)(const char *), char **ret, struct err *err)
{
	return yaml_get(map, key) == NULL || policy_read_checked(doc, map, what, key, fault, ret, err);
}

bool
policy_read_word(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, const char *const *words,
                 const char **ret, struct err *err)
{
	in_place(buf) struct buf listed = {0};
	const char *text;

	buf_init(&listed, LISTED_MAX);
	if (yaml_get(map, key) == NULL)
		return true;
	if (!yaml_str(doc, map, key, &text, err))
		return false;
	for (const char *const *w = words; *w != NULL; w++) {
		if (strcmp(*w, text) == 0) {
			*ret = *w;
			return true;
		}
		buf_printf(&listed, "%s%s", w == words ? "" : ", ", *w);
	}
	return yaml_err(doc, yaml_get(map, key), err, "%s \"%.*s\" is not one of %s", key, policy_shown(text), text,
	                buf_text(&listed));
}

bool
policy_read_list(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, size_t max,
                 const struct yaml_node **ret, struct err *err)
{
	const struct yaml_node *n = yaml_get(map, key);

	*ret = n;
	if (n == NULL)
		return true;
	if (!yaml_expect(doc, n, YAML_LIST, key, err))
		return false;
	if (n->count > max)
		return yaml_err(doc, n, err, "%s has %zu entries, at most %zu are allowed", key, n->count, max);
	return true;
}

bool
policy_read_amounts(const struct yaml_doc *doc, const struct yaml_node *map, const char *key,
                    struct policy_amounts *ret, struct err *err)
{
	const struct yaml_node *n = yaml_get(map, key);
	struct quantities q;

	if (n == NULL)
		return true;
	if (!quantity_read(doc, n, &q, err))
		return false;
	for (size_t i = 0; i < q.count; i++) {
		const char *reason = q.at[i].model[0] ? policy_code_fault(q.at[i].model) : NULL;
		struct err why = {0};
		int64_t units;

		if (reason != NULL)
			return yaml_err(doc, n, err, "%s: model \"%s\" %s", key, q.at[i].model, reason);
		reason = q.at[i].profile[0] ? policy_profile_fault(q.at[i].profile) : NULL;
		if (reason != NULL)
			return yaml_err(doc, n, err, "%s: profile \"%s\" %s", key, q.at[i].profile, reason);
		/* what an instance weighs is known when its model is */
		if ((q.at[i].model[0] || !q.at[i].profile[0]) && !quantity_units(&q.at[i], q.at[i].model, &units, &why))
			return yaml_err(doc, n, err, "%s: %s", key, why.text);
	}
	ret->at = mem_array(q.count, sizeof(*ret->at));
	memcpy(ret->at, q.at, q.count * sizeof(*ret->at));
	ret->count = q.count;
	ret->line = n->line;
	return true;
}

/* Suffixes as Kubernetes writes them; the value of 1 in the unit that is kept. */
static const struct suffix {
	const char *text;
	int64_t each;
} cores[] = {{"m", 1}, {"", 1000}}, bytes[] = {{"", 1},
                                               {"Ki", INT64_C(1) << 10},
                                               {"Mi", INT64_C(1) << 20},
                                               {"Gi", INT64_C(1) << 30},
                                               {"Ti", INT64_C(1) << 40},
                                               {"Pi", INT64_C(1) << 50},
                                               {"k", 1000},
                                               {"M", INT64_C(1000000)},
                                               {"G", INT64_C(1000000000)},
                                               {"T", INT64_C(1000000000000)},
                                               {"P", INT64_C(1000000000000000)}};

#define RESOURCE_MAX (INT64_C(1) << 60)

/* A whole number and a suffix, or `none`. */
static bool
read_resource(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, const struct suffix *suffixes,
              size_t count, const char *like, int64_t *ret, struct err *err)
{
	size_t digits;
	const char *text;
	char number[20];
	int64_t value;

	if (yaml_get(map, key) == NULL)
		return true;
	if (!yaml_str(doc, map, key, &text, err))
		return false;
	if (strcmp(text, "none") == 0)
		return true;
	digits = strspn(text, "0123456789");
	if (digits > 0 && digits < sizeof(number)) {
		memcpy(number, text, digits);
		number[digits] = '\0';
		for (size_t i = 0; i < count && text_to_i64(number, &value); i++)
			if (strcmp(suffixes[i].text, text + digits) == 0 && value <= RESOURCE_MAX / suffixes[i].each) {
				*ret = value * suffixes[i].each;
				return true;
			}
	}
	return yaml_err(doc, yaml_get(map, key), err, "%s \"%.*s\" is not an amount like %s or none, at most 2^60", key,
	                policy_shown(text), text, like);
}

bool
policy_read_resources(const struct yaml_doc *doc, const struct yaml_node *map, struct policy_resources *ret,
                      struct err *err)
{
	static const char *const keys[] = {"cpu", "memory", "storage", NULL};
	const struct yaml_node *n = yaml_get(map, "limits");

	*ret = (struct policy_resources){.cpu_millis = -1, .memory_bytes = -1, .storage_bytes = -1};
	if (n == NULL)
		return true;
	ret->line = n->line;
	return yaml_expect(doc, n, YAML_MAP, "limits", err) && yaml_only_keys(doc, n, keys, err) &&
	       read_resource(doc, n, "cpu", cores, ARRAY_LEN(cores), "64 or 500m", &ret->cpu_millis, err) &&
	       read_resource(doc, n, "memory", bytes, ARRAY_LEN(bytes), "512Gi", &ret->memory_bytes, err) &&
	       read_resource(doc, n, "storage", bytes, ARRAY_LEN(bytes), "10Ti", &ret->storage_bytes, err);
}
