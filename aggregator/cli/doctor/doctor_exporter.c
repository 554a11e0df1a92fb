/* aggregator/cli/doctor/doctor_exporter.c - probes of the exporter of this node: what its page says, and where it keeps its batches. */
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "aggregator/cli/doctor/doctor.h"
#include "common/base/text.h"

/* ---- its page ---- */

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

/* The sum of a family's series with this label, in whole numbers; -1: there is none. */
static int64_t
sum_of(const char *page, const char *name, const char *label)
{
	int64_t sum = -1, v;

	while (next_series(&page, name, label, &v))
		sum = (sum < 0 ? 0 : sum) + v / 1000;
	return sum;
}

/* The driver has no accounting for partitioned GPUs. */
void
probe_accounting(struct doctor *d, struct facts *ret)
{
	const char *page = buf_text(&d->metrics), *at = page;
	int64_t mig = sum_of(page, "tollgate_gpu_info", "mig=\"on\""), on;

	while (next_series(&at, "tollgate_gpu_accounting", NULL, &on)) {
		ret->of++;
		ret->count += on == 0;
	}
	if (mig > 0) {
		ret->of -= mig;
		ret->count -= mig;
	}
	ret->absent = ret->of <= 0;
}

void
probe_placements(struct doctor *d, struct facts *ret)
{
	const char *page = buf_text(&d->metrics);

	ret->count = sum_of(page, "tollgate_exporter_unplaced_instances", NULL);
	ret->of = sum_of(page, "tollgate_mig_info", NULL);
	ret->absent = ret->count < 0 || ret->of < 0;
}

void
probe_kubelet_answer(struct doctor *d, struct facts *ret)
{
	const char *page = buf_text(&d->metrics);
	int64_t age_ms = 0;

	ret->count = sum_of(page, "tollgate_exporter_kubelet_up", NULL);
	ret->absent = ret->count < 0;
	ret->difference_ns = -1;
	if (metric_value(page, "tollgate_exporter_kubelet_answer_age_seconds", NULL, &age_ms))
		ret->difference_ns = age_ms * NS_PER_MS;
}

/* An exporter that is not told to read labels says nothing about them. */
void
probe_pod_labels(struct doctor *d, struct facts *ret)
{
	const char *page = buf_text(&d->metrics);
	int64_t age_ms = 0;

	ret->count = sum_of(page, "tollgate_exporter_pod_labels_up", NULL);
	ret->of = sum_of(page, "tollgate_exporter_pods_labelled", NULL);
	ret->absent = ret->count < 0;
	ret->difference_ns = -1;
	if (metric_value(page, "tollgate_exporter_pod_labels_answer_age_seconds", NULL, &age_ms))
		ret->difference_ns = age_ms * NS_PER_MS;
}

void
probe_allocations(struct doctor *d, struct facts *ret)
{
	const char *page = buf_text(&d->metrics);

	ret->count = sum_of(page, "tollgate_exporter_unresolved_allocations", NULL);
	ret->failures = sum_of(page, "tollgate_exporter_refused_map_files", NULL);
	ret->of = sum_of(page, "tollgate_exporter_allocations", NULL);
	ret->absent = ret->count < 0 || ret->failures < 0;
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

/* ---- its spool ---- */

/* The exporter's user is the owner of the spool. */
void
probe_user(struct doctor *d, struct facts *ret)
{
	struct stat st;
	const struct passwd *pw;

	ret->absent = stat(doctor_path(d, d->spool_dir, ret), &st) != 0;
	if (ret->absent)
		return;
	ret->count = (int64_t)geteuid();
	ret->of = (int64_t)st.st_uid;
	pw = getpwuid(st.st_uid);
	if (pw != NULL)
		snprintf(ret->text, sizeof(ret->text), "%s", pw->pw_name);
	else
		snprintf(ret->text, sizeof(ret->text), "#%" PRId64, ret->of);
}

void
probe_spool(struct doctor *d, struct facts *ret)
{
	const char *path = doctor_path(d, d->spool_dir, ret);
	struct statvfs fs;

	if (access(path, W_OK | X_OK) != 0 || statvfs(path, &fs) != 0)
		ret->errnum = errno;
	else
		ret->free_bytes = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
}
