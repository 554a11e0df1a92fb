/* Any bytes as the kubelet's answers: what is decoded is fit for a record, and within its limits. */
#include <string.h>

#include "common/base/text.h"
#include "common/wire/wire.h"
#include "exporter/identity/kubelet/podres.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_text(const char *s)
{
	ASSERT(s && strlen(s) <= WIRE_MAX_TEXT && text_is_clean(s));
}

static void
check_list(const uint8_t *data, size_t size)
{
	struct podres_list l = {0}, before = {0};
	const struct pod_folders none = {0};
	const struct podres_offers offers = {0};
	struct err err;

	if (!podres_decode_list(data, size, &l, &err)) {
		ASSERT(err.kind == ERR_INVALID);
		return;
	}
	ASSERT(l.count <= PODRES_GRANTS_MAX);
	podres_apply(&(struct podres_circumstances){.folders = &none}, &offers, &l, &before);
	for (size_t i = 0; i < l.count; i++) {
		const struct podres_grant *g = &l.grants[i];

		check_text(g->ns);
		check_text(g->pod);
		check_text(g->container);
		check_text(g->device);
		ASSERT(g->ns[0] && g->pod[0] && g->device[0]);
		ASSERT(g->replica >= -1 && g->replica <= 999999);
	}
	podres_list_fini(&l);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct podres_offers o = {0};

	check_list(data, size);
	if (podres_decode_offers(data, size, &o, NULL)) {
		for (size_t i = 0; i < o.count; i++) {
			check_text(o.offers[i].device);
			ASSERT(o.offers[i].replicas > 0);
			ASSERT(i == 0 || strcmp(o.offers[i - 1].device, o.offers[i].device) < 0);
		}
		podres_offers_fini(&o);
	}
	return 0;
}
