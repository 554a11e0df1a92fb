/* aggregator/core/policy/policy_values.c - the types of values in a policy file: how each is read, written and freed. Errors name file, line,
 * key, value and limit. */
#include <string.h>

#include "aggregator/core/policy/policy_fields.h"
#include "aggregator/core/rating/budget.h"
#include "common/base/labels.h"
#include "common/base/text.h"
#include "common/base/time.h"

#define SHOWN_MAX 80
#define LISTED_MAX 256u
#define NODE_MAX_INSTANCES 10000

static void *
value_of(const struct policy_at *at)
{
	return (char *)at->entry + at->field->offset;
}

static const void *
value_in(const struct policy_field *f, const void *entry)
{
	return (const char *)entry + f->offset;
}

/* Pointers of the structs, whatever they point to. */
static const char *
pointer_in(const struct policy_field *f, const void *entry)
{
	const char *p;

	memcpy(&p, value_in(f, entry), sizeof(p));
	return p;
}

static void
put_pointer(void *value, const void *p)
{
	memcpy(value, &p, sizeof(p));
}

static void
free_pointer(const struct policy_field *f, void *entry)
{
	void *p;

	memcpy(&p, (char *)entry + f->offset, sizeof(p));
	mem_free(p);
}

int
policy_shown(const char *text)
{
	size_t n = strnlen(text, SHOWN_MAX);

	while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
		n--;
	return (int)n;
}

void
policy_quote(const char *text, size_t len, struct buf *out)
{
	buf_char(out, '"');
	for (size_t i = 0; i < len; i++) {
		if (text[i] == '"' || text[i] == '\\')
			buf_char(out, '\\');
		buf_char(out, text[i]);
	}
	buf_char(out, '"');
}

/* ---- the version of the format ---- */

static bool
read_version(const struct policy_at *at, struct err *err)
{
	int64_t version;

	if (!yaml_i64(at->doc, at->map, "version", 1, INT32_MAX, &version, err))
		return false;
	return version == POLICY_VERSION ||
	       yaml_err(at->doc, yaml_get(at->map, "version"), err,
	                "version is %" PRId64 ", this program reads version %d", version, POLICY_VERSION);
}

static void
version_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	(void)f;
	(void)entry;
	buf_i64(out, POLICY_VERSION);
}

const struct policy_type policy_type_version = {.title = "1", .read = read_version, .text = version_text};

/* ---- texts and names ---- */

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

static bool
read_text(const struct policy_at *at, struct err *err)
{
	const struct policy_field *f = at->field;
	const char *preset = f->flags & POLICY_NAMED_SAME ? *(char *const *)at->entry : f->preset;
	char *text = NULL;

	if (!policy_read_text(at->doc, at->map, f->key, preset, (size_t)f->max, &text, err))
		return false;
	put_pointer(value_of(at), text);
	return true;
}

static bool
read_name(const struct policy_at *at, struct err *err)
{
	const struct policy_field *f = at->field;
	const char *text, *reason;

	if (yaml_get(at->map, f->key) == NULL) {
		put_pointer(value_of(at), mem_strdup(f->preset));
		return true;
	}
	if (!yaml_str(at->doc, at->map, f->key, &text, err))
		return false;
	reason = f->fault(text);
	if (reason != NULL)
		return yaml_err(at->doc, yaml_get(at->map, f->key), err, "%s %s \"%.*s\" %s", at->section->noun, f->key,
		                policy_shown(text), text, reason);
	put_pointer(value_of(at), mem_strdup(text));
	return true;
}

static void
pointer_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	const char *text = pointer_in(f, entry);

	buf_str(out, text ? text : "");
}

static void
render_quoted(const struct policy_field *f, const void *entry, struct buf *out)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, POLICY_FIELD_MAX);
	f->type->text(f, entry, &text);
	policy_quote(buf_text(&text), text.len, out);
}

const struct policy_type policy_type_text = {.title = "text",
                                             .size = sizeof(char *),
                                             .read = read_text,
                                             .text = pointer_text,
                                             .render = render_quoted,
                                             .free = free_pointer};
const struct policy_type policy_type_name = {.title = "name",
                                             .size = sizeof(char *),
                                             .read = read_name,
                                             .text = pointer_text,
                                             .render = render_quoted,
                                             .free = free_pointer};

/* ---- words ---- */

/* One of the NULL-ended words, of which *ret is then one; a missing key leaves *ret as it is. */
static bool
find_word(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, const char *const *words,
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

static void
preset_word(const struct policy_field *f, void *value)
{
	if (f->preset != NULL)
		put_pointer(value, f->preset);
}

static bool
read_word(const struct policy_at *at, struct err *err)
{
	const char *word = at->field->preset;

	if (!find_word(at->doc, at->map, at->field->key, at->field->words, &word, err))
		return false;
	put_pointer(value_of(at), word);
	return true;
}

static bool
read_word_copy(const struct policy_at *at, struct err *err)
{
	const char *word = NULL;

	if (!find_word(at->doc, at->map, at->field->key, at->field->words, &word, err))
		return false;
	put_pointer(value_of(at), mem_strdup(word));
	return true;
}

static bool
read_word_bool(const struct policy_at *at, struct err *err)
{
	const char *word = at->field->words[0];

	if (!find_word(at->doc, at->map, at->field->key, at->field->words, &word, err))
		return false;
	*(bool *)value_of(at) = word == at->field->words[1];
	return true;
}

static void
word_bool_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	buf_str(out, f->words[*(const bool *)value_in(f, entry)]);
}

static void
render_word(const struct policy_field *f, const void *entry, struct buf *out)
{
	if (f->flags & POLICY_QUOTED)
		render_quoted(f, entry, out);
	else
		f->type->text(f, entry, out);
}

const struct policy_type policy_type_word = {.title = "word",
                                             .size = sizeof(char *),
                                             .preset = preset_word,
                                             .read = read_word,
                                             .text = pointer_text,
                                             .render = render_word};
const struct policy_type policy_type_word_copy = {.title = "word",
                                                  .size = sizeof(char *),
                                                  .read = read_word_copy,
                                                  .text = pointer_text,
                                                  .render = render_quoted,
                                                  .free = free_pointer};
const struct policy_type policy_type_word_bool = {
	.title = "word", .size = sizeof(bool), .read = read_word_bool, .text = word_bool_text, .render = render_word};

/* ---- numbers ---- */

static void
preset_integer(const struct policy_field *f, void *value)
{
	if (f->preset != NULL)
		ASSERT(text_to_i64(f->preset, value));
}

/* Without a preset yaml_i64() refuses a missing key. */
static bool
read_integer(const struct policy_at *at, struct err *err)
{
	const struct policy_field *f = at->field;

	if (f->preset != NULL && yaml_get(at->map, f->key) == NULL)
		return true;
	return yaml_i64(at->doc, at->map, f->key, f->min, f->max, value_of(at), err);
}

static void
integer_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	buf_i64(out, *(const int64_t *)value_in(f, entry));
}

/* 0 is as good as no key. */
static void
count_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	if (*(const int64_t *)value_in(f, entry) > 0)
		integer_text(f, entry, out);
}

static void
preset_bool(const struct policy_field *f, void *value)
{
	*(bool *)value = f->preset != NULL && strcmp(f->preset, "true") == 0;
}

static bool
read_bool(const struct policy_at *at, struct err *err)
{
	return yaml_get(at->map, at->field->key) == NULL ||
	       yaml_bool(at->doc, at->map, at->field->key, value_of(at), err);
}

static void
bool_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	buf_str(out, *(const bool *)value_in(f, entry) ? "true" : "false");
}

const struct policy_type policy_type_integer = {.title = "number",
                                                .size = sizeof(int64_t),
                                                .preset = preset_integer,
                                                .read = read_integer,
                                                .text = integer_text};
const struct policy_type policy_type_count = {
	.title = "number", .size = sizeof(int64_t), .preset = preset_integer, .read = read_integer, .text = count_text};
const struct policy_type policy_type_bool = {
	.title = "true or false", .size = sizeof(bool), .preset = preset_bool, .read = read_bool, .text = bool_text};

/* From 0 to `most`; a missing key leaves *ret as it is. */
static bool
read_decimal(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, int scale, int64_t most,
             int128 *ret, struct err *err)
{
	const struct yaml_node *n = yaml_get(map, key);
	struct err why = {0};
	const char *text;
	int128 value;

	if (n == NULL)
		return true;
	if (!yaml_str(doc, map, key, &text, err))
		return false;
	if (!decimal_parse(text, scale, &value, &why))
		return yaml_err(doc, n, err, "%s %s", key, why.text);
	if (value < 0 || value > most * pow10_i128(scale))
		return yaml_err(doc, n, err, "%s \"%.*s\" is outside 0 to %" PRId64, key, policy_shown(text), text,
		                most);
	*ret = value;
	return true;
}

static void
preset_decimal(const struct policy_field *f, void *value)
{
	(void)f;
	*(int128 *)value = -1;
}

static bool
read_price(const struct policy_at *at, struct err *err)
{
	return read_decimal(at->doc, at->map, at->field->key, PRICE_SCALE, at->field->max, value_of(at), err);
}

static void
decimal_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	const int128 *v = value_in(f, entry);
	char text[DECIMAL_TEXT_SIZE];

	if (*v >= 0)
		buf_str(out, decimal_format(*v, PRICE_SCALE, 0, text));
}

static bool
read_ratio(const struct policy_at *at, struct err *err)
{
	int128 ratio = 0;

	if (!read_decimal(at->doc, at->map, at->field->key, at->field->scale, at->field->max, &ratio, err))
		return false;
	*(int64_t *)value_of(at) = (int64_t)ratio;
	return true;
}

static void
ratio_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_str(out, decimal_format(*(const int64_t *)value_in(f, entry), f->scale, 0, text));
}

const struct policy_type policy_type_decimal = {.title = "decimal",
                                                .size = sizeof(int128),
                                                .preset = preset_decimal,
                                                .read = read_price,
                                                .text = decimal_text,
                                                .render = render_quoted};
const struct policy_type policy_type_ratio = {
	.title = "decimal", .size = sizeof(int64_t), .read = read_ratio, .text = ratio_text, .render = render_quoted};

static bool
read_currency(const struct policy_at *at, struct err *err)
{
	struct err why = {0};
	const char *text;
	int exponent;

	if (!yaml_str(at->doc, at->map, at->field->key, &text, err))
		return false;
	if (!currency_exponent(text, &exponent, &why))
		return yaml_err(at->doc, yaml_get(at->map, at->field->key), err, "currency %s", why.text);
	put_pointer(value_of(at), mem_strdup(text));
	return true;
}

const struct policy_type policy_type_currency = {.title = "ISO 4217 code",
                                                 .size = sizeof(char *),
                                                 .read = read_currency,
                                                 .text = pointer_text,
                                                 .render = render_quoted,
                                                 .free = free_pointer};

/* ---- times ---- */

/* From min_ns to max_ns; a missing key leaves *ret as it is. */
static bool
read_duration(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, int64_t min_ns, int64_t max_ns,
              int64_t *ret_ns, struct err *err)
{
	char least[TIME_TEXT_SIZE], most[TIME_TEXT_SIZE];
	struct err why = {0};
	const char *text;

	if (yaml_get(map, key) == NULL)
		return true;
	if (!yaml_str(doc, map, key, &text, err))
		return false;
	if (!duration_parse(text, ret_ns, &why))
		return yaml_err(doc, yaml_get(map, key), err, "%s: %s", key, why.text);
	if (*ret_ns < min_ns || *ret_ns > max_ns)
		return yaml_err(doc, yaml_get(map, key), err, "%s \"%.*s\" is outside %s to %s", key,
		                policy_shown(text), text, duration_format(min_ns, least),
		                duration_format(max_ns, most));
	return true;
}

/* Or `none`, which is 0. */
static bool
read_timeout(const struct policy_at *at, struct err *err)
{
	const struct yaml_node *n = yaml_get(at->map, at->field->key);

	if (n != NULL && n->kind == YAML_SCALAR && !yaml_is_null(n) && strcmp(n->text, "none") == 0)
		return true;
	return read_duration(at->doc, at->map, at->field->key, at->field->min, at->field->max, value_of(at), err);
}

static void
duration_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	const int64_t *ns = value_in(f, entry);
	char text[TIME_TEXT_SIZE];

	if (*ns > 0)
		buf_str(out, duration_format(*ns, text));
}

static void
preset_time(const struct policy_field *f, void *value)
{
	(void)f;
	*(int64_t *)value = INT64_MIN;
}

static bool
read_time(const struct policy_at *at, struct err *err)
{
	const struct yaml_node *n = yaml_get(at->map, at->field->key);
	struct err why = {0};
	const char *text;

	if (n == NULL)
		return true;
	if (!yaml_str(at->doc, at->map, at->field->key, &text, err))
		return false;
	return time_parse(text, value_of(at), &why) || yaml_err(at->doc, n, err, "%s: %s", at->field->key, why.text);
}

static void
time_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	const int64_t *ns = value_in(f, entry);
	char text[TIME_TEXT_SIZE];

	if (*ns != INT64_MIN)
		buf_str(out, time_format(*ns, text));
}

const struct policy_type policy_type_duration = {
	.title = "duration, or none", .size = sizeof(int64_t), .read = read_timeout, .text = duration_text};
const struct policy_type policy_type_time = {
	.title = "time", .size = sizeof(int64_t), .preset = preset_time, .read = read_time, .text = time_text};

/* ---- amounts of GPUs ---- */

static bool
read_amounts(const struct policy_at *at, struct err *err)
{
	const struct yaml_doc *doc = at->doc;
	const char *key = at->field->key;
	struct policy_amounts *ret = value_of(at);
	const struct yaml_node *n = yaml_get(at->map, key);
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
		/* the units of an instance are known only with its model */
		if ((q.at[i].model[0] || !q.at[i].profile[0]) && !quantity_units(&q.at[i], q.at[i].model, &units, &why))
			return yaml_err(doc, n, err, "%s: %s", key, why.text);
	}
	ret->at = mem_array(q.count, sizeof(*ret->at));
	memcpy(ret->at, q.at, q.count * sizeof(*ret->at));
	ret->count = q.count;
	ret->line = n->line;
	return true;
}

static void
amounts_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	policy_amounts_text(value_in(f, entry), out);
}

/* The pointer is the struct's first member. */
_Static_assert(offsetof(struct policy_amounts, at) == 0, "free_pointer() frees the entries");

const struct policy_type policy_type_amounts = {.title = "GPUs",
                                                .size = sizeof(struct policy_amounts),
                                                .read = read_amounts,
                                                .text = amounts_text,
                                                .free = free_pointer};

/* ---- resources beside GPUs ---- */

/* Suffixes as Kubernetes writes them; one of it in the unit that is stored. */
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

static void
write_cores(int64_t millis, struct buf *out)
{
	if (millis % 1000 == 0)
		buf_i64(out, millis / 1000);
	else
		buf_printf(out, "%" PRId64 "m", millis);
}

/* With the largest suffix that leaves a whole number. */
static void
write_bytes(int64_t n, struct buf *out)
{
	static const char *const suffixes[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi"};
	size_t i = 0;

	while (n != 0 && n % 1024 == 0 && i + 1 < ARRAY_LEN(suffixes)) {
		n /= 1024;
		i++;
	}
	buf_printf(out, "%" PRId64 "%s", n, suffixes[i]);
}

static void
write_resources(const struct policy_resources *r, struct buf *out)
{
	const char *before = "{";

	if (r->cpu_millis >= 0) {
		buf_printf(out, "%scpu: ", before);
		write_cores(r->cpu_millis, out);
		before = ", ";
	}
	if (r->memory_bytes >= 0) {
		buf_printf(out, "%smemory: ", before);
		write_bytes(r->memory_bytes, out);
		before = ", ";
	}
	if (r->storage_bytes >= 0) {
		buf_printf(out, "%sstorage: ", before);
		write_bytes(r->storage_bytes, out);
		before = ", ";
	}
	if (before[0] == ',')
		buf_char(out, '}');
}

static void
preset_resources(const struct policy_field *f, void *value)
{
	(void)f;
	*(struct policy_resources *)value =
		(struct policy_resources){.cpu_millis = -1, .memory_bytes = -1, .storage_bytes = -1};
}

static bool
read_resources(const struct policy_at *at, struct err *err)
{
	return policy_read_resources(at->doc, at->map, value_of(at), err);
}

static void
resources_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	write_resources(value_in(f, entry), out);
}

const struct policy_type policy_type_resources = {.title = "{cpu, memory, storage}",
                                                  .size = sizeof(struct policy_resources),
                                                  .preset = preset_resources,
                                                  .read = read_resources,
                                                  .text = resources_text};

/* ---- budget ---- */

_Static_assert(PRICE_SCALE == QUANTITY_SCALE, "an amount has one scale, of money or of hours");

static bool
read_budget_amount(const struct yaml_doc *doc, const struct yaml_node *n, const char *key, int scale, int64_t most,
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
	return read_budget_amount(doc, n, "amount", exponent, POLICY_MAX_BUDGET, &b->amount, err);
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
	    !find_word(doc, n, "kind", kinds, &b.kind, err))
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
	     : hours ? read_budget_amount(doc, n, "gpu_hours", QUANTITY_SCALE, POLICY_MAX_BUDGET, &b.amount, err)
	             : read_budget_amount(doc, n, "tokens", 0, POLICY_MAX_TOKENS, &b.amount, err);
	if (ok)
		*ret = b;
	return ok;
}

static bool
read_budget(const struct policy_at *at, struct err *err)
{
	return policy_read_budget(at->doc, at->map, value_of(at), err);
}

static void
budget_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	const struct policy_budget *b = value_in(f, entry);
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

const struct policy_type policy_type_budget = {.title = "{amount and currency, gpu_hours or tokens; kind}",
                                               .size = sizeof(struct policy_budget),
                                               .read = read_budget,
                                               .text = budget_text};

/* ---- sla ---- */

#define SLA_SCALE 4 /* a millionth is 0.0001 percent */

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
	if (!decimal_parse(text, SLA_SCALE, &v, &why))
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
	    !read_duration(doc, n, "owed_wait", NS_PER_S, POLICY_MAX_OWED_WAIT_NS, &s.owed_wait_ns, err) ||
	    !read_delivered(doc, n, &s.delivered_millionths, err))
		return false;
	if (s.owed_wait_ns == 0 && s.delivered_millionths == 0)
		return yaml_err(doc, n, err, "sla needs owed_wait, delivered or both");
	*ret = s;
	return true;
}

static bool
read_sla(const struct policy_at *at, struct err *err)
{
	return policy_read_sla(at->doc, at->map, value_of(at), err);
}

static void
sla_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	const struct policy_sla *s = value_in(f, entry);
	char text[DECIMAL_TEXT_SIZE], wait[TIME_TEXT_SIZE];
	const char *before = "{";

	if (s->owed_wait_ns > 0) {
		buf_printf(out, "{owed_wait: %s", duration_format(s->owed_wait_ns, wait));
		before = ", ";
	}
	if (s->delivered_millionths > 0)
		buf_printf(out, "%sdelivered: \"%s\"", before,
		           decimal_format(s->delivered_millionths, SLA_SCALE, 0, text));
	if (s->owed_wait_ns > 0 || s->delivered_millionths > 0)
		buf_char(out, '}');
}

const struct policy_type policy_type_sla = {
	.title = "{owed_wait, delivered}", .size = sizeof(struct policy_sla), .read = read_sla, .text = sla_text};

/* ---- auto_approve ---- */

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
read_auto_approve(const struct policy_at *at, struct err *err)
{
	const struct yaml_doc *doc = at->doc;
	static const char *const keys[] = {"max", "for", NULL};
	const struct yaml_node *n = yaml_get(at->map, "auto_approve");
	struct policy_auto_approve a = {0};

	if (n == NULL)
		return true;
	if (!yaml_expect(doc, n, YAML_MAP, "auto_approve", err) || !yaml_only_keys(doc, n, keys, err))
		return false;
	if (yaml_get(n, "max") == NULL || yaml_get(n, "for") == NULL)
		return yaml_err(doc, n, err, "auto_approve needs the keys max and for");
	if (!read_max(doc, n, &a.units, err) ||
	    !read_duration(doc, n, "for", NS_PER_MIN, POLICY_MAX_EXCEPTION_NS, &a.for_ns, err))
		return false;
	*(struct policy_auto_approve *)value_of(at) = a;
	return true;
}

static void
auto_approve_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	const struct policy_auto_approve *a = value_in(f, entry);
	char max[QUANTITY_TEXT_SIZE], longest[TIME_TEXT_SIZE];

	if (a->units > 0)
		buf_printf(out, "{max: %s, for: %s}", quantity_text(a->units, max),
		           duration_format(a->for_ns, longest));
}

const struct policy_type policy_type_auto_approve = {.title = "{max, for}",
                                                     .size = sizeof(struct policy_auto_approve),
                                                     .read = read_auto_approve,
                                                     .text = auto_approve_text};

/* ---- lists ---- */

/* The list under a key; NULL in *ret and true when the key is missing. */
static bool
read_list(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, size_t max,
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

struct policy_list
policy_list_of(const struct policy_field *f, const void *entry)
{
	struct policy_list l;

	memcpy(&l, value_in(f, entry), sizeof(l));
	return l;
}

/* The entry is counted before it is read, so that after an error it is freed with the others. */
static bool
read_entries(const struct policy_at *at, struct err *err)
{
	const struct policy_section *s = at->field->section;
	const struct yaml_node *list;
	struct policy_list l = {0};

	if (!read_list(at->doc, at->map, at->field->key, (size_t)at->field->max, &list, err))
		return false;
	if (list == NULL)
		return true;
	l.at = mem_array(list->count, s->size);
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next) {
		l.count++;
		memcpy(value_of(at), &l, sizeof(l));
		if (!policy_read_entry(s, at->doc, c, (char *)l.at + (l.count - 1) * s->size, err))
			return false;
	}
	memcpy(value_of(at), &l, sizeof(l));
	return true;
}

static void
free_entries(const struct policy_field *f, void *entry)
{
	struct policy_list l = policy_list_of(f, entry);

	for (size_t i = 0; i < l.count; i++)
		policy_free_entry(f->section, (char *)l.at + i * f->section->size);
	mem_free(l.at);
}

const struct policy_type policy_type_list = {
	.title = "list", .size = sizeof(struct policy_list), .read = read_entries, .free = free_entries};

bool
policy_read_class_names(const struct yaml_doc *doc, const struct yaml_node *map, const struct yaml_node **ret,
                        struct err *err)
{
	if (!read_list(doc, map, "priority_classes", LIMIT_CLASSES, ret, err))
		return false;
	for (const struct yaml_node *c = *ret != NULL ? (*ret)->child : NULL; c != NULL; c = c->next) {
		const char *reason;

		if (!yaml_expect(doc, c, YAML_SCALAR, "the name of a priority class", err))
			return false;
		reason = policy_label_fault(c->text);
		if (reason != NULL)
			return yaml_err(doc, c, err, "priority class \"%.*s\" %s", policy_shown(c->text), c->text,
			                reason);
	}
	return true;
}

/* policy_check.c checks that the classes exist, when the whole file is known. */
static bool
read_classes(const struct policy_at *at, struct err *err)
{
	struct policy_tenant *t = at->entry;
	const struct yaml_node *list;

	if (!policy_read_class_names(at->doc, at->map, &list, err))
		return false;
	if (list == NULL)
		return true;
	t->classes_given = true;
	t->classes = mem_array(list->count, sizeof(*t->classes));
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next)
		t->classes[t->class_count++] = mem_strdup(c->text);
	return true;
}

static void
classes_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	const struct policy_tenant *t = entry;

	(void)f;
	for (size_t i = 0; i < t->class_count; i++)
		buf_printf(out, "%s%s", i == 0 ? "[" : ", ", t->classes[i]);
	if (t->classes_given)
		buf_str(out, t->class_count == 0 ? "[]" : "]");
}

static void
free_classes(const struct policy_field *f, void *entry)
{
	struct policy_tenant *t = entry;

	(void)f;
	for (size_t i = 0; i < t->class_count; i++)
		mem_free(t->classes[i]);
	mem_free(t->classes);
}

/* Of a tenant: three members, one behind the other. */
const struct policy_type policy_type_class_names = {.title = "list of names",
                                                    .size = offsetof(struct policy_tenant, classes_given) +
                                                            sizeof(bool) - offsetof(struct policy_tenant, classes),
                                                    .read = read_classes,
                                                    .text = classes_text,
                                                    .free = free_classes};

/* ---- MIG instances of a node ---- */

/* mig: {1g.10gb: 7}; each must be a profile of the model. */
static bool
read_profiles(const struct policy_at *at, struct err *err)
{
	const struct yaml_doc *doc = at->doc;
	struct policy_node *ret = at->entry;
	const struct yaml_node *map = yaml_get(at->map, "mig");
	int64_t gpus = ret->gpus;

	if (map == NULL || ret->model == NULL) /* the check of the node names the missing model */
		return true;
	if (!yaml_expect(doc, map, YAML_MAP, "mig", err))
		return false;
	if (map->count > POLICY_MAX_PROFILES)
		return yaml_err(doc, map, err, "mig has %zu profiles, at most %u are allowed", map->count,
		                POLICY_MAX_PROFILES);
	ret->profiles = mem_array(map->count, sizeof(*ret->profiles));
	for (const struct yaml_node *c = map->child; c != NULL; c = c->next) {
		struct policy_profile *p = &ret->profiles[ret->profile_count++];
		const char *reason = policy_profile_fault(c->key);
		struct err why = {0};
		int64_t units;

		if (reason != NULL)
			return yaml_err(doc, c, err, "mig \"%.*s\" %s", policy_shown(c->key), c->key, reason);
		p->profile = mem_strdup(c->key);
		if (!yaml_i64(doc, map, c->key, 1, NODE_MAX_INSTANCES, &p->count, err))
			return false;
		if (!quantity_profile_units(ret->model, p->profile, &units, &why))
			return yaml_err(doc, c, err, "mig: %s", why.text);
		/* As many GPUs as it takes; they are counted like this until the node is seen. */
		gpus += (p->count + UNITS_PER_GPU / units - 1) / (UNITS_PER_GPU / units);
		if (gpus > LIMIT_NODE_GPUS)
			return yaml_err(doc, c, err, "node \"%s\": its instances need %" PRId64 " GPUs, the most is %d",
			                ret->name, gpus, LIMIT_NODE_GPUS);
	}
	return true;
}

static void
profiles_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	const struct policy_node *n = entry;

	(void)f;
	for (size_t i = 0; i < n->profile_count; i++)
		buf_printf(out, "%s%s: %" PRId64, i == 0 ? "{" : ", ", n->profiles[i].profile, n->profiles[i].count);
	if (n->profile_count > 0)
		buf_char(out, '}');
}

static void
free_profiles(const struct policy_field *f, void *entry)
{
	struct policy_node *n = entry;

	(void)f;
	for (size_t i = 0; i < n->profile_count; i++)
		mem_free(n->profiles[i].profile);
	mem_free(n->profiles);
}

const struct policy_type policy_type_profiles = {.title = "{PROFILE: number}",
                                                 .size = sizeof(struct policy_list),
                                                 .read = read_profiles,
                                                 .text = profiles_text,
                                                 .free = free_profiles};

/* `shared: true` of a node stands for no tenant; check_node() of policy_fields.c reads it. */
static void
shared_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	(void)f;
	if (((const struct policy_node *)entry)->tenant == NULL)
		buf_str(out, "true");
}

const struct policy_type policy_type_shared = {.title = "true", .text = shared_text};

/* ---- labels of a rule ---- */

/* The key is looked up as it is, its value is a pattern. They are stored as one text with one spelling, as labels themselves are. */
static bool
read_labels(const struct policy_at *at, struct err *err)
{
	const struct yaml_doc *doc = at->doc;
	const struct yaml_node *map = yaml_get(at->map, "labels");
	struct labels_set set = {0};

	if (map == NULL)
		return true;
	if (!yaml_expect(doc, map, YAML_MAP, "labels", err))
		return false;
	if (map->count == 0 || map->count > LABEL_MAX_COUNT)
		return yaml_err(doc, map, err, "labels has %zu keys, 1 to %u are allowed", map->count, LABEL_MAX_COUNT);
	for (const struct yaml_node *n = map->child; n != NULL; n = n->next) {
		const char *text, *reason = label_key_fault(n->key, strlen(n->key));

		if (reason != NULL)
			return yaml_err(doc, n, err, "label \"%.*s\" %s", policy_shown(n->key), n->key, reason);
		if (!yaml_str(doc, map, n->key, &text, err))
			return false;
		reason = policy_value_fault(text);
		if (reason != NULL)
			return yaml_err(doc, n, err, "label %.*s \"%.*s\" %s", policy_shown(n->key), n->key,
			                policy_shown(text), text, reason);
		ASSERT(labels_put(&set, n->key, text));
	}
	put_pointer(value_of(at), labels_join(&set));
	return true;
}

static void
render_labels(const struct policy_field *f, const void *entry, struct buf *out)
{
	const char *labels = pointer_in(f, entry), *before = "{";
	struct label l;

	while (labels_next(&labels, &l)) {
		buf_str(out, before);
		policy_quote(l.key, l.key_len, out);
		buf_str(out, ": ");
		policy_quote(l.value, l.value_len, out);
		before = ", ";
	}
	buf_char(out, '}');
}

const struct policy_type policy_type_labels = {.title = "{KEY: pattern}",
                                               .size = sizeof(char *),
                                               .read = read_labels,
                                               .text = pointer_text,
                                               .render = render_labels,
                                               .free = free_pointer};

/* ---- of a price book ---- */

static bool
needs_key(const struct yaml_doc *doc, const struct yaml_node *map, const char *what, const char *key, struct err *err)
{
	return yaml_get(map, key) != NULL || yaml_err(doc, map, err, "%s needs the key %s", what, key);
}

static bool
read_weights(const struct yaml_doc *doc, const struct yaml_node *map, struct policy_book *b, struct err *err)
{
	if (!yaml_expect(doc, map, YAML_MAP, "weights", err))
		return false;
	if (map->count == 0 || map->count > POLICY_MAX_TENANTS)
		return yaml_err(doc, map, err, "weights has %zu keys, 1 to %u are allowed", map->count,
		                POLICY_MAX_TENANTS);
	b->weights = mem_array(map->count, sizeof(*b->weights));
	for (const struct yaml_node *c = map->child; c != NULL; c = c->next) {
		struct policy_weight *w = &b->weights[b->weight_count++];
		const char *reason = policy_label_fault(c->key);

		if (reason != NULL)
			return yaml_err(doc, c, err, "weights: tenant \"%.*s\" %s", policy_shown(c->key), c->key,
			                reason);
		w->tenant = mem_strdup(c->key);
		w->line = c->key_line;
		if (!yaml_i64(doc, map, c->key, 1, POLICY_MAX_WEIGHT, &w->weight, err))
			return false;
	}
	return true;
}

static bool
read_shared_idle(const struct policy_at *at, struct err *err)
{
	static const char *const keys[] = {"method", "weights", NULL};
	static const char *const methods[] = {"none", "even", "proportional", "weights", NULL};
	const struct yaml_node *n = yaml_get(at->map, "shared_idle"), *weights;
	const struct yaml_doc *doc = at->doc;
	struct policy_book *b = at->entry;
	bool weighted;

	if (n == NULL)
		return true;
	if (!yaml_expect(doc, n, YAML_MAP, "shared_idle", err) || !yaml_only_keys(doc, n, keys, err) ||
	    !needs_key(doc, n, "shared_idle", "method", err) ||
	    !find_word(doc, n, "method", methods, &b->shared_idle, err))
		return false;
	weights = yaml_get(n, "weights");
	weighted = b->shared_idle == methods[3];
	if (weighted && weights == NULL)
		return yaml_err(doc, n, err, "shared_idle: method weights needs the key weights");
	if (!weighted && weights != NULL)
		return yaml_err(doc, weights, err, "shared_idle: weights are for method weights, not %s",
		                b->shared_idle);
	return weights == NULL || read_weights(doc, weights, b, err);
}

static void
render_shared_idle(const struct policy_field *f, const void *entry, struct buf *out)
{
	const struct policy_book *b = entry;
	const char *before = ", weights: {";

	(void)f;
	buf_printf(out, "{method: %s", b->shared_idle);
	for (size_t i = 0; i < b->weight_count; i++, before = ", ") {
		buf_str(out, before);
		policy_quote(b->weights[i].tenant, strlen(b->weights[i].tenant), out);
		buf_printf(out, ": %" PRId64, b->weights[i].weight);
	}
	buf_str(out, b->weight_count > 0 ? "}}" : "}");
}

static void
free_weights(const struct policy_field *f, void *entry)
{
	struct policy_book *b = entry;

	(void)f;
	for (size_t i = 0; i < b->weight_count; i++)
		mem_free(b->weights[i].tenant);
	mem_free(b->weights);
}

const struct policy_type policy_type_shared_idle = {.title = "{method, weights}",
                                                    .size = sizeof(char *),
                                                    .preset = preset_word,
                                                    .read = read_shared_idle,
                                                    .text = pointer_text,
                                                    .render = render_shared_idle,
                                                    .free = free_weights};

static bool
read_platform_cost(const struct policy_at *at, struct err *err)
{
	static const char *const keys[] = {"monthly", NULL};
	const struct yaml_node *n = yaml_get(at->map, at->field->key);

	return n == NULL ||
	       (yaml_expect(at->doc, n, YAML_MAP, "platform_cost", err) && yaml_only_keys(at->doc, n, keys, err) &&
	        needs_key(at->doc, n, "platform_cost", "monthly", err) &&
	        read_decimal(at->doc, n, "monthly", PRICE_SCALE, at->field->max, value_of(at), err));
}

static void
render_platform_cost(const struct policy_field *f, const void *entry, struct buf *out)
{
	buf_str(out, "{monthly: ");
	render_quoted(f, entry, out);
	buf_char(out, '}');
}

const struct policy_type policy_type_platform_cost = {.title = "{monthly}",
                                                      .size = sizeof(int128),
                                                      .preset = preset_decimal,
                                                      .read = read_platform_cost,
                                                      .text = decimal_text,
                                                      .render = render_platform_cost};

bool
policy_read_book(const struct yaml_doc *doc, struct policy_book **ret, struct err *err)
{
	const struct yaml_node *n = yaml_get(yaml_root(doc), "prices");

	if (n == NULL)
		return true;
	*ret = mem_alloc(sizeof(**ret));
	return yaml_expect(doc, n, YAML_MAP, "prices", err) &&
	       policy_read_entry(&policy_book_section, doc, n, *ret, err);
}

static bool
read_prices(const struct policy_at *at, struct err *err)
{
	return policy_read_book(at->doc, &((struct policy *)at->entry)->prices, err);
}

static void
free_prices(const struct policy_field *f, void *entry)
{
	(void)f;
	policy_book_free(((struct policy *)entry)->prices);
}

const struct policy_type policy_type_book = {
	.title = "price book", .size = sizeof(struct policy_book *), .read = read_prices, .free = free_prices};
