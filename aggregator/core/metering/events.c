/* aggregator/core/metering/events.c - an event's envelope: what CloudEvents says of it, its time, its digest. */
#include "aggregator/core/metering/events.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "aggregator/core/metering/events_data.h"
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

bool
event_text(struct event *e, const json_t *from, const char *prefix, const char *name, size_t most, bool needed,
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

	if (!event_text(e, doc, "", "datacontenttype", EVENT_NAME_MAX, false, &type))
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

	if (!event_text(e, doc, "", "type", EVENT_NAME_MAX, true, &type))
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
	if (!event_text(e, doc, "", "id", EVENT_ID_MAX, true, &e->id) ||
	    !event_text(e, doc, "", "source", EVENT_SOURCE_MAX, true, &e->source))
		return false;
	if (!is_uri_reference(e->source))
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "source", "source is not a URI reference");
	if (!event_text(e, doc, "", "specversion", EVENT_NAME_MAX, true, &version))
		return false;
	if (strcmp(version, "1.0") != 0)
		return event_refuse(e, EVENT_REFUSED, ERR_INVALID, "specversion", "specversion is \"%.64s\", not 1.0",
		                    version);
	return check_attributes(e, doc) && check_media(e, doc) &&
	       event_text(e, doc, "", "subject", EVENT_SOURCE_MAX, false, &other) &&
	       event_text(e, doc, "", "dataschema", EVENT_SOURCE_MAX, false, &other) && read_type(e, doc);
}

/* ---- rule 3 ---- */

static bool
read_time(struct event *e, const json_t *doc, const struct event_rules *r)
{
	const char *text = "";
	char limit[TIME_TEXT_SIZE];
	struct err err = {0};

	if (!event_text(e, doc, "", "time", TIME_TEXT_SIZE, true, &text))
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

/* ---- the whole ---- */

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
	if (read_envelope(e, doc) && read_time(e, doc, r) && event_data_read(e, json_object_get(doc, "data"), r))
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
