"""Lints that call a program per file: formatter, two compilers, three analyzers. What passed is remembered by content."""

import hashlib
import os
import shlex
import subprocess
from pathlib import Path

import tree

# The analyzer reads what -O1 leaves as well as what -O2 does, and what the compiler would do after it is of no use here.
ANALYZER = ["-fanalyzer", "-O1", "-g0", "-S", "-o", os.devnull]
CPPCHECK = ["--quiet", "--std=c11", "--enable=warning,performance,portability", "--inline-suppr", "--error-exitcode=1",
            # It reads no system headers, so it takes the one that checks the library's version for a mismatch.
            "--suppress=preprocessorErrorDirective:*podres.pb-c.h",
            # cppcheck 2.10 does not see that a cleanup attribute frees, and loses its way in designated initialisers and
            # in addresses of locals; the analyzers of gcc and clang look for the same mistakes.
            *(f"--suppress={s}" for s in ("memleak", "resourceLeak", "uninitvar", "legacyUninitvar", "autoVariables", "pointerSize",
                                         "arrayIndexThenCheck"))]
# The files that define the functions of analysis.h; clang does not look into a variadic function, so that it takes
# yaml_err for one that may succeed.
ANALYSIS_DEFINES = {"common/base/err.c": ["-DDEFINES_ERR"], "common/conf/yaml.c": ["-DDEFINES_YAML_ERR"]}


# Files that one call of a tool reads: starting it and its tables takes longer than most files do.
BATCH = {"format": 40, "tidy": 10, "cppcheck": 10}


class Task:
    """One file and the command that reads it: `before`, the path, `after`. Tasks that differ in the path alone may share a call."""

    def __init__(self, check, path, before, after=(), stdin=None):
        self.check, self.path, self.before, self.after, self.stdin = check, path, list(before), list(after), stdin
        self.output, self.ok = "", False


def command(tasks):
    paths = [t.path for t in tasks] if tasks[0].stdin is None else []
    return [*tasks[0].before, *paths, *tasks[0].after]


def batches(tasks):
    """The tasks in groups that one call can serve."""
    alike = {}
    for t in tasks:
        alike.setdefault((t.check, *t.before, None, *t.after), []).append(t)
    for group in alike.values():
        size = BATCH.get(group[0].check, 1)
        yield from (group[i : i + size] for i in range(0, len(group), size))


def make_flags(root):
    """The flags the Makefile compiles with, so that there is one list of them."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}
    out = subprocess.run(["make", "-s", "flags", "WERROR=1"], cwd=root, env=env, capture_output=True, text=True, check=True)
    return shlex.split(out.stdout)


def product(path):
    return not path.startswith("tests/")


def tasks(root):
    flags = make_flags(root)
    paths = [f for f in flags if f.startswith(("-D", "-I")) and not f.startswith("-D_FORTIFY")]
    # An owned() variable that only keeps something alive is in use; gcc knows, and finds the unused ones.
    # clang 14 refuses the zeroing of variables
    clang = [*(f for f in flags if not f.startswith("-ftrivial-auto-var-init")), "-Wno-unused-variable"]
    for path in tree.files(root, (".c", ".h")):
        yield Task("format", path, ["clang-format", "--dry-run", "-Werror"])
    for path in tree.files(root, ".h"):
        # Twice: it needs nothing before it and does no harm after itself. It may hold nothing but macros.
        text = f'#include "{path}"\n' * 2 + "extern int not_empty;\n"
        yield Task("headers", path, ["gcc", *flags, "-fsyntax-only", "-x", "c", "-"], stdin=text)
    for path in tree.files(root, ".c"):
        if not product(path):
            yield Task("clang", path, ["clang", *clang, "-fsyntax-only"])
            continue
        known = ["-include", "tests/lint/analysis.h", *ANALYSIS_DEFINES.get(path, [])]
        yield Task("analyzer", path, ["gcc", *flags, *known, *ANALYZER])
        # clang's warnings come with it: the file is read once for both.
        yield Task("tidy", path, ["clang-tidy", "--quiet"], ["--", *clang, *known])
        yield Task("cppcheck", path, ["cppcheck", *CPPCHECK, *paths])


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
        return hashlib.sha256(repr((self.base, command([task]), task.stdin, sorted(seen.items()))).encode()).hexdigest()

    def has(self, key):
        return (self.folder / key).exists()

    def add(self, key):
        (self.folder / key).touch()


def call(root, tasks):
    """(whether the tool is content with all of them, its words)"""
    words = command(tasks)
    try:
        done = subprocess.run(words, cwd=root, input=tasks[0].stdin, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return False, f"{tasks[0].path}:1: {words[0]} did not end within 300 s"
    return done.returncode == 0, done.stdout + done.stderr


def run(root, batch, cache):
    """One call for all that are not known to pass; when it finds something, one for each, so that each finding has its file."""
    keys = {t: cache.key(t) for t in batch}
    todo = [t for t in batch if not cache.has(keys[t])]
    together = len(todo) > 1 and call(root, todo)[0]
    for t in batch:
        t.ok = t not in todo or together
        if not t.ok:
            t.ok, t.output = call(root, [t])
        if t.ok:
            cache.add(keys[t])
