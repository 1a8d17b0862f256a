"""6.11: which resume moves a connection, which does not, and what the endpoints of one process share."""

import sys
from random import Random
from types import FrameType

import pytest

from tests.core.siblings import HERE, PEER, THERE, Process, answer, connect, other_acceptor
from tests.core.solo import BIG, FIRST, KEY, MS, SERVICE
from tunnel.core import Endpoint, EndpointConfig, Moved, StayCause
from tunnel.core.constants import MOVE_REST_US, MOVE_SPREAD_BITS, MOVE_TRIES, MOVES_ALL_MAX, MOVES_MAX, SECOND_US
from tunnel.wire import (
    Accepted,
    Option,
    Options,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    decode_accepted,
    decode_connect,
    decode_leave,
    decode_rejected,
    encode_accepted,
    encode_leave,
    encode_option,
    encode_rejected,
    wrap,
)


def reasons(packets: list[Packet]) -> list[int]:
    found = [decode_rejected(packet.payload) for packet in packets if packet.type == PacketType.REJECTED]
    return [one.reason for one in found if one is not None]


def moved_to(packets: list[Packet]) -> list[int | None]:
    """Return the numbers of the moves that these packets agree to."""
    found = [decode_accepted(packet.payload) for packet in packets if packet.type == PacketType.ACCEPTED]
    return [one.options.move for one in found if one is not None]


def stays(process: Process) -> list[StayCause]:
    """Return why connections stay at the first relay."""
    return [stay.cause for stay in process.endpoints[0].stays().values()]


# the acceptor


def test_an_acceptor_names_where_else_it_sits_only_in_one_domain() -> None:
    for same_users, ids in ((True, (THERE,)), (False, None)):
        process = Process(same_users=same_users)
        (packet,) = (one for one in process.into(0, connect()) if one.type == PacketType.ACCEPTED)
        accepted = decode_accepted(packet.payload)
        assert accepted is not None
        assert (accepted.options.endpoint_id, accepted.options.further_ids) == (HERE, ids)


def test_a_resume_at_another_relay_moves_the_connection_with_its_events() -> None:
    process = Process()
    number = process.asked()
    process.into(0, Packet(PacketType.DATA, PEER, number, wrap(FIRST + 2), b"def"))
    connection = process.endpoints[0].connections[number]
    assert moved_to(process.into(1, connect(resumed=number, move=1))) == [1]
    assert (list(process.endpoints[0].connections), list(process.endpoints[1].connections)) == ([], [number])
    assert process.endpoints[1].poll_event() == Moved(number)
    assert bytes(connection.read(9, process.now)) == b"abcdef"
    connection.write(b"ghi", process.now)
    assert process.out(0) == []
    assert PacketType.DATA in [packet.type for packet in process.out(1)]


@pytest.mark.parametrize("stranger", [{"user": "bob"}, {"source": PEER + 1}], ids=["user", "id"])
def test_two_users_a_resume_of_another_one_or_with_another_id_moves_nothing(stranger: dict[str, object]) -> None:
    process = Process()
    number = process.asked()
    packets = process.into(1, connect(resumed=number, move=9, **stranger))  # type: ignore[arg-type]
    assert reasons(packets) == [RejectReason.GONE]
    assert list(process.endpoints[0].connections) == [number]


def test_two_users_have_equal_names_without_one_domain() -> None:
    process = Process(same_users=False)
    number = process.asked()
    assert reasons(process.into(1, connect(resumed=number, move=1))) == [RejectReason.GONE]
    assert moved_to(process.into(1, connect())) == [None]  # another connection, of another user
    assert list(process.endpoints[0].connections) == [number]


def test_two_users_with_equal_route_keys_have_a_connection_each() -> None:
    """A resume moves that of its own user, although the other one has taken the key at the relay that it moves to."""
    process = Process()
    number = process.asked()
    assert moved_to(process.into(1, connect(user="bob"))) == [None]
    (other,) = process.endpoints[1].connections
    assert reasons(process.into(1, connect(user="bob", resumed=number, move=9, source=PEER + 1))) == [RejectReason.GONE]
    assert moved_to(process.into(1, connect(resumed=number, move=1))) == [1]
    assert sorted(process.endpoints[1].connections) == sorted([number, other])
    assert {one.identity.user for one in process.endpoints[1].connections.values()} == {"ann", "bob"}


def test_two_users_the_old_relay_and_another_user_there_cannot_take_back_what_has_moved() -> None:
    """They know every id, the route key and a high number. Only an equal name would be the same user."""
    process = Process()
    number = process.asked()
    assert moved_to(process.into(1, connect(resumed=number, move=1))) == [1]
    assert reasons(process.into(0, connect(user="bob", resumed=number, move=9))) == [RejectReason.GONE]
    late = [Packet(kind, PEER, number, 0, bytes(8)) for kind in (PacketType.ABORT, PacketType.SHUTDOWN)]
    assert process.into(0, *late) == []
    assert list(process.endpoints[1].connections) == [number]


def test_two_users_one_gets_no_more_by_connections_through_several_relays() -> None:
    process = Process()
    bob = [endpoint.enter_budget("bob") for endpoint in process.endpoints]
    ann = process.endpoints[1].enter_budget("ann")
    all_bytes = EndpointConfig().budget_bytes
    for _ in range(20):
        for budget in bob:
            budget.grant(all_bytes)
    assert bob[0].granted_bytes <= all_bytes // 2
    assert ann.grant(all_bytes // 4) == all_bytes // 4


def test_two_users_without_one_domain_have_separate_accounts() -> None:
    process = Process(same_users=False)
    first, second = (endpoint.enter_budget("bob") for endpoint in process.endpoints)
    first.grant(1000)
    assert second.granted_bytes == 0


def test_a_relay_that_was_stopped_cannot_undo_a_move() -> None:
    process = Process()
    number = process.asked()
    assert moved_to(process.into(1, connect(resumed=number, move=2))) == [2]
    for old in (None, 1, 2):
        packets = process.into(0, connect(resumed=number, move=old))
        assert packets == []
    assert process.into(0, connect()) == []  # the first CONNECT, late
    assert list(process.endpoints[1].connections) == [number]
    assert moved_to(process.into(1, connect(resumed=number, move=2))) == [2]  # a repeat is answered again
    assert process.into(1, connect(resumed=number, move=1)) == []
    assert moved_to(process.into(0, connect(resumed=number, move=3))) == [3]


def test_a_resume_without_a_number_moves_nothing() -> None:
    """It was meant for the relay that the connection uses: an endpoint of before numbers none."""
    process = Process()
    number = process.asked()
    assert process.into(1, connect(resumed=number)) == []
    assert list(process.endpoints[0].connections) == [number]


def test_a_connection_that_the_application_has_not_answered_yet_moves_nowhere() -> None:
    process = Process(config=EndpointConfig(asks_services=True))
    process.into(0, connect())
    (number,) = process.endpoints[0].connections
    assert process.into(1, connect(resumed=number, move=1)) == []
    assert list(process.endpoints[0].connections) == [number]
    process.endpoints[0].connections[number].accept(process.now)
    assert moved_to(process.out(0)) == [None]


def test_a_resume_that_moves_a_connection_is_not_counted_as_discarded() -> None:
    process = Process()
    number = process.asked()
    process.into(1, connect(resumed=number, move=1))
    assert process.endpoints[1].packets_discarded == 0


def test_two_users_the_end_of_a_connection_says_nothing_to_an_equal_name_outside_the_domain() -> None:
    process = Process(same_users=False)
    process.endpoints[0].connections[process.asked()].abort(process.now)
    assert moved_to(process.into(1, connect())) == [None]


def test_a_new_id_is_none_of_a_sibling_even_after_its_end() -> None:
    """Packets for the sibling's connection would else reach the new one."""
    process = Process()
    ended, present = process.asked(), process.endpoints[0].connect(SERVICE, process.now).id
    process.endpoints[0].connections[ended].abort(process.now)
    drawn = iter([ended, present, 5])
    process.endpoints[1].random.getrandbits = lambda bits: next(drawn)  # type: ignore[method-assign]
    assert process.endpoints[1].new_id() == 5


def test_an_endpoint_that_replaces_another_one_takes_its_place_in_the_order_of_preference() -> None:
    process = Process(relays=3)
    del process.siblings.members[1]
    made = Endpoint(EndpointConfig(), Random(9), endpoint_id=bytes([4]) * 16)
    made.join(process.siblings, 1, lambda: None)
    assert [one.place for one in process.siblings.members] == [0, 1, 2]


def test_what_still_comes_through_the_old_relay_gets_no_answer() -> None:
    process = Process()
    number = process.asked()
    process.into(1, connect(resumed=number, move=1))
    late = [Packet(kind, PEER, number, 0) for kind in (PacketType.PROBE, PacketType.PING, PacketType.SHUTDOWN)]
    late[2].attempt = 1
    assert process.into(0, *late) == []


def test_a_late_connect_of_a_connection_that_has_ended_elsewhere_opens_no_other() -> None:
    process = Process()
    number = process.asked()
    process.into(1, connect(resumed=number, move=1))
    process.endpoints[1].connections[number].abort(process.now)
    assert reasons(process.into(0, connect())) == [RejectReason.GONE]
    assert process.endpoints[0].connections == {}


def test_a_relay_for_small_packets_takes_no_connection() -> None:
    process = Process(packet_bytes_max=1 << 16)
    number = process.asked()
    assert process.into(1, connect(resumed=number, move=1)) == []
    assert list(process.endpoints[0].connections) == [number]


# the initiator


def lose(process: Process) -> None:
    process.endpoints[0].on_detached(process.now)
    process.wait(1 << MOVE_SPREAD_BITS)


def test_a_relay_that_has_never_answered_gets_no_connection() -> None:
    process = Process()
    made = Endpoint(EndpointConfig(), Random(9), endpoint_id=bytes([4]) * 16)
    made.join(process.siblings, 2, lambda: None)
    process.opened()
    process.endpoints[1].on_detached(process.now)
    lose(process)
    assert stays(process) == [StayCause.ALONE]


def test_endpoints_leave_a_relay_at_random_times() -> None:
    """Otherwise all endpoints of a relay that stops would ask another one in the same instant."""
    process = Process()
    process.opened()
    process.endpoints[0].random.getrandbits = lambda bits: 300 * MS  # type: ignore[method-assign]
    process.endpoints[0].on_detached(process.now)
    process.wait(290 * MS)
    assert process.resumes() == []
    process.wait(20 * MS)
    assert len(process.resumes()) == 1


def test_what_waits_for_another_relay_moves_as_soon_as_one_answers() -> None:
    process = Process()
    (number,) = process.opened()
    process.endpoints[1].on_detached(process.now)
    lose(process)
    process.wait(SECOND_US)
    process.woken.clear()
    process.endpoints[1].on_attached(True, BIG, 1 << 30, process.now)
    assert 0 in process.woken  # its driver would sleep on
    process.wait(10 * MS)
    assert [packet.source for packet in process.resumes()] == [number]


def test_an_absent_relay_is_left_and_gets_leave_when_it_is_back() -> None:
    process = Process()
    (number,) = process.opened()
    process.endpoints[0].on_detached(process.now)
    process.wait(1 << MOVE_SPREAD_BITS)
    (packet,) = process.resumes()
    asked = decode_connect(packet.payload)
    assert asked is not None
    assert (asked.resume, asked.options.endpoint_id) == (True, HERE[::-1])
    assert (asked.options.further_ids, asked.options.move) == ((THERE[::-1],), 1)
    process.into(1, answer(packet, 1))
    assert list(process.endpoints[1].connections) == [number]
    process.endpoints[0].on_attached(False, BIG, 1 << 30, process.now)
    (leave,) = process.out(0)
    assert (leave.type, leave.source, leave.destination, leave.sequence) == (PacketType.LEAVE, number, PEER, 0)
    assert decode_leave(leave.payload) == 1


def test_a_relay_that_has_forgotten_all_gets_no_leave() -> None:
    process = Process()
    process.opened()
    lose(process)
    process.into(1, answer(process.resumes()[0], 1))
    process.endpoints[0].on_attached(True, BIG, 1 << 30, process.now)
    assert PacketType.LEAVE not in [packet.type for packet in process.out(0)]


@pytest.mark.parametrize(("move", "key"), [(None, None), (2, None), (1, KEY)])
def test_an_answer_to_another_resume_moves_nothing(move: int | None, key: bytes | None) -> None:
    process = Process()
    (number,) = process.opened()
    lose(process)
    packet = answer(process.resumes()[0], move, key=key)
    process.into(1, packet, packet)
    assert list(process.endpoints[0].connections) == [number]
    assert process.endpoints[0].connections[number].stats.packets_discarded == 2


def test_an_answer_through_a_relay_that_was_not_asked_moves_nothing_and_is_told_to_leave() -> None:
    process = Process(relays=3)
    (number,) = process.opened()
    lose(process)
    (leave,) = process.into(2, answer(process.resumes()[0], 1))
    assert leave.type == PacketType.LEAVE
    assert list(process.endpoints[0].connections) == [number]


def test_two_users_an_acceptor_elsewhere_is_not_believed() -> None:
    """6.8: an ACCEPTED with another id comes from another acceptor."""
    process = Process()
    (number,) = process.opened()
    lose(process)
    packet = answer(process.resumes()[0], 1)
    packet.destination += 1
    process.into(1, packet)
    assert list(process.endpoints[0].connections) == [number]


def test_a_vain_try_ends_with_a_resume_at_home_and_a_rest() -> None:
    process = Process()
    (number,) = process.opened()
    lose(process)
    process.wait(MOVE_TRIES * SECOND_US + MOVE_REST_US // 2)
    sent = [packet for packet in process.out(1) if packet.type != PacketType.LISTEN_STATE]
    assert [stay.answer for stay in process.endpoints[0].stays().values()] == [""]
    *resumes, leave = sent  # LEAVE: for a route that a late answer binds
    assert [packet.type for packet in resumes] == [PacketType.CONNECT] * MOVE_TRIES
    assert (leave.type, decode_leave(leave.payload)) == (PacketType.LEAVE, 2)
    process.endpoints[0].on_attached(False, BIG, 1 << 30, process.now)
    (packet,) = (one for one in process.out(0) if one.type == PacketType.CONNECT)
    asked = decode_connect(packet.payload)
    assert asked is not None
    assert (asked.resume, asked.options.move, asked.options.further_ids) == (True, 2, None)
    process.into(0, answer(packet, 1))  # of the try that was given up
    assert process.endpoints[0].connections[number].handshake.suspended_since_us < process.now
    process.into(0, answer(packet, 2))
    assert process.endpoints[0].connections[number].handshake.suspended_since_us > process.now


def test_a_late_answer_to_a_try_that_was_given_up_is_told_to_leave() -> None:
    """Its CONNECT may have come to the relay after LEAVE, on another lane or in a batch that was repeated."""
    process = Process()
    process.opened()
    lose(process)
    (first,) = process.resumes()
    process.wait(MOVE_TRIES * SECOND_US)
    assert process.out(1)[-1].type == PacketType.LEAVE
    (leave,) = process.into(1, answer(first, 1))
    assert (leave.type, leave.source, leave.destination) == (PacketType.LEAVE, first.source, PEER)
    assert decode_leave(leave.payload) == 2
    assert process.into(1, Packet(PacketType.DATA, PEER, first.source, wrap(FIRST + 1), b"abc")) == []


def test_a_late_answer_to_an_earlier_try_leaves_the_present_one_alone() -> None:
    process = Process()
    process.opened()
    lose(process)
    (first,) = process.resumes()
    process.wait(MOVE_TRIES * SECOND_US + MOVE_REST_US + 20 * MS)
    assert decode_connect(process.resumes()[-1].payload).options.move == 3  # type: ignore[union-attr]
    assert process.into(1, answer(first, 1)) == []


@pytest.mark.parametrize(
    ("reason", "text", "said"),
    [
        (RejectReason.GONE, "", "gone"),
        (RejectReason.NO_SUCH_SERVICE, "", "no such service"),
        (RejectReason.FINISHED, "", "finished"),  # it would end a connection only if that drained
        (RejectReason.BUSY, "try later", "try later"),
        (250, "", "reason 250"),  # of a later version
    ],
)
def test_a_refusal_elsewhere_ends_only_the_try(reason: int, text: str, said: str) -> None:
    process = Process()
    (number,) = process.opened()
    lose(process)
    (packet,) = process.resumes()
    asked = decode_connect(packet.payload)
    assert asked is not None
    refusal, other = (
        Packet(PacketType.REJECTED, number, 0, 0, encode_rejected(Rejected(key, reason, text)))
        for key in (asked.route_key, KEY)
    )
    process.into(1, other, other)  # not of this connection
    assert process.endpoints[0].stays() == {}  # the try is under way
    assert process.endpoints[0].connections[number].stats.packets_discarded == 2
    process.into(1, refusal)
    assert list(process.endpoints[0].connections) == [number]
    (stay,) = process.endpoints[0].stays().values()
    assert (stay.cause, stay.asked.owner, stay.answer) == (StayCause.VAIN, process.endpoints[1], said)  # type: ignore[union-attr]
    due_us = process.endpoints[0].next_timeout()
    assert due_us is not None
    assert due_us > process.now  # a rest costs nothing
    process.wait(MOVE_REST_US - 100 * MS)
    assert process.resumes() == []
    process.wait(120 * MS)  # nothing is lost by the time at which others are looked for
    assert decode_connect(process.resumes()[0].payload).options.move == 3  # type: ignore[union-attr]


def refuse_first_try(process: Process, number: int) -> None:
    """Let the relay drain, and the acceptor refuse the first try to move."""
    process.into(0, Packet(PacketType.OPTION, 0, 0, 0, encode_option(Option(0, Options(draining=True)))))
    process.wait(1 << MOVE_SPREAD_BITS)
    (first,) = process.resumes()
    asked = decode_connect(first.payload)
    assert asked is not None
    refusal = encode_rejected(Rejected(asked.route_key, RejectReason.GONE))
    process.into(1, Packet(PacketType.REJECTED, number, 0, 0, refusal))


def test_a_resume_at_home_does_not_take_the_number_of_a_try_elsewhere() -> None:
    """Otherwise the old relay would ignore LEAVE, and the acceptor might follow the wrong one of the two."""
    process = Process()
    (number,) = process.opened()
    refuse_first_try(process, number)
    process.wait(MOVE_REST_US + 20 * MS)
    (second,) = process.resumes()
    process.wait(SECOND_US)  # the resume at home is repeated meanwhile
    at_home = [decode_connect(packet.payload) for packet in process.out(0) if packet.type == PacketType.CONNECT]
    assert {one.options.move for one in at_home if one is not None} == {2}
    process.into(1, answer(second, 3))
    (leave,) = (packet for packet in process.out(0) if packet.type == PacketType.LEAVE)
    assert decode_leave(leave.payload) == 3
    assert process.endpoints[1].connections[number].identity.move == 3


def test_a_late_answer_at_home_lets_a_connection_go_on_there_during_a_try() -> None:
    process = Process()
    (number,) = process.opened()
    refuse_first_try(process, number)
    (at_home,) = (packet for packet in process.out(0) if packet.type == PacketType.CONNECT)
    process.wait(MOVE_REST_US + 20 * MS)
    assert len(process.resumes()) == 1
    suspended = process.endpoints[0].connections[number].handshake
    process.into(0, answer(at_home, 1))
    assert suspended.suspended_since_us < process.now
    process.into(0, answer(at_home, 2))
    assert suspended.suspended_since_us > process.now


def test_after_a_vain_try_the_next_relay_has_its_turn() -> None:
    """The acceptor may sit there, and not at the relay that was tried."""
    process = Process(relays=3)
    process.opened()
    lose(process)
    tried: dict[int | None, int] = {}
    for _ in range(20):
        process.wait(SECOND_US)
        for number in (1, 2):
            for packet in process.resumes(number):
                asked = decode_connect(packet.payload)
                assert asked is not None
                tried[asked.options.move] = number
    assert list(tried.values()) == [1, 2, 1, 2, 1]


def test_a_relay_that_was_restarted_while_it_drained_is_left_no_more() -> None:
    process = Process()
    process.endpoints[1].on_detached(process.now)
    process.opened()
    draining = Packet(PacketType.OPTION, 0, 0, 0, encode_option(Option(0, Options(draining=True))))
    process.into(0, draining)
    process.endpoints[0].on_attached(True, BIG, 1 << 30, process.now)
    process.endpoints[1].on_attached(True, BIG, 1 << 30, process.now)
    process.wait(SECOND_US)
    assert process.resumes() == []


def test_few_moves_are_unanswered_at_a_time() -> None:
    process = Process()
    process.opened(MOVES_MAX + 5)
    lose(process)
    first = process.resumes()
    assert len(first) == MOVES_MAX
    due_us = process.endpoints[0].next_timeout()
    assert due_us is not None
    assert due_us > process.now  # those that wait for room cost nothing
    for packet in first[:2]:  # each makes room for one
        process.into(1, answer(packet, 1))
        process.wait(10 * MS)
        first += (more := process.resumes())
        assert len(more) == 1
    process.into(1, *(answer(packet, 1) for packet in first[2:]))
    process.wait(10 * MS)
    assert len(process.resumes()) == 3


def test_two_users_connections_to_an_acceptor_that_is_away_hold_up_none_to_another_one() -> None:
    process = Process()
    process.opened(4 * MOVES_MAX)
    other = other_acceptor(process)
    lose(process)
    assert other in [packet.source for packet in process.resumes()]


def test_two_users_a_rest_is_over_although_connections_to_another_acceptor_wait() -> None:
    process = Process()
    process.opened(4 * MOVES_MAX)
    other = other_acceptor(process)
    lose(process)
    (packet,) = (one for one in process.resumes() if one.source == other)
    asked = decode_connect(packet.payload)
    assert asked is not None
    refusal = encode_rejected(Rejected(asked.route_key, RejectReason.GONE))
    process.into(1, Packet(PacketType.REJECTED, other, 0, 0, refusal))
    process.wait(MOVE_REST_US + 20 * MS)
    assert other in [packet.source for packet in process.resumes()]


def test_the_tries_of_an_endpoint_are_bounded_however_many_acceptors_there_are() -> None:
    process = Process()
    other_acceptor(process)  # so that the last one has not room for all of its tries
    at_many_acceptors(process, 10)
    lose(process)
    assert len(process.resumes()) == MOVES_ALL_MAX


def at_many_acceptors(process: Process, acceptors: int) -> None:
    """Open as many connections to each acceptor as may have a try."""
    for number in range(acceptors):
        for made in [process.endpoints[0].connect(SERVICE, process.now) for _ in range(MOVES_MAX)]:
            process.out(0)
            options = Options(endpoint_id=bytes([100 + number]) * 16, further_ids=(THERE[::-1],))
            payload = encode_accepted(Accepted(made.identity.route_key, False, BIG, options))
            process.into(0, Packet(PacketType.ACCEPTED, made.id, PEER, wrap(FIRST), payload))


@pytest.mark.interpreted
def test_acceptors_that_wait_until_a_try_ends_cost_no_work() -> None:
    counts = []
    for acceptors in (10, 40):
        process = Process()
        at_many_acceptors(process, acceptors)
        lose(process)
        calls: list[str] = []

        def note(frame: FrameType, event: str, _: object, calls: list[str] = calls) -> None:
            if event == "call" and frame.f_code.co_filename.endswith("moving.py"):
                calls.append(frame.f_code.co_name)

        sys.setprofile(note)
        try:
            process.siblings.members[0].handle_timeout(process.now)
        finally:
            sys.setprofile(None)
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0


def test_an_acceptor_leaves_the_move_to_the_other_end() -> None:
    process = Process()
    process.asked()
    assert stays(process) == []
    lose(process)
    assert stays(process) == [StayCause.FOLLOWS]


def test_it_is_said_that_no_other_relay_is_usable_until_one_is() -> None:
    process = Process()
    process.opened()
    process.endpoints[1].on_detached(process.now)
    assert stays(process) == []  # this one serves
    lose(process)
    assert stays(process) == [StayCause.ALONE]
    process.endpoints[1].on_attached(True, BIG, 1 << 30, process.now)
    assert stays(process) == []


def test_it_is_said_of_a_silent_acceptor_that_it_does_not_answer_elsewhere_either_until_it_speaks() -> None:
    process = Process()
    (number,) = process.opened()
    while not (asked := process.resumes()):
        process.wait(SECOND_US)
        process.out(0)
    assert stays(process) == []  # it is tried
    process.wait(MOVE_TRIES * SECOND_US)
    assert stays(process) == [StayCause.VAIN]
    assert asked[0].source == number
    process.into(0, answer(asked[0], 2), Packet(PacketType.PONG, PEER, number, 0, b""))
    process.wait(2 * SECOND_US)
    assert stays(process) == []


def test_what_has_no_answer_yet_stays() -> None:
    process = Process()
    process.endpoints[0].connect(SERVICE, process.now)
    lose(process)
    assert process.resumes() == []
    assert stays(process) == [StayCause.OPENS]


def test_a_connection_that_ends_during_a_try_is_gone_at_both_relays() -> None:
    process = Process()
    (number,) = process.opened()
    lose(process)
    (packet,) = process.resumes()
    process.endpoints[0].connections[number].abort(process.now)
    (abort,) = process.into(1, answer(packet, 1))
    assert (abort.type, abort.source, abort.destination) == (PacketType.ABORT, number, PEER)
    process.wait(4 * SECOND_US)
    assert process.resumes() == []


# versions


def test_an_acceptor_ignores_leave_which_a_relay_of_before_forwards() -> None:
    process = Process()
    number = process.asked()
    leave = Packet(PacketType.LEAVE, PEER, number, 0, encode_leave(1))
    assert process.into(0, leave) == []
    assert process.into(1, connect(resumed=number, move=1)) != []
    assert process.into(0, leave) == []
    assert list(process.endpoints[1].connections) == [number]


def test_an_acceptor_of_before_names_no_other_relay_and_its_connections_stay() -> None:
    process = Process()
    made = process.endpoints[0].connect(SERVICE, process.now)
    payload = encode_accepted(Accepted(made.identity.route_key, False, BIG, Options(endpoint_id=HERE[::-1])))
    process.out(0)
    process.into(0, Packet(PacketType.ACCEPTED, made.id, PEER, wrap(FIRST), payload))
    assert stays(process) == []
    lose(process)
    assert process.resumes() == []
    assert stays(process) == [StayCause.BOUND]


def test_an_initiator_of_before_resumes_at_its_relay_as_ever() -> None:
    process = Process()
    number = process.asked()
    assert moved_to(process.into(0, connect(resumed=number))) == [None]
