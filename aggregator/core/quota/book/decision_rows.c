/* aggregator/core/quota/book/decision_rows.c - changes of the rows of decisions and reclaims by outcomes of the quota engine. */
#include "aggregator/core/quota/book/decision_rows.h"

#include <string.h>

#include "aggregator/core/quota/book/quota_book.h"
#include "common/conf/json.h"
#include "common/base/text.h"

const char *
decision_status_name(enum decision_status s)
{
	static const char *const names[] = {NULL,    "waiting",  "admitted",  "confirmed", "suspect",
	                                    "ended", "rejected", "cancelled", "expired"};

	return names[s];
}

const char *
reclaim_state_name(enum reclaim_state s)
{
	static const char *const names[] = {NULL,       "ordered",  "draining", "overdue",
	                                    "enforced", "returned", "cancelled"};

	return names[s];
}

void
decision_rows_clear(struct decision_rows *r)
{
	r->decision_count = r->reclaim_count = 0;
	hash_clear(&r->decision_ids);
	hash_clear(&r->reclaim_ids);
}

void
decision_rows_fini(struct decision_rows *r)
{
	mem_free(r->decisions);
	mem_free(r->reclaims);
	hash_fini(&r->decision_ids);
	hash_fini(&r->reclaim_ids);
	*r = (struct decision_rows){0};
}

/* ---- finding --------------------------------------------------------------------------------------------------------------- */

const struct decision_change *
decision_rows_of(const struct decision_rows *r, const char *id)
{
	size_t at = hash_find_text(&r->decision_ids, r->decisions, sizeof(*r->decisions), id);

	return at == HASH_NONE ? NULL : &r->decisions[at];
}

static struct decision_change *
decision_of(struct decision_rows *r, const char *id, const struct decision_moment *m)
{
	size_t at = hash_find_text(&r->decision_ids, r->decisions, sizeof(*r->decisions), id);

	if (at == HASH_NONE) {
		at = r->decision_count++;
		array_room(r->decisions, at, r->decision_cap);
		r->decisions[at] = (struct decision_change){0};
		memcpy(r->decisions[at].id, id, strnlen(id, QUOTA_ID_SIZE - 1));
		hash_add(&r->decision_ids, hash_text(HASH_START, id), at);
	}
	r->decisions[at].changed_seq = m->seq;
	r->decisions[at].changed_ns = m->at_ns;
	return &r->decisions[at];
}

/* ---- reclaims -------------------------------------------------------------------------------------------------------------- */

/* The last one of a lease; NULL: none in this transaction. */
static struct reclaim_change *
reclaim_of(struct decision_rows *r, const char *lease)
{
	size_t at = hash_find_text(&r->reclaim_ids, r->reclaims, sizeof(*r->reclaims), lease);

	return at == HASH_NONE ? NULL : &r->reclaims[at];
}

static struct reclaim_change *
reclaim_new(struct decision_rows *r, const struct decision_moment *m, const char *lease, enum reclaim_state state)
{
	size_t at = r->reclaim_count++,
	       before = hash_find_text(&r->reclaim_ids, r->reclaims, sizeof(*r->reclaims), lease);

	array_room(r->reclaims, at, r->reclaim_cap);
	r->reclaims[at] = (struct reclaim_change){.state = state,
	                                          .seq = m->seq,
	                                          .at_ns = m->at_ns,
	                                          .ordered_seq = m->seq,
	                                          .ordered_ns = m->at_ns,
	                                          .asked_by = m->actor};
	memcpy(r->reclaims[at].lease, lease, strnlen(lease, QUOTA_ID_SIZE - 1));
	if (before == HASH_NONE)
		hash_add(&r->reclaim_ids, hash_text(HASH_START, lease), at);
	else
		hash_move(&r->reclaim_ids, hash_text(HASH_START, lease), before, at);
	return &r->reclaims[at];
}

static bool
is_open(enum reclaim_state s)
{
	return s >= RECLAIM_ORDERED && s <= RECLAIM_ENFORCED;
}

static void
reclaim_made(struct decision_rows *r, const struct decision_moment *m, const struct quota_notice *n)
{
	struct reclaim_change *c = reclaim_new(r, m, n->id, RECLAIM_ORDERED);

	c->made = true;
	memcpy(c->for_request, n->for_id, sizeof(c->for_request));
	c->due_ns = n->at_ns;
}

/* The next state of the open order. A lease without one has no row, and none is found. */
static void
reclaim_moved(struct decision_rows *r, const struct decision_moment *m, const char *lease, enum reclaim_state state)
{
	struct reclaim_change *c = reclaim_of(r, lease);

	if (!c)
		c = reclaim_new(r, m, lease, state);
	else if (!is_open(c->state))
		return;
	c->state = state;
	c->seq = m->seq;
	c->at_ns = m->at_ns;
	if (!is_open(state))
		c->ended_ns = m->at_ns;
}

/* A lease that drains has an order from now on, its scheduler's own where there was none. */
static void
add_drain(struct decision_rows *r, const struct decision_moment *m, const char *lease)
{
	struct reclaim_change *c = reclaim_of(r, lease);
	bool known;

	if (c && is_open(c->state)) {
		if (c->state == RECLAIM_ORDERED) {
			reclaim_moved(r, m, lease, RECLAIM_DRAINING);
			c->acked_ns = m->at_ns;
		}
		return;
	}
	known = c != NULL;
	c = reclaim_new(r, m, lease, RECLAIM_DRAINING);
	c->made = known;
	c->drained = !known;
	c->idle = strcmp(m->actor, DECISION_ACTOR_IDLE) == 0;
	c->acked_ns = m->at_ns;
}

/* ---- decisions ------------------------------------------------------------------------------------------------------------- */

static void
add_verdict(struct decision_rows *r, const struct decision_moment *m, const struct quota_verdict *v)
{
	struct decision_change *c = decision_of(r, v->id, m);
	bool admitted = v->decision == QUOTA_ADMIT || v->decision == QUOTA_BORROW;

	c->has_verdict = true;
	c->decision = v->decision;
	c->would = v->would;
	c->rule = quota_deciding_rule(v);
	c->warn = v->warn;
	c->position = v->position;
	c->verdict_seq = m->seq;
	c->verdict_at = v->text_at;
	c->verdict_len = v->text_len;
	c->told = true;
	c->status = admitted ? DECISION_ADMITTED : v->decision == QUOTA_REJECT ? DECISION_REJECTED : DECISION_WAITING;
	if (admitted)
		c->admitted_ns = c->seen_ns = m->at_ns;
}

static void
end(struct decision_change *c, const struct decision_moment *m, enum decision_status status, const char *why)
{
	c->status = status;
	c->ended_ns = m->at_ns;
	c->ended_why = why;
	c->position = 0;
	c->told = true;
}

static void
add_notice(struct decision_rows *r, const struct decision_moment *m, const struct quota_notice *n)
{
	switch (n->kind) {
	case QUOTA_ORDER_MADE: reclaim_made(r, m, n); break;
	case QUOTA_ORDER_CANCELLED: reclaim_moved(r, m, n->id, RECLAIM_CANCELLED); break;
	case QUOTA_ORDER_OVERDUE: reclaim_moved(r, m, n->id, RECLAIM_OVERDUE); break;
	case QUOTA_LEASE_RETURNED:
	case QUOTA_LEASE_EXPIRED:
		end(decision_of(r, n->id, m), m, DECISION_ENDED,
		    n->kind == QUOTA_LEASE_RETURNED ? "returned" : "unconfirmed");
		reclaim_moved(r, m, n->id, RECLAIM_RETURNED);
		break;
	case QUOTA_LEASE_SUSPECT: {
		struct decision_change *c = decision_of(r, n->id, m);

		c->status = DECISION_SUSPECT;
		c->told = true;
		break;
	}
	case QUOTA_LEASE_ADOPTED: {
		struct decision_change *c = decision_of(r, n->id, m);

		c->status = DECISION_CONFIRMED;
		c->adopted_ns = c->confirmed_ns = m->at_ns;
		break;
	}
	case QUOTA_REQUEST_EXPIRED: end(decision_of(r, n->id, m), m, DECISION_EXPIRED, "expired"); break;
	case QUOTA_REQUEST_CANCELLED: end(decision_of(r, n->id, m), m, DECISION_CANCELLED, "cancelled"); break;
	default: break; /* holds, exceptions and refusals are in no row of these */
	}
}

/* ---- events of leases ------------------------------------------------------------------------------------------------ */

static const struct quota_notice *
refusal_of(const struct quota_outcome *o, const char *id)
{
	for (size_t i = 0; i < o->notice_count; i++)
		if (o->notices[i].kind == QUOTA_REFUSED && strcmp(o->notices[i].id, id) == 0)
			return &o->notices[i];
	return NULL;
}

static void
heard(struct decision_change *c, const struct decision_moment *m)
{
	c->seen_ns = m->at_ns;
	if (c->status == DECISION_SUSPECT)
		c->status = DECISION_CONFIRMED;
}

/* Before the notices: the event of a lease may be the one that ends it. */
static void
add_lease_event(struct decision_rows *r, const struct decision_moment *m, enum quota_event_kind kind, const char *id,
                const struct quota_outcome *o)
{
	const struct quota_notice *refused = refusal_of(o, id);
	struct decision_change *c;

	/* one that runs elsewhere than it says runs all the same */
	if (refused && kind != QUOTA_SUBMIT && kind != QUOTA_ADOPT &&
	    !(kind == QUOTA_CONFIRM && strcmp(refused->for_id, "place") == 0))
		return;
	switch (kind) {
	case QUOTA_SUBMIT:
	case QUOTA_ADOPT:
		c = decision_of(r, id, m);
		c->fresh = true;
		c->submitted_seq = m->seq;
		break;
	case QUOTA_CONFIRM:
		c = decision_of(r, id, m);
		c->status = DECISION_CONFIRMED;
		c->confirmed_ns = c->confirmed_ns ? c->confirmed_ns : m->at_ns;
		c->seen_ns = m->at_ns;
		c->told = true;
		break;
	case QUOTA_HEARTBEAT: heard(decision_of(r, id, m), m); break;
	case QUOTA_RELEASE:
		c = decision_of(r, id, m);
		c->released_ns = c->released_ns ? c->released_ns : m->at_ns;
		c->told = true;
		break;
	case QUOTA_ENFORCE: reclaim_moved(r, m, id, RECLAIM_ENFORCED); break;
	default: break;
	}
}

void
decision_rows_add(struct decision_rows *r, const struct decision_moment *m, const struct decision_cause *cause,
                  const struct quota_outcome *o)
{
	for (size_t i = 0; i < cause->id_count; i++) {
		if (cause->kind == QUOTA_DRAIN && !refusal_of(o, cause->ids[i]))
			add_drain(r, m, cause->ids[i]);
		else
			add_lease_event(r, m, cause->kind, cause->ids[i], o);
	}
	for (size_t i = 0; i < o->verdict_count; i++)
		add_verdict(r, m, &o->verdicts[i]);
	for (size_t i = 0; i < o->notice_count; i++)
		add_notice(r, m, &o->notices[i]);
}

/* ---- events by their text ----------------------------------------------------------------------------------------------------- */

static const char *
id_in(const json_t *at)
{
	return json_string_value(json_is_object(at) ? json_object_get(at, "id") : at);
}

void
decision_cause_fini(struct decision_cause *c)
{
	mem_free(c->ids);
	*c = (struct decision_cause){0};
}

void
decision_cause_of(const json_t *doc, struct decision_cause *ret)
{
	static const struct {
		const char *word;
		enum quota_event_kind kind;
	} words[] = {
		{"submit", QUOTA_SUBMIT},   {"confirm", QUOTA_CONFIRM}, {"heartbeat", QUOTA_HEARTBEAT},
		{"release", QUOTA_RELEASE}, {"drain", QUOTA_DRAIN},     {"enforce", QUOTA_ENFORCE},
		{"adopt", QUOTA_ADOPT},
	};

	*ret = (struct decision_cause){.kind = QUOTA_TICK};
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		const json_t *what = json_object_get(doc, words[i].word);
		size_t n = json_is_array(what) ? json_array_size(what) : 1;

		if (!what || ret->ids)
			continue;
		ret->ids = mem_array(n + 1, sizeof(*ret->ids));
		ret->kind = words[i].kind;
		for (size_t k = 0; k < n; k++) {
			const char *id = id_in(json_is_array(what) ? json_array_get(what, k) : what);

			if (id)
				ret->ids[ret->id_count++] = id;
		}
	}
}

/* ---- the chain ---------------------------------------------------------------------------------------------------------------- */

static void
add_number(struct sha256_state *s, uint64_t v)
{
	uint8_t bytes[8];

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(v >> (56 - 8 * i));
	sha256_add(s, bytes, sizeof(bytes));
}

static void
add_text(struct sha256_state *s, const char *text, size_t len)
{
	add_number(s, len);
	sha256_add(s, text, len);
}

void
quota_log_hash(const uint8_t before[SHA256_SIZE], const struct quota_log_entry *e, uint8_t ret[SHA256_SIZE])
{
	struct sha256_state *s = sha256_begin();

	sha256_add(s, before, SHA256_SIZE);
	add_number(s, (uint64_t)e->seq);
	add_number(s, (uint64_t)e->at_ns);
	add_text(s, e->actor, strlen(e->actor));
	add_text(s, e->event, e->event_len);
	add_text(s, e->outcome, e->outcome_len);
	sha256_end(s, ret);
}

bool
quota_outcome_agrees(const json_t *logged, const json_t *told)
{
	const char *name;
	json_t *value;

	if (json_is_object(logged) && json_is_object(told)) {
		json_object_foreach((json_t *)(uintptr_t)logged, name, value)
		{
			bool advice = strcmp(name, "changes") == 0 || strcmp(name, "why") == 0 ||
			              strcmp(name, "summary") == 0;

			if (!advice && !quota_outcome_agrees(value, json_object_get(told, name)))
				return false;
		}
		return true;
	}
	if (!json_is_array(logged) || !json_is_array(told) || json_array_size(logged) != json_array_size(told))
		return json_equal(logged, told);
	for (size_t i = 0; i < json_array_size(logged); i++)
		if (!quota_outcome_agrees(json_array_get(logged, i), json_array_get(told, i)))
			return false;
	return true;
}

bool
quota_log_agrees(const struct quota_log_entry *e, const struct buf *told)
{
	owned(json) json_t *logged = NULL, *again = NULL;
	struct err why = {0};

	if (told->len == e->outcome_len && memcmp(buf_text(told), e->outcome, told->len) == 0)
		return true;
	return json_parse_max("the outcome", e->outcome, e->outcome_len, QUOTA_EVENT_MAX_BYTES, &logged, &why) &&
	       json_parse_max("the outcome", buf_text(told), told->len, QUOTA_EVENT_MAX_BYTES, &again, &why) &&
	       quota_outcome_agrees(logged, again);
}
