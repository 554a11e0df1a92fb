/* tests/unit/conf/test_yaml.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/conf/yaml.h"

static struct yaml_doc *
parse(const char *text)
{
	struct yaml_doc *doc = NULL;
	struct err err;

	if (!yaml_parse("policy.yaml", text, strlen(text), &doc, &err))
		fail_msg("%s", err.text);
	return doc;
}

static void
a_document_becomes_a_tree_that_knows_its_lines(void **state)
{
	owned(yaml) struct yaml_doc *doc = parse("# a policy\n"
	                                         "tenants:\n"
	                                         "  - name: acme\n"
	                                         "    quota: 16\n"
	                                         "  - name: \"b: c\"\n"
	                                         "zone: Europe/Berlin\n");
	const struct yaml_node *root = yaml_root(doc), *tenants = yaml_get(root, "tenants");
	const struct yaml_node *second;
	struct err err;
	const char *s;
	int64_t v;

	(void)state;
	assert_string_equal(yaml_name(doc), "policy.yaml");
	assert_int_equal(root->kind, YAML_MAP);
	assert_int_equal(root->count, 2);
	assert_non_null(tenants);
	assert_int_equal(tenants->kind, YAML_LIST);
	assert_int_equal(tenants->count, 2);
	assert_int_equal(tenants->key_line, 2);
	assert_int_equal(tenants->line, 3);
	assert_null(tenants->child->key);
	assert_true(yaml_str(doc, tenants->child, "name", &s, &err));
	assert_string_equal(s, "acme");
	assert_true(yaml_i64(doc, tenants->child, "quota", 0, 100, &v, &err));
	assert_int_equal(v, 16);
	second = tenants->child->next;
	assert_int_equal(second->line, 5);
	assert_true(yaml_str(doc, second, "name", &s, &err));
	assert_string_equal(s, "b: c");
	assert_true(second->child->quoted);
	assert_null(second->next);
	assert_null(yaml_get(root, "tenant"));
	assert_null(yaml_get(tenants, "name"));
}

static void
json_is_read_as_yaml(void **state)
{
	owned(yaml) struct yaml_doc *doc = parse("{\"a\": [1, {\"b\": true}], \"c\": \"true\"}");
	const struct yaml_node *a = yaml_get(yaml_root(doc), "a");
	struct err err;
	bool b = false;

	(void)state;
	assert_int_equal(a->count, 2);
	assert_true(yaml_bool(doc, a->child->next, "b", &b, &err));
	assert_true(b);
	assert_false(yaml_bool(doc, yaml_root(doc), "c", &b, &err));
	assert_string_equal(err.text, "policy.yaml:1: c must be true or false, not 'true'");
}

static void
a_document_of_comments_alone_is_an_empty_map(void **state)
{
	static const char *const empty[] = {"", "\n\n", "# nothing\n", "---\n", "---\n...\n", "~", "null\n", "{}"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(empty); i++) {
		owned(yaml) struct yaml_doc *doc = parse(empty[i]);

		assert_int_equal(yaml_root(doc)->kind, YAML_MAP);
		assert_int_equal(yaml_root(doc)->count, 0);
		assert_null(yaml_root(doc)->child);
	}
}

static void
what_would_say_something_else_than_it_seems_is_refused_with_its_line(void **state)
{
	static const struct {
		const char *name, *text, *error;
	} rows[] = {
		{"a key given twice", "a: 1\nb: 2\na: 3\n", "p:3: key 'a' appears twice in one map, first on line 1"},
		{"a key given twice in a flow map", "x: {a: 1, a: 2}",
	         "p:1: key 'a' appears twice in one map, first on line 1"},
		{"the same key quoted and plain", "a: 1\n\"a\": 2\n",
	         "p:2: key 'a' appears twice in one map, first on line 1"},
		{"an anchor on a scalar", "a: &x 1\n", "p:1: anchor '&x' is not allowed"},
		{"an anchor on a map", "a: 1\nb: &m\n  c: 1\n", "p:2: anchor '&m' is not allowed"},
		{"an anchor on a list", "b: &l [1]\n", "p:1: anchor '&l' is not allowed"},
		{"an alias", "a: 1\nb: *a\n", "p:2: alias '*a' is not allowed"},
		{"a tag of the core schema", "a: !!str 1\n", "p:1: tag 'tag:yaml.org,2002:str' is not allowed"},
		{"a tag of its own", "a: !thing {}\n", "p:1: tag '!thing' is not allowed"},
		{"the non-specific tag", "a: ! 1\n", "p:1: tag '!' is not allowed"},
		{"a second document", "a: 1\n---\nb: 2\n", "p:2: a second document begins here; only one is read"},
		{"a list as a key", "? [a, b]\n: 1\n",
	         "p:1: the key of a map is itself a list; only text can be a key"},
		{"a map as a key", "? {a: b}\n: 1\n", "p:1: the key of a map is itself a map; only text can be a key"},
		{"a NUL made by an escape", "a: \"x\\0y\"\n", "p:1: a text holds a NUL character"},
		{"a NUL in a key", "\"x\\0y\": 1\n", "p:1: a text holds a NUL character"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct yaml_doc *doc = NULL;
		struct err err = {.kind = ERR_NONE};

		if (yaml_parse("p", rows[i].text, strlen(rows[i].text), &doc, &err))
			fail_msg("%s: accepted", rows[i].name);
		if (strcmp(err.text, rows[i].error) != 0)
			fail_msg("%s: \"%s\" instead of \"%s\"", rows[i].name, err.text, rows[i].error);
		assert_int_equal(err.kind, ERR_INVALID);
		assert_null(doc);
	}
}

static void
a_syntax_error_names_its_line_and_what_it_belongs_to(void **state)
{
	static const char *const rows[][2] = {
		{"a: 1\nb: [1, 2\n", "p:3: "},
		{"a: 1\n b: 2\n", "p:2: "},
		{"a: 'x\n", "p:2: "},
		{"a: \"\\q\"\n", "p:1: "},
		{"a:\n\t- b\n", "p:2: "},
		{"a: \x01\n", "p: byte 3: "},
		{"a: \xff\n", "p: byte 3: "},
		{"\xff\xfe"
	         "a",
	         "p: byte 0: "}, /* UTF-16 is not read */
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct yaml_doc *doc = NULL;
		struct err err = {.kind = ERR_NONE};

		assert_false(yaml_parse("p", rows[i][0], strlen(rows[i][0]), &doc, &err));
		if (strncmp(err.text, rows[i][1], strlen(rows[i][1])) != 0 || strlen(err.text) <= strlen(rows[i][1]))
			fail_msg("row %zu: \"%s\" does not begin with \"%s\"", i, err.text, rows[i][1]);
	}
}

static void
add_times(struct buf *b, const char *s, size_t n)
{
	while (n--)
		buf_str(b, s);
}

static void
depth_count_and_size_have_ceilings(void **state)
{
	in_place(buf) struct buf b;
	struct yaml_doc *doc = NULL;
	struct err err;

	(void)state;
	buf_init(&b, 16u << 20);
	add_times(&b, "[", YAML_MAX_DEPTH);
	add_times(&b, "]", YAML_MAX_DEPTH);
	assert_true(yaml_parse("p", b.data, b.len, &doc, &err));
	yaml_doc_free(doc);
	doc = NULL;

	buf_clear(&b);
	add_times(&b, "[", YAML_MAX_DEPTH + 1);
	assert_false(yaml_parse("p", b.data, b.len, &doc, &err));
	assert_string_equal(err.text, "p:1: nested deeper than 32 levels");

	buf_clear(&b);
	add_times(&b, "- 1\n", YAML_MAX_NODES - 1); /* the list is a node too */
	assert_true(yaml_parse("p", b.data, b.len, &doc, &err));
	assert_int_equal(yaml_root(doc)->count, YAML_MAX_NODES - 1);
	yaml_doc_free(doc);
	doc = NULL;
	buf_str(&b, "- 1\n");
	assert_false(yaml_parse("p", b.data, b.len, &doc, &err));
	assert_string_equal(err.text, "p:200000: more than 200000 values in one document");

	buf_clear(&b);
	add_times(&b, "#", YAML_MAX_BYTES);
	assert_true(yaml_parse("p", b.data, b.len, &doc, &err));
	yaml_doc_free(doc);
	buf_char(&b, '#');
	assert_false(yaml_parse("p", b.data, b.len, &doc, &err));
	assert_string_equal(err.text, "p: 4194305 bytes are more than the limit of 4194304");
}

static void
an_unknown_key_is_refused_and_the_nearest_one_named(void **state)
{
	static const char *const allowed[] = {"name", "cost_center", "workspaces", NULL};
	static const struct {
		const char *text, *error;
	} rows[] = {
		{"name: a\ncost_centre:\n  x: 1\n",
	         "policy.yaml:2: unknown key 'cost_centre'; did you mean 'cost_center'?"},
		{"workspace: a\n", "policy.yaml:1: unknown key 'workspace'; did you mean 'workspaces'?"},
		{"nmae: a\n", "policy.yaml:1: unknown key 'nmae'; did you mean 'name'?"},
		{"Cost-Center: a\n", "policy.yaml:1: unknown key 'Cost-Center'; did you mean 'cost_center'?"},
		{"colour: a\n", "policy.yaml:1: unknown key 'colour'"},
		{"'': a\n", "policy.yaml:1: unknown key ''"},
		{"[a]\n", "policy.yaml:1: this must be a map, here it is a list"},
	};
	struct err err;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		owned(yaml) struct yaml_doc *doc = parse(rows[i].text);

		assert_false(yaml_only_keys(doc, yaml_root(doc), allowed, &err));
		assert_string_equal(err.text, rows[i].error);
	}
	owned(yaml) struct yaml_doc *doc = parse("workspaces: []\nname: x\n");
	assert_true(yaml_only_keys(doc, yaml_root(doc), allowed, &err));
}

static void
a_scalar_is_text_until_asked_for_as_a_type(void **state)
{
	owned(yaml) struct yaml_doc *doc = parse("zeros: 007\n"
	                                         "number: 12\n"
	                                         "quoted: '12'\n"
	                                         "least: -9223372036854775808\n"
	                                         "beyond: 9223372036854775808\n"
	                                         "float: 1.5\n"
	                                         "hex: 0x10\n"
	                                         "yes: yes\n"
	                                         "no: false\n"
	                                         "nothing:\n"
	                                         "tilde: ~\n"
	                                         "empty: ''\n"
	                                         "list: []\n");
	const struct yaml_node *root = yaml_root(doc);
	const char *s = NULL;
	struct err err;
	int64_t v = 0;
	bool b = true;

	(void)state;
	assert_true(yaml_str(doc, root, "zeros", &s, &err));
	assert_string_equal(s, "007");
	assert_false(yaml_i64(doc, root, "zeros", 0, 10, &v, &err));
	assert_string_equal(err.text, "policy.yaml:1: zeros must be a whole number, not '007'");
	assert_true(yaml_i64(doc, root, "number", 12, 12, &v, &err));
	assert_int_equal(v, 12);
	assert_false(yaml_i64(doc, root, "number", 0, 11, &v, &err));
	assert_string_equal(err.text, "policy.yaml:2: number is 12, outside 0 to 11");
	assert_false(yaml_i64(doc, root, "number", 13, 14, &v, &err));
	assert_false(yaml_i64(doc, root, "quoted", 0, 100, &v, &err));
	assert_true(yaml_i64(doc, root, "least", INT64_MIN, INT64_MAX, &v, &err));
	assert_true(v == INT64_MIN);
	assert_false(yaml_i64(doc, root, "beyond", INT64_MIN, INT64_MAX, &v, &err));
	assert_false(yaml_i64(doc, root, "float", 0, 10, &v, &err));
	assert_false(yaml_i64(doc, root, "hex", 0, 100, &v, &err));
	assert_false(yaml_bool(doc, root, "yes", &b, &err));
	assert_true(yaml_bool(doc, root, "no", &b, &err));
	assert_false(b);
	assert_false(yaml_str(doc, root, "nothing", &s, &err));
	assert_string_equal(err.text, "policy.yaml:10: nothing has no value");
	assert_true(yaml_is_null(yaml_get(root, "tilde")));
	assert_false(yaml_is_null(yaml_get(root, "empty")));
	assert_false(yaml_is_null(yaml_get(root, "list")));
	assert_true(yaml_str(doc, root, "empty", &s, &err));
	assert_string_equal(s, "");
	assert_false(yaml_str(doc, root, "list", &s, &err));
	assert_string_equal(err.text, "policy.yaml:13: list must be a single value, here it is a list");
	assert_false(yaml_str(doc, root, "absent", &s, &err));
	assert_string_equal(err.text, "policy.yaml:1: key 'absent' is missing");
	assert_false(yaml_str(doc, yaml_get(root, "list"), "x", &s, &err));
	assert_string_equal(err.text, "policy.yaml:13: list must be a map, here it is a list");
}

static void
an_error_of_the_caller_gets_file_and_line(void **state)
{
	owned(yaml) struct yaml_doc *doc = parse("a:\n- x\n");
	struct err err;

	(void)state;
	assert_false(yaml_err(doc, yaml_get(yaml_root(doc), "a")->child, &err, "no such %s", "tenant"));
	assert_string_equal(err.text, "policy.yaml:2: no such tenant");
	assert_int_equal(err.kind, ERR_INVALID);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_document_becomes_a_tree_that_knows_its_lines),
		cmocka_unit_test(json_is_read_as_yaml),
		cmocka_unit_test(a_document_of_comments_alone_is_an_empty_map),
		cmocka_unit_test(what_would_say_something_else_than_it_seems_is_refused_with_its_line),
		cmocka_unit_test(a_syntax_error_names_its_line_and_what_it_belongs_to),
		cmocka_unit_test(depth_count_and_size_have_ceilings),
		cmocka_unit_test(an_unknown_key_is_refused_and_the_nearest_one_named),
		cmocka_unit_test(a_scalar_is_text_until_asked_for_as_a_type),
		cmocka_unit_test(an_error_of_the_caller_gets_file_and_line),
	};

	return cmocka_run_group_tests_name("yaml", tests, NULL, NULL);
}
