"""`tunnel run` counts the connections that use the tunnel, and says which bypass it."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.cli.commands.run_rig import hello, run
from tests.client.sockets_rig import ROOT, RelayThread, beside
from tunnel.ground.exit_codes import OK


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with hello() as port:
        yield port


PLAIN = "from socket import create_connection as connect"
INNER = """
import _socket
def connect(address):
    sock = _socket.socket()
    sock.connect(address)
    return sock"""
STAY = """
import sys
while connect(("127.0.0.1", int(sys.argv[1]))).recv(1): pass"""
PARENT = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-I', '-c', sys.argv[2], sys.argv[1]]))"
PAST = {
    "a program without the hook": ["-I", "-c", PLAIN + STAY],
    "a C extension": ["-W", "ignore", "-c", INNER + STAY],
    "a child of a program that the hook sees": ["-c", PARENT],
}


@pytest.mark.parametrize("words", PAST.values(), ids=PAST)
def test_a_connection_that_bypasses_the_tunnel_is_noticed_once(relay: RelayThread, words: list[str]) -> None:
    """The program waits on its first connection until the notice has come. Then it opens a second one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        program = [sys.executable, *words, port, PLAIN + STAY]  # the last word is the program of a child
        command = [sys.executable, "-m", "tunnel_client", "run", "--hosts", "127.0.0.1", "--", *program]
        environment = {**relay.environment, "PYTHONPATH": ""}
        with subprocess.Popen(command, env=environment, cwd=ROOT.parent, stderr=subprocess.PIPE, text=True) as running:
            first, _ = listener.accept()
            assert running.stderr is not None
            notice = running.stderr.readline()
            first.sendall(b"x")  # the program goes on with another connection
            second, _ = listener.accept()
            second.close()
            rest = running.stderr.read()
        first.close()
    assert f"connects to 127.0.0.1:{port} and bypasses the tunnel: `tunnel run` redirects only" in notice
    assert "HTTPS_PROXY=http://127.0.0.1:1080" in notice
    assert re.fullmatch(
        r"tunnel: no connection used the tunnel, and at least [12] did not \(the first: python\S*, process \d+, to "
        rf"127\.0\.0\.1:{port}\): for these use `tunnel forward`, or .*\n",
        rest,
    )
    assert running.returncode == OK


@pytest.mark.parametrize("command", [["sh", "-c", "exit 3"], [sys.executable, "-I", "-c", "raise SystemExit(3)"]])
def test_a_warning_names_commands_that_bypassed_the_tunnel(relay: RelayThread, command: list[str]) -> None:
    (line,) = run(relay, *command, expected=3).stderr.splitlines()
    name = Path(command[0]).name
    assert line.startswith(f"tunnel: no connection used the tunnel: {name} started no Python process that could use it")
    assert "use `tunnel forward`" in line
    assert run(relay, *command, options=["--quiet"], expected=3).stderr == ""


CHILDREN = """
import multiprocessing, os, socket, subprocess, sys
port = int(sys.argv[1])
def fetch(port):
    socket.create_connection(("db.internal", port)).close()
if __name__ == "__main__":
    fetch(port)
    child = os.fork()
    if not child:
        fetch(port)
        os._exit(0)
    os.waitpid(child, 0)
    spawned = multiprocessing.get_context("spawn").Process(target=fetch, args=(port,))
    spawned.start()
    spawned.join()
    code = "import socket, sys; socket.create_connection(('db.internal', int(sys.argv[1]))).close()"
    subprocess.check_call([sys.executable, "-c", code, str(port)])
    try:
        socket.create_connection(("nosuch.internal", 80))
    except OSError:
        pass
"""


def test_connections_of_all_processes_are_counted(relay: RelayThread, port: int, tmp_path: Path) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    done = run(relay, sys.executable, "-W", "ignore", str(tmp_path / "children.py"), str(port))
    assert done.stderr == (
        "tunnel: 4 connections went through the tunnel, 1 more could not be opened, none was seen to bypass it\n"
    )
    words = [sys.executable, "-W", "ignore", str(tmp_path / "children.py"), str(port)]
    assert run(relay, *words, options=["-q"]).stderr == ""


def test_a_program_whose_python_connects_nowhere_gets_a_sentence(relay: RelayThread) -> None:
    (line,) = run(relay, sys.executable, "-c", "pass").stderr.splitlines()
    name = Path(sys.executable).name
    assert line.startswith(f"tunnel: no connection used the tunnel: {name} opened none to *.internal from Python.")


SHORT = {
    "by address": "host=127.0.0.1",
    "by a name that only the far side knows": "host=db.internal",
}


@pytest.mark.parametrize("where", SHORT.values(), ids=SHORT)
def test_a_short_connection_of_a_library_in_c_is_noticed(relay: RelayThread, where: str) -> None:
    """libpq's connection ends at once: nothing but the import of psycopg shows that it has been."""
    pytest.importorskip("psycopg")
    code = "import psycopg, sys\ntry: psycopg.connect(sys.argv[1])\nexcept psycopg.Error as error: print(error)"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[str] = []

        def serve() -> None:
            if where == SHORT["by address"]:
                taken, address = listener.accept()
                accepted.append(address[0])
                taken.close()

        with beside(serve):
            words = f"{where} port={listener.getsockname()[1]} user=x connect_timeout=20"
            done = run(relay, sys.executable, "-c", code, words, hosts="127.0.0.1,*.internal")
    notice, end = done.stderr.splitlines()
    assert re.match(
        r"tunnel: python\S* \(process \d+\) has loaded psycopg, which connects in C and so bypasses", notice
    )
    assert "tunnel forward" in notice
    assert end.startswith("tunnel: no connection used the tunnel, and those of psycopg could not")
    if not accepted:
        assert "235.0.0.1" in done.stdout  # the address that stands for the name: the kernel has refused it at once


def test_each_client_in_c_is_told_once(relay: RelayThread, tmp_path: Path) -> None:
    """Also after the program has asked whether the module exists, and although its children load it, too."""
    (tmp_path / "pycurl.py").write_text("")
    code = "import importlib.util, subprocess, sys; importlib.util.find_spec('pycurl'); import pycurl\n"
    again = code + "subprocess.check_call([sys.executable, '-c', 'import pycurl, pycurl'])"
    done = run(relay, sys.executable, "-c", again, PYTHONPATH=str(tmp_path))
    assert done.stderr.count("has loaded pycurl") == 1
    assert done.stderr.count("those of pycurl could not") == 1
