"""A held port belongs to nobody but whoever is told of it."""

import socket

import pytest

from loadtests.harness.ports import hold_port


def test_a_held_port_refuses_and_is_given_to_nobody() -> None:
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


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_is_told_its_number_may_listen_more_than_once(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with hold_port(host) as port:
        for _ in range(3):
            with (
                socket.create_server((host, port), family=family) as server,
                socket.create_connection((host, port), timeout=30) as client,
                server.accept()[0] as taken,
            ):
                client.sendall(b"hello")
                assert taken.recv(5) == b"hello"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, port), timeout=30)
