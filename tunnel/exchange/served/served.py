"""The relay's half of one lane: it applies each request once, and answers, confirms and requeues.

Clauses 7.3, 7.4, 7.6, 7.20 of docs/PROTOCOL.md.

For each request of the lane the switch must, in this order:

1. call `arrival = lane.receive(exchange, handle, now)` and send `arrival.replies`;
2. if `arrival.applies`, route `arrival.frames`, then call `lane.answer(now)` and send the reply. If the reply is None,
   the request is parked.

Later it must call `wake(now)` when something waits, `expire(now)` at `parked_until_us`, `gone(handle)` when an HTTP
connection has died, and `close()` when the generation ends.

If the answer goes on, it is the first envelope of a stream. While `stream` is its handle, the switch must call
`poll_stream(now)` when something waits and the connection can take it, `confirm(serial, now)` for confirmations that
other lanes carry, and `check_stream(now)` at `stream_due_us`.
"""

from collections.abc import Callable

import msgspec

from tunnel.exchange.path.window import PathWindow
from tunnel.exchange.pieces import PieceAssembler
from tunnel.exchange.served.ledger import Ledger
from tunnel.exchange.served.outbox import PACKETS_ANY, Outbox
from tunnel.exchange.served.served_stream import ServedStream
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

__all__ = ["Reply", "ServedLane", "ServedLimits", "ServedRequest"]

_STREAM_BYTES_MIN = 4096  # a stream limited to fewer bytes is not worth its envelopes
_SERIAL_MAX = 2**32 - 1  # 7.2: endpoints attach again long before this is reached


class ServedLimits(msgspec.Struct):
    """The limits of a lane; ATTACHED announces most of them (7.11)."""

    lanes: int  # of the attachment: every answer has room for the evidence of this many lanes
    packet_bytes_max: int = PACKET_SIZE_MAX  # of a packet that comes in pieces
    answer_bytes_max: int = 2**20  # of a response body, including the envelope; requests may ask for less
    hold_us_max: int = 15_000_000
    streams: bool = False  # pulls may be answered with streams
    stream_packets_max: int = PACKETS_ANY  # unconfirmed packets of a stream


class Reply(msgspec.Struct):
    """An answer to send on the HTTP exchange `handle`. The caller encodes it with `encode_envelope`.

    If the answer does not go on, the body of the HTTP exchange ends after it. If `is_cut`, the body ends at once, and
    the answer is not sent.
    """

    handle: int
    answer: Answer
    previous: int = 0  # the handle of the previous answer, which nothing waits for any more; 0: none
    is_cut: bool = False


class ServedRequest(msgspec.Struct):
    """The result of a request. If `applies`, it is new: the caller must route its frames and then call `answer`."""

    applies: bool
    frames: list[Frame]
    replies: list[Reply]  # to send at once: answers to a released request, a repeat or an old number; ends of streams
    discarded: Discarded | None = None


class _Open(msgspec.Struct):
    """A request that waits for its answer."""

    handle: int
    number: int
    limit_bytes: int  # of packets in the answer
    hold_us: int  # 0: a push, or a pull that does not wait
    stream_bytes: int = 0  # of a streamed answer; 0: the answer is complete


class ServedLane:
    """The relay's half of one lane, for one generation.

    `evidence` returns (lane, `answered`) for every lane of the attachment (7.7). `window` is that of all streams of
    the attachment.

    One thing because complete answers and streams share the serials of the lane and one ledger: a confirmation frees
    what either of them has sent.
    """

    def __init__(
        self,
        lane: int,
        outbox: Outbox,
        evidence: Callable[[], list[tuple[int, int]]],
        limits: ServedLimits,
        window: PathWindow | None = None,
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
        # All complete answers to one number hold the same packets, so any serial from the first one on confirms them.
        self._ledger = Ledger()
        self._first_serial = 0
        self._window = window or PathWindow()
        self._stream: ServedStream | None = None  # open, or over but with packets that are not confirmed
        self._outgoing: Frame | None = None  # a frame that leaves in pieces; it is not in the ledger
        self._outgoing_offset = 0  # bytes of that frame that are confirmed
        self._piece_bytes = 0  # bytes sent after that offset and not confirmed
        self._incoming = PieceAssembler(limits.packet_bytes_max)

    # state

    @property
    def parked_handle(self) -> int | None:
        """The handle of the parked request, if any."""
        return self._parked.handle if self._parked is not None else None

    @property
    def held_bytes(self) -> int:
        """The number of bytes that the lane keeps: unconfirmed frames, and packets that leave or come in pieces.

        It is at most one answer, or the window and one envelope of a stream, plus two packets.
        """
        outgoing = self._outgoing.size if self._outgoing is not None else 0
        return self._ledger.held_bytes + outgoing + self._incoming.held_bytes

    @property
    def incoming_bytes(self) -> int:
        """The number of bytes held of a packet that comes in pieces."""
        return self._incoming.held_bytes

    @property
    def stream(self) -> int | None:
        """The handle of the open stream, if any."""
        return self._stream.handle if self._stream is not None and not self._stream.is_over else None

    @property
    def carries(self) -> bool:
        """Whether packets leave on the stream: its first envelope is confirmed, and it is not over."""
        return self._stream is not None and self._stream.carries

    @property
    def stream_due_us(self) -> int | None:
        """When `check_stream` must be called, or None."""
        stream = self._stream
        if stream is None:
            return None
        due_us = None if stream.is_over else min(stream.ends_us, stream.beat_us)
        if self._ledger.held_bytes:
            doubt_us = stream.progress_us + self._window.patience_us
            due_us = doubt_us if due_us is None else min(due_us, doubt_us)
        return due_us

    def has_sent(self, serial: int) -> bool:
        """Return whether an answer of this lane had this serial or a higher one.

        A request that names a serial which no answer has had was meant for an earlier life of the lane and must
        confirm nothing (7.3).
        """
        return serial <= self.serial

    # requests

    def receive(self, exchange: Exchange, handle: int, now: int) -> ServedRequest:
        """Process a request of this lane: step 1 in the description of this module (7.3).

        The caller has checked envelope, attachment, epoch, generation and serial.
        """
        if exchange.number <= self.highest:
            self.repeats += 1
            return ServedRequest(applies=False, frames=[], replies=self._answer_again(exchange, handle))
        replies = self._end_stream() + self._release()
        self._settle(exchange.serial_received, now)
        self._stream = None
        self.highest = exchange.number
        hold_us = min(exchange.hold_ms * 1000, self._limits.hold_us_max) if exchange.pull else 0
        self._open = _Open(handle, exchange.number, self._limit(exchange), hold_us)
        frames, discarded = self._incoming.feed(exchange, parse_frames)
        if exchange.stream and hold_us and self._limits.streams and not self._has_piece:
            limit = exchange.answer_bytes_max
            self._open.stream_bytes = limit if limit >= _STREAM_BYTES_MIN else 0
        return ServedRequest(applies=True, frames=frames, replies=replies, discarded=discarded)

    def answer(self, now: int) -> Reply | None:
        """Answer the request that was just received, with what waits now. Return None if it is parked (7.4).

        The caller must call this once after each request that applies, when its frames have been routed.
        """
        request, self._open = self._open, None
        if request is None:
            raise ValueError("there is no request to answer: call receive first, and answer only if it applies")
        if request.stream_bytes:
            return self._open_stream(request, now)
        if request.hold_us and not self._has_more():
            self._parked = request
            self.parked_at_us = now
            self.parked_until_us = now + request.hold_us
            return None
        return self._fill(request, now)

    # the parked request

    def wake(self, now: int) -> Reply | None:
        """Answer the parked request with what waits. Return None if no request is parked or nothing waits."""
        if self._parked is None or not self._has_more():
            return None
        request, self._parked = self._parked, None
        return self._fill(request, now)

    def release(self) -> list[Reply]:
        """Answer the parked request without packets, because a stream carries them."""
        return self._release()

    def expire(self, now: int) -> Reply | None:
        """Answer the parked request without packets when its hold is over. Early calls have no effect."""
        if self._parked is None or now < self.parked_until_us:
            return None
        return self._release()[0]

    def on_gone(self, handle: int) -> None:
        """Forget the parked request or the stream if its HTTP connection, `handle`, has died.

        The packets of a stream stay here until the endpoint's next number says which of them arrived, or until
        `check_stream` takes them back.
        """
        if self._parked is not None and self._parked.handle == handle:
            self._parked = None
        if self.stream == handle:
            self._end_stream()

    def close(self) -> list[Reply]:
        """End the lane with its generation or attachment.

        Unconfirmed frames go back to the front of the outbox (6.2), and a parked request is released. The caller must
        not use the lane afterwards.
        """
        replies = self._end_stream()
        self._settle(0, 0)
        if self._outgoing is not None:
            self._outbox.put_back([self._outgoing])
            self._outgoing = None
        self._incoming.clear()
        return replies + self._release()

    # the stream

    def poll_stream(self, now: int) -> Reply | None:
        """Return the next envelope of the open stream, or None if nothing is to be sent now.

        The caller must call this again until it returns None, as long as the HTTP connection can take more.
        """
        stream = self._stream
        if stream is None or stream.is_over:
            return None
        fixed_bytes = self._fixed_bytes
        if now >= stream.ends_us or stream.left_bytes < 2 * fixed_bytes + HEADER_SIZE:
            return self.finish_stream(now)
        frames: list[Frame] = []
        # Check the room first: if it is used up by many small packets, the window is not the limit.
        room = self._limits.stream_packets_max - self._ledger.held_packets
        if stream.is_proven and room > 0 and self._outbox.waits() and self._window.allows(self._ledger.held_bytes):
            frames = self._outbox.take(self._envelope_bytes(stream), room)
            if frames and stream.left_bytes < sum(frame.size for frame in frames) + 2 * fixed_bytes:
                self._outbox.put_back(frames)  # one large packet, for which this stream has no room left
                return self.finish_stream(now)
        if not frames and now < stream.beat_us:
            return None
        if frames and not self._ledger.held_bytes:
            stream.progress_us = now
        serial = self._next_serial()
        self._ledger.add(serial, frames, now)
        size = sum(frame.size for frame in frames)
        stream.on_sent(size + fixed_bytes, now, empty=not frames)
        answer = Answer(self.lane, stream.number, serial, 0, False, False, self._evidence(), [], True)
        answer.payload = [frame.data for frame in frames]
        return Reply(stream.handle, answer)

    def finish_stream(self, now: int) -> Reply | None:
        """Return the last envelope of the open stream, after which nothing follows. None if no stream is open."""
        stream = self._stream
        if stream is None or not self._end_stream():
            return None
        return Reply(stream.handle, Answer(self.lane, stream.number, self._next_serial(), evidence=self._evidence()))

    def confirm(self, serial: int, now: int) -> None:
        """Free the packets of all serials up to this one, which the endpoint has (7.20)."""
        confirmed = self._ledger.confirm(serial)
        stream = self._stream
        if stream is not None and not stream.is_proven and serial >= stream.first_serial:
            stream.is_proven = True
            self._window.note_wait(now - stream.opened_us, now)
        if not confirmed.frames:
            return
        self._outbox.on_confirmed(confirmed.frames)
        if stream is not None:
            stream.progress_us = now
            self._window.on_receipted(
                confirmed.size, confirmed.first_us, confirmed.sent_us, now, waits=self._ledger.held_bytes > 0
            )
            self._forget_stream()

    def check_stream(self, now: int) -> list[Reply]:
        """Take all packets back and end the stream if no confirmation came in time (7.20)."""
        stream = self._stream
        if stream is None or not self._ledger.held_bytes or now < stream.progress_us + self._window.patience_us:
            return []
        self._outbox.put_back(self._ledger.take_back())
        self._window.on_failed()
        return self._end_stream()

    def _open_stream(self, request: _Open, now: int) -> Reply:
        """Return the first envelope of a stream. It is empty and leaves at once, to show that the path lets it pass."""
        serial = self._next_serial()
        ends_us = now + request.hold_us
        self._stream = ServedStream(request.handle, request.number, request.stream_bytes, ends_us, serial, now)
        self._stream.left_bytes -= self._fixed_bytes
        return self._reply(request.handle, request.number, serial, goes_on=True)

    def _end_stream(self) -> list[Reply]:
        """End the open stream, if there is one: its body ends without another envelope."""
        stream = self._stream
        if stream is None or stream.is_over:
            return []
        stream.is_over = True
        self._forget_stream()
        return [Reply(stream.handle, Answer(self.lane, stream.number, self.serial), is_cut=True)]

    def _forget_stream(self) -> None:
        if self._stream is not None and self._stream.is_over and not self._ledger.held_bytes:
            self._stream = None

    def _envelope_bytes(self, stream: ServedStream) -> int:
        limit = min(self._window.part_bytes, stream.left_bytes - 2 * self._fixed_bytes)
        return min(limit, self._limits.answer_bytes_max - self._fixed_bytes)

    # confirmation

    def _settle(self, serial_received: int, now: int) -> None:
        """Free the packets that the endpoint has; put the rest back to the front of the outbox (7.3)."""
        self.confirm(serial_received, now)
        if self._ledger.held_bytes:
            self._outbox.put_back(self._ledger.take_back())
        # An unconfirmed piece stays with its lane; the next answer carries it again.
        if self._first_serial <= serial_received and self._outgoing is not None:
            self._outgoing_offset += self._piece_bytes
            if self._outgoing_offset == self._outgoing.size:
                self._outbox.on_confirmed([self._outgoing])
                self._outgoing = None
        self._piece_bytes = 0

    def _answer_again(self, exchange: Exchange, handle: int) -> list[Reply]:
        """Answer a repeat or an old number, never with new packets.

        A repeat gets the unconfirmed packets. New ones would be lost if the request is a proxy's late copy.
        """
        if exchange.number < self.highest:
            reply = self._reply(handle, exchange.number, self.serial)
            if self.stream is not None:
                # The request may be a proxy's late copy, which must not cut the stream.
                reply.previous, self._answer_handle = 0, reply.previous
            return [reply]
        replies = self._end_stream() + self._release()
        self._stream = None
        self._fit(self._limit(exchange))
        replies.append(self._unconfirmed_reply(handle, exchange.number))
        return replies

    def _fit(self, limit_bytes: int) -> None:
        """Put packets that a smaller answer cannot hold back to the front of the outbox.

        If a piece does not fit, its whole packet is put back and will start from offset 0 again: that is right whether
        the endpoint has the piece or not.
        """
        if self._piece_bytes > limit_bytes and self._outgoing is not None:
            self._outbox.put_back([self._outgoing])
            self._outgoing = None
            self._piece_bytes = 0
        rest = self._ledger.fit(limit_bytes)
        if rest:
            self._outbox.put_back(rest)

    # answers

    def _limit(self, exchange: Exchange) -> int:
        """Return how many bytes of packets an answer may hold.

        The share of the evidence is fixed, so that a repeated answer holds the same packets as the first one.
        """
        return min(exchange.answer_bytes_max, self._limits.answer_bytes_max) - self._fixed_bytes

    @property
    def _fixed_bytes(self) -> int:
        """The size of an answer without packets."""
        return ANSWER_BYTES + EVIDENCE_BYTES * self._limits.lanes

    @property
    def _has_piece(self) -> bool:
        """Whether a packet leaves or comes in pieces."""
        return self._outgoing is not None or self._incoming.held_bytes > 0

    def _has_more(self) -> bool:
        return self._outgoing is not None or self._outbox.waits()

    def _release(self) -> list[Reply]:
        """Answer the parked request without packets, under a new serial. Nothing is unconfirmed while it is parked."""
        request, self._parked = self._parked, None
        if request is None:
            return []
        return [self._reply(request.handle, request.number, self._next_serial())]

    def _fill(self, request: _Open, now: int) -> Reply:
        """Return the first answer to this request, with the packets that wait."""
        self._first_serial = self.serial + 1
        if request.limit_bytes >= HEADER_SIZE:
            if self._outgoing is None:
                self._take(request.limit_bytes, now)
            if self._outgoing is not None:
                self._piece_bytes = min(request.limit_bytes, self._outgoing.size - self._outgoing_offset)
        return self._unconfirmed_reply(request.handle, request.number)

    def _take(self, limit_bytes: int, now: int) -> None:
        frames = self._outbox.take(limit_bytes)
        if len(frames) == 1 and frames[0].size > limit_bytes:
            self._outgoing = frames[0]
            self._outgoing_offset = 0
        else:
            self._ledger.add(self._first_serial, frames, now)

    def _unconfirmed_reply(self, handle: int, number: int) -> Reply:
        """Return an answer with everything that is unconfirmed, under a new serial."""
        offset, payload = 0, [frame.data for frame in self._ledger.frames]
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
        goes_on: bool = False,
    ) -> Reply:
        previous, self._answer_handle = self._answer_handle, handle
        answer = self._answer(number, serial, payload, offset, piece=piece)
        answer.goes_on = goes_on
        return Reply(handle, answer, previous)

    def _answer(
        self, number: int, serial: int, payload: list[Buffer] | None = None, offset: int = 0, *, piece: bool = False
    ) -> Answer:
        self.answered = max(self.answered, number)
        unsent = self._outgoing is not None and self._outgoing_offset + self._piece_bytes < self._outgoing.size
        more = unsent or self._outbox.waits()
        return Answer(self.lane, number, serial, offset, piece, more, self._evidence(), payload or [])

    def _next_serial(self) -> int:
        self.serial = min(self.serial + 1, _SERIAL_MAX)
        return self.serial
