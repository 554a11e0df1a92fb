"""NVIDIA's header and library as Debian has them (non-free), unpacked into the build tree and never installed.

apt looks where this machine is configured to look, with the component non-free added, by a private configuration, and with
private lists. What was unpacked stays; that it could not be had is remembered for an hour, so that nobody waits for it twice.
"""

import fcntl
import os
import shutil
import subprocess
import time
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
RETRY_SECONDS = 3600
COMMAND_SECONDS = 90


class Unavailable(Exception):
    """Why a package cannot be had: the reason that a skipped test gives."""


def _run(command, cwd=None):
    env = dict(os.environ, LC_ALL="C")
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise Unavailable(f"{command[0]}: {e}") from e
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        raise Unavailable(f"{command[0]}: {lines[0]}")
    return done.stdout


def _sources():
    """The machine's own Debian archives as lines for apt, for non-free."""
    keys = ("REPO_URI", "RELEASE", "COMPONENT", "ORIGIN")
    out = _run(["apt-get", "indextargets", "--format", "|".join(f"$({k})" for k in keys), "Identifier: Packages"])
    rows = {tuple(line.split("|")) for line in out.splitlines()}
    signed = f" [signed-by={KEYRING}]" if KEYRING.exists() else ""
    lines = [f"deb{signed} {uri} {release} non-free" for uri, release, component, origin in sorted(rows)
             if component == "main" and origin == "Debian" and "-" not in release]
    if not lines:
        raise Unavailable("apt has no Debian archive configured")
    return "\n".join(lines) + "\n"


def _download(package, folder):
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unavailable("this is not a Debian-like system")
    apt = folder.parent / "apt"
    for sub in ("lists/partial", "cache/archives/partial", "none"):
        (apt / sub).mkdir(parents=True, exist_ok=True)
    (apt / "sources.list").write_text(_sources(), encoding="utf-8")
    options = [f"Dir::Etc::sourcelist={apt}/sources.list", f"Dir::Etc::sourceparts={apt}/none", f"Dir::State::lists={apt}/lists",
               f"Dir::Cache={apt}/cache", "APT::Sandbox::User=", "Debug::NoLocking=true", "Acquire::Retries=0",
               "Acquire::http::Timeout=15", "Acquire::https::Timeout=15", "APT::Update::Error-Mode=any"]
    command = ["apt-get", "-qq", *(word for o in options for word in ("-o", o))]
    _run([*command, "update"])
    for old in apt.glob(f"{package}_*.deb"):
        old.unlink()
    _run([*command, "download", package], cwd=apt)
    [deb] = apt.glob(f"{package}_*.deb")
    unpacked = folder.with_suffix(".new")
    shutil.rmtree(unpacked, ignore_errors=True)
    _run(["dpkg-deb", "-x", str(deb), str(unpacked)])
    unpacked.rename(folder)


def unpacked(package, out):
    """The folder with what the package would install; raises Unavailable. `out` is the build tree."""
    base = Path(out).resolve() / "nvidia"
    base.mkdir(parents=True, exist_ok=True)
    folder, refused = base / package, base / f"{package}.unavailable"
    with open(base / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        if refused.exists() and time.time() - refused.stat().st_mtime < RETRY_SECONDS:
            raise Unavailable(refused.read_text(encoding="utf-8"))
        try:
            _download(package, folder)
        except Unavailable as e:
            refused.write_text(str(e), encoding="utf-8")
            raise
        refused.unlink(missing_ok=True)
        return folder


def header(out):
    """nvml.h of libnvidia-ml-dev."""
    return unpacked("libnvidia-ml-dev", out) / "usr/include/nvml.h"


def library(out):
    """libnvidia-ml.so.1 of libnvidia-ml1; Debian keeps it beside those of other versions."""
    found = sorted(unpacked("libnvidia-ml1", out).glob("usr/lib/**/libnvidia-ml.so.1"))
    if not found:
        raise Unavailable("libnvidia-ml1 has no libnvidia-ml.so.1")
    return found[0]
