"""Lanes and links, both halves: numbers, repeats, confirmations, pacing (sections 6 to 8). Sans-I/O."""

from tunnel.exchange.config import LaneConfig
from tunnel.exchange.events import (
    Abandoned,
    AttachedEvent,
    BatchDone,
    Detached,
    LaneEvent,
    LanesChanged,
    PacketsReceived,
    Recovered,
    Refused,
    Request,
    Troubled,
)
from tunnel.exchange.lanes import Lanes
from tunnel.exchange.link_buffers import Buffers
from tunnel.exchange.link_pace import LinkPace
from tunnel.exchange.link_state import LinkInput, LinkState
from tunnel.exchange.served import Arrival, Outbox, Reply, ServedLane, ServedLimits

__all__ = [
    "Abandoned",
    "Arrival",
    "AttachedEvent",
    "BatchDone",
    "Buffers",
    "Detached",
    "LaneConfig",
    "LaneEvent",
    "Lanes",
    "LanesChanged",
    "LinkInput",
    "LinkPace",
    "LinkState",
    "Outbox",
    "PacketsReceived",
    "Recovered",
    "Refused",
    "Reply",
    "Request",
    "ServedLane",
    "ServedLimits",
    "Troubled",
]
