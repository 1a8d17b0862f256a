"""The behaviour that only tunnel sockets have: how they connect, and how they fail."""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import tunnel_client
from tests.client.sockets_rig import DEADLINE_S, RelayThread, relay_thread
from tunnel import DeniedError, NotAuthenticatedError, RefusedError, UnreachableError
from tunnel_client import RelaySettings, Runtime, TunnelSocket, create_connection
from tunnel_client.login_file import known_peers_path
from tunnel_client.sockets.runtime import connecting
from tunnel_client.sockets.tunnel_socket import read_address


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE_S)
        yield listener


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def waiting_socket(runtime: Runtime) -> TunnelSocket:
    sock = TunnelSocket(runtime=runtime)
    sock.setblocking(False)
    return sock


# connecting


def test_the_far_side_resolves_and_getpeername_names_the_target(runtime: Runtime, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with create_connection(("db.internal", port), timeout=DEADLINE_S, runtime=runtime) as sock:
        assert sock.getpeername() == ("db.internal", port)
        assert "raddr=('db.internal'" in repr(sock)
        assert sock.gettimeout() == DEADLINE_S
        with sock.dup() as copy, socket.socket(fileno=sock.dup().detach()) as seen_by_the_kernel:
            assert copy.getpeername() == ("db.internal", port)
            assert seen_by_the_kernel.getpeername()[0] == "127.0.0.1"


@pytest.mark.parametrize("address", ["reports", ("reports", None)])
def test_a_name_without_a_port_is_a_service(runtime: Runtime, address: Any) -> None:
    with create_connection(address, timeout=DEADLINE_S, runtime=runtime) as sock:
        assert sock.getpeername() == ("reports", 0)
        sock.sendall(b"echo")
        assert sock.recv(4, socket.MSG_WAITALL) == b"echo"
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""


def test_a_nonblocking_connect_that_succeeds_makes_the_socket_writable(
    runtime: Runtime, listener: socket.socket
) -> None:
    with waiting_socket(runtime) as sock:
        with pytest.raises(BlockingIOError) as caught:
            sock.connect(("db.internal", listener.getsockname()[1]))
        assert caught.value.errno == errno.EINPROGRESS
        assert select.select([sock], [sock], [], DEADLINE_S) == ([], [sock], [])
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        assert sock.connect_ex(("db.internal", 1)) == errno.EISCONN
        far, _ = listener.accept()
        with far:
            sock.send(b"first")
            assert far.recv(100) == b"first"  # and none of the filler that made the socket unwritable


def test_a_socket_that_is_still_connecting_is_not_ready(runtime: Runtime) -> None:
    with waiting_socket(runtime) as sock:
        assert sock.connect_ex(("never.internal", 5432)) == errno.EINPROGRESS
        assert sock.connect_ex(("never.internal", 5432)) == errno.EALREADY
        assert select.select([sock], [sock], [], 0.2) == ([], [], [])
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


@pytest.mark.parametrize("ask", ["getsockopt", "connect_ex"])
def test_a_nonblocking_connect_that_is_refused_makes_the_socket_writable_with_an_error(
    runtime: Runtime, closed_port: int, ask: str
) -> None:
    with waiting_socket(runtime) as sock:
        sock.connect_ex(("db.internal", closed_port))
        assert select.select([], [sock], [], DEADLINE_S)[1] == [sock]
        if ask == "getsockopt":
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
        else:
            assert sock.connect_ex(("db.internal", closed_port)) == errno.ECONNREFUSED
        assert sock.connect_ex(("reports", None)) == errno.EINPROGRESS  # a second attempt
        assert select.select([], [sock], [], DEADLINE_S)[1] == [sock]
        assert [sock.connect_ex(("reports", None)) for _ in range(2)] == [0, errno.EISCONN]


def test_a_duplicate_made_while_connecting_learns_of_the_failure(runtime: Runtime, closed_port: int) -> None:
    """Without the error, the program would take the refused connection for an open one."""
    with waiting_socket(runtime) as sock:
        sock.connect_ex(("db.internal", closed_port))
        with sock.dup() as copy:
            assert select.select([], [copy], [], DEADLINE_S)[1] == [copy]
            assert copy.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


def test_a_socket_that_was_refused_can_try_again(runtime: Runtime, closed_port: int, listener: socket.socket) -> None:
    with TunnelSocket(runtime=runtime) as sock:
        sock.settimeout(DEADLINE_S)
        assert sock.connect_ex(("db.internal", closed_port)) == errno.ECONNREFUSED
        assert sock.connect_ex(("db.internal", listener.getsockname()[1])) == 0
        far, _ = listener.accept()
        with far:
            sock.sendall(b"second")
            assert far.recv(100) == b"second"


# how it fails


def failure(runtime: Runtime, address: Any, timeout: float = DEADLINE_S) -> OSError:
    with pytest.raises(OSError, match=r".") as caught:
        create_connection(address, timeout=timeout, runtime=runtime)
    with TunnelSocket(runtime=runtime) as sock:
        sock.settimeout(timeout)
        if isinstance(caught.value, socket.gaierror):
            with pytest.raises(socket.gaierror):
                sock.connect_ex(address)
        else:
            assert sock.connect_ex(address) == (caught.value.errno or errno.EAGAIN)
    return caught.value


def test_a_target_that_refuses_is_a_connection_refused_error(runtime: Runtime, closed_port: int) -> None:
    error = failure(runtime, ("db.internal", closed_port))
    assert isinstance(error, ConnectionRefusedError)
    assert isinstance(error, RefusedError)
    assert error.errno == errno.ECONNREFUSED
    assert "check that it listens there" in str(error)


def test_a_name_that_cannot_be_resolved_is_a_gaierror(runtime: Runtime) -> None:
    error = failure(runtime, ("nosuch.internal", 80))
    assert isinstance(error, socket.gaierror)
    assert error.errno == socket.EAI_NONAME
    assert "has no address" in str(error)


def test_a_target_that_no_rule_allows_is_a_permission_error(runtime: Runtime) -> None:
    error = failure(runtime, ("10.9.9.9", 80))
    assert isinstance(error, PermissionError)
    assert isinstance(error, DeniedError)
    assert error.errno == errno.EACCES
    assert "ask the operator of the relay for a rule" in str(error)


def test_a_target_that_does_not_answer_in_time_is_a_timeout_error(runtime: Runtime) -> None:
    error = failure(runtime, ("never.internal", 80), timeout=0.2)
    assert isinstance(error, TimeoutError)
    assert "never.internal:80: no answer within 0.2 s" in str(error)


def test_a_wrong_token_is_a_permission_error_with_advice(relay: RelayThread) -> None:
    runtime = Runtime(replace(relay.settings, token="wrong"))
    error = failure(runtime, ("db.internal", 80))
    runtime.close()
    assert isinstance(error, NotAuthenticatedError)
    assert error.errno == errno.EACCES
    assert "check the token" in str(error)


def test_a_relay_that_cannot_be_reached_is_a_timeout_error(closed_port: int) -> None:
    runtime = Runtime(RelaySettings(f"http://127.0.0.1:{closed_port}", proxy=None))
    error = failure(runtime, ("db.internal", 80), timeout=0.3)
    runtime.close()
    assert isinstance(error, TimeoutError)
    assert f"the relay http://127.0.0.1:{closed_port} cannot be reached" in str(error)


def test_a_missing_relay_setting_is_an_unreachable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNNEL_RELAY", raising=False)
    error = failure(Runtime(), ("db.internal", 80))
    assert isinstance(error, UnreachableError)
    assert error.errno == errno.ENETUNREACH
    assert "tunnel_client.configure(relay=URL), or set TUNNEL_RELAY" in str(error)


def test_a_lost_tunnel_is_not_an_end_of_file(listener: socket.socket) -> None:
    with relay_thread() as mortal:
        runtime = Runtime(replace(mortal.settings, user_timeout=10.0), linger=0.2)
        with create_connection(("db.internal", listener.getsockname()[1]), DEADLINE_S, runtime=runtime) as sock:
            far, _ = listener.accept()
            with far:
                far.sendall(b"pending")
                assert sock.recv(7, socket.MSG_PEEK) == b"pending"
                mortal.stop()
                assert sock.recv(100) == b"pending"
                with pytest.raises(ConnectionResetError):
                    sock.recv(100)
        runtime.close()


def test_a_runtime_that_closes_delivers_all_data_ends_its_sockets_and_can_start_again(
    relay: RelayThread, listener: socket.socket
) -> None:
    runtime = Runtime(relay.settings, linger=5.0)
    address = ("db.internal", listener.getsockname()[1])
    for _ in range(2):
        with create_connection(address, DEADLINE_S, runtime=runtime) as sock:
            far, _ = listener.accept()
            with far:
                sock.sendall(b"before the end")
                runtime.close()
                with pytest.raises(ConnectionResetError):
                    sock.recv(1)
                far.settimeout(DEADLINE_S)
                assert far.makefile("rb").read() == b"before the end"


def go_on_talking(sock: socket.socket) -> None:
    """Send until an error ends it."""
    for _ in range(int(DEADLINE_S / 0.01)):
        time.sleep(0.01)
        sock.sendall(b"or this")


def test_data_for_a_closed_socket_is_answered_with_a_reset(runtime: Runtime, listener: socket.socket) -> None:
    """TCP does the same. After `shutdown(SHUT_WR)`, the event loop that serves the other end of the socket gets no
    event when the application closes the socket.
    """
    sock = create_connection(listener.getsockname(), DEADLINE_S, runtime=runtime)
    far, _ = listener.accept()
    far.settimeout(DEADLINE_S)
    with far:
        sock.shutdown(socket.SHUT_WR)
        assert far.recv(1) == b""
        sock.close()
        far.sendall(b"nobody hears this")
        with pytest.raises(ConnectionError):
            go_on_talking(far)


def test_a_runtime_closes_when_a_socket_was_reset_a_moment_before(relay: RelayThread, listener: socket.socket) -> None:
    runtime = Runtime(relay.settings, linger=DEADLINE_S)
    reset, alive = (create_connection(listener.getsockname(), DEADLINE_S, runtime=runtime) for _ in range(2))
    fars = [listener.accept()[0] for _ in range(2)]
    alive.sendall(b"arrives")
    home, thread = connecting(runtime).use()

    async def reset_and_close() -> None:
        """Reset a socket, and close `home` in the same step of the loop, before the loop notices the reset."""
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.close()
        await home.close()

    thread.run(reset_and_close(), DEADLINE_S)
    got = set()
    for far in fars:
        with far, suppress(ConnectionResetError):
            far.settimeout(DEADLINE_S)
            got.add(far.makefile("rb").read())
    alive.close()
    runtime.close()
    assert b"arrives" in got


# limits


def test_tunnel_sockets_are_tcp_only_and_do_not_listen(runtime: Runtime) -> None:
    with pytest.raises(OSError, match="only TCP"):
        TunnelSocket(socket.AF_INET, socket.SOCK_DGRAM)
    with pytest.raises(OSError, match="only TCP"):
        TunnelSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    with TunnelSocket(runtime=runtime) as sock:
        sock.bind(("", 0))
        with pytest.raises(OSError, match="do not bind"):
            sock.bind(("127.0.0.1", 4711))
        with pytest.raises(OSError, match="tunnel expose"):
            sock.listen()
    with pytest.raises(ValueError, match="above 0"):
        create_connection(("db.internal", 80), timeout=0, runtime=runtime)


@pytest.mark.parametrize("address", [("a",), 5, ("a", "b"), (5, 5)])
def test_invalid_addresses_are_refused(address: Any) -> None:
    with pytest.raises(TypeError, match="host and port"):
        read_address(address)


@pytest.mark.parametrize("port", [0, 65536, -1])
def test_ports_out_of_range_are_refused(port: int) -> None:
    with pytest.raises(OverflowError, match="between 1 and 65535"):
        read_address(("a", port))


def test_addresses_may_be_bytes_or_those_of_ipv6() -> None:
    assert read_address((b"db.internal", 5)) == ("db.internal", 5)
    assert read_address(("::1", 5, 0, 0)) == ("::1", 5)


# settings


def test_configure_combines_its_arguments_and_the_environment(
    relay: RelayThread, monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    monkeypatch.setenv("TUNNEL_RELAY", relay.url)
    monkeypatch.setenv("TUNNEL_TOKEN", "wrong")
    monkeypatch.setenv("TUNNEL_CARRIER", "poll")
    settings = tunnel_client.configure(token=relay.token, proxy=None, user_timeout=60.0, links=2, pull_interval=0.05)
    known = known_peers_path()
    expected = RelaySettings(
        relay.url,
        "TUNNEL_RELAY",
        token=relay.token,
        proxy=None,
        carrier="poll",
        user_timeout=60.0,
        known_peers=known,
        links=2,
        pull_interval=0.05,
    )
    assert settings == expected
    with create_connection(("db.internal", listener.getsockname()[1]), DEADLINE_S):
        listener.accept()[0].close()
    with pytest.raises(TypeError, match=r"unexpected keyword argument .relai."):
        tunnel_client.configure(relai="")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="choose one of"):
        tunnel_client.configure(carrier="pigeon")
    with pytest.raises(ValueError, match="from 1 to 4 links"):
        tunnel_client.configure(links=0)
    monkeypatch.delenv("TUNNEL_RELAY")
    with pytest.raises(UnreachableError, match="no relay is known"):
        tunnel_client.configure()
