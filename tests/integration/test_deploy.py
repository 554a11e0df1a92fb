"""Units, Kubernetes manifests and the container recipe against the programs: options, ports, paths, and how little they may do.

No cluster, no container builder and no systemd runs here: manifests are held against a schema of our own (tests/support/scheduler/k8s.py), the
recipe's last stage is made in a folder and entered with chroot, and units are judged by systemd-analyze."""

import copy
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from tests.support.daemons import pg
from tests.support.daemons.stack import BUILD, ROOT, WAIT_S, Process, Stack, answers, free_port, program, request, wait_for
from tests.support.scheduler import k8s

try:
    import yaml
except ImportError:
    yaml = None

DEPLOY = os.path.join(ROOT, "deploy")
PROGRAMS = ("exporter", "aggregator")


def text_of(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, **more)


def presets(name):
    """Every option of a daemon at its default, from its own sample: key -> text; "" for none."""
    sample = run(program(f"tollgate-{name}"), "--print-config", check=True).stdout
    return {k: v.strip().strip('"') for k, v in re.findall(r"^#([a-z_]+):(.*)$", sample, re.M)}


# ---- systemd ---------------------------------------------------------------------------------------------------------


@unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
class Units(unittest.TestCase):
    def setUp(self):
        # verify wants to find the program
        self.dir = self.enterContext(tempfile.TemporaryDirectory(prefix="tollgate-units-"))
        self.units = {}
        for name in (*PROGRAMS, "migrate", "agent"):
            path = os.path.join(self.dir, f"tollgate-{name}.service")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text_of(DEPLOY, f"systemd/tollgate-{name}.service").replace("/usr/local/bin/", BUILD + "/"))
            self.units[name] = path

    def settings(self, name):
        return re.findall(r"^([A-Za-z]+)=(.*)$", text_of(self.units[name]), re.M)

    def test_systemd_has_nothing_to_say_about_them(self):
        for name, path in self.units.items():
            with self.subTest(unit=name):
                done = run("systemd-analyze", "verify", "--man=no", path)
                mine = [line for line in done.stderr.splitlines() if os.path.basename(path) in line]
                self.assertEqual((done.returncode, mine), (0, []), done.stderr)

    def test_they_are_exposed_to_little(self):
        for name, most in (("exporter", 20), ("aggregator", 15), ("migrate", 15), ("agent", 15)):
            with self.subTest(unit=name):
                done = run("systemd-analyze", "security", "--offline=true", f"--threshold={most}", self.units[name])
                self.assertEqual(done.returncode, 0, done.stdout[-400:] + done.stderr)

    def test_the_exporter_may_see_what_it_meters(self):
        got = self.settings("exporter")
        self.assertIn(("ProtectProc", "default"), got, "processes of other users must be seen")
        self.assertIn(("ProcSubset", "all"), got, "/proc/sys/kernel/random/boot_id is read")
        self.assertIn(("PrivateUsers", "no"), got, "uids are the host's")
        self.assertIn(("DevicePolicy", "closed"), got)
        self.assertEqual([v for k, v in got if k == "DeviceAllow"], ["char-nvidia* rw"])
        for setting in ("PrivateDevices", "PrivatePIDs", "PrivateNetwork"):
            self.assertNotIn(setting, dict(got))

    def test_the_aggregator_may_let_its_reports_give_way_to_decisions(self):
        last = [v for k, v in self.settings("aggregator") if k == "SystemCallFilter"][-1]
        self.assertEqual(last.split(), ["sched_setattr", "setpriority"], "the line before it takes @resources away, these among them")

    def test_they_run_without_root_and_keep_state_where_the_options_say(self):
        for name in PROGRAMS:
            got = dict(self.settings(name))
            self.assertEqual((got["DynamicUser"], got["CapabilityBoundingSet"], got["NoNewPrivileges"]), ("yes", "", "yes"))
            self.assertNotIn(got["User"], ("root", ""))
            self.assertIn(f"--config /etc/tollgate/{name}.yaml", got["ExecStart"])
        migrate = dict(self.settings("migrate"))
        self.assertIn("--config /etc/tollgate/aggregator.yaml --migrate", migrate["ExecStart"])
        self.assertEqual((migrate["Type"], migrate["CapabilityBoundingSet"], migrate["NoNewPrivileges"]), ("oneshot", "", "yes"))
        for order in ("After", "Wants"):
            self.assertIn("tollgate-migrate.service", dict(self.settings("aggregator"))[order])
        state = "/var/lib/" + dict(self.settings("exporter"))["StateDirectory"]
        self.assertTrue(presets("exporter")["spool_dir"].startswith(state + "/"))

    def test_the_agent_is_slurms_user_and_its_socket_is_where_the_options_say(self):
        got = dict(self.settings("agent"))
        self.assertEqual((got["User"], got["CapabilityBoundingSet"], got["NoNewPrivileges"]), ("slurm", "", "yes"))
        self.assertIn("--config /etc/tollgate/agent.yaml", got["ExecStart"])
        self.assertEqual(os.path.dirname(presets("agent")["socket"]), "/run/" + got["RuntimeDirectory"])

    def test_the_drop_in_for_root_only_gives_what_it_explains(self):
        text = text_of(DEPLOY, "systemd/exporter-root.conf")
        caps = re.search(r"^CapabilityBoundingSet=(.*)$", text, re.M).group(1).split()
        for cap in caps:
            self.assertRegex(text, rf"(?m)^#.*{cap}", "each capability has its reason beside it")
        os.mkdir(self.units["exporter"] + ".d")
        shutil.copy(os.path.join(DEPLOY, "systemd/exporter-root.conf"), self.units["exporter"] + ".d")
        done = run("systemd-analyze", "verify", "--man=no", self.units["exporter"])
        self.assertEqual((done.returncode, [line for line in done.stderr.splitlines() if "root.conf" in line]), (0, []))


# ---- Kubernetes ------------------------------------------------------------------------------------------------------


def read_objects():
    found = []
    for path in sorted(glob.glob(os.path.join(DEPLOY, "kubernetes/*.yaml"))):
        if not path.endswith("kustomization.yaml"):
            found += [(os.path.basename(path), d) for d in yaml.safe_load_all(text_of(path))]
    return found


@unittest.skipUnless(yaml, "python3-yaml is not installed: make deps")
class Kubernetes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.objects = read_objects()
        cls.by = {(d["kind"], d["metadata"]["name"]): d for _, d in cls.objects}
        cls.pods = {"exporter": cls.by["DaemonSet", "tollgate-exporter"], "aggregator": cls.by["Deployment", "tollgate-aggregator"]}
        cls.presets = {name: presets(name) for name in PROGRAMS}

    def pod(self, name):
        return self.pods[name]["spec"]["template"]["spec"]

    def container(self, name):
        containers = self.pod(name)["containers"]
        self.assertEqual(len(containers), 1)
        return containers[0]

    def config(self, name):
        return yaml.safe_load(self.by["ConfigMap", f"tollgate-{name}"]["data"][f"{name}.yaml"])

    def arguments(self, name):
        return dict(re.fullmatch(r"--([a-z-]+)=(.*)", a).groups() for a in self.container(name)["args"])

    def options(self, name):
        """What the program runs with: defaults, the ConfigMap over them, arguments over that."""
        given = {k.replace("-", "_"): v for k, v in self.arguments(name).items() if k != "config"}
        return {**self.presets[name], **self.config(name), **given}

    def test_every_object_is_as_the_api_has_it(self):
        for file, document in self.objects:
            with self.subTest(file=file, kind=document.get("kind")):
                self.assertEqual(k8s.check(document), [])
        self.assertEqual(len(self.by), len(self.objects), "no object is there twice")

    def test_the_check_finds_what_is_wrong(self):
        for path, value, says in (
            (("spec", "template", "spec", "hostPid"), True, "no such field"),
            (("spec", "template", "spec", "hostPID"), "true", "not bool"),
            (("spec", "template", "spec", "terminationGracePeriodSeconds"), True, "not int"),
            (("spec", "template", "spec", "containers", 0, "livenessProbe", "httpGet", "path"), None, "not str"),
            (("spec", "template", "spec", "containers", 0, "volumeMounts"), {}, "not a list"),
            (("spec", "template", "spec", "volumes", 4, "hostPath", "type"), "Folder", "none of"),
            (("spec", "selector"), {}, "matchLabels: missing"),
            (("kind",), "DeamonSet", "not a kind"),
        ):
            with self.subTest(path=path):
                document = copy.deepcopy(self.pods["exporter"])
                at = document
                for step in path[:-1]:
                    at = at[step]
                at[path[-1]] = value
                self.assertIn(says, "; ".join(k8s.check(document)))

    def test_the_kustomization_has_every_file_and_the_version(self):
        k = yaml.safe_load(text_of(DEPLOY, "kubernetes/kustomization.yaml"))
        self.assertEqual(set(k["resources"]), {f for f, _ in self.objects})
        version = run(program("tollgate"), "--version", check=True).stdout.split()[1]
        self.assertEqual({i["name"]: i["newTag"] for i in k["images"]}, {self.container(n)["image"]: version for n in PROGRAMS})

    def test_names_that_refer_to_others_find_them(self):
        for name in PROGRAMS:
            top, pod = self.pods[name], self.pod(name)
            labels = top["spec"]["template"]["metadata"]["labels"]
            self.assertLessEqual(top["spec"]["selector"]["matchLabels"].items(), labels.items())
            self.assertEqual(self.by["ServiceAccount", pod["serviceAccountName"]]["metadata"]["namespace"], top["metadata"]["namespace"])
            self.assertIn(("Namespace", top["metadata"]["namespace"]), self.by)
            self.assertEqual(self.by["ConfigMap", f"tollgate-{name}"]["metadata"]["namespace"], top["metadata"]["namespace"])
            ports = {p["name"] for p in self.container(name)["ports"]}
            for probe in ("livenessProbe", "readinessProbe"):
                self.assertIn(self.container(name)[probe]["httpGet"]["port"], ports)
        labels = self.pods["aggregator"]["spec"]["template"]["metadata"]["labels"]
        service = self.by["Service", "tollgate-aggregator"]
        self.assertLessEqual(service["spec"]["selector"].items(), labels.items())
        self.assertIn(service["spec"]["ports"][0]["targetPort"], {p["name"] for p in self.container("aggregator")["ports"]})
        budget = self.by["PodDisruptionBudget", "tollgate-aggregator"]["spec"]
        self.assertLessEqual(budget["selector"]["matchLabels"].items(), labels.items())
        self.assertLess(budget["minAvailable"], self.pods["aggregator"]["spec"]["replicas"], "a node can be drained")

    def test_every_option_is_one_of_the_program(self):
        for name in PROGRAMS:
            help_text = run(program(f"tollgate-{name}"), "--help", check=True).stdout
            for option in self.arguments(name):
                self.assertRegex(help_text, rf"--{option}\b")
            self.assertEqual(set(self.config(name)) - set(self.presets[name]), set())

    def test_the_programs_accept_what_they_are_given(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        for name in PROGRAMS:
            path = os.path.join(folder, f"{name}.yaml")
            # what the Secret has, as the README makes it
            web = os.path.join(folder, "web.yml")
            with open(web, "w", encoding="utf-8") as f:
                f.write('basic_auth_users: {prometheus: "$2y$10$EihJSaRU2TkHWbWrEn3P5OLdE1LvLrtBJrBGQZnPTuUFVSWYBMPYC"}\n')
            with open(path, "w", encoding="utf-8") as f:
                f.write(self.by["ConfigMap", f"tollgate-{name}"]["data"][f"{name}.yaml"].replace("/etc/tollgate/web/web.yml", web))
            given = [a.replace("$(NODE_NAME)", "gpu-1").replace(f"/etc/tollgate/{name}.yaml", path) for a in self.container(name)["args"]]
            done = run(program(f"tollgate-{name}"), *given, "-n")
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_ports_are_those_that_are_listened_on(self):
        for name in PROGRAMS:
            port = int(self.options(name)["listen"].rpartition(":")[2])
            self.assertEqual([p["containerPort"] for p in self.container(name)["ports"]], [port])
            self.assertEqual(self.pods[name]["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"], str(port))
            self.assertTrue(self.options(name)["listen"].startswith("0.0.0.0:"), "the pod's address is reached from outside")
        service = self.by["Service", "tollgate-aggregator"]
        where = f"tollgate-aggregator.{service['metadata']['namespace']}.svc:{service['spec']['ports'][0]['port']}"
        self.assertEqual(self.options("exporter")["aggregator_url"], f"https://{where}")
        self.assertTrue(self.options("aggregator")["tls_cert"], "https, so it needs a certificate")

    def test_every_volume_is_mounted_and_every_mount_is_used(self):
        for name in PROGRAMS:
            mounts, volumes = self.container(name)["volumeMounts"], self.pod(name)["volumes"]
            before = [m for c in self.pod(name).get("initContainers", []) for m in c["volumeMounts"]]
            self.assertEqual({m["name"] for m in mounts + before}, {v["name"] for v in volumes})
            paths = [str(v) for v in self.options(name).values()] + list(self.arguments(name).values())
            paths += [e["value"] for e in self.container(name).get("env", []) if "value" in e]
            for m in mounts:
                with self.subTest(program=name, mount=m["mountPath"]):
                    self.assertTrue(any(p == m["mountPath"] or p.startswith(m["mountPath"] + "/") for p in paths))

    def test_every_path_that_is_set_lies_in_a_mount(self):
        for name in PROGRAMS:
            mounts = [m["mountPath"] for m in self.container(name)["volumeMounts"]]
            given = [*self.config(name).values(), *self.arguments(name).values()]
            given += [e["value"] for e in self.container(name).get("env", []) if "value" in e]
            for path in (p for p in map(str, given) if p.startswith("/")):
                self.assertTrue(any(path == m or path.startswith(m + "/") for m in mounts), path)

    def test_the_schema_is_migrated_before_and_only_there_is_the_owner_known(self):
        (migrate,) = self.pod("aggregator")["initContainers"]
        self.assertEqual(migrate["args"], [*self.container("aggregator")["args"], "--migrate"])
        self.assertEqual(migrate["securityContext"], self.container("aggregator")["securityContext"])
        (path,) = (e["value"] for e in migrate["env"])
        self.assertTrue(path.startswith("/etc/tollgate/owner/"))
        self.assertNotIn("owner", {m["name"] for m in self.container("aggregator")["volumeMounts"]})
        logins = [self.config("aggregator")[k] for k in ("database", "rollup_database", "owner_database")]
        self.assertEqual(len(set(logins)), 3, logins)

    def test_nobody_is_privileged(self):
        for name in PROGRAMS:
            with self.subTest(program=name):
                pod, security = self.pod(name), self.container(name)["securityContext"]
                self.assertFalse(security.get("privileged", False))
                self.assertEqual(security["capabilities"], {"drop": ["ALL"]})
                self.assertEqual((security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]), (False, True))
                self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                self.assertFalse(pod.get("hostNetwork", False) or pod.get("hostIPC", False) or pod["automountServiceAccountToken"])
        self.assertTrue(self.pod("exporter")["hostPID"])
        self.assertNotIn("hostPID", self.pod("aggregator"))
        self.assertTrue(self.pod("aggregator")["securityContext"]["runAsNonRoot"])
        self.assertEqual([v for v in self.pod("aggregator")["volumes"] if "hostPath" in v], [], "the namespace is restricted")
        writable = [m["mountPath"] for m in self.container("exporter")["volumeMounts"] if not m.get("readOnly")]
        self.assertEqual(writable, ["/var/lib/tollgate"])

    def test_secrets_are_files_and_none_is_in_the_tree(self):
        self.assertEqual([k for k in self.by if k[0] == "Secret"], [])
        for name in PROGRAMS:
            for volume in self.pod(name)["volumes"]:
                if "secret" in volume:
                    self.assertEqual(volume["secret"]["defaultMode"], 0o400)
            self.assertNotRegex(json.dumps(self.container(name)) + json.dumps(self.config(name)), r"(?i)password|secretKeyRef")


@unittest.skipUnless(shutil.which("kubectl"), "kubectl is not installed")
@unittest.skipUnless(yaml, "python3-yaml is not installed: make deps")
class PodLabels(unittest.TestCase):
    """The component that lets exporters read labels, as kustomize puts it into the rest."""

    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        whole = os.path.join(folder, "kubernetes")
        shutil.copytree(os.path.join(DEPLOY, "kubernetes"), whole)
        path = os.path.join(whole, "kustomization.yaml")
        text = text_of(path)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace("#components:\n#  - pod-labels\n", "components:\n  - pod-labels\n"))
        done = run("kubectl", "kustomize", whole)
        assert done.returncode == 0, done.stderr
        cls.objects = list(yaml.safe_load_all(done.stdout))
        cls.by = {(d["kind"], d["metadata"]["name"]): d for d in cls.objects}
        cls.pod = cls.by["DaemonSet", "tollgate-exporter"]["spec"]["template"]["spec"]
        cls.env = {e["name"]: e.get("value") for e in cls.pod["containers"][0]["env"]}

    def test_every_object_is_as_the_api_has_it(self):
        self.assertIn(("ClusterRole", "tollgate-exporter-pods"), self.by)
        for d in self.objects:
            with self.subTest(kind=d["kind"], name=d["metadata"]["name"]):
                self.assertEqual(k8s.check(d), [])

    def test_the_token_is_for_the_kubelets_pods_alone(self):
        self.assertEqual(self.by["ClusterRole", "tollgate-exporter-pods"]["rules"], [{"apiGroups": [""], "resources": ["nodes/pods"], "verbs": ["get"]}])
        bound = self.by["ClusterRoleBinding", "tollgate-exporter-pods"]
        self.assertIn((bound["roleRef"]["kind"], bound["roleRef"]["name"]), self.by)
        [who] = bound["subjects"]
        self.assertEqual(self.by[who["kind"], who["name"]]["metadata"]["namespace"], who["namespace"])
        self.assertEqual(self.pod["serviceAccountName"], who["name"])
        self.assertFalse(self.pod["automountServiceAccountToken"])

    def test_the_exporter_finds_token_and_certificate_and_accepts_its_options(self):
        mounts = {m["name"]: m["mountPath"] for m in self.pod["containers"][0]["volumeMounts"]}
        [access] = [v for v in self.pod["volumes"] if "projected" in v]
        there = {f"{mounts[access['name']]}/{item['path']}" for s in access["projected"]["sources"]
                 for item in (s["configMap"]["items"] if "configMap" in s else [s["serviceAccountToken"]])}  # fmt: skip
        self.assertEqual(there, {self.env["TOLLGATE_KUBELET_TOKEN_FILE"], self.env["TOLLGATE_KUBELET_CA_FILE"]})
        given = {k: v.replace("$(NODE_IP)", "10.0.0.7") for k, v in self.env.items() if k.startswith("TOLLGATE_")}
        done = run(program("tollgate-exporter"), "--node=n1", "-n", env={**os.environ, **given})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        names = list(self.env)
        self.assertLess(names.index("NODE_IP"), names.index("TOLLGATE_KUBELET_URL"), "a variable is there before it is used")


# ---- as the manifests run them ---------------------------------------------------------------------------------------


class Least(unittest.TestCase):
    @unittest.skipUnless(os.geteuid() == 0, "dropping root's capabilities needs root")
    @unittest.skipUnless(shutil.which("setpriv"), "setpriv is not installed")
    def test_an_exporter_without_a_capability_meters_and_hears_the_kubelet(self):
        from tests.support.scheduler.kubelet import Kubelet, pod

        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="tollgate-least-"))
        for name, mode in (("kubelet", 0o750), ("proc", 0o755), ("pods", 0o755), ("state", 0o755)):
            os.mkdir(os.path.join(folder, name), mode)
        gpu = "GPU-00000000-0000-0000-0000-000000000001"
        with open(os.path.join(folder, "scenario.yaml"), "w", encoding="ascii") as f:
            json.dump({"name": "n1", "gpus": [{"model": "NVIDIA H100 80GB HBM3", "uuid": gpu, "memory_mib": 81559}], "processes": []}, f)
        kubelet = Kubelet(os.path.join(folder, "kubelet", "kubelet.sock"))
        kubelet.pods = [pod("acme", "train-0", main=[gpu])]
        self.enterContext(kubelet)
        os.chmod(kubelet.path, 0o755)
        port = free_port()
        argv = [
            "setpriv", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", program("tollgate-exporter"), "--node=n1",
            f"--listen=127.0.0.1:{port}", f"--nvml-library={BUILD}/sim/libnvidia-ml.so.1", f"--proc-root={folder}/proc", f"--pods-root={folder}/pods",
            f"--kubelet-socket={kubelet.path}", f"--spool-dir={folder}/state/spool", "--interval=1s",
        ]  # fmt: skip
        env = {"TOLLGATE_SIM_SCENARIO": f"{folder}/scenario.yaml", "TOLLGATE_SIM_PROC": f"{folder}/proc", "TOLLGATE_SIM_PODS": f"{folder}/pods"}
        exporter = Process(argv, os.path.join(folder, "log"), env)
        self.addCleanup(exporter.kill9)
        url = f"http://127.0.0.1:{port}"
        wait_for("readiness", lambda: answers(url + "/readyz"), exporter)
        given = 'tollgate_exporter_allocations{source="kubelet"} 1\n'
        wait_for("the kubelet's answer", lambda: given in request("GET", url + "/metrics").text(), exporter)
        wait_for("a batch on disk", lambda: glob.glob(f"{folder}/state/spool/*.seg"), exporter)
        self.assertEqual(request("GET", url + "/healthz").status, 200)
        self.assertRegex(text_of(f"/proc/{exporter.child.pid}/status"), r"(?m)^CapEff:\s+0+$")
        self.assertEqual(exporter.stop(), 0)

    def test_an_aggregator_finds_its_database_by_a_connection_service(self):
        stack = self.enterContext(Stack())
        for path in ("/healthz", "/readyz"):
            self.assertEqual(request("GET", stack.url + path).status, 200)
        service = os.path.join(stack.dir, "service.conf")
        with open(service, "w", encoding="utf-8") as f:
            f.write("[tollgate]\n" + "\n".join(re.findall(r"\w+=\S+", stack.pg.conninfo("tollgate", pg.DAEMON).replace("'", ""))) + "\n")
        done = run(program("tollgate-aggregator"), "--database", "service=tollgate", "--demo", "--issue-admin-token", "-",
                   env={**os.environ, "PGSERVICEFILE": service}, timeout=WAIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        token = done.stdout.strip()
        self.assertNotIn(token, done.stderr)
        self.assertEqual(request("GET", stack.url + "/v1/whoami", token=token).json()["role"], "admin")


# ---- the container ---------------------------------------------------------------------------------------------------


class Container(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lines = [line.split(None, 1) for line in text_of(DEPLOY, "container/Containerfile").splitlines() if line and line[0] != "#"]
        cls.stages = {}
        for word, rest in cls.lines:
            if word == "FROM":
                base, _, stage = rest.partition(" AS ")
                cls.stages[stage] = [("FROM", base)]
            else:
                cls.stages[stage].append((word, rest))

    def rootfs(self, name):
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="tollgate-rootfs-"))
        os.chmod(folder, 0o755)
        root = os.path.join(folder, name)
        done = run("sh", os.path.join(DEPLOY, "container/rootfs.sh"), program(f"tollgate-{name}"), root)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return root

    def test_what_is_copied_is_there(self):
        for word, rest in self.stages["build"]:
            if word == "COPY":
                for source in rest.split()[:-1]:
                    self.assertTrue(os.path.exists(os.path.join(ROOT, source)), source)
        # all that the Makefile needs to install, and nothing that a change of tests would make anew
        self.assertIn(("RUN", "make DESTDIR=/installed PREFIX=/usr install"), self.stages["build"])

    def test_the_packages_to_build_with_can_be_had(self):
        if not glob.glob("/var/lib/apt/lists/*_Packages*"):
            self.skipTest("apt knows no packages here: apt-get update")
        lists = re.search(r"^build='(.*?)'", text_of(ROOT, "tests/support/deps.sh"), re.M | re.S).group(1)
        names = [n.split("|")[0] for n in lists.split()] + ["ca-certificates"]
        found = set(re.findall(r"^Package: (\S+)$", run("apt-cache", "show", "--no-all-versions", *names).stdout, re.M))
        # one that is provided by another has no page of its own
        missing = [n for n in names if n not in found and "Reverse Provides" not in run("apt-cache", "showpkg", n).stdout]
        self.assertEqual(missing, [])
        self.assertIn(("RUN", "sh tests/support/deps.sh container"), self.stages["build"])

    def test_each_image_is_a_program_of_its_own_without_root_and_without_a_shell(self):
        for name in PROGRAMS:
            with self.subTest(image=name):
                stage = self.stages[name]
                self.assertEqual(stage[0], ("FROM", "scratch"))
                self.assertIn(("COPY", f"--from=build /rootfs/{name} /"), stage)
                self.assertIn(("ENTRYPOINT", f'["/usr/bin/tollgate-{name}"]'), stage)
                self.assertIn(("RUN", f"sh deploy/container/rootfs.sh /installed/usr/bin/tollgate-{name} /rootfs/{name}"), self.stages["build"])
                port = presets(name)["listen"].rpartition(":")[2]
                self.assertIn(("EXPOSE", port), stage)
                user = dict(stage)["USER"]
                self.assertRegex(user, r"^[1-9]\d*:[1-9]\d*$")
                root = self.rootfs(name)
                self.assertEqual(os.listdir(os.path.join(root, "usr/bin")), [f"tollgate-{name}"])
                self.assertRegex(text_of(root, "etc/passwd"), rf"(?m)^tollgate:x:{user}:")
                self.assertTrue(text_of(root, "etc/ssl/certs/ca-certificates.crt").startswith("-----BEGIN CERTIFICATE-----"))

    def test_each_program_runs_with_nothing_but_what_is_in_its_image(self):
        for name in PROGRAMS:
            with self.subTest(image=name):
                root = self.rootfs(name)
                enter = ["chroot", "--userspec=65532:65532", root] if os.geteuid() == 0 else ["unshare", "-r", "chroot", root]
                done = run(*enter, f"/usr/bin/tollgate-{name}", "--version")
                if os.geteuid() != 0 and done.returncode != 0 and "unshare" in done.stderr:
                    self.skipTest("neither root nor a user namespace is to be had, which chroot needs")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(run(*enter, f"/usr/bin/tollgate-{name}", "-n").returncode, 0)
                # a driver that is not there is a sentence, not a library that is missing
                if name == "exporter":
                    done = run(*enter, "/usr/bin/tollgate-exporter", "--spool-dir", "/tmp/spool", "--listen", "127.0.0.1:0", timeout=WAIT_S)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn("libnvidia-ml.so.1", done.stderr)


if __name__ == "__main__":
    unittest.main()
