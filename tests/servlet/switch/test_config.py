"""Settings that contradict each other are refused when the configuration is created."""

import pytest

from tunnel_servlet.switch.config import SwitchConfig

_NO_ROOM = (
    "no mailbox has room for even one route: raise mailbox_bytes_max, exit_mailbox_bytes_max, "
    "user_bytes_max or process_bytes_max, or lower reserved_bytes"
)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lanes_max": 0}, "lanes_max must be at least 1"),
        ({"packet_bytes_max": 1 << 30}, "PROTOCOL 1.3"),
        ({"pull_interval_us_min": 5, "pull_interval_us_max": 4}, "pull_interval_us_min must be at least 0"),
        ({"pull_interval_us_min": -1}, "pull_interval_us_min must be at least 0"),
        ({"route_bytes_max": 1000}, "route_bytes_max must be at least"),
        ({"mailbox_bytes_max": 16 << 10}, "even one route"),
        ({"process_bytes_max": 32 << 10}, "even one route"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SwitchConfig(**settings)  # type: ignore[arg-type]


def test_the_defaults_are_consistent() -> None:
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
        {"mailbox_bytes_max": 21_845},  # three quarters of it are the reservation of one route
        {"process_bytes_max": 43_690},
    ],
)
def test_settings_exactly_at_the_limits_are_accepted(settings: dict[str, int]) -> None:
    SwitchConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"pull_interval_us_min": -1}, "pull_interval_us_min must be at least 0 and at most pull_interval_us_max"),
        ({"route_bytes_max": 1000}, "route_bytes_max must be at least reserved_bytes"),
        ({"exit_mailbox_bytes_max": 21_844}, _NO_ROOM),
        ({"user_bytes_max": 21_844}, _NO_ROOM),
        ({"process_bytes_max": 43_689}, _NO_ROOM),
    ],
)
def test_errors_name_the_contradiction(settings: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        SwitchConfig(**settings)  # type: ignore[arg-type]
