"""Counters start at zero and are not shared."""

from tunnel.core.stats import ConnectionStats


def test_two_connections_count_separately() -> None:
    first, second = ConnectionStats(), ConnectionStats()
    first.resent_by_cause["x"] = 1
    first.packets_sent += 1
    assert second == ConnectionStats()
