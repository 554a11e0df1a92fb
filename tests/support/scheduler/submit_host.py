"""job_submit.lua outside of slurmctld, and a stand-in for the agent on its socket.

    with StandIn(path) as agent, SubmitHost(path) as host:
        agent.answer = b"hold\\tit%20waits\\n"
        done = host.submit(tres_per_job="gres:gpu:2")     # done["code"], done["said"], done["set_priority"]
        agent.asked                                       # [("submit", {"tres_per_job": "gres:gpu:2", ...})]
"""

import contextlib
import os
import re
import socket
import subprocess
import threading
import urllib.parse

from tests.support.daemons.stack import ROOT

HOST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "job_submit_host.lua")
SCRIPT = os.path.join(ROOT, "hooks/slurm/job_submit.lua")


class StandIn(contextlib.AbstractContextManager):
    """Answers every question with `answer`: bytes, or a function of the connection and the question that writes what it likes."""

    def __init__(self, path, answer=b"pass\n"):
        self.path, self.answer, self.asked, self.raw = path, answer, [], []
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(path)
        os.chmod(path, 0o666)
        self.server.listen(64)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def __exit__(self, *exc):
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join()
        os.unlink(self.path)

    def _serve(self):
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            with connection:
                line = b""
                while not line.endswith(b"\n") and (more := connection.recv(65536)):
                    line += more
                self.raw.append(line)
                verb, *fields = line.decode("ascii").rstrip("\n").split("\t")
                pairs = (f.split("=", 1) for f in fields)
                self.asked.append((verb, {name: urllib.parse.unquote(value, errors="surrogateescape") for name, value in pairs}))
                with contextlib.suppress(OSError):  # who asked does not wait for ever
                    if callable(self.answer):
                        self.answer(connection, *self.asked[-1])
                    else:
                        connection.sendall(self.answer)

    def last(self):
        return self.asked[-1][1]


def lua(value):
    """A Python value as Lua writes it."""
    if value is None or isinstance(value, bool):
        return {None: "nil", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ",".join(f"[{lua(k)}]={lua(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (int, float)):
        return repr(value)
    raw = value.encode("utf-8", "surrogateescape")
    return '"' + "".join(f"\\{b:03d}" for b in raw) + '"'


def python(text):
    if text.startswith('"'):
        return re.sub(r"\\(.)", lambda m: {"n": "\n", "r": "\r", "0": "\0"}.get(m[1], m[1]), text[1:-1])
    return float(text) if "." in text or "e" in text else int(text)


class SubmitHost(contextlib.AbstractContextManager):
    def __init__(self, socket_path, script=SCRIPT, **options):
        argv = ["lua5.1", HOST, script, lua({"socket": socket_path, **options})]
        self.child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="surrogateescape")

    def __exit__(self, *exc):
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.close()
        self.child.wait()
        self.child.stdout.close()
        self.child.stderr.close()

    def call(self, expression):
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.write(expression + "\n")
            self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise AssertionError(f"job_submit.lua failed: {self.child.stderr.read()}")
        return {name: python(value) for name, value in (f.split("=", 1) for f in line.rstrip("\n").split("\t"))}

    def submit(self, uid=1000, **fields):
        return self.call(f"submit({lua(fields)}, {uid})")

    def modify(self, record, uid=1000, **fields):
        return self.call(f"modify({lua(fields)}, {lua(record)}, {uid})")
