/* Any text of /proc/PID/cgroup, the exporter's own or another's: what is found is a whole name of allowed characters, and
 * parsing is a function of the text. */
#include <string.h>

#include "exporter/identity/cgroup.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_name(const char *name, size_t size, const char *allowed)
{
	ASSERT(memchr(name, '\0', size));
	ASSERT(strspn(name, allowed) == strlen(name));
}

/* The own folder of an owner names that owner, and nothing below it does so before. */
static void
check_folder(const struct cgroup_base *base, const char *text, size_t size, const struct cgroup_owner *o)
{
	static const char *const controllers[] = {"", "memory"};
	char line[512] = "0::/";
	const size_t head = strlen(line);

	for (size_t i = 0; i < ARRAY_LEN(controllers); i++) {
		struct cgroup_owner again;

		if (!cgroup_own_folder(base, text, size, o, controllers[i], line + head, sizeof(line) - head))
			continue;
		ASSERT(memmem(text, size, line + head, strlen(line + head)));
		(void)cgroup_owner_parse(base, line, strlen(line), &again);
		ASSERT(memcmp(o, &again, sizeof(*o)) == 0);
	}
}

/* A job that a pod claims to run can be left to the pod. */
static void
check_pod_alone(const struct cgroup_base *base, const char *text, size_t size, struct cgroup_owner o)
{
	if (o.pod_uid[0] && cgroup_names_job(&o)) {
		cgroup_forget_job(&o);
		ASSERT(!cgroup_names_job(&o));
		check_folder(base, text, size, &o);
	}
}

static void
check_owner(const struct cgroup_base *base, const char *text, size_t size)
{
	struct cgroup_owner o, again;
	bool found = cgroup_owner_parse(base, text, size, &o);

	check_name(o.pod_uid, sizeof(o.pod_uid), "0123456789abcdefghijklmnopqrstuvwxyzABCDEF-");
	check_name(o.container_id, sizeof(o.container_id), "0123456789abcdefABCDEF");
	check_name(o.slurm_job, sizeof(o.slurm_job), "0123456789");
	ASSERT(!o.slurm_sluid[0] || text_is_sluid(o.slurm_sluid, strlen(o.slurm_sluid)));
	ASSERT(found == (o.pod_uid[0] || cgroup_names_job(&o)));
	ASSERT(!(o.slurm_job[0] && o.slurm_sluid[0]));
	ASSERT(!(o.pod_uid[0] && cgroup_names_job(&o)) || o.container_id[0]);
	ASSERT(o.session_uid >= -1 && o.session_uid < UINT32_MAX);
	ASSERT(!found || o.session_uid == -1);
	ASSERT(cgroup_owner_parse(base, text, size, &again) == found);
	ASSERT(memcmp(&o, &again, sizeof(o)) == 0);
	check_folder(base, text, size, &o);
	check_pod_alone(base, text, size, o);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* a copy of exactly this size, so that a read beyond it is seen */
	owned(mem) char *text = mem_array(1, size);
	struct cgroup_base base;

	if (size > 0)
		memcpy(text, data, size);
	check_owner(NULL, text, size);
	cgroup_base_parse(text, size, &base);
	ASSERT(strlen(base.path) < size || !base.path[0]);
	check_owner(&base, text, size);
	return 0;
}
