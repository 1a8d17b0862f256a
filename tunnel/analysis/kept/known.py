"""The content that the tables have: content that is already there is recognised, whatever file brings it.

A part is lines that came together, known by their digests. So content is recognised in a compressed copy of plain
lines, in an unpacked copy of a compressed file, in several files joined into one, and in a file that has grown: all
these begin with known parts. If a copy was cut within a part, what it has of this part is compared with the file that
brought the part, while that file exists.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from xxhash import xxh3_64_hexdigest

from tunnel.analysis.kept.ledger import Entry, Part

__all__ = ["Known", "Piece", "part_of"]


class Piece(NamedTuple):
    """Consecutive lines of a file."""

    part: Part
    owner: str
    """The file that brought these lines before; empty if they are new."""
    content: bytes
    """The lines, if they are new."""


def part_of(content: bytes) -> Part:
    """Return the digests of some lines."""
    return Part(xxh3_64_hexdigest(content), _first_line(content), len(content))


def _first_line(content: bytes, begin: int = 0) -> str:
    """Return the digest of the line that starts at `begin`."""
    return xxh3_64_hexdigest(content[begin : content.find(b"\n", begin) + 1])


class Known:
    """The parts in the tables. `contains(name, lines)` returns whether the file of this name contains the lines now."""

    def __init__(self, entries: list[Entry], contains: Callable[[str, bytes], bool]) -> None:
        self._owners: dict[str, str] = {}
        self._beginnings: dict[str, list[Part]] = defaultdict(list)
        self._contains = contains
        for entry in entries:
            for part in entry.parts:
                self.add(part, entry.file.name)

    def add(self, part: Part, owner: str) -> None:
        """Take note of a part. The first file that brings it owns it."""
        if part.digest not in self._owners:
            self._owners[part.digest] = owner
            self._beginnings[part.first].append(part)

    def pieces(self, content: bytes, whole: Part) -> Iterator[Piece]:
        """Divide lines into those that are known, from the beginning on, and the rest. `whole`: the digests of all."""
        if whole.digest in self._owners:
            yield Piece(whole, self._owners[whole.digest], b"")
            return
        begin, first = 0, whole.first
        while begin < len(content):
            candidates = self._beginnings.get(first, ())
            known = next((part for part in candidates if _is_at(content, begin, part)), None)
            if known is None:
                rest = content[begin:]
                part = part_of(rest)
                owner = self._owner_of_cut(part, rest)
                yield Piece(part, owner, b"" if owner else rest)
                return
            yield Piece(known, self._owners[known.digest], b"")
            begin += known.size_bytes
            first = _first_line(content, begin)

    def _owner_of_cut(self, part: Part, content: bytes) -> str:
        """Return the name of a file in which more lines follow these; empty if there is none."""
        longer = [each for each in self._beginnings.get(part.first, ()) if each.size_bytes > part.size_bytes]
        owners = (self._owners[each.digest] for each in longer)
        return next((owner for owner in owners if self._contains(owner, content)), "")


def _is_at(content: bytes, begin: int, part: Part) -> bool:
    lines = memoryview(content)[begin : begin + part.size_bytes]
    return len(lines) == part.size_bytes and xxh3_64_hexdigest(lines) == part.digest
