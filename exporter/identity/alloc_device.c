/* exporter/identity/alloc_device.c - the ways in which schedulers name a GPU. */
#include "exporter/identity/alloc_device.h"

#include <stdlib.h>
#include <string.h>

/* A number of up to six digits at *at; moves behind it. */
static bool
take_number(const char **at, int32_t *ret)
{
	size_t digits = strspn(*at, "0123456789");

	if (digits == 0 || digits > 6)
		return false;
	*ret = (int32_t)strtol(*at, NULL, 10);
	*at += digits;
	return true;
}

static bool
take_word(const char **at, const char *word)
{
	if (strncmp(*at, word, strlen(word)) != 0)
		return false;
	*at += strlen(word);
	return true;
}

struct device_name
device_name_none(void)
{
	return (struct device_name){.index = -1, .gi = -1, .ci = -1, .replica = -1};
}

static bool
parse_index(const char *text, struct device_name *d)
{
	const char *at = text;
	bool gke = take_word(&at, "nvidia");

	if (!take_number(&at, &d->index))
		return false;
	if (gke && take_word(&at, "/gi") && !take_number(&at, &d->gi))
		return false;
	if (gke && take_word(&at, "/vgpu") && !take_number(&at, &d->replica))
		return false;
	return !*at;
}

static bool
parse_old_mig(const char *text, struct device_name *d)
{
	const char *at = text + strlen("MIG-");
	const char *slash = strchr(text, '/');

	if (strncmp(text, "MIG-GPU-", strlen("MIG-GPU-")) != 0 || !slash)
		return false;
	d->uuid = mem_strndup(at, (size_t)(slash - at));
	at = slash + 1;
	return take_number(&at, &d->gi) && take_word(&at, "/") && take_number(&at, &d->ci) && !*at;
}

struct device_name
device_name_parse(const char *text)
{
	struct device_name d = device_name_none();

	if (parse_index(text, &d) || parse_old_mig(text, &d))
		return d;
	device_name_fini(&d);
	d = device_name_none();
	d.uuid = mem_strdup(text);
	return d;
}

bool
device_name_is_none(const struct device_name *d)
{
	return !d->uuid && d->index < 0;
}

bool
device_name_equal(const struct device_name *a, const struct device_name *b)
{
	if (a->index != b->index || a->gi != b->gi || a->ci != b->ci || a->replica != b->replica ||
	    !a->uuid != !b->uuid)
		return false;
	return !a->uuid || strcmp(a->uuid, b->uuid) == 0;
}

void
device_name_fini(struct device_name *d)
{
	mem_free(d->uuid);
	d->uuid = NULL;
}

static bool
means(const struct device_name *d, const struct gpu_reading *r)
{
	return d->uuid ? strcmp(d->uuid, r->uuid) == 0 : d->index == r->index;
}

size_t
device_name_resolve(const struct device_name *d, const struct gpu_snapshot *snap, const char *ret[GPU_INSTANCE_MAX])
{
	size_t n = 0;

	if (d->uuid && d->gi < 0) {
		ret[n++] = d->uuid;
		return n;
	}
	for (size_t i = 0; i < snap->count && !device_name_is_none(d); i++) {
		const struct gpu_reading *r = &snap->gpus[i];

		if (!means(d, r) || !r->uuid[0])
			continue;
		if (d->gi < 0) {
			ret[n++] = r->uuid;
			return n;
		}
		for (size_t k = 0; k < r->instance_count && n < GPU_INSTANCE_MAX; k++)
			if (r->instances[k].gi == d->gi && (d->ci < 0 || r->instances[k].ci == d->ci))
				ret[n++] = r->instances[k].uuid;
	}
	return n;
}
