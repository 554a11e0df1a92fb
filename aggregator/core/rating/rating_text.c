/* aggregator/core/rating/rating_text.c - sku, description and id of a rated line. */
#include "aggregator/core/rating/rating.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/digest.h"

char *
rating_sku(const char *gpu_model, const char *mig_profile)
{
	char *sku = mig_profile[0] == '\0' ? mem_strdup(gpu_model) : mem_printf("%s-mig-%s", gpu_model, mig_profile);

	for (char *c = sku; *c != '\0'; c++)
		if (*c >= 'A' && *c <= 'Z')
			*c = (char)(*c - 'A' + 'a');
	return sku;
}

struct wording {
	const char *value, *words;
};

static const char *
words_for(const struct wording *table, size_t n, const char *value, const char *otherwise)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(table[i].value, value) == 0)
			return table[i].words;
	return otherwise;
}

/* By kind: the word on a line, the class where the kind decides it, and the description around the device. */
static const struct {
	const char *charge_type, *klass, *before, *after;
} kinds[CHARGE_KINDS] = {
	[CHARGE_USAGE] = {"usage", NULL, " use of ", ""},
	[CHARGE_COVERED] = {"covered", "reserved", "Use of ", ", covered by the reservation"},
	[CHARGE_COMMITMENT] = {"commitment", "reserved", "Reservation of ", ""},
	[CHARGE_UNUSED] = {"covered", "reserved", "Reserved ", ", neither used nor lent"},
	[CHARGE_UNDELIVERED] = {"credit", "reserved", "Reserved ", ", not delivered"},
	[CHARGE_LENT] = {"credit", "borrowed", "Reserved ", ", lent to "},
	[CHARGE_DEDICATED] = {"usage", "dedicated", "Own ", ", held by nobody"},
	[CHARGE_SHARED] = {"usage", "dedicated", "Share of ", " on shared nodes, held by nobody"},
	[CHARGE_METER] = {"usage", "", "", ""},
	[CHARGE_ADJUSTMENT] = {"adjustment", "", "", ""},
	[CHARGE_ENERGY] = {"usage", "", "Energy", ""},
};

const char *
rating_class(const struct usage_day *d)
{
	return kinds[d->kind].klass ? kinds[d->kind].klass : d->klass;
}

const char *
rating_charge_type(const struct usage_day *d)
{
	return d->amount < 0 ? "credit" : kinds[d->kind].charge_type;
}

/* "Reserved H100-80GB, lent to ": the words of a GPU line before a borrower's name. */
static char *
gpu_words(const struct rated_line *l)
{
	static const struct wording classes[] = {
		{"on-demand", "On-demand"},
		{"borrowed", "Borrowed"},
		{"reserved", "Reserved"},
		{"dedicated", "Dedicated"},
	};
	static const struct wording sharing[] = {
		/* exclusive needs no word, and of MIG the profile says it */
		{"timeslice", ", time-sliced"},
		{"mps", ", shared by MPS"},
		{"plain", ", shared"},
	};

	return mem_printf("%s%s%s%s%s%s%s",
	                  l->kind == CHARGE_USAGE ? words_for(classes, ARRAY_LEN(classes), l->klass, l->klass) : "",
	                  kinds[l->kind].before, l->gpu_model, l->mig_profile[0] != '\0' ? " MIG " : "", l->mig_profile,
	                  words_for(sharing, ARRAY_LEN(sharing), l->sharing_mode, ""), kinds[l->kind].after);
}

char *
rating_description(const struct rated_line *l, const struct usage_day *d)
{
	owned(mem) char *gpu = NULL;
	const char *unpriced = l->priced ? "" : " (no price in force)";
	const char *provisional = l->provisional ? " (provisional: an hour is still open)" : "";

	if (l->kind == CHARGE_METER)
		return mem_printf("%s, %s%s", l->sku, d->meter, unpriced);
	if (l->kind == CHARGE_ADJUSTMENT && d->meter != NULL)
		return mem_printf("Reversal of %s: %s", d->meter, d->reason);
	if (l->kind == CHARGE_ADJUSTMENT)
		return mem_printf("%s: %s", d->amount < 0 ? "Credit" : "One-off charge", d->reason);
	gpu = gpu_words(l);
	return mem_printf("%s%s%s%s", gpu, l->kind == CHARGE_LENT ? l->counterparty : "", unpriced, provisional);
}

char *
rating_correction_description(const char *month, const char *of)
{
	return mem_printf("correction of %.7s: %s", month, of);
}

#define GPU_HOUR "gpu-hour"
#define INSTANCE_HOUR "instance-hour"
#define OF " of "

static const char *
one_unit(const struct rating_unit *unit)
{
	return unit->base != NULL ? unit->base : unit->per_instance ? INSTANCE_HOUR : GPU_HOUR;
}

/* Units of data have no plural. */
static bool
has_plural(const char *base)
{
	return strcmp(base, "GB") != 0;
}

char *
rating_unit_text(const struct rating_unit *unit)
{
	const char *one = one_unit(unit);

	if (unit->profile != NULL)
		return mem_printf("%s" OF "%s", one, unit->profile);
	if (unit->per > 1)
		return mem_printf("%" PRId64 " %s%s", unit->per, one, has_plural(one) ? "s" : "");
	return mem_strdup(one);
}

char *
rating_own_unit_text(const struct rating_unit *unit)
{
	if (unit->base != NULL)
		return rating_unit_text(unit);
	return mem_printf("%s %s", one_unit(unit), unit->basis_used ? "used" : "held");
}

struct rating_unit
rating_unit_read(enum charge_kind kind, const char *text)
{
	const size_t digits = strspn(text, "0123456789");
	const bool many = digits > 0 && text[digits] == ' ';
	struct rating_unit u = {.per = 1};

	if (kind == CHARGE_METER || kind == CHARGE_ENERGY || kind == CHARGE_ADJUSTMENT) {
		char *base = mem_strdup(many ? text + digits + 1 : text);
		const size_t n = strlen(base);

		if (many)
			u.per = strtoll(text, NULL, 10);
		if (many && n > 0 && has_plural(base) && base[n - 1] == 's')
			base[n - 1] = '\0';
		u.base = base;
		return u;
	}
	u.per_instance = strncmp(text, INSTANCE_HOUR, strlen(INSTANCE_HOUR)) == 0;
	if (u.per_instance && strncmp(text + strlen(INSTANCE_HOUR), OF, strlen(OF)) == 0)
		u.profile = mem_strdup(text + strlen(INSTANCE_HOUR OF));
	else
		u.basis_used = strcmp(text, INSTANCE_HOUR " used") == 0 || strcmp(text, GPU_HOUR " used") == 0;
	return u;
}

void
rating_unit_fini(struct rating_unit *u)
{
	union {
		const char *text;
		void *memory;
	} base = {.text = u->base}, profile = {.text = u->profile};

	mem_free(base.memory);
	mem_free(profile.memory);
	u->base = u->profile = NULL;
}

void
rating_describe_own(struct rated_line *l)
{
	char quantity[DECIMAL_TEXT_SIZE], price[DECIMAL_TEXT_SIZE];
	owned(mem) char *unit = rating_own_unit_text(&l->own_unit);
	char *more = mem_printf("%s, own price: %s x %s per %s", l->description,
	                        decimal_format(l->own_quantity, QUANTITY_SCALE, 0, quantity),
	                        decimal_format(l->own_price, PRICE_SCALE, l->currency_scale, price), unit);

	mem_free(l->description);
	l->description = more;
}

/* ---- for a tenant's own document ---- */

static bool
names_borrower(const struct rated_line *l)
{
	return l->kind == CHARGE_LENT && l->counterparty != NULL && l->counterparty[0] != '\0';
}

/* The line's own columns say which words stand before the borrower's name; the words after it (no price, an own price) stay. A line of an older
 * version with other words gets those of today. */
static char *
without_borrower(const struct rated_line *l)
{
	owned(mem) char *gpu = gpu_words(l);
	owned(mem) char *before =
		l->correction_of != NULL ? rating_correction_description(l->period_start, gpu) : mem_strdup(gpu);
	owned(mem) char *named = mem_printf("%s%s", before, l->counterparty);
	const size_t n = strlen(named);

	return mem_printf("%sanother tenant%s", before,
	                  strncmp(l->description, named, n) == 0 ? l->description + n : "");
}

void
tenant_lines_make(struct tenant_lines *t, const struct rated *r)
{
	t->rated = (struct rated){.lines = mem_array(r->count, sizeof(*r->lines)), .count = r->count};
	t->owned = mem_array(r->count, sizeof(*t->owned));
	for (size_t i = 0; i < r->count; i++) {
		t->rated.lines[i] = r->lines[i];
		if (!names_borrower(&r->lines[i]))
			continue;
		t->rated.lines[i].description = without_borrower(&r->lines[i]);
		t->rated.lines[i].counterparty = "";
		t->owned[i] = true;
	}
}

void
tenant_lines_fini(struct tenant_lines *t)
{
	for (size_t i = 0; i < t->rated.count; i++)
		if (t->owned[i])
			mem_free(t->rated.lines[i].description);
	mem_free(t->owned);
	mem_free(t->rated.lines);
	*t = (struct tenant_lines){0};
}

/* "LENGTH:TEXT," - no text can be mistaken for its neighbour's, whatever characters it has. */
static void
add_column(struct buf *b, const char *text)
{
	buf_u64(b, strlen(text));
	buf_char(b, ':');
	buf_str(b, text);
	buf_char(b, ',');
}

#define LINE_KEY_MAX (1u << 16) /* names are at most some hundred bytes each */

bool
rating_line_id(const char *period, const struct usage_day *d, bool reserved, bool with_cost_center,
               struct rated_line *l, struct err *err)
{
	char units[2 * DECIMAL_TEXT_SIZE], price[DECIMAL_TEXT_SIZE] = "";
	uint8_t digest[SHA256_SIZE];
	in_place(buf) struct buf key = {0};
	owned(mem) char *unit = rating_unit_text(&l->unit);

	/* two commitments of instances may cover one kind of device */
	snprintf(units, sizeof(units), "%" PRId64, d->instance_units);
	if (reserved && d->reserved_units > 0 && d->reserved_units != d->instance_units)
		snprintf(units, sizeof(units), "%" PRId64 "/%" PRId64, d->instance_units, d->reserved_units);
	if (l->priced)
		decimal_format(l->unit_price, PRICE_SCALE, 0, price);
	const char *const columns[] = {
		"tollgate-line-2", /* a later change of this list changes this word */
		period,
		l->cluster,
		l->tenant,
		l->workspace,
		l->charge_type,
		kinds[l->kind].after, /* two kinds of one charge type are two lines */
		l->counterparty,
		l->category,
		d->kind == CHARGE_METER ? d->meter : "",
		l->sku,
		l->gpu_model,
		l->mig_profile,
		units,
		l->sharing_mode,
		l->klass,
		l->price_version,
		unit,
		price,
		l->currency,
	};
	buf_init(&key, LINE_KEY_MAX);
	for (size_t i = 0; i < ARRAY_LEN(columns); i++)
		add_column(&key, columns[i]);
	if (with_cost_center)
		add_column(&key, l->cost_center);
	if (!buf_ok(&key, "the key columns of one line", err))
		return false;
	sha256(key.data, key.len, digest);
	hex_encode(digest, (sizeof(l->line_id) - 1) / 2, l->line_id);
	return true;
}
