"""A connection in each of its states."""

from collections.abc import Callable

from tests.core.solo import TARGET, Solo
from tunnel.core.connection.state import State

__all__ = [
    "REACH",
    "accepted",
    "closed",
    "closed_early",
    "closing",
    "connecting",
    "draining",
    "opened",
    "peer_closed",
    "requested",
]


def connecting(solo: Solo) -> None:
    solo.connect(TARGET)


def closed_early(solo: Solo) -> None:
    solo.connect(TARGET)
    solo.connection.write(b"abc", solo.now)
    solo.connection.close(solo.now)


def requested(solo: Solo) -> None:
    solo.request()
    solo.data(0)


def accepted(solo: Solo) -> None:
    solo.request()
    solo.endpoint.accept(solo.connection.id, solo.now)


def opened(solo: Solo) -> None:
    solo.opened()
    solo.data(0)
    solo.connection.write(b"abc", solo.now)


def closing(solo: Solo) -> None:
    opened(solo)
    solo.connection.close(solo.now)


def peer_closed(solo: Solo) -> None:
    opened(solo)
    solo.end(1)


def draining(solo: Solo) -> None:
    solo.opened()
    solo.end(0)


def closed(solo: Solo) -> None:
    solo.opened()
    solo.connection.abort(solo.now)


REACH: dict[State, Callable[[Solo], None]] = {
    State.CONNECTING: connecting,
    State.CLOSED_EARLY: closed_early,
    State.REQUESTED: requested,
    State.ACCEPTED: accepted,
    State.OPEN: opened,
    State.CLOSING: closing,
    State.PEER_CLOSED: peer_closed,
    State.DRAIN: draining,
    State.CLOSED: closed,
}
