"""The carriers that a user can ask for, in one table. It imports nothing, since options need it at once."""

from typing import Final, Literal, NamedTuple

__all__ = ["CARRIERS", "ROADS", "CarrierKind", "CarrierName"]

CarrierName = Literal["auto", "poll", "link", "stream", "websocket"]


class CarrierKind(NamedTuple):
    """A carrier. `summary` is its part of the help of `--carrier`."""

    summary: str
    roads: tuple[str, ...] = ()  # the roads that it tries, the best first; each is a carrier, too
    streams: bool = True  # the relay may stream its answers


CARRIERS: Final[dict[str, CarrierKind]] = {
    "auto": CarrierKind(
        "separate HTTP requests whose answers the relay streams where the path allows it; and where the path allows "
        "it, an upgraded HTTP connection (link) or else a WebSocket",
        roads=("link", "websocket"),
    ),
    "poll": CarrierKind("separate HTTP requests, each with a complete answer", streams=False),
    "link": CarrierKind("like auto, but without a WebSocket", roads=("link",)),
    "stream": CarrierKind("like auto, but with separate requests alone"),
    "websocket": CarrierKind("like auto, but without a link", roads=("websocket",)),
}
"""The first one is the default."""

ROADS = CARRIERS["auto"].roads  # the best first
