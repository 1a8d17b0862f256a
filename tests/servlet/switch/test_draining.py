"""A relay that drains refuses what would begin with it, tells its attachments so, and serves all else (9.9)."""

from tests.servlet.support import (
    SECOND,
    Peer,
    Relay,
    bound,
    client_and_exit,
    connect,
    data,
    of_kind,
    reason,
)
from tests.servlet.switch.rig import inline_of
from tunnel.wire import (
    Attached,
    Option,
    Options,
    Packet,
    PacketType,
    RejectReason,
    Status,
    StatusCode,
    decode_option,
    encode_option,
)

NOTICE = Packet(PacketType.OPTION, 0, 0, 0, encode_option(Option(0, Options(draining=True))))


def drain(relay: Relay) -> None:
    relay.switch.drain()
    for _ in relay.switch.tell_draining(lambda: relay.now):
        relay.settle()


def test_9_9_each_attachment_is_told_once() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    drain(relay)
    assert [client.push(), exit_.push()] == [[NOTICE], [NOTICE]]
    assert [client.push(), exit_.push()] == [[], []]


def test_9_9_a_held_pull_brings_the_notice_at_once() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    held = client.pull()
    drain(relay)
    assert client.packets(held) == [NOTICE]


def test_9_9_the_inline_exit_is_not_told() -> None:
    relay = Relay()
    exit_ = inline_of(relay)
    drain(relay)
    assert exit_.push() == []


def test_9_9_an_attachment_that_ends_meanwhile_is_left_out() -> None:
    relay = Relay()
    for seed in range(2):
        Peer(relay, seed=seed).attached()
    steps = relay.switch.tell_draining(lambda: relay.now)
    relay.advance(relay.config.attachment_timeout_us + SECOND)
    assert relay.switch.stats().attachments == 0
    assert list(steps) == []


def test_9_9_the_notice_does_not_replace_the_answer_to_an_option() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    drain(relay)
    asked = Packet(PacketType.OPTION, 0, 0, 0, encode_option(Option(1, Options(pull_interval_ms=0))))
    options = [decode_option(packet.payload) for packet in client.push(asked)]
    assert options == [Option(0, Options(draining=True)), Option(1, Options(pull_interval_ms=0))]


def test_9_9_new_attachments_are_refused_and_known_ones_attach_again() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    drain(relay)
    refused = Peer(relay, seed=9).attach()
    assert isinstance(refused, Status)
    assert (refused.code, refused.text) == (StatusCode.BUSY, "the relay is shutting down")
    assert refused.retry_after_ms > 0
    client.push()
    client.generation += 1
    again = client.attach()
    assert isinstance(again, Attached)
    assert not again.fresh
    client.push(data(11, 22, 101))
    assert [packet.sequence for packet in of_kind(exit_.push(), PacketType.DATA)] == [101]


def test_9_9_a_new_endpoint_with_the_name_of_another_does_not_end_it() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    named = Peer(relay, seed=7, name="laptop").attached()
    drain(relay)
    assert isinstance(Peer(relay, seed=8, name="laptop").attach(), Status)
    assert named.push() == [NOTICE]
    assert reason([packet for packet in client.push(connect(12)) if packet != NOTICE]) == RejectReason.SHUTTING_DOWN
    assert exit_.push() == [NOTICE]


def test_two_users_a_mailbox_full_of_one_users_packets_costs_the_other_no_notice() -> None:
    relay = Relay(general_packets_max=4)
    exit_ = Peer(relay, "exits", 2, is_exit=True).attached()
    ann, bob = Peer(relay, "ann", 3).attached(), Peer(relay, "bob", 4).attached()
    ann.push(*(connect(number) for number in range(1, 9)))  # they wait for the exit, whose mailbox they fill
    drain(relay)
    assert NOTICE in bob.push()
    assert NOTICE in ann.push()
    assert NOTICE not in exit_.push()  # there was no room; the exit loses nothing by it
