/* Cgroup paths as real runtimes and resource managers write them, and as somebody would who wants to be somebody else. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/buf.h"
#include "exporter/identity/cgroup.h"

#define UID_DASHED "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
#define UID_UNDERSCORED "0f1e2d3c_4b5a_6978_8796_a5b4c3d2e1f0"
#define VICTIM "11111111-1111-1111-1111-111111111111"
#define VICTIM_UNDERSCORED "11111111_1111_1111_1111_111111111111"
#define CID "4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a9b0c1e2f4d7a"
#define NODE_CID "aa00bb11cc22aa00bb11cc22aa00bb11cc22aa00bb11cc22aa00bb11cc22aa00"
#define SLUID "sEKNKTV3WPV500"
#define BURSTABLE_SCOPE                                                                                               \
	"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" UID_UNDERSCORED ".slice/cri-containerd-" CID \
	".scope"

enum { NOBODY = -1 };

struct cgroup_row {
	const char *name;
	const char *text;
	const char *pod_uid, *container_id;
	const char *slurm_job; /* its number or SLUID */
	int64_t session_uid;
	const char *self; /* text of the exporter's own cgroup; NULL: on the host */
};

static const struct cgroup_row cgroup_rows[] = {
	/* pods */
	{"v2, systemd driver, containerd, burstable", "0::/" BURSTABLE_SCOPE "\n", UID_DASHED, CID, "", NOBODY, NULL},
	{"v2, systemd driver, CRI-O, guaranteed, with a cgroup made by the container below",
         "0::/kubepods.slice/kubepods-pod" UID_UNDERSCORED ".slice/crio-" CID ".scope/container\n", UID_DASHED, CID, "",
         NOBODY, NULL},
	{"v2, systemd driver, docker",
         "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" UID_UNDERSCORED ".slice/docker-" CID
         ".scope\n",
         UID_DASHED, CID, "", NOBODY, NULL},
	{"v2, systemd driver below a kubelet slice",
         "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" UID_UNDERSCORED
         ".slice/cri-containerd-" CID ".scope\n",
         UID_DASHED, CID, "", NOBODY, NULL},
	{"v2, cgroupfs driver", "0::/kubepods/burstable/pod" UID_DASHED "/" CID "\n", UID_DASHED, CID, "", NOBODY,
         NULL},
	{"v2, cgroupfs driver, CRI-O", "0::/kubepods/pod" UID_DASHED "/crio-" CID "\n", UID_DASHED, CID, "", NOBODY,
         NULL},
	{"v2, cgroupfs driver below /kubelet", "0::/kubelet/kubepods/besteffort/pod" UID_DASHED "/" CID "\n",
         UID_DASHED, CID, "", NOBODY, NULL},
	{"v2, a container's cgroup that was removed", "0::/kubepods/pod" UID_DASHED "/" CID " (deleted)\n", UID_DASHED,
         CID, "", NOBODY, NULL},
	{"v1, cgroupfs driver, guaranteed",
         "12:pids:/kubepods/pod" UID_DASHED "/" CID "\n11:devices:/kubepods/pod" UID_DASHED "/" CID
         "\n1:name=systemd:/kubepods/pod" UID_DASHED "/" CID "\n",
         UID_DASHED, CID, "", NOBODY, NULL},
	{"v1, systemd driver", "4:memory:/" BURSTABLE_SCOPE "\n1:name=systemd:/" BURSTABLE_SCOPE "\n", UID_DASHED, CID,
         "", NOBODY, NULL},
	{"v1, containerd without the systemd driver",
         "4:memory:/system.slice/containerd.service/kubepods-burstable-pod" UID_UNDERSCORED ".slice:cri-containerd:" CID
         "\n",
         UID_DASHED, CID, "", NOBODY, NULL},
	{"v1, k3s without the systemd driver",
         "4:memory:/system.slice/k3s.service/kubepods/pod" UID_DASHED "/" CID "\n", UID_DASHED, CID, "", NOBODY, NULL},
	{"v1, only some hierarchies name the pod",
         "13:misc:/\n12:rdma:/\n5:cpu,cpuacct:/kubepods/besteffort/pod" UID_DASHED "/" CID "\n", UID_DASHED, CID, "",
         NOBODY, NULL},
	{"a static pod has a hash for UID", "0::/kubepods/burstable/podaaaabbbbccccdddd0000111122223333/" CID "\n",
         "aaaabbbbccccdddd0000111122223333", CID, "", NOBODY, NULL},
	{"the pod's own cgroup, without container", "0::/kubepods/burstable/pod" UID_DASHED "\n", UID_DASHED, "", "",
         NOBODY, NULL},

	/* seen from another cgroup namespace: the exporter in a pod */
	{"seen from below: from the root", "0::/../../kubepods/pod" UID_DASHED "/" CID "\n", UID_DASHED, CID, "",
         NOBODY, NULL},
	{"seen from a pod of another class, systemd driver",
         "0::/../../../kubepods-burstable.slice/kubepods-burstable-pod" UID_UNDERSCORED ".slice/cri-containerd-" CID
         ".scope\n",
         UID_DASHED, CID, "", NOBODY, NULL},
	{"seen from a pod of the same class, systemd driver",
         "0::/../../kubepods-besteffort-pod" UID_UNDERSCORED ".slice/cri-containerd-" CID ".scope\n", UID_DASHED, CID,
         "", NOBODY, NULL},
	{"seen from a pod of another class, cgroupfs driver", "0::/../../../burstable/pod" UID_DASHED "/" CID "\n",
         UID_DASHED, CID, "", NOBODY, NULL},
	{"seen from a pod of the same class, cgroupfs driver", "0::/../../pod" UID_DASHED "/" CID "\n", UID_DASHED, CID,
         "", NOBODY, NULL},
	{"a job seen from a pod", "0::/../../../../system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", "", "",
         "4711", NOBODY, NULL},
	{"a session seen from a pod", "0::/../../../../user.slice/user-1000.slice/session-3.scope\n", "", "", "", 1000,
         NULL},
	{"a pod's own folder seen from its neighbour is not another pod",
         "0::/../../kubepods-besteffort-pod" UID_UNDERSCORED ".slice/cri-containerd-" CID ".scope/pod" VICTIM "/" CID
         "\n",
         UID_DASHED, CID, "", NOBODY, NULL},

	/* nodes that are containers */
	{"kind on cgroup v1: the node is a docker container",
         "4:memory:/docker/" NODE_CID "/kubelet/kubepods/burstable/pod" UID_DASHED "/" CID "\n", UID_DASHED, CID, "",
         NOBODY, "4:memory:/docker/" NODE_CID "/kubelet/kubepods/besteffort/pod" VICTIM "/" CID "\n"},
	{"minikube: the node is a docker container with the systemd driver",
         "0::/system.slice/docker-" NODE_CID ".scope/" BURSTABLE_SCOPE "\n", UID_DASHED, CID, "", NOBODY,
         "0::/system.slice/docker-" NODE_CID ".scope/system.slice/tollgate-exporter.service\n"},
	{"a node in a container in a container",
         "0::/docker/" CID "/docker/" NODE_CID "/kubepods/pod" UID_DASHED "/" CID "\n", UID_DASHED, CID, "", NOBODY,
         "0::/docker/" CID "/docker/" NODE_CID "/kubepods/pod" VICTIM "/" CID "\n"},
	{"a node that is a podman container",
         "0::/machine.slice/libpod-" NODE_CID ".scope/kubelet/kubepods/pod" UID_DASHED "/" CID "\n", UID_DASHED, CID,
         "", NOBODY, "0::/machine.slice/libpod-" NODE_CID ".scope/init.scope\n"},
	{"a job on a node that is an LXC container", "0::/lxc.payload.gn1/system.slice/slurmstepd.scope/job_8/step_0\n",
         "", "", "8", NOBODY, "0::/lxc.payload.gn1/system.slice/tollgate-exporter.service\n"},
	{"another container than the exporter's node names nobody",
         "0::/docker/" CID "/kubepods/pod" VICTIM "/" CID "\n", "", "", "", NOBODY,
         "0::/docker/" NODE_CID "/kubepods/pod" UID_DASHED "/" CID "\n"},
	{"seen from the host, a container cannot pose as a pod",
         "0::/docker/" NODE_CID "/kubepods/pod" VICTIM "/" CID "\n", "", "", "", NOBODY, NULL},
	{"seen from the host, a container with the systemd driver neither",
         "0::/system.slice/docker-" NODE_CID
         ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" VICTIM_UNDERSCORED
         ".slice/cri-containerd-" CID ".scope\n",
         "", "", "", NOBODY, "0::/system.slice/tollgate-exporter.service\n"},
	{"docker in a pod: the pod on this node is the owner",
         "0::/kubepods/burstable/pod" UID_DASHED "/" CID "/docker/" NODE_CID "/kubelet/kubepods/pod" VICTIM "/" NODE_CID
         "\n",
         UID_DASHED, CID, "", NOBODY, NULL},

	/* jobs */
	{"Slurm, v2", "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", "", "", "4711", NOBODY, NULL},
	{"Slurm, v2, several slurmd on one host", "0::/system.slice/gn1_slurmstepd.scope/job_12/step_batch/slurm\n", "",
         "", "12", NOBODY, NULL},
	{"Slurm, v2, in another slice", "0::/hpc.slice/hpc-batch.slice/slurmstepd.scope/job_13/step_0/user/task_0\n",
         "", "", "13", NOBODY, NULL},
	{"Slurm, v1", "7:cpuset:/slurm/uid_1000/job_99/step_0\n1:name=systemd:/system.slice/slurmd.service\n", "", "",
         "99", NOBODY, NULL},
	{"Slurm, v1, with the node's name", "9:freezer:/slurm_gn1/uid_1000/job_7/step_extern\n", "", "", "7", NOBODY,
         NULL},
	{"Slurm, v1, a login session adopted into its job",
         "1:name=systemd:/user.slice/user-1000.slice/session-3.scope\n11:memory:/slurm/uid_1000/job_5/step_extern\n",
         "", "", "5", NOBODY, NULL},
	{"a container that a job started", "0::/system.slice/slurmstepd.scope/job_3/step_0/user/libpod-" CID ".scope\n",
         "", "", "3", NOBODY, NULL},

	{"Slurm 26.05, v2: the job by its SLUID", "0::/system.slice/slurmstepd.scope/" SLUID "/step_0/user/task_0\n",
         "", "", SLUID, NOBODY, NULL},
	{"Slurm 26.05, v2, several slurmd on one host",
         "0::/system.slice/gn1_slurmstepd.scope/" SLUID "/step_batch/slurm\n", "", "", SLUID, NOBODY, NULL},
	{"Slurm 26.05 seen from a pod", "0::/../../../../system.slice/slurmstepd.scope/" SLUID "/step_0\n", "", "",
         SLUID, NOBODY, NULL},
	{"a SLUID has no letter I, L, O or U", "0::/system.slice/slurmstepd.scope/sEKNKTV3WPVI00/step_0\n", "", "", "",
         NOBODY, NULL},
	{"a SLUID is not in lower case", "0::/system.slice/slurmstepd.scope/seknktv3wpv500/step_0\n", "", "", "",
         NOBODY, NULL},
	{"a SLUID has 13 digits, not 12", "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV50/step_0\n", "", "", "",
         NOBODY, NULL},
	{"a SLUID has 13 digits, not 14", "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV5000/step_0\n", "", "", "",
         NOBODY, NULL},
	{"slurmstepd's own folder is no job", "0::/system.slice/slurmstepd.scope/system\n", "", "", "", NOBODY, NULL},

	/* slurmd inside a pod: the pod and the job, and the caller decides */
	{"slurmd in a pod, by number",
         "0::/" BURSTABLE_SCOPE "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", UID_DASHED, CID, "4711",
         NOBODY, NULL},
	{"slurmd in a pod, by SLUID", "0::/" BURSTABLE_SCOPE "/system.slice/slurmstepd.scope/" SLUID "/step_0\n",
         UID_DASHED, CID, SLUID, NOBODY, NULL},
	{"slurmd in a pod of CRI-O with crun",
         "0::/kubepods.slice/kubepods-pod" UID_UNDERSCORED ".slice/crio-" CID
         ".scope/container/hpc.slice/gn1_slurmstepd.scope/job_7/step_0\n",
         UID_DASHED, CID, "7", NOBODY, NULL},
	{"slurmd in a pod, cgroupfs driver, v1",
         "7:cpuset:/kubepods/pod" UID_DASHED "/" CID
         "/slurm/uid_1000/job_99/step_0\n1:name=systemd:/kubepods/pod" UID_DASHED "/" CID "\n",
         UID_DASHED, CID, "99", NOBODY, NULL},
	{"slurmd in a pod is the pod's", "0::/" BURSTABLE_SCOPE "/system.slice/slurmd.service\n", UID_DASHED, CID, "",
         NOBODY, NULL},
	{"Slurm's folder below another one in a pod is nothing",
         "0::/" BURSTABLE_SCOPE "/mine/slurmstepd.scope/job_4711/step_0\n", UID_DASHED, CID, "", NOBODY, NULL},
	{"Slurm's folder in a pod without a container is nothing",
         "0::/kubepods/burstable/pod" UID_DASHED "/slurmstepd.scope/job_4711/step_0\n", UID_DASHED, "", "", NOBODY,
         NULL},

	/* users */
	{"a user's session", "0::/user.slice/user-1000.slice/session-2.scope\n", "", "", "", 1000, NULL},
	{"a user's own service", "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.service\n", "", "", "",
         1000, NULL},
	{"a rootless container is its user's",
         "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" CID ".scope/container\n", "", "", "",
         1000, NULL},
	{"a session of the largest uid", "0::/user.slice/user-4294967294.slice/session-2.scope\n", "", "", "",
         4294967294, NULL},
	{"a uid that does not exist", "0::/user.slice/user-4294967295.slice/session-2.scope\n", "", "", "", NOBODY,
         NULL},
	{"a uid that is not a number", "0::/user.slice/user-10x0.slice/session-2.scope\n", "", "", "", NOBODY, NULL},
	{"a service", "0::/system.slice/ssh.service\n", "", "", "", NOBODY, NULL},
	{"a docker container", "0::/system.slice/docker-" CID ".scope\n", "", "", "", NOBODY, NULL},
	{"the root", "0::/\n", "", "", "", NOBODY, NULL},

	/* who would like to be somebody else */
	{"a user cannot pose as a pod below his own slice",
         "0::/user.slice/user-1000.slice/user@1000.service/" BURSTABLE_SCOPE "\n", "", "", "", 1000, NULL},
	{"a user cannot pose as a job below his own slice",
         "0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_1\n", "", "", "", 1000, NULL},
	{"a user cannot pose as another user below his own slice",
         "0::/user.slice/user-1000.slice/user@1000.service/user.slice/user-0.slice/session-1.scope\n", "", "", "", 1000,
         NULL},
	{"a user's folder called .. cannot be made, one called ... is nobody's", "0::/.../pod" VICTIM "/" CID "\n", "",
         "", "", NOBODY, NULL},
	{"a service with its own cgroups cannot pose as a pod",
         "0::/system.slice/jupyter.service/" BURSTABLE_SCOPE "\n", "", "", "", NOBODY, NULL},
	{"a service with its own cgroups cannot pose as a job",
         "0::/system.slice/jupyter.service/slurmstepd.scope/job_1/step_0\n", "", "", "", NOBODY, NULL},
	{"a scope of a virtual machine cannot pose as a pod",
         "0::/machine.slice/machine-qemu-1.scope/kubepods/pod" VICTIM "/" CID "\n", "", "", "", NOBODY, NULL},
	{"a folder given to a user cannot pose as a pod", "0::/alice/kubepods/pod" VICTIM "/" CID "\n", "", "", "",
         NOBODY, NULL},
	{"a folder given to a user cannot pose as a job", "0::/alice/slurm/uid_0/job_1\n", "", "", "", NOBODY, NULL},
	{"a name that holds kubepods is not kubepods",
         "0::/notkubepods.slice/notkubepods-pod" VICTIM_UNDERSCORED ".slice\n", "", "", "", NOBODY, NULL},
	{"a pod cannot pose as another pod below its own cgroup",
         "0::/kubepods/pod" UID_DASHED "/" CID "/kubepods/pod" VICTIM "/aaaaaaaaaaaaaaaa\n", UID_DASHED, CID, "",
         NOBODY, NULL},
	{"a pod cannot pose as another container by a folder below its own",
         "0::/kubepods/pod" UID_DASHED "/sandbox/cri-containerd-" CID ".scope\n", UID_DASHED, "", "", NOBODY, NULL},
	{"a job cannot pose as a pod below its own cgroup",
         "0::/system.slice/slurmstepd.scope/job_3/step_0/user/kubepods/pod" VICTIM "/" CID "\n", "", "", "3", NOBODY,
         NULL},
	{"a job cannot pose as another job below its own cgroup",
         "0::/system.slice/slurmstepd.scope/job_3/step_0/slurm/uid_0/job_4\n", "", "", "3", NOBODY, NULL},
	{"a folder with colons inside a session",
         "0::/user.slice/user-1000.slice/user@1000.service/kubepods-pod" VICTIM_UNDERSCORED ".slice:cri-containerd:" CID
         "\n",
         "", "", "", 1000, NULL},
	{"a folder with the text of a line inside a session",
         "0::/user.slice/user-1000.slice/user@1000.service/0::/kubepods/pod" VICTIM "/" CID "\n", "", "", "", 1000,
         NULL},

	/* text that is no path */
	{"a job number that is not a number", "0::/slurm/uid_0/job_1x/step_0\n", "", "", "", NOBODY, NULL},
	{"a pod UID with a quote", "0::/kubepods/pod0f1e\"2d/" CID "\n", "", "", "", NOBODY, NULL},
	{"a pod UID that is not UTF-8", "0::/kubepods/pod\xff\xfe/" CID "\n", "", "", "", NOBODY, NULL},
	{"nothing at all", "", "", "", "", NOBODY, NULL},
	{"no colons", "kubepods\n", "", "", "", NOBODY, NULL},
	{"no slash", "0::kubepods/pod" UID_DASHED "\n", "", "", "", NOBODY, NULL},
	{"ends inside a name", "0::/kubepods/pod", "", "", "", NOBODY, NULL},
};

static void
cgroup_paths_name_their_owner(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cgroup_rows); i++) {
		const struct cgroup_row *r = &cgroup_rows[i];
		struct cgroup_base base;
		bool by_sluid = text_is_sluid(r->slurm_job, strlen(r->slurm_job));
		struct cgroup_owner o;
		bool found;

		cgroup_base_parse(r->self ? r->self : "", r->self ? strlen(r->self) : 0, &base);
		found = cgroup_owner_parse(&base, r->text, strlen(r->text), &o);
		if (found != (r->pod_uid[0] || r->slurm_job[0]) || strcmp(o.pod_uid, r->pod_uid) != 0 ||
		    strcmp(o.container_id, r->container_id) != 0 ||
		    strcmp(o.slurm_job, by_sluid ? "" : r->slurm_job) != 0 ||
		    strcmp(o.slurm_sluid, by_sluid ? r->slurm_job : "") != 0 || o.session_uid != r->session_uid)
			fail_msg("%s: found pod '%s' container '%s' job '%s' SLUID '%s' session of %" PRId64, r->name,
			         o.pod_uid, o.container_id, o.slurm_job, o.slurm_sluid, o.session_uid);
	}
}

static void
a_job_in_a_pod_has_its_own_folder_and_so_has_the_pod(void **state)
{
	const char text[] = "0::/" BURSTABLE_SCOPE "/system.slice/slurmstepd.scope/" SLUID "/step_0/user/task_0\n";
	struct cgroup_owner o;
	char folder[512];

	(void)state;
	assert_true(cgroup_owner_parse(NULL, text, strlen(text), &o));
	assert_true(cgroup_own_folder(NULL, text, strlen(text), &o, "", folder, sizeof(folder)));
	assert_string_equal(folder, BURSTABLE_SCOPE "/system.slice/slurmstepd.scope/" SLUID);
	cgroup_forget_job(&o);
	assert_true(cgroup_own_folder(NULL, text, strlen(text), &o, "", folder, sizeof(folder)));
	assert_string_equal(folder, BURSTABLE_SCOPE);
	o = (struct cgroup_owner){.session_uid = -1};
	assert_false(cgroup_own_folder(NULL, text, strlen(text), &o, "", folder, sizeof(folder)));
}

struct base_row {
	const char *name, *text, *base;
};

static const struct base_row base_rows[] = {
	{"on the host, as a service", "0::/system.slice/tollgate-exporter.service\n", ""},
	{"in a pod on the host", "0::/" BURSTABLE_SCOPE "\n", ""},
	{"in a pod of a node that is a container", "0::/docker/" NODE_CID "/kubepods/pod" VICTIM "/" CID "\n",
         "docker/" NODE_CID},
	{"docker in a pod does not count: the pod is on a host",
         "0::/kubepods/pod" VICTIM "/" CID "/docker/" NODE_CID "\n", ""},
	{"started by hand in a rootless container", "0::/user.slice/user-1000.slice/libpod-" CID ".scope\n", ""},
	{"only one of several hierarchies tells", "9:cpu:/\n4:memory:/docker/" NODE_CID "\n", "docker/" NODE_CID},
	{"the root", "0::/\n", ""},
};

static void
the_node_is_the_container_that_the_exporter_is_in(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(base_rows); i++) {
		const struct base_row *r = &base_rows[i];
		struct cgroup_base base;

		cgroup_base_parse(r->text, strlen(r->text), &base);
		if (strcmp(base.path, r->base) != 0)
			fail_msg("%s: found '%s'", r->name, base.path);
	}
}

static void
names_too_long_are_not_taken(void **state)
{
	in_place(buf) struct buf text;
	struct cgroup_owner o;
	struct cgroup_base base;

	(void)state;
	buf_init(&text, 1 << 20);
	buf_str(&text, "0::/kubepods/pod");
	for (int i = 0; i < 5000; i++)
		buf_char(&text, 'a');
	buf_str(&text, "/" CID "\n0::/slurm/job_");
	for (int i = 0; i < 5000; i++)
		buf_char(&text, '1');
	assert_false(cgroup_owner_parse(NULL, text.data, text.len, &o));
	buf_clear(&text);
	buf_str(&text, "0::/");
	for (int i = 0; i < 5000; i++)
		buf_char(&text, 'a');
	buf_str(&text, "/docker/" NODE_CID);
	cgroup_base_parse(text.data, text.len, &base);
	assert_string_equal(base.path, "");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cgroup_paths_name_their_owner),
		cmocka_unit_test(a_job_in_a_pod_has_its_own_folder_and_so_has_the_pod),
		cmocka_unit_test(the_node_is_the_container_that_the_exporter_is_in),
		cmocka_unit_test(names_too_long_are_not_taken),
	};

	return cmocka_run_group_tests_name("cgroup", tests, NULL, NULL);
}
