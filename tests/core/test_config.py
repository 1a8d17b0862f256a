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
        ({"budget_bytes": -1}, "must not be negative"),
        ({"keepalive_us": -1}, "must not be negative"),
        ({"send_buffer_bytes_max": 0}, "must be positive"),
        ({"connections_max": 0}, "must be positive"),
        ({"out_of_order_packets_max": 0}, "must be positive"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EndpointConfig(**fields)
