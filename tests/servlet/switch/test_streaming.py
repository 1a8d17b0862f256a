"""The streamed answers of several attachments (PROTOCOL 7.20): how long other users may wait for them."""

from tests.servlet.support import SECOND, Peer, Relay, bind, bound, data
from tunnel.wire import Answer, decode_envelope, parse_packets


def open_stream(client: Peer) -> int:
    """Let a pull on lane 1 be answered with a stream, and prove the stream. Return its handle."""
    handle = client.pull(lane=1, stream=True, hold_ms=60_000, answer_bytes_max=1 << 24)
    first = client.answer(handle)
    assert first.goes_on
    del client.relay.responses[handle]  # the envelope that ends the stream will be another response
    client.send(confirms=(1, first.serial))
    return handle


def poll(relay: Relay, handle: int) -> list[list[int]]:
    """Return the sequence numbers in each envelope that leaves now."""
    envelopes = []
    while (response := relay.switch.poll_stream(handle, relay.now)) is not None:
        answer = decode_envelope(b"".join(response.body))
        assert isinstance(answer, Answer)
        envelopes.append([packet.sequence for packet in parse_packets(answer.data)[0]])
    return envelopes


def test_two_users_a_stream_with_many_unconfirmed_packets_gets_no_more() -> None:
    # The relay takes all of them back at once, while other users wait; 8 MiB can hold 200,000 tiny packets.
    relay = Relay(unreceipted_packets_max=4)
    client, exit_ = bound(relay)
    stream = open_stream(client)
    exit_.push(*(data(22, 11, 501 + number) for number in range(6)))
    assert poll(relay, stream) == [[501, 502, 503, 504]]
    relay.advance(2 * SECOND)
    assert relay.counters.packets_taken_back == 4


def test_two_users_silent_streams_are_taken_back_one_at_a_time() -> None:
    relay = Relay()
    first, exit_ = bound(relay)
    second = Peer(relay, user="bob", seed=3).attached()
    bind(second, exit_, 12, 23)
    streams = [open_stream(first), open_stream(second)]
    exit_.push(data(22, 11, 501), data(23, 12, 601))
    assert [poll(relay, stream) for stream in streams] == [[[501]], [[601]]]
    relay.now += 2 * SECOND  # the timers of both fire together
    taken_back = []
    for _ in range(3):
        relay.switch.handle_timeout(relay.now)
        relay.settle()
        taken_back.append(relay.counters.packets_taken_back)
        relay.now += 1
    assert taken_back == [1, 2, 2]
    assert [packet.sequence for packet in first.push()] == [501]
    assert [packet.sequence for packet in second.push()] == [601]
