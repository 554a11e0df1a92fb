/* exporter/identity/kubelet/identity_pods.c - the pods of this node by the folders that the kubelet keeps for them. */
#include "exporter/identity/kubelet/identity_pods.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/time.h"
#include "common/wire/wire.h"
#include "exporter/source/sanitize.h"

#define PODS_MAX 10000u /* folders looked at */

static int64_t
stat_ns(const struct stat *st)
{
	return st->st_mtim.tv_sec * NS_PER_S + st->st_mtim.tv_nsec;
}

static int64_t
root_changed_ns(const struct pod_dirs *d)
{
	struct stat st;

	return stat(d->root, &st) == 0 ? stat_ns(&st) : 0;
}

static void
forget(struct pod_dirs *d)
{
	for (size_t i = 0; i < d->count; i++) {
		mem_free(d->dirs[i].ns);
		mem_free(d->dirs[i].name);
		mem_free(d->dirs[i].uid);
	}
	mem_free(d->dirs);
	d->dirs = NULL;
	d->count = 0;
}

void
pod_dirs_init(struct pod_dirs *d, const char *root)
{
	*d = (struct pod_dirs){.root = mem_strdup(root)};
}

void
pod_dirs_fini(struct pod_dirs *d)
{
	forget(d);
	mem_free(d->root);
	*d = (struct pod_dirs){0};
}

static void
add(struct pod_dirs *d, const char *entry, int64_t changed_ns)
{
	const char *first = strchr(entry, '_'), *last = strrchr(entry, '_');

	if (!first || first == entry || last <= first + 1 || !last[1])
		return;
	owned(mem) char *ns = mem_strndup(entry, (size_t)(first - entry));
	owned(mem) char *name = mem_strndup(first + 1, (size_t)(last - first - 1));

	d->dirs = mem_grow(d->dirs, d->count + 1, sizeof(*d->dirs));
	d->dirs[d->count++] = (struct pod_dir){.ns = sanitized_copy(ns, WIRE_MAX_TEXT),
	                                       .name = sanitized_copy(name, WIRE_MAX_TEXT),
	                                       .uid = sanitized_copy(last + 1, WIRE_MAX_TEXT),
	                                       .changed_ns = changed_ns};
}

void
pod_dirs_read(struct pod_dirs *d)
{
	DIR *dir;
	const struct dirent *entry;

	forget(d);
	/* before the reading: what comes during it is then seen as a change */
	d->changed_ns = root_changed_ns(d);
	dir = opendir(d->root);
	if (!dir)
		return;
	while (d->count < PODS_MAX && (entry = readdir(dir)) != NULL) {
		struct stat st;

		if (entry->d_name[0] != '.' && fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    S_ISDIR(st.st_mode))
			add(d, entry->d_name, stat_ns(&st));
	}
	closedir(dir);
}

bool
pod_dirs_changed(const struct pod_dirs *d)
{
	return root_changed_ns(d) != d->changed_ns;
}

const struct pod_dir *
pod_dirs_by_uid(const struct pod_dirs *d, const char *uid)
{
	for (size_t i = 0; i < d->count; i++)
		if (strcmp(d->dirs[i].uid, uid) == 0)
			return &d->dirs[i];
	return NULL;
}

const struct pod_dir *
pod_dirs_by_name(const struct pod_dirs *d, const char *ns, const char *name)
{
	const struct pod_dir *newest = NULL;

	for (size_t i = 0; i < d->count; i++) {
		const struct pod_dir *p = &d->dirs[i];

		if (strcmp(p->name, name) == 0 && strcmp(p->ns, ns) == 0 &&
		    (!newest || p->changed_ns > newest->changed_ns))
			newest = p;
	}
	return newest;
}
