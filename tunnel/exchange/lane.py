"""The dialing half of one lane: its numbers, the serial it received, the exchange in flight, packets in pieces."""

from tunnel.exchange.flight import Flight
from tunnel.exchange.pieces import PieceAssembler
from tunnel.wire import Answer, Attached, Buffer, Discarded, Exchange, Packet, parse_packets

__all__ = ["Lane"]

_NUMBER_MAX = 2**32 - 2**16  # 7.2: numbers and serials have 32 bits; repeats raise serials faster than numbers


class Lane:
    """One lane of one generation."""

    def __init__(self, index: int, packet_bytes_max: int, now: int) -> None:
        self.index = index
        self.number = 0  # of the newest exchange
        self.serial_received = 0
        self.flight: Flight | None = None
        self.token: int | None = None  # of the batch that is being pushed
        self.owes = False  # it received packets, and the relay does not know yet
        self.used_us = now  # when it last had an exchange
        self._incoming = PieceAssembler(packet_bytes_max)
        self._outgoing: memoryview | None = None  # a packet that leaves in pieces
        self._outgoing_offset = 0  # receipted so far
        self._piece_bytes = 0  # in flight

    # what there is

    @property
    def idle(self) -> bool:
        """Whether it is free for an exchange; not while it owes the relay the rest of a packet."""
        return self.flight is None and self._outgoing is None

    @property
    def expects(self) -> bool:
        """Whether the rest of a packet is to come on this lane and no other."""
        return self._incoming.held_bytes > 0

    @property
    def exhausted(self) -> bool:
        """Whether its numbers come to their end."""
        return max(self.number, self.serial_received) >= _NUMBER_MAX

    @property
    def unsent(self) -> bool:
        """Whether pieces of a packet wait for the lane's next number."""
        return self.flight is None and self._outgoing is not None

    # requests

    def start_pull(self, attached: Attached, hold_us: int, answer_bytes_max: int) -> Exchange:
        """The next number asks for what waits."""
        return self._exchange(attached, [], answer_bytes_max, hold_ms=hold_us // 1000, pull=True)

    def start_push(self, attached: Attached, token: int, payload: list[Buffer], answer_bytes_max: int) -> Exchange:
        """The next number carries this batch."""
        self.token = token
        return self._exchange(attached, payload, answer_bytes_max)

    def cut(self, token: int, packet: bytes) -> None:
        """The next numbers carry this packet in pieces: `start_piece` while it is `unsent`."""
        self.token = token
        self._outgoing = memoryview(packet)
        self._outgoing_offset = 0

    def start_piece(self, attached: Attached, size_max: int, answer_bytes_max: int) -> Exchange:
        """The next number carries the next piece."""
        if self._outgoing is None:
            raise ValueError("no packet is cut on this lane")
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
        """The exchange is answered: what it brought."""
        self.flight = None
        self.used_us = now
        self.serial_received = answer.serial
        self.owes = len(answer.data) > 0
        return self._incoming.feed(answer, parse_packets)

    def receipt(self) -> int | None:
        """What the answered exchange carried is at the relay: the token of its batch if that is all of it."""
        self._outgoing_offset += self._piece_bytes
        self._piece_bytes = 0
        if self._outgoing is not None and self._outgoing_offset < len(self._outgoing):
            return None
        return self.give_up()

    def give_up(self) -> int | None:
        """The flight and its batch are over, whatever became of them: the token of the batch."""
        token, self.token = self.token, None
        self.flight = self._outgoing = None
        self._piece_bytes = 0
        return token
