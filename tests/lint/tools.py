"""Lints that call a program per file: formatter, two compilers, three analyzers. What passed is remembered by content."""

import hashlib
import os
import shlex
import subprocess
from pathlib import Path

import tree

# What clang's analyzer explores of one function before it gives up; its default takes four times as long.
ANALYZER_DEPTH = "max-nodes=60000"
CPPCHECK = ["--quiet", "--std=c11", "--enable=warning,performance,portability", "--inline-suppr", "--error-exitcode=1",
            # It reads no system headers, so it takes the one that checks the library's version for a mismatch.
            "--suppress=preprocessorErrorDirective:*podres.pb-c.h",
            # cppcheck 2.10 does not see that a cleanup attribute frees, and loses its way in designated initialisers and
            # in addresses of locals; the analyzers of gcc and clang look for the same mistakes.
            *(f"--suppress={s}" for s in ("memleak", "resourceLeak", "uninitvar", "legacyUninitvar", "autoVariables", "pointerSize",
                                         "arrayIndexThenCheck"))]
# The files that define the functions of analysis.h; clang does not look into a variadic function, so that it takes
# yaml_err for one that may succeed.
ANALYSIS_DEFINES = {"common/err.c": ["-DDEFINES_ERR"], "common/yaml.c": ["-DDEFINES_YAML_ERR"]}
TIDY_WITHOUT = {"common/yaml.c": ["--checks=-clang-analyzer-core.NullDereference"]}


class Task:
    def __init__(self, check, path, command, stdin=None):
        self.check, self.path, self.command, self.stdin = check, path, command, stdin
        self.output, self.ok = "", False


def make_flags(root):
    """The flags the Makefile compiles with, so that there is one list of them."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}
    out = subprocess.run(["make", "-s", "flags", "WERROR=1"], cwd=root, env=env, capture_output=True, text=True, check=True)
    return shlex.split(out.stdout)


def product(path):
    return not path.startswith("tests/")


def tasks(root):
    flags = make_flags(root)
    # What clang needs to read the same file: it knows neither all of gcc's warnings nor -fanalyzer.
    plain = [f for f in flags if f.startswith(("-std", "-D", "-I")) and not f.startswith("-D_FORTIFY")]
    # An owned() variable that only keeps something alive is in use; gcc knows, and finds the unused ones.
    clang = [*flags, "-Wno-unused-variable"]
    for path in tree.files(root, (".c", ".h")):
        yield Task("format", path, ["clang-format", "--dry-run", "-Werror", path])
    for path in tree.files(root, ".h"):
        # Twice: it needs nothing before it and does no harm after itself. It may hold nothing but macros.
        text = f'#include "{path}"\n' * 2 + "extern int not_empty;\n"
        yield Task("headers", path, ["gcc", *flags, "-fsyntax-only", "-x", "c", "-"], text)
    for path in tree.files(root, ".c"):
        yield Task("clang", path, ["clang", *clang, "-fsyntax-only", path])
        if not product(path):
            continue
        known = ["-include", "tests/lint/analysis.h", *ANALYSIS_DEFINES.get(path, [])]
        yield Task("analyzer", path, ["gcc", *flags, *known, "-fanalyzer", "-c", "-o", "/dev/null", path])
        depth = [f"--extra-arg={a}" for a in ("-Xclang", "-analyzer-config", "-Xclang", ANALYZER_DEPTH)]
        yield Task("tidy", path, ["clang-tidy", "--quiet", *TIDY_WITHOUT.get(path, []), *depth, path, "--", *plain, *known])
        yield Task("cppcheck", path, ["cppcheck", *CPPCHECK, *[f for f in plain if f.startswith(("-D", "-I"))], path])


class Cache:
    """Names of what passed: the command, the tool, its configuration, and every file of the tree that it read."""

    def __init__(self, root, folder):
        self.root, self.folder = root, Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.known = {}
        config = "".join(tree.read(root, f) for f in (".clang-format", ".clang-tidy"))
        self.base = hashlib.sha256((config + self.versions()).encode()).hexdigest()

    def versions(self):
        return "".join(subprocess.run([t, "--version"], capture_output=True, text=True, check=True).stdout
                       for t in ("gcc", "clang", "clang-format", "clang-tidy", "cppcheck"))

    def closure(self, path, seen):
        """The file and what it includes from the tree, with their contents' hashes."""
        if path in seen or not (Path(self.root) / path).is_file():
            return
        if path not in self.known:
            text = tree.read(self.root, path)
            below = [name for _, name, is_system in tree.includes(text) if not is_system]
            self.known[path] = (hashlib.sha256(text.encode()).hexdigest(), below)
        digest, below = self.known[path]
        seen[path] = digest
        for name in below:
            self.closure(name, seen)

    def key(self, task):
        seen = {}
        self.closure(task.path, seen)
        self.closure("tests/lint/analysis.h", seen)
        return hashlib.sha256(repr((self.base, task.command, task.stdin, sorted(seen.items()))).encode()).hexdigest()

    def has(self, key):
        return (self.folder / key).exists()

    def add(self, key):
        (self.folder / key).touch()


def run(root, task, cache):
    key = cache.key(task)
    if cache.has(key):
        task.ok = True
        return
    try:
        done = subprocess.run(task.command, cwd=root, input=task.stdin, capture_output=True, text=True, timeout=300, check=False)
        task.ok, task.output = done.returncode == 0, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        task.output = f"{task.path}:1: {task.command[0]} did not end within 300 s"
    if task.ok:
        cache.add(key)
