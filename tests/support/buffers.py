"""The buffers that the kernel has for sockets: what it says about one, and who asked for a large one."""

import socket
import sys

import pytest

from tunnel.streams.target_side import LargeBuffers

__all__ = ["is_kept", "users_who_ask"]


def is_kept(sock: socket.socket) -> bool:
    """Whether the receive buffer keeps its size, by Linux's SO_BUF_LOCK (asm-generic/socket.h); elsewhere it never
    does."""
    return sys.platform == "linux" and bool(sock.getsockopt(socket.SOL_SOCKET, 72) & 2)


def users_who_ask(monkeypatch: pytest.MonkeyPatch, module: str) -> list[str]:
    """Return a list to which the user is added for each large buffer that the code of this module asks for."""
    users: list[str] = []

    class Asked(LargeBuffers):
        def take(self, user: str) -> bool:
            users.append(user)
            return super().take(user)

    monkeypatch.setattr(f"{module}.LargeBuffers", Asked)
    return users
