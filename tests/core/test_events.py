"""Events are small values."""

import pytest

from tunnel.core.events import Closed, Lost, LostReason


def test_events_are_frozen_values() -> None:
    event = Lost(7, LostReason.RESET, "text")
    assert event == Lost(7, LostReason.RESET, "text")
    assert Closed(7) != Closed(8)
    with pytest.raises(AttributeError):
        event.text = ""  # type: ignore[misc]


def test_reasons_can_be_read_by_a_person() -> None:
    assert all(reason.value and reason.value[0].islower() for reason in LostReason)
