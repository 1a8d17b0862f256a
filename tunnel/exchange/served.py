"""The relay's half of one lane (7.3, 7.4, 7.6): what is applied once, answered again, confirmed or first in line again.

For each request of the lane the switch does, in this order:

1. `arrival = lane.receive(exchange, handle)`, and sends `arrival.replies`;
2. if `arrival.applies`: routes `arrival.frames`, then calls `lane.answer(now)` and sends the reply; None: it is parked.

Later: `wake()` when something waits, `expire(now)` at `parked_until_us`, `gone(handle)` when a connection died, and
`close()` when the generation ends.
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

_SERIAL_MAX = 2**32 - 1  # 7.2: endpoints attach again long before


class Outbox(Protocol):
    """What waits for the attachment. All of its lanes draw from the same one."""

    def take(self, limit_bytes: int) -> list[Frame]:
        """Remove and return what leaves next, at most `limit_bytes` in all. If the very first frame is larger than that
        it is returned alone: the lane cuts it."""
        ...

    def put_back(self, frames: list[Frame]) -> None:
        """These are first in line again, in this order. They had been taken; they must not be refused."""
        ...

    def waits(self) -> bool:
        """Whether `take` would return anything."""
        ...


class ServedLimits(msgspec.Struct):
    """What the relay allows on a lane, as announced in ATTACHED (7.11)."""

    lanes: int  # of the attachment: the evidence of so many fits every answer
    packet_bytes_max: int = PACKET_SIZE_MAX  # of a packet that comes in pieces
    answer_bytes_max: int = 2**20  # of a response body, envelope included; requests may ask for less
    hold_us_max: int = 15_000_000


class Reply(msgspec.Struct):
    """An answer for the HTTP exchange `handle`; encode it with `encode_envelope`."""

    handle: int
    answer: Answer


class ServedRequest(msgspec.Struct):
    """What a request did. `applies`: it is a new one, its frames are to be routed and `answer` is to be called."""

    applies: bool
    frames: list[Frame]
    replies: list[Reply]  # to send at once: a released request, the answer to a repeat or to an old number
    discarded: Discarded | None = None


class _Open(msgspec.Struct):
    """A request that waits for its answer."""

    handle: int
    number: int
    limit_bytes: int  # of packets in the answer
    hold_us: int  # 0: a push, or a pull that does not wait


class ServedLane:
    """One lane of one generation. `evidence` gives (lane, `answered`) for every lane of the attachment (7.7)."""

    def __init__(
        self, lane: int, outbox: Outbox, evidence: Callable[[], list[tuple[int, int]]], limits: ServedLimits
    ) -> None:
        self.lane = lane
        self.highest = 0  # number applied
        self.answered = 0  # highest number answered: the lane's own evidence
        self.serial = 0  # of the newest answer
        self.repeats = 0  # requests that were not applied because they, or later ones, had been
        self.parked_at_us = 0
        self.parked_until_us = 0
        self._outbox = outbox
        self._evidence = evidence
        self._limits = limits
        self._open: _Open | None = None  # between receive and answer
        self._parked: _Open | None = None
        # Every answer to one number holds the same packets, so that they all have the same first serial.
        self._unconfirmed: list[Frame] = []
        self._first_serial = 0
        self._outgoing: Frame | None = None  # leaves in pieces; it is not among the unconfirmed
        self._outgoing_offset = 0  # confirmed so far
        self._piece_bytes = 0  # sent behind it and not confirmed
        self._incoming = PieceAssembler(limits.packet_bytes_max)

    # what there is

    @property
    def parked(self) -> int | None:
        """The handle of the request that is held, if any."""
        return self._parked.handle if self._parked is not None else None

    @property
    def held_bytes(self) -> int:
        """Memory that the lane keeps: not confirmed, leaving or coming in pieces. At most an answer and two packets."""
        outgoing = self._outgoing.size if self._outgoing is not None else 0
        return sum(frame.size for frame in self._unconfirmed) + outgoing + self._incoming.held_bytes

    def has_sent(self, serial: int) -> bool:
        """Whether an answer of this lane had this serial, or a higher one. A request that says it received any other
        speaks of another lane, and must confirm nothing (7.3)."""
        return serial <= self.serial

    # requests

    def receive(self, exchange: Exchange, handle: int) -> ServedRequest:
        """A request of this lane; envelope, attachment, epoch, generation and serial are checked. Step 1 of 7.3."""
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
        """Answer the request just received, with what waits now; None: it is parked (7.4).

        Must be called once after each arrival that applies, when its frames have been routed.
        """
        request, self._open = self._open, None
        if request is None:
            raise ValueError("there is nothing to answer: receive comes first, and its arrival must apply")
        if request.hold_us and not self._has_more():
            self._parked = request
            self.parked_at_us = now
            self.parked_until_us = now + request.hold_us
            return None
        return self._fill(request)

    # what happens to a parked request

    def wake(self) -> Reply | None:
        """Something waits: the parked request is answered with it. None when nothing is parked or nothing waits."""
        if self._parked is None or not self._has_more():
            return None
        request, self._parked = self._parked, None
        return self._fill(request)

    def expire(self, now: int) -> Reply | None:
        """The hold is over: the parked request is answered empty. Early calls do nothing."""
        if self._parked is None or now < self.parked_until_us:
            return None
        return self._release()[0]

    def gone(self, handle: int) -> None:
        """The HTTP connection of `handle` died: nothing is sent there. The endpoint repeats what was parked."""
        if self._parked is not None and self._parked.handle == handle:
            self._parked = None

    def close(self) -> list[Reply]:
        """The end of the generation or of the attachment: all that is not confirmed is first in line again (6.2), and a
        parked request is released. The lane must not be used afterwards."""
        self._settle(0)
        if self._outgoing is not None:
            self._outbox.put_back([self._outgoing])
            self._outgoing = None
        self._incoming.clear()
        return self._release()

    # confirmation

    def _settle(self, serial_received: int) -> None:
        """Free what the endpoint has; the rest is first in line again (7.3)."""
        confirmed = self._first_serial <= serial_received
        if self._unconfirmed and not confirmed:
            self._outbox.put_back(self._unconfirmed)
        self._unconfirmed = []
        # An unconfirmed piece stays with its lane: the next answer carries it again.
        if confirmed and self._outgoing is not None:
            self._outgoing_offset += self._piece_bytes
            if self._outgoing_offset == self._outgoing.size:
                self._outgoing = None
        self._piece_bytes = 0

    def _answer_again(self, exchange: Exchange, handle: int) -> list[Reply]:
        """Repeats get what is unconfirmed, never anything new: a proxy's late copy must not lead packets nowhere."""
        if exchange.number < self.highest:
            return [self._reply(handle, exchange.number, self.serial)]
        replies = self._release()
        self._fit(self._limit(exchange))
        replies.append(self._unconfirmed_reply(handle, exchange.number))
        return replies

    def _fit(self, limit_bytes: int) -> None:
        """What a smaller answer cannot hold is first in line again; so is all of a packet whose piece does not fit,
        since only offset 0 is right whichever answer the endpoint took."""
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
        """Bytes of packets in an answer. Evidence has a fixed share, so that a repeat holds what the first did."""
        limit = min(exchange.answer_bytes_max, self._limits.answer_bytes_max)
        return limit - ANSWER_BYTES - EVIDENCE_BYTES * self._limits.lanes

    def _has_more(self) -> bool:
        return self._outgoing is not None or self._outbox.waits()

    def _release(self) -> list[Reply]:
        """Answer the parked request empty, under a serial of its own. Nothing is unconfirmed while one is parked."""
        request, self._parked = self._parked, None
        if request is None:
            return []
        return [self._reply(request.handle, request.number, self._next_serial())]

    def _fill(self, request: _Open) -> Reply:
        """The first answer with packets for this number."""
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
        """All that is unconfirmed, under a new serial."""
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
        return Reply(handle, Answer(self.lane, number, serial, offset, piece, more, self._evidence(), payload or []))

    def _next_serial(self) -> int:
        self.serial = min(self.serial + 1, _SERIAL_MAX)
        return self.serial
