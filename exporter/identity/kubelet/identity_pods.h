/* exporter/identity/kubelet/identity_pods.h - the pods of this node by the folders that the kubelet keeps for them: <namespace>_<name>_<uid>.
 *
 * Only the kubelet writes there, and neither a namespace nor a name can hold '_'. */
#ifndef TOLLGATE_IDENTITY_PODS_H
#define TOLLGATE_IDENTITY_PODS_H

#include "common/base/base.h"

struct pod_dir {
	char *ns, *name, *uid; /* fit for a record */
	int64_t changed_ns;    /* wall: when something in it was last made or removed */
};

struct pod_dirs {
	char *root;
	struct pod_dir *dirs;
	size_t count;
	int64_t changed_ns; /* of the root, before it was read; 0: it could not be */
};

void pod_dirs_init(struct pod_dirs *d, const char *root);
void pod_dirs_fini(struct pod_dirs *d);
void pod_dirs_read(struct pod_dirs *d);
/* A folder came or went since it was read. */
bool pod_dirs_changed(const struct pod_dirs *d);
/* NULL: there is no folder for it. */
const struct pod_dir *pod_dirs_by_uid(const struct pod_dirs *d, const char *uid);
/* A name may have had several pods one after the other: the newest. */
const struct pod_dir *pod_dirs_by_name(const struct pod_dirs *d, const char *ns, const char *name);

#endif
