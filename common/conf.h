/* common/conf.h - the options of a program, from one table.
 *
 * The table gives name, type, default, range, unit and text of each option. The command line, the environment, the
 * configuration file, --help, the sample configuration and the man page all come from it. Precedence: flag, then
 * TOLLGATE_<NAME> in the environment, then the file named by --config, then the default. A secret is never an option:
 * an option may name the file that holds it. */
#ifndef TOLLGATE_COMMON_CONF_H
#define TOLLGATE_COMMON_CONF_H

#include "common/buf.h"

enum conf_type {
	CONF_STRING,   /* char * */
	CONF_PATH,     /* char *: like STRING, absolute or relative to the working directory */
	CONF_INT,      /* int64_t, min..max */
	CONF_DURATION, /* int64_t nanoseconds, written "60s", min..max */
	CONF_BYTES,    /* int64_t, written "512MiB", min..max */
	CONF_BOOL,     /* bool */
	CONF_ENUM,     /* int: index into choices */
};

struct conf_option {
	const char *name;      /* "sample-interval"; sample_interval in the file, TOLLGATE_SAMPLE_INTERVAL in the environment */
	enum conf_type type;
	size_t offset;         /* of the field in the program's struct */
	const char *preset;    /* the default as text; NULL: none (STRING/PATH stay NULL) */
	int64_t min, max;      /* INT, DURATION, BYTES */
	const char *const *choices; /* ENUM, NULL-ended */
	const char *unit;      /* shown in help: "bytes", "" */
	const char *help;      /* one sentence, no full stop at the end */
};

struct conf_program {
	const char *name;      /* "tollgate-exporter" */
	const char *summary;
	const struct conf_option *options;
	size_t count;
};

enum conf_action { CONF_RUN, CONF_EXIT_OK }; /* EXIT_OK: --help, --version or --print-config wrote its text to ret_text */

/* Fills `into` (zeroed by the caller). Recognises beside the table: --config FILE, -n/--check (sets *ret_check),
 * --help, --version, --print-config (a commented sample file with the defaults). Leftover words are an error.
 * Strings are owned by `into` and freed by conf_free. Values are checked against their range with a message naming
 * the option, the value, the limit and where it was set (file:line, environment or command line). */
MUST_CHECK bool conf_load(const struct conf_program *p, int argc, char *const *argv, void *into, enum conf_action *ret_action,
                          bool *ret_check, struct buf *ret_text, struct err *err);
void conf_free(const struct conf_program *p, void *into);

/* The pieces, for tests and the command line program. */
void conf_help(const struct conf_program *p, struct buf *out);
void conf_sample(const struct conf_program *p, struct buf *out);
MUST_CHECK bool bytes_parse(const char *text, int64_t *ret_bytes, struct err *err); /* "1GiB", "500MB", "4096" */

/* Splits "127.0.0.1:9401" or "[::1]:9401"; refuses a missing or wrong port. */
MUST_CHECK bool addr_parse(const char *text, char *ret_host, size_t host_size, uint16_t *ret_port, struct err *err);

#endif
