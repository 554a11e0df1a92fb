/* aggregator/core/reports/html.c - the elements of printed pages. */
#include "aggregator/core/reports/html.h"

void
html_text(struct buf *out, const char *s)
{
	for (; *s != '\0'; s++)
		switch (*s) {
		case '&': buf_str(out, "&amp;"); break;
		case '<': buf_str(out, "&lt;"); break;
		case '>': buf_str(out, "&gt;"); break;
		case '"': buf_str(out, "&quot;"); break;
		case '\'': buf_str(out, "&#39;"); break;
		default: buf_char(out, (unsigned char)*s < ' ' ? ' ' : *s);
		}
}

void
html_number(struct buf *out, int128 value, int scale, int min_decimals)
{
	char digits[DECIMAL_TEXT_SIZE];

	decimal_format(value, scale, min_decimals, digits);
	buf_str(out, digits[0] == '-' ? HTML_MINUS : "");
	buf_str(out, digits[0] == '-' ? digits + 1 : digits);
}

void
html_cell(struct buf *out, const char *klass, int128 value, int scale, int min_decimals)
{
	buf_printf(out, "<td class=\"n%s\">", klass);
	html_number(out, value, scale, min_decimals);
	buf_str(out, "</td>");
}

void
html_fact(struct buf *out, const char *name, const char *value)
{
	buf_printf(out, "<div><dt>%s</dt><dd>", name);
	html_text(out, value[0] != '\0' ? value : HTML_DASH);
	buf_str(out, "</dd></div>\n");
}

static const char style[] =
	"@page{size:A4;margin:14mm 14mm 12mm}"
	"*{box-sizing:border-box}"
	"body{margin:0;background:#eef0f2;color:#1b2126;font:9.5pt/1.4 'DejaVu Sans',Verdana,Arial,sans-serif}"
	"section{background:#fff;width:210mm;min-height:270mm;margin:8mm auto;padding:14mm;box-shadow:0 1px 6px #0003;"
	"display:flex;flex-direction:column;gap:5mm}"
	"header{display:flex;justify-content:space-between;align-items:flex-end;border-bottom:2pt solid #0b5c63;padding-bottom:3mm}"
	"h1{font-size:20pt;line-height:1.1;margin:1mm 0 0;font-weight:600}p{margin:0}.from{color:#0b5c63;font-weight:600}"
	".status{padding:1mm 3mm;border-radius:3mm;font-weight:600;background:#fff1d6;color:#7a4b00}"
	".status.closed{background:#dcf1e4;color:#14532d}"
	".facts{display:grid;grid-template-columns:repeat(3,1fr);gap:2.5mm 6mm;margin:0}"
	"dt{font-size:7.5pt;color:#5a6670}dd{margin:0;overflow-wrap:anywhere}"
	".sides{display:grid;grid-template-columns:1.25fr 1fr;gap:6mm;align-items:start}"
	".side{display:flex;flex-direction:column;gap:3mm}"
	"table{border-collapse:collapse;width:100%}th,td{text-align:left;font-weight:400;padding:.75mm 1.2mm;vertical-align:top}"
	"thead th{font-size:7.5pt;color:#5a6670;border-bottom:.6pt solid #9aa5ae}"
	"tbody tr+tr>*{border-top:.3pt solid #e1e5e8}"
	".n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
	".total>*{font-weight:700;border-top:1pt solid #1b2126!important}.memo>*{color:#46525b;font-size:8.5pt}"
	".whole,.whole>*{font-weight:600}.parts{font-size:8.5pt}.lines{font-size:8pt}.lines td{overflow-wrap:anywhere}"
	".sub>th{padding-left:4mm}.note,.of{font-size:8pt;color:#46525b}footer{margin-top:auto;font-size:7.5pt;color:#5a6670}"
	"@media print{body{background:none}section{width:auto;min-height:0;margin:0;padding:0;box-shadow:none;break-after:page}"
	"section:last-of-type{break-after:auto}}";

void
html_begin(const char *title, const char *more_style, struct buf *out)
{
	buf_str(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>");
	html_text(out, title);
	buf_printf(out, "</title>\n<style>%s%s</style>\n</head>\n<body>\n", style, more_style);
}

void
html_end(struct buf *out)
{
	buf_str(out, "</body>\n</html>\n");
}
