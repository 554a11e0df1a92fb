/* aggregator/core/policy/policy_sla.c - the key sla of a tenant or a workspace. */
#include "aggregator/core/policy/policy_sla.h"

#include "aggregator/core/policy/policy_read.h"
#include "common/base/time.h"

#define PERCENT_SCALE 4 /* a millionth is 0.0001 percent */

static bool
read_wait(const struct yaml_doc *doc, const struct yaml_node *n, int64_t *ret, struct err *err)
{
	char most[TIME_TEXT_SIZE];
	struct err why = {0};
	const char *text;

	if (yaml_get(n, "owed_wait") == NULL)
		return true;
	if (!yaml_str(doc, n, "owed_wait", &text, err))
		return false;
	if (!duration_parse(text, ret, &why))
		return yaml_err(doc, yaml_get(n, "owed_wait"), err, "owed_wait: %s", why.text);
	if (*ret < NS_PER_S || *ret > POLICY_MAX_OWED_WAIT_NS)
		return yaml_err(doc, yaml_get(n, "owed_wait"), err, "owed_wait \"%.*s\" is outside 1s to %s",
		                policy_shown(text), text, duration_format(POLICY_MAX_OWED_WAIT_NS, most));
	return true;
}

static bool
read_delivered(const struct yaml_doc *doc, const struct yaml_node *n, int64_t *ret, struct err *err)
{
	struct err why = {0};
	const char *text;
	int128 v;

	if (yaml_get(n, "delivered") == NULL)
		return true;
	if (!yaml_str(doc, n, "delivered", &text, err))
		return false;
	if (!decimal_parse(text, PERCENT_SCALE, &v, &why))
		return yaml_err(doc, yaml_get(n, "delivered"), err, "delivered: %s", why.text);
	if (v <= 0 || v > 1000000)
		return yaml_err(doc, yaml_get(n, "delivered"), err,
		                "delivered \"%.*s\" is outside 0 (not included) to 100 percent", policy_shown(text),
		                text);
	*ret = (int64_t)v;
	return true;
}

bool
policy_read_sla(const struct yaml_doc *doc, const struct yaml_node *map, struct policy_sla *ret, struct err *err)
{
	static const char *const keys[] = {"owed_wait", "delivered", NULL};
	const struct yaml_node *n = yaml_get(map, "sla");
	struct policy_sla s = {0};

	if (n == NULL)
		return true;
	if (!yaml_expect(doc, n, YAML_MAP, "sla", err) || !yaml_only_keys(doc, n, keys, err) ||
	    !read_wait(doc, n, &s.owed_wait_ns, err) || !read_delivered(doc, n, &s.delivered_millionths, err))
		return false;
	if (s.owed_wait_ns == 0 && s.delivered_millionths == 0)
		return yaml_err(doc, n, err, "sla needs owed_wait, delivered or both");
	*ret = s;
	return true;
}

void
policy_sla_text(const struct policy_sla *s, struct buf *out)
{
	char text[DECIMAL_TEXT_SIZE], wait[TIME_TEXT_SIZE];
	const char *before = "{";

	if (s->owed_wait_ns > 0) {
		buf_printf(out, "{owed_wait: %s", duration_format(s->owed_wait_ns, wait));
		before = ", ";
	}
	if (s->delivered_millionths > 0)
		buf_printf(out, "%sdelivered: \"%s\"", before,
		           decimal_format(s->delivered_millionths, PERCENT_SCALE, 0, text));
	if (s->owed_wait_ns > 0 || s->delivered_millionths > 0)
		buf_char(out, '}');
}
