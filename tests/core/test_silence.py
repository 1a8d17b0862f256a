"""6.11: an acceptor that does not answer at a relay that does, and the move of its connections to another one."""

import pytest
from xxhash import xxh3_128

from tests.core.siblings import HERE, PEER, THERE, Process, answer, other_acceptor
from tests.core.solo import BIG, FIRST, MS, NO_ROUTE, SERVICE
from tunnel.core import Connection, State
from tunnel.core.constants import MOVE_REST_US, NEVER_US, SECOND_US, SILENCE_US, WATCH_IDLE_US, WATCH_US
from tunnel.wire import (
    Accepted,
    Ack,
    End,
    Options,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    decode_connect,
    decode_leave,
    encode_accepted,
    encode_ack,
    encode_end,
    encode_rejected,
    wrap,
)

_LATER_US = 100 * MS  # more than any rounding of the waits here


def kinds(packets: list[Packet]) -> list[PacketType]:
    return [PacketType(packet.type) for packet in packets if packet.type != PacketType.LISTEN_STATE]


def pong(number: int, source: int = PEER) -> Packet:
    return Packet(PacketType.PONG, source, number, 0)


def asked(process: Process) -> list[int]:
    """Return the connections on which a PING leaves for the first relay now, which receipts it."""
    return [packet.source for packet in process.out(0) if packet.type == PacketType.PING]


def one_asked() -> tuple[Process, int]:
    """Return a process that has just asked the acceptor of its only connection, and the connection's id."""
    process = Process()
    (number,) = process.opened()
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    assert asked(process) == [number]
    return process, number


def close_of_peer(process: Process, number: int, text: bytes = b"") -> None:
    """Receive everything that the acceptor sends, and its CLOSE."""
    if text:
        process.into(0, Packet(PacketType.DATA, PEER, number, wrap(FIRST + 1), text))
    end = encode_end(End(len(text), xxh3_128(text).digest()))
    process.into(0, Packet(PacketType.CLOSE, PEER, number, wrap(FIRST + 1 + bool(text)), end))


def acknowledge(process: Process, connection: Connection) -> None:
    first = wrap(connection.identity.first_sequence + 1)
    process.into(0, Packet(PacketType.ACK, PEER, connection.id, 0, encode_ack(Ack(first, BIG, 0, first, 0))))


def test_a_silent_acceptor_is_asked_and_followed_to_another_relay() -> None:
    process, number = one_asked()
    process.wait(SILENCE_US - _LATER_US)
    assert process.resumes() == []
    process.wait(2 * _LATER_US)
    (packet,) = process.resumes()
    resume = decode_connect(packet.payload)
    assert resume is not None
    assert (resume.options.further_ids, resume.options.move) == ((THERE[::-1],), 1)
    process.out(0)
    process.into(1, answer(packet, 1))
    assert list(process.endpoints[1].connections) == [number]
    (leave,) = (one for one in process.out(0) if one.type == PacketType.LEAVE)
    assert (leave.source, leave.destination, decode_leave(leave.payload)) == (number, PEER, 1)
    process.wait(WATCH_US + _LATER_US)
    assert PacketType.PING in kinds(process.out(1))  # it is looked after there, too


def test_an_acceptor_that_answers_stays_and_is_asked_seldom() -> None:
    process = Process()
    (number,) = process.opened()
    process.out(0)
    pings = 0
    for _ in range(60 * SECOND_US // WATCH_US):
        process.wait(WATCH_US)
        for _ in asked(process):
            pings += 1
            process.into(0, pong(number))
    assert process.resumes() == []
    assert pings == 1 + 59 * SECOND_US // (WATCH_IDLE_US + WATCH_US)


def test_bytes_after_a_rest_are_watched_again() -> None:
    process, number = one_asked()
    process.into(0, pong(number))
    process.wait(5 * SECOND_US)
    assert asked(process) == []
    process.into(0, Packet(PacketType.DATA, PEER, number, wrap(FIRST + 1), b"abc"))
    process.wait(WATCH_US + _LATER_US)
    assert asked(process) == [number]


def test_bytes_that_are_not_acknowledged_are_a_reason_to_ask() -> None:
    process = Process()
    (number,) = process.opened()
    connection = process.endpoints[0].connections[number]
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    process.out(0)
    process.into(0, pong(number))
    process.wait(3 * SECOND_US)
    connection.write(b"abc", process.now)
    process.out(0)
    process.wait(SECOND_US + _LATER_US)  # RTO
    assert asked(process) == [number]
    process.wait(SILENCE_US + _LATER_US)
    assert len(process.resumes()) == 1


@pytest.mark.parametrize("is_receipted", [False, True])
def test_silence_counts_from_the_receipt_of_the_question(is_receipted: bool) -> None:
    """On a slow way to the relay, the question may take longer than an answer may."""
    process = Process()
    process.opened()
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    batch = process.endpoints[0].next_batch(1 << 20, process.now)
    assert batch is not None
    process.wait(10 * SECOND_US)
    if is_receipted:
        process.endpoints[0].batch_done(batch.token, True, process.now)
        process.wait(SILENCE_US - _LATER_US)
        assert process.resumes() == []
        process.wait(2 * _LATER_US)
    assert len(process.resumes()) == is_receipted


def test_the_receipt_of_an_earlier_batch_is_not_that_of_the_question_and_does_not_end_the_wait_for_it() -> None:
    process = Process()
    (number,) = process.opened()
    endpoint, watch = process.endpoints[0], process.siblings.members[0].watch
    process.out(0)
    process.wait(WATCH_US - _LATER_US)
    endpoint.connections[number].write(b"abc", process.now)
    earlier = endpoint.next_batch(1 << 20, process.now)
    process.wait(2 * _LATER_US)
    question = endpoint.next_batch(1 << 20, process.now)
    assert earlier is not None
    assert question is not None
    assert PacketType.PING in kinds(question.packets)
    endpoint.batch_done(earlier.token, True, process.now)
    process.wait(SILENCE_US + _LATER_US)
    assert process.resumes() == []
    endpoint.batch_done(question.token, True, process.now)
    due_us = watch.due_us
    assert due_us > process.now
    watch.look(endpoint.connections.values(), process.now)
    assert watch.due_us == due_us  # the wait for the answer costs no looks
    process.wait(SILENCE_US + _LATER_US)
    assert len(process.resumes()) == 1


def test_one_connection_without_a_route_is_followed_although_the_acceptor_answers_on_another_one() -> None:
    """It may have lost one connection alone, and be asked seldom, since the other one is idle."""
    process = Process()
    numbers = process.opened(2)
    watch = process.siblings.members[0].watch
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    (number,) = asked(process)
    process.into(0, pong(number, PEER + numbers.index(number)))
    process.wait(WATCH_US + _LATER_US)
    assert watch.due_us > process.now + SILENCE_US + WATCH_US  # nothing happens: it is looked after seldom
    (other,) = (one for one in numbers if one != number)
    process.into(0, Packet(PacketType.DROPPED, 0, other, 0, NO_ROUTE))
    process.wait(SILENCE_US + WATCH_US + _LATER_US)
    assert [packet.source for packet in process.resumes()] == [other]


def test_many_reasons_to_look_are_one_look_in_a_quarter_of_a_second() -> None:
    process = Process()
    process.opened()
    watch = process.siblings.members[0].watch
    watch.look(process.endpoints[0].connections.values(), process.now)
    watch.look_now(process.now)
    assert watch.due_us == process.now + WATCH_US // 4


def test_an_endpoint_that_only_accepts_never_looks() -> None:
    process = Process()
    process.asked()
    assert process.siblings.members[0].watch.due_us == NEVER_US


def test_an_endpoint_looks_after_connections_that_may_move_later() -> None:
    """They have no answer yet, which would say where else the acceptor sits."""
    process = Process()
    process.endpoints[0].connect(SERVICE, process.now)
    watch = process.siblings.members[0].watch
    watch.look(process.endpoints[0].connections.values(), process.now)
    assert watch.due_us == process.now + WATCH_IDLE_US


def test_a_question_that_was_given_up_is_asked_again() -> None:
    process = Process()
    (number,) = process.opened()
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    batch = process.endpoints[0].next_batch(1 << 20, process.now)
    assert batch is not None
    process.endpoints[0].batch_done(batch.token, False, process.now)
    process.wait(20 * MS)
    assert asked(process) == [number]


def test_one_question_is_enough_for_all_connections_to_an_acceptor() -> None:
    process = Process()
    numbers = process.opened(5)
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    assert len(asked(process)) == 1
    process.wait(SILENCE_US + _LATER_US)
    assert sorted(packet.source for packet in process.resumes()) == sorted(numbers)


def test_when_the_connection_that_asked_has_ended_another_one_asks() -> None:
    process = Process()
    numbers = process.opened(2)
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    (number,) = asked(process)
    process.endpoints[0].connections[number].abort(process.now)
    process.out(0)
    process.wait(SILENCE_US + _LATER_US)
    assert process.resumes() == []
    assert asked(process) == [one for one in numbers if one != number]
    process.wait(SILENCE_US + _LATER_US)
    assert len(process.resumes()) == 1


def test_any_packet_of_the_acceptor_is_an_answer() -> None:
    process = Process()
    numbers = process.opened(2)
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    (number,) = asked(process)
    (other,) = (one for one in numbers if one != number)
    process.into(0, Packet(PacketType.DATA, PEER + numbers.index(other), other, wrap(FIRST + 1), b"abc"))
    process.wait(SILENCE_US + WATCH_US)
    assert process.resumes() == []


def test_two_users_an_acceptor_that_answers_keeps_its_connections_when_another_one_is_silent() -> None:
    process = Process()
    (number,) = process.opened()
    kept = other_acceptor(process)
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    assert sorted(asked(process)) == sorted([number, kept])
    process.into(0, pong(kept, PEER + 100))
    process.wait(SILENCE_US + _LATER_US)
    assert [packet.source for packet in process.resumes()] == [number]


def test_two_users_no_packet_of_another_one_makes_a_connection_move() -> None:
    """Only this endpoint's own question decides: not the acceptor's packets, nor those of a relay that is not used."""
    process = Process()
    (number,) = process.opened()
    process.out(0)
    forged = [Packet(PacketType(kind), PEER, number, 0) for kind in PacketType]
    forged += [Packet(PacketType(kind), number, PEER, 0) for kind in PacketType]
    forged = [packet for packet in forged if packet.type not in (PacketType.ABORT, PacketType.SHUTDOWN)]
    process.into(1, *forged)
    process.wait(WATCH_US // 2)
    assert process.resumes() == []
    assert list(process.endpoints[0].connections) == [number]


def test_a_resume_that_the_acceptor_does_not_answer_goes_to_another_relay() -> None:
    """The relay was restarted: the initiator is back, and the acceptor is not."""
    process = Process()
    (number,) = process.opened()
    process.endpoints[0].on_attached(True, BIG, 1 << 30, process.now)
    process.wait(SILENCE_US - _LATER_US)
    assert process.resumes() == []
    process.wait(WATCH_US + 2 * _LATER_US)
    (packet,) = process.resumes()
    process.into(1, answer(packet, 1))
    assert list(process.endpoints[1].connections) == [number]


def test_a_vain_try_is_repeated_after_a_rest_until_the_acceptor_answers_at_home() -> None:
    process = Process()
    (number,) = process.opened()
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    process.out(0)
    numbers: list[int | None] = []
    for _ in range(20):
        process.wait(SECOND_US)
        for packet in process.resumes():
            asked_for = decode_connect(packet.payload)
            assert asked_for is not None
            numbers.append(asked_for.options.move)
    assert len(set(numbers)) >= 4
    *_, last = (packet for packet in process.out(0) if packet.type == PacketType.CONNECT)
    process.into(0, answer(last, process.endpoints[0].connections[number].identity.move))
    for _ in range(40):
        process.wait(MOVE_REST_US)
        if asked(process):
            process.into(0, pong(number))
        assert process.resumes() == []


def test_without_another_relay_one_is_sought() -> None:
    process = Process()
    process.opened()
    process.endpoints[1].on_detached(process.now)
    sought: list[int] = []
    process.siblings.seek = sought.append
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    process.out(0)
    process.wait(SILENCE_US + _LATER_US)
    assert sought == [0]
    process.endpoints[1].on_attached(True, BIG, 1 << 30, process.now)
    process.wait(_LATER_US)
    assert len(process.resumes()) == 1


@pytest.mark.parametrize("is_slow_here", [False, True])
def test_a_slow_acceptor_and_a_slow_way_to_the_relay_have_more_time(is_slow_here: bool) -> None:
    """The acceptor pulls once in 10 s, and has said so; or an answer of the relay takes 10 s."""
    process = Process()
    (number,) = process.opened()
    if is_slow_here:
        process.endpoints[0].carrier.round_trip_us = 10 * SECOND_US
    else:
        process.endpoints[0].connections[number].sender.rtt.pull_interval_us = 10 * SECOND_US
    process.out(0)
    process.wait(11 * SECOND_US + _LATER_US)
    assert asked(process) == [number]
    process.wait(21 * SECOND_US)
    assert process.resumes() == []
    process.wait(SECOND_US)
    assert len(process.resumes()) == 1


def test_a_relay_that_does_not_answer_is_not_taken_for_a_silent_acceptor() -> None:
    process = Process()
    process.opened()
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    process.out(0)
    process.endpoints[0].on_detached(process.now)
    process.wait(_LATER_US)
    process.endpoints[0].on_attached(False, BIG, 1 << 30, process.now)
    process.wait(WATCH_US)
    assert len(asked(process)) == 1  # what was asked before may be lost


@pytest.mark.parametrize("same_users", [False, True])
def test_an_endpoint_asks_only_about_connections_that_may_move(same_users: bool) -> None:
    process = Process(same_users=same_users)
    made = process.endpoints[0].connect(SERVICE, process.now)
    payload = encode_accepted(Accepted(made.identity.route_key, False, BIG, Options(endpoint_id=HERE[::-1])))
    process.out(0)
    process.into(0, Packet(PacketType.ACCEPTED, made.id, PEER, wrap(FIRST), payload))
    acknowledge(process, made)
    for _ in range(20):
        process.wait(SECOND_US)
        assert kinds(process.out(0)) == []


def test_an_endpoint_looks_no_more_when_the_last_connection_of_its_own_has_ended() -> None:
    process = Process()
    accepted = process.asked()
    made = process.endpoints[0].connect(SERVICE, process.now)
    process.out(0)
    made.abort(process.now)
    process.wait(2 * WATCH_US)
    assert list(process.endpoints[0].connections) == [accepted]
    assert process.endpoints[0]._seat is not None
    assert process.endpoints[0]._seat.due_us > process.now + (1 << 60)


def test_an_acceptor_asks_no_one() -> None:
    process = Process()
    process.asked()
    process.out(0)
    for _ in range(20):
        process.wait(SECOND_US)
        assert PacketType.PING not in kinds(process.out(0))
    assert process.endpoints[0]._seat is not None
    assert process.endpoints[0]._seat.due_us > process.now + (1 << 60)


@pytest.mark.parametrize("is_read", [True, False])
def test_an_acceptor_that_waits_for_the_last_acknowledgement_is_followed(is_read: bool) -> None:
    """It has lost the relay before the ACK of its CLOSE came, and would report a loss though everything was read."""
    process = Process()
    (number,) = process.opened()
    connection = process.endpoints[0].connections[number]
    close_of_peer(process, number, b"" if is_read else b"abc")
    assert connection.state is (State.DRAIN if is_read else State.PEER_CLOSED)
    process.wait(WATCH_US + _LATER_US)
    assert asked(process) == [number]
    process.wait(SECOND_US + _LATER_US)
    assert asked(process) == [number]  # the PING is repeated after the RTO
    process.wait(SILENCE_US - SECOND_US)
    (packet,) = process.resumes()
    process.into(1, answer(packet, 1))
    assert list(process.endpoints[1].connections) == [number]
    process.into(1, Packet(PacketType.SHUTDOWN, PEER, number, 0))
    if not is_read:
        assert connection.read(9, process.now) == b"abc"
    assert not process.endpoints[1].connections


@pytest.mark.parametrize("is_read", [True, False])
def test_an_acceptor_that_has_released_the_route_is_not_asked(is_read: bool) -> None:
    process = Process()
    (number,) = process.opened()
    close_of_peer(process, number, b"" if is_read else b"abc")
    process.into(0, Packet(PacketType.SHUTDOWN, PEER, number, 0))
    assert len(process.endpoints[0].connections) == (not is_read)
    for _ in range(20):
        process.wait(SECOND_US)
        assert asked(process) == []


def test_a_drain_ends_when_the_acceptor_says_through_another_relay_that_it_has_finished() -> None:
    process = Process()
    (number,) = process.opened()
    key = process.endpoints[0].connections[number].identity.route_key
    close_of_peer(process, number)
    process.wait(WATCH_US + _LATER_US)
    process.out(0)
    process.wait(SILENCE_US + _LATER_US)
    assert len(process.resumes()) == 1
    refusal = encode_rejected(Rejected(key, RejectReason.FINISHED))
    process.into(1, Packet(PacketType.REJECTED, number, 0, 0, refusal))
    assert not process.endpoints[0].connections
    assert kinds(process.out(0)) == [PacketType.SHUTDOWN]  # the last one, which frees the route


def test_bytes_that_come_before_the_answer_are_watched_as_others_are() -> None:
    """The answer after them says nothing new: they may have been the first of many."""
    process, number = one_asked()
    process.into(0, Packet(PacketType.DATA, PEER, number, wrap(FIRST + 1), b"abc"), pong(number))
    process.wait(2 * WATCH_US + _LATER_US)
    assert asked(process) == [number]


def test_bytes_without_an_answer_are_watched_as_others_are() -> None:
    process, number = one_asked()
    process.into(0, Packet(PacketType.DATA, PEER, number, wrap(FIRST + 1), b"abc"))
    process.wait(2 * WATCH_US + _LATER_US)
    assert asked(process) == [number]


def test_bytes_on_another_connection_are_watched_as_others_are() -> None:
    process = Process()
    numbers = process.opened(2)
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    (number,) = asked(process)
    (other,) = (one for one in numbers if one != number)
    process.into(
        0,
        Packet(PacketType.DATA, PEER + numbers.index(other), other, wrap(FIRST + 1), b"abc"),
        pong(number, PEER + numbers.index(number)),
    )
    process.wait(2 * WATCH_US + _LATER_US)
    assert len(asked(process)) == 1


@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_receipt_of_a_batch_with_the_question_counts(is_first: bool) -> None:
    """On several lanes, a later batch may be at the relay long before one with much data."""
    process = Process()
    (number,) = process.opened()
    connection, endpoint = process.endpoints[0].connections[number], process.endpoints[0]
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    question = endpoint.next_batch(1 << 20, process.now)
    connection.write(b"abc", process.now)
    later = endpoint.next_batch(1 << 20, process.now)
    assert question is not None
    assert later is not None
    endpoint.batch_done(question.token if is_first else later.token, True, process.now)
    process.wait(SILENCE_US + _LATER_US)
    assert len(process.resumes()) == is_first


def test_the_receipt_of_a_repeated_question_counts() -> None:
    process = Process()
    (number,) = process.opened()
    endpoint = process.endpoints[0]
    process.out(0)
    process.wait(WATCH_US + _LATER_US)
    first = endpoint.next_batch(1 << 20, process.now)
    process.wait(SECOND_US + _LATER_US)
    assert asked(process) == [number]
    assert first is not None
    endpoint.batch_done(first.token, False, process.now)
    process.wait(SILENCE_US + _LATER_US)
    assert len(process.resumes()) == 1


def test_an_acceptor_that_has_not_closed_is_not_asked_after_the_end_here() -> None:
    """It awaits nothing: its application does not read. A question would find no route, and its resume begin the drain
    again."""
    process = Process()
    (number,) = process.opened()
    connection = process.endpoints[0].connections[number]
    connection.write(b"abc", process.now)
    connection.close(process.now)
    process.out(0)
    last = wrap(connection.identity.first_sequence + 2)
    process.into(0, Packet(PacketType.ACK, PEER, number, 0, encode_ack(Ack(last, BIG, 0, last, 0))))
    assert connection.state is State.DRAIN
    for _ in range(299):
        process.wait(SECOND_US)
        assert PacketType.PING not in kinds(process.out(0))
    process.wait(SECOND_US)
    assert not process.endpoints[0].connections
