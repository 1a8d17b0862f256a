"""The packets that the relay makes itself, and what it costs to keep one of anybody's."""

from tunnel.wire import (
    Dropped,
    Edge,
    Frame,
    ListenState,
    Option,
    Packet,
    PacketType,
    Rejected,
    encode_dropped,
    encode_edge,
    encode_listen_state,
    encode_option,
    encode_rejected,
    frame_of,
)
from tunnel_servlet.switch.budgets import Budget
from tunnel_servlet.switch.config import FRAME_OVERHEAD_BYTES

__all__ = [
    "charge",
    "dropped_frame",
    "edge_frame",
    "keep",
    "listen_state_frame",
    "option_frame",
    "rejected_frame",
]

_NOTICES = frozenset((int(PacketType.DROPPED), int(PacketType.EDGE)))

# A packet that is a slice of a body keeps the whole body alive. Packets that are less than a sixteenth of theirs are
# copied (a full batch comes in eighths, 4.13), and less than half of it once an eighth of the mailbox is in use: what
# is really kept is at most four times what is counted.
_SLICE, _SLICE_UNDER_PRESSURE, _PRESSURE = 16, 2, 8


def charge(frame: Frame) -> int:
    """What keeping the packet is counted as. The relay's own notices are bounded by the routes and cost nothing."""
    return 0 if frame.type in _NOTICES else len(frame.data) + FRAME_OVERHEAD_BYTES


def keep(frame: Frame, budget: Budget) -> None:
    """Prepare a packet for being kept: let go of the body around it, if that is much larger."""
    data = frame.data
    if isinstance(data, memoryview):
        part = _SLICE if budget.held * _PRESSURE < budget.hard_bytes else _SLICE_UNDER_PRESSURE
        if len(data) * part < memoryview(data.obj).nbytes:
            frame.data = bytes(data)


def dropped_frame(destination: int, reason: int, first: int = 0, last: int = 0, limit: int = 0) -> Frame:
    """DROPPED (2.9)."""
    return frame_of(Packet(PacketType.DROPPED, 0, destination, 0, encode_dropped(Dropped(reason, first, last, limit))))


def edge_frame(destination: int, sequence: int, edge_bytes: int) -> Frame:
    """EDGE (2.10)."""
    return frame_of(Packet(PacketType.EDGE, 0, destination, 0, encode_edge(Edge(sequence, edge_bytes))))


def rejected_frame(source: int, route_key: bytes, reason: int, text: str) -> Frame:
    """REJECTED by the relay: its source is the initiator's id (2.3)."""
    return frame_of(Packet(PacketType.REJECTED, source, 0, 0, encode_rejected(Rejected(route_key, reason, text))))


def option_frame(option: Option) -> Frame:
    """OPTION of the attachment (2.7)."""
    return frame_of(Packet(PacketType.OPTION, 0, 0, 0, encode_option(option)))


def listen_state_frame(state: ListenState) -> Frame:
    """LISTEN_STATE (2.8)."""
    return frame_of(Packet(PacketType.LISTEN_STATE, 0, 0, 0, encode_listen_state(state)))
