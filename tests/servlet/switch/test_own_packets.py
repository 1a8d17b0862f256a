"""The relay's own packets, and what keeping one costs."""

import pytest

from tests.servlet.support import data, read_dropped, read_edge, read_rejected
from tunnel.wire import (
    Dropped,
    Edge,
    Frame,
    ListenState,
    ListenStatus,
    Option,
    Options,
    Packet,
    Rejected,
    decode_listen_state,
    decode_option,
    encode_packets,
    frame_of,
    parse_frames,
    parse_packets,
)
from tunnel_servlet.switch.budgets import Budget
from tunnel_servlet.switch.config import FRAME_OVERHEAD_BYTES
from tunnel_servlet.switch.own_packets import (
    charge,
    dropped_frame,
    edge_frame,
    keep,
    listen_state_frame,
    option_frame,
    rejected_frame,
)


def packet(frame: Frame) -> Packet:
    packets, discarded = parse_packets(frame.data)
    assert discarded is None
    return packets[0]


def test_2_9_dropped_comes_from_nobody_and_goes_to_the_id_of_the_sender() -> None:
    found = packet(dropped_frame(7, 1, 5, 6, 100))
    assert (found.source, found.destination) == (0, 7)
    assert read_dropped(found) == Dropped(1, 5, 6, 100)


def test_2_10_edge_likewise() -> None:
    found = packet(edge_frame(7, 5, 100))
    assert (found.source, found.destination) == (0, 7)
    assert read_edge(found) == Edge(5, 100)


def test_2_3_rejected_has_the_initiators_id_as_its_source() -> None:
    found = packet(rejected_frame(7, bytes(16), 8, "busy"))
    assert (found.source, found.destination) == (7, 0)
    assert read_rejected(found) == Rejected(bytes(16), 8, "busy")


def test_2_7_and_2_8_speak_of_the_attachment() -> None:
    answered = Option(3, Options(pull_interval_ms=50))
    refused = ListenState(3, ListenStatus.REFUSED, 0, "reports")
    assert decode_option(option_frame(answered).payload) == answered
    assert decode_listen_state(listen_state_frame(refused).payload) == refused
    for frame in (option_frame(answered), listen_state_frame(refused)):
        assert (frame.source, frame.destination) == (0, 0)


def test_9_2_keeping_a_packet_is_charged_except_for_notices() -> None:
    assert charge(frame_of(data(1, 2, 3, bytes(100)))) == 124 + FRAME_OVERHEAD_BYTES
    assert charge(dropped_frame(1, 1)) == charge(edge_frame(1, 1, 1)) == 0


def parsed(*sizes: int) -> list[Frame]:
    body = b"".join(encode_packets([data(1, 2, number, bytes(size)) for number, size in enumerate(sizes)]))
    return parse_frames(body)[0]


def test_9_2_a_small_packet_does_not_keep_a_large_body_alive() -> None:
    budget = Budget(1000, 1000)
    small, large = parsed(10, 1000)
    for frame in (small, large):
        before = bytes(frame.data)
        keep(frame, budget)
        assert frame.data == before
    assert isinstance(small.data, bytes)
    assert isinstance(large.data, memoryview)


def test_9_2_under_pressure_a_packet_keeps_at_most_its_own_size_again() -> None:
    budget = Budget(1000, 1000)
    budget.hold(200)
    eighths = parsed(*[100] * 8)
    keep(eighths[0], budget)
    assert isinstance(eighths[0].data, bytes)
    (alone,) = parsed(100)
    keep(alone, budget)
    assert isinstance(alone.data, memoryview)


def test_9_2_what_is_no_slice_is_left_alone() -> None:
    frame = frame_of(data(1, 2, 3))
    before = frame.data
    keep(frame, Budget(1, 1))
    assert frame.data is before


def test_what_the_relay_says_has_no_number() -> None:  # 1.6
    said = (
        dropped_frame(1, 2),
        edge_frame(1, 2, 3),
        rejected_frame(1, bytes(16), 2, ""),
        option_frame(Option(1, Options())),
        listen_state_frame(ListenState(1, ListenStatus.UP, 1, "s")),
    )
    assert {frame.sequence for frame in said} == {0}


@pytest.mark.parametrize(("held", "copied"), [(124, False), (125, True)])
def test_9_2_an_eighth_of_the_mailbox_is_pressure(held: int, copied: bool) -> None:
    budget = Budget(1000, 1000)
    budget.hold(held)
    eighths = parsed(*[100] * 8)
    keep(eighths[0], budget)
    assert isinstance(eighths[0].data, bytes) is copied


def test_9_2_what_is_exactly_half_of_its_body_keeps_it() -> None:
    budget = Budget(1000, 1000)
    budget.hold(500)
    halves = parsed(100, 100)
    keep(halves[0], budget)
    assert isinstance(halves[0].data, memoryview)
