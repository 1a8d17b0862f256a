"""An encrypted stream that the relay ends: with a right digest, at any record, and without a close_notify."""

import pytest

from tests.encryption.rig import Encrypted, Party, opened
from tunnel.core import Lost, LostReason
from tunnel.errors import IntegrityError
from tunnel.wire import PacketType


def ends_in_clear(party: Party, kind: PacketType) -> None:
    """End the stream as a relay does when it forges an end: with a right digest, and without a close_notify."""
    if kind is PacketType.FINISH:
        party.stream._connection.finish(party.pair.now)
    else:
        party.stream._connection.close(party.pair.now)


@pytest.mark.interpreted  # the rig replaces a method of Endpoint
@pytest.mark.parametrize("kind", [PacketType.FINISH, PacketType.CLOSE])
@pytest.mark.parametrize("is_prompt", [True, False], ids=["prompt", "slow"])
def test_an_end_without_close_notify_is_an_integrity_error(kind: PacketType, is_prompt: bool) -> None:
    both = opened()
    both.b.is_reading = is_prompt
    both.a.write(b"half of it")
    ends_in_clear(both.a, kind)
    both.touch()
    both.settle()
    if not is_prompt:
        assert not both.b.is_over
        both.b.resume()
        both.touch()
    both.run_until_over()
    assert not both.b.saw_end
    assert isinstance(both.b.error, IntegrityError)
    assert "cut before its end" in str(both.b.error)
    # A slow reader's endpoint acknowledges a CLOSE before the error is found, and so the sender's connection has ended.
    if is_prompt or kind is PacketType.FINISH:
        assert isinstance(both.a.last, Lost)
        assert both.a.last.reason is LostReason.INTEGRITY


def records_of(wire: bytes) -> list[bytes]:
    found = []
    while wire:
        size = 5 + int.from_bytes(wire[3:5])
        found.append(wire[:size])
        wire = wire[size:]
    return found


@pytest.mark.interpreted  # the rig replaces a method of Endpoint
@pytest.mark.parametrize("count", range(6))
@pytest.mark.parametrize("kind", [PacketType.FINISH, PacketType.CLOSE])
def test_a_stream_that_is_cut_after_any_record_is_an_error(count: int, kind: PacketType) -> None:
    """The relay ends the stream between two records, with the digest of what it has passed on. No record is damaged."""
    both = opened()
    tls = both.a.stream._tls
    for size in (1, 16_384, 100, 0, 5000):
        tls.write(b"x" * size)
    tls.end()
    records = records_of(tls.take())
    assert len(records) == 5  # an empty write makes none; the last one is the close_notify
    both.a.stream._connection.write(b"".join(records[:count]), both.pair.now)
    ends_in_clear(both.a, kind)
    both.touch()
    if count < len(records):
        both.run_until_over()
        assert isinstance(both.b.error, IntegrityError)
        assert not both.b.saw_end
    else:
        both.settle()
        assert both.b.saw_end
        assert len(both.b.received) == 1 + 16_384 + 100 + 5000


@pytest.mark.interpreted  # the rig replaces a method of Endpoint
@pytest.mark.parametrize("kind", [PacketType.FINISH, PacketType.CLOSE])
def test_an_end_within_the_handshake_is_an_integrity_error(kind: PacketType) -> None:
    both = Encrypted(begin=False)
    ends_in_clear(both.b, kind)
    both.touch()
    both.pair.run_until(lambda: both.a.is_over)
    assert not both.a.is_open
    assert isinstance(both.a.error, IntegrityError)
