"""exporter/source/nvml/nvml_abi.h against the real nvml.h: every struct, field, constant and function that we declare.

What the real header is too old for is named, not compared. What we declare without a partner in the tables below is a finding.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import tree

ABI = "exporter/source/nvml/nvml_abi.h"

# ours: (theirs, {our field: their field})
STRUCTS = {
    "nvml_process_info_v1": ("nvmlProcessInfo_v1_t", {"pid": "pid", "used_memory": "usedGpuMemory"}),
    "nvml_process_info": ("nvmlProcessInfo_v2_t", {
        "pid": "pid", "used_memory": "usedGpuMemory", "gi": "gpuInstanceId", "ci": "computeInstanceId"}),
    "nvml_process_detail": ("nvmlProcessDetail_v1_t", {
        "pid": "pid", "used_memory": "usedGpuMemory", "gi": "gpuInstanceId", "ci": "computeInstanceId",
        "used_protected_memory": "usedGpuCcProtectedMemory"}),
    "nvml_process_sample": ("nvmlProcessUtilizationSample_t", {
        "pid": "pid", "timestamp_us": "timeStamp", "sm": "smUtil", "memory": "memUtil", "encoder": "encUtil", "decoder": "decUtil"}),
    "nvml_process_utilization": ("nvmlProcessUtilizationInfo_v1_t", {
        "timestamp_us": "timeStamp", "pid": "pid", "sm": "smUtil", "memory": "memUtil", "encoder": "encUtil",
        "decoder": "decUtil", "jpeg": "jpgUtil", "ofa": "ofaUtil"}),
    "nvml_processes_utilization": ("nvmlProcessesUtilizationInfo_v1_t", {
        "version": "version", "count": "processSamplesCount", "last_seen_us": "lastSeenTimeStamp", "entries": "procUtilArray"}),
    "nvml_attributes": ("nvmlDeviceAttributes_t", {
        "multiprocessors": "multiprocessorCount", "copy_engines": "sharedCopyEngineCount", "decoders": "sharedDecoderCount",
        "encoders": "sharedEncoderCount", "jpegs": "sharedJpegCount", "ofas": "sharedOfaCount",
        "gi_slices": "gpuInstanceSliceCount", "ci_slices": "computeInstanceSliceCount", "memory_mib": "memorySizeMB"}),
    "nvml_memory_v1": ("nvmlMemory_t", {"total": "total", "free": "free", "used": "used"}),
    "nvml_memory": ("nvmlMemory_v2_t", {
        "version": "version", "total": "total", "reserved": "reserved", "free": "free", "used": "used"}),
    "nvml_utilization": ("nvmlUtilization_t", {"gpu": "gpu", "memory": "memory"}),
    "nvml_pci_info": ("nvmlPciInfo_t", {
        "bus_id_legacy": "busIdLegacy", "domain": "domain", "bus": "bus", "device": "device", "pci_device_id": "pciDeviceId",
        "pci_subsystem_id": "pciSubSystemId", "bus_id": "busId"}),
    "nvml_accounting": ("nvmlAccountingStats_t", {
        "gpu": "gpuUtilization", "memory": "memoryUtilization", "max_memory": "maxMemoryUsage", "time_ms": "time",
        "start_us": "startTime", "running": "isRunning", "reserved": "reserved"}),
    "nvml_accounting_v2": ("nvmlAccountingStats_v2_t", {
        "pid": "pid", "running": "isRunning", "gpu": "gpuUtilization", "memory": "memoryUtilization",
        "max_memory": "maxMemoryUsage", "sample_count": "sampleCount", "sum_gpu": "sumGpuUtil", "sum_memory": "sumFbUtil",
        "time_ms": "time", "start_us": "startTime"}),
    "nvml_placement": ("nvmlGpuInstancePlacement_t", {"start": "start", "size": "size"}),
    "nvml_gpu_instance_info": ("nvmlGpuInstanceInfo_t", {
        "device": "device", "id": "id", "profile": "profileId", "placement": "placement"}),
    "nvml_event": ("nvmlEventData_t", {
        "device": "device", "type": "eventType", "data": "eventData", "gi": "gpuInstanceId", "ci": "computeInstanceId"}),
    "nvml_field_value": ("nvmlFieldValue_t", {
        "id": "fieldId", "scope": "scopeId", "timestamp_us": "timestamp", "latency_us": "latencyUsec", "type": "valueType",
        "status": "nvmlReturn", "value": "value"}),
    "nvml_gpm_metric": ("nvmlGpmMetric_t", {
        "id": "metricId", "status": "nvmlReturn", "value": "value", "short_name": "metricInfo.shortName",
        "long_name": "metricInfo.longName", "unit": "metricInfo.unit"}),
    "nvml_gpm_metrics": ("nvmlGpmMetricsGet_t", {
        "version": "version", "count": "numMetrics", "from": "sample1", "to": "sample2", "metrics": "metrics"}),
    "nvml_gpm_support": ("nvmlGpmSupport_t", {"version": "version", "supported": "isSupportedDevice"}),
}
# Its last field is an array whose length differs between versions of the library.
UNSIZED = {"nvml_gpm_metrics"}

# ours: an expression of theirs, whose name must be in the header.
CONSTANTS = {
    "NVST_SUCCESS": "NVML_SUCCESS",
    "NVST_UNINITIALIZED": "NVML_ERROR_UNINITIALIZED",
    "NVST_INVALID_ARGUMENT": "NVML_ERROR_INVALID_ARGUMENT",
    "NVST_NOT_SUPPORTED": "NVML_ERROR_NOT_SUPPORTED",
    "NVST_NO_PERMISSION": "NVML_ERROR_NO_PERMISSION",
    "NVST_NOT_FOUND": "NVML_ERROR_NOT_FOUND",
    "NVST_INSUFFICIENT_SIZE": "NVML_ERROR_INSUFFICIENT_SIZE",
    "NVST_DRIVER_NOT_LOADED": "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVST_TIMEOUT": "NVML_ERROR_TIMEOUT",
    "NVST_LIBRARY_NOT_FOUND": "NVML_ERROR_LIBRARY_NOT_FOUND",
    "NVST_FUNCTION_NOT_FOUND": "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVST_GPU_IS_LOST": "NVML_ERROR_GPU_IS_LOST",
    "NVST_RESET_REQUIRED": "NVML_ERROR_RESET_REQUIRED",
    "NVST_LIB_RM_VERSION_MISMATCH": "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    "NVST_ARGUMENT_VERSION_MISMATCH": "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVST_UNKNOWN": "NVML_ERROR_UNKNOWN",
    "NVML_TEXT_SIZE": "NVML_DEVICE_NAME_V2_BUFFER_SIZE",
    "NVML_VERSION_SIZE": "NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE",
    "NVML_NOT_AVAILABLE": "NVML_VALUE_NOT_AVAILABLE",
    "NVML_SENSOR_GPU": "NVML_TEMPERATURE_GPU",
    "NVML_CLOCK_OF_GRAPHICS": "NVML_CLOCK_GRAPHICS",
    "NVML_CLOCK_OF_SM": "NVML_CLOCK_SM",
    "NVML_CLOCK_OF_MEMORY": "NVML_CLOCK_MEM",
    "NVML_CLOCK_OF_VIDEO": "NVML_CLOCK_VIDEO",
    "NVML_ERROR_CORRECTED": "NVML_MEMORY_ERROR_TYPE_CORRECTED",
    "NVML_ERROR_UNCORRECTED": "NVML_MEMORY_ERROR_TYPE_UNCORRECTED",
    "NVML_ECC_VOLATILE": "NVML_VOLATILE_ECC",
    "NVML_ECC_AGGREGATE": "NVML_AGGREGATE_ECC",
    "NVML_PCIE_TX": "NVML_PCIE_UTIL_TX_BYTES",
    "NVML_PCIE_RX": "NVML_PCIE_UTIL_RX_BYTES",
    "NVML_FIELD_MEMORY_TEMPERATURE": "NVML_FI_DEV_MEMORY_TEMP",
    "NVML_FIELD_NVLINK_DATA_TX": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
    "NVML_FIELD_NVLINK_DATA_RX": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
    "NVML_TYPE_DOUBLE": "NVML_VALUE_TYPE_DOUBLE",
    "NVML_TYPE_UINT": "NVML_VALUE_TYPE_UNSIGNED_INT",
    "NVML_TYPE_ULONG": "NVML_VALUE_TYPE_UNSIGNED_LONG",
    "NVML_TYPE_ULONGLONG": "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG",
    "NVML_TYPE_LONGLONG": "NVML_VALUE_TYPE_SIGNED_LONG_LONG",
    "NVML_TYPE_INT": "NVML_VALUE_TYPE_SIGNED_INT",
    "NVML_TYPE_USHORT": "NVML_VALUE_TYPE_UNSIGNED_SHORT",
    "NVML_EVENT_XID": "nvmlEventTypeXidCriticalError",
    "NVML_EVENT_MIG_CONFIG": "nvmlEventMigConfigChange",
    "NVML_GPM_ENGINE": "NVML_GPM_METRIC_GRAPHICS_UTIL",
    "NVML_GPM_SM": "NVML_GPM_METRIC_SM_UTIL",
    "NVML_GPM_OCCUPANCY": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "NVML_GPM_TENSOR": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "NVML_GPM_DRAM": "NVML_GPM_METRIC_DRAM_BW_UTIL",
    "NVML_GPM_PCIE_TX": "NVML_GPM_METRIC_PCIE_TX_PER_SEC",
    "NVML_GPM_PCIE_RX": "NVML_GPM_METRIC_PCIE_RX_PER_SEC",
    "NVML_MEMORY_V2": "nvmlMemory_v2",
    "NVML_PROCESSES_UTILIZATION_V1": "nvmlProcessesUtilizationInfo_v1",
    "NVML_GPM_VERSION": "NVML_GPM_METRICS_GET_VERSION",
}
# Told by the header's comments only.
WITHOUT_NAME = {"NVML_NO_INSTANCE", "NVML_ALL_LINKS"}
MACROS = {"NVML_VERSIONED", "NVML_SIZE", "NVML_AT", "NVML_FUNCTIONS", "TOLLGATE_NVML_ABI_H"}
# Their value types that are passed in a register of 32 or 64 bits; handles and pointers are pointers.
ENUMS = ("nvmlReturn_t", "nvmlClockType_t", "nvmlTemperatureSensors_t", "nvmlMemoryErrorType_t", "nvmlEccCounterType_t",
         "nvmlPcieUtilCounter_t", "nvmlEnableState_t")


# ---- reading the two headers ---------------------------------------------------------------------------------------------


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)


def our_structs(code):
    """{name: [field]} of the structs with a body."""
    found = {}
    for m in re.finditer(r"^struct (\w+) \{\n(.*?)^\};", code, re.S | re.M):
        fields = []
        for declaration in m[2].split(";"):
            names = re.findall(r"(\w+)(?:\[\w*\])?\s*(?:,|$)", declaration.strip())
            fields += names
        found[m[1]] = fields
    return found


def our_constants(code):
    names = set(re.findall(r"^#define (\w+)", code, re.M)) - MACROS
    names = {n for n in names if not n.endswith("_FUNCTIONS") and n != "NVML_PROCESS_LIST"}
    for m in re.finditer(r"^enum \w+ \{(.*?)\};", code, re.S | re.M):
        names |= set(re.findall(r"(\w+) =", m[1]))
    return names


def kind(type_text):
    """How an argument is passed: p pointer, 4 or 8 bytes."""
    words = type_text.replace("*", " * ").split()
    if "*" in words or re.search(r"nvml(Device|EventSet|GpmSample|GpuInstance)_t$", type_text.strip()):
        return "p"
    if "long" in words or "uint64_t" in words:
        return "8"
    if {"int", "unsigned", "uint32_t"} & set(words) or any(e in words for e in ENUMS):
        return "4"
    return f"?{type_text.strip()}"


def arguments(text):
    """The kinds of the arguments between two parentheses."""
    if text.strip() in ("void", ""):
        return ""
    # the last word is the argument's name, unless a handle's type stands alone
    kinds = []
    for a in text.split(","):
        m = re.match(r"(.*[\s*])(\w+)\s*(\[\w*\])?\s*$", a.strip(), re.S)
        kinds.append(kind(m[1] + ("*" if m[3] else "")) if m else kind(a))
    return "".join(kinds)


def our_functions(code):
    joined = code.replace("\\\n", " ")
    found = {}
    for m in re.finditer(r"(?:REQUIRED|OPTIONAL)\(\s*[\w *]+?,\s*(nvml\w+),\s*\(([^()]*)\)\)", joined):
        found[m[1]] = arguments(m[2])
    for m in re.finditer(r"NVML_PROCESS_LIST\(OPTIONAL, (nvml\w+)\)", joined):
        found.update({m[1] + suffix: "ppp" for suffix in ("", "_v2", "_v3")})
    return found


def required_functions(code):
    return set(re.findall(r"REQUIRED\(\s*[\w *]+?,\s*(nvml\w+),", code))


def their_functions(code):
    return {m[1]: arguments(m[2]) for m in re.finditer(r"DECLDIR\s+(?:char\s*\*\s*)?(nvml\w+)\s*\(([^()]*)\)\s*;", code)}


# ---- comparing -----------------------------------------------------------------------------------------------------------


def comparison(structs, header_code):
    """(C lines that print each difference, names that the header does not have)"""
    lines, missing = [], []

    def known(name):
        return re.search(rf"\b{name}\b", header_code) is not None

    def compare(what, ours, theirs):
        lines.append(f'\tcheck("{what}", (unsigned long long)({ours}), (unsigned long long)({theirs}));')

    for ours, fields in structs.items():
        theirs, names = STRUCTS.get(ours, (None, {}))
        if not theirs or not known(theirs):
            missing += [theirs] if theirs else []
            continue
        if ours not in UNSIZED:
            compare(f"the size of {ours}", f"sizeof(struct {ours})", f"sizeof({theirs})")
        for field in fields:
            if field not in names:
                continue
            compare(f"the offset of {ours}.{field}", f"offsetof(struct {ours}, {field})", f"offsetof({theirs}, {names[field]})")
            if (ours, field) != ("nvml_gpm_metrics", "metrics"):
                compare(f"the size of {ours}.{field}", f"sizeof(((struct {ours} *)0)->{field})",
                        f"sizeof((({theirs} *)0)->{names[field]})")
    for ours, theirs in CONSTANTS.items():
        if known(theirs):
            compare(ours, ours, theirs)
        else:
            missing.append(theirs)
    return lines, missing


def unmapped(structs, constants):
    """What the tables above do not know."""
    for name, fields in structs.items():
        if name not in STRUCTS:
            yield f"struct {name}"
        else:
            yield from (f"{name}.{f}" for f in fields if f not in STRUCTS[name][1])
    yield from sorted(constants - set(CONSTANTS) - WITHOUT_NAME)


def run_comparison(root, header, lines, ours=ABI):
    name = os.path.basename(header)
    text = "\n".join(["#include <stdio.h>", f'#include "{ours}"', f'#include "{header}"',
                      "static void check(const char *what, unsigned long long ours, unsigned long long theirs)", "{",
                      f'\tif (ours != theirs) printf("%s is %llu, and %llu in {name}\\n", what, ours, theirs);', "}",
                      "int main(void)", "{", *lines, "\treturn 0;", "}", ""])
    with tempfile.TemporaryDirectory() as work:
        program = os.path.join(work, "abi")
        built = subprocess.run(["gcc", "-std=gnu17", f"-I{root}", "-x", "c", "-", "-o", program], cwd=root, input=text,
                               capture_output=True, text=True, check=False)
        if built.returncode != 0:
            return [f"does not compile beside {name}: {built.stderr.strip()}"]
        return subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()


def check(root, header):
    """(findings, what the header is too old for)"""
    code = without_comments(tree.read(root, ABI))
    header_code = without_comments(Path(header).read_text(encoding="utf-8", errors="replace"))
    structs, functions, theirs = our_structs(code), our_functions(code), their_functions(header_code)
    findings = [f"{n} has no partner in tests/lint/abi.py" for n in unmapped(structs, our_constants(code))]
    lines, missing = comparison(structs, header_code)
    findings += run_comparison(root, header, lines)
    for name, ours in functions.items():
        if name not in theirs:
            missing.append(name)
        elif ours != theirs[name]:
            findings.append(f"{name} takes {ours or 'nothing'}, and {theirs[name] or 'nothing'} in nvml.h (p: pointer, 4, 8: bytes)")
    return [f"{ABI}:1: {f}" for f in findings], missing
