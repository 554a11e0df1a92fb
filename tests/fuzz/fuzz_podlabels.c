/* Any bytes as the kubelet's list of its pods: what is decoded has the one spelling of labels, only of wanted keys. */
#include <string.h>

#include "common/base/text.h"
#include "common/wire/wire.h"
#include "exporter/identity/kubelet/podlabels.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_pod(const struct pod_labels *p)
{
	const char *at = p->labels;
	struct label l;

	ASSERT(p->uid[0] && strlen(p->uid) <= WIRE_MAX_TEXT && text_is_clean(p->uid));
	ASSERT(labels_fault(p->labels) == NULL);
	while (labels_next(&at, &l))
		ASSERT((l.key_len == 4 && memcmp(l.key, "team", 4) == 0) ||
		       (l.key_len == 8 && memcmp(l.key, "x.io/app", 8) == 0));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct podlabels_list list = {0}, again = {0};
	struct podlabels_keys keys;
	struct err err = {0};

	ASSERT(podlabels_keys_parse("team,x.io/app", &keys, &err));
	if (!podlabels_decode((const char *)data, size, &keys, &list, &err)) {
		ASSERT(err.kind == ERR_INVALID && list.count == 0);
	} else {
		ASSERT(list.count <= PODLABELS_PODS_MAX);
		for (size_t i = 0; i < list.count; i++) {
			check_pod(&list.pods[i]);
			ASSERT(i == 0 || strcmp(list.pods[i - 1].uid, list.pods[i].uid) < 0);
			ASSERT(strcmp(podlabels_find(&list, list.pods[i].uid), list.pods[i].labels) == 0);
		}
		podlabels_keep(&again, &list, 1);
		ASSERT(again.count == list.count);
	}
	podlabels_list_fini(&again);
	podlabels_list_fini(&list);
	podlabels_keys_fini(&keys);
	return 0;
}
