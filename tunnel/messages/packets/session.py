"""The message session: packets of any size over one stream. Large packets are split, so that small ones do not wait."""

from __future__ import annotations

import asyncio
import enum
from collections import deque

from tunnel.messages.errors import ChannelClosedError, MalformedFrameError, MessageCancelledError
from tunnel.messages.life import Startable
from tunnel.messages.packets.assembler import AssemblerConfig, Disassembly, Packet, PacketAssembler
from tunnel.messages.packets.bodies import SpooledBody, ThreadSpoolWriter
from tunnel.messages.packets.dispatcher import Dispatcher, Handler
from tunnel.messages.packets.pacing import TARGET_US, TimeWindow
from tunnel.messages.packets.parts import (
    APPLICATION_TYPE_MIN,
    PART_BYTES_MAX,
    PART_BYTES_MIN,
    PART_HEADER_BYTES,
    SINGLE,
    Part,
    PartDecoder,
    PartType,
    encode_part_header,
)
from tunnel.system.clock import now_us

__all__ = ["MessageSession", "Priority"]

_READ_BYTES = 256 * 1024
_WRITE_BYTES = 192 * 1024  # written at once, before checking whether the stream has room
_PENDING_BYTES_MAX = 16 * 1024 * 1024  # while handlers hold more bytes than this, the session does not read
_PART_BYTES_MAX = 128 * 1024 - PART_HEADER_BYTES  # with its header it fills a packet of a fast link, without a copy
_REPORT_BYTES = 64 * 1024  # taken bytes are reported at once when there are this many
_REPORT_S = 0.001  # fewer are reported after this time, which is a fraction of the target for waiting
_TOTAL = 8  # bytes of the number in RECEIVED
_REASON_BYTES_MAX = 1000


class Priority(enum.IntEnum):
    """The priority of a packet. A part is sent only when no packet of a higher priority has a part to send."""

    CONTROL = 0
    HIGH = 1
    NORMAL = 2
    BULK = 3


class _Sending:
    """A packet that is being sent, and the future of its sender."""

    __slots__ = ("end", "parts", "sent")

    def __init__(self, parts: Disassembly, sent: asyncio.Future[None]) -> None:
        self.parts = parts
        self.sent = sent
        # The window's count of sent bytes after the last part. When the receiver reports as many bytes taken, it has
        # taken the packet.
        self.end = -1


class MessageSession(Startable):
    """Packets over an asyncio stream, in both directions.

    Use it as an async context manager, or call `start` and `close`. `part_bytes` is the size of parts; None adapts it
    to the path. `target_us` is how long parts of large packets may wait on the path. While handlers hold more than
    `pending_bytes_max`, the session does not read.

    One thing because both directions share one stream and its end: what is received decides what leaves (pongs,
    reports, refusals), and a failure ends all that waits. Assembly, pacing and dispatch are parts of their own.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        part_bytes: int | None = None,
        config: AssemblerConfig | None = None,
        target_us: int = TARGET_US,
        pending_bytes_max: int = _PENDING_BYTES_MAX,
    ) -> None:
        if part_bytes is not None and not 1 <= part_bytes <= PART_BYTES_MAX:
            raise ValueError(f"part_bytes is {part_bytes}, it must lie between 1 and {PART_BYTES_MAX}")
        self.window = TimeWindow(target_us)
        self.dispatcher = Dispatcher()
        self._reader = reader
        self._writer = writer
        self._part_bytes = part_bytes
        self._pending_bytes_max = pending_bytes_max
        self._spool = ThreadSpoolWriter()
        self._assembler = PacketAssembler(self, self._spool, config)
        self._queues: tuple[deque[_Sending], ...] = tuple(deque() for _ in Priority)
        self._control: deque[bytes] = deque()
        self._work = asyncio.Event()
        self._unfinished: dict[int, _Sending] = {}  # every packet whose `send` has not returned
        self._untaken: deque[_Sending] = deque()  # split packets that were sent, and not yet taken completely
        self._taken = self._taken_reported = 0
        self._report_due = False
        self._telling: asyncio.TimerHandle | None = None
        self._pings: dict[int, asyncio.Future[int]] = {}
        self._ping_count = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: Exception | None = None

    # life

    def start(self) -> None:
        """Start the tasks that read and write. Register the handlers first."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._receive()), loop.create_task(self._pump())]

    @property
    def is_closed(self) -> bool:
        return self._closed.done()

    async def wait_closed(self) -> None:
        """Wait until the session has ended. `error` then says why; None means a clean end of the stream."""
        await asyncio.shield(self._closed)

    async def close(self) -> None:
        """End the session: unfinished sends fail, handlers are cancelled, incomplete bodies are removed from disk."""
        self._end(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.dispatcher.close()

    def _end(self, error: Exception | None) -> None:
        if self._closed.done():
            return
        self.error = error
        self._closed.set_result(None)
        gone = ChannelClosedError(f"the session has ended{f': {error}' if error else ''}; the peer may lack packets")
        for sending in list(self._unfinished.values()):
            self._finish(sending, gone)
        for ping in self._pings.values():
            if not ping.done():
                ping.set_exception(gone)
        if self._telling is not None:
            self._telling.cancel()
        self._assembler.close()
        self._spool.close()
        self._work.set()
        self._writer.close()

    # sending

    def register(self, target: int, handler: Handler) -> None:
        """Give packets for `target` to `handler`, a function or coroutine function that takes a packet."""
        self.dispatcher.register(target, handler)

    async def send(self, packet: Packet, priority: Priority | None = None) -> None:
        """Send a packet. Returns when a small packet is written, or when the peer has taken all of a split packet.

        Raises MessageCancelledError if the receiver refused the packet. Cancelling the call stops a packet that is
        partly sent. Packets of one part and one priority keep their order; small packets may overtake split ones.
        Without `priority`, bodies over 64 KiB are sent as BULK, smaller ones as NORMAL.
        """
        if not APPLICATION_TYPE_MIN <= packet.type < 256:
            raise ValueError(f"the type of a packet lies between {APPLICATION_TYPE_MIN} and 255, not at {packet.type}")
        if self._closed.done():
            raise ChannelClosedError("the session is closed")
        sending = _Sending(
            self._assembler.disassemble(packet, self._work.set), asyncio.get_running_loop().create_future()
        )
        if priority is None:
            priority = Priority.BULK if sending.parts.size > PART_BYTES_MIN * 64 else Priority.NORMAL
        self._unfinished[packet.message_id] = sending
        self._queues[priority].append(sending)
        self._work.set()
        try:
            await sending.sent
        except asyncio.CancelledError:
            self._give_up(sending, None)
            raise

    async def ping(self) -> int:
        """Send a ping ahead of all packets, and return the microseconds until its answer."""
        if self._closed.done():
            raise ChannelClosedError("the session is closed")
        self._ping_count += 1
        number = self._ping_count
        answered = self._pings[number] = asyncio.get_running_loop().create_future()
        start = now_us()
        self._say(PartType.PING, number)
        try:
            arrived_us: int = await answered
            return arrived_us - start
        finally:
            del self._pings[number]

    def _say(self, kind: PartType, message_id: int, body: bytes = b"") -> None:
        header = Part(kind, 0, 0, 0, message_id, SINGLE, True)
        self._control.append(encode_part_header(header, len(body)) + body)
        self._work.set()

    def _finish(self, sending: _Sending, error: Exception | None) -> None:
        """Stop sending a packet, and give the outcome to its sender."""
        sending.parts.close()
        self._unfinished.pop(sending.parts.message_id, None)
        if not sending.sent.done():
            if error is None:
                sending.sent.set_result(None)
            else:
                sending.sent.set_exception(error)

    def _give_up(self, sending: _Sending, error: Exception | None) -> None:
        """Stop sending a packet before its end, and tell the receiver to forget the parts that it has."""
        if sending.parts.message_id not in self._unfinished:
            return
        if sending.parts.started and not sending.parts.is_done and not self._closed.done():
            self._say(PartType.CANCEL, sending.parts.message_id)
        self._finish(sending, error)

    # the pump

    async def _pump(self) -> None:
        try:
            while not self._closed.done():
                buffers, written = self._collect()
                if not buffers:
                    self._work.clear()
                    await self._work.wait()
                    continue
                self._writer.write(b"".join(buffers))
                await self._writer.drain()
                await asyncio.sleep(0)  # drain may return without yielding; let other tasks queue urgent packets
                for sending in written:
                    self._finish(sending, None)
        except (OSError, MalformedFrameError) as error:
            self._end(error)

    def _collect(self) -> tuple[list[bytes | memoryview], list[_Sending]]:
        """Return the buffers to write next, highest priority first, and the packets of one part that they contain."""
        buffers: list[bytes | memoryview] = []
        written: list[_Sending] = []
        size = 0
        if self._report_due:
            self._report_due = False
            self._taken_reported = self._taken
            self._say(PartType.RECEIVED, 0, self._taken.to_bytes(_TOTAL, "big"))
        while self._control and size < _WRITE_BYTES:
            buffers.append(self._control.popleft())
            size += len(buffers[-1])
        for queue in self._queues:
            passed = 0  # packets in a row that cannot send a part now
            while passed < len(queue) and size < _WRITE_BYTES:
                sending = queue.popleft()
                if sending.parts.message_id not in self._unfinished:
                    continue
                found = self._next_part(sending)
                if found is None:
                    if sending.parts.message_id in self._unfinished:
                        queue.append(sending)
                        passed += 1
                    continue
                passed = 0
                buffers += found
                size += sum(map(len, found))
                if not sending.parts.is_done:
                    queue.append(sending)
                elif sending.parts.is_split:
                    sending.end = self.window.sent_bytes
                    self._untaken.append(sending)
                else:
                    written.append(sending)
        return buffers, written

    def _next_part(self, sending: _Sending) -> tuple[bytes, memoryview] | None:
        parts = sending.parts
        part_bytes = self._part_bytes or max(PART_BYTES_MIN, min(_PART_BYTES_MAX, self.window.part_bytes))
        # A packet of one part is small, so the window does not hold it back.
        split = parts.is_split or parts.size > part_bytes
        if split and self.window.room() <= 0:
            return None
        try:
            found = parts.next_part(part_bytes)
        except Exception as error:
            self._give_up(sending, error)
            return None
        if found is not None and parts.is_split:  # also a small body of which less was read than its size
            self.window.on_sent(len(found[1]), now_us())
        return found

    # receiving

    async def _receive(self) -> None:
        decoder = PartDecoder()
        try:
            while data := await self._reader.read(_READ_BYTES):
                for part in decoder.feed(data):
                    self._handle(part)
                if self.dispatcher.pending_bytes > self._pending_bytes_max:
                    await self.dispatcher.room(self._pending_bytes_max)
            whole = decoder.is_between_parts and not self._assembler.incoming_count
            self._end(None if whole else ChannelClosedError("the peer closed the connection within a packet"))
        except (OSError, MalformedFrameError) as error:
            self._end(error)

    def _handle(self, part: Part) -> None:
        match part.type:
            case PartType.PING:
                self._say(PartType.PONG, part.message_id)
            case PartType.PONG:
                ping = self._pings.get(part.message_id)
                if ping is not None and not ping.done():
                    ping.set_result(now_us())
            case PartType.RECEIVED:
                self._received(part)
            case PartType.CANCEL:
                self._assembler.cancel(part.message_id)
            case PartType.REFUSE:
                self._refused(part)
            case kind if kind >= APPLICATION_TYPE_MIN:
                self._assembler.assemble(part)
            # Other types belong to later versions, and are ignored.

    def _received(self, part: Part) -> None:
        total = int.from_bytes(part.body()[:_TOTAL], "big")
        if part.size != _TOTAL or not self.window.on_received(total, now_us()):
            raise MalformedFrameError(f"the peer reports {total} bytes taken, which were not sent")
        while self._untaken and self._untaken[0].end <= total:
            self._finish(self._untaken.popleft(), None)
        self._work.set()

    def _refused(self, part: Part) -> None:
        sending = self._unfinished.get(part.message_id)
        if sending is not None:
            reason = part.body()[:_REASON_BYTES_MAX].decode("utf-8", "replace")
            self._give_up(sending, MessageCancelledError(f"refused by the receiver: {reason}"))

    # the methods of AssemblerHost, which the assembler calls

    def deliver(self, packet: Packet) -> None:
        target = packet.target
        if self._closed.done():
            if isinstance(packet.body, SpooledBody):
                packet.body.close()
        elif not self.dispatcher.dispatch(packet):
            self.refuse(packet.message_id, f"no handler for target {target}")

    def refuse(self, message_id: int, reason: str) -> None:
        self._say(PartType.REFUSE, message_id, reason.encode()[:_REASON_BYTES_MAX])

    def taken(self, size: int) -> None:
        self._taken += size
        if self._report_due:
            return
        if self._taken - self._taken_reported >= _REPORT_BYTES:
            self._report_taken()
        elif self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(_REPORT_S, self._report_taken)

    def _report_taken(self) -> None:
        """Queue a report of the bytes taken, which paces the sender."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        if self._taken != self._taken_reported:
            self._report_due = True  # one report covers everything taken until it is sent
            self._work.set()
