"""A private Prometheus for tests: its own directory, loopback, stopped by process id."""

import json
import os
import shutil

from tests.support.daemons import stack


class Prometheus(stack.Process):
    """Scrapes once a second. targets: {job: [address, ...]}; tokens: {job: bearer token}; more: {job: further settings}."""

    def __init__(self, directory, targets, tokens=None, rules=(), more=None):
        self.port = stack.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        os.makedirs(directory, exist_ok=True)
        jobs = []
        for job, addresses in targets.items():
            entry = {"job_name": job, "static_configs": [{"targets": addresses}]}
            if job in (tokens or {}):
                entry["authorization"] = {"credentials": tokens[job]}
            entry.update((more or {}).get(job, {}))
            jobs.append(entry)
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": list(rules), "scrape_configs": jobs}
        path = os.path.join(directory, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        program = shutil.which("prometheus")
        if program is None:
            raise RuntimeError("Prometheus is not installed (Debian: prometheus)")
        super().__init__(
            [program, f"--config.file={path}", f"--storage.tsdb.path={directory}/data",
             f"--web.listen-address=127.0.0.1:{self.port}"],  # fmt: skip
            os.path.join(directory, "log"),
        )
        stack.wait_for("Prometheus to be ready", lambda: stack.answers(self.url + "/-/ready"), self)

    def query(self, expression):
        reply = stack.request("GET", self.url + "/api/v1/query" + stack.query(query=expression))
        if reply.status != 200:
            raise AssertionError(f"{expression}: {reply.text()}")
        return reply.json()["data"]["result"]
