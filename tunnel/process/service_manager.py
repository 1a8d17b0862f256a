"""What a command says to the service manager that has started it, as sd_notify(3) describes it.

systemd gives the socket for it in NOTIFY_SOCKET. Without that variable, nothing here does anything.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

from tunnel.ground.printable import printable

__all__ = ["STOP_SPARE_S", "say_ready", "say_status", "say_stopping", "watched"]

STOP_SPARE_S = 15  # time to end after connections had theirs to finish


def say_ready(status: str = "") -> None:
    """Say that the command does its work, or keeps trying to: units that come after it may start."""
    _say("READY=1", _status(status))


def say_status(status: str) -> None:
    """Say in a line what the command does or waits for: `systemctl status` shows it."""
    _say(_status(status))


def say_stopping(seconds: float = 0) -> None:
    """Say that the command ends, and that its connections may need so many seconds for it."""
    _say("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int((seconds + STOP_SPARE_S) * 1_000_000)}" if seconds else "")


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Say from the running event loop, while the context lasts, that it turns, if the service manager wants to know.

    Otherwise the service manager takes the process for one that hangs, and replaces it.
    """
    wanted = os.environ.get("WATCHDOG_USEC", "")
    ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    if not (wanted.isdecimal() and int(wanted) and ours):
        yield
        return
    loop = asyncio.get_running_loop()
    interval_s = int(wanted) / 1_000_000 / 3

    timers: list[asyncio.Handle] = []

    def turn() -> None:
        _say("WATCHDOG=1")
        timers[:] = [loop.call_later(interval_s, turn)]

    turn()
    try:
        yield
    finally:
        timers[0].cancel()


def _status(text: str) -> str:
    line = printable(" ".join(text.split()))  # it may hold words of a relay
    return f"STATUS={line}" if line else ""


def _say(*assignments: str) -> None:
    path = os.environ.get("NOTIFY_SOCKET", "")
    said = "\n".join(filter(None, assignments))
    if not said or path[:1] not in ("/", "@"):
        return
    address = f"\0{path[1:]}" if path[0] == "@" else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)  # a service manager that does not read must not stop the command
        sender.sendto(said.encode(), address)
