"""curl, without the tunnel, on services that `tunnel expose` makes public; one test kills the relay."""

import hashlib
import os
import signal
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, says_event
from loadtests.harness.relays import RelayProcess
from tests.real.clients_rig import LOOPBACK, WAIT_S, wait_until

pytestmark = pytest.mark.real("curl")

BODY = os.urandom(1 << 20)


class _Site(BaseHTTPRequestHandler):
    """Says which site it is, and which client address was forwarded; a POST gets the digest of its body."""

    protocol_version = "HTTP/1.1"
    name = ""

    def do_GET(self) -> None:
        self._answer(f"{self.name} {self.path} {self.headers.get_all('X-Forwarded-For')}".encode())

    def do_POST(self) -> None:
        if self.headers["Transfer-Encoding"] == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(hashlib.sha256(body).hexdigest().encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Say nothing."""


class World:
    """A relay with public places, and three sites that are reached through them: two by host name, one by port."""

    def __init__(self, stack: ExitStack) -> None:
        self.http, self.port = (stack.enter_context(hold_port()) for _ in range(2))
        self.relay = stack.enter_context(
            RelayProcess(
                public=f'public_http = ["{LOOPBACK}:{self.http}"]',
                rules=f'public = ["{LOOPBACK}:{self.port}"]\npublic_hosts = ["one.example", "two.example"]',
            )
        )
        environment = {"TUNNEL_RELAY": self.relay.url, "TUNNEL_TOKEN": self.relay.tokens["client"]}
        self.exposing: dict[str, Process] = {}
        for name, words in (("one", ["--public-host", "one.example"]), ("two", ["--public-host", "Two.example."])):
            command = python_command("tunnel_client", "expose", name, f"{LOOPBACK}:{_serve(stack, name)}", *words)
            self._start(stack, name, command, environment)
        port = ["--public", str(self.port), "--client-address", "forwarded-for"]
        command = python_command("tunnel_client", "expose", "three", f"{LOOPBACK}:{_serve(stack, 'three')}", *port)
        self._start(stack, "three", command, environment)

    def _start(self, stack: ExitStack, name: str, command: list[str], environment: dict[str, str]) -> None:
        process = Process([*command, "--proxy", "none"], ready=says_event("listening"), environment=environment)
        self.exposing[name] = stack.enter_context(process)

    def curl(self, host: str, *words: str, port: int = 0) -> str:
        """Return the body of the answer, or curl's error."""
        where = port or self.http
        command = ["curl", "-sS", "--noproxy", "*", "--resolve", f"{host}:{where}:{LOOPBACK}", *words]
        done = subprocess.run(
            [*command, f"http://{host}:{where}/path"], capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        return done.stdout + done.stderr


def _serve(stack: ExitStack, name: str) -> int:
    server = stack.enter_context(ThreadingHTTPServer((LOOPBACK, 0), type(f"_{name}", (_Site,), {"name": name})))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    stack.callback(server.shutdown)
    assert isinstance(server, socketserver.BaseServer)
    return server.server_port


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


def test_sites_are_told_apart_by_host_name(world: World) -> None:
    for host, name in (("one.example", "one"), ("TWO.example", "two"), ("one.example.", "one")):
        assert world.curl(host) == f"{name} /path ['{LOOPBACK}']"
    assert world.curl("three.example") == "no service is offered under this host name\n"
    assert world.curl("any.example", port=world.port) == f"three /path ['{LOOPBACK}']"


def test_forged_addresses_do_not_arrive(world: World) -> None:
    assert world.curl("one.example", "-H", "X-Forwarded-For: 6.6.6.6") == f"one /path ['{LOOPBACK}']"


@pytest.mark.parametrize("chunked", [False, True])
def test_uploads_arrive_whole(world: World, tmp_path: Path, *, chunked: bool) -> None:
    (tmp_path / "body").write_bytes(BODY)
    words = ["-H", "Transfer-Encoding: chunked"] if chunked else []
    answer = world.curl("two.example", *words, "--data-binary", f"@{tmp_path / 'body'}")
    assert answer == hashlib.sha256(BODY).hexdigest()


def test_the_places_open_again_after_the_relay_was_killed(world: World) -> None:
    process = world.relay.process
    process.kill()
    assert "Failed to connect" in world.curl("one.example")
    process.start()
    process.wait_ready()
    wait_until(lambda: world.curl("one.example") == f"one /path ['{LOOPBACK}']", "the site is there again")
    wait_until(lambda: "three /path" in world.curl("x.example", port=world.port), "the port is open again")


def test_a_place_closes_when_the_command_ends(world: World) -> None:
    """The relay soon closes the place of a command that SIGTERM has ended, and keeps that of another command open."""
    assert world.curl("x.example", port=world.port).startswith("three ")
    world.exposing["three"].signal(signal.SIGTERM)
    world.exposing["two"].signal(signal.SIGTERM)
    wait_until(lambda: "no service is offered" in world.curl("two.example"), "the site is away")
    wait_until(lambda: "Failed to connect" in world.curl("x.example", port=world.port), "the port is closed")
    assert world.curl("one.example").startswith("one ")
