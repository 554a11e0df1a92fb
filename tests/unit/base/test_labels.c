/* tests/unit/base/test_labels.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/labels.h"

#define X63 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static void
a_key_is_a_name_with_or_without_a_domain(void **state)
{
	static const struct {
		const char *key;
		bool allowed;
	} rows[] = {
		{"app", true},
		{"App_2.x-y", true},
		{"example.com/team", true},
		{"a-b.c/d", true},
		{X63, true},
		{"", false},
		{X63 "a", false},
		{"-app", false},
		{"app.", false},
		{"ap p", false},
		{"a=b", false},
		{"a,b", false},
		{"/app", false},
		{"example.com/", false},
		{"Example.com/team", false},
		{"a..b/c", false},
		{"-a/b", false},
		{"a-/b", false},
		{".a/b", false},
		{"a/b/c", false},
		{"t\xc3\xa9"
	         "am",
	         false},
		{X63 "." X63 "." X63 "." X63 "/a", false},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if ((label_key_fault(rows[i].key, strlen(rows[i].key)) == NULL) != rows[i].allowed)
			fail_msg("\"%s\" is %s", rows[i].key, rows[i].allowed ? "refused" : "allowed");
	assert_non_null(label_key_fault("a\0b", 3));
}

static void
a_value_is_a_word_or_nothing(void **state)
{
	(void)state;
	assert_null(label_value_fault("", 0));
	assert_null(label_value_fault("v1.2_x-Y", 8));
	assert_null(label_value_fault(X63, 63));
	assert_non_null(label_value_fault(X63 "a", 64));
	assert_non_null(label_value_fault("-a", 2));
	assert_non_null(label_value_fault("a/b", 3));
	assert_non_null(label_value_fault("a\0b", 3));
}

static void
one_set_of_labels_has_one_spelling(void **state)
{
	static const struct {
		const char *text, *fault;
	} rows[] = {
		{"", NULL},
		{"app=web", NULL},
		{"app=", NULL},
		{"app=web,team=ml", NULL},
		{"a=1,a-b=2,a.b=3,a/b=4", NULL},
		{"app", "has a label without ="},
		{"app=web,", "ends in a comma"},
		{",app=web", "has a label without ="},
		{"team=ml,app=web", "has labels that are not in the order of their keys, or one of them twice"},
		{"app=web,app=web", "has labels that are not in the order of their keys, or one of them twice"},
		{"ab=1,a=2", "has labels that are not in the order of their keys, or one of them twice"},
		{"app=a=b", "must be letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"},
		{"=web", "must be letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"},
		{"a=,b=,c=,d=,e=,f=,g=,h=,i=,j=,k=,l=,m=,n=,o=,p=", NULL},
		{"a=,b=,c=,d=,e=,f=,g=,h=,i=,j=,k=,l=,m=,n=,o=,p=,q=", "has more than 16 labels"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const char *fault = labels_fault(rows[i].text);

		if ((fault == NULL) != (rows[i].fault == NULL) || (fault && strcmp(fault, rows[i].fault) != 0))
			fail_msg("\"%s\": %s", rows[i].text, fault ? fault : "allowed");
	}
}

static void
labels_put_in_any_order_come_out_in_one(void **state)
{
	struct labels_set s = {0};
	owned(mem) char *none = labels_join(&s);

	(void)state;
	assert_string_equal(none, "");
	assert_true(labels_put(&s, "team", "ml"));
	assert_true(labels_put(&s, "app", "web"));
	assert_true(labels_put(&s, "tea", ""));
	assert_true(labels_put(&s, "team", "ops"));
	owned(mem) char *text = labels_join(&s);
	assert_string_equal(text, "app=web,tea=,team=ops");
	assert_null(labels_fault(text));
}

static void
the_largest_set_fits_and_one_more_is_refused(void **state)
{
	char keys[LABEL_MAX_COUNT][LABEL_MAX_KEY + 1];
	struct labels_set s = {0};

	(void)state;
	for (size_t i = 0; i < LABEL_MAX_COUNT; i++) {
		memset(keys[i], 'a', LABEL_MAX_KEY);
		keys[i][LABEL_MAX_PREFIX] = '/';
		keys[i][LABEL_MAX_KEY - 1] = (char)('p' - (char)i);
		keys[i][LABEL_MAX_KEY] = '\0';
		assert_true(labels_put(&s, keys[i], X63));
	}
	assert_false(labels_put(&s, "b", ""));
	assert_true(labels_put(&s, keys[3], X63));
	owned(mem) char *text = labels_join(&s);
	assert_int_equal(strlen(text), LABELS_MAX_TEXT);
	assert_null(labels_fault(text));
}

static void
a_label_is_found_by_its_whole_key(void **state)
{
	const char *text = "app=web,example.com/team=ml,team=";
	struct label l;

	(void)state;
	assert_true(labels_find(text, "example.com/team", 16, &l));
	assert_int_equal(l.value_len, 2);
	assert_memory_equal(l.value, "ml", 2);
	assert_true(labels_find(text, "team", 4, &l));
	assert_int_equal(l.value_len, 0);
	assert_false(labels_find(text, "tea", 3, &l));
	assert_false(labels_find(text, "web", 3, &l));
	assert_false(labels_find("", "team", 4, &l));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_key_is_a_name_with_or_without_a_domain),
		cmocka_unit_test(a_value_is_a_word_or_nothing),
		cmocka_unit_test(one_set_of_labels_has_one_spelling),
		cmocka_unit_test(labels_put_in_any_order_come_out_in_one),
		cmocka_unit_test(the_largest_set_fits_and_one_more_is_refused),
		cmocka_unit_test(a_label_is_found_by_its_whole_key),
	};

	return cmocka_run_group_tests_name("labels", tests, NULL, NULL);
}
