"""The sender of an outbox and a scripted receiver: what it asks, how much is in flight, and when it tries again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from random import Random
from typing import cast

import pytest
from structlog.testing import capture_logs

from tests.support.loops import HANGING_S, in_loop, in_loop_within, until
from tunnel.messages.calls.calls import CallChannel, Request, Response
from tunnel.messages.errors import FencedError, MalformedFrameError, OutboxError, RemoteCallError
from tunnel.messages.kept.log import LogConfig
from tunnel.messages.kept.outbox import (
    DELIVER,
    FENCED,
    GAP,
    HELLO,
    Outbox,
    OutboxSender,
    outbox_handlers,
    read_batch,
)
from tunnel.messages.sets.message import encode_payloads
from tunnel.messages.sets.sets import ByteBufferMessageSet

Answer = Response | Exception | None


class Receiver:
    """The sender's end of a channel to a receiver.

    It answers the requests in turn with `answers`. A request whose answer is None, or for which none is left, waits
    until the test sets its future in `waiting`.
    """

    def __init__(self, *answers: Answer) -> None:
        self.is_open = True
        self.asked: list[tuple[int, dict[str, str], bytes]] = []
        self.timeouts: set[float | None] = set()
        self.waiting: list[asyncio.Future[None]] = []
        self.active = 0  # requests that were neither answered nor given up
        self._answers = list(answers)
        self._ended = asyncio.Event()

    async def call(self, code: int, body: bytes, fields: dict[str, str], *, timeout: float | None = 30.0) -> Response:  # noqa: ASYNC109
        self.timeouts.add(timeout)
        self.asked.append((code, fields, body))
        answer = self._answers[len(self.asked) - 1] if len(self.asked) <= len(self._answers) else None
        if answer is None:
            answer = await self._wait(int(fields["first"]) + 1)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _wait(self, number: int) -> Response:
        self.active += 1
        try:
            self.waiting.append(asyncio.get_running_loop().create_future())
            await self.waiting[-1]
            return expects(number)
        finally:
            for _ in range(5):  # a cancelled call needs several turns of the loop to end
                await asyncio.sleep(0)
            self.active -= 1

    async def wait_closed(self) -> None:
        await self._ended.wait()

    def end(self) -> None:
        """End the channel, as if the connection had been lost."""
        self.is_open = False
        self._ended.set()

    @property
    def channel(self) -> CallChannel:
        return cast("CallChannel", self)


def expects(number: int) -> Response:
    """The answer of a receiver that expects this message next."""
    return Response(b"", {"next": str(number)})


def connecting(outcomes: Iterable[Receiver | Exception]) -> Callable[[], Awaitable[CallChannel]]:
    """Return a function that connects to these receivers, or fails with these errors, one after the other."""
    left = iter(outcomes)

    async def connect() -> CallChannel:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found.channel

    return connect


def longest() -> Random:
    """A source of random numbers with which each pause is as long as it may be."""
    random = Random(1)
    random.random = lambda: 1.0  # type: ignore[method-assign]
    return random


class Pauses:
    """Takes the place of `asyncio.sleep`, and notes the pauses instead of making them."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self._real = asyncio.sleep

    async def sleep(self, seconds: float) -> None:
        if seconds:
            self.taken.append(seconds)
        await self._real(0)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    found = Pauses()
    monkeypatch.setattr(asyncio, "sleep", found.sleep)
    return found


@in_loop_within(HANGING_S)
async def test_a_receiver_that_is_down_is_asked_with_exponential_backoff(tmp_path: Path, pauses: Pauses) -> None:
    """A sender without pauses would take a whole processor, and flood the receiver when it comes back."""
    with Outbox.open(tmp_path) as outbox:
        connect = connecting(ConnectionRefusedError("down") for _ in range(100))
        async with OutboxSender(outbox, connect, random=longest()) as sender:
            await until(lambda: sender.attempts >= 9)
    assert pauses.taken[:8] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


@in_loop_within(HANGING_S)
async def test_pauses_vary_so_that_many_senders_do_not_come_back_at_once(tmp_path: Path, pauses: Pauses) -> None:
    with Outbox.open(tmp_path) as outbox:
        connect = connecting(ConnectionRefusedError("down") for _ in range(100))
        senders = [OutboxSender(outbox, connect) for _ in range(2)]
        for sender in senders:
            sender.start()
        await until(lambda: all(sender.attempts >= 2 for sender in senders))
        for sender in senders:
            await sender.close()
    first, second = pauses.taken[:2]
    assert first != second
    assert all(0.1 <= pause <= 0.2 for pause in (first, second))


@in_loop_within(HANGING_S)
async def test_after_some_progress_the_next_pause_is_short_again(tmp_path: Path, pauses: Pauses, single: None) -> None:
    down = ConnectionResetError("down")
    with Outbox.open(tmp_path) as outbox:
        await outbox.put_many([b"a", b"b"])
        progressing = Receiver(expects(0), expects(1), down)
        connect = connecting([down, down, progressing, down, Receiver(expects(1), down), down, down])
        async with OutboxSender(outbox, connect, random=longest()) as sender:
            await until(lambda: sender.attempts >= 6)
    assert pauses.taken[:5] == [0.2, 0.4, 0.2, 0.4, 0.8]


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each batch have one message."""
    monkeypatch.setattr("tunnel.messages.kept.outbox.read_batch", lambda log, position: read_batch(log, position, 1))


@in_loop_within(HANGING_S)
async def test_a_sender_presents_its_outbox_and_sends_from_the_message_that_the_receiver_expects(
    tmp_path: Path,
) -> None:
    with Outbox.open(tmp_path) as outbox:
        await outbox.put_many([b"a", b"b", b"c"])
        receiver = Receiver(expects(1), expects(3), expects(4))
        async with OutboxSender(outbox, connecting([receiver])):
            await outbox.until_delivered(2)
            await outbox.put(b"d")
            await outbox.until_delivered(3)
        named = {"outbox": outbox.id.hex(), "epoch": "1"}
        assert receiver.asked == [
            (HELLO, named | {"first": "0"}, b""),
            (DELIVER, named | {"first": "1"}, encode_payloads([b"b", b"c"])),
            (DELIVER, named | {"first": "3"}, encode_payloads([b"d"])),
        ]
        assert receiver.timeouts == {None}  # the tunnel detects a dead connection; the receiver's disk may be slow


@in_loop_within(HANGING_S)
async def test_eight_batches_are_in_flight_in_their_order(tmp_path: Path, single: None) -> None:
    """With one at a time, each would wait for a round trip; without a limit, a slow receiver would fill the memory."""
    with Outbox.open(tmp_path) as outbox:
        await outbox.put_many([b"%d" % number for number in range(12)])
        receiver = Receiver(expects(0))
        async with OutboxSender(outbox, connecting([receiver])):
            for confirmed in range(5):
                for _ in range(100):
                    await asyncio.sleep(0)
                assert outbox.delivered_number == confirmed
                assert [body for _, _, body in receiver.asked[1:]] == [
                    encode_payloads([b"%d" % number]) for number in range(8 + confirmed)
                ]
                receiver.waiting[confirmed].set_result(None)
        assert outbox.messages_undelivered >= 7


@in_loop_within(HANGING_S)
async def test_a_channel_that_fails_with_batches_in_flight_is_followed_by_another(
    tmp_path: Path, pauses: Pauses, single: None
) -> None:
    """When the sender connects again, no batch of the first channel is in flight."""
    with Outbox.open(tmp_path) as outbox:
        await outbox.put_many([b"a", b"b", b"c"])
        first = Receiver(expects(0), ConnectionResetError("cut"), None, None)
        second = Receiver(expects(0), expects(1), expects(2), expects(3))
        left, active = [first, second], []

        async def connect() -> CallChannel:
            active.append(first.active)
            return left.pop(0).channel

        async with OutboxSender(outbox, connect):
            await outbox.until_delivered(2)
        assert len(first.waiting) == 2
        assert active == [0, 0]


@in_loop_within(HANGING_S)
async def test_a_sender_that_is_closed_has_given_up_everything(tmp_path: Path) -> None:
    with Outbox.open(tmp_path) as outbox:
        await outbox.put(b"a")
        receiver = Receiver(expects(0))
        async with OutboxSender(outbox, connecting([receiver])):
            await until(lambda: receiver.active == 1)
        assert receiver.active == 0
        assert outbox.messages_undelivered == 1


@in_loop_within(HANGING_S)
async def test_an_idle_sender_does_not_poll_for_the_next_message(tmp_path: Path) -> None:
    with Outbox.open(tmp_path) as outbox:
        asked: list[int] = []
        flushed = outbox.log.until_flushed

        async def noted(end: int, *, now: bool = False) -> None:
            asked.append(end)
            await flushed(end, now=now)

        await outbox.put(b"a")
        outbox.log.until_flushed = noted  # type: ignore[method-assign]
        async with OutboxSender(outbox, connecting([Receiver(expects(0), expects(1))])):
            await outbox.until_delivered(0)
            for _ in range(100):
                await asyncio.sleep(0)
        assert asked == [2]
        assert outbox.log._waiters == []


@in_loop_within(HANGING_S)
async def test_an_idle_sender_connects_again_when_its_connection_ends(tmp_path: Path, pauses: Pauses) -> None:
    with Outbox.open(tmp_path) as outbox, capture_logs() as lines:
        first, second = Receiver(expects(0)), Receiver(expects(0), expects(1))
        async with OutboxSender(outbox, connecting([first, second])):
            await until(lambda: len(first.asked) == 1)
            first.end()
            await until(lambda: len(second.asked) == 1)
            await outbox.put(b"a")
            await outbox.until_delivered(0)
    assert [line["error"] for line in lines] == ["the connection to the receiver has ended"]


@in_loop_within(HANGING_S)
@pytest.mark.parametrize("answer", [Response(b""), Response(b"", {}), Response(b"", {"next": "many"})])
async def test_an_answer_without_a_number_is_a_failure_like_any_other(
    tmp_path: Path, pauses: Pauses, answer: Response
) -> None:
    """If it ended the sender, messages would stay in the outbox, and the log of the program would not say why."""
    with Outbox.open(tmp_path) as outbox:
        await outbox.put(b"a")
        receivers = [Receiver(answer), Receiver(expects(0), answer), Receiver(expects(0), expects(1))]
        with capture_logs() as lines:
            async with OutboxSender(outbox, connecting(receivers)):
                await outbox.until_delivered(0)
    assert [(line["event"], line["error"]) for line in lines] == [
        ("delivery interrupted", "the receiver did not answer with the number that it expects next")
    ] * 2
    assert issubclass(MalformedFrameError, ConnectionError)


@in_loop_within(HANGING_S)
async def test_of_all_refusals_only_a_newer_epoch_stops_a_sender(tmp_path: Path, pauses: Pauses) -> None:
    with Outbox.open(tmp_path) as outbox, capture_logs() as lines:
        await outbox.put(b"a")
        receivers = [
            Receiver(RemoteCallError(GAP, "got message 5")),
            Receiver(expects(0), RemoteCallError(FENCED, "epoch 1 is over")),
        ]
        async with OutboxSender(outbox, connecting(receivers), random=longest()) as sender:
            text = "^epoch 1 is over: a newer process sends from this outbox; stop this one$"
            with pytest.raises(FencedError, match=text):
                await sender.wait()
            assert isinstance(sender.error, FencedError)
    told = {"outbox": outbox.id.hex()}
    assert lines == [
        {
            "event": "delivery interrupted",
            "log_level": "info",
            "error": "got message 5",
            "pause_s": 0.2,
            **told,
        },
        {"event": "an outbox stopped", "log_level": "error", "error": str(sender.error), **told},
    ]


@in_loop_within(HANGING_S)
async def test_wait_raises_an_unexpected_error_of_connect_and_returns_after_close(tmp_path: Path) -> None:
    with Outbox.open(tmp_path) as outbox:
        async with OutboxSender(outbox, connecting([ZeroDivisionError("a defect")])) as sender:
            with pytest.raises(ZeroDivisionError, match="a defect"):
                await sender.wait()
        sender = OutboxSender(outbox, connecting([Receiver()]))
        await sender.close()  # not started
        sender.start()
        waiting = asyncio.ensure_future(sender.wait())
        await asyncio.sleep(0)
        await sender.close()
        await waiting
        assert sender.error is None


@in_loop
async def test_a_receiver_that_lost_confirmed_messages_is_noticed_at_the_greeting(tmp_path: Path) -> None:
    """No outbox has those messages any more: sending the rest would leave a hole that nothing reports."""
    with Outbox.open(tmp_path, LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=10)) as outbox:
        for _ in range(5):
            await outbox.put(b"message")
        outbox.log.flush()
        outbox.confirm(3)
        assert outbox.log.first_offset == 3

        async def greeted(expected: int) -> OutboxError | None:
            async with OutboxSender(outbox, connecting([Receiver(expects(expected))])) as sender:
                await until(lambda: sender.error is not None or outbox.delivered_number == expected)
                return sender.error

        assert str(await greeted(2)) == (
            "the receiver expects message 2, but the outbox begins with 3: the receiver lost messages that it had "
            "confirmed; restore the receiver from a backup"
        )
        assert await greeted(3) is None
        assert str(await greeted(6)) == (
            "the receiver has 6 messages of this outbox, which itself has only 5: the outbox was restored from an old "
            "copy; deliver its messages through a new outbox"
        )
        assert await greeted(5) is None


class Store:
    """An application that stores messages with its own data."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    async def hello(self, *asked: object) -> int:
        self.asked.append(asked)
        return 7

    def accept(self, *asked: object) -> asyncio.Future[int]:
        self.asked.append(asked)
        durable: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        durable.set_result(9)
        return durable


NAMED = {"outbox": "00ff", "epoch": "3", "first": "5"}


@in_loop_within(HANGING_S)
async def test_an_application_gets_greetings_and_messages_and_its_answer_reaches_the_sender() -> None:
    store = Store()
    handlers = outbox_handlers(store.hello, store.accept)
    body = ByteBufferMessageSet.of([b"a", b"b"]).data
    assert await handlers[HELLO](Request(HELLO, b"", NAMED)) == Response(b"", {"next": "7"})  # type: ignore[misc]
    answer = handlers[DELIVER](Request(DELIVER, body, NAMED))
    assert store.asked == [(b"\0\xff", 3), (b"\0\xff", 3, 5, [b"a", b"b"])]  # taken before the answer is awaited
    assert await answer == Response(b"", {"next": "9"})  # type: ignore[misc]


@pytest.mark.parametrize("code", [HELLO, DELIVER])
@pytest.mark.parametrize(
    "changed", [None, {"outbox": "zz"}, {"epoch": "x"}, {"first": ""}, *({name: None} for name in NAMED)]
)
def test_a_request_that_names_no_message_is_refused(code: int, changed: dict[str, str | None] | None) -> None:
    store = Store()
    fields = (
        None if changed is None else {name: value for name, value in (NAMED | changed).items() if value is not None}
    )
    with pytest.raises(RemoteCallError, match=r"^no outbox, epoch or number in the request$") as caught:
        outbox_handlers(store.hello, store.accept)[code](Request(code, b"", fields))
    assert caught.value.code == GAP
    assert store.asked == []
