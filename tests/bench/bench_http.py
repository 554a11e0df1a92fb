"""Serving /metrics: the processor time of the exporter's web side beside bare libmicrohttpd and beside a pushgateway.

A page of 500 KB, plain and gzip, on loopback. Saturation is wrk with 16 connections. The rhythm is that of lone scrapes on one
connection, each of a page that is new since the last; the waiting between them is cut from 15 s to 15 ms. What is counted is the
time of the server's threads from /proc, never time that passed. Both sides run in turns, scrape by scrape where they are scraped, and
the figures are medians."""

import gzip
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from tests.support.daemons import stack

BENCH = os.path.join(stack.BUILD, "bench")
ROUNDS = 3
SATURATION_S = 1
SCRAPES = 120
GATEWAY_SCRAPES = 45
PAUSE_S = 0.015
TICKS_PER_SCRAPE = 15  # one a second, a scrape every 15 s


def emit(name, unit, ours, against, theirs, goal, ratio=None):
    ratio = ours / theirs if ratio is None else ratio
    print(json.dumps({"name": name, "unit": unit, "ours": ours, "against": against, "theirs": theirs, "ratio": ratio, "goal": goal}), flush=True)


class Server:
    """A bench program that prints its port and lives as long as its input."""

    def __init__(self, *argv):
        self.child = subprocess.Popen([os.path.join(BENCH, argv[0]), *argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port, self.series = map(int, self.child.stdout.readline().split())

    def tick(self, n):
        """Publishes n ticks; the ns that rendering them took."""
        self.child.stdin.write(f"{n}\n")
        self.child.stdin.flush()
        return int(self.child.stdout.readline())

    def serving_ns(self):
        return cpu_ns(self.child.pid, but=self.child.pid)

    def stop(self):
        self.child.stdin.close()
        self.child.wait()


class Pushgateway:
    def __init__(self, directory):
        self.port = stack.free_port()
        with open(os.path.join(directory, "log"), "wb") as log:
            self.child = subprocess.Popen(["prometheus-pushgateway", f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log)
        stack.wait_for("the pushgateway", lambda: stack.answers(f"http://127.0.0.1:{self.port}/-/ready"))

    def serving_ns(self):
        return cpu_ns(self.child.pid)

    def stop(self):
        self.child.terminate()
        self.child.wait()


def cpu_ns(pid, but=None):
    """Processor time of the threads of a process."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        if int(task) != but:
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as f:
                total += int(f.read().split()[0])
    return total


def saturate(server, encoding):
    """us of the server per request, with as many requests as it takes."""
    before = server.serving_ns()
    headers = ["-H", f"Accept-Encoding: {encoding}"]
    done = subprocess.run(["wrk", "-t1", "-c16", f"-d{SATURATION_S}s", *headers, f"http://127.0.0.1:{server.port}/metrics"], capture_output=True, text=True, check=True)
    spent = server.serving_ns() - before
    if "Non-2xx" in done.stdout:
        raise RuntimeError(done.stdout)
    requests = int(next(line for line in done.stdout.splitlines() if "requests in" in line).split()[0])
    return spent / requests / 1000


class Scraper:
    """One that keeps its connection open."""

    def __init__(self, server, encoding, before_each=None):
        self.server, self.headers, self.before_each = server, {"Accept-Encoding": encoding}, before_each
        self.client = http.client.HTTPConnection("127.0.0.1", server.port)

    def scrape(self):
        """us of the server for one scrape after a rest."""
        if self.before_each:
            self.before_each()
        time.sleep(PAUSE_S)
        began = self.server.serving_ns()
        self.client.request("GET", "/metrics", headers=self.headers)
        self.body = self.client.getresponse().read()
        time.sleep(PAUSE_S)  # the server may end its work after the last byte
        return (self.server.serving_ns() - began) / 1000


def page_of(server, encoding):
    scraper = Scraper(server, encoding)
    scraper.scrape()
    scraper.client.close()
    return scraper.body


def scraped(ours, theirs, scrapes=SCRAPES):
    """Medians of scrapes of both, one after the other, so that both meet the same neighbours, and the medians' ratio."""
    for s in (ours, theirs) * 3:
        s.scrape()
    pairs = [(ours.scrape(), theirs.scrape()) for _ in range(scrapes)]
    mine, other = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    ours.client.close()
    theirs.client.close()
    return mine, other, mine / other


def in_turns(ours, theirs, rounds=ROUNDS):
    """Medians of both, and of the ratio of neighbours."""
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return (statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs), statistics.median(p[0] / p[1] for p in pairs))


def against_mhd(page, directory, size):
    plain = os.path.join(directory, "page")
    for encoding in ("identity", "gzip"):
        with open(plain, "wb") as f:
            f.write(page_of(page, encoding))
        mhd = Server("serve_mhd", plain, *(["gzip"] if encoding == "gzip" else []))
        name = f"{size} KB {'gzip' if encoding == 'gzip' else 'plain'}"
        against = "libmicrohttpd, static buffer"
        # the one compression of a page is counted beside the pushgateway, not here: the page is compressed before
        renew = (lambda: page.tick(1)) if encoding == "identity" else None
        ours, theirs, ratio = in_turns(lambda e=encoding: saturate(page, e), lambda e=encoding, m=mhd: saturate(m, e))
        emit(f"serve {name}, saturated", "us/request", ours, against, theirs, 1.2, ratio)
        ours, theirs, ratio = scraped(Scraper(page, encoding, renew), Scraper(mhd, encoding))
        emit(f"serve {name}, scraped", "us/request", ours, against, theirs, 1.2, ratio)
        mhd.stop()


def series_of(text):
    return sum(1 for line in text.splitlines() if line and not line.startswith(b"#"))


def against_pushgateway(page, directory):
    gateway = Pushgateway(directory)
    text = page_of(page, "identity")
    reply = stack.request("PUT", f"http://127.0.0.1:{gateway.port}/metrics/job/bench", text)
    if reply.status not in (200, 202):
        raise RuntimeError(reply.text())
    for encoding, goal in (("identity", 1 / 30), ("gzip", 1 / 5)):
        rendering = []
        mine = Scraper(page, encoding, lambda r=rendering: r.append(page.tick(1)))
        ours, theirs, _ = scraped(mine, Scraper(gateway, encoding), GATEWAY_SCRAPES)
        body = page_of(gateway, encoding)
        held = series_of(gzip.decompress(body) if encoding == "gzip" else body)
        serve, render, peer = ours * 1000 / page.series, statistics.median(rendering) / page.series, theirs * 1000 / held
        kind = "gzip" if encoding == "gzip" else "plain"
        emit(f"scrape {kind}, rendered once", "ns/series", serve + render, "pushgateway, same series", peer, goal)
        if encoding == "identity":
            emit(f"scrape {kind}, {TICKS_PER_SCRAPE} renders", "ns/series", serve + render * TICKS_PER_SCRAPE, "pushgateway, same series", peer, None)
    gateway.stop()


def main():
    page = Server("serve_page", "8", "39", str(stack.free_port()))
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as directory:
        size = round(len(page_of(page, "identity")) / 1000)
        against_mhd(page, directory, size)
        against_pushgateway(page, directory)
    page.stop()


if __name__ == "__main__":
    main()
