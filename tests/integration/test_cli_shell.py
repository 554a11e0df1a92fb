"""What the command line's table gives to shells and to man: pages without a complaint, completion in a real bash and zsh, and a
bar on a terminal only."""

# also: san

import http.server
import os
import pty
import re
import select
import shutil
import subprocess
import tempfile
import threading
import time
import unittest

from tests.support.daemons.stack import WAIT_S, program

PAGES = {"tollgate.1": ("tollgate", "--man"), "tollgate-exporter.8": ("tollgate-exporter", "--print-man"),
         "tollgate-aggregator.8": ("tollgate-aggregator", "--print-man")}  # fmt: skip


def says(name, *args):
    return subprocess.run([program(name), *args], capture_output=True, text=True, check=True).stdout


def missing(tool):
    return unittest.skipUnless(shutil.which(tool), f"{tool} is not installed; make deps installs it")


class ManualPages(unittest.TestCase):
    def setUp(self):
        self.dir = self.enterContext(tempfile.TemporaryDirectory())

    def page(self, name):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(says(*PAGES[name]))
        return path

    @missing("mandoc")
    def test_mandoc_has_nothing_to_say_about_a_page(self):
        for name in PAGES:
            with self.subTest(page=name):
                done = subprocess.run(["mandoc", "-T", "lint", self.page(name)], capture_output=True, text=True)
                self.assertEqual((done.stdout, done.stderr), ("", ""))

    @missing("mandoc")
    def test_a_page_names_every_option_that_help_names(self):
        for name, (binary, _) in PAGES.items():
            text = subprocess.run(["mandoc", "-T", "ascii", self.page(name)], capture_output=True, text=True, check=True).stdout
            text = re.sub(".\b", "", text)
            commands = re.findall(r"^  ([a-z][a-z -]*?)  ", says(binary, "--help"), re.M) if binary == "tollgate" else []
            helps = [says(binary, "--help")] + [says(binary, *c.split(), "--help") for c in commands]
            options = {o for h in helps for o in re.findall(r"--(?:\[no-\])?([a-z][a-z-]+)", h)}
            self.assertGreater(len(options), 10)
            for option in options:
                with self.subTest(page=name, option=option):
                    self.assertRegex(text, rf"--(\[no-\])?{option}\b")
            for command in commands:
                self.assertIn(f"tollgate {command}", text)

    def test_exit_codes_are_documented(self):
        for text in (says("tollgate", "--help"), says("tollgate", "usage", "--help"), says("tollgate", "--man")):
            for words in ("wrong use", "cannot be reached"):
                self.assertIn(words, text.lower())


class Bash(unittest.TestCase):
    def complete(self, *words):
        """What a real bash offers after these words; the last one is being typed."""
        script = f"""
        . <("$TOLLGATE" completion bash)
        [[ $(complete -p tollgate) == 'complete -F _tollgate tollgate' ]] || exit 9
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${{#COMP_LINE}}
        _tollgate tollgate "${{@: -1}}" "${{@: -2:1}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(["bash", "--norc", "-c", script, "bash", "tollgate", *words], capture_output=True, text=True,
                              env={**os.environ, "TOLLGATE": program("tollgate")})  # fmt: skip
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_the_script_is_sound(self):
        done = subprocess.run(["bash", "-n"], input=says("tollgate", "completion", "bash"), capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_commands_options_and_values_are_offered(self):
        with tempfile.TemporaryDirectory() as d:
            open(os.path.join(d, "policy.yaml"), "w").close()
            os.mkdir(os.path.join(d, "pods"))
            for words, offered in (
                (["re"], ["reconcile", "refunds", "report"]),
                (["token", ""], ["create", "list", "revoke", "whoami"]),
                (["node", "j"], ["join-token", "join-tokens"]),
                (["node", "join-tokens", "--status", "u"], ["used"]),
                (["get", ""], ["tenants", "workspaces", "nodes", "status", "members", "history", "periods", "policy", "leases", "decisions", "reclaims", "sla"]),
                (["report", "p"], ["previous"]),
                (["report", "--l"], ["--last-month"]),
                (["usage", "--out", "j"], ["json"]),
                (["usage", "-o", ""], ["table", "json", "csv", "yaml"]),
                (["usage", "--out", "=", "c"], ["csv"]),
                (["usage", "--by", "gpu"], ["gpu_model", "gpu"]),
                (["usage", "--by", "node,st"], ["node,state"]),
                (["token", "create", "--role", "t"], ["tenant-admin"]),
                (["token", "list", "--sta"], ["--status"]),
                (["completion", ""], ["bash", "zsh"]),
                (["usage", "--since", ""], []),
                (["dance", ""], []),
                (["apply", "-f", d + "/p"], [d + "/policy.yaml", d + "/pods"]),
                (["doctor", "--root", d + "/p"], [d + "/pods"]),
            ):
                with self.subTest(words=words):
                    self.assertEqual(sorted(self.complete(*words)), sorted(offered))

    def test_every_command_of_the_help_is_offered_with_all_its_options(self):
        commands = re.findall(r"^  ([a-z][a-z -]*?)  ", says("tollgate", "--help"), re.M)
        first = self.complete("")
        for command in commands:
            with self.subTest(command=command):
                words = command.split()
                self.assertIn(words[0], first)
                options = re.findall(r"^ .*?(--[a-z-]+)", says("tollgate", *words, "--help"), re.M)
                self.assertTrue(set(options) <= set(self.complete(*words, "--")), options)


@missing("zsh")
class Zsh(unittest.TestCase):
    """A real zsh on a terminal: what a Tab makes of the line."""

    def setUp(self):
        self.dir = self.enterContext(tempfile.TemporaryDirectory())
        with open(os.path.join(self.dir, "_tollgate"), "w", encoding="utf-8") as f:
            f.write(says("tollgate", "completion", "zsh"))

    def test_the_script_is_sound(self):
        done = subprocess.run(["zsh", "-n", os.path.join(self.dir, "_tollgate")], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def typed(self, line):
        """Types the line and Tab; the widget that follows writes what the line has become to a file."""
        out = os.path.join(self.dir, "line")
        with open(os.path.join(self.dir, ".zshrc"), "w", encoding="utf-8") as f:
            f.write(f"fpath=({self.dir} $fpath); autoload -Uz compinit; compinit -u -D\n"
                    f"show() {{ print -rn -- $BUFFER >{out}.new; mv {out}.new {out}; exit }}; zle -N show; bindkey '^O' show\n"
                    "PS1=READY\n")  # fmt: skip
        pid, fd = pty.fork()
        if pid == 0:
            os.execvpe("zsh", ["zsh", "-i"], {**os.environ, "ZDOTDIR": self.dir, "TERM": "xterm"})
        try:
            seen, sent, deadline = b"", False, time.monotonic() + WAIT_S
            while not os.path.exists(out) and time.monotonic() < deadline:
                if select.select([fd], [], [], 0.1)[0]:
                    try:
                        seen += os.read(fd, 65536)
                    except OSError:
                        break
                if not sent and b"READY" in seen:
                    os.write(fd, line.encode() + b"\t\x0f")
                    sent = True
            with open(out, encoding="utf-8") as f:
                return f.read()
        finally:
            os.close(fd)
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            if os.path.exists(out):
                os.unlink(out)

    def test_commands_options_and_values_are_completed(self):
        for line, becomes in (
            ("tollgate repo", "tollgate report "),
            ("tollgate token cr", "tollgate token create "),
            ("tollgate usage --last", "tollgate usage --last-month "),
            ("tollgate token create --role=sch", "tollgate token create --role=scheduler "),
            ("tollgate get work", "tollgate get workspaces "),
            ("tollgate usage -o js", "tollgate usage -o json "),
        ):
            with self.subTest(line=line):
                self.assertEqual(self.typed(line), becomes)


class Slow(http.server.BaseHTTPRequestHandler):
    """A report that takes its time: silence, then half of it, then the rest."""

    def do_GET(self):
        body = b"period_start\r\n" + b"x" * (2 << 20)
        self.server.go.wait(60)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        self.server.more.wait(60)
        self.wfile.write(body[len(body) // 2 :])

    def log_message(self, *args):
        pass


class Progress(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
        self.server.go, self.server.more = threading.Event(), threading.Event()
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.argv = [program("tollgate"), "report", "2026-10", "--url", f"http://127.0.0.1:{self.server.server_address[1]}"]

    def test_a_terminal_sees_how_far_a_long_download_is(self):
        with tempfile.TemporaryFile() as out:
            main, other = pty.openpty()
            child = subprocess.Popen(self.argv, stdout=out, stderr=other, stdin=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"})
            os.close(other)
            shown, deadline = b"", time.monotonic() + WAIT_S
            while time.monotonic() < deadline:
                if select.select([main], [], [], 0.1)[0]:
                    try:
                        shown += os.read(main, 65536)
                    except OSError:  # the child has ended
                        break
                if b"waiting for the aggregator" in shown:
                    self.server.go.set()
                if b"] 50% of 2.0 MiB" in shown:
                    self.server.more.set()
            self.assertEqual(child.wait(), 0, shown)
            os.close(main)
            self.assertRegex(shown, rb"\[#+\.+\] 50% of 2\.0 MiB, \d+ s")
            self.assertTrue(shown.endswith(b"\r\x1b[K"), "the line is taken away at the end")
            self.assertEqual(out.seek(0, os.SEEK_END), len(b"period_start\r\n") + (2 << 20))

    def test_a_pipe_sees_nothing(self):
        child = subprocess.Popen(self.argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TERM": "xterm"})
        time.sleep(2.2)  # longer than the second after which a terminal would see something
        self.server.go.set()
        self.server.more.set()
        out, err = child.communicate()
        self.assertEqual((child.returncode, err), (0, b""))
        self.assertNotIn(b"\x1b", out)

    def test_a_terminal_that_can_nothing_sees_nothing(self):
        main, other = pty.openpty()
        child = subprocess.Popen(self.argv, stdout=subprocess.DEVNULL, stderr=other, env={**os.environ, "TERM": "dumb"})
        os.close(other)
        time.sleep(2.2)
        self.server.go.set()
        self.server.more.set()
        self.assertEqual(child.wait(), 0)
        try:
            seen = os.read(main, 1000)
        except OSError:
            seen = b""
        os.close(main)
        self.assertEqual(seen, b"")


if __name__ == "__main__":
    unittest.main()
