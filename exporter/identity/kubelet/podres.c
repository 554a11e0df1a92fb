/* exporter/identity/kubelet/podres.c - devices that the kubelet gave to pods: rules 3 to 6 of podres.h, the cgroups of pods, and the thread
 * that asks. */
#include "exporter/identity/kubelet/podres.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/thread.h"
#include "common/base/time.h"
#include "exporter/source/gpu_source.h"

#define LEAST_PAUSE_NS (NS_PER_S / 2) /* between two questions, even after podres_hurry */
#define OFFERS_EVERY_NS NS_PER_MIN    /* the advertised replicas change rarely */

/* ---- rules 3 to 6, pure ---- */

static bool
same_device(const struct podres_grant *a, const struct podres_grant *b)
{
	return a->replica == b->replica && strcmp(a->device, b->device) == 0;
}

static bool
same_pod(const struct podres_grant *a, const struct podres_grant *b)
{
	return strcmp(a->pod, b->pod) == 0 && strcmp(a->ns, b->ns) == 0;
}

static void
drop(struct podres_list *l, size_t at)
{
	podres_grant_fini(&l->grants[at]);
	l->grants[at] = l->grants[--l->count];
}

static void
name_uid(const struct podres_circumstances *c, struct podres_grant *g)
{
	const struct pod_folder *folder = pod_folders_by_name(c->folders, g->ns, g->pod);

	if (!folder)
		return;
	mem_free(g->uid);
	g->uid = mem_strdup(folder->uid);
}

static int
by_content(const void *a, const void *b)
{
	const struct podres_grant *x = a, *y = b;
	int order = strcmp(x->device, y->device);

	if (order == 0)
		order = x->replica < y->replica ? -1 : x->replica > y->replica;
	if (order == 0)
		order = strcmp(x->ns, y->ns);
	if (order == 0)
		order = strcmp(x->pod, y->pod);
	return order ? order : strcmp(x->container, y->container);
}

static void
sort(struct podres_list *l)
{
	if (l->count > 0)
		qsort(l->grants, l->count, sizeof(*l->grants), by_content);
}

/* Since when each is listed, and rule 6. Where there are no folders at all, there is none to wait for. */
static void
note_age(const struct podres_circumstances *c, struct podres_list *list, const struct podres_list *before)
{
	for (size_t i = 0; i < list->count; i++) {
		struct podres_grant *g = &list->grants[i];

		g->listed_boot_ns = c->boot_ns;
		for (size_t k = 0; k < before->count; k++)
			if (same_device(&before->grants[k], g) && same_pod(&before->grants[k], g))
				g->listed_boot_ns = before->grants[k].listed_boot_ns;
		g->setting_up =
			!g->uid[0] && c->folders->changed_ns != 0 && c->boot_ns - g->listed_boot_ns < PODRES_SETUP_NS;
	}
}

/* Rule 3. */
static void
keep_missing(const struct podres_circumstances *c, struct podres_list *list, struct podres_list *before)
{
	size_t answered = list->count;

	for (size_t i = before->count; i-- > 0;) {
		const struct podres_grant *old = &before->grants[i];
		bool given = false;

		for (size_t k = 0; k < answered && !given; k++)
			given = same_device(&list->grants[k], old);
		if (given || (old->uid[0] && !pod_folders_by_uid(c->folders, old->uid)))
			continue;
		list->grants = mem_grow(list->grants, list->count + 1, sizeof(*list->grants));
		list->grants[list->count++] = *old;
		before->grants[i] = before->grants[--before->count];
	}
}

/* Rule 5: true when a is to stay and b not. */
static bool
is_newer(const struct podres_circumstances *c, const struct podres_grant *a, const struct podres_grant *b)
{
	const struct pod_folder *x = pod_folders_by_uid(c->folders, a->uid),
				*y = pod_folders_by_uid(c->folders, b->uid);

	return x && y && x->changed_ns > y->changed_ns;
}

/* The list is sorted: the grants of one device are neighbours. */
static bool
is_superseded(const struct podres_circumstances *c, const struct podres_list *l, size_t at)
{
	const struct podres_grant *g = &l->grants[at];
	size_t first = at, last = at;

	while (first > 0 && same_device(&l->grants[first - 1], g))
		first--;
	while (last + 1 < l->count && same_device(&l->grants[last + 1], g))
		last++;
	for (size_t i = first; i <= last; i++)
		if (!same_pod(&l->grants[i], g) && is_newer(c, &l->grants[i], g))
			return true;
	return false;
}

static int
offer_order(const void *key, const void *offer)
{
	return strcmp(key, ((const struct podres_offer *)offer)->device);
}

/* How often the device is advertised; 0: not known. */
static int32_t
replicas_of(const struct podres_offers *o, const struct podres_grant *g)
{
	const struct podres_offer *found = NULL;

	if (g->replica < 0)
		return 0;
	if (o->count > 0)
		found = bsearch(g->device, o->offers, o->count, sizeof(*o->offers), offer_order);
	return found ? found->replicas : 0;
}

void
podres_apply(const struct podres_circumstances *c, const struct podres_offers *offers, struct podres_list *list,
             struct podres_list *before)
{
	for (size_t i = 0; i < list->count; i++)
		name_uid(c, &list->grants[i]);
	note_age(c, list, before);
	if (c->just_started)
		keep_missing(c, list, before);
	for (size_t i = list->count; i-- > 0;) {
		const struct podres_grant *g = &list->grants[i];

		if (c->alive && g->uid[0] && pod_folders_by_uid(c->folders, g->uid) && !c->alive(c->arg, g->uid))
			drop(list, i);
	}
	/* marked first: each is compared with all others before any is dropped */
	sort(list);
	for (size_t i = 0; i < list->count; i++)
		list->grants[i].replica_of = is_superseded(c, list, i) ? -1 : replicas_of(offers, &list->grants[i]);
	for (size_t i = list->count; i-- > 0;)
		if (list->grants[i].replica_of < 0)
			drop(list, i);
	sort(list);
}

/* ---- rule 4: cgroups of pods ---- */

/* v2 is mounted at the root itself or, beside v1, at unified; every v1 hierarchy that the kubelet uses has all its pods. */
static const char *const hierarchies[] = {"", "/memory", "/pids", "/systemd", "/unified"};

/* The folder in which a kubelet keeps its pods, by driver; with the systemd driver the name of a slice repeats those above it. */
static const struct {
	const char *folder;
	const char *slice; /* NULL: the cgroupfs driver */
} places[PODRES_PLACES] = {{"kubepods.slice", "kubepods"},
                           {"kubelet.slice/kubelet-kubepods.slice", "kubelet-kubepods"},
                           {"kubepods", NULL},
                           {"kubelet/kubepods", NULL}};

static const char *const classes[] = {"", "burstable", "besteffort"};

void
podres_cgroups_look(struct podres_cgroups *c, const char *root)
{
	char path[1024];

	_Static_assert(ARRAY_LEN(hierarchies) == PODRES_HIERARCHIES, "as many as in podres.h");
	*c = (struct podres_cgroups){.root = root};
	for (size_t h = 0; h < PODRES_HIERARCHIES; h++)
		for (size_t p = 0; p < PODRES_PLACES; p++) {
			snprintf(path, sizeof(path), "%s%s/%s", root, hierarchies[h], places[p].folder);
			c->exists[h][p] = access(path, F_OK) == 0;
		}
}

/* The pod's folder in one place, for one class of pods. */
static bool
exists(const char *folder, const char *slice, const char *class, const char *uid)
{
	const char *dash = class[0] ? "-" : "";
	char path[2048];

	if (!slice)
		snprintf(path, sizeof(path), "%s/%s%spod%s", folder, class, class[0] ? "/" : "", uid);
	else if (class[0])
		snprintf(path, sizeof(path), "%s/%s%s%s.slice/%s%s%s-pod%s.slice", folder, slice, dash, class, slice,
		         dash, class, uid);
	else
		snprintf(path, sizeof(path), "%s/%s-pod%s.slice", folder, slice, uid);
	return access(path, F_OK) == 0;
}

/* The systemd driver writes '_' for '-'. False: not a UID. */
static bool
uid_for_systemd(const char *uid, char *out, size_t size)
{
	size_t n = 0;

	for (; uid[n]; n++) {
		if (n == size - 1 || uid[n] == '/')
			return false;
		out[n] = uid[n];
		if (out[n] == '-')
			out[n] = '_';
	}
	out[n] = '\0';
	return n > 0;
}

bool
podres_cgroup_exists(const struct podres_cgroups *c, const char *uid)
{
	char under[128], folder[1024];

	if (!uid_for_systemd(uid, under, sizeof(under)))
		return false;
	for (size_t h = 0; h < PODRES_HIERARCHIES; h++)
		for (size_t p = 0; p < PODRES_PLACES; p++) {
			if (!c->exists[h][p])
				continue;
			snprintf(folder, sizeof(folder), "%s%s/%s", c->root, hierarchies[h], places[p].folder);
			for (size_t i = 0; i < ARRAY_LEN(classes); i++)
				if (exists(folder, places[p].slice, classes[i], places[p].slice ? under : uid))
					return true;
		}
	return false;
}

bool
podres_cgroups_seen(const struct podres_cgroups *c, const struct pod_folders *folders)
{
	bool any = false;

	for (size_t h = 0; h < PODRES_HIERARCHIES; h++)
		for (size_t p = 0; p < PODRES_PLACES; p++)
			any |= c->exists[h][p];
	for (size_t i = 0; any && i < folders->count; i++)
		if (podres_cgroup_exists(c, folders->list[i].uid))
			return true;
	return false;
}

/* ---- one question ---- */

/* Tells one run of the kubelet from the next: each makes its socket anew. */
struct run_id {
	uint64_t inode;
	int64_t changed_ns;
};

struct podres {
	struct podres_options options;
	char *socket_path, *pods_root, *cgroup_root;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed; /* stop, hurry, or the first question has ended */
	bool stop, hurry, asked;
	struct podres_list holds; /* under the lock; written by the thread only */
	struct podres_stats stats;
	/* the thread's own */
	struct pod_folders folders;
	struct podres_offers offers;
	struct buf message;
	struct run_id run;
	int64_t run_seen_boot_ns, offers_boot_ns;
	bool restarted; /* this is not the first run of the kubelet that was seen */
};

/* Notes when another run of the kubelet began to answer. */
static void
note_run(struct podres *p)
{
	struct run_id run = {0};
	struct stat st;

	if (stat(p->socket_path, &st) == 0)
		run = (struct run_id){.inode = st.st_ino,
		                      .changed_ns = st.st_ctim.tv_sec * NS_PER_S + st.st_ctim.tv_nsec};
	if (run.inode == p->run.inode && run.changed_ns == p->run.changed_ns)
		return;
	p->restarted = p->run.inode != 0;
	p->run = run;
	p->run_seen_boot_ns = time_boot_ns();
	p->offers_boot_ns = 0;
}

/* A kubelet may lack this method or have it switched off: replicas are then those of the last answer, or of the options. */
static void
ask_offers(struct podres *p, struct podres_conn *conn, int64_t deadline_ns)
{
	struct podres_offers offers;

	if (p->offers_boot_ns != 0 && time_boot_ns() - p->offers_boot_ns < OFFERS_EVERY_NS)
		return;
	p->offers_boot_ns = time_boot_ns();
	if (!podres_call(conn, "GetAllocatableResources", deadline_ns, &p->message, NULL) ||
	    !podres_decode_offers(buf_text(&p->message), p->message.len, &offers, NULL))
		return;
	podres_offers_fini(&p->offers);
	p->offers = offers;
}

static bool
ask(struct podres *p, struct podres_list *ret, struct err *err)
{
	owned(podres_conn) struct podres_conn *conn = NULL;
	int64_t deadline_ns = time_monotonic_ns() + p->options.timeout_ns;

	if (!podres_connect(p->socket_path, deadline_ns, &conn, err))
		return false;
	note_run(p);
	if (!podres_call(conn, "List", deadline_ns, &p->message, err) ||
	    !podres_decode_list(buf_text(&p->message), p->message.len, ret, err))
		return false;
	ask_offers(p, conn, deadline_ns);
	return true;
}

static bool
is_alive(const void *arg, const char *uid)
{
	return podres_cgroup_exists(arg, uid);
}

static bool
same_text(const char *a, const char *b)
{
	return strcmp(a, b) == 0;
}

/* Both are sorted. */
static bool
same_list(const struct podres_list *a, const struct podres_list *b)
{
	if (a->count != b->count)
		return false;
	for (size_t i = 0; i < a->count; i++) {
		const struct podres_grant *x = &a->grants[i], *y = &b->grants[i];

		if (x->setting_up != y->setting_up || x->replica != y->replica || x->replica_of != y->replica_of ||
		    !same_text(x->device, y->device) || !same_text(x->ns, y->ns) || !same_text(x->pod, y->pod) ||
		    !same_text(x->uid, y->uid) || !same_text(x->container, y->container))
			return false;
	}
	return true;
}

static void
copy_list(struct podres_list *to, const struct podres_list *from)
{
	*to = (struct podres_list){.grants = mem_array(from->count, sizeof(*to->grants)), .count = from->count};
	for (size_t i = 0; i < from->count; i++) {
		const struct podres_grant *g = &from->grants[i];

		to->grants[i] = (struct podres_grant){.ns = mem_strdup(g->ns),
		                                      .pod = mem_strdup(g->pod),
		                                      .uid = mem_strdup(g->uid),
		                                      .container = mem_strdup(g->container),
		                                      .device = mem_strdup(g->device),
		                                      .replica = g->replica,
		                                      .replica_of = g->replica_of,
		                                      .listed_boot_ns = g->listed_boot_ns,
		                                      .setting_up = g->setting_up};
	}
}

/* Applies the rules to a new answer or, without one, to the last: pods may end also while the kubelet is away. */
static void
settle(struct podres *p, struct podres_list *list, bool answered)
{
	struct podres_circumstances c = {.folders = &p->folders, .boot_ns = time_boot_ns()};
	struct podres_cgroups cgroups;
	struct podres_list before;

	pod_folders_read(&p->folders);
	/* without a kubelet there is nothing to look for in the cgroups */
	if (!answered && p->holds.count == 0)
		return;
	c.just_started = answered && p->restarted && c.boot_ns - p->run_seen_boot_ns < PODRES_GRACE_NS;
	podres_cgroups_look(&cgroups, p->cgroup_root);
	c.alive = podres_cgroups_seen(&cgroups, &p->folders) ? is_alive : NULL;
	c.arg = &cgroups;
	/* only this thread writes it, so reading needs no lock */
	copy_list(&before, &p->holds);
	if (!answered)
		copy_list(list, &p->holds);
	podres_apply(&c, &p->offers, list, &before);
	podres_list_fini(&before);
	pthread_mutex_lock(&p->lock);
	if (!same_list(list, &p->holds)) {
		struct podres_list old = p->holds;

		p->holds = *list;
		*list = old;
		p->stats.version++;
	}
	pthread_mutex_unlock(&p->lock);
	podres_list_fini(list);
}

/* ---- the thread ---- */

static void
note_outcome(struct podres *p, bool answered, const struct err *err)
{
	pthread_mutex_lock(&p->lock);
	p->stats.up = answered;
	/* if nobody ever listened on the socket there is no kubelet, and no trouble to report */
	p->stats.used = p->stats.used || answered || err->kind != ERR_MISSING;
	p->stats.trouble = (struct err){0};
	if (answered) {
		p->stats.answers++;
		p->stats.answered_boot_ns = time_boot_ns();
	} else if (p->stats.used) {
		p->stats.failures++;
		p->stats.trouble = *err;
	}
	p->asked = true;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

/* Waits for a while, or until podres_hurry is called; true when the thread shall end. */
static bool
rest(struct podres *p, int64_t until_ns)
{
	bool stop;

	pthread_mutex_lock(&p->lock);
	while (!p->stop && condition_wait_until(&p->changed, &p->lock, until_ns))
		;
	stop = p->stop;
	pthread_mutex_unlock(&p->lock);
	return stop;
}

static bool
take_hurry(struct podres *p)
{
	bool hurry;

	pthread_mutex_lock(&p->lock);
	hurry = p->hurry;
	p->hurry = false;
	pthread_mutex_unlock(&p->lock);
	return hurry;
}

/* Sleeps until the next question; true when there shall be none. A pod that comes or goes makes it earlier. */
static bool
pause_until_next(struct podres *p)
{
	int64_t end_ns = time_monotonic_ns() + p->options.refresh_ns;

	do {
		if (rest(p, time_monotonic_ns() + LEAST_PAUSE_NS))
			return true;
	} while (!take_hurry(p) && !pod_folders_changed(&p->folders) && time_monotonic_ns() < end_ns);
	return false;
}

static void *
run(void *arg)
{
	struct podres *p = arg;

	do {
		struct podres_list list = {0};
		struct err err = {0};
		bool answered = ask(p, &list, &err);

		settle(p, &list, answered);
		note_outcome(p, answered, &err);
	} while (!pause_until_next(p));
	return NULL;
}

bool
podres_start(const struct podres_options *o, struct podres **ret, struct err *err)
{
	struct podres *p = mem_alloc(sizeof(*p));
	int rc;

	p->options = *o;
	p->socket_path = mem_strdup(o->socket_path);
	p->pods_root = mem_strdup(o->pods_root);
	p->cgroup_root = mem_strdup(o->cgroup_root);
	p->stats.answered_boot_ns = ABSENT;
	pod_folders_init(&p->folders, p->pods_root);
	buf_init(&p->message, PODRES_MESSAGE_MAX);
	pthread_mutex_init(&p->lock, NULL);
	condition_init(&p->changed);
	rc = pthread_create(&p->thread, NULL, run, p);
	if (rc != 0) {
		p->stop = true; /* there is no thread to end */
		podres_free(p);
		return err_errno(err, ERR_FATAL, rc, "no thread to ask the kubelet");
	}
	*ret = p;
	return true;
}

void
podres_free(struct podres *p)
{
	bool has_thread;

	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	has_thread = !p->stop;
	p->stop = true;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
	/* at most one question's time */
	if (has_thread)
		pthread_join(p->thread, NULL);
	podres_list_fini(&p->holds);
	podres_offers_fini(&p->offers);
	pod_folders_fini(&p->folders);
	buf_fini(&p->message);
	pthread_cond_destroy(&p->changed);
	pthread_mutex_destroy(&p->lock);
	mem_free(p->socket_path);
	mem_free(p->pods_root);
	mem_free(p->cgroup_root);
	mem_free(p);
}

void
podres_wait_first(struct podres *p, int64_t most_ns)
{
	int64_t until_ns = time_monotonic_ns() + most_ns;

	pthread_mutex_lock(&p->lock);
	while (!p->asked && condition_wait_until(&p->changed, &p->lock, until_ns))
		;
	pthread_mutex_unlock(&p->lock);
}

void
podres_hurry(struct podres *p)
{
	pthread_mutex_lock(&p->lock);
	p->hurry = true;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

void
podres_stats(struct podres *p, struct podres_stats *ret)
{
	pthread_mutex_lock(&p->lock);
	*ret = p->stats;
	pthread_mutex_unlock(&p->lock);
}

uint64_t
podres_visit(struct podres *p, void (*each)(void *arg, const struct podres_grant *g), void *arg)
{
	uint64_t version;

	pthread_mutex_lock(&p->lock);
	version = p->stats.version;
	for (size_t i = 0; i < p->holds.count; i++)
		if (!p->holds.grants[i].setting_up)
			each(arg, &p->holds.grants[i]);
	pthread_mutex_unlock(&p->lock);
	return version;
}
