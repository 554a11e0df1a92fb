/* tests/support/nvmlsim/scenario_value.c - names and typed values of a scenario. */
#include "tests/support/nvmlsim/sim_scenario_read.h"

#include <stdio.h>
#include <string.h>

#include "common/base/time.h"

static uint64_t
mix(uint64_t x)
{
	x ^= x >> 30;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 27;
	x *= UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

void
sim_uuid(const char *prefix, const char *words, char out[SIM_TEXT])
{
	uint64_t high = UINT64_C(0xcbf29ce484222325), low;

	for (const char *p = words; *p; p++)
		high = (high ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
	high = mix(high);
	low = mix(high + UINT64_C(0x9e3779b97f4a7c15));
	snprintf(out, SIM_TEXT, "%s%s%08x-%04x-4%03x-a%03x-%012" PRIx64, prefix, *prefix ? "-" : "",
	         (unsigned)(high >> 32), (unsigned)(high >> 16 & 0xffff), (unsigned)(high & 0xfff),
	         (unsigned)(low >> 52), low & UINT64_C(0xffffffffffff));
}

bool
read_int(const struct reader *r, const struct yaml_node *map, const char *key, int64_t min, int64_t max, int64_t *value)
{
	return !yaml_get(map, key) || yaml_i64(r->doc, map, key, min, max, value, r->err);
}

bool
read_flag(const struct reader *r, const struct yaml_node *map, const char *key, bool *value)
{
	return !yaml_get(map, key) || yaml_bool(r->doc, map, key, value, r->err);
}

/* At most SIM_NEVER / 4, so that sums of two or three of them stay in their type. */
bool
read_duration(const struct reader *r, const struct yaml_node *map, const char *key, int64_t *value)
{
	const struct yaml_node *n = yaml_get(map, key);
	const char *text;
	struct err cause;

	if (!n)
		return true;
	if (!yaml_str(r->doc, map, key, &text, r->err))
		return false;
	if (!duration_parse(text, value, &cause))
		return yaml_err(r->doc, n, r->err, "%s: %s", key, cause.text);
	return *value <= SIM_NEVER / 4 || yaml_err(r->doc, n, r->err, "%s: \"%s\" is more than 73 years", key, text);
}

bool
read_text(const struct reader *r, const struct yaml_node *map, const char *key, char **value)
{
	const char *text;

	if (!yaml_get(map, key))
		return true;
	if (!yaml_str(r->doc, map, key, &text, r->err))
		return false;
	mem_free(*value);
	*value = mem_strdup(text);
	return true;
}

bool
read_short(const struct reader *r, const struct yaml_node *map, const char *key, char *out, size_t size)
{
	const char *text;

	if (!yaml_get(map, key))
		return true;
	if (!yaml_str(r->doc, map, key, &text, r->err))
		return false;
	if (strlen(text) >= size)
		return yaml_err(r->doc, yaml_get(map, key), r->err, "%s has %zu characters, at most %zu are allowed",
		                key, strlen(text), size - 1);
	memcpy(out, text, strlen(text) + 1);
	return true;
}

bool
read_list(const struct reader *r, const struct yaml_node *map, const char *key, size_t max,
          const struct yaml_node **ret)
{
	const struct yaml_node *n = yaml_get(map, key);

	*ret = NULL;
	if (!n)
		return true;
	if (!yaml_expect(r->doc, n, YAML_LIST, key, r->err))
		return false;
	if (n->count > max)
		return yaml_err(r->doc, n, r->err, "%s has %zu entries, at most %zu are simulated", key, n->count, max);
	*ret = n;
	return true;
}

bool
read_gpu_number(const struct reader *r, const struct yaml_node *n, int *ret)
{
	int value = 0;

	if (n->kind != YAML_SCALAR || !*n->text || strspn(n->text, "0123456789") != strlen(n->text) ||
	    strlen(n->text) > 3)
		return yaml_err(r->doc, n, r->err, "gpu is the number of a GPU, from 0");
	for (const char *p = n->text; *p; p++)
		value = value * 10 + (*p - '0');
	if ((size_t)value >= r->sc->gpu_count)
		return yaml_err(r->doc, n, r->err, "gpu %d does not exist: there are %zu", value, r->sc->gpu_count);
	*ret = value;
	return true;
}

/* ---- lines of values ------------------------------------------------------------------------------------------------ */

bool
next_word(const char **text, struct sim_word *ret)
{
	*text += strspn(*text, " \t\n");
	ret->at = *text;
	ret->len = **text == ';' ? 1 : strcspn(*text, " \t\n;");
	*text += ret->len;
	return ret->len > 0;
}

bool
word_is(struct sim_word w, const char *text)
{
	return w.len == strlen(text) && memcmp(w.at, text, w.len) == 0;
}

bool
word_duration(struct sim_word w, int64_t *ret, struct err *err)
{
	char text[40];

	if (w.len >= sizeof(text))
		return err_set(err, ERR_INVALID, "\"%.*s...\" is not a duration", 20, w.at);
	memcpy(text, w.at, w.len);
	text[w.len] = '\0';
	if (!duration_parse(text, ret, err))
		return false;
	return *ret <= SIM_NEVER / 4 || err_set(err, ERR_INVALID, "\"%s\" is more than 73 years", text);
}

bool
word_pair(struct sim_word w, struct sim_word *ret_key, int64_t *ret_value, struct err *err)
{
	const char *equal = memchr(w.at, '=', w.len), *end = w.at + w.len;
	int shown = w.len > 60 ? 60 : (int)w.len;
	int64_t value = 0;

	if (!equal || equal == w.at || equal + 1 == end)
		return err_set(err, ERR_INVALID, "\"%.*s\" is not key=value", shown, w.at);
	*ret_key = (struct sim_word){w.at, (size_t)(equal - w.at)};
	*ret_value = SIM_ABSENT;
	if (equal + 2 == end && equal[1] == '-')
		return true;
	for (const char *p = equal + 1; p < end; p++) {
		if (*p < '0' || *p > '9')
			return err_set(err, ERR_INVALID, "\"%.*s\": the value is a number, or - for none", shown, w.at);
		if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *p - '0', &value))
			return err_set(err, ERR_INVALID, "\"%.*s\": the value has more than 63 bits", shown, w.at);
	}
	*ret_value = value;
	return true;
}
