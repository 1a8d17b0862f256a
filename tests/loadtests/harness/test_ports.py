"""A held port is given to no other process, and a process that knows its number can listen on it."""

import socket

import pytest

from loadtests.harness.ports import hold_port


def test_a_held_port_refuses_connections_and_is_not_given_away() -> None:
    with hold_port() as port:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=30)
        others = []
        try:
            for _ in range(100):
                others.append(socket.create_server(("127.0.0.1", 0)))
            assert port not in [other.getsockname()[1] for other in others]
        finally:
            for other in others:
                other.close()


def test_a_held_port_is_free_at_every_address() -> None:
    """A server of another process at 127.0.0.2 would be in the way of one at 0.0.0.0."""
    with hold_port() as port, socket.socket() as other:
        with pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.2", port))
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("0.0.0.0", port))


def test_programs_may_listen_on_a_held_port_repeatedly() -> None:
    with hold_port() as port:
        for _ in range(3):
            with (
                socket.create_server(("127.0.0.1", port)) as server,
                socket.create_connection(("127.0.0.1", port), timeout=30) as client,
                server.accept()[0] as taken,
            ):
                client.sendall(b"hello")
                assert taken.recv(5) == b"hello"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=30)
