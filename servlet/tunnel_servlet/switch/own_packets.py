"""Builds the packets that the relay itself sends."""

from tunnel.wire import (
    Abort,
    AbortReason,
    Dropped,
    Edge,
    Frame,
    ListenState,
    Option,
    Packet,
    PacketType,
    Rejected,
    encode_abort,
    encode_dropped,
    encode_edge,
    encode_listen_state,
    encode_option,
    encode_rejected,
    frame_of,
)

__all__ = [
    "abort_frame",
    "dropped_frame",
    "edge_frame",
    "listen_state_frame",
    "option_frame",
    "rejected_frame",
]


def dropped_frame(destination: int, reason: int, first: int = 0, last: int = 0, limit: int = 0) -> Frame:
    """Build DROPPED (2.9)."""
    return frame_of(Packet(PacketType.DROPPED, 0, destination, 0, encode_dropped(Dropped(reason, first, last, limit))))


def edge_frame(destination: int, sequence: int, edge_bytes: int) -> Frame:
    """Build EDGE (2.10)."""
    return frame_of(Packet(PacketType.EDGE, 0, destination, 0, encode_edge(Edge(sequence, edge_bytes))))


def rejected_frame(source: int, route_key: bytes, reason: int, text: str) -> Frame:
    """Build a REJECTED from the relay; its source is the initiator's id (2.3)."""
    return frame_of(Packet(PacketType.REJECTED, source, 0, 0, encode_rejected(Rejected(route_key, reason, text))))


def abort_frame(source: int, destination: int, reason: AbortReason, text: str) -> Frame:
    """Build the ABORT of a connection that the relay ends, as if its other side had sent it (6.10, 9.7)."""
    payload = encode_abort(Abort(reason, text))
    return frame_of(Packet(PacketType.ABORT, source, destination, 0, payload))


def option_frame(option: Option) -> Frame:
    """Build the OPTION of an attachment (2.7)."""
    return frame_of(Packet(PacketType.OPTION, 0, 0, 0, encode_option(option)))


def listen_state_frame(state: ListenState) -> Frame:
    """Build LISTEN_STATE (2.8)."""
    return frame_of(Packet(PacketType.LISTEN_STATE, 0, 0, 0, encode_listen_state(state)))
