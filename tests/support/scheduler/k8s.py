"""A small schema of the Kubernetes objects in deploy/kubernetes: fields, types and which of them must be there.

What is not listed is an error, so a misspelled field is found without a cluster. The lists are of what we use, from the API reference of
apps/v1, policy/v1, rbac.authorization.k8s.io/v1 and core/v1, not of all there is."""

STR, INT, BOOL = str, int, bool


class Map:
    """Free names, values of one type."""

    def __init__(self, of):
        self.of = of


class Any:
    """The first type that fits."""

    def __init__(self, *types):
        self.types = types


class Choice:
    def __init__(self, *words):
        self.words = words


META = {"name!": STR, "namespace": STR, "labels": Map(STR), "annotations": Map(STR)}
SELECTOR = {"matchLabels!": Map(STR)}
PORT = Any(INT, STR)
SECCOMP = {"type!": Choice("RuntimeDefault")}
PROBE = {
    "httpGet!": {"path!": STR, "port!": PORT, "scheme": Choice("HTTP", "HTTPS")},
    "initialDelaySeconds": INT, "periodSeconds": INT, "failureThreshold": INT, "timeoutSeconds": INT,
}  # fmt: skip
CONTAINER = {
    "name!": STR, "image!": STR, "args": [STR],
    "env": [{"name!": STR, "value": STR, "valueFrom": {"fieldRef": {"fieldPath!": Choice("spec.nodeName", "metadata.name", "status.podIP", "status.hostIP")}}}],
    "ports": [{"name": STR, "containerPort!": INT, "protocol": Choice("TCP", "UDP")}],
    "securityContext": {
        "privileged": BOOL, "allowPrivilegeEscalation": BOOL, "readOnlyRootFilesystem": BOOL, "runAsUser": INT, "runAsNonRoot": BOOL,
        "capabilities": {"drop": [STR], "add": [STR]}, "seccompProfile": SECCOMP,
    },
    "resources": {"requests": {"cpu": STR, "memory": STR}, "limits": {"cpu": STR, "memory": STR}},
    "livenessProbe": PROBE, "readinessProbe": PROBE, "startupProbe": PROBE,
    "volumeMounts": [{"name!": STR, "mountPath!": STR, "subPath": STR, "readOnly": BOOL}],
}  # fmt: skip
VOLUME = {
    "name!": STR,
    "configMap": {"name!": STR, "optional": BOOL, "defaultMode": INT},
    "secret": {"secretName!": STR, "optional": BOOL, "defaultMode": INT},
    "hostPath": {"path!": STR, "type": Choice("Directory", "DirectoryOrCreate", "File", "Socket")},
    "emptyDir": Map(STR),
    "projected": {"defaultMode": INT, "sources!": [{
        "serviceAccountToken": {"path!": STR, "expirationSeconds": INT, "audience": STR},
        "configMap": {"name!": STR, "items": [{"key!": STR, "path!": STR}]}}]},
}  # fmt: skip
TEMPLATE = {
    "metadata!": {"labels!": Map(STR), "annotations": Map(STR)},
    "spec!": {
        "containers!": [CONTAINER], "initContainers": [CONTAINER], "volumes": [VOLUME], "serviceAccountName": STR, "automountServiceAccountToken": BOOL,
        "terminationGracePeriodSeconds": INT, "hostPID": BOOL, "hostNetwork": BOOL, "hostIPC": BOOL, "runtimeClassName": STR,
        "priorityClassName": STR, "nodeSelector": Map(STR),
        "tolerations": [{"key": STR, "operator": Choice("Exists", "Equal"), "value": STR, "effect": Choice("NoSchedule", "NoExecute")}],
        "securityContext": {"runAsNonRoot": BOOL, "runAsUser": INT, "runAsGroup": INT, "fsGroup": INT, "seccompProfile": SECCOMP},
        "topologySpreadConstraints": [{"maxSkew!": INT, "topologyKey!": STR, "whenUnsatisfiable!": Choice("ScheduleAnyway", "DoNotSchedule"),
                                       "labelSelector": SELECTOR}],
    },
}  # fmt: skip
ROLLING = {"type": Choice("RollingUpdate"), "rollingUpdate": {"maxUnavailable": Any(INT, STR), "maxSurge": Any(INT, STR)}}
KINDS = {
    ("v1", "Namespace"): {},
    ("v1", "ServiceAccount"): {"automountServiceAccountToken": BOOL},
    ("v1", "ConfigMap"): {"data!": Map(STR)},
    ("v1", "Service"): {"spec!": {"selector!": Map(STR), "type": Choice("ClusterIP"), "ports!": [{"name": STR, "port!": INT, "targetPort": PORT}]}},
    ("apps/v1", "Deployment"): {"spec!": {"replicas": INT, "selector!": SELECTOR, "strategy": ROLLING, "template!": TEMPLATE}},
    ("apps/v1", "DaemonSet"): {"spec!": {"selector!": SELECTOR, "updateStrategy": ROLLING, "template!": TEMPLATE}},
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): {"rules!": [{"apiGroups!": [STR], "resources!": [STR], "verbs!": [STR]}]},
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): {
        "roleRef!": {"apiGroup!": STR, "kind!": STR, "name!": STR}, "subjects!": [{"kind!": STR, "name!": STR, "namespace": STR}]},
    ("policy/v1", "PodDisruptionBudget"): {"spec!": {"minAvailable": Any(INT, STR), "maxUnavailable": Any(INT, STR), "selector!": SELECTOR}},
}


def _fields(value, schema, at):
    if not isinstance(value, dict):
        return [f"{at}: not an object"]
    known = {k.rstrip("!"): t for k, t in schema.items()}
    wrong = [f"{at}.{k}: missing" for k in (n[:-1] for n in schema if n.endswith("!")) if k not in value]
    for k, v in value.items():
        wrong += problems(v, known[k], f"{at}.{k}") if k in known else [f"{at}.{k}: there is no such field"]
    return wrong


def problems(value, schema, at):
    """What is wrong with a value, each with its place."""
    if isinstance(schema, dict):
        return _fields(value, schema, at)
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{at}: not a list"]
        return [w for i, v in enumerate(value) for w in problems(v, schema[0], f"{at}[{i}]")]
    if isinstance(schema, Map):
        if not isinstance(value, dict):
            return [f"{at}: not an object"]
        return [w for k, v in value.items() for w in problems(v, schema.of, f"{at}.{k}")]
    if isinstance(schema, Any):
        return [] if any(not problems(value, t, at) for t in schema.types) else [f"{at}: {value!r} is of none of its types"]
    if isinstance(schema, Choice):
        return [] if value in schema.words else [f"{at}: {value!r} is none of {schema.words}"]
    # True is an int in Python, and is not one here
    return [] if type(value) is schema else [f"{at}: {value!r} is not {schema.__name__}"]


def check(document):
    """What is wrong with one object."""
    if not isinstance(document, dict):
        return ["not an object"]
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind not in KINDS:
        return [f"{kind}: not a kind we know"]
    return problems(document, {"apiVersion!": STR, "kind!": STR, "metadata!": META, **KINDS[kind]}, kind[1])
