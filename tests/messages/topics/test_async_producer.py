"""The producer with a queue: policies, batches, callbacks, and a report of every loss."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.messages.streams import stream_pair
from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tunnel.messages.errors import MessageError, ProducerClosedError
from tunnel.messages.topics.async_producer import AsyncProducer, AsyncProducerConfig, CallbackHandler, QueueItem
from tunnel.messages.topics.producers import Producer, StringEncoder, SyncProducer
from tunnel.messages.topics.requests import ProduceDecoder


class Sink:
    """A writer that keeps the data; `drain` waits until `open` is set."""

    def __init__(self) -> None:
        self.decoder = ProduceDecoder()
        self.batches: list[list[tuple[str, int, list[bytes]]]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: OSError | None = None
        self.draining = asyncio.Event()

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        for requests in self.decoder.feed(data):
            self.batches.append([(each.topic, each.partition, list(each.messages.payloads())) for each in requests])

    async def drain(self) -> None:
        self.draining.set()
        await self.open.wait()


class Notes(CallbackHandler):
    """Records every call; its `send` drops the message "drop me"."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def enqueue(self, item: QueueItem, *, added: bool) -> None:
        self.calls.append(("enqueue" if added else "refuse", item.value))

    def dequeue(self, items: Sequence[QueueItem]) -> None:
        self.calls.append(("dequeue", [item.value for item in items]))

    def send(self, items: Sequence[QueueItem]) -> Sequence[QueueItem]:
        kept = [item for item in items if item.value != "drop me"]
        self.calls.append(("send", [item.value for item in kept]))
        return super().send(kept)

    def result(self, items: Sequence[QueueItem], error: Exception | None) -> None:
        self.calls.append(("result" if error is None else f"failed: {error}", [item.value for item in items]))

    def close(self) -> None:
        self.calls.append(("close", None))


@asynccontextmanager
async def producer(
    sink: Sink, callbacks: CallbackHandler | None = None, **config: float
) -> AsyncIterator[AsyncProducer]:
    sync = SyncProducer(sink, encoder=StringEncoder(), message_bytes_max=100)  # type: ignore[arg-type]
    settings = AsyncProducerConfig(**{"linger_s": 3600.0, **config})  # type: ignore[arg-type]
    async with AsyncProducer(sync, settings, callback_handler=callbacks) as made:
        yield made


@in_loop
async def test_a_full_batch_is_grouped_by_topic_and_partition() -> None:
    sink = Sink()
    async with producer(sink, batch_max=4, queue_max=10) as made:
        for number in range(8):
            assert made.offer("even" if number % 2 == 0 else "odd", str(number), partition=number // 4)
        assert made.items_queued == 8
    assert sink.batches == [
        [("even", 0, [b"0", b"2"]), ("odd", 0, [b"1", b"3"])],
        [("even", 1, [b"4", b"6"]), ("odd", 1, [b"5", b"7"])],
    ]


@in_loop
async def test_other_tasks_run_while_a_long_queue_is_sent() -> None:
    sink = Sink()
    seen: list[int] = []

    async def look() -> None:
        while sum(len(payloads) for batch in sink.batches for _, _, payloads in batch) < 5_000:
            seen.append(len(sink.batches))
            await asyncio.sleep(0)

    async with producer(sink, batch_max=100) as made:
        for _ in range(5_000):
            made.offer("orders", "tea")
        await look()
    assert {10, 20, 30, 40} <= set(seen)


@in_loop
async def test_a_batch_waits_for_more_messages_only_for_the_linger_time() -> None:
    sink = Sink()
    async with producer(sink, linger_s=0.001) as made:
        assert await made.send("t", "alone")
        await sink.draining.wait()
        assert sink.batches == [[("t", 0, [b"alone"])]]
    sink = Sink()
    async with producer(sink, linger_s=0) as made:
        made.offer("t", "at once")
        await sink.draining.wait()


@in_loop
async def test_flush_and_close_send_everything() -> None:
    sink = Sink()
    async with producer(sink) as made:
        await made.flush()
        made.offer("t", "a")
        await made.flush()
        assert sink.batches == [[("t", 0, [b"a"])]]
        made.offer("t", "b")
        flush = asyncio.ensure_future(made.flush())
        await asyncio.sleep(0)
        flush.cancel()
        made.offer("t", "c")
    assert sink.batches[1:] == [[("t", 0, [b"b", b"c"])]]
    with pytest.raises(ProducerClosedError):
        await made.send("t", "late")
    await made.close()
    never = AsyncProducer(SyncProducer(sink))  # type: ignore[arg-type]
    never.offer("t", b"x")
    await never.close()  # without start
    assert sink.batches[-1] == [("t", 0, [b"x"])]


async def filled(made: AsyncProducer, sink: Sink) -> None:
    """Fill the queue while one batch is in the stream."""
    sink.open.clear()
    made.offer("t", "0")
    made.offer("t", "1")
    await sink.draining.wait()
    made.offer("t", "2")
    made.offer("t", "3")
    assert made.items_queued == 2


@in_loop
async def test_a_timeout_of_zero_refuses_at_once() -> None:
    sink, notes = Sink(), Notes()
    async with producer(sink, notes, queue_max=2, batch_max=2) as made:
        await filled(made, sink)
        assert await made.send("t", "4") is False
        assert made.offer("t", "5") is False
        sink.open.set()
    assert ("refuse", "4") in notes.calls
    assert [batch[0][2] for batch in sink.batches] == [[b"0", b"1"], [b"2", b"3"]]


@in_loop
async def test_a_negative_timeout_waits_until_there_is_room() -> None:
    sink = Sink()
    async with producer(sink, queue_max=2, batch_max=2, enqueue_timeout_ms=-1) as made:
        await filled(made, sink)
        waiting = [asyncio.ensure_future(made.send("t", str(number))) for number in (4, 5, 6)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        waiting[0].cancel()
        sink.open.set()
        assert await asyncio.gather(*waiting[1:]) == [True, True]
    assert sorted(value for batch in sink.batches for value in batch[0][2]) == [b"0", b"1", b"2", b"3", b"5", b"6"]


@in_loop_within(HANGING_S)
async def test_a_sender_cancelled_at_its_turn_passes_the_turn_on() -> None:
    sink = Sink()
    async with producer(sink, queue_max=1, batch_max=1, enqueue_timeout_ms=-1) as made:
        sink.open.clear()
        made.offer("t", "0")
        await sink.draining.wait()
        made.offer("t", "1")
        first, second = (asyncio.ensure_future(made.send("t", str(number))) for number in (2, 3))
        await asyncio.sleep(0)
        made._take()
        first.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        sink.open.set()
        assert second.done()
        assert await second is True


@in_loop
async def test_a_positive_timeout_waits_for_room_but_no_longer_than_that() -> None:
    sink = Sink()
    async with producer(sink, queue_max=2, batch_max=2, enqueue_timeout_ms=5) as made:
        await filled(made, sink)
        assert await made.send("t", "4") is False
        sink.open.set()
    async with producer(sink, queue_max=2, batch_max=2, enqueue_timeout_ms=3_600_000) as made:
        sink.draining.clear()
        await filled(made, sink)
        waiting = asyncio.ensure_future(made.send("t", "4"))
        await asyncio.sleep(0)
        sink.open.set()
        assert await waiting is True


@in_loop
async def test_closing_refuses_waiting_senders_and_sends_queued_messages() -> None:
    sink = Sink()
    async with producer(sink, queue_max=2, batch_max=2, enqueue_timeout_ms=-1) as made:
        await filled(made, sink)
        waiting = asyncio.ensure_future(made.send("t", "4"))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(made.close())
        with pytest.raises(ProducerClosedError):
            await waiting
        sink.open.set()
        await closing
    assert len(sink.batches) == 2


@in_loop
async def test_callbacks_are_called_at_every_step() -> None:
    sink, notes = Sink(), Notes()
    async with producer(sink, notes, batch_max=3) as made:
        for value in ("a", "drop me", "b"):
            made.offer("t", value)
    assert notes.calls == [
        ("enqueue", "a"),
        ("enqueue", "drop me"),
        ("enqueue", "b"),
        ("dequeue", ["a", "drop me", "b"]),
        ("send", ["a", "b"]),
        ("result", ["a", "b"]),
        ("close", None),
    ]
    quiet = CallbackHandler()
    quiet.enqueue(QueueItem("t", 1), added=True)
    async with producer(sink, quiet) as made:
        made.offer("t", "c")
    assert sink.batches[-1] == [("t", 0, [b"c"])]


@in_loop
async def test_messages_that_cannot_be_sent_are_reported_and_the_others_sent() -> None:
    sink, notes = Sink(), Notes()
    async with producer(sink, notes) as made:
        for value in ("good", "x" * 101, 5):
            made.offer("t", value)
        with pytest.raises(MessageError, match="2 messages so far could not be sent"):
            await made.flush()
        await made.flush()
        sink.error = ConnectionResetError("gone")
        made.offer("t", "lost")
        with pytest.raises(MessageError, match="gone"):
            await made.flush()
        made.offer("t", "lost too")
        with pytest.raises(MessageError, match="gone"):
            await made.close()
        assert made.failed == 4
    assert sink.batches == [[("t", 0, [b"good"])]]
    failed = [values for name, values in notes.calls if name.startswith("failed")]
    assert failed == [["x" * 101], [5], ["lost"], ["lost too"]]
    assert ("result", ["good"]) in notes.calls


@in_loop
async def test_a_custom_event_handler_can_replace_the_default() -> None:
    taken: list[str] = []

    class Keep:
        async def handle(self, items: Sequence[QueueItem], producer: Producer) -> Sequence[tuple[QueueItem, Exception]]:
            taken.extend(item.value for item in items)
            return ()

    async with stream_pair() as (near, _), AsyncProducer(SyncProducer(near[1]), event_handler=Keep()) as made:
        made.offer("t", "a")
    assert taken == ["a"]


def test_invalid_settings_are_refused() -> None:
    for wrong in ({"batch_max": 0}, {"batch_max": 11, "queue_max": 10}, {"linger_s": -1}):
        with pytest.raises(ValueError, match="must hold"):
            AsyncProducerConfig(**wrong)
