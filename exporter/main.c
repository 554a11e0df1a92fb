/* exporter/main.c - the node daemon: starts its parts, ticks on the boot clock until a signal ends it. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/log.h"
#include "common/base/time.h"
#include "exporter/source/gpu_changes.h"
#include "exporter/options.h"
#include "exporter/privileges.h"
#include "exporter/record/record.h"
#include "exporter/sampler.h"
#include "exporter/source/dcgm/dcgm.h"
#include "exporter/web.h"

#define CHUNK_BYTES (1u << 20)
#define CONNECT_TIMEOUT_NS (5 * NS_PER_S)
#define LEAST_PAUSE_NS NS_PER_S
#define MOST_PAUSE_NS NS_PER_MIN
#define REFUSED_PAUSE_NS NS_PER_HOUR
#define LAST_PUSH_NS (5 * NS_PER_S)
#define LAST_WRITE_NS (3 * NS_PER_S)
#define STALE_INTERVALS 10
/* The start waits for the driver for so long; if it has not answered by then, the exporter serves and goes on waiting. A driver that
 * fails sooner ends the start. */
#define OPEN_PATIENCE_NS (5 * NS_PER_S)
/* How long the start waits for DCGM; each tick waits for this part of the sample interval. */
#define DCGM_PATIENCE_NS (4 * NS_PER_S)
#define DCGM_PERCENT 5
/* The kubelet is asked every few seconds, and sooner when a process turns up that its last answer does not explain. */
#define KUBELET_REFRESH_NS (2 * NS_PER_S)
#define KUBELET_TIMEOUT_NS (3 * NS_PER_S)
#define KUBELET_PATIENCE_NS (2 * NS_PER_S)
/* Labels of known pods change rarely; those of an unknown pod are asked for at once. */
#define LABELS_REFRESH_NS (15 * NS_PER_S)
#define LABELS_TIMEOUT_NS (5 * NS_PER_S)
/* Open files: those of the cgroups of workloads stay open, and are then read without opening them each time. */
#define OTHER_FILES_MAX 1024u
#define OPEN_FILES_MAX (OTHER_FILES_MAX + 3072u)
/* The part of a sample interval for which a tick waits for the disk. */
#define DISK_PERCENT 20
/* A change of a map file brings a tick forward, but not closer than this to the one before. */
#define EARLY_TICK_NS (100 * NS_PER_MS)

enum trouble {
	TROUBLE_READING,
	TROUBLE_SILENT,
	TROUBLE_UNNAMED,
	TROUBLE_DCGM,
	TROUBLE_DCGM_LISTS,
	TROUBLE_STORING,
	TROUBLE_KUBELET,
	TROUBLE_LABELS,
	TROUBLE_JOB_FILES,
	TROUBLE_COUNT
};
/* Troubles that a tick reports. Each is logged when it begins or its text changes, and when it is over. */
static const struct {
	size_t offset; /* of its error in struct sampler_report */
	const char *begins, *ends;
} troubles[TROUBLE_COUNT] = {
	[TROUBLE_READING] = {offsetof(struct sampler_report, reading),
                             "the GPUs cannot be read, their time is unknown until they can",
                             "the GPUs are read again"},
	[TROUBLE_SILENT] = {offsetof(struct sampler_report, silent),
                            "GPUs do not answer, their time is unknown until they do", "every GPU answers"},
	[TROUBLE_UNNAMED] = {offsetof(struct sampler_report, unnamed),
                             "the driver lists GPUs that it does not let be read, they are not metered",
                             "every GPU that the driver lists can be named"},
	[TROUBLE_DCGM] = {offsetof(struct sampler_report, dcgm),
                          "DCGM does not tell all that it could, NVML's values stay", "DCGM tells all that it can"},
	[TROUBLE_DCGM_LISTS] = {offsetof(struct sampler_report, dcgm_lists),
                                "MIG instances are not known to DCGM, NVML's values of them stay",
                                "DCGM lists every MIG instance"},
	[TROUBLE_STORING] = {offsetof(struct sampler_report, storing), "batches wait in memory",
                             "batches are on disk again"},
	[TROUBLE_KUBELET] = {offsetof(struct sampler_report, kubelet),
                             "the kubelet does not tell who has which device, its last answer holds",
                             "the kubelet answers again"},
	[TROUBLE_LABELS] = {offsetof(struct sampler_report, labels),
                            "the kubelet does not tell the labels of its pods, its last answer holds",
                            "the kubelet tells the labels of its pods again"},
	[TROUBLE_JOB_FILES] = {offsetof(struct sampler_report, job_files),
                               "files that say which job has which GPU are refused", "no such file is refused"},
};

struct logged {
	char text[sizeof(((struct err *)0)->text)]; /* of the trouble that lasts; empty: none */
};

/* The parts, in the order in which they start; they end in the opposite one. */
struct daemon {
	const struct exporter_options *options;
	struct spool_options spool;
	struct nvml_options nvml;
	struct privileges privileges;
	struct dcgm *dcgm; /* NULL: not used */
	struct reader *reader;
	struct outbox *outbox;
	struct push *push;
	struct status *status;
	struct metrics *metrics;
	struct web *web;
	struct podlabels *labels; /* NULL: not asked for */
	struct sampler *sampler;
	struct gpu_changes *changes;
	struct recorder *recorder; /* NULL: not wanted */
	int timer_fd, signal_fd;
	int watch_fd;    /* of the folders of map files; -1: a change waits for the next tick */
	int last_signal; /* that ended the ticks */
	struct logged troubles[TROUBLE_COUNT], recording;
	bool answered; /* the driver, at least once */
};

static bool
read_boot_id(uint8_t out[WIRE_BOOT_ID_SIZE], struct err *err)
{
	in_place(buf) struct buf text = {0};
	char hex[2 * WIRE_BOOT_ID_SIZE + 1];
	size_t n = 0;

	buf_init(&text, 64);
	if (!buf_read_file(&text, "/proc/sys/kernel/random/boot_id", err))
		return false;
	for (size_t i = 0; i < text.len && n < sizeof(hex) - 1; i++)
		if (text.data[i] != '-' && text.data[i] != '\n')
			hex[n++] = text.data[i];
	hex[n] = '\0';
	return hex_decode(hex, out, WIRE_BOOT_ID_SIZE, err) || err_prefix(err, "boot_id");
}

/* ---- starting ---- */

static bool
open_source(void *arg, struct gpu_source **ret, struct err *err)
{
	const struct daemon *d = arg;

	if (!nvml_open(&d->nvml, ret, err))
		return false;
	if (d->dcgm)
		*ret = source_auto_new(*ret, d->dcgm, d->options->source == SOURCE_DCGM);
	return true;
}

/* A node without DCGM's library does without DCGM, unless the options ask for it. With --nvml-library, DCGM is used only if its library or
 * host is named too, so that a simulator does not start the engine of a real node. */
static bool
start_dcgm(struct daemon *d, struct err *err)
{
	const struct exporter_options *o = d->options;
	struct dcgm_options dcgm = {.library = o->dcgm_library,
	                            .host = o->dcgm_host,
	                            .sample_interval_ns = o->sample_interval_ns,
	                            .wait_ns = o->sample_interval_ns / 100 * DCGM_PERCENT};
	struct dcgm_status status;

	if (o->source == SOURCE_NVML ||
	    (o->source == SOURCE_AUTO && o->nvml_library && !o->dcgm_library && !o->dcgm_host))
		return true;
	if (!dcgm_new(&dcgm, &d->dcgm, err))
		return false;
	if (dcgm_wait_open(d->dcgm, DCGM_PATIENCE_NS, err)) {
		dcgm_status(d->dcgm, &status);
		log_event(LOG_INFO, "DCGM answers", LS("version", status.version),
		          LI("watched", (int64_t)status.watched), LI("refused", (int64_t)status.refused));
		return true;
	}
	if (o->source == SOURCE_DCGM)
		return err_prefix(err, "source dcgm");
	if (err->kind == ERR_MISSING && !o->dcgm_host && !o->dcgm_library) {
		log_event(LOG_INFO, "all values are NVML's", LS("why", err->text));
		dcgm_free(take(d->dcgm));
	}
	return true;
}

/* Runs in the thread that opened the library, which leaves root too. */
static void
on_opened(void *arg)
{
	const struct daemon *d = arg;
	struct err err;

	if (!d->options->user || privileges_drop(&d->privileges, &err))
		return;
	log_event(LOG_ERROR, "root cannot be left", LS("error", err.text));
	_exit(CONF_EXIT_FAILED);
}

static bool
start_reader(struct daemon *d, struct err *err)
{
	const struct exporter_options *o = d->options;
	struct reader_options r = {.open = open_source, .arg = d, .opened = on_opened};

	d->nvml = (struct nvml_options){.library = o->nvml_library, .enable_accounting = o->enable_accounting};
	if (o->user && !privileges_find(o->user, &d->privileges, err))
		return false;
	if (!start_dcgm(d, err) || !reader_new(&r, &d->reader, err) ||
	    !reader_wait_open(d->reader, OPEN_PATIENCE_NS, &d->answered, err))
		return false;
	if (!d->answered)
		log_write(LOG_WARN, "the GPU driver does not answer, it is waited for", NULL);
	if (!o->user)
		return true;
	if (!privileges_drop(&d->privileges, err))
		return false;
	log_event(LOG_INFO, "root is left", LS("user", d->privileges.user), LI("uid", d->privileges.uid),
	          LI("gid", d->privileges.gid), LI("groups", d->privileges.group_count));
	return true;
}

static bool
open_outbox(struct daemon *d, struct err *err)
{
	const struct exporter_options *o = d->options;
	struct spool *spool = NULL;
	struct spool_stats stats;

	d->spool = (struct spool_options){.dir = o->spool_dir,
	                                  .cap_bytes = o->spool_cap_bytes,
	                                  .segment_bytes = o->spool_segment_bytes,
	                                  .keep_ns = o->spool_keep_ns,
	                                  .node = o->node,
	                                  .exporter_version = TOLLGATE_VERSION};
	if (!read_boot_id(d->spool.boot_id, err) || !spool_open(&d->spool, time_wall_ns(), &spool, err))
		return false;
	spool_stats(spool, &stats);
	d->outbox = outbox_new(spool, &d->spool);
	if (!outbox_start(d->outbox, o->sample_interval_ns / 100 * DISK_PERCENT, err))
		return false;
	log_event(LOG_INFO, "spool open", LS("dir", o->spool_dir), LI("unsent", stats.unacked_batches),
	          LI("bytes", stats.bytes), LI("torn_tails", stats.torn_tails));
	if (stats.corrupt_segments > 0)
		log_event(LOG_WARN, "damaged spool files were set aside as *.corrupt",
		          LI("files", stats.corrupt_segments), LI("lost_batches", stats.lost_batches));
	if (stats.foreign_segments > 0)
		log_event(LOG_WARN, "spool files of a newer exporter were left alone",
		          LI("files", stats.foreign_segments));
	return true;
}

static void
wake_push(void *arg)
{
	push_wake(arg);
}

static bool
start_push(struct daemon *d, struct err *err)
{
	const struct exporter_options *o = d->options;
	struct push_options p = {.http = {.base_url = o->aggregator_url,
	                                  .token_file = o->token_file,
	                                  .ca_file = o->ca_file,
	                                  .client_cert = o->client_cert,
	                                  .client_key = o->client_key,
	                                  .user_agent = "tollgate-exporter/" TOLLGATE_VERSION,
	                                  .connect_timeout_ns = CONNECT_TIMEOUT_NS,
	                                  .timeout_ns = o->push_timeout_ns},
	                         .chunk_bytes = CHUNK_BYTES,
	                         .least_pause_ns = LEAST_PAUSE_NS,
	                         .most_pause_ns = MOST_PAUSE_NS,
	                         .refused_pause_ns = REFUSED_PAUSE_NS};

	p.join = (struct join_options){.join_token_file = o->join_token_file,
	                               .token_file = o->token_file,
	                               .node = o->node};
	if (!o->aggregator_url) {
		log_event(LOG_INFO, "no aggregator-url: batches stay in the spool", LS("dir", o->spool_dir));
		return true;
	}
	if (!push_start(&p, d->outbox, &d->push, err))
		return false;
	outbox_listen(d->outbox, wake_push, d->push);
	return status_start(&(struct status_options){.http = p.http,
	                                             .joins = o->join_token_file != NULL,
	                                             .interval_ns = o->status_interval_ns},
	                    &d->status, err);
}

static bool
start_clock(struct daemon *d, const sigset_t *signals, struct err *err)
{
	d->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC);
	d->signal_fd = signalfd(-1, signals, SFD_CLOEXEC);
	if (d->timer_fd < 0 || d->signal_fd < 0)
		return err_errno(err, ERR_FATAL, errno, "cannot make a timer");
	/* without it a change waits for the next tick */
	d->watch_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	return true;
}

/* How many files of cgroups may stay open. Raises the limit of open files as far as that helps. */
static size_t
cgroup_files(void)
{
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l) != 0)
		return 0;
	if (l.rlim_cur < OPEN_FILES_MAX) {
		l.rlim_cur = l.rlim_max < OPEN_FILES_MAX ? l.rlim_max : OPEN_FILES_MAX;
		if (setrlimit(RLIMIT_NOFILE, &l) != 0)
			return 0;
	}
	if (l.rlim_cur <= OTHER_FILES_MAX)
		return 0;
	return (size_t)(l.rlim_cur < OPEN_FILES_MAX ? l.rlim_cur : OPEN_FILES_MAX) - OTHER_FILES_MAX;
}

/* Without --kubelet-url and --pod-labels no labels are asked for. */
static bool
start_labels(struct daemon *d, struct err *err)
{
	const struct exporter_options *o = d->options;
	struct podlabels_options l = {.url = o->kubelet_url,
	                              .token_file = o->kubelet_token_file,
	                              .ca_file = o->kubelet_ca_file,
	                              .keys = o->pod_labels,
	                              .user_agent = "tollgate-exporter/" TOLLGATE_VERSION,
	                              .refresh_ns = LABELS_REFRESH_NS,
	                              .timeout_ns = LABELS_TIMEOUT_NS};

	if (!o->kubelet_url || !o->pod_labels)
		return true;
	if (!podlabels_start(&l, &d->labels, err))
		return false;
	podlabels_wait_first(d->labels, KUBELET_PATIENCE_NS);
	sampler_use_labels(d->sampler, d->labels);
	return true;
}

static bool
start_sampler(struct daemon *d, struct err *err)
{
	const struct exporter_options *o = d->options;
	struct sampler_options s = {.node = o->node,
	                            .version = TOLLGATE_VERSION,
	                            .sample_interval_ns = o->sample_interval_ns,
	                            .interval_ns = o->interval_ns,
	                            .read_patience_ns = o->sample_interval_ns / 100 * o->read_deadline_percent,
	                            .replicas = (int)o->replicas,
	                            .process_metrics = o->process_metrics,
	                            .max_process_series = (size_t)o->max_process_series,
	                            .dcgm_hostname = exporter_dcgm_hostname(o),
	                            .dcgm_pod_uid = o->compat_pod_uid,
	                            .dcgm = d->dcgm,
	                            .clock = time_boot_ns,
	                            .identity = {.proc_root = o->proc_root,
	                                         .pods_root = o->pods_root,
	                                         .slurm_pod_namespaces = o->slurm_pod_namespaces}};

	struct alloc_options a = {.kubelet = {.socket_path = o->kubelet_socket,
	                                      .pods_root = o->pods_root,
	                                      .cgroup_root = o->cgroup_root,
	                                      .refresh_ns = KUBELET_REFRESH_NS,
	                                      .timeout_ns = KUBELET_TIMEOUT_NS},
	                          .slurm = {.slurm_dir = o->slurm_map_dir,
	                                    .hpc_dir = o->hpc_job_mapping_dir,
	                                    .owner_uid = o->slurm_map_uid}};
	struct workload_options w = {.proc_root = o->proc_root,
	                             .cgroup_root = o->cgroup_root,
	                             .files_max = cgroup_files()};

	d->sampler = sampler_new(&s, d->reader, d->outbox, d->push, d->metrics, time_boot_ns(), time_wall_ns());
	if (d->status)
		sampler_use_status(d->sampler, d->status, d->spool.boot_id);
	if (o->workload_metrics && !sampler_use_workloads(d->sampler, &w, err))
		return false;
	return start_labels(d, err) && sampler_use_allocations(d->sampler, &a, KUBELET_PATIENCE_NS, err);
}

static void
log_facts(struct daemon *d, const char *event)
{
	struct reader_facts facts;

	reader_facts(d->reader, &facts);
	log_event(LOG_INFO, event, LS("node", d->options->node), LS("listen", d->options->listen),
	          LS("version", TOLLGATE_VERSION), LS("source", facts.name), LS("driver", facts.driver),
	          LS("simulated", facts.simulated ? "yes" : "no"));
}

/* The library first, because that may need root; everything after it does not. */
static bool
start(struct daemon *d, const sigset_t *signals, struct err *err)
{
	const struct exporter_options *o = d->options;

	if (!start_clock(d, signals, err) || !start_reader(d, err) || !open_outbox(d, err) || !start_push(d, err))
		return false;
	d->metrics = metrics_new();
	d->changes = gpu_changes_new();
	if (!web_start(o, d->metrics, STALE_INTERVALS * o->sample_interval_ns, &d->web, err))
		return false;
	if (!start_sampler(d, err))
		return false;
	if (o->record &&
	    !recorder_new(&(struct recorder_options){o->record, o->node, o->proc_root, 0}, &d->recorder, err))
		return false;
	log_facts(d, "ready");
	return true;
}

/* False: a call of the driver or of the disk is still under way, and its memory is left to it. */
static bool
stop(struct daemon *d)
{
	struct err err;
	bool whole;

	web_stop(d->web);
	sampler_free(d->sampler);
	gpu_changes_free(d->changes);
	podlabels_free(d->labels);
	if (!recorder_close(d->recorder, LAST_WRITE_NS, &err))
		log_event(LOG_WARN, "the recording lacks its end", LS("error", err.text));
	if (d->outbox)
		outbox_listen(d->outbox, NULL, NULL);
	/* while the thread that sends is in a call of the disk, the outbox is left to it */
	whole = push_stop(d->push, LAST_PUSH_NS) && outbox_close(d->outbox);
	whole &= status_stop(d->status);
	metrics_free(d->metrics);
	/* a source that is left to its call goes on using DCGM */
	whole &= reader_close(d->reader) && dcgm_close(d->dcgm);
	if (d->timer_fd >= 0)
		close(d->timer_fd);
	if (d->signal_fd >= 0)
		close(d->signal_fd);
	if (d->watch_fd >= 0)
		close(d->watch_fd);
	return whole;
}

/* ---- ticking ---- */

/* Logs a trouble when it begins or its text changes, and when it is over. */
static void
log_trouble(struct logged *last, const struct err *err, const char *begins, const char *ends)
{
	if (err->kind == ERR_NONE) {
		if (last->text[0])
			log_event(LOG_INFO, ends, LS("was", last->text));
		last->text[0] = '\0';
	} else if (strcmp(last->text, err->text) != 0) {
		log_event(LOG_WARN, begins, LS("error", err->text));
		*last = (struct logged){0};
		snprintf(last->text, sizeof(last->text), "%s", err->text);
	}
}

static void
log_trouble_of(struct daemon *d, const struct sampler_report *r, enum trouble t)
{
	const struct err *err = (const struct err *)((const char *)r + troubles[t].offset);

	log_trouble(&d->troubles[t], err, troubles[t].begins, troubles[t].ends);
}

static void
log_report(struct daemon *d, const struct sampler_report *r)
{
	for (enum trouble t = 0; t < TROUBLE_COUNT; t++)
		log_trouble_of(d, r, t);
	if (r->clock_step_ns != 0)
		log_event(LOG_WARN, "the clock was stepped: a new stream begins",
		          LI("step_ms", r->clock_step_ns / NS_PER_MS));
}

/* One line for each change of a GPU. */
static void
log_gpu_changes(struct daemon *d, int64_t boot_ns)
{
	const struct gpu_snapshot *snapshot = sampler_snapshot(d->sampler);
	const struct gpu_change *changes = NULL;
	size_t count = snapshot ? gpu_changes_take(d->changes, snapshot, boot_ns, &changes) : 0;

	for (size_t i = 0; i < count; i++) {
		const struct gpu_change *c = &changes[i];

		switch (c->kind) {
		case GPU_CHANGE_DOWN:
			log_event(LOG_WARN, "a GPU is down, its time is billed to nobody", LS("gpu", c->uuid),
			          LI("index", c->index), LS("reason", c->reason));
			break;
		case GPU_CHANGE_BACK:
			log_event(LOG_INFO, "a GPU that was down is read again", LS("gpu", c->uuid),
			          LI("index", c->index), LS("was", c->reason));
			break;
		case GPU_CHANGE_XID:
			log_event(LOG_WARN, "a GPU reports a critical error (XID)", LS("gpu", c->uuid),
			          LI("index", c->index), LI("xid", c->xid), LI("count", c->count));
			break;
		}
	}
}

static void
record(struct daemon *d, int64_t wall_ns)
{
	const struct gpu_snapshot *snapshot = sampler_snapshot(d->sampler);
	struct reader_facts facts;
	struct err err = {0};

	if (!d->recorder || !snapshot)
		return;
	reader_facts(d->reader, &facts);
	if (recorder_take(d->recorder, snapshot, facts.driver, facts.library, wall_ns, &err))
		err.kind = ERR_NONE;
	log_trouble(&d->recording, &err, "the recording is not on disk", "the recording is on disk again");
}

/* Push and status each report while their requests are refused because of the token. */
static void
show_refused_token(struct daemon *d)
{
	struct push_stats pushed = {.refused = ""};
	struct status_stats status = {.refused = ""};

	if (d->push)
		push_stats(d->push, &pushed);
	if (d->status)
		status_stats(d->status, &status);
	web_note_refused(d->web, pushed.refused[0] != '\0' ? pushed.refused : status.refused);
}

static void
tick(struct daemon *d)
{
	int64_t boot_ns = time_boot_ns(), wall_ns = time_wall_ns();
	struct sampler_report report;

	sampler_tick(d->sampler, boot_ns, wall_ns, &report);
	record(d, wall_ns);
	sampler_took(d->sampler, time_boot_ns() - boot_ns);
	web_note(d->web, boot_ns, &report);
	show_refused_token(d);
	if (!d->answered && report.reading.kind == ERR_NONE) {
		d->answered = true;
		log_facts(d, "the GPU driver answers");
	}
	log_report(d, &report);
	log_gpu_changes(d, boot_ns);
}

/* SIGHUP reads the web configuration and certificates again; true when the signal ends the program. */
static bool
take_signal(struct daemon *d)
{
	struct signalfd_siginfo info = {0};

	if (read(d->signal_fd, &info, sizeof(info)) == sizeof(info) && info.ssi_signo == SIGHUP) {
		log_write(LOG_INFO, "SIGHUP", NULL);
		web_renew(d->web);
		return false;
	}
	d->last_signal = (int)info.ssi_signo;
	return true;
}

/* Watches the folders in which prologs say which job has which GPUs; made again after each tick, because a folder may appear later. */
static void
watch_maps(struct daemon *d)
{
	const char *const folders[] = {d->options->slurm_map_dir, d->options->hpc_job_mapping_dir};

	for (size_t i = 0; d->watch_fd >= 0 && i < ARRAY_LEN(folders); i++)
		if (folders[i])
			(void)inotify_add_watch(d->watch_fd, folders[i],
			                        IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_ONLYDIR);
}

static void
forget_changes(struct daemon *d)
{
	char events[4096];

	while (read(d->watch_fd, events, sizeof(events)) > 0)
		;
}

/* Sleeps until the deadline on the boot clock, which goes on while the machine is suspended, or, with `early`,
 * until a map file changes. True when a signal ends the program. */
static bool
sleep_until(struct daemon *d, int64_t boot_ns, bool early)
{
	struct itimerspec at = {
		.it_value = {.tv_sec = (time_t)(boot_ns / NS_PER_S), .tv_nsec = (long)(boot_ns % NS_PER_S)}};
	struct pollfd fds[] = {{.fd = d->signal_fd, .events = POLLIN},
	                       {.fd = d->timer_fd, .events = POLLIN},
	                       {.fd = early ? d->watch_fd : -1, .events = POLLIN}};
	uint64_t expirations;

	ASSERT(timerfd_settime(d->timer_fd, TFD_TIMER_ABSTIME, &at, NULL) == 0);
	do {
		while (poll(fds, ARRAY_LEN(fds), -1) < 0)
			ASSERT(errno == EINTR);
		if (fds[0].revents && take_signal(d))
			return true;
	} while (!fds[1].revents && !fds[2].revents);
	if (fds[1].revents)
		ASSERT(read(d->timer_fd, &expirations, sizeof(expirations)) == sizeof(expirations));
	return false;
}

/* Ticks fall on multiples of the sample interval since 1970 as the clock stood at the start, so that intervals close just
 * after they end. A deadline that has passed is not made up for. A change of a map file brings the next tick forward. */
static void
tick_until_signal(struct daemon *d)
{
	int64_t step_ns = d->options->sample_interval_ns;
	int64_t offset_ns = time_wall_ns() - time_boot_ns();
	int64_t deadline_ns, soonest_ns;

	do {
		int64_t began_ns = time_boot_ns();

		watch_maps(d);
		forget_changes(d);
		tick(d);
		deadline_ns = time_next_multiple(began_ns + offset_ns, step_ns) - offset_ns;
		if (deadline_ns <= time_boot_ns()) {
			int64_t next_ns = time_next_multiple(time_boot_ns() + offset_ns, step_ns) - offset_ns;

			sampler_missed(d->sampler, (next_ns - deadline_ns) / step_ns);
			deadline_ns = next_ns;
		}
		soonest_ns = began_ns + EARLY_TICK_NS < deadline_ns ? began_ns + EARLY_TICK_NS : deadline_ns;
	} while (!sleep_until(d, soonest_ns, false) && !sleep_until(d, deadline_ns, true));
}

static void
finish(struct daemon *d)
{
	struct sampler_report report;

	log_event(LOG_INFO, "stopping", LS("signal", strsignal(d->last_signal)));
	/* so that the interval reaches up to now, not up to the last tick */
	tick(d);
	outbox_set_patience(d->outbox, LAST_WRITE_NS);
	sampler_finish(d->sampler, time_wall_ns(), &report);
	log_trouble_of(d, &report, TROUBLE_STORING); /* the report has nothing else */
}

static bool
run(const void *options, struct err *err)
{
	const struct exporter_options *o = options;
	struct daemon d = {.options = o, .timer_fd = -1, .signal_fd = -1, .watch_fd = -1};
	sigset_t signals;
	bool ok;

	log_init(exporter_program.name, (enum log_level)o->log_level);
	/* blocked before any thread exists, so that only the signalfd gets them */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	ok = start(&d, &signals, err);
	if (ok) {
		tick_until_signal(&d);
		finish(&d);
	}
	if (!stop(&d)) {
		/* returning from main would take the library from under its call */
		log_write(LOG_WARN, "a call has not returned and is left behind", NULL);
		fflush(NULL);
		if (!ok)
			fprintf(stderr, "%s: %s\n", exporter_program.name, err->text);
		_exit(ok ? CONF_EXIT_STOPPED : CONF_EXIT_FAILED);
	}
	return ok;
}

static bool
check(void *options, struct err *err)
{
	return exporter_options_check(options, err);
}

int
main(int argc, char **argv)
{
	struct exporter_options options = {0};
	const struct conf_daemon d = {&exporter_program, &options, check, run};

	return conf_main(&d, argc, argv);
}
