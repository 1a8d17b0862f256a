"""Clause 5.7: a closing endpoint learns from the peer's end that everything arrived."""

from collections.abc import Callable

import pytest

from tests.core.solo import Solo
from tunnel.core import Closed, Lost
from tunnel.wire import (
    Dropped,
    DropReason,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    encode_dropped,
    encode_rejected,
)


def shut_while_closing(solo: Solo) -> None:
    solo.opened().connection.close(solo.now)
    solo.say(PacketType.SHUTDOWN)


def finished_while_closing(solo: Solo) -> None:
    """Let the relay lose the route, and the peer, which has ended, reject the resume as FINISHED (6.6)."""
    solo.opened()
    solo.connection.write(b"abc", solo.now)
    solo.connection.close(solo.now)
    assert PacketType.CLOSE in solo.types()
    solo.relay(PacketType.DROPPED, encode_dropped(Dropped(DropReason.NO_ROUTE, 0, 0, 0)))
    answer = encode_rejected(Rejected(solo.route_key, RejectReason.FINISHED))
    solo.receive(Packet(PacketType.REJECTED, solo.connection.id, 0, 0, answer))


@pytest.mark.parametrize("reach", [shut_while_closing, finished_while_closing])
def test_the_peers_end_shows_a_closing_endpoint_that_all_arrived(reach: Callable[[Solo], None]) -> None:  # 5.7
    solo = Solo()
    reach(solo)
    assert [event for event in solo.events() if isinstance(event, Closed | Lost)] == [Closed(solo.connection.id)]
    assert solo.connection.unacknowledged_bytes == 0
