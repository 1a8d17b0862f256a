"""The endpoint's half of one lane: its number, the serial received, the exchange in flight, and packets in pieces."""

from tunnel.exchange.flight import Flight
from tunnel.exchange.pieces import PieceAssembler
from tunnel.wire import Answer, Attached, Buffer, Discarded, Exchange, Packet, parse_packets

__all__ = ["Lane"]

_NUMBER_MAX = 2**32 - 2**16  # 7.2: numbers and serials have 32 bits; repeats raise serials faster than numbers


class Lane:
    """The endpoint's half of one lane, for one generation."""

    def __init__(self, index: int, packet_bytes_max: int, now: int) -> None:
        self.index = index
        self.number = 0  # of the newest exchange
        self.serial_received = 0
        self.flight: Flight | None = None
        self.streaming = False  # the relay answers with a stream, which is not over
        self.token: int | None = None  # the number by which the caller knows the batch that is being pushed
        self.owes = False  # the lane may have received packets that it has not confirmed to the relay
        self.used_us = now  # when the lane last had an exchange
        self.expects = False  # the lane has received only a part of a packet: the rest can come only on this lane
        self.is_cut = False  # a packet leaves in pieces
        self._incoming = PieceAssembler(packet_bytes_max)
        self._outgoing = memoryview(b"")  # that packet
        self._outgoing_offset = 0  # bytes of that packet that are receipted
        self._piece_bytes = 0  # bytes of that packet that are in flight

    # state

    @property
    def idle(self) -> bool:
        """Whether the lane is free for an exchange. It is not while the rest of a packet must still leave on it."""
        return self.flight is None and not self.is_cut and not self.streaming

    @property
    def is_exhausted(self) -> bool:
        """Whether the lane's numbers or serials are nearly used up."""
        return max(self.number, self.serial_received) >= _NUMBER_MAX

    @property
    def unsent(self) -> bool:
        """Whether pieces of a packet wait for the lane's next number."""
        return self.flight is None and self.is_cut

    # requests

    def start_pull(self, attached: Attached, hold_us: int, answer_bytes_max: int) -> Exchange:
        """Return an exchange with the next number that asks for the packets that wait."""
        return self._exchange(attached, [], answer_bytes_max, hold_ms=hold_us // 1000, pull=True)

    def start_stream(self, attached: Attached, hold_us: int, limit_bytes: int) -> Exchange:
        """Return an exchange with the next number whose answer may be a stream (7.20)."""
        exchange = self._exchange(attached, [], limit_bytes, hold_ms=hold_us // 1000, pull=True)
        exchange.stream = True
        return exchange

    def start_empty(self, attached: Attached, answer_bytes_max: int) -> Exchange:
        """Return an exchange with the next number that carries no packets, only confirmations."""
        return self._exchange(attached, [], answer_bytes_max)

    def start_push(self, attached: Attached, token: int, payload: list[Buffer], answer_bytes_max: int) -> Exchange:
        """Return an exchange with the next number that carries this batch."""
        self.token = token
        return self._exchange(attached, payload, answer_bytes_max)

    def cut(self, token: int, packet: bytes) -> None:
        """Send this packet in pieces. The caller must call `start_piece` now, and again whenever `unsent` is true."""
        self.token = token
        self.is_cut, self._outgoing = True, memoryview(packet)
        self._outgoing_offset = 0

    def start_piece(self, attached: Attached, size_max: int, answer_bytes_max: int) -> Exchange:
        """Return an exchange with the next number that carries the next piece of the packet."""
        if not self.is_cut:
            raise ValueError("no packet is cut on this lane: call cut() first")
        offset = self._outgoing_offset
        piece = self._outgoing[offset : offset + size_max]
        self._piece_bytes = len(piece)
        return self._exchange(attached, [piece], answer_bytes_max, piece_offset=offset, piece=True)

    def _exchange(
        self,
        attached: Attached,
        payload: list[Buffer],
        answer_bytes_max: int,
        *,
        hold_ms: int = 0,
        piece_offset: int = 0,
        pull: bool = False,
        piece: bool = False,
    ) -> Exchange:
        self.number += 1
        return Exchange(
            attachment_id=attached.attachment_id,
            epoch=attached.epoch,
            generation=attached.generation,
            lane=self.index,
            number=self.number,
            serial_received=self.serial_received,
            hold_ms=hold_ms,
            answer_bytes_max=answer_bytes_max,
            piece_offset=piece_offset,
            pull=pull,
            piece=piece,
            payload=payload,
        )

    # the end of an exchange

    def accept(self, answer: Answer, now: int) -> tuple[list[Packet], Discarded | None]:
        """End the exchange with its answer. Return the packets that it brought, and what was discarded."""
        self.flight = None
        self.used_us = now
        self.serial_received = answer.serial
        self.owes = len(answer.data) > 0
        if not self.owes and not answer.piece:
            return [], None  # pieces that are held stay
        found = self._incoming.feed(answer, parse_packets)
        self.expects = self._incoming.held_bytes > 0
        return found

    def begin_stream(self, first: Answer) -> None:
        """Go on with a stream, whose first envelope came."""
        self.flight = None
        self.streaming = True
        self.serial_received = first.serial

    def take(self, answer: Answer, now: int) -> None:
        """Record the next envelope of the stream. Its packets are whole."""
        self.used_us = now
        self.serial_received = answer.serial
        self.owes = self.owes or len(answer.data) > 0

    def end_stream(self, now: int, *, owes: bool) -> None:
        """End the stream. If the lane `owes`, the relay does not know yet how much of the stream has come."""
        self.streaming = False
        self.owes = owes
        self.used_us = now

    def take_receipt(self) -> int | None:
        """Record that the relay has what the answered exchange carried.

        Return the token of its batch if the whole batch has arrived now; None if pieces are still to be sent, or
        if there was no batch.
        """
        self._outgoing_offset += self._piece_bytes
        self._piece_bytes = 0
        if self.is_cut and self._outgoing_offset < len(self._outgoing):
            return None
        return self._end_batch()

    def give_up(self) -> int | None:
        """Give up the exchange and its batch, which may or may not have arrived. Return the token of the batch."""
        return self._end_batch()

    def _end_batch(self) -> int | None:
        token, self.token = self.token, None
        self.flight = None
        self.is_cut, self._outgoing = False, memoryview(b"")
        self._piece_bytes = 0
        return token
