"""An encrypted connection: what its two applications see of each other, of the path and of an attacker on it."""

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core.pair import GIVEN_UP, LOST, MS, Fate, Side
from tests.encryption.rig import Encrypted, Party, another_key, key, opened
from tunnel.core import LocalProtocolError, Lost, LostReason, PeerClosedError, PeerFinished
from tunnel.core.constants import PACKET_PAYLOAD_MAX, SECOND_US
from tunnel.core.events import Closed, Connected, PeerClosed, Writable
from tunnel.encryption import connection as module
from tunnel.encryption.binding import binding_of
from tunnel.errors import IntegrityError, LostError, PeerKeyError, TunnelError
from tunnel.wire import Packet, PacketType, Target, TargetKind


def test_both_directions_carry_bytes_and_end_one_by_one() -> None:
    both = opened()
    assert both.a.stream.peer_key == key().fingerprint
    assert both.a.stream.is_verified
    assert both.b.stream.is_verified
    both.a.write(b"question", finish=True)
    both.settle()
    assert both.b.received == b"question"
    assert both.b.saw_end
    assert not both.a.saw_end
    both.b.write(b"answer" * 100_000, finish=True)
    both.settle()
    assert both.a.received == b"answer" * 100_000
    assert both.a.saw_end
    for party in both.parties:
        party.stream.close(both.pair.now)
    both.touch()
    both.run_until_over()
    assert [type(party.last) for party in both.parties] == [Closed, Closed]


def test_no_plaintext_is_on_the_way() -> None:
    both = opened()
    seen = bytearray()

    def look(side: Side, packet: Packet) -> None:
        seen.extend(bytes(packet.payload))

    both.tamper(look)
    both.a.write(b"account 100" * 50)
    both.b.write(b"password" * 50)
    both.settle()
    assert both.b.received == b"account 100" * 50
    assert len(seen) > 950
    assert b"account" not in seen
    assert b"password" not in seen


def test_a_client_that_speaks_first_waits_for_the_acceptor_only_once() -> None:
    both = Encrypted()
    turns: list[str] = []

    def look(side: Side, packet: Packet) -> None:
        if packet.type == PacketType.DATA and (not turns or turns[-1] != side.name):
            turns.append(side.name)

    both.tamper(look)
    both.a.write(b"question")
    both.a.pair.after_step = lambda: (both.step(), both.a.write(b""))  # type: ignore[assignment,func-returns-value]
    both.settle()
    assert both.b.received == b"question"
    assert turns == ["b", "a", "b"]  # the acceptor's part of the handshake; the rest, binding and question; the verdict


def test_nothing_passes_before_the_binding_is_confirmed() -> None:
    both = Encrypted()
    assert both.b.stream.write(b"too early", both.pair.now) == 0
    assert both.b.stream.read(100, both.pair.now) == b""
    assert both.a.stream.write(b"too early", both.pair.now) == 0
    both.settle()
    assert any(isinstance(event, Writable) for event in both.b.events)
    assert not both.b.received


def wrong_binding(party: Party) -> None:
    target = Target(TargetKind.TCP, "elsewhere", 1)
    route_key = party.stream._connection.identity.route_key
    party.stream._awaited = binding_of(target, route_key)


def test_a_redirected_connection_ends_with_errors_on_both_sides() -> None:
    both = Encrypted()
    wrong_binding(both.b)
    both.run_until_over()
    assert isinstance(both.b.error, IntegrityError)
    assert "elsewhere than" in str(both.b.error)
    assert not both.b.is_open
    assert isinstance(both.a.last, Lost)
    assert both.a.last.reason is LostReason.INTEGRITY
    assert both.b.received == b""


def test_a_wrong_verdict_is_an_integrity_error() -> None:
    both = Encrypted()
    both.a.stream._awaited = b"\x02"
    both.run_until_over()
    assert isinstance(both.a.error, IntegrityError)
    assert isinstance(both.b.last, Lost)


def test_a_key_that_is_not_accepted_ends_the_connection_before_it_opens() -> None:
    asked: list[str] = []

    def judge(found: str) -> TunnelError | None:
        asked.append(found)
        return PeerKeyError("another key")

    both = Encrypted(judge=judge, context=another_key().context)
    both.run_until_over()
    assert asked == [another_key().fingerprint]
    assert isinstance(both.a.error, PeerKeyError)
    assert both.a.last == Lost(both.a.stream.id, LostReason.INTEGRITY, "another key")
    assert not both.a.is_open
    assert isinstance(both.b.last, Lost)
    assert not both.b.is_open


Attack = Callable[[Side, Packet], bool]


def attack(name: str) -> Attack:
    state = {"count": 0}

    def strike(side: Side, packet: Packet) -> bool:
        if side.name != "a" or packet.type != PacketType.DATA:
            return False
        state["count"] += 1
        payload = bytearray(packet.payload)
        if name == "flip":
            payload[len(payload) // 2] ^= 1
        elif name == "replace":
            payload[:] = b"clear text, of the same length".ljust(len(payload))[: len(payload)]
        elif name == "header":
            payload[0] = 0x15
        packet.payload = bytes(payload)
        return False

    return strike


@pytest.mark.parametrize("name", ["flip", "replace", "header"])
def test_an_altered_record_is_an_error_for_both_and_no_byte_of_it_is_shown(name: str) -> None:
    both = opened()
    both.a.write(b"good")
    both.settle()
    both.tamper(attack(name))
    both.a.write(b"bad" * 1000)
    both.touch()
    both.run_until_over()
    assert both.b.received == b"good"
    assert isinstance(both.b.error, IntegrityError)
    assert isinstance(both.a.last, Lost)
    assert both.a.last.reason is LostReason.INTEGRITY


def test_a_slow_reader_gets_everything_before_the_end() -> None:
    both = opened()
    both.b.is_reading = False
    both.b.read_bytes = 1000
    both.a.write(b"z" * 5000)
    both.settle()
    assert both.b.stream.read(10, both.pair.now) == b"z" * 10  # decrypts all 5000
    both.a.stream.close(both.pair.now)
    both.touch()
    both.settle()
    assert not both.b.is_over
    both.b.resume()
    both.settle()
    assert both.b.received == b"z" * 4990
    assert both.b.saw_end
    assert isinstance(both.b.last, Closed)


@pytest.mark.parametrize("how", ["abort", "close"])
def test_a_reader_that_stops_before_the_end_gets_its_last_event(how: str) -> None:
    both = opened()
    both.b.is_reading = False
    both.a.write(b"z" * 5000)
    both.settle()
    both.b.stream.read(10, both.pair.now)
    both.a.stream.close(both.pair.now)
    both.touch()
    both.settle()
    assert not both.b.is_over
    getattr(both.b.stream, how)(both.pair.now)
    both.settle()
    events = [*both.b.events, *both.b.stream.take_released()]
    (last,) = [event for event in events if isinstance(event, Closed | Lost)]
    assert isinstance(last, Closed if how == "close" else Lost)
    assert not any(isinstance(event, PeerFinished) for event in events), "it has not read everything"


def test_a_peer_that_sends_and_closes_at_once_is_no_error_for_a_silent_reader() -> None:
    """The peer no longer reads the verdict and the close_notify, but no application has lost anything."""
    both = Encrypted()
    both.pair.after_step = lambda: (both.step(), _send_and_close(both.a))  # type: ignore[assignment,func-returns-value]
    both.run_until_over()
    assert both.b.received == b"report"
    assert both.b.saw_end
    assert isinstance(both.b.last, Closed)
    assert [event.junked_bytes for event in both.b.events if isinstance(event, PeerClosed)] == [0]
    assert isinstance(both.a.last, Closed)


def _send_and_close(party: Party) -> None:
    if party.is_open and not party.stream._closing:
        party.stream.write(b"report", party.pair.now)
        party.stream.close(party.pair.now)
        party.side.endpoint.touch(party.stream._connection)


def test_bytes_that_a_closing_peer_never_reads_are_an_error() -> None:
    both = opened()
    both.pair.lose = lambda side, packet: side.name == "b" and packet.type == PacketType.DATA
    both.b.stream.write(b"lost", both.pair.now)
    both.a.stream.close(both.pair.now)
    both.touch()
    both.run_until_over()
    assert isinstance(both.b.last, Lost)
    assert both.b.last.reason is LostReason.PEER_CLOSED
    (closed,) = [event for event in both.b.events if isinstance(event, PeerClosed)]
    assert closed.junked_bytes >= 4
    with pytest.raises(PeerClosedError):
        both.b.stream.write(b"more", both.pair.now)


def test_both_may_close_at_the_same_time() -> None:
    both = opened()
    for party in both.parties:
        party.stream.close(both.pair.now)
        party.stream.close(both.pair.now)
    both.touch()
    both.run_until_over()
    assert [type(party.last) for party in both.parties] == [Closed, Closed]


def test_an_acceptor_may_end_before_the_handshake_is_done() -> None:
    both = Encrypted()
    both.b.stream.close(both.pair.now)
    both.run_until_over()
    assert both.a.is_open
    assert both.a.saw_end
    assert isinstance(both.a.last, Closed)


def test_an_acceptor_that_closes_within_the_handshake_learns_of_the_end_of_the_connection() -> None:
    """Data that comes with the initiator's binding has no reader any more: such data must not delay that end."""
    both = Encrypted()
    both.b.stream.close(both.pair.now)
    both.a.write(b"early", finish=True)
    both.run_until_over()
    assert both.b.is_over
    assert not both.b.received


def test_writing_after_an_end_raises() -> None:
    both = opened()
    both.a.finish()
    with pytest.raises(LocalProtocolError):
        both.a.stream.write(b"x", both.pair.now)


def test_an_abort_is_an_error_for_the_peer() -> None:
    both = opened()
    both.b.stream.abort(both.pair.now)
    both.touch()
    both.run_until_over()
    assert isinstance(both.a.last, Lost)
    assert both.a.last.reason is LostReason.RESET
    assert both.a.error is None


def test_a_handshake_that_takes_too_long_is_given_up() -> None:
    both = Encrypted(begin=False)
    both.a.stream.give_up("no answer within 10 s", both.pair.now)
    both.touch()
    both.run_until_over()
    assert isinstance(both.a.error, LostError)
    assert both.a.last == Lost(both.a.stream.id, LostReason.TIMEOUT, "the stream: no answer within 10 s")
    assert isinstance(both.b.last, Lost)
    late = opened()
    late.a.stream.give_up("too late", late.pair.now)
    assert late.a.error is None


def test_a_stream_ends_before_its_key_wears_out(monkeypatch: pytest.MonkeyPatch) -> None:
    both = opened()
    monkeypatch.setattr(module, "STREAM_BYTES_MAX", 200_000)
    both.a.write(b"x" * 300_000)
    both.touch()
    both.run_until_over()
    assert isinstance(both.a.error, LostError)
    assert "open another connection" in str(both.a.error)
    assert both.b.received == b"x" * len(both.b.received)
    assert isinstance(both.b.last, Lost)


def test_a_peer_that_exceeds_the_limit_of_a_key_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    both = opened()
    both.a.write(b"x" * 300_000)
    monkeypatch.setattr(module, "STREAM_BYTES_MAX", 200_000)
    both.touch()
    both.run_until_over()
    assert isinstance(both.b.error, LostError)


def test_a_paused_reader_holds_at_most_64_kib_of_plaintext() -> None:
    both = opened()
    both.b.is_reading = False
    both.a.write(b"x" * 3_000_000)
    both.settle()
    assert both.b.stream.read(1, both.pair.now) == b"x"
    assert 0 < len(both.b.stream._plain) < 64 * 1024
    both.b.resume()
    both.settle()
    assert len(both.b.received) == 2_999_999


def test_a_large_write_makes_ciphertext_for_full_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each packet costs processor time at both ends and at the relay."""
    both = opened()
    sizes: list[int] = []
    write = both.a.stream._connection.write

    def watched(data: bytes, now: int) -> int:
        sizes.append(len(data))
        return write(data, now)

    monkeypatch.setattr(type(both.a.stream._connection), "write", lambda _, data, now: watched(data, now))
    both.a.stream.write(bytes(2 * PACKET_PAYLOAD_MAX), both.pair.now)
    assert sizes == [PACKET_PAYLOAD_MAX + 16 * 22] * 2  # a record of 16 KiB grows by 22 bytes


@pytest.mark.parametrize("size", [1, 16_384, 100_000, 4_000_000])
def test_of_a_refused_write_at_most_one_record_is_kept(size: int) -> None:
    """The rest waits as plaintext with its writer, and counts against the limit of the writer."""
    both = opened()
    while both.a.stream.write(bytes(size), both.pair.now) == size:
        assert len(both.a.stream._pending) <= 16_384 + 22
    assert both.a.stream._connection.room == 0
    assert 0 < len(both.a.stream._pending) <= 16_384 + 22


def test_a_paused_reader_does_not_hold_up_the_handshake() -> None:
    both = Encrypted()
    both.a.is_reading = both.b.is_reading = False
    both.settle()
    assert both.a.is_open
    assert both.b.is_open


def test_the_unacknowledged_bytes_are_counted_until_the_peer_has_them() -> None:
    both = opened()
    assert both.a.stream.unacknowledged_bytes == 0
    both.a.write(b"x" * 100)
    assert both.a.stream.unacknowledged_bytes > 100
    both.a.stream.flush()
    both.settle()
    assert both.a.stream.unacknowledged_bytes == 0
    assert both.a.stream.snapshot().bytes_acknowledged == 100


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1 << 16),
    sizes=st.tuples(st.integers(0, 400_000), st.integers(0, 400_000)),
    fates=st.lists(st.sampled_from(["arrive", "late", "lost", "given up", "twice"]), max_size=40),
    pauses=st.lists(st.tuples(st.booleans(), st.integers(1, 300)), max_size=6),
    restarts=st.lists(st.integers(1, 400), max_size=2),
    read_bytes=st.integers(1, 1 << 17),
)
def test_any_path_delivers_every_byte_once_and_the_ends_of_both_directions(
    seed: int,
    sizes: tuple[int, int],
    fates: list[str],
    pauses: list[tuple[bool, int]],
    restarts: list[int],
    read_bytes: int,
) -> None:
    both = Encrypted(seed=seed)
    left = list(fates)
    chosen = {
        "arrive": Fate(),
        "late": Fate(arrivals_us=(80 * MS,)),
        "lost": LOST,
        "given up": GIVEN_UP,
        "twice": Fate(arrivals_us=(5 * MS, 60 * MS)),
    }
    both.pair.fate = lambda side, packets: chosen[left.pop()] if left else Fate()
    both.b.read_bytes = max(read_bytes, sizes[0] // 200 + 1)
    for is_first, delay_ms in pauses:
        party = both.parties[not is_first]
        both.pair.at(delay_ms * MS, lambda party=party: setattr(party, "is_reading", False))  # type: ignore[misc]
        both.pair.at((delay_ms + 200) * MS, party.resume)
    for delay_ms in restarts:
        both.pair.at(delay_ms * MS, both.pair.restart_relay)
    data = [bytes([seed % 251]) * size for size in sizes]
    both.a.write(data[0], finish=True)
    both.b.write(data[1], finish=True)
    both.pair.run_until(lambda: both.a.saw_end and both.b.saw_end, 120 * SECOND_US)
    assert both.a.received == data[1]
    assert both.b.received == data[0]
    assert sum(isinstance(event, Connected) for event in both.a.events) == 1
    for party in both.parties:
        party.stream.close(both.pair.now)
    both.touch()
    both.run_until_over()
    assert [type(party.last) for party in both.parties] == [Closed, Closed]


@settings(max_examples=60)
@given(
    number=st.integers(0, 30),
    place=st.integers(0, 20_000),
    kind=st.sampled_from(["flip", "cut", "insert", "repeat"]),
    side_name=st.sampled_from("ab"),
)
@example(number=0, place=0, kind="cut", side_name="b")  # the acceptor's part of the handshake is gone
def test_no_altered_byte_of_any_packet_is_ever_read(number: int, place: int, kind: str, side_name: str) -> None:
    """A relay can alter payloads and write a right checksum. Both applications get an error, or all of the data."""
    both = Encrypted()
    count = 0
    altered = False

    def change(side: Side, packet: Packet) -> bool:
        nonlocal count, altered
        if side.name != side_name or packet.type != PacketType.DATA or not len(packet.payload):
            return False
        count += 1
        if count == number + 1:
            payload = bytearray(packet.payload)
            at = place % len(payload)
            if kind == "flip":
                payload[at] ^= 1 << (place % 8)
            elif kind == "cut":
                del payload[at:]
            elif kind == "insert":
                payload[at:at] = b"\x17"
            else:
                payload = payload + payload
            packet.payload, altered = bytes(payload), True
        return False

    both.tamper(change)

    def end_handshake() -> None:
        """A record of the handshake may be gone for good: the transport ends such a handshake after 10 s."""
        for party in both.parties:
            if not party.stream.is_ready:
                party.stream.give_up("the handshake is late", both.pair.now)

    both.pair.at(10 * SECOND_US, end_handshake)
    data = b"0123456789" * 5000
    both.a.write(data, finish=True)
    both.b.write(data, finish=True)
    both.pair.run_until(lambda: all(party.is_over or party.saw_end for party in both.parties), 700 * SECOND_US)
    for party in both.parties:
        assert data.startswith(party.received)
        assert not party.saw_end or party.received == data
    if altered:
        assert any(party.is_over for party in both.parties)
