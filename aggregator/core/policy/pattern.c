/* aggregator/core/policy/pattern.c - shell-like patterns of attribution rules. */
#include "aggregator/core/policy/policy.h"

/* Past one character of UTF-8, so that ? stands for what a person sees as one. */
static const char *
after_char(const char *text)
{
	text++;
	while (((unsigned char)*text & 0xc0) == 0x80)
		text++;
	return text;
}

/* Only the last * can still take more text: whatever an earlier one could take, the last one can take too. Hence
 * one place to return to, no recursion, and at most |pattern| x |text| steps. */
bool
pattern_match(const char *pattern, const char *text)
{
	const char *star = NULL, *resume = NULL;

	while (*text != '\0') {
		if (*pattern == '*') {
			star = ++pattern;
			resume = text;
		} else if (*pattern == '?') {
			pattern++;
			text = after_char(text);
		} else if (*pattern == *text) {
			pattern++;
			text++;
		} else if (star != NULL) {
			pattern = star;
			resume = after_char(resume);
			text = resume;
		} else {
			return false;
		}
	}
	while (*pattern == '*')
		pattern++;
	return *pattern == '\0';
}
