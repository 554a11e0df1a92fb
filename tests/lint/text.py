"""Rules that need only the text of a file."""

import ast
import os
import re
from fnmatch import fnmatch

import layers
import tree

# (what the code calls, where it is allowed, what to use instead)
BANNED = (
    (r"sprintf|vsprintf|strcpy|stpcpy|strcat|strncat|strncpy|gets", (), "buf_* or snprintf, which know the size"),
    (r"strtok|strtok_r", (), "a loop over strcspn; strtok writes into its input"),
    (r"atoi|atol|atoll|atof|sscanf|scanf|fscanf", (), "a parser that reports what it did not understand"),
    (r"system|popen|execlp|execvp", (), "posix_spawn with an absolute path and a list of arguments"),
    (r"alloca", (), "mem_array; a stack has no error path"),
    (r"malloc|calloc|realloc|reallocarray|strdup|strndup|asprintf|vasprintf", ("common/base/base.c",), "mem_*"),
    (r"rand|srand|random|srandom|drand48|tmpnam|tempnam|mktemp", (), "random_bytes, mkstemp"),
    (r"gmtime|localtime|ctime|asctime|strerror|inet_ntoa|gethostbyname", (), "the re-entrant form"),
    (r"time|gettimeofday|clock", (), "time_wall_ns or time_boot_ns, at the rim"),
    # Texts of others, and one that is made when the program is built.
    (r"strstr", ("exporter/*", "aggregator/api/api_reports.c", "aggregator/store/verify/verify_schema.c", "aggregator/core/rating/rating_text.c", "common/base/units.c"),
     "the struct that our own text was made of, or jansson; text_ends for the end of a name"),
    (r"assert", (), "ASSERT, which holds in release builds too"),
    (r"pthread_cond_timedwait|pthread_cond_clockwait|pthread_condattr_setclock", ("common/base/thread.c",),
     "condition_init and condition_wait_until, whose deadlines are all on the monotonic clock"),
    # What may wait for a server, also where it is only to send or to say goodbye.
    (r"PQ(connectdb\w*|setdb\w*|reset|exec\w*|prepare|describe\w+|close\w+|send\w+|getResult|fn|putCopy\w+|getCopyData|pipelineSync|flush|cancel\w*|finish|ping\w*)"
     r"|lo_\w+", ("aggregator/store/db/db.c",), "db_*, which waits until a deadline and no longer"),
)
# Exact quantities: no binary fraction comes near them.
EXACT = ("aggregator/core/*", "common/base/money.*", "common/base/apportion.*", "common/base/units.*", "common/base/time.*", "common/wire/wire.*", "exporter/meter/*")
PURE = "aggregator/core/*"

# Spelled so that this file does not find itself.
UNFINISHED = re.compile(r"T[O]DO|F[I]XME|H[A]CK|not [i]mplemented|for [n]ow|place[h]older|s[t]ub")
CODE = (".c", ".h", ".sql", ".sh", ".lua", ".py", ".js", ".ts", ".css", ".html", "Makefile", ".mk")


def matches(path, patterns):
    return any(fnmatch(path, p) for p in patterns)


def at(path, text, offset):
    return f"{path}:{text.count(chr(10), 0, offset) + 1}"


def declarators(statement):
    """The parts of a declaration between its outermost commas."""
    parts, depth = [""], 0
    for c in statement:
        depth += (c in "({[") - (c in ")}]")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def bare_cleanups(path, code):
    """Variables that clean up behind themselves and have no value yet: a return before it would clean up whatever lay there."""
    for m in re.finditer(r"^[ \t]+((?:owned|in_place)\(\w+\)[^;]*);", code, re.M):
        for part in declarators(m[1]):
            if "=" not in part:
                yield f"{at(path, code, m.start(1))}: {part.split()[-1]} is cleaned up at its scope's end: give it a value where it is declared"


def check_calls(root):
    """Functions that hide an overflow, an error or an input, in code that ships."""
    findings = []
    for path in tree.files(root, (".c", ".h")):
        if path.startswith("tests/"):
            continue
        code = tree.code_only(tree.read(root, path))
        for names, allowed, instead in BANNED:
            if matches(path, allowed):
                continue
            # A member or a longer name is another function; a declaration in a table of pointers is "->name(".
            for m in re.finditer(rf"(?<![\w.>])({names})\s*\(", code):
                findings.append(f"{at(path, code, m.start())}: {m[1]}() is banned: use {instead}")
        findings += bare_cleanups(path, code)
        if path != "common/base/time.c":  # a monotonic deadline to wait for is not a time that anybody stores
            for m in re.finditer(r"\bclock_gettime\s*\(\s*CLOCK_(REALTIME|BOOTTIME|TAI)", code):
                findings.append(f"{at(path, code, m.start())}: clocks are read by time_wall_ns and time_boot_ns")
        if matches(path, EXACT):
            for m in re.finditer(r"\b(float|double)\b", code):
                findings.append(f"{at(path, code, m.start())}: {m[1]} where quantities are exact: use int64_t or int128")
        if matches(path, (PURE,)):
            for m in re.finditer(r"\btime_(wall|boot)_ns\s*\(", code):
                findings.append(f"{at(path, code, m.start())}: core gets the time as an argument")
    return findings


# When a tenant or workspace is in force: who writes the terms, who proves them, and for readers the functions of sql/0009_directory_functions.sql.
TERMS = re.compile(r"\b(tenant_term|workspace_term)\b|\bretired_at\s*(?:IS\b|[<>=])", re.I)
TERM_FILES = ("aggregator/store/policy/policy_write.c", "aggregator/store/verify/verify_rows.c", "aggregator/store/verify/verify_lines.c", "aggregator/store/close/period_close.c")


def check_terms(root):
    """A reader that looks at the terms by itself may forget the instant it is asked about."""
    findings = []
    for path in tree.files(root, (".c", ".h")):
        if path.startswith("tests/") or path in TERM_FILES:
            continue
        code = tree.read(root, path)
        for m in TERMS.finditer(code):
            findings.append(f"{at(path, code, m.start())}: {m[0]}: ask tenants_at(T), workspaces_at(T), tenants_known(T) or workspaces_known(T)")
    return findings


# Rows that were hashed without a column must hash the same with it: NULL is left out of the hash, and nothing else is.
JOURNALLED = re.compile(r'^\t+\{"(\w+)",', re.M)
ADDED = re.compile(r"\bADD\s+(?:COLUMN\s+)?(?:IF\s+NOT\s+EXISTS\s+)?(?!CONSTRAINT\b|CHECK\b|EXCLUDE\b|FOREIGN\b|PRIMARY\b|UNIQUE\b)(\w+)\s+((?:[^,(]|\((?:[^()]|\([^()]*\))*\))*)", re.I)


def check_added_columns(root):
    """A column that is added to a table under the journal, or to one whose rows become final, is empty in the rows that are there."""
    names = set(JOURNALLED.findall(tree.read(root, "aggregator/store/verify/verify_rows.c")))
    scripts = [(path, re.sub(r"--[^\n]*|'(?:[^']|'')*'", lambda m: re.sub(r"[^\n]", " ", m[0]), tree.read(root, path)))
               for path in tree.files(root, ".sql") if re.fullmatch(r"sql/\d{4}_\w+\.sql", path)]  # fmt: skip
    first = {}
    for path in sorted(p for p, _ in scripts):
        text = tree.read(root, path)
        for name in names - set(first):
            if "journal_table(" in text and f"'{name}'" in text:
                first[name] = path
    findings = []
    for path, text in scripts:
        for m in re.finditer(r"\bALTER\s+TABLE\s+(?:ONLY\s+)?(?:tollgate\.)?(\w+)\b([^;]*);", text, re.I):
            if m[1] not in first or path <= first[m[1]]:
                continue
            for a in ADDED.finditer(m[2]):
                if re.search(r"\b(NOT\s+NULL|DEFAULT|GENERATED)\b", re.sub(r"\(.*?\)", " ", a[2], flags=re.S), re.I):
                    findings.append(f"{at(path, text, m.start(2) + a.start())}: column {a[1]} of {m[1]} is not empty in the rows that are there: their hashes are in the journal")
    return findings


def check_imports(root):
    """Imports of tests/ that name no file: Python says so only when the test runs."""
    findings = []
    for path in tree.files(root, ".py"):
        for node in ast.walk(ast.parse(tree.read(root, path))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                whole = os.path.isfile(os.path.join(root, *node.module.split(".")) + ".py")
                names = [node.module] if whole else [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                if name.startswith("tests.") and not os.path.isfile(os.path.join(root, *name.split(".")) + ".py"):
                    findings.append(f"{path}:{node.lineno}: there is no {name.replace('.', '/')}.py")
    return findings


def check_unfinished(root):
    findings = []
    for path in tree.files(root, CODE):
        for number, line in enumerate(tree.read(root, path).splitlines(), 1):
            m = UNFINISHED.search(line)
            if m:
                findings.append(f"{path}:{number}: mark of unfinished work: {m[0]}")
    return findings


def check_readmes(root):
    folders = [f for f in tree.FOLDERS if not f.startswith(".")]
    folders += [f"aggregator/{f}" for f in ("core", "store", "service", "api", "cli")]
    findings = [] if os.path.exists(os.path.join(root, "README.md")) else ["README.md:1: the tree has no README"]
    for folder in folders:
        here = os.path.join(root, folder)
        if os.path.isdir(here) and os.listdir(here) and not os.path.exists(os.path.join(here, "README.md")):
            findings.append(f"{folder}/README.md:1: the folder has no README")
    for room in layers.ROOMS:  # a small room may be described by the README above it
        if os.path.isdir(os.path.join(root, room)) and not any(os.path.exists(os.path.join(root, f, "README.md")) for f in (room, os.path.dirname(room))):
            findings.append(f"{room}/README.md:1: neither the room nor the folder above it has a README")
    return findings + dead_links(root)


def dead_links(root):
    """Links of documents to files that are not there, and to headings that they do not have."""
    findings = []
    for path in tree.files(root, ".md"):
        text = tree.read(root, path)
        for m in re.finditer(r"\]\(([^)\s#]*)(#[\w-]+)?\)", text):
            if m[1].startswith(("http:", "https:")):
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(path), m[1])) if m[1] else path
            if not os.path.exists(os.path.join(root, target)):
                findings.append(f"{at(path, text, m.start())}: there is no {target}")
            elif m[2] and m[2][1:] not in headings(tree.read(root, target)):
                findings.append(f"{at(path, text, m.start())}: {target} has no heading {m[2]}")
    return findings


def headings(text):
    """The anchors of a document's headings."""
    return {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in re.findall(r"^#+ +(.*)$", text, re.M)}
