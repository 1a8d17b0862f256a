"""Loopback pairs: no other process can become one end, and a *muted* socket, whose pair exists already but which may
not be used yet, looks like one that is still connecting."""

import select
import socket

import pytest

from tunnel_client.borrowed.pair import (
    accept_verified,
    connect_near,
    listen_near,
    muted_pair,
    name_of,
    renew,
    unmute,
    widen,
)


def test_connections_of_other_processes_are_closed() -> None:
    with listen_near() as listener, socket.socket() as ours:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            name = connect_near(ours, port)
            with accept_verified(listener, name) as near:
                near.sendall(b"for you")
                assert ours.recv(100) == b"for you"
                assert name_of(near.getpeername()) == name
            assert stranger.recv(1) == b""


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("timeout", [None, 0.0, 30.0])
def test_a_parked_socket_is_not_ready_until_it_is_unparked(timeout: float | None, family: int) -> None:
    if family == socket.AF_INET6 and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with socket.socket(family) as sock:
        sock.settimeout(timeout)
        near, skip = muted_pair(sock)
        with near:
            assert sock.gettimeout() == timeout
            assert select.select([sock], [sock], [], 0.1) == ([], [], [])
            widen(near)
            assert len(near.recv(skip, socket.MSG_WAITALL)) == skip
            assert select.select([], [sock], [], 30.0)[1] == [sock]
            unmute(sock)
            sock.send(b"first")
            assert near.recv(100) == b"first"


def test_a_renewed_socket_keeps_its_descriptor_and_can_connect_again() -> None:
    with socket.socket() as sock:
        sock.settimeout(30.0)
        number = sock.fileno()
        near, _ = muted_pair(sock)
        near.close()
        renew(sock)
        assert sock.fileno() == number
        again, skip = muted_pair(sock)
        with again:
            again.recv(skip, socket.MSG_WAITALL)
    renew(sock)  # harmless for a closed socket
