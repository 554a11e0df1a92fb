/* common/promtext/promtext.h - Prometheus text format and OpenMetrics from one description of the families.
 * Numbers are written as integers or fixed-point decimals, without printf. */
#ifndef TOLLGATE_PROMTEXT_H
#define TOLLGATE_PROMTEXT_H

#include "common/base/buf.h"

/* A plain counter has a foreign name without _total. OpenMetrics does not allow that: its type is unknown there. */
enum prom_type { PROM_GAUGE, PROM_COUNTER, PROM_PLAIN_COUNTER, PROM_HISTOGRAM };
enum prom_format { PROM_TEXT, PROM_OPENMETRICS };

struct prom {
	struct buf *out;
	enum prom_format format;
	const char *family; /* the one being written */
	size_t family_len;
	enum prom_type type;
	bool first_label;
	size_t number_at, number_len; /* where in `out` the last sample's number is */
};

void prom_init(struct prom *p, struct buf *out, enum prom_format format);
/* Starts a family: HELP, TYPE (and in OpenMetrics UNIT, and a counter's name without _total). Counters are named with _total, gauges
 * without. The name must outlive the family's samples, which all follow here. */
void prom_family(struct prom *p, const char *name, enum prom_type type, const char *help);
/* The UNIT line of OpenMetrics, when the name (of a counter: without _total) ends in one. */
void prom_add_unit(struct buf *out, const char *name, size_t len);
/* A sample: prom_begin, any number of prom_label, one of prom_int / prom_fixed. Label values are escaped; bytes that are
 * not UTF-8 become U+FFFD. An empty value (or NULL) leaves the label out. */
void prom_begin(struct prom *p);
/* A sample of a histogram: "_bucket" (whose label le comes last), "_sum" or "_count". */
void prom_begin_part(struct prom *p, const char *part);
void prom_label(struct prom *p, const char *name, const char *value);
void prom_label_i64(struct prom *p, const char *name, int64_t value);
void prom_int(struct prom *p, int64_t value);
void prom_fixed(struct prom *p, int64_t value, int decimals); /* value / 10^decimals, all of them written; 0 to 18 */
void prom_end(struct prom *p);                                /* "# EOF" in OpenMetrics */

/* Labels that many samples share, rendered once: prom_set_label fills a buffer, whose bytes are a set (or several, one after
 * the other). prom_labels copies one into a sample. */
struct prom_set {
	const char *text;
	size_t len;
};
#define PROM_SET(literal)                    \
	{                                    \
		literal, sizeof(literal) - 1 \
	}
void prom_set_label(struct buf *set, const char *name, const char *value);
void prom_labels(struct prom *p, const struct prom_set *set);
/* Writes a whole sample whose labels are all in sets; the fast way for thousands of samples. */
void prom_sample(struct prom *p, const struct prom_set *sets, size_t count, int64_t value, int decimals);
/* Writes only the number, without a terminating zero, into PROM_NUMBER_SIZE bytes; returns its length. */
#define PROM_NUMBER_SIZE 32u /* sign, 20 digits and a point fit */
size_t prom_write_fixed(char *to, int64_t value, int decimals);
/* Overwrites a number of the same decimals; false, and nothing is changed, when the new one has another length. The eight bytes before
 * it must be readable. */
bool prom_overwrite_fixed(char *at, size_t len, int64_t old, int64_t value, int decimals);

#define PROM_TEXT_TYPE "text/plain; version=0.0.4; charset=utf-8"
#define PROM_OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"
enum prom_format prom_negotiate(const char *accept_header); /* NULL allowed */
const char *prom_content_type(enum prom_format format);

#endif
