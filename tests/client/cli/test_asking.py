"""Commands say whom they ask before the first answer has come, and end at once on a definite answer.

Each line that these tests read comes while the peer, which never answers, is still silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.harness.ports import hold_port
from tests.client.rig import TOKEN, Background, Rig
from tests.support.proxies import UpstreamProxy
from tunnel.carriers.http.patience import Patience
from tunnel.wire import BodyFormat
from tunnel_client.cli.broker.main import main as broker_main
from tunnel_client.cli.main import main

_WAIT_S = 60.0
_BROKER = "tunnel_client.cli.broker"


@contextlib.contextmanager
def accepting() -> Iterator[int]:
    """A port that accepts every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


@contextlib.contextmanager
def full() -> Iterator[int]:
    """A port whose accept queue is full, so that connecting to it takes for ever."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(8):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@pytest.fixture
def file(home: Path) -> str:
    path = home / "token"
    path.touch(0o600)
    path.write_text(TOKEN)
    return str(path)


@contextlib.contextmanager
def started(*arguments: str, module: str = "tunnel_client", relay: str = "") -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "TUNNEL_TOKEN": TOKEN, "TUNNEL_RELAY": relay}
    command = [sys.executable, "-m", module, *arguments]
    child = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stop = threading.Timer(_WAIT_S, child.kill)
    stop.start()
    try:
        yield child
    finally:
        stop.cancel()
        child.kill()
        child.communicate()


def first(child: subprocess.Popen[str], *, json_on_stdout: bool = False) -> str:
    """Return the text of the first line that says something; the command goes on waiting."""
    stream = child.stdout if json_on_stdout else child.stderr
    assert stream is not None
    line = stream.readline().strip()
    assert child.poll() is None, "the command has ended"
    return str(json.loads(line)["text"]) if line.startswith("{") else line.partition(": ")[2] or line


COMMANDS = {
    "login": ["login", "{url}", "--token-file", "{file}", "--wait", "60"],
    "doctor": ["doctor", "--json"],
    "forward": ["forward", "0:a:1"],
    "expose": ["expose", "reports", "127.0.0.1:1"],
    "proxy": ["proxy", "0"],
    "connect": ["connect", "a:1"],
    "run": ["run", "--", "true"],
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("peer", [accepting, full], ids=["accepts", "is full"])
def test_a_command_says_whom_it_asks_while_nothing_answers(name: str, peer: object, file: str) -> None:
    assert callable(peer)
    with peer() as port:
        url = f"http://127.0.0.1:{port}"
        words = [word.format(url=url, file=file) for word in COMMANDS[name]]
        with started(*words, relay=url) as child:
            text = first(child)
    # A command that is quiet for its first 2 s knows by then that a first request was not answered in time.
    assert text.startswith((f"asking {url} ...", f"no relay answers yet at {url} (no answer within "))


def test_tls_that_never_completes_and_a_proxy_that_never_answers_are_no_silence(home: Path) -> None:
    with accepting() as port:
        url = f"https://127.0.0.1:{port}"
        with started("forward", "0:a:1", "--relay", url) as child:
            assert first(child) == f"asking {url} ..."
        proxy = f"http://127.0.0.1:{port}"
        with started("forward", "0:a:1", "--relay", "https://relay.example", "--proxy", proxy) as child:
            assert first(child) == f"asking https://relay.example through {proxy} ..."


def test_a_password_of_the_proxy_is_not_shown(home: Path) -> None:
    with accepting() as port:
        proxy = f"http://me:secret@127.0.0.1:{port}"
        with started("forward", "0:a:1", "--relay", "https://relay.example", "--proxy", proxy) as child:
            assert first(child) == f"asking https://relay.example through http://127.0.0.1:{port} ..."


def test_what_a_program_reads_stays_json(home: Path) -> None:
    with accepting() as port:
        url = f"http://127.0.0.1:{port}"
        with started("forward", "0:a:1", "--relay", url, "--json") as child:
            assert first(child, json_on_stdout=True) == f"asking {url} ..."
            assert child.stdout is not None
            assert json.loads(child.stdout.readline())["event"] == "waiting"


def test_servers_say_whom_they_ask_too(home: Path, file: str) -> None:
    with accepting() as port:
        url = f"http://127.0.0.1:{port}"
        serve = ["serve", "--dir", str(home / "messages"), "--service", "orders", "--encryption", "off"]
        with started(*serve, module=_BROKER, relay=url) as child:
            assert first(child) == f"asking {url} ..."
        config = home / "tunnel.toml"
        config.write_text(f'[relay]\nurl = "{url}"\ntoken-file = "{file}"\n[forward]\nx = "0:a:1"\n')
        config.chmod(0o600)
        with started("up", "-c", str(config)) as child:
            assert first(child) == f"asking {url} ..."
        exit_ = ["exit", "--relay", url, "--allow", "127.0.0.1:1", "--encryption", "off"]
        with started(*exit_, module="tunnel_servlet") as child:
            assert child.stderr is not None
            assert child.stderr.readline() == f"asking {url} ...\n"


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["for people", "for a program"])
def test_an_exit_names_the_proxy_through_which_it_asks(home: Path, more: list[str]) -> None:
    with accepting() as port:
        url, proxy = "https://relay.example", f"http://127.0.0.1:{port}"
        words = ["exit", "--relay", url, "--proxy", proxy, "--allow", "127.0.0.1:1", "--encryption", "off", *more]
        with started(*words, module="tunnel_servlet") as child:
            stream = child.stdout if more else child.stderr
            assert stream is not None
            assert f"asking {url} through {proxy} ..." in stream.readline()


def test_a_broker_that_never_answers_is_no_silence(home: Path) -> None:
    with accepting() as port, started("topics", "--broker", f"127.0.0.1:{port}", module=_BROKER) as child:
        assert first(child) == f"asking the broker at 127.0.0.1:{port} ..."


def test_while_it_waits_a_command_says_so_again(home: Path) -> None:
    with accepting() as port, started("forward", "0:a:1", "--wait", relay=f"http://127.0.0.1:{port}") as child:
        assert first(child).startswith("asking ")
        assert first(child).startswith("no relay answers yet at http://127.0.0.1:")
        assert first(child).endswith(" s: trying until a relay answers")


# targets


def test_a_connect_whose_target_does_not_answer_is_no_silence(rig: Rig, home: Path) -> None:
    with full() as port, started("connect", f"127.0.0.1:{port}", relay=rig.url) as child:
        why = "the exit in the relay's process has the connection, and the target has not answered"
        assert first(child) == f"127.0.0.1:{port}: no answer for 2 s ({why}): still trying (Ctrl-C ends)"


@pytest.mark.parametrize("command", ["forward", "proxy"])
def test_the_wait_of_a_local_program_for_its_target_is_logged(rig: Rig, home: Path, command: str) -> None:
    with full() as port:
        target = f"127.0.0.1:{port}"
        words = ["proxy", "0"] if command == "proxy" else ["forward", f"0:{target}"]
        with started(*words, "--json", relay=rig.url) as child:
            assert child.stdout is not None
            events = map(json.loads, child.stdout)
            listening = next(event for event in events if event["event"] == "listening")
            with socket.create_connection(("127.0.0.1", int(str(listening["bind"]).rpartition(":")[2]))) as local:
                local.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
                slow = next(event for event in events if event["event"] == "connecting")
        assert (slow["target"], slow["level"]) == (target, "warning")
        assert slow["text"].startswith("no answer for 2 s (the exit in the relay's process has the connection")


# definite answers


class Stranger:
    """Answers every request with this head and body."""

    def __init__(self, background: Background, status: str, body: bytes = b"<title>Not yours</title>") -> None:
        self._answer = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        self.requests = 0
        self.port = background.serve(self._serve)
        self.url = f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            writer.write(self._answer)
            await writer.drain()


STATUSES = ["404 Not Found", "405 Method Not Allowed", "410 Gone", "501 Unsupported method", "200 OK", "204 No Content"]
KINDS = [["login"], ["forward", "0:a:1"], ["connect", "a:1"], ["run", "--", "true"]]


@pytest.fixture
def said(rig: Rig, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    def run(command: list[str], url: str, *options: str) -> tuple[int, str]:
        monkeypatch.setenv("TUNNEL_RELAY", url)
        monkeypatch.setenv("TUNNEL_TOKEN", TOKEN)
        if command == ["login"]:
            command = ["login", url, "--token-file", file]
        code = main([command[0], *options, *command[1:]])
        return code, " ".join(capsys.readouterr().err.split())

    return run


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("command", KINDS, ids=lambda words: words[0])
def test_a_definite_answer_ends_the_command_at_once(rig: Rig, said: object, command: list[str], status: str) -> None:
    assert callable(said)
    stranger = Stranger(rig, status, b"" if status.startswith("204") else b"<title>Not yours</title>")
    code, text = said(command, stranger.url)
    assert (code, stranger.requests) == (3, len(BodyFormat))
    assert f"tunnel: {stranger.url}: HTTP {status[:3]}, but not from a relay" in text
    assert text.endswith(", or give --wait SECONDS to try for longer") == (command[0] != "run")


@pytest.mark.parametrize(
    ("status", "code"), [("403 Forbidden", 5), ("404 Not Found", 3), ("407 Who are you", 4), ("501 No CONNECT", 3)]
)
def test_a_proxy_that_refuses_ends_the_command_at_once(rig: Rig, said: object, status: str, code: int) -> None:
    assert callable(said)
    proxy = Stranger(rig, status)
    found, text = said(["forward", "0:a:1"], "https://relay.example", "--proxy", proxy.url)
    assert found == code
    assert proxy.requests <= len(BodyFormat)
    assert f"through {proxy.url}" in text
    assert f"HTTP {status[:3]}" in text


def test_a_proxy_where_nothing_listens_ends_the_command_at_once(said: object) -> None:
    assert callable(said)
    with hold_port() as port:
        for url in ("https://relay.example", "http://127.0.0.1:1"):
            code, text = said(["forward", "0:a:1"], url, "--proxy", f"http://127.0.0.1:{port}")
            assert code == 3
            assert f"no relay answers at {url} through http://127.0.0.1:{port}: the proxy cannot be reached" in text
            assert "(the connection was refused): check the proxy that --proxy" in text


@pytest.mark.parametrize("command", KINDS, ids=lambda words: words[0])
def test_a_relay_where_nothing_listens_ends_the_command_soon(
    said: object, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(said)
    make = Patience.__init__
    monkeypatch.setattr(
        Patience, "__init__", lambda self, base, config: make(self, base, replace(config, away_us=500_000))
    )
    with hold_port() as port:
        code, text = said(command, f"http://127.0.0.1:{port}")
    assert code == 3
    assert "the connection was refused for 0.5 s: check host and port of the URL, and that the relay runs" in text
    assert text.endswith(", or give --wait SECONDS to try for longer") == (command[0] != "run")  # it has no such option


def test_the_broker_proposes_no_option_that_it_does_not_have(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hold_port() as port:
        assert broker_main(["topics", "--broker", "x", "--relay", f"http://127.0.0.1:{port}", "--proxy", "none"]) == 3
    text = capsys.readouterr().err
    assert "no relay answers" in text
    assert "wait" not in text


def test_what_does_not_speak_http_ends_the_command(rig: Rig, said: object) -> None:
    assert callable(said)

    async def banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            await reader.read(1)

    port = rig.serve(banner)
    code, text = said(["forward", "0:a:1"], f"http://127.0.0.1:{port}")
    assert code == 3
    assert f"127.0.0.1:{port} does not answer in HTTP" in text


@pytest.mark.parametrize("status", ["404 Not Found", "200 OK"])
def test_with_wait_a_definite_answer_is_waited_out(rig: Rig, said: object, status: str) -> None:
    assert callable(said)
    stranger = Stranger(rig, status, b"x")
    code, text = said(["forward", "0:a:1"], stranger.url, "--wait", "2")
    assert code == 3
    assert stranger.requests > 2
    assert "within 2 s" in text


def test_a_proxy_that_works_is_no_stranger(rig: Rig, said: object) -> None:
    assert callable(said)
    proxy: UpstreamProxy = rig.enter(UpstreamProxy())
    code, text = said(["login"], rig.url, "--proxy", f"http://127.0.0.1:{proxy.port}")
    assert code == 0
    assert text.startswith(f"tunnel: asking {rig.url} through http://127.0.0.1:{proxy.port} ...")
