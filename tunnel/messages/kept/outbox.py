"""An outbox: accepted messages survive the end of this process and days without a network, and are sent in order.

Each message has a number, and each opening of the outbox an epoch. The receiver stores the outbox's epoch and the
message's number together with the message. A message that is sent twice therefore takes effect once. If two processes
send from copies of one outbox, the receiver refuses the one with the lower epoch.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import TypeAlias

import msgspec
import structlog

from tunnel.errors import TunnelError
from tunnel.messages.calls.calls import CallChannel, Request, Response
from tunnel.messages.errors import FencedError, LogError, MalformedFrameError, OutboxError, RemoteCallError
from tunnel.messages.kept.log import Log, LogConfig
from tunnel.messages.life import Closeable, Startable
from tunnel.messages.sets.message import MESSAGE_BYTES_MAX, UNPACKED_BYTES_MAX, check_size, count_whole, plain_payloads
from tunnel.system.durable_files import write_atomically

__all__ = [
    "DELIVER",
    "FENCED",
    "GAP",
    "HELLO",
    "Accept",
    "Connect",
    "Hello",
    "Outbox",
    "OutboxSender",
    "outbox_handlers",
    "read_batch",
]

HELLO = 100  # codes of requests
DELIVER = 101
FENCED = 110  # codes of answers
GAP = 111

_BATCH_BYTES = 256 * 1024
_IN_FLIGHT = 8  # batches that the receiver has not confirmed
_RETRY_S = 0.2  # first pause after a failure; it doubles with each further failure
_RETRY_MAX_S = 10.0
_ID_BYTES = 16

# An outbox flushes whenever messages wait. Messages that are appended during one flush share the next one.
_LOG_CONFIG = LogConfig(flush_messages=1, flush_s=0.0)
_logger = structlog.get_logger("tunnel.messages.kept.outbox")

Connect: TypeAlias = Callable[[], Awaitable[CallChannel]]
"""Opens a channel to the receiver, or returns the open one: `lambda: table.channel("reports")`."""


class _Identity(msgspec.Struct):
    """The content of `outbox.json`."""

    id: str
    epoch: int


class Outbox(Closeable):
    """A directory of messages to deliver. Open it with `Outbox.open`, in one process at a time."""

    def __init__(self, log: Log, outbox_id: bytes, epoch: int) -> None:
        self.id = outbox_id
        self.epoch = epoch
        self.log = log
        self.delivered_number = log.first_offset  # the receiver has confirmed every message before this number
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    @classmethod
    def open(cls, directory: Path | str, config: LogConfig | None = None) -> Outbox:
        """Open or create an outbox. LogError if another process has it open, or it cannot be recovered."""
        place = Path(directory)
        log = Log.open(place, config or _LOG_CONFIG)
        try:
            path = place / "outbox.json"
            if path.exists():
                known = msgspec.json.decode(path.read_bytes(), type=_Identity)
            else:
                if log.end_offset:
                    raise LogError(f"{path} is missing beside a log: restore it, or start with an empty directory")
                known = _Identity(secrets.token_hex(_ID_BYTES), 0)
            outbox_id = bytes.fromhex(known.id)
            known.epoch += 1
            # The epoch is on disk before the first message is sent, so that each opening of this directory has its own.
            write_atomically(path, msgspec.json.encode(known))
        except (msgspec.DecodeError, ValueError, OSError) as error:
            log.close()
            raise LogError(
                f"{place} is not an outbox: {error}; name the directory of an outbox, or an empty one"
            ) from error
        except BaseException:
            log.close()
            raise
        return cls(log, outbox_id, known.epoch)

    def close(self) -> None:
        """Flush the outbox, and release it for other processes."""
        self.log.close()

    async def put(self, payload: bytes) -> int:
        """Accept a message, and return its number. On return the message is on disk, and will be delivered.

        MessageTooLargeError if it has over 1,000,000 bytes. LogError if it cannot be written.
        """
        return await self.put_many([payload])

    async def put_many(self, payloads: Sequence[bytes]) -> int:
        """Accept several messages, as `put` does, and return the number of the first. All are accepted, or none."""
        for payload in payloads:
            check_size(payload, MESSAGE_BYTES_MAX)
        number = self.log.append(payloads)
        await self.log.until_flushed(number + len(payloads), now=True)
        return number

    @property
    def messages_undelivered(self) -> int:
        """The number of accepted messages that the receiver has not confirmed."""
        return self.log.end_offset - self.delivered_number

    async def until_delivered(self, number: int) -> None:
        """Wait until the receiver has this message on disk."""
        if number >= self.delivered_number:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((number, waiter))
            await waiter

    def confirm(self, number: int) -> None:
        """Forget the messages before this number, because the receiver has them. For senders."""
        if number <= self.delivered_number:
            return
        self.delivered_number = number
        self.log.trim(number)
        due = [waiter for wanted, waiter in self._waiters if wanted < number]
        self._waiters = [each for each in self._waiters if each[0] >= number]
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)


class OutboxSender(Startable):
    """Delivers the messages of an outbox while it runs: it connects, sends, and retries with exponential backoff.

    When only the operator can help, it stops and sets `error`: FencedError; or OutboxError if outbox and receiver
    disagree about which messages were delivered, or if the outbox's log has failed and the receiver has every message
    that is on disk.
    """

    def __init__(self, outbox: Outbox, connect: Connect, *, random: Random | None = None) -> None:
        self.error: OutboxError | None = None
        self.attempts = 0
        self._outbox = outbox
        self._connect = connect
        self._random = random or Random()
        self._task: asyncio.Task[None] | None = None
        self._expect_use()

    def start(self) -> None:
        """Start the task that delivers."""
        self._mark_used()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop delivering. Unconfirmed messages stay in the outbox."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self) -> None:
        """Wait until the sender has stopped for good.

        Raise `error` if it is set, or else the unexpected exception that ended the sender, such as one of `connect`.
        """
        assert self._task is not None
        await asyncio.wait([self._task])
        if self.error is not None:
            raise self.error.with_traceback(None)
        if not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        pause_s = _RETRY_S
        while True:
            self.attempts += 1
            before = self._outbox.delivered_number
            try:
                await self._deliver(await self._connect())
            except OutboxError as error:
                self.error = error
                _logger.error("an outbox stopped", outbox=self._outbox.id.hex(), error=str(error))
                return
            except (OSError, TunnelError, TimeoutError) as error:
                if self._outbox.delivered_number > before:
                    pause_s = _RETRY_S
                _logger.info("delivery interrupted", outbox=self._outbox.id.hex(), error=str(error), pause_s=pause_s)
            await asyncio.sleep(pause_s * (0.5 + self._random.random() / 2))
            pause_s = min(_RETRY_MAX_S, pause_s * 2)

    async def _deliver(self, channel: CallChannel) -> None:
        """Send until the channel fails. Batches in flight are confirmed in order."""
        outbox = self._outbox
        position = await self._hello(channel)
        outbox.confirm(position)
        in_flight: deque[asyncio.Task[int]] = deque()
        try:
            while True:
                while len(in_flight) < _IN_FLIGHT and position < outbox.log.end_offset:
                    data, count = read_batch(outbox.log, position)
                    in_flight.append(asyncio.get_running_loop().create_task(self._send(channel, position, data)))
                    await asyncio.sleep(0)  # batches leave in the order of their tasks
                    position += count
                if in_flight:
                    outbox.confirm(await in_flight.popleft())
                else:
                    await self._more(channel, position)
        finally:
            for task in in_flight:
                task.cancel()
            await asyncio.gather(*in_flight, return_exceptions=True)

    async def _more(self, channel: CallChannel, position: int) -> None:
        """Wait until there is more to send.

        Raise OutboxError if the log has failed, since nothing more will come; ConnectionResetError if the channel ends.
        """
        loop = asyncio.get_running_loop()
        waits: list[asyncio.Task[None]] = [
            loop.create_task(self._outbox.log.until_flushed(position + 1)),
            loop.create_task(channel.wait_closed()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if self._outbox.log.error is not None:
            raise OutboxError(f"{self._outbox.log.error}; everything on disk was delivered")
        if not channel.is_open:
            raise ConnectionResetError("the connection to the receiver has ended")

    async def _hello(self, channel: CallChannel) -> int:
        """Present this outbox and its epoch to the receiver, and return the number that it expects next."""
        log = self._outbox.log
        expected = await self._ask(channel, HELLO, 0, b"")
        if expected > log.end_offset:
            raise OutboxError(
                f"the receiver has {expected} messages of this outbox, which itself has only {log.end_offset}: the "
                "outbox was restored from an old copy; deliver its messages through a new outbox"
            )
        if expected < log.first_offset:
            raise OutboxError(
                f"the receiver expects message {expected}, but the outbox begins with {log.first_offset}: the receiver "
                "lost messages that it had confirmed; restore the receiver from a backup"
            )
        return expected

    async def _send(self, channel: CallChannel, position: int, data: bytes) -> int:
        return await self._ask(channel, DELIVER, position, data)

    async def _ask(self, channel: CallChannel, code: int, first: int, data: bytes) -> int:
        outbox = self._outbox
        fields = {"outbox": outbox.id.hex(), "epoch": str(outbox.epoch), "first": str(first)}
        try:
            # There is no timeout here: the tunnel detects a dead connection, and the receiver's disk may be slow.
            response = await channel.call(code, data, fields, timeout=None)
        except RemoteCallError as error:
            if error.code == FENCED:
                raise FencedError(f"{error}: a newer process sends from this outbox; stop this one") from error
            raise
        try:
            return int((response.fields or {})["next"])
        except (KeyError, ValueError):
            raise MalformedFrameError("the receiver did not answer with the number that it expects next") from None


def read_batch(log: Log, position: int, size_max: int = _BATCH_BYTES) -> tuple[bytes, int]:
    """Return whole messages from this offset on, as bytes, and their number."""
    data = log.read(position, size_max).load()
    count, end = count_whole(data)
    return data[:end], count


Hello: TypeAlias = Callable[[bytes, int], Awaitable[int]]
Accept: TypeAlias = Callable[[bytes, int, int, list[bytes]], Awaitable[int]]


def outbox_handlers(hello: Hello, accept: Accept) -> dict[int, Callable[[Request], Awaitable[Response] | Response]]:
    """Return the handlers of a receiver, for a CallChannel.

    `Inbox` uses them. An application that stores the messages with its own data can use them, too.

    `hello(id, epoch)` begins an epoch. `accept(id, epoch, first, payloads)` takes messages at once, in the order of its
    calls, and skips those that it already has. Both return an awaitable that ends when the change is durable, and gives
    the number expected next. Both raise RemoteCallError: FENCED for an old epoch, GAP for a number that is too high.
    """

    def place(request: Request) -> tuple[bytes, int, int]:
        fields = request.fields or {}
        try:
            return bytes.fromhex(fields["outbox"]), int(fields["epoch"]), int(fields["first"])
        except (KeyError, ValueError):
            raise RemoteCallError(GAP, "no outbox, epoch or number in the request") from None

    def on_hello(request: Request) -> Awaitable[Response]:
        outbox_id, epoch, _ = place(request)
        return confirm(hello(outbox_id, epoch))

    def on_deliver(request: Request) -> Awaitable[Response]:
        outbox_id, epoch, first = place(request)
        # Outboxes of older versions may hold messages that are larger than `put` accepts now; the largest frame
        # (16,777,216 bytes) is their only limit. Compressed messages are refused, since no outbox sends them and 30 KB
        # could become 700 MB.
        payloads, end = plain_payloads(request.body, message_bytes_max=UNPACKED_BYTES_MAX)
        if end != len(request.body):
            raise RemoteCallError(GAP, "an outbox must send whole and intact messages, without compression")
        return confirm(accept(outbox_id, epoch, first, payloads))

    async def confirm(durable: Awaitable[int]) -> Response:
        return Response(b"", {"next": str(await durable)})

    return {HELLO: on_hello, DELIVER: on_deliver}
