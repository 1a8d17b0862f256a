"""The tracer records the fate of each request, once."""

import pytest

from tunnel.traces import TraceEvent, TraceLevel, TraceRecord
from tunnel.traces.exchanges import ExchangeTracer


class Sink(list[TraceRecord]):
    """Keeps the records that it is given."""

    def __init__(self, level: TraceLevel) -> None:
        super().__init__()
        self.level = level

    def __call__(self, record: TraceRecord) -> None:
        self.append(record)


def tell(level: TraceLevel) -> Sink:
    sink = Sink(level)
    tracer = ExchangeTracer(sink, "node")
    tracer.on_sent(1, 2, 3, 0, "push", 100, 10)
    tracer.on_answered(1, 200, 50, 15)
    tracer.on_sent(2, 2, 4, 0, "pull", 60, 20)
    tracer.on_failed(2, 26)
    tracer.on_sent(3, 2, 4, 1, "pull", 60, 30)
    tracer.on_answered(3, 503, 7, 37)
    tracer.on_sent(4, -1, 1, 0, "attach", 70, 40)
    tracer.on_abandoned(4, 48)
    for again in (tracer.on_failed, tracer.on_abandoned):
        again(4, 50)
    tracer.on_answered(4, 200, 0, 50)
    return sink


def test_each_request_and_its_end_are_recorded() -> None:
    assert tell(TraceLevel.PACKET) == [
        record(TraceEvent.EXCHANGE_SENT, 10, 2, 3, 0, 0, "push", size_bytes=100),
        record(TraceEvent.EXCHANGE_ANSWERED, 15, 2, 3, 0, 5, "push", size_bytes=50, status=200),
        record(TraceEvent.EXCHANGE_SENT, 20, 2, 4, 0, 0, "pull", size_bytes=60),
        record(TraceEvent.EXCHANGE_FAILED, 26, 2, 4, 0, 6, "pull"),
        record(TraceEvent.EXCHANGE_REPEATED, 30, 2, 4, 1, 0, "pull", size_bytes=60),
        record(TraceEvent.EXCHANGE_ANSWERED, 37, 2, 4, 1, 7, "pull", size_bytes=7, status=503),
        record(TraceEvent.EXCHANGE_SENT, 40, -1, 1, 0, 0, "attach", size_bytes=70),
        record(TraceEvent.EXCHANGE_ABANDONED, 48, -1, 1, 0, 8, "attach"),
    ]


def test_the_connection_level_records_only_failures_repeats_and_abandoned_requests() -> None:
    events = [(each.event, each.status) for each in tell(TraceLevel.CONNECTION)]
    assert events == [
        (TraceEvent.EXCHANGE_FAILED, 0),
        (TraceEvent.EXCHANGE_REPEATED, 0),
        (TraceEvent.EXCHANGE_ANSWERED, 503),
        (TraceEvent.EXCHANGE_ABANDONED, 0),
    ]


def record(
    event: TraceEvent,
    time_us: int,
    lane: int,
    exchange: int,
    attempt: int,
    latency_us: int,
    text: str,
    *,
    size_bytes: int = 0,
    status: int = 0,
) -> TraceRecord:
    return TraceRecord(
        time_us=time_us,
        node="node",
        event=event,
        lane=lane,
        exchange=exchange,
        attempt=attempt,
        latency_us=latency_us,
        text=text,
        size_bytes=size_bytes,
        status=status,
    )


@pytest.mark.parametrize("status", [200, 404])
def test_an_answer_to_an_unknown_request_is_ignored(status: int) -> None:
    sink = Sink(TraceLevel.PACKET)
    ExchangeTracer(sink, "node").on_answered(1, status, 5, 5)
    assert sink == []
