"""The aggregator's doors: memory of 5,000 connections that stay open, and what looking a token up costs a request."""

import os
import resource
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from tests.bench.bench_http import Server, emit, in_turns
from tests.support.daemons import stack

CONNECTIONS = 5000
RATE_S = 2


def resident_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(next(line for line in f if line.startswith("VmRSS")).split()[1]) * 1024


def answer_of(s):
    """Reads one whole answer with Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += s.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    while len(body) < length:
        body += s.recv(65536)
    return head


def bytes_per_connection(pid, port):
    """Each connection makes a request and stays open."""
    before, sockets = resident_bytes(pid), []
    for _ in range(CONNECTIONS):
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: bench\r\n\r\n")
        if not answer_of(s).startswith(b"HTTP/1.1 200"):
            raise RuntimeError("not every connection was answered")
        sockets.append(s)
    grown = resident_bytes(pid) - before
    for s in sockets:
        s.close()
    return grown / CONNECTIONS


def connections(s):
    with tempfile.NamedTemporaryFile() as page:
        page.write(b"ok\n")
        page.flush()
        mhd = Server("serve_mhd", page.name)
        ours, theirs = bytes_per_connection(s.aggregator.child.pid, s.port), bytes_per_connection(mhd.child.pid, mhd.port)
        mhd.stop()
    emit(f"{CONNECTIONS:,} connections", "KiB/connection", ours / 1024, "libmicrohttpd alone", theirs / 1024, 1.2)


def us_per_request(url, token):
    """Of the clock, with eight requests under way at any time."""
    headers = ["-H", f"Authorization: Bearer {token}"] if token else []
    done = subprocess.run(["wrk", "-t1", "-c8", f"-d{RATE_S}s", *headers, url], capture_output=True, text=True, check=True)
    if "Non-2xx" in done.stdout:
        raise RuntimeError(done.stdout)
    return 1e6 / float(next(line for line in done.stdout.splitlines() if line.startswith("Requests/sec")).split()[1])


def token_check(s):
    """/v1/openapi.json is made by a worker and asks the database nothing; a token makes it one small thing."""
    url = s.url + "/v1/openapi.json"
    ours, theirs, ratio = in_turns(lambda: us_per_request(url, s.tokens["admin"]), lambda: us_per_request(url, None), 5)
    emit("request with a token", "us/request", ours, "the same without", theirs, 2, ratio)


def main():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < CONNECTIONS + 200:
        raise RuntimeError(f"needs {CONNECTIONS + 200} open files, the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with stack.Stack(options=["--connections", "8000", "--idle-timeout", "5m"]) as s:
        connections(s)
        token_check(s)


if __name__ == "__main__":
    main()
