/* exporter/meter/meter_share.h - what is divided: the activity of a device among its holders in one segment, the energy of a GPU among the
 * entries of a slot (rules 7, 9 and 11 of meter.h). */
#ifndef TOLLGATE_METER_SHARE_H
#define TOLLGATE_METER_SHARE_H

#include "exporter/meter/meter_people.h"

/* All that one holder has to do with one device in one segment. */
struct party {
	struct dict_holder *holder;
	const struct claim *claim; /* NULL: not allocated to it */
	bool holds;                /* else an intruder */
	bool lasting;              /* has a process whose activity only a tick could tell */
	bool told;                 /* has one whose activity accounting tells */
	bool sharing;              /* has a part in the activity of the device */
	size_t entry;              /* of the plan, when it holds */
	int128 active_ppm_ns;      /* of its processes, as far as it is measured for each */
	int128 memory_byte_ns;
	int128 memory_seen[SEEN_BY_SECOND +
	                   1]; /* bytes, by who saw its processes; of those that no tick saw, the largest */
};

/* Fills used, over, unmeasured and method of the entries of the plan's parties, all of one device in the last segment. */
void share_activity(struct plan *p, size_t party_count, int64_t parts, int64_t active_ppm, bool process_activity);

/* Fills sm_active and sm_measured of the same entries, after share_activity; the source has told sm_active_ppm. */
void share_sm(struct plan *p, size_t party_count, struct view_activity activity);

void share_energy(struct plan *p, int64_t energy_mj, int64_t slot_ns);

#endif
