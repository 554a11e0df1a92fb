"""exporter/source/dcgm/dcgm_abi.h against the real headers of DCGM, where this machine has them: every struct, field, constant and function.

No Debian archive has DCGM, so nothing is downloaded: the headers are those of NVIDIA's package, or of the folder that
TOLLGATE_DCGM_INCLUDE names. What they are too old for is named, not compared. What we declare without a partner is a finding.
"""

import os
import re
from pathlib import Path

import abi
import tree

ABI = "exporter/source/dcgm/dcgm_abi.h"
HEADERS = ("dcgm_agent.h", "dcgm_structs.h", "dcgm_fields.h")
PLACES = ("/usr/include", "/usr/include/dcgm", "/usr/local/include", "/usr/local/dcgm/include")

# ours: (theirs, {our field: their field})
STRUCTS = {
    "dcgm_embedded": ("dcgmStartEmbeddedV2Params_v2", {
        "version": "version", "mode": "opMode", "handle": "dcgmHandle", "log_file": "logFile", "severity": "severity",
        "deny_count": "denyListCount", "service_account": "serviceAccount", "deny": "denyList"}),
    "dcgm_connect": ("dcgmConnectV2Params_v2", {
        "version": "version", "persist": "persistAfterDisconnect", "timeout_ms": "timeoutMs", "is_unix": "addressIsUnixSocket"}),
    "dcgm_pair": ("dcgmGroupEntityPair_t", {"group": "entityGroupId", "id": "entityId"}),
    "dcgm_mig_entity": ("dcgmMigHierarchyInfo_v2", {
        "entity": "entity", "parent": "parent", "gpu_uuid": "info.gpuUuid", "gpu_index": "info.nvmlGpuIndex", "gi": "info.nvmlInstanceId",
        "ci": "info.nvmlComputeInstanceId", "profile": "info.nvmlMigProfileId", "slices": "info.nvmlProfileSlices"}),
    "dcgm_hierarchy": ("dcgmMigHierarchy_v2", {"version": "version", "count": "count", "entities": "entityList"}),
    "dcgm_field_value": ("dcgmFieldValue_v2", {
        "version": "version", "group": "entityGroupId", "id": "entityId", "field": "fieldId", "type": "fieldType", "status": "status",
        "unused": "unused", "stamp_us": "ts", "value": "value"}),
    "dcgm_metric_group": ("dcgmProfMetricGroupInfo_v2", {
        "major": "majorId", "minor": "minorId", "count": "numFieldIds", "fields": "fieldIds"}),
    "dcgm_metric_groups": ("dcgmProfGetMetricGroups_v3", {
        "version": "version", "unused": "unused", "gpu": "gpuId", "count": "numMetricGroups", "groups": "metricGroups"}),
    "dcgm_version_info": ("dcgmVersionInfo_v2", {"version": "version", "text": "rawBuildInfoString"}),
}

# ours: theirs. Fields have the names of DCGM 3, which DCGM 4 keeps beside its own.
CONSTANTS = {
    **{f"DCST_{name}": f"DCGM_ST_{name}" for name in (
        "OK", "BADPARAM", "GENERIC_ERROR", "NOT_SUPPORTED", "INIT_ERROR", "UNINITIALIZED", "VER_MISMATCH", "UNKNOWN_FIELD", "NO_DATA",
        "NOT_WATCHED", "GPU_IS_LOST", "CONNECTION_NOT_VALID", "MAX_LIMIT", "REQUIRES_ROOT", "MODULE_NOT_LOADED", "PROFILING_MULTI_PASS")},
    "DCGM_MODE_MANUAL": "DCGM_OPERATION_MODE_MANUAL",
    "DCGM_EMPTY_GROUP": "DCGM_GROUP_EMPTY",
    "DCGM_LIVE": "DCGM_FV_FLAG_LIVE_DATA",
    "DCGM_DEVICES_MAX": "DCGM_MAX_NUM_DEVICES",
    "DCGM_HIERARCHY_MAX": "DCGM_MAX_HIERARCHY_INFO",
    "DCGM_GROUP_ENTITIES": "DCGM_GROUP_MAX_ENTITIES_V1",
    "DCGM_OF_GPU": "DCGM_FE_GPU",
    "DCGM_OF_GI": "DCGM_FE_GPU_I",
    "DCGM_OF_CI": "DCGM_FE_GPU_CI",
    "DCGM_FIELD_UUID": "DCGM_FI_DEV_UUID",
    "DCGM_FIELD_ENGINE": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FIELD_SM": "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FIELD_OCCUPANCY": "DCGM_FI_PROF_SM_OCCUPANCY",
    "DCGM_FIELD_TENSOR": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FIELD_DRAM": "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FIELD_FP64": "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
    "DCGM_FIELD_FP32": "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
    "DCGM_FIELD_FP16": "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
    "DCGM_FIELD_PCIE_TX": "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FIELD_PCIE_RX": "DCGM_FI_PROF_PCIE_RX_BYTES",
    "DCGM_FIELD_NVLINK_TX": "DCGM_FI_PROF_NVLINK_TX_BYTES",
    "DCGM_FIELD_NVLINK_RX": "DCGM_FI_PROF_NVLINK_RX_BYTES",
    "DCGM_TYPE_DOUBLE": "DCGM_FT_DOUBLE",
    "DCGM_TYPE_INT64": "DCGM_FT_INT64",
    "DCGM_TYPE_TEXT": "DCGM_FT_STRING",
    "DCGM_BLANK_INT64": "DCGM_INT64_BLANK",
    "DCGM_BLANK_FP64": "DCGM_FP64_BLANK",
    "DCGM_BLANK_INT64 + DCGM_NOT_FOUND": "DCGM_INT64_NOT_FOUND",
    "DCGM_BLANK_INT64 + DCGM_NOT_SUPPORTED": "DCGM_INT64_NOT_SUPPORTED",
    "DCGM_BLANK_INT64 + DCGM_NO_PERMISSION": "DCGM_INT64_NOT_PERMISSIONED",
    "DCGM_LOG_NONE": "DcgmLoggingSeverityNone",
    "DCGM_EMBEDDED_V2": "dcgmStartEmbeddedV2Params_version2",
    "DCGM_CONNECT_V2": "dcgmConnectV2Params_version2",
    "DCGM_HIERARCHY_V2": "dcgmMigHierarchy_version2",
    "DCGM_FIELD_VALUE_V2": "dcgmFieldValue_version2",
    "DCGM_METRIC_GROUPS_V3": "dcgmProfGetMetricGroups_version3",
    "DCGM_VERSION_INFO_V2": "dcgmVersionInfo_version2",
}
MACROS = {"DCGM_VERSIONED", "DCGM_SIZE", "DCGM_AT", "DCGM_IS", "DCGM_FUNCTIONS", "TOLLGATE_DCGM_ABI_H"}
WIDE = {"uintptr_t", "long", "dcgmHandle_t", "dcgmGpuGrp_t", "dcgmFieldGrp_t"}
NARROW = {"int", "unsigned", "uint32_t", "dcgmGroupType_t", "dcgmReturn_t", "dcgm_field_entity_group_t", "dcgm_field_eid_t"}


def folder():
    """Where the headers are; None: not on this machine."""
    for place in (os.environ.get("TOLLGATE_DCGM_INCLUDE"), *PLACES):
        if place and all((Path(place) / name).is_file() for name in HEADERS):
            return Path(place)
    return None


def kind(type_text):
    words = set(type_text.replace("*", " * ").split())
    for letter, names in (("p", {"*"}), ("d", {"double"}), ("8", WIDE), ("4", NARROW)):
        if words & names:
            return letter
    return f"?{type_text.strip()}"


def functions(code, pattern):
    """{name: how each argument is passed: p pointer, d double, 4 or 8 bytes}"""
    found = {}
    for m in re.finditer(pattern, code):
        arguments = [] if m[2].strip() in ("void", "") else m[2].split(",")
        split = [re.match(r"(.*[\s*])(\w+)\s*(\[\w*\])?\s*$", a.strip(), re.S) for a in arguments]
        found[m[1]] = "".join(kind(s[1] + ("*" if s[3] else "")) for s in split)
    return found


def our_constants(code):
    names = set(re.findall(r"^#define (\w+)", code, re.M)) - MACROS
    for m in re.finditer(r"^enum \w+ \{(.*?)\};", code, re.S | re.M):
        names |= set(re.findall(r"(\w+) =", m[1]))
    return names


def check(root, include):
    """(findings, what the headers are too old for)"""
    code = abi.without_comments(tree.read(root, ABI))
    theirs = "\n".join(abi.without_comments((include / name).read_text(encoding="utf-8", errors="replace")) for name in HEADERS)
    structs = abi.our_structs(re.sub(r"union \{.*?\} (\w+);", r"int64_t \1;", code, flags=re.S))
    lines, missing, findings = [], [], []

    def compare(what, ours, other):
        lines.append(f'\tcheck("{what}", (unsigned long long)({ours}), (unsigned long long)({other}));')

    for name, fields in structs.items():
        other, partners = STRUCTS.get(name, (None, {}))
        findings += [f"{name}.{f} has no partner in tests/lint/abi_dcgm.py" for f in fields if f not in partners]
        if not other or not re.search(rf"\b{other}\b", theirs):
            missing += [other] if other else []
            continue
        compare(f"the size of {name}", f"sizeof(struct {name})", f"sizeof({other})")
        for field in (f for f in fields if f in partners):
            compare(f"the offset of {name}.{field}", f"offsetof(struct {name}, {field})", f"offsetof({other}, {partners[field]})")
            compare(f"the size of {name}.{field}", f"sizeof(((struct {name} *)0)->{field})", f"sizeof((({other} *)0)->{partners[field]})")
    known = {word for ours in CONSTANTS for word in ours.split(" + ")}
    findings += [f"{n} has no partner in tests/lint/abi_dcgm.py" for n in sorted(our_constants(code) - known)]
    for ours, other in CONSTANTS.items():
        if re.search(rf"\b{other}\b", theirs):
            compare(ours, ours, other)
        else:
            missing.append(other)
    findings += abi.run_comparison(root, include / "dcgm_agent.h", lines, ABI)
    declared = functions(theirs, r"\b(dcgm\w+|errorString)\s*\(([^()]*)\)\s*;")
    for name, ours in functions(code.replace("\\\n", " "), r"(?:REQUIRED|OPTIONAL)\(\s*[\w *]+?,\s*(\w+),\s*\(([^()]*)\)\)").items():
        if name not in declared:
            missing.append(name)
        elif ours != declared[name]:
            findings.append(f"{name} takes {ours or 'nothing'}, and {declared[name] or 'nothing'} in dcgm_agent.h (p: pointer, d: double, 4, 8: bytes)")
    return [f"{ABI}:1: {f}" for f in findings], missing
