"""A private PostgreSQL cluster for tests: a temporary directory, a unix socket and no TCP port.

    with pg.Cluster() as c:
        c.create_database("ledger")
        c.query("SELECT 1, NULL", "ledger")        # [["1", None]]
        c.crash(); c.start()                       # kill -9, then recovery
        with c.frozen(): ...                       # SIGSTOP, then SIGCONT
        with c.standby() as s:                     # a second server that follows; c.crash(); s.promote()

As root the server runs as the system user postgres, because it refuses to run as root. Whatever ends the test (its end, an
exception, SIGTERM, SIGINT, SIGHUP) stops the server by its process id and removes the directory; if this process is killed
with -9, the kernel tells the server to stop.

`make test` names a folder in TOLLGATE_PG_TEMPLATES: the first cluster of a variant is made there, with a ledger of each common kind
migrated by that variant's programs, and the others are copies of its files. Without it each cluster is made anew.
"""

import atexit
import contextlib
import csv
import ctypes
import fcntl
import functools
import glob
import io
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time

WAIT_S = 300.0  # far beyond what a start or a stop takes on a busy machine
USER = "postgres"  # the superuser: what psql is in tests, and who migrates
DAEMON, ROLLUP = "tollgate", "tollgate_rollup"  # the logins that the programs have, made by --migrate
NULL = "\\N"
PR_SET_PDEATHSIG = 1
SETTINGS = {
    # A crash here is the death of processes, never of the machine: what was written is in the kernel.
    "fsync": "off",
    "shared_buffers": "64MB",
    "jit": "off",  # as in the programs' own sessions
    "max_connections": "100",
    "log_min_messages": "warning",
    "log_line_prefix": "'%m [%p] %a '",
}

# Kinds of ledger that most tests want: (billing zone, whether it is a demo).
LEDGERS = (("UTC", True), ("UTC", False))

_open = []
_libc = ctypes.CDLL(None)


def bindir():
    """Where the server's programs are: on PATH, or where Debian puts them, newest version first."""
    found = shutil.which("initdb")
    if found:
        return os.path.dirname(os.path.realpath(found))
    candidates = glob.glob("/usr/lib/postgresql/*/bin/initdb")
    if not candidates:
        raise RuntimeError("PostgreSQL's initdb is not installed (Debian: postgresql-15)")
    newest = max(candidates, key=lambda p: float(p.split("/")[-3]))
    return os.path.dirname(newest)


@functools.cache
def has_logins(build):
    """Whether the programs there have a login for each part; those before issue 15 did everything as the owner."""
    path = os.path.join(build, "tollgate-aggregator")
    return "--rollup-database" in subprocess.run([path, "--help"], capture_output=True, text=True).stdout


def ledger_name(zone, demo):
    """The name of the migrated database that ledgers of this kind are copies of."""
    return f"template {zone} {demo}"


def base():
    """Memory where there is enough of it, because making and removing databases is mostly files; TMPDIR overrides. A socket's
    path has at most 107 bytes, which a deep temporary directory would use up."""
    shm = "/dev/shm"
    if "TMPDIR" not in os.environ and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free >= 4 << 30:
        return shm
    base = tempfile.gettempdir()
    return base if len(base) < 60 else "/tmp"


def _template():
    """A folder with the files of a cluster to copy, or None."""
    folder, build = (os.environ.get(name) for name in ("TOLLGATE_PG_TEMPLATES", "TOLLGATE_BUILD_DIR"))
    if not folder or not build:
        return None
    path = os.path.join(folder, os.path.basename(build))
    with open(path + ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            with Cluster(copied=False) as c:
                for zone, demo in LEDGERS:
                    c.create_database(ledger_name(zone, demo))
                    tool = [os.path.join(build, "tests", "store_tool"), c.conninfo(ledger_name(zone, demo)), "migrate", "--zone", zone]
                    subprocess.run([*tool, *(["--demo", "1"] if demo else [])], check=True, stdout=subprocess.DEVNULL)
                c.stop()
                os.rename(c.data, path)
    return path


def _close_all():
    for cluster in list(_open):
        cluster.close()


def _on_signal(number, _frame):
    _close_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _watch_exits():
    """Once: the clusters are closed however this process ends. Handlers that somebody else has set are left alone."""
    atexit.register(_close_all)
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _on_signal)


class Cluster(contextlib.AbstractContextManager):
    def __init__(self, settings=None, copied=True):
        self.settings = {**SETTINGS, **(settings or {})}
        self.copied = copied  # from the template, where there is one
        self.server = None
        self.root = None
        self.names = set()  # of the databases made here
        self.env = {}  # more of it for the server
        self.account = pwd.getpwnam(USER) if os.geteuid() == 0 else None

    # ---- life ----

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc):
        self.close()

    def start(self):
        """Makes the cluster on the first call; after stop() or crash() starts it again with its data."""
        if self.root is None:
            self._init()
        if self.server is not None:
            raise RuntimeError("the server is already running")
        deadline = time.monotonic() + WAIT_S
        while not self._start_once():
            # After a crash, backends of the dead server may hold its shared memory for a moment longer.
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start:\n{self.log()}")
            time.sleep(0.05)
        return self

    def stop(self):
        """An orderly, fast shutdown."""
        if self.server is None:
            return
        for number, patience in ((signal.SIGINT, WAIT_S), (signal.SIGQUIT, 10.0), (signal.SIGKILL, None)):
            self.server.send_signal(number)
            try:
                self.server.wait(patience)
                break
            except subprocess.TimeoutExpired:
                continue
        self.server = None

    def crash(self):
        """kill -9 of the server and of every backend, at this moment."""
        victims = self._children()
        self.server.kill()
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.server.wait()
        self.server = None

    @contextlib.contextmanager
    def frozen(self):
        """SIGSTOP of the server and of every backend: sockets stay open, and nobody answers."""
        pids = [self.server.pid]
        self.server.send_signal(signal.SIGSTOP)  # it starts no more of them
        try:
            for pid in self._children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    pids.append(pid)
            yield self
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def restart(self):
        self.stop()
        return self.start()

    def close(self):
        self.stop()
        if self.root is not None:
            shutil.rmtree(self.root, ignore_errors=True)
            self.root = None
        if self in _open:
            _open.remove(self)

    # ---- use ----

    def conninfo(self, database="postgres", user=USER):
        return f"host={self.socket_dir} port=5432 user={user} dbname='{database}'"

    def standby(self):
        return Standby(self)

    def wait_for_standby(self):
        """From here on a commit waits for the standby to have it."""
        self.query("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.query("SELECT pg_reload_conf()")

    def create_database(self, name, template="template1"):
        self.query(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        if template != "template1":
            # PostgreSQL 15 copies a sequence with values that it counts as logged already. Until a checkpoint, a crash would give them out again.
            self.query("CHECKPOINT")
        self.names.add(name)

    def drop_database(self, name):
        self.query(f'DROP DATABASE "{name}" WITH (FORCE)')
        self.names.discard(name)

    def query(self, statement, database="postgres"):
        """Rows as lists of text, NULL as None. A failing statement raises with the server's words."""
        done = subprocess.run(
            [os.path.join(self.bin, "psql"), "-X", "-q", "-t", "--csv", "-P", f"null={NULL}", "-v", "ON_ERROR_STOP=1",
             "-d", self.conninfo(database), "-f", "-"],  # fmt: skip
            input=statement,
            capture_output=True,
            text=True,
            env={**os.environ, "PGOPTIONS": "-c search_path=tollgate,public -c timezone=UTC"},
        )
        if done.returncode != 0:
            raise RuntimeError(f"{done.stderr.strip()}\nin: {statement}")
        return [[None if v == NULL else v for v in row] for row in csv.reader(io.StringIO(done.stdout))]

    def value(self, statement, database="postgres"):
        return self.query(statement, database)[0][0]

    def private_dir(self, name):
        """A directory of the caller's own beside the cluster, removed with it."""
        path = os.path.join(self.root, name)
        os.makedirs(path, mode=0o755, exist_ok=True)
        return path

    def log(self):
        with open(self.log_file, encoding="utf-8", errors="replace") as f:
            return "".join(f.readlines()[-30:])

    # ---- inside ----

    def _init(self):
        if not _open:
            _watch_exits()
        _open.append(self)
        self._make_root()
        self._fill()
        with open(os.path.join(self.data, "postgresql.conf"), "a", encoding="utf-8") as f:
            print(f"listen_addresses = ''\nunix_socket_directories = '{self.socket_dir}'\nport = 5432", file=f)
            for name, value in self.settings.items():
                print(f"{name} = {value}", file=f)

    def _make_root(self):
        self.bin = bindir()
        self.root = tempfile.mkdtemp(prefix="tollgate-pg-", dir=base())
        os.chmod(self.root, 0o755)
        self.data = os.path.join(self.root, "data")
        self.socket_dir = os.path.join(self.root, "s")
        self.log_file = os.path.join(self.root, "server.log")
        for path in (self.data, self.socket_dir):
            os.mkdir(path, 0o700)
            self._give(path)
        open(self.log_file, "w", encoding="utf-8").close()
        self._give(self.log_file)

    def _fill(self):
        template = _template() if self.copied else None
        if template:
            subprocess.run(["cp", "-a", f"{template}/.", self.data], check=True)
            self.names.update(ledger_name(*kind) for kind in LEDGERS)
            return
        self._run("initdb", "-D", self.data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")

    def _run(self, name, *args):
        done = subprocess.run([os.path.join(self.bin, name), *args], capture_output=True, text=True, **self._as_server())
        if done.returncode != 0:
            raise RuntimeError(f"{name} failed: {done.stderr.strip()}")

    def _give(self, path):
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)

    def _as_server(self):
        """How Popen starts a program of the server: as its user, in a directory that user may enter."""
        how = {"cwd": self.root, "env": {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", "HOME": self.root, **self.env}}
        if self.account:
            how.update(user=self.account.pw_uid, group=self.account.pw_gid, extra_groups=[])
        return how

    def _start_once(self):
        with open(self.log_file, "a", encoding="utf-8") as log:
            self.server = subprocess.Popen(
                [os.path.join(self.bin, "postgres"), "-D", self.data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT),
                start_new_session=True,  # Ctrl-C reaches this process, which then stops the server in order
                **self._as_server(),
            )
        while self.server.poll() is None:
            if self._answers():
                return True
            time.sleep(0.02)
        self.server = None
        return False

    def _answers(self):
        """The server writes "ready" into its pid file when it takes connections, "standby" when only readers."""
        try:
            with open(os.path.join(self.data, "postmaster.pid"), encoding="ascii") as f:
                lines = f.read().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0] == str(self.server.pid) and lines[7].strip() in ("ready", "standby")

    def _children(self):
        pids = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as f:
                        parent = f.read().rpartition(")")[2].split()[1]
                    if int(parent) == self.server.pid:
                        pids.append(int(entry))
        return pids


class Standby(Cluster):
    """Follows another cluster from its first start on, by streaming, until it is promoted."""

    def __init__(self, primary):
        super().__init__(primary.settings)
        self.primary = primary
        self.names, self.env = primary.names, primary.env

    def _fill(self):
        self._run("pg_basebackup", "-h", self.primary.socket_dir, "-p", "5432", "-U", USER, "-D", self.data, "-R", "-X", "stream",
                  "--checkpoint=fast", "--no-sync")

    def wait_following(self):
        deadline = time.monotonic() + WAIT_S
        while self.primary.value("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == "0":
            if time.monotonic() > deadline:
                raise RuntimeError(f"the standby does not follow:\n{self.log()}")
            time.sleep(0.05)

    def fall_behind(self):
        """What the primary does from now on does not arrive any more."""
        self.query("ALTER SYSTEM SET primary_conninfo = ''")
        self.query("SELECT pg_reload_conf()")
        deadline = time.monotonic() + WAIT_S
        while self.primary.value("SELECT count(*) FROM pg_stat_replication") != "0":
            if time.monotonic() > deadline:
                raise RuntimeError(f"the standby goes on following:\n{self.log()}")
            time.sleep(0.05)

    def promote(self):
        if self.value(f"SELECT pg_promote(true, {WAIT_S:.0f})") != "t":
            raise RuntimeError(f"the standby was not promoted:\n{self.log()}")
