"""What a power failure leaves of a recorded disk: the rules are in `tests/support/disk.py`."""

from __future__ import annotations

import copy
import enum
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

__all__ = ["ROOT", "SECTOR_BYTES", "Act", "Crash", "Directory", "Mark", "Step", "replay", "tree_of"]

ROOT = 0
"""The number of the root directory."""

SECTOR_BYTES = 32
"""A disk writes a sector of 512 bytes whole or not at all. These are smaller, so that short messages tear, too."""


class Act(enum.Enum):
    """The kinds of steps."""

    CREATE = "create"
    WRITE = "write"
    CUT = "cut"
    SYNC = "sync"
    SYNC_DIRECTORY = "sync directory"
    RENAME = "rename"
    REMOVE = "remove"
    MAKE_DIRECTORY = "make directory"


@dataclass(frozen=True, slots=True)
class Step:
    """One change: `path` as the test named it, below the root; of a rename, the old path."""

    act: Act
    path: str
    to: str = ""
    """The new path of a rename."""
    position: int = 0
    """Where a write begins; the size that a cut leaves."""
    data: bytes = b""
    node: int = 0
    """The number of the file or directory, which keeps it when its name changes."""
    parent: int = 0
    """The number of the directory in which its name is."""

    def __str__(self) -> str:
        size = f" {len(self.data)} bytes at {self.position}" if self.act is Act.WRITE else ""
        return f"{self.act.value} {self.path}{size}{f' to {self.to}' if self.to else ''}"


@dataclass(frozen=True, slots=True)
class Mark:
    """A promise that the test gave between two steps."""

    name: str
    value: Any


@dataclass(slots=True)
class _File:
    """The content of a file: on disk for certain, and as the processes see it."""

    safe: bytes = b""
    seen: bytearray = field(default_factory=bytearray)
    unsafe: list[Step] = field(default_factory=list)

    def take(self, step: Step) -> None:
        _apply(self.seen, step)
        self.unsafe.append(step)

    def sync(self) -> None:
        self.safe = bytes(self.seen)
        self.unsafe.clear()

    def left(self, random: Random | None) -> bytes:
        """Return the content after a power failure."""
        if random is None or not self.unsafe:
            return self.safe
        left = bytearray(self.safe)
        match random.randrange(4):
            case 0:
                return self.safe
            case 1:
                return bytes(self.seen)
            case 2:
                kept = self.unsafe[: random.randrange(len(self.unsafe)) + 1]
                for step in kept[:-1]:
                    _apply(left, step)
                _apply(left, kept[-1], bytes_max=random.randrange(len(kept[-1].data) + 1))
            case _:
                for step in self.unsafe:
                    if step.act is Act.WRITE:
                        _scatter(left, step, random)
                    elif random.random() < 0.5:
                        _apply(left, step)
        return bytes(left)


def _apply(content: bytearray, step: Step, *, bytes_max: int | None = None) -> None:
    if step.act is Act.CUT:
        del content[step.position :]
        content.extend(bytes(step.position - len(content)))
        return
    data = step.data[:bytes_max]
    content.extend(bytes(max(0, step.position - len(content))))
    content[step.position : step.position + len(data)] = data


def _scatter(content: bytearray, step: Step, random: Random) -> None:
    """Write some sectors, and not the others, which have zeros if the file had ended before them."""
    content.extend(bytes(max(0, step.position + len(step.data) - len(content))))
    end = step.position + len(step.data)
    position = step.position
    while position < end:
        border = min(end, position - position % SECTOR_BYTES + SECTOR_BYTES)
        if random.random() < 0.5:
            content[position:border] = step.data[position - step.position : border - step.position]
        position = border


@dataclass(slots=True)
class Directory:
    """The names in a directory, and the files and directories that they stand for."""

    safe: dict[str, _Node] = field(default_factory=dict)
    seen: dict[str, _Node] = field(default_factory=dict)
    unsafe: list[dict[str, _Node | None]] = field(default_factory=list)

    def take(self, change: dict[str, _Node | None]) -> None:
        _rename(self.seen, change)
        self.unsafe.append(change)

    def sync(self) -> None:
        self.safe = dict(self.seen)
        self.unsafe.clear()

    def left(self, random: Random | None) -> dict[str, _Node]:
        """Return the names that a power failure leaves in it."""
        left = dict(self.safe)
        count = 0
        if random is not None and self.unsafe:
            count = random.choice((0, len(self.unsafe), random.randrange(len(self.unsafe) + 1)))
        for change in self.unsafe[:count]:
            _rename(left, change)
        return left


_Node: TypeAlias = "_File | Directory"


def _rename(names: dict[str, _Node], change: dict[str, _Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Crash:
    """A moment at which the power may fail: after `steps` of the recorded steps."""

    def __init__(self, recorded: Sequence[Step], root: Directory) -> None:
        self.steps = 0
        self.root = root
        self._recorded = recorded
        self._marks: dict[str, list[Any]] = {}

    def __str__(self) -> str:
        shown = [f"{number:>4} {step}" for number, step in enumerate(self._recorded, 1)]
        return "\n".join([*shown[: self.steps], "---- the power fails", *shown[self.steps : self.steps + 3]])

    def take(self, mark: Mark) -> None:
        """Note a promise that was given before the crash."""
        self._marks.setdefault(mark.name, []).append(mark.value)

    def marked(self, name: str) -> list[Any]:
        """Return the values that were marked with this name before the crash."""
        return list(self._marks.get(name, ()))

    def last(self, name: str, default: Any) -> Any:
        """Return the value that was marked last with this name before the crash."""
        return self._marks[name][-1] if name in self._marks else default

    def left(self, random: Random | None = None, *, spared: Collection[str] = ()) -> dict[str, bytes | None]:
        """Return what is left: the content of each file by its path; None for a directory, which precedes its files."""
        names = {name: node for name, node in self.root.left(random).items() if name not in spared}
        kept = {name: node for name, node in self.root.seen.items() if name in spared}
        return {**dict(_left("", names, random)), **dict(_left("", kept, None, spared=True))}

    def write(self, place: Path, random: Random | None = None, *, spared: Collection[str] = ()) -> None:
        """Write what is left into a directory, which is emptied first."""
        _write(place, self.left(random, spared=spared))

    def images(self, place: Path, seeds: Iterable[int], *, spared: Collection[str] = ()) -> Iterator[None]:
        """Write what is left when nothing unsynced survives, then what each seed chooses; each image only once."""
        written: list[dict[str, bytes | None]] = []
        for random in (None, *map(Random, seeds)):
            image = self.left(random, spared=spared)
            if image not in written:
                written.append(image)
                _write(place, image)
                yield

    def seen(self) -> dict[str, bytes | None]:
        """Return the content of each file by its path, as the processes see it; None for a directory."""
        return {path: bytes(node.seen) if isinstance(node, _File) else None for path, node in _below("", self.root)}


def _left(
    above: str, names: Mapping[str, _Node], random: Random | None, *, spared: bool = False
) -> Iterator[tuple[str, bytes | None]]:
    for name, node in names.items():
        path = os.path.join(above, name)
        if isinstance(node, _File):
            yield path, bytes(node.seen) if spared else node.left(random)
        else:
            yield path, None
            yield from _left(path, node.seen if spared else node.left(random), random, spared=spared)


def _write(place: Path, image: Mapping[str, bytes | None]) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for path, content in image.items():
        if content is None:
            (place / path).mkdir()
        else:
            (place / path).write_bytes(content)


def _below(above: str, directory: Directory) -> Iterator[tuple[str, _Node]]:
    for name, node in directory.seen.items():
        path = os.path.join(above, name)
        yield path, node
        if isinstance(node, Directory):
            yield from _below(path, node)


def tree_of(found: Mapping[str, bytes | None]) -> Directory:
    """Return these files and directories, all of them safe on the disk.

    `found` has the content of each file by its path, None for a directory, each directory before what is in it.
    """
    root = Directory()
    nodes: dict[str, _Node] = {"": root}
    for path, content in found.items():
        above, _, name = path.rpartition("/")
        nodes[path] = Directory() if content is None else _File(content, bytearray(content))
        directory = nodes[above]
        assert isinstance(directory, Directory)
        directory.safe[name] = directory.seen[name] = nodes[path]
    return root


def replay(start: Directory, numbers: Mapping[str, int], entries: Sequence[Step | Mark]) -> Iterator[Crash]:
    """Yield a crash before the first step, and after each step. It is always the same object, which moves on by a step.

    `numbers` has the numbers of what is in `start`, by path. A mark between two steps counts from the first of them on.
    """
    root = copy.deepcopy(start)
    nodes: dict[int, _Node] = {ROOT: root}
    nodes.update((numbers[path], node) for path, node in _below("", root))
    crash = Crash([entry for entry in entries if isinstance(entry, Step)], root)
    for entry in entries:
        if isinstance(entry, Mark):
            crash.take(entry)
            continue
        yield crash
        _take(nodes, entry)
        crash.steps += 1
    yield crash


def _take(nodes: dict[int, _Node], step: Step) -> None:
    """Let a step happen: to the content of a file, or to the names in a directory."""
    name = step.path.rpartition("/")[2]
    match step.act:
        case Act.CREATE:
            nodes[step.node] = _File()
            change: dict[str, _Node | None] = {name: nodes[step.node]}
        case Act.MAKE_DIRECTORY:
            nodes[step.node] = Directory()
            change = {name: nodes[step.node]}
        case Act.RENAME:
            change = {name: None, step.to.rpartition("/")[2]: nodes[step.node]}
        case Act.REMOVE:
            change = {name: None}
        case Act.SYNC | Act.SYNC_DIRECTORY:
            nodes[step.node].sync()
            return
        case _:
            file = nodes[step.node]
            assert isinstance(file, _File)
            file.take(step)
            return
    directory = nodes[step.parent]
    assert isinstance(directory, Directory)
    directory.take(change)
