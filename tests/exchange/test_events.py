"""Events are values: equal when their fields are equal, and frozen."""

import pytest

from tunnel.exchange import events


def test_events_are_frozen_values() -> None:
    assert events.BatchDone(1, ok=True) == events.BatchDone(1, ok=True) != events.BatchDone(1, ok=False)
    for name in events.__all__:
        kind = getattr(events, name)
        assert name == "LaneEvent" or kind.__struct_config__.frozen


def test_an_event_cannot_be_changed() -> None:
    event = events.Abandoned(1)
    with pytest.raises(AttributeError):
        event.request_id = 2  # type: ignore[misc]
