"""Clients of the standard library, which know nothing of the tunnel, use it while a patch is active."""

from __future__ import annotations

import _socket
import asyncio
import errno
import gc
import http.client
import http.server
import select
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.client.sockets_rig import DEADLINE_S, Hello, RelayThread
from tests.support.certificates import TLS
from tunnel_client import Runtime, patch
from tunnel_client.borrowed.hosts import Hosts, Placeholders, is_literal
from tunnel_client.sockets import patching
from tunnel_client.sockets import runtime as runtimes
from tunnel_client.sockets.loop_thread import new_loop

INTERNAL = ["*.internal", "127.0.0.9"]


def serve(address: str, tls: bool) -> Iterator[int]:
    with http.server.ThreadingHTTPServer((address, 0), Hello) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "server.pem")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(DEADLINE_S)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    yield from serve("127.0.0.1", False)


@pytest.fixture(scope="module")
def tls_port() -> Iterator[int]:
    yield from serve("127.0.0.1", True)


@pytest.fixture
def led(runtime: Runtime) -> Iterator[None]:
    with patch(INTERNAL, runtime=runtime):
        yield


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def ask(host: str, port: int, **options: Any) -> bytes:
    reader, writer = await asyncio.open_connection(host, port, **options)
    writer.write(b"GET / HTTP/1.0\r\nHost: db.internal\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


# clients


def test_urllib(led: None, port: int) -> None:
    with urllib.request.urlopen(f"http://db.internal:{port}/", timeout=DEADLINE_S) as response:
        assert response.read() == f"hello from db.internal:{port}".encode()


def test_http_client_in_another_thread(led: None, port: int) -> None:
    got: list[bytes] = []

    def fetch() -> None:
        connection = http.client.HTTPConnection("db.internal", port, timeout=DEADLINE_S)
        connection.connect()
        assert connection.sock.getpeername() == ("db.internal", port)
        connection.request("GET", "/")
        got.append(connection.getresponse().read())
        connection.close()

    thread = threading.Thread(target=fetch)
    thread.start()
    thread.join(DEADLINE_S)
    assert got == [f"hello from db.internal:{port}".encode()]


def test_https(led: None, tls_port: int) -> None:
    context = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
    context.check_hostname = False
    connection = http.client.HTTPSConnection("db.internal", tls_port, timeout=DEADLINE_S, context=context)
    connection.request("GET", "/")
    assert connection.getresponse().status == 200
    connection.close()


# new_loop makes uvloop's loop where that is installed
LOOPS = pytest.mark.parametrize("make", [asyncio.SelectorEventLoop, new_loop])


@LOOPS
def test_asyncio(led: None, port: int, make: Any) -> None:
    with asyncio.Runner(loop_factory=make) as runner:
        assert runner.run(ask("db.internal", port)).endswith(b"hello from db.internal")


@LOOPS
def test_asyncio_with_tls(led: None, tls_port: int, make: Any) -> None:
    context = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
    with asyncio.Runner(loop_factory=make) as runner:
        answer = runner.run(ask("db.internal", tls_port, ssl=context, server_hostname="localhost"))
    assert answer.endswith(b"hello from db.internal")


@LOOPS
def test_asyncios_sock_connect(led: None, port: int, make: Any) -> None:
    async def fetch() -> bytes:
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, (socket.gethostbyname("db.internal"), port))
            await loop.sock_sendall(sock, b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
            return await loop.sock_recv(sock, 12)

    with asyncio.Runner(loop_factory=make) as runner:
        assert runner.run(fetch()) == b"HTTP/1.0 200"


def test_a_socket_that_the_program_makes_itself_uses_the_tunnel(led: None, port: int) -> None:
    with socket.socket() as sock:
        sock.settimeout(DEADLINE_S)
        assert sock.connect_ex(("db.internal", port)) == 0
        assert sock.getpeername() == ("db.internal", port)
        sock.sendall(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
        assert sock.recv(12, socket.MSG_WAITALL) == b"HTTP/1.0 200"
        with pytest.raises(OSError, match="already connected"):
            sock.connect(("db.internal", port))


# errors


def test_a_socket_that_was_refused_can_try_again(led: None, port: int, closed_port: int) -> None:
    with socket.socket() as sock:
        sock.setblocking(False)
        # Like the kernel: a call of connect just after completion returns the result, 0 for success.
        for number, outcome in ((closed_port, errno.ECONNREFUSED), (port, 0)):
            assert sock.connect_ex(("db.internal", number)) == errno.EINPROGRESS
            assert sock.connect_ex(("db.internal", number)) in (errno.EALREADY, outcome)
            assert select.select([], [sock], [], DEADLINE_S)[1] == [sock]
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (0, errno.ECONNREFUSED)
        assert sock.connect_ex(("db.internal", port)) == errno.EISCONN


def test_a_refusal_says_what_to_do(led: None, closed_port: int) -> None:
    with pytest.raises(ConnectionRefusedError, match="check that it listens there"):
        socket.create_connection(("db.internal", closed_port), timeout=DEADLINE_S)


@LOOPS
def test_a_refusal_in_asyncio_says_what_to_do(led: None, closed_port: int, make: Any) -> None:
    with (
        asyncio.Runner(loop_factory=make) as runner,
        pytest.raises(ConnectionRefusedError, match=r"db\.internal.*check that it listens there"),
    ):
        runner.run(ask("db.internal", closed_port))


def test_a_library_that_prints_only_strerror_says_what_to_do(led: None, closed_port: int) -> None:
    async def get() -> None:
        async with aiohttp.ClientSession() as session:
            await session.get(f"http://db.internal:{closed_port}/")

    with pytest.raises(aiohttp.ClientConnectorError, match="check that it listens there") as caught:
        asyncio.run(get())
    assert caught.value.errno == errno.ECONNREFUSED


def test_a_name_that_the_exit_cannot_resolve_is_a_gaierror(led: None) -> None:
    with pytest.raises(socket.gaierror, match="has no address"), socket.socket() as sock:
        sock.connect_ex(("nosuch.internal", 80))


def test_udp_to_matching_hosts_is_refused(led: None) -> None:
    with pytest.raises(socket.gaierror, match="only TCP"):
        socket.getaddrinfo("db.internal", 53, type=socket.SOCK_DGRAM)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for call in (sock.connect, lambda address: sock.sendto(b"x", address)):
            with pytest.raises(OSError, match="only TCP"):
                call((socket.gethostbyname("db.internal"), 53))


# names


def test_matching_names_are_not_resolved_on_this_machine(led: None) -> None:
    (family, kind, _, canonical, address), *rest = socket.getaddrinfo("db.internal", "http", flags=socket.AI_CANONNAME)
    assert (family, kind, canonical, address[1], rest) == (
        socket.AF_INET,
        socket.SOCK_STREAM,
        "db.internal",
        80,
        [],
    )
    assert str(address[0]).startswith("235.")
    assert socket.gethostbyname("DB.internal.") == address[0]
    assert socket.gethostbyname_ex("db.internal")[2] == [address[0]]
    assert socket.gethostbyaddr(address[0])[0] == "db.internal"
    assert socket.getnameinfo(address, 0) == ("db.internal", "80")
    six = socket.getaddrinfo("db.internal", 80, socket.AF_INET6)[0][4]
    assert six[0] == f"::ffff:{address[0]}"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_library_in_c_that_connects_to_a_placeholder_reaches_no_host(led: None, family: int) -> None:
    """It may get the address from Python's resolver. The kernel refuses at once, and sends no packet."""
    address = socket.getaddrinfo("db.internal", 5432, family, socket.SOCK_STREAM)[0][4]
    sock = _socket.socket(family, socket.SOCK_STREAM)
    assert sock.connect_ex(address) == errno.ENETUNREACH
    sock.close()


def test_other_hosts_and_functions_are_untouched(led: None, relay: RelayThread, port: int) -> None:
    asked = len(relay.asked)
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock:
        assert sock.getpeername() == ("127.0.0.1", port)
    with urllib.request.urlopen(f"http://localhost:{port}/", timeout=DEADLINE_S) as response:
        assert response.status == 200
    first, second = socket.socketpair()
    with first, second:
        first.sendall(b"x")
        assert second.recv(1) == b"x"
    assert socket.getnameinfo(("127.0.0.1", 80), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV) == ("127.0.0.1", "80")
    assert socket.gethostbyname("127.0.0.1") == "127.0.0.1"
    assert len(relay.asked) == asked


def test_leaving_the_patch_restores_everything(runtime: Runtime, port: int) -> None:
    before = dict(vars(socket)), dict(vars(socket.socket)), dict(vars(asyncio.selector_events.BaseSelectorEventLoop))
    outer, inner = patch(["*.internal"], runtime=runtime), patch(["other.internal"], runtime=runtime)
    with outer as same:
        assert same is outer
        address = socket.gethostbyname("db.internal")
        inner.__enter__()
        with pytest.raises(RuntimeError, match="is active"), outer:
            pass
        kept = socket.create_connection(("db.internal", port), timeout=DEADLINE_S)
    inner.__exit__(None, None, None)
    assert before == (
        dict(vars(socket)),
        dict(vars(socket.socket)),
        dict(vars(asyncio.selector_events.BaseSelectorEventLoop)),
    )
    with kept:
        kept.sendall(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
        assert kept.recv(12, socket.MSG_WAITALL) == b"HTTP/1.0 200"
    assert address.startswith("235.")


# patterns


@pytest.mark.parametrize(
    ("patterns", "host", "matches"),
    [
        (["*.internal"], "db.internal", True),
        (["*.internal"], "DB.Internal.", True),
        (["*.internal"], "internal", False),
        (["db"], "db", True),
        (["db"], "db2", False),
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["10.0.0.0/8"], "::ffff:10.1.2.3", True),
        (["10.0.0.0/8"], "11.1.2.3", False),
        (["fd00::/8"], "fd00::1%eth0", True),
        (["10.0.0.1"], "10.0.0.1", True),
        (["*"], "anything.example", True),
        (["*"], "8.8.8.8", True),
        (["*"], "localhost", False),
        (["*"], "127.0.0.1", False),
        (["*"], "::1", False),
        (["*"], "0.0.0.0", False),
        (["*", "localhost"], "localhost", True),
        (["127.0.0.0/8"], "127.0.0.1", True),
        ([], "a", False),
    ],
)
def test_a_pattern_matches_names_or_addresses(patterns: list[str], host: str, matches: bool) -> None:
    assert (host in Hosts(patterns)) is matches


def test_a_patch_that_is_never_entered_warns() -> None:
    with pytest.warns(RuntimeWarning, match=r"only within `with tunnel_client.patch\(\[\.\.\.\]\):`") as caught:
        patch(["*.internal"])
    assert [warning.filename for warning in caught] == [__file__]


def test_a_string_is_not_accepted_as_a_list_of_patterns() -> None:
    with pytest.raises(TypeError, match="list of patterns"):
        patch("*.internal")


def test_each_name_has_its_own_placeholder_address() -> None:
    placeholders = Placeholders()
    first = placeholders.address("a")
    assert placeholders.address("A.") == first != placeholders.address("b")
    assert placeholders.name(f"::ffff:{first}") == "a"
    assert placeholders.name("235.0.0.77") is None
    assert is_literal("::1")
    assert not is_literal("a")


def test_a_runtime_lives_as_long_as_a_patch_needs_it(relay: RelayThread) -> None:
    """Otherwise a forked child, or the end of the process, would not find the runtime's connections."""
    gc.collect()  # removes the runtimes of earlier tests
    known = len(runtimes._connecting)
    active = patch(hosts=["*.internal"], runtime=Runtime(relay.settings))
    active.__enter__()
    route = active._route
    assert route is not None
    del active
    gc.collect()
    assert len(runtimes._connecting) == known + 1
    patching._engine.remove(route)
    del route
    gc.collect()
    assert len(runtimes._connecting) == known
