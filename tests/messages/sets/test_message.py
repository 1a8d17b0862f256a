"""The layout of a message, and an iterator that trusts no length."""

import struct
from contextlib import suppress
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.messages.errors import (
    ChecksumError,
    CorruptMessageError,
    DecompressError,
    MessageSizeError,
    MessageTooLargeError,
    UnknownCodecError,
    UnknownVersionError,
)
from tunnel.messages.sets.codec import Codec, compress
from tunnel.messages.sets.message import (
    UNPACKED_BYTES_MAX,
    Message,
    MessageAndOffset,
    check_size,
    count_whole,
    encode_message,
    encode_payloads,
    parse_header,
    plain_payloads,
    scan,
    unpack_set,
)


def wrap(data: bytes, codec: Codec = Codec.GZIP) -> bytes:
    return encode_message(Message(compress(data, codec), codec))


def test_the_layout_is_that_of_the_document() -> None:
    assert encode_message(Message(b"hello")) == struct.pack(">IBBI", 11, 1, 0, crc32(b"hello")) + b"hello"
    assert encode_payloads([b"hello", b""]) == encode_message(Message(b"hello")) + encode_message(Message(b""))
    assert Message(b"hello").size_bytes == 15


def test_payloads_may_come_from_any_iterable() -> None:
    assert encode_payloads(iter([b"a", b"b"])) == encode_payloads([b"a", b"b"])


def test_messages_come_with_their_offsets() -> None:
    found = list(scan(encode_payloads([b"a", b"", b"ccc"]), base=100))
    assert found[0] == MessageAndOffset(Message(b"a"), 100, 111)
    assert [(each.payload, each.offset, each.next_offset) for each in found[1:]] == [
        (b"", 111, 121),
        (b"ccc", 121, 134),
    ]


@given(st.lists(st.binary(max_size=50)), st.integers(0, 60))
def test_a_truncated_tail_ends_the_iteration_without_an_error(payloads: list[bytes], cut: int) -> None:
    data = encode_payloads(payloads)
    whole = list(scan(data))
    assert [each.payload for each in whole] == payloads
    kept = data[: max(0, len(data) - cut)]
    assert list(scan(kept)) == [each for each in whole if each.next_offset <= len(kept)]


@given(st.binary(max_size=200))
def test_any_bytes_give_messages_or_an_error(data: bytes) -> None:
    found: list[MessageAndOffset] = []
    with suppress(CorruptMessageError):
        for each in scan(data):
            found.append(each)
    end = found[-1].next_offset if found else 0
    assert b"".join(encode_message(each.message) for each in found) == data[:end]


def test_an_error_names_the_damage_and_its_place() -> None:
    good = encode_payloads([b"good"])

    def broken(**changed: int) -> bytes:
        fields = {"length": 10, "version": 1, "attributes": 0, "crc": crc32(b"good")} | changed
        return good + struct.pack(">IBBI", *fields.values()) + b"good"

    cases = [
        (UnknownVersionError, "version 2", broken(version=2)),
        (UnknownVersionError, "version 0", broken(version=0)),
        (UnknownCodecError, "0x03", broken(attributes=3)),
        (UnknownCodecError, "0x81", broken(attributes=0x81)),
        (MessageSizeError, "length 5,", broken(length=5)),
        (MessageSizeError, "length 4294967295", broken(length=0xFFFFFFFF)),
        (MessageSizeError, "length 4294967295", broken(length=0xFFFFFFFF, attributes=1)),
        (ChecksumError, r"^the payload does not match its CRC-32 \(at 14\)$", broken(crc=1)),
    ]
    for kind, text, data in cases:
        iterator = scan(data)
        assert next(iterator).payload == b"good"
        with pytest.raises(kind, match=text) as caught:
            next(iterator)
        assert caught.value.offset == 14
        assert caught.value.exit_code == 7
        with pytest.raises(kind, match=text.replace("at 14", "at 114")) as caught:
            list(scan(data, base=100))
        assert caught.value.offset == 114


@given(st.lists(st.binary(max_size=20)), st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255))
def test_the_fast_loops_agree_with_scan(payloads: list[bytes], tail: bytes, place: int, value: int) -> None:
    data = bytearray(encode_payloads(payloads) + wrap(encode_payloads([b"packed"])) + encode_payloads([b"last"]) + tail)
    data[place % len(data)] = value
    found: list[MessageAndOffset] = []
    error: CorruptMessageError | None = None
    try:
        for each in scan(bytes(data), message_bytes_max=UNPACKED_BYTES_MAX, deep=False):
            found.append(each)
    except CorruptMessageError as caught:
        error = caught
    first, end = plain_payloads(bytes(data))
    assert first == [each.payload for each in found[: len(first)]]
    assert end == (found[len(first) - 1].next_offset if first else 0)
    assert len(first) == len(found) or found[len(first)].message.codec is not Codec.NONE
    if error is None:
        assert count_whole(bytes(data)) == (len(found), found[-1].next_offset if found else 0)
    else:
        with pytest.raises(type(error)) as again:
            count_whole(bytes(data))
        assert str(again.value) == str(error)


def test_counting_begins_and_stops_where_it_is_told() -> None:
    data = encode_payloads([b"a", b"bb", b"ccc"])
    assert count_whole(data, 11, 12) == (1, 23)
    assert count_whole(data, 0, 12) == (2, 23)
    assert count_whole(data, 0, 11) == (1, 11)
    assert count_whole(data[:-1], 11) == (1, 23)
    assert plain_payloads(data, 11, 2) == ([b"bb"], 23)


def test_counting_goes_to_the_end_and_plain_payloads_stop_at_the_first_message_that_is_not_plain() -> None:
    data = encode_payloads([b"a", b""])
    assert plain_payloads(data) == ([b"a", b""], 21)
    packed = wrap(data)
    assert count_whole(data + packed) == (3, 21 + len(packed))
    assert plain_payloads(data + packed) == ([b"a", b""], 21)
    assert plain_payloads(data, message_bytes_max=0) == ([], 0)
    assert plain_payloads(data, message_bytes_max=1) == ([b"a", b""], 21)


def test_plain_and_nested_messages_of_a_compressed_set_keep_their_order() -> None:
    inner = encode_payloads([b"a"]) + wrap(encode_payloads([b"b"])) + encode_payloads([b"c", b"d"])
    assert [each.payload for each in scan(wrap(inner))] == [b"a", b"b", b"c", b"d"]


def test_an_error_in_a_compressed_set_names_the_place_of_the_set() -> None:
    good = encode_payloads([b"a"])
    deep = wrap(wrap(wrap(good)))
    junk = encode_message(Message(b"junk", Codec.GZIP))
    for bad in (wrap(good[:-1]), wrap(good[:-1] + b"x"), deep, wrap(good + wrap(good[:-1])), junk):
        for base in (0, 100):
            with pytest.raises(DecompressError) as caught:
                list(scan(good + bad, base=base))
            assert caught.value.offset == base + 11
    with pytest.raises(DecompressError) as caught:
        unpack_set(Message(b"junk", Codec.GZIP))
    assert caught.value.offset == 0


def test_a_cut_message_is_checked_for_its_length() -> None:
    header = struct.pack(">IBBI", UNPACKED_BYTES_MAX + 7, 1, 0, 0)
    with pytest.raises(MessageSizeError):
        count_whole(header)
    assert count_whole(struct.pack(">IBBI", UNPACKED_BYTES_MAX + 6, 1, 0, 0)) == (0, 0)


def test_a_length_over_the_maximum_is_refused_before_the_payload_arrives() -> None:
    header = struct.pack(">IBBI", 1007, 1, 0, 0)
    with pytest.raises(MessageSizeError, match=r"^message length 1007, 6 to 1006 are allowed \(at 0\)$"):
        list(scan(header, message_bytes_max=1000))
    assert list(scan(header, message_bytes_max=1001)) == []


def test_a_compressed_set_is_unpacked_under_its_own_offset() -> None:
    for codec in (Codec.GZIP, Codec.ZSTD):
        data = encode_payloads([b"first"]) + wrap(encode_payloads([b"a", b"b"]), codec)
        found = list(scan(data))
        assert [each.payload for each in found] == [b"first", b"a", b"b"]
        assert [(each.offset, each.next_offset) for each in found[1:]] == [(15, len(data))] * 2
        shallow = list(scan(data, deep=False))
        assert [each.message.codec for each in shallow] == [Codec.NONE, codec]
        places = [(each.offset, each.next_offset) for each in scan(data, base=100, deep=False)]
        assert places == [(100, 115), (115, 100 + len(data))]
        assert unpack_set(shallow[1].message) == [b"a", b"b"]


def test_nesting_is_bounded() -> None:
    inner = encode_payloads([b"x"])
    assert [each.payload for each in scan(wrap(encode_payloads([b"w"]) + wrap(inner)))] == [b"w", b"x"]
    with pytest.raises(DecompressError, match="nested"):
        list(scan(wrap(wrap(wrap(inner)))))


def test_the_total_of_unpacked_bytes_is_bounded() -> None:
    inner = encode_payloads([bytes(600)])
    assert len(list(scan(wrap(inner), unpacked_bytes_max=610))) == 1
    with pytest.raises(DecompressError, match="more than 609 bytes"):
        list(scan(wrap(inner), unpacked_bytes_max=609))
    twice = wrap(wrap(inner) + wrap(inner))
    assert len(list(scan(twice, unpacked_bytes_max=1400))) == 2
    with pytest.raises(DecompressError):
        list(scan(twice, unpacked_bytes_max=1200))


def test_an_incomplete_compressed_set_is_an_error() -> None:
    inner = encode_payloads([b"a", b"b"])
    with pytest.raises(DecompressError, match=r"^the compressed set ends within a message \(at 0\)$"):
        list(scan(wrap(inner[:-1])))
    with pytest.raises(DecompressError, match="in a compressed set"):
        list(scan(wrap(inner[:-1] + b"x")))
    with pytest.raises(DecompressError, match="in a compressed set"):
        list(scan(wrap(encode_payloads([bytes(11)])), message_bytes_max=10))


def test_too_large_a_message_is_an_error_of_the_caller() -> None:
    check_size(bytes(10), 10)
    with pytest.raises(MessageTooLargeError, match="11 bytes, at most 10"):
        check_size(bytes(11), 10)


def test_the_header_alone_gives_the_place_of_the_next_message() -> None:
    data = encode_payloads([b"abc"])
    assert parse_header(data, 0, 100) == (13, 0, crc32(b"abc"))
    assert parse_header(encode_payloads([b""]), 0, 6) == (10, 0, 0)


@pytest.mark.parametrize(("message_max", "unpacked_max"), [(10, 100), (100, 10)])
def test_a_compressed_set_may_be_as_long_as_the_larger_of_both_limits(message_max: int, unpacked_max: int) -> None:
    def scanned(length: int) -> list[MessageAndOffset]:
        header = struct.pack(">IBBI", length, 1, 1, 0)
        return list(scan(header, message_bytes_max=message_max, unpacked_bytes_max=unpacked_max))

    assert scanned(106) == []
    with pytest.raises(MessageSizeError):
        scanned(107)
