"""The lanes and links of one attachment, and the packets they hold (PROTOCOL 6.2, 7.3, 7.6, 8)."""

from tests.servlet.support import SECOND, Peer, Relay, bound, data, kinds, of_kind
from tunnel.wire import (
    ANSWER_BYTES,
    EVIDENCE_BYTES,
    AbortReason,
    Attached,
    PacketType,
    StatusCode,
    encode_packets,
    whole_packet,
)
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.model import Attention
from tunnel_servlet.switch.registry import Registry


def body(*sequences: int, size: int) -> bytes:
    return b"".join(encode_packets([data(22, 11, sequence, bytes(size)) for sequence in sequences]))


def test_connects_that_were_withdrawn_long_ago_are_forgotten() -> None:
    config = SwitchConfig(pending_timeout_us=SECOND)
    registry = Registry(SwitchContext(config, None), Attention())
    attachment = registry.add(bytes(16), "exits", is_exit=True)
    for number in range(100):
        attachment.withdraw(bytes([number]), AbortReason.GONE, "", number * SECOND // 10)
        assert len(attachment.withdrawn) <= 11
    assert bytes([99]) in attachment.withdrawn


def test_7_3_unconfirmed_packets_are_first_in_line_again() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    exit_.push(data(22, 11, 501), data(22, 11, 502))
    lost = client.send()
    exit_.push(data(22, 11, 503))
    assert [packet.sequence for packet in client.push(lane=1)] == [503]
    found = client.push()
    assert [packet.sequence for packet in found] == [501, 502]
    assert lost in relay.responses


def test_7_3_a_serial_that_was_never_sent_confirms_nothing() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    exit_.push(data(22, 11, 501), data(22, 11, 502))
    client.send()  # the answer is lost on the path
    refusal = client.status(client.send(serial_received=99))
    assert (refusal.code, refusal.text) == (
        StatusCode.UNKNOWN,
        "no answer of lane 0 had serial 99, the newest had 4: a new generation starts its serials at 1",
    )
    client.numbers[0] -= 1
    assert [packet.sequence for packet in client.push()] == [501, 502]


def test_7_3_the_serial_of_an_older_generation_confirms_nothing() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    for _ in range(5):
        client.push()
    kept = client.serials[0]
    client.generation = 2
    client.attached()
    exit_.push(data(22, 11, 501))
    client.send()  # the answer, serial 1, is lost on the path
    assert client.status(client.send(serial_received=kept)).code == StatusCode.UNKNOWN
    client.numbers[0] -= 1
    assert [packet.sequence for packet in client.push()] == [501]


def test_7_3_a_lane_of_an_expired_attachment_is_unknown() -> None:
    relay = Relay(attachment_timeout_us=10 * SECOND)
    client, _ = bound(relay)
    client.push(lane=1)
    relay.advance(20 * SECOND)
    assert isinstance(client.attach(), Attached)  # a copy of ATTACH that a proxy kept until the attachment had expired
    client.numbers = {0: 9, 1: 9}
    client.serials = {0: 9, 1: 1}
    assert [client.status(client.send(lane=lane)).code for lane in (0, 1)] == [StatusCode.UNKNOWN] * 2


def test_7_6_a_large_packet_goes_down_in_pieces() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    client.answer_bytes_max = 4096
    exit_.push(data(22, 11, 501, bytes(10_000)))
    pieces = b""
    for _ in range(3):
        answer = client.answer(client.send())
        assert answer.piece
        assert answer.piece_offset == len(pieces)
        pieces += bytes(answer.data)
        assert relay.switch.stats().bytes_outstanding > 0
    assert pieces == body(501, size=10_000)
    exit_.push(data(22, 11, 502))
    assert [packet.sequence for packet in client.push()] == [502]
    client.push()
    assert relay.switch.stats().bytes_outstanding == relay.switch.stats().bytes_held == 0


def test_7_6_a_large_packet_comes_up_in_pieces_and_is_counted() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    whole = body(501, size=10_000)
    held = []
    for offset in range(0, len(whole), 4000):
        exit_.answer(exit_.send(piece=True, piece_offset=offset, payload=whole[offset : offset + 4000]))
        held.append(relay.switch.stats().bytes_held)
    assert held[:2] == [4000, 8000]
    assert [packet.sequence for packet in client.push()] == [501]


def test_7_6_pieces_of_an_older_generation_are_discarded() -> None:
    relay = Relay()
    _, exit_ = bound(relay)
    exit_.send(piece=True, payload=body(501, size=10_000)[:4000])
    exit_.attach(generation=2)
    assert relay.switch.stats().bytes_held == 0


def test_7_6_without_room_a_piece_is_refused_as_busy() -> None:
    relay = Relay(mailbox_bytes_max=64 << 10, packet_bytes_max=1 << 20)
    client, _ = bound(relay)
    whole = body(501, size=200_000)
    assert kinds(client.packets(client.send(piece=True, payload=whole[:60_000]))) == []
    refused = client.send(piece=True, piece_offset=60_000, payload=whole[60_000:120_000])
    assert client.status(refused).code == StatusCode.BUSY


def test_7_6_pieces_go_both_ways_on_one_lane() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    exit_.push(data(22, 11, 501, bytes(10_000)))
    client.answer_bytes_max = 4096
    client.answer(client.send())
    whole = b"".join(encode_packets([data(11, 22, 101, bytes(6000))]))
    for offset in range(0, len(whole), 2000):
        client.answer(client.send(piece=True, piece_offset=offset, payload=whole[offset : offset + 2000]))
    assert kinds(exit_.push()) == ["EDGE", "DATA"]
    exit_.push()
    client.push()
    client.push()
    assert relay.switch.stats().bytes_held == 0


def test_7_7_evidence_covers_every_lane() -> None:
    client = Peer(Relay()).attached()
    client.push(lane=3)
    client.push(lane=3)
    assert client.answer(client.send(lane=1)).evidence == [(3, 2), (1, 1)]


def test_3_2_an_attachment_counts_the_openings_that_await_it() -> None:
    context = SwitchContext(SwitchConfig(), None)
    attachment = Registry(context, Attention()).add(b"1", "ann", is_exit=False)
    attachment.awaits(7)
    attachment.awaits(7)
    attachment.unawait(7)
    assert attachment.is_awaited(7)
    attachment.unawait(7)
    assert not attachment.is_awaited(7)


def test_7_4_all_holds_of_an_attachment_share_one_timer() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    held = [client.pull(lane=lane, hold_ms=1000 * (lane + 1)) for lane in range(3)]
    assert relay.switch.stats().timers == 2
    relay.advance(2 * SECOND)
    assert [handle in relay.responses for handle in held] == [True, True, False]


def links(relay: Relay, peer: Peer, *numbers: int) -> None:
    for number in numbers:
        assert relay.switch.link_opened(number, peer.user, peer.identity, peer.epoch, peer.generation, relay.now)


def poll(relay: Relay, link: int, limit: int = 1 << 20) -> list[int]:
    frames = relay.switch.poll_link(link, limit, relay.now)
    relay.settle()
    return [frame.sequence for frame in frames]


def test_8_a_link_is_distrusted_when_it_is_silent_while_the_endpoint_pulls() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    links(relay, client, 1)
    exit_.push(data(22, 11, 501))
    assert poll(relay, 1) == [501]
    assert client.push(lane=1) == []
    assert client.packets(client.pull(lane=1, hold_ms=0)) == []
    relay.advance(2 * SECOND)
    assert client.push(lane=1) == []
    assert [packet.sequence for packet in client.packets(client.pull(lane=1))] == [501]
    relay.links_ready.clear()
    exit_.push(data(22, 11, 502))
    assert relay.links_ready == []
    relay.switch.link_packets(1, [], relay.now)
    relay.settle()
    assert relay.links_ready == [1]
    assert poll(relay, 1) == [502]
    relay.switch.link_receipted(1, 1, relay.now)
    assert relay.switch.stats().bytes_outstanding > 0
    relay.switch.link_receipted(1, 1, relay.now)
    client.push(lane=1)
    assert relay.switch.stats().bytes_outstanding == 0


def test_two_users_silent_links_are_distrusted_one_after_another() -> None:
    # Each link has up to 4,096 packets to take back, and other users wait meanwhile.
    relay = Relay(unreceipted_bytes_max=20)
    client, exit_ = bound(relay)
    links(relay, client, 1, 2, 3)
    exit_.push(data(22, 11, 501), data(22, 11, 502), data(22, 11, 503))
    assert [poll(relay, 3, 30), poll(relay, 2, 30)] == [[501], [502]]
    relay.advance(2 * SECOND)
    taken_back = []
    for _ in range(3):
        relay.switch.link_packets(1, [], relay.now)
        taken_back.append(relay.counters.packets_taken_back)
    assert taken_back == [1, 2, 2]
    assert poll(relay, 1) == [501, 502, 503]


def test_answers_are_no_larger_than_the_endpoint_accepts() -> None:  # 7.2, 7.11
    relay = Relay()
    client, exit_ = bound(relay)
    client.attach(generation=2, body_bytes_max=4096)
    exit_.push(*(data(22, 11, 501 + number, bytes(1000)) for number in range(10)))
    assert len(of_kind(client.push(), PacketType.DATA)) == 3


def test_a_packet_in_pieces_has_the_same_size_limit_as_others() -> None:  # 7.6
    relay = Relay(packet_bytes_max=1000)
    client, _ = bound(relay)
    packet = whole_packet(data(11, 22, 101, bytes(2000)))
    client.answer(client.send(piece=True, payload=[packet[:500]]))
    assert relay.counters.packets_damaged == 1


def test_a_packet_that_just_fits_an_answer_is_confirmed_by_the_next_request() -> None:  # 7.3
    relay = Relay()
    client, exit_ = bound(relay)
    packet = data(22, 11, 501, bytes(100))
    exit_.push(packet)
    limit = 124 + ANSWER_BYTES + EVIDENCE_BYTES * relay.config.lanes_max
    assert len(client.packets(client.send(answer_bytes_max=limit))) == 1
    assert relay.switch.stats().bytes_outstanding > 0
    client.pull()
    assert relay.switch.stats().bytes_outstanding == 0


def test_a_packet_that_leaves_in_pieces_is_counted_once() -> None:  # 7.6
    relay = Relay()
    client, exit_ = bound(relay)
    exit_.push(data(22, 11, 501, bytes(5000)))
    held = relay.switch.stats().bytes_held
    for _ in range(2):
        client.answer(client.send(answer_bytes_max=2000))
        assert relay.switch.stats().bytes_held == held
