"""A kubelet's GET /pods over HTTP on loopback.

    with PodList(token="secret") as k:
        k.pods = [pod("team-a", "train-0", uid, team="ml")]
        ... f"http://127.0.0.1:{k.port}" ...

A pod has what a kubelet says of it and the exporter does not look at. What it does wrong is set by attributes."""

import http.server
import json
import threading


def pod(namespace, name, uid, **labels):
    """`__` in a label's name stands for what an identifier cannot hold: `x_io__app` is x.io/app."""
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": "2026-11-16T12:00:00Z",
                     "labels": {k.replace("_io__", ".io/"): v for k, v in labels.items()},
                     "annotations": {"kubernetes.io/config.seen": "2026-11-16T12:00:00Z", "note": 'a "]}" in a text'}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "env": [{"name": "SECRET", "value": "hunter2"}]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }  # fmt: skip


class PodList:
    def __init__(self, token=None):
        self.pods, self.token = [], token
        self.status = 200
        self.raw = None  # bytes instead of the list
        self.hangs = False  # from the next question on
        self.asked = 0
        self.released = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked += 1
                if outer.hangs:
                    outer.released.wait(60)
                status = outer.status
                if outer.token and self.headers.get("Authorization") != f"Bearer {outer.token}":
                    status = 401
                body = outer.raw if outer.raw is not None else json.dumps(
                    {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": outer.pods}).encode()  # fmt: skip
                self.send_response(status if self.path == "/pods" else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    self.wfile.write(body)
                except ConnectionError:
                    pass

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
