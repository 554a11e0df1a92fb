"""A door in front of several servers that leads to another one each time, and sometimes shuts in the middle of a sentence.

    with Target([9402, 9502], random.Random(seed), cut=0.1) as t:
        ... http://127.0.0.1:{t.port} ...

Connections are whole or cut: after some bytes of the request, or of the reply, so that the asker does not learn what became of it.
"""

import contextlib
import random
import socket
import threading

PIECE = 65536


class Target(contextlib.AbstractContextManager):
    def __init__(self, ports, rng, cut=0.0):
        self.ports, self.rng, self.cut = list(ports), random.Random(rng.randrange(1 << 32)), cut
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.open = set()
        self.cuts = 0
        self.thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()
        with self.lock:
            for s in list(self.open):
                self._shut(s)

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                port = self.rng.choice(self.ports)
                # how many bytes may pass, up or down; None: any number
                limits = [None, None]
                if self.rng.random() < self.cut:
                    limits[self.rng.randrange(2)] = self.rng.choice([0, 1, 60, 200, 2000])
            self._connect(client, port, limits)

    def _connect(self, client, port, limits):
        try:
            server = socket.create_connection(("127.0.0.1", port))
        except OSError:
            client.close()
            return
        with self.lock:
            self.open |= {client, server}
        for a, b, limit in ((client, server, limits[0]), (server, client, limits[1])):
            threading.Thread(target=self._pump, args=(a, b, limit), daemon=True).start()

    def _pump(self, source, sink, limit):
        """What comes from one end goes to the other; the end of either is the end of both."""
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                if limit is not None and len(data) >= limit:
                    sink.sendall(data[:limit])
                    with self.lock:
                        self.cuts += 1
                    break
                sink.sendall(data)
                limit = None if limit is None else limit - len(data)
        for s in (source, sink):
            self._shut(s)
        with self.lock:
            self.open -= {source, sink}

    @staticmethod
    def _shut(s):
        with contextlib.suppress(OSError):
            s.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            s.close()
