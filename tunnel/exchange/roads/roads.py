"""The life of one road: its states, and what moves it from one to another. A road is a carrier for some paths only."""

import enum

import msgspec

__all__ = ["TRANSITIONS", "Road", "RoadEvent", "RoadReport", "RoadState"]


class Road(msgspec.Struct):
    """A carrier besides poll. It carries both directions, and needs no pulls beside it."""

    name: str


class RoadState(enum.Enum):
    """The state of a road on this path, as far as it is known."""

    __hash__ = object.__hash__  # the members are single objects; the hash of `enum` is a function of Python

    UNKNOWN = "unknown"
    TRYING = "trying"
    READY = "ready"  # the relay has answered the first message on it
    USED = "used"
    DOUBTED = "doubted"  # in use, but silent: poll carries the data until it is heard again
    RESTING = "resting"  # it failed or died, and is tried again later


class RoadEvent(enum.Enum):
    """An event in the life of a road."""

    __hash__ = object.__hash__  # the members are single objects; the hash of `enum` is a function of Python

    TRY = "try"
    PROVEN = "proven"
    FAILED = "failed"
    CHOSEN = "chosen"
    REPLACED = "replaced"  # by a better road
    SILENT = "silent"
    HEARD = "heard"
    LOST = "lost"
    SLOW = "slow"  # exchanges may carry more
    DETACHED = "detached"


_S, _E = RoadState, RoadEvent
TRANSITIONS: dict[tuple[RoadState, RoadEvent], RoadState] = {
    (_S.UNKNOWN, _E.TRY): _S.TRYING,
    (_S.RESTING, _E.TRY): _S.TRYING,
    (_S.RESTING, _E.PROVEN): _S.READY,  # another connection was being opened when the road died
    (_S.TRYING, _E.PROVEN): _S.READY,
    (_S.TRYING, _E.FAILED): _S.RESTING,
    (_S.TRYING, _E.DETACHED): _S.UNKNOWN,
    (_S.READY, _E.CHOSEN): _S.USED,
    (_S.READY, _E.LOST): _S.RESTING,
    (_S.READY, _E.DETACHED): _S.UNKNOWN,
    (_S.USED, _E.REPLACED): _S.UNKNOWN,
    (_S.USED, _E.SILENT): _S.DOUBTED,
    (_S.USED, _E.LOST): _S.RESTING,
    (_S.USED, _E.SLOW): _S.RESTING,
    (_S.USED, _E.DETACHED): _S.UNKNOWN,
    (_S.DOUBTED, _E.HEARD): _S.USED,
    (_S.DOUBTED, _E.LOST): _S.RESTING,
    (_S.DOUBTED, _E.SLOW): _S.RESTING,  # its receipts wait behind a queue of data
    (_S.DOUBTED, _E.DETACHED): _S.UNKNOWN,
}
"""Every other pair changes nothing: news of a try or a connection may come after its end."""


class RoadReport(msgspec.Struct):
    """The state of a road, for people."""

    name: str
    state: str
    tries: int = 0
    why: str = ""  # the latest failure
