"""A configuration is checked when it is made."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from tunnel.core.config import EndpointConfig


def test_the_defaults_are_valid_and_constant() -> None:
    config = EndpointConfig()
    with pytest.raises(FrozenInstanceError):
        config.exit = True  # type: ignore[misc]
    assert EndpointConfig(keepalive_us=0, budget_bytes=0).keepalive_us == 0


def test_the_bounds_themselves_are_allowed() -> None:
    EndpointConfig(window_bytes_min=1, window_bytes_start=1, window_bytes_max=2**32 - 1)
    EndpointConfig(packet_bytes_max=2**24, user_timeout_us=1_000_000)
    EndpointConfig(packet_bytes_max=1048, send_buffer_bytes_max=1, connections_max=1, out_of_order_packets_max=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window_bytes_min": 0}, "windows must satisfy"),
        ({"window_bytes_min": 2**20}, "windows must satisfy"),
        ({"window_bytes_start": 2**25}, "windows must satisfy"),
        ({"window_bytes_max": 2**32}, "windows must satisfy"),
        ({"packet_bytes_max": 1047}, "packet_bytes_max"),
        ({"packet_bytes_max": 2**24 + 1}, "packet_bytes_max"),
        ({"user_timeout_us": 999_999}, "user_timeout_us"),
        ({"budget_bytes": -1}, "budget_bytes and keepalive_us must not be negative"),
        ({"keepalive_us": -1}, "budget_bytes and keepalive_us must not be negative"),
        (
            {"send_buffer_bytes_max": 0},
            "send_buffer_bytes_max, connections_max and out_of_order_packets_max must be positive",
        ),
        (
            {"connections_max": 0},
            "send_buffer_bytes_max, connections_max and out_of_order_packets_max must be positive",
        ),
        (
            {"out_of_order_packets_max": 0},
            "send_buffer_bytes_max, connections_max and out_of_order_packets_max must be positive",
        ),
    ],
)
def test_an_impossible_configuration_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        EndpointConfig(**fields)
