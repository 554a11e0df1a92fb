"""A TCP proxy on loopback between a program and a test's PostgreSQL, which can fail as networks do.

    with Proxy(cluster) as p:
        p.conninfo("host=... user=... dbname=...")  # for the program
        p.cut()                            # nothing passes any more, and nothing is closed
        p.heal()                           # what is new passes; what was cut stays so
        p.lose_commit("tollgate-aggregator")  # of the next one by that application_name: done, and its answer lost

A COMMIT is recognised by the word in what the program sends: as a statement, or as the name of a prepared one.
"""

import contextlib
import os
import socket
import struct
import threading

# As a statement of its own, and as the name of a prepared one that is bound to no portal's name.
COMMITS = (b"Q\0\0\0\x0bCOMMIT\0", b"\0commit\0")
READY = b"Z\0\0\0\x05"  # and one byte: I, when no transaction is open


class Link:
    """One connection of the program, and the one to the server."""

    def __init__(self, proxy, client):
        self.proxy, self.client = proxy, client
        self.server = None
        self.application = ""
        self.cut = threading.Event()
        self.losing = False
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        with contextlib.suppress(OSError):
            head = self.startup()
            if self.proxy.is_refusing() or not head:
                self.close()
                return
            self.server = socket.socket(socket.AF_UNIX)
            self.server.connect(self.proxy.server)
            self.server.sendall(head)
            threading.Thread(target=self.back, daemon=True).start()
            self.forth()

    def startup(self):
        """The first message says who it is: SSL and GSS are not asked for."""
        head = self.exactly(4)
        body = self.exactly(struct.unpack("!I", head)[0] - 4) if len(head) == 4 else b""
        words = body[4:].split(b"\0")
        pairs = dict(zip(words[::2], words[1::2]))
        self.application = pairs.get(b"application_name", b"").decode()
        return head + body

    def exactly(self, n):
        data = b""
        while len(data) < n:
            more = self.client.recv(n - len(data))
            if not more:
                return b""
            data += more
        return data

    def forth(self):
        with contextlib.suppress(OSError):
            while data := self.client.recv(1 << 16):
                if self.cut.is_set():
                    continue
                if any(c in data for c in COMMITS) and self.proxy.takes_commit(self):
                    self.losing = True
                self.server.sendall(data)
        self.close()

    def back(self):
        lost = b""
        with contextlib.suppress(OSError):
            while data := self.server.recv(1 << 16):
                if self.losing:
                    lost += data
                    if lost[-6:-1] != READY:
                        continue
                    if lost[-1:] == b"I" and b"COMMIT\0" in lost:
                        self.proxy.lost.set()
                        break
                    # it was refused before it came to that: the next one
                    data, lost, self.losing = lost, b"", False
                    self.proxy.losing = self.application
                if not self.cut.is_set():
                    self.client.sendall(data)
        self.close()

    def close(self):
        for s in (self.client, self.server):
            if s is not None:
                with contextlib.suppress(OSError):
                    s.shutdown(socket.SHUT_RDWR)
                s.close()


class Proxy(contextlib.AbstractContextManager):
    def __init__(self, cluster):
        self.server = os.path.join(cluster.socket_dir, ".s.PGSQL.5432")
        self.lock = threading.Lock()
        self.links = []
        self.cutting = False
        self.refusing = False  # True: whoever connects is turned away
        self.losing = None  # an application_name
        self.refuse_then = False
        self.lost = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def __exit__(self, *exc):
        self.close()

    def conninfo(self, direct):
        """A connection string of the cluster, by way of this."""
        rest = [word for word in direct.split() if not word.startswith(("host=", "port="))]
        return " ".join([f"host=127.0.0.1 port={self.port}", *rest, "sslmode=disable gssencmode=disable"])

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                with self.lock:
                    if self.cutting:
                        self.links.append(client)  # taken by nobody
                    else:
                        self.links.append(Link(self, client))

    def cut(self):
        with self.lock:
            self.cutting = True
            for link in self.links:
                if isinstance(link, Link):
                    link.cut.set()

    def heal(self):
        with self.lock:
            self.cutting = False

    def is_refusing(self):
        return self.refusing

    def lose_commit(self, application, refuse=False):
        """refuse: and from that moment on nobody can ask what became of it, until answer()."""
        self.lost.clear()
        self.refuse_then = refuse
        self.losing = application

    def takes_commit(self, link):
        with self.lock:
            if self.losing != link.application:
                return False
            self.losing = None
            self.refusing = self.refuse_then
            return True

    def answer(self):
        self.refusing = False

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            for link in self.links:
                link.close()
