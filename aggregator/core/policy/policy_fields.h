/* aggregator/core/policy/policy_fields.h - the table of the policy file's keys. Reading, defaults, ranges, differences, rendering, freeing
 * and documentation are driven by it: a new key is a member in policy.h and a line in policy_fields.c. Rules between keys are code in
 * policy_fields.c (within one entry) and policy_check.c (across the file). For the files of this folder, and for core/simulate, whose
 * scenarios have some of the same keys. */
#ifndef TOLLGATE_POLICY_FIELDS_H
#define TOLLGATE_POLICY_FIELDS_H

#include "aggregator/core/policy/policy.h"
#include "common/conf/yaml.h"

#define POLICY_FIELD_MAX (64u << 10) /* bytes of one value as text */

enum {
	POLICY_REQUIRED = 1,   /* a missing key is an error */
	POLICY_OPERATOR = 2,   /* only an operator may set it: a tenant's administrator leaves it out, or as it is */
	POLICY_IDENTITY = 4,   /* entries with the same values of these keys are the same entry */
	POLICY_NAMED_SAME = 8, /* a missing key stands for the entry's name */
	POLICY_ALWAYS = 16,    /* rendered even when it is the default */
	POLICY_QUOTED = 32,    /* words: rendered in quotes */
	POLICY_OWN_DIFF = 64,  /* differences are written by policy_diff.c, not by the table */
	POLICY_OLD_DIFF = 128, /* differences are shown for entries that exist already, not for new ones */
	POLICY_TEXT_DIFF = 256 /* differences are shown in quotes */
};

struct policy_section;

struct policy_field {
	const char *key;
	const struct policy_type *type;
	size_t offset; /* of the value in the entry's struct */
	unsigned flags;
	const char *preset; /* the value when the key is missing, as the file would have it; NULL: none */
	int64_t min, max;   /* integers; durations in ns; decimals from 0 to max; bytes of a text; entries of a list */
	int scale;          /* ratios: decimals of one unit of the stored value */
	const char *const *words;
	const char *(*fault)(const char *text); /* names: why a value is refused; NULL: it is allowed */
	const struct policy_section *section;   /* lists: what an entry is */
	const char *help;
};

/* Where a value is read from. */
struct policy_at {
	const struct yaml_doc *doc;
	const struct yaml_node *map;
	const struct policy_section *section;
	const struct policy_field *field;
	void *entry;
};

/* The operations on the values of one type. NULL: there is nothing to do. */
struct policy_type {
	const char *title; /* for the reference of keys */
	size_t size;       /* of the value */
	void (*preset)(const struct policy_field *f, void *value);
	/* A missing key leaves the preset. */
	bool (*read)(const struct policy_at *at, struct err *err);
	/* As differences show it; "" when it is absent. */
	void (*text)(const struct policy_field *f, const void *entry, struct buf *out);
	/* As the file has it, where that is something else. */
	void (*render)(const struct policy_field *f, const void *entry, struct buf *out);
	void (*free)(const struct policy_field *f, void *entry);
};

struct policy_section {
	const char *path;  /* "tenants[].workspaces[]" */
	const char *title; /* "a tenant": what is expected, and what needs a key */
	const char *noun;  /* "tenant": before the key of a value that is refused */
	const struct policy_field *fields;
	size_t field_count;
	size_t size;        /* of the entry's struct */
	size_t line_offset; /* of its `int line`; SIZE_MAX: it has none */
	bool block;         /* rendered one key to a line, not in braces */
	/* Rules between the keys of one entry. */
	bool (*check)(const struct yaml_doc *doc, const struct yaml_node *n, void *entry, struct err *err);
};

/* The sections whose entries others ask about; the whole list is policy_sections, ended by NULL. */
extern const struct policy_section policy_file_section, policy_tenant_section, policy_workspace_section,
	policy_rule_section, policy_node_section, policy_book_section, policy_price_section, policy_discount_section,
	policy_energy_section;
extern const struct policy_section *const policy_sections[];

/* Zeroed bytes as an entry without keys. It owns nothing. */
void policy_preset(const struct policy_section *s, void *entry);
/* `entry` is zeroed bytes; what it owns after an error is the caller's to free. */
MUST_CHECK bool policy_read_entry(const struct policy_section *s, const struct yaml_doc *doc, const struct yaml_node *n,
                                  void *entry, struct err *err);
MUST_CHECK bool policy_only_keys(const struct policy_section *s, const struct yaml_doc *doc, const struct yaml_node *n,
                                 struct err *err);
void policy_free_entry(const struct policy_section *s, void *entry);
/* Whether two entries have the same values of their POLICY_IDENTITY keys, which are texts. */
bool policy_same_entry(const struct policy_section *s, const void *a, const void *b);
/* The text of a POLICY_IDENTITY key; NULL: it is absent. */
const char *policy_identity(const struct policy_field *f, const void *entry);
/* The value as text in *out. */
void policy_field_text(const struct policy_field *f, const void *entry, struct buf *out);

/* A list in an entry is a pointer and the number of entries behind it. */
struct policy_list {
	void *at;
	size_t count;
};
struct policy_list policy_list_of(const struct policy_field *f, const void *entry);

/* policy_values.c: the types. */
extern const struct policy_type policy_type_version, policy_type_text, policy_type_name, policy_type_word,
	policy_type_word_copy, policy_type_word_bool, policy_type_integer, policy_type_count, policy_type_bool,
	policy_type_duration, policy_type_time, policy_type_decimal, policy_type_ratio, policy_type_currency,
	policy_type_amounts, policy_type_resources, policy_type_budget, policy_type_sla, policy_type_auto_approve,
	policy_type_class_names, policy_type_profiles, policy_type_labels, policy_type_shared, policy_type_shared_idle,
	policy_type_platform_cost, policy_type_list, policy_type_book;

/* How much of a wrong value an error shows: not so much that the reason behind it is cut off, and whole characters. */
int policy_shown(const char *text);

/* A text of at most max bytes without control or direction characters. `preset` stands for a missing key; "" also lets the
 * value be empty, and NULL leaves *ret NULL. */
MUST_CHECK bool policy_read_text(const struct yaml_doc *doc, const struct yaml_node *map, const char *key,
                                 const char *preset, size_t max, char **ret, struct err *err);
/* limits: {cpu: 64 or 500m, memory: 512Gi, storage: 10Ti}. */
MUST_CHECK bool policy_read_resources(const struct yaml_doc *doc, const struct yaml_node *map,
                                      struct policy_resources *ret, struct err *err);
/* The priority classes that somebody may use: a list of names, at most LIMIT_CLASSES of them. An empty list allows none; *ret is NULL
 * when there is no key priority_classes, which allows all. Whether they exist is for the caller to check. */
MUST_CHECK bool policy_read_class_names(const struct yaml_doc *doc, const struct yaml_node *map,
                                        const struct yaml_node **ret, struct err *err);
/* budget: {amount: "1000.00", currency: EUR, kind: soft} {gpu_hours: 500, kind: hard} or {tokens: 5000000}; soft is the default. */
MUST_CHECK bool policy_read_budget(const struct yaml_doc *doc, const struct yaml_node *map, struct policy_budget *ret,
                                   struct err *err);
/* sla: {owed_wait: 10m, delivered: "99.5"}, at least one of the two. */
MUST_CHECK bool policy_read_sla(const struct yaml_doc *doc, const struct yaml_node *map, struct policy_sla *ret,
                                struct err *err);
/* *ret is NULL when there is no key prices. Also after an error the caller owns *ret. */
MUST_CHECK bool policy_read_book(const struct yaml_doc *doc, struct policy_book **ret, struct err *err);
/* "TEXT" in quotes. Values of the file have no control characters. */
void policy_quote(const char *text, size_t len, struct buf *out);

/* policy_check.c. Each of these is NULL for a value that is allowed, else the reason as the end of a sentence: "is longer than 63
 * characters". */
const char *policy_label_fault(const char *text);   /* names of clusters, tenants and workspaces */
const char *policy_node_fault(const char *text);    /* host names, as Kubernetes and Slurm write them */
const char *policy_ns_fault(const char *text);      /* patterns of namespaces */
const char *policy_value_fault(const char *text);   /* patterns of a label's values */
const char *policy_code_fault(const char *text);    /* sku, price version, GPU model */
const char *policy_profile_fault(const char *text); /* "3g.40gb", "1c.3g.40gb", "1g.10gb+me" */
const char *policy_uuid_fault(const char *text);    /* of a GPU, as the driver writes it */

/* Names that occur twice, rules and prices that can never be reached, nodes of unknown tenants, and amounts of one tenant that
 * contradict each other. */
MUST_CHECK bool policy_check(const struct policy *p, const char *file, struct err *err);
/* Agreement between tenants, priority classes and nodes. */
MUST_CHECK bool policy_check_whole(const struct policy *p, const char *file, struct err *err);
/* Amounts of one tenant that contradict each other. */
MUST_CHECK bool policy_check_quota(const struct policy_tenant *t, const char *file, struct err *err);
/* Prices that are for the same usage, and tenants and clusters that `p` does not have. NULL, no book, is right. */
MUST_CHECK bool policy_check_book(const struct policy_book *b, const struct policy *p, const char *file,
                                  struct err *err);

/* The entry of that name, which is its first member; `hint` is where to look first. Files keep their order, so it is nearly always
 * there. */
const void *policy_find(const void *array, size_t n, size_t size, const char *name, size_t *hint);

#endif
