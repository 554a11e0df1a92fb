/* tests/unit/cli/test_doctor.c - what the doctor says to each thing it can find, and how it reads the exporter's page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/cli/doctor/doctor.h"

/* clang-format off */
static const struct {
	const char *name;
	judge_fn *judge;
	struct facts facts;
	enum verdict verdict;
	const char *says, *remedy; /* parts of them; remedy "": there is none */
} cases[] = {
	{"an aggregator that answers", judge_reachable, {.thing = "http://a", .status = 200}, VERDICT_OK, "http://a", ""},
	{"one that does not", judge_reachable, {.text = "GET http://a: Connection refused"}, VERDICT_FAIL, "refused", "start tollgate-aggregator"},
	{"a certificate of a CA that is not known", judge_reachable, {.text = "server certificate verification failed. CAfile: none"}, VERDICT_FAIL, "TLS fails", "--ca-file"},
	{"a name that does not exist", judge_reachable, {.text = "Could not resolve host: x"}, VERDICT_FAIL, "resolve", "host name"},
	{"another program's port", judge_reachable, {.thing = "http://a", .status = 404}, VERDICT_FAIL, "404", "TOLLGATE_URL"},
	{"a database that answers", judge_database, {.status = 200}, VERDICT_OK, "schema", ""},
	{"a database user without rights", judge_database, {.status = 503, .text = "permission denied for schema tollgate"}, VERDICT_FAIL, "permission denied", "rights"},
	{"an old schema", judge_database, {.status = 503, .text = "the database has 4 of 6 migrations"}, VERDICT_FAIL, "4 of 6", "--migrate"},
	{"no database", judge_database, {.status = 503, .text = "connection to server failed"}, VERDICT_FAIL, "connection", "start PostgreSQL"},
	{"no token file", judge_token_file, {.thing = ""}, VERDICT_FAIL, "no token file", "TOLLGATE_TOKEN_FILE"},
	{"a token file that is missing", judge_token_file, {.thing = "/t", .errnum = ENOENT}, VERDICT_FAIL, "/t does not exist", "token create"},
	{"a token file of somebody else", judge_token_file, {.thing = "/t", .errnum = EACCES}, VERDICT_FAIL, "not open to this user", "name another"},
	{"a token file that others can read", judge_token_file, {.thing = "/t", .mode = 0100644}, VERDICT_WARN, "mode 0644", "chmod 600 /t"},
	{"a token file as it should be", judge_token_file, {.thing = "/t", .mode = 0100600}, VERDICT_OK, "mode 0600", ""},
	{"a token that is over", judge_token, {.status = 401, .text = "expired"}, VERDICT_FAIL, "expired", "token create"},
	{"a token without end", judge_token, {.status = 200, .text = "admin", .difference_ns = -1}, VERDICT_OK, "role admin", ""},
	{"a token with time left", judge_token, {.status = 200, .text = "viewer, tenant acme", .difference_ns = 7 * NS_PER_DAY}, VERDICT_OK, "role viewer, tenant acme", ""},
	{"a token that ends soon", judge_token, {.status = 200, .text = "viewer", .difference_ns = 5 * NS_PER_HOUR}, VERDICT_WARN, "expires in 5 hours", "token create"},
	{"a token that nobody checks", judge_token, {.status = 503, .text = "busy"}, VERDICT_FAIL, "busy", "database"},
	{"clocks that agree", judge_clock, {.difference_ns = NS_PER_S}, VERDICT_OK, "within a second", ""},
	{"a clock that is a little late", judge_clock, {.difference_ns = -2 * NS_PER_S}, VERDICT_WARN, "2 s behind", "chrony"},
	{"a clock five minutes ahead", judge_clock, {.difference_ns = 5 * NS_PER_MIN}, VERDICT_WARN, "300 s ahead of", "chrony"},
	{"a clock more than that ahead", judge_clock, {.difference_ns = 5 * NS_PER_MIN + 1}, VERDICT_FAIL, "300 s ahead of", "set the clock"},
	{"a clock that is synchronised", judge_ntp, {.count = 1}, VERDICT_OK, "synchronised", ""},
	{"a clock that is not", judge_ntp, {.count = 0}, VERDICT_WARN, "not synchronised", "chrony"},
	{"no node yet", judge_nodes, {.of = 0}, VERDICT_WARN, "no node", "start tollgate-exporter"},
	{"silent nodes", judge_nodes, {.count = 2, .of = 9, .text = "n1, n2"}, VERDICT_WARN, "2 of 9 are silent: n1, n2", "doctor --node"},
	{"nodes that send", judge_nodes, {.of = 9}, VERDICT_OK, "9 send", ""},
	{"nodes that say nothing of now", judge_live, {.count = 1, .of = 9, .text = "n1"}, VERDICT_WARN, "on 1 of 9 nodes: n1", "doctor --node"},
	{"nodes that do", judge_live, {.of = 9}, VERDICT_OK, "9 nodes say", ""},
	{"nodes whose clocks are wrong", judge_node_clocks, {.count = 1, .of = 9, .text = "n1"}, VERDICT_FAIL, "1 of 9 are wrong", "chrony"},
	{"nodes whose clocks are right", judge_node_clocks, {.of = 9}, VERDICT_OK, "agree", ""},
	{"usage of nobody", judge_unattributed, {.text = "3.25"}, VERDICT_WARN, "3.25 GPU-hours", "add a rule"},
	{"usage of somebody", judge_unattributed, {.text = ""}, VERDICT_OK, "somebody", ""},
	{"a model without price", judge_prices, {.count = 1, .of = 4, .text = "L40S"}, VERDICT_WARN, "1 of 4 lines of this month have no price: L40S", "prices"},
	{"prices for all", judge_prices, {.of = 4}, VERDICT_OK, "each of the 4 lines", ""},
	{"the exporter's user", judge_user, {.count = 999, .of = 999, .text = "tollgate-exporter"}, VERDICT_OK, "tollgate-exporter", ""},
	{"root asks for another user", judge_user, {.count = 0, .of = 999, .text = "tollgate-exporter"}, VERDICT_WARN, "the exporter's is tollgate-exporter, this one is #0", "runuser -u tollgate-exporter -- tollgate doctor --node"},
	{"a driver", judge_driver, {.text = "NVIDIA UNIX x86_64 Kernel Module  550"}, VERDICT_OK, "550", ""},
	{"no driver", judge_driver, {.thing = "/proc/driver/nvidia/version", .errnum = ENOENT}, VERDICT_FAIL, "no NVIDIA driver", "modprobe"},
	{"a library", judge_library, {.thing = "/usr/lib/libnvidia-ml.so.1"}, VERDICT_OK, "/usr/lib", ""},
	{"no library", judge_library, {.errnum = ENOENT}, VERDICT_FAIL, "none of the usual places", "--nvml-library"},
	{"a library that is closed", judge_library, {.thing = "/usr/lib/x", .errnum = EACCES}, VERDICT_FAIL, "not open", "readable"},
	{"no device files", judge_devices, {.of = 0}, VERDICT_FAIL, "no /dev/nvidia*", "nvidia-modprobe"},
	{"device files that are closed", judge_devices, {.count = 1, .of = 9, .text = "nvidia3"}, VERDICT_FAIL, "1 of 9 device files cannot be opened: nvidia3", "0666"},
	{"device files that were not made", judge_devices, {.count = 1, .of = 7, .failures = 2, .text = "nvidia3"}, VERDICT_FAIL, "2 of the driver's device files are missing, 7 are there", "nvidia-modprobe"},
	{"device files that are open", judge_devices, {.of = 9}, VERDICT_OK, "9 device files", ""},
	{"the host's processes", judge_pid_namespace, {.count = 1}, VERDICT_OK, "host's", ""},
	{"a container's processes", judge_pid_namespace, {.count = 0}, VERDICT_FAIL, "not the host's", "hostPID"},
	{"no /proc", judge_pid_namespace, {.thing = "/proc/self/ns/pid", .errnum = ENOENT}, VERDICT_WARN, "does not exist", "mount"},
	{"processes of all users", judge_processes, {.thing = "/proc/1/cgroup"}, VERDICT_OK, "sees those of all users", ""},
	{"hidden processes that root sees", judge_processes, {.thing = "/proc/1/cgroup", .text = "hidepid=2"}, VERDICT_OK, "although /proc has hidepid=2", ""},
	{"hidden processes", judge_processes, {.thing = "/proc/1/cgroup", .errnum = ENOENT, .text = "hidepid=invisible"}, VERDICT_FAIL, "does not exist, /proc has hidepid=invisible", "remount,hidepid=0"},
	{"closed processes", judge_processes, {.thing = "/proc/1/cgroup", .errnum = EACCES}, VERDICT_FAIL, "is not open to this user: GPU time", "hidepid"},
	{"cgroups of today", judge_cgroup, {.count = 2}, VERDICT_OK, "version 2", ""},
	{"cgroups of before", judge_cgroup, {.count = 1}, VERDICT_OK, "version 1", ""},
	{"no cgroups", judge_cgroup, {.thing = "/sys/fs/cgroup"}, VERDICT_WARN, "none", "mount"},
	{"pods", judge_pods, {.thing = "/var/log/pods", .count = 12}, VERDICT_OK, "12 pods", ""},
	{"pods that cannot be read", judge_pods, {.thing = "/var/log/pods", .errnum = EACCES}, VERDICT_FAIL, "not open", "host mount"},
	{"the kubelet's socket", judge_kubelet, {.thing = "/k.sock"}, VERDICT_OK, "can be opened", ""},
	{"a kubelet's socket that is closed", judge_kubelet, {.thing = "/k.sock", .errnum = EACCES}, VERDICT_WARN, "/k.sock is not open", "exporter-root.conf"},
	{"no kubelet's socket", judge_kubelet, {.thing = "/k.sock", .errnum = ENOENT}, VERDICT_WARN, "/k.sock does not exist", "start the kubelet"},
	{"a kubelet's socket that is none", judge_kubelet, {.thing = "/k.sock", .errnum = ENOTSOCK}, VERDICT_WARN, "not a socket", "restart the kubelet"},
	{"a kubelet's socket that it left behind", judge_kubelet, {.thing = "/k.sock", .errnum = ECONNREFUSED}, VERDICT_WARN, "nobody listens", "start the kubelet"},
	{"a kubelet's socket in other trouble", judge_kubelet, {.thing = "/k.sock", .errnum = EMFILE}, VERDICT_WARN, "/k.sock", "log"},
	{"Slurm's files", judge_slurm, {.thing = "/run/s", .of = 3}, VERDICT_OK, "/run/s is root's, 3 jobs", ""},
	{"a node of Slurm without a prolog", judge_slurm, {.thing = "/run/s", .errnum = ENOENT}, VERDICT_WARN, "/run/s does not exist", "tollgate-prolog.sh"},
	{"Slurm's files that are closed", judge_slurm, {.thing = "/run/s", .errnum = EACCES}, VERDICT_FAIL, "not open to this user", "0755"},
	{"Slurm's files that anybody may write", judge_slurm, {.thing = "/run/s", .of = 3, .failures = 1, .text = "4711"}, VERDICT_FAIL, "not believed: 4711", "--slurm-map-uid"},
	{"an exporter", judge_exporter, {.thing = "http://e", .status = 200}, VERDICT_OK, "http://e", ""},
	{"an exporter that begins", judge_exporter, {.thing = "http://e", .status = 503}, VERDICT_WARN, "not read the GPUs yet", "wait"},
	{"no exporter", judge_exporter, {.text = "Connection refused"}, VERDICT_FAIL, "refused", "start tollgate-exporter"},
	{"another program's page", judge_exporter, {.thing = "http://e", .status = 404}, VERDICT_FAIL, "404", "--exporter"},
	{"GPUs that are read", judge_readings, {.of = 8}, VERDICT_OK, "8 GPUs are read", ""},
	{"GPUs that are simulated", judge_readings, {.of = 8, .text = "simulated"}, VERDICT_OK, "simulated", ""},
	{"a driver that hangs", judge_readings, {.of = 8, .difference_ns = 31 * NS_PER_S}, VERDICT_FAIL, "31 s ago", "nvidia-smi"},
	{"a GPU that is lost", judge_readings, {.count = 1, .of = 8}, VERDICT_WARN, "1 of 8 GPUs do not answer", "nvidia-smi"},
	{"no GPU", judge_readings, {.of = 0}, VERDICT_WARN, "sees no GPU", "nvidia-smi"},
	{"accounting", judge_accounting, {.of = 8}, VERDICT_OK, "is on", ""},
	{"no accounting", judge_accounting, {.count = 8, .of = 8}, VERDICT_WARN, "is off on 8 of 8 GPUs", "nvidia-smi -am 1"},
	{"placements that are told", judge_placements, {.of = 14}, VERDICT_OK, "14 MIG instances", ""},
	{"placements that are told to root only", judge_placements, {.count = 2, .of = 14}, VERDICT_WARN, "where 2 of 14 MIG instances lie", "SYS_ADMIN"},
	{"a kubelet that answers", judge_kubelet_answer, {.count = 1, .difference_ns = NS_PER_S}, VERDICT_OK, "answers", ""},
	{"a kubelet that is away", judge_kubelet_answer, {.count = 0, .difference_ns = 90 * NS_PER_S}, VERDICT_WARN, "90 s ago holds", "log"},
	{"labels that are told", judge_pod_labels, {.count = 1, .of = 3, .difference_ns = NS_PER_S}, VERDICT_OK, "3 pods", ""},
	{"labels that are no longer told", judge_pod_labels, {.count = 0, .difference_ns = 90 * NS_PER_S}, VERDICT_WARN, "90 s ago holds", "log"},
	{"labels that were never told", judge_pod_labels, {.count = 0, .difference_ns = -1}, VERDICT_WARN, "never", "nodes/pods"},
	{"a kubelet that never answered", judge_kubelet_answer, {.count = 0, .difference_ns = -1}, VERDICT_WARN, "never", "root must listen"},
	{"allocations", judge_allocations, {.of = 5}, VERDICT_OK, "5 devices", ""},
	{"files about jobs that are refused", judge_allocations, {.of = 5, .failures = 2, .count = 1}, VERDICT_WARN, "2 files", "root's"},
	{"allocations of what is not there", judge_allocations, {.of = 5, .count = 1}, VERDICT_WARN, "1 name no GPU", "slurm-gpus"},
	{"jobs by SLUID, all with their files", judge_slurm_names, {.of = 3}, VERDICT_OK, "3 jobs are named by SLUID (CgroupJobIdPaths=no)", ""},
	{"jobs by SLUID that no file has", judge_slurm_names, {.of = 3, .count = 1, .text = "sEKNKTV3WPV500"}, VERDICT_WARN, "1 of 3 jobs whose cgroup is named by SLUID have no sluid= in their file, so their processes have no account: sEKNKTV3WPV500", "CgroupJobIdPaths=yes"},
	{"processes in jobs by SLUID alone", judge_slurm_names, {.failures = 2}, VERDICT_WARN, "2 processes on GPUs", "tollgate-prolog.sh"},
	{"batches that arrive", judge_push, {.status = 2, .count = 1, .of = 3, .difference_ns = NS_PER_MIN}, VERDICT_OK, "1 wait", ""},
	{"an exporter on its own", judge_push, {.status = 0}, VERDICT_WARN, "no aggregator", "--aggregator-url"},
	{"nothing ever acknowledged", judge_push, {.status = 1, .of = 5, .difference_ns = NS_PER_MIN}, VERDICT_FAIL, "5 requests failed", "token"},
	{"batches that wait for long", judge_push, {.status = 2, .count = 40, .difference_ns = 41 * NS_PER_MIN}, VERDICT_FAIL, "40 batches wait, the oldest since 41 min", "log"},
	{"batches given up", judge_push, {.status = 2, .failures = 7}, VERDICT_WARN, "7 batches were given up", "--spool-cap"},
	{"room for the spool", judge_spool, {.thing = "/s", .free_bytes = INT64_C(5) << 30}, VERDICT_OK, "5 GiB", ""},
	{"little room", judge_spool, {.thing = "/s", .free_bytes = 500 << 20}, VERDICT_WARN, "500 MiB left", "--spool-cap"},
	{"no room", judge_spool, {.thing = "/s", .free_bytes = 1 << 20}, VERDICT_FAIL, "1 MiB left", "lost"},
	{"no spool", judge_spool, {.thing = "/s", .errnum = ENOENT}, VERDICT_FAIL, "/s does not exist", "make the directory"},
	{"a spool on a disk that went read-only", judge_spool, {.thing = "/s", .errnum = EROFS}, VERDICT_FAIL, "read-only", "owned"},
};
/* clang-format on */

static void
each_thing_that_can_be_found_has_its_verdict_and_remedy(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct finding f = {0};

		cases[i].judge(&cases[i].facts, &f);
		if (f.verdict != cases[i].verdict || strstr(f.finding, cases[i].says) == NULL ||
		    (cases[i].remedy[0] == '\0') != (f.remedy[0] == '\0') || strstr(f.remedy, cases[i].remedy) == NULL)
			fail_msg("%s: %d \"%s\"; \"%s\"", cases[i].name, (int)f.verdict, f.finding, f.remedy);
		if ((f.verdict == VERDICT_OK) != (f.remedy[0] == '\0'))
			fail_msg("%s: a remedy belongs to what is not ok, and to nothing else", cases[i].name);
	}
}

static void
a_page_of_metrics_is_read_by_name_and_label(void **state)
{
	static const char page[] = "# HELP a_total a_total 7\n"
				   "a_total_more 1\n"
				   "a_total{result=\"acked\"} 10\n"
				   "a_total{result=\"failed\",why=\"a b\"} 2\n"
				   "b_seconds 1794807961.5\n"
				   "c -0.125\n"
				   "d NaN\n"
				   "e 99999999999999999999\n"
				   "f 3";
	static const struct {
		const char *name, *label;
		bool found;
		int64_t thousandths;
	} series[] = {
		{"a_total", NULL, true, 10000},
		{"a_total", "result=\"failed\"", true, 2000},
		{"a_total", "result=\"moved\"", false, 0},
		{"b_seconds", NULL, true, INT64_C(1794807961500)},
		{"d", NULL, false, 0},
		{"e", NULL, false, 0},
		{"f", NULL, true, 3000},
		{"a", NULL, false, 0},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(series); i++) {
		int64_t v = 0;

		if (metric_value(page, series[i].name, series[i].label, &v) != series[i].found ||
		    v != series[i].thousandths)
			fail_msg("%s: %" PRId64, series[i].name, v);
	}
}

static struct facts
look(probe_fn *probe, const char *page)
{
	struct doctor d = {.root = "/nowhere", .spool_dir = "/spool"};
	struct facts f = {0};

	buf_init(&d.metrics, CLI_REPLY_MAX);
	buf_str(&d.metrics, page);
	probe(&d, &f);
	buf_fini(&d.metrics);
	return f;
}

static void
accounting_is_missed_only_where_the_driver_could_have_it(void **state)
{
	struct facts f;

	(void)state;
	f = look(probe_accounting,
	         "tollgate_gpu_info{gpu=\"0\",mig=\"off\"} 1\ntollgate_gpu_info{gpu=\"1\",mig=\"on\"} 1\n"
	         "tollgate_gpu_accounting{gpu=\"0\"} 0\ntollgate_gpu_accounting{gpu=\"1\"} 0\n");
	assert_false(f.absent);
	assert_int_equal(f.count, 1);
	assert_int_equal(f.of, 1);
	f = look(probe_accounting, "tollgate_gpu_info{gpu=\"1\",mig=\"on\"} 1\ntollgate_gpu_accounting{gpu=\"1\"} 0\n");
	assert_true(f.absent);
	assert_true(look(probe_accounting, "").absent);
}

static void
what_the_exporter_was_not_told_is_on_its_page(void **state)
{
	struct facts f;

	(void)state;
	f = look(probe_placements, "tollgate_mig_info{gi=\"1\"} 1\ntollgate_mig_info{gi=\"2\"} 1\n"
	                           "tollgate_exporter_unplaced_instances 1\n");
	assert_false(f.absent);
	assert_int_equal(f.count, 1);
	assert_int_equal(f.of, 2);
	assert_true(look(probe_placements, "tollgate_gpu_up 1\n").absent);

	f = look(probe_kubelet_answer,
	         "tollgate_exporter_kubelet_up 0\ntollgate_exporter_kubelet_answer_age_seconds 90.5\n");
	assert_false(f.absent);
	assert_int_equal(f.count, 0);
	assert_int_equal(f.difference_ns, 90 * NS_PER_S + 500 * NS_PER_MS);
	f = look(probe_kubelet_answer, "tollgate_exporter_kubelet_up 0\n");
	assert_int_equal(f.difference_ns, -1);
	assert_true(look(probe_kubelet_answer, "").absent);
	f = look(probe_pod_labels,
	         "tollgate_exporter_pod_labels_up 1\ntollgate_exporter_pod_labels_answer_age_seconds 2.5\n"
	         "tollgate_exporter_pods_labelled 7\n");
	assert_int_equal(f.count, 1);
	assert_int_equal(f.of, 7);
	assert_int_equal(f.difference_ns, 2500 * NS_PER_MS);
	assert_false(f.absent);
	assert_true(look(probe_pod_labels, "").absent);

	f = look(probe_allocations,
	         "tollgate_exporter_allocations{source=\"kubelet\"} 3\n"
	         "tollgate_exporter_allocations{source=\"slurm\"} 2\n"
	         "tollgate_exporter_unresolved_allocations 1\ntollgate_exporter_refused_map_files 4\n");
	assert_int_equal(f.of, 5);
	assert_int_equal(f.count, 1);
	assert_int_equal(f.failures, 4);
	assert_true(look(probe_allocations, "").absent);

	f = look(probe_slurm_names, "tollgate_exporter_unmapped_slurm_processes 2\n");
	assert_false(f.absent);
	assert_int_equal(f.failures, 2);
	assert_true(look(probe_slurm_names, "tollgate_exporter_unmapped_slurm_processes 0\n").absent);
	assert_true(look(probe_slurm_names, "").absent);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_thing_that_can_be_found_has_its_verdict_and_remedy),
		cmocka_unit_test(a_page_of_metrics_is_read_by_name_and_label),
		cmocka_unit_test(accounting_is_missed_only_where_the_driver_could_have_it),
		cmocka_unit_test(what_the_exporter_was_not_told_is_on_its_page),
	};

	return cmocka_run_group_tests_name("doctor", tests, NULL, NULL);
}
