"""Each packet that the relay does not deliver is counted once, with its reason."""

import random

import msgspec
import pytest

from tests.servlet.queues import KIB, Box, put, put_control
from tests.servlet.support import (
    REPORTS,
    SECOND,
    Peer,
    Relay,
    accepted,
    bind,
    bound,
    client_and_exit,
    connect,
    control,
    data,
    listen_state,
)
from tunnel.traces.record import TraceEvent, TraceReason
from tunnel.wire import DropReason, Frame, PacketType, frame_of
from tunnel_servlet.switch.mailboxes.queues import RouteQueue
from tunnel_servlet.switch.stats import Counters, Undelivered

ABORT, ACK, CLOSE, PING = PacketType.ABORT, PacketType.ACK, PacketType.CLOSE, PacketType.PING
NOTICES = (PacketType.DROPPED, PacketType.EDGE)


def undelivered(counters: Counters) -> dict[str, int]:
    """Return the counts above 0, by reason."""
    counts = {why.name.lower(): getattr(counters, why.value) for why in Undelivered}
    return {reason: count for reason, count in counts.items() if count}


def test_each_reason_has_a_counter() -> None:
    assert {why.value for why in Undelivered} <= {each.name for each in msgspec.structs.fields(Counters)}


def test_9_2_a_control_packet_that_gives_way_to_a_newer_one_is_counted() -> None:
    box = Box()
    queue = box.queue(7)
    put_control(box, queue, *(control(PING, 1, 7, bytes([number])) for number in range(3)))
    assert [bytes(packet.payload) for packet in box.take()] == [b"\2"]
    assert undelivered(box.counters) == {"replaced": 2}


def test_9_2_a_later_abort_is_counted() -> None:
    box = Box()
    queue = box.queue(7)
    put_control(box, queue, control(ABORT, 1, 7, b"first"), control(ABORT, 1, 7, b"later"))
    assert [bytes(packet.payload) for packet in box.take()] == [b"first"]
    assert undelivered(box.counters) == {"replaced": 1}


def test_9_2_the_oldest_of_many_acks_is_counted() -> None:
    box = Box()
    queue = box.queue(7)
    put_control(box, queue, *(control(ACK, 1, 7, bytes([number])) for number in range(10)))
    assert len(box.take()) == 8
    assert undelivered(box.counters) == {"replaced": 2}


def test_9_2_a_packet_that_comes_back_after_newer_ones_is_counted() -> None:
    box = Box()
    queue = box.queue(7)
    put(box, queue, data(1, 7, 101))
    put_control(box, queue, control(PING, 1, 7))
    taken = box.mailbox.take(1 << 20)
    put(box, queue, data(1, 7, 101))
    put_control(box, queue, control(PING, 1, 7), *(control(ACK, 1, 7) for _ in range(8)))
    box.mailbox.put_back(taken)
    assert undelivered(box.counters) == {"replaced": 2}


def test_packets_that_wait_when_their_route_ends_are_counted() -> None:
    box = Box()
    queue, held = box.queue(7), box.queue(8)
    held.blocked = True
    put(box, queue, data(1, 7, 101), control(CLOSE, 1, 7, bytes(24), 102))
    put_control(box, queue, control(ABORT, 1, 7))
    put(box, held, data(2, 8, 101))
    put_control(box, held, control(PING, 2, 8))
    box.mailbox.close(queue)
    box.mailbox.close(held)
    assert [packet.type for packet in box.take()] == [ABORT]
    assert undelivered(box.counters) == {"ended": 4}


def test_data_that_comes_back_after_its_route_has_ended_is_counted() -> None:
    box = Box()
    queue = box.queue(7)
    put(box, queue, data(1, 7, 101))
    taken = box.mailbox.take(1 << 20)
    box.mailbox.close(queue)
    box.mailbox.put_back(taken)
    assert undelivered(box.counters) == {"ended": 1}


def test_6_4_packets_of_an_attachment_that_is_replaced_are_counted() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    exit_ = Peer(relay, "exits", 2, name="gate", is_exit=True).attached()
    bind(client, exit_, 11, 22)
    client.push(data(11, 22, 101), control(PING, 11, 22))
    Peer(relay, "exits", 3, name="gate", is_exit=True).attached()
    assert undelivered(relay.counters) == {"ended": 2}


def test_6_10_packets_that_another_exit_gets_are_not_counted() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    Peer(relay, "exits", 2, name="gate", is_exit=True).attached()
    client.push(connect(11), data(11, 0, 101), control(PING, 11, 0))
    newer = Peer(relay, "exits", 3, name="gate", is_exit=True).attached()
    assert [packet.type for packet in newer.push(accepted(11, 22))] == [PING, PacketType.DATA]
    assert undelivered(relay.counters) == {}


def test_9_5_a_connect_whose_route_ends_while_it_waits_is_counted() -> None:
    relay = Relay()
    client, _ = client_and_exit(relay)
    client.push(connect(11))
    relay.advance(relay.config.pending_timeout_us)
    assert relay.switch.stats().routes == 0
    assert undelivered(relay.counters) == {"ended": 1}


def test_a_connect_that_comes_back_after_its_route_has_ended_is_counted() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    client.push(connect(11))
    assert len(exit_.push()) == 1
    relay.advance(relay.config.pending_timeout_us)
    assert undelivered(relay.counters) == {}
    exit_.generation += 1
    exit_.attached()  # nothing that it got before counts as confirmed
    assert undelivered(relay.counters) == {"ended": 1}


def test_3_3_a_repeated_connect_that_finds_no_room_is_counted() -> None:
    relay = Relay(general_packets_max=1)
    client, exit_ = client_and_exit(relay)
    client.push(connect(11))
    assert len(exit_.push()) == 1
    client.push(connect(12))
    client.push(connect(11))
    assert undelivered(relay.counters) == {"full": 1}


def test_2_8_a_connect_that_waited_for_a_listener_is_counted_when_all_listeners_are_gone() -> None:
    relay = Relay(settle_us=600 * SECOND)
    service = Peer(relay, "eve", 3).attached()
    service.listen(backlog=1)
    client = Peer(relay).attached()
    client.push(connect(11, target=REPORTS), connect(12, target=REPORTS))
    service.push(listen_state(version=2, up=False))
    assert undelivered(relay.counters) == {"ignored": 1}


def test_3_3_a_repeated_connect_that_waits_when_its_answer_comes_is_counted() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    client.push(connect(11))
    exit_.push()
    client.push(connect(11))
    exit_.send(accepted(11, 22))
    assert undelivered(relay.counters) == {"replaced": 1}


def test_what_waits_in_a_mailbox_that_ends_is_counted() -> None:
    box = Box()
    box.mailbox.post(("rejected", 1), frame_of(control(PacketType.REJECTED, 1, 0)))
    box.mailbox.end()
    assert undelivered(box.counters) == {"ended": 1}
    assert box.budget.held == 0


def test_packets_of_no_route_for_which_there_is_no_room_are_counted() -> None:
    box = Box(general_packets_max=1, notices_max=1)
    frames = [frame_of(control(PacketType.REJECTED, number, 0)) for number in (1, 2)]
    assert box.mailbox.post(("rejected", 1), frames[0])
    assert not box.mailbox.post(("rejected", 2), frames[1])
    assert undelivered(box.counters) == {"full": 1}
    assert box.mailbox.post(("rejected", 1), frames[0])
    assert undelivered(box.counters) == {"full": 1, "replaced": 1}
    assert box.mailbox.notice(5, DropReason.NO_ROUTE)
    assert not box.mailbox.notice(6, DropReason.NO_ROUTE)
    assert undelivered(box.counters) == {"full": 2, "replaced": 1}


def test_3_6_packets_that_come_too_early_to_be_stored_are_counted_and_traced() -> None:
    relay = Relay(trace=True)
    client = Peer(relay).attached()
    exit_ = Peer(relay, "exits", 2, is_exit=True)
    client.push(connect(11, resume=True, destination=22, endpoint_id=exit_.identity))
    client.push(data(11, 22, 200), control(ACK, 11, 22))
    assert undelivered(relay.counters) == {"too_early": 2}
    dropped = [record for record in relay.records if record.event == TraceEvent.PACKET_DROPPED]
    assert [(record.sequence, record.reason) for record in dropped] == [
        (200, TraceReason.NO_ROUTE),
        (0, TraceReason.NO_ROUTE),
    ]


def test_9_1_packets_to_another_destination_are_traced() -> None:
    relay = Relay(trace=True)
    client, _ = bound(relay)
    client.push(data(11, 23, 101))
    assert undelivered(relay.counters) == {"misaddressed": 1}
    assert (relay.records[-1].event, relay.records[-1].reason) == (TraceEvent.PACKET_DROPPED, TraceReason.NO_ROUTE)


@pytest.mark.parametrize("is_bound", [True, False])
def test_9_2_a_control_packet_that_finds_no_room_is_traced(is_bound: bool) -> None:
    relay = Relay(trace=True, control_bytes_max=2000)
    if is_bound:
        client, _ = bound(relay)
    else:
        client, _ = client_and_exit(relay)
        client.push(connect(11))
    client.push(control(PING, 11, 22 if is_bound else 0, bytes(2000)))
    assert undelivered(relay.counters) == {"full": 1}
    dropped = [record for record in relay.records if record.event == TraceEvent.PACKET_DROPPED]
    assert [(record.packet_type, record.reason) for record in dropped] == [(PING, TraceReason.FULL)]


def test_3_3_a_repeated_connect_counts_as_a_copy_while_the_first_one_waits() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    client.push(connect(11))
    client.push(connect(11))
    assert undelivered(relay.counters) == {"replaced": 1}
    assert len(exit_.push()) == 1
    exit_.push(accepted(11, 22))
    assert undelivered(relay.counters) == {"replaced": 1}


def test_3_3_a_repeat_of_a_connect_that_waits_at_the_relay_counts_as_a_copy() -> None:
    relay = Relay()
    service, client = Peer(relay, "bob", 2).attached(), Peer(relay).attached()
    service.listen(backlog=1)
    client.push(connect(1, target=REPORTS), connect(2, target=REPORTS))
    assert undelivered(relay.counters) == {}
    for attempt in (1, 2):
        client.push(connect(2, target=REPORTS, attempt=attempt))
        assert undelivered(relay.counters) == {"replaced": attempt}
    service.push()
    assert [packet.source for packet in service.push(accepted(1, 21))] == [2]
    service.push(accepted(2, 22))
    assert undelivered(relay.counters) == {"replaced": 2}


def test_6_5_a_repeat_of_a_resume_that_waits_for_its_endpoint_counts_as_a_copy() -> None:
    relay = Relay()
    client, exit_ = Peer(relay).attached(), Peer(relay, "exits", 2, is_exit=True)
    for attempt in range(3):
        again = connect(11, resume=True, destination=22, endpoint_id=exit_.identity, attempt=attempt)
        client.push(again)
        assert sum(undelivered(relay.counters).values()) == attempt
    assert undelivered(relay.counters) == {"replaced": 2}
    assert [packet.type for packet in exit_.attached().push()] == [PacketType.CONNECT]
    assert undelivered(relay.counters) == {"replaced": 2}


@pytest.mark.parametrize("has_it", [False, True])
def test_6_10_a_connect_that_waits_for_a_silent_exit_when_another_gets_the_repeat_is_counted(*, has_it: bool) -> None:
    relay = Relay()
    first = Peer(relay, "exits", 2, "first", is_exit=True).attached()
    client = Peer(relay).attached()
    client.push(connect(11))
    if has_it:
        assert len(first.push()) == 1
        client.push(connect(12))
    relay.advance(10 * SECOND)
    other = Peer(relay, "exits", 3, "other", is_exit=True).attached()
    client.push(connect(11, attempt=1))
    assert [packet.source for packet in other.push()] == [11]
    assert undelivered(relay.counters) == ({} if has_it else {"replaced": 1})


def test_9_5_a_connect_that_waits_at_the_relay_when_its_initiator_gives_up_is_counted() -> None:
    relay = Relay()
    service, client = Peer(relay, "bob", 2).attached(), Peer(relay).attached()
    service.listen(backlog=1)
    client.push(connect(1, target=REPORTS), connect(2, target=REPORTS))
    client.push(control(ABORT, 2, 0))
    assert relay.switch.stats().routes_waiting == 0
    assert undelivered(relay.counters) == {"ended": 1}


@pytest.mark.parametrize("is_resume", [False, True])
def test_6_4_a_connect_that_waits_at_the_relay_when_its_initiator_is_replaced_is_counted(*, is_resume: bool) -> None:
    relay = Relay()
    service, client = Peer(relay, "bob", 2).attached(), Peer(relay, name="one").attached()
    service.listen(backlog=1)
    if is_resume:
        absent = Peer(relay, "exits", 5, is_exit=True)
        client.push(connect(1, resume=True, destination=22, endpoint_id=absent.identity))
    else:
        client.push(connect(1, target=REPORTS))
        service.push()
        client.push(connect(2, target=REPORTS))
    assert undelivered(relay.counters) == {}
    Peer(relay, seed=3, name="one").attached()
    assert undelivered(relay.counters) == {"ended": 1}


def test_6_5_a_resume_that_the_relay_ignores_is_counted() -> None:
    relay = Relay(trace=True)
    client, exit_ = client_and_exit(relay)
    relay.switch.drain()
    client.push(connect(11, resume=True, destination=22, endpoint_id=exit_.identity))
    assert undelivered(relay.counters) == {"ignored": 1}
    assert relay.records[-1].event == TraceEvent.PACKET_DROPPED


def test_6_5_a_resume_whose_endpoint_does_not_come_is_counted() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    absent = Peer(relay, "exits", 9, is_exit=True)
    client.push(connect(11, resume=True, destination=22, endpoint_id=absent.identity))
    client.push(connect(11))  # not the resume that is parked
    assert undelivered(relay.counters) == {"ignored": 1}
    relay.advance(20 * SECOND)
    assert relay.switch.stats().routes == 0
    assert undelivered(relay.counters) == {"ignored": 2}


def test_6_9_a_connect_that_comes_before_the_exits_are_back_is_counted() -> None:
    relay = Relay(settle_us=SECOND)
    client = Peer(relay).attached()
    client.push(connect(11))
    assert undelivered(relay.counters) == {"ignored": 1}


# --- no packet is lost without a count


def step(box: Box, queues: list[RouteQueue], draw: random.Random, taken: list[Frame]) -> tuple[int, int]:
    """Take one random step. Return how many packets were given to the mailbox, and how many were delivered."""
    choice = draw.randrange(10)
    index = draw.randrange(len(queues))
    queue = queues[index]
    kind = draw.choice([PING, ABORT, ACK, ACK, PacketType.SHUTDOWN, PacketType.PROBE])
    if choice < 3:
        put(box, queue, data(1, queue.own_id, 101 + draw.randrange(30), bytes(draw.choice([1, KIB, 3 * KIB]))))
        return 1, 0
    if choice < 6:
        put_control(box, queue, control(kind, 1, queue.own_id, bytes(draw.randrange(9))))
        return 1, 0
    if choice == 6:
        box.mailbox.post(("rejected", draw.randrange(6)), frame_of(control(PacketType.REJECTED, 99, 0)))
        return 1, 0
    if choice == 7:
        found = box.mailbox.take(draw.choice([1, 500, 5 * KIB]))
        notices = [frame for frame in found if frame.type in NOTICES]
        box.mailbox.release_taken(notices)
        taken += [frame for frame in found if frame.type not in NOTICES]
        return 0, 0
    if choice == 8:
        if draw.randrange(2):
            box.mailbox.put_back(list(taken))
            delivered = 0
        else:
            box.mailbox.release_taken(taken)
            delivered = len(taken)
        taken.clear()
        return 0, delivered
    if draw.randrange(4) == 0:
        box.mailbox.close(queue)
        queues[index] = box.queue(queue.own_id)
    return 0, 0


def waiting(box: Box) -> int:
    queues = box.mailbox.queues.values()
    return len(box.mailbox.general) + sum(len(each.frames) + len(each.control) + len(each.acks) for each in queues)


@pytest.mark.parametrize("seed", range(60))
def test_every_packet_leaves_or_waits_or_is_counted(seed: int) -> None:
    draw = random.Random(seed)
    box = Box(route_bytes_max=16 * KIB, control_bytes_max=KIB, general_packets_max=6, bytes_max=256 * KIB)
    queues = [box.queue(number) for number in (7, 8)]
    taken: list[Frame] = []
    given = delivered = 0
    for _ in range(300):
        more_given, more_delivered = step(box, queues, draw, taken)
        given, delivered = given + more_given, delivered + more_delivered
        assert given == delivered + len(taken) + waiting(box) + sum(undelivered(box.counters).values())
