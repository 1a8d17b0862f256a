"""Producers for threads: one for a socket, one for a broker, and one with a queue and a sender."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any

from tunnel.messages import (
    AsyncProducer,
    AsyncProducerConfig,
    BrokerProducer,
    CallbackHandler,
    ChannelClosedError,
    Codec,
    Encoder,
    EventHandler,
    ProducerData,
    RequestMaker,
    SyncProducer,
)
from tunnel.messages.life import Closeable
from tunnel.messages.sets.message import MESSAGE_BYTES_MAX
from tunnel_client.messages.blocking import (
    Blocking,
    LoopRunner,
    Shown,
    blocking,
    check_socket,
    end_stream,
    open_stream,
)
from tunnel_client.messages.calls import BlockingTable

__all__ = ["BlockingBrokerProducer", "BlockingProducer", "BlockingQueueProducer"]


class BlockingProducer(Closeable):
    """Sends on a connected blocking socket of any kind, which it owns from now on. Close it, or use it in `with`.

    Threads that share a producer take turns. The timeout of the socket holds for each send. After a send that failed,
    it is unknown how much of it has left, so the producer is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        encoder: Encoder | None = None,
        codec: Codec = Codec.NONE,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self._maker = RequestMaker(encoder, codec, message_bytes_max)
        self._sock = sock
        self._sending = threading.Lock()
        self._why_closed = ""

    def send(self, topic: str, *values: Any, partition: int = 0) -> None:
        """Encode, check and send these values as one set. If one is too large, nothing is written."""
        self.send_data(ProducerData(topic, values, partition))

    def send_data(self, *data: ProducerData) -> None:
        """Send values for one or more topics and partitions; several of them go into one multi-request.

        Returns when the kernel has the bytes. Raises TimeoutError, and ChannelClosedError if the connection has ended
        or another thread closes the producer.
        """
        encoded = self._maker.encode(data)
        with self._sending:
            if self._why_closed:
                raise ChannelClosedError(f"{self._why_closed}: open a new connection, and a new producer")
            try:
                self._sock.sendall(encoded)
            except BaseException as error:
                self._end(f"a send has failed ({type(error).__name__})")
                if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                    raise ChannelClosedError(f"the connection has ended: {error}") from error
                raise

    def close(self) -> None:
        """Close the socket. A thread that is waiting in `send` gets ChannelClosedError. Harmless when repeated."""
        self._why_closed = self._why_closed or "the producer is closed"
        while not self._sending.acquire(timeout=0.1):
            with suppress(OSError):  # the peer may have closed at the same time
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread in sendall
        try:
            self._sock.close()
        finally:
            self._sending.release()

    def _end(self, why: str) -> None:
        self._why_closed = self._why_closed or why
        self._sock.close()


class BlockingBrokerProducer(Blocking[BrokerProducer]):
    """Sends to the broker at an address, and returns when the broker has stored the messages. Threads may share it.

    A send that the broker refuses raises RemoteCallError. `durable=False`: return as soon as the broker has
    received the messages. The other `options` are those of BrokerProducer, too.
    """

    send = blocking(BrokerProducer.send)
    send_data = blocking(BrokerProducer.send_data)

    def __init__(self, table: BlockingTable, address: str, **options: Any) -> None:
        self.runner = table.runner
        self.inner = BrokerProducer(table.inner, address, **options)


class BlockingQueueProducer(Closeable, Blocking[AsyncProducer]):
    """A queue of values, and a sender that sends them in batches. It owns its socket. Close it, or use it in `with`.

    It runs an AsyncProducer in the loop thread: the handlers are called there, and must not block. `queued` is the
    number of values in the queue, and `failed` that of the values that could not be sent.
    """

    queued = Shown[AsyncProducer, int](lambda producer: producer.items_queued)
    failed = Shown[AsyncProducer, int](lambda producer: producer.failed)
    send = blocking(AsyncProducer.send)
    flush = blocking(AsyncProducer.flush)

    def __init__(
        self,
        sock: socket.socket,
        config: AsyncProducerConfig | None = None,
        *,
        encoder: Encoder | None = None,
        codec: Codec = Codec.NONE,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        event_handler: EventHandler | None = None,
        callback_handler: CallbackHandler | None = None,
    ) -> None:
        self.runner = LoopRunner()
        check_socket(sock)

        async def start() -> tuple[AsyncProducer, asyncio.StreamWriter]:
            _, writer = await open_stream(sock)
            sync = SyncProducer(writer, encoder=encoder, codec=codec, message_bytes_max=message_bytes_max)
            producer = AsyncProducer(sync, config, event_handler=event_handler, callback_handler=callback_handler)
            producer.start()
            return producer, writer

        self.inner, self._writer = self.runner.run(start())

    def offer(self, topic: str, value: Any, partition: int = 0) -> bool:
        """Put a value into the queue; return False if the queue is full. Never waits for room."""

        async def offer() -> bool:
            return self.inner.offer(topic, value, partition)

        return self.runner.run(offer())

    def close(self) -> None:
        """Accept no more values, send those in the queue, and raise MessageError if any value could not be sent."""
        self.runner.run(self._close())

    async def _close(self) -> None:
        try:
            await self.inner.close()
        finally:
            await end_stream(self._writer)
