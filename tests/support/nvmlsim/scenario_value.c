/* tests/support/nvmlsim/scenario_value.c - names and typed values of a scenario. */
#include "tests/support/nvmlsim/scenario_read.h"

#include <stdio.h>

#include "common/time.h"

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
	return duration_parse(text, value, &cause) || yaml_err(r->doc, n, r->err, "%s: %s", key, cause.text);
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
