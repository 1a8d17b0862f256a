"""The rig that starts real programs: they run in a `with` block, end with it, and errors say what did not start."""

import os
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import NotReadyError
from tests.real.servers import CONFIG, Server, as_nobody, open_directory, render, start_nginx, start_server

SERVES = """
import os, socket, sys
server = socket.socket()
if sys.argv[2] == "reuse": server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
while True: server.accept()[0].sendall(b"%d" % os.getuid())
"""
ENDS = "print('no, thanks')"
TAKEN = "import sys; print('address in use', sys.argv[1])"


def program(text: str, port: int, *words: str) -> list[str]:
    return [sys.executable, "-c", text, str(port), *words]


def hear(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        return connection.recv(100)


def test_a_killed_server_restarts_at_the_same_port() -> None:
    with start_server(lambda port: program(SERVES, port, "reuse")) as server:
        assert hear(server.port) == str(os.getuid()).encode()
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            hear(server.port)
        server.start().wait_ready()
        assert hear(server.port)
    assert not server.is_running


def test_a_server_that_does_not_reuse_addresses_gets_a_free_port() -> None:
    with start_server(lambda port: program(SERVES, port, "plain"), reuses_addresses=False) as server:
        assert hear(server.port)
    assert not server.is_running


def test_an_error_says_why_a_server_did_not_start() -> None:
    with pytest.raises(NotReadyError, match=r"ended\nno, thanks"), start_server(lambda port: program(ENDS, port)):
        pass
    ports: list[int] = []

    def taken(port: int) -> list[str]:
        ports.append(port)
        return program(TAKEN, port)

    with pytest.raises(NotReadyError, match="in use"), start_server(taken, reuses_addresses=False):
        pass
    assert len(ports) == 5


def test_waiting_for_a_server_has_a_limit() -> None:
    with hold_port() as port:
        server = Server(program(SERVES, port, "reuse"), port, is_up=lambda _: False).start()
        with server, pytest.raises(NotReadyError, match="not up within 0 s"):
            server.wait_ready(0.01)
    assert not server.is_running


def test_open_directory_makes_a_directory_of_the_user_that_as_nobody_chooses() -> None:
    with open_directory() as directory, start_server(lambda port: as_nobody(program(SERVES, port, "reuse"))) as server:
        assert int(hear(server.port)) == directory.stat().st_uid != 0
    assert not directory.exists()


@pytest.mark.parametrize("template", [path.name for path in CONFIG.iterdir()])
def test_every_configuration_begins_with_a_comment_about_it(template: str) -> None:
    names = "port relay other lossy directory user body burst rate slots status certificate"
    text = render(template, **dict.fromkeys(names.split(), "x"))
    assert text.startswith("# ")
    assert "@{" not in text


@pytest.mark.real("nginx")
def test_nginx_serves_its_configuration(tmp_path: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with (
        hold_port() as relay,
        start_nginx(tmp_path, "nginx-defaults.conf", relay=relay) as server,
        pytest.raises(urllib.error.HTTPError, match="502") as caught,
    ):
        opener.open(server.url, timeout=30)
    caught.value.close()
