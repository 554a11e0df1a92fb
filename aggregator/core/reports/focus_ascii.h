/* aggregator/core/reports/focus_ascii.h - texts for FOCUS, whose validator takes anything beyond ASCII for a failure. Pure. */
#ifndef TOLLGATE_FOCUS_ASCII_H
#define TOLLGATE_FOCUS_ASCII_H

#include "common/base/buf.h"

bool is_ascii(const char *text);
/* The UTF-8 text in ASCII. json: inside a JSON text, as \uXXXX, which loses nothing. Else Latin letters as they are written without their
 * marks, umlauts with an e, and any other character as U+XXXX. Bytes that are no UTF-8 are question marks. */
void ascii_text(struct buf *out, const char *text, bool json);

#endif
