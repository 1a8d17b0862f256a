"""Points in time as the relay's files write them."""

import pytest

from tunnel_servlet.access.instants import read_instant, show_instant
from tunnel_servlet.web.tokens.files import write_instant


@pytest.mark.parametrize("seconds", [0, 951_782_400, 1_800_000_000, 253_402_300_799])
def test_what_was_written_is_read(seconds: int) -> None:
    assert read_instant(write_instant(seconds)) == seconds
    assert read_instant(write_instant(seconds + 0.9)) == seconds


def test_people_see_the_minute() -> None:
    assert show_instant(write_instant(1_800_000_059)) == "2027-01-15 08:00 UTC"
    assert show_instant("") == ""


@pytest.mark.parametrize("text", ["", "never", "2027-01-15 08:00:00Z", "2027-01-15T08:00:00+0"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time: write it as in 2027-01-31T18:00:00Z, in UTC"):
        read_instant(text)


@pytest.mark.parametrize(
    "text",
    [
        *("2027-00-01T00:00:00Z", "2027-13-01T00:00:00Z", "2027-01-00T00:00:00Z", "2027-02-29T00:00:00Z"),
        *("2027-01-31T24:00:00Z", "2027-01-31T18:60:00Z", "2027-01-31T18:00:60Z"),
    ],
)
def test_a_token_does_not_end_at_a_time_that_the_calendar_does_not_have(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time: the calendar has no such day or hour"):
        read_instant(text)
