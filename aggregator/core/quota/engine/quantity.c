/* aggregator/core/quota/engine/quantity.c - amounts of GPUs as written in policies, scenarios and requests. */
#include "aggregator/core/quota/engine/quantity.h"

#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/text.h"

static bool
refuse(const char *text, struct err *err)
{
	return err_set(err, ERR_INVALID,
	               "\"%.60s\" is not an amount of GPUs like 4, \"3/7\", 2x1g.10gb or none (at most %d)", text,
	               QUANTITY_MAX_GPUS);
}

/* A whole number up to the most, as long as digits go; the end is where they end. */
static bool
whole(const char *text, size_t len, int64_t *ret)
{
	char digits[16];

	if (len == 0 || len >= sizeof(digits))
		return false;
	memcpy(digits, text, len);
	digits[len] = '\0';
	return text_to_i64(digits, ret) && *ret >= 0 && *ret <= QUANTITY_MAX_GPUS;
}

bool
quantity_parse(const char *text, struct quantity *ret, struct err *err)
{
	struct quantity q = {.den = 1};
	size_t digits = strspn(text, "0123456789");
	const char *after = text + digits;

	if (strcmp(text, "none") == 0) {
		*ret = (struct quantity){.unlimited = true};
		return true;
	}
	if (!whole(text, digits, &q.num))
		return refuse(text, err);
	if (*after == '/') {
		if (!whole(after + 1, strlen(after + 1), &q.den) || q.den == 0)
			return refuse(text, err);
	} else if (*after == 'x') {
		if (after[1] == '\0' || strlen(after + 1) >= sizeof(q.profile))
			return refuse(text, err);
		memcpy(q.profile, after + 1, strlen(after + 1) + 1);
	} else if (*after != '\0') {
		return refuse(text, err);
	}
	*ret = q;
	return true;
}

static bool
read_scalar(const struct yaml_doc *doc, const struct yaml_node *n, struct quantity *ret, struct err *err)
{
	struct err why;

	if (!yaml_expect(doc, n, YAML_SCALAR, "an amount of GPUs", err))
		return false;
	if (!quantity_parse(n->text, ret, &why))
		return yaml_err(doc, n, err, "%s", why.text);
	return true;
}

bool
quantity_read(const struct yaml_doc *doc, const struct yaml_node *n, struct quantities *ret, struct err *err)
{
	struct quantities q = {0};

	if (n->kind != YAML_MAP) {
		if (!read_scalar(doc, n, &q.at[0], err))
			return false;
		q.count = 1;
		*ret = q;
		return true;
	}
	if (n->count == 0)
		return yaml_err(doc, n, err, "an amount for each model is expected, there is none");
	if (n->count > QUANTITY_MAX_MODELS)
		return yaml_err(doc, n, err, "%zu models are more than %d", n->count, QUANTITY_MAX_MODELS);
	for (const struct yaml_node *c = n->child; c; c = c->next) {
		struct quantity *at = &q.at[q.count++];

		if (!read_scalar(doc, c, at, err))
			return false;
		if (c->key[0] == '\0' || strlen(c->key) >= sizeof(at->model))
			return yaml_err(doc, c, err, "\"%.80s\" is no name of a GPU model", c->key);
		memcpy(at->model, c->key, strlen(c->key) + 1);
	}
	*ret = q;
	return true;
}

const struct quantity *
quantity_for(const struct quantities *q, const char *model)
{
	for (size_t i = 0; i < q->count; i++)
		if (q->at[i].model[0] == '\0' || strcmp(q->at[i].model, model) == 0)
			return &q->at[i];
	return NULL;
}

bool
quantity_model_fits(const char *name, const char *model)
{
	size_t n = strlen(name);

	return n == 0 || (strncmp(name, model, n) == 0 && (model[n] == '\0' || model[n] == '-'));
}

bool
quantity_model(const char *name, const char *const *models, size_t count, const char **ret, struct err *err)
{
	in_place(buf) struct buf all = {0}, fitting = {0};
	size_t found = 0;

	buf_init(&all, sizeof(err->text) / 2);
	buf_init(&fitting, sizeof(err->text) / 2);
	for (size_t i = 0; i < count; i++) {
		if (strcmp(name, models[i]) == 0) {
			*ret = models[i];
			return true;
		}
		buf_printf(&all, "%s%s", i > 0 ? ", " : "", models[i]);
		if (!quantity_model_fits(name, models[i]))
			continue;
		buf_printf(&fitting, "%s%s", found > 0 ? ", " : "", models[i]);
		*ret = models[i];
		found++;
	}
	if (found == 1)
		return true;
	if (found > 1)
		return err_set(err, ERR_INVALID, "\"%.60s\" stands for several models, %s: name one of them", name,
		               buf_text(&fitting));
	if (count == 0)
		return err_set(err, ERR_INVALID, "there is no model \"%.60s\", nor any other", name);
	return err_set(err, ERR_INVALID, "there is no model \"%.60s\"; there are %s", name, buf_text(&all));
}

/* Memory sizes that a family's name may stand for, the most usual first. */
static const int usual_gib[] = {80, 40, 24, 96, 94, 141, 144, 180, 186, 192, 262, 288};

/* The size in a short name such as H100-80GB; 0 when it has none. */
static int64_t
named_gib(const char *model)
{
	const char *dash = strrchr(model, '-');
	size_t digits = dash ? strspn(dash + 1, "0123456789") : 0;
	int64_t gib = 0;

	if (digits == 0 || strcmp(dash + 1 + digits, "GB") != 0 || !whole(dash + 1, digits, &gib))
		return 0;
	return gib;
}

static bool
weigh(const char *model, int64_t gib, const char *profile, int64_t *ret, struct err *err)
{
	struct mig_geometry g;
	struct mig_slices s;

	if (!mig_geometry_of(model, gib * 1024, &g, err) || !mig_profile_parse(&g, profile, &s, err))
		return false;
	*ret = units_of_slices(&g, s);
	return true;
}

bool
quantity_profile_units(const char *model, const char *profile, int64_t *ret, struct err *err)
{
	const char *family = model[0] ? model : "A100";
	int64_t gib = named_gib(model);
	struct err ignored;

	if (gib > 0)
		return weigh(model, gib, profile, ret, err);
	for (size_t i = 0; i < ARRAY_LEN(usual_gib); i++)
		if (weigh(family, usual_gib[i], profile, ret, &ignored))
			return true;
	return err_set(err, ERR_INVALID, "the MIG profile \"%.40s\" does not exist on the model \"%.60s\"", profile,
	               model);
}

bool
quantity_units(const struct quantity *q, const char *model, int64_t *ret, struct err *err)
{
	int64_t each;

	if (q->unlimited) {
		*ret = QUANTITY_UNLIMITED;
		return true;
	}
	if (q->profile[0]) {
		if (!quantity_profile_units(model, q->profile, &each, err))
			return false;
		*ret = q->num * each;
		return true;
	}
	if (q->num * UNITS_PER_GPU % q->den != 0)
		return err_set(err, ERR_INVALID,
		               "%" PRId64 "/%" PRId64 " of a GPU is no whole number of units: one GPU is %" PRId64,
		               q->num, q->den, UNITS_PER_GPU);
	*ret = q->num * UNITS_PER_GPU / q->den;
	return true;
}

static int64_t
common_divisor(int64_t a, int64_t b)
{
	while (b != 0) {
		int64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

const char *
quantity_text(int64_t units, char out[QUANTITY_TEXT_SIZE])
{
	int64_t size = units < 0 ? -units : units;
	int64_t by = units == QUANTITY_UNLIMITED ? 1 : common_divisor(size, UNITS_PER_GPU);

	if (units == QUANTITY_UNLIMITED)
		snprintf(out, QUANTITY_TEXT_SIZE, "none");
	else if (by == UNITS_PER_GPU || units == 0)
		snprintf(out, QUANTITY_TEXT_SIZE, "%" PRId64, units / UNITS_PER_GPU);
	else
		snprintf(out, QUANTITY_TEXT_SIZE, "%" PRId64 "/%" PRId64, units / by, UNITS_PER_GPU / by);
	return out;
}
