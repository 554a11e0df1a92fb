/* exporter/identity/kubelet/pod_folders.h - this node's pods, by the folder of logs that the kubelet keeps for each: <namespace>_<name>_<uid>.
 *
 * Only the kubelet writes there, and neither a namespace nor a name can hold '_'. */
#ifndef TOLLGATE_POD_FOLDERS_H
#define TOLLGATE_POD_FOLDERS_H

#include "common/base/base.h"

struct pod_folder {
	char *ns, *name, *uid; /* clean text, no longer than a record allows */
	int64_t changed_ns;    /* wall: when something in it was last made or removed */
};

struct pod_folders {
	char *root;
	struct pod_folder *list;
	size_t count;
	int64_t changed_ns; /* of the root, before it was read; 0: it could not be */
};

void pod_folders_init(struct pod_folders *d, const char *root);
void pod_folders_fini(struct pod_folders *d);
void pod_folders_read(struct pod_folders *d);
/* A folder came or went since it was read. */
bool pod_folders_changed(const struct pod_folders *d);
/* NULL: there is no folder for it. */
const struct pod_folder *pod_folders_by_uid(const struct pod_folders *d, const char *uid);
/* A name may have had several pods one after the other: the newest. */
const struct pod_folder *pod_folders_by_name(const struct pod_folders *d, const char *ns, const char *name);

#endif
