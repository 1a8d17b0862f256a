"""A socket in the place of systemd's, and units as systemd reads them."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Notified", "command_of", "notified", "own_user", "settings_of"]

WAIT_S = 30


class Notified:
    """What a command has said to the service manager."""

    def __init__(self, receiver: socket.socket, path: str) -> None:
        self._receiver = receiver
        self.path = path
        self.said: list[str] = []

    def until(self, assignment: str) -> list[str]:
        """Return all that was said up to a message with this beginning of a line."""
        while not any(line.startswith(assignment) for line in self.said):
            self.said += self._receiver.recv(4096).decode().splitlines()
        return self.said

    def poll(self, *, is_empty: bool = False) -> None:
        """Read what was said already. Raise BlockingIOError if it is nothing, unless `is_empty` allows that."""
        self._receiver.setblocking(False)
        try:
            self.said += self._receiver.recv(4096).decode().splitlines()
        except BlockingIOError:
            if not is_empty:
                raise
        finally:
            self._receiver.settimeout(WAIT_S)


@contextlib.contextmanager
def notified(name: str = "") -> Iterator[Notified]:
    """Listen in a folder of its own, or under an abstract name."""
    with tempfile.TemporaryDirectory(prefix="n") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        path = name or str(Path(folder) / "s")
        one.bind(path)
        one.settimeout(WAIT_S)
        yield Notified(one, path)


def own_user(*paths: Path) -> str:
    """Return a user who is not root, and owns these files."""
    if os.geteuid():
        return pwd.getpwuid(os.geteuid()).pw_name
    for path in paths:
        os.chown(path, pwd.getpwnam("daemon").pw_uid, -1)
    return "daemon"


def settings_of(text: str) -> dict[str, list[str]]:
    """Return the settings of a unit with their values."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and line[0] not in "#[":
            name, equals, value = line.partition("=")
            assert equals, line
            found.setdefault(name, []).append(value)
    return found


def command_of(text: str) -> list[str]:
    """Return the words that systemd would run, with their specifiers and variables as they stand."""
    (line,) = settings_of(text)["ExecStart"]
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]
