/* exporter/podres_cgroup.c - whether a pod of this node still has a cgroup. */
#include <stdio.h>
#include <unistd.h>

#include "exporter/podres.h"

/* v2 is mounted at the root itself or, beside v1, at unified; every v1 hierarchy that the kubelet uses has all its pods. */
static const char *const hierarchies[] = {"", "/memory", "/pids", "/systemd", "/unified"};

/* Drivers and classes; %s is the pod's UID, for the systemd driver with '_' for '-'. */
static const char *const systemd_paths[] = {
	"kubepods.slice/kubepods-pod%s.slice",
	"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod%s.slice",
	"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod%s.slice",
	"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod%s.slice",
	"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod%s.slice",
	"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod%s.slice",
};
static const char *const cgroupfs_paths[] = {
	"kubepods/pod%s",         "kubepods/burstable/pod%s",         "kubepods/besteffort/pod%s",
	"kubelet/kubepods/pod%s", "kubelet/kubepods/burstable/pod%s", "kubelet/kubepods/besteffort/pod%s",
};

static bool
exists(const char *root, const char *hierarchy, const char *format, const char *uid)
{
	const char *mark = format;
	char path[1024];

	while (*mark && *mark != '%')
		mark++;
	snprintf(path, sizeof(path), "%s%s/%.*s%s%s", root, hierarchy, (int)(mark - format), format, uid,
	         *mark ? mark + 2 : "");
	return access(path, F_OK) == 0;
}

bool
podres_cgroup_exists(const char *root, const char *uid)
{
	char under[128];
	size_t n = 0;

	while (uid[n] && n < sizeof(under) - 1) {
		if (uid[n] == '/')
			return false;
		under[n] = uid[n];
		if (under[n] == '-')
			under[n] = '_';
		n++;
	}
	under[n] = '\0';
	for (size_t h = 0; h < ARRAY_LEN(hierarchies); h++) {
		for (size_t i = 0; i < ARRAY_LEN(systemd_paths); i++)
			if (exists(root, hierarchies[h], systemd_paths[i], under))
				return true;
		for (size_t i = 0; i < ARRAY_LEN(cgroupfs_paths); i++)
			if (exists(root, hierarchies[h], cgroupfs_paths[i], uid))
				return true;
	}
	return false;
}

bool
podres_cgroups_seen(const char *root, const struct pod_dirs *dirs)
{
	for (size_t i = 0; i < dirs->count; i++)
		if (podres_cgroup_exists(root, dirs->dirs[i].uid))
			return true;
	return false;
}
