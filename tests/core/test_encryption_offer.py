"""Clause 3.13 in the core: the option of CONNECT and ACCEPTED, and the application that decides about services."""

import pytest

from tests.core.pair import SERVICE, TARGET, Pair
from tunnel.core import EndpointConfig, Incoming, Lost
from tunnel.core.constants import SECOND_US
from tunnel.core.events import Connected, ConnectRequested
from tunnel.wire import Packet, PacketType, decode_accepted, decode_connect

OFFER = b"ClientHello"
ASKS = EndpointConfig(asks_services=True, exit=True)


def offered(packets: list[Packet]) -> list[bytes | None]:
    connects = [decode_connect(packet.payload) for packet in packets]
    return [connect.options.encryption for connect in connects if connect is not None]


def answered(packets: list[Packet]) -> list[bytes | None]:
    answers = [decode_accepted(packet.payload) for packet in packets]
    return [accepted.options.encryption for accepted in answers if accepted is not None]


@pytest.mark.parametrize("target", [SERVICE, TARGET], ids=["service", "target"])
@pytest.mark.parametrize("encrypted", [True, False])
def test_the_offer_reaches_the_application_which_may_accept_it(target: object, encrypted: bool) -> None:
    pair = Pair(ASKS)
    pair.b.endpoint.listen("s", 10, pair.now)
    connection = pair.a.endpoint.connect(target, pair.now, OFFER)  # type: ignore[arg-type]
    pair.settle()
    request = pair.b.only(ConnectRequested)
    assert request.offer == OFFER
    pair.b.endpoint.accept(request.connection_id, pair.now, encrypted=encrypted)
    pair.settle()
    assert answered(pair.b.of_type(PacketType.ACCEPTED)) == [b"" if encrypted else None]
    assert connection.handshake.is_encrypted is encrypted
    assert len(pair.a.take(Connected)) == 1
    assert len(pair.b.take(Connected)) == 1  # no Incoming: the application itself has accepted it
    assert not pair.b.take(Incoming)


def test_repeats_carry_the_offer_and_resumes_do_not() -> None:
    pair = Pair(ASKS)
    pair.b.endpoint.listen("s", 10, pair.now)
    pair.lose_first(PacketType.CONNECT, 2)
    connection = pair.a.endpoint.connect(SERVICE, pair.now, OFFER)
    pair.run(10 * SECOND_US)
    pair.b.endpoint.accept(pair.b.only(ConnectRequested).connection_id, pair.now, encrypted=True)
    pair.settle()
    pair.restart_relay()
    pair.run(SECOND_US)
    offers = offered(pair.a.of_type(PacketType.CONNECT))
    assert offers == [OFFER] * (len(offers) - 1) + [None]
    assert len(offers) > 3
    assert answered(pair.b.of_type(PacketType.ACCEPTED)) == [b"", b""]
    assert connection.handshake.is_encrypted


def test_an_answer_to_an_offer_that_was_not_made_is_ignored() -> None:
    pair = Pair(ASKS)
    pair.b.endpoint.listen("s", 10, pair.now)
    connection = pair.a.endpoint.connect(SERVICE, pair.now)
    pair.settle()
    request = pair.b.only(ConnectRequested)
    assert request.offer == b""
    pair.b.endpoint.accept(request.connection_id, pair.now, encrypted=True)
    pair.settle()
    assert not connection.handshake.is_encrypted


def test_an_acceptor_whose_application_is_not_asked_ignores_the_offer() -> None:
    pair = Pair()
    pair.b.endpoint.listen("s", 10, pair.now)
    connection = pair.a.endpoint.connect(SERVICE, pair.now, OFFER)
    pair.settle()
    assert answered(pair.b.of_type(PacketType.ACCEPTED)) == [None]
    assert not connection.handshake.is_encrypted
    assert len(pair.b.take(Incoming)) == 1


def test_a_loss_before_the_first_packet_is_reported_to_an_application_that_was_asked() -> None:
    pair = Pair(ASKS)
    pair.b.endpoint.listen("s", 10, pair.now)
    connection = pair.a.endpoint.connect(SERVICE, pair.now, OFFER)
    pair.settle()
    request = pair.b.only(ConnectRequested)
    pair.lose = lambda side, packet: side.name == "a"
    pair.b.endpoint.accept(request.connection_id, pair.now, encrypted=True)
    pair.settle()
    connection.abort(pair.now)
    pair.run_until(lambda: any(isinstance(event, Lost) for event in pair.b.events))
    assert not pair.b.take(Connected)
