"""An endpoint beside its relay, in one process and one event loop: real lanes and envelopes, no HTTP."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol, TypeAlias

from tunnel.carriers.exchanging import ExchangingCarrier, Outcomes
from tunnel.exchange import LaneConfig, Lanes, Request
from tunnel.wire import Buffer

__all__ = ["Answered", "MemoryCarrier", "MemoryRelay", "Relay", "SwitchLike"]

Answered: TypeAlias = Callable[[int, bytes], None]  # HTTP status, body


class Relay(Protocol):
    """Whoever answers exchanges in this process."""

    def post(self, user: str, body: bytes, answered: Answered, *, is_exit: bool) -> int:
        """One request; `answered` is called once, not before this returned. The number names it for `gone`."""

    def gone(self, number: int) -> None:
        """Nobody waits for this answer any more: `answered` is not called."""


class ResponseLike(Protocol):
    """An answer of the switch."""

    @property
    def handle(self) -> int: ...

    @property
    def status(self) -> int: ...

    @property
    def body(self) -> Sequence[Buffer]: ...


class SwitchLike(Protocol):
    """The relay's switch, as far as exchanges are concerned."""

    def request(self, handle: int, user: str, body: Buffer, now: int, *, is_exit: bool = False) -> None: ...

    def gone(self, handle: int, now: int) -> None: ...

    def poll_response(self) -> ResponseLike | None: ...

    def handle_timeout(self, now: int) -> None: ...

    def next_timeout(self) -> int | None: ...


class MemoryRelay:
    """Pumps a switch that nobody else pumps. `now` is the clock that its endpoints use."""

    def __init__(self, switch: SwitchLike, now: Callable[[], int]) -> None:
        self.switch = switch
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, Answered] = {}
        self._requests: deque[tuple[int, str, bytes, bool]] = deque()
        self._count = 0
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    def post(self, user: str, body: bytes, answered: Answered, *, is_exit: bool) -> int:
        self._count += 1
        self._waiting[self._count] = answered
        self._requests.append((self._count, user, body, is_exit))
        self._schedule()
        return self._count

    def gone(self, number: int) -> None:
        if self._waiting.pop(number, None) is not None:
            self.switch.gone(number, self._now())

    def close(self) -> None:
        """Answer nothing any more."""
        self._waiting.clear()
        self._requests.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        now = self._now()
        while self._requests:
            number, user, body, is_exit = self._requests.popleft()
            if number in self._waiting:
                self.switch.request(number, user, body, now, is_exit=is_exit)
        self.switch.handle_timeout(now)
        while (response := self.switch.poll_response()) is not None:
            answered = self._waiting.pop(response.handle, None)
            if answered is not None:
                answered(response.status, b"".join(response.body))
        self._arm(now)

    def _arm(self, now: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_us = self.switch.next_timeout()
        if due_us is not None:
            self._timer = self._loop.call_later(max(0, due_us - now) / 1e6, self._run)


class MemoryCarrier(ExchangingCarrier):
    """Exchanges with a relay in this process, in the name of a user."""

    def __init__(
        self,
        relay: Relay,
        secret: bytes,
        random: Random,
        *,
        user: str,
        name: str = "",
        is_exit: bool = False,
        config: LaneConfig | None = None,
    ) -> None:
        lanes = Lanes(config or LaneConfig(), secret, random, endpoint_name=name)
        super().__init__(lanes, _Exchanger(relay, user, is_exit=is_exit))


class _Exchanger:
    description = "memory"

    def __init__(self, relay: Relay, user: str, *, is_exit: bool) -> None:
        self._relay = relay
        self._user = user
        self._is_exit = is_exit
        self._open: dict[int, int] = {}  # by request id, the relay's number
        self._outcomes: Outcomes

    def start(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes

    def send(self, request: Request) -> None:
        body = b"".join(request.body)

        def answered(status: int, answer: bytes) -> None:
            del self._open[request.id]
            self._outcomes.answered(request.id, status, answer, 0)

        self._open[request.id] = self._relay.post(self._user, body, answered, is_exit=self._is_exit)
        self._outcomes.sent(len(body))

    def abandon(self, request_id: int) -> None:
        number = self._open.pop(request_id, None)
        if number is not None:
            self._relay.gone(number)

    async def close(self) -> None:
        for request_id in list(self._open):
            self.abandon(request_id)
