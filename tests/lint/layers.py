"""Who includes whom, drawn from the tree and held against the rules of the house.

common <- nothing; exporter <- common; core <- common; store <- common, core; api <- common, core, store;
cli <- common, core. Exporter and aggregator never see each other, tests see everything, nobody sees tests."""

from collections import Counter
from fnmatch import fnmatch

import tree

LAYERS = {  # folder: the folders it may include
    "common": {"common"},
    "exporter": {"common", "exporter"},
    "aggregator/core": {"common", "aggregator/core"},
    "aggregator/store": {"common", "aggregator/core", "aggregator/store"},
    "aggregator/api": {"common", "aggregator/core", "aggregator/store", "aggregator/api"},
    "aggregator/cli": {"common", "aggregator/core", "aggregator/cli"},
}
TESTS = "tests"

# One library, one place: header -> the files that may include it, a pattern or several. Tests may include any.
LIBRARIES = {
    "libpq-fe.h": "aggregator/store/*.[ch]",
    "postgresql/*": "aggregator/store/*.[ch]",
    "microhttpd.h": "common/httpd.c",
    "curl/*": "common/httpc.c",
    "gnutls/*": "common/digest.c common/httpd_tls.c",
    "zlib.h": "common/gz.c",
    "crypt.h": "common/basic_auth.c",
    "yaml.h": "common/yaml.c",
    "jansson.h": "common/json.h",
    "nghttp2/*": "exporter/podres_call.c",
    "podres.pb-c.h": "exporter/podres_decode.c",
    "protobuf-c/*": "exporter/podres_decode.c",
    "dlfcn.h": "exporter/nvml.c exporter/dcgm_engine.c",
    "exporter/nvml_abi.h": "exporter/nvml*.[ch]",
    "exporter/dcgm_abi.h": "exporter/dcgm*.[ch]",
    "cmocka.h": "nowhere but in tests",
}
# core is pure: no clock, no database, no log, no I/O.
IMPURE = ("common/log.h", "common/http*.h", "time.h", "unistd.h", "fcntl.h", "pthread.h", "sys/*", "netinet/*", "netdb.h")
# Library code returns errors; mains, threads and api log.
NO_LOG = {"common", "aggregator/core", "aggregator/store"}


def layer_of(path):
    for layer in (*LAYERS, TESTS):
        if path.startswith(layer + "/"):
            return layer
    return None


def judge(path, layer, name, is_system, known):
    """What is wrong with this one include, or None."""
    for pattern, place in LIBRARIES.items():
        if fnmatch(name, pattern) and layer != TESTS and not any(fnmatch(path, p) for p in place.split()):
            return f"{name} belongs to {place}"
    if not is_system and name not in known:
        return f'"{name}" is not a file named from the root of the tree'
    if not is_system and layer != TESTS:
        target = layer_of(name)
        if target not in LAYERS[layer]:
            return f"wrong arrow: {layer} may not include {target or 'the top level'} ({name})"
        if name == "common/log.h" and layer in NO_LOG and not path.startswith("common/log."):
            return f"{layer} returns errors and never logs (common/log.h)"
    if layer == "aggregator/core" and any(fnmatch(name, p) for p in IMPURE):
        return f"core is pure: no clock, database, log or I/O ({name})"
    return None


def check(root):
    """(findings, table lines)"""
    findings, arrows, places = [], Counter(), {}
    sources = tree.files(root, (".c", ".h"))
    known = set(sources)
    for path in sources:
        layer = layer_of(path)
        if layer is None:
            findings.append(f"{path}:1: is in no layer; code lives in {', '.join((*LAYERS, TESTS))}")
            continue
        for line, name, is_system in tree.includes(tree.read(root, path)):
            wrong = judge(path, layer, name, is_system, known)
            if wrong:
                findings.append(f"{path}:{line}: {wrong}")
            if not is_system:
                arrows[layer, layer_of(name)] += 1
            for pattern in LIBRARIES if layer != TESTS else ():
                if fnmatch(name, pattern):
                    places.setdefault(pattern, set()).add(path)
    return findings, table(arrows) + [f"  {p} in {', '.join(sorted(places[p]))}" for p in sorted(places)]


def table(arrows):
    """Rows include columns; a dot is an arrow that the rules allow and nobody uses."""
    columns = [*LAYERS, TESTS]
    short = [c.rpartition("/")[2] for c in columns]
    lines = ["  " + " " * 12 + "".join(f"{s:>10}" for s in short)]
    for row, name in zip(columns, short):
        cells = []
        for column in columns:
            allowed = row == TESTS or column in LAYERS[row]
            n = arrows[row, column]
            cells.append(f"{n}{'' if allowed else '!'}" if n else "." if allowed else "")
        lines.append(f"  {name:<9} ->" + "".join(f"{c:>10}" for c in cells))
    return lines
