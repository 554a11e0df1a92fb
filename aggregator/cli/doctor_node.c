/* aggregator/cli/doctor_node.c - probes of this machine as a GPU node: what the exporter needs, and how it does. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "aggregator/cli/doctor.h"
#include "common/text.h"

/* The kernel's number for the first namespace of processes, which is the host's (PROC_PID_INIT_INO). */
#define HOST_PID_NAMESPACE "pid:[4026531836]"

/* A file of the host, under --root. */
static const char *
host_path(const struct doctor *d, const char *path, struct facts *f)
{
	snprintf(f->thing, sizeof(f->thing), "%s%s", strcmp(d->root, "/") == 0 ? "" : d->root, path);
	return f->thing;
}

static bool
exists(const struct doctor *d, const char *path)
{
	struct facts f = {0};

	return access(host_path(d, path, &f), F_OK) == 0;
}

bool
doctor_is_node(const struct doctor *d)
{
	return exists(d, "/proc/driver/nvidia") || exists(d, "/dev/nvidiactl") || exists(d, d->spool_dir) ||
	       d->metrics.len > 0;
}

/* ---- driver ---- */

void
probe_driver(struct doctor *d, struct facts *ret)
{
	in_place(buf) struct buf text;
	const char *path = host_path(d, "/proc/driver/nvidia/version", ret), *line;

	buf_init(&text, 65536);
	if (access(path, R_OK) != 0)
		ret->errnum = errno;
	else if (!buf_read_file(&text, path, NULL))
		ret->errnum = EIO;
	line = buf_text(&text);
	if (strncmp(line, "NVRM version: ", 14) == 0)
		line += 14;
	snprintf(ret->text, sizeof(ret->text), "%.*s", (int)strcspn(line, "\n"), line);
}

/* The well-known places; loading it is left to the exporter, which knows what it needs of it. */
void
probe_library(struct doctor *d, struct facts *ret)
{
	static const char *const folders[] = {
		"/usr/lib/x86_64-linux-gnu",
		"/usr/lib/aarch64-linux-gnu",
		"/usr/lib64",
		"/usr/lib",
		"/usr/local/nvidia/lib64",
		"/usr/lib/x86_64-linux-gnu/nvidia/current",
		"/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
	};
	char path[256];

	for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
		snprintf(path, sizeof(path), "%s/libnvidia-ml.so.1", folders[i]);
		ret->errnum = access(host_path(d, path, ret), R_OK) == 0 ? 0 : errno;
		if (ret->errnum != ENOENT && ret->errnum != ENOTDIR)
			return;
	}
	ret->errnum = ENOENT;
}

static void
add_name(struct facts *f, const char *name)
{
	size_t n = strlen(f->text);

	if (n + strlen(name) + 3 < sizeof(f->text))
		snprintf(f->text + n, sizeof(f->text) - n, "%s%s", n > 0 ? ", " : "", name);
}

/* nvidiactl and nvidia0, nvidia1, ...: what NVML opens. */
void
probe_devices(struct doctor *d, struct facts *ret)
{
	DIR *dir = opendir(host_path(d, "/dev", ret));
	const struct dirent *e;

	while (dir != NULL && (e = readdir(dir)) != NULL) {
		const char *tail = e->d_name + 6;
		char path[300];
		struct facts at = {0};

		if (strncmp(e->d_name, "nvidia", 6) != 0 ||
		    (strcmp(tail, "ctl") != 0 && (*tail == '\0' || tail[strspn(tail, "0123456789")] != '\0')))
			continue;
		ret->of++;
		snprintf(path, sizeof(path), "/dev/%s", e->d_name);
		if (access(host_path(d, path, &at), R_OK | W_OK) != 0) {
			ret->count++;
			add_name(ret, e->d_name);
		}
	}
	if (dir != NULL)
		closedir(dir);
}

/* ---- whose process is it ---- */

void
probe_pid_namespace(struct doctor *d, struct facts *ret)
{
	char target[64];
	ssize_t n = readlink(host_path(d, "/proc/self/ns/pid", ret), target, sizeof(target) - 1);

	if (n < 0) {
		ret->errnum = errno;
		return;
	}
	target[n] = '\0';
	ret->count = strcmp(target, HOST_PID_NAMESPACE) == 0;
}

void
probe_cgroup(struct doctor *d, struct facts *ret)
{
	if (exists(d, "/sys/fs/cgroup/cgroup.controllers"))
		ret->count = 2;
	else if (exists(d, "/sys/fs/cgroup/memory") || exists(d, "/sys/fs/cgroup/cpu") ||
	         exists(d, "/sys/fs/cgroup/unified"))
		ret->count = 1;
	host_path(d, "/sys/fs/cgroup", ret);
}

static bool
is_kubernetes(const struct doctor *d)
{
	return exists(d, "/var/lib/kubelet") || exists(d, "/etc/kubernetes/kubelet.conf");
}

void
probe_pods(struct doctor *d, struct facts *ret)
{
	const char *path = host_path(d, "/var/log/pods", ret);
	DIR *dir = opendir(path);
	const struct dirent *e;

	ret->errnum = dir == NULL ? errno : 0;
	ret->absent = ret->errnum == ENOENT && !is_kubernetes(d);
	while (dir != NULL && (e = readdir(dir)) != NULL)
		ret->count += e->d_name[0] != '.';
	if (dir != NULL)
		closedir(dir);
}

void
probe_kubelet(struct doctor *d, struct facts *ret)
{
	ret->absent = !is_kubernetes(d);
	if (access(host_path(d, "/var/lib/kubelet/pod-resources/kubelet.sock", ret), R_OK | W_OK) != 0)
		ret->errnum = errno;
}

/* ---- the exporter ---- */

/* "1794807961.5" in thousandths; digits beyond are cut. */
static bool
parse_thousandths(const char *text, int64_t *ret)
{
	char whole[24];
	size_t n = strspn(text, "-0123456789");
	int64_t v;

	snprintf(whole, sizeof(whole), "%.*s", (int)n, text);
	if (n == 0 || n >= sizeof(whole) || !text_to_i64(whole, &v) || v > INT64_MAX / 1000 || v < INT64_MIN / 1000)
		return false;
	v *= 1000;
	if (text[n] == '.')
		for (int64_t step = 100, i = 1; i <= 3 && text[n + (size_t)i] >= '0' && text[n + (size_t)i] <= '9';
		     i++, step /= 10)
			v += step * (text[n + (size_t)i] - '0');
	*ret = v;
	return true;
}

/* Goes through the series of a name: *at is the page at first, then behind the line found. */
static bool
next_series(const char **at, const char *name, const char *label, int64_t *ret)
{
	size_t n = strlen(name);

	while (**at != '\0') {
		const char *line = *at, *end = strchrnul(line, '\n'), *value = end;
		bool match = strncmp(line, name, n) == 0 && (line[n] == ' ' || line[n] == '{');

		*at = *end != '\0' ? end + 1 : end;
		while (value > line && value[-1] != ' ')
			value--;
		if (match && label != NULL)
			match = memmem(line, (size_t)(value - line), label, strlen(label)) != NULL;
		if (match && parse_thousandths(value, ret))
			return true;
	}
	return false;
}

bool
metric_value(const char *page, const char *name, const char *label, int64_t *ret_thousandths)
{
	return next_series(&page, name, label, ret_thousandths);
}

void
probe_exporter(struct doctor *d, struct facts *ret)
{
	struct httpc_options o = {.base_url = d->exporter_url,
	                          .user_agent = "tollgate/" TOLLGATE_VERSION,
	                          .connect_timeout_ns = 2 * NS_PER_S,
	                          .timeout_ns = 10 * NS_PER_S};
	owned(httpc) struct httpc *client = NULL;
	struct httpc_reply reply = {0};
	struct err err = {0};

	snprintf(ret->thing, sizeof(ret->thing), "%s", d->exporter_url);
	buf_init(&reply.body, CLI_REPLY_MAX);
	cli_tls(d->cli, &o);
	if (!httpc_new(&o, &client, &err) || !httpc_call(client, "GET", "/metrics", NULL, NULL, 0, &reply, &err))
		snprintf(ret->text, sizeof(ret->text), "%.*s", DOCTOR_TEXT - 1, err.text);
	ret->status = reply.status;
	buf_fini(&d->metrics);
	d->metrics = reply.body;
	if (reply.status != 200)
		buf_clear(&d->metrics);
}

void
probe_readings(struct doctor *d, struct facts *ret)
{
	const char *page = buf_text(&d->metrics), *at = page;
	int64_t last_ms = 0, up, simulated;

	ret->absent = !metric_value(page, "tollgate_exporter_last_reading_timestamp_seconds", NULL, &last_ms);
	ret->difference_ns = d->now_wall_ns - last_ms * NS_PER_MS;
	while (next_series(&at, "tollgate_gpu_up", NULL, &up)) {
		ret->of++;
		ret->count += up == 0;
	}
	if (metric_value(page, "tollgate_exporter_source_info", "simulated=\"true\"", &simulated))
		snprintf(ret->text, sizeof(ret->text), "simulated");
}

void
probe_push(struct doctor *d, struct facts *ret)
{
	const char *page = buf_text(&d->metrics);
	int64_t v;

	ret->absent = d->metrics.len == 0;
	ret->difference_ns = -1;
	if (metric_value(page, "tollgate_exporter_push_requests_total", NULL, &v))
		ret->status = 1;
	if (metric_value(page, "tollgate_exporter_push_last_success_timestamp_seconds", NULL, &v))
		ret->status = 2;
	if (metric_value(page, "tollgate_exporter_push_requests_total", "result=\"failed\"", &v))
		ret->of = v / 1000;
	if (metric_value(page, "tollgate_exporter_spool_batches", NULL, &v))
		ret->count = v / 1000;
	if (metric_value(page, "tollgate_exporter_spool_lost_batches_total", NULL, &v))
		ret->failures = v / 1000;
	if (metric_value(page, "tollgate_exporter_spool_oldest_batch_timestamp_seconds", NULL, &v))
		ret->difference_ns = d->now_wall_ns - v * NS_PER_MS;
}

void
probe_spool(struct doctor *d, struct facts *ret)
{
	const char *path = host_path(d, d->spool_dir, ret);
	struct statvfs fs;

	if (access(path, W_OK | X_OK) != 0 || statvfs(path, &fs) != 0)
		ret->errnum = errno;
	else
		ret->free_bytes = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
}
