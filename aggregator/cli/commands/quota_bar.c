/* aggregator/cli/commands/quota_bar.c - a workspace's GPUs as a bar. */
#include "aggregator/cli/commands/quota_bar.h"

enum { BAR_USED, BAR_ON_DEMAND, BAR_BORROWED, BAR_LENT, BAR_IDLE, BAR_LEFT, BAR_PARTS };

static int64_t
or_none(int64_t v)
{
	return v > 0 ? v : 0;
}

static int64_t
smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t
larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* The parts of the bar in units. Use beyond the reservation is on demand or borrowed; the idle part of the reservation may be lent. */
static int64_t
parts_of(const struct quota_bar *b, int64_t part[BAR_PARTS])
{
	int64_t used = or_none(b->in_use), reserved = or_none(b->reserved), idle = or_none(reserved - used), whole;

	part[BAR_BORROWED] = smaller(or_none(b->borrowed), used);
	part[BAR_ON_DEMAND] = smaller(or_none(b->on_demand), used - part[BAR_BORROWED]);
	part[BAR_USED] = used - part[BAR_BORROWED] - part[BAR_ON_DEMAND];
	part[BAR_LENT] = smaller(or_none(b->lent), idle);
	part[BAR_IDLE] = idle - part[BAR_LENT];
	whole = larger(used + idle, or_none(b->limit));
	part[BAR_LEFT] = whole - used - idle;
	return whole;
}

/* A part that is there has a cell, however small; the largest one gives the cells that are too many. */
static void
cells_of(const int64_t part[BAR_PARTS], int64_t whole, int cell[BAR_PARTS])
{
	int sum = 0, largest = 0;

	for (int i = 0; i < BAR_PARTS; i++) {
		cell[i] = (int)((int128)part[i] * QUOTA_BAR_CELLS / whole);
		if (part[i] > 0 && cell[i] == 0)
			cell[i] = 1;
		sum += cell[i];
		if (part[i] > part[largest])
			largest = i;
	}
	cell[largest] += QUOTA_BAR_CELLS - sum;
}

void
quota_bar_write(const struct quota_bar *b, bool colours, struct buf *out)
{
	static const char signs[BAR_PARTS] = {'#', '*', '+', '=', '-', '.'};
	static const char *const colour[BAR_PARTS] = {"\033[32m", "\033[34m", "\033[33m", "\033[36m", "", ""};
	int64_t part[BAR_PARTS], whole = parts_of(b, part);
	int cell[BAR_PARTS] = {[BAR_LEFT] = QUOTA_BAR_CELLS};

	if (whole > 0)
		cells_of(part, whole, cell);
	buf_char(out, '[');
	for (int i = 0; i < BAR_PARTS; i++) {
		bool painted = colours && cell[i] > 0 && colour[i][0] != '\0';

		if (painted)
			buf_str(out, colour[i]);
		for (int k = 0; k < cell[i]; k++)
			buf_char(out, signs[i]);
		if (painted)
			buf_str(out, "\033[0m");
	}
	buf_char(out, ']');
}
