/* aggregator/store/db/migrate.h - the migrations and the rights that this program carries, made from sql/ by the Makefile. */
#ifndef TOLLGATE_MIGRATE_H
#define TOLLGATE_MIGRATE_H

#include <stddef.h>

#include "aggregator/store/store.h"

struct migration_file {
	int number;       /* 1, 2, 3, ... without a gap */
	const char *name; /* "0001_directory.sql" */
	const char *text; /* NUL-terminated */
	size_t len;
};
extern const struct migration_file migration_files[];
extern const size_t migration_file_count;

/* The files of sql/access/: owner.sql and grants.sql run after the migrations, every time; catalogue.sql reads the schema from the catalogue, and
 * expected.txt is its result in a fresh ledger. NUL-terminated. */
extern const char access_owner[], access_grants[], access_catalogue[], access_expected[];

/* --- rights.c --- */

#define ROLE_NAME_SIZE 64 /* PostgreSQL's own limit, with the end */
/* The role that migrates, and the roles that get rights. */
struct migrator {
	char owner
		[ROLE_NAME_SIZE]; /* "": the connected login is the owner; else a superuser is connected and acts as this role */
	const char *daemon_role, *rollup_role;
};
/* Creates missing roles, where the login may; a superuser hands the schema over to the owner's role. The caller holds the migration lock. */
MUST_CHECK bool rights_prepare(struct db *db, const struct ledger_options *o, struct migrator *ret, struct err *err);
/* The rest of the transaction acts as the owner. */
MUST_CHECK bool rights_act_as_owner(struct db *db, const struct migrator *m, struct err *err);
/* Runs sql/access/grants.sql in its own transaction. */
MUST_CHECK bool rights_grant(struct db *db, const struct migrator *m, struct err *err);

#endif
