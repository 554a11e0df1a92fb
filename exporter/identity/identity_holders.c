/* exporter/identity/identity_holders.c - the holders that this node knows. */
#include "exporter/identity/identity_holders.h"

#include <string.h>

#define IDLE_MAX 1024u /* kept without a use */
#define HOLDER_TEXTS 9

static void
texts_of(const struct wire_holder *w, const char *out[HOLDER_TEXTS])
{
	const char *const texts[HOLDER_TEXTS] = {w->ns,        w->pod,       w->pod_uid,
	                                         w->container, w->slurm_job, w->slurm_account,
	                                         w->user,      w->group,     w->labels};

	for (size_t i = 0; i < HOLDER_TEXTS; i++)
		out[i] = texts[i] ? texts[i] : "";
}

/* FNV-1a, with the NUL of each text in it, so that no two texts flow into one. */
static uint64_t
hash_of(const struct wire_holder *w)
{
	const uint64_t prime = UINT64_C(0x100000001b3);
	const char *texts[HOLDER_TEXTS];
	uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ (uint64_t)w->uid ^ ((uint64_t)w->kind << 56);

	texts_of(w, texts);
	for (size_t i = 0; i < HOLDER_TEXTS; i++) {
		for (const char *c = texts[i]; *c; c++)
			hash = (hash ^ (unsigned char)*c) * prime;
		hash *= prime;
	}
	return hash;
}

static bool
equal(const struct wire_holder *a, const struct wire_holder *b)
{
	const char *x[HOLDER_TEXTS], *y[HOLDER_TEXTS];

	if (a->kind != b->kind || a->uid != b->uid)
		return false;
	texts_of(a, x);
	texts_of(b, y);
	for (size_t i = 0; i < HOLDER_TEXTS; i++)
		if (strcmp(x[i], y[i]) != 0)
			return false;
	return true;
}

static void
entry_free(struct holder_entry *e)
{
	wire_holder_fini(&e->wire);
	mem_free(e);
}

void
holders_fini(struct holders *h)
{
	for (size_t i = 0; i < h->count; i++)
		entry_free(h->entries[i]);
	mem_free(h->entries);
	idmap_fini(&h->by_content);
	idmap_fini(&h->by_id);
	*h = (struct holders){0};
}

static void
index_entry(struct holders *h, size_t position)
{
	const struct wire_holder *w = &h->entries[position]->wire;
	uint64_t key = hash_of(w);

	while (idmap_get(&h->by_content, key) != IDMAP_NONE)
		key++;
	idmap_put(&h->by_content, key, position);
	idmap_put(&h->by_id, w->id, position);
}

static char *
text_copy(const char *s)
{
	return mem_strdup(s ? s : "");
}

struct holder_entry *
holders_get(struct holders *h, const struct wire_holder *content)
{
	struct holder_entry *e;
	size_t at;

	for (uint64_t key = hash_of(content); idmap_find(&h->by_content, key, &at); key++)
		if (equal(&h->entries[at]->wire, content))
			return h->entries[at];
	e = mem_alloc(sizeof(*e));
	e->wire = (struct wire_holder){.id = ++h->last_id,
	                               .kind = content->kind,
	                               .ns = text_copy(content->ns),
	                               .pod = text_copy(content->pod),
	                               .pod_uid = text_copy(content->pod_uid),
	                               .container = text_copy(content->container),
	                               .slurm_job = text_copy(content->slurm_job),
	                               .slurm_account = text_copy(content->slurm_account),
	                               .user = text_copy(content->user),
	                               .group = text_copy(content->group),
	                               .labels = text_copy(content->labels),
	                               .uid = content->uid};
	h->entries = mem_grow(h->entries, h->count + 1, sizeof(*h->entries));
	h->entries[h->count++] = e;
	index_entry(h, h->count - 1);
	return e;
}

struct holder_entry *
holders_by_id(const struct holders *h, uint32_t id)
{
	size_t at;

	return idmap_find(&h->by_id, id, &at) ? h->entries[at] : NULL;
}

void
holders_sweep(struct holders *h)
{
	size_t idle = 0, kept = 0;

	for (size_t i = 0; i < h->count; i++)
		idle += h->entries[i]->uses == 0;
	if (idle <= IDLE_MAX)
		return;
	for (size_t i = 0; i < h->count; i++) {
		if (h->entries[i]->uses > 0)
			h->entries[kept++] = h->entries[i];
		else
			entry_free(h->entries[i]);
	}
	h->count = kept;
	idmap_clear(&h->by_content);
	idmap_clear(&h->by_id);
	for (size_t i = 0; i < kept; i++)
		index_entry(h, i);
}
