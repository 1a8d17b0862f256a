"""The golden vectors pin every codec in both directions; see vectors/README.md."""

from pathlib import Path
from typing import Any

import pytest

from tests.wire.golden import VECTORS, expected_files, main, read_hex
from tests.wire.golden_values import ENVELOPES, LINKS, PACKETS, SECRET
from tunnel.wire import (
    EnvelopeError,
    LinkHeader,
    Message,
    Packet,
    PacketType,
    attachment_id,
    decode_abort,
    decode_accepted,
    decode_ack,
    decode_connect,
    decode_dropped,
    decode_edge,
    decode_end,
    decode_envelope,
    decode_leave,
    decode_link_header,
    decode_listen_state,
    decode_option,
    decode_rejected,
    encode_envelope,
    encode_link_header,
    encode_packet,
    frame_of,
    parse_frames,
    parse_packets,
)

DECODERS = {
    PacketType.CONNECT: decode_connect,
    PacketType.ACCEPTED: decode_accepted,
    PacketType.REJECTED: decode_rejected,
    PacketType.CLOSE: decode_end,
    PacketType.ACK: decode_ack,
    PacketType.ABORT: decode_abort,
    PacketType.OPTION: decode_option,
    PacketType.LISTEN_STATE: decode_listen_state,
    PacketType.FINISH: decode_end,
    PacketType.DROPPED: decode_dropped,
    PacketType.EDGE: decode_edge,
    PacketType.LEAVE: decode_leave,
}
each_packet = pytest.mark.parametrize(("name", "packet", "value"), [entry[:3] for entry in PACKETS])
each_envelope = pytest.mark.parametrize(("name", "message", "mask"), [entry[:3] for entry in ENVELOPES])


@each_packet
def test_a_packet_has_its_stored_bytes(name: str, packet: Packet, value: Any) -> None:
    raw = read_hex(name)
    assert b"".join(encode_packet(packet)) == raw
    assert parse_packets(raw) == ([packet], None)
    assert parse_frames(raw) == ([frame_of(packet)], None)
    decode = DECODERS.get(packet.type)  # type: ignore[call-overload]
    assert (decode(packet.payload) if decode else None) == value


@each_packet
def test_no_bit_flip_of_a_packet_is_accepted(name: str, packet: Packet, value: Any) -> None:  # 1.2
    raw = read_hex(name)
    for bit in range(0, 8 * len(raw), 1 if len(raw) < 300 else 97):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        packets, discarded = parse_packets(damaged)
        assert packets == []
        assert discarded is not None
        assert discarded.bytes == len(raw)


def test_all_packets_are_parsed_from_one_batch() -> None:
    batch = b"".join(read_hex(name) for name, *_ in PACKETS)
    assert parse_packets(batch) == ([packet for _, packet, _, _ in PACKETS], None)


@each_envelope
def test_an_envelope_has_its_stored_bytes(name: str, message: Message, mask: int | None) -> None:
    raw = read_hex(name)
    assert b"".join(encode_envelope(message, mask=mask)) == raw
    assert decode_envelope(raw) == message


@each_envelope
def test_no_bit_flip_of_an_envelope_is_accepted(name: str, message: Message, mask: int | None) -> None:
    raw = read_hex(name)
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        assert isinstance(decode_envelope(damaged), EnvelopeError)


@pytest.mark.parametrize(("name", "header"), [entry[:2] for entry in LINKS])
def test_a_link_header_has_its_stored_bytes(name: str, header: LinkHeader) -> None:
    raw = read_hex(name)
    assert encode_link_header(header) == raw
    assert decode_link_header(raw) == header


def test_the_attachment_id_has_its_stored_bytes() -> None:
    assert attachment_id(SECRET) == read_hex("attachment_id")


def test_every_type_and_every_message_has_a_vector() -> None:
    assert {packet.type for _, packet, _, _ in PACKETS} >= set(PacketType)
    assert {type(message).__name__ for _, message, _, _ in ENVELOPES} == {
        "Attach",
        "Attached",
        "Exchange",
        "Answer",
        "Status",
    }


def test_the_stored_files_match_the_code() -> None:
    stored = {path.name: path.read_text() for path in VECTORS.iterdir() if path.name != "README.md"}
    assert stored == expected_files()


def test_vectors_are_written_only_with_the_write_option(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "old.hex").write_text("00\n")
    (tmp_path / "README.md").write_text("kept")
    assert main([], tmp_path, said.append) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "old.hex"]
    assert "differs: data.hex" in said
    assert main(["--write"], tmp_path, said.append) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", *expected_files()}
    said.clear()
    assert main([], tmp_path, said.append) == 0
    assert said == []
    assert read_hex("data", tmp_path) == read_hex("data")
    assert main(["--wrote"], tmp_path, said.append) == 2
