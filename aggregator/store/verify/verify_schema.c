/* aggregator/store/verify/verify_schema.c - the schema against this program's migrations and grants.
 *
 * Rules, in order:
 *  1. a database with another number of migrations has the schema of another version: that is reported, and nothing
 *     is compared
 *  2. every object of sql/access/expected.txt exists as described there, and there is no other
 *  3. partitions are made and dropped all the time: each matches the description of its table's partitions in
 *     expected.txt
 *  4. definitions as printed by the server are compared if expected.txt was made by the same major version of
 *     PostgreSQL; otherwise they are counted, and only the columns of the catalogue are compared
 * The expected schema is compiled into the program, so a person who changes the database cannot change it as well. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/db/migrate.h"
#include "aggregator/store/verify/verify_ledger.h"

#define NAME_SIZE 512
#define PARTS_SIZE 640
#define SEPARATOR "; "
#define NOT_THERE "not there"
#define PARTITIONS "partition" /* one line of this kind stands for any number of partitions */

/* A line of expected.txt, or a row of catalogue.sql. */
enum { KIND, NAME, VALUE, TEXT, FIELDS, PARTITION = FIELDS };
struct object {
	const char *fields[FIELDS];
	const char *restored; /* its text in a ledger restored from a backup; NULL: the same */
};

/* Cuts the next line of the text at its tabs; false: there is none. */
static bool
next_expected(char **text, struct object *ret)
{
	char *line = strsep(text, "\n");

	if (line == NULL || line[0] == '\0')
		return false;
	for (size_t i = 0; i < ARRAY_LEN(ret->fields); i++) {
		ret->fields[i] = strsep(&line, "\t");
		ASSERT(ret->fields[i] != NULL);
	}
	ret->restored = line;
	return true;
}

static int
compare_names(const struct object *e, const PGresult *r, int row)
{
	int by_kind = strcmp(e->fields[KIND], res_text(r, row, KIND));

	return by_kind != 0 ? by_kind : strcmp(e->fields[NAME], res_text(r, row, NAME));
}

static bool
has_part(const char *parts, const char *part, size_t len)
{
	for (const char *p = parts; p != NULL; p = strstr(p, SEPARATOR)) {
		p += p != parts ? strlen(SEPARATOR) : 0;
		if (strncmp(p, part, len) == 0 &&
		    (p[len] == '\0' || strncmp(p + len, SEPARATOR, strlen(SEPARATOR)) == 0))
			return true;
	}
	return false;
}

/* "owner daemon", of "owner daemon; plpgsql" and "owner owner; plpgsql". */
static void
parts_not_in(const char *parts, const char *other, char out[PARTS_SIZE])
{
	size_t used = 0;

	snprintf(out, PARTS_SIZE, "nothing else");
	for (const char *p = parts, *end; p != NULL; p = *end != '\0' ? end + strlen(SEPARATOR) : NULL) {
		end = strstr(p, SEPARATOR);
		end = end != NULL ? end : p + strlen(p);
		if (end > p && used < PARTS_SIZE && !has_part(other, p, (size_t)(end - p)))
			used += (size_t)snprintf(out + used, PARTS_SIZE - used, "%s%.*s", used > 0 ? SEPARATOR : "",
			                         (int)(end - p), p);
	}
}

static void
report_object(struct verify_node *n, const char *kind, const char *name, const char *expected, const char *found)
{
	char what[NAME_SIZE];

	snprintf(what, sizeof(what), "%s %s", kind, name);
	n->report->counts.schema_differences++;
	verify_report_text(n, "schema", NULL, INT64_MIN, what, expected, found);
}

static const char *
all_parts(const char *value, const char *text, char out[PARTS_SIZE])
{
	snprintf(out, PARTS_SIZE, "%s%s%s", value, text[0] != '\0' ? SEPARATOR : "", text);
	return out;
}

static const char *
name_of(const PGresult *r, int row)
{
	return res_text(r, row, res_text(r, row, PARTITION)[0] != '\0' ? PARTITION : NAME);
}

/* An object that is expected and exists. */
static void
compare_object(struct verify_node *n, const struct object *e, const PGresult *r, int row, bool same_server)
{
	const char *const *want = e->fields, *value = res_text(r, row, VALUE), *text = res_text(r, row, TEXT);
	bool same_value = strcmp(want[VALUE], value) == 0,
	     same_text = strcmp(want[TEXT], text) == 0 || (e->restored && strcmp(e->restored, text) == 0);
	char expected[PARTS_SIZE], found[PARTS_SIZE];

	n->report->counts.schema++;
	if (!same_server && want[TEXT][0] != '\0')
		n->report->counts.schema_texts++;
	if (same_value && (same_text || !same_server))
		return;
	if (strcmp(want[KIND], PARTITIONS) == 0) {
		report_object(n, want[KIND], name_of(r, row),
		              "the columns, constraints, triggers, owner and rights of every partition", "others");
		return;
	}
	parts_not_in(same_value ? want[TEXT] : want[VALUE], same_value ? text : value, expected);
	parts_not_in(same_value ? text : value, same_value ? want[TEXT] : want[VALUE], found);
	report_object(n, want[KIND], want[NAME], expected, found);
}

/* Rules 2 to 4, over two lists sorted alike. */
static void
compare_lists(struct verify_node *n, char *expected, const PGresult *r, bool same_server)
{
	struct object e = {0};
	bool more = next_expected(&expected, &e);
	int row = 0, rows = PQntuples(r);
	char parts[PARTS_SIZE];

	while (more || row < rows) {
		int order = !more ? 1 : row == rows ? -1 : compare_names(&e, r, row);

		if (order > 0) {
			n->report->counts.schema++;
			report_object(n, res_text(r, row, KIND), name_of(r, row), NOT_THERE,
			              all_parts(res_text(r, row, VALUE), res_text(r, row, TEXT), parts));
			row++;
			continue;
		}
		if (order < 0 && strcmp(e.fields[KIND], PARTITIONS) != 0)
			report_object(n, e.fields[KIND], e.fields[NAME],
			              all_parts(e.fields[VALUE], e.fields[TEXT], parts), NOT_THERE);
		for (; row < rows && compare_names(&e, r, row) == 0; row++)
			if (strcmp(e.fields[KIND], "server") != 0)
				compare_object(n, &e, r, row, same_server);
		more = next_expected(&expected, &e);
	}
}

/* Rule 1. */
static bool
same_version(struct verify_node *n, const PGresult *r)
{
	char expected[64], found[64];

	if (res_i64(r, 0, 0) == (int64_t)migration_file_count)
		return true;
	snprintf(expected, sizeof(expected), "%zu migrations, as this program has", migration_file_count);
	snprintf(found, sizeof(found), "%s: the schema of another version", res_text(r, 0, 0));
	report_object(n, "schema", "tollgate", expected, found);
	return false;
}

bool
verify_schema(struct verify_node *n, struct err *err)
{
	/* The server prints current definitions, not those of the snapshot: the lock prevents dropping partitions
	 * meanwhile. */
	static const char settings[] =
		"SET LOCAL search_path = pg_catalog; SET LOCAL IntervalStyle = postgres; SET LOCAL quote_all_identifiers = off; "
		"SET LOCAL extra_float_digits = 1; LOCK TABLE ONLY tollgate.usage_interval IN ACCESS SHARE MODE";
	static const char version[] =
		"SELECT count(*), format(E'server\\tPostgreSQL\\t%s\\t', current_setting('server_version_num')::integer / 10000) FROM tollgate.schema_migration";
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *of = NULL, *r = NULL;
	owned(mem) char *expected = mem_strdup(access_expected);

	if (!db_tx_begin_read_long(&tx, n->db, DB_WORK_VERIFY, err) || !db_script(n->db, settings, err) ||
	    !db_run_text(n->db, version, NULL, &of, err))
		return false;
	if (same_version(n, of)) {
		if (!db_run_text(n->db, access_catalogue, NULL, &r, err))
			return false;
		compare_lists(n, expected, r, strstr(access_expected, res_text(of, 0, 1)) != NULL);
	}
	return db_tx_commit(&tx, err);
}
