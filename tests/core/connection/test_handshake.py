"""Clauses 2.1, 2.2, 3.1 to 3.5 and 6.5: the handshake, in which two endpoints exchange ids, versions and options."""

from random import Random

import pytest

from tests.core.solo import KEY, NO_ROUTE, PEER, SERVICE, Solo
from tunnel.core import EndpointConfig, State
from tunnel.core.connection.base import ConnectionIdentity
from tunnel.core.connection.connection import Connection
from tunnel.core.connection.handshake import Handshake, common_version
from tunnel.core.constants import SECOND_US
from tunnel.core.endpoint import Endpoint
from tunnel.wire import (
    Options,
    PacketType,
    RejectReason,
    decode_accepted,
    decode_connect,
    decode_rejected,
)

ACCEPTED, ACK, CONNECT, DATA = PacketType.ACCEPTED, PacketType.ACK, PacketType.CONNECT, PacketType.DATA
PING, PONG, PROBE = PacketType.PING, PacketType.PONG, PacketType.PROBE

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
    """Return the handshake of a connection with these ids; its carrier pulls four times a second."""
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
def test_the_highest_version_in_both_ranges_is_chosen(theirs: tuple[int, int] | None, version: int) -> None:  # 3.4
    assert common_version(theirs) == version


def test_connect_carries_the_target_the_window_and_the_options() -> None:  # 2.1
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


def test_connect_is_repeated_after_one_two_four_seconds_each_with_the_next_attempt() -> None:  # 3.1
    solo = Solo(EndpointConfig(user_timeout_us=600 * SECOND_US)).connect()
    gaps = []
    for attempt in range(1, 9):
        before = solo.now
        while not solo.endpoint.wants_batch():
            solo.wait((solo.endpoint.next_timeout() or 0) - solo.now)
        (packet,) = solo.out()
        assert (packet.type, packet.attempt) == (CONNECT, attempt)
        gaps.append((solo.now - before) // SECOND_US)
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60]
    solo.answer()
    assert solo.types() == [ACK]  # at once (3.5)
    assert solo.connection.state is State.OPEN


def test_connect_is_repeated_every_half_second_at_first_after_a_relay_restart() -> None:  # 3.1
    solo = Solo(EndpointConfig(user_timeout_us=600 * SECOND_US)).connect()
    for seconds in (1, 2, 4, 8):
        solo.wait(seconds * SECOND_US)
        assert solo.types() == [CONNECT]
    solo.endpoint.attached(True, 1 << 20, 1 << 20, solo.now)
    assert solo.types() == [CONNECT]
    for wait_us in [SECOND_US // 2] * 10 + [SECOND_US, 2 * SECOND_US, 4 * SECOND_US]:
        solo.wait(wait_us - 1)
        assert solo.types() == []
        solo.wait(1)
        assert solo.types() == [CONNECT]


def test_resume_is_asked_for_every_second() -> None:  # 6.5
    solo = Solo().opened()
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    for attempt in range(1, 6):
        (packet,) = solo.out()
        connect = decode_connect(packet.payload)
        assert connect is not None
        assert connect.resume
        assert (packet.destination, packet.attempt) == (PEER, attempt)
        solo.wait(SECOND_US)
    solo.answer(resumed=True)
    assert solo.types() == [ACK]  # 6.6; the CONNECT that was due is not sent


def test_a_repeated_connect_is_answered_even_when_accepted_is_acknowledged() -> None:  # 3.3
    solo = Solo().served()
    solo.request()
    (packet,) = solo.out()
    accepted = decode_accepted(packet.payload)
    assert (packet.type, packet.attempt) == (ACCEPTED, 1)
    assert accepted is not None
    assert not accepted.resumed


def test_accepted_leaves_before_everything_that_needs_the_route() -> None:  # 3.2
    solo = Solo()
    solo.request()
    solo.data(0)
    solo.endpoint.accept(solo.connection.id, solo.now)
    solo.connection.write(b"first", solo.now)
    assert solo.types() == [ACCEPTED, ACK, DATA]
    assert not solo.connection.handshake.accepted_waits()
    initiator = Solo().opened()
    assert not initiator.connection.handshake.accepted_waits()


@pytest.mark.parametrize("refused", [True, False])
def test_the_last_answer_is_the_refusal_or_gone_if_there_was_none(refused: bool) -> None:  # 3.3
    solo = Solo()
    solo.request()
    if refused:
        solo.endpoint.refuse(solo.connection.id, RejectReason.UNREACHABLE, "no way", solo.now)
        (packet,) = solo.out()
        assert (packet.type, packet.source, packet.destination) == (PacketType.REJECTED, PEER, 0)
        payload = packet.payload
    else:
        payload = solo.connection.handshake.last_answer()
    rejected = decode_rejected(payload)
    assert rejected is not None
    assert (rejected.reason, rejected.text) == (
        (RejectReason.UNREACHABLE, "no way") if refused else (RejectReason.GONE, "")
    )


@pytest.mark.parametrize("answered", [False, True])
def test_a_connect_whose_batch_was_given_up_leaves_again_unless_answered(answered: bool) -> None:  # 4.10
    solo = Solo().connect()
    if answered:
        solo.answer()
        solo.out()
    assert solo.connection.handshake.open_again() == (not answered)
    solo.endpoint.touch(solo.connection)
    assert solo.types() == ([] if answered else [CONNECT])


def test_a_resume_after_a_graceful_end_is_rejected_as_finished() -> None:  # 5.7
    solo = Solo().served()
    solo.connection.closing.start_drain(solo.now)
    rejected = decode_rejected(solo.connection.handshake.last_answer())
    assert rejected is not None
    assert rejected.reason == RejectReason.FINISHED


def test_every_repeated_answer_has_the_next_attempt_and_leaves_once() -> None:  # 3.3, 1.8
    solo = Solo().served()
    attempts = []
    for _ in range(3):
        solo.request(SERVICE)
        (packet,) = [packet for packet in solo.out() if packet.type == PacketType.ACCEPTED]
        attempts.append(packet.attempt)
        solo.say(PacketType.PROBE)
        assert solo.types() == [PacketType.ACK]
    assert attempts == [1, 2, 3]


def test_a_resume_after_shutdown_is_rejected_as_finished_without_a_text() -> None:  # 5.7
    solo = Solo().served()
    solo.end(0)
    solo.out()
    solo.say(PacketType.SHUTDOWN)
    assert solo.in_state(State.CLOSED)
    solo.out()
    solo.request(SERVICE, resume=True, destination=solo.connection.id)
    (packet,) = solo.out()
    rejected = decode_rejected(packet.payload)
    assert rejected is not None
    assert (rejected.reason, rejected.text) == (RejectReason.FINISHED, "")
