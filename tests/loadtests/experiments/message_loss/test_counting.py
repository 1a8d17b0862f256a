"""A message counts once as buffered and once as written, with its bytes on the wire, at a socket and in a tunnel."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.experiments.message_loss.counting import Moved, SocketCounting, TunnelCounting
from loadtests.experiments.message_loss.records import Recorder
from loadtests.experiments.message_loss.statistics import Count, Phase, PhaseStatistics
from tunnel.traces.jsonl import read_records


@pytest.fixture
def statistics() -> PhaseStatistics:
    return PhaseStatistics()


@pytest.fixture
def record(tmp_path: Path, statistics: PhaseStatistics) -> Iterator[Recorder]:
    with Recorder(tmp_path, "sender", statistics) as made:
        yield made


def counts(statistics: PhaseStatistics, phase: Phase = Phase.BEFORE) -> tuple[Count, Count]:
    return statistics.buffered[phase], statistics.written[phase]


def test_at_a_socket_a_message_is_written_when_the_buffer_was_taken(
    statistics: PhaseStatistics, record: Recorder
) -> None:
    counting = SocketCounting(statistics, record)
    counting.taken()
    for moved in (Moved(0, 7), Moved(1, 100), Moved(2, 101)):
        counting.moved(moved)
    assert counts(statistics) == (Count(2, 201), Count())
    counting.taken()
    assert counts(statistics) == (Count(2, 201), Count(2, 201))
    counting.moved(Moved(3, 100))
    counting.lost()
    counting.moved(Moved(4, 100))
    counting.taken()
    assert counts(statistics) == (Count(4, 401), Count(3, 301))


class Stream:
    """A tunnel's stream: how many of its bytes have been in a batch."""

    carried = 0


def test_in_a_tunnel_a_message_is_buffered_when_a_batch_has_its_last_byte(
    statistics: PhaseStatistics, record: Recorder
) -> None:
    stream = Stream()
    counting = TunnelCounting(statistics, record, lambda: stream.carried)
    for moved in (Moved(0, 10), Moved(1, 100), Moved(2, 100)):
        counting.moved(moved)
    counting.taken()  # the tunnel has taken the messages, but nothing has left this process
    assert counts(statistics) == (Count(), Count())
    stream.carried = 109
    counting.increment_out_bytes(150)
    assert counts(statistics) == (Count(), Count())
    counting.register_write(200)
    stream.carried = 210
    counting.increment_out_bytes(130)
    assert counts(statistics) == (Count(2, 200), Count())
    counting.register_write(180)
    assert counts(statistics) == (Count(2, 200), Count(2, 200))
    assert (counting.out_bytes, counting.written_bytes) == (280, 380)


def test_in_a_tunnel_repeats_count_no_message_again(statistics: PhaseStatistics, record: Recorder) -> None:
    stream = Stream()
    counting = TunnelCounting(statistics, record, lambda: stream.carried)
    counting.moved(Moved(1, 100))
    stream.carried = 100
    counting.increment_out_bytes(120)
    counting.register_write(150)
    counting.increment_out_bytes(120)  # the packet is sent again, in a batch of its own
    counting.register_write(150)
    counting.register_write(150)  # the batch is sent again
    counting.lost()
    assert counts(statistics) == (Count(1, 100), Count(1, 100))


def test_in_a_tunnel_batches_under_way_at_the_break_are_buffered_before_and_written_after(
    statistics: PhaseStatistics, record: Recorder, tmp_path: Path
) -> None:
    stream = Stream()
    counting = TunnelCounting(statistics, record, lambda: stream.carried)
    for number in (1, 2, 3):
        counting.moved(Moved(number, 100))
    stream.carried = 100
    counting.increment_out_bytes(120)
    stream.carried = 200
    counting.increment_out_bytes(125)
    counting.register_write(122)  # the write of the first batch: the second one is larger
    statistics.phase = Phase.AFTER
    counting.register_write(150)
    stream.carried = 300
    counting.increment_out_bytes(120)
    counting.register_write(150)
    assert counts(statistics) == (Count(2, 200), Count(1, 100))
    assert counts(statistics, Phase.AFTER) == (Count(1, 100), Count(2, 200))
    record.__exit__(None, None, None)
    found = [
        (each.event, each.sequence, each.size_bytes, each.cause) for each in read_records(tmp_path / "sender.jsonl")
    ]
    assert found == [
        ("message_buffered", 1, 100, "before"),
        ("message_buffered", 2, 100, "before"),
        ("message_written", 1, 100, "before"),
        ("message_written", 2, 100, "after"),
        ("message_buffered", 3, 100, "after"),
        ("message_written", 3, 100, "after"),
    ]
