/* Any text as the file of a job, and, after its first line, as that of a GPU: what is taken is fit for a record. */
#include <string.h>

#include "common/base/text.h"
#include "common/wire/wire.h"
#include "exporter/identity/alloc.h"
#include "exporter/identity/slurm_map.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_text(const char *s)
{
	ASSERT(s && strlen(s) <= WIRE_MAX_TEXT && text_is_clean(s));
}

static void
check_device(const char *text)
{
	struct device_name d = device_name_parse(text);

	ASSERT(!device_name_is_none(&d) || !text[0]);
	ASSERT((d.uuid != NULL) != (d.index >= 0));
	ASSERT(device_name_equal(&d, &d));
	device_name_fini(&d);
}

static void
check_job(const char *text, size_t size)
{
	struct slurm_job j;
	struct err err;

	if (!slurm_job_parse(text, size, &j, &err)) {
		ASSERT(err.kind == ERR_INVALID && err.text[0]);
		return;
	}
	ASSERT(!j.sluid[0] || text_is_sluid(j.sluid, strlen(j.sluid)));
	check_text(j.account);
	check_text(j.user);
	check_text(j.partition);
	ASSERT(j.job[0] && strspn(j.job, "0123456789") == strlen(j.job));
	ASSERT(j.uid >= -1 && j.uid < UINT32_MAX);
	ASSERT(j.start_wall_ns >= -1);
	ASSERT(j.gpu_count <= SLURM_GPUS_MAX);
	for (size_t i = 0; i < j.gpu_count; i++) {
		check_text(j.gpus[i]);
		check_device(j.gpus[i]);
	}
	slurm_job_fini(&j);
}

static void
check_gpu(const char *text, size_t size)
{
	const char *end = size ? memchr(text, '\n', size) : NULL;
	struct hpc_gpu g;

	if (!end)
		return;
	owned(mem) char *name = mem_strndup(text, (size_t)(end - text));

	if (!hpc_gpu_parse(name, end + 1, size - (size_t)(end + 1 - text), &g, NULL))
		return;
	check_text(g.gpu);
	ASSERT(g.gpu[0] && g.gi >= -1 && g.job_count <= SLURM_GPUS_MAX);
	for (size_t i = 0; i < g.job_count; i++)
		check_text(g.jobs[i]);
	hpc_gpu_fini(&g);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* a copy of exactly this size, so that a read beyond it is seen */
	owned(mem) char *text = mem_array(1, size);

	if (size > 0)
		memcpy(text, data, size);
	check_job(text, size);
	check_gpu(text, size);
	return 0;
}
