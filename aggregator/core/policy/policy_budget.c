/* aggregator/core/policy/policy_budget.c - the key budget of a tenant or a workspace. */
#include "aggregator/core/policy/policy_budget.h"

#include <string.h>

#include "aggregator/core/rating/budget.h"
#include "aggregator/core/policy/policy_read.h"

_Static_assert(PRICE_SCALE == QUANTITY_SCALE, "an amount has one scale, of money or of hours");

static bool
read_amount(const struct yaml_doc *doc, const struct yaml_node *n, const char *key, int scale, int64_t most,
            int128 *ret, struct err *err)
{
	struct err why = {0};
	const char *text;

	if (!yaml_str(doc, n, key, &text, err))
		return false;
	if (!decimal_parse(text, scale, ret, &why))
		return yaml_err(doc, yaml_get(n, key), err, "%s: %s", key, why.text);
	*ret *= pow10_i128(PRICE_SCALE - scale);
	if (*ret <= 0 || *ret > most * pow10_i128(PRICE_SCALE))
		return yaml_err(doc, yaml_get(n, key), err, "%s \"%.*s\" is outside 0 (not included) to %" PRId64, key,
		                policy_shown(text), text, most);
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
	memcpy(b->unit, currency, sizeof("EUR"));
	return read_amount(doc, n, "amount", exponent, POLICY_MAX_BUDGET, &b->amount, err);
}

bool
policy_read_budget(const struct yaml_doc *doc, const struct yaml_node *map, struct policy_budget *ret, struct err *err)
{
	static const char *const keys[] = {"amount", "currency", "gpu_hours", "tokens", "kind", NULL};
	static const char *const kinds[] = {"soft", "hard", NULL};
	const struct yaml_node *n = yaml_get(map, "budget");
	struct policy_budget b = {.kind = "soft", .unit = BUDGET_HOURS};
	bool money, hours, tokens, ok;

	if (n == NULL)
		return true;
	b.line = n->line;
	if (!yaml_expect(doc, n, YAML_MAP, "a budget", err) || !yaml_only_keys(doc, n, keys, err) ||
	    !policy_read_word(doc, n, "kind", kinds, &b.kind, err))
		return false;
	money = yaml_get(n, "amount") != NULL;
	hours = yaml_get(n, "gpu_hours") != NULL;
	tokens = yaml_get(n, "tokens") != NULL;
	if (money + hours + tokens != 1)
		return yaml_err(doc, n, err, "a budget has one of amount, gpu_hours and tokens");
	if (!money && yaml_get(n, "currency") != NULL)
		return yaml_err(doc, n, err, "a budget of %s has no currency", hours ? "gpu_hours" : "tokens");
	if (tokens)
		memcpy(b.unit, BUDGET_TOKENS, sizeof(BUDGET_TOKENS));
	ok = money   ? read_money(doc, n, &b, err)
	     : hours ? read_amount(doc, n, "gpu_hours", QUANTITY_SCALE, POLICY_MAX_BUDGET, &b.amount, err)
	             : read_amount(doc, n, "tokens", 0, POLICY_MAX_TOKENS, &b.amount, err);
	if (ok)
		*ret = b;
	return ok;
}

void
policy_budget_text(const struct policy_budget *b, struct buf *out)
{
	char text[DECIMAL_TEXT_SIZE];
	struct err ignored = {0};
	int exponent = 0;

	if (b->kind == NULL)
		return;
	if (!budget_unit_is_money(b->unit)) {
		buf_printf(out, "{%s: \"%s\"", b->unit[0] == '\0' ? "gpu_hours" : "tokens",
		           decimal_format(b->amount, PRICE_SCALE, 0, text));
	} else {
		if (!currency_exponent(b->unit, &exponent, &ignored)) /* the reader refused it */
			exponent = 0;
		buf_printf(out, "{amount: \"%s\", currency: %s", decimal_format(b->amount, PRICE_SCALE, exponent, text),
		           b->unit);
	}
	buf_printf(out, ", kind: %s}", b->kind);
}
