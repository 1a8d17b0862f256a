"""Choices out of a fuzzer's bytes: structured targets ask for an operation, a size or a number and always get one."""

import struct
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["SIZES", "WIRE_NUMBERS", "Draw"]

_Item = TypeVar("_Item")

# Numbers at which counters and limits fail: around 0, around 2**31 and 2**32, and at the limits of the protocol.
WIRE_NUMBERS = (0, 1, 2, 24, 25, 1024, 65536, 2**24, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1)
SIZES = (0, 1, 2, 7, 100, 1023, 1024, 1025, 4096, 5000, 16384, 65536, 70000, 131072)


class Draw:
    """Reads bytes from the front. After the last byte every choice falls on the first item, and `more` is False."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    @property
    def more(self) -> bool:
        """Whether bytes are left."""
        return self._offset < len(self._data)

    def raw(self, size: int) -> bytes:
        """Return the next bytes as they are; fewer at the end of the input."""
        start = self._offset
        self._offset = min(len(self._data), start + size)
        return self._data[start : self._offset]

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        return self.raw(len(self._data))

    def byte(self) -> int:
        """Return the next byte, 0 to 255; 0 at the end of the input."""
        offset = self._offset
        if offset >= len(self._data):
            return 0
        self._offset = offset + 1
        return self._data[offset]

    def number(self) -> int:
        """Return a number of 32 bits: the first byte itself, one near a number of WIRE_NUMBERS, or four bytes."""
        choice = self.byte()
        if choice < 64:
            return choice
        if choice < 128:
            return (WIRE_NUMBERS[choice % len(WIRE_NUMBERS)] + self.byte() - 128) % 2**32
        return int(struct.unpack("!I", self.raw(4).ljust(4, b"\0"))[0])

    def below(self, limit: int) -> int:
        """Return a number from 0 to `limit` - 1; 0 if there is no choice."""
        if limit <= 1:
            return 0
        return self.byte() % limit if limit <= 256 else (self.byte() << 8 | self.byte()) % limit

    def flag(self) -> bool:
        """Return whether the next byte is odd."""
        return bool(self.byte() & 1)

    def pick(self, items: Sequence[_Item]) -> _Item:
        """Return one of the items, of which there must be at least one."""
        return items[self.below(len(items))]

    def text(self, size_max: int) -> str:
        """Return text of at most `size_max` bytes; broken UTF-8 is replaced."""
        text = self.raw(self.below(size_max + 1)).decode("utf-8", "replace")
        return text.encode()[:size_max].decode("utf-8", "ignore")
