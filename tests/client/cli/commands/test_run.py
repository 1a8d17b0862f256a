"""`tunnel run`: programs and their child processes share one tunnel."""

from __future__ import annotations

import ast
import json
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from loadtests.harness.tree import python_path
from tests.client.cli.commands.run_rig import hello, run
from tests.client.sockets_rig import ROOT, RelayThread, beside, relay_thread
from tests.encryption.rig import another_key, key
from tests.support.certificates import TLS
from tests.support.imports import imported_names
from tunnel.encryption.known_peers import KnownPeers
from tunnel.ground.exit_codes import NOT_AUTHENTICATED, USAGE
from tunnel_client.borrowed import pair
from tunnel_client.borrowed.borrower import Borrowed
from tunnel_client.cli.commands.run import environment
from tunnel_client.cli.main import main

FETCH = str(ROOT / "examples" / "fetch.py")
# An interpreter without our packages and their dependencies.
BARE = getattr(sys, "_base_executable", sys.executable)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with hello() as port:
        yield port


def test_a_program_that_knows_nothing_of_the_tunnel_is_led_through_it(relay: RelayThread, port: int) -> None:
    done = run(relay, sys.executable, FETCH, f"http://db.internal:{port}/")
    assert done.stdout.startswith("status 200\n")
    assert done.stderr == "tunnel: 1 connection went through the tunnel, none was seen to bypass it\n"


def test_a_program_is_led_through_encrypted_streams(port: int, tmp_path: Path) -> None:
    with relay_thread(encrypted=True) as relay:
        url, home = f"http://db.internal:{port}/", str(tmp_path)
        for _ in range(2):  # the key is taken on trust first, then verified
            assert run(relay, sys.executable, FETCH, url, XDG_CONFIG_HOME=home).stdout.startswith("status 200\n")
        (known,) = KnownPeers(tmp_path / "tunnel" / "known_peers").entries()
        assert (known.peer, known.keys) == ("exit", (key().fingerprint,))
        pinned = another_key().fingerprint
        refused = run(relay, sys.executable, FETCH, url, expected=1, XDG_CONFIG_HOME=home, TUNNEL_PEER_KEY=pinned)
        assert "configured peer key" in refused.stderr


WITHOUT = """
import importlib.util, subprocess, sys
found = [name for name in ("tunnel", "tunnel_client", "aiohttp") if importlib.util.find_spec(name)]
print(found, flush=True)
sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))
"""


def test_a_python_without_our_packages_and_its_subprocesses_use_the_tunnel(relay: RelayThread, port: int) -> None:
    done = run(relay, BARE, "-c", WITHOUT, FETCH, f"http://db.internal:{port}/")
    assert done.stdout.startswith("[]\nstatus 200\n")
    assert done.stderr == "tunnel: 1 connection went through the tunnel, none was seen to bypass it\n"


LOOPS = """
import asyncio, sys, threading
async def fetch():
    reader, writer = await asyncio.open_connection("db.internal", int(sys.argv[1]))
    writer.write(b"GET / HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n")
    print((await reader.read()).split()[1].decode(), type(asyncio.get_running_loop()).__module__)
    writer.close()
    try:
        await asyncio.open_connection("nosuch.internal", 80)
    except OSError as error:
        print("has no address" in str(error))
asyncio.run(fetch())
import uvloop  # imported late
thread = threading.Thread(target=lambda: asyncio.Runner(loop_factory=uvloop.new_event_loop).run(fetch()))
thread.start()
thread.join()
"""


def test_the_status_shows_the_command_without_its_arguments(relay: RelayThread, tmp_path: Path) -> None:
    code = "import sys; from tunnel_client.status import running_clients; print([r.command for r in running_clients()])"
    done = run(relay, sys.executable, "-c", code, "secret", XDG_RUNTIME_DIR=str(tmp_path), PYTHONPATH=python_path())
    assert done.stdout == f"['run {Path(sys.executable).name}']\n"


def test_programs_with_asyncio_and_uvloop_are_led(relay: RelayThread, port: int) -> None:
    pytest.importorskip("uvloop")
    done = run(relay, sys.executable, "-c", LOOPS, str(port))
    assert done.stdout == "200 asyncio.unix_events\nTrue\n200 uvloop\nTrue\n"


GEVENT = """
from gevent import monkey
monkey.patch_all()
import gevent, sys, urllib.request
def fetch():
    return urllib.request.urlopen("http://db.internal:%s/" % sys.argv[1], timeout=60).status
jobs = [gevent.spawn(fetch) for _ in range(5)]
gevent.joinall(jobs, raise_error=True)
print([job.value for job in jobs])
"""


def test_a_program_with_gevent_is_led(relay: RelayThread, port: int) -> None:
    pytest.importorskip("gevent")
    assert run(relay, sys.executable, "-W", "ignore", "-c", GEVENT, str(port)).stdout == "[200, 200, 200, 200, 200]\n"


EVENTLET = """
import eventlet
eventlet.monkey_patch()
import select, socket, sys, time, urllib.request
port = int(sys.argv[1])
def fetch(host):
    return urllib.request.urlopen("http://%s:%s/" % (host, port), timeout=60).status
print([job.wait() for job in [eventlet.spawn(fetch, host) for host in ("db.internal", "DB.internal", "127.0.0.1")]])

ticks = []
def tick():
    while True:
        ticks.append(1)
        eventlet.sleep(0.001)
ticker = eventlet.spawn(tick)
begun = time.monotonic()
try:
    socket.create_connection(("never.internal", 80), timeout=0.2)
except TimeoutError as error:
    print("timed out", len(ticks) > 5)
ticker.kill()

for address in (("nosuch.internal", 80), ("10.9.9.9", 80)):
    try:
        socket.create_connection(address, timeout=60)
    except OSError as error:
        print(type(error).__name__)

waiting = socket.socket()
waiting.setblocking(False)
print(waiting.connect_ex(("db.internal", port)))
print(select.select([], [waiting], [], 60)[1] == [waiting], waiting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
print(waiting.getpeername() == ("db.internal", port), waiting.connect_ex(("db.internal", port)))
waiting.close()

sock = socket.socket()
try:
    sock.connect(("nosuch.internal", 80))
except OSError:
    sock.connect(("db.internal", port))  # a socket whose connect failed can try again
    print(sock.getpeername()[0])
sock.close()
print(socket.gethostbyname("db.internal")[:4], socket.getnameinfo(("db.internal", 80), 0))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
    try:
        datagrams.sendto(b"x", ("db.internal", 80))
    except OSError as error:
        print(error.strerror)
"""
OVER_EVENTLET = """[200, 200, 200]
timed out True
gaierror
PermissionError
115
True 0
True 106
db.internal
235. ('db.internal', '80')
only TCP goes through the tunnel, not UDP to db.internal
"""


@pytest.mark.parametrize("dns", ["no", "yes"])
def test_a_program_with_eventlet_is_led(relay: RelayThread, port: int, dns: str) -> None:
    """With its own resolver, and with the one of the standard library."""
    command = [sys.executable, "-W", "ignore", "-c", EVENTLET, str(port)]
    done = run(relay, *command, hosts="*.internal,10.0.0.0/8", EVENTLET_NO_GREENDNS=dns)
    assert done.stdout == OVER_EVENTLET
    assert len(done.stderr.splitlines()) == 1  # how many connections went through the tunnel


EVENTLET_TLS = """
import eventlet
eventlet.monkey_patch()
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[2])
for connected_first in (True, False):
    for timeout in (60, None):
        sock = socket.socket()
        sock.settimeout(timeout)
        if connected_first:
            sock.connect(("db.internal", int(sys.argv[1])))
        with context.wrap_socket(sock, server_hostname="localhost") as secured:
            if not connected_first:
                secured.connect(("db.internal", int(sys.argv[1])))
            print(secured.recv(100))
"""


def test_tls_works_under_eventlet(relay: RelayThread) -> None:
    """eventlet has one way to connect a plain socket, and another one for a socket that is already wrapped."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(TLS / "server.pem")

    def greet() -> None:
        for _ in range(4):
            near, _ = listener.accept()
            with server.wrap_socket(near, server_side=True) as secured:
                secured.sendall(b"hello")

    with socket.create_server(("127.0.0.1", 0)) as listener, beside(greet):
        port = str(listener.getsockname()[1])
        done = run(relay, sys.executable, "-W", "ignore", "-c", EVENTLET_TLS, port, str(TLS / "ca.pem"))
    assert done.stdout == "b'hello'\n" * 4


ERRORS = """
import socket, sys
for address in (("db.internal", int(sys.argv[1])), ("nosuch.internal", 80), ("10.9.9.9", 80)):
    try:
        socket.create_connection(address, timeout=60)
    except OSError as error:
        print(type(error).__name__, error)
sock = socket.socket()
sock.settimeout(0.2)
try:
    sock.connect(("never.internal", 80))
except TimeoutError as error:
    print(type(error).__name__, error)
waiting = socket.socket()
waiting.setblocking(False)
print(waiting.connect_ex(("db.internal", int(sys.argv[1]))))
import select
select.select([], [waiting], [], 60)
print(waiting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
"""


def test_errors_say_what_to_do(relay: RelayThread) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        done = run(relay, BARE, "-W", "ignore", "-c", ERRORS, str(held.getsockname()[1]), hosts="*")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        "ConnectionRefusedError",
        "gaierror",
        "PermissionError",
        "TimeoutError",
        "115",
        "111",
    ]
    assert "check that it listens there" in lines[0]
    assert "has no address" in lines[1]
    assert "ask the operator of the relay for a rule" in lines[2]
    assert "never.internal:80: no answer within 0.2 s" in lines[3]


def test_hosts_that_match_no_pattern_bypass_the_tunnel(relay: RelayThread, port: int) -> None:
    asked = len(relay.asked)
    done = run(relay, sys.executable, FETCH, f"http://127.0.0.1:{port}/")
    assert done.stdout.startswith("status 200\n")
    assert len(relay.asked) == asked


def test_an_existing_sitecustomize_still_runs(relay: RelayThread, port: int, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nprint('mine', any('borrowed' in p for p in sys.path))\n")
    done = run(relay, sys.executable, FETCH, f"http://db.internal:{port}/", PYTHONPATH=str(tmp_path))
    assert "mine False\nstatus 200\n" in done.stdout


# the command


@pytest.mark.parametrize(
    ("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_code_is_that_of_the_command(relay: RelayThread, code: str, expected: int) -> None:
    run(relay, sys.executable, "-c", code, expected=expected)


def test_a_command_that_does_not_exist_is_a_usage_error(relay: RelayThread) -> None:
    assert "no-such-program: No such file" in run(relay, "no-such-program", expected=USAGE).stderr


def test_a_missing_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    assert main(["run", "--relay", "http://relay.invalid", "--"]) == USAGE
    structlog.configure(**before)
    assert "no command is given: write tunnel run -- CMD" in capsys.readouterr().err


def test_a_wrong_token_is_reported_before_the_command_starts(relay: RelayThread) -> None:
    done = run(relay, "echo", "begun", expected=NOT_AUTHENTICATED, TUNNEL_TOKEN="wrong")
    assert done.stdout == ""
    assert "check the token" in done.stderr


# parts of `tunnel run`

BORROWED = sorted((ROOT / "client" / "tunnel_client" / "borrowed").rglob("*.py"))


def test_the_borrowed_modules_exist() -> None:
    assert {path.stem for path in BORROWED} > {"borrower", "engine", "pair", "sitecustomize"}


@pytest.mark.parametrize("path", BORROWED, ids=lambda path: path.stem)
def test_borrowed_modules_import_only_the_standard_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imported = {source.partition(".")[0] for _, source, _ in imported_names(tree)}
    assert imported <= sys.stdlib_module_names


def test_connections_fail_when_the_tunnel_has_ended(tmp_path: Path) -> None:
    borrowed = Borrowed(str(tmp_path / "nobody"), pair)
    with socket.socket() as sock, pytest.raises(OSError, match="`tunnel run` of this program has ended"):
        borrowed.connect(sock, "db.internal", 80, None)


@pytest.mark.parametrize("answers", [0, 1])
def test_a_connect_ends_at_its_timeout_even_if_tunnel_run_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    """`tunnel run` accepts the request, gives the first answer or none, and then falls silent."""
    monkeypatch.setattr("tunnel_client.borrowed.borrower.GRACE_S", 0.0)
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as lender, pair.listen_near() as near, socket.socket() as sock:
        lender.bind(path)
        lender.listen()
        held: list[socket.socket] = []

        def serve() -> None:
            asking, _ = lender.accept()
            held.append(asking)
            if answers:
                asking.sendall(json.dumps({"port": near.getsockname()[1]}).encode() + b"\n")

        with beside(serve), pytest.raises(TimeoutError, match=r"^db.internal:80: no answer within 0.2 s: .*is stuck"):
            Borrowed(path, pair).connect(sock, "db.internal", 80, 0.2)
        held[0].close()
        with socket.create_server(("127.0.0.1", 0)) as target:
            sock.connect(target.getsockname())  # the same socket can still connect


def test_the_command_gets_no_token_and_keeps_proxies_for_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost")
    monkeypatch.setenv("TUNNEL_TOKEN", "tnl_secret")
    everything = environment("/s", ["*"])
    assert "HTTPS_PROXY" not in everything
    assert "tnl_secret" not in str(everything)
    some = environment("/s", ["*.internal", "db"])
    assert some["HTTPS_PROXY"] == "http://proxy:3128"
    assert some["no_proxy"] == "localhost,.internal,db"
    assert (some["TUNNEL_RUN_SOCKET"], some["TUNNEL_RUN_HOSTS"]) == ("/s", "*.internal,db")
