"""Both halves of lanes and links: numbers, repeats, confirmations and pacing (sections 6 to 8).

The package does no I/O and reads no clock: callers pass in the time and the bytes.
"""

from tunnel.exchange.backoff import Refusal
from tunnel.exchange.config import LaneConfig
from tunnel.exchange.events import (
    Abandoned,
    AttachedEvent,
    AttachRefused,
    BatchDone,
    Detached,
    LaneEvent,
    LanesChanged,
    PacketsReceived,
    Recovered,
    Request,
    Troubled,
)
from tunnel.exchange.ladder import POLL, Decision, Ladder, Step
from tunnel.exchange.lanes import Lanes
from tunnel.exchange.link_buffers import BufferPool
from tunnel.exchange.link_pace import LinkPace
from tunnel.exchange.link_state import LinkInput, LinkState
from tunnel.exchange.outbox import Outbox
from tunnel.exchange.responses import quoted, refusal_of, title_of
from tunnel.exchange.roads import Road, RoadReport
from tunnel.exchange.served import Reply, ServedLane, ServedLimits, ServedRequest
from tunnel.exchange.spare_times import SpareTimes
from tunnel.exchange.stream_road import RoadState
from tunnel.exchange.streaming_lanes import StreamingLanes

__all__ = [
    "POLL",
    "Abandoned",
    "AttachRefused",
    "AttachedEvent",
    "BatchDone",
    "BufferPool",
    "Decision",
    "Detached",
    "Ladder",
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
    "Refusal",
    "Reply",
    "Request",
    "Road",
    "RoadReport",
    "RoadState",
    "ServedLane",
    "ServedLimits",
    "ServedRequest",
    "SpareTimes",
    "Step",
    "StreamingLanes",
    "Troubled",
    "quoted",
    "refusal_of",
    "title_of",
]
