"""How many bytes of a connection wait in the kernel because it cannot send them yet."""

import contextlib
import socket

__all__ = ["limit_unsent", "set_tcp_option"]

_NOTSENT_BYTES = 128 * 1024  # the kernel takes only what it can send soon, so that later packets can still go first
_OPTIONS_OF_LINUX = {"TCP_NOTSENT_LOWAT": 25, "TCP_USER_TIMEOUT": 18}  # some socket modules have no name for these


def limit_unsent(sock: socket.socket | None) -> None:
    """Keep the bytes few that the kernel takes before it can send them, where the system can do that."""
    set_tcp_option(sock, "TCP_NOTSENT_LOWAT", _NOTSENT_BYTES)


def set_tcp_option(sock: socket.socket | None, name: str, value: int) -> None:
    """Set a TCP option where the system has it. Without a socket, as in a test's transport, do nothing."""
    option = getattr(socket, name, None) or _OPTIONS_OF_LINUX.get(name)
    if sock is not None and option is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
