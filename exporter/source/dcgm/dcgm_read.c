/* exporter/source/dcgm/dcgm_read.c - values of what is watched in DCGM. The rules are in dcgm.h. */
#include "exporter/source/dcgm/dcgm_engine.h"

#include <string.h>

#define PPM 1000000

/* Rules 3 and 4. */
static int64_t
share(struct dcgm_engine *e, double v)
{
	if (!(v >= 0 && v < DCGM_BLANK_FP64))
		return ABSENT;
	if (v > 1) {
		e->clamped++;
		return PPM;
	}
	return (int64_t)(v * PPM + 0.5);
}

static int64_t
rate(const struct dcgm_field_value *v)
{
	if (v->type == DCGM_TYPE_INT64)
		return v->value.i64 >= 0 && v->value.i64 < DCGM_BLANK_INT64 ? v->value.i64 : ABSENT;
	return v->value.dbl >= 0 && v->value.dbl < DCGM_BLANK_FP64 ? (int64_t)v->value.dbl : ABSENT;
}

/* Rule 2: what was not brought again keeps the time at which it was. */
static void
take_answer(struct dcgm_engine *e, struct dcgm_entity *to, const struct dcgm_field_value *v, int64_t boot_ns)
{
	size_t i = (size_t)v->field - DCGM_FIELD_ENGINE;

	if (v->status != DCST_OK || (v->type != DCGM_TYPE_DOUBLE && v->type != DCGM_TYPE_INT64)) {
		to->values[i] = ABSENT;
		return;
	}
	if (to->values[i] != ABSENT && v->stamp_us == to->stamps_us[i])
		return;
	if (i >= DCGM_PCIE_TX)
		to->values[i] = rate(v);
	else
		to->values[i] = v->type == DCGM_TYPE_DOUBLE ? share(e, v->value.dbl) : ABSENT;
	to->stamps_us[i] = v->stamp_us;
	to->boot_ns[i] = boot_ns;
}

static struct dcgm_entity *
find_member(const struct dcgm_engine *e, const struct dcgm_watch *w, size_t from, size_t count,
            const struct dcgm_field_value *v)
{
	for (size_t i = from; i < from + count; i++) {
		struct dcgm_entity *at = &e->view->entities[w->members[i]];

		if (at->pair.group == v->group && at->pair.id == v->id)
			return at;
	}
	return NULL;
}

/* Some of a watch's entities, as many as there is room for. */
static bool
read_some(struct dcgm_engine *e, const struct dcgm_watch *w, size_t from, size_t count, uint16_t *fields,
          uint32_t field_count, int64_t boot_ns, struct err *err)
{
	struct dcgm_pair pairs[DCGM_GROUP_ENTITIES];
	int status;

	for (size_t i = 0; i < count; i++)
		pairs[i] = e->view->entities[w->members[from + i]].pair;
	for (size_t i = 0; i < count * field_count; i++) {
		e->answers[i].version = DCGM_FIELD_VALUE_V2;
		e->answers[i].field = 0; /* not answered */
	}
	status = e->api.dcgmEntitiesGetLatestValues(e->handle, pairs, (uint32_t)count, fields, field_count, 0,
	                                            e->answers);
	if (dcgm_is_lost(status))
		return err_set(err, ERR_RETRY, "DCGM's engine is gone: %s", dcgm_status_text(e, status));
	for (size_t i = 0; i < count * field_count; i++) {
		struct dcgm_field_value *v = &e->answers[i];
		struct dcgm_entity *to;

		/* the place says of whom an answer is that does not */
		if (status != DCST_OK || v->field == 0) {
			v->group = pairs[i / field_count].group;
			v->id = pairs[i / field_count].id;
			v->field = fields[i % field_count];
			v->status = status != DCST_OK ? status : DCST_NO_DATA;
		}
		to = find_member(e, w, from, count, v);
		if (to && v->field >= DCGM_FIELD_ENGINE && v->field < DCGM_FIELD_ENGINE + DCGM_VALUES)
			take_answer(e, to, v, boot_ns);
	}
	return true;
}

static bool
read_watch(struct dcgm_engine *e, const struct dcgm_watch *w, int64_t boot_ns, struct err *err)
{
	uint16_t fields[DCGM_VALUES];
	uint32_t field_count = 0;
	size_t room;

	for (unsigned i = 0; i < DCGM_VALUES; i++)
		if (w->fields & DCGM_BIT(i))
			fields[field_count++] = (uint16_t)(DCGM_FIELD_ENGINE + i);
	room = DCGM_ANSWERS / field_count;
	for (size_t from = 0; from < w->count; from += room) {
		size_t count = w->count - from < room ? w->count - from : room;

		if (!read_some(e, w, from, count, fields, field_count, boot_ns, err))
			return false;
	}
	return true;
}

bool
dcgm_engine_read(struct dcgm_engine *e, int64_t boot_ns, struct err *err)
{
	int status = e->api.dcgmUpdateAllFields(e->handle, 1);

	if (status != DCST_OK)
		return err_set(err, ERR_RETRY, "DCGM's engine does not read: %s", dcgm_status_text(e, status));
	for (size_t i = 0; i < e->watch_count; i++)
		if (!read_watch(e, &e->watches[i], boot_ns, err))
			return false;
	return true;
}
