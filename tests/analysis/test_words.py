"""Numbers in a form for people: the unit that fits, and a dash for what is unknown."""

import time

import pytest

from tunnel.analysis.words import bits, count, duration, percent, size, wall_time


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1234567.2, "1,234,567"), (0.6, "1"), (0, "0"), (None, "–")],
)
def test_counts_have_separators(value: float | None, expected: str) -> None:
    assert count(value) == expected


@pytest.mark.parametrize(
    ("us", "expected"),
    [
        (0, "0 µs"),
        (999, "999 µs"),
        (1_000, "1 ms"),
        (-1_500, "-1.5 ms"),
        (999_000, "999 ms"),
        (1_000_000, "1 s"),
        (2_500_000, "2.5 s"),
        (119_000_000, "119 s"),
        (120_000_000, "2 min"),
        (7_140_000_000, "119 min"),
        (7_200_000_000, "2 h"),
        (10_800_000_000, "3 h"),
        (None, "–"),
    ],
)
def test_times_have_the_unit_that_fits(us: float | None, expected: str) -> None:
    assert duration(us) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (12.34, "12 B"),
        (1_000, "1 KB"),
        (-1_500, "-1.5 KB"),
        (999_000, "999 KB"),
        (2_500_000, "2.5 MB"),
        (1_000_000_000, "1 GB"),
        (1e12, "1 TB"),
        (5e15, "5e+03 TB"),
        (None, "–"),
    ],
)
def test_sizes_have_the_unit_that_fits(value: float | None, expected: str) -> None:
    assert size(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (124, "992 bit/s"),
        (125, "1 kbit/s"),
        (124_000, "992 kbit/s"),
        (125_000, "1 Mbit/s"),
        (125_000_000, "1 Gbit/s"),
        (1e9, "8 Gbit/s"),
        (None, "–"),
    ],
)
def test_rates_are_in_bits(value: float | None, expected: str) -> None:
    assert bits(value) == expected


@pytest.mark.parametrize(
    ("share", "digits", "expected"),
    [
        (0.1234, 1, "12.3 %"),
        (1.0, 0, "100 %"),
        (0.0, 1, "0.0 %"),
        (-0.1, 1, "-10.0 %"),
        (0.000499, 1, "< 0.1 %"),  # it is not zero, and must not look so
        (0.0005, 1, "0.1 %"),
        (0.00049, 2, "0.05 %"),
        (0.00004, 2, "< 0.01 %"),
        (0.004, 0, "< 1 %"),
        (None, 1, "–"),
    ],
)
def test_a_share_is_a_percentage_and_never_rounded_to_nothing(share: float | None, digits: int, expected: str) -> None:
    assert percent(share, digits) == expected


def test_a_share_has_one_digit_unless_another_number_is_wanted() -> None:
    assert percent(0.5) == "50.0 %"


def test_the_wall_clock_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XXX-5:45")
    time.tzset()
    try:
        assert wall_time(0) == "1970-01-01 00:00:00 UTC"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert wall_time(1_700_000_000_999_999) == "2023-11-14 22:13:20 UTC"
