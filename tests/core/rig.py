"""What several tests of endpoints share: how an end is followed, and a sink for trace records."""

from tests.core.pair import Pair, Side
from tests.core.solo import BIG, FIRST, PEER, Solo
from tunnel.core import Connection
from tunnel.traces.record import TraceEvent, TraceLevel, TraceRecord
from tunnel.wire import Ack, Packet, PacketType, encode_ack, wrap

__all__ = ["ACK", "DATA", "Sink", "acknowledge", "data", "drain", "is_gone", "kinds", "opened"]


def drain(connection: Connection, pair: Pair) -> bytes:
    """Read everything that can be read now."""
    parts = []
    while len(part := connection.read(1 << 20, pair.now)):
        parts.append(bytes(part))
        pair.settle()
    return b"".join(parts)


def kinds(side: Side) -> list[type]:
    found = [type(event) for event in side.events]
    side.events.clear()
    return found


def is_gone(pair: Pair) -> bool:
    return not pair.a.endpoint.connections and not pair.b.endpoint.connections


DATA, ACK = PacketType.DATA, PacketType.ACK


class Sink(list[TraceRecord]):
    """A trace sink with a level, which keeps its records."""

    def __init__(self, level: TraceLevel = TraceLevel.PACKET) -> None:
        super().__init__()
        self.level = level

    def __call__(self, record: TraceRecord) -> None:
        self.append(record)

    def of(self, event: TraceEvent) -> list[TraceRecord]:
        return [record for record in self if record.event == event]

    def only(self, event: TraceEvent) -> TraceRecord:
        (record,) = self.of(event)
        return record


def opened(level: TraceLevel = TraceLevel.PACKET) -> tuple[Solo, Sink]:
    sink = Sink(level)
    solo = Solo(trace=sink).opened()
    sink.clear()
    return solo, sink


def acknowledge(solo: Solo, *, delay_us: int = 0, attempt: int = 0) -> None:
    """Receive an ACK of everything; the newest packet came in this attempt, `delay_us` before the ACK left."""
    newest = wrap(solo.connection.sender.window.next_sequence - 1)
    solo.say(ACK, encode_ack(Ack(newest, BIG, delay_us, newest, attempt, [])))


def data(solo: Solo, number: int, payload: bytes, attempt: int = 0) -> Packet:
    return Packet(DATA, PEER, solo.connection.id, wrap(FIRST + number), payload, attempt)
