"""Counters start at zero and are not shared."""

from tunnel.core.stats import ConnectionStats, EndedTotals


def test_two_connections_count_separately() -> None:
    first, second = ConnectionStats(), ConnectionStats()
    first.resent_by_cause["x"] = 1
    first.packets_sent += 1
    assert second == ConnectionStats()


def test_totals_of_two_endpoints_add_up() -> None:
    """Each counter, each cause and each place of a histogram."""
    one, two, both = EndedTotals(), EndedTotals(), EndedTotals()
    for number, totals in enumerate((one, two), 1):
        stats = ConnectionStats(
            packets_sent=10 * number,
            packets_resent=number,
            bytes_acknowledged=100 * number,
            round_trip_us=number * 40_000,
            resent_by_cause={"probe": number, f"cause {number}": 1},
        )
        totals.add(stats)
        both.add(stats)
    assert one.plus(two) == both
    assert one.connections == 1
