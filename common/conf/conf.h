/* common/conf/conf.h - the options of a program, from one table.
 *
 * The table gives name, type, default, range, unit and text of each option. The command line, the environment, the
 * configuration file, --help, and the sample configuration all come from it. Precedence: flag, then TOLLGATE_<NAME> in the
 * environment, then the file named by --config, then the default; a wrong value is refused also where another one overrides
 * it. A secret is never an option: an option may name the file that holds it. */
#ifndef TOLLGATE_CONF_H
#define TOLLGATE_CONF_H

#include "common/base/buf.h"

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
	const char
		*name; /* "sample-interval"; sample_interval in the file, TOLLGATE_SAMPLE_INTERVAL in the environment */
	enum conf_type type;
	size_t offset;              /* of the field in the program's struct */
	const char *preset;         /* the default as text; NULL: none (STRING and PATH stay NULL, others 0) */
	int64_t min, max;           /* INT, DURATION, BYTES */
	const char *const *choices; /* ENUM, NULL-ended */
	const char *unit;           /* shown in help: "bytes", ""; NULL is "" */
	const char *help;           /* one sentence, no full stop at the end */
};

struct conf_program {
	const char *name; /* "tollgate-exporter" */
	const char *summary;
	const struct conf_option *options;
	size_t count;
	/* for the manual page; NULL: none */
	const char *details;
	const char *const *see_also; /* NULL-ended: "tollgate(1)" */
};

enum conf_action {
	CONF_RUN,
	CONF_EXIT_OK
}; /* EXIT_OK: --help, --version, --print-config or --print-man wrote its text to ret_text */

/* Fills `into` (zeroed by the caller). argv[0] is the program. Recognises beside the table: --config FILE, -n/--check (sets
 * *ret_check), --help, --version, --print-config (a commented sample file with the defaults), --print-man (the manual page, for the build). A flag is --name=value or
 * --name value; a BOOL is --name or --no-name. Leftover words are an error. Strings are owned by `into` and freed by
 * conf_free, after a failure too. An empty STRING or PATH means none where there is no default, and is refused where there is.
 * Values are checked against their range with a message naming the option, the value, the limit and where it was set
 * (file:line, environment or command line). */
MUST_CHECK bool conf_load(const struct conf_program *p, int argc, char *const *argv, void *into,
                          enum conf_action *ret_action, bool *ret_check, struct buf *ret_text, struct err *err);
void conf_free(const struct conf_program *p, void *into);

/* How a daemon ends. */
enum { CONF_EXIT_STOPPED = 0, CONF_EXIT_FAILED = 1, CONF_EXIT_USAGE = 2 };

/* All of a daemon's main(): options from everywhere, the texts that were asked for on stdout, and the run. An error is written
 * to stderr as "PROGRAM: sentence". Returns the exit code. */
struct conf_daemon {
	const struct conf_program *program;
	void *options;                                 /* zeroed */
	bool (*check)(void *options, struct err *err); /* checks that the table cannot express */
	bool (*run)(const void *options, struct err *err);
};
int conf_main(const struct conf_daemon *d, int argc, char *const *argv);

/* The pieces, for tests and the command line program. */
MUST_CHECK bool conf_set_defaults(const struct conf_program *p, void *into, struct err *err);
/* Applies a configuration file whose text is in memory; `file` names it in errors. */
MUST_CHECK bool conf_load_text(const struct conf_program *p, const char *file, const char *text, size_t len, void *into,
                               struct err *err);
void conf_help(const struct conf_program *p, struct buf *out);
void conf_sample(const struct conf_program *p, struct buf *out);
void conf_man(const struct conf_program *p, struct buf *out); /* roff, section 8 */

MUST_CHECK bool bytes_parse(const char *text, int64_t *ret_bytes, struct err *err); /* "1GiB", "500MB", "4096" */
#define BYTES_TEXT_SIZE 32
/* In the largest binary unit that divides it: 1073741824 is "1GiB", 1500 is "1500". */
const char *bytes_format(int64_t bytes, char out[BYTES_TEXT_SIZE]);

/* Splits "127.0.0.1:9401" or "[::1]:9401"; refuses a missing or wrong port. Port 0 asks the system for a free one. */
MUST_CHECK bool addr_parse(const char *text, char *ret_host, size_t host_size, uint16_t *ret_port, struct err *err);

#endif
