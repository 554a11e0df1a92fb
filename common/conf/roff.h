/* common/conf/roff.h - manual pages in the man(7) macros, written from the tables that drive the programs. */
#ifndef TOLLGATE_ROFF_H
#define TOLLGATE_ROFF_H

#include "common/base/buf.h"

/* The page's head and its NAME section. section 1 or 8; the version and date are the program's own. */
void roff_page(struct buf *out, const char *name, int section, const char *summary);
void roff_section(struct buf *out, const char *title);
void roff_subsection(struct buf *out, const char *title);
void roff_paragraph(struct buf *out, const char *text);
/* A tag in bold and the text under it; `after` is part of the tag, in italics ("FILE"), NULL: nothing. */
void roff_item(struct buf *out, const char *tag, const char *after, const char *text);
/* One line as it stands, in bold. */
void roff_command(struct buf *out, const char *text);
/* "SEE ALSO" with the pages named: "tollgate(1)", ...; NULL-ended. */
void roff_see_also(struct buf *out, const char *const *pages);
/* Text with nothing in it that roff would take for its own. */
void roff_text(struct buf *out, const char *text);

#endif
