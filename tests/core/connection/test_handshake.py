"""Clauses 3.1, 3.4 and 5.7: what the scripts in tests/scripted/scripts/opening and resume leave out."""

import pytest

from tests.core.solo import SERVICE, Solo
from tunnel.core import EndpointConfig, State
from tunnel.core.connection.handshake import common_version
from tunnel.core.constants import SECOND_US
from tunnel.wire import PacketType, RejectReason, decode_rejected

CONNECT = PacketType.CONNECT


@pytest.mark.parametrize(
    ("theirs", "version"), [(None, 1), ((1, 1), 1), ((0, 9), 1), ((2, 9), 0), ((0, 0), 0), ((1, 0), 0)]
)
def test_the_highest_version_in_both_ranges_is_chosen(theirs: tuple[int, int] | None, version: int) -> None:  # 3.4
    assert common_version(theirs) == version


def test_connect_is_repeated_every_half_second_at_first_after_a_relay_restart() -> None:  # 3.1
    solo = Solo(EndpointConfig(user_timeout_us=600 * SECOND_US)).connect()
    for seconds in (1, 2, 4, 8):
        solo.wait(seconds * SECOND_US)
        assert solo.types() == [CONNECT]
    solo.endpoint.on_attached(True, 1 << 20, 1 << 20, solo.now)
    assert solo.types() == [CONNECT]
    for wait_us in [SECOND_US // 2] * 10 + [SECOND_US, 2 * SECOND_US, 4 * SECOND_US]:
        solo.wait(wait_us - 1)
        assert solo.types() == []
        solo.wait(1)
        assert solo.types() == [CONNECT]


def test_a_resume_after_shutdown_is_rejected_as_finished_without_a_text() -> None:  # 5.7
    solo = Solo().served()
    solo.end(0)
    solo.out()
    solo.say(PacketType.SHUTDOWN)
    assert solo.in_state(State.CLOSED)
    solo.out()
    solo.request(SERVICE, resume=True, destination=solo.connection.id)
    (packet,) = solo.out()
    rejected = decode_rejected(packet.payload)
    assert rejected is not None
    assert (rejected.reason, rejected.text) == (RejectReason.FINISHED, "")
