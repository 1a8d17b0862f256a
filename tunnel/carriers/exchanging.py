"""A carrier that combines lanes with an exchanger, which sends single requests (section 7)."""

import asyncio
import socket
from collections.abc import Iterable
from typing import Protocol

import msgspec

from tunnel.carriers.base import ExchangeTrace, Host
from tunnel.exchange import Abandoned, LaneEvent, Lanes, Request, RoadReport, Troubled
from tunnel.system.clock import slept_us
from tunnel.wire import Buffer, Packet

__all__ = ["Exchanger", "ExchangingCarrier", "Outcomes"]


class Outcomes(Protocol):
    """The object that an exchanger tells the outcome of each request. A call after `abandon` changes no exchange."""

    def on_answered(self, request_id: int, status: int, body: Buffer, retry_after_us: int, by: str = "") -> None:
        """Handle a complete HTTP response. The caller must not change the body afterwards. `by`: the server, as it
        names itself."""

    def on_received(self, request_id: int, piece: Buffer) -> bool:
        """Handle a piece of the answer to a pull with `stream`. Return whether more is expected of it."""

    def on_ended(self, request_id: int) -> None:
        """Handle the end of an answer of which `on_received` got pieces, or which was empty."""

    def ready(self) -> None:
        """Send the requests that waited for the exchanger (`Exchanger.is_ready`)."""

    def on_failed(self, request_id: int, text: str, *, final: bool = False) -> None:
        """Handle a failure without a complete response; `text` says why, for people. `final` as in `Host.trouble`."""

    def on_opened(self, request_id: int) -> None:
        """Record that a connection is open, which takes the request from now on."""

    def on_sent(self, size_bytes: int) -> None:
        """Count the bytes of a request body that was handed to a connection."""


class Exchanger(Protocol):
    """Sends requests. It must not call `on_answered` or `on_failed` before `send` has returned."""

    @property
    def description(self) -> str:
        """The kind of exchanger and where it leads, for people."""

    @property
    def is_ready(self) -> bool:
        """Whether requests can leave. If not, `Outcomes.ready` follows."""

    @property
    def waits_for(self) -> str:
        """For people, what must happen before a request can leave; empty if nothing must."""

    def start(self, outcomes: Outcomes) -> None:
        """Start within the running event loop; report to `outcomes`."""

    def send(self, request: Request) -> None:
        """Send the request; `on_answered`, `on_ended` or `on_failed` follows, unless it is abandoned.

        A repeat uses a new connection or, if the path carries no more, an open one that works (7.5).
        """

    def abandon(self, request_id: int) -> None:
        """Drop the request, whose answer is no longer needed, and close its connection."""

    async def close(self) -> None:
        """Abandon all requests and close the connections."""


class ExchangingCarrier:
    """A carrier of lanes over an exchanger. A subclass may add faster ways, such as a link."""

    exchange_trace: ExchangeTrace | None = None

    def __init__(self, lanes: Lanes, exchanger: Exchanger) -> None:
        self._lanes = lanes
        self._lane_events = lanes.events
        self._streams = lanes.streams
        self._streamed_bytes: dict[int, int] = {}  # by request id, of answers that come piece by piece
        self._exchanger = exchanger
        self._when_settled: asyncio.Future[None] | None = None  # set by a subclass while it waits for `is_settled`
        self._last_failure = ""
        self._closed = False
        self._host: Host

    @property
    def attachment_id(self) -> bytes:
        return self._lanes.registration.id

    @property
    def round_trip_us(self) -> int:
        return self._lanes.path.round_trip.srtt_us

    @property
    def pull_interval_us(self) -> int:
        return self._lanes.pull_interval_us

    @property
    def description(self) -> str:
        if self._streams is not None and self._streams.is_streaming:
            return f"stream {self.relay}"
        return self._exchanger.description

    @property
    def relay(self) -> str:
        kind, _, relay = self._exchanger.description.partition(" ")
        return relay or kind

    @property
    def failure(self) -> str:
        return self._exchanger.waits_for or self._last_failure or self._lanes.health.last

    def start(self, host: Host) -> None:
        self._host = host
        self._exchanger.start(self)

    @property
    def has_events(self) -> bool:
        return bool(self._lane_events)

    def room(self, now: int) -> int:
        return self._lanes.room(now)

    def push(self, packets: list[Packet], token: int, now: int) -> bool:
        self._lanes.push(packets, token, now)
        return True

    def advance(self, now: int) -> bool:
        moved = False
        if not self._exchanger.is_ready:  # no deadline of an exchange runs meanwhile
            return False
        while (request := self._lanes.poll_request(now)) is not None:
            self._exchanger.send(request)
            if self.exchange_trace is not None:
                kind = "attach" if request.lane < 0 else "pull" if request.pull else "push"
                size = sum(map(len, request.body))
                self.exchange_trace.on_sent(request.id, request.lane, request.number, request.repeat, kind, size, now)
            moved = True
        return moved

    def next_timeout(self) -> int | None:
        return self._lanes.next_timeout() if self._exchanger.is_ready else None

    def handle_timeout(self, now: int) -> None:
        self._lanes.handle_timeout(now)
        self._look_whether_settled()

    def poll_event(self) -> LaneEvent | None:
        events = self._lane_events
        event: LaneEvent | None = events.popleft() if events else None
        while isinstance(event, Abandoned):
            self._exchanger.abandon(event.request_id)
            self._streamed_bytes.pop(event.request_id, None)
            if self.exchange_trace is not None:
                self.exchange_trace.on_abandoned(event.request_id, self._host.now())
            event = events.popleft() if events else None
        if isinstance(event, Troubled) and self._last_failure:
            return msgspec.structs.replace(event, last=self._last_failure)
        return event

    def set_pull_interval(self, settled_us: int, *, wanted_us: int) -> None:
        self._lanes.set_pull_interval(settled_us, wanted_us=wanted_us)

    def roads(self) -> list[RoadReport]:
        """Return the state of each road, for people. Exchanges are not a road, so there is none."""
        return []

    def secrets_renewed(self) -> None:
        """Replace the connections that still use the secrets with which they were opened. Exchanges have none."""

    def sockets(self) -> Iterable[socket.socket]:
        """Return the known sockets that move the batches. Callers may inspect them, but not read or write."""
        return ()

    def on_moved(self, size: int) -> None:
        """Count bytes that exchanges have moved, in either direction. A subclass may use the number."""

    async def until_ready(self) -> None:
        """Return at once: exchanges work as soon as the carrier is attached."""

    async def close(self) -> None:
        self._closed = True
        await self._exchanger.close()

    # Outcomes: called by the exchanger

    def on_answered(self, request_id: int, status: int, body: Buffer, retry_after_us: int, by: str = "") -> None:
        if not self._closed:
            self._last_failure = ""
            self.on_moved(len(body))
            if self.exchange_trace is not None:
                self.exchange_trace.on_answered(request_id, status, len(body), self._host.now())
            if self._lanes.registration.attached is None:
                self._lanes.registration.slept_us = slept_us()
            self._lanes.on_answered(request_id, status, body, retry_after_us, self._host.now(), by)
            if self._when_settled is not None:
                self._look_whether_settled()
            self._host.pump()

    def on_received(self, request_id: int, piece: Buffer) -> bool:
        streams = self._streams
        if self._closed or streams is None:
            return False
        self._last_failure = ""
        self.on_moved(len(piece))
        self._streamed_bytes[request_id] = self._streamed_bytes.get(request_id, 0) + len(piece)
        self._lanes.on_received(request_id, piece, self._host.now())
        self._host.pump()
        return streams.is_awaiting(request_id)

    def on_ended(self, request_id: int) -> None:
        if not self._closed and self._streams is not None:
            now = self._host.now()
            size = self._streamed_bytes.pop(request_id, 0)
            if self.exchange_trace is not None:
                self.exchange_trace.on_answered(request_id, 200, size, now)
            self._lanes.on_ended(request_id, now)
            self._host.pump()

    def ready(self) -> None:
        if not self._closed:
            self._host.pump()

    def on_failed(self, request_id: int, text: str, *, final: bool = False) -> None:
        if not self._closed:
            self._streamed_bytes.pop(request_id, None)
            self._last_failure = text
            if self.exchange_trace is not None:
                self.exchange_trace.on_failed(request_id, self._host.now())
            self._lanes.on_failed(request_id, self._host.now())
            self._host.trouble(text, final=final)
            self._host.pump()

    def _look_whether_settled(self) -> None:
        waiting, streams = self._when_settled, self._streams
        if waiting is not None and not waiting.done() and (streams is None or streams.is_settled):
            waiting.set_result(None)

    def on_opened(self, request_id: int) -> None:
        self._lanes.on_opened(request_id)

    def on_sent(self, size_bytes: int) -> None:
        if not self._closed:
            self.on_moved(size_bytes)
            self._host.wrote(size_bytes)
