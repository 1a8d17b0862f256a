"""Notices when a program under `tunnel run` bypasses the tunnel, which sees only the sockets that Python opens.

It reads the kernel's tables of connections at intervals. So it may miss a connection that ends quickly, but not one
that hangs at a firewall.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from tunnel.command_line import tell
from tunnel_client.borrowed.hosts import Hosts

__all__ = ["Bypasses", "Noticing"]

_PROC = Path("/proc")
_TABLES = ("tcp", "tcp6", "udp", "udp6")
_LISTENING = "0A"
_FIRST_LOOK_S, _GROWTH, _LAST_LOOK_S = 0.05, 1.2, 1.0  # programs connect soon after they start
_NOTICE = (
    "tunnel: {program} (process {pid}) connects to {address} and bypasses the tunnel{unless}: `tunnel run` redirects "
    "only sockets that Python itself opens. Start this program without `tunnel run`, with `tunnel proxy 1080` and "
    "HTTPS_PROXY=http://127.0.0.1:1080 (for Java -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1080), or use "
    "`tunnel forward`"
)


@dataclass(frozen=True, slots=True)
class _Remote:
    """The far end of a socket."""

    kind: str
    address: IPv4Address | IPv6Address
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if self.address.version == 6 else f"{self.address}:{self.port}"


class Bypasses:
    """Finds connections of a process and its descendants that bypass the tunnel. Without Linux's /proc it finds none.

    `greeted` returns the ids of the processes that have told `tunnel run` that they use its tunnel
    (`borrowed/borrower.py`). The hook that replaces Python's sockets runs in these, so only their C extensions can
    bypass the tunnel. Connections to addresses that match no pattern are ignored, with one exception: if a pattern is a
    name, every TCP connection of a process without the hook counts, except to loopback, since the address does not show
    whether the host has that name.
    """

    def __init__(self, pid: int, greeted: Callable[[], set[int]], hosts: Hosts, proc: Path = _PROC) -> None:
        self._pid = pid
        self._greeted = greeted
        self._hosts = hosts
        self._proc = proc

    def look(self) -> str | None:
        """Return a sentence about the first connection that is found, or None."""
        remotes = self._remotes()
        if not remotes:
            return None
        for pid, hooked in self._processes():
            for remote in filter(None, map(remotes.get, self._inodes(pid))):
                if self._is_ours(remote, hooked):
                    matches = str(remote.address) in self._hosts
                    return _NOTICE.format(
                        program=self._name(pid),
                        pid=pid,
                        address=remote,
                        unless="" if matches else ", if this is one of your --hosts",
                    )
        return None

    def _is_ours(self, remote: _Remote, hooked: bool) -> bool:
        """Return whether this connection should use the tunnel, or may be one that should: if a pattern is a name, the
        address alone does not show it."""
        is_tcp = remote.kind.startswith("tcp")
        if str(remote.address) in self._hosts:
            return is_tcp or not hooked  # with the hook, UDP is no bypass: the C library asks name servers over UDP
        return is_tcp and not hooked and self._hosts.has_names and not remote.address.is_loopback

    def _remotes(self) -> dict[int, _Remote]:
        """Return the far ends of sockets that connect or are connected, by inode. Accepted connections are left out."""
        found: dict[int, _Remote] = {}
        for kind in _TABLES:
            rows = [line.split() for line in self._read(self._pid, "net", kind).splitlines()[1:]]
            listening = {row[1].rpartition(":")[2] for row in rows if row[3] == _LISTENING}
            for row in rows:
                host, _, port = row[2].rpartition(":")
                if int(port, 16) and row[1].rpartition(":")[2] not in listening:
                    found[int(row[9])] = _Remote(kind, _address(host), int(port, 16))
        return found

    def _processes(self) -> Iterator[tuple[int, bool]]:
        """Yield the process and each descendant, and whether the hook runs in it.

        A forked process inherits the hook. It is recognised by its stack, which begins at the same address as that of
        its parent; the stack of a newly executed program does not.
        """
        greeted = self._greeted()
        waiting: list[tuple[int, int, bool]] = [(self._pid, 0, False)]
        while waiting:
            pid, parent, parent_hooked = waiting.pop()
            forked = parent_hooked and self._stack(pid) == self._stack(parent)
            hooked = pid in greeted or forked
            yield pid, hooked
            waiting += [(child, pid, hooked) for child in self._children(pid)]

    def _children(self, pid: int) -> list[int]:
        found = []
        for task in self._list(pid, "task"):
            found += [int(child) for child in self._read(pid, "task", task, "children").split()]
        return found

    def _stack(self, pid: int) -> str:
        words = self._read(pid, "stat").rpartition(")")[2].split()
        return words[25] if len(words) > 25 else ""

    def _inodes(self, pid: int) -> Iterator[int]:
        """Iterate over the inodes of the sockets that the process has open."""
        for number in self._list(pid, "fd"):
            with suppress(OSError):
                kind, _, inode = os.readlink(self._proc / str(pid) / "fd" / number).partition(":")
                if kind == "socket":
                    yield int(inode.strip("[]"))

    def _name(self, pid: int) -> str:
        return self._read(pid, "comm").strip() or "a program"

    def _list(self, pid: int, folder: str) -> list[str]:
        with suppress(OSError):
            return os.listdir(self._proc / str(pid) / folder)
        return []  # the process has ended, or belongs to another user

    def _read(self, pid: int, *path: str) -> str:
        with suppress(OSError):
            return self._proc.joinpath(str(pid), *path).read_text(errors="replace")
        return ""


class Noticing:
    """Prints the first notice of `bypasses` on standard error, and then stops looking. Use it as a context manager."""

    def __init__(self, bypasses: Bypasses) -> None:
        self.has_noticed = False
        self._bypasses = bypasses
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tunnel-bypasses", daemon=True)

    def __enter__(self) -> "Noticing":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = _FIRST_LOOK_S
        while not self._over.wait(pause_s):
            notice = self._bypasses.look()
            if notice is not None:
                self.has_noticed = True
                tell(notice)
                return
            pause_s = min(_GROWTH * pause_s, _LAST_LOOK_S)


def _address(text: str) -> IPv4Address | IPv6Address:
    """Return an address that the kernel printed as words of 32 bits in the order of this machine."""
    words = [int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8)]
    found = ip_address(b"".join(words))
    return getattr(found, "ipv4_mapped", None) or found
