"""The assembler turns packets into parts and back, without a stream."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tunnel.messages.errors import MalformedFrameError
from tunnel.messages.packets.assembler import SPOOL_AHEAD_BYTES, AssemblerConfig, Packet, PacketAssembler
from tunnel.messages.packets.bodies import Done, SpooledBody
from tunnel.messages.packets.parts import Part, PartDecoder


class Host:
    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self.refused: list[tuple[int, str]] = []
        self.bytes = 0
        self.told: list[int] = []

    def deliver(self, packet: Packet) -> None:
        self.packets.append(packet)

    def refuse(self, message_id: int, reason: str) -> None:
        self.refused.append((message_id, reason))

    def taken(self, size: int) -> None:
        self.bytes += size
        self.told.append(size)


class Spool:
    """Completes each write at once, or fails it with `error`. If `late` is a list, it gets the callbacks instead."""

    def __init__(self) -> None:
        self.error: OSError | None = None
        self.late: list[Done] | None = None

    def write(self, body: SpooledBody, pieces: Sequence[memoryview], done: Done) -> None:
        if self.error is None:
            body.write(pieces)
        if self.late is not None:
            self.late.append(done)
        else:
            done(self.error)

    def discard(self, body: SpooledBody) -> None:
        body.close()

    def close(self) -> None: ...


class Side:
    def __init__(self, **config: object) -> None:
        self.host, self.spool = Host(), Spool()
        self.assembler = PacketAssembler(self.host, self.spool, AssemblerConfig(**config))  # type: ignore[arg-type]

    def take(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self.assembler.assemble(part)


def parts_of(packet: Packet, part_bytes: int, assembler: PacketAssembler | None = None) -> list[Part]:
    disassembly = (assembler or Side().assembler).disassemble(packet, lambda: None)
    found: list[Part] = []
    while not disassembly.is_done:
        pieces = disassembly.next_part(part_bytes)
        assert pieces is not None
        found += PartDecoder().feed(b"".join(pieces))
    assert disassembly.is_split == (len(found) > 1)
    disassembly.close()
    return found


def test_a_small_packet_is_one_part() -> None:
    for body in (b"", b"x", bytearray(b"xy"), memoryview(b"xyz")):
        (part,) = parts_of(Packet(body, target=3, type=17, response_target=4, executor_id=5), 3)
        assert (part.correlation_id, part.last, part.message_id) == (-1, True, 1)
        side = Side()
        side.take([part])
        assert side.host.packets == [Packet(bytes(body), 3, 17, 4, 5, 1)]
        assert side.host.packets[0].data == Packet(body).data == bytes(body)
        assert side.host.bytes == 0


def test_a_large_packet_is_cut_as_the_document_says() -> None:
    body = bytes(range(256)) * 9
    found = parts_of(Packet(body), 1024)
    assert [part.correlation_id for part in found] == [0, 1, 2]
    assert [part.last for part in found] == [False, False, True]
    assert [part.body() for part in found] == [body[:1024], body[1024:2048], body[2048:]]
    side = Side()
    side.take(found)
    assert side.host.packets[0].body == body
    assert side.host.bytes == len(body)
    assert side.assembler.incoming_count == 0


def test_parts_of_different_packets_may_be_mixed() -> None:
    sender, side = Side().assembler, Side()
    first = parts_of(Packet(b"a" * 30), 10, sender)
    second = parts_of(Packet(b"b" * 30), 10, sender)
    side.take(part for pair in zip(first, second, strict=True) for part in pair)
    assert [packet.body for packet in side.host.packets] == [b"a" * 30, b"b" * 30]


def test_a_large_body_goes_to_disk(tmp_path: Path) -> None:
    side = Side(spool_bytes=20, directory=tmp_path)
    side.take(parts_of(Packet(b"a" * 35), 10))
    (packet,) = side.host.packets
    assert isinstance(packet.body, SpooledBody)
    assert packet.body.file.tell() == 0
    assert packet.data == b"a" * 35
    assert Packet(packet.body.file).data == b"a" * 35
    assert side.host.bytes == 35
    assert list(tmp_path.iterdir()) == []
    packet.body.close()
    exact = Side(spool_bytes=20)
    exact.take(parts_of(Packet(b"a" * 20), 10))
    assert exact.host.packets[0].body == b"a" * 20


def test_a_full_disk_refuses_only_the_message(tmp_path: Path) -> None:
    side = Side(spool_bytes=20)
    side.spool.error = OSError(28, "No space left on device")
    found = parts_of(Packet(b"a" * 50), 10)
    side.take(found)
    assert side.host.packets == []
    assert [(number, "No space" in why) for number, why in side.host.refused] == [(1, True)]
    assert side.host.bytes == 50
    assert side.assembler.incoming_count == 0
    side.spool.error = None
    side.take(parts_of(Packet(b"b" * 15), 10))
    assert side.host.packets[0].body == b"b" * 15
    nowhere = Side(spool_bytes=5, directory=tmp_path / "missing")
    nowhere.take(found)
    assert len(nowhere.host.refused) == 1


def test_messages_over_a_limit_are_refused() -> None:
    side = Side(body_bytes_max=25)
    side.take(parts_of(Packet(b"a" * 30), 10))
    assert side.host.refused == [(1, "the body is over 25 bytes, the receiver's limit")]
    side = Side(incoming_max=1)
    sender = Side().assembler
    first, second = parts_of(Packet(b"a" * 20), 10, sender), parts_of(Packet(b"b" * 20), 10, sender)
    side.take([first[0], second[0], second[1], first[1]])
    assert [packet.body for packet in side.host.packets] == [b"a" * 20]
    assert side.host.refused == [(2, "more than 1 split messages at once: send fewer")]
    assert side.host.bytes == 40


def test_a_sender_that_goes_on_when_refused_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel.messages.packets.assembler._IGNORED_MAX", 2)
    side = Side(incoming_max=0)
    sender = Side().assembler
    firsts = [parts_of(Packet(b"a" * 20), 10, sender)[0] for _ in range(3)]
    side.take(firsts[:2])
    with pytest.raises(MalformedFrameError, match="refused messages have neither ended nor been cancelled"):
        side.take(firsts[2:])
    side.assembler.cancel(1)
    side.take(firsts[2:])


def test_a_cancelled_packet_is_forgotten() -> None:
    for size in (10, 30):
        side = Side(spool_bytes=15)
        found = parts_of(Packet(b"a" * 40), size)
        side.take(found[:1])
        assert side.assembler.incoming_count == 1
        side.assembler.cancel(1)
        assert side.assembler.incoming_count == 0
        with pytest.raises(MalformedFrameError, match="without the parts before it"):
            side.take(found[1:])


def test_parts_written_after_closing_still_count() -> None:
    side = Side(spool_bytes=5)
    side.spool.late = []
    side.take(parts_of(Packet(b"a" * 20), 10))
    assert side.host.bytes == 10  # the last part does not count: the fate of the message is not known yet
    side.assembler.close()
    for done in side.spool.late:
        done(ValueError("closed"))
    assert side.host.bytes == 20
    assert side.host.packets == []
    assert side.host.refused == []
    again = Side(spool_bytes=5)
    again.spool.late = []
    again.take(parts_of(Packet(b"a" * 20), 10))
    again.assembler.cancel(1)
    for done in again.spool.late:
        done(None)
    assert again.host.packets == []


def test_the_lag_of_the_disk_is_bounded() -> None:
    side = Side(spool_bytes=5)
    side.spool.late = []
    part = SPOOL_AHEAD_BYTES // 8
    side.take(parts_of(Packet(bytes(10 * part)), part))
    assert side.host.told == [part] * 8
    for number, done in enumerate(side.spool.late):
        assert len(side.host.packets) == 0
        assert len(side.host.told) == max(8, number)
        done(None)
    assert side.host.told == [part] * 10
    (packet,) = side.host.packets
    assert isinstance(packet.body, SpooledBody)
    packet.body.close()


def test_taken_bytes_are_reported_in_order_of_arrival() -> None:
    sender, side = Side().assembler, Side(spool_bytes=25)
    side.spool.late = []
    large, small = parts_of(Packet(b"a" * 30), 10, sender), parts_of(Packet(b"b" * 12), 6, sender)
    side.take(large)
    side.take(small)
    assert side.host.told == [10, 10]
    (packet,) = side.host.packets
    assert packet.body == b"b" * 12  # it needs no disk, but its bytes are reported after those of the large one
    (done,) = side.spool.late
    done(OSError("full"))
    assert side.host.refused == [(1, "the receiver cannot store the body: full")]
    assert side.host.told == [10, 10, 22]


def test_a_complete_message_that_cannot_be_written_frees_its_id() -> None:
    side = Side(spool_bytes=5)
    side.spool.late = []
    parts = parts_of(Packet(b"a" * 20), 10)
    side.take(parts)
    first, last = side.spool.late
    first(OSError("full"))
    last(OSError("full"))
    assert len(side.host.refused) == 1
    assert side.host.bytes == 20
    side.spool.late = None
    side.take(parts)  # the id is free again
    (packet,) = side.host.packets
    assert isinstance(packet.body, SpooledBody)
    packet.body.close()


def test_parts_out_of_order_break_the_framing() -> None:
    found = parts_of(Packet(b"a" * 30), 10)
    side = Side()
    side.take(found[:1])
    with pytest.raises(MalformedFrameError, match="part 2 of message 1 came, but part 1 is next"):
        side.take(found[2:])
