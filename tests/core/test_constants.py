"""The numbers that docs/PROTOCOL.md names, said once more."""

from tunnel.core import constants


def test_the_numbers_are_those_of_the_protocol() -> None:
    second_us, kib = 1_000_000, 1024
    assert second_us == constants.SECOND_US
    assert constants.ACK_DELAY_US == 25_000  # 4.3
    assert constants.ACK_SPACING_US == 1_000  # 4.3
    assert constants.RTO_INITIAL_US == constants.RTO_MIN_US == second_us  # 4.6
    assert constants.BACKOFF_MAX_US == 60 * second_us  # 4.6
    assert constants.VARIANCE_MIN_US == 10_000  # 4.6
    assert constants.TAIL_PROBE_MIN_US == 10_000  # 4.7
    assert constants.REORDER_MIN_US == 1_000  # 4.8
    assert constants.RESUME_INTERVAL_US == second_us  # 6.5
    assert constants.EARLY_BYTES_MAX == 64 * kib  # 3.6
    assert (constants.EARLY_PACKETS_MAX, constants.HELD_BYTES_MAX) == (64, 256 * kib)  # 3.7
    assert constants.DRAIN_US == 60 * second_us  # 5.7
    assert constants.TOMBSTONE_US == 240 * second_us  # 3.1, 3.3
    assert (constants.PACKET_PAYLOAD_MIN, constants.PACKET_PAYLOAD_MAX) == (kib, 256 * kib)  # 4.13
    assert constants.SMALL_BYTES == 4 * kib  # 4.14
    assert constants.NEVER_US > 10**9 * second_us
