"""The endpoint's half of the lanes as a whole, against the relay's half: attaching, pushing, pulling and repeating."""

from itertools import pairwise
from random import Random

import pytest

from tests.exchange.loop import SECRET, Fate, Loop, Relay, abandoned, attached_times, data_frame, data_packet
from tests.exchange.rig import KIB, MS, SECOND, STEADY, attached_loop, encoded, pushes, received, status
from tunnel.exchange import (
    Abandoned,
    AttachedEvent,
    AttachRefused,
    BatchDone,
    Detached,
    LaneConfig,
    Lanes,
    LanesChanged,
    PacketsReceived,
    Recovered,
    Request,
    Troubled,
)
from tunnel.wire import EXCHANGE_BYTES, Answer, Attached, StatusCode, attachment_id


def push_times(loop: Loop) -> list[int]:
    return [time_us for time_us, request in loop.requests if request.lane >= 0 and not request.pull]


# attaching


def test_the_first_request_is_attach() -> None:
    loop = Loop(STEADY)
    lanes = loop.lanes
    assert lanes.next_timeout() == 0
    loop.run(10 * MS)
    assert [(request.lane, request.number, request.pull) for _, request in loop.requests] == [(-1, 1, False)]
    assert (lanes.is_attached, lanes.registration.epoch, lanes.room(0)) == (False, 0, 0)
    with pytest.raises(ValueError, match="no lane is free"):
        lanes.push([data_packet(1)], 1, 0)
    loop.run(25 * MS)
    assert (lanes.is_attached, lanes.registration.epoch, lanes.registration.generation) == (True, loop.relay.epoch, 1)
    assert lanes.registration.id == attachment_id(SECRET)
    assert [event for _, event in loop.events] == [
        AttachedEvent(loop.relay.epoch, True, 2**20, 65536, 0),
        LanesChanged(2, 0),
    ]
    assert (lanes.lane_count, lanes.pull_interval_us, lanes.path.round_trip.srtt_us) == (2, 0, 20 * MS)
    assert (lanes.path.up.limit_bytes, lanes.path.down.limit_bytes) == (64 * KIB, 64 * KIB)
    assert lanes.path.hold.hold_us == 15 * SECOND
    assert lanes.room(0) == 64 * KIB - EXCHANGE_BYTES


def test_attach_is_repeated_like_any_other_request_and_answered_once() -> None:
    loop = Loop(STEADY, lambda request, now: Fate(request_lost=now < 3 * SECOND))
    loop.run(5 * SECOND)
    times = [time_us for time_us, request in loop.requests if request.lane < 0]
    assert times[1] == SECOND
    assert all(750 * MS <= later - sooner <= SECOND for sooner, later in pairwise(times[1:]))
    assert len(attached_times(loop)) == 1
    assert attached_times(loop)[0] <= 4 * SECOND + 20 * MS


@pytest.mark.parametrize("code", [StatusCode.UNKNOWN, StatusCode.STALE])
def test_an_endpoint_attaches_again_to_a_relay_that_forgot_it(code: StatusCode) -> None:
    loop = attached_loop(packets=1)
    loop.relay.restart()
    if code is StatusCode.STALE:
        loop.fate = pushes(Fate(status=409, body=status(code)))
    loop.run(2 * SECOND)
    kinds = [type(event) for _, event in loop.events if not isinstance(event, Abandoned)]
    assert kinds[2:6] == [BatchDone, Detached, AttachedEvent, LanesChanged]
    assert loop.told(BatchDone) == [BatchDone(1, ok=False)]
    assert loop.lanes.registration.generation == (2 if code is StatusCode.UNKNOWN else 3)
    # The first ATTACH left at 0; the next one may not leave within three quarters of a second.
    assert 750 * MS <= attached_times(loop)[1] - 20 * MS <= SECOND
    loop.queue.append(data_packet(9))
    loop.run(loop.now + 100 * MS)
    assert received(loop) == [9]


def test_a_higher_generation_than_ours_is_outbid() -> None:
    relay = Relay(Random(2))
    relay.attachments[attachment_id(SECRET)] = 5
    loop = Loop(STEADY, relay=relay)
    loop.run(10 * SECOND)
    assert loop.lanes.registration.generation == 7
    assert [event for _, event in loop.events if not isinstance(event, AttachedEvent | LanesChanged)] == []


def test_attaching_is_refused_when_no_generation_is_left() -> None:
    relay = Relay(Random(2))
    relay.attachments[attachment_id(SECRET)] = 2**32
    loop = Loop(STEADY, relay=relay)
    loop.run(60 * SECOND)
    (refused,) = loop.told(AttachRefused)
    assert refused == AttachRefused(0, 0, "no generation is left: attach with another secret")


def test_an_attach_answered_with_unknown_is_repeated() -> None:
    loop = Loop(STEADY, lambda request, now: Fate(status=404 if now == 0 else 0, body=status(StatusCode.UNKNOWN)))
    loop.run(SECOND)
    assert loop.lanes.registration.generation == 1
    assert loop.lanes.is_attached


@pytest.mark.parametrize(
    "body",
    [
        encoded(Answer(0, 1, 1)),
        encoded(Attached(bytes(16), 1, 1, True, 1, 1, 1, 0, 1, 1)),
        encoded(Attached(attachment_id(SECRET), 1, 9, True, 1, 1, 1, 0, 1, 1)),
    ],
)
def test_an_answer_that_does_not_match_the_attach_is_a_failure(body: bytes) -> None:
    loop = Loop(STEADY, lambda request, now: Fate(status=200 if now == 0 else 0, body=body))
    loop.run(SECOND)
    assert [time_us for time_us, request in loop.requests if request.lane < 0] == [0, 20 * MS]
    assert loop.lanes.registration.epoch == loop.relay.epoch


def test_a_version_that_we_did_not_offer_is_fatal() -> None:
    body = encoded(Attached(attachment_id(SECRET), 1, 1, True, 1, 1, 1, 0, 1, 1, version=2))
    loop = Loop(STEADY, lambda request, now: Fate(status=200, body=body))
    loop.run(SECOND)
    text = "the relay chose protocol version 2, but this endpoint speaks only 1: update the older side"
    assert loop.told(AttachRefused) == [AttachRefused(0, 0, text)]
    assert len(loop.requests) == 1


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (403, status(StatusCode.DENIED)),
        (401, status(StatusCode.NOT_AUTHORISED)),
        (400, status(StatusCode.MALFORMED)),
    ],
)
def test_a_fatal_response_ends_everything(code: int, body: bytes) -> None:
    loop = attached_loop(packets=1)
    loop.fate = pushes(Fate(status=code, body=body))
    loop.run(60 * SECOND)
    kinds = [type(event) for _, event in loop.events if not isinstance(event, Abandoned)]
    assert kinds[2:] == [BatchDone, Detached, AttachRefused]
    (refused,) = loop.told(AttachRefused)
    assert isinstance(refused, AttachRefused)
    assert refused.status == code
    assert loop.told(BatchDone) == [BatchDone(1, ok=False)]
    assert (loop.lanes.is_attached, loop.lanes.next_timeout(), loop.lanes.poll_request(loop.now)) == (False, None, None)
    assert loop.lanes.room(loop.now) == 0


# pushing


def test_a_push_is_received_once_and_receipted_before_the_packets_of_its_answer() -> None:
    loop = attached_loop(packets=3)
    loop.lanes.set_pulling(False, loop.now)
    loop.relay.outbox.frames.append(data_frame(50))
    loop.run(100 * MS)
    assert received(loop) == [1, 2, 3]
    assert loop.told(BatchDone) == [BatchDone(1, ok=True)]
    assert [packet.sequence for event in loop.told(PacketsReceived) for packet in event.packets] == [50]  # type: ignore[union-attr]
    kinds = [type(event) for _, event in loop.events]
    assert kinds.index(BatchDone) < kinds.index(PacketsReceived)


def test_a_batch_must_fit_and_must_not_be_empty() -> None:
    lanes = attached_loop().lanes
    with pytest.raises(ValueError, match="at least one packet"):
        lanes.push([], 1, 0)
    with pytest.raises(ValueError, match="does not fit the room"):
        lanes.push([data_packet(1, 40_000)] * 2, 1, 0)


def test_the_last_idle_lane_is_left_to_the_pull() -> None:
    loop = attached_loop()
    lanes = loop.lanes
    assert loop.in_flight(pull=True) == 1
    lanes.push([data_packet(1)], 1, loop.now)
    assert lanes.room(loop.now) == 0
    for flight in list(lanes._set.flights()):
        if flight.pull:
            lanes._set.lanes[flight.lane].flight = None
    assert lanes.room(loop.now) == 0
    lanes.set_pulling(False, loop.now)
    assert lanes.room(loop.now) > 0


def test_a_packet_larger_than_the_body_leaves_in_pieces() -> None:
    loop = attached_loop(LaneConfig(adapt_lanes=False, body_bytes_max=64 * KIB))
    loop.queue.append(data_packet(1, 150_000))
    loop.queue.append(data_packet(2))
    loop.run(200 * MS)
    assert received(loop) == [1, 2]
    assert loop.ok() == [1, 2]
    numbers = [(request.lane, request.number) for _, request in loop.requests if request.lane >= 0 and not request.pull]
    assert len(numbers) == 4
    assert len({lane for lane, _ in numbers[:3]}) == 1


# repeats


def test_a_reported_failure_is_repeated_at_once_on_a_new_connection() -> None:
    loop = attached_loop(packets=1)
    loop.fate = pushes(Fate(request_lost=True, reported=True))
    start_us = loop.now
    loop.run(SECOND)
    assert push_times(loop) == [start_us, start_us + 20 * MS]
    assert [request.repeat for _, request in loop.requests if request.lane >= 0 and not request.pull] == [0, 1]
    assert received(loop) == [1]
    assert loop.ok() == [1]


def test_silence_is_repeated_at_the_deadline_and_then_each_second() -> None:
    loop = attached_loop(packets=1)
    loop.fate = pushes(*[Fate(request_lost=True)] * 4)
    start_us = loop.now
    loop.run(10 * SECOND)
    times = push_times(loop)
    assert times[1] == start_us + 500 * MS
    assert [750 * MS <= later - sooner <= SECOND for sooner, later in pairwise(times[1:])] == [True] * 3
    assert received(loop) == [1]
    # The oldest and the newest attempts stay open: new ones replace those between. The answer abandons the others.
    assert len(abandoned(loop)) == 4 + 1  # 4 pushes, and the doubted pull that was held from before


def test_a_push_whose_answer_is_lost_is_applied_once() -> None:
    loop = attached_loop(packets=1)
    loop.fate = pushes(Fate(response_lost=True), Fate(response_lost=True, reported=True))
    loop.run(3 * SECOND)
    assert received(loop) == [1]
    assert loop.ok() == [1]


def test_the_late_answer_of_an_older_attempt_is_taken_and_the_newer_abandoned() -> None:
    loop = attached_loop(packets=1)
    loop.fate = pushes(Fate(delay_us=600 * MS), Fate(delay_us=600 * MS))
    loop.run(3 * SECOND)
    (_, first), (_, second) = [item for item in loop.requests if item[1].lane >= 0 and not item[1].pull]
    assert abandoned(loop) == [second.id]
    assert loop.ok() == [1]
    before = len(loop.events)
    loop.lanes.on_answered(second.id, 200, b"", 0, loop.now)
    loop.lanes.on_failed(first.id, loop.now)
    assert len(loop.events) == before
    assert loop.lanes.poll_event() is None


def test_evidence_from_another_lane_repeats_a_push_before_its_deadline() -> None:
    loop = attached_loop(LaneConfig(adapt_lanes=False, lanes_start=3), packets=1)
    loop.fate = pushes(Fate(response_lost=True))
    start_us = loop.now
    loop.run(start_us + 30 * MS)
    loop.queue.append(data_packet(2))
    loop.run(SECOND)
    # The second push is answered after 20 ms: the grace of 50 ms and a quarter of the round trip begins.
    assert push_times(loop) == [start_us, start_us + 30 * MS, start_us + 50 * MS + 55 * MS]


def test_pulls_from_before_a_silence_are_repeated_after_it() -> None:
    loop = attached_loop(packets=1)
    loop.run(loop.now + 3500 * MS)  # the hold has grown to 4 s
    sent_us = max(time_us for time_us, request in loop.requests if request.pull)
    loop.fate = pushes(Fate(request_lost=True))
    loop.queue.append(data_packet(2))
    loop.run(loop.now + SECOND)
    times = [time_us for time_us, request in loop.requests if request.pull and time_us > sent_us]
    assert times[0] == loop.now - SECOND + 500 * MS + 20 * MS + 55 * MS


def test_retry_after_is_obeyed() -> None:
    loop = attached_loop(packets=1)
    loop.fate = pushes(
        Fate(status=429, retry_after_us=3 * SECOND), Fate(status=503, body=status(StatusCode.BUSY, 2000))
    )
    start_us = loop.now
    loop.run(10 * SECOND)
    first, second, third = push_times(loop)
    assert 3 * SECOND + 20 * MS <= second - first < 3_100 * MS  # perhaps after a pull that asks whether requests pass
    assert third - second == 2 * SECOND + 20 * MS
    assert first == start_us


def test_trouble_is_reported_when_it_has_lasted_and_so_is_its_end() -> None:
    loop = attached_loop(packets=1)
    page = Fate(status=502, body=b"<h1>Bad gateway</h1>")
    loop.fate = lambda request, now: page if now < 8 * SECOND else Fate()
    loop.run(20 * SECOND)
    told = [event for _, event in loop.events if isinstance(event, Troubled | Recovered)]
    # Trouble is reported twice if the answer to the held pull comes in between.
    assert [type(event) for event in told] in ([Troubled, Recovered], [Troubled, Recovered] * 2)
    texts = {event.last for event in told if isinstance(event, Troubled)}
    assert texts == {"HTTP 502, but not from a relay (a proxy cannot reach the relay): Bad gateway"}
    assert received(loop) == [1]


# 413


def test_413_gives_the_batch_up_and_halves_the_body() -> None:
    loop = attached_loop()
    loop.fate = pushes(Fate(status=413))
    loop.queue.append(data_packet(1, 60_000))
    loop.run(SECOND)
    assert loop.told(BatchDone) == [BatchDone(1, ok=False)]
    assert loop.lanes.path.up.limit_bytes == (60_000 + 24 + EXCHANGE_BYTES) // 2
    loop.queue.append(data_packet(1, 20_000))
    loop.run(2 * SECOND)
    assert received(loop) == [1]
    numbers = [request.number for _, request in loop.requests if request.lane >= 0 and not request.pull]
    assert numbers == [1, 2]


@pytest.mark.parametrize("pull", [True, False])
def test_413_of_a_small_body_is_a_failure_like_others(pull: bool) -> None:
    loop = attached_loop(packets=1)
    left = [Fate(status=413)]
    loop.fate = lambda request, now: left.pop() if left and request.pull == pull else Fate()
    loop.run(3 * SECOND)
    assert loop.ok() == [1]
    assert loop.lanes.path.up.limit_bytes == 64 * KIB
    assert max(request.repeat for _, request in loop.requests) == 1 + pull


# the end of a generation


def test_used_up_numbers_begin_a_new_generation() -> None:
    loop = attached_loop(packets=1)
    for lane in loop.lanes._set.lanes:
        if lane.flight is None:
            lane.number = 2**32 - 2**16 - 1
    loop.run(3 * SECOND)
    assert loop.lanes.registration.generation == 2
    assert loop.ok() == [1]
    loop.queue.append(data_packet(2))
    loop.run(4 * SECOND)
    assert received(loop) == [1, 2]


def test_attach_again_attaches_with_the_next_generation() -> None:
    loop = Loop(STEADY)
    assert isinstance(Lanes(STEADY, SECRET, Random(1)).poll_request(0), Request)
    loop.run(30 * MS)
    loop.lanes._exchanges.attach_again()
    assert not loop.lanes.is_attached
    loop.run(2 * SECOND)
    assert (loop.lanes.is_attached, loop.lanes.registration.generation) == (True, 2)


def test_no_request_waits_for_a_queue_that_was_last_seen_a_minute_ago() -> None:
    """7.8: the answer that ends a silence is no sample, so that the times from before the silence remain."""
    loop = attached_loop()
    path, ends_us = loop.lanes.path, 70 * SECOND
    path.round_trip.note_wait(20 * SECOND, loop.now)
    loop.fate = lambda request, now: Fate(request_lost=now < ends_us or not request.pull)
    loop.run(60 * SECOND)
    path.on_link_silent()
    while not any(request.pull and time_us >= ends_us for time_us, request in loop.requests):
        loop.run(loop.now + MS)
    loop.queue.append(data_packet(1))
    heard = path.known_us
    loop.run(loop.now + MS)
    loop.relay.give([data_frame(2)])
    while path.known_us == heard:
        loop.run(loop.now + MS)
    assert path.round_trip.queued_us == 30 * SECOND
    (push,) = [lane.flight for lane in loop.lanes._set.lanes if lane.flight is not None and not lane.flight.pull]
    assert push.sent == 1
    assert push.next_us < loop.now + 20 * SECOND
