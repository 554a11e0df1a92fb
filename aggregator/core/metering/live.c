/* aggregator/core/metering/live.c - the live status message of a node. The numbers are those of live.h. */
#include "aggregator/core/metering/live.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/conf/json.h"
#include "common/base/text.h"
#include "common/base/time.h"
#include "common/base/units.h"
#include "common/wire/wire.h"

#define LIST_MAX (4u << 20)
#define REPLICA_MAX UNITS_PER_GPU
#define XID_MAX 100000
#define INDEX_MAX 100000

/* The place in the message, for error texts: "gpus[3].holders[0].". */
struct place {
	char text[64];
};

static struct place at(const char *fmt, ...) PRINTF_LIKE(1, 2);

static struct place
at(const char *fmt, ...)
{
	struct place p;
	va_list args;

	va_start(args, fmt);
	vsnprintf(p.text, sizeof(p.text), fmt, args);
	va_end(args);
	return p;
}

void
live_status_free(struct live_status *s)
{
	if (s == NULL)
		return;
	buf_fini(&s->gpus);
	buf_fini(&s->instances);
	buf_fini(&s->holders);
	mem_free(s);
}

/* ---- members ---- */

static bool
get_text(const json_t *obj, const struct place *where, const char *name, size_t least, size_t most, const char **ret,
         struct err *err)
{
	const json_t *j = json_object_get(obj, name);
	size_t n;

	*ret = "";
	if (j == NULL)
		return least == 0 || err_set(err, ERR_INVALID, "%s%s is missing", where->text, name);
	if (!json_is_string(j))
		return err_set(err, ERR_INVALID, "%s%s must be text", where->text, name);
	n = json_string_length(j);
	if (n < least || n > most)
		return err_set(err, ERR_INVALID, "%s%s has %zu bytes; it is text of %zu to %zu", where->text, name, n,
		               least, most);
	if (!text_is_clean(json_string_value(j)))
		return err_set(err, ERR_INVALID, "%s%s has control or direction characters", where->text, name);
	*ret = json_string_value(j);
	return true;
}

static bool
get_int(const json_t *obj, const struct place *where, const char *name, int64_t least, int64_t most, int64_t *ret,
        struct err *err)
{
	const json_t *j = json_object_get(obj, name);

	if (j == NULL)
		return err_set(err, ERR_INVALID, "%s%s is missing", where->text, name);
	if (!json_is_integer(j))
		return err_set(err, ERR_INVALID, "%s%s must be a whole number", where->text, name);
	*ret = json_integer_value(j);
	if (*ret < least || *ret > most)
		return err_set(err, ERR_INVALID, "%s%s is %" PRId64 "; it is from %" PRId64 " to %" PRId64, where->text,
		               name, *ret, least, most);
	return true;
}

static bool
get_bool(const json_t *obj, const struct place *where, const char *name, bool *ret, struct err *err)
{
	const json_t *j = json_object_get(obj, name);

	if (j == NULL || !json_is_boolean(j))
		return err_set(err, ERR_INVALID, "%s%s must be true or false", where->text, name);
	*ret = json_is_true(j);
	return true;
}

static bool
get_list(const json_t *obj, const struct place *where, const char *name, size_t most, const json_t **ret,
         struct err *err)
{
	const json_t *j = json_object_get(obj, name);

	if (j == NULL || !json_is_array(j))
		return err_set(err, ERR_INVALID, "%s%s must be a list", where->text, name);
	if (json_array_size(j) > most)
		return err_set(err, ERR_INVALID, "%s%s has %zu entries, more than the limit of %zu", where->text, name,
		               json_array_size(j), most);
	*ret = j;
	return true;
}

static bool
get_object(const json_t *list, const struct place *where, size_t i, const json_t **ret, struct err *err)
{
	*ret = json_array_get(list, i);
	return json_is_object(*ret) || err_set(err, ERR_INVALID, "%s must be an object", where->text);
}

/* ---- output: JSON lists for the ledger ---- */

static void
put_text(struct buf *out, const char *name, const char *text)
{
	buf_printf(out, "\"%s\":", name);
	json_write_string(text, out);
	buf_char(out, ',');
}

static void
put_int(struct buf *out, const char *name, int64_t v)
{
	buf_printf(out, "\"%s\":%" PRId64 ",", name, v);
}

static void
put_bool(struct buf *out, const char *name, bool v)
{
	buf_printf(out, "\"%s\":%s,", name, v ? "true" : "false");
}

static void
open_row(struct buf *out)
{
	buf_str(out, out->len > 1 ? ",{" : "{");
}

static void
close_row(struct buf *out)
{
	if (out->len > 0 && !out->over)
		out->data[out->len - 1] = '}';
}

/* ---- one GPU ---- */

struct gpu {
	const char *uuid;
	const char *devices[LIMIT_GPU_INSTANCES]; /* UUIDs of its instances */
	size_t device_count;
};

static bool
read_instance(struct live_status *s, struct gpu *g, const json_t *obj, const struct place *where, int64_t *units,
              struct err *err)
{
	const char *uuid = "", *profile = "";
	int64_t gi = 0, ci = 0, own = 0;

	if (!get_text(obj, where, "uuid", 1, LIMIT_GPU_UUID, &uuid, err) ||
	    !get_text(obj, where, "profile", 1, LIMIT_PROFILE, &profile, err) ||
	    !get_int(obj, where, "gi", 0, INDEX_MAX, &gi, err) || !get_int(obj, where, "ci", 0, INDEX_MAX, &ci, err) ||
	    !get_int(obj, where, "units", 1, UNITS_PER_GPU, &own, err))
		return false;
	*units += own;
	if (*units > UNITS_PER_GPU)
		return err_set(err, ERR_INVALID,
		               "%sunits: the instances weigh %" PRId64 " units together, their GPU %d", where->text,
		               *units, (int)UNITS_PER_GPU);
	for (size_t i = 0; i < g->device_count; i++)
		if (strcmp(g->devices[i], uuid) == 0)
			return err_set(err, ERR_INVALID, "%suuid %s is there twice", where->text, uuid);
	g->devices[g->device_count++] = uuid;
	s->instance_count++;
	open_row(&s->instances);
	put_text(&s->instances, "gpu", g->uuid);
	put_text(&s->instances, "uuid", uuid);
	put_text(&s->instances, "profile", profile);
	put_int(&s->instances, "gi", gi);
	put_int(&s->instances, "ci", ci);
	put_int(&s->instances, "units", own);
	close_row(&s->instances);
	return true;
}

/* Rule 5. */
static bool
read_kind(const json_t *obj, const struct place *where, int64_t *ret, struct err *err)
{
	const char *word = "";

	if (!get_text(obj, where, "kind", 1, LIVE_TEXT_MAX, &word, err))
		return false;
	for (uint32_t kind = WIRE_POD; kind <= WIRE_HOST_USER; kind++)
		if (strcmp(word, wire_holder_kind_name(kind)) == 0) {
			*ret = kind;
			return true;
		}
	return err_set(err, ERR_INVALID, "%skind \"%.64s\" is not one of %s, %s, %s", where->text, word,
	               wire_holder_kind_name(WIRE_POD), wire_holder_kind_name(WIRE_SLURM_JOB),
	               wire_holder_kind_name(WIRE_HOST_USER));
}

static bool
read_device(const struct gpu *g, const json_t *obj, const struct place *where, const char **ret, struct err *err)
{
	if (!get_text(obj, where, "device", 1, LIMIT_GPU_UUID, ret, err))
		return false;
	if (strcmp(*ret, g->uuid) == 0)
		return true;
	for (size_t i = 0; i < g->device_count; i++)
		if (strcmp(*ret, g->devices[i]) == 0)
			return true;
	return err_set(err, ERR_INVALID, "%sdevice %s is neither this GPU nor one of its instances", where->text, *ret);
}

static bool
read_holder(struct live_status *s, const struct gpu *g, const json_t *obj, const struct place *where, struct err *err)
{
	/* names in the message and in the ledger */
	static const char *const texts[][2] = {
		{"namespace", "namespace"}, {"pod", "pod"},
		{"pod_uid", "pod_uid"},     {"container", "container"},
		{"slurm_job", "slurm_job"}, {"slurm_account", "slurm_account"},
		{"user", "user_name"},
	};
	static const char *const truths[] = {"allocated", "holds", "active"};
	const char *device = "", *text[ARRAY_LEN(texts)];
	int64_t kind = 0, uid = 0, replica = 0;
	bool truth[ARRAY_LEN(truths)];
	struct buf *out = &s->holders;

	if (!read_kind(obj, where, &kind, err) || !read_device(g, obj, where, &device, err) ||
	    !get_int(obj, where, "replica", -1, REPLICA_MAX, &replica, err) ||
	    !get_int(obj, where, "uid", -1, INT64_MAX, &uid, err))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		if (!get_text(obj, where, texts[i][0], 0, LIVE_TEXT_MAX, &text[i], err))
			return false;
	for (size_t i = 0; i < ARRAY_LEN(truths); i++)
		if (!get_bool(obj, where, truths[i], &truth[i], err))
			return false;
	if (++s->holder_count > LIVE_HOLDERS_MAX)
		return err_set(err, ERR_INVALID, "%sthere are more than %d holders", where->text, LIVE_HOLDERS_MAX);
	open_row(out);
	put_text(out, "gpu", g->uuid);
	put_text(out, "device", device);
	put_int(out, "replica", replica);
	put_int(out, "kind", kind);
	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		put_text(out, texts[i][1], text[i]);
	put_int(out, "uid", uid);
	for (size_t i = 0; i < ARRAY_LEN(truths); i++)
		put_bool(out, truths[i], truth[i]);
	close_row(out);
	return true;
}

static bool
read_sharing(const json_t *obj, const struct place *where, const char **ret, struct err *err)
{
	if (!get_text(obj, where, "sharing", 1, LIVE_TEXT_MAX, ret, err))
		return false;
	for (uint32_t i = WIRE_EXCLUSIVE; i <= WIRE_PLAIN; i++)
		if (strcmp(*ret, wire_sharing_name(i)) == 0)
			return true;
	return err_set(err, ERR_INVALID, "%ssharing \"%.64s\" is not known", where->text, *ret);
}

static bool
read_gpu_row(struct live_status *s, struct gpu *g, const json_t *obj, const struct place *where, int64_t *replicas,
             struct err *err)
{
	const char *model = "", *reason = "", *sharing = "";
	int64_t index = 0, xid = 0, xid_at = 0;
	bool healthy = false;
	char short_model[LIMIT_MODEL + 1];
	struct buf *out = &s->gpus;

	/* the model is empty if the GPU was lost before its model was read */
	if (!get_text(obj, where, "uuid", 1, LIMIT_GPU_UUID, &g->uuid, err) ||
	    !get_text(obj, where, "model", 0, LIMIT_MODEL, &model, err) ||
	    !get_int(obj, where, "index", -1, INDEX_MAX, &index, err) ||
	    !get_bool(obj, where, "healthy", &healthy, err) ||
	    !get_text(obj, where, "reason", 0, LIVE_TEXT_MAX, &reason, err) ||
	    !get_int(obj, where, "xid", 0, XID_MAX, &xid, err) ||
	    /* an older exporter omits the time */
	    (json_object_get(obj, "xid_at") != NULL && !get_int(obj, where, "xid_at", 0, INT64_MAX, &xid_at, err)) ||
	    !read_sharing(obj, where, &sharing, err) || !get_int(obj, where, "replicas", 1, REPLICA_MAX, replicas, err))
		return false;
	s->gpu_count++;
	s->healthy_count += healthy;
	s->error_count += xid > 0 && xid_at > 0;
	gpu_model_short(model, short_model, sizeof(short_model));
	open_row(out);
	put_text(out, "uuid", g->uuid);
	put_text(out, "model", model);
	put_text(out, "short_model", short_model);
	put_int(out, "index", index);
	put_bool(out, "healthy", healthy);
	put_text(out, "reason", reason);
	put_int(out, "xid", xid);
	put_int(out, "xid_at", xid_at);
	put_text(out, "sharing", sharing);
	put_int(out, "replicas", *replicas);
	close_row(out);
	return true;
}

static bool
read_gpu(struct live_status *s, const json_t *obj, size_t n, struct gpu *g, struct err *err)
{
	struct place where = at("gpus[%zu].", n);
	const json_t *instances = NULL, *holders = NULL, *item = NULL;
	int64_t units = 0, replicas = 1;

	if (!read_gpu_row(s, g, obj, &where, &replicas, err) ||
	    !get_list(obj, &where, "instances", LIMIT_GPU_INSTANCES, &instances, err) ||
	    !get_list(obj, &where, "holders", LIVE_HOLDERS_MAX, &holders, err))
		return false;
	if (json_array_size(instances) > 0 && replicas > 1)
		return err_set(err, ERR_INVALID, "%sreplicas is %" PRId64 " of a GPU that has instances", where.text,
		               replicas);
	for (size_t i = 0; i < json_array_size(instances); i++) {
		struct place in = at("gpus[%zu].instances[%zu].", n, i);

		if (!get_object(instances, &in, i, &item, err) || !read_instance(s, g, item, &in, &units, err))
			return false;
	}
	for (size_t i = 0; i < json_array_size(holders); i++) {
		struct place in = at("gpus[%zu].holders[%zu].", n, i);

		if (!get_object(holders, &in, i, &item, err) || !read_holder(s, g, item, &in, err))
			return false;
	}
	return true;
}

static bool
read_gpus(struct live_status *s, const json_t *list, struct err *err)
{
	const char *uuids[LIMIT_NODE_GPUS];
	const json_t *item = NULL;

	for (size_t i = 0; i < json_array_size(list); i++) {
		struct place where = at("gpus[%zu].", i);
		struct gpu g = {0};

		if (!get_object(list, &where, i, &item, err) || !read_gpu(s, item, i, &g, err))
			return false;
		for (size_t k = 0; k < i; k++)
			if (strcmp(uuids[k], g.uuid) == 0)
				return err_set(err, ERR_INVALID, "%suuid %s is there twice", where.text, g.uuid);
		uuids[i] = g.uuid;
	}
	return true;
}

/* ---- the message ---- */

static bool
read_boot_id(struct live_status *s, const json_t *doc, const struct place *top, struct err *err)
{
	static const char shape[] = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
	const char *text = "";

	if (!get_text(doc, top, "boot_id", sizeof(shape) - 1, sizeof(shape) - 1, &text, err))
		return false;
	for (size_t i = 0; shape[i] != '\0'; i++)
		if (shape[i] == '-' ? text[i] != '-' : strchr("0123456789abcdef", text[i]) == NULL)
			return err_set(err, ERR_INVALID, "boot_id %s is no UUID in lower case", text);
	memcpy(s->boot_id, text, sizeof(s->boot_id));
	return true;
}

static bool
read_message(struct live_status *s, const json_t *doc, struct err *err)
{
	const struct place top = {""};
	const json_t *gpus = NULL;
	const char *node = "";

	if (!get_text(doc, &top, "node", 1, LIMIT_NODE_NAME, &node, err) || !read_boot_id(s, doc, &top, err) ||
	    !get_int(doc, &top, "boot_ns", 0, INT64_MAX, &s->boot_ns, err) ||
	    !get_int(doc, &top, "wall_ns", 0, INT64_MAX, &s->wall_ns, err) ||
	    !get_int(doc, &top, "interval_ns", NS_PER_MS, NS_PER_HOUR, &s->interval_ns, err) ||
	    !get_bool(doc, &top, "simulated", &s->simulated, err) ||
	    !get_int(doc, &top, "left_out", 0, INT32_MAX, &s->left_out, err) ||
	    !get_list(doc, &top, "gpus", LIMIT_NODE_GPUS, &gpus, err))
		return false;
	snprintf(s->node, sizeof(s->node), "%s", node);
	return read_gpus(s, gpus, err);
}

static void
make_digest(struct live_status *s)
{
	const struct buf *lists[] = {&s->gpus, &s->instances, &s->holders};
	uint8_t each[ARRAY_LEN(lists)][SHA256_SIZE];

	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		sha256(lists[i]->data, lists[i]->len, each[i]);
	sha256(each, sizeof(each), s->digest);
}

bool
live_parse(const char *text, size_t len, struct live_status **ret, struct err *err)
{
	owned(live_status) struct live_status *s = mem_alloc(sizeof(*s));
	owned(json) json_t *doc = NULL;
	struct buf *lists[] = {&s->gpus, &s->instances, &s->holders};

	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		buf_init(lists[i], LIST_MAX);
		buf_char(lists[i], '[');
	}
	if (len > LIVE_MAX_BYTES)
		return err_set(err, ERR_INVALID, "body: %zu bytes are more than the limit of %u", len, LIVE_MAX_BYTES);
	if (!json_parse("body", text, len, &doc, err))
		return false;
	if (!json_is_object(doc))
		return err_set(err, ERR_INVALID, "body: a status is a JSON object");
	if (!read_message(s, doc, err))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		buf_char(lists[i], ']');
		if (!buf_ok(lists[i], "the status", err))
			return false;
	}
	make_digest(s);
	*ret = take(s);
	return true;
}
