"""Settings that contradict each other are refused when they are made."""

import pytest

from tunnel_servlet.switch.config import SwitchConfig


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lanes_max": 0}, "lanes_max must be at least 1"),
        ({"packet_bytes_max": 1 << 30}, "PROTOCOL 1.3"),
        ({"pull_interval_us_min": 5, "pull_interval_us_max": 4}, "smallest pull interval"),
        ({"pull_interval_us_min": -1}, "smallest pull interval"),
        ({"route_bytes_max": 1000}, "less than is reserved"),
        ({"mailbox_bytes_max": 16 << 10}, "even one route"),
        ({"process_bytes_max": 32 << 10}, "even one route"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SwitchConfig(**settings)  # type: ignore[arg-type]


def test_the_defaults_fit_together() -> None:
    config = SwitchConfig()
    assert config.pool_bytes(config.exit_mailbox_bytes_max) >= config.routes_max * config.reserved_bytes
    assert config.pool_bytes(config.process_bytes_max) >= 2 * config.routes_max * config.reserved_bytes
    assert config.pool_bytes(config.mailbox_bytes_max) >= config.routes_per_attachment_max * config.reserved_bytes
    assert config.pool_bytes(config.user_bytes_max) >= config.routes_per_user_max * config.reserved_bytes


@pytest.mark.parametrize(
    "settings",
    [
        {"hold_us_max": 0, "pull_interval_us_max": 0, "replaced_max": 0, "settle_us": 0},
        {"packet_bytes_max": 1 << 24},
        {"pull_interval_us_min": 5, "pull_interval_us_max": 5},
        {"mailbox_bytes_max": 21_845},  # three quarters of it are the reservation of a route
        {"process_bytes_max": 43_690},
    ],
)
def test_what_just_fits_is_taken(settings: dict[str, int]) -> None:
    SwitchConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"pull_interval_us_min": -1}, "the smallest pull interval is above the largest, or negative"),
        ({"route_bytes_max": 1000}, "a route may use less than is reserved for it"),
        ({"exit_mailbox_bytes_max": 21_844}, "no mailbox has room for even one route"),
        ({"user_bytes_max": 21_844}, "no mailbox has room for even one route"),
        ({"process_bytes_max": 43_689}, "no mailbox has room for even one route"),
    ],
)
def test_what_is_wrong_is_said(settings: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        SwitchConfig(**settings)  # type: ignore[arg-type]
