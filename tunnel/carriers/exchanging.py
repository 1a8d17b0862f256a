"""A carrier made of lanes and of something that gets one HTTP request answered (section 7)."""

import socket
from collections.abc import Iterable
from typing import Protocol

import msgspec

from tunnel.carriers.base import ExchangeTrace, Host
from tunnel.exchange import Abandoned, LaneEvent, Lanes, Request, Troubled
from tunnel.wire import Buffer, Packet

__all__ = ["Exchanger", "ExchangingCarrier", "Outcomes"]


class Outcomes(Protocol):
    """Who hears what became of a request. What comes after `abandon` is ignored."""

    def answered(self, request_id: int, status: int, body: Buffer, retry_after_us: int) -> None:
        """A complete HTTP response came; the body must not change any more."""

    def failed(self, request_id: int, text: str, *, final: bool = False) -> None:
        """No complete response came; `text` tells a person why. `final` as in Host.trouble."""

    def sent(self, size_bytes: int) -> None:
        """A request body was handed to a connection."""


class Exchanger(Protocol):
    """Sends requests. Nothing here may call the outcomes before `send` has returned."""

    @property
    def description(self) -> str:
        """What this is and where it leads, for a person."""

    def start(self, outcomes: Outcomes) -> None:
        """Begin, within the running event loop."""

    def send(self, request: Request) -> None:
        """Send it; `answered` or `failed` follows. With `request.repeat` over a connection that is new (7.5)."""

    def abandon(self, request_id: int) -> None:
        """Nobody waits for this answer any more: close its connection."""

    async def close(self) -> None:
        """Abandon everything."""


class ExchangingCarrier:
    """Lanes over an exchanger. Subclasses may add faster ways."""

    exchange_trace: ExchangeTrace | None = None

    def __init__(self, lanes: Lanes, exchanger: Exchanger) -> None:
        self._lanes = lanes
        self._exchanger = exchanger
        self._last_failure = ""
        self._closed = False
        self._host: Host

    @property
    def attachment_id(self) -> bytes:
        return self._lanes.attachment_id

    @property
    def description(self) -> str:
        return self._exchanger.description

    @property
    def failure(self) -> str:
        return self._last_failure or self._lanes.health.last

    def start(self, host: Host) -> None:
        self._host = host
        self._exchanger.start(self)

    def room(self, now: int) -> int:
        return self._lanes.room(now)

    def push(self, packets: list[Packet], token: int, now: int) -> None:
        self._lanes.push(packets, token, now)

    def advance(self, now: int) -> bool:
        moved = False
        while (request := self._lanes.poll_request(now)) is not None:
            self._exchanger.send(request)
            if self.exchange_trace is not None:
                kind = "attach" if request.lane < 0 else "pull" if request.pull else "push"
                size = sum(map(len, request.body))
                self.exchange_trace.sent(request.id, request.lane, request.number, request.repeat, kind, size, now)
            moved = True
        return moved

    def next_timeout(self) -> int | None:
        return self._lanes.next_timeout()

    def handle_timeout(self, now: int) -> None:
        self._lanes.handle_timeout(now)

    def poll_event(self) -> LaneEvent | None:
        while isinstance(event := self._lanes.poll_event(), Abandoned):
            self._exchanger.abandon(event.request_id)
            if self.exchange_trace is not None:
                self.exchange_trace.abandoned(event.request_id, self._host.now())
        if isinstance(event, Troubled) and self._last_failure:
            return msgspec.structs.replace(event, last=self._last_failure)
        return event

    def sockets(self) -> Iterable[socket.socket]:
        """What moves the batches, as far as it is known: to be looked at, not to be used."""
        return ()

    async def prepared(self) -> None:
        """It is, as soon as it is attached."""

    async def close(self) -> None:
        self._closed = True
        await self._exchanger.close()

    # what the exchanger tells (Outcomes)

    def answered(self, request_id: int, status: int, body: Buffer, retry_after_us: int) -> None:
        if not self._closed:
            self._last_failure = ""
            if self.exchange_trace is not None:
                self.exchange_trace.answered(request_id, status, len(body), self._host.now())
            self._lanes.answered(request_id, status, body, retry_after_us, self._host.now())
            self._host.pump()

    def failed(self, request_id: int, text: str, *, final: bool = False) -> None:
        if not self._closed:
            self._last_failure = text
            if self.exchange_trace is not None:
                self.exchange_trace.failed(request_id, self._host.now())
            self._lanes.failed(request_id, self._host.now())
            self._host.trouble(text, final=final)
            self._host.pump()

    def sent(self, size_bytes: int) -> None:
        if not self._closed:
            self._host.wrote(size_bytes)
