"""Notices when a program under `tunnel run` bypasses the tunnel, which sees only the sockets that Python opens.

It reads the kernel's tables of connections at intervals. So it may miss a connection that ends quickly, but not one
that hangs at a firewall. Clients in C that Python programs load are noticed otherwise (`borrowed/c_clients.py`).
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from tunnel.process.command_line import tell
from tunnel_client.borrowed.hosts import Hosts

__all__ = ["Bypass", "Bypasses", "Noticing", "Remote", "program_name"]

_PROC = Path("/proc")
_TABLES = ("tcp", "tcp6", "udp", "udp6")
_LISTENING = "0A"
_DNS_PORT = 53
_FIRST_LOOK_S, _GROWTH, _LAST_LOOK_S = 0.05, 1.2, 1.0  # programs connect soon after they start
_NOTICE = (
    "tunnel: {program} (process {pid}) connects to {address} and bypasses the tunnel{unless}: `tunnel run` redirects "
    "only sockets that Python itself opens. Start this program without `tunnel run`, with `tunnel proxy 1080` and "
    "HTTPS_PROXY=http://127.0.0.1:1080 (for Java -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1080), or use "
    "`tunnel forward`"
)


@dataclass(frozen=True, slots=True)
class Remote:
    """The far end of a socket."""

    kind: str
    address: IPv4Address | IPv6Address
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if self.address.version == 6 else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Bypass:
    """A connection that bypasses the tunnel; or one that may, if the address does not show whether it should use it."""

    pid: int
    program: str
    remote: Remote
    is_certain: bool

    @property
    def is_connection(self) -> bool:
        """Whether this is more than a question to a name server."""
        return not (self.remote.kind.startswith("udp") and self.remote.port == _DNS_PORT)

    @property
    def notice(self) -> str:
        """A sentence that says what happened, and what to do."""
        unless = "" if self.is_certain else ", if this is one of your --hosts"
        return _NOTICE.format(program=self.program, pid=self.pid, address=self.remote, unless=unless)


class Bypasses:
    """Finds connections of a process and its descendants that bypass the tunnel. Without Linux's /proc it finds none.

    `greeted` returns the ids of the processes that have told `tunnel run` that they use its tunnel
    (`borrowed/borrower.py`). The hook that replaces Python's sockets runs in these, so only their C extensions can
    bypass the tunnel. Connections to addresses that match no pattern are ignored, with one exception: if a pattern is a
    name, every TCP connection of a process without the hook counts, except to loopback, since the address does not show
    whether the host has that name.
    """

    def __init__(
        self, pid: int, greeted: Callable[[], set[int]], hosts: Hosts, proc: Path = _PROC, own_pid: int = 0
    ) -> None:
        self._pid = pid
        self._own_pid = own_pid or os.getpid()
        self._seen: set[int] = set()  # the inodes of sockets that were found before, and still exist
        self._greeted = greeted
        self._hosts = hosts
        self._proc = proc

    def look(self) -> list[Bypass]:
        """Return the connections that were not there at the look before this one."""
        remotes = self._remotes()
        self._seen &= remotes.keys()
        found: list[Bypass] = []
        for pid, hooked in self._processes() if remotes else ():
            for inode in self._inodes(pid):
                remote = remotes.get(inode)
                if remote is not None and inode not in self._seen and self._is_ours(remote, hooked):
                    self._seen.add(inode)
                    found.append(Bypass(pid, program_name(pid, self._proc), remote, str(remote.address) in self._hosts))
        return found

    def _is_ours(self, remote: Remote, hooked: bool) -> bool:
        """Return whether this connection should use the tunnel, or may be one that should: if a pattern is a name, the
        address alone does not show it."""
        is_tcp = remote.kind.startswith("tcp")
        if str(remote.address) in self._hosts:
            return is_tcp or not hooked  # with the hook, UDP is no bypass: the C library asks name servers over UDP
        return is_tcp and not hooked and self._hosts.has_names and not remote.address.is_loopback

    def _remotes(self) -> dict[int, Remote]:
        """Return the far ends of sockets that connect or are connected, by inode.

        Left out are accepted connections, and those to this process, over which the programs use the tunnel.
        """
        found: dict[int, Remote] = {}
        own = set(self._inodes(self._own_pid))
        ours: set[int] = set()  # the local ports of this process
        for kind in _TABLES:
            rows = [line.split() for line in self._read(self._pid, "net", kind).splitlines()[1:]]
            listening = {row[1].rpartition(":")[2] for row in rows if row[3] == _LISTENING}
            for row in rows:
                host, _, port = row[2].rpartition(":")
                near = row[1].rpartition(":")[2]
                if int(row[9]) in own:
                    ours.add(int(near, 16))
                elif int(port, 16) and near not in listening:
                    found[int(row[9])] = Remote(kind, _address(host), int(port, 16))
        return {inode: far for inode, far in found.items() if not (far.address.is_loopback and far.port in ours)}

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

    def _list(self, pid: int, folder: str) -> list[str]:
        with suppress(OSError):
            return os.listdir(self._proc / str(pid) / folder)
        return []  # the process has ended, or belongs to another user

    def _read(self, pid: int, *path: str) -> str:
        with suppress(OSError):
            return self._proc.joinpath(str(pid), *path).read_text(errors="replace")
        return ""


class Noticing:
    """Looks for bypasses until the end of the context, collects them, and prints the first notice on standard error."""

    def __init__(self, bypasses: Bypasses, *, tells: bool = True) -> None:
        self.first: Bypass | None = None
        self.certain = 0  # connections that bypassed the tunnel
        self.possible = 0  # and those of which the address does not show whether they should have used it
        self._tells = tells
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
            self._take(self._bypasses.look())
            pause_s = min(_GROWTH * pause_s, _LAST_LOOK_S)

    def _take(self, found: list[Bypass]) -> None:
        if found and self.first is None:
            self.first = found[0]
            if self._tells:
                tell(self.first.notice)
        connections = [bypass for bypass in found if bypass.is_connection]
        self.certain += sum(bypass.is_certain for bypass in connections)
        self.possible += sum(not bypass.is_certain for bypass in connections)


def program_name(pid: int, proc: Path = _PROC) -> str:
    """Return the name of a process, or words that fit if it is unknown."""
    with suppress(OSError):
        return (proc / str(pid) / "comm").read_text(errors="replace").strip() or "a program"
    return "a program"


def _address(text: str) -> IPv4Address | IPv6Address:
    """Return an address that the kernel printed as words of 32 bits in the order of this machine."""
    words = [int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8)]
    found = ip_address(b"".join(words))
    return getattr(found, "ipv4_mapped", None) or found
