"""A consumer, which reads a broker's log by offset, knows its lag, and follows redirects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tunnel.messages.broker.protocol import FETCH, check_range, place_fields
from tunnel.messages.broker.settings import BEHIND_MESSAGES
from tunnel.messages.calls.calls import Response
from tunnel.messages.calls.channels import ChannelTable
from tunnel.messages.errors import CorruptMessageError
from tunnel.messages.topics.unpacking import ConsumedMessage, Unpacker

__all__ = ["ConsumedMessage", "Consumer"]

_FETCH_BYTES = 1024 * 1024
_TURNS = 3  # turns of the event loop until a request is in the socket: one each for its task, its channel, and a tunnel
_ANSWER_S = 30.0  # longest wait for the answer to a fetch, in addition to the time for which it may be held


class Consumer:
    """Reads the log of the broker at `address`, from its replica while the broker redirects it there.

    Store `offset` together with your own data: a consumer that starts from it then processes every message exactly
    once. `on_lag(lag)` is called after each fetch that leaves more than `lag_max` messages before the end of the log.

    While there are more messages, the next ones are fetched ahead: they come while the caller handles these.
    """

    def __init__(
        self,
        table: ChannelTable,
        address: str,
        offset: int = 0,
        *,
        fetch_bytes: int = _FETCH_BYTES,
        lag_max: int = BEHIND_MESSAGES,
        on_lag: Callable[[int], None] | None = None,
        topic: str = "",
        partition: int = 0,
        large_sets: asyncio.Semaphore | None = None,
    ) -> None:
        """`large_sets` is shared by consumers that must not hold large unpacked sets all at once (`Unpacker`)."""
        self.offset = offset
        self.skipped = 0  # messages of a topic in memory that the broker had discarded before they were fetched
        self.lag = 0  # messages between `offset` and the end of the log, at the last fetch
        self.address = address  # where the next fetch goes
        self._home = address
        self._place = place_fields(topic, partition)
        self._stay = False
        self._end = 0
        self._table = table
        self._fetch_bytes = fetch_bytes
        self._lag_max = lag_max
        self._on_lag = on_lag
        self._unpacker = Unpacker(large_sets)
        self._ahead: tuple[int, str, asyncio.Task[Response]] | None = None  # offset, address, task of the fetch ahead

    @property
    def end_offset(self) -> int:
        """The offset after the newest message, at the last fetch."""
        return self._end

    async def fetch(self, wait_ms: int = 1000) -> list[ConsumedMessage]:
        """Return the next messages; none if none came within `wait_ms` milliseconds.

        Raises OffsetOutOfRangeError if the log no longer has the next message, and CorruptMessageError if the next
        message is damaged; those before it are returned first. A fetch that fails moves `offset` at most over messages
        that the broker has discarded: call again. A compressed set that is damaged, or unpacks to more than 64 MiB or
        100,000 messages, raises DecompressError; to go on after it, add 1 to `offset`.

        The sets of one fetch together unpack to at most 64 MiB, and no further set is unpacked after 100,000 messages.
        """
        self.release()
        data, base = await self._fetch_raw(wait_ms)
        messages: list[ConsumedMessage] = []
        offset = base
        try:
            offset = await self._unpacker.parse(data, base, messages)
        except CorruptMessageError:
            self.offset = base
            if not messages:
                raise
            offset = messages[-1].offset + 1
        self._advance(offset)
        return messages

    def release(self) -> None:
        """Note that the messages of the last fetch are no longer needed. The next fetch does so, too."""
        self._unpacker.release()

    async def _fetch_raw(self, wait_ms: int) -> tuple[bytes, int]:
        while True:
            fields = self._place | {
                "offset": str(self.offset),
                "bytes": str(self._fetch_bytes),
                "wait_ms": str(wait_ms),
            }
            if self._stay:
                fields["stay"] = "1"
            try:
                response = await self._answered(fields, wait_ms)
            except (OSError, TimeoutError):
                # If the replica has failed, the next fetch asks the broker, which must not name that replica again.
                self._stay = self.address != self._home
                self.address = self._home
                raise
            redirect = (response.fields or {}).get("redirect", "")
            # After a replica has sent us back, refuse redirects: the broker would name that replica, which lags, again.
            self._stay = redirect == self._home
            if not redirect:
                self._end = check_range(self.offset, response)
                base = int((response.fields or {}).get("offset", self.offset))
                self.skipped += base - self.offset
                await self._fetch_ahead(int((response.fields or {}).get("next", self._end)))
                return response.data, base
            self.address = redirect

    async def _answered(self, fields: dict[str, str], wait_ms: int) -> Response:
        """Return the answer to a fetch: the one that was fetched ahead, if this is the fetch that it answers."""
        if self._ahead is not None:
            offset, address, task = self._ahead
            self._ahead = None
            has_failed = task.done() and (task.cancelled() or task.exception() is not None)
            if (offset, address) == (self.offset, self.address) and not has_failed:
                return await task
            task.cancel()
        return await self._table.call(self.address, FETCH, b"", fields, timeout=wait_ms / 1000 + _ANSWER_S)

    async def _fetch_ahead(self, offset: int) -> None:
        """Ask for the messages from this offset on, unless the log ends there. Returns when the call is on its way."""
        if offset >= self._end or offset <= self.offset:
            return
        fields = self._place | {"offset": str(offset), "bytes": str(self._fetch_bytes), "wait_ms": "0"}
        call = self._table.call(self.address, FETCH, b"", fields, timeout=_ANSWER_S)
        task = asyncio.get_running_loop().create_task(call)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # the caller might never fetch again
        self._ahead = offset, self.address, task
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def _advance(self, offset: int) -> None:
        self.offset = offset
        self.lag = max(0, self._end - offset)
        if self.lag > self._lag_max and self._on_lag is not None:
            self._on_lag(self.lag)
