/* aggregator/core/policy/policy_read.c - reads a policy file: the table of policy_fields.c entry by entry, then the checks of policy_check.c. */
#include <string.h>

#include "aggregator/core/policy/policy_fields.h"

/* The version is read before the keys are checked, so that a file of a later version is not blamed for keys that only that version
 * has. */
static bool
read_policy(const struct yaml_doc *doc, struct policy *p, struct err *err)
{
	const struct yaml_node *root = yaml_root(doc);

	return yaml_expect(doc, root, YAML_MAP, "a policy", err) &&
	       policy_type_version.read(&(struct policy_at){.doc = doc, .map = root}, err) &&
	       policy_read_entry(&policy_file_section, doc, root, p, err) && policy_check(p, yaml_name(doc), err);
}

bool
policy_parse_part(const char *name, const char *text, size_t len, struct policy **ret, struct err *err)
{
	owned(yaml) struct yaml_doc *doc = NULL;
	owned(policy) struct policy *p = mem_alloc(sizeof(*p));

	if (!yaml_parse(name, text, len, &doc, err) || !read_policy(doc, p, err))
		return false;
	*ret = take(p);
	return true;
}

/* Only the key prices, beside a policy that has the tenants and clusters. */
static bool
parse_section(const struct yaml_doc *doc, const struct policy *beside, struct policy_book **ret, struct err *err)
{
	static const char *const keys[] = {"version", "prices", NULL};

	return yaml_only_keys(doc, yaml_root(doc), keys, err) && policy_read_book(doc, ret, err) &&
	       policy_check_book(*ret, beside, yaml_name(doc), err);
}

bool
policy_parse_book(const char *name, const char *text, size_t len, const struct policy *beside, struct policy_book **ret,
                  struct err *err)
{
	owned(yaml) struct yaml_doc *doc = NULL;
	owned(policy) struct policy *p = NULL;
	owned(policy_book) struct policy_book *book = NULL;

	if (!yaml_parse(name, text, len, &doc, err))
		return false;
	if (yaml_get(yaml_root(doc), "prices") == NULL)
		return yaml_err(doc, yaml_root(doc), err, "the file has no key prices");
	if (yaml_get(yaml_root(doc), "cluster") == NULL) {
		if (!parse_section(doc, beside, &book, err))
			return false;
		*ret = take(book);
		return true;
	}
	if (!policy_parse(name, text, len, &p, err))
		return false;
	*ret = take(p->prices);
	return true;
}

bool
policy_parse(const char *name, const char *text, size_t len, struct policy **ret, struct err *err)
{
	owned(policy) struct policy *p = NULL;

	if (!policy_parse_part(name, text, len, &p, err) || !policy_check_whole(p, name, err))
		return false;
	*ret = take(p);
	return true;
}

/* ---- amounts ---- */

const struct quantity *
policy_amount_for(const struct policy_amounts *a, const char *model)
{
	for (size_t i = 0; i < a->count; i++)
		if (a->at[i].model[0] == '\0' || strcmp(a->at[i].model, model) == 0)
			return &a->at[i];
	return NULL;
}

static void
write_quantity(const struct quantity *q, struct buf *out)
{
	if (q->unlimited)
		buf_str(out, "none");
	else if (q->profile[0])
		buf_printf(out, "%" PRId64 "x%s", q->num, q->profile);
	else if (q->den != 1)
		buf_printf(out, "%" PRId64 "/%" PRId64, q->num, q->den);
	else
		buf_i64(out, q->num);
}

void
policy_amounts_text(const struct policy_amounts *a, struct buf *out)
{
	if (a->count == 1 && a->at[0].model[0] == '\0') {
		write_quantity(&a->at[0], out);
		return;
	}
	for (size_t i = 0; i < a->count; i++) {
		buf_printf(out, "%s%s: ", i == 0 ? "{" : ", ", a->at[i].model);
		write_quantity(&a->at[i], out);
	}
	if (a->count > 0)
		buf_char(out, '}');
}

const char *
policy_workspace_cluster(const struct policy *p, const struct policy_workspace *w)
{
	return w->cluster ? w->cluster : p->cluster;
}
