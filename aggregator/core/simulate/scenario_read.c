/* aggregator/core/simulate/scenario_read.c - typed values of a scenario file. */
#include "aggregator/core/simulate/scenario_read.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "aggregator/core/policy/policy_check.h"
#include "aggregator/core/quota/engine/quota.h"
#include "common/base/text.h"
#include "common/base/time.h"

#define SHOWN_MAX 80
#define ID_MAX (QUOTA_ID_SIZE - 1u)

bool
scenario_err(const struct scenario_at *at, const char *key, struct err *err, const char *fmt, ...)
{
	const struct yaml_node *n = key != NULL ? yaml_get(at->map, key) : NULL;
	char said[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(said, sizeof(said), fmt, args);
	va_end(args);
	if (n == NULL)
		return yaml_err(at->doc, at->map, err, "%s: %s", at->what, said);
	if (n->kind != YAML_SCALAR)
		return yaml_err(at->doc, n, err, "%s %s %s", at->what, key, said);
	return yaml_err(at->doc, n, err, "%s %s \"%.*s\" %s", at->what, key, SHOWN_MAX, n->text, said);
}

bool
scenario_map(const struct scenario_at *at, const char *const *keys, struct err *err)
{
	return yaml_expect(at->doc, at->map, YAML_MAP, at->what, err) && yaml_only_keys(at->doc, at->map, keys, err);
}

bool
scenario_text(const struct scenario_at *at, const char *key, const char *(*fault)(const char *), bool required,
              char **ret, struct err *err)
{
	const char *text, *reason;

	if (yaml_get(at->map, key) == NULL)
		return !required || scenario_err(at, key, err, "the key %s is missing", key);
	if (!yaml_str(at->doc, at->map, key, &text, err))
		return false;
	reason = fault(text);
	if (reason != NULL)
		return scenario_err(at, key, err, "%s", reason);
	mem_free(*ret);
	*ret = mem_strdup(text);
	return true;
}

bool
scenario_choice(const struct scenario_at *at, const char *key, const char *const *words, int *ret, struct err *err)
{
	in_place(buf) struct buf listed = {0};
	const char *text;

	buf_init(&listed, 256);
	if (yaml_get(at->map, key) == NULL)
		return true;
	if (!yaml_str(at->doc, at->map, key, &text, err))
		return false;
	for (int i = 0; words[i] != NULL; i++) {
		if (strcmp(words[i], text) == 0) {
			*ret = i;
			return true;
		}
		buf_printf(&listed, "%s%s", i > 0 ? ", " : "", words[i]);
	}
	return scenario_err(at, key, err, "is not one of %s", buf_text(&listed));
}

bool
scenario_i64(const struct scenario_at *at, const char *key, int64_t min, int64_t max, int64_t *ret, struct err *err)
{
	return yaml_get(at->map, key) == NULL || yaml_i64(at->doc, at->map, key, min, max, ret, err);
}

bool
scenario_bool(const struct scenario_at *at, const char *key, bool *ret, struct err *err)
{
	return yaml_get(at->map, key) == NULL || yaml_bool(at->doc, at->map, key, ret, err);
}

bool
scenario_duration(const struct scenario_at *at, const char *key, int64_t max_ns, int64_t *ret_ns, struct err *err)
{
	char most[TIME_TEXT_SIZE];
	struct err why = {0};
	const char *text;

	if (yaml_get(at->map, key) == NULL)
		return true;
	if (!yaml_str(at->doc, at->map, key, &text, err))
		return false;
	if (strcmp(text, "0") == 0) {
		*ret_ns = 0;
		return true;
	}
	if (!duration_parse(text, ret_ns, &why))
		return scenario_err(at, key, err, "is not a duration such as 90s, 10m or 7d");
	if (*ret_ns > max_ns)
		return scenario_err(at, key, err, "is more than %s", duration_format(max_ns, most));
	return true;
}

bool
scenario_list(const struct scenario_at *at, const char *key, size_t max, const struct yaml_node **ret, struct err *err)
{
	const struct yaml_node *n = yaml_get(at->map, key);

	*ret = n;
	if (n == NULL)
		return true;
	if (!yaml_expect(at->doc, n, YAML_LIST, key, err))
		return false;
	if (n->count > max)
		return yaml_err(at->doc, n, err, "%s has %zu entries, at most %zu are allowed", key, n->count, max);
	return true;
}

bool
scenario_amounts(const struct scenario_at *at, const char *key, struct quantities *ret, struct err *err)
{
	const struct yaml_node *n = yaml_get(at->map, key);
	struct err why = {0};

	*ret = (struct quantities){0};
	if (n == NULL)
		return true;
	if (n->kind != YAML_SCALAR)
		return quantity_read(at->doc, n, ret, err);
	ret->count = 1;
	return quantity_parse(n->text, &ret->at[0], &why) ||
	       yaml_err(at->doc, n, err, "%s %s %s", at->what, key, why.text);
}

const char *
scenario_id_fault(const char *text)
{
	size_t len = strnlen(text, ID_MAX + 1);

	if (len == 0)
		return "is empty";
	if (len > ID_MAX)
		return "has more than 63 characters";
	return text_is_clean(text) && strchr(text, ' ') == NULL
	               ? NULL
	               : "has a space, a control or a direction character, or is not UTF-8";
}

const char *
scenario_path_fault(const char *text)
{
	static const char fault[] = "is not of the form TENANT/WORKSPACE";
	const char *slash = strchr(text, '/');
	char tenant[64];

	if (slash == NULL || slash - text >= (ptrdiff_t)sizeof(tenant))
		return fault;
	memcpy(tenant, text, (size_t)(slash - text));
	tenant[slash - text] = '\0';
	return policy_label_fault(tenant) == NULL && policy_label_fault(slash + 1) == NULL ? NULL : fault;
}
