"""Clauses 2.1, 2.2 and 3.4: who the two sides are, and what they tell each other."""

from random import Random

import pytest

from tests.core.solo import KEY, SERVICE
from tunnel.core.config import EndpointConfig
from tunnel.core.connection.base import ConnectionIdentity
from tunnel.core.connection.connection import Connection
from tunnel.core.connection.handshake import Handshake, common_version
from tunnel.core.endpoint import Endpoint
from tunnel.wire import Options, PacketType, decode_accepted, decode_connect

CONFIG = EndpointConfig(
    window_bytes_start=4096,
    window_bytes_min=1024,
    packet_bytes_max=2048,
    keepalive_us=7_000_000,
    user_timeout_us=9_000_000,
)
OPTIONS = Options(
    versions=(1, 1), packet_bytes_max=2048, keepalive_ms=7_000, user_timeout_ms=9_000, pull_interval_ms=250
)


def handshake(peer_id: int, *, endpoint_id: bytes = KEY) -> Handshake:
    """Of a connection with these ids, whose carrier pulls four times a second."""
    endpoint = Endpoint(CONFIG, Random(5), endpoint_id=endpoint_id)
    endpoint.carrier_changed(1, 250_000, 0)
    identity = ConnectionIdentity(
        own_id=5,
        peer_id=peer_id,
        initiator=True,
        route_key=KEY,
        target=SERVICE,
        first_sequence=2**32 + 3,
        acceptor_endpoint=KEY,
    )
    made = Connection(endpoint, identity, 0).handshake
    made.open_due = False
    return made


@pytest.mark.parametrize(
    ("theirs", "version"), [(None, 1), ((1, 1), 1), ((0, 9), 1), ((2, 9), 0), ((0, 0), 0), ((1, 0), 0)]
)
def test_the_highest_version_in_both_ranges(theirs: tuple[int, int] | None, version: int) -> None:  # 3.4
    assert common_version(theirs) == version


def test_connect() -> None:  # 2.1
    opening = handshake(0)
    opening._opens = 258
    opening.open_due = True
    (packet,) = opening.take_packets()
    connect = decode_connect(packet.payload)
    assert (packet.type, packet.source, packet.destination) == (PacketType.CONNECT, 5, 0)
    assert (packet.sequence, packet.attempt) == (3, 2)
    assert connect is not None
    assert (connect.route_key, connect.resume, connect.target, connect.window) == (KEY, False, SERVICE, 4096)
    assert connect.options == OPTIONS


def test_connect_with_resume_names_both_ids_and_the_acceptors_endpoint() -> None:  # 6.5
    resuming = handshake(6)
    resuming.open_due = True
    (packet,) = resuming.take_packets()
    connect = decode_connect(packet.payload)
    assert (packet.source, packet.destination, packet.sequence) == (5, 6, 3)
    assert connect is not None
    assert connect.resume
    assert connect.options.endpoint_id == KEY


def test_accepted_has_the_initiators_id_as_its_source() -> None:  # 2.2
    answering = handshake(6, endpoint_id=bytes(16))
    answering.repeated(resume=True, now=0)
    answering._answers = 255
    (packet,) = answering.take_packets()
    accepted = decode_accepted(packet.payload)
    assert (packet.type, packet.source, packet.destination) == (PacketType.ACCEPTED, 6, 5)
    assert (packet.sequence, packet.attempt) == (3, 0)
    assert accepted is not None
    assert (accepted.route_key, accepted.resumed, accepted.window) == (KEY, True, 4096)
    assert accepted.options.endpoint_id == bytes(16)
