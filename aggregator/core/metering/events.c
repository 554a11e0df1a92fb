/* aggregator/core/metering/events.c - CloudEvents that meter something other than GPUs: read, checked and summed. The numbers are those of events.h. */
#include "aggregator/core/metering/events.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/base/limits.h"
#include "common/base/money.h"
#include "common/base/text.h"
#include "common/base/time.h"

#define DIGEST_MAX (16u << 10)
#define SENTENCE_MAX 400

static const char *const type_names[] = {
	[EVENT_STORAGE] = "tollgate.storage.v1",
	[EVENT_EGRESS] = "tollgate.egress.v1",
	[EVENT_INFERENCE] = "tollgate.inference.v1",
	[EVENT_SUPPORT] = "tollgate.support.v1",
};

const char *
event_type_name(enum event_type type)
{
	return type_names[type];
}

const char *
event_fate_name(enum event_fate fate)
{
	static const char *const names[EVENT_FATES] = {"sound", "accepted", "duplicate", "conflict", "refused"};

	return names[fate];
}

bool
event_refuse(struct event *e, enum event_fate fate, enum err_kind kind, const char *field, const char *fmt, ...)
{
	char text[SENTENCE_MAX];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	e->fate = fate;
	e->kind = kind;
	snprintf(e->field, sizeof(e->field), "%s", field);
	mem_free(e->detail);
	e->detail = mem_strdup(text);
	return false;
}

/* A text member of 1 to `most` bytes without control or direction characters; *ret stays as it was when it is absent or null and not
 * needed. False: e is refused. The prefix is for the field's name in the answer. */
static bool
read_text(struct event *e, const json_t *from, const char *prefix, const char *name, size_t most, bool needed,
          const char **ret)
{
	const json_t *j = json_object_get(from, name);
	const char *text;
	char field[48];

	snprintf(field, sizeof(field), "%s%s", prefix, name);
	if (j == NULL || json_is_null(j))
		return !needed || event_refuse(e, EVENT_REFUSED, ERR_INVALID, field, "%s is missing", field);
	if (!json_is_string(j))
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, field, "%s must be text", field);
	text = json_string_value(j);
	if (text[0] == '\0' || strlen(text) > most)
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, field, "%s has %zu bytes; it is text of 1 to %zu",
		                    field, strlen(text), most);
	if (!text_is_clean(text))
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, field, "%s has control or direction characters",
		                    field);
	*ret = text;
	return true;
}

/* ---- rules 1 and 2 ---- */

static bool
attribute_name_sound(const char *name)
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789");

	return n > 0 && n <= 64 && name[n] == '\0';
}

static bool
check_attributes(struct event *e, const json_t *doc)
{
	if (json_object_size(doc) > EVENT_ATTRIBUTES_MAX)
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "", "%zu attributes are more than the limit of %d",
		                    json_object_size(doc), EVENT_ATTRIBUTES_MAX);
	/* jansson's iterator is not const, though it changes nothing */
	for (void *i = json_object_iter((json_t *)(uintptr_t)doc); i != NULL;
	     i = json_object_iter_next((json_t *)(uintptr_t)doc, i)) {
		const char *name = json_object_iter_key(i);
		const json_t *v = json_object_iter_value(i);

		if (strcmp(name, "data") == 0)
			continue;
		if (strcmp(name, "data_base64") == 0)
			return event_refuse(e, EVENT_REFUSED, ERR_INVALID, name,
			                    "data_base64 is not taken: the data is a JSON object in \"data\"");
		if (!attribute_name_sound(name))
			return event_refuse(
				e, EVENT_REFUSED, ERR_INVALID, "",
				"the attribute \"%.64s\": a name is at most 64 lower-case letters and digits", name);
		if (json_is_object(v) || json_is_array(v) || json_is_real(v))
			return event_refuse(e, EVENT_REFUSED, ERR_INVALID, name,
			                    "%s: an attribute is text, a whole number, true or false", name);
	}
	return true;
}

/* The characters of RFC 3986, and two hexadecimal digits after each %. */
static bool
is_uri_reference(const char *s)
{
	static const char allowed[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:/?#[]@!$&'()*+,;=";
	static const char hex[] = "0123456789abcdefABCDEF";

	for (; *s != '\0'; s++) {
		if (*s == '%' && s[1] != '\0' && s[2] != '\0' && strchr(hex, s[1]) != NULL && strchr(hex, s[2]) != NULL)
			s += 2;
		else if (strchr(allowed, *s) == NULL)
			return false;
	}
	return true;
}

static bool
check_media(struct event *e, const json_t *doc)
{
	const char *type = "application/json";
	size_t n;

	if (!read_text(e, doc, "", "datacontenttype", EVENT_NAME_MAX, false, &type))
		return false;
	n = strcspn(type, "; ");
	return (n == strlen("application/json") && strncasecmp(type, "application/json", n) == 0) ||
	       event_refuse(e, EVENT_REFUSED, ERR_INVALID, "datacontenttype",
	                    "datacontenttype is \"%.64s\"; the data is application/json", type);
}

static bool
read_type(struct event *e, const json_t *doc)
{
	const char *type = "";

	if (!read_text(e, doc, "", "type", EVENT_NAME_MAX, true, &type))
		return false;
	for (size_t i = EVENT_STORAGE; i < ARRAY_LEN(type_names); i++)
		if (strcmp(type, type_names[i]) == 0) {
			e->type = (enum event_type)i;
			return true;
		}
	return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "type", "type \"%.64s\" is not one of %s, %s, %s, %s", type,
	                    type_names[EVENT_STORAGE], type_names[EVENT_EGRESS], type_names[EVENT_INFERENCE],
	                    type_names[EVENT_SUPPORT]);
}

static bool
read_envelope(struct event *e, const json_t *doc)
{
	const char *version = "", *other = NULL;

	if (!json_is_object(doc))
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "", "an event is a JSON object");
	/* first, so that the answer can name the event whatever else is wrong with it */
	if (!read_text(e, doc, "", "id", EVENT_ID_MAX, true, &e->id) ||
	    !read_text(e, doc, "", "source", EVENT_SOURCE_MAX, true, &e->source))
		return false;
	if (!is_uri_reference(e->source))
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "source", "source is not a URI reference");
	if (!read_text(e, doc, "", "specversion", EVENT_NAME_MAX, true, &version))
		return false;
	if (strcmp(version, "1.0") != 0)
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "specversion", "specversion is \"%.64s\", not 1.0",
		                    version);
	return check_attributes(e, doc) && check_media(e, doc) &&
	       read_text(e, doc, "", "subject", EVENT_SOURCE_MAX, false, &other) &&
	       read_text(e, doc, "", "dataschema", EVENT_SOURCE_MAX, false, &other) && read_type(e, doc);
}

/* ---- rule 3 ---- */

static bool
read_time(struct event *e, const json_t *doc, const struct event_rules *r)
{
	const char *text = "";
	char limit[TIME_TEXT_SIZE];
	struct err err = {0};

	if (!read_text(e, doc, "", "time", TIME_TEXT_SIZE, true, &text))
		return false;
	if (!time_parse(text, &e->time_ns, &err))
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "time", "time: %s", err.text);
	if (e->time_ns < r->now_ns - r->age_ns)
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "time", "time %s is older than the window of %s",
		                    text, duration_format(r->age_ns, limit));
	if (e->time_ns > r->now_ns + r->ahead_ns)
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "time", "time %s is more than %s ahead", text,
		                    duration_format(r->ahead_ns, limit));
	return true;
}

/* ---- rule 4: the data, by type ---- */

#define DATA "data."
#define STANDARD_SKU "standard"

/* The fields of each type's data. Amounts of a type with one amount are called after their unit. */
static const struct data_form {
	const char *amount;
	const char *const *fields;
} forms[] = {
	[EVENT_STORAGE] = {"gb_hours",
                           (const char *const[]){"tenant", "workspace", "namespace", "sku", "gb_hours", NULL}},
	[EVENT_EGRESS] = {"gb", (const char *const[]){"tenant", "workspace", "namespace", "sku", "gb", NULL}},
	[EVENT_INFERENCE] = {NULL, (const char *const[]){"tenant", "workspace", "namespace", "sku", "requests",
                                                         "input_tokens", "output_tokens", "model", "caller", "server",
                                                         "end_user", NULL}},
	[EVENT_SUPPORT] = {"hours", (const char *const[]){"tenant", "workspace", "namespace", "sku", "hours", NULL}},
};

/* ---- rule 5 ---- */

static bool
read_owner(struct event *e, const json_t *data, const struct event_rules *r)
{
	bool by_name;

	if (!read_text(e, data, DATA, "tenant", EVENT_NAME_MAX, false, &e->tenant) ||
	    !read_text(e, data, DATA, "workspace", EVENT_NAME_MAX, false, &e->workspace) ||
	    !read_text(e, data, DATA, "namespace", EVENT_NAME_MAX, false, &e->ns))
		return false;
	by_name = e->tenant[0] != '\0' || e->workspace[0] != '\0';
	if (by_name && e->ns[0] != '\0')
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "data.namespace",
		                    "a namespace beside tenant and workspace: one of the two says whose it is");
	if (r->tenant != NULL && e->ns[0] != '\0')
		return event_refuse(e, EVENT_REFUSED, ERR_DENIED, "data.namespace",
		                    "a tenant's token names the workspace; namespaces are for the operator's senders");
	if (e->ns[0] != '\0')
		return true;
	if (r->tenant != NULL && e->tenant[0] == '\0')
		e->tenant = r->tenant;
	if (e->tenant[0] == '\0')
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "data.tenant",
		                    "data.tenant is missing, and no namespace is given in its place");
	if (e->workspace[0] == '\0')
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "data.workspace", "data.workspace is missing");
	/* the same words as for a tenant that does not exist */
	if (r->tenant != NULL && strcmp(r->tenant, e->tenant) != 0)
		return event_refuse(e, EVENT_REFUSED, ERR_MISSING, "data.workspace",
		                    "there is no workspace \"%.64s\" of a tenant \"%.64s\" at that time", e->workspace,
		                    e->tenant);
	return true;
}

/* ---- rule 6 ---- */

static bool
refuse_amount(struct event *e, const char *name, const json_t *value, int scale)
{
	char field[48], shown[64] = "of another kind";

	snprintf(field, sizeof(field), DATA "%s", name);
	if (value == NULL)
		snprintf(shown, sizeof(shown), "missing");
	else if (json_is_string(value))
		snprintf(shown, sizeof(shown), "\"%.40s\"", json_string_value(value));
	else if (json_is_integer(value))
		snprintf(shown, sizeof(shown), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
	else if (json_is_real(value))
		snprintf(shown, sizeof(shown), "a number with decimals");
	return event_refuse(e, EVENT_REFUSED, ERR_INVALID, field,
	                    scale == 0
	                            ? "%s is %s: it must be a whole number from 0, below 10^%d"
	                            : "%s is %s: it must be a whole number, or a decimal in quotes with at most nine "
	                              "places, from 0, below 10^%d",
	                    field, shown, EVENT_AMOUNT_LIMIT_DIGITS);
}

/* A number with decimals is not taken: what arrives as one has been a float on its way. */
static bool
read_amount(struct event *e, const json_t *data, const char *name, int scale, int128 *ret)
{
	const json_t *j = json_object_get(data, name);
	int128 v = EVENT_NONE;

	if (j == NULL || json_is_null(j))
		return true;
	if (json_is_integer(j))
		v = (int128)json_integer_value(j) * pow10_i128(scale);
	else if (!json_is_string(j) || !decimal_parse(json_string_value(j), scale, &v, NULL))
		return refuse_amount(e, name, j, scale);
	if (v < 0 || v >= pow10_i128(EVENT_AMOUNT_LIMIT_DIGITS + scale))
		return refuse_amount(e, name, j, scale);
	*ret = v;
	return true;
}

static bool
check_end_user(struct event *e)
{
	return e->end_user[0] == '\0' || !text_is_blank(e->end_user) ||
	       event_refuse(e, EVENT_REFUSED, ERR_INVALID, "data.end_user",
	                    "data.end_user has nothing but spaces and characters that are not seen");
}

static bool
read_inference(struct event *e, const json_t *data)
{
	if (!read_amount(e, data, "requests", 0, &e->requests) ||
	    !read_amount(e, data, "input_tokens", 0, &e->input_tokens) ||
	    !read_amount(e, data, "output_tokens", 0, &e->output_tokens))
		return false;
	if (e->requests == EVENT_NONE && e->input_tokens == EVENT_NONE && e->output_tokens == EVENT_NONE)
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "data.requests",
		                    "data has none of requests, input_tokens and output_tokens");
	if (!read_text(e, data, DATA, "model", EVENT_SKU_MAX, true, &e->model) ||
	    !read_text(e, data, DATA, "caller", EVENT_NAME_MAX, false, &e->caller) ||
	    !read_text(e, data, DATA, "server", EVENT_NAME_MAX, false, &e->server) ||
	    !read_text(e, data, DATA, "end_user", EVENT_NAME_MAX, false, &e->end_user) || !check_end_user(e))
		return false;
	e->sku = e->model;
	return true;
}

static bool
read_data(struct event *e, const json_t *data, const struct event_rules *r)
{
	const struct data_form *form = &forms[e->type];
	struct err err = {0};

	if (!json_is_object(data))
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "data", "data must be an object");
	if (!json_only_fields(data, form->fields, &err))
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "data", "data: %.300s", err.text);
	if (!read_owner(e, data, r))
		return false;
	e->sku = STANDARD_SKU;
	if (form->amount == NULL) {
		if (!read_inference(e, data))
			return false;
	} else if (!read_amount(e, data, form->amount, QUANTITY_SCALE, &e->amount)) {
		return false;
	} else if (e->amount == EVENT_NONE) {
		return refuse_amount(e, form->amount, NULL, QUANTITY_SCALE);
	}
	return read_text(e, data, DATA, "sku", EVENT_SKU_MAX, false, &e->sku);
}

/* ---- an event ---- */

static void
digest_text(struct buf *b, const char *s)
{
	buf_u64(b, strlen(s));
	buf_char(b, ':');
	buf_str(b, s);
}

/* Every text with its length and amounts in one spelling, so that two events are equal exactly when they mean the same. */
static void
make_digest(struct event *e)
{
	const int128 amounts[] = {e->amount, e->requests, e->input_tokens, e->output_tokens};
	const char *texts[] = {e->tenant, e->workspace, e->ns, e->sku, e->model, e->caller, e->server};
	char number[DECIMAL_TEXT_SIZE];
	in_place(buf) struct buf b = {0};

	buf_init(&b, DIGEST_MAX);
	buf_printf(&b, "%d %" PRId64, (int)e->type, e->time_ns);
	for (size_t i = 0; i < ARRAY_LEN(amounts); i++)
		buf_printf(&b, " %s", decimal_format(amounts[i], 0, 0, number));
	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		digest_text(&b, texts[i]);
	/* absent, it leaves the digest what it was before there was one */
	if (e->end_user[0] != '\0')
		digest_text(&b, e->end_user);
	ASSERT(!b.over);
	sha256(b.data, b.len, e->digest);
}

static void
read_event(struct event *e, const json_t *doc, const struct event_rules *r)
{
	e->tenant = e->workspace = e->ns = e->sku = e->model = e->caller = e->server = e->end_user = "";
	e->amount = e->requests = e->input_tokens = e->output_tokens = EVENT_NONE;
	if (read_envelope(e, doc) && read_time(e, doc, r) && read_data(e, json_object_get(doc, "data"), r))
		make_digest(e);
}

void
events_free(struct events *e)
{
	if (e == NULL)
		return;
	for (size_t i = 0; i < e->count; i++)
		mem_free(e->items[i].detail);
	mem_free(e->items);
	json_free(e->doc);
	mem_free(e);
}

bool
events_parse(const char *text, size_t len, bool batch, const struct event_rules *rules, struct events **ret,
             struct err *err)
{
	owned(events) struct events *all = mem_alloc(sizeof(*all));
	size_t n = 1;

	if (!json_parse("body", text, len, &all->doc, err))
		return false;
	if (batch && !json_is_array(all->doc))
		return err_set(err, ERR_INVALID, "body: a batch is a list of events");
	if (!batch && !json_is_object(all->doc))
		return err_set(err, ERR_INVALID,
		               "body: an event is a JSON object; a list of them is "
		               "application/cloudevents-batch+json");
	if (batch)
		n = json_array_size(all->doc);
	if (n > rules->count_max)
		return err_set(err, ERR_INVALID, "body: %zu events are more than the limit of %zu", n,
		               rules->count_max);
	all->items = mem_array(n, sizeof(*all->items));
	for (all->count = 0; all->count < n; all->count++)
		read_event(&all->items[all->count], batch ? json_array_get(all->doc, all->count) : all->doc, rules);
	*ret = take(all);
	return true;
}

/* ---- monthly limits: rules 7 to 9 ---- */

static const struct meter_limit {
	const char *name;  /* as a policy calls it */
	const char *field; /* of an event */
	int digits;        /* the limit is 10^digits */
} meters[EVENT_METERS] = {
	[METER_STORAGE] = {"storage", "data.gb_hours", LIMIT_METER_GB_DIGITS},
	[METER_EGRESS] = {"egress", "data.gb", LIMIT_METER_GB_DIGITS},
	[METER_REQUESTS] = {"inference-requests", "data.requests", LIMIT_METER_COUNT_DIGITS},
	[METER_INPUT_TOKENS] = {"inference-input-tokens", "data.input_tokens", LIMIT_METER_COUNT_DIGITS},
	[METER_OUTPUT_TOKENS] = {"inference-output-tokens", "data.output_tokens", LIMIT_METER_COUNT_DIGITS},
	[METER_SUPPORT] = {"support", "data.hours", LIMIT_METER_HOURS_DIGITS},
};

/* Scale QUANTITY_SCALE; 0: it says nothing of the meter. */
static int128
measured(const struct event *e, enum event_meter m)
{
	const int128 all[EVENT_METERS] = {
		[METER_STORAGE] = e->type == EVENT_STORAGE ? e->amount : EVENT_NONE,
		[METER_EGRESS] = e->type == EVENT_EGRESS ? e->amount : EVENT_NONE,
		[METER_REQUESTS] = e->requests,
		[METER_INPUT_TOKENS] = e->input_tokens,
		[METER_OUTPUT_TOKENS] = e->output_tokens,
		[METER_SUPPORT] = e->type == EVENT_SUPPORT ? e->amount : EVENT_NONE,
	};

	if (all[m] == EVENT_NONE)
		return 0;
	return e->type == EVENT_INFERENCE ? all[m] * pow10_i128(QUANTITY_SCALE) : all[m];
}

static int128
limit_of(size_t m)
{
	return pow10_i128(meters[m].digits + QUANTITY_SCALE);
}

bool
event_is_small(const struct event *e)
{
	for (size_t m = 0; m < EVENT_METERS; m++)
		if (measured(e, (enum event_meter)m) >= limit_of(m) / pow10_i128(LIMIT_METER_SMALL_DIGITS))
			return false;
	return true;
}

/* One that is beyond the limit on its own is wrong; another comes too late in its month. */
static bool
refuse_sum(struct event *e, size_t m, const char *month, int128 value, int128 sum)
{
	char shown[DECIMAL_TEXT_SIZE], had[DECIMAL_TEXT_SIZE], most[DECIMAL_TEXT_SIZE];

	return event_refuse(e, EVENT_REFUSED, value > limit_of(m) ? ERR_INVALID : ERR_LIMIT, meters[m].field,
	                    "%s is %s: the events of %s add up to %s, and may add up to %s", meters[m].field,
	                    decimal_format(value, QUANTITY_SCALE, 0, shown), month,
	                    decimal_format(sum, QUANTITY_SCALE, 0, had),
	                    decimal_format(limit_of(m), QUANTITY_SCALE, 0, most));
}

void
event_sum(const struct event *e, int128 sums[EVENT_METERS])
{
	for (size_t m = 0; m < EVENT_METERS; m++)
		sums[m] += measured(e, (enum event_meter)m);
}

bool
event_add_up(struct event *e, const char *month, int128 sums[EVENT_METERS])
{
	for (size_t m = 0; m < EVENT_METERS; m++) {
		int128 value = measured(e, (enum event_meter)m);

		if (value > 0 && value > limit_of(m) - sums[m])
			return refuse_sum(e, m, month, value, sums[m]);
	}
	event_sum(e, sums);
	return true;
}

bool
event_sums_are_large(const int128 sums[EVENT_METERS])
{
	for (size_t m = 0; m < EVENT_METERS; m++)
		if (sums[m] > limit_of(m) / 1000)
			return true;
	return false;
}

int128
event_price_limit(const char *meter, int64_t per)
{
	size_t m = 0;

	while (strcmp(meters[m].name, meter) != 0) {
		m++;
		ASSERT(m < EVENT_METERS);
	}
	return pow10_i128(LIMIT_METER_COST_DIGITS - meters[m].digits + PRICE_SCALE) * per;
}
