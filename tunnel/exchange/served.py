"""The relay's half of one lane (7.3, 7.4, 7.6): it applies each request once, and answers, confirms and requeues.

For each request of the lane the switch must, in this order:

1. call `arrival = lane.receive(exchange, handle)` and send `arrival.replies`;
2. if `arrival.applies`, route `arrival.frames`, then call `lane.answer(now)` and send the reply. If the reply is None,
   the request is parked.

Later it must call `wake()` when something waits, `expire(now)` at `parked_until_us`, `gone(handle)` when an HTTP
connection has died, and `close()` when the generation ends.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from tunnel.exchange.pieces import PieceAssembler
from tunnel.wire import (
    ANSWER_BYTES,
    EVIDENCE_BYTES,
    HEADER_SIZE,
    PACKET_SIZE_MAX,
    Answer,
    Buffer,
    Discarded,
    Exchange,
    Frame,
    parse_frames,
)

__all__ = ["Outbox", "Reply", "ServedLane", "ServedLimits", "ServedRequest"]

_SERIAL_MAX = 2**32 - 1  # 7.2: endpoints attach again long before this is reached


class Outbox(Protocol):
    """The frames that wait for an attachment. All lanes of the attachment take from the same outbox."""

    def take(self, limit_bytes: int) -> list[Frame]:
        """Remove and return the frames that leave next, at most `limit_bytes` in total.

        If the first frame alone is larger than that, return only this frame: the lane cuts it into pieces.
        """
        ...

    def put_back(self, frames: list[Frame]) -> None:
        """Put frames that were taken back to the front, in this order. They must not be refused."""
        ...

    def waits(self) -> bool:
        """Return whether `take` would return anything."""
        ...


class ServedLimits(msgspec.Struct):
    """The limits of a lane, as announced in ATTACHED (7.11)."""

    lanes: int  # of the attachment: every answer has room for the evidence of this many lanes
    packet_bytes_max: int = PACKET_SIZE_MAX  # of a packet that comes in pieces
    answer_bytes_max: int = 2**20  # of a response body, including the envelope; requests may ask for less
    hold_us_max: int = 15_000_000


class Reply(msgspec.Struct):
    """An answer to send on the HTTP exchange `handle`. The caller encodes it with `encode_envelope`."""

    handle: int
    answer: Answer
    previous: int = 0  # the handle of the lane's previous answer; 0: there was none


class ServedRequest(msgspec.Struct):
    """The result of a request. If `applies`, it is new: the caller must route its frames and then call `answer`."""

    applies: bool
    frames: list[Frame]
    replies: list[Reply]  # to send at once: to a released request, to a repeat, or to an old number
    discarded: Discarded | None = None


class _Open(msgspec.Struct):
    """A request that waits for its answer."""

    handle: int
    number: int
    limit_bytes: int  # of packets in the answer
    hold_us: int  # 0: a push, or a pull that does not wait


class ServedLane:
    """The relay's half of one lane, for one generation.

    `evidence` returns (lane, `answered`) for every lane of the attachment (7.7).
    """

    def __init__(
        self, lane: int, outbox: Outbox, evidence: Callable[[], list[tuple[int, int]]], limits: ServedLimits
    ) -> None:
        self.lane = lane
        self.highest = 0  # highest number applied
        self.answered = 0  # highest number answered: the lane's own evidence
        self.serial = 0  # of the newest answer
        self.repeats = 0  # requests that were not applied, because they or later ones had been applied before
        self.parked_at_us = 0
        self._answer_handle = 0  # of the newest answer
        self.parked_until_us = 0
        self._outbox = outbox
        self._evidence = evidence
        self._limits = limits
        self._open: _Open | None = None  # between receive and answer
        self._parked: _Open | None = None
        # All answers to one number hold the same packets, so any serial from the first one on confirms them.
        self._unconfirmed: list[Frame] = []
        self._first_serial = 0
        self._outgoing: Frame | None = None  # a frame that leaves in pieces; it is not among `_unconfirmed`
        self._outgoing_offset = 0  # bytes of that frame that are confirmed
        self._piece_bytes = 0  # bytes sent after that offset and not confirmed
        self._incoming = PieceAssembler(limits.packet_bytes_max)

    # state

    @property
    def parked(self) -> int | None:
        """The handle of the parked request, if any."""
        return self._parked.handle if self._parked is not None else None

    @property
    def held_bytes(self) -> int:
        """The number of bytes that the lane keeps: unconfirmed frames, and packets that leave or come in pieces.

        It is at most one answer and two packets.
        """
        outgoing = self._outgoing.size if self._outgoing is not None else 0
        return sum(frame.size for frame in self._unconfirmed) + outgoing + self._incoming.held_bytes

    def has_sent(self, serial: int) -> bool:
        """Return whether an answer of this lane had this serial or a higher one.

        A request that names a serial above all of them was meant for an earlier life of the lane and must confirm
        nothing (7.3).
        """
        return serial <= self.serial

    # requests

    def receive(self, exchange: Exchange, handle: int) -> ServedRequest:
        """Process a request of this lane: step 1 in the description of this module (7.3).

        The caller has checked envelope, attachment, epoch, generation and serial.
        """
        if exchange.number <= self.highest:
            self.repeats += 1
            return ServedRequest(applies=False, frames=[], replies=self._answer_again(exchange, handle))
        self._settle(exchange.serial_received)
        replies = self._release()
        self.highest = exchange.number
        hold_us = min(exchange.hold_ms * 1000, self._limits.hold_us_max) if exchange.pull else 0
        self._open = _Open(handle, exchange.number, self._limit(exchange), hold_us)
        frames, discarded = self._incoming.feed(exchange, parse_frames)
        return ServedRequest(applies=True, frames=frames, replies=replies, discarded=discarded)

    def answer(self, now: int) -> Reply | None:
        """Answer the request that was just received, with what waits now. Return None if it is parked (7.4).

        The caller must call this once after each request that applies, when its frames have been routed.
        """
        request, self._open = self._open, None
        if request is None:
            raise ValueError("there is no request to answer: call receive first, and answer only if it applies")
        if request.hold_us and not self._has_more():
            self._parked = request
            self.parked_at_us = now
            self.parked_until_us = now + request.hold_us
            return None
        return self._fill(request)

    # the parked request

    def wake(self) -> Reply | None:
        """Answer the parked request with what waits. Return None if no request is parked or nothing waits."""
        if self._parked is None or not self._has_more():
            return None
        request, self._parked = self._parked, None
        return self._fill(request)

    def expire(self, now: int) -> Reply | None:
        """Answer the parked request without packets when its hold is over. Early calls have no effect."""
        if self._parked is None or now < self.parked_until_us:
            return None
        return self._release()[0]

    def gone(self, handle: int) -> None:
        """Forget the parked request if its HTTP connection, `handle`, has died. The endpoint will repeat it."""
        if self._parked is not None and self._parked.handle == handle:
            self._parked = None

    def close(self) -> list[Reply]:
        """End the lane with its generation or attachment.

        Unconfirmed frames go back to the front of the outbox (6.2), and a parked request is released. The caller must
        not use the lane afterwards.
        """
        self._settle(0)
        if self._outgoing is not None:
            self._outbox.put_back([self._outgoing])
            self._outgoing = None
        self._incoming.clear()
        return self._release()

    # confirmation

    def _settle(self, serial_received: int) -> None:
        """Free the packets that the endpoint has; put the rest back to the front of the outbox (7.3)."""
        confirmed = self._first_serial <= serial_received
        if self._unconfirmed and not confirmed:
            self._outbox.put_back(self._unconfirmed)
        self._unconfirmed = []
        # An unconfirmed piece stays with its lane; the next answer carries it again.
        if confirmed and self._outgoing is not None:
            self._outgoing_offset += self._piece_bytes
            if self._outgoing_offset == self._outgoing.size:
                self._outgoing = None
        self._piece_bytes = 0

    def _answer_again(self, exchange: Exchange, handle: int) -> list[Reply]:
        """Answer a repeat or an old number, never with new packets.

        A repeat gets the unconfirmed packets. New ones would be lost if the request is a proxy's late copy.
        """
        if exchange.number < self.highest:
            return [self._reply(handle, exchange.number, self.serial)]
        replies = self._release()
        self._fit(self._limit(exchange))
        replies.append(self._unconfirmed_reply(handle, exchange.number))
        return replies

    def _fit(self, limit_bytes: int) -> None:
        """Put back to the front of the outbox what a smaller answer cannot hold.

        If a piece does not fit, its whole packet is put back: whichever answer the endpoint took, offset 0 is right.
        """
        if self._piece_bytes > limit_bytes and self._outgoing is not None:
            self._outbox.put_back([self._outgoing])
            self._outgoing = None
            self._piece_bytes = 0
        count, size = 0, 0
        for frame in self._unconfirmed:
            size += frame.size
            if size > limit_bytes:
                break
            count += 1
        if count < len(self._unconfirmed):
            self._outbox.put_back(self._unconfirmed[count:])
            self._unconfirmed = self._unconfirmed[:count]

    # answers

    def _limit(self, exchange: Exchange) -> int:
        """Return how many bytes of packets an answer may hold.

        The share of the evidence is fixed, so that a repeated answer holds the same packets as the first one.
        """
        limit = min(exchange.answer_bytes_max, self._limits.answer_bytes_max)
        return limit - ANSWER_BYTES - EVIDENCE_BYTES * self._limits.lanes

    def _has_more(self) -> bool:
        return self._outgoing is not None or self._outbox.waits()

    def _release(self) -> list[Reply]:
        """Answer the parked request without packets, under a new serial. Nothing is unconfirmed while it is parked."""
        request, self._parked = self._parked, None
        if request is None:
            return []
        return [self._reply(request.handle, request.number, self._next_serial())]

    def _fill(self, request: _Open) -> Reply:
        """Return the first answer to this request, with the packets that wait."""
        if request.limit_bytes >= HEADER_SIZE:
            if self._outgoing is None:
                self._take(request.limit_bytes)
            if self._outgoing is not None:
                self._piece_bytes = min(request.limit_bytes, self._outgoing.size - self._outgoing_offset)
        self._first_serial = self.serial + 1
        return self._unconfirmed_reply(request.handle, request.number)

    def _take(self, limit_bytes: int) -> None:
        frames = self._outbox.take(limit_bytes)
        if len(frames) == 1 and frames[0].size > limit_bytes:
            self._outgoing = frames[0]
            self._outgoing_offset = 0
        else:
            self._unconfirmed = frames

    def _unconfirmed_reply(self, handle: int, number: int) -> Reply:
        """Return an answer with everything that is unconfirmed, under a new serial."""
        offset, payload = 0, [frame.data for frame in self._unconfirmed]
        if self._piece_bytes and self._outgoing is not None:
            offset = self._outgoing_offset
            payload = [memoryview(self._outgoing.data)[offset : offset + self._piece_bytes]]
        return self._reply(handle, number, self._next_serial(), payload, offset, piece=self._piece_bytes > 0)

    def _reply(
        self,
        handle: int,
        number: int,
        serial: int,
        payload: list[Buffer] | None = None,
        offset: int = 0,
        *,
        piece: bool = False,
    ) -> Reply:
        self.answered = max(self.answered, number)
        unsent = self._outgoing is not None and self._outgoing_offset + self._piece_bytes < self._outgoing.size
        more = unsent or self._outbox.waits()
        previous, self._answer_handle = self._answer_handle, handle
        answer = Answer(self.lane, number, serial, offset, piece, more, self._evidence(), payload or [])
        return Reply(handle, answer, previous)

    def _next_serial(self) -> int:
        self.serial = min(self.serial + 1, _SERIAL_MAX)
        return self.serial
