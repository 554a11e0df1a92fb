/* aggregator/core/quota/book/decision_ask.c - a request for capacity as clients write it, and as the quota book reads it. */
#include "aggregator/core/quota/book/decision_ask.h"

#include <stdio.h>
#include <string.h>

#include "common/base/labels.h"
#include "common/base/text.h"
#include "common/base/time.h"

#define BODY_MAX (256u << 10)
#define WORKLOAD_TEXT_MAX 253
#define EXPIRES_MOST_NS (366 * NS_PER_DAY)

void
decision_body_fini(struct decision_body *b)
{
	buf_fini(&b->request);
	buf_fini(&b->body);
	buf_fini(&b->members);
	buf_fini(&b->workloads);
	wire_holder_fini(&b->holder);
}

bool
decision_id_sound(const char *id)
{
	static const char ok[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";
	size_t n = strspn(id, ok);

	return n > 0 && n < DECISION_ID_SIZE && id[n] == '\0' && !strchr("._:-", id[0]);
}

const char *
decision_key_id(const char *key)
{
	const char *slash = strchr(key, '/');

	return slash ? slash + 1 : key;
}

/* ---- fields ------------------------------------------------------------------------------------------------------------- */

static bool
text_field(const json_t *doc, const char *field, const char **ret, struct err *err)
{
	const json_t *v = json_object_get(doc, field);

	*ret = json_string_value(v);
	if (!v || (*ret && text_is_clean(*ret)))
		return true;
	return err_set(err, ERR_INVALID, "%s: it is text", field);
}

static void
add_text(struct buf *out, const char *key, const char *value)
{
	if (!value)
		return;
	buf_printf(out, ",\"%s\":", key);
	json_write_string(value, out);
}

static bool
copy_text(const json_t *doc, const char *field, const char *key, struct buf *out, struct err *err)
{
	const char *value = NULL;

	if (!text_field(doc, field, &value, err))
		return false;
	add_text(out, key, value);
	return true;
}

static bool
copy_number(const json_t *doc, const char *field, int64_t min, struct buf *out, struct err *err)
{
	const json_t *v = json_object_get(doc, field);

	if (!v)
		return true;
	if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > QUOTA_MAX_PRIORITY)
		return err_set(err, ERR_INVALID, "%s: it is a whole number from %" PRId64, field, min);
	buf_printf(out, ",\"%s\":%" PRId64, field, (int64_t)json_integer_value(v));
	return true;
}

/* The scheduler's own word why the request waits: another one than before ends the time in which nobody is evicted for it. */
static bool
copy_reason(const json_t *doc, bool of_tenant, struct buf *out, struct err *err)
{
	const char *reason = NULL;

	if (!text_field(doc, "reason", &reason, err))
		return false;
	if (reason && of_tenant)
		return err_set(err, ERR_INVALID, "reason: it is for schedulers and operators to give");
	if (reason && (reason[0] == '\0' || strlen(reason) >= QUOTA_REASON_SIZE))
		return err_set(err, ERR_INVALID, "reason: it has %zu bytes, and may have 1 to %d", strlen(reason),
		               QUOTA_REASON_SIZE - 1);
	add_text(out, "reason", reason);
	return true;
}

/* A number with a unit; a plain number too. */
static bool
copy_quantity(const json_t *doc, const char *field, const char *key, const char *sample, struct buf *out,
              struct err *err)
{
	static const struct {
		const char *unit;
		int64_t cpu, bytes; /* 0: not of these */
	} units[] = {{"", 1000, 1},        {"m", 1, 0},
	             {"k", 0, 1000},       {"M", 0, 1000000},
	             {"G", 0, 1000000000}, {"T", 0, INT64_C(1000000000000)},
	             {"Ki", 0, 1 << 10},   {"Mi", 0, 1 << 20},
	             {"Gi", 0, 1 << 30},   {"Ti", 0, INT64_C(1) << 40}};
	const json_t *v = json_object_get(doc, field);
	const char *text = json_string_value(v);
	char digits[20] = "";
	int64_t value = -1, factor = 0;
	size_t n = text ? strspn(text, "0123456789") : 0;

	if (!v)
		return true;
	for (size_t i = 0; text && n > 0 && n < sizeof(digits) && i < ARRAY_LEN(units); i++)
		if (strcmp(text + n, units[i].unit) == 0)
			factor = strcmp(field, "cpu") == 0 ? units[i].cpu : units[i].bytes;
	if (factor > 0) {
		memcpy(digits, text, n);
		if (!text_to_i64(digits, &value))
			value = -1;
	} else if (json_is_integer(v)) {
		value = json_integer_value(v);
		factor = strcmp(field, "cpu") == 0 ? 1000 : 1;
	}
	if (value < 0 || value > (INT64_C(1) << 60) / (factor > 0 ? factor : 1))
		return err_set(err, ERR_INVALID, "%s: it is a quantity like %s", field, sample);
	buf_printf(out, ",\"%s\":%" PRId64, key, value * factor);
	return true;
}

static bool
copy_duration(const json_t *doc, struct buf *out, struct err *err)
{
	const char *text = NULL;
	int64_t ns = 0;

	if (!text_field(doc, "expected_duration", &text, err))
		return false;
	if (!text)
		return true;
	if (!duration_parse(text, &ns, NULL) || ns < 0 || ns > EXPIRES_MOST_NS)
		return err_set(err, ERR_INVALID, "expected_duration: it is a duration like 2h, of at most a year");
	buf_printf(out, ",\"expected_s\":%" PRId64, (ns + NS_PER_S - 1) / NS_PER_S);
	return true;
}

/* A duration counts from the moment that the book has when it decides: the clock of the replica that accepted the request may be off. A date that has
 * passed is no mistake: a client without an answer sends the same request again. */
static bool
copy_expiry(const json_t *doc, int64_t now_ns, struct buf *out, struct err *err)
{
	const char *text = NULL;
	int64_t ns = 0;

	if (!text_field(doc, "expires", &text, err))
		return false;
	if (!text)
		return true;
	if (duration_parse(text, &ns, NULL)) {
		if (ns <= 0 || ns > EXPIRES_MOST_NS)
			return err_set(err, ERR_INVALID, "expires: it is not within a year from now");
		buf_printf(out, ",\"expires_in_ns\":%" PRId64, ns);
		return true;
	}
	if (!time_parse(text, &ns, NULL))
		return err_set(err, ERR_INVALID,
		               "expires: it is a time like 2027-01-31T00:00:00Z or a duration like 30m");
	if (ns < now_ns - EXPIRES_MOST_NS || ns > now_ns + EXPIRES_MOST_NS)
		return err_set(err, ERR_INVALID, "expires: it is not within a year from now");
	buf_printf(out, ",\"expires_ns\":%" PRId64, ns);
	return true;
}

/* The book takes a time in its future for its own present, and one that is too old for the oldest that it allows: the clock of a scheduler may be off. */
static bool
copy_queued_since(const json_t *doc, bool of_tenant, struct buf *out, struct err *err)
{
	const char *text = NULL;
	int64_t ns = 0;

	if (!text_field(doc, "queued_since", &text, err))
		return false;
	if (!text)
		return true;
	if (of_tenant)
		return err_set(err, ERR_INVALID,
		               "queued_since: it is for schedulers and operators to give; a request of a tenant waits "
		               "since it was submitted");
	if (!time_parse(text, &ns, NULL) || ns < 0)
		return err_set(err, ERR_INVALID, "queued_since: \"%.64s\" is not a time like 2027-01-31T00:00:00Z",
		               text);
	buf_printf(out, ",\"queued_since_ns\":%" PRId64, ns);
	return true;
}

/* ---- the workload ------------------------------------------------------------------------------------------------------- */

static bool
workload_text(const json_t *w, const char *field, const char **ret, struct err *err)
{
	if (!text_field(w, field, ret, err))
		return err_prefix(err, "workload");
	if (*ret && (**ret == '\0' || strlen(*ret) > WORKLOAD_TEXT_MAX))
		return err_set(err, ERR_INVALID, "workload: %s has 1 to %d bytes", field, WORKLOAD_TEXT_MAX);
	return true;
}

static bool
holder_text(const json_t *w, const char *field, char **ret, struct err *err)
{
	const char *text = NULL;

	if (!workload_text(w, field, &text, err))
		return false;
	*ret = mem_strdup(text ? text : "");
	return true;
}

/* By which telemetry knows it. */
static bool
read_identity(const json_t *w, struct decision_workload *ret, struct err *err)
{
	return workload_text(w, "namespace", &ret->namespace, err) && workload_text(w, "pod", &ret->pod, err) &&
	       workload_text(w, "pod_uid", &ret->pod_uid, err) && workload_text(w, "slurm_job", &ret->slurm_job, err);
}

static bool
is_identified(const struct decision_workload *w)
{
	return w->pod_uid || w->slurm_job || (w->namespace && w->pod);
}

bool
decision_workload_read(const json_t *doc, struct decision_workload *ret, struct err *err)
{
	static const char *const fields[] = {"namespace", "pod", "pod_uid", "slurm_job", NULL};
	const json_t *w = json_object_get(doc, "workload");

	*ret = (struct decision_workload){0};
	if (!w)
		return true;
	if (!json_is_object(w))
		return err_set(err, ERR_INVALID, "workload: it is an object");
	if (!json_only_fields(w, fields, err))
		return err_prefix(err, "workload");
	if (!read_identity(w, ret, err))
		return false;
	if (!is_identified(ret))
		return err_set(err, ERR_INVALID, "workload: pod_uid, namespace and pod, or slurm_job say which it is");
	return true;
}

/* The bytes of a UID: Kubernetes' own, and those of pods that a node's files declare. */
static bool
is_uid(const char *text)
{
	size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

	return n > 0 && text[n] == '\0';
}

/* ID or ID.RESTARTS */
static bool
is_slurm_job(const char *text)
{
	size_t id = strspn(text, "0123456789"), restarts = text[id] == '.' ? strspn(text + id + 1, "0123456789") : 0;

	return id > 0 && (text[id] == '\0' || (restarts > 0 && text[id + 1 + restarts] == '\0'));
}

static bool
is_workload(const char *text)
{
	static const char claim[] = "claim:", job[] = "slurm:";

	if (strlen(text) > LIMIT_WORKLOAD)
		return false;
	if (strncmp(text, claim, sizeof(claim) - 1) == 0)
		return is_uid(text + sizeof(claim) - 1);
	if (strncmp(text, job, sizeof(job) - 1) == 0)
		return is_slurm_job(text + sizeof(job) - 1);
	return is_uid(text);
}

bool
decision_workloads_read(const json_t *doc, struct buf *out, struct err *err)
{
	const json_t *list = json_object_get(doc, "workloads"), *one;
	size_t i;

	if (!list)
		return true;
	if (!json_is_array(list))
		return err_set(err, ERR_INVALID, "workloads: it is a list of texts");
	if (json_array_size(list) > LIMIT_WORKLOADS)
		return err_set(err, ERR_INVALID, "workloads: there are %zu, at most %d are allowed",
		               json_array_size(list), LIMIT_WORKLOADS);
	json_array_foreach(list, i, one)
	{
		const char *text = json_string_value(one);

		if (!text || !is_workload(text))
			return err_set(err, ERR_INVALID,
			               "workloads: \"%.64s\" is not the UID of a pod, claim:UID, or slurm:ID or "
			               "slurm:ID.RESTARTS of a job, of at most %d bytes",
			               text ? text : "", LIMIT_WORKLOAD);
	}
	json_write(list, out);
	return buf_ok(out, "workloads", err);
}

static bool
read_labels(const json_t *w, char **ret, struct err *err)
{
	json_t *labels = json_object_get(w, "labels"), *value;
	struct labels_set set = {0};
	const char *key, *fault;

	if (labels && !json_is_object(labels))
		return err_set(err, ERR_INVALID, "workload: labels is an object of texts");
	json_object_foreach(labels, key, value)
	{
		const char *text = json_string_value(value);

		if (!text)
			return err_set(err, ERR_INVALID, "workload: labels: \"%.80s\" is text", key);
		if ((fault = label_key_fault(key, strlen(key))) != NULL)
			return err_set(err, ERR_INVALID, "workload: labels: the key \"%.80s\" %s", key, fault);
		if ((fault = label_value_fault(text, strlen(text))) != NULL)
			return err_set(err, ERR_INVALID, "workload: labels: the value \"%.80s\" of \"%.80s\" %s", text,
			               key, fault);
		if (!labels_put(&set, key, text))
			return err_set(err, ERR_INVALID, "workload: labels: there are %zu, at most %u are allowed",
			               json_object_size(labels), LABEL_MAX_COUNT);
	}
	*ret = labels_join(&set);
	return true;
}

static bool
read_uid(const json_t *w, int64_t *ret, struct err *err)
{
	const json_t *v = json_object_get(w, "uid");

	*ret = -1;
	if (!v)
		return true;
	if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
		return err_set(err, ERR_INVALID, "workload: uid is a whole number from 0 to %" PRIu32, UINT32_MAX);
	*ret = json_integer_value(v);
	return true;
}

/* A workload in place of a workspace: the fields that attribution rules match are of a pod or of a Slurm job, never of both. */
static bool
read_holder(const json_t *w, struct decision_body *b, struct err *err)
{
	static const char *const fields[] = {"namespace", "labels",        "pod",  "pod_uid", "slurm_job",
	                                     "uid",       "slurm_account", "user", "group",   NULL};
	static const char *const of_pod[] = {"namespace", "labels", "pod", "pod_uid"};
	static const char *const of_job[] = {"slurm_job", "slurm_account", "user", "uid", "group"};
	struct wire_holder *h = &b->holder;
	const char *pod = NULL, *job = NULL;

	if (!json_is_object(w))
		return err_set(err, ERR_INVALID, "workload: it is an object");
	if (!json_only_fields(w, fields, err))
		return err_prefix(err, "workload");
	for (size_t i = 0; i < ARRAY_LEN(of_pod) && !pod; i++)
		pod = json_object_get(w, of_pod[i]) ? of_pod[i] : NULL;
	for (size_t i = 0; i < ARRAY_LEN(of_job) && !job; i++)
		job = json_object_get(w, of_job[i]) ? of_job[i] : NULL;
	if (pod && job)
		return err_set(err, ERR_INVALID, "workload: %s is of a pod and %s of a Slurm job: it is one of the two",
		               pod, job);
	h->kind = pod ? WIRE_POD : WIRE_SLURM_JOB;
	if (!read_identity(w, &b->workload, err) || !holder_text(w, "namespace", &h->ns, err) ||
	    !read_labels(w, &h->labels, err) || !holder_text(w, "slurm_account", &h->slurm_account, err) ||
	    !holder_text(w, "user", &h->user, err) || !holder_text(w, "group", &h->group, err) ||
	    !read_uid(w, &h->uid, err))
		return false;
	if (h->ns[0] == '\0' && h->labels[0] == '\0' && h->slurm_account[0] == '\0' && h->user[0] == '\0' &&
	    h->group[0] == '\0' && h->uid < 0)
		return err_set(
			err, ERR_INVALID,
			"workload: without workspace it has namespace or labels, or slurm_account, user, uid or group");
	if (!is_identified(&b->workload))
		b->workload = (struct decision_workload){0};
	return true;
}

/* Beside workspace it is only the identity in telemetry. */
static bool
read_beside_workspace(const json_t *doc, struct decision_body *b, struct err *err)
{
	static const char *const whose[] = {"labels", "slurm_account", "user", "uid", "group"};
	const json_t *w = json_object_get(doc, "workload");

	for (size_t i = 0; i < ARRAY_LEN(whose); i++)
		if (json_object_get(w, whose[i]))
			return err_set(err, ERR_INVALID,
			               "workload: %s says whose it is, and so does workspace: give one of the two",
			               whose[i]);
	return decision_workload_read(doc, &b->workload, err);
}

bool
decision_body_no_workspace(const struct decision_body *b, struct err *err)
{
	const struct wire_holder *h = &b->holder;
	const struct {
		const char *field, *value;
	} looked_at[] = {{"cluster", b->cluster}, {"namespace", h->ns},
	                 {"labels", h->labels},   {"slurm_account", h->slurm_account},
	                 {"user", h->user},       {"group", h->group}};
	in_place(buf) struct buf text = {0};

	buf_init(&text, sizeof(err->text));
	for (size_t i = 0; i < ARRAY_LEN(looked_at); i++)
		if (looked_at[i].value && looked_at[i].value[0] != '\0')
			buf_printf(&text, "%s%s \"%.80s\"", text.len > 0 ? ", " : "", looked_at[i].field,
			           looked_at[i].value);
	if (h->kind == WIRE_SLURM_JOB && h->uid >= 0)
		buf_printf(&text, "%suid %" PRId64, text.len > 0 ? ", " : "", h->uid);
	return err_set(err, ERR_MISSING, "workload: there is no workspace for %s", buf_text(&text));
}

/* ---- the request ---------------------------------------------------------------------------------------------------------- */

static bool
read_workspace(const json_t *doc, const char *tenant, struct decision_body *b, struct err *err)
{
	const char *name = NULL, *slash;
	size_t n;

	if (!text_field(doc, "workspace", &name, err))
		return false;
	if (!name && !json_object_get(doc, "workload"))
		return err_set(err, ERR_INVALID, "workspace: it or workload must be there");
	if (!name)
		return true;
	if (name[0] == '\0' || strlen(name) >= QUOTA_NAME_SIZE)
		return err_set(err, ERR_INVALID, "workspace: it is TENANT/WORKSPACE, of at most %d bytes",
		               QUOTA_NAME_SIZE - 1);
	slash = strchr(name, '/');
	if (!slash && !tenant)
		return err_set(err, ERR_INVALID, "workspace: it is TENANT/WORKSPACE");
	if (slash && tenant && (strncmp(name, tenant, (size_t)(slash - name)) != 0 || tenant[slash - name] != '\0'))
		return err_set(err, ERR_MISSING, "workspace: there is no workspace \"%.130s\"", name);
	n = slash ? 0 : strlen(tenant);
	if (n + 1 >= QUOTA_NAME_SIZE)
		return err_set(err, ERR_INVALID, "workspace: its name is too long");
	memset(b->workspace, 0, sizeof(b->workspace));
	if (!slash) {
		memcpy(b->workspace, tenant, n);
		b->workspace[n++] = '/';
	}
	memcpy(b->workspace + n, name, strlen(name));
	return true;
}

/* The request as the book reads it, with its workspace and the key that comes of it. */
static bool
finish(struct decision_body *b, struct err *err)
{
	size_t n = strcspn(b->workspace, "/");

	if (n >= sizeof(b->tenant))
		return err_set(err, ERR_INVALID, "workspace: the name of a tenant has at most %zu bytes",
		               sizeof(b->tenant) - 1);
	memset(b->tenant, 0, sizeof(b->tenant));
	memcpy(b->tenant, b->workspace, n);
	_Static_assert(DECISION_TENANT_SIZE + DECISION_ID_SIZE <= QUOTA_ID_SIZE, "a key has room for both");
	snprintf(b->key, sizeof(b->key), "%s/%s", b->tenant, b->request_id);
	buf_clear(&b->request);
	buf_str(&b->request, "{\"id\":");
	json_write_string(b->key, &b->request);
	add_text(&b->request, "workspace", b->workspace);
	buf_add(&b->request, buf_text(&b->members), b->members.len);
	buf_char(&b->request, '}');
	return buf_ok(&b->request, "the request", err);
}

void
decision_body_write(const struct decision_body *b, const char *model, struct buf *out)
{
	const char *request = buf_text(&b->request);
	size_t members = b->request.len - 1 - b->members.len; /* where they begin */

	if (model == NULL || b->model == NULL) {
		buf_add(out, request, b->request.len);
		return;
	}
	buf_add(out, request, members + b->model_from);
	add_text(out, "model", model);
	buf_add(out, request + members + b->model_until, b->request.len - members - b->model_until);
}

bool
decision_body_place(struct decision_body *b, const char *workspace, struct err *err)
{
	size_t n = strlen(workspace);

	if (n >= sizeof(b->workspace))
		return err_set(err, ERR_INVALID, "workload: the name of its workspace has at most %zu bytes",
		               sizeof(b->workspace) - 1);
	memcpy(b->workspace, workspace, n + 1);
	return finish(b, err);
}

/* How many devices are asked for, and the field that says so. */
static int64_t
count_of(const json_t *doc, const char **ret_field)
{
	static const char *const counts[] = {"gpus", "replicas", "count"};

	*ret_field = "count";
	for (size_t i = 0; i < ARRAY_LEN(counts); i++)
		if (json_object_get(doc, counts[i])) {
			*ret_field = counts[i];
			return json_integer_value(json_object_get(doc, counts[i]));
		}
	return 1;
}

/* Each node gives the same number. */
static bool
per_node_divides(const json_t *doc, struct err *err)
{
	const char *field;
	int64_t per_node = json_integer_value(json_object_get(doc, "per_node")), count = count_of(doc, &field);

	if (per_node == 0 || count % per_node == 0)
		return true;
	return err_set(err, ERR_INVALID,
	               "per_node: %s is %" PRId64 ", which is not a multiple of per_node %" PRId64
	               ": each node gives the same number",
	               field, count, per_node);
}

static bool
read_count(const json_t *doc, struct buf *out, struct err *err)
{
	bool gpus = json_object_get(doc, "gpus") != NULL, profile = json_object_get(doc, "profile") != NULL,
	     replicas = json_object_get(doc, "replicas") != NULL;

	if (gpus + profile + replicas != 1)
		return err_set(err, ERR_INVALID, "gpus: one of gpus, profile and replicas says what is asked for");
	if (json_object_get(doc, "count") && !profile)
		return err_set(err, ERR_INVALID, "count: it goes with profile, and there is none");
	if (json_object_get(doc, "of") && !replicas)
		return err_set(err, ERR_INVALID, "of: it goes with replicas, and there are none");
	if (replicas && !json_object_get(doc, "of"))
		return err_set(err, ERR_INVALID, "of: missing; it says into how many replicas the GPUs are shared");
	return copy_number(doc, "gpus", 1, out, err) && copy_text(doc, "profile", "profile", out, err) &&
	       copy_number(doc, "count", 1, out, err) && copy_number(doc, "replicas", 1, out, err) &&
	       copy_number(doc, "of", 2, out, err) && copy_number(doc, "per_node", 1, out, err) &&
	       per_node_divides(doc, err);
}

static bool
read_rest(const json_t *doc, bool of_tenant, int64_t now_ns, struct decision_body *b, struct err *err)
{
	struct buf *out = &b->members;
	const json_t *preemptible = json_object_get(doc, "preemptible");

	if (preemptible && !json_is_boolean(preemptible))
		return err_set(err, ERR_INVALID, "preemptible: it is true or false");
	if (preemptible)
		buf_str(out, json_is_true(preemptible) ? ",\"preemptible\":true" : ",\"preemptible\":false");
	if (json_object_get(doc, "priority") && of_tenant)
		return err_set(err, ERR_INVALID,
		               "priority: a number is for schedulers and operators to give; name a priority_class");
	if (json_object_get(doc, "priority") && json_object_get(doc, "priority_class"))
		return err_set(err, ERR_INVALID, "priority: it is given by a class or as a number, not both");
	if (!copy_text(doc, "cluster", "cluster", out, err) || !text_field(doc, "gpu_model", &b->model, err))
		return false;
	b->model_from = out->len;
	add_text(out, "model", b->model);
	b->model_until = out->len;
	return copy_text(doc, "priority_class", "class", out, err) &&
	       copy_number(doc, "priority", -QUOTA_MAX_PRIORITY, out, err) && copy_duration(doc, out, err) &&
	       copy_expiry(doc, now_ns, out, err) && copy_queued_since(doc, of_tenant, out, err) &&
	       copy_quantity(doc, "cpu", "cpu_millis", "64 or 500m", out, err) &&
	       copy_quantity(doc, "memory", "memory_bytes", "512Gi", out, err) &&
	       copy_quantity(doc, "storage", "storage_bytes", "10Ti", out, err) &&
	       copy_reason(doc, of_tenant, out, err);
}

/* ---- work that runs already ----------------------------------------------------------------------------------------------- */

static bool
copy_started(const json_t *doc, struct buf *out, struct err *err)
{
	const char *text = NULL;
	int64_t ns = 0;

	if (!text_field(doc, "started", &text, err))
		return false;
	if (!text)
		return true;
	if (!time_parse(text, &ns, NULL) || ns < 0)
		return err_set(err, ERR_INVALID, "started: \"%.64s\" is not a time like 2027-01-31T00:00:00Z", text);
	buf_printf(out, ",\"started_ns\":%" PRId64, ns);
	return true;
}

static bool
copy_part(const json_t *part, size_t i, struct buf *out, int64_t *sum, struct err *err)
{
	static const char *const fields[] = {"node", "gpu", "count", NULL};
	const json_t *gpu = json_object_get(part, "gpu"), *count = json_object_get(part, "count");
	const char *node = json_string_value(json_object_get(part, "node"));
	int64_t devices = count ? json_integer_value(count) : 1;

	if (!json_is_object(part) || !json_only_fields(part, fields, err))
		return err_set(err, ERR_INVALID, "parts: part %zu has node, gpu and count", i);
	if (!node || node[0] == '\0' || strlen(node) > LIMIT_NODE_NAME)
		return err_set(err, ERR_INVALID, "parts: part %zu has a node, a name of 1 to %d bytes", i,
		               LIMIT_NODE_NAME);
	if (gpu && (!json_is_string(gpu) || json_string_length(gpu) == 0 || json_string_length(gpu) > LIMIT_GPU_UUID))
		return err_set(err, ERR_INVALID, "parts: the gpu of part %zu is a UUID of 1 to %d bytes", i,
		               LIMIT_GPU_UUID);
	if ((count && !json_is_integer(count)) || devices < 1 || devices > QUOTA_MAX_COUNT)
		return err_set(err, ERR_INVALID, "parts: the count of part %zu is a whole number from 1 to %d", i,
		               QUOTA_MAX_COUNT);
	*sum += devices;
	buf_str(out, i == 0 ? "{\"node\":" : ",{\"node\":");
	json_write_string(node, out);
	add_text(out, "gpu", json_string_value(gpu));
	buf_printf(out, ",\"count\":%" PRId64 "}", devices);
	return true;
}

/* Devices that the parts do not name are somewhere else. */
static bool
copy_parts(const json_t *doc, struct buf *out, struct err *err)
{
	const json_t *parts = json_object_get(doc, "parts"), *part;
	const char *field;
	int64_t sum = 0, count = count_of(doc, &field);
	size_t i;

	if (!parts)
		return true;
	if (!json_is_array(parts))
		return err_set(err, ERR_INVALID, "parts: it is a list");
	buf_str(out, ",\"parts\":[");
	json_array_foreach(parts, i, part)
	{
		if (!copy_part(part, i, out, &sum, err))
			return false;
	}
	buf_char(out, ']');
	return sum <= count ||
	       err_set(err, ERR_INVALID, "parts: they have %" PRId64 " devices, and %s is %" PRId64, sum, field, count);
}

static void
write_digest(struct decision_body *b, bool adopts)
{
	static const char adopt[] = "adopt ";
	struct sha256_state *s = sha256_begin();

	if (adopts)
		sha256_add(s, adopt, sizeof(adopt) - 1);
	sha256_add(s, buf_text(&b->body), b->body.len);
	sha256_end(s, b->digest);
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------- */

static bool
read_body(const json_t *doc, const char *tenant, int64_t now_ns, bool adopts, struct decision_body *b, struct err *err)
{
	static const char *const fields[] = {"request_id",
	                                     "workspace",
	                                     "cluster",
	                                     "gpu_model",
	                                     "gpus",
	                                     "profile",
	                                     "count",
	                                     "replicas",
	                                     "of",
	                                     "per_node",
	                                     "priority_class",
	                                     "priority",
	                                     "preemptible",
	                                     "expected_duration",
	                                     "expires",
	                                     "queued_since",
	                                     "cpu",
	                                     "memory",
	                                     "storage",
	                                     "workload",
	                                     "workloads",
	                                     "reason",
	                                     NULL,
	                                     NULL,
	                                     NULL};
	const char *known[ARRAY_LEN(fields)];
	const char *id = NULL;

	memcpy(known, fields, sizeof(known));
	if (adopts) {
		known[ARRAY_LEN(fields) - 3] = "started";
		known[ARRAY_LEN(fields) - 2] = "parts";
	}
	*b = (struct decision_body){0};
	buf_init(&b->request, BODY_MAX);
	buf_init(&b->members, BODY_MAX);
	buf_init(&b->body, 2 * BODY_MAX);
	buf_init(&b->workloads, BODY_MAX);
	if (!json_only_fields(doc, known, err) || !text_field(doc, "request_id", &id, err))
		return false;
	if (!id || !decision_id_sound(id))
		return err_set(err, ERR_INVALID,
		               "request_id: 1 to %d letters, digits, '.', '_', ':' or '-', the first a letter or digit",
		               DECISION_ID_SIZE - 1);
	memcpy(b->request_id, id, strlen(id) + 1);
	if (!read_workspace(doc, tenant, b, err) || !read_count(doc, &b->members, err) ||
	    !read_rest(doc, tenant != NULL, now_ns, b, err) || !text_field(doc, "cluster", &b->cluster, err) ||
	    !text_field(doc, "priority_class", &b->klass, err))
		return false;
	if (adopts && (!copy_started(doc, &b->members, err) || !copy_parts(doc, &b->members, err)))
		return false;
	if (b->workspace[0] != '\0' ? !read_beside_workspace(doc, b, err) || !finish(b, err)
	                            : !read_holder(json_object_get(doc, "workload"), b, err))
		return false;
	if (!decision_workloads_read(doc, &b->workloads, err))
		return false;
	if (b->workloads.len > 0)
		b->workload.list = buf_text(&b->workloads);
	json_write(doc, &b->body);
	write_digest(b, adopts);
	return buf_ok(&b->members, "the request", err) && buf_ok(&b->body, "the request", err);
}

bool
decision_body_read(const json_t *doc, const char *tenant, int64_t now_ns, struct decision_body *b, struct err *err)
{
	return read_body(doc, tenant, now_ns, false, b, err);
}

bool
decision_adoption_read(const json_t *doc, int64_t now_ns, struct decision_body *b, struct err *err)
{
	return read_body(doc, NULL, now_ns, true, b, err);
}
