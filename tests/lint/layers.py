"""Who includes whom, drawn from the tree room by room and held against the rules of the house.

A room is a folder with code in it. ROOMS names each with the rooms it may include; it may include itself, and what stands above it in the list is what
it can know. Exporter and aggregator never see each other, tests see everything, nobody sees tests."""

from collections import Counter
from fnmatch import fnmatch

import tree

BASE = {"common/base", "common/wire", "common/conf", "common/promtext", "common/http"}
CORE = {"aggregator/core/metering", "aggregator/core/quota/engine", "aggregator/core/quota/book", "aggregator/core/quota/loop", "aggregator/core/rating",
        "aggregator/core/policy", "aggregator/core/simulate", "aggregator/core/reports"}  # fmt: skip
# The store's rooms, each of which may include those before it.
STORE = ("aggregator/store", "aggregator/store/db", "aggregator/store/access", "aggregator/store/policy", "aggregator/store/ingest", "aggregator/store/rollup",
         "aggregator/store/quota", "aggregator/store/billing", "aggregator/store/usage", "aggregator/store/verify", "aggregator/store/close")  # fmt: skip


def core(*rooms):
    return BASE | {f"aggregator/core/{r}" for r in rooms}


ROOMS = {
    "common/base": set(),
    "common/wire": {"common/base"},
    "common/conf": {"common/base"},
    "common/promtext": {"common/base"},
    "common/http": {"common/base", "common/conf"},
    "exporter/source": BASE,
    "exporter/source/nvml": BASE | {"exporter/source"},
    "exporter/source/dcgm": BASE | {"exporter/source"},
    "exporter/identity/kubelet": BASE | {"exporter/source"},
    "exporter/identity": BASE | {"exporter/source", "exporter/identity/kubelet"},
    "exporter/meter": BASE | {"exporter/source", "exporter/identity"},
    "exporter/delivery": BASE | {"exporter/source", "exporter/meter"},
    "exporter/metrics": BASE | {"exporter/source", "exporter/source/dcgm", "exporter/identity", "exporter/meter", "exporter/delivery"},
    "exporter/record": BASE | {"exporter/source", "exporter/identity"},
    "exporter": None,  # main, options, the sampler and its web side see the whole exporter
    "aggregator/core/metering": core(),
    "aggregator/core/quota/engine": core(),
    "aggregator/core/quota/book": core("quota/engine"),
    "aggregator/core/quota/loop": core("quota/engine", "quota/book"),
    "aggregator/core/rating": core("metering"),
    "aggregator/core/policy": core("metering", "quota/engine", "rating"),
    "aggregator/core/simulate": core("quota/engine", "quota/book", "rating", "policy"),
    "aggregator/core/reports": core("rating"),
    **{room: BASE | CORE | set(STORE[:i]) for i, room in enumerate(STORE)},
    "aggregator/service": BASE | CORE | set(STORE),
    "aggregator/api": BASE | CORE | set(STORE) | {"aggregator/service"},
    "aggregator": None,  # main and options see the whole aggregator
    "hooks/agent": BASE,
    "aggregator/cli": BASE | CORE,
    "aggregator/cli/commands": BASE | CORE | {"aggregator/cli"},
    "aggregator/cli/doctor": BASE | CORE | {"aggregator/cli"},
}
TESTS = "tests"
# Headers of a daemon's top folder that its rooms may include: the struct of its options, and what one tick of the exporter saw.
SHARED_HEADERS = {
    "aggregator/options.h": ("aggregator/service/", "aggregator/api/"),
    "exporter/options.h": ("exporter/",),
    "exporter/tick.h": ("exporter/",),
}

# One library, one place: header -> the files that may include it, a pattern or several. Tests may include any.
LIBRARIES = {
    "libpq-fe.h": "aggregator/store/*.[ch]",
    "postgresql/*": "aggregator/store/*.[ch]",
    "microhttpd.h": "common/http/httpd.c",
    "curl/*": "common/http/httpc.c",
    "gnutls/*": "common/base/digest.c common/http/httpd_tls.c",
    "zlib.h": "common/base/gz.c",
    "crypt.h": "common/http/basic_auth.c",
    "yaml.h": "common/conf/yaml.c",
    "jansson.h": "common/conf/json.h",
    "nghttp2/*": "exporter/identity/kubelet/podres_call.c",
    "podres.pb-c.h": "exporter/identity/kubelet/podres_decode.c",
    "protobuf-c/*": "exporter/identity/kubelet/podres_decode.c",
    "dlfcn.h": "exporter/source/nvml/nvml.c exporter/source/dcgm/dcgm_engine.c",
    "exporter/source/nvml/nvml_abi.h": "exporter/source/nvml/*.[ch]",
    "exporter/source/dcgm/dcgm_abi.h": "exporter/source/dcgm/*.[ch]",
    "cmocka.h": "nowhere but in tests",
}
# core is pure: no clock, no database, no log, no I/O.
IMPURE = ("common/base/log.h", "common/http/*.h", "time.h", "unistd.h", "fcntl.h", "pthread.h", "sys/*", "netinet/*", "netdb.h")
# Library code returns errors; mains, threads and api log.
NO_LOG = ("common/", "aggregator/core/", "aggregator/store/")


def room_of(path):
    if path.startswith(TESTS + "/"):
        return TESTS
    folder = path.rpartition("/")[0]
    return folder if folder in ROOMS else None


def may_include(room, path, target, name):
    """Whether a file of a room may include a header of another one."""
    if room in (TESTS, target) or any(path.startswith(readers) for readers in SHARED_HEADERS.get(name, ())):
        return True
    allowed = ROOMS[room]
    if allowed is None:
        return target in BASE or target.startswith(room + "/") and "/cli" not in target
    return target in allowed


def judge(path, room, name, is_system, known):
    """What is wrong with this one include, or None."""
    for pattern, place in LIBRARIES.items():
        if fnmatch(name, pattern) and room != TESTS and not any(fnmatch(path, p) for p in place.split()):
            return f"{name} belongs to {place}"
    if not is_system and name not in known:
        return f'"{name}" is not a file named from the root of the tree'
    if not is_system and room != TESTS:
        target = room_of(name)
        if not may_include(room, path, target, name):
            return f"wrong arrow: {room} may not include {target or 'the top level'} ({name})"
        if name == "common/base/log.h" and path.startswith(NO_LOG) and not path.startswith("common/base/log."):
            return f"{room} returns errors and never logs (common/base/log.h)"
    if room.startswith("aggregator/core/") and any(fnmatch(name, p) for p in IMPURE):
        return f"core is pure: no clock, database, log or I/O ({name})"
    return None


def check(root):
    """(findings, table lines)"""
    findings, arrows, wrong_arrows, places, names = [], Counter(), set(), {}, {}
    sources = tree.files(root, (".c", ".h"))
    known = set(sources)
    for path in sources:
        room = room_of(path)
        if room is None:
            findings.append(f"{path}:1: is in no room; code lives in {', '.join((*ROOMS, TESTS))}")
            continue
        name = path.rpartition("/")[2]
        if name.rpartition(".")[0] not in ("main", "options") and names.setdefault(name, path) != path:
            findings.append(f"{path}:1: {names[name]} has the same name")
        for line, name, is_system in tree.includes(tree.read(root, path)):
            wrong = judge(path, room, name, is_system, known)
            if wrong:
                findings.append(f"{path}:{line}: {wrong}")
                wrong_arrows.add((room, room_of(name)))
            if not is_system:
                arrows[room, room_of(name)] += 1
            for pattern in LIBRARIES if room != TESTS else ():
                if fnmatch(name, pattern):
                    places.setdefault(pattern, set()).add(path)
    return findings, table(arrows, wrong_arrows) + [f"  {p} in {', '.join(sorted(places[p]))}" for p in sorted(places)]


def table(arrows, wrong_arrows):
    """A line for each room: how many includes it has of each other one; ! where one of them is against the rules."""
    lines = []
    for room in (*ROOMS, TESTS):
        own = arrows[room, room]
        others = [f"{target.removeprefix('aggregator/').removeprefix('exporter/')} {arrows[room, target]}{'!' if (room, target) in wrong_arrows else ''}" for target in ROOMS
                  if target != room and arrows[room, target]]  # fmt: skip
        lines.append(f"  {room:<28} itself {own}" + "".join(f", {o}" for o in others))
    return lines
