/* exporter/identity/cgroup.c - the owner that a cgroup path names. The rules are numbered in cgroup.h. */
#include "exporter/identity/cgroup.h"

#include <string.h>

/* A stretch of text, not NUL-terminated. */
struct word {
	const char *at;
	size_t len;
};

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

static const char *
find(struct word w, const char *part)
{
	return w.len < strlen(part) ? NULL : memmem(w.at, w.len, part, strlen(part));
}

static struct word
without_first(struct word w, size_t n)
{
	return (struct word){w.at + n, w.len - n};
}

/* The text before the next separator; moves behind it. */
static struct word
next_word(struct word *rest, char separator)
{
	const char *end = rest->len ? memchr(rest->at, separator, rest->len) : NULL;
	struct word w = {rest->at, end ? (size_t)(end - rest->at) : rest->len};

	*rest = without_first(*rest, end ? w.len + 1 : w.len);
	return w;
}

/* Copies w when it is not empty, fits, and has only such characters. */
static bool
take_text(struct word w, const char *allowed, char *out, size_t size)
{
	if (w.len == 0 || w.len >= size)
		return false;
	for (size_t i = 0; i < w.len; i++)
		if (!w.at[i] || !strchr(allowed, w.at[i]))
			return false;
	memcpy(out, w.at, w.len);
	out[w.len] = '\0';
	return true;
}

bool
cgroup_names_job(const struct cgroup_owner *o)
{
	return o->slurm_job[0] || o->slurm_sluid[0];
}

void
cgroup_forget_job(struct cgroup_owner *o)
{
	memset(o->slurm_job, 0, sizeof(o->slurm_job));
	memset(o->slurm_sluid, 0, sizeof(o->slurm_sluid));
}

/* A pod's UID as cgroups have it: the systemd driver writes '_' for '-', static pods have a hash without dashes. */
static bool
take_pod_uid(struct word w, struct cgroup_owner *o)
{
	if (!take_text(w, "0123456789abcdefghijklmnopqrstuvwxyzABCDEF-_", o->pod_uid, sizeof(o->pod_uid)))
		return false;
	for (char *c = o->pod_uid; *c; c++)
		*c = *c == '_' ? '-' : *c;
	return true;
}

/* "cri-containerd-<id>.scope", "crio-<id>.scope", "docker-<id>.scope" or the id alone. */
static bool
take_container(struct word w, char *out, size_t size)
{
	const size_t least = 12;
	const char *dash;

	if (ends(w, ".scope"))
		w.len -= strlen(".scope");
	dash = memrchr(w.at, '-', w.len);
	if (dash)
		w = without_first(w, (size_t)(dash + 1 - w.at));
	return w.len >= least && take_text(w, "0123456789abcdefABCDEF", out, size);
}

static void
take_session(struct word w, struct cgroup_owner *o)
{
	char digits[11];
	int64_t uid = 0;

	if (!begins(w, "user-") || !ends(w, ".slice"))
		return;
	w = without_first(w, strlen("user-"));
	w.len -= strlen(".slice");
	if (!take_text(w, "0123456789", digits, sizeof(digits)))
		return;
	for (const char *c = digits; *c; c++)
		uid = uid * 10 + (*c - '0');
	if (uid < UINT32_MAX)
		o->session_uid = uid;
}

/* Rule 9. */
static void
take_job(struct word w, struct cgroup_owner *o)
{
	if (begins(w, "job_"))
		(void)take_text(without_first(w, strlen("job_")), "0123456789", o->slurm_job, sizeof(o->slurm_job));
	else if (text_is_sluid(w.at, w.len))
		memcpy(o->slurm_sluid, w.at, w.len);
}

/* ---- the walk ---- */

enum place { AT_SYSTEM, IN_KUBEPODS, IN_POD, IN_CONTAINER, IN_SLURM, IN_SESSION, AT_END };

struct walk {
	struct cgroup_owner owner;
	enum place place;
	bool above; /* rule 7: began with ".." */
};

/* Services in whose own cgroup a container runtime makes its containers when it does not use the systemd driver. */
static bool
is_runtime(struct word w)
{
	static const char *const names[] = {"containerd.service",    "docker.service",        "crio.service",
	                                    "kubelet.service",       "k3s.service",           "k3s-agent.service",
	                                    "rke2-server.service",   "rke2-agent.service",    "k0sworker.service",
	                                    "k0scontroller.service", "k3s-containerd.service"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (is(w, names[i]))
			return true;
	return is(w, "snap.microk8s.daemon-containerd.service");
}

static bool
is_qos(struct word w)
{
	return is(w, "burstable") || is(w, "besteffort") || is(w, "guaranteed");
}

/* A slice of the systemd driver, whose name repeats those above it: "kubepods.slice", "kubelet-kubepods-burstable.slice",
 * "kubepods-burstable-pod<uid>.slice". */
static bool
enter_kube_slice(struct walk *k, struct word w)
{
	const char mark[] = "kubepods";
	const char *at;

	if (!ends(w, ".slice"))
		return false;
	w.len -= strlen(".slice");
	at = find(w, mark);
	if (!at || (at != w.at && at[-1] != '-'))
		return false;
	w = without_first(w, (size_t)(at - w.at) + strlen(mark));
	if (begins(w, "-burstable") || begins(w, "-besteffort"))
		w = without_first(w, begins(w, "-burstable") ? strlen("-burstable") : strlen("-besteffort"));
	if (w.len == 0)
		k->place = IN_KUBEPODS;
	else if (begins(w, "-pod") && take_pod_uid(without_first(w, strlen("-pod")), &k->owner))
		k->place = IN_POD;
	else
		return false;
	return true;
}

static bool
enter_pod(struct walk *k, struct word w)
{
	if (!begins(w, "pod") || !take_pod_uid(without_first(w, strlen("pod")), &k->owner))
		return false;
	k->place = IN_POD;
	return true;
}

static bool
is_slurm(struct word w)
{
	if (ends(w, ".service"))
		return false;
	return is(w, "slurm") || begins(w, "slurm_") || is(w, "slurmstepd.scope") || ends(w, "_slurmstepd.scope");
}

static void
step_at_system(struct walk *k, struct word w)
{
	if (is(w, ".."))
		k->above = true;
	else if (is(w, "user.slice"))
		k->place = IN_SESSION;
	else if (is(w, "kubepods") || (k->above && is_qos(w)))
		k->place = IN_KUBEPODS;
	else if (enter_kube_slice(k, w) || (k->above && enter_pod(k, w)))
		return;
	else if (is_slurm(w))
		k->place = IN_SLURM;
	else if (!is(w, "kubelet") && !is_runtime(w) && (!ends(w, ".slice") || begins(w, "user-")))
		k->place = AT_END;
}

static void
step(struct walk *k, struct word w)
{
	switch (k->place) {
	case AT_SYSTEM: step_at_system(k, w); break;
	case IN_KUBEPODS:
		if (!is_qos(w) && !enter_kube_slice(k, w) && !enter_pod(k, w))
			k->place = AT_END;
		break;
	case IN_POD:
		k->place =
			take_container(w, k->owner.container_id, sizeof(k->owner.container_id)) ? IN_CONTAINER : AT_END;
		break;
	case IN_CONTAINER:
		/* CRI-O with crun starts a container in a folder "container" below its own */
		if (is_slurm(w))
			k->place = IN_SLURM;
		else if (!ends(w, ".slice") && !is(w, "container"))
			k->place = AT_END;
		break;
	case IN_SLURM:
		if (begins(w, "uid_"))
			break;
		take_job(w, &k->owner);
		k->place = AT_END;
		break;
	case IN_SESSION:
		take_session(w, &k->owner);
		k->place = AT_END;
		break;
	case AT_END: break;
	}
}

/* ---- lines ---- */

/* The path of a line "0::/path" or "5:memory,cpu:/path", without the slash at its beginning. */
static struct word
path_of(struct word line)
{
	const char gone[] = " (deleted)";

	(void)next_word(&line, ':');
	(void)next_word(&line, ':');
	if (ends(line, gone))
		line.len -= strlen(gone);
	return begins(line, "/") ? without_first(line, 1) : (struct word){line.at, 0};
}

/* Rule 6. */
static struct word
below_base(struct word path, const struct cgroup_base *base)
{
	size_t n = base ? strlen(base->path) : 0;

	if (n > 0 && path.len > n && memcmp(path.at, base->path, n) == 0 && path.at[n] == '/')
		return without_first(path, n + 1);
	return path;
}

static int
rank(const struct cgroup_owner *o)
{
	if (o->pod_uid[0])
		return 3 + cgroup_names_job(o);
	return cgroup_names_job(o) ? 2 : o->session_uid >= 0;
}

static bool
same_owner(const struct cgroup_owner *a, const struct cgroup_owner *b)
{
	return strcmp(a->pod_uid, b->pod_uid) == 0 && strcmp(a->container_id, b->container_id) == 0 &&
	       strcmp(a->slurm_job, b->slurm_job) == 0 && strcmp(a->slurm_sluid, b->slurm_sluid) == 0 &&
	       a->session_uid == b->session_uid;
}

/* Gives the end of the first folder that names all of `wanted` (may be NULL); NULL: none does. */
static const char *
parse_path(struct word path, const struct cgroup_owner *wanted, struct cgroup_owner *ret)
{
	struct walk k = {.owner = {.session_uid = -1}};
	const char *own = NULL;

	while (path.len > 0 && k.place != AT_END) {
		struct word component = next_word(&path, '/');
		const char *end = component.at + component.len;

		/* a runtime without the systemd driver: "<slice>:cri-containerd:<id>" */
		if (find(component, ".slice:")) {
			step(&k, next_word(&component, ':'));
			(void)next_word(&component, ':');
		}
		step(&k, component);
		if (wanted && !own && same_owner(&k.owner, wanted))
			own = end;
	}
	*ret = k.owner;
	return own;
}

bool
cgroup_owner_parse(const struct cgroup_base *base, const char *text, size_t len, struct cgroup_owner *ret)
{
	struct word rest = {text, len};

	*ret = (struct cgroup_owner){.session_uid = -1};
	while (rest.len > 0) {
		struct cgroup_owner o;

		(void)parse_path(below_base(path_of(next_word(&rest, '\n')), base), NULL, &o);
		if (rank(&o) > rank(ret))
			*ret = o;
	}
	return ret->pod_uid[0] || cgroup_names_job(ret);
}

static bool
has_controller(struct word line, const char *controller)
{
	struct word names;

	(void)next_word(&line, ':');
	names = next_word(&line, ':');
	if (names.len == 0)
		return !controller[0];
	while (names.len > 0)
		if (is(next_word(&names, ','), controller))
			return true;
	return false;
}

bool
cgroup_own_folder(const struct cgroup_base *base, const char *text, size_t len, const struct cgroup_owner *owner,
                  const char *controller, char *ret, size_t size)
{
	struct word rest = {text, len};

	while (rest.len > 0) {
		struct word line = next_word(&rest, '\n'), path = path_of(line);
		struct cgroup_owner o;
		const char *end;

		if (!has_controller(line, controller))
			continue;
		end = parse_path(below_base(path, base), owner, &o);
		if (!cgroup_names_job(owner) && o.pod_uid[0])
			cgroup_forget_job(&o);
		if (!end || rank(owner) == 0 || !same_owner(&o, owner) || (size_t)(end - path.at) >= size ||
		    memchr(path.at, '\0', (size_t)(end - path.at)))
			return false;
		memcpy(ret, path.at, (size_t)(end - path.at));
		ret[end - path.at] = '\0';
		return true;
	}
	return false;
}

/* "docker/<id>", "docker-<id>.scope", "libpod-<id>.scope", "lxc/<name>", "lxc.payload.<name>": a whole system may live in it. */
static bool
is_container(struct word w, struct word parent)
{
	char id[80];

	if (begins(w, "lxc.payload.") || is(parent, "lxc"))
		return true;
	if (ends(w, ".scope"))
		return (begins(w, "docker-") || begins(w, "libpod-")) && take_container(w, id, sizeof(id));
	return is(parent, "docker") && take_container(w, id, sizeof(id));
}

void
cgroup_base_parse(const char *text, size_t len, struct cgroup_base *ret)
{
	struct word rest = {text, len};

	*ret = (struct cgroup_base){0};
	while (rest.len > 0 && !ret->path[0]) {
		struct word path = path_of(next_word(&rest, '\n'));
		const char *start = path.at;
		struct word parent = {path.at, 0};

		while (path.len > 0) {
			struct word w = next_word(&path, '/');
			size_t end = (size_t)(w.at + w.len - start);

			if (is(w, "user.slice") || is_slurm(w) || find(w, "kubepods"))
				break;
			if (is_container(w, parent) && end < sizeof(ret->path)) {
				memcpy(ret->path, start, end);
				ret->path[end] = '\0';
			}
			parent = w;
		}
	}
}
