/* aggregator/core/policy/policy_exception.c - the key auto_approve of a tenant. */
#include "aggregator/core/policy/policy_exception.h"

#include "aggregator/core/policy/policy_read.h"
#include "common/base/time.h"

static bool
read_max(const struct yaml_doc *doc, const struct yaml_node *n, int64_t *ret, struct err *err)
{
	struct quantity q;
	struct err why = {0};
	const char *text;

	if (!yaml_str(doc, n, "max", &text, err))
		return false;
	if (!quantity_parse(text, &q, &why) || (!q.unlimited && !quantity_units(&q, "", ret, &why)))
		return yaml_err(doc, yaml_get(n, "max"), err, "max: %s", why.text);
	if (q.unlimited || q.profile[0] != '\0' || *ret <= 0)
		return yaml_err(doc, yaml_get(n, "max"), err,
		                "max \"%.*s\" is not a number of GPUs, or a part of one, above 0", policy_shown(text),
		                text);
	return true;
}

static bool
read_for(const struct yaml_doc *doc, const struct yaml_node *n, int64_t *ret, struct err *err)
{
	char most[TIME_TEXT_SIZE];
	struct err why = {0};
	const char *text;

	if (!yaml_str(doc, n, "for", &text, err))
		return false;
	if (!duration_parse(text, ret, &why))
		return yaml_err(doc, yaml_get(n, "for"), err, "for: %s", why.text);
	if (*ret < NS_PER_MIN || *ret > POLICY_MAX_EXCEPTION_NS)
		return yaml_err(doc, yaml_get(n, "for"), err, "for \"%.*s\" is outside 1m to %s", policy_shown(text),
		                text, duration_format(POLICY_MAX_EXCEPTION_NS, most));
	return true;
}

bool
policy_read_auto_approve(const struct yaml_doc *doc, const struct yaml_node *map, struct policy_auto_approve *ret,
                         struct err *err)
{
	static const char *const keys[] = {"max", "for", NULL};
	const struct yaml_node *n = yaml_get(map, "auto_approve");
	struct policy_auto_approve a = {0};

	if (n == NULL)
		return true;
	if (!yaml_expect(doc, n, YAML_MAP, "auto_approve", err) || !yaml_only_keys(doc, n, keys, err))
		return false;
	if (yaml_get(n, "max") == NULL || yaml_get(n, "for") == NULL)
		return yaml_err(doc, n, err, "auto_approve needs the keys max and for");
	if (!read_max(doc, n, &a.units, err) || !read_for(doc, n, &a.for_ns, err))
		return false;
	*ret = a;
	return true;
}

void
policy_auto_approve_text(const struct policy_auto_approve *a, struct buf *out)
{
	char max[QUANTITY_TEXT_SIZE], longest[TIME_TEXT_SIZE];

	if (a->units > 0)
		buf_printf(out, "{max: %s, for: %s}", quantity_text(a->units, max),
		           duration_format(a->for_ns, longest));
}
