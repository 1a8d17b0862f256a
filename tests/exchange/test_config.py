"""Configurations that cannot work are refused where they are made."""

from typing import Any

import pytest

from tunnel.exchange.config import KIB, MIB, LaneConfig


def test_the_defaults_are_those_of_the_design() -> None:
    config = LaneConfig()
    assert (config.lanes_start, config.lanes_max) == (2, 8)
    assert (config.body_bytes_min, config.body_bytes_start, config.body_bytes_max) == (16 * KIB, 64 * KIB, MIB)
    assert (config.hold_us, config.hold_us_min) == (15_000_000, 2_000_000)


@pytest.mark.parametrize(
    "fields",
    [
        {"lanes_start": 0},
        {"lanes_start": 9},
        {"lanes_max": 1 << 16},
        {"body_bytes_min": 115},
        {"body_bytes_start": KIB},
        {"body_bytes_max": KIB},
        {"answer_bytes_max": KIB},
        {"answer_bytes_max": 1 << 32},
        {"body_bytes_max": 1 << 32},
        {"hold_us_min": 0},
        {"hold_us": 1},
        {"hold_us": 1 << 43},
        {"pull_interval_us": -1},
        {"pull_interval_us": 1 << 43},
        {"packet_bytes_max": 23},
        {"packet_bytes_max": 1 << 25},
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        LaneConfig(**fields)
