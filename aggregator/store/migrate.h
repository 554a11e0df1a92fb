/* aggregator/store/migrate.h - the migrations that this program carries, made from sql/ by the Makefile. */
#ifndef TOLLGATE_STORE_MIGRATE_H
#define TOLLGATE_STORE_MIGRATE_H

#include <stddef.h>

struct migration_file {
	int number;       /* 1, 2, 3, ... without a gap */
	const char *name; /* "0001_directory.sql" */
	const char *text; /* NUL-terminated */
	size_t len;
};
extern const struct migration_file migration_files[];
extern const size_t migration_file_count;

#endif
