"""The daemons for integration tests: real processes on loopback, in a private directory, always stopped.

    with Stack() as s:            # PostgreSQL and the aggregator, as a demo ledger
        s.apply(policy)           # a policy as text
        e = s.exporter("n1", scenario)   # a scenario as a Python value (JSON is YAML) or the path of a file
        ...
        e.stop()                  # its last interval is sent first

What a daemon wrote to stderr is shown when it does not do what the test waits for.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

from tests.support.daemons import pg

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BUILD = os.environ.get("TOLLGATE_BUILD_DIR") or os.path.join(ROOT, "build", "release")
WAIT_S = 300.0  # far beyond what anything here takes beside busy neighbours: a hang ends, a slow machine does not fail


def program(name):
    """Its path. Under make memcheck the command line program is started by valgrind."""
    if name == "tollgate" and os.environ.get("TOLLGATE_MEMCHECK"):
        return os.path.join(ROOT, "tests/support/harness/memcheck.sh")
    return os.path.join(BUILD, name)


def free_port(count=1):
    """The first of so many in a row, below those that the system gives to clients: no connection takes it before its server does."""
    while True:
        first = random.SystemRandom().randrange(12000, 32000)
        try:
            for port in range(first, first + count):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue


def wait_for(what, condition, process=None):
    """The first true value of condition(); fails with a sentence, and the process's own words, when there is none."""
    deadline = time.monotonic() + WAIT_S
    while True:
        value = condition()
        if value:
            return value
        ended = process is not None and process.ended()
        if ended or time.monotonic() > deadline:
            words = f"\n{process.words()}" if process is not None else ""
            raise AssertionError(f"{'the process ended before' if ended else 'timed out waiting for'}: {what}{words}")
        time.sleep(0.05)


class Process:
    """One child with its log; ended by process id."""

    def __init__(self, argv, log, env=None):
        self.argv, self.log, self.env = argv, log, env
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(
                self.argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **(self.env or {})}
            )

    def ended(self):
        return self.child.poll() is not None

    def words(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return "".join(f.readlines()[-20:])

    def stop(self):
        if not self.ended():
            self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise AssertionError(f"{self.argv[0]} did not stop on SIGTERM\n{self.words()}") from None

    def kill9(self):
        if not self.ended():
            self.child.kill()
        self.child.wait()


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def text(self):
        return self.body.decode()


def request(method, url, body=None, token=None, headers=None):
    """Any status is a reply; only silence is an exception."""
    rq = urllib.request.Request(url, data=body, method=method, headers=dict(headers or {}))
    if token:
        rq.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(rq, timeout=WAIT_S) as r:
            return Reply(r.status, r.headers, r.read())
    except urllib.error.HTTPError as e:
        with e:
            return Reply(e.code, e.headers, e.read())


def scheme(options):
    return "https" if "--tls-cert" in options else "http"


def answers(url):
    try:
        return request("GET", url).status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


class Exporter(Process):
    def __init__(self, stack, node, scenario, options, t0_ns, token_file):
        self.node, self.port = node, free_port()
        self.dir = os.path.join(stack.dir, node)
        for sub in ("proc", "pods", "spool"):
            os.makedirs(os.path.join(self.dir, sub), exist_ok=True)
        path = scenario
        if not isinstance(scenario, str):
            path = os.path.join(self.dir, "scenario.yaml")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(scenario, f)
        env = {
            "TOLLGATE_SIM_SCENARIO": path,
            "TOLLGATE_SIM_PROC": os.path.join(self.dir, "proc"),
            "TOLLGATE_SIM_PODS": os.path.join(self.dir, "pods"),
        }
        if t0_ns is not None:
            env["TOLLGATE_SIM_T0_NS"] = str(t0_ns)
        argv = [program("tollgate-exporter"), "--node", node, "--listen", f"127.0.0.1:{self.port}",
                "--nvml-library", os.path.join(BUILD, "sim", "libnvidia-ml.so.1"),
                "--proc-root", env["TOLLGATE_SIM_PROC"], "--pods-root", env["TOLLGATE_SIM_PODS"],
                "--spool-dir", os.path.join(self.dir, "spool"), *options]  # fmt: skip
        if stack.port:
            argv += ["--aggregator-url", stack.url, "--token-file", token_file or stack.node_token(node)]
        super().__init__(argv, os.path.join(self.dir, "log"), env)
        self.url = f"{scheme(options)}://127.0.0.1:{self.port}"
        wait_for("the exporter's /metrics", lambda: answers(self.url + "/metrics"), self)


class Stack(contextlib.AbstractContextManager):
    def __init__(self, demo=True, zone="UTC", options=(), standby=False, settings=None, clock=None, wall=None, server=None, database="tollgate"):
        self.settings = settings  # of PostgreSQL
        self.server, self.database = server, database  # a cluster that goes on when this stack ends, and its database; None: one of its own
        self.clock, self.wall = clock, wall  # of PostgreSQL and of the aggregators, where a test sets them (tests/support/daemons/clock.py)
        self.demo, self.zone, self.options = demo, zone, list(options)
        self.processes, self.tokens = [], {}
        self.standby = standby  # True: a second PostgreSQL follows the first; failover() makes it the first
        self.port = free_port()
        self.url = f"{scheme(self.options)}://127.0.0.1:{self.port}"

    def __enter__(self):
        self.pg = self.server or pg.Cluster(self.settings)
        try:
            if not self.server:
                self.pg.env = self.clock.env if self.clock else {}
                self.pg.start()
            ledger = pg.ledger_name(self.zone, self.demo)
            self.pg.create_database(self.database, ledger if ledger in self.pg.names else "template1")
            self.dir = self.pg.private_dir(f"stack-{self.database}")
            self.servers = [self.pg]
            if self.standby:
                self.standby = self.pg.standby()
                self.servers.append(self.standby)
                self.standby.start().wait_following()
            if ledger not in self.pg.names:
                self.migrate()
            self._aggregator_token()
            self.aggregator = Process(self._aggregator_argv(), os.path.join(self.dir, "aggregator.log"), self.wall and self.wall.env)
            self.processes.append(self.aggregator)
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        for p in reversed(self.processes):
            p.kill9()
        if self.server:
            self.pg.drop_database(self.database)
            return
        for server in getattr(self, "servers", [self.pg]):
            server.close()

    def conninfo(self, user=None):
        """Of all servers: whoever connects finds the one that takes writes. The daemon's login, or another."""
        hosts = ",".join(server.socket_dir for server in self.servers)
        user = user or (pg.DAEMON if pg.has_logins(BUILD) else pg.USER)
        return f"host={hosts} port=5432 user={user} dbname={self.database}"

    def migrate(self):
        """As the superuser. Programs from before there were logins do it when they start."""
        if not pg.has_logins(BUILD):
            return
        argv = [program("tollgate-aggregator"), "--migrate", "--database", self.conninfo(pg.USER), "--billing-zone", self.zone, "--demo" if self.demo else "--no-demo"]
        done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **(self.wall.env if self.wall else {})})
        if done.returncode != 0:
            raise AssertionError(done.stderr)

    def failover(self):
        """The first PostgreSQL is gone at this moment, and the second takes its place."""
        self.pg.crash()
        self.pg = self.standby
        self.pg.promote()

    def replica(self):
        """One more aggregator on the same database; a process with a port."""
        port = free_port()
        log = os.path.join(self.dir, f"aggregator-{port}.log")
        p = Process(self._aggregator_argv(port), log, self.wall and self.wall.env)
        p.port = port
        self.processes.append(p)
        wait_for("the replica's /readyz", lambda: answers(f"{scheme(self.options)}://127.0.0.1:{port}/readyz"), p)
        return p

    def _aggregator_argv(self, port=None):
        return [program("tollgate-aggregator"), "--listen", f"127.0.0.1:{port or self.port}",
                "--database", self.conninfo(), "--billing-zone", self.zone,
                "--demo" if self.demo else "--no-demo",
                # reads are entered when the test says so
                *([] if "--audit-interval" in self.options else ["--audit-interval", "1h"]), *self.options]  # fmt: skip

    def _aggregator_token(self):
        path = os.path.join(self.dir, "admin.token")
        done = subprocess.run([*self._aggregator_argv(), "--issue-admin-token", path], capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        with open(path, encoding="ascii") as f:
            self.tokens["admin"] = f.read().strip()

    def wait_ready(self):
        wait_for("the aggregator's /readyz", lambda: answers(self.url + "/readyz"), self.aggregator)

    def restart_aggregator(self):
        self.aggregator.start()
        self.wait_ready()

    def call(self, method, path, body=None, role="admin", headers=None):
        token = self.tokens.get(role) if role else None
        return request(method, self.url + path, body, token, headers)

    def get(self, path, role="admin"):
        reply = self.call("GET", path, role=role)
        if reply.status != 200:
            raise AssertionError(f"GET {path}: {reply.status} {reply.text()}")
        return reply

    def close_month(self, month, **body):
        """Asks for the month to be closed, waits for the end of the job, and gives it."""
        reply = self.call("POST", f"/v1/periods/{month}/close", json.dumps(body).encode())
        if reply.status == 200:  # programs from before closing was a job
            return {"state": "closed", **reply.json()}
        if reply.status != 202:
            raise AssertionError(f"POST /v1/periods/{month}/close: {reply.status} {reply.text()}")
        return self.close_ended(month)

    @contextlib.contextmanager
    def nobody_closes(self):
        """The lock of whoever closes a month is taken: what is asked for waits."""
        argv = [os.path.join(self.pg.bin, "psql"), "-X", "-q", "-At", "-d", self.pg.conninfo(self.database)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as psql:
            psql.stdin.write("select pg_advisory_lock(1953459308, 8);\n\\echo locked\n")
            psql.stdin.flush()
            while psql.stdout.readline() not in ("locked\n", ""):
                pass
            yield
            psql.communicate("\\q\n")

    def close_ended(self, month):
        def ended():
            job = self.get(f"/v1/periods/{month}/close").json()
            return job if job["state"] != "running" else None

        return wait_for(f"the close of {month} to end", ended, self.aggregator)

    def apply(self, policy, dry_run=False):
        reply = self.call("PUT", "/v1/policy" + ("?dry_run=1" if dry_run else ""), policy.encode())
        if reply.status != 200:
            raise AssertionError(f"PUT /v1/policy: {reply.status} {reply.text()}")
        return reply.json()

    def token(self, name, **what):
        """Makes a token once and remembers it under a name."""
        if name not in self.tokens:
            reply = self.call("POST", "/v1/tokens", json.dumps(what).encode())
            if reply.status != 201:
                raise AssertionError(f"POST /v1/tokens: {reply.status} {reply.text()}")
            self.tokens[name] = reply.json()["token"]
        return self.tokens[name]

    def node_token(self, node):
        path = os.path.join(self.dir, f"{node}.token")
        with open(path, "w", encoding="ascii") as f:
            f.write(self.token(f"node {node}", role="node", node=node))
        return path

    def exporter(self, node, scenario, *options, t0_ns=None, token_file=None):
        e = Exporter(self, node, scenario, ["--interval", "1s", *options], t0_ns, token_file)
        self.processes.append(e)
        return e

    def cli(self, *args, role="admin"):
        """The command line program; gives the finished process."""
        path = os.path.join(self.dir, f"{role}.cli-token")
        with open(path, "w", encoding="ascii") as f:
            f.write(self.tokens[role])
        env = {**os.environ, "TOLLGATE_URL": self.url, "TOLLGATE_TOKEN_FILE": path}
        return subprocess.run([program("tollgate"), *args], capture_output=True, text=True, env=env, timeout=WAIT_S)

    def sql(self, statement):
        return self.pg.query(statement, self.database)

    def words_of(self, message):
        """The lines of the aggregator's log with this message."""
        with open(self.aggregator.log, encoding="utf-8", errors="replace") as f:
            return [line for line in f if message in line]


def query(**params):
    return "?" + urllib.parse.urlencode(params)
