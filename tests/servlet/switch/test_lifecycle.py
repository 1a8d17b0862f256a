"""ATTACH, generations, names, replacement, expiry (section 6, 9.6)."""

from tests.servlet.support import (
    SECOND,
    Peer,
    Relay,
    accepted,
    bound,
    client_and_exit,
    connect,
    data,
    kinds,
    read_dropped,
    read_rejected,
)
from tunnel.traces.record import TraceEvent, TraceReason
from tunnel.wire import Attached, DropReason, RejectReason, Status, StatusCode
from tunnel_servlet.switch.lifecycle import BEYOND_MAX


def code(answer: Attached | Status) -> int:
    assert isinstance(answer, Status)
    return answer.code


def test_6_3_attached_contains_epoch_limits_and_whether_the_attachment_is_fresh() -> None:
    relay = Relay(pull_interval_us_max=2 * SECOND)
    peer = Peer(relay)
    answer = peer.attach(pull_interval_ms=9000)
    assert answer == Attached(
        attachment_id=peer.identity,
        epoch=relay.switch.epoch,
        generation=1,
        fresh=True,
        body_bytes_max=relay.config.body_bytes_max,
        packet_bytes_max=relay.config.packet_bytes_max,
        hold_ms_max=65_000,
        pull_interval_ms=2000,
        initial_edge_bytes=relay.config.initial_edge_bytes,
        lanes=8,
        version=1,
        packets_max=1024,
        streams=True,
    )


def test_6_3_a_relay_has_an_epoch_of_64_bits() -> None:
    relay = Relay()
    assert 0 < relay.switch.epoch < 1 << 64


def test_6_2_a_lower_generation_is_stale() -> None:
    peer = Peer(Relay(), generation=5).attached()
    assert code(peer.attach(generation=4)) == StatusCode.STALE


def test_6_2_a_higher_generation_restarts_all_lanes() -> None:
    client, exit_ = bound(Relay())
    client.push(data(11, 22, 101), data(11, 22, 102))
    lost = exit_.send()
    held = exit_.pull(lane=1)
    answer = exit_.attach(generation=2)
    assert isinstance(answer, Attached)
    assert not answer.fresh
    assert exit_.relay.message(held).number == 1
    assert [packet.sequence for packet in exit_.push()] == [101, 102]
    assert lost in exit_.relay.responses


def test_6_2_routes_outlive_a_generation() -> None:
    client, exit_ = bound(Relay())
    client.attach(generation=7)
    client.push(data(11, 22, 101))
    assert kinds(exit_.push()) == ["DATA"]


def test_6_1_an_id_belongs_to_the_user_who_used_it_first() -> None:
    relay = Relay()
    Peer(relay).attached()
    thief = Peer(relay, user="eve")
    assert thief.attach(generation=9) == Status(StatusCode.UNKNOWN)
    assert relay.switch.stats().users == 1


def test_attachments_are_limited_per_user_and_in_total() -> None:
    relay = Relay(attachments_per_user_max=1, attachments_max=2)
    Peer(relay).attached()
    busy = Peer(relay, seed=2).attach()
    assert code(busy) == StatusCode.BUSY
    assert isinstance(busy, Status)
    assert busy.retry_after_ms > 0
    Peer(relay, user="bob", seed=3).attached()
    assert code(Peer(relay, user="eve", seed=4).attach()) == StatusCode.BUSY


def test_two_users_endpoints_that_are_to_replace_another_are_limited_too() -> None:
    relay = Relay(attachments_per_user_max=2)
    Peer(relay, "eve", 1, "desk").attached()
    late = [Peer(relay, "eve", seed, "desk") for seed in range(2, 60)]
    assert all(isinstance(peer.attach(), Attached) for peer in late)
    assert relay.switch.stats().attachments == 2 + BEYOND_MAX
    assert late[2].status(late[2].send()).code == StatusCode.UNKNOWN  # a newer endpoint took its place
    assert late[-1].push() == []
    assert isinstance(Peer(relay, "eve", 99, "desk").attach(), Attached)
    relay.advance(400 * SECOND)
    assert relay.switch.stats().attachments == 0


def test_two_users_an_endpoint_beyond_the_limit_must_replace_another() -> None:
    relay = Relay(attachments_per_user_max=1)
    holder = Peer(relay, "eve", 1, "desk").attached()
    beyond, third = (Peer(relay, "eve", seed, "desk") for seed in (2, 3))
    assert isinstance(beyond.attach(), Attached)
    assert isinstance(third.attach(), Attached)
    assert isinstance(holder.attach(generation=2, name="other"), Attached)  # the name is free now
    assert beyond.status(beyond.send()).code == StatusCode.UNKNOWN
    assert not relay.switch.link_opened(1, "eve", third.identity, third.epoch, 1, relay.now)
    assert relay.switch.stats().attachments == 1
    assert holder.push() == []


def test_6_4_a_new_id_under_the_same_name_replaces_the_older() -> None:
    relay = Relay(attachments_per_user_max=1, trace=True)
    client = Peer(relay).attached()
    first = Peer(relay, "exits", 2, "exit", is_exit=True).attached()
    client.push(connect(11), connect(12))
    client.push(connect(13, resume=True, destination=5, endpoint_id=first.identity))
    assert len(first.push()) == 3
    held = first.pull(lane=1)
    second = Peer(relay, "exits", 3, "exit", is_exit=True)
    second.attach()
    taken_over = second.push()
    assert first.status(held).code == StatusCode.UNKNOWN
    assert [(packet.source, read_rejected(packet).reason) for packet in client.push()] == [(13, RejectReason.GONE)]
    assert relay.counters.attachments_replaced == 1
    assert first.status(first.send()).code == StatusCode.UNKNOWN
    client.push(connect(14))
    assert [packet.source for packet in [*taken_over, *second.push()]] == [11, 12, 14]
    gone = [record for record in relay.records if record.event == TraceEvent.DETACHED]
    assert [record.reason for record in gone] == [TraceReason.GONE]


def test_6_4_what_a_replaced_endpoint_has_asked_for_ends_with_it_and_its_acceptor_is_told_no_abort() -> None:
    """The acceptor learns that there is no route, and may wait for a resume."""
    relay = Relay()
    client = Peer(relay, name="client").attached()
    exit_ = Peer(relay, "exits", 2, is_exit=True).attached()
    away = Peer(relay, "exits", 4, is_exit=True)
    client.push(connect(11), *(connect(12 + one, resume=True, endpoint_id=away.identity) for one in range(2)))
    assert len(exit_.push()) == 1
    Peer(relay, seed=5, name="client").attached().push()
    assert relay.counters.packets_ended == 2  # the resumes that waited for their endpoint
    assert kinds(exit_.push(accepted(11, 22))) == ["DROPPED"]


def test_6_4_the_same_name_of_another_user_is_independent() -> None:
    relay = Relay()
    Peer(relay, "ann", 2, "exit").attached()
    Peer(relay, "bob", 3, "exit").attached()
    Peer(relay, "bob", 4).attached()
    Peer(relay, "bob", 5).attached()
    assert relay.switch.stats().attachments == 4


def test_6_4_a_replaced_endpoint_does_not_take_its_name_back() -> None:
    relay = Relay()
    first = Peer(relay, "exits", 2, "exit").attached()
    second = Peer(relay, "exits", 3, "exit").attached()
    assert code(first.attach(generation=2)) == StatusCode.DENIED
    relay.advance(299 * SECOND)
    second.push()
    relay.advance(2 * SECOND)
    assert isinstance(first.attach(generation=2), Attached)


def test_6_4_a_name_may_change_with_the_generation() -> None:
    relay = Relay()
    first, other = Peer(relay, seed=2, name="one").attached(), Peer(relay, seed=3, name="two").attached()
    first.attach(generation=2, name="two")
    assert other.status(other.send()).code == StatusCode.UNKNOWN
    Peer(relay, seed=4, name="one").attached()
    assert relay.switch.stats().attachments == 2


def test_9_6_a_silent_attachment_is_forgotten() -> None:
    relay = Relay(trace=True)
    client, exit_ = bound(relay)
    exit_.push(data(22, 11, 501))
    relay.advance(200 * SECOND)
    client.push()
    relay.advance(99 * SECOND)
    assert relay.switch.stats().attachments == 2
    relay.advance(2 * SECOND)
    assert relay.switch.stats().attachments == relay.counters.attachments_expired == 1
    assert exit_.status(exit_.send()).code == StatusCode.UNKNOWN
    assert [read_dropped(packet).reason for packet in client.push()] == [DropReason.NO_ROUTE]
    assert [record.event for record in relay.records[-2:]] == [TraceEvent.ROUTE_RELEASED, TraceEvent.DETACHED]
    relay.advance(400 * SECOND)
    stats = relay.switch.stats()
    assert [stats.users, stats.attachments, stats.routes, stats.bytes_held, stats.bytes_reserved] == [0] * 5


def test_9_6_openings_that_wait_for_an_expired_acceptor_are_refused() -> None:
    relay = Relay(pending_timeout_us=1000 * SECOND)
    client, _ = client_and_exit(relay)
    relay.advance(200 * SECOND)
    client.push(connect(11))
    relay.advance(101 * SECOND)
    assert [read_rejected(packet).reason for packet in client.push()] == [RejectReason.GONE]


def test_9_6_openings_of_an_expired_initiator_are_forgotten() -> None:
    relay = Relay(pending_timeout_us=1000 * SECOND)
    client, exit_ = client_and_exit(relay)
    client.push(connect(11))
    relay.advance(200 * SECOND)
    exit_.pull(lane=1)
    relay.advance(101 * SECOND)
    assert relay.switch.stats().routes == 0
    assert exit_.push() == []


def test_9_6_an_open_link_keeps_an_attachment_from_expiring() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    assert relay.switch.link_opened(1, client.user, client.identity, client.epoch, 1, relay.now)
    relay.advance(1000 * SECOND)
    assert relay.switch.stats().attachments == 1
    relay.switch.link_closed(1, relay.now)
    relay.advance(299 * SECOND)
    assert relay.switch.stats().attachments == 1
    relay.advance(2 * SECOND)
    assert relay.switch.stats().attachments == 0


def test_6_4_a_late_attach_of_a_dead_endpoint_takes_no_name() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay, name="exit")
    ghost = Peer(relay, "exits", 9, "exit", is_exit=True)
    assert isinstance(ghost.attach(), Attached)  # it never sends anything else
    client.push(connect(11))
    assert kinds(exit_.push()) == ["CONNECT"]
    assert relay.counters.attachments_replaced == 0


def test_6_4_an_exchange_or_a_link_takes_the_name() -> None:
    for by_link in (False, True):
        relay = Relay()
        _, exit_ = client_and_exit(relay, name="exit")
        successor = Peer(relay, "exits", 9, "exit", is_exit=True)
        assert isinstance(successor.attach(), Attached)
        if by_link:
            assert relay.switch.link_opened(1, "exits", successor.identity, successor.epoch, 1, relay.now)
        else:
            successor.push()
        assert relay.counters.attachments_replaced == 1
        assert exit_.status(exit_.send()).code == StatusCode.UNKNOWN


def test_6_3_an_attachment_is_fresh_until_its_first_exchange() -> None:
    relay = Relay()
    client = Peer(relay)
    told = []
    for generation in (1, 2, 3):
        if generation == 3:
            client.push()
        answer = client.attach(generation=generation)
        assert isinstance(answer, Attached)
        told.append(answer.fresh)
    assert told == [True, True, False]


def test_refusals_of_an_attach_give_the_reason() -> None:
    relay = Relay(attachments_max=1)
    assert Peer(relay).attach(versions=(2, 3)) == Status(StatusCode.MALFORMED, 0, "this relay speaks only version 1")
    Peer(relay).attached()
    full = Peer(relay, seed=2).attach()
    assert isinstance(full, Status)
    assert (full.code, full.text) == (StatusCode.BUSY, "the relay has no room for another attachment")
    assert full.retry_after_ms > 0


def test_a_replaced_endpoint_learns_why() -> None:  # 6.4
    relay = Relay()
    _, old = client_and_exit(relay, name="exit")
    Peer(relay, "exits", 9, "exit", is_exit=True).attached()
    refused = old.attach(generation=2)
    assert isinstance(refused, Status)
    assert (refused.code, refused.retry_after_ms) == (StatusCode.DENIED, 0)
    assert f"a newer endpoint of this user has the name {old.name!r}" in refused.text


def test_a_repeated_attach_restarts_nothing() -> None:  # 6.2
    relay = Relay(trace=True)
    client = Peer(relay).attached()
    client.push()
    first = client.attach()
    assert isinstance(first, Attached)
    assert client.attach() == first
    assert [record.event for record in relay.records].count(TraceEvent.ATTACHED) == 1


def test_the_expiry_of_an_attachment_without_exchanges_counts_from_its_attach() -> None:  # 9.6
    relay = Relay()
    assert isinstance(Peer(relay).attach(), Attached)
    relay.advance(299 * SECOND)
    assert relay.switch.stats().attachments == 1


def test_the_trace_names_the_user_that_attached_and_why_the_attachment_ended() -> None:
    relay = Relay(trace=True)
    Peer(relay).attached()
    Peer(relay, "exits", 4, "exit", is_exit=True).attached()
    Peer(relay, "exits", 5, "exit", is_exit=True).attached()
    relay.advance(301 * SECOND)
    told = [
        (record.event, record.text, record.reason)
        for record in relay.records
        if record.event in (TraceEvent.ATTACHED, TraceEvent.DETACHED)
    ]
    assert told == [
        (TraceEvent.ATTACHED, "ann", ""),
        (TraceEvent.ATTACHED, "exits", ""),
        (TraceEvent.ATTACHED, "exits", ""),
        (TraceEvent.DETACHED, "exits", TraceReason.GONE),
        (TraceEvent.DETACHED, "ann", TraceReason.USER_TIMEOUT),
        (TraceEvent.DETACHED, "exits", TraceReason.USER_TIMEOUT),
    ]


def test_7_11_attached_says_at_least_how_long_the_relay_has_run() -> None:
    ages = []
    for ran_us in (999, 1000, 1999, 2000, 60 * SECOND, 100_000_000 * SECOND):
        relay = Relay(started_us=0)
        relay.now = ran_us
        answer = Peer(relay).attach()
        assert isinstance(answer, Attached)
        ages.append(answer.age)
    assert ages == [0, 1, 1, 2, 16, 37]
    relay.now = 1 << 60
    answer = Peer(relay, seed=2).attach()
    assert isinstance(answer, Attached)
    assert answer.age == 40
