/* exporter/cgroup.c - the owner that a cgroup path names.
 *
 * Paths are read from the root: the upper components are made by the node's own services, the lower ones may be made by the
 * workload. The first owner found is therefore the true one, and what follows cannot replace it. */
#include <string.h>

#include "exporter/identity.h"

/* A stretch of text, not NUL-terminated. */
struct word {
	const char *at;
	size_t len;
};

static bool
has(struct word w, const char *part)
{
	return memmem(w.at, w.len, part, strlen(part)) != NULL;
}

static bool
begins(struct word w, const char *start)
{
	return w.len >= strlen(start) && memcmp(w.at, start, strlen(start)) == 0;
}

static bool
ends(struct word w, const char *end)
{
	return w.len >= strlen(end) && memcmp(w.at + w.len - strlen(end), end, strlen(end)) == 0;
}

static bool
is(struct word w, const char *text)
{
	return w.len == strlen(text) && memcmp(w.at, text, w.len) == 0;
}

static bool
is_hex(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* The text before the next separator; moves behind it. */
static struct word
next_word(struct word *rest, char separator)
{
	const char *end = rest->len ? memchr(rest->at, separator, rest->len) : NULL;
	struct word w = {rest->at, end ? (size_t)(end - rest->at) : rest->len};
	size_t used = end ? w.len + 1 : w.len;

	rest->at += used;
	rest->len -= used;
	return w;
}

/* A pod's UID as cgroups have it: the systemd driver writes '_' for '-', static pods have a hash without dashes. */
static bool
take_pod_uid(struct word w, struct cgroup_owner *o)
{
	if (w.len == 0 || w.len >= sizeof(o->pod_uid))
		return false;
	for (size_t i = 0; i < w.len; i++)
		if (!is_hex(w.at[i]) && !(w.at[i] >= 'g' && w.at[i] <= 'z') && w.at[i] != '-' && w.at[i] != '_')
			return false;
	for (size_t i = 0; i < w.len; i++)
		o->pod_uid[i] = w.at[i] == '_' ? '-' : w.at[i];
	o->pod_uid[w.len] = '\0';
	return true;
}

/* "kubepods-burstable-pod<uid>.slice" of the systemd driver. */
static bool
pod_of_slice(struct word w, struct cgroup_owner *o)
{
	const char mark[] = "-pod";
	const char *at;

	if (!ends(w, ".slice"))
		return false;
	w.len -= strlen(".slice");
	for (at = w.at; (at = memmem(at, (size_t)(w.at + w.len - at), mark, strlen(mark))) != NULL; at++) {
		struct word uid = {at + strlen(mark), 0};

		uid.len = (size_t)(w.at + w.len - uid.at);
		if (take_pod_uid(uid, o))
			return true;
	}
	return false;
}

/* "cri-containerd-<id>.scope", "crio-<id>.scope", "docker-<id>.scope" or the id alone. */
static void
take_container(struct word w, struct cgroup_owner *o)
{
	const size_t least = 12;
	const char *dash;

	if (ends(w, ".scope"))
		w.len -= strlen(".scope");
	dash = memrchr(w.at, '-', w.len);
	if (dash) {
		w.len -= (size_t)(dash + 1 - w.at);
		w.at = dash + 1;
	}
	if (w.len < least || w.len >= sizeof(o->container_id))
		return;
	for (size_t i = 0; i < w.len; i++)
		if (!is_hex(w.at[i]))
			return;
	memcpy(o->container_id, w.at, w.len);
	o->container_id[w.len] = '\0';
}

/* "job_<number>" below a folder of Slurm. */
static void
take_slurm_job(struct word w, struct cgroup_owner *o)
{
	w.at += strlen("job_");
	w.len -= strlen("job_");
	if (w.len == 0 || w.len >= sizeof(o->slurm_job))
		return;
	for (size_t i = 0; i < w.len; i++)
		if (w.at[i] < '0' || w.at[i] > '9')
			return;
	memcpy(o->slurm_job, w.at, w.len);
	o->slurm_job[w.len] = '\0';
}

struct walk {
	struct cgroup_owner owner;
	bool kubepods, slurm; /* a component above was theirs */
};

static void
look_at(struct walk *k, struct word w)
{
	if (k->owner.pod_uid[0]) {
		if (!k->owner.container_id[0])
			take_container(w, &k->owner);
	} else if (has(w, "kubepods")) {
		k->kubepods = true;
		(void)pod_of_slice(w, &k->owner);
	} else if (k->kubepods && begins(w, "pod")) {
		(void)take_pod_uid((struct word){w.at + 3, w.len - 3}, &k->owner);
	} else if (begins(w, "slurm") || ends(w, "slurmstepd.scope")) {
		k->slurm = true;
	} else if (k->slurm && begins(w, "job_")) {
		take_slurm_job(w, &k->owner);
	}
}

/* One line: "0::/path", "5:memory,cpu:/path". */
static bool
parse_line(struct word line, struct cgroup_owner *ret)
{
	struct walk k = {0};

	(void)next_word(&line, ':');
	(void)next_word(&line, ':');
	while (line.len > 0 && !k.owner.slurm_job[0]) {
		struct word component = next_word(&line, '/');

		if (is(component, "user.slice"))
			break;
		/* containerd without the systemd driver: "<slice>:cri-containerd:<id>" */
		while (component.len > 0)
			look_at(&k, next_word(&component, ':'));
	}
	*ret = k.owner;
	return ret->pod_uid[0] || ret->slurm_job[0];
}

bool
cgroup_owner_parse(const char *text, size_t len, struct cgroup_owner *ret)
{
	struct word rest = {text, len};

	while (rest.len > 0)
		if (parse_line(next_word(&rest, '\n'), ret))
			return true;
	*ret = (struct cgroup_owner){0};
	return false;
}
