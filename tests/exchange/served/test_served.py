"""The relay's half of a lane (PROTOCOL 7.3, 7.4, 7.6), rule by rule."""

from typing import Any

import pytest

from tests.exchange.loop import MemoryOutbox, data_frame, data_packet
from tunnel.exchange.served.served import Reply, ServedLane, ServedLimits, ServedRequest
from tunnel.wire import (
    ANSWER_BYTES,
    EVIDENCE_BYTES,
    Answer,
    Buffer,
    Exchange,
    encode_envelope,
    encode_packets,
    parse_packets,
)

SECOND = 1_000_000
LIMITS = ServedLimits(lanes=2, packet_bytes_max=4096, answer_bytes_max=4096, hold_us_max=15 * SECOND)
FRAME_BYTES = data_frame(0).size


class Bench:
    """A lane and its outbox, with short calls for requests."""

    def __init__(self, limits: ServedLimits = LIMITS) -> None:
        self.outbox = MemoryOutbox()
        self.lane = ServedLane(0, self.outbox, lambda: [(0, self.lane.answered), (1, 7)], limits)
        self.handle = 0

    def give(self, *names: int, size: int = 8) -> None:
        self.outbox.frames.extend(data_frame(name, size) for name in names)

    def receive(self, number: int, received: int = 0, names: tuple[int, ...] = (), **fields: Any) -> ServedRequest:
        self.handle += 1
        payload: list[Buffer] = encode_packets([data_packet(name) for name in names])
        settings: dict[str, Any] = {"answer_bytes_max": 4096, "hold_ms": 0} | fields
        pull = settings["hold_ms"] > 0
        exchange = Exchange(bytes(16), 1, 1, 0, number, received, payload=payload, pull=pull, **settings)
        return self.lane.receive(exchange, self.handle, 0)

    def request(self, number: int, received: int = 0, now: int = 0, **fields: Any) -> Reply:
        arrival = self.receive(number, received, **fields)
        if not arrival.applies:
            return arrival.replies[-1]
        reply = self.lane.answer(now)
        assert reply is not None
        return reply

    def park(self, number: int, received: int = 0, now: int = 0, hold_ms: int = 1000) -> ServedRequest:
        arrival = self.receive(number, received, hold_ms=hold_ms)
        assert self.lane.answer(now) is None
        return arrival


def names(reply: Reply | None) -> list[int]:
    assert reply is not None
    packets, discarded = parse_packets(reply.answer.data)
    assert discarded is None
    return [packet.sequence for packet in packets]


def test_a_push_is_applied_and_answered_at_once_with_what_waits() -> None:
    bench = Bench()
    bench.give(1, 2)
    arrival = bench.receive(1, names=(5, 6))
    assert arrival.applies
    assert ([frame.sequence for frame in arrival.frames], arrival.replies, arrival.discarded) == ([5, 6], [], None)
    reply = bench.lane.answer(0)
    assert reply is not None
    assert names(reply) == [1, 2]
    answer = reply.answer
    assert (reply.handle, answer.lane, answer.number, answer.serial, answer.more) == (1, 0, 1, 1, False)


def test_every_answer_carries_evidence_that_includes_its_own_number() -> None:
    bench = Bench()
    assert bench.request(3).answer.evidence == [(0, 3), (1, 7)]


def test_packets_are_freed_when_their_answer_is_confirmed() -> None:
    bench = Bench()
    bench.give(1, 2)
    bench.request(1)
    assert bench.lane.held_bytes == 2 * FRAME_BYTES
    assert names(bench.request(2, received=1)) == []
    assert bench.lane.held_bytes == 0
    assert bench.lane.serial == 2


def test_packets_that_were_not_received_are_first_in_line_again_in_order() -> None:
    bench = Bench()
    bench.give(1, 2)
    bench.request(1)
    bench.give(3)
    assert names(bench.request(2, received=0)) == [1, 2, 3]


def test_a_repeat_is_not_applied_and_gets_the_same_packets_under_a_new_serial() -> None:
    bench = Bench()
    bench.give(1, 2)
    bench.request(1)
    bench.give(3)
    arrival = bench.receive(1, names=(5,))
    assert (arrival.applies, arrival.frames) == (False, [])
    (reply,) = arrival.replies
    assert names(reply) == [1, 2]
    assert (reply.answer.serial, reply.answer.more, bench.lane.repeats) == (2, True, 1)


@pytest.mark.parametrize("received", [1, 2])
def test_the_serial_of_either_answer_to_a_repeated_request_confirms_its_packets(received: int) -> None:
    bench = Bench()
    bench.give(1)
    bench.request(1)
    bench.request(1)
    bench.give(2)
    assert names(bench.request(2, received=received)) == [2]


def test_a_repeat_without_anything_unconfirmed_takes_nothing_new() -> None:
    bench = Bench()
    bench.request(1)
    bench.give(1)
    assert names(bench.request(1)) == []
    assert names(bench.request(2, received=2)) == [1]


def test_a_lower_number_gets_an_empty_answer_and_changes_nothing() -> None:
    bench = Bench()
    bench.give(1)
    bench.request(2)
    reply = bench.request(1)
    assert (names(reply), reply.answer.number, reply.answer.serial) == ([], 1, 1)
    assert bench.lane.answered == 2
    assert names(bench.request(2)) == [1]


def test_numbers_may_be_skipped() -> None:
    bench = Bench()
    bench.request(1)
    assert bench.receive(5, names=(9,)).applies
    assert bench.lane.highest == 5


# parking


def test_a_pull_that_finds_nothing_is_parked_until_something_waits() -> None:
    bench = Bench()
    bench.park(1, now=5)
    assert (bench.lane.parked_handle, bench.lane.parked_at_us, bench.lane.parked_until_us) == (1, 5, SECOND + 5)
    assert (bench.lane.highest, bench.lane.answered) == (1, 0)
    assert bench.lane.wake(0) is None
    bench.give(1)
    reply = bench.lane.wake(0)
    assert reply is not None
    assert (reply.handle, names(reply), reply.answer.serial) == (1, [1], 1)
    assert (bench.lane.parked_handle, bench.lane.answered) == (None, 1)
    assert bench.lane.wake(0) is None


def test_a_pull_that_finds_something_is_answered_at_once() -> None:
    bench = Bench()
    bench.give(1)
    assert names(bench.request(1, hold_ms=1000)) == [1]


def test_the_hold_ends_with_an_empty_answer() -> None:
    bench = Bench()
    bench.park(1)
    assert bench.lane.expire(SECOND - 1) is None
    reply = bench.lane.expire(SECOND)
    assert (names(reply), bench.lane.parked_handle, bench.lane.answered) == ([], None, 1)
    assert bench.lane.expire(SECOND) is None


def test_a_repeat_releases_the_parked_original_under_a_serial_of_its_own() -> None:
    bench = Bench()
    bench.park(1)
    original, repeat = bench.receive(1, hold_ms=1000).replies
    assert (original.handle, names(original), original.answer.serial) == (1, [], 1)
    assert (repeat.handle, names(repeat), repeat.answer.serial) == (2, [], 2)
    assert bench.lane.parked_handle is None


def test_a_higher_number_releases_the_parked_request() -> None:
    bench = Bench()
    bench.park(1)
    arrival = bench.park(2)
    assert [(reply.handle, reply.answer.number) for reply in arrival.replies] == [(1, 1)]
    assert bench.lane.parked_handle == 2


def test_a_parked_pull_is_dropped_with_its_connection() -> None:
    bench = Bench()
    bench.park(1)
    bench.lane.on_gone(99)
    assert bench.lane.parked_handle == 1
    bench.lane.on_gone(1)
    bench.lane.on_gone(1)
    bench.give(1)
    assert bench.lane.wake(0) is None
    assert names(bench.request(1)) == []
    assert names(bench.request(2, received=1)) == [1]


# limits


def limit_for(payload_bytes: int) -> int:
    return payload_bytes + ANSWER_BYTES + EVIDENCE_BYTES * LIMITS.lanes


def test_an_answer_never_exceeds_the_limit_asked_for() -> None:
    bench = Bench()
    bench.give(1, 2, 3)
    reply = bench.request(1, answer_bytes_max=limit_for(2 * FRAME_BYTES))
    assert (names(reply), reply.answer.more) == ([1, 2], True)
    assert sum(map(len, encode_envelope(reply.answer))) == limit_for(2 * FRAME_BYTES)


def test_an_answer_never_exceeds_the_limit_of_the_relay() -> None:
    bench = Bench(ServedLimits(lanes=2, answer_bytes_max=limit_for(FRAME_BYTES)))
    bench.give(1, 2)
    assert names(bench.request(1, answer_bytes_max=1 << 31)) == [1]


def test_a_limit_without_room_for_a_header_gets_nothing() -> None:
    bench = Bench()
    bench.give(1)
    reply = bench.request(1, answer_bytes_max=limit_for(23))
    assert (names(reply), reply.answer.more) == ([], True)


def test_packets_that_a_smaller_repeat_cannot_hold_are_first_in_line_again() -> None:
    bench = Bench()
    bench.give(1, 2, 3)
    bench.request(1)
    assert names(bench.request(1, answer_bytes_max=limit_for(FRAME_BYTES))) == [1]
    bench.give(4)
    assert names(bench.request(2, received=2)) == [2, 3, 4]


def test_only_serials_up_to_the_newest_were_sent() -> None:
    bench = Bench()
    bench.give(1)
    assert [bench.lane.has_sent(serial) for serial in (0, 1)] == [True, False]
    bench.request(1)
    assert [bench.lane.has_sent(serial) for serial in (0, 1, 2)] == [True, True, False]
    bench.request(1)
    assert bench.lane.has_sent(2)


def test_the_last_serial_is_never_exceeded() -> None:
    bench = Bench()
    bench.lane.serial = 2**32 - 2
    assert [bench.request(number, received=2**32 - 1).answer.serial for number in (1, 2)] == [2**32 - 1] * 2


# packets in pieces


def pieces(bench: Bench, size: int) -> list[Answer]:
    """Pull a large packet with small answers until nothing more waits; each answer is confirmed."""
    answers: list[Answer] = []
    received, number, more = 0, bench.lane.highest, True
    while more:
        number += 1
        answer = bench.request(number, received, answer_bytes_max=limit_for(size)).answer
        received, more = answer.serial, answer.more
        answers.append(answer)
    return answers


def test_a_packet_larger_than_the_answer_leaves_in_pieces() -> None:
    bench = Bench()
    bench.give(1, size=1000)
    bench.give(2)
    answers = pieces(bench, 400)
    assert [(answer.piece, answer.piece_offset) for answer in answers] == [
        (True, 0),
        (True, 400),
        (True, 800),
        (False, 0),
    ]
    assert b"".join(answer.data for answer in answers[:3]) == data_frame(1, 1000).data
    assert [answer.more for answer in answers] == [True, True, True, False]
    assert bench.lane.held_bytes == FRAME_BYTES


def test_a_piece_is_repeated_or_sent_again_if_it_was_not_received() -> None:
    bench = Bench()
    bench.give(1, size=1000)
    first = bench.request(1, answer_bytes_max=limit_for(400)).answer
    again = bench.request(1, answer_bytes_max=limit_for(400)).answer
    assert (again.data, again.serial, again.piece, again.more) == (first.data, 2, True, True)
    smaller = bench.request(2, received=0, answer_bytes_max=limit_for(300)).answer
    assert (smaller.piece_offset, smaller.data) == (0, first.data[:300])
    last = bench.request(3, received=3, answer_bytes_max=limit_for(4000)).answer
    assert (last.piece_offset, len(last.data), last.piece, last.more) == (300, 724, True, False)
    assert bench.lane.held_bytes == 1024
    bench.request(4, received=4)
    assert bench.lane.held_bytes == 0


def test_a_piece_that_a_smaller_repeat_cannot_hold_puts_the_packet_back_whole() -> None:
    bench = Bench()
    bench.give(1, size=1000)
    bench.request(1, answer_bytes_max=limit_for(400))
    bench.request(2, received=1, answer_bytes_max=limit_for(400))
    reply = bench.request(2, received=1, answer_bytes_max=limit_for(300))
    assert (names(reply), reply.answer.piece, reply.answer.more) == ([], False, True)
    assert names(bench.request(3, received=2)) == [1]


def test_a_packet_may_arrive_in_pieces() -> None:
    bench = Bench()
    data = data_frame(1, 1000).data
    frames = []
    for number, start in enumerate(range(0, len(data), 400), 1):
        exchange = Exchange(
            bytes(16), 1, 1, 0, number, 0, 0, 4096, start, piece=True, payload=data[start : start + 400]
        )
        arrival = bench.lane.receive(exchange, number, 0)
        assert bench.lane.held_bytes == min(start + 400, 1024) % 1024
        bench.lane.answer(0)
        frames += arrival.frames
    assert [frame.data for frame in frames] == [data]


# the end


def test_closing_puts_everything_back_and_releases_what_is_parked() -> None:
    bench = Bench()
    bench.give(1, 2)
    bench.request(1)
    assert bench.lane.close() == []
    assert bench.lane.held_bytes == 0
    other = Bench()
    other.park(1)
    assert [reply.handle for reply in other.lane.close()] == [1]
    third = Bench()
    third.give(3, size=1000)
    third.request(1, answer_bytes_max=limit_for(400))
    third.request(2, received=1, answer_bytes_max=limit_for(400))
    third.lane.close()
    assert [frame.sequence for frame in [*bench.outbox.frames, *third.outbox.frames]] == [1, 2, 3]


def test_every_repeat_is_counted() -> None:
    bench = Bench()
    for _ in range(3):
        bench.request(1)
    assert bench.lane.repeats == 2


def test_a_push_is_never_parked() -> None:
    bench = Bench()
    bench.lane.receive(Exchange(bytes(16), 1, 1, 0, 1, 0, 1000, 4096, pull=False), 1, 0)
    assert bench.lane.answer(0) is not None


def test_the_error_for_answering_without_a_request_says_what_to_do() -> None:
    text = "there is no request to answer: call receive first, and answer only if it applies"
    with pytest.raises(ValueError, match=f"^{text}$"):
        Bench().lane.answer(0)


def test_room_for_a_header_is_room_for_the_smallest_packet() -> None:
    bench = Bench()
    bench.give(1, size=0)
    assert names(bench.request(1, answer_bytes_max=limit_for(24))) == [1]


def test_a_packet_that_fits_to_the_byte_is_not_cut() -> None:
    bench = Bench()
    bench.give(1)
    answer = bench.request(1, answer_bytes_max=limit_for(FRAME_BYTES)).answer
    assert (answer.piece, len(answer.data)) == (False, FRAME_BYTES)


def test_the_last_byte_of_a_packet_is_a_piece() -> None:
    bench = Bench()
    bench.give(1)
    limit = limit_for(FRAME_BYTES - 1)
    first = bench.request(1, answer_bytes_max=limit).answer
    last = bench.request(2, received=1, answer_bytes_max=limit).answer
    assert (first.piece, last.piece, last.piece_offset, len(last.data)) == (True, True, FRAME_BYTES - 1, 1)


def test_an_answer_without_packets_is_not_a_piece() -> None:
    bench = Bench()
    bench.give(1)
    bench.request(2)
    old = bench.request(1).answer
    assert (old.piece, old.piece_offset, len(old.data)) == (False, 0, 0)
