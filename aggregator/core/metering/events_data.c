/* aggregator/core/metering/events_data.c - an event's data: whose it is, what was used, how much. */
#include "aggregator/core/metering/events_data.h"

#include <stdio.h>
#include <string.h>

#include "common/base/money.h"
#include "common/base/text.h"

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

	if (!event_text(e, data, DATA, "tenant", EVENT_NAME_MAX, false, &e->tenant) ||
	    !event_text(e, data, DATA, "workspace", EVENT_NAME_MAX, false, &e->workspace) ||
	    !event_text(e, data, DATA, "namespace", EVENT_NAME_MAX, false, &e->ns))
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
	if (!event_text(e, data, DATA, "model", EVENT_SKU_MAX, true, &e->model) ||
	    !event_text(e, data, DATA, "caller", EVENT_NAME_MAX, false, &e->caller) ||
	    !event_text(e, data, DATA, "server", EVENT_NAME_MAX, false, &e->server) ||
	    !event_text(e, data, DATA, "end_user", EVENT_NAME_MAX, false, &e->end_user) || !check_end_user(e))
		return false;
	e->sku = e->model;
	return true;
}

bool
event_data_read(struct event *e, const json_t *data, const struct event_rules *r)
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
	return event_text(e, data, DATA, "sku", EVENT_SKU_MAX, false, &e->sku);
}
