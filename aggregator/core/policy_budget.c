/* aggregator/core/policy_budget.c - the key budget of a tenant or a workspace. */
#include "aggregator/core/policy_budget.h"

#include <string.h>

#include "aggregator/core/policy_read.h"

_Static_assert(PRICE_SCALE == QUANTITY_SCALE, "an amount has one scale, of money or of hours");

static bool
read_amount(const struct yaml_doc *doc, const struct yaml_node *n, const char *key, int scale, int128 *ret,
            struct err *err)
{
	struct err why = {0};
	const char *text;

	if (!yaml_str(doc, n, key, &text, err))
		return false;
	if (!decimal_parse(text, scale, ret, &why))
		return yaml_err(doc, yaml_get(n, key), err, "%s: %s", key, why.text);
	*ret *= pow10_i128(PRICE_SCALE - scale);
	if (*ret <= 0 || *ret > POLICY_MAX_BUDGET * pow10_i128(PRICE_SCALE))
		return yaml_err(doc, yaml_get(n, key), err, "%s \"%.*s\" is outside 0 (not included) to %" PRId64, key,
		                policy_shown(text), text, POLICY_MAX_BUDGET);
	return true;
}

static bool
read_money(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_budget *b, struct err *err)
{
	struct err why = {0};
	const char *currency;
	int exponent;

	if (yaml_get(n, "currency") == NULL)
		return yaml_err(doc, n, err, "a budget with an amount needs the key currency");
	if (!yaml_str(doc, n, "currency", &currency, err))
		return false;
	if (!currency_exponent(currency, &exponent, &why))
		return yaml_err(doc, yaml_get(n, "currency"), err, "currency: %s", why.text);
	memcpy(b->currency, currency, sizeof(b->currency)); /* three letters */
	return read_amount(doc, n, "amount", exponent, &b->amount, err);
}

bool
policy_read_budget(const struct yaml_doc *doc, const struct yaml_node *map, struct policy_budget *ret, struct err *err)
{
	static const char *const keys[] = {"amount", "currency", "gpu_hours", "kind", NULL};
	static const char *const kinds[] = {"soft", "hard", NULL};
	const struct yaml_node *n = yaml_get(map, "budget");
	struct policy_budget b = {.kind = "soft"};

	if (n == NULL)
		return true;
	b.line = n->line;
	if (!yaml_expect(doc, n, YAML_MAP, "a budget", err) || !yaml_only_keys(doc, n, keys, err) ||
	    !policy_read_word(doc, n, "kind", kinds, &b.kind, err))
		return false;
	b.hours = yaml_get(n, "gpu_hours") != NULL;
	if (b.hours == (yaml_get(n, "amount") != NULL))
		return yaml_err(doc, n, err, "a budget has either an amount or gpu_hours");
	if (b.hours && yaml_get(n, "currency") != NULL)
		return yaml_err(doc, n, err, "a budget of gpu_hours has no currency");
	if (!(b.hours ? read_amount(doc, n, "gpu_hours", QUANTITY_SCALE, &b.amount, err) : read_money(doc, n, &b, err)))
		return false;
	*ret = b;
	return true;
}

void
policy_budget_text(const struct policy_budget *b, struct buf *out)
{
	char text[DECIMAL_TEXT_SIZE];
	struct err ignored = {0};
	int exponent = 0;

	if (b->kind == NULL)
		return;
	if (b->hours) {
		buf_printf(out, "{gpu_hours: \"%s\"", decimal_format(b->amount, QUANTITY_SCALE, 0, text));
	} else {
		if (!currency_exponent(b->currency, &exponent, &ignored)) /* the reader refused it */
			exponent = 0;
		buf_printf(out, "{amount: \"%s\", currency: %s", decimal_format(b->amount, PRICE_SCALE, exponent, text),
		           b->currency);
	}
	buf_printf(out, ", kind: %s}", b->kind);
}
