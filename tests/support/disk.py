"""A disk whose power can fail: it records what a test writes, and rebuilds what a power failure could leave of it.

Below its root, a recorded disk takes down each change in order: files created, bytes written, files cut, names replaced
and removed, and each fsync. The test runs once, on the real file system. Then every step of it can be the last one:

    with RecordedDisk(tmp_path / "disk") as disk:
        with Log.open(disk.root / "log") as log:
            log.append([b"a"])
            log.flush()
            disk.mark("durable", log.end_offset)  # a promise that was given to a caller
    for crash in disk.crashes():  # before the first step, and after each
        for _ in crash.images(tmp_path / "image", seeds=range(9)):
            with Log.open(tmp_path / "image" / "log") as log:
                assert log.end_offset >= crash.last("durable", 0)

A seed chooses what a power failure leaves, within these rules:

- The content of a file has all that was written before its last `fsync` or `fdatasync`. Of what was written later, any
  sectors may be there, or none; lost sectors between others read as zeros. A cut (`ftruncate`) may be lost while later
  writes are there.
- The names in a directory are those at its last fsync. Of what was created, renamed and removed later, the first
  few changes may be there: file systems with a journal keep the order within a directory, and POSIX promises nothing.
- A new file whose name was not synced is lost with its content, whether or not the content was synced.

Without a seed, everything that was not synced is lost. The argument `spared` of `Crash.images` names directories
directly below the root on which another machine writes. Its power did not fail, but its processes died (`kill -9`), so
that everything they wrote is there.

`disk.before`, if it is set, is called before each step, outside of every lock. It may block, to hold up one thread
while another goes on, and raise OSError, as a full or broken disk does. The changes are recorded by replacing functions
of `os`; whatever goes past them (`open` for writing, a child process) fails the test when the `with` block ends.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import pytest

from tests.support.power import ROOT, Act, Crash, Directory, Mark, Step, replay, tree_of

__all__ = ["RecordedDisk", "recorded_syncs"]

_T = TypeVar("_T")
_Name: TypeAlias = "str | os.PathLike[str]"
_REPLACED = (
    "open close dup write writev pwrite sendfile fsync fdatasync ftruncate replace rename unlink remove mkdir"
).split()


class RecordedDisk:
    """Records every change below `root` within its `with` block. Files that are there at its start are safe on disk.

    With `killed`, an earlier disk goes on after its processes have died, but not the machine: the block begins with
    everything they wrote, and what they had not synced is not safe yet.
    """

    def __init__(self, root: Path, *, killed: Crash | None = None) -> None:
        self.root = root
        self.before: Callable[[Step], None] | None = None
        self._entries: list[Step | Mark] = []
        self._lock = threading.RLock()
        self._numbers: dict[str, int] = {"": ROOT}  # of files and directories, by their paths below the root
        self._descriptors: dict[int, tuple[int, str]] = {}  # number and path, by descriptor
        self._start: Directory | None = copy.deepcopy(killed.root) if killed is not None else None
        self._start_numbers: dict[str, int] = {}
        self._count = 0
        self._real: Any = SimpleNamespace(**{name: getattr(os, name) for name in _REPLACED})

    def __enter__(self) -> Self:
        if self._start is None:
            self.root.mkdir(parents=True, exist_ok=True)
            self._start = tree_of(dict(sorted(self._found().items())))
        else:
            Crash((), self._start).write(self.root, spared=self._start.seen)
        for name in self._found():
            self._new(name)
        self._start_numbers = dict(self._numbers)
        for name in _REPLACED:
            setattr(os, name, getattr(self, name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name in _REPLACED:
            setattr(os, name, getattr(self._real, name))
        if error is None:
            self._check()

    def mark(self, name: str, value: object) -> None:
        """Note a promise, between the steps before and after it."""
        with self._lock:
            self._entries.append(Mark(name, value))

    def crashes(self) -> Iterator[Crash]:
        """Yield every moment at which the power may fail: before the first step, and after each. Use each at once."""
        assert self._start is not None, "use it in a with block first"
        with self._lock:
            entries = list(self._entries)
        return replay(self._start, self._start_numbers, entries)

    @property
    def steps(self) -> list[Step]:
        """The steps recorded until now."""
        with self._lock:
            return [entry for entry in self._entries if isinstance(entry, Step)]

    def _found(self) -> dict[str, bytes | None]:
        return {
            str(path.relative_to(self.root)): None if path.is_dir() else path.read_bytes()
            for path in self.root.rglob("*")
        }

    def _check(self) -> None:
        """Compare the record with the real files: a change that is not recorded would make every test worthless."""
        *_, last = self.crashes()
        seen, found = last.seen(), self._found()
        wrong = sorted(
            name for name in {*seen, *found} if (name in seen, seen.get(name)) != (name in found, found.get(name))
        )
        if wrong:
            raise AssertionError(f"changed, but not by functions of os that are recorded: {wrong}")

    # the functions of os that are replaced, and what they share

    def _name(self, path: _Name, dir_fd: int | None = None) -> str | None:
        """Return the path below the root; None for any other path."""
        if dir_fd is not None or not isinstance(path, str | os.PathLike):
            return None
        name = os.path.relpath(os.path.abspath(path), os.path.abspath(self.root))
        return None if name == ".." or name.startswith("../") else "" if name == "." else name

    def _new(self, name: str) -> int:
        self._count += 1
        self._numbers[name] = self._count
        return self._count

    def _named(self, act: Act, name: str, number: int, to: str = "") -> Step:
        return Step(act, name, to, node=number, parent=self._numbers[os.path.dirname(name)])

    def _announce(self, step: Step) -> None:
        if self.before is not None:
            self.before(step)

    def _do(self, step: Step, act: Callable[[], _T]) -> _T:
        """Do what the step says, and record it if it succeeded."""
        self._announce(step)
        with self._lock:
            result = act()
            self._entries.append(step)
            return result

    def open(self, path: _Name, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        real = self._real
        name = self._name(path, dir_fd)
        if name is None or flags & os.O_TMPFILE == os.O_TMPFILE:
            descriptor: int = real.open(path, flags, mode, dir_fd=dir_fd)
            self._descriptors.pop(descriptor, None)  # an earlier descriptor of this number was not closed by os.close
            return descriptor
        with self._lock:
            is_new = flags & os.O_CREAT and name not in self._numbers
            is_cut = flags & os.O_TRUNC and not is_new
        if is_new or is_cut:
            self._announce(Step(Act.CREATE if is_new else Act.CUT, name))
        with self._lock:
            descriptor = real.open(path, flags, mode)
            if is_new:
                self._entries.append(self._named(Act.CREATE, name, self._new(name)))
            elif is_cut:
                self._entries.append(Step(Act.CUT, name, node=self._numbers[name]))
            self._descriptors[descriptor] = self._numbers[name], name
        return descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            self._descriptors.pop(descriptor, None)
            self._real.close(descriptor)

    def dup(self, descriptor: int) -> int:
        with self._lock:
            fresh: int = self._real.dup(descriptor)
            if descriptor in self._descriptors:
                self._descriptors[fresh] = self._descriptors[descriptor]
            return fresh

    def _written(self, descriptor: int, data: bytes, act: Callable[[], int], position: int | None = None) -> int:
        """Write, and record the part of the data that the file took."""
        known = self._descriptors.get(descriptor)
        if known is None:
            return act()
        number, name = known
        self._announce(Step(Act.WRITE, name, data=data, node=number))
        with self._lock:
            size = act()
            start = os.lseek(descriptor, 0, os.SEEK_CUR) - size if position is None else position
            self._entries.append(Step(Act.WRITE, name, position=start, data=data[:size], node=number))
            return size

    def write(self, descriptor: int, data: bytes) -> int:
        return self._written(descriptor, bytes(data), lambda: self._real.write(descriptor, data))

    def writev(self, descriptor: int, buffers: Sequence[bytes]) -> int:
        return self._written(descriptor, b"".join(buffers), lambda: self._real.writev(descriptor, buffers))

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        return self._written(descriptor, bytes(data), lambda: self._real.pwrite(descriptor, data, offset), offset)

    def sendfile(self, out_fd: int, in_fd: int, offset: int, count: int) -> int:
        data = os.pread(in_fd, count, offset) if out_fd in self._descriptors else b""
        return self._written(out_fd, data, lambda: self._real.sendfile(out_fd, in_fd, offset, count))

    def _synced(self, descriptor: int, act: Callable[[int], None]) -> None:
        known = self._descriptors.get(descriptor)
        if known is None:
            act(descriptor)
            return
        number, name = known
        kind = Act.SYNC_DIRECTORY if (self.root / name).is_dir() else Act.SYNC
        self._do(Step(kind, name, node=number), lambda: act(descriptor))

    def fsync(self, descriptor: int) -> None:
        self._synced(descriptor, self._real.fsync)

    def fdatasync(self, descriptor: int) -> None:
        self._synced(descriptor, self._real.fdatasync)

    def ftruncate(self, descriptor: int, length: int) -> None:
        known = self._descriptors.get(descriptor)
        if known is None:
            self._real.ftruncate(descriptor, length)
            return
        number, name = known
        step = Step(Act.CUT, name, position=length, node=number)
        self._do(step, lambda: self._real.ftruncate(descriptor, length))

    def rename(self, src: _Name, dst: _Name, **where: Any) -> None:
        self._moved(src, dst, lambda: self._real.rename(src, dst, **where), where)

    def replace(self, src: _Name, dst: _Name, **where: Any) -> None:
        self._moved(src, dst, lambda: self._real.replace(src, dst, **where), where)

    def _moved(self, src: _Name, dst: _Name, act: Callable[[], None], where: dict[str, Any]) -> None:
        old, new = (None, None) if where else (self._name(src), self._name(dst))
        if old is None or new is None or os.path.dirname(old) != os.path.dirname(new):
            act()  # not recorded; if it changes the disk, the check at the end fails
            return

        def move() -> None:
            act()
            for name in [each for each in self._numbers if each == old or each.startswith(f"{old}/")]:
                self._numbers[new + name.removeprefix(old)] = self._numbers.pop(name)

        self._do(self._named(Act.RENAME, old, self._numbers[old], new), move)

    def unlink(self, path: _Name, *, dir_fd: int | None = None) -> None:
        name = self._name(path, dir_fd)
        if name is None or name not in self._numbers:
            self._real.unlink(path, dir_fd=dir_fd)
            return

        def remove() -> None:
            self._real.unlink(path)
            del self._numbers[name]

        self._do(self._named(Act.REMOVE, name, self._numbers[name]), remove)

    remove = unlink

    def mkdir(self, path: _Name, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        name = self._name(path, dir_fd)
        if name is None or (self.root / name).exists():
            self._real.mkdir(path, mode, dir_fd=dir_fd)
            return
        if os.path.dirname(name) not in self._numbers:
            self._real.mkdir(path, mode)  # raises FileNotFoundError
        self._announce(Step(Act.MAKE_DIRECTORY, name))
        with self._lock:
            self._real.mkdir(path, mode)
            self._entries.append(self._named(Act.MAKE_DIRECTORY, name, self._new(name)))


def recorded_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the paths of the files and directories that are synced from now on."""
    found: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found
