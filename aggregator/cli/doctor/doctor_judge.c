/* aggregator/cli/doctor/doctor_judge.c - judgements: from facts to ok, warn or fail with a remedy. Pure. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/doctor/doctor.h"

#define CLOCK_WARN_NS NS_PER_S
#define TOKEN_WARN_NS (7 * NS_PER_DAY)
#define CLOCK_FAIL_NS (5 * NS_PER_MIN)
#define PUSH_LATE_NS (20 * NS_PER_MIN) /* the longest batch is 15 minutes */
#define READING_LATE_NS (30 * NS_PER_S)
#define SPOOL_WARN_BYTES (INT64_C(1) << 30)
#define SPOOL_FAIL_BYTES (INT64_C(64) << 20)
#define SLUID_REMEDY                                                                                   \
	"install this version's tollgate-prolog.sh, which writes sluid= from SLURM_JOB_SLUID, or set " \
	"CgroupJobIdPaths=yes in Slurm's cgroup.conf"

static void PRINTF_LIKE(4, 5) say(struct finding *ret, enum verdict verdict, const char *remedy, const char *fmt, ...)
{
	va_list args;

	ret->verdict = verdict;
	snprintf(ret->remedy, sizeof(ret->remedy), "%s", remedy);
	va_start(args, fmt);
	vsnprintf(ret->finding, sizeof(ret->finding), fmt, args);
	va_end(args);
}

static bool
mentions(const char *text, const char *const *words)
{
	for (size_t i = 0; words[i] != NULL; i++)
		if (strcasestr(text, words[i]) != NULL)
			return true;
	return false;
}

/* The end of the sentence "FILE ..." for an errno. Not by strerror(), whose text depends on the locale. */
static const char *
reason(int errnum)
{
	switch (errnum) {
	case ENOENT:
	case ENOTDIR: return "does not exist";
	case EACCES:
	case EPERM: return "is not open to this user";
	case EROFS: return "is on a read-only file system";
	default: return strerrordesc_np(errnum) != NULL ? strerrordesc_np(errnum) : "cannot be read";
	}
}

/* ---- the aggregator ---- */

void
judge_reachable(const struct facts *f, struct finding *ret)
{
	static const char *const tls[] = {"certificate", "SSL", "TLS", "handshake", "gnutls", "CAfile", NULL};
	static const char *const name[] = {"resolve", NULL};

	if (f->status == 200)
		say(ret, VERDICT_OK, "", "answers at %s", f->thing);
	else if (f->status != 0)
		say(ret, VERDICT_FAIL, "point --url or TOLLGATE_URL at a tollgate-aggregator",
		    "%s answers %d to /healthz: this is not an aggregator", f->thing, f->status);
	else if (mentions(f->text, tls))
		say(ret, VERDICT_FAIL,
		    "give the CA that signed its certificate with --ca-file or TOLLGATE_CA_FILE, and use the name "
		    "that is in the certificate",
		    "TLS fails: %s", f->text);
	else if (mentions(f->text, name))
		say(ret, VERDICT_FAIL, "correct the host name in --url or TOLLGATE_URL", "%s", f->text);
	else
		say(ret, VERDICT_FAIL, "start tollgate-aggregator, or set --url or TOLLGATE_URL to where it listens",
		    "%s", f->text);
}

void
judge_database(const struct facts *f, struct finding *ret)
{
	static const char *const rights[] = {"permission denied", "must be owner", NULL};
	static const char *const schema[] = {"migrat", "schema", "does not exist", NULL};
	const char *remedy = "start PostgreSQL, and check the aggregator's --database";

	if (f->status == 200) {
		say(ret, VERDICT_OK, "", "answers and has the schema");
		return;
	}
	if (mentions(f->text, rights))
		remedy = "give the aggregator's database user the rights on the schema tollgate (it should own it)";
	else if (mentions(f->text, schema))
		remedy = "start one aggregator of the newest version with --migrate";
	say(ret, VERDICT_FAIL, remedy, "%s", f->text);
}

void
judge_token_file(const struct facts *f, struct finding *ret)
{
	char remedy[DOCTOR_TEXT];

	if (f->thing[0] == '\0') {
		say(ret, VERDICT_FAIL,
		    "put a token into a file with mode 0600 and name it with --token-file or TOLLGATE_TOKEN_FILE",
		    "no token file is named");
	} else if (f->errnum != 0) {
		say(ret, VERDICT_FAIL, "write the token to that file (tollgate token create), or name another one",
		    "%s %s", f->thing, reason(f->errnum));
	} else if ((f->mode & 077) != 0) {
		snprintf(remedy, sizeof(remedy), "chmod 600 %.400s", f->thing);
		say(ret, VERDICT_WARN, remedy, "%s has mode %04o: others on this machine can use the token", f->thing,
		    f->mode & 07777);
	} else {
		say(ret, VERDICT_OK, "", "%s, mode %04o", f->thing, f->mode & 07777);
	}
}

void
judge_token(const struct facts *f, struct finding *ret)
{
	if (f->status == 401)
		say(ret, VERDICT_FAIL, "ask an administrator for a new one: tollgate token create", "is refused: %s",
		    f->text);
	else if (f->status == 200 && f->difference_ns >= 0 && f->difference_ns < TOKEN_WARN_NS)
		say(ret, VERDICT_WARN, "have a new one made before then: tollgate token create",
		    "is accepted, role %s, and expires in %" PRId64 " hours", f->text, f->difference_ns / NS_PER_HOUR);
	else if (f->status == 200)
		say(ret, VERDICT_OK, "", "is accepted, role %s", f->text);
	else
		say(ret, VERDICT_FAIL, "see the line about the aggregator and its database", "cannot be checked: %s",
		    f->text);
}

void
judge_clock(const struct facts *f, struct finding *ret)
{
	int64_t apart = f->difference_ns < 0 ? -f->difference_ns : f->difference_ns;
	const char *way = f->difference_ns < 0 ? "behind" : "ahead of";

	if (apart > CLOCK_FAIL_NS)
		say(ret, VERDICT_FAIL,
		    "set the clock of this machine or the aggregator, and keep them synchronised (chrony or systemd-timesyncd)",
		    "this machine is %" PRId64 " s %s the aggregator", apart / NS_PER_S, way);
	else if (apart > CLOCK_WARN_NS)
		say(ret, VERDICT_WARN, "synchronise both clocks (chrony or systemd-timesyncd)",
		    "this machine is %" PRId64 " s %s the aggregator", apart / NS_PER_S, way);
	else
		say(ret, VERDICT_OK, "", "within a second of the aggregator's");
}

void
judge_ntp(const struct facts *f, struct finding *ret)
{
	if (f->count > 0)
		say(ret, VERDICT_OK, "", "the kernel says it is synchronised");
	else
		say(ret, VERDICT_WARN, "start chrony or systemd-timesyncd", "the kernel says it is not synchronised");
}

void
judge_nodes(const struct facts *f, struct finding *ret)
{
	if (f->of == 0)
		say(ret, VERDICT_WARN, "start tollgate-exporter on a GPU node, with a token of role node",
		    "no node has sent anything yet");
	else if (f->count > 0)
		say(ret, VERDICT_WARN,
		    "run tollgate doctor --node there; retire a node that is gone by taking it out of the policy",
		    "%" PRId64 " of %" PRId64 " are silent: %s", f->count, f->of, f->text);
	else
		say(ret, VERDICT_OK, "", "%" PRId64 " send", f->of);
}

void
judge_held_nodes(const struct facts *f, struct finding *ret)
{
	say(ret, VERDICT_WARN,
	    "tollgate node approve NAME, or declare it in the policy; revoke its token where it is not yours",
	    "%" PRId64 " are billed to nobody until somebody approves them: %s", f->count, f->text);
}

void
judge_quarantine(const struct facts *f, struct finding *ret)
{
	say(ret, VERDICT_WARN, "tollgate quarantine list; then release or discard each, or mend its node",
	    "%" PRId64 "%s batches or GPUs of batches are refused and billed to nobody, of %s", f->count,
	    f->of > f->count ? " or more" : "", f->text);
}

void
judge_live(const struct facts *f, struct finding *ret)
{
	if (f->count > 0)
		say(ret, VERDICT_WARN, "run tollgate doctor --node there",
		    "no current status on %" PRId64 " of %" PRId64 " nodes: %s", f->count, f->of, f->text);
	else
		say(ret, VERDICT_OK, "", "%" PRId64 " nodes say who holds their GPUs now", f->of);
}

void
judge_node_clocks(const struct facts *f, struct finding *ret)
{
	if (f->count > 0)
		say(ret, VERDICT_FAIL,
		    "synchronise their clocks (chrony or ntpd); batches sent meanwhile wait in quarantine for a decision",
		    "%" PRId64 " of %" PRId64 " are wrong by more than clock-skew-max: %s", f->count, f->of, f->text);
	else
		say(ret, VERDICT_OK, "", "those of %" PRId64 " nodes agree with the aggregator's", f->of);
}

void
judge_unattributed(const struct facts *f, struct finding *ret)
{
	if (f->text[0] != '\0')
		say(ret, VERDICT_WARN,
		    "find it with tollgate usage --tenant unattributed --by node,workload,user, and add a rule to "
		    "the policy",
		    "%s GPU-hours of this month have no owner: no rule of the policy matches", f->text);
	else
		say(ret, VERDICT_OK, "", "all usage of this month belongs to somebody");
}

void
judge_prices(const struct facts *f, struct finding *ret)
{
	if (f->count > 0)
		say(ret, VERDICT_WARN, "add items to prices in the policy and apply it",
		    "%" PRId64 " of %" PRId64 " lines of this month have no price: %s", f->count, f->of, f->text);
	else
		say(ret, VERDICT_OK, "", "each of the %" PRId64 " lines of this month has one", f->of);
}

/* ---- the node ---- */

void
judge_user(const struct facts *f, struct finding *ret)
{
	char remedy[DOCTOR_TEXT];

	if (f->count == f->of) {
		say(ret, VERDICT_OK, "", "this is the exporter's user, %.400s", f->text);
		return;
	}
	snprintf(remedy, sizeof(remedy), "run it as that user: runuser -u %.400s -- tollgate doctor --node", f->text);
	say(ret, VERDICT_WARN, remedy,
	    "the exporter's is %.400s, this one is #%" PRId64 ": files that one can open may be closed to the other",
	    f->text, f->count);
}

void
judge_driver(const struct facts *f, struct finding *ret)
{
	if (f->errnum != 0)
		say(ret, VERDICT_FAIL,
		    "install the NVIDIA driver and load it (modprobe nvidia); in a container, see --root",
		    "%s %s: no NVIDIA driver is loaded", f->thing, reason(f->errnum));
	else
		say(ret, VERDICT_OK, "", "%s", f->text);
}

void
judge_library(const struct facts *f, struct finding *ret)
{
	if (f->errnum == ENOENT)
		say(ret, VERDICT_FAIL,
		    "install it (Debian: libnvidia-ml1), or name it with the exporter's --nvml-library",
		    "libnvidia-ml.so.1 is in none of the usual places");
	else if (f->errnum != 0)
		say(ret, VERDICT_FAIL, "make it readable for the user of the exporter", "%s %s", f->thing,
		    reason(f->errnum));
	else
		say(ret, VERDICT_OK, "", "%s", f->thing);
}

void
judge_devices(const struct facts *f, struct finding *ret)
{
	if (f->of == 0)
		say(ret, VERDICT_FAIL, "run nvidia-modprobe -u -c=0, or start nvidia-persistenced",
		    "there is no /dev/nvidia* here");
	else if (f->failures > 0)
		say(ret, VERDICT_FAIL,
		    "run nvidia-modprobe -c=N for each GPU, or start nvidia-persistenced; a container needs "
		    "NVIDIA_VISIBLE_DEVICES=all",
		    "%" PRId64 " of the driver's device files are missing, %" PRId64 " are there", f->failures, f->of);
	else if (f->count > 0)
		say(ret, VERDICT_FAIL,
		    "open them to the user of the exporter (mode 0666, or the group of NVreg_DeviceFileGID), or to its "
		    "container",
		    "%" PRId64 " of %" PRId64 " device files cannot be opened: %s", f->count, f->of, f->text);
	else
		say(ret, VERDICT_OK, "", "%" PRId64 " device files are open to this user", f->of);
}

void
judge_pid_namespace(const struct facts *f, struct finding *ret)
{
	if (f->errnum != 0)
		say(ret, VERDICT_WARN, "mount /proc", "%s %s", f->thing, reason(f->errnum));
	else if (f->count == 0)
		say(ret, VERDICT_FAIL,
		    "give the exporter the host's processes: hostPID: true, or docker run --pid=host",
		    "this is not the host's: holders of GPUs cannot be named from here");
	else
		say(ret, VERDICT_OK, "", "is the host's");
}

void
judge_processes(const struct facts *f, struct finding *ret)
{
	if (f->errnum != 0)
		say(ret, VERDICT_FAIL,
		    "mount /proc without hidepid (mount -o remount,hidepid=0 /proc), or with gid= of a group of the "
		    "exporter's user, or run the exporter as root",
		    "%s %s%s%s: GPU time of other users' processes has no owner", f->thing, reason(f->errnum),
		    f->text[0] != '\0' ? ", /proc has " : "", f->text);
	else
		say(ret, VERDICT_OK, "", "this user sees those of all users%s%s",
		    f->text[0] != '\0' ? ", although /proc has " : "", f->text);
}

void
judge_cgroup(const struct facts *f, struct finding *ret)
{
	if (f->count == 0)
		say(ret, VERDICT_WARN, "mount cgroups; without them pods and jobs cannot be told apart", "%s has none",
		    f->thing);
	else
		say(ret, VERDICT_OK, "", "version %" PRId64, f->count);
}

void
judge_pods(const struct facts *f, struct finding *ret)
{
	if (f->errnum != 0)
		say(ret, VERDICT_FAIL, "let the exporter read it (a read-only host mount in its pod, or a group)",
		    "%s %s: namespaces and names of pods stay unknown", f->thing, reason(f->errnum));
	else
		say(ret, VERDICT_OK, "", "%s is readable, %" PRId64 " pods", f->thing, f->count);
}

void
judge_kubelet(const struct facts *f, struct finding *ret)
{
	switch (f->errnum) {
	case 0: say(ret, VERDICT_OK, "", "%s can be opened", f->thing); break;
	case ENOENT:
	case ENOTDIR:
		say(ret, VERDICT_WARN, "start the kubelet; in a pod, mount the host's /var/lib/kubelet/pod-resources",
		    "%s does not exist: devices given to pods are not known", f->thing);
		break;
	case EACCES:
	case EPERM:
		say(ret, VERDICT_WARN,
		    "run the exporter as root (systemd/exporter-root.conf) or as a DaemonSet: the kubelet opens its socket to "
		    "root alone",
		    "%s is not open to this user: devices given to pods are not known", f->thing);
		break;
	case ENOTSOCK:
		say(ret, VERDICT_WARN, "remove it and restart the kubelet, which makes it anew", "%s is not a socket",
		    f->thing);
		break;
	case ECONNREFUSED: say(ret, VERDICT_WARN, "start the kubelet", "nobody listens at %s", f->thing); break;
	default: say(ret, VERDICT_WARN, "see the kubelet's log", "%s: %s", f->thing, reason(f->errnum));
	}
}

void
judge_slurm(const struct facts *f, struct finding *ret)
{
	if (f->errnum == ENOENT)
		say(ret, VERDICT_WARN, "add tollgate-prolog.sh and tollgate-epilog.sh to slurm.conf (hooks/slurm)",
		    "this is a node of Slurm, and %s does not exist: jobs have no account, and hold nothing while idle",
		    f->thing);
	else if (f->errnum != 0)
		say(ret, VERDICT_FAIL, "let the exporter's user read it (mode 0755)", "%s %s", f->thing,
		    reason(f->errnum));
	else if (f->failures > 0)
		say(ret, VERDICT_FAIL,
		    "they must belong to root and be writable by nobody else: let Slurm run the prolog as root, or name "
		    "its user with the exporter's --slurm-map-uid",
		    "%s: files that others can write are not believed: %s", f->thing, f->text);
	else
		say(ret, VERDICT_OK, "", "%s is root's, %" PRId64 " jobs", f->thing, f->of);
}

/* ---- its exporter ---- */

void
judge_exporter(const struct facts *f, struct finding *ret)
{
	if (f->status == 200)
		say(ret, VERDICT_OK, "", "answers at %s", f->thing);
	else if (f->status == 503)
		say(ret, VERDICT_WARN, "wait; its log says why it takes so long", "%s has not read the GPUs yet",
		    f->thing);
	else if (f->status != 0)
		say(ret, VERDICT_FAIL, "name the exporter with --exporter", "%s answers %d to /metrics", f->thing,
		    f->status);
	else
		say(ret, VERDICT_FAIL, "start tollgate-exporter, or name it with --exporter", "%s", f->text);
}

void
judge_readings(const struct facts *f, struct finding *ret)
{
	if (f->difference_ns > READING_LATE_NS)
		say(ret, VERDICT_FAIL, "see the exporter's log; nvidia-smi shows whether the driver hangs",
		    "GPUs were last read %" PRId64 " s ago", f->difference_ns / NS_PER_S);
	else if (f->count > 0)
		say(ret, VERDICT_WARN, "nvidia-smi shows why; the time of a lost GPU is billed to nobody",
		    "%" PRId64 " of %" PRId64 " GPUs do not answer", f->count, f->of);
	else if (f->of == 0)
		say(ret, VERDICT_WARN, "check the driver with nvidia-smi -L", "the exporter sees no GPU");
	else
		say(ret, VERDICT_OK, "", "%" PRId64 " GPUs are read%s", f->of,
		    f->text[0] != '\0' ? "; they are simulated" : "");
}

void
judge_accounting(const struct facts *f, struct finding *ret)
{
	if (f->count > 0)
		say(ret, VERDICT_WARN,
		    "nvidia-smi -am 1 as root at each boot, or enable_accounting for an exporter that starts as root",
		    "is off on %" PRId64 " of %" PRId64 " GPUs: processes that live less than a second are not seen",
		    f->count, f->of);
	else
		say(ret, VERDICT_OK, "", "is on: short processes are seen");
}

void
judge_placements(const struct facts *f, struct finding *ret)
{
	if (f->count > 0)
		say(ret, VERDICT_WARN,
		    "start the exporter as root (systemd/exporter-root.conf; in a pod, the capability SYS_ADMIN)",
		    "the driver does not tell it where %" PRId64 " of %" PRId64
		    " MIG instances lie: free slices are counted as if they could be moved together",
		    f->count, f->of);
	else
		say(ret, VERDICT_OK, "", "the driver tells where the %" PRId64 " MIG instances lie", f->of);
}

void
judge_kubelet_answer(const struct facts *f, struct finding *ret)
{
	if (f->count > 0)
		say(ret, VERDICT_OK, "", "answers the exporter");
	else if (f->difference_ns < 0)
		say(ret, VERDICT_WARN,
		    "its log says why; the socket must be open to the exporter's user, and a process of root must listen",
		    "has never answered the exporter: devices given to pods are not known");
	else
		say(ret, VERDICT_WARN, "the exporter's log says why; see the line about the socket",
		    "does not answer the exporter; its answer of %" PRId64 " s ago holds", f->difference_ns / NS_PER_S);
}

void
judge_pod_labels(const struct facts *f, struct finding *ret)
{
	if (f->count > 0)
		say(ret, VERDICT_OK, "", "the kubelet reports them; %" PRId64 " pods have one that is read", f->of);
	else if (f->difference_ns < 0)
		say(ret, VERDICT_WARN,
		    "the exporter's log says why; the token must allow nodes/pods, and kubelet_ca_file must have signed the "
		    "kubelet's certificate (deploy/kubernetes)",
		    "the kubelet has never reported them: rules by label match nothing on this node");
	else
		say(ret, VERDICT_WARN, "the exporter's log says why",
		    "the kubelet does not report them; its answer of %" PRId64 " s ago holds",
		    f->difference_ns / NS_PER_S);
}

void
judge_allocations(const struct facts *f, struct finding *ret)
{
	if (f->failures > 0)
		say(ret, VERDICT_WARN, "the exporter's log names them; they must be root's and writable by nobody else",
		    "%" PRId64 " files about jobs are ignored", f->failures);
	else if (f->count > 0)
		say(ret, VERDICT_WARN, "say in /etc/tollgate/slurm-gpus which GPU each index is (hooks/slurm)",
		    "%" PRId64 " name no GPU of this node", f->count);
	else
		say(ret, VERDICT_OK, "", "%" PRId64 " devices are given to workloads", f->of > 0 ? f->of : 0);
}

void
judge_slurm_names(const struct facts *f, struct finding *ret)
{
	if (f->count > 0)
		say(ret, VERDICT_WARN, SLUID_REMEDY,
		    "%" PRId64 " of %" PRId64
		    " jobs whose cgroup is named by SLUID have no sluid= in their file, so their processes have no account: %s",
		    f->count, f->of, f->text);
	else if (f->failures > 0)
		say(ret, VERDICT_WARN, SLUID_REMEDY,
		    "%" PRId64 " processes on GPUs are in jobs that are known by SLUID alone: no file has it in sluid=",
		    f->failures);
	else
		say(ret, VERDICT_OK, "",
		    "the cgroups of %" PRId64 " jobs are named by SLUID (CgroupJobIdPaths=no), and their files have it",
		    f->of);
}

void
judge_push(const struct facts *f, struct finding *ret)
{
	if (f->status == 0)
		say(ret, VERDICT_WARN, "set the exporter's --aggregator-url",
		    "the exporter has no aggregator: batches stay in the spool");
	else if (f->failures > 0)
		say(ret, VERDICT_WARN, "see the exporter's log; raise --spool-cap", "%" PRId64 " batches were given up",
		    f->failures);
	else if (f->status == 1 && f->of > 0)
		say(ret, VERDICT_FAIL, "see the exporter's log for what the aggregator says: URL, token, CA",
		    "%" PRId64 " requests failed, none was ever acknowledged", f->of);
	else if (f->difference_ns > PUSH_LATE_NS)
		say(ret, VERDICT_FAIL, "see the exporter's log for what the aggregator says",
		    "%" PRId64 " batches wait, the oldest since %" PRId64 " min", f->count,
		    f->difference_ns / NS_PER_MIN);
	else
		say(ret, VERDICT_OK, "", "batches arrive, %" PRId64 " wait", f->count);
}

void
judge_spool(const struct facts *f, struct finding *ret)
{
	if (f->errnum != 0)
		say(ret, VERDICT_FAIL,
		    "make the directory, owned by the user of the exporter; or run doctor as that user", "%s %s",
		    f->thing, reason(f->errnum));
	else if (f->free_bytes < SPOOL_FAIL_BYTES)
		say(ret, VERDICT_FAIL, "free space, or move --spool-dir: what does not fit is lost",
		    "%s has %" PRId64 " MiB left", f->thing, f->free_bytes >> 20);
	else if (f->free_bytes < SPOOL_WARN_BYTES)
		say(ret, VERDICT_WARN, "free space, or move --spool-dir: the spool may grow to --spool-cap",
		    "%s has %" PRId64 " MiB left", f->thing, f->free_bytes >> 20);
	else
		say(ret, VERDICT_OK, "", "%s is writable, %" PRId64 " GiB free", f->thing, f->free_bytes >> 30);
}
