/* exporter/identity/kubelet/pod_folders.c - the pods of this node by the folders that the kubelet keeps for them. */
#include "exporter/identity/kubelet/pod_folders.h"

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
root_changed_ns(const struct pod_folders *d)
{
	struct stat st;

	return stat(d->root, &st) == 0 ? stat_ns(&st) : 0;
}

static void
forget(struct pod_folders *d)
{
	for (size_t i = 0; i < d->count; i++) {
		mem_free(d->list[i].ns);
		mem_free(d->list[i].name);
		mem_free(d->list[i].uid);
	}
	mem_free(d->list);
	d->list = NULL;
	d->count = 0;
}

void
pod_folders_init(struct pod_folders *d, const char *root)
{
	*d = (struct pod_folders){.root = mem_strdup(root)};
}

void
pod_folders_fini(struct pod_folders *d)
{
	forget(d);
	mem_free(d->root);
	*d = (struct pod_folders){0};
}

static void
add(struct pod_folders *d, const char *entry, int64_t changed_ns)
{
	const char *first = strchr(entry, '_'), *last = strrchr(entry, '_');

	if (!first || first == entry || last <= first + 1 || !last[1])
		return;
	owned(mem) char *ns = mem_strndup(entry, (size_t)(first - entry));
	owned(mem) char *name = mem_strndup(first + 1, (size_t)(last - first - 1));

	d->list = mem_grow(d->list, d->count + 1, sizeof(*d->list));
	d->list[d->count++] = (struct pod_folder){.ns = sanitized_copy(ns, WIRE_MAX_TEXT),
	                                          .name = sanitized_copy(name, WIRE_MAX_TEXT),
	                                          .uid = sanitized_copy(last + 1, WIRE_MAX_TEXT),
	                                          .changed_ns = changed_ns};
}

void
pod_folders_read(struct pod_folders *d)
{
	DIR *dir;
	const struct dirent *entry;

	forget(d);
	/* taken before reading, so that a folder made meanwhile is seen as a change */
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
pod_folders_changed(const struct pod_folders *d)
{
	return root_changed_ns(d) != d->changed_ns;
}

const struct pod_folder *
pod_folders_by_uid(const struct pod_folders *d, const char *uid)
{
	for (size_t i = 0; i < d->count; i++)
		if (strcmp(d->list[i].uid, uid) == 0)
			return &d->list[i];
	return NULL;
}

const struct pod_folder *
pod_folders_by_name(const struct pod_folders *d, const char *ns, const char *name)
{
	const struct pod_folder *newest = NULL;

	for (size_t i = 0; i < d->count; i++) {
		const struct pod_folder *p = &d->list[i];

		if (strcmp(p->name, name) == 0 && strcmp(p->ns, ns) == 0 &&
		    (!newest || p->changed_ns > newest->changed_ns))
			newest = p;
	}
	return newest;
}
