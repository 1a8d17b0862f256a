"""What every carrier owes the driver, and what it may ask of it.

A carrier moves batches to the relay and back. It has no clock and no timer: the driver hands in `now` and calls it when
`next_timeout` says so. It speaks in the events of the lanes, whatever it moves batches with.
"""

from typing import Protocol

from tunnel.exchange import LaneEvent
from tunnel.wire import Packet

__all__ = ["Carrier", "ExchangeTrace", "Host"]


class ExchangeTrace(Protocol):
    """Who hears of every exchange. What is told of a request that was not `sent` is ignored."""

    def sent(self, request_id: int, lane: int, number: int, repeat: int, kind: str, size_bytes: int, now: int) -> None:
        """A request leaves; `kind` is attach, push or pull."""

    def answered(self, request_id: int, status: int, size_bytes: int, now: int) -> None:
        """A complete response came."""

    def failed(self, request_id: int, now: int) -> None:
        """No complete response came."""

    def abandoned(self, request_id: int, now: int) -> None:
        """Nobody waits for the answer any more."""


class Host(Protocol):
    """The driver, as its carrier sees it."""

    def now(self) -> int:
        """The time in microseconds, of a clock that never goes back."""

    def pump(self) -> None:
        """Something came: move whatever can move. Harmless at any time, also from within."""

    def wrote(self, size_bytes: int) -> None:
        """Bytes of batches were handed to a connection."""

    def trouble(self, text: str, *, final: bool = False) -> None:
        """A connection to the relay failed; `text` tells a person how. `final`: before the first attach, trying again
        is of no use."""


class Carrier(Protocol):
    """A way to one relay, for one endpoint. Errors of the path and of the relay become events and repeats."""

    @property
    def attachment_id(self) -> bytes:
        """What the relay knows the endpoint by (6.1)."""

    @property
    def description(self) -> str:
        """What moves the batches at present, for a person."""

    @property
    def failure(self) -> str:
        """How the latest exchange failed, for a person; empty when it did not."""

    def start(self, host: Host) -> None:
        """Begin, within the running event loop. Called once, before everything below."""

    def room(self, now: int) -> int:
        """Bytes of packets that `push` takes now; 0: nothing, until the carrier pumps its host."""

    def push(self, packets: list[Packet], token: int, now: int) -> None:
        """Move a batch; `BatchDone(token, ...)` follows once. More than one packet must fit the room."""

    def advance(self, now: int) -> bool:
        """Start what is due; whether there was anything. Called after pushes."""

    def next_timeout(self) -> int | None:
        """When to call `handle_timeout` at the latest."""

    def handle_timeout(self, now: int) -> None:
        """Time has passed. Early or late calls are harmless."""

    def poll_event(self) -> LaneEvent | None:
        """The next event, None when there is none."""

    async def prepared(self) -> None:
        """Return when the carrier that was asked for moves the batches, or cannot for now. After the first attach."""

    async def close(self) -> None:
        """Give up everything and close every connection. Nothing is called on the host afterwards."""
