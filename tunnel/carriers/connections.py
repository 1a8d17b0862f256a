"""The HTTP connections of exchanges: each carries one request at a time, and is reused as long as that is wise.

Some paths carry only a few TCP connections at once. The next one is accepted by the system of the proxy, but nothing
reads from it until another one is closed. So a new connection that stays silent while others bring answers is one too
many: then requests wait here for a connection that works.
"""

import asyncio

import aiohttp

from tunnel.carriers.dialing import Dialing
from tunnel.carriers.reuse import Reuse
from tunnel.tasks import KeptTasks

__all__ = ["Connection", "Connections"]

_ANSWERS_MIN = 5  # answers on other connections during the silence of a new one, which show that the path works
_LIMIT_S_MIN = 60.0  # time for which a limit is kept; doubles up to the maximum
_LIMIT_S_MAX = 600.0


class Connection:
    """A place for one TCP connection, and for one request at a time. aiohttp opens it when a request needs it."""

    def __init__(self, dialing: Dialing, *, reuse: bool, answers_before: int) -> None:
        self.session: aiohttp.ClientSession = dialing.session(reuse=reuse)
        self.reuse = reuse
        self.has_answer = False
        self.is_retired = False
        self.answers_before = answers_before  # on all connections, when this one was made


class Connections:
    """The connections to one relay."""

    def __init__(self, dialing: Dialing) -> None:
        self._dialing = dialing
        self._reuse = Reuse()
        self._idle: list[Connection] = []
        self._busy: dict[Connection, None] = {}
        self._closing = KeptTasks()
        self._answers = 0
        self._most: int | None = None
        self._limit_s = _LIMIT_S_MIN
        self._limited_until_s = 0.0

    def take(self, now_s: float) -> Connection | None:
        """Return a connection that is free, or a new one; None if the path carries no more."""
        reuse = self._reuse.is_wise(now_s)
        for idle in [idle for idle in self._idle if idle.reuse is not reuse]:
            self._close(idle)
        if not self._idle:
            if self._most is not None and now_s < self._limited_until_s and len(self._busy) >= self._most:
                return None
            self._idle.append(Connection(self._dialing, reuse=reuse, answers_before=self._answers))
        connection = self._idle.pop()
        self._busy[connection] = None
        return connection

    def give_back(self, connection: Connection) -> None:
        """End the use of a connection. It is closed if it was retired."""
        del self._busy[connection]
        if connection.is_retired:
            self._close(connection)
        else:
            self._idle.append(connection)

    def retire(self) -> None:
        """Close all connections, those in use after their present request: they may be broken."""
        for idle in list(self._idle):
            self._close(idle)
        for busy in self._busy:
            busy.is_retired = True

    async def close(self) -> None:
        """Close all connections. None may be in use."""
        self.retire()
        await self._closing.done()

    # learning

    def answered(self, connection: Connection) -> None:
        """Record an answer."""
        connection.has_answer = True
        self._answers += 1

    def died(self, connection: Connection, now_s: float) -> None:
        """Record that a connection died before an answer began."""
        self._reuse.died(now_s, reused=connection.reuse and connection.has_answer)

    def is_one_too_many(self, connection: Connection, now_s: float) -> bool:
        """Return whether a connection on which a request got no answer in time exceeds what the path carries.

        Then no more connections are opened, for a while, than those that have brought answers.
        """
        if connection.has_answer or self._answers - connection.answers_before < _ANSWERS_MIN:
            return False
        working = sum(other.has_answer and not other.is_retired for other in (*self._busy, *self._idle))
        if not working:
            return False
        self._most = working
        self._limited_until_s = now_s + self._limit_s
        self._limit_s = min(_LIMIT_S_MAX, 2 * self._limit_s)
        return True

    def _close(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        self._closing.keep(asyncio.get_running_loop().create_task(connection.session.close()))
