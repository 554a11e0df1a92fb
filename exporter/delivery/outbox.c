/* exporter/delivery/outbox.c - the spool's writer thread, its queue, and the view for sending. The rules are numbered in outbox.h. */
#include "exporter/delivery/outbox.h"

#include <string.h>

#include "common/wire/frame.h"
#include "common/base/thread.h"
#include "common/base/time.h"

struct entry {
	struct wire_batch *batch; /* NULL: the next stream begins here */
	bool partial_dict;        /* made when a full dictionary was not required */
};

struct outbox {
	/* of the writer alone, once it runs */
	struct spool *spool;
	struct spool_options options;
	bool has_writer;
	pthread_t thread;
	/* shared */
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	int64_t patience_ns;
	struct entry queue[OUTBOX_WAITING_MAX];
	size_t count;
	bool writing; /* the writer works on the first of them */
	int64_t lost;
	bool partial_dict; /* the next batch: outbox_wants_dict returned false */
	bool wants_dict;   /* the spool, as the writer left it */
	int64_t wall_ns;   /* of the last call that knew it */
	uint32_t flags;
	uint64_t asked, answered; /* rounds of the writer: requested, finished */
	bool late;                /* rule 2 */
	struct err trouble;       /* of the last round */
	bool save, inspect, stop, ended;
	struct spool *view; /* rule 5 */
	uint64_t view_number;
	void (*changed)(void *arg);
	void *changed_arg;
	/* of the sending thread: its own copy of the view, because it reads files without the lock */
	struct spool *sending;
	uint64_t sending_number;
};

/* ---- the queue ---- */

/* A lost batch leaves the time it covered. */
static struct wire_batch *
loss_of(const struct wire_batch *batch)
{
	struct wire_batch *loss = wire_batch_new();

	loss->kind = WIRE_LOSS;
	loss->from_ns = batch->from_ns;
	loss->to_ns = batch->to_ns;
	return loss;
}

static void
replace_by_loss(struct outbox *b, size_t at)
{
	struct wire_batch *loss = loss_of(b->queue[at].batch);

	b->lost += b->queue[at].batch->kind == WIRE_USAGE;
	wire_batch_free(b->queue[at].batch);
	b->queue[at].batch = loss;
}

static void
remove_entry(struct outbox *b, size_t at)
{
	b->count--;
	memmove(&b->queue[at], &b->queue[at + 1], (b->count - at) * sizeof(b->queue[0]));
}

/* Rule 3. When no stream has two batches in the queue, the oldest is dropped without a loss batch; the ledger notices the missing
 * time. */
static void
make_room(struct outbox *b)
{
	size_t first = b->writing ? 1 : 0;

	for (size_t i = first; i + 1 < b->count; i++) {
		if (!b->queue[i].batch || !b->queue[i + 1].batch)
			continue;
		replace_by_loss(b, i);
		replace_by_loss(b, i + 1);
		b->queue[i].batch->to_ns = b->queue[i + 1].batch->to_ns;
		wire_batch_free(b->queue[i + 1].batch);
		remove_entry(b, i + 1);
		return;
	}
	if (b->queue[first].batch) {
		b->lost += b->queue[first].batch->kind == WIRE_USAGE;
		wire_batch_free(b->queue[first].batch);
	}
	remove_entry(b, first);
}

static void
enqueue(struct outbox *b, struct wire_batch *batch)
{
	if (b->count == OUTBOX_WAITING_MAX)
		make_room(b);
	b->queue[b->count++] = (struct entry){.batch = batch, .partial_dict = batch && b->partial_dict};
	b->partial_dict = b->partial_dict && !batch;
}

/* ---- the writer ---- */

/* Disk operations run without the lock when a writer thread does them. */
static void
unlock_for_disk(struct outbox *b)
{
	if (b->has_writer)
		pthread_mutex_unlock(&b->lock);
}

static void
lock_after_disk(struct outbox *b)
{
	if (b->has_writer)
		pthread_mutex_lock(&b->lock);
}

static void
set_batch_head(const struct outbox *b, struct wire_batch *batch)
{
	if (!batch->node) {
		batch->node = mem_strdup(b->options.node);
		batch->exporter_version = mem_strdup(b->options.exporter_version);
	}
	memcpy(batch->boot_id, b->options.boot_id, sizeof(batch->boot_id));
	batch->flags = b->options.flags;
	batch->epoch = spool_epoch(b->spool);
	batch->seq = batch->last_seq = spool_next_seq(b->spool);
}

/* *ret_hopeless: trying again cannot help, because the batch cannot be packed (too large or malformed) or would begin a file without
 * the dictionary. It becomes a loss batch, so that it does not block the others. */
static bool
write_batch(struct outbox *b, const struct entry *e, int64_t wall_ns, bool *ret_hopeless, struct err *err)
{
	in_place(buf) struct buf payload = {0};

	buf_init(&payload, FRAME_MAX);
	set_batch_head(b, e->batch);
	*ret_hopeless = e->batch->kind == WIRE_USAGE;
	if (e->batch->kind == WIRE_USAGE && e->partial_dict && spool_wants_dict(b->spool))
		return err_set(err, ERR_RETRY, "a batch without the dictionary would begin a file of the spool");
	if (!wire_pack(e->batch, &payload, err))
		return false;
	*ret_hopeless = false;
	return spool_append(b->spool, payload.data, payload.len, e->batch->from_ns, e->batch->to_ns, wall_ns, err);
}

/* Rule 5; the lock is held. */
static void
publish(struct outbox *b)
{
	struct spool *fresh = spool_view(b->spool), *old = b->view;

	if (old)
		spool_copy_acks(fresh, old);
	b->view = fresh;
	b->view_number++;
	b->wants_dict = spool_wants_dict(b->spool);
	spool_free(old);
	if (b->changed)
		b->changed(b->changed_arg);
}

/* Writes the first entry of the queue. The lock is released while the disk works. */
static bool
write_first(struct outbox *b, struct err *err)
{
	struct entry e = b->queue[0];
	int64_t wall_ns = b->wall_ns;
	bool hopeless = false, ok;

	b->writing = true;
	if (b->flags != b->options.flags) {
		b->options.flags = b->flags;
		spool_set_flags(b->spool, b->flags);
	}
	unlock_for_disk(b);
	ok = e.batch ? write_batch(b, &e, wall_ns, &hopeless, err) : spool_new_stream(b->spool, wall_ns, err);
	lock_after_disk(b);
	b->writing = false;
	if (hopeless)
		replace_by_loss(b, 0);
	/* a new stream has begun even if its state could not be saved */
	if (ok || !e.batch) {
		wire_batch_free(e.batch);
		remove_entry(b, 0);
		publish(b);
	}
	return ok;
}

static bool
save_acks(struct outbox *b, struct err *err)
{
	bool ok;

	b->save = false;
	spool_copy_acks(b->spool, b->view);
	unlock_for_disk(b);
	ok = spool_save(b->spool, err);
	lock_after_disk(b);
	return ok;
}

/* The sending thread found a file that differs from the view. Reading it through the spool itself sets a damaged one aside. */
static bool
inspect_files(struct outbox *b, struct err *err)
{
	in_place(buf) struct buf frames = {0};
	struct spool_chunk chunk;
	bool any, ok;

	b->inspect = false;
	spool_copy_acks(b->spool, b->view);
	unlock_for_disk(b);
	buf_init(&frames, FRAME_HEAD + FRAME_MAX);
	ok = spool_peek(b->spool, 1, &frames, &chunk, &any, err);
	lock_after_disk(b);
	publish(b);
	return ok;
}

static void
run_round(struct outbox *b)
{
	uint64_t round = b->asked;
	struct err err = {0};
	bool ok = true;

	while (ok && b->count > 0)
		ok = write_first(b, &err);
	if (b->inspect && !inspect_files(b, ok ? &err : NULL))
		ok = false;
	if (b->save && !save_acks(b, ok ? &err : NULL))
		ok = false;
	if (ok)
		err.kind = ERR_NONE;
	b->trouble = err;
	b->answered = round;
	b->late = false;
	pthread_cond_broadcast(&b->done);
}

static void *
writer_main(void *arg)
{
	struct outbox *b = arg;

	pthread_mutex_lock(&b->lock);
	while (!b->stop || b->asked != b->answered) {
		if (b->asked == b->answered)
			pthread_cond_wait(&b->work, &b->lock);
		else
			run_round(b);
	}
	b->ended = true;
	pthread_cond_broadcast(&b->done);
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

static uint64_t
ask_writer(struct outbox *b)
{
	uint64_t round = ++b->asked;

	if (b->has_writer)
		pthread_cond_signal(&b->work);
	else
		run_round(b);
	return round;
}

/* Rule 2. */
static bool
ask_and_wait(struct outbox *b, struct err *err)
{
	int64_t deadline_ns = time_monotonic_ns() + b->patience_ns;
	uint64_t round = ask_writer(b);

	while (!b->late && b->answered < round)
		b->late = !condition_wait_until(&b->done, &b->lock, deadline_ns) && b->answered < round;
	if (b->answered < round)
		return err_set(err, ERR_RETRY, "the disk of the spool %s does not answer", b->options.dir);
	if (b->trouble.kind == ERR_NONE)
		return true;
	if (err)
		*err = b->trouble;
	return false;
}

/* ---- start and end ---- */

struct outbox *
outbox_new(struct spool *spool, const struct spool_options *o)
{
	struct outbox *b = mem_alloc(sizeof(*b));

	b->spool = spool;
	b->options = *o;
	b->flags = o->flags;
	pthread_mutex_init(&b->lock, NULL);
	condition_init(&b->work);
	condition_init(&b->done);
	publish(b);
	return b;
}

bool
outbox_start(struct outbox *b, int64_t patience_ns, struct err *err)
{
	b->patience_ns = patience_ns;
	b->has_writer = true;
	if (thread_start("of the spool", writer_main, b, &b->thread, err))
		return true;
	b->has_writer = false;
	return false;
}

void
outbox_set_patience(struct outbox *b, int64_t patience_ns)
{
	pthread_mutex_lock(&b->lock);
	b->patience_ns = patience_ns;
	pthread_mutex_unlock(&b->lock);
}

/* True when the writer ended in time. */
static bool
stop_writer(struct outbox *b)
{
	int64_t deadline_ns;
	bool ended;

	pthread_mutex_lock(&b->lock);
	deadline_ns = time_monotonic_ns() + b->patience_ns;
	b->stop = true;
	(void)ask_writer(b);
	while (!b->ended && condition_wait_until(&b->done, &b->lock, deadline_ns))
		;
	ended = b->ended;
	pthread_mutex_unlock(&b->lock);
	if (ended)
		pthread_join(b->thread, NULL);
	else
		pthread_detach(b->thread);
	return ended;
}

bool
outbox_close(struct outbox *b)
{
	if (!b)
		return true;
	if (b->has_writer && !stop_writer(b))
		return false;
	for (size_t i = 0; i < b->count; i++)
		wire_batch_free(b->queue[i].batch);
	spool_free(b->sending);
	spool_free(b->view);
	spool_free(b->spool);
	pthread_cond_destroy(&b->work);
	pthread_cond_destroy(&b->done);
	pthread_mutex_destroy(&b->lock);
	mem_free(b);
	return true;
}

void
outbox_free(struct outbox *b)
{
	(void)outbox_close(b);
}

void
outbox_listen(struct outbox *b, void (*changed)(void *arg), void *arg)
{
	pthread_mutex_lock(&b->lock);
	b->changed = changed;
	b->changed_arg = arg;
	pthread_mutex_unlock(&b->lock);
}

void
outbox_set_flags(struct outbox *b, uint32_t flags)
{
	pthread_mutex_lock(&b->lock);
	b->flags = flags;
	spool_set_flags(b->view, flags);
	pthread_mutex_unlock(&b->lock);
}

/* ---- adding ---- */

bool
outbox_wants_dict(struct outbox *b)
{
	bool wants;

	pthread_mutex_lock(&b->lock);
	wants = b->count > 0 || b->wants_dict;
	b->partial_dict = !wants;
	pthread_mutex_unlock(&b->lock);
	return wants;
}

bool
outbox_add(struct outbox *b, struct wire_batch *batch, int64_t wall_ns, struct err *err)
{
	bool ok;

	pthread_mutex_lock(&b->lock);
	batch->kind = WIRE_USAGE;
	b->wall_ns = wall_ns;
	enqueue(b, batch);
	ok = ask_and_wait(b, err);
	pthread_mutex_unlock(&b->lock);
	return ok;
}

bool
outbox_flush(struct outbox *b, int64_t wall_ns, struct err *err)
{
	bool ok = true;

	pthread_mutex_lock(&b->lock);
	b->wall_ns = wall_ns;
	if (b->count > 0 || b->trouble.kind != ERR_NONE)
		ok = ask_and_wait(b, err);
	pthread_mutex_unlock(&b->lock);
	return ok;
}

bool
outbox_new_stream(struct outbox *b, int64_t wall_ns, struct err *err)
{
	bool ok;

	pthread_mutex_lock(&b->lock);
	b->wall_ns = wall_ns;
	enqueue(b, NULL);
	ok = ask_and_wait(b, err);
	pthread_mutex_unlock(&b->lock);
	return ok;
}

/* ---- sending ---- */

static void
refresh_sending(struct outbox *b)
{
	struct spool *old = b->sending;

	if (old && b->sending_number == b->view_number)
		return;
	b->sending = spool_view(b->view);
	b->sending_number = b->view_number;
	if (old)
		spool_copy_position(b->sending, old);
	spool_free(old);
}

bool
outbox_peek(struct outbox *b, size_t max_bytes, struct buf *frames, struct spool_chunk *ret, bool *ret_any,
            struct err *err)
{
	for (bool asked = false;; asked = true) {
		struct err trouble = {0};
		bool ok = true;

		pthread_mutex_lock(&b->lock);
		refresh_sending(b);
		pthread_mutex_unlock(&b->lock);
		if (spool_peek(b->sending, max_bytes, frames, ret, ret_any, &trouble))
			return true;
		/* a file differs from the view: the writer changed it meanwhile, or must repair it */
		if (trouble.kind == ERR_CONFLICT && !asked) {
			pthread_mutex_lock(&b->lock);
			b->inspect = true;
			ok = ask_and_wait(b, &trouble);
			pthread_mutex_unlock(&b->lock);
		}
		if (asked || !ok || trouble.kind != ERR_CONFLICT) {
			*err = trouble;
			return false;
		}
	}
}

/* Applies a change of the view to the sending copy, which then need not be replaced. */
static void
update_sending(struct outbox *b)
{
	if (b->sending && b->sending_number == b->view_number)
		spool_copy_acks(b->sending, b->view);
}

bool
outbox_ack(struct outbox *b, uint64_t epoch, uint64_t next_seq, int64_t wall_ns, struct err *err)
{
	bool ok;

	pthread_mutex_lock(&b->lock);
	ok = spool_note_ack(b->view, epoch, next_seq, wall_ns, err);
	if (ok) {
		update_sending(b);
		b->save = true;
		(void)ask_writer(b);
	}
	pthread_mutex_unlock(&b->lock);
	return ok;
}

void
outbox_refuse(struct outbox *b, uint64_t epoch)
{
	pthread_mutex_lock(&b->lock);
	spool_refuse(b->view, epoch);
	update_sending(b);
	pthread_mutex_unlock(&b->lock);
}

void
outbox_offer_again(struct outbox *b)
{
	pthread_mutex_lock(&b->lock);
	spool_offer_again(b->view);
	update_sending(b);
	pthread_mutex_unlock(&b->lock);
}

void
outbox_stats(struct outbox *b, struct outbox_stats *ret)
{
	pthread_mutex_lock(&b->lock);
	*ret = (struct outbox_stats){.lost_waiting = b->lost,
	                             .epoch = spool_epoch(b->view),
	                             .next_seq = spool_next_seq(b->view)};
	for (size_t i = 0; i < b->count; i++)
		ret->waiting += b->queue[i].batch != NULL;
	spool_stats(b->view, &ret->spool);
	pthread_mutex_unlock(&b->lock);
}
