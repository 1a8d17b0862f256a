"""Clauses 2.1, 2.2 and 3.4: who the two sides are, and what they tell each other."""

import pytest

from tests.core.solo import KEY, SERVICE
from tunnel.core.config import EndpointConfig
from tunnel.core.connection.handshake import Identity, accepted_packet, accepted_payload, common_version, connect_packet
from tunnel.wire import Options, PacketType, decode_accepted, decode_connect

CONFIG = EndpointConfig(packet_bytes_max=2048, keepalive_us=7_000_000, user_timeout_us=9_000_000)
IDENTITY = Identity(
    own_id=5, peer_id=6, initiator=True, route_key=KEY, target=SERVICE, first_sequence=2**32 + 3, acceptor_endpoint=KEY
)
OPTIONS = Options(
    versions=(1, 1), packet_bytes_max=2048, keepalive_ms=7_000, user_timeout_ms=9_000, pull_interval_ms=250
)


@pytest.mark.parametrize(
    ("theirs", "version"), [(None, 1), ((1, 1), 1), ((0, 9), 1), ((2, 9), 0), ((0, 0), 0), ((1, 0), 0)]
)
def test_the_highest_version_in_both_ranges(theirs: tuple[int, int] | None, version: int) -> None:  # 3.4
    assert common_version(theirs) == version


def test_connect() -> None:  # 2.1
    packet = connect_packet(IDENTITY, CONFIG, 250_000, 4096, 258, resume=False)
    connect = decode_connect(packet.payload)
    assert (packet.type, packet.source, packet.destination) == (PacketType.CONNECT, 5, 0)
    assert (packet.sequence, packet.attempt) == (3, 2)
    assert connect is not None
    assert (connect.route_key, connect.resume, connect.target, connect.window) == (KEY, False, SERVICE, 4096)
    assert connect.options == OPTIONS


def test_connect_with_resume_names_both_ids_and_the_acceptors_endpoint() -> None:  # 6.5
    packet = connect_packet(IDENTITY, CONFIG, 250_000, 4096, 0, resume=True)
    connect = decode_connect(packet.payload)
    assert (packet.source, packet.destination, packet.sequence) == (5, 6, 3)
    assert connect is not None
    assert connect.resume
    assert connect.options.endpoint_id == KEY


def test_accepted_has_the_initiators_id_as_its_source() -> None:  # 2.2
    payload = accepted_payload(IDENTITY, CONFIG, 250_000, 4096, bytes(16), resumed=True)
    packet = accepted_packet(IDENTITY, payload, 256)
    accepted = decode_accepted(packet.payload)
    assert (packet.type, packet.source, packet.destination) == (PacketType.ACCEPTED, 6, 5)
    assert (packet.sequence, packet.attempt) == (3, 0)
    assert accepted is not None
    assert (accepted.route_key, accepted.resumed, accepted.window) == (KEY, True, 4096)
    assert accepted.options.endpoint_id == bytes(16)
