"""The numbers of links and the intervals between pulls that are allowed."""

import math

import pytest

from tunnel.ground.carrier_limits import check_links, pull_interval_us


@pytest.mark.parametrize("links", [1, 4])
def test_an_attachment_may_have_one_to_four_links(links: int) -> None:
    check_links(links)


@pytest.mark.parametrize("links", [-1, 0, 5])
def test_other_numbers_of_links_are_refused(links: int) -> None:
    with pytest.raises(ValueError, match=f"^an attachment has from 1 to 4 links, not {links}$"):
        check_links(links)


@pytest.mark.parametrize(
    ("seconds", "expected_us"),
    [(0, 0), (0.001, 1000), (1.001, 1_001_000), (0.0014, 1000), (60, 60_000_000), (4294967.295, 4294967295000)],
)
def test_an_interval_is_rounded_to_milliseconds(seconds: float, expected_us: int) -> None:
    assert pull_interval_us(seconds) == expected_us


@pytest.mark.parametrize("seconds", [-1, 0.0009, 4294967.2951, math.inf, math.nan])
def test_an_interval_that_no_packet_can_carry_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"^the pull interval must be 0, or from 0\.001 to 4294967 seconds, not "):
        pull_interval_us(seconds)
