"""Turns fetched bytes into messages. A producer decides what a set unpacks to, so a budget bounds each fetch."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count, repeat

import msgspec

from tunnel.messages.errors import DecompressError
from tunnel.messages.sets.message import (
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    SET_MESSAGES_MAX,
    UNPACKED_BYTES_MAX,
    Message,
    plain_payloads,
    scan,
    unpack_set,
)

__all__ = ["ConsumedMessage", "Unpacker"]

_SLICE_BYTES = (
    64 * 1024
)  # read or unpacked at once, while other tasks wait: about 5 ms if the messages are the smallest
_FREE_BYTES = 1024 * 1024  # unpacked without a place among the large sets


class ConsumedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message and its offset in the log. The messages of one compressed set share an offset."""

    offset: int
    payload: bytes


class Unpacker:
    """Makes messages of the bytes of one consumer. Other tasks run meanwhile.

    `large` is shared by consumers: each of them holds a place there while it has a set of more than 1 MiB, from
    unpacking it until `release`.
    """

    def __init__(self, large: asyncio.Semaphore | None = None) -> None:
        self._large = large
        self._has_place = False

    async def parse(self, data: bytes, base: int, messages: list[ConsumedMessage]) -> int:
        """Add the messages that begin at the offset `base`, and return the offset after the last of them.

        Stops early when the sets together have unpacked to more than one set may. CorruptMessageError at a message that
        is damaged or unpacks to too much, or to more than is left of the budget: it may then be the next that is read.
        """
        position, offset, left_bytes = 0, base, UNPACKED_BYTES_MAX
        while left_bytes > 0 and len(messages) < SET_MESSAGES_MAX:
            payloads, position = plain_payloads(data, position, UNPACKED_BYTES_MAX, position + _SLICE_BYTES)
            if payloads:
                messages += map(ConsumedMessage, count(offset), payloads)
                offset += len(payloads)
            else:
                packed = next(scan(data, start=position, message_bytes_max=UNPACKED_BYTES_MAX, deep=False), None)
                if packed is None:
                    break
                payloads = await self._unpacked(packed.message, packed.offset, left_bytes)
                messages += map(ConsumedMessage, repeat(offset), payloads)
                offset += 1
                position = packed.next_offset
                left_bytes -= sum(map(len, payloads)) + HEADER_BYTES * len(payloads)
            await asyncio.sleep(0)
        return offset

    async def _unpacked(self, packed: Message, offset: int, bytes_max: int) -> list[bytes]:
        """Unpack a set. Its size is only known afterwards: try with a little room first."""
        with suppress(DecompressError):
            return unpack_set(packed, offset, unpacked_bytes_max=min(_SLICE_BYTES, bytes_max))
        with suppress(DecompressError):
            return await _in_thread(packed, offset, min(_FREE_BYTES, bytes_max))
        if self._large is not None and not self._has_place:
            await self._large.acquire()
            self._has_place = True
        return await _in_thread(packed, offset, bytes_max)

    def release(self) -> None:
        """Note that the messages are no longer needed: another consumer may unpack a large set."""
        if self._has_place and self._large is not None:
            self._has_place = False
            self._large.release()


async def _in_thread(packed: Message, offset: int, bytes_max: int) -> list[bytes]:
    return await asyncio.to_thread(unpack_set, packed, offset, MESSAGE_BYTES_MAX, bytes_max)
