/* aggregator/core/reports/focus_parts.h - between the files of FOCUS: focus.c (the rows of cost and usage), focus_price.c (their price lists), focus_invoice.c
 * (billing periods and invoices). */
#ifndef TOLLGATE_FOCUS_PARTS_H
#define TOLLGATE_FOCUS_PARTS_H

#include "aggregator/core/reports/focus.h"

#define FOCUS_CELL_MAX (16u << 10)

/* What a row is of its line: rule 4. */
enum row_part {
	PART_LINE,   /* the line itself */
	PART_UNUSED, /* of lent and undelivered time: the hours of the reservation that its owner did not use */
	PART_CREDIT, /* of lent and undelivered time: the money that is given back for them */
};
/* The parts of a line, one or two. */
size_t focus_parts_of(const struct rated_line *l, enum row_part ret[2]);

/* Which amount of a day a price is for. */
enum focus_amount {
	AMOUNT_LINE,      /* the line's quantity, of credits negative */
	AMOUNT_OWN,       /* in the unit of the tenant's own price */
	AMOUNT_PART,      /* of a part of a reservation: its quantity, of credits too */
	AMOUNT_ON_DEMAND, /* of covered use: in the unit of the same use on demand */
	AMOUNT_RESERVED,  /* of a part of a reservation: rated_day.reserved_cost; at a price of 10^-9 */
};

/* Rule 2: the price list of a row. */
struct focus_price {
	bool known; /* false: the row has no unit price, and its costs are what was billed */
	const char *sku, *gpu_model, *mig_profile, *sharing_mode, *klass;
	const char *meter_sku; /* of a price for one sku of a meter; NULL: for all */
	struct rating_unit unit;
	int64_t instance_units;
	int128 list;       /* scale PRICE_SCALE */
	int128 contracted; /* scale PRICE_SCALE + 9, of what is paid for */
	enum focus_amount priced, paid;
	bool of_contract; /* no item of the book is for all: the list price is the tenant's own */
};

struct focus_row {
	const struct focus_input *f;
	const struct rated_line *l;
	const struct rated_day *d;
	enum row_part part;
	const struct focus_price *price;
	const struct focus_period *corrected; /* NULL: it is no correction */
	const char *starts, *ends;            /* the charge period */
	const struct focus_label *const *labels;
	size_t label_count;
	const char *closed_at; /* of a line of an invoice: UTC; "" while the period is open */
};

/* The book of the line's price version; NULL: a correction of a month with another one. */
const struct rating_book *focus_book_of(const struct focus_input *f, const struct rated_line *l);
struct focus_price focus_price_of(const struct focus_input *f, const struct rated *r, const struct rated_line *l,
                                  enum row_part part);
/* In the unit of the price, scale QUANTITY_SCALE. */
int128 focus_amount_of(const struct focus_row *w, enum focus_amount amount);
/* For a unit of the list price, scale PRICE_SCALE + 9. */
int128 focus_contracted_price(const struct focus_row *w);

/* ---- cells ---- */

typedef void focus_cell(const struct focus_row *w, struct buf *out);
/* DAILY: its days differ, numbers and times; LINE: a text that all days of a line have; LINE_NUMBER: a number that they have. _JSON: a flat object. */
enum focus_column_kind { LINE, LINE_NUMBER, DAILY, LINE_JSON, DAILY_JSON };
struct focus_column {
	const char *name;
	focus_cell *cell;
	enum focus_column_kind kind;
};
/* Where cells are made. */
struct focus_texts {
	struct buf cell, plain;
};
void focus_texts_init(struct focus_texts *t);
void focus_texts_fini(struct focus_texts *t);
MUST_CHECK bool focus_write_cell(const struct focus_column *c, const struct focus_row *w, struct focus_texts *t,
                                 struct buf *out, struct err *err);

/* A decimal has a decimal point: a column of whole yen would be read as integers. */
void focus_decimal(struct buf *out, int128 value, int scale);
/* A member of a flat object, if it has a value. */
void focus_member(struct buf *out, const char **comma, const char *name, const char *value);
const char *focus_charge(const struct focus_row *w);
const char *focus_service(const struct rated_line *l);
void focus_invoice_id(const struct focus_row *w, struct buf *out);

#endif
