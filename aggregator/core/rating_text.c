/* aggregator/core/rating_text.c - sku, description and id of a rated line. */
#include "aggregator/core/rating_text.h"

#include <string.h>

#include "common/digest.h"

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

char *
rating_description(const struct rated_line *l)
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

	return mem_printf("%s use of %s%s%s%s%s", words_for(classes, ARRAY_LEN(classes), l->klass, l->klass),
	                  l->gpu_model, l->mig_profile[0] != '\0' ? " MIG " : "", l->mig_profile,
	                  words_for(sharing, ARRAY_LEN(sharing), l->sharing_mode, ""),
	                  l->priced ? "" : " (no price in force)");
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
rating_line_id(const char *period, int64_t instance_units, struct rated_line *l, struct err *err)
{
	char units[DECIMAL_TEXT_SIZE], price[DECIMAL_TEXT_SIZE] = "";
	uint8_t digest[SHA256_SIZE];
	in_place(buf) struct buf key;

	decimal_format(instance_units, 0, 0, units);
	if (l->priced)
		decimal_format(l->unit_price, PRICE_SCALE, 0, price);
	const char *const columns[] = {
		"tollgate-line-1", /* a later change of this list changes this word */
		period,
		l->cluster,
		l->tenant,
		l->workspace,
		l->charge_type,
		l->category,
		l->sku,
		l->gpu_model,
		l->mig_profile,
		units,
		l->sharing_mode,
		l->klass,
		l->price_version,
		l->unit,
		price,
		l->currency,
	};
	buf_init(&key, LINE_KEY_MAX);
	for (size_t i = 0; i < ARRAY_LEN(columns); i++)
		add_column(&key, columns[i]);
	if (!buf_ok(&key, "the key columns of one line", err))
		return false;
	sha256(key.data, key.len, digest);
	hex_encode(digest, (sizeof(l->line_id) - 1) / 2, l->line_id);
	return true;
}
