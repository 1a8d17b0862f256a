"""Clauses 4.13, 4.14 and 4.10: how batches are filled, how connections share them, and what their outcome causes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.batching import ACK, DATA, KIB, fill, many
from tests.core.solo import MS, SERVICE, TARGET, Solo
from tunnel.core import Connection, EndpointConfig, Flushed
from tunnel.wire import Options, Packet, PacketType, RejectReason

CLOSE, CONNECT, PROBE = PacketType.CLOSE, PacketType.CONNECT, PacketType.PROBE


def shares(packets: list[Packet]) -> dict[int, int]:
    """Return the bytes of payload by connection."""
    found: dict[int, int] = {}
    for packet in packets:
        found[packet.source] = found.get(packet.source, 0) + len(packet.payload)
    return found


# sizes


def test_a_packet_is_an_eighth_of_its_batch_within_limits() -> None:  # 4.13
    solo, (connection,) = many(1)
    connection.write(bytes(4_000_000), solo.now)
    for size_max, payload in ((4 * KIB, KIB), (1_000_000, 125_000), (4_000_000, 256 * KIB)):
        assert len(fill(solo, size_max).packets[0].payload) == payload


@given(st.integers(1100, 20_000), st.lists(st.sampled_from([1, 60, 900, 1500, 5000]), min_size=1, max_size=12))
def test_a_batch_is_no_larger_than_asked_for_and_nothing_is_left_behind(size_max: int, sizes: list[int]) -> None:
    solo, connections = many(len(sizes))
    for number, (connection, size) in enumerate(zip(connections, sizes, strict=True)):
        solo.connection = connection
        solo.data(0)
        connection.write(bytes(size), solo.now)
        if number % 3 == 0:
            connection.close(solo.now)
        if number % 3 == 1:
            solo.say(PacketType.PING, bytes(64))
    solo.wait(25 * MS)
    packets: list[Packet] = []
    while solo.endpoint.wants_batch():
        batch = solo.endpoint.next_batch(size_max, solo.now)
        if batch is None:
            assert not solo.endpoint.wants_batch()  # it may return True once more, although nothing is left
            break
        assert batch.size == sum(packet.size for packet in batch.packets)
        assert batch.size <= size_max
        packets += batch.packets
    assert [sum(len(p.payload) for p in packets if p.type == DATA and p.source == c.id) for c in connections] == sizes
    assert [packet.type for packet in packets].count(ACK) == len(sizes)
    assert [packet.type for packet in packets].count(CLOSE) == (len(sizes) + 2) // 3


def test_one_packet_may_be_larger_than_the_batch() -> None:  # 7.6
    solo, (connection,) = many(1)
    connection.write(bytes(50_000), solo.now)
    batch = fill(solo, 400_000)
    solo.endpoint.batch_done(batch.token, False, solo.now)
    batch = fill(solo, 16 * KIB)
    assert (len(batch.packets), batch.size) == (1, 50_024)


def test_the_smallest_packet_leaves_however_small_the_batch() -> None:  # 4.13
    solo, (connection,) = many(1)
    connection.write(bytes(2000), solo.now)
    assert [len(packet.payload) for packet in fill(solo, 500).packets] == [KIB]


@pytest.mark.parametrize(("announced", "most"), [(0, 1024), (256, 256), (5000, 1024)])
def test_4_13_a_batch_holds_at_most_the_announced_number_of_packets(announced: int, most: int) -> None:
    solo, connections = many(2 * most, EndpointConfig(connections_max=3000))
    solo.endpoint.on_attached(False, 1 << 20, 1 << 20, solo.now, packets_max=announced)
    for number, connection in enumerate(connections):
        solo.connection = connection
        solo.data(0)
        connection.write(bytes(1 + number % 2 * 5000), solo.now)
    solo.wait(25 * MS)
    found: list[Packet] = []
    while solo.endpoint.wants_batch():
        packets = fill(solo, 16 << 20).packets
        assert len(packets) <= most
        found += packets
    assert sum(packet.type == ACK for packet in found) == 2 * most
    assert sum(len(packet.payload) for packet in found if packet.type == DATA) == 2 * most * 2501


def test_packets_of_no_connection_leave_as_there_is_room() -> None:
    solo = Solo()
    for number in range(65):
        solo.receive(Packet(DATA, 5, number + 1, 7, b"x"))
    assert len(fill(solo, 16 * KIB).packets) == 64
    solo.endpoint.listen("s" * 255, 4, solo.now)
    solo.endpoint.listen("t" * 255, 4, solo.now)
    assert [len(fill(solo, 500).packets) for _ in range(2)] == [1, 1]


def test_answers_for_unknown_ids_are_bounded_until_they_have_left() -> None:  # 3.9
    solo = Solo()
    for _ in range(2):
        for number in range(70):
            solo.receive(Packet(DATA, 5, number + 1, 7, b"x"))
        assert len(solo.out()) == 64


def test_a_batch_is_filled_to_its_last_byte() -> None:
    solo = Solo()
    solo.endpoint.listen("s" * 255, 4, solo.now)
    size = solo.out()[0].size
    solo.endpoint.listen("t" * 255, 4, solo.now)
    solo.endpoint.listen("u" * 255, 4, solo.now)
    assert fill(solo, 2 * size).size == 2 * size


def test_control_packets_of_a_connection_wait_for_room_for_all_of_them() -> None:
    solo, _ = many(1)
    solo.say(PacketType.PROBE)
    assert solo.endpoint.next_batch(KIB, solo.now) is None
    assert [packet.type for packet in fill(solo, KIB + 1).packets] == [ACK]


def test_a_refusal_larger_than_the_batch_leaves_alone() -> None:
    solo = Solo()
    solo.request()
    solo.endpoint.refuse(solo.connection.id, RejectReason.REFUSED, "x" * 60_000, solo.now)
    batch = fill(solo, 16 * KIB)
    assert (len(batch.packets), batch.packets[0].type) == (1, PacketType.REJECTED)
    assert not solo.endpoint.wants_batch()


def test_the_end_of_a_batch_is_not_filled_with_a_tiny_packet() -> None:
    solo, (first, second) = many(2)
    first.write(bytes(2000), solo.now)
    second.write(bytes(2000), solo.now)
    batch = fill(solo, 1048 + 1000 + 87)
    assert [packet.size for packet in batch.packets] == [1048, 1000]
    assert solo.endpoint.wants_batch()
    assert [packet.size for packet in fill(solo, 8 * KIB).packets] == [1048, 1000]


# order and fairness


def test_a_small_write_that_grew_to_bulk_takes_its_turn() -> None:
    solo, (first, second) = many(2)
    for connection in (first, second):
        connection.write(bytes(10), solo.now)
        connection.write(bytes(100_000), solo.now)
    found = shares(fill(solo, 64 * KIB).packets)
    assert len(found) == 2


def test_a_small_write_that_just_grew_to_bulk_waits_for_earlier_bulk() -> None:
    solo, (first, second) = many(2)
    first.write(bytes(100_000), solo.now)
    second.write(bytes(10), solo.now)
    second.write(bytes(4 * KIB - 10), solo.now)
    assert fill(solo, 64 * KIB).packets[0].source == first.id


def test_resent_bulk_is_not_a_small_write() -> None:  # 4.14: lost bytes are still to be sent
    solo, (resent, other) = many(2)
    resent.write(bytes(100_000), solo.now)
    batches = [fill(solo, 16 * KIB) for _ in range(7)]
    other.write(bytes(100_000), solo.now)
    for batch in batches:
        solo.endpoint.batch_done(batch.token, False, solo.now)
    found = shares(fill(solo, 32 * KIB).packets)
    assert found[other.id] > 8 * KIB


def of_users(users: list[str], config: EndpointConfig | None = None) -> tuple[Solo, list[Connection]]:
    """Return an acceptor with a connection that each of these users has opened; a name may come several times."""
    solo, connections = Solo(config or EndpointConfig(exit=True)), []
    for number, user in enumerate(users):
        solo.route_key = number.to_bytes(16, "big")
        solo.request(TARGET, Options(user=user), source=number + 1)
        solo.endpoint.accept(solo.connection.id, solo.now)
        connections.append(solo.connection)
    solo.out()
    for solo.connection in connections:
        solo.ack()
    solo.out()
    return solo, connections


def test_two_users_bulk_of_one_gets_half_however_many_connections_the_other_has() -> None:  # 4.14
    solo, (*many_of_ann, of_bob) = of_users(["ann"] * 50 + ["bob"])
    for connection in (*many_of_ann, of_bob):
        connection.write(bytes(100_000), solo.now)
    found = shares([packet for _ in range(3) for packet in fill(solo, 64 * KIB).packets])
    assert 0.4 < found[of_bob.id] / sum(found.values()) < 0.6
    assert len(found) > 8  # the connections of one user take turns, too
    assert max(size for id_, size in found.items() if id_ != of_bob.id) <= 16 * KIB


@pytest.mark.parametrize(
    ("batch_kib", "write_bytes"), [(64, 5_000), (64, 7_000), (512, 5_000), (512, 16 * KIB), (512, 50_000)]
)
def test_two_users_many_connections_with_little_bulk_get_the_same_as_one_with_much(
    batch_kib: int, write_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunnel.core.connection.base._SERVED_BUFFER_BYTES", 64 << 20)  # nothing is acknowledged here
    config = EndpointConfig(exit=True, send_buffer_bytes_max=64 << 20)
    solo, (*many_of_ann, of_bob) = of_users(["ann"] * 150 + ["bob"], config)
    for connection in many_of_ann:
        connection.write(bytes(write_bytes), solo.now)
    of_bob.write(bytes(16 << 20), solo.now)
    anns = bobs = batches = 0
    while True:
        found = shares(fill(solo, batch_kib * KIB).packets)
        of_bobs = found.pop(of_bob.id)
        anns += sum(found.values())
        if anns == len(many_of_ann) * write_bytes:
            break  # the last batch goes on when ann has nothing more to send
        bobs += of_bobs
        batches += 1
        assert abs(anns - bobs) <= batch_kib * KIB // 3  # a turn of each
    assert batches


def test_two_users_one_who_comes_later_waits_for_one_turn_of_each_other() -> None:
    solo, (*early, late) = of_users([f"u{number}" for number in range(10)] + ["late"])
    for connection in early:
        connection.write(bytes(60_000), solo.now)
    assert len(shares(fill(solo, 64 * KIB).packets)) == 8
    late.write(bytes(60_000), solo.now)
    assert len(shares(fill(solo, 64 * KIB).packets)) == 8
    assert late.id in shares(fill(solo, 64 * KIB).packets)


def test_two_users_a_batch_that_ends_within_a_turn_gives_no_user_another_turn() -> None:
    solo, (one, two, of_bob) = of_users(["ann", "ann", "bob"])
    one.write(bytes(5_000), solo.now)
    for connection in (two, of_bob):
        connection.write(bytes(200_000), solo.now)
    found = shares([packet for _ in range(12) for packet in fill(solo, 16 * KIB).packets])
    assert abs(found[of_bob.id] - found[one.id] - found[two.id]) <= 2 * 2 * KIB  # the last turn, and its overdraft


def test_two_users_the_turns_go_on_when_all_bulk_of_one_is_sent_or_has_moved() -> None:
    solo, (one, two, of_bob) = of_users(["ann", "ann", "bob"])
    for connection in (one, two, of_bob):
        connection.write(bytes(30_000), solo.now)
    solo.endpoint._scheduler.remove(one)
    assert shares(fill(solo, 500 * KIB).packets) == {two.id: 30_000, of_bob.id: 30_000}
    assert not solo.endpoint.wants_batch()
    for connection in (two, of_bob):
        connection.write(bytes(30_000), solo.now)
    solo.endpoint._scheduler.remove(two)
    assert shares(fill(solo, 500 * KIB).packets) == {of_bob.id: 30_000}
    assert not solo.endpoint.wants_batch()


def test_an_overdraft_is_carried_over_to_later_rounds() -> None:
    solo, (large, other) = many(2)
    large.write(bytes(200_000), solo.now)
    lost = fill(solo, 800_000)
    solo.endpoint.batch_done(lost.token, False, solo.now)
    other.write(bytes(200_000), solo.now)
    packets = [packet for _ in range(6) for packet in fill(solo, 64 * KIB).packets]
    first = next(packet.size for packet in packets if packet.source == large.id)
    assert first > 64 * KIB
    assert shares(packets)[other.id] > 100_000


def test_delayed_acks_wait_for_room_and_for_their_spacing() -> None:  # 4.3
    solo, (one, two, third) = many(3)
    for connection in (one, two):
        solo.connection = connection
        solo.data(0)
    third.write(bytes(50), solo.now)
    assert [packet.type for packet in fill(solo, 64 * KIB).packets] == [DATA]  # `one` and `two` sent an ACK just now
    solo.now += 10 * MS
    third.write(bytes(50), solo.now)
    assert [packet.type for packet in fill(solo, 1024).packets] == [DATA]
    third.write(bytes(50), solo.now)
    assert [packet.type for packet in fill(solo, 1060).packets] == [ACK, DATA]
    solo.connection = two
    solo.say(PacketType.PROBE)
    assert [packet.type for packet in fill(solo, 64 * KIB).packets] == [ACK]
    two.write(b"x", solo.now)
    assert [packet.type for packet in fill(solo, 64 * KIB).packets] == [DATA]


def test_an_ack_that_is_no_longer_pending_is_forgotten() -> None:
    solo, (one, two) = many(2)
    solo.connection = one
    solo.data(0)
    one.receiver.ack_pending = False
    two.write(b"x", solo.now)
    assert [packet.type for packet in fill(solo, 64 * KIB).packets] == [DATA]


# the outcome of a batch


def test_answers_for_unknown_ids_are_not_repeated() -> None:  # 3.9
    solo = Solo()
    solo.receive(Packet(DATA, 5, 6, 7, b"x"))
    assert [packet.type for packet in solo.out(ok=False)] == [PacketType.ABORT]
    assert solo.out() == []


def test_the_ack_of_a_connection_that_has_ended_meanwhile_is_not_sent_again() -> None:
    solo = Solo().opened()
    solo.say(PacketType.PROBE)
    batch = fill(solo, 64 * KIB)
    solo.connection.abort(solo.now)
    solo.out()
    solo.endpoint.batch_done(batch.token, False, solo.now)
    assert solo.out() == []


def test_packets_of_no_connection_are_bounded_but_announcements_always_leave() -> None:
    solo = Solo(EndpointConfig(connections_max=1))
    for number in range(10_000):
        solo.route_key = number.to_bytes(16, "big")
        solo.request(SERVICE)
    solo.endpoint.listen("s", 4, solo.now)
    for _ in range(100):
        solo.endpoint.send(Packet(PacketType.SHUTDOWN, 1, 2, 0))  # beyond the bound of its kind, which is lower
    types = solo.types()
    assert types.count(PacketType.REJECTED) == 8192
    assert types[-1] == PacketType.LISTEN_STATE
    for _ in range(2000):
        solo.endpoint.send(Packet(PacketType.SHUTDOWN, 1, 2, 0))
    assert solo.types().count(PacketType.SHUTDOWN) == 1024


def test_the_bound_on_packets_of_no_connection_includes_those_given_up() -> None:
    solo = Solo(EndpointConfig(connections_max=1))
    batches = []
    for number in range(10_000):
        solo.route_key = number.to_bytes(16, "big")
        solo.request(SERVICE)
        if number % 1000 == 999:
            batches.append(fill(solo, 1 << 20))  # all that wait leave, in a batch that will fail
    solo.endpoint.listen("s", 4, solo.now)
    batches.append(fill(solo, 1 << 20))
    for batch in batches:
        solo.endpoint.batch_done(batch.token, False, solo.now)
    types = solo.types()
    assert types.count(PacketType.REJECTED) == 8192
    assert types.count(PacketType.LISTEN_STATE) == 1


@pytest.mark.parametrize("is_given_up", [False, True])
def test_leaves_for_a_relay_that_never_answers_are_bounded(is_given_up: bool) -> None:  # 6.11
    solo = Solo()
    for number in range(1, 12_001):
        solo.endpoint.send(Packet(PacketType.LEAVE, number, 2, 0, bytes(4)))
    if is_given_up:
        batch = fill(solo, 1 << 20)
        solo.endpoint.batch_done(batch.token, False, solo.now)
    solo.endpoint.listen("s", 4, solo.now)  # it needs no room of theirs
    types = solo.types()
    assert types.count(PacketType.LEAVE) == 10_000
    assert types.count(PacketType.LISTEN_STATE) == 1


def test_an_announcement_that_is_given_up_when_due_again_leaves_once() -> None:
    solo = Solo()
    solo.endpoint.listen("s", 4, solo.now)
    batch = fill(solo, 64 * KIB)
    due_us = solo.endpoint.next_timeout()
    assert due_us is not None
    solo.endpoint.handle_timeout(due_us)  # it is due again before its batch is given up
    solo.endpoint.batch_done(batch.token, False, solo.now)
    assert solo.types() == [PacketType.LISTEN_STATE]


def test_an_announcement_that_waits_is_not_queued_twice() -> None:  # 2.8
    """Its timer repeats it until it is answered, even while the carrier takes nothing."""
    solo = Solo()
    solo.endpoint.listen("s", 4, solo.now)
    solo.endpoint.listen("t", 4, solo.now)
    for _ in range(9):
        due_us = solo.endpoint.next_timeout()
        assert due_us is not None
        solo.endpoint.handle_timeout(due_us)
    assert solo.types() == [PacketType.LISTEN_STATE, PacketType.LISTEN_STATE]


def test_only_the_first_outcome_of_a_batch_counts() -> None:
    solo, (connection,) = many(1)
    connection.write(b"x", solo.now)
    batch = fill(solo, 64 * KIB)
    solo.endpoint.batch_done(batch.token, True, solo.now)
    solo.endpoint.batch_done(batch.token, False, solo.now)
    assert not solo.endpoint.wants_batch()


@pytest.mark.parametrize("hello_bytes", [221, 1_500, 1_700, 2_048])  # 1,500 and more: with ML-KEM, as of OpenSSL 3.5
@pytest.mark.parametrize("size_max", [4 * KIB, 16 * KIB])
def test_a_burst_of_connects_that_offer_encryption_is_cut_into_batches_that_fit(
    hello_bytes: int, size_max: int
) -> None:  # 2.1, 3.13
    for name_bytes in range(1, 80):
        solo = Solo()
        target = msgspec.structs.replace(TARGET, host="h" * name_bytes)
        for _ in range(30):
            solo.endpoint.connect(target, solo.now, offer=bytes(hello_bytes))
        packets: list[Packet] = []
        while (batch := solo.endpoint.next_batch(size_max, solo.now)) is not None:
            assert batch.size <= size_max or len(batch.packets) == 1
            packets += batch.packets
        assert [packet.type for packet in packets] == [CONNECT] * 30


def kinds(solo: Solo, size: int) -> list[PacketType]:
    batch = fill(solo, size)
    assert batch.size == sum(packet.size for packet in batch.packets)
    assert batch.size <= size
    return [PacketType(packet.type) for packet in batch.packets]


def test_no_probe_leaves_when_everything_was_acknowledged_meanwhile() -> None:
    solo, (connection,) = many(1)
    connection.write(bytes(8 * KIB - 8 * 24), solo.now)
    connection.flush()
    assert kinds(solo, 8 * KIB) == [DATA] * 8
    solo.ack()
    assert solo.event(Flushed).connection_id == connection.id
    assert solo.out() == []


def test_no_probe_leaves_when_nothing_is_unacknowledged() -> None:
    solo, (connection,) = many(1)
    connection.flush()
    assert not solo.endpoint.wants_batch()
    connection.write(b"x", solo.now)
    assert kinds(solo, 8 * KIB) == [DATA]
    solo.ack()
    connection.flush()
    assert not solo.endpoint.wants_batch()
