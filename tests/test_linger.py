"""The end of a TCP connection as the peer of the closed socket sees it."""

import socket

import pytest

from tunnel.system.linger import deliver_when_closed, reset_when_closed


def connected_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return near, far


def test_the_peer_of_a_reset_socket_gets_an_error_and_not_the_end_of_the_stream() -> None:
    near, far = connected_pair()
    with far:
        reset_when_closed(near)
        near.close()
        with pytest.raises(ConnectionResetError):
            far.recv(1)


def test_the_peer_gets_what_was_written_and_then_the_end_if_delivery_was_set_last() -> None:
    near, far = connected_pair()
    with far:
        reset_when_closed(near)
        near.sendall(b"last words")
        deliver_when_closed(near)
        near.close()
        assert far.recv(100) == b"last words"
        assert far.recv(1) == b""
