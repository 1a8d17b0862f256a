"""After a blackhole of one second to four minutes bytes move again within two seconds."""

import pytest

from tests.sim.clock import MINUTE, SECOND
from tests.sim.faults import FaultKind
from tests.sim.healing import HEALING_US, first_byte_after

LENGTHS = [SECOND, 10 * SECOND, MINUTE, 4 * MINUTE]


@pytest.mark.parametrize("length_us", LENGTHS)
@pytest.mark.parametrize("upload", [True, False])
def test_a_bulk_transfer_goes_on_within_two_seconds_of_healing(length_us: int, upload: bool) -> None:
    assert first_byte_after(FaultKind.BLACKHOLE, length_us, 1, upload=upload, bulk=True) <= HEALING_US


@pytest.mark.parametrize("length_us", LENGTHS)
@pytest.mark.parametrize("upload", [True, False])
def test_keystrokes_go_on_within_two_seconds_of_healing(length_us: int, upload: bool) -> None:
    assert first_byte_after(FaultKind.BLACKHOLE, length_us, 2, upload=upload, bulk=False) <= HEALING_US


@pytest.mark.parametrize("kind", [FaultKind.BLACKHOLE_UP, FaultKind.BLACKHOLE_DOWN])
@pytest.mark.parametrize("upload", [True, False])
def test_a_blackhole_of_one_way_heals_as_soon(kind: FaultKind, upload: bool) -> None:
    assert first_byte_after(kind, 30 * SECOND, 3, upload=upload, bulk=True) <= HEALING_US
