"""Records that a real endpoint writes to its trace: relay, carrier, every exchange, and the name of the node."""

from tests.carriers.harness import echo, end, say_and_hear
from tests.support.loops import in_loop
from tests.support.relays import Fault, MemoryTestRelay, TestRelay
from tunnel.traces import TraceEvent, TraceLevel, TraceRecord


class Sink(list[TraceRecord]):
    """Keeps the records that it is given, at a level."""

    def __init__(self, level: TraceLevel = TraceLevel.PACKET) -> None:
        super().__init__()
        self.level = level

    def __call__(self, record: TraceRecord) -> None:
        self.append(record)

    def of(self, *events: TraceEvent) -> list[TraceRecord]:
        return [record for record in self if record.event in events]


async def talk(relay: TestRelay, sink: Sink, answers_503: int = 0) -> None:
    async with relay.attach("ann") as service, relay.attach("bob", name="bob", trace=sink) as client:
        await service.start_server(echo, "echo")
        answers = [Fault(503)] * answers_503
        relay.fault = lambda message: answers.pop() if answers else None
        _, writer = await say_and_hear(client)
        await end(writer)


@in_loop
async def test_the_trace_records_relay_carrier_and_exchanges() -> None:
    sink = Sink()
    async with MemoryTestRelay() as relay:
        await talk(relay, sink)
    (node,) = {record.node for record in sink}
    assert node.startswith("bob-")
    assert len(node) == len("bob-") + 8  # 8 digits of the attachment's id: a process that starts again is a new node
    assert sink.of(TraceEvent.ATTACHED)[0].count == 1
    carriers = {record.carrier for record in sink.of(TraceEvent.PACKET_SENT)}
    assert carriers == {sink.of(TraceEvent.CARRIER_CHANGED)[0].carrier}
    assert {record.text for record in sink.of(TraceEvent.EXCHANGE_SENT)} == {"attach", "push", "pull"}
    asked = {
        (record.lane, record.exchange, record.attempt)
        for record in sink.of(TraceEvent.EXCHANGE_SENT, TraceEvent.EXCHANGE_REPEATED)
    }
    answers = sink.of(TraceEvent.EXCHANGE_ANSWERED)
    assert {record.status for record in answers} == {200}
    assert all((record.lane, record.exchange, record.attempt) in asked for record in answers)
    sent, done = sink.of(TraceEvent.BATCH_SENT), sink.of(TraceEvent.BATCH_RECEIPTED)
    assert {record.batch for record in done} <= {record.batch for record in sent}


@in_loop
async def test_the_connection_level_records_only_failed_exchanges() -> None:
    sink = Sink(TraceLevel.CONNECTION)
    async with MemoryTestRelay() as relay:
        await talk(relay, sink, answers_503=6)
    assert {record.status for record in sink.of(TraceEvent.EXCHANGE_ANSWERED)} == {503}
    assert sink.of(TraceEvent.EXCHANGE_REPEATED)
    assert not sink.of(TraceEvent.EXCHANGE_SENT, TraceEvent.PACKET_SENT, TraceEvent.BATCH_SENT)
    assert sink.of(TraceEvent.ATTACHED)


@in_loop
async def test_the_level_off_records_nothing() -> None:
    sink = Sink(TraceLevel.OFF)
    async with MemoryTestRelay() as relay:
        await talk(relay, sink)
    assert sink == []
