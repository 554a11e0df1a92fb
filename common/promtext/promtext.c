/* common/promtext/promtext.c - Prometheus text format and OpenMetrics.
 *
 * A scrape of thousands of series is mostly copying: runs of clean bytes go out by memcpy, and numbers without printf
 * (promtext_number.c). */
#include "common/promtext/promtext.h"

#include <string.h>
#include <strings.h>

#include "common/base/text.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
static const char total[] = "_total";
#define TOTAL_LEN (sizeof(total) - 1)

void
prom_init(struct prom *p, struct buf *out, enum prom_format format)
{
	*p = (struct prom){.out = out, .format = format};
}

static bool
name_is_sound(const char *name, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		char c = name[i];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (i > 0 && c >= '0' && c <= '9')))
			return false;
	}
	return len > 0;
}

/* ASCII that a label cannot take as it is, and the end of the string. */
static const bool special[128] = {['\0'] = true, ['\n'] = true, ['"'] = true, ['\\'] = true};

/* How many bytes at s need no escaping. */
static size_t
clean_run(const char *s)
{
	const unsigned char *p = (const unsigned char *)s;

	while (*p < 0x80 && !special[*p])
		p++;
	return (size_t)((const char *)p - s);
}

/* The quote is escaped everywhere but in the HELP of the Prometheus text format, where a backslash before it would stay. */
static void
add_escaped(struct buf *out, const char *s, bool quotes)
{
	for (;;) {
		size_t run = clean_run(s);
		uint32_t code;

		buf_add(out, s, run);
		s += run;
		if (*s == '\0')
			return;
		if (*s == '\n') {
			buf_add(out, "\\n", 2);
			s++;
		} else if (*s == '"' || *s == '\\') {
			if (quotes || *s == '\\')
				buf_char(out, '\\');
			buf_char(out, *s++);
		} else {
			size_t len = utf8_next(s, strnlen(s, 4), &code);

			if (len)
				buf_add(out, s, len);
			else
				buf_add(out, replacement, sizeof(replacement) - 1);
			s += len ? len : 1;
		}
	}
}

void
prom_add_unit(struct buf *out, const char *name, size_t len)
{
	static const char *const units[] = {"bytes", "celsius", "hertz", "joules", "ratio", "seconds", "watts"};

	for (size_t i = 0; i < ARRAY_LEN(units); i++) {
		size_t n = strlen(units[i]);

		if (len <= n || name[len - n - 1] != '_' || memcmp(name + len - n, units[i], n) != 0)
			continue;
		buf_str(out, "# UNIT ");
		buf_add(out, name, len);
		buf_char(out, ' ');
		buf_str(out, units[i]);
		buf_char(out, '\n');
	}
}

void
prom_family(struct prom *p, const char *name, enum prom_type type, const char *help)
{
	size_t len = strlen(name);
	bool has_total = len > TOTAL_LEN && strcmp(name + len - TOTAL_LEN, total) == 0;
	size_t shown = p->format == PROM_OPENMETRICS && has_total ? len - TOTAL_LEN : len;

	ASSERT(name_is_sound(name, len));
	ASSERT(has_total == (type == PROM_COUNTER));
	p->family = name;
	p->family_len = len;
	p->type = type;
	buf_str(p->out, "# HELP ");
	buf_add(p->out, name, shown);
	buf_char(p->out, ' ');
	add_escaped(p->out, help, p->format == PROM_OPENMETRICS);
	buf_str(p->out, "\n# TYPE ");
	buf_add(p->out, name, shown);
	buf_str(p->out, type == PROM_GAUGE                                      ? " gauge\n"
	                : type == PROM_HISTOGRAM                                ? " histogram\n"
	                : type == PROM_COUNTER || p->format != PROM_OPENMETRICS ? " counter\n"
	                                                                        : " unknown\n");
	if (p->format == PROM_OPENMETRICS)
		prom_add_unit(p->out, name, shown);
}

void
prom_begin(struct prom *p)
{
	ASSERT(p->family);
	buf_add(p->out, p->family, p->family_len);
	p->first_label = true;
}

void
prom_begin_part(struct prom *p, const char *part)
{
	ASSERT(p->type == PROM_HISTOGRAM);
	prom_begin(p);
	buf_str(p->out, part);
}

static void
separate(struct prom *p)
{
	buf_char(p->out, p->first_label ? '{' : ',');
	p->first_label = false;
}

/* `lead`, then name="value". Most values are clean, and go out in one piece with all around them. */
static void
add_pair(struct buf *out, char lead, const char *name, const char *value)
{
	size_t name_len = strlen(name), run = clean_run(value);
	char *to = buf_reserve(out, 1 + name_len + 2 + run + 1);

	if (!to)
		return;
	*to++ = lead;
	to = (char *)mempcpy(to, name, name_len);
	to = (char *)mempcpy(to, "=\"", 2);
	to = (char *)mempcpy(to, value, run);
	*to = '"';
	buf_commit(out, 1 + name_len + 2 + run + (value[run] == '\0'));
	if (value[run] == '\0')
		return;
	add_escaped(out, value + run, true);
	buf_char(out, '"');
}

void
prom_label(struct prom *p, const char *name, const char *value)
{
	if (!value || value[0] == '\0')
		return;
	add_pair(p->out, p->first_label ? '{' : ',', name, value);
	p->first_label = false;
}

/* Each label of a set begins with a comma; prom_labels leaves out the first. */
void
prom_set_label(struct buf *set, const char *name, const char *value)
{
	if (!value || value[0] == '\0')
		return;
	add_pair(set, ',', name, value);
}

void
prom_labels(struct prom *p, const struct prom_set *set)
{
	if (set->len == 0)
		return;
	separate(p);
	buf_add(p->out, set->text + 1, set->len - 1);
}

/* ---- samples ---- */

static void
add_number(struct buf *out, const char *text, size_t len, int64_t value, int decimals)
{
	char *to = buf_reserve(out, len + PROM_NUMBER_SIZE);

	if (!to)
		return;
	memcpy(to, text, len);
	buf_commit(out, len + prom_write_fixed(to + len, value, decimals));
}

void
prom_label_i64(struct prom *p, const char *name, int64_t value)
{
	separate(p);
	buf_str(p->out, name);
	add_number(p->out, "=\"", 2, value, 0);
	buf_char(p->out, '"');
}

void
prom_int(struct prom *p, int64_t value)
{
	prom_fixed(p, value, 0);
}

void
prom_fixed(struct prom *p, int64_t value, int decimals)
{
	const char *before = p->first_label ? " " : "} ";
	size_t len = strlen(before);

	p->number_at = p->out->len + len;
	add_number(p->out, before, len, value, decimals);
	p->number_len = p->out->len - p->number_at;
	buf_char(p->out, '\n');
}

/* Reserves room once and copies each part once. */
void
prom_sample(struct prom *p, const struct prom_set *sets, size_t count, int64_t value, int decimals)
{
	size_t n = p->family_len + 2 + PROM_NUMBER_SIZE + 1;
	char *start, *labels, *to;

	ASSERT(p->family);
	for (size_t i = 0; i < count; i++)
		n += sets[i].len;
	start = to = buf_reserve(p->out, n);
	if (!to)
		return;
	labels = to = (char *)mempcpy(to, p->family, p->family_len);
	for (size_t i = 0; i < count; i++)
		to = (char *)mempcpy(to, sets[i].text, sets[i].len);
	if (to > labels) {
		*labels = '{';
		*to++ = '}';
	}
	*to++ = ' ';
	p->number_at = p->out->len + (size_t)(to - start);
	p->number_len = prom_write_fixed(to, value, decimals);
	to += p->number_len;
	*to++ = '\n';
	buf_commit(p->out, (size_t)(to - start));
}

void
prom_end(struct prom *p)
{
	if (p->format == PROM_OPENMETRICS)
		buf_str(p->out, "# EOF\n");
}

/* ---- negotiation ---- */

const char *
prom_content_type(enum prom_format format)
{
	return format == PROM_OPENMETRICS ? PROM_OPENMETRICS_TYPE : PROM_TEXT_TYPE;
}

/* A piece of a header between start and end, without the blanks around it. */
struct piece {
	const char *at;
	size_t len;
};

/* Cuts the next piece off *rest up to `until` or the end; false when nothing is left. */
static bool
next_piece(struct piece *rest, char until, struct piece *ret)
{
	const char *stop;

	if (rest->len == 0)
		return false;
	stop = memchr(rest->at, until, rest->len);
	*ret = (struct piece){rest->at, stop ? (size_t)(stop - rest->at) : rest->len};
	rest->at += ret->len + (stop != NULL);
	rest->len -= ret->len + (stop != NULL);
	while (ret->len && (ret->at[0] == ' ' || ret->at[0] == '\t')) {
		ret->at++;
		ret->len--;
	}
	while (ret->len && (ret->at[ret->len - 1] == ' ' || ret->at[ret->len - 1] == '\t'))
		ret->len--;
	return true;
}

static bool
piece_is(struct piece p, const char *text)
{
	return p.len == strlen(text) && strncasecmp(p.at, text, p.len) == 0;
}

/* "0.75" in thousandths; what is no weight counts as 0. */
static int
parse_weight(struct piece p)
{
	int weight = 0, unit = 1000;

	for (size_t i = 0; i < p.len && unit > 0; i++) {
		if (i == 1 && p.at[i] == '.')
			continue;
		if (p.at[i] < '0' || p.at[i] > '9')
			return 0;
		weight += (p.at[i] - '0') * unit;
		unit /= 10;
	}
	return weight > 1000 ? 1000 : weight;
}

/* One "type/subtype; param=value; q=0.5": its type, its weight, and whether we can serve the version it asks for. */
static struct piece
read_range(struct piece range, int *ret_weight, bool *ret_version_ok)
{
	struct piece type = {range.at, 0}, param;

	*ret_weight = 1000;
	*ret_version_ok = true;
	(void)next_piece(&range, ';', &type);
	while (next_piece(&range, ';', &param)) {
		struct piece name = {param.at, 0}, value = name;

		(void)next_piece(&param, '=', &name);
		(void)next_piece(&param, ';', &value);
		if (piece_is(name, "q"))
			*ret_weight = parse_weight(value);
		else if (piece_is(name, "version"))
			*ret_version_ok = piece_is(value, "1.0.0") || piece_is(value, "\"1.0.0\"");
	}
	return type;
}

/* OpenMetrics only for a client that names it, with at least the weight it gives to plain text. */
enum prom_format
prom_negotiate(const char *accept_header)
{
	struct piece rest = {accept_header, accept_header ? strlen(accept_header) : 0}, range;
	int plain = 0, open = 0;

	while (next_piece(&rest, ',', &range)) {
		int weight;
		bool version_ok;
		struct piece type = read_range(range, &weight, &version_ok);

		if (piece_is(type, "application/openmetrics-text") && version_ok && weight > open)
			open = weight;
		if (piece_is(type, "text/plain") && weight > plain)
			plain = weight;
	}
	return open > 0 && open >= plain ? PROM_OPENMETRICS : PROM_TEXT;
}
