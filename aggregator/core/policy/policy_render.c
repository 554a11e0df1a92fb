/* aggregator/core/policy/policy_render.c - a policy as a file again, by the table of policy_fields.c. Texts are always quoted, so that none is
 * taken for a number, a boolean or nothing. */
#include <string.h>

#include "aggregator/core/policy/policy_fields.h"

/* Whether a key would be the same without being written. */
static bool
is_preset(const struct policy_field *f, const void *entry, const void *absent)
{
	in_place(buf) struct buf value = {0}, preset = {0};

	buf_init(&value, POLICY_FIELD_MAX);
	buf_init(&preset, POLICY_FIELD_MAX);
	policy_field_text(f, entry, &value);
	if (f->flags & POLICY_ALWAYS)
		return value.len == 0;
	if (f->flags & POLICY_NAMED_SAME)
		return strcmp(buf_text(&value), *(char *const *)entry) == 0;
	policy_field_text(f, absent, &preset);
	return strcmp(buf_text(&value), buf_text(&preset)) == 0;
}

static void
render_value(const struct policy_field *f, const void *entry, struct buf *out)
{
	if (f->type->render != NULL)
		f->type->render(f, entry, out);
	else
		f->type->text(f, entry, out);
}

/* {KEY: VALUE, KEY: [{KEY: VALUE}, ...]} */
static void
render_braces(const struct policy_section *s, const void *entry, struct buf *out)
{
	owned(mem) void *absent = mem_alloc(s->size);
	const char *before = "{";

	policy_preset(s, absent);
	for (size_t i = 0; i < s->field_count; i++) {
		const struct policy_field *f = &s->fields[i];

		if (f->type == &policy_type_list) {
			struct policy_list l = policy_list_of(f, entry);

			for (size_t k = 0; k < l.count; k++) {
				if (k == 0)
					buf_printf(out, "%s%s: [", before, f->key);
				else
					buf_str(out, ", ");
				render_braces(f->section, (char *)l.at + k * f->section->size, out);
			}
			buf_str(out, l.count > 0 ? "]" : "");
			continue;
		}
		if (is_preset(f, entry, absent))
			continue;
		buf_printf(out, "%s%s: ", before, f->key);
		render_value(f, entry, out);
		before = ", ";
	}
	buf_char(out, '}');
}

static void render_block(const struct policy_section *s, const void *entry, int indent, bool in_list, struct buf *out);

static void
render_list(const struct policy_field *f, const void *entry, int indent, struct buf *out)
{
	struct policy_list l = policy_list_of(f, entry);

	if (l.count > 0)
		buf_printf(out, "%*s%s:\n", indent, "", f->key);
	else if (f->flags & POLICY_REQUIRED)
		buf_printf(out, "%*s%s: []\n", indent, "", f->key);
	for (size_t i = 0; i < l.count; i++) {
		const void *at = (char *)l.at + i * f->section->size;

		if (f->section->block) {
			render_block(f->section, at, indent + 2, true, out);
			continue;
		}
		buf_printf(out, "%*s- ", indent + 2, "");
		render_braces(f->section, at, out);
		buf_char(out, '\n');
	}
}

/* A key to a line. An entry of a list has a dash before its first key. */
static void
render_block(const struct policy_section *s, const void *entry, int indent, bool in_list, struct buf *out)
{
	owned(mem) void *absent = mem_alloc(s->size);

	policy_preset(s, absent);
	for (size_t i = 0; i < s->field_count; i++) {
		const struct policy_field *f = &s->fields[i];
		int at = in_list && i > 0 ? indent + 2 : indent;

		if (f->type == &policy_type_list) {
			render_list(f, entry, at, out);
		} else if (f->type == &policy_type_book) {
			const struct policy_book *b = ((const struct policy *)entry)->prices;

			if (b == NULL)
				continue;
			buf_printf(out, "%*s%s:\n", at, "", f->key);
			render_block(&policy_book_section, b, at + 2, false, out);
		} else if (!is_preset(f, entry, absent)) {
			buf_printf(out, "%*s%s%s: ", at, "", in_list && i == 0 ? "- " : "", f->key);
			render_value(f, entry, out);
			buf_char(out, '\n');
		}
	}
}

void
policy_render_tenant(const struct policy_tenant *t, int indent, struct buf *out)
{
	render_block(&policy_tenant_section, t, indent, true, out);
}

void
policy_render_part(const struct policy *p, const struct policy_tenant *t, struct buf *out)
{
	struct policy head = {.cluster = p->cluster, .effective_ns = INT64_MIN};

	render_block(&policy_file_section, &head, 0, false, out);
	buf_str(out, "tenants:\n");
	policy_render_tenant(t, 2, out);
}

void
policy_render(const struct policy *p, struct buf *out)
{
	render_block(&policy_file_section, p, 0, false, out);
}
