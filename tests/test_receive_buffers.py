"""The lock on the receive buffer of a TCP socket, as the kernel reports it."""

import socket
import sys

import pytest

from tests.support.buffers import is_kept
from tunnel.system.receive_buffers import keep_receive_buffer, let_receive_buffer_grow


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the option")
def test_a_receive_buffer_keeps_its_size_until_it_may_grow() -> None:
    with socket.socket() as sock:
        size_bytes = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        keep_receive_buffer(sock)
        assert is_kept(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == size_bytes
        let_receive_buffer_grow(sock)
        assert not is_kept(sock)


def test_a_closed_socket_is_left_alone() -> None:
    sock = socket.socket()
    sock.close()
    keep_receive_buffer(sock)
    let_receive_buffer_grow(sock)


def test_systems_without_the_option_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as sock:
        monkeypatch.setattr(sys, "platform", "darwin")
        keep_receive_buffer(sock)
        monkeypatch.undo()
        assert not is_kept(sock)
