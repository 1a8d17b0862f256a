"""The HTTP connections of exchanges: each carries one request at a time, and is reused where the path allows it.

Some paths carry only a few TCP connections at once. The proxy's operating system accepts a further one, but the proxy
does not read from it until another one is closed. So a new connection that stays silent while others bring answers is
one too many. Other proxies refuse all requests, on every connection, while too many are open. Others cut connections
at once when many new ones have come in the last seconds, and count those that they cut, too. In all these cases, `take`
gives a request no connection, and it waits for one that works, or until a new one may be opened.
"""

import asyncio
import socket
from collections.abc import Iterable
from weakref import WeakSet

import aiohttp
from aiohappyeyeballs import AddrInfoType

from tunnel.carriers.dialing.dial_secrets import DialSecrets
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.http.resending import Resending
from tunnel.carriers.http.reuse import Reuse
from tunnel.system.linger import reset_when_closed
from tunnel.system.tasks import KeptTasks

__all__ = ["PAUSE_S", "Connection", "Connections", "reset_on_close"]

_ANSWERS_MIN = 5  # answers on other connections during the silence of a new one, which show that the path works
# A connection is silent if nothing came for this many times as long as the slowest request of late that no hold kept
# waiting: a path may delay each answer by a time of its own.
_SLOWEST_TIMES = 2
_SLOWEST_S = 30.0  # a slowest request counts for this long to twice as long
_LIMIT_S_MIN = 60.0  # time for which a limit is kept; doubles up to the maximum
_LIMIT_S_MAX = 600.0
_REFUSALS = 4  # new connections refused in succession, while others worked: then the path carries no more
_RECENT_S = 1.0  # later than this after the relay's last answer, refusals may mean that the relay is away
_DOUBT_S = 5.0  # after a refusal that may mean one connection too many, no additional one is opened for this long
_WARY_S = 60.0  # other programs may take and leave places of one limit, so a refusal says little for longer
_NEW_S = 1.0  # one too many is refused sooner; so a connection of this age works, even while its pull is held
_CUT_S_MIN = 0.1  # time without a new connection after one was cut before an answer; doubles up to the maximum
_SMALL_BYTES = 4096  # a cut after a larger body says nothing about the number of connections
_CUT_S_MAX = 3.0  # some paths let 5 connections in 10 s pass; also the first time, if others work meanwhile
PAUSE_S = 0.2  # time for the path to notice that the connection of a refused request was closed


def reset_on_close(sockets: Iterable[socket.socket]) -> None:
    """Let closing these sockets send a reset, so that a proxy ends its side at once, too."""
    for sock in sockets:
        if sock.fileno() >= 0:
            reset_when_closed(sock)


class Connection:
    """A place for one TCP connection, which aiohttp opens when a request needs it. It carries one request at a time."""

    def __init__(self, dialing: Dialing, *, reuse: bool, answers_before: int, place: int) -> None:
        self.session: aiohttp.ClientSession = dialing.session(
            reuse=reuse, make_socket=self._make_socket, middlewares=(self._note_request,)
        )
        self.resending: Resending | None = None  # set while further requests can repeat the head of an earlier one
        self._request: aiohttp.ClientRequest | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self.reuse = reuse
        self.has_answer = False
        self.works = False  # the relay has answered on it
        self.answered_s = float("-inf")  # when the relay last did
        self.is_retired = False
        self.taken_s = 0.0  # when the present request, or the latest, got this connection
        self.answers_before = answers_before  # number of answers on all connections when this one was made
        self.place = place  # if it works, the path carries this many: with itself, those open when it was made

    def reset_on_close(self) -> None:
        """Let the close send a reset, which takes effect even if the other side does not read the rest of a request.

        A proxy that refuses a request without reading it may otherwise count the connection as open for minutes.
        """
        reset_on_close(self._sockets)

    def keep_head(self, secrets: DialSecrets) -> None:
        """Let the next requests with these secrets repeat the head of the one that the session has just sent."""
        if self.reuse:
            self.resending = Resending.of(self._request, self.session.connector, secrets)
        self._request = None

    async def _note_request(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        response = await handler(request)
        self._request = request
        return response

    def _make_socket(self, address: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        sock = socket.socket(family, kind, protocol)
        self._sockets.add(sock)
        return sock


class _Slowest:
    """The longest time that a request of late took."""

    def __init__(self) -> None:
        self._now_s = self._before_s = 0.0  # of the present window and of the previous one
        self._began_s = 0.0

    @property
    def longest_s(self) -> float:
        return max(self._now_s, self._before_s)

    def sample(self, took_s: float, now_s: float) -> None:
        """Add what one request took."""
        if now_s - self._began_s >= _SLOWEST_S:
            self._before_s, self._now_s, self._began_s = self._now_s, 0.0, now_s
        self._now_s = max(self._now_s, took_s)


class Connections:
    """The connections to one relay. One thing because what requests meet on each of them decides how many more may be
    opened."""

    def __init__(self, dialing: Dialing) -> None:
        self._dialing = dialing
        self._reuse = Reuse()
        self._idle: list[Connection] = []
        self._busy: dict[Connection, None] = {}
        self._closing = KeptTasks()
        self._answers = 0
        self._carried = 1  # the number of connections that the path is known to carry at once
        self._made_s = 0.0  # when the newest connection was made
        self._most: int | None = None
        self._limit_s = _LIMIT_S_MIN
        self._limited_until_s = 0.0
        self._refusals = 0  # number of refusals in succession
        self._refused_s = float("-inf")  # when a request was last refused, perhaps for the number of connections
        self._pause_until_s = 0.0
        self._relay_answered_s = -_RECENT_S
        self._doubted = False
        self._slowest = _Slowest()
        self._body_bytes = self._answer_bytes = 0  # the largest request that the relay has answered; its largest answer
        self._cut_s = 0.0  # the present pause after a new connection was cut
        self._paused_s = float("-inf")  # when that pause began
        self.new_from_s = 0.0
        """When the next connection may be opened."""

    def take(self, now_s: float) -> Connection | None:
        """Return a connection that is free, or a new one; None if the path carries no more, at least now."""
        if now_s < self._pause_until_s:
            return None
        reuse = self._reuse.is_wise(now_s)
        for idle in tuple(self._idle):
            if idle.reuse is not reuse:
                self._close(idle)
        if self._cut_s and not any(idle.has_answer for idle in self._idle):
            if now_s < self.new_from_s:
                return None
            self.new_from_s = now_s + self._cut_s  # one at a time
        if not self._idle:
            if self._most is not None and now_s < self._limited_until_s and len(self._busy) >= self._most:
                return None
            place, self._made_s = 1 + len(self._busy), now_s
            self._idle.append(Connection(self._dialing, reuse=reuse, answers_before=self._answers, place=place))
        connection = self._idle[-1]
        if not connection.has_answer:
            connection = next((idle for idle in reversed(self._idle) if idle.has_answer), connection)
        self._idle.remove(connection)
        connection.taken_s = now_s
        self._busy[connection] = None
        return connection

    def give_back(self, connection: Connection) -> None:
        """End the use of a connection. It is closed if it was retired."""
        del self._busy[connection]
        if connection.is_retired:
            self._close(connection)
        else:
            self._idle.append(connection)

    def retire(self, now_s: float) -> None:
        """Close all connections, those in use after their present request: they may be broken. But keep those that work
        while new ones are cut."""
        if now_s >= self.new_from_s or not self._works(None):
            self._retire_all()

    def _retire_all(self) -> None:
        for idle in list(self._idle):
            self._close(idle)
        for busy in self._busy:
            busy.is_retired = True

    def is_unproven(self, connection: Connection, now_s: float) -> bool:
        """Return whether more connections are open than the path is known to carry, and the newest has just been made;
        or whether a request was refused since the relay has last answered on this connection.

        The caller then sends only the first bytes of a body, and the rest when no refusal has come. A proxy that allows
        fewer connections refuses all requests, and if it has the whole body of a refused request, it may count the
        connection as open even after a reset: Squid does so for 15 minutes. So with each refusal it would carry fewer.
        """
        if connection.answered_s < self._refused_s and now_s - self._refused_s < _WARY_S:
            return True
        return len(self._busy) + len(self._idle) > self._carried and now_s - self._made_s < _NEW_S

    async def close(self) -> None:
        """Close all connections. None may be in use."""
        self._retire_all()
        await self._closing.done()

    # learning

    def on_answered(
        self,
        connection: Connection,
        now_s: float,
        *,
        by_relay: bool,
        is_held: bool = False,
        body_bytes: int = 0,
        answer_bytes: int = 0,
    ) -> None:
        """Record an answer, and how large it and its request were. `is_held`: the relay may have held it."""
        if not is_held:
            self._slowest.sample(now_s - connection.taken_s, now_s)
        if by_relay and not connection.has_answer:
            self._cut_s = self._cut_s / 2 if self._cut_s > _CUT_S_MIN else 0.0
        connection.has_answer = True
        self._answers += 1
        if by_relay:
            self._relay_answered_s = connection.answered_s = now_s
            if body_bytes > self._body_bytes:
                self._body_bytes = body_bytes
            if answer_bytes > self._answer_bytes:
                self._answer_bytes = answer_bytes
        if by_relay and not connection.works:
            connection.works = True
            self._refusals = 0
            self._carried = max(self._carried, min(connection.place, len(self._busy) + len(self._idle)))

    def may_be_one_too_many(self, connection: Connection, now_s: float) -> bool:
        """Return whether too many open connections are a possible reason why a request on this one was refused.

        If so, the connection is closed after the request, and the caller soon repeats the request on another one. For
        a few seconds, no additional connection is opened.
        """
        self._refused_s = now_s
        others = sum(other.works for other in (*self._busy, *self._idle) if other is not connection)
        is_away = now_s - self._relay_answered_s > _RECENT_S
        is_in_doubt = self._doubted and now_s < self._limited_until_s
        if not others or is_away or (connection.works and not is_in_doubt):
            return False
        self._refusals += not connection.works
        connection.is_retired = True
        self._most, self._doubted = others, True
        self._carried = others
        self._limited_until_s = max(self._limited_until_s, now_s + _DOUBT_S)
        self._pause_until_s = now_s + PAUSE_S
        return True

    def on_waited(self, now_s: float, *, by_relay: bool) -> None:
        """Record the answer to a request that `may_be_one_too_many` made wait for a connection that works.

        If the relay answered, and enough requests were refused before, the number of connections is the likely reason
        and is limited. Otherwise the limit is lifted.
        """
        if not self._doubted:
            return
        self._doubted = False
        if by_relay and self._refusals >= _REFUSALS:
            self._limit(now_s)
        else:
            self._most = None
            self._limited_until_s = 0.0

    def on_died(self, connection: Connection, now_s: float, body_bytes: int = 0) -> None:
        """Record that a connection died before an answer to a body of this size began. The next request there opens
        another one."""
        self._reuse.on_died(now_s, reused=connection.reuse and connection.has_answer)
        had_worked, works = connection.works, self._works(connection)
        # A large body may itself be the reason. And what is cut together, as by a relay that is killed, is cut once.
        is_new = not connection.has_answer and body_bytes <= _SMALL_BYTES
        if is_new and connection.taken_s > self._paused_s:
            self._pause(_CUT_S_MAX if works else min(_CUT_S_MAX, max(_CUT_S_MIN, 2 * self._cut_s)), now_s)
        connection.has_answer = connection.works = False
        if had_worked and not works and self._cut_s > _CUT_S_MIN:  # it was so long since others worked
            self._pause(_CUT_S_MIN, now_s)

    def _pause(self, seconds: float, now_s: float) -> None:
        self._cut_s, self._paused_s, self.new_from_s = seconds, now_s, now_s + seconds

    def on_refused(self, connection: Connection) -> None:
        """Record that nothing listens there. So what was cut before has met the end of a relay, and not a limit, unless
        another connection works."""
        connection.has_answer = connection.works = False
        if not self._works(None):
            self._cut_s = self.new_from_s = 0.0

    def _works(self, but: Connection | None) -> bool:
        return any(one.works and not one.is_retired for one in (*self._busy, *self._idle) if one is not but)

    def is_one_too_many(self, connection: Connection, now_s: float, body_bytes: int = 0, answer_bytes: int = 0) -> bool:
        """Return whether this connection, on which a request got no answer in time, is one more than the path carries.

        If so, for a while only as many connections are opened as have brought answers. But a request of `body_bytes`,
        or its answer of about `answer_bytes`, may have been lost for its size, if nothing as large has passed.
        """
        if connection.has_answer or self._answers - connection.answers_before < _ANSWERS_MIN:
            return False
        if body_bytes > max(_SMALL_BYTES, self._body_bytes) or answer_bytes > 2 * self._answer_bytes:
            return False
        if now_s - connection.taken_s < _SLOWEST_TIMES * self._slowest.longest_s:
            return False
        working = sum(other.has_answer and not other.is_retired for other in (*self._busy, *self._idle))
        if not working:
            return False
        self._most = self._carried = working
        self._limit(now_s)
        return True

    def lift_limit(self, now_s: float) -> None:
        """Open connections again: those that requests wait for bring no answer. They end after their request."""
        self._most = None
        self._limited_until_s = 0.0
        self.retire(now_s)

    def _limit(self, now_s: float) -> None:
        self._limited_until_s = now_s + self._limit_s
        self._limit_s = min(_LIMIT_S_MAX, 2 * self._limit_s)

    def _close(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        self._closing.keep(asyncio.get_running_loop().create_task(connection.session.close()))
