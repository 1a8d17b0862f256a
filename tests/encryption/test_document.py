"""The set-up of docs/ENCRYPTION.md, line by line as it is written there, beside a relay with its inline exit."""

import re
import shlex
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, says_event
from loadtests.harness.tree import ROOT

MODULES = {"tunnel": "tunnel_client", "tunnel-relay": "tunnel_servlet"}
TIMEOUT_S = 120
CONNECTIONS = 4


def blocks() -> list[list[str]]:
    """Return the lines of the blocks in the section on the set-up: the rule, and the commands."""
    section = (ROOT / "docs" / "ENCRYPTION.md").read_text().partition("## Set it up")[2].partition("\n## ")[0]
    return [block.splitlines() for block in re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)]


class Upper(StreamRequestHandler):
    """The target: answers a line in capitals."""

    def handle(self) -> None:
        self.wfile.write(self.rfile.readline().upper())


@contextmanager
def target() -> Iterator[int]:
    with ThreadingTCPServer(("127.0.0.1", 0), Upper) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


class Machine:
    """A folder and an empty home in which the commands run, with other hosts and ports than the document's."""

    def __init__(self, folder: Path, runtime: str, changes: dict[str, str]) -> None:
        self.folder = folder
        (folder / "home").mkdir()
        gone = ("TUNNEL_RELAY", "TUNNEL_TOKEN", "XDG_CONFIG_HOME", "http_proxy", "https_proxy")
        self.environment = {"HOME": str(folder / "home"), "XDG_RUNTIME_DIR": runtime, **dict.fromkeys(gone, "")}
        self.changes = changes

    def process(self, line: str, ready: Callable[[str], bool] | None = None) -> Process:
        for theirs, ours in self.changes.items():
            line = line.replace(theirs, ours)
        program, *words = shlex.split(line, comments=True)
        command = [sys.executable, "-m", MODULES[program], *words]
        return Process(command, ready=ready, environment=self.environment, directory=self.folder)

    def run(self, line: str) -> str:
        """Run a command to its end, and return its output."""
        with self.process(line) as command:
            assert command.wait(TIMEOUT_S) == 0, f"{line}: {command.output}"
            return command.output


def rules(config: str, rule: list[str], **lines: str) -> str:
    """Return the configuration with these lines in place of its own, and with the table of the document."""
    for name, line in lines.items():
        config = re.sub(rf"^{name} = .*$", f"{name} = {line}", config, count=1, flags=re.MULTILINE)
    return "\n".join([config, *rule, ""])


def said(port: int) -> bytes:
    with closing(socket.create_connection(("127.0.0.1", port), TIMEOUT_S)) as sock:
        sock.sendall(b"encrypted?\n")
        return sock.makefile("rb").read()


def test_the_set_up_works_as_it_is_written_and_every_connection_is_encrypted(tmp_path: Path) -> None:
    rule, commands, *_ = blocks()
    assert [line.split()[1] for line in commands] == ["user", "exit", "exit", "peers", "forward"]
    add, show, serve_exit, trust, forward = commands
    with ExitStack() as stack:
        runtime = stack.enter_context(tempfile.TemporaryDirectory(prefix="e"))  # a path short enough for sockets
        port = stack.enter_context(target())
        relay, local = (stack.enter_context(hold_port()) for _ in range(2))
        url, there = f"http://127.0.0.1:{relay}", f"127.0.0.1:{port}"
        changes = {"https://relay.example": url, "forward 5432:": f"forward {local}:", "db.internal:5432": there}
        machine = Machine(tmp_path, runtime, changes)
        machine.run("tunnel-relay init relay.toml --token-file token")
        config = tmp_path / "relay.toml"
        assert '\nexit = "inline"\n' in config.read_text()
        places = {"listen": f'["127.0.0.1:{relay}"]', "admin": '"127.0.0.1:0"', "connect": f'["{there}"]'}
        config.write_text(rules(config.read_text(), rule, **places))
        machine.run(add)
        serving = stack.enter_context(machine.process("tunnel-relay serve", says_event("listening")))
        machine.run(f"tunnel login {url} --token-file token")
        (key,) = re.findall(r"SHA256:\S+", machine.run(show))
        exit_ = stack.enter_context(machine.process(serve_exit, lambda line: "key SHA256:" in line))
        assert key in exit_.output
        machine.run(trust.replace("SHA256:hhzW5G...", key))
        stack.enter_context(machine.process(forward, says_event("listening")))
        # The client knows a key, so a connection that the inline exit took would fail.
        assert [said(local) for _ in range(CONNECTIONS)] == [b"ENCRYPTED?\n"] * CONNECTIONS
        assert serving.output.count('"separate_exit"') == 1
