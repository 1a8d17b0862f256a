"""After a blackhole of one second to four minutes, or a restart of the relay, bytes move again within two seconds."""

import pytest

from tests.sim.clock import MINUTE, SECOND
from tests.sim.faults import FaultKind
from tests.sim.healing import HEALING_US, time_to_first_byte_after_blackhole, time_to_first_byte_after_restart

LENGTHS = [SECOND, 10 * SECOND, MINUTE, 4 * MINUTE]


@pytest.mark.parametrize("length_us", LENGTHS)
@pytest.mark.parametrize("upload", [True, False])
def test_a_bulk_transfer_goes_on_within_two_seconds_of_healing(length_us: int, upload: bool) -> None:
    assert time_to_first_byte_after_blackhole(FaultKind.BLACKHOLE, length_us, 1, upload=upload, bulk=True) <= HEALING_US


@pytest.mark.parametrize("length_us", LENGTHS)
@pytest.mark.parametrize("upload", [True, False])
def test_keystrokes_go_on_within_two_seconds_of_healing(length_us: int, upload: bool) -> None:
    assert (
        time_to_first_byte_after_blackhole(FaultKind.BLACKHOLE, length_us, 2, upload=upload, bulk=False) <= HEALING_US
    )


@pytest.mark.parametrize("kind", [FaultKind.BLACKHOLE_UP, FaultKind.BLACKHOLE_DOWN])
@pytest.mark.parametrize("upload", [True, False])
def test_streams_go_on_within_two_seconds_after_a_one_way_blackhole(kind: FaultKind, upload: bool) -> None:
    assert time_to_first_byte_after_blackhole(kind, 30 * SECOND, 3, upload=upload, bulk=True) <= HEALING_US


@pytest.mark.parametrize("absence_us", [SECOND, 8 * SECOND, 40 * SECOND])
@pytest.mark.parametrize("upload", [True, False])
@pytest.mark.parametrize("start_us", [SECOND, 3 * SECOND - 1])
def test_a_stream_goes_on_within_two_seconds_of_a_relay_restart(absence_us: int, upload: bool, start_us: int) -> None:
    """The stream opens long before the old relay dies, or a microsecond before it.

    In the second case, CONNECT is repeated while the relay is away.
    """
    for seed in range(2):
        assert time_to_first_byte_after_restart(absence_us, start_us, seed, upload=upload) <= HEALING_US
