/* tests/prop/prop_limits.c - the limits of common/base/limits.h: what one layer accepts, the next one takes.
 *
 *   batch ──► status of the same GPUs ──► closed loop ──► quota book
 *   policy ──────────────────────────────────────────────► quota book
 *
 * Lengths and counts are drawn at the limits, one beyond them, and between. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/metering/live.h"
#include "aggregator/core/policy/policy.h"
#include "aggregator/core/quota/loop/quota_loop.h"
#include "common/conf/json.h"
#include "common/base/time.h"
#include "common/wire/wire.h"
#include "tests/support/harness/prop.h"

#define TEXT_BYTES (16u << 20)
#define NOW_NS (1800000000 * NS_PER_S)
#define MAX_GPUS (LIMIT_NODE_GPUS + 1)
#define MAX_KINDS (LIMIT_GPU_INSTANCES + 1)

/* 1 .. limit + 1, often one of the ends. */
static size_t
draw_size(struct prop_source *s, size_t limit)
{
	switch (prop_index(s, 4)) {
	case 0: return 1;
	case 1: return limit;
	case 2: return limit + 1;
	default: return 1 + (size_t)prop_u64(s, limit);
	}
}

/* A name of so many bytes that ends with a number. */
static void
name_of(struct buf *out, const char *begin, size_t len, size_t number)
{
	char tail[24];
	size_t n;

	snprintf(tail, sizeof(tail), "%zu", number);
	n = strlen(begin) + strlen(tail);
	buf_clear(out);
	buf_str(out, begin);
	for (; n < len; n++)
		buf_char(out, 'x');
	buf_str(out, tail);
}

/* ---- a node --------------------------------------------------------------------------------------------------------------- */

struct node_case {
	size_t name_len, uuid_len, model_len, profile_len;
	size_t gpus, kinds; /* kinds of instances on each; 0: it is not cut */
	int64_t units;      /* of each kind; 0: as much as there is room for */
};

static void
node_generate(struct prop_source *s, void *c)
{
	struct node_case *k = c;

	*k = (struct node_case){.name_len = draw_size(s, LIMIT_NODE_NAME),
	                        .uuid_len = draw_size(s, LIMIT_GPU_UUID),
	                        .model_len = draw_size(s, LIMIT_MODEL),
	                        .profile_len = draw_size(s, LIMIT_PROFILE)};
	/* Many GPUs of many kinds would be no other case, and a slow one. */
	if (prop_bool(s))
		k->gpus = draw_size(s, LIMIT_NODE_GPUS);
	else
		k->gpus = 1 + prop_index(s, 3);
	if (k->gpus < 4 && prop_bool(s))
		k->kinds = draw_size(s, prop_index(s, 4) > 0 ? LIMIT_GPU_INSTANCES : LIMIT_BATCH_INSTANCES);
	k->units = prop_bool(s) ? 0 : (int64_t)prop_u64(s, UNITS_PER_GPU);
}

static void
node_describe(const void *c, struct buf *out)
{
	const struct node_case *k = c;

	buf_printf(out, "name %zu, UUID %zu, model %zu, profile %zu bytes; %zu GPUs of %zu kinds of %" PRId64 " units",
	           k->name_len, k->uuid_len, k->model_len, k->profile_len, k->gpus, k->kinds, k->units);
}

static int64_t
units_of(const struct node_case *k)
{
	return k->units > 0 ? k->units : UNITS_PER_GPU / (int64_t)(k->kinds > 0 ? k->kinds : 1);
}

static struct wire_batch *
batch_of(const struct node_case *k)
{
	struct wire_batch *b = wire_batch_new();
	in_place(buf) struct buf text;
	uint32_t id = 0;

	buf_init(&text, 4096);
	b->kind = WIRE_USAGE;
	name_of(&text, "n", k->name_len, 0);
	b->node = mem_strdup(buf_text(&text));
	b->exporter_version = mem_strdup("");
	b->epoch = b->seq = b->last_seq = 1;
	b->device_count = k->gpus * (1 + k->kinds);
	b->devices = mem_array(b->device_count, sizeof(*b->devices));
	for (size_t g = 0; g < k->gpus; g++) {
		uint32_t gpu = ++id;

		for (size_t i = 0; i <= k->kinds; i++) {
			struct wire_device *d = &b->devices[gpu - 1 + i];

			name_of(&text, "u", k->uuid_len, g * (1 + k->kinds) + i);
			*d = (struct wire_device){.id = i == 0 ? gpu : ++id,
			                          .gpu = gpu,
			                          .gi = i == 0 ? -1 : (int32_t)i,
			                          .ci = i == 0 ? -1 : 0};
			d->uuid = mem_strdup(buf_text(&text));
			name_of(&text, "m", k->model_len, 0);
			d->model = mem_strdup(buf_text(&text));
			name_of(&text, "p", k->profile_len, i);
			d->profile = mem_strdup(i == 0 ? "" : buf_text(&text));
			d->units = i == 0 ? UNITS_PER_GPU : units_of(k);
		}
	}
	return b;
}

/* The same as its status says it. */
static void
status_of(const struct wire_batch *b, size_t kinds, struct buf *out)
{
	buf_str(out, "{\"node\":");
	json_write_string(b->node, out);
	buf_str(out,
	        ",\"boot_id\":\"abcd0000-0000-0000-0000-000000000001\",\"boot_ns\":1,\"wall_ns\":1,\"interval_ns\":1000000000,"
	        "\"simulated\":false,\"left_out\":0,\"gpus\":[");
	for (size_t i = 0; i < b->device_count; i += 1 + kinds) {
		buf_str(out, i > 0 ? ",{\"uuid\":" : "{\"uuid\":");
		json_write_string(b->devices[i].uuid, out);
		buf_str(out, ",\"model\":");
		json_write_string(b->devices[i].model, out);
		buf_printf(
			out,
			",\"index\":0,\"healthy\":true,\"reason\":\"\",\"xid\":0,\"sharing\":\"%s\",\"replicas\":1,\"holders\":[],\"instances\":[",
			kinds > 0 ? "mig" : "exclusive");
		for (size_t m = 1; m <= kinds; m++) {
			const struct wire_device *d = &b->devices[i + m];

			buf_str(out, m > 1 ? ",{\"uuid\":" : "{\"uuid\":");
			json_write_string(d->uuid, out);
			buf_str(out, ",\"profile\":");
			json_write_string(d->profile, out);
			buf_printf(out, ",\"gi\":%d,\"ci\":0,\"units\":%" PRId64 "}", d->gi, d->units);
		}
		buf_str(out, "]}");
	}
	buf_str(out, "]}");
}

/* As the database shows a node to the closed loop: its own models, each kind once. */
static void
seen_of(const struct wire_batch *b, size_t kinds, struct quota_seen_gpu *gpus, struct quota_seen_slot *slots,
        struct quota_seen_node *ret)
{
	size_t count = 0;

	*ret = (struct quota_seen_node){
		.name = b->node, .cluster = "c", .tenant = "", .heard_ns = NOW_NS, .gpus = gpus};
	for (size_t i = 0; i < b->device_count; i += 1 + kinds) {
		gpus[count] = (struct quota_seen_gpu){.uuid = b->devices[i].uuid,
		                                      .model = b->devices[i].model,
		                                      .known = true,
		                                      .slots = &slots[i],
		                                      .slot_count = kinds > 0 ? kinds : 1};
		slots[i] = (struct quota_seen_slot){"", 0, 1, UNITS_PER_GPU};
		for (size_t m = 1; m <= kinds; m++)
			slots[i + m - 1] =
				(struct quota_seen_slot){b->devices[i + m].profile, 0, 1, b->devices[i + m].units};
		count++;
	}
	ret->gpu_count = count;
}

static bool
tell_book(struct quota_book *b, const char *event, struct buf *why)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	struct err err = {0};

	if (quota_book_step(b, NOW_NS, event, strlen(event), &o, &err))
		return true;
	buf_printf(why, "the book refuses %.200s: %s", event, err.text);
	return false;
}

/* Whatever a node says, the book takes what the loop tells, and an honest node is in it. Whether the other one is. */
static bool
book_takes(const struct quota_seen_node *node, bool *ret_in, struct buf *why)
{
	static const struct quota_seen_slot whole = {"", 0, 1, UNITS_PER_GPU};
	static const struct quota_seen_gpu honest_gpu = {
		.uuid = "GPU-honest", .model = "H100-80GB", .known = true, .slots = &whole, .slot_count = 1};
	const struct quota_seen_node nodes[] = {{.name = "honest",
	                                         .cluster = "c",
	                                         .tenant = "",
	                                         .heard_ns = NOW_NS,
	                                         .gpus = &honest_gpu,
	                                         .gpu_count = 1},
	                                        *node};
	const struct quota_observed seen = {.nodes = nodes, .node_count = 2, .boot_ns = 1};
	owned(quota_book) struct quota_book *b = NULL;
	struct quota_loop_out out;
	struct err err = {0};
	bool ok;

	ASSERT(quota_book_open("{}", 2, &b, &err));
	ok = tell_book(
		b,
		"{\"policy\":{\"settings\":{},\"clusters\":[\"c\"],\"models\":[\"H100-80GB\"],\"tenants\":[{\"name\":\"t\"}]}}",
		why);
	quota_loop(b, &seen, NOW_NS, &out);
	for (size_t i = 0; i < out.event_count && ok; i++)
		ok = tell_book(b, out.events[i].text, why);
	quota_loop_out_fini(&out);
	if (ok && quota_book_node(b, "honest") == QUOTA_NONE) {
		buf_str(why, "the honest node is not in the book");
		ok = false;
	}
	*ret_in = ok && quota_book_node(b, node->name) != QUOTA_NONE;
	return ok;
}

static bool
node_holds(const void *c, struct buf *why)
{
	const struct node_case *k = c;
	owned(wire_batch) struct wire_batch *b = batch_of(k);
	owned(live_status) struct live_status *live = NULL;
	owned(mem) struct quota_seen_gpu *gpus = mem_array(k->gpus, sizeof(*gpus));
	owned(mem) struct quota_seen_slot *slots = mem_array(b->device_count, sizeof(*slots));
	in_place(buf) struct buf status;
	struct quota_seen_node node;
	struct err err = {0};
	/* Instances of several moments may be in one batch; a status is of one. */
	bool at_once = k->kinds <= LIMIT_GPU_INSTANCES && (int64_t)k->kinds * units_of(k) <= UNITS_PER_GPU;
	bool on_wire = wire_check(b, &err), parsed, in_book = false;

	buf_init(&status, TEXT_BYTES);
	status_of(b, k->kinds, &status);
	parsed = live_parse(buf_text(&status), status.len, &live, &err);
	if (on_wire && k->kinds > LIMIT_BATCH_INSTANCES) {
		buf_printf(why, "a batch may have %zu instances of a GPU", k->kinds);
		return false;
	}
	if (on_wire && at_once && !parsed) {
		buf_printf(why, "a batch may have it, a status may not: %s", err.text);
		return false;
	}
	seen_of(b, k->kinds, gpus, slots, &node);
	if (!book_takes(&node, &in_book, why))
		return false;
	if (parsed && !in_book)
		buf_str(why, "a status may have it, and the book has not got the node");
	return !parsed || in_book;
}

/* ---- a policy ------------------------------------------------------------------------------------------------------------- */

struct policy_case {
	size_t label_len, node_len, model_len;
	size_t classes, allowed; /* allowed: of the first of them; 0: none */
	bool only;
	int64_t gpus, instances;
};

static void
policy_generate(struct prop_source *s, void *c)
{
	struct policy_case *k = c;

	*k = (struct policy_case){.label_len = draw_size(s, LIMIT_LABEL),
	                          .node_len = draw_size(s, LIMIT_NODE_NAME),
	                          .model_len = draw_size(s, LIMIT_MODEL),
	                          .classes = prop_bool(s) ? draw_size(s, LIMIT_CLASSES) : prop_index(s, 70),
	                          .only = prop_bool(s),
	                          .gpus = (int64_t)draw_size(s, LIMIT_NODE_GPUS)};
	k->allowed = (size_t)prop_u64(s, k->classes);
	k->instances = prop_bool(s) ? (int64_t)prop_u64(s, 10001) : 0;
}

static void
policy_describe(const void *c, struct buf *out)
{
	const struct policy_case *k = c;

	buf_printf(out,
	           "names of %zu, nodes of %zu, models of %zu bytes; %zu classes, %s%zu allowed; a node of %" PRId64
	           " GPUs, %" PRId64 " instances",
	           k->label_len, k->node_len, k->model_len, k->classes, k->only ? "only " : "all, not ", k->allowed,
	           k->gpus, k->instances);
}

static void
file_of(const struct policy_case *k, struct buf *out)
{
	in_place(buf) struct buf name;

	buf_init(&name, 4096);
	buf_str(out, "version: 1\ncluster: ");
	name_of(&name, "c", k->label_len, 0);
	buf_printf(out, "%s\npriority_classes:%s\n", buf_text(&name), k->classes > 0 ? "" : " []");
	for (size_t i = 0; i < k->classes; i++) {
		name_of(&name, "k", k->label_len, i);
		buf_printf(out, "  - {name: %s, value: %zu}\n", buf_text(&name), i);
	}
	name_of(&name, "t", k->label_len, 0);
	buf_printf(out, "tenants:\n  - name: %s\n", buf_text(&name));
	if (k->only)
		buf_str(out, "    priority_classes: [");
	for (size_t i = 0; k->only && i < k->allowed; i++) {
		name_of(&name, "k", k->label_len, i);
		buf_printf(out, "%s%s", i > 0 ? ", " : "", buf_text(&name));
	}
	buf_printf(out, "%s    workspaces: [{name: w}]\nnodes:\n", k->only ? "]\n" : "");
	name_of(&name, "n", k->node_len, 0);
	buf_printf(out, "  - {name: %s, shared: true, model: ", buf_text(&name));
	name_of(&name, "m", k->model_len, 0);
	buf_printf(out, "%s, gpus: %" PRId64 "}\n", buf_text(&name), k->gpus);
	if (k->instances > 0)
		buf_printf(out,
		           "  - {name: cut, shared: true, model: H100-80GB, mig: {1g.10gb: %" PRId64 ", 3g.40gb: 1}}\n",
		           k->instances);
}

/* As store/quota/quota_policy.c writes it. */
static void
event_of(const struct policy *p, struct buf *out)
{
	const struct policy_tenant *t = &p->tenants[0];

	buf_printf(out, "{\"policy\":{\"settings\":{},\"clusters\":[\"%s\"],\"models\":[\"H100-80GB\"],\"classes\":[",
	           p->cluster);
	for (size_t i = 0; i < p->class_count; i++)
		buf_printf(out, "%s{\"name\":\"%s\",\"value\":%" PRId64 "}", i > 0 ? "," : "", p->classes[i].name,
		           p->classes[i].value);
	buf_printf(out, "],\"tenants\":[{\"name\":\"%s\"", t->name);
	if (t->classes_given)
		buf_str(out, ",\"classes\":[");
	for (size_t i = 0; i < t->class_count; i++)
		buf_printf(out, "%s\"%s\"", i > 0 ? "," : "", t->classes[i]);
	buf_printf(out, "%s}],\"workspaces\":[{\"path\":\"%s/w\"}]}}", t->classes_given ? "]" : "", t->name);
}

/* As store/quota/quota_live.c fills declared GPUs. */
static void
declared_of(const struct policy_node *n, struct quota_seen_gpu *gpus, struct quota_seen_slot *slots,
            struct quota_seen_node *ret)
{
	size_t count = 0;

	*ret = (struct quota_seen_node){.name = n->name, .cluster = "c", .tenant = "", .silent = true, .gpus = gpus};
	for (int64_t i = 0; i < n->gpus; i++) {
		slots[count] = (struct quota_seen_slot){"", 0, 1, UNITS_PER_GPU};
		gpus[count] =
			(struct quota_seen_gpu){.uuid = "", .model = n->model, .slots = &slots[count], .slot_count = 1};
		count++;
	}
	for (size_t p = 0; p < n->profile_count; p++) {
		int64_t units = 0, left = n->profiles[p].count;
		struct err err;

		ASSERT(quantity_profile_units(n->model, n->profiles[p].profile, &units, &err));
		while (left > 0) {
			int64_t room = UNITS_PER_GPU / units, here = left < room ? left : room;

			ASSERT(count < MAX_GPUS);
			slots[count] = (struct quota_seen_slot){n->profiles[p].profile, 0, (int32_t)here, units};
			gpus[count] = (struct quota_seen_gpu){
				.uuid = "", .model = n->model, .slots = &slots[count], .slot_count = 1};
			left -= here;
			count++;
		}
	}
	ret->gpu_count = count;
}

/* Which classes a request of the tenant may have. */
static bool
classes_are_those(struct quota_book *b, const struct policy *p, struct buf *why)
{
	for (size_t i = 0; i < p->class_count; i++) {
		owned(quota_outcome) struct quota_outcome *o = NULL;
		in_place(buf) struct buf event, said;
		bool may = !p->tenants[0].classes_given, does;
		struct err err = {0};

		for (size_t k = 0; k < p->tenants[0].class_count && !may; k++)
			may = strcmp(p->tenants[0].classes[k], p->classes[i].name) == 0;
		buf_init(&event, TEXT_BYTES);
		buf_init(&said, TEXT_BYTES);
		buf_printf(
			&event,
			"{\"submit\":[{\"id\":\"r%zu\",\"workspace\":\"%s/w\",\"cluster\":\"%s\",\"model\":\"H100-80GB\",\"gpus\":1,\"class\":\"%s\"}]}",
			i, p->tenants[0].name, p->cluster, p->classes[i].name);
		if (!quota_book_try(b, NOW_NS, buf_text(&event), event.len, &o, &err)) {
			buf_printf(why, "%s: %s", buf_text(&event), err.text);
			return false;
		}
		quota_book_outcome_json(b, o, &said);
		does = strstr(buf_text(&said), "{\"rule\":\"valid\",\"ok\":false") == NULL;
		if (does != may) {
			buf_printf(why, "class %s may%s be used, and the book says %s", p->classes[i].name,
			           may ? "" : " not", buf_text(&said));
			return false;
		}
	}
	return true;
}

static bool
policy_holds(const void *c, struct buf *why)
{
	const struct policy_case *k = c;
	owned(policy) struct policy *p = NULL;
	owned(quota_book) struct quota_book *b = NULL;
	owned(mem) struct quota_seen_gpu *gpus = mem_array(MAX_GPUS, sizeof(*gpus));
	owned(mem) struct quota_seen_slot *slots = mem_array(MAX_GPUS, sizeof(*slots));
	in_place(buf) struct buf file, event;
	struct err err = {0};
	bool ok = true;

	buf_init(&file, TEXT_BYTES);
	buf_init(&event, TEXT_BYTES);
	file_of(k, &file);
	if (!policy_parse("p.yaml", buf_text(&file), file.len, &p, &err))
		return true;
	event_of(p, &event);
	ASSERT(quota_book_open("{}", 2, &b, &err));
	ok = tell_book(b, buf_text(&event), why);
	for (size_t i = 0; i < p->node_count && ok; i++) {
		struct quota_seen_node node;
		bool in_book = false;

		declared_of(&p->nodes[i], gpus, slots, &node);
		ok = book_takes(&node, &in_book, why);
		if (ok && !in_book) {
			buf_printf(why, "node %s is declared and not in the book", node.name);
			ok = false;
		}
	}
	buf_clear(&event);
	buf_printf(&event, "{\"nodes\":[{\"name\":\"a\",\"cluster\":\"%s\",\"gpus\":[{\"model\":\"H100-80GB\"}]}]}",
	           p->cluster);
	return ok && tell_book(b, buf_text(&event), why) && classes_are_those(b, p, why);
}

/* A node of 1024 GPUs is a long event. */
#define CASES "200"

int
main(void)
{
	static const struct prop_test tests[] = {
		{"what a batch may have a status may have, and the quota book takes what the closed loop tells of it",
	         sizeof(struct node_case), node_generate, node_holds, node_describe, NULL},
		{"what a policy may have the quota book takes, and a tenant may use the classes that it is allowed",
	         sizeof(struct policy_case), policy_generate, policy_holds, policy_describe, NULL},
	};

	ASSERT(setenv("TOLLGATE_PROP_CASES", CASES, 0) == 0);
	return prop_main("prop_limits", tests, ARRAY_LEN(tests));
}
