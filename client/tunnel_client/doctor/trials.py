"""The questions of an examination: none raises, all keep to a budget, and one that a limiter refused is asked again.

A limiter is a hop, or a relay, that refuses requests because of their number, and not because of what they are. Some
statuses say so. Where an answer does not, a small exchange decides, which the relay answered before: if that is refused
as well, the path is closed for a while. The doctor then waits, and asks more slowly from then on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field

from tunnel.carriers.probes.probe import ProbeError, Prober, Reply
from tunnel_client.doctor.answers import is_from_limiter, may_be_from_limiter
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.pace import Budget

__all__ = ["ANSWER_S", "EXAMINING", "NOTHING_PASSES", "TRIES", "WORST", "Ask", "Limiter", "Trials", "now_s"]

EXAMINING = "examining the path to the relay"
NOTHING_PASSES = "nothing passes any more"
ANSWER_S = 10.0
SILENCE_S, WORST = 3.0, 5  # what a small question may take, once exchanges work: this, or so many times the longest one
SLOW_BYTES_PER_S = 150 << 10  # and a large one more, unless a larger rate was seen
_SLOWER = 10  # than the rate of one message may be that of the next
TRIES = 3

# Servers ban addresses that send more than 50 requests in 5 s: the least of many known limits that do not stop the
# tunnel itself in any case. haproxy counts bursts almost double.
REQUESTS, REQUESTS_S = 24, 5.0
CONNECTIONS, CONNECTIONS_S = 30, 10.0
SLOW_CONNECTIONS = 2  # once a limiter is known: a limit of 5 in 10 s is a real one, and haproxy counts double here, too
REST_S = 5.0  # at the end, besides the time in which the limited number of connections may begin
PAUSE_S = 0.5  # between requests, after a short refusal
BAN_PAUSE_S = 1.0  # the same after a longer one
PAUSE_S_MAX = 8.0
CONTROL_S = 0.2  # before the question that decides what refused another one
CONTROL_ANSWER_S = 3.0
_CONTROLS = 2  # an accident may befall one
_CONTROL_BYTES = 512  # of its answer, whatever waits at the relay
_FRESH_S = 1.0  # so long its answer holds
WAIT_S, WAIT_S_MAX = 1.0, 32.0  # before a closed path is asked again; doubles, because a question may renew a ban
GIVE_UP_S = 60.0
_QUIET_S = 2.0  # a longer pause is announced
_PAUSING = "pausing to stay below common limits of requests"
_BAN_S = 2.5  # a path that is closed for longer is not one that merely passes a number of requests per second

Ask = Callable[[], Coroutine[object, object, Reply]]


@dataclass
class Limiter:
    """A limiter that was found: its first answer, how many requests and bytes came before in how many seconds, and how
    long it refused everything, at most."""

    reply: Reply
    requests: int
    within_s: float
    moved_bytes: int
    lasted_s: float = 0.0


@dataclass
class Trials:
    """The exchanges that were made so far, and what they showed, for all steps.

    `median_s` and `worst_s` are the median and the longest time of an exchange. `pause_s` is the least time between two
    requests, once a limiter is known; `trips` counts how often one refused. `is_shut`: it did not let anything pass
    again. `failed` has the exchanges that a working path would have answered. `requests_max` is the number of requests
    that pass at once, or 0 if no limit was found. `products` names the hops that were recognised, `writers` those of
    them that wrote into answers to requests for the relay. One thing because all steps share one budget of requests,
    and what one step learns of a limiter slows down all others.
    """

    prober: Prober
    report: Report | None = None
    made: int = 0
    failed: list[Reply] = field(default_factory=list)
    median_s: float = 0.0
    worst_s: float = 0.0
    pause_s: float = 0.0
    requests_max: int = 0
    products: list[str] = field(default_factory=list)
    writers: list[str] = field(default_factory=list)
    limiter: Limiter | None = None
    trips: int = 0
    is_shut: bool = False
    has_link: bool = False  # and uses it: large exchanges are then not needed
    bytes_per_s: float = SLOW_BYTES_PER_S  # the rate at which large messages pass, at least
    vanishing: str = ""  # "requests" or "answers", if even the smallest ones that the tunnel needs vanish
    asked: int = 0
    _requests: Budget = field(default_factory=lambda: Budget(REQUESTS, REQUESTS_S))
    _connections: Budget = field(default_factory=lambda: Budget(CONNECTIONS, CONNECTIONS_S))
    _deciding: asyncio.Lock = field(default_factory=asyncio.Lock)
    _began_s: float = 0.0  # when the first request was sent
    _passes_since_s: float = float("-inf")
    _passed_s: float = float("-inf")  # when a control was answered

    @property
    def lanes(self) -> int:
        """The number of exchanges that the relay takes at once."""
        assert self.prober.attached is not None
        return self.prober.attached.lanes

    @property
    def verdict_without_exchanges(self) -> Verdict:
        """The verdict on a path that carries no large exchanges."""
        return Verdict.NOTE if self.has_link else Verdict.PROBLEM

    def patience_s(self, size: int = 0) -> float:
        """Return how long the answer may take, once exchanges work, if a message has this size."""
        return round(min(ANSWER_S, max(SILENCE_S, WORST * self.worst_s) + size / self.bytes_per_s), 1)

    def note_rate(self, size: int, seconds: float) -> None:
        """Note that a message of this size was answered within this time."""
        self.bytes_per_s = max(self.bytes_per_s, size / max(seconds, 1e-3) / _SLOWER)

    async def ask(self, make: Ask, seconds: float = ANSWER_S) -> Reply:
        """Ask once, as soon as the budget allows it. Return the reply, of kind `lost` if none came."""
        await self._until(self._requests.take(now_s()))
        began_s = now_s()
        if not self.asked:
            self._began_s = began_s
        self.asked += 1
        try:
            async with asyncio.timeout(seconds):
                return await make()
        except ProbeError as error:
            return _lost(str(error) or "no answer came", began_s)
        except TimeoutError:
            return _lost(f"no answer within {seconds:g} s", began_s)

    async def once(self, make: Ask, seconds: float = ANSWER_S, *, is_test: bool = False) -> Reply:
        """Ask, and ask again whenever a limiter refused the question. `is_test`: a failure does not count against the
        path."""
        for _ in range(TRIES):
            began_s = now_s()
            reply = await self.ask(make, seconds)
            if not await self.is_refused(reply, began_s):
                break
        if not is_test:
            self.count([reply])
        return reply

    def count(self, replies: list[Reply]) -> None:
        """Count exchanges that a working path would have answered."""
        self.made += len(replies)
        self.failed += [reply for reply in replies if reply.kind not in ("answer", "attached")]

    async def ask_until_answered(self, make: Ask, seconds: float = ANSWER_S, *, is_test: bool = False) -> Reply:
        """Try up to three times to get the relay's answer; return the last reply. A timeout is not tried again."""
        for _ in range(TRIES):
            reply = await self.once(make, seconds, is_test=is_test)
            if reply.kind in ("answer", "attached", "status") or (reply.kind == "lost" and reply.seconds >= seconds):
                break
        return reply

    async def is_refused(self, reply: Reply, began_s: float | None = None, *, is_alone: bool = True) -> bool:
        """Return whether this reply to a question, which was asked at `began_s`, shows a limiter.

        If so, return once requests pass again, or the path `is_shut`. `is_alone`: the question came alone; otherwise
        even a status that speaks of too many requests may mean those at once.
        """
        is_certain = is_alone and is_from_limiter(reply)
        if self.is_shut or self.prober.attached is None or not (is_from_limiter(reply) or may_be_from_limiter(reply)):
            return False
        async with self._deciding:
            if began_s is not None and began_s < self._passes_since_s:
                return True  # another question has found the limiter, and waited
            if self.is_shut:
                return False
            if not is_certain and await self._passes():
                return False
            await self.wait_out(reply, self._control, lambda last: last.kind == "answer")
        return not self.is_shut

    async def wait_out(
        self, reply: Reply, again: Callable[[], Awaitable[Reply]], passes: Callable[[Reply], bool]
    ) -> Reply:
        """Wait until what `again` asks `passes`: as long as the answers say, and longer from time to time. Return the
        last reply. If nothing passes for long, the path `is_shut`."""
        if self.limiter is None:
            self.limiter = self._found(reply)
        began_s, wait_s, last = now_s(), WAIT_S, reply
        doing, takes_s = self._step()
        if doing == _PAUSING:  # of another question, which may go on before this one
            doing, takes_s = EXAMINING, 0.0
        while (waited_s := now_s() - began_s) < GIVE_UP_S and last.wait_ms / 1e3 <= GIVE_UP_S:
            self._tell(f"waiting until a limiter lets requests pass again ({waited_s:.0f} s so far)", is_news=True)
            await asyncio.sleep(max(wait_s, last.wait_ms / 1e3))
            last = await again()
            if passes(last):
                break
            wait_s = min(2 * wait_s, WAIT_S_MAX)
        else:
            self.is_shut = True
        self._tell(doing, takes_s)
        self.limit(reply, now_s() - began_s)
        self._passes_since_s = now_s()
        return last

    def limit(self, reply: Reply, lasted_s: float = 0.0) -> None:
        """Note that a limiter gave this reply, and ask more slowly from now on."""
        if self.limiter is None:
            self.limiter = self._found(reply)
        self.limiter.lasted_s = max(self.limiter.lasted_s, lasted_s)
        self.trips += 1
        self.slow_down(max(2 * self.pause_s, BAN_PAUSE_S if lasted_s > _BAN_S else PAUSE_S))

    def slow_down(self, pause_s: float) -> None:
        """From now on, let this time pass between requests, and open few connections."""
        self.pause_s = min(PAUSE_S_MAX, pause_s)
        self._requests = self._requests.with_limits(1, self.pause_s)
        self._connections = self._connections.with_limits(SLOW_CONNECTIONS, CONNECTIONS_S)

    async def room(self, requests: int, connections: int = 0) -> None:
        """Wait until the budget lets this number of requests and new connections begin at once."""
        at_s = now_s()
        if not self.pause_s:
            at_s = max(at_s, self._requests.free_s(at_s, requests))
        if connections:
            at_s = max(at_s, self._connections.free_s(at_s, connections))
        await self._until(at_s)
        for _ in range(connections):
            self._connections.take(now_s())

    async def spend(self, requests: int, connections: int) -> None:
        """Wait as `room` does, for requests that are not asked through this object."""
        await self.room(requests, connections)
        for _ in range(1 if self.pause_s else requests):
            await self._until(self._requests.take(now_s()))

    async def leave(self) -> None:
        """Leave the relay, in a request for each attachment, if it answers; what it keeps otherwise harms no
        verdict."""
        prober = self.prober
        while prober.attached is not None and not self.is_shut and not prober.has_left:
            reply = await self.ask(prober.leave, self._control_answer_s)
            if reply.kind != "answer":
                return

    async def rest(self) -> None:
        """If there is a limiter, wait until the next command may open as many connections as it likes to."""
        if self.pause_s and not self.is_shut:
            self._tell("waiting, so that the next command finds the limiter at rest", is_news=True)
            await asyncio.sleep(self._connections.free_s(now_s(), SLOW_CONNECTIONS) - now_s())
            await asyncio.sleep(REST_S)

    async def _until(self, at_s: float) -> None:
        """Wait until then, and say so if it takes long."""
        wait_s = at_s - now_s()
        if wait_s <= 0:
            return
        doing, takes_s = self._step()
        if wait_s < _QUIET_S or self.report is None or self.pause_s or doing == _PAUSING:
            await asyncio.sleep(wait_s)
            return
        self.report.begin(_PAUSING, round(wait_s, 1))
        await asyncio.sleep(wait_s)
        self.report.begin(doing, takes_s)

    def _found(self, reply: Reply) -> Limiter:
        return Limiter(reply, self.asked, now_s() - self._began_s, self.prober.moved_bytes)

    async def _passes(self) -> bool:
        """Return whether a question passes that passed before: then nothing refuses all requests alike.

        The pauses keep a hop that lets some requests per second pass from refusing the next one. One such question in
        a while is enough: where each second request fails, the refused one would always be the same.
        """
        if now_s() < self._passed_s + _FRESH_S:
            await asyncio.sleep(CONTROL_S)
            return True
        for _ in range(_CONTROLS):
            await asyncio.sleep(CONTROL_S)
            if (await self._control()).kind == "answer":
                await asyncio.sleep(CONTROL_S)
                self._passed_s = now_s()
                return True
        return False

    async def _control(self) -> Reply:
        return await self.ask(lambda: self.prober.fetch(_CONTROL_BYTES, lane=self.lanes - 1), self._control_answer_s)

    @property
    def _control_answer_s(self) -> float:
        """How long the answer to the smallest question may take."""
        return max(CONTROL_ANSWER_S, 3 * self.worst_s)

    def _step(self) -> tuple[str, float]:
        """Return what is being tried, and how long it was said to take, so that it goes on as that after a wait."""
        return (_PAUSING, 0.0) if self.report is None else (self.report.doing, self.report.takes_s)

    def _tell(self, doing: str, takes_s: float = 0.0, *, is_news: bool = False) -> None:
        if self.report is not None:
            self.report.begin(doing, takes_s, is_news=is_news)


def now_s() -> float:
    """Return the time of the running loop."""
    return asyncio.get_running_loop().time()


def _lost(text: str, began_s: float) -> Reply:
    return Reply("lost", 0, text, now_s() - began_s, {})
