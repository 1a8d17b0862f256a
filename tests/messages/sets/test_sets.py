"""Message sets in memory: iterating, and writing to anything that takes bytes."""

import io
import os
import socket
from pathlib import Path

import pytest

from tunnel.messages.errors import DecompressError, MessageSizeError, MessageTooLargeError
from tunnel.messages.sets.codec import Codec
from tunnel.messages.sets.sets import ByteBufferMessageSet, MessageSet, bounds

PAYLOADS = [b"one", b"two", b"three"]


def test_a_set_is_the_concatenation_of_its_messages() -> None:
    messages = ByteBufferMessageSet.of(PAYLOADS)
    assert list(messages.payloads()) == PAYLOADS
    assert messages.size_bytes == len(messages.data) == messages.valid_bytes == 3 * 10 + 11
    assert not messages.is_truncated
    assert ByteBufferMessageSet(messages.data[:-1]).is_truncated
    assert ByteBufferMessageSet(messages.data[:-1]).valid_bytes == 26
    assert ByteBufferMessageSet.of(iter(())).size_bytes == 0


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_a_set_can_be_compressed_as_one_message(codec: Codec) -> None:
    messages = ByteBufferMessageSet.of([bytes(1000)] * 10, codec=codec)
    assert messages.size_bytes < 300
    assert list(messages.payloads()) == [bytes(1000)] * 10
    assert [each.message.codec for each in messages.shallow()] == [codec]


def test_a_set_too_large_to_be_unpacked_at_once_is_compressed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker would store the oversized message, and no consumer could unpack it or read past it."""
    monkeypatch.setattr("tunnel.messages.sets.sets.UNPACKED_BYTES_MAX", 100)
    payloads = [b"%02d" % number * 20 for number in range(9)]  # 50 bytes each, with the header
    messages = ByteBufferMessageSet.of(payloads, codec=Codec.GZIP)
    assert list(ByteBufferMessageSet(messages.data, unpacked_bytes_max=100).payloads()) == payloads
    for count, parts in ((1, 1), (2, 1), (3, 2)):
        found = ByteBufferMessageSet.of(payloads[:count], codec=Codec.GZIP)
        assert [each.message.codec for each in found.shallow()] == [Codec.GZIP] * parts
    two = ByteBufferMessageSet.of([bytes(60), bytes(60)], codec=Codec.GZIP)
    assert [each.message.codec for each in two.shallow()] == [Codec.GZIP] * 2
    large = ByteBufferMessageSet.of([bytes(200)], codec=Codec.GZIP)  # which cannot be divided
    assert list(large.payloads()) == [bytes(200)]


def test_too_large_a_message_is_refused_before_anything_is_encoded() -> None:
    with pytest.raises(MessageTooLargeError):
        ByteBufferMessageSet.of([b"ok", bytes(11)], message_bytes_max=10)


def written(messages: MessageSet, offset: int = 0, size_max: int | None = None) -> bytes:
    sink = io.BytesIO()
    assert messages.write_to(sink, offset, size_max) == len(sink.getvalue())
    return sink.getvalue()


def test_write_to_writes_the_requested_part_and_keeps_no_state() -> None:
    messages = ByteBufferMessageSet.of(PAYLOADS)
    data = messages.data
    assert written(messages) == written(messages) == data
    assert written(messages, 5) == data[5:]
    assert written(messages, 5, 7) == data[5:12]
    assert written(messages, len(data)) == written(messages, 3, 0) == b""
    for offset, size_max in ((-1, None), (len(data) + 1, None), (0, -1)):
        with pytest.raises(ValueError, match=r"offset|negative"):
            messages.write_to(io.BytesIO(), offset, size_max)


def test_a_set_writes_to_sockets_and_descriptors(tmp_path: Path) -> None:
    messages = ByteBufferMessageSet.of(PAYLOADS)
    near, far = socket.socketpair()
    with near, far:
        assert messages.write_to(near, 2) == len(messages.data) - 2
        assert far.recv(1000) == messages.data[2:]
        near.setblocking(False)
        large = ByteBufferMessageSet(bytes(1 << 20))
        while large.write_to(near):
            pass
        assert large.write_to(near) == 0
    descriptor = os.open(tmp_path / "set", os.O_RDWR | os.O_CREAT)
    try:
        assert messages.write_to(descriptor) == len(messages.data)
    finally:
        os.close(descriptor)
    assert (tmp_path / "set").read_bytes() == messages.data


def test_a_set_takes_messages_up_to_its_limits() -> None:
    data = ByteBufferMessageSet.of([bytes(11)]).data
    assert list(ByteBufferMessageSet(data, message_bytes_max=11).payloads()) == [bytes(11)]
    for iterate in (iter, ByteBufferMessageSet.shallow):
        with pytest.raises(MessageSizeError):
            list(iterate(ByteBufferMessageSet(data, message_bytes_max=10)))
    packed = ByteBufferMessageSet.of([bytes(1000)], codec=Codec.GZIP)
    exact = ByteBufferMessageSet(packed.data, unpacked_bytes_max=1010)
    assert list(exact.payloads()) == [bytes(1000)]
    small = ByteBufferMessageSet(packed.data, unpacked_bytes_max=1009)
    with pytest.raises(DecompressError):
        list(small)
    assert len(list(small.shallow())) == 1
    with pytest.raises(MessageSizeError):
        list(ByteBufferMessageSet(packed.data, message_bytes_max=10, unpacked_bytes_max=10).shallow())


def test_a_set_that_was_made_with_a_limit_keeps_it() -> None:
    large = [b"a", bytes(1_000_001)]
    messages = ByteBufferMessageSet.of(large, message_bytes_max=1_000_001)
    assert list(messages.payloads()) == large
    assert messages.message_bytes_max == 1_000_001
    with pytest.raises(MessageTooLargeError, match="1000001 bytes, at most 1000000 are allowed"):
        ByteBufferMessageSet.of(large)


def test_a_part_outside_of_a_set_is_named() -> None:
    assert bounds(10, 10, None) == bounds(10, 10, 5) == (10, 10)
    assert bounds(10, 0, 0) == (0, 0)
    assert bounds(10, 3, 4) == (3, 7)
    with pytest.raises(ValueError, match=r"^offset 11 is not in a set of 10 bytes$"):
        bounds(10, 11, None)
    with pytest.raises(ValueError, match=r"^size_max is -1, it must not be negative$"):
        bounds(10, 0, -1)
