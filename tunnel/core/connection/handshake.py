"""Who the two sides of a connection are, and what they told each other when it was opened."""

import msgspec

from tunnel.core.config import EndpointConfig
from tunnel.wire import VERSION, Accepted, Buffer, Connect, Options, Packet, PacketType, Target, wrap
from tunnel.wire import encode_accepted as _encode_accepted
from tunnel.wire import encode_connect as _encode_connect

__all__ = ["VERSIONS", "Identity", "accepted_packet", "accepted_payload", "common_version", "connect_packet"]

VERSIONS = (VERSION, VERSION)
"""The versions of the protocol that this endpoint speaks."""


class Identity(msgspec.Struct):
    """The ids of a connection. Numbers are unbounded; the wire sees them mod 2**32."""

    own_id: int
    peer_id: int  # 0 until known
    initiator: bool
    route_key: bytes
    target: Target
    first_sequence: int
    user: str = ""  # stamped by the relay; known to the acceptor
    acceptor_endpoint: bytes | None = None  # endpoint id, for resume (6.5)


def common_version(theirs: tuple[int, int] | None) -> int:
    """The highest version in both ranges (3.4); 0 if there is none."""
    lowest, highest = theirs or VERSIONS
    best = min(highest, VERSIONS[1])
    return best if best >= max(lowest, VERSIONS[0]) else 0


def _options(
    config: EndpointConfig, pull_interval_us: int, versions: tuple[int, int], endpoint: bytes | None
) -> Options:
    return Options(
        versions=versions,
        packet_bytes_max=config.packet_bytes_max,
        keepalive_ms=config.keepalive_us // 1000,
        user_timeout_ms=config.user_timeout_us // 1000,
        pull_interval_ms=pull_interval_us // 1000,
        endpoint_id=endpoint,
    )


def connect_packet(
    identity: Identity, config: EndpointConfig, pull_interval_us: int, window_bytes: int, attempt: int, *, resume: bool
) -> Packet:
    """CONNECT, with resume (6.5) or without (3.1)."""
    endpoint = identity.acceptor_endpoint if resume else None
    options = _options(config, pull_interval_us, VERSIONS, endpoint)
    connect = Connect(identity.route_key, resume, identity.target, window_bytes, options)
    return Packet(
        PacketType.CONNECT,
        identity.own_id,
        identity.peer_id if resume else 0,
        wrap(identity.first_sequence),
        _encode_connect(connect),
        attempt & 0xFF,
    )


def accepted_payload(
    identity: Identity,
    config: EndpointConfig,
    pull_interval_us: int,
    window_bytes: int,
    own_endpoint: bytes,
    *,
    resumed: bool,
) -> bytes:
    """The payload of ACCEPTED (2.2)."""
    options = _options(config, pull_interval_us, VERSIONS, own_endpoint)
    return _encode_accepted(Accepted(identity.route_key, resumed, window_bytes, options))


def accepted_packet(identity: Identity, payload: Buffer, attempt: int) -> Packet:
    """ACCEPTED: its ids are the wrong way round, as the seed of the protocol has them (2.2)."""
    return Packet(
        PacketType.ACCEPTED, identity.peer_id, identity.own_id, wrap(identity.first_sequence), payload, attempt & 0xFF
    )
