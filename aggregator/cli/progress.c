/* aggregator/cli/progress.c - one line on standard error for a call that takes longer than a second. Nothing in a pipe. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "aggregator/cli/cli.h"

#define QUIET_NS NS_PER_S
#define REDRAW_NS (NS_PER_S / 10)
#define BAR_CELLS 24
#define MIB (1 << 20)
#define CLEAR_LINE "\r\033[K"

void
progress_begin(struct progress *p, int64_t boot_ns)
{
	const char *term = getenv("TERM");

	*p = (struct progress){
		.wanted = isatty(STDERR_FILENO) && term != NULL && strcmp(term, "dumb") != 0,
		.begun_ns = boot_ns,
	};
}

static void
put_size(struct buf *out, int64_t bytes)
{
	if (bytes >= MIB)
		buf_printf(out, "%" PRId64 ".%" PRId64 " MiB", bytes / MIB, bytes % MIB * 10 / MIB);
	else
		buf_printf(out, "%" PRId64 " KiB", (bytes + 1023) / 1024);
}

void
progress_line(int64_t elapsed_ns, int64_t received_bytes, int64_t total_bytes, struct buf *out)
{
	int64_t seconds = elapsed_ns / NS_PER_S;

	if (received_bytes == 0) {
		buf_printf(out, "waiting for the aggregator, %" PRId64 " s", seconds);
		return;
	}
	if (total_bytes >= received_bytes) {
		int64_t cells = received_bytes * BAR_CELLS / total_bytes;

		buf_char(out, '[');
		for (int64_t i = 0; i < BAR_CELLS; i++)
			buf_char(out, i < cells ? '#' : '.');
		buf_printf(out, "] %" PRId64 "%% of ", received_bytes * 100 / total_bytes);
		put_size(out, total_bytes);
	} else {
		put_size(out, received_bytes);
	}
	buf_printf(out, ", %" PRId64 " s", seconds);
}

void
progress_tell(void *progress, int64_t sent_bytes, int64_t received_bytes, int64_t total_bytes)
{
	struct progress *p = progress;
	int64_t now_ns;
	in_place(buf) struct buf line = {0};

	(void)sent_bytes;
	buf_init(&line, 256);
	if (!p->wanted)
		return;
	now_ns = time_boot_ns();
	if (now_ns - p->begun_ns < QUIET_NS || (p->shown && now_ns - p->drawn_ns < REDRAW_NS))
		return;
	progress_line(now_ns - p->begun_ns, received_bytes, total_bytes, &line);
	fprintf(stderr, CLEAR_LINE "%s", buf_text(&line));
	fflush(stderr);
	p->shown = true;
	p->drawn_ns = now_ns;
}

void
progress_end(struct progress *p)
{
	if (p->shown)
		fputs(CLEAR_LINE, stderr);
	p->shown = false;
}
