"""The constants have the values that docs/PROTOCOL.md names."""

from tunnel.core import constants
from tunnel.core.scheduler import STRAYS_MAX


def test_the_numbers_are_those_of_the_protocol() -> None:
    second_us, kib = 1_000_000, 1024
    assert second_us == constants.SECOND_US
    assert constants.ACK_DELAY_US == 25_000  # 4.3
    assert constants.ACK_SPACING_US == 1_000  # 4.3
    assert constants.ACK_SPACING_US_MAX == 10_000  # 4.3
    assert constants.ACK_SPACING_BYTES == 16 * 1024  # 4.3
    assert constants.RTO_INITIAL_US == constants.RTO_MIN_US == second_us  # 4.6
    assert 60 * second_us == constants.BACKOFF_MAX_US  # 4.6
    assert constants.VARIANCE_MIN_US == 10_000  # 4.6
    assert constants.REORDER_MIN_US == 1_000  # 4.8
    assert second_us == constants.RESUME_INTERVAL_US  # 6.5
    assert 64 * kib == constants.EARLY_BYTES_MAX  # 3.6
    assert (64, 256 * kib) == (constants.EARLY_PACKETS_MAX, constants.HELD_BYTES_MAX)  # 3.7
    assert 60 * second_us == constants.DRAIN_US  # 5.7
    assert 240 * second_us == constants.TOMBSTONE_US  # 3.1, 3.3
    assert (kib, 256 * kib) == (constants.PACKET_PAYLOAD_MIN, constants.PACKET_PAYLOAD_MAX)  # 4.13
    assert 4 * kib == constants.SMALL_BYTES  # 4.14
    assert 10**9 * second_us < constants.NEVER_US


def test_200_connections_move_in_one_round_trip_and_all_moves_fit_into_the_queue() -> None:
    assert constants.MOVES_MAX >= 200
    assert 3 * constants.MOVES_MAX <= constants.MOVES_ALL_MAX < STRAYS_MAX
