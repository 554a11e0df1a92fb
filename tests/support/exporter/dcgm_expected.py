"""What dcgm-exporter would write for a node whose state is known, and where Tollgate deliberately writes something else.

Written from the notes about dcgm-exporter alone: it knows nothing of the exporter's code, and computes values from the truth of a scenario.

    lines = original(node)          # its samples, in its order
    lines = deliberate(lines)       # the same with DIFFERENCES applied: what the exporter must write
    rendered(line, node, "Hostname")

A node is a dict: hostname, driver, and gpus, each with index, uuid, pci, model, `board` (the values by DCGM's names without prefix, as DCGM
gives them), `xid`, and who has it: `pods` and `jobs`, or `instances` (gi, profile, values, pods) of a partitioned one. A pod has namespace, name,
container, uid, and on a shared GPU what its processes use: gpu_util (None: the driver does not tell) and fb_used."""

import dataclasses

DEV, PROF = "DCGM_FI_DEV_", "DCGM_FI_PROF_"
# The default list with DCGM's numbers, by which it is ordered on the page, and whether a value is a fraction.
FIELDS = [
    (100, DEV + "SM_CLOCK", False), (101, DEV + "MEM_CLOCK", False), (140, DEV + "MEMORY_TEMP", False), (150, DEV + "GPU_TEMP", False),
    (155, DEV + "POWER_USAGE", True), (156, DEV + "TOTAL_ENERGY_CONSUMPTION", False), (202, DEV + "PCIE_REPLAY_COUNTER", False),
    (203, DEV + "GPU_UTIL", False), (204, DEV + "MEM_COPY_UTIL", False), (206, DEV + "ENC_UTIL", False), (207, DEV + "DEC_UTIL", False),
    (230, DEV + "XID_ERRORS", False), (251, DEV + "FB_FREE", False), (252, DEV + "FB_USED", False), (253, DEV + "FB_RESERVED", False),
    (393, DEV + "UNCORRECTABLE_REMAPPED_ROWS", False), (394, DEV + "CORRECTABLE_REMAPPED_ROWS", False), (395, DEV + "ROW_REMAP_FAILURE", False),
    (449, DEV + "NVLINK_BANDWIDTH_TOTAL", False), (526, DEV + "VGPU_LICENSE_STATUS", False),
    (1001, PROF + "GR_ENGINE_ACTIVE", True), (1004, PROF + "PIPE_TENSOR_ACTIVE", True), (1005, PROF + "DRAM_ACTIVE", True),
    (1009, PROF + "PCIE_TX_BYTES", False), (1010, PROF + "PCIE_RX_BYTES", False),
]  # fmt: skip
COUNTERS = {DEV + n for n in ("TOTAL_ENERGY_CONSUMPTION", "PCIE_REPLAY_COUNTER", "NVLINK_BANDWIDTH_TOTAL", "UNCORRECTABLE_REMAPPED_ROWS",
                              "CORRECTABLE_REMAPPED_ROWS")}  # fmt: skip
# What DCGM does not have for a GPU that is partitioned, and what an instance has of its own.
NOT_ON_MIG = {DEV + n for n in ("GPU_UTIL", "MEM_COPY_UTIL", "ENC_UTIL", "DEC_UTIL")}
OF_INSTANCE = {DEV + "FB_FREE", DEV + "FB_USED", PROF + "GR_ENGINE_ACTIVE", PROF + "PIPE_TENSOR_ACTIVE", PROF + "DRAM_ACTIVE"}
PER_POD = {DEV + "GPU_UTIL": "gpu_util", DEV + "FB_USED": "fb_used"}
OWN_WORDS = object()  # stands for any text


@dataclasses.dataclass
class Line:
    name: str
    gpu: dict
    instance: dict | None
    value: object
    attributes: dict  # sorted on the page, after the other labels

    def labels(self, node, hostname):
        g = self.gpu
        yield from (("gpu", str(g["index"])), ("UUID", g["uuid"]), ("pci_bus_id", g["pci"]), ("device", f"nvidia{g['index']}"), ("modelName", g["model"]))
        if self.instance:
            yield from (("GPU_I_PROFILE", self.instance["profile"]), ("GPU_I_ID", str(self.instance["gi"])))
        yield hostname, node["hostname"]
        yield "DCGM_FI_DRIVER_VERSION", node["driver"]
        yield from sorted(self.attributes.items())


def of_pod(pod):
    return {"container": pod["container"], "namespace": pod["namespace"], "pod": pod["name"]}


def value_of(name, gpu, instance):
    if instance is None:
        return gpu["board"].get(name)
    if name in NOT_ON_MIG:
        return None
    return instance["values"].get(name) if name in OF_INSTANCE else gpu["board"].get(name)


def shared_by_pods(line, pods):
    """With --kubernetes-virtual-gpus: the board's value again for each pod, but for two fields, which have a line without a pod and a
    line of its own for each, 0 where nothing is known."""
    if line.name in PER_POD:
        yield line
        for i, p in enumerate(pods):
            yield dataclasses.replace(line, value=p[PER_POD[line.name]] or 0,
                                      attributes={**line.attributes, **of_pod(p), "pod_uid": p["uid"], "vgpu": str(i)})  # fmt: skip
        return
    for i, p in enumerate(pods):
        yield dataclasses.replace(line, attributes={**line.attributes, **of_pod(p), "vgpu": str(i)})


def original(node):
    """The original's samples in its order: by field, then by device, a GPU or each instance of a partitioned one."""
    for _, name, _ in FIELDS:
        for gpu in node["gpus"]:
            for instance in gpu.get("instances") or [None]:
                value, owner = value_of(name, gpu, instance), instance or gpu
                if value is None:
                    continue
                attributes = {}
                if name == DEV + "XID_ERRORS":
                    attributes = {"err_code": str(value), "err_msg": OWN_WORDS}
                line, pods = Line(name, gpu, instance, value, attributes), owner.get("pods", [])
                if len(pods) > 1:
                    yield from shared_by_pods(line, pods)
                elif pods:
                    yield dataclasses.replace(line, attributes={**attributes, **of_pod(pods[0])})
                elif owner.get("jobs"):
                    yield from (dataclasses.replace(line, attributes={**attributes, "hpc_job": j}) for j in owner["jobs"])
                else:
                    yield line


# ---- where Tollgate differs ----


def is_shared(line):
    return len((line.instance or line.gpu).get("pods", [])) > 1


def board_of_partitioned_once(lines):
    seen = set()
    for line in lines:
        if line.instance is None or line.name in OF_INSTANCE:
            yield line
        elif (line.name, line.gpu["uuid"]) not in seen:
            seen.add((line.name, line.gpu["uuid"]))
            keep = {k: v for k, v in line.attributes.items() if k.startswith("err_")}
            yield dataclasses.replace(line, instance=None, attributes=keep)


def shared_board_once(lines):
    seen = set()
    for line in lines:
        if not is_shared(line) or line.name in PER_POD:
            yield line
        elif (line.name, line.gpu["uuid"]) not in seen:
            seen.add((line.name, line.gpu["uuid"]))
            keep = {k: v for k, v in line.attributes.items() if k.startswith("err_")}
            yield dataclasses.replace(line, attributes=keep)


def is_told(line):
    return any(p[PER_POD[line.name]] is not None for p in line.gpu["pods"])


def shared_sum_only_in_pods(lines):
    return (line for line in lines if not (is_shared(line) and line.name in PER_POD and "pod" not in line.attributes and is_told(line)))


def unmeasured_is_absent(lines):
    for line in lines:
        if is_shared(line) and line.name in PER_POD and "pod" in line.attributes:
            pod = next(p for p in line.gpu["pods"] if p["name"] == line.attributes["pod"])
            if pod[PER_POD[line.name]] is None:
                continue
        yield line


def no_replica_numbers(lines):
    for line in lines:
        yield dataclasses.replace(line, attributes={k: v for k, v in line.attributes.items() if k not in ("vgpu", "pod_uid")})


def own_words(lines):
    """The labels are the same; what err_msg says is not compared."""
    return lines


# Each with the words by which exporter/README.md explains it.
DIFFERENCES = {
    "MIG: power, energy, temperature, clocks, PCIe": board_of_partitioned_once,
    "GPU that several pods share": shared_board_once,
    "its GPU_UTIL and FB_USED": shared_sum_only_in_pods,
    "a pod's GPU_UTIL that is not measured": unmeasured_is_absent,
    "vgpu; pod_uid where nobody asked for it": no_replica_numbers,
    "XID_ERRORS": own_words,
}


def deliberate(lines, leave_out=()):
    lines = list(lines)
    for name, change in DIFFERENCES.items():
        if name not in leave_out:
            lines = list(change(lines))
    return lines


def rendered(line, node, hostname):
    """As on the page; texts that are not compared are written as *."""
    fraction = next(f for _, n, f in FIELDS if n == line.name)
    labels = ",".join(f'{k}="{"*" if v is OWN_WORDS else v}"' for k, v in line.labels(node, hostname))
    return f"{line.name}{{{labels}}} {f'{line.value:f}' if fraction else line.value}"
