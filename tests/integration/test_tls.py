"""Both daemons over TLS: the whole way of a batch, client certificates, and new certificates while they serve."""

# instead: san

import http.client
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import unittest

from tests.support.daemons import stack

SCENARIO = {
    "name": "tls",
    "gpus": [{"model": "NVIDIA H100 80GB HBM3", "memory_mib": 81559}],
    "processes": [{"pid": 4001, "gpu": 0, "sm": 80, "memory_mib": 1024, "pod": {"namespace": "acme", "name": "a"}}],
}
POLICY = """
version: 1
cluster: test
tenants:
  - {name: acme, workspaces: [{name: training, rules: [{namespace: acme}]}]}
nodes: [{name: n1, shared: true}]
prices: {version: "1", currency: EUR, items: [{price: "1.00"}]}
"""


def subject_of(port, ca, **client):
    """The common name that a server shows to a new connection."""
    context = ssl.create_default_context(cafile=ca)
    if client:
        context.load_cert_chain(**client)
    with stack.socket.create_connection(("127.0.0.1", port), timeout=stack.WAIT_S) as s:
        with context.wrap_socket(s, server_hostname="localhost") as tls:
            return dict(pair for group in tls.getpeercert()["subject"] for pair in group)["commonName"]


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = cls.enterClassContext(tempfile.TemporaryDirectory())
        subprocess.run([stack.program("tests/certs_tool"), cls.dir], check=True)
        os.environ["SSL_CERT_FILE"] = cls.path("ca.pem")
        cls.addClassCleanup(os.environ.pop, "SSL_CERT_FILE")
        for place in ("aggregator", "exporter"):
            cls.install("server", place)
        cls.stack = cls.enterClassContext(
            stack.Stack(options=[*cls.tls_options("aggregator"), "--tls-client-ca", cls.path("ca.pem"), "--access-log"])
        )
        cls.stack.apply(POLICY)
        cls.exporter = cls.stack.exporter(
            "n1", SCENARIO, *cls.tls_options("exporter"), "--access-log",
            "--ca-file", cls.path("ca.pem"), "--client-cert", cls.path("client.pem"), "--client-key", cls.path("client.key"),
        )  # fmt: skip

    @classmethod
    def path(cls, name):
        return os.path.join(cls.dir, name)

    @classmethod
    def tls_options(cls, place):
        return ["--tls-cert", cls.path(f"{place}-live.pem"), "--tls-key", cls.path(f"{place}-live.key")]

    @classmethod
    def install(cls, name, place, endings=("pem", "key")):
        for ending in endings:
            made = cls.path("fresh")
            shutil.copy(cls.path(f"{name}.{ending}"), made)
            os.replace(made, cls.path(f"{place}-live.{ending}"))

    def log(self, process):
        with open(process.log, encoding="utf-8") as f:
            return f.read()

    def shows(self, port, name):
        return subject_of(port, self.path("ca.pem")) == name

    def test_batches_reach_the_ledger_and_the_command_line_reads_it(self):
        stack.wait_for("the first batch", lambda: self.stack.sql("select 1 from tollgate.ingest_batch limit 1"), self.exporter)
        stack.wait_for("the push in the log, with its client", lambda: "client=\"CN=alice,O=Tollgate\"" in self.log(self.stack.aggregator))
        os.environ["TOLLGATE_CA_FILE"] = self.path("ca.pem")
        self.addCleanup(os.environ.pop, "TOLLGATE_CA_FILE")
        done = self.stack.cli("usage")
        self.assertEqual(done.returncode, 0, done.stderr)
        shown = ("--client-cert", self.path("client.pem"), "--client-key", self.path("client.key"))
        self.assertEqual(self.stack.cli("usage", *shown).returncode, 0)
        stranger = ("--client-cert", self.path("stranger.pem"), "--client-key", self.path("stranger.key"))
        self.assertEqual(self.stack.cli("usage", *stranger).returncode, 3)
        os.environ["TOLLGATE_CA_FILE"] = self.path("other-ca.pem")
        self.assertEqual(self.stack.cli("usage").returncode, 3)

    def test_a_client_with_a_wrong_certificate_is_refused_by_both(self):
        for port, asks in ((self.stack.port, True), (self.exporter.port, False)):
            stranger = {"certfile": self.path("stranger.pem"), "keyfile": self.path("stranger.key")}
            context = ssl.create_default_context(cafile=self.path("ca.pem"))
            context.load_cert_chain(**stranger)
            c = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=stack.WAIT_S)
            self.addCleanup(c.close)
            try:
                c.request("GET", "/healthz")
                refused = c.getresponse().status != 200
            except (OSError, http.client.HTTPException):
                refused = True
            # the exporter has no CA of clients here, and does not ask for what it cannot judge
            self.assertEqual(refused, asks)

    def test_new_certificates_are_used_and_open_connections_go_on(self):
        for process, port, place in (
            (self.stack.aggregator, self.stack.port, "aggregator"),
            (self.exporter, self.exporter.port, "exporter"),
        ):
            with self.subTest(place=place):
                open_one = http.client.HTTPSConnection("127.0.0.1", port, timeout=stack.WAIT_S)
                self.addCleanup(open_one.close)

                def asks(connection=open_one):
                    connection.request("GET", "/healthz")
                    reply = connection.getresponse()
                    return reply.read() and reply.status

                self.assertEqual(asks(), 200)
                self.install("renewed", place)
                process.child.send_signal(signal.SIGHUP)
                stack.wait_for("the new certificate", lambda p=port: self.shows(p, "renewed"), process)
                self.assertEqual(asks(), 200)
                # a key that does not fit: told, and nothing changes
                self.install("server", place, endings=("pem",))
                process.child.send_signal(signal.SIGHUP)
                stack.wait_for("the refusal", lambda p=process: "new TLS files refused" in self.log(p), process)
                self.assertTrue(self.shows(port, "renewed"))
                # the key comes too; nobody sends a signal
                self.install("server", place, endings=("key",))
                stack.wait_for("the change to be noticed", lambda p=port: self.shows(p, "server"), process)
                self.assertEqual(asks(), 200)

    def test_plain_http_is_not_answered(self):
        c = http.client.HTTPConnection("127.0.0.1", self.stack.port, timeout=stack.WAIT_S)
        self.addCleanup(c.close)
        with self.assertRaises((OSError, http.client.HTTPException)):
            c.request("GET", "/healthz")
            c.getresponse()

    def test_a_request_is_found_in_the_log_by_the_id_its_client_gave(self):
        for process, url in ((self.stack.aggregator, self.stack.url), (self.exporter, self.exporter.url)):
            reply = stack.request("GET", url + "/healthz", headers={"X-Request-Id": "walk-4711"})
            self.assertEqual(reply.headers["X-Request-Id"], "walk-4711")
            stack.wait_for("the line", lambda p=process: "id=walk-4711 from=127.0.0.1" in self.log(p), process)

    def test_an_exporter_that_cannot_verify_its_aggregator_keeps_its_batches(self):
        e = self.stack.exporter("n2", SCENARIO, "--ca-file", self.path("other-ca.pem"))
        stack.wait_for("the failure to be told", lambda: "push fails, batches stay in the spool" in self.log(e), e)
        self.assertEqual(self.stack.sql("select count(*) from tollgate.stream s join tollgate.node n on n.id = s.node_id where n.name = 'n2'"), [["0"]])
        e.stop()

    def test_wrong_tls_options_are_refused_at_once(self):
        for program in ("tollgate-aggregator", "tollgate-exporter"):
            for options, text in (
                (["--tls-cert", "x"], "tls-key"),
                (["--tls-client-ca", "x"], "tls-client-ca"),
                (["--tls-cert", "x", "--tls-key", "y", "--tls-client-required"], "tls-client-required"),
            ):
                done = subprocess.run([stack.program(program), "-n", *options], capture_output=True, text=True)
                self.assertEqual((done.returncode, text in done.stderr), (2, True), done.stderr)


class WithoutDatabase(unittest.TestCase):
    def test_own_metrics_and_liveness_are_answered_when_the_database_is_gone(self):
        with stack.Stack(options=["--connect-timeout", "1s"]) as s:
            s.pg.stop()
            self.assertEqual(s.call("GET", "/healthz", role=None).status, 200)
            reply = s.call("GET", "/metrics", role=None)
            self.assertEqual(reply.status, 200)
            self.assertIn("tollgate_aggregator_requests_total", reply.text())
            self.assertEqual(s.call("GET", "/metrics").status, 503)


if __name__ == "__main__":
    unittest.main()
