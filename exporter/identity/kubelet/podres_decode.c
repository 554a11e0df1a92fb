/* exporter/identity/kubelet/podres_decode.c - the kubelet's messages, decoded with the code that protoc-c makes from podres.proto. */
#include <podres.pb-c.h>
#include <stdlib.h>
#include <string.h>

#include "common/wire/wire.h"
#include "exporter/identity/kubelet/podres.h"
#include "exporter/source/sanitize.h"

#define MEMORY_MAX \
	(64u << 20)    /* that one answer may take while it is decoded: two bytes on the wire can become forty */
#define BLOCK_COST 32u /* of an allocation, beside its size */
#define DEVICE_ID_MAX 128u

static void *
budget_alloc(void *arg, size_t size)
{
	size_t *left = arg;

	if (size > MEMORY_MAX || size + BLOCK_COST > *left)
		return NULL;
	*left -= size + BLOCK_COST;
	return mem_alloc(size);
}

static void
budget_free(void *arg, void *p)
{
	(void)arg;
	mem_free(p);
}

static bool
refuse(const char *what, size_t n, size_t left, struct err *err)
{
	if (left < MEMORY_MAX / 4)
		return err_set(err, ERR_INVALID, "the kubelet's answer to %s, %zu bytes, would take more than %u bytes",
		               what, n, MEMORY_MAX);
	return err_set(err, ERR_INVALID, "the kubelet's answer to %s, %zu bytes, cannot be decoded", what, n);
}

/* A GPU is known by the name of its resource or, where a site renamed that, by its id. */
static bool
is_gpu(const V1__ContainerDevices *d, const char *id)
{
	return strncmp(d->resource_name, "nvidia.com/", strlen("nvidia.com/")) == 0 || strncmp(id, "GPU-", 4) == 0 ||
	       strncmp(id, "MIG-", 4) == 0;
}

/* "GPU-<uuid>::3": the third replica, counted from 0. A suffix after "::" that is no number belongs to the id. */
static char *
split_id(const char *id, int32_t *ret_replica)
{
	char *device = sanitized_copy(id, DEVICE_ID_MAX);
	char *mark = strstr(device, "::");
	char *end;
	long n;

	*ret_replica = -1;
	if (mark && mark[2] >= '0' && mark[2] <= '9' && strlen(mark + 2) <= 6) {
		n = strtol(mark + 2, &end, 10);
		if (!*end) {
			*ret_replica = (int32_t)n;
			*mark = '\0';
		}
	}
	return device;
}

/* ---- List ---- */

void
podres_grant_fini(struct podres_grant *g)
{
	mem_free(g->ns);
	mem_free(g->pod);
	mem_free(g->uid);
	mem_free(g->container);
	mem_free(g->device);
}

void
podres_list_fini(struct podres_list *l)
{
	for (size_t i = 0; i < l->count; i++)
		podres_grant_fini(&l->grants[i]);
	mem_free(l->grants);
	*l = (struct podres_list){0};
}

static bool
too_many(const char *what, struct err *err)
{
	return err_set(err, ERR_INVALID, "the kubelet's answer to %s has more than %u GPUs", what, PODRES_GRANTS_MAX);
}

static bool
add_grants(struct podres_list *l, const V1__PodResources *pod, const V1__ContainerResources *container,
           const V1__ContainerDevices *devices, struct err *err)
{
	for (size_t i = 0; i < devices->n_device_ids; i++) {
		const char *id = devices->device_ids[i];
		struct podres_grant *g;

		if (!is_gpu(devices, id) || !id[0] || strlen(id) > DEVICE_ID_MAX)
			continue;
		if (l->count == PODRES_GRANTS_MAX)
			return too_many("List", err);
		if (l->count % 64 == 0)
			l->grants = mem_grow(l->grants, l->count + 64, sizeof(*l->grants));
		g = &l->grants[l->count++];
		*g = (struct podres_grant){.ns = sanitized_copy(pod->namespace_, WIRE_MAX_TEXT),
		                           .pod = sanitized_copy(pod->name, WIRE_MAX_TEXT),
		                           .uid = mem_strdup(""),
		                           .container = sanitized_copy(container->name, WIRE_MAX_TEXT)};
		g->device = split_id(id, &g->replica);
	}
	return true;
}

static bool
add_pod(struct podres_list *l, const V1__PodResources *pod, struct err *err)
{
	if (!pod->name[0] || !pod->namespace_[0])
		return true;
	for (size_t i = 0; i < pod->n_containers; i++)
		for (size_t k = 0; k < pod->containers[i]->n_devices; k++)
			if (!add_grants(l, pod, pod->containers[i], pod->containers[i]->devices[k], err))
				return false;
	return true;
}

bool
podres_decode_list(const void *message, size_t n, struct podres_list *ret, struct err *err)
{
	size_t left = MEMORY_MAX;
	ProtobufCAllocator memory = {budget_alloc, budget_free, &left};
	V1__ListPodResourcesResponse *m = v1__list_pod_resources_response__unpack(&memory, n, message);
	struct podres_list l = {0};
	bool ok = true;

	if (!m)
		return refuse("List", n, left, err);
	for (size_t i = 0; ok && i < m->n_pod_resources; i++)
		ok = add_pod(&l, m->pod_resources[i], err);
	v1__list_pod_resources_response__free_unpacked(m, &memory);
	if (ok)
		*ret = l;
	else
		podres_list_fini(&l);
	return ok;
}

/* ---- GetAllocatableResources ---- */

void
podres_offers_fini(struct podres_offers *o)
{
	for (size_t i = 0; i < o->count; i++)
		mem_free(o->offers[i].device);
	mem_free(o->offers);
	*o = (struct podres_offers){0};
}

static int
by_device(const void *a, const void *b)
{
	return strcmp(((const struct podres_offer *)a)->device, ((const struct podres_offer *)b)->device);
}

/* One entry per replica becomes one per device. */
static void
count_replicas(struct podres_offers *o)
{
	size_t kept = 0;

	if (o->count > 0)
		qsort(o->offers, o->count, sizeof(*o->offers), by_device);
	for (size_t i = 0; i < o->count; i++) {
		if (kept > 0 && strcmp(o->offers[kept - 1].device, o->offers[i].device) == 0) {
			o->offers[kept - 1].replicas++;
			mem_free(o->offers[i].device);
		} else {
			o->offers[kept++] = o->offers[i];
		}
	}
	o->count = kept;
}

static bool
add_offers(struct podres_offers *o, const V1__ContainerDevices *devices, struct err *err)
{
	for (size_t i = 0; i < devices->n_device_ids; i++) {
		const char *id = devices->device_ids[i];
		int32_t replica;

		if (!is_gpu(devices, id) || strlen(id) > DEVICE_ID_MAX)
			continue;
		owned(mem) char *device = split_id(id, &replica);

		if (replica < 0)
			continue;
		if (o->count == PODRES_GRANTS_MAX)
			return too_many("GetAllocatableResources", err);
		if (o->count % 64 == 0)
			o->offers = mem_grow(o->offers, o->count + 64, sizeof(*o->offers));
		o->offers[o->count++] = (struct podres_offer){.device = take(device), .replicas = 1};
	}
	return true;
}

bool
podres_decode_offers(const void *message, size_t n, struct podres_offers *ret, struct err *err)
{
	size_t left = MEMORY_MAX;
	ProtobufCAllocator memory = {budget_alloc, budget_free, &left};
	V1__AllocatableResourcesResponse *m = v1__allocatable_resources_response__unpack(&memory, n, message);
	struct podres_offers o = {0};
	bool ok = true;

	if (!m)
		return refuse("GetAllocatableResources", n, left, err);
	for (size_t i = 0; ok && i < m->n_devices; i++)
		ok = add_offers(&o, m->devices[i], err);
	v1__allocatable_resources_response__free_unpacked(m, &memory);
	count_replicas(&o);
	if (ok)
		*ret = o;
	else
		podres_offers_fini(&o);
	return ok;
}
