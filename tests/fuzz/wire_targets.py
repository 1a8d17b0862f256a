"""Targets for the parsers of `tunnel.wire`: any bytes, raw or with repaired checksums.

Promises: parsing is total (1.9); a parsed value that is encoded again parses to the same value.
"""

from collections.abc import Callable, Iterator
from typing import Any

from tests.fuzz.checksums import repair_envelope, repair_link, repair_packets
from tests.fuzz.target import Target
from tests.wire.golden import VECTORS, read_hex
from tunnel.wire import (
    HEADER_SIZE,
    Answer,
    EnvelopeError,
    Exchange,
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
    decode_options,
    decode_rejected,
    encode_abort,
    encode_accepted,
    encode_ack,
    encode_connect,
    encode_dropped,
    encode_edge,
    encode_end,
    encode_envelope,
    encode_leave,
    encode_link_header,
    encode_listen_state,
    encode_option,
    encode_options,
    encode_packets,
    encode_rejected,
    frame_of,
    parse_frames,
    parse_packets,
    readdress,
    unwrap_answer,
)
from tunnel.wire.form_data import unwrap_form, wrap_form
from tunnel.wire.text_body import text_bytes, unwrap_text, wrap_text

__all__ = ["WIRE_TARGETS"]

_RAW, _REPAIRED = b"\0", b"\1"  # the first byte of an input: raw, or to be repaired

Seeds = Callable[[], Iterator[tuple[str, bytes]]]
Codec = tuple[Callable[[Any], Any], Callable[[Any], bytes]]

_OPENING: tuple[Codec, ...] = (
    (decode_connect, encode_connect),
    (decode_accepted, encode_accepted),
    (decode_rejected, encode_rejected),
)
_CONTROL: tuple[Codec, ...] = (
    (decode_end, encode_end),
    (decode_abort, encode_abort),
    (decode_option, encode_option),
    (decode_listen_state, encode_listen_state),
    (decode_dropped, encode_dropped),
    (decode_edge, encode_edge),
    (decode_leave, encode_leave),
    (decode_options, encode_options),
)


def _packets(data: bytes) -> None:
    body = repair_packets(data[1:]) if data[:1] == _REPAIRED else data[1:]
    packets, discarded = parse_packets(body)
    frames, frames_discarded = parse_frames(body)
    assert discarded == frames_discarded
    assert sum(packet.size for packet in packets) + (discarded.bytes if discarded else 0) == len(body)
    assert (discarded is None) == (sum(packet.size for packet in packets) == len(body))
    assert b"".join(encode_packets(packets)) == b"".join(frame.data for frame in frames)
    for packet, frame in zip(packets, frames, strict=True):
        assert frame_of(packet) == frame
        moved = readdress(frame, destination=packet.source)
        assert parse_frames(moved.data) == ([moved], None)
        assert moved.payload == packet.payload
    if data[:1] == _REPAIRED:
        whole = len(body) - (discarded.bytes if discarded else 0)
        assert len(body) - whole < HEADER_SIZE, "the parser refused a packet with a right checksum"


def _codecs(codecs: tuple[Codec, ...]) -> Callable[[bytes], None]:
    """Run each decoder on every input: decoders are cheap, and one may take what another refuses."""

    def run(data: bytes) -> None:
        for decode, encode in codecs:
            value = decode(data)
            if value is not None:
                assert decode(encode(value)) == value
                assert decode(memoryview(data)) == value

    return run


def _ack(data: bytes) -> None:
    ack = decode_ack(data)
    if ack is not None:
        raw = encode_ack(ack)
        assert raw[:18] + data[18:20] + raw[20:] == data[:18] + data[18:20] + data[20:]  # two bytes mean nothing (2.4)


def _envelope(data: bytes) -> None:
    body = repair_envelope(data[1:]) if data[:1] == _REPAIRED else data[1:]
    message = decode_envelope(body)
    if isinstance(message, EnvelopeError):
        assert not (data[:1] == _REPAIRED and message in (EnvelopeError.NOT_OURS, EnvelopeError.CORRUPT)), message
        return
    for mask in (None, 0, len(data) & 0xFF):
        assert decode_envelope(b"".join(encode_envelope(message, mask=mask))) == message
    if isinstance(message, Exchange | Answer):
        parse_packets(message.data)


def _link_header(data: bytes) -> None:
    body = repair_link(data[1:]) if data[:1] == _REPAIRED else data[1:]
    header = decode_link_header(body)
    if header is not None:
        raw = encode_link_header(header)
        assert decode_link_header(raw) == header
    else:
        assert data[:1] != _REPAIRED


def _form(data: bytes) -> None:
    """Unwrap a form. The first bytes, up to a line break, are the Content-Type."""
    kind, _, form = data.partition(b"\n")
    content_type = kind.decode("latin-1")
    found = unwrap_form(content_type, form)
    if not isinstance(found, str):
        body = bytes(found)
        assert body in form
        again = unwrap_form(*wrap_form([body], lambda size: "00" * size))
        assert not isinstance(again, str)
        assert bytes(again) == body


def _forms() -> Iterator[tuple[str, bytes]]:
    for name, body in (("empty", b""), ("binary", bytes(range(256))), ("boundary", b"\r\n--00")):
        kind, form = wrap_form([body], lambda size: "00" * size)
        yield name, kind.encode() + b"\n" + form
        yield f"{name}_cut", kind.encode() + b"\n" + form[:-4]


def _text(data: bytes) -> None:
    """Unwrap a text. The body in it survives another text, and the text is no larger than the limit for this body."""
    found = unwrap_text(data)
    if not isinstance(found, str):
        assert len(data) <= text_bytes(len(found))
        again = wrap_text([found])
        assert unwrap_text(again) == found
        assert again.isascii()
    assert unwrap_answer(data) in (data, found)


def _texts() -> Iterator[tuple[str, bytes]]:
    for name, body in (("empty", b""), ("binary", bytes(range(251, 256)) * 3), ("magic", b"TUNL")):
        text = wrap_text([body])
        yield name, text
        yield f"{name}_spaced", b"\r\n" + text.replace(b":", b" : ") + b"\n"
        yield f"{name}_cut", text[:-2]


def _vectors(choose: Callable[[str], bool], head: int, prefix: bytes = b"") -> Seeds:
    """Return small golden vectors as seeds, without their first `head` bytes; large ones would teach no more."""

    def seeds() -> Iterator[tuple[str, bytes]]:
        for path in sorted(VECTORS.glob("*.hex")):
            raw = read_hex(path.stem)
            if choose(path.stem) and len(raw) <= 600:
                yield path.stem, prefix + raw[head:]

    return seeds


_OPENINGS = ("connect_", "accepted", "rejected")
_ENVELOPES = ("attach", "answer", "exchange", "status")
_OTHERS = ("ack", "attachment_id", "link_", *_OPENINGS, *_ENVELOPES)


def _is_control(name: str) -> bool:
    return name in ("abort", "close", "edge", "finish", "leave", "option") or name.startswith(
        ("dropped", "listen_state")
    )


def _is_envelope(name: str) -> bool:
    return name.startswith(_ENVELOPES) and name != "attachment_id"


def _is_packet(name: str) -> bool:
    return name.startswith(("ack", "connect_", "accepted", "rejected")) or not name.startswith(_OTHERS)


def _batches() -> Iterator[tuple[str, bytes]]:
    """Yield each packet alone with its right checksum, and all as one batch, whole and cut."""
    yield from _vectors(_is_packet, 0, _REPAIRED)()
    batch = b"".join(raw[1:] for _, raw in _vectors(_is_packet, 0, _RAW)())
    yield "a_whole_batch", _RAW + batch
    yield "a_cut_batch", _RAW + batch[:-5]


WIRE_TARGETS = (
    Target("packets", _packets, _batches),
    Target("ack", _ack, _vectors(lambda name: name.startswith("ack"), HEADER_SIZE), 512),
    Target("opening", _codecs(_OPENING), _vectors(lambda name: name.startswith(_OPENINGS), HEADER_SIZE), 1024),
    Target("control", _codecs(_CONTROL), _vectors(_is_control, HEADER_SIZE), 512),
    Target("envelope", _envelope, _vectors(_is_envelope, 0, _REPAIRED)),
    Target("form", _form, _forms, 1024),
    Target("text", _text, _texts, 1024),
    Target("link", _link_header, _vectors(lambda name: name.startswith("link_"), 0, _REPAIRED), 512),
)
