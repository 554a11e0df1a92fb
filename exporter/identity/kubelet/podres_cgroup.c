/* exporter/identity/kubelet/podres_cgroup.c - whether a pod of this node still has a cgroup. */
#include <stdio.h>
#include <unistd.h>

#include "exporter/identity/kubelet/podres.h"

/* v2 is mounted at the root itself or, beside v1, at unified; every v1 hierarchy that the kubelet uses has all its pods. */
static const char *const hierarchies[] = {"", "/memory", "/pids", "/systemd", "/unified"};

/* Where a kubelet keeps its pods, by driver; with the systemd driver the name of a slice repeats those above it. */
static const struct {
	const char *folder;
	const char *slice; /* NULL: the cgroupfs driver */
} places[PODRES_PLACES] = {{"kubepods.slice", "kubepods"},
                           {"kubelet.slice/kubelet-kubepods.slice", "kubelet-kubepods"},
                           {"kubepods", NULL},
                           {"kubelet/kubepods", NULL}};

static const char *const classes[] = {"", "burstable", "besteffort"};

void
podres_cgroups_look(struct podres_cgroups *c, const char *root)
{
	char path[1024];

	_Static_assert(ARRAY_LEN(hierarchies) == PODRES_HIERARCHIES, "as many as in podres.h");
	*c = (struct podres_cgroups){.root = root};
	for (size_t h = 0; h < PODRES_HIERARCHIES; h++)
		for (size_t p = 0; p < PODRES_PLACES; p++) {
			snprintf(path, sizeof(path), "%s%s/%s", root, hierarchies[h], places[p].folder);
			c->exists[h][p] = access(path, F_OK) == 0;
		}
}

/* The pod's folder in one place, for one class of pods. */
static bool
exists(const char *folder, const char *slice, const char *class, const char *uid)
{
	const char *dash = class[0] ? "-" : "";
	char path[2048];

	if (!slice)
		snprintf(path, sizeof(path), "%s/%s%spod%s", folder, class, class[0] ? "/" : "", uid);
	else if (class[0])
		snprintf(path, sizeof(path), "%s/%s%s%s.slice/%s%s%s-pod%s.slice", folder, slice, dash, class, slice,
		         dash, class, uid);
	else
		snprintf(path, sizeof(path), "%s/%s-pod%s.slice", folder, slice, uid);
	return access(path, F_OK) == 0;
}

/* The systemd driver writes '_' for '-'. False: that is no UID. */
static bool
underscored(const char *uid, char *out, size_t size)
{
	size_t n = 0;

	for (; uid[n]; n++) {
		if (n == size - 1 || uid[n] == '/')
			return false;
		out[n] = uid[n];
		if (out[n] == '-')
			out[n] = '_';
	}
	out[n] = '\0';
	return n > 0;
}

bool
podres_cgroup_exists(const struct podres_cgroups *c, const char *uid)
{
	char under[128], folder[1024];

	if (!underscored(uid, under, sizeof(under)))
		return false;
	for (size_t h = 0; h < PODRES_HIERARCHIES; h++)
		for (size_t p = 0; p < PODRES_PLACES; p++) {
			if (!c->exists[h][p])
				continue;
			snprintf(folder, sizeof(folder), "%s%s/%s", c->root, hierarchies[h], places[p].folder);
			for (size_t i = 0; i < ARRAY_LEN(classes); i++)
				if (exists(folder, places[p].slice, classes[i], places[p].slice ? under : uid))
					return true;
		}
	return false;
}

bool
podres_cgroups_seen(const struct podres_cgroups *c, const struct pod_dirs *dirs)
{
	bool any = false;

	for (size_t h = 0; h < PODRES_HIERARCHIES; h++)
		for (size_t p = 0; p < PODRES_PLACES; p++)
			any |= c->exists[h][p];
	for (size_t i = 0; any && i < dirs->count; i++)
		if (podres_cgroup_exists(c, dirs->dirs[i].uid))
			return true;
	return false;
}
