"""The interfaces between a carrier and its driver: `Carrier`, `Host` and `ExchangeTrace`.

A carrier moves batches to the relay and back. The driver passes in `now`, and calls `handle_timeout` at the time that
`next_timeout` returns. Where no call passes the time in, the carrier asks `Host.now`. It has timers of its own only
for the opening of links and inside HTTP requests. All carriers report the same events (`LaneEvent`).
"""

from typing import Protocol

from tunnel.exchange import LaneEvent
from tunnel.wire import Packet

__all__ = ["Carrier", "ExchangeTrace", "Host"]


class ExchangeTrace(Protocol):
    """Records every exchange. It ignores a request for which `on_sent` was not called."""

    def on_sent(
        self, request_id: int, lane: int, number: int, repeat: int, kind: str, size_bytes: int, now: int
    ) -> None:
        """Record that a request is sent; `kind` is attach, push or pull."""

    def on_answered(self, request_id: int, status: int, size_bytes: int, now: int) -> None:
        """Record that a complete response arrived."""

    def on_failed(self, request_id: int, now: int) -> None:
        """Record that the request failed without a complete response."""

    def on_abandoned(self, request_id: int, now: int) -> None:
        """Record that the carrier no longer waits for the answer."""


class Host(Protocol):
    """The methods of the driver that its carrier calls."""

    def now(self) -> int:
        """Return the time in microseconds, from a monotonic clock."""

    def pump(self) -> None:
        """Handle the events that wait, and send what can be sent. May be called at any time, also during a pump.

        The carrier calls it whenever something has changed that no method of `Carrier` did: the time of its next
        timeout is not asked for otherwise.
        """

    def deliver(self) -> None:
        """Do as `pump`, after events that let no exchange start: a batch or a receipt has come. What is due by the next
        timeout of the carrier still happens."""

    def wrote(self, size_bytes: int) -> None:
        """Count bytes of batches that were handed to a connection to the relay."""

    def trouble(self, text: str, *, final: bool = False) -> None:
        """Report that a connection to the relay failed; `text` says how, for people.

        `final`: trying again is of no use until the user changes something, so an endpoint that has never been attached
        gives up.
        """


class Carrier(Protocol):
    """Moves batches between one endpoint and one relay. Errors on the path or at the relay become events or repeats."""

    @property
    def attachment_id(self) -> bytes:
        """The id by which the relay knows the endpoint (6.1)."""

    @property
    def round_trip_us(self) -> int:
        """The smoothed time from a request to its answer, without pulls that may be held (7.8); 0 before the first."""

    @property
    def pull_interval_us(self) -> int:
        """The interval between pulls on which the relay has settled; 0: none."""

    @property
    def description(self) -> str:
        """The carrier in use and the relay, for people, as in "poll https://relay.example"."""

    @property
    def relay(self) -> str:
        """Where the relay is, for people: its URL, and the proxy on the way."""

    @property
    def failure(self) -> str:
        """How the latest exchange failed, for people; empty if it succeeded."""

    def start(self, host: Host) -> None:
        """Start the carrier within the running event loop. The driver calls this once, before all methods below."""

    @property
    def has_events(self) -> bool:
        """Whether `poll_event` may return an event. If not, it returns none."""

    def room(self, now: int) -> int:
        """Return how many bytes of packets `push` accepts now; 0: none until `next_timeout`, or until the carrier calls
        `Host.pump`."""

    def push(self, packets: list[Packet], token: int, now: int) -> bool:
        """Send a batch of at most `room` bytes, or one packet of any size; `BatchDone(token, ...)` follows once. Return
        whether the batch leaves with the next call of `advance`."""

    def advance(self, now: int) -> bool:
        """Start the exchanges that are due; return whether any was. The driver calls this when `next_timeout` has come,
        after pushes that wait for it, and after calls of `Host.pump`."""

    def next_timeout(self) -> int | None:
        """Return the latest time to call `handle_timeout`; None: never."""

    def handle_timeout(self, now: int) -> None:
        """Act on the timers that are due. A call before `next_timeout` has no effect."""

    def poll_event(self) -> LaneEvent | None:
        """Return the next event, or None."""

    def set_pull_interval(self, settled_us: int, *, wanted_us: int) -> None:
        """Use the interval on which the relay has settled. `wanted_us` is the one to ask for when attaching again."""

    async def until_ready(self) -> None:
        """Wait until the carrier that the user asked for works, or has failed for now. Called after the first
        attach."""

    async def close(self) -> None:
        """Give up all batches and close every connection. The host is not called afterwards."""
