"""The road of streamed answers as a state machine (PROTOCOL 7.20)."""

import pytest

from tunnel.exchange.roads.stream_road import StreamEvent, StreamRoad, StreamState

E, S = StreamEvent, StreamState
SECOND = 1_000_000


def road_after(*events: StreamEvent, now: int = 100 * SECOND) -> StreamRoad:
    road = StreamRoad(2 * SECOND)
    road.on_attached(1, 0)
    for event in events:
        road.on_event(event, now)
    return road


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ((), S.UNKNOWN),
        ((E.TRIED,), S.TRYING),
        ((E.TRIED, E.PASSED), S.READY),
        ((E.TRIED, E.FAILED), S.RESTING),
        ((E.TRIED, E.PASSED, E.FAILED), S.RESTING),
        ((E.TRIED, E.PASSED, E.CONFIRMED), S.USED),
        ((E.TRIED, E.PASSED, E.CONFIRMED, E.TRIED, E.PASSED), S.USED),
        ((E.TRIED, E.PASSED, E.CONFIRMED, E.FAILED), S.DOUBTED),
        ((E.TRIED, E.PASSED, E.CONFIRMED, E.FAILED, E.TRIED, E.PASSED, E.CONFIRMED), S.USED),
        ((E.TRIED, E.PASSED, E.CONFIRMED, E.FAILED, E.FAILED), S.RESTING),
        ((E.TRIED, E.FAILED, E.TRIED), S.TRYING),
    ],
)
def test_each_event_leads_to_the_state_of_the_table(events: tuple[StreamEvent, ...], state: StreamState) -> None:
    assert road_after(*events).state is state


def test_a_road_is_tried_at_an_age_or_after_many_bytes() -> None:
    road = road_after()
    assert road.due_us() == 1 + 2 * SECOND
    road.on_moved(256 * 1024)
    assert road.due_us() == 0


def test_rests_double_up_to_ten_minutes() -> None:
    road, now, rests = road_after(), 100 * SECOND, []
    for _ in range(12):
        road.on_event(E.TRIED, now)
        road.on_event(E.FAILED, now)
        rests.append((road.due_us() - now) // SECOND)
        now = road.due_us()
    assert rests == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]


def test_the_third_failure_in_use_within_a_minute_makes_the_road_rest() -> None:
    road = road_after(E.TRIED, E.PASSED, E.CONFIRMED)
    for _ in range(2):
        road.on_event(E.FAILED, 101 * SECOND)
        assert road.state is S.DOUBTED
        road.on_event(E.CONFIRMED, 101 * SECOND)
    road.on_event(E.FAILED, 102 * SECOND)
    assert road.state is S.RESTING
    assert road.due_us() == 103 * SECOND


def test_a_minute_of_use_forgets_earlier_failures() -> None:
    road, now = road_after(E.TRIED, E.FAILED, E.TRIED, E.FAILED, E.TRIED, E.PASSED, E.CONFIRMED), 100 * SECOND
    for _ in range(5):
        now += 60 * SECOND
        road.on_event(E.FAILED, now)
        assert road.state is S.DOUBTED
        road.on_event(E.CONFIRMED, now)
    road.on_event(E.FAILED, now)
    road.on_event(E.FAILED, now)
    assert road.due_us() == now + SECOND


def test_a_road_in_use_is_tried_again_after_a_random_time_when_the_relay_returns() -> None:
    road = road_after(E.TRIED, E.PASSED, E.CONFIRMED)
    road.on_attached(200 * SECOND, 700_000)
    assert road.due_us() == 200 * SECOND + 700_000
