"""Configurations that cannot work are refused where they are made."""

from typing import Any

import pytest

from tunnel.exchange.config import KIB, MIB, LaneConfig


def test_the_defaults_are_2_to_8_lanes_bodies_of_16_kib_to_1_mib_and_holds_of_2_to_55_s() -> None:
    config = LaneConfig()
    assert (config.lanes_start, config.lanes_max) == (2, 8)
    assert (config.body_bytes_min, config.body_bytes_start, config.body_bytes_max) == (16 * KIB, 64 * KIB, MIB)
    assert (config.hold_us, config.hold_us_start, config.hold_us_min) == (55_000_000, 15_000_000, 2_000_000)


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
        {"hold_us_start": 0},
        {"pull_interval_us": -1},
        {"pull_interval_us": 1 << 43},
        {"packet_bytes_max": 23},
        {"packet_bytes_max": 1 << 25},
    ],
)
def test_an_impossible_configuration_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        LaneConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"lanes_start": 0}, "lanes must satisfy 1 <= lanes_start <= lanes_max <= "),
        ({"body_bytes_min": 1}, "bodies must satisfy 116 <= body_bytes_min <= body_bytes_start <= body_bytes_max, "),
        (
            {"answer_bytes_max": KIB},
            "answer_bytes_max must be at least body_bytes_min, and both largest bodies below",
        ),
        ({"hold_us": 1}, "holds must satisfy 0 < hold_us_min <= hold_us <= 4294967295000, but they are 2000000 and 1$"),
        ({"hold_us_start": 0}, "hold_us_start must be at least 1, not 0$"),
        ({"pull_interval_us": -1}, "pull_interval_us must be 0 to 4294967295000, not -1$"),
    ],
)
def test_the_error_names_what_is_wrong(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        LaneConfig(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"lanes_start": 1, "lanes_max": 1},
        {"lanes_max": (1 << 16) - 1},
        {"body_bytes_min": 116},
        {"hold_us_min": 1},
        {"hold_us_start": 1},
        {"hold_us_start": 1 << 43},
        {"hold_us_min": 2_000_000, "hold_us": 2_000_000},
        {"hold_us": (2**32 - 1) * 1000},
        {"pull_interval_us": (2**32 - 1) * 1000},
        {"packet_bytes_max": 24},
    ],
)
def test_the_bounds_themselves_work(fields: dict[str, Any]) -> None:
    LaneConfig(**fields)
