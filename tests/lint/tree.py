"""What the lints share: the files of the tree, their includes, and C text without comments and strings."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# Where code is. Everything else at the top (the build tree, .git) is not ours to judge.
FOLDERS = ("common", "exporter", "aggregator", "hooks", "sql", "dashboards", "deploy", "tests", ".ci")


def files(root, suffixes=None):
    """Paths relative to the root, sorted."""
    found = [p.name for p in Path(root).iterdir() if p.is_file()]
    for folder in FOLDERS:
        for at, dirs, names in os.walk(Path(root) / folder):
            dirs[:] = [d for d in dirs if d not in ("__pycache__", "node_modules", "corpus")]
            found += [os.path.relpath(os.path.join(at, n), root) for n in names]
    return sorted(f for f in found if suffixes is None or f.endswith(suffixes))


def read(root, path):
    return (Path(root) / path).read_text(encoding="utf-8", errors="replace")


def includes(text):
    """(line, name, is_system) for each #include."""
    for number, line in enumerate(text.splitlines(), 1):
        m = re.match(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', line)
        if m:
            yield number, m[1] or m[2], m[1] is None


def code_only(text):
    """Comments, strings and characters blanked, lines kept: what is left is code."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)
