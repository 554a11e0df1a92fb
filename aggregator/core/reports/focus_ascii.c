/* aggregator/core/reports/focus_ascii.c - UTF-8 as ASCII. */
#include "aggregator/core/reports/focus.h"

#include <string.h>

bool
is_ascii(const char *text)
{
	for (; *text != '\0'; text++)
		if ((unsigned char)*text >= 0x80)
			return false;
	return true;
}

/* The character at text and its length; 0 for bytes that are none. */
static uint32_t
take_character(const char *text, size_t *ret_len)
{
	const unsigned char *b = (const unsigned char *)text;
	size_t len = b[0] < 0x80                   ? 1
	             : b[0] >= 0xc2 && b[0] < 0xe0 ? 2
	             : b[0] >= 0xe0 && b[0] < 0xf0 ? 3
	             : b[0] >= 0xf0 && b[0] < 0xf5 ? 4
	                                           : 0;
	static const unsigned char lead[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
	uint32_t code = len > 0 ? b[0] & lead[len] : 0u;

	for (size_t i = 1; i < len; i++) {
		if ((b[i] & 0xc0) != 0x80)
			len = 0;
		else
			code = code << 6 | (b[i] & 0x3fu);
	}
	*ret_len = len > 0 ? len : 1;
	return len > 0 ? code : 0;
}

/* U+00C0 to U+017F, in their order. */
static const char *
latin(uint32_t code)
{
	static const char *const letters[] = {
		"A",  "A", "A",  "A",  "Ae", "A", "AE", "C",  "E",  "E", "E",  "E", "I",  "I",  "I", "I", "D", "N",
		"O",  "O", "O",  "O",  "Oe", "x", "O",  "U",  "U",  "U", "Ue", "Y", "Th", "ss", "a", "a", "a", "a",
		"ae", "a", "ae", "c",  "e",  "e", "e",  "e",  "i",  "i", "i",  "i", "d",  "n",  "o", "o", "o", "o",
		"oe", "/", "o",  "u",  "u",  "u", "ue", "y",  "th", "y", "A",  "a", "A",  "a",  "A", "a", "C", "c",
		"C",  "c", "C",  "c",  "C",  "c", "D",  "d",  "D",  "d", "E",  "e", "E",  "e",  "E", "e", "E", "e",
		"E",  "e", "G",  "g",  "G",  "g", "G",  "g",  "G",  "g", "H",  "h", "H",  "h",  "I", "i", "I", "i",
		"I",  "i", "I",  "i",  "I",  "i", "IJ", "ij", "J",  "j", "K",  "k", "k",  "L",  "l", "L", "l", "L",
		"l",  "L", "l",  "L",  "l",  "N", "n",  "N",  "n",  "N", "n",  "n", "N",  "n",  "O", "o", "O", "o",
		"O",  "o", "OE", "oe", "R",  "r", "R",  "r",  "R",  "r", "S",  "s", "S",  "s",  "S", "s", "S", "s",
		"T",  "t", "T",  "t",  "T",  "t", "U",  "u",  "U",  "u", "U",  "u", "U",  "u",  "U", "u", "U", "u",
		"W",  "w", "Y",  "y",  "Y",  "Z", "z",  "Z",  "z",  "Z", "z",  "s",
	};

	_Static_assert(ARRAY_LEN(letters) == 0x180 - 0xc0, "one for each");
	return code >= 0xc0 && code < 0x180 ? letters[code - 0xc0] : NULL;
}

void
ascii_text(struct buf *out, const char *text, bool json)
{
	for (size_t len; *text != '\0'; text += len) {
		uint32_t code = take_character(text, &len);

		if (code == 0)
			buf_char(out, '?');
		else if (code < 0x80)
			buf_char(out, (char)code);
		else if (json && code >= 0x10000)
			buf_printf(out, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((code - 0x10000) >> 10)),
			           (unsigned)(0xdc00 + ((code - 0x10000) & 0x3ff)));
		else if (json)
			buf_printf(out, "\\u%04x", (unsigned)code);
		else if (latin(code) != NULL)
			buf_str(out, latin(code));
		else
			buf_printf(out, "U+%04X", (unsigned)code);
	}
}
