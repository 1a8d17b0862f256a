"""The users of a broker: their turns at the processor, and what each of them holds of that which all need.

A connection through a relay belongs to the user that the relay names. One over TCP belongs to its address, or to its
network of /64: a machine with IPv6 has as many addresses as it likes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any, TypeVar

from tunnel.messages.payers import Payer
from tunnel.process.garbage import CollectorTime
from tunnel.turns.charging import Charged
from tunnel.turns.meter import ProcessorMeter
from tunnel.turns.queues import Turns

__all__ = ["OPERATOR", "Holdings", "Slots", "User", "Users", "is_local", "payer_of", "user_of"]

OPERATOR = ""
"""Owns the topics that the command names, and what earlier versions have stored."""

_DISK_READS_MAX = 2  # reads from the disk that one user has at once: they take threads from other users
_T = TypeVar("_T")


def user_of(writer: asyncio.StreamWriter) -> str:
    """Return the user of a connection."""
    is_tunnel = writer.get_extra_info("tunnel_connection") is not None
    return payer_of(writer.get_extra_info("peername"), is_tunnel=is_tunnel)


def is_local(user: str) -> bool:
    """Whether this user is the machine of the broker: it may delete what belongs to others."""
    kind, _, name = user.partition(" ")
    if kind != "address":
        return False
    return name == "local" or ("/" not in name and ip_address(name).is_loopback)


def payer_of(peer: object, *, is_tunnel: bool) -> str:
    """Return the user for the name of a connection's peer, as `get_extra_info` gives it."""
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    if is_tunnel:
        return f"user {host}"
    if not host:
        return "address local"
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return f"address {address.ipv4_mapped}"
        if not address.is_loopback:
            return f"address {IPv6Network((int(address) >> 64 << 64, 64))}"
    return f"address {address}"


class Holdings:
    """How many of something each user holds. A user may hold no more than remain free: one alone gets half of all, and
    two that hold the same a third each. The operator may take all."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self.of_user: Counter[str] = Counter()

    def may_add(self, user: str, count: int = 1) -> bool:
        """Whether the user may hold this many more."""
        free = self.most - self.total - count
        return free >= 0 and (user == OPERATOR or self.of_user[user] + count <= free)

    def why_not(self, user: str, count: int, what: str) -> str:
        """Return why the user may not have this many more, or nothing."""
        if self.may_add(user, count):
            return ""
        of_user = (
            "" if user == OPERATOR else f"; {user} has {self.of_user[user]}, and may have no more than remain free"
        )
        return f"the broker has {self.total} {what} and may have {self.most}, {count} more are too many{of_user}"

    def add(self, user: str, count: int = 1) -> None:
        """Count more, or fewer, of a user."""
        self.total += count
        self.of_user[user] += count
        if not self.of_user[user]:
            del self.of_user[user]


class Slots:
    """Places that connections wait for. A user may have one, and more if no more than remain free. Users take turns."""

    def __init__(self, most: int) -> None:
        self._held = Holdings(most)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the user who got a place least recently is first

    def locked(self) -> bool:
        """Whether all places are taken."""
        return self._held.total >= self._held.most

    async def acquire(self, user: str) -> None:
        """Wait for a place."""
        if user not in self._waiting and self._is_free_for(user):
            self._held.add(user)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(user)
            raise

    def release(self, user: str) -> None:
        """Give a place back."""
        self._held.add(user, -1)
        while (found := next(filter(self._is_free_for, self._waiting), None)) is not None:
            queue = self._waiting.pop(found)
            future = queue.popleft()
            if queue:
                self._waiting[found] = queue
            if not future.done():
                self._held.add(found)
                future.set_result(None)

    def _is_free_for(self, user: str) -> bool:
        return not self.locked() and (not self._held.of_user[user] or self._held.may_add(user))


class User(Payer):
    """A user of the broker, for as long as there is a connection. Pays for the work and the memory of requests."""

    def __init__(self, name: str, turns: Turns | None = None, requests: Holdings | None = None) -> None:
        self.name = name
        self.listing = asyncio.Lock()
        """One list of positions of a user is made, or waited for, at a time."""
        self.disk_reads = asyncio.Semaphore(_DISK_READS_MAX)
        self._turns = turns
        self._requests = requests

    async def turn(self) -> None:
        if self._turns is not None and self._turns.is_stopped(self.name):
            await self._turns.wait_for_turn(self.name)

    def charge_for(self, work: Coroutine[Any, Any, _T]) -> Coroutine[Any, Any, _T]:
        return work if self._turns is None else Charged(self._turns, self.name, work)

    def hold(self, size: int) -> bool:
        if self._requests is None:
            return True
        if not self._requests.may_add(self.name, size):
            return False
        self._requests.add(self.name, size)
        return True

    def free(self, size: int) -> None:
        if self._requests is not None:
            self._requests.add(self.name, -size)


class Users:
    """The users who have connections now."""

    def __init__(self, connections_max: int, requests_bytes_max: int, members_max: int) -> None:
        self.collector = CollectorTime()
        self.turns = Turns(meter=ProcessorMeter(garbage=self.collector))
        self.connections = Holdings(connections_max)
        self.requests = Holdings(requests_bytes_max)
        self.members = Holdings(members_max)
        self._found: dict[str, User] = {}

    def admit(self, name: str) -> User | None:
        """Count a new connection of a user. Return None if the user has too many."""
        if not self.connections.may_add(name):
            return None
        self.connections.add(name)
        user = self._found.get(name)
        if user is None:
            user = self._found[name] = User(name, self.turns, self.requests)
        return user

    def on_left(self, user: User) -> None:
        """Note that a connection has ended."""
        self.connections.add(user.name, -1)
        if user.name not in self.connections.of_user:
            del self._found[user.name]

    def close(self) -> None:
        """Let all go on, because the broker ends."""
        self.turns.close()
        self.collector.close()
